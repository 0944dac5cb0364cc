//! Tests faults outside regions, forked children, and everything else that ends with a signal.
//!
//! Each test that must end with a signal starts this program again and examines how that process ended.

mod peer;

use std::ffi::c_void;
use std::hint::black_box;
use std::mem::zeroed;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, siginfo_t};
use peer::{Plan, Poller, World, again, alone, is_child, said, works};
use trellis_memory::{Access, Catcher, Fault, FaultServer, REGIONS_MAX, Region, RegionOptions, Reserve, claim_signal};
use trellis_testing::{Need, skip};

/// An address where nothing is ever mapped.
const NOWHERE: usize = 0x10;

/// Serves every fault with a writable page and records nothing: for tests that fault while a fault is served.
struct Opener {
    region: OnceLock<Arc<Region>>,
    /// Runs before the answer.
    before: fn(Fault),
}

impl FaultServer for Opener {
    fn serve(&self, fault: Fault) {
        (self.before)(fault);
        let region = self.region.get().expect("the region is there before the first fault");
        region.install(fault.page, 1, Access::Write, true).expect("installed");
    }
}

fn options(catcher: Catcher) -> RegionOptions {
    RegionOptions { base_address: None, bytes: 1 << 20, page_bytes: 4096, catcher, reserve: Reserve::Lazy }
}

/// A region that stays until the process ends, or until `release`.
fn opened(catcher: Catcher, before: fn(Fault)) -> (Arc<Region>, Option<Poller>) {
    let region = Arc::new(Region::create(&options(catcher)).unwrap_or_else(|error| panic!("{error}")));
    let opener = Arc::new(Opener { region: OnceLock::new(), before });
    assert!(opener.region.set(Arc::clone(&region)).is_ok());
    region.catch(Arc::clone(&opener) as Arc<dyn FaultServer>).unwrap_or_else(|error| panic!("{error}"));
    let poller = Poller::start(&region, opener);
    (region, poller)
}

fn touch(address: usize) {
    // SAFETY: not sound for a bad address, which is the point: the kernel answers with a signal, and the volatile
    // access is made as written.
    unsafe { (address as *mut u8).write_volatile(1) };
}

/// The catchers that work here, each with its name.
fn each_catcher(test: &str, check: impl Fn(Catcher)) {
    for catcher in Catcher::ALL {
        if works(&format!("{test} ({catcher})"), catcher) {
            check(catcher);
        }
    }
}

fn killed_by(output: &Output, signal: c_int) {
    assert_eq!(output.status.signal(), Some(signal), "{:?}\n{}", output.status, said(output));
}

fn install_handler(signal: c_int, handler: usize, flags: c_int) {
    // SAFETY: an all-zero action is valid; the handlers of this file may run at any time.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, null_mut()), 0);
    }
}

/// Ends the process with a status that names the signal and proves the address.
extern "C" fn exits_with_information(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's own arguments, handed on.
    let address = unsafe { (*info).si_addr() } as usize;
    let status = if address == NOWHERE && !context.is_null() { 40 + signal } else { 1 };
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(status) };
}

extern "C" fn exits(signal: c_int) {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(60 + signal) };
}

fn world(catcher: Catcher) -> World {
    World::make("signals", Plan::of(catcher)).expect("checked by the parent")
}

/// One function for each catcher would repeat the same lines, so the child is told the catcher by its environment.
fn in_children(test: &str, child: impl Fn(Catcher), look: impl Fn(Catcher, Output)) {
    const WHICH: &str = "TRELLIS_MEMORY_TEST_CATCHER";
    if is_child() {
        let catcher = std::env::var(WHICH).expect("set by the parent").parse().expect("a catcher");
        return child(catcher);
    }
    let _alone = alone();
    each_catcher(test, |catcher| look(catcher, again(test, &[(WHICH, &catcher.to_string())])));
}

