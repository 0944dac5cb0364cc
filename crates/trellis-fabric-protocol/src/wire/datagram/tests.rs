//! Every request and every answer survives encoding. Every bit that changes on the way is noticed. No bytes, however
//! mangled, make the decoder panic, and no answer is ever answered.

use super::*;
use crate::wire::address::{Address, Arguments, Cluster, Destination, Host, Incarnation, Pointer, Source};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use trellis_base::Random;

fn cluster() -> Cluster {
    Cluster::new(0x12_3456).unwrap()
}

fn source() -> Source {
    Source { cluster: cluster(), host: Host(3), incarnation: Incarnation::new(0x1234), request: 0x1122_3344 }
}

fn pointer(offset: u64) -> Pointer {
    Pointer::new(cluster(), Host(7), 9, offset).unwrap()
}

/// A key that everybody has: what a transport plugs in, without its strength.
struct SomeKey(u64);

impl Tags for SomeKey {
    fn keyed(&self, source: Address, _: Address, pieces: &[&[u8]]) -> Option<u64> {
        let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        let is_known = Source::decode(source).is_ok() || Destination::decode(source).is_ok();
        is_known.then(|| pieces.iter().flat_map(|piece| piece.iter()).fold(self.0, mix))
    }
}

fn rules(tags: &dyn Tags, least: TagKind) -> Rules<'_> {
    Rules { cluster: cluster(), least, tags }
}

fn request(command: Command, operation: Operation) -> Request {
    let is_new = matches!(command, Command::Create | Command::CreateWrite);
    let is_at_zero = is_new || matches!(command, Command::Hello | Command::Ping) || command.is_control();
    let pointer = if is_at_zero { Pointer::to_host(cluster(), Host(7)) } else { pointer(0x2008) };
    let destination = pointer.request(command, Arguments::NONE);
    let tag_kind = TagKind::Checksum;
    Request {
        source: source(),
        destination,
        tag_kind,
        is_once: command.is_once(),
        is_release: false,
        epoch: 77,
        operation,
    }
}

fn every_request() -> Vec<Request> {
    let mut requests = Vec::new();
    for command in Command::ALL.into_iter().filter(|command| !command.is_notice()) {
        let operation = match command {
            Command::Read => Operation::Read { bytes: 1 },
            Command::Write | Command::Commit | Command::CreateWrite => {
                for part in [Extent::part(0, 100, 4000), Extent::part(3900, 100, 4000), Extent::part(7, 1, 65_536)] {
                    requests.push(request(command, Operation::Bytes(part)));
                }
                Operation::Bytes(Extent::whole(500))
            }
            Command::FetchAdd => Operation::FetchAdd { addend: u64::MAX },
            Command::CompareSwap => Operation::CompareSwap { expected: 1, new: u64::MAX - 1 },
            Command::Create => Operation::Create { bytes: 1 << 40 },
            Command::Hello => Operation::Hello { identity: 0x0123_4567_89ab_cdef },
            _ if command.is_control() => Operation::Control { bytes: 40 },
            _ => Operation::Plain,
        };
        requests.push(request(command, operation));
    }
    for bytes in [2, 3000, DATA_BYTES_MAX] {
        requests.push(request(Command::Read, Operation::Read { bytes }));
    }
    let once = request(Command::Write, Operation::Bytes(Extent::whole(3)));
    requests.push(Request { is_once: true, ..once });
    let commit = request(Command::Commit, Operation::Bytes(Extent::whole(3)));
    requests.push(Request { is_release: true, ..commit });
    requests
}

fn payload_of(request: &Request, tags: &dyn Tags) -> Vec<u8> {
    let (mut header, small) = request.encode();
    let data = match request.operation {
        Operation::Bytes(extent) => vec![0xa5; extent.bytes as usize],
        Operation::Control { bytes } => vec![0xa5; bytes as usize],
        _ => Vec::new(),
    };
    assert!(seal(&mut header, request.source.encode(), request.destination.encode(), [small.bytes(), &data], tags));
    [&header[..], small.bytes(), &data].concat()
}

fn decoded(request: &Request, payload: &[u8], tags: &dyn Tags, least: TagKind) -> Result<Request, Refused> {
    Request::decode(request.source.encode(), request.destination.encode(), payload, &rules(tags, least))
}

