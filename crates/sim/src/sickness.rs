//! What a cache device may do beside losing what was not flushed: losing writes that it called done, putting them
//! elsewhere, lying about flushes, going back to an older state at a power cut, rotting anywhere.
//!
//! One member of a run is sick at most, and none is lost then: the pool bears the failure of one device, however it fails.

use crate::buf::{Cell, SimBuf};
use crate::device::{Image, SimDevice};
use crate::rng::Rng;
use std::rc::Rc;

/// What is wrong with a device. Rates are one in so many; 0 never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sickness {
    /// Writes that are called done and never stored: the old content stays (M5).
    pub lost_writes: u64,
    /// Writes that land elsewhere on the device: the target shows old valid data, the other place well-formed foreign
    /// data (M3).
    pub misdirected_writes: u64,
    /// Reads that return another place's data (M4), while the pool serves.
    pub misdirected_reads: u64,
    /// Flushes are called done and are not (M6).
    pub lies: bool,
    /// At a power cut the device may go back to an older state, all of it (M7).
    pub rolls_back: bool,
    /// Sectors that flip a bit or become unreadable anywhere, one in so many steps (M1, M2).
    pub rot_anywhere: u64,
}

impl Sickness {
    /// What a seed draws: one or two things of the list.
    #[must_use]
    pub fn draw(r: &mut Rng) -> Self {
        let mut s = Self::default();
        for _ in 0..r.within(1, 2) {
            match r.below(6) {
                0 => s.lost_writes = *r.pick(&[5, 50, 500]),
                1 => s.misdirected_writes = *r.pick(&[20, 200]),
                2 => s.misdirected_reads = *r.pick(&[10, 100]),
                3 => s.lies = true,
                4 => s.rolls_back = true,
                _ => s.rot_anywhere = *r.pick(&[50, 500]),
            }
        }
        s
    }

    /// Whether anything is wrong.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

impl std::fmt::Display for Sickness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rates = [
            ("loses a write", self.lost_writes),
            ("misdirects a write", self.misdirected_writes),
            ("misdirects a read", self.misdirected_reads),
            ("rots anywhere", self.rot_anywhere),
        ];
        for (what, rate) in rates.iter().filter(|(_, rate)| *rate > 0) {
            write!(f, ", one member {what} 1 in {rate}")?;
        }
        if self.lies {
            f.write_str(", one member lies about flushes")?;
        }
        if self.rolls_back {
            f.write_str(", one member rolls back")?;
        }
        Ok(())
    }
}

/// Where a write goes on a sick device; `None` if nowhere.
#[must_use]
pub fn write_lands(d: &SimDevice, sector: u64, sectors: u64, rng: &mut Rng) -> Option<u64> {
    let s = &d.sickness;
    if s.lost_writes > 0 && rng.one_in(s.lost_writes) {
        return None;
    }
    if s.misdirected_writes > 0 && rng.one_in(s.misdirected_writes) {
        return Some(elsewhere(d, sectors, rng));
    }
    Some(sector)
}

/// Where a read comes from on a sick device.
#[must_use]
pub fn read_comes_from(d: &SimDevice, sector: u64, sectors: u64, rng: &mut Rng) -> u64 {
    let rate = d.sickness.misdirected_reads;
    if rate > 0 && rng.one_in(rate) { elsewhere(d, sectors, rng) } else { sector }
}

fn elsewhere(d: &SimDevice, sectors: u64, rng: &mut Rng) -> u64 {
    let last = (d.size / 512).saturating_sub(sectors);
    rng.below(last / 8 + 1) * 8
}

/// A sector of the device goes bad or flips a bit, wherever it is: superblocks, headers, padding.
pub fn rot(d: &mut SimDevice, rng: &mut Rng) {
    let sector = rng.below(d.size / 512);
    if rng.one_in(2) {
        d.bad.insert(sector, ());
        return;
    }
    let flipped = match d.visible.get(sector) {
        Cell::Stamp(s) => Cell::Stamp(s ^ 1 << rng.below(40)),
        Cell::Bytes(b) => {
            let mut b = *b;
            b[rng.below(512) as usize] ^= 1 << rng.below(8);
            Cell::Bytes(Rc::new(b))
        }
    };
    d.visible.set(sector, flipped.clone());
    d.durable.set(sector, flipped);
}

/// The state that a device may go back to.
#[derive(Clone, Default)]
pub struct Snapshot(Option<Image>);

impl Snapshot {
    /// Remembers the present state of a device that rolls back, now and then.
    pub fn perhaps_take(&mut self, d: &SimDevice, rng: &mut Rng) {
        if d.sickness.rolls_back && (self.0.is_none() || rng.one_in(300)) {
            self.0 = Some(d.durable.clone());
        }
    }

    /// After a power cut: the device may be as it was.
    pub fn perhaps_restore(&mut self, d: &mut SimDevice, rng: &mut Rng) -> bool {
        let Some(old) = self.0.take().filter(|_| rng.one_in(2)) else { return false };
        d.visible = old.clone();
        d.durable = old;
        true
    }
}

/// A write that goes nowhere still counts as one to who gave it.
pub fn lose(d: &mut SimDevice, buf: &SimBuf) {
    d.written += buf.sectors() as u64 * 512;
}
