//! Threads of the program: made on any node by any other, and joined from anywhere.
//!
//! Threads go to the nodes in turn, the first one to the node after that of the main thread. Each has a room in the region
//! (`control`) and a companion at its node (`context`), which makes it with the C library's function, waits for it, and
//! says that it has ended.
//!
//! Promises: what the creator did is visible to the thread, and what the thread did is visible to the thread that joins
//! it. Its handle is that of pthreads, the address of its control block, which no other thread of any node has at that
//! time.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use libc::{clockid_t, pthread_attr_t, sigset_t, timespec};

use crate::context::{self, aside};
use crate::control::{self, ENDED, FREE, RUNNING, SLOTS, STACK_OFFSET, STARTING, control, record};
use crate::table::reals;
use crate::time::{FOREVER, NOW, until as until_time};
use crate::{
    awaited, cancellation, early, keys, mutexes, openmp, relaxed, runtime, semaphores, start, state, streams,
    system_calls,
};

type Function = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type C11Function = extern "C-unwind" fn(*mut c_void) -> c_int;
type Create = unsafe extern "C" fn(*mut usize, *const c_void, Function, *mut c_void) -> c_int;

/// The size of the stack of a private thread. On the stack of a companion, Trellis' code runs for its thread.
const PRIVATE_STACK_BYTES: usize = 1 << 20;
/// The part of it that the companion itself needs while it waits.
const COMPANION_RESERVE_BYTES: usize = 64 << 10;
/// The answers of C11's functions.
const THRD_SUCCESS: c_int = 0;
const THRD_ERROR: c_int = 2;
const THRD_NOMEM: c_int = 3;

unsafe extern "C" {
    fn pthread_attr_getdetachstate(attributes: *const pthread_attr_t, state: *mut c_int) -> c_int;
}

/// The number of threads of the program that run at this node.
static HERE: AtomicUsize = AtomicUsize::new(0);

/// The counter of the program's threads at this node.
pub(crate) fn number_here() -> &'static AtomicUsize {
    &HERE
}

/// The number of threads of the program that run at this node.
pub(crate) fn here() -> usize {
    HERE.load(Ordering::SeqCst)
}

/// The C library's function, of either type.
macro_rules! real {
    ($name:ident as $type:ty) => {{
        // SAFETY: the C library's function of this name has this type.
        unsafe { std::mem::transmute::<*mut c_void, $type>(reals::$name.address()) }
    }};
}

/// The request of the program.
struct ThreadRequest {
    function: usize,
    argument: usize,
    is_c11: bool,
    is_detached: bool,
    /// Whether it waits for work as long as the program runs. The program ends without it.
    is_kept: bool,
    mask: u64,
    /// The node where it must run, if that matters.
    node: Option<usize>,
}

/// # Safety
/// As pthread_create(3p).
pub(crate) unsafe fn create(
    thread: *mut usize,
    attributes: *const c_void,
    function: Function,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's attributes.
    let (is_detached, stack_bytes) = unsafe { attributes_of(attributes) };
    if stack_bytes > context::room_bytes() - STACK_OFFSET {
        return libc::EAGAIN;
    }
    let request = ThreadRequest {
        function: function as usize,
        argument: argument as usize,
        is_c11: false,
        is_detached,
        is_kept: false,
        mask: start::signal_mask(),
        node: None,
    };
    match make(&request) {
        Ok(handle) => {
            // SAFETY: the caller's place for the answer.
            unsafe { *thread = handle };
            0
        }
        Err(error) => error,
    }
}

/// Whether a thread with these attributes is detached, and the size of its stack, 0 for the usual one.
///
/// # Safety
/// They are attributes, or null.
unsafe fn attributes_of(attributes: *const c_void) -> (bool, usize) {
    let (mut detached, mut stack_bytes) = (libc::PTHREAD_CREATE_JOINABLE, 0);
    if !attributes.is_null() {
        // SAFETY: the caller's promise.
        unsafe {
            pthread_attr_getdetachstate(attributes.cast::<pthread_attr_t>(), &mut detached);
            libc::pthread_attr_getstacksize(attributes.cast::<pthread_attr_t>(), &mut stack_bytes);
        }
    }
    (detached == libc::PTHREAD_CREATE_DETACHED, stack_bytes)
}

