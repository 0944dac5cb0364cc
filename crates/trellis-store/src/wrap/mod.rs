//! Stores round stores: they count, delay or fail what goes through them.
//!
//! Each promises to hand everything on unchanged but for what it is there for, and never to take a lock while it does.

mod counted;
mod delayed;
mod failing;

pub use counted::{Counted, Counts};
pub use delayed::Delayed;
pub use failing::{Failing, Fault};
