//! The start of a node of a program with threads, before the program's own first function.
//!
//! Promises: when [`trellis_threads_begin`] returns, the variables of the program and its libraries are in the region, at
//! their own addresses, with the contents that they had at node 0.

use std::ffi::{c_char, c_int};
use std::ops::Range;
use std::sync::atomic::AtomicUsize;

use trellis::config::{Catch, Config, ConfigError, Sources};
use trellis::launch::EXIT_CONFIGURATION;
use trellis::memory::{Catcher, Parts, Piece, choose, probe};
use trellis::record::Area;
use trellis::{Cluster, JoinError};

use super::libraries::LIBRARIES;
use super::relaxed::{self, Rules};
use super::symbols::{Variable, variables};
use super::{PROGRAM, Program, bindings, cluster, patiently, stop};
use crate::addresses::OWN_NUMBERS;
use crate::layout::Layout;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The program and its cluster, for the library that is loaded first. Offsets and sizes are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Begin {
    /// The version of this interface, which the caller sets.
    version: usize,
    /// The size of the memory that the caller shares between nodes, which it sets.
    control_bytes: usize,
    /// The number of threads that there can be at once, which the caller sets.
    slots: usize,
    /// The room of a thread, which the caller sets.
    slot_bytes: usize,
    /// The memory for what the program's libraries allocate before it begins, and how much of it is in use, which the
    /// caller sets.
    early: usize,
    early_bytes: usize,
    early_bytes_used: usize,
    node: usize,
    nodes: usize,
    /// The address of the region, and its size.
    base: usize,
    bytes: usize,
    /// The address of the memory that the caller shares, and that of the room of the first thread.
    control: usize,
    stacks: usize,
    /// The variables of the program and its libraries: where there are pairs of an address and the address behind it, and
    /// how many.
    images: usize,
    image_count: usize,
    /// The functions with which libraries of the process allocate, and those that they are to use: pairs of addresses,
    /// which the caller sets.
    strict: usize,
    strict_count: usize,
    /// The least size of a block of the program that lies in the upper part of the heap.
    upper_bytes_min: usize,
    /// Whether some of the memory is relaxed.
    is_relaxed: usize,
    /// The memory of the region on which system calls wait: its address and size. On the rest they fail if
    /// `serves_in_thread`, because the thread that touches it serves the fault itself.
    queued: usize,
    queued_bytes: usize,
    serves_in_thread: usize,
    /// Where the number of the program's threads at this node stands, which the caller sets.
    threads: usize,
    /// The addresses for libraries that are loaded later: where they begin, and their size.
    libraries: usize,
    libraries_bytes: usize,
}

const VERSION: usize = 8;
pub(super) const PAGE_BYTES: usize = 4096;
/// The barrier at which the nodes meet before the program begins.
const BARRIER: u64 = OWN_NUMBERS;
/// Room for the list of the program's objects.
const OBJECTS_BYTES_MAX: usize = 1 << 20;

/// Keys with other defaults under a program with threads.
const DEFAULTS: [(&str, &str); 3] = [
    ("region_bytes", "64GiB"),
    ("reserve", "overcommit"),
    // A week, which is the most that can be said: a thread may wait for another one for as long as that computes.
    ("wait_seconds_max", "604800"),
];

