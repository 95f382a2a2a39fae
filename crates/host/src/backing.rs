//! Backing devices: how they are named, claimed, recognised, and what a volume on them looks like.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use headpond_engine::io::{BLOCK_SECTORS, Device, SECTOR};
use headpond_engine::status::VolumeStatus;
use headpond_format::VolumeEntry;
use headpond_sim::models::rotating::RotatingParams;
use headpond_sim::models::{Access, Kind, RotatingDisk, TimingModel};
use rustix::fs::FileType;

use crate::claim::{Claim, ClaimError};
use crate::device::facts::{self, Facts};
use crate::device::modelled::{Pace, PaceKind};
use crate::pool::probe::{self, Found};
use crate::runtime::Given;
use crate::silence;

const MODELLED: &str = "modelled:";

/// Begins the identity of a device that has no name of its own.
const PATH: &str = "path:";

/// Whether a recorded identity is a path, and no name of a device's own.
pub(crate) fn is_path(identity: &str) -> bool {
    without_pace(identity).starts_with(PATH)
}

/// What was recorded of the device itself.
fn without_pace(identity: &str) -> &str {
    identity.trim_start_matches(MODELLED)
}

/// Volumes with a backing device, and such that have none: what they hold is on the cache devices alone.
pub trait HasDisk {
    /// Whether it has a backing device.
    fn has_disk(&self) -> bool;
}

impl HasDisk for VolumeEntry {
    fn has_disk(&self) -> bool {
        !self.backing.is_empty()
    }
}

impl HasDisk for VolumeStatus {
    fn has_disk(&self) -> bool {
        !self.backing.is_empty()
    }
}

/// How a person names a backing device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    path: PathBuf,
    modelled: bool,
    is_last: bool,
}

impl Spec {
    /// A path, or `modelled:` and a path: the file there, at the pace of a modelled rotating disk.
    pub fn new(text: &str) -> Spec {
        let (path, modelled) = match text.strip_prefix(MODELLED) {
            Some(path) => (path, true),
            None => (text, false),
        };
        Spec { path: std::path::absolute(path).unwrap_or_else(|_| path.into()), modelled, is_last: false }
    }

    /// The same, where `last` is how the volume's disk was named when this host served it last, if it did.
    pub fn after(self, last: Option<&Spec>) -> Spec {
        let is_last = last.is_some_and(|last| (&last.path, last.modelled) == (&self.path, self.modelled));
        Spec { is_last, ..self }
    }

    /// Whether both lead to one device or file, and say the same of its pace, as far as can be seen without opening it.
    pub fn leads_where(&self, other: &Spec) -> bool {
        self.modelled == other.modelled && self.is_one_with(other)
    }

    /// The same, whatever they say of its pace.
    pub fn is_one_with(&self, other: &Spec) -> bool {
        let node = |spec: &Spec| {
            let it = facts::look(&spec.path).ok()?;
            Some(match facts::kind(&it) {
                FileType::BlockDevice => (facts::number(&it), 0),
                _ => (facts::number_below(&it), it.stx_ino),
            })
        };
        let own = node(self);
        own.is_some() && own == node(other)
    }

    /// The device or file itself.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.modelled { MODELLED } else { "" }, self.path.display())
    }
}

/// Why a backing device cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BackingError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(
        "{path} does not answer: a read that was begun {seconds:.1} s ago has not ended. Nothing was changed. Look at the kernel's log, and at the \
         way to the device, then try again"
    )]
    Silent { path: PathBuf, seconds: f64 },
    #[error("{path} cannot be read: {source}. Nothing was changed. Look at the kernel's log, then try again")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{path} is a cache device of pool {pool}. Nothing was changed: as a backing device it would be overwritten. \
         Name another device; `headpond pool destroy {path}` frees it"
    )]
    Member { path: PathBuf, pool: String },
    #[error("{path} has {size} bytes: too few for a volume. Nothing was changed. Name a device of at least 4 KiB")]
    Small { path: PathBuf, size: u64 },
}

/// A claimed backing device.
pub struct Backing {
    spec: Spec,
    claim: Claim,
}

impl Backing {
    /// Makes sure that it answers within `limit`, without waiting for it any longer.
    pub fn ask(spec: &Spec, limit: Duration) -> Result<(), BackingError> {
        let silent = |silent: Duration| BackingError::Silent { path: spec.path.clone(), seconds: silent.as_secs_f64() };
        silence::answers(&spec.path, limit).map_err(silent)
    }

