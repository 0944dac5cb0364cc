//! The one session that C programs of this process use through `trellis_store_lock` and its family.
//!
//! Promises: the way to create the session is set once, when the region is opened, and the session is created at its
//! first use; a program that uses no object pays nothing. A forked child has no session: its parent's calls and
//! heartbeats are not its own. It must never replace the session, because holds refer to it.

use std::sync::OnceLock;

use super::error::SynchronisationError;
use super::session::Session;

/// Creates the session.
type Make = Box<dyn Fn() -> Result<Session, SynchronisationError> + Send + Sync>;

static PROCESS: OnceLock<Process> = OnceLock::new();

struct Process {
    make: Make,
    session: OnceLock<Session>,
    /// The number of the process that opened the region.
    id: u32,
}

/// Sets how the session of this process is created, permanently. False if that was set before.
pub fn install_with(make: impl Fn() -> Result<Session, SynchronisationError> + Send + Sync + 'static) -> bool {
    let process = Process { make: Box::new(make), session: OnceLock::new(), id: std::process::id() };
    PROCESS.set(process).is_ok()
}

/// The session of this process.
///
/// # Errors
///
/// [`SynchronisationError::Misuse`] if no region is open, or if the parent opened it; otherwise as [`Session::new`].
pub fn session() -> Result<&'static Session, SynchronisationError> {
    let process = PROCESS.get().ok_or_else(|| {
        let why =
            "no region is open in this process; set TRELLIS_STORE_REGION for a compiled program, or open one first";
        SynchronisationError::Misuse(why.to_owned())
    })?;
    if process.id != std::process::id() {
        let why = "the region was opened by the parent of this process; open it again after fork, by exec for example";
        return Err(SynchronisationError::Misuse(why.to_owned()));
    }
    if let Some(session) = process.session.get() {
        return Ok(session);
    }
    let made = (process.make)()?;
    // Two threads may create one each; the second is dropped, which is harmless because it holds nothing.
    Ok(process.session.get_or_init(|| made))
}

/// The session of this process, if it was used.
pub fn used() -> Option<&'static Session> {
    PROCESS.get().filter(|process| process.id == std::process::id())?.session.get()
}
