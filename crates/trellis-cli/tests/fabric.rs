//! Failures of a fabric on purpose: forged and broken datagrams, wrong redirects, hosts that die, switches that
//! forget, partitions. Each test has a lab of its own, made without root rights.

#[path = "support/fabric.rs"]
mod inside;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inside::{LONG, good, in_a_lab, in_a_lab_of, status};
use trellis::remote::leased::{Bytes, Events};
use trellis::remote::{Client, Host, HostPrefix, PORT, Pointer, Server, ServerOptions, Stop};
use trellis_fabric_protocol::wire::datagram::Status;
use trellis_switch::lab::Lab;
use trellis_switch::{Classes, Counters, Page, Prefix, Redirect, Route, Rule};

/// How long leases last.
const TERM: Duration = Duration::from_millis(400);

/// Hosts, a switch, and servers in some of the hosts.
struct Fabric {
    lab: Lab,
    servers: BTreeMap<String, Running>,
}

struct Running {
    stop: Stop,
    said: Arc<Mutex<Vec<String>>>,
    thread: JoinHandle<Server>,
}

/// Runs a test with two clients and two servers.
fn in_a_fabric(test: &str, body: impl FnOnce(Fabric)) {
    in_a_lab(test, 2, 2, |lab| body(Fabric { lab, servers: BTreeMap::new() }));
}

impl Fabric {
    fn prefix(&self, host: &str) -> HostPrefix {
        inside::prefix(&self.lab, host)
    }

    fn number(&self, host: &str) -> Host {
        self.prefix(host).host
    }

    /// Starts a memory server in a host.
    fn serve(&mut self, host: &str) {
        let options = ServerOptions { lease_term: TERM, ..ServerOptions::new(self.prefix(host), 16 << 20) };
        let mut server = good(self.lab.host(host).unwrap().run(|| Server::open(options)).unwrap());
        let said = Arc::new(Mutex::new(Vec::new()));
        let says = Arc::clone(&said);
        server.on_event(move |event| says.lock().unwrap().push(event.to_string()));
        let stop = Stop::default();
        let stops = stop.clone();
        let thread = std::thread::spawn(move || {
            good(server.serve(&stops));
            server
        });
        self.servers.insert(host.to_owned(), Running { stop, said, thread });
    }

    /// Ends a server; its memory is gone.
    fn end(&mut self, host: &str) -> Server {
        let Running { stop, thread, .. } = self.servers.remove(host).expect("it runs");
        stop.stop();
        thread.join().expect("it ended well")
    }

    fn client_for(&self, host: &str, deadline: Duration) -> Client {
        inside::client(&self.lab, host, deadline)
    }

    fn client(&self, host: &str) -> Client {
        self.client_for(host, LONG)
    }

    fn counters(&self, host: &str) -> Counters {
        self.lab.switch().counters(self.lab.host(host).unwrap().plan().port).unwrap()
    }

    /// Redirects requests for a page of a server to another host.
    fn redirect(&self, pointer: Pointer, to: &str) {
        let page = Page { home: pointer.home().0, number: pointer.page() };
        let redirect = Redirect { port: self.lab.host(to).unwrap().plan().port, epoch: 1, until: None };
        assert!(self.lab.switch().set_redirect(page, redirect).unwrap());
    }

    /// The address of a request that no client of a host makes.
    fn request(&self, host: &str, number: u64) -> Ipv6Addr {
        self.lab.cluster().address(self.number(host).0, 0x80, 1, number)
    }

    /// Sends a datagram from a host as a new request. Returns the status of the answer, if one comes before that of a
    /// valid request.
    fn say(&self, host: &str, number: u64, to: Ipv6Addr, payload: &[u8]) -> Option<Status> {
        let from = self.request(host, number);
        let socket = self.lab.host(host).unwrap().socket(from, 0).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket.send_to(payload, (to, PORT)).unwrap();
        // The server answers in order: when it has answered this one, it has answered the one before, if it ever
        // does.
        let ping = self.lab.cluster().address(self.number("s1").0, 0x41, 0, 0);
        socket.send_to(&sealed(from, ping, number, &[]), (ping, PORT)).unwrap();
        let mut answer = vec![0; 65_536];
        let (bytes, whom) = socket.recv_from(&mut answer).expect("the sound one is answered");
        let status = Status::from_byte(answer[1]).expect("a status");
        assert!(bytes >= 32 && answer[0] == 1);
        if whom.ip() == ping { None } else { Some(status) }
    }
}

