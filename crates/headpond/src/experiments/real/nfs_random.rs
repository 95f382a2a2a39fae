//! A3, A4 and A6: clients of an NFS server write and read 4 KiB anywhere in their files.

use super::Run;
use super::b::{by_second, mean};
use super::c_streams::small;
use super::nfs_load::{Load, from_memory, limits, quantities};
use super::nfs_rig::{NfsRig, Plan};
use super::nfs_server::forgetful;
use super::rounds::{Samples, must};
use crate::experiments::ratio as ratio_shown;
use anyhow::Result;
use headpond_sim::experiments::outcome::{Line, Outcome, Scale, Who};

const MIB: u64 = 1 << 20;
/// As many clients as were published, and as many files.
const MOST: u64 = 64;
/// Into how many parts a cold cache's run is divided: seconds are too short for the hundred requests that a disk does in them.
const PARTS: usize = 5;

/// Bytes of all files of a number of clients: four times what the modelled disk reads ahead and keeps.
const REGION: u64 = 256 * MIB;

/// The numbers of clients.
fn points(run: &Run<'_>) -> &'static [u64] {
    if run.quick { &[MOST] } else { &[1, MOST] }
}

/// A file for each; a client alone has one as large as those of many.
fn load(clients: u64) -> Load {
    let files = if clients == 1 { "alone" } else { "several" };
    let bytes = REGION / clients;
    Load { files, clients, bytes, part: bytes }
}

fn lay_out(run: &Run<'_>, rig: &NfsRig<'_>, whos: &[Who]) -> Result<()> {
    points(run).iter().try_for_each(|clients| load(*clients).lay_out(rig, whos))
}

/// Seconds that count.
fn window(run: &Run<'_>) -> u64 {
    run.slower() * if run.quick { run.window() } else { 2 * run.window() }
}

/// The same of what so many clients do: on slower devices many of them have enough of it, a few hundred requests of a bare disk, in a
/// third of what one needs, and a burst is one only as long as it does not fill the cache.
fn window_of(run: &Run<'_>, clients: u64) -> u64 {
    if run.slower() > 1 && clients > 1 { window(run).div_ceil(3) } else { window(run) }
}

fn plot(out: &mut Outcome, samples: &Samples, title: &str, whos: &[Who], points: &[u64]) {
    let line = |who: &Who| {
        let values = points.iter().enumerate().map(|(n, clients)| (*clients as f64, samples.median(*who, n)));
        (*who, who.name().to_owned(), values.collect())
    };
    out.lines(title, "clients", "requests/s", Scale::Powers, whos.iter().map(line).collect());
}

/// A3: random writes, each durable before it is answered.
pub fn a3(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    burst(run, &mut out)?;
    full(run, &mut out)?;
    Ok(out)
}

fn burst(run: &Run<'_>, out: &mut Outcome) -> Result<()> {
    let whos = [Who::Bare, Who::Front, Who::Back, Who::Through, Who::Ssds];
    let mut rig = run.nfs_rig(&Plan { whos: &whos, ssd: None })?;
    let points = points(run);
    lay_out(run, &rig, &whos)?;
    let mut percent = 0;
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        let mut all = Vec::new();
        for clients in points {
            rig.settle(who)?;
            all.push(load(*clients).random(&rig, &rig.folders(who), "random-write", 1, window_of(run, *clients))?);
            if who == Who::Back {
                percent = percent.max(rig.dirty_percent()?);
            }
        }
        Ok(quantities(&all))
    })?;
    for (n, clients) in points.iter().enumerate() {
        samples.figure(out, format!("a burst of random 4 KiB writes, {clients} clients"), "1/s", n);
        let through = samples.ratio((Who::Through, n), (Who::Front, n));
        must(out, format!("write-through, {clients} clients, by bare behind the same front end"), through, 0.97);
    }
    let last = points.len() - 1;
    let ratio = samples.ratio((Who::Back, last), (Who::Front, last));
    must(out, format!("a burst, {MOST} clients, by bare behind the same front end"), ratio, 20.0);
    let most = samples.ratio((Who::Ssds, last), (Who::Front, last));
    out.note(format!(
        "The SSDs alone, behind the same front end and not mirrored, by bare: {} (rounds {} to {}); a cache on them cannot show more on this \
         machine.",
        ratio_shown(most.median),
        ratio_shown(most.spread[0]),
        ratio_shown(most.spread[1])
    ));
    plot(out, &samples, "Bursts of random 4 KiB writes", &whos, points);
    out.note(format!("In the bursts at most {percent} % of the space for dirty data was taken."));
    run.tax_of(out, &samples, &[(last, "random writes")]);
    let folder = rig.memory()?;
    let memory = from_memory(&rig, run, &folder, load(MOST), "random-write")?;
    let done: Vec<String> = points.iter().map(|clients| format!("{clients} clients writing")).collect();
    limits(out, &samples, &whos, &done, memory, "writes");
    run.fates_of(out, &rig.cached()?);
    Ok(())
}

