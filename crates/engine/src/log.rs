//! The log of a volume: what is appended to its open segments, and how appended data gets its name in the map.
//!
//! One record carries the map entries and the data (R1). Waiting writes share a record; what does not fill one waits for
//! the one before. A record goes to as many copies as its class asks for, at the same place in each, in one device write
//! per copy. It is named when it is on all of them under the membership that then holds (R7), and what waits for it is
//! told.
//!
//! Clean data from clients' requests waits for more of it, as nobody waits for it, and who asks for it finds it in memory (`fills.rs`): a
//! record of one block has a header that is as long as the block where units are of 4 KiB, and costs a cache device as much as one of thirty.
//!
//! While space is short, what clients write goes to several open segments, by address (`policy/bands.rs`). Clean data
//! always has one for each queue, and these on several cache devices where the pool bears it (`policy/lanes.rs`).

use crate::core::{Awaiting, Core, MarksGuard, Volume};
use crate::exec::Slot;
use crate::fills::Fill;
use crate::io::{BLOCK, BLOCK_SECTORS, Buf, Device, DeviceOp, Reach};
use crate::left_behind::LeftBehind;
use crate::map::{Mask, Piece, mask};
use crate::marks::Mark;
use crate::policy::bands::{self, Bands};
use crate::policy::evict::Queue;
use crate::policy::lanes;
use crate::shares::wanted_for;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use headpond_format::{Class, Entry, EntryKind, Place, Record, RecordPlace, SegmentHeader};

/// Why something could not be appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AppendError {
    /// No segment is free for it.
    Full,
    /// No member, or no majority of votes.
    NoMembers,
    /// What was to be appended was lent, and cannot be read any more.
    Gone,
}

pub(crate) type Appended = Result<(), AppendError>;

/// One thing to append. Sectors are on the grid.
#[derive(Clone)]
pub(crate) enum Item<B> {
    /// Data from a client, dirty.
    Write { start: u64, data: B, version: u64 },
    /// Zeroes from a client, dirty, inside one block.
    Zeroes { block: u64, first: u8, sectors: u8, version: u64 },
    /// Data that the disk has too, for a queue of clean data.
    Fill { start: u64, data: B, version: u64, fill: Rc<Fill<B>>, queue: Queue },
    /// A live run of a dirty piece that moves, with its version (R16); no data where it stands for zeroes.
    Move { block: u64, first: u8, sectors: u8, data: Option<B>, from: Piece },
    /// Blocks that are clean up to a version.
    MarkClean { block: u64, count: u32, version: u64 },
    /// Sectors of one block where what is older than a version no longer counts.
    Forget { block: u64, first: u8, sectors: u8, version: u64 },
}

impl<B: Buf> Item<B> {
    fn data(&self) -> Option<&B> {
        match self {
            Item::Write { data, .. } | Item::Fill { data, .. } => Some(data),
            Item::Move { data, .. } => data.as_ref(),
            _ => None,
        }
    }
    pub fn bytes(&self) -> u64 {
        self.data().map_or(0, |d| d.len() as u64)
    }
    fn sectors(&self) -> u32 {
        (self.bytes() / 512) as u32
    }
    /// What a client writes by it, if some record of it was written, and none that counts.
    fn left_behind(&self) -> Option<LeftBehind> {
        let (start, sectors, version) = match self {
            Item::Write { start, version, .. } => (*start, self.sectors(), *version),
            Item::Zeroes { block, first, sectors, version } => {
                (block * BLOCK_SECTORS + u64::from(*first), u32::from(*sectors), *version)
            }
            _ => return None,
        };
        Some(LeftBehind { sectors: start..start + u64::from(sectors), version })
    }
    /// How badly a segment is wanted for it; for a move, where it is sorted.
    fn draw(&self) -> Draw {
        match self {
            Item::Write { .. } | Item::Zeroes { .. } => Draw::Demand,
            Item::Fill { queue: Queue::Main, .. } => Draw::Carried,
            Item::Fill { .. } => Draw::Spare,
            Item::Move { .. } => Draw::Move,
            Item::MarkClean { .. } | Item::Forget { .. } => Draw::Reserve,
        }
    }
    /// What it takes to append any of it: how badly a segment is wanted, and sectors of data.
    fn wants(&self) -> (Draw, u32) {
        (self.draw(), self.sectors().min(BLOCK_SECTORS as u32))
    }
    /// Entries that it takes in a record.
    fn entries(&self) -> usize {
        match self {
            Item::Write { start, data, .. } | Item::Fill { start, data, .. } => {
                let end = start + data.len() as u64 / 512;
                (end.div_ceil(BLOCK_SECTORS) - start / BLOCK_SECTORS) as usize
            }
            _ => 1,
        }
    }
    /// Cuts off what goes beyond `sectors` of data or `entries` entries, at a border of a block; the rest.
    /// `None` where not even the first block fits.
    fn split(&self, sectors: u32, entries: usize) -> Option<(Self, Option<Self>)> {
        if self.sectors() <= sectors && self.entries() <= entries {
            return Some((self.clone(), None));
        }
        let (start, data) = match self {
            Item::Write { start, data, .. } | Item::Fill { start, data, .. } => (*start, data),
            _ => return None,
        };
        let most = (start + u64::from(sectors)).min((start / BLOCK_SECTORS + entries as u64) * BLOCK_SECTORS);
        let cut = most / BLOCK_SECTORS * BLOCK_SECTORS;
        if entries == 0 || cut <= start {
            return None;
        }
        let at = ((cut - start) * 512) as usize;
        let (head, tail) = (data.slice(0..at), data.slice(at..data.len()));
        let mut rest = self.clone();
        let mut first = self.clone();
        for (item, s, d) in [(&mut first, start, head), (&mut rest, cut, tail)] {
            if let Item::Write { start, data, .. } | Item::Fill { start, data, .. } = item {
                *start = s;
                *data = d;
            }
        }
        Some((first, Some(rest)))
    }
}

