//! Tests leases and copies of remote pages over real sockets, in networks of their own: which process changes a page,
//! which read it, and what happens when one is silent or a server restarts.

#[path = "../../trellis-transport/tests/support/network.rs"]
mod network;
#[path = "support/running.rs"]
mod running;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use network::{ALONE, in_own_network};
use running::{Running, good, prefix};
use trellis_fabric_protocol::wire::datagram::Status;
use trellis_remote::leased::{Bytes, Events, LeasedOptions, LeasedPages};
use trellis_remote::{Client, ClientOptions, Host, Pointer, RemoteError, ServerOptions};

const PAGE: usize = 4096;
const SERVER: Host = Host(7);
/// For what must happen, however slow the machine is.
const LONG: Duration = Duration::from_secs(60);

fn start(lease_term: Duration) -> Running {
    Running::start(ServerOptions { lease_term, ..ServerOptions::new(prefix(SERVER), 16 << 20) })
}

fn client(host: u16) -> Client {
    good(Client::open(ClientOptions { deadline: LONG, ..ClientOptions::new(prefix(Host(host))) }))
}

/// The pages of a process: what it holds of them.
#[derive(Default)]
struct Memory {
    /// Pages with the bytes that may be read now.
    pages: Mutex<BTreeMap<u64, Vec<u8>>>,
    recalled: Mutex<BTreeSet<u64>>,
    lost: Mutex<BTreeSet<u64>>,
    invalidated: Mutex<Vec<u64>>,
    changed: Condvar,
}

impl Events for Memory {
    fn invalidate(&self, page: u64) {
        self.pages.lock().expect("nobody panicked").remove(&page);
        self.invalidated.lock().expect("nobody panicked").push(page);
        self.changed.notify_all();
    }

    fn recalled(&self, page: u64) {
        self.recalled.lock().expect("nobody panicked").insert(page);
        self.changed.notify_all();
    }

    fn lost(&self, page: u64) {
        self.pages.lock().expect("nobody panicked").remove(&page);
        self.lost.lock().expect("nobody panicked").insert(page);
        self.changed.notify_all();
    }
}

impl Memory {
    fn put(&self, page: u64, bytes: Bytes<'_>) {
        if let Bytes::New(bytes) = bytes {
            self.pages.lock().expect("nobody panicked").insert(page, bytes.to_vec());
        }
    }

    fn read(&self, page: u64) -> Option<Vec<u8>> {
        self.pages.lock().expect("nobody panicked").get(&page).cloned()
    }

    fn wait(&self, what: &str, set: &Mutex<BTreeSet<u64>>, page: u64) {
        let until = Instant::now() + LONG;
        let mut set = set.lock().expect("nobody panicked");
        while !set.remove(&page) {
            assert!(Instant::now() < until, "page {page} was never {what}");
            set = self.changed.wait_timeout(set, Duration::from_millis(100)).expect("nobody panicked").0;
        }
    }
}

struct Process {
    memory: Arc<Memory>,
    leased: LeasedPages,
}

impl Process {
    fn start(host: u16, object: Pointer) -> Process {
        Process::start_with(host, &[object])
    }

    fn start_with(host: u16, objects: &[Pointer]) -> Process {
        let memory = Arc::new(Memory::default());
        let options = LeasedOptions { deadline: LONG, ..LeasedOptions::new(prefix(Host(host)), objects) };
        let leased = good(LeasedPages::open(options, Arc::clone(&memory) as Arc<dyn Events>));
        Process { memory, leased }
    }

    fn copy(&self, page: u64) -> Vec<u8> {
        // On a busy machine, the copy may be gone again when the call returns.
        let mut came = None;
        good(self.leased.copy(&[page], false, &mut |page, bytes| {
            self.memory.put(page, bytes);
            came = self.memory.read(page);
        }));
        came.unwrap_or_default()
    }

    fn update(&self, page: u64) -> Vec<u8> {
        let mut all = Vec::new();
        good(self.leased.update(&[page], false, &mut |_, bytes| match bytes {
            Bytes::New(bytes) => all = bytes.to_vec(),
            Bytes::Same => panic!("nothing is here"),
        }));
        all
    }