/// A library makes a thread in its constructor.
///
/// # Safety
/// As pthread_create(3p).
pub(crate) unsafe fn create_early(
    thread: *mut usize,
    attributes: *const c_void,
    function: Function,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let (is_detached, _) = attributes_of(attributes);
        let (function, argument) = (function as usize, argument as usize);
        early::make_thread(&early::Thread { to: thread as usize, function, argument, is_detached })
    }
}

/// Begins the threads that libraries have made in their constructors. Called by the main thread, before its own code.
pub(crate) fn begin_early() {
    for (handle, early::Thread { to, function, argument, is_detached }) in early::threads() {
        let mask = start::signal_mask();
        match make(&ThreadRequest { function, argument, is_c11: false, is_detached, is_kept: false, mask, node: None })
        {
            Ok(made) => {
                early::thread_began(handle, made);
                // SAFETY: the place that the library gave, unless something else lies there now.
                let place = unsafe { &mut *(to as *mut usize) };
                if *place == handle {
                    *place = made;
                }
            }
            Err(error) => runtime::stop(&format!(
                "a thread of a library cannot be made: {}",
                std::io::Error::from_raw_os_error(error)
            )),
        }
    }
}

/// # Safety
/// As thrd_create of C11.
pub(crate) unsafe fn create_c11(thread: *mut usize, function: C11Function, argument: *mut c_void) -> c_int {
    let request = ThreadRequest {
        function: function as usize,
        argument: argument as usize,
        is_c11: true,
        is_detached: false,
        is_kept: false,
        mask: start::signal_mask(),
        node: None,
    };
    match make(&request) {
        Ok(handle) => {
            // SAFETY: the caller's place for the answer.
            unsafe { *thread = handle };
            THRD_SUCCESS
        }
        Err(libc::ENOMEM | libc::EAGAIN) => THRD_NOMEM,
        Err(_) => THRD_ERROR,
    }
}

/// Makes the main thread, at this node. It is the first one.
pub(crate) fn make_main(function: Function) {
    let request = ThreadRequest {
        function: function as usize,
        argument: 0,
        is_c11: false,
        is_detached: true,
        is_kept: false,
        mask: 0,
        node: Some(0),
    };
    if let Err(error) = make(&request) {
        runtime::stop(&format!("the main thread cannot be made: {}", std::io::Error::from_raw_os_error(error)));
    }
}

/// Makes a thread at node 0 that ends the program there.
pub(crate) fn end_at_first_node(function: extern "C-unwind" fn(*mut c_void) -> *mut c_void, status: c_int) {
    let argument = status as usize;
    let request = ThreadRequest {
        function: function as usize,
        argument,
        is_c11: false,
        is_detached: true,
        is_kept: false,
        mask: 0,
        node: Some(0),
    };
    // Without room for another thread, the run ends when its time is over. No caller could handle an error.
    let _ = make(&request);
}

/// Makes a thread at a node for a team of OpenMP. Returns its handle.
pub(crate) fn make_worker(node: usize, function: Function, argument: usize) -> Result<usize, c_int> {
    let mask = start::signal_mask();
    make(&ThreadRequest {
        function: function as usize,
        argument,
        is_c11: false,
        is_detached: false,
        is_kept: true,
        mask,
        node: Some(node),
    })
}

/// Runs a function in a thread of every other node, one after the other.
pub(crate) fn run_elsewhere(function: Function) {
    for node in 1..start::nodes() {
        // Its result is lost.
        let _ = run_at(node, function, 0);
    }
}

/// Runs a function in a new thread of a node, and waits for its end; the number of the error if there can be none.
pub(crate) fn run_at(node: usize, function: Function, argument: usize) -> Result<(), c_int> {
    let request = ThreadRequest {
        function: function as usize,
        argument,
        is_c11: false,
        is_detached: false,
        is_kept: false,
        mask: u64::MAX,
        node: Some(node),
    };
    let thread = make(&request)?;
    joined(thread, |ended| runtime::semaphore_wait(ended, FOREVER)).map(drop)
}

