//! A volume becomes larger while it is served: what is beyond its end is nobody's before, and safe from then on.

use headpond_engine::format::{Mode, REGION_SECTORS, REGIONS_PER_PAGE, SUPERBLOCK_BYTES};
use headpond_engine::{Command, CommandError, Device, DeviceOp};
use headpond_sim::SimBuf;
use headpond_sim::device::SimDevice;
use headpond_sim::scene::{Scene, Stage};
use headpond_sim::world::Timing;

const DISK: Device = Device::Backing(0);
/// Sectors that one page of the intent map describes.
const PAGE: u64 = REGION_SECTORS * REGIONS_PER_PAGE as u64;

/// What a grow needs of the intent map.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Needs {
    /// The pages that the volume has.
    Nothing,
    /// The ones behind them.
    PagesBehind,
    /// Others, as the ones behind are another volume's.
    OtherPages,
}

impl Needs {
    const ALL: [Needs; 3] = [Needs::Nothing, Needs::PagesBehind, Needs::OtherPages];

    fn stage(self) -> Stage {
        Stage { volumes: if self == Needs::OtherPages { 2 } else { 1 }, ..Stage::default() }
    }

    /// The size that the first volume is to have, in sectors.
    fn sectors(self, stage: &Stage) -> u64 {
        if self == Needs::Nothing { stage.sectors + 100_003 } else { PAGE + 1_000_003 }
    }
}

/// The disk of the first volume gets so many sectors, and the volume is to have them.
fn grow(s: &mut Scene, sectors: u64) -> Result<(), CommandError> {
    let id = ask(s, sectors);
    s.end_of(id)
}

fn ask(s: &mut Scene, sectors: u64) -> u64 {
    let disk = s.device(DISK);
    disk.size = disk.size.max(sectors * 512);
    s.world.command(Command::Grow { volume: 0, sectors })
}

fn sectors(s: &Scene) -> u64 {
    s.status().volumes[0].sectors
}

/// Whether a write there is taken.
fn takes(s: &mut Scene, sector: u64, sectors: u64) -> bool {
    s.world.errors_allowed = true;
    let write = s.world.write(0, sector, sectors, false);
    let taken = s.answer_to(write);
    s.world.errors_allowed = false;
    taken
}

fn superblocks(stage: &Stage) -> impl Fn(Device, &DeviceOp<SimBuf>) -> bool + use<> {
    let tail = stage.layout().superblock(2);
    move |device, op| {
        let DeviceOp::Write { offset, .. } = op else { return false };
        matches!(device, Device::Member(_)) && (*offset < 2 * SUPERBLOCK_BYTES || *offset >= tail)
    }
}

#[test]
fn what_is_beyond_the_end_is_refused_before_and_survives_a_power_cut_right_after() {
    for needs in Needs::ALL {
        for (small, flushes) in [(true, true), (false, true), (true, false)] {
            let mut s = Scene::new(&format!("a volume grows, {needs:?}"), needs.stage());
            let (old, new) = (s.stage.sectors, needs.sectors(&s.stage));
            s.write(old - 16, 16);
            assert!(!takes(&mut s, old - 4, 8), "a write over the end was taken");
            assert_eq!(grow(&mut s, new), Ok(()));
            assert_eq!(sectors(&s), new);
            for (at, long) in [(old - 4, 8), (old, 3), (new - 8, 8), (new - 2048, 1024), (old + 64, 1024)] {
                s.write(at, if small { long.min(16) } else { long });
            }
            s.world.errors_allowed = true;
            let read = s.world.read(0, new - 7, 8);
            assert!(!s.answer_to(read), "a read over the new end was answered");
            s.world.errors_allowed = false;
            if flushes {
                s.flush();
                s.lose_power();
            } else {
                s.kill();
            }
            assert_eq!(sectors(&s), new);
            s.read_all();
            s.end();
        }
    }
}

