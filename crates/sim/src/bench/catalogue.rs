//! The loads that `headpond bench` runs.

use super::clients::{Clients, Pace, Pattern};
use super::load::{Cache, Load, Mark, SsdKind};
use crate::models::SECOND;
use headpond_engine::Settings;
use headpond_engine::format::Mode;
use std::ops::Range;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Fits into every cache here.
const HOT: Range<u64> = 0..512 * MIB;
/// Fits into a cache that is made for it, and is not gone round in a window: of a smaller one a drive still has the end of the last lap in
/// its own cache, and what that gives depends on how a lap and a revolution meet. Of 65 regions of 384 to 640 MiB a stream that leaves
/// out the first 448 KiB of each lap had 0.88 to 1.13 of one that does not.
const ONCE: Range<u64> = 0..8 * GIB;
/// Fits into none.
const WIDE: Range<u64> = 0..64 * GIB;
/// Beside what other clients use.
const BESIDE: Range<u64> = 64 * GIB..128 * GIB;

/// The promise: never slower than the disk alone, to 3 %.
const NEVER_SLOWER: Mark = Mark { alone: false, at_least: 0.97 };

fn clients(name: &'static str, reads: u64, pattern: Pattern, bytes: u64, depth: u32, region: Range<u64>) -> Clients {
    Clients {
        name,
        pattern,
        sizes: vec![bytes],
        skew: 0,
        reads,
        region,
        pace: Pace::Closed(depth),
        flushed: false,
        commits: false,
    }
}

fn reads(pattern: Pattern, bytes: u64, depth: u32, region: Range<u64>) -> Clients {
    clients("reads", 100, pattern, bytes, depth, region)
}

fn writes(pattern: Pattern, bytes: u64, depth: u32, region: Range<u64>) -> Clients {
    clients("writes", 0, pattern, bytes, depth, region)
}

fn mixed(pattern: Pattern, bytes: u64, depth: u32, region: Range<u64>) -> Clients {
    clients("reads and writes", 70, pattern, bytes, depth, region)
}

impl Clients {
    fn skewed(mut self, bytes: u64) -> Self {
        self.skew = bytes;
        self
    }
    fn flushed(mut self) -> Self {
        self.flushed = true;
        self
    }
    fn bursts(mut self, requests: u32, every_ns: u64) -> Self {
        self.pace = Pace::Bursts { requests, every_ns };
        self
    }
    fn commits(mut self) -> Self {
        (self.flushed, self.commits) = (true, true);
        self
    }
    fn sized(mut self, sizes: &[u64]) -> Self {
        self.sizes = sizes.to_vec();
        self
    }
}

fn load(name: &str, clients: Clients) -> Load {
    Load {
        name: name.into(),
        groups: vec![(clients, NEVER_SLOWER)],
        mode: Mode::WriteBack,
        ssd: SsdKind::Sata,
        cache_bytes: GIB,
        cache: Cache::Empty,
        one_dead: false,
        settings: Settings::default(),
        no_disk_cache: false,
        sata_disk: false,
        settle_s: 5,
        window_s: 30,
        long: false,
    }
}

