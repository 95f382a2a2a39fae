//! Clients whose reads go past the engine: what its lookaside table knows they read from the cache devices by themselves, as a front end's
//! threads do.

use super::{AskedKind, Event, World};
use crate::buf::SimBuf;
use headpond_engine::lookaside::{Found, Lookaside, PATIENCE_NS};
use headpond_engine::{BLOCK, Buf, Device, DeviceError, DeviceOp, DeviceResult, IoId, Request, RequestId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The bit of an operation's number that says that it is not the engine's; the others are the request's.
const BESIDE: u64 = 1 << 63;

/// The request that an operation is for, if it is not the engine's.
pub(super) fn request_of(io: IoId) -> Option<u64> {
    (io.0 & BESIDE != 0).then_some(io.0 & !BESIDE)
}

/// Which reads are tried beside the engine.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Whose {
    /// None.
    #[default]
    Nobodys,
    /// Two of three: the engine is to go on leaving what it reads for others to find.
    Some,
    /// All.
    All,
}

/// Reads beside the engine.
#[derive(Default)]
pub struct Beside {
    /// Whose reads, if what they ask for is found.
    pub whose: Whose,
    /// Lines of each volume's table.
    pub lines: usize,
    /// Those under way, by request, with the cache device that is read; each such has a reader of its own.
    under_way: BTreeMap<u64, (Arc<Lookaside>, Found, u8)>,
    /// Those that did not get the block: the engine was asked then.
    pub in_vain: u64,
}

impl Beside {
    /// Whoever read is gone.
    pub(super) fn end(&mut self) {
        self.under_way.clear();
    }
}

impl World {
    /// Begins a read beside the engine, if it may be one, and what it asks for is known.
    pub(super) fn reads_beside(&mut self, request: u64, volume: u16, sector: u64, sectors: u32) -> bool {
        let is_tried = match self.beside.whose {
            Whose::Nobodys => false,
            Whose::Some => !request.is_multiple_of(3),
            Whose::All => true,
        };
        if !is_tried {
            return false;
        }
        let table = self.engine.as_ref().and_then(|e| e.lookaside(volume, self.beside.lines));
        let Some((table, found)) = table.and_then(|table| table.find(sector, sectors).map(|found| (table, found))) else {
            return false;
        };
        // One may have been taken out of the pool since.
        let is_there = |(member, _): &(u8, u64)| self.devices.contains_key(&Device::Member(*member));
        let places: Vec<(u8, u64)> = found.places.into_iter().flatten().filter(is_there).collect();
        let Some((member, offset)) = places.get((request / 3) as usize % places.len().max(1)).copied() else { return false };
        if !table.begin(usize::from(member)) {
            return false;
        }
        self.beside.under_way.insert(request, (table, found, member));
        if let Some(asked) = self.asked.get_mut(&request) {
            asked.beside = true;
        }
        let op = DeviceOp::Read { offset, len: BLOCK as u32, into: None };
        self.submit(IoId(BESIDE | request), Device::Member(member), op);
        self.event(self.now + PATIENCE_NS, Event::Beside(request));
        true
    }

    /// The device has not answered for so long that the engine is asked.
    pub(super) fn give_up_beside(&mut self, request: u64) {
        self.ended_beside(request, Err(DeviceError::TimedOut));
    }

    /// The device has answered: that is what the client gets, or the engine is asked.
    pub(super) fn ended_beside(&mut self, request: u64, result: DeviceResult<SimBuf>) {
        let Some((table, found, member)) = self.beside.under_way.remove(&request) else { return };
        let data = result.ok().flatten().filter(|data| found.is(data));
        table.end(usize::from(member), data.as_ref().map(|_| found.wanted.len() as u64));
        if let Some(data) = data {
            return self.reply(request, Ok(vec![data.slice(found.wanted)]));
        }
        self.beside.in_vain += 1;
        let Some(asked) = self.asked.get(&request) else { return };
        let (AskedKind::Read { sector, sectors }, Some(engine)) = (&asked.kind, &self.engine) else { return };
        let again = Request::Read { sector: *sector, sectors: *sectors, into: asked.lent.clone() };
        engine.request(asked.volume, RequestId(request), again);
    }
}
