//! Plots as inline SVG. Colours come from the page's style sheet, so that they follow its light and dark.

use super::super::figures::number;
use std::fmt::Write;

/// Of a plot across the page, and of one of a pair.
const WIDTH: f64 = 720.0;
const HALF: f64 = 440.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;

/// How the upright axis is divided.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from zero on.
    Linear,
    /// By powers of ten: for what differs by factors.
    Powers,
}

/// A line of a plot.
pub struct Line {
    /// Its class in the style sheet.
    pub class: &'static str,
    /// Drawn thin: another round of the same.
    pub faint: bool,
    /// Where and how much.
    pub points: Vec<(f64, f64)>,
}

/// The axis from left to right.
#[derive(Clone, Copy, PartialEq)]
pub enum Across<'a> {
    /// Time, of which so much at the beginning does not count and is shaded.
    Seconds(f64),
    /// Time, all of which counts.
    Minutes,
    /// Counts of what is named, each power of two as far from the last.
    Counts(&'a str),
}

impl Across<'_> {
    /// How far right something is, in the axis's own measure.
    fn at(self, value: f64) -> f64 {
        match self {
            Across::Seconds(_) | Across::Minutes => value,
            Across::Counts(_) => value.max(1.0).log2(),
        }
    }
}

/// The upright axis: from where to where, and the marks on it.
struct Axis {
    scale: Scale,
    least: f64,
    most: f64,
    marks: Vec<f64>,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Axis {
        let values: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
        let most = values.iter().copied().fold(1.0, f64::max);
        match scale {
            Scale::Linear => {
                let step = step(most * 1.05);
                let count = (most * 1.05 / step).ceil().max(1.0) as u32;
                let marks: Vec<f64> = (0..=count).map(|n| f64::from(n) * step).collect();
                Axis { scale, least: 0.0, most: f64::from(count) * step, marks }
            }
            Scale::Powers => {
                let low = values.iter().copied().fold(most, f64::min).log10().floor() as i32;
                let high = (most.log10().ceil() as i32).max(low + 1);
                let marks: Vec<f64> = (low..=high).map(|n| 10f64.powi(n)).collect();
                Axis { scale, least: 10f64.powi(low), most: 10f64.powi(high), marks }
            }
        }
    }

    /// How high a value is, from 0 to 1.
    fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.least) / (self.most - self.least),
            Scale::Powers => (value.max(self.least) / self.least).log10() / (self.most / self.least).log10(),
        };
        share.clamp(0.0, 1.0)
    }
}

/// A step of 1, 2 or 5 times a power of ten, of which about five reach up to `most`.
fn step(most: f64) -> f64 {
    let rough = (most / 5.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= rough).unwrap_or(10.0 * power)
}

/// A mark's text: small numbers with their fraction.
fn mark(value: f64) -> String {
    if value != 0.0 && value.abs() < 1.0 { format!("{value:.1}") } else { number(value) }
}

/// The frame of a plot: axes and marks.
fn open(out: &mut String, title: &str, unit: &str, (width, height): (f64, f64), axis: &Axis) {
    let _ = write!(out, "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\">");
    for value in &axis.marks {
        let y = height - BOTTOM - axis.at(*value) * (height - TOP - BOTTOM);
        let right = width - RIGHT;
        let _ = write!(out, "<line class=\"grid\" x1=\"{LEFT:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
        let (x, y) = (LEFT - 6.0, y + 4.0);
        let _ = write!(out, "<text class=\"end\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", mark(*value));
    }
    let middle = TOP + (height - TOP - BOTTOM) / 2.0;
    let _ = write!(out, "<text class=\"middle\" transform=\"translate(12 {middle:.1}) rotate(-90)\">{unit}</text>");
}

/// Values over time, or over counts.
pub fn lines(title: &str, unit: &str, scale: Scale, across: Across, lines: &[Line]) -> String {
    const HEIGHT: f64 = 250.0;
    let points = || lines.iter().flat_map(|line| &line.points);
    let axis = Axis::new(scale, points().map(|(_, value)| *value));
    let end = points().map(|(at, _)| *at).fold(1.0, f64::max);
    let x = |at: f64| LEFT + across.at(at) / across.at(end).max(1.0) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - axis.at(value) * (HEIGHT - TOP - BOTTOM);
    let mut out = String::new();
    open(&mut out, title, unit, (WIDTH, HEIGHT), &axis);
    let (name, marks): (&str, Vec<f64>) = match across {
        Across::Seconds(warm_up) => {
            let (width, height) = (x(warm_up) - LEFT, HEIGHT - TOP - BOTTOM);
            let _ = write!(
                out,
                "<rect class=\"warm-up\" x=\"{LEFT:.1}\" y=\"{TOP:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
            );
            let step = step(end);
            ("seconds", (0..=(end / step) as u32).map(|n| f64::from(n) * step).collect())
        }
        Across::Minutes => ("minutes", (0..=(end / 5.0) as u32).map(|n| f64::from(n) * 5.0).collect()),
        Across::Counts(name) => {
            let mut marks: Vec<f64> = points().map(|(at, _)| *at).collect();
            marks.sort_by(f64::total_cmp);
            marks.dedup();
            (name, marks)
        }
    };
    for at in marks {
        let (x, y) = (x(at), HEIGHT - BOTTOM + 16.0);
        let _ = write!(out, "<text class=\"middle\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", mark(at));
    }
    let (middle, bottom) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0);
    let _ = write!(out, "<text class=\"middle\" x=\"{middle:.1}\" y=\"{bottom:.1}\">{name}</text>");
    for line in lines {
        let faint = if line.faint { " faint" } else { "" };
        let points: Vec<String> = line.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        let _ = write!(out, "<polyline class=\"{}{faint}\" points=\"{}\"/>", line.class, points.join(" "));
    }
    out + "</svg>"
}