/// Makes a thread; returns its handle.
fn make(request: &ThreadRequest) -> Result<usize, c_int> {
    aside(|| {
        let (slot, node) = take_slot(request).ok_or(libc::EAGAIN)?;
        let record = record(slot);
        if node == start::node() {
            claim_own(slot);
        } else {
            runtime::order(node);
        }
        runtime::semaphore_wait((&raw const record.started) as usize, FOREVER);
        match record.error.load(Ordering::Acquire) {
            0 => Ok(record.handle.load(Ordering::Acquire)),
            error => {
                give_up(slot);
                Err(error as c_int)
            }
        }
    })
}

/// Takes a slot for a thread, and says at which node it will run.
fn take_slot(request: &ThreadRequest) -> Option<(usize, usize)> {
    control::alone(|control| {
        let slot = control.states.iter().position(|state| state.load(Ordering::Relaxed) == FREE)?;
        let node = request.node.unwrap_or(control.made.load(Ordering::Relaxed) % start::nodes());
        control.made.fetch_add(1, Ordering::Relaxed);
        control.alive.fetch_add(usize::from(!request.is_kept), Ordering::Relaxed);
        control.nodes[slot].store(node as u32, Ordering::Relaxed);
        control.detached[slot].store(request.is_detached.into(), Ordering::Relaxed);
        let record = record(slot);
        keys::clear(slot);
        record.function.store(request.function, Ordering::Relaxed);
        record.argument.store(request.argument, Ordering::Relaxed);
        record.is_c11.store(request.is_c11.into(), Ordering::Relaxed);
        record.is_kept.store(request.is_kept.into(), Ordering::Relaxed);
        record.mask.store(request.mask, Ordering::Relaxed);
        record.error.store(0, Ordering::Relaxed);
        control.signals[slot].store(0, Ordering::Relaxed);
        control.states[slot].store(STARTING, Ordering::Release);
        Some((slot, node))
    })
}

/// The number by which the thread of a slot counts among those with which the program lives: one, or none if it is kept
/// for work.
fn counted(slot: usize) -> usize {
    usize::from(record(slot).is_kept.load(Ordering::Relaxed) == 0)
}

fn give_up(slot: usize) {
    control::alone(|control| {
        control.alive.fetch_sub(counted(slot), Ordering::Relaxed);
        control.states[slot].store(FREE, Ordering::Release);
    });
}

/// Does what other nodes ask of this one, until the program is over: starts threads that they made, and passes signals on.
pub(crate) fn serve() {
    while runtime::next_order() {
        let control = control();
        if start::node() == 0 {
            system_calls::make_deputies();
            awaited::pass_on_to_deputies();
        }
        relaxed::acquire_for_others();
        state::follow_others();
        for slot in 0..SLOTS {
            // The order matters, because a slot that is taken again gets its node before its state.
            let is_starting = control.states[slot].load(Ordering::Acquire) == STARTING;
            if control.nodes[slot].load(Ordering::Acquire) as usize != start::node() {
                continue;
            }
            if is_starting && claim(slot) {
                relaxed::acquire_from_maker();
                state::follow();
                begin(slot);
            }
            if control.signals[slot].load(Ordering::Acquire) != 0 {
                pass_on(slot, control.signals[slot].swap(0, Ordering::AcqRel));
            }
        }
    }
}

/// Whether the thread in a slot runs at another node.
pub(crate) fn is_elsewhere(slot: usize) -> bool {
    let control = control();
    control.states[slot].load(Ordering::Acquire) != FREE
        && control.nodes[slot].load(Ordering::Relaxed) as usize != start::node()
}

/// Makes a private thread of this node for a slot; returns the number of the error.
pub(crate) fn make_private(function: Function, slot: usize) -> c_int {
    let create = real!(pthread_create as Create);
    let mut attributes = MaybeUninit::<pthread_attr_t>::uninit();
    let mut thread = 0;
    // SAFETY: attributes that are initialised first.
    unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), PRIVATE_STACK_BYTES);
        create(&mut thread, attributes.as_ptr().cast(), function, slot as *mut c_void)
    }
}

