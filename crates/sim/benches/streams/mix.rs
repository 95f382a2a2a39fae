//! Generated mixes: streams of several kinds and logs, thousands at once, with random requests between.

use headpond_sim::rng::Rng;

/// Sectors of the volume: 8 TiB.
const VOLUME: u64 = 1 << 34;
/// Sectors of a stream before its writer begins another one somewhere else: 256 requests, and 2 MiB at least.
fn length(sectors: u64) -> u64 {
    (256 * sectors).max(4096)
}

/// One request in so many of a stream with gaps skips something.
const SKIPS: u64 = 8;

/// What kind of requests follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Forwards,
    Backwards,
    /// One request of every so many that would fit.
    Strided(u64),
    /// Forwards, but one request in [`SKIPS`] skips 4 to 16 KiB.
    Gaps,
    /// Forwards, but each so many requests come in an order of chance, as a queue may pass them on.
    Reordered(u64),
    /// Forwards, and after each write a flush: no stream to send past the cache.
    Log,
    /// Forwards, each write with FUA: the same.
    FuaLog,
}

/// Where the requests between fall.
#[derive(Clone, Copy, Debug)]
pub enum Between {
    /// Anywhere.
    Anywhere,
    /// Into so many sectors.
    Hot(u64),
}

/// What a row of the table is about.
#[derive(Clone, Debug)]
pub struct Mix {
    pub name: String,
    /// The kinds of the writers, by turns.
    pub kinds: Vec<Kind>,
    /// Sectors of a request, of streams and random requests alike; by turns.
    pub sizes: Vec<u64>,
    /// Writers at once.
    pub writers: u64,
    /// Percent of the requests that are random.
    pub random: u64,
    pub between: Between,
    /// The writers take turns, and do not come in an order of chance.
    pub by_turns: bool,
}

/// Whose a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// A stream's, of which so many sectors came before it.
    Stream(u64),
    Log,
    Nobody,
}

/// A request of a mix.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub sector: u64,
    pub sectors: u64,
    pub of: Of,
    pub fua: bool,
    /// A flush follows it.
    pub flushed: bool,
}

/// Who sends one stream or log after the other, in a part of the volume that is his.
struct Writer {
    kind: Kind,
    sectors: u64,
    area: u64,
    /// Where the stream begins; backwards, where it ends.
    base: u64,
    /// Sectors of it that were sent, and skipped.
    sent: u64,
    skipped: u64,
    /// What of the reordered requests is left to send.
    left: Vec<u64>,
}

impl Writer {
    fn next(&mut self, rng: &mut Rng, areas: u64) -> Request {
        let sectors = self.sectors;
        if self.sent == length(sectors) {
            (self.sent, self.skipped) = (0, 0);
        }
        if self.sent == 0 {
            // A stream with holes spans more than its length.
            self.base = self.area * areas + rng.below(areas / 2) / 8 * 8;
        }
        let ahead = match self.kind {
            Kind::Forwards | Kind::Log | Kind::FuaLog => self.sent,
            Kind::Backwards => length(sectors) - self.sent - sectors,
            Kind::Strided(of) => self.sent * of,
            Kind::Gaps => {
                self.skipped += if rng.one_in(SKIPS) { 8 * rng.within(1, 4) } else { 0 };
                self.sent + self.skipped
            }
            Kind::Reordered(window) => {
                if self.left.is_empty() {
                    let first = self.sent / sectors;
                    self.left.extend(first..(first + window).min(length(sectors) / sectors));
                }
                self.left.swap_remove(rng.below(self.left.len() as u64) as usize) * sectors
            }
        };
        let of = if matches!(self.kind, Kind::Log | Kind::FuaLog) { Of::Log } else { Of::Stream(self.sent) };
        self.sent += sectors;
        Request { sector: self.base + ahead, sectors, of, fua: self.kind == Kind::FuaLog, flushed: self.kind == Kind::Log }
    }
}

impl Mix {
    /// Its requests: as many as make each writer send one stream on an average; without writers, a million.
    pub fn requests(&self, seed: u64) -> impl Iterator<Item = Request> {
        let mut rng = Rng::new(seed);
        let areas = VOLUME / self.writers.max(1);
        let mut writers: Vec<Writer> = (0..self.writers)
            .map(|n| Writer {
                kind: self.kinds[n as usize % self.kinds.len()],
                // Each kind in each size.
                sectors: self.sizes[n as usize / self.kinds.len() % self.sizes.len()],
                area: n,
                base: 0,
                sent: 0,
                skipped: 0,
                left: Vec::new(),
            })
            .collect();
        // Those whose streams have more requests have more turns.
        let mut turns = Vec::new();
        for (n, writer) in writers.iter().enumerate() {
            turns.extend(std::iter::repeat_n(n, (length(writer.sectors) / writer.sectors / 256) as usize));
        }
        let all = if turns.is_empty() { 1_000_000 } else { turns.len() as u64 * 256 * 100 / (100 - self.random) };
        let mut in_turn = turns.clone().into_iter().cycle();
        (0..all).map(move |_| {
            if rng.below(100) >= self.random {
                let turn = in_turn.next().filter(|_| self.by_turns).unwrap_or_else(|| *rng.pick(&turns));
                return writers[turn].next(&mut rng, areas);
            }
            let sectors = *rng.pick(&self.sizes);
            let room = match self.between {
                Between::Anywhere => VOLUME,
                Between::Hot(room) => room,
            };
            Request { sector: rng.below(room / sectors) * sectors, sectors, of: Of::Nobody, fua: false, flushed: false }
        })
    }
}
