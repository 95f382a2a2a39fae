//! `headpond histogram`: how long requests took, and how large they were.

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use clap::Args;
use headpond_host::control::Call;
use headpond_host::histogram::Histogram;
use headpond_host::requests::{Histograms, Op};
use serde_json::json;

use super::{Which, print};
use crate::exit::Usage;
use crate::seeing::bars::{bar, bound, time};
use crate::seeing::kinds::{Kinds, QUANTILES};
use crate::size;

/// Cells of the longest bar.
const WIDTH: usize = 40;

#[derive(Args)]
pub struct HistogramOf {
    /// Count what comes within so many seconds, rather than all since the daemon's start
    #[arg(long, value_name = "SECONDS")]
    over: Option<f64>,
    /// This volume alone
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Print JSON: times in nanoseconds and sizes in bytes, each bucket by its upper bound
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl HistogramOf {
    pub fn run(self) -> anyhow::Result<()> {
        let mut before = None;
        if let Some(seconds) = self.over {
            let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
            let time = time.ok_or_else(|| Usage(format!("{seconds} is no time. Nothing was done. Give seconds, such as 10")))?;
            before = Some(self.ask()?);
            thread::sleep(time);
        }
        let after = self.ask()?;
        let kinds = Kinds::between(before.as_ref(), &after, self.volume.as_deref());
        let mut object = kinds.json();
        object["pool"] = json!(after.pool);
        object["volume"] = json!(self.volume);
        print(self.json, &object, page(&kinds))
    }

    fn ask(&self) -> anyhow::Result<Histograms> {
        if self.volume.is_some() {
            self.which.report(self.volume.as_deref())?;
        }
        Ok(serde_json::from_value(self.which.call(&Call::Histograms)?)?)
    }
}

fn page(kinds: &Kinds) -> String {
    let mut text = String::new();
    for op in Op::ALL {
        let pair = kinds.of(op);
        let count = pair.times.count();
        if count == 0 {
            continue;
        }
        let _ = write!(text, "{}: {count} requests in {:.0} s", plural(op), kinds.seconds);
        if op != Op::Flush {
            let _ = write!(text, ", {}", size::show(pair.sizes.sum()));
        }
        text.push_str("\n\n");
        rows(&mut text, "time up to", &pair.times, (1000, 1000 << 26), time);
        if op != Op::Flush {
            rows(&mut text, "size up to", &pair.sizes, (512, 512 << 16), bound);
        }
    }
    if text.is_empty() {
        return format!("no requests in {:.0} s", kinds.seconds);
    }
    let _ = write!(text, "{:<22}{:>12}{:>12}", "became of it", "requests", "share");
    for (_, name) in QUANTILES {
        let _ = write!(text, "{name:>10}");
    }
    for (op, fate, pair) in kinds.each() {
        let (count, all) = (pair.times.count(), kinds.of(op).times.count());
        let share = format!("{:.1} %", 100.0 * count as f64 / all as f64);
        let name = format!("{} {}", op.name(), fate.unwrap_or(if op == Op::Flush { "" } else { "failed, or nothing" }));
        let _ = write!(text, "\n{name:<22}{count:>12}{share:>12}");
        for (quantile, _) in QUANTILES {
            let _ = write!(text, "{:>10}", pair.times.quantile(quantile).map_or_else(|| "-".into(), time));
        }
    }
    text
}

fn plural(op: Op) -> &'static str {
    match op {
        Op::Read => "reads",
        Op::Write => "writes",
        Op::Flush => "flushes",
        Op::Zero => "discards and zeroings",
    }
}

/// A row for each doubling from the first that has something to the last.
fn rows(text: &mut String, title: &str, values: &Histogram, (first, last): (u64, u64), show: fn(u64) -> String) {
    let doublings = values.doublings(first, last, 2);
    let filled = |(_, count): &(Option<u64>, u64)| *count > 0;
    let (Some(from), Some(to)) = (doublings.iter().position(filled), doublings.iter().rposition(filled)) else { return };
    let (all, most) = (values.count(), doublings.iter().map(|row| row.1).max().unwrap_or(0));
    let _ = writeln!(text, "{title:>12}{:>12}{:>9}", "requests", "share");
    for (upper, count) in &doublings[from..=to] {
        let upper = upper.map_or_else(|| "more".into(), show);
        let share = 100.0 * *count as f64 / all as f64;
        let bar = bar(*count as f64 / most as f64, WIDTH);
        let _ = writeln!(text, "{}", format!("{upper:>12}{count:>12}{share:>7.1} %  {bar}").trim_end());
    }
    text.push('\n');
}
