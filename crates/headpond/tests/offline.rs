//! The offline tools, on pools that a daemon made and died on: what is planted is found, what can be mended is, and what
//! was written reaches the disk on another host.

mod common;

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::silent::Disk;
use common::{Contents, Daemon, Ended, MIB, Yard, forge};
use headpond_host::backing::Spec;
use headpond_host::offline::{self, Media, Watch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Bytes of each cache device.
const SIZE: u64 = 16 * MIB;

/// Ctrl-C, at once: by the time that another program has started to send it a child may have ended.
fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// What a volume must read as.
struct Model(Vec<u8>);

/// Bytes that tell which write they are of.
fn stamp(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|at| (n << 32 | at).to_le_bytes()).collect()
}

/// A pool whose daemon was killed with much dirty data, in overlapping and unaligned pieces.
fn killed() -> (Yard, Model) {
    let (yard, model, daemon) = with_dirty_data();
    daemon.kill();
    (yard, model)
}

/// Where the machine was so busy that the disk was left idle for as long as destage waits for, it is made anew.
fn with_dirty_data() -> (Yard, Model, Daemon) {
    (0..20).find_map(|_| all_dirty()).expect("a machine with a moment to spare")
}

fn all_dirty() -> Option<(Yard, Model, Daemon)> {
    let yard = Yard::new();
    yard.file("a", SIZE);
    yard.file("b", SIZE);
    yard.run(&["pool", "create", "pool", "a", "b"]).good();
    let disk = yard.file("disk", 16 * MIB);
    let mut model = Model((0..16 * MIB / 8).flat_map(|n| (n * 0x9e37_79b9).to_le_bytes()).collect());
    fs::write(disk, &model.0).unwrap();
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", "disk"]).good();
    let mut nbd = yard.nbd("v");
    // What is read is clean in the cache: by it a disk is known to be the right one.
    nbd.read(12 * MIB, 256 << 10).unwrap();
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    for n in 0..120u64 {
        longest = longest.max(last.elapsed());
        last = Instant::now();
        let (at, len) = (n * 7919 % 16000 * 512, (1 + n % 20) as usize * 512);
        let data = stamp(n + 1, len);
        nbd.write(at, &data, false).unwrap();
        model.0[at as usize..][..len].copy_from_slice(&data);
        // A disk that is in use is left alone by destage.
        nbd.read(8 * MIB + n * (16 << 10), 4096).unwrap();
    }
    nbd.zero(3 * MIB, 8192).unwrap();
    model.0[3 * MIB as usize..][..8192].fill(0);
    nbd.flush().unwrap();
    (longest.max(last.elapsed()) < Duration::from_millis(150)).then_some((yard, model, daemon))
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
}

/// What `check --json` says, and its exit code.
fn check(yard: &Yard, devices: &[&str]) -> (Option<i32>, Value) {
    let ended = yard.run(&[&["check", "--json"], devices].concat());
    (ended.code, serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}")))
}

fn kinds(report: &Value) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap().iter().filter(|f| f["level"] != "note");
    findings.map(|f| f["kind"].as_str().unwrap().to_owned()).collect()
}

/// Dirty data in the log.
#[derive(Clone, Debug)]
struct Dirty {
    /// Where it is, in bytes, on each member.
    at: [u64; 2],
    /// The bytes of the volume that it is for.
    range: std::ops::Range<u64>,
}

/// All dirty data in the log, in the order in which it was written.
fn dirty_data(yard: &Yard) -> Vec<Dirty> {
    let dump: Value = serde_json::from_str(&yard.run(&["dump", "--records", "--json", "a", "b"]).good().out).unwrap();
    let mut places = Vec::new();
    for segment in dump["segments"].as_array().unwrap().iter().filter(|s| s["class"] == "mirrored") {
        let on = |member: u64| {
            let copies = segment["copies"].as_array().unwrap();
            copies.iter().find(|c| c["member"] == member).and_then(|c| c["offset"].as_u64()).unwrap()
        };
        for record in segment["records"].as_array().unwrap() {
            for entry in record["entries"].as_array().unwrap().iter().filter(|e| e["kind"] == "dirty") {
                let at = entry["sector"].as_u64().unwrap() * 512;
                let sector = entry["block"].as_u64().unwrap() * 8 + entry["first"].as_u64().unwrap();
                let range = sector * 512..(sector + entry["sectors"].as_u64().unwrap()) * 512;
                places.push((entry["version"].as_u64(), Dirty { at: [on(0) + at, on(1) + at], range }));
            }
        }
    }
    places.sort_by_key(|(version, _)| *version);
    places.into_iter().map(|(_, dirty)| dirty).collect()
}

#[test]
fn a_pool_whose_daemon_was_killed_is_clean_and_looking_changes_nothing() {
    let (yard, _) = killed();
    let before = Contents::of(&[&yard.path("a"), &yard.path("b"), &yard.path("disk")]);
    let (code, report) = check(&yard, &["a", "b"]);
    assert_eq!((code, kinds(&report)), (Some(0), vec![]), "{report}");
    let volume = &report["summary"]["volumes"][0];
    assert!(volume["dirty_bytes"].as_u64().unwrap() > 256 << 10, "{report}");
    assert!(report["summary"]["records"].as_u64().unwrap() >= 100, "{report}");
    let text = yard.run(&["check", "a", "b"]).good().out;
    assert!(text.contains("volume v: 16 MiB") && text.ends_with("clean\n"), "{text}");
    assert_eq!(yard.run(&["list-damaged", "a", "b"]).good().out, "all data can be read\n");
    for args in [&["dump", "a", "b"][..], &["dump", "--records", "a", "b"], &["dump", "--json", "a"]] {
        assert!(yard.run(args).good().out.contains("mirrored"));
    }
    assert!(dirty_data(&yard).len() >= 100);
    yard.run(&["repair", "--dry-run", "a", "b"]).good();
    before.unchanged();
}

#[test]
fn each_kind_of_planted_damage_is_found_mended_and_put_back() {
    let (yard, model) = killed();
    let (a, b) = (yard.path("a"), yard.path("b"));
    let data = dirty_data(&yard);
    let dump: Value = serde_json::from_str(&yard.run(&["dump", "--json", "a", "b"]).good().out).unwrap();
    let segment = &dump["segments"].as_array().unwrap().iter().find(|s| s["class"] == "mirrored").unwrap();
    let header = segment["copies"].as_array().unwrap().iter().find(|c| c["member"] == 0).unwrap()["offset"].as_u64().unwrap();
    let newest_intent = dump["intent"].as_array().unwrap().iter().filter(|i| i["member"] == 1);
    let newest_intent = newest_intent.max_by_key(|i| i["sequence"].as_u64()).unwrap()["offset"].as_u64().unwrap();
    for (file, at, kind) in [
        (&a, 64 << 10 | 60, "superblock-damaged"),
        (&b, SIZE - (128 << 10) + 100, "superblock-damaged"),
        (&b, newest_intent + 70, "intent-damaged"),
        (&a, header + 20, "segment-header-damaged"),
        (&a, header + dump["pool"]["unit"].as_u64().unwrap() + 40, "record-header-damaged"),
        (&b, data[10].at[1] + 3, "data-damaged"),
        (&a, data[50].at[0] + 100, "data-damaged"),
    ] {
        let sound = Contents::of(&[&a, &b]);
        flip(file, at);
        let before = Contents::of(&[&a, &b]);
        let (code, report) = check(&yard, &["a", "b"]);
        assert_eq!((code, kinds(&report)), (Some(1), vec![kind.to_owned()]), "byte {at}: {report}");
        let finding = report["findings"].as_array().unwrap().iter().find(|f| f["kind"] == kind).unwrap();
        let (offset, bytes) = (finding["offset"].as_u64().unwrap(), finding["bytes"].as_u64().unwrap());
        assert!((offset..offset + bytes).contains(&at), "byte {at}: {finding}");
        assert_eq!(finding["path"], file.file_name().unwrap().to_str().unwrap());
        for said in ["what", "meaning", "next"] {
            assert!(finding[said].as_str().unwrap().len() > 10, "{finding}");
        }
        // No data is lost by any of these.
        yard.run(&["list-damaged", "a", "b"]).good();
        before.unchanged();
        yard.run(&["repair", "a", "b", "--save", "saved"]).good();
        sound.unchanged();
        let again = yard.run(&["repair", "a", "b", "--save", "saved"]);
        again.said(1, &["saved cannot be made", "Nothing was changed", "does not exist yet"]);
        yard.run(&["repair", "a", "b", "--undo", "saved"]).good();
        before.unchanged();
        yard.run(&["repair", "a", "b", "--save", "other"]).good();
        sound.unchanged();
        fs::remove_file(yard.path("saved")).unwrap();
        fs::remove_file(yard.path("other")).unwrap();
    }
    // A repair cannot be put back once the pool was served.
    flip(&a, data[0].at[0]);
    yard.run(&["repair", "a", "b", "--save", "saved"]).good();
    flip(&a, data[0].at[0] + 1);
    let before = Contents::of(&[&a, &b]);
    yard.run(&["repair", "a", "b", "--undo", "saved"]).said(3, &["a was written to", "Nothing was changed"]);
    before.unchanged();
    flip(&a, data[0].at[0] + 1);
    let daemon = yard.serve(&["a", "b"]);
    assert!(yard.nbd("v").read(0, 16 << 20).unwrap() == model.0);
    drop(daemon);
}

