//! Room in the log: who may have it, and how it is won back ahead of demand.

use crate::bounds::Bounds;
use crate::core::{Core, Volume};
use crate::diskless;
use crate::evict::{Victim, carry_over, evict, victim, victim_for_the_map};
use crate::exec::Slot;
use crate::fetch::fetch_aside;
use crate::io::Buf;
use crate::log::Item;
use crate::map::Piece;
use crate::map::runs;
use crate::marks::Mark;
use crate::policy::bands;
use crate::policy::gather;
use crate::policy::reclaim::{Emptied, checkpoint_pays};
use crate::policy::shares::For;
use crate::segments::{Segment, SegmentState};
use crate::shares::{ForShares, keep_to_maximums};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headpond_format::Class;

impl<B: Buf> Core<B> {
    /// Whether the cap of memory, and nothing else, keeps more from being cached. The map goes up and down a little below the cap.
    pub(crate) fn memory_is_short(&self) -> bool {
        let Bounds { most_in_images, most_pieces: most, .. } = self.bounds();
        most < most_in_images && self.segments.borrow().live >= most - most / 8 || self.memory_is_taken(8)
    }

    /// Whether of the memory that the maps may take all but such a part is taken, or more; 0: all of it.
    fn memory_is_taken(&self, part: u64) -> bool {
        let most = self.settings.max_map_bytes;
        most > 0 && self.map_memory() >= most - most.checked_div(part).unwrap_or(0)
    }

    fn map_has_room(&self, volume: &Volume<B>) -> bool {
        // Nothing ever puts the fragments of a volume without a disk together again: there is room for all it can have.
        if !volume.has_disk() {
            // What it holds was promised room when it was created, and is no cache: a cap of memory that came later is not for it.
            return self.segments.borrow().live < self.bounds().most_in_images;
        }
        let few = volume.map.borrow().extra_pieces() < self.settings.max_fragments;
        self.segments.borrow().live < self.bounds().most_pieces && few && !self.memory_is_taken(0)
    }

    /// Whether clean pieces have to go so that dirty ones find room in the map, ahead of demand.
    fn map_is_nearly_full(&self) -> bool {
        let (most, segments) = (self.bounds().most_pieces, self.segments.borrow());
        (segments.live >= most - most / 32 || self.memory_is_taken(32)) && segments.dirty < segments.live
    }

    /// Whether there is a segment, and room in the map, for what a client writes.
    pub(crate) fn has_space(&self, volume: &Volume<B>) -> bool {
        let (free, reserve) = (self.free(), self.bounds().reserve);
        let open = volume.dirty_log.has_open(self);
        let is_free = free > reserve + self.left_to_others(volume) || open && free >= reserve;
        is_free && (open || self.share_allows(volume, For::Writes)) && self.map_has_room(volume)
    }

    /// Whether a write may be absorbed.
    pub(crate) fn room_for_dirty(self: &Rc<Self>, volume: &Volume<B>) -> bool {
        let room = self.has_space(volume)
            && self.dirty_percent_for(volume) < 100
            && !self.pool.borrow().stalled
            && self.bounds().copies > 0;
        if !room {
            self.mark_if(!self.map_has_room(volume), Mark::MapIsFull);
            self.space_is_short();
        }
        room
    }

    /// Whether nobody wins room for what clients write, however long they wait: there is no cache device for it, or none that may be written, or the
    /// map is not all known yet, by which alone it is known what can go.
    pub(crate) fn nobody_wins_room(&self) -> bool {
        self.bounds().copies == 0 || self.pool.borrow().stalled || self.loading().is_some()
    }

    /// Whether clean data may be admitted: it is the first to go without.
    pub(crate) fn room_for_clean(&self, volume: &Volume<B>) -> bool {
        let open = volume.clean_log.has_open(self);
        let may_open = open || self.share_allows(volume, For::Reads);
        if !may_open {
            // It may have something of its own to let go.
            self.space.notify();
        }
        let are_many = volume.fills.are_many(self.settings.record_bytes);
        may_open && !are_many && self.map_has_room(volume) && self.pool.borrow().has_votes()
    }

    /// Segments that dirty data can be put into.
    pub(crate) fn free(&self) -> u32 {
        self.segments.borrow().free_sets(self.bounds().copies)
    }

