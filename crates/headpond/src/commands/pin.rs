//! `headpond pin` and `headpond unpin`.

use clap::Args;
use headpond_host::control::{Call, Runs};
use serde_json::json;

use super::targets::Targets;
use super::{Which, print};
use crate::size;

#[derive(Args)]
pub struct Pin {
    /// Files, folders with all that is in them, or ranges as VOLUME:OFFSET+LENGTH, such as v:0+1GiB
    ///
    /// What is pinned is where a file is now: pin it again after it has grown or was written anew.
    #[arg(value_name = "FILE|DIR|RANGE", required_unless_present_any = ["journal", "list"])]
    what: Vec<String>,
    /// The journal of the ext4, ldiskfs or XFS on this volume, or at this mount point
    #[arg(long, value_name = "VOLUME|DIR", conflicts_with = "what")]
    journal: Option<String>,
    /// Show what is pinned on this volume
    #[arg(long, value_name = "VOLUME", conflicts_with_all = ["what", "journal"])]
    list: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Pin {
    pub fn run(self) -> anyhow::Result<()> {
        if let Some(name) = self.list {
            let answer = self.which.call(&Call::Pinned { name: name.clone() })?;
            let bytes = answer["pinned_bytes"].as_u64().unwrap_or(0);
            let mut words = format!("volume {name}: {} pinned", size::show(bytes));
            for run in answer["runs"].as_array().into_iter().flatten() {
                words += &format!("\n  {name}:{}+{}", run[0], run[1]);
            }
            return print(self.json, &answer, words);
        }
        let report = self.which.report(None)?;
        let (targets, journal) = match &self.journal {
            Some(on) => Targets::journal(&report, on).map(|(targets, of)| (targets, Some(of)))?,
            None => (Targets::of(&report, &self.what, true)?, None),
        };
        if targets.bytes() == 0 {
            return Err(targets.none_found());
        }
        change(&self.which, &targets, Call::Pin)?;
        let what = journal.map(|of| format!("the journal of {of}, ")).unwrap_or_default();
        let words = format!(
            "pinned: {what}{}; what is not in the cache yet is brought while the disk is idle, or at once by `headpond preload`",
            of_volumes(&targets)
        );
        let answer = json!({ "files": targets.files, "bytes": targets.bytes(), "bytes_without_place": targets.without_place,
            "journal": journal });
        print(self.json, &answer, words)
    }
}

#[derive(Args)]
pub struct Unpin {
    /// Files, folders with all that is in them, or ranges as VOLUME:OFFSET+LENGTH, such as v:0+1GiB
    #[arg(value_name = "FILE|DIR|RANGE", required_unless_present = "all")]
    what: Vec<String>,
    /// Everything that is pinned on this volume
    #[arg(long, value_name = "VOLUME", conflicts_with = "what")]
    all: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

impl Unpin {
    pub fn run(self) -> anyhow::Result<()> {
        let report = self.which.report(self.all.as_deref())?;
        let targets = match &self.all {
            Some(name) => {
                let mut targets = Targets::default();
                let bytes = report.volumes.iter().find(|volume| volume.name == *name).map_or(0, |volume| volume.bytes);
                targets.runs.insert(name.clone(), std::iter::once(0..bytes).collect());
                targets
            }
            None => Targets::of(&report, &self.what, true)?,
        };
        if targets.bytes() == 0 {
            return Err(targets.none_found());
        }
        change(&self.which, &targets, Call::Unpin)?;
        let answer = json!({ "files": targets.files });
        print(self.json, &answer, "not pinned any more; it stays in the cache as long as it is read")
    }
}

/// In as many calls as it takes. One that is refused leaves what those before it have done.
fn change(which: &Which, targets: &Targets, call: impl Fn(Runs) -> Call) -> anyhow::Result<()> {
    let mut done = 0;
    for runs in targets.calls() {
        let bytes: u64 = runs.runs.iter().map(|run| run[1]).sum();
        which.call(&call(runs)).map_err(|error| match done {
            0 => error,
            done => {
                let said = error.to_string();
                error.context(format!(
                    "The first {} of what was named are done, and stay so (`headpond pin --list VOLUME` shows what is pinned); the rest is not: {said}",
                    size::show(done)
                ))
            }
        })?;
        done += bytes;
    }
    Ok(())
}

fn of_volumes(targets: &Targets) -> String {
    let each = targets.runs.iter().map(|(name, runs)| {
        let bytes = runs.iter().map(|run| run.end - run.start).sum();
        format!("{} of volume {name}", size::show(bytes))
    });
    each.collect::<Vec<_>>().join(", ")
}