fn why(result: Result<Request, Refused>) -> Malformed {
    result.expect_err("it must be refused").why
}

#[test]
fn every_request_survives() {
    for request in every_request() {
        for (tag_kind, tags) in
            [(TagKind::None, &Checksums as &dyn Tags), (TagKind::Checksum, &Checksums), (TagKind::Keyed, &SomeKey(1))]
        {
            let request = Request { tag_kind, ..request };
            let payload = payload_of(&request, tags);
            assert_eq!(decoded(&request, &payload, tags, tag_kind), Ok(request));
        }
    }
}

#[test]
fn a_read_needs_nothing_but_addresses() {
    let arguments = Arguments::of_length(12).unwrap();
    let destination = pointer(0x2008).request(Command::Read, arguments);
    let read = |least| Request::decode(source().encode(), destination.encode(), &[], &rules(&Checksums, least));
    let request = read(TagKind::Checksum).unwrap();
    assert_eq!(request.operation, Operation::Read { bytes: 4096 });
    assert_eq!((request.epoch, request.is_once, request.source), (0, false, source()));
    assert_eq!(why(read(TagKind::Keyed)), Malformed::TagKind(TagKind::Keyed), "who has keys wants them everywhere");
    // With a header any length is possible.
    let exact = Request { operation: Operation::Read { bytes: 3000 }, ..request };
    let payload = payload_of(&exact, &Checksums);
    assert_eq!(payload.len(), HEADER_BYTES + 4);
    assert_eq!(decoded(&exact, &payload, &Checksums, TagKind::Checksum), Ok(exact));
    let write = pointer(0).request(Command::Write, Arguments::NONE);
    let refused = Request::decode(source().encode(), write.encode(), &[], &rules(&Checksums, TagKind::None));
    assert_eq!(why(refused), Malformed::Short(0), "nothing else does without a header");
}

#[test]
fn a_header_is_what_the_table_says() {
    let header = Header {
        status: Status::Mismatch,
        tag_kind: TagKind::Keyed,
        is_last: true,
        is_several: false,
        is_once: true,
        is_answer: true,
        is_release: true,
        length: 3,
        request: 0x0102_0304_0506_0708,
        epoch: 0x1112_1314_1516_1718,
        tag: 0x2122_2324_2526_2728,
    };
    #[rustfmt::skip]
    let expected = [
        1, 13, 0x76, 0, 3, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1,
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,
    ];
    assert_eq!(header.encode(), expected);
    let payload = [&expected[..], &[9, 9, 9]].concat();
    assert_eq!(Header::decode(&payload), Ok(header));
    assert_eq!(Header::decode(&payload[..34]), Err(Malformed::Length { said: 3, came: 2 }), "truncated");
    assert_eq!(Header::decode(&payload[..31]), Err(Malformed::Short(31)));
    let longer = [&payload[..], &[0]].concat();
    assert_eq!(Header::decode(&longer), Err(Malformed::Length { said: 3, came: 4 }), "something was added");
}

#[test]
fn statuses_are_what_the_reference_says() {
    assert_eq!(Status::ALL.map(|status| status as usize), core::array::from_fn(|number| number));
    for byte in 0..=u8::MAX {
        assert_eq!(Status::from_byte(byte).map(|status| status as u8), (byte < 17).then_some(byte));
    }
    assert!(Status::ALL.iter().all(|status| status.sentence().len() > 10));
}

#[test]
fn every_changed_bit_is_noticed() {
    let request = request(Command::CompareSwap, Operation::CompareSwap { expected: 1, new: 2 });
    for (tag_kind, tags) in [(TagKind::Checksum, &Checksums as &dyn Tags), (TagKind::Keyed, &SomeKey(5))] {
        let request = Request { tag_kind, ..request };
        let (from, to) = (request.source.encode(), request.destination.encode());
        let whole = [&from.0[..], &to.0, &payload_of(&request, tags)].concat();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let address = |at: usize| Address(core::array::from_fn(|byte| bytes[at + byte]));
            let result = Request::decode(address(0), address(16), &bytes[32..], &rules(tags, tag_kind));
            assert!(result.is_err(), "bit {bit} of {tag_kind:?}");
        }
    }
}

