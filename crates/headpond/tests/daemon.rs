//! The daemon from outside: pools made, volumes attached, used over NBD, killed, restarted, detached.

mod common;

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, MIB, Nbd, Yard};
use headpond_host::control::{Call, call};

/// Chance, from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// What a part of a volume must read as, sector by sector.
struct Model {
    start: u64,
    phase: u64,
    sectors: Vec<u64>,
    /// A write whose end nobody saw: each of its sectors may be as before, or as it wanted.
    torn: Option<(usize, Vec<u64>)>,
    next_stamp: u64,
    dice: Dice,
    /// What was asked and how it ended, for when something is wrong.
    story: Vec<(usize, usize, String)>,
}

fn fill(stamp: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
    bytes
}

impl Model {
    fn new(part: u64, sectors: u64, phase: u64) -> Model {
        let (start, sectors) = (part * sectors, vec![0; sectors as usize]);
        Model { start, phase, sectors, torn: None, next_stamp: part << 48 | 1, dice: Dice(part + 1), story: Vec::new() }
    }

    /// One request of chance; an error ends the daemon's life, or the test.
    fn step(&mut self, nbd: &mut Nbd) -> io::Result<()> {
        let most = if self.dice.below(8) == 0 { 2048 } else { 64 };
        let len = 1 + self.dice.below(most) as usize;
        let at = self.dice.below((self.sectors.len() - len) as u64) as usize;
        let (offset, bytes) = ((self.start + at as u64) * 512, len as u32 * 512);
        match self.dice.below(20) {
            0 => nbd.flush(),
            1 => {
                // Rounded inwards to blocks of the grid.
                let (first, end) = (self.start + at as u64, self.start + (at + len) as u64);
                let shift = (8 - self.phase) % 8;
                let (from, to) = ((first + shift).next_multiple_of(8) - shift, (end + shift) / 8 * 8 - shift);
                let wanted = vec![0; to.saturating_sub(from) as usize];
                let durable = self.dice.below(2) == 0;
                let what = format!("trim {} +{len}, durable {durable}", self.start + at as u64);
                self.write((from.max(first) - self.start) as usize, wanted, &what, || nbd.trim(offset, bytes, durable))
            }
            2 => self.write(at, vec![0; len], "zeroes", || nbd.zero(offset, bytes)),
            3..9 => {
                let found = nbd.read(offset, len * 512)?;
                self.check(at, &found, "read back");
                Ok(())
            }
            kind => {
                self.next_stamp += 1;
                let stamps: Vec<u64> = vec![self.next_stamp; len];
                let data: Vec<u8> = stamps.iter().flat_map(|stamp| fill(*stamp)).collect();
                let what = format!("write {:#x}, durable {}", self.next_stamp, kind == 9);
                self.write(at, stamps, &what, || nbd.write(offset, &data, kind == 9))
            }
        }
    }

    fn write(&mut self, at: usize, wanted: Vec<u64>, what: &str, ask: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let result = ask();
        let end = if result.is_ok() { "" } else { ", cut off by the kill" };
        self.story.push((at, at + wanted.len(), format!("{what}{end}")));
        match result {
            Ok(()) => self.sectors[at..at + wanted.len()].copy_from_slice(&wanted),
            Err(_) => self.torn = Some((at, wanted)),
        }
        result
    }

    #[track_caller]
    fn check(&self, at: usize, found: &[u8], when: &str) {
        let wrong = |n: &usize| found[n * 512..][..512] != fill(self.sectors[at + n]);
        let wrong: Vec<usize> = (0..found.len() / 512).filter(wrong).collect();
        let Some(first) = wrong.first() else { return };
        let numbered = self.story.iter().enumerate();
        let about = numbered.filter(|(_, (from, to, _))| (*from..*to).contains(&(at + first)));
        let of = self.story.len();
        let about =
            about.map(|(n, (from, to, what))| format!("{n} of {of}: {} +{}: {what}", self.start + *from as u64, to - from));
        let stamp = u64::from_le_bytes(found[first * 512..][..8].try_into().unwrap());
        panic!(
            "{when}: sectors {:?} are wrong. The first is {stamp:#x}, and should be {:#x}; its story:\n{}",
            wrong.iter().map(|n| self.start + (at + n) as u64).collect::<Vec<_>>(),
            self.sectors[at + first],
            about.collect::<Vec<_>>().join("\n")
        );
    }

