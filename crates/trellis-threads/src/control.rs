//! What the nodes share about the threads of the program: a table in the region.
//!
//! Promises: the table is the same memory on every node. A slot belongs to one thread from the call that makes it to the
//! call that joins it, or to its end if it is detached. Changes of slots are made under one lock of the cluster.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::context;
use crate::openmp::{Mailbox, Shared as SharedByTeam, WithoutTasks};
use crate::runtime;
use crate::state::{Action, Locale};

/// The maximum number of nodes.
pub(crate) const NODES_MAX: usize = 64;
/// The maximum number of threads at a time.
pub(crate) const SLOTS: usize = 512;
/// The room of a thread: its record, the values of its keys, its stack, and its thread-local variables at the end.
pub(crate) const ROOM_BYTES: usize = 32 << 20;
/// The maximum number of keys, as in glibc.
pub(crate) const KEYS: usize = 1024;

/// No thread has the slot.
pub(crate) const FREE: u32 = 0;
/// The thread is to be started by its node.
pub(crate) const STARTING: u32 = 1;
/// It has been started.
pub(crate) const RUNNING: u32 = 2;
/// It has ended, and is to be joined.
pub(crate) const ENDED: u32 = 3;

/// A system call that node 0 makes for a thread may be interrupted.
pub(crate) const INTERRUPTIBLE: u32 = 1;
/// It was.
pub(crate) const INTERRUPTED: u32 = 2;

/// The table.
#[repr(C)]
pub(crate) struct Control {
    /// The process number of the program, for all its threads.
    pub(crate) process: AtomicU32,
    /// The address of the list of the environment.
    pub(crate) environment: AtomicUsize,
    /// The streams of standard input and standard output.
    pub(crate) streams: [AtomicUsize; 2],
    /// The processors that the program sees.
    pub(crate) processors: AtomicU32,
    /// The number of threads made so far. It decides where the next one runs.
    pub(crate) made: AtomicUsize,
    /// The lock of the thread that loads libraries, of which only the address counts.
    pub(crate) libraries: AtomicUsize,
    /// The number of threads that have not ended.
    pub(crate) alive: AtomicUsize,
    pub(crate) states: [AtomicU32; SLOTS],
    pub(crate) nodes: [AtomicU32; SLOTS],
    pub(crate) detached: [AtomicU32; SLOTS],
    /// The nodes that must apply what threads of other nodes stored to relaxed memory, and the semaphore by which they
    /// answer.
    pub(crate) to_acquire: [AtomicU32; NODES_MAX],
    pub(crate) acquired: u64,
    /// The nodes that must do what the program set, and the semaphore by which they answer.
    pub(crate) to_follow: [AtomicU32; NODES_MAX],
    pub(crate) followed: u64,
    /// The actions of signals, the locale, and how often the time zone was set.
    pub(crate) actions: [Action; 65],
    pub(crate) locale: Locale,
    pub(crate) time_zone: AtomicUsize,
    /// Signals for each thread that its node has not passed on yet, one bit each.
    pub(crate) signals: [AtomicU64; SLOTS],
    /// The same for the deputies of threads.
    pub(crate) signals_of_deputies: [AtomicU64; SLOTS],
    pub(crate) keys: [Key; KEYS],
    /// Of OpenMP: what the team shares that spans all nodes, and what nodes say to each other about tasks.
    pub(crate) team: SharedByTeam,
    pub(crate) without_tasks: WithoutTasks,
    pub(crate) mailboxes: [Mailbox; NODES_MAX],
    pub(crate) rarely: Rarely,
}

/// What almost never changes, on a page of its own, so that every node keeps a copy.
#[repr(C, align(4096))]
pub(crate) struct Rarely {
    /// Whether the program has made a robust mutex.
    pub(crate) has_robust: AtomicU32,
}

/// A key of thread-specific data.
#[repr(C)]
pub(crate) struct Key {
    /// Odd while it exists; changes with each creation, so that values of an earlier key do not count.
    pub(crate) generation: AtomicUsize,
    pub(crate) destructor: AtomicUsize,
}

/// The record at the beginning of a thread's room.
#[repr(C)]
pub(crate) struct Record {
    pub(crate) function: AtomicUsize,
    pub(crate) argument: AtomicUsize,
    /// Whether the function is one of C11, which returns a number.
    pub(crate) is_c11: AtomicU32,
    /// Whether the program ends without waiting for it.
    pub(crate) is_kept: AtomicU32,
    /// The error number if it could not be started.
    pub(crate) error: AtomicU32,
    /// The signals that it blocks at first, and those that a child that it starts blocks.
    pub(crate) mask: AtomicU64,
    /// Its handle in pthreads.
    pub(crate) handle: AtomicUsize,
    pub(crate) result: AtomicUsize,
    /// The semaphores, of which only the addresses count.
    pub(crate) started: u64,
    pub(crate) ended: u64,
    /// A system call that a thread of another node has made at node 0; `called` and `answered` are semaphores.
    pub(crate) has_deputy: AtomicU32,
    pub(crate) called: u64,
    pub(crate) answered: u64,
    pub(crate) call_number: AtomicUsize,
    pub(crate) call_arguments: [AtomicUsize; 6],
    pub(crate) call_answer: AtomicUsize,
    /// Whether the call may be interrupted ([`INTERRUPTIBLE`]), and whether it was ([`INTERRUPTED`]).
    pub(crate) is_interruptible: AtomicU32,
    /// One more than the last key that was given a value.
    pub(crate) keys_used: AtomicUsize,
    pub(crate) values: [Value; KEYS],
}

/// The value of a key in one thread.
#[repr(C)]
pub(crate) struct Value {
    pub(crate) generation: AtomicUsize,
    pub(crate) value: AtomicUsize,
}

/// The offset of a thread's stack in its room.
pub(crate) const STACK_OFFSET: usize = ALTERNATE_OFFSET + ALTERNATE_BYTES;
/// Where its alternate stack begins, and the size of that. Handlers of system calls and faults run there, and those of the
/// program that want one.
pub(crate) const ALTERNATE_OFFSET: usize = size_of::<Record>().next_multiple_of(64 << 10);
pub(crate) const ALTERNATE_BYTES: usize = 256 << 10;

static CONTROL: AtomicUsize = AtomicUsize::new(0);

/// Sets the address of the table.
pub(crate) fn begin(address: usize) {
    CONTROL.store(address, Ordering::Release);
}

/// The table. Only threads that wait for pages may use it: those of the program, and private ones that hold no lock.
pub(crate) fn control() -> &'static Control {
    let address = CONTROL.load(Ordering::Acquire);
    debug_assert_ne!(address, 0, "the program has begun");
    // SAFETY: the region has room for the table there, and zero is a valid table.
    unsafe { &*(address as *const Control) }
}

/// The record of the thread in a slot.
pub(crate) fn record(slot: usize) -> &'static Record {
    // SAFETY: the room of the slot begins with its record, and zero is a valid one.
    unsafe { &*(context::room(slot) as *const Record) }
}

/// Calls `work` while no other thread of any node changes slots.
pub(crate) fn alone<T>(work: impl FnOnce(&Control) -> T) -> T {
    let control = control();
    let lock = (&raw const control.made) as usize;
    runtime::once_lock(lock);
    let result = work(control);
    runtime::once_unlock(lock);
    result
}
