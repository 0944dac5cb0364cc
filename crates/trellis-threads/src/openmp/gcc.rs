//! The functions that programs of GCC's compilers call (libgomp's internal interface, `libgomp_g.h` of GCC 12).
//!
//! Promises: each does what GCC's manual says of the construct for which the compiler calls it. A loop runs over values of
//! `long`, or of `unsigned long long` where the name has `ull`; the bounds that a function stores are the first value and
//! the one behind the last.

use std::ffi::{c_int, c_long, c_uint, c_void};

use super::doacross::{self, Dimension, Marks};
use super::locks;
use super::sharing::{Kind, Loop, iterations, task_part};
use super::tasks::{self, Dependence, TaskWork};
use super::team::{self, Work};
use super::{Thread, WAY_OUT, this_thread};
use super::{allocators, cancel};
use crate::runtime;

type Function = extern "C-unwind" fn(*mut c_void);
type CopyFunction = Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void)>;
type Unsigned = u64;

/// Flags of tasks.
const FINAL: c_uint = 1 << 1;
const DEPEND: c_uint = 1 << 3;
const UP: c_uint = 1 << 8;
const GRAIN_SIZE: c_uint = 1 << 9;
const IF: c_uint = 1 << 10;
const NO_GROUP: c_uint = 1 << 11;
const REDUCTION: c_uint = 1 << 12;
const DETACH: c_uint = 1 << 13;
const STRICT: c_uint = 1 << 14;
/// The bits with the maximum number of threads of a region. The rest of the word says where they run.
const THREADS_MASK: c_uint = 0xffff_ffff;

fn fork(function: *mut c_void, data: *mut c_void, threads: c_uint, first_loop: Option<Loop>) {
    let work = Work::Gcc { function: function as usize, data: data as usize };
    team::fork(work, threads & THREADS_MASK, first_loop);
}

/// The iterations of a loop over `long`.
fn signed(kind: Kind, [start, end, increment]: [c_long; 3], batch: c_long, is_ordered: bool) -> Loop {
    let count = iterations(start.into(), end.into(), increment.into());
    Loop::new(kind, count, batch.max(0) as u64, is_ordered).over(start as u64, increment as u64)
}

/// The iterations of a loop over `long`, with the schedule that `schedule(runtime)` stands for.
fn signed_at_runtime([start, end, increment]: [c_long; 3], is_ordered: bool) -> Loop {
    let count = iterations(start.into(), end.into(), increment.into());
    Loop::at_runtime(count, &this_thread().settings(), is_ordered).over(start as u64, increment as u64)
}

/// The iterations of a loop over `unsigned long long`. A loop that counts down has a negative increment.
fn unsigned_count(up: bool, [start, end, increment]: [Unsigned; 3]) -> u64 {
    let increment = if up { i128::from(increment) } else { -i128::from(increment.wrapping_neg()) };
    iterations(start.into(), end.into(), increment)
}

fn unsigned(kind: Kind, up: bool, values: [Unsigned; 3], batch: Unsigned, is_ordered: bool) -> Loop {
    Loop::new(kind, unsigned_count(up, values), batch, is_ordered).over(values[0], values[2])
}

fn unsigned_at_runtime(up: bool, values: [Unsigned; 3], is_ordered: bool) -> Loop {
    let count = unsigned_count(up, values);
    Loop::at_runtime(count, &this_thread().settings(), is_ordered).over(values[0], values[2])
}

/// Begins a loop, and gives the thread its first iterations.
unsafe fn start(sharing: Loop, low: *mut u64, high: *mut u64) -> bool {
    this_thread().begin_loop(sharing);
    // SAFETY: the caller's places.
    unsafe { next(low, high) }
}

/// Gives the thread its next iterations.
unsafe fn next(low: *mut u64, high: *mut u64) -> bool {
    let thread = this_thread();
    let Some((first, end)) = thread.next_iterations() else { return false };
    let sharing = thread.sharing.get();
    // SAFETY: the caller's places.
    unsafe {
        *low = sharing.value(first);
        *high = sharing.value(end);
    }
    true
}

