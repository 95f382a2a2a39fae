//! Cache devices added to a pool, removed and replaced while it is served.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::silent::Disk;
use common::{Contents, Daemon, Loop, MIB, Nbd, ReadOnly, Yard};
use headpond_host::claim::{Claim, ClaimError};
use headpond_host::control::{Call, call};
use headpond_host::report::{Member, Report};

/// Blocks that are written, each with its number and the round it was written in.
const BLOCKS: u64 = 1024;

fn block(number: u64, round: u8) -> Vec<u8> {
    let mut bytes = vec![round; 4096];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn write_all(nbd: &mut Nbd, round: u8) {
    for number in 0..BLOCKS {
        // Scattered, so that it is cached and no stream.
        nbd.write(number * 7 % BLOCKS * 8192, &block(number, round), false).unwrap();
    }
    nbd.flush().unwrap();
}

fn check_all(nbd: &mut Nbd, round: u8) {
    for number in 0..BLOCKS {
        assert_eq!(nbd.read(number * 7 % BLOCKS * 8192, 4096).unwrap(), block(number, round), "block {number}");
    }
}

fn yard() -> Yard {
    let yard = Yard::new();
    yard.pool();
    yard.file("c", 64 * MIB);
    yard.file("disk", 64 * MIB);
    yard
}

#[test]
fn a_device_is_added_and_another_removed_under_load_and_nothing_on_the_removed_one_is_needed() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    write_all(&mut yard.nbd("v"), 1);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut nbd = yard.nbd("v");
            let mut rounds = 2;
            while !done.load(Ordering::Relaxed) {
                write_all(&mut nbd, rounds);
                rounds += 1;
            }
            rounds - 1
        });
        yard.run(&["pool", "add", "c"]).told(&[
            "/c: cache device 2 of pool pool",
            "has its copies",
            "put it into `devices` in the configuration",
        ]);
        yard.run(&["pool", "remove", "a"]).told(&["cache device 0", "/a", "nothing on it is needed"]);
        done.store(true, Ordering::Relaxed);
        let last = load.join().unwrap();
        check_all(&mut yard.nbd("v"), last);
        yard.run(&["status"]).told(&["in sync", "healthy"]);
        daemon.kill();
        fs::remove_file(yard.path("a")).unwrap();
        let daemon = yard.serve(&["b", "c"]);
        check_all(&mut yard.nbd("v"), last);
        yard.run(&["detach", "v"]).good();
        daemon.stop();
        let disk = fs::read(yard.path("disk")).unwrap();
        for number in 0..BLOCKS {
            let at = (number * 7 % BLOCKS * 8192) as usize;
            assert_eq!(disk[at..at + 4096], block(number, last), "block {number} of the disk");
        }
    });
}

#[test]
fn a_daemon_that_is_started_as_before_an_addition_takes_the_added_device_too() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    write_all(&mut yard.nbd("v"), 1);
    // By another name than it is known by.
    std::os::unix::fs::symlink(yard.path("a"), yard.path("link")).unwrap();
    yard.run(&["pool", "replace", "link", "c"]).told(&["/c: cache device 2", "cache device 0"]);
    write_all(&mut yard.nbd("v"), 2);
    daemon.kill();
    // What was removed holds nothing any more: alone it is refused, and beside others it is passed over.
    yard.try_serve(&["a"]).err().expect("a is no cache device any more").said(2, &["a is no cache device"]);
    let daemon = yard.serve(&["a", "b"]);
    assert!(daemon.complaints().contains("a is passed over"), "{}", daemon.complaints());
    check_all(&mut yard.nbd("v"), 2);
    yard.run(&["status", "--json"]).told(&["\"state\":\"in sync\"", "/c"]);
    assert!(daemon.complaints().contains("is taken too"), "{}", daemon.complaints());
}

#[test]
fn a_device_that_was_away_is_put_back_and_gets_its_copies() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    write_all(&mut yard.nbd("v"), 1);
    daemon.kill();
    fs::rename(yard.path("b"), yard.path("away")).unwrap();
    let daemon = yard.serve(&["a"]);
    yard.run(&["status"]).told(&["DEGRADED", "has left the pool", "headpond pool add DEVICE"]);
    write_all(&mut yard.nbd("v"), 2);
    fs::rename(yard.path("away"), yard.path("b")).unwrap();
    yard.run(&["pool", "add", "b"]).told(&["/b: cache device 1", "has its copies"]);
    yard.run(&["status"]).told(&["healthy"]);
    write_all(&mut yard.nbd("v"), 3);
    daemon.kill();
    fs::rename(yard.path("a"), yard.path("gone")).unwrap();
    let _daemon = yard.serve(&["b"]);
    check_all(&mut yard.nbd("v"), 3);
}

#[test]
fn what_cannot_be_added_or_removed_is_named_and_nothing_is_changed() {
    let yard = yard();
    yard.file("small", MIB);
    let other = yard.file("other", 64 * MIB);
    yard.run(&["pool", "create", "another", other.to_str().unwrap(), "--copies", "1"]).good();
    let _daemon = yard.serve(&["a", "b"]);
    let before = Contents::of(&[&other, &yard.path("small")]);
    yard.run(&["pool", "add", "other"]).said(3, &["other", "pool another", "Nothing was changed"]);
    yard.run(&["pool", "add", "small"]).said(1, &["small", "1048576 bytes"]);
    yard.run(&["pool", "add", "nowhere"]).said(1, &["nowhere cannot be opened"]);
    yard.run(&["pool", "add", "a"]).said(1, &["a is in use"]);
    yard.run(&["pool", "remove", "a"]).said(1, &["could not have all its copies", "Nothing was changed", "Add another"]);
    yard.run(&["pool", "remove", "7"]).said(1, &["no cache device 7 in sync", "0 (", "1 ("]);
    yard.run(&["pool", "replace", "7", "c"]).said(2, &["no cache device 7", "Nothing was changed"]);
    yard.run(&["pool", "add", "--cancel"]).said(1, &["No cache device is being added or removed"]);
    before.unchanged();
    yard.run(&["status"]).told(&["healthy"]);
}

