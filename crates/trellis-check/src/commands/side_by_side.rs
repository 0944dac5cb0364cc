//! Runs work on all processors and delivers the results in order.
//!
//! Promises: results are taken in the order of the pieces, each as soon as those before it are taken. It must never
//! let one piece see another.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Runs every piece of work, as many at a time as there are processors; `take` gets each result.
pub(super) fn side_by_side<P: Sync, T: Send>(pieces: &[P], work: impl Fn(&P) -> T + Sync, mut take: impl FnMut(&P, T)) {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(pieces.len());
    let (next, work) = (AtomicUsize::new(0), &work);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..workers {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(piece) = pieces.get(place) else { break };
                    // The receiver lives as long as this thread.
                    let _ = sender.send((place, work(piece)));
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut due = 0;
        for (place, result) in receiver {
            early.insert(place, result);
            while let Some(result) = early.remove(&due) {
                take(&pieces[due], result);
                due += 1;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_pieces() {
        let pieces: Vec<u64> = (0..100).collect();
        let mut taken = Vec::new();
        let work = |piece: &u64| {
            // The first piece of each pair takes longer.
            std::thread::sleep(std::time::Duration::from_micros(200 * (1 - piece % 2)));
            piece * piece
        };
        side_by_side(&pieces, work, |piece, square| taken.push((*piece, square)));
        assert_eq!(taken, (0..100).map(|piece| (piece, piece * piece)).collect::<Vec<_>>());
        side_by_side(&[], work, |_, _| panic!("there is nothing"));
    }
}
