//! What a store can do.

/// What is changed all or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Atomic {
    /// Everything in one call.
    Call,
    /// The control keys of one region together, and each other key by itself. A call that mixes them is refused with
    /// [`crate::StoreError::Unsupported`]; a guard is honoured for control keys, and checked before the others.
    Control,
}

/// What a store can do, and how much at once. Never changes while the store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What is changed all or nothing.
    pub atomic: Atomic,
    /// Whether a change of some bytes goes as those bytes, not as a read and a write of the whole value.
    pub byte_ranges: bool,
    /// Whether a number is added to in one round trip.
    pub native_add: bool,
    /// Whether [`crate::Store::apply_when`] sleeps until something changes, instead of asking again and again.
    pub wait: bool,
    /// Whether what was acknowledged survives the store's end.
    pub durable: bool,
    /// Whether other processes can open the same store.
    pub shared: bool,
    /// The longest value.
    pub value_bytes_max: usize,
    /// The most steps in a call.
    pub operations_max: usize,
    /// The most bytes in a call, keys and values together.
    pub call_bytes_max: usize,
}
