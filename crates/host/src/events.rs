//! What an administrator must know, kept in a bounded log in the state folder: what happened, when, and what to do next.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::lock::lock;
use crate::soon::Soon;

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

/// The events of a pool, in memory and in a file with a JSON object a line. The file is full at some length; then it gives way to a new one, and is
/// kept beside that until the next time.
///
/// Whoever has something to tell does not wait for the file: a thread writes it, which is there for as long as there is something to write. What it
/// writes is left to the kernel, which has it on the disk within seconds: a power cut takes what is newer. Whoever waited for the disk would wait
/// for one that is silent too, and with it the daemon's end.
pub struct Journal {
    ring: Mutex<Ring>,
    log: Mutex<Log>,
    writing: Arc<Soon>,
}

struct Ring {
    events: VecDeque<Event>,
    /// The next one's number.
    number: u64,
}

/// Of whoever writes.
struct Log {
    path: PathBuf,
    /// Lines in the file.
    lines: usize,
    /// Whether it may end in a part of a line, which would swallow the next one.
    is_torn: bool,
    /// The number of the first event that is not in it.
    next: u64,
}

impl Journal {
    /// Takes up the file at `path`, if there is one.
    pub fn open(path: PathBuf) -> Journal {
        let events: VecDeque<Event> = read(&path).unwrap_or_default().into();
        let number = events.back().map_or(0, |event| event.number + 1);
        let text = fs::read(&path).unwrap_or_default();
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        let log = Log { path, lines, is_torn: text.last().is_some_and(|byte| *byte != b'\n'), next: number };
        Journal { ring: Mutex::new(Ring { events, number }), log: Mutex::new(log), writing: Arc::default() }
    }

    /// Whether something is being written, which may wait for the disk.
    pub(crate) fn is_written(&self) -> bool {
        self.writing.is_under_way()
    }

    /// The last that happened.
    pub fn last(&self, of: impl Fn(&Event) -> bool) -> Option<Event> {
        lock(&self.ring).events.iter().rev().find(|event| of(event)).cloned()
    }

    /// What happened from a number on.
    pub fn from(&self, number: u64) -> Vec<Event> {
        lock(&self.ring).from(number)
    }

    /// The number that the next event gets.
    pub fn next(&self) -> u64 {
        lock(&self.ring).number
    }

    /// Gives the next `numbers` to no event.
    pub(crate) fn leave_out(&self, numbers: u64) {
        lock(&self.ring).number += numbers;
    }

    /// Keeps an event, and has it written to the file soon.
    pub fn add(self: &Arc<Self>, news: News) {
        self.keep(news);
        let journal = Arc::clone(self);
        self.writing.ask("events-file", move || journal.write());
    }

    fn keep(&self, news: News) {
        let News { level, kind, what, next } = news;
        match level {
            Level::Info => tracing::info!(kind, next, "{what}"),
            Level::Warning => tracing::warn!(kind, next, "{what}"),
            Level::Error => tracing::error!(kind, next, "{what}"),
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut ring = lock(&self.ring);
        let event = Event { number: ring.number, time, level, kind: kind.to_owned(), what, next };
        ring.number += 1;
        ring.events.push_back(event);
        if ring.events.len() > KEPT {
            ring.events.pop_front();
        }
    }

    /// Writes to the file what is not there yet. What cannot be written is tried again with the next event.
    fn write(&self) {
        let mut log = lock(&self.log);
        let events = lock(&self.ring).from(log.next);
        let Some(last) = events.last() else { return };
        match log.write(&events) {
            Ok(()) => log.next = last.number + 1,
            Err(error) => tracing::warn!(
                "cannot keep events in {}: {error}; the daemon itself has them. Make room there",
                log.path.display()
            ),
        }
    }
}

impl Ring {
    /// Those from a number on.
    fn from(&self, number: u64) -> Vec<Event> {
        self.events.iter().filter(|event| event.number >= number).cloned().collect()
    }
}

impl Log {
    /// Appends these events. A file that is full goes aside first, in the place of the one before.
    fn write(&mut self, events: &[Event]) -> io::Result<()> {
        let mut lines: Vec<u8> = events.iter().map(line).collect::<io::Result<Vec<_>>>()?.concat();
        if self.lines >= KEPT {
            // A new one that replaced it might be empty after a power cut, and all events gone.
            match fs::rename(&self.path, before(&self.path)) {
                // Somebody has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                renamed => renamed?,
            }
            (self.lines, self.is_torn) = (0, false);
        }
        if self.is_torn {
            lines.insert(0, b'\n');
        }
        self.is_torn = true;
        OpenOptions::new().create(true).mode(0o600).append(true).open(&self.path)?.write_all(&lines)?;
        self.is_torn = false;
        self.lines += events.len();
        Ok(())
    }
}

/// Where the events are that were before those in a file.
pub(crate) fn before(path: &Path) -> PathBuf {
    path.with_extension("before")
}

fn line(event: &Event) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line)
}

