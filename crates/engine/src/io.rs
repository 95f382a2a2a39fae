//! The seam between the engine and its world: buffers, device operations, client requests.

use crate::policy::shares::{MOST_MINIMUM, Share};
use crate::recovery::StartError;
use crate::stats::Fate;
use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use headpond_format::Mode;

/// Bytes in a sector, the unit in which clients address a volume.
pub const SECTOR: u64 = 512;
/// Sectors in a block, the unit of the map (4 KiB).
pub const BLOCK_SECTORS: u64 = 8;
/// Bytes in a block.
pub const BLOCK: u64 = SECTOR * BLOCK_SECTORS;

/// A handle to an immutable run of whole sectors.
///
/// The engine passes handles about and looks inside only to checksum, or to decode what it wrote itself.
/// The simulator's buffers hold stamps in place of data; the host's hold aligned memory.
/// Lengths and ranges are in bytes and multiples of [`SECTOR`].
pub trait Buf: Clone + 'static {
    /// A buffer with a copy of `bytes`, whose length is a multiple of [`SECTOR`].
    fn from_bytes(bytes: &[u8]) -> Self;
    /// A buffer of zeroes.
    fn zeroes(len: usize) -> Self;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// A handle to a part of the same memory; nothing is copied.
    fn slice(&self, range: Range<usize>) -> Self;
    /// A 64-bit checksum of the content (XXH3 where it is bytes), different for each `seed`.
    fn checksum(&self, seed: u64) -> u64;
    /// The bytes, for decoding metadata.
    fn to_bytes(&self) -> Cow<'_, [u8]>;
    /// One buffer with the content of several, in order.
    fn join(parts: &[Self]) -> Self;
    /// The same content, in memory that nobody changes and that lasts: a copy, where it is only lent. `None`: it cannot be had any more.
    ///
    /// *Lent* is a client's own memory, which comes with a request and goes with its reply. It may change until then: a file system
    /// writes to pages that are on their way. So nothing is computed from it, and no two devices are written from it: the engine
    /// hands it, or a part of it, to the backing device, and owns it before all else.
    fn owned(&self) -> Option<Self> {
        Some(self.clone())
    }
}

/// A device that the engine was given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Device {
    /// A cache device, by its number in the pool.
    Member(u8),
    /// The backing device of the volume with this number.
    Backing(u16),
    /// The third vote.
    Witness,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Member(n) => write!(f, "cache device {n}"),
            Device::Backing(n) => write!(f, "backing device of volume {n}"),
            Device::Witness => write!(f, "witness"),
        }
    }
}

/// What a device is asked to do. Offsets and lengths are in bytes, multiples of [`SECTOR`].
///
/// Operations in flight on one device have no order among themselves. A flush covers the writes that
/// completed before it was submitted, and no others.
#[derive(Clone, Debug)]
pub enum DeviceOp<B> {
    /// Read `len` bytes at `offset`.
    Read {
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u32,
        /// Lent memory of that length to read into, for a device that can; others read into memory of their own. Whichever
        /// it was is what the operation ends with. Where it fails, anything may be in it.
        into: Option<B>,
    },
    /// Write the buffers one after the other at `offset`.
    Write {
        /// Where, in bytes.
        offset: u64,
        /// What, gathered in order.
        bufs: Vec<B>,
        /// How far it is when it completes.
        reach: Reach,
    },
    /// Make all completed writes durable.
    Flush,
    /// Make a range read as zeroes and let the device forget it.
    Discard {
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
    },
    /// Make a range read as zeroes.
    WriteZeroes {
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
    },
}

/// How far a write is when it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// In the device's own volatile cache, if it has one.
    Cache,
    /// The same, and a wish: past that cache, where the device can do that for a write by itself. Nothing is taken for durable
    /// because of it.
    PastCache,
    /// It is durable, as after a flush. Of other writes this says nothing.
    Durable,
}

/// Why a device operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceError {
    /// The device reported an error; of a write, each sector may hold old or new data.
    Failed,
    /// No answer within the time limit. The operation may still take effect.
    TimedOut,
    /// The device is not there (any more).
    Gone,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceError::Failed => "I/O error",
            DeviceError::TimedOut => "no answer within the time limit",
            DeviceError::Gone => "device is gone",
        })
    }
}

