//! Cache devices come and go by choice, while everything goes on: a new one is prepared, joins in an epoch of its own and
//! gets its share; one that is to go is emptied of what is dirty, and leaves in an epoch of its own.

use crate::cancel::Cancel;
use crate::checkpoint;
use crate::core::{Core, Member, MemberReads};
use crate::destage::hurry;
use crate::flusher::Flusher;
use crate::io::{Buf, CommandError, Device, DeviceOp, Reach};
use crate::marks::Mark;
use crate::membership::{join, retire};
use crate::segments::SegmentState;
use crate::space::relocate;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use headpond_format::{Class, Layout, MAX_MEMBERS, MemberState, SUPERBLOCK_BYTES};

/// Writes in flight at once on a device that is prepared.
const DEPTH: usize = 64;
/// How often one that waits for data to be copied looks again, in nanoseconds.
const AGAIN_NS: u64 = 20_000_000;
/// After so long without anything being copied volumes are made clean for it, in nanoseconds.
const DESTAGES_AFTER_NS: u64 = 1_000_000_000;
/// After so long without anything being copied nobody waits any longer, in nanoseconds.
const NO_PROGRESS_NS: u64 = 10_000_000_000;

/// Takes a cache device into the pool, and waits until all dirty data has the copies that it should. What is not copied
/// when this is cancelled, or cannot be, is copied later if it can: the device stays.
pub(crate) async fn add<B: Buf>(
    core: &Rc<Core<B>>,
    member: u8,
    id: [u8; 16],
    bytes: u64,
    cancel: &Cancel,
) -> Result<(), CommandError> {
    let entry = entry(core, member, id, bytes)?;
    let _busy = Busy::begin(core)?;
    // An epoch that nobody could vote for would be a step that cannot be taken back.
    let with: Vec<u8> = core.pool.borrow().in_sync().chain([member]).collect();
    if core.pool.borrow().stalled || !core.would_have_votes(&with).await {
        return Err(CommandError::NoMembers);
    }
    prepare(core, member, &entry).await?;
    // Whatever named this number before is not in the newest image, nor in the log behind it.
    if core.pool.borrow().in_sync().next().is_some() {
        cancel.or(core, checkpoint::now(core)).await??;
    }
    if cancel.wanted() {
        return Err(CommandError::Cancelled);
    }
    // The preparation took its time.
    if core.pool.borrow().stalled || !core.would_have_votes(&with).await {
        return Err(CommandError::NoMembers);
    }
    if !join(core, member, entry).await {
        return Err(if core.pool.borrow().stalled { CommandError::NoMembers } else { CommandError::MemberFailed });
    }
    wait_for_copies(core, cancel).await?;
    // The image goes onto all members, and says that nothing lacks a copy.
    cancel.or(core, checkpoint::now(core)).await??;
    // It may have left meanwhile: then nothing has more copies by it.
    let stayed = {
        let pool = core.pool.borrow();
        pool.is_in_sync(member) && pool.members[usize::from(member)].id == id
    };
    if stayed { Ok(()) } else { Err(CommandError::MemberFailed) }
}

/// What the pool is to know of a new cache device, if it will do.
fn entry<B: Buf>(core: &Core<B>, member: u8, id: [u8; 16], bytes: u64) -> Result<Member, CommandError> {
    let pool = core.pool.borrow();
    let number = usize::from(member);
    if number >= MAX_MEMBERS || number > pool.members.len() || pool.is_in_sync(member) || pool.members.iter().any(|m| m.id == id)
    {
        return Err(CommandError::MemberTaken);
    }
    let Some(like) = pool.members.first().map(|m| m.layout) else { return Err(CommandError::NoMembers) };
    // The maps of all volumes must still fit into the checkpoint areas.
    let (most, least) = (core.bounds().sure_pieces, smallest(&pool.members));
    let layout = Layout::plan(bytes, like.segment_bytes, like.intent_pages);
    let fits = |l: &Layout| {
        let members = pool.in_sync().count() as u64 + 1;
        let area = pool.in_sync().map(|m| pool.members[usize::from(m)].layout.checkpoint_bytes).min();
        let pages = area.unwrap_or(l.checkpoint_bytes).min(l.checkpoint_bytes) / headpond_format::PAGE_BYTES as u64;
        pages * members / members.min(2) * headpond_format::Page::PIECES as u64 / 2 >= most.min(core.segments.borrow().live * 2)
    };
    match layout.filter(fits) {
        Some(layout) => Ok(Member { id, layout, state: MemberState::InSync, joined: 0 }),
        None => Err(CommandError::MemberSmall { least }),
    }
}