/// A header without a tag: flags, length, request id.
fn header(flags: u16, length: u32, number: u64) -> Vec<u8> {
    let mut header = vec![1, 0];
    header.extend_from_slice(&flags.to_le_bytes());
    header.extend_from_slice(&length.to_le_bytes());
    header.extend_from_slice(&number.to_le_bytes());
    header.extend_from_slice(&[0; 16]);
    header
}

/// A valid request.
fn sealed(from: Ipv6Addr, to: Ipv6Addr, number: u64, data: &[u8]) -> Vec<u8> {
    use trellis_fabric_protocol::wire::address::Address;
    use trellis_fabric_protocol::wire::datagram::{Checksums, seal};
    let mut sealed: [u8; 32] = header(1, data.len() as u32, number).try_into().expect("as long as a header");
    assert!(seal(&mut sealed, Address(from.octets()), Address(to.octets()), [data, &[]], &Checksums));
    [&sealed, data].concat()
}

#[test]
fn a_forged_source_reaches_nobody() {
    in_a_fabric("a_forged_source_reaches_nobody", |mut fabric| {
        fabric.serve("s1");
        let mut client = fabric.client("c2");
        let object = good(client.create_with(fabric.number("s1"), b"private"));
        // Not what leaves the server: it may answer a request of its client that was sent again.
        let passed = |fabric: &Fabric| {
            let counters = fabric.counters("c1");
            counters.delivered + counters.redirected
        };
        let before = passed(&fabric);
        let forged = fabric.lab.cluster().address(fabric.number("c2").0, 0x80, 1, 77);
        let socket = fabric.lab.host("c1").unwrap().socket(forged, 0).unwrap();
        let pointer = fabric.lab.cluster().address(object.home().0, 0x01, 3, u64::from(object.generation()) << 48);
        for _ in 0..5 {
            socket.send_to(&[], (pointer, PORT)).unwrap();
        }
        let deadline = Instant::now() + LONG;
        while fabric.counters("c1").forged < 5 {
            assert!(Instant::now() < deadline, "{:?}", fabric.counters("c1"));
            std::thread::yield_now();
        }
        assert_eq!(passed(&fabric), before);
        fabric.end("s1");
    });
}

#[test]
fn what_is_no_request_is_refused_and_the_server_goes_on() {
    in_a_fabric("what_is_no_request_is_refused_and_the_server_goes_on", |mut fabric| {
        fabric.serve("s1");
        let mut client = fabric.client("c2");
        let object = good(client.create_with(fabric.number("s1"), &[7; 64]));
        let at = |command: u8, arguments: u8| {
            let low = u64::from(object.generation()) << 48 | object.offset();
            fabric.lab.cluster().address(object.home().0, command, arguments, low)
        };
        let long = sealed(fabric.request("c1", 6), at(0x10, 0), 6, &[0; 40_000]);
        let other = sealed(fabric.request("c1", 8), at(0x10, 0), 9, &[0; 8]);
        let write = |number: u64, length: u32| [header(1, length, number), vec![0; 8]].concat();
        let cases = [
            ("a wrong tag", 1, at(0x10, 0), write(1, 8), Some(Status::BadTag)),
            ("a command that there is not", 2, at(0x1f, 0), write(2, 8), Some(Status::UnknownCommand)),
            ("half a header", 3, at(0x10, 0), header(1, 0, 3)[..20].to_vec(), Some(Status::Malformed)),
            ("more announced than there is", 4, at(0x10, 0), write(4, 80), Some(Status::Malformed)),
            ("another version", 5, at(0x10, 0), [vec![2], write(5, 8)[1..].to_vec()].concat(), Some(Status::Malformed)),
            ("too much for one datagram", 6, at(0x10, 0), long, Some(Status::Malformed)),
            ("an answer", 7, at(0x10, 0), [header(0x21, 8, 7), vec![0; 8]].concat(), None),
            ("another request's number", 8, at(0x10, 0), other, Some(Status::Malformed)),
            ("a read of more than can be", 9, at(0x01, 0x0f), vec![], Some(Status::Bounds)),
        ];
        for (what, number, to, payload, expected) in cases {
            assert_eq!(fabric.say("c1", number, to, &payload), expected, "{what}");
        }
        let mut bytes = [0; 64];
        good(client.read(object, &mut bytes));
        assert_eq!(bytes, [7; 64], "nothing of that was written");
        let said = Arc::clone(&fabric.servers["s1"].said);
        let server = fabric.end("s1");
        assert!(server.refused() >= 7, "{}", server.refused());
        let said = said.lock().unwrap();
        for part in ["datagram version 2", "its tag is wrong", "look which program sends it"] {
            let times = said
                .iter()
                .filter(|line| line.contains(part) && line.contains(&fabric.prefix("c1").to_string()))
                .count();
            assert!(times >= 1, "{part}: {said:?}");
        }
    });
}

