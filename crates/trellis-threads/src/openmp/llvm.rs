//! The functions that programs of LLVM's compilers call (`kmp.h` of LLVM 19).
//!
//! Promises: each does what LLVM's documentation says of it (the OpenMP runtime's reference). Their first arguments, the
//! place in the program and the number of the thread, are not needed. A function that would reduce by a tree says that the
//! thread is to reduce alone, under a lock, so no atomic instruction is left to the compiler.

use std::ffi::{c_int, c_void};

use super::arguments::{fork, invoke};
use super::doacross::{self, Dimension, Marks};
use super::locks;
use super::sharing::{Kind, Loop, iterations, own_part, task_part};
use super::tasks::{self, Dependence, TaskWork};
use super::team;
use super::{Thread, WAY_OUT, this_thread};
use super::{allocators, cancel};
use crate::context::own_slot;
use crate::{relaxed, runtime};

/// A function for a region: it gets the addresses of two numbers of the thread, and the arguments of the region.
type TaskFunction = extern "C-unwind" fn(c_int, *mut KmpTask) -> c_int;
type Destructors = extern "C-unwind" fn(c_int, *mut KmpTask);
type CopyFunction = extern "C-unwind" fn(*mut c_void, *mut c_void);
type Duplicate = Option<extern "C-unwind" fn(*mut KmpTask, *mut KmpTask, c_int)>;

/// Schedules, by their numbers in `kmp.h`, and the bits that say whether batches ascend.
const STATIC_CHUNKED: c_int = 33;
const STATIC: c_int = 34;
const STATIC_BALANCED_CHUNKED: c_int = 45;
const DYNAMIC: c_int = 35;
const GUIDED: c_int = 36;
const RUNTIME: c_int = 37;
const AUTO: c_int = 38;
const STATIC_GREEDY: c_int = 40;
const STATIC_BALANCED: c_int = 41;
const STATIC_STEAL: c_int = 44;
const GUIDED_SIMD: c_int = 46;
const RUNTIME_SIMD: c_int = 47;
/// The first number of ordered schedules, and how much larger they are; the same for those that are not merged.
const ORDERED_FIRST: c_int = 64;
const ORDERED_MORE: c_int = 32;
const NOT_MERGED_FIRST: c_int = 160;
const NOT_MERGED_MORE: c_int = 128;
const DISTRIBUTED_CHUNKED: c_int = 91;
const MODIFIERS: c_int = 3 << 29;

/// Flags of tasks.
const FINAL: c_int = 1 << 1;
const HAS_DESTRUCTORS: c_int = 1 << 3;
const DETACHABLE: c_int = 1 << 6;

/// A task as the compiler knows it; private variables follow, and the block of shared ones.
#[repr(C)]
struct KmpTask {
    shared: *mut c_void,
    function: TaskFunction,
    part: c_int,
    destructors: Option<Destructors>,
    priority: usize,
}

/// The size in bytes of a task of the compiler with its private variables, that of its block of shared variables, and
/// its flags.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Sizes {
    task_bytes: usize,
    shared_bytes: usize,
    flags: c_int,
}

/// A loop whose iterations wait for each other, as the compiler describes it.
#[derive(Clone, Copy)]
#[repr(C)]
struct KmpDimension {
    first: i64,
    last: i64,
    increment: i64,
}

/// A dependence as the compiler describes it.
#[repr(C)]
struct KmpDependence {
    address: usize,
    bytes: usize,
    /// A bit for each kind; the first is for tasks that only read.
    flags: u8,
}
const ONLY_READS: u8 = 1;
const ALL_MEMORY: u8 = 0x80;

/// What the compiler's number says is cancelled.
fn what(kind: c_int) -> cancel::What {
    const REGION: c_int = 1;
    const TASKS: c_int = 4;
    match kind {
        REGION => cancel::What::Region,
        TASKS => cancel::What::Tasks,
        _ => cancel::What::Sharing,
    }
}

/// A schedule of the compiler, and whether it is ordered.
fn kind_of(schedule: c_int) -> (c_int, bool) {
    let mut schedule = schedule & !MODIFIERS;
    if schedule >= NOT_MERGED_FIRST {
        schedule -= NOT_MERGED_MORE;
    }
    match (ORDERED_FIRST..DISTRIBUTED_CHUNKED).contains(&schedule) {
        true => (schedule - ORDERED_MORE, true),
        false => (schedule, false),
    }
}

