//! What is looked at while a world runs: what reads return, copies on the media, the engine's tables, the disk alone.

use super::election::layout_of;
use super::words::{show, show_all};
use super::{Asked, AskedKind, Timing, World, changes};
use crate::buf::SimBuf;
use crate::device::{Image, SimDevice};
use crate::oracle::Oracle;
use headpond_engine::format::Class;
use headpond_engine::map::Piece;
use headpond_engine::segments::SegmentState;
use headpond_engine::{Buf, Device, DeviceOp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

impl World {
    /// Whether a client waits for a read that a range lies in.
    pub(super) fn asked_for(&self, of: u16, start: u64, count: u64) -> bool {
        self.asked.values().any(|a| match a.kind {
            AskedKind::Read { sector, sectors } => {
                a.volume == of && sector <= start && start + count <= sector + u64::from(sectors)
            }
            _ => false,
        })
    }

    /// R13, by looking: no two changes of overlapping sectors of a device are under way at once.
    pub(super) fn one_writer_per_range(&mut self, device: Device, op: &DeviceOp<SimBuf>) {
        if matches!(self.timing, Timing::Models(_)) {
            return;
        }
        let Some((start, end)) = changes(op) else { return };
        let clash =
            self.flights.values().find(|f| f.device == device && changes(&f.op).is_some_and(|(s, e)| s < end && start < e));
        if clash.is_some() {
            self.fail(format!("two writes to bytes {start} to {end} of {device} are in flight at once (R13)"));
        }
    }

    /// A device that is not a disk gets no memory of a client's: two copies of what changes would differ.
    pub(super) fn only_a_disk_has_what_is_lent(&mut self, device: Device, op: &DeviceOp<SimBuf>, len: u64) {
        let (lent, right) = match op {
            DeviceOp::Read { into: Some(into), .. } => (true, into.is_lent() && into.len() as u64 == len),
            DeviceOp::Write { bufs, .. } => (bufs.iter().any(SimBuf::is_lent), true),
            _ => (false, true),
        };
        if lent && !(right && matches!(device, Device::Backing(_))) {
            self.fail(format!("{device} is given {len} bytes of memory that a client lends"));
        }
    }

    /// What a read has brought, in the client's own memory: what was read into that is in its place there.
    pub(super) fn as_the_client_has_it(&mut self, a: &Asked, bufs: Vec<SimBuf>) -> Vec<SimBuf> {
        let mut at = 0;
        for buf in bufs.iter() {
            if buf.is_lent() && !a.lent.as_ref().is_some_and(|all| buf.is_of(all, at)) {
                self.fail(format!("a read has {} sectors of a client's memory at {at}, where they are not", buf.sectors()));
            }
            at += buf.sectors();
        }
        bufs.iter().filter_map(SimBuf::owned).collect()
    }

    pub(super) fn check_read(&mut self, a: &Asked, sector: u64, sectors: u32, bufs: &[SimBuf]) {
        let returned: usize = bufs.iter().map(SimBuf::sectors).sum();
        if returned != sectors as usize {
            self.fail(format!("a read of {sectors} sectors returned {returned}"));
            return;
        }
        if !self.oracles.contains_key(&a.volume) {
            return;
        }
        let cells: Vec<_> = bufs.iter().flat_map(|b| (0..b.sectors()).map(|n| b.cell(n))).collect();
        let mut wrong = None;
        if let Some(o) = self.oracles.get_mut(&a.volume) {
            for (n, cell) in cells.iter().enumerate() {
                let s = sector + n as u64;
                let stamp = cell.stamp().unwrap_or(u64::MAX);
                if let Err(allowed) = o.check(s, stamp, a.submitted) {
                    wrong = Some(format!("sector {s} read as {}, allowed were {}", show(stamp), show_all(&allowed)));
                    break;
                }
            }
        }
        if let Some(what) = wrong {
            self.fail(what);
        }
    }

    /// Whether what was acknowledged earlier may have lost the copy that a lost member held, until it is mended. Once it is, that somebody
    /// has left is no excuse any more.
    pub(super) fn lacks_copies(&self) -> bool {
        let status = self.engine.as_ref().map(headpond_engine::Engine::status);
        status.is_some_and(|s| s.lacking_copies > 0 || s.members.iter().any(|m| m.in_sync && !self.lives(m.number)))
    }

    /// Whether a member is there. One that died this moment is not, whether or not the engine has noticed.
    fn lives(&self, member: u8) -> bool {
        self.devices.get(&Device::Member(member)).is_some_and(|d| !d.dead)
    }

    /// Whether of anything dirty in a range no copy is left, where two cache devices are lost.
    pub(super) fn is_gone(&self, volume: u16, sector: u64, sectors: u32) -> bool {
        let Some(engine) = self.engine.as_ref().filter(|_| self.two_lost.is_some()) else { return false };
        let Some(phase) = engine.status().volumes.iter().find(|v| v.number == volume).map(|v| v.phase) else { return false };
        let shift = (8 - u64::from(phase)) % 8;
        let mut dirty = Vec::new();
        // Of zeroes nothing has to be read.
        engine.each_piece(volume, |block, p| {
            if p.dirty() && !p.zeroes() {
                dirty.extend((0..8).filter(|n| p.live >> n & 1 == 1).map(|n| (block * 8 + n).saturating_sub(shift)));
            }
        });
        let range = sector..sector + u64::from(sectors);
        let lives = |s: &u64| self.place_of(volume, *s).is_some_and(|places| places.iter().any(|(m, _)| self.lives(*m)));
        dirty.iter().filter(|s| range.contains(s)).any(|s| !lives(s))
    }

    /// Counts, on the media, where an acknowledged value is: on the disk, or on as many cache devices as there should be;
    /// on one of them, where it `rests` on that alone until it is copied again, or where two are lost.
    pub(super) fn copies_of(&mut self, volume: u16, sector: u64, sectors: u64, durable: bool, rests: bool) {
        // Some sectors of each write: a count of all would cost more than it finds.
        let step = (sectors / 8).max(1) as usize;
        self.count_copies_of(volume, (sector..sector + sectors).step_by(step).chain([sector + sectors - 1]), durable, rests);
    }

    /// The same of all that was ever written to a volume, where nothing lacks a copy.
    pub fn check_all_copies(&mut self, volume: u16) {
        let touched = self.oracles.get(&volume).map(Oracle::touched).unwrap_or_default();
        self.count_copies_of(volume, touched.into_iter(), false, false);
    }

    fn count_copies_of(&mut self, volume: u16, sectors: impl Iterator<Item = u64>, durable: bool, rests: bool) {
        let Some(engine) = &self.engine else { return };
        let status = engine.status();
        // What one had that died this moment was there when it was flushed; where one copy is all that is left nobody could have known.
        let counts = |m: u8| self.lives(m) || self.two_lost.is_some();
        let is_or_was = |m: u8, in_sync: bool| in_sync || self.two_lost.is_some() && self.was_in_sync.contains(&m);
        let in_sync: Vec<u8> =
            status.members.iter().filter(|m| is_or_was(m.number, m.in_sync) && counts(m.number)).map(|m| m.number).collect();
        let unnoticed = status.members.iter().any(|m| m.in_sync && !self.lives(m.number));
        let need =
            if unnoticed || rests || self.two_lost.is_some() { 1 } else { usize::from(status.copies).min(in_sync.len()).max(1) };
        let is_known = status.loading.is_none();
        for s in sectors {
            let Some(stamp) = self.oracles.get(&volume).and_then(|o| o.only(s, durable)) else { continue };
            let on = |d: &SimDevice| if durable { d.durable.get(s).stamp() } else { d.visible.get(s).stamp() };
            if self.devices.get(&Device::Backing(volume)).is_some_and(|d| on(d) == Some(stamp)) {
                continue;
            }
            let image = |m: u8| {
                let there = in_sync.contains(&m).then(|| self.devices.get(&Device::Member(m))).flatten();
                there.map(|d| if durable { &d.durable } else { &d.visible })
            };
            let place = self.place_of(volume, s).unwrap_or_default();
            // That a sector is zero is written nowhere but in a record's header. Where nothing is known of one, on a volume without a disk there
            // was never anything else; one with a disk would have it there.
            let holds = |m: u8, at: u64| image(m).is_some_and(|i| stamp == 0 || i.get(at).stamp() == Some(stamp));
            let mut copies = place.iter().filter(|(m, at)| holds(*m, *at)).count();
            if stamp == 0 && place.is_empty() && (!self.devices.contains_key(&Device::Backing(volume)) || !is_known) {
                continue;
            }
            if copies < need && stamp != 0 {
                // What is being moved is still where it was, in a segment that is kept for it.
                copies = in_sync.iter().filter(|m| self.is_in_a_segment(**m, stamp, image(**m))).count();
            }
            if copies < need {
                let how = if durable { "durably " } else { "" };
                self.fail(format!(
                    "sector {s} was acknowledged as {} {how}with {copies} copies on the media, of {need}; the map says {place:?}",
                    show(stamp)
                ));
                return;
            }
        }
    }

    /// Whether a stamp is in any segment of a member that is not free: a start looks nowhere else.
    fn is_in_a_segment(&self, member: u8, stamp: u64, image: Option<&Image>) -> bool {
        let (Some(engine), Some(image)) = (&self.engine, image) else { return false };
        let Some(layout) = self.devices.get(&Device::Member(member)).and_then(layout_of) else { return false };
        let mut found = false;
        engine.each_segment(|_, s| {
            for place in s.places().filter(|p| p.member == member && s.state != SegmentState::Free) {
                let first = layout.slot(place.slot) / 512;
                found |= (first..first + layout.segment_bytes / 512).any(|at| image.get(at).stamp() == Some(stamp));
            }
        });
        found
    }

    /// The segment table against the map: what it counts is what is there, and what is dirty has its copies.
    pub fn check_segments(&mut self, volume: u16) {
        let Some(engine) = &self.engine else { return };
        let mut counted: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        engine.each_piece(volume, |_, p| {
            let c = counted.entry(p.segment).or_default();
            c.0 += 1;
            c.1 += u32::from(p.dirty());
        });
        let status = engine.status();
        let whole = status.members.iter().all(|m| m.in_sync);
        let copies = usize::from(status.copies);
        let mut wrong = None;
        let mut set_aside = 0;
        engine.each_segment(|_, s| set_aside += u64::from(s.diskless && s.class == Class::Mirrored));
        if set_aside != status.set_aside_taken {
            wrong = Some(format!(
                "{} segments are counted of volumes without a disk, and there are {set_aside}",
                status.set_aside_taken
            ));
        }
        let mut slots = 0;
        engine.each_segment(|_, s| slots += if s.volume == volume { s.places().count() as u64 } else { 0 });
        if let Some(v) = status.volumes.iter().find(|v| v.number == volume && v.segments != slots) {
            wrong = Some(format!("{} slots are counted of volume {volume}, and there are {slots}", v.segments));
        }
        engine.each_segment(|n, s| {
            if s.live > 0 && status.volumes.iter().all(|v| v.number != s.volume) {
                wrong = Some(format!("segment {n} holds {} pieces of volume {}, which is none of the pool's", s.live, s.volume));
            }
            if s.volume != volume {
                return;
            }
            let (live, dirty) = counted.get(&n).copied().unwrap_or_default();
            if (s.live, s.dirty) != (live, dirty) {
                wrong = Some(format!("segment {n} counts {} pieces, {} dirty; the map has {live}, {dirty}", s.live, s.dirty));
            }
            let wanted = whole && self.count_copies && !self.copies_lacking && !self.to_be_mended;
            if wanted && dirty > 0 && s.places().count() < copies {
                wrong = Some(format!("segment {n} holds {dirty} dirty pieces on {} copies", s.places().count()));
            }
        });
        if let Some(what) = wrong {
            self.fail(what);
        }
    }

    /// All copies of what is dirty are whole, and so equal: their checksum is the one in the map. Looks at the media.
    pub fn check_copies(&mut self, volume: u16, phase: u8) {
        let Some(engine) = &self.engine else { return };
        let shift = (8 - u64::from(phase)) % 8;
        let mut wrong = None;
        for (block, p) in self.pieces(volume).into_iter().filter(|(_, p)| p.dirty() && !p.zeroes()) {
            let first = u64::from(p.live.trailing_zeros());
            for (m, at) in self.place_of(volume, block * 8 + first - shift).unwrap_or_default() {
                let Some(member) = self.devices.get(&Device::Member(m)).filter(|d| !d.dead) else { continue };
                let data = member.visible.read(at - (first - u64::from(p.first())), usize::from(p.sectors()));
                if !engine.verifies(volume, block, &p, &data) {
                    wrong = Some(format!("the copy of block {block} on cache device {m} is not what the map says"));
                }
            }
        }
        if let Some(what) = wrong {
            self.fail(what);
        }
    }

    /// Whether the cache has a sector of a volume, newer than its disk.
    pub(super) fn is_dirty(&self, volume: u16, sector: u64) -> bool {
        let Some(engine) = &self.engine else { return false };
        let Some(phase) = engine.status().volumes.iter().find(|v| v.number == volume).map(|v| v.phase) else { return false };
        let grid = sector + (8 - u64::from(phase)) % 8;
        let mut dirty = false;
        engine.each_piece(volume, |block, p| dirty |= block == grid / 8 && p.live >> (grid % 8) & 1 == 1 && p.dirty());
        dirty
    }

    /// All pieces of a volume, with their blocks.
    fn pieces(&self, volume: u16) -> Vec<(u64, Piece)> {
        let mut all = Vec::new();
        if let Some(engine) = &self.engine {
            engine.each_piece(volume, |block, p| all.push((block, *p)));
        }
        all
    }

    /// What of a volume is dirty: the live sectors of each piece, by block and version.
    #[must_use]
    pub fn dirty(&self, volume: u16) -> BTreeMap<(u64, u64), u8> {
        let mut sectors = BTreeMap::new();
        // One that was moved while it was partly hidden is in more than one piece.
        for (block, p) in self.pieces(volume).iter().filter(|(_, p)| p.dirty()) {
            *sectors.entry((*block, p.version())).or_default() |= p.live;
        }
        sectors
    }

    /// The map that a start has made of image and log is the one that was in memory: nothing is dirty that was not, as
    /// nobody has written since. What was dirty may have become clean, which [`World::check_clean`] looks at.
    pub fn check_map(&mut self, volume: u16, before: &BTreeMap<(u64, u64), u8>) {
        let resurrected = self.dirty(volume).into_iter().find(|(key, live)| before.get(key) != Some(live));
        if let Some(((block, version), live)) = resurrected {
            let was = before.get(&(block, version));
            self.fail(format!(
                "after a start block {block} is dirty in version {version}, sectors {live:08b}; before it was {was:?}"
            ));
        }
    }

    /// What a start calls clean is what the disk has, sector by sector: else it is lost when it is evicted (R2). Where nothing was written
    /// to the disk since, it has it durably. Looks at the media; a piece that has been written over does not count, as its checksum tells.
    pub fn check_clean(&mut self, volume: u16, phase: u8, durably: bool) {
        let Some(engine) = &self.engine else { return };
        // One that is refused is read by nobody.
        if !engine.status().volumes.iter().any(|v| v.number == volume && v.serving) {
            return;
        }
        let Some(disk) = self.devices.get(&Device::Backing(volume)) else { return };
        let (image, how) = if durably { (&disk.durable, "durably ") } else { (&disk.visible, "") };
        let shift = (8 - u64::from(phase)) % 8;
        let mut wrong = None;
        for (block, p) in self.pieces(volume).into_iter().filter(|(_, p)| !p.dirty() && !p.zeroes()) {
            let live: Vec<u64> = (0..8).filter(|n| p.live >> n & 1 == 1).collect();
            let Some(first) = live.first() else { continue };
            for (m, at) in self.place_of(volume, block * 8 + first - shift).unwrap_or_default() {
                let Some(member) = self.devices.get(&Device::Member(m)) else { continue };
                let start = at - (first - u64::from(p.first()));
                let data = member.visible.read(start, usize::from(p.sectors()));
                if !engine.verifies(volume, block, &p, &data) {
                    continue;
                }
                for n in &live {
                    let (cached, there) =
                        (member.visible.get(start + n - u64::from(p.first())), image.get(block * 8 + n - shift));
                    if cached != there {
                        let of = |cell: crate::buf::Cell| show(cell.stamp().unwrap_or(u64::MAX));
                        let s = block * 8 + n - shift;
                        wrong = Some(format!("sector {s} is clean as {}, and the disk {how}has {}", of(cached), of(there)));
                    }
                }
            }
        }
        if let Some(what) = wrong {
            self.fail(what);
        }
    }

    /// Where the cache says that a sector's copies are; whether they are there is looked up on the media.
    fn place_of(&self, volume: u16, sector: u64) -> Option<Vec<(u8, u64)>> {
        let engine = self.engine.as_ref()?;
        engine.locate(volume, sector).map(|v| v.into_iter().map(|(m, byte)| (m, byte / 512)).collect())
    }

    /// Compares a volume's disk with what may be read, sector by sector: after a detach they are the same, and no power cut changes that.
    pub fn check_disk(&mut self, volume: u16) {
        self.check_disk_of(volume, 0..u64::MAX);
    }

    /// The same of some sectors, and of those that no client has ever written. Where a flush of the disk has failed, it does not have durably
    /// what the next flush calls so.
    pub fn check_disk_of(&mut self, volume: u16, sectors: Range<u64>) {
        let Some(o) = self.oracles.get_mut(&volume) else { return };
        let now = o.tick();
        let disk = &self.devices[&Device::Backing(volume)];
        let image = if disk.failed_a_flush { &disk.visible } else { &disk.durable };
        let of_clients = o.touched();
        let others: BTreeSet<u64> = image.changed().filter(|s| of_clients.binary_search(s).is_err()).collect();
        let mut wrong = None;
        for s in of_clients.into_iter().filter(|s| sectors.contains(s)).chain(others) {
            let stamp = image.get(s).stamp().unwrap_or(u64::MAX);
            if let Err(allowed) = o.check(s, stamp, now) {
                wrong = Some(format!(
                    "after the detach, sector {s} of the disk is {}, allowed were {}",
                    show(stamp),
                    show_all(&allowed)
                ));
                break;
            }
        }
        if let Some(what) = wrong {
            self.fail(what);
        }
    }
}
