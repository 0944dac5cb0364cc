//! Says which memory server is home of which range, keeps copies of it, moves it, and tells the switch.
//!
//! What a home, a backup and a controller owe each other is `trellis_fabric_protocol::lease`; here are all ranges of a cluster, the
//! store that what is said was written to before, the switch that sends requests where homes are, the election of one of
//! several controllers, and operators.
//!
//! Promises:
//!
//! - **One speaks**: of several controllers with one store, one leads at an instant ([`leadership`]), and what another one
//!   writes is refused ([`records`]).
//! - **Written before said** ([`ranges`]): it may be killed at any moment and started again.
//! - **Nothing rests on the switch** ([`routes`]): it is told at once, again after it forgot, and may be wrong.
//!
//! It must never give a range to a host that has not all of it, nor let one begin anew that somebody has; what cannot be
//! served is said to the operator with what can be done ([`Event`]).

pub mod control;
mod controller;
mod event;
pub mod leadership;
pub mod ranges;
pub mod records;
pub mod routes;
mod workers;

pub use controller::{CLOCK_ERROR_PPM, Controller, ControllerError, Options, Stop};
pub use event::{Because, Event};
