//! What becomes of a volume: it is attached, switched between modes, made clean, detached, or let go of with all that is
//! dirty on it.
//!
//! A volume is there when a superblock that says so is durable, and gone when one without it is. Whatever could be taken
//! for its data, or for another one's, has to be out of the way on the right side of that.

use crate::cancel::Cancel;
use crate::core::{Core, Volume};
use crate::destage::{self, Obstacle, Stuck};
use crate::disk_use::DiskUse;
use crate::exec::Signal;
use crate::fills::Fills;
use crate::flusher::Flusher;
use crate::intent::{self, Intent};
use crate::io::{Buf, CommandError, Device, NewVolume};
use crate::left_behind::AllLeftBehind;
use crate::log::Log;
use crate::map::Map;
use crate::marks::Mark;
use crate::ranges::RangeLocks;
use crate::segments::Segments;
use crate::{checkpoint, comparison, doubts, grow};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use headpond_format::{Class, Doubts, IntentPage, MAX_VOLUMES, Mode, VolumeEntry, grid_shift};

/// Who waits for a volume to be clean is told that it will not be when nothing has become clean for this long, though it
/// was tried.
const STUCK_NS: u64 = 10_000_000_000;

/// A volume as a superblock tells of it, which is not served yet.
pub(crate) fn build<B: Buf>(core: &Rc<Core<B>>, e: VolumeEntry, pages: Vec<(IntentPage, bool)>) -> Rc<Volume<B>> {
    let exec = &core.exec;
    let shift = grid_shift(e.phase);
    let intent = Intent::new(Signal::new(exec), e.number, e.intent_first, pages);
    if e.doubts.unkept {
        core.mark(Mark::DoubtedFromBefore);
        intent.doubt();
    }
    Rc::new(Volume {
        number: e.number,
        id: e.id,
        name: e.name,
        sectors: Cell::new(e.sectors),
        open: Cell::new(e.sectors),
        growing: Cell::new(false),
        shift,
        phase: e.phase,
        backing: e.backing,
        mode: Cell::new(e.mode),
        leaving: Cell::new(false),
        wanted_clean: Cell::new(0),
        serving: Cell::new(false),
        taken_off: Cell::new(false),
        there: Cell::new(false),
        refused: Cell::new(false),
        uncertain: Cell::new(e.doubts.uncertain),
        thrown_away: Cell::new(false),
        moved: Cell::new(0),
        doubts_told: Cell::new(e.doubts),
        map: RefCell::new(Map::default()),
        pending: RefCell::default(),
        moving: RefCell::default(),
        left_behind: AllLeftBehind::default(),
        pending_changed: Signal::new(exec),
        awaited: RefCell::default(),
        awaited_changed: Signal::new(exec),
        writing: RefCell::default(),
        fills: Fills::default(),
        disk_ranges: RangeLocks::new(exec),
        disk_flusher: Flusher::after(exec, Device::Backing(e.number), e.doubts.untold),
        intent,
        dirty_log: Log::new(Class::Mirrored),
        clean_log: Log::new(Class::Single),
        reads: RefCell::default(),
        writes: RefCell::default(),
        flushes_seen: Cell::new(0),
        disk_use: DiskUse::from(core.now()),
        onset: Cell::default(),
        requests: Cell::new(0),
        requests_changed: Signal::new(exec),
        sweep_at: Cell::new(0),
        swept_to: Cell::new(0),
        sweep_began: Cell::new(0),
        dirty_since: Cell::new(core.now()),
        trickles: Cell::new(false),
        sweeps: Cell::new(0),
        sparse: Cell::new(0),
        destage_failures: Cell::new(0),
        stuck: Cell::new(None),
        destaging: Cell::new(false),
        reached: Cell::default(),
        window: Cell::default(),
        turns: Cell::default(),
        waiting: Cell::default(),
        direct: Cell::default(),
        direct_writes: Cell::default(),
        gain: Cell::default(),
        swept: Cell::default(),
        commits: Cell::default(),
        sweeping: Cell::default(),
        chunks: RefCell::default(),
        read_route: RefCell::default(),
        write_route: RefCell::default(),
        hitting: Cell::new(0),
        absorbing: Cell::new(0),
        last_absorbed: Cell::new(0),
        thinned_to: Cell::new(0),
        losses: Cell::new(0),
        losses_told: Cell::new(0),
        acknowledged: Cell::new(0),
        lost_at: Cell::new(0),
        work: Signal::new(exec),
        tell_from: Cell::new(0),
        pins: RefCell::default(),
        pins_changed: Cell::new(0),
        pins_at: Cell::new(0),
        preload: Cell::default(),
        synchronous: Cell::default(),
        neighbourhoods: RefCell::default(),
        filling: Cell::default(),
        share: Cell::default(),
        stats: RefCell::default(),
    })
}

