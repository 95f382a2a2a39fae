//! The NBD server over memory, driven by the clients that people use and by hand.
//!
//! Tests of a client that is not installed say so and pass.

use headpond_host::nbd::protocol::Errno;
use headpond_host::nbd::server::{Backend, Command, Completion, Limits, ListenError, Server};
use headpond_host::nbd::session::ExportInfo;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

const SIZE: usize = 64 << 20;
/// For what comes in any case: a machine that is busy may stand still for many seconds.
const GRACE: Duration = Duration::from_secs(60);

/// What is started has copies of all that is open, up to its exec: nothing is, for as long as anybody reads this.
static STARTS: RwLock<()> = RwLock::new(());

type Job = (Command<Vec<u8>>, Completion<Vec<u8>>);

/// A disk in memory. What has gathered while its thread worked is finished last come, first served,
/// so that replies come in another order than requests.
struct Memory {
    export: ExportInfo,
    work: Mutex<Sender<Job>>,
}

impl Memory {
    fn new(export: ExportInfo) -> Arc<Memory> {
        let (work, jobs) = mpsc::channel::<Job>();
        let mut disk = vec![0; export.size as usize];
        thread::spawn(move || {
            while let Ok(job) = jobs.recv() {
                let mut batch = vec![job];
                batch.extend(jobs.try_iter());
                for (command, done) in batch.into_iter().rev() {
                    done.finish(Ok(run(&mut disk, command)));
                }
            }
        });
        Arc::new(Memory { export, work: Mutex::new(work) })
    }
}

fn run(disk: &mut [u8], command: Command<Vec<u8>>) -> Vec<Vec<u8>> {
    let range = |offset: u64, len: u32| offset as usize..offset as usize + len as usize;
    match command {
        // In pieces, as a cache would bring it.
        Command::Read { offset, len } => {
            return disk[range(offset, len)].chunks(12288).map(<[u8]>::to_vec).collect();
        }
        Command::Write { offset, data, .. } => {
            disk[range(offset, data.len() as u32)].copy_from_slice(&data);
        }
        Command::Trim { offset, len, .. } | Command::WriteZeroes { offset, len, .. } => {
            disk[range(offset, len)].fill(0);
        }
        Command::Flush => {}
    }
    Vec::new()
}

impl Backend for Memory {
    type Space = Vec<u8>;
    type Data = Vec<u8>;
    fn exports(&self) -> Vec<ExportInfo> {
        vec![self.export.clone()]
    }
    fn alloc(&self, len: usize) -> Vec<u8> {
        vec![0; len]
    }
    fn submit(&self, _: usize, command: Command<Vec<u8>>, done: Completion<Vec<u8>>) {
        self.work.lock().unwrap().send((command, done)).unwrap();
    }
}

/// Answers nothing until the test does; what is asked for is forgotten.
#[derive(Default)]
struct Holding(Mutex<Vec<Completion<Vec<u8>>>>);

impl Holding {
    /// Takes this many requests, in the order in which they came.
    fn take(&self, count: usize) -> Vec<Completion<Vec<u8>>> {
        let until = Instant::now() + GRACE;
        loop {
            let mut held = self.0.lock().unwrap();
            if held.len() >= count {
                return held.drain(..count).collect();
            }
            drop(held);
            assert!(Instant::now() < until, "{count} requests did not come");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Backend for Holding {
    type Space = Vec<u8>;
    type Data = Vec<u8>;
    fn exports(&self) -> Vec<ExportInfo> {
        vec![ExportInfo::new(0, "disk", SIZE as u64)]
    }
    fn alloc(&self, len: usize) -> Vec<u8> {
        vec![0; len]
    }
    fn submit(&self, _: usize, _: Command<Vec<u8>>, done: Completion<Vec<u8>>) {
        self.0.lock().unwrap().push(done);
    }
}

/// A server whose requests the test holds, with the path of its socket.
fn holding(limits: Limits) -> (Server, Arc<Holding>, PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (path, backend) = (dir.path().join("nbd.sock"), Arc::new(Holding::default()));
    (Server::start(&path, backend.clone(), limits).unwrap(), backend, path, dir)
}

/// Connects and chooses the only export, by hand and with simple replies.
fn client(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(GRACE)).unwrap();
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 18 + 10]).unwrap();
    stream
}

