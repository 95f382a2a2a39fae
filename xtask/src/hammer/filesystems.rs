//! ext4 and XFS on the volume: loaded, the daemon killed under them, checked.

use super::model::Dice;
use super::rig::{Frontend, Rig};
use super::{Context as Hammer, Figures, Rounds, interrupt, tool};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of the volume: XFS wants 300 MiB at least.
const BYTES: u64 = 768 << 20;
/// Durable files that are kept; older ones are removed.
const FILES: usize = 60;
/// Sizes of files: less than a block, a few, many.
const SIZES: [usize; 5] = [100, 4096, 70_000, 1 << 20, 3 << 20];
/// Threads that write files, and those that work on names alone.
const WRITERS: u64 = 2;

/// ext4, by e2fsck.
pub(super) fn ext4(hammer: &Hammer) -> Result<Figures> {
    survive(hammer, Kind::Ext4)
}

/// XFS, by xfs_repair.
pub(super) fn xfs(hammer: &Hammer) -> Result<Figures> {
    survive(hammer, Kind::Xfs)
}

#[derive(Clone, Copy)]
enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    fn make(self, device: &Path, log: &Path) -> Result<String> {
        let mut command = match self {
            // Tables that are initialised later would be written beside the load.
            Kind::Ext4 => Command::new("mkfs.ext4"),
            Kind::Xfs => Command::new("mkfs.xfs"),
        };
        match self {
            Kind::Ext4 => command.args(["-q", "-F", "-E", "lazy_itable_init=0"]),
            Kind::Xfs => command.args(["-q", "-f"]),
        };
        tool::run(command.arg(device), log)
    }

    /// Changes nothing, and fails if anything is wrong.
    fn check(self, device: &Path, log: &Path) -> Result<String> {
        let mut command = match self {
            Kind::Ext4 => Command::new("e2fsck"),
            Kind::Xfs => Command::new("xfs_repair"),
        };
        match self {
            Kind::Ext4 => command.args(["-f", "-n"]),
            Kind::Xfs => command.arg("-n"),
        };
        tool::run(command.arg(device), log)
    }
}

/// Each round: mount, load, kill, restart; mount, which replays the journal; look at the files whose fsync had returned; unmount, fsck.
fn survive(hammer: &Hammer, kind: Kind) -> Result<Figures> {
    let mut rig = hammer.rig(Frontend::Loop, BYTES)?;
    kind.make(&rig.device()?, &rig.path("mkfs.log"))?;
    let durable = Durable { files: Mutex::default(), next: AtomicU64::new(0), in_doubt: AtomicU64::new(0) };
    let (mut compared, mut bytes, mut works) = (0, 0, 0);
    let mut rounds = Rounds::begin(hammer);
    for round in 1..=hammer.rounds {
        rounds.say(round);
        let point = rig.mount()?;
        works += load_and_kill(&mut rig, &point, &durable, hammer, round)?;
        rig.unmount()?;
        rig.start()?;
        let point = rig.mount().with_context(|| format!("mounting after kill {round}"))?;
        let (files, of) = durable.compare(&point, kind, rig.killed).with_context(|| format!("after kill {round}"))?;
        compared += files;
        bytes += of;
        durable.thin_out(&point)?;
        rig.unmount()?;
        kind.check(&rig.device()?, &rig.path("fsck.log")).with_context(|| format!("the file system after kill {round}"))?;
        rig.no_errors()?;
    }
    // The disk alone has the file system, and it is whole.
    rig.detach()?;
    rig.stop()?;
    kind.check(&rig.path("disk"), &rig.path("fsck.log")).context("the file system on the disk alone, after the detach")?;
    let (kills, slowest) = (rig.kills, rig.slowest_start.as_millis() as u64);
    rig.passed();
    Ok(vec![
        ("SIGKILLs", kills.into()),
        ("ms of the slowest restart", slowest.into()),
        ("clean fscks", (kills + 1).into()),
        ("files with returned fsync", durable.next.load(Ordering::SeqCst).into()),
        ("of them in doubt", durable.in_doubt.load(Ordering::SeqCst).into()),
        ("checksums compared", compared.into()),
        ("MiB compared", (bytes >> 20).into()),
        ("changes of names", works.into()),
    ])
}

