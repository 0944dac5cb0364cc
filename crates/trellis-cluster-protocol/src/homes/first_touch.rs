//! `first-touch`: whoever touches a page first is its home.

use super::{HomeOf, Interleaved, Placement};
use crate::page::{NodeId, PageIndex};

/// What a node initialises it usually works on. Who knows the home of a page is dealt out in turn.
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
