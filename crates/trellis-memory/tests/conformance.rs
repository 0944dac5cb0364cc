//! One test suite for every catcher: the contract in `src/catch/mod.rs`, promise by promise, against a fake peer. Tests
//! that end with a signal are in `tests/signals.rs`.

mod peer;

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use peer::{Plan, World, works};
use trellis_base::proc_bytes;
use trellis_memory::{Access, Catcher, Detection, Fault, Piece, Region, RegionOptions, Reserve};
use trellis_testing::{Folder, Need, skip};

/// A new catcher is one line here.
macro_rules! conformance {
    ($($module:ident => $catcher:expr),*) => { $(
        mod $module {
            use super::*;
            suite!($catcher;
                reads_and_writes_are_told_apart
                never_written_pages_are_zero
                a_remote_page_is_what_the_runtime_put_there
                the_runtime_sees_every_store_after_a_downgrade
                a_revoked_page_keeps_its_bytes
                a_discarded_page_is_zero_and_takes_no_memory
                a_downgraded_and_revoked_page_can_be_installed_either_way
                asking_twice_is_no_error
                an_install_over_mapped_pages_gives_what_was_asked
                an_upgrade_does_not_open_neighbours
                ranges_work_as_single_pages_do
                pages_of_4_kib
                pages_of_64_kib
                pages_of_2_mib
                a_partly_written_page_is_completed_with_zeros
                many_threads_fault_at_once
                revoking_races_with_touching
                readers_see_a_writer_in_order
                a_huge_region_takes_memory_only_where_it_is_touched
                memory_can_be_taken_at_the_start
                errno_survives_a_fault
                system_calls_do_what_the_abilities_say
                an_address_is_free_again_after_the_region
                pages_may_be_at_addresses_of_their_own
                a_mapping_that_the_program_divides_is_one_region
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

conformance!(signal => Catcher::Signal, handler => Catcher::Handler, mprotect => Catcher::Mprotect);

const PAGE: usize = 4096;

fn read_of(page: usize) -> Fault {
    Fault { page, offset: 0, write: false }
}

fn write_of(page: usize) -> Fault {
    Fault { page, offset: 0, write: true }
}

fn reads_and_writes_are_told_apart(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    world.load(3 * PAGE + 17);
    assert_eq!(world.exact_faults(), [Fault { offset: 17, ..read_of(3) }], "a load of a page that is not held");
    world.load(3 * PAGE + 4095);
    assert_eq!(world.faults(), [], "the page is readable now");
    world.store(3 * PAGE, 1);
    assert_eq!(world.faults(), [write_of(3)], "a store to a readable page");
    world.store(3 * PAGE + 1, 1);
    assert_eq!(world.faults(), [], "the page is writable now");
    world.store(9 * PAGE + 8, 1);
    let fault = Fault { offset: 8, ..write_of(9) };
    assert_eq!(world.exact_faults(), [fault], "a store to a page that is not held is one fault");
    // SAFETY: an aligned word of the region.
    let word = unsafe { AtomicU64::from_ptr(world.at(11 * PAGE).cast()) };
    word.fetch_add(1, Ordering::SeqCst);
    assert_eq!(world.faults().last(), Some(&write_of(11)), "a read-modify-write ends with the right to write");
    assert_eq!(word.load(Ordering::SeqCst), 1);
}

fn never_written_pages_are_zero(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    for offset in [0, PAGE - 1, 5 * PAGE + 100] {
        assert_eq!(world.load(offset), 0);
    }
    world.store(7 * PAGE + 1, 9);
    assert_eq!((world.load(7 * PAGE), world.load(7 * PAGE + 1), world.load(8 * PAGE - 1)), (0, 9, 0));
}

fn a_remote_page_is_what_the_runtime_put_there(test: &str, catcher: Catcher) {
    let remote: fn(usize) -> u8 = |page| page as u8 ^ 0x5a;
    let Some(world) = World::make(test, Plan { remote: Some(remote), ..Plan::of(catcher) }) else { return };
    for page in 0..world.region.pages() {
        assert_eq!(world.load(page * PAGE + page), remote(page));
        assert_eq!(world.load(page * PAGE + PAGE - 1), remote(page));
    }
    assert_eq!(world.faults().len(), world.region.pages(), "one fault for each page");
}

fn the_runtime_sees_every_store_after_a_downgrade(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    for round in 1..=3 {
        world.store(2 * PAGE + 5, round);
        assert_eq!(world.faults(), [write_of(2)], "round {round}: the store faults again after the downgrade");
        world.withdraw(2, 1, Access::Read);
        assert_eq!(world.privileged_load(2 * PAGE + 5), round);
        assert_eq!(world.load(2 * PAGE + 5), round);
        assert_eq!(world.faults(), [], "a downgraded page can be read");
    }
}

fn a_revoked_page_keeps_its_bytes(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    world.store(PAGE, 77);
    world.withdraw(1, 1, Access::None);
    assert_eq!(world.privileged_load(PAGE), 77);
    world.faults();
    assert_eq!(world.load(PAGE), 77);
    assert_eq!(world.faults(), [read_of(1)], "a revoked page faults");
    world.withdraw(1, 1, Access::None);
    // SAFETY: the privileged view of page 1.
    unsafe { world.region.privileged(1, 1).write_volatile(78) };
    assert_eq!(world.load(PAGE), 78, "what arrived in the privileged view is seen after the next fault");
}

fn a_discarded_page_is_zero_and_takes_no_memory(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    for page in 0..8 {
        world.store(page * PAGE + 5, 77);
    }
    let taken = file_bytes(&world.region);
    world.withdraw(2, 2, Access::Read);
    world.withdraw(1, 4, Access::None);
    world.region.discard(1, 4).expect("discarded");
    assert_eq!(taken - file_bytes(&world.region), 4 * PAGE, "the memory of four pages is given back");
    world.faults();
    assert_eq!((world.load(PAGE + 5), world.privileged_load(4 * PAGE + 5)), (0, 0));
    assert_eq!(world.faults(), [read_of(1)], "a discarded page faults");
    world.store(PAGE + 6, 9);
    world.store(2 * PAGE, 8);
    assert_eq!(world.faults(), [write_of(1), write_of(2)]);
    assert_eq!((world.privileged_load(PAGE + 6), world.privileged_load(2 * PAGE)), (9, 8));
    assert_eq!((world.load(5), world.load(5 * PAGE + 5)), (77, 77), "its neighbours stay");
}

/// How much memory the bytes of a region take.
fn file_bytes(region: &Region) -> usize {
    // SAFETY: an all-zero answer is a valid one.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open as long as the region, and `about` is a valid place for the answer.
    assert_eq!(unsafe { libc::fstat(region.file(), &raw mut about) }, 0);
    about.st_blocks as usize * 512
}

/// On shared memory the kernel keeps a write-protect marker in the page table when a protected page is dropped. A page
/// installed over a marker must have exactly the access that was asked for.
fn a_downgraded_and_revoked_page_can_be_installed_either_way(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    for round in 0..3 {
        for access in [Access::Read, Access::Write] {
            world.store(4 * PAGE, round);
            world.withdraw(4, 1, Access::Read);
            world.withdraw(4, 1, Access::None);
            world.faults();
            world.region.install(4, 1, access, false).expect("installed over a marker");
            world.note(4, 1, access);
            assert_eq!(world.load(4 * PAGE), round);
            assert_eq!(world.faults(), [], "{access:?}: the page can be read");
            world.store(4 * PAGE, round + 1);
            let expected: &[Fault] = if access == Access::Read { &[write_of(4)] } else { &[] };
            assert_eq!(world.faults(), expected, "{access:?}: a store");
        }
    }
    // The same by way of faults: a load, then a store, of a page with a marker.
    world.withdraw(4, 1, Access::Read);
    world.withdraw(4, 1, Access::None);
    world.load(4 * PAGE);
    assert_eq!(world.faults(), [read_of(4)], "a load of a page with a marker is a read fault");
    world.withdraw(4, 1, Access::None);
    world.store(4 * PAGE, 1);
    assert_eq!(world.faults(), [write_of(4)], "a store to a page with a marker is one write fault");
}

fn asking_twice_is_no_error(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    let region = &world.region;
    for _ in 0..2 {
        region.install(6, 2, Access::Read, true).expect("installed");
    }
    for _ in 0..2 {
        region.upgrade(6, 2).expect("upgraded");
    }
    world.note(6, 2, Access::Write);
    world.store(6 * PAGE, 3);
    world.store(7 * PAGE, 4);
    assert_eq!(world.faults(), []);
    for _ in 0..2 {
        region.downgrade(6, 2).expect("downgraded");
    }
    for _ in 0..2 {
        region.revoke(6, 2).expect("revoked");
    }
    region.wake(6, 2);
    region.revoke(20, 4).expect("pages without access can be revoked");
    world.note(6, 2, Access::None);
    assert_eq!((world.load(6 * PAGE), world.load(7 * PAGE)), (3, 4));
    assert_eq!(world.faults(), [read_of(6), read_of(7)]);
    for empty in [region.install(3, 0, Access::Read, true), region.revoke(3, 0), region.populate(256, 0)] {
        empty.expect("nothing to do is no error");
    }
}

fn an_install_over_mapped_pages_gives_what_was_asked(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    // Page 9 is there, writable, in the middle of what is installed for reading.
    world.store(9 * PAGE, 5);
    world.region.populate(8, 4).expect("there is memory");
    world.region.install(8, 4, Access::Read, false).expect("installed");
    world.note(8, 4, Access::Read);
    world.faults();
    for page in 8..12 {
        world.load(page * PAGE);
        assert_eq!(world.faults(), [], "page {page} can be read");
        world.store(page * PAGE, 6);
        assert_eq!(world.faults(), [write_of(page)], "page {page} cannot be written yet");
    }
    // And for writing, over pages that can be read.
    world.withdraw(8, 4, Access::Read);
    world.region.install(8, 4, Access::Write, false).expect("installed");
    world.note(8, 4, Access::Write);
    for page in 8..12 {
        world.store(page * PAGE, 7);
    }
    assert_eq!(world.faults(), [], "all four can be written");
}

fn an_upgrade_does_not_open_neighbours(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    for page in 3..6 {
        world.load(page * PAGE);
    }
    world.faults();
    world.store(4 * PAGE, 1);
    assert_eq!(world.faults(), [write_of(4)]);
    world.store(3 * PAGE, 1);
    world.store(5 * PAGE, 1);
    world.store(6 * PAGE, 1);
    assert_eq!(world.faults(), [write_of(3), write_of(5), write_of(6)]);
}

fn ranges_work_as_single_pages_do(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    let (region, first, count) = (&world.region, 16, 64);
    let each = |look: &dyn Fn(usize)| (first..first + count).for_each(|page| look(page * PAGE + 8));
    region.install(first, count, Access::Read, true).expect("installed");
    world.note(first, count, Access::Read);
    each(&|offset| assert_eq!(world.load(offset), 0));
    region.upgrade(first, count).expect("upgraded");
    world.note(first, count, Access::Write);
    each(&|offset| world.store(offset, (offset / PAGE) as u8));
    assert_eq!(world.faults(), [], "neither loads nor stores fault");
    region.downgrade(first, count).expect("downgraded");
    world.note(first, count, Access::Read);
    each(&|offset| assert_eq!(world.privileged_load(offset), (offset / PAGE) as u8));
    each(&|offset| world.store(offset, 1));
    assert_eq!(world.faults().len(), count, "each store faults once");
    region.revoke(first, count).expect("revoked");
    world.note(first, count, Access::None);
    each(&|offset| assert_eq!(world.load(offset), 1));
    assert_eq!(world.faults().len(), count, "each load faults once");
    assert_eq!((world.load((first - 1) * PAGE), world.load((first + count) * PAGE)), (0, 0));
    assert_eq!(world.faults(), [read_of(first - 1), read_of(first + count)], "the neighbours were never touched");
}

fn pages_of_4_kib(test: &str, catcher: Catcher) {
    pages_of(test, catcher, 4 << 10);
}

fn pages_of_64_kib(test: &str, catcher: Catcher) {
    pages_of(test, catcher, 64 << 10);
}

fn pages_of_2_mib(test: &str, catcher: Catcher) {
    pages_of(test, catcher, 2 << 20);
}

fn pages_of(test: &str, catcher: Catcher, page_bytes: usize) {
    let plan = Plan { bytes: 8 * page_bytes.max(16 << 10), page_bytes, ..Plan::of(catcher) };
    let Some(world) = World::make(test, plan) else { return };
    assert_eq!(world.region.base() as usize % page_bytes, 0, "a page starts at a multiple of its size");
    let last = world.region.pages() - 1;
    for page in [0, 1, last] {
        let (low, high) = (page * page_bytes, (page + 1) * page_bytes - 1);
        world.load(high);
        world.load(low);
        assert_eq!(world.faults(), [read_of(page)], "one read fault for a whole page");
        world.store(low, 1);
        world.store(high, 2);
        assert_eq!(world.faults(), [write_of(page)], "one write fault for a whole page");
        world.withdraw(page, 1, Access::None);
        assert_eq!((world.privileged_load(low), world.privileged_load(high)), (1, 2));
        assert_eq!((world.load(low), world.load(high)), (1, 2));
        assert_eq!(world.faults(), [read_of(page)]);
    }
}

fn a_partly_written_page_is_completed_with_zeros(test: &str, catcher: Catcher) {
    let plan = Plan { page_bytes: 64 << 10, ..Plan::of(catcher) };
    let Some(world) = World::make(test, plan) else { return };
    // SAFETY: the privileged view of page 2; only its first bytes are written, so most of it does not exist yet.
    unsafe { world.region.privileged(2, 1).write_bytes(3, 100) };
    world.region.install(2, 1, Access::Read, false).expect("installed");
    world.note(2, 1, Access::Read);
    let start = 2 * (64 << 10);
    assert_eq!((world.load(start + 99), world.load(start + 100), world.load(start + 65_535)), (3, 0, 0));
    assert_eq!(world.faults(), []);
}

fn many_threads_fault_at_once(test: &str, catcher: Catcher) {
    const THREADS: usize = 8;
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    let (pages, start) = (world.region.pages(), Barrier::new(THREADS));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (world, start) = (&world, &start);
            scope.spawn(move || {
                start.wait();
                for step in 0..pages {
                    // Half of the threads meet on each page, half go the other way.
                    let page = if thread % 2 == 0 { step } else { pages - 1 - step };
                    let offset = page * PAGE + 64 * thread;
                    assert_eq!(world.load(offset), 0);
                    world.store(offset, thread as u8 + 1);
                }
            });
        }
    });
    for page in 0..pages {
        for thread in 0..THREADS {
            assert_eq!(world.load(page * PAGE + 64 * thread), thread as u8 + 1);
            assert_eq!(world.privileged_load(page * PAGE + 64 * thread), thread as u8 + 1);
        }
    }
}

/// Threads count in words of their own on shared pages while access is taken away again and again. A lost store, a
/// thread that is never woken, or a wrong protection shows as a wrong sum or as a test that does not end.
fn revoking_races_with_touching(test: &str, catcher: Catcher) {
    const THREADS: usize = 4;
    const PAGES: usize = 4;
    const ROUNDS: usize = 150;
    let Some(world) = World::make(test, Plan { bytes: 64 << 10, ..Plan::of(catcher) }) else { return };
    let done = AtomicBool::new(false);
    let word = |page: usize, thread: usize| world.at(page * PAGE + 8 * thread) as usize;
    let count = |words: [usize; PAGES]| {
        let mut steps = 0;
        while !done.load(Ordering::SeqCst) {
            let word = words[steps % PAGES] as *mut u64;
            // SAFETY: the calling thread's own word of the region.
            unsafe { word.write_volatile(word.read_volatile() + 1) };
            steps += 1;
        }
        steps as u64
    };
    let stored = std::thread::scope(|scope| {
        let _stops = Done(&done);
        let counters: Vec<_> = (0..THREADS)
            .map(|thread| {
                let words = std::array::from_fn(|page| word(page, thread));
                scope.spawn(move || count(words))
            })
            .collect();
        let mut withdrawn = 0;
        for round in 0.. {
            let left = if round % 3 == 0 { Access::Read } else { Access::None };
            withdrawn += usize::from(world.withdraw(round % PAGES, 1, left) > 0);
            if withdrawn == ROUNDS {
                break;
            }
            std::thread::yield_now();
        }
        done.store(true, Ordering::SeqCst);
        counters.into_iter().map(|counter| counter.join().expect("a counter ends")).collect::<Vec<_>>()
    });
    for (thread, stored) in stored.into_iter().enumerate() {
        // SAFETY: words of the region; nobody writes any more.
        let found: u64 = (0..PAGES).map(|page| unsafe { (word(page, thread) as *const u64).read_volatile() }).sum();
        assert_eq!(found, stored, "thread {thread} lost a store");
    }
}

/// Tells the other threads of a test to end, also when the test fails in between.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A writer stores 1, 2, 3 … The runtime reads after each downgrade: it may never see a smaller number than before, and
/// after a downgrade returned, the number does not change until the writer faulted again.
fn readers_see_a_writer_in_order(test: &str, catcher: Catcher) {
    const DIFFERENT: usize = 50;
    let Some(world) = World::make(test, Plan { bytes: 64 << 10, ..Plan::of(catcher) }) else { return };
    let done = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let _stops = Done(&done);
        let writer = scope.spawn(|| {
            let word = world.at(0).cast::<u64>();
            let mut number = 0u64;
            while !done.load(Ordering::SeqCst) {
                number += 1;
                // SAFETY: the first word of the region; only this thread writes it.
                unsafe { word.write_volatile(number) };
            }
            number
        });
        let (mut last, mut different) = (0, 0);
        while different < DIFFERENT {
            let seen = world.frozen(0, |privileged| {
                let word = privileged.cast::<u64>();
                // SAFETY: the first word of the privileged view, several times.
                std::array::from_fn::<u64, 16, _>(|_| unsafe { word.read_volatile() })
            });
            assert!(seen.iter().all(|number| *number == seen[0]), "changed after the downgrade: {seen:?}");
            assert!(seen[0] >= last, "{} after {last}", seen[0]);
            different += usize::from(seen[0] > last);
            last = seen[0];
            std::thread::yield_now();
        }
        done.store(true, Ordering::SeqCst);
        writer.join().expect("the writer ends")
    });
    // SAFETY: the first word of the privileged view; nobody writes any more.
    assert_eq!(unsafe { world.region.privileged(0, 1).cast::<u64>().read_volatile() }, written);
}

