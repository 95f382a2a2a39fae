//! Metrics over HTTP: what a scrape gets, what Debian's promtool says of it, and a Prometheus server that scrapes.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Daemon, MIB, Yard, have};

/// What is asked of a server on this host: the status, and what it says.
fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A pool with a volume that was used a little, and where its metrics are.
fn served(yard: &Yard) -> (Daemon, String) {
    yard.pool();
    yard.file("disk", 4 * MIB);
    fs::write(yard.path("toml"), "[metrics]\nlisten = '127.0.0.1:0'\n[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    let address = daemon.said.split_once("metrics at http://").unwrap().1.split('/').next().unwrap().to_owned();
    yard.run(&["attach", "v", "disk"]).good();
    let mut nbd = yard.nbd("v");
    for n in 0..8 {
        nbd.write(n * 4096, &[7; 4096], false).unwrap();
    }
    nbd.read(0, 4096).unwrap();
    nbd.read(2 * MIB, 4096).unwrap();
    nbd.flush().unwrap();
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
        (&["headpond_volume_requests_total{", "fate=\"hit\""], 1.0),
        (&["headpond_volume_requests_total{", "fate=\"miss\""], 1.0),
        (&["headpond_volume_requests_total{", "fate=\"write_bypass\"", "reason=\"stream\""], 0.0),
        (&["headpond_volume_size_bytes{"], 4.0 * MIB as f64),
        (&["headpond_member_in_sync{", "member=\"1\""], 1.0),
        (&["headpond_pool_degraded{"], 0.0),
        (&["headpond_request_duration_seconds_count{", "op=\"write\""], 8.0),
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
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let taken = yard.try_serve(&["a", "b", "--metrics", &address]).err().expect("the address is taken");
    taken.said(1, &[&address, "The pool is not served", "another address"]);
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

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_prometheus_server_scrapes_the_daemon() {
    if !have("prometheus") {
        return;
    }
    let yard = Yard::new();
    let (_daemon, address) = served(&yard);
    let own = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let config =
        format!("scrape_configs:\n- job_name: headpond\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['{address}']\n");
    fs::write(yard.path("prometheus.yml"), config).unwrap();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", yard.path("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", yard.path("tsdb").display()))
        .arg(format!("--web.listen-address={own}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _prometheus = Ends(child.unwrap());
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let ready = TcpStream::connect(&own).is_ok();
        let answer = if ready { get(&own, "/api/v1/query?query=headpond_volume_dirty_bytes").1 } else { String::new() };
        if answer.contains("\"volume\":\"v\"") && answer.contains("\"success\"") {
            return;
        }
        assert!(Instant::now() < until, "not scraped within a minute: {answer}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