fn smallest(members: &[Member]) -> u64 {
    members.iter().map(|m| m.layout.size).min().unwrap_or(0)
}

/// Takes from a device whatever could be mistaken for a state of this pool: superblocks, intent pages, segment headers.
async fn prepare<B: Buf>(core: &Rc<Core<B>>, member: u8, entry: &Member) -> Result<(), CommandError> {
    // Who waits for the one before hears that it is gone while it has left, and not when this one is there to be taken for it.
    core.exec.disown(member);
    // What it is written counts from here on, as its own.
    core.exec.written.borrow_mut().begin(member);
    core.endurance.borrow_mut().begin(member);
    {
        let mut flushers = core.member_flushers.borrow_mut();
        let mut reading = core.reading.borrow_mut();
        while flushers.len() <= usize::from(member) {
            let number = flushers.len() as u8;
            flushers.push(Flusher::new(&core.exec, Device::Member(number)));
            reading.push(MemberReads::default());
        }
        reading[usize::from(member)].damaged = 0;
    }
    let unit = core.pool.borrow().unit as usize;
    let layout = entry.layout;
    let superblocks = (0..4).map(|n| (layout.superblock(n), SUPERBLOCK_BYTES as usize));
    let pages = (0..layout.intent_pages).map(|n| (layout.intent(n, 0), 2 * headpond_format::INTENT_PAGE_BYTES));
    let headers = (0..layout.slots()).map(|n| (layout.slot(n), unit));
    let mut in_flight = VecDeque::new();
    let mut good = true;
    for (offset, len) in superblocks.chain(pages).chain(headers) {
        let op = DeviceOp::Write { offset, bufs: vec![B::zeroes(len)], reach: Reach::Cache };
        in_flight.push_back(core.exec.io(Device::Member(member), op));
        if in_flight.len() >= DEPTH
            && let Some(wait) = in_flight.pop_front()
        {
            good &= wait.await.is_ok();
        }
        if !good {
            break;
        }
    }
    for wait in in_flight {
        good &= wait.await.is_ok();
    }
    if good && core.exec.io(Device::Member(member), DeviceOp::Flush).await.is_ok() {
        return Ok(());
    }
    core.mark(Mark::NewMemberFails);
    Err(CommandError::MemberFailed)
}

/// Waits until no dirty data has fewer copies than it could, which [`crate::space`] sees to.
async fn wait_for_copies<B: Buf>(core: &Rc<Core<B>>, cancel: &Cancel) -> Result<(), CommandError> {
    let (mut least, mut since) = (u64::MAX, core.exec.attended());
    loop {
        let lacking = {
            let pool = core.pool.borrow();
            core.segments.borrow().lacking(pool.copies_now(), |m| pool.is_in_sync(m), false)
        };
        if lacking == 0 || core.pool.borrow().stalled {
            return Ok(());
        }
        if lacking < least {
            (least, since) = (lacking, core.exec.attended());
        }
        if cancel.wanted() {
            return Err(CommandError::Cancelled);
        }
        if core.exec.attended() - since > NO_PROGRESS_NS {
            core.mark(Mark::CopiesStayLacking);
            return Ok(());
        }
        core.space.notify();
        core.exec.sleep(AGAIN_NS).await;
    }
}