/// Loads the file system and kills the daemon in the middle of it; how many changes of names were made.
fn load_and_kill(rig: &mut Rig, point: &Path, durable: &Durable, hammer: &Hammer, round: u64) -> Result<u64> {
    let (stop, names) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut fio = fio(rig, point, hammer.seed.wrapping_add(round * 8))?;
    let result = thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| durable.write(point, &stop));
        }
        let folder = point.join("names");
        let names = &names;
        let stop = &stop;
        let seed = hammer.seed.wrapping_add(round);
        scope.spawn(move || change_names(&folder, seed, stop, names));
        let slept = interrupt::sleep(hammer.length_of(round) + Duration::from_millis(500));
        let running = fio.0.try_wait();
        let kill = rig.kill();
        stop.store(true, Ordering::SeqCst);
        slept.and(kill)?;
        match running {
            Ok(Some(status)) => bail!("fio ended before the kill, with {status}: {}", tool::last_words(&rig.path("fio.log"))),
            _ => Ok(()),
        }
    });
    // It ends by itself, by I/O errors.
    drop(fio);
    result.map(|()| names.load(Ordering::SeqCst))
}

/// A child that does not outlive its round.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// fio on files, reading and writing through the page cache and past it, without an end of its own.
fn fio(rig: &Rig, point: &Path, seed: u64) -> Result<Running> {
    let job = format!(
        "[global]\ndirectory={}\nthread=1\nrandseed={seed}\nsize=48m\nrw=randrw\nbsrange=512-256k\ntime_based=1\nruntime=3600\n\
         [cached]\nioengine=psync\nfsync=16\n[direct]\nioengine=libaio\niodepth=8\ndirect=1\nblockalign=4k\nbsrange=4k-256k\nfdatasync=32\n",
        point.display()
    );
    let path = rig.path("files.fio");
    fs::write(&path, job)?;
    let log = File::create(rig.path("fio.log"))?;
    let mut command = Command::new("fio");
    command.arg(path).current_dir(rig.path(".")).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    Ok(Running(command.spawn().context("fio cannot be run")?))
}

/// A file whose fsync had returned, and that of its folder.
#[derive(Clone, Copy)]
pub struct Kept {
    sum: u64,
    /// When the fsync of the folder, the last step, was called, and when it returned.
    last_step: (Instant, Instant),
}

impl Kept {
    /// Its last step returned when the kill was already on its way.
    fn returned_beside(&self, killed: Option<(Instant, Instant)>) -> bool {
        killed.is_some_and(|(sent, _)| self.last_step.1 >= sent)
    }

    /// How its last step lies to a kill: who promised what, if it is gone.
    fn beside(&self, killed: Option<(Instant, Instant)>) -> String {
        let Some((sent, gone)) = killed else { return "no kill yet".into() };
        let after = |moment: Instant, of: Instant| match moment.checked_duration_since(of) {
            Some(after) => format!("{:.2} ms after", after.as_secs_f64() * 1e3),
            None => format!("{:.2} ms before", of.duration_since(moment).as_secs_f64() * 1e3),
        };
        let (called, returned) = self.last_step;
        format!(
            "the fsync of its folder was called {} the SIGKILL and {} the daemon's end, and returned {} the SIGKILL and {} the end",
            after(called, sent),
            after(called, gone),
            after(returned, sent),
            after(returned, gone)
        )
    }
}

/// Files whose fsync had returned, by number.
struct Durable {
    files: Mutex<BTreeMap<u64, Kept>>,
    next: AtomicU64,
    /// Names that are not there, and were promised beside a kill by a file system that so promises without writing.
    in_doubt: AtomicU64,
}

impl Durable {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Kept>> {
        self.files.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Writes files until something fails: the file and its name made durable, one in two renamed into place as programs do.
    fn write(&self, point: &Path, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            let number = self.next.fetch_add(1, Ordering::SeqCst);
            let Ok(kept) = write_durably(point, number) else { return };
            let mut files = self.lock();
            files.insert(number, kept);
            // Space is bounded: a file that is to go no longer counts, before it goes.
            let oldest = if files.len() > FILES { files.pop_first() } else { None };
            drop(files);
            if let Some((number, _)) = oldest {
                let _ = fs::remove_file(point.join(format!("durable-{number}")));
            }
        }
    }

