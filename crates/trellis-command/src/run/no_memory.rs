//! Stands for [`memory`](super::memory) in a build without the cargo feature `remote`.

use trellis::config::{Config, HostPrefix};

use crate::exit::{self, Failure};

/// The run's own memory server; there is none.
pub(super) enum Place {}

impl Place {
    pub(super) fn for_run(read: &Config, _: usize) -> Result<Option<Place>, Failure> {
        match read.is_leased() {
            true => Err(Failure::new(
                exit::USAGE,
                "this build has no memory servers; `cargo xtask install` builds a command that has them",
            )),
            false => Ok(None),
        }
    }

    pub(super) fn has_moved(&self) -> bool {
        match *self {}
    }

    pub(super) fn of_node(&self, _: usize) -> HostPrefix {
        match *self {}
    }

    pub(super) fn of_server(&self) -> HostPrefix {
        match *self {}
    }

    pub(super) fn serve(&self) -> Result<(), Failure> {
        match *self {}
    }
}
