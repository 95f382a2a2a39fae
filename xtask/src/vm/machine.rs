//! A virtual machine: QEMU with a kernel that nobody built for us, told what to do over a channel, and killed at any moment.

use super::qmp::Qmp;
use crate::hammer::{interrupt, tool};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The program.
pub const QEMU: &str = "qemu-system-x86_64";
/// What the guest's processors are: all that can be emulated, but for `rep movsb` of any length being fast. Emulated, it goes byte by
/// byte, and the kernel would copy all data so.
const PROCESSOR: &str = "max,-erms";
/// How long a boot may take, on a busy machine without KVM.
const BOOT: Duration = Duration::from_secs(600);
/// How often a guest is booted whose kernel panics before it runs anything of ours.
const BOOTS: usize = 3;
/// The most lines of a console that are told.
const WORDS: usize = 24;
/// The longest line that is taken from a guest.
const LONGEST: usize = 64 << 10;

/// What a machine is made of.
pub struct Parts<'a> {
    /// The kernel.
    pub kernel: &'a Path,
    /// Its first file system.
    pub initramfs: &'a Path,
    /// Where its logs and sockets are.
    pub folder: &'a Path,
    /// What the guest sees as its share.
    pub share: &'a Path,
    /// Names and NBD sockets of its drives.
    pub drives: Vec<(&'a str, &'a Path)>,
    /// Names and files of those that are files as fast as they may be.
    pub throttled: Vec<(&'a str, &'a Path)>,
    /// How many times slower than as fast as they may be these are.
    pub slower: u64,
    /// `tcg,thread=multi`, or what is faster here.
    pub accel: &'a str,
    /// What its guest tells the time by.
    pub clock: Clock,
}

/// How fast a file may be that is an SSD to the guest.
pub struct Throttle {
    /// Requests in a second.
    pub iops: u64,
    /// Bytes in a second.
    pub bytes_per_s: u64,
}

impl Throttle {
    /// So many times slower.
    fn slowed(self, slower: u64) -> Throttle {
        Throttle { iops: self.iops / slower, bytes_per_s: self.bytes_per_s / slower }
    }
}

/// As fast as the modelled SSDs. QEMU itself counts, which costs an emulated machine a fraction of what another process does.
pub const THROTTLE: Throttle = Throttle { iops: 12_000, bytes_per_s: 500_000_000 };

/// What a guest tells the time by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// A device of the machine: right whatever else the computer does, and slow to read.
    Device,
    /// The processor's own counter, which goes at so many kHz and is this computer's, also under emulation. Programs read it
    /// without a call of the kernel; with the other one whoever looks at the time often is slow for no reason of its own.
    Counter(u64),
}

impl Clock {
    /// The counter, at the rate that this computer's kernel tells.
    pub fn counter() -> Result<Clock> {
        let text = fs::read_to_string("/proc/cpuinfo")?;
        let rate =
            text.lines().find_map(|line| line.strip_prefix("cpu MHz")?.trim_start_matches([':', '\t', ' ']).parse::<f64>().ok());
        let rate = rate.context("/proc/cpuinfo does not tell how fast the processor is")?;
        Ok(Clock::Counter((rate * 1000.0).round() as u64))
    }

    fn arguments(self) -> String {
        match self {
            // On a busy machine an emulated processor cannot tell how fast its own counter goes: time from that would be wrong by far.
            Clock::Device => "tsc=unstable clocksource=hpet".into(),
            Clock::Counter(khz) => format!("tsc=reliable tsc_early_khz={khz} clocksource=tsc"),
        }
    }
}

/// A machine that runs. Dropped, it is killed.
pub struct Machine {
    child: Child,
    channel: UnixStream,
    lines: Receiver<String>,
    folder: PathBuf,
    /// How long the console already was when this machine was switched on, in bytes.
    console_from: usize,
}

impl Machine {
    /// Boots one, and waits until its guest listens.
    pub fn boot(parts: &Parts<'_>) -> Result<Machine> {
        for left in (0..BOOTS).rev() {
            let mut machine = Machine::start(parts)?;
            let Err(error) = machine.ready() else { return Ok(machine) };
            match panic(&machine.console()) {
                Some(panic) if left > 0 => {
                    eprintln!(
                        "    the guest's kernel panicked before it ran anything; it is booted again, {left} more times at most:\n    {panic}"
                    );
                }
                _ => return Err(error).context("the guest does not boot"),
            }
        }
        bail!("the guest does not boot")
    }

