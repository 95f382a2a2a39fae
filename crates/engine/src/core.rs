//! What all parts of the engine share: the pool's state, the volumes, the counters.

use crate::ahead::Kept;
use crate::bounds::{Bounds, Known};
use crate::destage::{Chunk, Stuck};
use crate::disk_use::DiskUse;
use crate::durability::Durability;
use crate::exec::{Exec, Signal};
use crate::fills::Fills;
use crate::flusher::Flusher;
use crate::intent::{Intent, Span};
use crate::io::{BLOCK_SECTORS, Buf, Device};
use crate::left_behind::AllLeftBehind;
use crate::loading::Loading;
use crate::log::Log;
use crate::lookaside::Lookaside;
use crate::map::Map;
use crate::marks::Mark;
use crate::policy::ahead::Readers;
use crate::policy::around::Neighbourhoods;
use crate::policy::bands;
use crate::policy::credit::Credit;
use crate::policy::demand::Demand;
use crate::policy::destage::{Commits, Onset};
use crate::policy::endurance::{Endurance, Wish};
use crate::policy::gain::Gain;
use crate::policy::gather;
use crate::policy::ghost::Ghost;
use crate::policy::pace::{Direct, Reached, Room, Turns};
use crate::policy::pins::Pins;
use crate::policy::route::Route;
use crate::policy::shares::Share;
use crate::policy::streams::Streams;
use crate::policy::synchronous::Synchronous;
use crate::policy::window::Window;
use crate::preload::Preload;
use crate::ranges::{RangeLocks, meet, take_out};
use crate::scrub::Scrub;
use crate::segments::Segments;
use crate::settings::Settings;
use crate::stats::{PoolStats, VolumeStats};
use crate::status::Starting;
use crate::watched::Watched;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use headpond_format::{CheckpointPointer, Doubts, Layout, MemberState, Mode};

/// A cache device as the pool knows it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub id: [u8; 16],
    pub layout: Layout,
    pub state: MemberState,
    /// The epoch in which it joined, if that was in this life.
    pub joined: u64,
}

/// Of which volumes something in the log could be read nowhere.
#[derive(Default)]
pub(crate) struct LogLacks {
    pub of: BTreeSet<u16>,
    /// Nobody knows whose it was.
    pub of_all: bool,
}

/// Reads of a member's segments.
#[derive(Clone, Default)]
pub(crate) struct MemberReads {
    /// Under way now.
    pub in_flight: u32,
    /// Of these, housekeeping's.
    pub aside: u32,
    /// How many of these there may be.
    pub credit: Credit,
    /// Copies that were found damaged on it, or that it could not read, in this life; each as often as it was found.
    pub damaged: u64,
}

/// What is known of the witness's slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WitnessSlot {
    /// Nothing yet.
    Unknown,
    /// This one has its newest record.
    Newest(u64),
    /// A write was given up, and may land yet, on whatever is written there.
    InDoubt,
}

/// What the superblock says, in memory, and how membership stands.
pub(crate) struct Pool {
    pub id: [u8; 16],
    pub name: String,
    pub key: u64,
    pub epoch: u64,
    /// The newest epoch that is agreed on: no later start can miss it.
    pub agreed: u64,
    pub sequence: u64,
    pub copies: u8,
    pub unit: u32,
    pub witness: bool,
    /// The witness was heard at the start, or told since: epochs have its vote. Else it is told of the next one, and has none.
    pub witness_votes: bool,
    /// Where the witness may be written.
    pub witness_slot: WitnessSlot,
    /// The witness could not be told of an epoch, and somebody tries again.
    pub witness_lags: bool,
    pub owner: [u8; 16],
    pub fence: u64,
    pub members: Vec<Member>,
    /// Members of the elected epoch that are missing at a start, or fail in it, until one is agreed on in which they have left: they have votes.
    pub missing: Vec<u8>,
    /// No epoch is agreed on yet since the start.
    pub starting: bool,
    pub checkpoint: CheckpointPointer,
    /// Members that failed and are not out yet, as bits.
    pub failing: u64,
    /// A membership change is under way: nothing may be acknowledged that a copy was made for.
    pub changing: bool,
    /// No majority for an epoch without the member that failed: nothing that needs the cache can be acknowledged.
    pub stalled: bool,
    /// Members that left since all dirty data last had its copies: see the superblock.
    pub left: u8,
    pub segment_bytes: u64,
    /// The newest epoch in which a member joined.
    pub last_join: u64,
    /// The member that is being removed: nothing new is put on it.
    pub leaving: Option<u8>,
    /// A member is being added or removed.
    pub busy: bool,
}

