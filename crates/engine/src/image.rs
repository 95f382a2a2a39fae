//! The pages of a checkpoint, as a start reads them.

use crate::core::Core;
use crate::exec::IoWait;
use crate::io::{Buf, Device, DeviceOp};
use crate::marks::Mark;
use crate::patience::{AGAIN_NS, PATIENCE_NS};
use crate::recovery::StartError;
use crate::segments::Segments;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use headpond_format::{CheckpointPointer, PAGE_BYTES, Page, PageBody, PieceEntry, SegmentEntry};

/// Pages of the segment table that are read at once.
const DEPTH: u32 = 8;

/// How often a page that can be read, and is not what it should be, is asked for wherever it is.
const ROUNDS: u32 = 3;

/// The checkpoint's segment table, by number.
pub(crate) struct Table(pub BTreeMap<u32, SegmentEntry>);

impl Table {
    /// Of each number whose segment is the one of the table, the volume.
    pub fn still_there(&self, segments: &Segments) -> Vec<Option<u16>> {
        let mut there = Vec::new();
        for (n, s) in segments.iter().filter(|(n, s)| self.0.get(n).is_some_and(|e| e.generation == s.generation)) {
            there.resize(n as usize, None);
            there.push(Some(s.volume));
        }
        there
    }
}

/// The image of the newest checkpoint: a segment table, and the pieces of all volumes behind it.
pub(crate) struct Image {
    pointer: CheckpointPointer,
    key: u64,
    /// When each member of the pool last read a page, or the image was opened, in nanoseconds.
    answered: RefCell<Vec<u64>>,
}

/// A page on its way; `None` inside if it is nowhere.
pub(crate) struct Coming<B: Buf> {
    pub index: u32,
    read: Option<(u8, IoWait<B>)>,
}

impl Image {
    pub fn open<B: Buf>(core: &Core<B>) -> Self {
        let pool = core.pool.borrow();
        Self {
            pointer: pool.checkpoint.clone(),
            key: pool.key,
            answered: RefCell::new(vec![core.exec.attended(); pool.members.len()]),
        }
    }

    /// Its pages.
    pub fn pages(&self) -> u32 {
        self.pointer.pages
    }

    /// Where page `index` is, on members in sync. Of a page beyond its area nothing is read.
    fn places<B: Buf>(&self, core: &Core<B>, index: u32) -> Vec<(u8, u64)> {
        let pool = core.pool.borrow();
        let place = |(m, at): (u8, u64)| {
            let layout = pool.members[usize::from(m)].layout;
            let is_there = pool.is_in_sync(m) && at + PAGE_BYTES as u64 <= layout.checkpoint_bytes;
            is_there.then(|| (m, layout.checkpoint(self.pointer.area) + at))
        };
        self.pointer.places(index).into_iter().filter_map(place).collect()
    }

    fn read<B: Buf>(core: &Core<B>, (member, offset): (u8, u64)) -> (u8, IoWait<B>) {
        (member, core.exec.io(Device::Member(member), DeviceOp::Read { offset, len: PAGE_BYTES as u32, into: None }))
    }

    /// Begins to read a page.
    pub fn begin<B: Buf>(&self, core: &Core<B>, index: u32) -> Coming<B> {
        // From either copy in turn, so that both members are read at once.
        let on = self.places(core, index);
        let place = on.get(index as usize % on.len().max(1)).copied();
        Coming { index, read: place.map(|place| Self::read(core, place)) }
    }

    /// What was read: nothing where the member fails to, and a page where it is the right one.
    async fn answer<B: Buf>(&self, core: &Core<B>, (member, read): (u8, IoWait<B>), index: u32) -> Option<Option<Page>> {
        let bytes = read.await.ok().flatten()?;
        self.answered.borrow_mut()[usize::from(member)] = core.exec.attended();
        Some(Page::decode(self.key, &bytes.to_bytes(), self.pointer.sequence, index).ok())
    }

    /// Whether a member may be away for a moment only.
    fn may_answer<B: Buf>(&self, core: &Core<B>, member: u8) -> bool {
        core.exec.attended() < self.answered.borrow()[usize::from(member)] + PATIENCE_NS
    }

    /// What a page says. Where members fail to read it, it is asked for again: for as long as a path may be lost for a moment, and not of
    /// members that have been away for longer.
    pub async fn end<B: Buf>(&self, core: &Core<B>, coming: Coming<B>) -> Result<PageBody, StartError> {
        let index = coming.index;
        if let Some(read) = coming.read
            && let Some(Some(page)) = self.answer(core, read, index).await
        {
            return Ok(page.body);
        }
        let begun = core.exec.attended();
        for round in 1.. {
            let mut may_come = round < ROUNDS;
            for place in self.places(core, index) {
                core.mark(Mark::PageFromSecondPlace);
                match self.answer(core, Self::read(core, place), index).await {
                    Some(Some(page)) => return Ok(page.body),
                    Some(None) => {}
                    None => may_come |= core.exec.attended() < begun + PATIENCE_NS && self.may_answer(core, place.0),
                }
            }
            if !may_come {
                break;
            }
            core.mark_if(round >= ROUNDS, Mark::AsksAgainForPages);
            core.exec.sleep(AGAIN_NS).await;
        }
        Err(StartError::CheckpointLost { page: index })
    }

    /// The segment table, with which an image begins, and the number of the first page behind it.
    pub async fn table<B: Buf>(&self, core: &Rc<Core<B>>) -> Result<(Table, u32), StartError> {
        let mut table = BTreeMap::new();
        let mut coming = VecDeque::new();
        for index in 0..self.pointer.pages {
            for ahead in index + coming.len() as u32..self.pointer.pages.min(index + DEPTH) {
                coming.push_back(self.begin(core, ahead));
            }
            let Some(page) = coming.pop_front() else { break };
            match self.end(core, page).await? {
                PageBody::Segments(list) => table.extend(list.into_iter().map(|s| (s.segment, s))),
                PageBody::Pieces(..) => return Ok((Table(table), index)),
            }
        }
        Ok((Table(table), self.pointer.pages))
    }

    /// A page of pieces, and whose they are.
    pub async fn pieces<B: Buf>(&self, core: &Core<B>, coming: Coming<B>) -> Result<(u16, Vec<PieceEntry>), StartError> {
        let page = coming.index;
        match self.end(core, coming).await? {
            PageBody::Pieces(volume, list) => Ok((volume, list)),
            PageBody::Segments(_) => Err(StartError::CheckpointLost { page }),
        }
    }
}
