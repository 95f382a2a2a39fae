//! What can be set, with defaults that need no tuning.

/// What a write-back volume does with new writes while its pool has one copy less than it should.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Degraded {
    /// New writes go to the disk before they are acknowledged.
    WriteThrough,
    /// New writes are absorbed, on one copy.
    Continue,
    /// New writes fail.
    ReadOnly,
}

/// Settings of an engine. Sizes in bytes, times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A run of requests that continue each other is a stream from this length on, and goes past the cache.
    pub stream_bytes: u64,
    /// A single write of at least this goes past the cache.
    pub large_bytes: u64,
    /// Longest read, in one request, whose data is admitted.
    pub admit_bytes: u64,
    /// Whether neighbourhoods (a MiB) in which places are missed here and there are brought into the cache whole: see [`crate::policy::around`].
    pub read_around: bool,
    /// Whether hits and small writes go to the disk where it is expected to serve them sooner than the cache devices.
    pub route: bool,
    /// The most that is read from the cache devices ahead of small reads that follow each other, and kept in memory for them;
    /// zero: nothing, and never more than 1 MiB. A disk does the same with its own buffer, and answers such reads sooner than an SSD answers one. It is enough
    /// to keep an SSD at its full speed; 64 readers are followed at once, with up to twice this in memory for each.
    pub ahead_bytes: u64,
    /// Longest write-zeroes or discard that is absorbed.
    pub zeroes_bytes: u64,
    /// The most of the cache's segments, in percent, that may hold dirty data before writes go to the disk.
    pub dirty_percent: u32,
    /// Destage begins, beside clients' disk I/O, when this many percent of what may be dirty is taken, or would be when the
    /// sweep has gone round.
    pub destage_percent: u32,
    /// What has been dirty for so long, in nanoseconds, is destaged though clients use the disk, one write at a time. 0: it waits until the disk is idle, or
    /// the space is wanted.
    pub dirty_age_ns: u64,
    /// The disk is idle when clients have not used it for this long, in nanoseconds, and for twice as long as they lately left it, but no more than twenty times
    /// as long as this. Sweeps over an idle disk begin five times as long apart.
    pub idle_ns: u64,
    /// Runs in one chunk of a destage sweep, unless more are in flight than the least or the disk is slow; each chunk ends
    /// with one disk flush.
    pub chunk_runs: usize,
    /// The least writes to the disk that a sweep keeps in flight; more where the disk makes use of them.
    pub destage_depth: usize,
    /// Largest write of a sweep.
    pub destage_run_bytes: u64,
    /// A checkpoint is taken when this much was appended since the last one began, or 512 bytes for each piece that is cached, if that is more.
    pub checkpoint_bytes: u64,
    /// An image of the map of up to so many pages (64 KiB, some 2,000 pieces) is read before the first request is answered; a larger one
    /// while requests are.
    pub pages_at_start: u32,
    /// Segments that only marks, moves and invalidations may take, at least; one for each volume, in no more than an eighth of all, if that is more.
    pub reserve_segments: u32,
    /// Percent of the segments kept free ahead of demand.
    pub free_percent: u32,
    /// Records in flight at once on a volume's log.
    pub appends: usize,
    /// Records in flight on one of its open segments, at least 1, from which on only what fills another goes: what is less waits for one to
    /// end. Clean data does not wait for that.
    pub unfilled_appends: usize,
    /// How long clean data of clients' requests waits for more of it to share a record with. It is in memory meanwhile, and who reads it
    /// again finds it there. Zero: not at all. Of what waits longer, since cache devices are slow, no more is let in than 64 records' data
    /// for each volume, with what requests have under way then.
    pub gather_ns: u64,
    /// Blocks that are let go of without a pause where a whole volume's are: a map may have a billion, and everybody waits meanwhile. About as many
    /// are looked at without one where all that is cached is.
    pub let_go_blocks: usize,
    /// Longest data of one record. A longer one costs fewer device operations; what is in it is acknowledged as a whole.
    pub record_bytes: u64,
    /// Slots that a pool has for each open segment more of each queue that a volume's clean data is spread over, one on each cache
    /// device: see [`crate::policy::lanes`].
    pub lane_slots: u64,
    /// A cache device that answers nothing for this long has left; so has one that answers others and leaves one request without an
    /// answer for three times as long.
    pub member_timeout_ns: u64,
    /// How many times its size each cache device may be written in a day, in thousandths; zero: there is no such budget. Where it is
    /// spent, what reads miss is not cached, and new writes go to the disk: see [`crate::policy::endurance`].
    pub drive_writes_milli: u32,
    /// What happens to new writes while a copy is missing.
    pub degraded: Degraded,
    /// A start goes on for good without members that are missing, though they may hold all copies of dirty data. Volumes that
    /// may lack some are refused then.
    pub without_missing: bool,
    /// The most pieces that the map may hold: the hard cap of memory. Zero: as many as the checkpoint areas can describe, which are the
    /// most in any case. 24 bytes of memory each where blocks lie densely.
    pub max_pieces: u64,
    /// The most memory that the maps may take, in bytes, where blocks lie so far apart that fewer pieces than that take it. Zero: whatever these take.
    pub max_map_bytes: u64,
    /// The most pieces beyond the first of their block, of a volume with a disk.
    pub max_fragments: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stream_bytes: 512 << 10,
            large_bytes: 1 << 20,
            admit_bytes: 256 << 10,
            read_around: true,
            route: true,
            ahead_bytes: 128 << 10,
            zeroes_bytes: 1 << 20,
            dirty_percent: 80,
            destage_percent: 50,
            dirty_age_ns: 24 * 3_600_000_000_000,
            idle_ns: 200_000_000,
            chunk_runs: 2048,
            destage_depth: 32,
            destage_run_bytes: 1 << 20,
            checkpoint_bytes: 1 << 30,
            pages_at_start: 16,
            reserve_segments: 2,
            free_percent: 5,
            appends: 4,
            unfilled_appends: 1,
            gather_ns: 250_000_000,
            let_go_blocks: 16 << 10,
            record_bytes: 128 << 10,
            lane_slots: 64,
            member_timeout_ns: 10_000_000_000,
            drive_writes_milli: 0,
            degraded: Degraded::WriteThrough,
            without_missing: false,
            max_pieces: 0,
            max_map_bytes: 0,
            max_fragments: 1 << 20,
        }
    }
}
