//! The memory model: what a thread may see, by what it acquired; computed beside a run.
//!
//! For every thread and every word there are two sets of stores: those that happened before now, and those that were
//! *overwritten* before now, because a later store also happened before now. Locks, barriers and flags pass both on. A
//! load may see any store that was made and was not overwritten. If all accesses are ordered, there is one, the last;
//! if they race, it is one that some thread made. If two *stores* to one word were not ordered, the nodes need not
//! agree which came last, and this may change: from then on a load of that word may see any store that was made to it.
//!
//! It must never inspect a node, except for the pages of a home when a publication has ended.

use super::agreement::Agreement;
use super::effects::Event;
use super::node::Node;
use super::{Operation, PAGE_WORDS, Script, Setup, Value};
use crate::synchronisation::Ledger;
use trellis_cluster_protocol::node::change::Ending;

/// The maximum number of stores to one word in a run: one bit each, and one for the initial zero.
pub const STORES_MAX: usize = 63;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Knowledge {
    known: Vec<u64>,
    overwritten: Vec<u64>,
}

impl Knowledge {
    fn new(words: usize) -> Knowledge {
        // Every thread knows of the initial zero.
        Knowledge { known: vec![1; words], overwritten: vec![0; words] }
    }

    fn join(&mut self, other: &Knowledge) {
        self.known.iter_mut().zip(&other.known).for_each(|(mine, theirs)| *mine |= theirs);
        self.overwritten.iter_mut().zip(&other.overwritten).for_each(|(mine, theirs)| *mine |= theirs);
    }
}

/// A point at which threads meet, repeatedly.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Meeting {
    /// The stores known there. The two uses alternate.
    uses: [Option<Knowledge>; 2],
    /// Each thread's number of arrivals; the maximum for one that never comes.
    arrivals: Vec<u16>,
}

impl Meeting {
    fn new(comes: impl Iterator<Item = bool>) -> Meeting {
        Meeting { uses: [None, None], arrivals: comes.map(|comes| if comes { 0 } else { u16::MAX }).collect() }
    }

    fn arrive(&mut self, thread: u8, known: &Knowledge) {
        let arrivals = &mut self.arrivals[usize::from(thread)];
        release(known, &mut self.uses[usize::from(*arrivals) % 2]);
        *arrivals += 1;
    }

    fn leave(&self, thread: u8, known: &mut Knowledge) -> Result<(), String> {
        let left = self.arrivals[usize::from(thread)];
        if self.arrivals.iter().any(|&arrivals| arrivals < left) {
            return Err(format!("thread {thread} left a barrier before all had come"));
        }
        if let Some(all) = &self.uses[usize::from(left - 1) % 2] {
            known.join(all);
        }
        Ok(())
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ghost {
    threads: Vec<Knowledge>,
    locks: Vec<Option<Knowledge>>,
    holders: Vec<Option<u8>>,
    flags: Vec<Option<Knowledge>>,
    barrier: Meeting,
    /// A thread that may have been notified could not take its lock again.
    took_no_lock: bool,
    changes: Meeting,
    agreement: Agreement,
    /// What is known of the objects that threads call.
    ledger: Option<Ledger>,
    /// By word: the stored values, in order.
    stores: Vec<Vec<Value>>,
    /// By word: whether two stores to it were not ordered.
    raced: Vec<bool>,
}

impl Ghost {
    /// The state before the first event.
    pub fn new(setup: &Setup) -> Ghost {
        let words = setup.words();
        Ghost {
            threads: vec![Knowledge::new(words); setup.scripts.len()],
            locks: Vec::new(),
            holders: Vec::new(),
            flags: Vec::new(),
            barrier: Meeting::new(setup.scripts.iter().map(|_| true)),
            took_no_lock: false,
            changes: Meeting::new(setup.scripts.iter().filter(|_| !setup.changes.is_empty()).map(Script::changes)),
            agreement: Agreement::new(setup),
            ledger: setup.objects.as_ref().map(|objects| Ledger::new(objects, setup.scripts.len())),
            stores: vec![vec![0]; words],
            raced: vec![false; words],
        }
    }

    /// Whether a thread may choose now, as far as other nodes are concerned: it notifies only if somebody waits.
    pub fn may_choose(&self, operation: Operation) -> bool {
        !matches!(operation, Operation::Notify(_)) || self.ledger.as_ref().is_some_and(Ledger::may_notify)
    }

    /// Applies an event.
    ///
    /// # Errors
    ///
    /// The event violates the memory model.
    pub fn note(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Load { thread, word, value } => self.load(thread, word, value)?,
            Event::Store { thread, word, value } => self.store(thread, word, value)?,
            Event::Locked { thread, lock } => {
                let holder = at(&mut self.holders, lock);
                if let Some(other) = holder.replace(thread) {
                    return Err(format!("threads {other} and {thread} hold lock {lock} at the same time"));
                }
                if let Some(Some(lock)) = self.locks.get(usize::from(lock)) {
                    self.threads[usize::from(thread)].join(lock);
                }
            }
            Event::Unlock { thread, lock } => {
                if at(&mut self.holders, lock).take() != Some(thread) {
                    return Err(format!("thread {thread} releases lock {lock}, and does not hold it"));
                }
                release(&self.threads[usize::from(thread)], at(&mut self.locks, lock));
            }
            Event::Waited { thread, lock, is_lock_held } => {
                if is_lock_held != (*at(&mut self.holders, lock) == Some(thread)) {
                    return Err(format!("the wait of thread {thread} says whether it holds lock {lock}, and is wrong"));
                }
                self.took_no_lock |= !is_lock_held;
            }
            Event::Flag { thread, flag, is_store } => {
                let flag = at(&mut self.flags, flag);
                if is_store {
                    release(&self.threads[usize::from(thread)], flag);
                } else if let Some(flag) = flag {
                    self.threads[usize::from(thread)].join(flag);
                }
            }
            Event::Arrive { thread } => self.barrier.arrive(thread, &self.threads[usize::from(thread)]),
            Event::Left { thread } => self.barrier.leave(thread, &mut self.threads[usize::from(thread)])?,
            Event::Meets { thread } => self.changes.arrive(thread, &self.threads[usize::from(thread)]),
            Event::Ended { thread, ending: Ending::Agreed { objections: 0, .. } } => {
                self.changes.leave(thread, &mut self.threads[usize::from(thread)])?;
            }
            Event::Published { .. }
            | Event::Objects { .. }
            | Event::TooLong { .. }
            | Event::Changes { .. }
            | Event::Ended { .. }
            | Event::Enters { .. }
            | Event::Answered { .. }
            | Event::Abandoned { .. }
            | Event::Enrolled { .. }
            | Event::Requested { .. }
            | Event::Handed { .. } => {}
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.note(event)?;
        }
        self.agreement.note(event)
    }

    /// A node does not know whether others have changed the protocol of pages, and has ended the cluster.
    pub fn has_failed(&self) -> bool {
        self.agreement.has_failed
    }

    /// The node of `thread` has carried out a change of protocols.
    ///
    /// # Errors
    ///
    /// Another node was not ready for that.
    pub fn check_change<'a>(
        &mut self,
        setup: &Setup,
        thread: u8,
        change: u8,
        nodes: impl Iterator<Item = &'a Node>,
    ) -> Result<(), String> {
        self.agreement.check_pages(setup, thread, change, nodes)
    }

