//! B1 and B2: a cache that fills, and throughput against clients.

use super::Run;
use super::c_streams::small;
use super::fio::{self, JobFile, job};
use super::rig::{Plan, Rig};
use super::rounds::{Samples, must};
use anyhow::{Context, Result};
use headpond_sim::experiments::outcome::{Line, Outcome, Scale, Who};
use std::fs;
use std::path::Path;
use std::thread;

const JOB: JobFile = job!("filling");
const MIB: u64 = 1 << 20;
/// Bytes of a client's file: larger than the write cache of a disk.
const CLIENT: u64 = 256 * MIB;

fn fill(rig: &Rig<'_>, (who, disk): (Who, usize), section: &str, files: &str, size: u64, seconds: u64) -> Result<fio::Rates> {
    let values = [("FILES", files.to_owned()), ("SIZE", size.to_string()), ("SECONDS", seconds.to_string())];
    rig.fio(who, disk, JOB, &[section], &values)
}

/// What a section reached in each second, by its log; the last second is cut short.
pub(super) fn by_second(folder: &Path, log: &str) -> Result<Vec<(f64, f64)>> {
    let path = folder.join(log);
    let text = fs::read_to_string(&path).with_context(|| format!("fio wrote no {log}"))?;
    // fio adds to a log that is there: the next run would have this one's requests beside its own.
    fs::remove_file(&path)?;
    let mut seconds = fio::seconds(&text);
    seconds.pop();
    Ok(seconds)
}

pub(super) fn mean(values: &[(f64, f64)]) -> f64 {
    values.iter().map(|(_, value)| value).sum::<f64>() / values.len().max(1) as f64
}

/// The least second by the mean of all.
fn worst(values: &[(f64, f64)]) -> f64 {
    values.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min) / mean(values).max(1e-9)
}

/// B1: a cache that fills.
pub fn b1(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    // Two files of 256 MiB at random, two of 256 MiB in streams.
    let (size, seconds) = if run.quick { (64 * MIB, 8) } else { (256 * MIB, 18) };
    let rounds = run.rounds().min(3);
    let whos = vec![Who::Front, Who::Back];
    let rig = run.rig(Plan { ssd: small(2 * size), whos: whos.clone(), ..Plan::usual() })?;
    for who in &whos {
        for files in ["random", "stream"] {
            fill(&rig, (*who, 0), "lay-out", files, size, 0)?;
        }
    }
    let mut lines: Vec<Line> = Vec::new();
    let random = Samples::take(rounds, &whos, |who| {
        rig.settle(who)?;
        fill(&rig, (who, 0), "random", "random", size, seconds)?;
        let values = by_second(rig.path(), "random_iops.log")?;
        let second_half: Vec<(f64, f64)> = values[values.len() / 2..].to_vec();
        if lines.iter().all(|line| line.0 != who) {
            lines.push((who, who.name().to_owned(), values));
        }
        Ok(vec![mean(&second_half), worst(&second_half)])
    })?;
    // The cache is full of what was written just before.
    let stream = Samples::take(rounds, &whos, |who| {
        fill(&rig, (who, 0), "random", "random", size, run.filling())?;
        let percent = rig.report()?.dirty_percent;
        fill(&rig, (who, 0), "streams", "stream", size, seconds)?;
        // The log is in KiB.
        let mut values = by_second(rig.path(), "streams_bw.log")?;
        values.iter_mut().for_each(|(_, value)| *value *= 1024.0 / 1e6);
        Ok(vec![mean(&values), worst(&values), f64::from(percent)])
    })?;
    stream.figure(&mut out, "two streams past a cache that was just filled", "MB/s", 0);
    stream.figure(&mut out, "the worst second of the streams, by their mean", "ratio", 1);
    random.figure(&mut out, "random 4 KiB writes, second half of the run", "writes/s", 0);
    random.figure(&mut out, "the worst second of these, by their mean", "ratio", 1);
    must(
        &mut out,
        "streams over a full cache, by bare behind the same front end",
        stream.ratio((Who::Back, 0), (Who::Front, 0)),
        0.97,
    );
    must(
        &mut out,
        "random writes once it is full, by bare behind the same front end",
        random.ratio((Who::Back, 0), (Who::Front, 0)),
        1.0,
    );
    must(&mut out, "random writes once it is full: the worst second, by their mean", random.own(Who::Back, 1), 0.5);
    out.note(format!(
        "When the streams began, {:.0} % of the space for dirty data was taken (median). Bare is behind the same front end.",
        stream.median(Who::Back, 2)
    ));
    out.lines("Random 4 KiB writes into a cache that fills", "seconds", "writes/s", Scale::Powers, lines);
    out.note("No more than three rounds are taken.");
    run.fates(&mut out, &rig)?;
    Ok(out)
}

