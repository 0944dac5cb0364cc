//! Refuses a thread that would wait for itself, with a sentence.
//!
//! Promises: the table of what threads hold decides alone ([`Held`](trellis_cluster_protocol::sync::Held)). It must never
//! refuse a call with its own timeout: it ends with that.

use trellis_cluster_protocol::sync::Holding;

use super::{Node, Timeout, WaitError, lock};

impl Node {
    /// Refuses a wait that this thread itself would prevent from ending.
    pub(super) fn refuse_own(&self, wanted: Holding, id: u64, timeout: Timeout) -> Result<(), WaitError> {
        if matches!(timeout, Timeout::For(_)) {
            return Ok(());
        }
        let Some(how) = lock(&self.held).in_the_way(wanted, id, trellis_cache::this_thread()) else { return Ok(()) };
        let id = self.object(id);
        Err(WaitError::Misuse(match how {
            Holding::Lock => {
                format!("this thread holds lock {id} already, and would wait for itself; locks are not recursive")
            }
            Holding::Read => format!(
                "this thread reads under read-write lock {id}, and would wait for itself to write; give it back before"
            ),
            Holding::Write => {
                format!(
                    "this thread writes under read-write lock {id} already, and would wait for itself; give it back before"
                )
            }
            Holding::Once => format!("this thread does once {id}, and would wait for itself to have done it"),
        }))
    }

    pub(super) fn note_held(&self, how: Holding, id: u64) {
        lock(&self.held).took(how, id, trellis_cache::this_thread());
    }

    /// Notes that this thread gave an object back that it, or else another thread, held.
    pub(super) fn note_given_back(&self, how: Holding, id: u64) {
        lock(&self.held).gave_back(how, id, trellis_cache::this_thread());
    }
}
