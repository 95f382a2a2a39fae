//! Scrub: every copy of everything that the cache relies on is read at a given rate, beside the clients, and what is damaged
//! is mended: from the other copy, by writing it anew, or by letting go of what the disk has.
//!
//! The log since the last checkpoint is not read as a log: the pieces in it are, as they are in the map.

use crate::cancel::Cancel;
use crate::checkpoint;
use crate::core::{Core, Volume};
use crate::fetch::{damaged_on, from_twin};
use crate::flush::durable;
use crate::io::{Buf, CommandError, Device, DeviceOp};
use crate::map::Piece;
use crate::marks::Mark;
use crate::read::let_go;
use crate::space::relocate;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headpond_format::{INTENT_PAGE_BYTES, IntentPage, PAGE_BYTES, Page, SUPERBLOCK_BYTES, Superblock};

/// Blocks whose pieces are read before the pace is looked at.
const BATCH: usize = 64;
/// Blocks with lost data that are named; more are counted.
const NAMED: usize = 4096;
/// How often something is read again that may be being written, and how long after, in nanoseconds.
const TRIES: u32 = 4;
const AGAIN_NS: u64 = 20_000_000;
/// The longest that it sleeps without looking whether it is to end, in nanoseconds.
const LOOKS_NS: u64 = 50_000_000;

/// What a scrub has found so far, or what the last one found.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Scrub {
    /// It is under way.
    pub running: bool,
    /// Segments that it has looked at, of `total`.
    pub done: u64,
    /// Segments that held something when it began.
    pub total: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Copies that were damaged, or could not be read.
    pub damaged: u64,
    /// Of these, the ones that are whole again.
    pub repaired: u64,
    /// Of these, the ones of clean data, which was let go: the disk has it.
    pub dropped: u64,
    /// Of these, dirty pieces of which no copy is whole: reading them fails.
    pub lost: u64,
    /// How many damaged copies were on which cache device, by its number; of what is lost, each of its copies.
    pub damaged_on: BTreeMap<u8, u64>,
    /// The volumes and blocks of 4 KiB that these are in, the first 4,096 of them.
    pub lost_blocks: Vec<(u16, u64)>,
}

/// Reads everything once, at most `bytes_per_second`; zero: as fast as the cache devices answer.
pub(crate) async fn run<B: Buf>(core: &Rc<Core<B>>, bytes_per_second: u64, cancel: &Cancel) -> Result<(), CommandError> {
    if core.scrub.borrow().running {
        return Err(CommandError::ScrubBusy);
    }
    *core.scrub.borrow_mut() = Scrub { running: true, ..Scrub::default() };
    let round = Round { core: core.clone(), cancel, bytes_per_second, begun: core.now() };
    let result = round.everything().await;
    // What is called repaired is so after a power cut too, however the round ended.
    let flushed = durable(core).await.map_err(|_| CommandError::NoMembers);
    core.scrub.borrow_mut().running = false;
    result.and(flushed)
}

struct Round<'a, B: Buf> {
    core: Rc<Core<B>>,
    cancel: &'a Cancel,
    bytes_per_second: u64,
    begun: u64,
}

