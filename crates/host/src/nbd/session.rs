//! One NBD connection as a state machine: bytes in, requests and bytes out.
//!
//! The owner asks [`Session::wants`] what comes next, does it, and sends [`Session::take_output`]
//! before it goes on. A step takes in at most one message, so that output and memory stay bounded
//! however fast the client sends.

use super::protocol::*;

/// What a client may know of an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// The owner's number for it; the session only hands it back.
    pub id: usize,
    /// What clients ask for; at most [`MAX_NAME`] bytes. Clients that give no name get the only export.
    pub name: String,
    /// Shown to people; may be empty.
    pub description: String,
    /// In bytes, a multiple of `min_block`.
    pub size: u64,
    /// All offsets and lengths are multiples of this many bytes; less than 512 counts as 512.
    pub min_block: u32,
    /// What clients should use for speed, in bytes; a power of two, at least `min_block`.
    pub preferred_block: u32,
    /// The longest read or write, in bytes, a multiple of `min_block`; at most [`MAX_REQUEST`].
    pub max_request: u32,
    /// Requests that change data fail.
    pub read_only: bool,
    /// Seeks are slow.
    pub rotational: bool,
    /// A flush on one connection covers the writes acknowledged on all. Only the owner knows whether
    /// its connections share one cache.
    pub multi_conn: bool,
    /// Trims are offered: they cost the owner little. One that comes all the same is done.
    pub trim: bool,
    /// It is there, and takes no more clients for now: too many have gone to whom it owes answers.
    pub is_full: bool,
}

impl ExportInfo {
    /// A writable export with blocks of 512 bytes, better 4 KiB, and the longest requests there are.
    pub fn new(id: usize, name: impl Into<String>, size: u64) -> ExportInfo {
        ExportInfo {
            id,
            name: name.into(),
            description: String::new(),
            size,
            min_block: 512,
            preferred_block: 4096,
            max_request: MAX_REQUEST,
            read_only: false,
            rotational: false,
            multi_conn: false,
            trim: true,
            is_full: false,
        }
    }

    fn flags(&self, structured: bool) -> u16 {
        use transmission::*;
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_WRITE_ZEROES;
        for (bit, set) in [
            (READ_ONLY, self.read_only),
            (ROTATIONAL, self.rotational),
            (SEND_TRIM, self.trim),
            (SEND_DF, structured),
            (CAN_MULTI_CONN, self.multi_conn),
        ] {
            flags |= if set { bit } else { 0 };
        }
        flags
    }

    /// What is wrong with a request, if anything. Offset and length are still the client's.
    fn check(&self, raw: &RawRequest, kind: Kind, structured: bool) -> Result<(), Errno> {
        let allowed = match kind {
            Kind::Read if structured => command::FLAG_FUA | command::FLAG_DF,
            Kind::WriteZeroes => command::FLAG_FUA | command::FLAG_NO_HOLE,
            // Clients are known to set FUA where it means nothing.
            _ => command::FLAG_FUA,
        };
        if raw.flags & !allowed != 0 {
            return Err(Errno::Invalid);
        }
        if kind == Kind::Flush {
            return if raw.offset == 0 && raw.length == 0 { Ok(()) } else { Err(Errno::Invalid) };
        }
        if self.read_only && kind != Kind::Read {
            return Err(Errno::NotPermitted);
        }
        let (length, unit) = (u64::from(raw.length), u64::from(self.min_block.max(512)));
        let too_long = matches!(kind, Kind::Read | Kind::Write) && raw.length > self.max_request.min(MAX_REQUEST);
        if length == 0 || too_long || !raw.offset.is_multiple_of(unit) || !length.is_multiple_of(unit) {
            return Err(Errno::Invalid);
        }
        match raw.offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(()),
            _ if matches!(kind, Kind::Write | Kind::WriteZeroes) => Err(Errno::NoSpace),
            _ => Err(Errno::Invalid),
        }
    }
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Read a range.
    Read,
    /// Write a range; the payload follows.
    Write,
    /// Make all acknowledged writes durable; offset and length are zero.
    Flush,
    /// The range is no longer needed.
    Trim,
    /// The range reads as zeroes afterwards. A wish to keep it allocated is not handed on.
    WriteZeroes,
}