fn a_huge_region_takes_memory_only_where_it_is_touched(test: &str, catcher: Catcher) {
    let bytes = 64 << 30;
    let plan = Plan { bytes, page_bytes: 2 << 20, reserve: Reserve::Overcommit, ..Plan::of(catcher) };
    let before = shared_memory_bytes();
    let Some(world) = World::make(test, plan) else { return };
    for offset in [0, bytes / 2 + 12_345, bytes - 1] {
        world.store(offset, 5);
        assert_eq!(world.privileged_load(offset), 5);
    }
    assert_eq!(world.faults().len(), 3);
    let taken = shared_memory_bytes().saturating_sub(before);
    assert!(taken <= 64 << 20, "{taken} bytes for three pages of 2 MiB");
}

/// What this process has mapped of shared memory.
fn shared_memory_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process has a status");
    proc_bytes(&status, "RssShmem").expect("the field is there") as usize
}

fn memory_can_be_taken_at_the_start(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan { reserve: Reserve::Full, ..Plan::of(catcher) }) else { return };
    assert_eq!(world.load(5), 0);
    world.store(PAGE, 1);
    assert_eq!(world.faults(), [read_of(0), write_of(1)], "taken memory is still caught");
}

fn errno_survives_a_fault(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = 42 };
    world.store(0, 1);
    // SAFETY: this thread's errno.
    assert_eq!(unsafe { *libc::__errno_location() }, 42);
}

