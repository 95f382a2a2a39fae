//! A disk that can be told to answer nothing any more.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use headpond_engine::io::{Request, SECTOR};
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
    Everywhere,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    silent: Silent,
    waiting: Vec<(Request<Vec<u8>>, Completion)>,
}

impl State {
    fn is_kept_waiting(&self, request: &Request<Vec<u8>>) -> bool {
        let inside = ENDS..self.bytes.len() as u64 - ENDS;
        let is_inside = |sector: u64, bytes: u64| sector * SECTOR + bytes > inside.start && sector * SECTOR < inside.end;
        match (self.silent, request) {
            (Silent::Nowhere, _) => false,
            (Silent::Everywhere, _) | (Silent::Inside, Request::Flush) => true,
            (Silent::Inside, Request::Read { sector, sectors, .. }) => is_inside(*sector, u64::from(*sectors) * SECTOR),
            (Silent::Inside, Request::Write { sector, data, .. }) => is_inside(*sector, data.len() as u64),
            (Silent::Inside, Request::Discard { sector, sectors } | Request::WriteZeroes { sector, sectors, .. }) => {
                is_inside(*sector, sectors * SECTOR)
            }
        }
    }

    fn answer(&mut self, request: Request<Vec<u8>>, done: Completion) {
        let range = |sector: u64, bytes: u64| (sector * SECTOR) as usize..(sector * SECTOR + bytes) as usize;
        match request {
            Request::Read { sector, sectors, .. } => {
                return done.finish(Ok(vec![self.bytes[range(sector, u64::from(sectors) * SECTOR)].to_vec()]));
            }
            Request::Write { sector, data, .. } => self.bytes[range(sector, data.len() as u64)].copy_from_slice(&data),
            Request::Discard { sector, sectors } | Request::WriteZeroes { sector, sectors, .. } => {
                self.bytes[range(sector, sectors * SECTOR)].fill(0);
            }
            Request::Flush => {}
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

    /// It answers all that has waited, and what comes.
    pub fn speak(&self) {
        let mut state = self.memory.state.lock().unwrap();
        state.silent = Silent::Nowhere;
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
