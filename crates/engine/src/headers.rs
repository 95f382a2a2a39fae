//! What a start reads of the log: the records' headers alone of segments that are known to be durable ([`crate::durability`]), and all copies
//! of what else there is.
//!
//! A header says where the next one is. Where they end before the segment does, which one that cannot be read looks like as well, the rest is
//! read like any other segment: other copies may have it, and more may lie behind a hole (R15).

use crate::core::Core;
use crate::exec::{IoWait, Slot};
use crate::io::{Buf, Device, DeviceOp};
use crate::marks::Mark;
use crate::recovery::{Found, record_at};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;
use headpond_format::{Place, Record, RecordPlace};

/// Segments whose headers are read at once: each has one read under way, whose place the one before it tells.
const AT_ONCE: usize = 32;
/// Those that are read whole at once: read while the one before is put together. Devices and processor need not wait for each other.
const WHOLE_AT_ONCE: usize = 2;
/// Bytes of what lies behind the last header that are read of each of these at once; what is longer, one after the other.
const TAIL: u32 = 256 << 10;
/// Bytes that are read for a header, at least; twice as many as before where records are so short that there was more than one in these.
const LEAST: u32 = 8 << 10;
const MOST: u32 = 256 << 10;

/// One copy of a segment in memory: what was read from `from` on.
#[derive(Clone)]
pub(crate) struct Copy<B> {
    pub place: Place,
    pub data: Option<B>,
    /// Units that could not be read and are zeroes in it, by their first sectors.
    pub unreadable: Vec<u32>,
}

/// What a start has of a segment.
pub(crate) struct Read<B> {
    pub found: Rc<Found>,
    /// Records whose data is durable.
    pub records: Vec<Record>,
    /// The sector from which on it was read whole.
    pub from: u32,
    pub copies: Vec<Copy<B>>,
}

/// A segment whose copies are being read, from sector `from` on.
struct Whole<B: Buf> {
    from: u32,
    copies: Vec<(Place, IoWait<B>)>,
}

impl<B: Buf> Whole<B> {
    fn begin(core: &Rc<Core<B>>, found: &Found, from: u32) -> Self {
        let capacity = core.pool.borrow().segment_sectors();
        let read = |p: Place| {
            let offset = core.slot_offset(p) + u64::from(from) * 512;
            (p, core.exec.io(Device::Member(p.member), DeviceOp::Read { offset, len: (capacity - from) * 512, into: None }))
        };
        let there = there(core, found).filter(|_| from < capacity);
        Self { from, copies: there.map(read).collect() }
    }

    async fn end(self, core: &Core<B>) -> Vec<Copy<B>> {
        let len = ((core.pool.borrow().segment_sectors() - self.from) * 512) as usize;
        let mut copies = Vec::new();
        for (place, wait) in self.copies {
            let data = wait.await.ok().flatten().filter(|b| b.len() == len);
            copies.push(Copy { place, data, unreadable: Vec::new() });
        }
        copies
    }
}

/// Copies of a segment on members that are there.
fn there<B: Buf>(core: &Core<B>, found: &Found) -> impl Iterator<Item = Place> {
    found.header.copies.into_iter().filter(|c| core.pool.borrow().is_in_sync(c.member))
}

/// Records, where the last of them ends, and what was read whole from there on, if it was.
type Headers<B> = (Vec<Record>, u32, Option<Vec<Copy<B>>>);

enum Reading<B: Buf> {
    Whole(Whole<B>),
    Headers(Rc<Slot<Headers<B>, B>>),
}

/// The segments of the log, in their order, which are read ahead of who wants them.
pub(crate) struct Replay<B: Buf> {
    segments: VecDeque<Rc<Found>>,
    reading: VecDeque<(Rc<Found>, Reading<B>)>,
}

impl<B: Buf> Replay<B> {
    pub fn new(segments: Vec<Rc<Found>>) -> Self {
        Self { segments: segments.into(), reading: VecDeque::new() }
    }

    /// Bytes of each copy from where a segment is replayed on.
    pub fn bytes(core: &Core<B>, found: &Found) -> u64 {
        sectors(core, found).len() as u64 * 512
    }

