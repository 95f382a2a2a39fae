//! Clients that wait, in the kernel, for a daemon of a pool that is to end.

use std::path::PathBuf;

use headpond_format::{Superblock, VolumeEntry};

use super::PoolError;
use crate::ublk;

/// Refuses to end a pool where a block device of one of its volumes waits for a daemon: none could serve it any more. `waiting` tells whether the
/// device with a mark does.
pub(super) fn nothing_waits(pool: &Superblock, waiting: impl Fn(u64) -> Option<PathBuf>) -> Result<(), PoolError> {
    let of = |volume: &VolumeEntry| Some((volume.name.clone(), waiting(ublk::mark(&pool.pool, &volume.id))?));
    match pool.volumes.iter().find_map(of) {
        Some((volume, path)) => Err(PoolError::Waiting { path, volume, pool: pool.name.clone() }),
        None => Ok(()),
    }
}
