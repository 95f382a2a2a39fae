//! A volume in memory, served through FUSE and a loop device of the running kernel.
//!
//! Needs root and `/dev/fuse`; tests of tools that are not installed are skipped, and say so.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headpond_engine::io::{Request, RequestError};
use headpond_host::fuse::{Backend, Completion, Export, Options};
use rustix::fs::FallocateFlags;

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
/// For what comes in any case: a machine that is busy may stand still for many seconds.
const LONG: Duration = Duration::from_secs(30);

/// A sparse volume that keeps a list of what it was asked, but for reads.
#[derive(Default)]
struct Memory {
    size: u64,
    /// Where its grid of blocks begins, in sectors: discards are rounded inwards to these, as the engine does.
    phase: u8,
    blocks: Mutex<HashMap<u64, Box<[u8; BLOCK]>>>,
    /// The data of a write is its length.
    asked: Mutex<Vec<Request<usize>>>,
    /// A read of this sector is dropped without an answer.
    cursed: Option<u64>,
    fails_discards: bool,
}

impl Memory {
    fn new(size: usize) -> Arc<Memory> {
        Arc::new(Memory { size: size as u64, ..Memory::default() })
    }

    /// Calls `f` with each part of a block in the range, and with where the part is in the range.
    fn parts(&self, sector: u64, len: usize, mut f: impl FnMut(&mut [u8], Range<usize>)) {
        let mut blocks = self.blocks.lock().unwrap();
        let (start, mut at) = (sector as usize * 512, 0);
        while at < len {
            let (block, from) = ((start + at) / BLOCK, (start + at) % BLOCK);
            let part = (BLOCK - from).min(len - at);
            let block = blocks.entry(block as u64).or_insert_with(|| Box::new([0; BLOCK]));
            f(&mut block[from..from + part], at..at + part);
            at += part;
        }
    }

