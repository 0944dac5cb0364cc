//! Memory with a name: arrays and values that all nodes find by a text.
//!
//! The first node that asks for a name allocates memory and a description of it in the shared heap, and puts the place
//! of the description into a word. A once-object under the same number makes the others wait for that. A node that
//! comes later compares the description with its own request. No protocol knows of all this.
//!
//! Promises: all nodes get the same memory, or the node whose request differs gets an error that states both. Memory
//! with a name is zero at first, exists until the cluster ends, and shares no page with anything else. A program cannot
//! reach the objects that belong to it. A node does not leave while a handle is alive, because its references would
//! outlive the region.

mod array;
mod mutex_of;
mod partitions;

use std::alloc::Layout;
use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use bytemuck::Pod;
use trellis_cluster_protocol::heap::ALIGN_BYTES_MIN;
use trellis_record::Area;

use crate::cluster::{Cluster, WaitError};
use crate::config::checks::PAGE_BYTES_MIN;
use crate::heap::{HeapError, Home, Padding};
use crate::runtime::{Ordered, Rank, lock};

pub use array::{FrozenVec, SharedVec};
pub use mutex_of::{MutexOf, MutexOfGuard};
pub use partitions::Partitions;

/// The longest name of memory, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The kind of memory with a name. An array and a value may have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A row of elements, which begins at a page border.
    Array,
    /// One value under a lock.
    Value,
}

/// The type of an element as far as nodes compare it, whatever language they are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// The meaning of the bytes.
    pub form: Form,
    /// The size in bytes; not 0.
    pub bytes: usize,
}

