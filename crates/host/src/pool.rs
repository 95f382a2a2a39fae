//! Pools on devices: recognising, making, opening and destroying them.
//!
//! Whatever is refused here is refused before the first byte is written.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headpond_engine::Status;
use headpond_engine::create::PlanError;
use headpond_engine::election::Refusal;
use headpond_format::Superblock;

use crate::claim::ClaimError;
use crate::state::{State, hex};

pub mod create;
pub mod destroy;
pub mod dirty;
pub mod join;
pub mod list;
pub mod open;
pub mod probe;
mod signatures;
pub(crate) mod waiting;

pub use create::{NewPool, create};
pub use destroy::destroy;
pub use dirty::DiscardDirty;
pub use open::{OpenPool, open, open_with_remembered};

/// Refuses a state folder, with the witness in it, that lies on one of these devices, or on a volume of Headpond.
pub(crate) fn lies_beside(state: &State, devices: &[PathBuf]) -> Result<(), PoolError> {
    match state.carried_by(devices).map_err(PoolError::unread(state.path()))? {
        Some(device) => Err(PoolError::WitnessOnMember { folder: state.path().to_owned(), device }),
        None => Ok(()),
    }
}

/// Why nothing was done to a pool, or with it.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum PoolError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("{path} cannot be {what}: {source}. {meaning}. Look at the kernel's log, then try again")]
    Io { path: PathBuf, what: &'static str, source: io::Error, meaning: &'static str },
    #[error(
        "{path} does not answer: a read that was begun {seconds:.1} s ago has not ended. Nothing was changed. Look at the kernel's log, and at the \
         way to the device, then try again"
    )]
    Silent { path: PathBuf, seconds: f64 },
    #[error("{path} was named twice. Nothing was changed. Name each cache device once")]
    Twice { path: PathBuf },
    #[error(
        "{path} is not UTF-8 text, and where cache devices are is kept as text. Nothing was changed. Name it by another path, such as that of a link \
         to it"
    )]
    NotText { path: PathBuf },
    #[error("{path} holds {what}. Nothing was changed. Name another device, or give --force to overwrite what is there")]
    Signature { path: PathBuf, what: &'static str },
    #[error(
        "{path} is a cache device of pool {pool} (identity {id}, epoch {epoch}). Nothing was changed. Use it with \
         `headpond serve`, free it with `headpond pool destroy {path}`, or give --force to overwrite it"
    )]
    Taken { path: PathBuf, pool: String, id: String, epoch: u64 },
    #[error(
        "{path} belongs to pool {pool} (identity {id}, epoch {epoch}), which {why}. Overwriting it would lose that data. \
         Nothing was changed. Serve the pool and detach its volumes first, and delete those without a backing device; or, to lose what is \
         dirty and what is on them, give --discard-dirty {id}:{epoch}"
    )]
    Dirty { path: PathBuf, pool: String, id: String, epoch: u64, why: String },
    #[error(
        "{path} of volume {volume} on pool {pool}, left by an earlier daemon, waits for another one: what its clients wrote and no flush has \
         answered is in no cache device yet, and none could serve it any more. Nothing was changed. Serve the pool, unmount what is on it, and \
         detach the volume; or serve it with --give-up {volume}, which ends that I/O with errors. Then stop the daemon, and try again. \
         Where the pool cannot be served any more, `headpond volume give-up {path}` ends that I/O with errors as well"
    )]
    Waiting { path: PathBuf, volume: String, pool: String },
    #[error(
        "{path} was a cache device of pool {pool} (identity {id}, epoch {epoch}), and may hold what is nowhere else: {why}. Nothing was changed. \
         Keep it as it is until what may be missing was brought back, or given up: `headpond status` says how. To overwrite it all the same, and \
         lose what is on it alone, give --force --discard-dirty {id}:{epoch}"
    )]
    Left { path: PathBuf, pool: String, id: String, epoch: u64, why: String },
    #[error(
        "{path} belongs to a pool of a newer format ({version:#x}) than this version of Headpond knows (1). Nothing was \
         changed, and its data is as it was. Use the version of Headpond that wrote it, or a later one"
    )]
    Newer { path: PathBuf, version: u64 },
    #[error(
        "{path} is a cache device of a pool, but no copy of its superblock is whole ({why}). Nothing was changed. If the pool \
         has two copies it starts without this device: leave it out. If it is to be used anew, clear its first and last \
         MiB by other means; what was dirty on this device alone is lost then"
    )]
    Damaged { path: PathBuf, why: String },
    #[error(
        "{path} is no cache device of a pool: it holds {what}. Nothing was changed. Name the devices that the pool has \
         now, and no longer one that was replaced or removed: `headpond pool list DEVICE...` shows what a device is"
    )]
    NoMember { path: PathBuf, what: &'static str },
    #[error(
        "{path} belongs to pool {pool}, and {other} to pool {other_pool}{}. Nothing was changed. Name the \
         devices of one pool",
        late.as_ref().map_or(String::new(), |late| format!(
            "; {} is named too, and is not there: when it is, it may show which of the two is meant, and a start may go on",
            late.display()
        ))
    )]
    OtherPool {
        path: PathBuf,
        pool: String,
        other: PathBuf,
        other_pool: String,
        /// One of those that were named and are not there.
        late: Option<PathBuf>,
    },
    #[error(
        "{path} has {size} bytes, but as a cache device of pool {pool} it had {needed}. A part of it is missing: nothing was \
         changed. Give the device its size back, or leave it out if the pool has two copies"
    )]
    Shrunk { path: PathBuf, size: u64, needed: u64, pool: String },
    #[error(
        "{path} has blocks of {block} bytes; pool {pool} writes units of {unit}. Nothing was changed. Put the pool on devices \
         like those that it was made on"
    )]
    Blocks { path: PathBuf, block: u32, unit: u32, pool: String },
    #[error("{path}: {source} Nothing was changed.")]
    PlanOf { path: PathBuf, source: PlanError },
    #[error("{0} Nothing was changed.")]
    Plan(PlanError),
    #[error("{refusal}{places}")]
    Refused { refusal: Refusal, places: String },
    #[error(
        "The state folder {folder} lies on {device}, which belongs to the pool itself or is a volume of Headpond: the witness \
         there would be lost together with the pool. Nothing was changed. Name a folder on another device with --state"
    )]
    WitnessOnMember { folder: PathBuf, device: PathBuf },
    #[error(
        "{path}, the witness of the pool, cannot be made: {source}. On the cache devices nothing was changed. Make room in the state folder, or name \
         another one with --state"
    )]
    Witness { path: PathBuf, source: io::Error },
    #[error(
        "The devices are plain devices again, but the state folder {folder} could not be cleared of what it knows of their pool: {source}. Remove \
         the files there that have {id} in their names"
    )]
    NotForgotten { folder: PathBuf, id: String, source: io::Error },
    #[error(
        "--discard-dirty names {given}, and there is no such pool with that epoch among the devices named. Nothing was \
         changed. Give identity and epoch exactly as they were shown"
    )]
    NotNamed { given: String },
}

