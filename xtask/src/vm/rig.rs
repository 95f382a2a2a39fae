//! A server to be tested: a machine, its four drives, and what its guest promised so far.

use super::Context as Vm;
use super::drive::{Cut, Drive, Faults, Speed};
use super::machine::{Clock, Machine, Parts};
use crate::hammer::model::Dice;
use crate::hammer::{interrupt, tool};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How large the drives are.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Bytes of each cache device.
    pub cache: u64,
    /// Bytes of the disk.
    pub disk: u64,
}

/// What the checks want: caches so small that destage and reclaim are at work all the time, and a disk for XFS, which wants 300 MiB
/// at least.
pub const SMALL: Sizes = Sizes { cache: 192 << 20, disk: 768 << 20 };
/// Bytes of the server's own disk.
const ROOT_BYTES: u64 = 64 << 20;
/// How long a script may take, unless it says otherwise.
pub const LIMIT: Duration = Duration::from_secs(300);

/// The priority of what is timed, as a nice value.
const FIRST: i32 = -15;

/// What scripts in the guest are written in.
const LIBRARY: &str = include_str!("guest/library.sh");

/// The drives, as the guest knows them.
pub const DISK: usize = 0;
/// The first cache device.
pub const SSD_A: usize = 1;
/// The second one.
pub const SSD_B: usize = 2;

/// A file whose fsync had returned.
#[derive(Clone, Copy)]
pub struct Kept {
    /// When it was told, by the guest's clock, in microseconds.
    pub at: u128,
}

/// What the guest promised, and what it counted.
#[derive(Default)]
pub struct Ledger {
    /// Files that must be there, by number.
    pub kept: BTreeMap<u64, Kept>,
    /// All numbers that were used are below.
    pub next: u64,
    /// When the daemon was killed last, by the guest's clock.
    pub killed: u128,
    /// Sums of what was counted.
    pub counts: BTreeMap<String, u64>,
    /// The worst of what was measured.
    pub worst: BTreeMap<String, u64>,
    /// All that was measured.
    pub all: BTreeMap<String, Vec<u64>>,
    /// Files that were missing at the last comparison.
    pub missing: Vec<u64>,
}

impl Ledger {
    /// Takes a line in, if it is for the ledger.
    pub fn take(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        match (words.first().copied(), number(1)) {
            (Some("kept"), Some(file)) => {
                let at = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(0);
                self.kept.insert(file, Kept { at });
                self.next = self.next.max(file + 1);
            }
            (Some("gone"), Some(file)) => drop(self.kept.remove(&file)),
            (Some("missing"), Some(file)) => self.missing.push(file),
            (Some("killed"), Some(at)) => {
                self.killed = at.into();
                *self.counts.entry("SIGKILLs".into()).or_default() += 1;
            }
            (Some("::count"), _) if words.len() == 3 => {
                *self.counts.entry(words[1].into()).or_default() += number(2).unwrap_or(0);
            }
            (Some("::figure"), _) if words.len() == 3 => {
                let value = number(2).unwrap_or(0);
                let worst = self.worst.entry(words[1].into()).or_default();
                *worst = value.max(*worst);
                self.all.entry(words[1].into()).or_default().push(value);
            }
            _ => return false,
        }
        true
    }
}

