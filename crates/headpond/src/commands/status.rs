//! `headpond status`: one screen.

use std::fmt::Write;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use headpond_host::control::{AT_ONCE, CallError};
use headpond_host::report::{Member, Report, Volume, cache_device};

use super::{Which, deadline, print, share};
use crate::size;

/// How often it is looked whether a daemon is up.
const LOOK: Duration = Duration::from_millis(200);
/// How long one that is there has for its answer, though the time that was given is over.
const LEAST: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

#[derive(Args)]
pub struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Wait so long at most for a daemon that is starting, as in 30s or 5m
    #[arg(long, value_parser = deadline, value_name = "TIME")]
    wait: Option<Duration>,
    #[command(flatten)]
    which: Which,
}

impl Status {
    pub fn run(self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let may_come = |error: &anyhow::Error| {
            matches!(error.downcast_ref(), Some(CallError::NotRunning(_) | CallError::NoneRuns(_) | CallError::Silent { .. }))
        };
        let answer = loop {
            let left = self.wait.map(|wait| wait.saturating_sub(begun.elapsed()));
            let limit = left.map_or(AT_ONCE, |left| left.clamp(LEAST, AT_ONCE));
            match self.which.status_within(limit) {
                Err(error) if may_come(&error) && left.is_some_and(|left| !left.is_zero()) => thread::sleep(LOOK),
                answer => break answer?,
            }
        };
        let report: Report = serde_json::from_value(answer.clone())?;
        print(self.json, &answer, screen(&report))
    }
}

fn screen(report: &Report) -> String {
    let mut text = String::new();
    let state = match (report.stalled, report.degraded) {
        (true, _) => "STALLED",
        (_, true) => "DEGRADED",
        _ => "healthy",
    };
    let used = report.segments.saturating_sub(report.segments_free);
    let _ = writeln!(text, "pool {}  {state}  epoch {}  identity {}", report.pool, report.epoch, report.id);
    let _ = writeln!(
        text,
        "  {} of {} segments of {} in use; {} % of the room for dirty data; {} copies\n",
        used,
        report.segments,
        size::show(report.segment_bytes),
        report.dirty_percent,
        report.copies
    );
    if let Some(loading) = &report.loading {
        let _ = writeln!(
            text,
            "  {} of {} of the map are read since the start; until all of it is, what is cached and dirty is at least what is shown\n",
            size::show(loading.read_bytes),
            size::show(loading.bytes)
        );
    }
    let mut rows = vec![row(["cache device", "size", "state", "where"])];
    rows.extend(report.members.iter().map(|member| {
        let path = member.path.as_deref().unwrap_or("-");
        row([&member.number.to_string(), &size::show(member.bytes), &member.state, path])
    }));
    text += &table(&rows);
    text.push('\n');
    let mut rows = vec![row(["volume", "mode", "size", "cached", "dirty", "hits", "where", "backing device"])];
    rows.extend(report.volumes.iter().map(volume));
    match report.volumes.is_empty() {
        true => text.push_str("no volumes; `headpond attach NAME DEVICE` makes one\n"),
        false => text += &table(&rows),
    }
    for volume in report.volumes.iter().filter(|volume| volume.pinned_bytes > 0) {
        let _ = writeln!(text, "\npinned: {} of volume {}", size::show(volume.pinned_bytes), volume.name);
    }
    for volume in report.volumes.iter().filter(|volume| volume.share.is_set()) {
        let _ = writeln!(text, "\nshare of volume {}: {}", volume.name, share::told(&volume.share));
    }
    if report.set_aside_bytes > 0 {
        let kept: u64 = report.volumes.iter().map(|volume| volume.kept_bytes).sum();
        let _ = writeln!(
            text,
            "\nset aside for volumes without a backing device: {}, of which {} hold data{}",
            size::show(report.set_aside_bytes),
            size::show(kept),
            if report.copies > 1 { format!("; each byte on {} cache devices", report.copies) } else { String::new() }
        );
    }
    if let Some(endurance) = endurance(report) {
        let _ = writeln!(text, "\nendurance: {endurance}");
    }
    for member in report.members.iter().filter(|member| member.damaged > 0 && member.state != "out") {
        let (device, copies) = (cache_device(member.number, member.path.as_deref()), member.damaged);
        let _ = writeln!(
            text,
            "\ndamaged: {copies} copies on {device} since the start; if it comes again, that device rots: replace it"
        );
    }
    if let Some(scrub) = scrub(report) {
        let _ = writeln!(text, "\nscrub: {scrub}");
    }
    for advice in &report.advice {
        let _ = write!(text, "\n! {}\n  {}", advice.wrong, advice.next);
    }
    text.truncate(text.trim_end().len());
    text
}