    fn load(&self, thread: u8, word: u16, value: Value) -> Result<(), String> {
        self.check(usize::from(thread), word, value).map_err(|what| format!("thread {thread} loads {what}"))
    }

    /// Whether a thread may see `value` in a word.
    fn check(&self, thread: usize, word: u16, value: Value) -> Result<(), String> {
        let stores = &self.stores[usize::from(word)];
        let overwritten = match self.raced[usize::from(word)] {
            true => 0,
            false => self.threads[thread].overwritten[usize::from(word)],
        };
        let mut those = stores.iter().enumerate().filter(|(_, stored)| **stored == value).peekable();
        let place =
            format!("{value} from word {} of page {}", usize::from(word) % PAGE_WORDS, usize::from(word) / PAGE_WORDS);
        if those.peek().is_none() {
            return Err(format!("{place}, which was never stored there"));
        }
        if those.any(|(store, _)| overwritten >> store & 1 == 0) {
            return Ok(());
        }
        let may: Vec<String> = stores
            .iter()
            .enumerate()
            .filter(|(store, _)| overwritten >> store & 1 == 0)
            .map(|(_, value)| value.to_string())
            .collect();
        Err(format!("{place}, which was overwritten before; it may see {}", may.join(" or ")))
    }

    fn store(&mut self, thread: u8, word: u16, value: Value) -> Result<(), String> {
        let (thread, word) = (usize::from(thread), usize::from(word));
        let store = self.stores[word].len();
        if store > STORES_MAX {
            return Err(format!("a run stores at most {STORES_MAX} times to a word; make it shorter"));
        }
        self.stores[word].push(value);
        self.raced[word] |= self.threads[thread].known[word].count_ones() as usize != store;
        let Knowledge { known, overwritten } = &mut self.threads[thread];
        overwritten[word] |= known[word];
        known[word] |= 1 << store;
        Ok(())
    }

