//! Tests stores that the kernel records: what is reported, what is not, and pages that switch from one way of detection
//! to the other while threads use them. For every catcher that supports it.

mod peer;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use peer::{Plan, World, works};
use trellis_memory::{Access, Catcher, Detection, Fault, Region, RegionOptions, Reserve, probe};
use trellis_testing::{Need, skip};

/// A catcher that has marks is one line here.
macro_rules! marks {
    ($($module:ident => $catcher:expr),*) => { $(
        mod $module {
            use super::*;
            suite!($catcher;
                a_store_is_noted_and_is_no_fault
                a_page_without_stores_is_never_marked
                held_pages_far_apart_are_all_looked_at
                write_pages_count_as_stored_to
                stores_of_system_calls_are_noted
                pages_larger_than_the_kernels
                many_runs_are_reported_once_each
                both_ways_side_by_side
                a_mark_survives_another_install
                a_reclaimed_page_counts_as_stored_to
                switching_keeps_bytes_and_access
                switching_piece_by_piece
                threads_use_pages_that_are_switched
                a_collector_misses_no_store
            );
        }
    )* };
}

macro_rules! suite {
    ($catcher:expr; $($check:ident)*) => { $(
        #[test]
        fn $check() {
            super::$check(concat!(module_path!(), "::", stringify!($check)), $catcher);
        }
    )* };
}

marks!(signal => Catcher::Signal, handler => Catcher::Handler);

const PAGE: usize = 4096;

fn read_of(page: usize) -> Fault {
    Fault { page, offset: 0, write: false }
}

fn write_of(page: usize) -> Fault {
    Fault { page, offset: 0, write: true }
}

/// A world whose machine has marks, or a line that says why not.
fn make(test: &str, plan: Plan) -> Option<World> {
    let marks = probe().marks;
    if !marks.available {
        skip(test, Need::Kernel, marks.detail);
        return None;
    }
    let world = World::make(test, plan)?;
    assert!(world.region.marks_work(), "what was tried out works for a region");
    Some(world)
}

/// The same, with every page under marks.
fn marked(test: &str, plan: Plan) -> Option<World> {
    let world = make(test, plan)?;
    world.region.detect(0, world.region.pages(), Detection::Marks).expect("detected by marks");
    Some(world)
}

fn reported(region: &Region, page: usize, count: usize) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    region.stored_to(page, count, &mut |first, count| runs.push((first, count))).expect("scanned");
    runs
}

fn all_reported(world: &World) -> Vec<(usize, usize)> {
    reported(&world.region, 0, world.region.pages())
}

fn a_store_is_noted_and_is_no_fault(test: &str, catcher: Catcher) {
    let Some(world) = marked(test, Plan::of(catcher)) else { return };
    assert_eq!(world.load(3 * PAGE), 0);
    assert_eq!(world.faults(), [read_of(3)], "a page that is not held faults as ever");
    assert_eq!(all_reported(&world), [], "a page that was installed is clean");
    world.store(3 * PAGE + 9, 1);
    assert_eq!(world.faults(), [], "a store to a readable page is no fault");
    assert_eq!(all_reported(&world), [(3, 1)]);
    assert_eq!(all_reported(&world), [(3, 1)], "looking changes nothing");
    assert_eq!(world.privileged_load(3 * PAGE + 9), 1);

    world.region.downgrade(3, 1).expect("downgraded");
    assert_eq!(all_reported(&world), [], "a downgraded page is clean");
    assert_eq!(world.load(3 * PAGE + 9), 1);
    assert_eq!(all_reported(&world), [], "a load is not a store");
    world.store(3 * PAGE, 2);
    assert_eq!((world.faults(), all_reported(&world)), (vec![], vec![(3, 1)]));

    world.withdraw(3, 1, Access::None);
    assert_eq!(all_reported(&world), [], "a revoked page leaves no report");
    assert_eq!(world.load(3 * PAGE), 2);
    assert_eq!((world.faults(), all_reported(&world)), (vec![read_of(3)], vec![]), "installed again it is clean");
}

