//! What an experiment brought: figures beside each other, plots, and whether what was to be shown is shown.

use super::hardware::Parameter;

/// Who was measured, in the order of the columns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Who {
    /// The disks without a cache.
    Bare,
    /// The disks without a cache, reached by the front end that Headpond is reached by: its pass-through. Of the real form alone.
    Front,
    /// Headpond in write-back mode, default settings.
    Back,
    /// Headpond in write-through mode, default settings.
    Through,
    /// The SSDs without disks.
    Ssds,
    /// The simple model of the published cache, in the mode in which it was published first.
    Theirs,
    /// The same in its other mode.
    TheirsThrough,
}

impl Who {
    /// All of them.
    pub const ALL: [Who; 7] = [Who::Bare, Who::Front, Who::Back, Who::Through, Who::Ssds, Who::Theirs, Who::TheirsThrough];

    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Who::Bare => "bare",
            Who::Front => "bare behind the front end",
            Who::Back => "Headpond",
            Who::Through => "Headpond, write-through",
            Who::Ssds => "SSDs alone",
            Who::Theirs => "model of theirs",
            Who::TheirsThrough => "model of theirs, write-through",
        }
    }
}

/// A quantity, as each of them reached it.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// What was measured.
    pub what: String,
    /// Its unit.
    pub unit: &'static str,
    /// Who reached how much; of several rounds the median.
    pub reached: Vec<(Who, f64)>,
    /// The least and the most of the rounds, where there were several.
    pub spread: Vec<(Who, [f64; 2])>,
}

impl Figure {
    /// What one of them reached.
    #[must_use]
    pub fn of(&self, who: Who) -> Option<f64> {
        self.reached.iter().find(|(w, _)| *w == who).map(|(_, v)| *v)
    }

    /// The least and the most of one's rounds.
    #[must_use]
    pub fn spread_of(&self, who: Who) -> Option<[f64; 2]> {
        self.spread.iter().find(|(w, _)| *w == who).map(|(_, s)| *s)
    }
}

/// How far a verdict counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// It must be so.
    Must,
    /// It is aimed at, and said when it is not reached.
    Aim,
    /// The bare model against the published figure of the bare hardware.
    Calibration,
}

/// Something that was to be shown.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// What.
    pub what: String,
    /// What it came to; of several rounds the median.
    pub figure: f64,
    /// The least and the most of the rounds, where there were several.
    pub spread: Option<[f64; 2]>,
    /// What it must at least come to.
    pub at_least: f64,
    /// What it must at most come to: only a calibration has a bound on this side.
    pub at_most: f64,
    /// Whether it must.
    pub weight: Weight,
}

impl Verdict {
    /// Whether it is so. A thousandth is forgiven: windows end between two answers.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.figure >= self.at_least * 0.999 && self.figure <= self.at_most
    }

    /// Whether it is not so by the median, and yet so in a round: this machine's noise is wider than what is missing.
    #[must_use]
    pub fn undecided(&self) -> bool {
        !self.holds() && self.spread.is_some_and(|[_, most]| most >= self.at_least)
    }
}

/// How a plot's upright axis is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By powers of ten.
    Powers,
}

/// A line of a plot: whose, what is said beside it, and its points.
pub type Line = (Who, String, Vec<(f64, f64)>);

/// A plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// The axis from left to right.
    pub across: &'static str,
    /// The upright axis.
    pub up: &'static str,
    /// How the upright axis is divided.
    pub scale: Scale,
    /// Its lines; bars where there is one point each.
    pub lines: Vec<Line>,
    /// Bars in place of lines: one for each line and point, and the names of the points.
    pub bars: Option<Vec<String>>,
}

/// What an experiment brought.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Quantities beside each other.
    pub figures: Vec<Figure>,
    /// Plots.
    pub plots: Vec<Plot>,
    /// What was to be shown.
    pub verdicts: Vec<Verdict>,
    /// What is to be known beside: scales, seconds, reasons.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Adds a quantity.
    pub fn figure(&mut self, what: impl Into<String>, unit: &'static str, reached: &[(Who, f64)]) {
        self.figures.push(Figure { what: what.into(), unit, reached: reached.to_vec(), spread: Vec::new() });
    }

    /// Something must at least come to so much.
    pub fn must(&mut self, what: impl Into<String>, figure: f64, at_least: f64) {
        let what = what.into();
        self.verdicts.push(Verdict { what, figure, spread: None, at_least, at_most: f64::INFINITY, weight: Weight::Must });
    }

    /// As [`Outcome::must`], for what is only aimed at.
    pub fn aim(&mut self, what: impl Into<String>, figure: f64, at_least: f64) {
        self.must(what, figure, at_least);
        if let Some(last) = self.verdicts.last_mut() {
            last.weight = Weight::Aim;
        }
    }

    /// The bare model must come within 15 % of what was published of the bare hardware.
    pub fn calibrate(&mut self, what: impl Into<String>, figure: f64, published: f64) {
        let what = format!("{}: by the published {published}", what.into());
        let (at_least, at_most) = (0.85, 1.15);
        let figure = figure / published;
        self.verdicts.push(Verdict { what, figure, spread: None, at_least, at_most, weight: Weight::Calibration });
    }

    /// Something to be known.
    pub fn note(&mut self, what: impl Into<String>) {
        self.notes.push(what.into());
    }

    /// Lines over the number of clients, or of seconds.
    pub fn lines(&mut self, title: &str, across: &'static str, up: &'static str, scale: Scale, lines: Vec<Line>) {
        self.plots.push(Plot { title: title.into(), across, up, scale, lines, bars: None });
    }

    /// Bars, a group of them for each of `names`.
    pub fn bars(&mut self, title: &str, up: &'static str, scale: Scale, names: &[String], lines: Vec<Line>) {
        self.plots.push(Plot { title: title.into(), across: "", up, scale, lines, bars: Some(names.to_vec()) });
    }

    /// Whether all that must be so is.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.verdicts.iter().all(|v| v.holds() || v.weight == Weight::Aim)
    }
}

/// An experiment: what it is, and what came of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its number, A1 to C7.
    pub id: &'static str,
    /// What it is.
    pub title: &'static str,
    /// How it was done.
    pub method: &'static str,
    /// What was published.
    pub published: &'static str,
    /// What Headpond must show.
    pub wanted: &'static str,
    /// What came of it, or why nothing did.
    pub outcome: Result<Outcome, Missing>,
}

/// Why nothing came of an experiment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Missing {
    /// It was begun, and could not be run to its end.
    Failed(String),
    /// It has no such form, or not on this machine.
    NotHere(String),
}

impl Missing {
    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Missing::Failed(why) => format!("could not be run: {why}"),
            Missing::NotHere(why) => format!("not in this form: {why}"),
        }
    }
}

/// The parameters that stand behind all of them.
#[must_use]
pub fn parameters() -> &'static [Parameter] {
    super::parameters::PARAMETERS
}
