//! A block device that clients' requests go to, past the page cache, by the clock on the wall.

use anyhow::{Context, Result};
use headpond_host::buf::HostBuf;
use headpond_sim::models::MILLISECOND;
use headpond_sim::target::{Answer, Ask, Target};
use headpond_sim::world::Violation;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What is said where somebody wants it to end.
const STOPPED: &str = "interrupted";
/// More requests than these are not given to the kernel at once: the others wait for their turn, on all ways alike.
const MOST: u32 = 128;
/// How often it is looked whether somebody wants it to end, in nanoseconds.
const LOOK: u64 = 100 * MILLISECOND;
/// Bytes of the longest request.
const LONGEST: usize = 8 << 20;

struct Ended {
    id: u64,
    took_ns: u64,
    error: Option<String>,
}

/// The device, with a thread for each request that it may have.
pub struct Device<'a> {
    begun: Instant,
    jobs: Option<Sender<(u64, Instant, Ask)>>,
    ends: Receiver<Ended>,
    threads: Vec<thread::JoinHandle<()>>,
    answers: Vec<Answer>,
    next: u64,
    failed: Option<String>,
    stop: &'a AtomicBool,
}

impl<'a> Device<'a> {
    /// Opens it for up to `depth` requests at once.
    pub fn open(path: &Path, depth: u32, stop: &'a AtomicBool) -> Result<Device<'a>> {
        let opened = OpenOptions::new().read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        let file = Arc::new(opened.with_context(|| format!("{} cannot be opened", path.display()))?);
        let (jobs, queue) = mpsc::channel();
        let (ended, ends) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..depth.clamp(1, MOST)).map(|_| {
            let (file, queue, ended) = (file.clone(), queue.clone(), ended.clone());
            thread::spawn(move || work(&file, &queue, &ended))
        });
        let threads = threads.collect();
        let (begun, answers) = (Instant::now(), Vec::new());
        Ok(Device { begun, jobs: Some(jobs), ends, threads, answers, next: 0, failed: None, stop })
    }

    /// What went wrong first, if anything did.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    fn take(&mut self, ended: Ended) {
        self.answers.push(Answer { id: ended.id, took_ns: ended.took_ns, failed: ended.error.is_some() });
        self.failed = self.failed.take().or(ended.error);
    }
}

impl Target for Device<'_> {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn send(&mut self, _: u16, ask: Ask) -> u64 {
        let id = self.next;
        self.next += 1;
        // The threads are there as long as this is.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send((id, Instant::now(), ask)));
        id
    }

    fn step(&mut self, limit: u64) -> Result<bool, Violation> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Violation(STOPPED.into()));
        }
        let wait = limit.saturating_sub(self.now()).min(LOOK);
        match self.ends.recv_timeout(Duration::from_nanos(wait)) {
            Ok(ended) => self.take(ended),
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => return Err(Violation("the threads that ask are gone".into())),
        }
        while let Ok(ended) = self.ends.try_recv() {
            self.take(ended);
        }
        Ok(true)
    }

    fn answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // One that panicked has said so itself.
            let _ = thread.join();
        }
    }
}

fn work(file: &File, queue: &Mutex<Receiver<(u64, Instant, Ask)>>, ended: &Sender<Ended>) {
    // What is written need not be anything; it is no zeroes, which a device may deal with in another way.
    let mut buffer = HostBuf::filled_by(0, |_| ());
    let room = |buffer: &mut HostBuf, bytes: usize| {
        if buffer.as_slice().len() < bytes {
            *buffer = HostBuf::filled_by(bytes.next_power_of_two().min(LONGEST), |it| it.fill(0x5a));
        }
    };
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((id, begun, ask)) = job else { return };
        let done = match ask {
            Ask::Write { sector, sectors } => {
                room(&mut buffer, sectors as usize * 512);
                file.write_all_at(&buffer.as_slice()[..sectors as usize * 512], sector * 512)
            }
            Ask::Read { sector, sectors } => {
                room(&mut buffer, sectors as usize * 512);
                match buffer.get_mut() {
                    Some(bytes) => file.read_exact_at(&mut bytes[..sectors as usize * 512], sector * 512),
                    None => Err(std::io::ErrorKind::ResourceBusy.into()),
                }
            }
            Ask::Flush => file.sync_data(),
        };
        let took_ns = begun.elapsed().as_nanos() as u64;
        if ended.send(Ended { id, took_ns, error: done.err().map(|error| error.to_string()) }).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_answered_once_and_what_fails_is_said() {
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let stop = AtomicBool::new(false);
        let mut device = Device::open(file.path(), 4, &stop).unwrap();
        let asked = [
            Ask::Write { sector: 8, sectors: 16 },
            Ask::Read { sector: 8, sectors: 8 },
            Ask::Flush,
            // Beyond the end.
            Ask::Read { sector: 4096, sectors: 8 },
        ];
        let sent: Vec<u64> = asked.iter().map(|ask| device.send(0, *ask)).collect();
        let mut all = Vec::new();
        while all.len() < sent.len() {
            device.step(u64::MAX).unwrap();
            all.extend(device.answers());
        }
        all.sort_by_key(|a| a.id);
        assert_eq!(all.iter().map(|a| (a.id, a.failed)).collect::<Vec<_>>(), [(0, false), (1, false), (2, false), (3, true)]);
        assert!(device.failed().is_some());
        stop.store(true, Ordering::Relaxed);
        assert!(device.step(u64::MAX).is_err_and(|why| why.0 == STOPPED));
    }
}