exports! {
    // Parallel regions.
    fn GOMP_parallel(function: *mut c_void, data: *mut c_void, threads: c_uint, _flags: c_uint) {
        fork(function, data, threads, None);
    }
    fn GOMP_parallel_loop_static(function: *mut c_void, data: *mut c_void, threads: c_uint, start: c_long, end: c_long, increment: c_long, batch: c_long, _flags: c_uint) {
        fork(function, data, threads, Some(signed(Kind::Static, [start, end, increment], batch, false)));
    }
    fn GOMP_parallel_loop_dynamic(function: *mut c_void, data: *mut c_void, threads: c_uint, start: c_long, end: c_long, increment: c_long, batch: c_long, _flags: c_uint) {
        fork(function, data, threads, Some(signed(Kind::Dynamic, [start, end, increment], batch, false)));
    }
    fn GOMP_parallel_loop_guided(function: *mut c_void, data: *mut c_void, threads: c_uint, start: c_long, end: c_long, increment: c_long, batch: c_long, _flags: c_uint) {
        fork(function, data, threads, Some(signed(Kind::Guided, [start, end, increment], batch, false)));
    }
    fn GOMP_parallel_loop_nonmonotonic_dynamic(function: *mut c_void, data: *mut c_void, threads: c_uint, start: c_long, end: c_long, increment: c_long, batch: c_long, _flags: c_uint) {
        fork(function, data, threads, Some(signed(Kind::Dynamic, [start, end, increment], batch, false)));
    }
    fn GOMP_parallel_loop_nonmonotonic_guided(function: *mut c_void, data: *mut c_void, threads: c_uint, start: c_long, end: c_long, increment: c_long, batch: c_long, _flags: c_uint) {
        fork(function, data, threads, Some(signed(Kind::Guided, [start, end, increment], batch, false)));
    }
    fn GOMP_parallel_loop_runtime(function: *mut c_void, data: *mut c_void, threads: c_uint, start: c_long, end: c_long, increment: c_long, _flags: c_uint) {
        fork(function, data, threads, Some(signed_at_runtime([start, end, increment], false)));
    }
    fn GOMP_parallel_loop_nonmonotonic_runtime(function: *mut c_void, data: *mut c_void, threads: c_uint, start: c_long, end: c_long, increment: c_long, _flags: c_uint) {
        fork(function, data, threads, Some(signed_at_runtime([start, end, increment], false)));
    }
    fn GOMP_parallel_loop_maybe_nonmonotonic_runtime(function: *mut c_void, data: *mut c_void, threads: c_uint, start: c_long, end: c_long, increment: c_long, _flags: c_uint) {
        fork(function, data, threads, Some(signed_at_runtime([start, end, increment], false)));
    }
    fn GOMP_parallel_sections(function: *mut c_void, data: *mut c_void, threads: c_uint, count: c_uint, _flags: c_uint) {
        fork(function, data, threads, Some(Loop::new(Kind::Sections, count.into(), 1, false)));
    }

    // Loops over `long`.
    fn GOMP_loop_static_start(start: c_long, end: c_long, increment: c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed(Kind::Static, [start, end, increment], batch, false), low, high)
    }
    fn GOMP_loop_static_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_dynamic_start(start: c_long, end: c_long, increment: c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed(Kind::Dynamic, [start, end, increment], batch, false), low, high)
    }
    fn GOMP_loop_dynamic_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_guided_start(start: c_long, end: c_long, increment: c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed(Kind::Guided, [start, end, increment], batch, false), low, high)
    }
    fn GOMP_loop_guided_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_runtime_start(start: c_long, end: c_long, increment: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed_at_runtime([start, end, increment], false), low, high)
    }
    fn GOMP_loop_runtime_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ordered_static_start(start: c_long, end: c_long, increment: c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed(Kind::Static, [start, end, increment], batch, true), low, high)
    }
    fn GOMP_loop_ordered_static_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ordered_dynamic_start(start: c_long, end: c_long, increment: c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed(Kind::Dynamic, [start, end, increment], batch, true), low, high)
    }
    fn GOMP_loop_ordered_dynamic_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ordered_guided_start(start: c_long, end: c_long, increment: c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed(Kind::Guided, [start, end, increment], batch, true), low, high)
    }
    fn GOMP_loop_ordered_guided_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ordered_runtime_start(start: c_long, end: c_long, increment: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed_at_runtime([start, end, increment], true), low, high)
    }
    fn GOMP_loop_ordered_runtime_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_nonmonotonic_dynamic_start(start: c_long, end: c_long, increment: c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed(Kind::Dynamic, [start, end, increment], batch, false), low, high)
    }
    fn GOMP_loop_nonmonotonic_dynamic_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_nonmonotonic_guided_start(start: c_long, end: c_long, increment: c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed(Kind::Guided, [start, end, increment], batch, false), low, high)
    }
    fn GOMP_loop_nonmonotonic_guided_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_nonmonotonic_runtime_start(start: c_long, end: c_long, increment: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed_at_runtime([start, end, increment], false), low, high)
    }
    fn GOMP_loop_nonmonotonic_runtime_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_maybe_nonmonotonic_runtime_start(start: c_long, end: c_long, increment: c_long, low: *mut u64, high: *mut u64) -> bool {
        self::start(signed_at_runtime([start, end, increment], false), low, high)
    }
    fn GOMP_loop_maybe_nonmonotonic_runtime_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }

    // Loops over `unsigned long long`.
    fn GOMP_loop_ull_static_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, batch: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned(Kind::Static, up, [start, end, increment], batch, false), low, high)
    }
    fn GOMP_loop_ull_static_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ull_dynamic_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, batch: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned(Kind::Dynamic, up, [start, end, increment], batch, false), low, high)
    }
    fn GOMP_loop_ull_dynamic_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ull_guided_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, batch: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned(Kind::Guided, up, [start, end, increment], batch, false), low, high)
    }
    fn GOMP_loop_ull_guided_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ull_runtime_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned_at_runtime(up, [start, end, increment], false), low, high)
    }
    fn GOMP_loop_ull_runtime_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ull_ordered_static_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, batch: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned(Kind::Static, up, [start, end, increment], batch, true), low, high)
    }
    fn GOMP_loop_ull_ordered_static_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ull_ordered_dynamic_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, batch: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned(Kind::Dynamic, up, [start, end, increment], batch, true), low, high)
    }
    fn GOMP_loop_ull_ordered_dynamic_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ull_ordered_guided_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, batch: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned(Kind::Guided, up, [start, end, increment], batch, true), low, high)
    }
    fn GOMP_loop_ull_ordered_guided_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ull_ordered_runtime_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned_at_runtime(up, [start, end, increment], true), low, high)
    }
    fn GOMP_loop_ull_ordered_runtime_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ull_nonmonotonic_dynamic_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, batch: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned(Kind::Dynamic, up, [start, end, increment], batch, false), low, high)
    }
    fn GOMP_loop_ull_nonmonotonic_dynamic_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ull_nonmonotonic_guided_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, batch: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned(Kind::Guided, up, [start, end, increment], batch, false), low, high)
    }
    fn GOMP_loop_ull_nonmonotonic_guided_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ull_nonmonotonic_runtime_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned_at_runtime(up, [start, end, increment], false), low, high)
    }
    fn GOMP_loop_ull_nonmonotonic_runtime_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }
    fn GOMP_loop_ull_maybe_nonmonotonic_runtime_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, low: *mut u64, high: *mut u64) -> bool {
        self::start(unsigned_at_runtime(up, [start, end, increment], false), low, high)
    }
    fn GOMP_loop_ull_maybe_nonmonotonic_runtime_next(low: *mut u64, high: *mut u64) -> bool {
        next(low, high)
    }

    // Loops whose iterations wait for each other. Their iterations are counted from 0.
    fn GOMP_doacross_post(values: *const c_long) {
        doacross::post((0..doacross::depth()).map(|place| *values.add(place)));
    }
    fn GOMP_doacross_ull_post(values: *const c_long) {
        doacross::post((0..doacross::depth()).map(|place| *values.add(place)));
    }
    // There are as many values as loops.
    fn GOMP_doacross_wait(a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long, g: c_long, h: c_long) {
        doacross::wait(few([a, b, c, d, e, f, g, h]));
    }
    fn GOMP_doacross_ull_wait(a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long, g: c_long, h: c_long) {
        doacross::wait(few([a, b, c, d, e, f, g, h]));
    }
    fn GOMP_loop_doacross_static_start(depth: c_uint, counts: *const c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        begin_doacross(depth, counts, 0);
        self::start(signed(Kind::Static, [0, *counts, 1], batch, false), low, high)
    }
    fn GOMP_loop_doacross_dynamic_start(depth: c_uint, counts: *const c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        begin_doacross(depth, counts, 0);
        self::start(signed(Kind::Dynamic, [0, *counts, 1], batch, false), low, high)
    }
    fn GOMP_loop_doacross_guided_start(depth: c_uint, counts: *const c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        begin_doacross(depth, counts, 0);
        self::start(signed(Kind::Guided, [0, *counts, 1], batch, false), low, high)
    }
    fn GOMP_loop_doacross_runtime_start(depth: c_uint, counts: *const c_long, low: *mut u64, high: *mut u64) -> bool {
        begin_doacross(depth, counts, 0);
        self::start(signed_at_runtime([0, *counts, 1], false), low, high)
    }
    fn GOMP_loop_doacross_start(depth: c_uint, counts: *const c_long, schedule: c_long, batch: c_long, low: *mut u64, high: *mut u64, reductions: usize, memory: *mut usize) -> bool {
        share_with(reductions, memory, |bytes| begin_doacross(depth, counts, bytes));
        low.is_null() || self::start(signed_by(schedule, [0, *counts, 1], batch, false), low, high)
    }
    fn GOMP_loop_ull_doacross_static_start(depth: c_uint, counts: *const c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        begin_doacross(depth, counts, 0);
        self::start(signed(Kind::Static, [0, *counts, 1], batch, false), low, high)
    }
    fn GOMP_loop_ull_doacross_dynamic_start(depth: c_uint, counts: *const c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        begin_doacross(depth, counts, 0);
        self::start(signed(Kind::Dynamic, [0, *counts, 1], batch, false), low, high)
    }
    fn GOMP_loop_ull_doacross_guided_start(depth: c_uint, counts: *const c_long, batch: c_long, low: *mut u64, high: *mut u64) -> bool {
        begin_doacross(depth, counts, 0);
        self::start(signed(Kind::Guided, [0, *counts, 1], batch, false), low, high)
    }
    fn GOMP_loop_ull_doacross_runtime_start(depth: c_uint, counts: *const c_long, low: *mut u64, high: *mut u64) -> bool {
        begin_doacross(depth, counts, 0);
        self::start(signed_at_runtime([0, *counts, 1], false), low, high)
    }
    fn GOMP_loop_ull_doacross_start(depth: c_uint, counts: *const c_long, schedule: c_long, batch: c_long, low: *mut u64, high: *mut u64, reductions: usize, memory: *mut usize) -> bool {
        share_with(reductions, memory, |bytes| begin_doacross(depth, counts, bytes));
        low.is_null() || self::start(signed_by(schedule, [0, *counts, 1], batch, false), low, high)
    }

    // Loops and sections with memory for the team, and loops whose schedule is a number.
    fn GOMP_loop_start(start: c_long, end: c_long, increment: c_long, schedule: c_long, batch: c_long, low: *mut u64, high: *mut u64, reductions: usize, memory: *mut usize) -> bool {
        share(reductions, memory);
        // Without these places, the compiler divides the loop itself.
        low.is_null() || self::start(signed_by(schedule, [start, end, increment], batch, false), low, high)
    }
    fn GOMP_loop_ull_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, schedule: c_long, batch: Unsigned, low: *mut u64, high: *mut u64, reductions: usize, memory: *mut usize) -> bool {
        share(reductions, memory);
        let sharing = match kind_of(schedule) {
            Some(kind) => unsigned(kind, up, [start, end, increment], batch, false),
            None => unsigned_at_runtime(up, [start, end, increment], false),
        };
        low.is_null() || self::start(sharing, low, high)
    }
    fn GOMP_loop_ordered_start(start: c_long, end: c_long, increment: c_long, schedule: c_long, batch: c_long, low: *mut u64, high: *mut u64, reductions: usize, memory: *mut usize) -> bool {
        share(reductions, memory);
        // Without these places, the compiler divides the loop itself.
        low.is_null() || self::start(signed_by(schedule, [start, end, increment], batch, true), low, high)
    }
    fn GOMP_loop_ull_ordered_start(up: bool, start: Unsigned, end: Unsigned, increment: Unsigned, schedule: c_long, batch: Unsigned, low: *mut u64, high: *mut u64, reductions: usize, memory: *mut usize) -> bool {
        share(reductions, memory);
        let sharing = match kind_of(schedule) {
            Some(kind) => unsigned(kind, up, [start, end, increment], batch, true),
            None => unsigned_at_runtime(up, [start, end, increment], true),
        };
        low.is_null() || self::start(sharing, low, high)
    }
    fn GOMP_sections2_start(count: c_uint, reductions: usize, memory: *mut usize) -> c_uint {
        share(reductions, memory);
        let thread = this_thread();
        thread.begin_loop(Loop::new(Kind::Sections, count.into(), 1, false));
        next_section(thread)
    }
    fn GOMP_scope_start(reductions: usize) {
        share(reductions, std::ptr::null_mut());
    }
    fn GOMP_loop_end() {
        team::barrier();
    }
    fn GOMP_loop_end_nowait() {}
    fn GOMP_ordered_start() {
        this_thread().wait_for_turn();
    }
    fn GOMP_ordered_end() {}

    // Sections.
    fn GOMP_sections_start(count: c_uint) -> c_uint {
        let thread = this_thread();
        thread.begin_loop(Loop::new(Kind::Sections, count.into(), 1, false));
        next_section(thread)
    }
    fn GOMP_sections_next() -> c_uint {
        next_section(this_thread())
    }
    fn GOMP_sections_end() {
        team::barrier();
    }
    fn GOMP_sections_end_nowait() {}

    // One thread.
    fn GOMP_single_start() -> bool {
        this_thread().is_single()
    }
    fn GOMP_single_copy_start() -> *mut c_void {
        let thread = this_thread();
        if thread.is_single() {
            return std::ptr::null_mut();
        }
        team::barrier();
        team::copied(thread)
    }
    fn GOMP_single_copy_end(data: *mut c_void) {
        team::set_copied(this_thread(), data);
        team::barrier();
    }

    // Barriers and locks.
    fn GOMP_barrier() {
        team::barrier();
    }
    fn GOMP_critical_start() {
        locks::lock(locks::name(&locks::UNNAMED));
    }
    fn GOMP_critical_end() {
        locks::unlock(locks::name(&locks::UNNAMED));
    }
    fn GOMP_critical_name_start(name: *mut *mut c_void) {
        locks::lock(name.cast());
    }
    fn GOMP_critical_name_end(name: *mut *mut c_void) {
        locks::unlock(name.cast());
    }
    fn GOMP_atomic_start() {
        locks::lock(locks::name(&locks::ATOMIC));
    }
    fn GOMP_atomic_end() {
        locks::unlock(locks::name(&locks::ATOMIC));
    }

    // Cancellation.
    fn GOMP_cancel(which: c_int, does: bool) -> bool {
        match does {
            true => cancel::cancel(this_thread(), what(which)),
            false => cancel::is_cancelled(this_thread(), what(which)),
        }
    }
    fn GOMP_cancellation_point(which: c_int) -> bool {
        cancel::is_cancelled(this_thread(), what(which))
    }
    fn GOMP_barrier_cancel() -> bool {
        cancel::barrier(this_thread())
    }
    fn GOMP_loop_end_cancel() -> bool {
        cancel::barrier(this_thread())
    }
    fn GOMP_sections_end_cancel() -> bool {
        cancel::barrier(this_thread())
    }

    // Tasks.
    fn GOMP_task(function: Function, data: *mut c_void, copy: CopyFunction, bytes: c_long, alignment: c_long, is_deferred: bool, flags: c_uint, dependences: *mut *mut c_void, _priority: c_int, _detach: *mut c_void) {
        if flags & DETACH != 0 {
            runtime::unsupported("OpenMP's clause detach", WAY_OUT);
        }
        let list = if flags & DEPEND == 0 { Vec::new() } else { list_of(dependences) };
        let new = New { function, copy, data, bytes: bytes as usize, alignment: alignment as usize };
        new.task(flags & FINAL != 0, is_deferred, &list, |_| {});
    }
    fn GOMP_taskwait() {
        tasks::wait_for_children(this_thread());
    }
    fn GOMP_taskwait_depend(dependences: *mut *mut c_void) {
        tasks::await_dependences(this_thread(), &list_of(dependences));
    }
    // This makes a task without work and waits for it at once.
    fn GOMP_taskwait_depend_nowait(dependences: *mut *mut c_void) {
        tasks::await_dependences(this_thread(), &list_of(dependences));
    }
    fn GOMP_taskyield() {}
    fn GOMP_taskgroup_start() {
        tasks::begin_group(this_thread());
    }
    fn GOMP_taskgroup_end() {
        tasks::end_group(this_thread());
    }
    fn GOMP_taskloop(function: Function, data: *mut c_void, copy: CopyFunction, bytes: c_long, alignment: c_long, flags: c_uint, tasks: u64, _priority: c_int, start: c_long, end: c_long, increment: c_long) {
        let count = iterations(start.into(), end.into(), increment.into());
        let new = New { function, copy, data, bytes: bytes as usize, alignment: alignment as usize };
        new.task_loop(flags, tasks, signed(Kind::Static, [start, end, increment], 0, false), count);
    }
    fn GOMP_taskloop_ull(function: Function, data: *mut c_void, copy: CopyFunction, bytes: c_long, alignment: c_long, flags: c_uint, tasks: u64, _priority: c_int, start: Unsigned, end: Unsigned, increment: Unsigned) {
        let sharing = unsigned(Kind::Static, flags & UP != 0, [start, end, increment], 0, false);
        let new = New { function, copy, data, bytes: bytes as usize, alignment: alignment as usize };
        new.task_loop(flags, tasks, sharing, sharing.count);
    }

    // Teams on this machine: one league of one team.
    fn GOMP_teams_reg(function: Function, data: *mut c_void, _teams: c_uint, _limit: c_uint, _flags: c_uint) {
        function(data);
    }

    // Memory.
    fn GOMP_alloc(alignment: usize, bytes: usize, allocator: usize) -> *mut c_void {
        allocators::allocate(alignment, bytes, allocator)
    }
    fn GOMP_free(block: *mut c_void, _allocator: usize) {
        allocators::free(block);
    }
}

