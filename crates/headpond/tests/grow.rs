//! A volume grows while it is served, after the device below it has.

mod common;

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Daemon, MIB, Nbd, Yard};
use serde_json::Value;

fn lengthen(yard: &Yard, bytes: u64) {
    OpenOptions::new().write(true).open(yard.path("disk")).unwrap().set_len(bytes).unwrap();
}

fn pool(yard: &Yard, frontend: &str) -> Daemon {
    yard.pool();
    yard.file("disk", 16 * MIB);
    let daemon = serve(yard, frontend);
    yard.run(&["attach", "v", "disk"]).good();
    daemon
}

fn serve(yard: &Yard, frontend: &str) -> Daemon {
    let common = ["a", "b", "--socket", "control", "--state", "state", "--frontend", frontend];
    let nbd: &[&str] = if frontend == "nbd" { &["--nbd", "nbd"] } else { &[] };
    yard.serve_with(&[&common, nbd].concat()).unwrap()
}

#[test]
fn a_volume_takes_the_size_of_its_device_and_what_is_new_survives_a_kill() {
    let yard = Yard::new();
    let daemon = pool(&yard, "nbd");
    let mut before = yard.nbd("v");
    before.write(0, &[1; 4096], false).unwrap();
    yard.run(&["grow", "v"]).said(3, &["has 16777216 bytes, and volume v has 16777216", "Make the device below larger"]);
    yard.run(&["grow", "w"]).said(1, &["There is no volume w", "Its volumes are: v"]);
    lengthen(&yard, 40 * MIB);
    for (to, why) in
        [("8MiB", "only become larger"), ("41MiB", "cannot have 42991616"), ("20000001", "no whole number of blocks")]
    {
        let ended = yard.run(&["grow", "v", "--to", to]);
        assert!(ended.code != Some(0) && ended.err.contains(why) && ended.err.contains("Nothing was changed"), "{to}: {ended:?}");
    }
    yard.run(&["grow", "v", "--to", "20MiB"]).told(&[
        "grown from 16 MiB to 20 MiB",
        "go on with the size before",
        "let them connect again",
    ]);
    assert!(before.read(0, 4096).unwrap() == [1; 4096], "a client that was connected is served on");
    let answer: Value = serde_json::from_str(&yard.run(&["grow", "v", "--json"]).good().out).unwrap();
    assert_eq!((answer["bytes_before"].as_u64(), answer["bytes"].as_u64()), (Some(20 * MIB), Some(40 * MIB)));
    let mut nbd = yard.nbd("v");
    nbd.write(16 * MIB - 2048, &[2; 4096], false).unwrap();
    nbd.write(40 * MIB - 4096, &[3; 4096], false).unwrap();
    nbd.flush().unwrap();
    daemon.kill();
    // The disk has grown once more, and nobody has said so to the volume yet.
    lengthen(&yard, 48 * MIB);
    let daemon = serve(&yard, "nbd");
    let mut nbd = yard.nbd("v");
    assert_eq!(nbd.read(0, 4096).unwrap(), [1; 4096]);
    assert_eq!(nbd.read(16 * MIB - 2048, 4096).unwrap(), [2; 4096]);
    assert_eq!(nbd.read(40 * MIB - 4096, 4096).unwrap(), [3; 4096]);
    assert!(nbd.read(40 * MIB, 4096).is_err(), "a read beyond the end was answered");
    drop(nbd);
    yard.run(&["grow", "v"]).told(&["grown from 40 MiB to 48 MiB"]);
    yard.nbd("v").write(48 * MIB - 4096, &[4; 4096], true).unwrap();
    yard.run(&["events"]).told(&["volume-grown: Volume v has grown"]);
    yard.run(&["detach", "v"]).good();
    daemon.stop();
    let disk = fs::read(yard.path("disk")).unwrap();
    for (at, byte) in [(0, 1), (16 * MIB as usize, 2), (40 * MIB as usize - 4096, 3), (48 * MIB as usize - 4096, 4)] {
        assert_eq!(disk[at], byte, "at {at}");
    }
}