/// Reads of 512 bytes, with these cookies.
fn reads(cookies: std::ops::Range<u8>) -> Vec<u8> {
    let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let one = |cookie| [&head[..], &[cookie], &[0; 10], &[2, 0]].concat();
    cookies.flat_map(one).collect()
}

/// A write of so many bytes at the beginning, with this cookie.
fn write(cookie: u8, len: u16) -> Vec<u8> {
    let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    [&head[..], &[cookie], &[0; 10], &len.to_be_bytes(), &vec![cookie; len.into()][..]].concat()
}

/// A flush with this cookie.
fn flush(cookie: u8) -> Vec<u8> {
    let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    [&head[..], &[cookie], &[0; 12]].concat()
}

/// The error and the cookie of the next simple reply.
fn reply(stream: &mut UnixStream) -> (u8, u8) {
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).unwrap();
    (bytes[7], bytes[15])
}

#[test]
fn the_socket_is_its_owners_only_and_goes_with_the_server() {
    let (server, _, path, _dir) = holding(Limits::default());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(server);
    assert!(!path.exists());
}

#[test]
fn an_abandoned_socket_is_replaced_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let start = || Server::start(&path, Arc::new(Holding::default()), Limits::default());
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    // What another test starts at this moment has a copy of it, up to its exec.
    while UnixStream::connect(&path).is_ok() {}
    let server = start().unwrap();
    assert!(matches!(start(), Err(ListenError::InUse(_))));
    client(&path);
    drop(server);
    fs::write(&path, "precious").unwrap();
    assert!(matches!(start(), Err(ListenError::NotASocket(_))));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn only_a_client_that_does_not_finish_the_handshake_is_closed() {
    // In which a client of a busy machine is done with it too.
    let handshake = Duration::from_secs(8);
    let limits = Limits { handshake, ..Limits::default() };
    let (_server, _, path, _dir) = holding(limits);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(GRACE)).unwrap();
    let mut greeting = Vec::new();
    stream.read_to_end(&mut greeting).unwrap();
    assert_eq!(greeting.len(), 18);
    let mut stream = client(&path);
    stream.set_read_timeout(Some(handshake + Duration::from_secs(1))).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_connection_beyond_the_cap_is_closed_and_the_others_stay() {
    let (_server, backend, path, _dir) = holding(Limits { connections: 2, ..Limits::default() });
    let (mut first, _second) = (client(&path), client(&path));
    let mut third = UnixStream::connect(&path).unwrap();
    assert_eq!(third.read(&mut [0]).unwrap(), 0);
    first.write_all(&reads(0..1)).unwrap();
    backend.take(1);
}

#[test]
fn a_request_dropped_or_answered_with_the_wrong_length_fails_and_the_next_succeeds() {
    let (_server, backend, path, _dir) = holding(Limits::default());
    let mut stream = client(&path);
    stream.write_all(&reads(0..3)).unwrap();
    let [dropped, wrong, right] = backend.take(3).try_into().ok().unwrap();
    drop(dropped);
    assert_eq!(reply(&mut stream), (Errno::Io as u8, 0));
    wrong.finish(Ok(vec![vec![0; 511]]));
    assert_eq!(reply(&mut stream), (Errno::Io as u8, 1));
    right.finish(Ok(vec![vec![7; 256], vec![], vec![8; 256]]));
    assert_eq!(reply(&mut stream), (0, 2));
    let mut data = [0; 512];
    stream.read_exact(&mut data).unwrap();
    assert_eq!((data[255], data[256]), (7, 8));
}

