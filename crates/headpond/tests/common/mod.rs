//! What the tests of the command share: pools in a folder of their own, daemons, and a small NBD client.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod for_real;
pub mod http;
pub mod silent;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use headpond_format::Superblock;

pub const MIB: u64 = 1 << 20;
/// For what comes in any case: a machine that is busy may stand still for many seconds.
pub const LONG: Duration = Duration::from_secs(60);

/// A folder with devices (files), a state folder and sockets, gone at its end.
pub struct Yard(tempfile::TempDir);

impl Yard {
    pub fn new() -> Yard {
        Yard(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file of zeroes.
    pub fn file(&self, name: &str, len: u64) -> PathBuf {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(len).unwrap();
        path
    }

    /// The command with these arguments, in this folder, with its state folder where the command takes one.
    pub fn run(&self, args: &[&str]) -> Ended {
        let mut command = self.command(args);
        match args {
            ["events", "--offline", ..] => {}
            ["pool", "create" | "destroy", ..] => drop(command.args(["--state", "state"])),
            ["pool", "add" | "remove" | "replace", ..]
            | [
                "attach" | "detach" | "flush" | "mode" | "scrub" | "status" | "stat" | "histogram" | "events" | "preload" | "pin"
                | "grow" | "share" | "unpin" | "upgrade" | "volume",
                ..,
            ] => {
                command.args(["--socket", "control"]);
            }
            _ => {}
        }
        Ended::of(&command.output().unwrap())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "180", env!("CARGO_BIN_EXE_headpond")]).args(args).current_dir(self.0.path());
        command
    }

    /// A pool `pool` of two devices `a` and `b` of 64 MiB.
    pub fn pool(&self) -> Ended {
        self.file("a", 64 * MIB);
        self.file("b", 64 * MIB);
        self.run(&["pool", "create", "pool", "a", "b"]).good()
    }

    /// Serves devices over NBD, and waits until the daemon is up.
    pub fn serve(&self, args: &[&str]) -> Daemon {
        match self.try_serve(args) {
            Ok(daemon) => daemon,
            Err(ended) => panic!("the daemon did not start: {ended:?}"),
        }
    }

    /// The same, or how the daemon ended instead.
    pub fn try_serve(&self, args: &[&str]) -> Result<Daemon, Ended> {
        self.serve_with(&[&["--frontend", "nbd", "--nbd", "nbd", "--socket", "control", "--state", "state"], args].concat())
    }

    /// Serves with just these arguments.
    pub fn serve_with(&self, args: &[&str]) -> Result<Daemon, Ended> {
        self.serve_by(&[env!("CARGO_BIN_EXE_headpond")], args)
    }

    /// The same, by a program that becomes the daemon.
    pub fn serve_by(&self, program: &[&str], args: &[&str]) -> Result<Daemon, Ended> {
        self.serve_logging_to(File::create(self.path("complained")).unwrap(), program, args)
    }

