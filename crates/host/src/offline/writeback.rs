//! All dirty data onto the disks, offline, on any host.
//!
//! Where it is proved that the devices hold all that there is, the engine itself does it: it is started over them, destages,
//! and lets go of the volumes. Where that is not proved and its owner says so, what they hold is copied by `salvage.rs`, and
//! the cache devices are not changed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use headpond_engine::Settings;
use headpond_engine::io::{BLOCK, Command, CommandError, SECTOR};
use headpond_format::{Superblock, VolumeEntry};
use serde::Serialize;

use super::damaged::{Damaged, DamagedVolume, Extent, of_pool};
use super::media::Media;
use super::refusal::refusal;
use super::rehearsal::Rehearsal;
use super::{OfflineError, Step, Watch, salvage, save};
use crate::backing::{Backing, BackingError, HasDisk, Spec};
use crate::device::DevicesError;
use crate::pool::waiting::one_that_waits;
use crate::pool::{self, PoolError};
use crate::runtime::{Given, Handle, Running, Runtime, Setup};
use crate::state::{State, hex};
use crate::ublk;

/// How often it is looked how far the work is, and whether to go on.
const LOOK: Duration = Duration::from_millis(200);

/// What is to be written back.
#[derive(Clone, Debug)]
pub struct WriteBack {
    /// The cache devices.
    pub devices: Vec<PathBuf>,
    /// The state folder: of the old host where there still is one, else of this.
    pub state: PathBuf,
    /// Backing devices by volume; the empty name is that of the only volume.
    pub backings: Vec<(String, Spec)>,
    /// Files that volumes without a backing device are copied to, by volume; the empty name is that of the only one.
    pub saves: Vec<(String, PathBuf)>,
    /// The disks are the volumes', though their identity is another.
    pub other_disk: bool,
    /// Go on though what is missing may hold newer or more dirty data, or some may be had yet: the cache devices are only read then, whether or not
    /// anything is missing.
    pub without_missing: bool,
    /// Keep the volumes, and the clean data in the cache.
    pub keep: bool,
    /// Let go of a volume even where dirty data is lost.
    pub give_up_lost: bool,
    /// How long to wait for a device that is held.
    pub patience: Duration,
}