/// What one caller waits for.
struct Batch<B: Buf> {
    left: Cell<usize>,
    /// Some of it is appended again: an earlier record of it may be found by the next start.
    again: Cell<bool>,
    result: Cell<Appended>,
    done: Rc<Slot<Appended, B>>,
}

impl<B: Buf> Batch<B> {
    fn finish(&self, items: usize, result: Appended) {
        if result.is_err() {
            self.result.set(result);
        }
        self.left.set(self.left.get() - items);
        if self.left.get() == 0 {
            self.done.set(self.result.get());
        }
    }
}

type Queued<B> = (Item<B>, Rc<Batch<B>>);

/// An item in a record, and which of the record's entries are its own.
type InRecord<B> = (Item<B>, Rc<Batch<B>>, Range<usize>);

/// What is in a record that is being written.
struct Placed<B: Buf> {
    items: Vec<InRecord<B>>,
    entries: Vec<Entry>,
}

/// What a record is to have.
struct Taken<B: Buf> {
    items: Vec<Queued<B>>,
    /// Their entries.
    entries: usize,
    /// Sectors of their data.
    data: u32,
}

struct Open<B: Buf> {
    segment: u32,
    /// The first write of the segment, which holds its header: nothing in it counts before that is on all copies.
    header: Rc<Slot<bool, B>>,
}

/// Bands of a lane of the log of clean data: one for each [`Queue`].
const CLEAN: usize = 2;
const _: () = assert!(CLEAN * lanes::MOST <= bands::MOST);

/// Which [`Queue`] a band of the log of clean data is for.
fn queue_of(band: usize) -> usize {
    band % CLEAN
}

/// What waits for an open segment, and that segment.
struct Band<B: Buf> {
    queue: VecDeque<Queued<B>>,
    open: Option<Open<B>>,
    /// Records of it in flight.
    in_flight: usize,
    /// Somebody waits for what is in the queue, or it has waited for long enough: none of it is gathered any more.
    hurried: bool,
}

impl<B: Buf> Band<B> {
    /// Whether what waits is to go now, where a record takes `full` bytes. What is less waits while `most` records are in
    /// flight, as in Nagle's algorithm (RFC 896), and shares the next one with what comes until then: where a device's
    /// requests are what is scarce each costs as much, whatever is in it, and where they are not, the wait is as short as
    /// a write.
    fn is_due(&self, full: u64, most: usize) -> bool {
        let (mut bytes, mut entries) = (0, 0);
        let mut is_full = |item: &Item<B>| {
            (bytes, entries) = (bytes + item.bytes(), entries + item.entries());
            bytes >= full || entries >= Record::MAX_ENTRIES
        };
        !self.queue.is_empty() && (self.in_flight < most || self.queue.iter().any(|(item, _)| is_full(item)))
    }
}

/// The log of one class of one volume.
pub(crate) struct Log<B: Buf> {
    class: Class,
    /// All there is goes to the first while only one is in use. Clean data has one for each [`Queue`] of each lane.
    bands: RefCell<Vec<Band<B>>>,
    /// Those in use.
    in_use: Cell<usize>,
    /// The one whose turn is next.
    turn: Cell<usize>,
    borders: RefCell<Bands>,
    in_flight: Cell<usize>,
    /// When the last record was.
    added: Cell<u64>,
    scheduled: Cell<bool>,
    /// Clean data waits: only what fills a record goes now, or is hurried, and the rest in a while.
    gathers: Cell<bool>,
}

impl<B: Buf> Log<B> {
    pub fn new(class: Class) -> Rc<Self> {
        Rc::new(Self {
            class,
            bands: RefCell::new(
                (0..bands::MOST).map(|_| Band { queue: VecDeque::new(), open: None, in_flight: 0, hurried: false }).collect(),
            ),
            in_use: Cell::new(if class == Class::Single { CLEAN } else { 1 }),
            turn: Cell::new(0),
            borders: RefCell::default(),
            in_flight: Cell::new(0),
            added: Cell::new(0),
            scheduled: Cell::new(false),
            gathers: Cell::new(false),
        })
    }

    /// From now on what is written goes to so many open segments, by address.
    pub fn sort_into(&self, bands: usize) {
        self.in_use.set(bands.clamp(1, bands::MOST));
    }

    pub fn sorted_into(&self) -> usize {
        self.in_use.get()
    }

    fn band_of(&self, core: &Core<B>, item: &Item<B>, sweep: u64) -> usize {
        let block = match item {
            Item::Fill { start, queue, .. } => return self.lane_of(core, *start).0 * CLEAN + *queue as usize,
            Item::Write { start, .. } => start / BLOCK_SECTORS,
            Item::Zeroes { block, .. } => *block,
            Item::Move { block, .. } if core.free() > core.bounds().reserve + bands::MOST as u32 => *block,
            // What may draw on the reserve opens one segment, and not one for each band: the rest of it is for marks. It is
            // the last, which the sweep comes to when it has gone round: by then another checkpoint has made up for its
            // marks, and rests are what the sweep has gone by. In the first, segments would be taken for their marks alone.
            Item::Move { .. } | Item::MarkClean { .. } | Item::Forget { .. } => return self.in_use.get() - 1,
        };
        self.borders.borrow_mut().of(block, sweep, self.in_use.get())
    }

