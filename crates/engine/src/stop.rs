//! A pool's end: what was acknowledged is durable, and what is cached is in the last checkpoint.

use crate::core::{Core, Volume};
use crate::exec::DISK_PATIENCE_NS;
use crate::io::{Buf, CommandError};
use crate::marks::Mark;
use crate::{checkpoint, destage, flush};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;

/// Lets the sweeps end with the runs that are being written.
pub(crate) async fn quiesce<B: Buf>(core: &Rc<Core<B>>) {
    core.quiet.set(true);
    while core.all_volumes().iter().any(|v| v.sweeping.get() > 0) {
        core.exec.sleep(1_000_000).await;
    }
}

/// Ends cleanly: everything acknowledged is durable, but for what a flush has failed under, of which the next life's FLUSH tells; and the
/// whole cache is in the last checkpoint.
pub(crate) async fn stop<B: Buf>(core: &Rc<Core<B>>) -> Result<(), CommandError> {
    core.stopping.set(true);
    let mut all_kept = true;
    // One volume's request may wait for room that another's destage wins: what follows would be too early for either.
    for v in core.all_volumes() {
        all_kept &= ends(core, &v, |v| v.requests.get() > 0).await;
    }
    let mut flushes = Vec::new();
    for v in core.all_volumes() {
        let is_busy = |v: &Volume<B>| {
            let queued = v.dirty_log.queued() + v.clean_log.queued();
            v.destaging.get() || !v.fills.is_empty() || queued > 0 || !v.disk_ranges.is_free()
        };
        all_kept &= ends(core, &v, is_busy).await;
        v.dirty_log.seal(core);
        v.clean_log.seal(core);
        // A disk that is not there, or another one, has nothing of ours: that it does not flush is not to be taken for a failure. Nor has one
        // that has answered nothing since the start. What is being detached has.
        if v.has_disk() && v.there.get() && (v.serving.get() || v.leaving.get()) && !v.refused.get() {
            let is_kept = Rc::new(Cell::new(None));
            let (flushed, flush) = (is_kept.clone(), v.disk_flusher.request());
            core.exec.spawn(async move { flushed.set(Some(flush.get().await.is_ok())) });
            flushes.push((v, is_kept));
        }
    }
    // All have been asked by now: those that answer nothing are waited for at the same time.
    for (v, is_kept) in flushes {
        let is_answered = ends(core, &v, |_| is_kept.get().is_none()).await;
        all_kept &= is_answered && is_kept.get() == Some(true);
    }
    // What one disk does not take is no reason to leave undone what the others need, and what the next life is to hear of it.
    let ended = close(core).await;
    if !all_kept {
        core.mark(Mark::StopsUnkept);
        core.write_superblock().await;
    }
    ended.and(if all_kept { Ok(()) } else { Err(CommandError::Disk) })
}

/// What is in memory is on the cache devices after it, as far as the next start needs it.
async fn close<B: Buf>(core: &Rc<Core<B>>) -> Result<(), CommandError> {
    if core.pool.borrow().stalled {
        return Err(CommandError::NoMembers);
    }
    if core.pool.borrow().in_sync().next().is_none() {
        return Ok(());
    }
    if !core.is_loaded.get() {
        // No checkpoint is complete before the last one is read. The log has all that came since.
        core.mark(Mark::StoppedWhileLoading);
        return flush::durable(core).await.map_err(|_| CommandError::NoMembers);
    }
    checkpoint::now(core).await?;
    for v in core.all_volumes() {
        while !v.intent.settled() && core.pool.borrow().has_votes() {
            core.exec.sleep(1_000_000).await;
        }
    }
    Ok(())
}

/// Waits until a volume is no longer busy, with what it is busy with made to end soon. Whether it is: a disk that answers nothing is waited for no longer
/// than others are kept waiting by it at a start.
async fn ends<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, is_busy: impl Fn(&Volume<B>) -> bool) -> bool {
    destage::hurry(volume);
    while is_busy(volume) {
        if core.exec.is_disk_silent(volume.number, DISK_PATIENCE_NS) {
            return core.passing(Mark::DiskSilentAtStop, false);
        }
        volume.work.notify();
        volume.clean_log.hurry(core, volume);
        core.exec.sleep(1_000_000).await;
    }
    true
}
