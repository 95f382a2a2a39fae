//! Precision and recall of the detection of streams, on generated mixes.
//!
//! `cargo bench -p headpond-sim --bench streams`. Each row is a [`mix`]: thousands of streams of a kind at once, with random requests
//! between. Whether a request belongs to a stream says [`Streams`], as in the engine, with default settings. Under `cargo test` it
//! checks itself with less.

mod mix;

use headpond_engine::Settings;
use headpond_engine::policy::streams::Streams;
use mix::{Between, Kind, Mix, Of};

const KIB: u64 = 2;
const MIB: u64 = 2048;
/// Streams at once.
const WRITERS: u64 = 4096;

/// Sectors of requests, of one sort: all, and those that were taken for a stream's.
#[derive(Clone, Copy, Default)]
struct Taken {
    all: u64,
    taken: u64,
}

impl Taken {
    fn add(&mut self, sectors: u64, taken: bool) {
        self.all += sectors;
        self.taken += if taken { sectors } else { 0 };
    }
    fn share(self) -> Option<f64> {
        (self.all > 0).then(|| self.taken as f64 / self.all as f64)
    }
}

/// What became of a mix.
#[derive(Clone, Copy, Default)]
struct Found {
    requests: u64,
    /// Of streams, what comes after so much that they can be known.
    known: Taken,
    streams: Taken,
    logs: Taken,
    random: Taken,
}

impl Found {
    /// Of what was taken for streams, what is.
    fn precision(&self) -> Option<f64> {
        let taken = self.streams.taken + self.logs.taken + self.random.taken;
        (taken > 0).then(|| self.streams.taken as f64 / taken as f64)
    }
}

/// Shows a mix to the engine's own detection.
fn measure(mix: &Mix) -> Found {
    let stream_bytes = Settings::default().stream_bytes;
    let mut streams = Streams::default();
    let mut found = Found::default();
    let mut flushes = 0;
    for request in mix.requests(1) {
        let taken = streams.note(request.sector, request.sectors, flushes, request.fua).is_stream(stream_bytes);
        flushes += u64::from(request.flushed);
        found.requests += 1;
        match request.of {
            Of::Stream(before) => {
                found.streams.add(request.sectors, taken);
                if before * 512 >= stream_bytes {
                    found.known.add(request.sectors, taken);
                }
            }
            Of::Log => found.logs.add(request.sectors, taken),
            Of::Nobody => found.random.add(request.sectors, taken),
        }
    }
    found
}

/// A mix of so many streams at once.
fn streams(name: &str, kinds: &[Kind], kib: &[u64], random: u64) -> Mix {
    let (kinds, sizes) = (kinds.to_vec(), kib.iter().map(|k| k * KIB).collect());
    Mix { name: name.into(), kinds, sizes, writers: WRITERS, random, between: Between::Anywhere, by_turns: false }
}

/// Random requests alone, into so many MiB.
fn no_stream(name: &str, kib: &[u64], mib: u64) -> Mix {
    Mix { writers: 0, between: Between::Hot(mib * MIB), ..streams(name, &[], kib, 100) }
}

const KINDS: [(&str, Kind); 7] = [
    ("forwards", Kind::Forwards),
    ("backwards", Kind::Backwards),
    ("strided, one of two", Kind::Strided(2)),
    ("strided, one of four", Kind::Strided(4)),
    ("forwards with gaps", Kind::Gaps),
    ("forwards, reordered in 8", Kind::Reordered(8)),
    ("forwards, reordered in 32", Kind::Reordered(32)),
];
const SIZES: [u64; 4] = [4, 16, 64, 128];

