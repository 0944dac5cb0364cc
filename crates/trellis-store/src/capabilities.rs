//! What a store can do.

/// The scope within which a change is all or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Atomic {
    /// Everything in one call.
    Call,
    /// The control keys of one region together, and every other key by itself. A call that mixes them is refused with
    /// [`crate::StoreError::Unsupported`]. A guard works for control keys and is checked before the other comparisons.
    Control,
}

/// What a store can do, and how much in one call. Constant while the store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The scope within which a change is all or nothing.
    pub atomic: Atomic,
    /// Whether a change of some bytes sends only those bytes, rather than reading and writing the whole value.
    pub byte_ranges: bool,
    /// Whether [`crate::Operation::Add`] takes one round trip.
    pub native_add: bool,
    /// Whether [`crate::Store::apply_when`] sleeps until something changes, instead of polling.
    pub wait: bool,
    /// Whether acknowledged changes survive the end of the store's process.
    pub durable: bool,
    /// Whether other processes can open the same store.
    pub shared: bool,
    /// The maximum length of a value.
    pub value_bytes_max: usize,
    /// The maximum number of steps in a call.
    pub operations_max: usize,
    /// The maximum number of bytes in a call, keys and values together.
    pub call_bytes_max: usize,
}
