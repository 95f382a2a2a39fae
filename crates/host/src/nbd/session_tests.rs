//! What one connection does with the bytes a client may send it, good and bad.

use super::*;

const HELLO: [u8; 4] = [0, 0, 0, 3];

fn disk(name: &str) -> ExportInfo {
    ExportInfo::new(7, name, 1 << 20)
}

/// A session with one export, `disk`, its greeting taken and the client's flags given.
fn greeted() -> Session {
    let mut session = Session::new(vec![disk("disk")]);
    session.take_output();
    drive(&mut session, &HELLO);
    session
}

/// A session in which requests are taken, with structured replies or simple ones.
fn serving(export: ExportInfo, structured: bool) -> Session {
    let mut session = Session::new(vec![export]);
    drive(&mut session, &HELLO);
    if structured {
        drive(&mut session, &opt(option::STRUCTURED_REPLY, &[]));
    }
    drive(&mut session, &opt(option::GO, &choice("", &[])));
    session.take_output();
    session
}

/// Does what a server would with these bytes, and returns the requests that came of them.
fn drive(session: &mut Session, bytes: &[u8]) -> Vec<Request> {
    drive_some(session, bytes).1
}

/// The same, and how many bytes were taken: not the first part of a payload.
fn drive_some(session: &mut Session, bytes: &[u8]) -> (usize, Vec<Request>) {
    let (mut at, mut requests) = (0, Vec::new());
    loop {
        let left = &bytes[at..];
        let taken = match session.wants() {
            Wants::Bytes(_) => {
                let (taken, request) = session.input(left);
                requests.extend(request);
                taken
            }
            Wants::Payload(request) if left.len() >= request.length as usize => {
                requests.extend(session.payload_taken());
                request.length as usize
            }
            Wants::Skip(wanted) => {
                let len = left.len().min(wanted as usize);
                session.skipped(len as u32);
                len
            }
            Wants::Payload(_) | Wants::Nothing => 0,
        };
        at += taken;
        if taken == 0 {
            return (at, requests);
        }
    }
}

fn opt(option: u32, data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u32).to_be_bytes();
    [&OPTION_MAGIC.to_be_bytes(), &option.to_be_bytes()[..], &len, data].concat()
}

fn choice(name: &str, infos: &[u16]) -> Vec<u8> {
    let infos: Vec<u8> = infos.iter().flat_map(|info| info.to_be_bytes()).collect();
    let (len, count) = (name.len() as u32, infos.len() as u16 / 2);
    [&len.to_be_bytes(), name.as_bytes(), &count.to_be_bytes(), &infos].concat()
}

