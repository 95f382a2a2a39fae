//! The life of a write, of a discard and of a zeroing.

use crate::core::{Core, Volume};
use crate::destage::{tell, withdraw};
use crate::disk_use::DiskWants;
use crate::diskless;
use crate::fills::{Fill, insert_clean};
use crate::flush::{durable, settled};
use crate::intent::{Bit, DiskWrite, Intent, ensure};
use crate::io::{BLOCK, BLOCK_SECTORS, Buf, DeviceOp, Reach, RequestError};
use crate::log::{AppendError, Appended, Item};
use crate::map::{Map, mask};
use crate::marks::Mark;
use crate::policy::endurance::Wish;
use crate::policy::route::Side;
use crate::policy::streams::Belongs;
use crate::policy::through::{BESIDE, disk_writes};
use crate::policy::{bands, gain, pace};
use crate::ranges::meet;
use crate::settings::Degraded;
use crate::stats::{self, Bypass};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use headpond_format::{Mode, REGION_SECTORS};

/// What a range is to become.
#[derive(Clone)]
pub(crate) enum Content<B> {
    /// This data.
    Data(B),
    /// Zeroes.
    Zeroes,
    /// Zeroes, and the disk may forget the space.
    Discarded,
}

/// What becomes of a write.
enum Fate {
    Absorb,
    Bypass(Bypass),
    Refuse,
}

impl Fate {
    /// It is for the log, if there is room or will be in time.
    fn wants_the_log(&self) -> bool {
        matches!(self, Self::Absorb | Self::Bypass(Bypass::Full))
    }
}

/// How often a write that waits for room looks again, in nanoseconds.
const AGAIN_NS: u64 = 5_000_000;
/// Writes on their way into the log that may be a burst.
const LEAST_BURST: u32 = 16;
/// Regions ahead of a stream whose intent bits are set with its own.
const AHEAD: u64 = 8;

/// Changes a range of grid sectors.
pub(crate) async fn write<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    range: Range<u64>,
    content: Content<B>,
    fua: bool,
) -> Result<stats::Fate, RequestError> {
    if !volume.has_disk() {
        // In a box, here and below: see `Exec::spawn_small`.
        return Box::pin(diskless::write(core, volume, range, content, fua)).await;
    }
    let blocks = Volume::<B>::blocks(&range);
    let _writing = core.begin_writing(volume, blocks.clone());
    let bytes = (range.end - range.start) * 512;
    let belongs = volume.writes.borrow_mut().note(range.start, range.end - range.start, volume.flushes_seen.get(), fua);
    let (mut fate, _wanting) = choose(core, volume, &range, &content, belongs).await;
    // A wait for those who would wait for this one takes time as well.
    let ticket = core.ticket();
    while matches!(fate, Fate::Absorb) && volume.let_pass(core, &blocks, ticket).await {
        fate = decide(core, volume, &range, &content, belongs);
    }
    let mut is_share = false;
    // What was lost while this one waited for its turn was not its own.
    let losses = volume.losses.get();
    let reason = match fate {
        Fate::Refuse => return Err(RequestError::Io),
        Fate::Absorb if sooner_on_disk(core, volume, bytes, &content) => Bypass::Sooner,
        Fate::Absorb if !fua && is_disks_share(core, volume, bytes, &content) => {
            is_share = true;
            Bypass::Sooner
        }
        Fate::Absorb => match absorb(core, volume, &range, &content).await {
            Ok(()) => return absorbed(core, volume, bytes, fua, losses).await,
            Err(AppendError::Full) => core.passing(Mark::AbsorbedInVain, Bypass::Full),
            Err(AppendError::NoMembers) => core.passing(Mark::AbsorbedByNobody, Bypass::Degraded),
            Err(AppendError::Gone) => return Err(RequestError::Io),
        },
        Fate::Bypass(reason) => reason,
    };
    let (failures, came) = (volume.disk_flusher.failures(), core.now());
    let direct = u32::from(reason == Bypass::Full);
    volume.direct_writes.set(volume.direct_writes.get() + direct);
    if is_share {
        volume.disk_use.share_begins();
    }
    // Also where the mode has it written to the disk, whatever it is.
    let is_stream = matches!(content, Content::Data(_)) && passes(core, volume, &range, belongs).is_some();
    let written = Box::pin(to_disk(core, volume, &range, &content, reason, is_share, is_stream)).await;
    volume.direct_writes.set(volume.direct_writes.get() - direct);
    if is_share {
        volume.disk_use.share_ends(core.now());
    }
    if reason == Bypass::NoGain {
        note_gain(core, volume, came, bytes, written.is_ok());
    }
    // The disk need not have been asked, but for who waits for the volume to be clean: the log can take it, if it may now.
    let may_absorb = || matches!(decide_though_cleaning(core, volume, &range, &content, belongs), Fate::Absorb);
    if matches!(reason, Bypass::Sooner | Bypass::NoGain | Bypass::Mode) && written.is_err() && may_absorb() {
        core.mark(Mark::SoonerFails);
        if absorb(core, volume, &range, &content).await.is_ok() {
            return absorbed(core, volume, bytes, fua, losses).await;
        }
    }
    let alone = written?;
    volume.stats.borrow_mut().write_bypass[reason as usize].add(bytes);
    if !alone {
        // Of the disk's flushes no client need wait for one, or hear that it failed, for this.
        in_the_log(core, volume, fua, losses).await?;
        return Ok(stats::Fate::WriteBypass);
    }
    if !fua {
        volume.disk_flusher.acknowledging(failures);
        return Ok(stats::Fate::WriteBypass);
    }
    core.mark(Mark::FuaPastTheCache);
    // What overlapped dirty data may be on the members: both, at once. What others have written meanwhile this one does not wait for.
    let on_disk = volume.disk_flusher.request();
    durable(core).await?;
    let on_disk = volume.disk_flusher.end_since(on_disk, failures).await;
    settled(core).await?;
    if on_disk.is_err() || volume.losses.get() != losses { Err(RequestError::Io) } else { Ok(stats::Fate::WriteBypass) }
}