/// Joins the cluster, and puts the program's variables into the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_threads_begin(begin: *mut Begin) {
    // SAFETY: the caller's promise.
    let begin = unsafe { &mut *begin };
    // From here on it waits for orders.
    Cluster::leave_thread_uncounted();
    if begin.version != VERSION {
        refuse(&format!(
            "libtrellis_threads.so speaks version {} and libtrellis.so {VERSION}; install both from one package",
            begin.version
        ));
    }
    if !probe().system_calls_work(Catcher::Handler) {
        refuse(
            "the stacks of threads can be shared only where userfaultfd is allowed for faults of the kernel: run as root, with \
             CAP_SYS_PTRACE, or after `sysctl -w vm.unprivileged_userfaultfd=1`",
        );
    }
    let rules = Rules::of_environment().unwrap_or_else(|error| refuse(&error));
    // SAFETY: the caller's pairs.
    let strict = unsafe { std::slice::from_raw_parts(begin.strict as *const [usize; 2], begin.strict_count) };
    if let Err(error) = bindings::bind_libraries(strict) {
        refuse(&format!("the functions of libraries cannot be bound: {error}"));
    }
    let mut layout = Layout::of_this_process();
    if begin.early_bytes > 0 {
        layout.images.push(begin.early..begin.early + begin.early_bytes);
    }
    let piece = |pages: &Range<usize>| Piece { address: pages.start, bytes: pages.len(), is_vacant: false };
    let mut pieces: Vec<Piece> = layout.images.iter().map(piece).collect();
    pieces.push(Piece { address: LIBRARIES.start, bytes: LIBRARIES.len(), is_vacant: true });
    let of_pieces: usize = pieces.iter().map(|piece| piece.bytes).sum();
    let objects_at = of_pieces;
    let control_at = objects_at + OBJECTS_BYTES_MAX;
    let stacks_at = (control_at + begin.control_bytes).next_multiple_of(begin.slot_bytes);
    let heap_at = stacks_at + begin.slots * begin.slot_bytes;
    // Its errors are told with those of the whole configuration.
    let said = Sources::new().process_environment().load().ok();
    if rules.is_some() && said.as_ref().is_some_and(|said| !said.coherence_ranges.is_empty()) {
        refuse("--races gives parts of the region another protocol by itself; leave the key coherence_ranges out");
    }
    let wants_names = rules.is_some() || said.is_some_and(|said| said.record.is_some());
    let variables = if wants_names { variables() } else { Vec::new() };
    let relaxed = rules.as_ref().map(|rules| offsets(&rules.pages(&variables), &layout.images));
    let unknown = rules.as_ref().map_or(Vec::new(), |rules| rules.unknown(&variables));
    let config = configuration(heap_at, relaxed.as_deref()).unwrap_or_else(|error| refuse(&error.to_string()));
    let serves_in_thread = config.catch == Catch::Signal;
    let region_bytes = config.region_bytes;
    let queued = control_at..config.heap_border();
    // A child that has not executed its program yet looks at this variable, and cannot serve a fault.
    let environment = page_of(&raw const environ as usize);
    let mut all_queued = offsets(std::slice::from_ref(&environment), &layout.images);
    all_queued.push(queued.clone());
    let parts = Parts { pieces, queued: all_queued };
    let joined = match Cluster::join_in_parts(config, &parts) {
        Ok(joined) => joined,
        Err(error @ JoinError::Config(_)) => refuse(&error.to_string()),
        Err(error) => stop(error),
    };
    let base = joined.region().base() as usize;
    joined.name_objects(crate::addresses::label);
    joined.expect_long_waits();
    // SAFETY: a number of the library that is loaded first, which stays.
    joined.count_threads(unsafe { AtomicUsize::from_ptr(begin.threads as *mut usize) });
    name_memory(&joined, &variables, &layout.images, [control_at, stacks_at, heap_at], begin.slot_bytes);
    PROGRAM.get_or_init(|| Program { cluster: joined });
    if cluster().node() == 0 {
        for pattern in unknown {
            trellis::complain(format_args!("--sequential: the program has no variable with the name {pattern}"));
        }
    }
    if serves_in_thread {
        let objects = base + of_pieces..base + control_at;
        make_calls_whole(&layout.images, [LIBRARIES, objects, base + queued.end..base + region_bytes]);
    }
    agree(&layout, base + objects_at);
    let unused = begin.early + begin.early_bytes_used.next_multiple_of(PAGE_BYTES)..begin.early + begin.early_bytes;
    let used = |pages: &Range<usize>| pages.start..if pages.end == unused.end { unused.start } else { pages.end };
    take_over(&layout.images.iter().map(used).collect::<Vec<_>>());
    begin.node = cluster().node();
    begin.nodes = cluster().nodes();
    begin.base = base;
    begin.bytes = cluster().region().bytes();
    begin.control = base + control_at;
    begin.stacks = base + stacks_at;
    let images: Vec<[usize; 2]> =
        layout.images.iter().chain([&LIBRARIES]).map(|pages| [pages.start, pages.end]).collect();
    (begin.libraries, begin.libraries_bytes) = (LIBRARIES.start, LIBRARIES.len());
    begin.image_count = images.len();
    begin.is_relaxed = rules.is_some().into();
    begin.upper_bytes_min = rules.map_or(0, |rules| rules.bytes_min);
    (begin.queued, begin.queued_bytes) = (base + queued.start, queued.len());
    begin.serves_in_thread = serves_in_thread.into();
    // They are asked for as long as the process lives.
    begin.images = images.leak().as_ptr() as usize;
}

