//! Volumes without a backing device: made, deleted, and kept from what only one with a backing device can do.

use std::io;

use headpond_engine::io::{BLOCK, Command, CommandError, NewVolume, SECTOR};
use headpond_engine::status::VolumeStatus;
use headpond_format::Mode;
use serde_json::{Value, json};

use super::grow::whole_blocks;
use super::service::is_a_name;
use super::{FLUSHED, Shape, Shared, Slot, watch};
use crate::backing::HasDisk;
use crate::control::{CreateVolume, Fault};
use crate::pool::create::random;

impl Shape {
    /// That of a volume on the cache devices alone: an SSD's, whose discards are marks in the log.
    pub(super) fn without_disk(sectors: u64) -> Shape {
        let (size, block) = (sectors * SECTOR, SECTOR as u32);
        Shape { size, block, optimal_io: 0, rotational: false, read_ahead_kb: 128, discards: true }
    }
}

impl Slot {
    /// Of a volume that has no backing device.
    pub(super) fn without_disk(name: String, sectors: u64) -> Slot {
        Slot::new(name, None, Some(Shape::without_disk(sectors)))
    }
}

impl Shared {
    /// The volume with this name, for what takes a backing device.
    pub(super) fn volume_with_disk(&self, name: &str) -> Result<VolumeStatus, Fault> {
        let volume = self.volume(name)?;
        if !volume.has_disk() {
            return Err(Fault::refused(format!("Volume {name}: {}", CommandError::NoDisk)));
        }
        Ok(volume)
    }

    pub(super) fn create_volume(&self, new: &CreateVolume) -> Result<Value, Fault> {
        let name = &new.name;
        is_a_name(name)?;
        if new.bytes == 0 {
            let fault = Fault::failed("A volume has at least one block. Nothing was changed. Name a size of 4 KiB or more.");
            return Err(fault.with(libc::EINVAL));
        }
        let bytes = whole_blocks(new.bytes);
        let _changing = self.change(format!("Creating volume {name}"))?;
        let number = self.number_for(name)?;
        let id = random().map_err(|error: io::Error| {
            Fault::failed(format!("The system gives no random numbers: {error}. Nothing was changed. Look at the kernel's log."))
        })?;
        let volume = NewVolume {
            number,
            id,
            name: name.clone(),
            sectors: bytes / SECTOR,
            phase: 0,
            mode: Mode::WriteBack,
            backing: String::new(),
        };
        let made = self.handle.begin(Command::Attach(volume)).end();
        made.map_err(|error| {
            let but = match error {
                CommandError::NoMembers | CommandError::Cancelled => format!(
                    " A cache device may have taken the volume in all the same: the next start of the pool serves it then, which `headpond status` \
                     says; `headpond volume delete {name} --throw-away` lets go of it."
                ),
                _ => String::new(),
            };
            Fault::failed(format!("Volume {name} was not created: {error}{but}"))
        })?;
        let (place, problem) = self.offer_new(number, name, Slot::without_disk(name.clone(), bytes / SECTOR));
        // Its block device has a number since.
        self.remember(|_| ());
        self.events.add(watch::of_created(name, bytes));
        Ok(json!({ "pool": self.name, "number": number, "bytes": bytes, "place": place, "problem": problem }))
    }

    /// Deletes a volume with what is on it; one whose block device is in use is refused at once.
    pub(super) fn delete_volume(&self, name: &str, throw_away: bool, goes_on: &mut dyn FnMut() -> bool) -> Result<Value, Fault> {
        let _changing = self.change(format!("Deleting volume {name}"))?;
        self.wait_for_the_map(goes_on)?;
        let volume = self.volume(name)?;
        if volume.has_disk() {
            return Err(Fault::refused(format!(
                "Volume {name} has a backing device, and is not deleted: its disk stays, with what is on it. Nothing was changed. \
                 `headpond detach {name}` takes it off the pool."
            )));
        }
        let (number, bytes, held) = (volume.number, volume.sectors * SECTOR, volume.dirty_blocks * BLOCK);
        if !throw_away {
            return Err(Fault::refused(format!(
                "Volume {name} of {bytes} bytes holds {held} bytes, which are on the cache devices alone: they would be gone for good. \
                 Nothing was changed. Copy what is needed, and see that nobody needs it as a journal or bitmap; then \
                 `headpond volume delete {name} --throw-away`."
            )));
        }
        self.withdraw(number, |export| export.stop(FLUSHED))
            .map_err(|error| Fault::refused(format!("Volume {name} was not deleted, and nothing was changed: {error}.")))?;
        let end = self.handle.begin(Command::Abandon { volume: number }).end();
        let end = end.map_err(|error| Fault::failed(format!("Volume {name} was not deleted: {error}")));
        if let Err(fault) = end.or_else(|fault| self.is_off(&volume, fault)) {
            self.offer_again(&volume);
            return Err(fault);
        }
        self.forget(&volume);
        self.events.add(watch::of_deleted(name, held));
        Ok(json!({ "pool": self.name, "bytes": bytes, "thrown_away_bytes": held }))
    }
}
