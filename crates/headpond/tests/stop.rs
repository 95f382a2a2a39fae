//! A daemon that ends while somebody waits for all of a volume to be on its disk; and one that does not end.

mod common;

use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, Yard, served};
use headpond_host::control::{Call, call};

/// Nothing but a detach was cancelled: the end waited for all that was dirty, for the time that it had, and failed without its last checkpoint, so
/// that the next start read the log. Found by reading.
#[test]
fn a_stop_cuts_a_flush_or_a_switch_of_the_mode_short_and_says_so_to_whoever_waits_for_it() {
    const BLOCKS: u64 = 12_000;
    let yard = Yard::new();
    yard.pool_and_slow_disk();
    let serve = || yard.serve(&["a", "b", "--config", "toml", "--stop-within", "60"]);
    let mut daemon = serve();
    yard.run(&["attach", "v", "modelled:disk"]).good();
    let places: Vec<u64> = (0..BLOCKS).map(|n| n * 7919 % BLOCKS * (4096 * 300)).collect();
    let flush = Call::Destage { name: "v".into(), deadline_seconds: None };
    let switch = Call::SetMode { name: "v".into(), mode: "write-through".into(), deadline_seconds: None };
    let mut told = Vec::new();
    for long in [flush, switch] {
        yard.nbd("v").write_many(places.iter().map(|at| (*at, at.to_le_bytes().repeat(512))));
        let (tell, progress) = mpsc::channel();
        let control = yard.path("control");
        let client = thread::spawn(move || call(&control, &long, |how_far| drop(tell.send(how_far))));
        progress.recv_timeout(LONG).expect("it is under way");
        // It ends well in its time.
        daemon.stop();
        told.push(client.join().unwrap().unwrap_err().to_string());
        assert!(yard.dirty_at_rest() > 0, "the test wants something to be dirty yet: {told:?}");
        daemon = serve();
    }
    for said in &told {
        for part in [
            "Volume v: cancelled, as the daemon is ending",
            "bytes not on the disk yet",
            "Nothing is lost",
            "Ask for the same again",
        ] {
            assert!(said.contains(part), "{part:?} is not in: {said}");
        }
    }
    assert!(!told[0].contains("mode") && told[1].contains("It is in mode write-through now, and stays in it."), "{told:?}");
    yard.run(&["status"]).told(&["write-through"]);
    let mut nbd = yard.nbd("v");
    for at in places.iter().step_by(100) {
        assert_eq!(nbd.read(*at, 4096).unwrap(), at.to_le_bytes().repeat(512));
    }
    drop(nbd);
    daemon.stop();
}

/// It ended at once, without a word, and systemd took that for a clean end: `pkill -HUP headpond`, or a script that rotates logs, ended all I/O
/// until a person came. Found by reading.
#[test]
fn a_daemon_that_is_told_of_a_hangup_serves_on_through_an_upgrade_too_and_says_so_once() {
    let yard = Yard::new();
    let daemon = served(&yard);
    let times_told = || fs::read_to_string(yard.path("complained")).unwrap().matches("SIGHUP came, and changes nothing").count();
    daemon.signal("HUP");
    let until = Instant::now() + LONG;
    while times_told() == 0 {
        yard.nbd("v").write(0, &[7; 4096], true).unwrap();
        assert!(Instant::now() < until, "nothing is said of it: {}", daemon.complaints());
        thread::sleep(Duration::from_millis(10));
    }
    // The one that it becomes says it for itself.
    daemon.signal("HUP");
    yard.run(&["upgrade", "--cut", "--program", env!("CARGO_BIN_EXE_headpond")]).told(&["is served by Headpond"]);
    daemon.signal("HUP");
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [7; 4096]);
    daemon.stop();
    assert_eq!(times_told(), 2);
}
