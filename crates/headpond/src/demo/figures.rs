//! What was measured and checked, and what follows from it.

use super::load::{BUCKET, Series};
use super::record::Verdict;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// At the start of a measurement the disk's write cache takes more than the disk does: this much is not counted.
pub const WARM_UP: Duration = Duration::from_secs(1);

/// A measurement of at least so many seconds is fair to loads that share the bare disk.
const SWINGS_S: f64 = 10.0;

/// What is between the client and the disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setup {
    /// The same front end, and past the cache to the disk: the bare disk.
    Bare,
    /// The cache in write-through.
    WriteThrough,
    /// The cache in write-back.
    WriteBack,
}

impl Setup {
    /// All, in the order in which they are shown.
    pub const ALL: [Setup; 3] = [Setup::Bare, Setup::WriteThrough, Setup::WriteBack];

    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Setup::Bare => "bare disk",
            Setup::WriteThrough => "write-through",
            Setup::WriteBack => "write-back",
        }
    }

    /// The mode of the volume.
    pub fn mode(self) -> &'static str {
        match self {
            Setup::Bare => "pass-through",
            Setup::WriteThrough => "write-through",
            Setup::WriteBack => "write-back",
        }
    }
}

/// Which loads ran.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loads {
    /// The stream, in requests of 1 MiB.
    Stream,
    /// The stream, in requests of 128 KiB.
    ShortStream,
    /// Random writes.
    Random,
    /// The stream of 1 MiB and random writes beside it.
    Both,
}

impl Loads {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Loads::Stream => "stream alone",
            Loads::ShortStream => "stream of 128 KiB alone",
            Loads::Random => "random alone",
            Loads::Both => "both",
        }
    }
}

/// What one load reached in one measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Reached {
    /// Requests per second and bytes per second, bucket by bucket, from the start.
    pub requests_per_s: Vec<f64>,
    /// The same in bytes.
    pub bytes_per_s: Vec<f64>,
    /// The mean over the buckets that count.
    pub mean_requests_per_s: f64,
    /// The same in bytes.
    pub mean_bytes_per_s: f64,
    /// The median time to an answer, in milliseconds.
    pub p50_ms: f64,
    /// The time within which 99 of 100 answers came, in milliseconds.
    pub p99_ms: f64,
}

impl Reached {
    /// From a series of requests of `request_bytes` each, of which the buckets in `counted` count.
    pub fn new(series: &Series, request_bytes: u64, counted: std::ops::Range<usize>) -> Reached {
        let per_s = 1.0 / BUCKET.as_secs_f64();
        let bytes_per_s: Vec<f64> = series.bytes.iter().map(|bytes| *bytes as f64 * per_s).collect();
        let end = counted.end.min(bytes_per_s.len());
        let counted = counted.start.min(end)..end;
        let mean_bytes_per_s = mean(&bytes_per_s[counted.clone()]);
        // Answers are in the order of time, one for each request, so the bytes say which bucket they are of.
        let answers = |until: usize| (series.bytes[..until].iter().sum::<u64>() / request_bytes) as usize;
        let mut latencies = series.latencies_us[answers(counted.start)..answers(counted.end)].to_vec();
        latencies.sort_unstable();
        let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).map_or(0.0, |us| f64::from(*us) / 1000.0);
        Reached {
            requests_per_s: bytes_per_s.iter().map(|bytes| bytes / request_bytes as f64).collect(),
            mean_requests_per_s: mean_bytes_per_s / request_bytes as f64,
            bytes_per_s,
            mean_bytes_per_s,
            p50_ms: at(0.5),
            p99_ms: at(0.99),
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// What was between client and disk.
    pub setup: Setup,
    /// What ran.
    pub loads: Loads,
    /// In which round, from 1 on.
    pub round: u32,
    /// What the stream reached, if it ran.
    pub stream: Option<Reached>,
    /// What random writes reached, if they ran.
    pub random: Option<Reached>,
    /// In write-back: how the dirty set stood.
    pub dirty: Option<Dirty>,
}

/// How the dirty set stood during a measurement.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Dirty {
    /// For how many seconds it fitted: until destage had to begin beside the loads, or all along.
    pub fitted_s: f64,
    /// The most that was dirty meanwhile, in bytes.
    pub most_bytes: u64,
    /// The space for dirty data in use at the end, in percent.
    pub percent_at_end: u32,
    /// What became of the writes meanwhile: absorbed, past the cache and why, and what was destaged; in bytes.
    pub fates: BTreeMap<String, u64>,
}

/// A median over rounds, and the least and the most of them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// Of these values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Spread { median, least, most })
    }
}

/// Something that was done and looked at after the measurements.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was done.
    pub what: String,
    /// What was found, or why it was left out.
    pub found: String,
    /// Whether it is as it must be; `None` if it was left out.
    pub passed: Option<bool>,
    /// How long it took, in seconds.
    pub took_s: f64,
}

