//! Why a switch or a lab did not do what it was asked.

use std::io;

/// Why a call failed. Every sentence names the fact, the place and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The choice is none of this build.
    #[error("there is no switch `{name}` here; accepted: {accepted}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What would be right.
        accepted: String,
    },
    /// This build was made without it.
    #[error(
        "this build was made without the switch {name}; `cargo xtask install --prefix PREFIX --features {name}` installs one \
         that has it"
    )]
    NotBuilt {
        /// Which.
        name: &'static str,
    },
    /// What this switch cannot do.
    #[error("switch {switch}: {what}")]
    Unsupported {
        /// Which.
        switch: &'static str,
        /// What it cannot do, and what can.
        what: String,
    },
    /// An entry makes no sense.
    #[error("switch {switch}: {what}")]
    Refused {
        /// Which.
        switch: &'static str,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// A table has no room.
    #[error("switch {switch}: the table of {table} has {limit} entries and no room for more; {hint}")]
    Full {
        /// Which.
        switch: &'static str,
        /// Of what.
        table: &'static str,
        /// How many it takes.
        limit: u32,
        /// What to do.
        hint: &'static str,
    },
    /// What a switch of another process said.
    #[error("{sentence}")]
    Told {
        /// Whether a table has no room.
        is_full: bool,
        /// All of it.
        sentence: String,
    },
    /// The operating system refused something.
    #[error("cannot {attempt}: {cause}; {hint}")]
    System {
        /// What was attempted.
        attempt: String,
        /// What the system said.
        cause: String,
        /// What to do.
        hint: String,
    },
    /// A description of a lab makes no sense.
    #[error("lab {lab}: {what}")]
    Lab {
        /// Which.
        lab: String,
        /// What is wrong, and what would be right.
        what: String,
    },
}

impl SwitchError {
    /// Whether a table has no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, SwitchError::Full { .. } | SwitchError::Told { is_full: true, .. })
    }

    /// A system call did not work.
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