    /// The lane of clean data that begins at a sector, and how many sectors are of the same stripe.
    fn lane_of(&self, core: &Core<B>, start: u64) -> (usize, u32) {
        lanes::of(start, self.in_use.get() / CLEAN, (core.settings.record_bytes / BLOCK * BLOCK_SECTORS) as u32)
    }

    /// The members with open segments of other lanes of a band's queue.
    fn beside(&self, core: &Core<B>, band: usize) -> Vec<u8> {
        if self.class != Class::Single {
            return Vec::new();
        }
        let (bands, segments) = (self.bands.borrow(), core.segments.borrow());
        let others = (queue_of(band)..bands::MOST).step_by(CLEAN).filter(|n| *n != band);
        let open = others.filter_map(|n| segments.get(bands[n].open.as_ref()?.segment));
        open.flat_map(|s| s.places().map(|p| p.member)).collect()
    }

    /// Clean data in the parts that have lanes of their own.
    fn stripes(&self, core: &Core<B>, items: Vec<Item<B>>) -> Vec<Item<B>> {
        let mut stripes = Vec::with_capacity(items.len());
        for item in items {
            let mut rest = Some(item);
            while let Some(item) = rest.take() {
                let sectors = match &item {
                    Item::Fill { start, .. } => self.lane_of(core, *start).1,
                    _ => u32::MAX,
                };
                let (stripe, more) = item.split(sectors, Record::MAX_ENTRIES).unwrap_or((item, None));
                stripes.push(stripe);
                rest = more;
            }
        }
        stripes
    }

    /// Appends items and names them; ends when all are on all their copies, or one could not be appended.
    pub fn append(self: &Rc<Self>, core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, items: Vec<Item<B>>) -> Rc<Slot<Appended, B>> {
        let done = self.queue(core, volume, items);
        self.hurry(core, volume);
        done
    }

    /// All that waits goes now.
    pub fn hurry(self: &Rc<Self>, core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) {
        self.gathers.set(false);
        // Whatever comes behind it to be gathered.
        self.bands.borrow_mut().iter_mut().for_each(|band| band.hurried = !band.queue.is_empty());
        self.schedule(core, volume);
    }

    /// The same as [`Self::append`] with what nobody waits for: it goes when there is enough for a record, with what somebody waits for,
    /// or after `gather_ns`.
    pub fn append_at_leisure(
        self: &Rc<Self>,
        core: &Rc<Core<B>>,
        volume: &Rc<Volume<B>>,
        items: Vec<Item<B>>,
    ) -> Rc<Slot<Appended, B>> {
        let done = self.queue(core, volume, items);
        if core.settings.gather_ns == 0 {
            self.schedule(core, volume);
            return done;
        }
        if !self.gathers.replace(true) {
            let (this, core2, volume) = (self.clone(), core.clone(), volume.clone());
            core.exec.spawn(async move {
                core2.exec.sleep(core2.settings.gather_ns).await;
                this.hurry(&core2, &volume);
            });
        }
        let full = u64::from(self.shared_sectors(core)) * 512;
        if self.bands.borrow().iter().any(|band| band.is_due(full, 0)) {
            self.schedule(core, volume);
        }
        done
    }

    /// Puts items in line.
    fn queue(&self, core: &Core<B>, volume: &Volume<B>, items: Vec<Item<B>>) -> Rc<Slot<Appended, B>> {
        let done = Slot::new(&core.exec);
        if items.is_empty() {
            done.set(Ok(()));
            return done;
        }
        let items = match self.class {
            Class::Mirrored => items,
            Class::Single => {
                self.in_use.set(CLEAN * core.lanes_of(volume));
                self.stripes(core, items)
            }
        };
        let batch = Rc::new(Batch {
            left: Cell::new(items.len()),
            again: Cell::new(false),
            result: Cell::new(Ok(())),
            done: done.clone(),
        });
        for item in items {
            let band = self.band_of(core, &item, volume.swept_to.get());
            self.bands.borrow_mut()[band].queue.push_back((item, batch.clone()));
        }
        done
    }

    /// Items that wait.
    pub fn queued(&self) -> usize {
        self.bands.borrow().iter().map(|band| band.queue.len()).sum()
    }

    /// Closes the open segments.
    pub fn seal(&self, core: &Core<B>) {
        (0..bands::MOST).for_each(|band| self.seal_band(core, band));
    }

    fn seal_band(&self, core: &Core<B>, band: usize) {
        if let Some(open) = self.bands.borrow_mut()[band].open.take() {
            core.segments.borrow_mut().seal(open.segment);
        }
    }

    /// The open segments, and where the next record of each will begin.
    pub fn positions(&self, core: &Core<B>) -> Vec<(u32, u32)> {
        (0..bands::MOST).filter_map(|band| self.position(core, band)).collect()
    }

    /// Whether a segment is open, and nothing was added to any for so long, in nanoseconds.
    pub fn rests(&self, core: &Core<B>, nanoseconds: u64) -> bool {
        self.has_open(core) && self.in_flight.get() == 0 && self.queued() == 0 && core.now() - self.added.get() >= nanoseconds
    }

