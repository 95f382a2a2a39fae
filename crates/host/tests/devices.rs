//! Real files and loop devices under `Devices`, and claims on them.
//!
//! What needs root says so and is skipped without it. Some tests start this very program again as a child that is
//! to be killed: `the_child_of_other_tests` is what it then runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use headpond_engine::io::{Buf, Device, DeviceError, DeviceOp, DeviceResult, IoId, Reach};
use headpond_host::buf::{ALIGN, HostBuf};
use headpond_host::claim::{Claim, ClaimError};
use headpond_host::device::facts::{Facts, Kind};
use headpond_host::device::modelled::{Pace, PaceKind};
use headpond_host::device::{Completion, Devices};
use tempfile::TempDir;

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../headpond/tests/common/silent.rs"]
mod silent;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const DISK: Device = Device::Backing(0);
const NOW: Duration = Duration::ZERO;
/// How long to wait for a claim that nobody else has any more: what another test starts at this moment has a copy of it, up to its exec, and udev
/// may be looking at a new loop device.
const PATIENCE: Duration = Duration::from_secs(30);

/// A temporary folder with a file of `size` bytes of 0x5A in it.
fn file(size: u64) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    fs::write(&path, vec![0x5A; size as usize]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    (dir, path)
}

fn devices(path: &Path) -> Devices {
    let mut devices = Devices::new(8).unwrap();
    devices.add(DISK, Claim::take(path, PATIENCE).unwrap());
    devices
}

/// Waits for `count` ends.
fn ends(devices: &mut Devices, count: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    let start = Instant::now();
    while done.len() < count {
        assert!(start.elapsed().as_secs() < 60, "only {} of {count} ended", done.len());
        devices.wait(Some(Duration::from_secs(1)), &mut done).unwrap();
    }
    done
}

/// One operation, start to end.
fn run(devices: &mut Devices, op: DeviceOp<HostBuf>) -> DeviceResult<HostBuf> {
    devices.submit(IoId(u64::MAX), DISK, op);
    ends(devices, 1).remove(0).1
}

fn read(devices: &mut Devices, offset: u64, len: u64) -> Vec<u8> {
    let end = run(devices, DeviceOp::Read { offset, len: len as u32, into: None });
    end.unwrap().expect("a read has data").as_slice().to_vec()
}

fn filled(len: u64, byte: u8) -> HostBuf {
    HostBuf::filled_by(len as usize, |bytes| bytes.fill(byte))
}

/// Numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn root_or_say(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: {what} needs root");
    }
    root
}

fn command(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A loop device over a file; gone at drop.
struct Loop {
    path: PathBuf,
    _dir: TempDir,
}

impl Loop {
    fn new(size: u64) -> Loop {
        let (dir, file) = file(size);
        let path = command("losetup", &["--find", "--show", file.to_str().unwrap()]).into();
        Loop { path, _dir: dir }
    }

    fn str(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        command("losetup", &["-d", self.str()]);
    }
}

/// An ext4 file system on a loop device.
struct Mounted {
    at: TempDir,
    on: Loop,
}

impl Mounted {
    fn new(size: u64) -> Mounted {
        let (on, at) = (Loop::new(size), tempfile::tempdir().unwrap());
        command("mkfs.ext4", &["-q", "-F", on.str()]);
        command("mount", &[on.str(), at.path().to_str().unwrap()]);
        Mounted { at, on }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        command("umount", &["-l", self.at.path().to_str().unwrap()]);
    }
}

/// Starts this program as a child that does `job` on `path`, and waits until it says that it is at it.
fn child(job: &str, path: &Path, group: Option<&Path>) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "the_child_of_other_tests", "--nocapture"])
        .env("HEADPOND_TEST_JOB", job)
        .env("HEADPOND_TEST_PATH", path)
        .env("HEADPOND_TEST_GROUP", group.unwrap_or(Path::new("")))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("at it")), "the child ended early");
    child
}

