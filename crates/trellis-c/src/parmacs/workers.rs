//! CREATE, WAIT_FOR_END and the end of the program.
//!
//! Promises: CREATE is ordered before everything that the worker does, and everything that a worker did is ordered
//! before the return of WAIT_FOR_END, also for memory under release consistency: both are waits for a semaphore. A
//! node runs one function at a time. A wait here is for a computation, so no time-out ends it; the loss of a node
//! does.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use trellis::WaitError;

use super::image::{Image, Plan};
use super::memory::{give_back, shared};
use super::{Program, Stage, done, end_process, enter, flush, program, stage, start, stop};
use crate::addresses::OWN_NUMBERS;

/// A word of each node: the address of the image of its next function, or [`END`].
const ORDERS: u64 = OWN_NUMBERS;
/// A semaphore of each node: an order is there.
const ORDERED: u64 = OWN_NUMBERS + 0x1000;
/// A semaphore of each node: the function has ended.
const ENDED: u64 = OWN_NUMBERS + 0x2000;
/// In place of an image: the program is over.
const END: u64 = u64::MAX;

/// Node 0's knowledge of the other nodes.
pub(super) struct Workers {
    state: Mutex<State>,
}

struct State {
    /// Nodes that wait for an order.
    free: VecDeque<usize>,
    /// Nodes that run a function, in the order of their CREATE.
    running: VecDeque<usize>,
    /// Images that several workers read, kept until all of them have ended.
    images: Vec<Address>,
}

/// A pointer into the region, which is the same for every thread.
struct Address(usize);

impl Workers {
    /// The state of a cluster of `nodes` nodes before the first CREATE.
    pub(super) fn new(nodes: usize) -> Workers {
        let state = State { free: (1..nodes).collect(), running: VecDeque::new(), images: Vec::new() };
        Workers { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `CREATE(function)`, and `CREATE(function, n)` for n - 1 workers.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_create(function: extern "C" fn(), count: usize) {
    let asking = "CREATE";
    let program = program(asking);
    if program.cluster.node() != 0 {
        stop(asking, "a worker cannot create workers; call CREATE in the process that runs main");
    }
    if count == 0 {
        return;
    }
    let mut state = program.workers.state();
    let nodes = program.cluster.nodes();
    if state.free.len() < count {
        let wanted = 1 + state.running.len() + count;
        stop(
            asking,
            format!(
                "the program wants {wanted} processes and there are {nodes} nodes; start it with \
                 `trellis run -n {wanted}`"
            ),
        );
    }
    // Main's output must precede the workers' output. (A forked child would print it again.)
    flush();
    let plan = if program.shared.is_some() { Plan::empty(&program.layout) } else { Plan::make(&program.layout) };
    let place = shared(asking, plan.bytes(), None);
    // SAFETY: the place has room for the plan, and nothing else knows it.
    unsafe { Image::at(place.cast()) }.write(&plan, function as usize, count == 1);
    if count > 1 {
        state.images.push(Address(place as usize));
    }
    for _ in 0..count {
        let Some(node) = state.free.pop_front() else { break };
        order(program, asking, node, place as u64);
        state.running.push_back(node);
    }
}

/// Gives a node an order, which is ordered after everything that this node did.
fn order(program: &Program, asking: &str, node: usize, what: u64) {
    let node = node as u64;
    done(asking, program.cluster.atomic(ORDERS + node).store(what));
    done(asking, program.cluster.semaphore(ORDERED + node).release(1));
}

/// `WAIT_FOR_END(n)`: waits for the workers that were created first; n may count the caller, too.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_wait_for_end(count: usize) {
    let asking = "WAIT_FOR_END";
    let program = program(asking);
    let mut state = program.workers.state();
    for _ in 0..count.min(state.running.len()) {
        let Some(node) = state.running.pop_front() else { break };
        wait(program, asking, ENDED + node as u64);
        state.free.push_back(node);
    }
    if state.running.is_empty() {
        for image in state.images.drain(..) {
            give_back(asking, image.0 as *mut u8);
        }
    }
}

/// Lowers a semaphore, without a time-out.
fn wait(program: &Program, asking: &str, semaphore: u64) {
    loop {
        match program.cluster.semaphore(semaphore).acquire() {
            Err(WaitError::TooLong { .. }) => {}
            outcome => return done(asking, outcome),
        }
    }
}

/// `MAIN_INITENV`: its work was done before main.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_initenv() {
    program("MAIN_INITENV");
}

/// `MAIN_END`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_main_end() -> ! {
    program("MAIN_END");
    // SAFETY: exit(3) may be called anywhere in main; `at_exit` does the rest.
    unsafe { libc::exit(0) }
}