/// What the compiler's number says is cancelled.
fn what(which: c_int) -> cancel::What {
    const REGION: c_int = 1;
    const TASKS: c_int = 8;
    match which {
        REGION => cancel::What::Region,
        TASKS => cancel::What::Tasks,
        _ => cancel::What::Sharing,
    }
}

/// The schedule with this number, which may have the bit for ascending batches; `None` for `schedule(runtime)`.
fn kind_of(schedule: c_long) -> Option<Kind> {
    const MONOTONIC: c_long = 1 << 31;
    match schedule & !MONOTONIC {
        // The second bit says that batches need not ascend.
        0 | 4 => None,
        2 => Some(Kind::Dynamic),
        3 => Some(Kind::Guided),
        _ => Some(Kind::Static),
    }
}

fn signed_by(schedule: c_long, values: [c_long; 3], batch: c_long, is_ordered: bool) -> Loop {
    match kind_of(schedule) {
        Some(kind) => signed(kind, values, batch, is_ordered),
        None => signed_at_runtime(values, is_ordered),
    }
}

/// Makes memory for a construct that the threads of the team share. The word has its size, and gets its address.
///
/// # Safety
/// The word is valid, or null.
unsafe fn share(reductions: usize, memory: *mut usize) {
    // SAFETY: the caller's promise.
    let allocate = |bytes| match memory.is_null() {
        true => std::ptr::null_mut(),
        false => doacross::shared_memory(bytes),
    };
    // SAFETY: the caller's promise.
    unsafe { share_with(reductions, memory, allocate) };
}

