//! Recognises shells, whose heap cannot lie in a store.
//!
//! Promises: a shell is recognised by the executable that runs, whatever started it. It must never refuse a shell that
//! a program with a heap in a store starts: such a child ends before it forks, or opens the store itself.

use std::ffi::OsStr;
use std::path::Path;

/// The variable in which `trellis store run` passes the process number of the program that it becomes. A child of that
/// program has another number.
pub const PROCESS: &str = "TRELLIS_STORE_PROCESS";

/// Programs that start others as forked children, which have no access to the heap.
const SHELLS: [&str; 11] = ["sh", "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "mksh", "tcsh", "zsh"];

/// Whether a file is a shell, by its name.
pub fn is_shell(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| SHELLS.contains(&name))
}

/// Why this process, which `trellis store run` started through another program (`env`, `nice`), cannot have its heap in
/// a store.
pub fn hindrance() -> Option<String> {
    let process = std::env::var(PROCESS).ok()?;
    let program = std::fs::read_link("/proc/self/exe").ok()?;
    let is_it = process == std::process::id().to_string() && is_shell(&program);
    is_it.then(|| {
        format!(
            "{} is a shell, and what it starts is a forked child, which has no part of the heap; name the program itself",
            program.display()
        )
    })
}
