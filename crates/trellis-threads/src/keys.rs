//! Thread-specific data: keys are the same on every node, and values lie in the room of their thread.
//!
//! Promises: destructors run in the thread that ends, on its own stack, as often as glibc runs them. A value of a key that
//! was deleted is never seen by a key that has its number later.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use crate::context::{self, own_slot, slot};
use crate::control::{self, KEYS, control, record};
use crate::table::reals;
use crate::{early, start};

type Destructor = extern "C-unwind" fn(*mut c_void);

/// The maximum number of rounds of destructors, which may set new values, as in glibc (PTHREAD_DESTRUCTOR_ITERATIONS).
const ROUNDS: usize = 4;

/// The key of the C library whose destructor runs ours at the end of a thread.
static AT_END: OnceLock<c_uint> = OnceLock::new();

/// # Safety
/// As pthread_key_create(3p).
pub(crate) unsafe fn create(key: *mut c_uint, destructor: Option<Destructor>) -> c_int {
    let found = context::aside(|| {
        control::alone(|control| {
            let free = control.keys.iter().position(|key| key.generation.load(Ordering::Relaxed).is_multiple_of(2))?;
            control.keys[free].destructor.store(destructor.map_or(0, |function| function as usize), Ordering::Relaxed);
            control.keys[free].generation.fetch_add(1, Ordering::Release);
            Some(free)
        })
    });
    let Some(found) = found else { return libc::EAGAIN };
    // SAFETY: the caller's place for the answer.
    unsafe { *key = found as c_uint };
    0
}

/// # Safety
/// As pthread_key_delete(3p).
pub(crate) unsafe fn delete(key: c_uint) -> c_int {
    context::aside(|| {
        control::alone(|control| match control.keys.get(key as usize) {
            Some(key) if !key.generation.load(Ordering::Relaxed).is_multiple_of(2) => {
                key.generation.fetch_add(1, Ordering::Release);
                0
            }
            _ => libc::EINVAL,
        })
    })
}

/// # Safety
/// As pthread_getspecific(3p).
pub(crate) unsafe fn get(key: c_uint) -> *mut c_void {
    let slot = own_slot();
    let Some(value) = record(slot).values.get(key as usize) else { return std::ptr::null_mut() };
    if value.generation.load(Ordering::Relaxed) != control().keys[key as usize].generation.load(Ordering::Relaxed) {
        return std::ptr::null_mut();
    }
    value.value.load(Ordering::Relaxed) as *mut c_void
}

/// # Safety
/// As pthread_setspecific(3p).
pub(crate) unsafe fn set(key: c_uint, value: *const c_void) -> c_int {
    let slot = own_slot();
    let record = record(slot);
    let Some(place) = record.values.get(key as usize) else { return libc::EINVAL };
    let generation = control().keys[key as usize].generation.load(Ordering::Relaxed);
    if generation.is_multiple_of(2) {
        return libc::EINVAL;
    }
    place.generation.store(generation, Ordering::Relaxed);
    place.value.store(value as usize, Ordering::Relaxed);
    record.keys_used.fetch_max(key as usize + 1, Ordering::Relaxed);
    0
}

/// A library makes a key in its constructor.
///
/// # Safety
/// As pthread_key_create(3p).
pub(crate) unsafe fn create_early(key: *mut c_uint, destructor: Option<Destructor>) -> c_int {
    match early::make_key(destructor.map_or(0, |function| function as usize)) {
        Some(number) => {
            // SAFETY: the caller's place for the answer.
            unsafe { *key = number as c_uint };
            0
        }
        None => libc::EAGAIN,
    }
}

/// A library gives a key a value in its constructor.
pub(crate) fn set_early(key: c_uint, value: *const c_void) -> c_int {
    if early::set_value(key as usize, value as usize) { 0 } else { libc::EINVAL }
}

/// The value of a key, in the constructor of a library.
pub(crate) fn get_early(key: c_uint) -> *mut c_void {
    early::value(key as usize) as *mut c_void
}

/// Gives the main thread the values that libraries set in their constructors, which this thread would have run.
pub(crate) fn begin_main() {
    for (key, value) in early::values() {
        // SAFETY: a key that exists; it is the caller's value.
        unsafe { set(key as c_uint, value as *const c_void) };
    }
}

/// Takes over the keys that the program's libraries have made.
pub(crate) fn begin() {
    for (key, destructor) in control().keys.iter().zip(early::keys()) {
        key.destructor.store(destructor, Ordering::Relaxed);
        key.generation.store(1, Ordering::Release);
    }
}

/// The calling thread of the program has just begun: its values will be destroyed at its end.
pub(crate) fn begin_thread() {
    let key = *AT_END.get_or_init(|| {
        let mut key = 0;
        let address = reals::pthread_key_create.address();
        // SAFETY: the C library's function, which has this type, and room for the answer.
        unsafe {
            type Create = unsafe extern "C" fn(*mut c_uint, Option<Destructor>) -> c_int;
            std::mem::transmute::<*mut c_void, Create>(address)(&mut key, Some(destroy));
        }
        key
    });
    destroy_in_round(key, 1);
}

/// Has [`destroy`] called in the next round of the C library, with the number of the round.
fn destroy_in_round(key: c_uint, round: usize) {
    let address = reals::pthread_setspecific.address();
    // SAFETY: the C library's function, which has this type; any value but null has the destructor called.
    unsafe {
        type Set = unsafe extern "C" fn(c_uint, *const c_void) -> c_int;
        std::mem::transmute::<*mut c_void, Set>(address)(key, std::ptr::without_provenance(round));
    }
}

/// Runs the destructors of the thread that ends, in the first round of the C library. In its last one, the thread gives
/// its private memory back.
extern "C-unwind" fn destroy(round: *mut c_void) {
    let Some(slot) = slot() else { return };
    match (round as usize, AT_END.get()) {
        (1, _) => destroy_values(slot),
        (ROUNDS, _) | (_, None) => {
            // Otherwise a handler would run on memory that no longer belongs to the thread.
            start::block_signals();
            return context::give_back();
        }
        _ => {}
    }
    if let Some(key) = AT_END.get() {
        destroy_in_round(*key, round as usize + 1);
    }
}

fn destroy_values(slot: usize) {
    let record = record(slot);
    for _ in 0..ROUNDS {
        let mut is_over = true;
        for number in 0..record.keys_used.load(Ordering::Relaxed).min(KEYS) {
            let (key, place) = (&control().keys[number], &record.values[number]);
            let generation = place.generation.load(Ordering::Relaxed);
            if generation != key.generation.load(Ordering::Relaxed) {
                continue;
            }
            let value = place.value.swap(0, Ordering::Relaxed);
            let destructor = key.destructor.load(Ordering::Relaxed);
            if value != 0 && destructor != 0 {
                is_over = false;
                // SAFETY: the function that the program gave when it made the key.
                let destructor = unsafe { std::mem::transmute::<usize, Destructor>(destructor) };
                destructor(value as *mut c_void);
            }
        }
        if is_over {
            break;
        }
    }
}

/// Forgets the values of the thread that had the slot before.
pub(crate) fn clear(slot: usize) {
    let record = record(slot);
    let used = record.keys_used.swap(0, Ordering::Relaxed).min(KEYS);
    for value in &record.values[..used] {
        value.generation.store(0, Ordering::Relaxed);
        value.value.store(0, Ordering::Relaxed);
    }
}
