//! Events, from how the daemon stood a moment ago and how it stands now.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Shared;
use super::worker::Worker;
use crate::backing::Spec;
use crate::control::Fault;
use crate::events::{Journal, KEPT, Level, News};
use crate::report::{Advice, Member, Report, Volume, cache_device};
use crate::silence;

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(1);
/// What goes on is told again after so many seconds without it.
const QUIET: f64 = 600.0;

/// The kinds of the events that begin and end a daemon's life.
const STARTED: &str = "started";
/// A start after a life that did not end cleanly.
const RESTARTED: &str = "restarted-after-crash";
/// A clean end.
const STOPPED: &str = "stopped";
const HANDED_OVER: &str = "handed-over";
/// An upgrade that did not come about after that was told.
const NOT_HANDED_OVER: &str = "not-handed-over";

/// That the daemon begins; whether its last life ended cleanly is known by the events that it left.
pub(super) fn of_start(events: &Journal, pool: &str) -> News {
    let ends = [STOPPED, HANDED_OVER];
    let known = |kind: &str| [STARTED, RESTARTED, NOT_HANDED_OVER].contains(&kind) || ends.contains(&kind);
    let last = events.last(|event| known(&event.kind)).map(|event| event.kind);
    if last.as_deref() != Some(HANDED_OVER) {
        // A power cut may have taken what was told of last.
        events.leave_out(KEPT as u64);
    }
    let crashed = last.is_some_and(|last| !ends.contains(&last.as_str()));
    match crashed {
        true => {
            let what = format!(
                "Pool {pool} is served again; its daemon had ended without a clean stop. What was acknowledged is there."
            );
            let next = "Nothing: the data is whole. Look into the system's log for why it ended: a power cut, a kill, or a crash that should be reported.";
            tell(Level::Warning, RESTARTED, what, next)
        }
        false => tell(Level::Info, STARTED, format!("Pool {pool} is served."), "Nothing: `headpond status` shows how it stands."),
    }
}

/// That it has ended as it should.
pub(super) fn of_stop(pool: &str) -> News {
    let next = "Nothing: what is dirty is safe on the cache devices. `headpond serve` starts it again.";
    tell(Level::Info, STOPPED, format!("Pool {pool} was stopped cleanly."), next)
}

/// That another program goes on.
pub(super) fn of_hand_over(pool: &str, program: &Path) -> News {
    let what = format!("Pool {pool} is handed over to {}; I/O waits for it.", program.display());
    tell(Level::Info, HANDED_OVER, what, "Nothing: if it does not come up, `headpond serve` with the program before does.")
}

/// That it does not, after all.
pub(super) fn of_no_hand_over(pool: &str, program: &Path, why: &Fault) -> News {
    let what = format!("Pool {pool} is not handed over to {} after all. {why}", program.display());
    tell(
        Level::Info,
        NOT_HANDED_OVER,
        what,
        "The daemon serves on as it was. Do what is said there, then run `headpond upgrade` again.",
    )
}

/// That it has.
pub(super) fn of_succession(pool: &str, pause: Duration) -> News {
    let version = env!("CARGO_PKG_VERSION");
    let what = format!("Pool {pool} is served by Headpond {version} now; I/O waited for {:.2} s.", pause.as_secs_f64());
    tell(Level::Info, "upgraded", what, "Nothing: all that was acknowledged is there.")
}

/// That a volume is served, whose disk was not there at the start.
pub(super) fn of_late_disk(volume: &str, backing: &Spec) -> News {
    let what = format!("The backing device of volume {volume}, {backing}, has come; the volume is served.");
    tell(Level::Info, "volume-served", what, "Nothing: use it where `headpond status` says it is.")
}

/// That a volume was let go of, with so many bytes given up that were lost.
pub(super) fn of_detached(volume: &str, given_up: u64) -> News {
    if given_up == 0 {
        let what = format!("Volume {volume} was detached: its disk has all its data.");
        return tell(Level::Info, "volume-detached", what, "Nothing: the disk can be used by itself.");
    }
    let what = format!(
        "Volume {volume} was detached, and up to {given_up} bytes that were lost were given up: its disk has there what it had before."
    );
    let next = "Check its file system before it is used, and restore what is missing from a backup.";
    tell(Level::Warning, "volume-detached", what, next)
}