/// Begins a loop over values up to `last`, of which threads request parts.
fn begin_dispatch(schedule: c_int, first: i128, last: i128, increment: i128, batch: i128, bytes: usize) {
    let (schedule, is_ordered) = kind_of(schedule);
    let count = trips(first, last, increment, bytes);
    let thread = this_thread();
    let batch = batch.max(0) as u64;
    let sharing = match schedule {
        STATIC | STATIC_GREEDY | STATIC_BALANCED | AUTO => Loop::in_own_parts(count, is_ordered),
        STATIC_CHUNKED | STATIC_BALANCED_CHUNKED => Loop::new(Kind::Static, count, batch.max(1), is_ordered),
        GUIDED | GUIDED_SIMD => Loop::new(Kind::Guided, count, batch, is_ordered),
        RUNTIME | RUNTIME_SIMD => Loop::at_runtime(count, &thread.settings(), is_ordered),
        DYNAMIC | STATIC_STEAL => Loop::new(Kind::Dynamic, count, batch, is_ordered),
        other => runtime::unsupported(&format!("the schedule {other} of LLVM's OpenMP"), WAY_OUT),
    };
    thread.begin_loop(sharing.over(first as u64, increment as u64));
}

/// The part of a loop with a static schedule that a thread does.
struct Static {
    first: i128,
    last: i128,
    stride: i128,
    is_last: bool,
}

/// The number of iterations up to `last`, as a number of the loop's type, of so many bytes. Fortran's compiler describes a
/// loop without iterations by one that has all of the type's values.
fn trips(first: i128, last: i128, increment: i128, bytes: usize) -> u64 {
    iterations(first, last + increment.signum(), increment) & (u64::MAX >> (64 - 8 * bytes))
}

fn static_part(schedule: c_int, first: i128, last: i128, increment: i128, batch: i128, bytes: usize) -> Static {
    let thread = this_thread();
    let (size, number) = (i128::from(thread.team_size()), i128::from(thread.number.get()));
    let count = trips(first, last, increment, bytes);
    let (schedule, _) = kind_of(schedule);
    if matches!(schedule, STATIC_CHUNKED | STATIC_BALANCED_CHUNKED | DISTRIBUTED_CHUNKED) {
        let count = i128::from(count);
        // The stored values fit into the type, because no batch is past the end.
        let batch = batch.clamp(1, count.max(1));
        let batches = count.div_euclid(batch) + i128::from(count % batch != 0);
        let stride = size.min(batches.max(1)) * batch * increment;
        if number >= batches {
            return Static { first: last + increment.signum(), last, stride, is_last: false };
        }
        let low = first + number * batch * increment;
        return Static {
            first: low,
            last: low + (batch - 1) * increment,
            stride,
            is_last: (batches - 1) % size == number,
        };
    }
    let sharing = Loop::in_own_parts(count, false).over(first as u64, increment as u64);
    let (low, high) = own_part(thread.team(), &sharing, thread.number.get());
    let value = |iteration: u64| first + i128::from(iteration) * increment;
    Static {
        first: value(low),
        last: value(high) - increment,
        stride: value(count) - first,
        is_last: count > 0 && low < high && high == count,
    }
}

unsafe fn dependences(count: c_int, list: *const KmpDependence) -> impl Iterator<Item = Dependence> {
    // SAFETY: the compiler's list.
    (0..count.max(0) as usize).map(move |place| unsafe {
        let dependence = &*list.add(place);
        if dependence.flags & ALL_MEMORY != 0 {
            runtime::unsupported("OpenMP's omp_all_memory", WAY_OUT);
        }
        (dependence.address, dependence.flags != ONLY_READS)
    })
}

/// Does a task.
///
/// # Safety
/// They are the data of a task that is not done.
pub(super) unsafe fn call_task(data: usize) {
    let task = data as *mut KmpTask;
    // SAFETY: the caller's promise.
    unsafe { ((*task).function)(own_slot() as c_int, task) };
}

/// Ends the private variables of a task that is done.
///
/// # Safety
/// They are the data of a task that was done.
pub(super) unsafe fn end_task(sizes: Sizes, data: usize) {
    let task = data as *mut KmpTask;
    // SAFETY: the caller's promise.
    unsafe {
        if sizes.flags & HAS_DESTRUCTORS != 0
            && let Some(destructors) = (*task).destructors
        {
            destructors(own_slot() as c_int, task);
        }
    }
}