impl Pool {
    pub fn in_sync(&self) -> impl Iterator<Item = u8> + '_ {
        self.members.iter().enumerate().filter(|(_, m)| m.state == MemberState::InSync).map(|(n, _)| n as u8)
    }
    /// The same with their sizes in bytes.
    pub fn in_sync_sizes(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.in_sync().map(|m| (m, self.members[usize::from(m)].layout.size))
    }
    /// Whose votes count for the next epoch.
    pub fn voters(&self) -> Vec<u8> {
        self.in_sync().chain(self.missing.iter().copied()).collect()
    }
    pub fn is_in_sync(&self, member: u8) -> bool {
        self.members.get(usize::from(member)).is_some_and(|m| m.state == MemberState::InSync)
    }
    /// Whether a cache device is left, and a majority stands behind those that are.
    pub fn has_votes(&self) -> bool {
        !self.stalled && self.in_sync().next().is_some()
    }
    /// Copies that dirty data must have now.
    pub fn copies_now(&self) -> usize {
        usize::from(self.copies).min(self.in_sync().count())
    }
    /// A copy less than promised can be made.
    pub fn degraded(&self) -> bool {
        self.in_sync().count() < usize::from(self.copies)
    }
    /// Sectors of a segment.
    pub fn segment_sectors(&self) -> u32 {
        (self.segment_bytes / 512) as u32
    }
}

/// Blocks that a write under way is about, from its acceptance until its record is named or given up (R4).
pub(crate) struct Pending {
    pub ticket: u64,
    pub blocks: Range<u64>,
}

