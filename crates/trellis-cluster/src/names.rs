//! Names of objects: a number, or a text that stands for one.
//!
//! A text becomes a number by its hash, so that all nodes agree without a message. The node keeps the text for its own
//! sentences. [`crate::named`] keeps memory under names, and there a collision of two texts is found.
//!
//! Promises: the same text is the same number in every process; a text never has a number of Trellis itself.

use std::collections::BTreeMap;

use trellis_base::{fnv1a, mixed};

use crate::cluster::Cluster;
use crate::runtime::{Node, Ordered, Rank, lock};

/// The first number that a text can have. There are 2^62.
pub(crate) const TEXTS_FIRST: u64 = 1 << 63;
const TEXTS_MASK: u64 = (1 << 62) - 1;

/// The name of an object: a number, or a text. The texts have the numbers from 2^63 to 2^63 + 2^62 - 1, one each; a
/// program that numbers its objects itself stays below.
///
/// # Examples
///
/// ```
/// # use trellis_cluster as trellis;
/// let cluster = trellis::Cluster::join(trellis::Config::default())?;
/// let jobs = cluster.mutex("jobs").lock()?;
/// let fourth = cluster.mutex(4).lock()?;
/// # drop((jobs, fourth));
/// # cluster.leave()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// A number.
    Number(u64),
    /// A text. Every text is another object, the empty one too.
    Text(&'a str),
}

impl From<u64> for Name<'_> {
    fn from(number: u64) -> Self {
        Name::Number(number)
    }
}

impl<'a> From<&'a str> for Name<'a> {
    fn from(text: &'a str) -> Name<'a> {
        Name::Text(text)
    }
}

impl<'a> From<&'a String> for Name<'a> {
    fn from(text: &'a String) -> Name<'a> {
        Name::Text(text)
    }
}

/// The texts that this node has used, by their numbers.
pub(crate) struct Names(Ordered<BTreeMap<u64, String>>);

impl Names {
    pub(crate) fn new() -> Names {
        Names(Ordered::new(Rank::Last, BTreeMap::new()))
    }

    /// The text of a number, as sentences show it.
    pub(crate) fn shown(&self, number: u64) -> Option<String> {
        if number < TEXTS_FIRST {
            return None;
        }
        lock(&self.0).get(&number).map(|text| format!("`{text}`"))
    }
}

impl Cluster {
    /// The number of a name, for a program that keeps numbers.
    pub fn id<'n>(&self, name: impl Into<Name<'n>>) -> u64 {
        self.inner().number_of(name)
    }
}

impl Node {
    pub(crate) fn number_of<'a>(&self, name: impl Into<Name<'a>>) -> u64 {
        match name.into() {
            Name::Number(number) => number,
            Name::Text(text) => self.number_of_text(text, text),
        }
    }

    /// The number of `text`, which sentences show as `shown`.
    pub(crate) fn number_of_text(&self, text: &str, shown: &str) -> u64 {
        let number = number_of(text);
        lock(&self.names.0).entry(number).or_insert_with(|| shown.to_owned());
        number
    }
}

fn number_of(text: &str) -> u64 {
    TEXTS_FIRST | mixed(fnv1a(text)) & TEXTS_MASK
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::RESERVED_FIRST;
    use std::collections::BTreeSet;

    #[test]
    fn texts_have_numbers_of_their_own() {
        let numbers: BTreeSet<u64> = (0..100_000).map(|index| number_of(&format!("queue {index}"))).collect();
        assert_eq!(numbers.len(), 100_000);
        assert!(numbers.iter().all(|number| (TEXTS_FIRST..RESERVED_FIRST).contains(number)));
        // Processes of different builds must agree.
        assert_eq!(number_of("jobs"), number_of("jobs"));
    }

    #[test]
    fn the_homes_of_names_are_spread_over_the_nodes() {
        let mut homes = [0u32; 5];
        (0..1000).for_each(|index| homes[(number_of(&format!("u{index}")) % 5) as usize] += 1);
        assert!(homes.iter().all(|count| (150..250).contains(count)), "{homes:?}");
    }
}
