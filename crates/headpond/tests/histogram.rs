//! `headpond histogram`: requests that are known, by size, time and what became of them.

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Yard, served};
use serde_json::Value;

#[test]
fn requests_are_shown_by_time_by_size_and_by_what_became_of_them() {
    let yard = Yard::new();
    let _daemon = served(&yard);
    let page = yard.run(&["histogram"]).told(&["reads: 9 requests", "writes: 8 requests", "flushes: 1 requests", "p99.9"]).out;
    let row = |name: &str| page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in:\n{page}"));
    assert!(row("read hit").split_whitespace().any(|word| word == "8"), "{page}");
    assert!(row("read miss").contains("11.1 %") && row("write absorbed").contains("100.0 %"), "{page}");
    let sizes: Vec<&str> = page.lines().filter(|line| line.trim_start().starts_with("4 KiB")).collect();
    assert_eq!(sizes.len(), 2, "all reads and all writes have 4 KiB: {page}");
    assert!(sizes.iter().all(|line| line.contains("100.0 %") && line.contains(&"█".repeat(40))), "{page}");

    let value: Value = serde_json::from_str(&yard.run(&["histogram", "--json"]).good().out).unwrap();
    let hit = value["kinds"].as_array().unwrap().iter().find(|kind| kind["fate"] == "hit").unwrap();
    assert_eq!((hit["requests"].as_u64(), hit["bytes"].as_u64()), (Some(8), Some(8 * 4096)), "{value}");
    assert_eq!(hit["sizes_bytes"]["buckets"], serde_json::json!([[4096, 8]]));
    let (p50, p99) = (&hit["quantiles_seconds"]["p50"], &hit["quantiles_seconds"]["p99"]);
    assert!(p50.as_f64().unwrap() > 0.0 && p50.as_f64() <= p99.as_f64(), "{value}");
    yard.run(&["histogram", "--volume", "w"]).said(2, &["no volume w", "v"]);
}

#[test]
fn over_a_time_only_what_comes_in_it_counts() {
    let yard = Yard::new();
    let _daemon = served(&yard);
    yard.run(&["histogram", "--over", "0.1"]).told(&["no requests in "]);
    let over = |seconds: u64| -> Value {
        let child = Command::new(env!("CARGO_BIN_EXE_headpond"))
            .args(["histogram", "--over", &seconds.to_string(), "--volume", "v", "--json", "--socket"])
            .arg(yard.path("control"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_secs(seconds) / 3);
        let mut nbd = yard.nbd("v");
        for n in 0..5 {
            nbd.read(n * 4096, 8192).unwrap();
        }
        serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap()
    };
    let is_right = |value: &Value| {
        let ops = value["ops"].as_array().unwrap();
        ops.len() == 1 && (ops[0]["op"].as_str(), ops[0]["requests"].as_u64()) == (Some("read"), Some(5))
    };
    // On a busy machine it may look for the first time when they have come, or for the second time before: then it is given more time.
    let mut value = over(3);
    if !is_right(&value) {
        value = over(30);
    }
    assert!(is_right(&value), "{value}");
    yard.run(&["histogram", "--over", "0"]).said(2, &["no time", "Nothing was done"]);
}
