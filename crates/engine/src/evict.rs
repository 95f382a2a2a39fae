//! Eviction: which clean segment is let go, what of it is written again first, and what is remembered of the rest.

use crate::core::{Core, Volume};
use crate::fetch::fetch_aside;
use crate::io::{BLOCK_SECTORS, Buf};
use crate::log::Item;
use crate::map::Piece;
use crate::marks::Mark;
use crate::policy::endurance::Wish;
use crate::policy::evict::{LOOKS, Queue, gives_way, is_kept, looks_for_pins, stays};
use crate::preload::{begin_fill, is_known_to_be_pinned, is_mostly_pinned};
use crate::segments::{Segment, SegmentState};
use alloc::rc::Rc;
use alloc::vec::Vec;
use headpond_format::Class;

/// What is to be let go.
#[derive(Clone, Copy)]
pub(crate) enum Victim {
    /// A segment.
    Segment {
        number: u32,
        /// What clients asked for in it goes too: that is most of it, and to write it again would win nothing.
        with_hot: bool,
    },
    /// None yet: those whose turn it is are pinned for the most part, which is known from now on. The next step looks at others.
    LooksOn,
}

/// The segment to let go for whoever wants room: none of a volume that would have less than it is sure of then.
pub(crate) fn victim<B: Buf>(core: &Core<B>) -> Option<Victim> {
    let (sure, room) = (core.sure_of_something(), core.room_by_member());
    choose(core, |s| room.wins(s) && sure.iter().all(|(number, stands)| *number != s.volume || stands.may_lose(s)))
}

/// Slots that are free on a member beyond those of all others together, and that are taken for chance: what is won back comes from members by turns.
const MUCH_MORE: u64 = 8;

/// Which members have how much that is free.
struct RoomByMember {
    /// Slots, by member.
    free: Vec<u64>,
    /// What is wanted is room for clean data as well, or in the map, or there is one copy of everything: any slot wins something.
    any: bool,
}

impl RoomByMember {
    /// Whether room is won for pairs by what a segment takes: where one member has much more than all others together, a slot more of it makes none.
    fn wins(&self, s: &Segment) -> bool {
        let all: u64 = self.free.iter().sum();
        self.any || s.places().any(|p| self.free.get(usize::from(p.member)).is_some_and(|free| 2 * free <= all + MUCH_MORE))
    }
}

impl<B: Buf> Core<B> {
    fn room_by_member(&self) -> RoomByMember {
        let (segments, copies) = (self.segments.borrow(), self.bounds().copies as u32);
        // Room in the map is won by whatever is let go.
        let has_pairs = self.free() >= self.free_target();
        let free = (0..self.pool.borrow().members.len() as u8).map(|m| u64::from(segments.free_on(m))).collect();
        RoomByMember { free, any: copies < 2 || has_pairs || segments.free_sets(1) < self.free_target() * copies }
    }
}

/// The same without regard to what volumes are sure of: that is of segments, and where the map is full they cannot have it.
pub(crate) fn victim_for_the_map<B: Buf>(core: &Core<B>) -> Option<Victim> {
    choose(core, |_| true)
}

/// The segment of a volume to let go for the same volume.
pub(crate) fn victim_of<B: Buf>(core: &Core<B>, volume: u16) -> Option<Victim> {
    choose(core, |s| s.volume == volume)
}

/// The segment to let go of those that may be, by `policy/evict.rs`; none that is pinned for the most part, for all that is pinned in it is
/// written again. Of how many that is so is found as their turn comes: to look at each takes seconds where there are many.
fn choose<B: Buf>(core: &Core<B>, may_go: impl Fn(&Segment) -> bool) -> Option<Victim> {
    let mut queues = [Vec::new(), Vec::new()];
    let sectors = core.pool.borrow().segment_sectors();
    for (n, s) in core.segments.borrow().iter().filter(|(_, s)| is_evictable(s) && may_go(s)) {
        if !s.looked.mostly || !core.volume(s.volume).is_some_and(|v| is_known_to_be_pinned(&v, s, sectors)) {
            queues[s.queue as usize].push((s.turn, n));
        }
    }
    let queue = gives_way(queues[0].len(), queues[1].len())?;
    let capacity = sectors / BLOCK_SECTORS as u32;
    let looks = if core.pinned_blocks() > 0 { looks_for_pins(core.settings.let_go_blocks, capacity) } else { LOOKS };
    let order = first_of(core::mem::take(&mut queues[queue as usize]), looks);
    let mut order = order.into_iter().filter(|n| !is_pinned(core, *n, sectors)).take(LOOKS);
    if queue == Queue::Probation {
        return Some(order.next().map_or_else(|| looks_on(core), |number| Victim::Segment { number, with_hot: false }));
    }
    let mut coolest: Option<(u32, u32)> = None;
    for n in order {
        let hot = hot_blocks(core, n);
        if !stays(hot.len() as u32, capacity) {
            return Some(Victim::Segment { number: n, with_hot: false });
        }
        if coolest.is_none_or(|(least, _)| (hot.len() as u32) < least) {
            coolest = Some((hot.len() as u32, n));
        }
        another_round(core, n, &hot);
    }
    // All that was looked at is hot, and begins another round.
    Some(coolest.map_or_else(|| looks_on(core), |(_, number)| Victim::Segment { number, with_hot: true }))
}