/// A volume.
pub(crate) struct Volume<B: Buf> {
    pub number: u16,
    pub id: [u8; 16],
    pub name: String,
    /// Its size, as the next superblock says it; [`Core::resize`] changes it.
    pub sectors: Cell<u64>,
    /// Its size to clients: what is beyond is for nobody before the superblock with it is durable.
    pub open: Cell<u64>,
    /// It is being grown.
    pub growing: Cell<bool>,
    /// Sectors that the grid is shifted by: grid sector = sector + shift.
    pub shift: u64,
    pub phase: u8,
    pub backing: String,
    pub mode: Cell<Mode>,
    /// It is being detached, and passed meanwhile. Not on the cache devices: who is interrupted finds it as it was.
    pub leaving: Cell<bool>,
    /// Somebody waits for it to be clean.
    pub wanted_clean: Cell<u32>,
    /// Requests are served.
    pub serving: Cell<bool>,
    /// It is no longer the pool's: whoever works for it ends.
    pub taken_off: Cell<bool>,
    /// Its disk is there, or was in this life.
    pub there: Cell<bool>,
    /// It cannot be served: dirty data and disk do not belong together, or are missing.
    pub refused: Cell<bool>,
    /// Dirty data of it may be missing of which nobody left has heard: it is refused, at each start.
    pub uncertain: Cell<bool>,
    /// All that the cache has of it is being thrown away: none of it is waited for.
    pub thrown_away: Cell<bool>,
    /// Moves of its dirty data that have ended, well or not, ever.
    pub moved: Cell<u64>,
    /// What the newest superblock says of that, and of flushes that failed.
    pub doubts_told: Cell<Doubts>,
    pub map: RefCell<Map>,
    pub pending: RefCell<Vec<Pending>>,
    /// Moves, and what is in the log as far as it goes there. Apart, since there may be a thousand, and each is asked whether it is being replaced.
    pub moving: RefCell<Vec<Pending>>,
    pub left_behind: AllLeftBehind,
    pub pending_changed: Signal<B>,
    /// Blocks for which somebody waits until nothing is on its way into the log: nothing more sets out before that.
    pub awaited: RefCell<Vec<Pending>>,
    pub awaited_changed: Signal<B>,
    /// Blocks that requests are changing now, whatever way they take: nothing read from the disk there is admitted.
    pub writing: RefCell<Vec<Pending>>,
    pub fills: Fills<B>,
    /// What of the disk is being written.
    pub disk_ranges: Rc<RangeLocks<B>>,
    pub disk_flusher: Rc<Flusher<B>>,
    pub intent: Intent<B>,
    pub dirty_log: Rc<Log<B>>,
    pub clean_log: Rc<Log<B>>,
    pub reads: RefCell<Streams>,
    pub writes: RefCell<Streams>,
    pub flushes_seen: Cell<u64>,
    /// What clients want of its disk.
    pub disk_use: DiskUse,
    /// How far streams are spared.
    pub onset: Cell<Onset>,
    pub requests: Cell<u32>,
    pub requests_changed: Signal<B>,
    pub sweep_at: Cell<u64>,
    /// What is written below this block the sweep does not take any more before it has gone round.
    pub swept_to: Cell<u64>,
    pub sweep_began: Cell<u64>,
    /// When a sweep began that has gone by all that was dirty then, or nothing was: what it could not write, or the disk did not keep, has its next turn
    /// with the rest.
    pub dirty_since: Cell<u64>,
    /// What goes down does so for its age alone: a sweep reaches no less than that, and may reach more.
    pub trickles: Cell<bool>,
    /// Sweeps that have ended.
    pub sweeps: Cell<u64>,
    /// Segments that would be won by gathering what is left in its sparse ones ([`crate::policy::gather`]), as of late.
    pub sparse: Cell<u64>,
    pub destage_failures: Cell<u32>,
    /// Since when nothing gets clean, while that lasts.
    pub stuck: Cell<Option<Stuck>>,
    pub destaging: Cell<bool>,
    /// What destage reaches, and the turns of writes that wait for what it wins.
    pub reached: Cell<Reached>,
    pub window: Cell<Window>,
    pub turns: Cell<Turns>,
    /// How many writes wait for their turn, and what the disk takes for one that does not.
    pub waiting: Cell<u32>,
    pub direct: Cell<Direct>,
    pub direct_writes: Cell<u32>,
    /// Whether writes gain anything from the cache while space is short, and what sweeps have written, in bytes.
    pub gain: Cell<Gain>,
    pub swept: Cell<u64>,
    /// When clients have the disk flushed.
    pub commits: Cell<Commits>,
    /// Runs of a sweep that are being written.
    pub sweeping: Cell<u32>,
    /// Chunks of a sweep that are not clean yet.
    pub chunks: RefCell<Vec<Rc<Chunk<B>>>>,
    /// What SSDs and disk need for reads and for writes, and how many reads and writes the SSDs have under way.
    pub read_route: RefCell<Route>,
    pub write_route: RefCell<Route>,
    pub hitting: Cell<u32>,
    pub absorbing: Cell<u32>,
    /// When the log last had taken a write.
    pub last_absorbed: Cell<u64>,
    /// Up to which block fragments were let go for want of room for more.
    pub thinned_to: Cell<u64>,
    /// Writes of which anything is in the log, and that were acknowledged.
    pub acknowledged: Cell<u64>,
    /// How often members left with all copies of dirty data, and up to which of them a client was told.
    pub losses: Cell<u32>,
    pub losses_told: Cell<u32>,
    /// How many had been acknowledged when the last of these came to be known, or what it took was acknowledged.
    pub lost_at: Cell<u64>,
    pub work: Signal<B>,
    /// When destage wants to be told next of what is written.
    pub tell_from: Cell<u64>,
    /// What is pinned, how often that has changed, and up to where it was looked whether all of it is there.
    pub pins: RefCell<Pins>,
    pub pins_changed: Cell<u64>,
    pub pins_at: Cell<u64>,
    pub preload: Cell<Preload>,
    /// Whether a client flushes after each of its writes.
    pub synchronous: Cell<Synchronous>,
    /// Where reads were missed lately, and how many neighbourhoods are being brought whole.
    pub neighbourhoods: RefCell<Neighbourhoods>,
    pub filling: Cell<u32>,
    /// What of the pool it is sure of, and may have at most.
    pub share: Cell<Share>,
    pub stats: RefCell<VolumeStats>,
}

