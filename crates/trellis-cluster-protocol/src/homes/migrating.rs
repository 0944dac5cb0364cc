//! `migrating`: the home of a page follows the node that writes it most.

use super::{HomeOf, Interleaved, Placement};
use crate::page::{NodeId, PageIndex};

/// The first node to touch a page is its home until another node has been the only one to publish it several times in a
/// row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Migrating;

impl HomeOf for Migrating {
    fn manager_of(&self, page: PageIndex, nodes: u16) -> NodeId {
        Interleaved.manager_of(page, nodes)
    }

    fn placement(&self) -> Placement {
        Placement::Migrating
    }
}
