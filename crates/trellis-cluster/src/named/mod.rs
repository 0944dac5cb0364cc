//! Memory with a name: arrays and values that all nodes find by a text.
//!
//! The first node that asks for a name takes memory from the shared heap, describes it at its beginning and puts its
//! place into a word; a once-object under the same number makes the others wait for that. A node that comes later
//! compares the description with its own request. Everything here uses the public objects of a cluster; no protocol
//! knows of it.
//!
//! Promises: all nodes get the same memory, or the node whose request differs gets an error that states both. Memory
//! with a name is zero at first, exists until the cluster ends, and shares no page with anything else. A node does not
//! leave while a handle is alive, because its references would outlive the region.

mod array;
mod blocks;
mod mutex_of;

use std::alloc::Layout;
use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;

use bytemuck::AnyBitPattern;

use crate::cluster::{Cluster, WaitError};
use crate::heap::{HeapError, Home, Padding};
use crate::runtime::{Ordered, Rank, lock};

pub use array::{FrozenVec, SharedVec};
pub use blocks::Blocks;
pub use mutex_of::{MutexOf, MutexOfGuard};

/// The longest name of memory, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// A value begins at a multiple of so many bytes.
const VALUE_ALIGN: usize = 64;

/// What memory with a name is used for. A name of one kind says nothing about the same name of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Elements in a row, which begin at a page border.
    Array,
    /// One value under a lock, which begins at a multiple of 64 bytes.
    Value,
}

/// The type of an element as far as nodes compare it, whatever language they are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// What the bytes mean.
    pub form: Form,
    /// The size in bytes; not 0.
    pub bytes: usize,
}

/// What the bytes of an element mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Form {
    /// Something else.
    Other = 0,
    /// An unsigned number.
    Unsigned = 1,
    /// A signed number.
    Signed = 2,
    /// A floating-point number.
    Float = 3,
}

impl Element {
    /// The description of `T`.
    pub fn of<T: 'static>() -> Element {
        let is = |types: &[TypeId]| types.contains(&TypeId::of::<T>());
        let form = if is(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) {
            Form::Float
        } else if is(&[
            TypeId::of::<i8>(),
            TypeId::of::<i16>(),
            TypeId::of::<i32>(),
            TypeId::of::<i64>(),
            TypeId::of::<i128>(),
            TypeId::of::<isize>(),
        ]) {
            Form::Signed
        } else if is(&[
            TypeId::of::<u8>(),
            TypeId::of::<u16>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<u128>(),
            TypeId::of::<usize>(),
        ]) {
            Form::Unsigned
        } else {
            Form::Other
        };
        Element { form, bytes: size_of::<T>() }
    }
}

impl Form {
    fn of_number(number: u32) -> Form {
        match number {
            1 => Form::Unsigned,
            2 => Form::Signed,
            3 => Form::Float,
            _ => Form::Other,
        }
    }
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Array => "array",
            Kind::Value => "value",
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.form {
            Form::Other => return write!(formatter, "structures of {} bytes", self.bytes),
            Form::Unsigned => 'u',
            Form::Signed => 'i',
            Form::Float => 'f',
        };
        write!(formatter, "{letter}{}", 8 * self.bytes)
    }
}

/// What stands at the beginning of the memory; the elements follow.
#[derive(Clone, Copy)]
#[repr(C)]
struct Description {
    /// How many elements there are.
    length: u64,
    element_bytes: u64,
    form: u32,
    /// The node that made it.
    maker: u32,
    /// Not there by chance: [`MARK`].
    mark: u64,
    name_bytes: u64,
    name: [u8; NAME_BYTES_MAX + 1],
}

const MARK: u64 = u64::from_le_bytes(*b"TRELLIS.");

impl Description {
    fn of(name: &str, element: Element, length: usize, maker: usize) -> Description {
        let mut text = [0; NAME_BYTES_MAX + 1];
        text[..name.len()].copy_from_slice(name.as_bytes());
        Description {
            length: length as u64,
            element_bytes: element.bytes as u64,
            form: element.form as u32,
            maker: maker as u32,
            mark: MARK,
            name_bytes: name.len() as u64,
            name: text,
        }
    }

    fn element(&self) -> Element {
        Element { form: Form::of_number(self.form), bytes: self.element_bytes as usize }
    }

    fn name(&self) -> &str {
        let bytes = self.name.get(..self.name_bytes as usize).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// Memory with a name, as a node found or made it.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The first element.
    pub address: NonNull<u8>,
    /// The number under which its locks and barriers are.
    pub number: u64,
}

impl Cluster {
    /// The memory with this name: `length` elements, zero at first, or with what `fill` does to them if this node is the
    /// first that asks for it. [`Cluster::array`] and [`Cluster::mutex_of`] are made of it.
    ///
    /// # Errors
    ///
    /// [`HeapError::Misuse`] if another node described the same name differently, or if the name is empty or longer than
    /// [`NAME_BYTES_MAX`]. The others as [`crate::Heap::allocate`].
    pub fn named_memory(
        &self,
        kind: Kind,
        name: &str,
        element: Element,
        length: usize,
        fill: impl FnOnce(NonNull<u8>),
    ) -> Result<Memory, HeapError> {
        let (number, shown) = self.identify(kind, name)?;
        let own = Description::of(name, element, length, self.node());
        let data_start = self.data_start(kind);
        let (once, place) = (self.once(number), self.atomic(number));
        if once.begin()? {
            let made = self.make(&own, data_start, fill).and_then(|offset| Ok(place.store(offset)?));
            match made {
                Ok(()) => once.done()?,
                Err(why) => {
                    once.failed()?;
                    return Err(why);
                }
            }
        }
        let start = self.region().base().wrapping_add(place.load()? as usize);
        // SAFETY: the first node wrote a description there before the once-object was done, which this node waited for;
        // nobody writes to it again.
        let found = unsafe { start.cast::<Description>().read() };
        if found.mark != MARK || found.name() != name {
            return Err(HeapError::Misuse(format!(
                "{shown}: its number is also that of `{}`; choose another name",
                found.name()
            )));
        }
        if (found.element(), found.length) != (element, length as u64) {
            return Err(HeapError::Misuse(format!(
                "{shown} has {} {}, as node {} asked; this node asks for {length} {element}",
                found.length,
                found.element(),
                found.maker,
            )));
        }
        let address = NonNull::new(start.wrapping_add(data_start)).expect("the region is not at address 0");
        Ok(Memory { address, number })
    }