    /// Claims it, waiting up to `patience` for whoever holds it, and makes sure that it answers and is no cache device.
    pub fn open(spec: &Spec, patience: Duration) -> Result<Backing, BackingError> {
        Backing::ask(spec, silence::LIMIT)?;
        let claim = Claim::take(&spec.path, patience)?;
        let path = || spec.path.clone();
        let size = claim.facts().size;
        if size < SECTOR * BLOCK_SECTORS {
            return Err(BackingError::Small { path: path(), size });
        }
        let found = probe::superblocks_that_can_be_read(claim.as_fd(), size);
        let found = found.map_err(|source| BackingError::Read { path: path(), source })?;
        let pool = match found {
            Found::Member(superblock) => superblock.name,
            Found::Newer(_) | Found::Damaged(_) => "(not readable by this version)".into(),
            Found::Signature(_) | Found::Nothing => return Ok(Backing { spec: spec.clone(), claim }),
        };
        Err(BackingError::Member { path: path(), pool })
    }

    /// What names this very device across restarts.
    ///
    /// A device without a name of its own, such as a loop device or a zvol, goes by its path as it was given: a link that udev
    /// keeps, `/dev/zvol/tank/data`, leads to it whatever its number is after the next boot.
    pub fn identity(&self) -> String {
        let own = self.claim.facts().identity.clone();
        let identity = own.unwrap_or_else(|| format!("{PATH}{}", self.spec.path.display()));
        let mut identity = format!("{}{identity}", if self.spec.modelled { MODELLED } else { "" });
        while identity.len() > 256 {
            identity.pop();
        }
        identity
    }

    /// Whether it is the device whose [`Backing::identity`] was `recorded`, as far as that can tell.
    ///
    /// A device's own name is its, and no other counts. But a path says only who was meant, and what was recorded before arrays and the
    /// device mapper's devices were known by their UUIDs is the kernel's number of one boot. So a path is followed: as it
    /// was recorded; to where it leads; and as the disk was named when this host served it last. No other name will do, and
    /// no device that has a name which was recorded ever since. Whether the data is the volume's the engine asks in any case.
    pub fn is_known_as(&self, recorded: &str) -> bool {
        let is_it = self.leads_to(recorded, self.spec.is_last);
        if is_it && self.identity() != recorded {
            let (now, own) = (self.spec.path.display(), self.claim.facts().identity.as_deref().unwrap_or("its path"));
            tracing::info!(
                "{now} is taken for the disk that was known as {} alone, and compared with what is cached. Detached and attached again, \
                 the volume knows it by {own}",
                recorded.trim_start_matches(MODELLED).trim_start_matches(PATH)
            );
        }
        is_it
    }

    /// Whether it has the very name, or path, that was `recorded`, at whatever pace it was served.
    pub fn is_named(&self, recorded: &str) -> bool {
        without_pace(&self.identity()) == without_pace(recorded)
    }

    /// Whether it is another volume's disk, of which a path alone was `recorded`, and which was named `last` when this host served it last.
    pub fn is_at_anothers_path(&self, recorded: &str, last: Option<&Spec>) -> bool {
        let Some(path) = without_pace(recorded).strip_prefix(PATH) else { return false };
        let is_last = last.is_some_and(|last| last.path == self.spec.path);
        self.had_no_name() && (is_last || self.spec.is_one_with(&Spec::new(path)))
    }

    fn leads_to(&self, recorded: &str, is_last: bool) -> bool {
        if self.identity() == recorded {
            return true;
        }
        let is_modelled = recorded.starts_with(MODELLED);
        let Some(path) = recorded.trim_start_matches(MODELLED).strip_prefix(PATH).map(Path::new) else { return false };
        if is_modelled != self.spec.modelled || self.claim.facts().kind != facts::Kind::Block || !self.had_no_name() {
            return false;
        }
        let leads_here = || {
            let own = rustix::fs::fstat(self.claim.as_fd()).map(|it| it.st_rdev);
            fs::metadata(path).is_ok_and(|it| it.file_type().is_block_device() && Ok(it.rdev()) == own)
        };
        path == self.spec.path || is_last || leads_here()
    }