/// Damaged bytes went back onto a copy that the pool relied upon by then: nothing had been written to just those places.
#[test]
fn a_repair_is_not_undone_on_a_pool_that_was_served_since() {
    let (yard, model) = killed();
    let at = dirty_data(&yard)[50].at[0] + 100;
    flip(&yard.path("a"), at);
    yard.run(&["repair", "a", "b", "--save", "saved"]).good();
    let daemon = yard.serve(&["a", "b"]);
    assert!(yard.nbd("v").read(0, 16 << 20).unwrap() == model.0);
    daemon.stop();
    let before = Contents::of(&[&yard.path("a"), &yard.path("b")]);
    for devices in [&["a", "b"][..], &["a"]] {
        let undo = yard.run(&[&["repair"], devices, &["--undo", "saved"]].concat());
        undo.said(3, &["pool was served, or written back, since it was repaired: a ", "Nothing was changed"]);
    }
    // One from before that was noted says nothing of it.
    let saved = fs::read_to_string(yard.path("saved")).unwrap();
    fs::write(yard.path("old"), saved.replacen("\"headpond_undo\":2", "\"headpond_undo\":1", 1)).unwrap();
    yard.run(&["repair", "a", "b", "--undo", "old"]).said(1, &["it is of version 1, and this is 2", "Nothing was changed"]);
    before.unchanged();
}

#[test]
fn data_whose_copies_are_all_damaged_is_listed_to_the_byte_and_all_else_is_written_back() {
    let (yard, mut model, daemon) = with_dirty_data();
    // Ended cleanly, and nothing destaged: all of it is in the last checkpoint.
    daemon.stop();
    let data = dirty_data(&yard);
    let is_last = |n: usize| {
        let meets = |o: &Dirty| o.range.start < data[n].range.end && data[n].range.start < o.range.end;
        !data[n + 1..].iter().any(meets)
    };
    let spoiled = (50..data.len()).find(|n| is_last(*n)).map(|n| data[n].clone()).unwrap();
    flip(&yard.path("a"), spoiled.at[0]);
    flip(&yard.path("b"), spoiled.at[1] + 1);
    let before = Contents::of(&[&yard.path("a"), &yard.path("b"), &yard.path("disk")]);
    let (code, report) = check(&yard, &["a", "b"]);
    assert_eq!(
        (code, kinds(&report)),
        (Some(1), ["dirty-data-damaged", "dirty-data-lost"].map(str::to_owned).into()),
        "{report}"
    );
    let ended = yard.run(&["list-damaged", "a", "b"]).said(1, &["Not all data can be read", "Nothing was changed"]);
    let (from, len) = (spoiled.range.start, spoiled.range.end - spoiled.range.start);
    assert_eq!(ended.out, format!("v {from} {len} lost\n"));
    yard.run(&["repair", "--dry-run", "a", "b"]).said(1, &["left as they are", "no other copy"]);
    before.unchanged();
    let range = from as usize..spoiled.range.end as usize;
    model.0[range.clone()].copy_from_slice(&fs::read(yard.path("disk")).unwrap()[range]);
    let args = ["writeback", "a", "b", "--backing", "disk", "--state", "state", "--json"];
    // Each of them refuses the other.
    let kept = yard.run(&[&args[..], &["--keep"]].concat()).said(1, &["Not all is on the disks"]);
    assert!(kept.out.contains("--give-up-lost, and without --keep"), "{kept:?}");
    let ended = yard.run(&args).said(1, &["Not all is on the disks", "What could be written was"]);
    assert!(!ended.err.contains("missing"), "none is: {ended:?}");
    let written: Value = serde_json::from_str(&ended.out).unwrap();
    assert!(!written["volumes"][0]["problem"].as_str().unwrap().contains("missing"), "none is: {written}");
    assert_eq!(written["volumes"][0]["lost"], serde_json::json!([{ "offset": from, "bytes": len }]), "{written}");
    assert!(fs::read(yard.path("disk")).unwrap() == model.0, "all but the lost range is on the disk");
    // Still on the pool, and still said.
    assert_eq!(yard.run(&["list-damaged", "a", "b"]).out, format!("v {from} {len} lost\n"));
    let args = ["writeback", "a", "b", "--backing", "disk", "--state", "state", "--give-up-lost"];
    assert!(yard.run(&args).out.contains("let go of it"));
    yard.run(&["list-damaged", "a", "b"]).good();
}

/// Found by reading. Where the witness proved that the one cache device that was named is current, `writeback` went on over what this one had lost, and the other one, which had
/// it whole, was out of date from then on; then it told to bring that one back. Later, with `--save` alone, it did not tell to, though nothing had been changed.
#[test]
fn what_one_cache_device_has_lost_is_not_given_up_while_another_that_may_have_it_is_missing() {
    let (yard, model, daemon) = with_dirty_data();
    yard.run(&["volume", "create", "journal", "--size", "1MiB"]).good();
    daemon.kill();
    let data = dirty_data(&yard);
    let is_covered =
        |n: usize| data[n + 1..].iter().any(|o| o.range.start < data[n].range.end && data[n].range.start < o.range.end);
    let lost = (20..data.len() - 60).find(|n| !is_covered(*n)).map(|n| data[n].clone()).unwrap();
    flip(&yard.path("a"), lost.at[0]);
    fs::rename(yard.path("b"), yard.path("away")).unwrap();
    let run = |devices: &[&str], more: &[&str]| {
        yard.run(&[&["writeback", "--state", "state", "--backing", "v=disk"], devices, more].concat())
    };
    let before = Contents::of(&[&yard.path("a"), &yard.path("disk")]);
    let parts = ["Cache device 1 of pool pool is missing", "lost of v", "Nothing was written", "Bring it back", "--give-up-lost"];
    run(&["a"], &[]).said(3, &parts);
    yard.run(&["writeback", "a", "--state", "state", "--save", "journal=saved"])
        .said(1, &["Bring missing devices back and run it again"]);
    before.unchanged();
    let a = Contents::of(&[&yard.path("a")]);
    let written = run(&["a"], &["--without-missing"]);
    assert!(written.out.contains("Keep them for as long as the missing ones may turn up"), "{written:?}");
    written.said(1, &["Not all is on the disks", "Bring missing devices back and run it again"]);
    a.unchanged();
    fs::rename(yard.path("away"), yard.path("b")).unwrap();
    run(&["a", "b"], &[]).good();
    assert!(fs::read(yard.path("disk")).unwrap() == model.0, "the other one had it");
}