/// The configuration, with the defaults of these programs for keys that are not set.
/// `relaxed` are the parts of the region with variables under release consistency; `None` if no memory is.
fn configuration(heap_at: usize, relaxed: Option<&[Range<usize>]>) -> Result<Config, ConfigError> {
    let mut sources = Sources::new().process_environment();
    let said = sources.clone().load()?.places;
    for (key, value) in DEFAULTS {
        if !said.contains_key(key) {
            sources = sources.set_by_program(format!("{key}={value}"));
        }
    }
    let read = sources.clone().load()?;
    match read.catch {
        Catch::Mprotect => refuse("stacks cannot be shared with the catcher `mprotect`; leave the key catch out"),
        // A single node's system calls go to the kernel directly, which waits for pages.
        Catch::Auto | Catch::Signal if read.nodes().len() == 1 => {
            sources = sources.set_by_program(format!("catch={}", Catcher::Handler));
        }
        Catch::Auto => {
            let catch = if works_in_thread() { Catcher::Signal } else { Catcher::Handler };
            sources = sources.set_by_program(format!("catch={catch}"));
        }
        Catch::Signal | Catch::Handler => {}
    }
    if read.has_release_consistency() {
        refuse(
            "trellis threads needs protocols that are sequentially consistent; leave the keys coherence and coherence_ranges \
             out, and say --races none if the program is free of data races",
        );
    }
    let region_bytes = read.region_bytes;
    let mut sources = sources.set_by_program(format!("heap_bytes={}", region_bytes.saturating_sub(heap_at)));
    if relaxed.is_some() && !said.contains_key("home") {
        sources = sources.set_by_program("home=migrating".to_owned());
    }
    if !said.contains_key("coherence_ranges") {
        let ranges = relaxed::coherence_ranges(relaxed, read.coherence, heap_at, region_bytes);
        sources = sources.set_by_program(format!("coherence_ranges={ranges}"));
    }
    sources.load()
}

/// Whether threads can serve their faults themselves here.
fn works_in_thread() -> bool {
    choose(Some(Catcher::Signal), &probe()).is_ok()
}

/// The page of an address.
fn page_of(address: usize) -> Range<usize> {
    let start = address & !(PAGE_BYTES - 1);
    start..start + PAGE_BYTES
}

/// Lets the functions of `trellis-calls` give the kernel private memory in place of the memory in these ranges.
fn make_calls_whole(images: &[Range<usize>], others: [Range<usize>; 3]) {
    for range in images.iter().chain(&others).filter(|range| !range.is_empty()) {
        // SAFETY: the region stays mapped for as long as the process lives, and so does the function.
        if !unsafe { trellis_calls::__trellis_calls_watch(range.start, range.len(), claim) } {
            refuse("the program has more libraries than system calls can be made whole for; set catch=handler");
        }
    }
}

unsafe extern "C" fn claim(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> bool {
    // SAFETY: the caller's promise, as that of sigaction(2).
    unsafe { trellis::memory::claim_signal(signal, action, before) }
}

/// The calling thread is none of the program's.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_leave_uncounted() {
    Cluster::leave_thread_uncounted();
}

/// Calls a function before and after a thread sleeps in a wait.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_tell_of_sleeps(function: extern "C" fn(bool)) {
    Cluster::tell_of_sleeps(function);
}

/// rt_sigaction(2) for a signal with which faults arrive: the action gets what is no fault of the region. False if the region
/// does not need the signal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_threads_claim_signal(signal: c_int, action: usize, before: usize) -> bool {
    // SAFETY: the caller's structures, or null.
    unsafe { claim(signal, action as *const libc::sigaction, before as *mut libc::sigaction) }
}

/// The calling thread is about to touch all of these bytes, and stores to them with `write`: missing pages come together.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_announce(start: usize, bytes: usize, write: bool) {
    trellis::memory::announce(start, bytes, write);
}

