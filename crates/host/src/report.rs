//! How a daemon stands, as it goes over the control socket and is shown with `--json`.

use headpond_engine::stats::{Bypass, Count};
use headpond_engine::status::VolumeStatus;
use serde::{Deserialize, Serialize};

use crate::device::load;
use crate::requests::{Op, Table};

/// A pool and its volumes. Sizes in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Seconds since the daemon's start, at which all its counters were zero.
    pub uptime_seconds: f64,
    /// The daemon's version, and its process.
    #[serde(default)]
    pub version: String,
    /// Its process.
    #[serde(default)]
    pub process: u32,
    /// Where it took over from another program: for how many seconds nobody answered.
    #[serde(default)]
    pub pause_seconds: Option<f64>,
    /// The pool's name.
    pub pool: String,
    /// Its identity, in hexadecimal.
    pub id: String,
    /// Its epoch.
    pub epoch: u64,
    /// Copies of dirty data that it promises.
    pub copies: u8,
    /// Fewer cache devices are left than copies are promised.
    pub degraded: bool,
    /// Nothing that needs the cache is acknowledged, for want of a majority.
    pub stalled: bool,
    /// The witness could not be told which cache devices are in the pool, and has no vote at a start before it is.
    #[serde(default)]
    pub witness_lags: bool,
    /// Size of a segment.
    pub segment_bytes: u64,
    /// Segments on all members, and how many are free.
    pub segments: u64,
    /// Free segments.
    pub segments_free: u64,
    /// How full the space for dirty data is.
    pub dirty_percent: u32,
    /// Dirty data on fewer cache devices than it could be: it is being copied.
    pub lacking_bytes: u64,
    /// How far the map is read since the start; `None` once all of it is. Until then what is cached, dirty, or lacks a copy is at least what
    /// is told.
    #[serde(default)]
    pub loading: Option<Loading>,
    /// Room that is set aside for volumes without a backing device, each byte of it with its copies.
    #[serde(default)]
    pub set_aside_bytes: u64,
    /// How much may be written to the cache devices, and whether that holds anything back.
    #[serde(default)]
    pub endurance: Endurance,
    /// The scrub that is under way, or what the last one found.
    #[serde(default)]
    pub scrub: Scrub,
    /// What of the volumes is lost: it was dirty, and no cache device has a copy any more. No more than 4,096 ranges are named.
    #[serde(default)]
    pub lost_ranges: Vec<LostRange>,
    /// The cache devices.
    pub members: Vec<Member>,
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// Bytes written to cache devices since the start, all copies.
    pub member_bytes: u64,
    /// Checkpoints taken since the start.
    pub checkpoints: u64,
    /// Pieces repaired from the other copy since the start.
    pub repaired: u64,
    /// What is wrong, and what to do next.
    pub advice: Vec<Advice>,
}

/// How far the map is read while requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loading {
    /// Bytes of the checkpoint that have been read.
    pub read_bytes: u64,
    /// Bytes of the checkpoint.
    pub bytes: u64,
}

/// The budget of what the cache devices may be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Endurance {
    /// How many times its size each cache device may be written in a day; zero: there is no budget.
    pub drive_writes_per_day: f64,
    /// What reads miss is not all cached, for the budget's sake.
    pub reads_held_back: bool,
    /// New writes go to the disk in part, for the budget's sake.
    pub writes_held_back: bool,
}

/// A scrub under way, or the last one of this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scrub {
    /// It is under way.
    pub running: bool,
    /// When the last one ended, in seconds since 1970; `None`: none has on this host.
    pub ended: Option<u64>,
    /// Segments read, of `segments`.
    pub segments_read: u64,
    /// Segments that held something when it began.
    pub segments: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Copies that were damaged, or could not be read.
    pub damaged: u64,
    /// Of these, the ones that are whole again.
    pub repaired: u64,
    /// Of these, the ones of clean data, which was let go: the disk has it.
    pub dropped: u64,
    /// Of these, dirty data of which no copy is whole: reading it fails.
    pub lost: u64,
    /// On which cache devices damaged copies were; of what is lost, all copies.
    pub damaged_on: Vec<DamagedOn>,
    /// Where what is lost is; no more than 4,096 blocks are named.
    pub lost_ranges: Vec<LostRange>,
}