/// A valid request: aligned, within the export, and of a permitted length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The client's name for it, to put into the reply.
    pub cookie: u64,
    /// What to do.
    pub kind: Kind,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes; not zero but for a flush.
    pub length: u32,
    /// Durable before the reply.
    pub fua: bool,
}

/// What the session needs next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wants {
    /// At most this many bytes for [`Session::input`].
    Bytes(usize),
    /// The payload of this write, which the owner puts where it likes before [`Session::payload_taken`].
    Payload(Request),
    /// Up to this many bytes thrown away, and [`Session::skipped`]: the payload of a refused write.
    Skip(u32),
    /// Nothing more: answer what is outstanding, and close.
    Nothing,
}

enum State {
    ClientFlags,
    OptionHeader,
    OptionData { option: u32, len: u32 },
    Header,
    Payload(Request),
    Skip { left: u32, cookie: u64, errno: Errno },
    Closed,
}

/// One connection, from the greeting to the end.
pub struct Session {
    exports: Vec<ExportInfo>,
    state: State,
    /// The part of a message that has come so far, at most [`MAX_OPTION`] bytes.
    pending: Vec<u8>,
    output: Vec<u8>,
    no_zeroes: bool,
    replies: Replies,
    chosen: Option<usize>,
    refused: Option<usize>,
}

impl Session {
    /// A new connection; the greeting is already in the output.
    pub fn new(exports: Vec<ExportInfo>) -> Session {
        let mut output = Vec::new();
        output.extend(MAGIC.to_be_bytes());
        output.extend(OPTION_MAGIC.to_be_bytes());
        output.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        Session {
            exports,
            state: State::ClientFlags,
            pending: Vec::new(),
            output,
            no_zeroes: false,
            replies: Replies { structured: false },
            chosen: None,
            refused: None,
        }
    }

    /// What comes next.
    pub fn wants(&self) -> Wants {
        match self.state {
            State::Payload(request) => Wants::Payload(request),
            State::Skip { left, .. } => Wants::Skip(left),
            State::Closed => Wants::Nothing,
            _ => Wants::Bytes(self.message_len() - self.pending.len()),
        }
    }

    /// Takes bytes up to the end of one message, and returns how many it took and a request that needs
    /// no payload, if that is what they were. Takes nothing when [`wants`](Self::wants) is not `Bytes`.
    pub fn input(&mut self, bytes: &[u8]) -> (usize, Option<Request>) {
        let Wants::Bytes(missing) = self.wants() else {
            return (0, None);
        };
        let taken = missing.min(bytes.len());
        self.pending.extend_from_slice(&bytes[..taken]);
        if taken < missing {
            return (taken, None);
        }
        let message = std::mem::take(&mut self.pending);
        let request = self.message(&message);
        self.pending = message;
        self.pending.clear();
        (taken, request)
    }

    /// The owner has taken the payload: the write, if one was waiting for it.
    pub fn payload_taken(&mut self) -> Option<Request> {
        let State::Payload(request) = self.state else {
            return None;
        };
        self.state = State::Header;
        Some(request)
    }

    /// The owner has thrown away `len` bytes, no more than were wanted. The refusal of the write is in
    /// the output after the last of them.
    pub fn skipped(&mut self, len: u32) {
        let State::Skip { left, cookie, errno } = &mut self.state else {
            return;
        };
        *left = left.saturating_sub(len);
        if *left == 0 {
            self.output.extend(self.replies.error(*cookie, *errno));
            self.state = State::Header;
        }
    }

    /// Bytes to send to the client: in the handshake any number of replies, later at most one.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The export that requests are for, once the handshake is over.
    pub fn export(&self) -> Option<&ExportInfo> {
        self.exports.get(self.chosen?)
    }

    /// The export that has just been refused to the client, since it is full; told once.
    pub fn take_refused(&mut self) -> Option<&ExportInfo> {
        self.exports.get(self.refused.take()?)
    }