pub(crate) fn begin_to_serve<B: Buf>(core: &Rc<Core<B>>, v: Rc<Volume<B>>) {
    v.serve(true);
    core.exec.spawn(doubts::keep(core.clone(), v.clone()));
    if v.has_disk() {
        core.exec.spawn(destage::run(core.clone(), v));
    }
}

/// Serves a volume at a start, if its disk is there and is the one that it was.
pub(crate) async fn open<B: Buf>(core: &Rc<Core<B>>, v: Rc<Volume<B>>) {
    intent::own_up(core, &v).await;
    if v.there.get() && v.has_disk() {
        comparison::compare_disk(core, &v).await;
    }
    if v.there.get() && !v.refused.get() && !core.stopping.get() {
        begin_to_serve(core, v);
    }
}

/// The disk of a volume has come that was not there at the start. Nothing was read from it or written to it meanwhile, and
/// no request was answered: what was to be done then is done now.
pub(crate) async fn backing_came<B: Buf>(core: &Rc<Core<B>>, v: Rc<Volume<B>>) -> Result<(), CommandError> {
    if v.there.replace(true) {
        return Err(CommandError::DiskThere);
    }
    comparison::compare_disk(core, &v).await;
    if v.refused.get() {
        return Err(CommandError::Refused);
    }
    // Who was about to do that finds it in use.
    v.thrown_away.set(false);
    if core.stopping.get() {
        return Err(CommandError::Cancelled);
    }
    begin_to_serve(core, v);
    core.want_checkpoint();
    Ok(())
}

pub(crate) async fn attach<B: Buf>(core: &Rc<Core<B>>, new: NewVolume) -> Result<(), CommandError> {
    is_alone(core, &new)?;
    let diskless = new.backing.is_empty();
    let sets_aside = || if diskless { core.has_room_for(new.sectors, 0, total_sets(core)) } else { Ok(()) };
    sets_aside()?;
    let span = grow::pages(core, new.sectors, None).ok_or(CommandError::TooLarge)?;
    let _promised = grow::Promise::new(core, span);
    // Records of a volume that had this number before must not be replayed into this one.
    checkpoint::now(core).await?;
    let sequence = intent::number(core);
    let pages = (span.first..span.end()).map(|p| (IntentPage { sequence, ..IntentPage::empty(p, new.number) }, true)).collect();
    let entry = VolumeEntry {
        number: new.number,
        id: new.id,
        name: new.name.clone(),
        sectors: new.sectors,
        phase: new.phase,
        mode: if diskless { Mode::WriteBack } else { new.mode },
        intent_first: span.first,
        intent_pages: span.count,
        backing: new.backing.clone(),
        doubts: Doubts::default(),
    };
    let volume = build(core, entry, pages);
    volume.intent.rewrite(core, &volume).await;
    // Another one may have been made meanwhile.
    is_alone(core, &new)?;
    sets_aside()?;
    core.volumes.borrow_mut().insert(volume.number, volume.clone());
    if !core.write_superblock().await {
        core.volumes.borrow_mut().remove(&volume.number);
        return Err(CommandError::NoMembers);
    }
    volume.there.set(true);
    begin_to_serve(core, volume);
    Ok(())
}

