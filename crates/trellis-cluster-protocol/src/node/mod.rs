//! The decisions of a node besides the protocols of its pages.
//!
//! - Releases: how a node publishes its stores and applies what others published, which pages it examines for stores, when
//!   a message that releases something may be used, and what may be forgotten after a barrier.
//! - Time: how long a page is held for a thread, when an alarm goes off, who holds locked ranges.
//! - Agreement: how all nodes change the protocol of pages or none does, how a node leaves while the others go on, and how
//!   its pages are taken over.
//!
//! [`Shard`] joins the decisions about the pages of one shard, and [`Consistency`] those about releases on the whole node.
//! [`step`] lets a shard take a fact, and has a [`Carrier`] carry out what follows. A decision about several shards or
//! other parts holds them one after the other ([`Parts`], [`Whole`]): [`publish`], [`apply`], [`hear`], [`with_token`],
//! [`LockedRange`], [`PageChange`], [`Leaving`], [`members_changed`]. Facts that are not about pages go to [`take_fact`] and
//! [`receive`].
//!
//! The runtime keeps these values under locks of their own. [`Node`] is all of them as one value, as the checker's clusters
//! have it. Both drive the same code, which keeps the rules of the crate: no clock, no thread, no bytes of pages.

pub mod change;
mod consistency;
mod departure;
mod dispatch;
mod frozen;
mod knowledge;
mod leaving;
mod marks;
mod open_pages;
mod page_change;
mod range_locks;
mod releases;
mod shard;
mod step;
mod take_over;
mod timers;
mod whole;

pub use consistency::{Consistency, Piggybacking, PublicationLimits, Refreshing};
pub use departure::{Awaited, Leaving, answer_deferred, answer_held, members_changed};
pub use dispatch::{
    Holds, HoldsObjects, Input, Outlet, Sent, Whole, inquire, receive, step_heap, step_objects, take_fact,
};
pub use frozen::{CannotLock, GatherStep, Gathering, gathering};
pub use knowledge::Knowledge;
pub use leaving::{Departures, LeavingStep, Route, left_behind};
use marks::Marks;
pub use open_pages::STORED_IN_A_ROW;
pub use page_change::{Next, PageChange, change_run, thaw};
pub use range_locks::{GivenBack, LockStep, LockedRange, RangeLockCall, RangeLocks, give_back_all, locked};
pub use releases::{Releases, acquired, apply, enters, hear, leaves, look_for_stores, publish, published, with_token};
pub use shard::{Order, Shard};
pub use step::{Carrier, Parts, looks, runs_on, step, take, take_due};
pub use take_over::{TakeOver, Taking};
pub use timers::{Resumes, Timers};
pub use whole::{Effects, Node};
