//! A thread that works for a switch, and ends with it.

use std::thread::{Builder, JoinHandle};

use crate::error::SwitchError;
use crate::sys;

/// Dropping it signals the thread, and waits for it to end.
pub(in crate::switches) struct Worker {
    thread: Option<JoinHandle<()>>,
    alarm: Option<sys::Alarm>,
}

impl Worker {
    /// Starts a thread, which must end soon after its argument becomes readable.
    pub(in crate::switches) fn start(work: impl FnOnce(sys::Ringing) + Send + 'static) -> Result<Worker, SwitchError> {
        let (alarm, ringing) = sys::alarm().map_err(|error| SwitchError::system("make a socket pair", &error))?;
        let thread = Builder::new()
            .name("trellis-switch".to_owned())
            .spawn(move || work(ringing))
            .map_err(|error| SwitchError::system("start the thread of the switch", &error))?;
        Ok(Worker { thread: Some(thread), alarm: Some(alarm) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.alarm = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            // Ends when the thread sees that it is over, which the alarm tells it.
            let _ = thread.join();
        }
    }
}
