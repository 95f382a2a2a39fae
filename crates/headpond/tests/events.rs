//! Events: what an administrator must know, in order, each with its next step, over the lives of a daemon.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::http::get;
use common::{LONG, MIB, Nbd, Yard, have_with, served};
use headpond_host::control::{Call, call};
use serde_json::Value;

fn events(yard: &Yard) -> Vec<Value> {
    let said = yard.run(&["events", "--json"]).good().out;
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits until the last events are of these kinds.
fn ends_with(yard: &Yard, kinds: &[&str]) -> Vec<Value> {
    let until = Instant::now() + LONG;
    loop {
        let events = events(yard);
        let all: Vec<&str> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
        if all.ends_with(kinds) {
            return events;
        }
        assert!(Instant::now() < until, "{all:?} does not end with {kinds:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Follows the events, from the last one on; each as it is told.
fn follow(yard: &Yard, complains: Stdio) -> (Child, impl Iterator<Item = Value> + Send + use<>) {
    let mut follow = Command::new(env!("CARGO_BIN_EXE_headpond"))
        .args(["events", "--follow", "--json", "--last", "1", "--socket"])
        .arg(yard.path("control"))
        .stdout(Stdio::piped())
        .stderr(complains)
        .spawn()
        .unwrap();
    let lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    (follow, lines.map_while(Result::ok).map(|line| serde_json::from_str(&line).unwrap()))
}

#[test]
fn events_tell_of_lives_volumes_and_members_and_each_names_its_next_step() {
    let yard = Yard::new();
    let daemon = served(&yard);
    ends_with(&yard, &["started", "volume-attached"]);
    yard.run(&["mode", "v", "write-through"]).good();
    ends_with(&yard, &["volume-mode"]);
    yard.file("c", 64 * MIB);
    yard.run(&["pool", "add", "c"]).good();
    ends_with(&yard, &["member-joined"]);
    yard.run(&["pool", "remove", "b"]).good();
    let told = ends_with(&yard, &["member-removed"]);
    assert!(told.last().unwrap()["what"].as_str().unwrap().contains("/b)"), "{told:?}");
    daemon.kill();

    let kept = yard.run(&["events", "--offline", "--state", "state"]).told(&["member-joined", "next: "]).out;
    assert!(kept.lines().next().unwrap().contains("Z  info     started: "), "{kept}");
    let daemon = yard.serve(&["a", "c"]);
    ends_with(&yard, &["member-removed", "restarted-after-crash"]);
    daemon.stop();
    let daemon = yard.serve(&["a", "c"]);
    let all = ends_with(&yard, &["restarted-after-crash", "stopped", "started"]);
    for event in &all {
        assert!(event["next"].as_str().unwrap().len() > 10 && event["what"].as_str().unwrap().ends_with('.'), "{event}");
    }
    assert!(all.windows(2).all(|pair| pair[0]["number"].as_u64() < pair[1]["number"].as_u64()), "{all:?}");
    for (last, lines) in [("2", 4), ("0", 0)] {
        assert_eq!(yard.run(&["events", "--last", last]).good().out.lines().count(), lines);
    }
    daemon.stop();
    yard.run(&["events"]).said(4, &["headpond serve"]);
}

#[test]
fn a_member_that_is_missing_at_the_start_is_an_event_and_one_that_comes_back_heals_the_pool() {
    let yard = Yard::new();
    served(&yard).stop();
    std::fs::remove_file(yard.path("b")).unwrap();
    let _daemon = yard.serve(&["a", "--wait", "5"]);
    let all = ends_with(&yard, &["started", "problem-at-start"]);
    let last = all.last().unwrap();
    assert!(last["next"].as_str().unwrap().contains("headpond pool add") && last["level"] == "warning", "{last}");
    let (mut follow, mut told) = follow(&yard, Stdio::inherit());
    // It follows when it has told the last one, and of what was before, nothing is.
    let before = told.next().unwrap()["number"].as_u64().unwrap();
    assert!(before >= last["number"].as_u64().unwrap(), "{before}: {last}");
    yard.file("c", 64 * MIB);
    yard.run(&["pool", "add", "c"]).good();
    let told = told.inspect(|event| assert!(event["number"].as_u64().unwrap() > before, "{event}"));
    assert!(told.take(20).any(|event| event["kind"] == "healed"), "it is told while it is followed");
    let _ = follow.kill();
    let _ = follow.wait();
}

/// It ended with the daemon, and nobody who followed heard of what came of that.
#[test]
fn who_follows_hears_of_what_happens_after_the_daemon_was_restarted_too() {
    let yard = Yard::new();
    let daemon = served(&yard);
    ends_with(&yard, &["started", "volume-attached"]);
    let (mut follow, told) = follow(&yard, fs::File::create(yard.path("waits")).unwrap().into());
    let mut told = told.map(|event| event["kind"].as_str().unwrap().to_owned());
    assert_eq!(told.next().as_deref(), Some("volume-attached"));
    daemon.stop();
    let until = Instant::now() + LONG;
    while fs::read_to_string(yard.path("waits")).unwrap().is_empty() {
        assert!(Instant::now() < until, "nobody was told that the daemon has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    let daemon = yard.serve(&["a", "b"]);
    // The last one of a life may be told at its end, or after it.
    let kinds: Vec<String> = told.by_ref().take_while(|kind| kind != "started").collect();
    assert_eq!(kinds, ["stopped"]);
    daemon.kill();
    let _daemon = yard.serve(&["a", "b"]);
    assert_eq!(told.next().as_deref(), Some("restarted-after-crash"));
    let said = fs::read_to_string(yard.path("waits")).unwrap();
    assert!(said.lines().count() <= 2 && said.contains("the daemon is not there just now"), "{said}");
    let _ = follow.kill();
    let _ = follow.wait();
}

/// Nothing was told any more, for ever: the new pool's events had lower numbers than those of the one before.
#[test]
fn who_follows_hears_of_a_pool_that_has_come_in_the_place_of_another_one() {
    let yard = Yard::new();
    let another_life = || yard.serve(&["a", "b"]).stop();
    yard.pool();
    // Each begins behind numbers that a power cut may have taken.
    (0..3).for_each(|_| another_life());
    let daemon = yard.serve(&["a", "b"]);
    let last = ends_with(&yard, &["stopped", "started"]).last().unwrap()["number"].as_u64().unwrap();
    let (mut follow, told) = follow(&yard, Stdio::inherit());
    let (tell, events) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.into_iter().try_for_each(|event| tell.send(event)));
    let next = || events.recv_timeout(Duration::from_secs(30)).expect("nothing is told");
    assert_eq!(next()["number"], last);
    daemon.stop();
    yard.run(&["pool", "destroy", "a", "b"]).good();
    yard.pool();
    let _daemon = yard.serve(&["a", "b"]);
    let first = ends_with(&yard, &["started"]).last().unwrap()["number"].as_u64().unwrap();
    assert!(first < last, "{first} of the new pool, {last} of the old one: nothing is shown");
    // The last one of the old pool may be told at its end.
    let mut numbers = std::iter::from_fn(|| Some(next())).map(|event| event["number"].as_u64().unwrap());
    assert_eq!(numbers.find(|number| *number <= last), Some(first));
    let _ = follow.kill();
    let _ = follow.wait();
}

/// Each was told as a crash that should be reported: the engine had begun, and was not ended.
#[test]
fn a_start_that_is_refused_is_no_crash() {
    let yard = Yard::new();
    yard.pool();
    yard.serve(&["a", "b"]).stop();
    fs::create_dir_all(yard.path("folder/file")).unwrap();
    let with = |nbd: &str, socket: &str| {
        let args = ["a", "b", "--state", "state", "--frontend", "nbd", "--nbd", nbd, "--socket", socket];
        yard.serve_with(&args).err().expect("it is refused")
    };
    with("nbd", "folder").said(1, &["folder"]);
    with("folder", "control").said(1, &["folder"]);
    let daemon = yard.serve(&["a", "b"]);
    let events = yard.run(&["events"]).good().out;
    assert!(events.contains("is served") && !events.contains("crash"), "{events}");
    daemon.stop();
}

fn did(program: &str, args: &[&str], path: &Path) -> bool {
    Command::new(program).args(args).arg(path).status().is_ok_and(|it| it.success())
}

/// A file system in a file, mounted until it is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        did("umount", &["-l"], &self.0);
    }
}

/// Whoever writes to a file system waits, until this is dropped.
struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        did("fsfreeze", &["--unfreeze"], &self.0);
    }
}

/// A state folder on a file system of its own; `None`, and a word, where there can be none.
fn with_state_apart(yard: &Yard) -> Option<Mounted> {
    if !rustix::process::geteuid().is_root() || !have_with("mkfs.ext4", "-V") || !have_with("fsfreeze", "--version") {
        println!("skipped: it takes root, mkfs.ext4 and fsfreeze");
        return None;
    }
    let (image, state) = (yard.file("image", 64 * MIB), yard.path("state"));
    fs::create_dir(&state).unwrap();
    assert!(did("mkfs.ext4", &["-q"], &image));
    if !did("mount", &["-o", "loop", image.to_str().unwrap()], &state) {
        println!("skipped: it takes mounts, and loop devices");
        return None;
    }
    Some(Mounted(state))
}

/// The thread that had told of the disk was waited for without a limit.
#[test]
fn a_stop_is_answered_though_what_is_to_be_told_of_a_late_disk_cannot_be_written() {
    let yard = Yard::new();
    let Some(mounted) = with_state_apart(&yard) else { return };
    served(&yard).stop();
    let (disk, away) = (yard.path("disk"), yard.path("away"));
    fs::rename(&disk, &away).unwrap();
    let mut daemon = yard.serve(&["a", "b", "--config", "toml", "--wait", "1"]);
    ends_with(&yard, &["started", "problem-at-start"]);
    assert!(did("fsfreeze", &["--freeze"], &mounted.0));
    let frozen = Frozen(mounted.0.clone());
    fs::rename(&away, &disk).unwrap();
    let until = Instant::now() + LONG;
    while events(&yard).iter().all(|event| event["kind"] != "volume-served") {
        assert!(Instant::now() < until, "{:?}", yard.run(&["status"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    let (told, answered) = std::sync::mpsc::channel();
    let control = yard.path("control");
    std::thread::spawn(move || told.send(call(&control, &Call::Stop, |_| {}).map_err(|error| error.to_string())));
    let answered = answered.recv_timeout(Duration::from_secs(60));
    drop(frozen);
    assert!(matches!(answered, Ok(Ok(_))), "{answered:?}");
    assert!(daemon.child().wait().unwrap().success());
}

/// Whoever asked waited with whoever was writing there, and for as long.
#[test]
fn a_state_folder_that_answers_nothing_keeps_nobody_from_being_told_how_the_pool_stands_and_what_happened() {
    let yard = Yard::new();
    let Some(mounted) = with_state_apart(&yard) else { return };
    let state = mounted.0.clone();
    let daemon = served(&yard);
    yard.file("other", 4 * MIB);
    ends_with(&yard, &["started", "volume-attached"]);
    assert!(did("fsfreeze", &["--freeze"], &state));
    let frozen = Frozen(state);
    std::thread::scope(|scope| {
        let attach = scope.spawn(|| yard.run(&["attach", "w", "other"]));
        yard.run(&["mode", "v", "write-through"]).good();
        ends_with(&yard, &["volume-mode"]);
        std::thread::sleep(Duration::from_secs(2));
        assert!(!attach.is_finished(), "where its disk is was noted");
        yard.run(&["status"]).told(&["write-through"]);
        yard.run(&["events"]).told(&["was switched from"]);
        assert_eq!(get(&daemon.metrics(), "/metrics").0, 200);
        drop(frozen);
        attach.join().unwrap().good();
    });
    daemon.stop();
    yard.run(&["events", "--offline", "--state", "state"]).told(&["was switched from", "was stopped cleanly"]);
}

/// The thread that looks for disks waited to have the first one's coming written down, or behind others who wrote there; and so no other was looked
/// for. Found by reading.
#[test]
fn a_state_folder_that_answers_nothing_keeps_no_disk_that_comes_from_being_served() {
    let yard = Yard::new();
    let Some(mounted) = with_state_apart(&yard) else { return };
    let daemon = served(&yard);
    yard.file("other", 4 * MIB);
    yard.run(&["attach", "w", "other"]).good();
    daemon.stop();
    let disks = ["disk", "other"].map(|disk| (yard.path(disk), yard.path(&format!("{disk}-away"))));
    disks.iter().for_each(|(disk, away)| fs::rename(disk, away).unwrap());
    let daemon = yard.serve(&["a", "b", "--config", "toml", "--wait", "1"]);
    ends_with(&yard, &["problem-at-start", "problem-at-start"]);
    assert!(did("fsfreeze", &["--freeze"], &mounted.0));
    let frozen = Frozen(mounted.0.clone());
    std::thread::scope(|scope| {
        yard.file("third", 4 * MIB);
        // Whoever notes where a disk is waits for the folder already.
        let attach = scope.spawn(|| yard.run(&["attach", "x", "third"]));
        std::thread::sleep(Duration::from_secs(2));
        for ((disk, away), volume) in disks.iter().zip(["v", "w"]) {
            fs::rename(away, disk).unwrap();
            let until = Instant::now() + LONG;
            while Nbd::connect(&yard.path("nbd"), volume).is_err() {
                assert!(Instant::now() < until, "{volume} is not served: {:?}", yard.run(&["status"]));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        ends_with(&yard, &["volume-served", "volume-served"]);
        assert!(!attach.is_finished(), "it was to wait: {:?}", attach.join());
        drop(frozen);
        attach.join().unwrap().good();
    });
    daemon.stop();
    let kept = yard.run(&["events", "--offline", "--state", "state"]).told(&["was stopped cleanly"]).out;
    assert_eq!(kept.matches("has come; the volume is served").count(), 2, "{kept}");
}

/// The thread that looks how the pool stands waited to have the first event written down: of what came after it nobody was told, be it that data was lost.
/// Found by reading.
#[test]
fn events_are_told_one_after_the_other_though_the_state_folder_answers_nothing() {
    let yard = Yard::new();
    let Some(mounted) = with_state_apart(&yard) else { return };
    let daemon = served(&yard);
    ends_with(&yard, &["started", "volume-attached"]);
    assert!(did("fsfreeze", &["--freeze"], &mounted.0));
    let frozen = Frozen(mounted.0.clone());
    let switches = ["write-through", "write-around", "write-back"];
    for (number, mode) in switches.into_iter().enumerate() {
        yard.run(&["mode", "v", mode]).good();
        ends_with(&yard, &["volume-mode"].repeat(number + 1));
    }
    drop(frozen);
    let told = events(&yard);
    daemon.stop();
    // In the file they are in their order, and each is there once.
    let kept = yard.run(&["events", "--offline", "--state", "state", "--json"]).good().out;
    let kept: Vec<Value> = kept.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(kept.starts_with(&told) && kept.last().unwrap()["kind"] == "stopped", "{kept:?}, of which these were told: {told:?}");
}
