//! The engine as its host sees it: requests, completions and time go in, effects come out.

use crate::core::{Core, Member, MemberReads, Pool, Volume, WitnessSlot};
use crate::election::Election;
use crate::exec::{Exec, Signal, Slot};
use crate::flush::Flusher;
use crate::intent::{self, Bit};
use crate::io::{
    BLOCK_SECTORS, Buf, Command, CommandError, CommandId, Device, DeviceResult, Effect, IoId, Request, RequestError, RequestId,
};
use crate::lookaside::Lookaside;
use crate::map::Map;
use crate::marks::{Mark, MarkSet};
use crate::patience::Patience;
use crate::policy::endurance::{Endurance, Wish};
use crate::segments::Segments;
use crate::settings::Settings;
use crate::stats::{Count, Fate, PoolStats, VolumeStats};
use crate::status::{EnduranceStatus, MemberStatus, Starting, Status, VolumeStatus};
use crate::watched::Watched;
use crate::write::{Content, write};
use crate::{checkpoint, destage, grow, joining, loading, preload, read, recovery, scrub, shares, silence, space, volumes};
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use core::task::Poll;
use headpond_format::{INTENT_PAGE_BYTES, IntentPage, MemberState, Superblock, VolumeEntry};

/// A pool with its volumes, being served.
///
/// One thread calls it: [`Engine::request`], [`Engine::command`], [`Engine::complete`] and [`Engine::advance`] put
/// things in, and after each [`Engine::poll`] is to be called until it returns `None`.
pub struct Engine<B: Buf> {
    core: Rc<Core<B>>,
    cancelled: Rc<RefCell<BTreeSet<u64>>>,
}

impl<B: Buf> Engine<B> {
    /// Starts a pool. The start itself is a command, `id`: its end comes as [`Effect::Done`], and no request is
    /// answered before. `backings` are the volumes whose disk is there; `now` is in nanoseconds.
    ///
    /// All devices have been claimed by then, by the descriptions that carry the I/O (R14).
    #[must_use]
    pub fn start(now: u64, settings: Settings, election: Election, backings: &[u16], id: CommandId) -> Self {
        let exec = Rc::new(Exec::new(now));
        let elected = election.superblock.clone();
        let s = election.superblock;
        let mut segments = Segments::default();
        let mut members = Vec::new();
        for (n, m) in s.members.iter().enumerate() {
            let state = if election.present.contains(&(n as u8)) { MemberState::InSync } else { MemberState::Out };
            if state == MemberState::InSync {
                segments.add_member(n as u8, m.layout.slots());
            } else {
                segments.add_member(n as u8, 0);
            }
            members.push(Member { id: m.id, layout: m.layout, state, joined: 0 });
        }
        let member_flushers = (0..members.len()).map(|n| Flusher::new(&exec, Device::Member(n as u8))).collect();
        let reading = vec![MemberReads::default(); members.len()];
        let segment_bytes = members.first().map_or(0, |m| m.layout.segment_bytes);
        let pool = Pool {
            id: s.pool,
            name: s.name,
            key: s.key,
            epoch: election.highest_epoch,
            agreed: s.agreed,
            sequence: s.sequence,
            copies: s.copies,
            unit: s.unit,
            witness: s.witness,
            witness_votes: election.witness_votes,
            witness_slot: WitnessSlot::Unknown,
            witness_lags: false,
            owner: s.owner,
            fence: s.fence,
            members,
            missing: election.missing,
            starting: true,
            checkpoint: s.checkpoint,
            failing: 0,
            changing: false,
            stalled: false,
            left: s.left,
            segment_bytes,
            last_join: 0,
            leaving: None,
            busy: false,
        };
        let core = Rc::new(Core {
            endurance: RefCell::new(Endurance::new(settings.drive_writes_milli)),
            settings,
            life: pool.sequence + 1,
            pool: Watched::new(pool),
            segments: RefCell::new(segments),
            volumes: Watched::default(),
            bounds_known: Cell::new(None),
            member_flushers: RefCell::new(member_flushers),
            version: Cell::new(0),
            generation: Cell::new(0),
            tickets: Cell::new(0),
            membership: Signal::new(&exec),
            superblock_busy: Cell::new(false),
            whole_slots: Cell::new(false),
            pages_promised: RefCell::default(),
            superblock_free: Signal::new(&exec),
            space: Signal::new(&exec),
            checkpoint_wanted: Cell::new(false),
            checkpoint_signal: Signal::new(&exec),
            checkpoints_done: Cell::new(0),
            checkpoint_tried: Cell::new(0),
            image_overflows: Cell::new(0),
            starting: Cell::new(None),
            log_lacks: RefCell::default(),
            is_loaded: Cell::new(false),
            loaded: Signal::new(&exec),
            loading: RefCell::default(),
            appended_since_checkpoint: Cell::new(0),
            flights: RefCell::default(),
            checkpoint_begins: Cell::new(false),
            marks_held: Cell::new(0),
            scrub: RefCell::default(),
            pinned: Cell::new(0),
            pins_signal: Signal::new(&exec),
            stopping: Cell::new(false),
            quiet: Cell::new(false),
            awaiting_room: Cell::new(0),
            ahead: RefCell::default(),
            demand: Cell::default(),
            ghost: RefCell::default(),
            ahead_landed: Signal::new(&exec),
            reading: RefCell::new(reading),
            reads_ended: Signal::new(&exec),
            repairing: RefCell::default(),
            stats: RefCell::new(PoolStats::default()),
            exec,
        });
        let (core2, backings) = (core.clone(), backings.to_vec());
        core.exec.spawn(async move {
            let result = start(&core2, &elected, &backings, &election.behind).await;
            core2.exec.effect(Effect::Done { id, result });
        });
        Self { core, cancelled: Rc::default() }
    }