#[test]
fn an_applications_own_handler_gets_faults_outside() {
    in_children(
        "an_applications_own_handler_gets_faults_outside",
        |catcher| {
            install_handler(libc::SIGSEGV, exits_with_information as *const () as usize, libc::SA_SIGINFO);
            let world = world(catcher);
            world.store(5, 1);
            assert_eq!(world.privileged_load(5), 1);
            touch(NOWHERE);
        },
        |catcher, output| assert_eq!(output.status.code(), Some(40 + libc::SIGSEGV), "{catcher}: {}", said(&output)),
    );
}

#[test]
fn an_applications_old_style_handler_gets_faults_outside() {
    in_children(
        "an_applications_old_style_handler_gets_faults_outside",
        |catcher| {
            install_handler(libc::SIGSEGV, exits as *const () as usize, 0);
            let world = world(catcher);
            world.store(5, 1);
            touch(NOWHERE);
        },
        |catcher, output| assert_eq!(output.status.code(), Some(60 + libc::SIGSEGV), "{catcher}: {}", said(&output)),
    );
}

/// A file that is shorter than its mapping gives a true SIGBUS, outside the region.
#[test]
fn a_true_bus_error_reaches_the_application() {
    in_children(
        "a_true_bus_error_reaches_the_application",
        |catcher| {
            install_handler(libc::SIGBUS, exits as *const () as usize, 0);
            let world = world(catcher);
            world.store(5, 1);
            // SAFETY: an empty memfd, mapped: every access is a bus error.
            let empty = unsafe {
                let file = libc::memfd_create(c"empty".as_ptr(), 0);
                libc::mmap(null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file, 0)
            };
            touch(empty as usize);
        },
        |catcher, output| assert_eq!(output.status.code(), Some(60 + libc::SIGBUS), "{catcher}: {}", said(&output)),
    );
}

#[test]
fn without_a_handler_the_default_action_kills() {
    in_children(
        "without_a_handler_the_default_action_kills",
        |catcher| {
            install_handler(libc::SIGSEGV, libc::SIG_DFL, 0);
            let world = world(catcher);
            world.store(5, 1);
            touch(NOWHERE);
        },
        |_, output| killed_by(&output, libc::SIGSEGV),
    );
}

/// A fault cannot be ignored; a signal that somebody sends can.
#[test]
fn an_ignored_signal_is_ignored_only_when_it_was_sent() {
    in_children(
        "an_ignored_signal_is_ignored_only_when_it_was_sent",
        |catcher| {
            install_handler(libc::SIGSEGV, libc::SIG_IGN, 0);
            let world = world(catcher);
            world.store(5, 1);
            // SAFETY: sends a signal to this thread.
            unsafe { libc::raise(libc::SIGSEGV) };
            eprintln!("the sent signal was ignored");
            touch(NOWHERE);
        },
        |_, output| {
            assert!(said(&output).contains("the sent signal was ignored"), "{}", said(&output));
            killed_by(&output, libc::SIGSEGV);
        },
    );
}

#[test]
fn a_sent_signal_has_its_default_action() {
    in_children(
        "a_sent_signal_has_its_default_action",
        |catcher| {
            install_handler(libc::SIGSEGV, libc::SIG_DFL, 0);
            let world = world(catcher);
            world.store(5, 1);
            // SAFETY: sends a signal to this thread.
            unsafe { libc::raise(libc::SIGSEGV) };
            eprintln!("still alive");
        },
        |_, output| {
            assert!(!said(&output).contains("still alive"));
            killed_by(&output, libc::SIGSEGV);
        },
    );
}

/// The Rust runtime reports a stack overflow from its own handler, on the alternate stack.
#[test]
fn a_stack_overflow_is_still_reported() {
    fn deeper(depth: usize) -> usize {
        let room = black_box([depth; 512]);
        if depth == usize::MAX { 0 } else { deeper(depth + 1) + room[depth % 512] }
    }
    in_children(
        "a_stack_overflow_is_still_reported",
        |catcher| {
            let world = world(catcher);
            world.store(5, 1);
            println!("{}", deeper(0));
        },
        |_, output| {
            assert!(said(&output).contains("has overflowed its stack"), "{}", said(&output));
            killed_by(&output, libc::SIGABRT);
        },
    );
}