/// Sends the signals of a set to a thread of this node.
fn pass_on(slot: usize, signals: u64) {
    for signal in (0..64).filter(|signal| signals >> signal & 1 != 0) {
        send(slot, signal + 1);
    }
}

/// Sends a signal to a thread of this node; returns the number of the error.
fn send(slot: usize, signal: c_int) -> c_int {
    if control().states[slot].load(Ordering::Acquire) != RUNNING {
        return libc::ESRCH;
    }
    if signal == cancellation::SIGNAL {
        cancellation::interrupt(slot);
        return 0;
    }
    if context::slot() == Some(slot) {
        let kill = real!(pthread_kill as unsafe extern "C" fn(usize, c_int) -> c_int);
        // SAFETY: the handle of the calling thread.
        return unsafe { kill(record(slot).handle.load(Ordering::Acquire), signal) };
    }
    match number_of(slot).load(Ordering::Acquire) {
        0 => 0,
        number => awaited::send_to(slot, number, signal),
    }
}

/// Sends a signal to the thread of a slot at a node.
pub(crate) fn send_anywhere(slot: usize, node: usize, signal: c_int) -> c_int {
    if node == start::node() {
        return send(slot, signal);
    }
    control().signals[slot].fetch_or(1 << (signal - 1), Ordering::AcqRel);
    runtime::order(node);
    0
}

/// Sends a signal to a thread of the program, at whichever node it runs.
pub(crate) fn kill(thread: usize, signal: c_int) -> c_int {
    let Some(slot) = context::slot_of(early::handle_of(thread)) else { return libc::ESRCH };
    let control = control();
    if !(0..=64).contains(&signal) || signal == cancellation::SIGNAL {
        return libc::EINVAL;
    }
    if control.states[slot].load(Ordering::Acquire) != RUNNING {
        return libc::ESRCH;
    }
    if signal == 0 {
        return 0;
    }
    send_anywhere(slot, control.nodes[slot].load(Ordering::Relaxed) as usize, signal)
}

/// Whether this call is the one that starts the thread: a thread of this node may be about to.
fn claim(slot: usize) -> bool {
    !BEGUN[slot].swap(true, Ordering::SeqCst)
}

/// Begins a thread that a thread of this node made, unless the one that serves orders was faster.
fn claim_own(slot: usize) {
    if claim(slot) {
        begin(slot);
    }
}

/// Whether the thread of a slot has been begun at this node, since the slot was taken.
static BEGUN: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];

/// Makes the companion of a thread of this node, and with it the thread.
fn begin(slot: usize) {
    HERE.fetch_add(1, Ordering::SeqCst);
    let error = make_private(accompany, slot);
    if error != 0 {
        not_begun(slot, error);
    }
}

fn not_begun(slot: usize, error: c_int) {
    let record = record(slot);
    HERE.fetch_sub(1, Ordering::SeqCst);
    record.error.store(error as u32, Ordering::Release);
    // No thread may take it for one that is to be started.
    control().states[slot].store(ENDED, Ordering::Release);
    BEGUN[slot].store(false, Ordering::SeqCst);
    runtime::semaphore_signal((&raw const record.started) as usize);
}

/// The companion: makes the thread, lends it its memory, waits for its end, and says so.
extern "C-unwind" fn accompany(slot: *mut c_void) -> *mut c_void {
    let slot = slot as usize;
    start::block_signals();
    let record = record(slot);
    let create = real!(pthread_create as Create);
    let join = real!(pthread_join as unsafe extern "C" fn(usize, *mut usize) -> c_int);
    let mut attributes = MaybeUninit::<pthread_attr_t>::uninit();
    let mut thread = 0;
    let stack = context::room(slot) + STACK_OFFSET;
    // SAFETY: attributes that are initialised first, with the memory of the slot as the stack.
    let error = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstack(
            attributes.as_mut_ptr(),
            stack as *mut c_void,
            context::room_bytes() - STACK_OFFSET,
        );
        create(&mut thread, attributes.as_ptr().cast(), run, slot as *mut c_void)
    };
    if error != 0 {
        not_begun(slot, error);
        return std::ptr::null_mut();
    }
    record.handle.store(thread, Ordering::Release);
    control().states[slot].store(RUNNING, Ordering::Release);
    runtime::semaphore_signal((&raw const record.started) as usize);
    context::lend_to(slot, COMPANION_RESERVE_BYTES);
    // Does for the C library what the kernel would have done.
    number_of(slot).store(0, Ordering::Release);
    let mut result = 0;
    // SAFETY: the thread made above, which nobody else joins, and room for the answer.
    unsafe { join(thread, &mut result) };
    end(slot, result)
}

