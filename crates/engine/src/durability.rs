//! Which segments are known to be durable on all their copies. The header of each that is opened says it of those before it, so that a start
//! after a crash reads of them the records' headers alone ([`crate::headers`]), whose data it need not check.

use crate::core::Core;
use crate::flusher::Due;
use crate::io::Buf;
use crate::marks::Mark;
use crate::segments::SegmentState;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headpond_format::Durable;

/// Closed segments that wait for a flush: where clients ask for none, it is asked for when there are so many. A start reads no more of these whole.
const UNFLUSHED: usize = 32;

/// A segment of this life that is not known to be durable.
struct Unproved {
    number: u32,
    /// Appends in flight.
    in_flight: u32,
    /// The flush that its members owe, once nothing more is written to it.
    due: Option<Vec<(u8, Due)>>,
}

/// The segments of this life that are not known to be durable, by their generations.
#[derive(Default)]
pub(crate) struct Durability {
    from: u64,
    unproved: BTreeMap<u64, Unproved>,
    /// A flush is asked for that nobody else wants.
    asks: bool,
}

impl Durability {
    /// A life begins whose segments have this generation, or later ones.
    pub fn begin(&mut self, generation: u64) {
        *self = Self { from: generation, ..Self::default() };
    }

    /// A segment was opened.
    pub fn opened(&mut self, generation: u64, number: u32) {
        self.unproved.insert(generation, Unproved { number, in_flight: 0, due: None });
    }

    /// An append to a segment begins.
    pub fn append_begins(&mut self, generation: u64) {
        if let Some(s) = self.unproved.get_mut(&generation) {
            s.in_flight += 1;
        }
    }

    /// It has ended, and whoever has failed it has left.
    pub fn append_ends(&mut self, generation: u64) {
        if let Some(s) = self.unproved.get_mut(&generation) {
            s.in_flight -= 1;
        }
    }
}

impl<B: Buf> Core<B> {
    /// Which segments are durable by now of those before a generation, as far as a header has room for it.
    pub(crate) fn durable_before(self: &Rc<Self>, generation: u64) -> Durable {
        let (unit, imaged) = (self.pool.borrow().unit as usize, self.pool.borrow().checkpoint.generation);
        let mut known = self.durability.borrow_mut();
        let segments = self.segments.borrow();
        let mut unflushed = 0;
        known.unproved.retain(|opened, s| {
            let Some(segment) = segments.get(s.number).filter(|now| now.generation == *opened) else {
                // What was let go of before it was known to be durable may still be found, until an image is newer.
                return *opened > imaged;
            };
            if segment.state == SegmentState::Open || s.in_flight > 0 {
                return true;
            }
            let due =
                s.due.get_or_insert_with(|| segment.places().map(|p| (p.member, self.member_flusher(p.member).due())).collect());
            let is_flushed = |member| due.iter().any(|(m, due)| *m == member && self.member_flusher(member).has_come(*due));
            let proved = segment.places().all(|p| is_flushed(p.member));
            unflushed += usize::from(!proved);
            !proved
        });
        if unflushed >= UNFLUSHED && !known.asks {
            self.mark(Mark::FlushedForAStart);
            known.asks = true;
            self.exec.spawn(flush(self.clone()));
        }
        let most = Durable::most(unit);
        let mut but: Vec<u64> = known.unproved.range(..generation).map(|(opened, _)| *opened).collect();
        // Of the oldest it is not told, nor of what is older than they are: of many volumes' segments that rest, and stay open.
        let untold = but.len().saturating_sub(most);
        let from = but.drain(..untold).next_back().map_or(known.from, |last| last + 1);
        Durable { from, below: generation, but }
    }
}

/// Flushes the members, for nobody but the next start.
async fn flush<B: Buf>(core: Rc<Core<B>>) {
    let members: Vec<u8> = core.pool.borrow().in_sync().collect();
    let flushes: Vec<_> = members.iter().map(|m| (*m, core.member_flusher(*m).request())).collect();
    for (m, flush) in flushes {
        if flush.get().await.is_err() {
            core.mark(Mark::MemberFailsAFlush);
            core.fail_member(m).await;
        }
    }
    core.durability.borrow_mut().asks = false;
}
