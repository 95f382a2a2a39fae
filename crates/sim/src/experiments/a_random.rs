//! A3, A4, A6: random 4 KiB writes and reads through NFS.

use super::drive::Process;
use super::hardware::{Machine, nfs_server};
use super::outcome::{Outcome, Scale, Who};
use super::point::{GIB, MIB, Options, last, least_ratio, points};
use super::rig::{Store, warm_up};
use super::script::{File, Random};
use super::theirs::{Published, Theirs};
use crate::world::Violation;
use headpond_engine::format::Mode;

/// Requests that a client has under way; see the table of parameters.
const IN_FLIGHT: usize = 2;
const COUNTS: [u64; 4] = [1, 8, 32, 64];
/// What was published of the bare array.
const PUBLISHED_WRITES: f64 = 1600.0;
const PUBLISHED_READS: f64 = 9300.0;

fn randoms(files: Vec<File>, reads: u64, seed: u64) -> Vec<Process> {
    let process = |(client, file): (usize, File)| Process {
        group: 0,
        client,
        lanes: IN_FLIGHT,
        script: Box::new(Random::new(file, 4096, reads, seed.wrapping_add(client as u64)).durable()),
    };
    files.into_iter().enumerate().map(process).collect()
}

fn theirs(machine: &Machine, warm: bool) -> Store {
    Store::models(vec![Box::new(Theirs::new(Published::FluidWriteBack, &machine.array, &machine.ssd, warm))])
}

/// A3: random writes, in a burst that fits, and with the cache full.
///
/// # Errors
/// Something happened that must not.
pub fn a3(options: Options) -> Result<Outcome, Violation> {
    let (counts, machine) = (options.counts(&COUNTS), nfs_server());
    let mut out = Outcome::default();
    let mut lines = Vec::new();
    let mut all = Vec::new();
    for who in [Who::Bare, Who::Back, Who::Through, Who::Theirs] {
        let mut values = Vec::new();
        for n in &counts {
            let files = File::several(0, 0, 0, *n, 4 * GIB);
            let store = match who {
                Who::Bare => machine.bare(1),
                Who::Back => machine.cached(Mode::WriteBack, 1, files[0].end(), options.seed)?,
                Who::Through => machine.cached(Mode::WriteThrough, 1, files[0].end(), options.seed)?,
                _ => theirs(&machine, true),
            };
            let mut driver = machine.drive(store, options.seed, randoms(files, 0, options.seed));
            if matches!(who, Who::Bare | Who::Through) {
                // Until the controller's own cache is full, and its sweep finds all that it ever will.
                driver.seconds(600)?;
            }
            values.push(options.run(&mut driver)?[0].per_s);
        }
        lines.push((who, who.name().to_owned(), points(&counts, &values)));
        all.push((who, values));
    }
    let reached: Vec<(Who, f64)> = all.iter().map(|(who, v)| (*who, last(v))).collect();
    let most = counts[counts.len() - 1];
    out.calibrate("bare array, 64 clients, writes/s", reached[0].1, PUBLISHED_WRITES);
    out.figure(format!("random 4 KiB write, the dirty set fits, {most} clients"), "writes/s", &reached);
    out.must(format!("a burst, {most} clients, by bare"), reached[1].1 / reached[0].1, 20.0);
    out.must("write-through, at the worst number of clients, by bare", least_ratio(&all[2].1, &all[0].1), 0.97);
    out.note(format!(
        "The cache of 350 GB takes this load for {:.0} s before more than half of what may be dirty is; the files of 64 clients together are 256 GiB.",
        machine.ssd_bytes as f64 * 0.8 * 0.5 / (reached[1].1 * 4096.0)
    ));
    full(&mut out, options)?;
    out.lines("Random 4 KiB write, the dirty set fits", "clients", "writes/s", Scale::Powers, lines);
    Ok(out)
}

