//! The loads of the bench for real: two of them from their beginning to their end, and one that is interrupted. Both leave nothing behind.
//!
//! Skipped where a user is not root, or the kernel's FUSE and loop devices are not there.

mod common;

use common::for_real::{can_run, left};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// They measure: one at a time.
static TURN: Mutex<()> = Mutex::new(());
/// What the modelled devices want.
const MEMORY: u64 = 7 << 30;

fn bench(only: &str, folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headpond"));
    command.args(["bench", "--real", "--quick", "--only", only, "--dir"]).arg(folder);
    command
}

#[test]
fn loads_are_measured_in_pass_through_and_cached_and_the_front_end_by_itself() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !can_run(MEMORY) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    const WARM: &str = "read random 4 KiB x1, warm";
    let only = format!("read random 4 KiB x32, cold, write-back, empty|{WARM}");
    let ended = bench(&only, folder.path()).arg("--json").arg("--report").arg(&page).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    let value: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(value["failures"].as_array().map(Vec::len), Some(0), "{value}");
    let rows = value["rows"].as_array().unwrap();
    // The slow SSDs' loads of that name are not among them: here are no slow SSDs.
    assert!(rows.iter().any(|row| row["load"] == "read random 4 KiB x32, cold"), "{value}");
    for row in rows {
        assert!(row["bare"]["per_s"].as_f64().is_some_and(|it| it > 10.0), "{row}");
        assert!(row["rounds"]["median"].as_f64().is_some_and(|it| it > 0.0), "{row}");
        let cold = row["load"].as_str().unwrap().contains("cold");
        assert_eq!(row["front_end"]["median"].is_f64(), cold, "{row}");
    }
    // What is in the cache is read from there: a disk of 7200 revolutions gives 120 or so a second.
    let is_from_there = |rows: &[serde_json::Value]| {
        let warm = rows.iter().find(|row| row["load"] == WARM).unwrap();
        println!("{warm}");
        warm["ratio"].as_f64().unwrap() > 2.0
    };
    // What is measured once may be of a moment in which the machine had other work.
    let once_more = || {
        let ended = bench(WARM, folder.path()).arg("--json").output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        let value: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        value["rows"].as_array().unwrap().clone()
    };
    assert!(is_from_there(rows) || is_from_there(&once_more()));
    assert!(fs::read_to_string(&page).unwrap().contains("for real"));
    fs::remove_file(&page).unwrap();
    assert!(left(folder.path()).is_empty(), "{:?}", left(folder.path()));
}

#[test]
fn an_interrupted_bench_shows_what_it_has_and_leaves_nothing_behind() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !can_run(MEMORY) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let only = "pass: read stream 64 KiB x4|write stream 1 MiB x4, write-back";
    let mut child = bench(only, folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    // The first of them has ended.
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("1 of 2"), "{first}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let said: Vec<String> = lines.map(Result::unwrap).collect();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said:?}");
    assert!(said.iter().any(|line| line.contains("Interrupted")), "{said:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("of 1 figures"), "{}", String::from_utf8_lossy(&ended.stdout));
    assert!(left(folder.path()).is_empty(), "{:?}", left(folder.path()));
}

#[test]
fn devices_of_the_bench_are_named_with_what_is_wrong_before_anything_is_done_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: u64| {
        let path = folder.path().join(name);
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path.display().to_string()
    };
    let (disk, ssd0, ssd1, small) = (file("disk", 4 << 30), file("ssd0", 1 << 30), file("ssd1", 1 << 30), file("small", 1 << 20));
    let refused = |args: &[&str]| {
        let ended = bench("pass", folder.path()).args(args).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        String::from_utf8(ended.stderr).unwrap()
    };
    let said = refused(&["--disk", &disk, "--ssd", &ssd0, "--ssd", &ssd1]);
    assert!(said.contains("would be erased") && said.contains("--yes-erase"), "{said}");
    let said = refused(&["--disk", &disk, "--ssd", &ssd0]);
    assert!(said.contains("needed twice"), "{said}");
    let said = refused(&["--disk", &disk, "--ssd", &ssd0, "--ssd", &small, "--yes-erase"]);
    assert!(said.contains(&small) && said.contains("1 MiB"), "{said}");
    let said = refused(&["--disk", &disk, "--ssd", &ssd0, "--ssd", &ssd0, "--yes-erase"]);
    assert!(said.contains("given twice"), "{said}");
}

/// It was the same lines with and without it.
#[test]
fn loads_are_listed_as_json_where_that_was_asked_for() {
    let list = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_headpond")).args(["bench", "--list"]).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let listed: Vec<serde_json::Value> = serde_json::from_str(&list(&["--json"])).unwrap();
    assert_eq!(listed.len(), list(&[]).lines().count());
    assert!(listed.iter().all(|load| load["name"].is_string() && load["setting"].is_string()), "{listed:?}");
}
