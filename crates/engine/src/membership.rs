//! Membership: who is in sync, decided by epochs durable on a majority of members and witness (R7), and the
//! superblocks and witness records that say so.

use crate::core::{Core, Member, Volume, WitnessSlot};
use crate::intent::{Bit, write_pages};
use crate::io::{Buf, CommandError, Device, DeviceError, DeviceOp, Reach};
use crate::marks::Mark;
use crate::segments::Segment;
use crate::{doubts, loading};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use headpond_format::{
    Class, InSync, MemberEntry, MemberState, SUPERBLOCK_BYTES, Superblock, VolumeEntry, WITNESS_BYTES, WITNESS_SLOTS,
    WitnessRecord,
};

impl<B: Buf> Core<B> {
    /// Waits until no membership change is under way: what is decided before could be about copies that no longer count.
    pub(crate) async fn wait_settled(&self) {
        loop {
            let wait = self.membership.wait();
            if !self.pool.borrow().changing {
                return;
            }
            wait.await;
        }
    }

    /// Whether a member joined in an epoch after `epoch`.
    pub(crate) fn joined_since(&self, epoch: u64) -> bool {
        self.pool.borrow().last_join > epoch
    }

    /// As [`Core::fail_member`], of something that it was asked in `epoch`: the one that has its number by now may be another.
    pub(crate) async fn fail_member_of(self: &Rc<Self>, epoch: u64, member: u8) {
        let is_another = self.pool.borrow().members.get(usize::from(member)).is_none_or(|m| m.joined > epoch);
        if is_another {
            self.mark(Mark::PredecessorFails);
            return;
        }
        self.fail_member(member).await;
    }

    /// A cache device failed: it leaves by an epoch that is durable on a majority before anything is acknowledged that
    /// it lacks. Ends when membership has settled.
    pub(crate) async fn fail_member(self: &Rc<Self>, member: u8) {
        if self.pool.borrow().starting {
            return self.miss(member);
        }
        let begins = {
            let mut pool = self.pool.borrow_mut();
            let concerns = pool.is_in_sync(member);
            if concerns {
                pool.failing |= 1 << member;
            }
            let begins = concerns && !pool.changing;
            self.mark_if(concerns && !begins, Mark::FailsDuringChange);
            pool.changing |= begins;
            begins
        };
        self.tell_members(false);
        if begins {
            // A task of its own: whoever noticed may be forgotten, the change may not.
            let before = self.pool.borrow().voters();
            self.exec.spawn(change(self.clone(), before, Why::Fails));
        }
        self.wait_settled().await;
    }

    /// A cache device failed in a start, which goes on as if it had been missing from the beginning. Nothing is written down of that before
    /// the start has come through ([`agree_at_start`]): where it does not, the next one has all that this one had.
    fn miss(&self, member: u8) {
        {
            let mut pool = self.pool.borrow_mut();
            if !pool.is_in_sync(member) {
                return;
            }
            pool.members[usize::from(member)].state = MemberState::Out;
            pool.missing.push(member);
            let none_is_left = pool.in_sync().next().is_none();
            pool.stalled |= none_is_left;
        }
        self.segments.borrow_mut().drop_member(member);
        self.tell_members(true);
        self.membership.notify();
    }

    /// The superblock as it is now, for a member.
    pub(crate) fn superblock_for(&self, member: u8) -> Superblock {
        let pool = self.pool.borrow();
        Superblock {
            pool: pool.id,
            name: pool.name.clone(),
            key: pool.key,
            member,
            epoch: pool.epoch,
            agreed: pool.agreed,
            sequence: pool.sequence,
            copies: pool.copies,
            unit: pool.unit,
            witness: pool.witness,
            left: pool.left,
            owner: pool.owner,
            fence: pool.fence,
            members: pool.members.iter().map(|m| MemberEntry { id: m.id, state: m.state, layout: m.layout }).collect(),
            volumes: self
                .volumes
                .borrow()
                .values()
                .map(|v| VolumeEntry {
                    number: v.number,
                    id: v.id,
                    name: v.name.clone(),
                    sectors: v.sectors.get(),
                    phase: v.phase,
                    mode: v.mode.get(),
                    intent_first: v.intent.named().first,
                    intent_pages: v.intent.named().count,
                    backing: v.backing.clone(),
                    doubts: doubts::tell(v),
                })
                .collect(),
            checkpoint: pool.checkpoint.clone(),
        }
    }

