//! The life of one ublk device: made or taken over, started, checked, and removed or left to the next daemon.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::abi::{self, DeviceInfo, feature, state};
use super::attending::Place;
use super::attributes::{self, MAX_IO, Shape};
use super::control::Control;
use super::flushing::{self, Flushes, Flushing};
use super::kernel_users::{BLOCK, CONFIG, kernel_user_in};
use super::queue::{Backend, Queue, Queues};
use super::{Error, abi::Params};
use crate::device::facts;
use crate::runtime::OWED;
use crate::silence;

/// Requests of one queue at a time; with payload of at most [`MAX_IO`] each.
const DEPTH: u16 = 64;
/// How long a device may stay open after it was to be removed: udev looks at devices for moments.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often is looked whether something has changed.
const LOOK: Duration = Duration::from_millis(5);
/// The time limit of requests in the block layer, in milliseconds. See the module above.
const REQUEST_LIMIT_MS: u32 = 100;
/// What a kernel must have for clients' memory to be lent: a ring that does not attend to the queue can have it. So the engine's can, and all
/// of the driver's mistakes with such memory are behind that are known.
const LENDING: u64 = feature::SUPPORT_ZERO_COPY | feature::BUF_REG_OFF_DAEMON;
/// Features of each device of ours.
const FEATURES: u64 = feature::USER_COPY | feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE | feature::CMD_IOCTL_ENCODE;

/// How many devices the kernel makes at most, on older kernels of all users.
const MOST: &str = "/sys/module/ublk_drv/parameters/ublks_max";

/// How a volume is to be served.
#[derive(Debug, Clone)]
pub struct Options {
    /// The mark of its device; see [`super::mark`].
    pub mark: u64,
    /// What is shown of it.
    pub shape: Shape,
    /// Whether clients' memory is lent for what goes past the cache, where the kernel can. One that is taken over is as it was made.
    pub lends: bool,
    /// Who attends to its queues. One that is taken over has as many as it was made with.
    pub queues: Queues,
    /// The number that its device had last, and is to have again if it is free.
    pub wish: Option<u32>,
    /// How long to wait for a dead daemon to let go of the device.
    pub patience: Duration,
}

/// A volume being served at `/dev/ublkbN`.
///
/// Dropped without [`Device::stop`], it is left as by [`Device::leave`].
pub struct Device {
    id: u32,
    control: Control,
    /// What an earlier daemon left, and is to be taken over.
    left_over: Option<DeviceInfo>,
    queues: Vec<Queue>,
    char_device: Option<Arc<OwnedFd>>,
    /// Flushes that came.
    flushes: Arc<Flushes>,
    /// A flush of ours that has not ended in time, if there is one.
    flushing: Option<Flushing>,
    taken_over: bool,
    warnings: Vec<Error>,
}

/// A device that an earlier daemon left.
#[derive(Debug)]
pub struct LeftOver {
    info: DeviceInfo,
}

impl LeftOver {
    /// Its block device.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(block_device(self.info.dev_id))
    }
}

/// The device with this mark, if there is one.
pub fn left_over(mark: u64) -> Option<LeftOver> {
    find(&mut Control::open().ok()?, mark, None)
}

/// The device with this mark, if no daemon serves it and what its clients asked for waits there.
pub fn waiting(mark: u64) -> Option<PathBuf> {
    left_over(mark).filter(|left| left.info.state == state::QUIESCED).map(|left| left.path())
}

/// Removes a volume's device that no daemon serves, by its number, of whichever pool it was: what waits there ends with I/O errors.
///
/// # Errors
/// There is no such device of Headpond's, or a daemon serves it: nothing was changed. Or the kernel does not remove it.
pub fn give_up(id: u32) -> Result<(), Error> {
    let mut control = open_control()?;
    let found = control.info(id).map_err(|error| failed(id, "cannot be asked about", &error))?;
    may_be_given_up(id, found.as_ref())?;
    control.stop(id).and_then(|()| control.delete(id)).map_err(|error| failed(id, "could not be removed", &error))
}

/// Refuses what is not ours, and what is served: its clients have a daemon.
fn may_be_given_up(id: u32, found: Option<&DeviceInfo>) -> Result<(), Error> {
    let path = block_device(id);
    match found.filter(|info| attributes::is_ours(info.ublksrv_flags)) {
        None => Err(Error::new(
            format!("{path} is no volume of Headpond. Nothing was changed"),
            "Name a device that `headpond udev-name` knows; another program's is for that program to end",
        )),
        Some(info) if info.state == state::LIVE => Err(Error::new(
            format!("{path} is served by process {}. Nothing was changed", info.ublksrv_pid),
            "Unmount what is on it, and take its volume off with `headpond detach`, or stop its daemon",
        )),
        Some(_) => Ok(()),
    }
}

fn open_control() -> Result<Control, Error> {
    Control::open().map_err(|error| {
        Error::new(format!("/dev/ublk-control cannot be opened: {error}"), "Run `modprobe ublk_drv` and restart")
    })
}

/// Removes the device with this mark, in use or not: what waits there ends with I/O errors. Whether there was one.
pub fn remove(mark: u64) -> Result<Option<PathBuf>, Error> {
    let Ok(mut control) = Control::open() else { return Ok(None) };
    let Some(found) = find(&mut control, mark, None) else { return Ok(None) };
    let id = found.info.dev_id;
    let failed = |error| failed(id, "could not be removed", &error);
    control.stop(id).map_err(failed)?;
    control.delete(id).map_err(failed)?;
    Ok(Some(found.path()))
}