    /// Whether a segment is open.
    pub fn has_open(&self, core: &Core<B>) -> bool {
        (0..bands::MOST).any(|band| self.position(core, band).is_some())
    }

    fn position(&self, core: &Core<B>, band: usize) -> Option<(u32, u32)> {
        let n = self.bands.borrow()[band].open.as_ref()?.segment;
        let next = core.segments.borrow().get(n)?.next;
        Some((n, next))
    }

    fn schedule(self: &Rc<Self>, core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) {
        if !self.scheduled.replace(true) {
            let (this, core2, volume) = (self.clone(), core.clone(), volume.clone());
            // In a task of its own, so that all that is ready in this step shares a record.
            core.exec.spawn(async move {
                // A segment that is opened while a member leaves has no copy on it. Where the daemon dies before its leaving is durable
                // it is back, and nobody knows what it lacks. Nothing is acknowledged earlier for not waiting.
                if this.class == Class::Mirrored && core2.pool.borrow().changing {
                    core2.mark(Mark::AppendsWaitForMembership);
                    core2.wait_settled().await;
                }
                this.scheduled.set(false);
                this.pump(&core2, &volume);
            });
        }
    }

    fn pump(self: &Rc<Self>, core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) {
        while self.in_flight.get() < core.settings.appends {
            let Some(band) = self.next_band(core) else { break };
            if !core.pool.borrow().has_votes() {
                core.mark(Mark::AppendsFail);
                self.fail_all(AppendError::NoMembers);
                return;
            }
            self.append_one(core, volume, band);
        }
        self.bands.borrow_mut().iter_mut().for_each(|band| band.hurried &= !band.queue.is_empty());
        // A segment that gets no more is closed, so that it can be freed when what it holds is down.
        for band in self.in_use.get()..bands::MOST {
            let gets_no_more = {
                let band = &self.bands.borrow()[band];
                band.open.is_some() && band.queue.is_empty()
            };
            if gets_no_more {
                self.seal_band(core, band);
            }
        }
    }

    /// A band for which something is to go now; they take turns.
    fn next_band(&self, core: &Core<B>) -> Option<usize> {
        let full = u64::from(self.shared_sectors(core)) * 512;
        let most = |band: &Band<B>| match self.class {
            Class::Mirrored => core.settings.unfilled_appends,
            Class::Single if self.gathers.get() && !band.hurried => 0,
            Class::Single => core.settings.appends,
        };
        let bands = self.bands.borrow();
        let turn = self.turn.get();
        let next = (turn..turn + bands::MOST).map(|n| n % bands::MOST).find(|n| bands[*n].is_due(full, most(&bands[*n])))?;
        self.turn.set(next + 1);
        Some(next)
    }

    /// Sectors that several items share in a record. Writes of a burst have half as much as one may have: the first would
    /// wait for those behind it.
    fn shared_sectors(&self, core: &Core<B>) -> u32 {
        let most = (core.settings.record_bytes / 512) as u32;
        if self.class == Class::Mirrored && self.in_use.get() == 1 { most / 2 } else { most }
    }

    fn fail_all(&self, error: AppendError) {
        let queues: Vec<_> = self.bands.borrow_mut().iter_mut().flat_map(|band| core::mem::take(&mut band.queue)).collect();
        for (_, batch) in queues {
            batch.finish(1, Err(error));
        }
    }

    /// No segment is free for a band: what waits for it goes to one that is open and has room for `sectors`.
    fn share_open(&self, core: &Core<B>, band: usize, sectors: u32) -> bool {
        let capacity = core.pool.borrow().segment_sectors();
        let has_room = |n: &usize| *n != band && self.position(core, *n).is_some_and(|(_, next)| next + sectors <= capacity);
        let Some(other) = (0..bands::MOST).find(has_room) else { return false };
        let mut bands = self.bands.borrow_mut();
        let queue = core::mem::take(&mut bands[band].queue);
        bands[other].queue.extend(queue);
        true
    }

