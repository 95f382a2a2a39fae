//! The log as JSON: each line on standard error is an object.

mod common;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, MIB, Nbd, Yard, served};
use serde_json::Value;

/// The lines, of which each has what every line has.
fn lines(text: &str) -> Vec<Value> {
    let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect();
    for line in &all {
        for field in ["timestamp", "level", "target", "message"] {
            assert!(line[field].as_str().is_some_and(|it| !it.is_empty()), "{field} is not in: {line}");
        }
    }
    all
}

#[test]
fn each_line_of_a_log_in_json_is_an_object_with_its_fields() {
    let yard = Yard::new();
    served(&yard).stop();
    fs::remove_file(yard.path("b")).unwrap();
    fs::rename(yard.path("disk"), yard.path("away")).unwrap();
    let daemon = yard.serve(&["a", "--wait", "5", "--log", "json"]);
    let until = Instant::now() + LONG;
    // A cache device and a disk are missing.
    while lines(&daemon.complaints()).iter().filter(|it| it["kind"] == "problem-at-start").count() < 2 {
        assert!(Instant::now() < until, "{}", daemon.complaints());
        std::thread::sleep(Duration::from_millis(100));
    }
    for line in lines(&daemon.complaints()).iter().filter(|it| it["kind"] == "problem-at-start") {
        assert!(line["level"] == "WARN" && line["next"].as_str().is_some_and(|it| !it.is_empty()), "{line}");
    }
    // So is why a start is refused.
    fs::write(yard.path("toml"), "log = 'json'\n").unwrap();
    let refused = yard.serve_with(&["a", "--wait", "0", "--config", "toml", "--state", "state", "--socket", "other"]);
    let ended = refused.err().expect("a device in use was served").said(1, &["a is in use", "Release it there"]);
    let said = lines(&ended.err);
    assert_eq!((said.len(), &said[0]["level"]), (1, &"ERROR".into()), "{said:?}");
    // The command line comes before: it says how the log is written.
    assert_eq!(yard.serve_with(&["a", "--log", "xml"]).err().expect("there is no such format").code, Some(2));
    daemon.stop();
}

#[test]
fn the_log_is_text_when_nothing_else_is_said() {
    let yard = Yard::new();
    served(&yard).stop();
    fs::rename(yard.path("disk"), yard.path("away")).unwrap();
    let daemon = yard.serve(&["a", "b", "--wait", "5"]);
    assert!(daemon.complaints().contains("headpond: Volume v is not served"), "{}", daemon.complaints());
}

/// It was told at a level that the log does not have by itself. Found by reading.
#[test]
fn where_auto_does_not_come_to_ublk_the_log_says_why_and_what_it_is_instead() {
    if !rustix::process::geteuid().is_root() || Path::new("/dev/ublk-control").exists() {
        println!("skipped: others than root have no ublk, and this host has it");
        return;
    }
    let yard = Yard::new();
    yard.pool();
    let daemon = yard.serve_with(&["a", "b", "--frontend", "auto", "--socket", "control", "--state", "state"]).unwrap();
    for part in ["WARN", "There are no ublk devices here: ", "Put that right and restart"] {
        assert!(daemon.complaints().contains(part), "{part:?} is not in: {}", daemon.complaints());
    }
    daemon.stop();
}

/// Whoever read standard error has gone, as `tee` does when its terminal is closed. The first warning after that ended the thread that gave it: the one that
/// starts the daemon, or the engine's.
#[test]
fn a_daemon_whose_log_nobody_reads_any_more_serves_on() {
    for log in ["text", "json"] {
        let yard = Yard::new();
        served(&yard).stop();
        fs::remove_file(yard.path("b")).unwrap();
        let unread = ["bash", "-c", "exec \"$0\" \"$@\" 2> >(:)", env!("CARGO_BIN_EXE_headpond")];
        let args =
            ["--frontend", "nbd", "--nbd", "nbd", "--socket", "control", "--state", "state", "a", "--wait", "2", "--log", log];
        let daemon = yard.serve_by(&unread, &args).unwrap();
        yard.run(&["status"]).told(&["DEGRADED"]);
        let mut nbd = yard.nbd("v");
        nbd.write(0, &[7; 4096], true).unwrap();
        assert_eq!(nbd.read(0, 4096).unwrap(), [7; 4096]);
        daemon.stop();
    }
}

/// Asks for so many blocks that the disk does not have any more, each of which is a line in the log.
fn fail(nbd: &mut Nbd, reads: u64) {
    // Far apart, and in no order: each is read by itself.
    let offsets: Vec<u64> = (0..reads).map(|n| MIB + n * 7919 % reads * 8192).collect();
    for some in offsets.chunks(50) {
        nbd.send(&some.iter().flat_map(|at| Nbd::request(0, 0, *at, 4096, &[])).collect::<Vec<_>>()).unwrap();
        for at in some {
            let error = nbd.answer(&mut [0; 4096]).expect_err("there is nothing to be read");
            assert_eq!(error.raw_os_error(), Some(5), "{error} at {at}");
        }
    }
}

/// Whoever read standard error was there and did not read: a terminal that was stopped by Ctrl-S, or a journal that waits for its own disk. The engine's
/// thread waited in the midst of a line about one disk, and nothing of any volume was answered, nor a stop. Found by reading.
#[test]
fn a_daemon_whose_log_is_not_read_serves_all_volumes_tells_what_it_left_out_and_ends() {
    const READS: u64 = 8000;
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", MIB + READS * 8192);
    yard.file("other", 4 * MIB);
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let (reader, writer) = io::pipe().unwrap();
    let args =
        ["--frontend", "nbd", "--nbd", "nbd", "--socket", "control", "--state", "state", "--log", "json", "--config", "toml"];
    let program = [env!("CARGO_BIN_EXE_headpond")];
    let mut daemon = yard.serve_logging_to(writer, &program, &[&args[..], &["a", "b"]].concat()).unwrap();
    yard.run(&["attach", "v", "disk"]).good();
    yard.run(&["attach", "w", "other"]).good();
    let (mut v, mut w) = (yard.nbd("v"), yard.nbd("w"));
    [&v, &w].iter().for_each(|nbd| nbd.patience(LONG));
    w.write(0, &[7; 4096], true).unwrap();
    File::options().write(true).open(yard.path("disk")).unwrap().set_len(MIB).unwrap();
    fail(&mut v, READS);
    assert_eq!(w.read(0, 4096).unwrap(), [7; 4096]);
    yard.run(&["status"]).good();
    // It is read again, for a while.
    let reading = thread::spawn(move || {
        let (mut reader, mut text, mut before) = (BufReader::new(reader), String::new(), 0);
        while !text[before..].contains("left_out") {
            before = text.len();
            assert!(reader.read_line(&mut text).unwrap() > 0, "it has ended: {text}");
        }
        (reader, text)
    });
    let until = Instant::now() + LONG;
    while !reading.is_finished() {
        assert!(Instant::now() < until, "nothing is said of lines that were left out");
        thread::sleep(Duration::from_millis(10));
    }
    let (_unread, text) = reading.join().unwrap();
    let told = lines(&text);
    let left_out = told.last().unwrap()["left_out"].as_u64().unwrap();
    let ends = told.iter().filter(|line| line["message"].as_str().unwrap().contains("the content ends")).count() as u64;
    assert!(ends > 0 && left_out > 0 && ends + left_out >= READS, "{ends} lines, and {left_out} that were left out");
    fail(&mut v, READS);
    daemon.signal("TERM");
    let until = Instant::now() + LONG;
    let status = loop {
        match daemon.child().try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(Instant::now() < until, "it does not end"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
}
