//! How a process ends that cannot have its memory: one sentence, and status 70.
//!
//! Promises: nothing runs any more after the sentence, no destructor and no handler of the program's: any of them could
//! touch the memory that is not there. Must never be reached while there is somebody to return an error to.

use std::io::Write;

use crate::launch::EXIT_CLUSTER;

/// Says why on standard error, and ends the process.
pub fn end_process(why: &dyn std::fmt::Display) -> ! {
    // One write, so that the lines of several processes do not mix.
    let _ = std::io::stderr().write_all(format!("trellis: {why}\n").as_bytes());
    // SAFETY: ends the process without running anything else of it.
    unsafe { libc::_exit(EXIT_CLUSTER) }
}