/// Lets a new task be done.
unsafe fn submit(task: *mut KmpTask, is_deferred: bool, list: &[Dependence]) {
    let thread = this_thread();
    let task = tasks::task_of(task as usize);
    if tasks::is_to_be_done_again(thread, task) {
        return;
    }
    match is_deferred && !tasks::is_undeferred(thread) {
        true => tasks::submit(thread, task, list),
        false => tasks::do_now(thread, task, list),
    }
}

/// A new task.
fn allocate(flags: c_int, task_bytes: usize, shared_bytes: usize) -> *mut KmpTask {
    if flags & DETACHABLE != 0 {
        runtime::unsupported("OpenMP's clause detach", WAY_OUT);
    }
    let task_bytes = task_bytes.max(size_of::<KmpTask>()).next_multiple_of(16);
    let bytes = task_bytes + shared_bytes;
    let work = TaskWork::Llvm(Sizes { task_bytes, shared_bytes, flags });
    let data = tasks::data_of(tasks::child(this_thread(), work, bytes, flags & FINAL != 0), 1);
    // SAFETY: room for the compiler's task, right behind ours.
    unsafe {
        (data as *mut u8).write_bytes(0, bytes);
        let task = data as *mut KmpTask;
        if shared_bytes > 0 {
            (*task).shared = task.byte_add(task_bytes).cast();
        }
        task
    }
}

/// Makes the tasks of a loop. Each is a copy of `pattern`, in which the bounds of the loop lie at `low` and `high`.
struct TaskLoop {
    pattern: *mut KmpTask,
    is_deferred: bool,
    low: *mut u64,
    high: *mut u64,
    increment: i64,
    in_group: bool,
    /// The meaning of `size`: none, a number of iterations, or a number of tasks.
    kind: c_int,
    size: u64,
    /// Whether each task but the last one has exactly as many iterations.
    is_strict: bool,
    duplicate: Duplicate,
}

impl TaskLoop {
    unsafe fn make(&self) {
        const OF_ITERATIONS: c_int = 1;
        const OF_TASKS: c_int = 2;
        let thread = this_thread();
        // SAFETY: the compiler's places in its task.
        let (first, last) = unsafe { (i128::from(*self.low as i64), i128::from(*self.high as i64)) };
        let increment = i128::from(self.increment);
        let count = iterations(first, last + increment.signum(), increment);
        let strict_size = if self.is_strict && self.kind == OF_ITERATIONS { self.size.max(1) } else { 0 };
        let parts = match self.kind {
            _ if count == 0 => 0,
            OF_ITERATIONS if strict_size > 0 => count.div_ceil(strict_size),
            OF_ITERATIONS => (count / self.size.max(1)).max(1),
            OF_TASKS => self.size.clamp(1, count),
            _ => (u64::from(thread.team_size()) * 10).min(count),
        };
        if self.in_group {
            tasks::begin_group(thread);
        }
        for number in 0..parts {
            let (low, high) = task_part(count, parts, number, strict_size);
            // SAFETY: the pattern and its copy have the same layout.
            unsafe {
                let copy = self.copy();
                let place = |of: *mut u64| copy.byte_offset(of.byte_offset_from(self.pattern)).cast::<u64>();
                *place(self.low) = (first + i128::from(low) * increment) as u64;
                *place(self.high) = (first + i128::from(high - 1) * increment) as u64;
                if let Some(duplicate) = self.duplicate {
                    duplicate(copy, self.pattern, c_int::from(number + 1 == parts));
                }
                submit(copy, self.is_deferred, &[]);
            }
        }
        tasks::drop_undone(tasks::task_of(self.pattern as usize));
        if self.in_group {
            tasks::end_group(thread);
        }
    }

    unsafe fn copy(&self) -> *mut KmpTask {
        // SAFETY: the pattern, and a new block of the same size.
        unsafe {
            let TaskWork::Llvm(Sizes { task_bytes, shared_bytes, flags }) =
                (*tasks::task_of(self.pattern as usize)).work
            else {
                unreachable!("a task of this compiler")
            };
            let copy = allocate(flags, task_bytes, shared_bytes);
            let shared = (*copy).shared;
            copy.cast::<u8>().copy_from_nonoverlapping(self.pattern.cast::<u8>(), task_bytes + shared_bytes);
            (*copy).shared = shared;
            copy
        }
    }
}