    /// A client's request. The reply comes as [`Effect::Reply`], exactly once.
    pub fn request(&self, volume: u16, id: RequestId, request: Request<B>) {
        let core = self.core.clone();
        match self.core.volume(volume).filter(|v| v.serving.get() && !self.core.stopping.get()) {
            Some(v) => {
                v.requests.set(v.requests.get() + 1);
                self.core.exec.spawn_small(async move {
                    let result = serve(&core, &v, request).await;
                    if result.is_err() {
                        v.stats.borrow_mut().errors += 1;
                    }
                    v.requests.set(v.requests.get() - 1);
                    if v.requests.get() == 0 {
                        v.requests_changed.notify();
                    }
                    let (fate, result) = match result {
                        Ok((data, fate)) => (fate, Ok(data)),
                        Err(error) => (None, Err(error)),
                    };
                    core.exec.effect(Effect::Reply { volume, id, fate, result });
                });
            }
            None => core.exec.effect(Effect::Reply { volume, id, fate: None, result: Err(RequestError::NotServed) }),
        }
    }

    /// Something to be done to the pool or a volume. Its end comes as [`Effect::Done`].
    pub fn command(&self, id: CommandId, command: Command) {
        if let Command::Cancel(other) = command {
            self.cancelled.borrow_mut().insert(other.0);
            for v in self.core.all_volumes() {
                v.work.notify();
                v.requests_changed.notify();
            }
            self.core.exec.effect(Effect::Done { id, result: Ok(()) });
            return;
        }
        let (core, cancelled) = (self.core.clone(), self.cancelled.clone());
        self.core.exec.spawn(async move {
            let stop = Cancel { id, cancelled };
            let result = obey(&core, command, &stop).await;
            core.exec.effect(Effect::Done { id, result });
        });
    }

