//! Volumes without a backing device: made, used, killed under, grown, deleted, copied on the worst day; and a journal on one.

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Daemon, MIB, Nbd, Yard};
use headpond_host::report::{Report, Volume};

fn report(yard: &Yard) -> Report {
    serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap()
}

fn volume(yard: &Yard, name: &str) -> Volume {
    let report = report(yard);
    report.volumes.iter().find(|volume| volume.name == name).unwrap_or_else(|| panic!("no {name}: {report:?}")).clone()
}

/// A pool of two cache devices of 256 MiB.
fn pool(yard: &Yard) {
    yard.file("a", 256 * MIB);
    yard.file("b", 256 * MIB);
    yard.run(&["pool", "create", "pool", "a", "b"]).good();
}

/// A pool with a volume `j` of 4 MiB without a backing device.
fn made(yard: &Yard) -> Daemon {
    pool(yard);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["volume", "create", "j", "--size", "4MiB"]).told(&["volume j: 4 MiB at nbd+unix", "on the cache devices alone"]);
    daemon
}

fn stamp(n: u64) -> Vec<u8> {
    let mut bytes = vec![n as u8 ^ 0x5a; 4096];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

/// Each block of the first MiB, in no order.
fn write_all(nbd: &mut Nbd, round: u64) {
    for n in 0..256 {
        nbd.write(n * 7 % 256 * 4096, &stamp(round + n), n % 16 == 0).unwrap();
    }
    nbd.flush().unwrap();
}

fn check_all(nbd: &mut Nbd, round: u64) {
    for n in 0..256 {
        assert!(nbd.read(n * 7 % 256 * 4096, 4096).unwrap() == stamp(round + n), "block {n} of round {round}");
    }
}

#[test]
fn what_is_written_survives_a_kill_an_upgrade_and_a_clean_stop_and_no_disk_is_looked_for() {
    let yard = Yard::new();
    let daemon = made(&yard);
    let mut nbd = yard.nbd("j");
    assert_eq!((nbd.size, nbd.read(MIB, 4096).unwrap()), (4 * MIB, vec![0; 4096]));
    write_all(&mut nbd, 1);
    // Of what is not flushed, all that was acknowledged is there as well. Parts of blocks too.
    nbd.write(2 * MIB + 512, &[9; 1024], false).unwrap();
    nbd.trim(0, 8192, false).unwrap();
    daemon.kill();
    let daemon = yard.serve(&["a", "b"]);
    assert!(daemon.said.contains("volume j at nbd") && !daemon.complaints().contains("--backing"), "{}", daemon.complaints());
    let mut nbd = yard.nbd("j");
    assert_eq!(nbd.read(0, 8192).unwrap(), [0; 8192]);
    assert_eq!(nbd.read(2 * MIB, 4096).unwrap(), [&[0; 512][..], &[9; 1024], &[0; 2560]].concat());
    write_all(&mut nbd, 2);
    drop(nbd);
    let program = env!("CARGO_BIN_EXE_headpond");
    yard.run(&["upgrade", "--program", program, "--cut"]).told(&["is served by Headpond"]);
    check_all(&mut yard.nbd("j"), 2);
    daemon.stop();
    let daemon = yard.serve(&["a", "b"]);
    check_all(&mut yard.nbd("j"), 2);
    daemon.stop();
    // Neither was a place remembered, nor is one taken.
    for entry in fs::read_dir(yard.path("state")).unwrap() {
        let path = entry.unwrap().path();
        let is_places = path.file_name().unwrap().to_string_lossy().starts_with("volumes-");
        assert!(!is_places || !fs::read_to_string(&path).unwrap().contains("\"j\""), "{}", path.display());
    }
    yard.file("disk", 4 * MIB);
    let refused = yard.try_serve(&["a", "b", "--backing", "j=disk"]).err().expect("j has no disk");
    refused.said(2, &["Volume j has no backing device", "Leave out --backing j="]);
    let _daemon = yard.serve(&["a", "b"]);
    check_all(&mut yard.nbd("j"), 2);
}

#[test]
fn a_volume_that_is_too_large_is_refused_with_the_size_that_would_do() {
    let yard = Yard::new();
    let _daemon = made(&yard);
    let said = yard.run(&["volume", "create", "big", "--size", "1GiB"]).said(1, &["was not created", "have room for"]).err;
    let most = said.split("room for ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let above = (most.parse::<u64>().unwrap() + 1).to_string();
    yard.run(&["volume", "create", "big", "--size", &above]).said(1, &["Nothing was changed"]);
    yard.run(&["volume", "create", "big", "--size", &most]).told(&["volume big"]);
    for (name, size, why) in [
        ("j", "1MiB", "There is a volume j on pool pool already"),
        (".j", "1MiB", "is not a name for a volume"),
        ("k", "0", "Name a size of 4 KiB or more"),
        ("k", "16EiB", "is no size"),
    ] {
        let ended = yard.run(&["volume", "create", name, "--size", size]);
        assert!(ended.code != Some(0) && ended.err.contains(why), "{name} {size}: {ended:?}");
    }
    assert_eq!(report(&yard).volumes.len(), 2);
    yard.run(&["volume", "delete", "big", "--throw-away"]).good();
    yard.run(&["volume", "create", "odd", "--size", "5000"]).told(&["8 KiB", "5000 bytes were rounded up to 8192"]);
    assert_eq!(yard.nbd("odd").size, 8192);
}

#[test]
fn what_takes_a_disk_is_refused_and_the_volume_is_served_on() {
    let yard = Yard::new();
    let _daemon = made(&yard);
    let mut nbd = yard.nbd("j");
    write_all(&mut nbd, 3);
    for command in [
        &["detach", "j"][..],
        &["detach", "j", "--throw-away"],
        &["detach", "j", "--give-up-lost"],
        &["mode", "j", "write-through"],
        &["mode", "j", "write-back"],
        &["flush", "j"],
        &["pin", "j:0+4096"],
        &["unpin", "j:0+4096"],
        &["preload", "j:0+4096"],
    ] {
        yard.run(command).said(3, &["no backing device", "Nothing was changed", "`headpond volume delete`"]);
        // The old connection and a new one.
        check_all(&mut nbd, 3);
        check_all(&mut yard.nbd("j"), 3);
    }
    yard.file("disk", 4 * MIB);
    yard.run(&["attach", "v", "disk"]).good();
    yard.run(&["volume", "delete", "v", "--throw-away"])
        .said(3, &["has a backing device", "Nothing was changed", "headpond detach v"]);
    yard.run(&["volume", "delete", "w"]).said(1, &["There is no volume w", "j, v"]);
    let j = volume(&yard, "j");
    assert!(j.serving && j.mode == "write-back" && j.without_disk && j.place.is_some(), "{j:?}");
}

#[test]
fn status_says_where_it_is_and_counts_nothing_of_it_as_waiting_for_a_disk() {
    let yard = Yard::new();
    let daemon = made(&yard);
    write_all(&mut yard.nbd("j"), 1);
    let j = volume(&yard, "j");
    assert_eq!((j.dirty_bytes, j.kept_bytes, j.backing, j.identity.as_str()), (0, MIB, None, ""));
    let now = report(&yard);
    assert!(now.set_aside_bytes >= 2 * j.bytes && now.advice.is_empty(), "{now:?}");
    yard.run(&["status"]).told(&[
        "none: on the cache devices alone",
        "set aside for volumes without a backing device: ",
        "1 MiB hold data",
    ]);
    let stat = yard.run(&["stat", "--json"]).good().out;
    let stat: serde_json::Value = serde_json::from_str(stat.lines().last().unwrap()).unwrap();
    assert_eq!((&stat["dirty_bytes"], &stat["disks"]), (&0.into(), &serde_json::json!([])));
    yard.run(&["events"]).told(&["volume-created: Volume j of 4194304 bytes"]);
    daemon.stop();
    // What frees the cache devices does not without a word.
    yard.run(&["pool", "destroy", "a", "b"])
        .said(3, &["volume j, which has no backing device", "nowhere else", "Nothing was changed"]);
    let _daemon = yard.serve(&["a", "b"]);
    check_all(&mut yard.nbd("j"), 1);
}

#[test]
fn one_grows_to_a_size_that_is_named() {
    let yard = Yard::new();
    let daemon = made(&yard);
    write_all(&mut yard.nbd("j"), 1);
    yard.run(&["grow", "j"]).said(3, &["no backing device whose size", "headpond grow j --to SIZE"]);
    yard.run(&["grow", "j", "--to", "2MiB"]).said(3, &["only become larger", "Nothing was changed"]);
    yard.run(&["grow", "j", "--to", "1GiB"]).said(1, &["have room for", "Nothing was changed"]);
    yard.run(&["grow", "j", "--to", "6000001"]).told(&["grown from 4 MiB to 5.7 MiB", "rounded up to 6000640"]);
    let mut nbd = yard.nbd("j");
    assert_eq!(nbd.size, 6_000_640);
    nbd.write(6_000_640 - 4096, &[5; 4096], true).unwrap();
    daemon.kill();
    let _daemon = yard.serve(&["a", "b"]);
    let mut nbd = yard.nbd("j");
    check_all(&mut nbd, 1);
    assert_eq!((nbd.size, nbd.read(6_000_640 - 4096, 4096).unwrap()), (6_000_640, vec![5; 4096]));
}

#[test]
fn one_is_deleted_only_when_its_data_may_go_and_then_for_good() {
    let yard = Yard::new();
    let daemon = made(&yard);
    write_all(&mut yard.nbd("j"), 1);
    yard.run(&["volume", "delete", "j"])
        .said(3, &["holds 1048576 bytes", "would be gone", "Nothing was changed", "delete j --throw-away"]);
    let mut nbd = yard.nbd("j");
    check_all(&mut nbd, 1);
    yard.run(&["volume", "delete", "j", "--throw-away"]).told(&["volume j: deleted; 1 MiB that were on it are thrown away"]);
    assert!(nbd.read(0, 4096).is_err() && Nbd::connect(&yard.path("nbd"), "j").is_err());
    assert_eq!((report(&yard).volumes.len(), report(&yard).set_aside_bytes), (0, 0));
    yard.run(&["events"]).told(&["volume-deleted: Volume j was deleted, with the 1048576 bytes on it"]);
    daemon.kill();
    let _daemon = yard.serve(&["a", "b"]);
    assert!(report(&yard).volumes.is_empty());
    // Another one of the name is empty.
    yard.run(&["volume", "create", "j", "--size", "4MiB"]).good();
    assert_eq!(yard.nbd("j").read(0, 4096).unwrap(), [0; 4096]);
}

#[test]
fn a_cache_device_that_is_lost_leaves_a_copy_and_another_one_gets_its_own() {
    let yard = Yard::new();
    let daemon = made(&yard);
    write_all(&mut yard.nbd("j"), 1);
    daemon.kill();
    fs::remove_file(yard.path("b")).unwrap();
    let daemon = yard.serve(&["a"]);
    let mut nbd = yard.nbd("j");
    check_all(&mut nbd, 1);
    write_all(&mut nbd, 2);
    yard.run(&["status"]).told(&["DEGRADED", "headpond pool add DEVICE"]);
    yard.file("c", 256 * MIB);
    yard.run(&["pool", "add", "c"]).told(&["has its copies"]);
    assert_eq!((report(&yard).lacking_bytes, report(&yard).degraded), (0, false));
    check_all(&mut nbd, 2);
    daemon.kill();
    // What is on the new one is all there is.
    fs::remove_file(yard.path("a")).unwrap();
    let _daemon = yard.serve(&["c"]);
    check_all(&mut yard.nbd("j"), 2);
}

#[test]
fn a_cache_device_without_which_there_would_be_too_little_room_stays() {
    let yard = Yard::new();
    ["a", "b", "c"].iter().for_each(|name| drop(yard.file(name, 64 * MIB)));
    // Few segments, of which half are set aside at most.
    yard.run(&["pool", "create", "pool", "a", "b", "c", "--segment", "4MiB"]).good();
    let _daemon = yard.serve(&["a", "b", "c"]);
    yard.run(&["volume", "create", "k", "--size", "7MiB"]).good();
    write_all(&mut yard.nbd("k"), 1);
    yard.run(&["pool", "remove", "c"]).said(1, &["too little room", "Nothing was changed", "delete such a volume"]);
    yard.run(&["volume", "delete", "k", "--throw-away"]).good();
    yard.run(&["pool", "remove", "c"]).told(&["nothing on it is needed"]);
}

#[test]
fn the_offline_tools_leave_it_as_it_is_and_copy_it_when_they_are_told_to() {
    let yard = Yard::new();
    let daemon = made(&yard);
    yard.file("disk", 4 * MIB);
    yard.run(&["attach", "v", "disk"]).good();
    write_all(&mut yard.nbd("j"), 1);
    yard.nbd("v").write(8192, &[7; 4096], true).unwrap();
    daemon.kill();
    yard.run(&["check", "a", "b"]).told(&["volume j: 4 MiB, 1 MiB on the cache devices alone, all of it can be read", "clean"]);
    yard.run(&["list-damaged", "a", "b"]).told(&["all data can be read"]);
    yard.run(&["repair", "--dry-run", "a", "b"]).told(&["nothing to mend"]);
    yard.run(&["dump", "a", "b"]).told(&["j"]);
    let named = |what: &[&str]| yard.run(&[&["writeback", "a", "b", "--state", "state"], what].concat());
    named(&["--backing", "j=disk"]).said(2, &["Volume j has no backing device", "--save j=FILE"]);
    named(&["--save", "v=file"]).said(2, &["Volume v has a backing device", "--backing v=DEVICE"]);
    named(&["--save", "disk"]).said(3, &["disk is there already", "Name a new file"]);
    named(&["--save", "w=file"]).said(2, &["no volume \"w\" without", "Such volumes are: j"]);
    yard.file("wrong", 4 * MIB);
    named(&["--save", "file", "--backing", "v=wrong"]).said(3, &["is another device"]);
    assert!(!yard.path("file").exists(), "it was refused, and has left a file");
    // A copy alone changes nothing on the cache devices.
    let before = common::Contents::of(&[&yard.path("a"), &yard.path("b")]);
    named(&["--save", "j=copy", "--json"]);
    before.unchanged();
    let copy = fs::read(yard.path("copy")).unwrap();
    assert_eq!(copy.len() as u64, 4 * MIB);
    for n in 0..256 {
        let at = (n * 7 % 256 * 4096) as usize;
        assert!(copy[at..at + 4096] == stamp(1 + n), "block {n} of the copy");
    }
    assert!(copy[MIB as usize..].iter().all(|byte| *byte == 0));
    named(&["--backing", "v=disk", "--save", "again"]).told(&[
        "volume v: ",
        "use its disk alone",
        "volume j: has no backing device; 1 MiB stay on the cache devices; copied to again",
    ]);
    assert!(fs::read(yard.path("again")).unwrap() == copy);
    assert_eq!(fs::read(yard.path("disk")).unwrap()[8192..12288], [7; 4096]);
    // With a cache device and the witness gone, it is not proved to be all; it can be had none the less.
    fs::rename(yard.path("b"), yard.path("away")).unwrap();
    let alone = |what: &[&str]| yard.run(&[&["writeback", "a", "--state", "nowhere"], what].concat());
    alone(&["--save", "late"]).said(3, &["--without-missing"]);
    assert!(!yard.path("late").exists());
    alone(&["--save", "late", "--without-missing"]).told(&["copied to late", "The cache devices were not changed"]);
    assert!(fs::read(yard.path("late")).unwrap() == copy);
    fs::rename(yard.path("away"), yard.path("b")).unwrap();
    let _daemon = yard.serve(&["a", "b"]);
    check_all(&mut yard.nbd("j"), 1);
}

#[test]
fn one_that_may_lack_data_is_refused_and_told_how_to_be_saved_and_given_up() {
    let yard = Yard::new();
    let all = ["a", "b", "c", "d", "e"];
    all.iter().for_each(|name| drop(yard.file(name, 64 * MIB)));
    yard.run(&[&["pool", "create", "pool"][..], &all].concat()).good();
    let daemon = yard.serve(&all);
    yard.run(&["volume", "create", "j", "--size", "4MiB"]).good();
    write_all(&mut yard.nbd("j"), 1);
    daemon.kill();
    fs::remove_file(yard.path("a")).unwrap();
    fs::remove_file(yard.path("b")).unwrap();
    let daemon = yard.serve(&["c", "d", "e", "--without-missing"]);
    assert!(daemon.said.contains("volume j NOT served"), "{}", daemon.said);
    yard.run(&["status"]).told(&["Volume j is not served: it has no backing device", "--save j=FILE", "delete j --throw-away"]);
    yard.run(&["grow", "j", "--to", "8MiB"]).said(3, &["is not served", "`headpond status` says why"]);
    daemon.stop();
    let save = |more: &[&str]| yard.run(&[&["writeback", "c", "d", "e", "--state", "state", "--save", "copy"], more].concat());
    save(&[]).said(3, &["--without-missing", "dirty data of j"]);
    save(&["--without-missing"]).said(1, &["files of --save", "suspect"]);
    // What these devices have is in it.
    let copy = fs::read(yard.path("copy")).unwrap();
    let is_there = |n: &u64| copy[(n * 7 % 256 * 4096) as usize..][..4096] == stamp(1 + n);
    assert_eq!((0..256).filter(is_there).count() as u64 * 4096, volume_bytes(&yard, &["c", "d", "e"]));
    let _daemon = yard.serve(&["c", "d", "e"]);
    yard.run(&["volume", "delete", "j", "--throw-away"]).told(&["volume j: deleted"]);
    yard.run(&["volume", "create", "j", "--size", "4MiB"]).good();
    assert_eq!(yard.nbd("j").read(0, 4096).unwrap(), [0; 4096]);
}

/// What the devices have of the only volume.
fn volume_bytes(yard: &Yard, devices: &[&str]) -> u64 {
    let damaged = yard.run(&[&["list-damaged", "--json", "--state", "state"], devices].concat()).out;
    let damaged: serde_json::Value = serde_json::from_str(&damaged).unwrap();
    assert_eq!(damaged["volumes"][0]["without_disk"], true);
    damaged["volumes"][0]["dirty_bytes"].as_u64().unwrap()
}

/// A program as root, which must end well.
fn run(program: &str, args: &[&str]) -> String {
    let ended = Command::new(program).args(args).output().unwrap();
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(ended.status.success(), "{program} {args:?}: {said}");
    said
}

/// Unmounts what a test has mounted.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// The commands are those of the guide on ext4.
#[test]
fn an_ext4_with_its_journal_on_one_is_whole_after_a_kill() {
    let there = |program: &str| ["/usr/sbin", "/sbin"].iter().any(|folder| Path::new(folder).join(program).exists());
    let may = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists();
    if !may || !["mke2fs", "e2fsck"].iter().all(|it| there(it)) {
        eprintln!("not tried: it takes root, /dev/fuse, loop devices and e2fsprogs");
        return;
    }
    let yard = Yard::new();
    pool(&yard);
    yard.file("disk", 64 * MIB);
    let serve = || yard.serve_with(&["a", "b", "--socket", "control", "--state", "state", "--frontend", "fuse"]).unwrap();
    let daemon = serve();
    yard.run(&["attach", "v", "disk"]).good();
    yard.run(&["volume", "create", "j", "--size", "8MiB"]).good();
    let place = |name: &str| volume(&yard, name).place.unwrap_or_else(|| panic!("{name} has no device"));
    let queue = |what: &str| {
        let name = place("j").trim_start_matches("/dev/").to_owned();
        fs::read_to_string(format!("/sys/block/{name}/queue/{what}")).unwrap().trim().to_owned()
    };
    assert_eq!((queue("rotational"), queue("logical_block_size")), ("0".into(), "512".into()));
    assert_eq!(queue("write_cache"), "write back", "no flush would come");
    run("mke2fs", &["-q", "-b", "4096", "-O", "journal_dev", &place("j")]);
    run("mke2fs", &["-q", "-t", "ext4", "-b", "4096", "-J", &format!("device={}", place("j")), &place("v")]);
    let point = yard.path("mnt");
    fs::create_dir(&point).unwrap();
    let mount = || {
        // Loop devices may have other numbers after a restart than those that the file system knows.
        let journal = format!("journal_path={}", place("j"));
        run("mount", &["-t", "ext4", "-o", &journal, &place("v"), point.to_str().unwrap()]);
        Mounted(point.clone())
    };
    let mounted = mount();
    for n in 0..64 {
        let path = point.join(format!("file{n}"));
        fs::write(&path, vec![n; 20_000]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
    }
    File::open(&point).unwrap().sync_all().unwrap();
    assert!(volume(&yard, "j").kept_bytes > 64 * 4096, "the journal went elsewhere");
    yard.run(&["volume", "delete", "j", "--throw-away"]).said(3, &["was not deleted, and nothing was changed", "in use"]);
    daemon.kill();
    drop(mounted);
    let daemon = serve();
    let mounted = mount();
    for n in 0..64 {
        assert!(fs::read(point.join(format!("file{n}"))).unwrap() == vec![n; 20_000], "file {n}");
    }
    run("umount", &[point.to_str().unwrap()]);
    std::mem::forget(mounted);
    run("e2fsck", &["-fn", "-j", &place("j"), &place("v")]);
    daemon.stop();
}