    /// How requests are to be answered; fixed once the handshake is over.
    pub fn replies(&self) -> Replies {
        self.replies
    }

    fn message_len(&self) -> usize {
        match self.state {
            State::ClientFlags => 4,
            State::OptionHeader => 16,
            State::OptionData { len, .. } => len as usize,
            _ => REQUEST_LEN,
        }
    }

    /// Handles one whole message. `None` inside means bytes no client would send: nothing after them
    /// can be trusted, so the connection ends.
    fn message(&mut self, message: &[u8]) -> Option<Request> {
        let handled = match self.state {
            State::ClientFlags => self.client_flags(message).map(|()| None),
            State::OptionHeader => self.option_header(message).map(|()| None),
            State::OptionData { option, .. } => self.option(option, message).map(|()| None),
            _ => self.request(message),
        };
        handled.unwrap_or_else(|| {
            self.state = State::Closed;
            None
        })
    }

    fn client_flags(&mut self, message: &[u8]) -> Option<()> {
        let flags = Cursor(message).u32()?;
        let (fixed, no_zeroes) = (u32::from(FIXED_NEWSTYLE), u32::from(NO_ZEROES));
        (flags & fixed != 0 && flags & !(fixed | no_zeroes) == 0).then_some(())?;
        self.no_zeroes = flags & no_zeroes != 0;
        self.state = State::OptionHeader;
        Some(())
    }

