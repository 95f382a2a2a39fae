//! Everything that a pool has on its devices, read and judged. Nothing is written.

use std::collections::BTreeMap;

use headpond_engine::election::WitnessVote;
use headpond_engine::io::SECTOR;
use headpond_format::{SegmentEntry, VolumeEntry};
use serde::Serialize;

use super::damaged::{DamagedVolume, of_volume};
use super::finding::{Finding, Level};
use super::media::{Media, Pool};
use super::rehearsal::Rehearsal;
use super::{OfflineError, Watch, doubtful, slots};
use crate::backing::HasDisk;
use crate::state::hex;

mod headless;
mod image;
mod intent;
mod logs;
mod records_of;
mod superblocks;

/// What the checkpoint's whole pages say of the segments.
pub(super) fn table_of(pool: &Pool<'_>, watch: Watch<'_>) -> Result<BTreeMap<u32, SegmentEntry>, OfflineError> {
    image::check(pool, &mut |_| Ok(()), watch)
}

/// Takes each finding as it is made.
type Tell<'a> = &'a mut dyn FnMut(Finding) -> Result<(), OfflineError>;

/// What a check comes to.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    /// The pool's name; empty where no superblock is whole.
    pub pool: String,
    /// Its identity.
    pub id: String,
    /// Its epoch.
    pub epoch: u64,
    /// Members in sync that are there.
    pub present: Vec<u8>,
    /// Members in sync that were not named.
    pub missing: Vec<u8>,
    /// Why a start with these devices is refused, if it is.
    pub refused: Option<String>,
    /// Segments read.
    pub segments: u64,
    /// Records read.
    pub records: u64,
    /// Bytes of records and data that were read and verified, all copies.
    pub bytes: u64,
    /// The volumes.
    pub volumes: Vec<VolumeSummary>,
    /// Findings that are no cause for concern.
    pub notes: u64,
    /// Findings by which no data is lost.
    pub damages: u64,
    /// Findings by which data is lost, or cannot be had.
    pub losses: u64,
}

/// What a check says of a volume.
#[derive(Debug, Serialize)]
pub struct VolumeSummary {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// It has no backing device: what it holds is on the cache devices alone.
    pub without_disk: bool,
    /// Bytes that its disk does not have yet, or that have no disk, and that a good copy holds.
    pub dirty_bytes: u64,
    /// Bytes of dirty data that no copy holds, those in doubt included.
    pub damaged_bytes: u64,
    /// Of these, bytes of what is in doubt: after a power cut it may never have been flushed.
    pub doubtful_bytes: u64,
    /// Bytes in which there may be dirty data of which nothing is known.
    pub suspect_bytes: u64,
    /// A flush of its disk failed, or last copies were lost, and no client was told.
    pub untold: bool,
    /// Some of what is lost, or in doubt, is on the devices yet, for whoever can read it.
    pub recoverable: bool,
    /// Whether a start refuses it.
    pub refused: bool,
}

impl Summary {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.damages + self.losses == 0
    }

    fn count(&mut self, level: Level) {
        match level {
            Level::Note => self.notes += 1,
            Level::Damage => self.damages += 1,
            Level::Loss => self.losses += 1,
        }
    }
}

