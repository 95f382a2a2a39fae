//! An operator's day: a pool made, filled, hurt, mended, upgraded and taken apart under a file system that fio writes to and
//! checks all day long. No I/O may fail, and nothing may be read that was not written.

mod ssd;
mod transcript;

use crate::hammer::{fio, interrupt};
use crate::headpond;
use crate::steps::in_words;
use crate::tools;
use anyhow::{Context, Result, bail};
use headpond_host::report::Report;
use ssd::Ssd;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use transcript::Transcript;

const USAGE: &str = "\
cargo xtask day [--markdown FILE] [--dir DIR] [--headpond PATH]   (as root)
  --markdown FILE   write the transcript there
  --dir DIR         where drives and logs are meanwhile (the folder for temporary files)
  --headpond PATH   serve with this program rather than the one that is built now";

/// The pool's name, and the volume's.
const POOL: &str = "day";
const VOLUME: &str = "data";
const SSD_BYTES: u64 = 192 << 20;
const DISK_BYTES: u64 = 2 << 30;
/// Blocks of which one copy each is damaged.
const MARKED: usize = 64;
/// How long anything that is waited for may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// Of blocks of a file, by their numbers: which SSD has a copy, and at which byte.
type Copies = HashMap<usize, (usize, u64)>;

/// `cargo xtask day`.
pub fn run(args: &[String]) -> Result<()> {
    let (mut markdown, mut dir, mut headpond) = (None, std::env::temp_dir(), None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args.next().map(PathBuf::from).with_context(|| format!("{arg} wants a value\n{USAGE}"));
        match arg.as_str() {
            "--markdown" => markdown = Some(value?),
            "--dir" => dir = value?,
            "--headpond" => headpond = Some(value?),
            _ => bail!("{USAGE}"),
        }
    }
    interrupt::watch()?;
    if !tools::is_root() || !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        println!("left out: it takes root, FUSE and loop devices");
        return Ok(());
    }
    tools::install()?;
    let headpond = match headpond {
        // It is run in another folder.
        Some(path) => path.canonicalize().with_context(|| format!("{} is not there", path.display()))?,
        None => headpond::build()?,
    };
    let folder = dir.join(format!("headpond-day-{}", std::process::id()));
    fs::create_dir(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let begun = Instant::now();
    let mut transcript = Transcript::new(&folder, &headpond);
    let mut day = Day::default();
    let result = day.all(&folder, &headpond, &mut transcript);
    if result.is_err() {
        let log = fs::read_to_string(folder.join("daemon.log")).unwrap_or_default();
        eprintln!("what the daemon said:\n{log}");
        if let Ok(report) = report(&headpond) {
            eprintln!("how it stands:\n{}", serde_json::to_string_pretty(&report).unwrap_or_default());
        }
    }
    day.clear_up(&folder);
    let sums = result?;
    transcript.end_step();
    let _ = fs::remove_dir_all(&folder);
    println!("\nthe day took {}: no I/O error, no mismatch", in_words(begun.elapsed()));
    if let Some(file) = markdown {
        fs::write(&file, document(&transcript, &sums, begun.elapsed()))?;
    }
    Ok(())
}

/// What runs, and has to be ended whatever happens.
#[derive(Default)]
struct Day {
    ssds: Vec<Ssd>,
    daemon: Option<Child>,
    mounted: bool,
}

/// What fio did all day.
struct Sums {
    runs: u64,
    io: fio::Sums,
    planted: usize,
    found: u64,
    pause: f64,
}

impl Day {
    fn all(&mut self, folder: &Path, headpond: &Path, t: &mut Transcript) -> Result<Sums> {
        for name in ["a", "b", "c", "d"] {
            self.ssds.push(Ssd::new(folder, name, SSD_BYTES)?);
        }
        let ssd: Vec<String> = self.ssds.iter().map(|ssd| ssd.device.display().to_string()).collect();
        File::create(folder.join("disk"))?.set_len(DISK_BYTES)?;
        fs::write(
            folder.join("day.toml"),
            format!("devices = [\"{}\", \"{}\"]\nstate = \"state\"\nfrontend = \"fuse\"\n", ssd[0], ssd[1]),
        )?;

        t.step("Create a pool of two SSDs, and serve it");
        t.headpond(&["pool", "create", POOL, &ssd[0], &ssd[1], "--state", "state"])?;
        t.headpond(&["config", "check", "day.toml"])?;
        self.serve(folder, headpond, t)?;

        t.step("Attach the disk, make a file system, mount it");
        t.headpond(&["attach", VOLUME, "modelled:disk"])?;
        let device = Day::device(headpond)?;
        t.tool("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0", &device])?;
        fs::create_dir(folder.join("mnt"))?;
        t.tool("mount", &[&device, "mnt"])?;
        self.mounted = true;

