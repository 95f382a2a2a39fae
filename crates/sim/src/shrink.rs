//! Makes a failing run short: fewer crashes, fewer features, fewer clients, fewer requests; and tells what is left in
//! words.
//!
//! A run that lacks a request takes other turns after it, as times and crashes are drawn anew. So a shorter plan is tried
//! with several chances (salts) before it is given up: as the runs grow short, hundreds of them cost nothing.

use crate::sickness::Sickness;
use crate::swarm::catch_panics;
use crate::torture::{Outcome, Plan, tell_plan};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

/// What is left of a run that was made shorter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Another chance for everything but what the requests are.
    pub salt: u64,
    /// Lives of the daemon, each with the crash that ends it; all where it is not said.
    pub lives: Option<BTreeSet<u64>>,
    /// Requests, by life and number; all where it is not said.
    pub requests: Option<BTreeSet<(u64, u64)>>,
}

impl Kept {
    /// Whether a life is kept.
    #[must_use]
    pub fn has_life(&self, life: u64) -> bool {
        self.lives.as_ref().is_none_or(|l| l.contains(&life))
    }

    /// The first request of a life that is kept, from a number on.
    #[must_use]
    pub fn next_request(&self, life: u64, from: u64) -> Option<u64> {
        match &self.requests {
            Some(r) => r.range((life, from)..(life + 1, 0)).next().map(|(_, n)| *n),
            None => Some(from),
        }
    }
}

/// How one plan ended.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// What went wrong.
    pub what: Option<String>,
    /// Requests drawn in each life.
    pub drawn: Vec<u64>,
    /// Device operations, for how long it took.
    pub operations: u64,
}

/// A short failing plan.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// It.
    pub plan: Plan,
    /// What goes wrong.
    pub what: String,
    /// Requests and crashes before.
    pub before: (usize, usize),
    /// Requests and crashes now.
    pub after: (usize, usize),
    /// Runs that it took.
    pub runs: u64,
}

/// Device operations that the trials of one shorter plan may take together.
const EFFORT: u64 = 20_000;

/// Runs a plan.
#[must_use]
pub fn try_plan(plan: &Plan) -> Trial {
    let o = catch_panics(|| tell_plan(plan, None));
    Trial { what: o.violation, drawn: o.drawn, operations: o.totals.operations }
}

/// What kind of failure it is: its first words, without numbers. A shorter plan that fails in another way is another story.
fn kind(what: &str) -> String {
    let words = what.split(|c: char| !c.is_alphabetic()).filter(|w| !w.is_empty());
    words.take(3).collect::<Vec<_>>().join(" ")
}

struct Shrinker<'a> {
    trial: &'a mut dyn FnMut(&Plan) -> Trial,
    kind: String,
    best: Plan,
    what: String,
    operations: u64,
    runs: u64,
}

/// Makes a failing plan short. `trial` runs a plan; `progress` is told each shorter one. `None` if the plan does not fail.
pub fn shrink(plan: &Plan, trial: &mut dyn FnMut(&Plan) -> Trial, progress: &mut dyn FnMut(&Plan)) -> Option<Shrunk> {
    let first = trial(plan);
    let what = first.what?;
    let requests: BTreeSet<(u64, u64)> = (0..).zip(&first.drawn).flat_map(|(life, n)| (0..*n).map(move |r| (life, r))).collect();
    let lives: BTreeSet<u64> = (0..plan.crashes).collect();
    let mut best = plan.clone();
    best.kept = Kept { salt: plan.kept.salt, lives: Some(lives), requests: Some(requests) };
    let before = sizes(&best);
    let mut s = Shrinker { trial, kind: kind(&what), best: best.clone(), what, operations: first.operations.max(1), runs: 1 };
    // Requests that were never drawn are none; still it has to be seen that the list stands for the run.
    if !s.accept(&best, progress) {
        s.best = plan.clone();
    }
    for _ in 0..4 {
        let was = (s.best.kept.clone(), s.best.operations);
        s.drop_lives(progress);
        s.drop_features(progress);
        s.drop_requests(progress);
        if was == (s.best.kept.clone(), s.best.operations) {
            break;
        }
    }
    Some(Shrunk { before, after: sizes(&s.best), plan: s.best, what: s.what, runs: s.runs })
}

/// Requests and crashes of a plan.
fn sizes(plan: &Plan) -> (usize, usize) {
    let k = &plan.kept;
    (k.requests.as_ref().map_or(0, BTreeSet::len), k.lives.as_ref().map_or(plan.crashes as usize, BTreeSet::len))
}

