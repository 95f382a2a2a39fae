//! The engine as its host sees it: requests, completions and time go in, effects come out.

use crate::cancel::Cancel;
use crate::core::{Core, Member, MemberReads, Pool, Volume, WitnessSlot};
use crate::election::Election;
use crate::exec::{Exec, Signal};
use crate::flush::{flush, own_flush};
use crate::flusher::Flusher;
use crate::io::{
    BLOCK_SECTORS, Buf, Command, CommandError, CommandId, Device, DeviceResult, Effect, IoId, Request, RequestError, RequestId,
};
use crate::lookaside::Lookaside;
use crate::map::runs;
use crate::marks::MarkSet;
use crate::policy::endurance::Endurance;
use crate::segments::Segments;
use crate::settings::Settings;
use crate::start::start;
use crate::stats::{Fate, PoolStats};
use crate::status::{Starting, Status, status};
use crate::stop::{quiesce, stop};
use crate::watched::Watched;
use crate::write::{Content, write};
use crate::{checkpoint, grow, joining, loading, preload, read, scrub, shares, volumes};
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use headpond_format::MemberState;

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
            durability: RefCell::default(),
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
                lost.extend(runs(p.live).map(|run| sector(run.start)..sector(run.end)));
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
        Request::Flush => flush(core, v).await.map(|()| (Vec::new(), None)),
        Request::OwnFlush => own_flush(core, v).await.map(|()| (Vec::new(), None)),
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
        Command::Checkpoint => checkpoint::now(core).await,
        Command::Stop => stop(core).await,
        Command::Cancel(_) => Ok(()),
    }
}
