//! The controller: assigns the home of each range, maintains its backups, moves ranges, and configures the switch.
//!
//! The mutual obligations of a home, a backup and a controller are defined in `trellis_fabric_protocol::lease`. This
//! crate adds all ranges of a cluster, the store to which decisions are written before they are sent, the switch that
//! sends requests to homes, the election of one of several controllers, and the operators' interface.
//!
//! Promises:
//!
//! - **One leader**: of several controllers with one store, one leads at any instant ([`leadership`]), and writes of
//!   another one are refused ([`records`]).
//! - **Write before send** ([`ranges`]): a controller may be killed at any moment and started again.
//! - **No reliance on the switch** ([`routes`]): it is configured at once, and again if it has lost its state, and it may
//!   be wrong.
//!
//! It must never give a range to a host that does not have all of it, nor reset a range of which a host has a copy. If
//! a range cannot be served, the operator gets an event that says what can be done ([`Event`]).

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

use ranges::{moves, policy, range, replicas};
use trellis_base::{Deadline, Limit};

/// The waits of this crate.
pub const WAITS: &[Deadline] = &[
    HOME_LEASE,
    leadership::SILENCE,
    range::ROUTE,
    policy::READY,
    moves::REQUESTED,
    replicas::COPY,
    control::TIMEOUT,
    control::SILENCE,
];

/// The limit of what controllers, homes and backups owe each other, which the state machines of leases keep.
const HOME_LEASE: Deadline = Deadline {
    who: "a controller, a server",
    waits_for: "each other, and a home its backups",
    limit: Limit::Other("the term of a *home lease*, in [Controllers](controller.md)"),
    then: "another home, and an event that names who was silent",
    tested: "crates/trellis-controller/src/ranges/tests/mod.rs one_that_is_cut_off_is_never_home_beside_another",
};