#[test]
fn a_forked_child_that_touches_the_region_is_told_and_dies() {
    in_children(
        "a_forked_child_that_touches_the_region_is_told_and_dies",
        |catcher| {
            let world = world(catcher);
            world.store(0, 7);
            let address = world.at(0) as usize;
            // SAFETY: the child makes async-signal-safe calls only.
            let status = unsafe {
                let child = libc::fork();
                if child == 0 {
                    touch(address);
                    libc::_exit(0);
                }
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                status
            };
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
            world.store(4096, 8);
            assert_eq!((world.load(0), world.load(4096)), (7, 8), "the parent goes on");
            eprintln!("the parent goes on");
        },
        |catcher, output| {
            let text = said(&output);
            assert!(output.status.success(), "{catcher}: {text}");
            let lines: Vec<_> = text.lines().filter(|line| line.starts_with("trellis:")).collect();
            assert_eq!(lines.len(), 1, "{catcher}: one sentence: {text}");
            assert!(lines[0].contains("a forked child does not have"), "{catcher}: {text}");
            // Whole, and right for a cluster and for a store.
            let next = "let the child exec a program that joins the cluster, or opens the store, itself";
            assert!(lines[0].ends_with(next), "{catcher}: {text}");
            assert!(text.contains("the parent goes on"), "{catcher}: {text}");
        },
    );
}

/// The child would otherwise keep the region's memory, and could take the parent's faults.
#[test]
fn a_forked_child_keeps_no_descriptor_and_may_drop_its_copy() {
    let test = "a_forked_child_keeps_no_descriptor_and_may_drop_its_copy";
    in_children(
        test,
        |catcher| {
            let (region, _poller) = opened(catcher, |_| ());
            touch(region.base() as usize);
            assert!(region_descriptors() >= 1, "the parent has them");
            // SAFETY: the child makes system calls and drops a region, which must do nothing there.
            let status = unsafe {
                let child = libc::fork();
                if child == 0 {
                    let left = region_descriptors();
                    drop(std::ptr::read(Arc::as_ptr(&region)));
                    libc::_exit(left);
                }
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                status
            };
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
            touch(region.base() as usize + 4096);
        },
        |catcher, output| assert!(output.status.success(), "{catcher}: {}", said(&output)),
    );
}

/// Counts this process's descriptors of regions and of what catches their faults. Allocates nothing.
fn region_descriptors() -> c_int {
    let mut found = 0;
    for number in 0..256 {
        let mut path = *b"/proc/self/fd/000\0";
        for (place, power) in [(14, 100), (15, 10), (16, 1)] {
            path[place] = b'0' + (number / power % 10) as u8;
        }
        // The kernel wants no leading zeros.
        let start = 14 + if number < 10 { 2 } else { usize::from(number < 100) };
        let mut short = [0u8; 18];
        short[..14].copy_from_slice(&path[..14]);
        short[14..14 + 18 - start].copy_from_slice(&path[start..]);
        let mut target = [0u8; 64];
        // SAFETY: a path that ends with a zero, and room for 64 bytes.
        let length = unsafe { libc::readlink(short.as_ptr().cast(), target.as_mut_ptr().cast(), 64) };
        let target = &target[..length.max(0) as usize];
        let ours = [&b"trellis-region"[..], b"[userfaultfd]", b"[eventpoll]", b"/pagemap"];
        found += c_int::from(ours.iter().any(|name| target.windows(name.len()).any(|part| part == *name)));
    }
    found
}

