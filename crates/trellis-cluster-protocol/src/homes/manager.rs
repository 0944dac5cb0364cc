//! `manager`: one node, chosen in the configuration, manages every page.

use super::HomeOf;
use crate::page::{NodeId, PageIndex};

/// The central manager (Li and Hudak 1989, §3.1; libivy's `manager_id`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Manager(pub NodeId);

impl HomeOf for Manager {
    fn manager_of(&self, _page: PageIndex, nodes: u16) -> NodeId {
        debug_assert!(self.0.0 < nodes);
        self.0
    }
}
