//! A disk that can be told to answer nothing any more, or to fail.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use headpond_engine::io::{Request, RequestError, SECTOR};
use headpond_host::fuse::{Backend, Completion, Export, Options};

#[derive(Default)]
struct Memory {
    state: Mutex<State>,
    size: u64,
}

/// Bytes at each end of a disk that may answer while the rest does not: who looks what it is, asks there.
const ENDS: u64 = 1 << 20;

#[derive(Default, Clone, Copy)]
enum Silent {
    #[default]
    Nowhere,
    Inside,
    WhereRead,
    Everywhere,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    silent: Silent,
    dead: bool,
    /// What of it cannot be read, or written.
    bad: Vec<Range<u64>>,
    /// What is bad can be read again when all of it has been written.
    remaps: bool,
    fixed: Vec<Range<u64>>,
    waiting: Vec<(Request<Vec<u8>>, Completion)>,
}

impl State {
    fn is_kept_waiting(&self, request: &Request<Vec<u8>>) -> bool {
        let inside = ENDS..self.bytes.len() as u64 - ENDS;
        let is_inside = |sector: u64, bytes: u64| sector * SECTOR + bytes > inside.start && sector * SECTOR < inside.end;
        match (self.silent, request) {
            (Silent::Nowhere, _) => false,
            (Silent::WhereRead, _) => matches!(request, Request::Read { .. }),
            (Silent::Everywhere, _) | (Silent::Inside, Request::Flush | Request::OwnFlush) => true,
            (Silent::Inside, Request::Read { sector, sectors, .. }) => is_inside(*sector, u64::from(*sectors) * SECTOR),
            (Silent::Inside, Request::Write { sector, data, .. }) => is_inside(*sector, data.len() as u64),
            (Silent::Inside, Request::Discard { sector, sectors } | Request::WriteZeroes { sector, sectors, .. }) => {
                is_inside(*sector, sectors * SECTOR)
            }
        }
    }

    fn answer(&mut self, request: Request<Vec<u8>>, done: Completion) {
        let range = |sector: u64, bytes: u64| (sector * SECTOR) as usize..(sector * SECTOR + bytes) as usize;
        let meet = |places: &[Range<u64>], at: Range<usize>| {
            places.iter().any(|place| (place.start as usize) < at.end && at.start < place.end as usize)
        };
        match request {
            _ if self.dead => return done.finish(Err::<Vec<Vec<u8>>, _>(RequestError::Io)),
            Request::Read { sector, sectors, .. } if meet(&self.bad, range(sector, u64::from(sectors) * SECTOR)) => {
                return done.finish(Err::<Vec<Vec<u8>>, _>(RequestError::Io));
            }
            Request::Write { sector, ref data, .. } if meet(&self.fixed, range(sector, data.len() as u64)) => {
                return done.finish(Err::<Vec<Vec<u8>>, _>(RequestError::Io));
            }
            Request::Read { sector, sectors, .. } => {
                return done.finish(Ok(vec![self.bytes[range(sector, u64::from(sectors) * SECTOR)].to_vec()]));
            }
            Request::Write { sector, data, .. } => {
                let at = range(sector, data.len() as u64);
                self.bytes[at.clone()].copy_from_slice(&data);
                let is_covered = |bad: &Range<u64>| at.start <= bad.start as usize && bad.end as usize <= at.end;
                self.bad.retain(|bad| !self.remaps || !is_covered(bad));
            }
            Request::Discard { sector, sectors } | Request::WriteZeroes { sector, sectors, .. } => {
                self.bytes[range(sector, sectors * SECTOR)].fill(0);
            }
            Request::Flush | Request::OwnFlush => {}
        }
        done.finish(Ok(Vec::<Vec<u8>>::new()));
    }
}

impl Backend for Memory {
    type Buf = Vec<u8>;

    fn size(&self) -> u64 {
        self.size
    }

    fn buffer(&self, payload: &[u8]) -> Vec<u8> {
        payload.to_vec()
    }

    fn submit(&self, request: Request<Vec<u8>>, done: Completion) {
        let mut state = self.state.lock().unwrap();
        match state.is_kept_waiting(&request) {
            true => state.waiting.push((request, done)),
            false => state.answer(request, done),
        }
    }
}

/// A loop device over this process's memory.
pub struct Disk {
    memory: Arc<Memory>,
    export: Option<Export>,
}

impl Disk {
    /// `None`, and a word, where there can be none.
    pub fn new(folder: &Path, size: u64) -> Option<Disk> {
        let there = ["/dev/fuse", "/dev/loop-control"].iter().all(|path| Path::new(path).exists());
        if !rustix::process::geteuid().is_root() || !there {
            println!("skipped: it takes root, /dev/fuse and loop devices");
            return None;
        }
        let state = Mutex::new(State { bytes: vec![0; size as usize], ..State::default() });
        let memory = Arc::new(Memory { state, size });
        let export = Export::start(&Options::new(folder, "disk"), memory.clone()).unwrap();
        Some(Disk { memory, export: Some(export) })
    }

    pub fn path(&self) -> PathBuf {
        self.export.as_ref().unwrap().device()
    }

    /// What it is asked from now on waits.
    pub fn fall_silent(&self) {
        self.memory.state.lock().unwrap().silent = Silent::Everywhere;
    }

    /// The same of what is not at its ends.
    pub fn fall_silent_inside(&self) {
        self.memory.state.lock().unwrap().silent = Silent::Inside;
    }

    /// Reads wait from now on, and nothing else.
    pub fn fall_silent_where_read(&self) {
        self.memory.state.lock().unwrap().silent = Silent::WhereRead;
    }

    /// It fails whatever waits or comes, until it speaks again.
    pub fn die(&self) {
        self.answer_all(true);
    }

    /// Reads of these bytes fail from now on, and of no others.
    pub fn cannot_read(&self, bad: &[Range<u64>]) {
        let mut state = self.memory.state.lock().unwrap();
        (state.bad, state.remaps) = (bad.to_vec(), false);
    }

    /// The same, and whatever of these is written over as a whole can be read again: drives put such sectors elsewhere.
    pub fn cannot_read_until_written(&self, bad: &[Range<u64>]) {
        let mut state = self.memory.state.lock().unwrap();
        (state.bad, state.remaps) = (bad.to_vec(), true);
    }

    /// The same of writes.
    pub fn cannot_write(&self, fixed: &[Range<u64>]) {
        self.memory.state.lock().unwrap().fixed = fixed.to_vec();
    }

    /// Whether it owes anybody an answer.
    pub fn is_waited_for(&self) -> bool {
        !self.memory.state.lock().unwrap().waiting.is_empty()
    }

    /// It answers all that has waited, and what comes.
    pub fn speak(&self) {
        self.answer_all(false);
    }

    fn answer_all(&self, dead: bool) {
        let mut state = self.memory.state.lock().unwrap();
        (state.silent, state.dead) = (Silent::Nowhere, dead);
        for (request, done) in std::mem::take(&mut state.waiting) {
            state.answer(request, done);
        }
    }
}

impl Drop for Disk {
    /// Nobody is left waiting.
    fn drop(&mut self) {
        self.speak();
        drop(self.export.take());
    }
}
