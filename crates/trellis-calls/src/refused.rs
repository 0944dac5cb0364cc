//! The sentence about a call that is refused.
//!
//! Promises: one sentence for each call, on standard error, without memory or a lock.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// A sentence on the stack. Text that does not fit is left out.
struct Sentence {
    text: [u8; 256],
    used: usize,
}

impl Write for Sentence {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let part = &part.as_bytes()[..part.len().min(self.text.len() - self.used)];
        self.text[self.used..self.used + part.len()].copy_from_slice(part);
        self.used += part.len();
        Ok(())
    }
}

/// The sentences that were printed: one bit for each, by a hash of its text.
static SAID: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Prints once that a call was refused. `what` names it.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    let mut sentence = Sentence { text: [0; 256], used: 0 };
    // Writing to it cannot fail.
    let _ = writeln!(
        sentence,
        "trellis: {what} is refused with ENOSYS: it is not known what it does with shared memory; use a private buffer, or \
         --set catch=handler"
    );
    let text = &sentence.text[..sentence.used];
    let number = text.iter().fold(0u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)) >> 32;
    let bit = 1 << (number % 64);
    if SAID[(number / 64) as usize % SAID.len()].fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        // SAFETY: text on the stack.
        unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, text.as_ptr(), text.len()) };
    }
}
