//! The devices of a pool at rest: claimed, with every copy of their superblocks, and which of them counts.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headpond_engine::create::newest_witness;
use headpond_engine::election::{Election, Refusal, WitnessVote, elect, identity};
use headpond_engine::io::Buf;
use headpond_format::{DecodeError, Layout, MemberState, Superblock, WITNESS_BYTES, WITNESS_SLOTS};

use super::OfflineError;
use crate::buf::HostBuf;
use crate::claim::Claim;
use crate::pool::create::different;
use crate::pool::{PoolError, probe};
use crate::state::hex;

/// Direct I/O is done in whole pages of this many bytes, as far as the device has them.
const PAGE: u64 = 4096;

/// What one of the four superblock slots of a device holds.
#[derive(Debug)]
pub enum Slot {
    /// A whole superblock.
    Whole(Box<Superblock>),
    /// Something else.
    Bad(DecodeError),
    /// It cannot be read.
    Unreadable(io::Error),
}

/// A claimed device, and its superblocks.
#[derive(Debug)]
pub struct Device {
    claim: Claim,
    /// The four slots.
    pub slots: [Slot; 4],
    /// Where each slot begins, in bytes.
    pub slot_at: [u64; 4],
    /// The newest whole superblock, unless a newer format is in one of the slots, or it [may be older](Device::may_be_older).
    pub superblock: Option<Superblock>,
    /// The newest whole one where another, of which both copies cannot be read, may be newer: it says which device this is, and no more.
    pub may_be_older: Option<Superblock>,
}

impl Device {
    fn open(claim: Claim) -> Device {
        let found = probe::slots(claim.as_fd(), claim.facts().size);
        let slot_at = found.each_ref().map(|(at, _)| *at);
        let slots = found.map(|(_, bytes)| match bytes.map(|bytes| Superblock::decode(bytes.as_slice())) {
            Ok(Ok(superblock)) => Slot::Whole(Box::new(superblock)),
            Ok(Err(error)) => Slot::Bad(error),
            Err(error) => Slot::Unreadable(error),
        });
        let newer = slots.iter().any(|slot| matches!(slot, Slot::Bad(DecodeError::Newer(_))));
        let whole = slots.iter().filter_map(|slot| if let Slot::Whole(s) = slot { Some(&**s) } else { None });
        let newest = whole.max_by_key(|s| s.newness()).cloned().filter(|_| !newer);
        // As a start has it.
        let (superblock, may_be_older) = match probe::may_be_old(slots.each_ref().map(|slot| matches!(slot, Slot::Unreadable(_))))
        {
            true => (None, newest),
            false => (newest, None),
        };
        Device { superblock, may_be_older, claim, slots, slot_at }
    }

    /// The path by which it was named.
    pub fn path(&self) -> &Path {
        self.claim.path()
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.claim.facts().size
    }

    /// Its claim, to write through where that is what it was taken for.
    pub(super) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Reads `len` bytes at byte `offset`, wherever they lie.
    ///
    /// # Errors
    /// The device's, or that the range is not within it.
    pub fn read(&self, offset: u64, len: u64) -> io::Result<HostBuf> {
        read(&self.claim, offset, len)
    }

    /// Whether it is a member of a pool of a newer format.
    pub fn newer(&self) -> Option<u64> {
        self.slots.iter().find_map(|slot| match slot {
            Slot::Bad(DecodeError::Newer(version)) => Some(*version),
            _ => None,
        })
    }
}

/// Reads by direct I/O in whole pages around what is wanted.
fn read(claim: &Claim, offset: u64, len: u64) -> io::Result<HostBuf> {
    let size = claim.facts().size;
    let end = offset.checked_add(len).filter(|end| *end <= size).ok_or(io::ErrorKind::UnexpectedEof)?;
    let from = offset / PAGE * PAGE;
    let to = end.next_multiple_of(PAGE).min(size);
    match probe::read(claim.as_fd(), from, to - from) {
        Ok(bytes) => Ok(bytes.slice((offset - from) as usize..(end - from) as usize)),
        // What cannot be read may be what lies around it, where the device's blocks are smaller than pages.
        Err(error) if (from, to) != (offset, end) => probe::read(claim.as_fd(), offset, len).map_err(|_| error),
        Err(error) => Err(error),
    }
}

/// The whole pages around a range of a device: from where, to where.
pub(super) fn around(device: &Device, offset: u64, len: u64) -> (u64, u64) {
    (offset / PAGE * PAGE, (offset + len).next_multiple_of(PAGE).min(device.size()))
}

/// Writes whole pages to a device that was claimed for it, and makes sure that they are read as written.
pub(super) fn write_back(device: &Device, offset: u64, bytes: &[u8]) -> io::Result<()> {
    write_pages(device.claim(), offset, bytes)?;
    match device.read(offset, bytes.len() as u64)?.as_slice() == bytes {
        true => Ok(()),
        false => Err(io::Error::other("it reads as something else than what was just written")),
    }
}

