//! Where a load goes: a volume over NBD, or a file (on a mounted file system, or a device itself).

use anyhow::{Context, Result, bail};
use headpond_engine::io::Buf;
use headpond_host::buf::HostBuf;
use headpond_host::nbd::client::{Client, Request};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A server that is silent for this long is dead. Longer than any destage that a request may wait for.
const SILENCE: Duration = Duration::from_secs(120);

/// The end of a request.
pub struct Done {
    /// Its name.
    pub cookie: u64,
    /// The data of a read, or nothing; or what went wrong.
    pub result: Result<Vec<u8>, String>,
}

/// Takes requests, many at a time.
pub trait Target: Send {
    /// Begins to write these bytes, and names the request.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<u64>;
    /// Begins to read.
    fn read(&mut self, offset: u64, len: u32) -> Result<u64>;
    /// Begins to make durable all that has ended.
    fn flush(&mut self) -> Result<u64>;
    /// Waits for the request that ends next; `None` if there is none.
    fn next(&mut self) -> Result<Option<Done>>;
}

/// How to get to the target, again and again: it goes away when the daemon dies.
#[derive(Clone, Debug)]
pub enum Place {
    /// An export of an NBD server.
    Nbd {
        /// The server's socket.
        socket: PathBuf,
        /// The volume.
        export: String,
    },
    /// A file or a device.
    File {
        /// Its path.
        path: PathBuf,
        /// The most requests that it will have at a time.
        depth: usize,
    },
}

impl Place {
    /// Connects or opens; waits a while for a server that is being started.
    pub fn open(&self, patience: Duration) -> Result<Box<dyn Target>> {
        match self {
            Place::Nbd { socket, export } => Ok(Box::new(Nbd(Client::connect_within(socket, export, SILENCE, patience)?))),
            Place::File { path, depth } => Ok(Box::new(DirectFile::open(path, *depth)?)),
        }
    }
}

struct Nbd(Client);

impl Target for Nbd {
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<u64> {
        Ok(self.0.begin(Request::Write { offset, data, fua: false })?)
    }
    fn read(&mut self, offset: u64, len: u32) -> Result<u64> {
        Ok(self.0.begin(Request::Read { offset, len })?)
    }
    fn flush(&mut self) -> Result<u64> {
        Ok(self.0.begin(Request::Flush)?)
    }
    fn next(&mut self) -> Result<Option<Done>> {
        let done = self.0.next()?;
        Ok(done.map(|done| Done { cookie: done.cookie, result: done.result.map_err(|n| format!("error {n}")) }))
    }
}

/// What a thread of a file is to do.
enum Job {
    Write(u64, HostBuf),
    Read(u64, u32),
    Flush,
}

/// A file without the page cache, with a thread for each request that may be outstanding.
struct DirectFile {
    jobs: Option<Sender<(u64, Job)>>,
    ends: Receiver<Done>,
    threads: Vec<thread::JoinHandle<()>>,
    outstanding: usize,
    next: u64,
}

impl DirectFile {
    fn open(path: &Path, depth: usize) -> Result<DirectFile> {
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let file = Arc::new(opened.with_context(|| format!("cannot open {}", path.display()))?);
        let (jobs, queue) = mpsc::channel();
        let (ended, ends) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..depth.max(1))
            .map(|_| {
                let (file, queue, ended) = (file.clone(), queue.clone(), ended.clone());
                thread::spawn(move || work(&file, &queue, &ended))
            })
            .collect();
        Ok(DirectFile { jobs: Some(jobs), ends, threads, outstanding: 0, next: 0 })
    }

    fn begin(&mut self, job: Job) -> Result<u64> {
        let cookie = self.next;
        self.next += 1;
        match self.jobs.as_ref().map(|jobs| jobs.send((cookie, job))) {
            Some(Ok(())) => self.outstanding += 1,
            _ => bail!("the threads of a file are gone"),
        }
        Ok(cookie)
    }
}

impl Target for DirectFile {
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<u64> {
        self.begin(Job::Write(offset, HostBuf::from_bytes(data)))
    }
    fn read(&mut self, offset: u64, len: u32) -> Result<u64> {
        self.begin(Job::Read(offset, len))
    }
    fn flush(&mut self) -> Result<u64> {
        self.begin(Job::Flush)
    }
    fn next(&mut self) -> Result<Option<Done>> {
        if self.outstanding == 0 {
            return Ok(None);
        }
        self.outstanding -= 1;
        Ok(Some(self.ends.recv().context("the threads of a file are gone")?))
    }
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // One that panicked has said so itself.
            let _ = thread.join();
        }
    }
}

fn work(file: &File, queue: &Mutex<Receiver<(u64, Job)>>, ended: &Sender<Done>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((cookie, job)) = job else { return };
        let result = match job {
            Job::Write(offset, data) => file.write_all_at(data.as_slice(), offset).map(|()| Vec::new()),
            Job::Flush => file.sync_data().map(|()| Vec::new()),
            Job::Read(offset, len) => HostBuf::try_filled_by(len as usize, |bytes| file.read_exact_at(bytes, offset))
                .map(|data| data.as_slice().to_vec()),
        };
        if ended.send(Done { cookie, result: result.map_err(|error| error.to_string()) }).is_err() {
            return;
        }
    }
}
