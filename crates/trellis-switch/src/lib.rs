//! Changes networks: everything that needs privileges over one.
//!
//! A [`Switch`] joins hosts and knows where memory lies: it sends a request to whoever answers for the address that the
//! request is for. A [`lab::Lab`] makes hosts to try that with: network namespaces of this machine, joined by a switch.
//!
//! Promises:
//!
//! - **Nothing outside**: what a switch or a lab changes belongs to the namespaces that it was given or made. It ends with
//!   the process that made it, however that process ends.
//! - **Soft state**: a switch may forget everything at any time. Nothing that it says or forgets makes an answer wrong;
//!   it only decides how fast one is found.
//! - **The same everywhere**: every choice passes one suite; what a choice cannot do, its [`Capabilities`] say.
//!
//! It must never rewrite an IPv6 address, read more of a payload than the header of a reply, or know what memory holds.

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

pub use address::{Classes, Cluster, Page, PageRun, Prefix};
pub use capabilities::Capabilities;
pub use entries::{CLONES_MAX, Group, PORTS_MAX, Port, RUNS_MAX, Redirect, Route, Rule};
pub use error::SwitchError;
pub use faults::Faults;
pub use observed::{Counters, Event, EventKind, HotPage};
pub use switch::Switch;