/// That a volume which was not served was let go of, with what was dirty on it.
pub(super) fn of_abandoned(what: String) -> News {
    tell(Level::Warning, "volume-thrown-away", what, "Check its file system before it is used, or restore it from a backup.")
}

/// That a volume without a backing device was made.
pub(super) fn of_created(volume: &str, bytes: u64) -> News {
    let what = format!("Volume {volume} of {bytes} bytes was created, on the cache devices alone.");
    tell(Level::Info, "volume-created", what, "Nothing: use it where `headpond status` says it is.")
}

/// That one was deleted.
pub(super) fn of_deleted(volume: &str, held: u64) -> News {
    let what = format!("Volume {volume} was deleted, with the {held} bytes on it, which were on the cache devices alone.");
    tell(Level::Warning, "volume-deleted", what, "Nothing: that was asked for, with --throw-away.")
}

/// That a volume has more bytes.
pub(super) fn of_grown(volume: &str, from: u64, to: u64) -> News {
    let what = format!("Volume {volume} has grown from {from} to {to} bytes.");
    let next = "Use the own tool of what is on it, such as resize2fs or xfs_growfs, to enlarge that too.";
    tell(Level::Info, "volume-grown", what, next)
}

/// That dirty data is gone with all its copies.
pub(super) fn of_loss(advice: Advice) -> News {
    tell(Level::Error, "data-lost", advice.wrong, advice.next)
}

/// That one has come, and is not as the cache knows it.
pub(super) fn of_refused_disk(volume: &str, backing: &Spec) -> News {
    let what = format!(
        "The backing device of volume {volume}, {backing}, has come; the volume is refused: the disk was changed without the cache, \
         or dirty data may be missing."
    );
    let next = format!(
        "Bring back the cache devices and the disk that belong together, and restart. Nothing was overwritten. If they are gone for good: \
         `headpond detach --throw-away {volume}` lets go of the volume, and of what is dirty on it; before that, with the daemon stopped, \
         `headpond writeback --without-missing` can put what is left onto the disk."
    );
    tell(Level::Error, "volume-refused", what, next)
}

impl Shared {
    /// A thread that looks.
    pub(super) fn watch(self: &Arc<Shared>) -> Option<Worker> {
        let shared: Weak<Shared> = Arc::downgrade(self);
        let body = move |ended: Receiver<()>| {
            let mut watcher = Watcher::default();
            loop {
                let Some(shared) = shared.upgrade() else { return };
                silence::reap();
                shared.look_for_losses(watcher.before.is_none());
                let Some(report) = shared.report() else { return };
                let lacks_data = shared.handle.status().is_some_and(|status| shared.lacks_data(&status));
                watcher.look(report, lacks_data).into_iter().for_each(|news| shared.events.add(news));
                drop(shared);
                if !matches!(ended.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout)) {
                    return;
                }
            }
        };
        Worker::start("events", body)
            .inspect_err(|error| tracing::warn!("no thread for events: {error}; `headpond status` still tells what is wrong"))
            .ok()
    }
}

/// What was seen last.
#[derive(Default)]
struct Watcher {
    before: Option<Report>,
    /// When each thing that may go on for long was last seen, by the daemon's clock.
    going_on: BTreeMap<String, f64>,
}

impl Watcher {
    /// What is new; `lacks_data` says whether what is on a cache device that has left may be all there is.
    fn look(&mut self, now: Report, lacks_data: bool) -> Vec<News> {
        let mut news = Vec::new();
        match self.before.take() {
            // What is wrong at the start is news.
            None => news.extend(now.advice.iter().map(|it| News {
                level: Level::Warning,
                kind: "problem-at-start",
                what: it.wrong.clone(),
                next: it.next.clone(),
            })),
            Some(before) => {
                of_members(&before, &now, lacks_data, &mut news);
                of_scrub(&before, &now, &mut news);
                of_volumes(&before, &now, &mut news);
                of_endurance(&before, &now, &mut news);
                for (key, more) in going_on(&before, &now) {
                    let last = self.going_on.insert(key, now.uptime_seconds);
                    if last.is_none_or(|last| now.uptime_seconds - last >= QUIET) {
                        news.push(more);
                    }
                }
            }
        }
        self.before = Some(now);
        news
    }
}