/// What becomes of a write; where it is to be absorbed, its turn has come. And that it wants space, for as long as it does.
async fn choose<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    range: &Range<u64>,
    content: &Content<B>,
    belongs: Belongs,
) -> (Fate, Option<Wanting<B>>) {
    let fate = decide(core, volume, range, content, belongs);
    if !fate.wants_the_log() {
        return (fate, None);
    }
    if spares_members(core, volume, range, content) {
        return (Fate::Bypass(Bypass::Endurance), None);
    }
    if gains_nothing(core, volume, range, content) {
        return (Fate::Bypass(Bypass::NoGain), None);
    }
    let bytes = (range.end - range.start) * 512;
    // Zeroes are an entry in the log for each block, without data: a few KiB, however long they are.
    let logged = if matches!(content, Content::Data(_)) { bytes } else { BLOCK };
    let wanting = want(core, volume, bytes, logged);
    let fate = match turn(core, volume, bytes, logged, matches!(fate, Fate::Absorb)).await {
        Turn::AtOnce => Fate::Absorb,
        // Waiting for the turn takes time, in which the mode may change, and members leave.
        Turn::AfterAWait => {
            let fate = decide(core, volume, range, content, belongs);
            core.mark_if(!matches!(fate, Fate::Absorb), Mark::FateChangedInTheWait);
            fate
        }
        Turn::Late => core.passing(Mark::NoTurnInTime, Fate::Bypass(Bypass::Full)),
    };
    (fate, wanting)
}

/// What follows when the log has taken a write, which began when the volume had had `losses`.
pub(crate) async fn absorbed<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Volume<B>,
    bytes: u64,
    fua: bool,
    losses: u32,
) -> Result<stats::Fate, RequestError> {
    volume.stats.borrow_mut().absorbed.add(bytes);
    in_the_log(core, volume, fua, losses).await?;
    Ok(stats::Fate::Absorbed)
}

/// A write that is in the log, all of it, is about to be acknowledged.
async fn in_the_log<B: Buf>(core: &Rc<Core<B>>, volume: &Volume<B>, fua: bool, losses: u32) -> Result<(), RequestError> {
    if fua {
        volume.asked_to_flush();
        durable(core).await?;
        // The last copy of dirty data is gone meanwhile: it may be this.
        if volume.losses.get() != losses {
            return Err(RequestError::Io);
        }
    }
    volume.acknowledging(losses);
    Ok(())
}

/// A client wants space for a write, until the guard is dropped. Large ones want none: what a disk takes to get to one is little by what
/// it takes to write it. Of streams whose requests came in another order beside a sweep some are absorbed, and had it go on.
fn want<B: Buf>(core: &Rc<Core<B>>, volume: &Volume<B>, bytes: u64, logged: u64) -> Option<Wanting<B>> {
    if bytes >= pace::LARGE {
        return None;
    }
    let mut demand = core.demand.get();
    let counts = demand.note(core.now(), logged, volume.reached.get().per_second());
    core.demand.set(demand);
    counts.then(|| Wanting { core: core.clone() })
}

/// A write waits for its turn, however little of such is written.
fn held_back<B: Buf>(core: &Core<B>) {
    let mut demand = core.demand.get();
    demand.held_back(core.now());
    core.demand.set(demand);
}

/// A write that wants space is under way.
struct Wanting<B: Buf> {
    core: Rc<Core<B>>,
}

impl<B: Buf> Drop for Wanting<B> {
    fn drop(&mut self) {
        let mut demand = self.core.demand.get();
        demand.ended(self.core.now());
        self.core.demand.set(demand);
    }
}