impl<B: Buf> Volume<B> {
    pub fn device(&self) -> Device {
        Device::Backing(self.number)
    }
    /// Whether it has a backing device.
    pub fn has_disk(&self) -> bool {
        !self.backing.is_empty()
    }
    /// Requests are served from now on, or are not.
    pub fn serve(&self, serves: bool) {
        self.serving.set(serves);
        if let Some(table) = self.map.borrow().lookaside() {
            table.open(serves);
        }
    }
    /// How many reads the cache devices have under way, whoever reads.
    pub fn ssd_line(&self) -> u32 {
        self.hitting.get() + self.map.borrow().lookaside().map_or(0, Lookaside::in_flight)
    }
    /// Blocks of the grid that a range of grid sectors touches.
    pub fn blocks(range: &Range<u64>) -> Range<u64> {
        range.start / BLOCK_SECTORS..range.end.div_ceil(BLOCK_SECTORS)
    }
    /// Byte offset on the disk of a grid sector.
    pub fn disk_offset(&self, grid_sector: u64) -> u64 {
        (grid_sector - self.shift) * 512
    }
    /// What is done with requests now.
    pub fn mode(&self) -> Mode {
        if self.leaving.get() { Mode::PassThrough } else { self.mode.get() }
    }
    /// The grid sectors of the whole volume, as clients see it.
    pub fn extent(&self) -> Range<u64> {
        self.shift..self.shift + self.open.get()
    }
    /// Whether a write that overlaps `blocks`, or a move, is on its way into the log.
    pub fn is_pending(&self, blocks: &Range<u64>) -> bool {
        [&self.pending, &self.moving].into_iter().any(|list| list.borrow().iter().any(|p| meet(&p.blocks, blocks)))
    }
    /// Takes those of some blocks out for which that is so; they are in order.
    pub fn take_out_pending(&self, blocks: &mut Vec<u64>) {
        let (pending, moving) = (self.pending.borrow(), self.moving.borrow());
        take_out(blocks, pending.iter().chain(moving.iter()).map(|p| p.blocks.clone()).collect());
    }
    /// Whether a write of anything in a block is on its way into the log.
    pub fn is_being_replaced(&self, block: u64) -> bool {
        self.pending.borrow().iter().any(|p| p.blocks.contains(&block))
    }
    /// Whether any write or move is on its way into the log.
    pub fn has_pending(&self) -> bool {
        !self.pending.borrow().is_empty() || !self.moving.borrow().is_empty()
    }
    /// Whether somebody who came before `ticket` waits until nothing that overlaps `blocks` is on its way into the log.
    pub fn is_awaited(&self, blocks: &Range<u64>, ticket: u64) -> bool {
        self.awaited.borrow().iter().any(|p| p.ticket < ticket && meet(&p.blocks, blocks))
    }
    /// Lets them go first who came before `ticket` and wait until nothing that overlaps `blocks` is on its way into the log: each write that
    /// set out would have them wait again, and where there are always some, for ever. Whether there were any.
    pub async fn let_pass(&self, core: &Core<B>, blocks: &Range<u64>, ticket: u64) -> bool {
        let mut has_waited = false;
        while self.is_awaited(blocks, ticket) {
            core.mark(Mark::LetsPass);
            self.awaited_changed.wait().await;
            has_waited = true;
        }
        has_waited
    }
    /// Whether a request is changing anything in `blocks`.
    pub fn is_being_written(&self, blocks: &Range<u64>) -> bool {
        self.writing.borrow().iter().any(|p| meet(&p.blocks, blocks))
    }
    /// Whether all blocks that a range of grid sectors touches are pinned.
    pub fn is_pinned(&self, range: &Range<u64>) -> bool {
        let pins = self.pins.borrow();
        !pins.is_empty() && pins.contains(&Self::blocks(range))
    }
    /// A write of which something is in the log is about to be acknowledged; when it began there had been so many `losses`. What of it was in the
    /// log may have gone with one since: a FLUSH that was told of that one before does not stand for this write.
    pub fn acknowledging(&self, losses: u32) {
        self.acknowledged.set(self.acknowledged.get() + 1);
        if self.losses.get() != losses {
            self.losses_told.set(self.losses_told.get().min(losses));
            self.lost_at.set(self.acknowledged.get());
            self.disk_flusher.tell();
        }
    }
    /// Members left with all copies of dirty data, and no client was told.
    pub fn owes_news(&self) -> bool {
        self.losses.get() != self.losses_told.get()
    }
    /// A client wants what it has written to be durable.
    pub fn asked_to_flush(&self) {
        let mut synchronous = self.synchronous.get();
        synchronous.flush();
        self.synchronous.set(synchronous);
    }
}