/// Both ends were cleared first, though `--force` was given for a device that could be used, and "nothing was changed".
#[test]
fn a_device_that_is_too_small_is_refused_before_what_is_on_it_is_overwritten() {
    let yard = Yard::new();
    yard.file("a", 64 * MIB);
    yard.file("b", 64 * MIB);
    yard.run(&["pool", "create", "pool", "a", "b", "--segment", "64KiB"]).good();
    yard.file("disk", 64 * MIB);
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let _daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", "disk"]).good();
    // The pool's intent pages leave no room for segments on the first; on the second there is none for a map as large as there will be.
    for (name, bytes) in [("first", 1200 << 10), ("second", 1400 << 10)] {
        let device = yard.file(name, bytes);
        // As of ext4.
        fs::File::options().write(true).open(&device).unwrap().write_all_at(b"\x53\xef", 1080).unwrap();
        if name == "second" {
            let mut nbd = yard.nbd("v");
            for number in 0..6 * BLOCKS {
                nbd.write(number * 7 % (6 * BLOCKS) * 8192, &block(number, 1), false).unwrap();
            }
        }
        let before = Contents::of(&[&device]);
        yard.run(&["pool", "add", name]).said(3, &["ext4 file system", "Nothing was changed"]);
        yard.run(&["pool", "add", name, "--force"]).said(1, &[name, "needs", "Nothing was changed"]);
        before.unchanged();
    }
}

/// The SSD that died is named in the configuration yet, and a host must come up without it.
#[test]
fn a_pool_starts_without_a_device_that_is_named_and_not_there() {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 64 * MIB);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.nbd("v").write(0, &[3; 4096], false).unwrap();
    daemon.kill();
    std::fs::remove_file(yard.path("b")).unwrap();
    let daemon = yard.serve(&["a", "b", "--wait", "1"]);
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [3; 4096]);
    yard.run(&["status"]).told(&["DEGRADED"]);
    assert!(daemon.complaints().contains("b cannot be opened"), "{}", daemon.complaints());
    daemon.stop();
}

/// The one that died was said to be in the way, and those that were added since were not looked for: a pool with all the votes that it needs did
/// not start.
#[test]
fn a_pool_starts_with_devices_that_were_added_where_one_that_is_named_is_not_there() {
    let yard = yard();
    yard.file("d", 64 * MIB);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    for added in ["c", "d"] {
        yard.run(&["pool", "add", added]).good();
    }
    write_all(&mut yard.nbd("v"), 1);
    daemon.kill();
    fs::remove_file(yard.path("a")).unwrap();
    let daemon = yard.serve(&["a", "b", "--wait", "1"]);
    check_all(&mut yard.nbd("v"), 1);
    assert!(daemon.complaints().contains("a cannot be opened"), "{}", daemon.complaints());
}

/// It was taken for left for good where it came a moment after the start had begun.
#[test]
fn a_device_that_was_added_is_waited_for_as_one_that_is_named() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["pool", "add", "c"]).good();
    daemon.stop();
    fs::rename(yard.path("c"), yard.path("away")).unwrap();
    let _daemon = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(2));
            fs::rename(yard.path("away"), yard.path("c")).unwrap();
        });
        yard.serve(&["a", "b", "--wait", "40"])
    });
    assert!(!yard.run(&["status"]).told(&["healthy"]).out.contains("has left the pool"));
}

/// It was taken from where it was last seen, since the name that is given leads to it a moment later; then the start waited for itself to let go of it, and was
/// refused.
#[test]
fn a_device_whose_name_comes_later_than_itself_is_taken_once() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["pool", "add", "c"]).good();
    daemon.stop();
    fs::rename(yard.path("b"), yard.path("away")).unwrap();
    let daemon = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(2));
            std::os::unix::fs::symlink(yard.path("c"), yard.path("link")).unwrap();
        });
        yard.serve(&["a", "b", "link", "--wait", "6"])
    });
    let report: Report = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
    let states: Vec<&str> = report.members.iter().map(|member| member.state.as_str()).collect();
    assert_eq!(states, ["in sync", "out", "in sync"], "{}", daemon.complaints());
}

/// The one that is gone had used up the time, and the other was left out for good, at its first error.
#[test]
fn a_device_that_was_added_and_fails_for_a_moment_is_asked_again_though_one_that_is_named_never_comes() {
    let yard = yard();
    let Some(disk) = Disk::new(&yard.path("mount"), 64 * MIB) else { return };
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["pool", "add", disk.path().to_str().unwrap()]).good();
    daemon.stop();
    fs::rename(yard.path("a"), yard.path("gone")).unwrap();
    disk.die();
    let _daemon = thread::scope(|scope| {
        scope.spawn(|| {
            // While it is asked again: behind what the one that is gone is waited for.
            thread::sleep(Duration::from_secs(7));
            disk.speak();
        });
        yard.serve(&["a", "b", "--wait", "5"])
    });
    let report: Report = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
    let states: Vec<&str> = report.members.iter().map(|member| member.state.as_str()).collect();
    assert_eq!(states, ["out", "in sync", "in sync"]);
}

