//! Tests encoded bytes against the structures of the specification (OpenFlow Switch Specification 1.3.5), in both
//! directions, and invalid messages.
//!
//! The expected bytes are written by hand from the structures that are named beside them.

use trellis_base::Random;

use super::*;

fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// A message is exactly these bytes, and they are that message.
fn is(body: Body, text: &str) {
    let message = Message { number: 0x0102_0304, body };
    assert_eq!(message.encode().unwrap(), bytes(text), "{message:?}");
    assert_eq!(Message::decode(&bytes(text)).unwrap(), message);
    assert_eq!(message_bytes(&bytes(text)).unwrap(), Some(bytes(text).len()));
}

#[test]
fn who_is_there() {
    // ofp_header 7.1.1, ofp_hello 7.5.1 with ofp_hello_elem_versionbitmap.
    is(Body::Hello { version: 4, versions: None }, "04 00 0008 01020304");
    is(Body::Hello { version: 4, versions: Some(0x10) }, "04 00 0010 01020304  0001 0008 00000010");
    // A later version lists its versions after an unknown element.
    let later = bytes("06 00 0018 01020304  0009 0006 aaaa 0000  0001 0008 00000050");
    let hello = Message::decode(&later).unwrap();
    assert_eq!(hello.body, Body::Hello { version: 6, versions: Some(0x50) });
    // 7.5.2 to 7.5.4.
    is(Body::EchoRequest(vec![0xab, 0xcd]), "04 02 000a 01020304  abcd");
    is(Body::EchoReply(Vec::new()), "04 03 0008 01020304");
    let experiment = Body::Experimenter { experimenter: 0x2320, kind: 0x1f, data: vec![7] };
    is(experiment, "04 04 0011 01020304  00002320 0000001f 07");
    // ofp_switch_features 7.3.1.
    is(Body::FeaturesRequest, "04 05 0008 01020304");
    let features =
        Features { datapath: 0x0000_0201_7000_0001, buffers: 256, tables: 254, auxiliary: 0, capabilities: 0x47 };
    is(Body::FeaturesReply(features), "04 06 0020 01020304  0000020170000001 00000100 fe 00 0000 00000047 00000000");
    // ofp_switch_config 7.3.2.
    is(Body::SetConfig { flags: 0, miss_bytes_max: WHOLE }, "04 09 000c 01020304  0000 ffff");
    // ofp_error_msg 7.4.4.
    is(Body::Error { kind: 5, code: 1, data: vec![4, 14] }, "04 01 000e 01020304  0005 0001 040e");
    is(Body::BarrierRequest, "04 14 0008 01020304");
    is(Body::BarrierReply, "04 15 0008 01020304");
    // OFPT_ROLE_REQUEST is not known here and keeps its bytes.
    is(
        Body::Other { kind: 24, bytes: bytes("00000002 00000000 0000000000000005") },
        "04 18 0018 01020304  00000002 00000000 0000000000000005",
    );
}

/// Requests for a page, whatever their command, generation and offset in it: bits that are no prefix.
fn about_a_page() -> Match {
    Match::any()
        .with(Field::InPort, 3)
        .with(Field::EthType, 0x86dd)
        .with(Field::IpProto, 17)
        .with_masked(Field::Ipv6Src, 0xfd << 120, 0xff << 120)
        .with_masked(
            Field::Ipv6Dst,
            0xfd00_0001_0007_0000_0000_0000_0000_5123,
            0xffff_ffff_ffff_8000_0000_ffff_ffff_f000,
        )
        .with(Field::UdpSrc, 5000)
        .with(Field::UdpDst, 5000)
}

const ABOUT_A_PAGE: &str = "0001 006b
    80000004 00000003
    80000a02 86dd
    80001401 11
    80003520 fd000000000000000000000000000000 ff000000000000000000000000000000
    80003720 fd000001000700000000000000005000 ffffffffffff80000000fffffffff000
    80001e02 1388
    80002002 1388
    0000000000";

fn does_everything() -> Vec<Instruction> {
    vec![
        Instruction::WriteMetadata { value: 0x5, mask: 0xff },
        Instruction::ApplyActions(vec![
            Action::SetField(Oxm::exact(Field::EthDst, 0x02bb_0000_0007)),
            Action::Output { port: port::CONTROLLER, bytes_max: 128 },
            Action::Group(9),
        ]),
        Instruction::GotoTable(4),
    ]
}

