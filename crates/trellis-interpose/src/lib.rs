//! What libraries share that are loaded first and have functions with the names of the C library's.
//!
//! Promises: every function of a table ([`functions`]) knows the one that the program meant, whose name and type it has.
//! Where the C library has no such function, the answer is that of a system call that does not exist. Nothing here
//! allocates or takes a lock, and nothing has a name of the C library.

mod answer;
mod functions;
mod real;

pub use answer::Answer;
pub use libc::ENOSYS;
pub use real::{Real, errno, set_errno};