/// Why nothing was written back, or not all.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum WritebackError {
    #[error(transparent)]
    Offline(#[from] OfflineError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Backing(#[from] BackingError),
    #[error(transparent)]
    Devices(#[from] DevicesError),
    #[error("The folder {path} cannot be used: {source}. Nothing was changed. Name another one with --state")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error(
        "There is no volume {name:?} on pool {pool}. Nothing was changed. Its volumes are: {volumes}. Name each disk as --backing NAME=DEVICE"
    )]
    NoVolume { name: String, pool: String, volumes: String },
    #[error(
        "Volume {name} has no backing device: what it holds is on the cache devices alone, and stays there. Nothing was changed. \
         Give --save {name}=FILE to have it copied to a new file"
    )]
    NoDisk { name: String },
    #[error(
        "Volume {volume} has a backing device, and is not copied to {path}. Nothing was changed. Give --backing {volume}=DEVICE to have \
         what is dirty written there"
    )]
    HasDisk { volume: String, path: PathBuf },
    #[error(
        "There is no volume {name:?} without a backing device on pool {pool}. Nothing was changed. Such volumes are: {volumes}. Name each \
         file as --save NAME=FILE"
    )]
    NotToSave { name: String, pool: String, volumes: String },
    #[error("For volume {volume} {option} was given twice. Nothing was changed. Give it once for each volume")]
    Twice { volume: String, option: &'static str },
    #[error(
        "{path} is there already, or named twice. Nothing was changed. Name a new file: it is copied to a device with dd, when it is whole"
    )]
    SaveExists { path: PathBuf },
    #[error(
        "{path} could not be written whole: {source}. The cache devices are as they were, and nothing was written to a disk. Remove that file, \
         make room, or name another one, and try again"
    )]
    Save { path: PathBuf, source: std::io::Error },
    #[error(
        "{path} is another device ({found}) than the one that volume {volume} was made on ({expected}). Nothing was changed. \
         Name the right one. If it is the same disk by another name, or a whole copy of it, say so with --other-disk. Look at the disks first: only \
         what is clean in the cache is compared with them"
    )]
    Identity { path: PathBuf, volume: String, found: String, expected: String },
    #[error(
        "{path} is the disk of volume {other}, not of volume {volume}: the pool knows it by {found}. Nothing was changed, --other-disk or not: the \
         one's data would lie over the other's. Name each volume's own disk. If that path leads to another disk now, name this one by another \
         path, and volume {other}'s own disk as well. If volume {other}'s disk is gone, name a new file of its size for it: --backing \
         {other}=FILE takes what the cache has of it. If something clean is cached of it, that file is refused: let go of volume {other} with \
         `headpond detach --throw-away {other}` first"
    )]
    OfAnother { path: PathBuf, volume: String, other: String, found: String },
    #[error("{path} has {found} bytes, and volume {volume} has {expected}. Nothing was changed. Name the volume's own disk")]
    Size { path: PathBuf, volume: String, found: u64, expected: u64 },
    #[error(
        "{path} is not as the cache knows the disk of volume {volume}: blocks that nobody should have written to differ. Nothing was \
         written to it. Name the volume's own disk. If it was written to without the cache, what is dirty in the cache is older than \
         that, and must not be written"
    )]
    Changed { path: PathBuf, volume: String },
    #[error(
        "{why} Nothing was written. If what is missing, or has left, is gone for good: give --without-missing, which writes what these devices hold, and does \
         not change them. What may be lost by it: {lost}"
    )]
    NotProven { why: String, lost: String },
    #[error(
        "A start does not find dirty data of {volumes}, most likely, that is on the cache devices yet, and would write over it. Nothing was \
         written. `headpond check` names the places. Copy a device that cannot read sectors with ddrescue, and name the copy in its place. If \
         that does not help: give --without-missing, which writes what is found, and does not change the cache devices; or give up with \
         --give-up-lost what is not found, and the disk keeps there what it had before"
    )]
    NotFound { volumes: String },
    #[error(
        "{path} of volume {volume}, left by an earlier daemon, waits for another one: what its clients wrote and no flush has answered is in no \
         cache device yet, and none could serve it once the pool has let go of the volume. Nothing was written. Serve the pool, unmount what is \
         on it, and write back then; or give that up with `headpond volume give-up {path}`; or give --keep, and the next daemon goes on"
    )]
    Waiting { path: PathBuf, volume: String },
    #[error("{0} Nothing was written to a disk.")]
    Start(CommandError),
    #[error(
        "{path}: {source}. What was written stays written, and the cache still holds all of it. Look at the kernel's log, then try again"
    )]
    Disk { path: PathBuf, source: std::io::Error },
    #[error("Cancelled. What was written stays written, and the cache still holds what was not: run it again to go on")]
    Cancelled,
}

impl WritebackError {
    /// Whether it was refused since data could be lost.
    pub fn protects_data(&self) -> bool {
        match self {
            WritebackError::Pool(error) | WritebackError::Offline(OfflineError::Pool(error)) => error.protects_data(),
            WritebackError::Offline(OfflineError::Refused(_) | OfflineError::MayBeOlder { .. })
            | WritebackError::Backing(BackingError::Member { .. } | BackingError::Small { .. })
            | WritebackError::Identity { .. }
            | WritebackError::OfAnother { .. }
            | WritebackError::Size { .. }
            | WritebackError::Changed { .. }
            | WritebackError::SaveExists { .. }
            | WritebackError::NotProven { .. }
            | WritebackError::NotFound { .. }
            | WritebackError::Waiting { .. }
            | WritebackError::Start(_) => true,
            _ => false,
        }
    }
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The pool's name.
    pub pool: String,
    /// Its identity.
    pub id: String,
    /// Its epoch before.
    pub epoch: u64,
    /// It was proved that these devices hold all that there is. Else the pool must not be served again with these disks.
    pub proven: bool,
    /// The pool was told what is clean now: those that were not named are out of date. Else the cache devices are as they were.
    pub cache_changed: bool,
    /// Members in sync that were not named, or could not be read.
    pub missing: Vec<u8>,
    /// Of these, those that were named: their newest superblock cannot be read in both copies.
    pub unread: Vec<u8>,
    /// It was ended before its end, by whoever watched.
    pub cancelled: bool,
    /// The volumes.
    pub volumes: Vec<WrittenVolume>,
}