/// The meaning of an element's bytes.
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
        fn is<T: 'static, U: 'static>() -> bool {
            TypeId::of::<T>() == TypeId::of::<U>()
        }
        let form = if is::<T, f32>() || is::<T, f64>() {
            Form::Float
        } else if is::<T, i8>()
            || is::<T, i16>()
            || is::<T, i32>()
            || is::<T, i64>()
            || is::<T, i128>()
            || is::<T, isize>()
        {
            Form::Signed
        } else if is::<T, u8>()
            || is::<T, u16>()
            || is::<T, u32>()
            || is::<T, u64>()
            || is::<T, u128>()
            || is::<T, usize>()
        {
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

/// The description of the memory, which all nodes compare with their requests.
#[derive(Clone, Copy)]
#[repr(C)]
struct Description {
    /// The number of elements.
    length: u64,
    element_bytes: u64,
    form: u32,
    /// The node that made it.
    maker: u32,
    /// [`MARK`], which tells a description from other bytes.
    mark: u64,
    /// The offset of the first element in the region.
    elements: u64,
    name_bytes: u64,
    name: [u8; NAME_BYTES_MAX + 1],
}

const MARK: u64 = u64::from_le_bytes(*b"TRELLIS.");

impl Description {
    /// The elements have no place yet.
    fn of(name: &str, element: Element, length: usize, maker: usize) -> Description {
        let mut text = [0; NAME_BYTES_MAX + 1];
        text[..name.len()].copy_from_slice(name.as_bytes());
        Description {
            length: length as u64,
            element_bytes: element.bytes as u64,
            form: element.form as u32,
            maker: maker as u32,
            mark: MARK,
            elements: 0,
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

/// A valid name.
struct Identity {
    number: u64,
    /// The memory's name in error sentences.
    shown: String,
}

impl Cluster {
    /// The first element of the memory with this name: `length` elements, zero at first, or with what `fill` does to
    /// them if this node is the first that asks. [`Cluster::array`] and [`Cluster::mutex_of`] are the interface; this
    /// is for other languages.
    ///
    /// # Errors
    ///
    /// [`HeapError::Misuse`] if another node described the same name differently, if the name is empty or longer than
    /// [`NAME_BYTES_MAX`] or has a zero byte, or if this node joined later and is the first that asks. The others as
    /// [`crate::Heap::allocate`].
    ///
    /// # Safety
    ///
    /// This node does not leave the cluster during the call, as it cannot while a handle is open.
    #[doc(hidden)]
    pub unsafe fn named_memory(
        &self,
        kind: Kind,
        name: &str,
        element: Element,
        length: usize,
        fill: impl FnOnce(NonNull<u8>),
    ) -> Result<NonNull<u8>, HeapError> {
        let Identity { number, shown } = self.identify(kind, name)?;
        self.inner().handles.check_present(&shown)?;
        if element.bytes == 0 {
            return Err(HeapError::Misuse(format!("{shown}: an element of 0 bytes cannot be shared")));
        }
        let (once, place) = (self.own_once(number), self.own_atomic(number));
        if once.begin()? {
            let own = Description::of(name, element, length, self.node());
            let made = self.make(own, &shown, fill).and_then(|offset| Ok(place.store(offset)?));
            match made {
                Ok(()) => once.done()?,
                Err(why) => {
                    // If this fails, the cluster has failed, and every other call says so.
                    let _ = once.failed();
                    return Err(why);
                }
            }
        }
        let found = self.description_at(place.load()?);
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
        let bytes = found.length * found.element().bytes as u64;
        if bytes > 0 {
            self.name_memory([Area { first: found.elements, bytes, name: name.to_owned() }]);
        }
        let first = self.region().base().wrapping_add(found.elements as usize);
        Ok(NonNull::new(first).expect("the region is not at address 0"))
    }

    fn identify(&self, kind: Kind, name: &str) -> Result<Identity, HeapError> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(HeapError::Misuse(format!(
                "a name has 1 to {NAME_BYTES_MAX} bytes, none of them zero; this one has {}",
                name.len()
            )));
        }
        let number = self.inner().number_of_memory(&format!("{} {name}", kind.word()), name);
        Ok(Identity { number, shown: format!("{} `{name}`", kind.word()) })
    }

    /// The description at `offset`, which the first node wrote into the word.
    fn description_at(&self, offset: u64) -> Description {
        let region = self.region();
        let end = (offset as usize).saturating_add(size_of::<Description>());
        let is_in_heap = offset as usize >= region.heap_start() && end <= region.bytes();
        assert!(
            is_in_heap && offset.is_multiple_of(ALIGN_BYTES_MIN),
            "only a first node writes the place: {offset:#x}"
        );
        // SAFETY: the first node wrote a description there before the once-object was done, for which this node waited.
        // No node writes to it again.
        unsafe { region.base().wrapping_add(offset as usize).cast::<Description>().read() }
    }

    /// Allocates the memory and its description. Returns the offset of the description.
    fn make(&self, own: Description, shown: &str, fill: impl FnOnce(NonNull<u8>)) -> Result<u64, HeapError> {
        if self.has_joined_later() {
            return Err(HeapError::Misuse(format!(
                "{shown} does not exist yet, and node {} joined later, so it cannot make it; let a node that was there from \
                 the start ask first",
                self.node()
            )));
        }
        let region = self.region();
        let bytes = own.length.checked_mul(own.element_bytes).and_then(|bytes| usize::try_from(bytes).ok());
        let layout = bytes.and_then(|bytes| Layout::from_size_align(bytes.max(1), region.page_bytes()).ok());
        let layout = layout.ok_or_else(|| {
            HeapError::NoRoom(format!(
                "{shown}: {} {} are more than any region; ask for less",
                own.length,
                own.element()
            ))
        })?;
        let named = |error| match error {
            HeapError::NoRoom(why) => HeapError::NoRoom(format!("{shown}: {why}")),
            other => other,
        };
        let of_description = Layout::new::<Description>();
        let description = self.heap().allocate_layout(of_description, Home::Unspecified, Padding::Packed);
        let description = description.map_err(named)?.cast::<Description>();
        let elements = match self.heap().allocate_layout_zeroed(layout, Home::Unspecified, Padding::PerPage) {
            Ok(elements) => elements,
            Err(error) => {
                // SAFETY: no other thread knows the block.
                unsafe { self.heap().free(description)? };
                return Err(named(error));
            }
        };
        let offset_of = |pointer: NonNull<u8>| (pointer.as_ptr().addr() - region.base().addr()) as u64;
        // SAFETY: the heap returned room for a description, and no other thread knows it yet.
        unsafe { description.write(Description { elements: offset_of(elements), ..own }) };
        fill(elements);
        Ok(offset_of(description.cast()))
    }
}

/// The handles of this node to memory with a name.
pub(crate) struct Handles(Ordered<Open>);

#[derive(Default)]
struct Open {
    /// The number of live handles and the memory's name in sentences, by the memory's number. An entry stays when its
    /// handles are gone.
    counts: BTreeMap<u64, (usize, String)>,
    has_left: bool,
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles(Ordered::new(Rank::Last, Open::default()))
    }

    /// Refuses to leave while a handle is alive. After it succeeds, no handle can be opened.
    pub(crate) fn close(&self) -> Result<(), WaitError> {
        let mut open = lock(&self.0);
        if let Some((_, shown)) = open.counts.values().find(|(count, _)| *count > 0) {
            return Err(WaitError::Misuse(format!("{shown} is still in use; drop its handle before leaving")));
        }
        open.has_left = true;
        Ok(())
    }

    /// Allows handles again, because the node could not leave.
    pub(crate) fn reopen(&self) {
        lock(&self.0).has_left = false;
    }

    fn check_present(&self, shown: &str) -> Result<(), HeapError> {
        match lock(&self.0).has_left {
            true => Err(HeapError::Misuse(format!("{shown} cannot be opened: this node has left the cluster"))),
            false => Ok(()),
        }
    }

    /// Counts one more handle. With `only`, there must never have been one.
    fn open(&self, number: u64, shown: &str, only: bool) -> Result<(), HeapError> {
        self.check_present(shown)?;
        let mut open = lock(&self.0);
        if only && open.counts.contains_key(&number) {
            return Err(HeapError::Misuse(format!(
                "{shown} was opened at this node before, and a node has one handle to an array; keep the first one"
            )));
        }
        open.counts.entry(number).or_insert_with(|| (0, shown.to_owned())).0 += 1;
        Ok(())
    }

    /// Counts one handle less. With `never`, it counts as never opened.
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
    number: u64,
    first: NonNull<T>,
    length: usize,
    /// The indexes of this node's elements.
    own: Range<usize>,
}

// SAFETY: the memory belongs to no thread. The types that own a handle decide which thread may do what with it, as for
// a `Vec<T>`.
unsafe impl<T: Send> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Handle<T> {}

impl<T: Pod> Handle<T> {
    fn open(
        cluster: &Cluster,
        kind: Kind,
        name: &str,
        length: usize,
        fill: impl FnOnce(NonNull<T>),
    ) -> Result<Handle<T>, HeapError> {
        const { assert!(size_of::<T>() > 0, "elements without bytes cannot be shared") };
        const { assert!(align_of::<T>() <= PAGE_BYTES_MIN, "elements are aligned to 4096 bytes at most") };
        let Identity { number, shown } = cluster.identify(kind, name)?;
        let handles = &cluster.inner().handles;
        handles.open(number, &shown, kind == Kind::Array)?;
        let element = Element::of::<T>();
        // SAFETY: the handle was counted above.
        match unsafe { cluster.named_memory(kind, name, element, length, |address| fill(address.cast())) } {
            Ok(first) => {
                let own = cluster.partitions_of(length, size_of::<T>()).of(cluster.node());
                Ok(Handle { cluster: cluster.clone(), number, first: first.cast(), length, own })
            }
            Err(why) => {
                handles.close_one(number, true);
                Err(why)
            }
        }
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        self.cluster.inner().handles.close_one(self.number, false);
    }
}