#[test]
fn tags_are_demanded_and_keys_are_needed() {
    let request = request(Command::Delete, Operation::Plain);
    let plain = Request { tag_kind: TagKind::None, ..request };
    let payload = payload_of(&plain, &Checksums);
    assert!(decoded(&plain, &payload, &Checksums, TagKind::None).is_ok());
    let weak = decoded(&plain, &payload, &Checksums, TagKind::Checksum).unwrap_err();
    assert_eq!(weak.why, Malformed::TagKind(TagKind::Checksum));
    assert_eq!(weak.answer, Some((source(), Status::BadTag)));
    let keyed = Request { tag_kind: TagKind::Keyed, ..request };
    let payload = payload_of(&keyed, &SomeKey(1));
    assert_eq!(why(decoded(&keyed, &payload, &SomeKey(2), TagKind::None)), Malformed::Tag, "another key");
    assert_eq!(why(decoded(&keyed, &payload, &Checksums, TagKind::None)), Malformed::NoKey);
    let (mut header, _) = keyed.encode();
    assert!(!seal(&mut header, source().encode(), keyed.destination.encode(), [&[], &[]], &Checksums));
}

#[test]
fn what_a_command_does_not_have_is_refused() {
    let change = |request: &Request, change: &dyn Fn(&mut Vec<u8>)| {
        let mut payload = payload_of(&Request { tag_kind: TagKind::None, ..*request }, &Checksums);
        change(&mut payload);
        let length = payload.len().saturating_sub(HEADER_BYTES) as u32;
        payload[4..8].copy_from_slice(&length.to_le_bytes());
        why(decoded(request, &payload, &Checksums, TagKind::None))
    };
    let delete = request(Command::Delete, Operation::Plain);
    assert_eq!(change(&delete, &|it| it[0] = 2), Malformed::Version(2));
    assert_eq!(change(&delete, &|it| it[1] = 15), Malformed::Status(15));
    assert_eq!(change(&delete, &|it| it[1] = 3), Malformed::Status(3), "a status is for answers");
    assert_eq!(change(&delete, &|it| it[3] = 1), Malformed::Flags);
    assert_eq!(change(&delete, &|it| it[2] = 3), Malformed::Flags, "a kind of tag that does not exist");
    assert_eq!(change(&delete, &|it| it[2] = 1 << 2), Malformed::Flags, "the last of one");
    assert_eq!(change(&delete, &|it| it[2] = 1 << 3), Malformed::Flags, "several");
    assert_eq!(change(&delete, &|it| it[2] = 1 << 4), Malformed::Flags, "it is done once anyway");
    assert_eq!(change(&delete, &|it| it[2] = 1 << 6), Malformed::Flags, "nothing to give back");
    assert_eq!(change(&delete, &|it| it[2] = 1 << 7), Malformed::Flags, "no such flag");
    assert_eq!(change(&delete, &|it| it[8] ^= 1), Malformed::RequestId);
    assert_eq!(change(&delete, &|it| it.push(0)), Malformed::Body(Command::Delete));
    let read = request(Command::Read, Operation::Read { bytes: 3000 });
    for bytes in [0, DATA_BYTES_MAX + 1] {
        let wrong = |it: &mut Vec<u8>| it[32..36].copy_from_slice(&bytes.to_le_bytes());
        assert_eq!(change(&read, &wrong), Malformed::Body(Command::Read));
    }
    let write = request(Command::Write, Operation::Bytes(Extent::whole(10)));
    assert_eq!(change(&write, &|it| it.truncate(32)), Malformed::Body(Command::Write), "nothing is written");
    let long = |it: &mut Vec<u8>| it.resize(HEADER_BYTES + DATA_BYTES_MAX as usize + 1, 0);
    assert_eq!(change(&write, &long), Malformed::Body(Command::Write));
    let part = request(Command::Write, Operation::Bytes(Extent::part(3900, 100, 4000)));
    assert_eq!(change(&part, &|it| it[36] ^= 1), Malformed::Extent, "it ends past the end");
    assert_eq!(change(&part, &|it| it[2] = 1 << 3), Malformed::Extent, "it is the end and does not say so");
    assert_eq!(change(&part, &|it| it[34] = 2), Malformed::Extent, "too much in all");
    assert_eq!(change(&part, &|it| it[36..40].fill(0xff)), Malformed::Extent, "a sum that overflows");
    assert_eq!(change(&part, &|it| it.truncate(39)), Malformed::Body(Command::Write), "not even a position");
    let huge = request(Command::Write, Operation::Bytes(Extent::part(0, 100, WRITE_BYTES_MAX + 1)));
    assert_eq!(change(&huge, &|_| ()), Malformed::Extent, "more than one request writes");
    let alone = request(Command::Write, Operation::Bytes(Extent::part(0, 10, 10)));
    assert_eq!(change(&alone, &|_| ()), Malformed::Extent, "several of one");
}