impl Load {
    fn and(mut self, clients: Clients) -> Self {
        self.groups.push((clients, NEVER_SLOWER));
        self
    }
    /// Sets the mark of the group added last.
    fn marked(mut self, alone: bool, at_least: f64) -> Self {
        if let Some(last) = self.groups.last_mut() {
            last.1 = Mark { alone, at_least };
        }
        self
    }
    /// With SSDs of so many bytes each.
    fn holding(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }
    fn warm(mut self) -> Self {
        self.cache = Cache::Warm;
        self
    }
    /// Only what the group added last uses is warm.
    fn warm_last(mut self) -> Self {
        self.cache = Cache::WarmLast;
        self
    }
    fn full(mut self) -> Self {
        self.cache = Cache::Full;
        self
    }
    /// A cache so small that much comes and goes in the window, and has come and gone before.
    fn small(mut self) -> Self {
        self.cache_bytes = GIB / 8;
        (self.settle_s, self.window_s, self.long) = (300, 120, true);
        self
    }
    /// Measured in the steady state of more writes than the cache can take.
    fn dirty(mut self, cache_bytes: u64, settle_s: u64, window_s: u64) -> Self {
        (self.cache, self.cache_bytes) = (Cache::Dirty, cache_bytes);
        (self.settle_s, self.window_s, self.long) = (settle_s, window_s, true);
        self
    }
    fn joined(mut self) -> Self {
        self.cache = Cache::DirtyLast;
        self
    }
    fn filled(mut self) -> Self {
        (self.cache, self.long) = (Cache::Filled, true);
        self
    }
    /// Over SSDs of so many bytes; from the first moment on.
    fn brimful(mut self, cache_bytes: u64) -> Self {
        (self.cache, self.cache_bytes) = (Cache::Brimful, cache_bytes);
        (self.settle_s, self.window_s, self.long) = (0, 18, true);
        self
    }
    fn below(mut self, percent: u32) -> Self {
        self.cache = Cache::Below(percent);
        self
    }
    fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }
    fn ssd(mut self, ssd: SsdKind) -> Self {
        self.ssd = ssd;
        self
    }
    fn dead(mut self) -> Self {
        self.one_dead = true;
        self
    }
    /// A budget of drive writes that is spent before it is measured: a thousandth of the cache's size a day.
    fn spared(mut self) -> Self {
        self.settings.drive_writes_milli = 1;
        self
    }
    fn sata_disk(mut self) -> Self {
        self.sata_disk = true;
        self
    }
    fn through_disk(mut self) -> Self {
        self.no_disk_cache = true;
        self
    }
    /// A short span: what fits into the cache only for so long.
    fn brief(mut self, settle_s: u64, window_s: u64) -> Self {
        (self.settle_s, self.window_s) = (settle_s, window_s);
        self
    }
}

