//! The segment table: which slots of which members hold what, what is free, and what still needs each segment.

use crate::blocks::Blocks;
use crate::policy::evict::Queue;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use headpond_format::{Class, NO_MEMBER, Place};

/// Where a segment stands in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentState {
    /// The number is not in use.
    Free,
    /// Being written.
    Open,
    /// Full, or closed: never appended to again.
    Sealed,
    /// Nothing in it is needed by the map any more; a checkpoint that began after that frees it (R12).
    Limbo,
}

/// What was found when it was last looked how much of a segment is pinned.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Looked {
    /// How often the volume's pins had changed by then.
    pub changed: u64,
    /// Pieces that were live.
    pub live: u32,
    /// Whether most of them were pinned.
    pub mostly: bool,
}

/// A segment. What a hit looks at is in the first line of a processor's cache: with a large cache these are in none, and a hit waits
/// for each.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Segment {
    /// Where it is; [`Place::NONE`] where a copy is missing.
    pub copies: [Place; 2],
    /// Reads and appends in flight on it.
    pub pins: u32,
    /// Pieces in the map that are here.
    pub live: u32,
    /// Of those, the dirty ones.
    pub dirty: u32,
    /// Sectors of data that the dirty ones were written with.
    pub dirty_sectors: u32,
    /// Next sector to append to.
    pub next: u32,
    /// Whose data it holds.
    pub volume: u16,
    /// Where it stands.
    pub state: SegmentState,
    /// What it is for.
    pub class: Class,
    /// That volume has no disk: what is dirty here stays so, in space that is set aside for it.
    pub diskless: bool,
    /// What is dirty here lies in one band of addresses ([`crate::policy::bands`]).
    pub sorted: bool,
    /// Whether it holds marks, which the map does not count.
    pub marks: bool,
    /// Where it is among clean ones, when it is clean.
    pub queue: Queue,
    /// Tells this use of the number from earlier ones.
    pub generation: u64,
    /// Its place in that queue: as the generation of a segment that was opened then.
    pub turn: u64,
    /// How much of it is pinned.
    pub looked: Looked,
    /// When it may be moved again, in nanoseconds of the engine's time: all that was dirty in it could not be read the last time.
    pub moves_from: u64,
    /// The number of checkpoints begun when it last got a mark or became limbo: only a later one frees it.
    pub needed_by: u64,
    /// Blocks of the volume that were named in it; some may since be elsewhere.
    pub blocks: Blocks,
}

impl Segment {
    /// One of which nothing is in the map yet.
    pub(crate) fn new(
        generation: u64,
        class: Class,
        volume: u16,
        diskless: bool,
        copies: [Place; 2],
        state: SegmentState,
    ) -> Self {
        Self {
            copies,
            pins: 0,
            live: 0,
            dirty: 0,
            dirty_sectors: 0,
            next: 0,
            volume,
            state,
            class,
            diskless,
            sorted: false,
            marks: false,
            queue: Queue::default(),
            generation,
            turn: generation,
            looked: Looked::default(),
            moves_from: 0,
            needed_by: 0,
            blocks: Blocks::default(),
        }
    }

    /// The members that hold a copy.
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.copies.iter().copied().filter(|p| p.member != NO_MEMBER)
    }

    /// Slots that it takes.
    fn slots(&self) -> u64 {
        if self.state == SegmentState::Free { 0 } else { self.places().count() as u64 }
    }

    /// Mirrored, and holds anything dirty, or marks; in space that is for what waits for its disk.
    fn takes_dirty_space(&self) -> bool {
        !self.diskless && self.class == Class::Mirrored && (self.dirty > 0 || self.marks) && self.state != SegmentState::Free
    }

    /// Takes dirty space though nothing in it is dirty: a checkpoint frees it, or one of its copies.
    fn is_emptied(&self) -> bool {
        let freed = self.state == SegmentState::Limbo || self.state == SegmentState::Sealed && self.slots() == 2;
        self.takes_dirty_space() && self.dirty == 0 && self.pins == 0 && freed
    }

    /// Mirrored, and of a volume without a disk; in space that is set aside for these.
    fn takes_set_aside(&self) -> bool {
        self.diskless && self.class == Class::Mirrored && self.state != SegmentState::Free
    }
}