/// The same with the cache full: SSDs so small that write space is 9 % of the region.
fn full(out: &mut Outcome, options: Options) -> Result<(), Violation> {
    let region = if options.quick { 4 * GIB } else { 16 * GIB };
    // 80 % of the space may be dirty; what superblocks, intent and images of the map take comes on top.
    let mut small = Machine { ssd_bytes: region * 9 / 100 * 10 / 8 * 104 / 100 / MIB * MIB, ..nfs_server() };
    if let Some(cache) = &mut small.array.cache {
        // Of 256 GiB the controller's cache sees little come twice; of a few it would make whole rows.
        cache.bytes /= 256 * GIB / region;
    }
    let files = File::several(0, 0, 0, 64, region / 64);
    let mut bare = small.drive(small.bare(1), options.seed, randoms(files.clone(), 0, options.seed));
    bare.seconds(20)?;
    let bare = bare.seconds(options.window())?[0].clone();
    let store = small.cached(Mode::WriteBack, 1, region, options.seed)?;
    let mut driver = small.drive(store, options.seed, randoms(files, 0, options.seed));
    // Long enough for the first sweep to go round: only then is space won back.
    let filling = driver.seconds(if options.quick { 60 } else { 120 })?[0].clone();
    let steady = driver.seconds(options.window().max(20))?[0].clone();
    let (mut space, mut density, mut percent) = (0.0, 0.0, 0);
    if let Some(status) = driver.front.inner.status() {
        let slots = status.members.iter().map(|m| u64::from(m.segments)).sum::<u64>() / u64::from(status.copies.max(1));
        space = (slots * status.segment_bytes * 8 / 10) as f64 / region as f64;
        density = status.volumes[0].dirty_blocks as f64 * 4096.0 / region as f64;
        percent = status.dirty_percent;
    }
    out.figure("random 4 KiB write, cache full, 64 clients", "writes/s", &[(Who::Bare, bare.per_s), (Who::Back, steady.per_s)]);
    out.must(format!("cache full, write space {:.1} % of the region, by bare", space * 100.0), steady.per_s / bare.per_s, 5.0);
    let worst = filling.per_second[1..].iter().min().map_or(0.0, |n| *n as f64);
    out.note(format!(
        "While the cache fills, and until the first sweep of destage has gone round and frees space, the worst second is {:.2} of bare.",
        worst / bare.per_s
    ));
    out.note(format!(
        "Cache full: {:.1} % of the region is dirty ({percent} % of what may be); the least second of the window is {:.2} of its mean. The files are scaled to {} GiB, SSDs and controller's cache with them.",
        density * 100.0,
        steady.least_second,
        region / GIB
    ));
    let seconds: Vec<u64> = filling.per_second.iter().chain(&steady.per_second).copied().collect();
    let line = |v: &[u64]| v.iter().enumerate().map(|(s, n)| (s as f64, *n as f64)).collect();
    let bare_line = (0..seconds.len()).map(|s| (s as f64, bare.per_s)).collect();
    out.lines(
        "Random 4 KiB write, as the cache fills",
        "seconds",
        "writes/s",
        Scale::Powers,
        vec![(Who::Bare, "bare".into(), bare_line), (Who::Back, "Headpond".into(), line(&seconds))],
    );
    Ok(())
}

/// A4: random reads of what is cached.
///
/// # Errors
/// Something happened that must not.
pub fn a4(options: Options) -> Result<Outcome, Violation> {
    let (counts, machine) = (options.counts(&COUNTS), nfs_server());
    let mut out = Outcome::default();
    let mut lines = Vec::new();
    let mut all = Vec::new();
    for who in [Who::Bare, Who::Back, Who::Ssds, Who::Theirs] {
        let mut values = Vec::new();
        for n in &counts {
            // The bare disks' arms move over the whole 4 GiB of each file; what is cached is scaled, as SSDs have no arms.
            let bytes = if who == Who::Back { 32 * MIB } else { 4 * GIB };
            let files = File::several(0, 0, 0, *n, bytes);
            let mut store = match who {
                Who::Bare => machine.bare(1),
                Who::Back => machine.cached(Mode::WriteBack, 1, files[0].end(), options.seed)?,
                Who::Ssds => machine.ssds(),
                _ => theirs(&machine, true),
            };
            warm_up(&mut store, files[0].end(), 0..files[0].end(), options.seed)?;
            values.push(options.steady(&machine, store, randoms(files, 100, options.seed))?[0].per_s);
        }
        lines.push((who, who.name().to_owned(), points(&counts, &values)));
        all.push((who, values));
    }
    let reached: Vec<(Who, f64)> = all.iter().map(|(who, v)| (*who, last(v))).collect();
    out.calibrate("bare array, 64 clients, reads/s", reached[0].1, PUBLISHED_READS);
    out.figure(format!("random 4 KiB read, cached, {} clients", counts[counts.len() - 1]), "reads/s", &reached);
    out.must("by the SSDs alone, at the worst number of clients", least_ratio(&all[1].1, &all[2].1), 0.95);
    out.must("by bare, at the worst number of clients", least_ratio(&all[1].1, &all[0].1), 0.97);
    out.lines("Random 4 KiB read, cached", "clients", "reads/s", Scale::Powers, lines);
    Ok(out)
}

