//! The table of experiments: what was published, and what must be shown.

use super::outcome::{Missing, Outcome, Report};
use super::point::Options;
use super::{a_metadata, a_random, a_streams, b, c_apps, c_small, c_streams};
use crate::world::Violation;

/// An experiment that can be run.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its number.
    pub id: &'static str,
    /// What it is.
    pub title: &'static str,
    /// How it is done.
    pub method: &'static str,
    /// What was published.
    pub published: &'static str,
    /// What must be shown.
    pub wanted: &'static str,
    /// Runs it.
    pub run: fn(Options) -> Result<Outcome, Violation>,
}

impl Experiment {
    /// Runs it.
    #[must_use]
    pub fn report(&self, options: Options) -> Report {
        let Experiment { id, title, method, published, wanted, run } = *self;
        Report { id, title, method, published, wanted, outcome: run(options).map_err(|why| Missing::Failed(why.0)) }
    }
}

/// All of them, in the order of the table.
pub const ALL: &[Experiment] = &[
    Experiment {
        id: "A1",
        title: "NFS: sequential write",
        method: "1 to 64 clients write a file of 4 GiB each, 8 requests of 1 MiB under way; for the re-write files of 512 MiB, gone through again and again.",
        published: "bare ~2,000 MiB/s; write-back ~400, peak ~600, re-write ~25 % more; write-through ~1,000",
        wanted: "write-back and write-through at 0.97 of bare or better, re-write included",
        run: a_streams::a1,
    },
    Experiment {
        id: "A2",
        title: "NFS: sequential read",
        method: "1 to 64 clients read what is in the cache, 8 requests of 1 MiB under way each; 4 GiB in all.",
        published: "~3,050 MiB/s, over bare",
        wanted: "at least the better of disk and SSD, aiming at their sum",
        run: a_streams::a2,
    },
    Experiment {
        id: "A3",
        title: "NFS: random 4 KiB write",
        method: "1 to 64 clients write 4 KiB anywhere in a file of 4 GiB each, two under way, each durable before it is acknowledged; then with SSDs so small that they are full.",
        published: "bare ~1,600 IOPS; write-back 6.4 x at 64 clients; write-through like bare",
        wanted: "20 x in bursts; with the cache full 5 x where write space is at least 9 % of the region",
        run: a_random::a3,
    },
    Experiment {
        id: "A4",
        title: "NFS: random 4 KiB read",
        method: "1 to 64 clients read 4 KiB anywhere in a file each, two under way, all of it in the cache.",
        published: "bare ~9,300 IOPS; 123,000 at 32 clients",
        wanted: "0.95 of what the SSDs alone deliver",
        run: a_random::a4,
    },
    Experiment {
        id: "A5",
        title: "NFS: mdtest create, stat, remove",
        method: "1 to 64 clients with one thread, then 8 threads each, create, look at and remove files; the journal commits in groups, each flushed.",
        published: "write-back like write-through: bound by latency",
        wanted: "over bare at every client count, 1 to 512",
        run: a_metadata::a5,
    },
    Experiment {
        id: "A6",
        title: "NFS: random read, cold cache",
        method: "64 clients read 4 KiB anywhere in files of 4 GiB each from an empty cache; then in a small part of them, again and again.",
        published: "bare ~9,300 IOPS; ~80,000",
        wanted: "never under bare, and the warm-up curve drawn; an adaptive region fill is the aim",
        run: a_random::a6,
    },
    Experiment {
        id: "A7",
        title: "NFS: sequential read, cold cache",
        method: "1 to 64 clients read a file of 4 GiB each from an empty cache.",
        published: "lower than bare",
        wanted: "0.97 of bare or better",
        run: a_streams::a7,
    },
    Experiment {
        id: "B1",
        title: "Lustre 2008: writes when the cache fills",
        method: "Two processes of one client stream 10 GB each over four OSTs, behind a cache that is full; then 4 KiB anywhere in 4 GiB, into a cache that fills.",
        published: "over 1 GB/s, then about a third lower once the client's cache is full",
        wanted: "a stream loses at most 3 %; a random load falls smoothly, never below bare, no second under half of the mean",
        run: b::b1,
    },
    Experiment {
        id: "B2",
        title: "Lustre 2008: throughput against clients",
        method: "1 to 64 clients, each with a cached volume of its own, write a file of 16 GiB, and read what another client wrote.",
        published: "linear until every OST is busy",
        wanted: "linear (0.95) in the number of cached volumes",
        run: b::b2,
    },
    Experiment {
        id: "C1",
        title: "Lustre 2018: IOR streams",
        method: "32 processes on 16 clients write, then read, a file of 32 GiB each in requests of 1 MiB.",
        published: "write 13,143 -> 13,014 MB/s, read 11,182 -> 11,154",
        wanted: "under 0.5 % lost",
        run: c_streams::c1,
    },
    Experiment {
        id: "C2",
        title: "Lustre 2018: random 4 KiB beside the streams",
        method: "The streams of C1 with as many processes beside them that ask for 4 KiB anywhere in 280 MiB each, four under way; then with SSDs so small that write space is 9 % of that.",
        published: "random read 10 x, random write 6 x, no loss on the streams",
        wanted: "while it fits: random write 20 x, random read the lesser of 20 x and 0.9 of SSDs and network, streams at 0.97 of alone; once full: streams at 0.97 of bare beside that load, random 5 x",
        run: c_streams::c2,
    },
    Experiment {
        id: "C3",
        title: "Lustre 2018: an ever larger random share",
        method: "The streams of C1 beside 0, 64, 128 and 192 random writers of both arrays; while the dirty set fits, and with the cache full.",
        published: "streaming holds",
        wanted: "the streams hold at 0.95 at every point",
        run: c_streams::c3,
    },
    Experiment {
        id: "C4",
        title: "Lustre 2018: one writer, several readers",
        method: "A writer appends 4 KiB, updates index and header and flushes, again and again; four readers look at header and index every 10 ms.",
        published: "picture",
        wanted: "10 x over bare",
        run: c_small::c4,
    },
    Experiment {
        id: "C5",
        title: "Lustre 2018: aligned and unaligned",
        method: "8 processes write and read 4 KiB, 64 KiB and streams of 1 MiB, on multiples of their size and 2,560 bytes past them.",
        published: "pictures",
        wanted: "unaligned within 10 % of aligned where small; no cliff anywhere",
        run: c_small::c5,
    },
    Experiment {
        id: "C6",
        title: "Lustre 2018: tar",
        method: "tar -x of a tree of small files, a minute later tar -c of it.",
        published: "tar -c 43 % less time; tar -x unchanged",
        wanted: "tar -c at half the time or less; tar -x faster too",
        run: c_small::c6,
    },
    Experiment {
        id: "C7",
        title: "Lustre 2018: applications",
        method: "16 processes of one array with the mixes of request sizes that were published of four applications.",
        published: "0 to 10 %",
        wanted: "never under 0.995; mixed and small-block ones at 1.3 or better",
        run: c_apps::c7,
    },
];