/// After a kill a start cannot tell such a record from one that was never acknowledged, and reads what was there before.
#[test]
fn data_written_after_the_last_checkpoint_whose_copies_are_all_damaged_is_listed_as_doubtful() {
    let (yard, _) = killed();
    let data = dirty_data(&yard);
    let overlapped = |n: usize| {
        let meets = |o: &Dirty| o.range.start < data[n].range.end && data[n].range.start < o.range.end;
        data[n + 1..].iter().any(meets)
    };
    let n = (20..data.len() - 60).find(|n| !overlapped(*n)).unwrap();
    let Dirty { at, range } = data[n].clone();
    flip(&yard.path("a"), at[0]);
    flip(&yard.path("b"), at[1]);
    let listed = yard.run(&["list-damaged", "a", "b"]);
    assert_eq!((listed.code, listed.out), (Some(1), format!("v {} {} doubtful\n", range.start, range.end - range.start)));
    let (code, report) = check(&yard, &["a", "b"]);
    assert_eq!((code, kinds(&report).last().map(String::as_str)), (Some(1), Some("dirty-data-doubtful")), "{report}");
    // Covered by a later write, it is nobody's.
    let covered = (20..data.len() - 60)
        .find(|n| data[n + 1..].iter().any(|o| o.range.start <= data[*n].range.start && data[*n].range.end <= o.range.end));
    let Dirty { at: other, .. } = data[covered.unwrap()];
    for (file, at, other) in [("a", at[0], other[0]), ("b", at[1], other[1])] {
        flip(&yard.path(file), at);
        flip(&yard.path(file), other);
    }
    yard.run(&["list-damaged", "a", "b"]).good();
}

/// A segment of the log, as it is on the members.
struct Logged {
    /// Where its copies begin, in bytes, on each member.
    at: [Option<u64>; 2],
    /// Its volume's number.
    volume: u64,
    /// Its records' first sectors.
    records: Vec<u64>,
}

/// The segments of a class, the oldest first.
fn log_of(yard: &Yard, class: &str) -> Vec<Logged> {
    let dump: Value = serde_json::from_str(&yard.run(&["dump", "--records", "--json", "a", "b"]).good().out).unwrap();
    let mut segments: Vec<&Value> = dump["segments"].as_array().unwrap().iter().filter(|s| s["class"] == class).collect();
    segments.sort_by_key(|s| s["generation"].as_u64().unwrap());
    let logged = |s: &Value| {
        let copies = s["copies"].as_array().unwrap();
        let on = |m: u64| copies.iter().find(|c| c["member"] == m).and_then(|c| c["offset"].as_u64());
        let records = s["records"].as_array().unwrap().iter().map(|r| r["sector"].as_u64().unwrap()).collect();
        Logged { at: [on(0), on(1)], volume: s["volume"].as_u64().unwrap(), records }
    };
    segments.into_iter().map(logged).collect()
}

/// Found by reading: where a record's header had lost its first bytes, or a segment opened since the checkpoint its header, on all copies,
/// `check` called the pool clean, and `writeback` the disk whole, though a start steps over what was flushed there. Later `check` ended with "all of it can be read" beside such a
/// loss, took it for proved that all had been acknowledged, though after a power cut what nobody had flushed may be gone as well, and `writeback` named no next step. Later a
/// segment without a header was said to be had yet from a copy by `ddrescue`, though all of it could be read, and no tool makes its header up.
#[test]
fn a_record_or_a_segment_that_a_start_steps_over_is_no_clean_pool_unless_it_is_at_the_end_of_the_log() {
    let (yard, _) = killed();
    let segments = log_of(&yard, "mirrored");
    let writeback = |state: &str| yard.run(&["writeback", "a", "b", "--backing", "disk", "--state", state]);
    let flip_both = |segment: &Logged, at: u64| {
        flip(&yard.path("a"), segment.at[0].unwrap() + at);
        flip(&yard.path("b"), segment.at[1].unwrap() + at);
    };
    let told = |wanted: &[&str], listed: &str| {
        let (code, report) = check(&yard, &["a", "b"]);
        let kinds = kinds(&report);
        assert!(code == Some(1) && wanted.iter().all(|kind| kinds.contains(&(*kind).to_owned())), "{wanted:?}: {report}");
        let losses = report["findings"].as_array().unwrap().iter().filter(|f| f["level"] == "loss");
        losses.for_each(|f| assert!(f["meaning"].as_str().unwrap().contains("Only if the power failed"), "{f}"));
        let text = yard.run(&["check", "a", "b"]).out;
        assert!(text.contains("LOST") && !text.contains("all of it can be read"), "{text}");
        assert!(!text.contains("may be had yet") && !text.contains("ddrescue"), "{text}");
        assert_eq!(report["summary"]["volumes"][0]["recoverable"], false, "{report}");
        yard.run(&["check", "a", "b"]).said(1, &["if the power failed", "Copy the devices before anything else"]);
        let ended = yard.run(&["list-damaged", "a", "b"]).said(1, &["Not all data can be read"]);
        assert!(ended.out.lines().all(|line| line.ends_with(listed)) && !ended.out.is_empty(), "{}", ended.out);
    };
    // The last ones of a log may never have been whole.
    let last = segments.last().unwrap();
    let end = last.records[last.records.len().saturating_sub(3)] * 512;
    flip_both(last, end);
    let (code, report) = check(&yard, &["a", "b"]);
    assert_eq!((code, kinds(&report)), (Some(0), vec![]), "{report}");
    yard.run(&["list-damaged", "a", "b"]).good();
    flip_both(last, end);
    let long = segments.iter().find(|segment| segment.records.len() > 20).expect("a segment with many records");
    let next = ["Not all is on the disks", "has let go of v", "unless the power failed", "check the file system"];
    let whole = ["a", "b"].map(|file| fs::read(yard.path(file)).unwrap());
    flip_both(long, 20);
    told(&["segment-lost", "dirty-data-doubtful"], "doubtful");
    let listed = yard.run(&["list-damaged", "a", "b"]);
    assert!(!listed.err.contains("may be had yet") && !listed.err.contains("ddrescue"), "{listed:?}");
    // All devices are there, and prove by themselves that they are the newest.
    writeback("elsewhere").said(1, &next);
    ["a", "b"].iter().zip(whole).for_each(|(file, bytes)| fs::write(yard.path(file), bytes).unwrap());
    yard.run(&["list-damaged", "a", "b"]).good();
    flip_both(long, long.records[2] * 512);
    told(&["record-lost", "dirty-data-unknown"], "suspect");
    writeback("state").said(1, &[&next[..], &["within the ranges called suspect"]].concat());
}

/// Found by reading. `repair` made the header of such a segment up from its records. A daemon that was there since, and had made no checkpoint yet when it ended,
/// had gone on without the segment: its clients had read what was there before, and written over it, under versions that the segment has as well, and
/// then that came back.
#[test]
fn a_segment_header_that_no_copy_has_any_more_is_not_made_up_by_a_repair() {
    let (yard, _) = killed();
    let segments = log_of(&yard, "mirrored");
    let long = segments.iter().find(|segment| segment.records.len() > 20).expect("a segment with many records");
    ["a", "b"].iter().zip(long.at).for_each(|(file, at)| flip(&yard.path(file), at.unwrap() + 20));
    let before = Contents::of(&[&yard.path("a"), &yard.path("b")]);
    let left = yard.run(&["repair", "a", "b", "--save", "saved"]).said(1, &["left as they are", "`headpond check`"]);
    assert!(left.out.contains("The header of segment") && left.out.contains("nothing to mend"), "{left:?}");
    before.unchanged();
}