const DOES_EVERYTHING: &str = "0002 0018 00000000 0000000000000005 00000000000000ff
    0004 0030 00000000
      0019 0010 80000606 02bb00000007 0000
      0000 0010 fffffffd 0080 000000000000
      0016 0008 00000009
    0001 0008 04 000000";

#[test]
fn flows() {
    // ofp_flow_mod 7.3.4.1, ofp_match and OXM 7.2.3, instructions 7.2.4, actions 7.2.5.
    let change = FlowMod {
        cookie: 0x1122,
        cookie_mask: 0xff,
        idle_timeout: 1,
        hard_timeout: 30,
        priority: 0x8000,
        flags: TELL_REMOVED,
        matching: about_a_page(),
        instructions: does_everything(),
        ..FlowMod::new(FlowCommand::Add, 2)
    };
    let fixed = "0000000000001122 00000000000000ff 02 00 0001 001e 8000 ffffffff ffffffff ffffffff 0001 0000";
    is(Body::FlowMod(change), &format!("04 0e 00f0 01020304 {fixed} {ABOUT_A_PAGE} {DOES_EVERYTHING}"));
    // Deletes everything: a match without a field, padded.
    is(
        Body::FlowMod(FlowMod::new(FlowCommand::Delete, ALL_TABLES)),
        "04 0e 0038 01020304 0000000000000000 0000000000000000 ff 03 0000 0000 0000 ffffffff ffffffff ffffffff 0000 0000
         0001 0004 00000000",
    );
    // ofp_flow_removed 7.4.2.
    let removed = FlowRemoved {
        cookie: 7,
        priority: 30,
        reason: REASON_HARD_TIMEOUT,
        table: 8,
        age: (2, 500),
        idle_timeout: 0,
        hard_timeout: 2,
        packets: 9,
        bytes: 900,
        matching: Match::any().with(Field::InPort, 2),
    };
    is(
        Body::FlowRemoved(removed),
        "04 0b 0040 01020304 0000000000000007 001e 01 08 00000002 000001f4 0000 0002 0000000000000009 0000000000000384
         0001 000c 80000004 00000002 00000000",
    );
}

#[test]
fn groups_that_copy() {
    // ofp_group_mod 7.3.4.2, ofp_bucket.
    let bucket = |port| Bucket::of(vec![Action::output(port)]);
    let change = GroupMod { command: GroupCommand::Add, kind: 0, group: 0x700, buckets: vec![bucket(1), bucket(2)] };
    is(
        Body::GroupMod(change),
        "04 0f 0050 01020304 0000 00 00 00000700
         0020 0000 ffffffff ffffffff 00000000 0000 0010 00000001 0000 000000000000
         0020 0000 ffffffff ffffffff 00000000 0000 0010 00000002 0000 000000000000",
    );
    let all = GroupMod { command: GroupCommand::Delete, kind: 0, group: ALL_GROUPS, buckets: Vec::new() };
    is(Body::GroupMod(all), "04 0f 0010 01020304 0002 00 00 fffffffc");
}

#[test]
fn packets() {
    // ofp_packet_in 7.4.1.
    let packet = PacketIn {
        buffer: NO_BUFFER,
        bytes: 60,
        reason: 1,
        table: 8,
        cookie: 0x0500_0000_0000_0000,
        matching: Match::any().with(Field::InPort, 2),
        data: vec![0xaa, 0xbb],
    };
    assert_eq!(packet.in_port(), Some(2));
    is(
        Body::PacketIn(packet),
        "04 0a 002c 01020304 ffffffff 003c 01 08 0500000000000000
         0001 000c 80000004 00000002 00000000 0000 aabb",
    );
    // ofp_packet_out 7.3.7.
    let packet = PacketOut {
        buffer: NO_BUFFER,
        in_port: port::CONTROLLER,
        actions: vec![Action::output(port::TABLE)],
        data: vec![0xaa],
    };
    is(
        Body::PacketOut(packet),
        "04 0d 0029 01020304 ffffffff fffffffd 0010 000000000000 0000 0010 fffffff9 0000 000000000000 aa",
    );
}