/// Reads all that a pool has on its devices, and tells what is wrong, as it is found.
///
/// # Errors
/// The devices are not of one pool, or it was cancelled. Damage is no error: it is found.
pub fn check(media: &Media, vote: WitnessVote, tell: Tell<'_>, watch: Watch<'_>) -> Result<Summary, OfflineError> {
    let mut summary = Summary::default();
    let mut say = |finding: Finding| {
        summary.count(finding.level);
        tell(finding)
    };
    let pool = match media.pool(vote) {
        Ok(pool) => pool,
        Err(OfflineError::NoSuperblock | OfflineError::MayBeOlder { .. }) => {
            superblocks::none(media, &mut say)?;
            return Ok(summary);
        }
        Err(error) => return Err(error),
    };
    superblocks::check(&pool, &mut say)?;
    for volume in &pool.superblock().volumes {
        of_flushes(volume, &mut say)?;
    }
    intent::check(&pool, &mut say, watch)?;
    let table = image::check(&pool, &mut say, watch)?;
    let rehearsal = Rehearsal::start(&pool, watch)?;
    let refused = match (&rehearsal, &pool.unproven) {
        (Err(error), _) => Some(error.to_string()),
        (Ok(_), Some(refusal)) => Some(refusal.to_string()),
        (Ok(_), None) => None,
    };
    if let Err(error) = &rehearsal {
        let what = "A start with these devices is refused".to_owned();
        say(Finding::new(Level::Loss, "start-refused", what).means(error.to_string()).next(
            "Bring back the devices that are missing, if there are any; `headpond repair` mends what another copy, or the checkpoint, proves",
        ))?;
    }
    let rehearsal = rehearsal.ok();
    let slots = slots::all(&pool, &table, watch)?;
    let counts = logs::check(&pool, &slots, rehearsal.as_ref(), &mut say, watch)?;
    let mut volumes = Vec::new();
    if let Some(rehearsal) = &rehearsal {
        let doubts = doubtful::list(&pool, &slots, rehearsal, watch)?;
        headless::check(&pool, &doubts, &mut say)?;
        for volume in &pool.superblock().volumes {
            let found = of_volume(&pool, rehearsal, volume, &mut |_, _| Ok(()), watch)?;
            let damaged = found.with(&pool, volume, &doubts);
            of_damage(&pool, &damaged, &mut say)?;
            volumes.push(VolumeSummary {
                name: damaged.name,
                bytes: damaged.bytes,
                without_disk: damaged.without_disk,
                dirty_bytes: damaged.dirty_bytes,
                damaged_bytes: damaged.damaged.iter().chain(&damaged.doubtful).map(|e| e.bytes).sum(),
                doubtful_bytes: damaged.doubtful.iter().map(|e| e.bytes).sum(),
                suspect_bytes: damaged.suspect.iter().map(|e| e.bytes).sum(),
                untold: damaged.untold,
                recoverable: damaged.recoverable,
                refused: damaged.refused,
            });
        }
    }
    let s = pool.superblock();
    (summary.pool, summary.id, summary.epoch) = (s.name.clone(), hex(&s.pool), s.epoch);
    (summary.present, summary.missing) = (pool.election.present.clone(), pool.election.missing.clone());
    (summary.refused, summary.volumes) = (refused, volumes);
    (summary.segments, summary.records, summary.bytes) = (counts.segments, counts.records, counts.bytes);
    Ok(summary)
}

/// What the superblock doubts of a volume since a flush of its disk failed, or copies were lost: the cache devices show nothing of it.
fn of_flushes(volume: &VolumeEntry, say: Tell<'_>) -> Result<(), OfflineError> {
    let name = &volume.name;
    if volume.doubts.untold {
        let (what, meaning) = match volume.has_disk() {
            true => (
                format!(
                    "A flush of the disk of volume {name} has failed over writes that were acknowledged, or the last copies of something dirty \
                     were lost, and no client was told"
                ),
                "What was written and acknowledged before that may not be on the disk. Where, nobody knows",
            ),
            false => (
                format!("The last copies of something on volume {name} were lost with cache devices, and no client was told"),
                "What is lost fails when it is read; that it is was never said",
            ),
        };
        return say(Finding::new(Level::Loss, "flush-failed", what).of(name).means(meaning).next(
            "Look at the log of the device that failed, and check the file system before you rely on it. Served again, the volume tells the next \
             client that flushes it, by an error",
        ));
    }
    if volume.doubts.unkept {
        let what = format!("A flush of the disk of volume {name} has failed, and its clients were told");
        return say(Finding::new(Level::Note, "flush-failed", what).of(name).means(
            "Until what was written then is written again, a start believes the disk there, and not what is clean in the cache",
        ));
    }
    Ok(())
}