/// Bars side by side: name, class, value, and the value's text.
pub(super) fn bars(title: &str, unit: &str, bars: &[(String, &'static str, f64, String)]) -> String {
    const HEIGHT: f64 = 220.0;
    // Room for the text above the longest.
    let axis = Axis::new(Scale::Linear, bars.iter().map(|(.., value, _)| *value * 1.1));
    let mut out = String::new();
    open(&mut out, title, unit, (HALF, HEIGHT), &axis);
    let slot = (HALF - LEFT - RIGHT) / bars.len().max(1) as f64;
    for (n, (name, class, value, text)) in bars.iter().enumerate() {
        let (height, width) = (axis.at(*value) * (HEIGHT - TOP - BOTTOM), slot.min(140.0) * 0.6);
        let middle = LEFT + slot * (n as f64 + 0.5);
        let (x, y) = (middle - width / 2.0, HEIGHT - BOTTOM - height);
        let _ = write!(out, "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>");
        let above = y - 5.0;
        let _ = write!(out, "<text class=\"middle strong\" x=\"{middle:.1}\" y=\"{above:.1}\">{text}</text>");
        let below = HEIGHT - BOTTOM + 16.0;
        let _ = write!(out, "<text class=\"middle\" x=\"{middle:.1}\" y=\"{below:.1}\">{name}</text>");
    }
    out + "</svg>"
}

/// Groups of bars: the groups' names, and for each class its value in each group.
pub fn groups(title: &str, unit: &str, scale: Scale, names: &[String], all: &[(&'static str, Vec<f64>)]) -> String {
    const HEIGHT: f64 = 240.0;
    let axis = Axis::new(scale, all.iter().flat_map(|(_, values)| values).map(|value| *value * 1.1));
    let mut out = String::new();
    open(&mut out, title, unit, (WIDTH, HEIGHT), &axis);
    let slot = (WIDTH - LEFT - RIGHT) / names.len().max(1) as f64;
    let width = (slot * 0.84 / all.len().max(1) as f64).min(90.0);
    for (n, name) in names.iter().enumerate() {
        let middle = LEFT + slot * (n as f64 + 0.5);
        let _ = write!(out, "<text class=\"middle\" x=\"{middle:.1}\" y=\"{:.1}\">{name}</text>", HEIGHT - BOTTOM + 16.0);
        for (nth, (class, values)) in all.iter().enumerate() {
            let Some(value) = values.get(n) else { continue };
            let height = axis.at(*value) * (HEIGHT - TOP - BOTTOM);
            let (x, y) = (middle + (nth as f64 - all.len() as f64 / 2.0) * width, HEIGHT - BOTTOM - height);
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
                x + 1.0,
                width - 2.0
            );
            let text = if *value < 10.0 { format!("{value:.1}") } else { number(*value) };
            let _ = write!(out, "<text class=\"middle strong\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>", x + width / 2.0, y - 4.0);
        }
    }
    out + "</svg>"
}

/// A lying bar for each name and value, longer by powers of ten, from the line at 1 to the right where it is more and to
/// the left where it is less; and a thin mark at each one's own `at_least`.
pub fn ratios(title: &str, rows: &[(String, f64, f64)]) -> String {
    const NAMES: f64 = 330.0;
    const ROW: f64 = 17.0;
    let axis = Axis::new(Scale::Powers, rows.iter().flat_map(|row| [row.1, row.2]).chain([0.99, 1.01]));
    let x = |value: f64| NAMES + axis.at(value) * (WIDTH - NAMES - 60.0);
    let height = TOP + ROW * rows.len() as f64 + BOTTOM;
    let mut out = String::new();
    let _ = write!(out, "<svg viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\">");
    for value in &axis.marks {
        let (x, bottom) = (x(*value), height - BOTTOM);
        let _ = write!(out, "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP:.1}\" y2=\"{bottom:.1}\"/>");
        let _ = write!(out, "<text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{value}</text>", bottom + 16.0);
    }
    for (n, (name, value, at_least)) in rows.iter().enumerate() {
        let (top, one, end) = (TOP + ROW * n as f64, x(1.0), x(*value));
        let (left, width) = (one.min(end), (one - end).abs().max(1.0));
        let class = if value < at_least { "bare" } else { "back" };
        let _ = write!(out, "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>", NAMES - 8.0, top + 12.0);
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>",
            top + 2.0,
            ROW - 4.0
        );
        let mark = x(*at_least);
        let _ = write!(out, "<line class=\"grid\" x1=\"{mark:.1}\" x2=\"{mark:.1}\" y1=\"{top:.1}\" y2=\"{:.1}\"/>", top + ROW);
        let _ = write!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{value:.2}</text>", one.max(end) + 5.0, top + 12.0);
    }
    out + "</svg>"
}
