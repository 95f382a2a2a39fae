//! What an administrator must know, kept in a bounded log in the state folder: what happened, when, and what to do next.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::state::replace;

/// Events that are kept.
pub const KEPT: usize = 256;

/// How much an event matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Info,
    /// Somebody should look.
    Warning,
    /// Data cannot be reached, or a copy of it is gone.
    Error,
}

/// An event before it has its number and time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct News {
    /// How much it matters.
    pub level: Level,
    /// What kind it is, for programs: `member-lost`.
    pub kind: &'static str,
    /// What happened, to which device or volume, and what it means.
    pub what: String,
    /// What to do next.
    pub next: String,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its number: larger is later, and none comes twice.
    pub number: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// How much it matters.
    pub level: Level,
    /// What kind it is, for programs: `member-lost`.
    pub kind: String,
    /// What happened, to which device or volume, and what it means.
    pub what: String,
    /// What to do next.
    pub next: String,
}

/// The events of a pool, in memory and in a file with a JSON object a line.
pub struct Journal {
    ring: Mutex<Ring>,
    /// Of whoever writes; who only asks what has happened does not wait for the disk.
    log: Mutex<Log>,
}

struct Ring {
    events: VecDeque<Event>,
    /// The next one's number.
    number: u64,
}

struct Log {
    path: PathBuf,
    /// Lines in the file; as many as it may have: it is begun anew.
    lines: usize,
    /// The number of the first event that is not in it.
    next: u64,
}

impl Journal {
    /// Takes up the file at `path`, if there is one.
    pub fn open(path: PathBuf) -> Journal {
        let events: VecDeque<Event> = read(&path).unwrap_or_default().into();
        let number = events.back().map_or(0, |event| event.number + 1);
        let log = Log { path, lines: KEPT * 2, next: number };
        Journal { ring: Mutex::new(Ring { events, number }), log: Mutex::new(log) }
    }

    /// The last that happened.
    pub fn last(&self, of: impl Fn(&Event) -> bool) -> Option<Event> {
        lock(&self.ring).events.iter().rev().find(|event| of(event)).cloned()
    }

    /// What happened from a number on.
    pub fn from(&self, number: u64) -> Vec<Event> {
        lock(&self.ring).events.iter().filter(|event| event.number >= number).cloned().collect()
    }

    /// Gives the next `numbers` to no event.
    pub(crate) fn leave_out(&self, numbers: u64) {
        lock(&self.ring).number += numbers;
    }