/// When a write that is to be absorbed has its turn.
enum Turn {
    /// In the very moment in which it asked.
    AtOnce,
    AfterAWait,
    /// So late that it is to go to the disk instead.
    Late,
}

/// Waits until a write that is to be absorbed has its turn and there is room for it, which it may be known that there is now. Large ones
/// do not wait. Of its `bytes` so many are `logged`.
async fn turn<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, bytes: u64, logged: u64, mut has_room: bool) -> Turn {
    let mut turn = Turn::AtOnce;
    let came = core.now();
    if !has_room && core.nobody_wins_room() && !core.room_for_dirty(volume) {
        core.mark(Mark::WaitWouldBeHopeless);
        return Turn::Late;
    }
    let destage = volume.reached.get().per_second();
    let rate = pace::rate(&core.room_of(volume), destage);
    volume.dirty_log.sort_into(bands::wanted(rate, destage, volume.dirty_log.sorted_into(), core.bands_of(volume)));
    if rate.is_some_and(pace::is_slowest) && (core.others_have_the_space(volume) || core.has_nothing_to_win(volume)) {
        return Turn::Late;
    }
    if let Some(rate) = rate {
        let longest = longest_wait(core, volume, bytes);
        let mut turns = volume.turns.get();
        let at = turns.take(came, logged, rate, longest);
        volume.turns.set(turns);
        match at {
            Some(at) if at > came => {
                (turn, has_room) = (Turn::AfterAWait, false);
                volume.waiting.set(volume.waiting.get() + 1);
                held_back(core);
                core.exec.sleep(at - came).await;
                held_back(core);
                volume.waiting.set(volume.waiting.get() - 1);
            }
            Some(_) => {}
            None => return Turn::Late,
        }
    }
    while !has_room && !core.room_for_dirty(volume) {
        turn = Turn::AfterAWait;
        let waited = core.now() - came;
        // Where it is not for dirty data that there is no room, destage will not win any.
        let hopeless = core.dirty_percent_for(volume) <= core.settings.destage_percent
            || core.has_nothing_to_win(volume)
            || core.nobody_wins_room();
        core.mark_if(hopeless, Mark::WaitWouldBeHopeless);
        let too_long = waited >= longest_wait(core, volume, bytes);
        if hopeless || too_long || volume.mode() != Mode::WriteBack || volume.wanted_clean.get() > 0 {
            return Turn::Late;
        }
        core.mark(Mark::WriteWaitsForRoom);
        // By time, and not by a signal that whoever looks in vain gives himself.
        core.exec.sleep(AGAIN_NS).await;
    }
    turn
}

/// How long a write waits for its turn, or for room, at most, in nanoseconds.
fn longest_wait<B: Buf>(core: &Core<B>, volume: &Volume<B>, bytes: u64) -> u64 {
    let line = volume.waiting.get() + disk_line(volume);
    volume.direct.get().longest(bytes, line, core.others_have_the_space(volume))
}

/// Writes that the disk has under way: clients', and the sweep's.
fn disk_line<B: Buf>(volume: &Volume<B>) -> u32 {
    volume.disk_use.under_way.get() + volume.sweeping.get()
}

fn decide<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    range: &Range<u64>,
    content: &Content<B>,
    belongs: Belongs,
) -> Fate {
    if volume.wanted_clean.get() > 0 {
        return Fate::Bypass(Bypass::Mode);
    }
    decide_though_cleaning(core, volume, range, content, belongs)
}

/// As [`decide`], whoever waits for the volume to be clean.
fn decide_though_cleaning<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    range: &Range<u64>,
    content: &Content<B>,
    belongs: Belongs,
) -> Fate {
    let sectors = range.end - range.start;
    if volume.mode() != Mode::WriteBack {
        return Fate::Bypass(Bypass::Mode);
    }
    if core.pool.borrow().degraded() {
        match core.settings.degraded {
            Degraded::ReadOnly => return Fate::Refuse,
            Degraded::WriteThrough => return core.passing(Mark::WriteThroughDegraded, Fate::Bypass(Bypass::Degraded)),
            Degraded::Continue => core.mark(Mark::AbsorbedOnOneCopy),
        }
    }
    match content {
        Content::Data(_) => {
            if let Some(past) = passes(core, volume, range, belongs) {
                return Fate::Bypass(past);
            }
        }
        Content::Zeroes | Content::Discarded => {
            if sectors * 512 > core.settings.zeroes_bytes {
                return Fate::Bypass(Bypass::Zeroes);
            }
        }
    }
    if core.room_for_dirty(volume) { Fate::Absorb } else { Fate::Bypass(Bypass::Full) }
}

/// Why data is not for the cache, whatever the mode, if it is not: it is large, or of a stream.
fn passes<B: Buf>(core: &Core<B>, volume: &Volume<B>, range: &Range<u64>, belongs: Belongs) -> Option<Bypass> {
    if volume.is_pinned(range) {
        // What is pinned is kept in the cache, however it is written.
        None
    } else if (range.end - range.start) * 512 >= core.settings.large_bytes {
        Some(Bypass::Large)
    } else {
        belongs.is_stream(core.settings.stream_bytes).then_some(Bypass::Stream)
    }
}

