//! Tests pages against a plain array: one process with little memory, and several with releases and acquires.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use trellis_base::Random;
use trellis_store::wrap::{Counted, Delayed};
use trellis_store::{Change, Key, Operation, Store};
use trellis_testing::{Need, skip};

use super::{Options, Paging};
use crate::coherence::Shared;
use crate::coherence::log::{Coherence, Copies, Identity};
use crate::layout::{PAGE_BYTES, REGION_BASE};
use crate::synchronisation::member;

const REGION: u32 = 9;
const MIB: usize = 1 << 20;

/// Excludes other tests: the number of regions of a process that catch faults is limited, and one has the table of
/// lines.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints why a test is skipped if faults cannot be caught here.
pub(crate) fn cannot(test: &str) -> bool {
    let missing = trellis_memory::choose(Some(trellis_memory::Catcher::Handler), &trellis_memory::probe()).err();
    if let Some(why) = &missing {
        skip(test, Need::Kernel, why);
    }
    missing.is_some()
}

/// A process of a region, as far as its pages are concerned.
struct Process {
    paging: Arc<Paging>,
    coherence: Coherence,
    base: usize,
}

impl Process {
    fn new(store: &Arc<dyn Store>, options: Options) -> Process {
        let paging = Paging::start(Arc::clone(store), options.clone()).unwrap_or_else(|error| panic!("{error}"));
        let who = Identity {
            name: "test".to_owned(),
            region: REGION,
            member: options.member,
            lease: Duration::from_secs(10),
            is_private: options.is_private,
        };
        let copies = Arc::clone(&paging) as Arc<dyn Copies>;
        let coherence = Coherence::new(Arc::clone(store), who, copies, 0);
        Process { base: paging.base(), paging, coherence }
    }

    fn release(&self) {
        self.coherence.release(&[], None).expect("released");
    }

    fn acquire(&self) {
        self.coherence.acquire(&[], None, None).expect("acquired");
    }

    fn at(&self, offset: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.base + offset)
    }

    fn load(&self, offset: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: bytes of the region; tests synchronise their threads.
        (0..bytes).map(|byte| unsafe { self.at(offset + byte).read_volatile() }).collect()
    }

    fn store(&self, offset: usize, from: &[u8]) {
        for (index, byte) in from.iter().enumerate() {
            // SAFETY: as above.
            unsafe { self.at(offset + index).write_volatile(*byte) };
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.paging.stop();
    }
}

fn private(bytes: usize, cache_bytes_max: usize) -> Options {
    Options {
        region: REGION,
        base: REGION_BASE,
        bytes,
        member: 1,
        is_private: true,
        is_new: true,
        cache_bytes_max,
        has_lines: false,
        join_bytes: 64,
    }
}

/// The options of a process of a shared region; each has its own addresses, as if it were another process.
fn shared(number: u64, bytes: usize, cache_bytes_max: usize) -> Options {
    Options {
        base: REGION_BASE + (number as usize - 1) * (1 << 36),
        member: number,
        is_private: false,
        is_new: false,
        ..private(bytes, cache_bytes_max)
    }
}

fn embedded(members: u64) -> Arc<dyn Store> {
    let store = trellis_store::open("embedded:").expect("it needs nothing");
    for _ in 0..members {
        member::join(&*store, REGION, Duration::from_secs(10)).expect("joined");
    }
    store
}

#[test]
fn a_program_larger_than_its_memory_finds_what_it_stored() {
    if cannot("a_program_larger_than_its_memory_finds_what_it_stored") {
        return;
    }
    let _one = alone();
    let (bytes, cache) = (64 * MIB, 8 * MIB);
    let store = embedded(0);
    let process = Process::new(&store, private(bytes, cache));
    let most = AtomicUsize::new(0);
    let look = |process: &Process| {
        let now = process.paging.statistics();
        most.fetch_max((now.page_frames + now.twins) as usize * PAGE_BYTES, Ordering::Relaxed);
        most.fetch_max(file_bytes(&process.paging), Ordering::Relaxed);
    };
    for page in 0..bytes / PAGE_BYTES {
        process.store(page * PAGE_BYTES + page % 4000, &(page as u64 + 1).to_le_bytes());
        if page % 256 == 0 {
            look(&process);
        }
    }
    for page in (0..bytes / PAGE_BYTES).rev().step_by(3) {
        let found = process.load(page * PAGE_BYTES + page % 4000, 8);
        assert_eq!(found, (page as u64 + 1).to_le_bytes(), "page {page}");
        process.store(page * PAGE_BYTES + 4050, &[7]);
        if page % 256 == 0 {
            look(&process);
        }
    }
    let mut random = Random::new(1);
    for _ in 0..2000 {
        let page = random.index(bytes / PAGE_BYTES);
        let seven = if (bytes / PAGE_BYTES - 1 - page).is_multiple_of(3) { 7 } else { 0 };
        let found = process.load(page * PAGE_BYTES + page % 4000, 8);
        assert_eq!(found, (page as u64 + 1).to_le_bytes(), "page {page}");
        let found = process.load(page * PAGE_BYTES + 4050, 1)[0];
        assert!(found == seven || (4043..4050).contains(&(page % 4000)), "page {page}: {found}");
    }
    look(&process);
    let most = most.into_inner();
    assert!(most <= cache, "{most} bytes were here, and {cache} were allowed");
    let statistics = process.paging.statistics();
    assert!(statistics.pages_evicted > (bytes - cache) as u64 / PAGE_BYTES as u64, "{statistics:?}");
}

