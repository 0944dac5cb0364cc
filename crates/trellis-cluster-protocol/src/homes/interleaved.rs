//! `interleaved`: chunks of pages are dealt out to the nodes in turn.

use super::HomeOf;
use crate::page::{CHUNK_PAGES, NodeId, PageIndex};

/// The fixed distributed manager (Li and Hudak 1989, §3.2), with the chunk as its unit so that a
/// run of pages has one manager.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Interleaved;

impl HomeOf for Interleaved {
    fn manager_of(&self, page: PageIndex, nodes: u16) -> NodeId {
        NodeId((page.0 / CHUNK_PAGES % u32::from(nodes)) as u16)
    }
}