impl<B: Buf> Round<'_, B> {
    async fn everything(&self) -> Result<(), CommandError> {
        let segments: Vec<u32> = self.core.segments.borrow().iter().filter(|(_, s)| s.live > 0).map(|(n, _)| n).collect();
        self.core.scrub.borrow_mut().total = segments.len() as u64;
        self.superblocks().await?;
        for volume in self.core.all_volumes() {
            self.intent_pages(&volume).await?;
        }
        self.image().await?;
        for n in segments {
            self.segment(n).await?;
            self.core.scrub.borrow_mut().done += 1;
        }
        Ok(())
    }

    /// So many bytes were read: goes on when they were due.
    async fn pace(&self, bytes: u64) -> Result<(), CommandError> {
        let read = {
            let mut scrub = self.core.scrub.borrow_mut();
            scrub.bytes += bytes;
            scrub.bytes
        };
        let due = (u128::from(read) * 1_000_000_000).checked_div(u128::from(self.bytes_per_second)).unwrap_or(0);
        let due = self.begun.saturating_add(due as u64);
        loop {
            if self.cancel.wanted() || self.core.stopping.get() {
                return Err(CommandError::Cancelled);
            }
            let ahead = due.saturating_sub(self.core.now());
            if ahead == 0 {
                break;
            }
            self.core.exec.sleep(ahead.min(LOOKS_NS)).await;
        }
        if self.core.pool.borrow().has_votes() { Ok(()) } else { Err(CommandError::NoMembers) }
    }

    async fn is_whole(&self, member: u8, offset: u64, len: usize, whole: &impl Fn(&[u8]) -> bool) -> bool {
        let op = DeviceOp::Read { offset, len: len as u32, into: None };
        match self.core.exec.io(Device::Member(member), op).await {
            Ok(Some(data)) => whole(&data.to_bytes()),
            _ => false,
        }
    }

    /// Whether something of our own at a place is damaged, and not only being written just now.
    async fn is_damaged(&self, member: u8, offset: u64, len: usize, whole: impl Fn(&[u8]) -> bool) -> bool {
        let id = || self.core.pool.borrow().members.get(usize::from(member)).map(|m| m.id);
        let of = id();
        let is_there = || self.core.pool.borrow().is_in_sync(member) && id() == of;
        for _ in 0..TRIES {
            // Who has left since is asked for nothing, nor is who has its number now.
            if !is_there() || self.is_whole(member, offset, len, &whole).await {
                return false;
            }
            self.core.exec.sleep(AGAIN_NS).await;
        }
        is_there()
    }

    /// A copy on a member is damaged.
    fn found(&self, member: u8) {
        let mut scrub = self.core.scrub.borrow_mut();
        scrub.damaged += 1;
        *scrub.damaged_on.entry(member).or_default() += 1;
    }

    /// Copies of what is not data are damaged, on these members; how many.
    fn found_beside_data(&self, members: &[u8]) -> u64 {
        for on in members {
            self.core.found_damaged(*on);
            self.found(*on);
        }
        members.len() as u64
    }

    fn repaired(&self, copies: u64) {
        self.core.scrub.borrow_mut().repaired += copies;
    }

    fn in_sync(&self) -> Vec<u8> {
        self.core.pool.borrow().in_sync().collect()
    }

    async fn superblocks(&self) -> Result<(), CommandError> {
        let id = self.core.pool.borrow().id;
        // Of one that joined not all were written yet.
        let whole = |bytes: &[u8]| Superblock::decode(bytes).is_ok_and(|s| s.pool == id) || bytes.iter().all(|b| *b == 0);
        let mut damaged = Vec::new();
        for member in self.in_sync() {
            for n in 0..4 {
                let layout = self.core.pool.borrow().members[usize::from(member)].layout;
                if self.is_damaged(member, layout.superblock(n), SUPERBLOCK_BYTES as usize, whole).await {
                    damaged.push(member);
                }
                self.pace(SUPERBLOCK_BYTES).await?;
            }
        }
        let damaged = self.found_beside_data(&damaged);
        if damaged > 0 {
            self.core.mark(Mark::ScrubRewritesSuperblocks);
            // They take turns: two make all of them new. Who cannot take one leaves.
            self.core.whole_slots.set(true);
            let are_written = self.core.write_superblock().await && self.core.write_superblock().await;
            self.core.whole_slots.set(false);
            if are_written {
                self.repaired(damaged);
            }
        }
        Ok(())
    }

    async fn intent_pages(&self, volume: &Rc<Volume<B>>) -> Result<(), CommandError> {
        let key = self.core.pool.borrow().key;
        let span = volume.intent.named();
        let mut damaged = Vec::new();
        for page in span.first..span.end() {
            for member in self.in_sync() {
                let whole = |bytes: &[u8]| {
                    IntentPage::decode(key, bytes, page).is_ok_and(|p| p.volume == volume.number) || bytes.iter().all(|b| *b == 0)
                };
                for slot in [0, 1] {
                    let layout = self.core.pool.borrow().members[usize::from(member)].layout;
                    if self.is_damaged(member, layout.intent(page, slot), INTENT_PAGE_BYTES, whole).await {
                        damaged.push(member);
                    }
                }
            }
            self.pace(2 * INTENT_PAGE_BYTES as u64).await?;
            if volume.intent.named() != span || volume.taken_off.get() {
                // The volume has grown: all of its pages were written just now, and these may be another's. So they may where it is gone.
                return Ok(());
            }
        }
        let damaged = self.found_beside_data(&damaged);
        // One that is being detached is left alone: its pages may soon be another volume's. One that is written waits to be.
        if damaged > 0 && volume.serving.get() {
            self.core.mark(Mark::ScrubRewritesIntent);
            volume.requests.set(volume.requests.get() + 1);
            volume.intent.rewrite(&self.core, volume).await;
            volume.requests.set(volume.requests.get() - 1);
            volume.requests_changed.notify();
            self.repaired(damaged);
        }
        Ok(())
    }

    /// The image that the next start would read, both copies of each page.
    async fn image(&self) -> Result<(), CommandError> {
        let (key, image) = (self.core.pool.borrow().key, self.core.pool.borrow().checkpoint.clone());
        let is_newest = || self.core.pool.borrow().checkpoint.sequence == image.sequence;
        let mut damaged = Vec::new();
        for index in 0..image.pages {
            for (member, at) in image.places(index) {
                if !self.core.pool.borrow().is_in_sync(member) {
                    continue;
                }
                let layout = self.core.pool.borrow().members[usize::from(member)].layout;
                let offset = layout.checkpoint(image.area) + at;
                let whole = |bytes: &[u8]| Page::decode(key, bytes, image.sequence, index).is_ok();
                if self.is_damaged(member, offset, PAGE_BYTES, whole).await {
                    damaged.push(member);
                }
                self.pace(PAGE_BYTES as u64).await?;
            }
            if !is_newest() {
                // Nobody reads this one any more; all of the one that took its place was written just now.
                self.core.mark(Mark::ScrubbedImageReplaced);
                return Ok(());
            }
        }
        let damaged = self.found_beside_data(&damaged);
        if damaged > 0 {
            self.core.mark(Mark::ScrubReplacesImage);
            checkpoint::now(&self.core).await?;
            self.repaired(damaged);
        }
        Ok(())
    }

    /// All that is in a segment, on each of its copies.
    async fn segment(&self, n: u32) -> Result<(), CommandError> {
        let core = &self.core;
        let Some((volume, blocks)) = core.segments.borrow().get(n).map(|s| (s.volume, s.blocks.clone())) else { return Ok(()) };
        let Some(volume) = core.volume(volume) else { return Ok(()) };
        let blocks = volume.map.borrow().in_segment(n, &blocks);
        for some in blocks.chunks(BATCH) {
            let mut pieces: Vec<(u64, Piece)> = Vec::new();
            for block in some {
                volume.map.borrow().each(*block, |p| {
                    let known = pieces.iter().any(|(b, k)| (*b, k.offset) == (*block, p.offset));
                    if p.segment == n && !p.zeroes() && !known {
                        pieces.push((*block, *p));
                    }
                });
            }
            core.segments.borrow_mut().pin(n);
            let bytes = self.pieces(n, &volume, &pieces).await;
            core.segments.borrow_mut().unpin(n);
            core.segments.borrow_mut().settle();
            self.pace(bytes).await?;
        }
        Ok(())
    }

    /// The same for some of its pieces, while it is kept; the bytes read.
    async fn pieces(&self, segment: u32, volume: &Rc<Volume<B>>, pieces: &[(u64, Piece)]) -> u64 {
        let members: Vec<u8> =
            self.core.segments.borrow().get(segment).map_or_else(Vec::new, |s| s.places().map(|p| p.member).collect());
        let mut lost: Vec<(u64, u16)> = Vec::new();
        let mut bytes = 0;
        for member in members {
            for at in damaged_on(&self.core, volume, member, pieces).await {
                let (block, piece) = pieces[at];
                if !lost.contains(&(block, piece.offset)) && self.mend(volume, block, &piece, member).await {
                    lost.push((block, piece.offset));
                }
            }
            bytes += pieces.iter().map(|(_, p)| u64::from(p.sectors()) * 512).sum::<u64>();
        }
        bytes
    }

    /// Mends a piece whose copy on a member is damaged. Whether it is lost: dirty, and no copy is whole.
    async fn mend(&self, volume: &Rc<Volume<B>>, block: u64, piece: &Piece, member: u8) -> bool {
        let core = &self.core;
        let place = core.segments.borrow().get(piece.segment).and_then(|s| s.places().find(|p| p.member == member));
        let (Some(place), Some(_)) = (place, current(volume, block, piece)) else { return false };
        if !core.pool.borrow().is_in_sync(member) {
            return false;
        }
        self.found(member);
        let other = from_twin(core, volume, block, piece, Some(place)).await;
        let is_whole = other.is_ok() && damaged_on(core, volume, member, &[(block, *piece)]).await.is_empty();
        if is_whole {
            core.mark(Mark::ScrubRepairs);
            self.repaired(1);
            return false;
        }
        // A part of the device's unit cannot be written alone: it is written anew elsewhere, with all that is dirty there.
        if other.is_ok() && current(volume, block, piece).is_some_and(|p| p.dirty()) {
            core.mark(Mark::ScrubMoves);
            relocate(core, piece.segment).await;
        }
        // It may have become clean meanwhile, too.
        match current(volume, block, piece) {
            None => self.repaired(1),
            Some(now) if !now.dirty() => {
                core.mark(Mark::ScrubLetsGo);
                let _ = let_go(core, volume, &[(block, now)]);
                core.scrub.borrow_mut().dropped += 1;
            }
            // There is no room to move it; the next scrub finds it again.
            Some(_) if other.is_ok() => core.mark(Mark::ScrubHasNoRoom),
            Some(_) => {
                core.mark(Mark::ScrubFindsLost);
                let mut scrub = core.scrub.borrow_mut();
                scrub.lost += 1;
                for place in core.segments.borrow().get(piece.segment).into_iter().flat_map(|s| s.places()) {
                    *scrub.damaged_on.entry(place.member).or_default() += u64::from(place.member != member);
                }
                if scrub.lost_blocks.len() < NAMED {
                    scrub.lost_blocks.push((volume.number, block));
                }
                return true;
            }
        }
        false
    }
}

/// A piece as it is in the map now, if it still is where it was.
fn current<B: Buf>(volume: &Volume<B>, block: u64, piece: &Piece) -> Option<Piece> {
    let mut found = None;
    volume.map.borrow().each(block, |p| {
        if p.is_same(piece) {
            found = Some(*p);
        }
    });
    found
}
