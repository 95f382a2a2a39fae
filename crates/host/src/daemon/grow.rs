//! A volume takes the size that its backing device has come to have, and its block device shows it.

use headpond_engine::io::{BLOCK, Command, Device, SECTOR};
use headpond_engine::status::VolumeStatus;
use serde_json::{Value, json};

use super::service::{ended, failed, is_free};
use super::{Export, Frontend, Shared, lock, watch};
use crate::backing::HasDisk;
use crate::control::{Fault, Grow};
use crate::report::Advice;

impl Shared {
    pub(super) fn grow(&self, wish: &Grow) -> Result<Value, Fault> {
        let name = &wish.name;
        let _changing = self.change(format!("Growing volume {name}"))?;
        let volume = self.volume(name)?;
        let (number, bytes) = (volume.number, volume.sectors * SECTOR);
        // Its block device may be being made.
        if let Some(slot) = lock(&self.volumes).get(&number).filter(|slot| slot.busy.is_some()) {
            is_free(slot)?;
        }
        let not_served = || {
            Fault::refused(format!(
                "Volume {name} is not served, and cannot grow now. Nothing was changed. `headpond status` says why."
            ))
        };
        if !volume.has_disk() {
            if !volume.serving {
                return Err(not_served());
            }
            let to = size_without_disk(&volume, wish.bytes)?;
            return self.grow_to(&volume, to);
        }
        let slot = lock(&self.volumes).get(&number).and_then(|slot| Some((slot.spec.clone()?, slot.shape.clone()?)));
        let Some((spec, shape)) = slot.filter(|_| volume.serving) else {
            return Err(not_served());
        };
        let device = Device::Backing(number);
        let found = self.handle.measure(device).ok_or_else(ended)?.map_err(|error| {
            Fault::failed(format!("{spec} does not tell its size: {error}. Nothing was changed. Look at the kernel's log."))
        })?;
        if found <= bytes {
            return Err(Fault::refused(format!(
                "{spec} has {found} bytes, and volume {name} has {bytes}. Nothing was changed. Make the device below larger first \
                 (lvextend, mdadm --grow, truncate), then try again."
            )));
        }
        let to = wish.bytes.unwrap_or(found);
        if to > found {
            return Err(Fault::refused(format!(
                "{spec} has {found} bytes, and volume {name} cannot have {to}. Nothing was changed. Make the device below larger \
                 first, or name a smaller size."
            )));
        }
        if !to.is_multiple_of(u64::from(shape.block.max(SECTOR as u32))) {
            return Err(Fault::refused(format!(
                "{to} bytes are no whole number of blocks of {} bytes. Nothing was changed. Name a multiple of that.",
                shape.block
            )));
        }
        self.grow_to(&volume, to)
    }

    /// Has the engine do it, and clients see it.
    fn grow_to(&self, volume: &VolumeStatus, to: u64) -> Result<Value, Fault> {
        let (number, name, bytes) = (volume.number, &volume.name, volume.sectors * SECTOR);
        let end = self.handle.begin(Command::Grow { volume: number, sectors: to / SECTOR }).end();
        end.map_err(|error| failed(volume, &error))?;
        if let Some(shape) = lock(&self.volumes).get_mut(&number).and_then(|slot| slot.shape.as_mut()) {
            shape.size = to;
        }
        let advice = self.show_size(number, name, to);
        if let Some(Advice { wrong, next }) = &advice {
            tracing::warn!("{wrong} {next}");
        }
        self.events.add(watch::of_grown(name, bytes, to));
        Ok(json!({ "bytes": to, "bytes_before": bytes, "advice": advice }))
    }

    /// Has clients see a volume's new size, in bytes; else says what they have to do for it. Its block device is taken out of
    /// the table meanwhile: the kernel may ask the volume's own threads, and whoever looks at a device whose size has changed
    /// reads it.
    fn show_size(&self, number: u16, name: &str, size: u64) -> Option<Advice> {
        if let Frontend::Nbd { volumes, .. } = &self.frontend {
            let shape = lock(&self.volumes).get(&number)?.shape.clone()?;
            volumes.offer(number, super::offer::nbd_export(name, &shape));
            let wrong = format!("Clients that are connected to volume {name} go on with the size before.");
            return Some(Advice { wrong, next: "Restart them, or let them connect again, and they have the new one.".into() });
        }
        let mut export = lock(&self.volumes).get_mut(&number)?.export.take()?;
        let shown = match &mut export {
            Export::Loop(export) => export.grow(size).map_err(|error| format!("{error}.")),
            Export::Ublk(device) => device.grow(size).map_err(|error| format!("{error}.")),
        };
        let place = export.path().display().to_string();
        if let Some(slot) = lock(&self.volumes).get_mut(&number) {
            slot.export = Some(export);
        }
        let wrong = shown.err().map(|why| format!("Volume {name} has grown, and {place} shows the size before: {why}"))?;
        let has_spec = lock(&self.volumes).get(&number).is_some_and(|slot| slot.spec.is_some());
        let next = match has_spec {
            true => "Detach the volume when it is not in use, and attach it again, to have it shown with its new size.",
            false => "Stop the daemon when the volume is not in use, and start it again, to have it shown with its new size.",
        };
        Some(Advice { wrong, next: next.into() })
    }
}

/// The size that a volume without a backing device is to have, in whole blocks.
fn size_without_disk(volume: &VolumeStatus, wished: Option<u64>) -> Result<u64, Fault> {
    let (name, bytes) = (&volume.name, volume.sectors * SECTOR);
    let wished = wished.ok_or_else(|| {
        Fault::refused(format!(
            "Volume {name} has no backing device whose size it could take. Nothing was changed. Name its new size: \
             `headpond grow {name} --to SIZE`."
        ))
    })?;
    let to = whole_blocks(wished);
    if to <= bytes {
        return Err(Fault::refused(format!(
            "Volume {name} has {bytes} bytes already, and volumes only become larger. Nothing was changed. Name a larger size; for a \
             smaller one, create another volume."
        )));
    }
    Ok(to)
}

/// A size, rounded up to whole blocks.
pub(super) fn whole_blocks(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX / BLOCK * BLOCK)
}