/// Blocking all signals, as worker threads of servers do, is deadly with catchers that need one.
/// The default is safe.
#[test]
fn a_thread_that_blocks_all_signals_can_fault_as_the_abilities_say() {
    in_children(
        "a_thread_that_blocks_all_signals_can_fault_as_the_abilities_say",
        |catcher| {
            let world = world(catcher);
            // SAFETY: blocks signals of this thread only.
            unsafe {
                let mut all: libc::sigset_t = zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, null_mut());
            }
            world.store(5, 1);
            assert_eq!(world.privileged_load(5), 1);
        },
        |catcher, output| match catcher {
            _ if catcher.abilities().works_with_signals_blocked => {
                assert!(output.status.success(), "{catcher}: {}", said(&output));
            }
            Catcher::Signal => killed_by(&output, libc::SIGBUS),
            _ => killed_by(&output, libc::SIGSEGV),
        },
    );
}

/// The C library calls `claim_signal` from its sigaction(2): an application that installs a handler after the region
/// exists gets the faults outside, and the region keeps its own.
#[test]
fn a_later_handler_is_recorded_where_the_signal_is_needed() {
    in_children(
        "a_later_handler_is_recorded_where_the_signal_is_needed",
        |catcher| {
            let before = claim(libc::SIGSEGV, null()).0 || claim(libc::SIGBUS, null()).0;
            assert!(!before, "nothing is claimed before a region catches");
            let world = world(catcher);
            let claimed = [libc::SIGBUS, libc::SIGSEGV, libc::SIGUSR1].map(|signal| claim(signal, null()).0);
            let expected = match catcher {
                Catcher::Signal => [true, false, false],
                Catcher::Handler => [false, false, false],
                Catcher::Mprotect => [false, true, false],
            };
            assert_eq!(claimed, expected);
            let signal = if catcher == Catcher::Signal { libc::SIGBUS } else { libc::SIGSEGV };
            // SAFETY: an all-zero action is valid.
            let mut action: libc::sigaction = unsafe { zeroed() };
            action.sa_sigaction = exits as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            // SAFETY: a valid set.
            unsafe { libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR2) };
            if claim(signal, &raw const action).0 {
                let (_, recorded) = claim(signal, null());
                assert_eq!(recorded.sa_sigaction, action.sa_sigaction);
                assert_eq!(recorded.sa_flags, libc::SA_RESTART);
                // SAFETY: a valid set.
                assert_eq!(unsafe { libc::sigismember(&raw const recorded.sa_mask, libc::SIGUSR2) }, 1);
            } else {
                install_handler(signal, action.sa_sigaction, 0);
            }
            world.store(7 * 4096, 3);
            assert_eq!(world.privileged_load(7 * 4096), 3, "the region still works");
            // SAFETY: sends a signal to this thread.
            unsafe { libc::raise(signal) };
        },
        |catcher, output| {
            let signal = if catcher == Catcher::Signal { libc::SIGBUS } else { libc::SIGSEGV };
            assert_eq!(output.status.code(), Some(60 + signal), "{catcher}: {}", said(&output));
        },
    );
}

fn claim(signal: c_int, action: *const libc::sigaction) -> (bool, libc::sigaction) {
    // SAFETY: an all-zero action is valid.
    let mut previous: libc::sigaction = unsafe { zeroed() };
    // SAFETY: null or valid pointers, as asked.
    let claimed = unsafe { claim_signal(signal, action, &raw mut previous) };
    (claimed, previous)
}

/// Serving needs more than the 8 KiB of an alternate stack, and must leave that stack as it was.
#[test]
fn a_server_has_room_on_a_thread_with_an_alternate_stack() {
    static OUTSIDE: AtomicUsize = AtomicUsize::new(0);
    fn uses_room(_: Fault) {
        let room = black_box([1u8; 48 << 10]);
        let (start, size) = alternate_stack();
        let here = room.as_ptr() as usize;
        // Disarmed, or never there: either way this code runs elsewhere.
        assert!(here.wrapping_sub(start) >= size);
        OUTSIDE.fetch_add(usize::from(room[here % room.len()]), Ordering::SeqCst);
    }
    let _alone = alone();
    each_catcher("a_server_has_room_on_a_thread_with_an_alternate_stack", |catcher| {
        let (region, poller) = opened(catcher, uses_room);
        let base = region.base() as usize;
        // A thread of the Rust runtime has an alternate stack.
        std::thread::spawn(move || {
            let before = alternate_stack();
            assert!(before.1 > 0, "this thread has an alternate stack");
            for page in 0..3 {
                touch(base + page * 4096);
                assert_eq!(alternate_stack(), before, "{catcher}: the stack is armed again");
            }
        })
        .join()
        .expect("the thread ends");
        assert_eq!(OUTSIDE.swap(0, Ordering::SeqCst), 3);
        drop(poller);
        region.release();
    });
}