    fn option_header(&mut self, message: &[u8]) -> Option<()> {
        let mut at = Cursor(message);
        (at.u64()? == OPTION_MAGIC).then_some(())?;
        let (option, len) = (at.u32()?, at.u32()?);
        (len <= MAX_OPTION).then_some(())?;
        if len == 0 {
            return self.option(option, &[]);
        }
        self.state = State::OptionData { option, len };
        Some(())
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Option<()> {
        self.state = State::OptionHeader;
        match option {
            option::EXPORT_NAME => return self.export_name(data),
            option::ABORT => {
                self.answer(option, option_reply::ACK, &[]);
                self.state = State::Closed;
            }
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                self.answer(option, option_reply::ERR_INVALID, &[b"this option takes no data"]);
            }
            option::LIST => {
                for export in &self.exports {
                    let len = (export.name.len() as u32).to_be_bytes();
                    let parts: [&[u8]; 2] = [&len, export.name.as_bytes()];
                    option_reply(&mut self.output, option, option_reply::SERVER, &parts);
                }
                self.answer(option, option_reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY => {
                self.replies.structured = true;
                self.answer(option, option_reply::ACK, &[]);
            }
            option::INFO | option::GO => self.info_or_go(option, data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.no_contexts(option, data),
            _ => self.answer(option, option_reply::ERR_UNSUP, &[b"this server lacks this option"]),
        }
        Some(())
    }

    fn answer(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        option_reply(&mut self.output, option, kind, parts);
    }

    /// The export with this name. No name means the only export: of several, to guess one could write
    /// to the wrong disk.
    fn find(&self, name: &[u8]) -> Option<usize> {
        if name.is_empty() && self.exports.len() == 1 {
            return Some(0);
        }
        if name.len() > MAX_NAME {
            return None;
        }
        self.exports.iter().position(|export| export.name.as_bytes() == name)
    }

    /// The option that has no way to say no, other than to close.
    fn export_name(&mut self, name: &[u8]) -> Option<()> {
        let index = self.find(name)?;
        let export = &self.exports[index];
        if export.is_full {
            self.refused = Some(index);
            return None;
        }
        self.output.extend(export.size.to_be_bytes());
        self.output.extend(export.flags(self.replies.structured).to_be_bytes());
        if !self.no_zeroes {
            self.output.extend([0; 124]);
        }
        self.enter(index);
        Some(())
    }

    fn enter(&mut self, index: usize) {
        self.chosen = Some(index);
        self.state = State::Header;
    }

    fn info_or_go(&mut self, option: u32, data: &[u8]) {
        let mut at = Cursor(data);
        let parsed = (|| {
            let len = at.u32()?;
            let name = at.bytes(len as usize)?;
            let count = at.u16()?;
            (at.0.len() == usize::from(count) * 2).then_some(name)
        })();
        let Some(name) = parsed else {
            return self.answer(option, option_reply::ERR_INVALID, &[b"malformed option"]);
        };
        let Some(index) = self.find(name) else {
            return self.unknown_export(option);
        };
        let export = &self.exports[index];
        if export.is_full {
            self.refused = Some(index);
            return self.answer(option, option_reply::ERR_POLICY, &[b"too many clients of it have gone without their answers"]);
        }
        let mut say = |kind: u16, parts: [&[u8]; 3]| {
            let [a, b, c] = parts;
            let parts = [&kind.to_be_bytes(), a, b, c];
            option_reply(&mut self.output, option, option_reply::INFO, &parts);
        };
        let flags = export.flags(self.replies.structured);
        say(info::EXPORT, [&export.size.to_be_bytes(), &flags.to_be_bytes(), &[]]);
        // Told even if not asked for: a client that listens then asks for nothing that is refused.
        say(
            info::BLOCK_SIZE,
            [
                &export.min_block.max(512).to_be_bytes(),
                &export.preferred_block.max(512).to_be_bytes(),
                &export.max_request.min(MAX_REQUEST).to_be_bytes(),
            ],
        );
        let asked = |kind: u16| at.0.chunks_exact(2).any(|bytes| bytes == kind.to_be_bytes());
        if asked(info::NAME) {
            say(info::NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if asked(info::DESCRIPTION) && !export.description.is_empty() {
            say(info::DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
        }
        self.answer(option, option_reply::ACK, &[]);
        if option == option::GO {
            self.enter(index);
        }
    }

    fn unknown_export(&mut self, option: u32) {
        let message = b"no export has this name; list the exports to see their names";
        self.answer(option, option_reply::ERR_UNKNOWN, &[message]);
    }

    /// There are no metadata contexts: the list is empty, whatever was asked for.
    fn no_contexts(&mut self, option: u32, data: &[u8]) {
        let mut at = Cursor(data);
        let parsed = (|| {
            let len = at.u32()?;
            let name = at.bytes(len as usize)?;
            for _ in 0..at.u32()? {
                let len = at.u32()?;
                at.bytes(len as usize)?;
            }
            at.0.is_empty().then_some(name)
        })();
        match parsed.map(|name| self.find(name)) {
            None => self.answer(option, option_reply::ERR_INVALID, &[b"malformed option"]),
            Some(None) => self.unknown_export(option),
            Some(Some(_)) => self.answer(option, option_reply::ACK, &[]),
        }
    }

    fn request(&mut self, message: &[u8]) -> Option<Option<Request>> {
        let raw = RawRequest::parse(message)?;
        let kind = match raw.kind {
            command::READ => Ok(Kind::Read),
            command::WRITE => Ok(Kind::Write),
            command::DISC => return None,
            command::FLUSH => Ok(Kind::Flush),
            command::TRIM => Ok(Kind::Trim),
            command::WRITE_ZEROES => Ok(Kind::WriteZeroes),
            _ => Err(Errno::Invalid),
        };
        let structured = self.replies.structured;
        let export = self.export()?;
        let checked = kind.and_then(|kind| export.check(&raw, kind, structured).map(|()| kind));
        let RawRequest { cookie, offset, length, .. } = raw;
        let fua = raw.flags & command::FLAG_FUA != 0;
        match checked {
            Ok(kind) => {
                let request = Request { cookie, kind, offset, length, fua };
                if kind != Kind::Write {
                    return Some(Some(request));
                }
                self.state = State::Payload(request);
            }
            // The payload comes all the same, and what follows it is to be understood.
            Err(errno) if raw.kind == command::WRITE && length > 0 => {
                self.state = State::Skip { left: length, cookie, errno };
            }
            Err(errno) => self.output.extend(self.replies.error(cookie, errno)),
        }
        Some(None)
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
