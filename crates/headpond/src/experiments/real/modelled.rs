//! A modelled device: memory behind a loop device over FUSE, as slow as a model says, in real time.

use anyhow::{Context, Result, bail};
use headpond_engine::io::{Request, RequestError, SECTOR};
use headpond_host::fuse::{Backend, Completion, Export, Options};
use headpond_sim::models::rotating::RotatingParams;
use headpond_sim::models::ssd::SsdParams;
use headpond_sim::models::{Access, Kind, MILLISECOND, RotatingDisk, Ssd, TimingModel};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What a device is a model of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// A rotating disk, of which the first so many bytes are there: nearline, 7200 rpm, 8 TiB.
    Disk,
    /// An SSD behind a limit: 12,000 requests and 500 MB a second, a flush takes a millisecond.
    Ssd,
    /// The same with power-loss protection, as those for servers have it: a flush takes a tenth of that.
    Protected,
}

/// The SSD.
pub fn ssd() -> SsdParams {
    SsdParams { flush_ns: MILLISECOND, ..SsdParams::throttled(12_000, 500_000_000) }
}

/// The one with power-loss protection.
pub fn protected() -> SsdParams {
    SsdParams { flush_ns: MILLISECOND / 10, ..ssd() }
}

/// A device that is wanted: `NAME=disk:BYTES`, `NAME=ssd:BYTES` or `NAME=protected:BYTES`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// What it is a model of.
    pub kind: Model,
    /// Its size.
    pub bytes: u64,
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            Model::Disk => "disk",
            Model::Ssd => "ssd",
            Model::Protected => "protected",
        };
        write!(f, "{}={kind}:{}", self.name, self.bytes)
    }
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        let parsed = text.split_once('=').and_then(|(name, rest)| {
            let (kind, bytes) = rest.split_once(':')?;
            let kind = match kind {
                "disk" => Model::Disk,
                "ssd" => Model::Ssd,
                "protected" => Model::Protected,
                _ => return None,
            };
            Some(Wanted { name: name.to_owned(), kind, bytes: bytes.parse().ok()? })
        });
        parsed.ok_or_else(|| "give NAME=disk:BYTES, NAME=ssd:BYTES or NAME=protected:BYTES".into())
    }
}

/// Makes the device, with what the kernel needs of it in `folder`. It goes when what is returned is dropped.
pub fn serve(wanted: &Wanted, folder: &Path) -> Result<Export> {
    if wanted.bytes == 0 || !wanted.bytes.is_multiple_of(4096) {
        bail!("{} bytes are no number of blocks of 4 KiB. Give another size", wanted.bytes);
    }
    // Nothing is left of it when this process ends, however it ends.
    let memory = File::from(memfd_create(&*wanted.name, MemfdFlags::CLOEXEC).context("no memory can be had for a device")?);
    memory.set_len(wanted.bytes)?;
    let model: Box<dyn TimingModel + Send> = match wanted.kind {
        Model::Disk => Box::new(RotatingDisk::new(RotatingParams::nearline_7200())),
        Model::Ssd => Box::new(Ssd::new(&ssd())),
        Model::Protected => Box::new(Ssd::new(&protected())),
    };
    let paced = Arc::new(Paced {
        memory,
        bytes: wanted.bytes,
        begun: Instant::now(),
        state: Mutex::new(State { model, held: HashMap::new(), next: 0 }),
        wake: Condvar::new(),
    });
    let pacer = paced.clone();
    // It has no end of its own: it goes with the process.
    thread::Builder::new().name(format!("pace-{}", wanted.name)).spawn(move || pacer.pace())?;
    let options = Options { rotational: wanted.kind == Model::Disk, ..Options::new(folder.join(&wanted.name), &*wanted.name) };
    Ok(Export::start(&options, paced)?)
}

/// What a request came to, and who waits for it.
struct Held {
    done: Completion,
    reply: Result<Vec<Vec<u8>>, RequestError>,
}

struct State {
    model: Box<dyn TimingModel + Send>,
    /// Done, and not to be told before the model says so.
    held: HashMap<u64, Held>,
    next: u64,
}

struct Paced {
    memory: File,
    bytes: u64,
    begun: Instant,
    state: Mutex<State>,
    wake: Condvar,
}

impl Paced {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers requests when their time has come.
    fn pace(&self) {
        headpond_host::fuse::mark_io_flusher();
        let mut ended = Vec::new();
        let mut state = self.lock();
        loop {
            let now = self.now();
            state = match state.model.next_completion() {
                Some(next) if next > now => {
                    let wait = Duration::from_nanos(next - now);
                    self.wake.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(_) => {
                    state.model.advance(now, &mut ended);
                    let due: Vec<Held> = ended.drain(..).filter_map(|id| state.held.remove(&id)).collect();
                    // The kernel copies the data of a read while it takes the answer: nobody else should wait for that.
                    drop(state);
                    due.into_iter().for_each(|it| it.done.finish(it.reply));
                    self.lock()
                }
            };
        }
    }

    /// Does what is asked, at the memory's own speed.
    fn apply(&self, request: &Request<Vec<u8>>) -> Result<Vec<Vec<u8>>, RequestError> {
        let empty = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let done = match request {
            Request::Read { sector, sectors, .. } => {
                let mut data = vec![0; *sectors as usize * SECTOR as usize];
                self.memory.read_exact_at(&mut data, sector * SECTOR).map(|()| vec![data])
            }
            Request::Write { sector, data, .. } => self.memory.write_all_at(data, sector * SECTOR).map(|()| Vec::new()),
            Request::Flush | Request::OwnFlush => Ok(Vec::new()),
            Request::Discard { sector, sectors } | Request::WriteZeroes { sector, sectors, .. } => {
                let freed = fallocate(&self.memory, empty, sector * SECTOR, sectors * SECTOR);
                freed.map(|()| Vec::new()).map_err(Into::into)
            }
        };
        done.map_err(|_| RequestError::Io)
    }
}

impl Backend for Paced {
    type Buf = Vec<u8>;

    fn size(&self) -> u64 {
        self.bytes
    }

    fn buffer(&self, payload: &[u8]) -> Vec<u8> {
        payload.to_vec()
    }

    fn submit(&self, request: Request<Vec<u8>>, done: Completion) {
        let at = |sector: u64, sectors: u64, kind| Access { kind, offset: sector * SECTOR, len: sectors * SECTOR };
        let access = match &request {
            Request::Read { sector, sectors, .. } => at(*sector, u64::from(*sectors), Kind::Read),
            Request::Write { sector, data, fua: true } => Access::write_through(sector * SECTOR, data.len() as u64),
            Request::Write { sector, data, .. } => Access::write(sector * SECTOR, data.len() as u64),
            Request::Flush | Request::OwnFlush => Access::flush(),
            Request::Discard { sector, sectors } => at(*sector, *sectors, Kind::Discard),
            Request::WriteZeroes { sector, sectors, .. } => at(*sector, *sectors, Kind::WriteZeroes),
        };
        let reply = self.apply(&request);
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.held.insert(id, Held { done, reply });
        // Under the lock: the model's time never goes back.
        let now = self.now();
        state.model.submit(now, id, access);
        drop(state);
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_as_it_is_shown() {
        for text in ["a=disk:8192", "ssd-0=ssd:1048576", "b=protected:4096"] {
            assert_eq!(text.parse::<Wanted>().unwrap().to_string(), text);
        }
        for text in ["a", "a=tape:1", "a=disk:much", "=:"] {
            assert!(text.parse::<Wanted>().is_err(), "{text}");
        }
    }
}
