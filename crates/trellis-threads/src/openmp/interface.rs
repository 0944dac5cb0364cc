//! The functions that programs call by themselves (OpenMP 5.2, section 18), for C and, with an underscore, for Fortran.
//!
//! Promises: the answers are those of a program on one machine that has the processors of all nodes.

use std::ffi::{c_int, c_void};

use super::allocators::{self, Trait};
use super::settings::LEVELS_MAX;
use super::sharing::Kind;
use super::{Thread, locks, tasks, this_thread};
use crate::processors;

/// The kinds of schedules by their numbers (omp.h), and the bit that says that batches ascend.
const STATIC: c_int = 1;
const DYNAMIC: c_int = 2;
const GUIDED: c_int = 3;
const AUTO: c_int = 4;
const MONOTONIC: c_int = i32::MIN;

/// Defines a function without arguments, and the same for Fortran.
macro_rules! asks {
    ($($name:ident $fortran:ident -> $result:ty = |$thread:ident| $answer:expr;)*) => {
        exports! { $(
            fn $name() -> $result {
                let $thread: &Thread = this_thread();
                $answer
            }
            fn $fortran() -> $result {
                let $thread: &Thread = this_thread();
                $answer
            }
        )* }
    };
}

/// Defines a function of one number, and the same for Fortran, which passes an address, with numbers of 4 and of 8 bytes.
macro_rules! of_number {
    ($($name:ident $fortran:ident $fortran8:ident $(-> $result:ty)? = |$thread:ident, $number:ident| $answer:expr;)*) => {
        exports! { $(
            fn $name($number: c_int) $(-> $result)? {
                let $thread: &Thread = this_thread();
                $answer
            }
            fn $fortran(at: *const c_int) $(-> $result)? {
                let ($thread, $number): (&Thread, c_int) = (this_thread(), *at);
                $answer
            }
            fn $fortran8(at: *const i64) $(-> $result)? {
                let ($thread, $number): (&Thread, c_int) =
                    (this_thread(), (*at).clamp(c_int::MIN.into(), c_int::MAX.into()) as c_int);
                $answer
            }
        )* }
    };
}

/// Defines a function of a lock, and the same for Fortran.
macro_rules! of_lock {
    ($($name:ident $fortran:ident $(-> $result:ty)? = |$lock:ident| $answer:expr;)*) => {
        exports! { $(
            fn $name($lock: *mut c_void) $(-> $result)? {
                $answer
            }
            fn $fortran($lock: *mut c_void) $(-> $result)? {
                $answer
            }
        )* }
    };
}