    /// The number of memory with a name, and what sentences call it.
    fn identify(&self, kind: Kind, name: &str) -> Result<(u64, String), HeapError> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(HeapError::Misuse(format!(
                "a name of {} bytes is not possible; use 1 to {NAME_BYTES_MAX}",
                name.len()
            )));
        }
        let number = self.inner().number_of_text(&format!("{} {name}", kind.word()), name);
        Ok((number, format!("{} `{name}`", kind.word())))
    }

    /// The distance of the first element from the description.
    fn data_start(&self, kind: Kind) -> usize {
        size_of::<Description>().next_multiple_of(match kind {
            Kind::Array => self.region().page_bytes(),
            Kind::Value => VALUE_ALIGN,
        })
    }

    /// Takes memory from the heap and describes it; its offset in the region.
    fn make(&self, own: &Description, data_start: usize, fill: impl FnOnce(NonNull<u8>)) -> Result<u64, HeapError> {
        let region = self.region();
        let bytes = own.length.checked_mul(own.element_bytes).and_then(|bytes| bytes.checked_add(data_start as u64));
        let align = region.page_bytes();
        let layout = bytes.and_then(|bytes| Layout::from_size_align(bytes as usize, align).ok()).ok_or_else(|| {
            HeapError::NoRoom(format!("{} {} are more than any region; ask for less", own.length, own.element()))
        })?;
        let memory = self.heap().allocate_layout_zeroed(layout, Home::Unspecified, Padding::PerPage)?;
        // SAFETY: the block has room for a description and is aligned to pages; nobody else knows it yet.
        unsafe { memory.cast::<Description>().write(*own) };
        // SAFETY: the block has so many bytes.
        fill(unsafe { memory.add(data_start) });
        Ok((memory.as_ptr().addr() - region.base().addr()) as u64)
    }
}

/// The handles of this node to memory with a name.
pub(crate) struct Handles(Ordered<Open>);

#[derive(Default)]
struct Open {
    /// How many handles are alive, and what sentences call the memory, by number. An entry stays when its handles are
    /// gone.
    counts: BTreeMap<u64, (usize, String)>,
    has_left: bool,
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles(Ordered::new(Rank::Last, Open::default()))
    }

    /// Refuses to leave while a handle is alive; afterwards there is none again.
    pub(crate) fn close(&self) -> Result<(), WaitError> {
        let mut open = lock(&self.0);
        if let Some((_, shown)) = open.counts.values().find(|(count, _)| *count > 0) {
            return Err(WaitError::Misuse(format!("{shown} is still in use; drop its handle before leaving")));
        }
        open.has_left = true;
        Ok(())
    }

    /// The node could not leave.
    pub(crate) fn reopen(&self) {
        lock(&self.0).has_left = false;
    }

    /// One handle more; if `only`, there must never have been one.
    fn open(&self, number: u64, shown: &str, only: bool) -> Result<(), HeapError> {
        let mut open = lock(&self.0);
        if open.has_left {
            return Err(HeapError::Misuse(format!("{shown} cannot be opened: this node has left the cluster")));
        }
        if only && open.counts.contains_key(&number) {
            return Err(HeapError::Misuse(format!(
                "{shown} was opened at this node before, and a node has one handle to an array; keep the first one"
            )));
        }
        open.counts.entry(number).or_insert_with(|| (0, shown.to_owned())).0 += 1;
        Ok(())
    }

    /// One handle less; if `never`, as if it had never been there.
    fn close_one(&self, number: u64, never: bool) {
        let mut open = lock(&self.0);
        if let Some((count, _)) = open.counts.get_mut(&number) {
            *count -= 1;
            if never && *count == 0 {
                open.counts.remove(&number);
            }
        }
    }
}

/// A handle: memory with a name, which stays mapped for as long as the handle lives.
struct Handle<T> {
    cluster: Cluster,
    memory: Memory,
    first: NonNull<T>,
    length: usize,
}

// SAFETY: the memory belongs to no thread; what may be done with it from which thread is decided by the types that own a
// handle, as for a `Vec<T>`.
unsafe impl<T: Send> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Handle<T> {}

impl<T: AnyBitPattern> Handle<T> {
    fn open(
        cluster: &Cluster,
        kind: Kind,
        name: &str,
        length: usize,
        fill: impl FnOnce(NonNull<T>),
    ) -> Result<Handle<T>, HeapError> {
        const { assert!(size_of::<T>() > 0, "elements without bytes cannot be shared") };
        let (number, shown) = cluster.identify(kind, name)?;
        let handles = &cluster.inner().handles;
        handles.open(number, &shown, kind == Kind::Array)?;
        match cluster.named_memory(kind, name, Element::of::<T>(), length, |address| fill(address.cast())) {
            Ok(memory) => Ok(Handle { cluster: cluster.clone(), memory, first: memory.address.cast(), length }),
            Err(why) => {
                handles.close_one(number, true);
                Err(why)
            }
        }
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        self.cluster.inner().handles.close_one(self.memory.number, false);
    }
}