fn held_pages_far_apart_are_all_looked_at(test: &str, catcher: Catcher) {
    let Some(world) = marked(test, Plan::of(catcher)) else { return };
    // Gaps shorter than, as long as and longer than what is scanned along with its neighbours.
    let held = [0, 2, 18, 35, 53, 54, 120, world.region.pages() - 1];
    held.iter().for_each(|page| assert_eq!(world.load(page * PAGE), 0));
    assert_eq!(all_reported(&world), []);
    for (number, page) in held.iter().enumerate() {
        world.store(page * PAGE, 1);
        let found: Vec<usize> =
            all_reported(&world).into_iter().flat_map(|(first, count)| first..first + count).collect();
        assert_eq!(found, held[..=number], "page {page}");
    }
}

fn a_page_without_stores_is_never_marked(test: &str, catcher: Catcher) {
    let Some(world) = marked(test, Plan::of(catcher)) else { return };
    let region = &world.region;
    assert_eq!(all_reported(&world), [], "no page is there yet");
    region.populate(0, 32).expect("there is memory");
    // SAFETY: the privileged view of a page that is not held, and of one that is.
    unsafe { region.privileged(5, 1).write_bytes(7, PAGE) };
    assert_eq!(world.load(6 * PAGE), 0);
    // SAFETY: the same.
    unsafe { region.privileged(6, 1).write_bytes(8, PAGE) };
    assert_eq!(all_reported(&world), [], "stores through the privileged view are nobody's");
    assert_eq!((world.load(5 * PAGE), world.load(6 * PAGE)), (7, 8));
    region.prepare(7, 1).expect("there is memory");
    assert_eq!(all_reported(&world), []);
    // Revoked in each of the states.
    world.store(8 * PAGE, 1);
    world.load(9 * PAGE);
    world.store(9 * PAGE, 1);
    world.load(10 * PAGE);
    region.revoke(8, 3).expect("revoked");
    world.note(8, 3, Access::None);
    assert_eq!(all_reported(&world), []);
}

fn write_pages_count_as_stored_to(test: &str, catcher: Catcher) {
    let Some(world) = marked(test, Plan::of(catcher)) else { return };
    world.region.install(4, 2, Access::Write, true).expect("installed");
    world.region.install(6, 1, Access::Read, true).expect("installed");
    world.note(4, 2, Access::Write);
    world.note(6, 1, Access::Read);
    assert_eq!(all_reported(&world), [(4, 2)]);
    world.region.upgrade(6, 1).expect("upgraded");
    assert_eq!(all_reported(&world), [(4, 3)]);
    assert_eq!(reported(&world.region, 5, 1), [(5, 1)], "only what was asked for");
    world.region.downgrade(4, 3).expect("downgraded");
    assert_eq!(all_reported(&world), []);
    world.store(40 * PAGE, 1);
    assert_eq!((world.faults(), all_reported(&world)), (vec![write_of(40)], vec![(40, 1)]));
}

fn stores_of_system_calls_are_noted(test: &str, catcher: Catcher) {
    let Some(world) = marked(test, Plan::of(catcher)) else { return };
    world.load(PAGE);
    world.load(2 * PAGE);
    world.faults();
    // SAFETY: 1024 bytes of a page that is readable.
    let got = unsafe { libc::getrandom(world.at(PAGE).cast(), 1024, 0) };
    assert_eq!(got, 1024, "the kernel stores to a page under marks with every catcher");
    assert_eq!((world.faults(), all_reported(&world)), (vec![], vec![(1, 1)]));
}

