//! What is preloaded is in the cache before it is asked for, and what is pinned is there again after a restart.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{Daemon, MIB, Yard};
use headpond_host::report::{Report, Volume};

/// A pool with a volume `v` of 64 MiB whose disk holds something.
fn served(yard: &Yard) -> Daemon {
    yard.pool();
    fs::write(yard.path("disk"), disk()).unwrap();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    daemon
}

fn disk() -> Vec<u8> {
    (0..64 * MIB).map(|n| (n / 512 % 251) as u8).collect()
}

fn volume(yard: &Yard) -> Volume {
    let report: Report = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
    report.volumes.into_iter().next().unwrap()
}

#[test]
fn what_is_preloaded_is_read_without_the_disk() {
    let yard = Yard::new();
    let daemon = served(&yard);
    let mut nbd = yard.nbd("v");
    let written = vec![0xee; 4096];
    nbd.write(9 * MIB, &written, false).unwrap();
    yard.run(&["preload", "v:8MiB+4MiB", "v:20MiB+512"]).told(&["of 4.0 MiB read into the cache", "were there already"]);
    let before = volume(&yard);
    assert!(before.cached_bytes >= 4 * MIB, "{before:?}");
    let mut expected = disk()[(8 * MIB) as usize..(12 * MIB) as usize].to_vec();
    expected[MIB as usize..][..4096].copy_from_slice(&written);
    for n in 0..64 {
        let (at, len) = (n * 65536, 65536);
        assert!(nbd.read(8 * MIB + at, len).unwrap() == expected[at as usize..][..len], "at {at}");
    }
    let after = volume(&yard);
    assert_eq!(after.requests.miss, before.requests.miss);
    assert_eq!(after.requests.partial_hit, before.requests.partial_hit);
    yard.run(&["preload", "v:8MiB+4MiB"]).told(&["0 B of 4 MiB read", "4 MiB were there already"]);
    drop(nbd);
    daemon.stop();
}

#[test]
fn what_is_pinned_is_brought_back_after_a_restart() {
    let yard = Yard::new();
    let daemon = served(&yard);
    yard.run(&["pin", "v:1MiB+2MiB"]).told(&["pinned: 2 MiB of volume v"]);
    let is_there = || {
        let until = Instant::now() + Duration::from_secs(30);
        while volume(&yard).cached_bytes < 2 * MIB {
            assert!(Instant::now() < until, "it is not brought: {:?}", volume(&yard));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    is_there();
    yard.run(&["status"]).told(&["pinned: 2 MiB of volume v"]);
    // Pass-through lets go of all that is cached; what is pinned stays so.
    yard.run(&["mode", "v", "pass-through"]).good();
    assert_eq!(volume(&yard).cached_bytes, 0);
    daemon.kill();
    let daemon = yard.serve(&["a", "b"]);
    assert_eq!((volume(&yard).pinned_bytes, volume(&yard).cached_bytes), (2 * MIB, 0));
    yard.run(&["mode", "v", "write-back"]).good();
    is_there();
    yard.run(&["unpin", "v:2MiB+64MiB"]).said(2, &["goes beyond the end of volume v", "Nothing was changed"]);
    yard.run(&["unpin", "v:2MiB+62MiB"]).good();
    yard.run(&["pin", "--list", "v"]).told(&["v: 1 MiB pinned", "v:1048576+1048576"]);
    yard.run(&["unpin", "--all", "v"]).good();
    yard.run(&["pin", "--list", "v"]).told(&["v: 0 B pinned"]);
    daemon.stop();
    let daemon = yard.serve(&["a", "b"]);
    assert_eq!(volume(&yard).pinned_bytes, 0);
    daemon.stop();
}

#[test]
fn what_cannot_be_preloaded_or_pinned_is_refused_with_what_to_do() {
    let yard = Yard::new();
    let daemon = served(&yard);
    yard.run(&["preload", "w:0+4096"]).said(2, &["There is no volume w", "Choose one of its volumes: v"]);
    yard.run(&["preload", "none"]).said(1, &["none cannot be read", "Name files that are there"]);
    yard.run(&["preload", "v:0+65MiB"]).said(2, &["goes beyond the end of volume v, which has 67108864 bytes"]);
    yard.run(&["pin", "v:0+64MiB"]).said(1, &["That is more than", "Name less"]);
    yard.run(&["pin", "disk"]).said(2, &["is no volume of pool pool", "VOLUME:OFFSET+LENGTH"]);
    yard.run(&["pin", "--journal", "v"]).said(2, &["has no block device on this host"]);
    yard.run(&["preload", "--cancel", "v"]).said(1, &["Nothing is being preloaded"]);
    yard.run(&["mode", "v", "pass-through"]).good();
    yard.run(&["preload", "v:0+4096"]).said(1, &["pass-through", "headpond mode"]);
    assert_eq!(volume(&yard).pinned_bytes, 0);
    daemon.stop();
}

/// They were kept by its name, and nobody had told the daemon that the volume was gone.
#[test]
fn a_volume_has_no_pins_and_no_share_of_one_that_had_its_name() {
    let yard = Yard::new();
    let daemon = served(&yard);
    yard.run(&["pin", "v:1MiB+2MiB"]).good();
    yard.run(&["share", "v", "--min", "20"]).good();
    daemon.stop();
    yard.run(&["writeback", "a", "b", "--backing", "v=disk", "--state", "state"]).told(&["the pool has let go of it"]);
    fs::copy(yard.path("disk"), yard.path("other")).unwrap();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "other"]).good();
    daemon.stop();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["pin", "--list", "v"]).told(&["v: 0 B pinned"]);
    assert_eq!(volume(&yard).share.min_percent, 0);
    daemon.stop();
}