/// A loop device outlives its file, as a device node may outlive an SSD that was pulled. It was there, and could not be read: it was waited for at
/// each start and each upgrade, and once more where those that were added since made the pool whole.
#[test]
fn a_device_that_was_replaced_and_leads_nowhere_is_not_waited_for_where_the_pool_has_all_others() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["pool", "replace", "b", "c"]).good();
    daemon.stop();
    fs::File::create(yard.path("b")).unwrap();
    // Nobody waits so long for it.
    let daemon = yard.serve(&["a", "b", "--wait", "600"]);
    let said = daemon.complaints();
    assert!(said.contains("c is taken too") && said.contains("b cannot be opened") && said.contains("not needed"), "{said}");
    assert!(!yard.run(&["status"]).told(&["healthy"]).out.contains("has left the pool"));
}

/// A witness file that the power cut, or a full file system, left without content. The next start took it for the witness and made no other; it
/// never voted, nobody was told, and when a cache device died the other one alone was no majority.
#[test]
fn a_witness_that_was_never_written_whole_is_made_again_and_votes_when_a_cache_device_dies() {
    let yard = Yard::new();
    yard.file("a", 64 * MIB);
    let file = yard.file("b", 64 * MIB);
    let Some(b) = Loop::over(&file) else { return };
    let devices = ["a", b.0.to_str().unwrap()];
    yard.run(&["pool", "create", "pool", devices[0], devices[1]]).good();
    yard.file("disk", 64 * MIB);
    let mut state = std::fs::read_dir(yard.path("state")).unwrap().map(|entry| entry.unwrap().path());
    let witness = state.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("witness-")).unwrap();
    let len = || std::fs::metadata(&witness).unwrap().len();
    let whole = len();
    // A part of it is large enough for a vote, and has none.
    std::fs::write(&witness, vec![0; whole as usize / 2]).unwrap();
    yard.serve(&devices).stop();
    let of_a_part = len();
    std::fs::write(&witness, []).unwrap();
    let daemon = yard.serve(&devices);
    yard.run(&["attach", "v", "disk"]).good();
    // The device is cut short under the pool: the kernel fails what is asked of it.
    std::fs::File::options().write(true).open(&file).unwrap().set_len(0).unwrap();
    b.follow_size();
    let mut nbd = yard.nbd("v");
    let (done, ended) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        write_all(&mut nbd, 1);
        check_all(&mut nbd, 1);
        let _ = done.send(());
    });
    let ended = ended.recv_timeout(std::time::Duration::from_secs(180));
    let status = yard.run(&["status"]);
    assert_eq!(ended, Ok(()), "the pool stalls: {status:?}");
    writer.join().unwrap();
    status.told(&["DEGRADED"]);
    assert!(daemon.complaints().contains("was not written whole"), "{}", daemon.complaints());
    daemon.stop();
    assert_eq!((of_a_part, len()), (whole, whole));
}

/// Status and events told to put it back; and it was "in use", by the very daemon that told so.
#[test]
fn a_cache_device_that_failed_is_put_back_while_the_pool_is_served() {
    let yard = Yard::new();
    yard.file("a", 64 * MIB);
    let file = yard.file("b", 64 * MIB);
    let Some(b) = Loop::over(&file) else { return };
    let device = b.0.to_str().unwrap();
    yard.run(&["pool", "create", "pool", "a", device]).good();
    yard.file("disk", 64 * MIB);
    let daemon = yard.serve(&["a", device]);
    yard.run(&["attach", "v", "disk"]).good();
    let has = |bytes: u64| {
        fs::File::options().write(true).open(&file).unwrap().set_len(bytes).unwrap();
        b.follow_size();
    };
    // Its superblock stays, and the rest fails.
    has(MIB);
    write_all(&mut yard.nbd("v"), 1);
    yard.run(&["status"]).told(&["DEGRADED", "has left the pool", "headpond pool add"]);
    // Refused, it is kept from others as before.
    yard.run(&["pool", "add", device]).said(1, &[device, "Nothing was changed"]);
    yard.run(&["pool", "create", "other", device, "--copies", "1", "--force"]).said(1, &[device, "is in use"]);
    has(64 * MIB);
    yard.run(&["pool", "add", device]).told(&[device, "cache device 1", "has its copies"]);
    yard.run(&["status"]).told(&["healthy"]);
    write_all(&mut yard.nbd("v"), 2);
    daemon.kill();
    fs::remove_file(yard.path("a")).unwrap();
    let _daemon = yard.serve(&[device, "--wait", "1"]);
    check_all(&mut yard.nbd("v"), 2);
}

/// A state folder that was full, or read-only as a root file system is after an error, kept the whole pool down, for a vote that nobody needed.
#[test]
fn a_pool_starts_without_its_witness_where_the_state_folder_cannot_be_written() {
    let yard = yard();
    let state = yard.path("state");
    let files = || fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path());
    let witness = files().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("witness-")).unwrap();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    daemon.stop();
    yard.file("other", 64 * MIB);
    for is_there in [true, false] {
        if !is_there {
            fs::remove_file(&witness).unwrap();
        }
        let Some(_read_only) = ReadOnly::over(&state) else { return };
        let daemon = yard.serve(&["a", "b"]);
        let complaints = daemon.complaints();
        assert!(complaints.contains("the pool goes without its witness") && complaints.contains("Read-only"), "{complaints}");
        yard.run(&["status"]).told(&["The witness, a file in the state folder, cannot be written"]);
        write_all(&mut yard.nbd("v"), 1);
        // The next start would not find its disk.
        yard.run(&["attach", "w", "other"]).said(1, &["w was not attached", "Read-only", "Nothing was changed", "Make room"]);
        assert!(!yard.run(&["status"]).good().out.contains("other"));
        daemon.stop();
    }
    // It votes again once it can be written.
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["status"]).told(&["healthy"]);
    daemon.kill();
    assert!(witness.exists());
    fs::remove_file(yard.path("b")).unwrap();
    let _daemon = yard.serve(&["a", "--wait", "1"]);
    yard.run(&["status"]).told(&["DEGRADED"]);
}

