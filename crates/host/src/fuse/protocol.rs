//! The FUSE protocol of a file system with one file: bytes in, bytes or an I/O request out.
//!
//! Nothing here touches the operating system. All integers are in the machine's byte order, as in
//! `linux/fuse.h`, and are decoded by hand, so that no bytes whatsoever can do worse than an error reply.

use std::ops::Range;

use rustix::io::Errno;

/// The most bytes that one READ or WRITE carries.
pub const MAX_IO: u32 = 1 << 20;
/// Room for the largest request: a WRITE of [`MAX_IO`], and a page for the headers in front of it.
pub const REQUEST_MAX: usize = MAX_IO as usize + PAGE as usize;

const PAGE: u32 = 4096;
const SECTOR: u64 = 512;
const MAJOR: u32 = 7;
/// Linux 5.4, the oldest protocol spoken here.
const OLDEST_MINOR: u32 = 31;
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
const ROOT: u64 = 1;
const FILE: u64 = 2;
/// Requests in flight before the kernel queues them; a loop device has 128 tags.
const MAX_BACKGROUND: u16 = 256;

const ASYNC_READ: u32 = 1 << 0;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;

/// The kernel caches nothing of the file: the loop device's user does already.
const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// No FLUSH on close: it is not killable, and the daemon itself has to close the file once.
const FOPEN_NOFLUSH: u32 = 1 << 5;
/// Writes are not taken one at a time under the inode's lock.
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

const FATTR_MODE_UID_GID: u32 = 0b111;
const FATTR_SIZE: u32 = 1 << 3;
const O_DSYNC: u32 = 0o10000;
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// `enum fuse_opcode`.
mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const ACCESS: u32 = 34;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
}

/// What is to be done about one request of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Nothing; the kernel wants no answer.
    Ignore,
    /// Write these bytes to `/dev/fuse`.
    Reply(Vec<u8>),
    /// Let the volume do all parts of this, then answer the request `unique` with [`done`].
    Punch {
        /// The kernel's name for the request.
        unique: u64,
        /// Where.
        hole: Hole,
    },
    /// Let the volume do this, then answer the request `unique`.
    Io {
        /// The kernel's name for the request.
        unique: u64,
        /// What to do.
        io: Io<'a>,
    },
}

/// A request for the volume. Offsets and lengths are in bytes, multiples of 512, inside the file.
#[derive(Debug, PartialEq, Eq)]
pub enum Io<'a> {
    /// Answer with exactly `len` bytes, at least 512.
    Read {
        /// Where.
        offset: u64,
        /// How much.
        len: u32,
    },
    /// Answer with [`written`].
    Write {
        /// Where.
        offset: u64,
        /// What; at least 512 bytes.
        data: &'a [u8],
        /// Durable before the answer.
        durable: bool,
    },
    /// All that was answered before is durable before this is answered.
    Flush,
    /// A range of zeroes.
    WriteZeroes {
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
    },
}

/// A range that reads as zeroes afterwards and whose space need not be kept, cut where the volume's blocks begin: the volume rounds a
/// discard inwards to whole ones, so that only these are sure to be zeroes after it. Each part may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hole {
    /// What comes before the first whole block, to be written as zeroes; all, if there is no whole block.
    pub head: Range<u64>,
    /// Whole blocks, to be discarded.
    pub blocks: Range<u64>,
    /// What comes after the last of them, to be written as zeroes.
    pub tail: Range<u64>,
}

impl Hole {
    /// The hole in a volume whose grid of blocks begins at the sector `phase`.
    fn cut(range: Range<u64>, phase: u8) -> Hole {
        let block = u64::from(PAGE);
        let shift = block - u64::from(phase) % (block / SECTOR) * SECTOR;
        let first = (range.start + shift).next_multiple_of(block) - shift;
        let end = ((range.end + shift) / block * block).saturating_sub(shift);
        match first < end {
            true => Hole { head: range.start..first, blocks: first..end, tail: end..range.end },
            false => Hole { head: range.clone(), blocks: 0..0, tail: 0..0 },
        }
    }
}

/// The header of a successful reply with `payload` bytes after it.
pub fn header(unique: u64, payload: usize) -> [u8; OUT_HEADER] {
    encode_header(unique, payload, 0)
}

/// A successful reply with nothing in it.
pub fn done(unique: u64) -> Vec<u8> {
    header(unique, 0).to_vec()
}

