//! What is doubted of a volume is written down: no start may forget that a flush of its disk failed (R9), or that dirty data of it is gone, or may be
//! (R8).

use crate::core::{Core, Volume};
use crate::io::Buf;
use crate::marks::Mark;
use alloc::rc::Rc;
use headpond_format::Doubts;

/// How soon what could not be written down is tried again, in nanoseconds. So late it is written down that a client was told: where flush after
/// flush fails, each superblock would be out of date with the next one, and wear the cache devices out.
const AGAIN_NS: u64 = 1_000_000_000;

/// What the next superblock says of a volume.
pub(crate) fn of<B: Buf>(volume: &Volume<B>) -> Doubts {
    heed(volume);
    Doubts {
        uncertain: volume.uncertain.get(),
        untold: volume.disk_flusher.is_lost() || volume.owes_news(),
        unkept: volume.intent.is_doubted(),
    }
}

/// Where a flush of the disk has failed, what it should have covered may be read from there today, and be gone after a power cut: the intent
/// bits that are set now stay.
pub(crate) fn heed<B: Buf>(volume: &Volume<B>) {
    volume.intent.heed(volume.disk_flusher.failures());
}

/// The same, for a superblock that is being written.
pub(crate) fn tell<B: Buf>(volume: &Volume<B>) -> Doubts {
    let doubts = of(volume);
    volume.doubts_told.set(doubts);
    doubts
}

/// Has a superblock written whenever a flush of a volume's disk has failed, or its dirty data has gone, and when a client was told of it, for as long
/// as the volume is there.
pub(crate) async fn keep<B: Buf>(core: Rc<Core<B>>, volume: Rc<Volume<B>>) {
    // Since when nothing is to be written down but that a client was told.
    let mut told_since = None;
    while !volume.taken_off.get() && !core.pool.borrow().stalled {
        let news = volume.disk_flusher.news();
        let (doubts, told) = (of(&volume), volume.doubts_told.get());
        if doubts == told {
            told_since = None;
            news.await;
            continue;
        }
        if doubts == (Doubts { untold: false, ..told }) {
            // Who is told twice, after a crash meanwhile, is told no lie. A flush that fails meanwhile has it written down at once.
            let due = *told_since.get_or_insert(core.now()) + AGAIN_NS;
            if core.now() < due {
                volume.disk_flusher.news_until(due).await;
                continue;
            }
        }
        core.mark(Mark::DoubtsWritten);
        if !core.write_superblock().await {
            core.exec.sleep(AGAIN_NS).await;
        }
    }
}
