//! The hours as a page: for each load what is promised, latency and answers drawn over the hour, the table.

use super::table::{HEAD, deeds, lines};
use super::{Hours, full, headline, sides, verdicts};
use crate::demo::plot::{self, Across, Line, Scale};
use crate::demo::{escape, open};
use headpond_sim::bench::Hour;
use headpond_sim::bench::hour::{Held, least_second, per_s};
use headpond_sim::bench::measure::Reached;
use std::fmt::Write;

/// Lines with a class of the style sheet and a name, drawn thin or not; a value for each minute.
type Drawn = (&'static str, bool, String, Vec<f64>);

/// The page.
pub fn page(hours: &Hours) -> String {
    let mut out = String::new();
    open(&mut out, "Headpond bench: an hour with a full cache");
    let good = hours.failures.is_empty() && hours.hours.iter().flat_map(verdicts).all(|it| it.holds);
    let _ = writeln!(out, "<p class=\"summary {}\">{}.</p>", if good { "good" } else { "bad" }, escape(&headline(hours)));
    for (name, why) in &hours.failures {
        let _ = writeln!(out, "<p class=\"bad\">{} failed: {}</p>", escape(name), escape(why));
    }
    hours.hours.iter().for_each(|hour| section(&mut out, hour));
    let _ = write!(
        out,
        "<p>In virtual time, on a modelled 8 TiB disk at 7200 rpm and modelled SSDs, seed {}. The cache was filled with clean data that no \
         client asks for; then the clients worked until what is dirty was in its steady state, and for ten minutes more, before the hour. \
         p99.9 is that of a minute, in the table that of the worst of five minutes.</p>\n</body></html>\n",
        hours.seed
    );
    out
}

fn section(out: &mut String, hour: &Hour) {
    let _ = writeln!(out, "<section><h2>{}</h2>\n<p class=\"quiet\">{}</p>", escape(&hour.name), escape(&hour.setting));
    out.push_str("<table class=\"list\">");
    for verdict in verdicts(hour) {
        let class = if verdict.holds { "good" } else { "bad" };
        let _ = write!(out, "<tr><td class=\"{class}\">{}</td><td>{}</td></tr>", verdict.mark(), escape(&verdict.text));
    }
    out.push_str("</table>\n");
    let ms = |ns: u64| ns as f64 / 1e6;
    figure(
        out,
        "Time to an answer, of each minute",
        "ms",
        Scale::Powers,
        &two(hour, "p99.9", |it| ms(it.p999_ns), "longest", |it| ms(it.most_ns)),
    );
    let (mean, least) = (|it: &Reached| per_s([it].into_iter()), |it: &Reached| least_second([it].into_iter()) as f64);
    figure(out, "Answers per second, of each minute", "/s", Scale::Linear, &two(hour, "mean", mean, "least second", least));
    figure(out, "What the cache holds at the end of each minute", "percent", Scale::Linear, &holds(hour));
    table(out, hour);
    let _ = writeln!(out, "<p class=\"quiet\">In the hour: {}; {}.</p></section>", escape(&deeds(hour)), escape(&full(hour)));
}

/// Two values of both sides: one drawn as usual, the other thin.
fn two(hour: &Hour, name: &str, value: impl Fn(&Reached) -> f64, thin: &str, thin_value: impl Fn(&Reached) -> f64) -> Vec<Drawn> {
    let mut lines = Vec::new();
    for ((side, minutes), class) in sides(hour).into_iter().zip(["bare", "back"]) {
        lines.push((class, false, format!("{side}, {name}"), minutes.iter().map(|it| value(it)).collect()));
        lines.push((class, true, format!("{side}, {thin} (thin)"), minutes.iter().map(|it| thin_value(it)).collect()));
    }
    lines
}

fn holds(hour: &Hour) -> Vec<Drawn> {
    let line = |class, name: &str, value: fn(&Held) -> f64| {
        (class, false, name.to_owned(), hour.cached.iter().map(|minute| value(&minute.held)).collect())
    };
    vec![
        line("alone", "segments taken, of those that are not kept free", Held::occupied_percent),
        line("through", "segments taken, of all", Held::taken_percent),
        line("back", "space for dirty data taken", |it| f64::from(it.dirty_percent)),
    ]
}

fn figure(out: &mut String, title: &str, up: &str, scale: Scale, drawn: &[Drawn]) {
    let line = |(class, faint, _, values): &Drawn| Line {
        class,
        faint: *faint,
        points: values.iter().enumerate().map(|(n, value)| (n as f64 + 1.0, *value)).collect(),
    };
    let lines: Vec<Line> = drawn.iter().map(line).collect();
    let _ = write!(out, "<figure><figcaption>{title}<br><span class=\"key\">");
    for (class, _, name, _) in drawn {
        let _ = write!(out, "<span class=\"{class}\"><i></i>{}</span> ", escape(name));
    }
    let _ = writeln!(out, "</span></figcaption>{}</figure>", plot::lines(title, up, scale, Across::Minutes, &lines));
}

fn table(out: &mut String, hour: &Hour) {
    out.push_str("<table class=\"figures\"><thead><tr>");
    HEAD.iter().for_each(|head| {
        let _ = write!(out, "<th>{head}</th>");
    });
    out.push_str("</tr></thead><tbody>");
    for line in lines(hour) {
        let cells = line.map(|cell| format!("<td>{}</td>", escape(&cell))).concat();
        let _ = writeln!(out, "<tr>{cells}</tr>");
    }
    out.push_str("</tbody></table>\n");
}
