//! `headpond top`: a live view.

use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

use clap::Args;
use headpond_host::control::Call;
use headpond_host::report::Report;
use headpond_host::requests::Histograms;

use super::Which;
use crate::exit::Usage;
use crate::top::seen::Seen;
use crate::top::terminal::{Terminal, Wish};
use crate::top::view;

/// Intervals that can be chosen, in milliseconds.
const INTERVALS: [u64; 6] = [500, 1000, 2000, 5000, 10_000, 30_000];

#[derive(Args)]
#[command(after_help = "Keys: q quits, p pauses, + and - change the interval. \
The same figures as JSON: `headpond stat 1 --json` and `headpond histogram --json`.")]
pub struct Top {
    #[command(flatten)]
    which: Which,
}

impl Top {
    pub fn run(self) -> anyhow::Result<()> {
        if !stdout().is_terminal() {
            return Err(
                Usage("The output is no terminal. Nothing was done. Use `headpond stat 1` or `headpond status`".into()).into()
            );
        }
        let (report, histograms) = self.ask()?;
        let mut seen = Seen::first(report, histograms);
        let mut terminal = Terminal::take()?;
        let (mut chosen, mut paused) = (1, false);
        let mut next = Instant::now() + Duration::from_millis(INTERVALS[0]);
        loop {
            let interval = Duration::from_millis(INTERVALS[chosen]);
            terminal.draw(|frame| view::draw(frame, &seen, interval, paused))?;
            match terminal.wait(next)? {
                Wish::Quit => return Ok(()),
                Wish::Pause => paused = !paused,
                Wish::Slower => chosen = (chosen + 1).min(INTERVALS.len() - 1),
                Wish::Faster => chosen = chosen.saturating_sub(1),
                Wish::Redraw => {}
                Wish::Next => {
                    next = Instant::now() + interval;
                    if !paused {
                        // One that is gone may be back the next time.
                        match self.ask() {
                            Ok((report, histograms)) => seen = seen.next(report, histograms),
                            Err(error) => seen.silent = Some(error.to_string()),
                        }
                    }
                }
            }
        }
    }

    fn ask(&self) -> anyhow::Result<(Report, Histograms)> {
        let report = self.which.report(None)?;
        Ok((report, serde_json::from_value(self.which.call(&Call::Histograms)?)?))
    }
}
