//! The intent map: what may be newer on the disk than in clean copies, and where there may be dirty data.
//!
//! A region's intent bit is durable on all members before anything but destage writes there (R4); its dirty bit is
//! written before dirty data there is acknowledged (R8). Bits are cleared lazily, after a checkpoint.

use crate::core::{Core, Volume};
use crate::exec::Signal;
use crate::io::{Buf, Device, DeviceOp, Reach};
use crate::marks::Mark;
use crate::patience::Patience;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use headpond_format::{INTENT_PAGE_BYTES, IntentPage, REGION_SECTORS, REGIONS_PER_PAGE, VolumeEntry};

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
    /// A flush of the disk failed while its intent bit was set: that stays.
    doubted: bool,
}

/// Pages of the pool's intent map, one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub first: u32,
    pub count: u32,
}

impl Span {
    pub fn end(self) -> u32 {
        self.first + self.count
    }
    pub fn meets(self, other: Span) -> bool {
        self.first < other.end() && other.first < self.end()
    }
    /// The number in the pool of a volume's page `n`, if it is in here.
    fn page(self, n: u32) -> Option<u32> {
        (n < self.count).then_some(self.first + n)
    }
}

/// A number for intent pages that none before the newest superblock has: between two of these no page is written so often. All numbers that
/// pages were given by earlier engines, which took the next version's, are smaller.
pub(crate) fn number<B: Buf>(core: &Core<B>) -> u64 {
    (1 << 62) + ((core.pool.borrow().sequence + 1) << 22)
}

