//! A daemon that starts before a volume's disk is there.

mod common;

use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use common::{Contents, Daemon, LONG, MIB, Nbd, Yard};
use headpond_host::report::Report;

/// Blocks that are written, scattered, so that they are cached.
const BLOCKS: u64 = 256;

fn place(number: u64) -> u64 {
    number * 7 % BLOCKS * 65536
}

fn block(number: u64) -> Vec<u8> {
    let mut bytes = vec![0x6c; 4096];
    bytes[..8].copy_from_slice(&(number ^ 0x6c61_7465_6469_736b).to_le_bytes());
    bytes
}

/// A pool with clean data, then with dirty data of which so slow a disk has taken little, ended cleanly.
fn left_dirty(yard: &Yard) {
    yard.pool();
    yard.file("disk", 16 * MIB);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", &disk(yard)]).good();
    written(yard, 0..BLOCKS / 2);
    yard.run(&["flush", "v"]).good();
    written(yard, BLOCKS / 2..BLOCKS);
    daemon.stop();
    // While the machine is busy with other things a sweep may have come and gone before the end.
    for _ in 0..20 {
        if yard.dirty_at_rest() > 0 {
            return;
        }
        let daemon = yard.serve(&["a", "b"]);
        written(yard, BLOCKS / 2..BLOCKS);
        daemon.stop();
    }
    panic!("a machine with a moment to spare");
}

/// Writes some of the blocks, and flushes.
fn written(yard: &Yard, blocks: Range<u64>) {
    let mut nbd = yard.nbd("v");
    for number in blocks {
        nbd.write(place(number), &block(number), false).unwrap();
    }
    nbd.flush().unwrap();
}

fn disk(yard: &Yard) -> String {
    format!("modelled:{}", yard.path("disk").display())
}

fn serve(yard: &Yard) -> Daemon {
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    yard.serve(&["a", "b", "--wait", "5", "--config", "toml"])
}

fn report(yard: &Yard) -> Report {
    serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap()
}

