//! The table, as rows of text that the terminal and the page both show.

use super::super::figures::{
    Figures, Judgement, Loads, Measurement, Promise, Setup, Spread, number, random_rate, ratio, stream_rate,
};
use std::fmt::Write;

/// A row: what ran, and what it reached with each setup.
pub(super) struct Row {
    /// What ran, and in what unit its figures are.
    pub(super) what: String,
    /// By setup, as in [`Setup::ALL`]: the median, and the spread.
    pub(super) cells: [Option<(String, String)>; 3],
    /// Write-back over the figure of `over`.
    pub(super) ratio: Option<String>,
    /// What the ratio is to.
    pub(super) over: &'static str,
}

/// A unit, where the figure comes from, and how it is written.
type Unit = (&'static str, fn(&Measurement) -> Option<f64>, fn(f64) -> String);

/// The rows that something was measured for.
pub(super) fn rows(figures: &Figures) -> Vec<Row> {
    let stream: Unit = ("MB/s", stream_rate, |value| format!("{:.1}", value / 1e6));
    let random: Unit = ("writes/s", random_rate, number);
    let ms = |value| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
    let stream_p99: Unit = ("ms, 99 of 100", |it| it.stream.as_ref().map(|it| it.p99_ms), ms);
    let random_p99: Unit = ("ms, 99 of 100", |it| it.random.as_ref().map(|it| it.p99_ms), ms);
    let all = [
        ("Stream of 1 MiB alone", stream, Loads::Stream, Loads::Stream, "alone"),
        ("Stream of 128 KiB alone", stream, Loads::ShortStream, Loads::ShortStream, "alone"),
        ("Random 4 KiB alone", random, Loads::Random, Loads::Random, "alone"),
        ("Both: the stream", stream, Loads::Both, Loads::Stream, "alone"),
        ("Both: random 4 KiB", random, Loads::Both, Loads::Random, "alone"),
        ("Both: the stream", stream_p99, Loads::Both, Loads::Both, "both"),
        ("Both: random 4 KiB", random_p99, Loads::Both, Loads::Both, "both"),
    ];
    let rows = all.into_iter().map(|(what, (unit, figure, show), loads, over_loads, over)| {
        let spreads = Setup::ALL.map(|setup| figures.spread(setup, loads, figure));
        let show_spread = |it: Spread| (show(it.median), format!("{} to {}", show(it.least), show(it.most)));
        let share = figures.ratio((Setup::WriteBack, loads), (Setup::Bare, over_loads), figure).map(|it| ratio(it.median));
        Row { what: format!("{what}, {unit}"), cells: spreads.map(|it| it.map(show_spread)), ratio: share, over }
    });
    rows.filter(|row| row.cells.iter().any(Option::is_some)).collect()
}

/// What is said about promises, line by line: the mark, the figure, what it is.
pub(super) fn verdicts(figures: &Figures) -> Vec<(&'static str, String)> {
    let promise = |it: &Promise| {
        let mark = match it.judgement {
            Judgement::NotJudged => "not judged",
            Judgement::Kept => "kept",
            Judgement::NotDecided => "not decided",
            Judgement::Broken => "BROKEN",
        };
        let [least, most] = it.rounds.map(ratio);
        (mark, format!("{} ({least} to {most}; {} or better): {}", ratio(it.figure), ratio(it.at_least), it.what))
    };
    figures.promises().iter().map(promise).collect()
}

/// What is said about checks.
pub(super) fn checks(figures: &Figures) -> Vec<(&'static str, String)> {
    let check = |it: &super::super::figures::Check| {
        let mark = match it.passed {
            None => "left out",
            Some(true) => "passed",
            Some(false) => "FAILED",
        };
        (mark, format!("{}: {} ({:.1} s)", it.what, it.found, it.took_s))
    };
    figures.checks.iter().map(check).collect()
}

/// For how long the dirty set fitted while both ran.
pub(super) fn fitted(figures: &Figures) -> Option<String> {
    let both = figures.measurements.iter().filter(|it| it.loads == Loads::Both);
    let dirty: Vec<_> = both.filter_map(|it| it.dirty.as_ref()).collect();
    let most = dirty.iter().map(|it| it.most_bytes).max()?;
    let percent = dirty.iter().map(|it| it.percent_at_end).max()?;
    let seconds = Spread::of(dirty.iter().map(|it| it.fitted_s))?;
    Some(format!(
        "With both in write-back the dirty set fitted for {:.1} s of each round and counts for these; at most {} MB were dirty, and {percent} % \
         of the space for dirty data in use at the end.",
        seconds.least,
        number(most as f64 / 1e6),
    ))
}

/// The whole result for a terminal.
pub fn terminal(figures: &Figures) -> String {
    const HEAD: [&str; 5] = ["", "bare disk", "write-through", "write-back", "write-back over bare disk"];
    let cell =
        |it: &Option<(String, String)>| it.as_ref().map_or("-".to_owned(), |(median, spread)| format!("{median} ({spread})"));
    let mut lines: Vec<[String; 5]> = vec![HEAD.map(str::to_owned)];
    for row in rows(figures) {
        let [bare, through, back] = &row.cells;
        let share = row.ratio.map_or("-".to_owned(), |share| format!("{share} of {}", row.over));
        lines.push([row.what, cell(bare), cell(through), cell(back), share]);
    }
    let widths: [usize; 5] = std::array::from_fn(|n| lines.iter().map(|line| line[n].len()).max().unwrap_or(0));
    let mut out = String::new();
    for (n, line) in lines.iter().enumerate() {
        let _ = write!(out, "{:<width$}", line[0], width = widths[0]);
        for (text, width) in line.iter().zip(widths).skip(1) {
            let _ = write!(out, "  {text:>width$}");
        }
        out.push('\n');
        if n == 0 {
            let _ = writeln!(out, "{}", "-".repeat(widths.iter().sum::<usize>() + 8));
        }
    }
    let _ = writeln!(out, "Medians over rounds, in brackets the least and the most. A ratio is taken in each round.");
    if let Some(fitted) = fitted(figures) {
        let _ = writeln!(out, "{fitted}");
    }
    for list in [verdicts(figures), checks(figures)].iter().filter(|list| !list.is_empty()) {
        out.push('\n');
        for (mark, text) in list {
            let _ = writeln!(out, "{mark:<11}  {text}");
        }
    }
    out
}