    /// Builds one record from what waits for a band, and submits it.
    fn append_one(self: &Rc<Self>, core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, band: usize) {
        core.mark_if(self.drop_stale(volume, band) > 0, Mark::StaleNotAppended);
        let Some((draw, first_sectors)) = self.bands.borrow()[band].queue.front().map(|(first, _)| first.wants()) else { return };
        core.mark_if(band > 0 && self.class == Class::Mirrored, Mark::AppendedInBands);
        let unit = core.pool.borrow().unit as usize;
        let round = |sectors: u32| sectors.next_multiple_of((unit / 512) as u32);
        let least = first_sectors + Record::header_sectors(1, unit);
        let Some((segment, opening)) = self.segment_for(core, volume, band, round(least), draw) else {
            self.schedule(core, volume);
            return;
        };
        let (generation, copies) = {
            let mut segments = core.segments.borrow_mut();
            let Some(s) = segments.get_mut(segment) else { return };
            if opening {
                s.next = (unit / 512) as u32;
            }
            (s.generation, s.copies)
        };
        let offset = core.segments.borrow().get(segment).map_or(0, |s| s.next);
        let capacity = core.pool.borrow().segment_sectors();
        let Taken { items: taken, entries, data } = self.take(core, band, capacity - offset);
        if taken.is_empty() {
            // The segment's rest is too short for the first item: the next turn opens another.
            core.mark(Mark::RestTooShort);
            self.seal_band(core, band);
            self.schedule(core, volume);
            return;
        }
        let header_sectors = Record::header_sectors(entries, unit);
        let sectors = round(header_sectors + data);
        // Beyond the segment lies another one.
        assert!(offset + sectors <= capacity, "a record goes beyond its segment");
        let place = RecordPlace { segment, generation, offset };
        let reach = self.reach(volume, &taken);
        let Placed { items, entries } = build(core, volume, place, header_sectors, taken, entries);
        let record = Record { place, sectors, entries };
        let key = core.pool.borrow().key;
        let mut start = offset;
        let mut bufs = Vec::with_capacity(items.len() + 3);
        if opening {
            let header = SegmentHeader { segment, generation, class: self.class, volume: volume.number, copies };
            bufs.push(B::from_bytes(&header.encode_with(key, unit, &core.durable_before(generation))));
            start = 0;
        }
        bufs.push(B::from_bytes(&record.encode_header(key, unit)));
        bufs.extend(items.iter().filter_map(|(item, ..)| item.data().cloned()));
        let pad = (sectors - header_sectors - data) as usize * 512;
        if pad > 0 {
            bufs.push(B::zeroes(pad));
        }
        let placed = Placed { items, entries: record.entries };
        let marks = placed.entries.iter().any(|e| matches!(e.kind, EntryKind::MarkClean | EntryKind::Forget));
        {
            let mut segments = core.segments.borrow_mut();
            if let Some(s) = segments.get_mut(segment) {
                s.next = offset + sectors;
            }
            if marks {
                segments.marked(segment);
            }
            segments.pin(segment);
        }
        let bytes: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        let writes: Vec<(Place, _)> = copies
            .iter()
            .filter(|p| core.pool.borrow().is_in_sync(p.member))
            .map(|p| {
                let at = core.slot_offset(*p) + u64::from(start) * 512;
                (*p, core.exec.io(Device::Member(p.member), DeviceOp::Write { offset: at, bufs: bufs.clone(), reach }))
            })
            .collect();
        {
            let mut stats = core.stats.borrow_mut();
            stats.member_bytes += bytes * writes.len() as u64;
            stats.records += 1;
        }
        core.appended(bytes);
        let flight = core.begin_flight();
        core.durability.borrow_mut().append_begins(generation);
        let epoch = core.pool.borrow().epoch;
        self.added.set(core.now());
        self.in_flight.set(self.in_flight.get() + 1);
        self.bands.borrow_mut()[band].in_flight += 1;
        let header = self.bands.borrow()[band].open.as_ref().map(|o| o.header.clone());
        let (this, core2, volume2) = (self.clone(), core.clone(), volume.clone());
        core.exec.spawn(async move {
            let mut on_copies = 0;
            for (place, write) in writes {
                match write.await {
                    Ok(_) => {
                        if reach != Reach::Durable {
                            core2.member_flusher(place.member).wrote();
                        }
                        on_copies += 1;
                    }
                    Err(_) => {
                        core2.mark(Mark::AppendFailsOnMember);
                        core2.fail_member_of(epoch, place.member).await;
                    }
                }
            }
            let header_ok = match header {
                Some(header) if opening => {
                    header.set(on_copies > 0);
                    on_copies > 0
                }
                Some(header) => header.get().await,
                None => true,
            };
            this.end(core2.clone(), volume2, band, place, placed, header_ok).await;
            core2.durability.borrow_mut().append_ends(generation);
            drop(flight);
        });
    }

    /// The segment for a band's next record, of which so many sectors at `least`, and whether it was opened for it: the open one, if it has room,
    /// or else a new one. `None` where there is none: then the band has another one's, or what is first in its queue has failed, and what wants the same.
    fn segment_for(
        self: &Rc<Self>,
        core: &Rc<Core<B>>,
        volume: &Rc<Volume<B>>,
        band: usize,
        least: u32,
        draw: Draw,
    ) -> Option<(u32, bool)> {
        let capacity = core.pool.borrow().segment_sectors();
        if let Some((segment, _)) = self.position(core, band).filter(|(_, next)| next + least <= capacity) {
            return Some((segment, false));
        }
        self.seal_band(core, band);
        // By the time they are appended there may be less space than there was when they were sorted.
        let draw = match draw {
            Draw::Move if band + 1 == self.in_use.get() => Draw::Reserve,
            draw => draw,
        };
        if let Some(segment) = core.open_segment(self.class, volume.number, draw, &self.beside(core, band)) {
            if let Some(s) = core.segments.borrow_mut().get_mut(segment) {
                s.sorted = self.class == Class::Mirrored && self.in_use.get() > 1;
                s.queue = if self.class == Class::Single && queue_of(band) > 0 { Queue::Main } else { Queue::Probation };
            }
            self.bands.borrow_mut()[band].open = Some(Open { segment, header: Slot::new(&core.exec) });
            return Some((segment, true));
        }
        if self.share_open(core, band, least) {
            return None;
        }
        core.mark(Mark::NoSegmentToOpen);
        self.refuse(volume, band);
        core.space_is_short();
        None
    }