    /// Tasks that are alive: requests, commands, housekeeping of the pool and of each volume.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.core.exec.tasks()
    }

    /// The end of a device operation.
    pub fn complete(&self, io: IoId, result: DeviceResult<B>) {
        self.core.exec.complete(io, result);
    }

    /// Time has come to be `now`, in nanoseconds; it never goes back.
    pub fn advance(&self, now: u64) {
        self.core.exec.advance(now);
    }

    /// When [`Engine::advance`] is wanted next.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        self.core.exec.next_timer()
    }

    /// What the engine wants done next.
    pub fn poll(&self) -> Option<Effect<B>> {
        self.core.exec.run();
        self.core.exec.take_effect()
    }

    /// How far the start is, while it reads the checkpoint and the log; most of its time goes by in that.
    #[must_use]
    pub fn starting(&self) -> Option<Starting> {
        self.core.starting.get()
    }

    /// How everything stands.
    #[must_use]
    pub fn status(&self) -> Status {
        status(&self.core)
    }

    /// Calls `f` with each piece of a volume's map, in order of address: for checkers.
    pub fn each_piece(&self, volume: u16, mut f: impl FnMut(u64, &crate::map::Piece)) {
        if let Some(v) = self.core.volume(volume) {
            v.map.borrow().each_in(0..u64::MAX >> 8, |b, p| f(b, p));
        }
    }

    /// Where a sector of a volume is cached: member and byte on it, for each copy. For checkers, who then look on the media.
    #[must_use]
    pub fn locate(&self, volume: u16, sector: u64) -> Option<Vec<(u8, u64)>> {
        let v = self.core.volume(volume)?;
        let grid = sector + v.shift;
        let mut found = None;
        v.map.borrow().each(grid / BLOCK_SECTORS, |p| {
            if p.live >> (grid % BLOCK_SECTORS) & 1 == 1 {
                found = Some(*p);
            }
        });
        let p = found?;
        let at = u64::from(p.offset) + grid % BLOCK_SECTORS - u64::from(p.first());
        let places = self.core.segments.borrow().get(p.segment)?.copies;
        Some(
            places
                .iter()
                .filter(|c| c.member != headpond_format::NO_MEMBER)
                .map(|c| (c.member, self.core.slot_offset(*c) + at * 512))
                .collect(),
        )
    }

    /// What other threads may read of a volume by themselves, in so many lines where it is not there yet; `None` while the volume is not
    /// served. It holds for as long as the engine lives, and finds nothing later.
    #[must_use]
    pub fn lookaside(&self, volume: u16, lines: usize) -> Option<Arc<Lookaside>> {
        let v = self.core.volume(volume).filter(|v| v.serving.get())?;
        let (key, members) = (self.core.pool.borrow().key, self.core.readable_members());
        let table = v.map.borrow_mut().lookaside_or(|| Lookaside::new(key, v.number, v.shift, members, lines)).clone();
        Some(table)
    }

    /// Runs of a volume's sectors that are dirty and of which no copy is left: reading them fails. Looks at `most` pieces, or
    /// some more, from block `from` on; the second value says where to go on, if there is more. The runs of a block come in
    /// no order.
    #[must_use]
    pub fn lost(&self, volume: u16, from: u64, most: usize) -> (Vec<Range<u64>>, Option<u64>) {
        let Some(v) = self.core.volume(volume) else { return (Vec::new(), None) };
        let segments = self.core.segments.borrow();
        let mut lost = Vec::new();
        let next = v.map.borrow().walk(from, most, |block, p| {
            // Of zeroes nothing has to be read.
            if p.dirty() && !p.zeroes() && segments.get(p.segment).is_none_or(|s| s.places().next().is_none()) {
                let sector = |n: u64| (block * BLOCK_SECTORS + n).saturating_sub(v.shift);
                lost.extend(read::runs(p.live).map(|run| sector(run.start)..sector(run.end)));
            }
        });
        (lost, next)
    }

    /// Whether data read from a piece's place is the piece's, by its checksum. For checkers.
    #[must_use]
    pub fn verifies(&self, volume: u16, block: u64, piece: &crate::map::Piece, data: &B) -> bool {
        self.core.volume(volume).is_some_and(|v| crate::fetch::verify(&self.core, &v, block, piece, data))
    }

    /// The marks that this life has reached: for the simulator, whose runs must reach them all.
    #[must_use]
    pub fn marks(&self) -> MarkSet {
        self.core.exec.marks.get()
    }

    /// What is pinned on a volume, in its sectors, in order.
    #[must_use]
    pub fn pinned(&self, volume: u16) -> Vec<Range<u64>> {
        let Some(v) = self.core.volume(volume) else { return Vec::new() };
        let sectors = |b: Range<u64>| {
            let start = (b.start * BLOCK_SECTORS).saturating_sub(v.shift);
            start..(b.end * BLOCK_SECTORS - v.shift).min(v.open.get())
        };
        v.pins.borrow().iter().map(sectors).collect()
    }

    /// The segment table: for checkers.
    pub fn each_segment(&self, mut f: impl FnMut(u32, &crate::segments::Segment)) {
        self.core.segments.borrow().iter().for_each(|(n, s)| f(n, s));
    }
}

impl<B: Buf> Drop for Engine<B> {
    fn drop(&mut self) {
        // Another one may serve the volumes soon, and write where this one has read. After a panic things may be borrowed still.
        let volumes = self.core.volumes.try_borrow();
        for map in volumes.iter().flat_map(|volumes| volumes.values()).filter_map(|v| v.map.try_borrow().ok()) {
            if let Some(table) = map.lookaside() {
                table.open(false);
            }
        }
        // Tasks hold the core, which holds the tasks.
        self.core.exec.clear();
    }
}

/// Most sectors that are read at once: no device is asked for 4 GiB.
const MOST_READ: u32 = u32::MAX / 512;