/// The devices were cleared before there was a witness: no pool, and nothing of what was there, for want of room in the state folder.
#[test]
fn a_pool_whose_witness_cannot_be_made_leaves_its_devices_as_they_were() {
    let yard = Yard::new();
    let (a, b) = (yard.file("a", 64 * MIB), yard.file("b", 64 * MIB));
    fs::create_dir(yard.path("state")).unwrap();
    for device in [&a, &b] {
        fs::write(device, vec![7; 64 * MIB as usize]).unwrap();
    }
    let before = Contents::of(&[&a, &b]);
    let Some(_read_only) = ReadOnly::over(&yard.path("state")) else { return };
    let parts = ["the witness of the pool, cannot be made", "On the cache devices nothing was changed", "Make room"];
    yard.run(&["pool", "create", "pool", "a", "b", "--force"]).said(1, &parts);
    before.unchanged();
}

/// Both took the same number once, and the one that was refused took the other's device away: a healthy SSD was blamed.
#[test]
fn of_two_devices_added_at_once_each_is_in_or_is_refused_as_it_was() {
    let yard = yard();
    let _daemon = yard.serve(&["a", "b"]);
    let mut refused = 0;
    for _ in 0..6 {
        for name in ["c", "d"] {
            yard.file(name, 64 * MIB);
            fs::File::options().write(true).open(yard.path(name)).unwrap().write_all_at(&[7; 4096], 4096).unwrap();
        }
        let ended = thread::scope(|scope| {
            let yard = &yard;
            let both = ["c", "d"].map(|name| scope.spawn(move || (name, yard.run(&["pool", "add", name]))));
            both.map(|one| one.join().unwrap())
        });
        for (name, ended) in ended {
            if ended.code == Some(0) {
                yard.run(&["pool", "remove", name]).good();
                continue;
            }
            ended.said(1, &["was not added: Another cache device is being added or removed. Nothing was changed"]);
            assert_eq!(fs::read(yard.path(name)).unwrap()[4096..8192], [7; 4096]);
            refused += 1;
        }
    }
    assert!(refused < 12, "none was ever added");
    yard.run(&["status"]).told(&["healthy"]);
}

/// Its first page is in one slot, and the other one, which is not due yet, is of zeroes: that was called damaged, and repair could not help.
#[test]
fn a_pool_to_which_a_device_was_just_added_is_clean_to_a_check() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    // Nothing is written: what changes a page writes its other slot.
    yard.run(&["pool", "add", "c"]).good();
    daemon.stop();
    yard.run(&["check", "a", "b", "c", "--verbose"]).told(&["clean", "has not been written since the device joined the pool"]);
}

/// Mounted, partitioned, or as it is: whatever lies on a volume of the pool waits for the pool, which would wait for it.
#[test]
fn a_volume_of_the_pool_is_neither_its_backing_device_nor_its_cache_device() {
    if !rustix::process::geteuid().is_root() || !fs::exists("/dev/fuse").unwrap() || !fs::exists("/dev/loop-control").unwrap() {
        eprintln!("not tried: it takes root, /dev/fuse and loop devices");
        return;
    }
    let yard = yard();
    let common = ["--frontend", "fuse", "--socket", "control", "--state", "state"];
    let daemon = yard.serve_with(&[&["a", "b"][..], &common].concat()).unwrap();
    let answer: serde_json::Value = serde_json::from_str(&yard.run(&["attach", "d", "disk", "--json"]).good().out).unwrap();
    let place = answer["place"].as_str().unwrap().to_owned();
    for args in [&["attach", "rec", &place][..], &["pool", "add", &place, "--force"], &["pool", "replace", "0", &place]] {
        yard.run(args).said(3, &[&format!("{place} is volume d of this pool. Nothing was changed")]);
    }
    let file = fs::read_to_string(format!("/sys/block/{}/loop/backing_file", place.trim_start_matches("/dev/"))).unwrap();
    yard.run(&["attach", "rec", file.trim()]).said(3, &["is volume d of this pool"]);
    let above = Command::new("losetup").args(["--find", "--show", &place]).output().unwrap();
    let above = Above(String::from_utf8(above.stdout).unwrap().trim().to_owned());
    yard.run(&["attach", "rec", &above.0]).said(3, &["lies on volume d of this pool"]);
    yard.run(&["pool", "add", &above.0]).said(3, &["lies on volume d of this pool"]);
    drop(above);
    yard.run(&["status"]).told(&["healthy"]);
    yard.run(&["detach", "d"]).good();
    daemon.stop();
}

/// A loop device on another one, gone at its end.
struct Above(String);