/// A pool whose daemon was killed when the last but one of its segments with dirty data was full, and known to be durable, and the last had few records.
fn with_a_durable_segment() -> (Yard, Vec<Logged>) {
    let written = |writes: u64| {
        let yard = Yard::new();
        yard.file("a", SIZE);
        yard.file("b", SIZE);
        yard.run(&["pool", "create", "pool", "a", "b"]).good();
        yard.file("disk", 64 * MIB);
        fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
        let daemon = yard.serve(&["a", "b", "--config", "toml"]);
        yard.run(&["attach", "v", "disk"]).good();
        let mut nbd = yard.nbd("v");
        (0..writes).for_each(|n| nbd.write(n * 7919 % 2000 * 8192, &stamp(n + 1, 8192), false).unwrap());
        nbd.flush().unwrap();
        // Another volume's first write opens a segment, whose header says what was durable by then.
        yard.file("other", MIB);
        yard.run(&["attach", "w", "other"]).good();
        yard.nbd("w").write(0, &stamp(0, 4096), false).unwrap();
        daemon.kill();
        let segments: Vec<Logged> = log_of(&yard, "mirrored").into_iter().filter(|it| it.volume == 0).collect();
        (yard, segments)
    };
    let mut writes = 300;
    for _ in 0..20 {
        let (yard, segments) = written(writes);
        let last = segments.last().unwrap().records.len();
        match (segments.len(), last) {
            (2.., 2..12) => return (yard, segments),
            (2.., 12..) => writes -= last as u64 - 6,
            _ => writes += 40,
        }
    }
    panic!("no such pool comes about");
}

/// Found by reading: rot in one of the last records of such a segment was taken for a write that a crash had cut short, which "the next start completes".
/// It does not, as the segment's header says that all was durable: one good copy was left, and nobody knew. Of both copies it was no loss, though
/// what was flushed was gone. Where a whole copy was overwritten, a repair put its header back, and not the last records.
#[test]
fn what_is_damaged_near_the_end_of_the_log_is_damage_where_other_headers_tell_that_it_was_durable() {
    let (yard, segments) = with_a_durable_segment();
    let (a, b) = (yard.path("a"), yard.path("b"));
    let full = &segments[segments.len() - 2];
    let last = full.records[full.records.len() - 2] * 512;
    let sound = Contents::of(&[&a, &b]);
    for (at, kind) in [(last + 40, "record-header-damaged"), (last + 4512, "data-damaged")] {
        flip(&b, full.at[1].unwrap() + at);
        let (code, report) = check(&yard, &["a", "b"]);
        assert_eq!((code, kinds(&report)), (Some(1), vec![kind.to_owned()]), "{report}");
        yard.run(&["repair", "a", "b", "--save", kind]).good();
        sound.unchanged();
    }
    let whole = fs::read(&b).unwrap();
    let mut other = whole.clone();
    let from = full.at[1].unwrap() as usize;
    let to = from + full.records.last().copied().unwrap() as usize * 512;
    other[from..to + 4096].fill(0);
    fs::write(&b, other).unwrap();
    let mended = yard.run(&["repair", "a", "b", "--save", "all"]).good().out;
    let (records, header) = (mended.rfind("record").unwrap(), mended.find("The header of segment").unwrap());
    assert!(records < header, "a repair that is cut off must leave a copy that a start completes: {mended}");
    assert_eq!(check(&yard, &["a", "b"]).0, Some(0));
    sound.unchanged();
    flip(&a, full.at[0].unwrap() + last + 4512);
    flip(&b, full.at[1].unwrap() + last + 4512);
    let (code, report) = check(&yard, &["a", "b"]);
    assert_eq!((code, kinds(&report)), (Some(1), vec!["dirty-data-damaged".into(), "dirty-data-lost".into()]), "{report}");
}

/// Found by reading: newer data was said to be lost, and to be restored from a backup.
#[test]
fn a_rotten_header_of_clean_data_is_damage_by_which_nothing_is_lost() {
    let read_much = || {
        let yard = Yard::new();
        yard.file("a", 512 * MIB);
        yard.file("b", 512 * MIB);
        yard.run(&["pool", "create", "pool", "a", "b", "--segment", "16MiB"]).good();
        yard.file("disk", 32 * MIB);
        fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
        let daemon = yard.serve(&["a", "b", "--config", "toml"]);
        yard.run(&["attach", "v", "disk"]).good();
        let mut nbd = yard.nbd("v");
        (0..512).for_each(|n| _ = nbd.read(n * 211 % 512 * (64 << 10), 64 << 10).unwrap());
        daemon.kill();
        let long = log_of(&yard, "single").into_iter().find(|segment| segment.records.len() > 20);
        long.map(|long| (yard, long))
    };
    // On a busy machine not all may have been written.
    let (yard, long) = (0..20).find_map(|_| read_much()).expect("a segment with many records");
    for at in [40, 0] {
        for (file, begin) in ["a", "b"].iter().zip(long.at) {
            if let Some(begin) = begin {
                flip(&yard.path(file), begin + long.records[2] * 512 + at);
            }
        }
        let (code, report) = check(&yard, &["a", "b"]);
        assert_eq!((code, kinds(&report)), (Some(1), vec!["clean-data-damaged".to_owned()]), "{report}");
        assert_eq!(report["summary"]["losses"], 0, "{report}");
        yard.run(&["list-damaged", "a", "b"]).good();
    }
}

#[test]
fn dirty_data_reaches_the_disk_on_another_host() {
    let (yard, model) = killed();
    // The host is gone, its state folder with it; the devices are plugged in elsewhere.
    fs::remove_dir_all(yard.path("state")).unwrap();
    for (from, to) in [("a", "sdx"), ("b", "sdy"), ("disk", "sdz")] {
        fs::rename(yard.path(from), yard.path(to)).unwrap();
    }
    let written = yard.run(&["writeback", "sdx", "sdy", "--backing", "sdz", "--state", "elsewhere", "--json"]).good().out;
    let written: Value = serde_json::from_str(&written).unwrap();
    assert_eq!((&written["proven"], &written["volumes"][0]["detached"]), (&true.into(), &true.into()), "{written}");
    assert!(fs::read(yard.path("sdz")).unwrap() == model.0, "the disk is not what was written");
    let (code, report) = check(&yard, &["sdx", "sdy"]);
    assert_eq!((code, report["summary"]["volumes"].as_array().unwrap().len()), (Some(0), 0), "{report}");
}

/// Found by reading: where all devices were there a trial on a copy of the disk made the pool let go of the volume, with what was on the copy alone.
#[test]
fn told_that_devices_may_be_missing_a_writeback_changes_none_of_those_that_are_there() {
    let (yard, model) = killed();
    fs::copy(yard.path("disk"), yard.path("copy")).unwrap();
    let before = Contents::of(&[&yard.path("a"), &yard.path("b"), &yard.path("disk")]);
    let args = ["writeback", "a", "b", "--backing", "copy", "--other-disk", "--without-missing"];
    let told = yard.run(&args).good().out;
    assert!(told.contains("The cache devices were not changed"), "{told}");
    before.unchanged();
    assert!(fs::read(yard.path("copy")).unwrap() == model.0, "the copy is not what was written");
}

