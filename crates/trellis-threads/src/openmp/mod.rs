//! OpenMP: the functions that compiled programs call, those of GCC (`GOMP_…`) and those of LLVM (`__kmpc_…`), and those that
//! programs call by themselves (`omp_…`).
//!
//! The libraries of the compilers are loaded with the program and stay idle. A *team* of threads spans all nodes: the
//! threads of a node have numbers in a row, so that loops with a static schedule give neighbouring iterations to one node.
//!
//! - `team`: how a parallel region begins and ends, and barriers.
//! - `sharing`: loops, sections and `single`: which thread does what.
//! - `doacross`: loops whose iterations wait for each other.
//! - `cancel`: regions, loops and groups of tasks that a thread gives up.
//! - `tasks`: tasks; `pool`: those of a node, and how nodes without work get some.
//! - `settings`: what the variables `OMP_…` and functions like `omp_set_num_threads` set.
//! - `gcc`, `llvm`, `interface`: the functions, which only translate; `arguments` for those of LLVM whose number of arguments
//!   varies.
//!
//! Promises: threads of a team at one node meet there first, and one of them meets the other nodes. What a team needs for
//! itself travels in messages, not in pages, except the description of a region and tasks that go to another node. A
//! function that is not here ends the run with a sentence. It must never let a private thread wait for a page.

/// Defines functions with the names of those of the compilers' libraries. A private thread gets theirs.
macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
            if !crate::context::is_of_program() {
                static REAL: trellis_interpose::Real = trellis_interpose::Real::new(concat!(stringify!($name), "\0"));
                // SAFETY: the function of this name, which has this type.
                return unsafe {
                    std::mem::transmute::<
                        *mut std::ffi::c_void,
                        unsafe extern "C-unwind" fn($($type),*) $(-> $result)?,
                    >(REAL.address())($($argument),*)
                };
            }
            #[allow(unused_unsafe, reason = "some of the answers are safe")]
            // SAFETY: as the program calls it.
            unsafe {
                $body
            }
        }
    )* };
}

/// Defines functions that end the run with a sentence.
macro_rules! unsupported {
    ($what:literal: $($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name() -> ! {
            crate::runtime::unsupported(concat!($what, " (", stringify!($name), ")"), crate::openmp::WAY_OUT)
        }
    )* };
}

mod allocators;
mod arguments;
mod cancel;
mod doacross;
mod gcc;
mod interface;
mod llvm;
mod locks;
mod pool;
mod references;
mod settings;
mod sharing;
mod tasks;
mod team;

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;

use crate::context::own_slot;
use crate::control::SLOTS;
pub(crate) use pool::{Mailbox, WithoutTasks};
use settings::Settings;
use sharing::Loop;
use tasks::Task;
pub(crate) use team::Shared;
use team::Team;

/// A way out for a program that needs what is not supported.
const WAY_OUT: &str = "run the program without `trellis threads`";

/// The state of a thread of the program in OpenMP. Only the thread itself uses it.
struct Thread {
    /// Its team; null outside of parallel regions.
    team: Cell<*const Team>,
    number: Cell<u32>,
    settings: Cell<Settings>,
    /// The task that it runs; null before the first region.
    task: Cell<*mut Task>,
    /// The number of work-sharing constructs of the team that it has met, and of ordered loops among these.
    constructs: Cell<u32>,
    ordered_loops: Cell<u32>,
    /// The number of barriers of the team to which it has come.
    barriers: Cell<u32>,
    /// The loop or the sections in which it takes part.
    sharing: Cell<Loop>,
    /// The loops with `ordered` and a number that it is in, and memory that its team shares for a loop.
    doacross: Cell<*mut doacross::Doacross>,
    shared_memory: Cell<*mut c_void>,
    /// Blocks that it can use again for tasks, and their number.
    free_blocks: Cell<*mut tasks::FreeBlock>,
    free_count: Cell<u32>,
    /// The number of locks of OpenMP that it holds.
    locks: Cell<u32>,
    /// The number of threads of the next region, from LLVM's compiler. 0 stands for the number that is set.
    pushed_threads: Cell<u32>,
    /// The regions of one thread whose functions LLVM's compiler calls.
    alone: Cell<*mut team::Alone>,
}

