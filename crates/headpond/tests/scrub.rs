//! A pool that is scrubbed while it is served: what was damaged on its devices is found, mended, or named.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use common::silent::Disk;
use common::{Daemon, MIB, Nbd, Yard};
use headpond_host::report::Report;

/// Blocks that are written.
const BLOCKS: u64 = 256;

fn block(number: u64) -> Vec<u8> {
    let mut bytes = vec![0x5c; 4096];
    bytes[..8].copy_from_slice(&(number ^ 0x7363_7275_6262_6564).to_le_bytes());
    bytes
}

/// Scattered, so that it is cached and no stream.
fn place(number: u64) -> u64 {
    number * 7 % BLOCKS * 65536
}

fn write_all(nbd: &mut Nbd) {
    nbd.write_many((0..BLOCKS).map(|number| (place(number), block(number))));
    nbd.flush().unwrap();
}

/// Flips a byte of each of the numbered blocks on a cache device; how many it found there.
fn damage(yard: &Yard, device: &str, numbers: impl Fn(u64) -> bool) -> u64 {
    let path = yard.path(device);
    let bytes = fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let mut damaged = 0;
    for number in (0..BLOCKS).filter(|n| numbers(*n)) {
        let block = block(number);
        if let Some(at) = (0..bytes.len() - 4096).step_by(512).find(|at| bytes[*at..at + 4096] == block) {
            file.write_all_at(&[0xa5], at as u64 + 1000 + number).unwrap();
            damaged += 1;
        }
    }
    file.sync_all().unwrap();
    damaged
}

fn served(yard: &Yard, disk: &str) -> Daemon {
    yard.pool();
    yard.file("disk", 64 * MIB);
    // On a busy machine files answer late, and what is to be damaged on cache devices would be on the disk.
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", disk]).good();
    daemon
}

fn report(yard: &Yard) -> Report {
    serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap()
}

/// Which cache device rots was told nowhere: `headpond check`, it said, told which, of what had been repaired by then.
#[test]
fn the_device_that_rots_is_named_by_its_path_whoever_finds_it() {
    let yard = Yard::new();
    let daemon = served(&yard, "disk");
    write_all(&mut yard.nbd("v"));
    let planted = damage(&yard, "b", |n| n % 2 == 0);
    assert!(planted > BLOCKS / 4, "only {planted} were found on the device");
    // Reads are spread over both copies.
    let until = Instant::now() + Duration::from_secs(30);
    let mut nbd = yard.nbd("v");
    while report(&yard).members[1].damaged == 0 {
        assert!(Instant::now() < until, "no read has met what is damaged");
        for number in 0..BLOCKS {
            assert_eq!(nbd.read(place(number), 4096).unwrap(), block(number), "block {number}");
        }
    }
    drop(nbd);
    let b = format!("cache device 1 ({})", yard.path("b").display());
    yard.run(&["status"]).told(&[&format!("copies on {b} since the start")]);
    told_of(&yard, &format!("{} holds damaged data", b.replacen('c', "C", 1)));
    told_of(&yard, "headpond pool replace 1 NEW");
    // What reads have not met is left for a scrub, which says the same.
    if damage(&yard, "b", |n| n % 2 == 1) > 0 {
        yard.run(&["scrub", "--rate", "0"]).told(&[&format!(" on {b}): ")]);
        yard.run(&["status"]).told(&[&format!(" on {b}), ")]);
        told_of(&yard, &format!(" on {b}: "));
    }
    let found = report(&yard);
    assert_eq!(
        (found.members[0].damaged, found.scrub.damaged_on.iter().filter(|it| it.number != 1).count()),
        (0, 0),
        "{found:?}"
    );
    daemon.stop();
}