/// The memory of the page frames.
fn file_bytes(paging: &Paging) -> usize {
    // SAFETY: an all-zero answer is a valid one.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open as long as the region, and `about` is a valid place for the answer.
    assert_eq!(unsafe { libc::fstat(paging.region.file(), &raw mut about) }, 0);
    about.st_blocks as usize * 512
}

#[test]
fn a_release_of_a_hundred_words_in_a_fresh_page_is_one_call() {
    if cannot("a_release_of_a_hundred_words_in_a_fresh_page_is_one_call") {
        return;
    }
    let _one = alone();
    for is_private in [true, false] {
        let counted = Counted::new(embedded(1));
        let store = Arc::clone(&counted) as Arc<dyn Store>;
        let process = Process::new(&store, Options { is_private, is_new: is_private, ..private(16 * MIB, 8 * MIB) });
        let base = process.base as u64;
        process.paging.fresh(base..base + 8 * PAGE_BYTES as u64);
        let before = counted.counts();
        for word in 0..100u32 {
            process.store(4 * word as usize, &(word + 1).to_le_bytes());
        }
        process.release();
        assert_eq!(counted.counts().since(&before).calls(), 1, "private: {is_private}");
        let mut page = store.get_many(&[Key::page(REGION, 0)]).expect("readable")[0].clone().expect("it is there");
        page.resize(PAGE_BYTES, 0);
        let words: Vec<u8> = (1..=100u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(page[..400], words, "private: {is_private}");
        process.release();
        assert_eq!(counted.counts().since(&before).calls(), 2, "nothing changed, so nothing was called but the look");
    }
}

#[test]
fn pages_in_a_row_come_in_few_calls() {
    if cannot("pages_in_a_row_come_in_few_calls") {
        return;
    }
    let _one = alone();
    let store = embedded(1);
    for page in 0..512u64 {
        let put = Change::Put(vec![page as u8; PAGE_BYTES]);
        store.apply(&[Operation::Change { key: Key::page(REGION, page), change: put }], None).expect("stored");
    }
    let counted = Counted::new(store);
    let process = Process::new(&(Arc::clone(&counted) as Arc<dyn Store>), shared(1, 16 * MIB, 8 * MIB));
    for page in 0..512 {
        assert_eq!(process.load(page * PAGE_BYTES + 9, 1), [page as u8], "page {page}");
    }
    let calls = counted.counts().calls();
    // Two pages come, and then windows of 4, 8, 16, 32 and so on up to a bound, in whatever order the threads run.
    assert!(calls <= 20, "{calls} calls for 512 pages");
    drop(process);
}

#[test]
fn two_processes_change_the_same_page_and_lose_nothing() {
    if cannot("two_processes_change_the_same_page_and_lose_nothing") {
        return;
    }
    let _one = alone();
    let store = embedded(2);
    let one = Process::new(&store, shared(1, 16 * MIB, 8 * MIB));
    let two = Process::new(&store, shared(2, 16 * MIB, 8 * MIB));
    one.store(0, b"one");
    two.store(100, b"two");
    assert_eq!(two.load(0, 3), [0; 3], "nothing was released");
    one.release();
    two.acquire();
    assert_eq!((two.load(0, 3), two.load(100, 3)), (b"one".to_vec(), b"two".to_vec()), "a patch leaves what is ours");
    // This is too much for a patch: the page is dropped, or merged if it was changed.
    one.store(2000, &[1; 2000]);
    one.release();
    two.store(110, b"more");
    two.acquire();
    assert_eq!((two.load(2000, 2000), two.load(110, 4)), (vec![1; 2000], b"more".to_vec()));
    two.release();
    one.acquire();
    assert_eq!((one.load(100, 3), one.load(110, 4)), (b"two".to_vec(), b"more".to_vec()));
    assert_eq!(one.load(0, 4096), two.load(0, 4096));
}

/// A page that changes before every release costs no fault for each one, and loses nothing when others change it too.
#[test]
fn a_page_that_is_released_again_and_again_stays_open() {
    if cannot("a_page_that_is_released_again_and_again_stays_open") {
        return;
    }
    let _one = alone();
    let store = embedded(2);
    let one = Process::new(&store, shared(1, 16 * MIB, 8 * MIB));
    let two = Process::new(&store, shared(2, 16 * MIB, 8 * MIB));
    let mut faults = Vec::new();
    for round in 1..=20u8 {
        one.store(8, &[round]);
        one.release();
        faults.push(one.paging.statistics().faults);
        two.acquire();
        assert_eq!(two.load(8, 1), [round]);
        two.store(9, &[round]);
        two.release();
        one.acquire();
        assert_eq!(one.load(8, 2), [round; 2]);
    }
    assert_eq!(faults[4], faults[19], "{faults:?}");
    // This is too much for a patch, while the page is open and unchanged.
    two.store(1000, &[3; 2000]);
    two.release();
    one.acquire();
    assert_eq!((one.load(8, 2), one.load(1000, 2000)), (vec![20; 2], vec![3; 2000]));
}

/// Two processes that take turns, with little memory, against an array; every release is followed by an acquire of the
/// other, and both change bytes of the same pages.
#[test]
fn turns_with_little_memory_are_those_of_an_array() {
    if cannot("turns_with_little_memory_are_those_of_an_array") {
        return;
    }
    let _one = alone();
    let bytes = 4 * MIB;
    let seed = std::env::var("TRELLIS_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x7e57u64);
    let what = format!("TRELLIS_TEST_SEED={seed} cargo test -p trellis turns_with_little_memory");
    let mut random = Random::new(seed);
    let store = embedded(2);
    let processes = [Process::new(&store, shared(1, bytes, MIB)), Process::new(&store, shared(2, bytes, MIB))];
    let mut model = vec![0u8; bytes];
    for turn in 0..60usize {
        let (active, other) = (&processes[turn % 2], &processes[1 - turn % 2]);
        active.acquire();
        for _ in 0..random.below(600) {
            let length = random.one_of(&[1, 3, 8, 200]);
            let at = random.index(bytes - length);
            if random.once_in(3) {
                assert_eq!(active.load(at, length), &model[at..at + length], "turn {turn} at {at}: {what}");
            } else {
                let from: Vec<u8> = (0..length).map(|byte| (turn + byte) as u8 | 1).collect();
                active.store(at, &from);
                model[at..at + length].copy_from_slice(&from);
            }
        }
        // The other one touches pages before it acquires, so that it has old copies, including copies of changed pages.
        for _ in 0..50 {
            other.load(random.index(bytes - 8), 8);
        }
        active.release();
    }
    processes.iter().for_each(Process::acquire);
    for (index, process) in processes.iter().enumerate() {
        for page in 0..bytes / PAGE_BYTES {
            let range = page * PAGE_BYTES..(page + 1) * PAGE_BYTES;
            assert!(process.load(range.start, PAGE_BYTES) == model[range], "process {index}, page {page}: {what}");
        }
    }
    let staged = store.numbers(REGION, trellis_store::Kind::Staged, 0, 9).expect("readable");
    assert!(staged.is_empty(), "redo records that were released are gone: {staged:?}");
}

#[test]
fn threads_store_while_others_release() {
    if cannot("threads_store_while_others_release") {
        return;
    }
    let _one = alone();
    let store = embedded(1);
    let process = Process::new(&store, shared(1, 4 * MIB, 2 * MIB));
    let rounds = 300u32;
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let process = &process;
            scope.spawn(move || {
                for round in 1..=rounds {
                    // Adjacent words of the same pages.
                    for page in 0..8 {
                        process.store(page * PAGE_BYTES + 4 * thread, &round.to_le_bytes());
                    }
                    if round % 7 == thread as u32 {
                        process.release();
                    }
                }
            });
        }
    });
    process.release();
    let keys: Vec<Key> = (0..8).map(|page| Key::page(REGION, page)).collect();
    for page in store.get_many(&keys).expect("readable") {
        let mut page = page.expect("it is there");
        page.resize(PAGE_BYTES, 0);
        assert_eq!(page[..12], [rounds.to_le_bytes(), rounds.to_le_bytes(), rounds.to_le_bytes()].concat());
    }
}