const LAST_WRITES: u64 = 24;
/// Bytes of each. What the kernel had to split (1 MiB) was given up at the kill instead of written, which is in
/// order but shows nothing.
const LAST_WRITE: u64 = 256 * KIB;
const LAST_BYTES: u64 = LAST_WRITES * LAST_WRITE;

#[test]
fn the_child_of_other_tests() {
    let Ok(job) = env::var("HEADPOND_TEST_JOB") else {
        return;
    };
    let group = env::var("HEADPOND_TEST_GROUP").unwrap();
    if !group.is_empty() {
        fs::write(Path::new(&group).join("cgroup.procs"), process::id().to_string()).unwrap();
    }
    let claim = Claim::take(Path::new(&env::var("HEADPOND_TEST_PATH").unwrap()), PATIENCE).unwrap();
    let bufs: Vec<HostBuf> = (0..LAST_WRITES).map(|_| filled(LAST_WRITE, 0xAB)).collect();
    let mut devices = Devices::new(32).unwrap();
    let mut uring = io_uring::IoUring::new(32).unwrap();
    match job.as_str() {
        "claim" => devices.add(DISK, claim),
        "write by a plain file" => {
            devices.add(DISK, claim);
            for (n, buf) in (0..).zip(&bufs) {
                let op = DeviceOp::Write { offset: n * LAST_WRITE, bufs: vec![buf.clone()], reach: Reach::Cache };
                devices.submit(IoId(n), DISK, op);
            }
            devices.wait(Some(NOW), &mut Vec::new()).unwrap();
        }
        "write by a registered file" => {
            uring.submitter().register_files(&[claim.as_fd().as_raw_fd()]).unwrap();
            // From here on only the ring has it.
            drop(claim);
            for (n, buf) in (0..).zip(&bufs) {
                let fd = io_uring::types::Fixed(0);
                let entry =
                    io_uring::opcode::Write::new(fd, buf.as_slice().as_ptr(), LAST_WRITE as u32).offset(n * LAST_WRITE).build();
                // SAFETY: the buffers live until the process is killed.
                unsafe { uring.submission().push(&entry).unwrap() };
            }
            uring.submit().unwrap();
        }
        other => panic!("no such job: {other}"),
    }
    // What the kernel passes to its worker threads must have begun, or the kill cancels it.
    thread::sleep(Duration::from_millis(300));
    println!("at it");
    std::io::stdout().flush().unwrap();
    thread::sleep(Duration::from_secs(60));
}

/// A group of processes whose writes to a device are throttled.
struct Throttled(PathBuf);