#[test]
fn a_place_must_mean_something() {
    let at = |command: Command, operation, offset| {
        let request = request(command, operation);
        let request = Request { destination: pointer(offset).request(command, Arguments::NONE), ..request };
        decoded(&request, &payload_of(&request, &Checksums), &Checksums, TagKind::None).map_err(|it| it.why)
    };
    let add = Operation::FetchAdd { addend: 1 };
    assert_eq!(at(Command::FetchAdd, add, 0x1004), Err(Malformed::Place(Command::FetchAdd)));
    assert!(at(Command::FetchAdd, add, 0x1008).is_ok());
    let create = Operation::Create { bytes: 1 };
    assert_eq!(at(Command::Create, create, 8), Err(Malformed::Place(Command::Create)), "it has no place yet");
}

#[test]
fn unknown_senders_and_answers_get_no_byte() {
    let request = request(Command::Inquire, Operation::Plain);
    let payload = payload_of(&request, &Checksums);
    let (from, to) = (request.source.encode(), request.destination.encode());
    let rules = rules(&Checksums, TagKind::Checksum);
    let refused = |from, to, payload: &[u8]| Request::decode(from, to, payload, &rules).unwrap_err();
    let mut elsewhere = from;
    elsewhere.0[3] ^= 1;
    assert_eq!(refused(elsewhere, to, &payload), Refused { why: Malformed::Cluster(0x12_3457), answer: None });
    let mut nobody = from;
    nobody.0[0] = 0x20;
    assert_eq!(refused(nobody, to, &payload).answer, None);
    let mut unknown = to;
    unknown.0[6] = 0x77;
    assert_eq!(refused(from, unknown, &payload).answer, Some((source(), Status::UnknownCommand)));
    unknown.0[7] = 0x40;
    assert_eq!(refused(from, unknown, &payload).answer, None, "nobody waits for it");
    // An answer, whatever else is wrong with it.
    let mut answer = payload.clone();
    answer[2] |= 1 << 5;
    for version in 0..=u8::MAX {
        answer[0] = version;
        assert_eq!(refused(from, to, &answer), Refused { why: Malformed::Answer, answer: None });
        assert_eq!(refused(from, unknown, &answer[..3]), Refused { why: Malformed::Answer, answer: None });
    }
}

fn every_reply() -> Vec<Reply> {
    let object = Body::Object { pointer: pointer(0x3000), bytes: 5000 };
    let welcome = Body::Welcome { quota_bytes: 1 << 33, used_bytes: 4096, window: 64, silence_ms: 30_000 };
    let present = Body::Present { host: Pointer::to_host(cluster(), Host(9)), free_bytes: 1, memory_bytes: u64::MAX };
    let done = [
        (Command::Read, Body::Bytes(4096)),
        (Command::Read, Body::Bytes(1)),
        (Command::Read, Body::Bytes(DATA_BYTES_MAX)),
        (Command::Write, Body::Nothing),
        (Command::FetchAdd, Body::Value(u64::MAX)),
        (Command::CompareSwap, Body::Value(1)),
        (Command::Commit, Body::Nothing),
        (Command::Create, object),
        (Command::CreateWrite, object),
        (Command::Delete, Body::Nothing),
        (Command::Inquire, object),
        (Command::Update, Body::Leased { term: 1_000_000_000, bytes: 4096 }),
        (Command::Renew, Body::Leased { term: 5, bytes: 0 }),
        (Command::Release, Body::Nothing),
        (Command::Hello, welcome),
        (Command::Ping, present),
        (Command::Clone, Body::Leased { term: 7, bytes: 4096 }),
    ];
    let plain = |command: Command, status, body| Reply {
        to: source(),
        from: pointer(0x2000).request(command, Arguments::NONE).encode(),
        status,
        tag_kind: TagKind::Checksum,
        is_several: false,
        is_last: false,
        is_release: false,
        epoch: 3,
        body,
    };
    let mut replies: Vec<Reply> = done.map(|(command, body)| plain(command, Status::Ok, body)).into();
    for status in Status::ALL.into_iter().filter(|status| !matches!(status, Status::Ok | Status::Mismatch)) {
        let body = if status == Status::Moved { Body::Moved(pointer(0x2000).encode()) } else { Body::Nothing };
        replies.extend(Command::ALL.map(|command| plain(command, status, body)));
    }
    replies.push(Reply { is_release: true, ..plain(Command::Commit, Status::Ok, Body::Nothing) });
    replies.push(plain(Command::CompareSwap, Status::Mismatch, Body::Value(4)));
    for command in Command::ALL.into_iter().filter(|command| command.may_be_several()) {
        let taken = plain(command, Status::Ok, Body::Taken { position: 7, received: 9 });
        replies.push(Reply { is_several: true, ..taken });
        let body = if command == Command::CreateWrite { object } else { Body::Nothing };
        replies.push(Reply { is_several: true, is_last: true, body, ..taken });
    }
    replies
}