/// What came of one volume.
#[derive(Debug, Serialize)]
pub struct WrittenVolume {
    /// Its name.
    pub name: String,
    /// It has no backing device: what it holds stays on the cache devices.
    pub without_disk: bool,
    /// Its disk, if one was named.
    pub backing: Option<String>,
    /// The file that it was copied to.
    pub saved: Option<PathBuf>,
    /// Of a volume without a backing device: what it holds, in bytes.
    pub kept_bytes: u64,
    /// Whether anything in the cache could be compared with its disk, if one was named: where nothing is clean, nothing can.
    pub compared: bool,
    /// Dirty data that was written, in bytes.
    pub written_bytes: u64,
    /// Dirty data that was not, in bytes: for want of a disk, or since it failed.
    pub left_bytes: u64,
    /// What no cache device can give any more: byte ranges of the volume. The disk has in them what it had before.
    pub lost: Vec<Extent>,
    /// Where a start reads older data than it should, most likely: byte ranges of the volume.
    pub doubtful: Vec<Extent>,
    /// Where cache devices that are missing, or records that are lost, may have held more: byte ranges of the volume.
    pub suspect: Vec<Extent>,
    /// Some of what is lost, doubtful or suspect is on the cache devices yet, for whoever can read it.
    pub recoverable: bool,
    /// The pool has let go of it: the disk is whole, and used alone from now on.
    pub detached: bool,
    /// What went wrong.
    pub problem: Option<String>,
}

impl Outcome {
    pub(super) fn of(pool: &Superblock, proven: bool, volumes: Vec<WrittenVolume>) -> Outcome {
        let (name, id, missing, unread) = (pool.name.clone(), hex(&pool.pool), Vec::new(), Vec::new());
        Outcome { pool: name, id, epoch: pool.epoch, proven, cache_changed: false, missing, unread, cancelled: false, volumes }
    }

    /// Whether all that was dirty is on the disks.
    pub fn is_whole(&self) -> bool {
        self.volumes.iter().all(WrittenVolume::is_whole)
    }
}

/// A volume and the disk that was named for it.
pub(super) type Disks = BTreeMap<u16, Backing>;

/// Writes all dirty data to the disks.
///
/// # Errors
/// Nothing was written, but for [`WritebackError::Disk`] and, where votes are lacking, [`WritebackError::Cancelled`]. What could not be written
/// of single volumes, for whatever reason, is in the [`Outcome`].
pub fn writeback(what: &WriteBack, watch: Watch<'_>) -> Result<Outcome, WritebackError> {
    let media = Media::open(&what.devices, what.patience)?;
    let pool = media.pool(media.vote(Some(&what.state))?)?;
    let superblock = pool.superblock().clone();
    let (missing, unread) = (pool.election.missing.clone(), pool.named_but_unread());
    let specs = specs(what, &superblock)?;
    let saves = save::of(&what.saves, &superblock)?;
    let is_left = |volume: &&VolumeEntry| !what.keep && specs.contains_key(&volume.number);
    if let Some((volume, path)) = one_that_waits(&superblock, superblock.volumes.iter().filter(is_left), ublk::waiting) {
        return Err(WritebackError::Waiting { path, volume });
    }
    let rehearsal = Rehearsal::start(&pool, watch)?.map_err(WritebackError::Start)?;
    let damaged = of_pool(&pool, &rehearsal, watch)?;
    let changes_devices = !specs.is_empty();
    let refusal = refusal(&pool, &damaged, changes_devices && !what.give_up_lost);
    // Whoever says that devices may be missing is told that those that are there stay as they are.
    let only_reads = refusal.is_some() || what.without_missing && changes_devices;
    if let Some(refusal) = refusal.filter(|_| !what.without_missing) {
        return Err(refusal);
    }
    if !saves.is_empty() {
        // A disk that is refused leaves no file behind.
        drop(disks(what, &superblock, &specs)?);
        save::all(&pool, &rehearsal, &saves, watch)?;
    }
    let mut outcome = match only_reads {
        true => {
            let disks = disks(what, &superblock, &specs)?;
            salvage::copy(&pool, &rehearsal, &disks, &damaged, watch)?
        }
        false if !changes_devices => only_read(&superblock, &damaged),
        false => {
            drop(rehearsal);
            drop(pool);
            drop(media);
            by_engine(what, &superblock, &specs, &damaged, watch)?
        }
    };
    for volume in outcome.volumes.iter_mut().filter(|volume| volume.without_disk) {
        let number = superblock.volumes.iter().find(|v| v.name == volume.name).map(|v| v.number);
        volume.saved = number.and_then(|number| saves.get(&number).cloned());
        if volume.saved.is_none() && volume.kept_bytes > 0 && !outcome.proven {
            let name = &volume.name;
            let next =
                format!("It goes with the cache devices: give --save {name}=FILE to have what is on it copied to a new file");
            volume.problem = Some(next);
        }
    }
    // No client comes any more, perhaps, who would hear of it.
    let is_untold = |name: &str| superblock.volumes.iter().any(|v| v.name == name && v.doubts.untold);
    for volume in outcome.volumes.iter_mut().filter(|volume| volume.problem.is_none() && is_untold(&volume.name)) {
        volume.problem = Some(untold(volume.without_disk));
    }
    Ok(Outcome { missing, unread, ..outcome })
}

