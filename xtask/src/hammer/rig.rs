//! A pool, a volume and their daemon, on files in a folder of their own: started, killed, started again, and gone at the end.

use super::{Context as Hammer, interrupt, tool};
use anyhow::{Context, Result, bail};
use headpond_host::control::{self, Attach, Call};
use headpond_host::fuse::{loopdev, mount};
use headpond_host::report::Report;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The name of the pool and of the volume.
pub const NAME: &str = "hammer";
/// Bytes of each cache device: small, so that destage and reclaim are at work all the time.
const CACHE_BYTES: u64 = 128 << 20;
/// How long a start and a clean end may take. Both take moments; this is against hanging.
const PATIENCE: Duration = Duration::from_secs(120);

/// How clients reach the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frontend {
    /// An NBD socket.
    Nbd,
    /// A loop device over FUSE.
    Loop,
}

/// When it is said where the threads of a killed daemon are that is not gone yet.
const SOON: Duration = Duration::from_secs(10);

/// All of it. Dropped, nothing runs and nothing is mounted; the folder stays if the check failed.
pub struct Rig {
    folder: PathBuf,
    headpond: PathBuf,
    frontend: Frontend,
    daemon: Option<Child>,
    mounted: bool,
    /// Nothing needs to be kept.
    passed: bool,
    /// What is left after a failure is worth a look.
    keep: bool,
    /// How often the daemon was killed.
    pub kills: u64,
    /// When the last kill was sent, and when the daemon was gone.
    pub killed: Option<(Instant, Instant)>,
    /// The longest that a start after a kill took.
    pub slowest_start: Duration,
}

