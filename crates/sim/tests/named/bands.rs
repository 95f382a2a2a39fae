//! While space is short the log of a volume has several open segments at once.

use headpond_engine::{Device, DeviceOp, Settings};
use headpond_sim::scene::{Scene, Stage};

/// A checkpoint is taken while several segments are open, and more is written to each of them. What the log is to be replayed
/// from is the place at which each of them stood: with only one of these noted, what was flushed to the others is gone after
/// a power cut.
#[test]
fn a_checkpoint_notes_where_each_open_segment_stands() {
    let sparse = Settings { destage_percent: 10, stream_bytes: 1 << 30, ..Stage::default().settings };
    let mut s = Scene::new("open segments at a checkpoint", Stage { segments: 120, settings: sparse, ..Stage::default() });
    // Nothing gets to the disk, so that space stays short.
    s.hold_back(|device, op| matches!(device, Device::Backing(_)) && matches!(op, DeviceOp::Write { .. }));
    let all = s.stage.sectors / 8;
    let mut block = 1;
    let mut write = |s: &mut Scene, count| {
        for _ in 0..count {
            block = (block * 733 + 1) % all;
            s.write(block * 8, 8);
        }
    };
    write(&mut s, 400);
    s.checkpoint();
    write(&mut s, 60);
    s.flush();
    s.lose_power();
    s.read_all();
    s.end();
}

/// A burst has filled the space with segments that are not sorted, and of each a sweep has written down most, and some is left. What
/// is left is moved together: else nothing of that space would be free before the sweep is round. And it is whole after a power cut.
#[test]
fn what_a_burst_leaves_of_its_segments_is_moved_together() {
    let settings = Settings { destage_percent: 79, stream_bytes: 1 << 30, ..Stage::default().settings };
    let mut s = Scene::new("what a burst leaves", Stage { segments: 60, settings, ..Stage::default() });
    // Of the disk the last quarter hangs.
    let from = s.stage.sectors * 512 / 4 * 3;
    s.hold_back(move |device, op| match op {
        DeviceOp::Write { offset, .. } => matches!(device, Device::Backing(_)) && *offset >= from,
        _ => false,
    });
    let all = s.stage.sectors / 8;
    let mut block = 1;
    while s.status().dirty_percent < 90 {
        block = (block * 733 + 1) % all;
        s.write(block * 8, 8);
    }
    s.until("what is left is moved", |w| w.engine.as_ref().is_some_and(|e| e.status().stats.relocated > 0));
    s.flush();
    s.lose_power();
    s.read_all();
    s.end();
}
