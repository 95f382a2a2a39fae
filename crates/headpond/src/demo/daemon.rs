//! The daemon as a child process: `headpond serve` of this very binary, started, asked, and killed.

use anyhow::{Context, Result, bail};
use headpond_host::control::{self, Call};
use headpond_host::report::Report;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a start may take. It takes seconds whatever is dirty; a slow machine has slow disks.
const START: Duration = Duration::from_secs(120);
/// How long a clean end may take.
const STOP: Duration = Duration::from_secs(120);

/// How clients reach volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frontend {
    /// An NBD socket.
    Nbd,
    /// A loop device over FUSE.
    Fuse,
    /// A ublk device.
    Ublk,
}

impl Frontend {
    /// The faster one of those that are block devices and that this kernel has.
    pub fn of_kernel() -> Frontend {
        // It fails where there is no such module, which is then seen.
        let _ = Command::new("modprobe").args(["-q", "ublk_drv"]).stdin(Stdio::null()).stderr(Stdio::null()).status();
        if Path::new("/dev/ublk-control").exists() { Frontend::Ublk } else { Frontend::Fuse }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Frontend::Nbd => "NBD",
            Frontend::Fuse => "FUSE and loop",
            Frontend::Ublk => "ublk",
        }
    }
}

/// A daemon that runs.
pub struct Daemon {
    child: Child,
    folder: PathBuf,
    /// How long it took to be up.
    pub started_in: Duration,
}

/// Where the control socket is, the NBD socket, and what the daemon says.
fn control(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

/// The NBD socket of the daemon of this folder.
pub fn nbd_socket(folder: &Path) -> PathBuf {
    folder.join("nbd.sock")
}

fn log(folder: &Path) -> PathBuf {
    folder.join("daemon.log")
}

impl Daemon {
    /// Starts a daemon for these cache devices and waits until it is up.
    pub fn start(folder: &Path, devices: &[PathBuf], frontend: Frontend) -> Result<Daemon> {
        let begun = Instant::now();
        let errors = File::options().create(true).append(true).open(log(folder)).context("the daemon's log cannot be written")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").args(devices);
        command.arg("--state").arg(folder.join("state")).arg("--socket").arg(control(folder));
        match frontend {
            Frontend::Nbd => command.args(["--frontend", "nbd", "--nbd"]).arg(nbd_socket(folder)),
            Frontend::Fuse => command.args(["--frontend", "fuse"]),
            Frontend::Ublk => command.args(["--frontend", "ublk"]),
        };
        // A process group of its own: Ctrl-C is for the demo, which ends the daemon itself.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().context("the daemon cannot be started")?;
        let said = child.stdout.take().context("the daemon has no output")?;
        let (up, is_up) = mpsc::channel();
        thread::spawn(move || {
            // The first line says that it is up; the end of the output, that it is gone.
            let mut lines = BufReader::new(said).lines();
            let _ = up.send(lines.next().and_then(Result::ok));
            lines.for_each(drop);
        });
        let mut daemon = Daemon { child, folder: folder.to_owned(), started_in: Duration::ZERO };
        match is_up.recv_timeout(START) {
            Ok(Some(_)) => {
                daemon.started_in = begun.elapsed();
                Ok(daemon)
            }
            Ok(None) | Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the daemon did not start: {}", last_words(folder)),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("the daemon was not up after {} s: {}", START.as_secs(), last_words(folder))
            }
        }
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Asks it something.
    pub fn call(&self, call: &Call) -> Result<Value> {
        control::call(&control(&self.folder), call, |_| ()).with_context(|| format!("the daemon was asked for {call:?}"))
    }

    /// How it stands.
    pub fn report(&self) -> Result<Report> {
        Ok(serde_json::from_value(self.call(&Call::Status)?)?)
    }

    /// Kills it, as the kernel would for want of memory: SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("the daemon cannot be killed")?;
        self.child.wait().context("the daemon does not die")?;
        Ok(())
    }

    /// Ends it cleanly.
    pub fn stop(mut self) -> Result<()> {
        // Its answer may come after it closed the socket; what counts is its exit code.
        let _ = control::call(&control(&self.folder), &Call::Stop, |_| ());
        let until = Instant::now() + STOP;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("the daemon ended with {status}: {}", last_words(&self.folder)),
                None if Instant::now() > until => bail!("the daemon did not end within {} s", STOP.as_secs()),
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if it has ended, which is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The end of what the daemon said.
pub fn last_words(folder: &Path) -> String {
    let log = std::fs::read_to_string(log(folder)).unwrap_or_default();
    let lines: Vec<&str> = log.lines().rev().take(5).collect();
    if lines.is_empty() { "it said nothing".into() } else { lines.into_iter().rev().collect::<Vec<_>>().join("\n  ") }
}
