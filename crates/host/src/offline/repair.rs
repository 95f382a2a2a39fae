//! Puts right what another copy proves, or the checkpoint, and nothing else. What is written over is saved first, and can be [put back](super::undo).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use headpond_engine::election::WitnessVote;
use headpond_format::checksum;
use serde::{Deserialize, Serialize};

use super::check::{Summary, check};
use super::finding::{Finding, Mend};
use super::media::{Device, Media, around, write_back};
use super::{OfflineError, Watch};
use crate::state::hex;

/// The version of the file that a repair can be undone with. One of version 1 did not say how new the pool was, and is not undone: nobody
/// could tell whether it was served since.
pub(super) const VERSION: u32 = 2;

/// Why a repair, or its undoing, ended before its end.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum RepairError {
    #[error(transparent)]
    Offline(#[from] OfflineError),
    #[error(
        "{refusal} Nothing was changed: what to mend is proved by the pool's newest superblock, and that cannot be proved to be \
         here. Name the missing devices, or the old host's state folder with --state"
    )]
    Unproven { refusal: String },
    #[error(
        "{path} cannot be made: {source}. Nothing was changed. Name with --save a file that does not exist yet, on another device"
    )]
    Save { path: PathBuf, source: io::Error },
    #[error(
        "{path} cannot be written to any more: {source}. What was not saved was not changed. {done} places were mended; \
         `headpond repair --undo {path}` puts them back, another repair with another file goes on"
    )]
    Saving { path: PathBuf, source: io::Error, done: u64 },
    #[error(
        "{path} at byte {offset}: {source}. {done} places were mended before. Replace the device; its twin is whole where this one \
         was to be mended"
    )]
    Write { path: PathBuf, offset: u64, source: io::Error, done: u64 },
    #[error(
        "{path} does not say that what was written to it is durable: {source}. A power cut may bring back what was there before. Look at the \
         kernel's log; then repair again with another file, or replace the device"
    )]
    Flush { path: PathBuf, source: io::Error },
    #[error("Cancelled. {done} places were mended, each as a whole. Repair again to go on; `headpond repair --undo {}` puts them back", save.display())]
    Cancelled { done: u64, save: PathBuf },
    #[error(
        "The output cannot be written: {source}. {done} places were mended, each as a whole. Repair again with another file to go on; \
         `headpond repair --undo {save}` puts them back"
    )]
    Output { done: u64, save: PathBuf, source: io::Error },
    #[error("{path} cannot be read: {source}. Nothing was changed. Name the file that the repair was given with --save")]
    NoSave { path: PathBuf, source: io::Error },
    #[error(
        "{path} is no file of a repair, or it is damaged (line {line}: {why}). Nothing was changed. Name the file that the repair was given with --save"
    )]
    BadSave { path: PathBuf, line: usize, why: String },
    #[error(
        "Member {member} of pool {pool}, which the repair had changed, was not named. Nothing was changed. Name all devices that it changed"
    )]
    NotNamed { member: String, pool: String },
    #[error(
        "{path} was written to at byte {offset} since it was repaired: to put back what was there before would damage it. \
         Nothing was changed. Keep it as it is: a repaired pool that has been served cannot be put back"
    )]
    Changed { path: PathBuf, offset: u64 },
    #[error(
        "Pool {pool} was served, or written back, since it was repaired: {path} has a newer state of it. To put back what was there before would \
         damage that. Nothing was changed. Keep it as it is: a repaired pool that has been served cannot be put back"
    )]
    Served { path: PathBuf, pool: String },
}

/// What a repair came to.
#[derive(Debug, Serialize)]
pub struct Repaired {
    /// What the check found, before.
    pub summary: Summary,
    /// Places that were mended; in a rehearsal, that would be.
    pub mended: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Findings of damage or loss that nothing proves how to mend, or that cannot be mended without losing what lies beside.
    pub left: u64,
}

/// The first line of a save file.
#[derive(Serialize, Deserialize)]
pub(super) struct Head {
    pub headpond_undo: u32,
    pub pool: String,
    pub name: String,
    /// How new the pool was ([`Superblock::newness`](headpond_format::Superblock::newness)): each start makes it newer, on each device that
    /// takes part.
    pub newness: (u64, u64, u64),
}

/// One place that was changed.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    /// Identity of the device in its pool.
    pub member: String,
    /// Where it was; for people.
    path: String,
    /// Where on it, in bytes.
    pub offset: u64,
    /// What was there, in hexadecimal; none if it could not be read.
    pub old: Option<String>,
    /// Length in bytes, and XXH3-64 of what was put there.
    pub bytes: u64,
    pub new: String,
    /// XXH3-64 of all that the line says, so that what has rotted in the file is not put back; none in files from before it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum: Option<String>,
}

impl Saved {
    fn sum(&self) -> String {
        let old = self.old.as_deref().unwrap_or("none");
        sum_of(&format!("{} {} {} {old} {}", self.member, self.offset, self.bytes, self.new).into_bytes())
    }

    pub fn is_sound(&self) -> bool {
        self.sum.as_ref().is_none_or(|sum| *sum == self.sum())
    }
}

/// XXH3-64, in hexadecimal.
pub(super) fn sum_of(bytes: &[u8]) -> String {
    format!("{:016x}", checksum(0, bytes))
}

