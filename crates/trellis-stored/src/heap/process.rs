//! The one heap that C programs of this process use through `__trellis_malloc` and its family.
//!
//! Promises: before a heap is installed, and in a forked child that does not have the parent's memory, every function
//! reports this instead of allocating, and the caller uses the C library's heap. A fork finds the heap consistent. It
//! must never replace the installed heap, because the program has pointers into it.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Heap, Held};

static HEAP: OnceLock<Heap> = OnceLock::new();
/// Whether this process is a child, and the memory stayed with the parent.
static IS_LEFT: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The heap's locks, held while this thread forks.
    static HELD: RefCell<Option<Held<'static>>> = const { RefCell::new(None) };
}

/// The place where the program allocates.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// There is no heap yet: the program uses the C library's memory.
    Nowhere,
    /// The program allocates and frees in this heap.
    Here(&'static Heap),
    /// This process is a child of the one that has the heap. It allocates elsewhere, and leaves the heap's blocks
    /// alone.
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

/// Installs a heap as that of the process, permanently.
///
/// # Errors
///
/// The heap, if there is one already.
pub fn install(heap: Heap) -> Result<&'static Heap, Heap> {
    HEAP.set(heap)?;
    // SAFETY: the three functions may be called at any fork from now on; they access only statics.
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