    /// Writes the superblock to all members that are in sync, durably. A member that cannot take it leaves.
    /// `false` if no member is left or no majority stands behind the pool.
    pub(crate) async fn write_superblock(self: &Rc<Self>) -> bool {
        loop {
            // A membership that is not decided yet must not be written under the epoch before it.
            self.wait_settled().await;
            let wait = self.superblock_free.wait();
            if !self.superblock_busy.get() {
                break;
            }
            self.mark(Mark::SuperblockWaits);
            wait.await;
        }
        if self.pool.borrow().stalled {
            return false;
        }
        self.superblock_busy.set(true);
        let members: Vec<u8> = self.pool.borrow().in_sync().collect();
        self.pool.borrow_mut().sequence += 1;
        let failed = self.put_superblocks(&members).await;
        self.superblock_busy.set(false);
        self.superblock_free.notify();
        for m in failed {
            self.mark(Mark::SuperblockFails);
            self.fail_member(m).await;
        }
        self.wait_settled().await;
        self.pool.borrow().has_votes()
    }

    /// Writes and flushes the superblock as it is now on `members`; those that failed.
    async fn put_superblocks(&self, members: &[u8]) -> Vec<u8> {
        let superblocks: Vec<_> = members.iter().map(|m| self.superblock_for(*m)).collect();
        self.put(&superblocks).await
    }

    /// Gives `elected` to the members that are behind it, where it was to be written when the daemon died; those that failed.
    pub(crate) async fn catch_up(&self, elected: &Superblock, behind: &[u8]) -> Vec<u8> {
        let superblocks: Vec<_> = behind.iter().map(|m| Superblock { member: *m, ..elected.clone() }).collect();
        self.put(&superblocks).await
    }

    /// Writes and flushes superblocks, each on its member; those that failed.
    async fn put(&self, superblocks: &[Superblock]) -> Vec<u8> {
        let mut writes = Vec::new();
        for superblock in superblocks {
            let m = superblock.member;
            let layout = self.pool.borrow().members[usize::from(m)].layout;
            let mut bytes = superblock.encode();
            if self.whole_slots.get() {
                bytes.resize(SUPERBLOCK_BYTES as usize, 0);
            }
            let bytes = B::from_bytes(&bytes);
            let slot = (superblock.sequence % 2) as u8;
            self.stats.borrow_mut().member_bytes += 2 * bytes.len() as u64;
            for n in [slot, slot + 2] {
                let op = DeviceOp::Write { offset: layout.superblock(n), bufs: vec![bytes.clone()], reach: Reach::Cache };
                writes.push((m, self.exec.io(Device::Member(m), op)));
            }
        }
        let mut failed = Vec::new();
        for (m, write) in writes {
            match write.await {
                Ok(_) => self.member_flusher(m).wrote(),
                Err(_) => failed.push(m),
            }
        }
        let mut flushes = Vec::new();
        for m in superblocks.iter().map(|s| s.member) {
            flushes.push((m, self.member_flusher(m).request()));
        }
        for (m, flush) in flushes {
            if flush.get().await.is_err() {
                failed.push(m);
            }
        }
        failed.sort_unstable();
        failed.dedup();
        failed
    }

    /// Writes the witness's record, durably, where the newest one is not.
    async fn put_witness(&self) -> bool {
        // As it is now: who fails meanwhile is not out in this epoch.
        let record = {
            let pool = self.pool.borrow();
            let in_sync = InSync::of(pool.in_sync().map(|m| (m, pool.members[usize::from(m)].id)));
            WitnessRecord { pool: pool.id, epoch: pool.epoch, in_sync }
        };
        let Some(newest) = self.newest_of_witness().await else { return false };
        let slot = (newest + 1) % WITNESS_SLOTS;
        let bufs = vec![B::from_bytes(&record.encode())];
        let op = DeviceOp::Write { offset: slot * WITNESS_BYTES, bufs, reach: Reach::Cache };
        let written = self.exec.io(Device::Witness, op).await;
        let told = written.is_ok() && self.exec.io(Device::Witness, DeviceOp::Flush).await.is_ok();
        match written {
            _ if told => self.pool.borrow_mut().witness_slot = WitnessSlot::Newest(slot),
            Err(DeviceError::TimedOut) => self.pool.borrow_mut().witness_slot = WitnessSlot::InDoubt,
            _ => {}
        }
        told
    }