#[test]
fn anywhere_is_the_server_that_the_switch_chooses() {
    in_a_fabric("anywhere_is_the_server_that_the_switch_chooses", |mut fabric| {
        fabric.serve("s1");
        fabric.serve("s2");
        let mut client = fabric.client("c1");
        assert_eq!(good(client.create(Host::ANYWHERE, 8)).home(), fabric.number("s1"));
        let port = fabric.lab.host("s2").unwrap().plan().port;
        let anywhere = Prefix::host(fabric.lab.cluster(), 0);
        fabric.lab.switch().set_prefix(anywhere, Route { port, is_memory: true }).unwrap();
        let object = good(client.create_with(Host::ANYWHERE, b"here"));
        assert_eq!(object.home(), fabric.number("s2"));
        good(client.delete(object));
        fabric.end("s1");
        fabric.end("s2");
    });
}

#[test]
fn a_pointer_reaches_its_object_only() {
    in_a_fabric("a_pointer_reaches_its_object_only", |mut fabric| {
        fabric.serve("s1");
        let mut client = fabric.client("c1");
        let object = good(client.create_with(fabric.number("s1"), &[1; 100]));
        let mut bytes = [0; 100];
        let past = object.plus(1).expect("it is in the memory");
        assert_eq!(status(client.read(past, &mut bytes)), Status::Bounds);
        assert_eq!(status(client.write(past, &bytes)), Status::Bounds);
        good(client.delete(object));
        assert_eq!(status(client.read(object, &mut bytes)), Status::Stale);
        let other = good(client.create_with(fabric.number("s1"), &[2; 100]));
        assert_eq!((other.offset(), other.generation() == object.generation()), (object.offset(), false));
        assert_eq!(status(client.write(object, &bytes)), Status::Stale);
        fabric.end("s1");
    });
}

#[test]
fn a_wrong_redirect_costs_time_and_nothing_else() {
    in_a_fabric("a_wrong_redirect_costs_time_and_nothing_else", |mut fabric| {
        fabric.serve("s1");
        fabric.serve("s2");
        let mut client = fabric.client("c1");
        for to in ["c2", "s2"] {
            let object = good(client.create(fabric.number("s1"), 4096));
            // At c2 nobody listens; s2 is another server.
            fabric.redirect(object, to);
            for round in 1..=5_u64 {
                assert_eq!(good(client.fetch_add(object, 1)), round - 1, "by way of {to}");
                let mut bytes = [0; 8];
                good(client.read(object, &mut bytes));
                assert_eq!(u64::from_le_bytes(bytes), round, "by way of {to}");
            }
        }
        assert!(fabric.counters("c1").redirected > 0);
        fabric.end("s1");
        fabric.end("s2");
    });
}