#[test]
fn questions_and_answers() {
    // ofp_multipart_request 7.3.5, ofp_flow_stats_request 7.3.5.2.
    is(Body::MultipartRequest(Question::Description), "04 12 0010 01020304 0000 0000 00000000");
    is(Body::MultipartRequest(Question::Ports), "04 12 0010 01020304 000d 0000 00000000");
    is(Body::MultipartRequest(Question::PortStats(3)), "04 12 0018 01020304 0004 0000 00000000 00000003 00000000");
    is(
        Body::MultipartRequest(Question::Flows(FlowQuestion::marked(0x0100 << 48, 0xff00 << 48))),
        "04 12 0038 01020304 0001 0000 00000000
         ff 000000 ffffffff ffffffff 00000000 0100000000000000 ff00000000000000 0001 0004 00000000",
    );
    // ofp_flow_stats, of which more follow.
    let flow = FlowStats {
        table: 8,
        age: (1, 2),
        priority: 20,
        idle_timeout: 0,
        hard_timeout: 3,
        flags: 1,
        cookie: 5,
        packets: 6,
        bytes: 7,
        matching: about_a_page(),
        instructions: does_everything(),
    };
    let one = format!(
        "00f0 08 00 00000001 00000002 0014 0000 0003 0001 00000000 0000000000000005 0000000000000006 0000000000000007
         {ABOUT_A_PAGE} {DOES_EVERYTHING}"
    );
    let answer = Answer::Flows(vec![flow.clone(), flow]);
    let answer = Body::MultipartReply { answer, has_more: true };
    is(answer, &format!("04 13 01f0 01020304 0001 0001 00000000 {one} {one}"));
    // ofp_port_stats 7.3.5.6.
    let port = PortStats {
        port: 3,
        packets_in: 1,
        packets_out: 2,
        bytes_in: 3,
        bytes_out: 4,
        dropped: [5, 6],
        errors: [7, 8, 9, 10, 11, 12],
        age: (13, 14),
    };
    let counts: String = (1..=12).map(|count| format!("{count:016x} ")).collect();
    is(
        Body::MultipartReply { answer: Answer::PortStats(vec![port]), has_more: false },
        &format!("04 13 0080 01020304 0004 0000 00000000 00000003 00000000 {counts} 0000000d 0000000e"),
    );
}

#[test]
fn ports_and_names() {
    // ofp_port 7.2.1, ofp_port_status 7.4.3.
    let port = PortDescription {
        port: 1,
        mac: [2, 0xbb, 0, 0, 0, 1],
        name: "p1".to_owned(),
        config: 0,
        state: 4,
        features: [0x840, 0, 0, 0, 10_000_000, 0],
    };
    let text = "00000001 00000000 02bb00000001 0000 70310000000000000000000000000000 00000000 00000004
                00000840 00000000 00000000 00000000 00989680 00000000";
    is(
        Body::MultipartReply { answer: Answer::Ports(vec![port.clone()]), has_more: false },
        &format!("04 13 0050 01020304 000d 0000 00000000 {text}"),
    );
    is(Body::PortStatus { reason: 2, port }, &format!("04 0c 0050 01020304 02 00000000000000 {text}"));
    // ofp_desc 7.3.5.1.
    let padded = |text: &str, width: usize| {
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("{hex:0<width$}", width = 2 * width)
    };
    let description = Description {
        manufacturer: "Nicira, Inc.".to_owned(),
        hardware: "Open vSwitch".to_owned(),
        software: "3.1.0".to_owned(),
        serial: "None".to_owned(),
        datapath: "x".repeat(255),
    };
    let text = [
        padded(&description.manufacturer, 256),
        padded(&description.hardware, 256),
        padded(&description.software, 256),
        padded(&description.serial, 32),
        padded(&description.datapath, 256),
    ]
    .concat();
    let answer = Answer::Description(description);
    is(Body::MultipartReply { answer, has_more: false }, &format!("04 13 0430 01020304 0000 0000 00000000 {text}"));
}

#[test]
fn what_has_no_room_is_not_sent() {
    let message = |data: usize| Message { number: 1, body: Body::EchoRequest(vec![0; data]) };
    assert_eq!(message(65_535 - HEADER_BYTES).encode().unwrap().len(), 65_535);
    assert_eq!(message(65_536 - HEADER_BYTES).encode(), Err(CodecError::Long));
}

