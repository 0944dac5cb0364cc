//! Why a switch or a lab did not do what was requested.

use std::io;

/// Why a call failed. Every message names the fact, the place and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// There is no such kind of switch in this build.
    #[error("there is no switch `{name}` here; accepted: {accepted}")]
    Unknown {
        /// The name as given.
        name: String,
        /// The accepted names.
        accepted: String,
    },
    /// This build does not include the switch.
    #[error(
        "this build was made without the switch {name}; `cargo xtask install --prefix PREFIX --features {name}` installs one \
         that has it"
    )]
    NotBuilt {
        /// The switch.
        name: &'static str,
    },
    /// The switch does not support the request.
    #[error("switch {switch}: {what}")]
    Unsupported {
        /// The switch.
        switch: &'static str,
        /// What it does not support, and which switch does.
        what: String,
    },
    /// An entry is invalid.
    #[error("switch {switch}: {what}")]
    Refused {
        /// The switch.
        switch: &'static str,
        /// What is wrong, and what is accepted.
        what: String,
    },
    /// A table has no room.
    #[error("switch {switch}: the table of {table} has {limit} entries and no room for more; {hint}")]
    Full {
        /// The switch.
        switch: &'static str,
        /// The table.
        table: &'static str,
        /// Its maximum.
        limit: u32,
        /// The next step.
        hint: &'static str,
    },
    /// The error of a switch in another process.
    #[error("{sentence}")]
    Remote {
        /// Whether a table has no room.
        is_full: bool,
        /// The whole message.
        sentence: String,
    },
    /// The operating system refused something.
    #[error("cannot {attempt}: {cause}; {hint}")]
    System {
        /// What was attempted.
        attempt: String,
        /// The system's error.
        cause: String,
        /// The next step.
        hint: String,
    },
    /// The description of a lab is invalid.
    #[error("lab {lab}: {what}")]
    Lab {
        /// The lab.
        lab: String,
        /// What is wrong, and what is accepted.
        what: String,
    },
}

impl SwitchError {
    /// Whether a table has no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, SwitchError::Full { .. } | SwitchError::Remote { is_full: true, .. })
    }

    /// The error for a system call that failed.
    pub(crate) fn system(attempt: impl Into<String>, cause: &io::Error) -> SwitchError {
        let hint = match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "it takes root, or a user namespace where the switch works in one (`user`)"
            }
            Some(libc::ENODEV) => "`ip link` lists the interfaces that there are",
            Some(libc::ENOSPC) => "the machine allows no more namespaces; see /proc/sys/user",
            Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (`ulimit -n`)",
            _ => "see the kernel's log for more",
        };
        SwitchError::System { attempt: attempt.into(), cause: cause.to_string(), hint: hint.to_owned() }
    }
}