#[test]
fn nobody_reaches_what_is_new_before_the_superblock_is_durable() {
    for needs in Needs::ALL {
        let mut s = Scene::new(&format!("a grow is at its superblock, {needs:?}"), needs.stage());
        let (old, new) = (s.stage.sectors, needs.sectors(&s.stage));
        s.hold_back(superblocks(&s.stage));
        let id = ask(&mut s, new);
        s.until_held();
        assert!(!takes(&mut s, old, 8), "what is new is reached before it is there to stay");
        assert_eq!(sectors(&s), old);
        // All else goes on, and is safe wherever the next start looks.
        s.write(0, 8);
        s.write(70_000, 1024);
        s.flush();
        let second = s.world.command(Command::Grow { volume: 0, sectors: new + 8 });
        assert_eq!(s.end_of(second), Err(CommandError::GrowBusy));
        s.let_go();
        s.ends_well(id);
        s.write(old, 8);
        s.flush();
        s.lose_power();
        s.end();
    }
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_changed() {
    let mut s = Scene::new("sizes that cannot be", Stage { volumes: 2, ..Stage::default() });
    let size = s.stage.sectors;
    for no_larger in [0, 1, size - 1, size] {
        assert_eq!(grow(&mut s, no_larger), Err(CommandError::NotLarger { sectors: size }));
    }
    for too_large in [4 * PAGE, 1 << 52, u64::MAX / 1024] {
        assert_eq!(grow(&mut s, too_large), Err(CommandError::TooLarge));
    }
    let id = s.world.command(Command::Grow { volume: 9, sectors: 2 * size });
    assert_eq!(s.end_of(id), Err(CommandError::NoSuchVolume));
    assert_eq!(sectors(&s), size);
    s.write(0, 8);
    s.set_dead(DISK, true);
    s.kill();
    assert_eq!(grow(&mut s, size + 8), Err(CommandError::NotServed));
    s.set_dead(DISK, false);
    s.obey(Command::BackingCame { volume: 0 });
    assert_eq!(grow(&mut s, size + 8), Ok(()));
    s.end();
}

#[test]
fn a_pool_without_cache_devices_grows_nothing() {
    let mut s = Scene::new("no cache device is left", Stage::default());
    let size = s.stage.sectors;
    s.destage();
    for m in 0..2 {
        s.set_dead(Device::Member(m), true);
    }
    s.world.errors_allowed = true;
    s.world.count_copies = false;
    let write = s.world.write(0, 0, 8, true);
    s.answer_to(write);
    assert_eq!(grow(&mut s, 2 * size), Err(CommandError::NoMembers));
    assert_eq!(sectors(&s), size);
}

/// It grows again and again, and the pages that it leaves are there for others.
#[test]
fn pages_that_are_left_are_another_volumes_next() {
    let mut s = Scene::new("it grows page by page", Stage { volumes: 2, disks: 3, ..Stage::default() });
    assert_eq!(grow(&mut s, PAGE + 8), Ok(()));
    s.write(PAGE - 8, 8);
    // Behind its two pages there are no more, and in front of them not enough in one piece.
    assert_eq!(grow(&mut s, 2 * PAGE + 8), Err(CommandError::TooLarge));
    s.device(Device::Backing(1)).size = 2 * PAGE * 512;
    let beyond = s.world.command(Command::Grow { volume: 1, sectors: PAGE + 8 });
    assert_eq!(s.end_of(beyond), Err(CommandError::TooLarge), "page 0 is free, and in front of its own");
    s.obey(Command::Attach(s.stage.volume(2)));
    s.write(PAGE, 8);
    s.flush();
    s.lose_power();
    s.obey(Command::Scrub { bytes_per_second: 0 });
    assert_eq!(s.status().scrub.damaged, 0);
    s.end();
}

#[test]
fn a_grow_and_an_attach_at_once_get_pages_of_their_own() {
    for seed in 0..16 {
        let stage = Stage { timing: || Timing::Random(10_000, 400_000), seed, ..Stage::default() };
        let mut s = Scene::new("a grow beside an attach", stage);
        let attach = s.world.command(Command::Attach(s.stage.volume(1)));
        s.pass(seed * 100_000);
        let grows = ask(&mut s, PAGE + 1_000);
        s.ends_well(attach);
        s.ends_well(grows);
        s.write(PAGE, 8);
        s.world.write(1, 0, 1024, false);
        s.answered();
        s.flush();
        s.lose_power();
        s.obey(Command::Scrub { bytes_per_second: 0 });
        assert_eq!(s.status().scrub.damaged, 0);
        s.end();
    }
}

#[test]
fn a_detach_and_a_clean_end_wait_for_a_grow() {
    for stops in [false, true] {
        let mut s = Scene::new("an end while it grows", Stage::default());
        let new = s.stage.sectors + 1_000;
        s.write(0, 8);
        s.hold_back(superblocks(&s.stage));
        let grows = ask(&mut s, new);
        s.until_held();
        let end = if stops { Command::Stop } else { Command::Detach { volume: 0, give_up_lost: false } };
        let end = s.world.command(end);
        s.pass(1_000_000_000);
        assert_eq!(s.world.command_result(end), None);
        s.let_go();
        s.ends_well(grows);
        s.ends_well(end);
        s.kill();
        match stops {
            true => assert_eq!(sectors(&s), new),
            false => s.world.check_disk(0),
        }
        s.end();
    }
}

#[test]
fn a_scrub_beside_a_grow_finds_nothing_damaged() {
    for seed in 0..24 {
        let stage = Stage { timing: || Timing::Random(10_000, 400_000), seed, ..Needs::OtherPages.stage() };
        let mut s = Scene::new("a scrub beside a grow", stage);
        s.write(0, 8);
        s.rest();
        let scrub = s.world.command(Command::Scrub { bytes_per_second: 0 });
        s.pass(seed * 200_000);
        let grows = ask(&mut s, PAGE + 1_000);
        s.ends_well(grows);
        s.ends_well(scrub);
        assert_eq!(s.status().scrub.damaged, 0);
        s.end();
    }
}

/// A cache device that joins while a volume grows has what the others have: they are lost, one after the other.
#[test]
fn a_cache_device_that_joins_meanwhile_lacks_nothing() {
    for seed in 0..24 {
        let stage = Stage { timing: || Timing::Random(10_000, 400_000), seed, ..Needs::OtherPages.stage() };
        let mut s = Scene::new("a join beside a grow", stage);
        for n in 0..8 {
            s.write(n * 640, 8);
        }
        let bytes = s.stage.member_bytes();
        s.world.devices.insert(Device::Member(2), SimDevice::new(bytes, None));
        let joins = s.world.command(Command::AddMember { member: 2, id: [77; 16], bytes });
        s.pass(seed * 300_000);
        let new = PAGE + 1_000_003;
        let grows = ask(&mut s, new);
        s.ends_well(grows);
        s.ends_well(joins);
        s.write(PAGE, 8);
        s.write(PAGE + 4096, 1024);
        s.flush();
        s.set_dead(Device::Member(seed as u8 % 2), true);
        s.lose_power();
        assert_eq!(sectors(&s), new);
        s.read_all();
        s.end();
    }
}

/// What happens at the k-th operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    /// It fails, and when the command has ended the daemon dies.
    Fails,
    /// It fails, and when the command has ended the power goes.
    FailsAndPowerGoes,
    DaemonDies,
    PowerGoes,
}