async fn serve<B: Buf>(
    core: &Rc<Core<B>>,
    v: &Rc<Volume<B>>,
    request: Request<B>,
) -> Result<(Vec<B>, Option<Fate>), RequestError> {
    // In the volume, and known.
    let checked = async |sector: u64, sectors: u64| {
        let end = sector.checked_add(sectors).filter(|e| *e <= v.open.get() && sectors > 0).ok_or(RequestError::OutOfRange)?;
        let range = sector + v.shift..end + v.shift;
        if !core.is_loaded.get() {
            loading::known(core, v.number, &range).await?;
        }
        Ok(range)
    };
    match request {
        Request::Read { sectors, .. } if sectors > MOST_READ => Err(RequestError::OutOfRange),
        Request::Read { sector, sectors, into } => {
            let (data, fate) = read::read(core, v, checked(sector, u64::from(sectors)).await?, into.as_ref()).await?;
            Ok((data, Some(fate)))
        }
        Request::Write { sector, data, fua } => {
            let range = checked(sector, data.len() as u64 / 512).await?;
            write(core, v, range, Content::Data(data), fua).await.map(|fate| (Vec::new(), Some(fate)))
        }
        Request::Flush => crate::write::flush(core, v).await.map(|()| (Vec::new(), None)),
        Request::OwnFlush => crate::write::own_flush(core, v).await.map(|()| (Vec::new(), None)),
        Request::Discard { sector, sectors } => {
            let range = checked(sector, sectors).await?;
            // Rounded inwards: what is only touched is kept (R17).
            let inner = range.start.next_multiple_of(BLOCK_SECTORS)..range.end / BLOCK_SECTORS * BLOCK_SECTORS;
            let mut fate = None;
            for part in parts_of(inner) {
                v.stats.borrow_mut().zeroed.add((part.end - part.start) * 512);
                fate = Some(write(core, v, part, Content::Discarded, false).await?);
            }
            Ok((Vec::new(), fate))
        }
        Request::WriteZeroes { sector, sectors, fua } => {
            let range = checked(sector, sectors).await?;
            let mut fate = None;
            for part in parts_of(range) {
                v.stats.borrow_mut().zeroed.add((part.end - part.start) * 512);
                fate = Some(write(core, v, part, Content::Zeroes, fua).await?);
            }
            Ok((Vec::new(), fate))
        }
    }
}

/// Sectors of one part of a request that brings no data and may be about a whole volume: what is done for one is done without a
/// pause, and holds up everybody else.
const PART_SECTORS: u64 = (1 << 30) / 512;

/// A range in parts that end at borders of [`PART_SECTORS`], in order.
fn parts_of(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    core::iter::from_fn(move || {
        let part = at..((at / PART_SECTORS + 1) * PART_SECTORS).min(range.end);
        at = part.end;
        (part.start < part.end).then_some(part)
    })
}

/// Brings a pool up: see [`Engine::start`].
async fn start<B: Buf>(core: &Rc<Core<B>>, elected: &Superblock, backings: &[u16], behind: &[u8]) -> Result<(), CommandError> {
    // A cache device may fall silent while it is started from, too.
    core.exec.spawn(silence::watch(core.clone()));
    core.exec.asks_no_silent_ones(true);
    let patience = Patience::default();
    for e in &elected.volumes {
        let pages = load_intent(core, e, &patience).await;
        let volume = volumes::build(core, e.clone(), pages);
        core.volumes.borrow_mut().insert(volume.number, volume);
    }
    // Nothing is written by a start to which nobody could agree.
    let present: Vec<u8> = core.pool.borrow().in_sync().collect();
    if !core.would_have_votes(&present).await {
        return Err(CommandError::Start(recovery::StartError::NoMajority));
    }
    none_too_many_missing(core)?;
    let mut anew = match recovery::recover(core, &patience).await {
        Ok(anew) => anew,
        // Where all have failed meanwhile, that nothing can be read says nothing of what is there.
        Err(_) if core.pool.borrow().stalled => return Err(CommandError::Start(recovery::StartError::NoMajority)),
        Err(why) => return Err(CommandError::Start(why)),
    };
    // The next superblock goes to the place of the one before the elected one: the only one that a member has which is behind.
    for m in core.catch_up(elected, behind).await {
        core.fail_member(m).await;
    }
    loop {
        none_too_many_missing(core)?;
        refuse_what_may_lack(core);
        crate::membership::agree_at_start(core).await;
        // Nothing is acknowledged before all have it written down that this epoch was agreed on: one that another start raised in vain, on a
        // device that is not here, must not look newer. And the newest superblock may be on one member alone: before the
        // checkpoint that the others name is written over, all have it.
        if !core.write_superblock().await {
            break;
        }
        if core.pool.borrow().missing.is_empty() {
            // Not sooner: of a start that comes to nothing nothing is given up, and who may lack it is in the superblocks by now.
            recovery::write_anew(core, core::mem::take(&mut anew)).await;
        }
        if core.pool.borrow().missing.is_empty() {
            break;
        }
    }
    core.pool.borrow_mut().starting = false;
    if core.pool.borrow().stalled || core.pool.borrow().in_sync().next().is_none() {
        return Err(CommandError::Start(recovery::StartError::NoMajority));
    }
    core.exec.asks_no_silent_ones(false);
    refuse_what_may_lack(core);
    let mut opened = Vec::new();
    for v in core.all_volumes() {
        core.mark_if(v.uncertain.get(), Mark::UncertainVolume);
        v.refused.set(v.uncertain.get());
        v.there.set(!v.has_disk() || backings.contains(&v.number));
        // What some members lack of the intent map they get now.
        intent::write_pages(core, &v);
        let is_open = Slot::new(&core.exec);
        let (core2, done) = (core.clone(), is_open.clone());
        core.exec.spawn(async move {
            volumes::open(&core2, v).await;
            done.set(());
        });
        opened.push(is_open);
    }
    // A disk that answers nothing keeps its own volume waiting, and no other.
    let until = core.now() + core.settings.disk_patience_ns;
    for is_open in opened {
        core.mark_if(is_open.get_until(until).await.is_none(), Mark::DiskSilentAtStart);
    }
    if core.is_loaded.get() {
        keep_house(core);
        return Ok(());
    }
    let core2 = core.clone();
    core.exec.spawn(async move {
        if loading::rest(&core2).await.is_ok() {
            keep_house(&core2);
        }
    });
    Ok(())
}

