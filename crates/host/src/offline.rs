//! Pools on the worst day: read, judged, mended and written back from the devices alone, on any host, without a daemon.
//!
//! All claim the devices first, so that no daemon writes to them meanwhile, nor a dead one's last requests land. What a start
//! would make of the media is never worked out a second time: the engine itself is started over them, in a rehearsal that
//! writes nothing (`rehearsal.rs`).

use std::io;
use std::path::PathBuf;

use headpond_engine::election::Refusal;

use crate::claim::ClaimError;
use crate::pool::PoolError;

mod check;
mod copies;
mod damaged;
mod doubtful;
mod dump;
mod finding;
mod lost;
mod media;
mod records;
mod refusal;
mod rehearsal;
mod repair;
mod salvage;
mod save;
mod segments;
mod slots;
mod undo;
mod writeback;

pub use check::{Summary, VolumeSummary, check};
pub use damaged::{Damaged, DamagedVolume, Extent, list_damaged};
pub use dump::{Part, dump};
pub use finding::{Finding, Level, Mend};
pub use media::{Device, Media, Pool, Slot};
pub use rehearsal::{Live, Rehearsal};
pub use repair::{RepairError, Repaired, flush, repair};
pub use undo::undo;
pub use writeback::{Outcome, WriteBack, WritebackError, WrittenVolume, writeback};

/// Why an offline tool ended before its end.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum OfflineError {
    #[error(
        "{path} is in use: {holder}. Nothing was read or written. A pool is looked at and mended offline only while nobody \
         serves it: end its daemon first (SIGTERM, or `systemctl stop headpond@NAME`), then try again. `headpond status` shows \
         how a pool stands while it is served"
    )]
    Served { path: PathBuf, holder: String },
    #[error(transparent)]
    Claim(ClaimError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(
        "None of the devices named has a whole superblock of a pool. Nothing was changed. Name the devices that the pool was \
         made of; `headpond pool list DEVICE...` shows what a device is, `headpond dump DEVICE...` what each copy says"
    )]
    NoSuperblock,
    #[error(
        "{path} has a superblock that cannot be read in both copies: those that can may be older, and what was written since would be lost. \
         Nothing was changed. Name the pool's other cache devices as well, if there are any. Else try again later, or copy the device with \
         ddrescue, which asks for bad sectors again and again, and name the copy: if it lacks them still, it is taken for what is older"
    )]
    MayBeOlder { path: PathBuf },
    #[error("{0} What these devices hold cannot be told for the pool.")]
    Refused(Refusal),
    #[error("Cancelled. Nothing was changed. Start it again to have it all")]
    Cancelled,
    #[error(
        "The output cannot be written: {0}. Nothing was changed on the devices. Make room where it goes, or send it elsewhere"
    )]
    Output(#[source] io::Error),
}

impl From<ClaimError> for OfflineError {
    fn from(error: ClaimError) -> OfflineError {
        match error {
            ClaimError::Held { path, holder, .. } => OfflineError::Served { path, holder },
            error => OfflineError::Claim(error),
        }
    }
}

/// How far a long work is.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What is being done, as in "reading segments".
    pub what: &'static str,
    /// How much of it is done, in the unit of `total`.
    pub done: u64,
    /// How much there is.
    pub total: u64,
}

/// Is told how far the work is, and answers whether it is to go on.
pub type Watch<'a> = &'a mut dyn FnMut(Step) -> bool;

/// Tells how far the work is, and ends it where that is wished.
fn told(watch: Watch<'_>, what: &'static str, done: u64, total: u64) -> Result<(), OfflineError> {
    if watch(Step { what, done, total }) { Ok(()) } else { Err(OfflineError::Cancelled) }
}