/// The engine's shared state.
pub(crate) struct Core<B: Buf> {
    pub exec: Rc<Exec<B>>,
    pub settings: Settings,
    pub pool: Watched<Pool>,
    /// Number of the superblock that this life writes first, before it opens a segment or takes a checkpoint: when it does, all that count
    /// have that superblock, and no later life begins with the same number. What is numbered from it has a number that nothing of another
    /// life has.
    pub life: u64,
    pub segments: RefCell<Segments>,
    pub volumes: Watched<BTreeMap<u16, Rc<Volume<B>>>>,
    /// See [`Core::bounds`].
    pub bounds_known: Cell<Known>,
    pub member_flushers: RefCell<Vec<Rc<Flusher<B>>>>,
    pub version: Cell<u64>,
    pub generation: Cell<u64>,
    pub durability: RefCell<Durability>,
    pub tickets: Cell<u64>,
    pub membership: Signal<B>,
    pub superblock_busy: Cell<bool>,
    /// Superblocks are written with what lies behind them in their slots: it is read with them, and may be damaged.
    pub whole_slots: Cell<bool>,
    /// Pages of the intent map that are to be a volume's, or have just been one's.
    pub pages_promised: RefCell<Vec<Span>>,
    pub superblock_free: Signal<B>,
    /// Space was freed, or may have been.
    pub space: Signal<B>,
    pub checkpoint_wanted: Cell<bool>,
    pub checkpoint_signal: Signal<B>,
    pub checkpoints_done: Cell<u64>,
    /// Sequence of the checkpoint that was tried last.
    pub checkpoint_tried: Cell<u64>,
    /// Images that did not fit into the checkpoint areas, in this life.
    pub image_overflows: Cell<u64>,
    /// How far the start is, while it reads what there is.
    pub starting: Cell<Option<Starting>>,
    /// What could be read nowhere in this start, and one that is missing for good may have.
    pub log_lacks: RefCell<LogLacks>,
    /// Whether all that is cached is in the map; that it is, or never will be; and what is left to be read until then.
    pub is_loaded: Cell<bool>,
    pub loaded: Signal<B>,
    pub loading: RefCell<Option<Rc<Loading<B>>>>,
    pub appended_since_checkpoint: Cell<u64>,
    /// A checkpoint waits for the marks under way before it begins; no new ones are let in.
    pub checkpoint_begins: Cell<bool>,
    /// Appended marks that may not be in the map yet, in batches.
    pub marks_held: Cell<u32>,
    /// What is being appended and not yet in the map: a checkpoint waits for all that began before it.
    pub flights: RefCell<BTreeSet<u64>>,
    /// No request is taken any more.
    pub stopping: Cell<bool>,
    /// No sweep is to be under way: the daemon is about to end.
    pub quiet: Cell<bool>,
    /// Requests that wait for room, and fail where none is won.
    pub awaiting_room: Cell<u32>,
    /// Who is read ahead of, with what is kept in memory for them; and that something more is.
    pub ahead: RefCell<Readers<Kept<B>>>,
    /// Whether writes want space.
    pub demand: Cell<Demand>,
    /// What the cache devices may be written.
    pub endurance: RefCell<Endurance>,
    /// What was evicted lately.
    pub ghost: RefCell<Ghost>,
    pub ahead_landed: Signal<B>,
    /// Reads in flight on each member; and that one of housekeeping has ended.
    pub reading: RefCell<Vec<MemberReads>>,
    pub reads_ended: Signal<B>,
    /// Places on members that are being repaired: member, slot, first sector.
    pub repairing: RefCell<BTreeSet<(u8, u32, u32)>>,
    pub scrub: RefCell<Scrub>,
    /// Blocks pinned on all volumes.
    pub pinned: Cell<u64>,
    pub pins_signal: Signal<B>,
    pub stats: RefCell<PoolStats>,
}