/// The events that a file holds, and the one before it, as many as are kept. A line cut off by a crash is left out.
///
/// # Errors
/// There is neither, or one cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<Event>> {
    let there = |path: &Path| match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    };
    let all = [there(&before(path))?, there(path)?];
    if all.iter().all(Option::is_none) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut events: Vec<Event> = Vec::new();
    for bytes in all.into_iter().flatten() {
        for event in String::from_utf8_lossy(&bytes).lines().filter_map(|line| serde_json::from_str::<Event>(line).ok()) {
            // Those that were written before others of them could not be are written again.
            if events.last().is_none_or(|last| last.number < event.number) {
                events.push(event);
            }
        }
    }
    Ok(events.split_off(events.len().saturating_sub(KEPT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that is in the file, if it can be, when this ends.
    fn written(journal: &Journal, what: &str) {
        journal.keep(news(what));
        journal.write();
    }

    fn news(what: &str) -> News {
        News { level: Level::Info, kind: "test", what: what.into(), next: "Nothing.".into() }
    }

    #[test]
    fn events_outlive_the_daemon_are_bounded_and_never_share_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let journal = Journal::open(path.clone());
        for n in 0..KEPT * 3 {
            written(&journal, &n.to_string());
        }
        assert!(fs::read_to_string(&path).unwrap().lines().count() <= KEPT * 2);
        drop(journal);
        // A crash cuts the last line off.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"number\": 9").unwrap();
        let journal = Journal::open(path.clone());
        written(&journal, "after");
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
        written(&journal, "first");
        let kept = fs::read_to_string(&path).unwrap();
        // No room is left behind half of a line.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        written(&journal, "torn");
        fs::remove_file(&path).unwrap();
        fs::write(&path, kept + "{\"number\": 1, \"ti").unwrap();
        written(&journal, "stopped");
        let told: Vec<String> = Journal::open(path).from(0).into_iter().map(|event| event.what).collect();
        assert_eq!(told, ["first", "torn", "stopped"]);
    }

    /// Whoever asked for events waited for the disk; then whoever was the first to add one since the disk had fallen silent did, and it was the thread
    /// that looks for disks, or the one that looks how the pool stands. Found by reading.
    #[test]
    fn who_asks_for_events_or_adds_one_does_not_wait_for_those_that_are_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let journal = Arc::new(Journal::open(path.clone()));
        written(&journal, "first");
        let limit = std::time::Duration::from_secs(60);
        let (tell, told) = std::sync::mpsc::channel();
        let writing = lock(&journal.log);
        let adds = journal.clone();
        std::thread::spawn(move || {
            ["second", "third"].iter().for_each(|what| adds.add(news(what)));
            tell.send(()).unwrap();
        });
        let added = told.recv_timeout(limit);
        let seen = (added.is_ok(), journal.is_written(), journal.from(0).len(), read(&path).unwrap().len());
        drop(writing);
        assert_eq!(seen, (true, true, 3, 1));
        let until = std::time::Instant::now() + limit;
        while journal.is_written() {
            assert!(std::time::Instant::now() < until, "they are not written");
        }
        assert_eq!(read(&path).unwrap(), journal.from(0));
        // What a power cut took was told of already, by numbers that are given to no other.
        let journal = Journal::open(path.clone());
        journal.leave_out(KEPT as u64);
        written(&journal, "later");
        assert_eq!(journal.from(3).first().unwrap().number, 3 + KEPT as u64);
        assert_eq!(read(&path).unwrap(), journal.from(0));
    }

    /// What is written is not waited for, and a power cut may leave a new file empty.
    #[test]
    fn a_power_cut_that_empties_the_file_takes_no_more_than_the_newest_events() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let journal = Journal::open(path.clone());
        for n in 0..KEPT * 5 / 2 {
            written(&journal, &n.to_string());
        }
        drop(journal);
        fs::write(&path, "").unwrap();
        let left = Journal::open(path).from(0);
        assert_eq!((left.len(), left.last().unwrap().what.as_str()), (KEPT, (KEPT * 2 - 1).to_string().as_str()));
    }

    #[test]
    fn a_folder_that_cannot_be_written_leaves_the_events_with_the_daemon() {
        let journal = Journal::open("/proc/no-such-folder/events".into());
        written(&journal, "kept");
        assert_eq!(journal.from(0).len(), 1);
    }
}