impl Check {
    /// The outcome of comparing what is there with the record.
    pub fn of(what: impl Into<String>, verdict: &Verdict, took: Duration) -> Check {
        let Verdict { sectors, acknowledged, from_in_flight, wrong, findings } = verdict;
        let mut found =
            format!("{} sectors looked at, {} of them written", number(*sectors as f64), number(*acknowledged as f64));
        if *from_in_flight > 0 {
            found += &format!(", {} of a write that was in flight", number(*from_in_flight as f64));
        }
        match wrong {
            0 => found += ", none wrong",
            n => {
                found += &format!(", {} WRONG", number(*n as f64));
                findings.iter().for_each(|finding| found += &format!("; {finding}"));
            }
        }
        Check { what: what.into(), found, passed: Some(*wrong == 0), took_s: took.as_secs_f64() }
    }
}

/// A promise, and whether it was kept.
#[derive(Clone, Debug, Serialize)]
pub struct Promise {
    /// What is promised.
    pub what: &'static str,
    /// The figure: of each round the ratio, of these the median.
    pub figure: f64,
    /// The least and the most of the rounds.
    pub rounds: [f64; 2],
    /// The least that it may be.
    pub at_least: f64,
    /// Whether it was kept.
    pub judgement: Judgement,
    /// What was measured for it.
    #[serde(skip)]
    pub of: [(Setup, Loads); 2],
}

/// What is to be said of a promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// A run this short prints the figure and does not judge it.
    NotJudged,
    /// It was.
    Kept,
    /// By the median it was not, and yet in a round it was: this machine's noise is wider than what is missing.
    NotDecided,
    /// In no round it was.
    Broken,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Headpond's version.
    pub version: &'static str,
    /// The machine, the devices and the loads, as pairs of what and how.
    pub method: Vec<(String, String)>,
    /// Every measurement, in the order of time.
    pub measurements: Vec<Measurement>,
    /// What was checked.
    pub checks: Vec<Check>,
    /// For how long a measurement counts, in seconds.
    pub measured_s: f64,
    /// Whether the promises on speed are judged.
    pub judged: bool,
    /// How long all of it took, in seconds.
    pub took_s: f64,
}

impl Figures {
    /// Nothing measured yet; each measurement will count for `measured`.
    pub fn begin(measured: Duration, judged: bool) -> Figures {
        Figures {
            version: env!("CARGO_PKG_VERSION"),
            method: Vec::new(),
            measurements: Vec::new(),
            checks: Vec::new(),
            measured_s: measured.as_secs_f64(),
            judged,
            took_s: 0.0,
        }
    }

    /// A figure over all rounds.
    pub fn spread(&self, setup: Setup, loads: Loads, figure: impl Fn(&Measurement) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.measurements.iter().filter(|it| it.setup == setup && it.loads == loads).filter_map(figure))
    }

    /// A figure of one thing by that of another: of each round that has both the ratio. Rounds are short, so that what the machine
    /// does otherwise touches both of a round rather than all rounds of one.
    pub fn ratio(&self, of: (Setup, Loads), to: (Setup, Loads), figure: impl Fn(&Measurement) -> Option<f64>) -> Option<Spread> {
        let measured = |(setup, loads), round| {
            let found = self.measurements.iter().find(|it| (it.setup, it.loads, it.round) == (setup, loads, round));
            found.and_then(&figure)
        };
        let last = self.measurements.iter().map(|it| it.round).max().unwrap_or(0);
        let by_round = (1..=last).filter_map(|round| Some(measured(of, round)? / measured(to, round)?));
        Spread::of(by_round.filter(|ratio| ratio.is_finite()))
    }

    /// What was promised, as far as it was measured.
    pub fn promises(&self) -> Vec<Promise> {
        use Loads::{Both, Random, ShortStream, Stream};
        use Setup::{Bare, WriteBack, WriteThrough};
        // Where two loads share the bare disk, its queue swings between them for seconds at a time.
        let long = self.measured_s >= SWINGS_S;
        let random = |of, to| self.ratio(of, to, random_rate);
        let stream = |of, to| self.ratio(of, to, stream_rate);
        let promise = |what, figure: &dyn Fn(_, _) -> Option<Spread>, of, to, at_least, fair: bool| {
            let rounds = figure(of, to)?;
            let judgement = match (self.judged && fair, rounds) {
                (false, _) => Judgement::NotJudged,
                (true, Spread { median, .. }) if median >= at_least => Judgement::Kept,
                (true, Spread { most, .. }) if most >= at_least => Judgement::NotDecided,
                (true, _) => Judgement::Broken,
            };
            Some(Promise { what, figure: rounds.median, rounds: [rounds.least, rounds.most], at_least, judgement, of: [of, to] })
        };
        let promises = [
            promise(
                "random 4 KiB writes in write-back beside the stream, over those alone on the bare disk",
                &random,
                (WriteBack, Both),
                (Bare, Random),
                10.0,
                true,
            ),
            promise(
                "the stream beside them while the dirty set fits, over the stream alone on the bare disk",
                &stream,
                (WriteBack, Both),
                (Bare, Stream),
                0.97,
                true,
            ),
            promise(
                "the stream alone in write-back, over the same on the bare disk",
                &stream,
                (WriteBack, Stream),
                (Bare, Stream),
                0.97,
                true,
            ),
            promise(
                "the stream of 128 KiB alone in write-back, over the same on the bare disk",
                &stream,
                (WriteBack, ShortStream),
                (Bare, ShortStream),
                0.97,
                true,
            ),
            promise(
                "the stream of both in write-through, over both on the bare disk (judged with --seconds 10 or more)",
                &stream,
                (WriteThrough, Both),
                (Bare, Both),
                0.97,
                long,
            ),
        ];
        promises.into_iter().flatten().collect()
    }

    /// What wants another round: all that was measured for promises that are judged and were not kept.
    pub fn once_more(&self) -> Vec<(Setup, Loads)> {
        let open = self.promises().into_iter().filter(|it| matches!(it.judgement, Judgement::NotDecided | Judgement::Broken));
        open.flat_map(|it| it.of).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// In a sentence without its end what could not be decided, if anything.
    pub fn not_decided(&self) -> Option<String> {
        let open = self.promises().iter().filter(|it| it.judgement == Judgement::NotDecided).count();
        let which = match open {
            0 => return None,
            1 => "One promise on speed is not decided".to_owned(),
            n => format!("{n} promises on speed are not decided"),
        };
        Some(format!(
            "{which}: kept in one round and not in another, as this machine's noise is wider than what is missing. Run it again while the \
             machine does nothing else"
        ))
    }

    /// What is not as it must be.
    pub fn failures(&self) -> Vec<String> {
        let broken = self.promises().into_iter().filter(|it| it.judgement == Judgement::Broken);
        let promises = broken.map(|it| format!("{}: {} and not {} or better", it.what, ratio(it.figure), ratio(it.at_least)));
        let checks = self.checks.iter().filter(|it| it.passed == Some(false)).map(|it| format!("{}: {}", it.what, it.found));
        checks.chain(promises).collect()
    }
}