/// The end of a device operation: a buffer of the length asked for if it was a read.
pub type DeviceResult<B> = Result<Option<B>, DeviceError>;

/// Names a device operation from its submission to its completion; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u64);

/// Names a client's request; chosen by the front end, handed back with the reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// What a client asks of a volume. Sectors are of 512 bytes.
#[derive(Clone, Debug)]
pub enum Request<B> {
    /// Read a run of sectors.
    Read {
        /// First sector.
        sector: u64,
        /// How many, at least one.
        sectors: u32,
        /// The client's memory, if it is lent, of that length. What the reply has of it is already where it belongs.
        into: Option<B>,
    },
    /// Write a run of sectors.
    Write {
        /// First sector.
        sector: u64,
        /// What to write: a copy, which does not change any more, or what the client lends.
        data: B,
        /// Durable before the reply (forced unit access).
        fua: bool,
    },
    /// All that was acknowledged before it is durable after it.
    Flush,
    /// The same, asked for by who serves the volume and not by a client: that a flush has failed before is for a client to be told.
    OwnFlush,
    /// The content is no longer needed and reads as zeroes; rounded inwards to whole blocks.
    Discard {
        /// First sector.
        sector: u64,
        /// How many.
        sectors: u64,
    },
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// First sector.
        sector: u64,
        /// How many.
        sectors: u64,
        /// Durable before the reply.
        fua: bool,
    },
}

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestError {
    /// Data could not be read or written, or what is dirty there is missing (EIO).
    Io,
    /// Outside the volume, or no sectors, or 4 GiB or more to read at once (EINVAL).
    OutOfRange,
    /// The volume is not served (ENXIO).
    NotServed,
}

/// The reply to a request: for a read the data, in order.
pub type Reply<B> = Result<Vec<B>, RequestError>;

/// Names a command from its beginning to its end; chosen by the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommandId(pub u64);

/// A volume to be attached.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// The number it is to have, which is also its device's: [`Device::Backing`].
    pub number: u16,
    /// Its identity, random.
    pub id: [u8; 16],
    /// Its name.
    pub name: String,
    /// Its size in sectors of 512 bytes.
    pub sectors: u64,
    /// Sector, 0 to 7, at which the grid of blocks begins: where partitions begin modulo 8.
    pub phase: u8,
    /// Its mode.
    pub mode: Mode,
    /// What identifies the backing device, at most 256 bytes. Empty for a volume without one: its data stays on the cache
    /// devices, room for it is set aside, and its mode is write-back.
    pub backing: String,
}

/// What is to be done to a pool or a volume.
#[derive(Clone, Debug)]
pub enum Command {
    /// Attach a volume; its backing device is there.
    Attach(NewVolume),
    /// The backing device of a volume is there now, which was not when the pool started: serve the volume.
    BackingCame {
        /// The volume.
        volume: u16,
    },
    /// Destage all of a volume and let go of it.
    Detach {
        /// The volume.
        volume: u16,
        /// Let go of it also where dirty data is lost, with all its copies: the disk keeps what it had there before.
        give_up_lost: bool,
    },
    /// Let go of a volume that is not served, or has no backing device, with all that the cache has of it, dirty or not: nothing
    /// is written to its disk.
    Abandon {
        /// The volume.
        volume: u16,
    },
    /// Switch a volume's mode; leaving write-back destages it.
    SetMode {
        /// The volume.
        volume: u16,
        /// The new mode.
        mode: Mode,
    },
    /// Make a volume larger, whose disk has become so. The new size holds, also for requests, from its end on.
    Grow {
        /// The volume.
        volume: u16,
        /// Its new size in sectors, that its disk has at the least.
        sectors: u64,
    },
    /// Destage all that is dirty now, and flush the disk.
    Destage {
        /// The volume.
        volume: u16,
    },
    /// Take a cache device into the pool. What is on it is lost, without a question.
    AddMember {
        /// The number it is to have, which is also its device's: [`Device::Member`]. One that no member in sync has.
        member: u8,
        /// Its identity, random.
        id: [u8; 16],
        /// Its size in bytes.
        bytes: u64,
    },
    /// Take a cache device out of the pool, after all that is dirty on it was copied to others.
    RemoveMember {
        /// Its number.
        member: u8,
    },
    /// Read every copy of everything that the cache holds, and mend what is damaged.
    Scrub {
        /// The most it reads; zero: as fast as the cache devices answer.
        bytes_per_second: u64,
    },
    /// Read what is missing of these ranges of a volume's sectors into the cache.
    Preload {
        /// The volume.
        volume: u16,
        /// What to read.
        ranges: Vec<Range<u64>>,
    },
    /// Keep the blocks of these ranges of sectors in the cache, from now on until the engine ends. What of them is missing
    /// is brought while the disk is idle.
    Pin {
        /// The volume.
        volume: u16,
        /// What to keep.
        ranges: Vec<Range<u64>>,
    },
    /// Keep them no longer.
    Unpin {
        /// The volume.
        volume: u16,
        /// What to let go when its time comes.
        ranges: Vec<Range<u64>>,
    },
    /// Give a volume another share of the pool, from now on until the engine ends. Nothing waits for it: what is over a maximum
    /// goes as it gets clean.
    Share {
        /// The volume, one with a disk.
        volume: u16,
        /// What it is sure of, and may have at most.
        share: Share,
    },
    /// Destage nothing any more, until the engine ends, but where a request waits for the room: for a successor that is about to start. Ends when no write to a disk is
    /// under way but clients'.
    Quiesce,
    /// Take a checkpoint now.
    Checkpoint,
    /// End cleanly. No request is taken any more, and those that were end first.
    Stop,
    /// End another command before its time. What it has done so far stays done, and is safe.
    Cancel(CommandId),
}