fn full(run: &Run<'_>, out: &mut Outcome) -> Result<()> {
    let whos = [Who::Front, Who::Back];
    let region = 2 * REGION;
    let rig = run.nfs_rig(&Plan { whos: &whos, ssd: Some(small(region)) })?;
    let load = Load { bytes: region / MOST, ..load(MOST) };
    load.lay_out(&rig, &whos)?;
    let space = rig.space_for_dirty()?;
    let mut percents = Vec::new();
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        // Filled on the server, as its clients may be too slow for that.
        if who == Who::Back {
            load.fill(&rig, who, run.slower() * run.filling())?;
        }
        let before = rig.dirty_percent()?;
        let reached = load.random(&rig, &rig.folders(who), "random-write", 1, window(run))?;
        if who == Who::Back {
            percents.push(format!("{before} and {}", rig.dirty_percent()?));
        }
        Ok(quantities(&[reached]))
    })?;
    samples.figure(out, format!("cache full: random 4 KiB writes, {MOST} clients"), "1/s", 0);
    let what = format!(
        "cache full, write space {:.1} % of the region, by bare behind the same front end",
        space as f64 / region as f64 * 100.0
    );
    must(out, what, samples.ratio((Who::Back, 0), (Who::Front, 0)), 5.0);
    out.note(format!(
        "Cache full: before and after the windows {} % of the space for dirty data was taken.",
        percents.join(", then ")
    ));
    run.fates_of(out, &rig.cached()?);
    Ok(())
}

/// A4: random reads of what is cached.
pub fn a4(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let whos = [Who::Bare, Who::Front, Who::Back, Who::Ssds];
    let mut rig = run.nfs_rig(&Plan { whos: &whos, ssd: None })?;
    let points = points(run);
    lay_out(run, &rig, &whos)?;
    let left_out = rig.preload()?;
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        let mut all = Vec::new();
        for clients in points {
            rig.settle(who)?;
            let folders = rig.folders(who);
            all.push(forgetful(|| load(*clients).random(&rig, &folders, "random-read", 1, window_of(run, *clients)))?);
        }
        Ok(quantities(&all))
    })?;
    for (n, clients) in points.iter().enumerate() {
        samples.figure(&mut out, format!("random 4 KiB reads of what is cached, {clients} clients"), "1/s", n);
        let ratio = samples.ratio((Who::Back, n), (Who::Ssds, n));
        must(&mut out, format!("{clients} clients, by the SSDs alone behind the same front end"), ratio, 0.95);
        let ratio = samples.ratio((Who::Back, n), (Who::Front, n));
        must(&mut out, format!("{clients} clients, by bare behind the same front end"), ratio, 0.97);
    }
    plot(&mut out, &samples, "Random 4 KiB reads of what is cached", &whos, points);
    out.note(format!("The files were preloaded; for {left_out} bytes of them there was no room in the cache."));
    run.tax_of(&mut out, &samples, &[(points.len() - 1, "random reads")]);
    let folder = rig.memory()?;
    let memory = from_memory(&rig, run, &folder, load(MOST), "random-read")?;
    let done: Vec<String> = points.iter().map(|clients| format!("{clients} clients reading")).collect();
    limits(&mut out, &samples, &whos, &done, memory, "reads");
    run.fates_of(&mut out, &rig.cached()?);
    Ok(out)
}