    /// Which of the witness's slots has its newest record. It is looked at once in a life, and again after a write of which nobody knew for long
    /// whether it takes place: who could not be asked at the start may know more than anybody else, and is not to lose it to a write that is cut
    /// short.
    async fn newest_of_witness(&self) -> Option<u64> {
        let known = self.pool.borrow().witness_slot;
        match known {
            WitnessSlot::Newest(slot) => return Some(slot),
            // A write that was given up may still land, in whatever slot it was for.
            WitnessSlot::InDoubt if self.exec.witness_owes() => return None,
            // And what has landed late counts when it is durable: the other slot, which has what was, is written next.
            WitnessSlot::InDoubt if self.exec.io(Device::Witness, DeviceOp::Flush).await.is_err() => return None,
            WitnessSlot::InDoubt | WitnessSlot::Unknown => {}
        }
        let mut newest = None;
        for slot in 0..WITNESS_SLOTS {
            let read = DeviceOp::Read { offset: slot * WITNESS_BYTES, len: WITNESS_BYTES as u32, into: None };
            let record = match self.exec.io(Device::Witness, read).await {
                Ok(bytes) => bytes.and_then(|bytes| WitnessRecord::decode(&bytes.to_bytes()).ok()),
                Err(DeviceError::TimedOut) => return None,
                // What cannot be read beside the other one is nobody's any more, and can be read again once it is written.
                Err(_) => continue,
            };
            let record = record.filter(|w| w.pool == self.pool.borrow().id);
            newest = newest.max(Some((record.map_or(0, |w| w.epoch), slot)));
        }
        let slot = newest?.1;
        self.pool.borrow_mut().witness_slot = WitnessSlot::Newest(slot);
        Some(slot)
    }

    /// Raises the epoch with the present members: after a member was taken out, or `joins` was put in, or at a start. Whether it is
    /// agreed on: a majority of the votes of `before` (and the witness) has it durably, or all of `before`, one of whom each start has.
    async fn raise_epoch(self: &Rc<Self>, before: &[u8], joins: Option<u8>) -> Raised {
        loop {
            let wait = self.superblock_free.wait();
            if !self.superblock_busy.get() {
                break;
            }
            wait.await;
        }
        self.mark(Mark::EpochRaised);
        self.superblock_busy.set(true);
        self.pool.borrow_mut().epoch += 1;
        let members: Vec<u8> = self.pool.borrow().in_sync().collect();
        let (witness, votes) = (self.pool.borrow().witness, self.pool.borrow().witness_votes);
        let voters = before.len() + usize::from(witness);
        let votes_without = |failed: &[u8], voted: bool| {
            members.iter().filter(|m| !failed.contains(m) && before.contains(m)).count() + usize::from(voted)
        };
        let agrees = |failed: &[u8], voted: bool| {
            let all = before.iter().all(|m| members.contains(m) && !failed.contains(m)) && !before.is_empty();
            all || votes_without(failed, voted) * 2 > voters
        };
        // Where no majority can come of it, nobody writes down what only he believes, and the witness is not told.
        let may_agree = |voted: bool| members.is_empty() || agrees(&[], voted);
        // The witness first, who alone may remember who left. One that joins it must not know before any member does: a
        // crash would leave it asking for a member that nobody else has heard of.
        let mut voted = votes && may_agree(true) && joins.is_none() && self.put_witness().await;
        let hopeless = !may_agree(voted || votes && joins.is_some());
        self.mark_if(hopeless, Mark::HopelessEpoch);
        let mut failed = Vec::new();
        if !hopeless {
            self.pool.borrow_mut().sequence += 1;
        }
        if let Some(joins) = joins.filter(|_| !hopeless) {
            // Itself before the others: none of them is ever to miss one that does not know yet that it is a member.
            failed = self.put_superblocks(&[joins]).await;
            if !failed.is_empty() {
                // The others go on from the one that they have, which the next but one would be written over.
                self.pool.borrow_mut().sequence -= 1;
            }
        }
        let reaches_all = !hopeless && failed.is_empty();
        if reaches_all {
            // The same one, of the same number: each keeps the one before it.
            let others: Vec<u8> = members.iter().copied().filter(|m| joins != Some(*m)).collect();
            failed = self.put_superblocks(&others).await;
        }
        if joins.is_some() && votes && reaches_all && failed.is_empty() {
            voted = self.put_witness().await;
        }
        // The last member cannot vote itself out: there the witness alone remembers.
        let agreed = if members.is_empty() { voted } else { reaches_all && agrees(&failed, voted) };
        // One that does not vote is told what the others have agreed on.
        let told = agreed && (voted || witness && !votes && self.put_witness().await);
        self.superblock_busy.set(false);
        self.superblock_free.notify();
        {
            let mut pool = self.pool.borrow_mut();
            pool.witness_votes |= told;
            pool.witness_lags &= !told;
            if agreed {
                pool.agreed = pool.epoch;
                pool.missing.clear();
            }
        }
        if witness && agreed && !told {
            self.tell_later();
        }
        Raised { agreed, failed }
    }

