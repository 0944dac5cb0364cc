//! Tests leased pages against the model of a memory server: little memory, several nodes in one process, rights that
//! end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trellis_base::Random;
use trellis_memory::{Catcher, Fault, FaultServer, Region, RegionOptions, Reserve};

use super::model::{ModelClient, ModelServer};
use super::{Host, PAGE_BYTES, Paging};
use trellis_record::{Counters, FaultKind, LiveCounters};

const PAGE: usize = PAGE_BYTES as usize;
const BASE: usize = 0x2200_0000_0000;

/// The number of regions of a process that catch faults is limited.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints why a test is skipped where pages cannot be caught.
fn cannot(test: &str) -> bool {
    let missing = trellis_memory::choose(Some(Catcher::Handler), &trellis_memory::probe()).err();
    if let Some(why) = &missing {
        trellis_testing::skip(test, trellis_testing::Need::Kernel, why);
    }
    missing.is_some()
}

struct Nobody;

impl FaultServer for Nobody {
    fn serve(&self, _fault: Fault) {}
}

/// Counts, and keeps the message of a failure; the thread that failed does not continue.
#[derive(Clone, Default)]
struct Counting {
    counters: Arc<LiveCounters>,
    failed: Arc<Mutex<Option<String>>>,
    is_expected: Arc<AtomicBool>,
    upgrades: Arc<AtomicU64>,
}

impl Host for Counting {
    fn count(&self, counter: fn(&LiveCounters) -> &AtomicU64, amount: u64) {
        LiveCounters::add(counter(&self.counters), amount);
    }

    fn served(&self, _page: u64, kind: FaultKind, _waited: Duration) {
        self.upgrades.fetch_add(u64::from(kind == FaultKind::Upgrade), Ordering::Relaxed);
    }

    fn fail(&self, sentence: String) -> ! {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(sentence);
        // A thread that serves pages would end the whole process; where a test examines the message, the thread stays.
        while self.is_expected.load(Ordering::SeqCst) {
            std::thread::park();
        }
        panic!("the node failed");
    }
}

/// A node, as far as its pages are concerned.
struct Process {
    paging: Arc<Paging>,
    region: Arc<Region>,
    host: Counting,
}

impl Process {
    fn new(server: &Arc<ModelServer>, number: usize, pages: usize, cache_pages: usize) -> Process {
        let region = Region::create(&RegionOptions {
            base_address: Some(BASE + number * (1 << 36)),
            bytes: pages * PAGE,
            page_bytes: PAGE,
            catcher: Catcher::Handler,
            reserve: Reserve::Overcommit,
        })
        .unwrap_or_else(|error| panic!("{error}"));
        region.catch(Arc::new(Nobody)).unwrap_or_else(|error| panic!("{error}"));
        let (region, host) = (Arc::new(region), Counting::default());
        let paging = Paging::new(Arc::clone(&region), cache_pages * PAGE, Box::new(host.clone()));
        let paging = Arc::new(paging.expect("a descriptor is left"));
        server.attach(number, Arc::new(Arc::downgrade(&paging)));
        let client = ModelClient { server: Arc::clone(server), number };
        paging.start(Arc::new(client)).expect("threads start");
        Process { paging, region, host }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the region, which outlives this; any bits are a number.
        unsafe { &*self.region.base().cast::<AtomicU64>().add(index) }
    }

    fn counted(&self) -> Counters {
        self.host.counters.load()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.paging.stop();
        self.region.release();
    }
}

const WORDS: usize = PAGE / 8;

#[test]
fn four_times_the_cache_is_written_read_and_given_back() {
    if cannot("four_times_the_cache_is_written_read_and_given_back") {
        return;
    }
    let _alone = alone();
    let (pages, cache) = (2_048, 512);
    let server = ModelServer::new(pages, 1);
    let node = Process::new(&server, 0, pages, cache);
    for round in 1..=3u64 {
        for page in 0..pages {
            for word in [0, 7, WORDS - 1] {
                let before = node.word(page * WORDS + word).load(Ordering::SeqCst);
                let expected = if round == 1 { 0 } else { (round - 1) * 1_000_000 + (page * WORDS + word) as u64 };
                assert_eq!(before, expected, "word {word} of page {page} in round {round}");
                node.word(page * WORDS + word)
                    .store(round * 1_000_000 + (page * WORDS + word) as u64, Ordering::SeqCst);
            }
        }
        let page_frames = node.paging.state().table.page_frames();
        assert!(page_frames <= cache, "{page_frames} page frames are in memory for {cache}");
    }
    let counted = node.counted();
    assert!(counted.pages_evicted as usize > 2 * (pages - cache), "{counted:?}");
    assert!(counted.prefetched_pages > 0, "a row is read ahead: {counted:?}");
    let (active, inactive) = node.paging.state().table.queued();
    node.paging.flush();
    assert_eq!(node.paging.state().table.page_frames(), 0);
    // Once for everything in memory, and once more to see that nothing remains: not once for each batch.
    let listed = node.paging.state().table.listed.get();
    assert!(listed <= 3 * (active + inactive), "{listed} entries were looked at for {active} and {inactive}");
    for page in 0..pages as u64 {
        let at = 7 * 8;
        let word = u64::from_le_bytes(server.bytes(page)[at..at + 8].try_into().expect("eight bytes"));
        assert_eq!(word, 3_000_000 + page * WORDS as u64 + 7, "page {page} at its home");
        assert_eq!(server.rights(page).0, None, "page {page} is nobody's");
    }
}

