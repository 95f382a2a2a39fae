//! Our own load, checked sector by sector: it knows what each sector of its region must read as.
//!
//! fio checks whole blocks and forgets one when a newer write overlaps it. This load does neither: requests of any length, from one sector to
//! 1 MiB, at any sector, over each other; writes, durable writes, trims, zeroes, flushes and reads, many at a time.
//! An acknowledged change holds from then on. A change that nobody acknowledged, because the daemon died, may have been done or not,
//! sector by sector; the first read settles which, and that holds from then on too.

use anyhow::{Context, Result, bail};
use headpond_host::buf::HostBuf;
use headpond_host::nbd::client::{Client, ClientError, Request};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of a sector.
const SECTOR: usize = 512;
/// Sectors of a block of the volume's grid, to which trims are rounded inwards.
const BLOCK: u64 = 8;
/// Most sectors of a request.
const LONGEST: u64 = 2048;
/// Requests outstanding on a connection.
const DEPTH: usize = 8;
/// Entries of a region's story, beyond which the older half is forgotten.
const STORY: usize = 100_000;

/// What is asked of a volume, in bytes.
pub enum Ask<'a> {
    Read(u64, u32),
    Write(u64, &'a [u8], bool),
    Trim(u64, u32),
    Zeroes(u64, u32),
    Flush,
}

/// Why a request did not get its answer.
#[derive(Debug)]
pub enum Trouble {
    /// The daemon is gone: nobody knows whether it was done.
    Gone(String),
    /// It was answered with an error, or with what makes no sense.
    Failed(String),
}

/// How requests get to a volume.
pub enum Target {
    /// Many at a time over NBD.
    Nbd(Box<Client>),
    /// One at a time on a block device, whose page cache is left out.
    Device { device: File, done: VecDeque<(u64, Result<Vec<u8>, Trouble>)>, next: u64 },
}

impl Target {
    /// A block device.
    pub fn device(path: &Path) -> Result<Target> {
        let flags = OFlags::DIRECT.bits() as i32;
        let device = File::options().read(true).write(true).custom_flags(flags).open(path);
        let device = device.with_context(|| format!("{} cannot be opened", path.display()))?;
        Ok(Target::Device { device, done: VecDeque::new(), next: 0 })
    }

    /// A trim makes all of its range zeroes, rather than the whole blocks in it.
    fn trims_all(&self) -> bool {
        matches!(self, Target::Device { .. })
    }

    fn begin(&mut self, ask: &Ask<'_>) -> Result<u64, Trouble> {
        match self {
            Target::Nbd(client) => {
                let request = match *ask {
                    Ask::Read(offset, len) => Request::Read { offset, len },
                    Ask::Write(offset, data, fua) => Request::Write { offset, data, fua },
                    Ask::Trim(offset, len) => Request::Trim { offset, len },
                    Ask::Zeroes(offset, len) => Request::WriteZeroes { offset, len },
                    Ask::Flush => Request::Flush,
                };
                client.begin(request).map_err(broken)
            }
            Target::Device { device, done, next } => {
                let number = *next;
                *next += 1;
                done.push_back((number, on_device(device, ask)));
                Ok(number)
            }
        }
    }

    fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, Trouble> {
        match self {
            Target::Nbd(client) => match client.next().map_err(broken)? {
                Some(done) => {
                    let result = done.result.map(|data| Some((done.cookie, data)));
                    result.map_err(|errno| Trouble::Failed(format!("the daemon answered a request with error {errno}")))
                }
                None => Ok(None),
            },
            Target::Device { done, .. } => match done.pop_front() {
                Some((number, Ok(data))) => Ok(Some((number, data))),
                Some((_, Err(trouble))) => Err(trouble),
                None => Ok(None),
            },
        }
    }
}

fn broken(error: ClientError) -> Trouble {
    match error {
        ClientError::Closed | ClientError::Io(_) | ClientError::Connect(..) => Trouble::Gone(error.to_string()),
        error => Trouble::Failed(error.to_string()),
    }
}

