//! For tests: a volume in memory, served over NBD.

use super::target::Place;
use headpond_host::nbd::server::{Backend, Command, Completion, Limits, Server};
use headpond_host::nbd::session::ExportInfo;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};

/// Its size in bytes.
pub const SIZE: usize = 32 << 20;

/// The disks outlive their servers.
static DISKS: LazyLock<Mutex<HashMap<PathBuf, Arc<Memory>>>> = LazyLock::new(Mutex::default);

struct Memory {
    disk: Mutex<(Vec<u8>, u64)>,
    /// One write in so many is acknowledged and not done.
    loses: Option<u64>,
}

impl Backend for Memory {
    type Space = Vec<u8>;
    type Data = Vec<u8>;
    fn exports(&self) -> Vec<ExportInfo> {
        vec![ExportInfo::new(0, "demo", SIZE as u64)]
    }
    fn alloc(&self, len: usize) -> Vec<u8> {
        vec![0; len]
    }
    fn submit(&self, _: usize, command: Command<Vec<u8>>, done: Completion<Vec<u8>>) {
        let mut disk = self.disk.lock().unwrap();
        let mut read = Vec::new();
        match command {
            Command::Read { offset, len } => read.push(disk.0[offset as usize..][..len as usize].to_vec()),
            Command::Write { offset, data, .. } => {
                disk.1 += 1;
                if self.loses.is_none_or(|n| !disk.1.is_multiple_of(n)) {
                    disk.0[offset as usize..][..data.len()].copy_from_slice(&data);
                }
            }
            Command::Flush | Command::Trim { .. } | Command::WriteZeroes { .. } => {}
        }
        drop(disk);
        done.finish(Ok(read));
    }
}

/// Serves a fresh disk.
pub fn serve(loses: Option<u64>) -> (Server, Place, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    DISKS.lock().unwrap().insert(socket.clone(), Arc::new(Memory { disk: Mutex::new((vec![0; SIZE], 0)), loses }));
    let place = Place::Nbd { socket, export: "demo".into() };
    (restart(&place), place, dir)
}

/// Serves the disk of a server that has gone.
pub fn restart(place: &Place) -> Server {
    let Place::Nbd { socket, .. } = place else { panic!("served over NBD") };
    let memory = DISKS.lock().unwrap()[socket].clone();
    Server::start(socket, memory, Limits::default()).unwrap()
}