        let point = folder.join("mnt");
        let stop = AtomicBool::new(false);
        let (day, sums) = thread::scope(|scope| {
            let load = scope.spawn(|| load(folder, &point, &stop));
            let day = self.under_load(folder, headpond, &ssd, &load, t);
            stop.store(true, Ordering::SeqCst);
            (day, load.join())
        });
        let (runs, io) = sums.map_err(|_| anyhow::anyhow!("the load panicked"))??;
        let (planted, found, pause, kept) = day?;

        t.step("Unmount and detach: the disk is a plain disk again");
        t.tool("umount", &["mnt"])?;
        self.mounted = false;
        t.headpond(&["detach", VOLUME])?;
        t.headpond(&["status"])?;
        self.stop()?;
        t.tool("e2fsck", &["-f", "-n", "disk"])?;
        t.tool("mount", &["-o", "loop,ro", "disk", "mnt"])?;
        self.mounted = true;
        if fs::read(point.join("marked"))? != kept {
            bail!("the file on the disk alone is not what was written");
        }
        t.say("The file whose copies were damaged is on the disk as it was written.");
        t.tool("umount", &["mnt"])?;
        self.mounted = false;
        Ok(Sums { runs, io, planted, found, pause })
    }

    /// The part of the day in which fio is at work; how many errors were planted, and found, how long the upgrade's pause was, and what is in
    /// the file that was damaged.
    fn under_load(
        &mut self,
        folder: &Path,
        headpond: &Path,
        ssd: &[String],
        load: &thread::ScopedJoinHandle<'_, Result<(u64, fio::Sums)>>,
        t: &mut Transcript,
    ) -> Result<(usize, u64, f64, Vec<u8>)> {
        let alive = || if load.is_finished() { bail!("the load has ended: an I/O error, or a mismatch") } else { Ok(()) };
        t.step("fio writes and checks, from now on until the evening");
        interrupt::sleep(Duration::from_secs(20))?;
        t.headpond(&["status"])?;
        t.headpond(&["stat", "1", "3"])?;
        alive()?;

        t.step("Add an SSD");
        t.headpond(&["pool", "add", &ssd[2]])?;
        wait("all copies are made", || Ok(report(headpond)?.lacking_bytes == 0))?;
        alive()?;

        t.step("An SSD is pulled out: there is another one, and the pool goes on");
        self.ssds[1].pull();
        wait("the pool notices", || Ok(in_sync(&report(headpond)?) == 2))?;
        wait("all copies are made", || Ok(report(headpond)?.lacking_bytes == 0))?;
        t.headpond(&["status"])?;
        alive()?;

        t.step("Another one: the pool is degraded, and says so");
        self.ssds[2].pull();
        wait("the pool notices", || Ok(report(headpond)?.degraded))?;
        interrupt::sleep(Duration::from_secs(3))?;
        t.headpond(&["status"])?;
        t.headpond(&["events"])?;
        alive()?;

        t.step("Replace it: everything gets its two copies again");
        t.headpond(&["pool", "add", &ssd[3]])?;
        wait("all copies are made", || report(headpond).map(|r| r.lacking_bytes == 0 && !r.degraded))?;
        t.headpond(&["status"])?;
        alive()?;

        t.step("Bits rot on one SSD: a scrub finds and mends them");
        let (mut planted, mut kept, mut damaged) = (0, Vec::new(), 0);
        // What is destaged meanwhile needs one copy only: damage in the other is nobody's any more. On a slow machine that may be so of all.
        for _ in 0..3 {
            let copies;
            (kept, copies) = self.kept_on_ssds(&folder.join("mnt/marked"))?;
            planted = self.damage(&copies)?;
            t.say(&format!(
                "{planted} blocks of a file that was just written are damaged on one SSD each, behind everybody's back."
            ));
            let out = t.headpond(&["scrub", "--rate", "0", "--json"])?;
            let found: headpond_host::report::Scrub = serde_json::from_str(&out)?;
            if found.damaged > planted as u64 || found.repaired + found.dropped != found.damaged || found.lost > 0 {
                bail!("{planted} errors were planted, and the scrub says {found:?}");
            }
            damaged = found.damaged;
            if damaged > 0 {
                break;
            }
        }
        if damaged == 0 {
            bail!("three times {planted} errors were planted, and no scrub has found any");
        }
        t.headpond(&["scrub", "--rate", "0"])?;
        t.headpond(&["status"])?;
        alive()?;

        t.step("Switch modes");
        for mode in ["write-through", "write-around", "write-back"] {
            t.headpond(&["mode", VOLUME, mode])?;
        }
        alive()?;

        t.step("Preload a file, pin the journal");
        t.headpond(&["preload", "mnt/marked"])?;
        t.headpond(&["pin", "--journal", VOLUME])?;
        t.headpond(&["pin", "mnt/marked"])?;
        t.headpond(&["status"])?;
        alive()?;

        t.step("Upgrade the daemon");
        let newer = folder.join("headpond-newer");
        // By another program: nothing runs that is open for writing, and fio, which starts at any moment, has copies of all that is open here, up to
        // its exec.
        if !Command::new("cp").arg(headpond).arg(&newer).status()?.success() {
            bail!("{} cannot be copied", headpond.display());
        }
        let out = t.headpond(&["upgrade", "--program", "headpond-newer", "--json"])?;
        let answer: serde_json::Value = serde_json::from_str(&out)?;
        let pause = answer["pause_seconds"].as_f64().unwrap_or(f64::MAX);
        t.headpond(&["status"])?;
        interrupt::sleep(Duration::from_secs(2))?;
        alive()?;

        t.step("Disable the cache, and enable it: cold-cache testing");
        t.headpond(&["mode", VOLUME, "pass-through"])?;
        interrupt::sleep(Duration::from_secs(2))?;
        t.headpond(&["status"])?;
        t.headpond(&["mode", VOLUME, "write-back"])?;
        interrupt::sleep(Duration::from_secs(2))?;
        alive()?;

        t.step("In the evening");
        t.headpond(&["status"])?;
        t.headpond(&["histogram"])?;
        let report = report(headpond)?;
        if let Some(volume) = report.volumes.iter().find(|volume| volume.requests.errors > 0) {
            bail!("{} requests failed on volume {}", volume.requests.errors, volume.name);
        }
        Ok((planted, damaged, pause, kept))
    }

    fn serve(&mut self, folder: &Path, headpond: &Path, t: &mut Transcript) -> Result<()> {
        let (said, log) = (folder.join("daemon.out"), File::create(folder.join("daemon.log"))?);
        let mut command = Command::new(headpond);
        command.args(["serve", "--config", "day.toml"]).current_dir(folder).stdin(Stdio::null());
        let child = self.daemon.insert(command.stdout(File::create(&said)?).stderr(log).spawn()?);
        wait("the daemon is up", || {
            if let Some(status) = child.try_wait()? {
                bail!("the daemon ended with {status}");
            }
            Ok(fs::read(&said)?.ends_with(b"\n"))
        })?;
        t.say(&format!("`headpond serve --config day.toml` says: {}", fs::read_to_string(&said)?.trim()));
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.daemon.take() else { return Ok(()) };
        let ended = Command::new("kill").arg(child.id().to_string()).status()?.success() && child.wait()?.success();
        if ended { Ok(()) } else { bail!("the daemon did not end well") }
    }

    fn device(headpond: &Path) -> Result<String> {
        report(headpond)?.volumes.first().and_then(|volume| volume.place.clone()).context("the volume has no block device")
    }

    /// Writes a file until the SSDs have it; its content, and where copies of its blocks are. The disk is given what it is expected to serve sooner, which a short
    /// trouble with an SSD just before can bring about.
    fn kept_on_ssds(&self, path: &Path) -> Result<(Vec<u8>, Copies)> {
        let (mut kept, mut copies, mut seed) = (Vec::new(), HashMap::new(), u64::from(std::process::id()));
        wait("a file that is written is on the SSDs", || {
            // Never twice the same: what is left of the one before is not what is looked for.
            seed = seed.wrapping_add(1 << 32);
            kept = marked_file(path, seed)?;
            copies = self.copies(&kept)?;
            Ok(copies.len() == MARKED)
        })?;
        Ok((kept, copies))
    }

    /// Where one copy of each block of a file is, on the SSDs that serve: which of these, and at which byte.
    fn copies(&self, kept: &[u8]) -> Result<Copies> {
        let mut blocks: HashMap<[u8; 16], usize> = HashMap::new();
        for (n, block) in kept.chunks_exact(4096).enumerate() {
            blocks.insert(block[..16].try_into()?, n);
        }
        let mut found: Copies = HashMap::new();
        for number in [0, 3] {
            let content = self.ssds[number].content()?;
            for at in (0..content.len().saturating_sub(4095)).step_by(512) {
                let Some(n) = blocks.get(&content[at..at + 16]) else { continue };
                if content[at..at + 4096] == kept[n * 4096..(n + 1) * 4096] && n % 2 == usize::from(number > 0) {
                    found.insert(*n, (number, at as u64));
                }
            }
        }
        Ok(found)
    }

    /// Damages these copies; how many they are.
    fn damage(&self, copies: &Copies) -> Result<usize> {
        for (number, at) in copies.values() {
            self.ssds[*number].flip(at + 77)?;
        }
        Ok(copies.len())
    }

    /// Ends all that runs.
    fn clear_up(&mut self, folder: &Path) {
        if self.mounted {
            let _ = Command::new("umount").arg("--lazy").arg(folder.join("mnt")).status();
        }
        if let Some(mut child) = self.daemon.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.ssds.clear();
    }
}