/// A run of reads second by second, on a cache that is cold if there is one.
fn cold(rig: &NfsRig<'_>, who: Who, load: Load, section: &str, seconds: u64) -> Result<Vec<(f64, f64)>> {
    if who == Who::Back {
        rig.cool()?;
    }
    rig.settle(who)?;
    let folders = rig.folders(who);
    forgetful(|| load.random(rig, &folders, section, 0, seconds))?;
    by_second(rig.path(), &format!("{section}_iops.log"))
}

/// The means of so many parts of a run, and that of all of it.
fn parts(values: &[(f64, f64)]) -> Vec<f64> {
    let each = values.len().div_ceil(PARTS).max(1);
    let mut means: Vec<f64> = values.chunks(each).map(mean).collect();
    means.resize(PARTS, means.last().copied().unwrap_or(0.0));
    means.push(mean(values));
    means
}

/// A6: random reads from a cold cache.
pub fn a6(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let whos = [Who::Front, Who::Back];
    let rig = run.nfs_rig(&Plan { whos: &whos, ssd: None })?;
    // So small a part is in reach of a disk's arm and what it reads ahead: that favours bare.
    let (part, long) = if run.quick { (128 << 10, 15) } else { (256 << 10, 25) };
    let long = run.slower() * long;
    let load = Load { part, ..load(MOST) };
    load.lay_out(&rig, &whos)?;
    let mut curves: [Vec<Line>; 2] = Default::default();
    let samples = Samples::take(run.rounds().min(3), &whos, |who| {
        let mut all = Vec::new();
        for (n, (section, seconds)) in [("once", 2 * window(run)), ("again", long)].into_iter().enumerate() {
            let values = cold(&rig, who, load, section, seconds)?;
            all.extend(parts(&values));
            if curves[n].iter().all(|line| line.0 != who) {
                curves[n].push((who, who.name().to_owned(), values));
            }
        }
        Ok(all)
    })?;
    let again = PARTS + 1;
    samples.figure(&mut out, format!("random 4 KiB read, cold, each place once, {MOST} clients"), "1/s", PARTS);
    for n in 0..PARTS {
        let what = format!("the same of {} KiB of each file again and again, fifth {} of {long} s", part >> 10, n + 1);
        samples.figure(&mut out, what, "1/s", again + n);
    }
    let once = samples.ratio((Who::Back, PARTS), (Who::Front, PARTS));
    must(&mut out, "each place once, by bare behind the same front end", once, 0.97);
    // The part in which it does worst.
    let worst = (0..PARTS).map(|n| samples.ratio((Who::Back, again + n), (Who::Front, again + n)));
    if let Some(worst) = worst.min_by(|a, b| a.median.total_cmp(&b.median)) {
        must(&mut out, "a part read again and again: no fifth of the run under bare behind the same front end", worst, 0.97);
    }
    let [places, warming] = curves;
    out.lines("Random 4 KiB read from a cold cache, each place once", "seconds", "reads/s", Scale::Powers, places);
    let title = format!("The same of {} KiB that are read again and again: a cache warms up", (part * MOST) >> 10);
    out.lines(&title, "seconds", "reads/s", Scale::Powers, warming);
    out.note("Cold: switched to pass-through, both SSDs taken out of the pool and put back while a third stood in, switched to write-back; the volume was mounted and exported all the while.");
    run.fates_of(&mut out, &rig.cached()?);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_means_of_its_parts_and_its_own() {
        let values: Vec<(f64, f64)> = (0..10).map(|n| (f64::from(n), f64::from(n))).collect();
        assert_eq!(parts(&values), [0.5, 2.5, 4.5, 6.5, 8.5, 4.5]);
        assert_eq!(parts(&[(0.0, 3.0)]), [3.0; 6]);
    }
}