/// Whether a write goes to the disk because the cache devices' budget does not bear it. What is dirty already is absorbed over,
/// whatever is left: in the disk it could not lie beside what the cache has there.
fn spares_members<B: Buf>(core: &Core<B>, volume: &Volume<B>, range: &Range<u64>, content: &Content<B>) -> bool {
    let bytes = match content {
        Content::Data(data) => data.len() as u64,
        // A mark in the log.
        Content::Zeroes | Content::Discarded => BLOCK,
    };
    core.settings.drive_writes_milli > 0
        && older_dirty(volume, range, u64::MAX) != core::slice::from_ref(range)
        && !core.budget_bears(Wish::Write, bytes)
}

/// Whether a write goes to the disk because space is short and a sweep would get it down no sooner.
fn gains_nothing<B: Buf>(core: &Rc<Core<B>>, volume: &Volume<B>, range: &Range<u64>, content: &Content<B>) -> bool {
    let Content::Data(data) = content else { return false };
    if !core.settings.route || volume.is_pinned(range) {
        return false;
    }
    let now = core.now();
    let stand = || {
        let room = core.room_of(volume);
        gain::Stand {
            is_short: room.pressure() > room.begin_percent,
            presses: room.pressure() > room.begin_percent.midpoint(100),
            is_full: room.taken_percent >= gain::full_percent(room.begin_percent),
            beside_readers: volume.disk_use.has_lone_readers(now, core.settings.idle_ns),
        }
    };
    let levels = || {
        let stats = volume.stats.borrow();
        gain::Levels {
            absorbed: stats.absorbed.bytes,
            writes: stats.absorbed.requests,
            destaged: stats.destaged.bytes,
            dirty: volume.map.borrow().dirty_blocks() * BLOCK,
            swept: volume.swept.get(),
        }
    };
    let mut gain = volume.gain.get();
    let goes_past = gain.goes_past(now, data.len() as u64, stand, levels);
    volume.gain.set(gain);
    goes_past
}

/// Notes what became of a write that went past the cache because of that.
fn note_gain<B: Buf>(core: &Core<B>, volume: &Volume<B>, came: u64, bytes: u64, is_written: bool) {
    let mut gain = volume.gain.get();
    match is_written {
        true => gain.note(core.now(), came, bytes, !volume.destaging.get()),
        false => gain.failed(core.now()),
    }
    volume.gain.set(gain);
}

/// Whether the disk is expected to take a write sooner than the log.
fn sooner_on_disk<B: Buf>(core: &Core<B>, volume: &Volume<B>, bytes: u64, content: &Content<B>) -> bool {
    let (here, there) = (volume.absorbing.get(), volume.disk_use.under_way.get());
    let beside_streams = volume.disk_use.streams.get() > 0;
    core.settings.route
        && matches!(content, Content::Data(_))
        && volume.write_route.borrow().prefers_disk(core.now(), bytes, here, there, beside_streams)
}

/// Whether a write is what a disk that has nothing else to do takes of a burst.
fn is_disks_share<B: Buf>(core: &Core<B>, volume: &Volume<B>, bytes: u64, content: &Content<B>) -> bool {
    let (now, here, there) = (core.now(), volume.absorbing.get(), volume.disk_use.under_way.get());
    core.settings.route
        && here >= LEAST_BURST
        && matches!(content, Content::Data(_))
        && volume.disk_use.is_idle_but_for_shares(now, core.settings.idle_ns)
        // Where space is short the sweep needs all of the disk, though clients leave it alone.
        && !core.space_presses(volume)
        && volume.write_route.borrow_mut().shares(now, bytes, here, there, volume.destaging.get())
}

/// Notes what a write took on one side.
fn note_route<B: Buf>(core: &Core<B>, volume: &Volume<B>, side: Side, bytes: u64, line: u32, since: u64) {
    volume.write_route.borrow_mut().note(side, core.now(), bytes, line, core.now() - since);
}

/// Notes that the disk failed a write: what it fails it does not do soon.
fn note_failure<B: Buf>(core: &Core<B>, volume: &Volume<B>, bytes: u64) {
    volume.write_route.borrow_mut().disk_failed(core.now(), bytes);
}

/// Adds the items that put `content` into the log; `None`: what the client lent cannot be read any more.
fn items<B: Buf>(
    range: &Range<u64>,
    whole: &Range<u64>,
    content: &Content<B>,
    version: u64,
    to: &mut Vec<Item<B>>,
) -> Option<()> {
    match content {
        Content::Data(data) => {
            let from = (range.start - whole.start) as usize * 512;
            let data = data.slice(from..from + (range.end - range.start) as usize * 512).owned()?;
            to.push(Item::Write { start: range.start, data, version });
        }
        Content::Zeroes | Content::Discarded => {
            to.extend(by_block(range).map(|(block, first, sectors)| Item::Zeroes { block, first, sectors, version }));
        }
    }
    Some(())
}

