//! What the superblocks on the cache devices and the witness's record say, as a host reads them before it starts a daemon.

use super::World;
use crate::device::SimDevice;
use headpond_engine::create::{newest_superblock, newest_witness};
use headpond_engine::election::{Election, Refusal, WitnessVote, elect};
use headpond_engine::format::{Layout, SUPERBLOCK_BYTES, Superblock, WITNESS_BYTES, WITNESS_SLOTS};
use headpond_engine::{Buf, Device};
use std::collections::BTreeSet;

/// Sectors of a superblock slot that go bad: those that every superblock is written to. One behind them stays unreadable until a scrub
/// writes the slot whole, and a second one in the same pair would hide what nobody has lost.
const WRITTEN_OF_A_SLOT: u64 = 8;

/// What is on a device, if all of it can be read.
fn read(d: &SimDevice, at: u64, bytes: u64) -> Option<Vec<u8>> {
    let (sector, sectors) = (at / 512, bytes / 512);
    d.readable(sector, sectors).then(|| d.visible.read(sector, sectors as usize).to_bytes().into_owned())
}

/// Where the superblock slots of a device are, in bytes.
fn slots_at(d: &SimDevice) -> [u64; 4] {
    let tail = Layout::tail_of(d.size);
    [0, SUPERBLOCK_BYTES, tail, tail + SUPERBLOCK_BYTES]
}

/// What is in them, as far as it can be read.
fn slots_of(d: &SimDevice) -> [Option<Vec<u8>>; 4] {
    slots_at(d).map(|at| read(d, at, SUPERBLOCK_BYTES))
}

fn newest(slots: &[Option<Vec<u8>>; 4]) -> Option<Superblock> {
    let readable: Vec<&[u8]> = slots.iter().flatten().map(Vec::as_slice).collect();
    newest_superblock(&readable).ok()
}

/// The newest superblock on a device. One is written to slots 0 and 2, the next to 1 and 3: where both of either cannot be read, the newest
/// may be there, and the device counts as one that is not there. So the host does it.
fn superblock_on(d: &SimDevice) -> Option<Superblock> {
    let slots = slots_of(d);
    let hidden = |n: usize| slots[n].is_none() && slots[n + 2].is_none();
    if hidden(0) || hidden(1) { None } else { newest(&slots) }
}

/// Where things are on a cache device.
pub(super) fn layout_of(d: &SimDevice) -> Option<Layout> {
    let superblock = newest(&slots_of(d))?;
    superblock.members.get(usize::from(superblock.member)).map(|m| m.layout)
}

impl World {
    /// The newest superblock of each cache device that is there.
    fn superblocks(&self) -> Vec<Superblock> {
        let members = self.devices.iter().filter(|(device, d)| matches!(device, Device::Member(_)) && !d.dead);
        members.filter_map(|(_, d)| superblock_on(d)).collect()
    }

    /// Whether the newest superblock of a member may be where it cannot be read.
    #[must_use]
    pub fn is_hidden(&self, member: u8) -> bool {
        self.devices.get(&Device::Member(member)).is_none_or(|d| superblock_on(d).is_none())
    }

    /// A superblock slot of a member cannot be read from now on, as one of its sectors is bad.
    pub fn spoil_superblock(&mut self, member: u8, slot: usize) {
        let Some(d) = self.devices.get_mut(&Device::Member(member)) else { return };
        let sector = slots_at(d)[slot] / 512 + self.rng.below(WRITTEN_OF_A_SLOT);
        d.bad.insert(sector, ());
        self.note(&format!("SUPERBLOCK SLOT {slot} OF CACHE DEVICE {member} CANNOT BE READ"));
    }

    /// All superblock slots of a member can be read again.
    pub fn mend_superblocks(&mut self, member: u8) {
        let Some(d) = self.devices.get_mut(&Device::Member(member)) else { return };
        for at in slots_at(d) {
            (at / 512..(at + SUPERBLOCK_BYTES) / 512).for_each(|sector| _ = d.bad.remove(&sector));
        }
        self.note(&format!("THE SUPERBLOCKS OF CACHE DEVICE {member} CAN BE READ AGAIN"));
    }

    /// A slot of the witness cannot be read from now on, until it is written.
    pub fn spoil_witness(&mut self, slot: u64) {
        let Some(w) = self.devices.get_mut(&Device::Witness) else { return };
        w.bad.insert(slot * WITNESS_BYTES / 512, ());
        self.note(&format!("SLOT {slot} OF THE WITNESS CANNOT BE READ"));
    }

    /// Reads the superblocks of the devices that are there and holds the election. In which order the devices are named
    /// differs from start to start: which member one is, its superblock alone says.
    pub fn elect(&self, witness: bool) -> Result<Election, Refusal> {
        let mut found = self.superblocks();
        if self.operations / 4 % 2 == 1 {
            found.extend(self.apart.iter().filter_map(superblock_on));
        }
        let first = self.operations as usize % found.len().max(1);
        found.rotate_left(first);
        if self.operations / 2 % 2 == 1 {
            found.reverse();
        }
        let vote = match (witness, self.devices.get(&Device::Witness), found.first()) {
            (true, Some(w), Some(s)) if !w.dead => {
                // The newest record may be in the slot that cannot be read: without both there is no vote.
                let slots: Option<Vec<Vec<u8>>> = (0..WITNESS_SLOTS).map(|n| read(w, n * WITNESS_BYTES, WITNESS_BYTES)).collect();
                let slots = slots.unwrap_or_default();
                let slots: Vec<&[u8]> = slots.iter().map(Vec::as_slice).collect();
                newest_witness(&slots, s.pool).map_or(WitnessVote::Missing, WitnessVote::Found)
            }
            (true, ..) => WitnessVote::Missing,
            (false, ..) => WitnessVote::None,
        };
        elect(&found, vote)
    }

    /// Volumes of which the newest superblock says that a flush of their disk failed, and nobody was told.
    #[must_use]
    pub fn untold_by_superblock(&self) -> BTreeSet<u16> {
        let newest = self.superblocks().into_iter().max_by_key(Superblock::newness);
        let volumes = newest.into_iter().flat_map(|s| s.volumes);
        volumes.filter(|v| v.doubts.untold).map(|v| v.number).collect()
    }
}
