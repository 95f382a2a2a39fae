//! A5: files created, looked at and removed.

use super::Run;
use super::fio::{JobFile, job};
use super::ior;
use super::rig::{Plan, Rig};
use super::rounds::{Samples, must};
use anyhow::{Context, Result, bail};
use headpond_sim::experiments::outcome::{Outcome, Scale, Who};
use std::fs;
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const JOB: JobFile = job!("metadata");
const PHASES: [&str; 3] = ["create", "stat", "remove"];
/// Files that are looked at, whatever the number of threads.
const LOOKED_AT: u64 = 4096;

fn looked_at(rig: &Rig<'_>, who: Who) -> PathBuf {
    rig.point(who, 0).join("looked-at")
}

fn make(rig: &Rig<'_>, who: Who) -> Result<()> {
    let folder = looked_at(rig, who);
    fs::create_dir_all(&folder)?;
    for n in 0..LOOKED_AT {
        let file = folder.join(n.to_string());
        fs::write(&file, [0; 4096]).with_context(|| format!("{} cannot be written", file.display()))?;
    }
    Ok(())
}

/// Has so many threads share out the files and look at each once; files a second, from the first thread's begin to the last one's end.
fn look(rig: &Rig<'_>, who: Who, threads: u64) -> Result<f64> {
    let folder = looked_at(rig, who);
    let all_there = Barrier::new(threads as usize);
    let of_one = &|thread: u64| -> Result<(Instant, Instant)> {
        all_there.wait();
        let begun = Instant::now();
        for n in (thread..LOOKED_AT).step_by(threads as usize) {
            let file = folder.join(n.to_string());
            fs::metadata(&file).with_context(|| format!("{} cannot be looked at", file.display()))?;
        }
        Ok((begun, Instant::now()))
    };
    let times = rig.busy().note(&format!("stat by {threads} threads"), who, || {
        thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || of_one(thread))).collect();
            let joined = |it: thread::ScopedJoinHandle<'_, _>| {
                it.join().unwrap_or_else(|_| bail!("a thread that looked at files panicked"))
            };
            all.into_iter().map(joined).collect::<Result<Vec<_>>>()
        })
    })?;
    let (first, last) = (times.iter().map(|it| it.0).min(), times.iter().map(|it| it.1).max());
    let took = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    Ok(LOOKED_AT as f64 / took.as_secs_f64().max(1e-9))
}

/// A5: mdtest's phases against the number of threads.
pub fn a5(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    // What a file system does to a directory is on the disk when the call returns, as on an export that is synchronous.
    let whos = vec![Who::Front, Who::Back];
    let mut rig = run.rig(Plan { whos: whos.clone(), options: &["-o", "dirsync"], ..Plan::usual() })?;
    let counts: &[u64] = if run.quick { &[1, 8] } else { &[1, 8, 64, 512] };
    // Made without waiting for each: bare takes two minutes for so many otherwise.
    for who in &whos {
        rig.remount_with(*who, &[])?;
        make(&rig, *who)?;
        rig.settle(*who)?;
    }
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        let mut values = Vec::new();
        for threads in counts {
            let files = if run.quick { 32 } else { 64 }.max(*threads);
            let values_of = [("THREADS", threads.to_string()), ("EACH", (files / threads).to_string())];
            for phase in PHASES {
                rig.remount(who)?;
                values.push(match phase {
                    "stat" => look(&rig, who, *threads)?,
                    _ => rig.fio(who, 0, JOB, &[phase], &values_of)?.get(phase).map_or(0.0, |it| it.together),
                });
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
        "Created and removed, by fio, are 64 files at each point (quick: 32), or one for each thread. Looked at are {LOOKED_AT} in one \
         directory, by threads of this program, from when all are there until the last is done: fio's own engine would have seen each \
         file itself before it begins. Nothing of them is in the kernel's cache. No more than three rounds are taken."
    ));
    ior::metadata(run, &rig, &mut out, &whos, &counts[..2], if run.quick { 32 } else { 64 })?;
    run.fates(&mut out, &rig)?;
    Ok(out)
}