/// A range of grid sectors as runs inside blocks: block, first sector, sectors.
pub(crate) fn by_block(range: &Range<u64>) -> impl Iterator<Item = (u64, u8, u8)> + use<> {
    let (start, end) = (range.start, range.end);
    (start / BLOCK_SECTORS..end.div_ceil(BLOCK_SECTORS)).map(move |b| {
        let from = start.max(b * BLOCK_SECTORS);
        let to = end.min((b + 1) * BLOCK_SECTORS);
        (b, (from % BLOCK_SECTORS) as u8, (to - from) as u8)
    })
}

/// Takes a write into the log.
pub(crate) async fn absorb<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    range: &Range<u64>,
    content: &Content<B>,
) -> Appended {
    let version = core.next_version();
    let _pending = core.begin_pending(volume, Volume::<B>::blocks(range));
    let (line, since) = (volume.absorbing.get(), core.now());
    volume.absorbing.set(line + 1);
    let result = absorb_parts(core, volume, range, content, core::slice::from_ref(range), version).await;
    volume.absorbing.set(volume.absorbing.get() - 1);
    volume.last_absorbed.set(core.now());
    note_route(core, volume, Side::Ssd, (range.end - range.start) * 512, line, since);
    result
}

/// Appends parts of a write, and marks their regions as possibly dirty before that is acknowledged (R8).
/// The caller has registered them as pending.
async fn absorb_parts<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    whole: &Range<u64>,
    content: &Content<B>,
    parts: &[Range<u64>],
    version: u64,
) -> Appended {
    let mut all = Vec::with_capacity(parts.len());
    for part in parts {
        items(part, whole, content, version, &mut all).ok_or(AppendError::Gone)?;
    }
    let begun = core.segments.borrow().checkpoints_begun;
    parts.iter().for_each(|part| volume.intent.dirtied(&Intent::<B>::regions(part), begun));
    let append = volume.dirty_log.append(core, volume, all);
    let mut is_marked = true;
    for part in parts {
        is_marked &= ensure(core, volume, part, Bit::Dirty, 0).await;
    }
    let result = append.get().await;
    tell(core, volume);
    if result.is_ok() && !is_marked { Err(AppendError::NoMembers) } else { result }
}

/// Writes to the disk. What is dirty there is absorbed over, or overwritten in order, so that it cannot come back (R4). Whether the disk alone
/// has any of it.
async fn to_disk<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    range: &Range<u64>,
    content: &Content<B>,
    reason: Bypass,
    is_share: bool,
    is_stream: bool,
) -> Result<bool, RequestError> {
    let beside_sweep = volume.destaging.get();
    let blocks = Volume::<B>::blocks(range);
    let _intended = DiskWrite::begin(core, volume, range);
    let (line, all) = (volume.disk_use.under_way.get(), disk_line(volume));
    let _using = core.use_disk(volume, if is_stream { DiskWants::StreamWrite } else { DiskWants::LoneWrite });
    let ahead = if is_stream { AHEAD } else { 0 };
    if !ensure(core, volume, range, Bit::Intent, ahead).await {
        return Err(RequestError::Io);
    }
    if ahead > 0 {
        set_ahead(core, volume, range.end);
    }
    let lock = volume.disk_ranges.lock(range.clone()).await;
    wait_for_appends(core, volume, &blocks).await;
    // No majority, no invalidation: a record whose append failed, or one on a member that left without the others'
    // word for it, may be found again at the next start and would lie over what the disk gets now (R4, R7).
    if core.pool.borrow().stalled && Intent::<B>::regions(range).any(|r| volume.intent.is_set(r, Bit::Dirty)) {
        core.mark(Mark::BypassWithoutMajority);
        return Err(RequestError::Io);
    }
    // Only now: a version that was taken before a wait could lie under the mark of a sweep that knows nothing of it.
    let version = core.next_version();
    let dirty = older_dirty(volume, range, version);
    // Where there is room what overlaps is absorbed, also that of a write that only had no turn in time: it makes nothing more dirty,
    // and an ordered overwrite would flush the disk, with all that others have in its cache.
    let may_absorb = !dirty.is_empty()
        && volume.mode() == Mode::WriteBack
        && volume.wanted_clean.get() == 0
        && !core.pool.borrow().degraded()
        && core.room_for_dirty(volume);
    let fill = (volume.mode() == Mode::WriteThrough).then(|| through_fill(core, volume, range, content, is_stream)).flatten();
    // What is admitted is what the disk gets, and a client may change what it lends while it is being written from.
    let content = &match (&fill, content) {
        (Some(_), Content::Data(data)) => match data.owned() {
            Some(data) => Content::Data(data),
            None => {
                volume.fills.end(&[fill]);
                return Err(RequestError::Io);
            }
        },
        _ => content.clone(),
    };
    let result = if volume.left_behind.touches(range) {
        core.mark(Mark::LeftBehindOverwritten);
        ordered(core, volume, range, content, version).await.map(|()| true)
    } else if dirty.is_empty() {
        let since = core.now();
        let whole = core::slice::from_ref(range);
        forget_parts(core, volume, whole, version);
        let result = overwrite(core, volume, range, content, whole, true).await;
        match &result {
            Ok(()) => {
                match is_share {
                    true => volume.write_route.borrow_mut().note_share(core.now(), line, core.now() - since, beside_sweep),
                    false => note_route(core, volume, Side::Disk, (range.end - range.start) * 512, line, since),
                }
                if reason == Bypass::Full {
                    let mut direct = volume.direct.get();
                    direct.note(core.now() - since, all);
                    volume.direct.set(direct);
                }
            }
            Err(_) => note_failure(core, volume, (range.end - range.start) * 512),
        }
        result.map(|()| true)
    } else if may_absorb {
        partly_absorbed(core, volume, range, content, &dirty, version, is_stream).await
    } else {
        ordered(core, volume, range, content, version).await.map(|()| true)
    };
    drop(lock);
    match (fill, content) {
        (Some(fill), Content::Data(data)) if result.is_ok() => {
            insert_clean(core, volume, range.start, data.clone(), version, fill)
        }
        (Some(fill), _) => volume.fills.end(&[Some(fill)]),
        (None, _) => {}
    }
    result
}

