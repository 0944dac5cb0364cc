//! The start and the end of the program.
//!
//! The C library calls `__libc_start_main` when a program and its libraries are loaded and its own code has not run. There
//! the process joins the cluster. At node 0 the program's main function runs in a thread of the program; the other nodes
//! wait for threads.
//!
//! Promises: standard input and standard output are one stream each, whichever node a thread uses them at. The program
//! ends once, with one status, whichever thread ends it. Children that the program starts know nothing of Trellis.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use libc::sigset_t;

use crate::context::{self, aside, slot};
use crate::control::{self, Control, ROOM_BYTES, SLOTS, control};
use crate::runtime::{self, Begin};
use crate::table::reals;
use crate::{
    cancellation, early, faults, interrupted, keys, libraries, memory, openmp, relaxed, streams, system_calls, threads,
    whole,
};

type Main = unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
type StartMain =
    unsafe extern "C" fn(Main, c_int, *mut *mut c_char, *mut c_void, *mut c_void, *mut c_void, *mut c_void) -> c_int;

/// Set by `trellis threads`, with the number of processors that the program sees.
const VARIABLE: &[u8] = b"TRELLIS_THREADS_PROCESSORS=";
/// Variables that children of the program must not have.
const OURS: [&[u8]; 4] = [b"LD_PRELOAD=", b"LD_BIND_NOW=", b"GLIBC_TUNABLES=", b"TRELLIS_"];

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
    fn on_exit(function: unsafe extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// The arguments that the C library gave for the main function.
struct Given {
    main: AtomicUsize,
    count: AtomicUsize,
    arguments: AtomicPtr<*mut c_char>,
    rest: [AtomicPtr<c_void>; 4],
}

static GIVEN: Given = Given {
    main: AtomicUsize::new(0),
    count: AtomicUsize::new(0),
    arguments: AtomicPtr::new(null_mut()),
    rest: [const { AtomicPtr::new(null_mut()) }; 4],
};
/// The processors that the program sees; 0 in a process that `trellis threads` did not start.
static PROCESSORS: AtomicU32 = AtomicU32::new(0);
pub(crate) static NODE: AtomicUsize = AtomicUsize::new(0);
static NODES: AtomicUsize = AtomicUsize::new(0);

/// This node's number.
pub(crate) fn node() -> usize {
    NODE.load(Ordering::Relaxed)
}

/// How many nodes there are.
pub(crate) fn nodes() -> usize {
    NODES.load(Ordering::Relaxed)
}

/// Finds out whether `trellis threads` started this process. If so, it registers the function that runs last at the end
/// of the process, before any other is registered.
///
/// # Safety
/// It is the environment, which ends with a null pointer.
pub(crate) unsafe fn prepare(environment: *mut *mut c_char) {
    let mut at = environment;
    // SAFETY: the caller's list and its texts; a function of this library, which is never unloaded.
    unsafe {
        while !(*at).is_null() {
            if let Some(value) = CStr::from_ptr(*at).to_bytes().strip_prefix(VARIABLE) {
                let count = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                PROCESSORS.store(count.unwrap_or(1), Ordering::Relaxed);
                on_exit(last, null_mut());
                early::begin();
                return;
            }
            at = at.wrapping_add(1);
        }
    }
}

/// Whether `trellis threads` started this process.
pub(crate) fn is_wanted() -> bool {
    PROCESSORS.load(Ordering::Relaxed) > 0
}

/// # Safety
/// As the C library calls it.
pub(crate) unsafe fn start_main(
    main: Main,
    count: c_int,
    arguments: *mut *mut c_char,
    rest: [*mut c_void; 4],
) -> c_int {
    let has_early = early::end();
    if let Err(why) = context::possible().and_then(|()| threads::find_number()) {
        refuse(why);
    }
    if let Err(why) = runtime::open() {
        refuse(&why);
    }
    let strict = relaxed::strict_functions();
    let mut begin = Begin {
        version: runtime::VERSION,
        control_bytes: size_of::<Control>(),
        slots: SLOTS,
        room_bytes: ROOM_BYTES,
        early: early::START,
        early_bytes: if has_early { early::BYTES } else { 0 },
        early_bytes_used: early::bytes_used(),
        strict: strict.as_ptr() as usize,
        strict_count: strict.len(),
        threads: threads::number_here().as_ptr() as usize,
        ..Begin::default()
    };
    let low = LowNumbers::taken();
    runtime::begin(&mut begin);
    drop(low);
    NODE.store(begin.node, Ordering::Relaxed);
    NODES.store(begin.nodes, Ordering::Relaxed);
    control::begin(begin.control);
    memory::begin(begin.base, begin.bytes);
    relaxed::begin(&begin);
    context::begin(begin.rooms, begin.room_bytes);
    block_signals();
    system_calls::begin(begin.images, begin.image_count);
    cancellation::begin();
    faults::begin(&begin);
    runtime::tell_of_sleeps(interrupted::slept);
    libraries::begin(&begin);
    openmp::begin();
    if begin.node != 0 {
        threads::serve();
        runtime::end_here(threads::here() > 0);
        unreachable!("the process has ended");
    }
    // SAFETY: getpid has no conditions.
    control().process.store(unsafe { libc::getpid() } as u32, Ordering::Relaxed);
    control().processors.store(PROCESSORS.load(Ordering::Relaxed), Ordering::Relaxed);
    GIVEN.main.store(main as usize, Ordering::Relaxed);
    GIVEN.count.store(count as usize, Ordering::Relaxed);
    // SAFETY: the arguments and the environment that the kernel gave, which nobody else uses now.
    unsafe {
        GIVEN.arguments.store(moved(arguments, |_| true), Ordering::Relaxed);
        environ = moved(environ, |text| !OURS.iter().any(|ours| text.starts_with(ours)));
        publish_environment(environ);
    }
    for (place, value) in GIVEN.rest.iter().zip(rest) {
        place.store(value, Ordering::Relaxed);
    }
    keys::begin();
    for [semaphore, value] in early::semaphores() {
        runtime::semaphore_set(semaphore, value as u64);
    }
    threads::make_main(main_thread);
    threads::serve();
    // The program is over, and the thread that ended it ends the process.
    loop {
        // SAFETY: has no conditions.
        unsafe { libc::pause() };
    }
}

/// Keeps the low numbers of descriptors while Trellis opens its own, because programs choose such numbers themselves
/// (dup2(2)).
struct LowNumbers(Vec<c_int>);

impl LowNumbers {
    /// More numbers than programs choose.
    const MAX: c_int = 200;

    fn taken() -> LowNumbers {
        // SAFETY: system calls on plain numbers and a constant name.
        let free = |number: &c_int| unsafe { libc::fcntl(*number, libc::F_GETFD) } < 0;
        let numbers: Vec<c_int> = (3..Self::MAX).filter(free).collect();
        // SAFETY: the same; a number that is free is nobody's.
        unsafe {
            let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            numbers.iter().for_each(|number| {
                if *number != nothing {
                    libc::dup3(nothing, *number, libc::O_CLOEXEC);
                }
            });
        }
        LowNumbers(numbers)
    }
}

impl Drop for LowNumbers {
    fn drop(&mut self) {
        for number in &self.0 {
            // SAFETY: a number that was taken, which nobody else uses.
            unsafe { libc::close(*number) };
        }
    }
}

/// A list of texts, and the texts, in the region.
///
/// # Safety
/// A null pointer ends the list.
unsafe fn moved(list: *mut *mut c_char, is_kept: impl Fn(&[u8]) -> bool) -> *mut *mut c_char {
    let mut kept = Vec::new();
    let mut at = list;
    // SAFETY: the caller's list and its texts.
    unsafe {
        while !(*at).is_null() {
            let text = CStr::from_ptr(*at);
            if is_kept(text.to_bytes()) {
                let copy = runtime::allocate(text.count_bytes() + 1, 1, false, false) as *mut c_char;
                copy.copy_from_nonoverlapping(text.as_ptr(), text.count_bytes() + 1);
                kept.push(copy);
            }
            at = at.wrapping_add(1);
        }
        kept.push(null_mut());
        let place = runtime::allocate(kept.len() * size_of::<*mut c_char>(), 16, false, false) as *mut *mut c_char;
        place.copy_from_nonoverlapping(kept.as_ptr(), kept.len());
        place
    }
}

/// The main thread of the program.
extern "C-unwind" fn main_thread(_: *mut c_void) -> *mut c_void {
    keys::begin_main();
    streams::make();
    threads::begin_early();
    let [init, fini, loader_fini, stack_end] =
        [0, 1, 2, 3].map(|index: usize| GIVEN.rest[index].load(Ordering::Relaxed));
    // SAFETY: the C library's function, which has this type, with what it was called with at first.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, StartMain>(reals::__libc_start_main.address());
        let main = std::mem::transmute::<usize, Main>(GIVEN.main.load(Ordering::Relaxed));
        let count = GIVEN.count.load(Ordering::Relaxed) as c_int;
        real(main, count, GIVEN.arguments.load(Ordering::Relaxed), init, fini, loader_fini, stack_end);
    }
    null_mut()
}

