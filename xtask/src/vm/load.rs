//! What runs in the guest: `xtask guest ...`, told by scripts there, and speaking to the host in lines.

use crate::hammer::filesystems::{change_names, content, write_durably};
use crate::hammer::model::Dice;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Threads that write files.
const WRITERS: u64 = 2;
/// Files that are kept; older ones are removed.
const FILES: usize = 40;
/// Blocks that are read again and again.
const HOT: usize = 32;
/// A file here ends all loads.
const STOP: &str = "/run/stop";
/// When the daemon was killed, and when it was gone; removed when the pause has been measured.
const KILLED: &str = "/run/killed";
/// Longer than it takes to hear an answer that was given, and shorter than any start.
const MOMENT: Duration = Duration::from_millis(100);
/// Bytes of the blocks that are written to devices.
const BLOCK: usize = 4096;

/// Does one of the guest's works.
pub fn run(args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["durable", folder, first] => durable(Path::new(folder), first.parse()?),
        ["names", folder, seed] => names(Path::new(folder), seed.parse()?),
        ["hot", path, seed] => hot(Path::new(path), seed.parse()?),
        ["compare", folder, list] => compare(Path::new(folder), Path::new(list)),
        ["replace", pid, late, program, ref args @ ..] => {
            replace(pid.parse()?, Duration::from_millis(late.parse()?), program, args)
        }
        ["kill", pid] => kill(pid.parse()?),
        ["pauses", path] => pauses(Path::new(path)),
        ["write", device, first, count, seed] => blocks(Work::Write, device, first, count, seed),
        ["read", device, first, count, seed] => blocks(Work::Read, device, first, count, seed),
        _ => bail!("the guest knows no work such as {args:?}"),
    }
}

/// A line to the host, in one write, so that lines of several programs stay apart.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A host that is gone has cut our power.
    let _ = out.write_all(format!("{line}\n").as_bytes());
    let _ = out.flush();
}

fn micros() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros())
}

/// Whether the host wants an end, looked for beside the loads.
fn stops() -> &'static AtomicBool {
    static STOPS: AtomicBool = AtomicBool::new(false);
    thread::spawn(|| {
        while !Path::new(STOP).exists() {
            thread::sleep(Duration::from_millis(50));
        }
        STOPS.store(true, Ordering::SeqCst);
    });
    &STOPS
}

/// Writes files and makes them durable until something fails; of each the host is told when its last fsync has returned, and not before.
fn durable(folder: &Path, first: u64) -> Result<()> {
    let (stop, next) = (stops(), AtomicU64::new(first));
    let kept = Mutex::new(Vec::new());
    let write = || {
        while !stop.load(Ordering::SeqCst) {
            let number = next.fetch_add(1, Ordering::SeqCst);
            match write_durably(folder, number) {
                Ok(_) => say(&format!("kept {number} {}", micros())),
                Err(error) => return say(&format!("stopped durable-{number} {error}")),
            }
            let mut kept = kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            kept.push(number);
            if kept.len() > FILES {
                let oldest = kept.remove(0);
                drop(kept);
                // It no longer counts, before it goes.
                say(&format!("gone {oldest}"));
                let _ = fs::remove_file(folder.join(format!("durable-{oldest}")));
            }
        }
    };
    thread::scope(|scope| (0..WRITERS).for_each(|_| drop(scope.spawn(write))));
    Ok(())
}

/// Changes names, which need not be durable, but must leave a whole file system.
fn names(folder: &Path, seed: u64) -> Result<()> {
    let made = AtomicU64::new(0);
    change_names(folder, seed, stops(), &made);
    say(&format!("::count name-changes {}", made.load(Ordering::SeqCst)));
    Ok(())
}

