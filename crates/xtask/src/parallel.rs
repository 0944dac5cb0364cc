//! The same work for many things, on all processors.
//!
//! Promises: things begin in their order, as many at a time as there are processors, and results have the order of the
//! things. After a failure nothing more begins, and the first error is returned.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;

use anyhow::Result;

/// Does the work for each of `all`.
pub(crate) fn on_all_processors<T: Sync, R: Send + Sync>(
    all: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results: Vec<OnceLock<R>> = all.iter().map(|_| OnceLock::new()).collect();
    let failure = Mutex::new(None);
    let failed = || failure.lock().unwrap_or_else(PoisonError::into_inner);
    let worker = || {
        while failed().is_none() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(at) else { return };
            match work(one) {
                // Every place is taken once.
                Ok(result) => drop(results[at].set(result)),
                Err(error) => drop(failed().get_or_insert(error)),
            }
        }
    };
    std::thread::scope(|scope| {
        (0..available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(worker)));
    });
    let failure = failed().take();
    failure.map_or_else(|| Ok(results.into_iter().filter_map(OnceLock::into_inner).collect()), Err)
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn everything_is_done_and_the_first_failure_is_returned() {
        let results = on_all_processors(&["a", "b", "c"], |one| Ok(one.to_uppercase())).unwrap();
        assert_eq!(results, ["A", "B", "C"]);
        let error = on_all_processors(&["a", "b"], |one| if *one == "a" { bail!("no {one}") } else { Ok(()) });
        assert_eq!(error.unwrap_err().to_string(), "no a");
    }
}