/// What no client was told, for whoever is here in its place.
fn untold(without_disk: bool) -> String {
    match without_disk {
        true => "The last copies of something on it were lost with cache devices, and no client was told. What is lost fails when it is read. Look at \
                 the logs of the devices that failed, and check the file system before you rely on it"
            .into(),
        false => CommandError::Unkept.to_string(),
    }
}

/// Where no disk was named, nothing is changed: how the volumes stand.
fn only_read(superblock: &Superblock, damaged: &Damaged) -> Outcome {
    let stands = |found: &DamagedVolume| {
        let left = if found.without_disk { 0 } else { found.dirty_bytes };
        WrittenVolume { left_bytes: left, problem: (left > 0).then(|| no_disk_named(&found.name)), ..WrittenVolume::read(found) }
    };
    Outcome::of(superblock, true, damaged.volumes.iter().map(stands).collect())
}

pub(super) fn no_disk_named(volume: &str) -> String {
    format!("No disk was named for it: give --backing {volume}=DEVICE")
}

impl WrittenVolume {
    /// Whether all that was dirty is on its disk, and nothing is to be told.
    pub fn is_whole(&self) -> bool {
        self.problem.is_none() && self.left_bytes == 0 && !self.lacks_data()
    }

    /// Whether some of its data is lost, or was not found, or may not have been.
    pub fn lacks_data(&self) -> bool {
        [&self.lost, &self.doubtful, &self.suspect].iter().any(|list| !list.is_empty())
    }

    /// Of one that was only read.
    pub(super) fn read(found: &DamagedVolume) -> WrittenVolume {
        WrittenVolume {
            name: found.name.clone(),
            without_disk: found.without_disk,
            backing: None,
            saved: None,
            kept_bytes: if found.without_disk { found.dirty_bytes } else { 0 },
            compared: false,
            written_bytes: 0,
            left_bytes: 0,
            lost: found.damaged.clone(),
            doubtful: found.doubtful.clone(),
            suspect: found.suspect.clone(),
            recoverable: found.recoverable,
            detached: false,
            problem: None,
        }
    }
}

/// The disk of each volume, as it was named.
fn specs(what: &WriteBack, superblock: &Superblock) -> Result<BTreeMap<u16, Spec>, WritebackError> {
    let mut specs = BTreeMap::new();
    for (name, spec) in &what.backings {
        let only = || superblock.volumes.first().filter(|_| name.is_empty() && superblock.volumes.len() == 1);
        let volume = superblock.volumes.iter().find(|v| v.name == *name).or_else(only);
        let volume = volume.ok_or_else(|| {
            let names: Vec<&str> = superblock.volumes.iter().map(|v| v.name.as_str()).collect();
            let volumes = if names.is_empty() { "none".into() } else { names.join(", ") };
            WritebackError::NoVolume { name: name.clone(), pool: superblock.name.clone(), volumes }
        })?;
        if !volume.has_disk() {
            return Err(WritebackError::NoDisk { name: volume.name.clone() });
        }
        if specs.insert(volume.number, spec.clone()).is_some() {
            return Err(WritebackError::Twice { volume: volume.name.clone(), option: "--backing" });
        }
    }
    Ok(specs)
}

