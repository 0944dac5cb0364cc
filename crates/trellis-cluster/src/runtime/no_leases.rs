//! Stands for [`leases`](super::leases) in a build without the cargo feature `remote`: a node whose region lies at memory
//! servers does not start.

use std::ops::Range;
use std::sync::Arc;

use super::Node;

/// Pages at memory servers; there are none.
pub(super) enum Leases {}

impl Leases {
    pub(super) fn prefetch(&self, _: Range<u32>, _: bool) {
        match *self {}
    }
}

impl Node {
    pub(crate) fn begin_leases(self: &Arc<Node>) -> Result<(), String> {
        match self.config.is_leased() {
            true => {
                Err("home: this build of Trellis has no memory servers; build it with the feature `remote`, which is \
                         on unless it was turned off, or set another home"
                    .to_owned())
            }
            false => Ok(()),
        }
    }

    pub(crate) fn flush_leases(&self) {}

    pub(crate) fn end_leases(&self) {}
}
