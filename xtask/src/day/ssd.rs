//! An SSD that can be pulled: a file, shown as a loop device by a FUSE server of our own.

use anyhow::{Context, Result};
use headpond_engine::io::{Reply, Request, RequestError, SECTOR};
use headpond_host::fuse::{self, Backend, Completion, Export};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The drive.
pub struct Ssd {
    /// Its block device.
    pub device: PathBuf,
    medium: Arc<Medium>,
    /// Gone before the medium is.
    _export: Export,
}

struct Medium {
    file: File,
    bytes: u64,
    pulled: AtomicBool,
}

impl Ssd {
    /// A drive full of zeroes.
    pub fn new(folder: &Path, name: &str, bytes: u64) -> Result<Ssd> {
        let path = folder.join(format!("{name}.ssd"));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.with_context(|| format!("{} cannot be made", path.display()))?;
        file.set_len(bytes)?;
        let medium = Arc::new(Medium { file, bytes, pulled: AtomicBool::new(false) });
        let options = fuse::Options::new(folder.join(format!("{name}.mount")), name);
        let export = Export::start(&options, medium.clone()).with_context(|| format!("SSD {name} cannot be shown"))?;
        Ok(Ssd { device: export.device(), medium, _export: export })
    }

    /// From now on it answers nothing but errors, as one that was pulled out of its slot.
    pub fn pull(&self) {
        self.medium.pulled.store(true, Ordering::SeqCst);
    }

    /// All that is on its medium.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.medium.bytes as usize];
        self.medium.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Flips a bit on its medium, behind everybody's back.
    pub fn flip(&self, at: u64) -> io::Result<()> {
        let mut byte = [0];
        self.medium.file.read_exact_at(&mut byte, at)?;
        self.medium.file.write_all_at(&[byte[0] ^ 0x10], at)
    }
}

impl Backend for Medium {
    type Buf = Vec<u8>;

    fn size(&self) -> u64 {
        self.bytes
    }

    fn buffer(&self, payload: &[u8]) -> Vec<u8> {
        payload.to_vec()
    }

    fn submit(&self, request: Request<Vec<u8>>, done: Completion) {
        let answer = match self.pulled.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::NotConnected.into()),
            false => self.answer(request),
        };
        done.finish(answer.map_err(|_: io::Error| RequestError::Io) as Reply<Vec<u8>>);
    }
}

impl Medium {
    fn answer(&self, request: Request<Vec<u8>>) -> io::Result<Vec<Vec<u8>>> {
        match request {
            Request::Read { sector, sectors, .. } => {
                let mut bytes = vec![0; sectors as usize * SECTOR as usize];
                self.file.read_exact_at(&mut bytes, sector * SECTOR)?;
                return Ok(vec![bytes]);
            }
            Request::Write { sector, data, .. } => self.file.write_all_at(&data, sector * SECTOR)?,
            Request::Flush | Request::OwnFlush => {}
            Request::Discard { sector, sectors } | Request::WriteZeroes { sector, sectors, .. } => {
                self.file.write_all_at(&vec![0; (sectors * SECTOR) as usize], sector * SECTOR)?;
            }
        }
        Ok(Vec::new())
    }
}