    /// There is no segment for what is first in a band's queue, nor for all behind it that is refused with it: a discard has an item for each
    /// block, and to ask for each of them, one after the other, would keep everybody waiting.
    fn refuse(&self, volume: &Volume<B>, band: usize) {
        let refused: Vec<Queued<B>> = {
            let queue = &mut self.bands.borrow_mut()[band].queue;
            let many = refused_with_first(queue.iter().map(|(item, _)| item.wants()));
            queue.drain(..many).collect()
        };
        for (item, batch) in refused {
            if batch.again.get() {
                volume.left_behind.add(item.left_behind());
            }
            batch.finish(1, Err(AppendError::Full));
        }
    }

    /// Takes as many items from a band's queue as fit into a record of no more than `most` sectors.
    fn take(&self, core: &Core<B>, band: usize, most: u32) -> Taken<B> {
        let unit = core.pool.borrow().unit as usize;
        let sectors_of_unit = (unit / 512) as u32;
        let mut items = Vec::with_capacity(self.bands.borrow()[band].queue.len().min(Record::MAX_ENTRIES));
        let (mut entries, mut data) = (0usize, 0u32);
        let most_data = (core.settings.record_bytes / 512) as u32;
        let shared = self.shared_sectors(core);
        while entries < Record::MAX_ENTRIES && data < shared {
            let Some((item, batch)) = self.bands.borrow_mut()[band].queue.pop_front() else { break };
            // The header grows with each entry, also of items without data.
            let header = Record::header_sectors(entries + item.entries().min(Record::MAX_ENTRIES - entries), unit);
            let Some(room) = most.checked_sub(header + data) else {
                self.bands.borrow_mut()[band].queue.push_front((item, batch));
                break;
            };
            let room =
                ((room + data) / sectors_of_unit * sectors_of_unit).min(most_data.max(BLOCK_SECTORS as u32)).saturating_sub(data);
            let fits = item.split(room, Record::MAX_ENTRIES - entries);
            match fits {
                Some((head, rest)) => {
                    entries += head.entries();
                    data += head.sectors();
                    let cut = rest.is_some();
                    if let Some(rest) = rest {
                        batch.left.set(batch.left.get() + 1);
                        self.bands.borrow_mut()[band].queue.push_front((rest, batch.clone()));
                    }
                    items.push((head, batch));
                    if cut {
                        break;
                    }
                }
                None => {
                    self.bands.borrow_mut()[band].queue.push_front((item, batch));
                    break;
                }
            }
        }
        Taken { items, entries, data }
    }

    /// Whether a record with these items, which is about to be written, should be durable by itself.
    fn reach(&self, volume: &Volume<B>, taken: &[Queued<B>]) -> Reach {
        let of_clients = taken.iter().any(|(item, _)| matches!(item, Item::Write { .. } | Item::Zeroes { .. }));
        if self.class != Class::Mirrored || !of_clients {
            return Reach::Cache;
        }
        let mut synchronous = volume.synchronous.get();
        let durable = synchronous.record(taken.len() == 1 && self.in_flight.get() == 0);
        volume.synchronous.set(synchronous);
        if durable { Reach::Durable } else { Reach::Cache }
    }

    /// A record's writes have ended: names what is on enough copies, appends again what is not.
    async fn end(
        self: Rc<Self>,
        core: Rc<Core<B>>,
        volume: Rc<Volume<B>>,
        band: usize,
        place: RecordPlace,
        placed: Placed<B>,
        header_ok: bool,
    ) {
        core.wait_settled().await;
        // Members that left since the record was made have no say; those that are in sync now and were to hold it do.
        let enough = {
            let pool = core.pool.borrow();
            let segments = core.segments.borrow();
            let want = match self.class {
                Class::Mirrored => pool.copies_now(),
                Class::Single => 1,
            };
            let have = segments.get(place.segment).map_or(0, |s| s.places().filter(|p| pool.is_in_sync(p.member)).count());
            header_ok && have >= want && want > 0 && !pool.stalled
        };
        if enough {
            for (item, _, entries) in &placed.items {
                name(&core, &volume, place.segment, item, &placed.entries[entries.clone()]);
            }
            core.segments.borrow_mut().unpin(place.segment);
            core.segments.borrow_mut().settle();
            for (_, batch, _) in placed.items {
                batch.finish(1, Ok(()));
            }
        } else {
            core.mark(Mark::AppendedAgain);
            self.seal_band(&core, band);
            core.segments.borrow_mut().unpin(place.segment);
            let queue = &mut self.bands.borrow_mut()[band].queue;
            for (item, batch, _) in placed.items.into_iter().rev() {
                batch.again.set(true);
                queue.push_front((item, batch));
            }
        }
        self.in_flight.set(self.in_flight.get() - 1);
        self.bands.borrow_mut()[band].in_flight -= 1;
        self.schedule(&core, &volume);
    }

    /// What need not be appended any more is not: a fill that a write overlapped (R5), a move of what has been
    /// replaced or cleaned. Left in the queue it could reach the media after the mark that outdates it was dropped. Nor is a move of what is being
    /// replaced: behind what replaces it, it would be replayed alone after a checkpoint that begins between the two. How many of them there were.
    fn drop_stale(&self, volume: &Rc<Volume<B>>, band: usize) -> usize {
        let mut gone = Vec::new();
        self.bands.borrow_mut()[band].queue.retain(|(item, batch)| {
            let keep = match item {
                Item::Fill { fill, .. } => !fill.spoiled.get(),
                Item::Move { block, first, sectors, from, .. } => {
                    !volume.is_being_replaced(*block) && still_there(volume, *block, from, mask(*first, *sectors))
                }
                _ => true,
            };
            if !keep {
                gone.push(batch.clone());
            }
            keep
        });
        let many = gone.len();
        for batch in gone {
            batch.finish(1, Ok(()));
        }
        many
    }
}