impl Drop for Above {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// It was advised for ever to put it back.
#[test]
fn a_device_that_has_left_for_good_is_forgotten_where_nothing_lacks_a_copy() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.run(&["pool", "add", "c"]).good();
    write_all(&mut yard.nbd("v"), 1);
    daemon.kill();
    fs::rename(yard.path("c"), yard.path("away")).unwrap();
    let daemon = yard.serve(&["a", "b"]);
    write_all(&mut yard.nbd("v"), 2);
    yard.run(&["status"]).told(&["Cache device 2", "has left the pool", "headpond pool remove 2"]);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let ended = yard.run(&["pool", "remove", "2"]);
        if ended.code == Some(0) {
            ended.told(&["cache device 2", "had left pool pool, and is forgotten"]);
            break;
        }
        // What was on it gets its copies first.
        ended.said(1, &["not all dirty data has its copies without it"]);
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(100));
    }
    assert!(!yard.run(&["status"]).told(&["healthy"]).out.contains("has left the pool"));
    yard.run(&["pool", "remove", "2"]).said(1, &["no cache device 2 in sync"]);
    daemon.kill();
    // That it comes back later changes nothing.
    fs::rename(yard.path("away"), yard.path("c")).unwrap();
    let daemon = yard.serve(&["a", "b", "c"]);
    check_all(&mut yard.nbd("v"), 2);
    yard.run(&["status"]).told(&["healthy"]);
    daemon.kill();
    fs::remove_file(yard.path("b")).unwrap();
    let _daemon = yard.serve(&["a"]);
    check_all(&mut yard.nbd("v"), 2);
    // Now it would be missed.
    yard.run(&["pool", "remove", "1"]).said(1, &["Cache device 1 was not removed", "Put another device in its place"]);
}

/// The one that was out had the same path to the pool's knowledge: it was taken for the one to be replaced, nothing was removed, and who
/// pulled the device at that path pulled one that was needed.
#[test]
fn of_two_devices_known_at_one_path_the_one_that_is_there_is_replaced() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.run(&["pool", "add", "c"]).good();
    write_all(&mut yard.nbd("v"), 1);
    daemon.kill();
    fs::rename(yard.path("a"), yard.path("away")).unwrap();
    fs::rename(yard.path("b"), yard.path("a")).unwrap();
    let daemon = yard.serve(&["a", "c"]);
    write_all(&mut yard.nbd("v"), 2);
    yard.file("d", 64 * MIB);
    yard.run(&["pool", "replace", "a", "d"]).told(&["/d: cache device 0", "cache device 1 (", "nothing on it is needed"]);
    daemon.kill();
    fs::remove_file(yard.path("a")).unwrap();
    let daemon = yard.serve(&["c", "d"]);
    check_all(&mut yard.nbd("v"), 2);
    yard.run(&["status"]).told(&["healthy"]);
    daemon.stop();
}

/// The first number that was free was taken, be it nobody's or another dead one's: the one that was replaced stayed in the list, with the advice to put
/// another in its place, for ever.
#[test]
fn who_is_replaced_when_it_is_out_is_the_one_whose_number_the_new_one_gets() {
    let yard = yard();
    for name in ["d", "e", "f"] {
        yard.file(name, 64 * MIB);
    }
    let numbers = || {
        let report: Report = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
        assert!(report.members.iter().all(|member| member.state == "in sync") && report.advice.is_empty(), "{report:?}");
        report.members.iter().map(|member| member.number).collect::<Vec<_>>()
    };
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["pool", "replace", "0", "c"]).told(&["/c: cache device 2", "cache device 0"]);
    assert_eq!(numbers(), [1, 2]);
    daemon.stop();
    // 0 is nobody, and 2 dies.
    fs::rename(yard.path("c"), yard.path("dead")).unwrap();
    let daemon = yard.serve(&["b", "--wait", "1"]);
    yard.run(&["pool", "replace", "2", "d"]).told(&["/d: cache device 2"]);
    assert_eq!(numbers(), [1, 2]);
    // The same of who is only added.
    daemon.stop();
    fs::rename(yard.path("d"), yard.path("dead")).unwrap();
    let daemon = yard.serve(&["b", "--wait", "1"]);
    yard.run(&["pool", "add", "e"]).told(&["/e: cache device 2"]);
    assert_eq!(numbers(), [1, 2]);
    // Of two that are dead the one that is named.
    yard.run(&["pool", "add", "f"]).told(&["/f: cache device 0"]);
    yard.file("g", 64 * MIB);
    yard.run(&["pool", "add", "g"]).told(&["/g: cache device 3"]);
    daemon.stop();
    for dead in ["e", "f"] {
        fs::rename(yard.path(dead), yard.path("dead")).unwrap();
        yard.serve(&["b", "--wait", "1"]).stop();
    }
    let _daemon = yard.serve(&["b", "--wait", "1"]);
    yard.file("h", 64 * MIB);
    yard.run(&["pool", "replace", "2", "h"]).told(&["/h: cache device 2"]);
    yard.run(&["status"]).told(&["Cache device 0", "has left the pool"]);
    yard.file("i", 64 * MIB);
    yard.run(&["pool", "replace", "0", "i"]).told(&["/i: cache device 0"]);
    assert_eq!(numbers(), [0, 1, 2, 3]);
}

/// Where it is was noted when all had been copied, which may take hours. After a crash meanwhile the pool started without the device, voted it
/// out, and what was dirty had one copy again; or it did not start.
#[test]
fn a_device_that_was_just_taken_is_found_by_the_next_start_though_not_all_was_copied() {
    for end in [Daemon::kill, Daemon::stop] {
        ends_while_it_copies(end);
    }
}

/// A pool whose second cache device is away, and so many MiB of which the first has the only copy. What has no disk is not written back: it is copied
/// to the next that comes, all of it. A `spare` device is there.
fn much_to_copy(yard: &Yard, spare: &str, mib: u64) {
    for name in ["a", "b", spare] {
        yard.file(name, 1024 * MIB);
    }
    yard.run(&["pool", "create", "pool", "a", "b"]).good();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["volume", "create", "v", "--size", &format!("{mib}MiB")]).good();
    let mut nbd = yard.nbd("v");
    for part in 0..mib {
        nbd.write(part * MIB, &vec![part as u8 + 1; MIB as usize], false).unwrap();
    }
    drop(nbd);
    daemon.kill();
    fs::rename(yard.path("b"), yard.path("away")).unwrap();
}

