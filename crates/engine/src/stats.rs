//! The fate of every request, counted.

/// Why a request was served by the backing device alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Bypass {
    /// Part of a stream.
    Stream,
    /// Large in itself.
    Large,
    /// The volume's mode.
    Mode,
    /// A copy is missing in the pool.
    Degraded,
    /// The space for dirty data is full.
    Full,
    /// The disk is to be written anyway: a discard or zeroing too long to absorb.
    Zeroes,
    /// The disk is expected to do it sooner than the cache devices.
    Sooner,
    /// The cache devices' budget of drive writes does not bear it.
    Endurance,
    /// Space is short, and a sweep would get it down at no better rate than the disk takes it at.
    NoGain,
}

impl Bypass {
    /// All reasons, with the names they are shown under.
    pub const ALL: [(Bypass, &'static str); 9] = [
        (Bypass::Stream, "stream"),
        (Bypass::Large, "large"),
        (Bypass::Mode, "mode"),
        (Bypass::Degraded, "degraded"),
        (Bypass::Full, "full"),
        (Bypass::Zeroes, "zeroes"),
        (Bypass::Sooner, "sooner"),
        (Bypass::Endurance, "endurance"),
        (Bypass::NoGain, "no_gain"),
    ];
}

/// What became of a request that was served; told with its reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fate {
    /// A read answered by the cache alone.
    Hit,
    /// A read of which a part came from the cache.
    PartialHit,
    /// A read answered by the disk.
    Miss,
    /// A read answered by the disk and not admitted.
    ReadBypass,
    /// A write taken into the log.
    Absorbed,
    /// A write that went to the disk.
    WriteBypass,
}

impl Fate {
    /// The name it is shown under.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fate::Hit => "hit",
            Fate::PartialHit => "partial_hit",
            Fate::Miss => "miss",
            Fate::ReadBypass => "read_bypass",
            Fate::Absorbed => "absorbed",
            Fate::WriteBypass => "write_bypass",
        }
    }
}

/// Requests and bytes.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    /// One more, of `bytes`.
    pub fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }
}

/// What became of the requests of a volume.
#[derive(Clone, Default, Debug)]
pub struct VolumeStats {
    /// Reads answered by the cache alone.
    pub hit: Count,
    /// Of these, the ones that were answered from memory, since the cache devices had been read ahead of them.
    pub hit_ahead: Count,
    /// Of the hits, those that other threads than the engine's read by themselves.
    pub hit_beside: Count,
    /// Reads of which a part came from the cache.
    pub partial_hit: Count,
    /// Reads answered by the disk.
    pub miss: Count,
    /// Reads answered by the disk and not admitted: of streams, or since the disk was expected to do it sooner.
    pub read_bypass: Count,
    /// Writes taken into the log.
    pub absorbed: Count,
    /// Writes that went to the disk, by reason, in the order of [`Bypass::ALL`].
    pub write_bypass: [Count; 9],
    /// Of these, the ones that had to overwrite dirty data in order.
    pub ordered_overwrites: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards and zeroings.
    pub zeroed: Count,
    /// Data admitted after a miss.
    pub admitted: Count,
    /// Neighbourhoods (a MiB) that were brought whole, since places in them were missed. The bytes are in `admitted` as well.
    pub read_around: Count,
    /// Data that reads missed and that was not admitted, since the cache devices' budget of drive writes does not bear it.
    pub held_back: Count,
    /// Fills dropped since a write overlapped.
    pub fills_spoiled: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Data destaged.
    pub destaged: Count,
}

/// What the pool did.
#[derive(Clone, Default, Debug)]
pub struct PoolStats {
    /// Bytes written to cache devices, all copies, headers and marks included.
    pub member_bytes: u64,
    /// Records appended.
    pub records: u64,
    /// Checkpoints taken.
    pub checkpoints: u64,
    /// Bytes of checkpoints, both copies.
    pub checkpoint_bytes: u64,
    /// Pieces that failed their checksum or could not be read on one copy, and were repaired from the other.
    pub repaired: u64,
    /// Clean pieces that were damaged, and were read from the disk instead.
    pub damaged_clean: u64,
    /// Dirty pieces damaged on all copies: reading them fails.
    pub damaged_dirty: u64,
    /// Segments moved.
    pub relocated: u64,
    /// Clean segments evicted.
    pub evicted: u64,
    /// Bytes of these that were written again before, since they were asked for or pinned.
    pub carried_bytes: u64,
    /// Members that left.
    pub members_left: u64,
    /// Records completed on a second copy at the start.
    pub completed_at_start: u64,
}