    fn asked(&self) -> Vec<Request<usize>> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Backend for Memory {
    type Buf = Vec<u8>;

    fn size(&self) -> u64 {
        self.size
    }

    fn buffer(&self, payload: &[u8]) -> Vec<u8> {
        payload.to_vec()
    }

    fn submit(&self, request: Request<Vec<u8>>, done: Completion) {
        let noted = match request {
            Request::Discard { .. } if self.fails_discards => return done.finish::<Vec<u8>>(Err(RequestError::Io)),
            Request::Read { sector, .. } if self.cursed == Some(sector) => return,
            Request::Read { sector, sectors, .. } => {
                let mut data = vec![0; sectors as usize * 512];
                self.parts(sector, data.len(), |block, at| data[at].copy_from_slice(block));
                // Half a megabyte in single sectors is more buffers than one vector holds.
                let len = if data.len() >= MIB / 2 { 512 } else { data.len() };
                return done.finish(Ok(data.chunks(len).collect()));
            }
            Request::Write { sector, data, fua } => {
                self.parts(sector, data.len(), |block, at| block.copy_from_slice(&data[at]));
                Request::Write { sector, data: data.len(), fua }
            }
            Request::Flush => Request::Flush,
            Request::OwnFlush => Request::OwnFlush,
            Request::Discard { sector, sectors } => {
                let shift = 8 - u64::from(self.phase);
                let (first, end) = ((sector + shift).next_multiple_of(8), (sector + sectors + shift) / 8 * 8);
                self.parts(first - shift, end.saturating_sub(first) as usize * 512, |block, _| block.fill(0));
                Request::Discard { sector, sectors }
            }
            Request::WriteZeroes { sector, sectors, fua } => {
                self.parts(sector, sectors as usize * 512, |block, _| block.fill(0));
                Request::WriteZeroes { sector, sectors, fua }
            }
        };
        // The answer may come from any thread.
        let elsewhere = matches!(noted, Request::Flush);
        self.asked.lock().unwrap().push(noted);
        match elsewhere {
            true => drop(std::thread::spawn(|| done.finish::<Vec<u8>>(Ok(vec![])))),
            false => done.finish::<Vec<u8>>(Ok(vec![])),
        }
    }
}

/// Whether this machine can run a test that needs a tool; says so if not.
fn possible(tool: &str) -> bool {
    let root = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    let found = Command::new("which").arg(tool).stdout(Stdio::null()).status().is_ok_and(|s| s.success());
    if !root || !found {
        println!("skipped: needs root, /dev/fuse and {tool}");
    }
    root && found
}

/// Runs a tool, not for ever, and returns its output.
fn run(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout").args(["-k", "5", "120", tool]).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{tool} {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn serve(dir: &Path, backend: &Arc<Memory>) -> Export {
    let export = Export::start(&Options::new(dir.join("mount"), "volume"), backend.clone()).unwrap();
    assert!(export.warnings().is_empty(), "{:?}", export.warnings());
    export
}

fn open_direct(device: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(device).unwrap()
}

/// Calls `f` with zeroes in page-aligned memory.
fn aligned<T>(len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut memory = vec![0; len + BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    f(&mut memory[start..start + len])
}

fn attribute(device: &Path, name: &str) -> String {
    let path = Path::new("/sys/block").join(device.file_name().unwrap()).join(name);
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn is_mounted(point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.split_whitespace().any(|word| Path::new(word) == point)
}

/// Loop devices bound to something below `dir`.
fn loop_devices(dir: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").unwrap();
    let devices = devices.map(|entry| Path::new("/dev").join(entry.unwrap().file_name()));
    devices.filter(|device| Path::new(&attribute(device, "loop/backing_file")).starts_with(dir)).collect()
}

#[test]
fn what_is_written_through_the_device_is_read_back() {
    if !possible("true") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let backend = Memory::new(64 * MIB);
    let mut export = serve(dir.path(), &backend);
    let device = open_direct(&export.device());
    let ranges = [(0, 512), (512, 512), (8192, BLOCK), (MIB - 512, 1024), (3 * MIB + 512, MIB), (8 * MIB, 3 * MIB)];
    for (offset, len) in ranges {
        aligned(len, |data| {
            for (at, byte) in data.iter_mut().enumerate() {
                *byte = ((offset + at) / 512 * 7 + at) as u8;
            }
            device.write_all_at(data, offset as u64).unwrap();
            aligned(len, |read| {
                device.read_exact_at(read, offset as u64).unwrap();
                assert!(read == data, "{len} bytes at {offset}");
            });
        });
    }
    let asked = backend.asked().into_iter();
    let lengths = asked.filter_map(|request| match request {
        Request::Write { data, .. } => Some(data),
        _ => None,
    });
    // A loop device takes 128 segments, each at least a page.
    assert!(lengths.max() >= Some(MIB / 2), "large writes arrive in large requests");
    for (name, value) in [
        ("loop/dio", "1"),
        ("queue/logical_block_size", "512"),
        ("queue/rotational", "1"),
        ("queue/write_cache", "write back"),
        ("queue/discard_granularity", "4096"),
        ("size", "131072"),
    ] {
        assert_eq!(attribute(&export.device(), name), value, "{name}");
    }
    drop(device);
    export.stop().unwrap();
}

#[test]
fn flushes_discards_and_zeroes_arrive_as_what_they_are() {
    if !possible("blkdiscard") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let backend = Memory::new(64 * MIB);
    let mut export = serve(dir.path(), &backend);
    let path = export.device();
    let node = path.to_str().unwrap();
    let device = open_direct(&path);
    aligned(MIB, |data| {
        data.fill(0xab);
        device.write_all_at(data, 0).unwrap();
    });
    backend.asked();
    device.sync_all().unwrap();
    assert!(matches!(backend.asked()[..], [Request::Flush]));
    run("blkdiscard", &["-o", "65536", "-l", "131072", node]);
    let asked = backend.asked();
    assert!(matches!(asked[..], [Request::Discard { sector: 128, sectors: 256 }]), "{asked:?}");
    // A discard that starts in the middle of a block.
    run("blkdiscard", &["-o", "512", "-l", "8192", node]);
    let asked = backend.asked();
    let parts = [(1, 7), (8, 8), (16, 1)];
    let cut = asked.iter().map(|request| match *request {
        Request::Discard { sector, sectors } if sector == 8 => (sector, sectors),
        Request::WriteZeroes { sector, sectors, .. } => (sector, sectors),
        _ => panic!("{asked:?}"),
    });
    assert!(cut.eq(parts), "{asked:?}");
    run("blkdiscard", &["-z", "-o", "1024", "-l", "4096", node]);
    let asked = backend.asked();
    assert!(matches!(asked[..], [Request::WriteZeroes { sector: 2, sectors: 8, .. }, ..]), "{asked:?}");
    aligned(MIB, |data| {
        device.read_exact_at(data, 0).unwrap();
        assert!(data[512..8704].iter().chain(&data[65536..196_608]).all(|byte| *byte == 0));
        assert!(data[..512].iter().chain(&data[8704..65536]).all(|byte| *byte == 0xab));
    });
    drop(device);
    export.stop().unwrap();
}

/// The kernel sends zeroes over a loop device as holes. In a volume whose blocks do not begin at multiples of 4 KiB of its own, a hole of
/// 4 KiB was taken for a discard of a block, which the volume rounded inwards to nothing: it was answered as done, and what was there
/// stayed. File systems take what they had zeroed for zeroes.
#[test]
fn a_hole_reads_as_zeroes_wherever_the_volumes_blocks_begin() {
    if !possible("fallocate") {
        return;
    }
    for phase in [0, 2, 7] {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(Memory { size: 64 << 20, phase, ..Memory::default() });
        let options = Options { phase, ..Options::new(dir.path().join("mount"), "volume") };
        let mut export = Export::start(&options, backend.clone()).unwrap();
        let path = export.device();
        let device = open_direct(&path);
        aligned(MIB, |data| {
            data.fill(0xaa);
            device.write_all_at(data, 0).unwrap();
        });
        backend.asked();
        let holes = [(0, BLOCK), (3 * BLOCK, BLOCK), (16 * BLOCK, 9 * BLOCK)];
        for (offset, len) in holes {
            run("fallocate", &["-p", "-o", &offset.to_string(), "-l", &len.to_string(), path.to_str().unwrap()]);
        }
        // What a discard is for: the space is given back, at every phase.
        let discards = |request: &Request<usize>| matches!(request, Request::Discard { sectors, .. } if *sectors >= 64);
        assert_eq!(backend.asked().iter().filter(|request| discards(request)).count(), 1, "phase {phase}");
        aligned(MIB, |data| {
            device.read_exact_at(data, 0).unwrap();
            for (at, byte) in data.iter().enumerate() {
                let is_hole = holes.iter().any(|(offset, len)| (*offset..offset + len).contains(&at));
                assert_eq!(*byte, if is_hole { 0 } else { 0xaa }, "at {at}, phase {phase}");
            }
        });
        drop(device);
        export.stop().unwrap();
    }
}

/// A disk that cannot zero by itself was written with zeroes for each discard: the volume takes none then, as the disk does not. Zeroes
/// are exact still, and whoever has the loop device next is not asked to do without discards.
#[test]
fn a_volume_that_takes_no_discards_is_asked_for_none_and_reads_as_zeroes_where_it_is_to() {
    if !possible("blkdiscard") {
        return;
    }
    for discards in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let backend = Memory::new(64 * MIB);
        let options = Options { discards, ..Options::new(dir.path().join("mount"), "volume") };
        let mut export = Export::start(&options, backend.clone()).unwrap();
        let path = export.device();
        let device = open_direct(&path);
        aligned(MIB, |data| {
            data.fill(0xab);
            device.write_all_at(data, 0).unwrap();
        });
        backend.asked();
        let since = Instant::now();
        // Kernels tell it as an error, or as done: a discard may be ignored.
        Command::new("blkdiscard").args(["-l", "8192"]).arg(&path).stderr(Stdio::null()).status().unwrap();
        assert!(since.elapsed() < LONG);
        assert_eq!(backend.asked().len(), usize::from(discards));
        run("blkdiscard", &["-z", "-o", "8192", "-l", "65536", path.to_str().unwrap()]);
        aligned(MIB, |data| {
            device.read_exact_at(data, 0).unwrap();
            let zeroes = if discards { 0..73728 } else { 8192..73728 };
            assert!(data.iter().enumerate().all(|(at, byte)| *byte == if zeroes.contains(&at) { 0 } else { 0xab }));
        });
        drop(device);
        export.stop().unwrap();
    }
}

/// A hole that is cut into several requests is one for the client: it is done when the last of them is, and fails if any does.
#[test]
fn a_hole_of_which_a_part_fails_is_an_io_error() {
    if !possible("fallocate") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let backend = Arc::new(Memory { size: 64 << 20, phase: 2, fails_discards: true, ..Memory::default() });
    let options = Options { phase: 2, ..Options::new(dir.path().join("mount"), "volume") };
    let mut export = Export::start(&options, backend.clone()).unwrap();
    let device = open_direct(&export.device());
    let punch = |offset, len| rustix::fs::fallocate(&device, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len);
    assert_eq!(punch(0, 16384).unwrap_err().raw_os_error(), libc::EIO);
    // Of this one there is no whole block.
    punch(0, 4096).unwrap();
    drop(device);
    export.stop().unwrap();
}

#[test]
fn a_read_only_volume_with_large_blocks_is_a_device_like_that() {
    if !possible("true") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::new(dir.path().join("mount"), "volume");
    options.read_only = true;
    options.block_size = 4096;
    options.read_ahead_kb = Some(64);
    let mut export = Export::start(&options, Memory::new(64 * MIB)).unwrap();
    assert!(export.warnings().is_empty(), "{:?}", export.warnings());
    let device = export.device();
    let limits = [("ro", "1"), ("queue/logical_block_size", "4096"), ("queue/read_ahead_kb", "64")];
    for (name, value) in limits {
        assert_eq!(attribute(&device, name), value, "{name}");
    }
    export.stop().unwrap();
    let e = Export::start(&options, Memory::new(64 * MIB + 512)).unwrap_err();
    assert!(e.to_string().contains("not a number of blocks"), "{e}");
}

#[test]
fn a_request_dropped_without_an_answer_is_an_io_error_and_the_next_one_is_served() {
    if !possible("true") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let backend = Arc::new(Memory { size: 64 << 20, cursed: Some(2048), ..Memory::default() });
    let mut export = serve(dir.path(), &backend);
    let device = open_direct(&export.device());
    aligned(BLOCK, |data| {
        let e = device.read_exact_at(data, MIB as u64).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EIO));
        device.read_exact_at(data, 2 * MIB as u64).unwrap();
    });
    drop(device);
    export.stop().unwrap();
}

