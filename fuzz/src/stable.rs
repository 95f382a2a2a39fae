//! Drives the targets without libFuzzer: the corpus, then random changes of it.
//!
//! ```text
//! stable [--seed N] [--tries N] [--input FILE] [TARGET..]   N tries for each target rather than its own number
//! stable --write-seeds                                      writes the inputs to begin with into the corpus
//! ```

use headpond_fuzz::{TARGETS, Target};
use headpond_sim::rng::Rng;
use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// No input takes this long.
const ENDLESS: Duration = Duration::from_secs(30);
/// Memory that no input may make the process need, in KiB.
const MEMORY_KIB: u64 = 1 << 20;

thread_local! {
    static WORDS: RefCell<String> = const { RefCell::new(String::new()) };
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let (mut seed, mut tries, mut input, mut write, mut names) = (None, None, None, false, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse().ok()).ok_or(format!("{arg} wants a number"));
        match arg.as_str() {
            "--seed" => seed = Some(number()?),
            "--tries" => tries = Some(number()?),
            "--input" => input = Some(args.next().ok_or("--input wants a file")?),
            "--write-seeds" => write = true,
            name if !name.starts_with('-') => names.push(name.to_owned()),
            other => return Err(format!("{other} is not known")),
        }
    }
    if let Some(unknown) = names.iter().find(|n| TARGETS.iter().all(|t| t.name != **n)) {
        return Err(format!("there is no target {unknown}"));
    }
    let wanted: Vec<&Target> = TARGETS.iter().filter(|t| names.is_empty() || names.iter().any(|n| n == t.name)).collect();
    if write {
        return wanted.iter().try_for_each(|t| write_seeds(t)).map_err(|e| e.to_string());
    }
    if let (Some(file), [target]) = (&input, wanted.as_slice()) {
        let bytes = fs::read(file).map_err(|e| format!("{file}: {e}"))?;
        (target.run)(&bytes);
        println!("{}: {file} passed", target.name);
        return Ok(());
    }
    // The standard library seeds its hashers from the operating system's random numbers.
    let seed = seed.unwrap_or_else(|| RandomState::new().build_hasher().finish() % 1_000_000_000_000);
    println!("the corpus, and changes of it drawn from seed {seed}");
    let failed: Vec<&str> = wanted.into_iter().filter(|t| !drive(t, seed, tries.unwrap_or(t.tries))).map(|t| t.name).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder().join("corpus").join(target.name))
        .map(|all| all.flatten().map(|f| f.path()).collect())
        .unwrap_or_default();
    files.sort();
    let mut all = (target.seeds)();
    all.extend(files.iter().filter_map(|f| fs::read(f).ok()));
    all
}

fn write_seeds(target: &Target) -> std::io::Result<()> {
    let to = folder().join("corpus").join(target.name);
    fs::create_dir_all(&to)?;
    for (n, seed) in (target.seeds)().iter().enumerate() {
        fs::write(to.join(format!("seed-{n:02}")), seed)?;
    }
    println!("{}: {} inputs to begin with", target.name, (target.seeds)().len());
    Ok(())
}

/// Whether all went well.
fn drive(target: &'static Target, seed: u64, tries: u64) -> bool {
    let begun = Instant::now();
    let corpus = corpus(target);
    let (to, from) = mpsc::channel::<Option<Result<u64, (Vec<u8>, String)>>>();
    let (current, watched) = mpsc::channel::<Vec<u8>>();
    let of = corpus.len() as u64 + tries;
    std::thread::spawn(move || {
        std::panic::set_hook(Box::new(|info| WORDS.with_borrow_mut(|w| *w = info.to_string())));
        let mut rng = Rng::new(seed ^ target.name.bytes().fold(0, |h, b| h * 31 + u64::from(b)));
        for n in 0..of {
            let bytes = match corpus.get(n as usize) {
                Some(bytes) => bytes.clone(),
                None => changed(&corpus, target.longest, &mut rng),
            };
            let _ = current.send(bytes.clone());
            let before = peak();
            let caught = std::panic::catch_unwind(|| (target.run)(&bytes));
            let words = match caught {
                Err(_) => Some(WORDS.take()),
                Ok(()) if peak() > before.max(MEMORY_KIB) => Some(format!("it needed {} MiB of memory", peak() >> 10)),
                Ok(()) => None,
            };
            if let Some(words) = words {
                let _ = to.send(Some(Err((bytes, words))));
                return;
            }
            let _ = to.send(Some(Ok(n)));
        }
        let _ = to.send(None);
    });
    let mut done = 0;
    let mut last = Vec::new();
    let failure = loop {
        let answer = from.recv_timeout(ENDLESS);
        last = watched.try_iter().last().unwrap_or(last);
        match answer {
            Ok(Some(Ok(n))) => done = n + 1,
            Ok(Some(Err(failure))) => break Some(failure),
            Ok(None) => break None,
            Err(_) => break Some((last, "it does not end".into())),
        }
    };
    let took = begun.elapsed().as_secs_f64();
    match failure {
        None => println!("{:>10}: {done} inputs passed, {took:.1} s", target.name),
        Some((bytes, words)) => {
            let file = save(target, &bytes);
            println!("{:>10}: FAILED at input {done} of {of}, of {} bytes\n            {words}", target.name, bytes.len());
            println!("            again: cargo xtask fuzz --stable --input {file} {}", target.name);
            return false;
        }
    }
    true
}

/// The most memory that the process has asked for, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmPeak:"));
    line.and_then(|l| l.trim().strip_suffix(" kB")).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn save(target: &Target, bytes: &[u8]) -> String {
    let name = format!("fuzz/artifacts/{}/stable-{:016x}", target.name, headpond_format::checksum(0, bytes));
    let file = folder().join("..").join(&name);
    let made = file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&file, bytes));
    made.map_or_else(|e| format!("(could not be written: {e})"), |()| name)
}

/// One of the corpus, with some of it changed, left out, doubled or put together with another one.
fn changed(corpus: &[Vec<u8>], longest: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = rng.pick(corpus).clone();
    for _ in 0..rng.within(1, 6) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        match rng.below(6) {
            0 | 1 if at < bytes.len() => bytes[at] = rng.next() as u8,
            2 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            3 => bytes.truncate(at),
            4 => {
                let other = rng.pick(corpus);
                let from = rng.below(other.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                let more: Vec<u8> = (0..rng.within(1, 16)).map(|_| rng.next() as u8).collect();
                bytes.splice(at..at, more);
            }
        }
    }
    bytes.truncate(longest);
    bytes
}