fn system_calls_do_what_the_abilities_say(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    if !catcher.abilities().system_calls_wait {
        assert!(!world.region.system_calls_work());
        system_calls_fail_with_efault(&world);
    } else if world.region.system_calls_work() {
        system_calls_wait_for_pages(&world);
    } else {
        skip(test, Need::Kernel, "userfaultfd is allowed for user code only");
    }
}

fn system_calls_fail_with_efault(world: &World) {
    let (from, to) = pipe();
    assert_eq!(write_into(&to, b"eight by"), 8);
    // SAFETY: eight bytes of the region's page 0, which is not held.
    let got = unsafe { libc::read(from.as_raw_fd(), world.at(0).cast(), 8) };
    assert_eq!((got, last_errno()), (-1, libc::EFAULT), "read(2) into a page that is not held");
    // SAFETY: eight bytes of page 1, which is not held.
    let put = unsafe { libc::write(to.as_raw_fd(), world.at(PAGE).cast(), 8) };
    assert_eq!((put, last_errno()), (-1, libc::EFAULT), "write(2) from a page that is not held");
    world.load(2 * PAGE);
    // SAFETY: eight bytes of page 2, which can be read only.
    let got = unsafe { libc::read(from.as_raw_fd(), world.at(2 * PAGE).cast(), 8) };
    assert_eq!((got, last_errno()), (-1, libc::EFAULT), "read(2) into a page that can only be read");
    // A touch before the call is the way around.
    world.store(2 * PAGE, 0);
    // SAFETY: eight bytes of page 2, which can be written.
    assert_eq!(unsafe { libc::read(from.as_raw_fd(), world.at(2 * PAGE).cast(), 8) }, 8);
    assert_eq!(world.load(2 * PAGE), b'e');
}

