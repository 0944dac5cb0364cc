//! A server's memory with a program in the kernel that answers READ and WRITE: connects the crate that changes
//! networks with the one that serves.

use std::ops::Range;

use trellis::remote::{HostPrefix, ServerMemory};
use trellis_switch::memory::{KernelMemory, Options};
use trellis_switch::{Cluster, SwitchError};

/// Opens the memory.
pub(super) fn open(
    prefix: HostPrefix,
    memory_bytes: u64,
    port: u16,
    device: Option<&str>,
) -> Result<InKernel, SwitchError> {
    let cluster = Cluster::new(prefix.cluster.number());
    let device = device.map(str::to_owned);
    KernelMemory::open(&Options { cluster, home: prefix.host.0, memory_bytes, port, device }).map(InKernel)
}

/// The memory in the form that a server needs.
pub(super) struct InKernel(pub(super) KernelMemory);

impl ServerMemory for InKernel {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read<'a>(&'a self, range: Range<u64>, room: &'a mut Vec<u8>) -> &'a [u8] {
        self.0.read(range, room)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }

    fn zero(&mut self, range: Range<u64>) {
        self.0.zero(range);
    }

    fn replace(&mut self, offset: u64, with: &dyn Fn(u64) -> Option<u64>) -> u64 {
        self.0.replace(offset, with)
    }

    fn publish(&mut self, first_page: u64, entries: &mut dyn Iterator<Item = u64>) {
        self.0.publish(first_page, entries);
    }
}