/// The mark of the device with this number; `None`: there is none, or it is not Headpond's.
pub fn mark_of(id: u32) -> Option<u64> {
    let mark = Control::open().ok()?.info(id).ok()??.ublksrv_flags;
    attributes::is_ours(mark).then_some(mark)
}

/// Whether a block device, by its folder in `/sys`, is a volume of Headpond or a partition of one.
pub fn is_ours(device: &Path) -> bool {
    let id = device.iter().find_map(|part| part.to_str()?.strip_prefix("ublkb")?.split('p').next()?.parse().ok());
    id.and_then(mark_of).is_some()
}

/// Looks at the number it had last, then at all that there are.
fn find(control: &mut Control, mark: u64, wish: Option<u32>) -> Option<LeftOver> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok();
    let all = fs::read_dir(abi::DEVICES).into_iter().flatten().flatten().filter_map(number);
    wish.into_iter().chain(all).find_map(|id| {
        let info = control.info(id).ok().flatten()?;
        (info.ublksrv_flags == mark).then_some(LeftOver { info })
    })
}

impl Device {
    /// Takes over the device that a dead daemon left, or makes one, and checks that flushes come through.
    pub fn start<B: Backend>(options: &Options, backend: Arc<B>) -> Result<Device, Error> {
        Device::prepare(options, backend.clone())?.serve(options, backend)
    }

    /// The part of [`Device::start`] that asks nothing of the backend, and changes nothing that others see: looks for what a dead
    /// daemon left, and finds who attends to it. Its clients wait, so this is done while the backend is still being made.
    pub fn prepare<B: Backend>(options: &Options, backend: Arc<B>) -> Result<Device, Error> {
        let control = open_control()?;
        let mut device = Device {
            id: u32::MAX,
            control,
            left_over: None,
            queues: Vec::new(),
            char_device: None,
            flushes: Arc::default(),
            flushing: None,
            taken_over: false,
            warnings: Vec::new(),
        };
        if let Some(LeftOver { info }) = find(&mut device.control, options.mark, options.wish) {
            if info.state != state::DEAD {
                device.prepare_takeover(options, &info, backend)?;
            }
            device.left_over = Some(info);
        }
        Ok(device)
    }

    /// The rest of [`Device::start`], with the same options and backend.
    pub fn serve<B: Backend>(mut self, options: &Options, backend: Arc<B>) -> Result<Device, Error> {
        // Since it was found, a dying daemon may have removed it, or begun to.
        let found = match self.left_over.take() {
            Some(info) => self
                .control
                .info(info.dev_id)
                .map_err(|error| cannot_take_over(info.dev_id, &format!("the kernel does not say how it stands ({error})")))?,
            None => None,
        };
        match found.filter(|info| info.ublksrv_flags == options.mark) {
            Some(info) if info.state != state::DEAD => {
                self.take_over(options, &info)?;
                self.warnings.extend(unlike(&self.queue(), &options.shape, &self.path()));
            }
            found => {
                // Its queues have nothing to be attended to.
                self.leave();
                // Made by a daemon that died before it started it, or stopped by one that died then: nobody can use it.
                if let Some(info) = found {
                    self.control.delete(info.dev_id).map_err(|error| failed(info.dev_id, "could not be removed", &error))?;
                }
                self.make(options, backend)?;
            }
        }
        if self.taken_over {
            // The daemon before may have ended between the volume's growing and the device's.
            if let Err(error) = self.grow(options.shape.size) {
                self.warnings.push(error);
            }
            // Udev saw it when it was made, perhaps by a version that did not note whose it is. Without udev nobody misses this.
            let _ = fs::write(format!("/sys/block/ublkb{}/uevent", self.id), "change");
        }
        Ok(self)
    }

    fn make<B: Backend>(&mut self, options: &Options, backend: Arc<B>) -> Result<(), Error> {
        let info = self.add(options)?;
        let id = info.dev_id;
        self.id = id;
        let started = self.make_started(options, &info, backend);
        if started.is_err() {
            // It was never there for clients. Whoever has looked at it already is answered before it goes.
            let _ = self.control.stop(id);
            self.leave();
            let _ = self.control.delete(id);
        }
        started
    }

    fn make_started<B: Backend>(&mut self, options: &Options, info: &DeviceInfo, backend: Arc<B>) -> Result<(), Error> {
        let id = info.dev_id;
        if info.flags & FEATURES != FEATURES {
            let wrong = format!("the kernel made {} without what was asked for (flags {:#x})", block_device(id), info.flags);
            return Err(Error::new(wrong, "Serve with --frontend fuse"));
        }
        let failed = |what| move |error: io::Error| failed(id, what, &error);
        let params = attributes::params(&options.shape);
        self.control.set_params(id, params).map_err(failed("does not take its parameters"))?;
        self.prepare_queues(options.queues, info, backend).map_err(failed("has no queues"))?;
        self.attend(Instant::now() + PATIENCE).map_err(failed("is not to be had from its driver"))?;
        self.flushes.begin_trial();
        self.control.start(id).map_err(failed("does not start"))?;
        let found = self.control.params(id).map_err(failed("does not tell its parameters"))?;
        self.check_flushes(&found)?;
        self.set_limits(options);
        // What its attributes promise is tried as well. The volume is not asked: its disk may be silent, or fail flushes, and is to be served.
        let file = File::open(self.path()).map_err(failed("cannot be opened"))?;
        // And it is not said to be the daemon's own: what is a try is nobody's, and a client who flushes while `dd` ends is to be told what he is owed,
        // also where `dd` has heard of it.
        let flushes = Arc::clone(&self.flushes);
        let begun =
            Flushing::begin(file.into(), move |well| flushes.end_trial(well)).map_err(|error| cannot_run_dd(id, &error))?;
        self.flushing = Some(begun);
        let flushed = self.flushed(Instant::now() + silence::LIMIT);
        self.flushes.end_tries();
        if self.flushes.came() > 0 {
            return Ok(());
        }
        flushed?.map_err(failed("cannot be flushed"))?;
        Err(no_flushes(id, "a flush of it did not arrive here"))
    }

