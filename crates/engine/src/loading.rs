//! The map after a start: it is read while requests are answered, and what they ask for first.
//!
//! A start has the segment table and what was in the log, which is bounded; the image of the map behind them grows with what is
//! cached, to minutes of reading. So requests do not wait for all of it, but for the pages about the blocks that they touch
//! ([`known`]); the other ones are read meanwhile, in order ([`rest`]).
//!
//! The log is in the map before the image, whose pieces slip in under what is newer. What the log says of pieces beyond their
//! being there (they are clean, or forgotten), and what cannot be proved clean, is settled for a range of addresses when all its
//! pieces are known, and not before: a piece that hides an older one may not go as long as that one may still come. For the same
//! reason nothing is evicted, moved, destaged or let go of, and no checkpoint is taken, until all is known.

use crate::cancel::Cancel;
use crate::core::{Core, Volume};
use crate::exec::Signal;
use crate::image::{Image, Table};
use crate::intent::{Bit, Intent};
use crate::io::{BLOCK_SECTORS, Buf, CommandError, RequestError};
use crate::map::{Mask, Piece, mask};
use crate::marks::Mark;
use crate::policy::unread::{Key, Unread};
use crate::recovery::{StartError, is_inside};
use crate::status::Loading as Told;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use headpond_format::{Entry, EntryKind, Mode, PAGE_BYTES, Page, PieceEntry, REGION_SECTORS};

/// Pages of those that nobody has asked for that are read at once. Who asks for something may wait while these are put into the map: a
/// millisecond or two.
const DEPTH: usize = 8;
/// How often a command that waits looks whether it was cancelled, in nanoseconds.
const LOOK_NS: u64 = 20_000_000;

/// Before a disk is compared with what is cached of it, so many times the pages that are read at a start, and the pages about so many places
/// of the volume, are read at most.
const PAGES_TO_COMPARE: u32 = 4;
const PLACES_TO_COMPARE: u64 = 8;

/// The segment of dirty pieces whose segment is not there: no segment has this number.
const LOST: u32 = u32::MAX;

/// What the log of a volume says of pieces, in order of address.
#[derive(Default)]
pub(crate) struct LogMarks {
    entries: Vec<Entry>,
    /// Blocks of the longest one.
    longest: u64,
    /// What was dirty in a record and can be read on no copy: sectors of a block, and the version.
    unreadable: BTreeMap<u64, Vec<(Mask, u64)>>,
}

impl LogMarks {
    pub fn push(&mut self, entry: Entry) {
        self.longest = self.longest.max(u64::from(entry.count));
        self.entries.push(entry);
    }

    /// A record's data is on no copy.
    pub fn unreadable(&mut self, entry: &Entry) {
        self.unreadable.entry(entry.block).or_default().push((mask(entry.first, entry.sectors), entry.version));
    }

    fn sort(&mut self) {
        self.entries.sort_by_key(|e| e.block);
    }

    /// Those about any of some blocks.
    fn about(&self, blocks: &Range<u64>) -> impl Iterator<Item = &Entry> {
        let first = self.entries.partition_point(|e| e.block.saturating_add(self.longest) <= blocks.start);
        let (start, end) = (blocks.start, blocks.end);
        self.entries[first..]
            .iter()
            .take_while(move |e| e.block < end)
            .filter(move |e| e.block.saturating_add(u64::from(e.count)) > start)
    }
}

/// An image of which not all is in the map.
pub(crate) struct Loading<B: Buf> {
    image: Image,
    /// Pages with pieces.
    of: u32,
    /// Of each segment of the image that is still there, the volume.
    still: Vec<Option<u16>>,
    /// The segments that the start has found, which stay as they are meanwhile.
    restored: Vec<u32>,
    /// What the log says; `None` before it has been read.
    marks: Option<BTreeMap<u16, LogMarks>>,
    /// Regions where the disk may be newer than what is clean.
    unproved: BTreeMap<u16, BTreeSet<u64>>,
    unread: RefCell<Unread>,
    /// Pages that somebody reads.
    under_way: RefCell<BTreeSet<u32>>,
    /// The segment of some dirty piece is not there.
    any_lost: Cell<bool>,
    /// Pages that are to be had from nobody.
    lost: RefCell<BTreeSet<u32>>,
    came: Signal<B>,
}

