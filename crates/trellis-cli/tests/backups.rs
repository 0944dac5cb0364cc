//! Ranges that a controller assigns, over real sockets in a lab: homes and backups die, restart without memory and
//! hand over, while clients commit, create and delete objects. The controller of these tests is the pure one behind a
//! socket.

#[path = "support/fabric.rs"]
mod inside;
#[path = "support/placing.rs"]
mod placing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use inside::{LONG, good, in_a_lab, leased, number, prefix, status};
use placing::{Directive, HOME_LEASE, Placing, TERM, pretend};
use trellis::remote::leased::{Bytes, Events, LeasedPages};
use trellis::remote::{Client, Event, Host, Pointer, RemoteError, Server, ServerOptions, Stop};
use trellis_fabric_protocol::lease::controller::Record;
use trellis_fabric_protocol::wire::datagram::Status;
use trellis_switch::lab::Lab;

const MEMORY_BYTES: u64 = 4 << 20;
const PAGE: usize = 4096;

/// A lab with a controller in host `c2`, and servers.
struct Fabric<'a> {
    lab: &'a Lab,
    placing: &'a Placing,
    servers: BTreeMap<String, Running>,
}

struct Running {
    stop: Stop,
    thread: JoinHandle<()>,
}

/// These tests ignore events of pages.
struct Deaf;

impl Events for Deaf {
    fn invalidate(&self, _: u64) {}
    fn recalled(&self, _: u64) {}
    fn lost(&self, _: u64) {}
}

fn in_a_fabric(test: &str, servers: u16, body: impl FnOnce(&mut Fabric<'_>)) {
    in_a_lab(test, 2, servers, |lab| {
        let placing = Placing::new(&lab, "c2");
        std::thread::scope(|scope| {
            let _ends = placing.ends_with();
            scope.spawn(|| placing.run(&lab));
            let mut fabric = Fabric { lab: &lab, placing: &placing, servers: BTreeMap::new() };
            body(&mut fabric);
            let running: Vec<String> = fabric.servers.keys().cloned().collect();
            running.iter().for_each(|host| fabric.end(host));
        });
    });
}

impl Fabric<'_> {
    fn number(&self, host: &str) -> u16 {
        number(self.lab, host).0
    }

    /// Starts a server in a host, with empty memory.
    fn serve(&mut self, host: &str) {
        let options = ServerOptions {
            lease_term: TERM,
            home_lease: HOME_LEASE,
            controllers: vec![Host(self.number("c2"))],
            backup_bytes: 4 * MEMORY_BYTES,
            ..ServerOptions::new(prefix(self.lab, host), MEMORY_BYTES)
        };
        let mut server = good(self.lab.host(host).unwrap().run(|| Server::open(options)).unwrap());
        let name = host.to_owned();
        server.on_event(move |event: &Event| println!("{name}: {event}"));
        let stop = Stop::default();
        let stops = stop.clone();
        let thread = std::thread::spawn(move || good(server.serve(&stops)));
        self.servers.insert(host.to_owned(), Running { stop, thread });
    }

    /// Ends a server; its memory is gone.
    fn end(&mut self, host: &str) {
        let Running { stop, thread } = self.servers.remove(host).expect("it runs");
        stop.stop();
        thread.join().expect("it ended well");
    }

    fn client(&self) -> Client {
        inside::client(self.lab, "c1", LONG)
    }

    fn leased(&self, object: Pointer) -> LeasedPages {
        leased(self.lab, "c1", &[object], Arc::new(Deaf))
    }

    /// Waits until a range's record satisfies a condition.
    fn until(&self, range: &str, what: &str, is_so: impl FnMut(&Record) -> bool) -> Record {
        self.placing.until(self.number(range), what, is_so)
    }

    /// Starts two servers, of which the second has a complete copy of the first.
    fn with_backup(&mut self, home: &str, backup: &str) {
        for host in [home, backup] {
            self.serve(host);
            self.until(host, "home", |record| record.boot_id.is_some());
        }
        self.back(home, backup);
    }

    fn back(&self, home: &str, backup: &str) {
        let host = self.number(backup);
        self.placing.set_directive(self.number(home), Directive::Back(host));
        self.until(home, "complete", |record| record.complete.contains(&Host(host)));
    }
}

/// Repeats a request while the answer is that the session was with the previous home: then it is unknown whether it
/// was done. The flag tells whether it was repeated.
fn asked<T: std::fmt::Debug>(mut ask: impl FnMut() -> Result<T, RemoteError>) -> (Result<T, RemoteError>, bool) {
    let mut is_again = false;
    loop {
        match ask() {
            Err(RemoteError::Refused { status: Status::Fenced, .. }) => is_again = true,
            other => return (other, is_again),
        }
    }
}

