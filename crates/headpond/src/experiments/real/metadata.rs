//! A5: files created, looked at and removed.

use super::Run;
use super::fio::{JobFile, job};
use super::rig::{Plan, Rig};
use super::rounds::{Samples, must};
use anyhow::Result;
use headpond_sim::experiments::outcome::{Outcome, Scale, Who};
use std::fs;

const JOB: JobFile = job!("metadata");
const PHASES: [&str; 3] = ["create", "stat", "remove"];
/// Files that are looked at, whatever the number of threads.
const LOOKED_AT: u64 = 4096;

/// A5: mdtest's phases against the number of threads.
pub fn a5(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    // What a file system does to a directory is on the disk when the call returns, as on an export that is synchronous.
    let whos = vec![Who::Front, Who::Back];
    let mut rig = run.rig(Plan { whos: whos.clone(), options: &["-o", "dirsync"], ..Plan::usual() })?;
    let counts: &[u64] = if run.quick { &[1, 8] } else { &[1, 8, 64, 512] };
    let looked_at = |rig: &Rig<'_>, who, threads: u64| -> Result<[(&'static str, String); 3]> {
        let folder = rig.point(who, 0).join(format!("looked-at-by-{threads}"));
        fs::create_dir_all(&folder)?;
        let each = (LOOKED_AT / threads).to_string();
        Ok([("DIR", folder.display().to_string()), ("THREADS", threads.to_string()), ("EACH", each)])
    };
    // Made without waiting for each: bare takes two minutes for so many otherwise.
    for who in &whos {
        rig.remount_with(*who, &[])?;
        for threads in counts {
            rig.fio(*who, 0, JOB, &["fill"], &looked_at(&rig, *who, *threads)?)?;
        }
        rig.settle(*who)?;
    }
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        let mut values = Vec::new();
        for threads in counts {
            let files = if run.quick { 32 } else { 64 }.max(*threads);
            let values_of = [("THREADS", threads.to_string()), ("EACH", (files / threads).to_string())];
            for phase in PHASES {
                rig.remount(who)?;
                let rates = match phase {
                    "stat" => rig.fio(who, 0, JOB, &[phase], &looked_at(&rig, who, *threads)?)?,
                    _ => rig.fio(who, 0, JOB, &[phase], &values_of)?,
                };
                values.push(rates.get(phase).map_or(0.0, |it| it.together));
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
    out.note(format!(
        "Created and removed are 64 files at each point (quick: 32), or one for each thread; looked at are {LOOKED_AT}. fio \
         has seen each of those itself before it begins, and counts the milliseconds of each thread: with many threads they are few, and \
         the disk is hardly asked. No more than three rounds are taken."
    ));
    run.fates(&mut out, &rig)?;
    Ok(out)
}