    /// Switches it on.
    fn start(parts: &Parts<'_>) -> Result<Machine> {
        let socket = parts.folder.join("channel");
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        listener.set_nonblocking(true)?;
        let log = File::options().create(true).append(true).open(parts.folder.join("qemu.log"))?;
        let mut command = Command::new(QEMU);
        // Its threads have names, by which those that are emulated processors are told from the others.
        command.args([
            "-name",
            "rig,debug-threads=on",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            "-smp",
            "2",
            "-m",
            "2048",
            "-cpu",
            PROCESSOR,
        ]);
        command.arg("-accel").arg(parts.accel);
        command.arg("-kernel").arg(parts.kernel).arg("-initrd").arg(parts.initramfs);
        let clock = parts.clock.arguments();
        command
            .arg("-append")
            .arg(format!("console=ttyS0 loglevel=5 panic=-1 mitigations=off {clock} nosoftlockup no_timer_check"));
        // Added to, as the console of the boot before says what it was doing when its power was cut.
        let console = parts.folder.join("console.log");
        let console_from = fs::metadata(&console).map_or(0, |file| file.len() as usize);
        command.arg("-chardev").arg(format!("file,id=console,path={},append=on", console.display()));
        command.args(["-serial", "chardev:console", "-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
        command.arg("-chardev").arg(format!("socket,id=rig,path={}", socket.display()));
        command.args(["-device", "virtserialport,chardev=rig,name=rig"]);
        command.arg("-fsdev").arg(format!("local,id=host,path={},security_model=none", parts.share.display()));
        command.args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]);
        for (name, socket) in &parts.drives {
            let server = format!("server.type=unix,server.path={}", socket.display());
            command.arg("-blockdev").arg(format!("driver=nbd,node-name={name},export={name},discard=unmap,{server}"));
            command.arg("-device").arg(device(name).to_string());
        }
        for (name, file) in &parts.throttled {
            let Throttle { iops, bytes_per_s } = THROTTLE.slowed(parts.slower);
            // In memory too where the kernel can.
            let direct = if past_the_page_cache(file) { "on" } else { "off" };
            command.arg("-object").arg(format!("throttle-group,id=group-{name},x-iops-total={iops},x-bps-total={bytes_per_s}"));
            let file = format!("file.driver=file,file.filename={},file.aio=io_uring,file.cache.direct={direct}", file.display());
            command.arg("-blockdev").arg(format!("driver=throttle,node-name={name},throttle-group=group-{name},{file}"));
            command.arg("-device").arg(device(name).to_string());
        }
        let control = parts.folder.join("qmp");
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", control.display()));
        command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("{QEMU} cannot be run"))?;
        // From here on it is killed whatever happens.
        let mut child = Guard(Some(child));
        let begun = Instant::now();
        let channel = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("the machine's channel"),
            }
            let ended = child.0.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                bail!("{QEMU} ended at once, with {status}: {}", tool::last_words(&parts.folder.join("qemu.log")));
            }
            if begun.elapsed() > BOOT {
                bail!("{QEMU} does not open its channel");
            }
            interrupt::check()?;
            thread::sleep(Duration::from_millis(10));
        };
        channel.set_nonblocking(false)?;
        let lines = listen(channel.try_clone()?, &parts.folder.join("guest.log"))?;
        let child = child.0.take().context("the machine was started")?;
        Ok(Machine { child, channel, lines, folder: parts.folder.to_owned(), console_from })
    }

    /// Waits until its guest listens.
    fn ready(&mut self) -> Result<()> {
        let until = Instant::now() + BOOT;
        while self.line(until)? != "::ready" {}
        Ok(())
    }

    /// The next line from the guest, before this moment.
    pub fn line(&mut self, until: Instant) -> Result<String> {
        loop {
            interrupt::check()?;
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(Duration::from_millis(200))) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(RecvTimeoutError::Timeout) => bail!("the guest did not answer in time; {}", self.last_words()),
                Err(RecvTimeoutError::Disconnected) => bail!("the machine ended by itself; {}", self.last_words()),
            }
        }
    }

    /// A line that has come, if there is one.
    pub fn try_line(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// A line to the guest.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let told = self.channel.write_all(format!("{line}\n").as_bytes());
        told.with_context(|| format!("the machine ended by itself; {}", self.last_words()))
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Pulls a drive out while the machine runs.
    pub fn pull(&self, name: &str) -> Result<()> {
        Qmp::connect(&self.folder.join("qmp"))?.pull(&format!("the-{name}"))
    }

    /// Puts a drive back in.
    pub fn put(&self, name: &str) -> Result<()> {
        Qmp::connect(&self.folder.join("qmp"))?.put(&device(name))
    }

    /// Pulls the plug. Returns what the guest had still said.
    pub fn kill(mut self) -> Result<Vec<String>> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the machine had ended by itself, with {status}; {}", self.last_words());
        }
        self.child.kill()?;
        self.child.wait()?;
        // All that had left the machine is in the socket, and ends with it.
        Ok(self.lines.iter().collect())
    }

    /// The end of what the guest's kernel said; where it panicked, from there on.
    pub fn last_words(&self) -> String {
        let words = panic(&self.console()).unwrap_or_else(|| tool::last_words(&self.folder.join("console.log")));
        format!("its console's last words:\n    {words}")
    }

    /// What the guest's kernel has said since this machine was switched on.
    fn console(&self) -> String {
        let all = fs::read(self.folder.join("console.log")).unwrap_or_default();
        String::from_utf8_lossy(all.get(self.console_from..).unwrap_or_default()).into_owned()
    }
}

