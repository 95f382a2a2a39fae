//! What was dirty and is gone with all its copies: named, range by range, while the daemon lives, and kept for later.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use headpond_engine::io::SECTOR;

use super::scrub::seconds_since_1970;
use super::{Shared, lock, watch};
use crate::backing::HasDisk;
use crate::report::{Advice, LostRange};
use crate::state::Lost;

/// Ranges that are named at most.
const MOST: usize = 4096;
/// How often it is looked whether what is lost has been written anew.
const AGAIN: Duration = Duration::from_secs(60);

/// What is lost of a volume.
#[derive(Clone)]
pub(super) struct OfVolume {
    name: String,
    without_disk: bool,
    /// The engine's count when it was looked.
    pub losses: u32,
    looked: Instant,
    pub bytes: u64,
    ranges: Vec<LostRange>,
}

impl OfVolume {
    /// What to do about it, if there is any.
    pub fn advice(&self) -> Option<Advice> {
        let (name, bytes) = (&self.name, self.bytes);
        if bytes > 0 && self.without_disk {
            return Some(Advice {
                wrong: format!(
                    "{bytes} bytes of volume {name} are lost: it has no backing device, and no cache device has a copy any more. Reading them \
                     fails; all else is there."
                ),
                next: "`headpond status --json` names the ranges, and so does lost-ID.json in the state folder, ID being the pool's identity. Restore what is in them, \
                       or write it anew; a journal or bitmap is made anew with its own tool."
                    .into(),
            });
        }
        (bytes > 0).then(|| Advice {
            wrong: format!(
                "{bytes} bytes of volume {name} are lost: they were not on its disk yet, and no cache device has a copy any more. Reading \
                 them fails; all else is there."
            ),
            next: format!(
                "`headpond status --json` names the ranges, and so does lost-ID.json in the state folder, ID being the pool's identity. Restore what is in them, \
                 or write it anew. To keep what the disk had there before: `headpond detach --give-up-lost {name}`."
            ),
        })
    }
}

/// Where all of it is, as far as it is named.
pub(super) fn ranges(lost: &BTreeMap<u16, OfVolume>) -> Vec<LostRange> {
    lost.values().flat_map(|it| &it.ranges).take(MOST).cloned().collect()
}

impl Shared {
    /// Looks whether something was lost since it was last looked, or is lost no more. What is lost already when the daemon
    /// begins, or was in an earlier life, is a problem at the start, and no news of its own.
    pub(super) fn look_for_losses(&self, at_start: bool) {
        let Some(status) = self.handle.status() else { return };
        // It is looked again.
        if status.loading.is_some_and(|loading| loading.lost_page.is_none()) {
            return;
        }
        lock(&self.lost).retain(|number, it| status.volumes.iter().any(|v| v.number == *number && v.name == it.name));
        let (mut is_to_be_kept, mut news) = (false, Vec::new());
        for volume in &status.volumes {
            let known = lock(&self.lost).get(&volume.number).map(|it| (it.losses, it.bytes, it.looked));
            let is_as_before = |(losses, bytes, looked): (u32, u64, Instant)| {
                losses == volume.losses && (bytes == 0 || looked.elapsed() < AGAIN)
            };
            // What a refused one lacks its cache devices may bring back.
            if known.is_some_and(is_as_before) || known.is_none() && volume.refused && volume.losses == 0 {
                continue;
            }
            // The engine counts this life's losses, and says nothing of an earlier one's. What is lost is dirty.
            let found =
                if known.is_none() && volume.dirty_blocks == 0 { Some(Default::default()) } else { self.lost_of(volume.number) };
            let Some((bytes, found)) = found else { return };
            let name = volume.name.clone();
            let range =
                |r: &Range<u64>| LostRange { volume: name.clone(), offset: r.start * SECTOR, bytes: (r.end - r.start) * SECTOR };
            let ranges = found.iter().map(range).collect();
            let without_disk = !volume.has_disk();
            let now = OfVolume { name: name.clone(), without_disk, losses: volume.losses, looked: Instant::now(), bytes, ranges };
            if known.is_none_or(|(losses, ..)| losses != volume.losses) {
                is_to_be_kept |= bytes > 0;
            }
            if !at_start && volume.losses != known.map_or(0, |(losses, ..)| losses) {
                news.extend(now.advice());
            }
            lock(&self.lost).insert(volume.number, now);
        }
        if !is_to_be_kept {
            return;
        }
        let lost = {
            let lost = lock(&self.lost);
            let bytes = lost.values().filter(|it| it.bytes > 0).map(|it| (it.name.clone(), it.bytes)).collect();
            Lost { time: seconds_since_1970(), bytes, ranges: ranges(&lost) }
        };
        news.into_iter().for_each(|advice| self.events.add(watch::of_loss(advice)));
        self.write_lost_soon(lost);
    }

    /// Keeps the list beside whoever looks for losses: the state folder's disk may be silent, and he is to find the next one too.
    fn write_lost_soon(&self, lost: Lost) {
        let (state, pool) = (self.state.clone(), self.pool);
        self.writing_lost.ask("lost", move || {
            if let Err(error) = state.remember_lost(&pool, &lost) {
                tracing::warn!(
                    "cannot keep the list of what is lost: {error}; `headpond status --json` has it while the daemon lives. Make room in the state folder"
                );
            }
        });
    }

    /// Bytes of a volume that are lost, and in which runs of sectors, as far as these are named; `None` if the engine has ended.
    fn lost_of(&self, volume: u16) -> Option<(u64, Vec<Range<u64>>)> {
        let mut found = Found::default();
        let mut from = Some(0);
        while let Some(at) = from {
            let page;
            (page, from) = self.handle.lost(volume, at)?;
            found.add(page);
        }
        Some((found.sectors * SECTOR, found.runs))
    }
}

/// Runs of sectors, put together where they touch.
#[derive(Default)]
struct Found {
    sectors: u64,
    runs: Vec<Range<u64>>,
}

impl Found {
    /// Adds runs that lie behind all that were added before.
    fn add(&mut self, mut page: Vec<Range<u64>>) {
        page.sort_unstable_by_key(|run| run.start);
        for run in page {
            self.sectors += run.end - run.start;
            let full = self.runs.len() >= MOST;
            match self.runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ if !full => self.runs.push(run),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_touch_are_one_and_what_is_not_named_is_counted() {
        let mut found = Found::default();
        found.add(vec![8..16, 3..5, 0..3]);
        found.add(vec![20..24, 16..20]);
        assert_eq!((found.sectors, &found.runs[..]), (21, &[0..5, 8..24][..]));
        found.add((0..5000).map(|n| 100 + n * 2..101 + n * 2).collect());
        assert_eq!((found.sectors, found.runs.len()), (5021, MOST));
    }
}