/// Once cache devices that are missing, or failed in this start, are taken for left they cannot come back. That they are only late is for a person
/// to say.
///
/// # Errors
/// They may have all copies of something dirty.
fn none_too_many_missing<B: Buf>(core: &Core<B>) -> Result<(), CommandError> {
    let pool = core.pool.borrow();
    let left = usize::from(pool.left) + pool.missing.len();
    if pool.missing.is_empty()
        || left < usize::from(pool.copies)
        || core.settings.without_missing
        || !core.all_volumes().iter().any(|v| v.intent.any(Bit::Dirty))
    {
        return Ok(());
    }
    core.mark(Mark::CopiesMissing);
    Err(CommandError::Start(recovery::StartError::CopiesMissing { missing: pool.missing.clone() }))
}

/// Notes which volumes may lack something dirty: those of which a part of the log could be read nowhere, and all that have anything dirty where
/// as many members are gone as there are copies, before what the first left behind was mended: records may be missing that nobody left has heard
/// of. Each superblock says it from now on.
fn refuse_what_may_lack<B: Buf>(core: &Core<B>) {
    let (left, copies) = (usize::from(core.pool.borrow().left) + core.pool.borrow().missing.len(), core.pool.borrow().copies);
    let lacks = core.log_lacks.borrow();
    let all = lacks.of_all || left >= usize::from(copies);
    for v in core.all_volumes() {
        if (all || lacks.of.contains(&v.number)) && v.intent.any(Bit::Dirty) {
            v.uncertain.set(true);
        }
    }
}

/// From now on space is won, checkpoints are taken, and what is pinned is kept: all that is cached is known.
fn keep_house<B: Buf>(core: &Rc<Core<B>>) {
    core.exec.spawn(space::run(core.clone()));
    core.exec.spawn(checkpoint::run(core.clone()));
    core.exec.spawn(preload::keep(core.clone()));
    core.want_checkpoint();
    core.space_is_short();
}

/// The newest copy of each intent page of a volume, and whether all members have it. Where none is left, or a newer one
/// may have been in a slot that is damaged on every member, everything counts as marked.
async fn load_intent<B: Buf>(core: &Rc<Core<B>>, e: &VolumeEntry, patience: &Patience) -> Vec<(IntentPage, bool)> {
    let members: Vec<u8> = core.pool.borrow().in_sync().collect();
    let key = core.pool.borrow().key;
    let mut pages = Vec::new();
    for page in e.intent_first..e.intent_first + e.intent_pages {
        let slots_of = |m: &u8| {
            let layout = core.pool.borrow().members[usize::from(*m)].layout;
            [0, 1].map(|slot| (*m, layout.intent(page, slot), INTENT_PAGE_BYTES as u32))
        };
        let slots: Vec<_> = members.iter().flat_map(slots_of).collect();
        patience.anew();
        let read = patience.read(core, &slots).await;
        let mut best: Option<IntentPage> = None;
        let (mut holders, mut whole, mut all_blank) = (0, false, true);
        for slots in read.chunks(2) {
            let (mut told, mut blank) = (0, 0);
            for bytes in slots.iter().flatten() {
                let bytes = bytes.to_bytes();
                // Nothing was ever written there: the member joined after the slot was last due.
                blank += usize::from(bytes.iter().all(|b| *b == 0));
                let Some(p) = IntentPage::decode(key, &bytes, page).ok().filter(|p| p.volume == e.number) else { continue };
                told += 1;
                match &mut best {
                    Some(b) if b.sequence > p.sequence => {}
                    Some(b) if *b == p => holders += 1,
                    // A life that could not read the one gave its number to the other: what either says counts.
                    Some(b) if b.sequence == p.sequence => {
                        core.mark(Mark::IntentPagesDiffer);
                        b.add(&p);
                        holders = 0;
                    }
                    _ => (best, holders) = (Some(p), 1),
                }
            }
            // One that has joined, and was given no page yet, says nothing.
            whole |= told > 0 && told + blank == 2;
            all_blank &= blank == 2;
        }
        // Of a pool that all had left before it joined there is nothing to say.
        whole |= all_blank && core.pool.borrow().missing.is_empty();
        // A page that counts is on every member: one with both its slots has the newest.
        core.mark_if(best.is_some() && !whole, Mark::IntentMayBeNewer);
        core.mark_if(best.is_none(), Mark::IntentNowhere);
        let on_all = whole && holders >= members.len();
        core.mark_if(best.is_some() && whole && !on_all, Mark::IntentOnSomeMembers);
        let mut newest = best.unwrap_or_else(|| IntentPage::empty(page, e.number));
        if !whole {
            newest.intent.fill(0xff);
            newest.dirty.fill(0xff);
            // What could not be read may be readable at the next start, and is older. What could stays, until the other slot is written.
            newest.sequence = newest.sequence.max(intent::number(core) + newest.sequence % 2);
        }
        pages.push((newest, on_all));
    }
    pages
}