/// Whether the calling thread reduces under a lock, because it is not alone.
fn reduces_under_lock(thread: &Thread) -> bool {
    thread.team_size() > 1
}

fn begin_reduction() -> c_int {
    if reduces_under_lock(this_thread()) {
        locks::lock(locks::name(&locks::REDUCTION));
    }
    1
}

fn end_reduction() {
    if reduces_under_lock(this_thread()) {
        locks::unlock(locks::name(&locks::REDUCTION));
    }
}

/// Defines the functions of loops over one type of numbers.
macro_rules! loops {
    ($number:ty, $signed:ty: $static_init:ident $dist_static_init:ident $team_static_init:ident $dispatch_init:ident $dist_dispatch_init:ident $dispatch_next:ident $dispatch_fini:ident) => {
        exports! {
            fn $static_init(_place: usize, _thread: c_int, schedule: c_int, is_last: *mut c_int, first: *mut $number, last: *mut $number, stride: *mut $signed, increment: $signed, batch: $signed) {
                {
                    let part = static_part(schedule, (*first).into(), (*last).into(), increment.into(), batch.into(), size_of::<$number>());
                    (*first, *last) = (part.first as $number, part.last as $number);
                    *stride = part.stride as $signed;
                    if !is_last.is_null() {
                        *is_last = part.is_last.into();
                    }
                }
            }
            // There is one league of one team, which does everything that is distributed.
            fn $dist_static_init(_place: usize, _thread: c_int, schedule: c_int, is_last: *mut c_int, first: *mut $number, last: *mut $number, distributed_last: *mut $number, stride: *mut $signed, increment: $signed, batch: $signed) {
                {
                    *distributed_last = *last;
                    let part = static_part(schedule, (*first).into(), (*last).into(), increment.into(), batch.into(), size_of::<$number>());
                    (*first, *last) = (part.first as $number, part.last as $number);
                    *stride = part.stride as $signed;
                    if !is_last.is_null() {
                        *is_last = part.is_last.into();
                    }
                }
            }
            fn $team_static_init(_place: usize, _thread: c_int, is_last: *mut c_int, first: *mut $number, last: *mut $number, stride: *mut $signed, increment: $signed, _batch: $signed) {
                {
                    let count = trips((*first).into(), (*last).into(), increment.into(), size_of::<$number>());
                    *stride = (i128::from(count) * i128::from(increment)) as $signed;
                    if !is_last.is_null() {
                        *is_last = 1;
                    }
                }
            }
            fn $dispatch_init(_place: usize, _thread: c_int, schedule: c_int, first: $number, last: $number, increment: $signed, batch: $signed) {
                begin_dispatch(schedule, first.into(), last.into(), increment.into(), batch.into(), size_of::<$number>());
            }
            fn $dist_dispatch_init(_place: usize, _thread: c_int, schedule: c_int, is_last: *mut c_int, first: $number, last: $number, increment: $signed, batch: $signed) {
                if !is_last.is_null() {
                    *is_last = 1;
                }
                begin_dispatch(schedule, first.into(), last.into(), increment.into(), batch.into(), size_of::<$number>());
            }
            fn $dispatch_next(_place: usize, _thread: c_int, is_last: *mut c_int, first: *mut $number, last: *mut $number, stride: *mut $signed) -> c_int {
                let thread = this_thread();
                let Some((low, high)) = thread.next_iterations() else { return 0 };
                let sharing = thread.sharing.get();
                {
                    (*first, *last) = (sharing.value(low) as $number, sharing.value(high - 1) as $number);
                    if !stride.is_null() {
                        *stride = sharing.increment as $signed;
                    }
                    if !is_last.is_null() {
                        *is_last = sharing.is_at_end().into();
                    }
                }
                1
            }
            fn $dispatch_fini(_place: usize, _thread: c_int) {}
        }
    };
}

