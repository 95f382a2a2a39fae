//! What of a pool a volume is sure of, and may have at most: said while it is served, kept over restarts.

mod common;

use std::fs::File;

use common::{Daemon, MIB, Yard};
use headpond_host::report::{Report, Share};
use serde_json::Value;

/// A pool with the volumes `v` and `w` of 64 MiB.
fn served(yard: &Yard) -> Daemon {
    yard.pool();
    let daemon = yard.serve(&["a", "b"]);
    for (name, disk) in [("v", "disk"), ("w", "other")] {
        File::create(yard.path(disk)).unwrap().set_len(64 * MIB).unwrap();
        yard.run(&["attach", name, disk]).good();
    }
    daemon
}

fn share(yard: &Yard, name: &str) -> Share {
    let report: Report = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
    report.volumes.into_iter().find(|volume| volume.name == name).unwrap().share
}

fn percents(yard: &Yard, name: &str) -> (u8, u8) {
    let share = share(yard, name);
    (share.min_percent, share.max_percent)
}

#[test]
fn a_share_is_there_again_after_a_restart_and_a_kill() {
    let yard = Yard::new();
    let daemon = served(&yard);
    assert_eq!(percents(&yard, "v"), (0, 100));
    yard.run(&["share", "v", "--min", "20", "--max", "60"]).told(&["volume v:", "at least 20 %", "at most 60 %"]);
    yard.run(&["share", "w", "--max", "40"]).good();
    daemon.kill();
    let daemon = yard.serve(&["a", "b"]);
    assert_eq!((percents(&yard, "v"), percents(&yard, "w")), ((20, 60), (0, 40)));
    yard.run(&["status"]).told(&["share of volume v: ", "at most 40 %"]);
    // What is not named stays.
    yard.run(&["share", "v", "--min", "30"]).good();
    yard.run(&["share", "w", "--max", "100"]).good();
    daemon.stop();
    let daemon = yard.serve(&["a", "b"]);
    assert_eq!((percents(&yard, "v"), percents(&yard, "w")), ((30, 60), (0, 100)));
    // Another volume of the name is another one.
    yard.run(&["detach", "v"]).good();
    yard.run(&["attach", "v", "disk"]).good();
    assert_eq!(percents(&yard, "v"), (0, 100));
    daemon.stop();
}

#[test]
fn what_a_volume_holds_is_told_in_bytes_of_whole_segments() {
    let yard = Yard::new();
    let daemon = served(&yard);
    let mut nbd = yard.nbd("v");
    nbd.write(MIB, &[0xee; 4096], false).unwrap();
    yard.run(&["share", "v", "--min", "10"]).good();
    let told: Value = serde_json::from_str(&yard.run(&["share", "v", "--json"]).good().out).unwrap();
    let share = share(&yard, "v");
    assert_eq!(told["held_bytes"], share.held_bytes);
    assert!(share.held_bytes > 0 && share.min_bytes > 0 && share.min_bytes < 128 * MIB / 10, "{share:?}");
    assert_eq!(told["max_bytes"], Value::Null);
    drop(nbd);
    daemon.stop();
}

#[test]
fn what_cannot_be_had_is_refused_with_what_to_do() {
    let yard = Yard::new();
    let daemon = served(&yard);
    yard.run(&["share", "v", "--min", "50"]).good();
    yard.run(&["share", "w", "--min", "41"]).said(1, &["Volume w: ", "leave 40 percent", "Nothing was changed"]);
    yard.run(&["share", "v", "--max", "49"]).said(1, &["Volume v: ", "no more than its maximum", "Nothing was changed"]);
    yard.run(&["share", "none", "--max", "49"]).said(1, &["There is no volume none"]);
    yard.run(&["share", "v", "--max", "101"]).said(2, &["101"]);
    yard.run(&["volume", "create", "j", "--size", "1MiB"]).good();
    yard.run(&["share", "j", "--max", "50"]).said(3, &["no backing device"]);
    assert_eq!((percents(&yard, "v"), percents(&yard, "w")), ((50, 100), (0, 100)));
    daemon.stop();
}