    /// Whether as many of `before` as there are copies have left, with others before them, though something may be dirty, and nobody has
    /// said that this is for good.
    fn would_lack_copies(&self, before: &[u8]) -> bool {
        let (gone, left, copies) = {
            let pool = self.pool.borrow();
            (before.iter().any(|m| !pool.is_in_sync(*m)), pool.left, pool.copies)
        };
        gone && left >= copies && !self.settings.without_missing && self.all_volumes().iter().any(|v| v.intent.any(Bit::Dirty))
    }

    /// Whether the cache devices may have something that no disk has.
    fn may_be_needed(&self) -> bool {
        let volumes = self.all_volumes();
        let is_dirty = match self.is_loaded.get() {
            true => self.segments.borrow().iter().any(|(_, s)| s.dirty > 0 && s.places().next().is_some()),
            false => volumes.iter().any(|v| v.intent.any(Bit::Dirty)),
        };
        is_dirty || volumes.iter().any(|v| !v.has_disk())
    }
}

/// How often a witness that could not be told of an epoch is told again, in nanoseconds.
const TELL_AGAIN_NS: u64 = 60_000_000_000;

/// Tells a witness that could not be written what is agreed on by now, as soon as it can be: a start in which a member is missing needs its
/// vote, and does not have it while the witness knows less than the others.
async fn tell_witness<B: Buf>(core: Rc<Core<B>>) {
    loop {
        core.exec.sleep(TELL_AGAIN_NS).await;
        // It was told with the next one; or what there is is not agreed on, and it must not know.
        if core.pool.borrow().stalled || !core.pool.borrow().witness_lags {
            return;
        }
        if core.tell_now().await {
            core.mark(Mark::WitnessToldLater);
            return;
        }
    }
}

struct Raised {
    agreed: bool,
    failed: Vec<u8>,
}

/// Has an epoch agreed on at a start, whoever is there, before anything is acknowledged: a witness, or a copy of one, that has not heard of this
/// start has no vote at any later one. Members that are missing, or failed meanwhile, leave with it.
pub(crate) async fn agree_at_start<B: Buf>(core: &Rc<Core<B>>) {
    let before = core.pool.borrow().voters();
    core.mark_if(!core.pool.borrow().missing.is_empty(), Mark::LeftAtStart);
    core.pool.borrow_mut().changing = true;
    change(core.clone(), before, Why::Starts).await;
}