/// The rows of the table.
fn mixes() -> Vec<Mix> {
    let all = KINDS.map(|k| k.1);
    let forwards = |name, kib, random| streams(name, &[Kind::Forwards], &[kib], random);
    let mut mixes = Vec::new();
    for kib in [64, 4] {
        mixes.extend(KINDS.map(|(name, kind)| streams(&format!("{name}, {kib} KiB"), &[kind], &[kib], 50)));
    }
    mixes.extend([
        forwards("forwards, 64 KiB, 90 % random", 64, 90),
        Mix { by_turns: true, ..forwards("forwards, 64 KiB, 90 % random, by turns", 64, 90) },
        forwards("forwards, 4 KiB, 90 % random", 4, 90),
        Mix { between: Between::Hot(1024 * MIB), ..forwards("forwards, 64 KiB, random ones in 1 GiB", 64, 50) },
        streams("all of these, 4 to 128 KiB", &all, &SIZES, 50),
        streams("all of these, 4 to 128 KiB, 90 % random", &all, &SIZES, 90),
        Mix { writers: 64, ..streams("64 streams of all of these, 4 to 128 KiB", &all, &SIZES, 50) },
        no_stream("no stream, 4 KiB in 256 MiB", &[4], 256),
        no_stream("no stream, 16 KiB in 1 GiB", &[16], 1024),
        no_stream("no stream, 64 KiB in 256 MiB", &[64], 256),
        no_stream("no stream, 64 KiB in 1 GiB", &[64], 1024),
        no_stream("no stream, 4 to 128 KiB in 1 GiB", &SIZES, 1024),
        streams("logs, 4 KiB, a flush after each write", &[Kind::Log], &[4], 50),
        streams("logs, 4 KiB, each write with FUA", &[Kind::FuaLog], &[4], 50),
        Mix { writers: 64, ..streams("64 logs, 4 KiB, each write with FUA", &[Kind::FuaLog], &[4], 50) },
        streams("streams and as many logs with FUA, 16 KiB", &[Kind::Forwards, Kind::FuaLog], &[16], 50),
        streams("streams and as many logs with flushes, 16 KiB", &[Kind::Forwards, Kind::Log], &[16], 50),
    ]);
    mixes
}

fn main() {
    check();
    // `cargo bench` says --bench, `cargo test` does not.
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let said = |word: &str| arguments.iter().any(|a| a == word);
    if !said("--bench") {
        return;
    }
    let names = ["requests", "recall", "of all", "precision", "random", "logs"];
    if !said("--json") {
        println!(
            "{WRITERS} streams or logs at once. In percent of bytes: recall, what was taken for a stream's of what follows the first"
        );
        println!(
            "512 KiB of streams, and of all of them; precision, what is a stream's of what was taken for it; random requests and logs"
        );
        println!("that were taken for streams.\n");
        println!("{:47}{:>10}{:>8}{:>8}{:>11}{:>8}{:>8}", "mix", names[0], names[1], names[2], names[3], names[4], names[5]);
    }
    for mix in mixes() {
        let found = measure(&mix);
        let shares = [found.known.share(), found.streams.share(), found.precision(), found.random.share(), found.logs.share()];
        if said("--json") {
            let figures =
                names[1..].iter().zip(shares).map(|(n, s)| format!(",\"{n}\":{}", s.map_or("null".into(), |s| s.to_string())));
            println!("{{\"mix\":\"{}\",\"requests\":{}{}}}", mix.name, found.requests, figures.collect::<String>());
        } else {
            let [recall, of_all, precision, random, logs] = shares.map(|s| s.map_or("-".into(), |s| format!("{:.2}", 100.0 * s)));
            println!("{:47}{:>10}{recall:>8}{of_all:>8}{precision:>11}{random:>8}{logs:>8}", mix.name, found.requests);
        }
    }
}

/// That what is measured is what the mixes say, and that streams are told from the rest: `cargo test` runs this.
fn check() {
    let few = |mix: Mix| measure(&Mix { writers: mix.writers.min(256), ..mix });
    let share = |share: Option<f64>| share.unwrap_or(-1.0);
    for (name, kind) in KINDS {
        let found = few(streams(name, &[kind], &[64], 50));
        assert_eq!((found.requests, found.logs.all), (2 * 256 * 256, 0), "{name}");
        assert!(found.streams.all.abs_diff(found.random.all) < found.streams.all / 20, "{name}: half of it is random");
        // What is reordered is known later.
        let least = if matches!(kind, Kind::Reordered(_)) { 0.8 } else { 0.97 };
        let (recall, precision) = (share(found.known.share()), share(found.precision()));
        assert!(recall > least && precision > 0.99, "{name}: recall {recall}, precision {precision}");
    }
    let crowd = measure(&streams("forwards", &[Kind::Forwards], &[64], 50));
    assert!(share(crowd.known.share()) > 0.99 && share(crowd.precision()) > 0.99, "thousands at once: {:?}", crowd.known.share());
    let hot = measure(&no_stream("hot", &SIZES, 1024));
    assert!((0.0..0.02).contains(&share(hot.random.share())), "a small set: {:?}", hot.random.share());
    for kind in [Kind::Log, Kind::FuaLog] {
        let logs = few(streams("logs", &[kind], &[4], 50));
        assert!(logs.logs.all > 0 && logs.logs.taken == 0, "{kind:?}: {:?}", logs.logs.share());
    }
    let both = few(streams("both", &[Kind::Forwards, Kind::FuaLog], &[16], 50));
    assert!(share(both.known.share()) > 0.97 && both.logs.taken == 0, "streams beside logs: {:?}", both.known.share());
}
