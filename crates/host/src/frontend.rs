//! The engine behind the front ends: their requests in its terms, its replies in theirs.

use std::sync::{Arc, Mutex, PoisonError};

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

/// All volumes of a pool, as exports of one NBD socket.
pub struct NbdVolumes {
    handle: Handle,
    exports: Mutex<Vec<ExportInfo>>,
}

impl NbdVolumes {
    /// No volumes yet.
    pub fn new(handle: Handle) -> Arc<NbdVolumes> {
        Arc::new(NbdVolumes { handle, exports: Mutex::default() })
    }

    /// Offers a volume, whose number is the export's, to clients that connect from now on.
    pub fn offer(&self, export: ExportInfo) {
        self.withdraw(export.id);
        // All connections share one engine: a flush on one covers what was acknowledged on another.
        self.lock().push(ExportInfo { multi_conn: true, ..export });
    }

    /// Offers a volume no more. Clients that have it get errors once the engine no longer serves it.
    pub fn withdraw(&self, volume: usize) {
        self.lock().retain(|export| export.id != volume);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<ExportInfo>> {
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
        self.lock().clone()
    }

    fn alloc(&self, len: usize) -> Space {
        Space(HostBuf::to_be_filled(len))
    }

    fn submit(&self, export: usize, command: Command<Space>, done: Completion<HostBuf>) {
        let sectors = |len: u32| u64::from(len) / SECTOR;
        let request = match command {
            Command::Read { offset, len } => Request::Read { sector: offset / SECTOR, sectors: len / SECTOR as u32, into: None },
            Command::Write { offset, data, fua } => Request::Write { sector: offset / SECTOR, data: data.0, fua },
            Command::Flush => Request::Flush,
            Command::Trim { offset, len, fua: false } => Request::Discard { sector: offset / SECTOR, sectors: sectors(len) },
            Command::Trim { offset, len, fua: true } => {
                let trim = Request::Discard { sector: offset / SECTOR, sectors: sectors(len) };
                return self.trim_durably(export as u16, trim, done);
            }
            Command::WriteZeroes { offset, len, fua } => {
                Request::WriteZeroes { sector: offset / SECTOR, sectors: sectors(len), fua }
            }
        };
        self.handle.request(export as u16, request, |reply| done.finish(reply.map_err(errno)));
    }
}

impl NbdVolumes {
    /// The engine's discard knows no forced unit access: a flush makes it durable before the client is told.
    fn trim_durably(&self, volume: u16, trim: Request<HostBuf>, done: Completion<HostBuf>) {
        let handle = self.handle.clone();
        self.handle.request(volume, trim, move |reply: Reply<HostBuf>| match reply {
            Ok(_) => handle.request(volume, Request::Flush, |reply| done.finish(reply.map_err(errno))),
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
    fn submit(&self, request: Request<HostBuf>, done: ublk::Completion) {
        self.handle.request(self.volume, request, |reply| done.finish(reply));
    }

    fn adopt(&self, queue: Unattended) -> Waker {
        self.handle.adopt(self.volume, queue)
    }

    fn door(&self) -> Option<Door> {
        Some(self.handle.door(self.volume))
    }
}