/// Puts `entry` in as member `member`, in an epoch of its own: any two majorities of memberships that differ by one member
/// share a vote, which those that differ by more need not. Whether it is in.
pub(crate) async fn join<B: Buf>(core: &Rc<Core<B>>, member: u8, entry: Member) -> bool {
    loop {
        core.wait_settled().await;
        let wait = core.superblock_free.wait();
        // What failed meanwhile has to leave first; and it is in sync in its own epoch, not while the one before is still being
        // written down: what is acknowledged then has its copies on the others.
        if core.pool.borrow().failing == 0 && !core.superblock_busy.get() {
            break;
        }
        if core.superblock_busy.get() {
            wait.await;
        }
    }
    // Who all failed at once has not left, and has all there is: it is not to be told by one who has nothing that it has.
    if core.pool.borrow().stalled {
        core.mark(Mark::JoinsTooLate);
        return false;
    }
    let before: Vec<u8> = {
        let mut pool = core.pool.borrow_mut();
        let before: Vec<u8> = pool.in_sync().collect();
        pool.changing = true;
        if before.is_empty() {
            // The newest image was on those that have left, and none of it counts: whoever has their numbers does not have it.
            pool.checkpoint.pages = 0;
            pool.checkpoint.members.clear();
            // Nothing dirty went with them, so that whoever comes now has all there is.
            if nothing_is_dirty(core) {
                pool.left = pool.copies.saturating_sub(1);
            }
        }
        // Which is the one that is raised for it.
        let entry = Member { joined: pool.epoch + 1, ..entry };
        let m = usize::from(member);
        if m < pool.members.len() {
            pool.members[m] = entry
        } else {
            pool.members.push(entry)
        }
        before
    };
    let raised = core.raise_epoch(&before, Some(member)).await;
    let joined = {
        let mut pool = core.pool.borrow_mut();
        for m in raised.failed {
            pool.failing |= 1 << m;
        }
        let joined = raised.agreed && pool.failing == 0;
        if joined {
            pool.last_join = pool.epoch;
        } else {
            pool.failing |= 1 << member;
        }
        joined
    };
    if !joined {
        core.mark(Mark::JoinFails);
        change(core.clone(), before, Why::Fails).await;
        return false;
    }
    core.mark(Mark::MemberJoined);
    let slots = core.pool.borrow().members[usize::from(member)].layout.slots();
    core.segments.borrow_mut().add_member(member, slots);
    for volume in core.all_volumes() {
        volume.intent.member_joined();
    }
    settled(core, &before);
    for volume in core.all_volumes() {
        write_pages(core, &volume);
    }
    core.want_checkpoint();
    true
}

/// Whether it is known that nothing is dirty, with a copy left or without.
fn nothing_is_dirty<B: Buf>(core: &Core<B>) -> bool {
    core.is_loaded.get() && core.segments.borrow().dirty == 0
}

/// Takes out a member that nothing dirty is on any more.
///
/// # Errors
/// The votes, or the members, are too few by now, and it stays: an epoch that nobody agrees on would stall the pool for what was only a wish. Or
/// nobody agreed to it, and the pool has stalled.
pub(crate) async fn retire<B: Buf>(core: &Rc<Core<B>>, member: u8) -> Result<(), CommandError> {
    loop {
        core.wait_settled().await;
        let before: Vec<u8> = core.pool.borrow().in_sync().collect();
        // Who failed where nobody could agree has not left: the next start may need all that it has.
        if core.pool.borrow().stalled {
            return Err(CommandError::NoMembers);
        }
        if !before.contains(&member) {
            break;
        }
        let rest: Vec<u8> = before.iter().copied().filter(|m| *m != member).collect();
        if rest.len() < usize::from(core.pool.borrow().copies) {
            return Err(CommandError::TooFewMembers);
        }
        if !core.would_have_votes(&rest).await {
            return Err(CommandError::NoMembers);
        }
        // What was asked about is to be what is decided on.
        let is_as_asked = {
            let mut pool = core.pool.borrow_mut();
            let is_as_asked = !pool.changing && pool.in_sync().eq(before.iter().copied());
            pool.changing |= is_as_asked;
            is_as_asked
        };
        if is_as_asked {
            change(core.clone(), before, Why::Retires(member)).await;
        }
    }
    // That its number is nobody's from now on is said behind the epoch that everybody has agreed on: one that nobody has would not say whom it leaves
    // out, and a later start could not tell it from the newest.
    if core.write_superblock().await { Ok(()) } else { Err(CommandError::NoMembers) }
}

impl<B: Buf> Core<B> {
    /// Tells the witness what is agreed on now. Whether it knows it, durably. Where it could not be told, it is told later.
    async fn tell_now(self: &Rc<Self>) -> bool {
        loop {
            self.wait_settled().await;
            let wait = self.superblock_free.wait();
            if !self.superblock_busy.get() {
                break;
            }
            wait.await;
        }
        if self.pool.borrow().stalled {
            return false;
        }
        self.superblock_busy.set(true);
        let told = self.put_witness().await;
        self.superblock_busy.set(false);
        self.superblock_free.notify();
        if told {
            let mut pool = self.pool.borrow_mut();
            (pool.witness_lags, pool.witness_votes) = (false, true);
        } else {
            self.tell_later();
        }
        told
    }