fn pages_larger_than_the_kernels(test: &str, catcher: Catcher) {
    const LARGE: usize = 64 << 10;
    let plan = Plan { bytes: 32 * LARGE, page_bytes: LARGE, ..Plan::of(catcher) };
    let Some(world) = marked(test, plan) else { return };
    (2..6).for_each(|page| assert_eq!(world.load(page * LARGE), 0));
    world.faults();
    for kernel_page in 0..16 {
        world.store(3 * LARGE + kernel_page * PAGE + 7, 1);
        assert_eq!(all_reported(&world), [(3, 1)], "kernel page {kernel_page}");
        world.region.downgrade(3, 1).expect("downgraded");
    }
    // Apart inside one page, and the last of one with the first of the next.
    world.store(2 * LARGE, 1);
    world.store(2 * LARGE + 2 * PAGE, 1);
    world.store(2 * LARGE + 9 * PAGE, 1);
    assert_eq!(all_reported(&world), [(2, 1)], "a page is reported once");
    world.store(4 * LARGE - 1, 1);
    world.store(5 * LARGE, 1);
    assert_eq!(all_reported(&world), [(2, 2), (5, 1)]);
    assert_eq!(world.faults(), []);
}

fn many_runs_are_reported_once_each(test: &str, catcher: Catcher) {
    let Some(world) = marked(test, Plan { bytes: 1024 * PAGE, ..Plan::of(catcher) }) else { return };
    world.region.install(0, 1000, Access::Read, true).expect("installed");
    world.note(0, 1000, Access::Read);
    let stored = |page: &usize| page.is_multiple_of(3) || page % 100 == 1;
    (0..1000).filter(stored).for_each(|page| world.store(page * PAGE + 8, 1));
    assert_eq!(world.faults(), []);
    let runs = all_reported(&world);
    assert!(runs.len() > 256, "more than one request of the kernel's can answer");
    let pages: Vec<usize> = runs.iter().flat_map(|(first, count)| *first..first + count).collect();
    assert_eq!(pages, (0..1000).filter(stored).collect::<Vec<_>>());
    assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "runs are as long as they can be");
}

fn both_ways_side_by_side(test: &str, catcher: Catcher) {
    let Some(world) = make(test, Plan::of(catcher)) else { return };
    let region = &world.region;
    region.detect(8, 8, Detection::Marks).expect("detected by marks");
    region.install(4, 16, Access::Read, true).expect("installed over both borders");
    world.note(4, 16, Access::Read);
    assert_eq!(all_reported(&world), []);
    (4..20).for_each(|page| world.store(page * PAGE, 1));
    let faulted: Vec<Fault> = (4..8).chain(16..20).map(write_of).collect();
    assert_eq!(world.faults(), faulted, "only pages without marks fault");
    assert_eq!(all_reported(&world), [(4, 16)], "write pages and marked ones");
    region.downgrade(4, 16).expect("downgraded over both borders");
    world.note(4, 16, Access::Read);
    assert_eq!(all_reported(&world), []);
    region.upgrade(6, 4).expect("upgraded over a border");
    world.note(6, 4, Access::Write);
    world.store(7 * PAGE, 2);
    world.store(8 * PAGE, 2);
    assert_eq!((world.faults(), all_reported(&world)), (vec![], vec![(6, 4)]));
    region.wake(4, 16);
    region.revoke(4, 16).expect("revoked over both borders");
    world.note(4, 16, Access::None);
    assert_eq!(all_reported(&world), []);
    (4..20).for_each(|page| assert_eq!(world.load(page * PAGE), if page == 7 || page == 8 { 2 } else { 1 }));
    assert_eq!(world.faults(), (4..20).map(read_of).collect::<Vec<_>>());
}

fn a_mark_survives_another_install(test: &str, catcher: Catcher) {
    let Some(world) = marked(test, Plan::of(catcher)) else { return };
    for page in 2..5 {
        world.load(page * PAGE);
    }
    world.store(2 * PAGE, 1);
    world.store(4 * PAGE, 1);
    // A fault that was answered already is answered again, beside pages that are new.
    world.region.install(1, 4, Access::Read, true).expect("installed");
    world.note(1, 4, Access::Read);
    assert_eq!(all_reported(&world), [(2, 1), (4, 1)], "nor does a clean page get a mark");
    world.faults();
    (1..5).for_each(|page| world.store(page * PAGE, 2));
    assert_eq!((world.faults(), all_reported(&world)), (vec![], vec![(1, 4)]));
}