    /// The same, with its standard error elsewhere.
    pub fn serve_logging_to(&self, stderr: impl Into<Stdio>, program: &[&str], args: &[&str]) -> Result<Daemon, Ended> {
        let said = self.path("said");
        let mut child = Command::new(program[0])
            .args(&program[1..])
            .arg("serve")
            .args(args)
            .current_dir(self.0.path())
            .stdout(File::create(&said).unwrap())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let until = Instant::now() + 2 * LONG;
        loop {
            let said = fs::read_to_string(&said).unwrap();
            if said.ends_with('\n') {
                return Ok(Daemon { child, said, complaints: self.path("complained") });
            }
            if let Some(status) = child.try_wait().unwrap() {
                let err = fs::read_to_string(self.path("complained")).unwrap_or_default();
                return Err(Ended { code: status.code(), out: said, err });
            }
            if Instant::now() > until {
                let _ = child.kill();
                panic!("the daemon is not up after {:?}", 2 * LONG);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A pool on `a` and `b`, and `disk`, so large that a sweep over what is far apart on it takes a minute where it is `modelled:`; in `toml` what keeps writes from
    /// going to it.
    pub fn pool_and_slow_disk(&self) {
        for device in ["a", "b"] {
            self.file(device, 256 * MIB);
        }
        self.run(&["pool", "create", "pool", "a", "b"]).good();
        self.file("disk", 16 << 30);
        fs::write(self.path("toml"), "[engine]\nroute = false\n").unwrap();
    }

    /// Bytes of the only volume that the pool on `a` and `b` has dirty at rest.
    pub fn dirty_at_rest(&self) -> u64 {
        let report: serde_json::Value = serde_json::from_str(&self.run(&["check", "a", "b", "--json"]).good().out).unwrap();
        report["summary"]["volumes"][0]["dirty_bytes"].as_u64().unwrap()
    }

    /// A client of a volume.
    pub fn nbd(&self, volume: &str) -> Nbd {
        Nbd::connect(&self.path("nbd"), volume).unwrap()
    }
}

/// A pool with a volume `v` of 4 MiB: eight blocks written and read, one read that the disk alone could answer, one flush.
pub fn served(yard: &Yard) -> Daemon {
    yard.pool();
    yard.file("disk", 4 * MIB);
    fs::write(yard.path("toml"), "[metrics]\nlisten = '127.0.0.1:0'\n[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", "disk"]).good();
    let mut nbd = yard.nbd("v");
    for n in 0..8 {
        nbd.write(n * 4096, &[7; 4096], false).unwrap();
    }
    for n in 0..8 {
        nbd.read(n * 4096, 4096).unwrap();
    }
    nbd.read(2 * MIB, 4096).unwrap();
    nbd.flush().unwrap();
    daemon
}

/// What became of a command.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ended {
    pub fn of(output: &Output) -> Ended {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    #[track_caller]
    pub fn good(self) -> Ended {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// It ended well, and told all of these.
    #[track_caller]
    pub fn told(self, parts: &[&str]) -> Ended {
        assert_eq!(self.code, Some(0), "{self:?}");
        for part in parts {
            assert!(self.out.contains(part), "{part:?} is not in: {}", self.out);
        }
        self
    }

    /// It ended with this code, and said all of these.
    #[track_caller]
    pub fn said(self, code: i32, parts: &[&str]) -> Ended {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in: {}", self.err);
        }
        println!("{}", self.err.trim());
        self
    }
}

/// A daemon, killed at its end.
pub struct Daemon {
    child: Child,
    /// Its ready line.
    pub said: String,
    complaints: PathBuf,
}

impl Daemon {
    /// Kills it, as `kill -9` does.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it has ended, in some way.
    pub fn ended(mut self) {
        self.child.wait().unwrap();
    }

    /// Ends it with SIGTERM, cleanly.
    pub fn stop(mut self) {
        self.signal("TERM");
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.complaints());
    }

    /// Sends it a signal, by its name without "SIG".
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where its metrics are.
    pub fn metrics(&self) -> String {
        self.said.split_once("metrics at http://").unwrap().1.split('/').next().unwrap().to_owned()
    }

    /// What it wrote to standard error, if that is a file.
    pub fn complaints(&self) -> String {
        fs::read_to_string(&self.complaints).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loop device; let go at its end.
pub struct Loop(pub PathBuf);

impl Loop {
    /// `None`, and a word, where there can be none.
    pub fn over(file: &Path) -> Option<Loop> {
        if !rustix::process::geteuid().is_root() || !have("losetup") {
            println!("skipped: needs root and losetup");
            return None;
        }
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
        if !output.status.success() {
            println!("skipped: there is no loop device");
            return None;
        }
        Some(Loop(String::from_utf8(output.stdout).unwrap().trim().into()))
    }

    /// Has it as large as its file is now.
    pub fn follow_size(&self) {
        assert!(Command::new("losetup").arg("--set-capacity").arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// A file system that can be read alone from now on.
pub struct ReadOnly(PathBuf);

impl ReadOnly {
    /// `None`, and a word, where there can be none.
    pub fn over(folder: &Path) -> Option<ReadOnly> {
        let mount = |args: &[&str]| Command::new("mount").args(args).arg(folder).status().is_ok_and(|it| it.success());
        if !rustix::process::geteuid().is_root() || !mount(&["--bind", folder.to_str().unwrap()]) {
            println!("skipped: it takes root, and mounts");
            return None;
        }
        let mounted = ReadOnly(folder.into());
        assert!(mount(&["-o", "remount,bind,ro"]));
        Some(mounted)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Has all superblocks of a device say something else.
pub fn forge(path: &Path, change: impl Fn(&mut Superblock)) {
    let mut bytes = fs::read(path).unwrap();
    for at in (0..bytes.len()).step_by(4096) {
        if let Ok(mut superblock) = Superblock::decode(&bytes[at..]) {
            change(&mut superblock);
            let forged = superblock.encode();
            bytes[at..at + forged.len()].copy_from_slice(&forged);
        }
    }
    fs::write(path, bytes).unwrap();
}

/// The content of files, to be compared later.
#[derive(PartialEq, Eq)]
pub struct Contents(Vec<(PathBuf, u64)>);

impl Contents {
    pub fn of(paths: &[&Path]) -> Contents {
        Contents(paths.iter().map(|path| (path.to_path_buf(), headpond_format::checksum(0, &fs::read(path).unwrap()))).collect())
    }

    #[track_caller]
    pub fn unchanged(&self) {
        for (path, sum) in &self.0 {
            assert_eq!(headpond_format::checksum(0, &fs::read(path).unwrap()), *sum, "{} was changed", path.display());
        }
    }
}

/// Whether a tool is installed; says so if it is not.
pub fn have(tool: &str) -> bool {
    have_with(tool, "--version")
}

/// The same of a tool that tells its version in another way.
pub fn have_with(tool: &str, version: &str) -> bool {
    let there = Command::new(tool).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !there {
        println!("skipped: {tool} is not installed");
    }
    there
}

/// One NBD connection, one request at a time.
pub struct Nbd {
    stream: UnixStream,
    pub size: u64,
}

impl Nbd {
    pub fn connect(socket: &Path, export: &str) -> io::Result<Nbd> {
        Nbd::choose(Nbd::begin(socket)?, export)
    }

    /// Only begins to connect: the server has told what it offers by then.
    pub fn begin(socket: &Path) -> io::Result<UnixStream> {
        let mut stream = UnixStream::connect(socket)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        Ok(stream)
    }

    /// Chooses a volume.
    pub fn choose(mut stream: UnixStream, export: &str) -> io::Result<Nbd> {
        let name = export.as_bytes();
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(1u32.to_be_bytes());
        hello.extend((name.len() as u32).to_be_bytes());
        hello.extend(name);
        stream.write_all(&hello)?;
        let mut answer = [0; 10];
        stream.read_exact(&mut answer)?;
        let size = u64::from_be_bytes(answer[..8].try_into().unwrap());
        Ok(Nbd { stream, size })
    }

    /// Takes an answer that does not come in time for an error.
    pub fn patience(&self, limit: Duration) {
        self.stream.set_read_timeout(Some(limit)).unwrap();
    }

    /// A request as it is sent.
    pub fn request(flags: u16, kind: u16, offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend(flags.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(7u64.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend(data);
        request
    }

    /// Sends what has been put together.
    pub fn send(&mut self, requests: &[u8]) -> io::Result<()> {
        self.stream.write_all(requests)
    }

    /// The next answer, and what a read brings.
    pub fn answer(&mut self, to: &mut [u8]) -> io::Result<()> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => self.stream.read_exact(to),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }

    fn ask(&mut self, flags: u16, kind: u16, offset: u64, len: u32, data: &[u8], to: &mut [u8]) -> io::Result<()> {
        self.send(&Nbd::request(flags, kind, offset, len, data))?;
        self.answer(to)
    }

    pub fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut data = vec![0; len];
        self.ask(0, 0, offset, len as u32, &[], &mut data)?;
        Ok(data)
    }

    pub fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> io::Result<()> {
        self.ask(u16::from(fua), 1, offset, data.len() as u32, data, &mut [])
    }

    /// Writes whole blocks, many at a time: a disk that is slow has not come far with them by the end.
    pub fn write_many(&mut self, blocks: impl IntoIterator<Item = (u64, Vec<u8>)>) {
        let requests: Vec<Vec<u8>> =
            blocks.into_iter().map(|(at, block)| Nbd::request(0, 1, at, block.len() as u32, &block)).collect();
        for some in requests.chunks(100) {
            self.send(&some.concat()).unwrap();
            some.iter().for_each(|_| self.answer(&mut []).unwrap());
        }
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.ask(0, 3, 0, 0, &[], &mut [])
    }

    pub fn trim(&mut self, offset: u64, len: u32, fua: bool) -> io::Result<()> {
        self.ask(u16::from(fua), 4, offset, len, &[], &mut [])
    }

    pub fn zero(&mut self, offset: u64, len: u32) -> io::Result<()> {
        self.ask(0, 6, offset, len, &[], &mut [])
    }
}