    /// Whether it has no name of its own, or had none before arrays were known by their UUIDs.
    fn had_no_name(&self) -> bool {
        self.claim.facts().identity.as_ref().is_none_or(|own| own.starts_with("dm:") || own.starts_with("md:"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.spec.path
    }

    /// Its claim.
    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Its facts; a modelled disk is a rotating one.
    pub fn facts(&self) -> Facts {
        let facts = self.claim.facts().clone();
        Facts { rotational: facts.rotational || self.spec.modelled, ..facts }
    }

    /// Its size in sectors of 512 bytes.
    pub fn sectors(&self) -> u64 {
        self.claim.facts().size / SECTOR
    }

    /// The sector, modulo a block, at which its first partition begins; 0 if it has none.
    ///
    /// File systems align to where they begin, so this is where the blocks of most requests begin, too.
    pub fn phase(&self) -> io::Result<u8> {
        let sector = u64::from(self.claim.facts().logical_block);
        if sector != SECTOR {
            return Ok(0);
        }
        let head = probe::read(self.claim.as_fd(), 0, SECTOR * BLOCK_SECTORS)?;
        Ok(first_partition(head.as_slice()).map_or(0, |start| (start % BLOCK_SECTORS) as u8))
    }

    /// Hands it to the engine as the volume with this number.
    pub fn give(self, volume: u16) -> Given {
        let pace: Option<Box<dyn Pace + Send>> = match self.spec.modelled {
            true => Some(Box::new(RealTime(RotatingDisk::new(RotatingParams::nearline_7200())))),
            false => None,
        };
        Given { device: Device::Backing(volume), claim: self.claim, pace }
    }
}

/// The lowest first sector in a partition table, MBR or GPT, with sectors of 512 bytes.
fn first_partition(head: &[u8]) -> Option<u64> {
    let u32_at = |at: usize| Some(u64::from(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?)));
    let u64_at = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    if head.get(510..512)? != [0x55, 0xaa] {
        return None;
    }
    let entries = || (446..510).step_by(16).filter(|at| head[at + 4] != 0);
    // A GPT's own entries begin in its third sector, 128 bytes each.
    if entries().any(|at| head[at + 4] == 0xee) && head.get(512..520)? == b"EFI PART" {
        let used = (1024..head.len()).step_by(128).filter(|at| head[*at..at + 16] != [0; 16]);
        return used.filter_map(|at| u64_at(at + 32)).min();
    }
    entries().filter_map(|at| u32_at(at + 8)).filter(|start| *start > 0).min()
}

/// A timing model in the time of day.
struct RealTime<M>(M);

impl<M: TimingModel> Pace for RealTime<M> {
    fn submit(&mut self, now_ns: u64, id: u64, kind: PaceKind, offset: u64, len: u64) {
        let kind = match kind {
            PaceKind::Read => Kind::Read,
            PaceKind::Write => Kind::Write,
            PaceKind::WriteThrough => Kind::WriteThrough,
            PaceKind::WriteDurable => Kind::WriteDurable,
            PaceKind::Flush => Kind::Flush,
            PaceKind::Discard => Kind::Discard,
            PaceKind::WriteZeroes => Kind::WriteZeroes,
        };
        self.0.submit(now_ns, id, Access { kind, offset, len });
    }

    fn next(&self) -> Option<u64> {
        self.0.next_completion()
    }

    fn due(&mut self, now_ns: u64) -> Vec<u64> {
        let mut done = Vec::new();
        self.0.advance(now_ns, &mut done);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_partition_is_found_in_both_kinds_of_table() {
        let mut mbr = vec![0; 4096];
        mbr[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(first_partition(&mbr), None);
        for (slot, kind, start) in [(0, 0x83, 2048_u32), (2, 0x83, 63)] {
            mbr[446 + slot * 16 + 4] = kind;
            mbr[446 + slot * 16 + 8..][..4].copy_from_slice(&start.to_le_bytes());
        }
        assert_eq!(first_partition(&mbr), Some(63));
        let mut gpt = vec![0; 4096];
        gpt[510..512].copy_from_slice(&[0x55, 0xaa]);
        gpt[450] = 0xee;
        gpt[512..520].copy_from_slice(b"EFI PART");
        gpt[1024..1040].fill(7);
        gpt[1056..1064].copy_from_slice(&34_u64.to_le_bytes());
        assert_eq!(first_partition(&gpt), Some(34));
    }

    #[test]
    fn a_spec_is_shown_as_it_was_named() {
        assert_eq!(Spec::new("modelled:/a/b").to_string(), "modelled:/a/b");
        assert_eq!(Spec::new("/a/b").to_string(), "/a/b");
    }
}