/// What a volume takes of a pool.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Slots, those of each copy.
    pub slots: u64,
    /// Mirrored segments that hold anything dirty, or marks; none where it has no disk.
    pub dirty: u64,
    /// Sectors of data that dirty pieces were written with, in segments that are not sorted and in those that are.
    pub dirty_sectors: [u64; 2],
}

/// So many slots less are about as much room as a member with more has: what is won back of two members by turns.
const ABOUT_AS_MUCH: u32 = 2;

/// All segments of a pool, and the free slots of each member.
#[derive(Debug, Default)]
pub struct Segments {
    table: Vec<Segment>,
    free_numbers: Vec<u32>,
    free_slots: Vec<VecDeque<u32>>,
    total_slots: Vec<u32>,
    /// Number of checkpoints begun so far.
    pub checkpoints_begun: u64,
    /// Pieces in all maps, and the dirty ones.
    pub live: u64,
    /// Dirty pieces in all maps.
    pub dirty: u64,
    /// Of these, the ones of volumes without a disk.
    pub dirty_diskless: u64,
    /// Sectors of data that the dirty ones were written with, of volumes that have a disk.
    pub dirty_sectors: u64,
    /// Of these, the ones in segments that are sorted.
    pub dirty_sectors_sorted: u64,
    /// Segments for which [`Segment::takes_dirty_space`].
    taken: u64,
    /// Segments for which [`Segment::takes_set_aside`].
    taken_set_aside: u64,
    /// What each volume takes, by its number.
    of_volumes: Vec<Taken>,
    emptied: Vec<u32>,
    /// Slots taken by segments found at recovery, until all are.
    restored: BTreeSet<(u8, u32)>,
}

impl Segments {
    /// Makes room for member `member` with `slots` slots, all free.
    pub fn add_member(&mut self, member: u8, slots: u32) {
        let m = usize::from(member);
        while self.free_slots.len() <= m {
            self.free_slots.push(VecDeque::new());
            self.total_slots.push(0);
        }
        self.free_slots[m] = (0..slots).collect();
        self.total_slots[m] = slots;
    }

    /// Takes no new segment to a member; what is there stays.
    pub fn close_member(&mut self, member: u8) {
        let m = usize::from(member);
        if m < self.free_slots.len() {
            self.free_slots[m].clear();
            self.total_slots[m] = 0;
        }
    }

    /// Takes new segments to a member again that was closed; it has `slots` slots.
    pub fn open_member(&mut self, member: u8, slots: u32) {
        self.add_member(member, slots);
        let taken: BTreeSet<u32> =
            self.iter().flat_map(|(_, s)| s.places()).filter(|p| p.member == member).map(|p| p.slot).collect();
        self.free_slots[usize::from(member)].retain(|slot| !taken.contains(slot));
    }

    /// Forgets the slots of a member that left. Copies on it are gone; returns the segments that had one.
    pub fn drop_member(&mut self, member: u8) -> Vec<u32> {
        self.close_member(member);
        let hit: Vec<u32> = self.iter().filter(|(_, s)| s.places().any(|p| p.member == member)).map(|(n, _)| n).collect();
        for n in &hit {
            self.change(*n, |s| s.copies = s.copies.map(|c| if c.member == member { Place::NONE } else { c }));
        }
        hit
    }

    /// The segment with number `n`.
    pub fn get(&self, n: u32) -> Option<&Segment> {
        self.table.get(n as usize).filter(|s| s.state != SegmentState::Free)
    }

    /// The segment with number `n`.
    pub fn get_mut(&mut self, n: u32) -> Option<&mut Segment> {
        self.table.get_mut(n as usize).filter(|s| s.state != SegmentState::Free)
    }