    /// After a restart: settles what a torn write became, and compares all.
    fn settle(&mut self, nbd: &mut Nbd) {
        if let Some((at, wanted)) = self.torn.take() {
            for (n, wanted) in wanted.into_iter().enumerate() {
                let found = nbd.read((self.start + (at + n) as u64) * 512, 512).unwrap();
                if found == fill(wanted) {
                    self.sectors[at + n] = wanted;
                }
            }
        }
        for at in (0..self.sectors.len()).step_by(1024) {
            let found = nbd.read((self.start + at as u64) * 512, 1024 * 512).unwrap();
            self.check(at, &found, "after a restart");
        }
    }
}

/// Four clients at once, each in its own quarter; the daemon is killed under them again and again.
fn killed_under_load(rounds: u32, millis: u64, phase: u64, spec: &str) {
    let yard = Yard::new();
    yard.pool();
    let disk = yard.file("disk", 64 * MIB);
    let mut daemon = yard.serve(&["a", "b"]);
    let phase_text = phase.to_string();
    yard.run(&["attach", "v", spec, "--phase", &phase_text]).good();
    let mut models: Vec<Model> = (0..4).map(|part| Model::new(part, 16 * MIB / 512, phase)).collect();
    for round in 0..rounds {
        let killed = AtomicBool::new(false);
        thread::scope(|scope| {
            for model in &mut models {
                let (mut nbd, killed) = (yard.nbd("v"), &killed);
                scope.spawn(move || {
                    loop {
                        match model.step(&mut nbd) {
                            Ok(()) => {}
                            Err(_) if killed.load(Ordering::SeqCst) => return,
                            Err(error) => panic!("a request failed: {error}"),
                        }
                    }
                });
            }
            thread::sleep(Duration::from_millis(millis + u64::from(round) * 37 % 100));
            killed.store(true, Ordering::SeqCst);
            daemon.kill();
        });
        daemon = yard.serve(&["a", "b"]);
        let mut nbd = yard.nbd("v");
        for model in &mut models {
            model.settle(&mut nbd);
            model.story.push((0, model.sectors.len(), format!("restart {round}")));
        }
    }
    let mut nbd = yard.nbd("v");
    for model in &mut models {
        (0..200).for_each(|_| model.step(&mut nbd).unwrap());
    }
    // From clean to warm: a clean stop, and a start after it.
    daemon.stop();
    let daemon = yard.serve(&["a", "b"]);
    let mut nbd = yard.nbd("v");
    models.iter_mut().for_each(|model| model.settle(&mut nbd));
    yard.run(&["detach", "v"]).good();
    let content = fs::read(disk).unwrap();
    for model in &models {
        let at = model.start as usize * 512;
        model.check(0, &content[at..at + model.sectors.len() * 512], "on the disk after the detach");
    }
    daemon.stop();
    yard.run(&["pool", "destroy", "a", "b"]).good();
}

#[test]
fn killed_under_load_it_loses_nothing_and_a_detached_disk_is_byte_exact() {
    killed_under_load(4, 300, 0, "disk");
}

#[test]
fn the_same_on_a_modelled_disk_with_a_shifted_grid() {
    killed_under_load(2, 500, 7, "modelled:disk");
}

#[test]
fn a_device_keeps_what_was_on_it() {
    let yard = Yard::new();
    yard.pool();
    let disk = yard.file("disk", 8 * MIB);
    let content: Vec<u8> = (0..8 * MIB / 8).flat_map(|n| (n * 0x9e37_79b9).to_le_bytes()).collect();
    fs::write(&disk, &content).unwrap();
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    let mut nbd = yard.nbd("v");
    assert_eq!(nbd.size, 8 * MIB);
    assert!(nbd.read(0, 8 << 20).unwrap() == content);
    nbd.write(MIB, &[9; 4096], true).unwrap();
    yard.run(&["flush", "v"]).good();
    let mut found = [0; 4096];
    fs::File::open(&disk).unwrap().read_exact_at(&mut found, MIB).unwrap();
    assert_eq!(found, [9; 4096]);
    for mode in ["write-through", "write-around", "pass-through", "write-back"] {
        yard.run(&["mode", "v", mode]).good();
        nbd.write(2 * MIB, mode.as_bytes().repeat(512).get(..4096).unwrap(), false).unwrap();
        assert_eq!(nbd.read(2 * MIB, 512).unwrap()[..4], mode.as_bytes()[..4]);
        assert!(yard.run(&["status"]).good().out.contains(mode));
    }
    yard.run(&["detach", "v"]).good();
    assert!(nbd.read(0, 512).is_err(), "a detached volume is not served");
    let mut expected = content;
    expected[MIB as usize..][..4096].fill(9);
    expected[2 * MIB as usize..][..4096].copy_from_slice(&b"write-back".repeat(512)[..4096]);
    assert!(fs::read(&disk).unwrap() == expected);
    daemon.stop();
}