/// Called when the thread of a slot has ended.
fn end(slot: usize, result: usize) -> *mut c_void {
    let record = record(slot);
    record.result.store(result, Ordering::Relaxed);
    mutexes::end_thread(slot);
    BEGUN[slot].store(false, Ordering::SeqCst);
    HERE.fetch_sub(1, Ordering::SeqCst);
    let counted = counted(slot);
    let (is_detached, is_last) = control::alone(|control| {
        let is_detached = control.detached[slot].load(Ordering::Relaxed) != 0;
        control.states[slot].store(if is_detached { FREE } else { ENDED }, Ordering::Release);
        (is_detached, control.alive.fetch_sub(counted, Ordering::Relaxed) == 1 && counted == 1)
    });
    if !is_detached {
        runtime::semaphore_signal((&raw const record.ended) as usize);
    }
    if is_last {
        // The last thread of a process ends it (pthread_exit(3)).
        end_at_first_node(start::exit_there, 0);
    }
    std::ptr::null_mut()
}

/// The offset at which the C library keeps the number of a thread in its control block.
static NUMBER_OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Finds that place. The error says why it cannot be found.
pub(crate) fn find_number() -> Result<(), &'static str> {
    NUMBER_OFFSET.store(debugger_offset(c"_thread_db_pthread_tid")?, Ordering::Release);
    Ok(())
}

/// The number of the thread of a slot, which the kernel knows; 0 when it has ended.
pub(crate) fn number_of(slot: usize) -> &'static AtomicU32 {
    let number = record(slot).handle.load(Ordering::Acquire) + NUMBER_OFFSET.load(Ordering::Acquire);
    // SAFETY: the word of the thread's control block with its number. The memory is that of the slot.
    unsafe { AtomicU32::from_ptr(number as *mut u32) }
}

/// The offset of a word in the control block of a thread. The C library tells it to debuggers (nptl_db): its size in bits,
/// how many there are, and the offset.
///
/// There is no other way to find it: a neighbouring address may have the same value in one half.
pub(crate) fn debugger_offset(description: &CStr) -> Result<usize, &'static str> {
    // SAFETY: a text; three words that the C library never changes.
    let description = unsafe { (libc::dlsym(libc::RTLD_DEFAULT, description.as_ptr()) as *const [u32; 3]).as_ref() };
    match description {
        Some([32, 1, offset]) => Ok(*offset as usize),
        _ => Err("this C library does not tell debuggers what a thread consists of; glibc 2.34 and later do"),
    }
}

/// The first function of a thread of the program.
extern "C-unwind" fn run(slot: *mut c_void) -> *mut c_void {
    context::borrow();
    let record = record(slot as usize);
    // The kernel would end the process at a system call that becomes a signal which is blocked.
    start::set_signal_mask(record.mask.load(Ordering::Relaxed) & !(1 << (libc::SIGSYS - 1)));
    keys::begin_thread();
    cancellation::begin_thread();
    system_calls::begin_thread();
    streams::begin_thread();
    openmp::begin_thread();
    let (function, argument) = (record.function.load(Ordering::Relaxed), record.argument.load(Ordering::Relaxed));
    if record.is_c11.load(Ordering::Relaxed) != 0 {
        // SAFETY: the function that the program gave.
        let function = unsafe { std::mem::transmute::<usize, C11Function>(function) };
        return function(argument as *mut c_void) as isize as *mut c_void;
    }
    // SAFETY: the function that the program gave.
    let function = unsafe { std::mem::transmute::<usize, Function>(function) };
    function(argument as *mut c_void)
}

