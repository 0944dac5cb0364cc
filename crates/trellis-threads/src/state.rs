//! What the program has once and each node's process has for itself: the actions of signals, the environment, the locale
//! and the time zone.
//!
//! The table in the region (`control`) has what the program set last. A node looks there when another one asks it to, and
//! before it begins a thread of the program.
//!
//! Promises: when the call that changes something returns, the change counts at every node where threads of the program
//! run, and later at those where they begin. Of two changes at the same time, all nodes keep the same one.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::actions::KernelAction;
use crate::context::aside;
use crate::control::{self, control};
use crate::table::reals;
use crate::time::FOREVER;
use crate::{actions, runtime, start};

/// The number of categories of the locale (locale.h of glibc), with the one for all of them.
const CATEGORIES: usize = 13;
/// The maximum size of the name of a locale.
const NAME_BYTES: usize = 256;

/// The action of a signal that the program set, and how often it did.
#[repr(C)]
pub(crate) struct Action {
    version: AtomicUsize,
    words: [AtomicUsize; 3],
}

/// The name of the locale that the program set last for each category, in the order in which it did.
#[repr(C)]
pub(crate) struct Locale {
    version: AtomicUsize,
    names: [Name; CATEGORIES],
}

#[repr(C)]
struct Name {
    /// The version with which it was set; 0 if it was not.
    set: AtomicUsize,
    words: [AtomicUsize; NAME_BYTES / size_of::<usize>()],
}

/// The versions that this node follows.
static ACTIONS: [AtomicUsize; 65] = [const { AtomicUsize::new(0) }; 65];
static LOCALE: AtomicUsize = AtomicUsize::new(0);
static TIME_ZONE: AtomicUsize = AtomicUsize::new(0);

/// Lets all other nodes follow. As long as no thread but the main one was made, they will when one begins there.
fn tell_others() {
    let control = control();
    if start::nodes() == 1 || control.made.load(Ordering::Acquire) == 1 {
        return;
    }
    let lock = (&raw const control.to_follow) as usize;
    runtime::once_lock(lock);
    let others = (0..start::nodes()).filter(|node| *node != start::node());
    for node in others.clone() {
        control.to_follow[node].store(1, Ordering::Release);
        runtime::order(node);
    }
    for _ in others {
        runtime::semaphore_wait((&raw const control.followed) as usize, FOREVER);
    }
    runtime::once_unlock(lock);
}

/// Follows if another node waits for it. Called by the thread that does what other nodes ask.
pub(crate) fn follow_others() {
    if control().to_follow[start::node()].swap(0, Ordering::AcqRel) != 0 {
        follow();
        runtime::semaphore_signal((&raw const control().followed) as usize);
    }
}

/// This node does what the program set. Called by a private thread.
pub(crate) fn follow() {
    for signal in 1..ACTIONS.len() {
        follow_action(signal);
    }
    start::follow_environment();
    follow_locale();
    let zone = control().time_zone.load(Ordering::Acquire);
    if TIME_ZONE.swap(zone, Ordering::Relaxed) != zone {
        // SAFETY: has no conditions.
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn()>(reals::tzset.address())() };
    }
}

/// The program has set the action of a signal at this node.
pub(crate) fn action_was_set(signal: usize, action: &KernelAction) {
    control::alone(|control| {
        let place = &control.actions[signal];
        place.words.iter().zip(action.words()).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        place.version.fetch_add(1, Ordering::Release);
    });
    follow_action(signal);
    tell_others();
}

/// Sets the action that the program set last. Two threads of a node may come here at once: each looks again after it has
/// set an action that was not the one of this node.
fn follow_action(signal: usize) {
    let place = &control().actions[signal];
    while ACTIONS[signal].load(Ordering::SeqCst) != place.version.load(Ordering::Acquire) {
        let (version, words) = control::alone(|_| {
            let words = [0, 1, 2].map(|index: usize| place.words[index].load(Ordering::Relaxed));
            (place.version.load(Ordering::Relaxed), words)
        });
        if ACTIONS[signal].swap(version, Ordering::SeqCst) != version {
            actions::set_action_of_program(signal, KernelAction::of_words(words), 0);
        }
    }
}

// The environment, which only node 0 changes.

