//! What tests ask over HTTP: a daemon's metrics, and a Prometheus server of their own.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Yard;

/// What is asked of a server on this host: the status, and what it says.
pub fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    // The old version, whose answers are in one piece.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A Prometheus server that scrapes one address each second, killed at its end.
pub struct Prometheus {
    child: Child,
    address: String,
}

impl Prometheus {
    /// Starts it, and waits until it answers.
    pub fn scraping(yard: &Yard, target: &str) -> Prometheus {
        (0..20).find_map(|_| Prometheus::at_some_port(yard, target)).expect("a port that stays free for a moment")
    }

    /// `None` where another program has come to have the port that was free, or Prometheus has ended for another reason.
    fn at_some_port(yard: &Yard, target: &str) -> Option<Prometheus> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let config = format!(
            "scrape_configs:\n- job_name: headpond\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['{target}']\n"
        );
        fs::write(yard.path("prometheus.yml"), config).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", yard.path("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", yard.path("tsdb").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut prometheus = Prometheus { child, address };
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(&prometheus.address).is_err() || get(&prometheus.address, "/-/ready").0 != 200 {
            assert!(Instant::now() < until, "Prometheus is not up within a minute");
            if prometheus.child.try_wait().unwrap().is_some() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(prometheus)
    }

    /// The values that it has for a query now, NaN left out.
    #[track_caller]
    pub fn query(&self, query: &str) -> Vec<f64> {
        let coded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let (status, answer) = get(&self.address, &format!("/api/v1/query?query={coded}"));
        assert_eq!(status, 200, "{query}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let results = answer["data"]["result"].as_array().unwrap();
        let values = results.iter().map(|result| result["value"][1].as_str().unwrap().parse::<f64>().unwrap());
        values.filter(|value| !value.is_nan()).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
