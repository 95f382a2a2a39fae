//! Devices with a sector that cannot be read, where a start looks.

mod common;

use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use common::silent::Disk;
use common::{Contents, Daemon, MIB, Yard};
use serde_json::Value;

const KIB: u64 = 1 << 10;
/// A sector of the second superblock's slot.
const SECOND: Range<u64> = 64 * KIB..68 * KIB;

/// The slots of superblocks at the end of a device.
fn last_two(size: u64) -> [Range<u64>; 2] {
    [size - 128 * KIB..size - 64 * KIB, size - 64 * KIB..size]
}

/// Of a pool on these devices, with a volume `w` on a file: it has been served, and stopped.
fn served_before(yard: &Yard, devices: &[&str]) {
    yard.file("file", 16 * MIB);
    let daemon = yard.serve(devices);
    yard.run(&["attach", "w", "file"]).good();
    yard.nbd("w").write(0, &[7; 4096], false).unwrap();
    daemon.stop();
}

/// A cache device that may have bad sectors, and its path.
fn yard_and_disk() -> Option<(Yard, Disk, String)> {
    let yard = Yard::new();
    let disk = Disk::new(&yard.path("mount"), 64 * MIB)?;
    let path = disk.path().display().to_string();
    Some((yard, disk, path))
}

/// It is the only one of a pool that has been served.
fn of_one() -> Option<(Yard, Disk, String)> {
    let (yard, disk, path) = yard_and_disk()?;
    yard.run(&["pool", "create", "pool", &path, "--copies", "1"]).good();
    served_before(&yard, &[&path]);
    Some((yard, disk, path))
}

/// It is one of two, beside `a`.
fn with_a() -> Option<(Yard, Disk, String)> {
    let (yard, disk, path) = yard_and_disk()?;
    yard.file("a", 64 * MIB);
    yard.run(&["pool", "create", "pool", "a", &path]).good();
    served_before(&yard, &["a", &path]);
    Some((yard, disk, path))
}

fn serve_well(yard: &Yard, devices: &[&str]) -> Daemon {
    let daemon = yard.serve(devices);
    assert_eq!(yard.nbd("w").read(0, 4096).unwrap(), [7; 4096]);
    yard.run(&["status"]).told(&["healthy"]);
    daemon
}

/// The device was left out for good, though three of its four superblocks were whole, and had to be added and filled again.
#[test]
fn a_cache_device_with_a_bad_sector_in_one_superblock_serves_on() {
    let Some((yard, disk, path)) = with_a() else { return };
    let [third, fourth] = last_two(64 * MIB);
    for bad in [0..4 * KIB, SECOND, third.clone(), fourth] {
        disk.cannot_read(&[bad]);
        serve_well(&yard, &["a", &path]).stop();
    }
    // Of one superblock both copies: what is left may be older.
    disk.cannot_read(&[0..4 * KIB, third]);
    let daemon = yard.serve(&["a", &path]);
    let complaints = daemon.complaints();
    assert!(complaints.contains(&format!("the pool starts without it: {path} cannot be read")), "{complaints}");
    yard.run(&["status"]).told(&["DEGRADED"]);
    daemon.stop();
}

#[test]
fn a_pool_whose_only_cache_device_has_a_bad_sector_in_one_superblock_starts() {
    let Some((yard, disk, path)) = of_one() else { return };
    disk.cannot_read(&[SECOND]);
    yard.run(&["pool", "list", &path]).told(&["pool pool"]);
    serve_well(&yard, &[&path]).stop();
    let [_, fourth] = last_two(64 * MIB);
    disk.cannot_read(&[SECOND, fourth]);
    yard.try_serve(&[&path]).err().expect("what is left may be older").said(1, &[&path, "cannot be read", "Nothing was changed"]);
}

/// Where both copies of the superblock are that counts, of a pool at rest on these devices.
fn both_of_the_newest(yard: &Yard, devices: &[&str], size: u64) -> [Range<u64>; 2] {
    let dump: Value = serde_json::from_str(&yard.run(&[&["dump", "--json"], devices].concat()).good().out).unwrap();
    let [third, fourth] = last_two(size);
    match dump["pool"]["sequence"].as_u64().unwrap() % 2 {
        0 => [0..4 * KIB, third],
        _ => [SECOND, fourth],
    }
}

