//! The memory of a server of remote memory, shared with a program in the kernel that answers READ and WRITE by itself:
//! `switch/memory.bpf.c`.
//!
//! Promises:
//!
//! - **One memory.** Process and program read and write the same bytes, and each sees all of what the other did to a page,
//!   or nothing: of what is done here, all pages of a call change in one step.
//! - **Entries first.** The program touches no page whose entry does not admit it at that moment. When [`KernelMemory::publish`]
//!   returns, nothing goes on that the entries of before admitted.
//! - **Nothing stays.** Program and memory end with this value, or with the process, however it ends.
//! - **No more than there is.** The kernel's memory cannot be swapped, so it is taken 16 MiB at a time, when an object comes to
//!   lie there. Where the machine has little left, and behind the first 256 GiB, memory is the process's alone: the program
//!   passes on what is asked about it.
//!
//! It must never look into a request, or know what an object is: that is the protocol's, and the entries say it.

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

/// What is served, and where requests come in.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whose addresses.
    pub cluster: Cluster,
    /// The home.
    pub home: u16,
    /// Bytes of memory, in whole pages of 4 KiB.
    pub memory_bytes: u64,
    /// Where the server listens.
    pub port: u16,
    /// The interface that requests come in at; `None`: the one that the route to the cluster leads to.
    pub device: Option<String>,
}

/// The memory; the module's text says what it promises.
pub struct KernelMemory {
    shared: Shared,
    attached: Attached,
    device: String,
}

impl KernelMemory {
    /// Takes address space, and puts the program at the interface of the calling thread's network namespace.
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

    /// How many bytes there are.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes()
    }

    /// How many of them the program can reach so far.
    #[must_use]
    pub fn bytes_in_kernel(&self) -> u64 {
        self.shared.bytes_in_kernel()
    }

    /// Who looks at the program's counters.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.attached.watch()
    }

    /// Bytes from one offset up to another, as they were at one moment, in `room`.
    ///
    /// # Panics
    ///
    /// When they are not all inside, as all functions here.
    pub fn read<'a>(&self, range: Range<u64>, room: &'a mut Vec<u8>) -> &'a [u8] {
        self.shared.read(range, room)
    }

    /// Writes bytes from an offset on.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.shared.write(offset, bytes);
    }

    /// Makes bytes zero: those of an object to be, which no entry admits. Takes kernel memory for them where there is none
    /// yet.
    pub fn zero(&mut self, range: Range<u64>) {
        self.shared.zero(range, &mut |chunk| self.attached.chunk(chunk));
    }

    /// Puts what `with` makes of eight bytes, little-endian, in their place, if it makes something; what was there.
    pub fn replace(&mut self, offset: u64, with: &dyn Fn(u64) -> Option<u64>) -> u64 {
        self.shared.replace(offset, with)
    }

    /// Puts entries, as their words, in the place of those of pages from `first_page` on.
    pub fn publish(&mut self, first_page: u64, entries: &mut dyn Iterator<Item = u64>) {
        self.shared.publish(first_page, entries);
    }
}