/// Calls a function of the C library at node 0: one that starts another program, whose children are the program's, or
/// one that keeps a state in the C library's own variables. If the answer is an `int`, only its low half counts.
///
/// # Safety
/// The function takes these arguments.
pub(crate) unsafe fn at_first_node(function: *mut c_void, arguments: [usize; 6]) -> isize {
    if node() != 0 {
        return system_calls::call_at_first_node(function, arguments);
    }
    // SAFETY: the caller's promise.
    unsafe { called(function, arguments) }
}

/// A call of a function of the C library in a thread of the program at node 0.
struct CallInThread {
    function: *mut c_void,
    arguments: [usize; 3],
    mask: u64,
    answer: isize,
    error: c_int,
}

/// Calls a function of the C library in a thread of the program at node 0: one whose memory is the program's, such as
/// streams and texts of the environment.
///
/// # Safety
/// The function takes these arguments, or fewer.
pub(crate) unsafe fn in_thread_of_first_node(function: *mut c_void, arguments: [usize; 3]) -> isize {
    let before = trellis_interpose::errno();
    let mut wanted = CallInThread { function, arguments, mask: signal_mask(), answer: 0, error: 0 };
    let argument = (&raw mut wanted).cast::<c_void>();
    if node() == 0 {
        call_in_thread(argument);
    } else if let Err(error) = threads::run_at(0, call_in_thread, argument as usize) {
        runtime::stop(&format!("a function cannot be called at node 0: {}", std::io::Error::from_raw_os_error(error)));
    }
    trellis_interpose::set_errno(if wanted.error == 0 { before } else { wanted.error });
    wanted.answer
}

