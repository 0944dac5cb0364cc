//! Checks protocols exhaustively on small clusters, and at random on larger ones.
//!
//! The [`explore`] module visits every state that a small cluster can reach, in whatever order messages arrive and
//! threads run. [`release`] is such a cluster of whole nodes, with oracles for memory under release consistency, for changes
//! of protocols, for conditions, and, with the programs of [`synchronisation`], for all objects. [`pages`] is one in which
//! any page may be accessed at any time, for protocols with sequential consistency. [`members`] defines how nodes join and
//! leave, [`heap`] how their programs allocate and free, and [`ends`] how they end. [`mutants`] breaks the protocol in known
//! ways and expects the explorer to notice each of them. All checkers carry out the orders of a shard in the same way ([`model`]).
//!
//! Promises: the crate runs the real `step` of the protocol. The same instance gives the same states and the same
//! trace on every machine. A violation is reported as the shortest trace that leads to it. It must never accept a
//! state that it did not check: an instance that is larger than its bound ends with [`explore::Verdict::TooLarge`].

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![forbid(unsafe_code)]

/// Everything of [`Coherence`](trellis_cluster_protocol::coherence::Coherence) but `step`, as a field of `self` has it:
/// for protocols that are another one with a rule broken.
#[macro_export]
macro_rules! answers_as {
    ($inner:ident) => {
        fn access(&self, page: ::trellis_cluster_protocol::PageIndex) -> ::trellis_cluster_protocol::Access {
            self.$inner.access(page)
        }

        fn is_pending(&self, page: ::trellis_cluster_protocol::PageIndex) -> bool {
            self.$inner.is_pending(page)
        }

        fn owns(&self, page: ::trellis_cluster_protocol::PageIndex) -> bool {
            self.$inner.owns(page)
        }

        fn leaves_behind(&self, page: ::trellis_cluster_protocol::PageIndex) -> bool {
            self.$inner.leaves_behind(page)
        }

        fn is_untouched(&self, page: ::trellis_cluster_protocol::PageIndex) -> bool {
            self.$inner.is_untouched(page)
        }

        fn release(&mut self, page: ::trellis_cluster_protocol::PageIndex) {
            self.$inner.release(page);
        }

        fn adopt(&mut self, page: ::trellis_cluster_protocol::PageIndex) {
            self.$inner.adopt(page);
        }

        fn may_hand_over(&self, page: ::trellis_cluster_protocol::PageIndex) -> bool {
            self.$inner.may_hand_over(page)
        }

        fn change(
            &mut self,
            range: ::trellis_cluster_protocol::PageRange,
            protocol: ::trellis_cluster_protocol::coherence::Protocol,
        ) -> Result<(), ::trellis_cluster_protocol::coherence::CannotChange> {
            self.$inner.change(range, protocol)
        }

        fn lockable(
            &self,
            wanted: ::trellis_cluster_protocol::PageRange,
        ) -> Result<::trellis_cluster_protocol::PageRange, ::trellis_cluster_protocol::PageRange> {
            self.$inner.lockable(wanted)
        }

        fn is_watched(&self, page: ::trellis_cluster_protocol::PageIndex) -> bool {
            self.$inner.is_watched(page)
        }

        fn has_twin(&self, page: ::trellis_cluster_protocol::PageIndex) -> bool {
            self.$inner.has_twin(page)
        }

        fn publishers(&self) -> u32 {
            self.$inner.publishers()
        }

        fn publishing(&self) -> u32 {
            self.$inner.publishing()
        }

        fn has_migratory(&self) -> bool {
            self.$inner.has_migratory()
        }
    };
}

pub mod commands;
pub mod ends;
pub mod explore;
mod fingerprint;
pub mod heap;
pub mod history;
mod intern;
pub mod leases;
pub mod litmus;
pub mod members;
pub mod model;
pub mod mutants;
pub mod pages;
pub mod release;
pub mod scale;
pub mod simulate;
pub mod synchronisation;
pub mod turns;
mod world;