asks! {
    omp_get_thread_num omp_get_thread_num_ -> c_int = |thread| thread.number.get() as c_int;
    omp_get_num_threads omp_get_num_threads_ -> c_int = |thread| thread.team_size() as c_int;
    omp_get_max_threads omp_get_max_threads_ -> c_int = |thread| thread.settings().threads() as c_int;
    omp_get_num_procs omp_get_num_procs_ -> c_int = |_thread| processors::count();
    omp_in_parallel omp_in_parallel_ -> c_int = |thread| thread.team().is_some_and(|team| team.active_level > 0).into();
    omp_get_dynamic omp_get_dynamic_ -> c_int = |thread| thread.settings().is_dynamic.into();
    omp_get_nested omp_get_nested_ -> c_int = |thread| (thread.settings().active_levels_max > 1).into();
    omp_get_thread_limit omp_get_thread_limit_ -> c_int = |thread| thread.settings().thread_limit as c_int;
    omp_get_max_active_levels omp_get_max_active_levels_ -> c_int = |thread| thread.settings().active_levels_max as c_int;
    omp_get_supported_active_levels omp_get_supported_active_levels_ -> c_int = |_thread| LEVELS_MAX as c_int;
    omp_get_level omp_get_level_ -> c_int = |thread| thread.team().map_or(0, |team| team.level) as c_int;
    omp_get_active_level omp_get_active_level_ -> c_int = |thread| thread.team().map_or(0, |team| team.active_level) as c_int;
    omp_in_explicit_task omp_in_explicit_task_ -> c_int = |thread| tasks::is_in_task(thread).into();
    omp_in_final omp_in_final_ -> c_int = |thread| tasks::is_in_final(thread).into();
    omp_get_cancellation omp_get_cancellation_ -> c_int = |thread| thread.settings().cancels.into();
    omp_get_proc_bind omp_get_proc_bind_ -> c_int = |_thread| 0;
    omp_get_num_places omp_get_num_places_ -> c_int = |_thread| 0;
    omp_get_place_num omp_get_place_num_ -> c_int = |_thread| -1;
    omp_get_partition_num_places omp_get_partition_num_places_ -> c_int = |_thread| 0;
    omp_get_default_device omp_get_default_device_ -> c_int = |_thread| 0;
    omp_get_num_devices omp_get_num_devices_ -> c_int = |_thread| 0;
    omp_get_initial_device omp_get_initial_device_ -> c_int = |_thread| 0;
    omp_get_device_num omp_get_device_num_ -> c_int = |_thread| 0;
    omp_is_initial_device omp_is_initial_device_ -> c_int = |_thread| 1;
    omp_get_num_teams omp_get_num_teams_ -> c_int = |_thread| 1;
    omp_get_team_num omp_get_team_num_ -> c_int = |_thread| 0;
    omp_get_max_teams omp_get_max_teams_ -> c_int = |_thread| 1;
    omp_get_teams_thread_limit omp_get_teams_thread_limit_ -> c_int = |_thread| 0;
    omp_get_max_task_priority omp_get_max_task_priority_ -> c_int = |_thread| 0;
    omp_get_wtime omp_get_wtime_ -> f64 = |_thread| now();
    omp_get_wtick omp_get_wtick_ -> f64 = |_thread| 1e-9;
}

of_number! {
    omp_set_num_threads omp_set_num_threads_ omp_set_num_threads_8_ = |thread, number| thread.set(|settings| settings.set_threads(number.max(1) as u32));
    omp_set_dynamic omp_set_dynamic_ omp_set_dynamic_8_ = |thread, number| thread.set(|settings| settings.is_dynamic = number != 0);
    omp_set_nested omp_set_nested_ omp_set_nested_8_ = |thread, number| thread.set(|settings| settings.active_levels_max = if number != 0 { LEVELS_MAX } else { 1 });
    omp_set_max_active_levels omp_set_max_active_levels_ omp_set_max_active_levels_8_ = |thread, number| thread.set(|settings| settings.active_levels_max = (number.max(0) as u32).min(LEVELS_MAX));
    omp_set_default_device omp_set_default_device_ omp_set_default_device_8_ = |_thread, _number| ();
    omp_set_num_teams omp_set_num_teams_ omp_set_num_teams_8_ = |_thread, _number| ();
    omp_set_teams_thread_limit omp_set_teams_thread_limit_ omp_set_teams_thread_limit_8_ = |_thread, _number| ();
    omp_get_ancestor_thread_num omp_get_ancestor_thread_num_ omp_get_ancestor_thread_num_8_ -> c_int = |thread, number| thread.ancestor(number).map_or(-1, |(ancestor, _)| ancestor as c_int);
    omp_get_team_size omp_get_team_size_ omp_get_team_size_8_ -> c_int = |thread, number| thread.ancestor(number).map_or(-1, |(_, size)| size as c_int);
    omp_get_place_num_procs omp_get_place_num_procs_ omp_get_place_num_procs_8_ -> c_int = |_thread, _number| 0;
}

of_lock! {
    omp_init_lock omp_init_lock_ = |lock| locks::init(lock);
    omp_destroy_lock omp_destroy_lock_ = |_lock| ();
    omp_set_lock omp_set_lock_ = |lock| locks::lock(lock);
    omp_unset_lock omp_unset_lock_ = |lock| locks::unlock(lock);
    omp_test_lock omp_test_lock_ -> c_int = |lock| locks::try_lock(lock).into();
    omp_init_nest_lock omp_init_nest_lock_ = |lock| locks::init_nestable(lock);
    omp_destroy_nest_lock omp_destroy_nest_lock_ = |_lock| ();
    omp_set_nest_lock omp_set_nest_lock_ = |lock| _ = locks::lock_nestable(lock, false);
    omp_unset_nest_lock omp_unset_nest_lock_ = |lock| locks::unlock_nestable(lock);
    omp_test_nest_lock omp_test_nest_lock_ -> c_int = |lock| locks::lock_nestable(lock, true) as c_int;
}