/// The reply to a WRITE of `len` bytes.
pub fn written(unique: u64, len: u32) -> Vec<u8> {
    Body::new().u32s(&[len, 0]).reply(unique)
}

/// A reply that says why not.
pub fn error(unique: u64, errno: Errno) -> Vec<u8> {
    encode_header(unique, 0, -errno.raw_os_error()).to_vec()
}

fn encode_header(unique: u64, payload: usize, error: i32) -> [u8; OUT_HEADER] {
    let mut out = [0; OUT_HEADER];
    out[..4].copy_from_slice(&((OUT_HEADER + payload) as u32).to_ne_bytes());
    out[4..8].copy_from_slice(&error.to_ne_bytes());
    out[8..].copy_from_slice(&unique.to_ne_bytes());
    out
}

/// The directory with one file, as the kernel is told of it.
#[derive(Debug, Clone)]
pub struct SingleFile {
    /// The file's name.
    pub name: String,
    /// The size of the file in bytes.
    pub size: u64,
    /// The sector, 0 to 7, at which the volume's grid of blocks begins.
    pub phase: u8,
    /// Whether there may be holes in it. The loop driver then passes on discards, and has limits on them that outlive the file if
    /// anybody changes them in /sys; a refusal is forgotten with it.
    pub discards: bool,
}