/// Carries out orders at a node other than 0 until the program is over. Never runs main.
pub(super) fn serve(program: &Program) -> ! {
    let asking = "a worker";
    let node = program.cluster.node() as u64;
    loop {
        wait(program, asking, ORDERED + node);
        let what = done(asking, program.cluster.atomic(ORDERS + node).load());
        if what == END {
            leave(program, false);
            if program.shared.is_some() {
                // The normal end of the process would read globals, which were in the region.
                end_process(0);
            }
            // SAFETY: the program is over; its exit handlers find nothing of this module left to do.
            unsafe { libc::exit(0) }
        }
        let function = take_image(program, what as usize);
        enter(Stage::Working);
        function();
        end_of_function(program);
    }
}

/// Puts an image in place and returns its function.
fn take_image(program: &Program, address: usize) -> extern "C" fn() {
    let asking = "CREATE";
    let base = program.cluster.region().base() as usize;
    // SAFETY: node 0 wrote an image there before it gave the order.
    let image = unsafe { Image::at(address as *mut u8) };
    let (function, is_for_one) = image.order();
    if let Err(why) = image.put_in_place(&program.layout, |start, bytes| {
        // A hint: without it the bytes are fetched page by page.
        let _ = program.cluster.prefetch(start - base, bytes, false);
    }) {
        stop(asking, why);
    }
    if is_for_one {
        give_back(asking, address as *mut u8);
    }
    // SAFETY: the address of a function without arguments, in the same binary at the same address, as was checked.
    unsafe { std::mem::transmute::<usize, extern "C" fn()>(function) }
}

/// Ends the function of a worker: its output and its stores are available to node 0.
fn end_of_function(program: &Program) {
    flush();
    enter(Stage::Ready);
    let node = program.cluster.node() as u64;
    done("a worker", program.cluster.semaphore(ENDED + node).release(1));
}

/// Handles the end of the process by exit(3) or by returning from main.
pub(super) extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    let Some(program) = super::PROGRAM.get() else { return };
    match (program.cluster.node(), stage()) {
        (_, Stage::Over) => {}
        (0, _) => end_of_main(program, status),
        (_, Stage::Working) if status == 0 => {
            // Like a forked child that ends normally: this worker is done, and the node is available for the next.
            end_of_function(program);
            start::watch_exit();
            serve(program)
        }
        (node, _) => give_up(program, &format!("the worker at node {node} called exit({status})"), status),
    }
}

/// Ends node 0: all workers end first, unless the program failed.
fn end_of_main(program: &Program, status: c_int) {
    let running = program.workers.state().running.len();
    if running > 0 && status != 0 {
        give_up(program, &format!("node 0 called exit({status}) while {running} workers were running"), status);
    }
    flush();
    trellis_parmacs_wait_for_end(running);
    for node in 1..program.cluster.nodes() {
        order(program, "MAIN_END", node, END);
    }
    leave(program, true);
}

/// Ends the other nodes with this message, and this process with its status.
fn give_up(program: &Program, why: &str, status: c_int) -> ! {
    trellis::complain(format_args!("node {}: {why}", program.cluster.node()));
    program.cluster.abandon(why);
    end_process(status)
}

/// Leaves the cluster. With `goes_on` the program's exit handlers will run, and need its globals.
fn leave(program: &Program, goes_on: bool) {
    enter(Stage::Over);
    let leave = || program.cluster.leave().map_err(|error| error.to_string());
    let left = match &program.shared {
        // SAFETY: node 0 ends, and no other thread of the program is left; G_MALLOC memory is gone after the end.
        Some(globals) if goes_on => unsafe { globals.leave(leave) }.and_then(|left| left),
        _ => leave(),
    };
    if let Err(why) = left {
        trellis::complain(format_args!("node {}: {why}", program.cluster.node()));
        end_process(super::EXIT_CLUSTER);
    }
}
