//! What each volume has of the pool, by its share: what others leave it, and where it stops.
//!
//! The rules are in `policy/shares.rs`. Where no volume has a share nothing here says anything.

use crate::core::{Core, Volume};
use crate::evict::victim_of;
use crate::io::{BLOCK_SECTORS, Buf, CommandError};
use crate::policy::bands;
use crate::policy::gather;
use crate::policy::lanes;
use crate::policy::pace::{self, Room};
use crate::policy::reclaim::{Emptied, checkpoint_pays, image_pays};
use crate::policy::shares::{For, Part, Share, Unfit, kept_below, may_lose, may_open, percent};
use crate::segments::{Segment, Taken};
use crate::space::{checkpoint, let_go, waiting_of};
use alloc::rc::Rc;
use alloc::vec::Vec;
use headpond_format::{Class, Mode};

/// Gives a volume another share.
pub(crate) fn set<B: Buf>(core: &Core<B>, volume: &Volume<B>, share: Share) -> Result<(), CommandError> {
    let volumes = core.volumes.borrow();
    let others = volumes.values().filter(|v| v.number != volume.number).map(|v| u32::from(v.share.get().min)).sum();
    share.fits(others).map_err(|unfit| match unfit {
        Unfit::Order => CommandError::ShareOrder,
        Unfit::TooMuch { left } => CommandError::ShareTooMuch { left },
    })?;
    volume.share.set(share);
    core.volumes.touch();
    core.space.notify();
    Ok(())
}

/// What a volume holds, is sure of, and may have at most, in slots.
pub(crate) struct Stands {
    pub held: u64,
    pub least: u64,
    pub most: Option<u64>,
}

impl Stands {
    /// Whether it has less than it is sure of.
    fn is_under(&self) -> bool {
        self.held < self.least
    }

    /// Whether a segment of it may be evicted for others.
    pub(crate) fn may_lose(&self, segment: &Segment) -> bool {
        may_lose(self.held, self.least, segment.places().count() as u64)
    }
}

impl<B: Buf> Volume<B> {
    /// Its share as it counts for now: where nothing is cached nothing is kept for it.
    fn share_now(&self) -> Share {
        let share = self.share.get();
        if self.mode() == Mode::PassThrough { Share { min: 0, ..share } } else { share }
    }
}

impl<B: Buf> Core<B> {
    fn copies(&self) -> u64 {
        self.bounds().copies as u64
    }

    /// Slots that volumes with a disk share: what is kept free is nobody's, nor what is set aside.
    fn shared_slots(&self) -> u64 {
        let kept = u64::from(self.bounds().reserve + 2 * self.ahead_of_demand()) + self.bounds().set_aside;
        self.segments.borrow().total().saturating_sub(self.copies() * kept)
    }

    /// How a volume stands.
    pub(crate) fn stands(&self, volume: &Volume<B>) -> Stands {
        let (slots, share) = (self.shared_slots(), volume.share_now());
        let held = self.segments.borrow().of_volume(volume.number).slots;
        Stands { held, least: share.least(slots), most: share.most(slots) }
    }

    /// Whether a volume's maximum allows it one segment more for this.
    pub(crate) fn share_allows(&self, volume: &Volume<B>, wanted: For) -> bool {
        if volume.share.get().max >= 100 {
            return true;
        }
        let stands = self.stands(volume);
        stands.most.is_none_or(|most| may_open(stands.held, most, self.copies(), wanted))
    }

    /// Segments, each with its copies, that a volume leaves free for others: one for each that has less than it is sure of. Who
    /// has less himself leaves none, nor who has no disk: what he has is set aside for him.
    pub(crate) fn left_to_others(&self, volume: &Volume<B>) -> u32 {
        if !self.bounds().has_shares || !volume.has_disk() || self.is_under_minimum(volume) {
            return 0;
        }
        self.under_minimum()
    }

    /// Whether a volume has less than it is sure of.
    pub(crate) fn is_under_minimum(&self, volume: &Volume<B>) -> bool {
        volume.share.get().min > 0 && self.stands(volume).is_under()
    }

    /// How many volumes have less than they are sure of.
    pub(crate) fn under_minimum(&self) -> u32 {
        self.volumes.borrow().values().filter(|v| self.is_under_minimum(v)).count() as u32
    }

    /// The volumes that are sure of something, and how they stand.
    pub(crate) fn sure_of_something(&self) -> Vec<(u16, Stands)> {
        let volumes = self.volumes.borrow();
        volumes.values().filter(|v| v.share.get().min > 0).map(|v| (v.number, self.stands(v))).collect()
    }