fn ends_while_it_copies(end: fn(Daemon)) {
    let yard = Yard::new();
    much_to_copy(&yard, "c", 48);
    let daemon = yard.serve(&["a"]);
    let control = yard.path("control");
    let added = thread::scope(|scope| {
        let adding = scope.spawn(|| yard.run(&["pool", "add", "c"]));
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let report: Report = serde_json::from_value(call(&control, &Call::Status, |_| {}).unwrap()).unwrap();
            // The pool's members have agreed on it by then.
            let is_taken = |member: &Member| member.number == 1 && member.state == "in sync" && member.dirty_bytes > 0;
            if report.members.iter().any(is_taken) {
                break;
            }
            assert!(Instant::now() < until, "{report:?}");
        }
        let upgrade = Call::Upgrade { program: env!("CARGO_BIN_EXE_headpond").into(), cut: true };
        if let Err(refused) = call(&control, &upgrade, |_| {}) {
            assert!(refused.to_string().contains("is being added or removed. Nothing was changed"), "{refused}");
        }
        end(daemon);
        adding.join().unwrap()
    });
    if added.code == Some(0) {
        println!("not shown: all was copied before the daemon could be ended");
    }
    fs::rename(yard.path("away"), yard.path("b")).unwrap();
    // As before, by whoever knows nothing of the new one.
    let daemon = yard.serve(&["a", "b"]);
    assert!(daemon.complaints().contains("c is taken too"), "{}", daemon.complaints());
    assert!(!yard.run(&["status"]).good().out.contains("has left the pool"));
    let mut nbd = yard.nbd("v");
    for part in 0..48 {
        assert!(nbd.read(part * MIB, MIB as usize).unwrap() == [part as u8 + 1; MIB as usize], "MiB {part}");
    }
}

/// One that was refused was open to everybody from then on.
#[test]
fn a_device_that_has_left_and_is_not_taken_back_is_kept_from_others_as_before() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    daemon.stop();
    fs::rename(yard.path("b"), yard.path("away")).unwrap();
    yard.serve(&["a"]).stop();
    fs::rename(yard.path("away"), yard.path("b")).unwrap();
    let _daemon = yard.serve(&["a", "b"]);
    let is_kept = || matches!(Claim::take(&yard.path("b"), Duration::ZERO), Err(ClaimError::Held { .. }));
    assert!(is_kept());
    // Somebody who does not ask for a claim has made swap space of it.
    let b = fs::File::options().write(true).open(yard.path("b")).unwrap();
    b.write_all_at(&[0; 512 << 10], 0).unwrap();
    b.write_all_at(&[0; 512 << 10], 64 * MIB - (512 << 10)).unwrap();
    b.write_all_at(b"SWAPSPACE2", 4086).unwrap();
    let before = Contents::of(&[&yard.path("b")]);
    yard.run(&["pool", "add", "b"]).said(3, &["b holds swap space", "Nothing was changed"]);
    before.unchanged();
    assert!(is_kept());
    yard.run(&["pool", "add", "b", "--force"]).told(&["/b: cache device 1"]);
}

/// It was told of as added, and the one that it was to replace was taken out next, as far as the pool let go of it.
#[test]
fn a_device_that_joins_and_has_left_again_is_not_told_of_as_added_and_replaces_nothing() {
    let yard = Yard::new();
    let Some(disk) = Disk::new(&yard.path("mount"), 1024 * MIB) else { return };
    let new = disk.path().display().to_string();
    much_to_copy(&yard, "d", 64);
    let _daemon = yard.serve(&["a", "--wait", "1"]);
    let report = || -> Report { serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap() };
    let control = yard.path("control");
    let replaced = thread::scope(|scope| {
        let replacing = scope.spawn(|| yard.run(&["pool", "replace", "a", &new]));
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let report: Report = serde_json::from_value(call(&control, &Call::Status, |_| {}).unwrap()).unwrap();
            // The pool's members have agreed on it, and it has some of its copies.
            let is_taken = |member: &Member| member.number == 1 && member.state == "in sync" && member.dirty_bytes > 0;
            if report.members.iter().any(is_taken) {
                break;
            }
            assert!(!replacing.is_finished() && Instant::now() < until, "{report:?}");
        }
        disk.die();
        replacing.join().unwrap()
    });
    replaced.said(1, &[&new, "has joined the pool, and has left it again", "No other cache device was taken out", "add another"]);
    let now = report();
    let states: Vec<(u8, &str)> = now.members.iter().map(|member| (member.number, member.state.as_str())).collect();
    assert_eq!(states, [(0, "in sync"), (1, "out")]);
    // It is the pool's until another one has its number.
    assert_eq!(now.members[1].path.as_deref(), Some(new.as_str()));
    assert!(matches!(Claim::take(&disk.path(), Duration::ZERO), Err(ClaimError::Held { .. })));
    yard.run(&["pool", "add", "d"]).told(&["/d: cache device 1", "has its copies"]);
    let mut nbd = yard.nbd("v");
    for part in 0..64 {
        assert!(nbd.read(part * MIB, MIB as usize).unwrap() == vec![part as u8 + 1; MIB as usize], "MiB {part}");
    }
}

