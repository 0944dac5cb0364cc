//! Every address survives encoding and decoding, byte by byte as the table says; anything else is refused with a sentence.

use super::*;
use alloc::format;
use alloc::string::ToString;
use trellis_base::Random;

const CLUSTER: Cluster = Cluster(0x12_3456);

fn pointer() -> Pointer {
    Pointer::new(CLUSTER, Host(7), 0x89ab, 0x0102_0304_0506).unwrap()
}

#[test]
fn a_destination_is_what_the_table_says() {
    let arguments = Arguments::of_length(12).unwrap().and(Arguments::DIRECT);
    let address = pointer().request(Command::Read, arguments).encode();
    let expected = [0xfd, 0x12, 0x34, 0x56, 0, 7, 0x01, 0x1c, 0x89, 0xab, 1, 2, 3, 4, 5, 6];
    assert_eq!(address.0, expected);
    assert_eq!(address.to_string(), "fd12:3456:7:11c:89ab:102:304:506");
    assert_eq!(address.bits() >> 80, 0xfd12_3456_0007);
    assert_eq!(Destination::decode(address), Ok(pointer().request(Command::Read, arguments)));
}

#[test]
fn a_source_is_what_the_table_says() {
    let source = Source {
        cluster: CLUSTER,
        host: Host(0xfffe),
        incarnation: Incarnation::new(0x0123),
        request: 0x1122_3344_5566_7788,
    };
    let expected = [0xfd, 0x12, 0x34, 0x56, 0xff, 0xfe, 0x81, 0x23, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
    assert_eq!(source.encode().0, expected);
    assert_eq!(Source::decode(source.encode()), Ok(source));
}

#[test]
fn the_layout_is_that_of_the_bytes() {
    use layout::*;
    let address = pointer().request(Command::CompareSwap, Arguments::NO_REPLY).encode().0;
    assert_eq!(address[SCOPE_AT], SCOPE);
    assert_eq!(address[CLUSTER_AT..CLUSTER_AT + CLUSTER_BYTES], [0x12, 0x34, 0x56]);
    assert_eq!(address[HOST_AT..COMMAND_AT], [0, 7]);
    assert_eq!((address[COMMAND_AT], address[ARGUMENTS_AT]), (0x12, 0x40));
    assert_eq!(address[GENERATION_AT..OFFSET_AT], [0x89, 0xab]);
    assert_eq!(address[OFFSET_AT..OFFSET_AT + OFFSET_BYTES], [1, 2, 3, 4, 5, 6]);
    assert_eq!(OFFSET_AT + OFFSET_BYTES, ADDRESS_BYTES);
    assert_eq!((INCARNATION_AT, REQUEST_AT + 8), (COMMAND_AT, ADDRESS_BYTES));
    assert_eq!([CLUSTER_PREFIX_BITS, HOST_PREFIX_BITS].map(usize::from), [8 * HOST_AT, 8 * COMMAND_AT]);
    assert_eq!(1 << PAGE_SHIFT, PAGE_BYTES);
    assert_eq!(1u64 << (8 * OFFSET_BYTES), OFFSET_END);
}

#[test]
fn every_command_and_every_argument_survives() {
    for command in Command::ALL {
        for byte in 0..=u8::MAX {
            let mut address = pointer().request(command, Arguments::NONE).encode();
            address.0[layout::ARGUMENTS_AT] = byte;
            let low = match command {
                Command::Read => 0x0f,
                Command::Create | Command::CreateWrite => 0x01,
                _ => 0,
            };
            let is_known = byte & 0x80 == 0 && byte & 0x0f & !low == 0;
            match Destination::decode(address) {
                Ok(destination) => {
                    assert!(is_known, "{command} {byte:#x}");
                    assert_eq!(destination.encode(), address);
                    assert_eq!(destination.arguments.bytes(), 1 << (byte & 0x0f));
                    assert_eq!(destination.arguments.has(Arguments::FORWARDED), byte & 0x20 != 0);
                }
                Err(error) => assert_eq!((error, is_known), (NotAnAddress::Arguments(byte), false), "{command}"),
            }
        }
    }
    assert_eq!(Arguments::of_length(16), None);
    assert_eq!(Arguments::of_length(15).map(Arguments::bytes), Some(32_768));
}

#[test]
fn a_pointer_is_kept_and_written_as_text() {
    let kept = pointer().encode();
    assert_eq!(Pointer::decode(kept), Ok(pointer()));
    assert_eq!(pointer().to_string().parse(), Ok(pointer()));
    assert_eq!(Pointer::new(CLUSTER, Host(7), 1, 0x1000).unwrap().to_string(), "fd12:3456:7:0:1::1000");
    let request = pointer().request(Command::Read, Arguments::NONE).encode();
    assert_eq!(Pointer::decode(request), Err(NotAnAddress::Request));
    assert_eq!("fd12::7::".parse::<Pointer>(), Err(NotAnAddress::Text));
    assert_eq!("2001:db8::1".parse::<Pointer>(), Err(NotAnAddress::Scope(0x20)));
}

#[test]
fn offsets_have_48_bits() {
    assert_eq!(Pointer::new(CLUSTER, Host(1), 1, OFFSET_END), None);
    let last = Pointer::new(CLUSTER, Host(1), 1, OFFSET_END - 1).unwrap();
    assert_eq!(Pointer::decode(last.encode()), Ok(last));
    assert_eq!((last.plus(0), last.plus(1), last.plus(u64::MAX)), (Some(last), None, None));
    assert_eq!(last.page(), (1 << 36) - 1);
    assert_eq!((Cluster::new(1 << 24), Cluster::new((1 << 24) - 1)), (None, Some(Cluster(0xff_ffff))));
}

#[test]
fn what_nobody_can_be_is_refused_as_a_source() {
    let source = Source { cluster: CLUSTER, host: Host(1), incarnation: Incarnation::new(1), request: 9 };
    let change = |at: usize, byte: u8| {
        let mut address = source.encode();
        address.0[at] = byte;
        Source::decode(address)
    };
    assert_eq!(change(0, 0xfc), Err(NotAnAddress::Scope(0xfc)));
    assert_eq!(change(5, 0), Err(NotAnAddress::Host(0)));
    assert_eq!(change(6, 0x7f), Err(NotAnAddress::Incarnation(0x7f01)));
    let all = Source { host: Host::ALL, ..source };
    assert_eq!(Source::decode(all.encode()), Err(NotAnAddress::Host(0xffff)));
    assert!(Host(1).is_one() && Host(0xfffe).is_one() && !Host::ANYWHERE.is_one());
}

#[test]
fn an_answer_never_looks_like_a_request() {
    for random_number in 0..=u16::MAX {
        let incarnation = Incarnation::new(random_number);
        let source = Source { cluster: CLUSTER, host: Host(3), incarnation, request: 5 };
        let command = source.encode().0[layout::COMMAND_AT];
        assert_eq!(Destination::decode(source.encode()), Err(NotAnAddress::Command(command)));
    }
}

#[test]
fn prefixes_hold_what_they_name_and_nothing_else() {
    let write = pointer().request(Command::Write, Arguments::DIRECT).encode();
    let prefixes =
        [(Prefix::of_cluster(CLUSTER), "fd12:3456::/32"), (Prefix::of_host(CLUSTER, Host(7)), "fd12:3456:7::/48")];
    for (prefix, text) in prefixes {
        assert_eq!(prefix.to_string(), text);
        assert!(prefix.contains(write), "{prefix}");
        assert_eq!(prefix.bits() << prefix.length(), 0, "{prefix}");
        assert!(prefix.contains(prefix.first()));
    }
    let other = Prefix::of_host(CLUSTER, Host(8)).first();
    assert_eq!(prefixes.map(|(prefix, _)| prefix.contains(other)), [true, false]);
    let read = pointer().request(Command::Read, Arguments::NONE).encode();
    assert!(Prefix::new(read, 0).contains(write) && !Prefix::new(read, 200).contains(write));
    assert_eq!(Prefix::new(read, 200).length(), 128);
}

#[test]
fn the_prefix_of_a_host_is_read() {
    let prefix: HostPrefix = "fd12:3456:7::/48".parse().unwrap();
    assert_eq!(prefix, HostPrefix { cluster: CLUSTER, host: Host(7) });
    assert_eq!(prefix.to_string(), "fd12:3456:7::/48");
    let refused = |text: &str| text.parse::<HostPrefix>().unwrap_err();
    for text in
        ["", "/", "fd12:3456:7::", "fd12:3456:7::/47", "fd12:3456:7::/048", "fd12:3456:7/48", "x/48", "::/48/48"]
    {
        assert_eq!(refused(text), NotAnAddress::PrefixText, "{text:?}");
    }
    assert_eq!(refused("2001:db8:7::/48"), NotAnAddress::Scope(0x20));
    assert_eq!(refused("fd12:3456::/48"), NotAnAddress::Host(0));
    assert_eq!(refused("fd12:3456:ffff::/48"), NotAnAddress::Host(0xffff));
    assert_eq!(refused("fd12:3456:7:1::/48"), NotAnAddress::Rest);
}

#[test]
fn any_bytes_are_read_or_refused_with_a_sentence() {
    let (mut random, mut accepted) = (Random::new(1), 0);
    for round in 0..100_000 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&random.draw().to_be_bytes());
        bytes[8..].copy_from_slice(&random.draw().to_be_bytes());
        if round % 2 == 0 {
            bytes[0] = 0xfd;
        }
        let address = Address(bytes);
        match Destination::decode(address) {
            Ok(destination) => {
                assert_eq!(destination.encode(), address);
                accepted += 1;
            }
            Err(error) => assert!(format!("{error}").len() > 20),
        }
        match Source::decode(address) {
            Ok(source) => {
                assert_eq!(source.encode(), address);
                accepted += 1;
            }
            Err(error) => assert!(format!("{error}").len() > 20),
        }
        if let Ok(pointer) = Pointer::decode(address) {
            assert_eq!(pointer.encode(), address);
        }
        let text = address.to_string();
        assert_eq!(text.parse(), Ok(address));
    }
    assert!(accepted > 1000, "{accepted} were whole");
}