// SAFETY: only the thread in the slot uses it.
unsafe impl Sync for Thread {}

static THREADS: [Thread; SLOTS] = [const {
    Thread {
        team: Cell::new(null_mut()),
        number: Cell::new(0),
        settings: Cell::new(Settings::UNKNOWN),
        task: Cell::new(null_mut()),
        constructs: Cell::new(0),
        ordered_loops: Cell::new(0),
        barriers: Cell::new(0),
        sharing: Cell::new(Loop::NONE),
        doacross: Cell::new(null_mut()),
        shared_memory: Cell::new(null_mut()),
        free_blocks: Cell::new(null_mut()),
        free_count: Cell::new(0),
        locks: Cell::new(0),
        pushed_threads: Cell::new(0),
        alone: Cell::new(null_mut()),
    }
}; SLOTS];

/// The calling thread.
fn this_thread() -> &'static Thread {
    &THREADS[own_slot()]
}

/// Called by a thread that has just begun.
pub(crate) fn begin_thread() {
    let thread = this_thread();
    thread.enter(Place::OUTSIDE);
    thread.settings.set(Settings::UNKNOWN);
    thread.locks.set(0);
    thread.pushed_threads.set(0);
    thread.alone.set(null_mut());
}

/// Called before the program begins, by a private thread.
pub(crate) fn begin() {
    tasks::USED.store(references::has_tasks(), std::sync::atomic::Ordering::Relaxed);
}

/// Called before the program ends.
pub(crate) fn end() {
    team::end_workers();
}

/// The place of a thread in its teams, to which it returns at the end of a region.
#[derive(Clone, Copy)]
struct Place {
    team: *const Team,
    number: u32,
    settings: Settings,
    task: *mut Task,
    constructs: u32,
    ordered_loops: u32,
    barriers: u32,
    sharing: Loop,
    doacross: *mut doacross::Doacross,
    shared_memory: *mut c_void,
}

impl Place {
    const OUTSIDE: Place = Place {
        team: null_mut(),
        number: 0,
        settings: Settings::UNKNOWN,
        task: null_mut(),
        constructs: 0,
        ordered_loops: 0,
        barriers: 0,
        sharing: Loop::NONE,
        doacross: null_mut(),
        shared_memory: null_mut(),
    };
}

impl Thread {
    /// Enters another place. Returns the previous one.
    fn enter(&self, place: Place) -> Place {
        Place {
            team: self.team.replace(place.team),
            number: self.number.replace(place.number),
            settings: self.settings.replace(place.settings),
            task: self.task.replace(place.task),
            constructs: self.constructs.replace(place.constructs),
            ordered_loops: self.ordered_loops.replace(place.ordered_loops),
            barriers: self.barriers.replace(place.barriers),
            sharing: self.sharing.replace(place.sharing),
            doacross: self.doacross.replace(place.doacross),
            shared_memory: self.shared_memory.replace(place.shared_memory),
        }
    }

    /// Its team; none outside of every region.
    fn team(&self) -> Option<&'static Team> {
        // SAFETY: a team lives until its last thread has left it.
        unsafe { self.team.get().as_ref() }
    }

    /// The number of threads of its team.
    fn team_size(&self) -> u32 {
        self.team().map_or(1, |team| team.size)
    }

    /// Its settings, which it reads from the environment at their first use.
    fn settings(&self) -> Settings {
        if !self.settings.get().is_known() {
            self.settings.set(Settings::of_environment());
        }
        self.settings.get()
    }

    /// Changes its settings.
    fn set(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.settings();
        change(&mut settings);
        self.settings.set(settings);
    }

    /// The number of the next work-sharing construct of the team.
    fn next_construct(&self) -> u32 {
        let number = self.constructs.get();
        self.constructs.set(number.wrapping_add(1));
        number
    }
}
