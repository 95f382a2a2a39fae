//! A budget of drive writes, as an administrator sees it.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::http::get;
use common::{LONG, MIB, Yard};
use serde_json::Value;

#[test]
fn a_spent_budget_sends_writes_to_the_disk_and_is_told_everywhere() {
    let yard = Yard::new();
    yard.pool();
    let disk = yard.file("disk", 4 * MIB);
    let toml = "[metrics]\nlisten = '127.0.0.1:0'\n[engine]\nroute = false\ndrive_writes_per_day = 0.001\n";
    fs::write(yard.path("toml"), toml).unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    let before = yard.run(&["status"]).good().out;
    assert!(before.contains("endurance: 0.001 drive writes per day") && before.contains("nothing is held back"), "{before}");
    yard.run(&["attach", "v", "disk"]).good();
    let mut nbd = yard.nbd("v");
    // What the attachment alone took is more than such a budget has.
    for n in 0..64 {
        nbd.write(n * 16384, &[n as u8 + 1; 4096], false).unwrap();
        nbd.read(2 * MIB + n * 16384, 4096).unwrap();
    }
    nbd.flush().unwrap();
    assert!((0..64).all(|n| nbd.read(n * 16384, 4096).unwrap() == [n as u8 + 1; 4096]));
    let on_disk = fs::read(&disk).unwrap();
    assert!((0..64).filter(|n| on_disk[n * 16384] == *n as u8 + 1).count() >= 48, "most went to the disk");
    let status: Value = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
    let endurance = &status["endurance"];
    assert_eq!(endurance["drive_writes_per_day"], 0.001, "{status}");
    assert!(endurance["reads_held_back"] == true && endurance["writes_held_back"] == true, "{endurance}");
    let member = &status["members"][0];
    assert!(member["budget_left_bytes"].as_i64().unwrap() < 0 && member["budget_day_bytes"] == 64 * MIB / 1000, "{member}");
    assert!(member["written_day_bytes"].as_u64().unwrap() > 64 * MIB / 1000 / 8, "{member}");
    yard.run(&["status"]).told(&["HELD BACK", "a part of the new writes", "in the last day cache device 0 was written"]);
    let text = get(&daemon.metrics(), "/metrics").1;
    let sample = |start: &str| text.lines().any(|line| line.starts_with(start) && !line.ends_with(" 0"));
    assert!(sample("headpond_pool_held_back{pool=\"pool\",what=\"writes\"}"), "{text}");
    assert!(text.lines().any(|l| l.contains("reason=\"endurance\"") && !l.ends_with(" 0")), "{text}");
    assert!(text.lines().any(|l| l.contains("fate=\"held_back\"") && !l.ends_with(" 0")), "{text}");
    let until = Instant::now() + LONG;
    loop {
        let said = yard.run(&["events"]).good().out;
        if said.contains("held-back: ") {
            assert!(said.contains("pool pool") && said.contains("drive_writes_per_day"), "{said}");
            break;
        }
        assert!(Instant::now() < until, "{said}");
        std::thread::sleep(Duration::from_millis(100));
    }
    daemon.stop();
}
