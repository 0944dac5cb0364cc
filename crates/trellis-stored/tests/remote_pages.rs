//! Tests pages at memory servers, over real sockets, in networks of their own: as a store, and as the memory of this
//! process.

#[path = "../../trellis-transport/tests/support/network.rs"]
mod network;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use network::in_own_network;
use trellis_base::Random;
use trellis_remote::{Client, ClientOptions, Host, HostPrefix, Server, ServerOptions, Stop};
use trellis_store::{Applied, Change, Expect, Guard, Key, Kind, Operation, Outcome, Store, StoreError};
use trellis_stored::allocator_api2::alloc::{Allocator, Layout};
use trellis_stored::allocator_api2::boxed::Box as BoxIn;
use trellis_stored::allocator_api2::vec::Vec as VecIn;
use trellis_stored::settings::Settings;
use trellis_stored::stores;
use trellis_stored::{RemoteHeap, RemoteMemory};
use trellis_testing::{Need, skip};

const REGION: u32 = 3;
const PAGE_BYTES: usize = 4096;
/// The host of the tests.
const CLIENT: u16 = 9;

/// A server in a network of its own, at the end of a cable.
struct Running {
    stop: Stop,
    thread: Option<JoinHandle<Server>>,
}

impl Running {
    fn start(host: u16, memory_bytes: u64) -> Running {
        Running::start_with(host, ServerOptions::new(prefix(host), memory_bytes))
    }

    fn start_with(host: u16, options: ServerOptions) -> Running {
        let stop = Stop::default();
        let stops = stop.clone();
        let (tell_place, place) = mpsc::channel();
        let (plugged_in, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            network::enter_own_network().unwrap_or_else(|why| panic!("{why}"));
            let own = std::fs::read_link("/proc/thread-self").expect("it is there");
            tell_place.send(format!("/proc/{}/ns/net", own.display())).expect("the test waits");
            wait.recv().expect("the test plugs it in");
            plug_in("e0", host, CLIENT);
            let mut server = Server::open(options).unwrap_or_else(|error| panic!("{error}"));
            tell_place.send(String::new()).expect("the test waits");
            server.serve(&stops).unwrap_or_else(|error| panic!("{error}"));
            server
        });
        let place = || place.recv().expect("the server starts");
        // What another server had, or still has until its network is gone.
        static CABLES: AtomicUsize = AtomicUsize::new(0);
        let device = format!("d{}", CABLES.fetch_add(1, Ordering::Relaxed));
        ip(&format!("link add {device} type veth peer name e0 netns {}", place()));
        plug_in(&device, CLIENT, host);
        plugged_in.send(()).expect("the server waits");
        place();
        Running { stop, thread: Some(thread) }
    }

    /// Ends it; how many objects it had.
    fn stop(mut self) -> u64 {
        self.stop.stop();
        let server = self.thread.take().expect("it runs").join().expect("it ended well");
        server.statistics().objects
    }
}

fn ip(line: &str) {
    network::ip(line).unwrap_or_else(|why| panic!("{why}"));
}

/// This end of a cable is host `me`'s, and the other host is behind it.
fn plug_in(device: &str, me: u16, other: u16) {
    for line in [
        "link set lo up".to_owned(),
        format!("link set {device} address 02:00:00:00:00:0{me} mtu 9000 up"),
        format!("-6 addr add fe80::{me}/64 dev {device} nodad"),
        format!("-6 neigh replace fe80::{other} lladdr 02:00:00:00:00:0{other} dev {device} nud permanent"),
        format!("-6 route replace {} via fe80::{other} dev {device}", prefix(other)),
        format!("-6 route replace local {} dev lo", prefix(me)),
    ] {
        ip(&line);
    }
}

fn prefix(host: u16) -> HostPrefix {
    format!("fd01:203:{host:x}::/48").parse().expect("it is a prefix")
}

fn settings(servers: &[u16], options: &str) -> Settings {
    let servers: Vec<String> = servers.iter().map(|host| prefix(*host).to_string()).collect();
    let store = format!("memory-server:{}?prefix={}{options}", servers.join(","), prefix(CLIENT));
    Settings { store, ..Settings::default() }
}