    /// Changes what decides whether a segment takes dirty space, and keeps the count of those.
    fn change<R>(&mut self, n: u32, f: impl FnOnce(&mut Segment) -> R) -> Option<R> {
        let s = self.table.get_mut(n as usize).filter(|s| s.state != SegmentState::Free)?;
        let before = (s.takes_dirty_space(), s.takes_set_aside(), s.slots());
        let result = f(s);
        let (volume, after) = (s.volume, (s.takes_dirty_space(), s.takes_set_aside(), s.slots()));
        self.taken = self.taken + u64::from(after.0) - u64::from(before.0);
        self.taken_set_aside = self.taken_set_aside + u64::from(after.1) - u64::from(before.1);
        if before != after {
            let theirs = self.of_volume_mut(volume);
            theirs.dirty = theirs.dirty + u64::from(after.0) - u64::from(before.0);
            theirs.slots = theirs.slots + after.2 - before.2;
        }
        Some(result)
    }

    /// What a volume takes.
    pub fn of_volume(&self, volume: u16) -> Taken {
        self.of_volumes.get(usize::from(volume)).copied().unwrap_or_default()
    }

    fn of_volume_mut(&mut self, volume: u16) -> &mut Taken {
        let n = usize::from(volume);
        if self.of_volumes.len() <= n {
            self.of_volumes.resize(n + 1, Taken::default());
        }
        &mut self.of_volumes[n]
    }

    /// Counts a segment that has come.
    fn count_new(&mut self, segment: &Segment) {
        self.taken += u64::from(segment.takes_dirty_space());
        self.taken_set_aside += u64::from(segment.takes_set_aside());
        let theirs = self.of_volume_mut(segment.volume);
        theirs.dirty += u64::from(segment.takes_dirty_space());
        theirs.slots += segment.slots();
    }