impl<B: Buf> Loading<B> {
    /// The pages of `image` from `first` on are to be read.
    pub fn new(core: &Core<B>, image: Image, table: &Table, first: u32) -> Self {
        let volumes = core.all_volumes();
        let end = volumes.last().map_or((0, 0), |v| (v.number, v.extent().end.div_ceil(BLOCK_SECTORS)));
        let unproved = |v: &Rc<Volume<B>>| {
            let regions = Intent::<B>::regions(&v.extent()).filter(|r| v.intent.is_set(*r, Bit::Intent));
            (v.number, regions.collect())
        };
        let segments = core.segments.borrow();
        Self {
            of: image.pages() - first,
            still: table.still_there(&segments),
            restored: segments.iter().map(|(n, _)| n).collect(),
            marks: None,
            unproved: volumes.iter().map(unproved).collect(),
            unread: RefCell::new(Unread::new(first..image.pages(), end)),
            under_way: RefCell::default(),
            any_lost: Cell::new(false),
            lost: RefCell::default(),
            came: Signal::new(&core.exec),
            image,
        }
    }

    /// Takes a page on for reading; `false` if somebody has.
    fn take_on(&self, page: u32) -> bool {
        self.under_way.borrow_mut().insert(page)
    }

    fn lost_page(&self) -> Option<u32> {
        self.lost.borrow().first().copied()
    }

    /// An error where not all of the image is to be had.
    fn is_whole(&self) -> Result<(), StartError> {
        self.lost_page().map_or(Ok(()), |page| Err(StartError::CheckpointLost { page }))
    }

    /// Whether nothing more will come.
    fn has_ended(&self) -> bool {
        self.unread.borrow().pages().all(|page| self.lost.borrow().contains(&page))
    }
}

impl<B: Buf> Core<B> {
    /// Whether all there is of an address is in the map.
    pub(crate) fn is_known(&self, volume: u16, block: u64) -> bool {
        self.is_loaded.get() || self.loading.borrow().as_ref().is_some_and(|l| l.unread.borrow().is_known((volume, block)))
    }

    /// How far the image is read, until all of it is.
    pub(crate) fn loading(&self) -> Option<Told> {
        let loading = self.loading.borrow();
        let loading = loading.as_ref()?;
        let (page, left) = (PAGE_BYTES as u64, loading.unread.borrow().pages().count() as u64);
        let of = u64::from(loading.of);
        Some(Told { read: (of - left) * page, of: of * page, lost_page: loading.lost_page() })
    }
}

/// Puts all of the image into the map, before the log is read: a start that has to be refused for it writes nothing.
pub(crate) async fn before_the_log<B: Buf>(core: &Rc<Core<B>>, loading: &Loading<B>) -> Result<(), StartError> {
    let mut coming = VecDeque::new();
    loop {
        while coming.len() < DEPTH {
            let next = loading.unread.borrow().pages().find(|page| loading.take_on(*page));
            let Some(page) = next else { break };
            coming.push_back(loading.image.begin(core, page));
        }
        let Some(page) = coming.pop_front() else { return Ok(()) };
        let index = page.index;
        let read = loading.image.pieces(core, page).await;
        put_in(core, loading, index, read);
        loading.is_whole()?;
    }
}