#[test]
fn a_copy_of_the_disk_is_taken_only_when_it_is_called_the_disk_and_holds_what_the_cache_knows() {
    let (yard, model) = killed();
    fs::copy(yard.path("disk"), yard.path("copy")).unwrap();
    yard.file("small", 8 * MIB);
    yard.file("blank", 16 * MIB);
    let files = ["a", "b", "disk", "copy", "blank", "small"].map(|name| yard.path(name));
    let before = Contents::of(&files.each_ref().map(|path| path.as_path()));
    let to =
        |disk: &str, more: &[&str]| yard.run(&[&["writeback", "a", "b", "--state", "state", "--backing", disk], more].concat());
    to("copy", &[]).said(
        3,
        &["copy is another device", "volume v was made on", "Nothing was changed", "--other-disk", "Look at the disks first"],
    );
    to("small", &["--other-disk"]).said(3, &["small has 8388608 bytes", "16777216", "Nothing was changed"]);
    to("w=disk", &[]).said(2, &["no volume \"w\"", "Its volumes are: v"]);
    to("a", &[]).said(3, &["a is a cache device of pool pool", "Nothing was changed"]);
    before.unchanged();
    to("blank", &["--other-disk"]).said(3, &["blank is not as the cache knows the disk", "Nothing was written to it"]);
    assert!(fs::read(yard.path("blank")).unwrap().iter().all(|byte| *byte == 0));
    to("v=copy", &["--other-disk"]).good();
    assert!(fs::read(yard.path("copy")).unwrap() == model.0);
}

#[test]
fn one_device_without_a_witness_is_written_back_only_when_its_owner_says_so_and_is_not_changed() {
    let (yard, model) = killed();
    fs::remove_dir_all(yard.path("state")).unwrap();
    fs::rename(yard.path("a"), yard.path("gone")).unwrap();
    let before = Contents::of(&[&yard.path("b"), &yard.path("disk")]);
    let run = |more: &[&str]| yard.run(&[&["writeback", "b", "--state", "new", "--backing", "disk"], more].concat());
    let parts =
        ["Pool pool does not start", "Nothing was written", "--without-missing", "What may be lost", "written to v since"];
    run(&[]).said(3, &parts);
    yard.run(&["repair", "b", "--save", "saved"]).said(3, &["Nothing was changed", "cannot be proved"]);
    let (code, report) = check(&yard, &["b"]);
    assert!(code == Some(1) && kinds(&report) == ["member-missing", "votes-missing"], "{report}");
    before.unchanged();
    let b = Contents::of(&[&yard.path("b")]);
    let written = run(&["--without-missing"]).good().out;
    assert!(written.contains("not changed") && written.contains("pool destroy"), "{written}");
    assert!(fs::read(yard.path("disk")).unwrap() == model.0, "the disk is not what was written");
    b.unchanged();
}

/// Whole blocks were clean, and of each a sector had been written over since. The first `writeback --without-missing` put that on the disk; the next one, which
/// was to go on where it had been cut off, found the disk to be another one than before, by the checksums of the whole blocks. Found by reading.
#[test]
fn a_salvage_that_is_run_again_knows_the_disk_that_the_first_one_wrote_to() {
    let yard = Yard::new();
    yard.file("a", SIZE);
    yard.file("b", SIZE);
    yard.run(&["pool", "create", "pool", "a", "b"]).good();
    let disk = yard.file("disk", 16 * MIB);
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", "disk"]).good();
    let (blocks, mut nbd) = (64u64, yard.nbd("v"));
    let at = |n: u64| n * 37 % 211 * 8192;
    (0..blocks).for_each(|n| nbd.write(at(n), &stamp(n + 1, 4096), false).unwrap());
    yard.run(&["flush", "v"]).good();
    (0..blocks).for_each(|n| nbd.write(at(n) + 512, &stamp(n + 1000, 512), false).unwrap());
    daemon.kill();
    fs::remove_dir_all(yard.path("state")).unwrap();
    fs::rename(yard.path("a"), yard.path("gone")).unwrap();
    for _ in 0..2 {
        yard.run(&["writeback", "b", "--state", "new", "--backing", "disk", "--without-missing"]).good();
        let disk = fs::read(&disk).unwrap();
        for n in 0..blocks {
            assert!(disk[at(n) as usize..][512..1024] == stamp(n + 1000, 512), "block {n} is not what was written");
        }
    }
}

#[test]
fn a_device_that_has_left_is_never_written_back() {
    let (yard, _) = killed();
    fs::rename(yard.path("b"), yard.path("away")).unwrap();
    let daemon = yard.serve(&["a"]);
    yard.nbd("v").write(0, &[7; 4096], true).unwrap();
    daemon.kill();
    fs::rename(yard.path("away"), yard.path("b")).unwrap();
    let before = Contents::of(&[&yard.path("b"), &yard.path("disk")]);
    let run = |tool: &[&str]| yard.run(&[tool, &["b", "--state", "state"]].concat());
    for tool in [&["writeback", "--without-missing", "--backing", "disk"][..], &["check"], &["list-damaged"], &["dump"]] {
        run(tool).said(3, &["out of date", "Bring back cache device 0"]);
    }
    before.unchanged();
}

#[test]
fn a_pool_that_is_served_is_left_alone_in_words_that_say_so() {
    let yard = Yard::new();
    yard.pool();
    let disk = yard.file("disk", 4 * MIB);
    let _daemon = yard.serve(&["a", "b"]);
    for args in [
        &["check", "a", "b", "--wait", "0"][..],
        &["dump", "a", "--wait", "0"],
        &["list-damaged", "b", "--wait", "0"],
        &["repair", "a", "b", "--save", "saved", "--wait", "0"],
        &["writeback", "a", "b", "--backing", disk.to_str().unwrap(), "--state", "state", "--wait", "0"],
    ] {
        yard.run(args)
            .said(1, &["is in use: process", "(headpond) has it open", "Nothing was read or written", "end its daemon"]);
    }
    assert!(!yard.path("saved").exists());
}

#[test]
fn what_is_no_pool_and_what_is_blind_is_named() {
    let (yard, _) = killed();
    let blank = yard.file("blank", 64 * MIB);
    yard.run(&["check", "blank"]).said(1, &["Problems were found"]);
    yard.run(&["dump", "blank"]).said(1, &["No superblock of a pool was found that counts", "headpond pool list"]);
    yard.run(&["list-damaged", "blank"]).said(1, &["None of the devices named", "headpond pool list"]);
    yard.run(&["check", "a", "a"]).said(1, &["a was named twice"]);
    for at in [0, 64 << 10, SIZE - (128 << 10), SIZE - (64 << 10)] {
        flip(&yard.path("b"), at + 44);
    }
    let (code, report) = check(&yard, &["a", "b"]);
    assert!(code == Some(1) && kinds(&report).contains(&"superblocks-lost".to_owned()), "{report}");
    drop(blank);
}

