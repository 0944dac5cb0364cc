//! The common part of libraries that are loaded first and replace functions of the C library.
//!
//! Promises: every function of a table ([`functions`]) knows the function that it replaces, which has the same name and
//! type. Where the C library has no such function, the answer is that of a system call that does not exist. Nothing
//! here allocates or takes a lock, and nothing has a name of the C library.

mod answer;
mod functions;
mod real;

pub use answer::Answer;
pub use libc::ENOSYS;
pub use real::{Real, errno, set_errno};