    /// All segments in use.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.table.iter().enumerate().filter(|(_, s)| s.state != SegmentState::Free).map(|(n, s)| (n as u32, s))
    }

    /// Free slots on a member.
    pub fn free_on(&self, member: u8) -> u32 {
        self.free_slots.get(usize::from(member)).map_or(0, |s| s.len() as u32)
    }

    /// Segments of `copies` copies, each on a member of its own, that the free slots are enough for.
    pub fn free_sets(&self, copies: usize) -> u32 {
        sets(self.free_slots.iter().map(|s| s.len() as u64), copies)
    }

    /// The same of all slots that there are.
    pub fn total_sets(&self, copies: usize) -> u32 {
        sets(self.total_slots.iter().map(|n| u64::from(*n)), copies)
    }

    /// The same without one member.
    pub fn total_sets_without(&self, member: u8, copies: usize) -> u32 {
        let others = self.total_slots.iter().enumerate().filter(|(m, _)| *m != usize::from(member));
        sets(others.map(|(_, n)| u64::from(*n)), copies)
    }

    /// Slots in all.
    pub fn total(&self) -> u64 {
        self.total_slots.iter().map(|n| u64::from(*n)).sum()
    }

    /// Free slots in all.
    pub fn free_total(&self) -> u64 {
        self.free_slots.iter().map(|s| s.len() as u64).sum()
    }

    /// Opens a segment with `copies` copies on the members with most room; `None` where there is no room. The first is not on a
    /// member in `not_on`, if another has about as much room.
    pub fn open(
        &mut self,
        generation: u64,
        class: Class,
        volume: u16,
        diskless: bool,
        copies: usize,
        not_on: &[u8],
    ) -> Option<u32> {
        let mut members: Vec<u8> = (0..self.free_slots.len() as u8).filter(|m| self.free_on(*m) > 0).collect();
        // Most room first; equal ones turn about, so that clean segments spread evenly.
        let turn = generation as u8;
        members.sort_by_key(|m| {
            (core::cmp::Reverse(self.free_on(*m)), m.wrapping_add(turn) % members_modulus(self.free_slots.len()))
        });
        if members.len() < copies || copies == 0 {
            return None;
        }
        let fits = |m: &u8| !not_on.contains(m) && self.free_on(*m) + ABOUT_AS_MUCH >= self.free_on(members[0]);
        if let Some(better) = members.iter().position(fits) {
            members[..=better].rotate_right(1);
        }
        let mut places = [Place::NONE; 2];
        for (place, m) in places.iter_mut().zip(members.iter().take(copies)) {
            // First in, first out: erase blocks wear evenly.
            let slot = self.free_slots[usize::from(*m)].pop_front()?;
            *place = Place { member: *m, slot };
        }
        Some(self.insert(Segment::new(generation, class, volume, diskless, places, SegmentState::Open)))
    }

    fn insert(&mut self, segment: Segment) -> u32 {
        self.count_new(&segment);
        match self.free_numbers.pop() {
            Some(n) => {
                self.table[n as usize] = segment;
                n
            }
            None => {
                self.table.push(segment);
                (self.table.len() - 1) as u32
            }
        }
    }

    /// Puts a segment found at recovery under the number it had. `false` if the number or a slot is taken.
    pub fn restore(&mut self, n: u32, segment: Segment) -> bool {
        if n > 1 << 28 || self.get(n).is_some() {
            return false;
        }
        if segment.places().any(|p| self.restored.contains(&(p.member, p.slot))) {
            return false;
        }
        self.restored.extend(segment.places().map(|p| (p.member, p.slot)));
        while self.table.len() <= n as usize {
            self.table.push(Segment::new(0, Class::Single, 0, false, [Place::NONE; 2], SegmentState::Free));
        }
        self.count_new(&segment);
        self.table[n as usize] = segment;
        true
    }

    /// All segments are restored: what they do not take is free.
    pub fn restored_all(&mut self) {
        let taken = core::mem::take(&mut self.restored);
        for (m, free) in self.free_slots.iter_mut().enumerate() {
            free.retain(|slot| !taken.contains(&(m as u8, *slot)));
        }
        let table = &self.table;
        self.free_numbers = (0..table.len() as u32).filter(|n| table[*n as usize].state == SegmentState::Free).collect();
    }

    /// A piece of `block` is about to be named in segment `n`.
    pub fn named(&mut self, n: u32, block: u64) {
        let Some(s) = self.get_mut(n) else { return };
        s.blocks.push(block);
        // At a start all segments get theirs at once, and their order is that of the map.
        if s.state != SegmentState::Open {
            s.blocks.pack_if_many();
        }
    }

    /// A piece in the map came to be in segment `n`; if it is dirty, with so many sectors.
    pub fn gain(&mut self, n: u32, dirty: Option<u8>) {
        self.live += 1;
        self.dirty += u64::from(dirty.is_some());
        let sectors = dirty.unwrap_or(0);
        let changed = self.change(n, |s| {
            s.live += 1;
            s.dirty += u32::from(dirty.is_some());
            s.dirty_sectors += u32::from(sectors);
            (s.diskless, s.sorted, s.volume)
        });
        // Of what is lost nobody knows where it was.
        let Some((stays, sorted, volume)) = changed else { return };
        if stays {
            self.dirty_diskless += u64::from(dirty.is_some());
        } else {
            self.of_volume_mut(volume).dirty_sectors[usize::from(sorted)] += u64::from(sectors);
            self.dirty_sectors += u64::from(sectors);
            self.dirty_sectors_sorted += if sorted { u64::from(sectors) } else { 0 };
        }
    }

    /// A piece in the map is no longer in segment `n`.
    pub fn lose(&mut self, n: u32, dirty: Option<u8>) {
        self.live -= 1;
        self.dirty -= u64::from(dirty.is_some());
        let sectors = dirty.unwrap_or(0);
        let changed = self.change(n, |s| {
            s.live -= 1;
            s.dirty -= u32::from(dirty.is_some());
            s.dirty_sectors -= u32::from(sectors);
            (s.diskless, s.sorted, s.live == 0 && s.state == SegmentState::Sealed, s.volume)
        });
        let Some((stays, sorted, emptied, volume)) = changed else { return };
        if stays {
            self.dirty_diskless -= u64::from(dirty.is_some());
        } else {
            self.of_volume_mut(volume).dirty_sectors[usize::from(sorted)] -= u64::from(sectors);
            self.dirty_sectors -= u64::from(sectors);
            self.dirty_sectors_sorted -= if sorted { u64::from(sectors) } else { 0 };
        }
        if emptied {
            self.emptied.push(n);
        }
    }

    /// What is dirty in segment `n` is not moved before `time`.
    pub fn not_moved_before(&mut self, n: u32, time: u64) {
        self.change(n, |s| s.moves_from = time);
    }

    /// Segment `n` was given marks.
    pub fn marked(&mut self, n: u32) {
        self.change(n, |s| s.marks = true);
    }

    /// Packs the blocks that were named in segment `n`; how many blocks that took.
    pub(crate) fn pack(&mut self, n: u32) -> usize {
        self.get_mut(n).map_or(0, |s| s.blocks.pack())
    }

    /// Closes a segment to appends.
    pub fn seal(&mut self, n: u32) {
        if let Some(s) = self.get_mut(n) {
            if s.state == SegmentState::Open {
                s.state = SegmentState::Sealed;
            }
            s.blocks.pack();
            if s.live == 0 {
                self.emptied.push(n);
            }
        }
    }

    /// Counts a read or append in flight.
    pub fn pin(&mut self, n: u32) {
        if let Some(s) = self.get_mut(n) {
            s.pins += 1;
        }
    }

    /// The read or append has ended.
    pub fn unpin(&mut self, n: u32) {
        if let Some(s) = self.get_mut(n) {
            s.pins -= 1;
            if s.pins == 0 && s.live == 0 && s.state == SegmentState::Sealed {
                self.emptied.push(n);
            }
        }
    }

    /// Deals with sealed segments that nothing in the map names any more. A single one is free at once: what it held is
    /// on the disk. A mirrored one waits for a checkpoint that begins from now on, since older records that its marks
    /// and versions supersede, and images that name it, count until then (R12).
    pub fn settle(&mut self) {
        let begun = self.checkpoints_begun;
        for n in core::mem::take(&mut self.emptied) {
            let Some(s) = self.get_mut(n) else { continue };
            if s.live != 0 || s.pins != 0 || s.state != SegmentState::Sealed {
                continue;
            }
            match s.class {
                Class::Single => self.release(n),
                Class::Mirrored => {
                    s.state = SegmentState::Limbo;
                    s.needed_by = begun;
                }
            }
        }
    }

    /// A checkpoint that was the `begun`th to begin is durable: what only older ones needed is free. No read is in flight on
    /// it: nothing in the map names it since before it came to wait for this.
    pub fn checkpoint_done(&mut self, begun: u64) {
        for n in 0..self.table.len() as u32 {
            if self.get(n).is_some_and(|s| s.state == SegmentState::Limbo && s.needed_by < begun) {
                self.release(n);
            }
        }
    }

    /// Mirrored segments that hold anything dirty, or marks.
    pub fn dirty_segments(&self) -> u64 {
        self.taken
    }

    /// Of these, the ones with nothing dirty in them: the next checkpoint frees them, or one of their copies.
    pub fn emptied_segments(&self) -> u64 {
        self.iter().filter(|(_, s)| s.is_emptied()).count() as u64
    }

    /// The same of one volume.
    pub fn emptied_segments_of(&self, volume: u16) -> u64 {
        self.iter().filter(|(_, s)| s.volume == volume && s.is_emptied()).count() as u64
    }

    /// Mirrored segments of volumes without a disk, those included that wait for a checkpoint.
    pub fn taken_set_aside(&self) -> u64 {
        self.taken_set_aside
    }

    /// Dirty pieces that have a copy, and fewer than `copies` on members that are `in_sync`: one that has just left still has
    /// its places here, until its leaving is on the other members. While the map is `loading` any mirrored segment may hold one.
    pub fn lacking(&self, copies: usize, in_sync: impl Fn(u8) -> bool, loading: bool) -> u64 {
        let lacks = |s: &Segment| s.places().next().is_some() && s.places().filter(|p| in_sync(p.member)).count() < copies;
        let dirty = |s: &Segment| s.dirty.max(u32::from(loading && s.class == Class::Mirrored));
        self.iter().filter(|(_, s)| lacks(s)).map(|(_, s)| u64::from(dirty(s))).sum()
    }

    /// Dirty pieces of which a copy is on a member.
    pub fn dirty_on(&self, member: u8) -> u64 {
        self.iter().filter(|(_, s)| s.places().any(|p| p.member == member)).map(|(_, s)| u64::from(s.dirty)).sum()
    }

    /// A segment has become a single one: its copy at `twin` is free. If it has died since, or lost a copy with its
    /// member, only what is left of that is done.
    pub fn release_twin(&mut self, n: u32, twin: Place) {
        // A read may be in flight on the twin: then it stays until a later checkpoint.
        if self.get(n).is_none_or(|s| !s.copies.contains(&twin) || s.pins > 0) {
            return;
        }
        self.change(n, |s| {
            s.copies = s.copies.map(|c| if c == twin { Place::NONE } else { c });
            if s.state == SegmentState::Sealed {
                s.class = Class::Single;
            }
        });
        self.free_slot(twin);
        if self.get(n).is_some_and(|s| s.live == 0) {
            self.emptied.push(n);
        }
    }

    /// Makes a slot free.
    pub fn free_slot(&mut self, place: Place) {
        let m = usize::from(place.member);
        if self.total_slots.get(m).is_some_and(|n| *n > 0) {
            self.free_slots[m].push_back(place.slot);
        }
    }

    fn release(&mut self, n: u32) {
        let freed = self.change(n, |s| {
            s.state = SegmentState::Free;
            s.blocks = Blocks::default();
            s.copies
        });
        let Some(copies) = freed else { return };
        for place in copies.into_iter().filter(|p| p.member != NO_MEMBER) {
            self.free_slot(place);
        }
        self.free_numbers.push(n);
    }
}