/// The budget of drive writes, and what of it was used; `None` where there is none.
fn endurance(report: &Report) -> Option<String> {
    let endurance = &report.endurance;
    if endurance.drive_writes_per_day == 0.0 {
        return None;
    }
    let of = |member: &Member| {
        let (written, budget) = (size::show(member.written_day_bytes), size::show(member.budget_day_bytes));
        format!("cache device {} was written {written} of {budget}", member.number)
    };
    let members: Vec<String> = report.members.iter().filter(|member| member.state != "out").map(of).collect();
    let held = match (endurance.reads_held_back, endurance.writes_held_back) {
        (_, true) => "HELD BACK: a part of the new writes goes to the disk, and what reads miss is not cached",
        (true, false) => "HELD BACK: what reads miss is not all cached",
        (false, false) => "nothing is held back",
    };
    Some(format!("{} drive writes per day; in the last day {}; {held}", endurance.drive_writes_per_day, members.join(", ")))
}

/// The one under way, or the last one; `None` where none was ever run here.
fn scrub(report: &Report) -> Option<String> {
    let scrub = &report.scrub;
    let damaged = match scrub.damaged {
        0 => "nothing damaged".into(),
        some => format!(
            "{some} copies damaged ({}), {} repaired, {} let go, {} lost",
            scrub.damaged_places(),
            scrub.repaired,
            scrub.dropped,
            scrub.lost
        ),
    };
    if scrub.running {
        return Some(format!("under way, {} of {} segments read; {damaged}", scrub.segments_read, scrub.segments));
    }
    let ended = scrub.ended.map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(at))?;
    let ago = match SystemTime::now().duration_since(ended) {
        Ok(since) => ago(since),
        // Clocks are put right by moments all the time.
        Err(ahead) if ahead.duration() < HOUR => ago(Duration::ZERO),
        Err(_) => "at a time that is not known, as the clock was set back since".into(),
    };
    Some(format!("the last one ended {ago}; {damaged}"))
}

fn ago(since: Duration) -> String {
    match since.as_secs() / HOUR.as_secs() {
        0 => "less than an hour ago".into(),
        hours @ 1..48 => format!("{hours} hours ago"),
        hours => format!("{} days ago", hours / 24),
    }
}

fn volume(volume: &Volume) -> Vec<String> {
    let hits = volume.hit_percent().map_or("-".into(), |percent| format!("{percent} %"));
    let place = volume.link.as_deref().or(volume.place.as_deref()).unwrap_or(if volume.serving { "-" } else { "NOT SERVED" });
    row([
        &volume.name,
        &volume.mode,
        &size::show(volume.bytes),
        &size::show(volume.cached_bytes),
        &if volume.without_disk { "-".into() } else { size::show(volume.dirty_bytes) },
        &hits,
        place,
        match (&volume.backing, volume.without_disk) {
            (_, true) => "none: on the cache devices alone",
            (Some(backing), _) => backing,
            (None, _) => &volume.identity,
        },
    ])
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

/// Rows of cells, in columns as wide as their widest cell.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use headpond_host::report::Loading;
    use serde_json::json;

    fn report() -> Report {
        serde_json::from_value(json!({
            "uptime_seconds": 1.0, "pool": "p", "id": "00", "epoch": 1, "copies": 2, "degraded": false, "stalled": false,
            "segment_bytes": 1, "segments": 1, "segments_free": 1, "dirty_percent": 12, "lacking_bytes": 0, "members": [],
            "volumes": [], "member_bytes": 0, "checkpoints": 0, "repaired": 0, "advice": []
        }))
        .unwrap()
    }

    #[test]
    fn a_map_that_is_not_all_read_is_told_with_what_that_means_for_the_figures() {
        let mut report = report();
        assert!(!screen(&report).contains("of the map"));
        report.loading = Some(Loading { read_bytes: 3 << 30, bytes: 16 << 30 });
        let told = "3 GiB of 16 GiB of the map are read since the start; until all of it is, what is cached and dirty is at least what is shown";
        assert!(screen(&report).contains(told), "{}", screen(&report));
    }

    /// It was told to have ended less than an hour ago, for as long as the clock had been ahead. Found by reading.
    #[test]
    fn a_scrub_that_ended_while_the_clock_was_ahead_is_not_told_to_have_just_ended() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let told = |ended: u64| {
            let mut report = report();
            report.scrub.ended = Some(ended);
            screen(&report)
        };
        assert!(
            told(now + 365 * 86_400).contains("the last one ended at a time that is not known, as the clock was set back since")
        );
        for just in [now - 60, now + 60] {
            assert!(told(just).contains("the last one ended less than an hour ago"), "{}", told(just));
        }
        assert!(told(now - 5 * 3600 - 60).contains("5 hours ago") && told(now - 72 * 3600 - 60).contains("3 days ago"));
    }
}