/// The log is in the map, and this is what it says of pieces. What of the image is not read yet is read from now on.
pub(crate) fn begin<B: Buf>(core: &Core<B>, mut loading: Loading<B>, mut marks: BTreeMap<u16, LogMarks>) {
    marks.values_mut().for_each(LogMarks::sort);
    loading.marks = Some(marks);
    // All there is is known.
    if loading.unread.borrow().is_empty() {
        settle(core, &loading, &((0, 0)..(u16::MAX, u64::MAX)));
    }
    core.loading.replace(Some(Rc::new(loading)));
}

/// Waits until all there is of a range of grid sectors is in the map. An error where that cannot be had from any member.
pub(crate) async fn known<B: Buf>(core: &Rc<Core<B>>, volume: u16, range: &Range<u64>) -> Result<(), RequestError> {
    let Some(loading) = core.loading.borrow().clone() else { return Ok(()) };
    let blocks = Volume::<B>::blocks(range);
    let keys = (volume, blocks.start)..(volume, blocks.end);
    loop {
        let wait = loading.came.wait();
        let Some(page) = loading.unread.borrow().page_for(&keys) else { return Ok(()) };
        core.mark(Mark::WaitsForTheMap);
        if loading.take_on(page) {
            read_page(core, &loading, page).await;
            continue;
        }
        // Other pages may still tell that a lost one has nothing to say of this.
        if loading.has_ended() {
            return Err(RequestError::Io);
        }
        wait.await;
    }
}

/// Has so much of a volume's map known, here and there, that its disk can be compared with what is cached of it.
pub(crate) async fn look_around<B: Buf>(core: &Rc<Core<B>>, v: &Volume<B>) {
    let Some(loading) = core.loading.borrow().clone() else { return };
    let blocks = Volume::<B>::blocks(&v.extent());
    let mut left = core.settings.pages_at_start.saturating_mul(PAGES_TO_COMPARE);
    for n in 0..PLACES_TO_COMPARE {
        let at = (v.number, blocks.start + (blocks.end - blocks.start) / PLACES_TO_COMPARE * n);
        while left > 0 {
            let wait = loading.came.wait();
            let Some(page) = loading.unread.borrow().page_for(&(at..(at.0, at.1 + 1))) else { break };
            if loading.lost.borrow().contains(&page) {
                break;
            }
            if loading.take_on(page) {
                read_page(core, &loading, page).await;
                left -= 1;
            } else {
                // Another volume's look about itself has come to it, or a client: what it says is wanted here as well.
                wait.await;
            }
        }
    }
}

/// Reads all that is not read yet, in order. An error where a page can be had from no member.
pub(crate) async fn rest<B: Buf>(core: &Rc<Core<B>>) -> Result<(), StartError> {
    let Some(loading) = core.loading.borrow().clone() else { return Ok(()) };
    for _ in 0..DEPTH {
        core.exec.spawn(read_in_order(core.clone(), loading.clone()));
    }
    loop {
        let wait = loading.came.wait();
        if loading.has_ended() {
            break;
        }
        wait.await;
    }
    loading.is_whole()?;
    pack_in_turns(core, &loading).await;
    if !core.is_loaded.get() {
        finish(core, &loading);
    }
    Ok(())
}

/// One of those that read page after page, each of which is put into the map when it comes: a cache device that is slow, or does not
/// answer, has nobody wait for pages of another one.
async fn read_in_order<B: Buf>(core: Rc<Core<B>>, loading: Rc<Loading<B>>) {
    loop {
        let next = loading.unread.borrow().pages().find(|page| loading.take_on(*page));
        let Some(page) = next else { return };
        read_page(&core, &loading, page).await;
    }
}

/// Waits until all is in the map. An error where that will not be.
pub(crate) async fn wait<B: Buf>(core: &Core<B>) -> Result<(), StartError> {
    loop {
        let wait = core.loaded.wait();
        if core.is_loaded.get() {
            return Ok(());
        }
        if let Some(loading) = core.loading.borrow().as_ref() {
            loading.is_whole()?;
        }
        wait.await;
    }
}