exports! {
    fn omp_init_lock_with_hint(lock: *mut c_void, _hint: usize) {
        locks::init(lock);
    }
    fn omp_init_lock_with_hint_(lock: *mut c_void, _hint: *const usize) {
        locks::init(lock);
    }
    fn omp_init_nest_lock_with_hint_(lock: *mut c_void, _hint: *const usize) {
        locks::init_nestable(lock);
    }
    fn omp_init_nest_lock_with_hint(lock: *mut c_void, _hint: usize) {
        locks::init_nestable(lock);
    }
    fn omp_set_schedule(kind: c_int, batch: c_int) {
        set_schedule(kind, batch);
    }
    fn omp_set_schedule_(kind: *const c_int, batch: *const c_int) {
        set_schedule(*kind, *batch);
    }
    fn omp_set_schedule_8_(kind: *const c_int, batch: *const i64) {
        set_schedule(*kind, *batch as c_int);
    }
    fn omp_get_schedule(kind: *mut c_int, batch: *mut c_int) {
        (*kind, *batch) = schedule();
    }
    fn omp_get_schedule_(kind: *mut c_int, batch: *mut c_int) {
        (*kind, *batch) = schedule();
    }
    fn omp_get_schedule_8_(kind: *mut c_int, batch: *mut i64) {
        let (now, size) = schedule();
        (*kind, *batch) = (now, size.into());
    }
    fn omp_pause_resource(_kind: c_int, _device: c_int) -> c_int {
        0
    }
    fn omp_pause_resource_all(_kind: c_int) -> c_int {
        0
    }
    fn omp_pause_resource_(_kind: *const c_int, _device: *const c_int) -> c_int {
        0
    }
    fn omp_pause_resource_all_(_kind: *const c_int) -> c_int {
        0
    }

    // Memory.
    fn omp_init_allocator(_space: usize, count: c_int, traits: *const Trait) -> usize {
        make_allocator(count, traits)
    }
    fn omp_init_allocator_(_space: *const usize, count: *const c_int, traits: *const Trait) -> usize {
        make_allocator(*count, traits)
    }
    fn omp_init_allocator_8_(_space: *const usize, count: *const i64, traits: *const Trait) -> usize {
        make_allocator(*count as c_int, traits)
    }
    fn omp_destroy_allocator(allocator: usize) {
        allocators::end(allocator);
    }
    fn omp_destroy_allocator_(allocator: *const usize) {
        allocators::end(*allocator);
    }
    fn omp_set_default_allocator(allocator: usize) {
        set_default_allocator(allocator);
    }
    fn omp_set_default_allocator_(allocator: *const usize) {
        set_default_allocator(*allocator);
    }
    fn omp_get_default_allocator() -> usize {
        this_thread().settings().allocator
    }
    fn omp_get_default_allocator_() -> usize {
        this_thread().settings().allocator
    }
    fn omp_alloc(bytes: usize, allocator: usize) -> *mut c_void {
        allocators::allocate(1, bytes, allocator)
    }
    fn omp_aligned_alloc(alignment: usize, bytes: usize, allocator: usize) -> *mut c_void {
        allocators::allocate(alignment, bytes, allocator)
    }
    fn omp_calloc(count: usize, bytes: usize, allocator: usize) -> *mut c_void {
        allocators::zeroed(1, count, bytes, allocator)
    }
    fn omp_aligned_calloc(alignment: usize, count: usize, bytes: usize, allocator: usize) -> *mut c_void {
        allocators::zeroed(alignment, count, bytes, allocator)
    }
    fn omp_realloc(block: *mut c_void, bytes: usize, allocator: usize, _free_allocator: usize) -> *mut c_void {
        allocators::change(block, bytes, allocator)
    }
    fn omp_free(block: *mut c_void, _allocator: usize) {
        allocators::free(block);
    }

    // Threads are not bound to places, and there are no devices.
    fn omp_get_place_proc_ids(_place: c_int, _numbers: *mut c_int) {}
    fn omp_get_place_proc_ids_(_place: *const c_int, _numbers: *mut c_int) {}
    fn omp_get_partition_place_nums(_numbers: *mut c_int) {}
    fn omp_get_partition_place_nums_(_numbers: *mut c_int) {}
    fn omp_get_place_proc_ids_8_(_place: *const i64, _numbers: *mut i64) {}
    fn omp_get_partition_place_nums_8_(_numbers: *mut i64) {}
    fn omp_display_env(_verbose: c_int) {}
    fn omp_display_env_(_verbose: *const c_int) {}
    fn omp_display_env_8_(_verbose: *const i64) {}
    fn omp_control_tool(_command: c_int, _modifier: c_int, _argument: *mut c_void) -> c_int {
        // No tool is there.
        -2
    }

    // Functions that only LLVM's library has.
    fn kmp_set_warnings_on() {}
    fn kmp_set_warnings_off() {}
    fn kmp_malloc(bytes: usize) -> *mut c_void {
        libc::malloc(bytes)
    }
    fn kmp_aligned_malloc(bytes: usize, alignment: usize) -> *mut c_void {
        libc::memalign(alignment.max(16), bytes)
    }
    fn kmp_calloc(count: usize, bytes: usize) -> *mut c_void {
        libc::calloc(count, bytes)
    }
    fn kmp_realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
        libc::realloc(block, bytes)
    }
    fn kmp_free(block: *mut c_void) {
        libc::free(block);
    }
    // Trellis decides how long threads poll before they sleep.
    fn kmp_set_blocktime(_milliseconds: c_int) {}
    fn kmp_get_blocktime() -> c_int {
        0
    }
    // The program's limit sets the size of stacks.
    fn kmp_set_stacksize(_bytes: c_int) {}
    fn kmp_set_stacksize_s(_bytes: usize) {}
    fn kmp_set_defaults(_settings: *const std::ffi::c_char) {}
    fn kmp_set_library(_kind: c_int) {}
    fn kmp_set_library_serial() {}
    fn kmp_set_library_turnaround() {}
    fn kmp_set_library_throughput() {}
}