    /// Whether there is so much free that clean data of a volume may be written that was not cached.
    pub(crate) fn has_spare_for(&self, volume: &Volume<B>) -> bool {
        self.segments.borrow().free_sets(1) > self.kept_from_clean(volume)
    }

    /// Free slots that a volume's clean data leaves to what clients write and to what frees space. Who has less than he is sure of does not stand back
    /// behind others' writes.
    pub(crate) fn kept_from_clean(&self, volume: &Volume<B>) -> u32 {
        let copies = self.bounds().copies as u32;
        let ahead = if self.is_under_minimum(volume) { 0 } else { self.ahead_of_demand() + self.left_to_others(volume) };
        (self.bounds().reserve + ahead) * copies
    }

    /// Whether what is worth it in a segment that is let go may be written again: that has half of what is kept ahead of demand, or who comes for the first
    /// time would leave it none.
    pub(crate) fn has_spare(&self) -> bool {
        self.segments.borrow().free_sets(1) > self.kept_from_carried()
    }

    /// Free slots that it leaves.
    pub(crate) fn kept_from_carried(&self) -> u32 {
        let copies = self.bounds().copies as u32;
        self.bounds().reserve * copies + self.ahead_of_demand() * copies / 2
    }

    /// Free segments, each with its copies, that clean data leaves to what clients write.
    pub(crate) fn ahead_of_demand(&self) -> u32 {
        let total = self.segments.borrow().total_sets(self.bounds().copies);
        (total * self.settings.free_percent / 100).max(1)
    }

    /// Free segments to keep ahead of demand.
    pub(crate) fn free_target(&self) -> u32 {
        self.bounds().reserve + 2 * self.ahead_of_demand() + self.under_minimum()
    }

    /// Somebody found less room than he should.
    pub(crate) fn space_is_short(&self) {
        self.space.notify();
        for v in self.all_volumes() {
            v.work.notify();
        }
    }
}

/// How often it is looked whether there is anything to do, in nanoseconds, where nobody asks for it.
const LOOK_NS: u64 = 100_000_000;
/// The same where there was something to gather, and may be more. Never at once: what is in the way of a move may stay there for a while.
const SOON_NS: u64 = 10_000_000;

/// Steps towards more room in a turn: each may take as long as a segment's hot blocks need to be read and written again.
const STEPS: u32 = 4;

/// Keeps segments free ahead of demand, for as long as the engine lives.
pub(crate) async fn run<B: Buf>(core: Rc<Core<B>>) {
    let mut pause = LOOK_NS;
    let mut for_shares = ForShares::new(core.now());
    let mut thins_from = core.now() + LOOK_NS;
    loop {
        // Whoever wakes it sooner does not put off what was to be thinned.
        let wait = core.space.wait_until((core.now() + pause).min(thins_from.max(core.now() + SOON_NS)));
        wait.await;
        if core.pool.borrow().changing || core.housekeeping_rests() {
            thins_from = core.now() + LOOK_NS;
            continue;
        }
        mend_copies(&core).await;
        core.tell_of_mending();
        let (dirty_percent, emptied, taken) = {
            let s = core.segments.borrow();
            (core.dirty_percent_of(&s), s.emptied_segments(), s.dirty_segments())
        };
        if checkpoint_pays(&Emptied { dirty_percent, emptied, taken }) {
            checkpoint(&core).await;
        } else if for_shares.pays(&core, emptied, taken) {
            for_shares.checkpoint(&core).await;
        }
        gather_rests(&core).await;
        pause = if gather_sparse(&core).await { SOON_NS } else { LOOK_NS };
        let now = core.now();
        for step in 1.. {
            let is_wanted = core.free() < core.free_target() || core.map_is_nearly_full();
            if !is_wanted || core.housekeeping_rests() || !win_one(&core, now).await {
                break;
            }
            if step == STEPS {
                // Misses may take what is won as fast as it is: what else there is to do, copies that lack above all, has its turn before the next ones.
                pause = 1;
                break;
            }
        }
        if now >= thins_from {
            let mut goes_on = false;
            core.all_volumes().iter().for_each(|v| goes_on |= thin_fragments(&core, v));
            let rests = if goes_on { SOON_NS } else { LOOK_NS };
            (thins_from, pause) = (now + rests, pause.min(rests));
        }
        // What is clean goes first: that takes no checkpoint.
        diskless::compact(&core).await;
        keep_to_maximums(&core, &mut for_shares).await;
    }
}