/// How soon a command that waits hears that it is cancelled, in nanoseconds.
pub(crate) const CANCELLED_WITHIN_NS: u64 = 20_000_000;

/// Whether a command was cancelled.
pub(crate) struct Cancel {
    id: CommandId,
    cancelled: Rc<RefCell<BTreeSet<u64>>>,
}

impl Cancel {
    pub(crate) fn wanted(&self) -> bool {
        self.cancelled.borrow_mut().remove(&self.id.0)
    }

    /// What `waits` ends with, or that the command was cancelled before: then it is given up, and has to bear that wherever it waits.
    pub(crate) async fn or<B: Buf, T>(&self, core: &Core<B>, waits: impl Future<Output = T>) -> Result<T, CommandError> {
        let mut waits = core::pin::pin!(waits);
        loop {
            let mut sleep = core::pin::pin!(core.exec.sleep(CANCELLED_WITHIN_NS));
            let ended = core::future::poll_fn(|cx| match waits.as_mut().poll(cx) {
                Poll::Ready(value) => Poll::Ready(Some(value)),
                Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
            });
            if let Some(value) = ended.await {
                return Ok(value);
            }
            if self.wanted() {
                core.mark(Mark::CancelledInAWait);
                return Err(CommandError::Cancelled);
            }
        }
    }
}

/// Whether a command is about all that is cached.
fn needs_the_map(command: &Command) -> bool {
    match command {
        Command::Attach(_)
        | Command::Detach { .. }
        | Command::Abandon { .. }
        | Command::Grow { .. }
        | Command::SetMode { .. }
        | Command::Destage { .. }
        | Command::AddMember { .. }
        | Command::RemoveMember { .. }
        | Command::Scrub { .. }
        | Command::Preload { .. }
        | Command::Checkpoint => true,
        Command::BackingCame { .. }
        | Command::Pin { .. }
        | Command::Unpin { .. }
        | Command::Share { .. }
        | Command::Quiesce
        | Command::Stop
        | Command::Cancel(_) => false,
    }
}

async fn obey<B: Buf>(core: &Rc<Core<B>>, command: Command, cancel: &Cancel) -> Result<(), CommandError> {
    let find = |n: u16| core.volume(n).ok_or(CommandError::NoSuchVolume);
    let with_disk = |n: u16| find(n).and_then(|v| if v.has_disk() { Ok(v) } else { Err(CommandError::NoDisk) });
    if needs_the_map(&command) {
        loading::wait_for_command(core, cancel).await?;
    }
    match command {
        Command::Attach(new) => volumes::attach(core, new).await,
        Command::BackingCame { volume } => volumes::backing_came(core, find(volume)?).await,
        Command::Detach { volume, give_up_lost } => volumes::detach(core, &find(volume)?, give_up_lost, cancel).await,
        Command::Abandon { volume } => volumes::abandon(core, &find(volume)?).await,
        Command::Grow { volume, sectors } => grow::grow(core, &find(volume)?, sectors).await,
        Command::SetMode { volume, mode } => volumes::set_mode(core, &find(volume)?, mode, cancel).await,
        Command::Destage { volume } => {
            let v = with_disk(volume)?;
            volumes::clean(core, &v, cancel).await?;
            if !v.there.get() {
                return Err(CommandError::NotServed);
            }
            cancel.or(core, v.disk_flusher.flush()).await?.map_err(|_| CommandError::Disk)?;
            // A client is to hear of it, too.
            if v.disk_flusher.is_lost() { Err(CommandError::Unkept) } else { Ok(()) }
        }
        Command::AddMember { member, id, bytes } => joining::add(core, member, id, bytes, cancel).await,
        Command::RemoveMember { member } => joining::remove(core, member, cancel).await,
        Command::Scrub { bytes_per_second } => scrub::run(core, bytes_per_second, cancel).await,
        Command::Preload { volume, ranges } => preload::preload(core, &with_disk(volume)?, &ranges, cancel).await,
        Command::Pin { volume, ranges } => preload::pin(core, &with_disk(volume)?, &ranges),
        Command::Unpin { volume, ranges } => preload::unpin(core, &with_disk(volume)?, &ranges),
        Command::Share { volume, share } => with_disk(volume).and_then(|v| shares::set(core, &v, share)),
        Command::Quiesce => {
            quiesce(core).await;
            Ok(())
        }
        Command::Checkpoint => checkpoint_now(core).await,
        Command::Stop => stop(core).await,
        Command::Cancel(_) => Ok(()),
    }
}