fn system_calls_wait_for_pages(world: &World) {
    let (from, to) = pipe();
    assert_eq!(write_into(&to, b"0123456789"), 10);
    // SAFETY: ten bytes across the border of pages 0 and 1, neither held.
    assert_eq!(unsafe { libc::read(from.as_raw_fd(), world.at(PAGE - 5).cast(), 10) }, 10);
    assert_eq!(world.faults(), [write_of(0), write_of(1)], "read(2) writes to the pages");
    assert_eq!((world.load(PAGE - 5), world.load(PAGE + 4)), (b'0', b'9'));

    world.withdraw(0, 2, Access::None);
    // SAFETY: the same ten bytes, not held any more.
    assert_eq!(unsafe { libc::write(to.as_raw_fd(), world.at(PAGE - 5).cast(), 10) }, 10);
    assert_eq!(world.faults(), [read_of(0), read_of(1)], "write(2) reads from the pages");
    // SAFETY: into pages that can be read only.
    assert_eq!(unsafe { libc::read(from.as_raw_fd(), world.at(PAGE - 4).cast(), 10) }, 10);
    assert_eq!(world.faults(), [write_of(0), write_of(1)], "read(2) into readable pages upgrades them");
    assert_eq!((world.load(PAGE - 4), world.load(PAGE + 5)), (b'0', b'9'));

    receives_from_a_socket(world);
    reads_from_files(world);
}

