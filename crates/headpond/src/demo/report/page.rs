//! The page: one file, no scripts, nothing loaded from elsewhere, readable on paper.

use super::super::figures::{Figures, Loads, Measurement, Reached, Setup, WARM_UP, number};
use super::super::load::BUCKET;
use super::plot::{self, Across, Line, Scale};
use super::table;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// A setup's class in the style sheet.
fn class(setup: Setup) -> &'static str {
    match setup {
        Setup::Bare => "bare",
        Setup::WriteThrough => "through",
        Setup::WriteBack => "back",
    }
}

/// The page.
pub fn page(figures: &Figures) -> String {
    let mut out = String::new();
    let failures = figures.failures();
    open(&mut out, "Headpond demo");
    let summary = match (failures.len(), figures.judged, figures.not_decided()) {
        (0, true, None) => "All promises kept, all checks passed.".to_owned(),
        (0, true, Some(open)) => format!("All checks passed. {open}."),
        (0, false, _) => "All checks passed; a run this short does not judge speed.".to_owned(),
        (1, ..) => "One thing is not as it must be.".to_owned(),
        (n, ..) => format!("{n} things are not as they must be."),
    };
    let mark = if failures.is_empty() { "good" } else { "bad" };
    let _ = writeln!(out, "<p class=\"summary {mark}\">{summary}</p>");
    if !failures.is_empty() {
        out.push_str("<ul>");
        failures.iter().for_each(|failure| {
            let _ = write!(out, "<li>{}</li>", escape(failure));
        });
        out.push_str("</ul>\n");
    }
    write_table(&mut out, figures);
    write_bars(&mut out, figures);
    write_lines(&mut out, figures);
    for (title, list) in [("Promises", table::verdicts(figures)), ("Checks", table::checks(figures))] {
        if !list.is_empty() {
            let _ = write!(out, "<h2>{title}</h2>\n<table class=\"list\">");
            for (mark, text) in list {
                let class = match mark {
                    "kept" | "passed" => "good",
                    "BROKEN" | "FAILED" => "bad",
                    _ => "quiet",
                };
                let _ = write!(out, "<tr><td class=\"{class}\">{mark}</td><td>{}</td></tr>", escape(&text));
            }
            out.push_str("</table>\n");
        }
    }
    out.push_str("<h2>Method</h2>\n<table class=\"list\">");
    for (what, how) in &figures.method {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(what), escape(how));
    }
    let _ = write!(
        out,
        "</table>\n<p>Rounds are interleaved, so that slow changes of the machine touch all alike. A figure is the mean of its \
         measurement without the first {:.2} s (shaded), in which the disk's write cache takes more than the disk does; the table \
         shows the median over rounds, and the least and the most of them; a ratio is taken in each round, and is the median of \
         these. Headpond {}, {:.0} s in all.</p>\n</body></html>\n",
        WARM_UP.as_secs_f64(),
        escape(figures.version),
        figures.took_s
    );
    out
}

fn write_table(out: &mut String, figures: &Figures) {
    out.push_str("<table class=\"figures\"><thead><tr><th></th>");
    for setup in Setup::ALL {
        let _ = write!(out, "<th>{}</th>", setup.name());
    }
    out.push_str("<th>write-back over bare disk</th></tr></thead><tbody>");
    for row in table::rows(figures) {
        let _ = write!(out, "<tr><th>{}</th>", row.what);
        for cell in &row.cells {
            match cell {
                Some((median, spread)) => {
                    let _ = write!(out, "<td>{median}<small>{spread}</small></td>");
                }
                None => out.push_str("<td class=\"quiet\">–</td>"),
            }
        }
        match &row.ratio {
            Some(ratio) => {
                let _ = write!(out, "<td><b>{ratio}</b><small>of {}</small></td></tr>", row.over);
            }
            None => out.push_str("<td class=\"quiet\">–</td></tr>"),
        }
    }
    out.push_str("</tbody></table>\n");
    if let Some(fitted) = table::fitted(figures) {
        let _ = writeln!(out, "<p>{fitted}</p>");
    }
}

fn write_bars(out: &mut String, figures: &Figures) {
    type Of = fn(&Measurement) -> Option<&Reached>;
    type Value = fn(&Reached) -> f64;
    let all: [(&str, &str, Loads, Of, Value); 2] = [
        (
            "The stream, while random writes run beside it",
            "MB/s",
            Loads::Stream,
            |it| it.stream.as_ref(),
            |it| it.mean_bytes_per_s / 1e6,
        ),
        (
            "Random writes, while the stream runs beside them",
            "writes/s",
            Loads::Random,
            |it| it.random.as_ref(),
            |it| it.mean_requests_per_s,
        ),
    ];
    out.push_str("<h2>Side by side</h2>\n<div class=\"pair\">");
    for (title, unit, alone, of, value) in all {
        let figure = |setup, loads| figures.spread(setup, loads, |it| of(it).map(value)).map(|it| it.median);
        let alone = figure(Setup::Bare, alone).map(|value| ("bare disk, alone".to_owned(), "alone", value));
        let both = Setup::ALL.map(|setup| figure(setup, Loads::Both).map(|value| (setup.name().to_owned(), class(setup), value)));
        let bars: Vec<_> = alone.into_iter().chain(both.into_iter().flatten()).map(|(a, b, v)| (a, b, v, number(v))).collect();
        if !bars.is_empty() {
            let _ = write!(out, "<figure><figcaption>{title}</figcaption>{}</figure>", plot::bars(title, unit, &bars));
        }
    }
    out.push_str("</div>\n");
}

fn write_lines(out: &mut String, figures: &Figures) {
    let line = |it: &Measurement, class, values: Option<&Vec<f64>>, factor: f64| {
        let at = |n: usize| (n as f64 + 0.5) * BUCKET.as_secs_f64();
        let points = values?.iter().enumerate().map(|(n, value)| (at(n), value * factor)).collect();
        Some(Line { class, faint: it.round > 1, points })
    };
    let mut streams = Vec::new();
    let mut randoms = Vec::new();
    for it in &figures.measurements {
        let class = match it.loads {
            Loads::Both => class(it.setup),
            Loads::Stream | Loads::Random if it.setup == Setup::Bare => "alone",
            _ => continue,
        };
        streams.extend(line(it, class, it.stream.as_ref().map(|it| &it.bytes_per_s), 1e-6));
        randoms.extend(line(it, class, it.random.as_ref().map(|it| &it.requests_per_s), 1.0));
    }
    out.push_str("<h2>Moment by moment</h2>\n<p class=\"key\">");
    for (class, text) in [
        ("alone", "alone, bare disk"),
        ("bare", "both, bare disk"),
        ("through", "both, write-through"),
        ("back", "both, write-back"),
    ] {
        let _ = write!(out, "<span class=\"{class}\"><i></i>{text}</span> ");
    }
    out.push_str("<span>thin: further rounds; shaded: not counted</span></p>\n");
    for (title, unit, scale, lines) in [
        ("The stream", "MB/s", Scale::Linear, streams),
        ("Random 4 KiB writes (each step of the scale is ten times the last)", "writes/s", Scale::Powers, randoms),
    ] {
        if !lines.is_empty() {
            let plot = plot::lines(title, unit, scale, Across::Seconds(WARM_UP.as_secs_f64()), &lines);
            let _ = writeln!(out, "<figure><figcaption>{title}</figcaption>{plot}</figure>");
        }
    }
}

/// The beginning of a page: its style is in it.
pub fn open(out: &mut String, title: &str) {
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    );
}

/// Text as text.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