    /// Keeps an event, and writes it to the log, durably.
    pub fn add(&self, news: News) {
        let News { level, kind, what, next } = news;
        match level {
            Level::Info => tracing::info!(kind, next, "{what}"),
            Level::Warning => tracing::warn!(kind, next, "{what}"),
            Level::Error => tracing::error!(kind, next, "{what}"),
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        {
            let mut ring = lock(&self.ring);
            let event = Event { number: ring.number, time, level, kind: kind.to_owned(), what, next };
            ring.number += 1;
            ring.events.push_back(event);
            if ring.events.len() > KEPT {
                ring.events.pop_front();
            }
        }
        let mut log = lock(&self.log);
        // In their order, whoever comes first; others may have written this one by now.
        let events = self.from(if log.lines < KEPT * 2 { log.next } else { 0 });
        let Some(last) = events.last().filter(|last| last.number >= log.next) else { return };
        match log.write(&events) {
            Ok(()) => log.next = last.number + 1,
            Err(error) => {
                // A line may be there in part, and would swallow the next one.
                log.lines = KEPT * 2;
                tracing::warn!(
                    "cannot keep events in {}: {error}; the daemon itself has them. Make room there",
                    log.path.display()
                );
            }
        }
    }
}

impl Log {
    /// Appends these events; from time to time begins the file anew with them, so that it does not grow for ever.
    fn write(&mut self, events: &[Event]) -> io::Result<()> {
        let lines: Vec<u8> = events.iter().map(line).collect::<io::Result<Vec<_>>>()?.concat();
        if self.lines < KEPT * 2 {
            let mut file = OpenOptions::new().create(true).mode(0o600).append(true).open(&self.path)?;
            file.write_all(&lines)?;
            file.sync_data()?;
            self.lines += events.len();
            return Ok(());
        }
        replace(&self.path.with_extension("new"), &self.path, &lines)?;
        self.lines = events.len();
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn line(event: &Event) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line)
}

/// The events that a file holds, as many as are kept. A line cut off by a crash is left out.
pub fn read(path: &Path) -> io::Result<Vec<Event>> {
    let text = String::from_utf8_lossy(&fs::read(path)?).into_owned();
    let events: Vec<Event> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    Ok(events[events.len().saturating_sub(KEPT)..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(what: &str) -> News {
        News { level: Level::Info, kind: "test", what: what.into(), next: "Nothing.".into() }
    }

    #[test]
    fn events_outlive_the_daemon_are_bounded_and_never_share_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let journal = Journal::open(path.clone());
        for n in 0..KEPT * 3 {
            journal.add(news(&n.to_string()));
        }
        assert!(fs::read_to_string(&path).unwrap().lines().count() <= KEPT * 2);
        drop(journal);
        // A crash cuts the last line off.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"number\": 9").unwrap();
        let journal = Journal::open(path.clone());
        journal.add(news("after"));
        let events = journal.from(0);
        assert_eq!((events.len(), events.last().unwrap().what.as_str()), (KEPT, "after"));
        assert!(events.windows(2).all(|pair| pair[0].number + 1 == pair[1].number), "{events:?}");
        assert_eq!(read(&path).unwrap(), events);
        assert_eq!(journal.from(events.last().unwrap().number).len(), 1);
        assert_eq!(journal.last(|event| event.what == "700").unwrap().number, 700);
    }

    /// Of a daemon that had ended cleanly after that the next one told that it had crashed.
    #[test]
    fn an_event_after_one_that_could_not_be_written_whole_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let journal = Journal::open(path.clone());
        journal.add(news("first"));
        let kept = fs::read_to_string(&path).unwrap();
        // No room is left behind half of a line.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        journal.add(news("torn"));
        fs::remove_file(&path).unwrap();
        fs::write(&path, kept + "{\"number\": 1, \"ti").unwrap();
        journal.add(news("stopped"));
        let told: Vec<String> = Journal::open(path).from(0).into_iter().map(|event| event.what).collect();
        assert_eq!(told, ["first", "torn", "stopped"]);
    }

    /// Whoever asked for events waited for the disk.
    #[test]
    fn who_asks_for_events_does_not_wait_for_those_that_are_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let journal = Journal::open(path.clone());
        journal.add(news("first"));
        std::thread::scope(|scope| {
            let writing = lock(&journal.log);
            let adds = ["second", "third"].map(|what| scope.spawn(|| journal.add(news(what))));
            let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while journal.from(0).len() < 3 {
                assert!(std::time::Instant::now() < until);
            }
            assert_eq!(read(&path).unwrap().len(), 1);
            drop(writing);
            adds.into_iter().for_each(|add| add.join().unwrap());
        });
        assert_eq!(read(&path).unwrap(), journal.from(0));
        // What a power cut took was told of already, by numbers that are given to no other.
        let journal = Journal::open(path.clone());
        journal.leave_out(KEPT as u64);
        journal.add(news("later"));
        assert_eq!(journal.from(3).first().unwrap().number, 3 + KEPT as u64);
        assert_eq!(read(&path).unwrap(), journal.from(0));
    }

    #[test]
    fn a_folder_that_cannot_be_written_leaves_the_events_with_the_daemon() {
        let journal = Journal::open("/proc/no-such-folder/events".into());
        journal.add(news("kept"));
        assert_eq!(journal.from(0).len(), 1);
    }
}