/// Reads a few blocks of a file again and again past the page cache, and writes one of them now and then: each read must be of the last write.
fn hot(path: &Path, seed: u64) -> Result<()> {
    let stop = stops();
    let (file, mut dice) = (direct(path, true)?, Dice(seed));
    let mut versions = [0_u64; HOT];
    let (mut room, mut reads) = (room(BLOCK), 0_u64);
    let content = |version: u64, block: usize| block_content(seed ^ version << 20, block as u64);
    while !stop.load(Ordering::SeqCst) {
        let block = dice.below(HOT as u64) as usize;
        let (buffer, at) = (aligned(&mut room), (block * BLOCK) as u64);
        let writes = versions[block] == 0 || dice.below(16) == 0;
        let done = if writes {
            versions[block] += 1;
            buffer.copy_from_slice(&content(versions[block], block));
            file.write_all_at(buffer, at)
        } else {
            file.read_exact_at(buffer, at)
        };
        if let Err(error) = done {
            say(&format!("stopped hot {error}"));
            break;
        }
        if !writes && *buffer != *content(versions[block], block) {
            say("::fail a hot block was not read as it was written last");
            bail!("MISMATCH: block {block} of {} is not as it was written last", path.display());
        }
        reads += u64::from(!writes);
    }
    say(&format!("::count hot-reads {reads}"));
    Ok(())
}

/// Reads the files whose numbers are in `list`, wants each as it was written, and makes room.
fn compare(folder: &Path, list: &Path) -> Result<()> {
    let text = fs::read_to_string(list)?;
    let numbers: Vec<u64> = text.lines().map(str::parse).collect::<Result<_, _>>()?;
    let mut bytes = 0;
    for &number in &numbers {
        let path = folder.join(format!("durable-{number}"));
        let expected = content(number);
        let mut data = Vec::new();
        match File::open(&path).and_then(|mut file| file.read_to_end(&mut data)) {
            Err(error) if !path.exists() => {
                say(&format!("missing {number} {error}"));
                continue;
            }
            result => drop(result.with_context(|| format!("{} cannot be read", path.display()))?),
        }
        if data != expected {
            let at = data.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(data.len().min(expected.len()));
            bail!(
                "MISMATCH: durable-{number}, whose fsync had returned, has {} bytes of {}, the first wrong one at {at}",
                data.len(),
                expected.len()
            );
        }
        bytes += data.len();
    }
    say(&format!("::count files-compared {}", numbers.len()));
    say(&format!("::count bytes-compared {bytes}"));
    // What a crash left half written, and most of the rest, makes room for the next load.
    let stay = &numbers[numbers.len().saturating_sub(FILES / 2)..];
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let number = name.strip_prefix("durable-").map(|rest| rest.parse::<u64>());
        match number {
            Some(Ok(number)) if !stay.contains(&number) => {
                say(&format!("gone {number}"));
                fs::remove_file(entry.path())?;
            }
            Some(Err(_)) => fs::remove_file(entry.path())?,
            _ => {}
        }
    }
    if folder.join("names").exists() {
        fs::remove_dir_all(folder.join("names"))?;
    }
    Ok(())
}

/// Kills a process and starts a program in its place as soon as it is gone, or so much later, as a service manager does; returns
/// when that says that it is up.
fn replace(pid: i32, late: Duration, program: &str, args: &[&str]) -> Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
    let pid = Pid::from_raw(pid).context("a process has a number above zero")?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let log = File::options().create(true).append(true).open("/host/daemon.log")?;
    let mut command = Command::new(program);
    command.args(args).envs([("RUST_BACKTRACE", "1"), ("RUST_LOG", "info")]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let killed = micros();
    say(&format!("killed {killed}"));
    kill_process(pid, Signal::KILL)?;
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit))? == 0 {
        bail!("a minute after its SIGKILL the daemon is still there; the kernel's log says what it waits for");
    }
    let gone = micros();
    thread::sleep(late);
    let child = command.spawn();
    // Whole, or not there at all, for whoever looks.
    let half = format!("{KILLED}.half");
    fs::write(&half, format!("{killed} {gone}"))?;
    fs::rename(half, KILLED)?;
    let child = child.with_context(|| format!("{program} cannot be started again"))?;
    fs::write("/run/daemon.pid", child.id().to_string())?;
    let mut line = String::new();
    BufReader::new(child.stdout.context("its output is ours")?).read_line(&mut line)?;
    if !line.starts_with("pool ") {
        bail!("the daemon that was started again does not say that it is up, but {line:?}; its log says why");
    }
    say(&format!("::figure end-ms {}", (gone - killed) / 1000));
    say(&format!("::figure restart-ms {}", (micros() - gone) / 1000));
    Ok(())
}

