//! What cache devices and volumes leave for data, which every write asks for: reckoned once for each change of them.

use crate::core::{Core, Pool};
use crate::diskless::set_aside_for;
use crate::io::Buf;
use crate::policy::image::{self, Areas};
use crate::policy::shares::Share;

/// What follows from the cache devices that are there, and the volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    /// Copies that dirty data must have now; 0: no cache device is left.
    pub copies: usize,
    /// Pieces for which images have room, clean ones counted, whatever the cap of memory is.
    pub most_in_images: u64,
    /// Pieces that the maps may hold.
    pub most_pieces: u64,
    /// The same of those that cannot be let go.
    pub sure_pieces: u64,
    /// Segments that are set aside for volumes without a disk.
    pub set_aside: u64,
    /// Whether any volume has a share.
    pub has_shares: bool,
    /// Segments, each with its copies, that are for what frees space: marks, moves and invalidations.
    pub reserve: u32,
}

/// Changes of what bounds are reckoned from.
type Changes = [u64; 3];

/// Bounds, and of when they are.
pub(crate) type Known = Option<(Changes, Bounds)>;

impl<B: Buf> Core<B> {
    /// The bounds that hold now. Inlined, as who asks wants one of them, and a write asks a dozen times.
    #[inline]
    pub(crate) fn bounds(&self) -> Bounds {
        let changes = [self.pool.changes(), self.volumes.changes(), self.image_overflows.get()];
        match self.bounds_known.get() {
            Some((of, bounds)) if of == changes => bounds,
            _ => self.reckon_anew(changes),
        }
    }

    #[cold]
    fn reckon_anew(&self, changes: Changes) -> Bounds {
        let bounds = self.reckon();
        self.bounds_known.set(Some((changes, bounds)));
        bounds
    }

    fn reckon(&self) -> Bounds {
        let (pool, volumes) = (self.pool.borrow(), self.volumes.borrow());
        let areas = areas(&pool, volumes.len() as u64, self.image_overflows.get());
        let most_in_images = image::most(&areas);
        Bounds {
            copies: pool.copies_now(),
            most_in_images,
            most_pieces: self.no_more_than_memory(most_in_images),
            sure_pieces: self.no_more_than_memory(image::sure(&areas)),
            set_aside: volumes.values().filter(|v| !v.has_disk()).map(|v| set_aside_for(v.sectors.get(), &pool)).sum(),
            has_shares: volumes.values().any(|v| v.share.get() != Share::default()),
            reserve: self.reserve_for(
                volumes.values().filter(|v| v.has_disk()).count() as u64,
                areas.segments / pool.copies_now().max(1) as u64,
            ),
        }
    }

    /// The reserve of so many volumes in so many segments. Each has a log of its own: what one has opened for its marks is no room for another one's,
    /// and that one would wait for the first one's disk.
    fn reserve_for(&self, volumes: u64, segments: u64) -> u32 {
        let least = self.settings.reserve_segments;
        if least == 0 { 0 } else { least.max(volumes.min(segments / 8) as u32) }
    }

    /// So many pieces, or as many as the cap of memory allows.
    pub(crate) fn no_more_than_memory(&self, pieces: u64) -> u64 {
        match self.settings.max_pieces {
            0 => pieces,
            most => most.min(pieces),
        }
    }
}

fn areas(pool: &Pool, volumes: u64, overflows: u64) -> Areas {
    // One that is about to leave holds no page.
    let stays = |m: &u8| pool.leaving != Some(*m) || pool.in_sync().count() == 1;
    let layouts = || pool.in_sync().filter(stays).map(|m| pool.members[usize::from(m)].layout);
    let members = layouts().count().max(1) as u64;
    let area = layouts().map(|l| l.checkpoint_bytes).min().unwrap_or(0);
    Areas {
        pages: area / headpond_format::PAGE_BYTES as u64 * members / members.min(2),
        segments: layouts().map(|l| u64::from(l.slots())).sum(),
        volumes,
        overflows,
    }
}