/// As [`share`], with memory from `allocate`. Nothing happens without a word.
///
/// # Safety
/// As for [`share`].
unsafe fn share_with(reductions: usize, memory: *mut usize, allocate: impl FnOnce(usize) -> *mut c_void) {
    if reductions != 0 {
        runtime::unsupported("OpenMP's reductions of tasks", WAY_OUT);
    }
    // SAFETY: the caller's promise.
    let word = unsafe { memory.as_mut() };
    let address = allocate(word.as_deref().copied().unwrap_or(0));
    if let Some(word) = word {
        *word = address as usize;
    }
}

/// Begins loops whose iterations wait for each other, with the number of iterations of each.
///
/// # Safety
/// There are as many numbers.
unsafe fn begin_doacross(depth: c_uint, counts: *const c_long, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let count = |place: usize| unsafe { *counts.add(place) } as u64;
    let dimension = |place| Dimension { first: 0, increment: 1, count: count(place) };
    // The compiler has joined the loops whose iterations are divided among the threads.
    doacross::begin((0..depth as usize).map(dimension).collect(), Marks::Last, bytes)
}

/// The values of an iteration that are there, of those that a function with any number of them has got.
fn few(values: [c_long; 8]) -> impl Iterator<Item = c_long> {
    let depth = doacross::depth();
    if depth > values.len() {
        runtime::unsupported("ordered with more than eight loops", WAY_OUT);
    }
    values.into_iter().take(depth)
}

