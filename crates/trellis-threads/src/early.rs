//! Memory, keys of thread-specific data, semaphores and threads that libraries of the program make in their
//! constructors, before the program begins. Every node runs the constructors, and the program goes on with what they
//! made at node 0. Threads begin with the program.
//!
//! The memory is at one address on every node. When the node joins, its pages become pages of the region, with the contents
//! of node 0. Promises: a block is never moved or used again. Nothing but the program uses it after the start.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::c_int;

use crate::memory::ALIGNMENT;
use crate::table::reals;

/// The address of the memory, below that of regions, and its size.
pub(crate) const START: usize = 0x0ff0_0000_0000;
pub(crate) const BYTES: usize = 8 << 20;

/// Whether libraries are being initialised.
static IS_LOADING: AtomicBool = AtomicBool::new(false);
/// The memory begins with the handles of threads that have begun, which every node can see.
static NEXT: AtomicUsize = AtomicUsize::new(START + MADE_MAX * size_of::<usize>());

/// Called before libraries are initialised. If the memory is not available, they allocate as usual.
pub(crate) fn begin() {
    type Map = unsafe extern "C" fn(*mut c_void, usize, i32, i32, i32, i64) -> *mut c_void;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the C library's function, which has this type; the mapping replaces nothing.
    let got = unsafe {
        let map = std::mem::transmute::<*mut c_void, Map>(reals::mmap.address());
        map(START as *mut c_void, BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    IS_LOADING.store(got as usize == START, Ordering::Relaxed);
}

/// Called before the program begins. Returns whether its libraries may have allocated here.
pub(crate) fn end() -> bool {
    IS_LOADING.swap(false, Ordering::Relaxed)
}

/// How much of the memory libraries have taken.
pub(crate) fn bytes_used() -> usize {
    NEXT.load(Ordering::Relaxed).min(START + BYTES) - START
}

/// Whether a library is allocating.
pub(crate) fn is_loading() -> bool {
    IS_LOADING.load(Ordering::Relaxed)
}

/// Whether a block is one of these.
pub(crate) fn has(block: usize) -> bool {
    block.wrapping_sub(START) < BYTES
}

/// The maximum number of keys, of semaphores and of threads that libraries make.
const MADE_MAX: usize = 256;

/// A list of things that libraries have made: their count, and one or two numbers for each.
struct Made {
    count: AtomicUsize,
    things: [[AtomicUsize; 2]; MADE_MAX],
}

impl Made {
    const fn none() -> Made {
        Made { count: AtomicUsize::new(0), things: [const { [const { AtomicUsize::new(0) }; 2] }; MADE_MAX] }
    }

    /// Adds one, and returns its place; `None` if there are too many.
    fn add(&self, first: usize, second: usize) -> Option<usize> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let [a, b] = self.things.get(number)?;
        a.store(first, Ordering::Relaxed);
        b.store(second, Ordering::Relaxed);
        Some(number)
    }

    fn each(&self) -> impl Iterator<Item = [usize; 2]> + '_ {
        let made = self.things.iter().take(self.count.load(Ordering::Relaxed));
        made.map(|thing| [0, 1].map(|index: usize| thing[index].load(Ordering::Relaxed)))
    }
}

/// Destructors of keys, whose numbers are their places, and the values that the thread which loads the libraries gave them.
static KEYS: Made = Made::none();
/// Addresses and values of semaphores.
static SEMAPHORES: Made = Made::none();

/// Makes a key for a library, and returns its number.
pub(crate) fn make_key(destructor: usize) -> Option<usize> {
    KEYS.add(destructor, 0)
}

/// The place of the value of a key that a library has made.
fn value_of(key: usize) -> Option<&'static AtomicUsize> {
    (key < KEYS.count.load(Ordering::Relaxed)).then(|| KEYS.things.get(key).map(|[_, value]| value)).flatten()
}

/// Sets the value of a key for a library. Returns whether there is such a key.
pub(crate) fn set_value(key: usize, value: usize) -> bool {
    value_of(key).map(|place| place.store(value, Ordering::Relaxed)).is_some()
}

