//! A modelled drive: a file behind an NBD socket, as slow as a model says, with a volatile write cache and faults on command.

mod cache;

pub use self::cache::Cut;
use self::cache::{Cache, Content};
use crate::hammer::model::Dice;
use anyhow::{Context, Result};
use headpond_host::nbd::protocol::Errno;
use headpond_host::nbd::server::{Backend, Command, Completion, Limits, Server};
use headpond_host::nbd::session::ExportInfo;
use headpond_sim::models::rotating::RotatingParams;
use headpond_sim::models::ssd::SsdParams;
use headpond_sim::models::{Access, Kind, MILLISECOND, RotatingDisk, Ssd, TimingModel};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Unflushed data that a drive keeps at most, and in how many writes; more than that, the oldest goes to the medium by itself.
const CACHE: (u64, usize) = (64 << 20, 65_536);

/// How fast a drive is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speed {
    /// As fast as this machine.
    Instant,
    /// 12,000 requests and 500 MB a second; a flush takes a millisecond.
    Ssd,
    /// 7200 rpm, 200 MB/s, and whatever it does takes so many times longer.
    Rotating {
        /// One, or how many times.
        slower: u64,
    },
}

impl Speed {
    fn model(self) -> Option<Box<dyn TimingModel + Send>> {
        match self {
            Speed::Instant => None,
            Speed::Ssd => {
                let params = SsdParams { flush_ns: MILLISECOND, ..SsdParams::throttled(12_000, 500_000_000) };
                Some(Box::new(Ssd::new(&params)))
            }
            Speed::Rotating { .. } => Some(Box::new(RotatingDisk::new(RotatingParams::nearline_7200()))),
        }
    }

    fn slower(self) -> u64 {
        match self {
            Speed::Rotating { slower } => slower.max(1),
            Speed::Instant | Speed::Ssd => 1,
        }
    }
}

/// What is wrong with a drive.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Reads fail.
    pub reads: bool,
    /// Writes, trims and zeroes fail.
    pub writes: bool,
    /// Flushes fail.
    pub flushes: bool,
    /// Flushes are answered, and nothing is made durable.
    pub lying_flushes: bool,
    /// Writes are answered, and not done.
    pub lost_writes: bool,
    /// Of 256 reads so many fail, whichever they are: the same may succeed when it is asked again.
    pub flaky_reads: u8,
}

impl Faults {
    /// Whatever is asked of it fails.
    pub const ALL: Faults =
        Faults { reads: true, writes: true, flushes: true, lying_flushes: false, lost_writes: false, flaky_reads: 0 };
}

/// What a drive was asked, all its life.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes, trims and zeroes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Requests that were answered with an error.
    pub failed: u64,
}

/// A drive. Its medium stays when the machine goes.
pub struct Drive {
    /// What the guest finds it by.
    pub name: &'static str,
    speed: Speed,
    socket: PathBuf,
    back: Arc<Back>,
    server: Option<Server>,
    pacer: Option<JoinHandle<()>>,
}

impl Drive {
    /// A drive full of zeroes, its medium and its socket in `folder`.
    pub fn new(name: &'static str, bytes: u64, speed: Speed, folder: &Path) -> Result<Drive> {
        let path = folder.join(format!("{name}.drive"));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.with_context(|| format!("{} cannot be made", path.display()))?;
        file.set_len(bytes)?;
        let state = State {
            cache: Cache::new(file, CACHE.0, CACHE.1),
            model: None,
            on: false,
            held: HashMap::new(),
            next: 0,
            faults: Faults::default(),
            counts: Counts::default(),
            ending: false,
        };
        let back = Arc::new(Back {
            export: ExportInfo {
                rotational: matches!(speed, Speed::Rotating { .. }),
                multi_conn: true,
                ..ExportInfo::new(0, name, bytes)
            },
            state: Mutex::new(state),
            wake: Condvar::new(),
            begun: Instant::now(),
            slower: speed.slower(),
        });
        let paces = back.clone();
        let pacer = match speed {
            Speed::Instant => None,
            _ => Some(thread::Builder::new().name(format!("drive-{name}")).spawn(move || paces.pace())?),
        };
        Ok(Drive { name, speed, socket: folder.join(format!("{name}.nbd")), back, server: None, pacer })
    }

