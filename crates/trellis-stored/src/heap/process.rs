//! The one heap that C programs of this process use: what `__trellis_malloc` and its family call.
//!
//! Promises: before a heap is put here, and in a forked child whose memory is not the parent's, every function says so
//! instead of allocating, and the caller uses the C library's; a fork finds the heap in order. Must never change the heap
//! that was put here: pointers into it are everywhere.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Heap, Held};

static HEAP: OnceLock<Heap> = OnceLock::new();
/// This is a child, and the memory stayed with the parent.
static IS_LEFT: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The heap's locks, while this thread forks.
    static HELD: RefCell<Option<Held<'static>>> = const { RefCell::new(None) };
}

/// What there is for the program.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// No heap yet: memory is the C library's.
    Nowhere,
    /// Allocate and free here.
    Here(&'static Heap),
    /// This process is a child of the one that has the heap: allocate elsewhere, and let the heap's blocks be.
    AtParent(&'static Heap),
}

/// The heap of this process, if there is one.
pub fn place() -> Place {
    match HEAP.get() {
        None => Place::Nowhere,
        Some(heap) if IS_LEFT.load(Ordering::Relaxed) => Place::AtParent(heap),
        Some(heap) => Place::Here(heap),
    }
}

/// Makes a heap that of the process, for good.
///
/// # Errors
///
/// The heap, when there is one already.
pub fn install(heap: Heap) -> Result<&'static Heap, Heap> {
    HEAP.set(heap)?;
    // SAFETY: the three functions may be called at any fork from now on; they use nothing but statics.
    let status = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) };
    assert_eq!(status, 0, "there is memory for three more addresses");
    Ok(HEAP.get().expect("it was set above"))
}

extern "C" fn before_fork() {
    if let Place::Here(heap) = place() {
        let _ = HELD.try_with(|held| held.replace(Some(heap.hold())));
    }
}

extern "C" fn after_fork() {
    let _ = HELD.try_with(RefCell::take);
}

extern "C" fn after_fork_in_child() {
    after_fork();
    if let Place::Here(heap) = place()
        && !heap.memory().survives_fork()
    {
        IS_LEFT.store(true, Ordering::Relaxed);
    }
}