fn next_section(thread: &Thread) -> c_uint {
    thread.next_iterations().map_or(0, |(first, _)| first as c_uint + 1)
}

/// The dependences of a task, as the compiler lists them: the number of all addresses, the number of those that are
/// written, and the addresses, with those that are written first. In the other form, a zero comes first, then the
/// numbers by kind, then the addresses, and pairs at the end.
unsafe fn list_of(list: *mut *mut c_void) -> Vec<Dependence> {
    // SAFETY: the compiler's list.
    unsafe {
        let word = |place: usize| *list.add(place) as usize;
        let address = |place: usize| match word(place) {
            0 => runtime::unsupported("OpenMP's omp_all_memory", WAY_OUT),
            address => address,
        };
        if word(0) != 0 {
            let (count, written) = (word(0), word(1));
            return (0..count).map(|place| (address(2 + place), place < written)).collect();
        }
        // The number of all dependences, and of each kind but `depobj`: `out` and `inout`, `mutexinoutset`, `in`.
        let (count, written, exclusive, read) = (word(1), word(2), word(3), word(4));
        let plain = written + exclusive + read;
        (0..count)
            .map(|place| match place < plain {
                true => (address(5 + place), place < written + exclusive),
                false => {
                    /// The kind of a `depobj` that only reads.
                    const IN: usize = 1;
                    let object = word(5 + place) as *const usize;
                    (*object, *object.add(1) != IN)
                }
            })
            .collect()
    }
}