impl Scrub {
    /// Where damaged copies were, for people: how many, and on which cache device; nothing where there were none.
    #[must_use]
    pub fn damaged_places(&self) -> String {
        let one = |it: &DamagedOn| format!("{} on {}", it.copies, cache_device(it.number, it.path.as_deref()));
        self.damaged_on.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// Damaged copies on a cache device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DamagedOn {
    /// Its number then.
    pub number: u8,
    /// Where it was.
    pub path: Option<String>,
    /// How many.
    pub copies: u64,
}

/// A cache device, for people.
#[must_use]
pub fn cache_device(number: u8, path: Option<&str>) -> String {
    format!("cache device {number}{}", path.map(|path| format!(" ({path})")).unwrap_or_default())
}

/// Data of a volume that cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRange {
    /// The volume's name.
    pub volume: String,
    /// Where it begins on the volume, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// A cache device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub number: u8,
    /// Where it is, or was last seen.
    pub path: Option<String>,
    /// `in sync`, `being emptied`, or `out`.
    pub state: String,
    /// Its size.
    pub bytes: u64,
    /// Its segments.
    pub segments: u32,
    /// Its free segments.
    pub segments_free: u32,
    /// Dirty data of which a copy is on it.
    pub dirty_bytes: u64,
    /// Copies that were found damaged on it, or that it could not read, since the daemon's start, or since it was added; each as often as it
    /// was found.
    #[serde(default)]
    pub damaged: u64,
    /// Bytes written to it in the last 23 to 24 hours, or since the daemon's start if that is less.
    #[serde(default)]
    pub written_day_bytes: u64,
    /// Bytes that it may be written in a day; zero: there is no budget.
    #[serde(default)]
    pub budget_day_bytes: u64,
    /// Bytes that its budget has left; less than nothing where more had to be written.
    #[serde(default)]
    pub budget_left_bytes: i64,
    /// What it was asked to do.
    pub load: Load,
}

/// What a device was asked to do since the start, or since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Reads.
    pub reads: Pair,
    /// Writes.
    pub writes: Pair,
    /// Bytes of either that went between clients' own memory and the device, without a copy.
    #[serde(default)]
    pub zero_copy_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards and zeroings.
    pub zeroings: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Operations on their way now.
    pub in_flight: u64,
    /// Seconds in which there was at least one.
    pub busy_seconds: f64,
    /// The seconds of all operations added up.
    pub waited_seconds: f64,
}

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// Its number.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// It has no backing device: what it holds is on the cache devices alone.
    #[serde(default)]
    pub without_disk: bool,
    /// Its backing device, as it was named.
    pub backing: Option<String>,
    /// What identifies that device.
    pub identity: String,
    /// Its size.
    pub bytes: u64,
    /// Where its grid of blocks begins, in sectors.
    pub phase: u8,
    /// Its mode.
    pub mode: String,
    /// Whether requests are answered.
    pub serving: bool,
    /// Where clients find it: its block device, by a name that the kernel gives anew at each start, or its export.
    pub place: Option<String>,
    /// The block device's name that lasts, where udev has made it.
    #[serde(default)]
    pub link: Option<String>,
    /// Bytes cached, dirty ones included.
    pub cached_bytes: u64,
    /// Bytes that the disk does not have yet; none where there is no disk.
    pub dirty_bytes: u64,
    /// Of a volume without a backing device: bytes that it holds. They stay where they are.
    #[serde(default)]
    pub kept_bytes: u64,
    /// Bytes that were dirty, and of which no cache device has a copy any more: reading them fails.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Bytes that are pinned: kept in the cache, or brought back to it while the disk is idle.
    #[serde(default)]
    pub pinned_bytes: u64,
    /// What it has of the pool, and what it may have.
    #[serde(default)]
    pub share: Share,
    /// Memory of its map.
    pub map_bytes: u64,
    /// A sweep is under way.
    pub destaging: bool,
    /// What became of its requests since the start.
    pub requests: Requests,
    /// How long they took.
    pub times: Times,
    /// What its backing device was asked to do.
    pub disk: Load,
}

/// What a volume has of the pool. Bytes are those of whole segments, all copies counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// What it holds, dirty and clean.
    pub held_bytes: u64,
    /// Percent of the pool's segments that others leave to it.
    pub min_percent: u8,
    /// The same in bytes.
    pub min_bytes: u64,
    /// Percent that it takes at most.
    pub max_percent: u8,
    /// The same in bytes; none where it may have all.
    pub max_bytes: Option<u64>,
}

impl Default for Share {
    fn default() -> Self {
        Self { held_bytes: 0, min_percent: 0, min_bytes: 0, max_percent: 100, max_bytes: None }
    }
}