/// Takes a cache device out of the pool. Where this is cancelled or cannot be done, it stays, and is used as before.
pub(crate) async fn remove<B: Buf>(core: &Rc<Core<B>>, member: u8, cancel: &Cancel) -> Result<(), CommandError> {
    if !core.pool.borrow().is_in_sync(member) {
        return forget(core, member).await;
    }
    let busy = Busy::begin(core)?;
    let rest: Vec<u8> = core.pool.borrow().in_sync().filter(|m| *m != member).collect();
    if rest.len() < usize::from(core.pool.borrow().copies) {
        return Err(CommandError::TooFewMembers);
    }
    if core.pool.borrow().stalled || !core.would_have_votes(&rest).await {
        return Err(CommandError::NoMembers);
    }
    // What has no disk stays on those that stay.
    let copies = usize::from(core.pool.borrow().copies);
    let total = core.segments.borrow().total_sets_without(member, copies);
    let set_aside = core.bounds().set_aside;
    if set_aside > u64::from(total) / 2 {
        return Err(CommandError::NoRoomWithout);
    }
    core.segments.borrow_mut().close_member(member);
    core.pool.borrow_mut().leaving = Some(member);
    let mut emptied = empty(core, member, cancel).await;
    if emptied.is_ok() {
        // The marks that speak of what was moved are in an image before the segments that hold them go.
        emptied = cancel.or(core, checkpoint::now(core)).await.flatten();
    }
    let stays = || core.pool.borrow().is_in_sync(member);
    let layout = core.pool.borrow().members[usize::from(member)].layout;
    if emptied.is_ok() && stays() {
        // It may have been given something while the checkpoint ran, by whoever began before it was closed.
        emptied = if dirty_on(core, member) == 0 { Ok(()) } else { empty(core, member, cancel).await };
    }
    if emptied.is_ok() {
        emptied = retire(core, member).await;
    }
    core.pool.borrow_mut().leaving = None;
    if let Err(why) = emptied {
        core.mark(Mark::RemovalGivenUp);
        if stays() {
            core.segments.borrow_mut().open_member(member, layout.slots());
        }
        return Err(why);
    }
    if core.pool.borrow().members[usize::from(member)].id != [0; 16] {
        // It failed meanwhile, and left by itself: it may have what nobody else has.
        core.mark(Mark::LeavesBeforeItIsEmpty);
        drop(busy);
        return forget(core, member).await;
    }
    core.mark(Mark::MemberRemoved);
    // It is nobody's now. That it could not be told so does not matter: it is known to have left.
    for n in 0..4 {
        let op = DeviceOp::Write {
            offset: layout.superblock(n),
            bufs: vec![B::zeroes(SUPERBLOCK_BYTES as usize)],
            reach: Reach::Cache,
        };
        let _ = core.exec.io(Device::Member(member), op).await;
    }
    let _ = core.exec.io(Device::Member(member), DeviceOp::Flush).await;
    core.want_checkpoint();
    Ok(())
}

/// One that has left by itself is waited for no longer: its number is nobody's, as if it had been removed. It is out in any case, and is
/// never read; but while something dirty has fewer copies than it should, its name may yet be wanted.
async fn forget<B: Buf>(core: &Rc<Core<B>>, member: u8) -> Result<(), CommandError> {
    let is_known = |id: &[u8; 16]| *id != [0; 16];
    if !core.pool.borrow().members.get(usize::from(member)).is_some_and(|m| is_known(&m.id)) {
        return Err(CommandError::NoSuchMember);
    }
    let _busy = Busy::begin(core)?;
    core.wait_settled().await;
    {
        let mut pool = core.pool.borrow_mut();
        if pool.stalled {
            return Err(CommandError::NoMembers);
        }
        let segments = core.segments.borrow();
        let lacks = segments.lacking(usize::from(pool.copies), |m| pool.is_in_sync(m), !core.is_loaded.get()) > 0
            || segments.iter().any(|(_, s)| s.dirty > 0 && s.places().next().is_none());
        if lacks || pool.in_sync().count() < usize::from(pool.copies) {
            return Err(CommandError::CopiesLacking);
        }
        drop(segments);
        if let Some(m) = pool.members.get_mut(usize::from(member)).filter(|m| m.state == MemberState::Out) {
            m.id = [0; 16];
        }
    }
    if core.write_superblock().await { Ok(()) } else { Err(CommandError::NoMembers) }
}

