//! The exhaustive small world: all short sequences of operations on two cache devices and a volume of 16 blocks, a crash
//! at every moment of each, and after each crash every part of the unflushed writes that is looked at here.
//!
//! Where the swarm goes far at random, this leaves nothing out in a small place. A state (media and what may be read of
//! them) is recovered once, however many ways lead to it.

mod cut;
mod sequence;
mod small;

pub use cut::Crash;
pub use sequence::{ALPHABET, Joint, Op, Sequence};
pub use small::Narrator;

use crate::device::SimDevice;
use crate::oracle::Oracle;
use crate::swarm::catch_panics;
use crate::torture::Outcome;
use crate::world::World;
use cut::Moment;
use headpond_engine::Device;
use small::{Recovered, Small, Took, recover, watch_start};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Cache devices.
const MEMBERS: u8 = 2;
/// Blocks of the volume.
const BLOCKS: u64 = 16;
/// Sectors of the volume.
const SECTORS: u64 = BLOCKS * 8;

/// One case: a sequence, and the crash in it, if there is one, and one in the start after that.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Case {
    /// The operations.
    pub sequence: Sequence,
    /// After how many happenings, since the last operation or the start began, and what the crash left.
    pub crashes: Vec<(u32, Crash)>,
}

/// What to search.
#[derive(Clone, Debug)]
pub struct Search {
    /// What every sequence begins with: operations that do not count.
    pub after: Sequence,
    /// Operations of the longest sequences.
    pub depth: usize,
    /// An operation begins beside the one before at each of its moments, and overtakes what is in flight or does not; else at its first, at its end and after it.
    pub interleave: bool,
    /// Each start after a crash is cut by another one, at each of its moments, with everything unflushed lost or kept.
    pub in_recovery: bool,
    /// Sequences before this one are only gone through, without crashes.
    pub from: Option<Sequence>,
    /// Threads.
    pub threads: usize,
}

/// What was searched.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Operations of the sequences that are run now.
    pub depth: usize,
    /// Sequences of this length, and how many of them are done.
    pub of: usize,
    /// How many of them are done.
    pub done: usize,
    /// Sequences run.
    pub sequences: u64,
    /// Moments at which crashes were made.
    pub points: u64,
    /// Crashes looked at.
    pub crashes: u64,
    /// States among them that were not seen before: each was recovered.
    pub states: u64,
    /// Starts after a crash, second ones included.
    pub recoveries: u64,
    /// Times that a lost cache device was back alone and refused.
    pub refused: u64,
    /// What failed: the case, and what must not happen and did.
    pub failures: Vec<(Case, String)>,
}

struct Shared {
    totals: Mutex<Totals>,
    /// States recovered, and states after the second power cut.
    seen: Mutex<(HashSet<u64>, HashSet<u64>)>,
}

impl Search {
    /// Goes through all of it; the first sequence that fails ends it. `progress` is called after each sequence.
    pub fn run(&self, progress: impl Fn(&Totals) + Sync) -> Totals {
        let shared = Shared { totals: Mutex::default(), seen: Mutex::default() };
        let mut level = children(&self.after, None, false);
        let mut begun = self.from.is_none();
        for depth in 1..=self.depth {
            let first = match &self.from {
                Some(f) if !begun => level.iter().position(|s| s == f),
                _ => Some(0),
            };
            begun |= first.is_some();
            // Where the first sequence is not among these, they are passed all.
            let first = first.unwrap_or(level.len());
            {
                let mut t = locked(&shared.totals);
                (t.depth, t.of, t.done) = (depth, level.len(), 0);
            }
            let results: Mutex<Vec<(usize, Took)>> = Mutex::default();
            let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                for _ in 0..self.threads.max(1) {
                    scope.spawn(|| {
                        while !stop.load(Ordering::Relaxed) {
                            let n = next.fetch_add(1, Ordering::Relaxed);
                            let Some(sequence) = level.get(n) else { break };
                            let found = try_sequence(sequence, (n >= first).then_some(self), &shared);
                            let mut totals = locked(&shared.totals);
                            (totals.done, totals.sequences) = (totals.done + 1, totals.sequences + 1);
                            match found {
                                Ok(took) => locked(&results).push((n, took)),
                                Err(failure) => {
                                    totals.failures.push(failure);
                                    stop.store(true, Ordering::Relaxed);
                                }
                            }
                            progress(&totals);
                        }
                    });
                }
            });
            if !locked(&shared.totals).failures.is_empty() {
                break;
            }
            let mut took = results.into_inner().unwrap_or_else(PoisonError::into_inner);
            took.sort_by_key(|t| t.0);
            level = took.into_iter().flat_map(|(n, took)| children(&level[n], Some(took), self.interleave)).collect();
        }
        let mut totals = shared.totals.into_inner().unwrap_or_else(PoisonError::into_inner);
        totals.failures.sort();
        totals
    }
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sequences that go on from one.
fn children(of: &Sequence, took: Option<Took>, interleave: bool) -> Vec<Sequence> {
    let mut joints = vec![Joint::Rest];
    if let Some(t) = took {
        if interleave {
            joints.extend((0..t.rest).map(Joint::After));
            joints.extend((1..t.rest).map(Joint::Held));
        } else {
            joints.extend([0, t.ended].into_iter().filter(|k| *k < t.rest).map(Joint::After));
            joints.dedup();
        }
    }
    let all = joints.iter().flat_map(|j| ALPHABET.iter().map(|op| of.and(*j, *op)));
    all.filter(Sequence::is_worth_it).collect()
}