#[test]
fn two_of_four_devices_write_what_they_hold_only_when_told_to_and_say_where_more_may_have_been() {
    let yard = Yard::new();
    for device in ["a", "b", "c", "d"] {
        yard.file(device, SIZE);
    }
    yard.run(&["pool", "create", "pool", "a", "b", "c", "d"]).good();
    yard.file("disk", 4 * MIB);
    let daemon = yard.serve(&["a", "b", "c", "d"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.nbd("v").write(0, &[3; 4096], true).unwrap();
    daemon.kill();
    let names = ["a", "b", "c", "d", "disk"].map(|name| yard.path(name));
    let before = Contents::of(&names.each_ref().map(|path| path.as_path()));
    let run = |devices: &[&str], more: &[&str]| {
        yard.run(&[&["writeback", "--state", "state", "--backing", "disk", "--json"], devices, more].concat())
    };
    for devices in [["a", "b"], ["c", "d"]] {
        let parts = ["Too many cache devices of pool pool are missing", "Nothing was written", "--without-missing"];
        run(&devices, &[]).said(3, &parts);
        before.unchanged();
    }
    let cache = Contents::of(&[&names[0], &names[1], &names[2], &names[3]]);
    // Both copies are on two of the four; whichever they are, one of the pairs has one, or each has one.
    for devices in [["a", "b"], ["c", "d"]] {
        let ended = run(&devices, &["--without-missing"]).said(1, &["suspect", "What could be written was"]);
        let written: Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(written["proven"], false);
        assert_eq!(written["volumes"][0]["suspect"], serde_json::json!([{ "offset": 0, "bytes": 4 * MIB }]), "{written}");
    }
    assert_eq!(fs::read(yard.path("disk")).unwrap()[..4096], [3; 4096]);
    cache.unchanged();
}

/// Found by reading. Of a volume that a start had refused before, as too many had left, it was said that too many cache devices are missing, with all of them there.
#[test]
fn a_volume_that_is_refused_since_devices_have_left_before_is_not_said_to_miss_any() {
    let (yard, _) = killed();
    for device in ["a", "b"] {
        forge(&yard.path(device), |superblock| superblock.volumes.iter_mut().for_each(|v| v.doubts.uncertain = true));
    }
    let parts = ["As many cache devices", "have left before", "Nothing was written", "--without-missing"];
    let refused = yard.run(&["writeback", "a", "b", "--state", "state", "--backing", "disk"]).said(3, &parts);
    assert!(!refused.err.contains("missing devices") && !refused.err.contains("are missing"), "{refused:?}");
}

#[test]
fn a_writeback_that_is_cancelled_says_so_and_goes_on_when_it_is_run_again() {
    let yard = Yard::new();
    yard.file("a", SIZE);
    yard.file("b", SIZE);
    yard.run(&["pool", "create", "pool", "a", "b"]).good();
    // Far apart, so that the sweep over them takes seconds.
    yard.file("disk", 8 << 30);
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", "modelled:disk"]).good();
    let mut nbd = yard.nbd("v");
    let places: Vec<u64> = (0..600).map(|n| n * 7919 % 600 * (13 << 20)).collect();
    // A disk that is in use is left alone by destage.
    let written = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mut busy, written) = (yard.nbd("v"), &written);
        scope.spawn(move || {
            let mut at = 1 << 20;
            while !written.load(std::sync::atomic::Ordering::Relaxed) {
                busy.read(at, 4096).unwrap();
                at = (at + (37 << 20)) % (8 << 30);
            }
        });
        for at in &places {
            nbd.write(*at, &at.to_le_bytes().repeat(512), false).unwrap();
        }
        written.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    daemon.kill();
    let args = ["writeback", "a", "b", "--backing", "modelled:disk", "--state", "state"];
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_headpond"));
    let child = child.args(args).current_dir(yard.path("")).stderr(std::process::Stdio::piped()).spawn().unwrap();
    // Signals that come before it listens would end it at once, which is as safe, and says less.
    let listens = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let masks = status.lines().filter_map(|line| line.strip_prefix("SigBlk:").or(line.strip_prefix("SigCgt:")));
        masks.map(|mask| u64::from_str_radix(mask.trim(), 16).unwrap()).any(|mask| mask & 1 << (Signal::INT.as_raw() - 1) != 0)
    };
    // Nor is there anything on the disk before it has begun: that was in use all the time.
    let disk = fs::File::open(yard.path("disk")).unwrap();
    let has_begun = || {
        let mut found = [0; 8];
        places.iter().any(|at| disk.read_exact_at(&mut found, *at).is_ok() && u64::from_le_bytes(found) == *at && *at > 0)
    };
    let until = Instant::now() + Duration::from_secs(60);
    while !listens() || !has_begun() {
        assert!(Instant::now() < until, "nothing is written back");
        std::thread::sleep(Duration::from_millis(10));
    }
    interrupt(&child);
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("Cancelled"), "{said}");
    yard.run(&args).good();
    for at in &places {
        let mut found = [0; 4096];
        disk.read_exact_at(&mut found, *at).unwrap();
        assert_eq!(found[..], at.to_le_bytes().repeat(512)[..], "at {at}");
    }
}

/// "Nothing was changed on the devices", it said, or nothing at all.
#[test]
fn a_repair_whose_output_nobody_reads_any_more_says_what_it_has_done() {
    let (yard, _) = killed();
    flip(&yard.path("a"), 64 << 10 | 60);
    let before = Contents::of(&[&yard.path("a")]);
    let repair = |more: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_headpond"));
        let command = command.args(["repair", "a", "b"]).args(more).current_dir(yard.path(""));
        let ended = command.stdout(writer).output().unwrap();
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    // Of one that changes nothing its reader has seen enough.
    assert_eq!(repair(&["--dry-run"]), (Some(0), String::new()));
    before.unchanged();
    let (code, said) = repair(&["--save", "saved"]);
    assert!(said.contains("1 places were mended") && said.contains("headpond repair --undo saved"), "{said}");
    assert_eq!(code, Some(1));
    yard.run(&["repair", "a", "b", "--undo", "saved"]).good();
    before.unchanged();
}

/// Found by reading. That a flush of the disk had failed over acknowledged writes was kept in the superblock for the next client to hear of, and where no daemon came any more
/// nobody heard of it: `check` called the pool clean, and `writeback` said that all was written. Later it told of a flush of its disk also of a volume that has none.
#[test]
fn what_no_client_was_told_of_a_failed_flush_is_told_by_the_offline_tools() {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 16 * MIB);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.run(&["volume", "create", "j", "--size", "1MiB"]).good();
    daemon.stop();
    let of_the_flush = |doubt: fn(&mut headpond_format::Doubts)| {
        for device in ["a", "b"] {
            forge(&yard.path(device), |superblock| superblock.volumes.iter_mut().for_each(|v| doubt(&mut v.doubts)));
        }
    };
    // Clients have been told; it is kept for the cache to be careful.
    of_the_flush(|doubts| doubts.unkept = true);
    yard.run(&["check", "a", "b", "--verbose"]).told(&["note: ", "A flush of the disk of volume v has failed"]);
    of_the_flush(|doubts| doubts.untold = true);
    let checked = yard.run(&["check", "a", "b", "--json"]);
    assert!(checked.code == Some(1) && checked.out.contains("\"kind\":\"flush-failed\""), "{checked:?}");
    assert_eq!(
        yard.run(&["list-damaged", "a", "b"]).said(1, &["is known to be on the disk"]).out,
        "v 0 16777216 untold\nj 0 1048576 untold\n"
    );
    let disk = ["--state", "state", "--backing", "v=disk"];
    let run = |devices: &[&str], more: &[&str]| yard.run(&[&["writeback"], devices, &disk, more].concat());
    let said = |ended: Ended| {
        assert!(ended.code == Some(1) && ended.out.contains("A flush of the backing device failed"), "{ended:?}");
        let (_, of_j) = ended.out.split_once("volume j: ").unwrap();
        assert!(
            of_j.contains("The last copies of something on it were lost") && !of_j.contains("backing device failed"),
            "{of_j}"
        );
    };
    said(run(&["a", "b"], &["--keep"]));
    said(yard.run(&["writeback", "b", "--state", "new", "--backing", "v=disk", "--without-missing"]));
    said(run(&["a", "b"], &[]));
}

/// Found by reading. `--other-disk` was taken as said of whatever disk was named: those of two volumes, swapped, were written over with each other's data where
/// nothing was clean to compare them with. Later one that was named by a link, or with `modelled:` before it, was taken for another one.
#[test]
fn a_disk_that_is_known_as_another_volumes_is_not_written_to_though_it_is_called_the_disk() {
    let yard = Yard::new();
    yard.pool();
    for disk in ["disk", "other", "copy-of-disk", "copy-of-other"] {
        yard.file(disk, 16 * MIB);
    }
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    for (volume, disk, byte) in [("v", "disk", 1), ("w", "other", 2)] {
        yard.run(&["attach", volume, disk]).good();
        yard.nbd(volume).write(0, &[byte; 4096], true).unwrap();
    }
    daemon.kill();
    let before = Contents::of(&[&yard.path("disk"), &yard.path("other")]);
    let run = |v: &str, w: &str| {
        let (v, w) = (format!("v={v}"), format!("w={w}"));
        yard.run(&["writeback", "a", "b", "--state", "state", "--other-disk", "--backing", &v, "--backing", &w])
    };
    run("other", "disk").said(3, &["is the disk of volume w", "not of volume v", "Nothing was changed"]);
    before.unchanged();
    // Nor a part of it; and of copies it is said that they are taken at their word.
    run("other", "copy-of-other").said(3, &["is the disk of volume w"]);
    run("modelled:other", "copy-of-other").said(3, &["is the disk of volume w"]);
    std::os::unix::fs::symlink(yard.path("other"), yard.path("link")).unwrap();
    for path in ["v=link", "v=modelled:link"] {
        let args = ["writeback", "a", "b", "--state", "state", "--other-disk", "--backing", path];
        yard.run(&args).said(3, &["is the disk of volume w"]);
    }
    before.unchanged();
    let written = run("copy-of-disk", "copy-of-other").good().out;
    assert_eq!(written.matches("nothing in the cache could be compared with that disk").count(), 2, "{written}");
    for (disk, byte) in [("copy-of-disk", 1), ("copy-of-other", 2)] {
        assert_eq!(fs::read(yard.path(disk)).unwrap()[..4096], [byte; 4096], "{disk}");
    }
    before.unchanged();
}

