//! What a request costs in instructions and in allocations: the same on a busy machine as on an idle one.
//!
//! `cargo bench -p headpond-engine --bench instructions [-- NAME..]`, where valgrind is installed. Each load is run twice under callgrind, as
//! processes of their own, the second with four times as many requests: what it takes more, by the requests that it has more, is what one
//! costs, and what comes before them is in neither. Lines of the form `name value unit` are the figures of `docs/PERFORMANCE.md`. A figure
//! above its bound here ends the bench with an error.
//!
//! Devices in memory complete at once and copy nothing, and no time passes. What the bench does between engine and devices is in the figures.

mod support;

use headpond_engine::Buf;
use headpond_engine::stats::VolumeStats;
use std::collections::BTreeSet;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use support::{BLOCK, Bytes, Dice, Host, hits_of, scattered};

/// Bytes of a cache device.
const MEMBER: u64 = 1 << 30;
/// Blocks that are cached before a load.
const CACHED: u64 = 2048;
/// Blocks of them that are read.
const HOT: u64 = 1000;
/// Requests of the shorter run; the longer one has four times as many.
const SHORT: u64 = 1024;
/// Blocks of a request of a stream.
const LONG: u64 = 256;

struct Load {
    name: &'static str,
    what: &'static str,
    /// More instructions than this are an error: a tenth more than there were when the line was last changed.
    bound: u64,
    /// Makes so many requests.
    run: fn(u64),
}

const LOADS: [Load; 11] = [
    Load { name: "payload", what: "a block checksummed and copied: what no engine can save", bound: 2000, run: payload },
    Load { name: "hit", what: "a hit of 4 KiB among 1,000 blocks, payload included", bound: 7100, run: |n| reads(n, 1, HOT, 0) },
    Load { name: "hit_beside", what: "the same beside the engine", bound: 2300, run: beside },
    Load {
        name: "hit_128k",
        what: "a hit of 128 KiB that lies in 32 places",
        bound: 156_000,
        run: |n| reads(n, 32, HOT / 32, 0),
    },
    Load {
        name: "miss",
        what: "a miss of 4 KiB: read from the disk, and kept",
        bound: 26_600,
        run: |n| reads(n, 1, 1 << 28, 1 << 28),
    },
    Load { name: "write", what: "a write of 4 KiB, one at a time", bound: 21_300, run: |n| writes(n, 1, 0, BLOCK) },
    Load { name: "write_32", what: "the same, 32 at a time", bound: 14_000, run: |n| writes(n, 32, 0, BLOCK) },
    Load {
        name: "write_unaligned_32",
        what: "the same, from 5 sectors into a block on",
        bound: 20_700,
        run: |n| writes(n, 32, 5, BLOCK),
    },
    Load { name: "write_512", what: "a write of a sector, one at a time", bound: 22_000, run: |n| writes(n, 1, 2, 512) },
    Load { name: "stream_read", what: "a read of 1 MiB past the cache", bound: 7300, run: stream_read },
    Load { name: "stream_write", what: "a write of 1 MiB past the cache", bound: 6300, run: stream_write },
];

/// A host that has [`CACHED`] blocks cached.
fn warm() -> Host {
    let mut host = Host::new(MEMBER);
    let mut data = vec![0u8; BLOCK];
    for block in scattered(CACHED) {
        data[..8].copy_from_slice(&block.to_le_bytes());
        host.write(block, 0, Bytes::from_bytes(&data));
        host.run();
        host.replies().for_each(drop);
    }
    assert_eq!(host.engine().status().volumes[0].cached_blocks, CACHED);
    host
}

/// So many turns with a warm host; nearly all that is counted must be what the load is about: so much in all.
fn load(turns: u64, mut turn: impl FnMut(&mut Host, u64), counted: fn(&VolumeStats) -> u64, in_all: u64) {
    let mut host = warm();
    let before = counted(&host.engine().status().volumes[0].stats);
    (0..turns).for_each(|n| turn(&mut host, n));
    let stats = &host.engine().status().volumes[0].stats;
    let found = counted(stats) - before;
    assert!(found <= in_all && found * 100 >= in_all * 95, "{found} of {in_all} requests are what they should be: {stats:?}");
}

/// Reads of so many blocks, of so many places from one on: hits, or misses.
fn reads(requests: u64, blocks: u32, places: u64, from: u64) {
    let (mut dice, mut client) = (Dice(1), vec![0u8; blocks as usize * BLOCK]);
    let turn = |host: &mut Host, _| {
        let block = from + dice.below(places) * u64::from(blocks);
        hits_of(std::iter::once(block), blocks, host, &mut client);
    };
    load(requests, turn, if from == 0 { |s| s.hit.requests } else { |s| s.miss.requests }, requests)
}

/// Writes among the blocks that are cached, so many at a time, so many sectors past the beginning of a block.
fn writes(requests: u64, depth: u64, skew: u64, bytes: usize) {
    let (mut dice, data) = (Dice(1), Bytes::from_bytes(&vec![7; bytes]));
    let turn = |host: &mut Host, _| {
        (0..depth).for_each(|_| host.write(dice.below(CACHED), skew, data.clone()));
        host.run();
        assert_eq!(host.replies().count() as u64, depth);
    };
    load(requests / depth, turn, |s| s.absorbed.requests, requests)
}