impl Throttled {
    /// `None`, said aloud, where the kernel has no controller for it.
    fn new(device: &Path, bytes_per_second: u64) -> Option<Throttled> {
        let number = fs::read_to_string(Path::new("/sys/class/block").join(device.file_name().unwrap()).join("dev"));
        let number = number.unwrap().trim().to_owned();
        let (v1, v2) = (Path::new("/sys/fs/cgroup/blkio"), Path::new("/sys/fs/cgroup"));
        let (root, file, line) = match v1.exists() {
            true => (v1, "blkio.throttle.write_bps_device", format!("{number} {bytes_per_second}")),
            false => (v2, "io.max", format!("{number} wbps={bytes_per_second}")),
        };
        let group = root.join(format!("headpond-{}-{}", process::id(), number.replace(':', "-")));
        let made = fs::create_dir(&group).map(|()| Throttled(group.clone()));
        match made.and_then(|made| fs::write(group.join(file), line).map(|()| made)) {
            Ok(made) => Some(made),
            Err(error) => {
                println!("SKIPPED: writes cannot be throttled here: {}: {error}", group.display());
                None
            }
        }
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Kills a child whose writes to `path`, on the loop device `slow`, are in flight, and looks at when the claim is
/// granted and whether anything lands after that.
fn kill_while_writing(path: &Path, slow: &Path, how: &str) {
    // Some seconds' worth, of which a slow machine may take a few until it looks.
    let Some(group) = Throttled::new(slow, MIB) else {
        return;
    };
    let mut child = child(how, path, Some(&group.0));
    child.kill().unwrap();
    child.wait().unwrap();
    let reaped = Instant::now();
    let refused = Claim::take(path, NOW).expect_err("writes of the dead process are in flight");
    assert!(matches!(refused, ClaimError::Held { .. }), "{refused}");
    let claim = Claim::take(path, PATIENCE).unwrap();
    let after = reaped.elapsed();
    let mut devices = Devices::new(8).unwrap();
    devices.add(DISK, claim);
    let at_grant = read(&mut devices, 0, LAST_BYTES);
    thread::sleep(Duration::from_secs(2));
    let later = read(&mut devices, 0, LAST_BYTES);
    let landed = at_grant.iter().filter(|&&byte| byte == 0xAB).count() as u64;
    println!(
        "{how} to {}: claim granted {} ms after the dead process was reaped, {} of {} KiB had landed",
        if path == slow { "a block device" } else { "a file" },
        after.as_millis(),
        landed / KIB,
        LAST_BYTES / KIB
    );
    assert!(at_grant == later, "a write of the dead process landed after the claim was granted");
    assert!(landed > 0 && after > Duration::from_millis(500), "nothing was in flight: this showed nothing");
}

#[test]
fn a_block_device_stays_claimed_until_the_last_write_of_a_killed_process_has_landed() {
    if root_or_say("a loop device") {
        for how in ["write by a plain file", "write by a registered file"] {
            let disk = Loop::new(16 * MIB);
            kill_while_writing(&disk.path, &disk.path, how);
        }
    }
}

#[test]
fn a_file_stays_claimed_until_the_last_write_of_a_killed_process_has_landed() {
    if root_or_say("a loop device") {
        for how in ["write by a plain file", "write by a registered file"] {
            let mounted = Mounted::new(64 * MIB);
            let path = mounted.at.path().join("device");
            fs::write(&path, vec![0x5A; 16 * MIB as usize]).unwrap();
            rustix::fs::sync();
            kill_while_writing(&path, &mounted.on.path, how);
        }
    }
}

#[test]
fn a_second_claim_is_refused_with_the_names_of_device_and_holder() {
    let (_dir, path) = file(MIB);
    let first = Claim::take(&path, NOW).unwrap();
    let refused = Claim::take(&path, Duration::from_millis(50)).unwrap_err();
    let ClaimError::Held { waited, .. } = &refused else { panic!("{refused}") };
    assert!(*waited >= Duration::from_millis(50));
    let said = refused.to_string();
    assert!(said.contains(path.to_str().unwrap()) && said.contains(&format!("process {}", process::id())), "{said}");
    drop(first);
    Claim::take(&path, PATIENCE).unwrap();
}

#[test]
fn a_claim_ends_when_the_process_that_holds_it_is_killed() {
    let (_dir, path) = file(MIB);
    let mut child = child("claim", &path, None);
    assert!(Claim::take(&path, NOW).unwrap_err().to_string().contains(&format!("process {}", child.id())));
    child.kill().unwrap();
    Claim::take(&path, PATIENCE).unwrap();
    child.wait().unwrap();
}

/// All devices shared the places in the kernel, and the threads in which it does what would block. One disk that answered nothing came to hold both,
/// and nothing was asked of any other: clients of all volumes waited, or healthy cache devices were taken for silent.
#[test]
fn a_disk_that_does_not_answer_keeps_no_other_device_waiting() {
    const STUCK: u64 = 400;
    let mount = tempfile::tempdir().unwrap();
    let Some(disk) = silent::Disk::new(&mount.path().join("mount"), 16 * MIB) else { return };
    let (_dir, path) = file(4 * MIB);
    let other = Device::Backing(1);
    let mut devices = Devices::new(256).unwrap();
    devices.add(DISK, Claim::take(&disk.path(), PATIENCE).unwrap());
    devices.add(other, Claim::take(&path, NOW).unwrap());
    disk.fall_silent();
    // More than may be in the kernel at a time, some of them such as take one of its threads each.
    for n in 0..STUCK {
        let op = match n % 4 {
            0 => DeviceOp::Flush,
            1 => DeviceOp::Discard { offset: n * 4096, len: 4096 },
            _ => DeviceOp::Read { offset: n * 4096, len: 4096, into: None },
        };
        devices.submit(IoId(n), DISK, op);
    }
    let mut done = Vec::new();
    devices.wait(Some(Duration::from_millis(500)), &mut done).unwrap();
    let wanted = [
        DeviceOp::Read { offset: 0, len: 4096, into: None },
        DeviceOp::Write { offset: MIB, bufs: vec![filled(4096, 1)], reach: Reach::Cache },
        DeviceOp::WriteZeroes { offset: 2 * MIB, len: 4096 },
        DeviceOp::Flush,
    ];
    let begun = Instant::now();
    for (n, op) in (STUCK..).zip(wanted) {
        devices.submit(IoId(n), other, op);
    }
    let of_other = |done: &[Completion]| done.iter().filter(|(io, end)| io.0 >= STUCK && end.is_ok()).count();
    while of_other(&done) < 4 && begun.elapsed() < PATIENCE {
        devices.wait(Some(Duration::from_millis(100)), &mut done).unwrap();
    }
    let (took, ended, loads) = (begun.elapsed(), of_other(&done), devices.loads().0);
    // Also where this fails nobody is left waiting.
    disk.speak();
    let left = (STUCK + 4) as usize - done.len();
    done.extend(ends(&mut devices, left));
    drop(devices);
    println!("{ended} of 4 ended after {took:?}");
    assert_eq!(ended, 4);
    assert!(loads[&other].oldest_ns == 0 && loads[&DISK].oldest_ns > 0, "{loads:?}");
    assert!(done.iter().all(|(_, end)| end.is_ok()));
}

/// An upgrade was refused for a healthy cache device, which had been put in the place of one that had fallen silent.
#[test]
fn what_a_removed_device_owes_is_not_told_of_the_one_that_has_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = silent::Disk::new(&dir.path().join("mount"), 16 * MIB) else { return };
    let path = dir.path().join("other");
    File::create(&path).unwrap().set_len(16 * MIB).unwrap();
    let number = Device::Member(0);
    let mut devices = Devices::new(8).unwrap();
    devices.add(number, Claim::take(&disk.path(), PATIENCE).unwrap());
    disk.fall_silent();
    devices.submit(IoId(0), number, DeviceOp::Read { offset: 0, len: 4096, into: None });
    let mut done = Vec::new();
    devices.wait(Some(Duration::from_millis(100)), &mut done).unwrap();
    let (loads, removed) = devices.loads();
    assert!(loads[&number].oldest_ns > 0 && removed.is_empty(), "{loads:?} {removed:?}");
    devices.remove(number);
    devices.add(number, Claim::take(&path, NOW).unwrap());
    let (loads, removed) = devices.loads();
    disk.speak();
    drop(devices);
    assert_eq!(loads[&number].oldest_ns, 0);
    assert!(matches!(&removed[..], [(path, ns)] if *path == disk.path() && *ns > 0), "{removed:?}");
}

#[test]
fn what_is_neither_block_device_nor_file_is_not_claimed() {
    let dir = tempfile::tempdir().unwrap();
    let said = Claim::take(dir.path(), NOW).unwrap_err().to_string();
    assert!(said.contains("neither a block device nor a regular file"), "{said}");
    assert!(matches!(Claim::take(&dir.path().join("none"), NOW), Err(ClaimError::Open { .. })));
}

#[test]
fn dropping_devices_waits_for_writes_in_flight_and_then_ends_the_claim() {
    let (_dir, path) = file(32 * MIB);
    for round in 0..20 {
        let mut devices = devices(&path);
        for n in 0..8 {
            let op = DeviceOp::Write { offset: n * 4 * MIB, bufs: vec![filled(4 * MIB, round)], reach: Reach::Cache };
            devices.submit(IoId(n), DISK, op);
        }
        devices.wait(Some(NOW), &mut Vec::new()).unwrap();
        drop(devices);
        drop(Claim::take(&path, PATIENCE).unwrap());
        assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == round));
    }
}

