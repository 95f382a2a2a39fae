//! The experiments for real: the field's tools on a real file system, on modelled disks in real time, bare and cached.
//!
//! [`catalogue`] is the table; [`modelled`] and [`rig`] what they run on, [`tools`] and [`fio`] what they run, [`rounds`] how it is
//! measured. Those of the NFS server have a rig of their own, [`nfs_rig`], which also takes [`given`] devices. Each experiment is told in
//! one of the other files.

mod b;
mod c_apps;
mod c_small;
mod c_streams;
mod catalogue;
mod fio;
pub mod given;
mod ior;
mod machine;
mod metadata;
pub mod modelled;
mod nfs_load;
mod nfs_random;
mod nfs_rig;
mod nfs_server;
mod nfs_streams;
mod processors;
pub mod rig;
mod rounds;
mod tar;
#[cfg(test)]
mod tests;
mod tools;

pub use catalogue::takes_devices;
pub use machine::{missing, parameters, parameters_of_devices};
pub use tools::Interrupted;

use crate::demo::{FileSystem, number};
use anyhow::Result;
use catalogue::{ALL, Form};
use given::Given;
use headpond_host::report::Volume;
use headpond_sim::experiments::outcome::{Missing, Outcome, Who};
use headpond_sim::experiments::{Experiment, Report};
use nfs_rig::NfsRig;
use rig::{Plan, Rig};
use rounds::Samples;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How the experiments are run.
pub struct Run<'a> {
    /// Fewer rounds, shorter windows, fewer points.
    pub quick: bool,
    /// The folder in which each makes its own, which are removed.
    pub folder: PathBuf,
    /// The file system.
    pub system: FileSystem,
    /// Devices to be overwritten, for those that take them.
    pub given: Option<Given>,
    /// Ends it.
    pub stop: &'a AtomicBool,
    rigs: AtomicU32,
}

/// Why one failed, in words: what the cause was, and what to do.
fn failed(error: &anyhow::Error) -> String {
    format!("{error:#}. What it had made was removed. Run it again by itself, and report it if it fails again")
}

impl<'a> Run<'a> {
    /// A run that has not begun.
    pub fn new(quick: bool, folder: PathBuf, system: FileSystem, given: Option<Given>, stop: &'a AtomicBool) -> Run<'a> {
        Run { quick, folder, system, given, stop, rigs: AtomicU32::new(0) }
    }

    /// Runs one. An error ends all of them: somebody wants it.
    pub fn report(&self, experiment: &Experiment) -> Result<Report, Interrupted> {
        let Experiment { id, title, published, wanted, .. } = *experiment;
        let of = |method, outcome| Report { id, title, method, published, wanted, outcome };
        match ALL.iter().find(|(it, _)| *it == id).map(|(_, form)| form) {
            None => Ok(of("Not done.", Err(Missing::NotHere("nobody wrote it yet".into())))),
            Some(Form { method, tools, run }) => {
                if let Some(why) = tools.iter().find_map(|tool| tool.missing()) {
                    return Ok(of(method, Err(Missing::NotHere(why))));
                }
                match run(self) {
                    Err(error) if error.is::<Interrupted>() || self.stopped() => Err(Interrupted),
                    outcome => Ok(of(method, outcome.map_err(|error| Missing::Failed(failed(&error))))),
                }
            }
        }
    }

    /// How many times slower than what they stand for the devices are.
    fn slower(&self) -> u64 {
        self.given.as_ref().map_or(1, |it| it.slower)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Rounds of measurements.
    fn rounds(&self) -> usize {
        if self.quick { 2 } else { 5 }
    }

    /// Seconds that count.
    fn window(&self) -> u64 {
        if self.quick { 2 } else { 3 }
    }

    /// Seconds in which a small cache fills.
    fn filling(&self) -> u64 {
        if self.quick { 4 } else { 6 }
    }

    /// Sets up what an experiment runs on.
    fn rig(&self, plan: Plan) -> Result<Rig<'a>> {
        let n = self.rigs.fetch_add(1, Ordering::Relaxed);
        Rig::set_up(&self.folder.join(n.to_string()), plan, self.system, self.stop)
    }

    /// Sets up what an experiment of the NFS server runs on.
    fn nfs_rig(&self, plan: &nfs_rig::Plan<'_>) -> Result<NfsRig<'a>> {
        let n = self.rigs.fetch_add(1, Ordering::Relaxed);
        NfsRig::set_up(&self.folder.join(n.to_string()), self.given.as_ref(), plan, machine::exported(self.system), self.stop)
    }

    /// Says what the front end takes, by itself.
    fn tax(&self, out: &mut Outcome, samples: &Samples, names: &[&str]) {
        let all: Vec<(usize, &str)> = names.iter().copied().enumerate().collect();
        self.tax_of(out, samples, &all);
    }

    /// The same of these quantities alone.
    fn tax_of(&self, out: &mut Outcome, samples: &Samples, quantities: &[(usize, &str)]) {
        let all = quantities.iter().map(|(n, name)| {
            let ratio = samples.ratio((Who::Front, *n), (Who::Bare, *n));
            format!("{name} {:.3} ({:.3} to {:.3})", ratio.median, ratio.spread[0], ratio.spread[1])
        });
        out.note(format!("The front end by itself (pass-through by the disk itself): {}.", all.collect::<Vec<_>>().join(", ")));
    }

    /// Says what became of the requests of the cached volume since its rig was set up, as its daemon counts them, and how busy the
    /// processors were.
    fn fates(&self, out: &mut Outcome, rig: &Rig<'_>) -> Result<()> {
        self.fates_of(out, &rig.cached()?);
        rig.busy().tell(out);
        Ok(())
    }

    /// The same of a volume.
    fn fates_of(&self, out: &mut Outcome, volume: &Volume) {
        let it = volume.requests.clone();
        let fates = [
            ("hits", it.hit),
            ("partial hits", it.partial_hit),
            ("misses", it.miss),
            ("reads of streams past the cache", it.read_bypass),
            ("writes absorbed", it.absorbed),
            ("admitted", it.admitted),
            ("destaged", it.destaged),
        ];
        let mut all: Vec<(String, u64, u64)> = fates.iter().map(|(name, n)| ((*name).into(), n.requests, n.bytes)).collect();
        // Zeroes are what making the file system wrote.
        let past = it.write_bypass.into_iter().filter(|(why, _)| why != "zeroes");
        all.extend(past.map(|(why, n)| (format!("writes past the cache ({why})"), n.requests, n.bytes)));
        let words = all
            .iter()
            .filter(|it| it.1 > 0)
            .map(|(name, requests, bytes)| format!("{name} {} of {:.0} MB", number(*requests as f64), *bytes as f64 / 1e6));
        let flushes = format!("{} flushes", number(it.flushes as f64));
        out.note(format!("The cached volume's counters: {}, {flushes}.", words.collect::<Vec<_>>().join(", ")));
    }
}
