//! The contract of a store.

use std::time::{Duration, Instant};

use crate::capabilities::Capabilities;
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};

/// Keeps bytes under keys. Any number of threads may call every method at once. A caller must hold no lock that another
/// call could need.
pub trait Store: Send + Sync {
    /// The store's name in messages: kind and address, never credentials.
    fn name(&self) -> &str;

    /// What the store can do.
    fn capabilities(&self) -> Capabilities;

    /// The values of some keys, in the order of the keys, all read after the call began. Takes one round trip, or as many
    /// as the store's limits require.
    ///
    /// # Errors
    ///
    /// As [`StoreError`] says.
    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// Carries out all steps in their order, or none; see [`crate::Atomic`] for the scope of "all".
    ///
    /// # Errors
    ///
    /// As [`StoreError`] says. After any error but [`StoreError::OutcomeUnknown`] nothing was changed.
    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError>;

    /// Like [`Store::apply`], but waits until no step refuses the call. The call is refused if that did not happen before
    /// the deadline, and fenced at once if the guard does not hold.
    ///
    /// Stores that can wait override this method, and count one round trip. The default implementation polls at intervals
    /// of 1 to 50 ms.
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

    /// The numbers of the keys of one kind in a region, ascending, starting at `from`, at most `count`. For tools and
    /// cleaning up, not for the path of a fault. (Named keys have no numbers; see [`Store::names`].)
    ///
    /// # Errors
    ///
    /// As [`StoreError`] says.
    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError>;

    /// The names of the named keys of a region that follow `after`, ascending, at most `count`.
    ///
    /// # Errors
    ///
    /// As [`StoreError`] says.
    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError>;
}

/// Waits by polling.
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
