//! Handles SIGINT and SIGTERM in commands that serve others: a store, a controller, a switch.
//!
//! Promises: the first signal ends the service in order. One that arrives before there is anything to end, or after
//! the first, ends the process as without a handler. A process that ignored the signals still ignores them. Runs no
//! code in a handler.

use std::sync::{Arc, Mutex, PoisonError};

use crate::exit::Failure;

/// Ends a service.
type Stop = Box<dyn FnOnce() + Send>;

/// Waits for the signals; it holds the function that they call.
pub struct Ends(Arc<Mutex<Option<Stop>>>);

impl Ends {
    /// Blocks the signals in every thread that is started from now on.
    pub fn listen() -> Result<Ends, Failure> {
        // SAFETY: the set is plain data that the C library fills before it is read.
        let signals = unsafe {
            let mut signals: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut signals);
            libc::sigaddset(&mut signals, libc::SIGINT);
            libc::sigaddset(&mut signals, libc::SIGTERM);
            if libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut()) != 0 {
                return Err(Failure::system("block signals"));
            }
            signals
        };
        let stop: Arc<Mutex<Option<Stop>>> = Arc::default();
        let known = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("signals".to_owned());
        let waits = thread.spawn(move || {
            let mut signal = 0;
            // SAFETY: both are valid during the calls; only this thread takes the signals from now on.
            let is_first = unsafe {
                let waited = libc::sigwait(&signals, &mut signal);
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &signals, std::ptr::null_mut());
                waited == 0
            };
            match known.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(stop) if is_first => stop(),
                // SAFETY: the signal is one of the two, or none, which does nothing.
                _ => drop(unsafe { libc::raise(signal) }),
            }
            // The second signal is for this thread.
            loop {
                std::thread::park();
            }
        });
        waits.map(|_| Ends(stop)).map_err(|_| Failure::system("start a thread"))
    }

    /// From now on the signals call `stop`, instead of what they called before.
    pub fn by(&self, stop: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(stop));
    }
}

/// Makes an exceeded file size limit an error of the write, like a full disk. It uses a handler, because programs
/// that this command starts would inherit an ignored signal.
pub fn take_file_limits_as_errors() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing, which is allowed in one; the signal is a constant.
    unsafe { libc::signal(libc::SIGXFSZ, nothing as extern "C" fn(libc::c_int) as libc::sighandler_t) };
}
