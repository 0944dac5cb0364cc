//! Reads the commands of scripts.

pub(crate) mod coherence;
pub(crate) mod release;
pub(crate) mod synchronisation;

use trellis_check::model::Envelope;
use trellis_cluster_protocol::{PageIndex, PageRange};
pub(crate) use trellis_testing::scripts::{Story, Words};

/// The place of the first message from one node to another, perhaps of a kind: `n0->n1`, `n0->n1 grant`.
fn named<'a, M>(
    words: &Words<'_>,
    under_way: &'a [Envelope<M>],
    kind_of: impl Fn(&'a M) -> &'a str,
) -> Result<usize, String> {
    let (ends, kind) = (words.link()?, words.at(1).ok());
    let is_it = |envelope: &'a Envelope<M>| {
        (envelope.from, envelope.to) == ends && kind.is_none_or(|kind| kind == kind_of(&envelope.message))
    };
    under_way.iter().position(is_it).ok_or_else(|| "no such message is under way".to_string())
}

/// `0-3` or `p0-3`.
fn range(text: &str) -> Result<PageRange, String> {
    let text = text.strip_prefix('p').unwrap_or(text);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let parse = |number: &str| number.parse::<u32>().map_err(|_| format!("`{text}` is not a run of pages"));
    let (first, last) = (parse(first)?, parse(last)?);
    PageRange::new(PageIndex(first), (last + 1).saturating_sub(first)).ok_or_else(|| format!("`{text}` is no run"))
}