    /// How near the space for dirty data is to its end for a volume.
    pub(crate) fn room_of(&self, volume: &Volume<B>) -> Room {
        let mut room = self.room();
        if self.bounds().has_shares {
            room = self.room_of_share(volume, room);
        }
        room.taken_percent = room.taken_percent.max(self.fragments_percent(volume));
        let beside_streams = volume.disk_use.has_streams(self.now(), self.settings.idle_ns);
        let mut onset = volume.onset.get();
        room.begin_percent = onset.begins_at(self.now(), self.settings.destage_percent, room.pressure(), beside_streams);
        volume.onset.set(onset);
        room
    }

    /// The same of what a volume may have of the pool's.
    fn room_of_share(&self, volume: &Volume<B>, room: Room) -> Room {
        let sectors = u64::from(self.pool.borrow().segment_sectors()).max(1);
        let bands = self.bands();
        let soon = |taken: &Taken| {
            let [mixed, sorted] = taken.dirty_sectors;
            (mixed * bands::taken_by_dirty(1) + sorted * bands::taken_by_dirty(bands)) / (100 * sectors)
        };
        let taken = self.percent_of(volume, |taken| taken.dirty).max(self.pieces_percent());
        let own = self.segments.borrow().of_volume(volume.number).dirty.max(1);
        let won = u64::from(taken) * volume.sparse.get().min(own) / own;
        let mut taken_percent = gather::taken(taken, won as u32);
        if room.taken_percent >= 100 {
            // What is not there nobody has, whatever he is sure of.
            taken_percent = taken_percent.max(100);
        }
        Room { taken_percent, soon_percent: self.percent_of(volume, soon), ..room }
    }

    /// Whether the space for dirty data that is missing is taken by other volumes: this one's sweep could win next to none of it back.
    pub(crate) fn others_have_the_space(&self, volume: &Volume<B>) -> bool {
        let most = self.most_dirty(volume);
        let segments = self.segments.borrow();
        let dirty = |number: u16| segments.of_volume(number).dirty;
        let volumes = self.volumes.borrow().keys().filter(|number| dirty(**number) > 0).count() as u64;
        pace::is_others(dirty(volume.number), segments.dirty_segments(), most, volumes)
    }

    /// Whether what a volume has taken of its share of that space is clean, and no checkpoint is on its way that would free it: its sweep wins
    /// nothing back.
    pub(crate) fn has_nothing_to_win(&self, volume: &Volume<B>) -> bool {
        let is_clean = volume.map.borrow().dirty_blocks() == 0 && !volume.has_pending();
        is_clean && self.bounds().has_shares && !self.checkpoint_wanted.get()
    }

    /// How full the space for dirty data is for a volume, in percent.
    pub(crate) fn dirty_percent_for(&self, volume: &Volume<B>) -> u32 {
        if self.bounds().has_shares {
            self.room_of(volume).taken_percent
        } else {
            self.dirty_percent().max(self.fragments_percent(volume))
        }
    }

    /// How much of the last thirty-second of the fragments that a volume may have is taken, in percent: from there on what is clean of them goes
    /// (`space.rs`), and what is dirty is won back by destage alone.
    pub(crate) fn fragments_percent(&self, volume: &Volume<B>) -> u32 {
        let most = self.settings.max_fragments;
        let over = volume.map.borrow().extra_pieces().saturating_sub(most - most / 32);
        if volume.has_disk() { (over * 100 / (most / 32).max(1)).min(100) as u32 } else { 0 }
    }

    /// How full it is by what volumes take of it, as `of` tells.
    fn percent_of(&self, volume: &Volume<B>, of: impl Fn(&Taken) -> u64) -> u32 {
        let segments = self.segments.borrow();
        let space = self.sets_for_dirty(&segments);
        let part = |v: &Volume<B>| {
            let share = if v.mode() == Mode::WriteBack { v.share.get() } else { Share::default() };
            Part { taken: of(&segments.of_volume(v.number)), least: share.least(space) }
        };
        let volumes = self.volumes.borrow();
        let others: Vec<Part> = volumes.values().filter(|v| v.number != volume.number && v.has_disk()).map(|v| part(v)).collect();
        drop(volumes);
        percent(space, &part(volume), self.most_dirty(volume), &others)
    }

    /// Segments, each with its copies, that a volume may have dirty data in by its maximum: as many percent of it as of the
    /// pool, without what of it is pinned.
    fn most_dirty(&self, volume: &Volume<B>) -> Option<u64> {
        let most = volume.share.get().most(self.shared_slots())?;
        let sectors = u64::from(self.pool.borrow().segment_sectors()).max(1);
        let pinned = (volume.pins.borrow().blocks() * BLOCK_SECTORS).div_ceil(sectors);
        Some(most.saturating_sub(pinned) / self.copies().max(1) * u64::from(self.settings.dirty_percent) / 100)
    }

