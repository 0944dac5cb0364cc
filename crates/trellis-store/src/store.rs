//! The contract of a store.

use std::time::{Duration, Instant};

use crate::capabilities::Capabilities;
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};

/// Keeps bytes under keys. Every method may be called by many threads at once, and none is called while a lock is held
/// that another call could need.
pub trait Store: Send + Sync {
    /// How sentences call it: kind and address, never credentials.
    fn name(&self) -> &str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// The values of some keys, in the order of the keys, all read after the call began. One round trip, or as many as
    /// the limits of the store make of it.
    ///
    /// # Errors
    ///
    /// As [`StoreError`] says.
    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// Does all of it or nothing, in the order of the steps; see [`crate::Atomic`] for what "all" is here.
    ///
    /// # Errors
    ///
    /// As [`StoreError`] says. After any error but [`StoreError::OutcomeUnknown`] nothing was changed.
    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError>;

    /// Does the same as soon as no step refuses it; refused when that was not so at any time before the deadline.
    /// Fenced at once where the guard does not hold.
    ///
    /// Stores that can wait override this and count one round trip; without, the store is asked again and again, from 1
    /// to at most 50 ms apart.
    ///
    /// # Errors
    ///
    /// As [`Store::apply`].
    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        ask_again(self, operations, guard, deadline)
    }

    /// The numbers of the keys of one kind in a region, ascending, from `from` on, at most `count`. For tools and for
    /// cleaning up, not for the path of a fault. (Named keys have none: [`Store::names`].)
    ///
    /// # Errors
    ///
    /// As [`StoreError`] says.
    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError>;

    /// The names of the named keys of a region, ascending, after `after`, at most `count`.
    ///
    /// # Errors
    ///
    /// As [`StoreError`] says.
    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError>;
}

/// Waits by asking again and again.
pub(crate) fn ask_again<S: Store + ?Sized>(
    store: &S,
    operations: &[Operation],
    guard: Option<&Guard>,
    deadline: Instant,
) -> Result<Applied, StoreError> {
    let mut pause = Duration::from_millis(1);
    loop {
        let applied = store.apply(operations, guard)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if !matches!(applied, Applied::Refused(..)) || left.is_zero() {
            return Ok(applied);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