impl SingleFile {
    /// Decides about one request as read from `/dev/fuse`.
    pub fn step<'a>(&self, request: &'a [u8]) -> Step<'a> {
        let mut fields = Fields(request);
        let Some((len, opcode, unique, node)) = (|| {
            let head = (fields.u32()?, fields.u32()?, fields.u64()?, fields.u64()?);
            fields.skip(IN_HEADER - 24)?;
            Some(head)
        })() else {
            // Too short to name the request that an answer would be for.
            return Step::Ignore;
        };
        if len as usize != request.len() {
            return Step::Reply(error(unique, Errno::INVAL));
        }
        match self.decide(opcode, unique, node, fields) {
            Some(Ok(step)) => step,
            Some(Err(errno)) => Step::Reply(error(unique, errno)),
            None => Step::Reply(error(unique, Errno::INVAL)),
        }
    }

    /// `None` if the body is too short for its opcode.
    fn decide<'a>(&self, opcode: u32, unique: u64, node: u64, mut body: Fields<'a>) -> Option<Result<Step<'a>, Errno>> {
        let reply = |body: Body| Ok(Step::Reply(body.reply(unique)));
        let io = |io| Ok(Step::Io { unique, io });
        let empty = || Ok(Step::Reply(done(unique)));
        Some(match opcode {
            op::LOOKUP if node == ROOT && body.0.split(|b| *b == 0).next() == Some(self.name.as_bytes()) => {
                reply(self.attributes(Body::new().u64s(&[FILE, 0, 1, 1]), FILE))
            }
            op::LOOKUP => Err(Errno::NOENT),
            // Nothing is kept per node, and I/O is not interruptible.
            op::FORGET | op::INTERRUPT | op::BATCH_FORGET => Ok(Step::Ignore),
            op::GETATTR => self.describe(node).map(|body| Step::Reply(body.reply(unique))),
            // Times are not kept, the rest is fixed.
            op::SETATTR => {
                let valid = body.u32()?;
                body.skip(12)?;
                let size = body.u64()?;
                let resizes = valid & FATTR_SIZE != 0 && (node != FILE || size != self.size);
                if valid & FATTR_MODE_UID_GID != 0 || resizes {
                    Err(Errno::PERM)
                } else {
                    self.describe(node).map(|body| Step::Reply(body.reply(unique)))
                }
            }
            op::OPEN if node == FILE => {
                let flags = FOPEN_DIRECT_IO | FOPEN_NOFLUSH | FOPEN_PARALLEL_DIRECT_WRITES;
                reply(Body::new().u64s(&[0]).u32s(&[flags, 0]))
            }
            op::OPENDIR if node == ROOT => reply(Body::new().u64s(&[0, 0])),
            op::READ if node == FILE => {
                body.skip(8)?;
                let (offset, size) = (body.u64()?, body.u32()?);
                // What lies past the end is left out, as of any file.
                let len = self.size.saturating_sub(offset).min(u64::from(size)) as u32;
                if !aligned(offset) || !aligned(u64::from(size)) || size > MAX_IO {
                    Err(Errno::INVAL)
                } else if len == 0 {
                    empty()
                } else {
                    io(Io::Read { offset, len })
                }
            }
            op::WRITE if node == FILE => {
                body.skip(8)?;
                let (offset, size) = (body.u64()?, body.u32()?);
                body.skip(12)?;
                let durable = body.u32()? & O_DSYNC != 0;
                body.skip(4)?;
                let data = body.0;
                if data.len() != size as usize || size > MAX_IO {
                    Err(Errno::INVAL)
                } else {
                    self.range(offset, u64::from(size)).and_then(|_| io(Io::Write { offset, data, durable }))
                }
            }
            // The block size becomes the loop device's discard granularity.
            op::STATFS => reply(Body::new().u64s(&[self.size / u64::from(PAGE), 0, 0, 1, 0]).u32s(&[PAGE, 255, PAGE]).zeroes(28)),
            // The kernel checks permissions, and nothing is kept per open file.
            op::RELEASE | op::FLUSH | op::RELEASEDIR | op::ACCESS | op::DESTROY => empty(),
            op::FSYNC if node == FILE => io(Io::Flush),
            op::INIT => return self.init(unique, body),
            op::READDIR if node == ROOT => {
                body.skip(8)?;
                let (offset, size) = (body.u64()?, body.u32()?);
                reply(self.entries(offset, size as usize))
            }
            op::FALLOCATE if node == FILE => {
                body.skip(8)?;
                let (offset, len, mode) = (body.u64()?, body.u64()?, body.u32()?);
                match (self.range(offset, len), mode) {
                    // The loop device sends its discards that way, and its WRITE_ZEROES if it may unmap.
                    (Ok(()), mode) if mode == PUNCH_HOLE | KEEP_SIZE && self.discards => {
                        Ok(Step::Punch { unique, hole: Hole::cut(offset..offset + len, self.phase) })
                    }
                    (Ok(()), mode) if mode == ZERO_RANGE | KEEP_SIZE => io(Io::WriteZeroes { offset, len }),
                    // Not ENOSYS, after which the kernel would not ask again.
                    (Ok(()), _) => Err(Errno::OPNOTSUPP),
                    (Err(errno), _) => Err(errno),
                }
            }
            op::READ | op::WRITE | op::FSYNC | op::FALLOCATE => Err(Errno::ISDIR),
            op::OPEN | op::OPENDIR | op::READDIR => Err(Errno::NOENT),
            _ => Err(Errno::NOSYS),
        })
    }

    fn init<'a>(&self, unique: u64, mut body: Fields<'a>) -> Option<Result<Step<'a>, Errno>> {
        let (major, minor) = (body.u32()?, body.u32()?);
        let (readahead, offered) = (body.u32()?, body.u32()?);
        if major < MAJOR || (major == MAJOR && minor < OLDEST_MINOR) {
            return Some(Err(Errno::PROTO));
        }
        let flags = offered & (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES);
        // A kernel with a newer major number asks again with ours.
        let out = Body::new()
            .u32s(&[MAJOR, OLDEST_MINOR, readahead, flags])
            .u16s(&[MAX_BACKGROUND, MAX_BACKGROUND / 4 * 3])
            .u32s(&[MAX_IO, 1])
            .u16s(&[(MAX_IO / PAGE) as u16])
            .zeroes(34);
        Some(Ok(Step::Reply(out.reply(unique))))
    }

    /// The reply to GETATTR: attributes, valid for a second.
    fn describe(&self, node: u64) -> Result<Body, Errno> {
        match node {
            ROOT | FILE => Ok(self.attributes(Body::new().u64s(&[1]), node)),
            _ => Err(Errno::NOENT),
        }
    }

    /// Appends the nanoseconds of the validity and a `fuse_attr`.
    fn attributes(&self, body: Body, node: u64) -> Body {
        let (mode, links, size) = match node {
            FILE => (S_IFREG | 0o600, 1, self.size),
            _ => (S_IFDIR | 0o700, 2, 0),
        };
        body.u64s(&[0, node, size, size / 512]).zeroes(36).u32s(&[mode, links]).zeroes(12).u32s(&[PAGE, 0])
    }

    /// Directory entries from the `offset`th on, as many as fit.
    fn entries(&self, offset: u64, size: usize) -> Body {
        let all = [(ROOT, S_IFDIR, "."), (ROOT, S_IFDIR, ".."), (FILE, S_IFREG, &self.name)];
        let mut body = Body::new();
        for (at, (node, kind, name)) in all.into_iter().enumerate().skip(offset.min(3) as usize) {
            if body.0.len() - OUT_HEADER + (24 + name.len()).next_multiple_of(8) > size {
                break;
            }
            body = body.u64s(&[node, at as u64 + 1]).u32s(&[name.len() as u32, kind >> 12]);
            body.0.extend_from_slice(name.as_bytes());
            let padding = body.0.len().next_multiple_of(8) - body.0.len();
            body = body.zeroes(padding);
        }
        body
    }

    /// EINVAL unless this is a run of whole sectors in the file.
    fn range(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        if len > 0 && inside && aligned(offset) && aligned(len) { Ok(()) } else { Err(Errno::INVAL) }
    }
}