/// The first few by their turn. Of hundreds of thousands no more are put in order: to sort them all takes ten times as long, for each victim.
fn first_of(mut queue: Vec<(u64, u32)>, few: usize) -> Vec<u32> {
    if queue.len() > few {
        queue.select_nth_unstable(few);
        queue.truncate(few);
    }
    queue.sort_unstable();
    queue.into_iter().map(|(_, n)| n).collect()
}

/// Whether a segment is pinned for the most part, if need be by looking at what is in it.
fn is_pinned<B: Buf>(core: &Core<B>, n: u32, sectors: u32) -> bool {
    let mut segments = core.segments.borrow_mut();
    let Some(s) = segments.get_mut(n) else { return false };
    core.volume(s.volume).is_some_and(|v| is_mostly_pinned(&v, n, s, sectors))
}

fn looks_on<B: Buf>(core: &Core<B>) -> Victim {
    core.mark(Mark::LooksOnPastPins);
    Victim::LooksOn
}

/// Blocks of a segment that clients asked for.
fn hot_blocks<B: Buf>(core: &Core<B>, n: u32) -> Vec<u64> {
    let segments = core.segments.borrow();
    let Some((s, volume)) = segments.get(n).and_then(|s| Some((s, core.volume(s.volume)?))) else { return Vec::new() };
    let map = volume.map.borrow();
    let mut blocks = map.in_segment(n, &s.blocks);
    blocks.retain(|block| is_kept(s.queue, map.asked(*block)));
    blocks
}

/// A segment keeps its place until its turn comes again; what counts then is what is asked for from now on.
fn another_round<B: Buf>(core: &Core<B>, n: u32, hot: &[u64]) {
    let mut segments = core.segments.borrow_mut();
    let Some(s) = segments.get_mut(n) else { return };
    s.turn = core.generation.get();
    if let Some(volume) = core.volume(s.volume) {
        let map = volume.map.borrow();
        hot.iter().for_each(|block| map.cool(*block));
    }
}

/// Pieces that are read and written again at once. Few, so that small simulated segments, too, take several rounds.
const CARRIED_AT_ONCE: usize = 16;

/// Of these pieces of a segment what the map has there now.
fn still_there<B: Buf>(volume: &Volume<B>, number: u32, pieces: &[(u64, Piece)]) -> Vec<(u64, Piece)> {
    let map = volume.map.borrow();
    let mut now = Vec::with_capacity(pieces.len());
    for (block, piece) in pieces {
        map.each(*block, |p| {
            if p.segment == number && p.offset == piece.offset && !p.dirty() {
                now.push((*block, *p));
            }
        });
    }
    now
}