#[test]
fn two_nodes_write_a_page_alternately() {
    if cannot("two_nodes_write_a_page_alternately") {
        return;
    }
    let _alone = alone();
    let server = ModelServer::new(64, 2);
    let nodes = [Process::new(&server, 0, 64, 256), Process::new(&server, 1, 64, 256)];
    const TURNS: u64 = 1_000;
    std::thread::scope(|scope| {
        for (me, node) in nodes.iter().enumerate() {
            scope.spawn(move || {
                // Word 0 says whose turn it is; both write word 1, in the same page.
                for turn in (me as u64..2 * TURNS).step_by(2) {
                    while node.word(0).load(Ordering::SeqCst) != turn {
                        std::thread::yield_now();
                    }
                    let before = node.word(1).load(Ordering::SeqCst);
                    assert_eq!(before, turn);
                    node.word(1).store(before + 1, Ordering::SeqCst);
                    node.word(0).store(turn + 1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(nodes[0].word(1).load(Ordering::SeqCst), 2 * TURNS);
    let counted = nodes[0].counted().plus(&nodes[1].counted());
    assert!(counted.recalls > TURNS, "the page went to and fro: {counted:?}");
}

#[test]
fn atomic_additions_of_all_nodes_are_all_there() {
    if cannot("atomic_additions_of_all_nodes_are_all_there") {
        return;
    }
    let _alone = alone();
    const PAGES: usize = 600;
    let server = ModelServer::new(PAGES, 3);
    // Less memory than pages, so that pages are evicted meanwhile, too.
    let nodes: Vec<Process> = (0..3).map(|number| Process::new(&server, number, PAGES, 256)).collect();
    let additions = 4_000u64;
    std::thread::scope(|scope| {
        for (number, node) in nodes.iter().enumerate() {
            scope.spawn(move || {
                let mut random = Random::new(number as u64);
                for _ in 0..additions {
                    // A few contended pages, and many others.
                    let pages = if random.once_in(2) { 4 } else { PAGES };
                    node.word(random.index(pages) * WORDS).fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    nodes.iter().for_each(|node| node.paging.flush());
    let first = |page: u64| u64::from_le_bytes(server.bytes(page)[..8].try_into().expect("eight bytes"));
    assert_eq!((0..PAGES as u64).map(first).sum::<u64>(), 3 * additions);
}

#[test]
fn what_is_stored_is_seen_in_one_order() {
    if cannot("what_is_stored_is_seen_in_one_order") {
        return;
    }
    let _alone = alone();
    let server = ModelServer::new(64, 2);
    let nodes = [Process::new(&server, 0, 64, 256), Process::new(&server, 1, 64, 256)];
    // Dekker's test: each thread announces itself in a page of its own, and looks at the other's. They must not both
    // see nothing.
    let barrier = std::sync::Barrier::new(2);
    let seen = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for me in 0..2usize {
            let (nodes, barrier, seen) = (&nodes, &barrier, &seen);
            scope.spawn(move || {
                for round in 1..=300u64 {
                    barrier.wait();
                    nodes[me].word(me * WORDS).store(round, Ordering::SeqCst);
                    seen[me].store(nodes[me].word((1 - me) * WORDS).load(Ordering::SeqCst), Ordering::SeqCst);
                    barrier.wait();
                    let saw = seen.each_ref().map(|seen| seen.load(Ordering::SeqCst));
                    assert!(saw.contains(&round), "in round {round} the nodes saw {saw:?}");
                }
            });
        }
    });
}

#[test]
fn a_copy_that_is_changed_is_not_fetched_again() {
    if cannot("a_copy_that_is_changed_is_not_fetched_again") {
        return;
    }
    let _alone = alone();
    let server = ModelServer::new(64, 2);
    let nodes = [Process::new(&server, 0, 64, 256), Process::new(&server, 1, 64, 256)];
    assert_eq!(nodes[0].word(9 * WORDS).load(Ordering::SeqCst), 0);
    assert_eq!(nodes[1].word(9 * WORDS).load(Ordering::SeqCst), 0);
    assert_eq!(server.rights(9).1.len(), 2);
    nodes[0].word(9 * WORDS).store(5, Ordering::SeqCst);
    assert_eq!(server.rights(9), (Some(0), std::collections::HashSet::new()));
    assert_eq!(nodes[0].counted().pages_in, 1, "its bytes were here");
    assert_eq!(nodes[1].counted().invalidations, 1);
    assert_eq!(nodes[1].word(9 * WORDS).load(Ordering::SeqCst), 5);
    assert_eq!(nodes[0].counted().recalls, 1);
    let upgrades = Arc::clone(&nodes[0].host.upgrades);
    // Faults are counted after their threads continued: all are counted when the serving threads have ended.
    drop(nodes);
    assert_eq!(upgrades.load(Ordering::Relaxed), 1);
}

#[test]
fn pages_come_before_they_are_touched() {
    if cannot("pages_come_before_they_are_touched") {
        return;
    }
    let _alone = alone();
    let server = ModelServer::new(256, 1);
    let node = Process::new(&server, 0, 256, 1024);
    node.paging.prefetch(10..40, false);
    assert_eq!(node.counted().prefetched_pages, 30);
    node.paging.prefetch(30..60, true);
    assert_eq!((server.rights(29).0, server.rights(30).0, server.rights(59).0), (None, Some(0), Some(0)));
    assert_eq!(node.counted().pages_in, 30 + 20, "ten were here");
    node.word(45 * WORDS).store(1, Ordering::SeqCst);
    assert_eq!(node.counted().pages_in, 30 + 20);
}

#[test]
fn a_lease_that_ended_with_changes_ends_the_node_and_a_copy_does_not() {
    if cannot("a_lease_that_ended_with_changes_ends_the_node_and_a_copy_does_not") {
        return;
    }
    let _alone = alone();
    let server = ModelServer::new(64, 8);
    // It is never dropped, because its threads do not end, so it uses a place that no other test uses.
    let node = std::mem::ManuallyDrop::new(Process::new(&server, 7, 64, 256));
    node.host.is_expected.store(true, Ordering::SeqCst);
    assert_eq!(node.word(3 * WORDS).load(Ordering::SeqCst), 0);
    node.paging.was_lost(3);
    assert_eq!(node.word(3 * WORDS).load(Ordering::SeqCst), 0, "it is fetched again");
    node.word(3 * WORDS).store(1, Ordering::SeqCst);
    server.expire(3);
    let failed = || node.host.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
    let deadline = Instant::now() + Duration::from_secs(60);
    let sentence = loop {
        let sentence = failed();
        if sentence.is_some() || Instant::now() > deadline {
            break sentence;
        }
        std::thread::yield_now();
    };
    assert!(
        sentence.as_deref().is_some_and(|sentence| sentence.starts_with("the lease of page 3 at the model ended")),
        "{sentence:?}"
    );
}

#[test]
fn a_copy_is_used_when_it_was_touched_since_somebody_asked() {
    if cannot("a_copy_is_used_when_it_was_touched_since_somebody_asked") {
        return;
    }
    let _alone = alone();
    let server = ModelServer::new(64, 1);
    let node = Process::new(&server, 0, 64, 256);
    assert!(!node.paging.is_used(3), "it is not here");
    assert_eq!(node.word(3 * WORDS).load(Ordering::SeqCst), 0);
    assert!(node.paging.is_used(3));
    assert!(!node.paging.is_used(3), "nobody touched it since");
    assert_eq!(node.word(3 * WORDS).load(Ordering::SeqCst), 0);
    assert!(node.paging.is_used(3));
    assert_eq!(node.counted().pages_in, 1, "its bytes were here all the time");
    node.word(3 * WORDS).store(1, Ordering::SeqCst);
    assert!(node.paging.is_used(3) && node.paging.is_used(3), "what is owned is not given up");
    node.word(3 * WORDS).store(2, Ordering::SeqCst);
    node.paging.flush();
    assert_eq!(server.bytes(3)[0], 2);
}
