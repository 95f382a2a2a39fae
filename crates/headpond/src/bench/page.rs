//! The page: the headline, all ratios drawn, the table.

use super::Figures;
use super::table::{HEAD, cells, headline};
use crate::demo::{escape, open, ratios};
use std::fmt::Write;

/// The page.
pub fn page(figures: &Figures) -> String {
    let mut out = String::new();
    open(&mut out, "Headpond bench");
    let good = figures.failures.is_empty() && figures.rows.iter().all(|row| row.by_promise() >= 1.0);
    let mark = if good { "good" } else { "bad" };
    let _ = writeln!(out, "<p class=\"summary {mark}\">{}</p>", escape(&headline(figures)));
    for (name, why) in &figures.failures {
        let _ = writeln!(out, "<p class=\"bad\">{} failed: {}</p>", escape(name), escape(why));
    }
    let rows: Vec<_> = figures.worst_first().into_iter().map(|r| (escape(&r.name), r.ratio, r.at_least)).collect();
    let title = "Cached by bare, worst first against its mark";
    let _ = writeln!(out, "<figure><figcaption>{title}</figcaption>{}</figure>", ratios(title, &rows));
    out.push_str("<table class=\"figures\"><thead><tr>");
    HEAD.iter().for_each(|head| {
        let _ = write!(out, "<th>{head}</th>");
    });
    out.push_str("</tr></thead><tbody>");
    for row in &figures.rows {
        out.push_str("<tr>");
        cells(row).iter().for_each(|cell| {
            let _ = write!(out, "<td>{}</td>", escape(cell));
        });
        out.push_str("</tr>\n");
    }
    let _ = write!(
        out,
        "</tbody></table>\n<p>In virtual time, on a modelled 8 TiB disk at 7200 rpm and modelled SSDs, seed {}. The ratio is cached by \
         bare in answers per second, with the same clients and the same requests; for bursts it is bare by cached in the mean time to \
         an answer. A mark other than 0.97 stands beside its ratio.</p>\n</body></html>\n",
        figures.options.seed
    );
    out
}
