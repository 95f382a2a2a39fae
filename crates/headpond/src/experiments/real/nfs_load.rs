//! What clients do on the NFS server, and how busy the processors are meanwhile.

use super::Run;
use super::fio::{JobFile, Rates, job};
use super::nfs_rig::NfsRig;
use super::processors::watched;
use super::rounds::Samples;
use anyhow::Result;
use headpond_sim::experiments::outcome::{Outcome, Who};

const JOB: JobFile = job!("nfs");
/// Bytes of a stream's request when it writes, as the job has it, and when it reads.
const STREAM: [f64; 2] = [4.0 * 1024.0 * 1024.0, 1024.0 * 1024.0];

/// Clients, each with a file.
#[derive(Clone, Copy)]
pub(super) struct Load {
    /// What the files are called.
    pub files: &'static str,
    /// How many at a time.
    pub clients: u64,
    /// Bytes of each file.
    pub bytes: u64,
    /// Bytes of the part of it that is read again and again.
    pub part: u64,
}

/// What a load reached, how busy the processors were, in percent, and how many milliseconds of one the daemon took for each of what is
/// counted: a megabyte or a request.
#[derive(Clone, Copy)]
pub(super) struct Reached {
    pub rate: f64,
    pub busy: f64,
    pub daemon: f64,
}

impl Load {
    fn rates(&self, rig: &NfsRig<'_>, folders: &str, section: &str, ramp: u64, seconds: u64) -> Result<(Rates, f64, f64)> {
        let values = [
            ("FILES", self.files.to_owned()),
            ("CLIENTS", self.clients.to_string()),
            ("SIZE", self.bytes.to_string()),
            ("PART", self.part.to_string()),
            ("RAMP", ramp.to_string()),
            ("SECONDS", seconds.to_string()),
        ];
        let before = rig.daemon_seconds()?;
        let (rates, busy) = watched(|| rig.fio(folders, JOB, &[section], &values))?;
        Ok((rates, busy, (rig.daemon_seconds()? - before) * 1000.0))
    }

    /// Streams over all files, once: megabytes a second, until the last is done.
    pub fn stream(&self, rig: &NfsRig<'_>, folders: &str, section: &str) -> Result<Reached> {
        let (rates, busy, daemon) = self.rates(rig, folders, section, 0, 1)?;
        let bytes = STREAM[usize::from(section == "read")];
        let megabytes = (self.bytes * self.clients) as f64 / 1e6;
        let rate = rates.get(section).map_or(0.0, |it| it.together) * bytes / 1e6;
        Ok(Reached { rate, busy, daemon: daemon / megabytes })
    }

    /// Random requests for a while: so many a second.
    pub fn random(&self, rig: &NfsRig<'_>, folders: &str, section: &str, ramp: u64, seconds: u64) -> Result<Reached> {
        let (rates, busy, daemon) = self.rates(rig, folders, section, ramp, seconds)?;
        let rate = rates.get(section).map_or(0.0, |it| it.requests);
        // Those of the seconds before anything counts were about as many.
        Ok(Reached { rate, busy, daemon: daemon / (rate * (ramp + seconds) as f64).max(1.0) })
    }

    /// Has as much dirty as there is room for, or as can be written in so many seconds, by random writes on the server itself.
    pub fn fill(&self, rig: &NfsRig<'_>, who: Who, seconds: u64) -> Result<()> {
        self.rates(rig, &rig.locals(&rig.folders(who)), "fill", 0, seconds).map(drop)
    }

    /// Writes the files once, where they are measured.
    pub fn lay_out(&self, rig: &NfsRig<'_>, whos: &[Who]) -> Result<()> {
        for who in whos {
            self.rates(rig, &rig.locals(&rig.folders(*who)), "lay-out", 0, 1)?;
            rig.settle(*who)?;
        }
        Ok(())
    }
}

/// What whoever is measured reached at each point; after all of these how busy the processors were at each, and then the daemon's time.
pub(super) fn quantities(all: &[Reached]) -> Vec<f64> {
    all.iter().map(|it| it.rate).chain(all.iter().map(|it| it.busy)).chain(all.iter().map(|it| it.daemon)).collect()
}

/// Says of each point, by what was done there, how busy the processors were and what the daemon took of them; and what the way over NFS
/// gives from memory at the last.
pub(super) fn limits(out: &mut Outcome, samples: &Samples, whos: &[Who], done: &[String], memory: Reached, unit: &str) {
    let points = done.len();
    for (n, what) in done.iter().enumerate() {
        let busy = whos.iter().map(|who| format!("{} {:.0} %", who.name(), samples.median(*who, points + n)));
        let busy = busy.collect::<Vec<_>>().join(", ");
        let behind = whos.iter().filter(|who| **who != Who::Bare);
        let daemon = behind.map(|who| format!("{} {:.2}", who.name(), samples.median(*who, 2 * points + n)));
        let daemon = daemon.collect::<Vec<_>>().join(", ");
        out.note(format!(
            "The processors, {what}, in the busier half of the time: {busy} busy. The daemon took, in ms of one for each of {unit}: {daemon}."
        ));
    }
    out.note(format!(
        "As the last, on a file system in memory, no device and no front end behind it: {} {unit} a second, {:.0} % busy.",
        crate::experiments::quantity(memory.rate),
        memory.busy
    ));
}

/// A load's turn on memory: what the server, its clients and fio can do at most.
pub(super) fn from_memory(rig: &NfsRig<'_>, run: &Run<'_>, folder: &str, load: Load, section: &str) -> Result<Reached> {
    let streams = matches!(section, "write" | "read");
    // It is small: as many bytes as fit.
    let load = Load { files: "memory", bytes: (load.bytes * load.clients).min(128 << 20) / load.clients, ..load };
    load.rates(rig, &rig.locals(folder), "lay-out", 0, 1)?;
    if streams { load.stream(rig, folder, section) } else { load.random(rig, folder, section, 1, 2 * run.window()) }
}