/// Found by reading. The offline tools took the newest superblock that could be read, and `repair` wrote that, an older one, over both sectors of the newest:
/// "No data is lost", it said. A start, which had been refused, went on from before a volume was attached, without all that was dirty on it.
#[test]
fn a_superblock_that_cannot_be_read_in_both_copies_is_neither_passed_over_nor_written_over_by_the_offline_tools() {
    let Some((yard, disk, path)) = of_one() else { return };
    let newest = both_of_the_newest(&yard, &[&path], 64 * MIB);
    let before = Contents::of(&[&disk.path(), &yard.path("file")]);
    disk.cannot_read(&newest);
    let checked = yard.run(&["check", &path]).said(1, &["Problems were found"]);
    assert!(checked.out.contains("may be older") && !checked.out.contains("No data is lost"), "{checked:?}");
    let refused = [&*path, "cannot be read in both copies", "may be older", "Nothing was changed"];
    yard.run(&["repair", &path, "--save", "saved"]).said(3, &refused);
    yard.run(&["writeback", &path, "--state", "state", "--backing", "file"]).said(3, &refused);
    yard.run(&["list-damaged", &path]).said(3, &refused);
    assert!(yard.run(&["dump", &path]).out.contains("unreadable"));
    assert!(!yard.path("saved").exists());
    disk.cannot_read(&[]);
    before.unchanged();
    serve_well(&yard, &[&path]).stop();
}

/// The same of a pool whose newest superblock another device has: there it is known what belongs into those sectors.
#[test]
fn a_superblock_that_cannot_be_read_in_both_copies_is_mended_from_another_device_that_is_proved_to_have_the_newest() {
    let Some((yard, disk, path)) = with_a() else { return };
    let newest = both_of_the_newest(&yard, &["a", &path], 64 * MIB);
    disk.cannot_read_until_written(&newest);
    let check = |more: &[&str]| yard.run(&[&["check", "a", &path], more].concat());
    let checked = check(&["--state", "state"]).said(1, &["1 without loss, 0 with"]);
    assert!(checked.out.contains("may be older") && !checked.out.contains("was not named"), "{checked:?}");
    // Without a vote more, the other one may be what is out of date.
    yard.run(&["repair", "a", &path, "--save", "saved"]).said(3, &["Nothing was changed", "cannot be proved"]);
    yard.run(&["repair", "a", &path, "--save", "saved", "--state", "state"]).told(&["2 places"]);
    check(&[]).good();
    serve_well(&yard, &["a", &path]).stop();
}

/// It was read to see that it is no cache device, and after a restart what was dirty could be brought to it by nothing.
#[test]
fn a_disk_with_a_bad_sector_where_a_superblock_would_be_is_served() {
    let yard = Yard::new();
    let Some(disk) = Disk::new(&yard.path("mount"), 16 * MIB) else { return };
    let path = disk.path().display().to_string();
    yard.pool();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", &path]).good();
    yard.nbd("v").write(8 * MIB, &[7; 4096], false).unwrap();
    daemon.kill();
    let [_, fourth] = last_two(16 * MIB);
    disk.cannot_read(&[SECOND, fourth]);
    let daemon = yard.serve(&["a", "b"]);
    assert_eq!(yard.nbd("v").read(8 * MIB, 4096).unwrap(), [7; 4096]);
    assert!(yard.nbd("v").read(SECOND.start, 4096).is_err());
    yard.nbd("v").write(9 * MIB, &[8; 4096], false).unwrap();
    daemon.kill();
    yard.run(&["writeback", "a", "b", "--state", "state", "--backing", &format!("v={path}")]).good();
    disk.cannot_read(&[]);
    // Nor is a cache device taken for one.
    let Some(other) = Disk::new(&yard.path("other"), 64 * MIB) else { return };
    let member = other.path().display().to_string();
    yard.run(&["pool", "create", "second", &member, "--copies", "1"]).good();
    other.cannot_read(&[0..4 * KIB, SECOND]);
    let _daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "x", &member]).said(3, &["is a cache device of pool second", "Nothing was changed"]);
}

/// A pool on one device, or beside `a`, whose daemon died with 59 flushed blocks that its disk does not have. Where the machine was so busy that some had
/// been written there, it is made anew.
fn killed(beside: &[&str]) -> Option<(Yard, Disk, String)> {
    for _ in 0..20 {
        let (yard, disk, path) = yard_and_disk()?;
        beside.iter().for_each(|name| drop(yard.file(name, 64 * MIB)));
        let (devices, copies) = ([beside, &[&path]].concat(), (1 + beside.len()).to_string());
        yard.run(&[&["pool", "create", "pool", "--copies", &copies], &devices[..]].concat()).good();
        // A sweep over it takes longer than the daemon lives.
        yard.file("file", 16 << 30);
        fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
        let daemon = yard.serve(&[&["--config", "toml"], &devices[..]].concat());
        yard.run(&["attach", "v", "modelled:file"]).good();
        yard.run(&["volume", "create", "idle", "--size", "1MiB"]).good();
        let mut nbd = yard.nbd("v");
        (1..60u64).for_each(|n| nbd.write(n * (256 << 20), &[n as u8; 4096], true).unwrap());
        daemon.kill();
        let report: Value = serde_json::from_str(&yard.run(&[&["check", "--json"], &devices[..]].concat()).good().out).unwrap();
        if report["summary"]["volumes"][0]["dirty_bytes"] == 59 * 4096 {
            return Some((yard, disk, path));
        }
    }
    panic!("a machine with a moment to spare");
}