/// Checks a pool and mends what another copy, or the checkpoint, proves. `save` is made, and holds what was there before each change; without
/// it nothing is changed.
///
/// # Errors
/// Too few votes, or a file or a device that cannot be written; what was done until then is whole, and saved.
pub fn repair(
    media: &Media,
    vote: WitnessVote,
    save: Option<&Path>,
    tell: &mut dyn FnMut(Finding) -> Result<(), OfflineError>,
    watch: Watch<'_>,
) -> Result<Repaired, RepairError> {
    let pool = media.pool(vote)?;
    if let Some(refusal) = &pool.unproven {
        return Err(RepairError::Unproven { refusal: refusal.to_string() });
    }
    let newest = pool.superblock();
    let head = Head { headpond_undo: VERSION, pool: hex(&newest.pool), name: newest.name.clone(), newness: newest.newness() };
    let mut saver = save.map(|path| Saver::make(path, &head)).transpose()?;
    let (mut mended, mut bytes, mut left, mut failed) = (0, 0, 0, None);
    let checked = check(
        media,
        vote,
        &mut |finding| {
            let (finding, beside) = parted(media, finding);
            let is_left = finding.iter().any(|finding| finding.mendable.is_empty()) || beside.is_some();
            let level = finding.as_ref().or(beside.as_ref()).map(|finding| finding.level);
            left += u64::from(is_left && level > Some(super::Level::Note));
            for mend in finding.iter().flat_map(|finding| &finding.mendable) {
                if let Some(saver) = &mut saver
                    && let Err(error) = saver.mend(&media.devices[mend.device], mend, mended)
                {
                    failed = Some(error);
                    return Err(OfflineError::Cancelled);
                }
                mended += 1;
                bytes += mend.bytes.len() as u64;
            }
            finding.into_iter().chain(beside).try_for_each(&mut *tell)
        },
        watch,
    );
    if let Some(error) = failed {
        return Err(error);
    }
    match (checked, save) {
        (Ok(summary), _) => Ok(Repaired { summary, mended, bytes, left }),
        (Err(OfflineError::Cancelled), Some(save)) => Err(RepairError::Cancelled { done: mended, save: save.to_owned() }),
        (Err(OfflineError::Output(source)), Some(save)) => {
            Err(RepairError::Output { done: mended, save: save.to_owned(), source })
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// A finding as far as it can be mended, and as far as it has to be left: a device writes whole pages, and what lies beside on one that cannot be read
/// would be lost with it.
fn parted(media: &Media, finding: Finding) -> (Option<Finding>, Option<Finding>) {
    let fits = |mend: &Mend| {
        let device = &media.devices[mend.device];
        let len = mend.bytes.len() as u64;
        let (from, to) = around(device, mend.offset, len);
        (from, to) == (mend.offset, mend.offset + len) || device.read(from, to - from).is_ok()
    };
    if finding.mendable.iter().all(fits) {
        return (Some(finding), None);
    }
    let (mendable, left): (Vec<Mend>, Vec<Mend>) = finding.mendable.clone().into_iter().partition(fits);
    let next = format!(
        "Replace the device with `headpond pool replace`. Another copy proves what belongs there, but at {} of its places what lies beside it cannot \
         be read, and would be lost",
        left.len()
    );
    let beside = Finding { mendable: Vec::new(), next, ..finding.clone() };
    let mended = Finding { mendable, ..finding };
    (Some(mended).filter(|finding| !finding.mendable.is_empty()), Some(beside))
}

/// The file with what was there before.
struct Saver {
    path: PathBuf,
    file: File,
}

impl Saver {
    fn make(path: &Path, head: &Head) -> Result<Saver, RepairError> {
        let failed = |source| RepairError::Save { path: path.to_owned(), source };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        let mut saver = Saver { path: path.to_owned(), file };
        saver.line(head).map_err(failed)?;
        // The file's name must be as durable as what it holds.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        Ok(saver)
    }

    /// Appends a line, durably.
    fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.file.sync_data()
    }

    /// Saves what is at a place, and puts there what belongs there.
    fn mend(&mut self, device: &Device, mend: &Mend, done: u64) -> Result<(), RepairError> {
        let failed = |source| RepairError::Write { path: device.path().to_owned(), offset: mend.offset, source, done };
        let (from, to) = around(device, mend.offset, mend.bytes.len() as u64);
        let old = device.read(from, to - from).ok();
        let mut new = match &old {
            Some(old) => old.as_slice().to_vec(),
            // Nothing is there to be kept, and nothing to be lost.
            None if (from, to) == (mend.offset, mend.offset + mend.bytes.len() as u64) => mend.bytes.clone(),
            None => return Err(failed(io::Error::other("what lies beside it cannot be read, and would be lost"))),
        };
        new[(mend.offset - from) as usize..][..mend.bytes.len()].copy_from_slice(&mend.bytes);
        let mut saved = Saved {
            member: identity(device).unwrap_or_default(),
            path: device.path().display().to_string(),
            offset: from,
            old: old.as_ref().map(|old| encode(old.as_slice())),
            bytes: to - from,
            new: sum_of(&new),
            sum: None,
        };
        saved.sum = Some(saved.sum());
        self.line(&saved).map_err(|source| RepairError::Saving { path: self.path.clone(), source, done })?;
        write_back(device, from, &new).map_err(failed)
    }
}

/// The identity of a device in its pool.
pub(super) fn identity(device: &Device) -> Option<String> {
    let s = device.superblock.as_ref().or(device.may_be_older.as_ref())?;
    s.members.get(usize::from(s.member)).map(|member| hex(&member.id))
}

fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |text, byte| text + &format!("{byte:02x}"))
}

/// All that was written is durable.
///
/// # Errors
/// A device does not say so.
pub fn flush(media: &Media) -> Result<(), RepairError> {
    for device in &media.devices {
        rustix::fs::fsync(device.claim().as_fd())
            .map_err(|error| RepairError::Flush { path: device.path().to_owned(), source: error.into() })?;
    }
    Ok(())
}
