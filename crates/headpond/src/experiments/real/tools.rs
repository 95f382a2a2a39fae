//! The tools of the field: whether they are here, and how they are run so that Ctrl-C ends them.

use super::nfs_server;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often it is looked whether a tool has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Somebody wants it to end.
#[derive(Debug, thiserror::Error)]
#[error(
    "Interrupted. What was started was ended, and what it had made is removed; what had been run to its end before is reported. Run the \
     others again"
)]
pub struct Interrupted;

/// A tool that an experiment needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    /// fio.
    Fio,
    /// GNU tar.
    Tar,
    /// Python with h5py.
    H5py,
    /// dmsetup, by which a part of a device is a device.
    Dmsetup,
    /// The kernel's NFS server and client, and their programs.
    Nfs,
}

impl Tool {
    /// Why it cannot be used here, if so.
    pub fn missing(self) -> Option<String> {
        let (what, package, there) = match self {
            Tool::Fio => ("fio is", "fio", succeeds("fio", &["--version"])),
            Tool::Tar => ("GNU tar is", "tar", succeeds("tar", &["--version"])),
            Tool::H5py => ("Python's h5py is", "python3-h5py", python().is_some()),
            Tool::Dmsetup => ("dmsetup is", "dmsetup", succeeds("dmsetup", &["--version"])),
            Tool::Nfs => return nfs_server::missing(),
        };
        (!there).then(|| format!("{what} not installed; install Debian's package {package} to have it run"))
    }
}

/// Whether there is a program of that name, however it ends when it is asked for help.
pub fn is_there(program: &str) -> bool {
    let ended = Command::new(program).arg("-h").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    ended.is_ok()
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    let ended = Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    ended.is_ok_and(|status| status.success())
}

/// A Python that has h5py: the first in the path, or the system's own.
pub fn python() -> Option<&'static str> {
    ["python3", "/usr/bin/python3"].into_iter().find(|it| succeeds(it, &["-c", "import h5py"]))
}

/// The first line that a tool prints of its version.
pub fn version(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = output.map(|it| String::from_utf8_lossy(&it.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("not here").trim().to_owned()
}

/// Runs a tool to its end, with all that it starts, and returns what it printed. `log` gets what it prints meanwhile.
pub fn run(command: &mut Command, log: &Path, stop: &AtomicBool) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = File::create(log).with_context(|| format!("{} cannot be written", log.display()))?;
    // A group of its own: Ctrl-C is for us, who end all of it.
    command.process_group(0).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    let mut child = command.spawn().with_context(|| format!("{name} cannot be run"))?;
    let group = Pid::from_child(&child);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if stop.load(Ordering::Relaxed) {
            // It fails when they have just ended, which is as well.
            let _ = kill_process_group(group, Signal::KILL);
            child.wait()?;
            return Err(Interrupted.into());
        }
        thread::sleep(LOOK);
    };
    let said = std::fs::read_to_string(log).unwrap_or_default();
    if !status.success() {
        let lines: Vec<&str> = said.lines().rev().take(8).collect();
        bail!("{name} ended with {status}: {}", lines.into_iter().rev().collect::<Vec<_>>().join("; "));
    }
    Ok(said)
}
