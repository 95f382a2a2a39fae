//! What clients want of a volume's disk just now, and wanted lately: a sweep goes on beside them, or waits.

use crate::core::{Core, Volume};
use crate::io::Buf;
use crate::policy::leisure::Leisure;
use alloc::rc::Rc;
use core::cell::Cell;

/// What a client's request wants of the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskWants {
    /// A write of a stream, or a large one.
    StreamWrite,
    /// Any other write.
    LoneWrite,
    /// A read of a stream.
    StreamRead,
    /// Any other read.
    LoneRead,
}

impl DiskWants {
    fn is_read(self) -> bool {
        matches!(self, Self::StreamRead | Self::LoneRead)
    }
    fn is_stream(self) -> bool {
        matches!(self, Self::StreamWrite | Self::StreamRead)
    }
}

/// How many requests of clients a disk has under way, and when the last of each kind ended.
#[derive(Default)]
pub(crate) struct DiskUse {
    /// All of them.
    pub under_way: Cell<u32>,
    /// Of these, the reads.
    pub reads: Cell<u32>,
    /// Of all, what streams read and write.
    pub streams: Cell<u32>,
    /// The reads that are no stream's: each waits for its own turn.
    pub lone_reads: Cell<u32>,
    /// Flushes that clients wait for and the disk has something to do for.
    flushes: Cell<u32>,
    /// Writes of bursts that the disk has as its share.
    sharing: Cell<u32>,
    /// What is known of the pauses between two uses of clients.
    leisure: Cell<Leisure>,
    last: Cell<u64>,
    last_stream: Cell<u64>,
    last_lone_read: Cell<u64>,
    last_shared: Cell<u64>,
}

fn add(count: &Cell<u32>, is_one: bool) {
    count.set(count.get() + u32::from(is_one));
}

fn sub(count: &Cell<u32>, is_one: bool) {
    count.set(count.get() - u32::from(is_one));
}

impl DiskUse {
    /// A volume's whose disk was used last `now`.
    pub fn from(now: u64) -> Self {
        Self { last: Cell::new(now), ..Self::default() }
    }

    fn begin(&self, wants: DiskWants, now: u64, idle: u64) {
        self.note_pause(now, idle);
        add(&self.under_way, true);
        add(&self.reads, wants.is_read());
        add(&self.streams, wants.is_stream());
        add(&self.lone_reads, wants == DiskWants::LoneRead);
    }

    /// Another use begins: how long was the pause before it?
    fn note_pause(&self, now: u64, idle: u64) {
        if self.under_way.get() == 0 && self.flushes.get() == 0 {
            let mut leisure = self.leisure.get();
            leisure.note(now.saturating_sub(self.last.get()), idle);
            self.leisure.set(leisure);
        }
    }

    fn end(&self, wants: DiskWants, now: u64) {
        sub(&self.under_way, true);
        sub(&self.reads, wants.is_read());
        sub(&self.streams, wants.is_stream());
        sub(&self.lone_reads, wants == DiskWants::LoneRead);
        self.last.set(now);
        if wants.is_stream() {
            self.last_stream.set(now);
        }
        if wants == DiskWants::LoneRead {
            self.last_lone_read.set(now);
        }
    }

    /// A write that the disk has as its share of a burst begins.
    pub fn share_begins(&self) {
        add(&self.sharing, true);
    }

    /// It is answered.
    pub fn share_ends(&self, now: u64) {
        sub(&self.sharing, true);
        self.last_shared.set(now);
    }

    /// Clients have left the disk alone for `idle` nanoseconds. Who waits for its flush has not: the kernel holds back for it what he would
    /// ask next, and a sweep that begins then has its writes before his.
    pub fn is_idle(&self, now: u64, idle: u64) -> bool {
        self.under_way.get() == 0 && self.flushes.get() == 0 && now.saturating_sub(self.last.get()) >= idle
    }

    /// Clients have left the disk alone for longer than they lately did between two uses, and for `idle` nanoseconds at least.
    pub fn is_at_leisure(&self, now: u64, idle: u64) -> bool {
        self.is_idle(now, self.leisure.get().after(idle))
    }

    /// As [`DiskUse::is_idle`], but for the shares of bursts that it has.
    pub fn is_idle_but_for_shares(&self, now: u64, idle: u64) -> bool {
        let last = self.last.get();
        let is_left = now.saturating_sub(last) >= idle || last == self.last_shared.get();
        self.under_way.get() == self.sharing.get() && is_left
    }

    /// Whether streams use the disk just now, or will soon again, and nobody reads there here and there.
    pub fn has_streams(&self, now: u64, idle: u64) -> bool {
        let lately = now.saturating_sub(self.last_stream.get()) < idle;
        (self.streams.get() > 0 || lately) && !self.has_lone_readers(now, idle)
    }

    /// Whether clients read from the disk here and there just now, or will soon again. A stream, whose reads go on where the heads
    /// are, has its share of a disk that writes out of its own cache.
    pub fn has_lone_readers(&self, now: u64, idle: u64) -> bool {
        self.lone_reads.get() > 0 || now.saturating_sub(self.last_lone_read.get()) < idle
    }
}

impl<B: Buf> Core<B> {
    /// A client's request uses the disk, until the guard is dropped.
    pub fn use_disk(self: &Rc<Self>, volume: &Rc<Volume<B>>, wants: DiskWants) -> UsesDisk<B> {
        volume.disk_use.begin(wants, self.now(), self.settings.idle_ns);
        UsesDisk { core: self.clone(), volume: volume.clone(), wants }
    }
    /// A client waits for the disk to flush, until the guard is dropped; none if it has nothing of clients to make durable.
    pub fn use_disk_for_flush(self: &Rc<Self>, volume: &Rc<Volume<B>>) -> Option<FlushesDisk<B>> {
        (volume.has_disk() && volume.disk_flusher.owes()).then(|| {
            volume.disk_use.note_pause(self.now(), self.settings.idle_ns);
            add(&volume.disk_use.flushes, true);
            FlushesDisk { core: self.clone(), volume: volume.clone() }
        })
    }
}

/// Counts a client's use of the disk.
pub(crate) struct UsesDisk<B: Buf> {
    core: Rc<Core<B>>,
    volume: Rc<Volume<B>>,
    wants: DiskWants,
}

impl<B: Buf> Drop for UsesDisk<B> {
    fn drop(&mut self) {
        self.volume.disk_use.end(self.wants, self.core.now());
    }
}

/// Counts a client's flush of the disk, which is a use of it.
pub(crate) struct FlushesDisk<B: Buf> {
    core: Rc<Core<B>>,
    volume: Rc<Volume<B>>,
}

impl<B: Buf> Drop for FlushesDisk<B> {
    fn drop(&mut self) {
        sub(&self.volume.disk_use.flushes, true);
        self.volume.disk_use.last.set(self.core.now());
    }
}
