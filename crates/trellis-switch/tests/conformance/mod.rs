//! One test suite for every switch, on real namespaces.
//!
//! `run(name)` makes a lab of three clients and three servers for every case, and small hosts in it: each listens on port
//! 5000 and sends from any address. That nothing arrives is shown by what is sent after it from the same place, which
//! arrives first, and by the counters.

#![allow(dead_code, reason = "each test program uses its part")]

mod leases;
mod page_routes;
mod paths;
mod tables;

use std::collections::HashMap;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use trellis_switch::control::{At, Remote};
use trellis_switch::lab::{Host, Lab, Plan, space};
use trellis_switch::{Cluster, Counters, PAGE_ROUTES_MAX, Page, PageRange, Switch};

/// Longer than any operation here takes.
const TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const PORT: u16 = 5000;
/// The capacity for redirects.
pub(crate) const REDIRECTS: u32 = 512;
/// A term that does not end while a test runs.
const HOUR: Option<Duration> = Some(Duration::from_secs(3600));

pub(crate) const READ: u8 = 0x01;
pub(crate) const WRITE: u8 = 0x10;
pub(crate) const COMMIT: u8 = 0x13;
pub(crate) const CREATE: u8 = 0x20;
pub(crate) const UPDATE: u8 = 0x30;
pub(crate) const RENEW: u8 = 0x31;
pub(crate) const RELEASE: u8 = 0x32;
pub(crate) const INQUIRE: u8 = 0x23;
pub(crate) const HELLO: u8 = 0x40;
pub(crate) const PING: u8 = 0x41;
pub(crate) const INVALIDATE: u8 = 0x43;
pub(crate) const CLONE: u8 = 0x44;
pub(crate) const INVALIDATED: u8 = 0x45;
pub(crate) const DIRECT: u8 = 0x10;
/// Flags of a header.
pub(crate) const ANSWER: u8 = 0x20;
pub(crate) const GIVES_BACK: u8 = 0x40;