fn aligned(bytes: u64) -> bool {
    bytes.is_multiple_of(SECTOR)
}

/// Takes integers off the front of a request.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }
    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}

/// Gathers a reply behind room for its header.
struct Body(Vec<u8>);

impl Body {
    fn new() -> Self {
        Body(vec![0; OUT_HEADER])
    }
    fn u16s(mut self, values: &[u16]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
        self
    }
    fn u32s(mut self, values: &[u32]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
        self
    }
    fn u64s(mut self, values: &[u64]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
        self
    }
    fn zeroes(mut self, bytes: usize) -> Self {
        self.0.resize(self.0.len() + bytes, 0);
        self
    }
    fn reply(mut self, unique: u64) -> Vec<u8> {
        let header = header(unique, self.0.len() - OUT_HEADER);
        self.0[..OUT_HEADER].copy_from_slice(&header);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn file() -> SingleFile {
        SingleFile { name: "volume".into(), size: MIB, phase: 0, discards: true }
    }

    fn request(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
        let head = Body(Vec::new()).u32s(&[(IN_HEADER + body.len()) as u32, opcode]).u64s(&[7, node]);
        let mut bytes = head.zeroes(16).0;
        bytes.extend_from_slice(body);
        bytes
    }

    /// The error number and the body of the reply to a request.
    fn answer(opcode: u32, node: u64, body: &[u8]) -> (i32, Vec<u8>) {
        let Step::Reply(bytes) = file().step(&request(opcode, node, body)) else { panic!("no reply") };
        assert_eq!(bytes[..4], (bytes.len() as u32).to_ne_bytes());
        assert_eq!(bytes[8..16], 7u64.to_ne_bytes());
        (-i32::from_ne_bytes(bytes[4..8].try_into().unwrap()), bytes[16..].to_vec())
    }

    fn fallocate(offset: u64, len: u64, mode: u32) -> Vec<u8> {
        request(op::FALLOCATE, FILE, &Body(Vec::new()).u64s(&[0, offset, len]).u32s(&[mode, 0]).0)
    }

    #[test]
    fn replies_have_the_sizes_of_the_kernels_structures() {
        let init = Body(Vec::new()).u32s(&[7, 45, 0, u32::MAX]).zeroes(48).0;
        assert_eq!(answer(op::INIT, 0, &init).1.len(), 64);
        assert_eq!(answer(op::LOOKUP, ROOT, b"volume\0").1.len(), 128);
        assert_eq!(answer(op::GETATTR, FILE, &[0; 16]).1.len(), 104);
        assert_eq!(answer(op::STATFS, ROOT, &[]).1.len(), 80);
        assert_eq!(answer(op::READDIR, ROOT, &Body(Vec::new()).u64s(&[0, 0]).u32s(&[4096]).zeroes(20).0).1.len(), 96);
        assert_eq!(written(7, 512).len(), 24);
    }

    #[test]
    fn a_kernel_older_than_the_protocol_is_refused() {
        let init = Body(Vec::new()).u32s(&[7, 30, 0, 0]).0;
        assert_eq!(answer(op::INIT, 0, &init).0, Errno::PROTO.raw_os_error());
    }

    #[test]
    fn the_file_keeps_its_size_and_owner() {
        let size = |valid: u32, size: u64| Body(Vec::new()).u32s(&[valid, 0]).u64s(&[0, size]).zeroes(64).0;
        assert_eq!(answer(op::SETATTR, FILE, &size(FATTR_SIZE, MIB)).0, 0);
        assert_eq!(answer(op::SETATTR, FILE, &size(FATTR_SIZE, 0)).0, Errno::PERM.raw_os_error());
        assert_eq!(answer(op::SETATTR, FILE, &size(1, MIB)).0, Errno::PERM.raw_os_error());
    }

    #[test]
    fn only_whole_sectors_inside_the_file_reach_the_volume() {
        let write = |offset: u64, len: usize| {
            let body = Body(Vec::new()).u64s(&[0, offset]).u32s(&[len as u32]).zeroes(20);
            answer(op::WRITE, FILE, &body.zeroes(len).0).0
        };
        for (offset, len) in [(1, 512), (0, 511), (0, 0), (MIB, 512), (MIB - 512, 1024), (u64::MAX - 511, 512)] {
            assert_eq!(write(offset, len), Errno::INVAL.raw_os_error(), "{len} bytes at {offset}");
        }
        let read = Body(Vec::new()).u64s(&[0, MIB - 512]).u32s(&[4096]).zeroes(20).0;
        let io = Io::Read { offset: MIB - 512, len: 512 };
        assert_eq!(file().step(&request(op::READ, FILE, &read)), Step::Io { unique: 7, io });
    }

    /// Zeroes over the loop device come as holes, and were taken for discards where they were of whole 4 KiB of the volume. In one
    /// whose grid begins elsewhere these are no blocks: the volume rounded the discard inwards, to nothing at 4 KiB, and what a file
    /// system took for zeroes was what had been there.
    #[test]
    fn a_hole_is_discarded_where_it_is_whole_blocks_of_the_volumes_grid_and_zeroed_at_its_edges() {
        let punch = |phase, offset, len| {
            let file = SingleFile { phase, ..file() };
            match file.step(&fallocate(offset, len, PUNCH_HOLE | KEEP_SIZE)) {
                Step::Punch { unique: 7, hole: Hole { head, blocks, tail } } => [head, blocks, tail],
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(punch(0, 4096, 8192), [4096..4096, 4096..12288, 12288..12288]);
        assert_eq!(punch(0, 512, 8192), [512..4096, 4096..8192, 8192..8704]);
        assert_eq!(punch(2, 0, 4096), [0..4096, 0..0, 0..0]);
        assert_eq!(punch(2, 4096, 8192), [4096..5120, 5120..9216, 9216..12288]);
        assert_eq!(punch(2, 1024, 4096), [1024..1024, 1024..5120, 5120..5120]);
        // All of it, and no more, at every phase.
        for (phase, from, to) in
            (0..8).flat_map(|phase| (0..24).flat_map(move |from| (from + 1..32).map(move |to| (phase, from, to))))
        {
            let [head, blocks, tail] = punch(phase, from * 512, (to - from) * 512);
            let parts: Vec<_> = [head, blocks.clone(), tail].into_iter().filter(|part| !part.is_empty()).collect();
            assert_eq!((parts[0].start, parts[parts.len() - 1].end), (from * 512, to * 512), "phase {phase}, {from} to {to}");
            assert!(parts.windows(2).all(|two| two[0].end == two[1].start), "phase {phase}, {from} to {to}: {parts:?}");
            let whole = (from..to).filter(|at| at % 8 == u64::from(phase) && at + 8 <= to).count() as u64;
            assert_eq!(blocks.end - blocks.start, whole * 4096, "phase {phase}, {from} to {to}");
            assert!(blocks.is_empty() || blocks.start / 512 % 8 == u64::from(phase), "phase {phase}, {from} to {to}");
        }
    }

    #[test]
    fn zeroes_that_keep_their_space_are_written_as_zeroes_and_other_kinds_of_fallocate_are_refused() {
        let step = |io| Step::Io { unique: 7, io };
        let zero = ZERO_RANGE | KEEP_SIZE;
        assert_eq!(file().step(&fallocate(0, 512, zero)), step(Io::WriteZeroes { offset: 0, len: 512 }));
        assert_eq!(file().step(&fallocate(0, 512, 0)), Step::Reply(error(7, Errno::OPNOTSUPP)));
        let without = SingleFile { discards: false, ..file() };
        assert_eq!(without.step(&fallocate(0, 4096, PUNCH_HOLE | KEEP_SIZE)), Step::Reply(error(7, Errno::OPNOTSUPP)));
        assert_eq!(without.step(&fallocate(0, 512, zero)), step(Io::WriteZeroes { offset: 0, len: 512 }));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        for round in 0..200_000u32 {
            let body: Vec<u8> = (0..random() % 96).map(|_| [0, 0xff, random() as u8][random() as usize % 3]).collect();
            let mut bytes = request(round % 64, random() % 4, &body);
            if random() % 8 == 0 {
                bytes.truncate(random() as usize % (bytes.len() + 1));
            }
            file().step(&bytes);
        }
    }
}
