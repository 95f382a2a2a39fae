//! The intent map: what may be newer on the disk than in clean copies, and where there may be dirty data.
//!
//! A region's intent bit is durable on all members before anything but destage writes there (R4); its dirty bit is
//! written before dirty data there is acknowledged (R8). Bits are cleared lazily, after a checkpoint.

use crate::core::{Core, Volume};
use crate::exec::Signal;
use crate::io::{Buf, Device, DeviceOp};
use crate::marks::Mark;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::Range;
use headpond_format::{INTENT_PAGE_BYTES, IntentPage, REGION_SECTORS, REGIONS_PER_PAGE};

/// Which of the two bits of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bit {
    Intent,
    Dirty,
}

struct PageState {
    wanted: IntentPage,
    written: IntentPage,
    durable: IntentPage,
    /// `wanted` has changed since the page was last taken to be written.
    needs: bool,
    writing: bool,
}

#[derive(Clone, Copy, Default)]
struct Use {
    /// Writes other than destage in flight on the disk in this region.
    writing: u32,
    /// Number of checkpoints begun when the last such write ended, plus one; zero if there was none.
    disk_touched: u64,
    /// The same for dirty data.
    dirty_touched: u64,
}

/// The intent map of one volume.
pub(crate) struct Intent<B: Buf> {
    first_page: u32,
    pages: RefCell<Vec<PageState>>,
    uses: RefCell<Vec<Use>>,
    changed: Signal<B>,
}

fn get(bits: &[u8], n: usize) -> bool {
    bits.get(n / 8).is_some_and(|b| b >> (n % 8) & 1 == 1)
}

fn put(bits: &mut [u8], n: usize, v: bool) {
    if let Some(b) = bits.get_mut(n / 8) {
        *b = *b & !(1 << (n % 8)) | u8::from(v) << (n % 8);
    }
}

fn bits(page: &IntentPage, bit: Bit) -> &[u8] {
    match bit {
        Bit::Intent => &page.intent,
        Bit::Dirty => &page.dirty,
    }
}

fn bits_mut(page: &mut IntentPage, bit: Bit) -> &mut [u8] {
    match bit {
        Bit::Intent => &mut page.intent,
        Bit::Dirty => &mut page.dirty,
    }
}

impl<B: Buf> Intent<B> {
    /// Pages, each with whether all members in sync hold it. One that some lack does not count until they do: the member
    /// that has it may be lost.
    pub fn new(changed: Signal<B>, volume: u16, first_page: u32, pages: Vec<(IntentPage, bool)>) -> Self {
        let regions = pages.len() * REGIONS_PER_PAGE as usize;
        let state = |(n, (p, on_all)): (usize, (IntentPage, bool))| {
            let p = IntentPage { page: first_page + n as u32, volume, ..p };
            let there = if on_all { p.clone() } else { IntentPage::empty(p.page, volume) };
            PageState { wanted: p, written: there.clone(), durable: there, needs: !on_all, writing: false }
        };
        Self {
            first_page,
            pages: RefCell::new(pages.into_iter().enumerate().map(state).collect()),
            uses: RefCell::new(vec![Use::default(); regions]),
            changed,
        }
    }

    pub fn first_page(&self) -> u32 {
        self.first_page
    }

    pub fn page_count(&self) -> u32 {
        self.pages.borrow().len() as u32
    }

    /// Whether any region has the bit.
    pub fn any(&self, bit: Bit) -> bool {
        self.pages.borrow().iter().any(|p| bits(&p.wanted, bit).iter().any(|b| *b != 0))
    }

    /// Whether the pages on the members are as they should be.
    pub fn settled(&self) -> bool {
        self.pages.borrow().iter().all(|p| !p.needs && !p.writing)
    }

    /// Writes all pages, both slots of each, and waits for it: what an earlier volume left there is gone.
    pub async fn rewrite(&self, core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) {
        for _ in 0..2 {
            for p in self.pages.borrow_mut().iter_mut() {
                p.needs = true;
            }
            write_pages(core, volume);
            loop {
                let wait = self.changed.wait();
                if self.settled() || core.pool.borrow().stalled || core.pool.borrow().in_sync().next().is_none() {
                    break;
                }
                wait.await;
            }
        }
    }

    /// A member has joined that has none of the pages: until it has them nothing counts as written.
    pub fn member_joined(&self) {
        for p in self.pages.borrow_mut().iter_mut() {
            p.written = IntentPage::empty(p.wanted.page, p.wanted.volume);
            p.durable = p.written.clone();
            p.needs = true;
        }
    }

