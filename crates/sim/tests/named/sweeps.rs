//! When sweeps begin and end.

use headpond_engine::{Device, Settings};
use headpond_sim::scene::{Scene, Stage};

/// A log is written at the end of which each record is flushed, on a disk that is idle but for that. A sweep that went on for as long
/// as there was something dirty before it followed the log record by record, with a flush of the disk and of each cache device for
/// each: a writer of an HDF5 file had a hundred of them a second.
#[test]
fn a_sweep_does_not_follow_a_log_record_by_record() {
    const MS: u64 = 1_000_000;
    let settings = Settings { idle_ns: 20 * MS, chunk_blocks: 2048, ..Stage::default().settings };
    let mut s = Scene::new("a sweep and a log", Stage { segments: 100, settings, ..Stage::default() });
    let begun = s.world.now;
    let mut sector = 0;
    while s.world.now < begun + 300 * MS {
        s.write(sector, 8);
        s.flush();
        sector += 8;
    }
    let flushes = s.device(Device::Backing(0)).flushes;
    assert!((2..=8).contains(&flushes), "{flushes} flushes of the disk for {} records in 300 ms", sector / 8);
    s.pass(200 * MS);
    assert_eq!(s.dirty(), 0, "and all of it is down soon after");
    s.end();
}
