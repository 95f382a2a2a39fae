//! What a block device is: an array of sectors, and for each what a power cut may leave of it.

use std::fmt::Write;
use std::ops::Range;

/// What a sector holds, by name; 0 is zeroes.
pub type Tag = u64;

/// The bytes that a tag stands for.
#[must_use]
pub fn bytes_of(tag: Tag) -> [u8; 512] {
    let mut out = [0; 512];
    if tag > 0 {
        let mut x = tag;
        for word in out.chunks_mut(8) {
            x = x.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(tag | 1);
            word.copy_from_slice(&x.to_le_bytes());
        }
        out[..8].copy_from_slice(&tag.to_le_bytes());
    }
    out
}

/// One state of a sector, of which it is not always known which of several values it is.
#[derive(Clone, Debug)]
struct State {
    values: Vec<Tag>,
    /// When it was acknowledged.
    at: u64,
}

/// The states of a sector, from the last one known to be durable to the present one.
#[derive(Clone, Debug)]
struct Sector(Vec<State>);

/// A write under way: a range of sectors, and what they will be.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which sectors.
    pub range: Range<usize>,
    /// The first one's tag; the next ones follow. 0 for zeroes.
    pub tag: Tag,
}

impl Change {
    /// What a sector is to be.
    #[must_use]
    pub fn tag_of(&self, sector: usize) -> Tag {
        if self.tag == 0 { 0 } else { self.tag + (sector - self.range.start) as u64 }
    }
}

/// An array of sectors that many clients use, each its own part, one request at a time.
pub struct Model {
    sectors: Vec<Sector>,
    now: u64,
}

impl Model {
    /// A device whose sector n holds `first(n)`, durably.
    #[must_use]
    pub fn new(sectors: usize, first: impl Fn(usize) -> Tag) -> Self {
        let one = |n| Sector(vec![State { values: vec![first(n)], at: 0 }]);
        Self { sectors: (0..sectors).map(one).collect(), now: 0 }
    }

    /// A moment later than all before.
    pub fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// A write was acknowledged.
    pub fn acknowledged(&mut self, w: &Change) {
        let at = self.tick();
        for s in w.range.clone() {
            self.sectors[s].0.push(State { values: vec![w.tag_of(s)], at });
        }
    }

    /// What was acknowledged before `submitted` in these sectors is durable.
    pub fn flushed(&mut self, range: Range<usize>, submitted: u64) {
        for s in &mut self.sectors[range] {
            let last = s.0.iter().rposition(|state| state.at < submitted).unwrap_or(0);
            s.0.drain(..last);
        }
    }

    /// The daemon died with this write under way: each of its sectors is as before or as after it.
    pub fn interrupted(&mut self, w: &Change) {
        let at = self.tick();
        for s in w.range.clone() {
            let states = &mut self.sectors[s].0;
            let mut values = states.last().map(|l| l.values.clone()).unwrap_or_default();
            values.push(w.tag_of(s));
            states.push(State { values, at });
        }
    }

    /// The power went, after the writes under way were interrupted: each sector has one of the states since it was durable.
    pub fn power_cut(&mut self) {
        for s in &mut self.sectors {
            let mut values: Vec<Tag> = s.0.drain(..).flat_map(|state| state.values).collect();
            values.sort_unstable();
            values.dedup();
            s.0.push(State { values, at: 0 });
        }
    }

    /// A sector was read. From now on it is what was read.
    ///
    /// # Errors
    /// It may not be that: what it may be.
    pub fn read(&mut self, sector: usize, bytes: &[u8]) -> Result<(), String> {
        let Some(present) = self.sectors[sector].0.last_mut() else { return Ok(()) };
        match present.values.iter().find(|tag| bytes_of(**tag) == bytes) {
            Some(tag) => {
                present.values = vec![*tag];
                Ok(())
            }
            None => {
                let mut what = format!("sector {sector} is {}; it may be", words(bytes));
                for v in &present.values {
                    let _ = write!(what, " {},", words(&bytes_of(*v)));
                }
                Err(what.trim_end_matches(',').into())
            }
        }
    }
}

/// Bytes in words.
fn words(bytes: &[u8]) -> String {
    let tag = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default());
    match bytes {
        b if b.iter().all(|b| *b == 0) => "zeroes".into(),
        b if b == bytes_of(tag) => format!("tag {tag}"),
        _ => "bytes that nobody wrote".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(m: &Model, tag: Tag) -> bool {
        Model { sectors: m.sectors.clone(), now: m.now }.read(0, &bytes_of(tag)).is_ok()
    }

    #[test]
    fn a_death_keeps_what_was_acknowledged_and_a_power_cut_what_was_flushed() {
        let mut m = Model::new(1, |_| 7);
        m.acknowledged(&Change { range: 0..1, tag: 100 });
        assert!(reads(&m, 100) && !reads(&m, 7));
        let t = m.tick();
        m.acknowledged(&Change { range: 0..1, tag: 200 });
        m.flushed(0..1, t);
        m.power_cut();
        assert!(reads(&m, 100) && reads(&m, 200) && !reads(&m, 7));
    }

    #[test]
    fn what_was_read_after_a_crash_stays() {
        let mut m = Model::new(1, |_| 7);
        m.interrupted(&Change { range: 0..1, tag: 100 });
        m.power_cut();
        assert!(reads(&m, 7) && reads(&m, 100));
        assert!(m.read(0, &bytes_of(100)).is_ok());
        m.power_cut();
        assert!(reads(&m, 100) && !reads(&m, 7));
    }
}