/// How many sets of `copies` slots on different members can be made of what the members have, at most two a set: whoever
/// has most is in each, and no more than the others have.
fn sets(slots: impl Iterator<Item = u64>, copies: usize) -> u32 {
    let (sum, most) = slots.fold((0, 0), |(sum, most), n| (sum + n, n.max(most)));
    let sets = match copies {
        0 => 0,
        1 => sum,
        _ => (sum / 2).min(sum - most),
    };
    u32::try_from(sets).unwrap_or(u32::MAX)
}

fn members_modulus(n: usize) -> u8 {
    n.clamp(1, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operator pulled a second SSD as soon as the pool said that one had left and nothing lacked a copy. It said so between
    /// the decision that the first was out and the moment when its places were let go of: no copy had been made yet, and what
    /// the two had held was lost.
    #[test]
    fn what_a_member_that_has_just_left_held_lacks_a_copy_at_once() {
        let mut s = Segments::default();
        (0..2).for_each(|m| s.add_member(m, 10));
        assert!(s.open(0, Class::Mirrored, 0, false, 2, &[]).is_some());
        s.gain(0, Some(8));
        assert_eq!(s.lacking(2, |_| true, false), 0);
        assert_eq!(s.lacking(2, |m| m != 1, false), 1);
        s.drop_member(1);
        assert_eq!(s.lacking(2, |m| m != 1, false), 1);
    }

    #[test]
    fn a_second_segment_is_beside_the_first_where_there_is_about_as_much_room() {
        let mut s = Segments::default();
        (0..2).for_each(|m| s.add_member(m, 10));
        let mut open = |not_on: &[u8]| {
            let n = s.open(0, Class::Single, 0, false, 1, not_on).unwrap();
            s.get(n).unwrap().copies[0].member
        };
        let first = open(&[]);
        let second = 1 - first;
        assert_eq!([open(&[first]), open(&[first]), open(&[first])], [second; 3]);
        // It has two slots less now; with three less it has had its share.
        assert_eq!([open(&[first]), open(&[first])], [second, first]);
        // All are taken already: as if none were.
        assert_eq!(open(&[0, 1]), first);
    }

    #[test]
    fn a_full_member_does_not_keep_the_others_from_making_pairs() {
        let mut s = Segments::default();
        (0..3).for_each(|m| s.add_member(m, 10));
        assert_eq!((s.free_sets(1), s.free_sets(2), s.total_sets(2)), (30, 15, 15));
        s.close_member(0);
        assert_eq!((s.free_sets(1), s.free_sets(2)), (20, 10));
        assert!((0..10).all(|n| s.open(n, Class::Mirrored, 0, false, 2, &[]).is_some()));
        assert_eq!((s.free_sets(2), s.open(11, Class::Mirrored, 0, false, 2, &[])), (0, None));
        s.add_member(0, 1);
        s.add_member(1, 9);
        assert_eq!((s.free_sets(1), s.free_sets(2)), (10, 1));
    }
}
