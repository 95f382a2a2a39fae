//! A device of real bytes with a volatile cache.

use super::bytes::Bytes;
use crate::rng::Rng;
use headpond_engine::{DeviceError, DeviceOp, DeviceResult, Reach};

/// Bytes of a sector, which is written whole or not at all.
const SECTOR: usize = 512;

/// A device.
pub struct Media {
    /// What is read.
    pub visible: Vec<u8>,
    /// What a power cut leaves at the least.
    durable: Vec<u8>,
    /// What is in between, oldest first, each with its number.
    cached: Vec<(u64, usize, Bytes)>,
    written: u64,
    /// It does not answer any more but with errors.
    pub gone: bool,
}

impl Media {
    /// A device with this content.
    #[must_use]
    pub fn new(content: Vec<u8>) -> Self {
        Self { durable: content.clone(), visible: content, cached: Vec::new(), written: 0, gone: false }
    }

    /// What a flush that is submitted now covers.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.written
    }

    fn write(&mut self, at: usize, data: Bytes) {
        self.visible[at..at + data.get().len()].copy_from_slice(data.get());
        self.written += 1;
        self.cached.push((self.written, at, data));
    }

    /// Does what an operation asks for, at its end; `mark` is from its submission.
    ///
    /// # Errors
    /// The device is gone.
    pub fn complete(&mut self, op: &DeviceOp<Bytes>, mark: u64) -> DeviceResult<Bytes> {
        if self.gone {
            return Err(DeviceError::Gone);
        }
        match op {
            DeviceOp::Read { offset, len, .. } => {
                let at = *offset as usize;
                return Ok(Some(Bytes::of(self.visible[at..at + *len as usize].to_vec())));
            }
            DeviceOp::Flush => {
                let covered = self.cached.partition_point(|c| c.0 <= mark);
                for (_, at, data) in self.cached.drain(..covered) {
                    self.durable[at..at + data.get().len()].copy_from_slice(data.get());
                }
            }
            DeviceOp::Write { reach: Reach::Durable, .. } => {
                for (at, data) in changes(op) {
                    self.write_durable(at, data.get());
                }
            }
            _ => {
                for (at, data) in changes(op) {
                    self.write(at, data);
                }
            }
        }
        Ok(None)
    }

    /// A write by forced unit access: what the cache has of these bytes from before never gets to the medium.
    fn write_durable(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        self.visible[at..end].copy_from_slice(data);
        self.durable[at..end].copy_from_slice(data);
        for (_, from, old) in &mut self.cached {
            let (first, last) = (at.max(*from), end.min(*from + old.get().len()));
            if first < last {
                let mut bytes = old.get().to_vec();
                bytes[first - *from..last - *from].copy_from_slice(&data[first - at..last - at]);
                *old = Bytes::of(bytes);
            }
        }
    }

    /// The daemon that submitted an operation is dead: some of its sectors may still land.
    pub fn orphan(&mut self, op: &DeviceOp<Bytes>, rng: &mut Rng) {
        if self.gone {
            return;
        }
        let share = rng.below(5);
        for (at, data) in changes(op) {
            for n in 0..data.get().len() / SECTOR {
                if rng.below(4) < share {
                    let sector = data.get()[n * SECTOR..(n + 1) * SECTOR].to_vec();
                    self.write(at + n * SECTOR, Bytes::of(sector));
                }
            }
        }
    }

    /// The power goes: of the sectors that were not flushed, and of those in flight, some are there.
    pub fn cut(&mut self, flights: &[DeviceOp<Bytes>], rng: &mut Rng) {
        let share = rng.below(5);
        let cached = std::mem::take(&mut self.cached).into_iter().map(|(_, at, data)| (at, data));
        let writes: Vec<_> = cached.chain(flights.iter().flat_map(changes)).collect();
        for (at, data) in writes {
            for n in 0..data.get().len() / SECTOR {
                if rng.below(4) < share {
                    let at = at + n * SECTOR;
                    self.durable[at..at + SECTOR].copy_from_slice(&data.get()[n * SECTOR..(n + 1) * SECTOR]);
                }
            }
        }
        self.visible.copy_from_slice(&self.durable);
    }

    /// What is there if nothing unflushed stays.
    #[must_use]
    pub fn durable(&self) -> &[u8] {
        &self.durable
    }
}

/// What an operation changes: where, and to what.
fn changes(op: &DeviceOp<Bytes>) -> Vec<(usize, Bytes)> {
    match op {
        DeviceOp::Write { offset, bufs, .. } => {
            let mut at = *offset as usize;
            let place = |b: &Bytes| {
                at += b.get().len();
                (at - b.get().len(), b.clone())
            };
            bufs.iter().map(place).collect()
        }
        DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
            vec![(*offset as usize, Bytes::of(vec![0; *len as usize]))]
        }
        DeviceOp::Read { .. } | DeviceOp::Flush => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(byte: u8, reach: Reach) -> DeviceOp<Bytes> {
        DeviceOp::Write { offset: 0, bufs: vec![Bytes::of(vec![byte; SECTOR])], reach }
    }

    /// Forced unit access was taken for a write to the device's cache: a run of this oracle in three hundred called lost what the engine had every right to
    /// call durable (seed 182095459575).
    #[test]
    fn what_is_written_by_forced_access_is_there_after_a_power_cut_and_nothing_older_comes_over_it() {
        let mut rng = Rng::new(1);
        for _ in 0..32 {
            let mut m = Media::new(vec![0; 2 * SECTOR]);
            m.complete(&write(1, Reach::Cache), 0).unwrap();
            m.complete(&write(2, Reach::Durable), 0).unwrap();
            m.cut(&[], &mut rng);
            assert_eq!(m.visible[..SECTOR], [2; SECTOR]);
        }
    }
}