/// It was written into the next volume: a connection named its volume by a number, which is the next one's after a detach.
#[test]
fn a_connection_to_a_detached_volume_never_reaches_the_one_that_has_its_number_next() {
    let yard = Yard::new();
    yard.pool();
    yard.file("a-disk", 4 * MIB);
    yard.file("b-disk", 4 * MIB);
    let zeroes = |disk| assert!(fs::read(yard.path(disk)).unwrap().iter().all(|byte| *byte == 0), "{disk} was written to");
    let _daemon = yard.serve(&["a", "b"]);
    let number = || {
        let status: serde_json::Value = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
        status["volumes"][0]["number"].as_u64().unwrap()
    };
    // Another volume over another disk, the same disk again, and a volume by the same name.
    for (next, disk) in [("b", "b-disk"), ("b", "a-disk"), ("a", "a-disk")] {
        yard.run(&["attach", "a", "a-disk"]).good();
        let before = number();
        let (mut old, mut idle) = (yard.nbd("a"), yard.nbd("a"));
        // Has been told of the volume, and chooses it when it is another one.
        let late = Nbd::begin(&yard.path("nbd")).unwrap();
        old.read(0, 4096).unwrap();
        yard.run(&["detach", "a"]).good();
        yard.run(&["attach", next, disk]).good();
        assert_eq!(number(), before, "the test wants the number to be given again");
        let mut asks: Vec<Nbd> = Nbd::choose(late, "a").into_iter().collect();
        asks.push(old);
        for nbd in &mut asks {
            nbd.write(0, &[0xbd; 4096], true).unwrap_err();
            nbd.read(0, 4096).unwrap_err();
            nbd.zero(0, 4096).unwrap_err();
            nbd.trim(0, 4096, true).unwrap_err();
            nbd.flush().unwrap_err();
        }
        assert!(yard.nbd(next).read(0, 4096).unwrap() == [0; 4096], "the next volume was written to");
        idle.patience(LONG);
        let end = idle.answer(&mut []).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof, "who asks for nothing is told as well");
        yard.run(&["detach", next]).good();
        zeroes("a-disk");
        zeroes("b-disk");
    }
    // Volumes without a disk come and go by other calls.
    yard.run(&["volume", "create", "j", "--size", "1MiB"]).good();
    let mut old = yard.nbd("j");
    yard.run(&["volume", "delete", "j", "--throw-away"]).good();
    yard.run(&["volume", "create", "k", "--size", "1MiB"]).good();
    old.write(0, &[0xbd; 4096], true).unwrap_err();
    assert!(yard.nbd("k").read(0, 4096).unwrap() == [0; 4096], "the next volume was written to");
}

/// A client that does not read its answers is not read either, beyond what it may have outstanding. So what it sends may be
/// with the server before a detach, and go on to the engine when another volume has the number.
#[test]
fn what_came_before_a_detach_and_goes_on_after_it_is_refused() {
    let yard = Yard::new();
    yard.pool();
    yard.file("a-disk", 4 * MIB);
    yard.file("b-disk", 4 * MIB);
    let _daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "a", "a-disk"]).good();
    let mut old = yard.nbd("a");
    old.patience(LONG);
    const READS: usize = 1000;
    let mut requests = Nbd::request(0, 0, 0, 4096, &[]).repeat(READS);
    requests.extend(Nbd::request(1, 1, 0, 4096, &[0xbd; 4096]));
    old.send(&requests).unwrap();
    yard.run(&["detach", "a"]).good();
    yard.run(&["attach", "b", "b-disk"]).good();
    // From here on they go on.
    let ends: Vec<Option<i32>> = (0..READS)
        .map(|_| match old.answer(&mut [0; 4096]) {
            Ok(()) => None,
            Err(error) => Some(error.raw_os_error().expect("every request is answered")),
        })
        .collect();
    let shut_down = Some(108);
    assert!(ends[0].is_none() && ends[READS - 1] == shut_down, "{ends:?}");
    assert!(ends.iter().all(|end| end.is_none() || *end == shut_down), "{ends:?}");
    assert_eq!(old.answer(&mut []).unwrap_err().raw_os_error(), shut_down, "the write");
    assert_eq!(old.answer(&mut []).unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "the connection ends");
    assert!(yard.nbd("b").read(0, 4096).unwrap() == [0; 4096], "the next volume was written to");
    yard.run(&["detach", "b"]).good();
    assert!(fs::read(yard.path("b-disk")).unwrap().iter().all(|byte| *byte == 0), "its disk was written to");
}