/// Why a command failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommandError {
    /// The pool did not start.
    Start(StartError),
    /// There is no such volume.
    NoSuchVolume,
    /// Another volume has this name.
    NameTaken,
    /// Another volume has this backing device.
    BackingTaken,
    /// The number is taken, or too large.
    TooManyVolumes,
    /// The pool's intent map has no room for a volume of this size.
    TooLarge,
    /// The volume has no backing device: what it holds stays on the cache devices.
    NoDisk,
    /// There is no room for a volume of this size without a backing device.
    NoRoom {
        /// The most that there is room for, in bytes.
        most_bytes: u64,
    },
    /// Without the cache device there would not be enough room for volumes without a backing device.
    NoRoomWithout,
    /// The volume is not served.
    NotServed,
    /// The volume is served, and only one that is not can be let go of in this way.
    Served,
    /// The volume's backing device has been there before.
    DiskThere,
    /// A volume is to be made smaller, or as large as it is.
    NotLarger {
        /// The volume's size in sectors.
        sectors: u64,
    },
    /// The volume is being grown.
    GrowBusy,
    /// The backing device is not as the cache knows it, or dirty data of the volume may be missing.
    Refused,
    /// Cancelled.
    Cancelled,
    /// The backing device failed.
    Disk,
    /// Of dirty data no copy can be read any more.
    Lost {
        /// Blocks that hold some.
        blocks: u64,
    },
    /// No cache device is left, or no majority.
    NoMembers,
    /// There is no cache device of this number, or it has left already.
    NoSuchMember,
    /// The number is that of a cache device in sync, or too large; or the identity is known.
    MemberTaken,
    /// The cache device is too small for the pool.
    MemberSmall {
        /// The least that would do, in bytes.
        least: u64,
    },
    /// The new cache device failed; or it has joined, and left again: it failed, or another one did while it joined.
    MemberFailed,
    /// Without it there would be fewer cache devices than copies.
    TooFewMembers,
    /// One that has left is not forgotten while dirty data lacks copies.
    CopiesLacking,
    /// The volume is being detached already.
    DetachBusy,
    /// Another cache device is being added or removed.
    MembersBusy,
    /// A scrub is under way.
    ScrubBusy,
    /// Something is being preloaded on the volume.
    PreloadBusy,
    /// The volume is in pass-through: nothing of it is cached.
    PassThrough,
    /// More than may be preloaded at once, or pinned in all.
    TooMuch {
        /// The most that may be, in bytes.
        most_bytes: u64,
    },
    /// A share's maximum is above 100 percent, or its minimum above its maximum.
    ShareOrder,
    /// A flush of the disk failed over acknowledged writes, and no client has been told yet.
    Unkept,
    /// What is dirty on a cache device that is to go can be moved nowhere just now.
    CannotEmpty {
        /// So many blocks.
        blocks: u64,
    },
    /// The minimum shares of all volumes would come to too much.
    ShareTooMuch {
        /// The most that this volume's may be, in percent.
        left: u8,
    },
    /// A range is empty, or goes beyond the volume's end.
    OutsideVolume {
        /// The volume's size in sectors.
        sectors: u64,
    },
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandError::Start(e) => write!(f, "{e}"),
            CommandError::NoSuchVolume => f.write_str("There is no such volume on the pool. `headpond status` lists the volumes."),
            CommandError::NameTaken => f.write_str("Another volume of the pool has this name. Choose another name."),
            CommandError::BackingTaken => {
                f.write_str("This backing device already is a volume of the pool. `headpond status` shows which.")
            }
            CommandError::TooManyVolumes => f.write_str("The pool has no number free for another volume. Detach one first."),
            CommandError::TooLarge => f.write_str(
                "The pool's intent map has no room for a volume of this size beside the others. Detach one; or use a pool whose smallest cache device is larger: each 8 MiB of it make room for about 1 TiB of volumes.",
            ),
            CommandError::NoDisk => f.write_str(
                "The volume has no backing device: what it holds is on the cache devices alone, and stays there. Nothing was changed. `headpond volume delete` takes it off the pool, with what is on it.",
            ),
            CommandError::NoRoom { most_bytes } => write!(
                f,
                "The cache devices have room for {most_bytes} bytes more of volumes without a backing device: these take half of the pool's space at most, twice their size being set aside on each of two cache devices, and half of its map. Nothing was changed. Choose a smaller size, or add a cache device."
            ),
            CommandError::NoRoomWithout => f.write_str(
                "Without this cache device the others would have too little room for the volumes without a backing device, which take half of the pool at most. Nothing was changed. Add another cache device first, or delete such a volume.",
            ),
            CommandError::NotServed => {
                f.write_str("The volume is not being served, so this cannot be done to it now. `headpond status` says why.")
            }
            CommandError::Served => f.write_str(
                "The volume is being served. Nothing was changed. Detach it without throwing anything away. If its disk is gone for good, take the disk out and restart first.",
            ),
            CommandError::DiskThere => f.write_str(
                "The backing device of this volume is there already. Nothing was changed. `headpond status` says how the volume stands.",
            ),
            CommandError::NotLarger { sectors } => write!(
                f,
                "The volume has {} bytes already, and volumes only become larger. Nothing was changed. Name a larger size; to make one smaller, detach it, make the device smaller, and attach that.",
                sectors * SECTOR
            ),
            CommandError::GrowBusy => {
                f.write_str("The volume is being grown already. Nothing was changed. Wait for its end; `headpond status` shows the size.")
            }
            CommandError::Refused => f.write_str(
                "The volume is refused: its disk was changed without the cache, or dirty data of it may be missing. Nothing was overwritten. Bring back the cache devices and the disk that belong together, and restart. If they are gone for good: `headpond detach --throw-away` lets go of the volume, and of what is dirty on it; before that, with the daemon stopped, `headpond writeback --without-missing` can put what is left onto the disk.",
            ),
            CommandError::Cancelled => f.write_str("Cancelled. What was done so far is safe and stays; start it again to go on."),
            CommandError::Disk => f.write_str(
                "The backing device failed. What is dirty stays in the cache, safe. Look at the device's own log, then try again.",
            ),
            CommandError::Unkept => f.write_str(
                "A flush of the backing device failed, or before a restart the last copies of something dirty were lost with cache devices, and no client has been told: what was written and acknowledged before that may not be on the device. What else was dirty in the cache is on it, or still in the cache, safe. Look at the device's own log, and check the file system before you rely on it. A detach that is asked again goes on; `headpond flush` does when a client's next flush has failed for this, once.",
            ),
            CommandError::CannotEmpty { blocks } => write!(
                f,
                "For ten seconds none of the {blocks} dirty blocks left on this cache device could be moved, neither to the others, for want of room or since it cannot be read, nor to its disk. The device stays in the pool, and is used as before. No data is lost by this. `headpond status` shows which disk does not take what is dirty; mend that, or add a cache device, and try again."
            ),
            CommandError::Lost { blocks } => write!(
                f,
                "{blocks} blocks hold data that was not on the disk yet, and no copy of it can be read: they fail rather than show what was there before. All else is on the disk. Bring the missing cache devices back and start the pool again; or detach with --give-up-lost, and the disk keeps in those blocks what it had before."
            ),
            CommandError::NoSuchMember => f.write_str(
                "The pool has no such cache device, or it has left already. Nothing was changed. `headpond status` lists its cache devices.",
            ),
            CommandError::MemberTaken => f.write_str(
                "The pool has no number free for another cache device, or has this one already. Nothing was changed. Remove one first.",
            ),
            CommandError::MemberSmall { least } => write!(
                f,
                "The device is too small to be a cache device of this pool, which needs {least} bytes. Nothing was changed. Use a larger one."
            ),
            CommandError::MemberFailed => f.write_str(
                "The new device failed, or it has joined the pool and left it again, as it, or another cache device, failed meanwhile. What was on it may be overwritten, and `headpond status` may list it as one that has left, whose number the next one gets; it says how the pool stands, and whether anything is missing. Look at the kernel's log, and use another device.",
            ),
            CommandError::TooFewMembers => f.write_str(
                "Without this cache device dirty data could not have all its copies. Nothing was changed. Add another cache device first.",
            ),
            CommandError::CopiesLacking => f.write_str(
                "It has left the pool, and not all dirty data has its copies without it. Nothing was changed. Put another device in its place with `headpond pool add`.",
            ),
            CommandError::DetachBusy => f.write_str(
                "The volume is being detached already. Nothing was changed. Wait for the end of that, or cancel it with `headpond detach NAME --cancel`.",
            ),
            CommandError::MembersBusy => f.write_str(
                "Another cache device is being added or removed. Nothing was changed. Wait for its end, or cancel it.",
            ),
            CommandError::ScrubBusy => {
                f.write_str("A scrub of this pool is under way already. Nothing was changed. Wait for its end, or cancel it.")
            }
            CommandError::PreloadBusy => f.write_str(
                "Something is being preloaded on this volume already. Nothing was changed. Wait for its end, or cancel it.",
            ),
            CommandError::PassThrough => f.write_str(
                "The volume is in pass-through, in which nothing is cached. Nothing was changed. Switch its mode with `headpond mode` first.",
            ),
            CommandError::TooMuch { most_bytes } => write!(
                f,
                "That is more than {} MiB, half of what the cache devices hold or of what the map has memory for, or in too many pieces. Nothing was changed. Name less; or unpin what need not be kept, or add a cache device or memory.",
                most_bytes >> 20
            ),
            CommandError::ShareOrder => f.write_str(
                "A volume's minimum share is no more than its maximum, and that is 100 percent or less. Nothing was changed. Name other shares.",
            ),
            CommandError::ShareTooMuch { left } => write!(
                f,
                "The minimum shares of all volumes may come to {MOST_MINIMUM} percent of the pool; the others leave {left} percent for this one. Nothing was changed. Name a smaller minimum, or make another volume's smaller first. `headpond status` shows them."
            ),
            CommandError::OutsideVolume { sectors } => write!(
                f,
                "A range is empty or goes beyond the volume's {} bytes. Nothing was changed. Name ranges inside it.",
                sectors * SECTOR
            ),
            CommandError::NoMembers => f.write_str(
                "Too few cache devices and votes are left for this. What is on disks and cache devices is as it was. Bring the missing devices back.",
            ),
        }
    }
}

impl core::error::Error for CommandError {}

/// What the engine wants done.
#[derive(Clone, Debug)]
pub enum Effect<B> {
    /// Submit an operation to a device; its end comes back through `Engine::complete`.
    Submit {
        /// Its name.
        io: IoId,
        /// The device.
        device: Device,
        /// What to do.
        op: DeviceOp<B>,
    },
    /// Answer a client.
    Reply {
        /// The volume's number.
        volume: u16,
        /// The request.
        id: RequestId,
        /// What became of it; none of a flush, of a discard of no whole block, and where it failed.
        fate: Option<Fate>,
        /// The answer.
        result: Reply<B>,
    },
    /// A command has ended.
    Done {
        /// The command.
        id: CommandId,
        /// How.
        result: Result<(), CommandError>,
    },
}