/// Waits for an event: they come within moments.
fn told_of(yard: &Yard, what: &str) {
    let until = Instant::now() + Duration::from_secs(30);
    while !yard.run(&["events"]).good().out.contains(what) {
        assert!(Instant::now() < until, "nobody was told of {what:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn what_rots_on_one_device_is_found_and_mended_while_it_is_served() {
    let yard = Yard::new();
    let daemon = served(&yard, "disk");
    yard.run(&["scrub"]).told(&["nothing is damaged"]);
    write_all(&mut yard.nbd("v"));
    let planted = damage(&yard, "a", |n| n % 3 == 0) + damage(&yard, "b", |n| n % 3 == 1);
    assert!(planted > BLOCKS / 3, "only {planted} were found on the devices");
    let out = yard.run(&["scrub", "--rate", "0", "--json"]).good().out;
    let found: headpond_host::report::Scrub = serde_json::from_str(&out).unwrap();
    // Of what is clean by now a copy may be let go already: how many are found exactly is for the simulator's tests.
    assert!(found.damaged > 0 && found.damaged <= planted, "{found:?} of {planted}");
    assert_eq!((found.repaired + found.dropped, found.lost), (found.damaged, 0), "{found:?}");
    assert_eq!(found.segments_read, found.segments);
    let damaged = format!("{} copies damaged", found.damaged);
    yard.run(&["status"]).told(&["scrub: the last one ended less than an hour ago", &damaged]);
    yard.run(&["scrub"]).told(&["nothing is damaged"]);
    // Each device alone has all of it again.
    daemon.kill();
    fs::rename(yard.path("b"), yard.path("gone")).unwrap();
    let daemon = yard.serve(&["a"]);
    let mut nbd = yard.nbd("v");
    for number in 0..BLOCKS {
        assert_eq!(nbd.read(place(number), 4096).unwrap(), block(number), "block {number}");
    }
    drop(nbd);
    yard.run(&["detach", "v"]).good();
    daemon.stop();
}

#[test]
fn what_rots_on_all_devices_is_named_with_its_ranges_and_is_still_known_after_a_restart() {
    let yard = Yard::new();
    // So slow a disk that much is dirty yet when the daemon ends.
    let disk = format!("modelled:{}", yard.path("disk").display());
    served(&yard, &disk).stop();
    let ends_dirty = || {
        let daemon = yard.serve(&["a", "b", "--config", "toml"]);
        write_all(&mut yard.nbd("v"));
        daemon.stop();
        yard.dirty_at_rest() > MIB / 4
    };
    // While the machine is busy with other things a sweep may have come and gone before the end.
    assert!((0..20).any(|_| ends_dirty()), "a machine with a moment to spare");
    damage(&yard, "a", |n| n % 2 == 0);
    damage(&yard, "b", |n| n % 2 == 0);
    let daemon = yard.serve(&["a", "b"]);
    let ended = yard.run(&["scrub", "--rate", "0"]);
    assert!(ended.out.contains("LOST on all copies") && ended.out.contains("volume v: 4096 bytes from byte"), "{ended:?}");
    ended.said(1, &["Restore it, or write it anew", "headpond pool replace"]);
    let found = report(&yard).scrub;
    assert!(found.lost > 0 && found.lost_ranges.len() as u64 == found.lost, "{found:?}");
    // Those fail, and no others.
    let mut nbd = yard.nbd("v");
    for number in 0..BLOCKS {
        let lost = found.lost_ranges.iter().any(|r| r.volume == "v" && r.offset == place(number));
        match nbd.read(place(number), 4096) {
            Ok(bytes) => assert!(!lost && bytes == block(number), "block {number}"),
            Err(error) => assert!(lost, "block {number}: {error}"),
        }
    }
    drop(nbd);
    told_of(&yard, "damaged on all its copies");
    daemon.stop();
    let daemon = yard.serve(&["a", "b"]);
    assert_eq!(report(&yard).scrub, found);
    // Written anew it is whole.
    write_all(&mut yard.nbd("v"));
    yard.run(&["scrub", "--rate", "0"]).told(&["nothing is damaged"]);
    drop(daemon);
}

#[test]
fn a_slow_one_shows_how_far_it_is_and_is_cancelled_and_another_one_beside_it_is_refused() {
    let yard = Yard::new();
    let _daemon = served(&yard, "disk");
    write_all(&mut yard.nbd("v"));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| yard.run(&["scrub", "--rate", "64KiB"]));
        let until = Instant::now() + Duration::from_secs(20);
        while !report(&yard).scrub.running {
            assert!(Instant::now() < until, "it never ran");
        }
        yard.run(&["status"]).told(&["scrub: under way, 0 of "]);
        yard.run(&["scrub"]).said(1, &["under way already", "Wait for its end, or cancel it"]);
        yard.run(&["scrub", "--cancel"]).told(&["what it repaired stays repaired"]);
        slow.join().unwrap().said(1, &["Cancelled"]);
    });
    assert!(!report(&yard).scrub.running);
    yard.run(&["scrub", "--cancel"]).said(1, &["No scrub is under way"]);
}

