//! The table for the terminal.

use super::Figures;
use crate::demo::number;
use headpond_sim::bench::Row;
use headpond_sim::bench::measure::Reached;
use std::fmt::Write;

/// The worst ratio, in one line; it is the first thing said.
pub fn headline(figures: &Figures) -> String {
    let Some(least) = figures.least() else { return "Nothing was measured.".to_owned() };
    let under = figures.rows.iter().filter(|row| row.by_promise() < 1.0).count();
    let rest = match under {
        0 => "all are at their mark or above".to_owned(),
        1 => "1 is under its mark".to_owned(),
        n => format!("{n} are under their mark"),
    };
    format!("worst ratio {:.3}: {} ({}); of {} figures {rest}", least.ratio, least.name, least.setting, figures.rows.len())
}

/// A rate: bytes where requests are large, else requests.
pub(super) fn rate(row: &Row, reached: &Reached) -> String {
    let large = row.bare.bytes_per_s >= 32_768.0 * row.bare.per_s;
    match (row.by_latency, large) {
        (true, _) => format!("{} mean", ms(reached.mean_ns)),
        (_, true) => format!("{:.1} MB/s", reached.bytes_per_s / 1e6),
        _ => format!("{} /s", number(reached.per_s)),
    }
}

/// A time in milliseconds.
pub(super) fn ms(ns: f64) -> String {
    let ms = ns / 1e6;
    match ms {
        ..1.0 => format!("{ms:.3} ms"),
        1.0..100.0 => format!("{ms:.1} ms"),
        _ => format!("{ms:.0} ms"),
    }
}

/// What the writes of a row left: the dirty space in use, its share of the region, the time to drain it.
pub(super) fn left(row: &Row) -> String {
    let after = &row.after;
    if after.dirty_bytes == [0, 0] && after.drain_s < 0.5 {
        return String::new();
    }
    format!(
        "{} to {} %, {:.1} % of region, drained in {:.0} s",
        after.dirty_percent[0],
        after.dirty_percent[1],
        after.density * 100.0,
        after.drain_s
    )
}

/// The ratio, and its mark where it is another than the usual.
pub(super) fn ratio(row: &Row) -> String {
    let mark = if row.at_least == 0.97 { String::new() } else { format!(" of {}", row.at_least) };
    let under = if row.by_promise() < 1.0 { " !" } else { "" };
    format!("{:.3}{mark}{under}", row.ratio)
}

pub(super) const HEAD: [&str; 9] =
    ["load", "setting", "bare", "cached", "ratio", "p99 bare", "p99 cached", "least second", "dirty space, density, drain"];

pub(super) fn cells(row: &Row) -> [String; 9] {
    let alone = if row.alone { " (to alone)" } else { "" };
    [
        format!("{}{alone}", row.name),
        row.setting.clone(),
        rate(row, &row.bare),
        rate(row, &row.cached),
        ratio(row),
        ms(row.bare.p99_ns as f64),
        ms(row.cached.p99_ns as f64),
        format!("{:.2}", row.cached.least_second),
        left(row),
    ]
}

/// Cells in columns, under the first line of them.
pub(super) fn lines(all: &[[String; 9]]) -> String {
    let widths: [usize; 9] = std::array::from_fn(|n| all.iter().map(|line| line[n].chars().count()).max().unwrap_or(0));
    let mut out = String::new();
    for (n, line) in all.iter().enumerate() {
        let mut text = String::new();
        for (n, (cell, width)) in line.iter().zip(widths).enumerate() {
            let _ = match n {
                0 | 1 | 8 => write!(text, "{cell:<width$}  "),
                _ => write!(text, "{cell:>width$}  "),
            };
        }
        out.push_str(text.trim_end());
        out.push('\n');
        if n == 0 {
            let _ = writeln!(out, "{}", "-".repeat(widths.iter().sum::<usize>() + 16));
        }
    }
    out
}

/// All rows, then the headline.
pub fn terminal(figures: &Figures) -> String {
    let mut all = vec![HEAD.map(str::to_owned)];
    all.extend(figures.rows.iter().map(cells));
    let mut out = lines(&all);
    for (name, why) in &figures.failures {
        let _ = writeln!(out, "FAILED  {name}: {why}");
    }
    let _ = write!(out, "{}", headline(figures));
    out
}