impl Shrinker<'_> {
    /// Tries a plan with one chance after the other; the first that fails in the same way is the best from now on.
    fn accept(&mut self, plan: &Plan, progress: &mut dyn FnMut(&Plan)) -> bool {
        let tries = (EFFORT / self.operations).clamp(4, 150);
        for n in 0..tries {
            let mut plan = plan.clone();
            plan.kept.salt = plan.kept.salt.wrapping_add(n.wrapping_mul(0xa076_1d64_78bd_642f));
            let t = (self.trial)(&plan);
            self.runs += 1;
            let Some(what) = t.what.filter(|w| kind(w) == self.kind) else { continue };
            // What was never drawn is not needed.
            if let Some(r) = &mut plan.kept.requests {
                r.retain(|(life, n)| t.drawn.get(*life as usize).is_some_and(|drawn| n < drawn));
            }
            (self.best, self.what, self.operations) = (plan, what, t.operations.max(1));
            progress(&self.best);
            return true;
        }
        false
    }

    fn drop_lives(&mut self, progress: &mut dyn FnMut(&Plan)) {
        for life in (0..=self.best.crashes).rev() {
            let mut plan = self.best.clone();
            let mut shorter = plan.kept.lives.as_mut().is_some_and(|l| l.remove(&life));
            if let Some(r) = &mut plan.kept.requests {
                let had = r.len();
                r.retain(|(l, _)| *l != life);
                shorter |= r.len() < had;
            }
            if shorter {
                self.accept(&plan, progress);
            }
        }
    }

    fn drop_features(&mut self, progress: &mut dyn FnMut(&Plan)) {
        let simpler: &[fn(&mut Plan)] = &[
            |p| p.crash_in_recovery = 0,
            |p| p.switch_modes = false,
            |p| p.scrubs = false,
            |p| p.preloads = false,
            |p| p.grows = false,
            |p| p.rot = 0,
            |p| p.flaky = 0,
            |p| p.slow = false,
            |p| p.bad_slots = false,
            |p| p.fails_once = false,
            |p| p.blind_starts = false,
            |p| p.disk_late = false,
            |p| p.exchanges = false,
            |p| p.disk_errors = 0,
            |p| p.sickness = Sickness::default(),
            |p| p.hasty = false,
            |p| p.witness_away = false,
            |p| p.swap_members = false,
            |p| p.lose_with_crash = false,
            |p| (p.lose_member, p.swap_members, p.lose_with_crash, p.witness_away) = (false, false, false, false),
            |p| p.protected = false,
            |p| p.power_percent = 0,
            |p| p.power_percent = if p.power_percent > 0 { 100 } else { 0 },
            |p| p.phase = 0,
            |p| p.unit = 512,
            |p| p.members = p.members.min(2),
            |p| p.clients = 1,
            |p| p.clients = p.clients.min(2),
            |p| p.hot_sectors = p.hot_sectors.min(256),
            |p| p.longest = p.longest.min(8),
            |p| p.longest = p.longest.min(32),
            |p| p.member_bytes = p.member_bytes.min((2 << 20) + 12 * p.segment_bytes),
            |p| p.operations = (p.operations / 4).max(2),
            |p| p.operations = (p.operations / 2).max(2),
        ];
        for change in simpler {
            let mut plan = self.best.clone();
            change(&mut plan);
            if format!("{plan:?}") != format!("{:?}", self.best) {
                self.accept(&plan, progress);
            }
        }
    }

    /// Leaves out requests: halves, then quarters, and at last each one.
    fn drop_requests(&mut self, progress: &mut dyn FnMut(&Plan)) {
        let mut size = self.best.kept.requests.as_ref().map_or(0, BTreeSet::len).div_ceil(2);
        while size > 0 {
            let mut at = 0;
            loop {
                let all: Vec<(u64, u64)> = self.best.kept.requests.iter().flatten().copied().collect();
                if at >= all.len() {
                    break;
                }
                let end = (at + size).min(all.len());
                let mut plan = self.best.clone();
                plan.kept.requests = Some(all[..at].iter().chain(&all[end..]).copied().collect());
                if !self.accept(&plan, progress) {
                    at = end;
                }
            }
            size /= 2;
        }
    }
}

/// What happens in a plan, in words: the requests that meet the sector that went wrong, the crashes, and what was found.
#[must_use]
pub fn story(plan: &Plan) -> Story {
    let lines: Rc<RefCell<Vec<String>>> = Rc::default();
    let told = lines.clone();
    let o: Outcome = catch_panics(|| tell_plan(plan, Some(Box::new(move |l| told.borrow_mut().push(l)))));
    let what = o.violation.unwrap_or_else(|| "nothing went wrong".into());
    let lines = lines.borrow();
    Story { lines: in_words(&lines, sector_of(&what)), what }
}

/// A short run, in words.
#[derive(Clone, Debug)]
pub struct Story {
    /// What happened, in order.
    pub lines: Vec<String>,
    /// What went wrong.
    pub what: String,
}