#[test]
fn a_file_system_lives_on_the_device_which_cannot_be_stopped_meanwhile() {
    if !possible("mkfs.ext4") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Room for three copies of this program, which is large with its debug information.
    let mut export = serve(dir.path(), &Memory::new(512 * MIB));
    let device = export.device();
    let on = dir.path().join("ext4");
    fs::create_dir(&on).unwrap();
    let (node, on_it) = (device.to_str().unwrap(), on.to_str().unwrap());
    // Its blocks are smaller than the volume's, which its discards and zeroes have to survive.
    run("mkfs.ext4", &["-q", "-b", "1024", node]);
    run("mount", &["-o", "discard", node, on_it]);
    let original = std::env::current_exe().unwrap();
    for copy in ["first", "second", "third"] {
        fs::copy(&original, on.join(copy)).unwrap();
    }
    fs::remove_file(on.join("second")).unwrap();
    run("sync", &["-f", on_it]);
    let e = export.stop().unwrap_err();
    assert!(e.is_in_use(), "{e}");
    run("umount", &[on_it]);
    run("fsck.ext4", &["-fn", node]);
    run("mount", &["-o", "ro", node, on_it]);
    let same = fs::read(&original).unwrap() == fs::read(on.join("third")).unwrap();
    run("umount", &[on_it]);
    assert!(same);
    export.stop().unwrap();
}