#[test]
fn a_write_of_many_buffers_lands_in_order_whatever_their_number_and_alignment() {
    let (_dir, path) = file(8 * MIB);
    let mut devices = devices(&path);
    let block = u64::from(devices.facts(DISK).unwrap().logical_block);
    for pieces in [1, 2, 511, 512, 513, 1500] {
        // Slices at all phases of a page.
        let whole: Vec<u8> = (0..pieces * 2 * block).map(|n| (n / block + n) as u8).collect();
        let memory = HostBuf::from_bytes(&whole);
        let piece = |n: u64| memory.slice((n * 2 * block) as usize..((n * 2 + 1) * block) as usize);
        let bufs: Vec<HostBuf> = (0..pieces).map(piece).collect();
        let expected = bufs.iter().flat_map(|buf| buf.as_slice().to_vec()).collect::<Vec<u8>>();
        assert_eq!(
            run(&mut devices, DeviceOp::Write { offset: 3 * block, bufs, reach: Reach::Cache }).unwrap().map(|_| ()),
            None
        );
        assert!(read(&mut devices, 3 * block, pieces * block) == expected, "{pieces} pieces");
    }
}

#[test]
fn operations_that_are_unaligned_empty_or_outside_fail_and_a_missing_device_is_gone() {
    let (_dir, path) = file(MIB);
    let mut devices = devices(&path);
    let write = |offset, len| DeviceOp::Write { offset, bufs: vec![filled(len, 1)], reach: Reach::Cache };
    for op in [
        DeviceOp::Read { offset: 1, len: 4096, into: None },
        DeviceOp::Read { offset: 0, len: 100, into: None },
        DeviceOp::Read { offset: 0, len: 0, into: None },
        DeviceOp::Read { offset: MIB - 4096, len: 8192, into: None },
        DeviceOp::Discard { offset: 1 << 63, len: 1 << 63 },
        DeviceOp::WriteZeroes { offset: MIB, len: 4096 },
        write(MIB, 4096),
        write(0, 4095),
        DeviceOp::Write { offset: 0, bufs: vec![], reach: Reach::Cache },
    ] {
        assert!(matches!(run(&mut devices, op.clone()), Err(DeviceError::Failed)), "{op:?}");
    }
    devices.remove(DISK);
    assert!(matches!(run(&mut devices, DeviceOp::Flush), Err(DeviceError::Gone)));
    assert!(fs::read(&path).unwrap() == vec![0x5A; MIB as usize]);
}

