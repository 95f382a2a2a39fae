//! What the screen shows: the daemon between its last two answers.

use std::collections::VecDeque;

use headpond_host::report::Report;
use headpond_host::requests::Histograms;

use crate::seeing::kinds::Kinds;
use crate::seeing::rates::Rates;

/// Moments that are remembered for the curves.
const PAST: usize = 400;

/// The daemon between its last two answers; before the second, since its start.
pub struct Seen {
    /// How it stands.
    pub report: Report,
    histograms: Histograms,
    /// What it did, all volumes together.
    pub all: Rates,
    /// Its requests, all volumes together.
    pub kinds: Kinds,
    /// Each volume alone, in the report's order.
    pub volumes: Vec<(Rates, Kinds)>,
    /// Reads and writes a second, the oldest first.
    pub past: VecDeque<(u64, u64)>,
    /// Why it does not answer now.
    pub silent: Option<String>,
}

impl Seen {
    /// From its first answers.
    pub fn first(report: Report, histograms: Histograms) -> Seen {
        Seen::between(None, report, histograms, VecDeque::new())
    }

    /// With its next answers.
    pub fn next(self, report: Report, histograms: Histograms) -> Seen {
        let mut past = self.past.clone();
        let seen = Seen::between(Some(&self), report, histograms, VecDeque::new());
        past.extend([(seen.all.reads.per_second as u64, seen.all.writes.per_second as u64)]);
        past.drain(..past.len().saturating_sub(PAST));
        Seen { past, ..seen }
    }

    fn between(before: Option<&Seen>, report: Report, histograms: Histograms, past: VecDeque<(u64, u64)>) -> Seen {
        let old = before.map(|seen| &seen.report);
        let older = before.map(|seen| &seen.histograms);
        let one = |name: &str| (Rates::between(old, &report, Some(name)), Kinds::between(older, &histograms, Some(name)));
        Seen {
            all: Rates::between(old, &report, None),
            kinds: Kinds::between(older, &histograms, None),
            volumes: report.volumes.iter().map(|volume| one(&volume.name)).collect(),
            past,
            silent: None,
            report,
            histograms,
        }
    }
}
