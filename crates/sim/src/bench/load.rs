//! A load: who asks for what, of which volume, and what is to be had of it.

use super::clients::Clients;
use crate::models::ssd::SsdParams;
use crate::models::{MILLISECOND, SECOND};
use headpond_engine::Settings;
use headpond_engine::format::Mode;

/// The SSDs of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SsdKind {
    /// Consumer SATA: [`SsdParams::sata_consumer`].
    Sata,
    /// Data-centre NVMe: [`SsdParams::nvme_plp`].
    Nvme,
    /// A cloud volume: 12,000 requests and 500 MB per second.
    Cloud,
    /// Slower than the disk at most things: 200 requests and 20 MB per second.
    Slow,
    /// Consumer SATA, which stands still for 60 ms each second.
    Pausing,
}

impl SsdKind {
    /// Its model.
    #[must_use]
    pub fn params(self) -> SsdParams {
        match self {
            SsdKind::Sata => SsdParams::sata_consumer(),
            SsdKind::Nvme => SsdParams::nvme_plp(),
            SsdKind::Cloud => SsdParams::throttled(12_000, 500_000_000),
            SsdKind::Slow => SsdParams::throttled(200, 20_000_000),
            SsdKind::Pausing => SsdParams::sata_consumer().pausing(SECOND, 60 * MILLISECOND),
        }
    }

    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SsdKind::Sata => "SATA",
            SsdKind::Nvme => "NVMe",
            SsdKind::Cloud => "cloud",
            SsdKind::Slow => "slow",
            SsdKind::Pausing => "pausing",
        }
    }
}

/// What the cache holds when the clients begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// Nothing.
    Empty,
    /// The clients' region, clean, as far as it fits.
    Warm,
    /// The region of the last group alone, clean.
    WarmLast,
    /// Clean data in all of it, of which the clients' region is no part; what is admitted has to evict.
    Full,
    /// Dirty data of others, who have ended a moment ago, in three quarters of what may be dirty.
    Filled,
    /// Dirty data of others, who have ended a moment ago, in all of what may be dirty, and for a while: bare has had them too.
    Brimful,
    /// Dirty data of others, who have ended a moment ago, here and there in the clients' own region, in so many percent of what may be
    /// dirty.
    Below(u32),
    /// The last clients' own writes, dirty, for as long alone as it takes before the others come.
    DirtyLast,
    /// The clients' own writes, dirty, more than half of what may be: measured in the steady state after that.
    Dirty,
}

impl Cache {
    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Cache::Empty => "empty",
            Cache::Warm | Cache::WarmLast => "warm",
            Cache::Full => "full",
            Cache::Filled => "just filled",
            Cache::Brimful => "just filled to the brim",
            Cache::Below(_) => "dirty below",
            Cache::Dirty | Cache::DirtyLast => "dirty",
        }
    }
}

/// What a group is compared with, and how much of it is promised.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mark {
    /// The bare disk runs this group alone, without those beside it.
    pub alone: bool,
    /// The least ratio that keeps the promise.
    pub at_least: f64,
}

/// A load.
#[derive(Clone, Debug)]
pub struct Load {
    /// What it is called, uniquely.
    pub name: String,
    /// Who asks, with what is promised to each.
    pub groups: Vec<(Clients, Mark)>,
    /// The volume's mode.
    pub mode: Mode,
    /// The SSDs.
    pub ssd: SsdKind,
    /// Bytes of each of the two SSDs.
    pub cache_bytes: u64,
    /// What the cache holds.
    pub cache: Cache,
    /// One of the SSDs dies before the clients begin.
    pub one_dead: bool,
    /// The engine's settings.
    pub settings: Settings,
    /// The disk's write cache is off.
    pub no_disk_cache: bool,
    /// The disk does nothing else while it flushes.
    pub sata_disk: bool,
    /// Seconds before anything counts: what the drive's caches take at first is over by then.
    pub settle_s: u64,
    /// Seconds that count.
    pub window_s: u64,
    /// It takes long, and is left out of quick runs.
    pub long: bool,
}

impl Load {
    /// Bytes from the volume's beginning to the end of the last region.
    #[must_use]
    pub fn extent(&self) -> u64 {
        self.groups.iter().map(|(c, _)| c.region.end).max().unwrap_or(0)
    }

    /// Its setting in words.
    #[must_use]
    pub fn setting(&self) -> String {
        let mode = match self.mode {
            Mode::WriteBack => "write-back",
            Mode::WriteThrough => "write-through",
            Mode::WriteAround => "write-around",
            Mode::PassThrough => "pass-through",
        };
        let dead = if self.one_dead { ", one dead" } else { "" };
        let disk = match (self.no_disk_cache, self.sata_disk) {
            (true, _) => ", disk cache off",
            (false, true) => ", SATA disk",
            (false, false) => "",
        };
        format!("{mode}, {}, {} SSDs{dead}{disk}", self.cache.name(), self.ssd.name())
    }
}
