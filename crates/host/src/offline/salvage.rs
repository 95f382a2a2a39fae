//! What cache devices hold of dirty data, copied to the disks where it is not proved to be all, or the newest. The cache
//! devices are only read: when those that are missing turn up, nothing is lost.

use std::ops::Range;
use std::os::fd::AsFd;

use headpond_engine::io::SECTOR;
use headpond_format::{VolumeEntry, grid_shift};

use super::damaged::{Damaged, DamagedVolume, of_volume};
use super::media::{Pool, patch};
use super::rehearsal::{Live, Rehearsal};
use super::writeback::{Disks, Outcome, WritebackError, WrittenVolume, no_disk_named};
use super::{OfflineError, Watch};
use crate::backing::Backing;
use crate::buf::HostBuf;
use crate::pool::probe;

/// Bytes written at once, where they lie side by side.
const RUN: usize = 1 << 20;
/// Clean pieces that are compared with the disk.
const SAMPLES: usize = 64;

/// Copies what is dirty and whole to the disks.
pub(super) fn copy(
    pool: &Pool<'_>,
    rehearsal: &Rehearsal,
    disks: &Disks,
    damaged: &Damaged,
    watch: Watch<'_>,
) -> Result<Outcome, WritebackError> {
    let s = pool.superblock();
    // All of them before the first byte is written.
    for volume in &s.volumes {
        if let Some(disk) = disks.get(&volume.number)
            && differs(pool, rehearsal, volume, disk)
        {
            return Err(WritebackError::Changed { path: disk.path().to_owned(), volume: volume.name.clone() });
        }
    }
    let mut volumes = Vec::new();
    for (volume, known) in s.volumes.iter().zip(&damaged.volumes) {
        volumes.push(one(pool, rehearsal, volume, disks.get(&volume.number), known, watch)?);
    }
    Ok(Outcome::of(s, false, volumes))
}

/// Data on its way to a disk, as long as it lies side by side.
struct Sweep<'a> {
    disk: Option<&'a Backing>,
    from: u64,
    bytes: Vec<u8>,
    failed: Option<std::io::Error>,
}

impl Sweep<'_> {
    fn add(&mut self, sectors: Range<u64>, data: Option<&HostBuf>) -> Result<(), OfflineError> {
        let at = sectors.start * SECTOR;
        if self.from + self.bytes.len() as u64 != at || self.bytes.len() >= RUN {
            self.flush()?;
            self.from = at;
        }
        match data {
            Some(data) => self.bytes.extend_from_slice(data.as_slice()),
            None => self.bytes.resize(self.bytes.len() + ((sectors.end - sectors.start) * SECTOR) as usize, 0),
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), OfflineError> {
        let bytes = std::mem::take(&mut self.bytes);
        if let Some(disk) = self.disk.filter(|_| !bytes.is_empty())
            && let Err(error) = patch(disk.claim(), self.from, &bytes)
        {
            self.failed = Some(error);
            return Err(OfflineError::Cancelled);
        }
        Ok(())
    }
}

/// One volume. Without a disk it is only told what there would be to write. `known`: what is in doubt of it.
fn one(
    pool: &Pool<'_>,
    rehearsal: &Rehearsal,
    volume: &VolumeEntry,
    disk: Option<&Backing>,
    known: &DamagedVolume,
    watch: Watch<'_>,
) -> Result<WrittenVolume, WritebackError> {
    let mut sweep = Sweep { disk, from: 0, bytes: Vec::new(), failed: None };
    let read = of_volume(pool, rehearsal, volume, &mut |sectors, data| sweep.add(sectors, data.as_ref()), watch);
    let read = read.and_then(|read| sweep.flush().map(|()| read));
    if let (Some(source), Some(disk)) = (sweep.failed, disk) {
        return Err(WritebackError::Disk { path: disk.path().to_owned(), source });
    }
    let found = match read {
        Err(OfflineError::Cancelled) => return Err(WritebackError::Cancelled),
        read => read?.in_doubt_as(known),
    };
    if let Some(disk) = disk {
        let failed = |error: rustix::io::Errno| WritebackError::Disk { path: disk.path().to_owned(), source: error.into() };
        rustix::fs::fsync(disk.claim().as_fd()).map_err(failed)?;
    }
    if found.without_disk {
        return Ok(WrittenVolume::read(&found));
    }
    let (written_bytes, left_bytes) = if disk.is_some() { (found.dirty_bytes, 0) } else { (0, found.dirty_bytes) };
    let problem = (left_bytes > 0).then(|| no_disk_named(&volume.name));
    let backing = disk.map(|disk| disk.path().display().to_string());
    let compared = disk.is_some() && found.is_comparable;
    Ok(WrittenVolume { backing, compared, written_bytes, left_bytes, problem, ..WrittenVolume::read(&found) })
}

/// Whether clean data that a start would believe differs from what is on a disk: then it is another one.
fn differs(pool: &Pool<'_>, rehearsal: &Rehearsal, volume: &VolumeEntry, disk: &Backing) -> bool {
    let mut samples: Vec<Live> = Vec::new();
    let mut seen = 0usize;
    rehearsal.each(volume.number, |live| {
        if !live.can_be_compared() {
            return;
        }
        // An even spread over all there are, without counting them first.
        seen += 1;
        if samples.len() < SAMPLES {
            samples.push(live);
        } else if seen.is_power_of_two() || seen.is_multiple_of(1021) {
            samples[seen % SAMPLES] = live;
        }
    });
    let shift = grid_shift(volume.phase);
    samples.iter().any(|live| {
        let at = (live.block * 8 + u64::from(live.piece.first()) - shift) * SECTOR;
        let data = read(disk, at, u64::from(live.piece.sectors()) * SECTOR);
        data.is_some_and(|data| !live.is(pool.superblock().key, &data))
    })
}

fn read(disk: &Backing, at: u64, len: u64) -> Option<HostBuf> {
    use headpond_engine::io::Buf;
    let size = disk.claim().facts().size;
    let (from, to) = (at / 4096 * 4096, (at + len).next_multiple_of(4096).min(size));
    let bytes = probe::read(disk.claim().as_fd(), from, to.checked_sub(from)?).ok()?;
    (at + len <= to).then(|| bytes.slice((at - from) as usize..(at + len - from) as usize))
}