/// Writes a range by direct I/O, with what lies around it on its pages as it was.
pub(super) fn patch(claim: &Claim, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let size = claim.facts().size;
    let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= size).ok_or(io::ErrorKind::UnexpectedEof)?;
    let (from, to) = (offset / PAGE * PAGE, end.next_multiple_of(PAGE).min(size));
    if (from, to) == (offset, end) {
        return write_pages(claim, offset, bytes);
    }
    let mut whole = read(claim, from, to - from)?.as_slice().to_vec();
    whole[(offset - from) as usize..][..bytes.len()].copy_from_slice(bytes);
    write_pages(claim, from, &whole)
}

fn write_pages(claim: &Claim, offset: u64, bytes: &[u8]) -> io::Result<()> {
    probe::write(claim.as_fd(), offset, &HostBuf::from_bytes(bytes))
}

/// Devices that were named together.
#[derive(Debug)]
pub struct Media {
    /// In the order in which they were named.
    pub devices: Vec<Device>,
}

impl Media {
    /// Claims devices for reading alone, and reads their superblocks.
    ///
    /// # Errors
    /// One is named twice, held by somebody, or cannot be opened.
    pub fn open(paths: &[PathBuf], patience: Duration) -> Result<Media, OfflineError> {
        Media::open_by(paths, |path| Claim::take_to_read(path, patience))
    }

    /// The same, to be written to as well.
    ///
    /// # Errors
    /// As [`Media::open`].
    pub fn open_to_write(paths: &[PathBuf], patience: Duration) -> Result<Media, OfflineError> {
        Media::open_by(paths, |path| Claim::take(path, patience))
    }

    fn open_by(
        paths: &[PathBuf],
        claim: impl Fn(&Path) -> Result<Claim, crate::claim::ClaimError>,
    ) -> Result<Media, OfflineError> {
        different(paths)?;
        let devices = paths.iter().map(|path| Ok(Device::open(claim(path)?))).collect::<Result<_, OfflineError>>()?;
        Ok(Media { devices })
    }

    /// What a state folder knows of this pool as its witness; nothing there is made or changed. Without a folder, or a
    /// record in it, the vote is missing.
    ///
    /// # Errors
    /// A daemon holds the witness, or it cannot be opened.
    pub fn vote(&self, state: Option<&Path>) -> Result<WitnessVote, OfflineError> {
        let Some(superblock) = self.devices.iter().find_map(|device| device.superblock.as_ref()) else {
            return Ok(WitnessVote::Missing);
        };
        if !superblock.witness {
            return Ok(WitnessVote::None);
        }
        let path = state.map(|state| state.join(format!("witness-{}", hex(&superblock.pool))));
        let Some(path) = path.filter(|path| fs::exists(path).unwrap_or(false)) else { return Ok(WitnessVote::Missing) };
        let claim = Claim::take_to_read(&path, Duration::ZERO)?;
        let slots: io::Result<Vec<HostBuf>> =
            (0..WITNESS_SLOTS).map(|slot| read(&claim, slot * WITNESS_BYTES, WITNESS_BYTES)).collect();
        let slots = slots.unwrap_or_default();
        let slots: Vec<&[u8]> = slots.iter().map(HostBuf::as_slice).collect();
        Ok(newest_witness(&slots, superblock.pool).map_or(WitnessVote::Missing, WitnessVote::Found))
    }

