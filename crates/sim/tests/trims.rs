//! What a large discard or zeroing costs beside dirty data.

use headpond_engine::{Command, Device};

use headpond_sim::scene::{Scene, Stage};

/// A file system trims its free space on a pool that has lost a cache device, or writes through: one block in the way was dirty. A mark was written for
/// each block of the range, dirty or not: a trim of ten terabytes wrote a hundred gigabytes of them, and on small pools they never fitted.
#[test]
fn a_trim_writes_marks_for_what_could_come_back_and_for_nothing_else() {
    let mut s = Scene::new("a trim over one dirty block", Stage::default());
    let sectors = s.stage.sectors;
    s.write(8000, 8);
    s.flush();
    s.set_dead(Device::Member(1), true);
    s.write(16_000, 8);
    s.rest();
    let before = s.device(Device::Member(0)).written;
    s.discard(0, sectors);
    s.flush();
    let written = s.device(Device::Member(0)).written - before;
    assert!(written < 64 << 10, "{written} bytes");
    s.lose_power();
    for sector in [0, 8000, 16_000, sectors - 8] {
        s.read(sector, 8);
    }
    s.obey(Command::Detach { volume: 0, give_up_lost: false });
    s.world.check_disk(0);
    s.check();
}
