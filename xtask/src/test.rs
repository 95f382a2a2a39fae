//! All that must hold, in order.
//!
//! Everything is built in the release profile and for all crates together, as this program is: nothing is built twice.

use crate::steps::{Steps, cargo, output, run as run_command};
use crate::{boundaries, capi, day, fuzz, hammer, headpond, planted, root, tools, udev, vm};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::process::Command;

/// Tests of one program that run at once.
const TEST_THREADS: &str = "4";

/// Seeds of the simulator, with the crashes that must come of them, power cuts and daemon deaths together: a little over
/// six come of each.
const SEEDS: (u64, u64) = (1700, 9_000);
/// The same in the small geometry, where over sixty come of each.
const SMALL: (u64, u64) = (2_800, 150_000);

/// Marks of the engine that fewer than one seed in a hundred reaches, or none. All others must be reached.
const RARE: &[&str] = &[
    "Abandoned",
    "AllFail",
    "WitnessToldLater",
    "CheckpointTooLarge",
    "CopiesLost",
    "CopiesMissing",
    "SoonerFails",
    "DiskIsAnother",
    "DiskSilentAtStart",
    "IntentNowhere",
    "IntentPagesDiffer",
    "AsksAgainAtStart",
    "IntentMayBeNewer",
    "IntentWithoutMembers",
    "LastMemberLeft",
    "LeftBehindOverwritten",
    "MapThinned",
    "MemberFailsAtStart",
    "LostTurnsOutClean",
    "LooksOnPastPins",
    "MarksHaveNoSpace",
    "CancelledInAWait",
    "AsksAgainForPages",
    "MarksWaitForSpace",
    "MoveUnreadable",
    "FailsUnderEpoch",
    "OrderedWithoutMark",
    "DestageUnreadable",
    "DirtyDamaged",
    "ClosedAtRest",
    "Compacted",
    "LostRangeFails",
    "MoveWithoutSpace",
    "MoveOvertaken",
    "PageNowhere",
    "StoppedWhileLoading",
    "UncertainVolume",
    "OrderedAfterAbsorbFailed",
    "MemberFailsAFlush",
    "BypassWithoutMajority",
    "MovedUnderARead",
    "NewMemberFails",
    "JoinFails",
    "CopiesStayLacking",
    "RemovalGivenUp",
    "RemovalGivesWay",
    "MovedBeforeGivenUp",
    "RemovalDestages",
    "ScrubRewritesSuperblocks",
    "ScrubRewritesIntent",
    "ScrubReplacesImage",
    "ScrubbedImageReplaced",
    "ScrubMoves",
    "ScrubHasNoRoom",
    "ScrubFindsLost",
    "PinnedLetGo",
    "RepairTooLate",
    "UnreadableAround",
    "PredecessorOwes",
    "NeededIsWaitedFor",
    "GrowFails",
    "DisklessHasNoRoom",
    "MendingWaits",
    "DisklessInPieces",
    "JoinsTooLate",
    "LeavesBeforeItIsEmpty",
    "StopsUnkept",
    "UnreadableTurnsOutClean",
    "MissingMayHaveIt",
    "GoneWithoutCheckpoint",
    "FailedFlushToldToAll",
    "FailedFlushToldAgain",
    "DiskSilentAtStop",
    "PredecessorFails",
];

/// `cargo xtask test [--seed-base N]`.
pub fn run(args: &[String]) -> Result<()> {
    let base = match args {
        [] => None,
        [flag, n] if flag == "--seed-base" => Some(n.parse::<u64>().context("--seed-base wants a number")?),
        _ => bail!("cargo xtask test [--seed-base N]"),
    };
    let mut steps = Steps::new();
    steps.step("tools", tools::install)?;
    steps.step("format of the source", || run_command(cargo(&["fmt", "--all", "--check"])))?;
    steps.step("boundaries between the crates", boundaries::check)?;
    steps.step("clippy", || {
        run_command(cargo(&["clippy", "--quiet", "--release", "--workspace", "--all-targets", "--", "--deny", "warnings"]))
    })?;
    steps.step("tests", || {
        let mut tests = cargo(&["test", "--release", "--workspace"]);
        // They wait most of their time, for daemons and for devices that take theirs.
        tests.env("RUST_TEST_THREADS", TEST_THREADS);
        run_command(tests)
    })?;
    steps.step("the library for C", capi::run_all)?;
    // Not beside the tests, which wait most of their time: daemons are measured there, and a scheduler that groups by sessions gives them no more than a half.
    steps.step("the simulator, fresh seeds", || simulate(base, SEEDS, &[]))?;
    steps.step("the simulator, fresh seeds in the small geometry", || simulate(base, SMALL, &["--small"]))?;
    steps.step("the small world, all of it", || {
        small_world(&[])?;
        // In a fresh pool the first write waits for its region's bit and hides what comes of the later ones.
        small_world(&["--after", "write:120+8"])
    })?;
    // The same changes each time: what fresh ones find on media that nobody has made yet is work for another day than a merge's.
    steps.step("fuzzing, the corpus and changes of it", || fuzz::run(&["--stable".into(), "--seed".into(), "7".into()]))?;
    steps.step("planted mistakes", || planted::run(&["--sample".into()]))?;
    steps.step("headpond demo --quick", || run_command(headpond(&["demo", "--quick"])?))?;
    // The tests have built it.
    let built = headpond::built()?;
    steps.step("rules of udev, and what the guides give systemd", || udev::check(Some(&built)))?;
    let named = ["--headpond".to_owned(), built.to_string_lossy().into_owned()];
    let short = [&["--short".to_owned()], &named[..]].concat();
    // Last, as these take Ctrl-C for themselves.
    steps.step("the hammer, short", || hammer::run(&short))?;
    steps.step("an operator's day", || day::run(&named))?;
    steps.step("the virtual machine, short", || vm::run(&short))?;
    steps.finish();
    Ok(())
}