#[test]
fn a_read_past_the_end_of_a_file_that_shrank_fails() {
    let (_dir, path) = file(MIB);
    let mut devices = devices(&path);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(512 * KIB + 100).unwrap();
    for offset in [MIB - 4096, 512 * KIB, 256 * KIB] {
        let end = run(&mut devices, DeviceOp::Read { offset, len: (MIB - offset) as u32, into: None });
        assert!(matches!(end, Err(DeviceError::Failed)), "at {offset}");
    }
}

/// Two disks, one that discards and zeroes by itself and one that does neither: a loop device over a file system that makes holes in its
/// files, and over one that does not.
#[test]
fn a_disk_that_cannot_zero_by_itself_is_known_not_to_discard() {
    if !root_or_say("a loop device") {
        return;
    }
    let there = Loop::new(8 * MIB);
    let facts = |device: &str| Facts::of(&File::open(device).unwrap()).unwrap();
    assert!(facts(there.str()).discards);
    let at = tempfile::tempdir().unwrap();
    command("mount", &["-t", "ramfs", "ramfs", at.path().to_str().unwrap()]);
    let file = at.path().join("file");
    std::fs::write(&file, vec![0x5A; 8 << 20]).unwrap();
    let device = command("losetup", &["--find", "--show", file.to_str().unwrap()]);
    let discards = facts(&device).discards;
    command("losetup", &["-d", &device]);
    command("umount", &["-l", at.path().to_str().unwrap()]);
    assert!(!discards);
}

