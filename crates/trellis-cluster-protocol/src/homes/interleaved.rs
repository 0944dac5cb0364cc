//! `interleaved`: chunks of pages are assigned to the nodes round-robin.

use super::HomeOf;
use crate::page::{CHUNK_PAGES, NodeId, PageIndex};

/// The fixed distributed manager (Li and Hudak 1989, §3.2). Its unit is the chunk, so that a page range has one manager.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Interleaved;

impl HomeOf for Interleaved {
    fn manager_of(&self, page: PageIndex, nodes: u16) -> NodeId {
        NodeId((page.0 / CHUNK_PAGES % u32::from(nodes)) as u16)
    }
}