/// Waits for a thread to end. Returns its result.
fn joined(thread: usize, wait: impl FnOnce(usize) -> c_int) -> Result<usize, c_int> {
    let thread = early::handle_of(thread);
    let slot = context::slot_of(thread).ok_or(libc::ESRCH)?;
    if context::thread_pointer() == thread {
        return Err(libc::EDEADLK);
    }
    let record = record(slot);
    if control().states[slot].load(Ordering::Acquire) == FREE {
        return Err(libc::ESRCH);
    }
    if control().detached[slot].load(Ordering::Relaxed) != 0 {
        return Err(libc::EINVAL);
    }
    match wait((&raw const record.ended) as usize) {
        0 => {
            let result = record.result.load(Ordering::Acquire);
            aside(|| control::alone(|control| control.states[slot].store(FREE, Ordering::Release)));
            Ok(result)
        }
        error => Err(error),
    }
}

unsafe fn answer(joined: Result<usize, c_int>, to: *mut usize) -> c_int {
    match joined {
        Ok(result) => {
            if !to.is_null() {
                // SAFETY: the caller's place for the answer.
                unsafe { *to = result };
            }
            0
        }
        Err(error) => error,
    }
}

/// Joins a thread.
///
/// # Safety
/// The place for the result is valid, or null.
pub(crate) unsafe fn join(thread: usize, to: *mut usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { answer(joined(thread, |ended| semaphores::wait_at_point(ended, false, || Some(FOREVER))), to) }
}

/// Joins a thread if it has ended.
///
/// # Safety
/// The same.
pub(crate) unsafe fn try_join(thread: usize, to: *mut usize) -> c_int {
    let tried = |ended| if runtime::semaphore_wait(ended, NOW) == 0 { 0 } else { libc::EBUSY };
    // SAFETY: the caller's promise.
    unsafe { answer(joined(thread, tried), to) }
}

/// Joins a thread if it ends before a point in time.
///
/// # Safety
/// The same, and the pointer to the time is valid.
pub(crate) unsafe fn join_until(thread: usize, to: *mut usize, clock: clockid_t, until: *const timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { answer(joined(thread, |ended| semaphores::wait_at_point(ended, false, || until_time(clock, until))), to) }
}

/// As thrd_join of C11.
///
/// # Safety
/// The place for the result is valid, or null.
pub(crate) unsafe fn join_c11(thread: usize, to: *mut c_int) -> c_int {
    match joined(thread, |ended| runtime::semaphore_wait(ended, FOREVER)) {
        Ok(result) => {
            if !to.is_null() {
                // SAFETY: the caller's promise.
                unsafe { *to = result as c_int };
            }
            THRD_SUCCESS
        }
        Err(_) => THRD_ERROR,
    }
}

/// Lets a thread end without being joined.
pub(crate) fn detach(thread: usize) -> c_int {
    let Some(slot) = context::slot_of(early::handle_of(thread)) else { return libc::ESRCH };
    let ended = (&raw const record(slot).ended) as usize;
    aside(|| {
        let state = control::alone(|control| {
            let state = control.states[slot].load(Ordering::Relaxed);
            if state != ENDED && control.detached[slot].swap(1, Ordering::Relaxed) != 0 {
                return None;
            }
            Some(state)
        });
        match state {
            None => libc::EINVAL,
            Some(FREE) => libc::ESRCH,
            Some(ENDED) => {
                runtime::semaphore_wait(ended, FOREVER);
                control::alone(|control| control.states[slot].store(FREE, Ordering::Release));
                0
            }
            Some(_) => 0,
        }
    })
}

/// As thrd_detach of C11.
pub(crate) fn detach_c11(thread: usize) -> c_int {
    if detach(thread) == 0 { THRD_SUCCESS } else { THRD_ERROR }
}

/// The signals that a set holds, as a number.
pub(crate) fn mask_of(set: &sigset_t) -> u64 {
    // SAFETY: the C library's set begins with the kernel's 64 bits.
    unsafe { (&raw const *set).cast::<u64>().read_unaligned() }
}