/// Discards and zeroes parts of a device filled with 0x5A, and looks at all of it.
fn zero_and_look(path: &Path) {
    let mut devices = devices(path);
    run(&mut devices, DeviceOp::Discard { offset: MIB + 4096, len: 2 * MIB }).unwrap();
    run(&mut devices, DeviceOp::WriteZeroes { offset: 5 * MIB - 4096, len: 8192 }).unwrap();
    run(&mut devices, DeviceOp::Flush).unwrap();
    let is_zero = |at| (MIB + 4096..3 * MIB + 4096).contains(&at) || (5 * MIB - 4096..5 * MIB + 4096).contains(&at);
    for (at, byte) in (0..).zip(read(&mut devices, 0, 8 * MIB)) {
        assert_eq!(byte, if is_zero(at) { 0 } else { 0x5A }, "at {at}");
    }
}

#[test]
fn discarded_and_zeroed_ranges_of_a_file_read_as_zeroes_and_nothing_else_does() {
    let (_dir, path) = file(8 * MIB);
    zero_and_look(&path);
    assert_eq!(fs::metadata(&path).unwrap().len(), 8 * MIB);
}

#[test]
fn a_block_device_is_claimed_read_written_and_zeroed_like_a_file() {
    if !root_or_say("a loop device") {
        return;
    }
    let disk = Loop::new(8 * MIB);
    let claim = Claim::take(&disk.path, PATIENCE).unwrap();
    let facts = claim.facts().clone();
    assert_eq!((facts.kind, facts.size, facts.mounted), (Kind::Block, 8 * MIB, None));
    let said = Claim::take(&disk.path, NOW).unwrap_err().to_string();
    assert!(said.contains(disk.str()), "{said}");
    drop(claim);
    zero_and_look(&disk.path);
}

#[test]
fn a_mounted_device_is_refused_with_the_place_where_it_is_mounted() {
    if root_or_say("a loop device") {
        let mounted = Mounted::new(16 * MIB);
        let said = Claim::take(&mounted.on.path, NOW).unwrap_err().to_string();
        assert!(said.contains(mounted.on.str()) && said.contains(mounted.at.path().to_str().unwrap()), "{said}");
    }
}

#[test]
fn facts_of_a_file_are_its_size_its_identity_and_sensible_units() {
    let (_dir, path) = file(MIB + 100);
    let first = Claim::take(&path, NOW).unwrap().facts().clone();
    println!("{first:?}");
    assert_eq!((first.kind, first.size), (Kind::File, MIB));
    assert!(first.logical_block.is_power_of_two() && (512..=4096).contains(&first.logical_block));
    assert!(first.memory_alignment as usize <= ALIGN);
    assert!(first.identity.as_ref().unwrap().starts_with("file:"));
    assert_eq!(first.identity, Claim::take(&path, PATIENCE).unwrap().facts().identity);
}

