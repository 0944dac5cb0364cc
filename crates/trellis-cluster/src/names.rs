//! Names of objects: a number, or a text that stands for one.
//!
//! A text becomes a number by its hash, so that all nodes agree without a message. The node keeps the text for its own
//! sentences. [`crate::named`] keeps memory under names, and there a collision of two texts is found.
//!
//! Promises: the same text is the same number in every process. No name that a program gives reaches an object of
//! Trellis itself, such as the lock of a value.

use std::collections::BTreeMap;

use trellis_base::{fnv1a, mixed};

use crate::cluster::Cluster;
use crate::runtime::{Node, Ordered, RESERVED_FIRST, Rank, lock};

/// The first number that a text can have. There are 2^62.
const TEXTS_FIRST: u64 = 1 << 63;
const TEXTS_MASK: u64 = (1 << 62) - 1;

/// The first number of the objects that belong to memory with a name. There are 2^61. No program can give these
/// numbers.
pub(crate) const OF_MEMORY_FIRST: u64 = 3 << 62;
const OF_MEMORY_MASK: u64 = (1 << 61) - 1;

/// Replaces a number that a program cannot give. Every call refuses it.
const REFUSED: u64 = u64::MAX;

const _: () = assert!(TEXTS_FIRST + TEXTS_MASK < OF_MEMORY_FIRST && OF_MEMORY_FIRST + OF_MEMORY_MASK < RESERVED_FIRST);

/// The name of an object: a number, or a text. The texts have the numbers from 2^63 to 2^63 + 2^62 - 1, one each; a
/// program that numbers its objects itself stays below. Each text is kept until the node leaves, so a program that
/// makes many texts keeps the objects.
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
    /// A text. Every text names another object, also the empty text.
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
            Name::Number(number) if number >= OF_MEMORY_FIRST => REFUSED,
            Name::Number(number) => number,
            Name::Text(text) => self.noted(TEXTS_FIRST | hash(text) & TEXTS_MASK, text),
        }
    }

    /// The number of an object that belongs to memory with a name; sentences show `shown`.
    pub(crate) fn number_of_memory(&self, text: &str, shown: &str) -> u64 {
        self.noted(OF_MEMORY_FIRST | hash(text) & OF_MEMORY_MASK, shown)
    }

    fn noted(&self, number: u64, shown: &str) -> u64 {
        lock(&self.names.0).entry(number).or_insert_with(|| shown.to_owned());
        number
    }
}

fn hash(text: &str) -> u64 {
    mixed(fnv1a(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn texts_have_numbers_of_their_own_and_homes_everywhere() {
        let numbers: BTreeSet<u64> = (0..100_000).map(|index| hash(&format!("queue {index}")) & TEXTS_MASK).collect();
        assert_eq!(numbers.len(), 100_000);
        let mut homes = [0u32; 5];
        numbers.iter().take(1000).for_each(|number| homes[(number % 5) as usize] += 1);
        assert!(homes.iter().all(|count| (150..250).contains(count)), "{homes:?}");
        // Processes of different builds must agree.
        assert_eq!(hash("jobs"), 6_399_258_678_437_798_585);
    }
}
