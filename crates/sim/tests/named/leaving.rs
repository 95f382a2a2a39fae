//! A cache device leaves while clients write.

use headpond_engine::stats::Bypass;
use headpond_engine::{Device, DeviceOp};
use headpond_sim::SimBuf;
use headpond_sim::scene::{Scene, Stage};
use std::cell::Cell;

/// Sectors of a write that goes past the cache.
const PAST: u64 = 1024;
/// Segments kept in reserve: many, so that what three cache devices have left is more, and what two of them have is not.
const RESERVE: u32 = 12;

/// Seed 7110010241 of the small geometry. A cache device leaves that should have had a copy of a record, and there is no segment free to
/// append it to again: the write goes to the disk, and so do those after it. The record is whole on the other device. A start that finds
/// it must not lay it over what the disk has got since.
#[test]
fn what_there_was_no_room_to_append_again_does_not_come_back() {
    let mut stage = Stage { members: 3, ..Stage::default() };
    stage.settings.reserve_segments = RESERVE;
    let mut s = Scene::new("left behind", stage);
    let layout = s.stage.layout();
    let (images, slots) = (layout.checkpoint(0)..layout.slot(0), layout.slot(0)..layout.superblock(2));
    for n in 0.. {
        s.write(PAST + n * 37 % 499 * 512, 8);
        let is_short = |s: &Scene| s.status().segments_free < 3 * u64::from(RESERVE);
        if is_short(&s) {
            s.pass(200_000_000);
            if is_short(&s) {
                break;
            }
        }
    }
    s.write(0, 8);
    let leaving = s.copies(0)[0].0;
    let holds = Cell::new(true);
    s.hold_back(move |device: Device, op: &DeviceOp<SimBuf>| {
        let is_append = matches!(op, DeviceOp::Write { offset, .. } if slots.contains(offset));
        device == leaving && is_append && holds.replace(false)
    });
    let vain = s.world.write(0, 8, 8, false);
    s.until_held();
    s.let_go_failing(leaving);
    // Space is short, and a checkpoint would end what a start finds.
    s.hold_back(
        move |device, op| matches!((device, op), (Device::Member(_), DeviceOp::Write { offset, .. }) if images.contains(offset)),
    );
    assert!(s.answer_to(vain));
    assert_eq!(s.status().volumes[0].stats.write_bypass[Bypass::Full as usize].requests, 1, "the write goes to the disk");
    s.write(8, PAST - 8);
    s.flush();
    s.world.kill_landing(|_, _, _| true);
    s.set_dead(leaving, true);
    s.start();
    s.read_all();
    s.end();
}