pub(crate) type Case = (&'static str, fn(&mut Context));

/// The environment of a case.
pub(crate) struct Context {
    pub(crate) lab: Lab,
    /// The switch over a socket, if that is tested.
    remote: Option<Remote>,
    inboxes: HashMap<String, UdpSocket>,
    sent: u64,
}

/// The number of cases at the same time: most of a case is waiting until the switch has taken effect.
const AT_ONCE: usize = 3;

/// Ranges every case, and fails with the names of the failed ones.
pub(crate) fn run(name: &str) {
    run_prepared(name, &|_| ());
}

/// Like `run`, after a preparation of each case's lab.
pub(crate) fn run_prepared(name: &str, prepare: &(dyn Fn(&mut Context) + Sync)) {
    let cases: Vec<Case> = [paths::CASES, tables::CASES, leases::CASES, page_routes::CASES].concat();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((case, body)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    println!("{name}: {case}");
                    let passes = catch_unwind(AssertUnwindSafe(|| {
                        let mut context = Context::new(name, case);
                        prepare(&mut context);
                        body(&mut context);
                    }));
                    if passes.is_err() {
                        failed.lock().unwrap().push(*case);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{name} fails {failed:?}");
}

/// Fills the table of page ranges, which would take other switches long.
pub(crate) fn fills_with_runs(name: &str) {
    let mut context = Context::new(name, "full of ranges");
    let (home, others) = (context.host("s1").plan().number, context.host("s2").plan().number);
    let (s2, s3) = (context.port("s2"), context.port("s3"));
    // None is adjacent to another, and half belong to another home.
    let range = |number: u32| {
        let of = if number.is_multiple_of(2) { home } else { others };
        PageRange::new(of, u64::from(number) * 2, 0).unwrap()
    };
    let full = (0..=PAGE_ROUTES_MAX)
        .find_map(|number| Some(number).zip(context.switch().set_page_route(range(number), s3).err()));
    let (number, error) = full.unwrap();
    assert_eq!((number, error.is_full()), (PAGE_ROUTES_MAX, true));
    assert!(error.to_string().contains("the table of page routes has 65536 entries"), "{error}");
    assert_eq!(context.switch().page_routes(home).unwrap().len(), PAGE_ROUTES_MAX as usize / 2);
    context.goes("c1", context.pointer("s1", READ, 8), "s3");
    context.goes("c1", context.pointer("s1", READ, 2 * u64::from(PAGE_ROUTES_MAX)), "s1");
    context.switch().set_page_route(range(4), s2).unwrap();
    context.goes("c1", context.pointer("s1", READ, 8), "s2");
    assert!(context.switch().drop_page_route(range(7)).unwrap());
    context.switch().set_page_route(range(PAGE_ROUTES_MAX), s2).unwrap();
    context.goes("c1", context.pointer("s1", READ, 2 * u64::from(PAGE_ROUTES_MAX)), "s2");
    context.goes("c1", context.pointer("s2", READ, 14), "s2");
}

/// Whether this process may make labs; prints if it may not.
pub(crate) fn is_possible(test: &str) -> bool {
    let may = space::is_root();
    if !may {
        trellis_testing::skip(test, trellis_testing::Need::Root, "network namespaces take root here");
    }
    may
}

/// Set in a test that runs itself again in a user namespace.
const INSIDE: &str = "TRELLIS_TEST_INSIDE_A_USER_NAMESPACE";

/// Ranges a test in a user namespace, without privileges over the machine; prints if it may not.
pub(crate) fn without_rights(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let possible = Command::new("unshare").args(["--user", "--map-root-user", "--net", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        return trellis_testing::skip(
            test,
            trellis_testing::Need::Namespaces,
            "this machine lets nobody make a user namespace",
        );
    }
    let own = std::env::current_exe().unwrap();
    let mut again = Command::new("unshare");
    again.args(["--user", "--map-root-user", "--net", "--mount"]).arg(own).args(["--exact", test, "--nocapture"]);
    let output = again.env(INSIDE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// A lab of this process. `bpf at xdp` is that switch attached in that way.
pub(crate) fn lab(switch: &str, name: &str, clients: u16, servers: u16) -> Lab {
    let (switch, place) = switch.split_once(" at ").unwrap_or((switch, "auto"));
    let plan = Plan {
        name: name.to_owned(),
        clients,
        servers,
        switch: switch.to_owned(),
        mtu_bytes: 9000,
        redirects_max: REDIRECTS,
        attach: place.parse().unwrap(),
    };
    Lab::up(&plan).unwrap_or_else(|error| panic!("{error}"))
}

/// The header of a home's answer.
pub(crate) fn header(status: u8, request: u64, epoch: u64) -> Vec<u8> {
    with_flags(status, ANSWER, request, epoch)
}

/// The header of a datagram.
pub(crate) fn with_flags(status: u8, flags: u8, request: u64, epoch: u64) -> Vec<u8> {
    let mut header = vec![1, status, flags, 0, 0, 0, 0, 0];
    header.extend_from_slice(&request.to_le_bytes());
    header.extend_from_slice(&epoch.to_le_bytes());
    header.extend_from_slice(&[0; 8]);
    header
}

impl Context {
    pub(crate) fn new(switch: &str, case: &str) -> Context {
        let name: String = case.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
        let lab = lab(switch, &name, 3, 3);
        let inbox = |host: &Host| {
            let inbox = host.socket(Ipv6Addr::UNSPECIFIED, PORT).unwrap();
            inbox.set_read_timeout(Some(TIMEOUT)).unwrap();
            (host.plan().name.clone(), inbox)
        };
        let inboxes = lab.hosts().iter().map(inbox).collect();
        Context { lab, remote: None, inboxes, sent: 0 }
    }

    pub(crate) fn switch(&self) -> &dyn Switch {
        self.remote.as_ref().map_or(self.lab.switch(), |remote| remote)
    }

    /// From now on the switch is used over a socket.
    pub(crate) fn tell_over_a_socket(&mut self) {
        let (mine, its) = UnixStream::pair().unwrap();
        self.lab.control().serve(its).unwrap();
        self.remote = Some(Remote::open(At::Given(mine.into())).unwrap());
    }

    pub(crate) fn cluster(&self) -> Cluster {
        self.lab.cluster()
    }

    pub(crate) fn host(&self, name: &str) -> &Host {
        self.lab.host(name).unwrap()
    }

    pub(crate) fn port(&self, name: &str) -> u16 {
        self.host(name).plan().port
    }

    pub(crate) fn counters(&self, name: &str) -> Counters {
        self.switch().counters(self.port(name)).unwrap()
    }

    /// The hot pages and the number of requests for each.
    pub(crate) fn hot_pages(&self, count: usize) -> Vec<(Page, u64)> {
        self.switch().hot_pages(count).unwrap().into_iter().map(|hot| (hot.page, hot.requests)).collect()
    }

    /// A page of a server.
    pub(crate) fn page(&self, server: &str, number: u64) -> Page {
        Page { home: self.host(server).plan().number, number }
    }

    /// A pointer: a command for a place in a server's memory.
    pub(crate) fn pointer(&self, server: &str, command: u8, page: u64) -> Ipv6Addr {
        self.with_arguments(server, command, 0, page)
    }

    pub(crate) fn with_arguments(&self, server: &str, command: u8, arguments: u8, page: u64) -> Ipv6Addr {
        let generation = 7_u64 << 48;
        self.cluster().address(self.host(server).plan().number, command, arguments, generation | page << 12 | 0x123)
    }

    /// The source address of a host's request.
    pub(crate) fn request(&self, client: &str, number: u64) -> Ipv6Addr {
        self.cluster().address(self.host(client).plan().number, 0xb0, 0x31, number)
    }

    /// Sends a datagram from a host, from any address.
    pub(crate) fn send(&self, from: &str, source: Ipv6Addr, destination: Ipv6Addr, payload: &[u8]) {
        if !self.switch().capabilities().learns_at_once {
            // When this returns, the switch has evaluated what was sent before.
            self.switch().redirect(Page::of(destination)).unwrap();
        }
        let socket = self.host(from).socket(source, 0).unwrap();
        socket.send_to(payload, (destination, PORT)).unwrap();
    }

    /// What arrives next at a host, and its source address.
    pub(crate) fn receive(&self, at: &str) -> (Vec<u8>, Ipv6Addr) {
        let mut buffer = vec![0; 65_536];
        let (bytes, from) =
            self.inboxes[at].recv_from(&mut buffer).unwrap_or_else(|error| panic!("nothing arrives at {at}: {error}"));
        buffer.truncate(bytes);
        match from {
            SocketAddr::V6(from) => (buffer, *from.ip()),
            SocketAddr::V4(from) => panic!("{from} is not an address of ours"),
        }
    }

    /// Sends a client's request for a page, and checks at which host it arrives.
    pub(crate) fn goes(&mut self, from: &str, destination: Ipv6Addr, to: &str) {
        self.sent += 1;
        let (source, payload) = (self.request(from, self.sent), format!("{from} {}", self.sent).into_bytes());
        self.send(from, source, destination, &payload);
        assert_eq!(self.receive(to), (payload, source), "from {from} for {destination} to {to}");
    }

    /// Sends an answer from a pointer to a client's request, and checks that it arrives.
    pub(crate) fn answers(&mut self, from: &str, pointer: Ipv6Addr, to: &str, number: u64, payload: &[u8]) {
        let destination = self.request(to, number);
        self.send(from, pointer, destination, payload);
        assert_eq!(self.receive(to), (payload.to_vec(), pointer), "from {from} as {pointer} to {to}");
        if !self.switch().capabilities().learns_at_once {
            // When this returns, the switch has evaluated the answer.
            self.switch().redirect(Page::of(pointer)).unwrap();
        }
    }

    /// Waits until a condition holds.
    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn(&Context) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "in vain: {what}");
            std::thread::yield_now();
        }
    }

    /// Shows that nothing that `from` sent before has arrived at `to`.
    pub(crate) fn nothing_came(&mut self, from: &str, to: &str) {
        self.sent += 1;
        let marker = format!("marker {}", self.sent).into_bytes();
        let number = self.host(to).plan().number;
        let destination = self.cluster().address(number, PING, DIRECT, self.sent);
        let source = self.host(from).plan().address;
        self.send(from, source, destination, &marker);
        assert_eq!(self.receive(to), (marker, source), "something came from {from} to {to}");
    }
}
