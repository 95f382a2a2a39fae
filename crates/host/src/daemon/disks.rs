//! The disks of volumes: found where they were last, and taken only if they are the ones that the volumes were made on.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use headpond_engine::io::SECTOR;
use headpond_format::VolumeEntry;

use super::{Shape, Slot};
use crate::backing::{Backing, BackingError, Spec, is_path};
use crate::report::Advice;
use crate::runtime::Given;

/// Claims the disks of volumes, all at once: one that does not answer, or is held, keeps nobody waiting for longer than itself.
pub(super) fn find_all(
    wanted: Vec<(&VolumeEntry, Option<Spec>)>,
    limit: Duration,
    patience: Duration,
) -> Vec<(&VolumeEntry, Slot, Option<Given>)> {
    thread::scope(|scope| {
        let find = |(volume, spec)| {
            scope.spawn(move || {
                let (slot, given) = find_backing(volume, spec, limit, patience);
                (volume, slot, given)
            })
        };
        let finding: Vec<_> = wanted.into_iter().map(find).collect();
        finding.into_iter().map(|it| it.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Claims the disk of a volume of the pool, if it answers within `limit`, and makes sure that it is the one that the volume was made on.
fn find_backing(volume: &VolumeEntry, spec: Option<Spec>, limit: Duration, patience: Duration) -> (Slot, Option<Given>) {
    let (name, number) = (volume.name.clone(), volume.number);
    let mut slot = Slot::new(name, spec, None);
    let Some(spec) = &slot.spec else {
        let wrong = format!("Volume {} is not served: it is not known where its backing device is.", slot.name);
        let next = format!(
            "Name it, as `{name} = \"PATH\"` under `[backing]` in the configuration (/etc/headpond/NAME.toml, of the unit headpond@NAME) or with \
             --backing {name}=PATH, and restart.",
            name = slot.name
        );
        slot.problem = Some(Advice { wrong, next });
        return (slot, None);
    };
    let asked = Backing::ask(spec, limit).map_err(Mismatch::Open);
    match asked.and_then(|()| open_disk(volume, spec, patience)) {
        Ok(backing) => {
            slot.shape = Some(Shape::of(&backing.facts(), volume.sectors));
            (slot, Some(backing.give(number)))
        }
        Err(error) => {
            slot.problem = Some(problem_with(&slot.name, &error));
            (slot, None)
        }
    }
}

/// What keeps a volume from being served whose disk is not there.
pub(super) fn problem_with(name: &str, error: &Mismatch) -> Advice {
    let next = match error {
        // Another name given on the command line proves no more than the one recorded.
        Mismatch::Identity { path, expected, .. } if is_path(expected) => format!(
            "What is cached stays as it is. The disk was known by its path alone: bring it back under that path, and it is served. If \
             {path} is the right one all the same, stop the daemon and write what is dirty to it with `headpond writeback DEVICE... \
             --backing {name}={path} --other-disk`, which compares it with what is cached and lets go of the volume; then attach \
             it again.",
            path = path.display()
        ),
        _ => format!(
            "What is cached stays as it is. Bring the right device back: it is looked for every few seconds, and served when it is \
             there. If its path has changed, name the new one, as `{name} = \"PATH\"` under `[backing]` in the configuration \
             (/etc/headpond/NAME.toml, of the unit headpond@NAME) or with --backing {name}=PATH, and restart."
        ),
    };
    Advice { wrong: format!("Volume {name} is not served: {error}."), next }
}

/// Why a device is not the disk of a volume.
#[derive(Debug, thiserror::Error)]
pub(super) enum Mismatch {
    #[error(transparent)]
    Open(BackingError),
    #[error("{path} is another device ({found}) than the one that the volume was made on ({expected})")]
    Identity { path: PathBuf, found: String, expected: String },
    #[error("{path} has {found} bytes, fewer than the {expected} of the volume")]
    Size { path: PathBuf, found: u64, expected: u64 },
}

/// Claims what is to be the disk of a volume.
pub(super) fn open_disk(volume: &VolumeEntry, spec: &Spec, patience: Duration) -> Result<Backing, Mismatch> {
    Backing::open(spec, patience).map_err(Mismatch::Open).and_then(|backing| same_disk(volume, backing))
}

fn same_disk(volume: &VolumeEntry, backing: Backing) -> Result<Backing, Mismatch> {
    let path = || backing.path().to_owned();
    if !backing.is_known_as(&volume.backing) {
        return Err(Mismatch::Identity { path: path(), found: backing.identity(), expected: volume.backing.clone() });
    }
    let (found, expected) = (backing.sectors() * SECTOR, volume.sectors * SECTOR);
    if found < expected {
        return Err(Mismatch::Size { path: path(), found, expected });
    }
    if found > expected {
        let (path, name) = (path(), &volume.name);
        tracing::info!(
            "{} has {found} bytes, more than the {expected} of volume {name}: `headpond grow {name}` uses them",
            path.display()
        );
    }
    Ok(backing)
}