extern "C-unwind" fn call_in_thread(wanted: *mut c_void) -> *mut c_void {
    // SAFETY: what `in_thread_of_first_node` passes, which waits for this.
    let wanted = unsafe { &mut *wanted.cast::<CallInThread>() };
    let [a, b, c] = wanted.arguments;
    set_signal_mask(wanted.mask);
    trellis_interpose::set_errno(0);
    // SAFETY: the caller's promise.
    wanted.answer = unsafe { called(wanted.function, [a, b, c, 0, 0, 0]) };
    wanted.error = trellis_interpose::errno();
    // SAFETY: the C library's variable.
    unsafe { publish_environment(environ) };
    null_mut()
}

/// Calls a function of the C library at this node, with memory on which system calls may not wait.
///
/// # Safety
/// The function takes these arguments.
pub(crate) unsafe fn called(function: *mut c_void, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    type Function = extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;
    // SAFETY: the caller's promise; the other function takes the same.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(whole::instead_of(function)) };
    function(a, b, c, d, e, f)
}

/// The arguments of the program, and its environment, for constructors; at node 0.
pub(crate) fn arguments() -> (c_int, *mut *mut c_char, *mut *mut c_char) {
    let (count, arguments) = (GIVEN.count.load(Ordering::Relaxed), GIVEN.arguments.load(Ordering::Relaxed));
    // SAFETY: the C library's variable.
    (count as c_int, arguments, unsafe { environ })
}

