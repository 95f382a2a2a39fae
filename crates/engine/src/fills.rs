//! Clean data on its way into the cache: what a read missed, what write-through writes, what is preloaded or carried over.
//!
//! A fill is registered before the disk is asked for its data, and until that is named in the map or dropped. Any write that overlaps
//! and begins meanwhile spoils it (R5): it is not appended any more, or not named. So for as long as nothing has spoiled it the data is
//! what the disk has, and whoever asks for it while it waits for its record is answered from memory.

use crate::core::{Core, Volume};
use crate::io::Buf;
use crate::log::Item;
use crate::policy::evict::Queue;
use crate::ranges::meet;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, OnceCell, RefCell};
use core::ops::Range;

/// Data on its way into the cache. Spoiled by any write that overlaps before it is named (R5).
pub(crate) struct Fill<B> {
    pub blocks: Range<u64>,
    pub spoiled: Cell<bool>,
    /// The sector where it begins and the data, once that has come and waits for its record.
    waits: OnceCell<(u64, B)>,
}

/// What waits for its record is in memory. With more than so many records' data of a volume nothing more is let in: cache devices that are
/// slow, or silent, take less than disks bring.
const MOST_RECORDS: u64 = 64;

/// The fills of a volume.
pub(crate) struct Fills<B> {
    list: RefCell<Vec<Rc<Fill<B>>>>,
    /// Bytes that wait for their record.
    waiting_bytes: Cell<u64>,
}

impl<B> Default for Fills<B> {
    fn default() -> Self {
        Self { list: RefCell::default(), waiting_bytes: Cell::default() }
    }
}

impl<B: Buf> Fills<B> {
    /// Registers a fill: a write that begins from now on spoils it. Writes that are under way already are not asked for here.
    pub fn begin(&self, blocks: Range<u64>) -> Rc<Fill<B>> {
        let fill = Rc::new(Fill { blocks, spoiled: Cell::new(false), waits: OnceCell::new() });
        self.list.borrow_mut().push(fill.clone());
        fill
    }

    /// Forgets fills that are named or dropped.
    pub fn end(&self, fills: &[Option<Rc<Fill<B>>>]) {
        let mut list = self.list.borrow_mut();
        for fill in fills.iter().flatten() {
            if let Some(at) = list.iter().position(|f| Rc::ptr_eq(f, fill)) {
                let waited = list.swap_remove(at).waits.get().map_or(0, |(_, data)| data.len() as u64);
                self.waiting_bytes.set(self.waiting_bytes.get() - waited);
            }
        }
    }

    /// The data has come from the disk, and waits for its record from now on.
    fn waits(&self, fill: &Fill<B>, start: u64, data: B) {
        let bytes = data.len() as u64;
        if fill.waits.set((start, data)).is_ok() {
            self.waiting_bytes.set(self.waiting_bytes.get() + bytes);
        }
    }

    /// Whether so much waits that more is not let in, where a record has `record_bytes`.
    pub fn are_many(&self, record_bytes: u64) -> bool {
        self.waiting_bytes.get() >= MOST_RECORDS * record_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    /// Spoils all fills that overlap `blocks`.
    pub fn spoil(&self, blocks: &Range<u64>) {
        for f in self.list.borrow().iter() {
            if meet(&f.blocks, blocks) {
                f.spoiled.set(true);
            }
        }
    }

    /// Whether all of `blocks` is in one fill, and nothing has spoiled that.
    pub fn contain(&self, blocks: &Range<u64>) -> bool {
        self.list.borrow().iter().any(|f| f.blocks.start <= blocks.start && blocks.end <= f.blocks.end && !f.spoiled.get())
    }

    /// What of `blocks` is in no fill.
    pub fn outside(&self, blocks: &Range<u64>) -> Vec<Range<u64>> {
        let mut coming: Vec<Range<u64>> = self.list.borrow().iter().map(|f| f.blocks.clone()).collect();
        coming.sort_unstable_by_key(|f| f.start);
        let (mut at, mut rest) = (blocks.start, Vec::new());
        for f in coming {
            if at < f.start.min(blocks.end) {
                rest.push(at..f.start.min(blocks.end));
            }
            at = at.max(f.end);
        }
        if at < blocks.end {
            rest.push(at..blocks.end);
        }
        rest
    }

    /// The data of some sectors, if all of it waits for its record, and nothing has spoiled any of it.
    pub fn waiting(&self, sectors: &Range<u64>) -> Option<Vec<B>> {
        let list = self.list.borrow();
        let (mut at, mut parts) = (sectors.start, Vec::new());
        while at < sectors.end {
            let (start, data) = list
                .iter()
                .filter(|f| !f.spoiled.get())
                .filter_map(|f| f.waits.get())
                .find(|(start, data)| (*start..start + data.len() as u64 / 512).contains(&at))?;
            let end = sectors.end.min(start + data.len() as u64 / 512);
            parts.push(data.slice((at - start) as usize * 512..(end - start) as usize * 512));
            at = end;
        }
        Some(parts)
    }
}

/// Where data goes that comes from the disk: to the main queue what was let go too early.
fn queue_of<B: Buf>(core: &Core<B>, volume: &Volume<B>, blocks: &Range<u64>) -> Queue {
    let mut ghost = core.ghost.borrow_mut();
    let back = blocks.clone().filter(|block| ghost.take(volume.number, *block)).count() as u64;
    if back * 2 >= (blocks.end - blocks.start).max(1) { Queue::Main } else { Queue::Probation }
}

/// Appends a fill's data, which nobody waits for, and forgets the fill when that is named or dropped.
pub(crate) fn insert_clean<B: Buf>(
    core: &Rc<Core<B>>,
    volume: &Rc<Volume<B>>,
    start: u64,
    data: B,
    version: u64,
    fill: Rc<Fill<B>>,
) {
    let bytes = data.len() as u64;
    let queue = queue_of(core, volume, &fill.blocks);
    volume.fills.waits(&fill, start, data.clone());
    let item = Item::Fill { start, data, version, fill: fill.clone(), queue };
    let done = volume.clean_log.append_at_leisure(core, volume, alloc::vec![item]);
    let volume = volume.clone();
    core.exec.spawn(async move {
        if done.get().await.is_ok() && !fill.spoiled.get() {
            volume.stats.borrow_mut().admitted.add(bytes);
        }
        volume.fills.end(&[Some(fill)]);
    });
}