fn receives_from_a_socket(world: &World) {
    let mut pair = [-1; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) }, 0);
    // SAFETY: both are new and ours.
    let [near, far] = pair.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
    world.store(20 * PAGE, b's');
    world.withdraw(20, 1, Access::None);
    // SAFETY: one byte of a page that is not held.
    assert_eq!(unsafe { libc::send(near.as_raw_fd(), world.at(20 * PAGE).cast(), 1, 0) }, 1);
    // SAFETY: one byte of another page that is not held.
    assert_eq!(unsafe { libc::recv(far.as_raw_fd(), world.at(21 * PAGE).cast(), 1, 0) }, 1);
    assert_eq!(world.load(21 * PAGE), b's');
}

fn reads_from_files(world: &World) {
    let folder = Folder::new();
    let content: Vec<u8> = (0..5 * PAGE).map(|index| (index % 251) as u8).collect();
    let name = folder.write("file", &content);

    // SAFETY: five pages of the region, used by nobody else.
    let pages = unsafe { std::slice::from_raw_parts_mut(world.at(32 * PAGE), 5 * PAGE) };
    File::open(&name).and_then(|mut file| file.read_exact(pages)).expect("std reads into the region");
    assert!(pages == content.as_slice());

    let path = CString::new(name.as_os_str().as_bytes()).expect("no zero byte in a path");
    // SAFETY: two C strings.
    let stream = unsafe { libc::fopen(path.as_ptr(), c"r".as_ptr()) };
    assert!(!stream.is_null());
    // SAFETY: five other pages of the region.
    assert_eq!(unsafe { libc::fread(world.at(48 * PAGE).cast(), 1, 5 * PAGE, stream) }, 5 * PAGE);
    // SAFETY: opened above.
    unsafe { libc::fclose(stream) };
    // SAFETY: five pages of the region.
    assert!(unsafe { std::slice::from_raw_parts(world.at(48 * PAGE), 5 * PAGE) } == content.as_slice());

    world.withdraw(48, 5, Access::None);
    // SAFETY: five pages of the region.
    let pages = unsafe { std::slice::from_raw_parts(world.at(48 * PAGE), 5 * PAGE) };
    let copy = folder.write("copy", pages);
    assert!(std::fs::read(&copy).expect("the copy is there") == content);
}