/// Moves all that is dirty on a member to others. Where there is no room for it there, clients' writes go past the cache
/// until destage has made some.
async fn empty<B: Buf>(core: &Rc<Core<B>>, member: u8, cancel: &Cancel) -> Result<(), CommandError> {
    let mut destages: Vec<Rc<crate::core::Volume<B>>> = Vec::new();
    let (mut least, mut since) = (u64::MAX, core.exec.attended());
    let mut asks_from = 0;
    let result = loop {
        if cancel.wanted() || core.stopping.get() {
            break Err(CommandError::Cancelled);
        }
        if core.pool.borrow().stalled {
            break Err(CommandError::NoMembers);
        }
        if !core.pool.borrow().is_in_sync(member) {
            break Ok(());
        }
        if core.pool.borrow().in_sync().count() <= usize::from(core.pool.borrow().copies) {
            break Err(CommandError::TooFewMembers);
        }
        seal_on(core, member);
        let dirty = dirty_on(core, member);
        if dirty < least {
            (least, since) = (dirty, core.exec.attended());
        }
        let next = core
            .segments
            .borrow()
            .iter()
            .filter(|(_, s)| s.dirty > 0 && s.state == SegmentState::Sealed && s.places().any(|p| p.member == member))
            // What could not be read comes last.
            .min_by_key(|(_, s)| s.moves_from)
            .map(|(n, _)| n);
        match next {
            None if dirty == 0 => break Ok(()),
            // The reserve is for what wins space.
            Some(n) if core.free() > core.bounds().reserve && relocate(core, n).await => {}
            _ if core.exec.attended() - since > NO_PROGRESS_NS => break Err(CommandError::CannotEmpty { blocks: dirty }),
            _ => {
                // What is clean goes first, and that takes housekeeping a moment: until then volumes go on as they are.
                if core.now() >= asks_from {
                    core.space_is_short();
                    asks_from = core.now() + 5 * AGAIN_NS;
                }
                if destages.is_empty() && next.is_some() && core.exec.attended() - since > DESTAGES_AFTER_NS {
                    core.mark(Mark::RemovalDestages);
                    destages = core.all_volumes();
                    for v in &destages {
                        v.wanted_clean.set(v.wanted_clean.get() + 1);
                        v.work.notify();
                        hurry(v);
                    }
                }
                core.exec.sleep(AGAIN_NS / 10).await;
            }
        }
    };
    for v in destages {
        v.wanted_clean.set(v.wanted_clean.get() - 1);
    }
    result
}

/// Closes the segments on a member that are being written.
fn seal_on<B: Buf>(core: &Rc<Core<B>>, member: u8) {
    for v in core.all_volumes() {
        for log in [&v.dirty_log, &v.clean_log] {
            let is_there = |n: u32| core.segments.borrow().get(n).is_some_and(|s| s.places().any(|p| p.member == member));
            if log.positions(core).into_iter().any(|(n, _)| is_there(n)) {
                log.seal(core);
            }
        }
    }
}

/// Dirty pieces with a copy on a member, and appends in flight to segments that have one.
fn dirty_on<B: Buf>(core: &Core<B>, member: u8) -> u64 {
    let segments = core.segments.borrow();
    let there = segments.iter().filter(|(_, s)| s.class == Class::Mirrored && s.places().any(|p| p.member == member));
    there.map(|(_, s)| u64::from(s.dirty) + u64::from(s.state == SegmentState::Open || s.pins > 0)).sum()
}

/// Keeps others from adding or removing a member.
struct Busy<B: Buf> {
    core: Rc<Core<B>>,
}

impl<B: Buf> Busy<B> {
    fn begin(core: &Rc<Core<B>>) -> Result<Self, CommandError> {
        if core::mem::replace(&mut core.pool.borrow_mut().busy, true) {
            return Err(CommandError::MembersBusy);
        }
        Ok(Self { core: core.clone() })
    }
}

impl<B: Buf> Drop for Busy<B> {
    fn drop(&mut self) {
        self.core.pool.borrow_mut().busy = false;
    }
}