impl<B: Buf> Core<B> {
    pub fn now(&self) -> u64 {
        self.exec.now()
    }
    /// A copy on a member was found damaged, or it could not read it.
    pub fn found_damaged(&self, member: u8) {
        if let Some(reads) = self.reading.borrow_mut().get_mut(usize::from(member)) {
            reads.damaged += 1;
        }
    }
    /// The daemon ends, and nobody is left who waits for what housekeeping wins.
    pub fn housekeeping_rests(&self) -> bool {
        self.stopping.get() && self.awaiting_room.get() == 0
    }
    /// This place was reached.
    pub fn mark(&self, mark: Mark) {
        self.exec.marks.set(mark);
    }
    /// This place was reached, if so.
    pub fn mark_if(&self, reached: bool, mark: Mark) {
        if reached {
            self.mark(mark);
        }
    }
    /// This place was reached, on the way to `what`.
    pub fn passing<T>(&self, mark: Mark, what: T) -> T {
        self.mark(mark);
        what
    }
    pub fn volume(&self, n: u16) -> Option<Rc<Volume<B>>> {
        self.volumes.borrow().get(&n).cloned()
    }
    /// The members that are in sync, and not known to fail, as bits.
    pub fn readable_members(&self) -> u64 {
        let pool = self.pool.borrow();
        pool.in_sync().fold(0, |bits, member| bits | 1 << member) & !pool.failing
    }
    /// Tells threads that read by themselves which members there are; where one has left they forget all they knew.
    pub fn tell_members(&self, one_has_left: bool) {
        let members = self.readable_members();
        for v in self.all_volumes() {
            if let Some(table) = v.map.borrow().lookaside() {
                table.set_members(members);
                if one_has_left {
                    table.clear();
                }
            }
        }
    }
    pub fn all_volumes(&self) -> Vec<Rc<Volume<B>>> {
        self.volumes.borrow().values().cloned().collect()
    }
    /// Changes a volume's size, as the next superblock says it.
    pub fn resize(&self, volume: &Volume<B>, sectors: u64) {
        volume.sectors.set(sectors);
        self.volumes.touch();
    }
    /// The version of a write accepted now.
    pub fn next_version(&self) -> u64 {
        let v = self.version.get() + 1;
        self.version.set(v);
        v
    }
    pub fn ticket(&self) -> u64 {
        let t = self.tickets.get() + 1;
        self.tickets.set(t);
        t
    }
    pub fn member_flusher(&self, member: u8) -> Rc<Flusher<B>> {
        self.member_flushers.borrow()[usize::from(member)].clone()
    }
    /// Seed of the checksum of a piece of data: it is bound to pool, volume, block and version.
    pub fn seed(&self, volume: u16, block: u64, first: u8, version: u64) -> u64 {
        headpond_format::data_seed(self.pool.borrow().key, volume, block, first, version)
    }
    /// Registers a write as on its way, from now on.
    pub fn begin_pending(&self, volume: &Rc<Volume<B>>, blocks: Range<u64>) -> PendingGuard<B> {
        let ticket = self.ticket();
        volume.pending.borrow_mut().push(Pending { ticket, blocks });
        PendingGuard { volume: volume.clone(), ticket }
    }
    /// The same of what is moved in the version that it has, or is in the log already as far as it goes there, and still on its way to the disk.
    pub fn begin_moving(&self, volume: &Rc<Volume<B>>, blocks: Range<u64>) -> PendingGuard<B> {
        let ticket = self.ticket();
        volume.moving.borrow_mut().push(Pending { ticket, blocks });
        PendingGuard { volume: volume.clone(), ticket }
    }
    /// Somebody waits until nothing that overlaps `blocks` is on its way into the log, until the guard is dropped.
    pub fn begin_awaiting(&self, volume: &Rc<Volume<B>>, blocks: Range<u64>) -> AwaitingGuard<B> {
        let ticket = self.ticket();
        volume.awaited.borrow_mut().push(Pending { ticket, blocks });
        AwaitingGuard { volume: volume.clone(), ticket }
    }
    /// A request begins to change `blocks`: spoils fills, and keeps new ones away until the guard is dropped (R5).
    pub fn begin_writing(&self, volume: &Rc<Volume<B>>, blocks: Range<u64>) -> WritingGuard<B> {
        volume.fills.spoil(&blocks);
        let ticket = self.ticket();
        volume.writing.borrow_mut().push(Pending { ticket, blocks });
        WritingGuard { volume: volume.clone(), ticket }
    }
    /// Something is being appended, or appended and not yet in the map, until the guard is dropped.
    pub fn begin_flight(self: &Rc<Self>) -> FlightGuard<B> {
        let ticket = self.ticket();
        self.flights.borrow_mut().insert(ticket);
        FlightGuard { core: self.clone(), ticket }
    }
    /// Marks are about to be appended; until the guard is dropped they may not be in the map yet. Waits while a
    /// checkpoint is about to begin.
    pub async fn begin_marks(self: &Rc<Self>) -> MarksGuard<B> {
        while self.checkpoint_begins.get() {
            self.mark(Mark::MarksWaitForCheckpoint);
            self.checkpoint_signal.wait().await;
        }
        self.marks_held.set(self.marks_held.get() + 1);
        MarksGuard { core: self.clone() }
    }
    /// How full the space for dirty data is: percent of the segments, or of the map's pieces, that may hold it.
    pub fn dirty_percent(&self) -> u32 {
        self.dirty_percent_of(&self.segments.borrow())
    }
    pub fn dirty_percent_of(&self, segments: &Segments) -> u32 {
        self.dirty_percent_where(segments, self.sets_for_dirty(segments))
    }
    fn dirty_percent_where(&self, segments: &Segments, sets: u64) -> u32 {
        let of_segments = segments.dirty_segments() * 100 / sets.max(1);
        (of_segments.min(200) as u32).max(self.pieces_percent_of(segments))
    }
    /// The same of the map's pieces alone: fragments can fill the map before their data fills the segments.
    pub fn pieces_percent(&self) -> u32 {
        self.pieces_percent_of(&self.segments.borrow())
    }
    fn pieces_percent_of(&self, segments: &Segments) -> u32 {
        let left = self.bounds().sure_pieces.saturating_sub(segments.dirty_diskless);
        let dirty = segments.dirty - segments.dirty_diskless;
        let of_pieces = dirty * 100 / (left * 9 / 10).max(1);
        // Where blocks lie far apart it is the memory that they fill.
        let of_memory = match self.settings.max_map_bytes {
            0 => 0,
            most => self.map_memory() / segments.live.max(1) * dirty * 100 / (most * 9 / 10).max(1),
        };
        of_pieces.max(of_memory).min(200) as u32
    }
    /// Bytes of memory that the maps take for what is cached.
    pub fn map_memory(&self) -> u64 {
        self.volumes.borrow().values().map(|v| v.map.borrow().memory_of_pieces()).sum()
    }
    /// How much of it would be won by gathering what is left in sparse segments, in percent.
    fn sparse_percent(&self, sets: u64) -> u32 {
        let sparse: u64 = self.volumes.borrow().values().map(|v| v.sparse.get()).sum();
        (sparse * 100 / sets.max(1)).min(200) as u32
    }
    /// How full it will be with what is dirty now, when the sweep has gone round and as much was written as went down.
    fn soon_percent(&self, segments: &Segments, sets: u64) -> u32 {
        let sectors = sets * u64::from(self.pool.borrow().segment_sectors());
        let percent = |dirty: u64, bands| dirty * bands::taken_by_dirty(bands) / sectors.max(1);
        let sorted = segments.dirty_sectors_sorted;
        (percent(segments.dirty_sectors - sorted, 1) + percent(sorted, bands::number(sets))).min(200) as u32
    }
    /// Segments, each with its copies, that may hold dirty data: a share of those that what is pinned leaves, and what has no disk.
    pub fn sets_for_dirty(&self, segments: &Segments) -> u64 {
        let Bounds { copies, set_aside, .. } = self.bounds();
        let pinned = (self.pinned.get() * BLOCK_SECTORS).div_ceil(u64::from(self.pool.borrow().segment_sectors()).max(1));
        let taken = pinned.div_ceil(copies.max(1) as u64) + set_aside;
        let left = u64::from(segments.total_sets(copies)).saturating_sub(taken);
        left * u64::from(self.settings.dirty_percent) / 100
    }
    /// Whether the cache devices' budget bears it that this is written to them. What it does not bear and could do without them is
    /// to do so.
    pub fn budget_bears(&self, wish: Wish, bytes: u64) -> bool {
        let pool = self.pool.borrow();
        self.endurance.borrow_mut().bears(self.now(), pool.in_sync_sizes(), &self.exec.written.borrow(), wish, bytes)
    }
    /// Blocks that are pinned, on all volumes.
    pub fn pinned_blocks(&self) -> u64 {
        self.pinned.get()
    }
    /// Open segments that what is written is sorted into while space is short.
    pub fn bands(&self) -> usize {
        bands::number(self.sets_for_dirty(&self.segments.borrow()))
    }
    /// Whether writes to a volume may not come as fast as they like any more.
    pub fn space_presses(&self, volume: &Volume<B>) -> bool {
        let room = self.room_of(volume);
        room.pressure() > room.begin_percent
    }
    /// How near the space for dirty data is to its end.
    pub fn room(&self) -> Room {
        let segments = self.segments.borrow();
        let sets = self.sets_for_dirty(&segments);
        Room {
            taken_percent: gather::taken(self.dirty_percent_where(&segments, sets), self.sparse_percent(sets)),
            soon_percent: self.soon_percent(&segments, sets),
            begin_percent: self.settings.destage_percent,
        }
    }
}