/// Every short sequence with every crash.
fn small_world(more: &[&str]) -> Result<()> {
    let mut command = headpond(&["sim", "--exhaustive", "--interleave"])?;
    command.args(more);
    run_command(command)
}

/// The command that the tests were run with.
fn headpond(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(headpond::built()?);
    command.args(args).current_dir(root());
    Ok(command)
}

/// Fresh seeds through the simulator, each failing one with the command that replays it.
fn simulate(base: Option<u64>, (seeds, wanted): (u64, u64), more: &[&str]) -> Result<()> {
    let sum = simulated(base, seeds, more)?;
    let count = |name: &str| sum[name].as_u64().unwrap_or(0);
    let crashes = count("power_cuts") + count("daemon_deaths");
    if crashes < wanted || count("in_recovery") * 10 < crashes {
        bail!("too little: {wanted} crashes were wanted, a tenth of them in recovery");
    }
    let missing = missing_marks(&sum)?;
    if !more.is_empty() {
        // What must be reached is known of the plain draws alone.
        return Ok(());
    }
    let mut wanted: Vec<String> = missing.into_iter().filter(|name| !RARE.contains(&name.as_str())).collect();
    if !wanted.is_empty() {
        // A place that one seed in five hundred reaches is missed by as many seeds in one run of thirty.
        println!("not reached, and looked for once more: {}", wanted.join(", "));
        let missing = missing_marks(&simulated(Some(count("from") + seeds), seeds, more)?)?;
        wanted.retain(|name| missing.contains(name));
    }
    if !wanted.is_empty() {
        bail!(
            "places of the engine that these seeds must reach and did not: {}. Load or faults have lost something",
            wanted.join(", ")
        );
    }
    Ok(())
}

/// What a run of seeds comes to.
fn simulated(base: Option<u64>, seeds: u64, more: &[&str]) -> Result<Value> {
    let (seeds, base) = (seeds.to_string(), base.map(|b| b.to_string()));
    let mut args = vec!["sim", "--json", "--seeds", &seeds];
    args.extend(more);
    args.extend(base.iter().flat_map(|b| ["--from", b.as_str()]));
    let sum: Value = serde_json::from_str(&output(headpond(&args)?)?).context("the simulator's summary is not JSON")?;
    let count = |name: &str| sum[name].as_u64().unwrap_or(0);
    println!(
        "{} seeds from {}, {} crashes: {} power cuts and {} daemon deaths, {} of them in recovery; repeat with --seed-base {}",
        count("seeds"),
        count("from"),
        count("power_cuts") + count("daemon_deaths"),
        count("power_cuts"),
        count("daemon_deaths"),
        count("in_recovery"),
        count("from"),
    );
    Ok(sum)
}

/// The marks that a run has not reached.
fn missing_marks(sum: &Value) -> Result<Vec<String>> {
    let marks = sum["marks"].as_object().context("the simulator's summary has no marks")?;
    if let Some(unknown) = RARE.iter().find(|rare| !marks.contains_key(**rare)) {
        bail!("the engine has no mark {unknown}: it goes from the list of rare ones");
    }
    let missing: Vec<String> = marks.iter().filter(|(_, seeds)| **seeds == 0).map(|(name, _)| name.clone()).collect();
    println!("{} of {} marks reached; not reached: {}", marks.len() - missing.len(), marks.len(), missing.join(", "));
    Ok(missing)
}