/// What damage to dirty data means for a volume.
fn of_damage(pool: &Pool<'_>, damaged: &DamagedVolume, say: Tell<'_>) -> Result<(), OfflineError> {
    let name = &damaged.name;
    if damaged.refused {
        let gone = who_is_gone(pool);
        let bytes: u64 = damaged.suspect.iter().map(|e| e.bytes).sum();
        say(Finding::new(Level::Loss, "volume-refused", format!("Volume {name} is refused by a start"))
            .of(name)
            .means(format!(
                "{gone}: dirty data of it may be on them alone, within {} \
                 of its {} MiB. What these devices know of is whole but for what is listed as lost",
                mib(bytes),
                mib(damaged.bytes)
            ))
            .next(match damaged.without_disk {
                true => {
                    "Bring the missing cache devices back. If they are gone for good, `headpond writeback --without-missing --save` \
                     copies to a file what these hold"
                }
                false => {
                    "Bring the missing cache devices back. If they are gone for good, `headpond writeback --without-missing` puts \
                     on the disk what these hold"
                }
            }))?;
    }
    let bytes: u64 = damaged.doubtful.iter().map(|e| e.bytes).sum();
    if bytes > 0 {
        let ranges = damaged.doubtful.len();
        say(Finding::new(
            Level::Loss,
            "dirty-data-doubtful",
            format!(
                "{bytes} bytes of volume {name}, in {ranges} ranges, were written after the last checkpoint, and a start finds no whole copy"
            ),
        )
        .of(name)
        .means(
            "They were acknowledged, most likely, and are lost. A start takes them for writes that were cut off: it reads there \
             what was there before, without an error. Only if the power failed before a client had flushed them were they promised to nobody",
        )
        .next(format!(
            "`headpond list-damaged` names the ranges. Bring missing cache devices back before the pool is started{}; else restore these ranges \
             from a backup",
            or_copy(damaged.would_be_overwritten)
        )))?;
    }
    let bytes: u64 = damaged.suspect.iter().map(|e| e.bytes).sum();
    if bytes > 0 && !damaged.refused {
        say(Finding::new(
            Level::Loss,
            "dirty-data-unknown",
            format!("Records of volume {name} are lost with all that tells of them"),
        )
        .of(name)
        .means(format!(
            "They were acknowledged, most likely. A start steps over them, and reads there what was there before, without an \
                 error: somewhere within {} of the volume's {} MiB, unless something later covers it. Only if the power failed before a client \
                 had flushed them were they promised to nobody",
            mib(bytes),
            mib(damaged.bytes)
        ))
        .next(format!(
            "`headpond list-damaged` names the ranges. Bring missing cache devices back before the pool is started{}; else look through these \
             ranges (check the file system), or restore them from a backup",
            or_copy(damaged.would_be_overwritten)
        )))?;
    }
    let bytes: u64 = damaged.damaged.iter().map(|e| e.bytes).sum();
    if bytes > 0 {
        let ranges = damaged.damaged.len();
        say(Finding::new(
            Level::Loss,
            "dirty-data-lost",
            format!("{bytes} bytes of volume {name}, in {ranges} ranges, have no good copy"),
        )
        .of(name)
        .means(match damaged.without_disk {
            true => "There is no disk that has them. Reading them fails; all else of the volume can be read",
            false => "They were not on the disk yet. Reading them fails; all else of the volume can be read",
        })
        .next(format!(
            "`headpond list-damaged` names the ranges. Bring missing cache devices back{}; else restore these ranges from a backup",
            or_copy(damaged.is_lost_recoverable)
        )))?;
    }
    Ok(())
}

/// What is to be tried before a backup where a device cannot read sectors.
fn or_copy(is_unreadable: bool) -> &'static str {
    if is_unreadable { "; else copy a device that cannot read sectors with ddrescue, and check the copy" } else { "" }
}

/// Why a volume is refused: as many are gone as there are copies.
pub(super) fn who_is_gone(pool: &Pool<'_>) -> String {
    let s = pool.superblock();
    match usize::from(s.left) + pool.election.missing.len() {
        few if few < usize::from(s.copies) => "As many cache devices have left before as there are copies".to_owned(),
        gone => format!("{gone} cache devices have left, as many as there are copies"),
    }
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(2048 * SECTOR)
}