/// It was refused, and claimed all the same, until the daemon ended.
#[test]
fn what_lies_where_a_device_was_that_has_left_is_left_to_its_owner_when_it_is_not_added() {
    let yard = yard();
    yard.serve(&["a", "b"]).stop();
    fs::rename(yard.path("b"), yard.path("away")).unwrap();
    let b = yard.file("b", 64 * MIB);
    fs::File::options().write(true).open(&b).unwrap().write_all_at(b"SWAPSPACE2", 4086).unwrap();
    let _daemon = yard.serve(&["a"]);
    yard.run(&["pool", "add", "b"]).said(3, &["b holds swap space", "Nothing was changed"]);
    drop(Claim::take(&b, Duration::ZERO).unwrap());
    yard.run(&["pool", "add", "b", "--force"]).told(&["/b: cache device 1"]);
}

/// Each start was refused, for good: had the device been pulled, it would have gone on.
#[test]
fn a_pool_starts_though_a_device_is_named_yet_that_was_replaced_or_wiped() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    write_all(&mut yard.nbd("v"), 1);
    yard.run(&["pool", "replace", "0", "c"]).told(&["cache device 0", "take it out of `devices` in the configuration"]);
    write_all(&mut yard.nbd("v"), 2);
    daemon.kill();
    let a = yard.path("a");
    let before = Contents::of(&[&a]);
    for named in [&["a", "b", "c"][..], &["a", "b"], &["b", "a"]] {
        let daemon = yard.serve(named);
        let said = daemon.complaints();
        assert!(said.contains("a is passed over") && said.contains("take it out of `devices`"), "{said}");
        check_all(&mut yard.nbd("v"), 2);
        yard.run(&["status"]).told(&["healthy"]);
        // It is nobody's.
        drop(Claim::take(&a, Duration::ZERO).unwrap());
        daemon.kill();
    }
    before.unchanged();
    // Nothing of a pool is found at all.
    yard.try_serve(&["a"]).err().expect("a is no cache device any more").said(2, &["a is no cache device of a pool"]);
    // One that is to be a member counts as one that is not there; it is not written to, and of too few others both is said.
    let mut files = fs::read_dir(yard.path("state")).unwrap().map(|entry| entry.unwrap().path());
    let witness = files.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("witness-")).unwrap();
    fs::rename(&witness, yard.path("kept")).unwrap();
    fs::rename(yard.path("c"), yard.path("away")).unwrap();
    let c = yard.file("c", 64 * MIB);
    let before = Contents::of(&[&c]);
    let parts = ["newest state may be on what is missing", "c was named too, and holds nothing known"];
    yard.try_serve(&["b", "c", "--wait", "1"]).err().expect("too few votes").said(1, &parts);
    fs::rename(yard.path("kept"), &witness).unwrap();
    let daemon = yard.serve(&["b", "c", "--wait", "1"]);
    assert!(daemon.complaints().contains("c is passed over"), "{}", daemon.complaints());
    yard.run(&["status"]).told(&["DEGRADED"]);
    check_all(&mut yard.nbd("v"), 2);
    before.unchanged();
    yard.run(&["pool", "add", "c"]).told(&["has its copies"]);
    yard.run(&["status"]).told(&["healthy"]);
}

/// A pool whose first device was replaced, with what is written to it.
fn with_one_replaced() -> Yard {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    write_all(&mut yard.nbd("v"), 1);
    yard.run(&["pool", "replace", "0", "c"]).good();
    daemon.kill();
    yard
}

/// How long a start with these arguments takes, what it says on the way, and whether all is there.
fn starts(yard: &Yard, args: &[&str]) -> (Duration, String, Daemon) {
    let begun = Instant::now();
    let daemon = yard.serve(args);
    let (took, said) = (begun.elapsed(), daemon.complaints());
    check_all(&mut yard.nbd("v"), 1);
    yard.run(&["status"]).told(&["healthy"]);
    (took, said, daemon)
}

/// A file system was made on it, and mounted; or another pool. Each start of the pool that it had left was refused.
#[test]
fn a_pool_starts_though_a_device_is_named_yet_that_was_replaced_and_is_in_use_by_its_owner() {
    let yard = with_one_replaced();
    let (all, a) = (["a", "b", "c", "--wait", "30"], yard.path("a"));
    let mounted = Claim::take(&a, Duration::ZERO).unwrap();
    for named in [&all[..], &["a", "b", "--wait", "30"]] {
        let (took, said, daemon) = starts(&yard, named);
        assert!(took < Duration::from_secs(20), "it was waited for: {took:?}");
        assert_eq!(said.matches("a is passed over").count(), 1, "{said}");
        daemon.kill();
    }
    drop(mounted);
    yard.run(&["pool", "create", "another", "a", "--copies", "1"]).good();
    let is_another = |said: &str| said.contains("a is passed over") && said.contains("of pool another (");
    let (_, said, daemon) = starts(&yard, &all);
    assert!(is_another(&said), "{said}");
    let other = ["a", "--state", "state", "--frontend", "nbd", "--socket", "other", "--nbd", "others"];
    let another = yard.serve_with(&other).unwrap_or_else(|ended| panic!("the other pool does not start: {ended:?}"));
    daemon.kill();
    let (took, said, daemon) = starts(&yard, &all);
    assert!(took < Duration::from_secs(20) && is_another(&said), "{took:?}: {said}");
    daemon.kill();
    another.stop();
    // Which of the two is meant cannot be told, or one of the pool's own is missing.
    let refused = |args: &[&str]| {
        let parts = ["belongs to pool", "pool another", "Nothing was changed"];
        yard.try_serve(args).err().expect("devices of two pools").said(3, &parts);
    };
    refused(&["a", "b"]);
    fs::rename(yard.path("c"), yard.path("away")).unwrap();
    // It may be late: that is tried again.
    let parts = ["belongs to pool", "pool another", "c is named too, and is not there", "Nothing was changed"];
    yard.try_serve(&["a", "b", "c", "--wait", "1"]).err().expect("devices of two pools").said(1, &parts);
}