/// The last function of the program and its libraries that runs when the process ends by exit(3), at node 0. The C
/// library then writes what its streams hold, and makes the system call that ends the process, which comes to [`end`].
unsafe extern "C" fn last(_: c_int, _: *mut c_void) {
    if slot().is_some() {
        openmp::end();
        streams::flush_elsewhere();
        system_calls::trap_all();
    }
}

/// Ends the program, at node 0.
pub(crate) fn end(status: c_int) {
    let others = threads::here().saturating_sub(usize::from(slot().is_some()));
    runtime::end(status, others > 0);
}

/// Ends the program, as exit(3) does.
///
/// # Safety
/// The function is that of the C library.
pub(crate) unsafe fn exit(real: unsafe extern "C" fn(c_int), status: c_int) {
    if node() != 0 {
        end_elsewhere(exit_there, status);
    }
    // SAFETY: as the caller promises.
    unsafe { real(status) }
}

/// Ends the program at once, as _exit(2) does; or only a child that shares this memory until it has executed another program
/// (vfork(2)).
pub(crate) fn exit_now(status: c_int) {
    if system_calls::is_in_child() {
        system_calls::end_child(status);
    }
    if node() != 0 {
        end_elsewhere(exit_now_there, status);
    }
    end(status);
}

/// Lets node 0 end the program, and waits for that.
fn end_elsewhere(how: extern "C-unwind" fn(*mut c_void) -> *mut c_void, status: c_int) -> ! {
    threads::end_at_first_node(how, status);
    loop {
        // SAFETY: has no conditions.
        aside(|| unsafe { libc::pause() });
    }
}

/// Ends the program at node 0.
pub(crate) extern "C-unwind" fn exit_there(status: *mut c_void) -> *mut c_void {
    // SAFETY: exit(3) may be called in any thread.
    unsafe { libc::exit(status as usize as c_int) }
}

extern "C-unwind" fn exit_now_there(status: *mut c_void) -> *mut c_void {
    end(status as usize as c_int);
    null_mut()
}

/// The environment of this node is that of the program from now on.
pub(crate) fn follow_environment() {
    if node() != 0 {
        // SAFETY: the C library's variable; the list is in the region.
        unsafe { environ = control().environment.load(Ordering::Acquire) as *mut *mut c_char };
    }
}

/// The environment of node 0, which calls this, is that of the program.
fn publish_environment(environment: *mut *mut c_char) {
    control().environment.store(environment as usize, Ordering::Release);
}

/// The signals that the calling thread blocks.
pub(crate) fn signal_mask() -> u64 {
    let mut now = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: room for the answer.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
        threads::mask_of(&now.assume_init())
    }
}

/// Sets the signals that the calling thread blocks.
pub(crate) fn set_signal_mask(mask: u64) {
    let mut set = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: the C library's set begins with the kernel's 64 bits; all bytes of it are set.
    unsafe {
        set.as_mut_ptr().cast::<u64>().write_unaligned(mask & !faults::UNBLOCKED);
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), null_mut());
    }
}

/// The calling thread blocks all signals: those for the process are for threads of the program.
pub(crate) fn block_signals() {
    set_signal_mask(u64::MAX);
}

/// Ends the process before it is in a cluster.
fn refuse(why: &str) -> ! {
    eprintln!("trellis: {why}");
    // SAFETY: has no conditions.
    unsafe { libc::_exit(78) }
}
