//! Which thread of this node's program holds what, so that a thread that would wait for itself hears it at once.
//!
//! The pure state knows nodes and calls; threads are a matter of this process. A lock may be given back by another thread than
//! the one that took it, so what is noted here goes with the lock and not with the thread. Must never refuse what could come
//! about: only who holds something itself is refused.

use super::{Node, Timeout, WaitError, lock};

/// What a thread holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::runtime) enum Holding {
    Lock,
    Read,
    Write,
    Once,
}

/// What threads of a node hold: how, which number, and which thread.
pub(in crate::runtime) type Held = Vec<(Holding, u64, u64)>;

impl Node {
    /// Refuses what this thread would wait for in vain, because it is itself in the way. Who waits for a time of its own
    /// choice hears after that time that it was in vain.
    pub(super) fn refuse_own(&self, wanted: Holding, id: u64, timeout: Timeout) -> Result<(), WaitError> {
        if matches!(timeout, Timeout::For(_)) {
            return Ok(());
        }
        let me = trellis_cache::this_thread();
        let in_the_way = |how: Holding| match wanted {
            Holding::Lock => how == Holding::Lock,
            Holding::Read => how == Holding::Write,
            Holding::Write => matches!(how, Holding::Read | Holding::Write),
            Holding::Once => how == Holding::Once,
        };
        let is_mine = |(how, other, thread): &&(Holding, u64, _)| *other == id && *thread == me && in_the_way(*how);
        let Some(how) = lock(&self.held).iter().find(is_mine).map(|(how, ..)| *how) else { return Ok(()) };
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
        lock(&self.held).push((how, id, trellis_cache::this_thread()));
    }

    /// Given back by this thread, or by it for another one.
    pub(super) fn note_given_back(&self, how: Holding, id: u64) {
        let me = trellis_cache::this_thread();
        let mut held = lock(&self.held);
        let is_it = |one: &(Holding, u64, u64)| one.0 == how && one.1 == id;
        let own = held.iter().rposition(|one| is_it(one) && one.2 == me);
        if let Some(place) = own.or_else(|| held.iter().rposition(is_it)) {
            held.swap_remove(place);
        }
    }
}
