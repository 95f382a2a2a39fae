//! A start whose map is read while requests are answered: what is asked for before its page has come.

use headpond_engine::{Command, CommandError, Device, Settings, StartError};
use headpond_sim::scene::{Scene, Stage};
use std::ops::Range;

const MILLISECOND: u64 = 1_000_000;
/// Pieces that a page of the image has.
const PIECES: u64 = 2046;
/// Bytes of a page.
const PAGE: u64 = 64 << 10;

/// Nothing of an image is read before requests are answered.
fn stage() -> Stage {
    let stage = Stage::default();
    let settings = Settings { pages_at_start: 0, stream_bytes: 1 << 30, ..stage.settings };
    Stage { segments: 400, settings, ..stage }
}

/// Blocks in order, as many as a page has and some more, each written for itself.
fn write_blocks(s: &mut Scene, blocks: Range<u64>) {
    for block in blocks {
        s.world.write(0, block * 8, 8, false);
        while s.world.outstanding() > 32 {
            s.step();
        }
    }
    s.answered();
}

/// The daemon is killed and starts. Pages of the image with pieces are held back when they are asked for again after the start: those
/// of which `late` says so, by their number.
fn start_without(s: &mut Scene, late: impl Fn(u64) -> bool + 'static) {
    s.world.kill_landing(|_, _, _| false);
    s.hold_back_pages(late);
    let id = s.begin_start();
    s.ends_well(id);
    assert!(s.status().loading.is_some(), "{}: all is known", s.story());
}

/// A file server comes back with a TiB cached, and clients go on at once. What they ask for first is dirty, and on a page that is not read
/// yet: it must not be taken for missing, and read from the disk.
#[test]
fn a_request_waits_for_the_page_that_tells_of_it() {
    let mut s = Scene::new("a page that is late", stage());
    s.write(0, 8);
    s.checkpoint();
    start_without(&mut s, |_| true);
    let early = s.world.read(0, 0, 8);
    s.until_held();
    s.pass(500 * MILLISECOND);
    assert!(s.world.waits(early));
    s.let_go();
    assert!(s.answer_to(early));
    s.end();
}

/// Two pages: the first one has blocks 0 to 2044 and the first piece of what follows, the second one the rest. Block 5000 was written
/// beside block 0.
fn two_pages(story: &str, settings: Settings) -> Scene {
    let mut s = Scene::new(story, Stage { settings, ..stage() });
    s.write(0, 8);
    s.write(5000 * 8, 8);
    write_blocks(&mut s, 1..PIECES + 2);
    s.checkpoint();
    s
}

/// Of a segment all blocks but one are known, and are written again; that one is on a page that is late. Nothing in the map names the segment
/// then, and it is needed all the same.
#[test]
fn a_segment_is_not_empty_as_long_as_a_page_may_name_more_of_it() {
    let mut s = two_pages("a segment that looks empty", stage().settings);
    start_without(&mut s, |page| page == 2);
    // All others that are in it.
    write_blocks(&mut s, 0..16);
    s.let_go();
    s.checkpoint();
    // What was free comes into use, and what is free only now after it.
    (0..2).for_each(|_| write_blocks(&mut s, 1..PIECES));
    s.read(5000 * 8, 8);
    s.end();
}

/// Zeroes were written over a block, and destaged: the log has them, and that they are clean, and so lets go of them. The image has what
/// was there before, and that is dirty.
#[test]
fn what_the_log_let_go_of_hides_what_was_there_before() {
    let mut s = Scene::new("zeroes over what the image has", stage());
    s.write(0, 8);
    s.checkpoint();
    s.write_zeroes(0, 8);
    s.destage();
    s.kill();
    s.read_all();
    s.end();
}

/// A dirty block was overwritten on the disk in order, and the log says that it is outdated. That is heeded when the page has come that may
/// have more of the block. A sweep that came before it would write the old data over the new.
#[test]
fn nothing_is_destaged_before_it_is_known_what_is_outdated() {
    let mut s =
        Scene::new("a sweep after a start", Stage { settings: Settings { max_pieces: 10, ..stage().settings }, ..stage() });
    for n in 1..9 {
        s.write(n * 8000, 8);
    }
    s.checkpoint();
    s.write(0, 8);
    s.write(0, 8);
    assert_eq!(s.status().volumes[0].stats.ordered_overwrites, 1, "{}", s.story());
    (s.stage.settings.destage_percent, s.stage.settings.idle_ns) = (0, MILLISECOND);
    start_without(&mut s, |_| true);
    s.pass(3_000 * MILLISECOND);
    s.let_go();
    s.read_all();
    s.end();
}

