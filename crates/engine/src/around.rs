//! Brings the whole of a neighbourhood into the cache where places in it are missed here and there: see [`crate::policy::around`].

use crate::core::{Core, Volume};
use crate::io::{BLOCK, BLOCK_SECTORS, Buf};
use crate::map::of_ranges;
use crate::policy::around::{BLOCKS, Brought};
use crate::policy::endurance::Wish;
use crate::policy::evict::Queue;
use crate::preload;
use alloc::rc::Rc;
use core::ops::Range;

/// What lies scattered in more pieces than this is left alone: it would be as many reads of the disk.
const MOST_PIECES: usize = 16;
/// Of so many reads that the disk has for clients, one more may be the filling of a neighbourhood; one may always be.
const READS_FOR_ONE: u32 = 4;

/// Of the cache devices' space so much at the most, as a part, holds what was brought and has not been asked for yet.
const PART: u64 = 16;

fn most_watched<B: Buf>(core: &Core<B>) -> usize {
    let bytes = core.segments.borrow().total() * core.pool.borrow().segment_bytes / PART;
    (bytes / (BLOCKS * BLOCK)) as usize
}

/// A read of these blocks that stands by itself was answered by the disk, and is let into the cache; it took so much of the disk's
/// time, in nanoseconds.
pub(crate) fn missed<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, missed: &Range<u64>, took: u64) {
    let most = (volume.disk_use.reads.get() / READS_FOR_ONE).max(1);
    // What is not known yet may be dirty: nothing is brought over it.
    if !core.is_loaded.get() || !core.settings.read_around || volume.filling.get() >= most || !core.has_spare_for(volume) {
        return;
    }
    let (since, evicted) = (core.now(), core.stats.borrow().evicted);
    let mut neighbourhoods = volume.neighbourhoods.borrow_mut();
    let full = neighbourhoods.is_full(since, evicted);
    neighbourhoods.look(since, |blocks| volume.map.borrow().asked_for(&blocks));
    let Some(neighbourhood) = neighbourhoods.missed(missed, took, full, most_watched(core)) else { return };
    drop(neighbourhoods);
    let blocks = neighbourhood * BLOCKS..(neighbourhood + 1) * BLOCKS;
    // What is on its way into the cache already would come twice.
    let batch = volume.fills.outside(&blocks);
    let missing = preload::missing(volume, &batch);
    let sectors: u64 = missing.iter().map(|m| m.end - m.start).sum();
    let worth = missing.len() <= MOST_PIECES && sectors * 2 >= BLOCKS * BLOCK_SECTORS;
    if !worth || !core.budget_bears(Wish::Clean, sectors / BLOCK_SECTORS * BLOCK) {
        volume.neighbourhoods.borrow_mut().not_brought();
        return;
    }
    volume.filling.set(volume.filling.get() + 1);
    let (core, volume) = (core.clone(), volume.clone());
    core.clone().exec.spawn(async move {
        let (present, coming) = (volume.map.borrow().present_in(&blocks), of_ranges(&blocks, &batch));
        let missing = [0, 1, 2, 3].map(|n| coming[n] & !present[n]);
        let line = u64::from(volume.disk_use.under_way.get()) + 1;
        // Where the disk fails, the client that asks for it will be told.
        let filled = preload::fill(&core, &volume, &batch, Queue::Probation).await.unwrap_or(0);
        if filled > 0 {
            let took = (core.now() - since) / line;
            volume.neighbourhoods.borrow_mut().brought(Brought { neighbourhood, blocks: missing, since, took, full });
            volume.stats.borrow_mut().read_around.add(filled);
        } else {
            volume.neighbourhoods.borrow_mut().not_brought();
        }
        volume.filling.set(volume.filling.get() - 1);
    });
}