    fn commit(&self, page: u64, bytes: &[u8], release: bool) -> bool {
        good(self.leased.commit(&[(page, bytes)], release)).is_empty()
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"))
}

#[test]
fn pages_are_numbered_through_all_objects() {
    in_own_network("pages_are_numbered_through_all_objects", &ALONE, || {
        let server = start(Duration::from_secs(10));
        let mut plain = client(9);
        let [first, between, second] =
            [2 * PAGE as u64 + 100, PAGE as u64, 2 * PAGE as u64].map(|bytes| good(plain.create(SERVER, bytes)));
        let all = Process::start_with(10, &[second, first]);
        assert_eq!(all.leased.pages(), 5);
        let lengths = [PAGE, PAGE, PAGE, PAGE, 100];
        for (page, bytes) in (0..).zip(lengths) {
            assert_eq!(all.update(page).len(), bytes, "page {page}");
            assert!(all.commit(page, &vec![1 + page as u8; bytes], true), "page {page}");
        }
        // Each object has its own pages, and the one between them has none.
        for (object, bytes) in [(second, [1, 2]), (first, [3, 4]), (between, [0, 0])] {
            let mut read = [[9; 8]; 2];
            good(plain.read(object, &mut read[0]));
            let next = object.plus(PAGE as u64).expect("it is an address");
            if object != between {
                good(plain.read(next, &mut read[1]));
                assert_eq!(read[1], [bytes[1]; 8]);
            }
            assert_eq!(read[0], [bytes[0]; 8]);
        }
        // Events have the page numbers of this process.
        all.copy(3);
        let other = Process::start(11, first);
        other.update(1);
        let until = Instant::now() + LONG;
        while *all.memory.invalidated.lock().expect("nobody panicked") != [3] {
            assert!(Instant::now() < until, "the copy was not recalled");
            std::thread::sleep(Duration::from_millis(1));
        }
        let error =
            LeasedPages::open(LeasedOptions::new(prefix(Host(10)), &[first, absent()]), Arc::new(Memory::default()));
        assert_eq!(error.err().and_then(|error| error.host()), Some(SERVER));
        server.stop();
    });
}

/// A pointer at the server to which there is no object.
fn absent() -> Pointer {
    Pointer::new(prefix(SERVER).cluster, SERVER, 1, 8 << 20).expect("it is an address")
}

#[test]
fn who_increments_under_leases_loses_nothing() {
    in_own_network("who_increments_under_leases_loses_nothing", &ALONE, || {
        let server = start(Duration::from_secs(10));
        let object = good(client(9).create(SERVER, PAGE as u64 + 100));
        std::thread::scope(|scope| {
            for host in [10, 11] {
                scope.spawn(move || {
                    let process = Process::start(host, object);
                    for round in 0..200 {
                        // The last page of the object is shorter than a page.
                        let page = round % 2;
                        let mut bytes = process.update(page);
                        assert_eq!(bytes.len(), [PAGE, 100][page as usize]);
                        let next = number(&bytes) + 1;
                        bytes[..8].copy_from_slice(&next.to_le_bytes());
                        assert!(process.commit(page, &bytes, true), "the lease was held");
                    }
                });
            }
        });
        let mut eight = [0; 8];
        for page in 0..2 {
            good(client(9).read(object.plus(page * PAGE as u64).expect("it is inside"), &mut eight));
            assert_eq!(u64::from_le_bytes(eight), 200, "page {page}");
        }
        server.stop();
    });
}

#[test]
fn copies_are_gone_before_somebody_changes_the_page() {
    in_own_network("copies_are_gone_before_somebody_changes_the_page", &ALONE, || {
        let server = start(Duration::from_secs(60));
        let object = good(client(9).create(SERVER, 2 * PAGE as u64));
        let (writer, readers) = (Process::start(10, object), [11, 12].map(|host| Process::start(host, object)));
        for round in 1..20_u64 {
            for reader in &readers {
                assert_eq!(number(&reader.copy(1)), round - 1, "what was committed is what is read");
            }
            let mut bytes = writer.update(1);
            for reader in &readers {
                assert_eq!(reader.memory.read(1), None, "round {round}: a copy is here, and another changes the page");
            }
            bytes[..8].copy_from_slice(&round.to_le_bytes());
            // It keeps the lease; whoever wants to read has it recalled.
            assert!(writer.commit(1, &bytes, false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    writer.memory.wait("recalled", &writer.memory.recalled, 1);
                    writer.leased.release(&[1]);
                });
                assert_eq!(number(&readers[0].copy(1)), round);
            });
        }
        // A page of which a copy is here comes without bytes when nothing changed it.
        let reader = &readers[0];
        assert_eq!(number(&reader.copy(1)), 19);
        let mut is_same = false;
        good(reader.leased.update(&[1], true, &mut |_, bytes| is_same = bytes == Bytes::Same));
        assert!(is_same, "no byte was changed since");
        assert!(
            reader.memory.invalidated.lock().expect("nobody panicked").contains(&1),
            "the copy was taken back first"
        );
        reader.leased.release(&[1]);
        server.stop();
    });
}