/// A new task as the compiler describes it.
struct New {
    function: Function,
    copy: CopyFunction,
    data: *mut c_void,
    bytes: usize,
    alignment: usize,
}

impl New {
    /// Makes the task. `change` may change its copy of the data.
    unsafe fn task(
        &self,
        is_final: bool,
        is_deferred: bool,
        dependences: &[Dependence],
        change: impl FnOnce(*mut c_void),
    ) {
        let thread = this_thread();
        if cancel::is_cancelled(thread, cancel::What::Tasks) {
            return;
        }
        let (function, is_made) = (self.function as usize, self.copy.is_some());
        let work = TaskWork::Gcc { function, alignment: self.alignment, is_made };
        let task = tasks::child(thread, work, self.bytes + self.alignment, is_final);
        let data = tasks::data_of(task, self.alignment) as *mut c_void;
        // SAFETY: the compiler's data and function, and room for the data.
        unsafe {
            match self.copy {
                Some(copy) => copy(data, self.data),
                None => data.cast::<u8>().copy_from_nonoverlapping(self.data.cast::<u8>(), self.bytes),
            }
        }
        change(data);
        match is_deferred && !tasks::is_undeferred(thread) {
            true => tasks::submit(thread, task, dependences),
            false => tasks::do_now(thread, task, dependences),
        }
    }