/// The intent map of one volume.
pub(crate) struct Intent<B: Buf> {
    /// Where a start looks for the pages: what the superblock says.
    named: Cell<Span>,
    /// Where they are written as well, while it is not settled which of the two a start will look at.
    beside: Cell<Option<Span>>,
    /// Where nothing is written any more, but for what is under way.
    left: Cell<Option<Span>>,
    /// The volume is let go: nothing is written any more.
    ended: Cell<bool>,
    pages: RefCell<Vec<PageState>>,
    uses: RefCell<Vec<Use>>,
    /// Flushes of the disk that had failed when it was last looked.
    failures: Cell<u64>,
    /// Any region is.
    doubted: Cell<bool>,
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
            named: Cell::new(Span { first: first_page, count: pages.len() as u32 }),
            beside: Cell::new(None),
            left: Cell::new(None),
            ended: Cell::new(false),
            pages: RefCell::new(pages.into_iter().enumerate().map(state).collect()),
            uses: RefCell::new(vec![Use::default(); regions]),
            failures: Cell::new(0),
            doubted: Cell::new(false),
            changed,
        }
    }

    /// Where a start looks for the pages: what the superblock is to say.
    pub fn named(&self) -> Span {
        self.named.get()
    }

    /// Pages that must be nobody else's.
    pub fn taken(&self) -> impl Iterator<Item = Span> {
        [Some(self.named.get()), self.beside.get(), self.left.get()].into_iter().flatten()
    }

    /// From now on the pages are written to `span` too, which has at least as many; more of them begin at `sequence`, with
    /// no bit set.
    pub fn write_beside(&self, span: Span, volume: u16, sequence: u64) {
        let mut pages = self.pages.borrow_mut();
        for n in pages.len() as u32..span.count {
            let p = IntentPage { sequence, ..IntentPage::empty(span.first + n, volume) };
            pages.push(PageState { wanted: p.clone(), written: p.clone(), durable: p, needs: false, writing: false });
        }
        self.uses.borrow_mut().resize(pages.len() * REGIONS_PER_PAGE as usize, Use::default());
        self.beside.set(Some(span));
    }

    /// The next superblock names the other one of the two places.
    pub fn name_other(&self) {
        if let Some(beside) = self.beside.take() {
            self.beside.set(Some(self.named.replace(beside)));
        }
    }

    /// The newest superblock, on all members in sync, names the place that is named: the other one is let go, when what is
    /// being written there has ended.
    pub async fn leave_other(&self, core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) {
        self.left.set(self.beside.take());
        self.written(core, volume, 0).await;
        self.left.set(None);
    }

    /// Nothing more is written, and nothing is being written when this has ended: the pages may be another volume's.
    pub async fn end(&self) {
        self.ended.set(true);
        loop {
            let wait = self.changed.wait();
            if !self.pages.borrow().iter().any(|p| p.writing) {
                break;
            }
            wait.await;
        }
    }

    /// Whether superblocks may be on the media that name another place than is named now.
    pub fn is_between(&self) -> bool {
        self.beside.get().is_some()
    }

    /// The numbers in the pool under which page `n` is written: one, or two.
    fn places(&self, n: u32) -> Vec<u32> {
        let mut places: Vec<u32> =
            [Some(self.named.get()), self.beside.get()].into_iter().flatten().filter_map(|span| span.page(n)).collect();
        places.dedup();
        places
    }

    /// Whether any region has the bit.
    pub fn any(&self, bit: Bit) -> bool {
        self.pages.borrow().iter().any(|p| bits(&p.wanted, bit).iter().any(|b| *b != 0))
    }

    /// Whether the pages on the members are as they should be.
    pub fn settled(&self) -> bool {
        self.pages.borrow().iter().all(|p| !p.needs && !p.writing)
    }

    /// Writes all pages, both slots of each, and waits for it: what an earlier volume left there is gone. `false` if
    /// nobody is left to write to.
    pub async fn rewrite(&self, core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) -> bool {
        self.written(core, volume, 2).await
    }

    /// Waits until each page has been written, durably, as often as this from now on; what is being written by now has
    /// ended then. `false` if nobody is left to write to.
    async fn written(&self, core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, times: u64) -> bool {
        let targets: Vec<u64> = self.pages.borrow().iter().map(|p| p.wanted.sequence + times).collect();
        loop {
            for (p, target) in self.pages.borrow_mut().iter_mut().zip(&targets) {
                p.needs |= p.wanted.sequence < *target;
            }
            write_pages(core, volume);
            let wait = self.changed.wait();
            if self.pages.borrow().iter().zip(&targets).all(|(p, target)| p.durable.sequence >= *target) {
                return true;
            }
            if !core.pool.borrow().has_votes() {
                return false;
            }
            wait.await;
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
    fn disk_write_begins(&self, regions: &Range<u64>) {
        let mut uses = self.uses.borrow_mut();
        for r in regions.clone() {
            uses[r as usize].writing += 1;
        }
    }

    fn disk_write_ends(&self, regions: &Range<u64>, checkpoints_begun: u64) {
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
        let may_go = |u: Use| u.writing == 0 && !u.doubted;
        (0..uses.len() as u64).filter(|r| may_go(uses[*r as usize]) && self.is_set(*r, Bit::Intent)).collect()
    }

    /// Regions whose dirty bit is set, though `dirty` finds nothing in them: so says the checkpoint that begins now, which may clear it once it is durable.
    pub fn undirtied(&self, dirty: impl Fn(u64) -> bool) -> Vec<u64> {
        let regions = self.uses.borrow().len() as u64;
        (0..regions).filter(|r| self.is_set(*r, Bit::Dirty) && !dirty(*r)).collect()
    }

    /// Flushes of the disk have failed so often: if one has since this was last said, the intent bits that are set now stay.
    pub fn heed(&self, failures: u64) {
        if self.failures.replace(failures) != failures {
            self.doubt();
        }
    }

    /// The intent bits that are set now stay: of a disk that failed a flush, in this life or one before it.
    pub fn doubt(&self) {
        for (r, u) in self.uses.borrow_mut().iter_mut().enumerate() {
            u.doubted |= self.is_set(r as u64, Bit::Intent);
            self.doubted.set(self.doubted.get() || u.doubted);
        }
    }

    /// Whether any intent bit stays for that.
    pub fn is_doubted(&self) -> bool {
        self.doubted.get()
    }

    /// The checkpoint that was the `begun`th to begin is durable: clears the intent bits of `regions` that nothing has
    /// written to since it began, and the dirty bits of those that were `undirtied` then, where `dirty` finds nothing and nothing came since. What was
    /// dirty when it began is so in its image, whatever the log has said of it since, and the log may be what cannot be had.
    pub fn clear(&self, regions: &[u64], undirtied: &[u64], begun: u64, dirty: impl Fn(u64) -> bool) {
        let uses = self.uses.borrow();
        for r in regions {
            let u = uses[*r as usize];
            if u.writing == 0 && u.disk_touched <= begun && !u.doubted {
                self.want(*r, Bit::Intent, false);
            }
        }
        for r in undirtied {
            if uses[*r as usize].dirty_touched <= begun && !dirty(*r) {
                self.want(*r, Bit::Dirty, false);
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

/// Something else than destage changes the disk: as long as it lives the intent bits there are not cleared, and then by none but a checkpoint that
/// begins after it.
pub(crate) struct DiskWrite<B: Buf> {
    core: Rc<Core<B>>,
    volume: Rc<Volume<B>>,
    regions: Range<u64>,
}

impl<B: Buf> DiskWrite<B> {
    /// Of a range of sectors.
    pub fn begin(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, sectors: &Range<u64>) -> Self {
        let regions = Intent::<B>::regions(sectors);
        volume.intent.disk_write_begins(&regions);
        Self { core: core.clone(), volume: volume.clone(), regions }
    }
}

impl<B: Buf> Drop for DiskWrite<B> {
    fn drop(&mut self) {
        let begun = self.core.segments.borrow().checkpoints_begun;
        self.volume.intent.disk_write_ends(&self.regions, begun);
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
        // First, since of those that all failed the next start takes what they hold.
        if core.pool.borrow().stalled || intent.ended.get() {
            return false;
        }
        if core.pool.borrow().in_sync().next().is_none() {
            core.mark(Mark::IntentWithoutMembers);
            // Nothing is cached any more that could be stale.
            return durable;
        }
        wait.await;
    }
}

/// Sets the bits of all that a start has found dirty. They were written before it was acknowledged, and not flushed: power may have taken them, and not the
/// record.
pub(crate) async fn own_up<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) {
    let mut from = 0;
    loop {
        let mut next = Vec::new();
        volume.map.borrow().dirty_from(from, u64::MAX >> 8, 1, &mut next);
        let Some(block) = next.first() else { return };
        let region = block * 8 / REGION_SECTORS;
        let sectors = region * REGION_SECTORS..(region + 1) * REGION_SECTORS;
        // Where no device can take them none is left that a start could go by.
        let _ = ensure(core, volume, &sectors, Bit::Dirty, 0).await;
        from = sectors.end / 8;
    }
}

/// Starts writing the pages that are not as they should be.
pub(crate) fn write_pages<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) {
    let count = volume.intent.pages.borrow().len();
    for n in 0..count {
        let start = {
            let mut pages = volume.intent.pages.borrow_mut();
            let p = &mut pages[n];
            let start = p.needs && !p.writing && !volume.intent.ended.get();
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
            if !p.needs || intent.ended.get() {
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
            (pool.key, pool.epoch, pool.in_sync().collect::<Vec<u8>>())
        };
        if members.is_empty() || core.pool.borrow().stalled {
            let p = &mut intent.pages.borrow_mut()[n];
            (p.writing, p.needs) = (false, true);
            intent.changed.notify();
            return;
        }
        let mut writes = Vec::new();
        for page in intent.places(n as u32) {
            let bytes = B::from_bytes(&IntentPage { page, ..snapshot.clone() }.encode(key));
            for m in &members {
                let layout = core.pool.borrow().members[usize::from(*m)].layout;
                let offset = layout.intent(page, (snapshot.sequence % 2) as u8);
                writes.push((
                    *m,
                    core.exec.io(Device::Member(*m), DeviceOp::Write { offset, bufs: vec![bytes.clone()], reach: Reach::Cache }),
                ));
            }
        }
        core.stats.borrow_mut().member_bytes += (INTENT_PAGE_BYTES * writes.len()) as u64;
        for (m, write) in writes {
            match write.await {
                Ok(_) => core.member_flusher(m).wrote(),
                Err(_) => {
                    core.mark(Mark::IntentFailsOnMember);
                    core.fail_member_of(epoch, m).await;
                }
            }
        }
        settle(&core, intent, n, &snapshot, epoch, false).await;
        // All at once: whoever writes there first waits for them.
        let in_sync = members.iter().filter(|m| core.pool.borrow().is_in_sync(**m));
        let flushes: Vec<_> = in_sync.map(|m| (*m, core.member_flusher(*m).request())).collect();
        for (m, flush) in flushes {
            if flush.get().await.is_err() {
                core.fail_member_of(epoch, m).await;
            }
        }
        settle(&core, intent, n, &snapshot, epoch, true).await;
    }
}

/// The page as it was when the write began is now written or durable on every member that is in sync: no member
/// can have come since, as that takes an epoch. Without a majority nothing is settled: one that was taken out meanwhile may be
/// believed at the next start, and does not have it (R7).
async fn settle<B: Buf>(core: &Rc<Core<B>>, intent: &Intent<B>, n: usize, snapshot: &IntentPage, epoch: u64, durable: bool) {
    core.wait_settled().await;
    if core.joined_since(epoch) || core.pool.borrow().stalled {
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

/// The newest copy of each intent page of a volume, and whether all members have it. Where none is left, or a newer one
/// may have been in a slot that is damaged on every member, everything counts as marked.
pub(crate) async fn load<B: Buf>(core: &Rc<Core<B>>, e: &VolumeEntry, patience: &Patience) -> Vec<(IntentPage, bool)> {
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
        // What could not be read may be a newer one that was not written to all, and be readable at the next start: it is written over.
        let all_read = read.iter().all(Option::is_some);
        let on_all = whole && all_read && holders >= members.len();
        core.mark_if(best.is_some() && whole && !on_all, Mark::IntentOnSomeMembers);
        let mut newest = best.unwrap_or_else(|| IntentPage::empty(page, e.number));
        if !whole {
            newest.intent.fill(0xff);
            newest.dirty.fill(0xff);
            // What could not be read may be readable at the next start, and is older. What could stays, until the other slot is written.
            newest.sequence = newest.sequence.max(number(core) + newest.sequence % 2);
        }
        pages.push((newest, on_all));
    }
    pages
}