/// Claims the disks, and makes sure that they are the volumes'.
fn disks(what: &WriteBack, superblock: &Superblock, specs: &BTreeMap<u16, Spec>) -> Result<Disks, WritebackError> {
    let mut disks = Disks::new();
    let places = State::at(&what.state).places(&superblock.pool);
    let last = |volume: &VolumeEntry| places.volumes.get(&volume.name).map(|text| Spec::new(text));
    for volume in &superblock.volumes {
        let Some(spec) = specs.get(&volume.number) else { continue };
        let backing = Backing::open(&spec.clone().after(last(volume).as_ref()), what.patience)?;
        let is_own = backing.is_known_as(&volume.backing);
        for other in superblock.volumes.iter().filter(|other| other.number != volume.number) {
            // A path that leads elsewhere since a boot says nothing where that one's disk was named as well.
            let is_followed = !is_own && specs.get(&other.number).is_none_or(|named| named.is_one_with(spec));
            let by_path = || backing.is_at_anothers_path(&other.backing, last(other).as_ref());
            if backing.is_named(&other.backing) || is_followed && by_path() {
                return Err(of_another(volume, &backing, other));
            }
        }
        is_the_disk(volume, &backing, is_own || what.other_disk)?;
        disks.insert(volume.number, backing);
    }
    Ok(disks)
}

/// Whatever is said of a disk, it is not one volume's by what the pool knows another's by.
fn of_another(volume: &VolumeEntry, backing: &Backing, other: &VolumeEntry) -> WritebackError {
    let (path, found) = (backing.path().to_owned(), other.backing.clone());
    WritebackError::OfAnother { path, volume: volume.name.clone(), other: other.name.clone(), found }
}

/// Whether a disk is a volume's: it is known to be, or called so, and large enough.
fn is_the_disk(volume: &VolumeEntry, backing: &Backing, is_called_so: bool) -> Result<(), WritebackError> {
    let (path, name) = (|| backing.path().to_owned(), || volume.name.clone());
    if !is_called_so {
        let (found, expected) = (backing.identity(), volume.backing.clone());
        return Err(WritebackError::Identity { path: path(), volume: name(), found, expected });
    }
    let (found, expected) = (backing.sectors() * SECTOR, volume.sectors * SECTOR);
    if found < expected {
        return Err(WritebackError::Size { path: path(), volume: name(), found, expected });
    }
    Ok(())
}

/// Lets the engine do it, as a daemon would.
fn by_engine(
    what: &WriteBack,
    superblock: &Superblock,
    specs: &BTreeMap<u16, Spec>,
    damaged: &Damaged,
    watch: Watch<'_>,
) -> Result<Outcome, WritebackError> {
    let disks = disks(what, superblock, specs)?;
    let state = State::open(&what.state).map_err(|source| WritebackError::Folder { path: what.state.clone(), source })?;
    let open = pool::open(&what.devices, &state, what.patience)?;
    let devices: Vec<Given> = open.devices.into_iter().chain(disks.into_iter().map(|(n, disk)| disk.give(n))).collect();
    // Nobody is served: what is dirty is to be known first.
    let settings = Settings { pages_at_start: u32::MAX, ..Settings::default() };
    let (runtime, started) = Runtime::start(Setup { settings, election: open.election, devices })?;
    wait(&started, runtime.handle(), None, "starting the pool", watch)?.map_err(WritebackError::Start)?;
    let end = || runtime.handle().begin(Command::Stop).wait(Duration::from_secs(60));
    // All of them before the first byte is written.
    let status = runtime.handle().status();
    let refused = |volume: &&VolumeEntry| status.as_ref().and_then(|it| it.volume(&volume.name)).is_some_and(|it| it.refused);
    for volume in superblock.volumes.iter().filter(refused) {
        if let Some(spec) = specs.get(&volume.number) {
            let _ = end();
            return Err(WritebackError::Changed { path: spec.path().to_owned(), volume: volume.name.clone() });
        }
    }
    let mut volumes = Vec::new();
    let mut cancelled = false;
    for volume in &superblock.volumes {
        let found = damaged.volumes.iter().find(|v| v.name == volume.name);
        if let Some(found) = found.filter(|found| found.without_disk) {
            // What it does not find the engine takes for free space.
            volumes.push(WrittenVolume { recoverable: found.is_lost_recoverable, ..WrittenVolume::read(found) });
            continue;
        }
        let (doubtful, suspect) = found.map(|v| (v.doubtful.clone(), v.suspect.clone())).unwrap_or_default();
        let spec = specs.get(&volume.number);
        let written = one(what, &runtime, volume, spec, found, &mut |step| {
            cancelled |= !watch(step);
            !cancelled
        });
        let compared = written.backing.is_some() && found.is_some_and(|found| found.is_comparable);
        let recoverable = !written.detached && found.is_some_and(|found| found.is_lost_recoverable);
        volumes.push(WrittenVolume { doubtful, suspect, compared, recoverable, ..written });
    }
    // Ended cleanly, so that the devices need no replay at their next start.
    let _ = end();
    Ok(Outcome { cancelled, cache_changed: true, ..Outcome::of(superblock, true, volumes) })
}