#[test]
fn several_volumes_share_a_socket_and_come_back_by_themselves() {
    let yard = Yard::new();
    yard.pool();
    for name in ["x", "y"] {
        yard.file(name, 4 * MIB);
    }
    let daemon = yard.serve(&["a", "b"]);
    assert_eq!(daemon.said, "pool pool is up\n");
    for (name, byte) in [("x", 1), ("y", 2)] {
        yard.run(&["attach", name, name]).good();
        yard.nbd(name).write(0, &[byte; 512], false).unwrap();
    }
    daemon.stop();
    let daemon = yard.serve(&["a", "b"]);
    for (name, byte) in [("x", 1), ("y", 2)] {
        assert!(daemon.said.contains(&format!("volume {name} at nbd+unix:///{name}?socket=")), "{}", daemon.said);
        assert_eq!(yard.nbd(name).read(0, 512).unwrap(), [byte; 512]);
    }
    let status: serde_json::Value = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
    assert_eq!(status["volumes"].as_array().unwrap().len(), 2);
    assert_eq!(status["volumes"][0]["requests"]["hit"]["requests"], 1, "the cache is warm after a clean stop");
}

#[test]
fn the_configuration_file_says_what_the_command_line_does_not() {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 4 * MIB);
    let text = "devices = ['a', 'b']\nstate = 'state'\nsocket = 'control'\nnbd = 'nbd'\n[engine]\nlarge_bytes = '2MiB'\n";
    fs::write(yard.path("headpond.toml"), text).unwrap();
    let daemon = yard.serve_with(&["--config", "headpond.toml"]).unwrap();
    yard.run(&["attach", "v", "disk"]).good();
    yard.nbd("v").write(0, &[1; 512], true).unwrap();
    daemon.stop();
}

/// How dm-writecache and dm-cache lost data (P4, P8): a second instance on the media of a first one, which only sleeps.
#[test]
fn a_second_daemon_is_refused_while_the_first_one_is_paused() {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 4 * MIB);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.nbd("v").write(0, &[6; 4096], true).unwrap();
    daemon.signal("STOP");
    let other = yard.serve_with(&["a", "b", "--state", "state", "--socket", "other", "--wait", "1"]);
    other.err().expect("the first one holds the devices").said(1, &["a is in use: process", "Nothing was read or written"]);
    daemon.signal("CONT");
    let mut client = yard.nbd("v");
    client.write(4096, &[7; 4096], true).unwrap();
    assert_eq!(client.read(0, 8192).unwrap(), [[6; 4096], [7; 4096]].concat());
}

#[test]
fn a_pool_without_one_of_two_devices_serves_on_and_says_so() {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 4 * MIB);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.nbd("v").write(4096, &[5; 4096], true).unwrap();
    daemon.kill();
    // Not there any more: where it was last seen it would be taken too.
    fs::rename(yard.path("b"), yard.path("away")).unwrap();
    let daemon = yard.serve(&["a"]);
    assert_eq!(yard.nbd("v").read(4096, 4096).unwrap(), [5; 4096]);
    let status = yard.run(&["status"]).good().out;
    assert!(status.contains("DEGRADED") && status.contains("Cache device 1"), "{status}");
    assert!(daemon.complaints().contains("Cache device 1"));
    yard.run(&["detach", "v"]).good();
    let mut found = [0; 4096];
    fs::File::open(yard.path("disk")).unwrap().read_exact_at(&mut found, 4096).unwrap();
    assert_eq!(found, [5; 4096]);
}