/// Keeps a write registered as on its way.
pub(crate) struct PendingGuard<B: Buf> {
    volume: Rc<Volume<B>>,
    ticket: u64,
}

impl<B: Buf> Drop for PendingGuard<B> {
    fn drop(&mut self) {
        for list in [&self.volume.pending, &self.volume.moving] {
            list.borrow_mut().retain(|p| p.ticket != self.ticket);
        }
        self.volume.pending_changed.notify();
    }
}

/// Keeps blocks registered as awaited.
pub(crate) struct AwaitingGuard<B: Buf> {
    volume: Rc<Volume<B>>,
    ticket: u64,
}

impl<B: Buf> Drop for AwaitingGuard<B> {
    fn drop(&mut self) {
        self.volume.awaited.borrow_mut().retain(|p| p.ticket != self.ticket);
        self.volume.awaited_changed.notify();
    }
}

/// Keeps blocks registered as being changed.
pub(crate) struct WritingGuard<B: Buf> {
    volume: Rc<Volume<B>>,
    ticket: u64,
}

impl<B: Buf> Drop for WritingGuard<B> {
    fn drop(&mut self) {
        self.volume.writing.borrow_mut().retain(|p| p.ticket != self.ticket);
    }
}

/// Keeps checkpoints that begin from now on waiting.
pub(crate) struct FlightGuard<B: Buf> {
    core: Rc<Core<B>>,
    ticket: u64,
}

impl<B: Buf> Drop for FlightGuard<B> {
    fn drop(&mut self) {
        self.core.flights.borrow_mut().remove(&self.ticket);
        self.core.checkpoint_signal.notify();
    }
}

/// Keeps checkpoints from beginning.
pub(crate) struct MarksGuard<B: Buf> {
    core: Rc<Core<B>>,
}

impl<B: Buf> Drop for MarksGuard<B> {
    fn drop(&mut self) {
        self.core.marks_held.set(self.core.marks_held.get() - 1);
        self.core.checkpoint_signal.notify();
    }
}

/// A request waits for room: housekeeping goes on for it, though the daemon is told to end.
pub(crate) struct Awaiting<B: Buf> {
    core: Rc<Core<B>>,
}

impl<B: Buf> Awaiting<B> {
    pub fn room(core: &Rc<Core<B>>) -> Self {
        core.awaiting_room.set(core.awaiting_room.get() + 1);
        Self { core: core.clone() }
    }
}

impl<B: Buf> Drop for Awaiting<B> {
    fn drop(&mut self) {
        self.core.awaiting_room.set(self.core.awaiting_room.get() - 1);
    }
}
