//! The hours for the terminal: a line for every five minutes.

use super::super::table::ms;
use super::{Hours, fates, full, headline, verdicts};
use crate::demo::number;
use headpond_sim::bench::Hour;
use headpond_sim::bench::hour::{least_second, most_ns, p999_ns, per_s};
use headpond_sim::bench::measure::Reached;
use std::fmt::Write;

/// Minutes of a line.
pub(super) const LINE: usize = 5;

pub(super) const HEAD: [&str; 11] = [
    "minutes",
    "bare",
    "least second",
    "p99.9",
    "longest",
    "cached",
    "least second",
    "p99.9",
    "longest",
    "dirty",
    "segments taken",
];

fn side(minutes: &[&Reached]) -> [String; 4] {
    let all = || minutes.iter().copied();
    [
        format!("{} /s", number(per_s(all()))),
        number(least_second(all()) as f64),
        ms(p999_ns(all()) as f64),
        ms(most_ns(all()) as f64),
    ]
}

/// A line for every five minutes. Its p99.9 is that of the worst of them.
pub(super) fn lines(hour: &Hour) -> Vec<[String; 11]> {
    let mut lines = Vec::new();
    for (n, (cached, bare)) in hour.cached.chunks(LINE).zip(hour.bare.chunks(LINE)).enumerate() {
        let [a, b, c, d] = side(&bare.iter().collect::<Vec<_>>());
        let [e, f, g, h] = side(&cached.iter().map(|minute| &minute.reached).collect::<Vec<_>>());
        let held = cached.last().map_or(hour.at_first, |minute| minute.held);
        let (first, last) = (n * LINE, n * LINE + cached.len());
        let (dirty, taken) = (format!("{} %", held.dirty_percent), format!("{:.1} %", held.taken_percent()));
        lines.push([format!("{first} to {last}"), a, b, c, d, e, f, g, h, dirty, taken]);
    }
    lines
}

/// What became of requests in the hour, and what the engine did beside them.
pub(super) fn deeds(hour: &Hour) -> String {
    let (mut evicted, mut moved, mut checkpoints) = (0, 0, 0);
    for minute in &hour.cached {
        evicted += minute.evicted;
        moved += minute.moved;
        checkpoints += minute.checkpoints;
    }
    let fates = fates(&hour.cached).into_iter().map(|(what, n)| format!("{what} {}", number(n as f64)));
    format!(
        "{}; segments evicted {}, moved {}, checkpoints {}",
        fates.collect::<Vec<_>>().join(", "),
        number(evicted as f64),
        number(moved as f64),
        number(checkpoints as f64)
    )
}

/// All hours, then the headline.
pub fn terminal(hours: &Hours) -> String {
    let mut out = String::new();
    for hour in &hours.hours {
        let _ = writeln!(out, "{} ({})", hour.name, hour.setting);
        let lines: Vec<_> = [HEAD.map(str::to_owned)].into_iter().chain(lines(hour)).collect();
        let widths: [usize; 11] = std::array::from_fn(|n| lines.iter().map(|line| line[n].chars().count()).max().unwrap_or(0));
        for line in &lines {
            let cells: Vec<String> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            let _ = writeln!(out, "  {}", cells.join("  "));
        }
        let _ = writeln!(out, "  {}", deeds(hour));
        let _ = writeln!(out, "  {}", full(hour));
        for verdict in verdicts(hour) {
            let _ = writeln!(out, "  {}  {}", verdict.mark(), verdict.text);
        }
        out.push('\n');
    }
    for (name, why) in &hours.failures {
        let _ = writeln!(out, "FAILED  {name}: {why}");
    }
    let _ = write!(out, "{}.", headline(hours));
    out
}