    /// Membership has changed: whoever waits looks again.
    pub fn wake(&self) {
        self.changed.notify();
    }

    pub fn regions(sectors: &Range<u64>) -> Range<u64> {
        sectors.start / REGION_SECTORS..sectors.end.div_ceil(REGION_SECTORS).max(sectors.start / REGION_SECTORS + 1)
    }

    fn split(region: u64) -> (usize, usize) {
        ((region / u64::from(REGIONS_PER_PAGE)) as usize, (region % u64::from(REGIONS_PER_PAGE)) as usize)
    }

    /// Whether a region's bit is set as far as this instance wants it.
    pub fn is_set(&self, region: u64, bit: Bit) -> bool {
        let (page, n) = Self::split(region);
        self.pages.borrow().get(page).is_some_and(|p| get(bits(&p.wanted, bit), n) || get(bits(&p.durable, bit), n))
    }

    /// Whether all bits of the regions are set on the members: written at least, or durable.
    fn holds(&self, regions: &Range<u64>, bit: Bit, durable: bool) -> bool {
        let pages = self.pages.borrow();
        regions.clone().all(|r| {
            let (page, n) = Self::split(r);
            pages.get(page).is_some_and(|p| {
                // A bit that is about to be cleared does not count.
                get(bits(&p.wanted, bit), n) && get(bits(if durable { &p.durable } else { &p.written }, bit), n)
            })
        })
    }

    /// A write other than destage to the disk begins in these regions: keeps their intent bits from being cleared.
    pub fn disk_write_begins(&self, regions: &Range<u64>) {
        let mut uses = self.uses.borrow_mut();
        for r in regions.clone() {
            uses[r as usize].writing += 1;
        }
    }

    pub fn disk_write_ends(&self, regions: &Range<u64>, checkpoints_begun: u64) {
        let mut uses = self.uses.borrow_mut();
        for r in regions.clone() {
            let u = &mut uses[r as usize];
            u.writing -= 1;
            u.disk_touched = checkpoints_begun + 1;
        }
    }

    /// Dirty data was accepted in these regions.
    pub fn dirtied(&self, regions: &Range<u64>, checkpoints_begun: u64) {
        let mut uses = self.uses.borrow_mut();
        for r in regions.clone() {
            uses[r as usize].dirty_touched = checkpoints_begun + 1;
        }
    }

    /// Regions whose intent bit the checkpoint that begins now may clear once it is durable.
    pub fn clearable(&self) -> Vec<u64> {
        let uses = self.uses.borrow();
        (0..uses.len() as u64).filter(|r| uses[*r as usize].writing == 0 && self.is_set(*r, Bit::Intent)).collect()
    }

    /// The checkpoint that was the `begun`th to begin is durable: clears the intent bits of `regions` that nothing has
    /// written to since it began, and the dirty bits of regions where `dirty` finds nothing and nothing came since.
    pub fn clear(&self, regions: &[u64], begun: u64, dirty: impl Fn(u64) -> bool) {
        let uses = self.uses.borrow();
        for r in regions {
            let u = uses[*r as usize];
            if u.writing == 0 && u.disk_touched <= begun {
                self.want(*r, Bit::Intent, false);
            }
        }
        for r in 0..uses.len() as u64 {
            if self.is_set(r, Bit::Dirty) && uses[r as usize].dirty_touched <= begun && !dirty(r) {
                self.want(r, Bit::Dirty, false);
            }
        }
    }

    fn want(&self, region: u64, bit: Bit, value: bool) -> bool {
        let (page, n) = Self::split(region);
        let mut pages = self.pages.borrow_mut();
        let Some(p) = pages.get_mut(page) else { return false };
        let changed = get(bits(&p.wanted, bit), n) != value;
        put(bits_mut(&mut p.wanted, bit), n, value);
        p.needs |= changed;
        if !value {
            // From now on it does not count as set, whatever is on the media.
            put(bits_mut(&mut p.written, bit), n, false);
            put(bits_mut(&mut p.durable, bit), n, false);
        }
        changed
    }
}

