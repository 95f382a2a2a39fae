//! A5: files created, looked at and removed.

use super::Run;
use super::fio::{JobFile, job};
use super::rig::Plan;
use super::rounds::{Samples, must};
use anyhow::Result;
use headpond_sim::experiments::outcome::{Outcome, Scale, Who};

const JOB: JobFile = job!("metadata");
const PHASES: [&str; 3] = ["create", "stat", "remove"];

/// A5: mdtest's phases against the number of threads.
pub fn a5(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    // What a file system does to a directory is on the disk when the call returns, as on an export that is synchronous.
    let whos = vec![Who::Front, Who::Back];
    let mut rig = run.rig(Plan { whos: whos.clone(), options: &["-o", "dirsync"], ..Plan::usual() })?;
    let counts: &[u64] = if run.quick { &[1, 8] } else { &[1, 8, 64, 512] };
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        let mut values = Vec::new();
        for threads in counts {
            let files = if run.quick { 32 } else { 64 }.max(*threads);
            let values_of = [("THREADS", threads.to_string()), ("EACH", (files / threads).to_string())];
            for phase in PHASES {
                rig.remount(who)?;
                let rates = rig.fio(who, 0, JOB, &[phase], &values_of)?;
                values.push(rates.get(phase).map_or(0.0, |it| it.together));
                if phase == "create" {
                    // Else fio would fill the files that it created, and so have looked at them, just before it measures.
                    rig.fio(who, 0, JOB, &["fill"], &values_of)?;
                }
            }
        }
        Ok(values)
    })?;
    for (p, phase) in PHASES.into_iter().enumerate() {
        for (n, threads) in counts.iter().enumerate() {
            let quantity = PHASES.len() * n + p;
            samples.figure(&mut out, format!("{phase}, {threads} threads"), "files/s", quantity);
            let ratio = samples.ratio((Who::Back, quantity), (Who::Front, quantity));
            must(&mut out, format!("{phase}, {threads} threads, by bare behind the same front end"), ratio, 1.0);
        }
        let line = |who: &Who| {
            let points =
                counts.iter().enumerate().map(|(n, threads)| (*threads as f64, samples.median(*who, PHASES.len() * n + p)));
            (*who, who.name().to_owned(), points.collect())
        };
        out.lines(&format!("mdtest: {phase}"), "threads", "files/s", Scale::Powers, whos.iter().map(line).collect());
    }
    out.note("A point has 64 files (quick: 32), or one for each thread. Looking at so few takes milliseconds, which is fio's resolution. No more than three rounds are taken.");
    run.fates(&mut out, &rig)?;
    Ok(out)
}
