//! SIGINT and SIGTERM of who serves others: a store, a controller, a switch.
//!
//! Promises: the first one lets it end in order; one that comes before there is anything to end, or after the first, ends the process as if nobody had listened. Whoever ignored them goes on ignoring them. Runs no code in a handler.

use std::sync::{Arc, Mutex, PoisonError};

use crate::exit::Failure;

/// How something is told to end.
type Stop = Box<dyn FnOnce() + Send>;

/// Waits for the signals; what it finds here is how they end it.
pub(crate) struct Ends(Arc<Mutex<Option<Stop>>>);

impl Ends {
    /// Takes the signals away from every thread that is started from now on.
    pub(crate) fn listen() -> Result<Ends, Failure> {
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
            // SAFETY: both are valid as long as the calls last; this thread alone takes the signals from now on.
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
            // The second one is this thread's.
            loop {
                std::thread::park();
            }
        });
        waits.map(|_| Ends(stop)).map_err(|_| Failure::system("start a thread"))
    }

    /// The signals do this from now on, in place of what they did before.
    pub(crate) fn by(&self, stop: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(stop));
    }
}

/// A file that may not become so large is an error of whoever writes it, as a full disk is. A handler, because programs that
/// this command starts would inherit that the signal is ignored.
pub(crate) fn take_file_limits_as_errors() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing, which is allowed in one; the signal is a constant.
    unsafe { libc::signal(libc::SIGXFSZ, nothing as extern "C" fn(libc::c_int) as libc::sighandler_t) };
}
