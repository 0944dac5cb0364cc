//! What tests of several crates share. It is not part of the product: crates have it only as a dev-dependency.

mod compiled;
mod folder;
mod full_listener;
mod port;
pub mod redis_server;
pub mod scripts;

use std::fmt::Display;
use std::process::{Command, Stdio};

pub use compiled::compiled;
pub use folder::Folder;
pub use full_listener::FullListener;
pub use port::Port;

/// Says that a test cannot run here, and why. `cargo xtask test` compares these lines with the list of expected skips.
pub fn skip(test: impl Display, why: impl Display) {
    println!("SKIPPED {test}: {}", why.to_string().trim());
}

/// Whether all these programs are installed; a test that needs them prints that it was skipped and why.
pub fn are_installed(test: impl Display, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| !is_installed(program));
    if let Some(missing) = missing {
        skip(test, format_args!("{missing} is not installed"));
    }
    missing.is_none()
}

/// Whether a program is installed that says its version.
pub fn is_installed(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}
