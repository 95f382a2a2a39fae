//! What Headpond keeps on its media: encode and decode, nothing else.
//!
//! All integers are little-endian. Every structure carries a magic number and an XXH3-64 checksum; all but the
//! superblock seed that checksum with the pool's key, so that what another pool (or a client) left on a device
//! is never taken for ours. `docs/FORMAT.md` draws the bytes.
//!
//! Decoding never panics, and allocates nothing whose size was read from the media before a bound was checked.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs, clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

extern crate alloc;

mod checkpoint;
mod codec;
mod intent;
mod layout;
mod record;
mod segment;
mod superblock;
mod witness;

pub use checkpoint::{PAGE_BYTES, Page, PageBody, PieceEntry, SegmentEntry};
pub use codec::{DecodeError, checksum};
pub use intent::{INTENT_PAGE_BYTES, IntentPage, REGION_SECTORS, REGIONS_PER_PAGE, pages_for};
pub use layout::{Layout, SUPERBLOCK_BYTES, grid_shift};
pub use record::{Entry, EntryKind, Record, RecordPlace, data_seed};
pub use segment::{Class, Durable, GENERATIONS, KnownDurable, NO_MEMBER, Place, SegmentHeader};
pub use superblock::{
    CheckpointPointer, Doubts, FORMAT_VERSION, INCOMPAT_KNOWN, MAX_MEMBERS, MAX_SECTORS, MAX_VOLUMES, MemberEntry, MemberState,
    Mode, Superblock, VolumeEntry, page_places,
};
pub use witness::{InSync, WITNESS_BYTES, WITNESS_SLOTS, WitnessRecord};