/// A stream's figure: bytes per second.
pub fn stream_rate(measurement: &Measurement) -> Option<f64> {
    measurement.stream.as_ref().map(|it| it.mean_bytes_per_s)
}

/// The figure of random writes: requests per second.
pub fn random_rate(measurement: &Measurement) -> Option<f64> {
    measurement.random.as_ref().map(|it| it.mean_requests_per_s)
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// A whole number with its thousands apart.
pub fn number(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 && digits != "0" { format!("-{out}") } else { out }
}

/// A ratio, as exactly as one looks at it.
pub fn ratio(value: f64) -> String {
    if value < 3.0 { format!("{value:.2}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_does_not_count_and_latencies_are_those_of_the_rest() {
        let series = Series { bytes: vec![8192, 4096, 4096], latencies_us: vec![9000, 9000, 1000, 3000] };
        let reached = Reached::new(&series, 4096, 1..3);
        assert_eq!((reached.mean_requests_per_s, reached.requests_per_s[0]), (4.0, 8.0));
        assert_eq!((reached.p50_ms, reached.p99_ms), (3.0, 3.0));
        let none = Reached::new(&series, 4096, 3..9);
        assert_eq!((none.mean_bytes_per_s, none.p99_ms), (0.0, 0.0));
    }

    #[test]
    fn medians_and_spreads() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([0.4, 999.0, 1000.0, 1_234_567.0].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.974, 1.0, 43.21].map(ratio), ["0.97", "1.00", "43.2"]);
    }

    #[test]
    fn a_broken_promise_and_a_failed_check_are_named() {
        let reached = |rate: f64| Reached {
            requests_per_s: vec![rate],
            bytes_per_s: vec![rate],
            mean_requests_per_s: rate,
            mean_bytes_per_s: rate,
            p50_ms: 1.0,
            p99_ms: 2.0,
        };
        let one = |setup, loads, stream: Option<f64>, random: Option<f64>| Measurement {
            setup,
            loads,
            round: 1,
            stream: stream.map(reached),
            random: random.map(reached),
            dirty: None,
        };
        let mut figures = Figures {
            version: "0",
            method: Vec::new(),
            measurements: vec![
                one(Setup::Bare, Loads::Stream, Some(100.0), None),
                one(Setup::Bare, Loads::Random, None, Some(10.0)),
                one(Setup::WriteBack, Loads::Both, Some(96.0), Some(101.0)),
            ],
            checks: vec![Check { what: "after the kill".into(), found: "1 WRONG".into(), passed: Some(false), took_s: 1.0 }],
            measured_s: 10.0,
            judged: true,
            took_s: 1.0,
        };
        let failures = figures.failures();
        assert_eq!(failures.len(), 2, "{failures:?}");
        assert!(failures[0].starts_with("after the kill") && failures[1].contains("0.96 and not 0.97"), "{failures:?}");
        figures.judged = false;
        assert_eq!(figures.failures().len(), 1);
    }
}