/// # Safety
/// There are as many traits.
unsafe fn make_allocator(count: c_int, traits: *const Trait) -> usize {
    match count {
        // SAFETY: the caller's promise.
        1.. => allocators::make(unsafe { std::slice::from_raw_parts(traits, count as usize) }),
        _ => allocators::make(&[]),
    }
}

fn set_default_allocator(allocator: usize) {
    let allocator = if allocator == 0 { allocators::DEFAULT } else { allocator };
    this_thread().set(|settings| settings.allocator = allocator);
}

/// Seconds since some moment.
fn now() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Sets the schedule that `schedule(runtime)` stands for. A batch size below 1 stands for the default of the kind.
fn set_schedule(kind: c_int, batch: c_int) {
    let is_monotonic = kind & MONOTONIC != 0;
    let (kind, least) = match kind & !MONOTONIC {
        STATIC => (Kind::Static, 0),
        DYNAMIC => (Kind::Dynamic, 1),
        GUIDED => (Kind::Guided, 1),
        AUTO => (Kind::Static, 0),
        _ => return,
    };
    this_thread().set(|settings| {
        (settings.schedule, settings.batch) = (kind, batch.max(least) as u32);
        settings.is_monotonic = is_monotonic;
    });
}

fn schedule() -> (c_int, c_int) {
    let settings = this_thread().settings();
    let kind = match settings.schedule {
        Kind::Static => STATIC,
        Kind::Dynamic | Kind::Sections => DYNAMIC,
        Kind::Guided => GUIDED,
    };
    let kind = if settings.is_monotonic { kind | MONOTONIC } else { kind };
    (kind, settings.batch as c_int)
}

unsupported! { "OpenMP's clause detach":
    omp_fulfill_event omp_fulfill_event_
}
unsupported! { "OpenMP's memory of devices":
    omp_target_alloc omp_target_free omp_target_is_present omp_target_memcpy omp_target_memcpy_rect
    omp_target_associate_ptr omp_target_disassociate_ptr
}