#[test]
fn a_server_that_died_is_named() {
    in_a_fabric("a_server_that_died_is_named", |mut fabric| {
        fabric.serve("s1");
        fabric.serve("s2");
        let (mut client, mut hasty) = (fabric.client("c1"), fabric.client_for("c1", Duration::from_secs(1)));
        let (first, second) = (fabric.number("s1"), fabric.number("s2"));
        let (gone, kept) = (good(client.create(first, 8)), good(client.create(second, 8)));
        fabric.end("s1");
        let sentence = hasty.read(gone, &mut [0; 8]).expect_err("nobody is there").to_string();
        assert!(sentence.contains("1001"), "{sentence}");
        assert_eq!(good(client.fetch_add(kept, 5)), 0, "the other one is well");
        fabric.serve("s1");
        // One generation in 65,536 is the same by chance; then there is no object at that place yet.
        let lost = status(client.read(gone, &mut [0; 8]));
        assert!(matches!(lost, Status::Stale | Status::Bounds), "{lost:?}");
        fabric.end("s1");
        fabric.end("s2");
    });
}

#[test]
fn a_partition_ends_and_so_do_the_calls_that_waited_for_it() {
    in_a_fabric("a_partition_ends_and_so_do_the_calls_that_waited_for_it", |mut fabric| {
        fabric.serve("s1");
        let server = fabric.number("s1");
        let (mut cut, mut hasty) = (fabric.client("c1"), fabric.client_for("c1", Duration::from_secs(1)));
        let mut other = fabric.client("c2");
        let (mine, its) = (good(cut.create(server, 8)), good(other.create(server, 8)));
        fabric.lab.partition(&[vec!["c1".to_owned()]]).unwrap();
        let sentence = hasty.read(mine, &mut [0; 8]).expect_err("it is cut off").to_string();
        assert!(sentence.contains("1001"), "{sentence}");
        assert_eq!(good(other.fetch_add(its, 1)), 0);
        fabric.lab.partition(&[]).unwrap();
        good(cut.read(mine, &mut [0; 8]));
        assert!(fabric.counters("c1").partitioned > 0);
        fabric.end("s1");
    });
}

/// A switch that forgets everything, under load, loses nothing.
fn forgets_everything(mut fabric: Fabric) {
    fabric.serve("s1");
    let mut client = fabric.client("c1");
    let counter = good(client.create(fabric.number("s1"), 8));
    let (done, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (counts, ends) = (Arc::clone(&done), Arc::clone(&is_over));
    let adding = std::thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            let before = counts.load(Ordering::Relaxed);
            assert_eq!(good(client.fetch_add(counter, 1)), before, "each addition is done once");
            counts.store(before + 1, Ordering::Relaxed);
        }
    });
    // An addition is awaited between the changes to the switch, so that none of them comes after the last one.
    for _ in 0..4 {
        let before = done.load(Ordering::Relaxed);
        fabric.redirect(counter, "c2");
        fabric.lab.restart_switch().unwrap();
        while done.load(Ordering::Relaxed) < before + 20 {
            assert!(!adding.is_finished(), "an addition failed");
            std::thread::yield_now();
        }
    }
    is_over.store(true, Ordering::Relaxed);
    adding.join().expect("each addition is done once");
    let mut bytes = [0; 8];
    good(fabric.client("c2").read(counter, &mut bytes));
    assert_eq!(u64::from_le_bytes(bytes), done.load(Ordering::Relaxed));
    fabric.end("s1");
}

#[test]
fn a_switch_that_forgets_everything_loses_nothing() {
    in_a_fabric("a_switch_that_forgets_everything_loses_nothing", forgets_everything);
}

#[test]
fn the_kernels_switch_that_forgets_everything_loses_nothing() {
    let test = "the_kernels_switch_that_forgets_everything_loses_nothing";
    in_a_lab_of("nft", test, 2, 2, |lab| forgets_everything(Fabric { lab, servers: BTreeMap::new() }));
}

