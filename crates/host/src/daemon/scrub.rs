//! Scrubs: on demand, and by themselves from time to time.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use headpond_engine::Status;
use headpond_engine::io::{BLOCK, Command, CommandError, SECTOR};
use headpond_format::grid_shift;
use serde_json::{Value, json};

use super::service::{Progress, TELL, ended, seconds_left};
use super::worker::Worker;
use super::{Scrubs, Shared, lock};
use crate::control::Fault;
use crate::report::{DamagedOn, LostRange, Scrub};
use crate::state::Scrubbed;

/// How often it is looked whether one is due.
const LOOK: Duration = Duration::from_secs(1);
/// How long after one that did not come to its end it is tried again.
const AGAIN: Duration = Duration::from_secs(86400);

impl Shared {
    /// Reads everything once; ends when that is done. What it found stays in the report.
    pub(super) fn scrub(&self, bytes_per_second: u64, progress: Progress<'_>) -> Result<Value, Fault> {
        self.scrub_until(bytes_per_second, progress, || false)
    }

    /// The same, or up to when it is to end.
    fn scrub_until(&self, bytes_per_second: u64, progress: Progress<'_>, to_end: impl Fn() -> bool) -> Result<Value, Fault> {
        let running = {
            let mut scrubbing = lock(&self.scrubbing);
            if scrubbing.is_some() {
                return Err(Fault::failed(CommandError::ScrubBusy.to_string()));
            }
            let running = self.handle.begin(Command::Scrub { bytes_per_second });
            *scrubbing = Some(running.id);
            running
        };
        let begun = Instant::now();
        let result = loop {
            if let Some(result) = running.wait(TELL) {
                break result;
            }
            if to_end() {
                self.handle.begin(Command::Cancel(running.id));
            }
            let Some(status) = self.handle.status() else { break Err(CommandError::Cancelled) };
            let (done, all) = (status.scrub.done, status.scrub.total);
            let seconds = seconds_left(begun, done, all.saturating_sub(done));
            progress(json!({
                "segments_read": done, "segments": all, "damaged": status.scrub.damaged, "seconds_left": seconds,
            }));
        };
        let status = self.handle.status();
        let status = match (result, status) {
            (Ok(()), Some(status)) => status,
            (result, _) => {
                *lock(&self.scrubbing) = None;
                let error = result.err().map_or_else(|| ended().message, |error| error.to_string());
                return Err(Fault::failed(format!(
                    "The scrub did not come to its end: {error} Ask `headpond status` how the pool stands."
                )));
            }
        };
        let found = Scrub { ended: Some(seconds_since_1970()), ..self.found(&status) };
        // Who asks how the pool stands does not wait for the disk. (Nobody else writes it meanwhile: one scrub runs at a time.)
        let scrubbed = Scrubbed { since: seconds_since_1970(), last: found.clone() };
        *lock(&self.scrubbed) = scrubbed.clone();
        self.keep(&scrubbed);
        *lock(&self.scrubbing) = None;
        Ok(json!(found))
    }

    pub(super) fn cancel_scrub(&self) -> Result<Value, Fault> {
        let id = *lock(&self.scrubbing);
        let id = id.ok_or_else(|| Fault::failed("No scrub is under way. Nothing was changed. `headpond scrub` begins one."))?;
        self.handle.begin(Command::Cancel(id)).end().map_err(|error| Fault::failed(error.to_string()))?;
        Ok(json!({}))
    }

    /// The one under way, or the last one.
    pub(super) fn scrub_report(&self, status: &Status) -> Scrub {
        let last = lock(&self.scrubbed).last.clone();
        if status.scrub.running { Scrub { ended: last.ended, ..self.found(status) } } else { last }
    }

    /// What the engine says of it, with the names of volumes and the paths of cache devices.
    fn found(&self, status: &Status) -> Scrub {
        let places = lock(&self.places).members.clone();
        let damaged_on = |(number, copies): (&u8, &u64)| {
            let path = places.get(number).map(|path| path.display().to_string());
            DamagedOn { number: *number, path, copies: *copies }
        };
        Scrub { damaged_on: status.scrub.damaged_on.iter().map(damaged_on).collect(), ..found(status) }
    }

    fn keep(&self, scrubbed: &Scrubbed) {
        if let Err(error) = self.state.remember_scrub(&self.pool, scrubbed) {
            tracing::warn!(
                "cannot remember when the pool was scrubbed: {error}; after a restart it is not known. Make room in the state folder"
            );
        }
    }
}