/// On a block device an error is how a dead daemon shows; whether it was dead is the caller's to know.
fn on_device(device: &File, ask: &Ask<'_>) -> Result<Vec<u8>, Trouble> {
    let keep = FallocateFlags::KEEP_SIZE;
    let result = match *ask {
        Ask::Read(offset, len) => {
            let mut buffer = HostBuf::filled_by(len as usize, |bytes| bytes.fill(0));
            let read = match buffer.get_mut() {
                Some(room) => device.read_exact_at(room, offset),
                None => Err(std::io::ErrorKind::OutOfMemory.into()),
            };
            read.map(|()| buffer.as_slice().to_vec())
        }
        Ask::Write(offset, data, durable) => {
            let buffer = HostBuf::filled_by(data.len(), |bytes| bytes.copy_from_slice(data));
            let written = device.write_all_at(buffer.as_slice(), offset);
            written.and_then(|()| if durable { device.sync_data() } else { Ok(()) }).map(|()| Vec::new())
        }
        Ask::Trim(offset, len) => {
            let hole = fallocate(device, FallocateFlags::PUNCH_HOLE | keep, offset, u64::from(len));
            hole.map(|()| Vec::new()).map_err(Into::into)
        }
        Ask::Zeroes(offset, len) => {
            let zeroes = fallocate(device, FallocateFlags::ZERO_RANGE | keep, offset, u64::from(len));
            zeroes.map(|()| Vec::new()).map_err(Into::into)
        }
        Ask::Flush => device.sync_data().map(|()| Vec::new()),
    };
    result.map_err(|error| Trouble::Gone(error.to_string()))
}