loops! { i32, i32: __kmpc_for_static_init_4 __kmpc_dist_for_static_init_4 __kmpc_team_static_init_4 __kmpc_dispatch_init_4 __kmpc_dist_dispatch_init_4 __kmpc_dispatch_next_4 __kmpc_dispatch_fini_4 }
loops! { u32, i32: __kmpc_for_static_init_4u __kmpc_dist_for_static_init_4u __kmpc_team_static_init_4u __kmpc_dispatch_init_4u __kmpc_dist_dispatch_init_4u __kmpc_dispatch_next_4u __kmpc_dispatch_fini_4u }
loops! { i64, i64: __kmpc_for_static_init_8 __kmpc_dist_for_static_init_8 __kmpc_team_static_init_8 __kmpc_dispatch_init_8 __kmpc_dist_dispatch_init_8 __kmpc_dispatch_next_8 __kmpc_dispatch_fini_8 }
loops! { u64, i64: __kmpc_for_static_init_8u __kmpc_dist_for_static_init_8u __kmpc_team_static_init_8u __kmpc_dispatch_init_8u __kmpc_dist_dispatch_init_8u __kmpc_dispatch_next_8u __kmpc_dispatch_fini_8u }

exports! {
    fn __kmpc_for_static_fini(_place: usize, _thread: c_int) {}
    fn __kmpc_dispatch_deinit(_place: usize, _thread: c_int) {}

    // Loops whose iterations wait for each other.
    fn __kmpc_doacross_init(_place: usize, _thread: c_int, depth: c_int, loops: *const KmpDimension) {
        let dimension = |place: usize| {
            let KmpDimension { first, last, increment } = *loops.add(place);
            let count = iterations(first.into(), i128::from(last) + i128::from(increment.signum()), increment.into());
            Dimension { first, increment, count }
        };
        doacross::begin((0..depth as usize).map(dimension).collect(), Marks::Each, 0);
    }
    fn __kmpc_doacross_post(_place: usize, _thread: c_int, values: *const i64) {
        doacross::post((0..doacross::depth()).map(|place| *values.add(place)));
    }
    fn __kmpc_doacross_wait(_place: usize, _thread: c_int, values: *const i64) {
        doacross::wait((0..doacross::depth()).map(|place| *values.add(place)));
    }
    fn __kmpc_doacross_fini(_place: usize, _thread: c_int) {}

    // Threads and regions.
    fn __kmpc_begin(_place: usize, _flags: c_int) {}
    fn __kmpc_end(_place: usize) {}
    fn __kmpc_global_thread_num(_place: usize) -> c_int {
        own_slot() as c_int
    }
    fn __kmpc_global_num_threads(_place: usize) -> c_int {
        crate::control::SLOTS as c_int
    }
    fn __kmpc_bound_thread_num(_place: usize) -> c_int {
        this_thread().number.get() as c_int
    }
    fn __kmpc_bound_num_threads(_place: usize) -> c_int {
        this_thread().team_size() as c_int
    }
    fn __kmpc_in_parallel(_place: usize) -> c_int {
        this_thread().team().is_some_and(|team| team.active_level > 0).into()
    }
    fn __kmpc_ok_to_fork(_place: usize) -> c_int {
        1
    }
    fn __kmpc_push_num_threads(_place: usize, _thread: c_int, threads: c_int) {
        this_thread().pushed_threads.set(threads.max(1) as u32);
    }
    fn __kmpc_push_num_threads_strict(_place: usize, _thread: c_int, threads: c_int, _severity: c_int, _message: usize) {
        this_thread().pushed_threads.set(threads.max(1) as u32);
    }
    fn __kmpc_pop_num_threads(_place: usize, _thread: c_int) {
        this_thread().pushed_threads.set(0);
    }
    fn __kmpc_push_proc_bind(_place: usize, _thread: c_int, _binding: c_int) {}
    fn __kmpc_push_num_teams(_place: usize, _thread: c_int, _teams: c_int, _threads: c_int) {}
    fn __kmpc_push_num_teams_51(_place: usize, _thread: c_int, _least: c_int, _most: c_int, _threads: c_int) {}
    fn __kmpc_set_thread_limit(_place: usize, _thread: c_int, _limit: c_int) {}
    fn __kmpc_fork_call_if(place: usize, count: c_int, function: usize, condition: c_int, argument: usize) {
        match condition != 0 {
            true => fork(function, count as usize, |_| argument),
            false => {
                {
                    __kmpc_serialized_parallel(place, 0);
                    invoke(function, count as usize, [argument, 0, 0, 0, 0, 0, 0, 0, 0, 0].as_ptr());
                    __kmpc_end_serialized_parallel(place, 0);
                }
            }
        }
    }
    fn __kmpc_serialized_parallel(_place: usize, _thread: c_int) {
        let thread = this_thread();
        thread.pushed_threads.set(0);
        team::begin_alone(thread);
    }
    fn __kmpc_end_serialized_parallel(_place: usize, _thread: c_int) {
        team::end_alone(this_thread());
    }

    // Barriers, one thread, locks.
    fn __kmpc_barrier(_place: usize, _thread: c_int) {
        team::barrier();
    }
    // A thread that leaves a cancelled region comes here, too, and then to the end of the region.
    fn __kmpc_cancel_barrier(_place: usize, _thread: c_int) -> c_int {
        cancel::barrier(this_thread()).into()
    }
    fn __kmpc_cancel(_place: usize, _thread: c_int, kind: c_int) -> c_int {
        cancel::cancel(this_thread(), what(kind)).into()
    }
    fn __kmpc_cancellationpoint(_place: usize, _thread: c_int, kind: c_int) -> c_int {
        cancel::is_cancelled(this_thread(), what(kind)).into()
    }
    fn __kmpc_barrier_master(_place: usize, _thread: c_int) -> c_int {
        team::barrier();
        (this_thread().number.get() == 0).into()
    }
    fn __kmpc_end_barrier_master(_place: usize, _thread: c_int) {}
    fn __kmpc_barrier_master_nowait(_place: usize, _thread: c_int) -> c_int {
        team::barrier();
        (this_thread().number.get() == 0).into()
    }
    fn __kmpc_master(_place: usize, _thread: c_int) -> c_int {
        (this_thread().number.get() == 0).into()
    }
    fn __kmpc_end_master(_place: usize, _thread: c_int) {}
    fn __kmpc_masked(_place: usize, _thread: c_int, which: c_int) -> c_int {
        (this_thread().number.get() as c_int == which).into()
    }
    fn __kmpc_end_masked(_place: usize, _thread: c_int) {}
    fn __kmpc_single(_place: usize, _thread: c_int) -> c_int {
        this_thread().is_single().into()
    }
    fn __kmpc_end_single(_place: usize, _thread: c_int) {}
    fn __kmpc_scope(_place: usize, _thread: c_int, _reserved: usize) {}
    fn __kmpc_end_scope(_place: usize, _thread: c_int, _reserved: usize) {}
    fn __kmpc_ordered(_place: usize, _thread: c_int) {
        this_thread().wait_for_turn();
    }
    fn __kmpc_end_ordered(_place: usize, _thread: c_int) {}
    fn __kmpc_critical(_place: usize, _thread: c_int, name: *mut c_void) {
        locks::lock(name);
    }
    fn __kmpc_critical_with_hint(_place: usize, _thread: c_int, name: *mut c_void, _hint: u32) {
        locks::lock(name);
    }
    fn __kmpc_end_critical(_place: usize, _thread: c_int, name: *mut c_void) {
        locks::unlock(name);
    }
    fn __kmpc_atomic_start() {
        locks::lock(locks::name(&locks::ATOMIC));
    }
    fn __kmpc_atomic_end() {
        locks::unlock(locks::name(&locks::ATOMIC));
    }
    fn __kmpc_flush(_place: usize) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        relaxed::release();
        relaxed::acquire();
    }
    fn __kmpc_copyprivate(_place: usize, _thread: c_int, _bytes: usize, data: *mut c_void, copy: CopyFunction, did_it: c_int) {
        let thread = this_thread();
        if did_it != 0 {
            team::set_copied(thread, data);
        }
        team::barrier();
        if did_it == 0 {
            copy(data, team::copied(thread));
        }
        team::barrier();
    }
    fn __kmpc_copyprivate_light(_place: usize, _thread: c_int, data: *mut c_void) -> *mut c_void {
        let thread = this_thread();
        if !data.is_null() {
            team::set_copied(thread, data);
        }
        team::barrier();
        team::copied(thread)
    }
    fn __kmpc_reduce(_place: usize, _thread: c_int, _count: c_int, _bytes: usize, _data: usize, _function: usize, _lock: usize) -> c_int {
        begin_reduction()
    }
    fn __kmpc_end_reduce(_place: usize, _thread: c_int, _lock: usize) {
        end_reduction();
        team::barrier();
    }
    fn __kmpc_reduce_nowait(_place: usize, _thread: c_int, _count: c_int, _bytes: usize, _data: usize, _function: usize, _lock: usize) -> c_int {
        begin_reduction()
    }
    fn __kmpc_end_reduce_nowait(_place: usize, _thread: c_int, _lock: usize) {
        end_reduction();
    }
    fn __kmpc_init_lock(_place: usize, _thread: c_int, lock: *mut *mut c_void) {
        locks::init(lock.cast());
    }
    fn __kmpc_init_lock_with_hint(_place: usize, _thread: c_int, lock: *mut *mut c_void, _hint: usize) {
        locks::init(lock.cast());
    }
    fn __kmpc_init_nest_lock_with_hint(_place: usize, _thread: c_int, lock: *mut *mut c_void, _hint: usize) {
        locks::init_nestable(lock.cast());
    }
    fn __kmpc_destroy_lock(_place: usize, _thread: c_int, _lock: *mut *mut c_void) {}
    fn __kmpc_set_lock(_place: usize, _thread: c_int, lock: *mut *mut c_void) {
        locks::lock(lock.cast());
    }
    fn __kmpc_unset_lock(_place: usize, _thread: c_int, lock: *mut *mut c_void) {
        locks::unlock(lock.cast());
    }
    fn __kmpc_test_lock(_place: usize, _thread: c_int, lock: *mut *mut c_void) -> c_int {
        locks::try_lock(lock.cast()).into()
    }
    fn __kmpc_init_nest_lock(_place: usize, _thread: c_int, lock: *mut *mut c_void) {
        locks::init_nestable(lock.cast());
    }
    fn __kmpc_destroy_nest_lock(_place: usize, _thread: c_int, _lock: *mut *mut c_void) {}
    fn __kmpc_set_nest_lock(_place: usize, _thread: c_int, lock: *mut *mut c_void) {
        locks::lock_nestable(lock.cast(), false);
    }
    fn __kmpc_unset_nest_lock(_place: usize, _thread: c_int, lock: *mut *mut c_void) {
        locks::unlock_nestable(lock.cast());
    }
    fn __kmpc_test_nest_lock(_place: usize, _thread: c_int, lock: *mut *mut c_void) -> c_int {
        locks::lock_nestable(lock.cast(), true) as c_int
    }

    // Tasks.
    fn __kmpc_omp_task_alloc(_place: usize, _thread: c_int, flags: c_int, bytes: usize, shared_bytes: usize, function: TaskFunction) -> *mut KmpTask {
        let task = allocate(flags, bytes, shared_bytes);
        (*task).function = function;
        task
    }
    fn __kmpc_omp_task(_place: usize, _thread: c_int, task: *mut KmpTask) -> c_int {
        submit(task, true, &[]);
        0
    }
    fn __kmpc_omp_reg_task_with_affinity(_place: usize, _thread: c_int, _task: *mut KmpTask, _count: c_int, _list: usize) -> c_int {
        0
    }
    fn __kmpc_omp_task_parts(_place: usize, _thread: c_int, task: *mut KmpTask) -> c_int {
        submit(task, true, &[]);
        0
    }
    fn __kmpc_omp_task_with_deps(_place: usize, _thread: c_int, task: *mut KmpTask, count: c_int, list: *const KmpDependence, more: c_int, more_list: *const KmpDependence) -> c_int {
        {
            let all: Vec<Dependence> = dependences(count, list).chain(dependences(more, more_list)).collect();
            submit(task, true, &all);
        }
        0
    }
    fn __kmpc_omp_wait_deps(_place: usize, _thread: c_int, count: c_int, list: *const KmpDependence, more: c_int, more_list: *const KmpDependence) {
        {
            let all: Vec<Dependence> = dependences(count, list).chain(dependences(more, more_list)).collect();
            tasks::await_dependences(this_thread(), &all);
        }
    }
    fn __kmpc_omp_taskwait_deps_51(_place: usize, _thread: c_int, count: c_int, list: *const KmpDependence, more: c_int, more_list: *const KmpDependence, _no_wait: c_int) {
        {
            let all: Vec<Dependence> = dependences(count, list).chain(dependences(more, more_list)).collect();
            tasks::await_dependences(this_thread(), &all);
        }
    }
    fn __kmpc_omp_task_begin_if0(_place: usize, _thread: c_int, task: *mut KmpTask) {
        tasks::begin_at_once(this_thread(), tasks::task_of(task as usize));
    }
    fn __kmpc_omp_task_complete_if0(_place: usize, _thread: c_int, task: *mut KmpTask) {
        tasks::end_at_once(this_thread(), tasks::task_of(task as usize));
    }
    fn __kmpc_omp_taskwait(_place: usize, _thread: c_int) -> c_int {
        tasks::wait_for_children(this_thread());
        0
    }
    fn __kmpc_omp_taskyield(_place: usize, _thread: c_int, _end: c_int) -> c_int {
        0
    }
    fn __kmpc_taskgroup(_place: usize, _thread: c_int) {
        tasks::begin_group(this_thread());
    }
    fn __kmpc_end_taskgroup(_place: usize, _thread: c_int) {
        tasks::end_group(this_thread());
    }
    fn __kmpc_taskloop(_place: usize, _thread: c_int, pattern: *mut KmpTask, is_deferred: c_int, low: *mut u64, high: *mut u64, increment: i64, no_group: c_int, kind: c_int, size: u64, duplicate: Duplicate) {
        let (is_deferred, in_group) = (is_deferred != 0, no_group == 0);
        TaskLoop { pattern, is_deferred, low, high, increment, in_group, kind, size, is_strict: false, duplicate }.make();
    }
    fn __kmpc_taskloop_5(_place: usize, _thread: c_int, pattern: *mut KmpTask, is_deferred: c_int, low: *mut u64, high: *mut u64, increment: i64, no_group: c_int, kind: c_int, size: u64, modifier: c_int, duplicate: Duplicate) {
        let (is_deferred, in_group, is_strict) = (is_deferred != 0, no_group == 0, modifier != 0);
        TaskLoop { pattern, is_deferred, low, high, increment, in_group, kind, size, is_strict, duplicate }.make();
    }

    // Memory.
    fn __kmpc_alloc(_thread: c_int, bytes: usize, allocator: usize) -> *mut c_void {
        allocators::allocate(1, bytes, allocator)
    }
    fn __kmpc_aligned_alloc(_thread: c_int, alignment: usize, bytes: usize, allocator: usize) -> *mut c_void {
        allocators::allocate(alignment, bytes, allocator)
    }
    fn __kmpc_calloc(_thread: c_int, count: usize, bytes: usize, allocator: usize) -> *mut c_void {
        allocators::zeroed(1, count, bytes, allocator)
    }
    fn __kmpc_realloc(_thread: c_int, block: *mut c_void, bytes: usize, allocator: usize, _free: usize) -> *mut c_void {
        allocators::change(block, bytes, allocator)
    }
    fn __kmpc_free(_thread: c_int, block: *mut c_void, _allocator: usize) {
        allocators::free(block);
    }
    fn __kmpc_init_allocator(_thread: c_int, _space: usize, count: c_int, traits: *const allocators::Trait) -> usize {
        allocators::make(if count > 0 { std::slice::from_raw_parts(traits, count as usize) } else { &[] })
    }
    fn __kmpc_destroy_allocator(_thread: c_int, allocator: usize) {
        allocators::end(allocator);
    }
}

unsupported! { "OpenMP's reductions of tasks":
    __kmpc_task_reduction_init __kmpc_taskred_init __kmpc_task_reduction_get_th_data __kmpc_task_reduction_modifier_init
    __kmpc_taskred_modifier_init __kmpc_task_reduction_modifier_fini
}
unsupported! { "OpenMP's clause detach":
    __kmpc_task_allow_completion_event __kmpc_proxy_task_completed __kmpc_proxy_task_completed_ooo
}
unsupported! { "OpenMP's target":
    __kmpc_omp_target_task_alloc
}
unsupported! { "threadprivate without thread-local variables of the compiler":
    __kmpc_threadprivate __kmpc_threadprivate_cached __kmpc_threadprivate_register __kmpc_threadprivate_register_vec
}
unsupported! { "this function of LLVM's OpenMP":
    __kmpc_sections_init __kmpc_next_section __kmpc_end_sections __kmpc_process_loop_nest_rectang
    __kmpc_calc_original_ivs_rectang __kmpc_for_collapsed_init
}
