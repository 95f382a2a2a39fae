//! NBD handshakes and requests from bytes, against an export in memory.

use crate::input::Input;
use headpond_host::nbd::protocol::{MAX_NAME, MAX_OPTION, MAX_REQUEST};
use headpond_host::nbd::session::{ExportInfo, Kind, Request, Session, Wants};

/// Bytes of the large export.
const SIZE: u64 = 64 << 10;

fn exports(how: u8) -> Vec<ExportInfo> {
    let mut first = ExportInfo::new(0, "v", SIZE);
    first.read_only = how & 1 == 1;
    first.multi_conn = how & 2 == 2;
    first.min_block = if how & 4 == 4 { 4096 } else { 512 };
    first.max_request = if how & 8 == 8 { 8192 } else { MAX_REQUEST };
    first.description = if how & 16 == 16 { "a volume".into() } else { String::new() };
    let mut all = vec![first];
    if how & 32 == 32 {
        all.push(ExportInfo::new(1, "n".repeat(MAX_NAME), u64::MAX / 512 * 512));
    }
    all
}

/// Feeds a session in pieces; the first byte says what is exported, the second how long the pieces are.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (how, piece) = (input.u8(), usize::from(input.u8()) + 1);
    let mut rest = input.rest();
    let mut session = Session::new(exports(how));
    let mut media = vec![0u8; SIZE as usize];
    let mut handshake = session.take_output().len();
    loop {
        let before = rest.len();
        match session.wants() {
            Wants::Nothing => break,
            Wants::Bytes(n) => {
                assert!(n > 0 && n <= MAX_OPTION as usize, "{n} bytes of one message");
                let some = &rest[..rest.len().min(piece)];
                let (taken, request) = session.input(some);
                assert!(taken <= some.len() && taken <= n);
                rest = &rest[taken..];
                if let Some(request) = request {
                    assert!(request.kind != Kind::Write, "a write without its payload");
                    serve(&session, request, &mut media, &[]);
                }
            }
            Wants::Payload(request) => {
                assert!(request.kind == Kind::Write && request.length <= MAX_REQUEST);
                let Some((payload, tail)) = rest.split_at_checked(request.length as usize) else { break };
                rest = tail;
                assert_eq!(session.payload_taken(), Some(request));
                serve(&session, request, &mut media, payload);
            }
            Wants::Skip(left) => {
                assert!(left > 0);
                let some = rest.len().min(left as usize).min(piece);
                session.skipped(some as u32);
                rest = &rest[some..];
            }
        }
        let out = session.take_output();
        // One message in, its answers out: with two exports no list is longer.
        assert!(out.len() <= 4096, "{} bytes of answers to one message", out.len());
        handshake += if session.export().is_none() { out.len() } else { 0 };
        if rest.len() == before {
            break;
        }
    }
    // An answer is longer than what it answers, but within measure.
    assert!(handshake <= 64 + data.len() * 64, "{handshake} bytes of answers to {} bytes", data.len());
}

/// A request that the session lets through is in the export, and its answer has a header.
fn serve(session: &Session, request: Request, media: &mut [u8], payload: &[u8]) {
    let export = session.export().expect("requests come after the handshake");
    let Request { kind, offset, length, cookie, .. } = request;
    let end = offset.checked_add(u64::from(length)).expect("an end");
    assert!(end <= export.size && offset % 512 == 0 && length % 512 == 0);
    assert!((kind == Kind::Flush) == (length == 0));
    assert!(!export.read_only || matches!(kind, Kind::Read | Kind::Flush));
    assert!(length <= export.max_request || !matches!(kind, Kind::Read | Kind::Write));
    if export.id == 0 {
        let range = &mut media[offset as usize..end as usize];
        match kind {
            Kind::Write => range.copy_from_slice(payload),
            Kind::WriteZeroes | Kind::Trim => range.fill(0),
            Kind::Read | Kind::Flush => {}
        }
    }
    let header = match kind {
        Kind::Read => session.replies().data(cookie, offset, length),
        _ => session.replies().done(cookie),
    };
    assert!(header.len() >= 16);
}

/// Whole conversations.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let flags = 3u32.to_be_bytes().to_vec();
    let option = |number: u32, data: &[u8]| {
        let mut out = b"IHAVEOPT".to_vec();
        out.extend(number.to_be_bytes());
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
        out
    };
    let go = |number| option(number, &[0, 0, 0, 1, b'v', 0, 2, 0, 1, 0, 3]);
    let request = |kind: u16, flags: u16, offset: u64, length: u32| {
        let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
        out.extend(flags.to_be_bytes());
        out.extend(kind.to_be_bytes());
        out.extend(7u64.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(length.to_be_bytes());
        out
    };
    let write = [request(1, 1, 512, 512), vec![9; 512]].concat();
    let refused = [request(1, 0, SIZE, 512), vec![9; 512]].concat();
    let work = [write, request(0, 0, 0, 4096), request(3, 0, 0, 0), request(4, 0, 0, 512), request(6, 2, 4096, 4096)].concat();
    let all = |how: u8, piece: u8, parts: &[&[u8]]| [&[how, piece], &parts.concat()[..]].concat();
    vec![
        all(0, 255, &[&flags, &go(7), &work, &request(2, 0, 0, 0)]),
        all(0, 6, &[&flags, &option(8, &[]), &go(6), &go(7), &work, &refused]),
        all(32, 255, &[&flags, &option(3, &[]), &option(1, b"v"), &work]),
        all(0x1f, 255, &[&flags, &option(9, &[0, 0, 0, 0, 0, 0, 0, 0]), &option(99, &[1]), &option(2, &[])]),
        all(5, 255, &[&flags, &option(1, b""), &work, &refused]),
    ]
}