/// Somebody had the device open, without a mount or any other claim on it, when the volume was to be detached. That was refused, and
/// nothing was to change. But the kernel had made a note to take the device away when that user closes it, and did so, with the
/// volume still being served and the next users reading nothing.
#[test]
fn a_device_that_somebody_has_open_is_not_stopped_and_stays_when_he_closes_it() {
    if !possible("true") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = Options { read_ahead_kb: Some(64), ..Options::new(dir.path().join("mount"), "volume") };
    let mut export = Export::start(&options, Memory::new(64 * MIB)).unwrap();
    let path = export.device();
    let limits = ["max_sectors_kb", "read_ahead_kb", "rotational", "discard_max_bytes", "write_zeroes_max_bytes"];
    let shown = || limits.map(|name| attribute(&path, &format!("queue/{name}")));
    let before = shown();
    let user = open_direct(&path);
    let e = export.stop().unwrap_err();
    assert!(e.is_in_use(), "{e}");
    assert_eq!(attribute(&path, "loop/autoclear"), "0");
    aligned(BLOCK, |data| {
        data.fill(0x5a);
        user.write_all_at(data, MIB as u64).unwrap();
    });
    drop(user);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(attribute(&path, "loop/backing_file"), dir.path().join("mount/volume").to_str().unwrap());
    aligned(BLOCK, |data| {
        open_direct(&path).read_exact_at(data, MIB as u64).unwrap();
        assert!(data.iter().all(|byte| *byte == 0x5a));
    });
    assert_eq!(shown(), before);
    export.stop().unwrap();
    assert!(attribute(&path, "loop/backing_file").is_empty());
}