#[test]
fn thousands_of_random_operations_leave_what_a_model_in_memory_has() {
    const LANES: u64 = 16;
    const LANE: u64 = 128 * KIB;
    let (_dir, path) = file(LANES * LANE);
    let mut devices = devices(&path);
    let block = u64::from(devices.facts(DISK).unwrap().logical_block);
    let mut model = vec![0x5A; (LANES * LANE) as usize];
    let mut dice = Dice(4711);
    for round in 0..400 {
        // One operation per lane, so that none in flight overlap.
        let mut expected = BTreeMap::new();
        for lane in 0..LANES {
            let first = dice.below(LANE / block);
            let len = (1 + dice.below(LANE / block - first)) * block;
            let offset = lane * LANE + first * block;
            let place = offset as usize..(offset + len) as usize;
            let op = match dice.below(10) {
                0..4 => {
                    expected.insert(IoId(lane), model[place].to_vec());
                    DeviceOp::Read { offset, len: len as u32, into: None }
                }
                4..8 => {
                    let salt = dice.below(256);
                    let data: Vec<u8> = (0..len).map(|n| (n * 7 + n / 512 + salt) as u8).collect();
                    model[place].copy_from_slice(&data);
                    let buf = HostBuf::from_bytes(&data);
                    let cut = (dice.below(len / block) * block) as usize;
                    let bufs = vec![buf.slice(0..cut), buf.slice(cut..len as usize)];
                    DeviceOp::Write {
                        offset,
                        bufs,
                        reach: [Reach::Cache, Reach::PastCache, Reach::Durable][dice.below(3) as usize],
                    }
                }
                8 => {
                    model[place].fill(0);
                    DeviceOp::Discard { offset, len }
                }
                _ => {
                    model[place].fill(0);
                    DeviceOp::WriteZeroes { offset, len }
                }
            };
            devices.submit(IoId(lane), DISK, op);
        }
        assert_eq!(devices.in_flight(), LANES as usize);
        for (io, end) in ends(&mut devices, LANES as usize) {
            let data = end.unwrap().map(|buf| buf.as_slice().to_vec());
            assert!(data == expected.remove(&io), "round {round}, lane {}", io.0);
        }
        assert_eq!(devices.in_flight(), 0);
    }
    drop(devices);
    assert!(fs::read(&path).unwrap() == model);
}

#[test]
fn another_thread_interrupts_a_wait_and_wakes_are_not_lost() {
    let mut devices = Devices::new(8).unwrap();
    let waker = devices.waker();
    waker.wake();
    waker.wake();
    devices.wait(None, &mut Vec::new()).unwrap();
    let start = Instant::now();
    devices.wait(Some(Duration::from_millis(20)), &mut Vec::new()).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(20), "two calls are one");
    let (to, from) = std::sync::mpsc::channel();
    let other = thread::spawn(move || {
        for n in 0..50_000 {
            to.send(n).unwrap();
            waker.wake();
        }
    });
    let mut seen = 0;
    while seen < 50_000 {
        let start = Instant::now();
        devices.wait(Some(Duration::from_secs(10)), &mut Vec::new()).unwrap();
        assert!(start.elapsed().as_secs() < 10, "a wake was lost after {seen}");
        seen += from.try_iter().count();
    }
    other.join().unwrap();
}

/// Between two ends: longer than this thread may have to wait for a processor between two submissions.
const STEP_NS: u64 = 250_000_000;

/// Serves in reverse: of `total` operations, the one submitted last is done first, so far apart.
struct Reversed {
    total: u64,
    due: BTreeSet<(u64, u64)>,
}

impl Pace for Reversed {
    fn submit(&mut self, now_ns: u64, id: u64, kind: PaceKind, offset: u64, len: u64) {
        assert_eq!((kind, offset, len), (PaceKind::Read, id * 4096, 4096));
        self.due.insert((now_ns + (self.total - id) * STEP_NS, id));
    }

    fn next(&self) -> Option<u64> {
        self.due.first().map(|&(at, _)| at)
    }

    fn due(&mut self, now_ns: u64) -> Vec<u64> {
        let later = self.due.split_off(&(now_ns + 1, 0));
        std::mem::replace(&mut self.due, later).into_iter().map(|(_, id)| id).collect()
    }
}