#[test]
fn a_connection_has_no_more_outstanding_than_its_limits() {
    let by_count = Limits { requests: 4, ..Limits::default() };
    let by_bytes = Limits { bytes: 4 * 512 + 511, ..Limits::default() };
    for limits in [by_count, by_bytes] {
        let (_server, backend, path, _dir) = holding(limits);
        let mut stream = client(&path);
        stream.write_all(&reads(0..8)).unwrap();
        let first = backend.take(4);
        thread::sleep(Duration::from_millis(100));
        assert!(backend.0.lock().unwrap().is_empty());
        drop(first);
        backend.take(4);
        (0..8).for_each(|_| assert_eq!(reply(&mut stream).0, Errno::Io as u8));
    }
}

#[test]
fn a_client_that_does_not_read_its_replies_is_no_longer_read() {
    let (_server, backend, path, _dir) = holding(Limits { requests: 4, ..Limits::default() });
    let mut stream = client(&path);
    // Longer than a busy machine keeps the server from reading.
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut sender = stream.try_clone().unwrap();
    // Stops when the socket is full of requests, as the server must stop to read them.
    let sending = thread::spawn(move || while sender.write_all(&reads(0..200)).is_ok() {});
    let mut answered = 0;
    while !sending.is_finished() {
        let held = std::mem::take(&mut *backend.0.lock().unwrap());
        answered += held.len();
        held.into_iter().for_each(|done| done.finish(Ok(vec![vec![0; 512]])));
        thread::sleep(Duration::from_millis(1));
    }
    assert!(answered > 4);
    for _ in 0..answered {
        assert_eq!(reply(&mut stream).0, 0);
        stream.read_exact(&mut [0; 512]).unwrap();
    }
}

