//! Reads the commands of scripts.

pub(crate) mod coherence;
pub(crate) mod release;
pub(crate) mod synchronisation;

use trellis_cluster_protocol::{PageIndex, PageRange};
pub(crate) use trellis_testing::scripts::{Story, Words};

/// `0-3` or `p0-3`.
fn range(text: &str) -> Result<PageRange, String> {
    let text = text.strip_prefix('p').unwrap_or(text);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let parse = |number: &str| number.parse::<u32>().map_err(|_| format!("`{text}` is not a run of pages"));
    let (first, last) = (parse(first)?, parse(last)?);
    PageRange::new(PageIndex(first), (last + 1).saturating_sub(first)).ok_or_else(|| format!("`{text}` is no run"))
}