/// Writes what is worth it in a clean segment to the main queue, before the segment is evicted: what is pinned, and what clients
/// asked for, as long as there is room without what is kept for demand. What is pinned and cannot be kept so is brought from the
/// disk again, later.
pub(crate) async fn carry_over<B: Buf>(core: &Rc<Core<B>>, victim: Victim) {
    let Victim::Segment { number, with_hot } = victim else { return };
    let room = core.has_spare() && !with_hot;
    let found = core.segments.borrow().get(number).and_then(|s| {
        let volume = core.volume(s.volume)?;
        let pieces = {
            let (pins, map) = (volume.pins.borrow(), volume.map.borrow());
            let is_kept = |block| room && is_kept(s.queue, map.asked(block));
            pieces_of(&volume, number, s, |block| pins.contains(&(block..block + 1)) || is_kept(block))
        };
        Some((volume, s.queue, pieces))
    });
    let Some((volume, from, pieces)) = found else { return };
    for some in pieces.chunks(CARRIED_AT_ONCE) {
        // What came before took its time: what was overwritten meanwhile must not come back as the newest there is.
        let some = &still_there(&volume, number, some);
        let is_pinned = |(block, _): &(u64, Piece)| volume.pins.borrow().contains(&(*block..*block + 1));
        let pinned = some.iter().any(is_pinned);
        if core.housekeeping_rests() || !pinned && !core.has_spare() {
            return;
        }
        let bytes: u64 = some.iter().map(|(_, p)| u64::from(p.live.count_ones()) * 512).sum();
        if !pinned && !core.budget_bears(Wish::Clean, bytes) {
            continue;
        }
        core.mark(if pinned { Mark::PinnedCarriedOver } else { Mark::HotCarriedOver });
        let fills: Vec<_> = some.iter().map(|(block, _)| begin_fill(&volume, *block..*block + 1)).collect();
        let version = core.next_version();
        let read = fetch_aside(core, &volume, some).await;
        let mut items = Vec::new();
        for (((block, piece), fill), data) in some.iter().zip(&fills).zip(read) {
            let (Some(fill), Ok(data)) = (fill, data) else { continue };
            for (run, data) in piece.live_parts(&data) {
                let (start, fill) = (block * BLOCK_SECTORS + run.start, fill.clone());
                items.push(Item::Fill { start, data, version, fill, queue: Queue::Main });
            }
        }
        {
            // What it proved it has to prove again.
            let map = volume.map.borrow();
            some.iter().for_each(|(block, _)| map.cool(*block));
            if from == Queue::Probation {
                some.iter().for_each(|(block, _)| map.cool(*block));
            }
        }
        let bytes: u64 = items.iter().map(Item::bytes).sum();
        let kept = volume.clean_log.append(core, &volume, items).get().await;
        volume.fills.end(&fills);
        core.mark_if(kept.is_err() && pinned, Mark::PinnedLetGo);
        if kept.is_ok() {
            core.stats.borrow_mut().carried_bytes += bytes;
        }
    }
}

/// The clean pieces of those blocks in a segment that are wanted, as they lie there: read so, they are read together.
pub(crate) fn pieces_of<B: Buf>(
    volume: &Volume<B>,
    number: u32,
    segment: &Segment,
    wanted: impl Fn(u64) -> bool,
) -> Vec<(u64, Piece)> {
    let map = volume.map.borrow();
    let mut pieces: Vec<(u64, Piece)> = Vec::new();
    let mut blocks = map.in_segment(number, &segment.blocks);
    blocks.retain(|block| wanted(*block));
    for block in blocks {
        map.each(block, |p| {
            if p.segment == number && !p.dirty() {
                pieces.push((block, *p));
            }
        });
    }
    pieces.sort_unstable_by_key(|(block, p)| (p.offset, *block));
    pieces
}

/// Whether a segment may still be evicted that was chosen to be.
fn is_evictable(s: &Segment) -> bool {
    s.class == Class::Single && s.state == SegmentState::Sealed && s.pins == 0 && s.dirty == 0
}

/// Evicts a segment, and remembers what was in it; `false` if it has come to be in use, or is not empty after all that the map knows of
/// it is gone: nothing is won then, and who asks for room until there is enough must not ask for the same again.
pub(crate) fn evict<B: Buf>(core: &Core<B>, victim: Victim) -> bool {
    // To have looked is a step as well.
    let Victim::Segment { number: victim, .. } = victim else { return true };
    let (volume, blocks) = {
        let mut segments = core.segments.borrow_mut();
        let Some(s) = segments.get_mut(victim).filter(|s| is_evictable(s)) else { return false };
        (s.volume, core::mem::take(&mut s.blocks))
    };
    if let Some(volume) = core.volume(volume) {
        let (total, capacity) = (core.segments.borrow().total(), core.pool.borrow().segment_sectors());
        let mut ghost = core.ghost.borrow_mut();
        ghost.fit(total * u64::from(capacity) / BLOCK_SECTORS);
        let mut map = volume.map.borrow_mut();
        let mut segments = core.segments.borrow_mut();
        let gone = map.in_segment(victim, &blocks);
        for b in gone {
            ghost.remember(volume.number, b);
            map.drop_clean(&mut segments, b, |p| p.segment == victim);
        }
    }
    let mut segments = core.segments.borrow_mut();
    segments.seal(victim);
    let is_empty = segments.get(victim).is_none_or(|s| s.live == 0);
    segments.settle();
    core.stats.borrow_mut().evicted += 1;
    is_empty
}