/// One volume, by the engine.
fn one(
    what: &WriteBack,
    runtime: &Runtime,
    volume: &VolumeEntry,
    spec: Option<&Spec>,
    found: Option<&DamagedVolume>,
    watch: Watch<'_>,
) -> WrittenVolume {
    let handle = runtime.handle();
    let dirty = || dirty_bytes(handle, volume.number);
    let before = dirty();
    let mut written = WrittenVolume {
        name: volume.name.clone(),
        without_disk: false,
        backing: spec.map(ToString::to_string),
        saved: None,
        kept_bytes: 0,
        compared: false,
        written_bytes: 0,
        left_bytes: before,
        lost: found.map_or(Vec::new(), |found| found.damaged.clone()),
        doubtful: Vec::new(),
        suspect: Vec::new(),
        recoverable: false,
        detached: false,
        problem: None,
    };
    if spec.is_none() {
        written.problem = (before > 0).then(|| no_disk_named(&volume.name));
        return written;
    }
    // Cancelled while another one was written.
    if !watch(Step { what: "writing dirty data", done: 0, total: before }) {
        written.problem = Some(WritebackError::Cancelled.to_string());
        return written;
    }
    let command = match what.keep {
        true => Command::Destage { volume: volume.number },
        false => Command::Detach { volume: volume.number, give_up_lost: what.give_up_lost },
    };
    let running = handle.begin(command);
    let ended = wait(&running, handle, Some(volume.number), "writing dirty data", watch);
    if !matches!(ended, Ok(Ok(()))) && !what.keep {
        // On the way it had been switched to pass-through; what it was is what its owner wants.
        let _ = handle.begin(Command::SetMode { volume: volume.number, mode: volume.mode }).end();
    }
    match ended {
        Ok(Ok(())) => (written.left_bytes, written.detached) = (0, !what.keep),
        // All that is dirty is on the disk. What went past the cache before the next client hears of, too, if there is one.
        Ok(Err(error @ CommandError::Unkept)) if what.keep => {
            (written.left_bytes, written.problem) = (0, Some(error.to_string()));
        }
        // What is lost is listed as such; all the rest is on the disk.
        Ok(Err(CommandError::Lost { blocks })) => {
            (written.left_bytes, written.problem) = (0, Some(no_copy_of(blocks, what.keep)));
        }
        Ok(Err(error)) => (written.left_bytes, written.problem) = (dirty(), Some(error.to_string())),
        Err(error) => (written.left_bytes, written.problem) = (dirty(), Some(error.to_string())),
    }
    // Of what was found before all of it began: another volume's turn leaves this one's disk time, too.
    written.written_bytes = found.map_or(0, |found| found.dirty_bytes).saturating_sub(written.left_bytes);
    written
}

fn no_copy_of(blocks: u64, is_kept: bool) -> String {
    let how = if is_kept { "Run it with --give-up-lost, and without --keep," } else { "Give --give-up-lost" };
    format!(
        "{blocks} blocks hold data that was not on the disk yet, and no copy of it can be read: they fail rather than show what was there before. All \
         else is on the disk. {how} to have the pool let go of the volume: the disk keeps in those blocks what it had before"
    )
}

fn dirty_bytes(handle: &Handle, volume: u16) -> u64 {
    let status = handle.status();
    let volumes = status.iter().flat_map(|status| &status.volumes);
    volumes.filter(|v| v.number == volume).map(|v| v.dirty_blocks * BLOCK).sum()
}

/// Waits for a command, tells how far it is, and cancels it where that is wished.
fn wait(
    running: &Running,
    handle: &Handle,
    volume: Option<u16>,
    doing: &'static str,
    watch: Watch<'_>,
) -> Result<Result<(), CommandError>, WritebackError> {
    let total = volume.map_or(0, |volume| dirty_bytes(handle, volume));
    loop {
        if let Some(result) = running.wait(LOOK) {
            return Ok(result);
        }
        let left = volume.map_or(0, |volume| dirty_bytes(handle, volume));
        if !watch(Step { what: doing, done: total.saturating_sub(left), total }) {
            handle.begin(Command::Cancel(running.id));
            return match running.wait(Duration::from_secs(10)) {
                // It was done already.
                Some(Ok(())) => Ok(Ok(())),
                _ => Err(WritebackError::Cancelled),
            };
        }
    }
}