    /// The next segment. Of members that have left meanwhile nothing counts.
    pub async fn take(&mut self, core: &Rc<Core<B>>) -> Option<Read<B>> {
        self.read_ahead(core);
        let (found, reading) = self.reading.pop_front()?;
        // While it is waited for, and put together.
        self.read_ahead(core);
        let (records, from, mut copies) = match reading {
            Reading::Whole(whole) => (Vec::new(), whole.from, whole.end(core).await),
            Reading::Headers(read) => match read.get().await {
                (records, from, Some(copies)) => (records, from, copies),
                (records, from, None) => (records, from, Whole::begin(core, &found, from).end(core).await),
            },
        };
        copies.retain(|c| core.pool.borrow().is_in_sync(c.place.member));
        Some(Read { found, records, from, copies })
    }

    fn read_ahead(&mut self, core: &Rc<Core<B>>) {
        let whole =
            |reading: &VecDeque<(Rc<Found>, Reading<B>)>| reading.iter().filter(|(_, r)| matches!(r, Reading::Whole(_))).count();
        while self.reading.len() < AT_ONCE {
            let is_next = |found: &&Rc<Found>| found.is_durable || whole(&self.reading) < WHOLE_AT_ONCE - 1;
            let Some(found) = self.segments.front().filter(is_next).cloned() else { break };
            self.segments.pop_front();
            let from = sectors(core, &found).start;
            let reading = if found.is_durable {
                core.mark(Mark::HeadersAlone);
                let read = Slot::new(&core.exec);
                core.exec.spawn(read_headers(core.clone(), found.clone(), from, read.clone()));
                Reading::Headers(read)
            } else {
                Reading::Whole(Whole::begin(core, &found, from))
            };
            self.reading.push_back((found, reading));
        }
    }
}

/// The sectors from which a segment is replayed on: on the grid of units, and behind its header.
fn sectors<B: Buf>(core: &Core<B>, found: &Found) -> Range<u32> {
    let pool = core.pool.borrow();
    let (unit, capacity) = (pool.unit / 512, pool.segment_sectors());
    (found.replay_from / unit * unit).clamp(unit, capacity)..capacity
}

/// Reads the records' headers on one copy, as far as they go, and what lies behind them whole.
async fn read_headers<B: Buf>(core: Rc<Core<B>>, found: Rc<Found>, from: u32, read: Rc<Slot<Headers<B>, B>>) {
    let copies: Vec<Place> = there(&core, &found).collect();
    // By turns, so that all devices have their part.
    let copy = copies.get(found.number as usize % copies.len().max(1)).copied();
    let (records, end) = match copy {
        Some(copy) => follow(&core, &found, copy, from).await,
        None => (Vec::new(), from),
    };
    let left = (core.pool.borrow().segment_sectors() - end) * 512;
    core.mark_if(left > 0, Mark::HeadersEnd);
    let rest = if left <= TAIL { Some(Whole::begin(&core, &found, end).end(&core).await) } else { None };
    read.set((records, end, rest));
}

/// The records on one copy from a sector on, each where the one before it ends; and where the last of them does.
async fn follow<B: Buf>(core: &Core<B>, found: &Found, copy: Place, from: u32) -> (Vec<Record>, u32) {
    let (key, unit, capacity) = {
        let pool = core.pool.borrow();
        (pool.key, pool.unit, pool.segment_sectors())
    };
    let mut records: Vec<Record> = Vec::new();
    let (mut at, mut wanted) = (from, LEAST);
    while at < capacity {
        let (begin, had, left) = (at, records.len(), (capacity - at) * 512);
        let len = wanted.next_multiple_of(unit).min(left);
        let op = DeviceOp::Read { offset: core.slot_offset(copy) + u64::from(at) * 512, len, into: None };
        let window = core.exec.io(Device::Member(copy.member), op).await.ok().flatten().filter(|b| b.len() == len as usize);
        let Some(window) = window else { return (records, at) };
        let mut cut_short = None;
        while at < begin + len / 512 {
            let rest = window.slice((at - begin) as usize * 512..window.len());
            let header = Record::peek_len(&rest.slice(0..512).to_bytes());
            cut_short = header.filter(|header| *header > rest.len());
            if cut_short.is_some() {
                break;
            }
            let place = RecordPlace { segment: found.number, generation: found.header.generation, offset: at };
            let Some(record) = record_at(key, unit, &rest, place, capacity) else { return (records, at) };
            at += record.sectors.max(unit / 512);
            records.push(record);
        }
        wanted = match cut_short {
            Some(header) if header > (capacity - at) as usize * 512 => return (records, at),
            Some(header) => LEAST.max(header as u32),
            None if records.len() > had + 1 => (len * 2).min(MOST),
            None => LEAST,
        };
    }
    (records, at)
}
