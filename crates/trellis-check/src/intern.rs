//! Numbers for the distinct node states, inputs and messages, and a table of all steps.
//!
//! The state of a cluster is then a few numbers. The real `step` runs once for each pair of a node state and an input,
//! however many cluster states contain that pair. Promises: numbers are given in the order of discovery, so the same
//! exploration gives the same numbers. It must never give a result for a pair that was not stepped.

use crate::fingerprint::Table;
use std::cell::Cell;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// Values by number.
pub(crate) struct Numbered<T> {
    values: Vec<T>,
    numbers: Table<T, u32>,
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    pub(crate) fn new() -> Numbered<T> {
        Numbered { values: Vec::new(), numbers: Table::default() }
    }

    pub(crate) fn number(&mut self, value: T) -> u32 {
        if let Some(&number) = self.numbers.get(&value) {
            return number;
        }
        let number = u32::try_from(self.values.len()).expect("fewer than 2^32 node states");
        self.values.push(value.clone());
        self.numbers.insert(value, number);
        number
    }

    pub(crate) fn value(&self, number: u32) -> &T {
        &self.values[number as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}

impl<T: Clone + Eq + Hash> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered::new()
    }
}

/// The result of a step.
#[derive(Clone, Copy)]
pub(crate) struct Stepped {
    pub(crate) after: u32,
    pub(crate) effects: u32,
}

/// Steps by node state and input, and the lists of effects by number.
pub(crate) struct Steps<E> {
    done: Table<u64, Stepped>,
    lists: Numbered<Vec<E>>,
}

impl<E: Clone + Eq + Hash> Steps<E> {
    pub(crate) fn new() -> Steps<E> {
        Steps { done: Table::default(), lists: Numbered::new() }
    }

    /// The result of input number `input` in node state number `before`, if it was tried.
    pub(crate) fn known(&self, before: u32, input: u32) -> Option<Stepped> {
        self.done.get(&key(before, input)).copied()
    }

    /// Stores the result of a step.
    pub(crate) fn remember(&mut self, before: u32, input: u32, after: u32, effects: Vec<E>) -> Stepped {
        let stepped = Stepped { after, effects: self.lists.number(effects) };
        self.done.insert(key(before, input), stepped);
        stepped
    }

    pub(crate) fn effects(&self, number: u32) -> &[E] {
        self.lists.value(number)
    }
}

fn key(before: u32, input: u32) -> u64 {
    u64::from(before) << 32 | u64::from(input)
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `step` and turns a failed assertion of the protocol into its message.
pub(crate) fn guarded<T>(step: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(step));
    QUIET.set(false);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        text.or_else(|| payload.downcast_ref::<&str>().map(|text| text.to_string()))
            .unwrap_or_else(|| "a panic without a sentence".to_string())
    })
}