/// Waits for an event; disks are looked for every few seconds.
fn told_of(yard: &Yard, kind: &str) {
    let until = Instant::now() + LONG;
    while !yard.run(&["events"]).good().out.contains(kind) {
        assert!(Instant::now() < until, "nobody was told of {kind}: {:?}", yard.run(&["events"]));
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_disk_that_comes_after_the_start_is_served_within_seconds() {
    let yard = Yard::new();
    left_dirty(&yard);
    fs::rename(yard.path("disk"), yard.path("away")).unwrap();
    let daemon = serve(&yard);
    assert!(daemon.said.contains("volume v NOT served"), "{}", daemon.said);
    yard.run(&["status"]).told(&["NOT SERVED", "Volume v is not served", "looked for every few seconds", "--backing v=PATH"]);
    assert!(Nbd::connect(&yard.path("nbd"), "v").is_err(), "it is served without its disk");
    assert!(report(&yard).volumes[0].dirty_bytes > 0, "nothing is dirty");
    // Something else in its place is not taken, and is let alone.
    yard.file("disk", 16 * MIB);
    let other = Contents::of(&[&yard.path("disk")]);
    let until = Instant::now() + LONG;
    while !yard.run(&["status"]).good().out.contains("is another device") {
        assert!(Instant::now() < until, "nobody looked at it");
        std::thread::sleep(Duration::from_millis(200));
    }
    other.unchanged();
    fs::rename(yard.path("away"), yard.path("disk")).unwrap();
    told_of(&yard, "volume-served: The backing device of volume v");
    let now = report(&yard);
    assert!(now.volumes[0].serving && now.advice.is_empty(), "{now:?}");
    let mut nbd = yard.nbd("v");
    for number in 0..BLOCKS {
        assert_eq!(nbd.read(place(number), 4096).unwrap(), block(number), "block {number}");
    }
    nbd.write(0, &[1; 4096], false).unwrap();
    nbd.flush().unwrap();
    drop(nbd);
    yard.run(&["detach", "v"]).good();
    daemon.stop();
    let bytes = fs::read(yard.path("disk")).unwrap();
    for number in (0..BLOCKS).filter(|n| place(*n) != 0) {
        assert_eq!(bytes[place(number) as usize..][..4096], block(number), "block {number} of the disk");
    }
}

#[test]
fn a_disk_that_was_changed_while_it_was_away_is_refused_when_it_comes() {
    let yard = Yard::new();
    left_dirty(&yard);
    fs::rename(yard.path("disk"), yard.path("away")).unwrap();
    let right = fs::read(yard.path("away")).unwrap();
    let daemon = serve(&yard);
    assert!(report(&yard).volumes[0].dirty_bytes > 0, "nothing is dirty");
    // The same file, with other content.
    fs::write(yard.path("away"), vec![0x33; right.len()]).unwrap();
    let wrong = Contents::of(&[&yard.path("away")]);
    fs::rename(yard.path("away"), yard.path("disk")).unwrap();
    told_of(&yard, "volume-refused: The backing device of volume v");
    yard.run(&["status"]).told(&["NOT SERVED", "its disk was changed without the cache"]);
    daemon.stop();
    fs::rename(yard.path("disk"), yard.path("away")).unwrap();
    wrong.unchanged();
    fs::write(yard.path("away"), right).unwrap();
    fs::rename(yard.path("away"), yard.path("disk")).unwrap();
    let _daemon = serve(&yard);
    let mut nbd = yard.nbd("v");
    for number in 0..BLOCKS {
        assert_eq!(nbd.read(place(number), 4096).unwrap(), block(number), "block {number}");
    }
}

/// A volume is thrown away while its disk is looked for, and another one has its number when that disk comes after all.
#[test]
fn a_disk_that_comes_when_its_volume_is_gone_is_let_alone() {
    let yard = Yard::new();
    left_dirty(&yard);
    fs::rename(yard.path("disk"), yard.path("away")).unwrap();
    let daemon = serve(&yard);
    yard.run(&["detach", "v", "--throw-away"]).told(&["taken off pool", "thrown away"]);
    yard.file("new", 16 * MIB);
    yard.run(&["attach", "w", "new"]).good();
    let old = Contents::of(&[&yard.path("away")]);
    fs::rename(yard.path("away"), yard.path("disk")).unwrap();
    // Disks are looked for every three seconds.
    std::thread::sleep(Duration::from_secs(8));
    let mut nbd = yard.nbd("w");
    for number in 0..BLOCKS {
        nbd.write(place(number), &block(number), false).unwrap();
    }
    nbd.flush().unwrap();
    drop(nbd);
    yard.run(&["detach", "w"]).good();
    daemon.stop();
    fs::rename(yard.path("disk"), yard.path("away")).unwrap();
    old.unchanged();
    let bytes = fs::read(yard.path("new")).unwrap();
    for number in 0..BLOCKS {
        assert_eq!(bytes[place(number) as usize..][..4096], block(number), "block {number} of the disk");
    }
}

/// The thread that looks for disks waited for the detach to end, hours perhaps, and the daemon's end for that thread, past its
/// `--stop-within`.
#[test]
fn a_disk_that_comes_while_another_volume_is_detached_does_not_hold_up_a_stop() {
    let yard = Yard::new();
    for device in ["a", "b"] {
        yard.file(device, 256 * MIB);
    }
    yard.run(&["pool", "create", "pool", "a", "b"]).good();
    yard.file("disk", 16 * MIB);
    yard.file("far", 16 << 30);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.run(&["attach", "w", "modelled:far"]).good();
    daemon.stop();
    fs::rename(yard.path("disk"), yard.path("away")).unwrap();
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--wait", "1", "--config", "toml", "--stop-within", "3"]);
    let mut nbd = yard.nbd("w");
    // Far apart, so that the sweep over them takes a minute; and many at a time, so that it has not come far by then.
    nbd.write_many((0..12_000).map(|n| (n * 7919 % 12_000 * (4096 * 300), vec![1; 4096])));
    std::thread::scope(|scope| {
        let detach = scope.spawn(|| yard.run(&["detach", "w"]));
        while !yard.run(&["status"]).good().out.contains("pass-through") {
            assert!(!detach.is_finished(), "{:?}", detach.join());
        }
        fs::rename(yard.path("away"), yard.path("disk")).unwrap();
        // It is looked every three seconds.
        std::thread::sleep(Duration::from_secs(4));
        assert!(!detach.is_finished(), "the test wants it to be under way yet");
        let begun = Instant::now();
        daemon.signal("TERM");
        drop(detach.join().unwrap());
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(30), "the daemon ended after {took:?}, and was given 3 s");
    });
    daemon.ended();
}
