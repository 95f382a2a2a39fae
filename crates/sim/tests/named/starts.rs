//! Reads that fail at a start on all cache devices at once: a controller is reset, a path is lost and found.

use headpond_engine::{CommandError, Device, DeviceOp, StartError};
use headpond_sim::SimBuf;
use headpond_sim::scene::{Scene, Stage};
use std::ops::Range;

/// Less than a start has patience for: it has for 5 s.
const MOMENT: u64 = 100_000_000;

/// What was acknowledged is on two cache devices. The reads of a start that `which` says yes to fail on both, and all reads after them,
/// for so long; the start, which has not ended then.
fn without_reads(s: &mut Scene, which: impl Fn(u64, u32) -> bool + 'static, time: u64) -> u64 {
    s.checkpoint();
    for n in 0..3 {
        s.write(n * 8000, 8);
    }
    s.flush();
    s.world.cut_power_keeping(|_, _, _| false);
    s.hold_back(move |device, op: &DeviceOp<SimBuf>| {
        matches!((device, op), (Device::Member(_), DeviceOp::Read { offset, len, .. }) if which(*offset, *len))
    });
    let start = s.begin_start();
    s.until_held();
    set_failing(s, true);
    s.let_go();
    s.hold_back(|_, _| false);
    s.pass(time);
    set_failing(s, false);
    start
}

fn set_failing(s: &mut Scene, fail: bool) {
    for member in (0..2).map(Device::Member) {
        s.device(member).fail_reads = u64::from(fail);
    }
}

fn slots(stage: &Stage) -> Range<u64> {
    stage.layout().slot(0)..stage.layout().superblock(2)
}

/// The headers of segments, of which there is no list: who cannot be read would be taken for free.
#[test]
fn headers_that_cannot_be_read_for_a_moment() {
    let mut s = Scene::new("headers for a moment", Stage::default());
    let slots = slots(&s.stage);
    let start = without_reads(&mut s, move |offset, len| slots.contains(&offset) && len == 512, MOMENT);
    s.ends_well(start);
    s.read_all();
    s.end();
}

/// The log, of which the end is not known: what cannot be read would be taken for behind it.
#[test]
fn a_log_that_cannot_be_read_for_a_moment() {
    let mut s = Scene::new("the log for a moment", Stage::default());
    let slots = slots(&s.stage);
    let start = without_reads(&mut s, move |offset, len| slots.contains(&offset) && len > 512, MOMENT);
    s.ends_well(start);
    s.read_all();
    s.end();
}

/// It does not get better in 10 s: the start is refused, and the next one has everything.
#[test]
fn a_log_that_cannot_be_read_refuses_the_start() {
    let mut s = Scene::new("the log for long", Stage::default());
    let slots = slots(&s.stage);
    let start = without_reads(&mut s, move |offset, len| slots.contains(&offset) && len > 512, 100 * MOMENT);
    assert_eq!(s.end_of(start), Err(CommandError::Start(StartError::LogUnreadable { members: vec![0, 1] })));
    s.start();
    s.read_all();
    s.end();
}
