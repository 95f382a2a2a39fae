//! The page: what was to be shown and what is, then each experiment with its plots, then how the models were calibrated and from what.

use super::json::source;
use super::{Form, Reports, against, mark, reached};
use crate::demo::plot::{self, Across, Scale};
use crate::demo::{escape, open};
use headpond_sim::experiments::Report;
use headpond_sim::experiments::outcome::{self, Missing, Outcome, Plot, Verdict, Weight, Who};
use std::fmt::Write;

/// A column's class in the style sheet.
fn class(who: Who) -> &'static str {
    match who {
        // Where a cache changes nothing its line lies on this one.
        Who::Bare => "bare wide",
        Who::Front => "theirs",
        Who::Back => "back",
        Who::Through => "through",
        Who::Ssds => "alone",
        Who::Theirs => "theirs",
        Who::TheirsThrough => "theirs-through",
    }
}

fn colour(verdict: &Verdict) -> &'static str {
    match (verdict.holds(), verdict.weight) {
        (true, _) => "good",
        (false, Weight::Aim) => "quiet",
        (false, _) if verdict.undecided() => "quiet",
        (false, _) => "bad",
    }
}

/// How it was done, in a paragraph.
fn method(reports: &Reports) -> String {
    let command = escape(&reports.command);
    let quick = if reports.options.quick { " A quick run: its windows are too short to judge by." } else { "" };
    match reports.form {
        Form::Simulated => format!(
            "<p>Each experiment ran on a model of the hardware that it was published for, in virtual time: once with the disks alone and \
             once with Headpond before them, the engine that is served, with its default settings throughout. Beside them stands a simple \
             model of the cache whose figures were published. The same command gives the same figures: <code>{command}</code>.{quick}</p>"
        ),
        Form::Real => format!(
            "<p>Each experiment ran on this machine, in real time, with the tools named, on a real file system: on a modelled disk alone, on \
             the same disk behind the front end that Headpond serves (pass-through, so that the front end's own cost is seen), and on the \
             same disk with Headpond in write-back, its daemon and its default settings. The three take turns, round by round; figures are \
             medians, with the least and the most of the rounds, and ratios are taken within a round. Made by \
             <code>{command}</code>.{quick}</p>"
        ),
        Form::Devices { slower } => format!(
            "<p>Each experiment ran on this machine, in real time, with the tools named, on the devices that were given: on a disk alone, \
             behind the front end that Headpond serves (pass-through, so that the front end's own cost is seen), and with Headpond before \
             it, its daemon and its default settings. They take turns, round by round; figures are medians, with the least and the most of \
             the rounds, and ratios are taken within a round.{} Made by <code>{command}</code>.{quick}</p>",
            match slower {
                1 => String::new(),
                times => format!(
                    " All of the devices are {times} times slower than what they stand for, alike: to them the processors are {times} times \
                     faster, and windows are longer."
                ),
            }
        ),
    }
}

/// The page.
pub fn page(reports: &Reports) -> String {
    let mut out = String::new();
    let form = match reports.form {
        Form::Simulated => "simulated",
        Form::Real | Form::Devices { .. } => "for real",
    };
    open(&mut out, &format!("Headpond: the field's experiments, {form}"));
    let failed = |r: &Report| matches!(r.outcome, Err(Missing::Failed(_)));
    let good = reports.count().missed == 0 && !reports.reports.iter().any(failed);
    let _ = writeln!(out, "<p class=\"summary {}\">{}.</p>", if good { "good" } else { "bad" }, escape(&reports.headline()));
    let _ = writeln!(out, "{}", method(reports));
    summary(&mut out, reports);
    for report in &reports.reports {
        section(&mut out, report);
    }
    calibration(&mut out, reports);
    out.push_str("</body></html>\n");
    out
}

fn summary(out: &mut String, reports: &Reports) {
    out.push_str("<table class=\"words\"><thead><tr><th></th><th>experiment</th><th>published</th><th>must show</th><th></th></tr></thead><tbody>");
    for r in &reports.reports {
        let (text, class) = match &r.outcome {
            Err(Missing::Failed(_)) => ("could not be run".to_owned(), "bad"),
            Err(Missing::NotHere(_)) => ("not in this form".to_owned(), "quiet"),
            Ok(it) if it.holds() => ("shown".to_owned(), "good"),
            Ok(it) => {
                let short = it.verdicts.iter().filter(|v| !v.holds() && v.weight != Weight::Aim);
                let undecided = short.clone().filter(|v| v.undecided()).count();
                match short.count() - undecided {
                    0 => (format!("{undecided} of {} not decided", it.verdicts.len()), "quiet"),
                    missed => (format!("{missed} of {} missed", it.verdicts.len()), "bad"),
                }
            }
        };
        let cells = [r.id, r.title, r.published, r.wanted].map(|cell| format!("<td>{}</td>", escape(cell))).concat();
        let _ = writeln!(out, "<tr>{cells}<td class=\"{class}\">{text}</td></tr>");
    }
    out.push_str("</tbody></table>\n");
}

