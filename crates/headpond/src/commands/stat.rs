//! `headpond stat`: a line for each interval, for scripts and for eyes.

use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use headpond_host::report::Report;
use serde_json::{Value, json};

use super::{Which, print};
use crate::exit::Usage;
use crate::seeing::rates::{Rates, restarted};

/// Lines after which the header is shown again.
const PAGE: u64 = 20;
/// The shortest interval, and the longest, in seconds.
const INTERVALS: RangeInclusive<f64> = 0.05..=86_400.0;

/// Columns: what they are called, their width, and the unit that the name tells.
const HEADER: &str = "    r/s  rMiB/s hit%   r_ms     w/s  wMiB/s abs%   w_ms   fl/s dirtyMiB room% dstMiB/s ssd% disk% err/s";

#[derive(Args)]
#[command(after_help = "\
Columns: reads a second, their MiB, the share answered by the cache alone, their average time; writes, the share absorbed, their \
average time; flushes; dirty data at the end, and how full the room for it is; destaged; how long the busiest cache device and \
the busiest disk had something to do; failed requests. Without INTERVAL: one line, averages since the daemon's start.")]
pub struct Stat {
    /// Seconds between two lines
    #[arg(value_name = "INTERVAL")]
    interval: Option<f64>,
    /// Lines to print [default: no end]
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// This volume alone; the cache devices are all volumes'
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Print a JSON object a line, with the fates of requests and each device
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Stat {
    pub fn run(self) -> anyhow::Result<()> {
        let interval = self.interval.map(interval).transpose()?;
        let mut before: Option<Report> = None;
        let mut next = Instant::now();
        let mut lines = 0;
        if interval.is_some() {
            before = Some(self.which.report(self.volume.as_deref())?);
        }
        loop {
            if let Some(interval) = interval {
                next += interval;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            let after = self.which.report(self.volume.as_deref())?;
            if before.as_ref().is_some_and(|before| restarted(before, &after)) {
                eprintln!("headpond: the daemon was restarted; the next line is since its start.");
            }
            let rates = Rates::between(before.as_ref(), &after, self.volume.as_deref());
            if !self.json && lines % PAGE == 0 {
                print(false, &Value::Null, HEADER)?;
            }
            print(self.json, &self.object(&after, &rates), line(&rates))?;
            lines += 1;
            if interval.is_none() || self.count.is_some_and(|count| lines >= count) {
                return Ok(());
            }
            before = Some(after);
        }
    }

    fn object(&self, report: &Report, rates: &Rates) -> Value {
        let mut object = json!(rates);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        object["time"] = json!(time);
        object["pool"] = json!(report.pool);
        object["volume"] = json!(self.volume);
        object["problems"] = json!(report.advice);
        object
    }
}

fn interval(seconds: f64) -> Result<Duration, Usage> {
    let (least, most) = (INTERVALS.start(), INTERVALS.end());
    let none = || Usage(format!("{seconds} is no interval. Nothing was done. Give seconds, {least} to {most}, such as 1"));
    Duration::try_from_secs_f64(seconds).ok().filter(|_| INTERVALS.contains(&seconds)).ok_or_else(none)
}

fn line(r: &Rates) -> String {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let [ssd, disk] = [&r.members, &r.disks].map(|devices| Rates::busiest(devices));
    format!(
        "{:>7.0} {:>7.2} {:>4} {:>6} {:>7.0} {:>7.2} {:>4} {:>6} {:>6.0} {:>8.1} {:>5} {:>8.2} {ssd:>4.0} {disk:>5.0} {:>5.0}",
        r.reads.per_second,
        mib(r.reads.bytes_per_second),
        maybe(r.hit_percent, 0),
        maybe(r.read_ms, 2),
        r.writes.per_second,
        mib(r.writes.bytes_per_second),
        maybe(r.absorbed_percent, 0),
        maybe(r.write_ms, 2),
        r.flushes_per_second,
        mib(r.dirty_bytes as f64),
        r.dirty_percent,
        mib(r.destaged.bytes_per_second),
        r.errors_per_second,
    )
}

/// What there may be none of, as one word all the same: scripts count columns.
fn maybe(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_a_word_for_each_word_of_the_header_below_which_it_ends() {
        let ends = |line: &str| {
            let bytes = line.as_bytes();
            (0..bytes.len()).filter(|n| bytes[*n] != b' ' && bytes.get(n + 1).is_none_or(|b| *b == b' ')).collect::<Vec<_>>()
        };
        let busy = Rates { hit_percent: Some(100.0), read_ms: Some(12.345), dirty_bytes: 5 << 30, ..Rates::default() };
        for rates in [Rates::default(), busy] {
            assert_eq!(ends(&line(&rates)), ends(HEADER), "\n{HEADER}\n{}", line(&rates));
        }
    }

    #[test]
    fn an_interval_is_some_seconds() {
        assert_eq!(interval(0.5).unwrap(), Duration::from_millis(500));
        for none in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e19, 1e300] {
            assert!(interval(none).is_err(), "{none}");
        }
    }
}