    /// Makes the device, with the number that it had last if that is free.
    fn add(&mut self, options: &Options) -> Result<DeviceInfo, Error> {
        let lends = self.lends(options);
        let wish = |dev_id| DeviceInfo {
            nr_hw_queues: options.queues.number(),
            queue_depth: DEPTH,
            max_io_buf_bytes: MAX_IO,
            dev_id,
            ublksrv_pid: std::process::id() as i32,
            flags: if lends { FEATURES | feature::SUPPORT_ZERO_COPY } else { FEATURES },
            ublksrv_flags: options.mark,
            ..DeviceInfo::default()
        };
        let again = options.wish.map(|id| self.control.add(wish(id)));
        let added = match again {
            Some(Err(error)) if error.raw_os_error() == Some(libc::EEXIST) => self.control.add(wish(u32::MAX)),
            Some(result) => result,
            None => self.control.add(wish(u32::MAX)),
        };
        added.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Error::new(
                "the kernel did not finish making a ublk device, and never will: so does a regression in Linux 6.18.4, 6.18.5 and \
                 some Ubuntu kernels of 6.17. No data is touched",
                "Boot another kernel (6.18.6 has it mended), and serve with --frontend fuse until then",
            ),
            _ => none_made(&error, fs::read_to_string(MOST).ok().as_deref()),
        })
    }

    /// Whether a new device lends its clients' memory: where that is wanted, and the kernel can.
    fn lends(&mut self, options: &Options) -> bool {
        options.lends && self.control.features().is_ok_and(|features| features & LENDING == LENDING)
    }

    fn prepare_queues<B: Backend>(&mut self, by: Queues, info: &DeviceInfo, backend: Arc<B>) -> io::Result<()> {
        for number in 0..info.nr_hw_queues {
            let lends = info.flags & feature::SUPPORT_ZERO_COPY != 0;
            let place = Place { number, depth: info.queue_depth, lends };
            self.queues.push(Queue::prepare(by, place, backend.clone(), self.flushes.clone())?);
        }
        Ok(())
    }

    /// Opens the character device and lets all queues fetch.
    fn attend(&mut self, until: Instant) -> io::Result<()> {
        let path = format!("/dev/ublkc{}", self.id);
        let device = loop {
            match rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
                Err(Errno::NOENT | Errno::BUSY) if Instant::now() < until => thread::sleep(LOOK),
                opened => break Arc::new(opened?),
            }
        };
        self.char_device = Some(device.clone());
        self.queues.iter().for_each(|queue| queue.attend(device.clone()));
        self.queues.iter().try_for_each(Queue::is_attending)
    }

    /// Looks whether a device whose daemon is dead, or dying, can be taken over, and finds who attends to its queues.
    ///
    /// All that takes time comes before [`Device::take_over`]: a daemon that is killed between the two commands of a takeover
    /// leaves a device that some kernels let nobody take over.
    fn prepare_takeover<B: Backend>(&mut self, options: &Options, info: &DeviceInfo, backend: Arc<B>) -> Result<(), Error> {
        let id = info.dev_id;
        let params = self.control.params(id);
        let params = params.map_err(|error| cannot_take_over(id, &format!("it does not tell its parameters ({error})")))?;
        if !attributes::fits(&params, &options.shape) || info.flags & FEATURES != FEATURES {
            let why = format!(
                "it has {} bytes in blocks of {}, and the volume {} in blocks of {}; flags {:#x}",
                params.basic.dev_sectors * 512,
                1u64 << params.basic.logical_bs_shift,
                options.shape.size,
                options.shape.logical_block,
                info.flags
            );
            return Err(cannot_take_over(id, &why));
        }
        self.id = id;
        if !attributes::sends_flushes(&params) {
            return Err(keeps_flushes(id, &params));
        }
        // As an administrator has set it since it was made. Its clients wait, and it could not be set back before they are answered.
        if let Some(why) = self.keeps_flushes_to_itself() {
            let wrong =
                format!("{} passes on no flushes, as {why}: what a file system calls durable may not be", block_device(id));
            self.warnings.push(Error::new(wrong, "Write \"write back\" to its queue/write_cache"));
        }
        // That daemon's own flush is asked for again with the rest.
        if let Ok(it) = facts::which(&self.path()) {
            let numbers = [facts::number(&it)];
            let is_it = move |path: &Path| is_one_of(path, &numbers);
            self.flushes.set_own_while(flushing::left_over("/proc".as_ref(), is_it), is_it);
        }
        self.prepare_queues(options.queues, info, backend)
            .map_err(|error| cannot_take_over(id, &format!("nobody attends to its queues ({error})")))
    }

    /// Takes it over: from here on its requests are asked again.
    fn take_over(&mut self, options: &Options, info: &DeviceInfo) -> Result<(), Error> {
        let id = info.dev_id;
        let cannot = |why: String| cannot_take_over(id, &why);
        let since = Instant::now();
        let until = since + options.patience.max(PATIENCE);
        self.begin_recovery(until).map_err(|error| {
            let pid = info.ublksrv_pid;
            match error.raw_os_error() {
                Some(libc::EBUSY) => cannot(format!("process {pid} still serves it, or has not ended yet")),
                _ => cannot(format!("the kernel refuses to begin ({error})")),
            }
        })?;
        let let_go = since.elapsed();
        if let Err(error) = self.attend(until) {
            self.leave();
            return Err(cannot(format!("the kernel does not hand over its requests ({error})")));
        }
        self.control.end_recovery(id).map_err(|error| cannot(format!("the kernel refuses to end ({error})")))?;
        tracing::info!(?let_go, all = ?since.elapsed(), "took over {}", block_device(id));
        self.taken_over = true;
        Ok(())
    }

    /// Waits until the dead daemon has let go, which takes as long as the kernel needs to end it.
    fn begin_recovery(&mut self, until: Instant) -> io::Result<()> {
        loop {
            let error = match self.control.start_recovery(self.id) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EBUSY) if Instant::now() < until => thread::sleep(LOOK),
                // A daemon began and died before a queue was attended: the kernel sees nothing to begin.
                Some(libc::EINVAL) if self.control.info(self.id)?.is_some_and(|it| it.state == state::QUIESCED) => return Ok(()),
                _ => return Err(error),
            }
        }
    }

    /// Makes sure that the block layer passes on flushes, and writes that are to be durable.
    fn check_flushes(&self, found: &Params) -> Result<(), Error> {
        match self.keeps_flushes_to_itself() {
            _ if !attributes::sends_flushes(found) => Err(keeps_flushes(self.id, found)),
            Some(why) => Err(no_flushes(self.id, &why)),
            None => Ok(()),
        }
    }

    /// What of its queue's settings has the block layer keep flushes to itself.
    fn keeps_flushes_to_itself(&self) -> Option<String> {
        [("write_cache", "write back"), ("fua", "1")].into_iter().find_map(|(name, wanted)| {
            let now = self.limit(name).unwrap_or_default();
            (now != wanted).then(|| format!("its {name} reads {now:?} and not {wanted:?}"))
        })
    }

    /// What the parameters cannot say, of a new device.
    fn set_limits(&mut self, options: &Options) {
        let read_ahead = ("read_ahead_kb", options.shape.read_ahead_kb, "It works, only slower");
        for (name, value, means) in limits(&options.shape).chain([read_ahead]) {
            // Some of these wait for what is in flight, so nothing is set that is so already.
            if self.limit(name).is_some_and(|now| now == value.to_string()) {
                continue;
            }
            if let Err(error) = fs::write(self.queue().join(name), value.to_string()) {
                let wrong = format!("cannot set {name} of {} to {value}: {error}", block_device(self.id));
                self.warnings.push(Error::new(wrong, format!("{means}. Set it by hand if that matters")));
            }
        }
    }

    fn limit(&self, name: &str) -> Option<String> {
        limit(&self.queue(), name)
    }

    /// Where the kernel shows the settings of its queue.
    fn queue(&self) -> PathBuf {
        PathBuf::from(format!("/sys/block/ublkb{}/queue", self.id))
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The block device, `/dev/ublkbN`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(block_device(self.id))
    }

    /// What did not go as wished at the start, without keeping the volume from being served.
    pub fn warnings(&self) -> &[Error] {
        &self.warnings
    }

    /// The volume has grown to `size` bytes: the device shows it, and says so to whoever watches.
    ///
    /// # Errors
    /// The device keeps the size that it had, as it does where the kernel cannot change it (before Linux 6.16).
    pub fn grow(&mut self, size: u64) -> Result<(), Error> {
        let path = block_device(self.id);
        let next = "Detach the volume when it is not in use, and attach it again, to have it shown with its whole size";
        let wrong = |why: String| Error::new(format!("the size of {path} cannot be made {size} bytes: {why}"), next);
        let shown = |device: &mut Self| device.control.params(device.id).map(|params| params.basic.dev_sectors * 512);
        if shown(self).is_ok_and(|now| now == size) {
            return Ok(());
        }
        match self.control.features() {
            Ok(features) if features & feature::UPDATE_SIZE != 0 => {}
            Ok(_) => return Err(wrong("this kernel changes no sizes, as Linux 6.16 and newer do".into())),
            Err(error) => return Err(wrong(format!("the driver does not tell what it can do ({error})"))),
        }
        self.control.update_size(self.id, size / 512).map_err(|error| wrong(format!("the kernel refuses it ({error})")))?;
        match shown(self) {
            Ok(now) if now == size => Ok(()),
            Ok(now) => Err(wrong(format!("it has {now} bytes afterwards"))),
            Err(error) => Err(wrong(format!("it does not tell its parameters ({error})"))),
        }
    }

    /// Removes the device, unless somebody uses it: then this fails and changes nothing.
    ///
    /// All that was written to it goes to the backend first, which must still be at work, and is to be flushed afterwards. Where that does
    /// not end within `limit` the device is in use as well, by the child that waits for it.
    pub fn stop(&mut self, limit: Duration) -> Result<(), Error> {
        self.remove(limit, false)
    }

    /// The same as the daemon ends: where what was not flushed is not taken, that is only warned of. Nobody uses the device, and the engine's own end
    /// flushes the volume, and writes down what its clients are to be told.
    pub fn end(&mut self, limit: Duration) -> Result<(), Error> {
        self.remove(limit, true)
    }

    fn remove(&mut self, limit: Duration, also_unflushed: bool) -> Result<(), Error> {
        let id = self.id;
        // It was late the last time, and has the device open. How it ended says nothing of the one that comes now.
        if let Err(error) = self.flushed(Instant::now() + limit)? {
            tracing::warn!(
                "an earlier flush of {} failed: {error}; it is flushed again now. Look at the kernel's log for writes that were lost",
                self.path().display()
            );
        }
        let ours = exclusive(&self.path())?;
        let failed = |what| move |error: io::Error| failed(id, what, &error);
        // What somebody wrote without a flush may be in the page cache yet, and would be lost with the device. It has the whole limit, however long
        // users were looked for: one that had no time would be told of as a disk's that does not answer.
        let flushed =
            ours.try_clone().map_err(failed("cannot be flushed")).and_then(|ours| self.flush(ours, Instant::now() + limit));
        let flushed = flushed?.map_err(failed("did not take all that was written to it and not flushed, which may be lost"));
        match flushed {
            Err(error) if also_unflushed => tracing::warn!("{error}. {}", error.next()),
            flushed => flushed?,
        }
        self.control.stop(id).map_err(failed("cannot be stopped"))?;
        self.end_queues();
        drop(ours);
        if let Err(error) = self.control.delete(id) {
            tracing::warn!(
                "{} was stopped, and its number is not free again: {error}. Close what still has it open",
                block_device(id)
            );
        }
        Ok(())
    }

    /// Has all that was written to the device written down, and waits for the end of that. (Where an administrator has set its
    /// `queue/write_cache` to "write through" no flush comes here for that; what serves the volume flushes by itself when it lets go of it.)
    fn flush(&mut self, device: OwnedFd, until: Instant) -> Result<io::Result<()>, Error> {
        // However late it is.
        self.flushes.set_own(true);
        let flushes = Arc::clone(&self.flushes);
        let begun = Flushing::begin(device, move |_| flushes.set_own(false)).map_err(|error| {
            self.flushes.set_own(false);
            cannot_run_dd(self.id, &error)
        })?;
        self.flushing = Some(begun);
        self.flushed(until)
    }

    /// Waits for the flush that is under way, if there is one: how it ended. One that is late stays.
    fn flushed(&mut self, until: Instant) -> Result<io::Result<()>, Error> {
        let Some(flushing) = &self.flushing else { return Ok(Ok(())) };
        let Some(ended) = flushing.ended(until) else {
            let seconds = flushing.elapsed().as_secs();
            let wrong = format!(
                "a flush of {} that was begun {seconds} s ago has not ended, as its disk or a cache device does not answer",
                self.path().display()
            );
            return Err(Error::new(wrong, "Nothing is lost. Look at the kernel's log for such a device, then try again"));
        };
        self.flushing = None;
        Ok(ended)
    }

    /// Takes no more requests: what comes waits for the next daemon. What was taken is answered as before. When this returns,
    /// the backend gets no more: it may be stopped when it has answered those that it has.
    pub fn park(&self) {
        let parked: Vec<_> = self.queues.iter().map(Queue::park).collect();
        // A thread that has ended takes none either.
        for parked in parked {
            let _ = parked.recv();
        }
    }

    /// Does nothing any more; the device is left to the kernel when this process ends, or runs another program.
    ///
    /// Its threads end then, with their rings and what these hold, as they do when the process is killed. Linux 6.12.95 went down
    /// when threads closed their rings and ended by themselves while requests came; why, is not known. So whatever serves the
    /// volume must not end before either: it may be the one that attends.
    pub fn freeze(self) {
        self.queues.iter().for_each(Queue::freeze);
        std::mem::forget(self);
    }

    /// Leaves the device to the kernel: what is not answered, and what comes, waits for the next daemon.
    pub fn leave(&mut self) {
        self.queues.iter().for_each(Queue::leave);
        self.end_queues();
    }

    /// Waits for those who attend to its queues, but no longer than usual for what cache devices owe them.
    fn end_queues(&mut self) {
        let until = Instant::now() + OWED;
        self.queues.iter_mut().for_each(|queue| queue.join(until));
        self.queues.clear();
        self.char_device = None;
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Limits of a volume's queue that are not in its parameters: each one's name and value, and what it means if it is another. (Read-ahead is
/// not among them: it is whoever's that sets it.)
fn limits(shape: &Shape) -> impl Iterator<Item = (&'static str, u32, &'static str)> {
    let unseen = "It works; but where every place of a queue is taken when the daemon is killed, its clients wait for longer until the next \
                  one is heard";
    // It may have been made by a daemon that offered discards whatever the disk.
    let undone = "It works, and offers discards that its disk does not do";
    let no_discards = (!shape.discards).then_some(("discard_max_bytes", 0, undone));
    [("nr_requests", u32::from(DEPTH) - 1, unseen), ("io_timeout", REQUEST_LIMIT_MS, unseen)].into_iter().chain(no_discards)
}

fn limit(queue: &Path, name: &str) -> Option<String> {
    fs::read_to_string(queue.join(name)).ok().map(|text| text.trim().to_owned())
}

/// What of a device's limits, in this folder of the kernel's, is not as it would be set.
///
/// Of one that is taken over nothing is set. To do so waits for what is in flight, some of it or all, by the kernel's version, and that may be at a
/// disk that answers nothing: the start of all volumes would wait, where nothing ends it. A child that waited in place of the daemon would
/// keep the queue's settings locked, at which the next daemon is to look.
fn unlike(queue: &Path, shape: &Shape, device: &Path) -> Vec<Error> {
    let others = limits(shape).filter_map(|(name, value, means)| {
        let now = limit(queue, name).filter(|now| *now != value.to_string())?;
        let wrong = format!("{name} of {} is {now}, and not {value}", device.display());
        let next = format!("{means}. Write {value} to {} if that matters", queue.join(name).display());
        Some(Error::new(wrong, next))
    });
    others.collect()
}

fn block_device(id: u32) -> String {
    format!("/dev/ublkb{id}")
}

fn failed(id: u32, what: &str, error: &io::Error) -> Error {
    let next = "Look at the kernel's log; `headpond status` shows how the volume stands";
    Error::new(format!("{} {what}: {error}", block_device(id)), next)
}

/// Why the kernel made no device: where it says that it may not be, and tells how many there may be (`most`), that is told.
fn none_made(error: &io::Error, most: Option<&str>) -> Error {
    let wrong = format!("no ublk device could be made: {error}");
    let most = most.map(str::trim).filter(|_| error.raw_os_error() == Some(libc::EACCES));
    match most {
        Some(most) => Error::new(
            format!(
                "{wrong}: kernels from before 2025 let a host have no more of them than ublks_max, which is {most}, whoever they belong to"
            ),
            format!(
                "Write a greater number to {MOST}, if `ls /dev/ublkc*` shows so many, and \"options ublk_drv ublks_max=1024\" to \
                 /etc/modprobe.d/ublk.conf for the next boot; then restart. If it shows fewer, look at the kernel's log, and serve with \
                 --frontend fuse until then"
            ),
        ),
        None => Error::new(wrong, "Look at the kernel's log; serve with --frontend fuse until then"),
    }
}

fn cannot_run_dd(id: u32, error: &io::Error) -> Error {
    failed(id, "cannot be flushed, as `dd` cannot be run", error)
}

fn cannot_take_over(id: u32, why: &str) -> Error {
    let path = block_device(id);
    Error::new(
        format!(
            "{path} was left by an earlier daemon and cannot be taken over: {why}. Its I/O waits; what was acknowledged is in the cache \
             or on the disk"
        ),
        format!(
            "Put that right and restart. Or give it up: restart with --give-up and the volume's name, which ends the I/O that waits \
             on {path} with errors and makes a new device; unmount what was on it"
        ),
    )
}

fn keeps_flushes(id: u32, found: &Params) -> Error {
    no_flushes(id, &format!("the kernel shows it with attributes {:#x}", found.basic.attrs))
}

fn no_flushes(id: u32, why: &str) -> Error {
    Error::new(
        format!(
            "the kernel would keep flushes of {} to itself ({why}), and what a file system calls durable would not be",
            block_device(id)
        ),
        "Serve with --frontend fuse, and report this kernel",
    )
}

/// Opens a block device so that nobody else can claim it; fails if somebody has it mounted, claimed, or just open.
fn exclusive(path: &Path) -> Result<OwnedFd, Error> {
    let until = Instant::now() + PATIENCE;
    loop {
        let name = path.display().to_string();
        let open = || rustix::fs::open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty());
        let user = match user(path) {
            // Not opened here beside him: who closes it last waits until all is written that is in the page cache.
            Some(user) => user,
            None => match open() {
                Ok(device) => match self::user(path) {
                    None => return Ok(device),
                    Some(user) => user,
                },
                Err(Errno::BUSY) => {
                    let number = fs::metadata(path).map_or(0, |it| it.rdev());
                    match facts::mounted(number) {
                        // That is not over in moments.
                        Some(point) => {
                            let by = format!("it, or a partition of it, is mounted at {}", point.display());
                            return Err(Error::in_use(&name, &by));
                        }
                        None => format!("it is claimed, see `lsblk {name}`"),
                    }
                }
                Err(error) => {
                    let next = "Look at /dev and the kernel's log";
                    return Err(Error::new(format!("{name} cannot be opened: {error}"), next));
                }
            },
        };
        if Instant::now() >= until {
            return Err(Error::in_use(&name, &user));
        }
        thread::sleep(LOOK * 10);
    }
}

/// Who has a block device or one of its partitions open, or may have it, in words: another process, or the kernel itself.
fn user(path: &Path) -> Option<String> {
    let number = match fs::metadata(path) {
        Ok(it) => it.rdev(),
        Err(error) => return Some(format!("who has it open cannot be told ({error})")),
    };
    let mut numbers = vec![number];
    for entry in fs::read_dir(facts::sysfs(number)).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            numbers.extend(fs::metadata(Path::new("/dev").join(entry.file_name())).map(|it| it.rdev()));
        }
    }
    let is_it = |path: &Path| is_one_of(path, &numbers);
    user_in("/proc".as_ref(), &numbers).or_else(|| kernel_user_in(BLOCK.as_ref(), CONFIG.as_ref(), is_it))
}