/// Calls a function of the C library that changes the environment.
///
/// # Safety
/// The function takes these arguments, or fewer.
pub(crate) unsafe fn change_environment(function: *mut c_void, arguments: [usize; 3]) -> c_int {
    // SAFETY: the caller's promise.
    let answer = unsafe { start::in_thread_of_first_node(function, arguments) };
    start::follow_environment();
    tell_others();
    answer as c_int
}

// The locale and the time zone.

type SetLocale = unsafe extern "C" fn(c_int, *const c_char) -> *mut c_char;

/// # Safety
/// As setlocale(3), which `real` is.
pub(crate) unsafe fn set_locale(real: SetLocale, category: c_int, name: *const c_char) -> *mut c_char {
    // SAFETY: the caller's promise.
    let answer = unsafe { real(category, name) };
    if answer.is_null() || name.is_null() || start::nodes() == 1 {
        return answer;
    }
    // SAFETY: the answer is the name of the locale that counts now.
    let text = unsafe { CStr::from_ptr(answer) }.to_bytes();
    if text.len() >= NAME_BYTES {
        runtime::unsupported("a locale with a name of 256 bytes or more", "set the same one for all categories");
    }
    let mut bytes = [0; NAME_BYTES];
    bytes[..text.len()].copy_from_slice(text);
    let version = control::alone(|control| {
        let version = control.locale.version.load(Ordering::Relaxed) + 1;
        let place = &control.locale.names[category as usize];
        for (word, bytes) in place.words.iter().zip(bytes.chunks_exact(size_of::<usize>())) {
            word.store(usize::from_ne_bytes(bytes.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
        place.set.store(version, Ordering::Relaxed);
        control.locale.version.store(version, Ordering::Release);
        version
    });
    if LOCALE.swap(version, Ordering::SeqCst) + 1 != version {
        // Another node set one at the same time, so the names are set once more, in their order.
        follow_names(0);
    }
    tell_others();
    answer
}

fn follow_locale() {
    loop {
        let followed = LOCALE.load(Ordering::SeqCst);
        if followed == control().locale.version.load(Ordering::Acquire) {
            return;
        }
        let version = follow_names(followed);
        LOCALE.store(version, Ordering::SeqCst);
    }
}

/// Sets the names that were set after this version. Returns the last version.
fn follow_names(after: usize) -> usize {
    let (version, mut names) = control::alone(|control| {
        let named = |(category, name): (usize, &Name)| {
            let set = name.set.load(Ordering::Relaxed);
            let words = name.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
            (set > after).then(|| (set, category as c_int, words.collect::<Vec<u8>>()))
        };
        let all: Vec<_> = control.locale.names.iter().enumerate().filter_map(named).collect();
        (control.locale.version.load(Ordering::Relaxed), all)
    });
    names.sort_unstable();
    for (_, category, name) in names {
        // SAFETY: the C library's function, which has this type, and a name that ends with a zero byte.
        unsafe {
            transmute::<*mut c_void, SetLocale>(reals::setlocale.address())(category, name.as_ptr().cast());
        }
    }
    version
}

/// iconv_open(3) at another node than node 0: the C library loads a part of itself, which no other node has at that address.
///
/// # Safety
/// As iconv_open(3), which `real` is.
pub(crate) unsafe fn open_conversion(
    real: unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void,
    to: *const c_char,
    from: *const c_char,
) -> *mut c_void {
    let (conversion, error) = aside(|| {
        // SAFETY: the caller's promise.
        let conversion = unsafe { real(to, from) };
        (conversion, trellis_interpose::errno())
    });
    if conversion as isize == -1 {
        trellis_interpose::set_errno(error);
    }
    conversion
}

/// tzset(3) at every node.
///
/// # Safety
/// `real` is the C library's function.
pub(crate) unsafe fn set_time_zone(real: unsafe extern "C" fn()) {
    // SAFETY: the caller's promise.
    unsafe { real() };
    let zone = control().time_zone.fetch_add(1, Ordering::AcqRel) + 1;
    TIME_ZONE.store(zone, Ordering::Relaxed);
    tell_others();
}

/// drand48(3), as the bits of the number; called at node 0.
pub(crate) extern "C" fn drand48_bits() -> isize {
    // SAFETY: has no conditions.
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn() -> f64>(reals::drand48.address())().to_bits() as isize }
}