    /// The witness could not be told of what is agreed on: it is tried again until it can be, and counts as lagging behind.
    fn tell_later(self: &Rc<Self>) {
        if !core::mem::replace(&mut self.pool.borrow_mut().witness_lags, true) {
            self.exec.spawn(tell_witness(self.clone()));
        }
    }

    /// Whether an epoch in which `members` are in sync would have the votes: those of them that are in sync now, and the
    /// witness, if it can be reached.
    pub(crate) async fn would_have_votes(self: &Rc<Self>, members: &[u8]) -> bool {
        let (before, witness) = {
            let pool = self.pool.borrow();
            (pool.voters(), pool.witness)
        };
        let (votes, starting) = (self.pool.borrow().witness_votes, self.pool.borrow().starting);
        let reached = votes
            && match starting {
                // It must not know of what nobody has agreed on yet.
                true => self.exec.io(Device::Witness, DeviceOp::Flush).await.is_ok(),
                // What takes flushes need not take what is written.
                false => self.tell_now().await,
            };
        let votes = members.iter().filter(|m| before.contains(m)).count() + usize::from(reached);
        // Where all have left there is nobody but the witness to remember.
        let all = !before.is_empty() && before.iter().all(|m| members.contains(m));
        all || votes * 2 > before.len() + usize::from(witness)
    }
}

/// Why membership changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Members failed.
    Fails,
    /// A start has its own epoch.
    Starts,
    /// This one goes by choice, and leaves nothing behind.
    Retires(u8),
}

/// One membership change: takes out all members that failed, until the rest agrees.
async fn change<B: Buf>(core: Rc<Core<B>>, before: Vec<u8>, mut why: Why) {
    let left_before = core.pool.borrow().left;
    let agreed = loop {
        {
            let mut pool = core.pool.borrow_mut();
            let failing = core::mem::take(&mut pool.failing);
            for (n, m) in pool.members.iter_mut().enumerate() {
                if failing >> n & 1 == 1 {
                    m.state = MemberState::Out;
                }
            }
            if let Why::Retires(goes) = why {
                // Where another one fails meanwhile it stays, and has its vote: without both nobody might agree.
                let stays = failing != 0;
                core.mark_if(stays, Mark::RemovalGivesWay);
                pool.members[usize::from(goes)].state = if stays { MemberState::InSync } else { MemberState::Out };
                if stays {
                    why = Why::Fails;
                    // What was being written when it was out does not count as written on it.
                    pool.last_join = pool.epoch + 1;
                    core.all_volumes().iter().for_each(|v| v.intent.member_joined());
                }
            }
            let now: Vec<u8> = pool.in_sync().collect();
            pool.left =
                left_before.saturating_add(before.iter().filter(|m| !now.contains(m) && why != Why::Retires(**m)).count() as u8);
        }
        // None is left that could remember, and what is dirty is on them: they may all be behind a controller that hangs for a moment. None is
        // voted out then, and the next start takes them as they are.
        let all_fail = core.pool.borrow().in_sync().next().is_none() && (why == Why::Starts || core.may_be_needed());
        // Nor those without whom a start would not have come so far, and who fail at its end.
        let too_many = why == Why::Starts && core.would_lack_copies(&before);
        core.mark_if(all_fail, Mark::AllFail);
        let raised = match all_fail || too_many {
            true => Raised { agreed: false, failed: Vec::new() },
            false => core.raise_epoch(&before, None).await,
        };
        for m in raised.failed {
            core.mark(Mark::FailsUnderEpoch);
            core.pool.borrow_mut().failing |= 1 << m;
        }
        if core.pool.borrow().failing == 0 {
            break raised.agreed;
        }
    };
    {
        let mut pool = core.pool.borrow_mut();
        core.mark_if(!agreed, Mark::NoMajority);
        core.mark_if(agreed && pool.in_sync().next().is_none(), Mark::LastMemberLeft);
        pool.stalled |= !agreed;
        if let Why::Retires(gone) = why
            && agreed
        {
            // Its number is nobody's from now on.
            pool.members[usize::from(gone)].id = [0; 16];
        }
    }
    let all_stay = before.iter().all(|m| core.pool.borrow().is_in_sync(*m));
    settled(&core, &before);
    if !core.pool.borrow().starting {
        // One that was to go, and stays, has them written anew.
        core.all_volumes().iter().for_each(|v| write_pages(&core, v));
    }
    if !all_stay {
        core.exec.spawn(purge_lost(core.clone()));
    }
}