/// Chance, from a seed (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// What a write with this stamp puts into a sector; stamp 0 is zeroes.
fn content(stamp: u64, sector: u64, to: &mut [u8]) {
    if stamp == 0 {
        return to.fill(0);
    }
    let start = Dice(stamp ^ sector.rotate_left(40)).below(u64::MAX);
    for (n, word) in (0..).zip(to.chunks_exact_mut(8)) {
        let value = match n {
            0 => stamp,
            1 => sector,
            n => start.wrapping_mul(2 * n + 1),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// A request that is on its way.
struct Sent {
    /// Sectors of the region.
    range: Range<usize>,
    what: What,
}

enum What {
    Read,
    Flush,
    /// From this sector of the region on these stamps; and the number of its line in the story.
    Change(usize, Vec<u64>, usize),
}

/// A region of a volume, and what it must read as.
pub struct Model {
    /// The first sector.
    first: u64,
    stamps: Vec<u64>,
    /// Changes that nobody acknowledged.
    torn: Vec<(usize, Vec<u64>)>,
    dice: Dice,
    last_stamp: u64,
    /// What was asked, and how it ended: for when something is wrong.
    story: Vec<(Range<usize>, String)>,
    /// Changes that were acknowledged.
    pub acknowledged: u64,
    /// Sectors that were read and were right.
    pub compared: u64,
    /// Changes that a kill cut off.
    pub cut_off: u64,
}

impl Model {
    /// A region of zeroes.
    pub fn new(first: u64, sectors: usize, seed: u64) -> Model {
        let mut dice = Dice(seed ^ first << 20);
        // So that what an earlier run left does not look like ours.
        let last_stamp = 1 + (dice.below(1 << 31) << 32);
        let (stamps, torn, story) = (vec![0; sectors], Vec::new(), Vec::new());
        Model { first, stamps, torn, dice, last_stamp, story, acknowledged: 0, compared: 0, cut_off: 0 }
    }

    /// Asks at random until `until` says so, then waits for all answers; or until the daemon is gone, whose unacknowledged changes then
    /// are in doubt.
    pub fn load(&mut self, target: &mut Target, until: impl Fn() -> bool) -> Result<(), Trouble> {
        // Here, as requests under way know their lines by number.
        if self.story.len() > STORY {
            self.story.drain(..STORY / 2);
        }
        let mut sent: HashMap<u64, Sent> = HashMap::new();
        let result = self.ask_on(target, &mut sent, until);
        for (_, Sent { what, .. }) in sent {
            if let What::Change(at, stamps, line) = what {
                self.cut_off += 1;
                self.story[line].1.push_str(", not acknowledged");
                self.torn.push((at, stamps));
            }
        }
        result
    }

    fn ask_on(&mut self, target: &mut Target, sent: &mut HashMap<u64, Sent>, until: impl Fn() -> bool) -> Result<(), Trouble> {
        let mut data = vec![0; LONGEST as usize * SECTOR];
        loop {
            while sent.len() < DEPTH && !until() {
                let (request, bytes) = self.choose(sent, target.trims_all());
                let offset = (self.first + request.range.start as u64) * SECTOR as u64;
                let len = (request.range.len() * SECTOR) as u32;
                let ask = match (&request.what, bytes) {
                    (What::Read, _) => Ask::Read(offset, len),
                    (What::Flush, _) => Ask::Flush,
                    (What::Change(at, stamps, _), Bytes::Data { durable }) => {
                        let data = &mut data[..len as usize];
                        for (n, sector) in data.chunks_exact_mut(SECTOR).enumerate() {
                            content(stamps[n], self.first + (at + n) as u64, sector);
                        }
                        Ask::Write(offset, data, durable)
                    }
                    (What::Change(..), Bytes::Trim) => Ask::Trim(offset, len),
                    (What::Change(..), Bytes::Zeroes) => Ask::Zeroes(offset, len),
                };
                // What fails while it is being sent may have arrived, too.
                match target.begin(&ask) {
                    Ok(number) => sent.insert(number, request),
                    Err(trouble) => {
                        sent.insert(u64::MAX, request);
                        return Err(trouble);
                    }
                };
            }
            let Some((number, data)) = target.next()? else { return Ok(()) };
            let Some(Sent { range, what }) = sent.remove(&number) else {
                return Err(Trouble::Failed("an answer to nothing came".into()));
            };
            match what {
                What::Flush => {}
                What::Read => {
                    self.compare(range.start, &data, "read under load").map_err(|e| Trouble::Failed(format!("{e:#}")))?
                }
                What::Change(at, stamps, _) => {
                    self.acknowledged += 1;
                    self.stamps[at..at + stamps.len()].copy_from_slice(&stamps);
                }
            }
        }
    }

    /// The next request, away from those under way: what comes of two at once is anybody's guess.
    fn choose(&mut self, sent: &HashMap<u64, Sent>, trims_all: bool) -> (Sent, Bytes) {
        let kind = self.dice.below(32);
        if kind == 0 {
            return (Sent { range: 0..0, what: What::Flush }, Bytes::Data { durable: false });
        }
        let range = loop {
            let most = [1, 8, 16, 16, 64, 64, 256, LONGEST][self.dice.below(8) as usize];
            let len = 1 + self.dice.below(most) as usize;
            let at = self.dice.below((self.stamps.len() - len) as u64) as usize;
            if sent.values().all(|other| other.range.end <= at || at + len <= other.range.start) {
                break at..at + len;
            }
        };
        let (from, to) = (self.first + range.start as u64, self.first + range.end as u64);
        let (changed, stamp, bytes, verb) = match kind {
            1..10 => return (Sent { range, what: What::Read }, Bytes::Data { durable: false }),
            10..12 if trims_all => (from..to, 0, Bytes::Trim, "trim"),
            10..12 => {
                let inner = from.next_multiple_of(BLOCK)..(to / BLOCK * BLOCK);
                (if inner.is_empty() { from..from } else { inner }, 0, Bytes::Trim, "trim")
            }
            12..14 => (from..to, 0, Bytes::Zeroes, "zeroes"),
            kind => {
                self.last_stamp += 1;
                let durable = kind < 17;
                (from..to, self.last_stamp, Bytes::Data { durable }, if durable { "durable write" } else { "write" })
            }
        };
        self.story.push((range.clone(), format!("{verb} {stamp:#x}")));
        let stamps = vec![stamp; (changed.end - changed.start) as usize];
        let what = What::Change((changed.start - self.first) as usize, stamps, self.story.len() - 1);
        (Sent { range, what }, bytes)
    }

    /// After a restart: settles what is in doubt, and compares everything.
    pub fn settle(&mut self, target: &mut Target, when: &str) -> Result<()> {
        // A few MiB at a time, whatever the region's size.
        let step = 8192;
        self.story.push((0..self.stamps.len(), when.to_owned()));
        let torn = std::mem::take(&mut self.torn);
        for at in (0..self.stamps.len()).step_by(step) {
            let len = step.min(self.stamps.len() - at);
            let offset = (self.first + at as u64) * SECTOR as u64;
            let mut data = Vec::with_capacity(len * SECTOR);
            let asked = target.begin(&Ask::Read(offset, (len * SECTOR) as u32)).and_then(|_| target.next());
            match asked {
                Ok(Some((_, read))) => data.extend_from_slice(&read),
                Ok(None) => bail!("{when}: a read was not answered"),
                Err(Trouble::Gone(why) | Trouble::Failed(why)) => bail!("{when}: reading {len} sectors at {offset} bytes: {why}"),
            }
            for (from, stamps) in &torn {
                for (n, stamp) in stamps.iter().enumerate().filter(|(n, _)| (at..at + len).contains(&(from + n))) {
                    let found = &data[(from + n - at) * SECTOR..][..SECTOR];
                    if self.is(from + n, *stamp, found) {
                        self.stamps[from + n] = *stamp;
                    }
                }
            }
            self.compare(at, &data, when)?;
        }
        Ok(())
    }

    fn is(&self, at: usize, stamp: u64, found: &[u8]) -> bool {
        let mut wanted = [0; SECTOR];
        content(stamp, self.first + at as u64, &mut wanted);
        wanted == found
    }

    /// Compares what was read from sector `at` of the region on.
    fn compare(&mut self, at: usize, found: &[u8], when: &str) -> Result<()> {
        let sectors = || found.chunks_exact(SECTOR).enumerate();
        let wrong: Vec<usize> =
            sectors().filter(|(n, bytes)| !self.is(at + n, self.stamps[at + n], bytes)).map(|(n, _)| n).collect();
        let Some(first) = wrong.first() else {
            self.compared += sectors().count() as u64;
            return Ok(());
        };
        let word = |n: usize| u64::from_le_bytes(found[first * SECTOR + n * 8..][..8].try_into().unwrap_or_default());
        let mut what = format!(
            "MISMATCH {when}: {} of {} sectors from {} on are not what was acknowledged. The first is sector {}: it begins with stamp {:#x} \
             of sector {}, and stamp {:#x} was acknowledged. What was asked there:",
            wrong.len(),
            sectors().count(),
            self.first + at as u64,
            self.first + (at + first) as u64,
            word(0),
            word(1),
            self.stamps[at + first],
        );
        let about: Vec<_> = self.story.iter().filter(|(range, _)| range.contains(&(at + first))).collect();
        for (range, line) in &about[about.len().saturating_sub(12)..] {
            let _ = write!(what, "\n      sectors {} +{}: {line}", self.first + range.start as u64, range.len());
        }
        bail!(what)
    }

    /// Compares all of it with a file or device that holds the volume's content.
    pub fn compare_with(&mut self, path: &Path, when: &str) -> Result<()> {
        let mut data = vec![0; self.stamps.len() * SECTOR];
        let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
        file.read_exact_at(&mut data, self.first * SECTOR as u64)?;
        self.compare(0, &data, when)
    }
}

/// How a change is asked for.
enum Bytes {
    Data { durable: bool },
    Trim,
    Zeroes,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const SECTORS: usize = 4096;

    /// A file for a device; the page cache is as good as any here.
    fn device() -> (tempfile::TempDir, std::path::PathBuf, Target) {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("device");
        let device = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        device.set_len(8 * SECTORS as u64 * SECTOR as u64).unwrap();
        (folder, path, Target::Device { device, done: VecDeque::new(), next: 0 })
    }

    fn load(model: &mut Model, target: &mut Target, requests: u32) {
        let left = Cell::new(requests);
        let until = || left.replace(left.get().saturating_sub(1)) == 0;
        model.load(target, until).unwrap();
    }

    #[test]
    fn a_device_that_keeps_what_it_acknowledged_passes() {
        let (_folder, path, mut target) = device();
        let mut model = Model::new(4099, SECTORS, 7);
        for _ in 0..3 {
            load(&mut model, &mut target, 300);
            model.settle(&mut target, "between loads").unwrap();
        }
        model.compare_with(&path, "in the file").unwrap();
        assert!(model.acknowledged > 300 && model.compared >= 4 * SECTORS as u64);
    }

    #[test]
    fn one_sector_that_is_older_than_it_was_acknowledged_is_found_and_named() {
        let (_folder, path, mut target) = device();
        let mut model = Model::new(4099, SECTORS, 8);
        load(&mut model, &mut target, 200);
        let (before, file) = (model.stamps.clone(), File::options().read(true).write(true).open(&path).unwrap());
        let mut old = vec![0; SECTORS * SECTOR];
        file.read_exact_at(&mut old, 4099 * SECTOR as u64).unwrap();
        load(&mut model, &mut target, 200);
        let lost = (0..SECTORS).find(|n| model.stamps[*n] != before[*n]).unwrap();
        file.write_all_at(&old[lost * SECTOR..][..SECTOR], (4099 + lost as u64) * SECTOR as u64).unwrap();
        let said = model.settle(&mut target, "after a restart").unwrap_err().to_string();
        assert!(said.starts_with("MISMATCH after a restart: 1 of"), "{said}");
        assert!(said.contains(&format!("sector {}:", 4099 + lost)), "{said}");
    }

    #[test]
    fn a_change_that_nobody_acknowledged_may_be_half_done_and_then_stays_so() {
        let (_folder, path, mut target) = device();
        let mut model = Model::new(4099, SECTORS, 9);
        load(&mut model, &mut target, 100);
        let stamp = model.last_stamp + 1;
        model.torn.push((10, vec![stamp; 4]));
        let file = File::options().write(true).open(&path).unwrap();
        let put = |stamp: u64, at: u64| {
            let mut sector = [0; SECTOR];
            content(stamp, 4099 + at, &mut sector);
            file.write_all_at(&sector, (4099 + at) * SECTOR as u64).unwrap();
        };
        let before = model.stamps[12];
        put(stamp, 11);
        put(stamp, 12);
        model.settle(&mut target, "after a restart").unwrap();
        assert!(model.stamps[11] == stamp && model.stamps[12] == stamp && model.stamps[10] != stamp);
        put(before, 12);
        assert!(model.settle(&mut target, "later").is_err());
    }
}
