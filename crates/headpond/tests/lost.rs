//! Both cache devices fail while data is dirty: what is lost is named.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{MIB, Yard};
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
    for number in 0..BLOCKS {
        nbd.write(place(number), &[7; 4096], false).unwrap();
    }
    let limit = Rlimit { current: Some(MIB), maximum: Some(MIB) };
    prlimit(Pid::from_raw(daemon.id() as i32), Resource::Fsize, limit).unwrap();
    // Finds out that they fail; whether it is ever answered is another matter.
    std::thread::spawn(move || nbd.write(place(3) + 8192, &[8; 4096], true));
    let report = || -> Report { serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap() };
    let until = Instant::now() + Duration::from_secs(30);
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
    let until = Instant::now() + Duration::from_secs(10);
    while !yard.run(&["events"]).good().out.contains("data-lost") {
        assert!(Instant::now() < until, "nobody was told");
        std::thread::sleep(Duration::from_millis(100));
    }
    let kept = fs::read_dir(yard.path("state")).unwrap().map(|it| it.unwrap().path());
    let kept = kept.into_iter().find(|path| path.to_string_lossy().contains("/lost-")).expect("the list is kept");
    let kept: Lost = serde_json::from_str(&fs::read_to_string(kept).unwrap()).unwrap();
    assert_eq!((kept.bytes["v"], kept.ranges), (now.volumes[0].lost_bytes, now.lost_ranges));
}