/// Names what lies in the region, for the record and for advice.
fn name_memory(
    cluster: &Cluster,
    variables: &[Variable],
    images: &[Range<usize>],
    parts: [usize; 3],
    slot_bytes: usize,
) {
    if !cluster.has_record() {
        return;
    }
    let [control_at, stacks_at, heap_at] = parts;
    let area = |part: Range<usize>, name: String| Area { first: part.start as u64, bytes: part.len() as u64, name };
    for Variable { addresses, name } in variables {
        let parts = offsets(std::slice::from_ref(addresses), images);
        cluster.name_memory(parts.into_iter().map(|part| area(part, name.clone())));
    }
    cluster.name_memory([area(control_at..stacks_at, "what Trellis keeps about threads".to_owned())]);
    let stacks = (stacks_at..heap_at).step_by(slot_bytes).enumerate();
    cluster.name_memory(
        stacks.map(|(number, start)| area(start..start + slot_bytes, format!("the stack of thread {number}"))),
    );
    let heap_bytes = cluster.region().bytes() - heap_at;
    cluster.name_memory([area(heap_at..heap_at + heap_bytes, "the heap".to_owned())]);
}

/// The places in the region of memory of the program that lies in these images, one behind the other.
fn offsets(memory: &[Range<usize>], images: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut offsets, mut start) = (Vec::new(), 0);
    for image in images {
        let inside = memory.iter().map(|part| part.start.max(image.start)..part.end.min(image.end));
        let place = |address: usize| start + address - image.start;
        offsets.extend(inside.filter(|part| !part.is_empty()).map(|part| place(part.start)..place(part.end)));
        start += image.len();
    }
    offsets
}

/// Compares the objects of this process with those of node 0.
fn agree(layout: &Layout, at: usize) {
    let (text, place) = (layout.objects.as_bytes(), at as *mut u8);
    if text.len() + 8 > OBJECTS_BYTES_MAX {
        refuse("the program is loaded from more libraries than Trellis can compare");
    }
    if cluster().node() == 0 {
        // SAFETY: these bytes of the region are for the list, and no other node reads them before the barrier.
        unsafe {
            place.cast::<usize>().write(text.len());
            place.wrapping_add(8).copy_from_nonoverlapping(text.as_ptr(), text.len());
        }
    }
    patiently("the start of the program", || cluster().barrier(BARRIER));
    // SAFETY: node 0 wrote them before the barrier.
    let theirs = unsafe { std::slice::from_raw_parts(place.wrapping_add(8), place.cast::<usize>().read()) };
    if let Some(difference) = layout.difference(&String::from_utf8_lossy(theirs)) {
        stop(format_args!(
            "the program is not loaded as at node 0: {difference}; every node needs the same files, `ulimit -s` and kernel"
        ));
    }
    patiently("the start of the program", || cluster().barrier(BARRIER));
}

/// Puts the region in the place of the variables, and the contents of these pages of them into it.
fn take_over(used: &[Range<usize>]) {
    // SAFETY: variables that nothing uses before the program begins.
    unsafe {
        with_contents(used, || {
            if let Err(error) = cluster().region().occupy() {
                stop(format_args!("the variables of the program cannot be shared: {error}"));
            }
        });
    }
}

/// Calls `occupy`, which puts pages of the region into the place of these, and gives them the contents that they have now at
/// node 0.
///
/// # Safety
/// They are readable, and nothing else uses them.
pub(super) unsafe fn with_contents(memory: &[Range<usize>], occupy: impl FnOnce()) {
    let pages = memory.iter().filter(|_| cluster().node() == 0).flat_map(|pages| pages.clone().step_by(PAGE_BYTES));
    // SAFETY: the caller's promise.
    let content = |page: usize| unsafe { &*(page as *const [u8; PAGE_BYTES]) };
    // Pages that were never stored to stay as they are in the region: zero, and of no node.
    let saved: Vec<(usize, [u8; PAGE_BYTES])> =
        pages.filter(|page| *content(*page) != [0; PAGE_BYTES]).map(|page| (page, *content(page))).collect();
    occupy();
    for (page, content) in saved {
        // SAFETY: a page of the region, which only this node uses now.
        unsafe { (page as *mut [u8; PAGE_BYTES]).write(content) };
    }
}

fn refuse(why: &str) -> ! {
    trellis::complain(format_args!("{why}"));
    // SAFETY: has no conditions.
    unsafe { libc::_exit(EXIT_CONFIGURATION) }
}
