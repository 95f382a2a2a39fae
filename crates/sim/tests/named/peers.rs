//! How caches before this one lost data: P1 to P39.

use headpond_engine::{Device, DeviceOp};
use headpond_sim::scene::{Scene, Stage};

const DISK: Device = Device::Backing(0);

/// bcache: a write went past the cache while a read missed; the read's older data was inserted after the invalidation,
/// and stayed, across reboots.
#[test]
fn p11_bypass_fill_race() {
    let mut s = Scene::new("P11", Stage::default());
    // The bypass is on its way to the disk when the read comes.
    s.hold_back(|device, op| device == DISK && matches!(op, DeviceOp::Write { .. }));
    s.world.write(0, 0, 128, false);
    s.until_held();
    s.world.read(0, 64, 8);
    s.pass(10_000_000);
    s.let_go();
    s.answered();
    s.read(64, 8);
    s.flush();
    s.lose_power();
    s.read(64, 8);
    s.end();
}