    /// Compares all; how many there were, and bytes.
    fn compare(&self, point: &Path, kind: Kind, killed: Option<(Instant, Instant)>) -> Result<(u64, u64)> {
        let (mut count, mut bytes) = (0, 0);
        let mut files = self.lock();
        let mut gone = Vec::new();
        for (number, kept) in files.iter() {
            // XFS lets fsync of a folder return without an error when its log cannot be written because the device is gone (seen on Linux
            // 6.18, without Headpond: on nbdfuse in front of nbdkit, called and returned after nbdfuse was dead). So what returned
            // beside the kill proves nothing about a name; nor does ext4 need the leave.
            let may_lack_name = matches!(kind, Kind::Xfs) && kept.returned_beside(killed);
            let path = point.join(format!("durable-{number}"));
            let mut data = Vec::new();
            if may_lack_name && !path.exists() {
                gone.push(*number);
                continue;
            }
            let read = File::open(&path).and_then(|mut file| file.read_to_end(&mut data));
            read.with_context(|| {
                let half = path.with_extension("new").exists();
                let name = if half { "; it is there by the name before its rename" } else { "" };
                format!("{}, whose fsync had returned, cannot be read{name}; {}", path.display(), kept.beside(killed))
            })?;
            if checksum(&data) != kept.sum {
                let expected = content(*number);
                let at = data.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(data.len().min(expected.len()));
                bail!(
                    "MISMATCH: {}, whose fsync had returned, is not as it was written: {} bytes of {}, the first wrong one at {at}; {}",
                    path.display(),
                    data.len(),
                    expected.len(),
                    kept.beside(killed)
                );
            }
            count += 1;
            bytes += data.len() as u64;
        }
        self.in_doubt.fetch_add(gone.len() as u64, Ordering::SeqCst);
        for number in gone {
            files.remove(&number);
        }
        Ok((count, bytes))
    }

    /// Makes room for the next round: what a kill left half written, and half of the rest.
    fn thin_out(&self, point: &Path) -> Result<()> {
        let mut files = self.lock();
        while files.len() > FILES / 2 {
            files.pop_first();
        }
        for entry in fs::read_dir(point)? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.strip_prefix("durable-")?.parse::<u64>().ok());
            if entry.path().extension().is_some_and(|it| it == "new") || number.is_some_and(|number| !files.contains_key(&number))
            {
                fs::remove_file(entry.path())?;
            }
        }
        let names = point.join("names");
        if names.exists() {
            fs::remove_dir_all(names)?;
        }
        Ok(())
    }
}

/// Writes a file of known content, and makes it and its name durable.
pub fn write_durably(point: &Path, number: u64) -> io::Result<Kept> {
    let data = content(number);
    let path = point.join(format!("durable-{number}"));
    let renamed = number.is_multiple_of(2);
    let first = if renamed { path.with_extension("new") } else { path.clone() };
    let mut file = File::create_new(&first)?;
    file.write_all(&data)?;
    file.sync_all()?;
    if renamed {
        fs::rename(&first, &path)?;
    }
    let folder = File::open(point)?;
    let called = Instant::now();
    folder.sync_all()?;
    Ok(Kept { sum: checksum(&data), last_step: (called, Instant::now()) })
}

/// What is in the file with this number.
pub fn content(number: u64) -> Vec<u8> {
    let mut dice = Dice(number);
    let mut data = vec![0; SIZES[number as usize % SIZES.len()]];
    data.chunks_mut(8).for_each(|word| word.copy_from_slice(&dice.below(u64::MAX).to_le_bytes()[..word.len()]));
    data
}

/// FNV-1a over words.
fn checksum(data: &[u8]) -> u64 {
    data.chunks(8).fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        (sum ^ u64::from_le_bytes(bytes)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
    })
}

/// Folders, files, links and renames, none of them made durable: what is left of them must be a whole file system.
pub fn change_names(folder: &Path, seed: u64, stop: &AtomicBool, made: &AtomicU64) {
    let mut dice = Dice(seed);
    let name = |dice: &mut Dice| folder.join(dice.below(8).to_string()).join(dice.below(40).to_string());
    for n in 0..8 {
        let _ = fs::create_dir_all(folder.join(n.to_string()));
    }
    while !stop.load(Ordering::SeqCst) {
        let (a, b) = (name(&mut dice), name(&mut dice));
        let result = match dice.below(8) {
            0..3 => fs::write(&a, vec![b'x'; dice.below(9000) as usize]),
            3 => fs::rename(&a, &b),
            4 => fs::hard_link(&a, &b),
            5 => std::os::unix::fs::symlink(&b, &a),
            6 => fs::remove_file(&a),
            _ => File::options().write(true).open(&a).and_then(|file| file.set_len(dice.below(20_000))),
        };
        match result {
            Ok(()) => drop(made.fetch_add(1, Ordering::SeqCst)),
            // A dead device, as opposed to a name that is not there, or there already.
            Err(error) if matches!(error.raw_os_error(), Some(5 | 30 | 117)) => return,
            Err(_) => {}
        }
    }
}
