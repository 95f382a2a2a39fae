//! What is on volumes without a backing device, copied to files. The cache devices are only read.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use headpond_engine::io::SECTOR;
use headpond_format::{Superblock, VolumeEntry};

use super::damaged::of_volume;
use super::media::Pool;
use super::rehearsal::Rehearsal;
use super::writeback::WritebackError;
use super::{OfflineError, Watch};
use crate::backing::HasDisk;

/// Volumes, and the file that each is to be copied to.
pub(super) type Saves = BTreeMap<u16, PathBuf>;

/// The volumes that are meant: by name, or the empty name for the only one without a backing device.
pub(super) fn of(wished: &[(String, PathBuf)], superblock: &Superblock) -> Result<Saves, WritebackError> {
    let mut saves = Saves::new();
    for (name, path) in wished {
        let volume = match superblock.volumes.iter().find(|v| v.name == *name) {
            Some(volume) if volume.has_disk() => {
                return Err(WritebackError::HasDisk { volume: name.clone(), path: path.clone() });
            }
            Some(volume) => Some(volume),
            None => {
                let mut all = superblock.volumes.iter().filter(|v| !v.has_disk());
                all.next().filter(|_| name.is_empty() && all.next().is_none())
            }
        };
        let volume = volume.ok_or_else(|| {
            let names: Vec<&str> = superblock.volumes.iter().filter(|v| !v.has_disk()).map(|v| v.name.as_str()).collect();
            let volumes = if names.is_empty() { "none".into() } else { names.join(", ") };
            WritebackError::NotToSave { name: name.clone(), pool: superblock.name.clone(), volumes }
        })?;
        if saves.contains_key(&volume.number) {
            return Err(WritebackError::Twice { volume: volume.name.clone(), option: "--save" });
        }
        if path.symlink_metadata().is_ok() || saves.values().any(|other| other == path) {
            return Err(WritebackError::SaveExists { path: path.clone() });
        }
        saves.insert(volume.number, path.clone());
    }
    Ok(saves)
}

/// Copies each volume to its file. What cannot be read is zeroes there, and in the list of what is damaged.
pub(super) fn all(pool: &Pool<'_>, rehearsal: &Rehearsal, saves: &Saves, watch: Watch<'_>) -> Result<(), WritebackError> {
    for volume in &pool.superblock().volumes {
        let Some(path) = saves.get(&volume.number) else { continue };
        one(pool, rehearsal, volume, path, watch)?;
    }
    Ok(())
}

fn one(
    pool: &Pool<'_>,
    rehearsal: &Rehearsal,
    volume: &VolumeEntry,
    path: &Path,
    watch: Watch<'_>,
) -> Result<(), WritebackError> {
    let failed = |source: io::Error| WritebackError::Save { path: path.to_owned(), source };
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.set_len(volume.sectors * SECTOR).map_err(failed)?;
    let mut wrong = None;
    let read = of_volume(
        pool,
        rehearsal,
        volume,
        &mut |sectors, data| {
            // Zeroes are there already: the file is new.
            let Some(data) = data else { return Ok(()) };
            file.write_all_at(data.as_slice(), sectors.start * SECTOR).map_err(|error| {
                wrong = Some(error);
                OfflineError::Cancelled
            })
        },
        watch,
    );
    if let Some(error) = wrong {
        return Err(failed(error));
    }
    match read {
        Err(OfflineError::Cancelled) => return Err(failed(io::ErrorKind::Interrupted.into())),
        read => drop(read?),
    }
    file.sync_all().map_err(failed)?;
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}