/// Takes a checkpoint that begins after the call.
pub(crate) async fn checkpoint_now<B: Buf>(core: &Rc<Core<B>>) -> Result<(), CommandError> {
    // One that runs now began before: wait for it, then for another.
    for _ in 0..2 {
        let done = core.checkpoints_done.get();
        core.want_checkpoint();
        loop {
            let wait = core.checkpoint_signal.wait();
            if core.checkpoints_done.get() > done {
                break;
            }
            if core.pool.borrow().stalled || core.pool.borrow().in_sync().next().is_none() {
                return Err(CommandError::NoMembers);
            }
            core.want_checkpoint();
            wait.await;
        }
    }
    Ok(())
}

/// Lets the sweeps end with the runs that are being written.
async fn quiesce<B: Buf>(core: &Rc<Core<B>>) {
    core.quiet.set(true);
    while core.all_volumes().iter().any(|v| v.sweeping.get() > 0) {
        core.exec.sleep(1_000_000).await;
    }
}

/// Ends cleanly: everything acknowledged is durable, but for what a flush has failed under, of which the next life's FLUSH tells; and the
/// whole cache is in the last checkpoint.
async fn stop<B: Buf>(core: &Rc<Core<B>>) -> Result<(), CommandError> {
    core.stopping.set(true);
    let mut all_kept = true;
    // One volume's request may wait for room that another's destage wins: what follows would be too early for either.
    for v in core.all_volumes() {
        all_kept &= ends(core, &v, |v| v.requests.get() > 0).await;
    }
    for v in core.all_volumes() {
        let is_busy = |v: &Volume<B>| {
            let queued = v.dirty_log.queued() + v.clean_log.queued();
            v.destaging.get() || !v.fills.is_empty() || queued > 0 || !v.disk.idle()
        };
        all_kept &= ends(core, &v, is_busy).await;
        v.dirty_log.seal(core);
        v.clean_log.seal(core);
        // A disk that is not there, or another one, has nothing of ours: that it does not flush is not to be taken for a failure. Nor has one
        // that has answered nothing since the start. What is being detached has.
        if v.has_disk() && v.there.get() && (v.serving.get() || v.leaving.get()) && !v.refused.get() {
            let is_kept = Rc::new(Cell::new(None));
            let (flushed, flush) = (is_kept.clone(), v.disk_flusher.request());
            core.exec.spawn(async move { flushed.set(Some(flush.get().await.is_ok())) });
            let is_answered = ends(core, &v, |_| is_kept.get().is_none()).await;
            all_kept &= is_answered && is_kept.get() == Some(true);
        }
    }
    // What one disk does not take is no reason to leave undone what the others need, and what the next life is to hear of it.
    let ended = close(core).await;
    if !all_kept {
        core.mark(Mark::StopsUnkept);
        core.write_superblock().await;
    }
    ended.and(if all_kept { Ok(()) } else { Err(CommandError::Disk) })
}

/// What is in memory is on the cache devices after it, as far as the next start needs it.
async fn close<B: Buf>(core: &Rc<Core<B>>) -> Result<(), CommandError> {
    if core.pool.borrow().stalled {
        return Err(CommandError::NoMembers);
    }
    if core.pool.borrow().in_sync().next().is_none() {
        return Ok(());
    }
    if !core.is_loaded.get() {
        // No checkpoint is complete before the last one is read. The log has all that came since.
        core.mark(Mark::StoppedWhileLoading);
        return crate::write::durable(core).await.map_err(|_| CommandError::NoMembers);
    }
    checkpoint_now(core).await?;
    for v in core.all_volumes() {
        while !v.intent.settled() && !core.pool.borrow().stalled && core.pool.borrow().in_sync().next().is_some() {
            core.exec.sleep(1_000_000).await;
        }
    }
    Ok(())
}

