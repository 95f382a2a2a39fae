//! Which front end a daemon has: what `auto` means on this host, and what speaks against it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use headpond_format::{Superblock, VolumeEntry};

use super::{Choice, Options, StartError};
use crate::ublk;

/// Where the kernel shows block devices.
const BLOCK: &str = "/sys/block";

/// How clients are to reach volumes.
pub(super) struct Chosen {
    pub(super) choice: Choice,
    /// Where it is only what is left: why it is not ublk.
    why_not_ublk: Option<String>,
}

/// How clients are to reach volumes. What they have open over FUSE goes on as it is, whatever `auto` would choose by now.
pub(super) fn chosen(options: &Options, fuse_is_open: bool) -> Result<Chosen, StartError> {
    let meant = |choice| Chosen { choice, why_not_ublk: None };
    match options.frontend {
        Choice::Auto if fuse_is_open => Ok(meant(Choice::Fuse)),
        Choice::Auto if options.nbd.is_some() => Ok(meant(Choice::Nbd)),
        Choice::Auto => Ok(best(ublk::available())),
        Choice::Ublk => ublk::available().map(|()| meant(Choice::Ublk)).map_err(StartError::NoUblk),
        choice => Ok(meant(choice)),
    }
}

/// The best that this host has.
fn best(ublk: Result<(), String>) -> Chosen {
    let there = |path| Path::new(path).exists();
    let fuse = || rustix::process::geteuid().is_root() && there("/dev/fuse") && there("/dev/loop-control");
    match ublk {
        Ok(()) => Chosen { choice: Choice::Ublk, why_not_ublk: None },
        Err(why) => Chosen { choice: if fuse() { Choice::Fuse } else { Choice::Nbd }, why_not_ublk: Some(why) },
    }
}

impl Chosen {
    /// Refuses what `auto` is without ublk where volumes of this pool wait at ublk devices of an earlier daemon: mounted anew, a file system would
    /// lack what the old mount has yet to write, and both would write to the volume in the end. Else says what is used in its place.
    pub(super) fn may_stand_in(&self, pool: &Superblock, known: &BTreeMap<String, u32>) -> Result<(), StartError> {
        let Some(why) = &self.why_not_ublk else { return Ok(()) };
        nothing_waits(&waiting(pool, known), why)?;
        match rustix::process::geteuid().is_root() {
            true => {
                let (what, means) = in_its_place(self.choice);
                tracing::warn!(
                    "There are no ublk devices here: {why}. Volumes are {what}, and {means}. Put that right and restart; or, if it is meant, say so \
                     with --frontend {}, or `frontend` in the configuration",
                    self.choice.name()
                );
            }
            // Nobody else has ublk.
            false => tracing::info!("no ublk: {why}"),
        }
        Ok(())
    }
}

fn nothing_waits(waiting: &[(String, PathBuf)], why: &str) -> Result<(), StartError> {
    let devices: Vec<String> = waiting.iter().map(|(name, path)| format!("{} of volume {name}", path.display())).collect();
    match devices.is_empty() {
        true => Ok(()),
        false => Err(StartError::WaitingUblk { devices: devices.join(", "), why: why.into() }),
    }
}

/// What volumes are without ublk, and what that means for their clients.
fn in_its_place(choice: Choice) -> (&'static str, &'static str) {
    match choice {
        Choice::Fuse => {
            let means = "what is mounted on them gets I/O errors when the daemon ends or dies: unmount before a restart";
            ("loop devices over FUSE", means)
        }
        _ => {
            let means = "clients are cut off when the daemon ends or dies, and have to connect again";
            ("at an NBD socket, and no block devices", means)
        }
    }
}

/// The ublk devices of a pool's volumes that are there though none can be made. `known` are the numbers that they had last.
fn waiting(pool: &Superblock, known: &BTreeMap<String, u32>) -> Vec<(String, PathBuf)> {
    let volumes = pool.volumes.iter();
    if ublk::can_be_asked() {
        let left =
            |volume: &VolumeEntry| Some((volume.name.clone(), ublk::left_over(ublk::mark(&pool.pool, &volume.id))?.path()));
        return volumes.filter_map(left).collect();
    }
    volumes.filter_map(|volume| Some((volume.name.clone(), shown(BLOCK.as_ref(), *known.get(&volume.name)?)?))).collect()
}

/// The block device with this number, if the kernel shows one: whose it is cannot be told where the driver is not to be asked.
fn shown(block: &Path, number: u32) -> Option<PathBuf> {
    let name = format!("ublkb{number}");
    block.join(&name).exists().then(|| Path::new("/dev").join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A second block device of the same volume was mounted, while the first one's file system had writes to replay. Found by reading.
    #[test]
    fn volumes_whose_ublk_devices_wait_are_reached_in_no_other_way_also_where_the_driver_cannot_be_asked() {
        let block = tempfile::tempdir().unwrap();
        fs::create_dir(block.path().join("ublkb3")).unwrap();
        let waiting = |number| shown(block.path(), number).map(|path| ("home".to_owned(), path)).into_iter().collect::<Vec<_>>();
        assert!(nothing_waits(&waiting(4), "it may not be opened").is_ok());
        let refused = nothing_waits(&waiting(3), "it may not be opened").unwrap_err().to_string();
        for part in ["/dev/ublkb3 of volume home", "it may not be opened", "Nothing was changed", "--frontend fuse or nbd"] {
            assert!(refused.contains(part), "{part:?} is not in: {refused}");
        }
    }
}
