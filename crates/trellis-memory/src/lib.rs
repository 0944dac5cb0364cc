//! Regions: memory in which every access can be caught, one page at a time.
//!
//! A [`Region`] is one memfd that is mapped twice. The program touches the *application view*; the chosen [`Catcher`]
//! catches an access that is not allowed now, and passes it on as a [`Fault`]. The *privileged view* is always readable
//! and writable; bytes are received directly into it and become visible with [`Region::install`].
//!
//! If several nodes may store to a page at once, the kernel records stores instead of turning them into faults
//! ([`Region::detect`], [`Region::stored_to`]). The stored bytes are the difference between the page and its twin
//! ([`Region::keep_twin`], [`diff`]).
//!
//! Promises: the path of a fault allocates nothing, logs nothing and takes no lock. A request that the machine cannot
//! fulfil is refused at the start with a message. It must never decide *which node* may read or write a page, wait for
//! another process, or open a socket: other crates do that.

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("trellis-memory needs Linux on x86-64 or aarch64: it tells read faults from write faults there");

mod arena;
mod catch;
pub mod diff;
mod doctor;
mod error;
mod places;
mod region;
mod reserve;
mod sys;

pub use arena::Arena;
pub use catch::{Abilities, Catcher, PageSet, choose};
pub use doctor::{CALLS, Capabilities, Capability, probe};
pub use error::{MapError, RegionError, UnknownWord};
pub use places::Piece;
pub use region::{
    Access, Detection, FAULT_BATCH, Fault, FaultServer, PAGE_BYTES_MAX, PAGE_BYTES_MIN, Parts, REGION_BYTES_MAX,
    REGION_BYTES_MIN, Region, RegionOptions,
};
pub use reserve::Reserve;
pub use sys::linux::limits::{available_bytes, can_hold};
pub use sys::linux::signals::{REGIONS_MAX, announce, claim_signal};
