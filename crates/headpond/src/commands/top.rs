//! `headpond top`: a live view.

use std::io::{IsTerminal, stdout};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use headpond_host::control::{Call, CallError};
use headpond_host::report::Report;
use headpond_host::requests::Histograms;

use super::Which;
use crate::exit::Usage;
use crate::top::seen::Seen;
use crate::top::terminal::{Terminal, Wish};
use crate::top::view;

/// Intervals that can be chosen, in milliseconds.
const INTERVALS: [u64; 6] = [500, 1000, 2000, 5000, 10_000, 30_000];

/// How often it is looked for an answer.
const LOOK: Duration = Duration::from_millis(50);
/// How late an answer may be before that is shown.
const SILENT: Duration = Duration::from_secs(2);

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
        let (report, histograms) = ask(&self.which)?;
        let mut seen = Seen::first(report, histograms);
        let mut terminal = Terminal::take()?;
        let (mut chosen, mut paused) = (1, false);
        let mut next = Instant::now() + Duration::from_millis(INTERVALS[0]);
        // Since when it has not answered, and what it is asked by. Keys are heard meanwhile.
        let mut asked: Option<(Instant, Receiver<Answer>)> = None;
        let mut silent_since = None;
        loop {
            let interval = Duration::from_millis(INTERVALS[chosen]);
            terminal.draw(|frame| view::draw(frame, &seen, interval, paused))?;
            let until = if asked.is_some() { Instant::now() + LOOK } else { next };
            match terminal.wait(until)? {
                Wish::Quit => return Ok(()),
                Wish::Pause => paused = !paused,
                Wish::Slower => chosen = (chosen + 1).min(INTERVALS.len() - 1),
                Wish::Faster => chosen = chosen.saturating_sub(1),
                Wish::Redraw => {}
                Wish::Next => match asked.as_ref().map(|(since, answer)| (*since, answer.try_recv())) {
                    None => {
                        next = Instant::now() + interval;
                        if !paused {
                            asked = Some((Instant::now(), self.ask_beside()?));
                        }
                    }
                    Some((_, Ok(Ok((report, histograms))))) => {
                        (asked, silent_since) = (None, None);
                        seen = seen.next(report, histograms);
                    }
                    // One that is gone may be back the next time.
                    Some((since, Ok(Err(error)))) => {
                        asked = None;
                        match error.downcast_ref() {
                            Some(CallError::Silent { .. }) => seen.silent = Some(no_answer(*silent_since.get_or_insert(since))),
                            _ => seen.silent = Some(error.to_string()),
                        }
                    }
                    Some((since, Err(TryRecvError::Empty))) if since.elapsed() >= SILENT || silent_since.is_some() => {
                        seen.silent = Some(no_answer(*silent_since.get_or_insert(since)));
                    }
                    Some((_, Err(TryRecvError::Empty))) => {}
                    Some((_, Err(TryRecvError::Disconnected))) => asked = None,
                },
            }
        }
    }

    /// Asks on another thread.
    fn ask_beside(&self) -> std::io::Result<Receiver<Answer>> {
        let (tell, answer) = mpsc::channel();
        let which = self.which.clone();
        thread::Builder::new().name("ask".into()).spawn(move || drop(tell.send(ask(&which))))?;
        Ok(answer)
    }
}

/// The next figures, or why there are none.
type Answer = anyhow::Result<(Report, Histograms)>;

fn ask(which: &Which) -> Answer {
    let report = which.report(None)?;
    Ok((report, serde_json::from_value(which.call(&Call::Histograms)?)?))
}

fn no_answer(since: Instant) -> String {
    format!(
        "No answer for {} s: the daemon may be stopped, or the kernel may hold it. Look at its process and at the kernel's log.",
        since.elapsed().as_secs()
    )
}