#[test]
fn one_is_run_by_itself_when_it_is_due_and_not_before() {
    let yard = Yard::new();
    let daemon = served(&yard, "disk");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(report(&yard).scrub.ended, None, "a pool just made was scrubbed");
    daemon.stop();
    // The pool was first served here eight days ago.
    let state = fs::read_dir(yard.path("state")).unwrap().map(|entry| entry.unwrap().path());
    let path = state.into_iter().find(|p| p.to_string_lossy().contains("/scrub-")).unwrap();
    let mut known: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let since = known["since"].as_u64().unwrap();
    known["since"] = (since - 8 * 86400).into();
    fs::write(&path, known.to_string()).unwrap();
    let _daemon = yard.serve(&["a", "b"]);
    let until = Instant::now() + Duration::from_secs(30);
    while report(&yard).scrub.ended.is_none() {
        assert!(Instant::now() < until, "it did not run");
        std::thread::sleep(Duration::from_millis(100));
    }
    told_of(&yard, "found no damage");
}

/// The end waited for the scrub, and the scrub for the device.
#[test]
fn a_stop_does_not_wait_for_a_scrub_that_was_due_of_a_cache_device_that_answers_nothing() {
    let yard = Yard::new();
    let Some(disk) = Disk::new(&yard.path("mount"), 512 * MIB) else { return };
    let device = disk.path().display().to_string();
    yard.run(&["pool", "create", "pool", &device, "--copies", "1"]).good();
    let daemon = yard.serve(&[&device]);
    yard.run(&["volume", "create", "v", "--size", "16MiB"]).good();
    write_all(&mut yard.nbd("v"));
    daemon.stop();
    is_due(&yard);
    let mut daemon = yard.serve(&[&device, "--stop-within", "5"]);
    disk.fall_silent();
    let until = Instant::now() + Duration::from_secs(30);
    while !report(&yard).scrub.running {
        assert!(Instant::now() < until, "it did not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    daemon.signal("TERM");
    let until = Instant::now() + Duration::from_secs(30);
    while daemon.child().try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it has not ended");
        std::thread::sleep(Duration::from_millis(100));
    }
    disk.speak();
    // Nothing is lost by it.
    let daemon = yard.serve(&[&device]);
    let mut nbd = yard.nbd("v");
    for number in 0..BLOCKS {
        assert_eq!(nbd.read(place(number), 4096).unwrap(), block(number), "block {number}");
    }
    drop(nbd);
    daemon.stop();
}

/// Has the last scrub of the pool, or its first start, been eight days ago.
fn is_due(yard: &Yard) {
    let mut state = fs::read_dir(yard.path("state")).unwrap().map(|entry| entry.unwrap().path());
    let path = state.find(|path| path.to_string_lossy().contains("/scrub-")).unwrap();
    let mut known: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let since = known["since"].as_u64().unwrap();
    known["since"] = (since - 8 * 86400).into();
    fs::write(&path, known.to_string()).unwrap();
}