fn req(flags: u16, kind: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut out = REQUEST_MAGIC.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(0xc00c1e_u64.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(length.to_be_bytes());
    out
}

/// The replies to options in the output: kind and data.
fn replies(session: &mut Session, option: u32) -> Vec<(u32, Vec<u8>)> {
    let output = session.take_output();
    let (mut at, mut found) = (Cursor(&output), Vec::new());
    while let Some(magic) = at.u64() {
        assert_eq!((magic, at.u32()), (OPTION_REPLY_MAGIC, Some(option)));
        let (kind, len) = (at.u32().unwrap(), at.u32().unwrap());
        found.push((kind, at.bytes(len as usize).unwrap().to_vec()));
    }
    found
}

/// The kinds of the replies to one option.
fn kinds(session: &mut Session, option: u32, data: &[u8]) -> Vec<u32> {
    drive(session, &opt(option, data));
    replies(session, option).into_iter().map(|(kind, _)| kind).collect()
}

#[test]
fn the_greeting_is_fixed_newstyle_without_padding() {
    let mut session = Session::new(Vec::new());
    assert_eq!(session.take_output(), b"NBDMAGICIHAVEOPT\0\x03");
    assert_eq!(session.wants(), Wants::Bytes(4));
}

#[test]
fn go_tells_size_flags_and_block_sizes_and_then_takes_requests() {
    let mut session = greeted();
    drive(&mut session, &opt(option::GO, &choice("disk", &[info::NAME])));
    let told = replies(&mut session, option::GO);
    let export = b"\0\0\0\0\0\0\0\x10\0\0\0\x6d".to_vec();
    let blocks = b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0".to_vec();
    let expected = [(3, export), (3, blocks), (3, b"\0\x01disk".to_vec()), (option_reply::ACK, vec![])];
    assert_eq!(told, expected);
    assert_eq!(session.export().unwrap().id, 7);
    assert_eq!(session.wants(), Wants::Bytes(REQUEST_LEN));
}

#[test]
fn info_tells_the_same_and_stays_in_the_handshake() {
    let mut session = greeted();
    assert_eq!(kinds(&mut session, option::INFO, &choice("disk", &[])), [3, 3, 1]);
    assert!(session.export().is_none());
    assert_eq!(session.wants(), Wants::Bytes(16));
}

#[test]
fn an_export_shows_what_it_can_do() {
    use transmission::*;
    let plain = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES;
    assert_eq!(disk("").flags(false), plain);
    assert_eq!(disk("").flags(true), plain | SEND_DF);
    let all = ExportInfo { read_only: true, rotational: true, multi_conn: true, ..disk("") };
    assert_eq!(all.flags(false), plain | READ_ONLY | ROTATIONAL | CAN_MULTI_CONN);
    assert_eq!(ExportInfo { trim: false, ..disk("") }.flags(false), plain & !SEND_TRIM);
}

#[test]
fn list_names_every_export() {
    let mut session = Session::new(vec![disk("a"), disk("bc")]);
    session.take_output();
    drive(&mut session, &HELLO);
    drive(&mut session, &opt(option::LIST, &[]));
    let expected = [(2, b"\0\0\0\x01a".to_vec()), (2, b"\0\0\0\x02bc".to_vec()), (1, vec![])];
    assert_eq!(replies(&mut session, option::LIST), expected);
}

#[test]
fn no_name_means_the_only_export_and_never_one_of_several() {
    assert_eq!(kinds(&mut greeted(), option::GO, &choice("", &[])), [3, 3, 1]);
    let mut session = Session::new(vec![disk("a"), disk("b")]);
    session.take_output();
    drive(&mut session, &HELLO);
    assert_eq!(kinds(&mut session, option::GO, &choice("", &[])), [option_reply::ERR_UNKNOWN]);
    assert_eq!(kinds(&mut session, option::GO, &choice("b", &[])), [3, 3, 1]);
}

#[test]
fn an_export_that_is_full_is_refused_and_the_client_may_choose_another() {
    let full = || ExportInfo { is_full: true, ..disk("full") };
    let mut session = Session::new(vec![full(), disk("disk")]);
    session.take_output();
    drive(&mut session, &HELLO);
    assert_eq!(kinds(&mut session, option::GO, &choice("full", &[])), [option_reply::ERR_POLICY]);
    assert_eq!(session.take_refused().unwrap().name, "full");
    assert!(session.take_refused().is_none() && session.export().is_none());
    assert_eq!(kinds(&mut session, option::GO, &choice("disk", &[])), [3, 3, 1]);
    // This option has no way to say no.
    let mut session = Session::new(vec![full()]);
    session.take_output();
    drive(&mut session, &HELLO);
    drive(&mut session, &opt(option::EXPORT_NAME, b"full"));
    assert_eq!((session.take_output().len(), session.wants()), (0, Wants::Nothing));
    assert!(session.take_refused().is_some());
}

#[test]
fn export_name_answers_with_padding_only_to_those_who_want_it() {
    for (hello, len) in [([0, 0, 0, 3], 10), ([0, 0, 0, 1], 134)] {
        let mut session = Session::new(vec![disk("disk")]);
        session.take_output();
        drive(&mut session, &hello);
        drive(&mut session, &opt(option::EXPORT_NAME, b"disk"));
        let output = session.take_output();
        assert_eq!(output.len(), len);
        assert_eq!(output[..10], *b"\0\0\0\0\0\x10\0\0\0\x6d");
        assert_eq!(session.wants(), Wants::Bytes(REQUEST_LEN));
    }
    let mut session = greeted();
    drive(&mut session, &opt(option::EXPORT_NAME, b"other"));
    assert_eq!(session.wants(), Wants::Nothing);
}

#[test]
fn each_option_is_answered_and_the_next_one_understood() {
    use option_reply::*;
    let long = "n".repeat(MAX_NAME + 1);
    let contexts = |tail: &[u8]| [b"\0\0\0\x04disk", tail].concat();
    let mut session = greeted();
    for (option, data, answer) in [
        (option::STRUCTURED_REPLY, vec![0], ERR_INVALID),
        (option::STRUCTURED_REPLY, vec![], ACK),
        (option::LIST, vec![0], ERR_INVALID),
        (option::GO, vec![], ERR_INVALID),
        (option::GO, choice("other", &[]), ERR_UNKNOWN),
        (option::GO, choice(&long, &[]), ERR_UNKNOWN),
        (option::GO, [choice("disk", &[]), vec![0]].concat(), ERR_INVALID),
        (option::GO, b"\xff\xff\xff\xffdisk\0\0".to_vec(), ERR_INVALID),
        (option::INFO, b"\0\0\0\x04disk\0\x01".to_vec(), ERR_INVALID),
        (option::SET_META_CONTEXT, contexts(b"\0\0\0\x01\0\0\0\x05base:"), ACK),
        (option::LIST_META_CONTEXT, contexts(b"\0\0\0\0"), ACK),
        (option::LIST_META_CONTEXT, contexts(b"\xff\xff\xff\xff"), ERR_INVALID),
        (option::LIST_META_CONTEXT, b"\0\0\0\x01x\0\0\0\0".to_vec(), ERR_UNKNOWN),
        (5, vec![], ERR_UNSUP),
        (0xdead, vec![1; MAX_OPTION as usize], ERR_UNSUP),
        (option::ABORT, vec![], ACK),
    ] {
        assert_eq!(kinds(&mut session, option, &data), [answer], "option {option}, {data:?}");
    }
    assert_eq!(session.wants(), Wants::Nothing);
}

#[test]
fn an_oversized_option_closes_the_connection() {
    let mut session = greeted();
    let header = [&opt(9999, &[])[..12], &(MAX_OPTION + 1).to_be_bytes()].concat();
    drive(&mut session, &header);
    assert_eq!(session.wants(), Wants::Nothing);
}

#[test]
fn flags_and_magic_that_no_client_would_send_close_the_connection() {
    for hello in [[0, 0, 0, 0], [0, 0, 0, 2], [0, 0, 0, 7], [0x80, 0, 0, 1]] {
        let mut session = Session::new(vec![disk("disk")]);
        drive(&mut session, &hello);
        assert_eq!(session.wants(), Wants::Nothing, "{hello:?}");
    }
    let mut session = greeted();
    drive(&mut session, &[b"IHAVEOPS", &[0; 8][..]].concat());
    assert_eq!(session.wants(), Wants::Nothing);
    let mut session = serving(disk("disk"), false);
    drive(&mut session, &[0; REQUEST_LEN]);
    assert_eq!(session.wants(), Wants::Nothing);
    assert_eq!(session.input(&HELLO), (0, None), "nothing is taken after the end");
}

#[test]
fn a_truncated_message_waits_for_its_rest() {
    let mut session = serving(disk("disk"), false);
    let read = req(0, command::READ, 0, 512);
    assert_eq!(drive(&mut session, &read[..27]), []);
    assert_eq!(session.wants(), Wants::Bytes(1));
    assert_eq!(drive(&mut session, &read[27..]).len(), 1);
}

#[test]
fn valid_requests_come_out_as_they_were_sent() {
    let mut session = serving(disk("disk"), true);
    let fua = command::FLAG_FUA;
    for (flags, code, kind, offset, length) in [
        (0, command::READ, Kind::Read, 512, 4096),
        (command::FLAG_DF, command::READ, Kind::Read, 0, 1 << 20),
        (fua, command::WRITE, Kind::Write, (1 << 20) - 512, 512),
        (fua, command::FLUSH, Kind::Flush, 0, 0),
        (0, command::TRIM, Kind::Trim, 0, 1 << 20),
        (fua | command::FLAG_NO_HOLE, command::WRITE_ZEROES, Kind::WriteZeroes, 512, 512),
    ] {
        let mut bytes = req(flags, code, offset, length);
        bytes.extend(vec![0; if kind == Kind::Write { length as usize } else { 0 }]);
        let expected = Request { cookie: 0xc00c1e, kind, offset, length, fua: flags & fua != 0 };
        assert_eq!(drive(&mut session, &bytes), [expected]);
    }
    assert!(session.take_output().is_empty());
}

#[test]
fn an_invalid_request_is_refused_and_the_next_one_understood() {
    use Errno::*;
    use command::*;
    let end = 1 << 20;
    let small = ExportInfo { max_request: 4096, min_block: 1024, ..disk("disk") };
    let locked = ExportInfo { read_only: true, ..disk("disk") };
    for (export, flags, kind, offset, length, errno) in [
        (disk("disk"), 0, READ, 1, 512, Invalid),
        (disk("disk"), 0, READ, 0, 513, Invalid),
        (disk("disk"), 0, READ, 0, 0, Invalid),
        (disk("disk"), 0, READ, end, 512, Invalid),
        (disk("disk"), 0, READ, u64::MAX - 511, 512, Invalid),
        (disk("disk"), FLAG_DF, READ, 0, 512, Invalid),
        (disk("disk"), 1 << 15, READ, 0, 512, Invalid),
        (disk("disk"), 0, WRITE, end - 512, 1024, NoSpace),
        (disk("disk"), 0, WRITE, 0, 100, Invalid),
        (disk("disk"), 0, WRITE, 0, 0, Invalid),
        (disk("disk"), FLAG_NO_HOLE, WRITE, 0, 512, Invalid),
        (disk("disk"), 0, WRITE_ZEROES, end, 512, NoSpace),
        (disk("disk"), 1 << 4, WRITE_ZEROES, 0, 512, Invalid),
        (disk("disk"), 0, TRIM, end, 512, Invalid),
        (disk("disk"), 0, FLUSH, 512, 0, Invalid),
        (disk("disk"), 0, 7, 0, 512, Invalid),
        (disk("disk"), 0, 0xffff, 0, 512, Invalid),
        (small.clone(), 0, READ, 512, 1024, Invalid),
        (small, 0, WRITE, 0, 8192, Invalid),
        (locked.clone(), 0, WRITE, 0, 512, NotPermitted),
        (locked.clone(), 0, TRIM, 0, 512, NotPermitted),
        (locked, 0, WRITE_ZEROES, 0, 512, NotPermitted),
    ] {
        let what = format!("flags {flags} kind {kind} offset {offset} length {length}");
        let mut session = serving(export, false);
        let mut bytes = req(flags, kind, offset, length);
        bytes.extend(vec![0xff; if kind == WRITE { length as usize } else { 0 }]);
        assert_eq!(drive(&mut session, &bytes), [], "{what}");
        let replies = session.replies();
        assert_eq!(session.take_output(), replies.error(0xc00c1e, errno), "{what}");
        assert_eq!(drive(&mut session, &req(0, READ, 0, 1024)).len(), 1, "{what}");
    }
}

#[test]
fn replies_have_the_form_that_was_negotiated() {
    let simple = Replies { structured: false };
    assert_eq!(simple.done(1), b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x01");
    assert_eq!(simple.data(1, 512, 512), simple.done(1));
    assert_eq!(simple.error(1, Errno::Io), b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x01");
    let structured = serving(disk("disk"), true).replies();
    assert_eq!(structured.done(1), simple.done(1));
    let data = b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x01\0\0\x02\x08\0\0\0\0\0\0\x04\0";
    assert_eq!(structured.data(1, 1024, 512), data);
    let error = structured.error(1, Errno::NotPermitted);
    assert_eq!(error[..20], *b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x01\0\0\0\x1e");
    assert_eq!(error[20..], *b"\0\0\0\x01\0\x18this export is read-only");
}

#[test]
fn a_disconnect_ends_the_connection_without_a_reply() {
    let mut session = serving(disk("disk"), false);
    drive(&mut session, &req(0, command::DISC, 0, 0));
    assert_eq!((session.wants(), session.take_output()), (Wants::Nothing, vec![]));
}

#[test]
fn random_bytes_in_any_pieces_never_panic_and_memory_stays_bounded() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let good = [
        &HELLO[..],
        &opt(option::STRUCTURED_REPLY, &[]),
        &opt(option::LIST_META_CONTEXT, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x05base:"),
        &opt(option::INFO, &choice("disk", &[0, 1, 2, 3])),
        &opt(option::GO, &choice("disk", &[3])),
        &req(0, command::READ, 0, 4096),
        &[req(0, command::WRITE, 0, 512), vec![7; 512]].concat(),
        &req(0, command::TRIM, 512, 512),
        &req(0, command::FLUSH, 0, 0),
    ]
    .concat();
    for round in 0..20_000 {
        // Some rounds are noise after the first flags, the others a good client with a few wrong bytes.
        let mut bytes = good.clone();
        if round % 4 == 0 {
            bytes.iter_mut().skip(4).for_each(|byte| *byte = random() as u8);
        } else {
            for _ in 0..random() % 4 {
                let at = random() as usize % bytes.len();
                bytes[at] = random() as u8;
            }
        }
        let mut whole = Session::new(vec![disk("disk")]);
        let expected = drive(&mut whole, &bytes);

        let mut session = Session::new(vec![disk("disk")]);
        let (mut waiting, mut output, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        for piece in bytes.chunks(1 + round % 7) {
            waiting.extend_from_slice(piece);
            let (taken, came) = drive_some(&mut session, &waiting);
            waiting.drain(..taken);
            requests.extend(came);
            assert!(session.pending.capacity() <= 2 * MAX_OPTION as usize);
            assert!(session.output.len() <= 4096);
            output.extend(session.take_output());
        }
        assert_eq!(requests, expected);
        assert_eq!(output, whole.take_output());
        assert_eq!(session.wants(), whole.wants());
        assert!(requests.iter().all(|it| it.offset + u64::from(it.length) <= 1 << 20));
    }
}