/// One step towards more room; `false` if there is nothing to be won now. What a step since `now` could not move is not tried again.
async fn win_one<B: Buf>(core: &Rc<Core<B>>, now: u64) -> bool {
    if let Some(victim) = victim(core) {
        return let_go(core, victim).await;
    }
    let waiting = waits_for_checkpoint(core);
    if waiting > 0 {
        core.mark(Mark::CheckpointForSpace);
        // One that frees nothing would be followed by another at once: a read may be in flight on all there is.
        return checkpoint(core).await && waits_for_checkpoint(core) < waiting;
    }
    if core.map_is_nearly_full() && thin_one(core) {
        core.mark(Mark::MapThinned);
        return true;
    }
    if compact_one(core, now).await {
        return true;
    }
    if core.map_is_nearly_full()
        && let Some(victim) = victim_for_the_map(core)
    {
        return let_go(core, victim).await;
    }
    close_what_rests(core)
}

/// So long an open segment rests that nothing was added to before it is closed for want of room, in nanoseconds.
const RESTS_NS: u64 = 10_000_000_000;

/// Closes the open segments of logs to which nothing was added for long: as long as one is open nothing in it can be let go, and many volumes that
/// rest would keep all there is from the others. Whether there were any.
fn close_what_rests<B: Buf>(core: &Core<B>) -> bool {
    let is_short = core.free() <= core.bounds().reserve + core.under_minimum();
    let mut is_any = false;
    for v in core.all_volumes() {
        for log in [&v.dirty_log, &v.clean_log].into_iter().filter(|log| log.rests(core, RESTS_NS)) {
            let is_dirty = |n: u32| core.segments.borrow().get(n).is_some_and(|s| s.dirty > 0);
            // What is dirty is moved to one that is open again: where no writer lacks room that would go on for ever, and wins nothing.
            if log.positions(core).into_iter().any(|(n, _)| is_dirty(n)) && !(is_short && v.has_disk()) {
                continue;
            }
            core.mark(Mark::ClosedAtRest);
            log.seal(core);
            is_any = true;
        }
    }
    is_any
}

/// Evicts a segment, after what is worth it in it was written again; none more once the daemon ends. Everybody else has his turn before the next one: a maximum that was made smaller lets go
/// of a hundred thousand.
pub(crate) async fn let_go<B: Buf>(core: &Rc<Core<B>>, victim: Victim) -> bool {
    carry_over(core, victim).await;
    // It was not all carried over.
    if core.housekeeping_rests() {
        return false;
    }
    let is_less = evict(core, victim);
    core.exec.sleep(1).await;
    is_less
}

/// Segments that only await a checkpoint: emptied mirrored ones, and clean ones that have a twin or count as mirrored still.
fn waits_for_checkpoint<B: Buf>(core: &Core<B>) -> usize {
    core.segments.borrow().iter().filter(|(_, s)| awaits_checkpoint(s)).count()
}

/// The same of one volume.
pub(crate) fn waiting_of<B: Buf>(core: &Core<B>, volume: u16) -> u64 {
    core.segments.borrow().iter().filter(|(_, s)| s.volume == volume && awaits_checkpoint(s)).count() as u64
}

fn awaits_checkpoint(s: &Segment) -> bool {
    s.state == SegmentState::Limbo || s.class == Class::Mirrored && s.state == SegmentState::Sealed && s.dirty == 0 && s.pins == 0
}

/// Lets go of clean pieces until an image has room for what is left, one segment after the other. That takes no device: who waits for a checkpoint, as
/// a stop does, waits for nothing else.
pub(crate) async fn fit_into_an_image<B: Buf>(core: &Core<B>) {
    while core.segments.borrow().live > core.bounds().most_pieces {
        let is_less = match victim_for_the_map(core) {
            Some(victim) => evict(core, victim),
            None => thin_one(core),
        };
        if !is_less {
            break;
        }
        core.mark(Mark::MapThinned);
        core.exec.sleep(1).await;
    }
}

/// A checkpoint, for what it frees; `false` if there was none.
pub(crate) async fn checkpoint<B: Buf>(core: &Rc<Core<B>>) -> bool {
    let done = core.checkpoints_done.get();
    core.want_checkpoint();
    while core.checkpoints_done.get() == done && core.checkpoint_wanted.get() {
        core.checkpoint_signal.wait().await;
        if core.pool.borrow().stalled {
            return false;
        }
    }
    core.checkpoints_done.get() > done
}

