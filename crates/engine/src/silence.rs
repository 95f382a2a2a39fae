//! Cache devices and the witness that answer nothing: who is asked beside them, who is waited for, and who is given up.

use crate::core::Core;
use crate::io::{Buf, Device, DeviceOp};
use crate::policy::silence::Answers;
use alloc::rc::Rc;
use headpond_format::Class;

/// Gives up on members and witness that do not answer, for as long as the engine lives.
pub(crate) async fn watch<B: Buf>(core: Rc<Core<B>>) {
    let limit = core.settings.member_timeout_ns;
    let turn = Answers::turn(limit);
    core.exec.listens_every(turn, limit);
    for round in 0.. {
        core.exec.sleep(turn).await;
        if core.exec.owing(turn) != 0 {
            ask_the_others(&core, round);
        }
        core.exec.give_up(limit, |member| is_needed(&core, member));
    }
}

/// A member owes an answer for long: whether the others would answer is not known of those that were asked nothing. What they are asked for
/// lies at their beginning and at their end by turns, as one place may be damaged.
fn ask_the_others<B: Buf>(core: &Rc<Core<B>>, round: u64) {
    let owing = core.exec.owing(0);
    let pool = core.pool.borrow();
    for member in pool.in_sync().filter(|m| owing >> m & 1 == 0) {
        let offset = pool.members[usize::from(member)].layout.superblock(if round.is_multiple_of(2) { 0 } else { 2 });
        let wait = core.exec.io(Device::Member(member), DeviceOp::Read { offset, len: pool.unit, into: None });
        core.exec.spawn(async move { drop(wait.await) });
    }
}

/// Whether something dirty would have no copy left without a member, but on such as answer nothing either: what it has is waited
/// for, as for a disk. To give it up would be to lose all that for a path that may be back in a minute. Where none answers, all are
/// waited for: who has nothing dirty could not be voted out either.
fn is_needed<B: Buf>(core: &Core<B>, member: u8) -> bool {
    let readable = core.readable_members();
    let answering =
        (0..u64::BITS as u8).filter(|m| readable >> m & 1 == 1 && core.exec.is_heard(*m)).fold(0, |bits, m| bits | 1 << m);
    let others = answering & !(1u64 << member);
    // Before all of the map is known any mirrored segment may hold something dirty.
    let is_loaded = core.is_loaded.get();
    let is_kept = |volume: u16| core.volume(volume).is_none_or(|v| !v.thrown_away.get());
    let segments = core.segments.borrow();
    readable >> member & 1 == 1
        && segments.iter().filter(|(_, s)| (s.dirty > 0 || !is_loaded && s.class == Class::Mirrored) && is_kept(s.volume)).any(
            |(_, s)| {
                let on = s.places().filter(|p| readable >> p.member & 1 == 1).fold(0, |bits, p| bits | 1u64 << p.member);
                on & others == 0 && (on >> member & 1 == 1 || answering == 0 && on != 0)
            },
        )
}
