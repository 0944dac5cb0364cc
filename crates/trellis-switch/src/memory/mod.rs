//! The memory of a server of remote memory, shared with a program in the kernel that answers READ and WRITE by itself:
//! `switch/memory.bpf.c`.
//!
//! Promises:
//!
//! - **One memory.** Process and program read and write the same bytes, and each sees a change of the other to a page
//!   completely or not at all. A call here changes all of its pages in one step.
//! - **Entries first.** The program touches no page unless the page's entry admits it at that moment. When
//!   [`KernelMemory::publish`] returns, no access that the previous entries admitted is still under way.
//! - **Nothing remains.** Program and memory end with this value, or with the process, however it ends.
//! - **Bounded use.** The kernel's memory cannot be swapped, so it is allocated 16 MiB at a time, when an object is
//!   placed there. If the machine has little left, and after the first 256 GiB, memory belongs to the process alone, and
//!   the program passes requests about it on.
//!
//! It must never interpret a request, or know what an object is: the protocol does, and the entries express it.

mod attached;
mod checksum;
mod device;
mod layout;
mod shared;

use std::ops::Range;

use crate::address::Cluster;
use crate::error::SwitchError;
use attached::Attached;
use shared::Shared;

pub use attached::{Outcomes, Watch};

/// The parameters of the memory, and where requests arrive.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster.
    pub cluster: Cluster,
    /// The home.
    pub home: u16,
    /// The size of the memory, in whole pages of 4 KiB.
    pub memory_bytes: u64,
    /// The port on which the server listens.
    pub port: u16,
    /// The interface at which requests arrive; `None` for the one to which the route to the cluster leads.
    pub device: Option<String>,
}

/// The memory; the module's text says what it promises.
pub struct KernelMemory {
    shared: Shared,
    attached: Attached,
    device: String,
}

impl KernelMemory {
    /// Reserves address space, and attaches the program to the interface in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`], which says what is missing.
    pub fn open(options: &Options) -> Result<KernelMemory, SwitchError> {
        let device = match &options.device {
            Some(device) => device.clone(),
            None => device::towards(options.cluster, options.home)?,
        };
        let shared = Shared::new(options.memory_bytes).map_err(|error| {
            SwitchError::system(format!("reserve {} bytes of address space", options.memory_bytes), &error)
        })?;
        let attached = Attached::open(options, &device)?;
        Ok(KernelMemory { shared, attached, device })
    }

    /// The interface.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes()
    }

    /// How many bytes the program can access so far.
    #[must_use]
    pub fn bytes_in_kernel(&self) -> u64 {
        self.shared.bytes_in_kernel()
    }

    /// A handle to read the program's counters.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.attached.watch()
    }

    /// Bytes in a range of offsets, as of one moment, in `room`.
    ///
    /// # Panics
    ///
    /// When the range is not entirely inside, as in all functions here.
    pub fn read<'a>(&self, range: Range<u64>, room: &'a mut Vec<u8>) -> &'a [u8] {
        self.shared.read(range, room)
    }

    /// Writes bytes from an offset on.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.shared.write(offset, bytes);
    }

    /// Zeroes the bytes of a future object, which no entry admits yet. Allocates kernel memory for them if there is none
    /// yet.
    pub fn zero(&mut self, range: Range<u64>) {
        self.shared.zero(range, &mut |extent| self.attached.extent(extent));
    }

    /// Replaces eight bytes, little-endian, by the result of `with`, if it returns one; returns the previous value.
    pub fn replace(&mut self, offset: u64, with: &dyn Fn(u64) -> Option<u64>) -> u64 {
        self.shared.replace(offset, with)
    }

    /// Replaces the entries, as words, of the pages from `first_page` on.
    pub fn publish(&mut self, first_page: u64, entries: &mut dyn Iterator<Item = u64>) {
        self.shared.publish(first_page, entries);
    }
}