/// What so many clients reach together, each on a disk of its own: written, then read where the next one wrote.
fn together(run: &Run<'_>, rig: &Rig<'_>, who: Who, clients: usize, section: &str) -> Result<f64> {
    let rate = |n: usize| -> Result<f64> {
        let disk = if section == "read" { (n + 1) % clients } else { n };
        let folder = rig.path().join(format!("client{n}"));
        fs::create_dir_all(&folder)?;
        let values = [
            ("DIR", rig.point(who, disk).display().to_string()),
            ("FILES", "file".to_owned()),
            ("SIZE", CLIENT.to_string()),
            ("SECONDS", (2 * run.window()).to_string()),
        ];
        let rates = fio::run(JOB, &[section], &values, &folder, run.stop)?;
        Ok(rates.values().map(|it| it.bytes).sum::<f64>() / 1e6)
    };
    // What a disk has in its own cache of the clients before, it would put down beside these.
    rig.settle(who)?;
    rig.busy().note(&format!("{section}, {clients} clients"), who, || {
        let all: Vec<Result<f64>> = thread::scope(|scope| {
            let started: Vec<_> = (0..clients).map(|n| scope.spawn(move || rate(n))).collect();
            started.into_iter().map(|it| it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        all.into_iter().sum()
    })
}

/// B2: clients, each with a volume of its own.
pub fn b2(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let counts: &[usize] = if run.quick { &[1, 2] } else { &[1, 2, 4] };
    let most = counts.last().copied().unwrap_or(1);
    let rig = run.rig(Plan { disks: most, disk: 1 << 30, ..Plan::usual() })?;
    let whos = rig.whos();
    for who in &whos {
        for disk in 0..most {
            fill(&rig, (*who, disk), "lay-out-one", "file", CLIENT, 0)?;
        }
        rig.settle(*who)?;
    }
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        let mut values = Vec::new();
        for clients in counts {
            values.push(together(run, &rig, who, *clients, "write")?);
            values.push(together(run, &rig, who, *clients, "read")?);
        }
        Ok(values)
    })?;
    for (way, what) in ["written", "read"].into_iter().enumerate() {
        for (n, clients) in counts.iter().enumerate() {
            let quantity = 2 * n + way;
            samples.figure(&mut out, format!("{what}, {clients} clients"), "MB/s", quantity);
            must(
                &mut out,
                format!("{what} by {clients} clients, by as many bare disks behind the same front end"),
                samples.ratio((Who::Back, quantity), (Who::Front, quantity)),
                0.97,
            );
            if n > 0 {
                let linear = samples.ratio((Who::Back, quantity), (Who::Back, way)).over(*clients as f64);
                must(&mut out, format!("{what} by {clients} clients, by {clients} times one"), linear, 0.95);
                let bare = samples.ratio((Who::Bare, quantity), (Who::Bare, way)).over(*clients as f64);
                out.note(format!(
                    "The bare disks themselves, {what} by {clients} clients, by {clients} times one: {:.3}.",
                    bare.median
                ));
            }
        }
        let line = |who: &Who| {
            let points = counts.iter().enumerate().map(|(n, clients)| (*clients as f64, samples.median(*who, 2 * n + way)));
            (*who, who.name().to_owned(), points.collect())
        };
        out.lines(&format!("Streams {what}"), "clients", "MB/s", Scale::Linear, whos.iter().map(line).collect());
    }
    out.note("No more than three rounds are taken.");
    run.fates(&mut out, &rig)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_of_one_run_and_without_its_last_second() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it.log");
        let written = |text: &str| {
            let mut file = fs::File::options().create(true).append(true).open(&path).unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
            by_second(folder.path(), "it.log").unwrap()
        };
        assert_eq!(written("1000, 5, 0\n2000, 6, 0\n2500, 1, 0\n"), [(1.0, 5.0), (2.0, 6.0)]);
        assert_eq!(written("1000, 7, 0\n2000, 1, 0\n"), [(1.0, 7.0)]);
        assert!(by_second(folder.path(), "it.log").is_err());
    }
}
