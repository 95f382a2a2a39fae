//! A pool's start: its parts in their order, and who may not be served after it.

use crate::core::Core;
use crate::exec::{DISK_PATIENCE_NS, Slot};
use crate::intent::{self, Bit};
use crate::io::{Buf, CommandError};
use crate::marks::Mark;
use crate::patience::Patience;
use crate::{checkpoint, loading, membership, preload, recovery, silence, space, volumes};
use alloc::rc::Rc;
use alloc::vec::Vec;
use headpond_format::Superblock;

/// Brings a pool up: see [`Engine::start`](crate::Engine::start).
pub(crate) async fn start<B: Buf>(
    core: &Rc<Core<B>>,
    elected: &Superblock,
    backings: &[u16],
    behind: &[u8],
) -> Result<(), CommandError> {
    // A cache device may fall silent while it is started from, too.
    core.exec.spawn(silence::watch(core.clone()));
    core.exec.asks_no_silent_ones(true);
    let patience = Patience::default();
    for e in &elected.volumes {
        let pages = intent::load(core, e, &patience).await;
        let volume = volumes::build(core, e.clone(), pages);
        core.volumes.borrow_mut().insert(volume.number, volume);
    }
    // Nothing is written by a start to which nobody could agree.
    let present: Vec<u8> = core.pool.borrow().in_sync().collect();
    if !core.would_have_votes(&present).await {
        return Err(CommandError::Start(recovery::StartError::NoMajority));
    }
    none_too_many_missing(core)?;
    let mut anew = match recovery::recover(core, &patience).await {
        Ok(anew) => anew,
        // Where all have failed meanwhile, that nothing can be read says nothing of what is there.
        Err(_) if core.pool.borrow().stalled => return Err(CommandError::Start(recovery::StartError::NoMajority)),
        Err(why) => return Err(CommandError::Start(why)),
    };
    // The next superblock goes to the place of the one before the elected one: the only one that a member has which is behind.
    for m in core.catch_up(elected, behind).await {
        core.fail_member(m).await;
    }
    loop {
        none_too_many_missing(core)?;
        refuse_what_may_lack(core);
        membership::agree_at_start(core).await;
        // Nothing is acknowledged before all have it written down that this epoch was agreed on: one that another start raised in vain, on a
        // device that is not here, must not look newer. And the newest superblock may be on one member alone: before the
        // checkpoint that the others name is written over, all have it.
        if !core.write_superblock().await {
            break;
        }
        if core.pool.borrow().missing.is_empty() {
            // Not sooner: of a start that comes to nothing nothing is given up, and who may lack it is in the superblocks by now.
            recovery::write_anew(core, core::mem::take(&mut anew)).await;
        }
        if core.pool.borrow().missing.is_empty() {
            break;
        }
    }
    core.pool.borrow_mut().starting = false;
    if !core.pool.borrow().has_votes() {
        return Err(CommandError::Start(recovery::StartError::NoMajority));
    }
    core.exec.asks_no_silent_ones(false);
    refuse_what_may_lack(core);
    let mut opened = Vec::new();
    for v in core.all_volumes() {
        core.mark_if(v.uncertain.get(), Mark::UncertainVolume);
        v.refused.set(v.uncertain.get());
        v.there.set(!v.has_disk() || backings.contains(&v.number));
        // What some members lack of the intent map they get now.
        intent::write_pages(core, &v);
        let is_open = Slot::new(&core.exec);
        let (core2, done) = (core.clone(), is_open.clone());
        core.exec.spawn(async move {
            volumes::open(&core2, v).await;
            done.set(());
        });
        opened.push(is_open);
    }
    // A disk that answers nothing keeps its own volume waiting, and no other.
    let until = core.now() + DISK_PATIENCE_NS;
    for is_open in opened {
        core.mark_if(is_open.get_until(until).await.is_none(), Mark::DiskSilentAtStart);
    }
    if core.is_loaded.get() {
        keep_house(core);
        return Ok(());
    }
    let core2 = core.clone();
    core.exec.spawn(async move {
        if loading::rest(&core2).await.is_ok() {
            keep_house(&core2);
        }
    });
    Ok(())
}

/// Once cache devices that are missing, or failed in this start, are taken for left they cannot come back. That they are only late is for a person
/// to say.
///
/// # Errors
/// They may have all copies of something dirty.
fn none_too_many_missing<B: Buf>(core: &Core<B>) -> Result<(), CommandError> {
    let pool = core.pool.borrow();
    let left = usize::from(pool.left) + pool.missing.len();
    if pool.missing.is_empty()
        || left < usize::from(pool.copies)
        || core.settings.without_missing
        || !core.all_volumes().iter().any(|v| v.intent.any(Bit::Dirty))
    {
        return Ok(());
    }
    core.mark(Mark::CopiesMissing);
    Err(CommandError::Start(recovery::StartError::CopiesMissing { missing: pool.missing.clone() }))
}

/// Notes which volumes may lack something dirty: those of which a part of the log could be read nowhere, and all that have anything dirty where
/// as many members are gone as there are copies, before what the first left behind was mended: records may be missing that nobody left has heard
/// of. Each superblock says it from now on.
fn refuse_what_may_lack<B: Buf>(core: &Core<B>) {
    let (left, copies) = (usize::from(core.pool.borrow().left) + core.pool.borrow().missing.len(), core.pool.borrow().copies);
    let lacks = core.log_lacks.borrow();
    let all = lacks.of_all || left >= usize::from(copies);
    for v in core.all_volumes() {
        if (all || lacks.of.contains(&v.number)) && v.intent.any(Bit::Dirty) {
            v.uncertain.set(true);
        }
    }
}

/// From now on space is won, checkpoints are taken, and what is pinned is kept: all that is cached is known.
fn keep_house<B: Buf>(core: &Rc<Core<B>>) {
    core.exec.spawn(space::run(core.clone()));
    core.exec.spawn(checkpoint::run(core.clone()));
    core.exec.spawn(preload::keep(core.clone()));
    core.want_checkpoint();
    core.space_is_short();
}
