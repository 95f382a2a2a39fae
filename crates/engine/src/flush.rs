//! The life of a FLUSH: all that was acknowledged is durable after it (R6), and of what a device did not keep it tells (R9).

use crate::core::{Core, Volume};
use crate::io::{Buf, RequestError};
use crate::marks::Mark;
use alloc::rc::Rc;
use alloc::vec::Vec;

/// All that was acknowledged before is durable after it.
pub(crate) async fn flush<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) -> Result<(), RequestError> {
    volume.flushes_seen.set(volume.flushes_seen.get() + 1);
    volume.asked_to_flush();
    volume.stats.borrow_mut().flushes += 1;
    let (losses, told) = (volume.losses.get(), volume.disk_flusher.to_be_told());
    let (on_disk_alone, in_the_log) = (volume.disk_flusher.acknowledged(), volume.acknowledged.get());
    // All devices at once; the disk only if it alone has something that was acknowledged.
    let since = core.now();
    let disk_use = core.use_disk_for_flush(volume);
    if disk_use.is_some() {
        let mut commits = volume.commits.get();
        commits.note(since);
        volume.commits.set(commits);
    }
    let on_disk = volume.has_disk().then(|| volume.disk_flusher.request_owed());
    let on_members = durable(core).await;
    let members_took = core.now() - since;
    let on_disk = if let Some(on_disk) = on_disk { on_disk.get().await } else { Ok(()) };
    drop(disk_use);
    volume.write_route.borrow_mut().flushed(core.now(), members_took, core.now() - since);
    let on_members = on_members.and(settled(core).await);
    // Of a flush that failed, whoever asked for it, a client with writes under it is told once (R9); where several FLUSHes were under way
    // then, by each.
    let lost = volume.disk_flusher.take_lost(on_disk_alone);
    core.mark_if(lost, Mark::FailedFlushTold);
    let lost_meanwhile = volume.disk_flusher.to_be_told() != told;
    core.mark_if(lost_meanwhile && !lost && on_disk.is_ok(), Mark::FailedFlushToldToAll);
    let lost = lost || lost_meanwhile;
    // So it is told of dirty data whose last copy is gone: it may be what this flush should have covered, and what each of several that
    // were under way then should.
    let now = volume.losses.get();
    let gone = volume.losses_told.get() != now || losses != now;
    // What was acknowledged since is another FLUSH's to answer for.
    if volume.lost_at.get() <= in_the_log && volume.losses_told.replace(now) != now {
        volume.disk_flusher.tell();
    }
    on_members?;
    if on_disk.is_err() || lost || gone { Err(RequestError::Io) } else { Ok(()) }
}

/// The same for who serves the volume, and is no client: of what has failed before clients are told yet.
pub(crate) async fn own_flush<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) -> Result<(), RequestError> {
    let (losses, told) = (volume.losses.get(), volume.disk_flusher.to_be_told());
    let on_disk = if volume.has_disk() { Some(volume.disk_flusher.request_owed()) } else { None };
    durable(core).await?;
    if let Some(on_disk) = on_disk {
        on_disk.get().await.map_err(|_| RequestError::Io)?;
    }
    settled(core).await?;
    let is_kept = volume.losses.get() == losses && volume.disk_flusher.to_be_told() == told;
    if is_kept { Ok(()) } else { Err(RequestError::Io) }
}

/// Makes what was acknowledged on the members durable (R6). A member that cannot flush leaves; what it held is then
/// elsewhere, or the request fails.
pub(crate) async fn durable<B: Buf>(core: &Rc<Core<B>>) -> Result<(), RequestError> {
    let (epoch, in_sync): (u64, Vec<u8>) = (core.pool.borrow().epoch, core.pool.borrow().in_sync().collect());
    let flushes: Vec<_> = in_sync.iter().map(|m| (*m, core.member_flusher(*m).request())).collect();
    for (m, flush) in flushes {
        if flush.get().await.is_err() {
            core.mark(Mark::MemberFailsAFlush);
            core.fail_member_of(epoch, m).await;
        }
    }
    settled(core).await
}

/// Waits until it is decided which members count: whoever waited for a device looks again before he acknowledges, since
/// one may have left meanwhile. An error if no majority stands behind the pool.
pub(crate) async fn settled<B: Buf>(core: &Rc<Core<B>>) -> Result<(), RequestError> {
    core.wait_settled().await;
    if core.pool.borrow().stalled { Err(RequestError::Io) } else { Ok(()) }
}