impl PoolError {
    /// Whether it was refused since data could be lost.
    pub fn protects_data(&self) -> bool {
        matches!(
            self,
            PoolError::Signature { .. }
                | PoolError::Taken { .. }
                | PoolError::Dirty { .. }
                | PoolError::Waiting { .. }
                | PoolError::Left { .. }
                | PoolError::Newer { .. }
                | PoolError::Damaged { .. }
                | PoolError::Shrunk { .. }
                | PoolError::Refused { .. }
                | PoolError::OtherPool { .. }
                | PoolError::NotNamed { .. }
                | PoolError::WitnessOnMember { .. }
        )
    }

    fn silent(path: &Path) -> impl FnOnce(Duration) -> PoolError {
        let path = path.to_owned();
        |silent| PoolError::Silent { path, seconds: silent.as_secs_f64() }
    }

    fn unread(path: &Path) -> impl FnOnce(io::Error) -> PoolError {
        let path = path.to_owned();
        |source| PoolError::Io { path, what: "read", source, meaning: "Nothing was changed" }
    }

    fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> PoolError {
        let path = path.to_owned();
        let meaning = "What was on it may be partly overwritten, which you had allowed";
        |source| PoolError::Io { path, what: "written", source, meaning }
    }

    fn left(path: &Path, superblock: &Superblock, now: &Status) -> PoolError {
        let why = match superblock.epoch < now.epoch {
            true if now.loading.is_some() => "not all that the pool holds is known yet since its start".into(),
            true => "data of one of the pool's volumes is missing, or the volume is refused".into(),
            false => format!("the pool is at epoch {}, so this device has gone on without it", now.epoch),
        };
        let (pool, id) = (superblock.name.clone(), hex(&superblock.pool));
        PoolError::Left { path: path.to_owned(), pool, id, epoch: superblock.epoch, why }
    }

    fn taken(path: &Path, superblock: &Superblock) -> PoolError {
        let (pool, id) = (superblock.name.clone(), hex(&superblock.pool));
        PoolError::Taken { path: path.to_owned(), pool, id, epoch: superblock.epoch }
    }
}