/// Membership is decided, and another one than that of `before`: what follows from it, and whoever waited goes on.
fn settled<B: Buf>(core: &Rc<Core<B>>, before: &[u8]) {
    let gone: Vec<u8> = before.iter().copied().filter(|m| !core.pool.borrow().is_in_sync(*m)).collect();
    // Of what was lost before clients were told when it was; not of what a start has missed.
    let had_none: Vec<u32> = match gone.is_empty() || core.pool.borrow().starting {
        true => Vec::new(),
        false => core.segments.borrow().iter().filter(|(_, s)| s.places().next().is_none()).map(|(n, _)| n).collect(),
    };
    for m in &gone {
        core.segments.borrow_mut().drop_member(*m);
        core.stats.borrow_mut().members_left += 1;
    }
    core.tell_members(!gone.is_empty());
    for volume in core.all_volumes() {
        // Of what was not flushed yet nobody else will tell the client.
        let segments = core.segments.borrow();
        // Before all of the map is known any of them may hold something dirty.
        let may_be_dirty = |s: &Segment| s.dirty > 0 || !core.is_loaded.get() && s.class == Class::Mirrored;
        let is_lost = |s: &Segment| s.volume == volume.number && may_be_dirty(s) && s.places().next().is_none();
        if !gone.is_empty() && segments.iter().any(|(n, s)| is_lost(s) && had_none.binary_search(&n).is_err()) {
            core.mark(Mark::CopiesLost);
            volume.losses.set(volume.losses.get() + 1);
            volume.lost_at.set(volume.acknowledged.get());
            // A later life is to tell of it, if this one does not live to.
            volume.disk_flusher.tell();
        }
        drop(segments);
        volume.dirty_log.seal(core);
        volume.clean_log.seal(core);
        volume.intent.wake();
        volume.work.notify();
    }
    core.pool.borrow_mut().changing = false;
    core.membership.notify();
    core.space.notify();
}

/// Lets go of clean pieces whose only copy was on a member that left. Reads already take them for missing; this frees
/// their numbers. Dirty pieces stay: their ranges fail rather than show older data (R8).
async fn purge_lost<B: Buf>(core: Rc<Core<B>>) {
    // They may hide older ones that are still to be read.
    if loading::wait(&core).await.is_err() {
        return;
    }
    for volume in core.all_volumes() {
        let mut from = Some(0);
        while let Some(at) = from {
            let mut lost = Vec::new();
            from = volume.map.borrow().walk(at, 4096, |block, p| {
                let gone = core.segments.borrow().get(p.segment).is_none_or(|s| s.places().next().is_none());
                if gone && !p.dirty() {
                    lost.push(block);
                }
            });
            core.mark_if(!lost.is_empty(), Mark::LostCleanPurged);
            forget_lost(&core, &volume, &lost);
            core.exec.sleep(100_000).await;
        }
    }
    // What has no copy left, and nothing that counts, needs no number any more.
    let mut segments = core.segments.borrow_mut();
    let numbers: Vec<u32> = segments
        .iter()
        .filter(|(_, s)| s.class == Class::Mirrored && s.places().next().is_none() && s.dirty == 0 && !s.marks)
        .map(|(n, _)| n)
        .collect();
    for n in numbers {
        segments.seal(n);
    }
    segments.settle();
}

/// Lets go of the clean pieces of blocks whose segments have no copy left.
fn forget_lost<B: Buf>(core: &Core<B>, volume: &Volume<B>, blocks: &[u64]) {
    let mut map = volume.map.borrow_mut();
    let mut segments = core.segments.borrow_mut();
    for block in blocks {
        let mut gone: Vec<u32> = Vec::new();
        map.each(*block, |p| {
            if segments.get(p.segment).is_none_or(|s| s.places().next().is_none()) {
                gone.push(p.segment);
            }
        });
        map.drop_clean(&mut segments, *block, |p| gone.contains(&p.segment));
    }
    segments.settle();
}