/// The same for a command, which may be cancelled.
pub(crate) async fn wait_for_command<B: Buf>(core: &Core<B>, cancel: &Cancel) -> Result<(), CommandError> {
    while !core.is_loaded.get() {
        if let Some(loading) = core.loading.borrow().as_ref() {
            loading.is_whole().map_err(CommandError::Start)?;
        }
        if cancel.wanted() {
            return Err(CommandError::Cancelled);
        }
        core.loaded.wait_until(core.now() + LOOK_NS).await;
    }
    Ok(())
}

/// Reads a page that was taken on.
async fn read_page<B: Buf>(core: &Rc<Core<B>>, loading: &Loading<B>, page: u32) {
    let read = loading.image.pieces(core, loading.image.begin(core, page)).await;
    put_in(core, loading, page, read);
}

/// A page has come, or will not.
fn put_in<B: Buf>(core: &Core<B>, loading: &Loading<B>, page: u32, read: Result<(u16, Vec<PieceEntry>), StartError>) {
    let known = read.ok().and_then(|(volume, pieces)| {
        let (first, last) = (pieces.first()?.block, pieces.last()?.block);
        let ends_volume = pieces.len() < Page::PIECES;
        let known = loading.unread.borrow_mut().read(page, (volume, first), (volume, last), ends_volume)?;
        load(core, loading, volume, &pieces);
        Some(known)
    });
    match known {
        Some(keys) if loading.marks.is_some() => settle(core, loading, &keys),
        Some(_) => {}
        // Its number stays among those under way: it is not asked for again.
        None => {
            core.mark(Mark::PageNowhere);
            loading.lost.borrow_mut().insert(page);
            core.loaded.notify();
        }
    }
    loading.came.notify();
    core.has_read(PAGE_BYTES as u64);
}

/// Puts pieces of the image into their volume's map, if their segments are there still. A dirty one whose segment is gone stays, as lost:
/// its range fails rather than show older data (R8).
fn load<B: Buf>(core: &Core<B>, loading: &Loading<B>, volume: u16, page: &[PieceEntry]) {
    let Some(v) = core.volume(volume) else { return };
    let (extent, capacity) = (v.extent(), core.pool.borrow().segment_sectors());
    let mut pieces = Vec::with_capacity(page.len());
    for p in page {
        let (first, count) = (p.span & 7, (p.span >> 3 & 7) + 1);
        let still = loading.still.get(p.segment as usize) == Some(&Some(volume));
        let same = still && u32::from(p.offset) + u32::from(count - 1) < capacity;
        if !is_inside(&extent, p.block, first, count) || !same && p.span >> 6 & 1 == 0 {
            continue;
        }
        loading.any_lost.set(loading.any_lost.get() || !same);
        let segment = if same { p.segment } else { LOST };
        let mut piece = Piece::new(p.version, p.sum, segment, p.offset, first, count, p.span >> 6 & 1 == 1, p.span >> 7 == 1);
        piece.live = p.live;
        pieces.push((p.block, piece));
    }
    core.mark_if(loading.any_lost.get(), Mark::LostDirtyKept);
    v.map.borrow_mut().load(&mut core.segments.borrow_mut(), &pieces);
}

/// All pieces of a range of addresses are in the map. What else is to be said of them follows, as the log and the intent map have it.
fn settle<B: Buf>(core: &Core<B>, loading: &Loading<B>, keys: &Range<Key>) {
    for v in core.volumes.borrow().range(keys.start.0..=keys.end.0).map(|(_, v)| v) {
        let extent = v.extent();
        let start = if v.number == keys.start.0 { keys.start.1 } else { 0 };
        let end = if v.number == keys.end.0 { keys.end.1 } else { u64::MAX };
        let blocks = start.max(extent.start / BLOCK_SECTORS)..end.min(extent.end.div_ceil(BLOCK_SECTORS));
        if blocks.start < blocks.end {
            apply_marks(core, loading, v, &blocks);
            let_go_of_unproved(core, loading, v, &blocks);
        }
    }
}

