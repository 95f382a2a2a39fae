//! What is doubted of a volume is written down: no start may forget that a flush of its disk failed (R9), or that dirty data of it may be
//! missing (R8).

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
    Doubts { uncertain: volume.uncertain.get(), untold: volume.disk_flusher.is_lost(), unkept: volume.intent.is_doubted() }
}

/// Where a flush of the disk has failed, what it should have covered may be read from there today, and be gone after a power cut: the intent
/// bits that are set now stay.
pub(crate) fn heed<B: Buf>(volume: &Volume<B>) {
    volume.intent.heed(volume.disk_flusher.failures());
}

/// Has a superblock written whenever a flush of a volume's disk has failed, and when a client was told of it, for as long as the volume is
/// there.
pub(crate) async fn keep<B: Buf>(core: Rc<Core<B>>, volume: Rc<Volume<B>>) {
    let mut written = of(&volume);
    loop {
        let wait = volume.disk_flusher.news();
        if of(&volume) == written {
            wait.await;
        }
        let is_there = core.volume(volume.number).is_some_and(|v| Rc::ptr_eq(&v, &volume));
        if !is_there || core.pool.borrow().stalled {
            return;
        }
        if of(&volume) == (Doubts { untold: false, ..written }) {
            // Who is told twice, after a crash meanwhile, is told no lie.
            core.exec.sleep(AGAIN_NS).await;
        }
        let doubts = of(&volume);
        if doubts == written {
            continue;
        }
        core.mark(Mark::DoubtsWritten);
        if core.write_superblock().await {
            written = doubts;
        } else {
            core.exec.sleep(AGAIN_NS).await;
        }
    }
}