fn tell(level: Level, kind: &'static str, what: String, next: impl Into<String>) -> News {
    News { level, kind, what, next: next.into() }
}

fn place(member: &Member) -> String {
    cache_device(member.number, member.path.as_deref()).replacen('c', "C", 1)
}

fn of_scrub(before: &Report, now: &Report, news: &mut Vec<News>) {
    let found = &now.scrub;
    if found.ended == before.scrub.ended {
        return;
    }
    let (pool, read, places) = (&now.pool, found.bytes >> 20, found.damaged_places());
    let (level, what, next) = if found.lost > 0 {
        let what = format!(
            "A scrub of pool {pool} found dirty data damaged on all its copies, {} pieces: reading it fails. Damaged copies: {places}.",
            found.lost
        );
        let next = "`headpond status --json` names the ranges. Restore what is in them, or write them anew; replace the cache devices that rot.";
        (Level::Error, what, next)
    } else if found.damaged > 0 {
        let what = format!(
            "A scrub of pool {pool} read {read} MiB and found damaged copies, {places}: {} were repaired, {} let go of since the disk has them.",
            found.repaired, found.dropped
        );
        let next = "Once may be chance. A cache device on which it comes again rots: replace it, with `headpond pool replace NUMBER NEW`.";
        (Level::Warning, what, next)
    } else {
        (
            Level::Info,
            format!("A scrub of pool {pool} read {read} MiB and found no damage."),
            "Nothing: all that was read is whole.",
        )
    };
    news.push(tell(level, "scrubbed", what, next));
}

fn of_members(before: &Report, now: &Report, lacks_data: bool, news: &mut Vec<News>) {
    let pool = &now.pool;
    for member in &now.members {
        let was = before.members.iter().find(|old| old.number == member.number);
        match (was.map(|old| old.state != "out"), member.state != "out") {
            (Some(true), false) => {
                let holds = if lacks_data { "may be nowhere else" } else { "is out of date" };
                let what = format!("{} has left pool {pool}; what it holds {holds}.", place(member));
                let next = match now.degraded {
                    _ if lacks_data => {
                        "Keep it as it is, and do not put it back: `headpond status` says what is missing, and what to do."
                    }
                    true => "Put another device in its place with `headpond pool add DEVICE`: it gets what lacks a copy.",
                    false => {
                        "The pool goes on without it. Look at the kernel's log, and put it, or another, back with `headpond pool add DEVICE`."
                    }
                };
                news.push(tell(Level::Error, "member-lost", what, next));
            }
            (None | Some(false), true) => {
                let what = format!("{} has joined pool {pool}.", place(member));
                news.push(tell(
                    Level::Info,
                    "member-joined",
                    what,
                    "Nothing: `headpond status` tells while data is copied to it.",
                ));
            }
            _ => {}
        }
    }
    for old in before.members.iter().filter(|old| now.members.iter().all(|member| member.number != old.number)) {
        let what = format!("{} was taken out of pool {pool}; nothing on it is needed.", place(old));
        let next = "Take it out of `devices` in the configuration (/etc/headpond/NAME.toml, of the unit headpond@NAME), or off the command line, and out of \
             the drop-in of headpond-devices@NAME where it is named there. The device is free.";
        news.push(tell(Level::Info, "member-removed", what, next));
    }
    match (before.degraded, now.degraded) {
        (false, true) => {
            let what = format!("Pool {pool} is degraded: dirty data has fewer than {} copies.", now.copies);
            let next = "Add a cache device with `headpond pool add DEVICE`. What becomes of new writes until then is set by `degraded` in the configuration.";
            news.push(tell(Level::Error, "degraded", what, next));
        }
        (true, false) => {
            let what = format!("Pool {pool} is degraded no more: new dirty data has {} copies.", now.copies);
            news.push(tell(Level::Info, "healed", what, "Nothing: what is older is being copied, if it was not yet."));
        }
        _ => {}
    }
    match (before.stalled, now.stalled) {
        (false, true) => {
            let what = format!("Pool {pool} has too few cache devices and votes: nothing that needs the cache is acknowledged.");
            let next = "Bring the missing devices back and restart the daemon. Nothing was given up: what was acknowledged is where it was. What is not on its disk yet is on cache devices alone, and is lost only if all that have it are.";
            news.push(tell(Level::Error, "stalled", what, next));
        }
        (true, false) => {
            let what = format!("Pool {pool} acknowledges again.");
            news.push(tell(Level::Info, "stalled-no-more", what, "Nothing: clients go on by themselves."));
        }
        _ => {}
    }
}

