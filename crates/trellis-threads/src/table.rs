//! The functions of the C library that this library answers, each once; `docs/reference/threads.md` is the table for users.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use crate::time::{FOREVER, NOW};
use libc::{clockid_t, timespec};
use trellis_interpose::functions;

use crate::{
    actions, barriers, cancellation, conditions, early, keys, libraries, mappings, memory, mutexes, once, processors,
    relaxed, runtime, semaphores, start, state, streams, system_calls, threads,
};

type Function = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type C11Function = extern "C-unwind" fn(*mut c_void) -> c_int;
type Destructor = Option<extern "C-unwind" fn(*mut c_void)>;
type Main = unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;

/// Calls this library's function for a thread of the program, and that of the C library for any other thread.
macro_rules! of_program {
    ($real:ident($($argument:expr),*), $answer:expr) => {
        if crate::context::is_of_program() {
            #[allow(unused_unsafe, reason = "some of the answers are safe functions")]
            // SAFETY: as the program calls it.
            unsafe {
                $answer
            }
        } else {
            // SAFETY: as the program calls it.
            unsafe { $real($($argument),*) }
        }
    };
}

/// As above, under a further condition.
macro_rules! of_program_if {
    ($condition:expr, $real:ident($($argument:expr),*), $answer:expr) => {
        if $condition {
            of_program!($real($($argument),*), $answer)
        } else {
            // SAFETY: as the program calls it.
            unsafe { $real($($argument),*) }
        }
    };
}

/// The answer if there is one, and otherwise that of the C library's function.
macro_rules! or_real {
    ($answer:expr, $real:ident($($argument:expr),*)) => {{
        #[allow(unused_unsafe, reason = "some of the answers are safe functions")]
        // SAFETY: as the program calls it.
        let answer = unsafe { $answer };
        match answer {
            Some(answer) => answer,
            // SAFETY: as the program calls it.
            None => unsafe { $real($($argument),*) },
        }
    }};
}

