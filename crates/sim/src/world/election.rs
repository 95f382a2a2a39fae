//! What the superblocks on the cache devices and the witness's record say, as a host reads them before it starts a daemon.

use super::World;
use headpond_engine::create::{newest_superblock, newest_witness};
use headpond_engine::election::{Election, Refusal, WitnessVote, elect};
use headpond_engine::format::{Layout, SUPERBLOCK_BYTES, Superblock, WITNESS_BYTES};
use headpond_engine::{Buf, Device};
use std::collections::BTreeSet;

impl World {
    /// The newest superblock of each cache device that is there.
    fn superblocks(&self) -> Vec<Superblock> {
        let mut found = Vec::new();
        for (device, d) in &self.devices {
            let Device::Member(_) = device else { continue };
            if d.dead {
                continue;
            }
            let tail = Layout::tail_of(d.size);
            let slots: Vec<Vec<u8>> = [0, SUPERBLOCK_BYTES, tail, tail + SUPERBLOCK_BYTES]
                .iter()
                .map(|at| d.visible.read(at / 512, SUPERBLOCK_BYTES as usize / 512).to_bytes().into_owned())
                .collect();
            let slots: Vec<&[u8]> = slots.iter().map(Vec::as_slice).collect();
            if let Ok(s) = newest_superblock(&slots) {
                found.push(s);
            }
        }
        found
    }

    /// Reads the superblocks of the devices that are there and holds the election. In which order the devices are named
    /// differs from start to start: which member one is, its superblock alone says.
    pub fn elect(&self, witness: bool) -> Result<Election, Refusal> {
        let mut found = self.superblocks();
        let first = self.operations as usize % found.len().max(1);
        found.rotate_left(first);
        if self.operations / 2 % 2 == 1 {
            found.reverse();
        }
        let vote = match (witness, self.devices.get(&Device::Witness), found.first()) {
            (true, Some(w), Some(s)) if !w.dead => {
                let slots: Vec<Vec<u8>> =
                    (0..2).map(|n| w.visible.read(n * WITNESS_BYTES / 512, 8).to_bytes().into_owned()).collect();
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
