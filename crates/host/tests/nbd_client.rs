//! The NBD client against the server over memory, and against servers that misbehave.

use headpond_host::nbd::client::{Client, ClientError, MAX_OUTSTANDING, Request};
use headpond_host::nbd::server::{Backend, Command, Completion, Limits, Server};
use headpond_host::nbd::session::ExportInfo;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const SIZE: u64 = 16 << 20;
const SILENCE: Duration = Duration::from_secs(60);

type Job = (Command<Vec<u8>>, Completion<Vec<u8>>);

/// A disk in memory that answers last come, first served. Writes to its last block are dropped unanswered: they fail.
struct Memory(Mutex<Sender<Job>>);

impl Memory {
    fn new() -> Arc<Memory> {
        let (work, jobs) = mpsc::channel::<Job>();
        let mut disk = vec![0; SIZE as usize];
        thread::spawn(move || {
            while let Ok(job) = jobs.recv() {
                let mut batch = vec![job];
                batch.extend(jobs.try_iter());
                for (command, done) in batch.into_iter().rev() {
                    let range = |offset: u64, len: usize| offset as usize..offset as usize + len;
                    match command {
                        Command::Read { offset, len } => {
                            done.finish(Ok(disk[range(offset, len as usize)].chunks(3 * 512).map(<[u8]>::to_vec).collect()));
                        }
                        Command::Write { offset, .. } if offset >= SIZE - 4096 => drop(done),
                        Command::Write { offset, data, .. } => {
                            disk[range(offset, data.len())].copy_from_slice(&data);
                            done.finish(Ok(Vec::new()));
                        }
                        Command::Trim { offset, len, .. } | Command::WriteZeroes { offset, len, .. } => {
                            disk[range(offset, len as usize)].fill(0);
                            done.finish(Ok(Vec::new()));
                        }
                        Command::Flush => done.finish(Ok(Vec::new())),
                    }
                }
            }
        });
        Arc::new(Memory(Mutex::new(work)))
    }
}

impl Backend for Memory {
    type Space = Vec<u8>;
    type Data = Vec<u8>;
    fn exports(&self) -> Vec<ExportInfo> {
        let mut info = ExportInfo::new(0, "disk", SIZE);
        info.max_request = 8 << 20;
        vec![info]
    }
    fn alloc(&self, len: usize) -> Vec<u8> {
        vec![0; len]
    }
    fn submit(&self, _: usize, command: Command<Vec<u8>>, done: Completion<Vec<u8>>) {
        self.0.lock().unwrap().send((command, done)).unwrap();
    }
}

fn serving() -> (Server, PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    (Server::start(&path, Memory::new(), Limits::default()).unwrap(), path, dir)
}

#[test]
fn many_requests_are_outstanding_and_each_gets_its_own_answer() {
    let (_server, path, _dir) = serving();
    let mut client = Client::connect(&path, "disk", SILENCE).unwrap();
    assert_eq!((client.export().size, client.export().min_block, client.export().max_request), (SIZE, 512, 8 << 20));
    for n in 0..1024u64 {
        client.begin(Request::Write { offset: n * 4096, data: &[n as u8; 4096], fua: n % 7 == 0 }).unwrap();
    }
    assert!(client.outstanding() > MAX_OUTSTANDING, "what is finished and not asked for waits here");
    while let Some(done) = client.next().unwrap() {
        done.result.unwrap();
    }
    let mut reads = HashMap::new();
    let check = |client: &mut Client, most: usize, reads: &mut HashMap<u64, u64>| {
        while client.outstanding() > most {
            let done = client.next().unwrap().unwrap();
            let n = reads.remove(&done.cookie).unwrap();
            assert_eq!(done.result.unwrap(), [n as u8; 4096]);
        }
    };
    for n in 0..1024u64 {
        reads.insert(client.begin(Request::Read { offset: n * 4096, len: 4096 }).unwrap(), n);
        check(&mut client, 31, &mut reads);
    }
    check(&mut client, 0, &mut reads);
    assert!(reads.is_empty() && client.next().unwrap().is_none());
    client.disconnect().unwrap();
}

