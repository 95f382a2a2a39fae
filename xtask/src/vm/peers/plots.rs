//! The table's figures drawn: a panel for each row, a lying bar for each contender's median, a whisker from its least to its most.

use super::table::{Spread, figure};
use std::fmt::Write as _;

/// A panel: what was measured, and each contender's figure, where it has one.
pub struct Panel {
    /// The row's name.
    pub title: &'static str,
    /// What its figures are of.
    pub unit: &'static str,
    /// Whether the shortest bar is the best.
    pub less: bool,
    /// In the table's order: label, whether it is ours, figure.
    pub bars: Vec<(&'static str, bool, Option<Spread>)>,
}

/// Side by side.
const COLUMNS: usize = 2;
/// Of a panel: its width, its title's height, a bar's height with the gap below it, the space under the last.
const WIDTH: f64 = 430.0;
const TITLE: f64 = 26.0;
const BAR: f64 = 19.0;
const FOOT: f64 = 16.0;
/// Room for contenders' names, and for figures beyond the longest bar.
const NAMES: f64 = 104.0;
const FIGURES: f64 = 66.0;

/// Follows the reader's light and dark, as whoever shows the file does.
const STYLE: &str = "\
text{font:12px sans-serif;fill:#24292f}.title{font-weight:600}.name{text-anchor:end}\
.page{fill:#ffffff}.theirs{fill:#a8b3c1}.ours{fill:#1f77b4}.whisker{stroke:#24292f;stroke-width:1}\
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.theirs{fill:#586374}.ours{fill:#4aa3e0}.whisker{stroke:#e6edf3}}";

/// One file with all of them.
pub fn draw(panels: &[Panel]) -> String {
    let most = panels.iter().map(|panel| panel.bars.len()).max().unwrap_or(0);
    let tall = TITLE + BAR * most as f64 + FOOT;
    let (width, height) = (WIDTH * COLUMNS as f64, tall * panels.len().div_ceil(COLUMNS) as f64);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n\
         <style>{STYLE}</style>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n"
    );
    for (n, panel) in panels.iter().enumerate() {
        let (left, top) = (WIDTH * (n % COLUMNS) as f64, tall * (n / COLUMNS) as f64);
        let _ = writeln!(out, "<g transform=\"translate({left:.0} {top:.0})\">");
        bars(&mut out, panel);
        out += "</g>\n";
    }
    out + "</svg>\n"
}

fn bars(out: &mut String, panel: &Panel) {
    let direction = if panel.less { ", less is better" } else { "" };
    let _ = writeln!(out, "<text class=\"title\" x=\"10\" y=\"18\">{} ({}{direction})</text>", panel.title, panel.unit);
    let longest = panel.bars.iter().filter_map(|(.., spread)| spread.map(|it| it.most.value)).fold(f64::MIN_POSITIVE, f64::max);
    let long = |value: f64| value / longest * (WIDTH - NAMES - FIGURES);
    for (n, (name, ours, spread)) in panel.bars.iter().enumerate() {
        let top = TITLE + BAR * n as f64;
        let (text, middle) = (top + 12.0, top + 8.0);
        let _ = writeln!(out, "<text class=\"name\" x=\"{:.1}\" y=\"{text:.1}\">{name}</text>", NAMES - 8.0);
        let Some(spread) = spread else {
            let _ = writeln!(out, "<text x=\"{NAMES:.1}\" y=\"{text:.1}\">–</text>");
            continue;
        };
        let class = if *ours { "ours" } else { "theirs" };
        let bar = long(spread.median.value).max(1.0);
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{NAMES:.1}\" y=\"{:.1}\" width=\"{bar:.1}\" height=\"{:.1}\"/>",
            top + 1.0,
            BAR - 5.0
        );
        let (least, most) = (NAMES + long(spread.least.value), NAMES + long(spread.most.value));
        let _ =
            writeln!(out, "<line class=\"whisker\" x1=\"{least:.1}\" x2=\"{most:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>");
        let beyond = (NAMES + bar).max(most) + 6.0;
        let _ = writeln!(out, "<text x=\"{beyond:.1}\" y=\"{text:.1}\">{}</text>", figure(spread.median));
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Sample;
    use super::*;

    fn spread(least: f64, median: f64, most: f64) -> Option<Spread> {
        let sample = |value| Sample { value, beyond: false };
        Some(Spread { median: sample(median), least: sample(least), most: sample(most) })
    }

    /// The numbers of an attribute, in the order of the file.
    fn numbers(drawn: &str, element: &str, name: &str) -> Vec<f64> {
        let lines = drawn.lines().filter(|line| line.starts_with(element));
        lines.filter_map(|line| line.split_once(&format!(" {name}=\""))?.1.split_once('"')?.0.parse().ok()).collect()
    }

    #[test]
    fn a_bar_is_as_long_as_its_median_and_its_whisker_goes_from_the_least_to_the_most() {
        let bars = vec![("bare disk", false, spread(90.0, 100.0, 110.0)), ("Headpond", true, spread(350.0, 400.0, 440.0))];
        let drawn = draw(&[Panel { title: "fill", unit: "IOPS", less: false, bars }]);
        let long = numbers(&drawn, "<rect class=\"theirs\"", "width")[0];
        let ours = numbers(&drawn, "<rect class=\"ours\"", "width")[0];
        assert!((ours / long - 4.0).abs() < 0.01, "{long} and {ours}");
        let (from, to) = (numbers(&drawn, "<line", "x1"), numbers(&drawn, "<line", "x2"));
        assert!(
            (from[1] - NAMES - ours * 350.0 / 400.0).abs() < 0.2 && (to[1] - NAMES - ours * 1.1).abs() < 0.2,
            "{from:?} {to:?}"
        );
        assert!(drawn.contains(">400</text>") && drawn.contains("fill (IOPS)"));
    }

    #[test]
    fn whoever_takes_no_part_has_a_dash_and_of_times_it_is_said_that_less_is_better() {
        let bars = vec![("bare disk", false, None), ("Headpond", true, spread(1.0, 2.0, 3.0))];
        let drawn = draw(&[Panel { title: "clean", unit: "s", less: true, bars }]);
        assert!(drawn.contains(">–</text>") && drawn.contains("clean (s, less is better)"));
        assert_eq!(numbers(&drawn, "<line", "x1").len(), 1);
    }

    #[test]
    fn nothing_is_drawn_beyond_the_page_however_many_rows_there_are() {
        let panel =
            || Panel { title: "row", unit: "IOPS", less: false, bars: vec![("Headpond", true, spread(1.0, 5.0, 5.0)); 5] };
        let drawn = draw(&(0..5).map(|_| panel()).collect::<Vec<_>>());
        let height = numbers(&drawn, "<svg", "height")[0];
        let last = drawn.lines().filter_map(|line| line.strip_prefix("<g transform=\"translate(")).next_back().unwrap();
        let top: f64 = last.split_once(' ').unwrap().1.split_once(')').unwrap().0.parse().unwrap();
        assert!(top + TITLE + BAR * 5.0 <= height, "{top} of {height}");
    }
}