/// All of it. Dropped, nothing runs; the folder stays if the check failed.
pub struct Rig {
    folder: PathBuf,
    kernel: PathBuf,
    initramfs: PathBuf,
    accel: String,
    clock: Clock,
    slower: u64,
    verbose: bool,
    /// The disk, the two SSDs, and the server's own disk, without the SSDs where these are files; then what was added.
    pub drives: Vec<Drive>,
    /// SSDs that are files: a power cut takes nothing from them.
    files: Vec<(&'static str, PathBuf)>,
    machine: Option<Machine>,
    /// What was promised and counted.
    pub ledger: Ledger,
    /// Chance.
    pub dice: Dice,
    scripts: u64,
    keep: bool,
    passed: bool,
}

impl Rig {
    /// Makes the drives and the share; boots nothing yet.
    pub fn set_up(vm: &Vm) -> Result<Rig> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = vm.folder.join(format!("headpond-vm-{}-{number}", std::process::id()));
        fs::create_dir(&folder)
            .with_context(|| format!("{} cannot be made; choose another folder with --dir", folder.display()))?;
        let mut rig = Rig {
            folder: folder.clone(),
            kernel: vm.kernel.clone(),
            initramfs: vm.initramfs.clone(),
            accel: vm.accel.clone(),
            clock: vm.clock,
            slower: vm.slower,
            verbose: vm.verbose,
            drives: Vec::new(),
            files: Vec::new(),
            machine: None,
            ledger: Ledger::default(),
            dice: Dice(vm.seed),
            scripts: 0,
            keep: vm.keep,
            passed: false,
        };
        fs::create_dir(rig.share())?;
        fs::write(rig.share().join("library.sh"), LIBRARY)?;
        for (name, program) in [("headpond", &vm.headpond), ("xtask", &std::env::current_exe()?)] {
            strip(program, &rig.share().join(name))?;
        }
        let (disk, ssd) =
            if vm.instant { (Speed::Instant, Speed::Instant) } else { (Speed::Rotating { slower: vm.slower }, Speed::Ssd) };
        for (name, bytes, speed) in [
            ("disk", vm.sizes.disk, disk),
            ("ssda", vm.sizes.cache, ssd),
            ("ssdb", vm.sizes.cache, ssd),
            ("root", ROOT_BYTES, Speed::Instant),
        ] {
            if vm.throttled && name.starts_with("ssd") {
                let path = folder.join(format!("{name}.file"));
                written(&path, bytes).with_context(|| format!("{} cannot be written", path.display()))?;
                rig.files.push((name, path));
            } else {
                rig.drives.push(Drive::new(name, bytes, speed, &folder)?);
            }
        }
        if vm.lying {
            let lying = Faults { lying_flushes: true, ..Faults::default() };
            rig.drives[..3].iter().for_each(|drive| drive.set_faults(lying));
        }
        Ok(rig)
    }

    /// One more disk, before the boot.
    pub fn add_disk(&mut self, name: &'static str, bytes: u64) -> Result<()> {
        let speed = Speed::Rotating { slower: self.slower };
        self.drives.push(Drive::new(name, bytes, speed, &self.folder)?);
        Ok(())
    }

    /// One more SSD, before the boot: a file as fast as it may be.
    pub fn add_ssd(&mut self, name: &'static str, bytes: u64) -> Result<()> {
        let path = self.folder.join(format!("{name}.file"));
        written(&path, bytes).with_context(|| format!("{} cannot be written", path.display()))?;
        self.files.push((name, path));
        Ok(())
    }

    /// What the guest sees as `/host`.
    pub fn share(&self) -> PathBuf {
        self.folder.join("share")
    }

    /// Switches the drives on, and boots.
    pub fn boot(&mut self) -> Result<()> {
        let begun = Instant::now();
        for drive in &mut self.drives {
            drive.power_on()?;
        }
        let parts = Parts {
            kernel: &self.kernel,
            initramfs: &self.initramfs,
            folder: &self.folder,
            share: &self.folder.join("share"),
            drives: self.drives.iter().map(|drive| (drive.name, drive.socket())).collect(),
            throttled: self.files.iter().map(|(name, path)| (*name, path.as_path())).collect(),
            slower: self.slower,
            accel: &self.accel,
            clock: self.clock,
        };
        self.machine = Some(Machine::boot(&parts)?);
        self.ledger.take(&format!("::figure boot-ms {}", begun.elapsed().as_millis()));
        Ok(())
    }

    /// Boots a new server: a pool of both SSDs, the daemon, a volume on the disk.
    pub fn first_boot(&mut self) -> Result<()> {
        self.boot()?;
        self.run("state_disk new\ncreate_pool\nserve\nattach").map(drop)
    }

    /// Runs a script in the guest to its end; what it said, apart from what is for the ledger.
    pub fn run(&mut self, script: &str) -> Result<Vec<String>> {
        self.begin(script)?;
        self.end(LIMIT)
    }