fn an_address_is_free_again_after_the_region(test: &str, catcher: Catcher) {
    if !peer::works(test, catcher) {
        return;
    }
    let _alone = peer::alone();
    let options = RegionOptions {
        base_address: Some(0x2100_0000_0000),
        bytes: 1 << 20,
        page_bytes: 4096,
        catcher,
        reserve: Reserve::Lazy,
    };
    for _ in 0..2 {
        let region = Region::create(&options).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(region.base() as usize, 0x2100_0000_0000);
        let error = Region::create(&options).expect_err("the address is taken");
        assert!(error.to_string().contains("trellis-region"), "the region in the way is named: {error}");
    }
}

/// Some pages of `signal` have queued faults: a thread that touches them waits, and so does a system call.
#[test]
fn some_faults_of_signal_may_be_queued() {
    let test = "some_faults_of_signal_may_be_queued";
    let plan = Plan { queued: &[(2, 4), (10, 11)], ..Plan::of(Catcher::Signal) };
    if !works(test, Catcher::Handler) {
        return;
    }
    let Some(world) = World::make(test, plan) else { return };
    let is_queued = |page: usize| matches!(page, 2..4 | 10);
    let place = |page: usize| world.region.base().wrapping_add(page * PAGE);
    assert!(world.region.event_fd().is_some() && !world.region.system_calls_work());
    for page in 0..12 {
        // SAFETY: a page of the region, in the state that the peer gives it.
        unsafe { place(page).write_volatile(page as u8) };
        // A queued fault may be told again after it was served.
        let faults = world.faults();
        assert!(!faults.is_empty() && faults.iter().all(|fault| fault.page == page && fault.write), "{faults:?}");
    }
    // Across the borders of both kinds.
    assert_eq!(world.withdraw(0, 12, Access::Read), 12);
    for page in 0..12 {
        // SAFETY: the same.
        assert_eq!(unsafe { place(page).read_volatile() }, page as u8);
    }
    assert_eq!(world.faults(), [], "loads pass");
    assert_eq!(world.withdraw(0, 12, Access::None), 12);
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors; then a byte of the region, which the kernel reads or refuses.
    let written = unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        [1, 2, 9, 10].map(|page: usize| libc::syscall(libc::SYS_write, pipe[1], place(page), 1))
    };
    let expected = [1, 2, 9, 10].map(|page| if is_queued(page) { 1 } else { -1 });
    assert_eq!(written, expected, "the kernel waits for queued pages only");
    for end in pipe {
        // SAFETY: a descriptor made above.
        unsafe { libc::close(end) };
    }
    if world.region.marks_work() {
        world.region.install(0, 12, Access::Read, false).expect("installed");
        world.region.detect(1, 3, Detection::Marks).expect("marks");
        world.note(0, 12, Access::Read);
        // SAFETY: the same.
        (1..4).for_each(|page| unsafe { place(page).write_volatile(77) });
        let mut found = Vec::new();
        world.region.stored_to(0, 12, &mut |first, count| found.extend(first..first + count)).expect("looked");
        assert_eq!(found, [1, 2, 3]);
    }
}