/// Refuses a new volume whose name, disk or number is another one's.
fn is_alone<B: Buf>(core: &Core<B>, new: &NewVolume) -> Result<(), CommandError> {
    let volumes = core.volumes.borrow();
    if volumes.values().any(|v| v.name == new.name) {
        return Err(CommandError::NameTaken);
    }
    if volumes.values().any(|v| v.backing == new.backing && !new.backing.is_empty()) {
        return Err(CommandError::BackingTaken);
    }
    if volumes.contains_key(&new.number) || usize::from(new.number) >= MAX_VOLUMES {
        return Err(CommandError::TooManyVolumes);
    }
    Ok(())
}

/// Waits until nothing on the volume is dirty, or until it has shown that this will not be: nobody waits for ever.
pub(crate) async fn clean<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>, cancel: &Cancel) -> Result<(), CommandError> {
    v.wanted_clean.set(v.wanted_clean.get() + 1);
    v.work.notify();
    destage::hurry(v);
    // What went wrong before somebody waited may have been mended.
    v.stuck.set(None);
    let result = loop {
        if v.map.borrow().dirty_blocks() == 0 && !v.has_pending() {
            break Ok(());
        }
        if cannot_be_cleaned(v) {
            break Err(CommandError::NotServed);
        }
        // What a stop finds dirty it leaves so: the next life destages it, and who asked is told.
        if cancel.wanted() || core.stopping.get() {
            break Err(CommandError::Cancelled);
        }
        // That it is lost has to be so of all that is dirty.
        let is_over = |s: &Stuck| s.why != Obstacle::Lost || s.whole_sweeps(v) > 0;
        let stuck = v.stuck.get().filter(|s| s.rounds >= 3 && core.now().saturating_sub(s.since) >= STUCK_NS);
        if let Some(stuck) = stuck.filter(is_over) {
            break Err(match stuck.why {
                Obstacle::Disk => CommandError::Disk,
                Obstacle::Members => CommandError::NoMembers,
                Obstacle::Lost => CommandError::Lost { blocks: v.map.borrow().dirty_blocks() },
            });
        }
        v.work.wait_until(core.now() + 20_000_000).await;
    };
    v.wanted_clean.set(v.wanted_clean.get() - 1);
    result
}

/// Whether something is dirty, and nobody destages it: its disk is not there, or it is not served with what is there.
fn cannot_be_cleaned<B: Buf>(v: &Volume<B>) -> bool {
    v.map.borrow().dirty_blocks() > 0 && v.has_disk() && (v.refused.get() || !v.there.get())
}

pub(crate) async fn set_mode<B: Buf>(
    core: &Rc<Core<B>>,
    v: &Rc<Volume<B>>,
    mode: Mode,
    cancel: &Cancel,
) -> Result<(), CommandError> {
    if !v.has_disk() {
        return Err(CommandError::NoDisk);
    }
    if mode != Mode::WriteBack && cannot_be_cleaned(v) {
        return Err(CommandError::NotServed);
    }
    let old = v.mode.replace(mode);
    if !core.write_superblock().await {
        v.mode.set(old);
        return Err(CommandError::NoMembers);
    }
    if mode != Mode::WriteBack {
        clean(core, v, cancel).await?;
    }
    if mode == Mode::PassThrough {
        drop_clean(core, v).await;
    }
    Ok(())
}

/// Lets go of everything clean. Clients bring no more in: the volume is in pass-through, or is not served. What is carried over from a segment meanwhile, see
/// [`empty`].
async fn drop_clean<B: Buf>(core: &Core<B>, v: &Volume<B>) {
    v.fills.spoil(&(0..u64::MAX));
    each_in_turns(core, v, |map, segments, block| map.drop_clean(segments, block, |_| true)).await;
}