/// Writes to the disk what is not dirty there. The pieces that overlap go into the log, in the same version. Whether the disk alone has any
/// of it.
async fn partly_absorbed<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    range: &Range<u64>,
    content: &Content<B>,
    dirty: &[Range<u64>],
    version: u64,
    is_stream: bool,
) -> Result<bool, RequestError> {
    core.mark(Mark::BypassPartlyAbsorbed);
    let blocks = Volume::<B>::blocks(range);
    let losses = volume.losses.get();
    let rest = subtract(range, dirty);
    let on_disk = match content {
        Content::Data(_) if rest.is_empty() && is_stream && passes_under_the_heads(volume, range, version) => vec![range.clone()],
        Content::Data(_) => disk_writes(range, &rest),
        Content::Zeroes | Content::Discarded => rest.clone(),
    };
    // Before any wait: who changes the mode, or waits until nothing is dirty, is to know that there is something on its way into the log.
    let moving = core.begin_moving(volume, blocks.clone());
    if on_disk != rest {
        // What the disk has under dirty data is about to change: a sweep calls none of it clean any more, nor may what is clean beside it
        // stay, even if the write fails.
        withdraw(core, volume, &blocks).await;
        let_go_of_clean(core, volume, range);
    }
    // Only until the log has it: what the disk takes as long as it likes for must not keep anything there from being moved.
    let replacing = core.begin_pending(volume, blocks.clone());
    let (core2, volume2, content2, range2, dirty2) =
        (core.clone(), volume.clone(), content.clone(), range.clone(), dirty.to_vec());
    let absorbed = crate::exec::Slot::new(&core.exec);
    let done = absorbed.clone();
    core.exec.spawn(async move {
        let appended = absorb_parts(&core2, &volume2, &range2, &content2, &dirty2, version).await;
        drop(replacing);
        done.set(appended);
    });
    forget_parts(core, volume, &rest, version);
    let mut written = overwrite(core, volume, range, content, &on_disk, !rest.is_empty()).await;
    if written.is_err() && on_disk != rest {
        core.mark(Mark::FailsUnderDirtyData);
        // What is dirty need not have been asked of it.
        written = overwrite(core, volume, range, content, &rest, true).await;
    }
    match (written, absorbed.get().await) {
        (Ok(()), Ok(())) => {
            if !rest.is_empty() {
                volume.acknowledging(losses);
            }
            Ok(!rest.is_empty())
        }
        (Ok(()), Err(_)) => {
            core.mark(Mark::OrderedAfterAbsorbFailed);
            // It is not on its way into the log any more. What set out for it since is to be there before this has its version, which is newer than all that
            // the log may have of it.
            drop(moving);
            wait_for_appends(core, volume, &blocks).await;
            ordered(core, volume, range, content, core.next_version()).await.map(|()| true)
        }
        (Err(e), _) => Err(e),
    }
}

/// Whether what is dirty around `range`, all of which is, is so short that the heads would pass over it on their way.
fn passes_under_the_heads<B: Buf>(volume: &Volume<B>, range: &Range<u64>, version: u64) -> bool {
    let extent = volume.extent();
    let around = range.start.saturating_sub(BESIDE).max(extent.start)..(range.end + BESIDE).min(extent.end);
    let dirty = older_dirty(volume, &around, version);
    dirty.iter().any(|d| d.start <= range.start && range.end <= d.end && d.end - d.start <= BESIDE)
}