/// What a tool says of these devices.
fn json(yard: &Yard, args: &[&str], devices: &[&str]) -> Value {
    serde_json::from_str(&yard.run(&[args, &["--json"], devices].concat()).out).unwrap()
}

/// Dirty data in the log: the byte of its volume, and where it is on the last of the devices.
fn records(yard: &Yard, devices: &[&str]) -> Vec<(u64, u64)> {
    let dump = json(yard, &["dump", "--records"], devices);
    let of = |s: &Value| -> Vec<(u64, u64)> {
        let member = devices.len() - 1;
        let copy = s["copies"].as_array().unwrap().iter().find(|copy| copy["member"] == member).unwrap();
        let at = |e: &Value| copy["offset"].as_u64().unwrap() + e["sector"].as_u64().unwrap() * 512;
        let entries = s["records"].as_array().unwrap().iter().flat_map(|r| r["entries"].as_array().unwrap());
        entries.filter(|e| e["kind"] == "dirty").map(|e| (e["block"].as_u64().unwrap() * 4096, at(e))).collect()
    };
    dump["segments"].as_array().unwrap().iter().filter(|s| s["class"] == "mirrored").flat_map(of).collect()
}

/// Found by reading: one sector that could not be read hid its whole segment from `list-damaged` and `writeback`, `check` called what was in it dead,
/// and `writeback` wrote zeroes over it, so that nothing could have it any more. Later it was refused in words of missing devices and of all volumes, and
/// `--without-missing` ended with the command that destroys the pool, though what it had not found was there yet.
#[test]
fn flushed_data_that_cannot_be_read_is_told_and_not_written_over_before_it_is_given_up() {
    let Some((yard, disk, path)) = killed(&[]) else { return };
    let json = |args: &[&str]| json(&yard, args, &[&path]);
    let records = || records(&yard, &[&path]);
    let written = records();
    let list = || yard.run(&["list-damaged", &path]);
    let args = ["writeback", &path, "--state", "state", "--backing", "v=modelled:file"];
    let is_told = |bad: Range<u64>, kinds: &[&str], line: &str| {
        disk.cannot_read(&[bad]);
        let listed = list().said(1, &["Not all data can be read"]).out;
        assert!(listed.lines().any(|it| it == line), "{line}: {listed}");
        let report = json(&["check"]);
        let found = report["findings"].as_array().unwrap();
        assert!(kinds.iter().all(|kind| found.iter().any(|f| f["kind"] == *kind)), "{kinds:?}: {report}");
        let of_it = found.iter().filter(|f| f["kind"].as_str().unwrap().starts_with("dirty-data"));
        of_it.for_each(|f| assert!(f["next"].as_str().unwrap().contains("ddrescue"), "{f}"));
        let parts = ["A start does not find dirty data of v,", "Nothing was written", "ddrescue", "--without-missing"];
        let refused = yard.run(&args).said(3, &parts);
        assert!(!refused.err.contains("idle") && !refused.err.contains("what is missing"), "{refused:?}");
    };
    // In the middle of the log, and where what a dead daemon left may be unfinished: but that can be read.
    for (volume_at, at) in [written[20], written[written.len() - 1]] {
        let line = format!("v {volume_at} 4096 doubtful");
        is_told(at + 3584..at + 4096, &["unreadable", "dirty-data-doubtful"], &line);
        assert!(records().len() + 3 > written.len(), "only what is beside it is hidden");
    }
    // Nor does a daemon leave a segment so that nobody knows of.
    let dump = json(&["dump"]);
    let segment = dump["segments"].as_array().unwrap().iter().find(|s| s["class"] == "mirrored").unwrap();
    let slot = segment["copies"][0]["offset"].as_u64().unwrap();
    is_told(slot..slot + 512, &["segment-lost", "dirty-data-doubtful"], &format!("v {} 4096 doubtful", written[20].0));
    is_told(slot..slot + 8192, &["slot-unreadable", "dirty-data-unknown"], &format!("v {} {} suspect", 256 << 20, 64 << 20));
    let bad = written[20].1 + 3584..written[20].1 + 4096;
    disk.cannot_read(std::slice::from_ref(&bad));
    let ended = yard.run(&[&args[..], &["--without-missing"]].concat()).said(1, &["What could be written was. Copy a device"]);
    assert!(
        ended.out.contains("Keep them until what of v is on them alone") && !ended.err.contains("missing devices"),
        "{ended:?}"
    );
    let mut first = [0; 4096];
    fs::File::open(yard.path("file")).unwrap().read_exact_at(&mut first, 256 << 20).unwrap();
    assert_eq!(first, [1; 4096]);
    // Whoever can read it has it yet.
    disk.cannot_read(&[]);
    list().good();
    disk.cannot_read(&[bad]);
    yard.run(&[&args[..], &["--give-up-lost"]].concat())
        .said(1, &["Not all is on the disks", "Restore these ranges from a backup"]);
}

