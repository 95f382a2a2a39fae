//! A mount namespace of the daemon's own, in which nothing on a ublk device stays mounted.
//!
//! The last process of a namespace unmounts what is in it when it ends, and the last mount of a file system writes it
//! back. A daemon must never be the one who does that to a file system on its own volume: it would wait for itself,
//! and be not killable. So it leaves the namespace that it was started in, and removes from its own what is on a ublk
//! device: what was copied when it left, and what comes in when others mount something.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};

use crate::device::facts;

const MOUNTS: &str = "/proc/self/mountinfo";

/// Leaves the namespace of whoever started this process. To be called before there are other threads.
pub fn leave() -> io::Result<()> {
    // SAFETY: changes nothing in memory. This thread gets a namespace, and with it a working directory, of its own;
    // there are no other threads yet, and those to come inherit both. (One that there is would stay where it was, and keep that from ending.)
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // What others mount and unmount still comes in, and nothing goes out.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let mounts = File::open(MOUNTS)?;
    remove_those_on_ublk();
    thread::Builder::new().name("mounts".into()).spawn(move || watch(&mounts))?;
    Ok(())
}

fn watch(mounts: &File) {
    loop {
        match poll(&mut [PollFd::new(mounts, PollFlags::PRI)], None) {
            Ok(_) | Err(Errno::INTR) => remove_those_on_ublk(),
            Err(error) => {
                tracing::warn!("changes of mounts cannot be watched: {error}; unmount volumes before the daemon is stopped");
                return;
            }
        }
    }
}

fn remove_those_on_ublk() {
    let text = fs::read(MOUNTS).unwrap_or_default();
    let mounts: Vec<Mount> = text.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect();
    // What is mounted on top goes first.
    for mount in on_ublk(&mounts).into_iter().rev() {
        if let Err(error) = unmount(&mount.point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
            && !matches!(error, Errno::INVAL | Errno::NOENT)
        {
            tracing::warn!(
                "{} stays mounted in the daemon's own namespace: {error}. Restart the daemon before you unmount it",
                mount.point.display()
            );
        }
    }
}

/// Those that lie on a ublk device, of whatever kind and through whatever layers. Nothing is looked at but `/dev` and
/// `/sys`: file systems on a device that waits for this daemon do not answer.
fn on_ublk(mounts: &[Mount]) -> Vec<&Mount> {
    let mut points: Vec<&Path> = Vec::new();
    loop {
        let found: Vec<&Mount> = mounts.iter().filter(|mount| mount.devices().any(|it| is_on_ublk(&it, &points, 0))).collect();
        if found.len() == points.len() {
            return found;
        }
        // Files in these may be loop devices.
        points = found.iter().map(|mount| mount.point.as_path()).collect();
    }
}

/// A line of `mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    device: u64,
    point: PathBuf,
    source: PathBuf,
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut words = line.split(|byte| *byte == b' ');
        let device = std::str::from_utf8(words.nth(2)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let point = unescaped(words.nth(1)?);
        let mut rest = words.skip_while(|word| *word != b"-");
        Some(Mount { device, point, source: unescaped(rest.nth(2)?) })
    }

    /// The folders of the devices that it may have been mounted from.
    fn devices(&self) -> impl Iterator<Item = PathBuf> {
        // A btrfs has a device number of no device; what it was mounted from has one.
        let source = Some(&self.source).filter(|source| source.starts_with("/dev"));
        let source = source.and_then(|source| fs::metadata(source).ok());
        let source = source.filter(|it| it.file_type().is_block_device()).map(|it| it.rdev());
        [Some(self.device), source].into_iter().flatten().map(facts::sysfs)
    }
}

/// Whether a device is one of ublk, or lies on one, or on a file in one of these mounts.
fn is_on_ublk(device: &Path, points: &[&Path], layers: u32) -> bool {
    let Ok(device) = device.canonicalize() else { return false };
    let named = |part: &std::ffi::OsStr| part.to_str().is_some_and(|part| part.starts_with("ublkb"));
    if device.iter().any(named) {
        return true;
    }
    let file = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
    let in_mount = points.iter().any(|point| Path::new(file.trim_end()).starts_with(point));
    // A partition's layers are its disk's.
    let below = [device.join("slaves"), device.join("../slaves")];
    let mut below = below.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    in_mount || layers < 16 && below.any(|entry| is_on_ublk(&entry.path(), points, layers + 1))
}

/// A path as it is, in which the kernel wrote spaces and the like as three octal digits.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let digits = text.get(at + 1..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| *byte == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                at += 4;
            }
            None => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_read_with_and_without_optional_fields() {
        let mount =
            |point: &str, source: &str| Mount { device: rustix::fs::makedev(259, 3), point: point.into(), source: source.into() };
        let line = b"36 35 259:3 / /mnt\\040a rw,noatime shared:7 master:1 - ext4 /dev/ublkb0p1 rw";
        assert_eq!(Mount::parse(line), Some(mount("/mnt a", "/dev/ublkb0p1")));
        let line = b"36 35 259:3 /sub /mnt rw - btrfs /dev/a\\134b rw";
        assert_eq!(Mount::parse(line), Some(mount("/mnt", "/dev/a\\b")));
        assert_eq!((Mount::parse(b""), Mount::parse(b"1 2 x:y / / rw - a b")), (None, None));
    }

    #[test]
    fn the_layers_of_a_device_are_followed_down_to_ublk() {
        let dir = tempfile::tempdir().unwrap();
        let block = dir.path().join("block");
        for device in ["ublkb3/ublkb3p1", "dm-0/slaves", "dm-1/slaves", "sda"] {
            fs::create_dir_all(block.join(device)).unwrap();
        }
        let link = |from: &str, to: &str| std::os::unix::fs::symlink(block.join(to), block.join(from)).unwrap();
        link("dm-0/slaves/ublkb3p1", "ublkb3/ublkb3p1");
        link("dm-1/slaves/dm-0", "dm-0");
        link("dm-0/slaves/dm-1", "dm-1");
        fs::create_dir_all(block.join("loop0/loop")).unwrap();
        fs::write(block.join("loop0/loop/backing_file"), "/mnt/file\n").unwrap();
        let on = |device: &str, points: &[&Path]| is_on_ublk(&block.join(device), points, 0);
        assert!(on("ublkb3/ublkb3p1", &[]) && on("dm-0", &[]) && on("dm-1", &[]));
        assert!(!on("sda", &[Path::new("/mnt")]) && !on("nothing", &[]));
        assert!(!on("loop0", &[]) && !on("loop0", &[Path::new("/mn")]) && on("loop0", &[Path::new("/mnt")]));
    }
}