#[test]
fn shutdown_answers_what_is_outstanding_and_then_closes() {
    let (server, backend, path, _dir) = holding(Limits::default());
    let (mut stream, idle) = (client(&path), client(&path));
    stream.write_all(&reads(0..2)).unwrap();
    let outstanding = backend.take(2);
    let stopping = thread::spawn(move || server.shutdown(GRACE));
    thread::sleep(Duration::from_millis(50));
    assert!(!stopping.is_finished(), "it waits for the replies");
    for done in outstanding.into_iter().rev() {
        done.finish(Ok(vec![vec![1; 512]]));
    }
    for cookie in [1, 0] {
        assert_eq!(reply(&mut stream), (0, cookie));
        stream.read_exact(&mut [0; 512]).unwrap();
    }
    for mut stream in [stream, idle] {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    assert_eq!(stopping.join().unwrap(), 0);
}

#[test]
fn shutdown_cuts_off_a_connection_that_is_not_answered_in_time() {
    let (server, backend, path, _dir) = holding(Limits::default());
    let mut stream = client(&path);
    stream.write_all(&reads(0..1)).unwrap();
    let _unanswered = backend.take(1);
    assert_eq!(server.shutdown(Duration::from_millis(50)), 1);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

/// The kernel's client, and others, send what a connection owes them over another one: what the first one had not even read yet
/// was done when its turn came, over what had been written and acknowledged since. A FLUSH was done as well, and heard of a failed flush of the disk, in place of the
/// next client, whose FLUSH went well.
#[test]
fn of_a_client_that_hung_up_nothing_is_written_or_flushed_any_more_that_was_not_begun() {
    const GOODBYE: [u8; 28] = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let zeroes = [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 10], &[2, 0]].concat();
    let by_bytes = Limits { bytes: 4096, ..Limits::default() };
    let by_count = Limits { requests: 1, ..Limits::default() };
    // How the client goes, and whether what it had sent by then is begun all the same.
    type Leave = fn(UnixStream) -> Option<UnixStream>;
    let ways: [(&str, Leave, bool); 3] = [
        ("closes", |_| None, false),
        ("gives up, as the kernel does", |stream| stream.shutdown(Shutdown::Both).map(|()| stream).ok(), false),
        ("sends no more", |stream| stream.shutdown(Shutdown::Write).map(|()| stream).ok(), true),
    ];
    for (how, leave, goes_on) in ways {
        for (limits, later) in
            [(by_bytes, write(1, 512)), (by_count, write(1, 512)), (by_count, zeroes.clone()), (by_count, flush(1))]
        {
            for last in [&[][..], &GOODBYE] {
                // Else a client that closes has not hung up yet.
                let _nothing = STARTS.read().unwrap();
                let (server, backend, path, _dir) = holding(limits);
                let mut stream = client(&path);
                stream.write_all(&[&write(0, 4096)[..], &later, last].concat()).unwrap();
                let [first] = backend.take(1).try_into().ok().unwrap();
                let stream = leave(stream);
                first.finish(Ok(Vec::new()));
                if goes_on {
                    backend.take(1);
                }
                // It ends with its last connection.
                assert_eq!(server.shutdown(GRACE), 0, "a client that {how}");
                assert!(backend.0.lock().unwrap().is_empty(), "a client that {how}");
                drop(stream);
            }
        }
    }
}

/// What a client had sent over a connection that broke waited in the engine for its turn, while the client sent it again over another one,
/// then newer data for the same place, and was told that both were done: then the first one was done, over the newer data.
#[test]
fn what_was_begun_for_a_client_that_hung_up_ends_before_the_same_place_is_changed_over_another_connection() {
    let (_server, backend, path, _dir) = holding(Limits::default());
    let at = |sector: u64, mut request: Vec<u8>| {
        request[16..24].copy_from_slice(&(sector * 512).to_be_bytes());
        request
    };
    for is_gone in [true, false] {
        // Else a client that closes has not hung up yet.
        let _nothing = STARTS.read().unwrap();
        let (mut first, mut second) = (client(&path), client(&path));
        first.write_all(&at(8, write(0, 4096))).unwrap();
        let [begun] = backend.take(1).try_into().ok().unwrap();
        let how = if is_gone { Shutdown::Both } else { Shutdown::Write };
        first.shutdown(how).unwrap();
        // Beside it, and of its last sector.
        second.write_all(&[at(16, write(1, 512)), at(15, write(2, 512)), at(7, write(3, 512))].concat()).unwrap();
        if is_gone {
            // Whoever only reads, flushes, or writes elsewhere was kept waiting as well, for as long as a disk that had fallen silent.
            second.write_all(&[flush(4), at(64, write(5, 512)), at(15, write(6, 512))].concat()).unwrap();
            for cookie in [1, 3, 4, 5] {
                let [done] = backend.take(1).try_into().ok().unwrap();
                done.finish(Ok(Vec::new()));
                assert_eq!(reply(&mut second), (0, cookie));
            }
            thread::sleep(Duration::from_millis(200));
            assert!(backend.0.lock().unwrap().is_empty(), "it is not over yet");
            begun.finish(Ok(Vec::new()));
            for cookie in [2, 6] {
                let [done] = backend.take(1).try_into().ok().unwrap();
                done.finish(Ok(Vec::new()));
                assert_eq!(reply(&mut second), (0, cookie));
            }
        } else {
            let [beside] = backend.take(1).try_into().ok().unwrap();
            beside.finish(Ok(Vec::new()));
            assert_eq!(reply(&mut second), (0, 1));
            // Two that write to one place at a time have no order.
            backend.take(2).into_iter().for_each(|done| done.finish(Ok(Vec::new())));
            begun.finish(Ok(Vec::new()));
            assert_eq!(reply(&mut first), (0, 0));
            assert_eq!([reply(&mut second), reply(&mut second)], [(0, 2), (0, 3)]);
        }
    }
}

/// Two disks: `a` answers nothing until the test does, `b` all at once.
#[derive(Default)]
struct Two(Holding);

impl Backend for Two {
    type Space = Vec<u8>;
    type Data = Vec<u8>;
    fn exports(&self) -> Vec<ExportInfo> {
        vec![ExportInfo::new(0, "a", SIZE as u64), ExportInfo::new(1, "b", SIZE as u64)]
    }
    fn alloc(&self, len: usize) -> Vec<u8> {
        self.0.alloc(len)
    }
    fn submit(&self, export: usize, command: Command<Vec<u8>>, done: Completion<Vec<u8>>) {
        match (export, command) {
            (0, command) => self.0.submit(0, command, done),
            (_, Command::Read { len, .. }) => done.finish(Ok(vec![vec![0; len as usize]])),
            _ => done.finish(Ok(Vec::new())),
        }
    }
}

/// Connects, and chooses an export by an option that can be refused. Fails with the answer to that, or none where the connection is closed.
fn choose(path: &Path, export: u8) -> Result<UnixStream, Option<u32>> {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(GRACE)).unwrap();
    let _ = stream.write_all(&[b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01", &[export][..], b"\0\0"].concat());
    stream.read_exact(&mut [0; 18]).map_err(|_| None)?;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head).unwrap();
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        stream.read_exact(&mut vec![0; number(16) as usize]).unwrap();
        match number(12) {
            1 => return Ok(stream),
            3 => {}
            refused => return Err(Some(refused)),
        }
    }
}