/// The neighbourhood of places that are missed here and there is brought whole. A part of it is on a page that is late, and dirty: the disk
/// has older data.
#[test]
fn nothing_is_brought_over_what_is_not_known() {
    let settings = Settings { read_around: true, ..stage().settings };
    let mut s = Scene::new("a neighbourhood on two pages", Stage { settings, ..stage() });
    // A neighbourhood has 256 blocks: this one begins with block 3840.
    write_blocks(&mut s, 0..2040);
    write_blocks(&mut s, 3840..3845);
    write_blocks(&mut s, 3990..3991);
    write_blocks(&mut s, 4000..4010);
    s.checkpoint();
    start_without(&mut s, |page| page == 2);
    for n in 0..40 {
        s.read((3850 + n * 53 % 137) * 8, 8);
        s.pass(20 * MILLISECOND);
    }
    s.let_go();
    (4000..4010).for_each(|block| s.read(block * 8, 8));
    s.end();
}

/// A block was written again and destaged, and then both its copies rotted: a read let go of them, and cached what the disk has, on one cache
/// device. That is gone when the pool starts. What was cached so hides what the image has of the block, which is older, though it is
/// nowhere any more.
#[test]
fn what_left_with_a_member_hides_what_was_there_before() {
    let mut s = Scene::new("a fill gone, and a page late", Stage { members: 3, ..stage() });
    s.write(0, 8);
    s.checkpoint();
    s.write(0, 8);
    s.destage();
    for (member, sector) in s.copies(0) {
        s.rot(member, sector * 512..(sector + 8) * 512);
    }
    s.read(0, 8);
    s.pass(100 * MILLISECOND);
    let filled = s.copies(0);
    assert!(filled.len() == 1, "{}: {filled:?}", s.story());
    s.world.kill_landing(|_, _, _| false);
    s.hold_back_pages(|_| true);
    let id = s.begin_start();
    s.until("the log is read", |w| w.engine.as_ref().is_some_and(|e| e.status().loading.is_some()));
    s.set_dead(filled[0].0, true);
    s.ends_well(id);
    s.pass(1_000 * MILLISECOND);
    assert!(s.status().members.iter().any(|m| !m.in_sync), "{}: nobody has left", s.story());
    s.let_go();
    s.read(0, 8);
    s.read_all();
}

/// A cache device is gone when the pool starts. Nobody may be told that all there is has its copies before all there is is known: he would
/// pull the next one.
#[test]
fn what_lacks_a_copy_is_told_before_it_is_known() {
    let mut s = Scene::new("a cache device gone, and a page late", Stage { members: 3, ..stage() });
    s.write(0, 8);
    s.checkpoint();
    let (gone, _) = s.copies(0)[0];
    s.world.kill_landing(|_, _, _| false);
    s.hold_back_pages(|_| true);
    let id = s.begin_start();
    s.set_dead(gone, true);
    s.ends_well(id);
    s.pass(100 * MILLISECOND);
    let status = s.status();
    assert!(status.loading.is_some() && status.lacking_copies > 0, "{}: {status:?}", s.story());
    s.let_go();
    s.until("all has its copies", |w| w.engine.as_ref().is_some_and(|e| e.status().lacking_copies == 0));
    s.set_dead(gone, true);
    s.read_all();
    s.end();
}

/// Both copies of what is dirty go, one after the other, while the page that tells of it is late. Whoever flushes is told, once.
#[test]
fn a_flush_says_that_copies_are_gone_of_what_is_not_known() {
    let mut s = Scene::new("copies lost, and a page late", Stage { members: 3, ..stage() });
    write_blocks(&mut s, 0..PIECES + 2);
    s.destage();
    s.write(5000 * 8, 8);
    s.checkpoint();
    let copies = s.copies(5000 * 8);
    s.world.kill_landing(|_, _, _| false);
    s.hold_back_pages(|page| page == 2);
    let id = s.begin_start();
    s.set_dead(copies[0].0, true);
    s.ends_well(id);
    s.world.errors_allowed = true;
    s.set_dead(copies[1].0, true);
    // Something is written, so that the second one is missed, too.
    let write = s.world.write(0, 0, 8, false);
    s.answer_to(write);
    assert!(s.status().members.iter().filter(|m| m.in_sync).count() == 1, "{}", s.story());
    let flush = s.world.flush(0);
    assert!(!s.answer_to(flush), "{}: the flush says nothing of it", s.story());
    s.let_go();
}

/// The daemon is told to stop before all is known. It does not wait for that, and nothing is lost.
#[test]
fn a_stop_does_not_wait_for_the_map() {
    let mut s = Scene::new("a stop, and a page late", stage());
    s.write(0, 8);
    s.checkpoint();
    s.write(8000, 8);
    start_without(&mut s, |_| true);
    s.obey(Command::Stop);
    assert!(s.status().loading.is_some(), "{}: it has waited", s.story());
    s.world.cut_power_keeping(|_, _, _| false);
    s.let_go();
    s.start();
    s.read_all();
    s.end();
}