    /// Makes the tasks of a loop, whose data begin with the first value and the one behind the last.
    unsafe fn task_loop(&self, flags: c_uint, tasks: u64, sharing: Loop, count: u64) {
        if flags & REDUCTION != 0 {
            runtime::unsupported("OpenMP's reductions of tasks", WAY_OUT);
        }
        if count == 0 {
            return;
        }
        let thread = this_thread();
        let strict_size = if flags & STRICT != 0 && flags & GRAIN_SIZE != 0 { tasks.max(1) } else { 0 };
        let parts = match (flags & GRAIN_SIZE != 0, tasks) {
            (true, _) if strict_size > 0 => count.div_ceil(strict_size),
            (true, size) => (count / size.max(1)).max(1),
            (false, 0) => u64::from(thread.team_size()).min(count),
            (false, tasks) => tasks.min(count),
        };
        let in_group = flags & NO_GROUP == 0;
        if in_group {
            tasks::begin_group(thread);
        }
        for number in 0..parts {
            let (low, high) = task_part(count, parts, number, strict_size);
            let change = |data: *mut c_void| {
                // SAFETY: the task's own copy of the data.
                unsafe {
                    *data.cast::<u64>() = sharing.value(low);
                    *data.cast::<u64>().add(1) = sharing.value(high);
                }
            };
            // SAFETY: as the caller promises.
            unsafe { self.task(flags & FINAL != 0, flags & IF != 0, &[], change) };
        }
        if in_group {
            tasks::end_group(thread);
        }
    }
}

unsupported! { "a program of GCC 4.8 or earlier":
    GOMP_parallel_start GOMP_parallel_end GOMP_parallel_loop_static_start GOMP_parallel_loop_dynamic_start
    GOMP_parallel_loop_guided_start GOMP_parallel_loop_runtime_start GOMP_parallel_sections_start
}
unsupported! { "OpenMP's reductions of tasks":
    GOMP_parallel_reductions GOMP_taskgroup_reduction_register GOMP_taskgroup_reduction_unregister
    GOMP_task_reduction_remap GOMP_workshare_task_reduction_unregister
}
unsupported! { "OpenMP's target":
    GOMP_target GOMP_target_data GOMP_target_data_ext GOMP_target_end_data GOMP_target_enter_exit_data GOMP_target_ext
    GOMP_target_update GOMP_target_update_ext GOMP_teams GOMP_teams4
}