fn reply_payload(reply: &Reply, tags: &dyn Tags) -> Vec<u8> {
    let (mut header, small) = reply.encode();
    let data = vec![0x5a; reply.body.data_bytes() as usize];
    assert!(seal(&mut header, reply.from, reply.to.encode(), [small.bytes(), &data], tags));
    let payload = [&header[..], small.bytes(), &data].concat();
    assert_eq!(payload.len() - data.len(), reply.body.data_at().max(HEADER_BYTES + small.bytes().len()));
    payload
}

#[test]
fn every_answer_survives() {
    for reply in every_reply() {
        let payload = reply_payload(&reply, &Checksums);
        let rules = rules(&Checksums, TagKind::Checksum);
        assert_eq!(Reply::decode(reply.from, reply.to.encode(), &payload, &rules), Ok(reply));
        let mut damaged = payload.clone();
        *damaged.last_mut().unwrap() ^= 0x80;
        assert_eq!(Reply::decode(reply.from, reply.to.encode(), &damaged, &rules), Err(Malformed::Tag));
        // It would pass as nothing else.
        assert!(Request::decode(reply.to.encode(), reply.from, &payload, &rules).is_err());
        let mut other = reply.to;
        other.request += 1;
        assert_eq!(Reply::decode(reply.from, other.encode(), &payload, &rules), Err(Malformed::Tag));
    }
    let request = request(Command::Delete, Operation::Plain);
    let payload = payload_of(&request, &Checksums);
    let read = Reply::decode(
        request.source.encode(),
        request.destination.encode(),
        &payload,
        &rules(&Checksums, TagKind::None),
    );
    assert!(matches!(read, Err(Malformed::Source(_))), "a request is no answer: {read:?}");
}

#[test]
fn only_a_commit_that_was_done_gives_a_lease_back() {
    let rules = rules(&Checksums, TagKind::None);
    for reply in every_reply() {
        let released = Reply { is_release: true, ..reply };
        let payload = reply_payload(&released, &Checksums);
        let read = Reply::decode(reply.from, reply.to.encode(), &payload, &rules);
        let command = Destination::decode(reply.from).unwrap().command;
        let may = command == Command::Commit && reply.status == Status::Ok;
        assert_eq!(read, if may { Ok(released) } else { Err(Malformed::Flags) });
    }
}