/// One blow at the `k`-th operation of a grow under load; whether it had so many.
fn strike(needs: Needs, blow: Blow, k: u64) -> bool {
    let stage = Stage { timing: || Timing::Random(10_000, 400_000), seed: k, ..needs.stage() };
    let mut s = Scene::new(&format!("a grow, {needs:?}, {blow:?} at operation {k}"), stage);
    let (old, new) = (s.stage.sectors, needs.sectors(&s.stage));
    for n in 0..6 {
        s.write(n * 640, 8);
        s.write(REGION_SECTORS + n * 640, 8);
    }
    // Clean in both regions; then dirty in one.
    s.destage();
    s.checkpoint();
    s.write(3, 2);
    s.flush();
    s.rest();
    let before = s.world.operations;
    let fails = matches!(blow, Blow::Fails | Blow::FailsAndPowerGoes);
    if fails {
        s.world.fail_operation = Some(before + k + 1);
    }
    // It may be the disk's write past the cache.
    s.world.errors_allowed = fails;
    let id = ask(&mut s, new);
    // Meanwhile a region gets its intent bit, over clean data; and another one its dirty bit.
    s.world.write(0, REGION_SECTORS, 1024, false);
    s.world.write(0, REGION_SECTORS + 4096, 8, false);
    while s.world.command_result(id).is_none() && (fails || s.world.operations <= before + k) {
        s.step();
    }
    let ended = s.world.command_result(id);
    // A cache device fewer is not too few.
    assert!(matches!(ended, None | Some(Ok(()))), "{}: {ended:?}", s.story());
    if s.world.operations <= before + k {
        return false;
    }
    s.world.fail_operation = None;
    if fails {
        s.answered();
        s.world.errors_allowed = false;
    }
    if ended.is_some() {
        s.write(old - 4, 8);
        s.write(new - 1024, 1024);
        s.write(new - 2048, 8);
        s.flush();
    }
    match blow {
        Blow::PowerGoes | Blow::FailsAndPowerGoes => s.world.cut_power(),
        _ => s.world.kill(),
    }
    s.start();
    match (sectors(&s), ended) {
        (n, _) if n == new => {}
        (n, None) if n == old => assert_eq!(grow(&mut s, new), Ok(()), "{}", s.story()),
        (n, ended) => panic!("{}: {n} sectors after {ended:?}", s.story()),
    }
    s.write(new - 8, 8);
    s.read_all();
    s.end();
    true
}

#[test]
fn a_grow_survives_each_of_its_operations_failing() {
    for needs in Needs::ALL {
        for blow in [Blow::Fails, Blow::FailsAndPowerGoes, Blow::DaemonDies, Blow::PowerGoes] {
            let mut k = 0;
            while strike(needs, blow, k) {
                k += 1;
                assert!(k < 5_000, "a grow goes on without end");
            }
            assert!(k > 4, "a grow asks next to nothing of any device: {k}");
        }
    }
}

#[test]
fn a_volume_grows_in_every_mode() {
    for mode in [Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough] {
        let mut s = Scene::new(&format!("it grows in {}", mode.name()), Stage { mode, ..Stage::default() });
        let (old, new) = (s.stage.sectors, PAGE + 8);
        assert_eq!(grow(&mut s, new), Ok(()));
        s.write(old - 4, 8);
        s.write(new - 8, 8);
        s.read(new - 16, 16);
        s.flush();
        s.lose_power();
        s.end();
    }
}