/// All loads, in the order in which they are shown.
#[must_use]
pub fn catalogue() -> Vec<Load> {
    use Mode::{PassThrough, WriteAround, WriteThrough};
    use Pattern::{Backward, Random, Stream, Strided, Zipf};
    use SsdKind::{Cloud, Nvme, Pausing, Slow};
    let one = Stream(1);
    let mut all = vec![
        // Reads of what is not cached.
        load("read random 512 B x1, cold", reads(Random, 512, 1, WIDE)),
        load("read random 4 KiB x1, cold", reads(Random, 4 * KIB, 1, WIDE)),
        load("read random 4 KiB x32, cold", reads(Random, 4 * KIB, 32, WIDE)),
        load("read random 4 KiB unaligned x8, cold", reads(Random, 4 * KIB, 8, WIDE).skewed(3584)),
        load("read random 64 KiB x8, cold", reads(Random, 64 * KIB, 8, WIDE)),
        load("read random 1 MiB x4, cold", reads(Random, MIB, 4, WIDE)),
        load("read random 8 MiB x2, cold", reads(Random, 8 * MIB, 2, WIDE)),
        load("read random 4 KiB x32, cold, full", reads(Random, 4 * KIB, 32, WIDE)).full(),
        load("read zipf 4 KiB x16, cold", reads(Zipf, 4 * KIB, 16, WIDE)),
        load("read zipf 4 KiB x16, lasting", reads(Zipf, 4 * KIB, 16, 0..8 * GIB)).full().small(),
        load("mixed zipf 4 KiB x16, lasting", mixed(Zipf, 4 * KIB, 16, 0..8 * GIB)).full().small(),
        load("read stream 4 KiB x1, cold", reads(one, 4 * KIB, 1, WIDE)),
        load("read stream 64 KiB x2, cold", reads(one, 64 * KIB, 2, WIDE)),
        load("read stream 128 KiB unaligned x8, cold", reads(one, 128 * KIB, 8, WIDE).skewed(512)),
        load("read stream 1 MiB x4, cold", reads(one, MIB, 4, WIDE)),
        load("read stream 8 MiB x2, cold", reads(one, 8 * MIB, 2, WIDE)),
        load("read stream 1 MiB x4, cold, full", reads(one, MIB, 4, WIDE)).full(),
        load("read backward 64 KiB x1, cold", reads(Backward, 64 * KIB, 1, WIDE)),
        load("read strided 4 KiB of 64 KiB x4, cold", reads(Strided(64 * KIB), 4 * KIB, 4, WIDE)),
        load("read strided 64 KiB of 1 MiB x4, cold", reads(Strided(MIB), 64 * KIB, 4, WIDE)),
        load("read 16 streams 64 KiB x16, cold", reads(Stream(16), 64 * KIB, 16, WIDE)),
        load("read 256 streams 128 KiB x32, cold", reads(Stream(256), 128 * KIB, 32, WIDE)),
        // Reads of what is cached and clean.
        load("read random 4 KiB x1, warm", reads(Random, 4 * KIB, 1, HOT)).warm(),
        load("read random 4 KiB x32, warm", reads(Random, 4 * KIB, 32, HOT)).warm(),
        load("read random 64 KiB x8, warm", reads(Random, 64 * KIB, 8, HOT)).warm(),
        load("read random 8 MiB x2, warm", reads(Random, 8 * MIB, 2, HOT)).warm(),
        load("read stream 4 KiB x1, warm", reads(one, 4 * KIB, 1, HOT)).warm(),
        load("read stream 4 KiB x2, warm", reads(one, 4 * KIB, 2, HOT)).warm(),
        load("read stream 4 KiB unaligned x8, warm", reads(one, 4 * KIB, 8, HOT).skewed(512)).warm(),
        load("read stream 16 KiB x1, warm", reads(one, 16 * KIB, 1, HOT)).warm(),
        load("read 8 streams 4 KiB x1, warm", reads(Stream(8), 4 * KIB, 1, HOT)).warm(),
        load("read 8 streams 4 KiB x8, warm", reads(Stream(8), 4 * KIB, 8, HOT)).warm(),
        load("read 64 streams 4 KiB x64, warm", reads(Stream(64), 4 * KIB, 64, HOT)).warm(),
        load("read stream 64 KiB x1, warm", reads(one, 64 * KIB, 1, HOT)).warm(),
        load("read stream 1 MiB x4, warm", reads(one, MIB, 4, HOT)).warm(),
        load("read random 4 KiB x8 of 4 GiB, part warm", reads(Random, 4 * KIB, 8, 0..4 * GIB)).warm(),
        load("read random 256 KiB x4 of 4 GiB, part warm", reads(Random, 256 * KIB, 4, 0..4 * GIB)).warm(),
        load("read stream 4 KiB x1, warm, NVMe", reads(one, 4 * KIB, 1, HOT)).warm().ssd(Nvme),
        load("read stream 4 KiB x1, warm, cloud", reads(one, 4 * KIB, 1, HOT)).warm().ssd(Cloud),
        load("read stream 4 KiB x8, warm, cloud", reads(one, 4 * KIB, 8, HOT)).warm().ssd(Cloud),
        load("read stream 64 KiB x4, warm, cloud", reads(one, 64 * KIB, 4, HOT)).warm().ssd(Cloud),
        load("read random 4 KiB x32, warm, cloud", reads(Random, 4 * KIB, 32, HOT)).warm().ssd(Cloud),
        // Writes that the cache may take.
        load("write random 512 B x1", writes(Random, 512, 1, HOT)).brief(1, 4),
        load("write random 4 KiB x1", writes(Random, 4 * KIB, 1, HOT)).brief(1, 4),
        load("write random 4 KiB x32", writes(Random, 4 * KIB, 32, HOT)).brief(1, 1),
        load("write random 4 KiB unaligned x8", writes(Random, 4 * KIB, 8, HOT).skewed(512)).brief(1, 2),
        load(
            "write random 512 B to 64 KiB unaligned x8",
            writes(Random, 0, 8, HOT).sized(&[512, 1536, 4096, 6656, 65536]).skewed(1024),
        )
        .brief(1, 1),
        load("write random 64 KiB x8, lasting", writes(Random, 64 * KIB, 8, WIDE)),
        load("write random 256 KiB x4, lasting", writes(Random, 256 * KIB, 4, WIDE)),
        load("write random 1 MiB x4", writes(Random, MIB, 4, WIDE)),
        load("write random 8 MiB x2", writes(Random, 8 * MIB, 2, WIDE)),
        load("write stream 4 KiB x1", writes(one, 4 * KIB, 1, WIDE)),
        load("write stream 4 KiB unaligned x8", writes(one, 4 * KIB, 8, WIDE).skewed(512)),
        load("write stream 64 KiB x4", writes(one, 64 * KIB, 4, WIDE)),
        load("write stream 1 MiB x4", writes(one, MIB, 4, WIDE)),
        load("write stream 8 MiB unaligned x2", writes(one, 8 * MIB, 2, WIDE).skewed(3584)),
        load("write stream 64 KiB x4 over warm", writes(one, 64 * KIB, 4, ONCE)).holding(6 * GIB).warm(),
        load("write 64 streams 64 KiB x64", writes(Stream(64), 64 * KIB, 64, WIDE)),
        load("write strided 4 KiB of 64 KiB x4, lasting", writes(Strided(64 * KIB), 4 * KIB, 4, WIDE)),
        load("write stream 4 KiB flushed x1 (a log)", writes(one, 4 * KIB, 1, WIDE).flushed()),
        load("write random 4 KiB flushed x8", writes(Random, 4 * KIB, 8, HOT).flushed()),
        load("write stream 1 MiB flushed x1", writes(one, MIB, 1, WIDE).flushed()),
        load("write random 4 KiB x8, disk cache off", writes(Random, 4 * KIB, 8, HOT)).through_disk().brief(1, 2),
        load("write stream 1 MiB x4, disk cache off", writes(one, MIB, 4, WIDE)).through_disk(),
        load("write bursts of 200 x 4 KiB", writes(Random, 4 * KIB, 1, HOT).bursts(200, SECOND)),
        load("write bursts of 5,000 x 4 KiB", writes(Random, 4 * KIB, 1, 0..4 * GIB).bursts(5000, 15 * SECOND)).brief(15, 60),
        load("write bursts of 200 x 4 KiB, cloud", writes(Random, 4 * KIB, 1, HOT).bursts(200, SECOND)).ssd(Cloud),
        load("write random 4 KiB x1, cloud", writes(Random, 4 * KIB, 1, HOT)).ssd(Cloud).brief(1, 4),
        load("write zipf 4 KiB x16, NVMe", writes(Zipf, 4 * KIB, 16, HOT)).ssd(Nvme).brief(1, 1),
        // Both.
        load("mixed random 4 KiB x16, warm", mixed(Random, 4 * KIB, 16, HOT)).warm().brief(1, 2),
        load("mixed random 4 KiB x16, cold", mixed(Random, 4 * KIB, 16, WIDE)),
        load("mixed zipf 512 B to 64 KiB x16, cold", mixed(Zipf, 0, 16, 0..8 * GIB).sized(&[512, 4096, 8192, 65536])),
        load("mixed random 1 MiB x4", mixed(Random, MIB, 4, WIDE)),
        load("read bursts of 100 x 16 KiB, part warm", reads(Random, 16 * KIB, 1, 0..4 * GIB).bursts(100, 2 * SECOND)).warm(),
        load("stream writes beside random writes", writes(one, MIB, 4, BESIDE))
            .marked(true, 0.97)
            .and(writes(Random, 4 * KIB, 4, HOT).bursts(1000, SECOND))
            .brief(5, 20),
        load("stream reads beside hits", reads(one, MIB, 4, BESIDE))
            .marked(true, 0.97)
            .and(clients("hits", 100, Random, 4 * KIB, 4, HOT))
            .marked(false, 20.0)
            .warm_last(),
        load("stream reads of 4 KiB beside hits, warm", reads(one, 4 * KIB, 1, HOT))
            .and(clients("hits", 100, Random, 4 * KIB, 16, 512 * MIB..GIB))
            .warm(),
        load("stream reads beside random reads, both part warm", reads(one, MIB, 4, 0..2 * GIB))
            .and(clients("random", 100, Random, 4 * KIB, 4, 2 * GIB..4 * GIB))
            .warm(),
        load("stream reads beside misses", reads(one, MIB, 4, BESIDE)).and(clients("misses", 100, Random, 4 * KIB, 4, WIDE)),
        load("stream writes beside misses", writes(one, MIB, 4, BESIDE)).and(clients("misses", 100, Random, 4 * KIB, 4, WIDE)),
        // The other modes.
        load("through: write random 4 KiB x1", writes(Random, 4 * KIB, 1, HOT)).mode(WriteThrough),
        load("through: write random 4 KiB x32", writes(Random, 4 * KIB, 32, 0..4 * GIB)).mode(WriteThrough),
        load("through: write stream 64 KiB x4", writes(one, 64 * KIB, 4, WIDE)).mode(WriteThrough),
        load("through: write stream 4 KiB x1 over warm", writes(one, 4 * KIB, 1, HOT)).mode(WriteThrough).warm(),
        load("through: write stream 4 KiB flushed x1", writes(one, 4 * KIB, 1, WIDE).flushed()).mode(WriteThrough),
        load("through: mixed random 4 KiB x16, warm", mixed(Random, 4 * KIB, 16, HOT)).mode(WriteThrough).warm(),
        load("through: write random 1 MiB x4", writes(Random, MIB, 4, WIDE)).mode(WriteThrough),
        load("around: write random 4 KiB x32", writes(Random, 4 * KIB, 32, 0..4 * GIB)).mode(WriteAround),
        load("around: mixed random 4 KiB x16, cold", mixed(Random, 4 * KIB, 16, WIDE)).mode(WriteAround),
        load("around: write stream 1 MiB x4 over warm", writes(one, MIB, 4, ONCE)).holding(6 * GIB).mode(WriteAround).warm(),
        load("pass: write random 4 KiB x32", writes(Random, 4 * KIB, 32, 0..4 * GIB)).mode(PassThrough),
        load("pass: read stream 64 KiB x4", reads(one, 64 * KIB, 4, WIDE)).mode(PassThrough),
        load("pass: mixed random 64 KiB x8", mixed(Random, 64 * KIB, 8, WIDE)).mode(PassThrough),
        // One SSD dead.
        load("one dead: read random 4 KiB x8, warm", reads(Random, 4 * KIB, 8, HOT)).warm().dead(),
        load("one dead: read stream 1 MiB x4, warm", reads(one, MIB, 4, HOT)).warm().dead(),
        load("one dead: write random 4 KiB x32", writes(Random, 4 * KIB, 32, 0..4 * GIB)).dead(),
        load("one dead: write stream 64 KiB x4", writes(one, 64 * KIB, 4, WIDE)).dead(),
        load("one dead: mixed random 4 KiB x16, warm", mixed(Random, 4 * KIB, 16, HOT)).warm().dead(),
        // SSDs that are to last.
        load("budget spent: write random 4 KiB x32", writes(Random, 4 * KIB, 32, 0..4 * GIB)).spared(),
        load("budget spent: mixed random 4 KiB x16", mixed(Random, 4 * KIB, 16, 0..4 * GIB)).spared(),
        // SSDs slower than the disk.
        load("slow SSDs: read random 4 KiB x1, warm", reads(Random, 4 * KIB, 1, HOT)).warm().ssd(Slow),
        load("slow SSDs: read random 4 KiB x32, warm", reads(Random, 4 * KIB, 32, HOT)).warm().ssd(Slow),
        load("slow SSDs: read stream 64 KiB x4, warm", reads(one, 64 * KIB, 4, HOT)).warm().ssd(Slow),
        load("slow SSDs: read random 1 MiB x4, warm", reads(Random, MIB, 4, HOT)).warm().ssd(Slow),
        load("slow SSDs: read random 4 KiB x8, cold", reads(Random, 4 * KIB, 8, WIDE)).ssd(Slow),
        load("slow SSDs: write random 4 KiB x1", writes(Random, 4 * KIB, 1, HOT)).ssd(Slow),
        load("slow SSDs: write random 4 KiB x32", writes(Random, 4 * KIB, 32, 0..4 * GIB)).ssd(Slow),
        load("slow SSDs: write random 64 KiB x8", writes(Random, 64 * KIB, 8, WIDE)).ssd(Slow),
        load("slow SSDs: write stream 64 KiB x4", writes(one, 64 * KIB, 4, WIDE)).ssd(Slow),
        load("slow SSDs: write stream 4 KiB flushed x1", writes(one, 4 * KIB, 1, WIDE).flushed()).ssd(Slow),
        load("slow SSDs: mixed random 4 KiB x16, warm", mixed(Random, 4 * KIB, 16, HOT)).warm().ssd(Slow),
        load("slow SSDs: write bursts of 200 x 4 KiB", writes(Random, 4 * KIB, 1, HOT).bursts(200, SECOND)).ssd(Slow),
        // SSDs that collect garbage: what finds one standing still says nothing of what comes after. The marks of one client are what the
        // pauses themselves leave it, less a tenth or so: one slow answer that sent it to the disk for seconds left 47 and 9.
        load("pausing SSDs: read random 4 KiB x1, warm", reads(Random, 4 * KIB, 1, HOT)).warm().ssd(Pausing).marked(false, 55.0),
        load("pausing SSDs: read random 4 KiB x4, warm", reads(Random, 4 * KIB, 4, HOT)).warm().ssd(Pausing).marked(false, 10.0),
        load("pausing SSDs: read random 4 KiB x32, warm", reads(Random, 4 * KIB, 32, HOT))
            .warm()
            .ssd(Pausing)
            .marked(false, 10.0),
        load("pausing SSDs: write random 4 KiB x1", writes(Random, 4 * KIB, 1, HOT)).ssd(Pausing).marked(false, 30.0),
        load("pausing SSDs: write random 4 KiB flushed x1", writes(Random, 4 * KIB, 1, HOT).flushed()).ssd(Pausing),
        load("pausing SSDs: mixed random 4 KiB x16, warm", mixed(Random, 4 * KIB, 16, HOT)).warm().ssd(Pausing),
    ];
    // A disk that stands still while it flushes.
    all.extend([
        load("write stream 1 MiB x4 over a cache just filled", writes(one, MIB, 4, WIDE)).filled(),
        load("read stream 1 MiB x4 over a cache just filled", reads(one, MIB, 4, WIDE)).filled(),
        load("SATA disk: write stream 1 MiB x4 over a cache just filled", writes(one, MIB, 4, WIDE)).filled().sata_disk(),
        // Who uses the disk now and then, and thinks meanwhile. How a read finds the platter is chance: many of them.
        load(
            "write 1 MiB flushed each half second over a cache just filled",
            writes(one, MIB, 1, WIDE).flushed().bursts(1, SECOND / 2),
        )
        .filled(),
        load("read 4 KiB each half second over a cache just filled", reads(Random, 4 * KIB, 1, WIDE).bursts(1, SECOND / 2))
            .filled()
            .brief(5, 2400),
        // As in the real form of B1.
        load("SATA disk: two stream writes over a cache filled to the brim", writes(Stream(2), 512 * KIB, 16, 0..512 * MIB))
            .ssd(Cloud)
            .brimful(64 * MIB)
            .sata_disk(),
        load("SATA disk: write random 4 KiB flushed x8", writes(Random, 4 * KIB, 8, HOT).flushed()).sata_disk(),
        load("SATA disk: write stream 1 MiB flushed x1", writes(one, MIB, 1, WIDE).flushed()).sata_disk(),
        load("SATA disk: write stream 64 KiB x4", writes(one, 64 * KIB, 4, WIDE)).sata_disk(),
        load("SATA disk: past the cache: write random 4 KiB x32, 9 %", writes(Random, 4 * KIB, 32, 0..4 * GIB))
            .marked(false, 5.0)
            .dirty(480 * MIB, 120, 120)
            .sata_disk(),
        // As in the real form of C2: all at the front of the disk, and the streams' requests as the kernel divides them.
        load(
            "SATA disk: past the cache: four stream writes beside random writes",
            writes(Stream(4), 512 * KIB, 32, 2 * GIB..2 * GIB + 512 * MIB),
        )
        .and(writes(Random, 4 * KIB, 16, 0..2 * GIB))
        .marked(false, 5.0)
        .ssd(Cloud)
        .dirty(256 * MIB, 120, 120)
        .sata_disk(),
        load(
            "SATA disk: past the cache: four stream writes beside random writes and commits",
            writes(Stream(4), 512 * KIB, 32, 2 * GIB..2 * GIB + 512 * MIB),
        )
        .and(writes(Random, 4 * KIB, 16, 0..2 * GIB))
        .marked(false, 5.0)
        // Every five seconds a file system's journal writes its blocks, flushes, and writes and flushes what ends them.
        .and(writes(one, 16 * KIB, 1, 3 * GIB..3 * GIB + 64 * MIB).bursts(1, 5 * SECOND / 2).commits())
        .ssd(Cloud)
        .dirty(256 * MIB, 120, 120)
        .sata_disk(),
        load(
            "SATA disk: past the cache: four stream writes that join random writes",
            writes(Stream(4), 512 * KIB, 32, 2 * GIB..2 * GIB + 512 * MIB),
        )
        .and(writes(Random, 4 * KIB, 16, 0..2 * GIB))
        .marked(false, 5.0)
        .ssd(Cloud)
        .dirty(256 * MIB, 20, 20)
        .joined()
        .sata_disk(),
    ]);
    // Over what is dirty here and there: the disk would find a hole in the stream at each such place. For one lap.
    let dirty = [("", 75), (" little", 6)];
    all.extend(dirty.into_iter().flat_map(|(much, percent)| {
        [(4 * KIB, 4), (64 * KIB, 4), (MIB, 4)].map(|(bytes, depth)| {
            let name = format!("write stream {} KiB x{depth} over{much} dirty", bytes / KIB);
            load(&name, writes(one, bytes, depth, 0..4 * GIB)).below(percent).brief(2, 16)
        })
    }));
    all.extend([
        load("write random 1 MiB x4 over dirty", writes(Random, MIB, 4, 0..4 * GIB)).below(75).brief(2, 16),
        load("SATA disk: write stream 1 MiB x4 over dirty", writes(one, MIB, 4, 0..4 * GIB)).below(75).brief(2, 16).sata_disk(),
    ]);
    // Written again and again, so that space is won by moving together what is left of what was written before.
    all.extend([
        load("write random 4 KiB x16 again and again, cloud", writes(Random, 4 * KIB, 16, 0..192 * MIB)).ssd(Cloud).brief(20, 20),
        load("write random 4 KiB unaligned x16 again and again, cloud", writes(Random, 4 * KIB, 16, 0..192 * MIB).skewed(2560))
            .ssd(Cloud)
            .brief(20, 20),
    ]);
    // Past the cache's size, measured in the steady state: the space for dirty data is 9 % of the region, and 22 %.
    all.extend([
        load("past the cache: write random 4 KiB x32, 9 %", writes(Random, 4 * KIB, 32, 0..4 * GIB)).marked(false, 5.0).dirty(
            480 * MIB,
            120,
            120,
        ),
        load("past the cache: write random 4 KiB x32, 22 %", writes(Random, 4 * KIB, 32, 0..4 * GIB)).marked(false, 10.0).dirty(
            1160 * MIB,
            120,
            120,
        ),
        load("past the cache: write random 4 KiB x32, 1 %", writes(Random, 4 * KIB, 32, 0..32 * GIB)).dirty(512 * MIB, 120, 120),
        load("past the cache: write random 512 B x32", writes(Random, 512, 32, 0..4 * GIB)).dirty(512 * MIB, 120, 120),
        load("past the cache: mixed random 4 KiB x16", mixed(Random, 4 * KIB, 16, 0..4 * GIB)).dirty(512 * MIB, 120, 120),
        load("past the cache: stream writes beside random writes", writes(one, MIB, 4, BESIDE))
            .and(writes(Random, 4 * KIB, 32, 0..4 * GIB))
            .marked(false, 5.0)
            .dirty(512 * MIB, 60, 60),
        load("past the cache: stream reads beside random writes", reads(one, MIB, 4, BESIDE))
            .and(writes(Random, 4 * KIB, 32, 0..4 * GIB))
            .marked(false, 5.0)
            .dirty(512 * MIB, 60, 60),
    ]);
    all
}

