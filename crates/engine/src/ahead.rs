//! Reading ahead: what small reads that follow each other are about to want comes from the cache devices in large pieces, and
//! is kept in memory for them.
//!
//! What is kept is never told that it is out of date. A read asks the map first, as every read does, and takes from memory only
//! what the map names at that moment: the same version, at the same place, with the same checksum. So whatever writes,
//! discards, evicts, moves or cleans need not know of this.

use crate::core::{Core, Volume};
use crate::fetch::fetch_ahead;
use crate::io::{BLOCK, Buf};
use crate::map::Piece;
use crate::policy::ahead::{IDLE_NS, Step};
use crate::policy::route::Side;
use crate::policy::streams::Belongs;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;

/// Device reads of one piece at the most: what lies scattered is not worth more.
const READS: usize = 8;
/// Whatever the settings say, no more than this is read at once, in bytes: memory is bounded.
const MOST_BYTES: u64 = 1 << 20;
/// Longer than this nobody waits for what is being read ahead, in nanoseconds: the device is busy or ill, and another copy
/// may be sooner.
const PATIENCE_NS: u64 = 5_000_000;

/// The data of a piece, verified.
pub(crate) struct Kept<B> {
    piece: Piece,
    data: B,
}

/// Whether what is kept of one piece is the data of another: of the same write, read from where the other is. What of it is
/// live, and whether it is clean by now, makes no difference to the data.
fn same_data(kept: &Piece, named: &Piece) -> bool {
    let of = |p: &Piece| (p.version(), p.sum, p.segment, p.offset, p.first(), p.sectors());
    of(kept) == of(named) && !named.zeroes()
}

fn most_bytes<B: Buf>(core: &Core<B>) -> u64 {
    core.settings.ahead_bytes.min(MOST_BYTES)
}

/// Large reads are as fast without.
pub(crate) fn is_small<B: Buf>(core: &Core<B>, range: &Range<u64>) -> bool {
    (range.end - range.start) * 512 <= most_bytes(core) / 4
}

/// Waits for what is being read ahead of a read: to read it twice would take longer.
pub(crate) async fn wait<B: Buf>(core: &Rc<Core<B>>, volume: &Volume<B>, range: &Range<u64>) {
    let blocks = Volume::<B>::blocks(range);
    let coming = || {
        let since = core.ahead.borrow().coming(volume.number, &blocks)?;
        (is_small(core, range) && volume.map.borrow().any(blocks.clone())).then_some(since)
    };
    while let Some(since) = coming().filter(|since| core.now() < since + PATIENCE_NS) {
        core.ahead_landed.wait_until(since + PATIENCE_NS).await;
    }
}

/// The data of pieces that the map names now, if all of it is kept.
pub(crate) fn kept<B: Buf>(core: &Core<B>, volume: &Volume<B>, pieces: &[(u64, Piece)]) -> Option<Vec<B>> {
    let ahead = core.ahead.borrow();
    if ahead.is_empty() {
        return None;
    }
    let find = |(block, piece): &(u64, Piece)| {
        ahead.of(volume.number, *block).find(|k| same_data(&k.piece, piece)).map(|k| k.data.clone())
    };
    pieces.iter().map(find).collect()
}

/// A small read that hits goes on: what comes after it is read ahead.
pub(crate) fn follow<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, range: &Range<u64>, belongs: Belongs) {
    let most = most_bytes(core);
    // Where the disk is expected to be sooner, it reads ahead by itself.
    if belongs.joined == 0 || !is_small(core, range) || disk_is_sooner(core, volume, most) {
        return;
    }
    let nobody_before = core.ahead.borrow().is_empty();
    let (blocks, run) = (Volume::<B>::blocks(range), belongs.run_sectors * 512 / BLOCK);
    let step = Step { volume: volume.number, blocks, joined: belongs.joined, run };
    let Some((reader, blocks)) = core.ahead.borrow_mut().step(core.now(), &step, most / BLOCK) else { return };
    core.exec.spawn(read_ahead(core.clone(), volume.clone(), reader, blocks));
    if nobody_before {
        core.exec.spawn(let_rest(core.clone()));
    }
}

fn disk_is_sooner<B: Buf>(core: &Core<B>, volume: &Volume<B>, bytes: u64) -> bool {
    let lines = (volume.ssd_line(), volume.disk_use.under_way.get());
    // Those that read ahead are streams themselves.
    core.settings.route
        && volume.has_disk()
        && volume.read_route.borrow().prefers_disk(core.now(), bytes, lines.0, lines.1, false)
}

/// Reads what is cached of some blocks for a reader. What fails is left out: a read that wants it deals with that.
async fn read_ahead<B: Buf>(core: Rc<Core<B>>, volume: Rc<Volume<B>>, reader: u64, blocks: Range<u64>) {
    let (pieces, end) = few_reads(&volume, blocks);
    core.ahead.borrow_mut().cut(reader, end);
    let (since, line) = (core.now(), volume.ssd_line());
    volume.hitting.set(volume.hitting.get() + 1);
    let read = fetch_ahead(&core, &volume, &pieces).await;
    volume.hitting.set(volume.hitting.get() - 1);
    let bytes: u64 = read.iter().flatten().map(|data| data.len() as u64).sum();
    if bytes > 0 {
        // This is what the cache devices took for a read of this size. Who finds it in memory says nothing of them.
        volume.read_route.borrow_mut().note(Side::Ssd, core.now(), bytes, line, core.now() - since);
    }
    let kept = pieces.into_iter().zip(read).filter_map(|((block, piece), data)| Some((block, Kept { piece, data: data.ok()? })));
    core.ahead.borrow_mut().landed(reader, kept);
    core.ahead_landed.notify();
}

/// What of some blocks is cached, in order of address, as far as a few device reads reach; and where that ends.
fn few_reads<B: Buf>(volume: &Volume<B>, blocks: Range<u64>) -> (Vec<(u64, Piece)>, u64) {
    let mut pieces: Vec<(u64, Piece)> = Vec::new();
    let (mut reads, mut end) = (0, blocks.end);
    volume.map.borrow().each_in(blocks, |block, piece| {
        if piece.zeroes() {
            return;
        }
        let goes_on = pieces.last().is_some_and(|(_, last)| {
            (last.segment, u32::from(last.offset) + u32::from(last.sectors())) == (piece.segment, u32::from(piece.offset))
        });
        reads += usize::from(!goes_on);
        if reads <= READS {
            pieces.push((block, *piece));
        } else {
            end = end.min(block);
        }
    });
    (pieces, end)
}

/// Frees what is kept for readers that have ended, until nobody is followed any more.
async fn let_rest<B: Buf>(core: Rc<Core<B>>) {
    while !core.ahead.borrow().is_empty() {
        core.exec.sleep(IDLE_NS).await;
        core.ahead.borrow_mut().rest(core.now());
    }
}
