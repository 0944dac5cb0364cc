//! Axis **home**: which node is the home of a page.
//!
//! Contract: `manager_of` is a pure function of the page and the configuration. It gives the same result on every node, and
//! for all pages of a chunk (see [`CHUNK_PAGES`](crate::CHUNK_PAGES)), because a page range is requested with one message.
//! The manager of a page holds its bytes until another node writes them.
//!
//! To add a choice: one file here, one line in [`Home`], one line in `Home::all`. The conformance test below runs with
//! every choice.

mod first_touch;
mod interleaved;
mod manager;
mod migrating;

pub use first_touch::FirstTouch;
pub use interleaved::Interleaved;
pub use manager::Manager;
pub use migrating::Migrating;

use crate::page::{NodeId, PageIndex};

/// What a choice of home must provide.
pub trait HomeOf {
    /// The node that manages `page` in a cluster of `nodes`.
    fn manager_of(&self, page: PageIndex, nodes: u16) -> NodeId;

    /// What the manager of a page does in a protocol whose homes can be anywhere.
    fn placement(&self) -> Placement {
        Placement::Fixed
    }
}

/// Where the homes of pages are in a protocol that lets them be anywhere ([`crate::coherence::hlrc`]). In other protocols
/// the manager is the home.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Placement {
    /// At the manager.
    Fixed,
    /// At the first node that touches the page; the manager keeps track of it.
    FirstTouch,
    /// At the first node that touches the page, later at the node that writes it most.
    Migrating,
}

/// The choices of home.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Home {
    /// One node manages every page (IVY's central manager, libivy's `manager_id`).
    Manager(Manager),
    /// Chunks are assigned round-robin (Li and Hudak's fixed distributed manager).
    Interleaved(Interleaved),
    /// The first node to touch a page is its home.
    FirstTouch(FirstTouch),
    /// The home follows the node that writes most.
    Migrating(Migrating),
}

impl Home {
    /// Every choice, with `manager` as the central manager.
    pub fn all(manager: NodeId) -> [Home; 4] {
        [
            Home::Manager(Manager(manager)),
            Home::Interleaved(Interleaved),
            Home::FirstTouch(FirstTouch),
            Home::Migrating(Migrating),
        ]
    }

    /// The name in configuration, command line and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Home::Manager(_) => "manager",
            Home::Interleaved(_) => "interleaved",
            Home::FirstTouch(_) => "first-touch",
            Home::Migrating(_) => "migrating",
        }
    }
}

impl HomeOf for Home {
    fn manager_of(&self, page: PageIndex, nodes: u16) -> NodeId {
        match self {
            Home::Manager(home) => home.manager_of(page, nodes),
            Home::Interleaved(home) => home.manager_of(page, nodes),
            Home::FirstTouch(home) => home.manager_of(page, nodes),
            Home::Migrating(home) => home.manager_of(page, nodes),
        }
    }

    fn placement(&self) -> Placement {
        match self {
            Home::Manager(home) => home.placement(),
            Home::Interleaved(home) => home.placement(),
            Home::FirstTouch(home) => home.placement(),
            Home::Migrating(home) => home.placement(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::CHUNK_PAGES;

    #[test]
    fn every_home_names_a_member_and_never_splits_a_chunk() {
        for nodes in [1, 2, 3, 16, 1024] {
            for home in Home::all(NodeId(nodes - 1)) {
                for chunk in 0..2000 {
                    let first = home.manager_of(PageIndex(chunk * CHUNK_PAGES), nodes);
                    let last = home.manager_of(PageIndex((chunk + 1) * CHUNK_PAGES - 1), nodes);
                    assert!(first.0 < nodes, "{}: {first} of {nodes}", home.name());
                    assert_eq!(first, last, "{}: chunk {chunk} is split", home.name());
                }
            }
        }
    }

    #[test]
    fn interleaved_uses_every_node() {
        let managers = (0..4u32).map(|chunk| Interleaved.manager_of(PageIndex(chunk * CHUNK_PAGES), 4).0);
        assert!(managers.eq([0, 1, 2, 3]));
    }
}
