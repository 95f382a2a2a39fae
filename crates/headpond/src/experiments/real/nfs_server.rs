//! The kernel's own NFS server, what it exports, and the page cache that it serves from.

use super::tools;
use crate::demo::Mounted;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Threads of the server: scaled from 256. As many requests as clients at most are with it at a time.
pub const THREADS: u32 = 64;
/// The only address that it listens at, and that it exports to.
const HOME: &str = "127.0.0.1";
/// Where the kernel's server is set up.
const CONTROL: &str = "/proc/fs/nfsd";
/// Programs of it: three of Debian's package nfs-kernel-server, and one of nfs-common.
const PROGRAMS: [&str; 4] = ["rpc.nfsd", "rpc.mountd", "exportfs", "mount.nfs"];
/// How often a server with far less memory than its files has read something else: before a place is asked for again.
const FORGETTING: Duration = Duration::from_millis(100);

/// Why there is none, if so: what is missing here, and where it is not.
pub fn missing() -> Option<String> {
    let elsewhere = "`cargo xtask vm experiments` runs it in a virtual machine, with that one's NFS; what came of that is in docs/EXPERIMENTS.md, in the \
                     part of the virtual machine";
    let absent = |name: &&&str| !["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter().any(|it| Path::new(it).join(name).is_file());
    if let Some(program) = PROGRAMS.iter().find(absent) {
        return Some(format!("{program} is not installed, of Debian's package nfs-kernel-server; {elsewhere}"));
    }
    ["nfsd", "nfs4"].iter().find(|it| !has_file_system(it)).map(|name| {
        let what = if *name == "nfsd" { "an NFS server" } else { "a client of NFS 4" };
        format!(
            "this machine's kernel, {}, comes without {what}; {elsewhere}",
            rustix::system::uname().release().to_string_lossy()
        )
    })
}

/// Whether the kernel has it, as a module perhaps.
fn has_file_system(name: &str) -> bool {
    let there = || fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.split_whitespace().any(|it| it == name));
    if !there() {
        let module = if name == "nfs4" { "nfsv4" } else { name };
        // It fails where there is none, which is then seen.
        let _ = Command::new("modprobe").args(["-q", module]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    }
    there()
}

/// The server while it is needed. One that runs already is used as it is, and runs on.
pub struct Server {
    /// It is stopped when it is not needed any more.
    ours: bool,
    mountd: Option<Child>,
    folder: PathBuf,
    mounted_control: bool,
}

/// What sets the server up is not interrupted: each call ends by itself, and half of it would be left.
static NEVER: AtomicBool = AtomicBool::new(false);

impl Server {
    /// Starts it, with its words in `folder`.
    pub fn start(folder: &Path) -> Result<Server> {
        let threads = Path::new(CONTROL).join("threads");
        let mut server = Server { ours: false, mountd: None, folder: folder.to_owned(), mounted_control: false };
        if !threads.exists() {
            server.run("mount", &["-t", "nfsd", "nfsd", CONTROL])?;
            server.mounted_control = true;
        }
        if server.threads() > 0 {
            return Ok(server);
        }
        fs::create_dir_all("/var/lib/nfs/rpc_pipefs").context("the NFS server's folder cannot be made")?;
        let log = File::create(folder.join("mountd.log"))?;
        let mut mountd = Command::new("rpc.mountd");
        // NFS 4 alone: no port mapper is needed.
        mountd.args(["--foreground", "--no-nfs-version", "3"]).process_group(0);
        mountd.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        server.mountd = Some(mountd.spawn().context("rpc.mountd cannot be run")?);
        let count = THREADS.to_string();
        // A server that nobody knew has nothing to wait for: its grace period is as short as can be, and then ended.
        let args = ["--no-nfs-version", "3", "--nfs-version", "4.2", "--host", HOME, "--grace-time", "10", "--lease-time", "10"];
        server.ours = true;
        server.run("rpc.nfsd", &[&args[..], &[&count]].concat())?;
        let _ = fs::write(Path::new(CONTROL).join("v4_end_grace"), "Y\n");
        Ok(server)
    }

    /// How many threads it has.
    pub fn threads(&self) -> u32 {
        let text = fs::read_to_string(Path::new(CONTROL).join("threads")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<()> {
        tools::run(Command::new(program).args(args), &self.folder.join("nfs.log"), &NEVER).map(drop)
    }

    /// Exports a folder, synchronously, and mounts it elsewhere by the kernel's client.
    pub fn serve(&self, folder: &Path, number: usize, point: &Path) -> Result<Mounted> {
        let options = format!("rw,sync,no_root_squash,no_subtree_check,insecure,fsid={}", number + 1);
        self.run("exportfs", &["-o", &options, &of(folder)])?;
        let from = PathBuf::from(of(folder));
        Mounted::new(&from, point, &["-t", "nfs", "-o", "vers=4.2,proto=tcp,hard,rsize=1048576,wsize=1048576"])
    }

    /// Takes the export of a folder back, so that what is mounted there can be unmounted.
    pub fn withdraw(&self, folder: &Path) -> Result<()> {
        self.run("exportfs", &["-u", &of(folder)])?;
        self.run("exportfs", &["-f"])
    }
}

fn of(folder: &Path) -> String {
    format!("{HOME}:{}", folder.display())
}

impl Drop for Server {
    fn drop(&mut self) {
        // What fails here has ended already.
        if self.ours {
            let _ = self.run("rpc.nfsd", &["0"]);
        }
        if let Some(mut child) = self.mountd.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if self.mounted_control {
            let _ = self.run("umount", &[CONTROL]);
        }
    }
}

/// Has the server forget what it keeps of its files: all of it is on their devices first.
pub fn forget() -> Result<()> {
    rustix::fs::sync();
    drop_caches("3")
}

fn drop_caches(what: &str) -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", what).context("the page cache cannot be emptied")
}

/// Runs something on a server that hardly keeps anything of its files, as one whose files are many times its memory.
pub fn forgetful<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let forgetting = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                drop_caches("1")?;
                thread::sleep(FORGETTING);
            }
            Ok(())
        });
        let result = run();
        ended.store(true, Ordering::Relaxed);
        let forgotten: Result<()> = forgetting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        forgotten.and(result)
    })
}