/// The kernel takes pages out of the page table when memory is short, and with them what it knew about stores.
fn a_reclaimed_page_counts_as_stored_to(test: &str, catcher: Catcher) {
    let Some(world) = marked(test, Plan::of(catcher)) else { return };
    for page in 3..6 {
        world.load(page * PAGE);
    }
    world.store(4 * PAGE, 9);
    world.faults();
    // SAFETY: does to the page table what reclaim does; the bytes stay in the file.
    assert_eq!(unsafe { libc::madvise(world.at(4 * PAGE).cast(), PAGE, libc::MADV_DONTNEED) }, 0);
    assert_eq!(all_reported(&world), [(4, 1)], "what was stored is not forgotten");
    world.region.install(4, 1, Access::Read, false).expect("installed");
    assert_eq!(all_reported(&world), [(4, 1)], "nor when the page is there again");
    world.region.downgrade(4, 1).expect("downgraded");
    assert_eq!((all_reported(&world), world.load(4 * PAGE)), (vec![], 9));
}

fn switching_keeps_bytes_and_access(test: &str, catcher: Catcher) {
    for page_bytes in [PAGE, 64 << 10] {
        let Some(world) = make(test, Plan { bytes: 32 * page_bytes, page_bytes, ..Plan::of(catcher) }) else { return };
        let region = &world.region;
        let byte = |page: usize| page * page_bytes + page_bytes - 3;
        // 8..12 none (with bytes), 12..16 read, 16..20 write.
        region.install(8, 12, Access::Write, true).expect("installed");
        (8..20).for_each(|page| world.store(byte(page), page as u8));
        region.downgrade(8, 8).expect("downgraded");
        region.revoke(8, 4).expect("revoked");
        world.note(8, 4, Access::None);
        world.note(12, 4, Access::Read);
        world.note(16, 4, Access::Write);
        for round in 0..3 {
            region.detect(6, 20, Detection::Marks).expect("detected by marks");
            assert_eq!(all_reported(&world), [(16, 4)], "round {round}: write pages count as stored to");
            (12..20).for_each(|page| assert_eq!(world.load(byte(page)), page as u8));
            assert_eq!(world.faults(), [], "round {round}: what was accessible still is");
            world.store(byte(13), 13);
            assert_eq!((world.faults(), all_reported(&world)), (vec![], vec![(13, 1), (16, 4)]));
            region.downgrade(13, 1).expect("downgraded");
            region.detect(6, 20, Detection::Marks).expect("asking twice is no error");

            region.detect(6, 20, Detection::Faults).expect("detected by faults");
            (12..20).for_each(|page| assert_eq!(world.load(byte(page)), page as u8));
            (16..20).for_each(|page| world.store(byte(page), page as u8));
            assert_eq!(world.faults(), [], "round {round}: and again");
            world.store(byte(12), 12);
            assert_eq!(world.faults(), [write_of(12)], "round {round}: a readable page is no more than that");
            world.withdraw(12, 1, Access::Read);
        }
        (8..12).for_each(|page| assert_eq!(world.load(byte(page)), page as u8));
        assert_eq!(world.faults(), (8..12).map(read_of).collect::<Vec<_>>(), "pages without access had none");
        // What a mark tells of when faults take over is a write page: the store is not forgotten.
        region.detect(8, 4, Detection::Marks).expect("detected by marks");
        world.store(byte(9), 99);
        region.detect(8, 4, Detection::Faults).expect("detected by faults");
        assert_eq!(reported(region, 8, 4), [(9, 1)]);
    }
}

