//! `headpond events`: what an administrator must know, with its next step.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use headpond_host::control::{Call, CallError};
use headpond_host::events::{self, Event, Level};
use serde::Deserialize;
use serde_json::json;

use super::pool::Folder;
use super::{Which, print};
use crate::exit::Usage;

/// How often it is looked for what is new.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Args)]
pub struct Events {
    /// Go on, and print what happens as it happens
    #[arg(long, conflicts_with = "offline")]
    follow: bool,
    /// The last so many
    #[arg(long, value_name = "NUMBER")]
    last: Option<usize>,
    /// Read what the state folder has of all pools, without a daemon
    #[arg(long, conflicts_with_all = ["pool", "socket"])]
    offline: bool,
    /// Print JSON, an object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    folder: Folder,
    #[command(flatten)]
    which: Which,
}

impl Events {
    pub fn run(self) -> anyhow::Result<()> {
        let which = if self.offline { None } else { Some(self.which.settled()?) };
        let Told { mut events, mut id, .. } = match &which {
            Some(which) => ask(which, 0)?,
            None => Told { events: self.kept()?, next: None, id: None },
        };
        // What is not printed is not new either.
        let mut from = after(&events).unwrap_or(0);
        if let Some(last) = self.last {
            events.drain(..events.len().saturating_sub(last));
        }
        loop {
            for event in &events {
                print(self.json, &json!(event), text(event))?;
            }
            let Some(which) = which.as_ref().filter(|_| self.follow) else { return Ok(()) };
            let told = next(which, from, id.as_deref())?;
            (from, events) = (after(&told.events).unwrap_or(from), told.events);
            id = told.id.or(id);
        }
    }

    fn kept(&self) -> anyhow::Result<Vec<Event>> {
        let folder = self.folder.path();
        let unread = |error| {
            Usage(format!(
                "The state folder {} cannot be read: {error}. Nothing was done. Name one with --state",
                folder.display()
            ))
        };
        let mut pools = BTreeSet::new();
        for entry in fs::read_dir(&folder).map_err(unread)? {
            let path = entry.map_err(unread)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("events-") && (name.ends_with(".jsonl") || name.ends_with(".before")) {
                pools.insert(path.with_extension("jsonl"));
            }
        }
        let mut all = Vec::new();
        for path in pools {
            all.extend(events::read(&path).map_err(unread)?);
        }
        all.sort_by_key(|event| (event.time, event.number));
        Ok(all)
    }
}

/// What a daemon tells of events.
#[derive(Deserialize)]
struct Told {
    events: Vec<Event>,
    /// The number that the next one gets; daemons of earlier versions do not tell it.
    next: Option<u64>,
    /// The pool's identity; nor that.
    id: Option<String>,
}

impl Told {
    /// Whether those before `from` were others: of another pool that has come to have the same name, or from before the state folder was lost.
    fn begins_anew(&self, from: u64, id: Option<&str>) -> bool {
        let is_another = id.zip(self.id.as_deref()).is_some_and(|(before, now)| before != now);
        is_another || self.next.is_some_and(|next| next < from)
    }
}

fn ask(which: &Which, from: u64) -> anyhow::Result<Told> {
    Ok(serde_json::from_value(which.call(&Call::Events { from })?)?)
}

/// What is new after a while. A daemon that has ended may be restarted, or upgraded, and is waited for. `id` is of the pool that was followed.
fn next(which: &Which, from: u64, id: Option<&str>) -> anyhow::Result<Told> {
    let mut waits = false;
    loop {
        thread::sleep(LOOK);
        let anew = |told: Told| if told.begins_anew(from, id) { ask(which, 0) } else { Ok(told) };
        match ask(which, from).and_then(anew) {
            Err(error) if is_away(&error) => {
                if !std::mem::replace(&mut waits, true) {
                    eprintln!(
                        "headpond: the daemon is not there just now; what happens is told on when it is, as after a restart"
                    );
                }
            }
            answer => return answer,
        }
    }
}

fn is_away(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CallError::NotRunning(_) | CallError::Broken(..) | CallError::Silent { .. }))
}

/// The number of the first event that comes after these, if there are any.
fn after(events: &[Event]) -> Option<u64> {
    events.last().map(|event| event.number + 1)
}

fn text(event: &Event) -> String {
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(event.time));
    let level = match event.level {
        Level::Info => "info",
        Level::Warning => "WARNING",
        Level::Error => "ERROR",
    };
    format!("{time}  {level:<7}  {}: {}\n                      next: {}", event.kind, event.what, event.next)
}
