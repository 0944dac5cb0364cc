//! Admission to a cluster: the checks of a handshake description that every link makes before it asks the layer above.
//!
//! Promises: the sentences are true on either side, and say what to do.
//!
//! It must never send anything or ask the layer above.

use crate::HELLO_BYTES_MAX;
use crate::wrap::secure::{LINK_VERSION, NodeDescription, Security, security_code, security_word};

/// What a description of a peer must match.
pub(super) struct Rules {
    pub(super) node: usize,
    pub(super) nodes: usize,
    pub(super) security: Security,
}

impl Rules {
    /// The checks that only the listening side can make; `known` says whether this peer was here before.
    pub(super) fn judge_dialler(&self, description: &NodeDescription, known: bool) -> Result<(), String> {
        let (node, nodes, peer) = (self.node, self.nodes, description.from as usize);
        if description.version == LINK_VERSION && description.nodes as usize == nodes && peer <= node {
            return Err(format!(
                "it says it is node {peer}, which node {node} dials and not the other way round; \
                 give every process its own node number"
            ));
        }
        if peer < nodes && known {
            return Err(format!(
                "node {node} has met node {peer} already; give every process its own node number, \
                 and start all nodes again after one was lost"
            ));
        }
        Ok(())
    }

    /// The checks that both sides make.
    pub(super) fn judge(&self, peer: usize, description: &NodeDescription) -> Result<(), String> {
        let (node, nodes, security) = (self.node, self.nodes, self.security);
        if description.version != LINK_VERSION {
            return Err(format!(
                "node {peer} speaks link version {}, node {node} version {LINK_VERSION}; run the \
                 same release on every node",
                description.version
            ));
        }
        if description.nodes as usize != nodes || peer >= nodes {
            return Err(format!(
                "node {peer} has a list of {} nodes, node {node} one of {nodes}; give every node \
                 the same list",
                description.nodes
            ));
        }
        if description.security != security_code(security) {
            return Err(format!(
                "the links of node {peer} are {}, those of node {node} {security}; give every node \
                 the same security",
                security_word(description.security)
            ));
        }
        if description.from as usize != peer || description.to as usize != node {
            return Err(format!(
                "node {} answers at the address of node {peer}; give every node the same list",
                description.from
            ));
        }
        Ok(())
    }

    /// This node's description for `to`.
    pub(super) fn description(&self, to: usize, refused: bool, text: &[u8]) -> NodeDescription {
        NodeDescription {
            version: LINK_VERSION,
            refused,
            security: security_code(self.security),
            from: self.node as u32,
            to: to as u32,
            nodes: self.nodes as u32,
            text: text.to_vec(),
        }
    }
}

/// As much of a sentence as a description has room for, cut between characters.
pub(super) fn shortened(sentence: &str) -> Vec<u8> {
    let mut end = sentence.len().min(HELLO_BYTES_MAX);
    while !sentence.is_char_boundary(end) {
        end -= 1;
    }
    sentence.as_bytes()[..end].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_refusal_is_cut_between_characters() {
        let sentence = "ä".repeat(200);
        let cut = shortened(&sentence);
        assert_eq!(cut.len(), HELLO_BYTES_MAX);
        assert!(String::from_utf8(cut).is_ok());
        assert_eq!(shortened(&format!("x{sentence}")).len(), HELLO_BYTES_MAX - 1);
    }
}
