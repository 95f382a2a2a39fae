//! A loop device that an upgrade left over, whose volume the newer program does not serve.

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Contents, Daemon, LONG, MIB, Yard};
use headpond_host::report::Report;

/// Whether volumes can be loop devices here; says so if not.
fn possible() -> bool {
    let may = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists();
    if !may {
        println!("skipped: it takes root, /dev/fuse and loop devices");
    }
    may
}

/// Serves a volume `v`, whose disk goes while somebody has it open; another program goes on without it.
fn left_over(yard: &Yard) -> (Daemon, File) {
    yard.pool();
    yard.file("disk", 16 * MIB);
    let daemon = serve(yard, &[]);
    yard.run(&["attach", "v", "disk"]).good();
    let user = OpenOptions::new().read(true).write(true).open(place(yard)).unwrap();
    user.write_all_at(&[1; 4096], 0).unwrap();
    user.sync_all().unwrap();
    fs::rename(yard.path("disk"), yard.path("away")).unwrap();
    upgrade(yard);
    yard.run(&["status"]).told(&["NOT SERVED"]);
    (daemon, user)
}

fn serve(yard: &Yard, more: &[&str]) -> Daemon {
    let args = ["a", "b", "--frontend", "fuse", "--socket", "control", "--state", "state"];
    yard.serve_with(&[&args[..], more].concat()).unwrap()
}

fn upgrade(yard: &Yard) {
    yard.run(&["upgrade", "--program", env!("CARGO_BIN_EXE_headpond")]).told(&["is served by Headpond"]);
}

/// Where the only volume is.
fn place(yard: &Yard) -> String {
    let report: Report = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
    report.volumes[0].place.clone().unwrap()
}

/// Loop devices and mounts of the folder's daemon.
fn leavings(yard: &Yard) -> Vec<String> {
    let folder = yard.path("").display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(&folder)).map(str::to_owned);
    let loops = fs::read_dir("/sys/block").unwrap().flatten();
    let loops = loops.filter_map(|it| fs::read_to_string(it.path().join("loop/backing_file")).ok());
    mounts.chain(loops.filter(|file| file.contains(&folder))).collect()
}

/// It was served as the next volume of that number and name: what users of the old one wrote, and had in memory, went there.
#[test]
fn a_device_that_an_upgrade_left_over_never_becomes_another_volumes() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let (daemon, user) = left_over(&yard);
    yard.run(&["detach", "v", "--throw-away"]).told(&["taken off pool"]);
    yard.file("new", 16 * MIB);
    let new = Contents::of(&[&yard.path("new")]);
    yard.run(&["attach", "v", "new"]).good();
    let (write, sync) = (user.write_all_at(&[2; 4096], 0), user.sync_all());
    assert!(write.is_err() || sync.is_err(), "the old volume's user writes to the new one");
    let mut data = [1; 4096];
    File::open(place(&yard)).unwrap().read_exact_at(&mut data, 0).unwrap();
    assert_eq!(data, [0; 4096]);
    drop(user);
    yard.run(&["detach", "v"]).good();
    new.unchanged();
    daemon.stop();
    assert_eq!(leavings(&yard), Vec::<String>::new());
}

#[test]
fn a_device_that_an_upgrade_left_over_waits_for_its_disk_through_further_upgrades() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let (daemon, user) = left_over(&yard);
    upgrade(&yard);
    fs::rename(yard.path("away"), yard.path("disk")).unwrap();
    let mut data = [0; 4096];
    user.read_exact_at(&mut data, 0).unwrap();
    user.write_all_at(&[2; 4096], MIB).unwrap();
    user.sync_all().unwrap();
    assert_eq!(data, [1; 4096]);
    drop(user);
    yard.run(&["detach", "v"]).good();
    daemon.stop();
    assert_eq!(fs::read(yard.path("disk")).unwrap()[MIB as usize..][..4096], [2; 4096]);
}

#[test]
fn a_device_that_an_upgrade_left_over_and_nobody_comes_to_serve_ends_with_errors() {
    if !possible() {
        return;
    }
    let yard = Yard::new();
    let (daemon, user) = left_over(&yard);
    daemon.stop();
    assert!(user.write_all_at(&[2; 4096], 0).is_err() || user.sync_all().is_err());
    drop(user);
    // The last user's end is the device's.
    let until = Instant::now() + LONG;
    while !leavings(&yard).is_empty() {
        assert!(Instant::now() < until, "{:?}", leavings(&yard));
        std::thread::sleep(Duration::from_millis(10));
    }
}