#[test]
fn long_writes_and_long_reads_at_once_do_not_wait_for_each_other() {
    let (_server, path, _dir) = serving();
    let mut client = Client::connect(&path, "disk", SILENCE).unwrap();
    let data = vec![0x5a; 8 << 20];
    for _ in 0..8 {
        client.begin(Request::Read { offset: 8 << 20, len: 8 << 20 }).unwrap();
        client.begin(Request::Write { offset: 0, data: &data, fua: false }).unwrap();
    }
    let mut bytes = 0;
    while let Some(done) = client.next().unwrap() {
        bytes += done.result.unwrap().len();
    }
    assert_eq!(bytes, 64 << 20);
    assert_eq!(client.call(Request::Read { offset: 0, len: 8 << 20 }).unwrap(), data);
}

#[test]
fn errors_are_told_per_request_and_nonsense_is_not_sent() {
    let (_server, path, _dir) = serving();
    let mut client = Client::connect(&path, "disk", SILENCE).unwrap();
    let failed = client.call(Request::Write { offset: SIZE - 4096, data: &[0; 4096], fua: false });
    assert!(matches!(failed, Err(ClientError::Failed(5))), "{failed:?}");
    for request in [
        Request::Read { offset: SIZE, len: 512 },
        Request::Read { offset: u64::MAX, len: 512 },
        Request::Read { offset: 0, len: 0 },
        Request::Read { offset: 0, len: 9 << 20 },
        Request::Read { offset: 256, len: 512 },
    ] {
        assert!(matches!(client.begin(request), Err(ClientError::Invalid(_))), "{request:?}");
    }
    client.call(Request::Write { offset: 512, data: &[1; 1024], fua: true }).unwrap();
    client.call(Request::WriteZeroes { offset: 512, len: 512 }).unwrap();
    client.call(Request::Trim { offset: 4096, len: 4096 }).unwrap();
    client.call(Request::Flush).unwrap();
    assert_eq!(client.call(Request::Read { offset: 512, len: 1024 }).unwrap(), [[0; 512], [1; 512]].concat());
    let unknown = Client::connect(&path, "other", SILENCE).err().unwrap();
    assert!(matches!(unknown, ClientError::NoSuchExport(_)), "{unknown:?}");
}

#[test]
fn a_server_that_goes_is_noticed_and_one_that_comes_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    assert!(matches!(Client::connect(&path, "disk", SILENCE), Err(ClientError::Connect(..))));
    let (starts, later) = (path.clone(), thread::spawn(|| thread::sleep(Duration::from_millis(100))));
    let starting = thread::spawn(move || {
        later.join().unwrap();
        Server::start(&starts, Memory::new(), Limits::default()).unwrap()
    });
    let mut client = Client::connect_within(&path, "disk", SILENCE, SILENCE).unwrap();
    client.call(Request::Flush).unwrap();
    starting.join().unwrap().shutdown(SILENCE);
    assert!(matches!(client.call(Request::Flush), Err(ClientError::Closed)));
}

/// A server that shakes hands as it should, then answers the first request with these bytes.
fn answering(answer: Vec<u8>) -> (PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
        stream.read_exact(&mut [0; 4 + 16 + 4 + 1 + 4]).unwrap();
        let reply = |kind: u8, data: &[u8]| {
            [b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0", &[kind][..], &(data.len() as u32).to_be_bytes(), data].concat()
        };
        stream.write_all(&reply(3, b"\0\0\0\0\0\0\0\x10\0\0\0\x01")).unwrap();
        stream.write_all(&reply(1, b"")).unwrap();
        stream.read_exact(&mut [0; 28]).unwrap();
        stream.write_all(&answer).unwrap();
        // Until the client leaves.
        let _ = stream.read(&mut [0]);
    });
    (path, dir)
}

#[test]
fn a_server_that_misbehaves_is_left() {
    let wrong_magic = b"\x67\x44\x66\x99\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    let wrong_cookie = b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x01".to_vec();
    for answer in [wrong_magic, wrong_cookie] {
        let (path, _dir) = answering(answer);
        let mut client = Client::connect(&path, "x", SILENCE).unwrap();
        assert!(matches!(client.call(Request::Flush), Err(ClientError::Protocol(_))));
    }
    let (path, _dir) = answering(Vec::new());
    let mut client = Client::connect(&path, "x", Duration::from_secs(10)).unwrap();
    assert!(matches!(client.call(Request::Flush), Err(ClientError::Silent(_))));
}