/// Whether the piece is in the map, dirty, and all of `sectors` are still its own.
fn still_there<B: Buf>(volume: &Volume<B>, block: u64, from: &Piece, sectors: Mask) -> bool {
    let mut found = false;
    volume.map.borrow().each(block, |p| found |= p.is_same(from) && p.dirty() && p.live & sectors == sectors);
    found
}

/// How many of a queue are refused with its first, by what each [`Item::wants`]: those behind it that want a segment for the same, and no
/// less of one. Where there was none for the first there is none for these before something else has happened.
fn refused_with_first(queue: impl IntoIterator<Item = (Draw, u32)>) -> usize {
    let mut queue = queue.into_iter();
    let Some((draw, sectors)) = queue.next() else { return 0 };
    1 + queue.take_while(|it| it.0 == draw && it.1 >= sectors).count()
}

/// How badly a segment is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Draw {
    /// For what frees space in the end: the last segment may go.
    Reserve,
    /// For what moves to be sorted: no share is in its way, since it wins more than it takes.
    Move,
    /// For clients' writes.
    Demand,
    /// For clean data that is written again: as long as half of what is kept ahead of demand is free.
    Carried,
    /// For clean data: only while there is more free than is kept ahead of demand.
    Spare,
}

/// The items with their entries, of which there are so many: their places and checksums. The data is in the same order behind the header.
fn build<B: Buf>(
    core: &Core<B>,
    volume: &Volume<B>,
    place: RecordPlace,
    header_sectors: u32,
    taken: Vec<Queued<B>>,
    entries: usize,
) -> Placed<B> {
    let mut at = place.offset + header_sectors;
    let mut entries = Vec::with_capacity(entries);
    let mut items = Vec::with_capacity(taken.len());
    for (item, batch) in taken {
        let begin = entries.len();
        match &item {
            Item::Write { start, data, version } | Item::Fill { start, data, version, .. } => {
                let kind = if matches!(item, Item::Write { .. }) { EntryKind::Dirty } else { EntryKind::Clean };
                let end = start + data.len() as u64 / 512;
                let mut s = *start;
                while s < end {
                    let block = s / BLOCK_SECTORS;
                    let to = end.min((block + 1) * BLOCK_SECTORS);
                    let first = (s % BLOCK_SECTORS) as u8;
                    let part = data.slice(((s - start) * 512) as usize..((to - start) * 512) as usize);
                    let sum = part.checksum(core.seed(volume.number, block, first, *version));
                    let count = (to - s) as u8;
                    entries.push(Entry { kind, first, sectors: count, block, count: 1, version: *version, sum, offset: at });
                    at += u32::from(count);
                    s = to;
                }
            }
            Item::Move { block, first, sectors, data, from } => {
                let (kind, sum, offset) = match data {
                    Some(d) => (EntryKind::Dirty, d.checksum(core.seed(volume.number, *block, *first, from.version())), at),
                    None => (EntryKind::Zeroes, 0, place.offset),
                };
                entries.push(Entry {
                    kind,
                    first: *first,
                    sectors: *sectors,
                    block: *block,
                    count: 1,
                    version: from.version(),
                    sum,
                    offset,
                });
                if data.is_some() {
                    at += u32::from(*sectors);
                }
            }
            Item::Zeroes { block, first, sectors, version } => entries.push(Entry {
                kind: EntryKind::Zeroes,
                first: *first,
                sectors: *sectors,
                block: *block,
                count: 1,
                version: *version,
                sum: 0,
                offset: place.offset,
            }),
            Item::MarkClean { block, count, version } => entries.push(Entry {
                kind: EntryKind::MarkClean,
                first: 0,
                sectors: BLOCK_SECTORS as u8,
                block: *block,
                count: *count,
                version: *version,
                sum: 0,
                offset: place.offset,
            }),
            Item::Forget { block, first, sectors, version } => entries.push(Entry {
                kind: EntryKind::Forget,
                first: *first,
                sectors: *sectors,
                block: *block,
                count: 1,
                version: *version,
                sum: 0,
                offset: place.offset,
            }),
        }
        items.push((item, batch, begin..entries.len()));
    }
    Placed { items, entries }
}

/// Puts an appended item into the map.
fn name<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, segment: u32, item: &Item<B>, entries: &[Entry]) {
    let mut map = volume.map.borrow_mut();
    let mut segments = core.segments.borrow_mut();
    let piece = |e: &Entry, dirty| {
        let zeroes = e.kind == EntryKind::Zeroes;
        Piece::new(e.version, e.sum, segment, e.offset as u16, e.first, e.sectors, dirty, zeroes)
    };
    match item {
        Item::Write { .. } | Item::Zeroes { .. } => {
            for e in entries {
                map.write(&mut segments, e.block, piece(e, true), || core.ghost.borrow_mut().take(volume.number, e.block));
            }
        }
        Item::Fill { fill, .. } => {
            if fill.spoiled.get() {
                core.mark(Mark::FillSpoiledInFlight);
                volume.stats.borrow_mut().fills_spoiled += 1;
                return;
            }
            for e in entries {
                map.insert(&mut segments, e.block, piece(e, false));
            }
        }
        Item::Move { block, from, .. } => {
            // Of what moved, the sectors that are still the old piece's.
            let mut live = 0;
            map.each(*block, |old| {
                if old.is_same(from) && old.dirty() {
                    live |= old.live;
                }
            });
            for e in entries {
                let mut p = piece(e, true);
                p.live &= live & mask(e.first, e.sectors);
                core.mark_if(p.live != mask(e.first, e.sectors), Mark::MoveOvertaken);
                if p.live != 0 {
                    map.insert(&mut segments, *block, p);
                }
            }
        }
        Item::MarkClean { .. } | Item::Forget { .. } => {}
    }
}

