//! What the block layer shows of a volume, and the mark by which a device is known to be that volume's.

use twox_hash::xxhash3_64::Hasher;

use super::abi::{Basic, Discard, Params, attr, params};

/// Bytes of the largest read or write.
pub const MAX_IO: u32 = 1 << 20;
/// Sectors of the largest discard or zeroing: 1 GiB, so that none keeps a queue's tag for long.
const MAX_ZEROING: u32 = 1 << 21;
/// The unit that the engine writes without reading first, and discards, in bytes.
const BLOCK: u32 = 4096;
/// The upper bits of each mark: it is one of Headpond's.
const OURS: u64 = 0x4850 << 48;

/// What is to be shown of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its size in bytes.
    pub size: u64,
    /// The unit of addresses in bytes, as that of the backing device.
    pub logical_block: u32,
    /// The request that suits best in bytes, as that of the backing device; 0 if it does not say.
    pub optimal_io: u32,
    /// Whether there is a rotating disk behind it.
    pub rotational: bool,
    /// Read-ahead in KiB.
    pub read_ahead_kb: u32,
    /// Whether discards are offered; zeroes always are.
    pub discards: bool,
    /// Where its grid of blocks begins, in sectors of 512 bytes.
    pub phase: u8,
}

/// The parameters of a volume's device.
pub fn params(shape: &Shape) -> Params {
    let logical = shape.logical_block.max(512);
    let physical = logical.max(BLOCK);
    let rotational = if shape.rotational { attr::ROTATIONAL } else { 0 };
    Params {
        len: size_of::<Params>() as u32,
        types: params::BASIC | params::DISCARD,
        basic: Basic {
            // The engine's flush is what makes acknowledged data durable; without the first of these the
            // block layer would keep it to itself.
            attrs: attr::VOLATILE_CACHE | attr::FUA | rotational,
            logical_bs_shift: logical.ilog2() as u8,
            physical_bs_shift: physical.ilog2() as u8,
            io_opt_shift: optimal_shift(shape.optimal_io, physical),
            io_min_shift: physical.ilog2() as u8,
            max_sectors: MAX_IO / 512,
            chunk_sectors: 0,
            dev_sectors: shape.size / 512,
            virt_boundary_mask: 0,
        },
        discard: Discard {
            discard_alignment: u32::from(shape.phase) * 512,
            discard_granularity: physical,
            max_discard_sectors: if shape.discards { MAX_ZEROING } else { 0 },
            max_write_zeroes_sectors: MAX_ZEROING,
            max_discard_segments: 1,
            reserved0: 0,
        },
        ..Params::default()
    }
}

/// The optimal size as a power of two, which is all that the kernel takes: of an array's stripe its largest factor of
/// that kind, so that what is aligned to stripes stays so. Where there is none, the block, which says nothing.
fn optimal_shift(bytes: u32, physical: u32) -> u8 {
    let factor = if bytes == 0 { 0 } else { bytes.trailing_zeros() };
    factor.max(physical.ilog2()) as u8
}

/// Whether a device is of the block that a volume has, and within its size: a volume that has grown may have a device that
/// has not. What else differs is only seen, not relied on.
pub fn fits(found: &Params, shape: &Shape) -> bool {
    let wanted = params(shape);
    found.types & params::BASIC != 0
        && found.basic.dev_sectors <= wanted.basic.dev_sectors
        && found.basic.logical_bs_shift == wanted.basic.logical_bs_shift
        && sends_flushes(found)
}

/// Whether the block layer passes on flushes of a device with these parameters.
pub fn sends_flushes(found: &Params) -> bool {
    let both = attr::VOLATILE_CACHE | attr::FUA;
    found.basic.attrs & both == both
}

/// The mark of a volume's device, which the kernel keeps with it.
pub fn mark(pool: &[u8; 16], volume: &[u8; 16]) -> u64 {
    OURS | Hasher::oneshot(&[*pool, *volume].concat()) >> 16
}