/// A stream past the cache: so many requests that each begin where the one before has ended. Nothing is copied to a client or from one.
fn stream(requests: u64, ask: impl Fn(&mut Host, u64), counted: fn(&VolumeStats) -> u64) {
    let turn = |host: &mut Host, n| {
        ask(host, (1 << 28) + n * LONG);
        host.run();
        host.replies().for_each(drop);
    };
    load(requests, turn, counted, requests);
}

fn stream_read(requests: u64) {
    stream(requests, |host, block| host.read(block, LONG as u32), |s| s.read_bypass.requests);
}

fn stream_write(requests: u64) {
    let data = Bytes::zeroes(LONG as usize * BLOCK);
    stream(requests, |host, block| host.write(block, 0, data.clone()), |s| s.write_bypass.iter().map(|way| way.requests).sum());
}

fn payload(requests: u64) {
    let (data, mut client) = (Bytes::from_bytes(&[7; BLOCK]), vec![0u8; BLOCK]);
    for _ in 0..requests {
        black_box(data.checksum(1));
        client.copy_from_slice(data.bytes());
        black_box(&mut *client);
    }
}

/// Hits that a front end's thread serves without the engine.
fn beside(requests: u64) {
    let mut host = warm();
    let table = host.engine().lookaside(0, 1 << 14).expect("it is served");
    let mut client = vec![0u8; BLOCK];
    hits_of(0..HOT, 1, &mut host, &mut client);
    let known: Vec<u64> = (0..HOT).filter(|block| table.find(block * 8, 8).is_some()).collect();
    let mut dice = Dice(1);
    for _ in 0..requests {
        let block = known[dice.below(known.len() as u64) as usize];
        let found = table.find(block * 8, 8).expect("nobody has written it");
        assert!(table.begin(0));
        let (member, byte) = found.places[0].expect("the device is there");
        let data = host.member(member).read(byte, BLOCK);
        assert!(found.is(&data));
        client.copy_from_slice(data.bytes());
        table.end(0, Some(BLOCK as u64));
        black_box(&mut *client);
    }
}

/// Functions of the system's library that allocate.
const ALLOCATE: [&str; 4] = ["malloc", "calloc", "realloc", "posix_memalign"];

/// Instructions and allocations of a process that makes so many requests, and where callgrind says of what.
fn count(load: &Load, requests: u64) -> Result<(u64, u64, PathBuf), String> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.{requests}.callgrind", load.name));
    let this = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet"]).arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(this).args(["--alone", load.name, &requests.to_string()]);
    let output = command.output().map_err(|e| format!("valgrind: {e}; Debian has it in the package of that name"))?;
    if !output.status.success() {
        return Err(format!("{} under valgrind: {}", load.name, String::from_utf8_lossy(&output.stderr)));
    }
    let said = std::fs::read_to_string(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    let total = said.lines().find_map(|line| line.strip_prefix("summary: ")?.trim().parse().ok());
    Ok((total.ok_or_else(|| format!("{} has no summary", out.display()))?, allocations(&said), out))
}

/// Calls of what allocates, as callgrind's format has them: a function's name stands where its number comes for the first time, and who is
/// called stands before how often.
fn allocations(said: &str) -> u64 {
    let (mut theirs, mut is_one, mut calls) = (BTreeSet::new(), false, 0);
    for line in said.lines() {
        if let Some(of) = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn=")) {
            let (number, name) = of.split_once(' ').unwrap_or((of, ""));
            if ALLOCATE.contains(&name) {
                theirs.insert(number);
            }
            is_one = theirs.contains(number);
        } else if let Some(of) = line.strip_prefix("calls=").filter(|_| is_one) {
            calls += of.split(' ').next().and_then(|times| times.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    calls
}

/// Prints what a load costs; whether it is within its bound.
fn measure(load: &Load) -> Result<bool, String> {
    let (short, few, _) = count(load, SHORT)?;
    let (long, many, out) = count(load, SHORT * 4)?;
    let each = |more: u64| more as f64 / (SHORT * 3) as f64;
    let instructions = each(long - short);
    println!("{}_instructions {instructions:.0} each", load.name);
    println!("{}_allocations {:.2} each", load.name, each(many - few));
    let is_within = instructions <= load.bound as f64;
    if !is_within {
        println!(
            "# {}, {}: above its bound of {}. `callgrind_annotate {}` says where",
            load.name,
            load.what,
            load.bound,
            out.display()
        );
    }
    Ok(is_within)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [alone, name, requests] = args.as_slice()
        && alone == "--alone"
    {
        let load = LOADS.iter().find(|load| load.name == name).expect("a load has this name");
        (load.run)(requests.parse().expect("a number of requests"));
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&Load> =
        LOADS.iter().filter(|load| args.is_empty() || args.iter().any(|arg| load.name.contains(arg))).collect();
    let ends: Result<Vec<bool>, String> = wanted.into_iter().map(measure).collect();
    match ends {
        Ok(within) if !within.is_empty() && within.iter().all(|w| *w) => ExitCode::SUCCESS,
        Ok(within) if within.is_empty() => {
            eprintln!("no load has such a name: {}", LOADS.map(|load| load.name).join(", "));
            ExitCode::FAILURE
        }
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
