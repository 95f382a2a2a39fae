//! `headpond stat`: what its lines say of a load that is known.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::{MIB, Yard, served};
use serde_json::Value;

#[test]
fn without_an_interval_there_is_one_line_of_averages_since_the_start() {
    let yard = Yard::new();
    let _daemon = served(&yard);
    let said = yard.run(&["stat"]).good().out;
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 2, "{said}");
    let cell = |name: &str| lines[1][lines[0].iter().position(|it| *it == name).unwrap()];
    // Nine reads: eight hits, one miss. Eight writes, all absorbed.
    assert_eq!((cell("hit%"), cell("abs%"), cell("err/s")), ("89", "100", "0"), "{said}");
    let value: Value = serde_json::from_str(&yard.run(&["stat", "--json"]).good().out).unwrap();
    let happened = |rate: &Value| (rate.as_f64().unwrap() * value["seconds"].as_f64().unwrap()).round();
    assert_eq!((happened(&value["reads"]["per_second"]), happened(&value["writes"]["per_second"])), (9.0, 8.0), "{value}");
    assert_eq!(happened(&value["writes"]["bytes_per_second"]), 8.0 * 4096.0);
    assert_eq!(happened(&value["flushes_per_second"]), 1.0);
    // On a slow machine the disk has been idle for long enough that it may be clean by now.
    assert!(value["dirty_bytes"].as_u64().is_some_and(|dirty| dirty <= 8 * 4096), "{value}");
    let fate = |name: &str| value["fates"].as_array().unwrap().iter().find(|fate| fate["fate"] == name).unwrap().clone();
    assert_eq!((happened(&fate("hit")["per_second"]), happened(&fate("absorbed")["per_second"])), (8.0, 8.0));
    assert!(value["read_ms"].as_f64().unwrap() > 0.0 && value["members"].as_array().unwrap().len() == 2, "{value}");
    // Each copy of eight blocks, at least, went to each cache device, and the miss to the disk.
    assert!(happened(&value["members"][1]["writes"]["bytes_per_second"]) >= 8.0 * 4096.0, "{value}");
    assert!(happened(&value["disks"][0]["reads"]["per_second"]) >= 1.0, "{value}");
    assert!(value["disks"][0]["busy_percent"].as_f64().unwrap() > 0.0, "{value}");
    yard.run(&["stat", "--volume", "w"]).said(2, &["no volume w", "v"]);
    yard.run(&["stat", "0"]).said(2, &["no interval", "Nothing was done"]);
}

#[test]
fn with_an_interval_each_line_is_what_happened_in_it() {
    let yard = Yard::new();
    let daemon = served(&yard);
    let mut child = Command::new(env!("CARGO_BIN_EXE_headpond"))
        .args(["stat", "0.5", "--json", "--socket"])
        .arg(yard.path("control"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let idle = next();
    assert_eq!(idle["writes"]["per_second"], 0.0, "what was before the first line is not in it: {idle}");
    assert_eq!(idle["hit_percent"], Value::Null);
    let mut nbd = yard.nbd("v");
    for n in 0..40 {
        nbd.write((n * 37 % 64) * 65536, &[n as u8; 4096], false).unwrap();
    }
    let mut seen = 0.0;
    for _ in 0..120 {
        let line = next();
        let seconds = line["seconds"].as_f64().unwrap();
        // They come by the clock: after one that was late the next is short. What is in them is added up.
        assert!(seconds > 0.0 && seconds < 60.0, "{line}");
        seen += line["writes"]["per_second"].as_f64().unwrap() * seconds;
        if seen > 39.5 {
            break;
        }
    }
    assert_eq!(seen.round(), 40.0, "each write is in one line, and in no other");
    daemon.kill();
    let end = child.wait_with_output().unwrap();
    assert_eq!(end.status.code(), Some(4), "{}", String::from_utf8_lossy(&end.stderr));
    assert!(String::from_utf8_lossy(&end.stderr).contains("headpond serve"));
    assert!(yard.path("disk").metadata().unwrap().len() == 4 * MIB);
}

#[test]
fn the_header_comes_again_and_the_count_ends_it() {
    let yard = Yard::new();
    let _daemon = served(&yard);
    let said = yard.run(&["stat", "0.05", "41"]).good().out;
    assert_eq!((said.lines().count(), said.lines().filter(|line| line.contains("hit%")).count()), (44, 3), "{said}");
}
