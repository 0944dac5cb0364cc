//! Tests memory servers and their clients over real sockets, in networks of their own.

#[path = "../../trellis-transport/tests/support/network.rs"]
mod network;
#[path = "support/running.rs"]
mod running;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use network::{ALONE, in_own_network};
use running::{Running, good, prefix};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Status, WRITE_BYTES_MAX};
use trellis_remote::{Call, Client, ClientOptions, Host, Outcome, Pointer, RemoteError, Server, ServerOptions};

const MEMORY_BYTES: u64 = 64 << 20;
const SERVER: Host = Host(7);

fn start(quota_bytes: Option<u64>) -> Running {
    Running::start(ServerOptions { quota_bytes, ..ServerOptions::new(prefix(SERVER), MEMORY_BYTES) })
}

fn client(host: u16) -> Client {
    let options = ClientOptions { deadline: Duration::from_secs(30), ..ClientOptions::new(prefix(Host(host))) };
    Client::open(options).unwrap_or_else(|error| panic!("{error}"))
}

fn status<T: std::fmt::Debug>(result: Result<T, RemoteError>) -> Status {
    match result {
        Err(RemoteError::Refused { status, .. }) => status,
        other => panic!("it should have been refused, and was {other:?}"),
    }
}

#[test]
fn objects_are_made_read_written_and_deleted() {
    in_own_network("objects_are_made_read_written_and_deleted", &ALONE, || {
        let server = start(None);
        let mut client = client(9);
        let object = good(client.create(SERVER, 100_000));
        let mut bytes = vec![1; 100_000];
        good(client.read(object, &mut bytes));
        assert!(bytes.iter().all(|byte| *byte == 0), "a new object is zero");
        let text: Vec<u8> = (0..100_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
        good(client.write(object, &text));
        good(client.read(object, &mut bytes));
        assert!(bytes == text, "what was written is read, in 25 datagrams each way");
        // Any place, any length.
        let mut some = [0; 777];
        good(client.read(object.plus(4_001).expect("it is inside"), &mut some));
        assert_eq!(some[..], text[4_001..4_778]);
        assert_eq!(good(client.inquire(object.plus(99_999).expect("it is inside"))), (object, 100_000));
        good(client.delete(object));
        assert_eq!(status(client.read(object, &mut some)), Status::Stale);
        let statistics = server.stop().statistics();
        assert_eq!((statistics.objects, statistics.pages_used), (0, 0));
    });
}

#[test]
fn nothing_outside_of_an_object_is_reached() {
    in_own_network("nothing_outside_of_an_object_is_reached", &ALONE, || {
        let server = start(None);
        let mut client = client(9);
        let object = good(client.create_with(SERVER, b"the first"));
        let next = good(client.create_with(SERVER, b"the second"));
        let mut byte = [0];
        assert_eq!(status(client.read(object.plus(9).expect("an address"), &mut byte)), Status::Bounds);
        assert_eq!(status(client.write(object.plus(5).expect("an address"), b"-----")), Status::Bounds);
        assert_eq!(status(client.delete(object.plus(1).expect("an address"))), Status::Bounds);
        let elsewhere = Pointer::new(object.cluster(), SERVER, object.generation(), MEMORY_BYTES).expect("an address");
        assert_eq!(status(client.read(elsewhere, &mut byte)), Status::Bounds);
        let other = object.generation().wrapping_add(9);
        let stale = Pointer::new(object.cluster(), SERVER, other, object.offset()).expect("an address");
        assert_eq!(status(client.read(stale, &mut byte)), Status::Stale);
        let mut second = [0; 10];
        good(client.read(next, &mut second));
        assert_eq!(&second, b"the second");
        let error = self::client(10).create(SERVER, MEMORY_BYTES).expect_err("two objects are there").to_string();
        assert!(
            error.starts_with("CREATE of fd01:203:7:: was refused: the server has no free run of pages"),
            "{error}"
        );
        server.stop();
    });
}

#[test]
fn every_addition_of_every_client_is_done_once() {
    in_own_network("every_addition_of_every_client_is_done_once", &ALONE, || {
        let server = start(None);
        let counter = good(client(9).create(SERVER, 16));
        std::thread::scope(|scope| {
            for host in 10..14 {
                scope.spawn(move || {
                    let mut client = client(host);
                    for _ in 0..500 {
                        good(client.fetch_add(counter, 1));
                        let word = counter.plus(8).expect("it is inside");
                        let mut expected = 0;
                        loop {
                            let found = good(client.compare_swap(word, expected, expected + 3));
                            if found == expected {
                                break;
                            }
                            expected = found;
                        }
                    }
                });
            }
        });
        let mut bytes = [0; 16];
        good(client(9).read(counter, &mut bytes));
        let words = bytes.as_chunks::<8>().0;
        assert_eq!([words[0], words[1]].map(u64::from_le_bytes), [2_000, 6_000]);
        let misplaced = client(9).fetch_add(counter.plus(4).expect("it is inside"), 1);
        assert_eq!(status(misplaced), Status::Malformed, "only whole words");
        server.stop();
    });
}

#[test]
fn a_host_has_no_more_than_its_quota() {
    in_own_network("a_host_has_no_more_than_its_quota", &ALONE, || {
        let server = start(Some(1 << 20));
        let (mut one, mut other) = (client(9), client(10));
        let object = good(one.create(SERVER, 1 << 20));
        assert_eq!(status(one.create(SERVER, 1)), Status::Quota);
        good(other.create(SERVER, 4096));
        let welcome = good(one.hello(SERVER));
        assert_eq!((welcome.quota_bytes, welcome.used_bytes), (1 << 20, 1 << 20));
        good(one.delete(object));
        good(one.create(SERVER, 1));
        server.stop();
    });
}

#[test]
fn a_server_that_lost_its_memory_knows_no_pointer_of_before() {
    in_own_network("a_server_that_lost_its_memory_knows_no_pointer_of_before", &ALONE, || {
        let server = start(None);
        let mut client = client(9);
        let before = good(client.create_with(SERVER, b"before"));
        server.stop();
        let server = start(None);
        // One in 65,536 boots begins with the generation that the one before had.
        let mut bytes = [0; 6];
        assert!(matches!(status(client.read(before, &mut bytes)), Status::Bounds | Status::Stale));
        // The session is gone, too; the client opens another one, because this cannot have been done before.
        good(client.create(SERVER, 1));
        let after = good(client.create_with(SERVER, b"after!"));
        good(client.read(after, &mut bytes));
        assert_eq!(&bytes, b"after!");
        server.stop();
    });
}

#[test]
fn a_client_that_was_silent_says_hello_before_it_changes_something() {
    in_own_network("a_client_that_was_silent_says_hello_before_it_changes_something", &ALONE, || {
        let silence = Duration::from_millis(200);
        let options = ServerOptions::new(prefix(SERVER), MEMORY_BYTES);
        let server = Running::start(ServerOptions { session_silence_max: silence, ..options });
        let mut client = client(9);
        let word = good(client.create(SERVER, 8));
        for round in 0..4 {
            assert_eq!(good(client.fetch_add(word, 1)), round);
            std::thread::sleep(silence * 5 / 4);
            // Reading is nothing that a server remembers a client for.
            good(client.read(word, &mut [0; 8]));
        }
        assert!(server.stop().statistics().sessions_ended >= 3, "the server did forget it");
    });
}

#[test]
fn a_whole_write_of_many_datagrams_is_one_step() {
    in_own_network("a_whole_write_of_many_datagrams_is_one_step", &ALONE, || {
        const BYTES: usize = 1 << 15;
        const ALL: usize = WRITE_BYTES_MAX as usize;
        let server = start(None);
        let with = |host, piece_bytes| {
            good(Client::open(ClientOptions { piece_bytes, ..ClientOptions::new(prefix(Host(host))) }))
        };
        // What fits packets of 1,500 bytes.
        let mut writer = with(9, 1024);
        let object = good(writer.create_with(SERVER, &[7; ALL]));
        let mut all = vec![0; ALL];
        good(writer.read(object, &mut all));
        assert!(all.iter().all(|byte| *byte == 7), "an object of 64 datagrams");
        let place = object.plus(5_000).expect("it is inside");
        let is_over = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reader = with(10, BYTES as u32);
                let (mut bytes, mut seen) = (vec![0; BYTES], BTreeSet::new());
                while !is_over.load(Ordering::Relaxed) {
                    good(reader.read(place, &mut bytes));
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "parts of two writes were read");
                    seen.insert(bytes[0]);
                }
                seen
            });
            for round in 0..60 {
                good(writer.write_whole(place, &[100 + round; BYTES]));
            }
            is_over.store(true, Ordering::Relaxed);
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        println!("{} of 60 writes were seen", seen.len());
        good(writer.read(object, &mut all));
        assert!(all[..5_000].iter().all(|byte| *byte == 7) && all[5_000 + BYTES..].iter().all(|byte| *byte == 7));
        assert!(all[5_000..5_000 + BYTES].iter().all(|byte| *byte == 159));
        // Past the end of the object nothing is written, and too much is not sent.
        let late = object.plus(40_000).expect("an address");
        assert_eq!(status(writer.write_whole(late, &[1; BYTES])), Status::Bounds);
        let error = writer.write_whole(object, &[1; ALL + 1]).expect_err("too much").to_string();
        assert!(error.starts_with("65537 bytes cannot be written in one step, but 65536"), "{error}");
        good(writer.write_whole(object, &[]));
        let mut after = vec![0; ALL];
        good(writer.read(object, &mut after));
        assert!(after == all);
        server.stop();
    });
}