/// Lets go of what is clean in the oldest segment that also holds something dirty: room in the map, not on the members.
fn thin_one<B: Buf>(core: &Core<B>) -> bool {
    let oldest = core
        .segments
        .borrow()
        .iter()
        .filter(|(_, s)| s.class == Class::Mirrored && s.state == SegmentState::Sealed && s.pins == 0 && s.live > s.dirty)
        .min_by_key(|(_, s)| s.generation)
        .map(|(n, s)| (n, s.volume, s.blocks.clone()));
    let Some((segment, volume, blocks)) = oldest else { return false };
    let Some(volume) = core.volume(volume) else { return false };
    let mut map = volume.map.borrow_mut();
    let mut segments = core.segments.borrow_mut();
    let before = segments.live;
    for b in blocks.iter() {
        map.drop_clean(&mut segments, b, |p| p.segment == segment);
    }
    segments.settle();
    segments.live < before
}

/// Blocks that are looked at in one go for the fragments of a volume: nobody waits for long behind that.
const FRAGMENTS_AT_ONCE: usize = 1024;

/// Lets go of what is clean in blocks that are in several pieces, where a volume has nearly as many fragments as it may: it would take nothing more
/// into the cache. What is asked for again comes in one piece; what is dirty is for the sweep ([`Core::fragments_percent`]). Whether there is more to
/// look at.
fn thin_fragments<B: Buf>(core: &Core<B>, volume: &Volume<B>) -> bool {
    let most = core.settings.max_fragments;
    if !volume.has_disk() || volume.map.borrow().extra_pieces() < most - most / 32 {
        return false;
    }
    let mut map = volume.map.borrow_mut();
    let mut segments = core.segments.borrow_mut();
    // From where it was the last time, so that all have their turn.
    let (mut at, mut goes_on) = (volume.thinned_to.get(), true);
    for _ in 0..FRAGMENTS_AT_ONCE {
        goes_on = map.extra_pieces() >= most - most / 16;
        if !goes_on {
            break;
        }
        let Some((block, is_won)) = map.next_in_pieces(at) else {
            (at, goes_on) = (0, false);
            break;
        };
        if is_won {
            map.drop_clean(&mut segments, block, |_| true);
            core.mark(Mark::FragmentsThinned);
        }
        at = block + 1;
    }
    volume.thinned_to.set(at);
    segments.settle();
    goes_on
}

/// Moves what is dirty out of a mirrored segment that holds little of it.
async fn compact_one<B: Buf>(core: &Rc<Core<B>>, now: u64) -> bool {
    let capacity = core.pool.borrow().segment_sectors() / 8;
    if core.free() < 2 {
        return false;
    }
    let found = core
        .segments
        .borrow()
        .iter()
        .filter(|(_, s)| is_movable(s, now) && s.places().next().is_some() && s.dirty * 4 < capacity)
        .min_by_key(|(n, s)| (s.dirty, *n))
        .map(|(n, _)| n);
    match found {
        Some(n) => {
            core.mark(Mark::Compacted);
            relocate(core, n).await || is_left_alone(core, n)
        }
        None => false,
    }
}

/// While space is short, moves what a sweep has left in segments that were sorted for it: it came when the sweep had just
/// gone by, and its segment would be taken until the next one comes round. And what is left of a burst, which was not
/// sorted: each of its segments would be taken until the sweep is round, though most of it is down.
async fn gather_rests<B: Buf>(core: &Rc<Core<B>>) {
    if core.free() <= core.bounds().reserve {
        return;
    }
    // For which volumes it is short, and how full it is for them.
    let rooms = core.all_volumes().into_iter().filter(|v| v.has_disk()).map(|v| (v.number, core.room_of(&v)));
    let short: Vec<_> = rooms.filter(|(_, room)| room.pressure() > room.begin_percent).collect();
    if short.is_empty() {
        return;
    }
    let capacity = core.pool.borrow().segment_sectors();
    let is_left = |n: u32, s: &Segment| {
        let Some((_, room)) = short.iter().find(|(volume, _)| *volume == s.volume) else { return false };
        let is_worth_it = is_rest(s, bands::worth_moving(s.sorted, room.taken_percent, capacity));
        is_worth_it && is_movable(s, core.now()) && (!s.sorted || is_behind(core, n, s))
    };
    let found = core.segments.borrow().iter().find(|(n, s)| is_left(*n, s)).map(|(n, _)| n);
    if let Some(n) = found {
        core.mark(Mark::Compacted);
        relocate(core, n).await;
    }
}

