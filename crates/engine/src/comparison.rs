//! Whether a volume's disk is the one that the cache belongs to, when it comes: what is clean is equal on both.

use crate::core::{Core, Volume};
use crate::exec::IoWait;
use crate::fetch::{fetch, verify};
use crate::intent::{self, Bit, DiskWrite};
use crate::io::{BLOCK_SECTORS, Buf, DeviceOp};
use crate::loading;
use crate::map::{Piece, mask, runs};
use crate::marks::Mark;
use crate::recovery::is_inside;
use crate::volumes::empty;
use alloc::rc::Rc;
use alloc::vec::Vec;

/// Pieces of each volume compared with its disk.
const SAMPLES: usize = 32;

/// Refuses a volume with dirty data whose disk is another one than it was; where nothing is dirty, what is cached goes.
pub(crate) async fn compare_disk<B: Buf>(core: &Rc<Core<B>>, v: &Rc<Volume<B>>) {
    loading::look_around(core, v).await;
    if disk_matches(core, v).await != Some(false) {
        return;
    }
    core.mark(Mark::DiskIsAnother);
    // What is dirty is to be known, and before what is clean goes all there is.
    if !core.is_loaded.get() && loading::rest(core).await.is_err() {
        v.refused.set(true);
        return;
    }
    if v.map.borrow().dirty_blocks() > 0 {
        v.refused.set(true);
    } else {
        // A start before the next checkpoint would find it all in the image again, beside what is of this disk. A checkpoint that is being taken has it in its
        // image, too, and must not clear the bits. A pool that stands still takes nothing new before its next start, which compares again.
        let _changed = DiskWrite::begin(core, v, &v.extent());
        let _ = intent::ensure(core, v, &v.extent(), Bit::Intent, 0).await;
        empty(core, v).await;
    }
}

/// Whether samples of what is clean, where nothing but destage wrote, are equal on both. It is judged by what is known of the map; `None` if there is
/// nothing to judge by.
async fn disk_matches<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>) -> Option<bool> {
    let (zeroes, with_data): (Vec<_>, Vec<_>) = samples(core, volume).await.into_iter().partition(|(_, p)| p.zeroes());
    let (whole, in_part): (Vec<_>, Vec<_>) = with_data.into_iter().partition(|(_, p)| is_whole(p));
    let mut verdicts = by_sum(core, volume, &whole).await;
    verdicts.extend(by_content(core, volume, &zeroes).await);
    if verdicts.is_empty() {
        // Only where it has to be: a cache device may be silent.
        verdicts = by_content(core, volume, &in_part).await;
    }
    (!verdicts.is_empty()).then(|| verdicts.into_iter().all(|same| same))
}

/// Whether the disk has what the checksums are of, which are over all of a piece.
async fn by_sum<B: Buf>(core: &Core<B>, volume: &Volume<B>, pieces: &[(u64, Piece)]) -> Vec<bool> {
    let mut verdicts = Vec::new();
    for ((block, piece), read) in pieces.iter().zip(reads(core, volume, pieces)) {
        verdicts.extend(read.await.ok().flatten().map(|on_disk| verify(core, volume, *block, piece, &on_disk)));
    }
    verdicts
}

/// Whether the disk has what is left of each piece. Of one that is covered in part it has what covers it.
async fn by_content<B: Buf>(core: &Rc<Core<B>>, volume: &Rc<Volume<B>>, pieces: &[(u64, Piece)]) -> Vec<bool> {
    let reads = reads(core, volume, pieces);
    let with_data: Vec<(u64, Piece)> = pieces.iter().copied().filter(|(_, p)| !p.zeroes()).collect();
    let mut cached = fetch(core, volume, &with_data).await.into_iter();
    let mut verdicts = Vec::new();
    for ((_, piece), read) in pieces.iter().zip(reads) {
        let cached =
            if piece.zeroes() { Some(B::zeroes(usize::from(piece.sectors()) * 512)) } else { cached.next().and_then(Result::ok) };
        let on_disk = read.await.ok().flatten();
        verdicts.extend(cached.zip(on_disk).map(|(cached, on_disk)| is_equal(piece, &cached, &on_disk)));
    }
    verdicts
}

/// What the disk has where the pieces are. All at once: one after the other, each would wait for the disk to come round.
fn reads<B: Buf>(core: &Core<B>, volume: &Volume<B>, pieces: &[(u64, Piece)]) -> Vec<IoWait<B>> {
    let read = |(block, piece): &(u64, Piece)| {
        let offset = volume.disk_offset(block * BLOCK_SECTORS + u64::from(piece.first()));
        core.exec.io(volume.device(), DeviceOp::Read { offset, len: u32::from(piece.sectors()) * 512, into: None })
    };
    pieces.iter().map(read).collect()
}

/// An even spread over all that is clean, without counting it first, of some of it at a time: others are served meanwhile. What changes between is no
/// matter. Nobody but destage writes to the disk before it is compared, so what was clean when it was looked at is on the right one, though it
/// be let go of since.
async fn samples<B: Buf>(core: &Core<B>, volume: &Volume<B>) -> Vec<(u64, Piece)> {
    let (mut samples, mut seen) = (Vec::<(u64, Piece)>::new(), 0u64);
    let extent = volume.extent();
    let mut from = Some(0);
    while let Some(at) = from {
        from = volume.map.borrow().walk(at, core.settings.let_go_blocks, |block, piece| {
            let is_its = is_inside(&extent, block, piece.first(), piece.sectors());
            if piece.dirty() || !is_its || !core.is_known(volume.number, block) {
                return;
            }
            seen += 1;
            if samples.len() < SAMPLES {
                samples.push((block, *piece));
            } else if seen.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 < u64::from(u32::MAX) / seen * SAMPLES as u64 {
                let at = (seen.wrapping_mul(0xc2b2_ae3d_27d4_eb4f) >> 33) as usize % SAMPLES;
                samples[at] = (block, *piece);
            }
        });
        if from.is_some() {
            core.exec.sleep(1).await;
        }
    }
    samples
}

fn is_whole(piece: &Piece) -> bool {
    piece.live == mask(piece.first(), piece.sectors())
}

/// Whether the sectors that are still a piece's are the same in two readings of all of it.
fn is_equal<B: Buf>(piece: &Piece, a: &B, b: &B) -> bool {
    runs(piece.live).all(|run| {
        let at = |sector: u64| (sector - u64::from(piece.first())) as usize * 512;
        let part = |whole: &B| whole.slice(at(run.start)..at(run.end)).checksum(0);
        part(a) == part(b)
    })
}
