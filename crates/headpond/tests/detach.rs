//! A daemon that ends while a volume is being detached.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::silent::Disk;
use common::{MIB, Nbd, Yard};
use headpond_host::claim::Claim;
use headpond_host::report::Report;

/// A detach tries for two seconds whether its block device is in use. A stop in these took the device for gone, and its users got I/O errors
/// at once, though the detach was refused.
#[test]
fn a_stop_during_a_detach_lets_the_users_of_the_volume_finish() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        println!("skipped: it takes root, /dev/fuse and loop devices");
        return;
    }
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 16 * MIB);
    let daemon = yard.serve_with(&["a", "b", "--frontend", "fuse", "--socket", "control", "--state", "state"]).unwrap();
    yard.run(&["attach", "v", "disk"]).good();
    let report: Report = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
    let place = report.volumes[0].place.clone().unwrap();
    let user = OpenOptions::new().read(true).write(true).open(&place).unwrap();
    // While it is tried, the kernel is to take the device away from its last user.
    let is_tried = Path::new("/sys/block").join(Path::new(&place).file_name().unwrap()).join("loop/autoclear");
    std::thread::scope(|scope| {
        let detach = scope.spawn(|| yard.run(&["detach", "v"]));
        while fs::read_to_string(&is_tried).unwrap().trim() != "1" {
            assert!(!detach.is_finished(), "{:?}", detach.join());
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon.signal("TERM");
        let since = Instant::now();
        for n in 0.. {
            user.write_all_at(&[n as u8; 4096], n % 4096 * 4096).unwrap();
            user.sync_all().unwrap();
            if since.elapsed() > Duration::from_secs(4) {
                break;
            }
        }
        user.write_all_at(&[0xd7; 4096], 0).unwrap();
        user.sync_all().unwrap();
        drop(user);
        detach.join().unwrap().said(3, &["was not detached, and nothing was changed", "is in use"]);
    });
    daemon.stop();
    // It is the pool's still, with all that was written.
    let _daemon = yard.serve(&["a", "b"]);
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [0xd7; 4096]);
}

/// Its device was made anew while all others were taken away, with the daemon gone moments later.
#[test]
fn a_detach_that_a_stop_cancels_leaves_the_volume_with_the_pool_and_no_device_behind() {
    let yard = Yard::new();
    yard.pool_and_slow_disk();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", "modelled:disk"]).good();
    let places: Vec<u64> = (0..4000).map(|n| n * 7919 % 4000 * (4096 << 10)).collect();
    let mut nbd = yard.nbd("v");
    nbd.write_many(places.iter().map(|at| (*at, at.to_le_bytes().repeat(512))));
    std::thread::scope(|scope| {
        let detach = scope.spawn(|| yard.run(&["detach", "v"]));
        while !yard.run(&["status"]).good().out.contains("pass-through") {
            assert!(!detach.is_finished(), "{:?}", detach.join());
        }
        // One that is connected already is served as long as the volume is.
        assert_eq!(nbd.read(places[1], 4096).unwrap(), places[1].to_le_bytes().repeat(512));
        daemon.signal("TERM");
        detach.join().unwrap().said(1, &["Volume v: cancelled, as the daemon is ending", "is safe"]);
    });
    daemon.stop();
    let _daemon = yard.serve(&["a", "b"]);
    let mut nbd = yard.nbd("v");
    for at in &places {
        assert_eq!(nbd.read(*at, 4096).unwrap(), at.to_le_bytes().repeat(512));
    }
}

/// The checkpoint behind it failed, as the last cache device did: the detach was said to have failed, and the disk stayed in use for a volume that no
/// superblock had any more.
#[test]
fn a_volume_that_is_off_the_pool_is_detached_though_the_cache_devices_fail_right_after() {
    let yard = Yard::new();
    let Some(ssd) = Disk::new(&yard.path("mount"), 64 * MIB) else { return };
    let path = ssd.path().display().to_string();
    yard.run(&["pool", "create", "pool", &path, "--copies", "1"]).good();
    let disk = yard.file("disk", 16 * MIB);
    let _daemon = yard.serve(&[&path]);
    yard.run(&["attach", "v", "disk"]).good();
    // Superblocks and the intent map are at its ends; checkpoints and the log are not.
    ssd.cannot_write(std::slice::from_ref(&(384 << 10..63 * MIB)));
    yard.run(&["detach", "v"]).told(&["volume v: detached"]);
    Claim::take(&disk, Duration::from_secs(30)).unwrap();
    assert!(Nbd::connect(&yard.path("nbd"), "v").is_err());
}
