//! Memory servers and their clients over real sockets, in networks of their own.

#[path = "../../trellis-transport/tests/support/network.rs"]
mod network;

use std::thread::JoinHandle;
use std::time::Duration;

use network::{ALONE, in_own_network};
use trellis::remote::{
    Client, ClientOptions, Host, HostPrefix, PORT, Pointer, RemoteError, Server, ServerOptions, Stop,
};
use trellis_protocol::wire::command::Command;
use trellis_protocol::wire::datagram::{Status, TagKind};

const MEMORY_BYTES: u64 = 64 << 20;
const SERVER: Host = Host(7);

struct Running {
    stop: Stop,
    thread: Option<JoinHandle<Server>>,
}

impl Running {
    fn start(host: Host, quota_bytes: Option<u64>) -> Running {
        let prefix = prefix(host);
        let options =
            ServerOptions { prefix, memory_bytes: MEMORY_BYTES, quota_bytes, port: PORT, least: TagKind::Checksum };
        let mut server = Server::open(options).unwrap_or_else(|error| panic!("{error}"));
        let stop = Stop::default();
        let stops = stop.clone();
        let thread = std::thread::spawn(move || {
            server.serve(&stops).unwrap_or_else(|error| panic!("{error}"));
            server
        });
        Running { stop, thread: Some(thread) }
    }

    fn stop(mut self) -> Server {
        self.stop.stop();
        self.thread.take().expect("it runs").join().expect("it ended well")
    }
}

fn prefix(host: Host) -> HostPrefix {
    format!("fd01:203:{:x}::/48", host.0).parse().expect("it is a prefix")
}

fn client(host: u16) -> Client {
    let options = ClientOptions { deadline: Duration::from_secs(30), ..ClientOptions::new(prefix(Host(host))) };
    Client::open(options).unwrap_or_else(|error| panic!("{error}"))
}

fn good<T>(result: Result<T, RemoteError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
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
        let server = Running::start(SERVER, None);
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
        let server = Running::start(SERVER, None);
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
        let server = Running::start(SERVER, None);
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
        let server = Running::start(SERVER, Some(1 << 20));
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
        let server = Running::start(SERVER, None);
        let mut client = client(9);
        let before = good(client.create_with(SERVER, b"before"));
        server.stop();
        let server = Running::start(SERVER, None);
        // One in 65,536 lives begins with the generation that the one before had.
        let mut bytes = [0; 6];
        assert!(matches!(status(client.read(before, &mut bytes)), Status::Bounds | Status::Stale));
        // The session is gone, too: nobody knows whether this was done before.
        assert_eq!(status(client.create(SERVER, 1)), Status::Fenced);
        let after = good(client.create_with(SERVER, b"after!"));
        good(client.read(after, &mut bytes));
        assert_eq!(&bytes, b"after!");
        server.stop();
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
    let options = ServerOptions {
        prefix: prefix(SERVER),
        memory_bytes: 5_000,
        quota_bytes: None,
        port: 0,
        least: TagKind::Checksum,
    };
    let error = Server::open(options).err().expect("that is no page").to_string();
    assert_eq!(error, "a memory of 5000 bytes is no whole number of pages of 4096 bytes; the next one is 8192");
    let options = ClientOptions { piece_bytes: 100, ..ClientOptions::new(prefix(Host(9))) };
    let error = Client::open(options).err().expect("it is no power of two").to_string();
    assert!(error.contains("give a power of two from 64 to 32768"), "{error}");
    let error = RemoteError::Refused {
        command: Command::Read,
        pointer: "fd01:203:7:0:1::1000".parse().expect("it is a pointer"),
        status: Status::Bounds,
    };
    assert!(error.to_string().starts_with("READ of fd01:203:7:0:1::1000 was refused: there is no object"), "{error}");
}
