//! The NBD wire format: numbers, requests, replies. All integers are big-endian.

/// The longest read or write that any export takes, in bytes (32 MiB, what clients assume untold).
pub const MAX_REQUEST: u32 = 32 << 20;
/// The longest name of an export, in bytes.
pub const MAX_NAME: usize = 255;
/// The longest option that is read, in bytes. The protocol lets names have 4096 bytes; a longer option
/// closes the connection, because to answer it the server would have to read all of it.
pub const MAX_OPTION: u32 = 8192;
/// The length of a request's header, in bytes.
pub const REQUEST_LEN: usize = 28;
/// The length of a simple reply without its data, in bytes.
pub const SIMPLE_REPLY_LEN: usize = 16;

/// `NBDMAGIC`, the first word the server sends.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, before each option and in the greeting.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before each simple reply.
pub const SIMPLE_MAGIC: u32 = 0x6744_6698;
/// Before each chunk of a structured reply.
pub const STRUCTURED_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag of both sides: fixed newstyle.
pub const FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag of both sides: no padding after the answer to `EXPORT_NAME`.
pub const NO_ZEROES: u16 = 2;

/// What a client can ask in the handshake.
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// What the server answers to an option.
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub mod option_reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    pub const ERR_POLICY: u32 = 0x8000_0002;
    pub const ERR_INVALID: u32 = 0x8000_0003;
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
}

/// Kinds of information about an export.
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub mod transmission {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Types of requests, and the flags that go with them.
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const FLAG_FUA: u16 = 1;
    pub const FLAG_NO_HOLE: u16 = 1 << 1;
    pub const FLAG_DF: u16 = 1 << 2;
}

/// Why a request failed, with the protocol's number for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Errno {
    /// The export is read-only (EPERM).
    NotPermitted = 1,
    /// Data could not be read or written (EIO).
    Io = 5,
    /// The request makes no sense (EINVAL).
    Invalid = 22,
    /// A write beyond the end (ENOSPC).
    NoSpace = 28,
    /// The export is no longer served (ESHUTDOWN).
    Shutdown = 108,
}

impl Errno {
    /// What a structured reply tells the person at the client.
    fn message(self) -> &'static str {
        match self {
            Errno::NotPermitted => "this export is read-only",
            Errno::Io => "the data could not be read or written; see the server's log",
            Errno::Invalid => "not a valid request for this export: check its block sizes and its end",
            Errno::NoSpace => "the request goes beyond the end of the export",
            Errno::Shutdown => "this export is no longer served; connect again later",
        }
    }
}

/// Reads big-endian integers off the front of a slice; `None` when it is too short.
pub(super) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

/// A request's header as it came, nothing checked but the magic.
pub(super) struct RawRequest {
    pub flags: u16,
    pub kind: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl RawRequest {
    /// `None` if the bytes are too few or do not begin with [`REQUEST_MAGIC`].
    pub fn parse(bytes: &[u8]) -> Option<RawRequest> {
        let mut at = Cursor(bytes);
        (at.u32()? == REQUEST_MAGIC).then_some(())?;
        Some(RawRequest { flags: at.u16()?, kind: at.u16()?, cookie: at.u64()?, offset: at.u64()?, length: at.u32()? })
    }
}

/// Appends one reply to an option; `parts` are its data.
pub(super) fn option_reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((len as u32).to_be_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Makes the headers of replies, in the form that the client negotiated.
///
/// A header and, after a good read, the data: the header alone is made here, so that the data can be
/// gathered from where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replies {
    pub(super) structured: bool,
}

impl Replies {
    /// A request other than a read succeeded. Simple even where structured replies were negotiated,
    /// as the protocol allows for all that carries no data.
    pub fn done(self, cookie: u64) -> Vec<u8> {
        simple(cookie, 0)
    }

    /// A read succeeded: `length` bytes of data (at least one, at most [`MAX_REQUEST`]) follow the
    /// header. There is always one chunk, so a client's wish not to fragment is granted.
    pub fn data(self, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        if !self.structured {
            return simple(cookie, 0);
        }
        let mut out = chunk(1, cookie, length + 8);
        out.extend(offset.to_be_bytes());
        out
    }

    /// A request failed.
    pub fn error(self, cookie: u64, errno: Errno) -> Vec<u8> {
        if !self.structured {
            return simple(cookie, errno as u32);
        }
        let message = errno.message();
        let mut out = chunk(0x8001, cookie, 6 + message.len() as u32);
        out.extend((errno as u32).to_be_bytes());
        out.extend((message.len() as u16).to_be_bytes());
        out.extend(message.as_bytes());
        out
    }
}

fn simple(cookie: u64, errno: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    out.extend(SIMPLE_MAGIC.to_be_bytes());
    out.extend(errno.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out
}

/// The header of a chunk that is the only one of its reply.
fn chunk(kind: u16, cookie: u64, length: u32) -> Vec<u8> {
    const DONE: u16 = 1;
    let mut out = Vec::with_capacity(28);
    out.extend(STRUCTURED_MAGIC.to_be_bytes());
    out.extend(DONE.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(length.to_be_bytes());
    out
}