    /// Runs a script whose time counts: meanwhile the machine and its drives go before whatever else this computer does, where we
    /// may decide that. An emulated processor is slow enough without a share of a real one.
    pub fn run_first(&mut self, script: &str) -> Result<Vec<String>> {
        self.run_first_within(script, LIMIT)
    }

    /// The same, for one that may take longer.
    pub fn run_first_within(&mut self, script: &str, limit: Duration) -> Result<Vec<String>> {
        let usual = rustix::process::getpriority_process(None).unwrap_or(0);
        self.set_priority(FIRST);
        let said = self.begin(script).and_then(|()| self.end(limit));
        self.set_priority(usual);
        said
    }

    /// Of all threads: the kernel knows no priority of a process.
    fn set_priority(&self, nice: i32) {
        let processes = self.machine.iter().map(Machine::process).chain([std::process::id()]);
        for entry in processes.filter_map(|it| fs::read_dir(format!("/proc/{it}/task")).ok()).flatten().flatten() {
            let thread = entry.file_name().to_str().and_then(|name| rustix::process::Pid::from_raw(name.parse().ok()?));
            // Without the right to it, things are as they are.
            if thread.is_some() {
                let _ = rustix::process::setpriority_process(thread, nice);
            }
        }
    }

    /// Begins a script.
    pub fn begin(&mut self, script: &str) -> Result<()> {
        self.scripts += 1;
        let name = format!("script-{}.sh", self.scripts);
        fs::write(self.share().join(&name), format!("{script}\n"))?;
        self.machine()?.tell(&name)
    }

    /// Waits until the script that was begun has ended.
    pub fn end(&mut self, limit: Duration) -> Result<Vec<String>> {
        let until = Instant::now() + limit;
        let mut said = Vec::new();
        loop {
            let line = self.machine()?.line(until);
            let line =
                line.with_context(|| format!("the script in the guest did not end; it said:\n    {}", said.join("\n    ")))?;
            if let Some(status) = line.strip_prefix("::ended ") {
                if status != "0" {
                    // Words of loads that still run may follow; what counts has been said.
                    let said = said.join("\n    ").replace("::fail ", "");
                    bail!("in the guest: {said}");
                }
                return Ok(said);
            }
            self.hear(line, &mut said);
        }
    }