/// Loads of an hour over a cache that is full of clean data when they begin, past what it can take: measured when what is dirty
/// has come to its steady state.
#[must_use]
pub fn hours() -> Vec<Load> {
    use Pattern::{Random, Zipf};
    let hour = |name: &str, clients: Clients, cache_bytes: u64| {
        let mut load = load(name, clients).full();
        (load.cache_bytes, load.settle_s, load.window_s, load.long) = (cache_bytes, 600, 3600, true);
        load
    };
    vec![
        hour("an hour: write random 4 KiB x32", writes(Random, 4 * KIB, 32, 0..4 * GIB), 480 * MIB),
        hour("an hour: mixed random 4 KiB x32", mixed(Random, 4 * KIB, 32, 0..4 * GIB), 480 * MIB),
        hour("an hour: mixed zipf 4 KiB x32", mixed(Zipf, 4 * KIB, 32, 0..16 * GIB), GIB),
        // Seven tenths of what the bare disk reaches at the second, evenly.
        hour("an hour: mixed random 4 KiB, 300 /s", mixed(Random, 4 * KIB, 1, 0..4 * GIB).bursts(1, SECOND / 300), 480 * MIB),
        hour("an hour: mixed random 4 KiB x32, disk cache off", mixed(Random, 4 * KIB, 32, 0..4 * GIB), 480 * MIB).through_disk(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_the_set_is_as_wide_as_promised() {
        let all = [catalogue(), hours()].concat();
        let names: BTreeSet<_> = all.iter().map(|l| l.name.clone()).collect();
        assert!(names.len() == all.len() && all.len() >= 40, "{} of {}", names.len(), all.len());
        let sizes: BTreeSet<u64> = all.iter().flat_map(|l| l.groups.iter().flat_map(|(c, _)| c.sizes.clone())).collect();
        assert_eq!((sizes.first(), sizes.last()), (Some(&512), Some(&(8 * MIB))));
        for mode in Mode::ALL {
            assert!(all.iter().any(|l| l.mode == mode), "{mode:?}");
        }
        for cache in [Cache::Empty, Cache::Warm, Cache::Full, Cache::Filled, Cache::Below(75), Cache::Dirty, Cache::DirtyLast] {
            assert!(all.iter().any(|l| l.cache == cache), "{cache:?}");
        }
        assert!(
            all.iter().any(|l| l.one_dead) && [SsdKind::Slow, SsdKind::Pausing].iter().all(|k| all.iter().any(|l| l.ssd == *k))
        );
    }
}
