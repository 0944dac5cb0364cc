//! Changes networks: everything that needs privileges over one.
//!
//! A [`Switch`] connects hosts and knows where memory lies: it sends a request to the host that answers for its
//! address. A [`lab::Lab`] creates hosts to test that with: network namespaces of this machine, connected by a switch.
//!
//! Promises:
//!
//! - **No external changes**: what a switch or a lab changes belongs to the namespaces that it was given or created. It
//!   ends with the process that created it, however that process ends.
//! - **Soft state**: a switch may forget everything at any time. Nothing that it says or forgets makes an answer wrong;
//!   it only affects how fast an answer is found.
//! - **Uniform behaviour**: every kind of switch passes one test suite; its [`Capabilities`] say what it cannot do.
//!
//! It must never rewrite an IPv6 address, read more of a payload than the header of a reply, or interpret the content
//! of memory.

mod address;
mod capabilities;
mod clock;
pub mod control;
mod entries;
mod error;
mod faults;
pub mod lab;
pub mod layout;
#[cfg(feature = "bpf")]
pub mod memory;
mod observed;
mod switch;
pub mod switches;
mod sys;

pub use address::{Classes, Cluster, Page, PageRange, Prefix};
pub use capabilities::Capabilities;
pub use entries::{CLONES_MAX, Group, PAGE_ROUTES_MAX, PORTS_MAX, Port, Redirect, Route, Rule};
pub use error::SwitchError;
pub use faults::Faults;
pub use observed::{Counters, Event, EventKind, HotPage};
pub use switch::Switch;

use lab::wiring;
use switches::waits;
use trellis_base::Deadline;

/// The waits of this crate, and those of `trellis switch run`.
pub const WAITS: &[Deadline] = &[
    control::messages::TIMEOUT,
    waits::CONNECTING,
    waits::CONNECT,
    waits::HELLO,
    waits::ANSWER,
    waits::DEAD,
    waits::CONNECTION,
    waits::COUNT,
    waits::OPEN_VSWITCH,
    wiring::LINKS,
];