fn alternate_stack() -> (usize, usize) {
    // SAFETY: asks only.
    unsafe {
        let mut stack: libc::stack_t = zeroed();
        assert_eq!(libc::sigaltstack(null(), &raw mut stack), 0);
        let size = if stack.ss_flags & libc::SS_DISABLE != 0 { 0 } else { stack.ss_size };
        (stack.ss_sp as usize, size)
    }
}

/// While a fault is served, a signal handler of the application runs on the same thread and touches another page.
#[test]
fn a_handler_that_interrupts_serving_may_fault() {
    static NESTED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn touches(_: c_int) {
        touch(NESTED.load(Ordering::SeqCst));
    }
    fn interrupted(fault: Fault) {
        if fault.page == 0 {
            // SAFETY: sends a signal to this thread; it is handled before raise returns.
            unsafe { libc::raise(libc::SIGUSR1) };
        }
    }
    let _alone = alone();
    each_catcher("a_handler_that_interrupts_serving_may_fault", |catcher| {
        if !catcher.abilities().serves_in_the_faulting_thread {
            return;
        }
        for flags in [0, libc::SA_ONSTACK] {
            install_handler(libc::SIGUSR1, touches as *const () as usize, flags);
            let (region, _) = opened(catcher, interrupted);
            let base = region.base() as usize;
            NESTED.store(base + 9 * 4096, Ordering::SeqCst);
            touch(base);
            // SAFETY: the privileged view of two pages.
            let seen = unsafe { (region.privileged(0, 1).read_volatile(), region.privileged(9, 1).read_volatile()) };
            assert_eq!(seen, (1, 1), "{catcher}: both stores were made");
            region.release();
        }
    });
}

#[test]
fn places_for_regions_are_bounded_and_given_back() {
    let _alone = alone();
    each_catcher("places_for_regions_are_bounded_and_given_back", |catcher| {
        let mut regions: Vec<_> = (0..REGIONS_MAX).map(|_| opened(catcher, |_| ())).collect();
        for (region, _) in &regions {
            touch(region.base() as usize + 4096);
        }
        let one_more = Region::create(&options(catcher)).unwrap_or_else(|error| panic!("{error}"));
        let server = Arc::new(Opener { region: OnceLock::new(), before: |_| () });
        let error = one_more.catch(Arc::clone(&server) as Arc<dyn FaultServer>).expect_err("all places are taken");
        assert!(error.to_string().contains(&format!("{REGIONS_MAX} regions")), "{error}");
        let (first, poller) = regions.swap_remove(0);
        drop(poller);
        first.release();
        one_more.catch(Arc::clone(&server) as Arc<dyn FaultServer>).unwrap_or_else(|error| panic!("{error}"));
        let twice = one_more.catch(server).expect_err("catches already");
        assert!(twice.to_string().contains("already"), "{twice}");
        for (region, poller) in regions {
            drop(poller);
            region.release();
        }
    });
}

#[test]
fn a_released_server_is_dropped() {
    let _alone = alone();
    each_catcher("a_released_server_is_dropped", |catcher| {
        let region = Region::create(&options(catcher)).unwrap_or_else(|error| panic!("{error}"));
        let server = Arc::new(Opener { region: OnceLock::new(), before: |_| () });
        region.catch(Arc::clone(&server) as Arc<dyn FaultServer>).unwrap_or_else(|error| panic!("{error}"));
        region.release();
        assert_eq!(Arc::strong_count(&server), 1);
    });
}

