//! How far a start is, told while it reads: nobody can wait with patience for what says nothing.

use headpond_sim::scene::{Scene, Stage};

#[test]
fn a_start_says_how_far_it_is_until_it_has_read_image_and_log() {
    let mut s = Scene::new("how far a start is", Stage { segments: 300, ..Stage::default() });
    // More than a page of the image, and more than a segment of the log behind it.
    for n in 0..3000 {
        s.world.write(0, n * 16, 8, false);
    }
    s.answered();
    s.checkpoint();
    for n in 0..300 {
        s.world.write(0, n * 16, 8, false);
    }
    s.answered();
    s.world.kill_landing(|_, _, _| false);
    let start = s.begin_start();
    let mut told = Vec::new();
    while s.world.command_result(start).is_none() {
        s.step();
        let now = s.world.engine.as_ref().and_then(|engine| engine.starting());
        if let Some(now) = now.filter(|now| told.last() != Some(now)) {
            told.push(now);
        }
    }
    s.ends_well(start);
    assert!(s.world.engine.as_ref().is_some_and(|engine| engine.starting().is_none()), "it is up");
    assert!(told.len() >= 2 && told[0].read < told[0].of, "{told:?}");
    assert!(told.iter().all(|t| t.of == told[0].of && t.read <= t.of), "{told:?}");
    assert!(told.is_sorted_by(|a, b| a.read < b.read), "{told:?}");
    s.read_all();
    s.end();
}