impl<B: Buf> Core<B> {
    /// Opens a segment for a volume if what is free allows it; not on these members, if others have as much room.
    pub(crate) fn open_segment(self: &Rc<Self>, class: Class, volume: u16, draw: Draw, not_on: &[u8]) -> Option<u32> {
        let copies = match class {
            Class::Mirrored => self.bounds().copies,
            Class::Single => 1,
        };
        let free = self.segments.borrow().free_sets(copies);
        let of = self.volume(volume).filter(|_| matches!(draw, Draw::Demand | Draw::Carried | Draw::Spare));
        let left = of.as_ref().map_or(0, |v| self.left_to_others(v));
        let needed = match draw {
            Draw::Reserve => 0,
            Draw::Demand | Draw::Move => self.bounds().reserve + left,
            // Preloads and what comes back are among them, of volumes that may have less than they are sure of.
            Draw::Carried => of.as_ref().map_or(u32::MAX, |v| self.kept_from_carried().min(self.kept_from_clean(v))),
            Draw::Spare => of.as_ref().map_or(u32::MAX, |v| self.kept_from_clean(v)),
        };
        if free <= needed {
            self.space_is_short();
        }
        // Two single slots are no segment for what others write.
        let takes_theirs = matches!(draw, Draw::Carried | Draw::Spare) && left > 0 && self.free() <= self.bounds().reserve + left;
        if takes_theirs || of.is_some_and(|v| !self.share_allows(&v, wanted_for(class))) {
            return None;
        }
        self.mark_if(free <= needed && free > 0 && draw != Draw::Reserve, Mark::ReserveKept);
        self.mark_if(free <= self.bounds().reserve && draw == Draw::Reserve, Mark::ReserveDrawnOn);
        if free <= needed && !(draw == Draw::Reserve && free > 0) {
            return None;
        }
        let generation = self.generation.get() + 1;
        let diskless = self.volume(volume).is_some_and(|v| !v.has_disk());
        let n = self.segments.borrow_mut().open(generation, class, volume, diskless, copies, not_on)?;
        self.generation.set(generation);
        self.durability.borrow_mut().opened(generation, n);
        Some(n)
    }

    /// Byte offset on its member of a segment's slot.
    pub(crate) fn slot_offset(&self, place: Place) -> u64 {
        self.pool.borrow().members[usize::from(place.member)].layout.slot(place.slot)
    }
}

impl<B: Buf> Log<B> {
    /// Appends marks, and waits for space where there is none. Until the guard is dropped no checkpoint begins: one that
    /// began between a mark and its place in the map would replay what is moved meanwhile, and not the mark.
    pub async fn append_marks(
        self: &Rc<Self>,
        core: &Rc<Core<B>>,
        volume: &Rc<Volume<B>>,
        items: Vec<Item<B>>,
    ) -> Result<MarksGuard<B>, AppendError> {
        loop {
            let guard = core.begin_marks().await;
            match self.append(core, volume, items.clone()).get().await {
                Ok(()) => return Ok(guard),
                Err(AppendError::Full) => {
                    // Before all of the map is known none is won.
                    if core.loading().is_some_and(|loading| loading.lost_page.is_some()) {
                        return Err(core.passing(Mark::MarksHaveNoSpace, AppendError::Full));
                    }
                    core.mark(Mark::MarksWaitForSpace);
                    let _waits = Awaiting::room(core);
                    // Space comes from a checkpoint, which must not wait for us.
                    drop(guard);
                    core.space_is_short();
                    // By time: two who are short would wake each other for ever, and no checkpoint would get a turn.
                    core.exec.sleep(1_000_000).await;
                }
                Err(e) => return Err(e),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No segment was free for a discard that was to be absorbed, an item for each of its blocks. They were refused one by one, each after all that
    /// waited had been looked through: of 256 Ki blocks that was minutes in which nobody had an answer. Found by reading.
    #[test]
    fn where_no_segment_is_free_all_of_a_discard_is_refused_at_once() {
        let refused = |queue: &[(Draw, u32)]| refused_with_first(queue.iter().copied());
        assert_eq!(refused(&[(Draw::Demand, 0); 1000]), 1000);
        assert_eq!(refused(&[]), 0);
    }

    /// A mark may have the last segment, which what clients write may not; and what is shorter may fit into another one's rest.
    #[test]
    fn what_might_have_a_segment_is_not_refused_with_what_has_none() {
        let refused = |queue: &[(Draw, u32)]| refused_with_first(queue.iter().copied());
        assert_eq!(refused(&[(Draw::Demand, 0), (Draw::Demand, 8), (Draw::Reserve, 0), (Draw::Demand, 0)]), 2);
        assert_eq!(refused(&[(Draw::Demand, 4), (Draw::Demand, 8), (Draw::Demand, 3)]), 2);
    }
}
