//! A1, A2, A7: sequential writes and reads through NFS.

use super::drive::Process;
use super::hardware::nfs_server;
use super::outcome::{Outcome, Scale, Who};
use super::point::{GIB, MIB, Options, last, least_ratio, mib, points};
use super::rig::{Store, warm_up};
use super::script::{File, Stream};
use super::theirs::{Published, Theirs};
use crate::world::Violation;
use headpond_engine::format::Mode;

/// Requests of 1 MiB that a client's page cache has under way.
const AHEAD: usize = 8;
const COUNTS: [u64; 5] = [1, 4, 16, 32, 64];

fn streams(files: Vec<File>, writes: bool) -> Vec<Process> {
    let process = |(client, file): (usize, File)| Process {
        group: 0,
        client,
        lanes: AHEAD,
        script: Box::new(Stream::new(file, writes, MIB)),
    };
    files.into_iter().enumerate().map(process).collect()
}

fn store(who: Who, files: &[File], warm: bool, options: Options) -> Result<Store, Violation> {
    let machine = nfs_server();
    let extent = files[0].end();
    let model = |kind| Store::models(vec![Box::new(Theirs::new(kind, &machine.array, &machine.ssd, warm))]);
    Ok(match who {
        Who::Bare | Who::Front => machine.bare(1),
        Who::Back => machine.cached(Mode::WriteBack, 1, extent, options.seed)?,
        Who::Through => machine.cached(Mode::WriteThrough, 1, extent, options.seed)?,
        Who::Ssds => machine.ssds(),
        Who::Theirs => model(Published::FluidWriteBack),
        Who::TheirsThrough => model(Published::FluidWriteThrough),
    })
}

/// What so many clients reach, in MiB/s, for each of `counts`.
fn sweep(counts: &[u64], bytes: u64, writes: bool, who: Who, options: Options) -> Result<Vec<f64>, Violation> {
    let point = |n: &u64| {
        let files = File::several(0, 0, 0, *n, bytes);
        let store = store(who, &files, false, options)?;
        Ok(mib(&options.steady(&nfs_server(), store, streams(files, writes))?[0]))
    };
    counts.iter().map(point).collect()
}

/// A1: sequential write, and re-write.
///
/// # Errors
/// Something happened that must not.
pub fn a1(options: Options) -> Result<Outcome, Violation> {
    let counts = options.counts(&COUNTS);
    let mut out = Outcome::default();
    let mut lines = Vec::new();
    let mut ratios = Vec::new();
    for (what, bytes) in [("sequential write", 4 * GIB), ("re-write", 512 * MIB)] {
        // Files that are small enough are gone through again and again.
        let bare = sweep(&counts, bytes, true, Who::Bare, options)?;
        let back = sweep(&counts, bytes, true, Who::Back, options)?;
        let through = sweep(&counts, bytes, true, Who::Through, options)?;
        let mut reached = vec![(Who::Bare, last(&bare)), (Who::Back, last(&back)), (Who::Through, last(&through))];
        ratios.push((format!("{what}, write-back, at the worst number of clients"), least_ratio(&back, &bare)));
        ratios.push((format!("{what}, write-through, at the worst number of clients"), least_ratio(&through, &bare)));
        if lines.is_empty() {
            out.calibrate("bare array, 64 clients, MiB/s", last(&bare), 2000.0);
            let theirs = sweep(&counts, bytes, true, Who::Theirs, options)?;
            let theirs_through = sweep(&counts, bytes, true, Who::TheirsThrough, options)?;
            reached.extend([(Who::Theirs, last(&theirs)), (Who::TheirsThrough, last(&theirs_through))]);
            let all = [bare, back, through, theirs, theirs_through];
            let whose = [Who::Bare, Who::Back, Who::Through, Who::Theirs, Who::TheirsThrough];
            lines = whose.into_iter().zip(all).map(|(w, v)| (w, w.name().to_owned(), points(&counts, &v))).collect();
        }
        out.figure(format!("{what}, {} clients", counts[counts.len() - 1]), "MiB/s", &reached);
    }
    for (what, ratio) in ratios {
        out.must(format!("{what}, by bare"), ratio, 0.97);
    }
    out.lines("Sequential write", "clients", "MiB/s", Scale::Linear, lines);
    Ok(out)
}

/// A2: sequential read of what is cached.
///
/// # Errors
/// Something happened that must not.
pub fn a2(options: Options) -> Result<Outcome, Violation> {
    let counts = options.counts(&[1, 4, 16, 64]);
    let mut out = Outcome::default();
    let mut lines = Vec::new();
    let mut all = Vec::new();
    // Scaled: what the clients read over and over is 4 GiB, all of it in the cache.
    let total = if options.quick { GIB } else { 4 * GIB };
    for who in [Who::Bare, Who::Back, Who::Ssds, Who::Theirs] {
        let mut values = Vec::new();
        for n in &counts {
            let files = File::several(0, 0, 0, *n, total / n);
            let extent = files[0].end();
            let mut store = store(who, &files, true, options)?;
            warm_up(&mut store, extent, 0..extent, options.seed)?;
            values.push(mib(&options.steady(&nfs_server(), store, streams(files, false))?[0]));
        }
        lines.push((who, who.name().to_owned(), points(&counts, &values)));
        all.push(values);
    }
    let better: Vec<f64> = all[0].iter().zip(&all[2]).map(|(a, b)| a.max(*b)).collect();
    let sum: Vec<f64> = all[0].iter().zip(&all[2]).map(|(a, b)| a + b).collect();
    let reached =
        [(Who::Bare, last(&all[0])), (Who::Back, last(&all[1])), (Who::Ssds, last(&all[2])), (Who::Theirs, last(&all[3]))];
    out.figure(format!("sequential read of what is cached, {} clients", counts[counts.len() - 1]), "MiB/s", &reached);
    out.must("by the better of disks and SSDs, at the worst number of clients", least_ratio(&all[1], &better), 0.97);
    let link = nfs_server().front.server_rate as f64 / MIB as f64;
    let reachable: Vec<f64> = sum.iter().map(|s| s.min(link)).collect();
    out.aim("by the sum of disks and SSDs, or the server's link if that is less", last(&all[1]) / last(&reachable), 0.97);
    out.lines("Sequential read of what is cached", "clients", "MiB/s", Scale::Linear, lines);
    Ok(out)
}

/// A7: sequential read with a cold cache.
///
/// # Errors
/// Something happened that must not.
pub fn a7(options: Options) -> Result<Outcome, Violation> {
    let counts = options.counts(&[1, 4, 16, 64]);
    let mut out = Outcome::default();
    let bare = sweep(&counts, 4 * GIB, false, Who::Bare, options)?;
    let back = sweep(&counts, 4 * GIB, false, Who::Back, options)?;
    let reached = [(Who::Bare, last(&bare)), (Who::Back, last(&back))];
    out.figure(format!("sequential read, cache empty, {} clients", counts[counts.len() - 1]), "MiB/s", &reached);
    out.must("by bare, at the worst number of clients", least_ratio(&back, &bare), 0.97);
    let line = |who: Who, values: &[f64]| (who, who.name().to_owned(), points(&counts, values));
    out.lines(
        "Sequential read, cache empty",
        "clients",
        "MiB/s",
        Scale::Linear,
        vec![line(Who::Bare, &bare), line(Who::Back, &back)],
    );
    Ok(out)
}