/// madvise(2) and mbind(2) on a part of the region give it a mapping of its own.
fn a_mapping_that_the_program_divides_is_one_region(test: &str, catcher: Catcher) {
    let Some(world) = World::make(test, Plan::of(catcher)) else { return };
    let place = |page: usize| world.region.base().wrapping_add(page * PAGE);
    // SAFETY: advice about dumps changes no contents.
    assert_eq!(unsafe { libc::madvise(place(3).cast(), 2 * PAGE, libc::MADV_DONTDUMP) }, 0);
    world.region.install(1, 9, Access::Read, true).expect("installed");
    world.region.upgrade(1, 9).expect("upgraded");
    world.note(1, 9, Access::Write);
    // SAFETY: pages of the region, which may be stored to.
    (1..10).for_each(|page| unsafe { place(page).write_volatile(1) });
    assert_eq!(world.faults(), []);
}

/// The first five pages: two at one address, three at another, with memory between them that stays the test's.
fn pages_may_be_at_addresses_of_their_own(test: &str, catcher: Catcher) {
    let bytes = 16 * PAGE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which replaces nothing.
    let given = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, private, -1, 0) }.cast::<u8>();
    assert_ne!(given.cast(), libc::MAP_FAILED);
    // SAFETY: the mapping made above.
    unsafe { given.write_bytes(7, bytes) };
    let piece = |page: usize, pages: usize| Piece {
        address: given as usize + page * PAGE,
        bytes: pages * PAGE,
        is_vacant: false,
    };
    let pieces = Box::leak(Box::new([piece(9, 2), piece(1, 3)]));
    let Some(world) = World::make(test, Plan { pieces, ..Plan::of(catcher) }) else { return };
    let place = |page: usize| match page {
        0..2 => given.wrapping_add((9 + page) * PAGE),
        2..5 => given.wrapping_add((page - 1) * PAGE),
        page => world.region.base().wrapping_add(page * PAGE),
    };
    // SAFETY: pages of the region, in the state that the peer gives them.
    let (load, store) =
        unsafe { (|at: *mut u8| at.read_volatile(), |at: *mut u8, value: u8| at.write_volatile(value)) };
    for page in 0..7 {
        assert_eq!(load(place(page)), 0, "page {page} is the region's");
        store(place(page).wrapping_add(5), 10 + page as u8);
        let fault = |write, offset| Fault { page, offset, write };
        assert_eq!(world.exact_faults(), [fault(false, 0), fault(true, 5)]);
        assert_eq!(world.privileged_load(page * PAGE + 5), 10 + page as u8);
    }
    for untouched in [0, 4, 8, 11, 15] {
        assert_eq!(load(given.wrapping_add(untouched * PAGE)), 7, "what no piece has stays");
    }
    // Across the borders of pieces.
    assert_eq!(world.withdraw(1, 5, Access::Read), 5);
    world.region.revoke(1, 5).expect("revoked");
    world.region.install(1, 5, Access::Write, false).expect("installed");
    world.note(1, 5, Access::Write);
    for page in 1..6 {
        store(place(page), 1);
        assert_eq!(load(place(page).wrapping_add(5)), 10 + page as u8);
    }
    assert_eq!(world.faults(), []);
    if world.region.marks_work() {
        world.region.downgrade(0, 7).expect("downgraded");
        world.note(0, 7, Access::Read);
        world.switched(0, 7, Detection::Marks);
        [1, 2, 4, 5].into_iter().for_each(|page| store(place(page), 2));
        let mut found = Vec::new();
        world.region.stored_to(0, 7, &mut |first, count| found.extend(first..first + count)).expect("scanned");
        assert_eq!(found, [1, 2, 4, 5]);
        assert_eq!(world.faults(), []);
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: both are new and ours.
    let [from, to] = ends.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
    (from, to)
}

