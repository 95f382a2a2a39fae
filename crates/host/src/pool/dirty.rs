//! Whether a cache device may hold data that is nowhere else, and permission to lose it.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::str::FromStr;

use headpond_format::{INTENT_PAGE_BYTES, IntentPage, Superblock, VolumeEntry};

use super::{PoolError, probe};
use crate::backing::HasDisk;
use crate::state::hex;

/// Permission to lose what is dirty on one pool, in one epoch: given exactly, or not at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscardDirty {
    pool: String,
    epoch: u64,
}

impl DiscardDirty {
    /// Whether it names this pool as it is.
    pub fn names(&self, superblock: &Superblock) -> bool {
        self.pool == hex(&superblock.pool) && self.epoch == superblock.epoch
    }
}

impl FromStr for DiscardDirty {
    type Err = String;

    fn from_str(text: &str) -> Result<DiscardDirty, String> {
        let parts = text.split_once(':').and_then(|(pool, epoch)| Some((pool.to_lowercase(), epoch.parse().ok()?)));
        match parts {
            Some((pool, epoch)) if pool.len() == 32 && pool.bytes().all(|c| c.is_ascii_hexdigit()) => {
                Ok(DiscardDirty { pool, epoch })
            }
            _ => Err("give the pool's identity (32 hexadecimal digits), a colon and its epoch, as they were shown".into()),
        }
    }
}

impl fmt::Display for DiscardDirty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pool, self.epoch)
    }
}

/// Refuses what would lose dirty data, unless the pool was named for it.
pub(super) fn check(
    path: &Path,
    file: BorrowedFd<'_>,
    superblock: &Superblock,
    permit: Option<&DiscardDirty>,
) -> Result<(), PoolError> {
    let why = match reason(file, superblock).map_err(PoolError::unread(path))? {
        Some(why) if !permit.is_some_and(|permit| permit.names(superblock)) => why,
        _ => return Ok(()),
    };
    let (pool, id) = (superblock.name.clone(), hex(&superblock.pool));
    Err(PoolError::Dirty { path: path.to_owned(), pool, id, epoch: superblock.epoch, why })
}

/// Why there may be dirty data on a cache device, if there may be.
fn reason(file: BorrowedFd<'_>, superblock: &Superblock) -> io::Result<Option<String>> {
    let mut reasons = Vec::new();
    for volume in &superblock.volumes {
        if !volume.has_disk() {
            reasons.push(format!("has volume {}, which has no backing device: what is on it is nowhere else", volume.name));
            continue;
        }
        for page in volume.intent_first..volume.intent_first.saturating_add(volume.intent_pages) {
            let why = match newest(file, superblock, volume, page)? {
                Some(page) if page.dirty.iter().all(|byte| *byte == 0) => continue,
                Some(_) => format!("may hold data of volume {} that its disk does not have", volume.name),
                None => format!("does not tell any more whether it holds data that the disk of volume {} lacks", volume.name),
            };
            reasons.push(why);
            break;
        }
    }
    Ok((!reasons.is_empty()).then(|| reasons.join("; and it ")))
}

/// The newest copy of an intent page; `None` where that may have been one that is not whole any more: the other one may be from before data
/// became dirty.
fn newest(file: BorrowedFd<'_>, pool: &Superblock, volume: &VolumeEntry, page: u32) -> io::Result<Option<IntentPage>> {
    let Some(member) = pool.members.get(usize::from(pool.member)) else { return Ok(None) };
    let mut best: Option<IntentPage> = None;
    for slot in 0..2 {
        let bytes = probe::read(file, member.layout.intent(page, slot), INTENT_PAGE_BYTES as u64)?;
        // Not written since the device joined the pool.
        if bytes.as_slice().iter().all(|byte| *byte == 0) {
            continue;
        }
        let found = IntentPage::decode(pool.key, bytes.as_slice(), page).ok().filter(|found| found.volume == volume.number);
        let Some(found) = found else { return Ok(None) };
        if best.as_ref().is_none_or(|best| best.sequence < found.sequence) {
            best = Some(found);
        }
    }
    Ok(best)
}
