//! Both cache devices fail while data is dirty: what is lost is named.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use common::silent::Disk;
use common::{Contents, LONG, MIB, Nbd, Yard};
use headpond_host::report::{LostRange, Report};
use headpond_host::state::Lost;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

const BLOCKS: u64 = 256;

/// Scattered, so that it is cached and no stream.
fn place(number: u64) -> u64 {
    number * 7 % BLOCKS * 65536
}

#[test]
fn what_both_cache_devices_took_with_them_is_in_the_status_and_in_the_state_folder() {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 16 * MIB);
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    // A write beyond a process's limit on the size of files fails, and a signal that is ignored here says so: a device that fails.
    let ignoring = ["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_headpond")];
    let args = ["a", "b", "--frontend", "nbd", "--nbd", "nbd", "--socket", "control", "--state", "state", "--config", "toml"];
    let daemon = yard.serve_by(&ignoring, &args).unwrap();
    // So slow a disk that much is dirty yet.
    yard.run(&["attach", "v", &format!("modelled:{}", yard.path("disk").display())]).good();
    let mut nbd = yard.nbd("v");
    let report = || -> Report { serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap() };
    let mut is_dirty = || {
        nbd.write_many((0..BLOCKS).map(|number| (place(number), vec![7; 4096])));
        report().volumes[0].dirty_bytes > MIB / 2
    };
    // On a busy machine a sweep may have come and gone meanwhile.
    assert!((0..20).any(|_| is_dirty()), "a machine with a moment to spare");
    let limit = Rlimit { current: Some(MIB), maximum: Some(MIB) };
    prlimit(Pid::from_raw(daemon.id() as i32), Resource::Fsize, limit).unwrap();
    // Finds out that they fail; whether it is ever answered is another matter.
    std::thread::spawn(move || nbd.write(place(3) + 8192, &[8; 4096], true));
    let until = Instant::now() + LONG;
    while report().volumes[0].lost_bytes == 0 {
        assert!(Instant::now() < until, "nothing is named as lost: {:?} {}", report(), daemon.complaints());
        std::thread::sleep(Duration::from_millis(200));
    }
    let now = report();
    assert_eq!(now.lost_ranges.iter().map(|r| r.bytes).sum::<u64>(), now.volumes[0].lost_bytes);
    let written: Vec<u64> = (0..BLOCKS).map(place).collect();
    let of_a_write = |r: &LostRange| r.volume == "v" && r.bytes == 4096 && written.contains(&r.offset);
    assert!(now.lost_ranges.iter().all(of_a_write), "{:?}", now.lost_ranges);
    yard.run(&["status"]).told(&["bytes of volume v are lost", "--give-up-lost v"]);
    assert!(yard.nbd("v").read(now.lost_ranges[0].offset, 4096).is_err());
    let until = Instant::now() + LONG;
    while !yard.run(&["events"]).good().out.contains("data-lost") {
        assert!(Instant::now() < until, "nobody was told");
        std::thread::sleep(Duration::from_millis(100));
    }
    let kept = fs::read_dir(yard.path("state")).unwrap().map(|it| it.unwrap().path());
    let kept = kept.into_iter().find(|path| path.to_string_lossy().contains("/lost-")).expect("the list is kept");
    let kept: Lost = serde_json::from_str(&fs::read_to_string(kept).unwrap()).unwrap();
    assert_eq!((kept.bytes["v"], kept.ranges), (now.volumes[0].lost_bytes, now.lost_ranges));
}