/// Both copies of something dirty that nothing later covers are damaged.
fn lose_one(yard: &Yard) {
    let data = dirty_data(yard);
    let meets = |n: usize, o: &Dirty| o.range.start < data[n].range.end && data[n].range.start < o.range.end;
    let lost = (50..data.len()).find(|n| !data[n + 1..].iter().any(|o| meets(*n, o))).map(|n| data[n].clone()).unwrap();
    flip(&yard.path("a"), lost.at[0]);
    flip(&yard.path("b"), lost.at[1]);
}

/// Found by reading. Where whoever read the output had gone, it ended with 0 and without a word: what was lost, or left, was not told.
#[test]
fn a_writeback_whose_output_nobody_reads_any_more_says_that_not_all_is_on_the_disk() {
    let (yard, _, daemon) = with_dirty_data();
    daemon.stop();
    lose_one(&yard);
    let unread = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_headpond"));
        Ended::of(&command.args(args).current_dir(yard.path("")).stdout(writer).output().unwrap())
    };
    unread(&["list-damaged", "a", "b"]).said(1, &["Not all data can be read"]);
    unread(&["repair", "a", "b", "--save", "saved", "--json"]).said(1, &["headpond: "]);
    let args = ["writeback", "a", "b", "--state", "state", "--backing", "disk"];
    unread(&args).said(1, &["Not all is on the disks", "could not be read from any cache device"]);
    // It told to run it again, though the pool had no such volume any more.
    let ended = yard.run(&[&args[..], &["--give-up-lost"]].concat()).said(1, &["Not all is on the disks", "has let go of"]);
    assert!(!ended.err.contains("run it again"), "{ended:?}");
}

/// Found by reading. The second one of two disks for one volume counted, and of two files; and of all volumes but the first "0 B written" was said, as they had been
/// written while the first one was.
#[test]
fn a_writeback_of_two_volumes_tells_how_much_it_wrote_of_each_and_takes_one_disk_for_each() {
    let yard = Yard::new();
    yard.pool();
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    // So slow, and what is dirty so far apart on it, that the other one is written long before it is its turn.
    yard.file("disk", 8 << 30);
    yard.file("other", 16 * MIB);
    yard.run(&["attach", "v", "modelled:disk"]).good();
    yard.run(&["attach", "w", "other"]).good();
    yard.run(&["volume", "create", "journal", "--size", "1MiB"]).good();
    yard.nbd("v").write_many((0..400).map(|n| (n * (13 << 20), vec![1; 4096])));
    yard.nbd("w").write(0, &[2; 4096], true).unwrap();
    daemon.kill();
    let before = Contents::of(&["a", "b", "other"].map(|name| yard.path(name)).each_ref().map(|path| path.as_path()));
    let run = |more: &[&str]| yard.run(&[&["writeback", "a", "b", "--state", "state"], more].concat());
    run(&["--backing", "v=modelled:disk", "--backing", "v=other"]).said(2, &["volume v", "twice", "Nothing was changed"]);
    run(&["--save", "journal=x", "--save", "journal=y"]).said(2, &["volume journal", "twice", "Nothing was changed"]);
    before.unchanged();
    assert!(!yard.path("x").exists() && !yard.path("y").exists());
    let dirty = |volume: usize| {
        let report = check(&yard, &["a", "b"]).1;
        report["summary"]["volumes"][volume]["dirty_bytes"].as_u64().unwrap()
    };
    let dirty = [dirty(0), dirty(1)];
    let written = run(&["--backing", "v=modelled:disk", "--backing", "w=other", "--json"]).good().out;
    let written: Value = serde_json::from_str(&written).unwrap();
    let written = [0, 1].map(|n| written["volumes"][n]["written_bytes"].as_u64().unwrap());
    assert!(dirty[1] > 0 && written == dirty, "{written:?} of {dirty:?}");
}

/// Found by reading. A sector that could not be read, and whose page a mend covered in part, ended it for good: all that it would have come to later was never mended, and a
/// second repair stopped at the same place.
#[test]
fn a_repair_goes_on_behind_a_place_that_it_has_to_leave() {
    let yard = Yard::new();
    let Some(disk) = Disk::new(&yard.path("mount"), SIZE) else { return };
    std::os::unix::fs::symlink(disk.path(), yard.path("b")).unwrap();
    yard.file("a", SIZE);
    yard.run(&["pool", "create", "pool", "a", "b", "--unit", "512", "--segment", "64KiB"]).good();
    yard.file("disk", 16 * MIB);
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", "disk"]).good();
    let mut nbd = yard.nbd("v");
    for n in 0..200u64 {
        nbd.write(n * 8192, &stamp(n + 1, 512), true).unwrap();
    }
    daemon.kill();
    let data = dirty_data(&yard);
    let sound = Contents::of(&[&yard.path("a")]);
    flip(&yard.path("a"), data[10].at[0]);
    // Behind it in the log, so that it comes first.
    let page = data[150].at[1] / 4096 * 4096;
    let page = page..page + 4096;
    disk.cannot_read(&[page]);
    yard.run(&["repair", "a", "b", "--dry-run"]).said(1, &["left as they are"]);
    let ended = yard.run(&["repair", "a", "b", "--save", "saved"]).said(1, &["left as they are"]);
    assert!(ended.out.contains("what lies beside it cannot be read") && ended.out.contains("1 places"), "{ended:?}");
    sound.unchanged();
    // Programs hear of each, as people do.
    let report = yard.run(&["repair", "a", "b", "--dry-run", "--json"]);
    let report: Value = serde_json::from_str(&report.out).unwrap_or_else(|error| panic!("{error}: {report:?}"));
    let findings = report["findings"].as_array().unwrap();
    assert!(
        findings.iter().any(|f| f["kind"] == "unreadable") && report["mended"] == 0 && report["left"].as_u64() >= Some(2),
        "{report}"
    );
}