/// The same without where damaged copies were.
fn found(status: &Status) -> Scrub {
    let scrub = &status.scrub;
    let mut lost_ranges: Vec<LostRange> = Vec::new();
    let mut blocks = scrub.lost_blocks.clone();
    blocks.sort_unstable();
    blocks.dedup();
    for (number, block) in blocks {
        let Some(volume) = status.volumes.iter().find(|volume| volume.number == number) else { continue };
        // The grid of blocks may begin before the volume, and end behind it.
        let shift = grid_shift(volume.phase) * SECTOR;
        let from = (block * BLOCK).saturating_sub(shift);
        let to = ((block + 1) * BLOCK - shift).min(volume.sectors * SECTOR);
        match lost_ranges.last_mut() {
            Some(last) if last.volume == volume.name && last.offset + last.bytes == from => last.bytes += to - from,
            _ => lost_ranges.push(LostRange { volume: volume.name.clone(), offset: from, bytes: to - from }),
        }
    }
    Scrub {
        running: scrub.running,
        ended: None,
        segments_read: scrub.done,
        segments: scrub.total,
        bytes: scrub.bytes,
        damaged: scrub.damaged,
        repaired: scrub.repaired,
        dropped: scrub.dropped,
        lost: scrub.lost,
        lost_ranges,
        ..Scrub::default()
    }
}

/// Where the clock was ahead when the time began from which the next scrub is due, and was set back since: that time begins now, and is to be
/// kept. Else none would be due before the day that the clock showed then.
fn counted_anew(scrubbed: &mut Scrubbed, now: u64) -> Option<Scrubbed> {
    (scrubbed.since > now).then(|| {
        scrubbed.since = now;
        scrubbed.clone()
    })
}

pub(super) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Shared {
    /// A thread that scrubs when it is due; `None` where nothing is ever due. Told to end while a cache device answers nothing, it waits for the
    /// engine's end, and does nothing else any more.
    pub(super) fn schedule(self: &Arc<Shared>, scrubs: Scrubs) -> Option<Worker> {
        if scrubs.every.is_zero() {
            return None;
        }
        let first = {
            let mut scrubbed = lock(&self.scrubbed);
            let is_first = scrubbed.since == 0;
            if is_first {
                scrubbed.since = seconds_since_1970();
            }
            is_first.then(|| scrubbed.clone())
        };
        let shared: Weak<Shared> = Arc::downgrade(self);
        let body = move |is_ended: Receiver<()>| {
            if let (Some(first), Some(shared)) = (first, shared.upgrade()) {
                shared.keep(&first);
            }
            let mut not_before: Option<Instant> = None;
            while matches!(is_ended.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout)) {
                let Some(shared) = shared.upgrade() else { return };
                let now = seconds_since_1970();
                let anew = counted_anew(&mut lock(&shared.scrubbed), now);
                if let Some(anew) = anew {
                    shared.keep(&anew);
                }
                let due = lock(&shared.scrubbed).since.saturating_add(scrubs.every.as_secs());
                if now < due || not_before.is_some_and(|at| Instant::now() < at) {
                    continue;
                }
                let to_end = || !matches!(is_ended.try_recv(), Err(TryRecvError::Empty));
                let end = shared.scrub_until(scrubs.bytes_per_second, &mut |_| (), to_end);
                if to_end() {
                    return;
                }
                if let Err(fault) = end {
                    tracing::warn!("a scrub that was due: {fault} Run `headpond scrub` when nothing stands in its way");
                    // Whoever cancelled it, or what stands in its way, has its reasons: not again at once.
                    not_before = Some(Instant::now() + AGAIN);
                }
            }
        };
        Worker::start("scrubs", body)
            .inspect_err(|error| tracing::warn!("no thread for scrubs: {error}; run `headpond scrub` from time to time"))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was reckoned each second from that second on, and so never due. Found by reading.
    #[test]
    fn a_clock_that_was_ahead_does_not_put_scrubs_off_until_the_day_that_it_showed() {
        let day = 86_400;
        let mut scrubbed = Scrubbed { since: 1000 * day, ..Scrubbed::default() };
        let kept = counted_anew(&mut scrubbed, 20 * day).expect("it is to be kept");
        assert_eq!((kept.since, scrubbed.since), (20 * day, 20 * day));
        // From there on time goes by.
        assert!(counted_anew(&mut scrubbed, 27 * day).is_none());
        assert_eq!(scrubbed.since, 20 * day);
    }
}