/// Runs a sequence, with crashes if they are wanted; the case that fails.
fn try_sequence(sequence: &Sequence, crashes: Option<&Search>, shared: &Shared) -> Result<Took, (Case, String)> {
    let mut case = Case { sequence: sequence.clone(), crashes: Vec::new() };
    let mut result = Err(String::new());
    let outcome = catch_panics(|| {
        result = run_all(&mut case, crashes, shared);
        Outcome::default()
    });
    if let Some(panic) = outcome.violation {
        result = Err(panic);
    }
    result.map_err(|what| (case, what))
}

/// Runs a sequence; `case` is what is being tried, for whoever has to say what failed.
fn run_all(case: &mut Case, crashes: Option<&Search>, shared: &Shared) -> Result<Took, String> {
    let sequence = case.sequence.clone();
    let mut small = Small::new(None)?;
    let took = small.run(&sequence, |world, point| match crashes {
        Some(search) => crash_all(case, world, point, search.in_recovery, shared),
        None => Ok(()),
    })?;
    case.crashes.clear();
    small.end()?;
    Ok(took)
}

/// Every crash at this moment, of a sequence or of the start after a first crash.
fn crash_all(case: &mut Case, world: &World, point: u32, in_recovery: bool, shared: &Shared) -> Result<(), String> {
    let moment = Moment::of(&world.devices, world.in_flight());
    let Some(oracle) = world.oracles.get(&0) else { return Ok(()) };
    let prints = [false, true].map(|power| after(oracle, power).fingerprint());
    let depth = case.crashes.len();
    let mut all = moment.crashes();
    if depth > 0 {
        all.retain(|c| c.is_extreme());
    }
    {
        let mut t = locked(&shared.totals);
        (t.points, t.crashes) = (t.points + 1, t.crashes + all.len() as u64);
    }
    for crash in all {
        let power = crash.power.is_some();
        let print = moment.fingerprint(&crash).rotate_left(32) ^ prints[usize::from(power)];
        if !locked(&shared.seen).0.insert(print) {
            continue;
        }
        let devices = moment.after(&crash);
        case.crashes.push((point, crash.clone()));
        let known = |print| !locked(&shared.seen).1.insert(print);
        let recovered = recover(devices.clone(), after(oracle, power), &crash, known, None)?;
        {
            let mut t = locked(&shared.totals);
            t.states += 1;
            match recovered {
                Recovered::Twice => t.recoveries += 2,
                Recovered::Once => t.recoveries += 1,
                Recovered::Refused => t.refused += 1,
            }
        }
        if in_recovery && depth == 0 && recovered != Recovered::Refused {
            watch_start(devices, after(oracle, power), None, |world, point| crash_all(case, world, point, false, shared))?;
        }
        // Between crashes it is the sequence or the start itself that may fail.
        case.crashes.truncate(depth);
    }
    Ok(())
}

/// What may be read after a crash.
fn after(oracle: &Oracle, power: bool) -> Oracle {
    let mut o = oracle.clone();
    if power {
        o.power_cut();
    } else {
        o.killed();
    }
    o
}

