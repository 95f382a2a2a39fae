//! What a start cannot read it asks for again, for a while: a path to cache devices may be lost for a moment, and nothing else tells of
//! what is there.

use crate::core::Core;
use crate::exec::{IoWait, all};
use crate::io::{Buf, Device, DeviceOp};
use crate::marks::Mark;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::Range;

/// How long a path may be lost, and how often it is tried, in nanoseconds.
pub(crate) const PATIENCE_NS: u64 = 5_000_000_000;
pub(crate) const AGAIN_NS: u64 = 100_000_000;
/// Reads in flight at once.
const DEPTH: usize = 64;
/// In so many parts what cannot be read whole is read.
const PARTS: usize = 16;

/// What each cache device is waited for in all of a start, in nanoseconds: what is bad in a hundred places is not waited for in each.
const IN_ALL_NS: u64 = 60_000_000_000;

/// What a start may still wait for each cache device, for one thing that it reads and in all. Each has its own: what one does not answer, or what
/// cannot be read of one thing, is no reason to take the next failure for final.
#[derive(Default)]
pub(crate) struct Patience {
    /// Nanoseconds that each was waited for, for the thing that is being read.
    waited: RefCell<BTreeMap<u8, u64>>,
    /// The same for all before.
    before: RefCell<BTreeMap<u8, u64>>,
}

impl Patience {
    /// The next thing is read: a page of the intent map, all headers, or a segment.
    pub fn anew(&self) {
        for (m, waited) in core::mem::take(&mut *self.waited.borrow_mut()) {
            *self.before.borrow_mut().entry(m).or_default() += waited;
        }
    }

    /// Whether a member was not waited for long enough yet. Who has answered nothing for so long that it was given up is not waited for: it is
    /// asked nothing any more.
    fn may_come<B: Buf>(&self, core: &Core<B>, m: u8) -> bool {
        let waited = |so_far: &RefCell<BTreeMap<u8, u64>>| so_far.borrow().get(&m).copied().unwrap_or(0);
        let may_come = waited(&self.waited) < PATIENCE_NS && waited(&self.before) < IN_ALL_NS;
        may_come && core.pool.borrow().is_in_sync(m) && !core.exec.is_silent(Device::Member(m))
    }

    /// Reads many ranges of members, and again what could not be read; `None` where it cannot. Also what another copy tells is asked for again:
    /// that one may be damaged. What members fail to read that have left is not missed.
    pub async fn read<B: Buf>(&self, core: &Rc<Core<B>>, ranges: &[(u8, u64, u32)]) -> Vec<Option<B>> {
        let mut read = read_all(core, ranges).await;
        let failing: BTreeSet<u8> =
            ranges.iter().zip(&read).filter(|(_, read)| read.is_none()).map(|(range, _)| range.0).collect();
        // Each by itself: how long one takes to say that it cannot is no time in which another one was asked. And all at once: a path that they have in
        // common is lost to all of them for as long, and must not have one given up and another one found well again.
        let asked = failing.iter().map(|m| self.read_again(core, *m, ranges, &read)).collect();
        for (n, part) in all(asked).await.into_iter().flatten() {
            read[n] = Some(part);
        }
        let failed = |read: &[Option<B>]| (0..read.len()).filter(|n| read[*n].is_none()).collect::<Vec<usize>>();
        let given_up: BTreeSet<u8> = failed(&read).into_iter().map(|n| ranges[n].0).collect();
        // One may have come back in the moment in which another was given up.
        if given_up.len() < failing.len() && given_up.iter().any(|m| core.pool.borrow().is_in_sync(*m)) {
            let failed = failed(&read);
            let again: Vec<_> = failed.iter().map(|n| ranges[*n]).collect();
            for (n, part) in failed.into_iter().zip(read_all(core, &again).await) {
                read[n] = part;
            }
        }
        read
    }