fn write_into(to: &OwnedFd, bytes: &[u8]) -> isize {
    // SAFETY: a plain write of bytes that live.
    unsafe { libc::write(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) }
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().expect("a system call just failed")
}

// What does not depend on the catcher.

fn plain_options() -> RegionOptions {
    RegionOptions {
        base_address: None,
        bytes: 1 << 20,
        page_bytes: 4096,
        catcher: Catcher::Mprotect,
        reserve: Reserve::Lazy,
    }
}

#[test]
fn what_is_in_the_way_is_named() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process has mappings");
    let program = std::env::current_exe().expect("this test's program");
    let program = program.to_str().expect("a path in UTF-8");
    let line = maps.lines().find(|line| line.ends_with(program)).expect("this program is mapped");
    let base = usize::from_str_radix(line.split('-').next().expect("a first field"), 16).expect("an address");
    let options = RegionOptions { base_address: Some(base), ..plain_options() };
    let error = Region::create(&options).expect_err("this program is there").to_string();
    assert!(error.contains(program), "{error}");
    assert!(error.contains(&format!("{base:#x}")), "{error}");
}

#[test]
fn a_region_that_does_not_fit_is_refused() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").expect("Linux has it");
    let of = |name: &str| proc_bytes(&meminfo, name).expect("the field is there");
    let available = of("MemAvailable") + of("SwapFree");
    let bytes = (available as usize + (1 << 30)).next_multiple_of(2 << 20);
    if bytes > 64 << 30 {
        skip("a_region_that_does_not_fit_is_refused", Need::Machine, "this machine can hold every region");
        return;
    }
    for reserve in [Reserve::Lazy, Reserve::Full] {
        let options = RegionOptions { bytes, reserve, ..plain_options() };
        let error = Region::create(&options).expect_err("more than the machine has").to_string();
        assert!(error.contains("does not fit") && error.contains("available"), "{error}");
        assert!(error.contains("overcommit"), "the way out is named: {error}");
    }
    let options = RegionOptions { bytes, reserve: Reserve::Overcommit, ..plain_options() };
    assert!(Region::create(&options).is_ok(), "with overcommit it is the program's business");
}

#[test]
fn a_range_outside_the_region_is_a_broken_invariant() {
    let region = Region::create(&plain_options()).unwrap_or_else(|error| panic!("{error}"));
    let pages = region.pages();
    for (page, count) in [(pages, 1), (0, pages + 1), (usize::MAX, 2)] {
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.privileged(page, count)));
        assert!(asked.is_err(), "{count} pages from page {page}");
    }
    let _ = region.privileged(pages, 0);
}