/// Runs one case alone and tells its story.
///
/// # Errors
/// What must not happen and did.
pub fn tell(case: &Case, narrator: fn() -> Narrator) -> Result<(), String> {
    let mut result = Ok(());
    let outcome = catch_panics(|| {
        result = tell_uncaught(case, narrator);
        Outcome::default()
    });
    outcome.violation.map_or(result, Err)
}

fn tell_uncaught(case: &Case, narrator: fn() -> Narrator) -> Result<(), String> {
    let mut small = Small::new(Some(narrator()))?;
    let Some((point, crash)) = case.crashes.first() else {
        small.run(&case.sequence, |_, _| Ok(()))?;
        return small.end();
    };
    let mut left = None;
    // The rest of the run is another story.
    let told = small.run(&case.sequence, |world, at| cut_at(world, at, *point, crash, &mut left, narrator));
    let mut last = crash;
    let (mut devices, mut oracle) = match left {
        Some(l) => l?,
        None => return told.and(Err(format!("the sequence is over before {point} things have happened in its last operation"))),
    };
    for (point, crash) in &case.crashes[1..] {
        let mut left = None;
        let told =
            watch_start(devices, oracle, Some(narrator()), |world, at| cut_at(world, at, *point, crash, &mut left, narrator));
        (devices, oracle) = match left {
            Some(l) => l?,
            None => return told.and(Err(format!("the start is over before {point} things have happened in it"))),
        };
        last = crash;
    }
    recover(devices, oracle, last, |_| false, Some(narrator())).map(drop)
}

/// What a crash leaves.
type Left = (BTreeMap<Device, SimDevice>, Oracle);

/// Makes a crash when its moment has come, and says what could be lost in it; then what was running is over.
fn cut_at(
    world: &World,
    at: u32,
    point: u32,
    crash: &Crash,
    left: &mut Option<Result<Left, String>>,
    narrator: fn() -> Narrator,
) -> Result<(), String> {
    if at != point {
        return Ok(());
    }
    let mut say = narrator();
    say(format!("CRASH {crash}"));
    let moment = Moment::of(&world.devices, world.in_flight());
    moment.describe().into_iter().for_each(&mut say);
    *left = Some(moment.fits(crash).and_then(|()| {
        let oracle = world.oracles.get(&0).ok_or("there is no oracle")?;
        Ok((moment.after(crash), after(oracle, crash.power.is_some())))
    }));
    Err(String::new())
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.sequence)?;
        self.crashes.iter().try_for_each(|(point, crash)| write!(f, "@{point}:{crash}"))
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mut words = s.split('@');
        let sequence = words.next().unwrap_or_default().parse()?;
        let crash = |word: &str| {
            let (point, crash) = word.split_once(':').ok_or("a crash is written POINT:WHAT")?;
            let point = point.parse().map_err(|_| format!("\"{point}\" is not a number"))?;
            Ok((point, crash.parse()?))
        };
        Ok(Self { sequence, crashes: words.map(crash).collect::<Result<_, String>>()? })
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} sequences of up to {} operations, {} moments, {} crashes: {} distinct states, {} recoveries, {} starts refused",
            self.sequences, self.depth, self.points, self.crashes, self.states, self.recoveries, self.refused
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(depth: usize) -> Totals {
        Search { after: Sequence::default(), depth, interleave: false, in_recovery: false, from: None, threads: 1 }.run(|_| ())
    }

    #[test]
    fn every_crash_of_every_single_operation_is_survived() {
        let t = search(1);
        assert_eq!(t.failures, []);
        assert!(t.states > 100 && t.recoveries > t.states, "{t}");
    }

    #[test]
    fn a_search_is_the_same_twice() {
        assert_eq!(search(1).to_string(), search(1).to_string());
    }

    #[test]
    fn each_case_is_written_down_so_that_it_can_be_replayed() {
        let mut small = Small::new(None).expect("a new pool is at rest");
        let sequence: Sequence = "write:0+8,lose:1".parse().expect("these are operations");
        let mut cases = Vec::new();
        let at = |world: &World, point| {
            let crashes = Moment::of(&world.devices, world.in_flight()).crashes();
            let case = |c: Crash| Case { sequence: sequence.clone(), crashes: vec![(point, c.clone()), (7, c)] };
            cases.extend(crashes.into_iter().map(case));
            Ok(())
        };
        small.run(&sequence, at).expect("nothing goes wrong");
        for case in cases {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
    }
}
