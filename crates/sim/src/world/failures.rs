//! What flushes of disks that failed leave to be told, and who was told.

use std::collections::{BTreeMap, BTreeSet};

/// By volume, each with the time at which a flush of its disk failed.
#[derive(Default)]
pub(super) struct Failures {
    /// Since a client was told of one: a FLUSH may fail, and a detach.
    untold: BTreeMap<u16, u64>,
    /// A client was told of it in this life. If that ends before it is written down, one is told again.
    told: BTreeMap<u16, u64>,
    /// A client was told by a FLUSH from before the failure: what was acknowledged since is another one's, who is told as well. More than one FLUSH may
    /// be from before.
    told_again: BTreeMap<u16, u64>,
}

impl Failures {
    /// A flush of a volume's disk has failed.
    pub(super) fn add(&mut self, volume: u16, now: u64) {
        self.untold.insert(volume, now);
    }

    /// Whether somebody is still to be told.
    pub(super) fn is_news(&self, volume: u16) -> bool {
        self.untold.contains_key(&volume) || self.told_again.contains_key(&volume)
    }

    /// Somebody is told; whether there was anything to tell.
    pub(super) fn tell(&mut self, volume: u16) -> bool {
        let news = self.untold.remove(&volume);
        self.told.extend(news.map(|failed| (volume, failed)));
        self.told_again.remove(&volume).is_some() || news.is_some()
    }

    /// The same by a FLUSH that began at a time.
    pub(super) fn tell_by(&mut self, volume: u16, began: u64) -> bool {
        let failed = self.untold.get(&volume).max(self.told_again.get(&volume)).copied();
        let is_told = self.tell(volume);
        if let Some(failed) = failed.filter(|failed| *failed >= began) {
            self.told_again.insert(volume, failed);
        }
        is_told
    }

    /// Volumes a flush of whose disk has failed from `time` on. Where a client was told of it, a write that was under way then may be
    /// acknowledged since, and another one is still to be told; or one was told whose FLUSH had begun before.
    pub(super) fn since(&self, time: u64) -> BTreeSet<u16> {
        let all = self.untold.iter().chain(&self.told);
        all.filter(|(_, failed)| **failed >= time).map(|(volume, _)| *volume).chain(self.told_again.keys().copied()).collect()
    }

    /// A daemon has died: that its clients were told may not be written down, long since though it was.
    pub(super) fn ends_a_life(&mut self) {
        std::mem::take(&mut self.told).into_keys().for_each(|volume| _ = self.untold.entry(volume).or_insert(0));
    }
}