/// Most sparse segments that are gathered at once.
const AT_ONCE: usize = 16;

/// Moves together what is left of segments in which most was written again, while they take space that a sweep would have to win. Whether
/// there may be more of it.
async fn gather_sparse<B: Buf>(core: &Rc<Core<B>>) -> bool {
    let mut sparse = look_for_sparse(core);
    if core.dirty_percent() <= core.settings.destage_percent || core.free() <= core.bounds().reserve || core.pool.borrow().stalled
    {
        return false;
    }
    sparse.sort_unstable();
    // No more than there is room for: of those that are half moved none is won, and the reserve is gone.
    let mut room = u64::from(core.free() - core.bounds().reserve) * u64::from(core.pool.borrow().segment_sectors());
    let fits = |(left, _): &(u32, u32)| {
        room = room.saturating_sub(u64::from(*left));
        room > 0
    };
    let moves: Vec<_> = sparse.into_iter().take(AT_ONCE).take_while(fits).map(|(_, n)| begin_move(core, n)).collect();
    let mut all_moved = !moves.is_empty();
    for moved in moves {
        all_moved &= moved.get().await;
    }
    all_moved
}

/// Begins to move what is dirty in a segment; the slot tells whether any was.
fn begin_move<B: Buf>(core: &Rc<Core<B>>, segment: u32) -> Rc<Slot<bool, B>> {
    core.mark(Mark::Compacted);
    let moved = Slot::new(&core.exec);
    let (of_core, told) = (core.clone(), moved.clone());
    core.exec.spawn(async move { told.set(relocate(&of_core, segment).await) });
    moved
}

/// Counts what gathering sparse segments would win of each volume. Where that is something, what is in each, and which it is: one alone wins
/// nothing.
fn look_for_sparse<B: Buf>(core: &Core<B>) -> Vec<(u32, u32)> {
    let capacity = core.pool.borrow().segment_sectors();
    let mut sparse: BTreeMap<u16, Vec<(u32, u32)>> = BTreeMap::new();
    for (n, s) in core.segments.borrow().iter() {
        let left = gather::left(s.dirty, s.dirty_sectors, s.live - s.dirty);
        if is_rest(s, u32::MAX) && is_movable(s, core.now()) && gather::is_sparse(left, capacity) {
            sparse.entry(s.volume).or_default().push((left, n));
        }
    }
    let won = |of: &[(u32, u32)]| of.iter().map(|(left, _)| u64::from(capacity - left)).sum::<u64>() / u64::from(capacity.max(1));
    for volume in core.volumes.borrow().values() {
        volume.sparse.set(sparse.get(&volume.number).map_or(0, |of| won(of)));
    }
    sparse.into_values().filter(|of| won(of) > 0).flatten().collect()
}

fn is_rest(s: &Segment, most: u32) -> bool {
    let holds = s.class == Class::Mirrored && s.state == SegmentState::Sealed && !s.diskless;
    holds && s.dirty_sectors > 0 && s.dirty_sectors <= most
}

/// Whether the sweep has gone by all that is dirty in a segment. What is still before it is down soon, from where it is.
fn is_behind<B: Buf>(core: &Core<B>, n: u32, s: &Segment) -> bool {
    let Some(volume) = core.volume(s.volume) else { return false };
    let (map, sweep) = (volume.map.borrow(), volume.swept_to.get());
    let is_dirty = |block: u64| {
        let mut dirty = false;
        map.each(block, |p| dirty |= p.segment == n && p.dirty());
        dirty
    };
    !s.blocks.iter().any(|block| block >= sweep && is_dirty(block))
}