/// Waits until nothing is being appended for `blocks`: such records count as existing (R4).
pub(crate) async fn wait_for_appends<B: Buf>(core: &Core<B>, volume: &Rc<Volume<B>>, blocks: &Range<u64>) {
    if !volume.is_pending(blocks) {
        return;
    }
    // What comes from now on waits for this one.
    let _awaiting = core.begin_awaiting(volume, blocks.clone());
    while volume.is_pending(blocks) {
        core.mark(Mark::BypassWaitsForAppend);
        volume.pending_changed.wait().await;
    }
}

/// Has the intent bits of the regions that a stream comes to next set before it is there: it waits for them but once, however
/// busy the cache devices are.
fn set_ahead<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, from: u64) {
    let (last, at) = (volume.extent().end.div_ceil(REGION_SECTORS), from / REGION_SECTORS);
    let Some(next) = (at + 1..at + AHEAD / 2).find(|r| *r < last && !volume.intent.is_set(*r, Bit::Intent)) else { return };
    let (core2, volume2) = (core.clone(), volume.clone());
    core.exec.spawn(async move {
        let sectors = next * REGION_SECTORS..(next + 1) * REGION_SECTORS;
        ensure(&core2, &volume2, &sectors, Bit::Intent, AHEAD - 1).await;
    });
}

/// The parts of a range, in whole blocks cut to the range, where something older than `version` is dirty.
pub(crate) fn older_dirty<B: Buf>(volume: &Volume<B>, range: &Range<u64>, version: u64) -> Vec<Range<u64>> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    let blocks = Volume::<B>::blocks(range);
    let map = volume.map.borrow();
    if !map.any_dirty(blocks.clone()) {
        return parts;
    }
    map.each_in(blocks, |block, p| {
        if !p.dirty() || p.version() >= version {
            return;
        }
        let r = (block * BLOCK_SECTORS).max(range.start)..((block + 1) * BLOCK_SECTORS).min(range.end);
        match parts.last_mut() {
            Some(last) if last.end >= r.start => last.end = last.end.max(r.end),
            _ => parts.push(r),
        }
    });
    parts
}

fn subtract(range: &Range<u64>, parts: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut at = range.start;
    let mut rest = Vec::new();
    for p in parts {
        if at < p.start {
            rest.push(at..p.start);
        }
        at = p.end;
    }
    if at < range.end {
        rest.push(at..range.end);
    }
    rest
}

/// Lets go of clean copies of parts of a range, where nothing older is dirty: the disk is about to have something else.
fn forget_parts<B: Buf>(core: &Core<B>, volume: &Volume<B>, parts: &[Range<u64>], version: u64) {
    for part in parts {
        forget(core, volume, part, version);
    }
}

/// Writes parts of a range to the disk. What it `alone` has a client's flush is for.
async fn overwrite<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    whole: &Range<u64>,
    content: &Content<B>,
    parts: &[Range<u64>],
    alone: bool,
) -> Result<(), RequestError> {
    let mut result = Ok(());
    for some in parts.chunks(PARTS_AT_ONCE) {
        let writes: Vec<_> = some.iter().map(|p| core.exec.io(volume.device(), disk_op(volume, whole, content, p))).collect();
        for write in writes {
            match write.await {
                Ok(_) if alone => volume.disk_flusher.wrote_for_client(),
                Ok(_) => volume.disk_flusher.wrote(),
                Err(_) => {
                    volume.disk_flusher.wrote();
                    result = Err(RequestError::Io);
                }
            }
        }
    }
    result
}

/// Writes to the disk that one request has under way at most: a discard may be about as many gaps between what is dirty.
const PARTS_AT_ONCE: usize = 256;

/// The ordered overwrite: the disk, its flush, the old record's invalidation, each durable before the next and all
/// before the acknowledgement. Reads get the old value until then.
async fn ordered<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    range: &Range<u64>,
    content: &Content<B>,
    version: u64,
) -> Result<(), RequestError> {
    volume.stats.borrow_mut().ordered_overwrites += 1;
    core.mark(Mark::OrderedOverwrite);
    core.mark_if(volume.destaging.get(), Mark::OrderedBesideDestage);
    // What is clean is on the disk, and may be no longer from here on, even if the write fails.
    withdraw(core, volume, &Volume::<B>::blocks(range)).await;
    let_go_of_clean(core, volume, range);
    let failures = volume.disk_flusher.failures();
    let write = core.exec.io(volume.device(), disk_op(volume, range, content, range)).await;
    volume.disk_flusher.wrote();
    core.mark_if(write.is_err(), Mark::OrderedWriteFails);
    write.map_err(|_| RequestError::Io)?;
    volume.disk_flusher.flush_since(failures).await.map_err(|_| RequestError::Io)?;
    // What is clean there its intent bit keeps from being found again.
    let items = may_come_back(volume, range, version)
        .iter()
        .flat_map(by_block)
        .map(|(block, first, sectors)| Item::Forget { block, first, sectors, version })
        .collect();
    let marked = volume.dirty_log.append_marks(core, volume, items).await;
    core.mark_if(marked.is_err(), Mark::OrderedWithoutMark);
    match &marked {
        Ok(_) => durable(core).await?,
        // With all members voted out there is nothing that could come back.
        Err(_) if core.pool.borrow().in_sync().next().is_none() && !core.pool.borrow().stalled => {}
        Err(_) => return Err(RequestError::Io),
    }
    forget(core, volume, range, version);
    volume.left_behind.outdated(range, version);
    drop(marked);
    Ok(())
}