/// The value of a key; 0 if it has none.
pub(crate) fn value(key: usize) -> usize {
    value_of(key).map_or(0, |place| place.load(Ordering::Relaxed))
}

/// The values of keys, with their numbers, for the main thread.
pub(crate) fn values() -> impl Iterator<Item = (usize, usize)> {
    KEYS.each().map(|[_, value]| value).enumerate().filter(|(_, value)| *value != 0)
}

/// A library makes a semaphore.
pub(crate) fn make_semaphore(address: usize, value: usize) {
    SEMAPHORES.add(address, value);
}

/// A thread that a library makes.
pub(crate) struct Thread {
    /// The place for its handle.
    pub(crate) to: usize,
    pub(crate) function: usize,
    pub(crate) argument: usize,
    pub(crate) is_detached: bool,
}

/// The first of the handles that threads have until they begin, in whose place their own are put. No control block is there.
const HANDLES: usize = START + BYTES;

/// Places of handles and functions of threads; arguments, and whether they are detached.
static THREADS: [Made; 2] = [Made::none(), Made::none()];

/// Makes a thread for a library, which begins with the program. Returns the error number.
///
/// # Safety
/// The place for the handle is valid.
pub(crate) unsafe fn make_thread(thread: &Thread) -> c_int {
    let Some(number) = THREADS[0].add(thread.to, thread.function) else { return libc::EAGAIN };
    THREADS[1].add(thread.argument, thread.is_detached.into());
    // SAFETY: the caller's promise.
    unsafe { *(thread.to as *mut usize) = HANDLES + number };
    0
}

/// The threads that libraries have made, with the handles that they have got.
pub(crate) fn threads() -> impl Iterator<Item = (usize, Thread)> {
    let both = THREADS[0].each().zip(THREADS[1].each()).enumerate();
    both.map(|(number, ([to, function], [argument, is_detached]))| {
        (HANDLES + number, Thread { to, function, argument, is_detached: is_detached != 0 })
    })
}

/// A thread that a library has made has begun. `early` and `handle` are its handles until now and from now on.
pub(crate) fn thread_began(early: usize, handle: usize) {
    if let Some(place) = begun(early) {
        place.store(handle, Ordering::Release);
    }
}

/// The handle of a thread, whatever its library took for it.
pub(crate) fn handle_of(thread: usize) -> usize {
    match begun(thread).map_or(0, |place| place.load(Ordering::Acquire)) {
        0 => thread,
        handle => handle,
    }
}

/// The place for the handle of a thread that a library has made.
fn begun(early: usize) -> Option<&'static AtomicUsize> {
    let number = early.wrapping_sub(HANDLES);
    let place = (START as *const AtomicUsize).wrapping_add(number);
    // SAFETY: in the memory, without which no thread is made early.
    (number < MADE_MAX).then(|| unsafe { &*place })
}

/// The destructors of the keys, in the order of their numbers.
pub(crate) fn keys() -> impl Iterator<Item = usize> {
    KEYS.each().map(|[destructor, _]| destructor)
}

/// The addresses and the values of the semaphores.
pub(crate) fn semaphores() -> impl Iterator<Item = [usize; 2]> {
    SEMAPHORES.each()
}

/// Allocates a block of zeros, with its size in the word before it. Returns null if there is no room.
pub(crate) fn allocate(bytes: usize, alignment: usize) -> *mut c_void {
    let alignment = alignment.max(ALIGNMENT);
    let Some(room) = bytes.checked_add(alignment + ALIGNMENT) else { return null_mut() };
    let at = NEXT.fetch_add(room.next_multiple_of(ALIGNMENT), Ordering::Relaxed);
    if at.checked_add(room).is_none_or(|end| end > START + BYTES) {
        return null_mut();
    }
    let block = (at + ALIGNMENT).next_multiple_of(alignment);
    // SAFETY: inside the memory, and nobody else's.
    unsafe { ((block - size_of::<usize>()) as *mut usize).write(bytes) };
    block as *mut c_void
}

/// The size of a block.
pub(crate) fn usable(block: usize) -> usize {
    // SAFETY: the word before a block of [`allocate`].
    unsafe { ((block - size_of::<usize>()) as *const usize).read() }
}