/// Sets the bits of the regions of a range of sectors and waits until they are on all members: durable for intent,
/// written for dirty. `ahead` more regions are set with them, for streams. `false` if no member can take them.
pub(crate) async fn ensure<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    sectors: &Range<u64>,
    bit: Bit,
    ahead: u64,
) -> bool {
    let intent = &volume.intent;
    let regions = Intent::<B>::regions(sectors);
    let durable = bit == Bit::Intent;
    if intent.holds(&regions, bit, durable) {
        return true;
    }
    loop {
        let last = volume.extent().end.div_ceil(REGION_SECTORS);
        for r in regions.start..(regions.end + ahead).min(last.max(regions.end)) {
            intent.want(r, bit, true);
        }
        write_pages(core, volume);
        let wait = intent.changed.wait();
        if intent.holds(&regions, bit, durable) {
            return true;
        }
        if core.pool.borrow().in_sync().next().is_none() {
            core.mark(Mark::IntentWithoutMembers);
            // Nothing is cached any more that could be stale.
            return durable;
        }
        if core.pool.borrow().stalled {
            return false;
        }
        wait.await;
    }
}

/// Starts writing the pages that are not as they should be.
pub(crate) fn write_pages<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) {
    let count = volume.intent.pages.borrow().len();
    for n in 0..count {
        let start = {
            let mut pages = volume.intent.pages.borrow_mut();
            let p = &mut pages[n];
            let start = p.needs && !p.writing;
            p.writing |= start;
            start
        };
        if start {
            core.exec.spawn(write_page(core.clone(), volume.clone(), n));
        }
    }
}

/// Writes one page to all members until it is as wanted.
async fn write_page<B: Buf>(core: Rc<Core<B>>, volume: Rc<Volume<B>>, n: usize) {
    let intent = &volume.intent;
    loop {
        let snapshot = {
            let mut pages = intent.pages.borrow_mut();
            let p = &mut pages[n];
            if !p.needs {
                p.writing = false;
                intent.changed.notify();
                return;
            }
            p.needs = false;
            p.wanted.sequence += 1;
            p.wanted.clone()
        };
        core.wait_settled().await;
        let (key, epoch, members) = {
            let pool = core.pool.borrow();
            let members: Vec<(u8, u64)> = pool
                .in_sync()
                .map(|m| {
                    let layout = &pool.members[usize::from(m)].layout;
                    (m, layout.intent(intent.first_page + n as u32, (snapshot.sequence % 2) as u8))
                })
                .collect();
            (pool.key, pool.epoch, members)
        };
        if members.is_empty() || core.pool.borrow().stalled {
            let p = &mut intent.pages.borrow_mut()[n];
            (p.writing, p.needs) = (false, true);
            intent.changed.notify();
            return;
        }
        let bytes = B::from_bytes(&snapshot.encode(key));
        let writes: Vec<_> = members
            .iter()
            .map(|(m, offset)| {
                (*m, core.exec.io(Device::Member(*m), DeviceOp::Write { offset: *offset, bufs: vec![bytes.clone()] }))
            })
            .collect();
        core.stats.borrow_mut().member_bytes += (INTENT_PAGE_BYTES * members.len()) as u64;
        for (m, write) in writes {
            match write.await {
                Ok(_) => core.member_flusher(m).wrote(),
                Err(_) => {
                    core.mark(Mark::IntentFailsOnMember);
                    core.fail_member(m).await;
                }
            }
        }
        settle(&core, intent, n, &snapshot, epoch, false).await;
        for (m, _) in &members {
            if core.pool.borrow().is_in_sync(*m) && core.member_flusher(*m).flush().await.is_err() {
                core.fail_member(*m).await;
            }
        }
        settle(&core, intent, n, &snapshot, epoch, true).await;
    }
}

/// The page as it was when the write began is now written or durable on every member that is in sync: no member
/// can have come since, as that takes an epoch.
async fn settle<B: Buf>(core: &Rc<Core<B>>, intent: &Intent<B>, n: usize, snapshot: &IntentPage, epoch: u64, durable: bool) {
    core.wait_settled().await;
    if core.joined_since(epoch) {
        intent.pages.borrow_mut()[n].needs = true;
        return;
    }
    {
        let mut pages = intent.pages.borrow_mut();
        let p = &mut pages[n];
        let target = if durable { &mut p.durable } else { &mut p.written };
        *target = snapshot.clone();
        for bit in [Bit::Intent, Bit::Dirty] {
            // What is wanted clear by now does not count as set.
            for (t, w) in bits_mut(target, bit).iter_mut().zip(bits(&p.wanted, bit)) {
                *t &= w;
            }
        }
    }
    intent.changed.notify();
}