/// Creates an object; nobody knows the pointer of an earlier attempt that took effect.
fn create(client: &mut Client, home: Host, bytes: u64) -> Pointer {
    good(asked(|| client.create(home, bytes)).0)
}

fn delete(client: &mut Client, object: Pointer) {
    match asked(|| client.delete(object)) {
        (Err(RemoteError::Refused { status: Status::Stale, .. }), true) => {}
        (other, _) => good(other),
    }
}

/// Changes a page and waits until that is acknowledged.
fn commit(leased: &LeasedPages, page: u64, byte: u8) {
    loop {
        good(leased.update(&[page], false, &mut |_, _: Bytes<'_>| ()));
        if good(leased.commit(&[(page, &[byte; PAGE])], true)).is_empty() {
            return;
        }
    }
}

fn page(client: &mut Client, object: Pointer, page: u64) -> Vec<u8> {
    let mut bytes = vec![0xee; PAGE];
    good(client.read(object.plus(page * PAGE as u64).expect("it is in the memory"), &mut bytes));
    bytes
}

#[test]
fn what_was_acknowledged_survives_its_home() {
    in_a_fabric("what_was_acknowledged_survives_its_home", 2, |fabric| {
        fabric.serve("s1");
        fabric.until("s1", "home", |record| record.boot_id.is_some());
        let mut client = fabric.client();
        let home = Host(fabric.number("s1"));
        // An object from before there was a backup, written without a lease.
        let early = good(client.create_with(home, &[7; 3 * PAGE]));
        fabric.serve("s2");
        fabric.until("s2", "home", |record| record.boot_id.is_some());
        fabric.back("s1", "s2");
        let kept = create(&mut client, home, 5 * PAGE as u64);
        let gone = create(&mut client, home, 200 * PAGE as u64);
        let (mine, doomed) = (fabric.leased(kept), fabric.leased(gone));
        for number in 0..5 {
            commit(&mine, number, 10 + number as u8);
            commit(&doomed, 40 * number, 90);
        }
        commit(&mine, 2, 77);
        drop((mine, doomed));
        delete(&mut client, gone);
        let fresh = create(&mut client, home, 180 * PAGE as u64);
        fabric.end("s1");
        let heir = fabric.number("s2");
        fabric.until("s1", "heir", |record| record.home == Host(heir) && record.boot_id.is_some());
        for (number, byte) in [(0, 10), (1, 11), (2, 77), (3, 13), (4, 14)] {
            assert!(page(&mut client, kept, number) == vec![byte; PAGE], "page {number}");
        }
        for number in 0..3 {
            assert!(page(&mut client, early, number) == vec![7; PAGE], "page {number} of what was there before");
        }
        assert_eq!(fresh.offset(), gone.offset(), "it has the place of the one that went");
        for number in 0..180 {
            assert!(page(&mut client, fresh, number) == vec![0; PAGE], "page {number} of a new object");
        }
        let lost = status(client.read(gone, &mut [0; 8]));
        assert!(matches!(lost, Status::Stale), "{lost:?}");
        // The heir continues to serve.
        let more = fabric.leased(kept);
        commit(&more, 1, 99);
        let another = create(&mut client, home, PAGE as u64);
        assert!(![kept, fresh, early].iter().any(|object| object.offset() == another.offset()));
        assert!(page(&mut client, kept, 1) == vec![99; PAGE]);
        delete(&mut client, kept);
    });
}

#[test]
fn what_was_changed_counts_after_the_home_died_unless_somebody_else_had_the_page() {
    in_a_fabric("what_was_changed_counts_after_the_home_died_unless_somebody_else_had_the_page", 2, |fabric| {
        fabric.with_backup("s1", "s2");
        let object = create(&mut fabric.client(), Host(fabric.number("s1")), 3 * PAGE as u64);
        let (owner, other) = (fabric.leased(object), fabric.leased(object));
        commit(&other, 2, 1);
        good(owner.update(&[0, 1, 2], false, &mut |_, _: Bytes<'_>| ()));
        // The previous home knew two versions of this page; the last one is what is changed here.
        assert_eq!(good(owner.commit(&[(2, &[5; PAGE])], false)), [0_u64; 0]);
        fabric.end("s1");
        let heir = fabric.number("s2");
        fabric.until("s1", "heir", |record| record.home == Host(heir) && record.boot_id.is_some());
        commit(&other, 1, 9);
        let mine = [(0, &[6; PAGE][..]), (1, &[7; PAGE]), (2, &[8; PAGE])];
        // The heir knew none of these leases. The owner keeps those that it could claim before they ended.
        let late = good(owner.commit(&mine, true));
        assert!(late.contains(&1), "somebody else has changed it: {late:?}");
        let mut client = fabric.client();
        for (number, mine, before) in [(0, 6, 0), (1, 7, 9), (2, 8, 5)] {
            let byte = if late.contains(&number) { before } else { mine };
            assert!(page(&mut client, object, number) == vec![byte; PAGE], "page {number}, {late:?} came too late");
        }
    });
}

#[test]
fn pages_of_several_objects_at_one_home_are_committed_together() {
    in_a_fabric("pages_of_several_objects_at_one_home_are_committed_together", 2, |fabric| {
        fabric.with_backup("s1", "s2");
        let home = Host(fabric.number("s1"));
        let objects = [1, 2].map(|pages| create(&mut fabric.client(), home, pages * PAGE as u64));
        let leased = leased(fabric.lab, "c1", &objects, Arc::new(Deaf));
        for round in 1..20_u8 {
            good(leased.update(&[0, 1, 2], false, &mut |_, _: Bytes<'_>| ()));
            let [first, second, third] = [round, 2 * round, 3 * round].map(|byte| vec![byte; PAGE]);
            assert_eq!(good(leased.commit(&[(0, &first), (1, &second), (2, &third)], true)), [0_u64; 0]);
            let mut client = fabric.client();
            assert!(page(&mut client, objects[0], 0) == first);
            assert!(page(&mut client, objects[1], 0) == second && page(&mut client, objects[1], 1) == third);
        }
        let missing = leased.copy(&[3], false, &mut |_, _: Bytes<'_>| ()).expect_err("there is none");
        assert_eq!(missing.to_string(), "there is no page 3: the objects have 3 pages");
    });
}

#[test]
fn a_page_that_others_keep_is_changed_under_a_lease() {
    in_a_fabric("a_page_that_others_keep_is_changed_under_a_lease", 2, |fabric| {
        fabric.with_backup("s1", "s2");
        let object = good(fabric.client().create(Host(fabric.number("s1")), PAGE as u64));
        assert_eq!(placing::write(fabric.lab, "c1", object, b"plain"), Status::Lease);
        let leased = fabric.leased(object);
        commit(&leased, 0, 5);
        assert!(page(&mut fabric.client(), object, 0) == vec![5; PAGE]);
    });
}

#[test]
fn who_was_never_named_is_not_believed_to_be_home() {
    in_a_fabric("who_was_never_named_is_not_believed_to_be_home", 2, |fabric| {
        fabric.with_backup("s1", "s2");
        let object = good(fabric.client().create(Host(fabric.number("s1")), 4 * PAGE as u64));
        let leased = fabric.leased(object);
        let [home, backup] = ["s1", "s2"].map(|host| fabric.number(host));
        for round in 0..20_u8 {
            for server in [home, backup] {
                pretend(fabric.lab, "c1", server, home);
            }
            commit(&leased, 0, round);
        }
        let record = fabric.until("s1", "any", |_| true);
        assert!(record.home == Host(home) && record.complete.contains(&Host(backup)), "{record:?}");
        fabric.end("s1");
        for _ in 0..20 {
            pretend(fabric.lab, "c1", backup, home);
        }
        fabric.until("s1", "heir", |record| record.home == Host(backup) && record.boot_id.is_some());
        assert!(page(&mut fabric.client(), object, 0) == vec![19; PAGE], "the last that was acknowledged");
    });
}

#[test]
fn a_backup_that_lost_its_memory_acknowledges_nothing() {
    in_a_fabric("a_backup_that_lost_its_memory_acknowledges_nothing", 2, |fabric| {
        fabric.with_backup("s1", "s2");
        let object = good(fabric.client().create(Host(fabric.number("s1")), 4 * PAGE as u64));
        let leased = fabric.leased(object);
        let backup = fabric.number("s2");
        for round in 0..3_u8 {
            let before = fabric.until("s1", "complete", |record| record.complete.contains(&Host(backup)));
            commit(&leased, 0, round);
            fabric.end("s2");
            fabric.serve("s2");
            // Its acknowledgement of this commit would be wrong: it has lost everything.
            commit(&leased, 1, round);
            let after = fabric.until("s1", "any", |_| true);
            assert!(after.incarnation > before.incarnation, "{before:?}, then {after:?}");
            fabric.placing.set_directive(fabric.number("s1"), Directive::Back(backup));
        }
        fabric.until("s1", "complete", |record| record.complete.contains(&Host(backup)));
        fabric.end("s1");
        fabric.until("s1", "heir", |record| record.home == Host(backup) && record.boot_id.is_some());
        let mut client = fabric.client();
        assert!(page(&mut client, object, 0) == vec![2; PAGE] && page(&mut client, object, 1) == vec![2; PAGE]);
        assert!(page(&mut client, object, 2) == vec![0; PAGE]);
    });
}

#[test]
fn a_range_moves_while_clients_work() {
    in_a_fabric("a_range_moves_while_clients_work", 2, |fabric| {
        for host in ["s1", "s2"] {
            fabric.serve(host);
            fabric.until(host, "home", |record| record.boot_id.is_some());
        }
        let home = Host(fabric.number("s1"));
        let object = create(&mut fabric.client(), home, 300 * PAGE as u64);
        let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let work = |leased: LeasedPages, first: u64| {
            let (is_over, done) = (Arc::clone(&is_over), Arc::clone(&done));
            std::thread::spawn(move || {
                let (mut round, mut known) = (0_u64, BTreeMap::<u64, Vec<u8>>::new());
                while !is_over.load(Ordering::Relaxed) {
                    round += 1;
                    let page = first + round * 7 % 50;
                    // Each adds one to the previous value; an addition that did not count is done again.
                    loop {
                        let mut bytes = vec![0; PAGE];
                        let mut put = |_: u64, came: Bytes<'_>| match came {
                            Bytes::New(new) => bytes[..new.len()].copy_from_slice(new),
                            Bytes::Same => bytes.clone_from(&known[&page]),
                        };
                        good(leased.update(&[page], false, &mut put));
                        let count = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) + 1;
                        bytes[..8].copy_from_slice(&count.to_le_bytes());
                        let is_lost = !good(leased.commit(&[(page, &bytes)], true)).is_empty();
                        if !is_lost {
                            known.insert(page, bytes);
                            break;
                        }
                        known.remove(&page);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                round
            })
        };
        let workers = [work(fabric.leased(object), 0), work(fabric.leased(object), 200)];
        let maker = {
            let (mut client, is_over) = (fabric.client(), Arc::clone(&is_over));
            std::thread::spawn(move || {
                let mut made: Vec<Pointer> = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    made.push(create(&mut client, home, 2 * PAGE as u64));
                    if made.len() > 20 {
                        delete(&mut client, made.remove(0));
                    }
                }
                made
            })
        };
        let [first, second] = ["s1", "s2"].map(|host| fabric.number(host));
        for to in [second, first, second] {
            let before = done.load(Ordering::Relaxed);
            fabric.placing.set_directive(first, Directive::Move(to));
            fabric.until("s1", "moved", |record| record.home == Host(to) && record.boot_id.is_some());
            while done.load(Ordering::Relaxed) < before + 20 {
                assert!(!workers.iter().any(JoinHandle::is_finished) && !maker.is_finished(), "it failed");
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let rounds = workers.map(|worker| worker.join().expect("it worked"));
        let made = maker.join().expect("it worked");
        fabric.end("s1");
        let mut client = fabric.client();
        for (first, rounds) in [(0, rounds[0]), (200, rounds[1])] {
            let counts = (first..first + 50).map(|number| {
                let bytes = page(&mut client, object, number);
                u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
            });
            assert_eq!(counts.sum::<u64>(), rounds, "each was added once");
        }
        for pointer in made {
            assert!(page(&mut client, pointer, 1) == vec![0; PAGE]);
            delete(&mut client, pointer);
        }
    });
}

#[test]
fn a_range_that_nobody_has_is_reset() {
    in_a_fabric("a_range_that_nobody_has_is_reset", 1, |fabric| {
        fabric.serve("s1");
        fabric.until("s1", "home", |record| record.boot_id.is_some());
        let home = Host(fabric.number("s1"));
        let mut client = fabric.client();
        let lost = good(client.create_with(home, &[1; 100]));
        fabric.end("s1");
        fabric.serve("s1");
        fabric.until("s1", "reset", |record| record.incarnation > 1 && record.boot_id.is_some());
        let answer = status(client.read(lost, &mut [0; 100]));
        assert!(matches!(answer, Status::Stale | Status::Bounds), "{answer:?}");
        let object = good(asked(|| client.create_with(home, &[2; 100])).0);
        assert_eq!(object.home(), home);
    });
}
