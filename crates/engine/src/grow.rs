//! A volume becomes larger while it is served.
//!
//! Nobody reaches what is new before the superblock that says so is durable on all members: a start drops whatever lies
//! beyond the size that it reads there.

use crate::core::{Core, Volume};
use crate::intent::{self, Span};
use crate::io::{Buf, CommandError};
use crate::marks::Mark;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headpond_format::{MAX_SECTORS, pages_for};

/// The volume has `sectors` from now on. Its disk has as many, or more: that is for the host to know.
pub(crate) async fn grow<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>, sectors: u64) -> Result<(), CommandError> {
    if v.refused.get() {
        return Err(CommandError::Refused);
    }
    if !v.serving.get() || core.stopping.get() {
        return Err(CommandError::NotServed);
    }
    if sectors <= v.open.get() {
        return Err(CommandError::NotLarger { sectors: v.open.get() });
    }
    if !v.has_disk() {
        let total = core.segments.borrow().total_sets(core.bounds().copies);
        core.has_room_for(sectors, v.sectors.get(), total)?;
    }
    if v.growing.replace(true) {
        return Err(CommandError::GrowBusy);
    }
    // As a request: a detach and a clean end wait for it.
    v.requests.set(v.requests.get() + 1);
    let result = widen(core, v, sectors).await;
    v.requests.set(v.requests.get() - 1);
    v.requests_changed.notify();
    v.growing.set(false);
    result
}

async fn widen<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>, sectors: u64) -> Result<(), CommandError> {
    if !core.pool.borrow().has_votes() {
        return Err(CommandError::NoMembers);
    }
    if v.intent.is_between() {
        // An earlier try failed over its superblock: one without it comes first.
        if !core.write_superblock().await {
            return Err(CommandError::NoMembers);
        }
        v.intent.leave_other(core, v).await;
    }
    let (size, named) = (v.sectors.get(), v.intent.named());
    let span = pages(core, sectors, Some(v)).ok_or(CommandError::TooLarge)?;
    if span != named {
        core.mark_if(span.first != named.first, Mark::IntentPagesMove);
        // Whatever the superblock names when a crash comes, all bits are there.
        v.intent.write_beside(span, v.number, intent::number(core));
        if !v.intent.rewrite(core, v).await {
            core.mark(Mark::GrowFails);
            return Err(CommandError::NoMembers);
        }
        v.intent.name_other();
    }
    core.resize(v, sectors);
    if !core.write_superblock().await {
        core.mark(Mark::GrowFails);
        core.resize(v, size);
        v.intent.name_other();
        return Err(CommandError::NoMembers);
    }
    v.open.set(sectors);
    v.intent.leave_other(core, v).await;
    Ok(())
}

/// Pages of the intent map for a volume of `sectors`, that no other volume has: those that `of` has and the ones behind
/// them, where these are free; else others than it has. `None` if there is no room.
pub(crate) fn pages<B: Buf>(core: &Core<B>, sectors: u64, of: Option<&Volume<B>>) -> Option<Span> {
    let all = core.pool.borrow().members.first().map_or(0, |m| m.layout.intent_pages);
    if sectors > MAX_SECTORS {
        return None;
    }
    let count = pages_for(sectors);
    let own = of.map(|v| v.intent.named());
    if own.is_some_and(|own| count <= own.count) {
        return own;
    }
    if count > all {
        return None;
    }
    let mut taken: Vec<Span> = core.volumes.borrow().values().flat_map(|v| v.intent.taken()).collect();
    taken.extend(core.pages_promised.borrow().iter());
    let longer = own.map(|own| Span { count, ..own });
    let is_free = |span: &Span| span.end() <= all && !taken.iter().any(|t| t.meets(*span) && Some(*t) != own);
    if let Some(longer) = longer.filter(is_free) {
        return Some(longer);
    }
    taken.sort_unstable_by_key(|t| t.first);
    let first = taken.iter().fold(0, |first, t| if first + count <= t.first { first } else { first.max(t.end()) });
    (first + count <= all).then_some(Span { first, count })
}

/// Keeps pages from others, until it is dropped: for a volume that is not in the table yet, or no more.
pub(crate) struct Promise<B: Buf> {
    core: Rc<Core<B>>,
    span: Span,
}

impl<B: Buf> Promise<B> {
    pub fn new(core: &Rc<Core<B>>, span: Span) -> Self {
        core.pages_promised.borrow_mut().push(span);
        Self { core: core.clone(), span }
    }
}

impl<B: Buf> Drop for Promise<B> {
    fn drop(&mut self) {
        let mut promised = self.core.pages_promised.borrow_mut();
        if let Some(at) = promised.iter().position(|p| *p == self.span) {
            promised.swap_remove(at);
        }
    }
}