#[test]
fn a_detach_that_takes_long_can_be_cancelled_and_changes_nothing() {
    const BLOCKS: u64 = 3000;
    let yard = Yard::new();
    yard.pool_and_slow_disk();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", "modelled:disk"]).good();
    let mut nbd = yard.nbd("v");
    let places: Vec<u64> = (0..BLOCKS).map(|n| n * 7919 % BLOCKS * (4096 * 1300)).collect();
    let write = |nbd: &mut Nbd| nbd.write_many(places.iter().map(|at| (*at, at.to_le_bytes().repeat(512))));
    write(&mut nbd);
    let detach = thread::scope(|scope| {
        let detach = scope.spawn(|| yard.run(&["detach", "v"]));
        // Until it is under way there is nothing to cancel.
        while yard.run(&["detach", "v", "--cancel"]).code != Some(0) {
            assert!(!detach.is_finished(), "{:?}", detach.join());
        }
        detach.join().unwrap()
    });
    detach.said(1, &["Volume v: Cancelled", "is safe"]);
    for command in [&["detach", "v", "--deadline", "1s"][..], &["flush", "v", "--deadline", "1s"]] {
        write(&mut yard.nbd("v"));
        yard.run(command).said(1, &["the 1 s given were over", "bytes not on the disk yet", "Nothing is lost", "more time"]);
    }
    // The mode is switched all the same: it is what is dirty that takes long.
    write(&mut yard.nbd("v"));
    let parts = ["it is in mode write-through now", "the 1 s given were over", "Nothing is lost", "`headpond flush v`"];
    yard.run(&["mode", "v", "write-through", "--deadline", "1s"]).said(1, &parts);
    let status = yard.run(&["status"]).good().out;
    assert!(status.contains("write-through"), "{status}");
    yard.run(&["mode", "v", "write-back"]).good();
    // A second command was begun before it was looked whether it may be, and had switched the mode by the time that it was refused.
    write(&mut yard.nbd("v"));
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let socket = yard.path("control");
        let flush = scope.spawn(move || {
            let all = Call::Destage { name: "v".into(), deadline_seconds: None };
            call(&socket, &all, |progress| drop(tell.send(progress)))
        });
        // How far it is is told while it is under way.
        told.recv_timeout(Duration::from_secs(60)).unwrap();
        let refused = ["Another command is under way on volume v. Nothing was changed."];
        yard.run(&["mode", "v", "pass-through"]).said(1, &refused);
        let status = yard.run(&["status"]).good().out;
        assert!(status.contains("write-back") && !status.contains("pass-through"), "{status}");
        yard.run(&["detach", "v"]).said(1, &refused);
        yard.run(&["detach", "v", "--cancel"]).good();
        flush.join().unwrap().unwrap_err();
    });
    yard.run(&["detach", "v", "--deadline", "1ms"]).said(2, &["less than a second"]);
    let status = yard.run(&["status"]).good().out;
    assert!(status.contains("write-back"), "{status}");
    let mut nbd = yard.nbd("v");
    for at in &places {
        assert_eq!(nbd.read(*at, 4096).unwrap(), at.to_le_bytes().repeat(512));
    }
    yard.run(&["detach", "v"]).good();
    daemon.stop();
}

/// A thread that serves the host's own NBD client, and needs memory, must not wait for writeback to the volume that it serves.
#[test]
fn no_thread_on_the_way_of_a_request_waits_for_writeback_when_it_needs_memory() {
    let yard = Yard::new();
    let daemon = common::served(&yard);
    let mut nbd = yard.nbd("v");
    // Answered, its threads are there and have their names.
    nbd.read(0, 4096).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let may = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    // CAP_SYS_RESOURCE.
    if u64::from_str_radix(may.trim(), 16).unwrap() & 1 << 24 == 0 {
        // The engine's, and the one that the threads of connections come from.
        let until = Instant::now() + LONG;
        while daemon.complaints().matches("cannot mark a thread as I/O flusher").count() != 2 {
            assert!(Instant::now() < until, "{}", daemon.complaints());
            thread::sleep(Duration::from_millis(20));
        }
        return;
    }
    let mut marked = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap() {
        // Those of a connection before may be ending.
        let Ok(stat) = fs::read_to_string(task.unwrap().path().join("stat")) else { continue };
        let (name, rest) = (stat.split(['(', ')']).nth(1).unwrap(), stat.rsplit_once(") ").unwrap().1);
        let flags: u32 = rest.split(' ').nth(6).unwrap().parse().unwrap();
        // PF_MEMALLOC_NOIO, which PR_SET_IO_FLUSHER sets.
        if flags & 0x0008_0000 != 0 {
            marked.push(name.to_owned());
        }
    }
    for kind in ["nbd-read", "nbd-write", "engine"] {
        assert!(marked.iter().any(|name| name.starts_with(kind)), "{kind} is not among {marked:?}");
    }
}
