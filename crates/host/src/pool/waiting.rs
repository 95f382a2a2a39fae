//! Clients that wait, in the kernel, for a daemon of a pool or a volume that is to end.

use std::path::PathBuf;

use headpond_format::{Superblock, VolumeEntry};

use super::PoolError;
use crate::ublk;

/// The first of these volumes whose block device waits for a daemon, and that device. `waiting` tells whether the one with a mark does.
pub(crate) fn one_that_waits<'a>(
    pool: &Superblock,
    mut volumes: impl Iterator<Item = &'a VolumeEntry>,
    waiting: impl Fn(u64) -> Option<PathBuf>,
) -> Option<(String, PathBuf)> {
    volumes.find_map(|volume| Some((volume.name.clone(), waiting(ublk::mark(&pool.pool, &volume.id))?)))
}

/// Refuses to end a pool where a block device of one of its volumes waits for a daemon: none could serve it any more.
pub(super) fn nothing_waits(pool: &Superblock, waiting: impl Fn(u64) -> Option<PathBuf>) -> Result<(), PoolError> {
    match one_that_waits(pool, pool.volumes.iter(), waiting) {
        Some((volume, path)) => Err(PoolError::Waiting { path, volume, pool: pool.name.clone() }),
        None => Ok(()),
    }
}