/// The sector that a violation names.
fn sector_of(what: &str) -> Option<u64> {
    let (_, rest) = what.split_once("sector ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// From all that the world tells: the requests that meet a sector, each with its end, and what befell the devices.
fn in_words(lines: &[String], sector: Option<u64>) -> Vec<String> {
    let split = |l: &str| l.split_once(" ms  ").map(|(t, what)| (t.trim().to_string(), what.to_string()));
    let all: Vec<(String, String)> = lines.iter().filter_map(|l| split(l)).collect();
    let mut out = Vec::new();
    let mut elsewhere = 0;
    for (n, (time, what)) in all.iter().enumerate() {
        // Device operations are told by --trace.
        if what.starts_with(' ') {
            continue;
        }
        let Some((number, asked)) = what.strip_prefix("request ").and_then(|w| w.split_once(": ")) else {
            if !what.starts_with("request ") {
                out.push(format!("{time} ms: {what}"));
            }
            continue;
        };
        if !meets(asked, sector) {
            elsewhere += 1;
            continue;
        }
        let end = format!("request {number} ended ");
        let ended = all[n..].iter().take_while(|(_, w)| w != "POWER CUT" && !w.starts_with("THE DAEMON IS KILLED"));
        let how = ended.filter_map(|(t, w)| w.strip_prefix(&end).map(|how| (t, how))).next();
        out.push(match how {
            Some((t, "well")) if asked.starts_with("read") => format!("{time} ms: {asked}; answered at {t} ms"),
            Some((t, "well")) => format!("{time} ms: {asked}; acknowledged at {t} ms"),
            Some((t, how)) => format!("{time} ms: {asked}; ended {how} at {t} ms"),
            None => format!("{time} ms: {asked}; never answered"),
        });
    }
    if elsewhere > 0 {
        out.push(format!("({elsewhere} more requests, none of which touches that sector)"));
    }
    out
}

/// Whether a request, in the world's words, touches a sector; a flush touches all.
fn meets(asked: &str, sector: Option<u64>) -> bool {
    let Some(s) = sector else { return true };
    let range = asked.split(", ").next().and_then(|a| a.rsplit_once(" +"));
    let Some((before, count)) = range else { return true };
    let start = before.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok());
    match (start, count.parse::<u64>()) {
        (Some(start), Ok(count)) => (start..start + count).contains(&s),
        _ => true,
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for l in &self.lines {
            writeln!(f, "{l}")?;
        }
        write!(f, "then: {}", self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan fails if these requests are in it, and at least two lives.
    fn artificial(plan: &Plan) -> Trial {
        let needed = [(1, 17), (2, 4), (2, 5)];
        let has = |r: &(u64, u64)| plan.kept.requests.as_ref().is_none_or(|all| all.contains(r));
        let fails = needed.iter().all(has) && plan.kept.has_life(1) && plan.kept.has_life(2) && plan.clients >= 2;
        Trial { what: fails.then(|| "sector 9 read as zeroes".into()), drawn: vec![40, 40, 40, 40], operations: 1000 }
    }

    #[test]
    fn what_a_failure_needs_is_kept_and_all_else_goes() {
        let plan = Plan { crashes: 3, clients: 12, ..Plan::of(1) };
        let s = shrink(&plan, &mut artificial, &mut |_| ()).expect("it fails");
        assert_eq!(s.after, (3, 2));
        assert_eq!(s.plan.clients, 2);
        assert!(artificial(&s.plan).what.is_some());
    }

    #[test]
    fn a_plan_that_passes_is_not_shrunk() {
        let pass = |_: &Plan| Trial::default();
        assert!(shrink(&Plan::of(1), &mut { pass }, &mut |_| ()).is_none());
    }

    #[test]
    fn a_failure_of_another_kind_is_another_story() {
        let mut other = |p: &Plan| {
            let all = p.kept.requests.as_ref().is_none_or(|r| r.len() == 10);
            Trial { what: Some(if all { "a read is wrong" } else { "it does not end" }.into()), drawn: vec![10], operations: 1 }
        };
        let plan = Plan { crashes: 1, ..Plan::of(1) };
        let s = shrink(&plan, &mut other, &mut |_| ()).expect("it fails");
        assert_eq!(s.after.0, 10);
    }

    #[test]
    fn a_run_with_all_its_requests_listed_is_the_run_itself() {
        let plan = Plan { crashes: 2, operations: 100, lose_member: false, ..Plan::of(5) };
        let whole = tell_plan(&plan, None);
        assert_eq!(whole.violation, None);
        let mut listed = plan.clone();
        listed.kept.requests = Some((0..).zip(&whole.drawn).flat_map(|(life, n)| (0..*n).map(move |r| (life, r))).collect());
        listed.kept.lives = Some((0..plan.crashes).collect());
        assert_eq!(tell_plan(&listed, None).totals.requests, whole.totals.requests);
    }

    #[test]
    fn a_story_tells_the_requests_that_meet_the_sector_and_the_crashes() {
        let lines: Vec<String> = [
            "       1.000 ms  request 1: write 1: 8 +8, durable",
            "       1.100 ms    7 on cache device 0: Write 1666 +9",
            "       1.200 ms  request 2: read 64 +8",
            "       1.500 ms  request 1 ended well",
            "       1.600 ms  request 3: write zeroes 0 +16",
            "       2.000 ms  POWER CUT",
        ]
        .map(String::from)
        .to_vec();
        let told = in_words(&lines, sector_of("sector 9 read as zeroes, allowed were write 1 (sector 1)"));
        assert_eq!(
            told,
            [
                "1.000 ms: write 1: 8 +8, durable; acknowledged at 1.500 ms",
                "1.600 ms: write zeroes 0 +16; never answered",
                "2.000 ms: POWER CUT",
                "(1 more requests, none of which touches that sector)",
            ]
        );
    }
}
