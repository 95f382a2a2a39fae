//! A pool inside one's own program: blocking calls, from as many threads as one likes, and no daemon beside it.
//!
//! It is the daemon's own machinery without front ends and control socket: devices are claimed in the same way, so a pool
//! is served by one process at a time; the state folder holds the witness, where devices were last, and the events; the
//! weekly scrub goes on. `docs/LIBRARY.md` says how to use it, and what is promised.
//!
//! One thread of the pool's own does all I/O. A bug of the engine ends the whole process, by `abort`: what was
//! acknowledged is found again by the next [`Pool::open`], as after a power cut.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use headpond_engine::Settings;
use headpond_engine::io::{Buf, Request, RequestError, SECTOR};
pub use headpond_format::Mode;
use serde_json::Value;

use crate::backing::Spec;
use crate::buf::HostBuf;
use crate::control::{Attach, Call, CreateVolume, Fault};
use crate::daemon::inside::{self, Inside};
use crate::daemon::{self, Daemon, Scrubs, StartError};
use crate::lock::lock;
use crate::pool::{self, NewPool, PoolError};
use crate::report::Report;
use crate::state::State;

mod gate;
mod turn;

use gate::{Closed, Gate};
use turn::Turn;

/// Bytes of one request to the engine; longer reads and writes are several, one after the other.
const MOST: usize = 4 << 20;

/// How long a device may be held by somebody else at [`Pool::open`]: a process that was killed may still be writing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a call did not do what it should. Every message says what became of the data, and what to do next.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("The state folder {path} cannot be used: {source}. Nothing was changed. Name another one")]
    Folder { path: PathBuf, source: io::Error },
    #[error(
        "{path} is not UTF-8 text, and a pool knows a backing device by its path as text. Nothing was changed. Name it by another path, such as \
         that of a link to it"
    )]
    NotText { path: PathBuf },
    #[error("The pool is closed. What was acknowledged is safe. Use one that is open")]
    Closed,
    #[error("Volume {name} is detached, or is being detached. Nothing was done. Use its backing device, or attach it again")]
    Detached { name: String },
    #[error("There is no volume {name} on the pool. Nothing was changed. Its volumes are: {volumes}. Name one of them")]
    NoVolume { name: String, volumes: String },
    #[error("Volume {name} is not served. What is cached stays as it is. {next}")]
    NotServed { name: String, next: String },
    #[error(
        "{bytes} bytes at {offset} do not fit volume {name}, which has {size} bytes in blocks of {block}. Nothing was done. \
         Use offsets and lengths inside it, in multiples of its blocks"
    )]
    Range { name: String, offset: u64, bytes: u64, size: u64, block: u32 },
    #[error(
        "{what} of {bytes} bytes at {offset} of volume {name} failed. A write that failed may be there, or in part, or not. \
         Look at the pool's status and the kernel's log, then try again"
    )]
    Io { what: &'static str, name: String, offset: u64, bytes: u64 },
    #[error(
        "Volume {name} is not detached within {} s. What was written back by then stays on its disk, and the volume is served \
         on. Try again with more time", within.as_secs()
    )]
    NotDetached { name: String, within: Duration },
    #[error(
        "Volume {name} is not deleted within {} s, as requests to it are under way, or the pool is still reading what it holds. Nothing was \
         changed, and it is served on. Try again with more time", within.as_secs()
    )]
    NotDeleted { name: String, within: Duration },
    #[error(
        "The pool did not end cleanly within {} s: a device fails, or does not answer. Nothing that was acknowledged is lost by \
         it. Its devices stay claimed until this process ends. Look at the kernel's log", within.as_secs()
    )]
    NotClosed { within: Duration },
}

/// What [`Pool::open_with`] is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cache devices of the pool.
    pub devices: Vec<PathBuf>,
    /// The state folder.
    pub state: PathBuf,
    /// Where backing devices are, by volume, if not where they were last.
    pub backings: BTreeMap<String, PathBuf>,
    /// The engine's settings.
    pub settings: Settings,
    /// When everything that the cache holds is read, and how fast.
    pub scrub: Scrubs,
    /// How long to wait for a device that somebody else holds.
    pub patience: Duration,
}

impl Options {
    /// A pool on these devices, with what is usual.
    pub fn new(devices: &[impl AsRef<Path>], state: &Path) -> Options {
        Options {
            devices: devices.iter().map(|path| path.as_ref().to_owned()).collect(),
            state: state.to_owned(),
            backings: BTreeMap::new(),
            settings: Settings::default(),
            scrub: Scrubs::default(),
            patience: PATIENCE,
        }
    }
}