/// Waits until a volume is no longer busy, with what it is busy with made to end soon. Whether it is: a disk that answers nothing is waited for no longer
/// than others are kept waiting by it at a start.
async fn ends<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, is_busy: impl Fn(&Volume<B>) -> bool) -> bool {
    destage::hurry(volume);
    while is_busy(volume) {
        if core.exec.is_disk_silent(volume.number, core.settings.disk_patience_ns) {
            return core.passing(Mark::DiskSilentAtStop, false);
        }
        volume.work.notify();
        volume.clean_log.hurry(core, volume);
        core.exec.sleep(1_000_000).await;
    }
    true
}

fn status<B: Buf>(core: &Core<B>) -> Status {
    let pool = core.pool.borrow();
    let (segments, reading) = (core.segments.borrow(), core.reading.borrow());
    let (mut endurance, written) = (core.endurance.borrow_mut(), core.exec.written.borrow());
    endurance.settle(core.now(), pool.in_sync_sizes(), &written);
    Status {
        pool: pool.name.clone(),
        id: pool.id,
        epoch: pool.epoch,
        copies: pool.copies,
        unit: pool.unit,
        degraded: pool.degraded(),
        stalled: pool.stalled,
        witness_lags: pool.witness_lags,
        segment_bytes: pool.segment_bytes,
        segments: segments.total(),
        segments_free: segments.free_total(),
        dirty_percent: core.dirty_percent_of(&segments),
        lacking_copies: segments.lacking(pool.copies_now(), |m| pool.is_in_sync(m), !core.is_loaded.get()),
        loading: core.loading(),
        set_aside: core.bounds().set_aside,
        memory_is_short: core.memory_is_short(),
        set_aside_taken: segments.taken_set_aside(),
        scrub: core.scrub.borrow().clone(),
        endurance: EnduranceStatus {
            drive_writes_milli: endurance.milli(),
            holds_back_reads: endurance.holds_back(Wish::Clean),
            holds_back_writes: endurance.holds_back(Wish::Write),
        },
        members: pool
            .members
            .iter()
            .enumerate()
            .map(|(n, m)| MemberStatus {
                number: n as u8,
                id: m.id,
                in_sync: m.state == MemberState::InSync,
                bytes: m.layout.size,
                segments: if m.state == MemberState::InSync { m.layout.slots() } else { 0 },
                segments_free: segments.free_on(n as u8),
                dirty: segments.dirty_on(n as u8),
                damaged: reading.get(n).map_or(0, |reads| reads.damaged),
                leaving: pool.leaving == Some(n as u8),
                written: written.total(n as u8),
                written_lately: written.of_a_day(n as u8, core.now()),
                budget_per_day: endurance.per_day(m.layout.size),
                budget_left: endurance.left(n as u8),
            })
            .collect(),
        volumes: core
            .all_volumes()
            .iter()
            .map(|v| {
                let (map, stands) = (v.map.borrow(), core.stands(v));
                VolumeStatus {
                    number: v.number,
                    id: v.id,
                    name: v.name.clone(),
                    backing: v.backing.clone(),
                    sectors: v.open.get(),
                    phase: v.phase,
                    mode: v.mode(),
                    serving: v.serving.get(),
                    refused: v.refused.get(),
                    cached_blocks: map.blocks(),
                    dirty_blocks: map.dirty_blocks(),
                    losses: v.losses.get(),
                    fragments: map.extra_pieces(),
                    map_bytes: map.memory(),
                    destaging: v.destaging.get(),
                    destage_failures: v.destage_failures.get(),
                    requests: v.requests.get(),
                    pinned_blocks: v.pins.borrow().blocks(),
                    share: v.share.get(),
                    segments: stands.held,
                    segments_least: stands.least,
                    segments_most: stands.most,
                    preload: v.preload.get(),
                    stats: stats_of(v, &map),
                }
            })
            .collect(),
        stats: core.stats.borrow().clone(),
    }
}

/// What became of a volume's requests, with those that others than the engine have served.
fn stats_of<B: Buf>(v: &Volume<B>, map: &Map) -> VolumeStats {
    let mut stats = v.stats.borrow().clone();
    if let Some((requests, bytes)) = map.lookaside().map(Lookaside::hits) {
        stats.hit_beside = Count { requests, bytes };
        stats.hit.requests += requests;
        stats.hit.bytes += bytes;
    }
    stats
}

/// The volumes' numbers by name, of a status.
impl Status {
    /// The volume with this name.
    #[must_use]
    pub fn volume(&self, name: &str) -> Option<&VolumeStatus> {
        self.volumes.iter().find(|v| v.name == name)
    }
}
