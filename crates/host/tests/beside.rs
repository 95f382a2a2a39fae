//! Threads beside the engine's that read what it lets them find: for real, on files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use headpond_engine::io::{Buf, Device, Request};
use headpond_host::beside::{Ended, Reader};
use headpond_host::buf::HostBuf;
use headpond_host::claim::Claim;
use headpond_host::requests::Op;
use headpond_host::runtime::Handle;
use served::{BLOCK, LONG, Served, ssds};

mod served;

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../headpond/tests/common/silent.rs"]
mod silent;

/// Blocks of the test, far apart: nobody reads on from one to another.
const APART: u64 = 2048;

fn ask(handle: &Handle, request: Request<HostBuf>) -> Vec<u8> {
    let (to, answer) = mpsc::channel();
    handle.request(0, request, move |reply| drop(to.send(reply)));
    let bufs = answer.recv_timeout(LONG).unwrap().unwrap();
    bufs.iter().flat_map(|buf| buf.to_bytes().into_owned()).collect()
}

fn read(n: u64) -> Request<HostBuf> {
    Request::Read { sector: n * APART, sectors: 8, into: None }
}

/// A block that says `value` all over.
fn write(handle: &Handle, n: u64, value: u64) {
    let data = value.to_le_bytes().repeat(BLOCK as usize / 8);
    ask(handle, Request::Write { sector: n * APART, data: HostBuf::from_bytes(&data), fua: false });
}