#[test]
fn fio_finds_what_it_wrote() {
    if !possible("fio") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut export = serve(dir.path(), &Memory::new(256 * MIB));
    let device = format!("--filename={}", export.device().display());
    let common = ["--name=job", &device, "--direct=1", "--ioengine=libaio", "--size=128m"];
    let fio = |arguments: &[&str]| run("fio", &[&common[..], arguments].concat());
    fio(&[
        "--rw=randwrite",
        "--bsrange=512-256k",
        "--iodepth=32",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
    ]);
    for (kind, column) in [("randread", 7), ("randwrite", 48)] {
        for depth in [1, 32] {
            let (kind, depth) = (format!("--rw={kind}"), format!("--iodepth={depth}"));
            let timed = ["--bs=4k", "--runtime=2", "--time_based", "--minimal"];
            let line = fio(&[&[kind.as_str(), &depth], &timed[..]].concat());
            println!("4 KiB {kind} {depth}: {} a second", line.split(';').nth(column).unwrap());
        }
    }
    export.stop().unwrap();
}

#[test]
fn a_stopped_volume_leaves_no_mount_and_no_loop_device() {
    if !possible("true") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let backend = Memory::new(64 * MIB);
    let point = dir.path().join("mount");
    for orderly in [true, false] {
        let mut export = serve(dir.path(), &backend);
        assert!(is_mounted(&point));
        assert_eq!(loop_devices(dir.path()), [export.device()]);
        let e = Export::start(&Options::new(&point, "volume"), backend.clone()).unwrap_err();
        assert!(e.to_string().contains("already mounted"), "{e}");
        if orderly {
            export.stop().unwrap();
        }
        drop(export);
        assert!(!is_mounted(&point));
        assert!(loop_devices(dir.path()).is_empty());
        assert_eq!(Arc::strong_count(&backend), 1, "the threads have ended");
    }
}

#[test]
fn a_killed_daemon_leaves_errors_but_no_hang_and_the_next_start_clears_up() {
    const NAME: &str = "a_killed_daemon_leaves_errors_but_no_hang_and_the_next_start_clears_up";
    const DIR: &str = "HEADPOND_TEST_DAEMON_DIR";
    if let Some(dir) = std::env::var_os(DIR) {
        let _export = serve(Path::new(&dir), &Memory::new(64 * MIB));
        loop {
            std::thread::park();
        }
    }
    if !possible("true") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let point = dir.path().join("mount");
    let mut daemon = Command::new(std::env::current_exe().unwrap());
    let mut daemon = daemon.args(["--exact", NAME]).env(DIR, dir.path()).stdout(Stdio::null()).spawn().unwrap();
    let since = Instant::now();
    let device = loop {
        if let Some(device) = loop_devices(dir.path()).pop() {
            break device;
        }
        assert!(since.elapsed() < LONG, "the daemon does not start");
        std::thread::sleep(Duration::from_millis(10));
    };
    let user = open_direct(&device);
    std::thread::scope(|scope| {
        // Reads go on while the daemon dies; one of them fails, and none hangs.
        let read = |data: &mut [u8], at: u64| user.read_exact_at(data, at % 16_000 * BLOCK as u64);
        let reader = scope.spawn(move || aligned(BLOCK, |data| (0..).find_map(|at| read(data, at).err())));
        std::thread::sleep(Duration::from_millis(300));
        let since = Instant::now();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        assert_eq!(reader.join().unwrap().unwrap().raw_os_error(), Some(libc::EIO));
        assert!(since.elapsed() < LONG);
    });
    assert_eq!(fs::metadata(&point).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    // Somebody still has the old device open: it cannot go yet, but does not keep a new one from coming.
    let mut export = Export::start(&Options::new(&point, "volume"), Memory::new(64 * MIB)).unwrap();
    assert!(matches!(export.warnings(), [warning] if warning.is_in_use()), "{:?}", export.warnings());
    assert_ne!(export.device(), device);
    aligned(BLOCK, |data| open_direct(&export.device()).read_exact_at(data, 0).unwrap());
    drop(user);
    let since = Instant::now();
    while !attribute(&device, "loop/backing_file").is_empty() {
        assert!(since.elapsed() < LONG, "{} stays bound", device.display());
        std::thread::sleep(Duration::from_millis(10));
    }
    export.stop().unwrap();
    assert!(!is_mounted(&point));
}