impl Share {
    /// Whether it was ever said what the volume is to have.
    pub fn is_set(&self) -> bool {
        (self.min_percent, self.max_percent) != (0, 100)
    }
}

/// How long requests took since the start, by what was asked.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// Reads.
    pub read: Took,
    /// Writes.
    pub write: Took,
    /// Flushes.
    pub flush: Took,
    /// Discards and zeroings.
    pub zero: Took,
}

/// Requests, and their times added up.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Took {
    /// How many were answered.
    pub requests: u64,
    /// From their arrival at the engine to their answers.
    pub seconds: f64,
}

/// What became of requests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Requests {
    /// Reads answered by the cache alone.
    pub hit: Pair,
    /// Of these, the ones that a queue's thread served by itself.
    #[serde(default)]
    pub hit_beside: Pair,
    /// Reads of which a part came from the cache.
    pub partial_hit: Pair,
    /// Reads answered by the disk.
    pub miss: Pair,
    /// Reads of streams, answered by the disk and not admitted.
    pub read_bypass: Pair,
    /// Writes taken into the log.
    pub absorbed: Pair,
    /// Writes that went to the disk, by reason.
    pub write_bypass: Vec<(String, Pair)>,
    /// Discards and zeroings.
    pub zeroed: Pair,
    /// Data admitted after a miss.
    pub admitted: Pair,
    /// Neighbourhoods (a MiB) that were brought whole, since places in them were missed; the bytes are in `admitted` too.
    #[serde(default)]
    pub read_around: Pair,
    /// Data that reads missed and that was not admitted, for the cache devices' endurance.
    #[serde(default)]
    pub held_back: Pair,
    /// Data destaged.
    pub destaged: Pair,
    /// Flushes.
    pub flushes: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// Requests, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// How many.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Something that is wrong.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Advice {
    /// What it is.
    pub wrong: String,
    /// What to do next.
    pub next: String,
}

impl Volume {
    /// The share of reads that the cache answered alone, in percent; `None` before the first read.
    pub fn hit_percent(&self) -> Option<u64> {
        let r = &self.requests;
        let reads = r.hit.requests + r.partial_hit.requests + r.miss.requests + r.read_bypass.requests;
        (r.hit.requests * 100).checked_div(reads)
    }
}

impl From<Count> for Pair {
    fn from(count: Count) -> Pair {
        Pair { requests: count.requests, bytes: count.bytes }
    }
}

impl From<load::Load> for Load {
    fn from(l: load::Load) -> Load {
        Load {
            reads: Pair { requests: l.reads, bytes: l.read_bytes },
            writes: Pair { requests: l.writes, bytes: l.written_bytes },
            zero_copy_bytes: l.lent_bytes,
            flushes: l.flushes,
            zeroings: l.zeroings,
            failed: l.failed,
            in_flight: l.in_flight,
            busy_seconds: l.busy_ns as f64 / 1e9,
            waited_seconds: l.waited_ns as f64 / 1e9,
        }
    }
}

impl Times {
    /// Of the volume with this number.
    pub fn of(volume: u16, requests: &Table) -> Times {
        let took = |op: Op| {
            let (mut count, mut ns) = (0, 0);
            for (.., seen) in requests.iter().filter(|(v, o, ..)| (*v, *o) == (volume, op)) {
                (count, ns) = (count + seen.times.count(), ns + seen.times.sum());
            }
            Took { requests: count, seconds: ns as f64 / 1e9 }
        };
        Times { read: took(Op::Read), write: took(Op::Write), flush: took(Op::Flush), zero: took(Op::Zero) }
    }
}

impl Requests {
    /// Of a volume.
    pub fn of(volume: &VolumeStatus) -> Requests {
        let s = &volume.stats;
        let reasons = Bypass::ALL.iter().zip(s.write_bypass);
        Requests {
            hit: s.hit.into(),
            hit_beside: s.hit_beside.into(),
            partial_hit: s.partial_hit.into(),
            miss: s.miss.into(),
            read_bypass: s.read_bypass.into(),
            absorbed: s.absorbed.into(),
            write_bypass: reasons.map(|((_, name), count)| ((*name).to_owned(), count.into())).collect(),
            zeroed: s.zeroed.into(),
            admitted: s.admitted.into(),
            read_around: s.read_around.into(),
            held_back: s.held_back.into(),
            destaged: s.destaged.into(),
            flushes: s.flushes,
            errors: s.errors,
        }
    }
}
