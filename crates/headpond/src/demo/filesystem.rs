//! A real file system on a volume: made, checked, mounted, and files on it whose content proves itself.

use super::pattern;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a file: whole sectors, and by far not all alike.
const FILE_BYTES: [usize; 4] = [4096, 64 << 10, 1 << 20, 3 << 20];

/// A file system that the demo knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum FileSystem {
    /// ext4, by e2fsprogs.
    Ext4,
    /// XFS, by xfsprogs.
    Xfs,
}

impl FileSystem {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }

    /// Why it cannot be used here, if so.
    pub fn missing(self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("only root can mount".into());
        }
        for device in ["/dev/fuse", "/dev/loop-control"] {
            if !Path::new(device).exists() {
                return Some(format!("there is no {device}"));
            }
        }
        let tool = format!("mkfs.{}", self.name());
        let there = Command::new(&tool).arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        there.is_err().then(|| format!("{tool} is not installed"))
    }

    /// The first that can be used here, or why there is none.
    pub fn any() -> Result<FileSystem, String> {
        match (FileSystem::Ext4.missing(), FileSystem::Xfs.missing()) {
            (None, _) => Ok(FileSystem::Ext4),
            (_, None) => Ok(FileSystem::Xfs),
            (Some(why), Some(_)) => Err(why),
        }
    }

    /// Makes it on a device.
    pub fn make(self, device: &Path) -> Result<()> {
        match self {
            // Tables that are initialised later would run beside the loads.
            FileSystem::Ext4 => tool(Command::new("mkfs.ext4").args(["-q", "-F", "-E", "lazy_itable_init=0"]).arg(device)),
            FileSystem::Xfs => tool(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(device)),
        }
    }

    /// Replays its journal and looks whether it is whole.
    pub fn check(self, device: &Path, mount_point: &Path) -> Result<()> {
        match self {
            FileSystem::Ext4 => {
                // 1: the journal was replayed, or what it names as unfinished was finished; a second look finds nothing.
                let first = Command::new("e2fsck").args(["-f", "-p"]).arg(device).stdin(Stdio::null()).output()?;
                if !matches!(first.status.code(), Some(0 | 1)) {
                    bail!("e2fsck: {}", said(&first));
                }
                tool(Command::new("e2fsck").args(["-f", "-n"]).arg(device))
            }
            FileSystem::Xfs => {
                // Only the kernel replays its log.
                let mounted = Mounted::new(device, mount_point, &[])?;
                mounted.unmount()?;
                tool(Command::new("xfs_repair").arg("-n").arg(device))
            }
        }
    }
}

fn said(output: &std::process::Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).trim().replace('\n', "; ");
    format!("{}: {text}", output.status)
}

/// Runs a tool to its end.
fn tool(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{name} cannot be run"))?;
    if !output.status.success() {
        bail!("{name}: {}", said(&output));
    }
    Ok(())
}

/// A mounted file system. Dropped, it is unmounted, by force if there is no other way.
pub struct Mounted {
    point: PathBuf,
    there: bool,
}

impl Mounted {
    /// Mounts a device.
    pub fn new(device: &Path, point: &Path, options: &[&str]) -> Result<Mounted> {
        fs::create_dir_all(point)?;
        tool(Command::new("mount").args(options).arg(device).arg(point))?;
        Ok(Mounted { point: point.to_owned(), there: true })
    }

    /// Unmounts it.
    pub fn unmount(self) -> Result<()> {
        self.unmount_within(Duration::ZERO)
    }

    /// Unmounts it; whoever used it may take so long to let go of it.
    pub fn unmount_within(mut self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        while let Err(error) = tool(Command::new("umount").arg(&self.point)) {
            if Instant::now() >= until {
                return Err(error);
            }
            thread::sleep(Duration::from_millis(100));
        }
        self.there = false;
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.there && tool(Command::new("umount").arg(&self.point)).is_err() {
            // Whatever keeps it busy sees the end of it later.
            let _ = tool(Command::new("umount").arg("--lazy").arg(&self.point));
        }
    }
}

/// Files that were written and made durable, by number.
#[derive(Default)]
pub struct Files {
    durable: Vec<u64>,
    count: Arc<AtomicUsize>,
}

/// A file's content: of its number's own seed.
fn content(number: u64) -> Vec<u8> {
    let mut data = vec![0; FILE_BYTES[number as usize % FILE_BYTES.len()]];
    pattern::fill(&mut data, pattern::mix(number), 0, number);
    data
}

impl Files {
    /// Writes files, each made durable with its name, until something fails or it is told to stop.
    pub fn write(&mut self, folder: &Path, stop: &AtomicBool) {
        for number in 0.. {
            let write = || -> std::io::Result<()> {
                let mut file = File::create_new(folder.join(number.to_string()))?;
                file.write_all(&content(number))?;
                file.sync_all()?;
                File::open(folder)?.sync_all()
            };
            if stop.load(Ordering::Relaxed) || write().is_err() {
                return;
            }
            self.durable.push(number);
            self.count.store(self.durable.len(), Ordering::Relaxed);
        }
    }

    /// How many are durable, for whoever looks on while they are written.
    pub fn count(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.count)
    }

    /// How many are durable.
    pub fn len(&self) -> usize {
        self.durable.len()
    }

    /// The numbers of those that are not there as they were written.
    pub fn wrong(&self, folder: &Path) -> Vec<u64> {
        let whole = |number: u64| {
            let mut found = Vec::new();
            let read = File::open(folder.join(number.to_string())).and_then(|mut file| file.read_to_end(&mut found));
            read.is_ok() && found == content(number)
        };
        self.durable.iter().copied().filter(|number| !whole(*number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_damaged_short_or_missing_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::default();
        let (stop, count) = (AtomicBool::new(false), files.count());
        std::thread::scope(|scope| {
            scope.spawn(|| files.write(dir.path(), &stop));
            while count.load(Ordering::Relaxed) < 9 {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(files.len() >= 9 && files.wrong(dir.path()).is_empty());
        let path = |number: u64| dir.path().join(number.to_string());
        fs::remove_file(path(1)).unwrap();
        File::options().write(true).open(path(2)).unwrap().set_len(512).unwrap();
        let mut third = fs::read(path(3)).unwrap();
        third[70_000] ^= 1;
        fs::write(path(3), third).unwrap();
        fs::write(path(4), content(5)).unwrap();
        assert_eq!(files.wrong(dir.path()), [1, 2, 3, 4]);
    }
}