/// Dirty data that is on fewer copies than it could be is copied (H20).
async fn mend_copies<B: Buf>(core: &Rc<Core<B>>) {
    // Each has one turn: what takes long to turn out unreadable would have another before those behind it had their first.
    let now = core.now();
    loop {
        let want = core.pool.borrow().copies_now();
        let found = {
            let pool = core.pool.borrow();
            core.segments
                .borrow()
                .iter()
                .find(|(_, s)| {
                    let have = s.places().filter(|p| pool.is_in_sync(p.member)).count();
                    is_movable(s, now) && have > 0 && have < want
                })
                .map(|(n, _)| n)
        };
        let Some(n) = found else { return };
        // The reserve is for marks: without them nothing gets clean, and nothing is free ever again. Destage makes room first.
        if core.free() <= core.bounds().reserve {
            core.mark(Mark::MendingWaits);
            return;
        }
        core.mark(Mark::CopiesMended);
        if !relocate(core, n).await && !is_left_alone(core, n) {
            return;
        }
    }
}

/// Whether what is dirty in a segment can be moved now.
pub(crate) fn is_movable(s: &Segment, now: u64) -> bool {
    s.class == Class::Mirrored && s.state == SegmentState::Sealed && s.dirty > 0 && s.moves_from <= now
}

/// Whether a move has just found nothing in a segment that it could move: it cannot be read, or is being replaced. Others need not wait for it.
pub(crate) fn is_left_alone<B: Buf>(core: &Core<B>, segment: u32) -> bool {
    core.segments.borrow().get(segment).is_some_and(|s| s.moves_from > core.now())
}

/// Moves the dirty pieces of a segment to the open one, in their versions (R16). Whether any moved.
pub(crate) async fn relocate<B: Buf>(core: &Rc<Core<B>>, segment: u32) -> bool {
    let (volume, blocks) = match core.segments.borrow().get(segment) {
        Some(s) => (s.volume, s.blocks.clone()),
        None => return false,
    };
    let Some(volume) = core.volume(volume) else { return false };
    let blocks = volume.map.borrow().in_segment(segment, &blocks);
    let (mut moved, mut is_readable, mut is_replaced) = (false, true, false);
    for some in blocks.chunks(64) {
        let mut pieces: Vec<(u64, Piece)> = Vec::new();
        // What is being replaced would not be appended (`Log::drop_stale`): who asks for the same again at once must not be told that it moved.
        for b in some {
            if volume.is_being_replaced(*b) {
                is_replaced = true;
                continue;
            }
            volume.map.borrow().each(*b, |p| {
                if p.segment == segment && p.dirty() && !pieces.contains(&(*b, *p)) {
                    pieces.push((*b, *p));
                }
            });
        }
        // What is being appended counts as existing (R4): writes past the log to these blocks wait for the move.
        let _pending: Vec<_> = pieces.iter().map(|(b, _)| core.begin_moving(&volume, *b..*b + 1)).collect();
        let read = fetch_aside(core, &volume, &pieces.iter().copied().filter(|(_, p)| !p.zeroes()).collect::<Vec<_>>()).await;
        let mut read = read.into_iter();
        let mut items = Vec::new();
        for (block, p) in &pieces {
            if p.zeroes() {
                for r in runs(p.live) {
                    let (first, sectors) = (r.start as u8, (r.end - r.start) as u8);
                    items.push(Item::Move { block: *block, first, sectors, data: None, from: *p });
                }
                continue;
            }
            let Some(Ok(data)) = read.next() else {
                core.mark(Mark::MoveUnreadable);
                is_readable = false;
                continue;
            };
            for (r, data) in p.live_parts(&data) {
                let (first, sectors) = (r.start as u8, (r.end - r.start) as u8);
                items.push(Item::Move { block: *block, first, sectors, data: Some(data), from: *p });
            }
        }
        let moves = !items.is_empty();
        let appended = volume.dirty_log.append(core, &volume, items).get().await;
        // However it ended: a sweep has passed over what was read.
        volume.moved.set(volume.moved.get() + u64::from(moves));
        if appended.is_err() {
            core.mark(Mark::MoveWithoutSpace);
            return false;
        }
        moved |= moves;
    }
    core.stats.borrow_mut().relocated += 1;
    if !moved && (!is_readable || is_replaced) {
        // Others have their turn meanwhile.
        let rests = if is_readable { REPLACED_NS } else { UNREADABLE_NS };
        core.segments.borrow_mut().not_moved_before(segment, core.now() + rests);
    }
    moved
}

/// So long a segment is left alone whose blocks are all being replaced, in nanoseconds.
const REPLACED_NS: u64 = 100_000_000;

/// So long a segment of which nothing can be read is left alone, in nanoseconds.
const UNREADABLE_NS: u64 = 10_000_000_000;