    /// A publication of `thread` has ended: no home may have anything older than what the thread stored or had seen.
    ///
    /// # Errors
    ///
    /// A home has something older.
    pub fn check_homes<'a>(
        &self,
        setup: &Setup,
        thread: u8,
        nodes: impl Iterator<Item = &'a Node> + Clone,
    ) -> Result<(), String> {
        for place in 0..setup.pages.len() {
            for node in nodes.clone() {
                let Some(master) = node.master(setup, place) else { continue };
                for (word, &value) in master.iter().enumerate() {
                    let number = (place * PAGE_WORDS + word) as u16;
                    self.check(usize::from(thread), number, value).map_err(|what| {
                        format!("thread {thread} has published, and its home, node {}, has {what}", node.me)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Nothing can happen any more: whether a thread may still wait to take something from this word. It may if there is
    /// nothing, and never was enough, or if a thread that was notified could not take its lock again.
    pub fn may_wait<'a>(&self, setup: &Setup, word: u16, mut nodes: impl Iterator<Item = &'a Node>) -> bool {
        let (place, index) = (usize::from(word) / PAGE_WORDS, usize::from(word) % PAGE_WORDS);
        let is_empty = nodes.any(|node| node.master(setup, place).is_some_and(|master| master[index] == 0));
        self.took_no_lock || is_empty && !setup.has_enough(word)
    }

    /// At the end each master must contain a store that no other overwrote.
    ///
    /// # Errors
    ///
    /// A store is lost.
    pub fn check_end<'a>(&self, setup: &Setup, nodes: impl Iterator<Item = &'a Node> + Clone) -> Result<(), String> {
        let mut all = self.clone();
        let mut union = Knowledge::new(setup.words());
        self.threads.iter().for_each(|thread| union.join(thread));
        all.threads[0] = union;
        all.check_homes(setup, 0, nodes).map_err(|what| format!("at the end: {what}"))
    }
}

fn release(thread: &Knowledge, object: &mut Option<Knowledge>) {
    match object {
        _ if thread.known.is_empty() => {}
        Some(object) => object.join(thread),
        None => *object = Some(thread.clone()),
    }
}

fn at<T: Default>(list: &mut Vec<T>, index: u8) -> &mut T {
    let index = usize::from(index);
    if list.len() <= index {
        list.resize_with(index + 1, T::default);
    }
    &mut list[index]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::scripts;

    fn ghost() -> Ghost {
        Ghost::new(&scripts::setups()[0])
    }

    const STORE: [Event; 2] =
        [Event::Store { thread: 0, word: 0, value: 7 }, Event::Store { thread: 0, word: 0, value: 8 }];

    fn sees(ghost: &mut Ghost, thread: u8, value: Value) -> bool {
        ghost.note(Event::Load { thread, word: 0, value }).is_ok()
    }

    #[test]
    fn a_thread_sees_its_own_last_store_and_others_what_they_like() {
        let mut ghost = ghost();
        STORE.into_iter().for_each(|store| ghost.note(store).unwrap());
        assert!(sees(&mut ghost, 0, 8) && !sees(&mut ghost, 0, 7) && !sees(&mut ghost, 0, 0));
        assert!([0, 7, 8].into_iter().all(|value| sees(&mut ghost, 1, value)));
        assert!(!sees(&mut ghost, 1, 9), "nobody stored that");
    }

    #[test]
    fn what_was_released_is_handed_on_through_any_number_of_hands() {
        let mut ghost = ghost();
        assert!(ghost.note(Event::Unlock { thread: 0, lock: 3 }).is_err(), "nobody holds it");
        ghost.note(Event::Locked { thread: 0, lock: 3 }).unwrap();
        STORE.into_iter().for_each(|store| ghost.note(store).unwrap());
        ghost.note(Event::Unlock { thread: 0, lock: 3 }).unwrap();
        ghost.note(Event::Locked { thread: 1, lock: 3 }).unwrap();
        ghost.note(Event::Flag { thread: 1, flag: 0, is_store: true }).unwrap();
        assert!(sees(&mut ghost, 2, 0), "it has acquired nothing");
        ghost.note(Event::Flag { thread: 2, flag: 0, is_store: false }).unwrap();
        assert!(sees(&mut ghost, 2, 8) && !sees(&mut ghost, 2, 7) && !sees(&mut ghost, 2, 0));
    }

    #[test]
    fn stores_that_race_may_both_be_seen_after_both_were_released() {
        let mut ghost = ghost();
        ghost.note(STORE[0]).unwrap();
        ghost.note(Event::Store { thread: 1, word: 0, value: 9 }).unwrap();
        for thread in 0..3 {
            ghost.note(Event::Arrive { thread }).unwrap();
        }
        ghost.note(Event::Left { thread: 2 }).unwrap();
        assert!(sees(&mut ghost, 2, 7) && sees(&mut ghost, 2, 9) && !sees(&mut ghost, 2, 8), "nobody stored 8");
    }

    #[test]
    fn two_holders_and_early_leavers_are_noticed() {
        let mut ghost = ghost();
        ghost.note(Event::Locked { thread: 0, lock: 0 }).unwrap();
        assert!(ghost.note(Event::Locked { thread: 1, lock: 0 }).is_err());
        ghost.note(Event::Arrive { thread: 1 }).unwrap();
        assert!(ghost.note(Event::Left { thread: 1 }).is_err());
    }
}
