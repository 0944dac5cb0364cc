//! The one session that C programs of this process use: what `trellis_store_lock` and its family call.
//!
//! Promises: how a session is made is told once, when the region is opened, and it is made when it is first used; a program
//! that uses no object pays nothing. A forked child has none: its parent's calls and signs of life are not its own. Must never
//! change the session: holds of it are everywhere.

use std::sync::OnceLock;

use super::error::SynchronisationError;
use super::session::Session;

/// How the session is made.
type Make = Box<dyn Fn() -> Result<Session, SynchronisationError> + Send + Sync>;

static PROCESS: OnceLock<Process> = OnceLock::new();

struct Process {
    make: Make,
    session: OnceLock<Session>,
    /// The process that opened the region.
    id: u32,
}

/// Tells how the session of this process is made, for good. False when that was told before.
pub fn install_with(make: impl Fn() -> Result<Session, SynchronisationError> + Send + Sync + 'static) -> bool {
    let process = Process { make: Box::new(make), session: OnceLock::new(), id: std::process::id() };
    PROCESS.set(process).is_ok()
}

/// The session of this process.
///
/// # Errors
///
/// [`SynchronisationError::Misuse`] when no region is open, or was opened by the parent; else as [`Session::new`].
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
    // Two threads may make one each; the second is forgotten, which costs nothing: it holds nothing.
    Ok(process.session.get_or_init(|| made))
}

/// The session of this process, if one was used.
pub fn used() -> Option<&'static Session> {
    PROCESS.get().filter(|process| process.id == std::process::id())?.session.get()
}