#[test]
fn a_paced_device_ends_operations_in_the_order_and_at_the_times_of_its_model() {
    const TOTAL: u64 = 8;
    let (_dir, path) = file(MIB);
    let mut devices = Devices::new(8).unwrap();
    let pace = Reversed { total: TOTAL, due: BTreeSet::new() };
    devices.add_paced(DISK, Claim::take(&path, NOW).unwrap(), Box::new(pace));
    let submitted: Vec<Instant> = (0..TOTAL)
        .map(|n| {
            let before = Instant::now();
            devices.submit(IoId(n), DISK, DeviceOp::Read { offset: n * 4096, len: 4096, into: None });
            before
        })
        .collect();
    // A thread that comes late finds several that have ended.
    let (mut done, mut times) = (Vec::new(), Vec::new());
    while done.len() < TOTAL as usize {
        devices.wait(Some(Duration::from_secs(1)), &mut done).unwrap();
        times.resize(done.len(), Instant::now());
        assert!(submitted[0].elapsed().as_secs() < 60, "only {} of {TOTAL} ended", done.len());
    }
    let order: Vec<u64> = done.iter().map(|(io, _)| io.0).collect();
    assert_eq!(order, (0..TOTAL).rev().collect::<Vec<u64>>());
    let mut lateness = Vec::new();
    for ((io, end), at) in done.into_iter().zip(times) {
        assert_eq!(end.unwrap().unwrap().len(), 4096);
        // The model's time begins when it is told of the operation; a busy machine can only make it later.
        let took = at - submitted[io.0 as usize];
        let due = Duration::from_nanos((TOTAL - io.0) * STEP_NS);
        assert!(took >= due, "operation {} ended after {took:?}, and is due after {due:?}", io.0);
        lateness.push(took - due);
    }
    lateness.sort();
    println!("paced completions: {:?} late in the median, {:?} at most", lateness[4], lateness[7]);
}

#[test]
fn a_buffer_is_changed_only_while_nobody_shares_it_and_parts_share_its_memory() {
    let mut buf = HostBuf::from_bytes(&[7; 8192]);
    assert!(buf.as_slice().as_ptr().addr().is_multiple_of(ALIGN));
    let part = buf.slice(4096..8192);
    assert!(buf.get_mut().is_none() && part.as_slice() == [7; 4096]);
    drop(part);
    buf.get_mut().unwrap()[0] = 8;
    assert_eq!(buf.to_bytes()[..2], [8, 7]);
    for len in [512, 1 << 20, (1 << 20) + 512] {
        drop(filled(len, 0xFF));
        assert!(HostBuf::zeroes(len as usize).as_slice().iter().all(|&byte| byte == 0));
    }
    assert!(HostBuf::zeroes(4096).get_mut().is_none(), "the shared zeroes can be changed");
}

#[test]
fn checksums_are_xxh3_and_differ_by_seed() {
    assert_eq!(HostBuf::zeroes(0).checksum(0), 0x2d06_8005_38d3_94c2);
    let data = HostBuf::from_bytes(&(0..4096).map(|n| n as u8).collect::<Vec<u8>>());
    assert_ne!(data.checksum(1), data.checksum(2));
    assert_eq!(data.checksum(1), HostBuf::from_bytes(data.as_slice()).checksum(1));
}

#[test]
fn random_reads_per_second_are_printed_for_information() {
    const SIZE: u64 = 128 * MIB;
    let (_dir, path) = file(SIZE);
    let mut devices = Devices::new(32).unwrap();
    devices.add(DISK, Claim::take(&path, NOW).unwrap());
    let mut dice = Dice(99);
    let mut submit = |devices: &mut Devices| {
        let offset = dice.below(SIZE / 4096) * 4096;
        devices.submit(IoId(0), DISK, DeviceOp::Read { offset, len: 4096, into: None });
    };
    (0..32).for_each(|_| submit(&mut devices));
    let (mut count, mut done, start) = (0, Vec::new(), Instant::now());
    while start.elapsed() < Duration::from_secs(1) {
        devices.wait(None, &mut done).unwrap();
        for (_, end) in done.drain(..) {
            end.unwrap();
            count += 1;
            submit(&mut devices);
        }
    }
    println!("4 KiB random reads at depth 32: {:.0} per second", f64::from(count) / start.elapsed().as_secs_f64());
}