fn section(out: &mut String, report: &Report) {
    let _ = writeln!(out, "<section><h2>{} {}</h2>", report.id, escape(report.title));
    let _ = writeln!(
        out,
        "<p>{}</p><p class=\"quiet\">Published: {}. Must show: {}.</p>",
        escape(report.method),
        escape(report.published),
        escape(report.wanted)
    );
    match &report.outcome {
        Err(why) => {
            let class = if matches!(why, Missing::Failed(_)) { "bad" } else { "quiet" };
            let _ = writeln!(out, "<p class=\"{class}\">{}</p>", escape(&sentence(&why.words())));
        }
        Ok(it) => {
            it.plots.iter().for_each(|it| figure(out, it));
            table(out, it);
            verdicts(out, it.verdicts.iter());
            it.notes.iter().for_each(|note| {
                let _ = writeln!(out, "<p class=\"quiet\">{}</p>", escape(note));
            });
        }
    }
    out.push_str("</section>\n");
}

fn figure(out: &mut String, it: &Plot) {
    let scale = match it.scale {
        outcome::Scale::Linear => Scale::Linear,
        outcome::Scale::Powers => Scale::Powers,
    };
    let (title, up) = (escape(&it.title), escape(it.up));
    let svg = match &it.bars {
        Some(names) => {
            let names: Vec<String> = names.iter().map(|name| escape(name)).collect();
            let all: Vec<_> =
                it.lines.iter().map(|(who, _, points)| (class(*who), points.iter().map(|p| p.1).collect())).collect();
            plot::groups(&title, &up, scale, &names, &all)
        }
        None => {
            let line = |(who, _, points): &outcome::Line| plot::Line { class: class(*who), faint: false, points: points.clone() };
            let lines: Vec<plot::Line> = it.lines.iter().map(line).collect();
            let across = if it.across == "seconds" { Across::Seconds(0.0) } else { Across::Counts(it.across) };
            plot::lines(&title, &up, scale, across, &lines)
        }
    };
    let _ = write!(out, "<figure><figcaption>{title}<br><span class=\"key\">");
    for (who, name, _) in &it.lines {
        let _ = write!(out, "<span class=\"{}\"><i></i>{}</span> ", class(*who), escape(name));
    }
    let _ = writeln!(out, "</span></figcaption>{svg}</figure>");
}

fn table(out: &mut String, it: &Outcome) {
    let columns: Vec<Who> = Who::ALL.into_iter().filter(|who| it.figures.iter().any(|f| f.of(*who).is_some())).collect();
    out.push_str("<table class=\"figures\"><thead><tr><th></th><th>unit</th>");
    columns.iter().for_each(|who| {
        let _ = write!(out, "<th>{}</th>", who.name());
    });
    out.push_str("</tr></thead><tbody>");
    for f in &it.figures {
        let _ = write!(out, "<tr><th>{}</th><td>{}</td>", escape(&f.what), escape(f.unit));
        for who in &columns {
            let _ = match f.of(*who) {
                Some(_) => write!(out, "<td>{}</td>", reached(f, *who)),
                None => write!(out, "<td class=\"quiet\">–</td>"),
            };
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table>\n");
}

fn verdicts<'a>(out: &mut String, all: impl Iterator<Item = &'a Verdict>) {
    out.push_str("<table class=\"list\">");
    for v in all {
        let _ = write!(
            out,
            "<tr><td class=\"{}\">{}</td><td>{}: {}</td></tr>",
            colour(v),
            mark(v),
            escape(&against(v)),
            escape(&v.what)
        );
    }
    out.push_str("</table>\n");
}

/// With a capital in front.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn calibration(out: &mut String, reports: &Reports) {
    match reports.form {
        Form::Real => out.push_str("<section><h2>Machine and models</h2>\n"),
        Form::Devices { .. } => out.push_str("<section><h2>Machine and devices</h2>\n"),
        Form::Simulated => {
            out.push_str("<section><h2>Calibration and parameters</h2><p>Where a figure of the bare hardware was published, the bare model must come within 15 % of it. The rows of A2, A5, A7, B and C2 to C7 have no such figure and stand on the parameters below alone.</p>\n");
            let all = reports.reports.iter().flat_map(|r| r.outcome.iter().flat_map(|it| &it.verdicts));
            verdicts(out, all.filter(|v| v.weight == Weight::Calibration));
        }
    }
    out.push_str("<table class=\"words\"><thead><tr><th></th><th>parameter</th><th>value</th><th>from</th><th>why</th></tr></thead><tbody>");
    for p in &reports.parameters {
        let cells =
            [p.machine, p.name, &*p.value, source(p.source), p.why].map(|cell| format!("<td>{}</td>", escape(cell))).concat();
        let _ = writeln!(out, "<tr>{cells}</tr>");
    }
    out.push_str("</tbody></table></section>\n");
}