fn switching_piece_by_piece(test: &str, catcher: Catcher) {
    let Some(world) = make(test, Plan::of(catcher)) else { return };
    let (region, pages) = (&world.region, world.region.pages());
    for page in (0..pages).step_by(2).chain((1..pages).step_by(2)) {
        region.detect(page, 1, Detection::Marks).expect("detected by marks");
    }
    region.install(0, pages, Access::Read, true).expect("installed as one range");
    world.note(0, pages, Access::Read);
    (0..pages).for_each(|page| world.store(page * PAGE, page as u8));
    assert_eq!((world.faults(), all_reported(&world)), (vec![], vec![(0, pages)]));
    region.downgrade(0, pages).expect("downgraded as one range");
    for page in (0..pages).rev() {
        region.detect(page, 1, Detection::Faults).expect("detected by faults");
    }
    assert_eq!(all_reported(&world), []);
    region.revoke(0, pages).expect("revoked");
    region.install(0, pages, Access::Read, false).expect("installed as one range");
    (0..pages).for_each(|page| assert_eq!(world.load(page * PAGE), page as u8));
    assert_eq!(world.faults(), []);
    world.store(5 * PAGE, 1);
    assert_eq!(world.faults(), [write_of(5)]);
}

/// Threads count in words of their own while the pages change from one way to the other. A window in which a page is
/// not caught, or a thread that waits at the wrong place, shows as a wrong sum or as a test that does not end.
fn threads_use_pages_that_are_switched(test: &str, catcher: Catcher) {
    const THREADS: usize = 3;
    const PAGES: usize = 8;
    const ROUNDS: usize = 60;
    let Some(world) = make(test, Plan::of(catcher)) else { return };
    let done = AtomicBool::new(false);
    let steps: [AtomicU64; THREADS] = std::array::from_fn(|_| AtomicU64::new(0));
    let word = |page: usize, thread: usize| world.at(page * PAGE + 8 * thread) as usize;
    let count = |words: [usize; PAGES], steps: &AtomicU64| {
        while !done.load(Ordering::SeqCst) {
            for word in words.map(|word| word as *mut u64) {
                // SAFETY: the calling thread's own word of the region.
                unsafe { word.write_volatile(word.read_volatile() + 1) };
                steps.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    std::thread::scope(|scope| {
        for (thread, steps) in steps.iter().enumerate() {
            let words = std::array::from_fn(|page| word(page, thread));
            let count = &count;
            scope.spawn(move || count(words, steps));
        }
        for round in 0..ROUNDS {
            let detection = if round % 2 == 0 { Detection::Marks } else { Detection::Faults };
            world.switched(0, PAGES, detection);
            world.withdraw(round % PAGES, 1, Access::None);
            // Each thread has to get past every page: one that waits where no thread wakes it never does.
            for steps in &steps {
                let enough = steps.load(Ordering::SeqCst) + 2 * PAGES as u64;
                while steps.load(Ordering::SeqCst) < enough {
                    std::thread::yield_now();
                }
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    let total: u64 = steps.iter().map(|steps| steps.load(Ordering::SeqCst)).sum();
    let value = |(page, thread)| {
        // SAFETY: a word of the region that nobody changes any more.
        unsafe { (word(page, thread) as *const u64).read_volatile() }
    };
    let words = (0..PAGES).flat_map(|page| (0..THREADS).map(move |thread| (page, thread)));
    let sum: u64 = words.map(value).sum();
    assert_eq!(sum, total, "no store was lost");
}

/// What a publishing node does: ask, downgrade, compare. Every store of the other threads is found in the round in which
/// it was made or in a later one, never lost between two.
fn a_collector_misses_no_store(test: &str, catcher: Catcher) {
    const PAGES: usize = 64;
    const THREADS: usize = 2;
    let Some(world) = marked(test, Plan::of(catcher)) else { return };
    let region = &world.region;
    region.install(0, PAGES, Access::Read, true).expect("installed");
    world.note(0, PAGES, Access::Read);
    let (start, running) = (Barrier::new(THREADS + 1), AtomicU64::new(THREADS as u64));
    let mut copy = vec![0u8; PAGES * PAGE];
    let mut collect = || {
        region
            .stored_to(0, PAGES, &mut |first, count| {
                region.downgrade(first, count).expect("downgraded");
                // SAFETY: the privileged view of those pages, into a copy of its own.
                unsafe {
                    let to = copy.as_mut_ptr().add(first * PAGE);
                    region.privileged(first, count).copy_to_nonoverlapping(to, count * PAGE);
                }
            })
            .expect("scanned");
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (world, start, running) = (&world, &start, &running);
            scope.spawn(move || {
                start.wait();
                for step in 0..20_000usize {
                    world.store((step * 7 + thread) % PAGES * PAGE + 8 * thread, (step % 251) as u8);
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        start.wait();
        while running.load(Ordering::SeqCst) > 0 {
            collect();
        }
    });
    collect();
    assert_eq!(world.faults(), [], "no store was a fault");
    // SAFETY: the privileged view; nobody stores any more.
    let now = unsafe { std::slice::from_raw_parts(region.privileged(0, PAGES), PAGES * PAGE) };
    assert!(now == copy.as_slice(), "what was collected is what is there");
}

#[test]
fn a_catcher_without_marks_says_so() {
    let test = "a_catcher_without_marks_says_so";
    assert!(works(test, Catcher::Mprotect));
    let _alone = peer::alone();
    let options = RegionOptions {
        base_address: None,
        bytes: 1 << 20,
        page_bytes: PAGE,
        catcher: Catcher::Mprotect,
        reserve: Reserve::Lazy,
    };
    let region = Region::create(&options).unwrap_or_else(|error| panic!("{error}"));
    assert!(!region.marks_work());
    region.detect(0, 4, Detection::Faults).expect("faults are what it has");
    let error = region.detect(2, 4, Detection::Marks).expect_err("it has no marks").to_string();
    assert!(error.contains("Linux 6.7") && error.contains("from page 2"), "{error}");
    assert!(region.stored_to(0, 4, &mut |_, _| panic!("nothing is found")).is_err());
}

#[test]
fn the_memory_of_twins_can_be_taken_at_the_start() {
    let _alone = peer::alone();
    let options = RegionOptions {
        base_address: None,
        bytes: 8 << 20,
        page_bytes: PAGE,
        catcher: Catcher::Mprotect,
        reserve: Reserve::Full,
    };
    let region = Region::create(&options).unwrap_or_else(|error| panic!("{error}"));
    let resident = |address: *mut u8| {
        let mut pages = vec![0u8; region.pages()];
        // SAFETY: a mapping of the region's size, and a byte for each of its pages.
        let asked = unsafe { libc::mincore(address.cast(), region.bytes(), pages.as_mut_ptr()) };
        assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 != 0).count()
    };
    assert_eq!(resident(region.privileged(0, region.pages())), region.pages());
    assert_eq!(resident(region.twin(0, region.pages())), 0);
    region.reserve_twins().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(resident(region.twin(0, region.pages())), region.pages());
}

#[test]
fn twins_keep_what_the_privileged_view_held() {
    let _alone = peer::alone();
    let options = RegionOptions {
        base_address: None,
        bytes: 1 << 20,
        page_bytes: PAGE,
        catcher: Catcher::Mprotect,
        reserve: Reserve::Lazy,
    };
    let region = Region::create(&options).unwrap_or_else(|error| panic!("{error}"));
    region.drop_twins(0, region.pages());
    // SAFETY: privileged view and twins of pages of this region, which nobody else uses.
    unsafe {
        region.privileged(3, 2).write_bytes(5, 2 * PAGE);
        region.keep_twin(3, 2);
        region.privileged(3, 2).write_bytes(6, 2 * PAGE);
        let twins = std::slice::from_raw_parts(region.twin(3, 2), 2 * PAGE);
        assert!(twins.iter().all(|byte| *byte == 5));
        region.drop_twins(3, 1);
        assert_eq!((region.twin(3, 1).read(), region.twin(4, 1).read()), (0, 5), "memory given back is zero");
        assert_eq!(region.privileged(3, 1).read(), 6);
    }
}
