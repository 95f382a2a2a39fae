//! What is said of loads that were run for real: as a table, a page, and JSON.

use super::super::json::row as row_json;
use super::super::table::{HEAD, cells, lines};
use super::{Measured, Spread};
use crate::demo::{escape, open, ratios};
use serde_json::{Value, json as object};
use std::fmt::Write;

/// All that a run brought.
pub struct Shown {
    /// In the order of the catalogue.
    pub all: Vec<Measured>,
    /// Loads that could not be measured, with why.
    pub failures: Vec<(String, String)>,
    /// Rounds of each.
    pub rounds: usize,
    /// What it ran on, in words.
    pub on: String,
}

fn spread(it: &Spread) -> String {
    format!("{:.3} ({:.3} to {:.3})", it.median, it.least, it.most)
}

impl Shown {
    /// The worst ratio, in one line; it is the first thing said.
    pub fn headline(&self) -> String {
        let by_promise = |m: &&Measured| m.ratio.median / m.row.at_least;
        let Some(worst) = self.all.iter().min_by(|a, b| by_promise(a).total_cmp(&by_promise(b))) else {
            return "Nothing was measured.".to_owned();
        };
        let count = |which: fn(&Measured) -> bool| self.all.iter().filter(|m| which(m)).count();
        let undecided = count(Measured::undecided);
        let missed = self.all.len() - count(Measured::holds) - undecided;
        format!(
            "worst by its mark: {}, {} ({}); of {} figures {} are at their mark or above, {undecided} are not decided (a round is, the median is \
             not), {missed} are under it",
            spread(&worst.ratio),
            worst.row.name,
            worst.row.setting,
            self.all.len(),
            self.all.len() - undecided - missed
        )
    }

    fn head() -> [&'static str; 9] {
        let mut head = HEAD;
        (head[2], head[4], head[5], head[8]) =
            ("pass-through", "ratio (least to most)", "p99 pass-through", "the front end by itself");
        head
    }

    fn cells(it: &Measured) -> [String; 9] {
        let mut cells = cells(&it.row);
        let mark = if it.row.at_least == 0.97 { String::new() } else { format!(" of {}", it.row.at_least) };
        let verdict = match (it.holds(), it.undecided()) {
            (true, _) => "",
            (_, true) => " ?",
            _ => " !",
        };
        cells[4] = format!("{}{mark}{verdict}", spread(&it.ratio));
        cells[8] = it.tax.as_ref().map(spread).unwrap_or_default();
        cells
    }

    /// All rows, then the headline.
    pub fn terminal(&self) -> String {
        let mut all = vec![Self::head().map(str::to_owned)];
        all.extend(self.all.iter().map(Self::cells));
        let mut out = lines(&all);
        for (name, why) in &self.failures {
            let _ = writeln!(out, "FAILED  {name}: {why}");
        }
        let _ = write!(out, "{}\n{} rounds of each, by turns, on {}", self.headline(), self.rounds, self.on);
        out
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let of = |it: &Spread| object!({ "median": it.median, "least": it.least, "most": it.most });
        let rows: Vec<Value> = self
            .all
            .iter()
            .map(|it| {
                let mut row = row_json(&it.row);
                row["rounds"] = of(&it.ratio);
                row["front_end"] = it.tax.as_ref().map_or(Value::Null, of);
                row["verdict"] = if it.holds() {
                    "holds"
                } else if it.undecided() {
                    "not decided"
                } else {
                    "missed"
                }
                .into();
                row
            })
            .collect();
        let failures: Vec<Value> = self.failures.iter().map(|(load, why)| object!({ "load": load, "why": why })).collect();
        object!({ "on": self.on, "rounds": self.rounds, "rows": rows, "failures": failures })
    }

    /// The page.
    pub fn page(&self) -> String {
        let mut out = String::new();
        open(&mut out, "Headpond bench, for real");
        let good = self.failures.is_empty() && self.all.iter().all(Measured::holds);
        let mark = if good { "good" } else { "bad" };
        let _ = writeln!(out, "<p class=\"summary {mark}\">{}</p>", escape(&self.headline()));
        for (name, why) in &self.failures {
            let _ = writeln!(out, "<p class=\"bad\">{} failed: {}</p>", escape(name), escape(why));
        }
        let mut worst_first: Vec<&Measured> = self.all.iter().collect();
        worst_first.sort_by(|a, b| a.row.by_promise().total_cmp(&b.row.by_promise()));
        let rows: Vec<_> = worst_first.iter().map(|m| (escape(&m.row.name), m.ratio.median, m.row.at_least)).collect();
        let title = "Cached by pass-through, medians, worst first against its mark";
        let _ = writeln!(out, "<figure><figcaption>{title}</figcaption>{}</figure>", ratios(title, &rows));
        out.push_str("<table class=\"figures\"><thead><tr>");
        Self::head().iter().for_each(|head| {
            let _ = write!(out, "<th>{head}</th>");
        });
        out.push_str("</tr></thead><tbody>");
        for it in &self.all {
            let cells = Self::cells(it).map(|cell| format!("<td>{}</td>", escape(&cell)));
            let _ = writeln!(out, "<tr>{}</tr>", cells.concat());
        }
        let _ = write!(
            out,
            "</tbody></table>\n<p>By the clock on the wall, on {}, {} rounds by turns. The ratio is cached by pass-through behind the same front \
             end, within each round, in answers per second; for bursts it is pass-through by cached in the mean time to an answer. ? marks what \
             is not decided: a round is at its mark, and the median is not. The front end by itself is pass-through by the disk itself.</p>\n\
             </body></html>\n",
            escape(&self.on),
            self.rounds
        );
        out
    }
}