/// Sends SIGKILL, and says when.
fn kill(pid: i32) -> Result<()> {
    let pid = rustix::process::Pid::from_raw(pid).context("a process has a number above zero")?;
    say(&format!("killed {}", micros()));
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::KILL)?)
}

/// Writes and reads a block of a file every few milliseconds, past the page cache; says how long the longest took, and after each
/// kill, how long it was till requests were answered again.
///
/// That is from the kill to the first answer when the daemon has been gone for a moment: one that came sooner may be the old
/// one's, heard late.
fn pauses(path: &Path) -> Result<()> {
    let stop = stops();
    let file = direct(path, true)?;
    let mut room = room(BLOCK);
    let mut longest = Duration::ZERO;
    let mut answered = |begun: Instant| -> Result<()> {
        longest = longest.max(begun.elapsed());
        let Ok(text) = fs::read_to_string(KILLED) else { return Ok(()) };
        let (killed, gone) = text.split_once(' ').context("the kill was not told of in two numbers")?;
        let (killed, gone): (u128, u128) = (killed.parse()?, gone.parse()?);
        let now = micros();
        if now > gone + MOMENT.as_micros() {
            say(&format!("::figure pause-ms {}", (now - killed) / 1000));
            fs::remove_file(KILLED)?;
        }
        Ok(())
    };
    while !stop.load(Ordering::SeqCst) {
        let block = aligned(&mut room);
        let begun = Instant::now();
        file.write_all_at(block, 0).context("a write of the probe failed")?;
        answered(begun)?;
        let begun = Instant::now();
        file.read_exact_at(block, 0).context("a read of the probe failed")?;
        answered(begun)?;
        thread::sleep(Duration::from_millis(5));
    }
    say(&format!("::figure longest-request-ms {}", longest.as_millis()));
    Ok(())
}

enum Work {
    Write,
    Read,
}

/// Writes blocks of known content in a random order, or reads them back; says how many succeeded, failed and were wrong.
fn blocks(work: Work, device: &str, first: &str, count: &str, seed: &str) -> Result<()> {
    let (first, count, seed): (u64, u64, u64) = (first.parse()?, count.parse()?, seed.parse()?);
    let file = direct(&PathBuf::from(device), true)?;
    let mut order: Vec<u64> = (first..first + count).collect();
    let mut dice = Dice(seed);
    for n in (1..order.len()).rev() {
        order.swap(n, dice.below(n as u64 + 1) as usize);
    }
    let (mut good, mut failed, mut wrong) = (0_u64, 0_u64, Vec::new());
    let mut room = room(BLOCK);
    for &number in &order {
        let expected = block_content(seed, number);
        let block = aligned(&mut room);
        let at = number * BLOCK as u64;
        let result = match work {
            Work::Write => {
                block.copy_from_slice(&expected);
                file.write_all_at(block, at)
            }
            Work::Read => file.read_exact_at(block, at),
        };
        match result {
            Err(_) => failed += 1,
            Ok(()) if *block == *expected => good += 1,
            Ok(()) => wrong.push(number),
        }
    }
    if matches!(work, Work::Write) && file.sync_all().is_err() {
        say("blocks-not-flushed");
    }
    say(&format!("blocks {good} good, {failed} failed, {} wrong", wrong.len()));
    if let Some(number) = wrong.first() {
        bail!("MISMATCH: {} blocks are not as they were written, the first is block {number}", wrong.len());
    }
    Ok(())
}

fn direct(path: &Path, write: bool) -> Result<File> {
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = File::options().read(true).write(write).create(write && !path.starts_with("/dev")).custom_flags(flags).open(path);
    let file = file.with_context(|| format!("{} cannot be opened", path.display()))?;
    Ok(file)
}

/// Room in which a block at an aligned address fits.
fn room(len: usize) -> Vec<u8> {
    vec![0; len + BLOCK]
}

fn aligned(room: &mut [u8]) -> &mut [u8] {
    let skip = room.as_ptr().align_offset(BLOCK);
    &mut room[skip..skip + BLOCK]
}

fn block_content(seed: u64, number: u64) -> Vec<u8> {
    let mut dice = Dice(seed ^ number.rotate_left(32));
    let mut data = vec![0; BLOCK];
    data.chunks_mut(8).for_each(|word| word.copy_from_slice(&dice.below(u64::MAX).to_le_bytes()));
    data
}