functions! {
    // Memory. A block may be one of the region or of the process, whichever thread gives it back. These functions come
    // first, because a search for a function that does not exist allocates memory.
    fn malloc(bytes: usize) -> *mut c_void = with |real| or_real!(memory::of_program(Some(bytes), memory::ALIGNMENT, false), real(bytes));
    fn calloc(count: usize, bytes: usize) -> *mut c_void = with |real| or_real!(memory::of_program(count.checked_mul(bytes), memory::ALIGNMENT, true), real(count, bytes));
    fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void = memory::realloc;
    fn reallocarray(block: *mut c_void, count: usize, bytes: usize) -> *mut c_void = memory::realloc_array;
    fn free(block: *mut c_void) -> () = memory::free;
    fn memalign(alignment: usize, bytes: usize) -> *mut c_void = with |real| or_real!(memory::aligned(alignment, bytes), real(alignment, bytes));
    fn aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void = with |real| or_real!(memory::aligned(alignment, bytes), real(alignment, bytes));
    fn posix_memalign(to: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int = with |real| or_real!(memory::posix_aligned(to, alignment, bytes), real(to, alignment, bytes));
    fn valloc(bytes: usize) -> *mut c_void = with |real| or_real!(memory::of_program(Some(bytes), memory::PAGE, false), real(bytes));
    fn pvalloc(bytes: usize) -> *mut c_void = with |real| or_real!(memory::of_program(Some(bytes.next_multiple_of(memory::PAGE)), memory::PAGE, false), real(bytes));
    fn malloc_usable_size(block: *mut c_void) -> usize = memory::usable_size;
    fn mmap(address: *mut c_void, bytes: usize, protection: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void = with |real| of_program!(real(address, bytes, protection, flags, file, offset), mappings::map(address, bytes, protection, flags, file, offset));
    fn mmap64(address: *mut c_void, bytes: usize, protection: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void = with |real| of_program!(real(address, bytes, protection, flags, file, offset), mappings::map(address, bytes, protection, flags, file, offset));
    fn munmap(address: *mut c_void, bytes: usize) -> c_int = mappings::unmap;
    fn mremap(address: *mut c_void, bytes: usize, new_bytes: usize, flags: c_int, new_address: *mut c_void) -> *mut c_void = mappings::remap;
    fn mprotect(address: *mut c_void, bytes: usize, protection: c_int) -> c_int = mappings::protect;
    fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int = mappings::advise;

    // The process.
    fn __libc_start_main(main: Main, count: c_int, arguments: *mut *mut c_char, init: *mut c_void, fini: *mut c_void, loader_fini: *mut c_void, stack_end: *mut c_void) -> c_int = with |real| {
        let rest = [init, fini, loader_fini, stack_end];
        // SAFETY: as the C library calls it.
        unsafe {
            match start::is_wanted() && !crate::context::is_of_program() {
                true => start::start_main(main, count, arguments, rest),
                false => real(main, count, arguments, init, fini, loader_fini, stack_end),
            }
        }
    };
    fn exit(status: c_int) -> () = with |real| of_program!(real(status), start::exit(real, status));
    fn _exit(status: c_int) -> () = with |real| of_program!(real(status), start::exit_now(status));
    fn _Exit(status: c_int) -> () = with |real| of_program!(real(status), start::exit_now(status));
    fn fork() -> c_int = with |real| of_program!(real(), runtime::unsupported("fork without exec", "posix_spawn, system and popen are"));
    fn system(command: *const c_char) -> c_int = with |real| of_program!(real(command), start::at_first_node(real as *mut c_void, [command as usize, 0, 0, 0, 0, 0]) as c_int);
    fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int = with |real| of_program!(real(path, arguments, environment), start::called(real as *mut c_void, [path as usize, arguments as usize, environment as usize, 0, 0, 0]) as c_int);
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int = with |real| of_program!(real(path, arguments), start::called(real as *mut c_void, [path as usize, arguments as usize, 0, 0, 0, 0]) as c_int);
    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int = with |real| of_program!(real(file, arguments), start::called(real as *mut c_void, [file as usize, arguments as usize, 0, 0, 0, 0]) as c_int);
    fn popen(command: *const c_char, how: *const c_char) -> *mut libc::FILE = with |real| of_program!(real(command, how), start::in_thread_of_first_node(real as *mut c_void, [command as usize, how as usize, 0]) as *mut libc::FILE);
    fn pclose(stream: *mut libc::FILE) -> c_int = with |real| of_program!(real(stream), start::in_thread_of_first_node(real as *mut c_void, [stream as usize, 0, 0]) as c_int);
    fn posix_spawn(process: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int = with |real| of_program!(real(process, path, actions, attributes, arguments, environment), start::at_first_node(real as *mut c_void, [process as usize, path as usize, actions as usize, attributes as usize, arguments as usize, environment as usize]) as c_int);
    fn posix_spawnp(process: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int = with |real| of_program!(real(process, file, actions, attributes, arguments, environment), start::at_first_node(real as *mut c_void, [process as usize, file as usize, actions as usize, attributes as usize, arguments as usize, environment as usize]) as c_int);
    fn syscall(number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> i64 = with |real| {
        if number == libc::SYS_futex && crate::context::is_of_program() {
            // SAFETY: as the program calls it.
            let answer = unsafe { conditions::futex(a, b as c_int, c as u32, d as *const timespec, f as u32) };
            if answer < 0 {
                trellis_interpose::set_errno(-answer as c_int);
                return -1;
            }
            return answer;
        }
        // SAFETY: as the program calls it.
        unsafe { real(number, a, b, c, d, e, f) }
    };
    // On one node, system calls go to the kernel as they are.
    fn sigaction(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> c_int = with |real| of_program_if!(start::nodes() == 1, real(signal, action, before), actions::set_action_of_one_node(real, signal, action, before));
    fn signal(signal: c_int, handler: usize) -> usize = with |real| of_program_if!(start::nodes() == 1, real(signal, handler), actions::set_handler_of_one_node(signal, handler));
    fn getpid() -> c_int = with |real| of_program!(real(), processors::process());
    fn sysconf(name: c_int) -> c_long = with |real| {
        if processors::is_count(name) && crate::context::is_of_program() {
            return processors::count().into();
        }
        // SAFETY: as the program calls it.
        unsafe { real(name) }
    };
    fn get_nprocs() -> c_int = with |real| of_program!(real(), processors::count());
    fn get_nprocs_conf() -> c_int = with |real| of_program!(real(), processors::count());
    fn sched_getaffinity(process: c_int, bytes: usize, set: *mut c_void) -> c_int = with |real| of_program!(real(process, bytes, set), processors::fill(bytes, set));
    fn sched_setaffinity(process: c_int, bytes: usize, set: *const c_void) -> c_int = with |real| of_program!(real(process, bytes, set), 0);
    fn pthread_getaffinity_np(thread: usize, bytes: usize, set: *mut c_void) -> c_int = with |real| of_program!(real(thread, bytes, set), processors::fill(bytes, set));
    fn pthread_setaffinity_np(thread: usize, bytes: usize, set: *const c_void) -> c_int = with |real| of_program!(real(thread, bytes, set), 0);

    fn dlopen(file: *const c_char, how: c_int) -> *mut c_void = with |real| of_program!(real(file, how), libraries::open(real, file, how));
    fn dlerror() -> *mut c_char = with |real| of_program!(real(), libraries::error(real));
    // Other nodes have the library, too, and threads of theirs may be in it.
    fn dlclose(library: *mut c_void) -> c_int = with |real| of_program_if!(start::nodes() > 1, real(library), 0);

    fn setvbuf(stream: *mut libc::FILE, buffer: *mut c_char, mode: c_int, bytes: usize) -> c_int = with |real| {
        let own = if relaxed::refuses_buffer(buffer) { std::ptr::null_mut() } else { buffer };
        // SAFETY: as the program calls it; the C library makes a buffer where none is given.
        unsafe { real(stream, own, mode, bytes) }
    };
    fn setbuffer(stream: *mut libc::FILE, buffer: *mut c_char, bytes: usize) -> () = with |real| {
        // SAFETY: as the program calls it; the C library has made a buffer, or makes one.
        unsafe { if !relaxed::refuses_buffer(buffer) { real(stream, buffer, bytes) } }
    };
    fn setbuf(stream: *mut libc::FILE, buffer: *mut c_char) -> () = with |real| {
        // SAFETY: the same.
        unsafe { if !relaxed::refuses_buffer(buffer) { real(stream, buffer) } }
    };
    fn fclose(stream: *mut libc::FILE) -> c_int = with |real| of_program!(real(stream), streams::close(real, stream));

    // State in variables of the C library, which are those of node 0.
    fn rand() -> c_int = with |real| of_program!(real(), start::at_first_node(real as *mut c_void, [0; 6]) as c_int);
    fn srand(seed: c_uint) -> () = with |real| of_program!(real(seed), { start::at_first_node(real as *mut c_void, [seed as usize, 0, 0, 0, 0, 0]); });
    fn random() -> c_long = with |real| of_program!(real(), start::at_first_node(real as *mut c_void, [0; 6]) as c_long);
    fn srandom(seed: c_uint) -> () = with |real| of_program!(real(seed), { start::at_first_node(real as *mut c_void, [seed as usize, 0, 0, 0, 0, 0]); });
    fn lrand48() -> c_long = with |real| of_program!(real(), start::at_first_node(real as *mut c_void, [0; 6]) as c_long);
    fn mrand48() -> c_long = with |real| of_program!(real(), start::at_first_node(real as *mut c_void, [0; 6]) as c_long);
    fn srand48(seed: c_long) -> () = with |real| of_program!(real(seed), { start::at_first_node(real as *mut c_void, [seed as usize, 0, 0, 0, 0, 0]); });
    fn drand48() -> f64 = with |real| of_program!(real(), f64::from_bits(start::at_first_node(state::drand48_bits as *mut c_void, [0; 6]) as u64));
    fn strtok(text: *mut c_char, delimiters: *const c_char) -> *mut c_char = with |real| of_program!(real(text, delimiters), start::at_first_node(real as *mut c_void, [text as usize, delimiters as usize, 0, 0, 0, 0]) as *mut c_char);

    // State that every node has: the environment, the locale, and the time zone.
    fn setenv(name: *const c_char, value: *const c_char, overwrites: c_int) -> c_int = with |real| of_program!(real(name, value, overwrites), state::change_environment(real as *mut c_void, [name as usize, value as usize, overwrites as usize]));
    fn unsetenv(name: *const c_char) -> c_int = with |real| of_program!(real(name), state::change_environment(real as *mut c_void, [name as usize, 0, 0]));
    fn putenv(text: *mut c_char) -> c_int = with |real| of_program!(real(text), state::change_environment(real as *mut c_void, [text as usize, 0, 0]));
    fn clearenv() -> c_int = with |real| of_program!(real(), state::change_environment(real as *mut c_void, [0; 3]));
    fn setlocale(category: c_int, name: *const c_char) -> *mut c_char = with |real| of_program!(real(category, name), state::set_locale(real, category, name));
    fn iconv_open(to: *const c_char, from: *const c_char) -> *mut c_void = with |real| of_program_if!(start::node() != 0, real(to, from), state::open_conversion(real, to, from));
    fn tzset() -> () = with |real| of_program!(real(), state::set_time_zone(real));

    // The user. The C library changes it for all threads of the process, including those of Trellis.
    fn setuid(user: c_uint) -> c_int = with |real| of_program!(real(user), runtime::unsupported("setuid", USER_WAY_OUT));
    fn setgid(group: c_uint) -> c_int = with |real| of_program!(real(group), runtime::unsupported("setgid", USER_WAY_OUT));
    fn seteuid(user: c_uint) -> c_int = with |real| of_program!(real(user), runtime::unsupported("seteuid", USER_WAY_OUT));
    fn setegid(group: c_uint) -> c_int = with |real| of_program!(real(group), runtime::unsupported("setegid", USER_WAY_OUT));
    fn setreuid(user: c_uint, effective: c_uint) -> c_int = with |real| of_program!(real(user, effective), runtime::unsupported("setreuid", USER_WAY_OUT));
    fn setregid(group: c_uint, effective: c_uint) -> c_int = with |real| of_program!(real(group, effective), runtime::unsupported("setregid", USER_WAY_OUT));
    fn setresuid(user: c_uint, effective: c_uint, saved: c_uint) -> c_int = with |real| of_program!(real(user, effective, saved), runtime::unsupported("setresuid", USER_WAY_OUT));
    fn setresgid(group: c_uint, effective: c_uint, saved: c_uint) -> c_int = with |real| of_program!(real(group, effective, saved), runtime::unsupported("setresgid", USER_WAY_OUT));
    fn setgroups(count: usize, groups: *const c_uint) -> c_int = with |real| of_program!(real(count, groups), runtime::unsupported("setgroups", USER_WAY_OUT));

    // Threads.
    fn pthread_create(thread: *mut usize, attributes: *const c_void, function: Function, argument: *mut c_void) -> c_int = with |real| {
        if early::is_loading() {
            // SAFETY: as the library calls it.
            return unsafe { threads::create_early(thread, attributes, function, argument) };
        }
        of_program!(real(thread, attributes, function, argument), threads::create(thread, attributes, function, argument))
    };
    fn pthread_join(thread: usize, to: *mut usize) -> c_int = with |real| of_program!(real(thread, to), threads::join(thread, to));
    fn pthread_tryjoin_np(thread: usize, to: *mut usize) -> c_int = with |real| of_program!(real(thread, to), threads::try_join(thread, to));
    fn pthread_timedjoin_np(thread: usize, to: *mut usize, until: *const timespec) -> c_int = with |real| of_program!(real(thread, to, until), threads::join_until(thread, to, libc::CLOCK_REALTIME, until));
    fn pthread_clockjoin_np(thread: usize, to: *mut usize, clock: clockid_t, until: *const timespec) -> c_int = with |real| of_program!(real(thread, to, clock, until), threads::join_until(thread, to, clock, until));
    fn pthread_kill(thread: usize, signal: c_int) -> c_int = with |real| of_program!(real(thread, signal), threads::kill(thread, signal));
    fn pthread_detach(thread: usize) -> c_int = with |real| of_program!(real(thread), threads::detach(thread));
    fn pthread_cancel(thread: usize) -> c_int = with |real| of_program!(real(thread), cancellation::cancel(thread));
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int = with |real| of_program!(real(kind, before), cancellation::change_type(kind, before));
    fn thrd_create(thread: *mut usize, function: C11Function, argument: *mut c_void) -> c_int = with |real| of_program!(real(thread, function, argument), threads::create_c11(thread, function, argument));
    fn thrd_join(thread: usize, to: *mut c_int) -> c_int = with |real| of_program!(real(thread, to), threads::join_c11(thread, to));
    fn thrd_detach(thread: usize) -> c_int = with |real| of_program!(real(thread), threads::detach_c11(thread));

    // Locks.
    fn pthread_mutex_init(mutex: *mut c_void, attributes: *const c_void) -> c_int = with |real| {
        // SAFETY: as the program calls it.
        unsafe { mutexes::init_mutex(mutex, || real(mutex, attributes)) }
    };
    fn pthread_mutex_consistent(mutex: *mut c_void) -> c_int = with |real| of_program!(real(mutex), mutexes::make_consistent(mutex));
    fn pthread_mutex_consistent_np(mutex: *mut c_void) -> c_int = with |real| of_program!(real(mutex), mutexes::make_consistent(mutex));
    fn pthread_rwlock_init(lock: *mut c_void, attributes: *const c_void) -> c_int = with |real| mutexes::init(lock, || {
        // SAFETY: as the program calls it.
        unsafe { real(lock, attributes) }
    });
    fn mtx_init(mutex: *mut c_void, kind: c_int) -> c_int = with |real| mutexes::init(mutex, || {
        // SAFETY: as the program calls it.
        unsafe { real(mutex, kind) }
    });
    fn pthread_mutex_lock(mutex: *mut c_void) -> c_int = with |real| of_program!(real(mutex), mutexes::lock(mutex, FOREVER));
    fn pthread_mutex_trylock(mutex: *mut c_void) -> c_int = with |real| of_program!(real(mutex), mutexes::lock(mutex, NOW));
    fn pthread_mutex_timedlock(mutex: *mut c_void, until: *const timespec) -> c_int = with |real| of_program!(real(mutex, until), mutexes::lock_until(mutex, libc::CLOCK_REALTIME, until));
    fn pthread_mutex_clocklock(mutex: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int = with |real| of_program!(real(mutex, clock, until), mutexes::lock_until(mutex, clock, until));
    fn pthread_mutex_unlock(mutex: *mut c_void) -> c_int = with |real| of_program!(real(mutex), mutexes::unlock(mutex));
    fn pthread_spin_lock(lock: *mut c_void) -> c_int = with |real| of_program!(real(lock), mutexes::spin_lock(lock, FOREVER));
    fn pthread_spin_trylock(lock: *mut c_void) -> c_int = with |real| of_program!(real(lock), mutexes::spin_lock(lock, NOW));
    fn pthread_spin_unlock(lock: *mut c_void) -> c_int = with |real| of_program!(real(lock), mutexes::spin_unlock(lock));
    fn pthread_rwlock_rdlock(lock: *mut c_void) -> c_int = with |real| of_program!(real(lock), mutexes::rwlock(lock, false, FOREVER));
    fn pthread_rwlock_tryrdlock(lock: *mut c_void) -> c_int = with |real| of_program!(real(lock), mutexes::rwlock(lock, false, NOW));
    fn pthread_rwlock_timedrdlock(lock: *mut c_void, until: *const timespec) -> c_int = with |real| of_program!(real(lock, until), mutexes::rwlock_until(lock, false, libc::CLOCK_REALTIME, until));
    fn pthread_rwlock_clockrdlock(lock: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int = with |real| of_program!(real(lock, clock, until), mutexes::rwlock_until(lock, false, clock, until));
    fn pthread_rwlock_wrlock(lock: *mut c_void) -> c_int = with |real| of_program!(real(lock), mutexes::rwlock(lock, true, FOREVER));
    fn pthread_rwlock_trywrlock(lock: *mut c_void) -> c_int = with |real| of_program!(real(lock), mutexes::rwlock(lock, true, NOW));
    fn pthread_rwlock_timedwrlock(lock: *mut c_void, until: *const timespec) -> c_int = with |real| of_program!(real(lock, until), mutexes::rwlock_until(lock, true, libc::CLOCK_REALTIME, until));
    fn pthread_rwlock_clockwrlock(lock: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int = with |real| of_program!(real(lock, clock, until), mutexes::rwlock_until(lock, true, clock, until));
    fn pthread_rwlock_unlock(lock: *mut c_void) -> c_int = with |real| of_program!(real(lock), mutexes::rwlock_unlock(lock));
    fn mtx_lock(mutex: *mut c_void) -> c_int = with |real| of_program!(real(mutex), c11(mutexes::lock(mutex, FOREVER)));
    fn mtx_trylock(mutex: *mut c_void) -> c_int = with |real| of_program!(real(mutex), c11(mutexes::lock(mutex, NOW)));
    fn mtx_timedlock(mutex: *mut c_void, until: *const timespec) -> c_int = with |real| of_program!(real(mutex, until), c11(mutexes::lock_until(mutex, libc::CLOCK_REALTIME, until)));
    fn mtx_unlock(mutex: *mut c_void) -> c_int = with |real| of_program!(real(mutex), c11(mutexes::unlock(mutex)));

    // Condition variables, barriers, semaphores.
    fn pthread_cond_wait(condition: *mut c_void, mutex: *mut c_void) -> c_int = with |real| of_program!(real(condition, mutex), conditions::wait(condition, mutex, FOREVER));
    fn pthread_cond_timedwait(condition: *mut c_void, mutex: *mut c_void, until: *const timespec) -> c_int = with |real| of_program!(real(condition, mutex, until), conditions::wait_until(condition, mutex, until));
    fn pthread_cond_clockwait(condition: *mut c_void, mutex: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int = with |real| of_program!(real(condition, mutex, clock, until), conditions::wait_until_of(condition, mutex, clock, until));
    fn pthread_cond_signal(condition: *mut c_void) -> c_int = with |real| of_program!(real(condition), conditions::notify(condition, false));
    fn pthread_cond_broadcast(condition: *mut c_void) -> c_int = with |real| of_program!(real(condition), conditions::notify(condition, true));
    fn cnd_wait(condition: *mut c_void, mutex: *mut c_void) -> c_int = with |real| of_program!(real(condition, mutex), c11(conditions::wait(condition, mutex, FOREVER)));
    fn cnd_timedwait(condition: *mut c_void, mutex: *mut c_void, until: *const timespec) -> c_int = with |real| of_program!(real(condition, mutex, until), c11(conditions::wait_until_of(condition, mutex, libc::CLOCK_REALTIME, until)));
    fn cnd_signal(condition: *mut c_void) -> c_int = with |real| of_program!(real(condition), conditions::notify(condition, false));
    fn cnd_broadcast(condition: *mut c_void) -> c_int = with |real| of_program!(real(condition), conditions::notify(condition, true));
    fn pthread_barrier_wait(barrier: *mut c_void) -> c_int = with |real| of_program!(real(barrier), barriers::wait(barrier));
    fn sem_init(semaphore: *mut c_void, shared: c_int, value: c_uint) -> c_int = with |real| {
        // SAFETY: as the program calls it.
        let done = unsafe { real(semaphore, shared, value) };
        if done == 0 && early::is_loading() {
            early::make_semaphore(semaphore as usize, value as usize);
        } else if done == 0 && crate::context::is_of_program() {
            runtime::semaphore_set(semaphore as usize, value.into());
        }
        done
    };
    fn sem_wait(semaphore: *mut c_void) -> c_int = with |real| of_program_if!(system_calls::is_shared(semaphore as usize), real(semaphore), semaphores::wait(semaphore));
    fn sem_trywait(semaphore: *mut c_void) -> c_int = with |real| of_program_if!(system_calls::is_shared(semaphore as usize), real(semaphore), semaphores::try_wait(semaphore));
    fn sem_timedwait(semaphore: *mut c_void, until: *const timespec) -> c_int = with |real| of_program_if!(system_calls::is_shared(semaphore as usize), real(semaphore, until), semaphores::wait_until(semaphore, libc::CLOCK_REALTIME, until));
    fn sem_clockwait(semaphore: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int = with |real| of_program_if!(system_calls::is_shared(semaphore as usize), real(semaphore, clock, until), semaphores::wait_until(semaphore, clock, until));
    fn sem_post(semaphore: *mut c_void) -> c_int = with |real| of_program_if!(system_calls::is_shared(semaphore as usize), real(semaphore), semaphores::post(semaphore));
    fn sem_getvalue(semaphore: *mut c_void, to: *mut c_int) -> c_int = with |real| of_program_if!(system_calls::is_shared(semaphore as usize), real(semaphore, to), semaphores::value(semaphore, to));

    // One-time initialisation.
    fn __cxa_guard_acquire(guard: *mut c_void) -> c_int = with |real| of_program!(real(guard), once::guard_acquire(guard));
    fn __cxa_guard_release(guard: *mut c_void) -> () = with |real| of_program!(real(guard), once::guard_release(guard));
    fn __cxa_guard_abort(guard: *mut c_void) -> () = with |real| of_program!(real(guard), once::guard_abort(guard));

    // Thread-specific data.
    fn pthread_key_create(key: *mut c_uint, destructor: Destructor) -> c_int = with |real| {
        if early::is_loading() {
            // SAFETY: as the program calls it.
            return unsafe { keys::create_early(key, destructor) };
        }
        of_program!(real(key, destructor), keys::create(key, destructor))
    };
    fn pthread_key_delete(key: c_uint) -> c_int = with |real| of_program!(real(key), keys::delete(key));
    fn pthread_getspecific(key: c_uint) -> *mut c_void = with |real| {
        if early::is_loading() {
            return keys::get_early(key);
        }
        of_program!(real(key), keys::get(key))
    };
    fn pthread_setspecific(key: c_uint, value: *const c_void) -> c_int = with |real| {
        if early::is_loading() {
            return keys::set_early(key, value);
        }
        of_program!(real(key, value), keys::set(key, value))
    };
    fn tss_create(key: *mut c_uint, destructor: Destructor) -> c_int = with |real| of_program!(real(key, destructor), c11(keys::create(key, destructor)));
    fn tss_delete(key: c_uint) -> () = with |real| of_program!(real(key), { keys::delete(key); });
    fn tss_get(key: c_uint) -> *mut c_void = with |real| of_program!(real(key), keys::get(key));
    fn tss_set(key: c_uint, value: *const c_void) -> c_int = with |real| of_program!(real(key, value), c11(keys::set(key, value)));
}

const USER_WAY_OUT: &str = "start `trellis threads` as the user that the program is to be";

/// The answer of a function of C11 for an error number of pthreads.
fn c11(error: c_int) -> c_int {
    const SUCCESS: c_int = 0;
    const BUSY: c_int = 1;
    const ERROR: c_int = 2;
    const TIMED_OUT: c_int = 4;
    match error {
        0 => SUCCESS,
        libc::EBUSY => BUSY,
        libc::ETIMEDOUT => TIMED_OUT,
        _ => ERROR,
    }
}
