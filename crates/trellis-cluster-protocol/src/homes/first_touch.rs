//! `first-touch`: the first node to touch a page is its home.

use super::{HomeOf, Interleaved, Placement};
use crate::page::{NodeId, PageIndex};

/// A node usually works on the pages that it initialises. The directories of homes are assigned round-robin.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FirstTouch;

impl HomeOf for FirstTouch {
    fn manager_of(&self, page: PageIndex, nodes: u16) -> NodeId {
        Interleaved.manager_of(page, nodes)
    }

    fn placement(&self) -> Placement {
        Placement::FirstTouch
    }
}
