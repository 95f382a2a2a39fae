//! What `preload`, `pin` and `unpin` are about: files and folders, by where their file system has them, and ranges of volumes.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use headpond_host::control::Runs;
use headpond_host::extents::{self, Files};
use headpond_host::journal;
use headpond_host::report::Report;

use crate::exit::Usage;
use crate::size;

/// What was named, as runs of bytes of volumes.
#[derive(Default)]
pub struct Targets {
    /// By the volume's name.
    pub runs: BTreeMap<String, Vec<Range<u64>>>,
    /// Files that were looked at.
    pub files: u64,
    /// Bytes of them that have no place of their own on a volume.
    pub without_place: u64,
}

impl Targets {
    /// Files and folders, and ranges as `VOLUME:OFFSET+LENGTH`. `reserved`: also space that files have and never wrote.
    pub fn of(report: &Report, names: &[String], reserved: bool) -> anyhow::Result<Targets> {
        let mut targets = Targets::default();
        let mut files = Files::default();
        for name in names {
            match range(report, name) {
                Some(found) if !Path::new(name).exists() => {
                    let (volume, run) = found?;
                    targets.runs.entry(volume).or_default().push(run);
                }
                _ => files.add(Path::new(name), reserved)?,
            }
        }
        (targets.files, targets.without_place) = (files.files, files.without_place);
        for (device, runs) in files.runs {
            targets.add(report, device, runs)?;
        }
        targets.merge();
        Ok(targets)
    }

    /// The journal of the file system on a volume, or on the device of a mount point.
    pub fn journal(report: &Report, on: &str) -> anyhow::Result<(Targets, &'static str)> {
        let volume = report.volumes.iter().find(|volume| volume.name == *on);
        let path = match volume {
            Some(volume) => volume.place.clone().filter(|place| place.starts_with('/')).ok_or_else(|| {
                Usage(format!(
                    "Volume {on} has no block device on this host, whose file system could be looked at. Nothing was changed. Name the \
                     mount point of its file system, or the journal's range as {on}:OFFSET+LENGTH"
                ))
            })?,
            None => on.to_owned(),
        };
        let not_there = |error| {
            let names: Vec<&str> = report.volumes.iter().map(|volume| volume.name.as_str()).collect();
            Usage(format!(
                "{on} is neither a volume of pool {} nor a mount point: {error}. Nothing was changed. Name a mount point, or one of its volumes: {}",
                report.pool,
                names.join(", ")
            ))
        };
        let device = extents::device_of(Path::new(&path)).map_err(not_there)?;
        let node = format!("/dev/block/{}", extents::number(device));
        let node = if Path::new(&node).exists() { node } else { path };
        let disk = fs::File::open(&node).map_err(|error| Usage(format!("{node} cannot be read: {error}. Run it as root")))?;
        let mut read = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            disk.read_exact_at(&mut bytes, at).map(|()| bytes)
        };
        let found = journal::find(&mut read).map_err(|error| Usage(format!("On {on}: {error}")))?;
        let mut targets = Targets::default();
        targets.add(report, device, found.runs)?;
        targets.merge();
        Ok((targets, found.of))
    }

    /// Runs of a block device, which is a volume or a partition of one.
    fn add(&mut self, report: &Report, device: u64, runs: Vec<Range<u64>>) -> anyhow::Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        let (whole, start) = extents::whole_device(device);
        let is_it = |place: &Option<String>| place.as_ref().is_some_and(|p| fs::metadata(p).is_ok_and(|is| is.rdev() == whole));
        let volume = report.volumes.iter().find(|volume| is_it(&volume.place)).ok_or_else(|| {
            Usage(format!(
                "What was named is on device {}, which is no volume of pool {} and no partition of one. Nothing was changed. Name files of \
                 a file system that is on a volume itself, without RAID, LVM or encryption between; or ranges, as VOLUME:OFFSET+LENGTH",
                extents::number(device),
                report.pool
            ))
        })?;
        // A file's last block may go beyond the end of what the file system has.
        let place = |at: u64| at.saturating_add(start).min(volume.bytes);
        let within = |run: Range<u64>| place(run.start)..place(run.end);
        self.runs.entry(volume.name.clone()).or_default().extend(runs.into_iter().map(within));
        Ok(())
    }

    fn merge(&mut self) {
        for runs in self.runs.values_mut() {
            *runs = extents::merged(std::mem::take(runs));
        }
    }

    /// The calls that it takes to name all of a volume's runs.
    pub fn calls(&self) -> impl Iterator<Item = Runs> + '_ {
        self.runs.iter().flat_map(|(name, runs)| {
            let few = runs.chunks(Runs::MOST).map(|few| few.iter().map(|run| [run.start, run.end - run.start]).collect());
            few.map(|runs| Runs { name: name.clone(), runs })
        })
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.runs.values().flatten().map(|run| run.end - run.start).sum()
    }

    /// Nothing that could be named was found.
    pub fn none_found(&self) -> anyhow::Error {
        Usage(format!(
            "There is nothing to be cached in what was named: {} files without data of their own on a volume. Nothing was changed. Name \
             files that hold data, or ranges as VOLUME:OFFSET+LENGTH",
            self.files
        ))
        .into()
    }
}

/// A range such as `v:0+1GiB`, if the name has that form.
fn range(report: &Report, text: &str) -> Option<anyhow::Result<(String, Range<u64>)>> {
    let (volume, rest) = text.rsplit_once(':')?;
    let (offset, length) = rest.split_once('+')?;
    let (offset, length) = (size::parse(offset).ok()?, size::parse(length).ok()?);
    Some(match report.volumes.iter().find(|known| known.name == *volume) {
        Some(known) if length == 0 || offset.checked_add(length).is_none_or(|end| end > known.bytes) => Err(Usage(format!(
            "{text} is empty, or goes beyond the end of volume {volume}, which has {} bytes. Nothing was changed. Name ranges inside it",
            known.bytes
        ))
        .into()),
        Some(_) => Ok((volume.to_owned(), offset..offset + length)),
        None => {
            let names: Vec<&str> = report.volumes.iter().map(|volume| volume.name.as_str()).collect();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            Err(Usage(format!(
                "There is no volume {volume} on pool {}. Nothing was changed. Choose one of its volumes: {names}",
                report.pool
            ))
            .into())
        }
    })
}