/// Found by reading. Where the checkpoint knows of such data it was told as lost for good, to be restored from a backup, though a copy by `ddrescue` may have it.
#[test]
fn data_of_the_checkpoint_in_sectors_that_cannot_be_read_may_be_had_yet() {
    let Some((yard, disk, path)) = killed(&[]) else { return };
    yard.serve(&[&path, "--config", "toml"]).stop();
    let listed = |at: u64| {
        let bad = at + 3584..at + 4096;
        disk.cannot_read(std::slice::from_ref(&bad));
        yard.run(&["list-damaged", &path])
    };
    // Some of it may be on the disk by now.
    let is_lost = |(to, at): &(u64, u64)| listed(*at).out == format!("v {to} 4096 lost\n");
    let (to, at) = records(&yard, &[&path]).into_iter().find(is_lost).unwrap();
    listed(at).said(1, &["Some of v may be had yet", "ddrescue"]);
    let report = json(&yard, &["check"], &[&path]);
    let found = report["findings"].as_array().unwrap().iter().filter(|f| f["level"] == "loss");
    assert!(found.clone().count() > 1 && report["summary"]["volumes"][0]["recoverable"] == true, "{report}");
    found.for_each(|f| assert!(f["next"].as_str().unwrap().contains("ddrescue"), "{f}"));
    let writeback = || yard.run(&["writeback", &path, "--state", "state", "--backing", "v=modelled:file"]);
    writeback().said(1, &["Not all is on the disks", "Copy a device that cannot read sectors with ddrescue, and run it again"]);
    disk.cannot_read(&[]);
    writeback().good();
    let mut found = [0; 4096];
    fs::File::open(yard.path("file")).unwrap().read_exact_at(&mut found, to).unwrap();
    assert_eq!(found, [(to >> 28) as u8; 4096]);
}

/// Found by reading. A device that was named, and whose newest superblock cannot be read, was called missing, and to be named; and where another was missing,
/// `ddrescue` was named before that.
#[test]
fn what_may_have_the_rest_is_told_as_what_it_is_before_a_copy_of_what_cannot_be_read() {
    let Some((yard, disk, path)) = killed(&["a"]) else { return };
    let both = ["a", &path];
    let newest = both_of_the_newest(&yard, &both, 64 * MIB);
    let written = records(&yard, &both);
    let bad = written[20].1 + 3584..written[20].1 + 4096;
    let run = |devices: &[&str], more: &[&str]| {
        yard.run(&[&["writeback", "--state", "state", "--backing", "v=modelled:file"], devices, more].concat())
    };
    disk.cannot_read(std::slice::from_ref(&bad));
    let comes_first = |err: &str| err.find("ring").zip(err.find("ddrescue")).is_some_and(|(bring, copy)| bring < copy);
    let listed = yard.run(&["list-damaged", &path, "--state", "state"]).said(1, &["Some of v may be had yet"]);
    assert!(comes_first(&listed.err), "{listed:?}");
    let written_back = run(&[&path], &["--without-missing"]).said(1, &["Bring missing devices back and run it again"]);
    assert!(comes_first(&written_back.err), "{written_back:?}");

    // The other way round, it is named, and lacks its superblock alone.
    disk.cannot_read_until_written(&newest);
    let a = fs::OpenOptions::new().write(true).open(yard.path("a")).unwrap();
    let (_, at) = records(&yard, &["a"])[20];
    a.write_all_at(&[0xff; 8], at).unwrap();
    let refused = run(&both, &[])
        .said(3, &["superblock of cache device 1 of pool pool cannot be read in both copies", "`headpond repair`", "ddrescue"]);
    assert!(!refused.err.contains("Bring it back"), "{refused:?}");
    let written_back = run(&both, &["--without-missing"]).said(1, &["`headpond repair`"]);
    assert!(!written_back.err.contains("Bring missing devices back"), "{written_back:?}");
    let mended = yard.run(&["repair", "a", &path, "--state", "state", "--save", "saved"]).said(1, &["left as they are"]);
    assert!(mended.out.contains("2 places"), "{mended:?}");
    run(&both, &[]).good();
}
