//! What tests of several crates share. It is not part of the product: crates have it only as a dev-dependency.

mod compiled;
mod folder;
mod full_listener;
mod port;
pub mod redis_server;
pub mod scripts;

use std::fmt::{self, Display};
use std::process::{Command, Stdio};

pub use compiled::compiled;
pub use folder::Folder;
pub use full_listener::FullListener;
pub use port::{Port, datagram_sockets, listeners};
pub use trellis_output::programs;

/// What a test may lack on a machine. `tests/expected-skips.txt` says of each where that may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The rights of root.
    Root,
    /// Namespaces that this user may make.
    Namespaces,
    /// A kernel that allows what the test is about.
    Kernel,
    /// A program or a library.
    Program,
    /// A part of this repository that is built apart, or what builds it.
    Part,
    /// A way to a registry of packages.
    Registry,
    /// A machine of another size, or another link than the one that is tested.
    Machine,
}

impl fmt::Display for Need {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Need::Root => "root",
            Need::Namespaces => "namespaces",
            Need::Kernel => "kernel",
            Need::Program => "program",
            Need::Part => "part",
            Need::Registry => "registry",
            Need::Machine => "machine",
        })
    }
}

/// Says that a test cannot run here, what it lacks, and why. `cargo xtask test` reads these lines.
pub fn skip(test: impl Display, need: Need, why: impl Display) {
    // On one line, whatever a program said.
    let why = why.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    println!("SKIPPED {test} ({need}): {why}");
}

/// Whether all these programs are installed; a test that needs them prints that it was skipped and why.
pub fn are_installed(test: impl Display, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| !is_installed(program));
    if let Some(missing) = missing {
        skip(test, Need::Program, format_args!("{missing} is not installed"));
    }
    missing.is_none()
}

/// Whether a program is installed that says its version.
pub fn is_installed(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}
