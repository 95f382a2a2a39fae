//! The sequences that break a design like ours: H1 to H20.

use headpond_sim::scene::{Scene, Stage};

/// X v5 is flushed, in a segment; X v6 is acknowledged and not flushed. The segment has no live record, and must not be
/// written again: the power cut takes v6, and v5 is what a client was promised.
#[test]
fn h1_superseded_is_not_dead() {
    let mut s = Scene::new("H1", Stage { segments: 8, ..Stage::default() });
    s.write(0, 8);
    s.flush();
    // Small ones over each other: as many segments as there are, and more.
    for _ in 0..400 {
        s.write(0, 8);
    }
    s.lose_power();
    s.read_all();
    s.end();
}