#[test]
fn system_calls_find_pages_that_are_not_here() {
    if cannot("system_calls_find_pages_that_are_not_here") {
        return;
    }
    let _one = alone();
    let store = embedded(1);
    let text: Vec<u8> = (0..3 * PAGE_BYTES).map(|byte| (byte * 7 % 251) as u8).collect();
    for (page, part) in text.chunks(PAGE_BYTES).enumerate() {
        let put = Change::Put(part.to_vec());
        store.apply(&[Operation::Change { key: Key::page(REGION, page as u64), change: put }], None).expect("stored");
    }
    let process = Process::new(&store, shared(1, 4 * MIB, 2 * MIB));
    if !process.paging.system_calls_work() {
        skip("system_calls_find_pages_that_are_not_here", Need::Kernel, "userfaultfd is allowed for user code only");
        return;
    }
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: bytes of the region.
    let written = unsafe { libc::write(ends[1], process.at(0).cast(), text.len()) };
    assert_eq!(written, text.len() as isize, "write(2) of pages that are not here");
    // SAFETY: bytes of the region; pages that are not here.
    let read = unsafe { libc::read(ends[0], process.at(10 * PAGE_BYTES + 5).cast(), text.len()) };
    assert_eq!(read, text.len() as isize, "read(2) into pages that are not here");
    assert_eq!(process.load(10 * PAGE_BYTES + 5, text.len()), text);
    for end in ends {
        // SAFETY: this test opened it, and does not use it any more.
        unsafe { libc::close(end) };
    }
}