/// Whether a guest's kernel panicked at a breakpoint in its own code, by what it said. It sets them where it rewrites that code under
/// other processors, and takes them back; an emulated processor can meet one that is no longer there. Nothing that runs in the guest
/// can bring that about, so that a check which ended so has shown nothing.
pub fn is_the_emulators(words: &str) -> bool {
    words.contains("Kernel panic - not syncing") && words.contains("int3: 0000 [#1]")
}

/// What the kernel of a console said that panicked, from the first thing that went wrong on. Not all of it where that is long.
fn panic(console: &str) -> Option<String> {
    let lines: Vec<&str> = console.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let panic = lines.iter().rposition(|line| line.contains("Kernel panic - not syncing"))?;
    // A kernel that oopses numbers its oopses; another panic comes without.
    let first = lines[..panic].iter().rposition(|line| line.contains("[#1]")).unwrap_or(panic);
    let mut told = lines[first..panic].to_vec();
    told.truncate(WORDS - 1);
    told.push(lines[panic]);
    Some(told.join("\n    "))
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A drive as a device of the machine. Errors are the guest's to see; by default some would stop the machine.
fn device(name: &str) -> Value {
    json!({
        "driver": "virtio-blk-pci", "id": format!("the-{name}"), "drive": name, "serial": name,
        "write-cache": "on", "werror": "report", "rerror": "report",
    })
}

/// Whether a file can be read past the page cache.
fn past_the_page_cache(file: &Path) -> bool {
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    File::options().read(true).custom_flags(flags).open(file).is_ok()
}

/// A child until it is somebody's.
struct Guard(Option<Child>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Takes in what the guest says, as long as it lives; the host always listens, so that no guest waits to be heard.
fn listen(channel: UnixStream, log: &Path) -> Result<Receiver<String>> {
    let (to, lines) = mpsc::channel();
    let mut log = File::options().create(true).append(true).open(log)?;
    thread::Builder::new().name("guest".into()).spawn(move || {
        let mut reader = BufReader::new(channel);
        let mut line = Vec::new();
        loop {
            line.clear();
            match std::io::Read::take(&mut reader, LONGEST as u64).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                // Half a line is what was cut off.
                Ok(_) if line.last() != Some(&b'\n') && line.len() < LONGEST => return,
                Ok(_) => {}
            }
            let _ = log.write_all(&line);
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if to.send(text).is_err() {
                return;
            }
        }
    })?;
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::{is_the_emulators, panic};

    const PANIC: &str = "[    1.18] int3: 0000 [#1] PREEMPT SMP\r\n[    1.18] CPU: 1 PID: 1\r\n\r\n[    1.19] Kernel panic - not syncing: Fatal exception in interrupt\r\n[    1.19] Rebooting\r\n";

    #[test]
    fn a_kernel_that_panicked_is_told_of_from_the_oops_that_led_to_it_to_the_panic() {
        let said = panic(&format!("[    0.1] Linux\r\n{PANIC}")).unwrap_or_default();
        let lines: Vec<&str> = said.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "[    1.18] int3: 0000 [#1] PREEMPT SMP",
                "[    1.18] CPU: 1 PID: 1",
                "[    1.19] Kernel panic - not syncing: Fatal exception in interrupt"
            ]
        );
        assert_eq!(
            panic("[    1.1] Kernel panic - not syncing: VFS: no root").as_deref(),
            Some("[    1.1] Kernel panic - not syncing: VFS: no root")
        );
        assert_eq!(panic("[    0.1] Linux\n[    2.0] a module does not load\n"), None);
    }

    #[test]
    fn a_breakpoint_in_the_kernels_own_code_is_the_emulators_and_no_other_oops() {
        assert!(is_the_emulators(PANIC));
        assert!(!is_the_emulators(&PANIC.replace("int3: 0000 [#1]", "BUG: unable to handle page fault [#1]")));
        assert!(!is_the_emulators("int3: 0000 [#1], and no panic"));
    }

    #[test]
    fn of_a_long_oops_the_beginning_is_told_and_the_end() {
        let long = PANIC.replace("\r\n\r\n", &"\r\n[    1.18] R10: 0".repeat(100)).replace("0[    1.19]", "0\r\n[    1.19]");
        let said = panic(&long).unwrap_or_default();
        assert!(said.starts_with("[    1.18] int3") && is_the_emulators(&said), "{said}");
        assert_eq!(said.lines().count(), super::WORDS);
    }
}