#[test]
fn a_volume_whose_disk_is_away_does_not_grow() {
    let yard = Yard::new();
    let daemon = pool(&yard, "nbd");
    daemon.stop();
    fs::rename(yard.path("disk"), yard.path("away")).unwrap();
    let _daemon = serve(&yard, "nbd");
    yard.run(&["grow", "v"]).said(3, &["Volume v is not served", "`headpond status` says why"]);
    assert!(Nbd::connect(&yard.path("nbd"), "v").is_err());
}

/// A program as root, which must end well.
fn run(program: &str, args: &[&str]) -> String {
    let ended = Command::new(program).args(args).output().unwrap();
    assert!(ended.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

fn is_there(program: &str) -> bool {
    ["/usr/sbin", "/sbin", "/usr/bin"].iter().any(|folder| Path::new(folder).join(program).exists())
}

/// The block device of the volume.
fn place(yard: &Yard) -> PathBuf {
    let status: Value = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
    PathBuf::from(status["volumes"][0]["place"].as_str().unwrap_or_else(|| panic!("it has no device: {status}")))
}

fn device_bytes(device: &Path) -> u64 {
    run("blockdev", &["--getsize64", device.to_str().unwrap()]).trim().parse().unwrap()
}

/// Unmounts what a test has mounted.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Enlarges a mounted file system; in a container that may not do so while it is mounted, without that.
fn enlarge(device: &Path, point: &Path) {
    let (device, point) = (device.to_str().unwrap(), point.to_str().unwrap());
    if Command::new("resize2fs").arg(device).output().unwrap().status.success() {
        return;
    }
    run("umount", &[point]);
    run("e2fsck", &["-fp", device]);
    run("resize2fs", &[device]);
    run("mount", &[device, point]);
}

#[test]
fn a_file_system_on_a_loop_device_is_enlarged_while_it_is_mounted() {
    let may = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists();
    if !may || !["mkfs.ext4", "resize2fs", "blockdev"].iter().all(|it| is_there(it)) {
        eprintln!("not tried: it takes root, /dev/fuse, loop devices and e2fsprogs");
        return;
    }
    let yard = Yard::new();
    let daemon = pool(&yard, "fuse");
    let device = place(&yard);
    assert_eq!(device_bytes(&device), 16 * MIB);
    run("mkfs.ext4", &["-q", device.to_str().unwrap()]);
    let point = yard.path("mnt");
    fs::create_dir(&point).unwrap();
    run("mount", &[device.to_str().unwrap(), point.to_str().unwrap()]);
    let mounted = Mounted(point.clone());
    fs::write(point.join("early"), vec![7; MIB as usize]).unwrap();
    lengthen(&yard, 64 * MIB);
    assert_eq!(device_bytes(&device), 16 * MIB);
    yard.run(&["grow", "v"]).told(&["grown from 16 MiB to 64 MiB", "resize2fs"]);
    assert_eq!(device_bytes(&device), 64 * MIB, "the device shows the new size at once");
    enlarge(&device, &point);
    // More than there was room for.
    fs::write(point.join("late"), vec![8; 40 << 20]).unwrap();
    File::open(point.join("late")).unwrap().sync_all().unwrap();
    File::open(&point).unwrap().sync_all().unwrap();
    daemon.kill();
    drop(mounted);
    let daemon = serve(&yard, "fuse");
    let device = place(&yard);
    assert_eq!(device_bytes(&device), 64 * MIB);
    run("mount", &[device.to_str().unwrap(), point.to_str().unwrap()]);
    let mounted = Mounted(point.clone());
    assert!(fs::read(point.join("early")).unwrap() == vec![7; MIB as usize]);
    assert!(fs::read(point.join("late")).unwrap() == vec![8; 40 << 20]);
    run("umount", &[point.to_str().unwrap()]);
    std::mem::forget(mounted);
    run("e2fsck", &["-fn", device.to_str().unwrap()]);
    daemon.stop();
}
