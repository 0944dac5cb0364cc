//! What a node decides besides the protocols of its pages: how it publishes what it stored and applies what others
//! published, when a message that releases something may be used, what need not be kept after a barrier, which pages must
//! be examined for stores, how long a page stays or an alarm waits, who holds locked ranges, how all nodes change the
//! protocol of pages or none does, how a node leaves while the others go on, and how its pages are taken over. [`Shard`]
//! joins what concerns the pages of one shard, and [`Consistency`] what concerns release consistency on the whole node.
//!
//! The runtime and the checker's clusters drive these values as they are. They keep the rules of the crate: no clock, no
//! thread, no bytes of pages.

pub mod change;
mod consistency;
mod frozen;
mod knowledge;
mod leaving;
mod marks;
mod open_pages;
mod range_locks;
mod shard;
mod take_over;
mod timers;

pub use consistency::{Consistency, PublicationLimits, Refreshing, carried_pages_max};
pub use frozen::{CannotLock, Pulling, gathering};
pub use knowledge::Knowledge;
pub use leaving::{Departures, LeavingStep, Route, left_behind};
use marks::Marks;
pub use open_pages::STORED_IN_A_ROW;
pub use range_locks::{GivenBack, LockedRange, RangeLockCall, RangeLocks};
pub use shard::{Order, Shard};
pub use take_over::{TakeOver, Taking};
pub use timers::{Resumes, Timers};