impl Rig {
    /// Makes a pool of two files, and attaches a third one, of this many bytes, in write-back. Over the loop device, which knows
    /// nothing of the volume's grid, its blocks begin at any sector; over NBD at multiples of 4 KiB, to which our own load rounds trims.
    pub fn set_up(hammer: &Hammer, frontend: Frontend, bytes: u64) -> Result<Rig> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = hammer.folder.join(format!("headpond-hammer-{}-{number}", std::process::id()));
        fs::create_dir(&folder)
            .with_context(|| format!("{} cannot be made; choose another folder with --dir", folder.display()))?;
        let mut rig = Rig {
            folder,
            headpond: hammer.headpond.clone(),
            frontend,
            daemon: None,
            mounted: false,
            passed: false,
            keep: hammer.keep,
            kills: 0,
            killed: None,
            slowest_start: Duration::ZERO,
        };
        for (name, bytes) in [("a", CACHE_BYTES), ("b", CACHE_BYTES), ("disk", bytes)] {
            File::create(rig.path(name))?.set_len(bytes)?;
        }
        let mut create = Command::new(&hammer.headpond);
        create.args(["pool", "create", NAME, "a", "b", "--state", "state"]).current_dir(&rig.folder);
        tool::run(&mut create, &rig.path("pool.log"))?;
        rig.start()?;
        let spec = rig.path("disk").display().to_string();
        let phase = match frontend {
            Frontend::Nbd => 0,
            Frontend::Loop => (hammer.seed % 8) as u8,
        };
        rig.call(&Call::Attach(Attach { name: NAME.into(), spec, mode: "write-back".into(), phase: Some(phase) }))?;
        Ok(rig)
    }

    /// A path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The NBD socket.
    pub fn socket(&self) -> PathBuf {
        self.path("nbd")
    }

    /// The volume, as NBD clients name it.
    pub fn uri(&self) -> String {
        uri(&self.socket())
    }

    /// The volume's block device.
    pub fn device(&self) -> Result<PathBuf> {
        let place = self.report()?.volumes.first().and_then(|volume| volume.place.clone());
        match place {
            Some(place) if place.starts_with("/dev/") => Ok(place.into()),
            place => bail!("the volume should have a block device, and has {place:?}"),
        }
    }

    /// How the daemon stands.
    pub fn report(&self) -> Result<Report> {
        Ok(serde_json::from_value(self.call(&Call::Status)?)?)
    }

    fn call(&self, call: &Call) -> Result<serde_json::Value> {
        control::call(&self.path("control"), call, |_| ()).with_context(|| format!("the daemon was asked for {call:?}"))
    }

    /// Starts the daemon, and waits until it says that it is up.
    pub fn start(&mut self) -> Result<()> {
        let begun = Instant::now();
        let (said, log) = (self.path("daemon.out"), self.path("daemon.log"));
        let errors = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(&self.headpond);
        command.args(["serve", "a", "b", "--state", "state", "--frontend"]).current_dir(&self.folder);
        match self.frontend {
            Frontend::Nbd => command.arg("nbd").arg("--nbd").arg(self.socket()),
            Frontend::Loop => command.arg("fuse"),
        };
        command.arg("--socket").arg(self.path("control"));
        command.process_group(0).stdin(Stdio::null()).stdout(File::create(&said)?).stderr(errors);
        let child = self.daemon.insert(command.spawn().context("the daemon cannot be started")?);
        loop {
            if fs::read(&said)?.ends_with(b"\n") {
                break;
            }
            if let Some(status) = child.try_wait()? {
                bail!("the daemon did not start, and ended with {status}: {}", tool::last_words(&log));
            }
            if begun.elapsed() > PATIENCE {
                bail!("the daemon is not up after {} s: {}", PATIENCE.as_secs(), tool::last_words(&log));
            }
            interrupt::check()?;
            thread::sleep(Duration::from_millis(3));
        }
        if self.kills > 0 {
            self.slowest_start = self.slowest_start.max(begun.elapsed());
        }
        Ok(())
    }

    /// Kills the daemon: SIGKILL. One that had ended by itself before is a finding.
    pub fn kill(&mut self) -> Result<()> {
        let mut child = self.daemon.take().context("no daemon runs")?;
        if let Some(status) = child.try_wait()? {
            bail!("the daemon ended by itself under load, with {status}: {}", tool::last_words(&self.path("daemon.log")));
        }
        let begun = Instant::now();
        child.kill().context("the daemon cannot be killed")?;
        wait_for_the_killed(&mut child)?;
        self.killed = Some((begun, Instant::now()));
        self.kills += 1;
        Ok(())
    }

    /// Ends the daemon cleanly.
    pub fn stop(&mut self) -> Result<()> {
        // Its answer may come after it closed the socket; what counts is its exit.
        let _ = control::call(&self.path("control"), &Call::Stop, |_| ());
        let mut child = self.daemon.take().context("no daemon runs")?;
        let until = Instant::now() + PATIENCE;
        loop {
            match child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    bail!("told to end, the daemon ended with {status}: {}", tool::last_words(&self.path("daemon.log")))
                }
                None if Instant::now() > until => {
                    self.daemon = Some(child);
                    bail!("told to end, the daemon had not ended after {} s", PATIENCE.as_secs());
                }
                None => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Detaches the volume: from now on the disk alone has its content.
    pub fn detach(&self) -> Result<()> {
        self.call(&Call::Detach { name: NAME.into(), give_up_lost: false, throw_away: false, deadline_seconds: None }).map(drop)
    }

    /// Fails if the daemon told a client of an error since it was started.
    pub fn no_errors(&self) -> Result<()> {
        let errors: u64 = self.report()?.volumes.iter().map(|volume| volume.requests.errors).sum();
        if errors > 0 {
            bail!(
                "the daemon counts {errors} failed requests, and none may fail: {}",
                tool::last_words(&self.path("daemon.log"))
            );
        }
        Ok(())
    }

    /// Mounts the volume's file system in `mnt`.
    pub fn mount(&mut self) -> Result<PathBuf> {
        let point = self.path("mnt");
        fs::create_dir_all(&point)?;
        tool::run(Command::new("mount").arg(self.device()?).arg(&point), &self.path("mount.log"))?;
        self.mounted = true;
        Ok(point)
    }

    /// Unmounts it. What runs on it must have ended; the kernel may still hold it for a moment.
    pub fn unmount(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.mounted {
            let ended = tool::try_run(Command::new("umount").arg(self.path("mnt")), &self.path("mount.log"))?;
            if ended.status.success() {
                self.mounted = false;
            } else if Instant::now() > until {
                bail!("the file system cannot be unmounted: {}", ended.said.trim());
            } else {
                thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// All was well: nothing needs to be kept.
    pub fn passed(mut self) {
        self.passed = true;
    }
}

/// How NBD clients name the volume behind a socket.
pub fn uri(socket: &Path) -> String {
    format!("nbd+unix:///{NAME}?socket={}", socket.display())
}

impl Drop for Rig {
    fn drop(&mut self) {
        // First what is mounted, while somebody answers it. These run even after an interruption, so not by `tool`.
        let umount = |options: &[&str]| {
            let mut command = Command::new("umount");
            command.args(options).arg(self.folder.join("mnt")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        if self.mounted && !umount(&[]) {
            umount(&["--lazy"]);
        }
        if let Some(mut child) = self.daemon.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // What a killed daemon leaves: a dead mount beside the control socket, and a loop device bound to the file in it.
        let point = self.folder.join(NAME).join(NAME);
        if matches!(mount::look(&point), Ok(mount::Found::Dead)) {
            for error in loopdev::detach_left_over(&point.join(NAME)) {
                eprintln!("{error}");
            }
            if let Err(error) = mount::clear_dead(&point) {
                eprintln!("{error}");
            }
        }
        if self.keep && !self.passed && !interrupt::interrupted() {
            println!("    all that was there, and what the daemon said, is kept in {}", self.folder.display());
        } else if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("{} cannot be removed: {error}", self.folder.display());
        }
    }
}

/// Waits until a killed daemon is gone. The kernel lets none go whose threads wait for a device: where they are is said if
/// it takes long, for the clients' patience may end first, and the daemon is not to blame then.
fn wait_for_the_killed(child: &mut Child) -> Result<()> {
    let soon = Instant::now() + SOON;
    while Instant::now() < soon {
        if child.try_wait().context("the daemon does not die")?.is_some() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    println!("killed {} s ago, the daemon is still there; its threads:", SOON.as_secs());
    for task in fs::read_dir(format!("/proc/{}/task", child.id()))?.flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let status = read("status");
        let state = status.lines().find_map(|l| l.strip_prefix("State:")).unwrap_or("gone").trim();
        println!("  {} {state}, in {}", read("comm").trim(), read("wchan").trim());
    }
    child.wait().context("the daemon does not die")?;
    Ok(())
}