/// What an earlier life had lost was not looked for, and the device that alone had it was cleared without a question.
#[test]
fn after_a_restart_what_was_lost_before_is_named_and_a_cache_device_that_may_have_it_is_not_cleared() {
    let yard = Yard::new();
    let Some((a, b)) = Disk::new(&yard.path("mount-a"), 64 * MIB).zip(Disk::new(&yard.path("mount-b"), 64 * MIB)) else { return };
    let [path_a, path_b] = [&a, &b].map(|disk| disk.path().display().to_string());
    yard.file("c", 64 * MIB);
    yard.file("disk", 16 * MIB);
    yard.run(&["pool", "create", "pool", &path_a, &path_b, "c"]).good();
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&[&path_a, &path_b, "c", "--config", "toml"]);
    // So slow a disk that much is dirty yet.
    yard.run(&["attach", "v", &format!("modelled:{}", yard.path("disk").display())]).good();
    let mut nbd = yard.nbd("v");
    let report = || -> Report { serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap() };
    let wait_until = |what: &str, is: &dyn Fn(&Report) -> bool| {
        let until = Instant::now() + LONG;
        while !is(&report()) {
            assert!(Instant::now() < until, "{what}: {:?}", report());
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let mut is_dirty = || {
        let places = (0..4).flat_map(|part| (0..BLOCKS).map(move |number| place(number) + part * 16384));
        nbd.write_many(places.map(|at| (at, vec![7; 4096])));
        nbd.flush().unwrap();
        report().volumes[0].dirty_bytes > 2 * MIB
    };
    // On a busy machine a sweep may have come and gone meanwhile.
    assert!((0..20).any(|_| is_dirty()), "a machine with a moment to spare");
    // The first is reset; of what it had the second cannot be read, and then fails too.
    b.fall_silent_where_read();
    a.die();
    // Somebody has to find out.
    let finds_out = |mut nbd: Nbd| {
        std::thread::spawn(move || {
            let _ = nbd.write(place(3) + 8192, &[8; 4096], true);
            nbd
        })
    };
    // It is answered when the others have agreed to that; sooner the two would be gone at once, and the pool stand still.
    let first = finds_out(nbd);
    wait_until("the first has left", &|it| it.members[0].state == "out");
    let mut nbd = first.join().unwrap();
    nbd.write(place(5) + 8192, &[8; 4096], true).unwrap();
    b.die();
    let second = finds_out(nbd);
    wait_until("the second has left", &|it| it.members[1].state == "out");
    let _ = second.join();
    wait_until("something is lost", &|it| it.volumes[0].lost_bytes > 0);
    let lost = report().volumes[0].lost_bytes;
    let told = || yard.run(&["events"]).good().out.matches("data-lost").count();
    wait_until("it was told", &|_| told() > 0);
    let told_before = told();
    daemon.stop();
    a.speak();
    let daemon = yard.serve(&["c", "--config", "toml", "--wait", "1"]);
    wait_until("it is lost still", &|it| it.volumes[0].lost_bytes == lost);
    yard.run(&["status"]).told(&["bytes of volume v are lost", "may be nowhere else", "do not put it back"]);
    yard.run(&["pool", "add", &path_a]).said(3, &["may hold what is nowhere else", "Nothing was changed"]);
    assert_eq!(told(), told_before, "it is no news");
    daemon.stop();
}

/// The engine takes none then, and said so when the device had been cleared.
#[test]
fn while_a_page_of_the_checkpoint_is_lost_a_device_that_is_to_be_added_stays_as_it_is() {
    // More than a start reads before it serves.
    const MANY: u64 = 40_000;
    let yard = Yard::new();
    for name in ["a", "b", "c"] {
        yard.file(name, 512 * MIB);
    }
    yard.file("disk", 512 * MIB);
    yard.run(&["pool", "create", "pool", "a", "b"]).good();
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let serve = || yard.serve(&["a", "b", "--config", "toml"]);
    let daemon = serve();
    yard.run(&["attach", "v", &format!("modelled:{}", yard.path("disk").display())]).good();
    let mut nbd = yard.nbd("v");
    for first in (0..MANY).step_by(64) {
        let write = |number: u64| Nbd::request(0, 1, number * 7919 % MANY * 8192, 4096, &[7; 4096]);
        nbd.send(&(first..first + 64).flat_map(write).collect::<Vec<u8>>()).unwrap();
        (0..64).for_each(|_| nbd.answer(&mut []).unwrap());
    }
    drop(nbd);
    daemon.stop();
    for name in ["a", "b"] {
        let file = OpenOptions::new().read(true).write(true).open(yard.path(name)).unwrap();
        let mut page = [0; 4096];
        for at in (0..64 * MIB).step_by(4096) {
            file.read_exact_at(&mut page, at).unwrap();
            if page.starts_with(b"HPck") && page[24..28] == 12_u32.to_le_bytes() {
                file.write_all_at(&[!page[64]], at + 64).unwrap();
            }
        }
    }
    let device = OpenOptions::new().write(true).open(yard.path("c")).unwrap();
    device.write_all_at(&[7; 4096], 0).unwrap();
    let before = Contents::of(&[&yard.path("c")]);
    let daemon = serve();
    let until = Instant::now() + Duration::from_secs(60);
    while !yard.run(&["status"]).good().out.contains("Page 12 of the checkpoint is damaged") {
        assert!(Instant::now() < until, "{:?}", yard.run(&["status"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    yard.run(&["pool", "add", "c"]).said(1, &["c was not added", "Page 12 of the checkpoint", "Nothing was changed"]);
    before.unchanged();
    drop(daemon);
}