/// A6: random reads with a cold cache: over all of the files, as published, and over a part that is read again and again.
///
/// # Errors
/// Something happened that must not.
pub fn a6(options: Options) -> Result<Outcome, Violation> {
    let machine = nfs_server();
    let mut out = Outcome::default();
    let run = |store: Store, bytes: u64, seconds: u64| {
        let files = File::several(0, 0, 0, 64, bytes);
        let mut driver = machine.drive(store, options.seed, randoms(files, 100, options.seed));
        Ok::<_, Violation>(driver.seconds(seconds)?[0].clone())
    };
    let cached = |bytes: u64| machine.cached(Mode::WriteBack, 1, 64 * bytes, options.seed);
    let seconds = options.window() + options.settle();
    let (bare, back) = (run(machine.bare(1), 4 * GIB, seconds)?, run(cached(4 * GIB)?, 4 * GIB, seconds)?);
    out.calibrate("bare array, 64 clients, reads/s", bare.per_s, PUBLISHED_READS);
    let theirs_cold = Store::models(vec![Box::new(Theirs::new(Published::FluidWriteBack, &machine.array, &machine.ssd, false))]);
    let theirs = run(theirs_cold, 4 * GIB, seconds)?;
    let reached = [(Who::Bare, bare.per_s), (Who::Back, back.per_s), (Who::Theirs, theirs.per_s)];
    out.figure("random 4 KiB read, cold, each place once, 64 clients", "reads/s", &reached);
    out.must("each place once, by bare", back.per_s / bare.per_s, 0.97);
    let least =
        back.per_second.iter().zip(&bare.per_second).map(|(a, b)| *a as f64 / (*b as f64).max(1.0)).fold(f64::INFINITY, f64::min);
    out.note(format!("The worst single second against the same second of the bare array: {least:.2}."));
    // A part of 2 GiB is read again and again: the curve on which a cache warms up.
    let (part, long) = if options.quick { (2 * MIB, 20) } else { (16 * MIB, 180) };
    let (again_bare, again) = (run(machine.bare(1), part, long)?, run(cached(part)?, part, long)?);
    let least = again.per_second.iter().zip(&again_bare.per_second).map(|(a, b)| *a as f64 / (*b as f64).max(1.0));
    out.must("a part read again and again: no second under bare", least.fold(f64::INFINITY, f64::min), 0.97);
    let line = |who: Who, what: &str, r: &crate::bench::measure::Reached| {
        (who, what.to_owned(), r.per_second.iter().enumerate().map(|(s, n)| (s as f64, *n as f64)).collect::<Vec<_>>())
    };
    out.lines(
        "Random 4 KiB read from a cold cache, each place once",
        "seconds",
        "reads/s",
        Scale::Powers,
        vec![line(Who::Bare, "bare", &bare), line(Who::Back, "Headpond", &back)],
    );
    let title = format!("The same over a part of {:.0} MiB that is read again and again", (64 * part) as f64 / MIB as f64);
    out.lines(
        &title,
        "seconds",
        "reads/s",
        Scale::Powers,
        vec![line(Who::Bare, "bare", &again_bare), line(Who::Back, "Headpond", &again)],
    );
    out.aim("a region fill: each place once, reads/s by the published 80,000", back.per_s / 80_000.0, 1.0);
    out.note("A region is brought whole when two places in it were missed and such fills have paid before. Of 256 GiB each MiB is asked for once in half a minute here, so that this window ends before any can have paid: the aim is not reached. The model of theirs is cold here, without a fill of its own.");
    Ok(out)
}
