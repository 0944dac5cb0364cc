//! Remote memory: a server that holds bytes for clients, and a client that creates, reads, writes and deletes objects
//! there.
//!
//! An object is named by a [`Pointer`], which is an IPv6 address, and every request about it is one datagram to that
//! address (`docs/reference/ipv6-address.md`, `docs/reference/ipv6-datagram.md`): no host keeps a table of where
//! objects are. The rules are in [`trellis_fabric_protocol::memory_server`]; this crate adds memory, sockets and time.
//!
//! Promises: every call of a [`Client`] ends by its deadline, and an error names the host or the pointer. What was
//! acknowledged was done, and exactly once if its effect depends on the previous content. It must never accept an
//! address of a machine's own memory: a pointer is an offset in a server's memory, and the server checks it.
//!
//! The machine needs routes that carry the cluster's addresses in both directions (`trellis serve --help` names them).

mod client;
mod error;
pub mod leased;
mod leases;
mod memory;
pub mod pages;
pub mod paging;
mod server;

pub use client::{Call, Client, ClientOptions, Outcome, Welcome};
pub use error::RemoteError;
pub use memory::{ServerMemory, entry_word};
pub use server::{Event, Place, Server, ServerOptions, Stop};
pub use trellis_fabric_protocol::wire::address::{Host, HostPrefix, PAGE_BYTES, PORT, Pointer};
pub use trellis_fabric_protocol::wire::refusals;

use client::{asking, by_lease, waiting};
use trellis_base::Deadline;
use trellis_fabric_protocol::wire::datagram::Tags;

/// The waits of this crate.
pub const WAITS: &[Deadline] = &[
    paging::PAGE,
    paging::ROOM,
    client::DEADLINE,
    asking::DETOUR,
    asking::SLICE,
    waiting::BACKUPS,
    by_lease::TURN,
    by_lease::TURN_OF_MANY,
    by_lease::RELEASE,
    server::SESSION,
    server::LEASE_TERM,
];

/// Checksums with the processor's own instruction, if it has one; no keys.
struct Hardware;

impl Tags for Hardware {
    fn checksum(&self, pieces: &[&[u8]]) -> u32 {
        pieces.iter().fold(0, |checksum, piece| crc32c::crc32c_append(checksum, piece))
    }
}

/// The maximum error of a clock's rate, in parts per million.
const CLOCK_ERROR_PPM: u32 = 1000;

/// Nanoseconds since an instant of this process.
fn nanoseconds(since: std::time::Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Unpredictable random bits.
fn random_number() -> Result<u64, RemoteError> {
    trellis_transport::random().map(u64::from_ne_bytes).map_err(RemoteError::Random)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trellis_fabric_protocol::wire::datagram::Checksums;

    #[test]
    fn both_ways_to_compute_a_checksum_agree() {
        let bytes: Vec<u8> = (0..5_000_u32).map(|at| (at * 31) as u8).collect();
        for (from, upto) in [(0, 0), (0, 1), (3, 4_099), (17, 5_000)] {
            let pieces = [&bytes[..from], &bytes[from..upto], &bytes[upto..]];
            assert_eq!(Hardware.checksum(&pieces), Checksums.checksum(&pieces));
        }
        assert_eq!(Hardware.checksum(&[b"123456789"]), 0xe306_9283);
    }
}