/// A page of the image, of three, is damaged on both cache devices. What it tells of is not known: that fails, and is neither read from the
/// disk nor written, and nothing is done that would make it so for good. All else is served, before that page and behind it.
#[test]
fn what_a_damaged_page_tells_of_fails_until_the_page_is_back() {
    let mut s = Scene::new("a page damaged everywhere", stage());
    // A piece for each sector, so that few blocks make three pages.
    (0..2 * PIECES + 18).for_each(|sector| s.write(sector, 1));
    s.checkpoint();
    let layout = s.stage.layout();
    let spoil = |s: &mut Scene| {
        for (member, place) in [(0, 2), (1, 3)] {
            for area in [0, 1] {
                let at = layout.checkpoint(area) + place * PAGE;
                s.rot(Device::Member(member), at..at + PAGE);
            }
        }
    };
    spoil(&mut s);
    s.kill();
    assert_eq!(s.status().loading.and_then(|loading| loading.lost_page), Some(2), "{}", s.story());
    s.world.errors_allowed = true;
    for known in [0, 2 * PIECES + 12] {
        let read = s.world.read(0, known, 1);
        assert!(s.answer_to(read), "{}: sector {known} is not read", s.story());
        let write = s.world.write(0, known, 1, false);
        assert!(s.answer_to(write), "{}: sector {known} is not written", s.story());
    }
    for _ in 0..2 {
        let read = s.world.read(0, 3000, 1);
        assert!(!s.answer_to(read), "{}: it is read", s.story());
        let write = s.world.write(0, 3000, 1, false);
        assert!(!s.answer_to(write), "{}: it is written", s.story());
    }
    let id = s.world.command(Command::Destage { volume: 0 });
    assert_eq!(s.end_of(id), Err(CommandError::Start(StartError::CheckpointLost { page: 2 })));
    s.pass(2_000 * MILLISECOND);
    s.world.errors_allowed = false;
    // It is as it was.
    spoil(&mut s);
    s.kill();
    assert!(s.status().loading.is_none());
    s.read_all();
    s.end();
}

/// A page of the image cannot be had, and so no space is ever won. What is dirty is overwritten past the cache then, in order, each time with a mark: when there
/// was no segment left for these, the write waited for ever, and the daemon's end with it.
#[test]
fn where_no_space_can_be_won_a_write_that_needs_some_fails() {
    let stage = stage();
    let settings = Settings { dirty_percent: 95, ..stage.settings };
    let mut s = Scene::new("no space, and a page damaged", Stage { segments: 240, settings, ..stage });
    (0..4 * PIECES + 18).for_each(|sector| s.write(sector, 1));
    s.checkpoint();
    let layout = s.stage.layout();
    for (member, place) in [(0, 2), (1, 3)] {
        for area in [0, 1] {
            let at = layout.checkpoint(area) + place * PAGE;
            s.rot(Device::Member(member), at..at + PAGE);
        }
    }
    s.kill();
    assert_eq!(s.status().loading.and_then(|loading| loading.lost_page), Some(2), "{}", s.story());
    s.world.errors_allowed = true;
    // What is known, again and again.
    let fails = (0..12_000).map(|n| 2 * PIECES + 200 + n % 3800).any(|sector| {
        let write = s.world.write(0, sector, 1, false);
        !s.answer_to(write)
    });
    assert!(fails, "{}: there was room for all", s.story());
    s.obey(Command::Stop);
}

/// The last page has come, and then the lists of what is in each segment were packed, all in one step: with a TiB cached requests waited a second or
/// two for it. Found by reading.
#[test]
fn what_is_to_be_done_when_all_is_known_is_done_in_turns() {
    const BLOCKS: u64 = 90;
    let settings = Settings { let_go_blocks: 16, ..stage().settings };
    let mut s = Scene::new("the end of loading", Stage { settings, ..stage() });
    write_blocks(&mut s, 0..BLOCKS);
    s.checkpoint();
    start_without(&mut s, |_| true);
    s.until_held();
    s.let_go();
    let all_is_read = |s: &Scene| s.status().loading.is_some_and(|loading| loading.read == loading.of);
    let mut turns = 0;
    while s.status().loading.is_some() {
        turns += u64::from(all_is_read(&s));
        s.step();
    }
    // A segment has fourteen of them, and a turn two segments.
    assert!(turns >= BLOCKS / 28, "{turns} turns; {}", s.story());
    s.read_all();
    s.end();
}
