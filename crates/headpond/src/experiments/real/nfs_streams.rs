//! A1, A2 and A7: clients of an NFS server write and read streams.

use super::Run;
use super::nfs_load::{Load, from_memory, limits, quantities};
use super::nfs_rig::{NfsRig, Plan};
use super::processors::checksums_of_a_megabyte;
use super::rounds::{Samples, must};
use anyhow::Result;
use headpond_sim::experiments::outcome::{Outcome, Scale, Who};

const MIB: u64 = 1 << 20;
/// The mark of streams.
const STREAMS: f64 = 0.97;

/// The numbers of clients: scaled from 1 to 64.
fn points(run: &Run<'_>) -> &'static [u64] {
    if run.quick { &[16] } else { &[1, 16] }
}

/// All of them have the same bytes together.
fn load(run: &Run<'_>, clients: u64) -> Load {
    let all = if run.quick { 128 } else { 256 } * MIB;
    let files = if clients == 1 { "alone" } else { "several" };
    Load { files, clients, bytes: all / clients, part: all / clients }
}

fn plot(out: &mut Outcome, samples: &Samples, title: &str, whos: &[Who], points: &[u64], from: usize) {
    let line = |who: &Who| {
        let values = points.iter().enumerate().map(|(n, clients)| (*clients as f64, samples.median(*who, from + n)));
        (*who, who.name().to_owned(), values.collect())
    };
    out.lines(title, "clients", "MB/s", Scale::Linear, whos.iter().map(line).collect());
}

/// A1: new files, and the same again.
pub fn a1(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let whos = [Who::Bare, Who::Front, Who::Back, Who::Through];
    let mut rig = run.nfs_rig(&Plan { whos: &whos, ssd: None })?;
    let points = points(run);
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        let mut all = Vec::new();
        let folders = rig.folders(who);
        for clients in points {
            rig.clear(who)?;
            for _ in ["new", "again"] {
                rig.settle(who)?;
                all.push(load(run, *clients).stream(&rig, &folders, "write")?);
            }
        }
        Ok(quantities(&all))
    })?;
    for (n, clients) in points.iter().enumerate() {
        for (way, what) in ["write", "re-write"].into_iter().enumerate() {
            let quantity = 2 * n + way;
            samples.figure(&mut out, format!("{what}, {clients} clients"), "MB/s", quantity);
            for (who, mode) in [(Who::Back, "write-back"), (Who::Through, "write-through")] {
                let ratio = samples.ratio((who, quantity), (Who::Front, quantity));
                let what = format!("{what}, {mode}, {clients} clients, by bare behind the same front end");
                must(&mut out, what, ratio, STREAMS);
            }
        }
    }
    let last = 2 * points.len() - 2;
    run.tax_of(&mut out, &samples, &[(last, "write"), (last + 1, "re-write")]);
    let folder = rig.memory()?;
    let most = load(run, points[points.len() - 1]);
    let memory = from_memory(&rig, run, &folder, most, "write")?;
    let done = points.iter().flat_map(|clients| ["writing", "re-writing"].map(|way| format!("{clients} clients {way}")));
    limits(&mut out, &samples, &whos, &done.collect::<Vec<_>>(), memory, "MB");
    run.fates_of(&mut out, &rig.cached()?);
    Ok(out)
}

/// What limits readers: the front end, the processors, and the way from memory to the clients.
fn reading_limits(run: &Run<'_>, rig: &mut NfsRig<'_>, out: &mut Outcome, samples: &Samples, whos: &[Who]) -> Result<()> {
    let points = points(run);
    run.tax_of(out, samples, &[(points.len() - 1, "read")]);
    let folder = rig.memory()?;
    let memory = from_memory(rig, run, &folder, load(run, points[points.len() - 1]), "read")?;
    let done: Vec<String> = points.iter().map(|clients| format!("{clients} clients reading")).collect();
    limits(out, samples, whos, &done, memory, "MB");
    out.note(format!(
        "Checksums, which are verified where the cache is read and made where something is admitted, take {:.2} ms of a processor for each MB here, \
         measured by themselves. Past the cache there are none.",
        checksums_of_a_megabyte()
    ));
    run.fates_of(out, &rig.cached()?);
    Ok(())
}

/// A2: what is cached is read.
pub fn a2(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let whos = [Who::Bare, Who::Front, Who::Back, Who::Ssds];
    let mut rig = run.nfs_rig(&Plan { whos: &whos, ssd: None })?;
    let points = points(run);
    for clients in points {
        load(run, *clients).lay_out(&rig, &whos)?;
    }
    let left_out = rig.preload()?;
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        let mut all = Vec::new();
        for clients in points {
            rig.settle(who)?;
            all.push(load(run, *clients).stream(&rig, &rig.folders(who), "read")?);
        }
        Ok(quantities(&all))
    })?;
    for (n, clients) in points.iter().enumerate() {
        samples.figure(&mut out, format!("read of what is cached, {clients} clients"), "MB/s", n);
        let ratio = samples.ratio_to_better(Who::Back, n, &[Who::Front, Who::Ssds]);
        let what = format!("{clients} clients, by the better of disk and SSDs, each behind the same front end");
        must(&mut out, what, ratio, STREAMS);
    }
    plot(&mut out, &samples, "Streams read from a warm cache", &whos, points, 0);
    out.note(format!("The files were preloaded; for {left_out} bytes of them there was no room in the cache."));
    reading_limits(run, &mut rig, &mut out, &samples, &whos)?;
    Ok(out)
}

/// A7: nothing is cached, and streams are read.
pub fn a7(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let whos = [Who::Bare, Who::Front, Who::Back];
    let mut rig = run.nfs_rig(&Plan { whos: &whos, ssd: None })?;
    let points = points(run);
    for clients in points {
        load(run, *clients).lay_out(&rig, &whos)?;
    }
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        let mut all = Vec::new();
        for clients in points {
            if who == Who::Back {
                rig.cool()?;
            }
            rig.settle(who)?;
            all.push(load(run, *clients).stream(&rig, &rig.folders(who), "read")?);
        }
        Ok(quantities(&all))
    })?;
    for (n, clients) in points.iter().enumerate() {
        samples.figure(&mut out, format!("read, cold, {clients} clients"), "MB/s", n);
        let what = format!("{clients} clients, by bare behind the same front end");
        must(&mut out, what, samples.ratio((Who::Back, n), (Who::Front, n)), STREAMS);
    }
    plot(&mut out, &samples, "Streams read from a cold cache", &whos, points, 0);
    reading_limits(run, &mut rig, &mut out, &samples, &whos)?;
    Ok(out)
}