fn store(servers: &[u16], options: &str) -> Arc<dyn Store> {
    stores::open(&settings(servers, options)).unwrap_or_else(|error| panic!("{error}"))
}

fn good<T>(result: Result<T, StoreError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn change(page: u64, change: Change) -> Operation {
    Operation::Change { key: Key::page(REGION, page), change }
}

fn put(page: u64, byte: u8) -> Operation {
    change(page, Change::Put(vec![byte; PAGE_BYTES]))
}

fn page(store: &dyn Store, page: u64) -> Option<Vec<u8>> {
    good(store.get_many(&[Key::page(REGION, page)])).remove(0)
}

#[test]
fn pages_are_kept_at_all_servers_and_nothing_is_left() {
    in_own_network("pages_are_kept_at_all_servers_and_nothing_is_left", &[], || {
        let servers = [5, 6, 7].map(|host| Running::start(host, 8 << 20));
        let store = store(&[5, 6, 7], "&object=256KiB");
        assert_eq!(page(&*store, 17), None, "nobody wrote it");
        // Runs of 64 pages go to the servers in turn.
        let pages: Vec<u64> = (0..6).map(|run| run * 64 + run).collect();
        let puts: Vec<Operation> = pages.iter().map(|&page| put(page, page as u8)).collect();
        assert!(
            matches!(good(store.apply(&puts, None)), Applied::Done(done) if done == [const { Outcome::Changed }; 6])
        );
        for &number in &pages {
            assert_eq!(page(&*store, number), Some(vec![number as u8; PAGE_BYTES]));
            assert_eq!(page(&*store, number + 1), None, "its neighbour holds nothing");
        }
        assert_eq!(good(store.numbers(REGION, Kind::Memory, 65, 3)), pages[1..4]);
        assert!(good(store.numbers(REGION + 1, Kind::Memory, 0, 9)).is_empty());
        let deletes: Vec<Operation> = pages[1..].iter().map(|&page| change(page, Change::Delete)).collect();
        good(store.apply(&deletes, None));
        assert_eq!(page(&*store, pages[1]), None);
        // A part of a page that was deleted: the rest is zero again.
        good(store.apply(&[change(pages[1], Change::PutRange { offset: 8, bytes: vec![9; 8] })], None));
        let found = page(&*store, pages[1]).expect("it is there");
        assert_eq!((&found[..8], &found[8..16], &found[16..24]), (&[0; 8][..], &[9; 8][..], &[0; 8][..]));
        good(store.apply(&[change(pages[0], Change::Delete), change(pages[1], Change::Delete)], None));
        drop(store);
        assert_eq!(servers.map(Running::stop), [0; 3], "objects without pages are deleted");
    });
}

fn step(random: &mut Random) -> Operation {
    let number = random.one_of(&[0, 1, 63, 64, 65, 130]);
    let key = Key::page(REGION, number);
    let (offset, byte) = (8 * random.below(500) as u32, random.below(256) as u8);
    match random.below(7) {
        0 => put(number, byte),
        1 => change(number, Change::Delete),
        2 => Operation::Get { key, range: (byte < 128).then_some((offset, 24)) },
        3 => Operation::Add { key, offset, width: 8, delta: i64::from(byte) - 100, bounds: Some((-300, 300)) },
        4 => {
            let expect = Expect::Range { offset, bytes: vec![0; 16] };
            let change = Change::PutRange { offset, bytes: vec![byte; 16] };
            Operation::CompareAndSwap { key, expect, change }
        }
        _ => change(number, Change::PutRange { offset, bytes: vec![byte; 1 + 3 * usize::from(byte % 16)] }),
    }
}

/// Values here are whole pages.
fn whole(value: Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut value = value?;
    value.resize(PAGE_BYTES, 0);
    Some(value)
}

#[test]
fn whatever_is_done_to_pages_ends_as_in_a_map() {
    in_own_network("whatever_is_done_to_pages_ends_as_in_a_map", &[], || {
        let servers = [5, 6].map(|host| Running::start(host, 8 << 20));
        for seed in 1..=20_u64 {
            let mut random = Random::new(seed);
            let piece = if seed % 2 == 0 { 4096 } else { 8192 };
            let store = store(&[5, 6], &format!("&object=256KiB&piece={piece}"));
            let model = trellis_store::open("embedded:").expect("it needs nothing");
            for call in 0..60 {
                let steps: Vec<Operation> = (0..1 + random.below(4)).map(|_| step(&mut random)).collect();
                // The model's values have no end that a page would not have.
                for key in steps.iter().map(Operation::key) {
                    if let Some(value) = whole(good(model.get_many(std::slice::from_ref(key))).remove(0)) {
                        good(model.apply(&[Operation::Change { key: key.clone(), change: Change::Put(value) }], None));
                    }
                }
                let (found, expected) = (good(store.apply(&steps, None)), good(model.apply(&steps, None)));
                let same_kind = std::mem::discriminant(&found) == std::mem::discriminant(&expected);
                assert!(same_kind, "seed {seed}, call {call}: {steps:?}: {found:?}");
                let keys: Vec<Key> = [0, 1, 63, 64, 65, 130].map(|page| Key::page(REGION, page)).to_vec();
                let expected: Vec<_> = good(model.get_many(&keys)).into_iter().map(whole).collect();
                assert!(good(store.get_many(&keys)) == expected, "seed {seed}, call {call}: {steps:?}");
            }
            let pages = good(store.numbers(REGION, Kind::Memory, 0, 99));
            good(store.apply(&pages.iter().map(|&page| change(page, Change::Delete)).collect::<Vec<_>>(), None));
        }
        assert_eq!(servers.map(Running::stop), [0; 2]);
    });
}

#[test]
fn other_keys_stay_here_and_are_never_mixed_with_pages() {
    in_own_network("other_keys_stay_here_and_are_never_mixed_with_pages", &[], || {
        let server = Running::start(5, 8 << 20);
        let store = store(&[5], "&object=1MiB");
        let key = Key::new(REGION, Kind::Heap, 1);
        let aside = Operation::Change { key: key.clone(), change: Change::Put(b"here".to_vec()) };
        good(store.apply(std::slice::from_ref(&aside), None));
        assert_eq!(good(store.get_many(&[Key::page(REGION, 1), key.clone()])), [None, Some(b"here".to_vec())]);
        assert!(matches!(store.apply(&[aside, put(1, 1)], None), Err(StoreError::Unsupported { .. })));
        let guard = |bytes: &[u8]| Guard { key: key.clone(), expect: Expect::Value(bytes.to_vec()) };
        let fenced = good(store.apply(&[put(1, 1)], Some(&guard(b"gone"))));
        assert_eq!(fenced, Applied::Fenced { found: Some(b"here".to_vec()) });
        assert_eq!(page(&*store, 1), None);
        good(store.apply(&[put(1, 1)], Some(&guard(b"here"))));
        assert!(page(&*store, 1).is_some());
        let long = change(1, Change::PutRange { offset: 4090, bytes: vec![1; 7] });
        assert!(matches!(store.apply(&[long], None), Err(StoreError::TooLarge { .. })));
        good(store.apply(&[change(1, Change::Delete)], None));
        assert_eq!(server.stop(), 0);
    });
}

#[test]
fn threads_write_and_read_at_the_same_time() {
    in_own_network("threads_write_and_read_at_the_same_time", &[], || {
        let servers = [5, 6].map(|host| Running::start(host, 32 << 20));
        let store = store(&[5, 6], "&object=1MiB");
        std::thread::scope(|scope| {
            for thread in 0..6_u64 {
                let store = Arc::clone(&store);
                scope.spawn(move || {
                    let pages: Vec<u64> = (0..300).map(|page| page * 6 + thread).collect();
                    for round in 0..3_u8 {
                        let puts: Vec<Operation> = pages.iter().map(|&page| put(page, page as u8 ^ round)).collect();
                        good(store.apply(&puts, None));
                        let keys: Vec<Key> = pages.iter().map(|&page| Key::page(REGION, page)).collect();
                        for (&page, value) in pages.iter().zip(good(store.get_many(&keys))) {
                            assert_eq!(value, Some(vec![page as u8 ^ round; PAGE_BYTES]), "page {page}");
                        }
                    }
                    good(
                        store.apply(&pages.iter().map(|&page| change(page, Change::Delete)).collect::<Vec<_>>(), None),
                    );
                });
            }
        });
        assert_eq!(servers.map(Running::stop), [0; 2]);
    });
}

#[test]
fn a_server_without_room_hands_on_and_the_last_one_is_named() {
    in_own_network("a_server_without_room_hands_on_and_the_last_one_is_named", &[], || {
        let servers = [Running::start(5, 1 << 20), Running::start(6, 2 << 20)];
        let store = store(&[5, 6], "&object=1MiB");
        // Three objects, of which the third should be at the first server, which has no room any more.
        for number in [0, 64, 512] {
            good(store.apply(&[put(number, 7)], None));
        }
        let error = store.apply(&[put(512 + 64, 7)], None).expect_err("there is no room").to_string();
        let named = "store memory-server:fd01:203:5::/48,fd01:203:6::/48: CREATE of fd01:203:6:: was refused: ";
        assert!(error.starts_with(named) && error.contains("`object=`"), "{error}");
        assert_eq!([0, 64, 512].map(|number| page(&*store, number).map(|page| page[0])), [Some(7); 3]);
        assert_eq!(servers.map(Running::stop), [1, 2]);
    });
}

#[test]
fn a_server_that_is_gone_is_named_with_what_it_kept() {
    in_own_network("a_server_that_is_gone_is_named_with_what_it_kept", &[], || {
        let servers = [Running::start(5, 4 << 20), Running::start(6, 4 << 20)];
        let store = store(&[5, 6], "&object=1MiB&deadline=1");
        good(store.apply(&(0..128).map(|page| put(page, 1)).collect::<Vec<_>>(), None));
        let [five, six] = servers;
        six.stop();
        // Its cable went with it. At the end of this one nobody is.
        ip("link add quiet type veth peer name nobody");
        ip("link set nobody up");
        plug_in("quiet", CLIENT, 6);
        let keys: Vec<Key> = (60..70).map(|page| Key::page(REGION, page)).collect();
        let error = store.get_many(&keys).expect_err("half of it is gone").to_string();
        let named = "the host fd01:203:6::/48 did not answer within 1.0";
        let kept = "it keeps 0.2 MiB of this program's memory, 0x200000040000 to 0x200000045fff among it";
        assert!(error.contains(named) && error.contains(kept), "{error}");
        assert!(page(&*store, 5).is_some(), "what is elsewhere is there");
        // Another one in its place has none of it.
        let six = Running::start(6, 4 << 20);
        let error = store.get_many(&keys).expect_err("it is gone").to_string();
        assert!(error.contains("READ of fd01:203:6:") && error.contains("what it kept is gone; it keeps"), "{error}");
        five.stop();
        assert_eq!(six.stop(), 0);
    });
}

#[test]
fn what_a_process_that_was_killed_had_is_deleted_by_its_server() {
    in_own_network("what_a_process_that_was_killed_had_is_deleted_by_its_server", &[], || {
        let options =
            ServerOptions { session_silence_max: Duration::from_secs(6), ..ServerOptions::new(prefix(5), 8 << 20) };
        let server = Running::start_with(5, options);
        let store = store(&[5], "&object=1MiB");
        good(store.apply(&[put(1, 7), put(300, 7)], None));
        let mut other = Client::open(ClientOptions::new(prefix(CLIENT))).unwrap_or_else(|error| panic!("{error}"));
        let mut used_bytes = || other.hello(Host(5)).unwrap_or_else(|error| panic!("{error}")).used_bytes;
        assert_eq!(used_bytes(), 2 << 20);
        // It says nothing any more, as if it had been killed: no page of it was deleted.
        drop(store);
        let deadline = Instant::now() + Duration::from_secs(60);
        while used_bytes() > 0 {
            assert!(Instant::now() < deadline, "its objects are still there");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(server.stop(), 0);
    });
}

#[test]
fn a_process_has_more_memory_than_its_cache() {
    in_own_network("a_process_has_more_memory_than_its_cache", &[], || {
        let servers = [5, 6].map(|host| Running::start(host, 64 << 20));
        let store = settings(&[5, 6], "&object=4MiB").store;
        let mut memory = match RemoteMemory::map(&store, 8 << 20, 2 << 20) {
            Ok(memory) => memory,
            Err(error) => return skip("a_process_has_more_memory_than_its_cache", Need::Kernel, error),
        };
        let words = memory.slice_mut::<u64>();
        let value = |at: usize, round: u64| (at as u64).wrapping_mul(0x9e37_79b9) ^ round;
        for round in 0..3 {
            for (at, word) in words.iter_mut().enumerate() {
                if round == 0 || at % 7 == 0 {
                    *word = value(at, round);
                }
            }
        }
        for (at, word) in words.iter().enumerate() {
            assert_eq!(*word, value(at, if at % 7 == 0 { 2 } else { 0 }), "word {at}");
        }
        let pages = memory.statistics().pages;
        assert!(pages.pages_fetched > 0 && pages.bytes_written_back > 0, "{pages:?}");
        assert!((pages.page_frames + pages.twins) * PAGE_BYTES as u64 <= 2 << 20, "{pages:?}");
        memory.close().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(servers.map(Running::stop), [0; 2], "nothing is left at the servers");
    });
}

#[test]
fn containers_have_their_elements_at_memory_servers() {
    let test = "containers_have_their_elements_at_memory_servers";
    in_own_network(test, &[], || {
        let servers = [5, 6].map(|host| Running::start(host, 64 << 20));
        let store = settings(&[5, 6], "&object=4MiB").store;
        let heap = match RemoteHeap::open(&store, 32 << 20, 2 << 20) {
            Ok(heap) => heap,
            Err(error) => return skip(test, Need::Kernel, error),
        };
        // Each grows from nothing to four times what is here at a time, beside those of other threads.
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let heap = &heap;
                scope.spawn(move || {
                    let value = |at: u64| at.wrapping_mul(0x9e37_79b9) ^ thread;
                    let mut numbers = VecIn::new_in(heap);
                    let mut names: VecIn<BoxIn<[u8; 100], &RemoteHeap>, &RemoteHeap> = VecIn::new_in(heap);
                    for at in 0..(1 << 20) / 2 {
                        numbers.push(value(at));
                        if at % 1000 == 0 {
                            names.push(BoxIn::new_in([(at / 1000) as u8; 100], heap));
                        }
                    }
                    assert!(numbers.iter().zip(0..).all(|(number, at)| *number == value(at)));
                    assert!(names.iter().zip(0..).all(|(name, at)| name.iter().all(|byte| *byte == at as u8)));
                    numbers.truncate(10);
                    numbers.shrink_to_fit();
                    assert!(numbers.iter().zip(0..).all(|(number, at)| *number == value(at)));
                });
            }
        });
        assert_eq!(heap.usage().blocks, 0, "what went out of scope is free: {:?}", heap.usage());
        let pages = heap.statistics().pages;
        assert!(pages.pages_fetched > 0 && pages.bytes_written_back > 0, "{pages:?}");
        assert!((pages.page_frames + pages.twins) * PAGE_BYTES as u64 <= 2 << 20, "{pages:?}");
        for align in [1_usize, 16, 64, 8192] {
            let block = heap.allocate_zeroed(Layout::from_size_align(300, align).expect("a layout")).expect("room");
            assert_eq!((block.cast::<u8>().addr().get() % align, block.len()), (0, 300));
        }
        assert!(heap.allocate(Layout::from_size_align(1 << 30, 16).expect("a layout")).is_err());
        let nothing = Layout::from_size_align(0, 64).expect("a layout");
        assert_eq!(heap.allocate(nothing).expect("nothing is always there").len(), 0);
        heap.close().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(servers.map(Running::stop), [0; 2], "nothing is left at the servers");
    });
}