/// What the log says of pieces: they are clean, or forgotten.
fn apply_marks<B: Buf>(core: &Core<B>, loading: &Loading<B>, v: &Volume<B>, blocks: &Range<u64>) {
    let Some(marks) = loading.marks.as_ref().and_then(|of| of.get(&v.number)) else { return };
    let mut map = v.map.borrow_mut();
    let mut segments = core.segments.borrow_mut();
    for e in marks.about(blocks) {
        if e.kind == EntryKind::Forget {
            map.forget(&mut segments, e.block, mask(e.first, e.sectors), e.version);
            continue;
        }
        let mut marked = Vec::new();
        let of_both = e.block.max(blocks.start)..e.block.saturating_add(u64::from(e.count)).min(blocks.end);
        map.each_in(of_both, |b, _| marked.push(b));
        marked.dedup();
        for b in marked {
            // The disk has what cannot be read here: what is older there is in its way.
            for (sectors, version) in marks.unreadable.get(&b).into_iter().flatten().filter(|(_, version)| *version <= e.version)
            {
                core.mark(Mark::UnreadableTurnsOutClean);
                map.forget(&mut segments, b, *sectors, *version);
            }
            map.mark_clean(&mut segments, b, e.version);
        }
    }
}

/// Lets go of clean pieces that are not provably current: those in regions where the disk may be newer, those whose segment is not
/// there, and those of a volume whose clean data was let go when its mode was switched, of which the log does not tell.
fn let_go_of_unproved<B: Buf>(core: &Core<B>, loading: &Loading<B>, v: &Volume<B>, blocks: &Range<u64>) {
    let regions = blocks.start * BLOCK_SECTORS / REGION_SECTORS..(blocks.end * BLOCK_SECTORS).div_ceil(REGION_SECTORS);
    let unproved = loading.unproved.get(&v.number).filter(|of| of.range(regions).next().is_some());
    let passes = v.mode() == Mode::PassThrough;
    if unproved.is_none() && !loading.any_lost.get() && !passes {
        return;
    }
    let mut gone: Vec<u64> = Vec::new();
    v.map.borrow().each_in(blocks.clone(), |b, p| {
        if p.dirty() {
            return;
        }
        let is_unproved = unproved.is_some_and(|of| of.contains(&(b * BLOCK_SECTORS / REGION_SECTORS)));
        core.mark_if(is_unproved, Mark::UnprovedDropped);
        core.mark_if(p.segment == LOST, Mark::LostTurnsOutClean);
        if is_unproved || passes || p.segment == LOST {
            gone.push(b);
        }
    });
    gone.dedup();
    let mut map = v.map.borrow_mut();
    let mut segments = core.segments.borrow_mut();
    for b in gone {
        let whole = passes || unproved.is_some_and(|of| of.contains(&(b * BLOCK_SECTORS / REGION_SECTORS)));
        map.drop_clean(&mut segments, b, |p| whole || p.segment == LOST);
    }
}

/// Packs the blocks of the segments that the start has found, some at a time: of all at once that takes a second or two, and everybody waits
/// meanwhile. Nothing more is named in them.
async fn pack_in_turns<B: Buf>(core: &Core<B>, loading: &Loading<B>) {
    let mut packed = 0;
    for n in &loading.restored {
        packed += core.segments.borrow_mut().pack(*n);
        if packed >= core.settings.let_go_blocks {
            packed = 0;
            core.exec.sleep(1).await;
        }
    }
}

/// All is in the map: from now on segments may be emptied.
fn finish<B: Buf>(core: &Core<B>, loading: &Loading<B>) {
    {
        let mut segments = core.segments.borrow_mut();
        for n in &loading.restored {
            segments.unpin(*n);
            segments.seal(*n);
        }
        segments.settle();
    }
    core.is_loaded.set(true);
    core.loading.replace(None);
    core.loaded.notify();
}
