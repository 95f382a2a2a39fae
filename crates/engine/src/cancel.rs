//! Whether a command was cancelled: whoever works for one asks now and then.

use crate::core::Core;
use crate::io::{Buf, CommandError, CommandId};
use crate::marks::Mark;
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use core::cell::RefCell;
use core::task::Poll;

/// How soon a command that waits hears that it is cancelled, in nanoseconds.
pub(crate) const CANCELLED_WITHIN_NS: u64 = 20_000_000;

/// Whether a command was cancelled.
pub(crate) struct Cancel {
    pub id: CommandId,
    pub cancelled: Rc<RefCell<BTreeSet<u64>>>,
}

impl Cancel {
    pub(crate) fn wanted(&self) -> bool {
        self.cancelled.borrow_mut().remove(&self.id.0)
    }

    /// What `waits` ends with, or that the command was cancelled before: then it is given up, and has to bear that wherever it waits.
    pub(crate) async fn or<B: Buf, T>(&self, core: &Core<B>, waits: impl Future<Output = T>) -> Result<T, CommandError> {
        let mut waits = core::pin::pin!(waits);
        loop {
            let mut sleep = core::pin::pin!(core.exec.sleep(CANCELLED_WITHIN_NS));
            let ended = core::future::poll_fn(|cx| match waits.as_mut().poll(cx) {
                Poll::Ready(value) => Poll::Ready(Some(value)),
                Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
            });
            if let Some(value) = ended.await {
                return Ok(value);
            }
            if self.wanted() {
                core.mark(Mark::CancelledInAWait);
                return Err(CommandError::Cancelled);
            }
        }
    }
}