/// The disk of one volume had fallen silent. Its client gave up again and again, after its own time limit, and connected anew; what it was owed over
/// the connections before kept those in being, and as many as there may be shut out the clients of all volumes. Found by reading.
#[test]
fn clients_that_a_silent_disk_has_sent_away_keep_nobody_from_other_exports() {
    const POLICY: u32 = 0x8000_0002;
    let dir = tempfile::tempdir().unwrap();
    let (path, backend) = (dir.path().join("nbd.sock"), Arc::new(Two::default()));
    let limits = Limits { connections: 4, gone: 16, ..Limits::default() };
    let _server = Server::start(&path, backend.clone(), limits).unwrap();
    let mut owed = Vec::new();
    let serves = |export| {
        let mut stream = choose(&path, export).unwrap();
        stream.write_all(&reads(7..8)).unwrap();
        if export == b'a' {
            backend.0.take(1).into_iter().for_each(|done| done.finish(Ok(vec![vec![0; 512]])));
        }
        assert_eq!(reply(&mut stream), (0, 7));
        stream.read_exact(&mut [0; 512]).unwrap();
    };
    // Else a client that closes has not hung up yet.
    let nothing = STARTS.read().unwrap();
    for n in 0..limits.gone {
        let mut stream = choose(&path, b'a').unwrap();
        stream.write_all(&reads(0..1)).unwrap();
        owed.extend(backend.0.take(1));
        drop(stream);
        if n % 4 == 3 {
            serves(b'b');
        }
    }
    // What it owes stays bounded.
    assert_eq!(choose(&path, b'a').unwrap_err(), Some(POLICY));
    serves(b'b');
    drop(nothing);
    owed.into_iter().for_each(|done| done.finish(Ok(vec![vec![0; 512]])));
    let until = Instant::now() + GRACE;
    while choose(&path, b'a').is_err() {
        assert!(Instant::now() < until, "its disk answers, and it is full yet");
        thread::sleep(Duration::from_millis(10));
    }
    serves(b'a');
}

/// Runs a client and returns what it printed, or nothing if it is not installed.
fn tool(name: &str, args: &[&str]) -> Option<String> {
    let mut command = process::Command::new(name);
    command.args(args).stdin(process::Stdio::null()).stdout(process::Stdio::piped()).stderr(process::Stdio::piped());
    let alone = STARTS.write().unwrap();
    let started = command.spawn();
    drop(alone);
    let output = match started {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: {name} is not installed");
            return None;
        }
        started => started.unwrap().wait_with_output().unwrap(),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {args:?}: {}\n{said}{errors}", output.status);
    Some(said)
}

