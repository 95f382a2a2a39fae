//! The engine behind the front ends: their requests in its terms, its replies in theirs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use headpond_engine::io::{Reply, Request, RequestError, SECTOR};

use crate::beside::Door;
use crate::buf::HostBuf;
use crate::nbd::protocol::Errno;
use crate::nbd::server::{Command, Completion};
use crate::nbd::session::ExportInfo;
use crate::ring::Waker;
use crate::runtime::Handle;
use crate::ublk::queue::Unattended;
use crate::{fuse, nbd, ublk};

/// A volume's number for as long as the volume has it.
///
/// Requests go to the engine under the lock that ends it, and the engine takes what it is asked in the order in which that was
/// sent. So whatever came by before the end comes to this volume, or to none: a volume that gets the number afterwards is
/// attached by a command that was sent later.
struct Attachment {
    handle: Handle,
    volume: u16,
    ended: RwLock<bool>,
}

impl Attachment {
    fn request(&self, request: Request<HostBuf>, reply: impl FnOnce(Reply<HostBuf>) + Send + 'static) {
        let ended = self.ended.read().unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return reply(Err(RequestError::NotServed));
        }
        self.handle.request(self.volume, request, reply);
    }

    fn end(&self) {
        *self.ended.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

/// All volumes of a pool, as exports of one NBD socket. An export is one attachment of a volume, and its number no other's ever:
/// a connection outlives the volume that it was made to.
pub struct NbdVolumes {
    handle: Handle,
    exports: Mutex<Exports>,
}

#[derive(Default)]
struct Exports {
    next: usize,
    attached: BTreeMap<usize, Attached>,
}

struct Attached {
    attachment: Arc<Attachment>,
    info: ExportInfo,
    /// Whether clients that connect now may choose it.
    is_offered: bool,
}

impl NbdVolumes {
    /// No volumes yet.
    pub fn new(handle: Handle) -> Arc<NbdVolumes> {
        Arc::new(NbdVolumes { handle, exports: Mutex::default() })
    }

    /// Offers a volume to clients that connect from now on. Those that have it go on with it as it was to them.
    pub fn offer(&self, volume: u16, info: ExportInfo) {
        let mut exports = self.lock();
        let known = exports.attached.iter().find(|(_, it)| it.attachment.volume == volume);
        let (id, attachment) = match known {
            Some((id, known)) => (*id, known.attachment.clone()),
            None => {
                exports.next += 1;
                (exports.next, Arc::new(Attachment { handle: self.handle.clone(), volume, ended: RwLock::new(false) }))
            }
        };
        // All connections share one engine: a flush on one covers what was acknowledged on another.
        let info = ExportInfo { id, multi_conn: true, ..info };
        exports.attached.insert(id, Attached { attachment, info, is_offered: true });
    }

    /// Offers a volume no more. Clients that have it are served as long as the engine serves it.
    pub fn withdraw(&self, volume: u16) {
        for attached in self.lock().attached.values_mut().filter(|it| it.attachment.volume == volume) {
            attached.is_offered = false;
        }
    }

    /// Whatever is asked of a volume by those that have it fails from now on, whoever has its number; the export that it was.
    pub fn end(&self, volume: u16) -> Option<usize> {
        let mut exports = self.lock();
        let id = *exports.attached.iter().find(|(_, it)| it.attachment.volume == volume)?.0;
        exports.attached.remove(&id)?.attachment.end();
        Some(id)
    }

    fn lock(&self) -> MutexGuard<'_, Exports> {
        self.exports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for a write's payload, which nobody else sees before it is full.
pub struct Space(HostBuf);

impl AsMut<[u8]> for Space {
    fn as_mut(&mut self) -> &mut [u8] {
        self.0.get_mut().expect("space is not shared before it is submitted")
    }
}

impl nbd::server::Backend for NbdVolumes {
    type Space = Space;
    type Data = HostBuf;

    fn exports(&self) -> Vec<ExportInfo> {
        self.lock().attached.values().filter(|it| it.is_offered).map(|it| it.info.clone()).collect()
    }

    fn alloc(&self, len: usize) -> Space {
        Space(HostBuf::to_be_filled(len))
    }

    fn submit(&self, export: usize, command: Command<Space>, done: Completion<HostBuf>) {
        let Some(attachment) = self.lock().attached.get(&export).map(|it| it.attachment.clone()) else {
            return done.finish(Err(Errno::Shutdown));
        };
        let sectors = |len: u32| u64::from(len) / SECTOR;
        let request = match command {
            Command::Read { offset, len } => Request::Read { sector: offset / SECTOR, sectors: len / SECTOR as u32, into: None },
            Command::Write { offset, data, fua } => Request::Write { sector: offset / SECTOR, data: data.0, fua },
            Command::Flush => Request::Flush,
            Command::Trim { offset, len, fua: false } => Request::Discard { sector: offset / SECTOR, sectors: sectors(len) },
            Command::Trim { offset, len, fua: true } => {
                let trim = Request::Discard { sector: offset / SECTOR, sectors: sectors(len) };
                return attachment.trim_durably(trim, done);
            }
            Command::WriteZeroes { offset, len, fua } => {
                Request::WriteZeroes { sector: offset / SECTOR, sectors: sectors(len), fua }
            }
        };
        attachment.request(request, |reply| done.finish(reply.map_err(errno)));
    }
}

impl Attachment {
    /// The engine's discard knows no forced unit access: a flush makes it durable before the client is told. It is no FLUSH of the client's: what has failed
    /// before, clients hear by theirs, and may take no notice of a discard that fails.
    fn trim_durably(self: Arc<Attachment>, trim: Request<HostBuf>, done: Completion<HostBuf>) {
        let again = self.clone();
        self.request(trim, move |reply: Reply<HostBuf>| match reply {
            Ok(_) => again.request(Request::OwnFlush, |reply| done.finish(reply.map_err(errno))),
            Err(error) => done.finish(Err(errno(error))),
        });
    }
}

fn errno(error: RequestError) -> Errno {
    match error {
        RequestError::Io => Errno::Io,
        RequestError::OutOfRange => Errno::Invalid,
        RequestError::NotServed => Errno::Shutdown,
    }
}

/// One volume behind FUSE and a loop device.
pub struct FuseVolume {
    handle: Handle,
    volume: u16,
    size: u64,
}

impl FuseVolume {
    /// The volume with this number and this size in bytes.
    pub fn new(handle: Handle, volume: u16, size: u64) -> Arc<FuseVolume> {
        Arc::new(FuseVolume { handle, volume, size })
    }
}

impl fuse::Backend for FuseVolume {
    type Buf = HostBuf;

    fn size(&self) -> u64 {
        self.size
    }

    fn buffer(&self, payload: &[u8]) -> HostBuf {
        headpond_engine::io::Buf::from_bytes(payload)
    }

    fn submit(&self, request: Request<HostBuf>, done: fuse::Completion) {
        self.handle.request(self.volume, request, |reply| done.finish(reply));
    }
}

/// One volume behind a ublk device.
pub struct UblkVolume {
    handle: Handle,
    volume: u16,
}

impl UblkVolume {
    /// The volume with this number.
    pub fn new(handle: Handle, volume: u16) -> Arc<UblkVolume> {
        Arc::new(UblkVolume { handle, volume })
    }
}

impl ublk::Backend for UblkVolume {
    fn submit(&self, request: Request<HostBuf>, since: Option<Instant>, done: ublk::Completion) {
        self.handle.request_begun(self.volume, request, since, |reply| done.finish(reply));
    }

    fn adopt(&self, queue: Unattended) -> Waker {
        self.handle.adopt(self.volume, queue)
    }

    fn door(&self) -> Option<Door> {
        Some(self.handle.door(self.volume))
    }
}