/// A pool that this process serves. Dropped without [`Pool::close`] it ends as by a power cut: nothing that was
/// acknowledged is lost, and the next start reads the log.
pub struct Pool(Arc<Inner>);

struct Inner {
    inside: Inside,
    /// Gone once it is closed.
    daemon: Mutex<Option<Daemon>>,
    /// The gates of volumes that somebody has asked for, by name.
    gates: Mutex<BTreeMap<String, Arc<Gate>>>,
    /// One volume comes or goes at a time, its gate with it.
    changing: Turn,
}

impl Pool {
    /// Makes a pool that holds dirty data in two copies, on at least two devices, each a block device or a file, and its
    /// witness in the state folder, which is made if it is missing. [`pool::create()`] has more to choose.
    ///
    /// # Errors
    /// A device that is in use, too small, or holds anything that is known: nothing is changed then.
    pub fn create(name: &str, devices: &[impl AsRef<Path>], state: &Path) -> Result<(), Error> {
        let folder = |source| Error::Folder { path: state.to_owned(), source };
        let new = NewPool {
            name: name.into(),
            devices: devices.iter().map(|path| path.as_ref().to_owned()).collect(),
            copies: 2,
            segment_bytes: 0,
            unit: None,
            force: false,
            discard_dirty: None,
        };
        pool::create(&new, &State::open(state).map_err(folder)?)?;
        Ok(())
    }

    /// Claims the devices of a pool, and the backing devices of its volumes where they were last, and begins to serve it.
    /// A volume whose backing device is not there does not end the start: [`Pool::volume`] says why it is not served.
    ///
    /// # Errors
    /// A device in use by another process, too few devices to prove what is newest, no io_uring.
    pub fn open(devices: &[impl AsRef<Path>], state: &Path) -> Result<Pool, Error> {
        Pool::open_with(Options::new(devices, state))
    }

    /// The same, with more to choose.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn open_with(options: Options) -> Result<Pool, Error> {
        let spec = |(name, path): (String, PathBuf)| Ok((name, Spec::new(text_of(&path)?)));
        let backings = options.backings.into_iter().map(spec).collect::<Result<_, Error>>()?;
        let (daemon, inside) = inside::start(daemon::Options {
            zero_copy: false,
            backings,
            scrub: options.scrub,
            settings: options.settings,
            patience: options.patience,
            ..daemon::Options::new(options.devices, options.state)
        })?;
        Ok(Pool(Arc::new(Inner { inside, daemon: Mutex::new(Some(daemon)), gates: Mutex::default(), changing: Turn::default() })))
    }

    /// Makes a device, or a file, a volume of the pool. What it holds stays, and is what the volume reads.
    ///
    /// # Errors
    /// The name is taken, the device is in use or is a cache device; nothing is changed then. It waits while another volume is
    /// being attached or detached.
    pub fn attach(&self, name: &str, backing: &Path, mode: Mode) -> Result<Volume, Error> {
        let _turn = self.0.changing.take();
        self.0.open()?;
        let spec = text_of(backing)?.to_owned();
        let new = Attach { name: name.into(), spec, mode: mode.name().into(), phase: None };
        self.0.inside.call(Call::Attach(new), &mut |_| {}).map_err(|fault| self.0.refused(fault))?;
        self.volume(name)
    }

    /// Makes a volume without a backing device, of so many bytes, rounded up to whole blocks of 4 KiB: a small mirrored disk on
    /// the cache devices alone, for journals and write-intent bitmaps. Twice its size is set aside there.
    ///
    /// # Errors
    /// The name is taken, or there is no room for it: the message has the size that there is room for.
    pub fn create_volume(&self, name: &str, bytes: u64) -> Result<Volume, Error> {
        let _turn = self.0.changing.take();
        self.0.open()?;
        let new = CreateVolume { name: name.into(), bytes };
        self.0.inside.call(Call::CreateVolume(new), &mut |_| {}).map_err(|fault| self.0.refused(fault))?;
        self.volume(name)
    }

    /// A volume of the pool, attached now or in an earlier life.
    ///
    /// # Errors
    /// There is none, or it is not served, with the reason.
    pub fn volume(&self, name: &str) -> Result<Volume, Error> {
        let mut gates = lock(&self.0.gates);
        self.0.open()?;
        let report = self.status()?;
        let Some(volume) = report.volumes.iter().find(|volume| volume.name == name) else {
            let names: Vec<&str> = report.volumes.iter().map(|volume| volume.name.as_str()).collect();
            let volumes = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(Error::NoVolume { name: name.into(), volumes });
        };
        let block = self.0.inside.block(volume.number).filter(|_| volume.serving);
        let Some(block) = block else {
            let about = report.advice.iter().filter(|advice| advice.wrong.contains(name));
            let said: Vec<String> = about.map(|advice| format!("{} {}", advice.wrong, advice.next)).collect();
            let next = if said.is_empty() { "Ask the pool's status why.".into() } else { said.join(" ") };
            return Err(Error::NotServed { name: name.into(), next });
        };
        let gate = match gates.get(name) {
            Some(gate) if gate.is_closed() => return Err(Error::Detached { name: name.into() }),
            Some(gate) => gate.clone(),
            None => {
                let gate = Arc::new(Gate::new(self.0.inside.handle().clone(), volume.number));
                gates.insert(name.into(), gate.clone());
                gate
            }
        };
        Ok(Volume { pool: Arc::downgrade(&self.0), gate, name: name.into(), size: volume.bytes, block })
    }

    /// How everything stands.
    ///
    /// # Errors
    /// The pool is closed.
    pub fn status(&self) -> Result<Report, Error> {
        self.0.open()?;
        self.0.inside.report().ok_or(Error::Closed)
    }

    /// Ends cleanly, so that the next start is warm: waits for requests under way, takes a checkpoint, lets go of the
    /// devices. Dirty data stays on the cache devices, and volumes stay attached. From its beginning on all other calls are
    /// answered with [`Error::Closed`].
    ///
    /// # Errors
    /// It did not end within the time, as a device does not answer. Nothing that was acknowledged is lost by it. Requests
    /// under way are answered with [`Error::Closed`], and may still take effect; the devices stay claimed until the process
    /// ends.
    pub fn close(&self, within: Duration) -> Result<(), Error> {
        let until = deadline(within);
        let daemon = lock(&self.0.daemon).take().ok_or(Error::Closed)?;
        let gates: Vec<Arc<Gate>> = lock(&self.0.gates).values().cloned().collect();
        gates.iter().for_each(|gate| gate.close_for_good());
        for gate in &gates {
            gate.wait_until_empty(until);
        }
        let result = daemon.stop(until.saturating_duration_since(Instant::now()));
        gates.iter().for_each(|gate| gate.abandon());
        result.map_err(|_| Error::NotClosed { within })
    }
}