/// What was there said which pool is meant before the others were waited for: the other pool was served in this one's place. And where its own
/// daemon had that device, all of the time was waited for that one, and none for the others.
#[test]
fn a_pool_whose_devices_are_late_is_waited_for_though_one_that_it_had_once_is_a_whole_pool_by_now() {
    let yard = with_one_replaced();
    yard.run(&["pool", "create", "another", "a", "--copies", "1"]).good();
    let starts_late = || {
        for name in ["b", "c"] {
            fs::rename(yard.path(name), yard.path(&format!("{name}-away"))).unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_secs(2));
                for name in ["b", "c"] {
                    fs::rename(yard.path(&format!("{name}-away")), yard.path(name)).unwrap();
                }
            });
            starts(&yard, &["a", "b", "c", "--wait", "30"])
        })
    };
    let (_, said, daemon) = starts_late();
    assert!(daemon.said.starts_with("pool pool is up") && said.contains("of pool another ("), "{}: {said}", daemon.said);
    daemon.kill();
    let other = ["a", "--state", "state", "--frontend", "nbd", "--socket", "other", "--nbd", "others"];
    let another = yard.serve_with(&other).unwrap_or_else(|ended| panic!("the other pool does not start: {ended:?}"));
    let (_, said, daemon) = starts_late();
    assert!(said.contains("of pool another ("), "{said}");
    daemon.stop();
    another.stop();
}

/// Half of the devices that are named are not there: had this host not seen that one as the pool's own, another pool might be meant.
#[test]
fn a_device_that_was_pulled_and_has_left_is_not_waited_for_at_each_start() {
    let yard = yard();
    let daemon = yard.serve(&["a", "b"]);
    fs::remove_file(yard.path("b")).unwrap();
    daemon.stop();
    yard.serve(&["a", "b", "--wait", "1"]).stop();
    let begun = Instant::now();
    let daemon = yard.serve(&["a", "b", "--wait", "30"]);
    assert!(begun.elapsed() < Duration::from_secs(20), "it was waited for: {:?}", begun.elapsed());
    let said = daemon.complaints();
    assert!(said.contains("the pool starts without it: b cannot be opened"), "{said}");
    daemon.stop();
}

/// It was left out at the first look, so that the pool was not whole, and the one that was pulled was waited for.
#[test]
fn a_device_that_was_added_and_is_held_for_a_moment_is_taken_before_one_that_was_pulled_is_waited_for() {
    let yard = with_one_replaced();
    fs::remove_file(yard.path("a")).unwrap();
    let held = Claim::take(&yard.path("c"), Duration::ZERO).unwrap();
    let (_, said, _daemon) = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(2));
            drop(held);
        });
        starts(&yard, &["a", "b", "--wait", "600"])
    });
    assert!(said.contains("c is taken too") && said.contains("a cannot be opened"), "{said}");
}

/// An error of its own refused the start, though the others suffice: that it dies may be why its daemon was killed.
#[test]
fn a_device_that_goes_away_while_its_holder_is_waited_for_is_as_good_as_not_there() {
    let yard = Yard::new();
    let all = ["a", "b", "c"];
    all.iter().for_each(|name| drop(yard.file(name, 64 * MIB)));
    yard.run(&[&["pool", "create", "pool"], &all[..]].concat()).good();
    let held = Claim::take(&yard.path("c"), Duration::ZERO).unwrap();
    let daemon = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(2));
            fs::rename(yard.path("c"), yard.path("gone")).unwrap();
            drop(held);
        });
        yard.serve(&["a", "b", "c", "--wait", "5"])
    });
    yard.run(&["status"]).told(&["Cache device 2", "has left the pool"]);
    daemon.stop();
}

/// Each was asked for ten seconds, one after the other, and then once more.
#[test]
fn devices_that_were_added_and_are_silent_are_waited_for_once_and_together() {
    let yard = yard();
    let mounts = ["first", "second"].map(|name| Disk::new(&yard.path(name), 64 * MIB));
    let [Some(first), Some(second)] = mounts else { return };
    let daemon = yard.serve(&["a", "b"]);
    for device in [&yard.path("c"), &first.path(), &second.path()] {
        yard.run(&["pool", "add", device.to_str().unwrap()]).good();
    }
    daemon.stop();
    [&first, &second].iter().for_each(|disk| disk.fall_silent());
    let begun = Instant::now();
    let daemon = yard.serve(&["a", "b", "c", "--wait", "30"]);
    assert!(begun.elapsed() < Duration::from_secs(19), "{:?}", begun.elapsed());
    daemon.kill();
    [&first, &second].iter().for_each(|disk| disk.speak());
}

/// It was waited for at each start and each upgrade, for all of `--wait`, and another device was to be put in its place, though none was missing.
#[test]
fn a_device_that_was_replaced_and_pulled_and_is_named_yet_is_not_waited_for() {
    let yard = with_one_replaced();
    fs::remove_file(yard.path("a")).unwrap();
    let (took, said, daemon) = starts(&yard, &["a", "b", "c", "--wait", "30"]);
    assert!(took < Duration::from_secs(20), "it was waited for: {took:?}");
    assert_eq!(said.matches("named, and not needed: a cannot be opened").count(), 1, "{said}");
    assert!(said.contains("take it out of `devices`") && !said.contains("Put another device"), "{said}");
    daemon.stop();
}
