//! Which thread of this node's program holds which object, so that a thread that would wait for itself gets an error at
//! once.
//!
//! The pure state machine knows nodes and calls, not threads. Another thread than the one that took a lock may give it
//! back, so an entry here belongs to the lock and not to the thread. It must never refuse a call that could succeed: it
//! refuses only a thread that holds the object itself.

use super::{Node, Timeout, WaitError, lock};

/// How a thread holds an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::runtime) enum Holding {
    Lock,
    Read,
    Write,
    Once,
}

/// What threads of a node hold: how, the number of the object, and the thread.
pub(in crate::runtime) type Held = Vec<(Holding, u64, u64)>;

impl Node {
    /// Refuses a wait that this thread itself would prevent from ending. A call with its own timeout is not refused: it
    /// ends with the timeout.
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

    /// Notes that this thread gave an object back that it, or else another thread, held.
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