    /// Asks a member again for what it could not read of `ranges`, while it may come; what it reads then. By the clock: a drive may take seconds to say
    /// that it cannot.
    async fn read_again<B: Buf>(
        &self,
        core: &Rc<Core<B>>,
        m: u8,
        ranges: &[(u8, u64, u32)],
        read: &[Option<B>],
    ) -> Vec<(usize, B)> {
        let mut failed: Vec<usize> = (0..read.len()).filter(|n| ranges[*n].0 == m && read[*n].is_none()).collect();
        let mut found = Vec::new();
        while !failed.is_empty() && self.may_come(core, m) {
            let since = core.exec.attended();
            core.mark(Mark::AsksAgainAtStart);
            core.exec.sleep(AGAIN_NS).await;
            let again: Vec<_> = failed.iter().map(|n| ranges[*n]).collect();
            let parts = read_all(core, &again).await;
            found.extend(failed.iter().zip(&parts).filter_map(|(n, part)| part.clone().map(|part| (*n, part))));
            failed = failed.into_iter().zip(parts).filter(|(_, part)| part.is_none()).map(|(n, _)| n).collect();
            *self.waited.borrow_mut().entry(m).or_default() += core.exec.attended() - since;
        }
        found
    }

    /// The same of units that follow each other, `run` of them at a time, as of something that could not be read in one piece: in ever shorter
    /// pieces, so that a bad sector costs a few dozen reads, and not one of each unit beside it.
    pub async fn read_narrowing<B: Buf>(&self, core: &Rc<Core<B>>, units: &[(u8, u64, u32)], run: usize) -> Vec<Option<B>> {
        let mut read: Vec<Option<B>> = vec![None; units.len()];
        let mut runs: Vec<Range<usize>> =
            (0..units.len()).step_by(run.max(1)).flat_map(|n| parts(n..(n + run).min(units.len()))).collect();
        while !runs.is_empty() {
            let whole = |run: &Range<usize>| {
                let (member, offset, _) = units[run.start];
                (member, offset, units[run.clone()].iter().map(|unit| unit.2).sum())
            };
            let data = read_all(core, &runs.iter().map(whole).collect::<Vec<_>>()).await;
            let mut shorter = Vec::new();
            for (run, data) in runs.into_iter().zip(data) {
                let Some(data) = data else {
                    shorter.extend(parts(run.clone()).filter(|part| *part != run));
                    continue;
                };
                let mut at = 0;
                for n in run {
                    let len = units[n].2 as usize;
                    read[n] = Some(data.slice(at..at + len));
                    at += len;
                }
            }
            runs = shorter;
        }
        let failed: Vec<usize> = (0..units.len()).filter(|n| read[*n].is_none()).collect();
        let again: Vec<_> = failed.iter().map(|n| units[*n]).collect();
        for (n, part) in failed.into_iter().zip(self.read(core, &again).await) {
            read[n] = part;
        }
        read
    }
}

/// A run in sixteen parts, or of one where it is shorter.
fn parts(run: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let step = run.len().div_ceil(PARTS).max(1);
    run.clone().step_by(step).map(move |start| start..(start + step).min(run.end))
}

/// Reads many ranges of members, a bounded number at once; `None` where a read failed.
async fn read_all<B: Buf>(core: &Rc<Core<B>>, ranges: &[(u8, u64, u32)]) -> Vec<Option<B>> {
    let mut out = Vec::with_capacity(ranges.len());
    let mut waits: VecDeque<IoWait<B>> = VecDeque::new();
    let mut next = 0;
    while out.len() < ranges.len() {
        while next < ranges.len() && waits.len() < DEPTH {
            let (m, offset, len) = ranges[next];
            waits.push_back(core.exec.io(Device::Member(m), DeviceOp::Read { offset, len, into: None }));
            next += 1;
        }
        if let Some(wait) = waits.pop_front() {
            out.push(wait.await.ok().flatten().filter(|b| b.len() == ranges[out.len()].2 as usize));
        }
    }
    out
}