    /// Lets the guest run for a while.
    pub fn sleep(&mut self, length: Duration) -> Result<()> {
        let until = Instant::now() + length;
        while Instant::now() < until {
            interrupt::check()?;
            let mut said = Vec::new();
            while let Some(line) = self.machine()?.try_line() {
                self.hear(line, &mut said);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn hear(&mut self, line: String, said: &mut Vec<String>) {
        if self.verbose {
            eprintln!("    | {line}");
        }
        if !self.ledger.take(&line) {
            said.push(line);
        }
    }

    fn machine(&mut self) -> Result<&mut Machine> {
        self.machine.as_mut().context("no machine runs")
    }

    /// Pulls a drive out of the running machine.
    pub fn pull(&mut self, drive: usize) -> Result<()> {
        let name = self.drives[drive].name;
        self.machine()?.pull(name)
    }

    /// Puts it back in.
    pub fn put(&mut self, drive: usize) -> Result<()> {
        let name = self.drives[drive].name;
        self.machine()?.put(name)
    }

    /// The power fails: the machine stops at once, and each drive loses what its dice say.
    pub fn power_cut(&mut self) -> Result<[Cut; 4]> {
        let machine = self.machine.take().context("no machine runs")?;
        for line in machine.kill()? {
            self.hear(line, &mut Vec::new());
        }
        let mut cuts = [Cut::default(); 4];
        for (cut, drive) in cuts.iter_mut().zip(&mut self.drives) {
            *cut = drive.power_cut(&mut Dice(self.dice.below(u64::MAX)))?;
        }
        let sum = |f: fn(&Cut) -> u64| cuts.iter().map(f).sum::<u64>();
        let (kept, dropped, torn) = (sum(|cut| cut.kept), sum(|cut| cut.dropped), sum(|cut| cut.torn));
        let word = |what: &str, n: u64| format!("::count unflushed-writes-{what} {n}");
        for line in [word("kept", kept), word("dropped", dropped), word("torn", torn), "::count power-cuts 1".into()] {
            self.ledger.take(&line);
        }
        Ok(cuts)
    }

    /// Loses on the pool's drives and the disk what the dice say of what was not flushed, while the machine runs.
    pub fn cut_drives(&mut self) -> Result<()> {
        for drive in &self.drives[..3] {
            drive.cut(&mut Dice(self.dice.below(u64::MAX)))?;
        }
        Ok(())
    }

    /// Gives the guest the list of files that must be there.
    pub fn write_list(&mut self) -> Result<()> {
        self.ledger.missing.clear();
        let list: String = self.ledger.kept.keys().map(|number| format!("{number}\n")).collect();
        Ok(fs::write(self.share().join("kept"), list)?)
    }

    /// Whether the guest's kernel told of failed I/O, since its console had this many bytes.
    pub fn console_errors(&self, from: usize) -> Vec<String> {
        let text = fs::read(self.folder.join("console.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned();
        let bad = |line: &&str| {
            ["I/O error", "BUG:", "Oops", "hung_task", "blocked for more than"].iter().any(|word| line.contains(word))
        };
        text.lines().filter(bad).map(str::to_owned).collect()
    }

    /// How long the console is so far.
    pub fn console_len(&self) -> usize {
        fs::metadata(self.folder.join("console.log")).map_or(0, |meta| meta.len() as usize)
    }

    /// All was well: nothing needs to be kept. What was counted and measured.
    pub fn passed(mut self) -> Vec<(String, Value)> {
        self.passed = true;
        let ledger = &self.ledger;
        let mut figures: Vec<(String, Value)> =
            ledger.counts.iter().map(|(what, n)| (what.replace('-', " "), (*n).into())).collect();
        for (what, all) in &ledger.all {
            let mut all = all.clone();
            all.sort_unstable();
            let name = what.replace('-', " ");
            figures.push((format!("{name}, median"), all[all.len() / 2].into()));
            figures.push((format!("{name}, worst"), ledger.worst[what].into()));
        }
        figures
    }
}

/// Makes a file of zeroes all of which are written: a first write to a place costs no more than a second one.
fn written(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create_new(path)?;
    let zeroes = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&zeroes)?;
    }
    Ok(file.sync_all()?)
}

/// A copy without what only debuggers need, as the guest copies it into its memory.
fn strip(program: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("strip");
    command.arg("-o").arg(to).arg(program);
    if !crate::tools::is_there("strip") || !tool::try_run(&mut command, &to.with_extension("log"))?.status.success() {
        fs::copy(program, to).with_context(|| format!("{} cannot be copied", program.display()))?;
    }
    Ok(())
}

impl Drop for Rig {
    fn drop(&mut self) {
        // First the machine, so that no drive is asked any more.
        self.machine = None;
        self.drives.clear();
        if self.keep && !self.passed && !interrupt::interrupted() {
            println!("    drives, console and all that the guest said are kept in {}", self.folder.display());
        } else if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("{} cannot be removed: {error}", self.folder.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(lines: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        lines.iter().for_each(|line| assert!(ledger.take(line), "{line}"));
        ledger
    }

    #[test]
    fn a_file_counts_from_its_promise_until_it_is_told_to_go() {
        let ledger = ledger(&["kept 3 100", "kept 5 200", "gone 3", "killed 150"]);
        assert_eq!(ledger.kept.keys().copied().collect::<Vec<_>>(), [5]);
        assert_eq!((ledger.next, ledger.killed, ledger.kept[&5].at), (6, 150, 200));
        assert_eq!(ledger.counts["SIGKILLs"], 1);
    }

    #[test]
    fn counts_add_up_and_figures_keep_their_worst() {
        let ledger = ledger(&["::count files 2", "::count files 3", "::figure ms 7", "::figure ms 9", "::figure ms 8"]);
        assert_eq!((ledger.counts["files"], ledger.worst["ms"]), (5, 9));
    }

    #[test]
    fn what_is_not_for_the_ledger_stays_with_the_script() {
        let mut ledger = Ledger::default();
        for line in ["", "kept", "kept all", "a line of fio", "::ended 0", "::fail something"] {
            assert!(!ledger.take(line), "{line}");
        }
    }
}