    /// Holds the election among what is there.
    ///
    /// # Errors
    /// The devices are of several pools, a copy of one another, of a newer format or cut short, or proved to be out of date.
    /// That votes are missing is none: [`Pool::unproven`] says so.
    pub fn pool(&self, vote: WitnessVote) -> Result<Pool<'_>, OfflineError> {
        if let Some((device, version)) = self.devices.iter().find_map(|device| Some((device, device.newer()?))) {
            return Err(PoolError::Newer { path: device.path().to_owned(), version }.into());
        }
        let there: Vec<(usize, &Superblock)> =
            self.devices.iter().enumerate().filter_map(|(n, device)| Some((n, device.superblock.as_ref()?))).collect();
        for (n, s) in &there {
            self.fits(*n, s)?;
        }
        let found: Vec<Superblock> = there.iter().map(|(_, s)| (*s).clone()).collect();
        let (election, unproven) = match elect(&found, vote) {
            Ok(election) => (election, None),
            Err(refusal @ Refusal::TooFewVotes { .. }) => (assumed(&found), Some(refusal)),
            Err(Refusal::NoMembers) => return Err(self.no_superblock()),
            Err(refusal) => return Err(OfflineError::Refused(refusal)),
        };
        // By identity: its number may have been another device's before.
        let known = |n: u8| election.superblock.members.get(usize::from(n)).map(|m| (n, m.id));
        let number = |n: u8| there.iter().find(|(_, s)| identity(s) == known(n)).map(|(at, _)| *at);
        let members = election.present.iter().filter_map(|n| Some((*n, number(*n)?))).collect();
        Ok(Pool { media: self, election, unproven, members })
    }

    /// Why no superblock counts.
    fn no_superblock(&self) -> OfflineError {
        match self.devices.iter().find(|device| device.may_be_older.is_some()) {
            Some(device) => OfflineError::MayBeOlder { path: device.path().to_owned() },
            None => OfflineError::NoSuperblock,
        }
    }

    /// Refuses what `serve` refuses, too.
    fn fits(&self, n: usize, s: &Superblock) -> Result<(), OfflineError> {
        let device = &self.devices[n];
        let (path, size) = (device.path().to_owned(), device.size());
        let needed = s.members.get(usize::from(s.member)).map_or(0, |member| member.layout.size);
        if size < needed {
            return Err(PoolError::Shrunk { path, size, needed, pool: s.name.clone() }.into());
        }
        let other = self.devices.iter().find_map(|other| Some((other.path(), other.superblock.as_ref()?)));
        match other.filter(|(_, other)| other.pool != s.pool) {
            Some((other_path, other)) => {
                let named = |s: &Superblock| format!("{} ({})", s.name, hex(&s.pool));
                let (pool, other_pool) = (named(s), named(other));
                Err(PoolError::OtherPool { path, pool, other: other_path.to_owned(), other_pool, late: None }.into())
            }
            None => Ok(()),
        }
    }
}

/// The election as it would be if nothing newer were anywhere.
fn assumed(found: &[Superblock]) -> Election {
    let newest = found.iter().max_by_key(|s| s.newness()).expect("votes were counted").clone();
    let in_sync = (0..newest.members.len() as u8).filter(|m| newest.members[usize::from(*m)].state == MemberState::InSync);
    let known = |s: &Superblock, m: u8| s.members.get(usize::from(m)).map(|e| (e.id, e.layout));
    let is_present = |m: &u8| found.iter().any(|s| s.member == *m && known(s, *m) == known(&newest, *m));
    let (present, missing): (Vec<u8>, Vec<u8>) = in_sync.partition(is_present);
    let stale = found.iter().map(|s| s.member).filter(|m| !present.contains(m)).collect();
    let highest_epoch = newest.epoch;
    Election { superblock: newest, present, missing, behind: Vec::new(), stale, highest_epoch, witness_votes: false }
}

/// A pool at rest, of the superblock that counts.
pub struct Pool<'a> {
    /// All devices that were named.
    pub media: &'a Media,
    /// Which superblock counts, and who is there.
    pub election: Election,
    /// Too few votes prove that nothing newer exists.
    pub unproven: Option<Refusal>,
    /// Members in sync that are there: the place of each in `media.devices`.
    members: BTreeMap<u8, usize>,
}

impl Pool<'_> {
    /// The superblock that counts.
    pub fn superblock(&self) -> &Superblock {
        &self.election.superblock
    }

    /// Members in sync that are there, by number.
    pub fn present(&self) -> impl Iterator<Item = u8> + '_ {
        self.members.keys().copied()
    }

    /// The place of a member in the list of devices.
    pub fn index(&self, member: u8) -> Option<usize> {
        self.members.get(&member).copied()
    }

    /// The number of the member in sync that a device is whose own superblock may be older than one that cannot be read.
    pub(super) fn known(&self, device: &Device) -> Option<u8> {
        let older = device.may_be_older.as_ref()?;
        let s = self.superblock();
        let own = s.members.get(usize::from(older.member)).map(|m| (older.member, m.id));
        let is_missing = older.pool == s.pool && identity(older) == own && self.election.missing.contains(&older.member);
        is_missing.then_some(older.member)
    }

    /// Members that count as missing though they were named: their newest superblock cannot be read.
    pub(super) fn named_but_unread(&self) -> Vec<u8> {
        self.media.devices.iter().filter_map(|device| self.known(device)).collect()
    }

    /// The device of a member.
    pub fn device(&self, member: u8) -> Option<&Device> {
        self.media.devices.get(self.index(member)?)
    }

    /// Where things are on a member.
    pub fn layout(&self, member: u8) -> Option<Layout> {
        self.superblock().members.get(usize::from(member)).map(|m| m.layout)
    }

    /// Reads from a member; `None` if it is not there, or cannot.
    pub fn read(&self, member: u8, offset: u64, len: u64) -> Option<HostBuf> {
        self.device(member)?.read(offset, len).ok()
    }

    /// Slots of a member that is there; 0 for others.
    pub fn slots(&self, member: u8) -> u32 {
        self.index(member).and_then(|_| self.layout(member)).map_or(0, |layout| layout.slots())
    }
}