fn of_volumes(before: &Report, now: &Report, news: &mut Vec<News>) {
    let find = |report: &'_ Report, name: &str| report.volumes.iter().find(|volume| volume.name == name).cloned();
    for volume in &now.volumes {
        let name = &volume.name;
        match find(before, name) {
            // Said when it is made.
            None if volume.without_disk => {}
            None => {
                let what = format!("Volume {name} was attached, in mode {}.", volume.mode);
                news.push(tell(Level::Info, "volume-attached", what, "Nothing: use it where `headpond status` says it is."));
            }
            Some(old) if old.mode != volume.mode => {
                let what = format!("Volume {name} was switched from {} to {}.", old.mode, volume.mode);
                news.push(tell(Level::Info, "volume-mode", what, "Nothing: `headpond mode` switches it back."));
            }
            Some(old) if old.serving && !volume.serving => {
                let what = format!("Volume {name} is not served any more.");
                news.push(tell(Level::Error, "volume-not-served", what, "Ask `headpond status`, which says why."));
            }
            Some(_) => {}
        }
    }
}

/// What the budget of drive writes holds back; the engine sees to it that this does not come and go all the time.
fn of_endurance(before: &Report, now: &Report, news: &mut Vec<News>) {
    let (old, new) = (before.endurance, now.endurance);
    let (was, is) = ([old.reads_held_back, old.writes_held_back], [new.reads_held_back, new.writes_held_back]);
    if was == is {
        return;
    }
    let (pool, budget) = (&now.pool, new.drive_writes_per_day);
    let spent = format!("The cache devices of pool {pool} were written nearly all that {budget} drive writes per day allow");
    let next = "Nothing: it ends by itself when less is written. If more is to be cached, add cache devices; or raise `drive_writes_per_day` in the configuration's [engine] table and restart the daemon, at the cost of the devices' life.";
    news.push(match is {
        [_, true] => {
            let what = format!(
                "{spent}: a part of the new writes goes to the disks, at the disks' speed, and what reads miss is not cached. No data is at risk."
            );
            tell(Level::Warning, "held-back", what, next)
        }
        [true, false] => {
            let what = format!("{spent}: what reads miss is not all cached. Writes are absorbed as before. No data is at risk.");
            tell(Level::Warning, "held-back", what, next)
        }
        [false, false] => {
            let what = format!("Pool {pool} holds nothing back any more: the budget of {budget} drive writes per day has room again.");
            tell(Level::Info, "held-back-no-more", what, "Nothing: reads that miss are cached, and writes absorbed, as before.")
        }
    });
}