/// The parts of a range, in whole blocks cut to it, of which a start might find something dirty that is older than `version`.
pub(crate) fn may_come_back<B: Buf>(volume: &Volume<B>, range: &Range<u64>, version: u64) -> Vec<Range<u64>> {
    let mut parts = older_dirty(volume, range, version);
    parts.extend(volume.left_behind.within(range));
    parts
}

/// Lets go of clean copies that a range touches.
fn let_go_of_clean<B: Buf>(core: &Core<B>, volume: &Volume<B>, range: &Range<u64>) {
    let mut map = volume.map.borrow_mut();
    let mut segments = core.segments.borrow_mut();
    for (block, first, sectors) in cached_of(&map, range) {
        map.drop_clean(&mut segments, block, |p| p.live & mask(first, sectors) != 0);
    }
    segments.settle();
}

/// Takes a range out of the map, as far as it is older than `version`.
pub(crate) fn forget<B: Buf>(core: &Core<B>, volume: &Volume<B>, range: &Range<u64>, version: u64) {
    let mut map = volume.map.borrow_mut();
    if !map.any(Volume::<B>::blocks(range)) {
        return;
    }
    let mut segments = core.segments.borrow_mut();
    for (block, first, sectors) in cached_of(&map, range) {
        map.forget(&mut segments, block, mask(first, sectors), version);
    }
    segments.settle();
}

/// The blocks of a range of which anything is cached, and what of each is in the range: its first sector, and how many.
fn cached_of(map: &Map, range: &Range<u64>) -> Vec<(u64, u8, u8)> {
    let mut cached: Vec<(u64, u8, u8)> = Vec::new();
    map.each_in(range.start / BLOCK_SECTORS..range.end.div_ceil(BLOCK_SECTORS), |block, _| {
        if cached.last().is_none_or(|last| last.0 != block) {
            let from = (block * BLOCK_SECTORS).max(range.start);
            let to = ((block + 1) * BLOCK_SECTORS).min(range.end);
            cached.push((block, (from % BLOCK_SECTORS) as u8, (to - from) as u8));
        }
    });
    cached
}

fn disk_op<B: Buf>(volume: &Volume<B>, whole: &Range<u64>, content: &Content<B>, part: &Range<u64>) -> DeviceOp<B> {
    let offset = volume.disk_offset(part.start);
    let len = (part.end - part.start) * 512;
    match content {
        Content::Data(data) => {
            let from = ((part.start - whole.start) * 512) as usize;
            DeviceOp::Write { offset, bufs: vec![data.slice(from..from + len as usize)], reach: Reach::Cache }
        }
        Content::Zeroes => DeviceOp::WriteZeroes { offset, len },
        Content::Discarded => DeviceOp::Discard { offset, len },
    }
}

/// In write-through what goes to the disk is admitted too, as a fill that any later write spoils; of a stream what has a block in the cache.
fn through_fill<B: Buf>(
    core: &Core<B>,
    volume: &Volume<B>,
    range: &Range<u64>,
    content: &Content<B>,
    is_stream: bool,
) -> Option<Rc<Fill<B>>> {
    let bytes = (range.end - range.start) * 512;
    if !matches!(content, Content::Data(_)) || bytes > core.settings.admit_bytes || !core.room_for_clean(volume) {
        return None;
    }
    let blocks = Volume::<B>::blocks(range);
    let is_cached = || {
        let mut is_there = false;
        volume.map.borrow().each_in(blocks.clone(), |_, _| is_there = true);
        is_there
    };
    if is_stream && !is_cached() {
        return core.passing(Mark::ThroughStreamPasses, None);
    }
    // Another write there is under way: which of the two the disk ends up with is not ours to guess.
    let others = volume.writing.borrow().iter().filter(|p| meet(&p.blocks, &blocks)).count();
    if others > 1 {
        core.mark(Mark::ThroughFillKeptOut);
        return None;
    }
    if !core.budget_bears(Wish::Clean, bytes) {
        return None;
    }
    Some(volume.fills.begin(blocks))
}
