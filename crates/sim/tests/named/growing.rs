//! A volume is made larger: its pages of the intent map may have to move for that.

use super::steps::{superblocks, written};
use headpond_engine::format::{REGION_SECTORS, REGIONS_PER_PAGE};
use headpond_engine::{Command, Device, DeviceOp};
use headpond_sim::scene::{Scene, Stage};

const DISK: Device = Device::Backing(0);
/// Sectors of a write that goes past the cache.
const PAST: u64 = 1024;
/// A millisecond: long enough for whatever is not held back to end.
const MOMENT: u64 = 1_000_000;

/// Asks for the first volume to be larger than one page of the intent map describes, and its disk with it; the command.
fn grow(s: &mut Scene) -> u64 {
    let sectors = (REGION_SECTORS + 1) * u64::from(REGIONS_PER_PAGE);
    s.device(DISK).size = sectors * 512;
    s.world.command(Command::Grow { volume: 0, sectors })
}

/// A volume with a dirty block, and a clean one in the newest image, behind which another volume has its pages.
fn with_clean(story: &str) -> Scene {
    let mut s = Scene::new(story, Stage { volumes: 2, ..Stage::default() });
    s.write(0, 8);
    s.destage();
    s.checkpoint();
    s.write(4096, 8);
    s.flush();
    s.rest();
    s
}

/// A volume is made larger, and the power goes before that is written down. Had a write been taken beyond the old end, the
/// start would drop it.
#[test]
fn beyond_its_end_a_volume_takes_nothing_before_that_is_durable() {
    let mut s = with_clean("beyond its end a volume takes nothing before that is durable");
    let end = s.stage.sectors;
    s.hold_back(superblocks(&s.stage));
    grow(&mut s);
    s.until_held();
    s.world.errors_allowed = true;
    let write = s.world.write(0, end, 8, true);
    assert!(!s.answer_to(write), "it was taken");
    s.world.errors_allowed = false;
    s.lose_power();
    assert_eq!(s.status().volumes[0].sectors, end);
}

/// A volume's pages are being written to their new place, and one of them is late. Where the superblock says, a write past the
/// cache has its bit meanwhile.
#[test]
fn while_pages_move_a_bit_is_in_both_places() {
    let mut s = with_clean("while pages move a bit is in both places");
    let layout = s.stage.layout();
    s.hold_back(written(layout.intent(3, 0)..layout.intent(4, 0)));
    grow(&mut s);
    s.until_held();
    s.write(0, PAST);
    s.flush();
    s.lose_power();
    s.read(0, 8);
    s.end();
}

/// All pages are in their new place, and the superblock that says so is under way. Which of the two a start reads is for the
/// power to say: a write past the cache has its bit in both.
#[test]
fn pages_stay_where_they_were_until_the_superblock_has_left_them() {
    let mut s = with_clean("pages stay where they were until the superblock has left them");
    s.hold_back(superblocks(&s.stage));
    grow(&mut s);
    s.until_held();
    s.write(0, PAST);
    s.flush();
    s.lose_power();
    s.read(0, 8);
    s.end();
}

/// The pages' new place is named when all bits are there, and not before.
#[test]
fn pages_that_move_take_their_bits_with_them() {
    let mut s = with_clean("pages that move take their bits with them");
    s.write(0, PAST);
    s.flush();
    let grows = grow(&mut s);
    s.ends_well(grows);
    s.lose_power();
    s.read(0, 8);
    s.end();
}

/// Another volume had the pages before, in both slots of each: nothing of it is left when they are named.
#[test]
fn of_the_pages_that_a_volume_grows_by_both_slots_are_its_own() {
    let mut s = with_clean("of the pages that a volume grows by both slots are its own");
    s.world.write(1, 0, PAST, false);
    s.answered();
    s.obey(Command::Detach { volume: 1, give_up_lost: false });
    let grows = grow(&mut s);
    s.ends_well(grows);
    s.obey(Command::Scrub { bytes_per_second: 0 });
    assert_eq!(s.status().scrub.damaged, 0, "{}", s.story());
    s.end();
}

/// A bit of a volume is being cleared when the volume is detached: its page is another one's when that has ended.
#[test]
fn a_page_is_given_away_when_nothing_is_written_there_any_more() {
    let mut s = with_clean("a page is given away when nothing is written there any more");
    s.world.write(1, 0, PAST, false);
    s.answered();
    let layout = s.stage.layout();
    s.hold_back(written(layout.intent(1, 0)..layout.intent(2, 0)));
    for _ in 0..2 {
        s.world.command(Command::Checkpoint);
        s.pass(50 * MOMENT);
    }
    s.until_held();
    let detach = s.world.command(Command::Detach { volume: 1, give_up_lost: false });
    s.pass(500 * MOMENT);
    assert_eq!(s.world.command_result(detach), None, "{}", s.story());
    s.let_go();
    s.ends_well(detach);
    let grows = grow(&mut s);
    s.ends_well(grows);
    s.end();
}

/// A scrub is about to read a volume's pages when the volume is detached, and another one is given them. They are whole, and not its own: the cache devices were said
/// to have damaged data. Found by reading.
#[test]
fn a_scrub_does_not_take_pages_that_are_anothers_by_now_for_damaged() {
    let mut s = with_clean("a scrub, and pages that are another's");
    let layout = s.stage.layout();
    let place = layout.intent(0, 0);
    s.hold_back(move |_, op| matches!(op, DeviceOp::Read { offset, .. } if *offset == place));
    let scrub = s.world.command(Command::Scrub { bytes_per_second: 0 });
    s.until_held();
    s.obey(Command::Detach { volume: 1, give_up_lost: false });
    let grow = grow(&mut s);
    s.ends_well(grow);
    s.let_go();
    s.hold_back(|_, _| false);
    s.ends_well(scrub);
    assert_eq!(s.status().scrub.damaged, 0, "{}", s.story());
    s.end();
}
