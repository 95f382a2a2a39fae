//! Preload and pin: what clients will ask for is brought into the cache, and kept there.

use std::ops::Range;
use std::time::Instant;

use headpond_engine::io::{BLOCK, Command, CommandError, SECTOR};
use headpond_engine::status::VolumeStatus;
use serde_json::{Value, json};

use super::service::{Progress, TELL, ended, failed, seconds_left};
use super::{Shared, lock};
use crate::control::{Fault, Runs};
use crate::state::Pins;

impl Shared {
    /// Brings what is missing of some runs of bytes; ends when that is done.
    pub(super) fn preload(&self, runs: &Runs, progress: Progress<'_>) -> Result<Value, Fault> {
        let volume = self.volume_with_disk(&runs.name)?;
        let ranges = sectors(&volume, runs)?;
        let running = {
            let mut preloading = lock(&self.preloading);
            if preloading.contains_key(&volume.number) {
                return Err(failed(&volume, &CommandError::PreloadBusy));
            }
            let running = self.handle.begin(Command::Preload { volume: volume.number, ranges });
            preloading.insert(volume.number, running.id);
            running
        };
        let begun = Instant::now();
        let of_volume = || self.handle.status().and_then(|status| status.volume(&runs.name).map(|volume| volume.preload));
        let result = loop {
            if let Some(result) = running.wait(TELL) {
                break result;
            }
            let Some(preload) = of_volume() else { break Err(CommandError::Cancelled) };
            let seconds = seconds_left(begun, preload.done, preload.total.saturating_sub(preload.done));
            progress(json!({
                "preloaded_bytes": preload.done * BLOCK, "bytes": preload.total * BLOCK, "seconds_left": seconds,
            }));
        };
        lock(&self.preloading).remove(&volume.number);
        result.map_err(|error| failed(&volume, &error))?;
        let preload = of_volume().ok_or_else(ended)?;
        Ok(json!({
            "bytes": preload.total * BLOCK,
            "brought_bytes": preload.brought.saturating_sub(preload.left_out) * BLOCK,
            "left_out_bytes": preload.left_out * BLOCK,
        }))
    }

    pub(super) fn cancel_preload(&self, name: &str) -> Result<Value, Fault> {
        let volume = self.volume(name)?;
        let id = lock(&self.preloading).get(&volume.number).copied();
        let id = id.ok_or_else(|| {
            Fault::failed(format!(
                "Nothing is being preloaded on volume {name}. Nothing was changed. `headpond preload` begins it."
            ))
        })?;
        self.handle.begin(Command::Cancel(id)).end().map_err(|error| Fault::failed(error.to_string()))?;
        Ok(json!({}))
    }

    /// Pins runs of bytes, or lets go of them; remembered for the next start.
    pub(super) fn pin(&self, runs: &Runs, keep: bool) -> Result<Value, Fault> {
        let volume = self.volume_with_disk(&runs.name)?;
        let (number, ranges) = (volume.number, sectors(&volume, runs)?);
        let command = match keep {
            true => Command::Pin { volume: number, ranges },
            false => Command::Unpin { volume: number, ranges },
        };
        self.handle.begin(command).end().map_err(|error| failed(&volume, &error))?;
        let pinned = self.handle.pinned(number);
        self.remember_pins(|pins| match pinned.is_empty() {
            true => drop(pins.remove(&runs.name)),
            false => drop(pins.insert(runs.name.clone(), pinned.iter().map(bytes).collect())),
        });
        let bytes: u64 = pinned.iter().map(|run| (run.end - run.start) * SECTOR).sum();
        Ok(json!({ "pinned_bytes": bytes }))
    }

    pub(super) fn pinned(&self, name: &str) -> Result<Value, Fault> {
        let volume = self.volume(name)?;
        let pinned: Vec<[u64; 2]> = self.handle.pinned(volume.number).iter().map(bytes).collect();
        Ok(json!({ "pinned_bytes": volume.pinned_blocks * BLOCK, "runs": pinned }))
    }

    /// Pins what was pinned when the daemon ended.
    pub(super) fn pin_again(&self) {
        let Some(status) = self.handle.status() else { return };
        for (name, runs) in lock(&self.pins).iter() {
            let Some(volume) = status.volume(name) else { continue };
            let runs = Runs { name: name.clone(), runs: runs.clone() };
            let again = sectors(volume, &runs).and_then(|ranges| {
                self.handle.begin(Command::Pin { volume: volume.number, ranges }).end().map_err(|error| failed(volume, &error))
            });
            if let Err(fault) = again {
                tracing::warn!("what was pinned is not any more: {fault} Pin it again with `headpond pin`");
            }
        }
    }

    pub(super) fn remember_pins(&self, change: impl FnOnce(&mut Pins)) {
        let mut pins = lock(&self.pins);
        let before = pins.clone();
        change(&mut pins);
        if *pins == before {
            return;
        }
        if let Err(error) = self.state.remember_pins(&self.pool, &pins) {
            tracing::warn!(
                "cannot remember what is pinned: {error}; after a restart it is not. Make room in the state folder, and pin it again"
            );
        }
    }
}

/// The sectors that runs of bytes touch.
fn sectors(volume: &VolumeStatus, runs: &Runs) -> Result<Vec<Range<u64>>, Fault> {
    let touched = |[start, len]: &[u64; 2]| Some(start / SECTOR..start.checked_add(*len)?.div_ceil(SECTOR));
    let ranges: Option<Vec<Range<u64>>> = runs.runs.iter().map(touched).collect();
    ranges.ok_or_else(|| failed(volume, &CommandError::OutsideVolume { sectors: volume.sectors }))
}

fn bytes(run: &Range<u64>) -> [u64; 2] {
    [run.start * SECTOR, (run.end - run.start) * SECTOR]
}