/// What may go on for long, each with a key by which it is told once.
fn going_on(before: &Report, now: &Report) -> Vec<(String, News)> {
    let mut all = Vec::new();
    let mut add = |key: String, news| all.push((key, news));
    for volume in &now.volumes {
        let Some(old) = before.volumes.iter().find(|old| old.number == volume.number && old.name == volume.name) else {
            continue;
        };
        let name = &volume.name;
        let full = |v: &Volume| v.requests.write_bypass.iter().find(|(reason, _)| reason == "full").map_or(0, |it| it.1.requests);
        if full(volume) > full(old) {
            let what = format!("The room for dirty data is full: writes of volume {name} go to its disk, at the disk's speed.");
            let next = "It ends by itself when the load does. If it comes often, add cache devices; `headpond top` shows how fast it is destaged.";
            add(format!("full {name}"), tell(Level::Warning, "write-back-full", what, next));
        }
        if volume.requests.errors > old.requests.errors {
            let what = format!("Requests of volume {name} failed: its clients got I/O errors.");
            let next = "Ask `headpond status`, and look at the kernel's log for its devices; `headpond list-damaged`, with the daemon stopped, lists what cannot be read.";
            add(format!("errors {name}"), tell(Level::Error, "requests-failed", what, next));
        }
        if volume.disk.failed > old.disk.failed {
            let what = format!("The backing device of volume {name} failed operations. What is dirty stays in the cache, safe.");
            add(format!("disk {name}"), tell(Level::Error, "disk-failing", what, "Look at the kernel's log for that disk."));
        }
    }
    for member in &now.members {
        let old = before.members.iter().find(|old| old.number == member.number);
        if member.load.failed > old.map_or(0, |old| old.load.failed) {
            let what = format!("{} failed operations; nothing is lost that has another copy.", place(member));
            let next = "Look at the kernel's log for it. One that leaves the pool is replaced with `headpond pool add DEVICE`.";
            add(format!("member {}", member.number), tell(Level::Warning, "member-failing", what, next));
        }
        // What one that has left could not read was not damaged.
        if member.damaged > old.map_or(0, |old| old.damaged) && member.state != "out" {
            let what = format!(
                "{} holds damaged data: {} copies were found damaged on it, or could not be read, since the start. Nothing is lost that has \
                 another copy, or is on the disk: it was repaired, or is read from there.",
                place(member),
                member.damaged
            );
            let next = format!(
                "Once may be chance. If it comes again this cache device rots: replace it, with `headpond pool replace {} NEW`.",
                member.number
            );
            add(format!("damaged {}", member.number), tell(Level::Warning, "member-damaged", what, next));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Endurance;
    use serde_json::json;

    /// A pool of two cache devices and a volume, after so many seconds.
    fn report(seconds: f64) -> Report {
        let pair = json!({ "requests": 0, "bytes": 0 });
        let load = json!({
            "reads": pair, "writes": pair, "flushes": 0, "zeroings": 0, "failed": 0, "in_flight": 0, "busy_seconds": 0.0,
            "waited_seconds": 0.0
        });
        let took = json!({ "requests": 0, "seconds": 0.0 });
        let member = |number: u8| {
            json!({
                "number": number, "path": format!("/dev/{number}"), "state": "in sync", "bytes": 1, "segments": 1,
                "segments_free": 1, "dirty_bytes": 0, "load": load
            })
        };
        let volume = json!({
            "number": 0, "name": "v", "backing": null, "identity": "", "bytes": 1, "phase": 0, "mode": "write-back", "serving": true,
            "place": null, "cached_bytes": 0, "dirty_bytes": 0, "map_bytes": 0, "destaging": false,
            "requests": {
                "hit": pair, "partial_hit": pair, "miss": pair, "read_bypass": pair, "absorbed": pair,
                "write_bypass": [["full", pair]], "zeroed": pair, "admitted": pair, "destaged": pair, "flushes": 0, "errors": 0
            },
            "times": { "read": took, "write": took, "flush": took, "zero": took }, "disk": load
        });
        serde_json::from_value(json!({
            "uptime_seconds": seconds, "pool": "p", "id": "00", "epoch": 1, "copies": 2, "degraded": false, "stalled": false,
            "segment_bytes": 1, "segments": 1, "segments_free": 1, "dirty_percent": 0, "lacking_bytes": 0,
            "members": [member(0), member(1)], "volumes": [volume], "member_bytes": 0, "checkpoints": 0, "repaired": 0, "advice": []
        }))
        .unwrap()
    }

    fn kinds(news: &[News]) -> Vec<&'static str> {
        assert!(news.iter().all(|it| it.what.ends_with('.') && it.next.len() > 10), "{news:?}");
        news.iter().map(|it| it.kind).collect()
    }

    #[test]
    fn a_member_that_leaves_and_one_that_takes_its_place_are_told_once_each() {
        let mut watcher = Watcher::default();
        assert_eq!(kinds(&watcher.look(report(1.0), false)), [""; 0]);
        let mut lost = report(2.0);
        (lost.members[1].state, lost.degraded) = ("out".into(), true);
        lost.members[1].load.failed = 1;
        let news = watcher.look(lost.clone(), false);
        assert_eq!(kinds(&news), ["member-lost", "degraded", "member-failing"]);
        assert!(news[0].what.contains("/dev/1") && news[0].next.contains("headpond pool add"), "{news:?}");
        assert_eq!(kinds(&watcher.look(lost.clone(), false)), [""; 0]);
        assert_eq!(kinds(&watcher.look(report(3.0), false)), ["member-joined", "healed"]);
        // What left with both is not to be written over.
        let news = watcher.look(lost, true);
        assert!(news[0].what.contains("may be nowhere else") && news[0].next.contains("do not put it back"), "{news:?}");
        assert_eq!(kinds(&watcher.look(report(3.0), false)), ["member-joined", "healed"]);
        let mut stalled = report(4.0);
        stalled.stalled = true;
        stalled.volumes[0].serving = false;
        assert_eq!(kinds(&watcher.look(stalled, false)), ["stalled", "volume-not-served"]);
        assert_eq!(kinds(&watcher.look(report(5.0), false)), ["stalled-no-more"]);
    }

    #[test]
    fn what_the_budget_of_drive_writes_holds_back_is_told_when_it_begins_changes_and_ends() {
        let mut watcher = Watcher::default();
        let mut held = |seconds: f64, reads: bool, writes: bool| {
            let mut report = report(seconds);
            report.endurance = Endurance { drive_writes_per_day: 0.5, reads_held_back: reads, writes_held_back: writes };
            watcher.look(report, false)
        };
        assert_eq!(kinds(&held(1.0, false, false)), [""; 0]);
        let reads = held(2.0, true, false);
        assert_eq!(kinds(&reads), ["held-back"]);
        assert!(reads[0].what.contains("pool p") && reads[0].what.contains("0.5") && reads[0].what.contains("not all cached"));
        assert!(reads[0].next.contains("drive_writes_per_day"), "{reads:?}");
        assert_eq!(kinds(&held(3.0, true, false)), [""; 0]);
        let writes = held(4.0, true, true);
        assert!(kinds(&writes) == ["held-back"] && writes[0].what.contains("goes to the disks"), "{writes:?}");
        assert_eq!(kinds(&held(5.0, true, false)), ["held-back"]);
        assert_eq!(kinds(&held(6.0, false, false)), ["held-back-no-more"]);
    }

    #[test]
    fn what_goes_on_is_told_again_only_after_it_rested() {
        let mut watcher = Watcher::default();
        let full = |seconds: f64, count: u64| {
            let mut report = report(seconds);
            report.volumes[0].requests.write_bypass[0].1.requests = count;
            report
        };
        let told: Vec<usize> = [(1.0, 0), (2.0, 5), (3.0, 9), (4.0, 9), (500.0, 10), (2000.0, 11)]
            .map(|(seconds, count)| kinds(&watcher.look(full(seconds, count), false)).len())
            .into();
        assert_eq!(told, [0, 1, 0, 0, 0, 1]);
        let mut bad = full(2001.0, 11);
        (bad.members[1].damaged, bad.volumes[0].requests.errors) = (3, 1);
        bad.volumes[0].disk.failed = 2;
        let told = watcher.look(bad, false);
        assert_eq!(kinds(&told), ["requests-failed", "disk-failing", "member-damaged"]);
        assert!(told[2].what.starts_with("Cache device 1 (/dev/1) holds damaged data: 3 copies"), "{told:?}");
    }
}