/// Whether a device with this mark is a volume of Headpond, of whichever pool.
pub fn is_ours(mark: u64) -> bool {
    mark >> 48 == OURS >> 48
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        let (size, logical_block) = (1 << 30, 512);
        Shape { size, logical_block, optimal_io: 0, rotational: true, read_ahead_kb: 128, discards: true, phase: 0 }
    }

    #[test]
    fn flushes_and_forced_unit_access_are_always_asked_for() {
        for rotational in [false, true] {
            let params = params(&Shape { rotational, ..shape() });
            assert!(sends_flushes(&params));
            assert_eq!(params.basic.attrs & attr::ROTATIONAL != 0, rotational);
        }
        assert!(!sends_flushes(&Params::default()));
    }

    #[test]
    fn blocks_are_those_of_the_backing_device_and_of_the_engine() {
        let shifts = |logical_block| {
            let basic = params(&Shape { logical_block, ..shape() }).basic;
            (basic.logical_bs_shift, basic.physical_bs_shift, basic.io_min_shift)
        };
        assert_eq!((shifts(512), shifts(4096)), ((9, 12, 12), (12, 12, 12)));
        let basic = params(&shape()).basic;
        assert_eq!((basic.dev_sectors, basic.max_sectors), (1 << 21, 2048));
    }

    #[test]
    fn the_optimal_size_is_a_power_of_two_that_stripes_are_made_of() {
        for (bytes, shift) in [(0, 12), (512, 12), (65_536, 16), (768 << 10, 18), (3 << 20, 20)] {
            assert_eq!(params(&Shape { optimal_io: bytes, ..shape() }).basic.io_opt_shift, shift, "{bytes}");
        }
    }

    #[test]
    fn discards_are_aligned_to_the_grid_of_blocks() {
        let discard = params(&Shape { phase: 7, ..shape() }).discard;
        assert_eq!((discard.discard_alignment, discard.discard_granularity), (3584, 4096));
        assert_eq!((discard.max_discard_sectors, discard.max_write_zeroes_sectors), (1 << 21, 1 << 21));
        assert_eq!(discard.max_discard_segments, 1, "the kernel takes no more");
    }

    /// Discards were offered whatever the disk, and where it cannot zero by itself they were carried out as zeroes that the kernel wrote:
    /// making a file system on 16 TB took a day, and the disk alone refuses its discard at once.
    #[test]
    fn discards_are_not_offered_where_they_would_be_written_and_zeroes_always_are() {
        let discard = params(&Shape { discards: false, ..shape() }).discard;
        assert_eq!((discard.max_discard_sectors, discard.max_write_zeroes_sectors), (0, 1 << 21));
        // The kernel wants this of all.
        assert_eq!((discard.discard_granularity, discard.max_discard_segments), (4096, 1));
    }

    #[test]
    fn a_larger_device_or_one_of_another_block_is_not_the_volumes_and_a_smaller_one_is_that_of_one_that_has_grown() {
        let found = params(&shape());
        assert!(fits(&found, &shape()));
        assert!(fits(&found, &Shape { rotational: false, optimal_io: 4096, ..shape() }));
        assert!(fits(&found, &Shape { size: 1 << 31, ..shape() }));
        assert!(!fits(&found, &Shape { size: 1 << 29, ..shape() }));
        assert!(!fits(&found, &Shape { logical_block: 4096, ..shape() }));
        let deaf = Params { basic: Basic { attrs: 0, ..found.basic }, ..found };
        assert!(!fits(&deaf, &shape()));
    }

    #[test]
    fn marks_differ_between_volumes_and_show_whose_they_are() {
        let (a, b) = (mark(&[1; 16], &[2; 16]), mark(&[1; 16], &[3; 16]));
        assert_ne!(a, b);
        assert_ne!(a, mark(&[2; 16], &[1; 16]));
        assert!(is_ours(a) && is_ours(b) && !is_ours(0) && !is_ours(u64::MAX));
        assert_eq!(a, mark(&[1; 16], &[2; 16]));
    }
}
