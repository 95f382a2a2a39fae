//! How far a start is, told while it reads: nobody can wait with patience for what says nothing.

use headpond_engine::format::PAGE_BYTES;
use headpond_engine::{CommandError, Device, DeviceOp, Settings, StartError};
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

/// A file server with much cached is killed, or upgraded, and its clients wait for the first answer. They do not wait for all that is cached to
/// be known: a few pages of the image lead to what is asked for, wherever that is.
#[test]
fn the_first_request_is_answered_when_a_few_pages_of_a_large_image_are_read() {
    const PAGE: u64 = 64 << 10;
    let stage = Stage::default();
    let settings = Settings { stream_bytes: 1 << 30, ..stage.settings };
    let mut s = Scene::new("a large image", Stage { segments: 12_000, sectors: 80_000 * 24, settings, ..stage });
    for n in 0..80_000 {
        s.world.write(0, n * 3 % 80_000 * 24, 8, false);
        while s.world.outstanding() > 32 {
            s.step();
        }
    }
    s.answered();
    s.checkpoint();
    let cached = s.status().volumes[0].cached_blocks;
    s.stage.settings.pages_at_start = 0;
    for n in [30_000, 41_234, 79_999] {
        s.world.kill_landing(|_, _, _| false);
        // What is read in order, whatever is asked for.
        s.hold_back_pages(|page| page < 12);
        let start = s.begin_start();
        s.ends_well(start);
        let first = s.world.read(0, n * 24, 8);
        assert!(s.answer_to(first));
        let loading = s.status().loading.expect("not all is read");
        assert!(loading.of >= 30 * PAGE && loading.read <= 6 * PAGE, "{n}: {loading:?}");
        s.let_go();
    }
    s.until("all that is cached is known", headpond_sim::world::World::is_loaded);
    assert!(s.status().loading.is_none() && s.status().volumes[0].cached_blocks == cached);
}

/// Bytes that somebody had spoiled, found by the fuzzer: a page of the image was damaged on both cache devices, and a record of the log was on one of
/// them alone. The start completed the record, and then refused, and said that nothing was changed.
#[test]
fn a_start_that_is_refused_for_its_image_has_written_nothing() {
    let stage = Stage::default();
    let settings = Settings { stream_bytes: 1 << 30, ..stage.settings };
    let mut s = Scene::new("an image damaged everywhere", Stage { segments: 400, settings, ..stage });
    // More than a page: the first one is where the segment table ends, and is looked at before.
    for n in 0..2100 {
        s.write(n * 16, 8);
    }
    s.checkpoint();
    s.write(8, 8);
    s.hold_back(|device, op| device == Device::Member(1) && matches!(op, DeviceOp::Write { .. }));
    s.world.write(0, 24, 8, false);
    s.until_held();
    s.pass(1_000_000);
    s.world.kill_landing(|_, _, _| false);
    s.let_go();
    let layout = s.stage.layout();
    for (member, place) in [(0, 2), (1, 3)] {
        for area in [0, 1] {
            let at = layout.checkpoint(area) + place * PAGE_BYTES as u64;
            s.rot(Device::Member(member), at..at + PAGE_BYTES as u64);
        }
    }
    let written = |s: &mut Scene| [0, 1].map(|m| s.device(Device::Member(m)).written);
    let before = written(&mut s);
    let start = s.begin_start();
    assert_eq!(s.end_of(start), Err(CommandError::Start(StartError::CheckpointLost { page: 2 })));
    assert_eq!(written(&mut s), before);
}