/// Found by reading. Whether a place was written to since the repair was not asked where another one overlapped it in part, as places of a pool with units of 512 bytes do: what was there before went
/// over what somebody had written.
#[test]
fn places_that_overlap_are_not_put_back_either_where_they_were_written_to_since() {
    let killed = || {
        let yard = Yard::new();
        for device in ["a", "b"] {
            yard.file(device, SIZE);
        }
        yard.run(&["pool", "create", "pool", "a", "b", "--unit", "512"]).good();
        yard.file("disk", 16 * MIB);
        let daemon = yard.serve(&["a", "b"]);
        yard.run(&["attach", "v", "disk"]).good();
        let mut nbd = yard.nbd("v");
        for n in 0..40u64 {
            nbd.write(n * 16384, &stamp(n + 1, 4096), true).unwrap();
        }
        daemon.kill();
        (dirty_data(&yard).len() >= 40).then_some(yard)
    };
    // On a busy machine the disk may have had some of it meanwhile.
    let yard = (0..20).find_map(|_| killed()).expect("a machine with a moment to spare");
    // A record's header, and its data, which begins on the same page and ends on the next.
    let bytes = fs::read(yard.path("a")).unwrap();
    let is_behind_its_header = |data: &u64| bytes[*data as usize - 512..].starts_with(b"HPrc") && data % 4096 >= 512;
    let data = dirty_data(&yard)[..20].iter().map(|dirty| dirty.at[0]).find(is_behind_its_header).unwrap();
    let header = data - 512;
    flip(&yard.path("a"), header + 40);
    flip(&yard.path("a"), data + 100);
    let damaged = Contents::of(&[&yard.path("a")]);
    yard.run(&["repair", "a", "b", "--save", "saved"]).good();
    let undo = || yard.run(&["repair", "a", "b", "--undo", "saved"]);
    for at in [header + 8, data / 4096 * 4096 + 4096 + 9] {
        flip(&yard.path("a"), at);
        let before = Contents::of(&[&yard.path("a")]);
        undo().said(3, &["a was written to", "Nothing was changed"]);
        before.unchanged();
        flip(&yard.path("a"), at);
    }
    undo().good();
    damaged.unchanged();
    // As one that was cut off is done again, to its end.
    undo().good();
    damaged.unchanged();
}

/// Found by reading. What a repair had saved was put back as the file had it by then, whatever had become of it.
#[test]
fn what_has_rotted_in_the_file_of_a_repair_is_not_put_back() {
    let yard = Yard::new();
    yard.pool();
    flip(&yard.path("a"), 64 << 10 | 60);
    let damaged = Contents::of(&[&yard.path("a")]);
    yard.run(&["repair", "a", "b", "--save", "saved"]).told(&["1 places"]);
    let mended = Contents::of(&[&yard.path("a")]);
    let saved = fs::read_to_string(yard.path("saved")).unwrap();
    let (before, old) = saved.split_once("\"old\":\"").unwrap();
    let digit = if old.starts_with('0') { '1' } else { '0' };
    fs::write(yard.path("rotten"), format!("{before}\"old\":\"{digit}{}", &old[1..])).unwrap();
    yard.run(&["repair", "a", "b", "--undo", "rotten"]).said(1, &["line 2", "checksum", "Nothing was changed"]);
    mended.unchanged();
    // One from before there was a checksum is as good as it was.
    let (before, _) = saved.split_once(",\"sum\":").unwrap();
    fs::write(yard.path("older"), format!("{before}}}\n")).unwrap();
    yard.run(&["repair", "a", "b", "--undo", "older"]).good();
    damaged.unchanged();
}

/// Another one had been written and let go of by then, and "nothing was written", it said.
#[test]
fn of_several_volumes_none_is_written_back_where_one_is_refused() {
    let (yard, model, daemon) = with_dirty_data();
    let other = yard.file("other", 16 * MIB);
    yard.run(&["attach", "w", "other"]).good();
    yard.nbd("w").read(4 * MIB, 256 << 10).unwrap();
    yard.nbd("w").write(0, &stamp(1, 4096), true).unwrap();
    daemon.kill();
    // Somebody wrote to it without the cache.
    OpenOptions::new().write(true).open(&other).unwrap().write_all_at(&vec![9; 256 << 10], 4 * MIB).unwrap();
    let before = Contents::of(&[&yard.path("disk"), &other]);
    let args = ["writeback", "a", "b", "--state", "state", "--backing", "v=disk"];
    yard.run(&[&args[..], &["--backing", "w=other"]].concat()).said(3, &["other is not as the cache knows", "volume w"]);
    before.unchanged();
    yard.run(&args).said(1, &["Not all is on the disks"]);
    assert!(fs::read(yard.path("disk")).unwrap() == model.0);
}

/// Found by reading. On a pool of some TiB each of these takes minutes: `check` and `list-damaged` read the beginning of each slot and the checkpoint twice, and `writeback`
/// started up to three rehearsals.
#[test]
fn each_offline_tool_rehearses_one_start_and_reads_the_slots_once() {
    let (yard, _, daemon) = with_dirty_data();
    // So that there is a checkpoint.
    daemon.stop();
    let devices = ["a", "b"].map(|name| yard.path(name));
    let begun = |tool: &mut dyn FnMut(Watch<'_>)| {
        let mut begun = Vec::new();
        tool(&mut |step| {
            let is_first = step.done == if step.what == "rehearsing a start" { 1 } else { 0 };
            begun.extend(Some(step.what).filter(|_| is_first));
            true
        });
        ["rehearsing a start", "reading segment headers", "reading the checkpoint"]
            .map(|what| begun.iter().filter(|it| **it == what).count())
    };
    let media = Media::open(&devices, Duration::ZERO).unwrap();
    let vote = media.vote(None).unwrap();
    let read = begun(&mut |watch| drop(offline::check(&media, vote, &mut |_| Ok(()), watch).unwrap()));
    assert_eq!(read, [1, 1, 1], "check");
    let read = begun(&mut |watch| drop(offline::list_damaged(&media.pool(vote).unwrap(), watch).unwrap()));
    assert_eq!(read, [1, 1, 1], "list-damaged");
    drop(media);
    let what = offline::WriteBack {
        devices: vec![yard.path("a")],
        state: yard.path("nowhere"),
        backings: vec![(String::new(), Spec::new(yard.path("disk").to_str().unwrap()))],
        saves: Vec::new(),
        other_disk: false,
        without_missing: true,
        keep: false,
        give_up_lost: false,
        patience: Duration::ZERO,
    };
    let read = begun(&mut |watch| drop(offline::writeback(&what, watch).unwrap()));
    assert_eq!(read, [1, 1, 1], "writeback");
}

/// It was told that the disk holds all that was written, and can be used by itself.
#[test]
fn a_detach_that_gives_up_what_is_lost_says_how_much_and_that_the_disk_has_not_all() {
    let (yard, _, daemon) = with_dirty_data();
    // All of it is in the last checkpoint.
    daemon.stop();
    lose_one(&yard);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["detach", "v"]).said(1, &["no copy of it can be read", "--give-up-lost"]);
    yard.run(&["detach", "v", "--give-up-lost"])
        .told(&["volume v: detached from pool pool; up to 4 KiB that were lost are given up", "Check its file system"]);
    let events = yard.run(&["events"]).good().out;
    assert!(events.contains("up to 4096 bytes that were lost") && !events.contains("can be used by itself"), "{events}");
    // Where nothing is lost, nothing is given up.
    yard.file("other", 4 * MIB);
    yard.run(&["attach", "w", "other"]).good();
    yard.run(&["detach", "w", "--give-up-lost"]).told(&["its disk holds all that was written"]);
    daemon.stop();
}

/// What was printed up to there was half an object, which no program reads.
#[test]
fn json_that_is_cut_short_is_a_whole_object_and_says_why() {
    let yard = Yard::new();
    for device in ["a", "b"] {
        yard.file(device, 8 << 30);
    }
    yard.run(&["pool", "create", "pool", "a", "b", "--segment", "1MiB"]).good();
    let cut_short = |tool: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headpond"));
        let command = command.args(tool).args(["a", "b", "--json"]).current_dir(yard.path(""));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut out, mut first) = (child.stdout.take().unwrap(), [0; 1]);
        out.read_exact(&mut first).unwrap();
        // It has begun.
        interrupt(&child);
        let mut text = String::from_utf8(first.to_vec()).unwrap();
        out.read_to_string(&mut text).unwrap();
        let object: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        (child.wait().unwrap().code() == Some(1)).then_some(object)
    };
    for (tool, list) in [(&["check"][..], "findings"), (&["dump", "--records"], "segments")] {
        // On a busy machine it may have come to its end before it is interrupted.
        let object = (0..20).find_map(|_| cut_short(tool)).expect("the test wants it to be under way yet");
        assert!(object[list].is_array() && object["error"].as_str().is_some_and(|why| !why.is_empty()), "{object}");
    }
}