fn report(headpond: &Path) -> Result<Report> {
    let out = Command::new(headpond).args(["status", "--json", "--pool", POOL]).output()?;
    serde_json::from_slice(&out.stdout).with_context(|| String::from_utf8_lossy(&out.stderr).into_owned())
}

fn in_sync(report: &Report) -> usize {
    report.members.iter().filter(|member| member.state == "in sync").count()
}

fn wait(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !done()? {
        interrupt::check()?;
        if Instant::now() > until {
            bail!("waited {} s in vain: {what}", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// A file of blocks that are like nothing else, on the SSDs when this returns: scattered writes, so that they are no stream.
fn marked_file(path: &Path, mut seed: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0u8; MARKED * 4096];
    for word in bytes.chunks_exact_mut(8) {
        seed = headpond_sim::rng::Rng::new(seed).next();
        word.copy_from_slice(&u64::to_le_bytes(seed));
    }
    let mut file = File::create(path)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    Ok(bytes)
}

/// fio, one run after the other, each checking what it wrote, until it is told to stop.
fn load(folder: &Path, point: &Path, stop: &AtomicBool) -> Result<(u64, fio::Sums)> {
    let (mut runs, mut sums) = (0, fio::Sums::default());
    while !stop.load(Ordering::SeqCst) {
        let job = fio::in_files(point, 1 + runs);
        sums.add(fio::run(folder, "load", &job).with_context(|| format!("fio, run {runs}"))?);
        runs += 1;
    }
    Ok((runs, sums))
}

fn document(t: &Transcript, sums: &Sums, took: Duration) -> String {
    let mut text = format!(
        "# An operator's day\n\n\
         Written by `cargo xtask day --markdown docs/OPERATORS_DAY.md`, as root, in {}, with Headpond {}. The SSDs are files behind loop \
         devices that can be pulled, the disk is a file as slow as a modelled disk of 7200 rpm, the front end is FUSE with a loop device. \
         All the time fio wrote to files on the mounted ext4, and checked what it had written: {} runs, {} MiB written, {} MiB read back \
         and right, no I/O error, no mismatch.\n\n\
         {} errors were planted for the scrub; it found {}, and mended them all (what is destaged before it comes there needs no second copy any more). While the daemon was upgraded I/O waited for {:.2} s.\n\n\
         | step | seconds |\n|---|---|\n",
        in_words(took),
        env!("CARGO_PKG_VERSION"),
        sums.runs,
        sums.io.written >> 20,
        sums.io.verified >> 20,
        sums.planted,
        sums.found,
        sums.pause,
    );
    for (step, seconds) in &t.steps {
        let _ = writeln!(text, "| {step} | {seconds:.1} |");
    }
    text + t.text().trim_end() + "\n"
}