impl Inner {
    fn open(&self) -> Result<(), Error> {
        lock(&self.daemon).as_ref().map(|_| ()).ok_or(Error::Closed)
    }

    /// Why a call was not done: of a pool that was closed meanwhile nothing else is to be said.
    fn refused(&self, fault: Fault) -> Error {
        self.open().map_or_else(|closed| closed, |()| fault.into())
    }
}

/// A volume being served. Any number of threads may use it at once, and others of its name; it does not keep its pool open.
pub struct Volume {
    pool: Weak<Inner>,
    gate: Arc<Gate>,
    name: String,
    size: u64,
    block: u32,
}

impl Volume {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of which offsets and lengths are multiples: 512, or 4096 where its disk has such blocks.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// Fills `buf` with what is at `offset`, both in bytes and multiples of [`Volume::block`].
    ///
    /// # Errors
    /// What could not be read; `buf` may be filled in part. Older data of the disk is never read in the place of newer.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.check(offset, buf.len() as u64)?;
        for (at, piece) in (offset..).step_by(MOST).zip(buf.chunks_mut(MOST)) {
            let sectors = (piece.len() as u64 / SECTOR) as u32;
            let parts =
                self.ask("The read", at, piece.len() as u64, Request::Read { sector: at / SECTOR, sectors, into: None })?;
            let mut rest = piece;
            for part in parts {
                let (here, behind) = rest.split_at_mut(part.len());
                here.copy_from_slice(part.as_slice());
                rest = behind;
            }
        }
        Ok(())
    }

    /// Writes `data` at `offset`, both in bytes and multiples of [`Volume::block`]. What it returned from is read by every
    /// later read, and outlives this process; only a [`Volume::flush`] makes it outlive a power cut.
    ///
    /// # Errors
    /// What could not be written; each block of it may hold old or new data.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.check(offset, data.len() as u64)?;
        for (at, piece) in (offset..).step_by(MOST).zip(data.chunks(MOST)) {
            let data = HostBuf::from_bytes(piece);
            self.ask("The write", at, piece.len() as u64, Request::Write { sector: at / SECTOR, data, fua: false })?;
        }
        Ok(())
    }

    /// Makes durable every write that returned before it began.
    ///
    /// # Errors
    /// A device failed: nothing may be assumed of what was written since the last flush.
    pub fn flush(&self) -> Result<(), Error> {
        self.ask("The flush", 0, self.size, Request::Flush).map(drop)
    }

    /// Lets go of what is in a range, which reads as zeroes afterwards, but for blocks of 4 KiB at its ends that it covers
    /// in part. Offset and length in bytes, multiples of [`Volume::block`].
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        self.check(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.ask("The discard", offset, bytes, Request::Discard { sector: offset / SECTOR, sectors: bytes / SECTOR }).map(drop)
    }

    /// Writes all that is dirty to the backing device, and lets go of it: afterwards the device holds, by itself, all that
    /// was written to the volume, durably. How far it is, [`Pool::status`] tells. From its beginning on every other use of
    /// the volume, by whatever value, is answered with [`Error::Detached`].
    ///
    /// # Errors
    /// Then the volume is served on as before, by this value and all others. Time is looked at twice a second.
    pub fn detach(&self, within: Duration) -> Result<(), Error> {
        let until = deadline(within);
        let name = || self.name.clone();
        self.leave(
            until,
            || Error::NotDetached { name: name(), within },
            |inside| {
                let mut cancelled = false;
                let call = Call::Detach { name: name(), give_up_lost: false, throw_away: false, deadline_seconds: None };
                let detached = inside.call(call, &mut |_| {
                    if Instant::now() >= until && !cancelled {
                        cancelled = inside.call(Call::Cancel { name: name() }, &mut |_| {}).is_ok();
                    }
                });
                detached.map_err(|fault| Some(fault).filter(|_| !cancelled))
            },
        )
    }

    /// Deletes a volume that has no backing device, with all that is on it: that is nowhere else. From its beginning on every
    /// other use of the volume, by whatever value, is answered with [`Error::Detached`].
    ///
    /// # Errors
    /// It has a backing device, or requests to it did not end in time, or what the pool holds was not read in time, as it is after a start.
    /// Then it is served on as before.
    pub fn delete(&self, within: Duration) -> Result<(), Error> {
        let until = deadline(within);
        self.leave(
            until,
            || Error::NotDeleted { name: self.name.clone(), within },
            |inside| {
                let mut late = false;
                let deleted = inside.delete_volume(&self.name, &mut || {
                    late = Instant::now() >= until;
                    !late
                });
                deleted.map_err(|fault| Some(fault).filter(|_| !late))
            },
        )
    }

    /// Has the pool let go of it, by `how`, whose error is none where it was late.
    fn leave(
        &self,
        until: Instant,
        late: impl Fn() -> Error,
        how: impl FnOnce(&Inside) -> Result<Value, Option<Fault>>,
    ) -> Result<(), Error> {
        let pool = self.pool.upgrade().ok_or(Error::Closed)?;
        let _turn = pool.changing.take_until(until).ok_or_else(&late)?;
        self.gate.close().map_err(|why| self.closed(why))?;
        // Before the number can be another volume's, whoever has passed the gate has its answer.
        if !self.gate.wait_until_empty(until) {
            self.gate.reopen();
            return Err(late());
        }
        match how(&pool.inside) {
            // The gate stays closed: there may be other values of this volume.
            Ok(_) => {
                lock(&pool.gates).remove(&self.name);
                Ok(())
            }
            Err(fault) => {
                self.gate.reopen();
                Err(fault.map_or_else(late, |fault| pool.refused(fault)))
            }
        }
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        let block = u64::from(self.block);
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.size);
        if !inside || !offset.is_multiple_of(block) || !bytes.is_multiple_of(block) {
            let (name, size, block) = (self.name.clone(), self.size, self.block);
            return Err(Error::Range { name, offset, bytes, size, block });
        }
        Ok(())
    }

    /// One request, and its answer.
    fn ask(&self, what: &'static str, offset: u64, bytes: u64, request: Request<HostBuf>) -> Result<Vec<HostBuf>, Error> {
        let name = || self.name.clone();
        match self.gate.ask(request) {
            Ok(Ok(data)) => Ok(data),
            Ok(Err(RequestError::NotServed)) => Err(Error::NotServed { name: name(), next: "Ask the pool's status why.".into() }),
            Ok(Err(RequestError::Io | RequestError::OutOfRange)) => Err(Error::Io { what, name: name(), offset, bytes }),
            Err(why) => Err(self.closed(why)),
        }
    }

    fn closed(&self, why: Closed) -> Error {
        match why {
            Closed::Volume => Error::Detached { name: self.name.clone() },
            Closed::Pool => Error::Closed,
        }
    }
}

/// The path of a backing device, as it is kept.
fn text_of(path: &Path) -> Result<&str, Error> {
    path.to_str().ok_or_else(|| Error::NotText { path: path.to_owned() })
}

/// The end of a time that begins now; a year is for ever.
fn deadline(within: Duration) -> Instant {
    Instant::now() + within.min(Duration::from_secs(365 * 86400))
}
