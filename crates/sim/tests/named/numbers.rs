//! Numbers that no other life of the pool has had: by them what an older life left behind is told from what this one wrote.

use headpond_engine::format::SUPERBLOCK_BYTES;
use headpond_engine::{Command, Device, DeviceOp};
use headpond_sim::SimBuf;
use headpond_sim::scene::{Scene, Stage};

/// Seed 60726392428 of the small geometry. A superblock was on its way when a checkpoint was taken, and the checkpoint got its number
/// from it; the power went before any device had that superblock. So the next life wrote one with the same number, and took its first
/// checkpoint with the same number as the one that had come to nothing. One cache device had lied about a flush, and lost its copy of a
/// page of that: the page of the older try was there in its place, right in all that was looked at, and told of what had been overwritten
/// since.
#[test]
fn no_checkpoint_has_the_number_of_one_that_came_to_nothing() {
    for liar in (0..3).map(Device::Member) {
        let mut s = Scene::new("a checkpoint's number", Stage { members: 3, ..Stage::default() });
        let layout = s.stage.layout();
        let is_page = move |offset: u64| (layout.checkpoint(0)..layout.slot(0)).contains(&offset);
        let is_superblock = move |device: Device, op: &DeviceOp<SimBuf>| {
            let of_two = |offset: &u64| *offset < 2 * SUPERBLOCK_BYTES || *offset >= layout.superblock(2);
            matches!((device, op), (Device::Member(_), DeviceOp::Write { offset, .. }) if of_two(offset))
        };
        s.write(0, 8);
        s.flush();
        s.rest();
        // An attach has waited for two checkpoints when it writes its superblock.
        let checkpoints = s.status().stats.checkpoints;
        s.world.command(Command::Attach(s.stage.volume(1)));
        s.until("two checkpoints", |w| w.engine.as_ref().is_some_and(|e| e.status().stats.checkpoints == checkpoints + 2));
        s.hold_back(is_superblock);
        s.until_held();
        let pages = s.status().stats.checkpoint_bytes;
        s.world.command(Command::Checkpoint);
        s.pass(50_000_000);
        assert!(s.status().stats.checkpoint_bytes > pages, "pages are written, and no superblock names them");
        // It is in the log behind where that checkpoint began.
        s.write(0, 8);
        s.flush();
        s.world.cut_power_keeping(|_, _, _| false);

        s.device(liar).sickness.lies = true;
        s.start();
        s.rest();
        s.world.cut_power_keeping(|device, sector, _| device != liar || !is_page(sector * 512));
        s.device(liar).sickness.lies = false;
        s.start();
        s.read_all();
        s.end();
    }
}