#[test]
fn a_notice_is_nothing_else_and_nothing_else_is_a_notice() {
    let rules = rules(&Checksums, TagKind::Checksum);
    for command in Command::ALL {
        let from = pointer(0x2000).request(command, Arguments::NONE);
        let notice = Notice { from, to: source(), tag_kind: TagKind::Checksum, epoch: 5 << 48 };
        let mut header = notice.encode();
        let (source, destination) = (from.encode(), source().encode());
        assert!(seal(&mut header, source, destination, [&[], &[]], &Checksums));
        let read = Notice::decode(source, destination, &header, &rules);
        assert_eq!(read, if command.is_notice() { Ok(notice) } else { Err(Malformed::Notice(command)) });
        assert!(Reply::decode(source, destination, &header, &rules).is_err());
        let back = Request::decode(source, destination, &header, &rules).unwrap_err();
        assert_eq!(back.answer, None, "who gets one by mistake says nothing");
        // Nobody asks a home to recall something.
        let asked = Request::decode(destination, source, &header, &rules);
        let unknown = Some((self::source(), Status::UnknownCommand));
        assert!(!command.is_notice() || asked.unwrap_err().answer == unknown);
        for bit in 0..header.len() * 8 {
            let mut damaged = header;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Notice::decode(source, destination, &damaged, &rules).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn answers_with_other_lengths_are_refused() {
    for reply in every_reply() {
        let reply = Reply { tag_kind: TagKind::None, ..reply };
        let payload = reply_payload(&reply, &Checksums);
        let is_bytes = reply.body.data_bytes() > 0;
        for longer in [true, false] {
            let mut payload = payload.clone();
            if longer {
                payload.resize(payload.len() + if is_bytes { DATA_BYTES_MAX as usize } else { 1 }, 0);
            } else {
                payload.truncate(payload.len().saturating_sub(if is_bytes { payload.len() } else { 1 }).max(32));
            }
            let length = (payload.len() - HEADER_BYTES) as u32;
            payload[4..8].copy_from_slice(&length.to_le_bytes());
            let result = Reply::decode(reply.from, reply.to.encode(), &payload, &rules(&Checksums, TagKind::None));
            let is_same = reply.body == Body::Nothing && !longer;
            assert_eq!(result.is_ok(), is_same, "{reply:?} {longer}: {result:?}");
        }
    }
}

#[test]
fn any_bytes_are_decoded_or_refused_without_a_panic() {
    let mut random = Random::new(1);
    let requests = every_request();
    let replies = every_reply();
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..200_000usize {
        let is_reply = round % 2 == 0;
        let (from, to, mut payload) = if is_reply {
            let reply = Reply { tag_kind: TagKind::None, ..replies[round / 2 % replies.len()] };
            let small = Reply { body: smaller(reply.body), ..reply };
            (small.from, small.to.encode(), reply_payload(&small, &Checksums))
        } else {
            let request = Request { tag_kind: TagKind::None, ..requests[round / 2 % requests.len()] };
            (request.source.encode(), request.destination.encode(), payload_of(&request, &Checksums))
        };
        let (mut from, mut to) = (from, to);
        for _ in 0..random.below(4) {
            match random.below(8) {
                0 => from.0[random.index(16)] = random.draw() as u8,
                1 => to.0[random.index(16)] = random.draw() as u8,
                2 => payload.truncate(random.index(payload.len() + 1)),
                3 => payload.push(random.draw() as u8),
                _ => {
                    let length = payload.len().min(64);
                    if length > 0 {
                        payload[random.index(length)] = random.draw() as u8;
                    }
                }
            }
        }
        let rules = rules(&Checksums, TagKind::None);
        let request = Request::decode(from, to, &payload, &rules);
        let reply = Reply::decode(from, to, &payload, &rules);
        assert!(request.is_err() || reply.is_err(), "nothing is both");
        if let Ok(Request { operation: Operation::Bytes(extent), .. }) = request {
            assert_eq!((extent.at + extent.bytes) as usize, payload.len());
            assert!(extent.position + extent.bytes <= extent.total && extent.total <= WRITE_BYTES_MAX);
        }
        if let Ok(reply) = reply {
            assert!(reply.body.data_bytes() == 0 || reply.body.data_at() <= payload.len());
        }
        if let Err(refusal) = request {
            assert!(format!("{}", refusal.why).len() > 20);
            assert!(refusal.answer.is_none() || !is_answer(&payload));
        }
        let is_read = if is_reply { reply.is_ok() } else { request.is_ok() };
        *if is_read { &mut accepted } else { &mut refused } += 1;
    }
    assert!(accepted > 10_000 && refused > 10_000, "{accepted} whole and {refused} refused");
}

/// With few bytes of memory, so that changes hit the rest.
fn smaller(body: Body) -> Body {
    match body {
        Body::Bytes(_) => Body::Bytes(8),
        Body::Leased { term, bytes } => Body::Leased { term, bytes: bytes.min(8) },
        other => other,
    }
}