/// Whether a path leads to one of the block devices with these numbers.
fn is_one_of(path: &Path, numbers: &[u64]) -> bool {
    facts::which(path).is_ok_and(|it| facts::kind(&it) == FileType::BlockDevice && numbers.contains(&facts::number(&it)))
}

/// A process that has one of the block devices with these numbers open, among those that a folder like `/proc` shows. One of which it
/// cannot be seen may have them open: a device that is removed under its user loses what he has not flushed.
fn user_in(proc: &Path, numbers: &[u64]) -> Option<String> {
    let own = std::process::id().to_string();
    let processes = match fs::read_dir(proc) {
        Ok(processes) => processes,
        Err(error) => return Some(format!("who has it open cannot be told, as {} cannot be read ({error})", proc.display())),
    };
    let processes = processes.flatten().filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name != own && name.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let mut unseen = None;
    for process in processes {
        let name = || {
            let comm = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            format!("process {} ({})", process.file_name().display(), comm.trim())
        };
        match has_open(&process.path(), numbers) {
            Ok(true) => return Some(format!("{} has it open", name())),
            Ok(false) => {}
            Err(error) if unseen.is_none() => {
                unseen = Some(format!(
                    "{} may have it open, which cannot be seen ({error}): the daemon needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for \
                     that (CapabilityBoundingSet in its systemd unit)",
                    name()
                ));
            }
            Err(_) => {}
        }
    }
    unseen
}

