//! Critical regions, atomic regions, and the locks that programs call by themselves.
//!
//! Promises: a lock is an object of the cluster, whose name is the address of the program's variable. The variable of a
//! simple lock is not used. The variable of a nestable lock has the thread that holds it, and how often.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use super::this_thread;
use crate::context::own_slot;
use crate::runtime;
use crate::time::{FOREVER, NOW};

/// The names of the critical region without a name, of atomic regions, of reductions, and of the lists of dependences.
pub(super) static UNNAMED: u64 = 0;
pub(super) static ATOMIC: u64 = 1;
pub(super) static REDUCTION: u64 = 2;
pub(super) static DEPENDENCES: u64 = 3;

/// The kind of a pthreads mutex that checks nothing.
const NORMAL: i32 = 0;

pub(super) fn lock(name: *const c_void) {
    runtime::mutex_lock(name as usize, NORMAL, own_slot(), FOREVER);
    let locks = &this_thread().locks;
    locks.set(locks.get() + 1);
}

/// Locks if this is possible at once. Returns whether it was.
pub(super) fn try_lock(name: *const c_void) -> bool {
    let is_locked = runtime::mutex_lock(name as usize, NORMAL, own_slot(), NOW) == 0;
    let locks = &this_thread().locks;
    locks.set(locks.get() + u32::from(is_locked));
    is_locked
}

/// Unlocks a lock that this thread or another one has locked.
pub(super) fn unlock(name: *const c_void) {
    let locks = &this_thread().locks;
    locks.set(locks.get().saturating_sub(1));
    runtime::mutex_unlock(name as usize, NORMAL, own_slot());
}

/// A new lock, in memory that may have held another one.
pub(super) fn init(name: *const c_void) {
    runtime::lock_init(name as usize);
}

/// A name that is the same on all nodes, because this library is at one address on every node.
pub(super) fn name(of: &'static u64) -> *const c_void {
    std::ptr::from_ref(of).cast()
}

/// A nestable lock, which has at least eight bytes in every library.
#[repr(C)]
struct Nestable {
    /// The slot of the thread that holds it, plus one.
    owner: AtomicU32,
    count: AtomicU32,
}

/// # Safety
/// It is a nestable lock of the program.
unsafe fn nestable<'a>(lock: *mut c_void) -> &'a Nestable {
    // SAFETY: the caller's promise.
    unsafe { &*lock.cast::<Nestable>() }
}

/// # Safety
/// It is room for a nestable lock.
pub(super) unsafe fn init_nestable(lock: *mut c_void) {
    init(lock);
    // SAFETY: the caller's promise.
    let state = unsafe { nestable(lock) };
    state.owner.store(0, Ordering::Relaxed);
    state.count.store(0, Ordering::Release);
}

/// Locks. Returns how often this thread holds the lock now, or 0 if it only tries and the lock is not free.
///
/// # Safety
/// It is a nestable lock.
pub(super) unsafe fn lock_nestable(lock: *mut c_void, tries: bool) -> u32 {
    let me = own_slot() as u32 + 1;
    // SAFETY: the caller's promise.
    let state = unsafe { nestable(lock) };
    // Only this thread makes itself the owner.
    if state.owner.load(Ordering::Acquire) != me {
        if tries {
            if !try_lock(lock) {
                return 0;
            }
        } else {
            self::lock(lock);
        }
        state.owner.store(me, Ordering::Release);
    }
    state.count.fetch_add(1, Ordering::AcqRel) + 1
}

/// Unlocks once.
///
/// # Safety
/// It is a nestable lock that the calling thread has.
pub(super) unsafe fn unlock_nestable(lock: *mut c_void) {
    // SAFETY: the caller's promise.
    let state = unsafe { nestable(lock) };
    if state.count.fetch_sub(1, Ordering::AcqRel) == 1 {
        state.owner.store(0, Ordering::Release);
        unlock(lock);
    }
}