#[test]
fn what_is_no_message_is_an_error() {
    let wrong = |text: &str, error: CodecError| assert_eq!(Message::decode(&bytes(text)), Err(error), "{text}");
    wrong("", CodecError::Short);
    wrong("04 02 0008 010203", CodecError::Short);
    wrong("04 02 0009 01020304", CodecError::Short);
    wrong("04 02 0008 01020304 00", CodecError::Length);
    wrong("01 05 0008 01020304", CodecError::Version(1));
    wrong("05 05 0008 01020304", CodecError::Version(5));
    // A hello's element, a match, an instruction, an action that are shorter than their header says.
    wrong("04 00 000c 01020304 0001 0003", CodecError::Length);
    wrong("04 0a 0020 01020304 ffffffff 003c 01 08 0500000000000000 0001 0003 00000000", CodecError::Length);
    wrong(
        "04 0a 0020 01020304 ffffffff 003c 01 08 0500000000000000 0000 0004 00000000",
        CodecError::Unknown("kind of match"),
    );
    wrong("04 0d 0020 01020304 ffffffff fffffffd 0008 000000000000 0000 0003 00000000", CodecError::Length);
    wrong("04 0d 0018 01020304 ffffffff fffffffd 0009 000000000000", CodecError::Short);
    assert_eq!(message_bytes(&bytes("04 02 0007")), Err(CodecError::Length));
    assert_eq!(message_bytes(&bytes("04 02 00")), Ok(None));
}

fn samples() -> Vec<Vec<u8>> {
    let bodies = [
        Body::Hello { version: 4, versions: Some(0x12) },
        Body::FlowMod(FlowMod {
            matching: about_a_page(),
            instructions: does_everything(),
            ..FlowMod::new(FlowCommand::Add, 2)
        }),
        Body::GroupMod(GroupMod {
            command: GroupCommand::Modify,
            kind: 0,
            group: 1,
            buckets: vec![Bucket::of(vec![Action::output(1), Action::Group(2)])],
        }),
        Body::PacketIn(PacketIn {
            buffer: 1,
            bytes: 9,
            reason: 1,
            table: 2,
            cookie: 3,
            matching: about_a_page(),
            data: vec![1; 80],
        }),
        Body::PacketOut(PacketOut { buffer: 1, in_port: 2, actions: vec![Action::output(3)], data: vec![2; 60] }),
        Body::MultipartReply { answer: Answer::PortStats(vec![PortStats::default(); 2]), has_more: true },
        Body::MultipartRequest(Question::Flows(FlowQuestion::marked(1, 2))),
        Body::PortStatus { reason: 0, port: PortDescription::default() },
        Body::Error { kind: 1, code: 2, data: vec![3; 64] },
    ];
    bodies.into_iter().map(|body| Message { number: 7, body }.encode().unwrap()).collect()
}

/// Any input is a message or an error; and a message is unchanged by another encoding and decoding.
#[test]
fn damaged_messages_are_messages_or_errors() {
    const SEED: u64 = 0x0f13;
    let mut random = Random::new(SEED);
    let samples = samples();
    let (mut understood, mut refused) = (0, 0);
    for round in 0..40_000 {
        let mut damaged = samples[random.index(samples.len())].clone();
        for _ in 0..=random.below(3) {
            let at = random.index(damaged.len());
            match random.below(4) {
                0 => damaged.truncate(at.max(1)),
                1 => damaged.insert(at, random.draw() as u8),
                _ => damaged[at] = random.draw() as u8,
            }
        }
        if !random.once_in(4) && damaged.len() >= HEADER_BYTES {
            // Most have a matching length, so that the rest is decoded.
            let length = damaged.len() as u16;
            let kind = damaged[1] % 22;
            damaged[..2].copy_from_slice(&[VERSION, kind]);
            damaged[2..4].copy_from_slice(&length.to_be_bytes());
        }
        let Ok(message) = Message::decode(&damaged) else {
            refused += 1;
            continue;
        };
        understood += 1;
        let again = message.encode().map(|bytes| Message::decode(&bytes));
        assert_eq!(again, Ok(Ok(message)), "round {round} of seed {SEED:#x}: {damaged:02x?}");
    }
    assert!(understood > 1_000 && refused > 1_000, "{understood} understood, {refused} refused");
}
