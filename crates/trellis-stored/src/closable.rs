//! A store that a process can close for its pages at its end.
//!
//! Promises: after [`Closable::close`], no call through this store is under way, and no later call returns. A thread
//! that still runs while its process ends, and touches a page that is not in memory, stops there instead of reading
//! zeros. It must never be closed by a process that continues.

use std::sync::{Arc, PoisonError, RwLock};

use trellis_store::wrap::{Call, Wrapper};
use trellis_store::{Store, StoreError};

/// A store that can be closed; see the module.
pub(crate) struct Closable {
    store: Arc<dyn Store>,
    /// Locked for reading during a call, and for writing after the store is closed.
    passage: RwLock<()>,
}

impl Closable {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Closable> {
        Arc::new(Closable { store, passage: RwLock::new(()) })
    }

    /// Waits until no call is under way, and blocks all later ones.
    pub(crate) fn close(&self) {
        std::mem::forget(self.passage.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Wrapper for Closable {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn pass<T>(&self, _call: Call<'_>, on: impl FnOnce(&dyn Store) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let _passing = self.passage.read().unwrap_or_else(PoisonError::into_inner);
        on(&*self.store)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use trellis_store::Key;

    use super::*;

    #[test]
    fn who_comes_after_it_was_closed_stays() {
        let closable = Closable::new(trellis_store::open("embedded:").expect("it needs nothing"));
        assert_eq!(closable.get_many(&[Key::page(1, 0)]).expect("open"), [None]);
        closable.close();
        let (sender, receiver) = mpsc::channel();
        let through = Arc::clone(&closable);
        // This thread never ends; the test program does.
        std::thread::spawn(move || {
            sender.send("comes").expect("the test waits");
            let answer = through.get_many(&[Key::page(1, 0)]);
            sender.send("left").expect("the test waits");
            drop(answer);
        });
        assert_eq!(receiver.recv(), Ok("comes"));
        assert!(receiver.recv_timeout(std::time::Duration::from_millis(50)).is_err(), "nothing came back");
    }
}