    /// Has its file's space set aside: none of it is a hole, which a file system would serve, and fill, at another speed.
    pub fn allocate(&self) -> Result<()> {
        let state = self.back.lock();
        let file = state.cache.medium();
        let allocate = |bytes| Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes)?);
        let allocated: io::Result<()> = file.metadata().and_then(|meta| allocate(meta.len()));
        allocated.with_context(|| format!("there is no space for drive {}", self.name))
    }

    /// Its socket, which is there while the power is on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The power comes on.
    pub fn power_on(&mut self) -> Result<()> {
        if self.server.is_none() {
            let mut state = self.back.lock();
            // The heads have parked, and the queue is empty.
            state.model = self.speed.model();
            state.on = true;
            drop(state);
            self.server = Some(Server::start(&self.socket, self.back.clone(), Limits::default())?);
        }
        Ok(())
    }

    /// The power fails: of what was not flushed, the dice say what is on the medium. A flush that was under way did nothing.
    pub fn power_cut(&mut self, dice: &mut Dice) -> Result<Cut> {
        let mut state = self.back.lock();
        state.on = false;
        let held = std::mem::take(&mut state.held);
        drop(state);
        // Answered to nobody: the server's threads end when these are gone.
        drop(held);
        self.disconnect();
        self.cut(dice)
    }

    /// Loses what the dice say of what was not flushed, and stays as it is otherwise.
    pub fn cut(&self, dice: &mut Dice) -> Result<Cut> {
        let cut = self.back.lock().cache.cut(dice);
        cut.with_context(|| format!("the medium of drive {} cannot be written", self.name))
    }

    fn disconnect(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown(Duration::from_secs(20));
        }
    }

    /// From now on this is wrong with it.
    pub fn set_faults(&self, faults: Faults) {
        self.back.lock().faults = faults;
    }

    /// What it was asked so far.
    pub fn counts(&self) -> Counts {
        self.back.lock().counts
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.disconnect();
        self.back.lock().ending = true;
        self.back.wake.notify_all();
        if let Some(pacer) = self.pacer.take() {
            let _ = pacer.join();
        }
    }
}

type Answer = Result<Vec<Vec<u8>>, Errno>;

/// A request that was done, and waits until the model says so.
struct Held {
    done: Completion<Vec<u8>>,
    answer: Answer,
    /// A flush makes the changes below this number durable, when its time is over and not before.
    flushes: Option<u64>,
}

struct State {
    cache: Cache<File>,
    model: Option<Box<dyn TimingModel + Send>>,
    /// There is power: requests are begun.
    on: bool,
    held: HashMap<u64, Held>,
    next: u64,
    faults: Faults,
    counts: Counts,
    ending: bool,
}

impl State {
    fn finish(&mut self, mut held: Held, drive: &str) {
        if let Some(below) = held.flushes
            && !self.faults.lying_flushes
            && let Err(error) = self.cache.flush(below)
        {
            held.answer = refused(drive, &error);
        }
        if held.answer.is_err() {
            self.counts.failed += 1;
        }
        held.done.finish(held.answer);
    }

