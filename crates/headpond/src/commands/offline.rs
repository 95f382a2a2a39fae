//! What the offline tools share: which devices, how far they are, and Ctrl-C.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use headpond_host::offline::{OfflineError, Step};
use headpond_host::signals::Signals;
use serde_json::{Value, json};

use crate::size;

/// How often it is told how far the work is.
const TELL: Duration = Duration::from_millis(500);

/// A pool at rest.
#[derive(Args, Clone, Debug)]
pub struct AtRest {
    /// The cache devices of the pool, as many of them as there are
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    /// The state folder of the host that served the pool: its witness there is heard. Without it, the devices vote alone
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Seconds to wait for devices that a killed daemon may still be writing to, a day at most
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub wait: u64,
}

impl AtRest {
    /// How long to wait for a device that is held.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.wait)
    }
}

/// Tells on a terminal how far the work is, and hears Ctrl-C.
pub struct Watching {
    signals: Signals,
    told: Instant,
    shown: bool,
    ended: bool,
}

impl Watching {
    /// From here on Ctrl-C and SIGTERM end the work at the next step, and not the process.
    pub fn new() -> anyhow::Result<Watching> {
        Ok(Watching { signals: Signals::hold()?, told: Instant::now(), shown: false, ended: false })
    }

    /// Notes a step; whether to go on.
    pub fn step(&mut self, step: Step) -> bool {
        if self.told.elapsed() >= TELL && std::io::stderr().is_terminal() {
            self.told = Instant::now();
            self.shown = true;
            let percent = (step.done.min(step.total) * 100).checked_div(step.total).unwrap_or(0);
            eprint!("\r\x1b[K{}: {percent} %", step.what);
            let _ = std::io::stderr().flush();
        }
        self.goes_on()
    }

    /// Whether nobody wishes the end, or has wished it before.
    fn goes_on(&mut self) -> bool {
        self.ended |= self.signals.wait(Duration::ZERO);
        !self.ended
    }

    /// Takes the line away that says how far it was.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Writes a line to standard output.
pub fn line(text: &str) -> Result<(), OfflineError> {
    writeln!(std::io::stdout().lock(), "{text}").map_err(OfflineError::Output)
}

/// Text from a device that a stranger may have written to: what would begin a line, move the cursor, or turn the text round, is shown by its number.
pub fn harmless(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() || turns(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// A JSON object on standard output whose last member is a list, written as it is found. It is whole whatever happens meanwhile.
#[derive(Default)]
pub struct Listing {
    begun: bool,
    items: usize,
}

impl Listing {
    /// Begins with the members of an object, and the list's name.
    pub fn begin(&mut self, head: &Value, list: &str) -> Result<(), OfflineError> {
        self.begun = true;
        let head = head.to_string();
        let members = head.trim_start_matches('{').strip_suffix('}').unwrap_or_default();
        let comma = if members.is_empty() { "" } else { ", " };
        line(&format!("{{{members}{comma}{}: [", json!(list)))
    }

    /// Begins with the list's name alone, if that was not done before.
    pub fn begin_once(&mut self, list: &str) -> Result<(), OfflineError> {
        if self.begun { Ok(()) } else { self.begin(&json!({}), list) }
    }

    /// One more of the list.
    pub fn add(&mut self, item: &Value) -> Result<(), OfflineError> {
        let comma = if self.items > 0 { "," } else { "" };
        self.items += 1;
        line(&format!("{comma}{item}"))
    }

    /// The end. Nothing where nothing was begun.
    pub fn end(&self) -> Result<(), OfflineError> {
        if self.begun { line("]}") } else { Ok(()) }
    }

    /// The same, with one more member.
    pub fn end_with(&self, name: &str, value: &Value) -> Result<(), OfflineError> {
        if self.begun { line(&format!("], {}: {value}}}", json!(name))) } else { Ok(()) }
    }

    /// The same, with all the members of an object.
    pub fn end_with_all(&self, object: &Value) -> Result<(), OfflineError> {
        let members = object.to_string();
        let members = members.strip_prefix('{').unwrap_or_default();
        if self.begun { line(&format!("], {members}")) } else { Ok(()) }
    }

    /// The end of what an error cut short, which the object tells of; the error.
    pub fn cut_short(&self, error: OfflineError) -> OfflineError {
        self.end_with_error(&error);
        error
    }

    /// The same of any error.
    pub fn end_with_error(&self, error: &impl std::fmt::Display) {
        // Who does not hear the list will not hear its end.
        let _ = self.end_with("error", &json!(error.to_string()));
    }
}

/// A place on a device: its path, and the byte.
pub fn place(path: Option<&str>, offset: Option<u64>, bytes: Option<u64>) -> String {
    match (path, offset, bytes) {
        (Some(path), Some(offset), Some(bytes)) if bytes > 0 => {
            format!("{path}, byte {offset}, {}", size::show(bytes))
        }
        (Some(path), ..) => path.to_owned(),
        _ => "the pool".into(),
    }
}