    /// Open segments that what a volume writes is sorted into while space is short.
    pub(crate) fn bands_of(&self, volume: &Volume<B>) -> usize {
        self.most_dirty(volume).map_or(usize::MAX, bands::number).min(self.bands())
    }

    /// Open segments of each queue that a volume's clean data is spread over, on a member each.
    pub(crate) fn lanes_of(&self, volume: &Volume<B>) -> usize {
        let volumes = self.volumes.borrow().values().filter(|v| v.mode() != Mode::PassThrough).count();
        let slots = self.shared_slots();
        let slots = volume.share.get().most(slots).map_or(slots, |most| most.min(slots));
        lanes::number(self.pool.borrow().in_sync().count(), slots, volumes, self.settings.lane_slots)
    }
}

/// How long what a share alone asks for waits for a checkpoint at most that does not pay otherwise, in nanoseconds.
const IMAGE_EVERY_NS: u64 = 3_600_000_000_000;

/// Checkpoints that are taken for what volumes have by their shares. An image is of all that is cached, however little a volume may have: it is
/// taken for that where it is a small part of what it frees, and once in an hour where it is not, as the volume's writes go to its disk
/// until then, at once.
pub(crate) struct ForShares {
    last: u64,
}

impl ForShares {
    /// None was taken yet, in a life that began at `now`.
    pub(crate) fn new(now: u64) -> Self {
        Self { last: now }
    }

    /// Whether one that frees so many segments, each with its copies, is worth its image.
    fn is_worth_it<B: Buf>(&self, core: &Core<B>, segments: u64) -> bool {
        let bytes = segments * core.pool.borrow().segment_bytes;
        image_pays(bytes, core.segments.borrow().live) || core.now() - self.last >= IMAGE_EVERY_NS
    }

    /// Whether one is worth it though the space for dirty data is not short for all: for a volume to which others' minimums leave
    /// little of it, or its own maximum.
    pub(crate) fn pays<B: Buf>(&self, core: &Core<B>, emptied: u64, taken: u64) -> bool {
        if !core.bounds().has_shares {
            return false;
        }
        core.all_volumes().iter().filter(|v| v.has_disk()).any(|v| {
            let (own, emptied_own) = {
                let segments = core.segments.borrow();
                (segments.of_volume(v.number).dirty, segments.emptied_segments_of(v.number))
            };
            let by_maximum = core.most_dirty(v).is_some_and(|most| {
                let dirty_percent = (own * 100 / most.max(1)).min(200) as u32;
                checkpoint_pays(&Emptied { dirty_percent, emptied: emptied_own, taken: own })
                    && self.is_worth_it(core, emptied_own)
            });
            let by_minimums = checkpoint_pays(&Emptied { dirty_percent: core.dirty_percent_for(v), emptied, taken });
            by_maximum || by_minimums && self.is_worth_it(core, emptied)
        })
    }

    /// Takes one; `false` if there was none.
    pub(crate) async fn checkpoint<B: Buf>(&mut self, core: &Rc<Core<B>>) -> bool {
        self.last = core.now();
        checkpoint(core).await
    }
}

/// Wins room for volumes within their maximums, at their own cost.
pub(crate) async fn keep_to_maximums<B: Buf>(core: &Rc<Core<B>>, for_shares: &mut ForShares) {
    for volume in core.all_volumes().iter().filter(|v| v.share.get().max < 100) {
        // No more at once than there are: what is worth it of each is written again.
        for _ in 0..core.stands(volume).held {
            if !win_one_of(core, volume, for_shares).await {
                break;
            }
        }
    }
}

/// One step towards a volume's maximum; `false` if it is there, or there is nothing to be won now.
async fn win_one_of<B: Buf>(core: &Rc<Core<B>>, volume: &Volume<B>, for_shares: &mut ForShares) -> bool {
    let stands = core.stands(volume);
    let goes_on = stands.most.is_some_and(|most| stands.held > kept_below(most, core.copies()));
    if !goes_on || core.stopping.get() || core.pool.borrow().stalled {
        return false;
    }
    if let Some(victim) = victim_of(core, volume.number) {
        return let_go(core, victim).await;
    }
    // An eighth of what it holds is little by the image where it holds little. But where its maximum has become much smaller, that is kept.
    let waiting = waiting_of(core, volume.number);
    let is_far_over = stands.most.is_some_and(|most| stands.held * 8 > most * 9);
    let pays = waiting * core.copies() * 8 >= stands.held && (is_far_over || for_shares.is_worth_it(core, waiting));
    pays && for_shares.checkpoint(core).await && waiting_of(core, volume.number) < waiting
}

/// What of all slots a class of segment takes, as a maximum looks at it.
pub(crate) fn wanted_for(class: Class) -> For {
    match class {
        Class::Mirrored => For::Writes,
        Class::Single => For::Reads,
    }
}
