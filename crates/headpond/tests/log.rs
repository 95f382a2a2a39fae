//! The log as JSON: each line on standard error is an object.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{LONG, Yard, served};
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