    /// Does a command, as far as it shows at once.
    fn apply(&mut self, command: Command<Vec<u8>>, drive: &str) -> (Answer, Option<u64>) {
        let faults = self.faults;
        let failed = match command {
            Command::Read { .. } => faults.reads || Dice(self.counts.reads).below(256) < u64::from(faults.flaky_reads),
            Command::Flush => faults.flushes,
            _ => faults.writes,
        };
        match command {
            Command::Read { .. } => self.counts.reads += 1,
            Command::Flush => self.counts.flushes += 1,
            _ => self.counts.writes += 1,
        }
        if failed {
            return (Err(Errno::Io), None);
        }
        let result = match command {
            Command::Read { offset, len } => {
                return (
                    self.cache.read(offset, len.into()).map(|data| vec![data]).or_else(|error| refused(drive, &error)),
                    None,
                );
            }
            Command::Flush => return (Ok(Vec::new()), Some(self.cache.next())),
            _ if faults.lost_writes => Ok(()),
            Command::Write { offset, data, fua } => self.cache.write(offset, Content::Data(data), fua && !faults.lying_flushes),
            // What is read after a trim is not promised; zeroes are what most drives give.
            Command::Trim { offset, len, fua } | Command::WriteZeroes { offset, len, fua } => {
                self.cache.write(offset, Content::Zeroes(len.into()), fua && !faults.lying_flushes)
            }
        };
        (result.map(|()| Vec::new()).or_else(|error| refused(drive, &error)), None)
    }
}

/// The file behind a drive failed, which is no part of any test.
fn refused(drive: &str, error: &io::Error) -> Answer {
    eprintln!("the file of drive {drive} cannot be used: {error}; is there space?");
    Err(Errno::Io)
}

/// What the server's threads see of a drive.
struct Back {
    export: ExportInfo,
    state: Mutex<State>,
    wake: Condvar,
    begun: Instant,
    /// How many times slower than the clock the model's time goes.
    slower: u64,
}

impl Back {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the model's time.
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64 / self.slower
    }

    /// Lets requests go when their time has come.
    fn pace(&self) {
        let mut done = Vec::new();
        let mut state = self.lock();
        while !state.ending {
            let now = self.now();
            let next = state.model.as_ref().and_then(|model| model.next_completion());
            state = match next {
                Some(next) if next > now => {
                    let wait = Duration::from_nanos((next - now) * self.slower);
                    self.wake.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    if let Some(model) = &mut state.model {
                        model.advance(now, &mut done);
                    }
                    for id in done.drain(..) {
                        if let Some(held) = state.held.remove(&id) {
                            state.finish(held, &self.export.name);
                        }
                    }
                    state
                }
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Backend for Back {
    type Space = Vec<u8>;
    type Data = Vec<u8>;

    fn exports(&self) -> Vec<ExportInfo> {
        vec![self.export.clone()]
    }

    fn alloc(&self, len: usize) -> Vec<u8> {
        vec![0; len]
    }

    fn submit(&self, _: usize, command: Command<Vec<u8>>, done: Completion<Vec<u8>>) {
        let access = match &command {
            Command::Read { offset, len } => Access::read(*offset, u64::from(*len)),
            Command::Write { offset, data, fua: true } => Access::write_through(*offset, data.len() as u64),
            Command::Write { offset, data, .. } => Access::write(*offset, data.len() as u64),
            Command::Flush => Access::flush(),
            Command::Trim { offset, len, .. } => Access { kind: Kind::Discard, offset: *offset, len: u64::from(*len) },
            Command::WriteZeroes { offset, len, .. } => Access { kind: Kind::WriteZeroes, offset: *offset, len: u64::from(*len) },
        };
        let mut state = self.lock();
        if !state.on {
            // Dropped, like all that was on its way when the power failed.
            return;
        }
        let (answer, flushes) = state.apply(command, &self.export.name);
        let held = Held { done, answer, flushes };
        if state.model.is_none() {
            return state.finish(held, &self.export.name);
        }
        let (id, now) = (state.next, self.now());
        state.next += 1;
        state.held.insert(id, held);
        if let Some(model) = &mut state.model {
            model.submit(now, id, access);
        }
        self.wake.notify_all();
    }
}

#[cfg(test)]
#[path = "drive/drive_tests.rs"]
mod tests;