/// Does something with each block of which a volume has anything cached, some of them at a time.
async fn each_in_turns<B: Buf>(core: &Core<B>, v: &Volume<B>, act: impl Fn(&mut Map, &mut Segments, u64)) {
    let mut from = 0;
    loop {
        let at_once = core.settings.let_go_blocks;
        let blocks = v.map.borrow().first_from(from, at_once);
        let Some(last) = blocks.last() else { return };
        from = last + 1;
        {
            let mut map = v.map.borrow_mut();
            let mut segments = core.segments.borrow_mut();
            blocks.iter().for_each(|block| act(&mut map, &mut segments, *block));
            segments.settle();
        }
        if blocks.len() >= at_once {
            core.mark(Mark::LetGoInTurns);
            core.exec.sleep(1).await;
        }
    }
}

pub(crate) async fn detach<B: Buf>(
    core: &Rc<Core<B>>,
    v: &Rc<Volume<B>>,
    give_up_lost: bool,
    cancel: &Cancel,
) -> Result<(), CommandError> {
    if !v.has_disk() {
        return Err(CommandError::NoDisk);
    }
    if v.refused.get() || !v.serving.get() {
        return Err(CommandError::NotServed);
    }
    // The end of one must not have writes absorbed again under another that gives up what is dirty.
    if v.leaving.replace(true) {
        return Err(CommandError::DetachBusy);
    }
    let result = leave(core, v, give_up_lost, cancel).await;
    // Where it goes on it is what it was.
    v.leaving.set(false);
    result
}

/// Takes off a volume that is passed from now on.
async fn leave<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>, give_up_lost: bool, cancel: &Cancel) -> Result<(), CommandError> {
    let lost = match clean(core, v, cancel).await {
        Err(CommandError::Lost { .. }) if give_up_lost => true,
        result => result.map(|()| false)?,
    };
    drop_clean(core, v).await;
    v.serve(false);
    nothing_else(core, v, lost, cancel).await.inspect_err(|_| v.serve(true))?;
    if lost {
        forget_all(core, v);
    }
    take_off(core, v).await.inspect_err(|_| if lost { refuse(v) } else { v.serve(true) })?;
    let_go_of(core).await;
    Ok(())
}

/// Of what was given up of a volume nothing is known any more: where it stays, in this life or a later one, its disk's older data is not to be
/// taken for it (R8).
fn refuse<B: Buf>(v: &Volume<B>) {
    v.uncertain.set(true);
    v.refused.set(true);
}

/// The room of a volume that has gone is free soon. Gone it is without that, too.
async fn let_go_of<B: Buf>(core: &Rc<Core<B>>) {
    let is_free = checkpoint::now(core).await;
    core.mark_if(is_free.is_err(), Mark::GoneWithoutCheckpoint);
}

/// Waits until nothing of a volume that takes no more requests is left but what is `lost`, and nothing of it is under way. Whatever was moved while the rest was found to
/// be lost was passed over: it is where it can be read now, and has its turn.
async fn nothing_else<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>, lost: bool, cancel: &Cancel) -> Result<(), CommandError> {
    loop {
        let moved = v.moved.get();
        passed_by(core, v, lost, cancel).await?;
        cancel.or(core, empty(core, v)).await?;
        if v.moved.get() == moved {
            return Ok(());
        }
        core.mark(Mark::MovedBeforeGivenUp);
    }
}

/// Waits until what still came by while a volume became clean is on its disk, flushed. What came after that went past the cache; but what was
/// on its way into the log then is dirty, and is no more lost than other data.
async fn passed_by<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>, lost: bool, cancel: &Cancel) -> Result<(), CommandError> {
    cancel.or(core, requests_end(v)).await?;
    match clean(core, v, cancel).await {
        Err(CommandError::Lost { .. }) if lost => {}
        result => result?,
    }
    cancel.or(core, v.disk_flusher.flush()).await?.map_err(|_| CommandError::Disk)?;
    // Nobody is left whom a flush of his could tell.
    if v.disk_flusher.take_lost(v.disk_flusher.acknowledged()) { Err(CommandError::Unkept) } else { Ok(()) }
}

/// Waits until no request to a volume is under way: it takes no more.
async fn requests_end<B: Buf>(v: &Volume<B>) {
    loop {
        let wait = v.requests_changed.wait();
        if v.requests.get() == 0 {
            return;
        }
        wait.await;
    }
}