fn made(end: &Result<Outcome, RemoteError>) -> Pointer {
    match end {
        Ok(Outcome::Made(pointer)) => *pointer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_of_a_batch_fails_fails_alone() {
    // What is sent to host 8 is lost.
    let setup = [&ALONE[..], &["-6 route add fd01:203:8::/48 dev lo table local"]].concat();
    in_own_network("what_of_a_batch_fails_fails_alone", &setup, || {
        let server = start(None);
        let options = ClientOptions { deadline: Duration::from_millis(500), ..ClientOptions::new(prefix(Host(9))) };
        let mut client = good(Client::open(options));
        let ends = client.batch(&mut [
            Call::Create { home: SERVER, bytes: MEMORY_BYTES },
            Call::Create { home: SERVER, bytes: 1 },
            Call::Create { home: Host(8), bytes: 1 },
        ]);
        // They are not both possible; which comes first is not said.
        let is_refused = |end: &Result<Outcome, RemoteError>| {
            matches!(end, Err(RemoteError::Refused { status: Status::NoMemory | Status::Quota, .. }))
        };
        assert!(is_refused(&ends[0]) != is_refused(&ends[1]), "{ends:?}");
        let error = ends[2].as_ref().expect_err("nobody is there").to_string();
        assert!(error.starts_with("the host fd01:203:8::/48 did not answer"), "{error}");
        let object = ends[..2].iter().find(|end| !is_refused(end)).map(made).expect("one was made");
        assert!(matches!(client.batch(&mut [Call::Delete { pointer: object }])[..], [Ok(Outcome::Done)]));

        let object = good(client.create_with(SERVER, b"some text"));
        let at = |bytes| object.plus(bytes).expect("an address");
        let (mut whole, mut past) = ([0; 9], [0; 9]);
        let ends = client.batch(&mut [
            Call::Read { pointer: object, bytes: &mut whole },
            Call::Read { pointer: at(1), bytes: &mut past },
            Call::FetchAdd { pointer: at(4), addend: 1 },
            Call::Delete { pointer: at(5) },
            Call::WriteWhole { pointer: object, bytes: &[0; 70_000] },
            Call::Write { pointer: object, bytes: &[] },
            Call::Inquire { pointer: at(8) },
            Call::Inquire { pointer: at(9) },
        ]);
        let refusal = |number: usize| match &ends[number] {
            Err(RemoteError::Refused { status, .. }) => *status,
            other => panic!("{number}: {other:?}"),
        };
        assert_eq!([1, 2, 3, 7].map(refusal), [Status::Bounds, Status::Malformed, Status::Bounds, Status::Bounds]);
        assert!(matches!(ends[4], Err(RemoteError::TooLong { bytes: 70_000, .. })), "{:?}", ends[4]);
        assert!(matches!((&ends[0], &ends[5]), (Ok(Outcome::Done), Ok(Outcome::Done))), "{ends:?}");
        assert!(matches!(ends[6], Ok(Outcome::Found { pointer, bytes: 9 }) if pointer == object), "{:?}", ends[6]);
        assert_eq!(&whole, b"some text");
        assert!(client.batch(&mut []).is_empty());
        server.stop();
    });
}

#[test]
fn a_batch_is_as_long_as_one_likes() {
    in_own_network("a_batch_is_as_long_as_one_likes", &ALONE, || {
        let server = start(None);
        let mut client = client(9);
        let text: Vec<u8> = (0..200_000_u32).map(|at| (at >> 4) as u8).collect();
        // More than one request has, one request of several datagrams, one datagram.
        let ends = client.batch(&mut [
            Call::Create { home: SERVER, bytes: 300_000 },
            Call::CreateWith { home: SERVER, bytes: &text },
            Call::CreateWith { home: SERVER, bytes: &text[..30_000] },
            Call::CreateWith { home: SERVER, bytes: &text[..9] },
        ]);
        let objects: Vec<Pointer> = ends.iter().map(made).collect();
        let there = |object: usize, at: u64| objects[object].plus(at).expect("an address");
        let (mut long, mut short) = (vec![0; 200_000], [0; 9]);
        let mut calls = vec![
            Call::Read { pointer: there(1, 0), bytes: &mut long },
            Call::Read { pointer: there(3, 0), bytes: &mut short },
            Call::Write { pointer: there(2, 0), bytes: &text[100..10_100] },
            Call::WriteWhole { pointer: there(2, 12_000), bytes: &text[..12_000] },
            Call::CompareSwap { pointer: there(0, 0), expected: 5, new: 6 },
            Call::CompareSwap { pointer: there(0, 8), expected: 0, new: 6 },
        ];
        // More additions than a server remembers at a time, each to a word of its own and to one that all share.
        let others = calls.len();
        for number in 0..100 {
            calls.push(Call::FetchAdd { pointer: there(0, 99_840 + 8 * number), addend: number });
            calls.push(Call::FetchAdd { pointer: there(0, 200_000), addend: 1 });
        }
        let ends: Vec<Outcome> = client.batch(&mut calls).into_iter().map(good).collect();
        assert_eq!(ends[..others], [[Outcome::Done; 4].as_slice(), &[Outcome::Before(0); 2]].concat());
        let mut before: Vec<u64> = ends[others..]
            .iter()
            .skip(1)
            .step_by(2)
            .map(|end| match end {
                Outcome::Before(value) => *value,
                other => panic!("{other:?}"),
            })
            .collect();
        before.sort_unstable();
        assert_eq!(before, (0..100).collect::<Vec<u64>>(), "each addition is done once");
        assert!(long == text && short == text[..9]);
        let mut both = vec![0; 30_000];
        good(client.read(objects[2], &mut both));
        assert!(both[..10_000] == text[100..10_100] && both[12_000..24_000] == text[..12_000]);
        let mut words = [0; 800];
        good(client.read(there(0, 99_840), &mut words));
        let words: Vec<u64> = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!(words, (0..100).collect::<Vec<u64>>());
        let mut pair = [1; 16];
        good(client.read(objects[0], &mut pair));
        assert_eq!(pair, [0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        let mut calls: Vec<Call<'_>> = objects.iter().map(|pointer| Call::Delete { pointer: *pointer }).collect();
        assert!(client.batch(&mut calls).iter().all(|end| matches!(end, Ok(Outcome::Done))));
        let statistics = server.stop().statistics();
        assert_eq!((statistics.objects, statistics.pages_used), (0, 0));
    });
}

#[test]
fn a_client_says_which_server_is_silent() {
    in_own_network("a_client_says_which_server_is_silent", &ALONE, || {
        let options = ClientOptions { deadline: Duration::from_millis(50), ..ClientOptions::new(prefix(Host(9))) };
        let error = good(Client::open(options)).hello(Host(3)).expect_err("there is none").to_string();
        assert!(error.starts_with("the host fd01:203:3::/48 did not answer within 0.0"), "{error}");
    });
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_sent() {
    let error = Server::open(ServerOptions::new(prefix(SERVER), 5_000)).err().expect("that is not a page").to_string();
    assert_eq!(error, "a memory of 5000 bytes is not a whole number of pages of 4096 bytes; the next one is 8192");
    let options = ClientOptions { piece_bytes: 100, ..ClientOptions::new(prefix(Host(9))) };
    let error = Client::open(options).err().expect("it is not a power of two").to_string();
    assert!(error.contains("give a power of two from 64 to 32768"), "{error}");
    let error = RemoteError::Refused {
        command: Command::Read,
        pointer: "fd01:203:7:0:1::1000".parse().expect("it is a pointer"),
        status: Status::Bounds,
    };
    assert!(error.to_string().starts_with("READ of fd01:203:7:0:1::1000 was refused: there is no object"), "{error}");
}