#[test]
fn who_is_silent_loses_the_lease_and_its_late_commit_is_fenced() {
    in_own_network("who_is_silent_loses_the_lease_and_its_late_commit_is_fenced", &ALONE, || {
        let server = start(Duration::from_millis(300));
        let object = good(client(9).create(SERVER, PAGE as u64));
        let (silent, other) = (Process::start(10, object), Process::start(11, object));
        let mut bytes = silent.update(0);
        bytes[0] = 1;
        // It hears that somebody wants the page, and does nothing.
        let change = || {
            let mut theirs = other.update(0);
            assert_eq!(theirs[0], 0, "what was not committed is not there");
            theirs[0] = 2;
            other.commit(0, &theirs, true)
        };
        let mut theirs = other.update(0);
        assert_eq!(theirs[0], 0, "what was not committed is not there");
        silent.memory.wait("lost", &silent.memory.lost, 0);
        assert!(!silent.commit(0, &bytes, true), "it came too late");
        theirs[0] = 2;
        // On a busy machine, this lease may be over, too.
        let until = Instant::now() + LONG;
        let mut is_done = other.commit(0, &theirs, true);
        while !is_done {
            assert!(Instant::now() < until, "no change counts");
            is_done = change();
        }
        assert_eq!(silent.copy(0)[0], 2);
        server.stop();
    });
}

/// Whether leases of this term are still there after several terms, in which nobody wanted them.
fn leases_are_renewed(term: Duration) -> bool {
    let server = start(term);
    let object = good(client(9).create(SERVER, 3 * PAGE as u64));
    let process = Process::start(10, object);
    let bytes = process.update(0);
    let mut all = Vec::new();
    good(process.leased.copy(&[1, 2], false, &mut |page, bytes| {
        process.memory.put(page, bytes);
        all.push(page);
    }));
    all.sort_unstable();
    assert_eq!(all, [1, 2]);
    // Several terms; what was not renewed would have ended.
    std::thread::sleep(term * 3);
    let is_whole = process.memory.lost.lock().expect("nobody panicked").is_empty();
    let are_renewed = is_whole
        && [1, 2].into_iter().all(|page| process.memory.read(page).is_some())
        && process.commit(0, &bytes, true);
    server.stop();
    are_renewed
}

#[test]
fn a_lease_that_is_wanted_by_nobody_is_renewed() {
    in_own_network("a_lease_that_is_wanted_by_nobody_is_renewed", &ALONE, || {
        // A process that gets no processor for a term cannot renew; one that does not renew loses leases of any term.
        let mut terms = [400, 1_600, 6_400].into_iter().map(Duration::from_millis);
        assert!(terms.any(leases_are_renewed));
    });
}

#[test]
fn who_has_no_lease_waits_for_those_that_have() {
    in_own_network("who_has_no_lease_waits_for_those_that_have", &ALONE, || {
        let server = start(Duration::from_secs(60));
        let mut plain = client(9);
        let object = good(plain.create(SERVER, PAGE as u64));
        let (owner, reader) = (Process::start(10, object), Process::start(11, object));
        let mut bytes = owner.update(0);
        bytes[1] = 1;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                owner.memory.wait("recalled", &owner.memory.recalled, 0);
                assert!(owner.commit(0, &bytes, true));
            });
            good(plain.write(object, &[5]));
        });
        assert_eq!(reader.copy(0)[..2], [5, 1], "the write came after the commit");
        good(plain.fetch_add(object, 1));
        assert_eq!(reader.memory.read(0), None, "the copy was taken back first");
        assert_eq!(reader.copy(0)[..2], [6, 1]);
        good(plain.delete(object));
        let error = reader.leased.copy(&[0], false, &mut |_, _| {}).expect_err("the object is gone");
        assert!(matches!(error, RemoteError::Refused { status: Status::Stale, .. }), "{error}");
        server.stop();
    });
}

#[test]
fn a_server_that_lost_its_memory_takes_no_commit() {
    in_own_network("a_server_that_lost_its_memory_takes_no_commit", &ALONE, || {
        let server = start(Duration::from_secs(60));
        let object = good(client(9).create(SERVER, PAGE as u64));
        let process = Process::start(10, object);
        let bytes = process.update(0);
        server.stop();
        let server = start(Duration::from_secs(60));
        let error = process.leased.commit(&[(0, &bytes)], true).expect_err("the object is gone");
        let is_refused = matches!(error, RemoteError::Refused { status: Status::Stale | Status::Bounds, .. });
        assert!(is_refused, "{error}");
        server.stop();
    });
}

#[test]
fn the_rights_of_a_process_end_with_it() {
    in_own_network("the_rights_of_a_process_end_with_it", &ALONE, || {
        let server = start(Duration::from_secs(3600));
        let object = good(client(9).create(SERVER, 2 * PAGE as u64));
        let first = Process::start(10, object);
        first.update(0);
        drop(first);
        let second = Process::start(10, object);
        let bytes = second.update(0);
        assert!(second.commit(0, &bytes, true));
        server.stop();
    });
}