#[cfg(feature = "openflow")]
#[test]
fn open_vswitch_that_forgets_everything_loses_nothing() {
    let test = "open_vswitch_that_forgets_everything_loses_nothing";
    inside::in_a_lab_of_root("openflow", test, 2, 2, |lab| {
        forgets_everything(Fabric { lab, servers: BTreeMap::new() })
    });
}

#[cfg(feature = "bpf")]
#[test]
fn a_program_that_forgets_everything_loses_nothing() {
    let test = "a_program_that_forgets_everything_loses_nothing";
    inside::in_a_lab_of_root("bpf", test, 2, 2, |lab| forgets_everything(Fabric { lab, servers: BTreeMap::new() }));
}

#[test]
fn who_may_not_ask_is_told_where_to_look() {
    in_a_fabric("who_may_not_ask_is_told_where_to_look", |mut fabric| {
        fabric.serve("s1");
        let server = fabric.number("s1");
        let (mut client, mut hasty) = (fabric.client("c1"), fabric.client_for("c1", Duration::from_secs(1)));
        let counter = good(client.create(server, 8));
        let may_read = Rule { client: None, home: None, classes: Classes::READING };
        fabric.lab.switch().set_rules(Some(&[may_read])).unwrap();
        good(client.read(counter, &mut [0; 8]));
        let before = fabric.counters("c1").denied;
        let sentence = hasty.fetch_add(counter, 1).expect_err("it may only read").to_string();
        assert!(sentence.contains("1001") && sentence.contains("the switch's routes and rules"), "{sentence}");
        assert!(fabric.counters("c1").denied > before);
        // What was denied was not done.
        fabric.lab.switch().set_rules(None).unwrap();
        assert_eq!(good(client.fetch_add(counter, 1)), 0);
        fabric.end("s1");
    });
}

/// The events of a process's pages.
#[derive(Default)]
struct EventLog(Mutex<Vec<&'static str>>);

impl Events for EventLog {
    fn invalidate(&self, _: u64) {
        self.0.lock().unwrap().push("invalidate");
    }

    fn recalled(&self, _: u64) {
        self.0.lock().unwrap().push("recalled");
    }

    fn lost(&self, _: u64) {
        self.0.lock().unwrap().push("lost");
    }
}

#[test]
fn who_is_cut_off_with_a_lease_loses_it_and_what_comes_late_is_refused() {
    in_a_fabric("who_is_cut_off_with_a_lease_loses_it_and_what_comes_late_is_refused", |mut fabric| {
        fabric.serve("s1");
        // The switch grants leases, too: it redirects requests to the holder.
        fabric.lab.switch().set_leases(Some(TERM)).unwrap();
        let object = good(fabric.client("c1").create(fabric.number("s1"), 4096));
        let open = |host: &str| {
            let heard = Arc::new(EventLog::default());
            (inside::leased(&fabric.lab, host, &[object], Arc::clone(&heard) as _), heard)
        };
        let ((first, heard), (second, _)) = (open("c1"), open("c2"));
        let mut put = |_: u64, bytes: Bytes<'_>| assert!(matches!(bytes, Bytes::New([0, ..])));
        good(first.update(&[0], false, &mut put));
        fabric.lab.partition(&[vec!["c1".to_owned()]]).unwrap();
        let deadline = Instant::now() + LONG;
        // The lease may also be lost if it cannot be renewed in time: then it is requested again, as programs do.
        loop {
            good(second.update(&[0], false, &mut put));
            if good(second.commit(&[(0, &[2; 4096])], true)).is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "its lease lasts for once");
        }
        while !heard.0.lock().unwrap().contains(&"lost") {
            assert!(Instant::now() < deadline, "it knows by its own clock, and is told");
            std::thread::yield_now();
        }
        fabric.lab.partition(&[]).unwrap();
        assert_eq!(good(first.commit(&[(0, &[1; 4096])], true)), [0], "too late");
        let mut bytes = [0; 4096];
        good(fabric.client("c2").read(object, &mut bytes));
        assert!(bytes == [2; 4096]);
        drop((first, second));
        fabric.end("s1");
    });
}