/// Whether the process in a folder of `/proc` has one of these block devices open; an error if that cannot be seen.
fn has_open(process: &Path, numbers: &[u64]) -> io::Result<bool> {
    // It may have ended meanwhile, or closed a file.
    let unless_gone = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => Ok(false),
        _ => Err(error),
    };
    let files = match fs::read_dir(process.join("fd")) {
        Ok(files) => files,
        Err(error) => return unless_gone(error),
    };
    for file in files {
        let file = match file {
            Ok(file) => file.path(),
            Err(error) => return unless_gone(error),
        };
        // What may be read leads to the file; its own file system may be out of reach, and is not asked.
        match fs::read_link(&file) {
            Ok(_) => {}
            Err(error) => match unless_gone(error) {
                Ok(_) => continue,
                Err(error) => return Err(error),
            },
        }
        if is_one_of(&file, numbers) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse;
    use crate::fuse::mount::Mount;
    use crate::fuse::server::Server;
    use headpond_engine::io::Request;
    use std::os::unix::fs::{FileExt, symlink};

    /// A folder like `/proc` with one process more than this one, with these files open.
    fn proc(files: &[(&str, &Path)]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let of = |id: u32| proc.path().join(id.to_string());
        for id in [std::process::id(), 1] {
            fs::create_dir_all(of(id).join("fd")).unwrap();
        }
        fs::write(of(1).join("comm"), "postgres\n").unwrap();
        for (number, file) in files {
            symlink(file, of(1).join("fd").join(number)).unwrap();
        }
        proc
    }

    /// A block device that nobody serves, with its number; `None` if this is not root.
    fn block_device_in(folder: &Path) -> Option<(PathBuf, u64)> {
        let (path, number) = (folder.join("device"), rustix::fs::makedev(7, 9999));
        let made = rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::BlockDevice, Mode::RUSR, number);
        made.ok().map(|()| (path, number))
    }

    #[test]
    fn who_has_a_device_open_is_named_and_others_files_are_nobodys_use_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let Some((device, number)) = block_device_in(folder.path()) else {
            println!("skipped: only root can make block devices");
            return;
        };
        let proc = proc(&[("0", Path::new("/dev/null")), ("1", Path::new("socket:[7]")), ("2", &device)]);
        let user = user_in(proc.path(), &[number + 1, number]).unwrap();
        assert!(user.contains("process 1 (postgres) has it open"), "{user}");
        assert_eq!(user_in(proc.path(), &[number + 1]), None);
        // Our own files do not count.
        symlink(&device, proc.path().join(std::process::id().to_string()).join("fd/3")).unwrap();
        fs::remove_file(proc.path().join("1/fd/2")).unwrap();
        assert_eq!(user_in(proc.path(), &[number]), None);
    }

    /// The start of all volumes waited for the disk of one; and whoever had set a volume's read-ahead had to do so after each start.
    #[test]
    fn of_a_device_that_is_taken_over_no_limit_is_set_and_what_differs_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let queue = folder.path();
        let files =
            [("nr_requests", "128\n"), ("io_timeout", "100\n"), ("discard_max_bytes", "4096\n"), ("read_ahead_kb", "8192\n")];
        files.iter().for_each(|(name, text)| fs::write(queue.join(name), text).unwrap());
        let mut shape = Shape {
            size: 1 << 20,
            logical_block: 512,
            optimal_io: 0,
            rotational: true,
            read_ahead_kb: 128,
            discards: true,
            phase: 0,
        };
        let told = |shape: &Shape| unlike(queue, shape, "/dev/ublkb7".as_ref()).iter().map(Error::to_string).collect::<Vec<_>>();
        assert_eq!(told(&shape), ["nr_requests of /dev/ublkb7 is 128, and not 63"]);
        shape.discards = false;
        assert_eq!(told(&shape)[1..], ["discard_max_bytes of /dev/ublkb7 is 4096, and not 0"]);
        assert!(files.iter().all(|(name, text)| fs::read_to_string(queue.join(name)).unwrap() == *text));
    }

    /// "Permission denied", and nothing in the kernel's log: the 65th volume of a host was not served, and nobody was told why. Found by
    /// reading.
    #[test]
    fn where_the_kernel_makes_no_more_devices_its_limit_is_named_and_how_to_raise_it() {
        let told = |errno, most| {
            let error = none_made(&io::Error::from_raw_os_error(errno), most);
            format!("{error}. {}", error.next())
        };
        let said = told(libc::EACCES, Some("64\n"));
        for part in ["ublks_max, which is 64", MOST, "options ublk_drv ublks_max=", "then restart"] {
            assert!(said.contains(part), "{part:?} is not in: {said}");
        }
        for said in [told(libc::EACCES, None), told(libc::ENOMEM, Some("64"))] {
            assert!(said.contains("Look at the kernel's log") && !said.contains("ublks_max"), "{said}");
        }
    }

    /// It could be ended by a start of its own pool alone: where that was no more, `umount` of what was on it waited until the machine was started
    /// again. Found by reading.
    #[test]
    fn a_device_that_no_daemon_serves_may_be_given_up_and_one_that_is_served_or_is_anothers_may_not() {
        let device = |state, ublksrv_flags| DeviceInfo { state, ublksrv_flags, ublksrv_pid: 77, ..DeviceInfo::default() };
        let ours = attributes::mark(&[1; 16], &[2; 16]);
        for state in [state::QUIESCED, state::DEAD] {
            assert!(may_be_given_up(3, Some(&device(state, ours))).is_ok());
        }
        let refused = |found: Option<DeviceInfo>| may_be_given_up(3, found.as_ref()).unwrap_err().to_string();
        assert_eq!(refused(Some(device(state::LIVE, ours))), "/dev/ublkb3 is served by process 77. Nothing was changed");
        for others in [None, Some(device(state::QUIESCED, 0))] {
            assert_eq!(refused(others), "/dev/ublkb3 is no volume of Headpond. Nothing was changed");
        }
    }

    struct Nothing;

    impl fuse::Backend for Nothing {
        type Buf = Vec<u8>;

        fn size(&self) -> u64 {
            1 << 20
        }

        fn buffer(&self, payload: &[u8]) -> Vec<u8> {
            payload.to_vec()
        }

        fn submit(&self, request: Request<Vec<u8>>, done: fuse::Completion) {
            done.finish(Ok(match request {
                Request::Read { sectors, .. } => vec![vec![0; sectors as usize * 512]],
                _ => Vec::new(),
            }));
        }
    }

    /// Each detach, and each stop, asked for the attributes of all files that any process had open, and waited for ever for those of one on a
    /// network file system that was out of reach.
    #[test]
    fn a_file_on_a_file_system_that_does_not_answer_keeps_nobody_who_looks_for_users_waiting() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            println!("skipped: it takes root and /dev/fuse");
            return;
        }
        let point = tempfile::tempdir().unwrap();
        let mount = Mount::new(point.path()).unwrap();
        let options = fuse::Options::new(point.path(), "file");
        let mut server = Server::start(mount.device(), &options, Arc::new(Nothing)).unwrap();
        let file = File::open(point.path().join("file")).unwrap();
        // Its times may have changed.
        file.read_exact_at(&mut [0; 4096], 0).unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").stdin(file).spawn().unwrap();
        // The kernel may go by what it has been told for a second.
        thread::sleep(Duration::from_secs(2));
        server.leave();
        let (told, looked) = std::sync::mpsc::channel();
        thread::spawn(move || told.send(user_in("/proc".as_ref(), &[rustix::fs::makedev(7, 9999)])));
        let looked = looked.recv_timeout(Duration::from_secs(30));
        mount.abort();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(looked.is_ok(), "it is waited for");
    }

    /// Without two capabilities, which the unit did not give it, the daemon could not look into other processes: it took none of them
    /// for a user, and removed the device under databases and virtual machines that had it open.
    #[test]
    fn a_process_that_cannot_be_looked_into_may_have_the_device_open() {
        let number = rustix::fs::makedev(7, 9999);
        // What stands in for a folder and a link that may not be read, as root may read all.
        let unreadable_link = proc(&[]);
        fs::write(unreadable_link.path().join("1/fd/0"), "").unwrap();
        let unreadable_folder = proc(&[]);
        fs::remove_dir(unreadable_folder.path().join("1/fd")).unwrap();
        fs::write(unreadable_folder.path().join("1/fd"), "").unwrap();
        for proc in [unreadable_link, unreadable_folder] {
            let user = user_in(proc.path(), &[number]).unwrap();
            for part in ["process 1 (postgres) may have it open", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"] {
                assert!(user.contains(part), "{user}");
            }
        }
        assert!(user_in(Path::new("/nowhere/proc"), &[number]).unwrap().contains("cannot be read"));
        // One that has ended meanwhile has nothing open.
        let ended = proc(&[]);
        fs::remove_dir(ended.path().join("1/fd")).unwrap();
        assert_eq!(user_in(ended.path(), &[number]), None);
    }
}