/// Waits until a device owes nothing: the engine's own sweep may be under way.
fn until_none_is_owed(owed: impl Fn() -> u64) {
    let until = Instant::now() + LONG;
    while owed() > 0 {
        assert!(Instant::now() < until, "it answers");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn value(data: &[u8]) -> u64 {
    let first = u64::from_le_bytes(data[..8].try_into().unwrap());
    assert!(data.len() as u64 == BLOCK && data.chunks(8).all(|word| word == first.to_le_bytes()), "a block of two writes");
    first
}

/// What a reader gets of a block, and whether it read that by itself.
fn get(reader: &mut Reader<u64>, handle: &Handle, n: u64) -> (u64, bool) {
    let (data, by_itself) = get_of(reader, handle, n, read(n));
    (value(&data), by_itself)
}

/// The same of what is asked for in a block.
fn get_of(reader: &mut Reader<u64>, handle: &Handle, n: u64, request: Request<HostBuf>) -> (Vec<u8>, bool) {
    if reader.begin(&request, n).is_err() {
        return (ask(handle, request), false);
    }
    let until = Instant::now() + LONG;
    loop {
        reader.wait(Some(Duration::from_secs(1)), &mut Vec::new()).unwrap();
        match reader.ended().pop() {
            Some(Ended::Read(by, data)) => {
                assert_eq!(by, n);
                return (data.as_slice().to_vec(), true);
            }
            Some(Ended::Ask(by, request, _)) => {
                assert_eq!(by, n);
                return (ask(handle, request), false);
            }
            None => assert!(Instant::now() < until, "a read beside the engine does not end"),
        }
    }
}

/// Reads until a reader reads it by itself: a sweep that marks a block clean has it asked for once more, and so has a read that is late.
fn get_beside(reader: &mut Reader<u64>, handle: &Handle, n: u64, request: &Request<HostBuf>) -> Vec<u8> {
    let until = Instant::now() + LONG;
    loop {
        if let (data, true) = get_of(reader, handle, n, request.clone()) {
            return data;
        }
        assert!(Instant::now() < until, "{request:?} is never read beside the engine");
        // Learns of the table; and the whole block is what the engine lets others find.
        reader.wait(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
        get(reader, handle, n);
    }
}

/// Has the engine let a reader find what it reads.
fn reader(handle: &Handle) -> Reader<u64> {
    let mut reader = Reader::new(8, Some(handle.door(0))).unwrap();
    write(handle, 0, 7);
    get_beside(&mut reader, handle, 0, &read(0));
    reader
}

/// The same, once nothing is dirty: then no sweep will take away what is found.
fn reader_of_what_is_clean(handle: &Handle) -> Reader<u64> {
    let mut reader = reader(handle);
    let until = Instant::now() + LONG;
    while handle.status().unwrap().volumes[0].dirty_blocks > 0 {
        assert!(Instant::now() < until, "it is never clean");
        std::thread::sleep(Duration::from_millis(10));
    }
    get_beside(&mut reader, handle, 0, &read(0));
    reader
}

#[test]
fn a_hit_is_read_beside_the_engine_and_counted_like_any_other() {
    let served = Served::new();
    let handle = served.handle();
    let mut reader = reader(handle);
    (1..9).for_each(|n| write(handle, n, n + 100));
    for n in 1..9 {
        assert_eq!(get(&mut reader, handle, n), (n + 100, false));
        assert_eq!(value(&get_beside(&mut reader, handle, n, &read(n))), n + 100);
    }
    // A part of a block too, and not what lies in two, is long, or goes on from the last.
    let part = Request::Read { sector: 3 * APART + 2, sectors: 3, into: None };
    assert_eq!(get_beside(&mut reader, handle, 3, &part), 103_u64.to_le_bytes().repeat(3 * 64));
    let of = |sector, sectors| Request::Read { sector, sectors, into: None };
    for request in [of(4 * APART + 4, 8), of(4 * APART, 16), of(4 * APART, 0), of(u64::MAX, 1), Request::Flush] {
        assert!(reader.begin(&request, 4).is_err(), "{request:?}");
    }
    assert!(reader.begin(&of(5 * APART - 8, 8), 5).is_err() && reader.begin(&read(5), 5).is_err());
    // What is written is the engine's to read.
    write(handle, 6, 1000);
    assert_eq!(get(&mut reader, handle, 6), (1000, false));
    let snapshot = handle.snapshot().unwrap();
    let stats = &snapshot.status.volumes[0].stats;
    assert!(stats.hit_beside.requests >= 10 && stats.hit.requests >= stats.hit_beside.requests + 9, "{stats:?}");
    let answered: u64 = snapshot.requests.iter().map(|(.., seen)| seen.times.count()).sum();
    let reads = stats.hit.requests + stats.miss.requests;
    assert!(answered > reads, "all reads, and the writes: {answered} of {reads}");
    let read_there: u64 = snapshot.loads.iter().filter(|(d, _)| matches!(d, Device::Member(_))).map(|(_, load)| load.reads).sum();
    assert!(read_there >= stats.hit.requests, "{read_there}");
}

#[test]
fn a_device_that_is_taken_away_is_let_go_of_by_readers_too() {
    let mut served = Served::new();
    let mut reader = reader(served.handle());
    let [ssd, _] = ssds(served.folder.path());
    served.handle().remove(Device::Member(0));
    let until = Instant::now() + LONG;
    while let Err(error) = Claim::take(&ssd, Duration::ZERO) {
        assert!(Instant::now() < until, "{error}");
        reader.wait(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
    }
    // Nor does a reader keep what is left of the engine.
    served.runtime = None;
    assert!(reader.begin(&read(0), 0).is_err());
}

/// An upgrade went by what the engine's own thread was owed alone, and the program that took over did not get hold of the device.
#[test]
fn what_a_cache_device_owes_a_reader_is_seen() {
    let mount = tempfile::tempdir().unwrap();
    let Some(ssd) = silent::Disk::new(&mount.path().join("mount"), 64 << 20) else { return };
    let served = Served::with(Some(ssd.path()));
    let handle = served.handle();
    let mut reader = reader_of_what_is_clean(handle);
    let owed = || handle.snapshot().unwrap().loads.get(&Device::Member(1)).map_or(0, |load| load.oldest_ns);
    until_none_is_owed(owed);
    ssd.fall_silent();
    // It reads from both by turns.
    let until = Instant::now() + LONG;
    let since = loop {
        let _ = reader.begin(&read(0), 0);
        reader.wait(Some(Duration::from_secs(1)), &mut Vec::new()).unwrap();
        let asked = reader.ended().into_iter().find_map(|ended| match ended {
            Ended::Ask(.., since) => Some(since),
            Ended::Read(..) => None,
        });
        if asked.is_some() || Instant::now() >= until {
            break asked;
        }
    };
    let (after, begun) = (owed(), since.map(|since| since.elapsed()));
    ssd.speak();
    assert!(after >= 200_000_000, "{after}");
    assert!(begun.is_some_and(|begun| begun >= Duration::from_millis(200)), "{begun:?}");
    // It has taken that long already when the engine is asked, however late that is.
    std::thread::sleep(Duration::from_secs(3));
    let (to, answer) = mpsc::channel();
    handle.request_begun(0, read(0), since, move |reply| _ = to.send(reply.is_ok()));
    assert_eq!(answer.recv_timeout(LONG), Ok(true));
    let requests = handle.snapshot().unwrap().requests;
    let reads = requests.iter().filter(|(_, op, ..)| *op == Op::Read);
    let longest = reads.filter_map(|(.., seen)| seen.times.quantile(1.0)).max();
    assert!(longest.is_some_and(|longest| longest >= 3_000_000_000), "{longest:?}");
    let until = Instant::now() + LONG;
    while owed() > 0 {
        assert!(Instant::now() < until, "it has answered");
        reader.wait(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
        reader.ended();
    }
}

/// What threads of a block device had answered was no longer counted once that was stopped: counters ran backwards.
#[test]
fn what_a_reader_has_answered_stays_counted_when_it_is_no_more() {
    let served = Served::new();
    let handle = served.handle();
    let mut reader = reader(handle);
    assert_eq!(value(&get_beside(&mut reader, handle, 0, &read(0))), 7);
    let counted = || handle.snapshot().unwrap().requests.iter().map(|(.., seen)| seen.times.count()).sum::<u64>();
    let before = counted();
    drop(reader);
    assert_eq!(counted(), before);
    // Its volume's number may become another's.
    handle.remove(Device::Backing(0));
    assert_eq!(counted(), 0);
}

/// What had not waited for long when a queue's thread ended was seen by nobody, and an upgrade began.
#[test]
fn what_a_cache_device_owes_a_reader_that_ends_is_seen() {
    let mount = tempfile::tempdir().unwrap();
    let Some(ssd) = silent::Disk::new(&mount.path().join("mount"), 64 << 20) else { return };
    let served = Served::with(Some(ssd.path()));
    let handle = served.handle();
    let (up, is_up) = mpsc::channel();
    let (silent, is_silent) = mpsc::channel();
    let others = handle.clone();
    let ends = std::thread::spawn(move || {
        let mut reader = reader_of_what_is_clean(&others);
        up.send(()).unwrap();
        is_silent.recv().unwrap();
        // It reads from both by turns.
        let begun = [0, 1].map(|by| reader.begin(&read(0), by).is_ok());
        let _ = reader.wait(Some(Duration::ZERO), &mut Vec::new());
        begun
    });
    is_up.recv().unwrap();
    ssd.fall_silent();
    silent.send(()).unwrap();
    let owed = || handle.snapshot().unwrap().loads.get(&Device::Member(1)).map_or(0, |load| load.oldest_ns);
    let until = Instant::now() + LONG;
    while owed() == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    let seen = owed();
    ssd.speak();
    assert_eq!(ends.join().unwrap(), [true; 2]);
    assert!(seen > 0);
    until_none_is_owed(owed);
}

/// One writes blocks again and again; another reads them, by himself where he can: never less than what had been acknowledged when he
/// began, and never a mixture.
#[test]
fn who_reads_beside_the_engine_sees_what_was_acknowledged_before() {
    const BLOCKS: u64 = 4;
    /// So many of his reads he has to have made by himself, for the test to have tried anything.
    const ENOUGH: u64 = 21;
    let served = Served::new();
    let handle = served.handle();
    let acknowledged: Arc<[AtomicU64]> = (0..BLOCKS).map(|_| AtomicU64::new(7)).collect();
    (0..BLOCKS).for_each(|n| write(handle, n, 7));
    let (told, ends) = mpsc::channel::<()>();
    let beside = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let known = Arc::clone(&acknowledged);
        let other = handle.clone();
        let beside = &beside;
        let reads = scope.spawn(move || {
            let mut reader = Reader::new(8, Some(other.door(0))).unwrap();
            let mut all = 0_u64;
            while ends.try_recv() == Err(mpsc::TryRecvError::Empty) {
                let n = all % BLOCKS;
                let least = known[n as usize].load(Ordering::SeqCst);
                let (found, by_himself) = get(&mut reader, &other, n);
                assert!(found >= least, "block {n} was {least} when a read began that found {found}");
                beside.fetch_add(u64::from(by_himself), Ordering::SeqCst);
                all += 1;
                reader.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
            }
            all
        });
        let begun = Instant::now();
        let mut written = 8;
        // On a busy machine he has not made enough of them in three seconds.
        let goes_on = || beside.load(Ordering::SeqCst) < ENOUGH && begun.elapsed() < LONG && !reads.is_finished();
        while begun.elapsed() < Duration::from_secs(3) || goes_on() {
            let n = written % BLOCKS;
            write(handle, n, written);
            acknowledged[n as usize].store(written, Ordering::SeqCst);
            written += 1;
            // Now and then a reader finds what it has read before.
            if written % 16 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        told.send(()).unwrap();
        let all = reads.join().unwrap();
        let beside = beside.load(Ordering::SeqCst);
        assert!(beside >= ENOUGH && beside < all, "{beside} of {all} reads were made beside the engine");
    });
}
