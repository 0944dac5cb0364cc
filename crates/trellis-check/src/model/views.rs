//! What must hold when a node changes its view of a page or sends its bytes, for the clusters of all models.
//!
//! Promises: a change that the contract of [`trellis_cluster_protocol::coherence`] forbids is an error that names the
//! node and the page. It must never know more than one view.

use std::fmt::Display;
use trellis_cluster_protocol::Access;

/// A change of a view. A view may be revoked at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Downgrade,
    Install,
    Upgrade,
}

/// Checks that a view that allows `before` may be changed in this way.
pub(crate) fn check_change(
    node: impl Display,
    page: impl Display,
    before: Access,
    change: Change,
) -> Result<(), String> {
    let (fits, does) = match change {
        Change::Downgrade => (before != Access::None, "downgrades"),
        Change::Install => (before == Access::None, "installs"),
        Change::Upgrade => (before == Access::Read, "upgrades"),
    };
    fits.then_some(()).ok_or_else(|| format!("node {node} {does} page {page}, which allows {before:?}"))
}

/// Checks the order downgrade before read-out before send: the bytes of a grant are sent, for stores if `write`.
pub(crate) fn check_read_out(node: impl Display, page: impl Display, view: Access, write: bool) -> Result<(), String> {
    let allowed = if write { Access::None } else { Access::Read };
    let fits = view <= allowed;
    fits.then_some(())
        .ok_or_else(|| format!("node {node} sends the bytes of page {page} while its own view allows {view:?}"))
}

/// Checks that a view is what the protocol takes it for.
pub(crate) fn check_thought(
    node: impl Display,
    page: impl Display,
    thought: Access,
    view: Access,
) -> Result<(), String> {
    let fits = thought == view;
    fits.then_some(()).ok_or_else(|| {
        format!("node {node} thinks that its view of page {page} allows {thought:?}, but it allows {view:?}")
    })
}
