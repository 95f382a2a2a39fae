//! Metrics over HTTP: what a scrape gets, and what Debian's promtool says of it.

mod common;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::http::get;
use common::{Daemon, MIB, Yard, have};

/// A pool with a volume that was used a little, and where its metrics are.
fn served(yard: &Yard) -> (Daemon, String) {
    let daemon = common::served(yard);
    let address = daemon.metrics();
    (daemon, address)
}

/// The value of the sample that has all of these parts.
fn value(text: &str, parts: &[&str]) -> f64 {
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#') && parts.iter().all(|part| l.contains(part))).collect();
    assert_eq!(lines.len(), 1, "{parts:?}: {lines:?}");
    lines[0].rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_scrape_gets_what_status_shows_and_how_long_requests_took() {
    let yard = Yard::new();
    let (daemon, address) = served(&yard);
    let (status, text) = get(&address, "/metrics");
    assert_eq!(status, 200);
    for (parts, wanted) in [
        (&["headpond_volume_requests_total{", "fate=\"absorbed\"", "volume=\"v\""][..], 8.0),
        (&["headpond_volume_request_bytes_total{", "fate=\"absorbed\""], 8.0 * 4096.0),
        (&["headpond_volume_requests_total{", "fate=\"hit\""], 8.0),
        (&["headpond_volume_requests_total{", "fate=\"miss\""], 1.0),
        (&["headpond_volume_requests_total{", "fate=\"write_bypass\"", "reason=\"stream\""], 0.0),
        (&["headpond_volume_size_bytes{"], 4.0 * MIB as f64),
        (&["headpond_member_in_sync{", "member=\"1\""], 1.0),
        (&["headpond_pool_degraded{"], 0.0),
        (&["headpond_pool_lacking_bytes{"], 0.0),
        (&["headpond_request_duration_seconds_count{", "op=\"write\"", "fate=\"absorbed\""], 8.0),
        (&["headpond_request_duration_seconds_count{", "op=\"read\"", "fate=\"miss\""], 1.0),
        (&["headpond_request_size_bytes_bucket{", "op=\"read\"", "fate=\"hit\"", "le=\"4096\""], 8.0),
        (&["headpond_request_size_bytes_bucket{", "op=\"read\"", "fate=\"hit\"", "le=\"2048\""], 0.0),
        (&["headpond_member_failures_total{", "member=\"0\""], 0.0),
        (&["headpond_request_duration_seconds_bucket{", "op=\"flush\"", "le=\"+Inf\""], 1.0),
    ] {
        assert!((value(&text, parts) - wanted).abs() < 0.5, "{parts:?} is not {wanted}:\n{text}");
    }
    assert!(value(&text, &["headpond_request_duration_seconds_sum{", "op=\"write\""]) > 0.0);
    assert_eq!(get(&address, "/").0, 404);
    let taken = yard.serve_with(&["a", "b", "--state", "state", "--socket", "other", "--wait", "0", "--metrics", "nowhere"]);
    taken.err().expect("no address").said(2, &["nowhere"]);
    daemon.stop();
    assert!(TcpStream::connect(&address).is_err(), "they are served by nobody");
}

/// The pool was not started, for figures: as the packaged service, which has no network by itself, for whoever had followed the manual.
#[test]
fn a_pool_whose_metrics_cannot_be_served_is_served_without_them_and_says_so() {
    let yard = Yard::new();
    yard.pool();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().to_string();
    for address in [taken.as_str(), "192.0.2.1:99"] {
        let daemon = yard.serve(&["a", "b", "--metrics", address]);
        let at = format!("Metrics cannot be served at {address}: ");
        let parts = ["served, but without its metrics", at.as_str(), "metrics.conf", "another address", "restart"];
        let said = daemon.complaints();
        assert!(parts.iter().all(|part| said.contains(part)) && !daemon.said.contains("http"), "{}: {said}", daemon.said);
        yard.run(&["status"]).told(&parts);
        yard.run(&["status", "--json"]).told(&parts);
        // As it is it can be upgraded.
        yard.run(&["upgrade", "--cut", "--program", env!("CARGO_BIN_EXE_headpond")]).told(&["is served by Headpond"]);
        yard.run(&["status"]).told(&parts);
        daemon.stop();
    }
}

#[test]
fn promtool_has_nothing_to_say_against_the_metrics() {
    if !have("promtool") {
        return;
    }
    let yard = Yard::new();
    let (_daemon, address) = served(&yard);
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(get(&address, "/metrics").1.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

/// Whoever reached the address had only to ask a few times without reading the answers, and nobody else was answered any more; nor did the
/// daemon end.
#[test]
fn connections_that_say_nothing_or_hear_nothing_keep_neither_a_scrape_from_its_metrics_nor_the_daemon_from_ending() {
    let yard = Yard::new();
    let (daemon, address) = served(&yard);
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for mut stream in idle.iter().skip(150) {
        // Some of these are closed already.
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:");
    }
    for _ in 0..8 {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write_all(&b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100)).is_ok() {}
        std::mem::forget(stream);
    }
    let (ask, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || ask.send(get(&address, "/metrics").0));
    assert_eq!(answered.recv_timeout(Duration::from_secs(30)), Ok(200));
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap().count();
    assert!(threads < 100, "{threads} threads");
    daemon.stop();
    drop(idle);
}