#[test]
fn released_memory_is_zero_and_gone_from_the_store() {
    if cannot("released_memory_is_zero_and_gone_from_the_store") {
        return;
    }
    let _one = alone();
    let store = embedded(0);
    let process = Process::new(&store, private(16 * MIB, MIB));
    for page in 0..1024 {
        process.store(page * PAGE_BYTES, &[1; 64]);
    }
    assert!(!store.numbers(REGION, trellis_store::Kind::Memory, 0, 9).expect("readable").is_empty());
    let base = process.base as u64;
    assert!(process.paging.released(base..base + 1024 * PAGE_BYTES as u64).expect("released"));
    assert!(store.numbers(REGION, trellis_store::Kind::Memory, 0, 9).expect("readable").is_empty());
    for page in 0..1024 {
        assert_eq!(process.load(page * PAGE_BYTES, 64), [0; 64], "page {page}");
    }
}

#[test]
fn lines_are_allowed_where_the_frame_allows_it() {
    if cannot("lines_are_allowed_where_the_frame_allows_it") {
        return;
    }
    let _one = alone();
    let store = embedded(2);
    let one = Process::new(&store, Options { has_lines: true, ..shared(1, 4 * MIB, 2 * MIB) });
    let two = Process::new(&store, shared(2, 4 * MIB, 2 * MIB));
    let state = |offset: usize| {
        let at: *const u8 = std::ptr::with_exposed_provenance(crate::layout::LINE_STATES + offset / 64);
        // SAFETY: a byte of the table.
        unsafe { at.read_volatile() }
    };
    assert_eq!(state(0), 0);
    one.paging.touch(one.base + 60, 8, false).expect("touched");
    assert_eq!((state(0), state(64), state(PAGE_BYTES)), (1, 1, 0));
    let faults = one.paging.statistics().faults;
    one.load(60, 8);
    assert_eq!(one.paging.statistics().faults, faults, "what is allowed is no fault");
    one.paging.touch(one.base + PAGE_BYTES - 4, 8, true).expect("touched");
    assert_eq!((state(0), state(PAGE_BYTES)), (3, 3));
    one.store(PAGE_BYTES - 4, &[5; 8]);
    assert_eq!(one.paging.statistics().faults, faults);
    one.release();
    assert_eq!((state(0), state(PAGE_BYTES)), (1, 1), "after a release a store must be noticed again");
    two.store(0, &[9; 3000]);
    two.release();
    one.acquire();
    assert_eq!((state(0), state(PAGE_BYTES)), (0, 1), "the page that another one changed is gone");
    assert_eq!((one.load(0, 1), one.load(PAGE_BYTES - 4, 8)), (vec![9], vec![5; 8]));
}

#[test]
fn a_slow_store_is_waited_for_by_the_thread_that_needs_it_only() {
    if cannot("a_slow_store_is_waited_for_by_the_thread_that_needs_it_only") {
        return;
    }
    let _one = alone();
    let store = embedded(1);
    let slow: Arc<dyn Store> = Delayed::new(Arc::clone(&store), Duration::from_millis(30));
    let process = Process::new(&slow, shared(1, 16 * MIB, 8 * MIB));
    let counted = process.paging.statistics().pages_fetched;
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let process = &process;
            scope.spawn(move || process.load(thread * 100 * PAGE_BYTES, 1));
        }
    });
    assert_eq!(process.paging.statistics().pages_fetched - counted, 6);
}