/// The handler catcher's queue: never blocks, keeps what there is no room for.
#[test]
fn faults_are_taken_in_batches_and_none_is_lost() {
    let test = "faults_are_taken_in_batches_and_none_is_lost";
    if !works(test, Catcher::Handler) {
        return;
    }
    let _alone = alone();
    let region = Arc::new(Region::create(&options(Catcher::Handler)).unwrap_or_else(|error| panic!("{error}")));
    let server = Arc::new(Opener { region: OnceLock::new(), before: |_| () });
    region.catch(server).unwrap_or_else(|error| panic!("{error}"));
    let mut faults = Vec::with_capacity(4);
    region.take_faults(&mut faults);
    assert_eq!(faults, [], "no fault waits, and nobody waits for one");
    let base = region.base() as usize;
    let threads: Vec<_> = (0..10).map(|page| std::thread::spawn(move || touch(base + page * 4096))).collect();
    let mut seen = [false; 10];
    while seen.contains(&false) {
        let mut wait = libc::pollfd { fd: region.event_fd().expect("it has one"), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut wait, 1, -1) };
        faults.clear();
        region.take_faults(&mut faults);
        assert!(faults.len() <= 4);
        for fault in &faults {
            assert!(fault.write);
            seen[fault.page] = true;
        }
    }
    // All ten wait now; one request answers them all.
    region.install(0, 10, Access::Write, true).expect("installed");
    for thread in threads {
        thread.join().expect("the thread was woken");
    }
}

/// The kernel kills a process with SIGXFSZ that creates a file that is too large; the limit is checked first.
#[test]
fn a_limit_on_file_sizes_is_a_sentence() {
    let test = "a_limit_on_file_sizes_is_a_sentence";
    if is_child() {
        let limit = libc::rlimit { rlim_cur: 1 << 19, rlim_max: 1 << 19 };
        // SAFETY: a valid limit, for this process only.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
        let error = Region::create(&options(Catcher::Mprotect)).expect_err("larger than the limit");
        assert!(error.to_string().contains("ulimit -f"), "{error}");
        return;
    }
    let output = again(test, &[]);
    assert!(output.status.success(), "{}", said(&output));
}

/// Every other page open: the catcher `mprotect` needs one mapping for each, and the kernel allows 65,530 by default.
#[test]
fn too_many_pieces_are_a_sentence_and_no_harm() {
    let test = "too_many_pieces_are_a_sentence_and_no_harm";
    if !is_child() {
        let output = again(test, &[]);
        assert!(output.status.success(), "{}", said(&output));
        print!(
            "{}",
            String::from_utf8_lossy(&output.stdout).lines().find(|line| line.starts_with("SKIPPED")).unwrap_or("")
        );
        return;
    }
    let pieces_max = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("Linux has it");
    if pieces_max.trim().parse::<usize>().expect("a number") > 120_000 {
        skip(test, Need::Machine, format_args!("vm.max_map_count is {}", pieces_max.trim()));
        return;
    }
    let options = RegionOptions { bytes: 1 << 30, reserve: Reserve::Overcommit, ..options(Catcher::Mprotect) };
    let region = Region::create(&options).unwrap_or_else(|error| panic!("{error}"));
    let refused = (0..region.pages())
        .step_by(2)
        .find_map(|page| region.install(page, 1, Access::Write, false).err().map(|error| (page, error.to_string())));
    let (page, error) = refused.expect("the kernel has a limit");
    // A page's neighbour joins two pieces, so there is room for one again.
    region.install(1, 1, Access::Write, false).expect("no further piece is needed");
    let words = ["vm.max_map_count", "page_bytes", &format!("page {page}")].map(|word| error.contains(word));
    assert_eq!(words, [true; 3], "{error}");
}