/// A server over memory, with its directory and its URI.
fn memory() -> (Server, tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let mut export = ExportInfo::new(0, "disk", SIZE as u64);
    export.description = "a disk in memory".into();
    (export.multi_conn, export.rotational) = (true, true);
    let server = Server::start(&path, Memory::new(export), Limits::default()).unwrap();
    let uri = format!("nbd+unix:///disk?socket={}", path.display());
    (server, dir, uri)
}

#[test]
fn nbdinfo_sees_the_export_as_it_is() {
    let (_server, _dir, uri) = memory();
    let Some(said) = tool("nbdinfo", &["--json", &uri]) else {
        return;
    };
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["protocol"], "newstyle-fixed");
    assert_eq!(said["structured"], true);
    let export = &said["exports"][0];
    assert_eq!(export["description"], "a disk in memory");
    for (key, value) in [("export-size", SIZE), ("block_size_minimum", 512), ("block_size_preferred", 4096)] {
        assert_eq!(export[key], value, "{key}");
    }
    for key in ["rotational", "multi_conn", "flush", "fua", "trim", "zero", "df"] {
        let key = format!("{}_{key}", if key == "rotational" { "is" } else { "can" });
        assert_eq!(export[&key], true, "{key}");
    }
    for key in ["is_read_only", "can_fast_zero", "can_cache"] {
        assert_eq!(export[key], false, "{key}");
    }
    assert!(tool("nbdinfo", &["--list", &uri.replace("/disk", "/")]).unwrap().contains("disk"));
}

#[test]
fn nbdcopy_over_four_connections_brings_back_what_it_put_there() {
    let (_server, dir, uri) = memory();
    let (there, back) = (dir.path().join("there"), dir.path().join("back"));
    let words = (0..SIZE as u64 / 8).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_be_bytes).collect();
    bytes[SIZE / 4..SIZE / 2].fill(0);
    fs::write(&there, &bytes).unwrap();
    let files = [&there, &back].map(|path| path.to_str().unwrap());
    for (from, to) in [(files[0], &*uri), (&*uri, files[1])] {
        if tool("nbdcopy", &["--connections=4", "--flush", from, to]).is_none() {
            return;
        }
    }
    assert!(fs::read(&back).unwrap() == bytes);
}

#[test]
fn qemu_io_reads_what_it_wrote_zeroed_and_discarded() {
    let (_server, _dir, uri) = memory();
    let script = "write -P 0xa5 1M 3M; write -f -P 0x5a 512 512; write -z 2M 64k; discard 3M 64k; \
        flush; aio_write -P 0x11 8M 1M; aio_write -P 0x22 9M 1M; aio_flush; read -P 0xa5 1M 1M; \
        read -P 0x5a 512 512; read -P 0 2M 64k; read -P 0 3M 64k; read -P 0x11 8M 1M; \
        read -P 0x22 9M 1M; write -P 0x33 0 40M; read -P 0x33 0 40M";
    let mut args = vec!["-f", "raw", &uri];
    script.split("; ").for_each(|line| args.extend(["-c", line]));
    let Some(said) = tool("qemu-io", &args) else {
        return;
    };
    assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
    assert_eq!(said.matches("bytes at offset").count(), 14, "{said}");
}

#[test]
fn fio_verifies_what_it_wrote_at_random() {
    let (_server, _dir, uri) = memory();
    if tool("fio", &["--enghelp"]).is_none_or(|engines| !engines.contains("nbd")) {
        return println!("skipped: no fio with an NBD engine");
    }
    let uri = format!("--uri={uri}");
    let common = ["--name=check", "--ioengine=nbd", &uri, "--rw=randwrite", "--size=64m"];
    let rest = ["--bsrange=512-64k", "--iodepth=32", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"];
    let said = tool("fio", &[&common[..], &rest[..]].concat()).unwrap();
    assert!(said.contains("err= 0"), "{said}");
    println!("{said}");
}