/// Segments of all cache devices, each with as many copies as dirty data should have.
fn total_sets<B: Buf>(core: &Core<B>) -> u32 {
    core.segments.borrow().total_sets(core.bounds().copies)
}

/// Lets go of a volume that is not served, or has no disk, with all that the cache has of it. Nothing is written to its disk.
pub(crate) async fn abandon<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>) -> Result<(), CommandError> {
    let ours = || core.volume(v.number).is_some_and(|w| Rc::ptr_eq(&w, v));
    // One that is being detached is not served either, and what it has is on its way to its disk.
    let is_in_use = || v.has_disk() && v.there.get() && !v.refused.get();
    if is_in_use() {
        return Err(CommandError::Served);
    }
    v.thrown_away.set(true);
    if !v.has_disk() {
        v.serve(false);
        requests_end(v).await;
    }
    // What may go in turns goes first: all the rest goes at once.
    drop_clean(core, v).await;
    // Copies of what is dirty may be being mended. Its disk may come meanwhile, and clients with it.
    while !is_in_use() && is_under_way(v) {
        ends_soon(core, v).await;
    }
    if is_in_use() {
        return Err(CommandError::Served);
    }
    if !ours() {
        return Err(CommandError::NoSuchVolume);
    }
    core.mark(Mark::Abandoned);
    forget_all(core, v);
    // Where no superblock without it can be written it is there again at the next start.
    take_off(core, v).await.inspect_err(|_| refuse(v))?;
    let_go_of(core).await;
    Ok(())
}

/// Gives up all there is of a volume, dirty or not. Nobody reads it any more, and soon there is none: nothing has to be
/// written down. Without a pause up to there: a checkpoint between would be one without what is dirty of a volume that is still in the pool.
fn forget_all<B: Buf>(core: &Core<B>, v: &Volume<B>) {
    let mut segments = core.segments.borrow_mut();
    v.map.borrow_mut().forget_all(&mut segments);
    segments.settle();
}

/// Lets go of what is clean of a volume that is not served. Ends when there is nothing, and nothing is on its way in, such as what
/// was to be carried over from a segment meanwhile.
pub(crate) async fn empty<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>) {
    loop {
        nothing_under_way(core, v).await;
        if v.map.borrow().blocks() == v.map.borrow().dirty_blocks() {
            return;
        }
        drop_clean(core, v).await;
    }
}

/// Waits until nothing of a volume is on its way into the log or the map, or to its disk.
async fn nothing_under_way<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>) {
    while is_under_way(v) {
        ends_soon(core, v).await;
    }
}

fn is_under_way<B: Buf>(v: &Volume<B>) -> bool {
    let is_swept = || !v.disk_ranges.is_free() || !v.chunks.borrow().is_empty();
    !v.fills.is_empty() || v.has_pending() || is_swept() || v.dirty_log.queued() + v.clean_log.queued() > 0
}

/// Gives what is on its way a moment.
async fn ends_soon<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>) {
    v.clean_log.hurry(core, v);
    core.exec.sleep(1_000_000).await;
}

/// Takes a volume of which nothing is cached off the pool.
async fn take_off<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>) -> Result<(), CommandError> {
    v.dirty_log.seal(core);
    v.clean_log.seal(core);
    core.segments.borrow_mut().settle();
    // Its pages are nobody else's before no superblock names them, and nothing is being written there.
    let _kept: Vec<_> = v.intent.taken().map(|span| grow::Promise::new(core, span)).collect();
    core.volumes.borrow_mut().remove(&v.number);
    core.ahead.borrow_mut().forget(v.number);
    core.pinned.set(core.pinned.get() - v.pins.borrow().blocks());
    if !core.write_superblock().await {
        core.pinned.set(core.pinned.get() + v.pins.borrow().blocks());
        core.volumes.borrow_mut().insert(v.number, v.clone());
        return Err(CommandError::NoMembers);
    }
    v.taken_off.set(true);
    v.work.notify();
    v.disk_flusher.tell();
    v.intent.end().await;
    Ok(())
}
