//! How the elements of a named array are divided among the nodes.
//!
//! Promises: the partitions are in the order of the nodes, are adjacent, and cover the array. Partitions begin at page
//! borders, so that two nodes never store to one page, unless that makes one of them more than a quarter larger or
//! smaller than an equal share. All nodes compute the same partitions.

use std::ops::Range;

/// The sizes that determine the partitions of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partitions {
    /// The number of elements.
    pub length: usize,
    /// The size of an element in bytes; not 0.
    pub element_bytes: usize,
    /// The size of a page in bytes.
    pub page_bytes: usize,
    /// The number of nodes.
    pub nodes: usize,
}

impl Partitions {
    /// The elements of `node`; none for a node that joined later.
    pub fn of(&self, node: usize) -> Range<usize> {
        if node >= self.nodes {
            return self.length..self.length;
        }
        let border = if self.are_cut_at_pages() { Partitions::page_border } else { Partitions::equal_border };
        border(self, node)..border(self, node + 1)
    }

    fn are_cut_at_pages(&self) -> bool {
        let length_of = |node| self.page_border(node + 1) - self.page_border(node);
        // Four partitions must have at least three equal shares and at most five.
        let fours = |length: usize| length as u128 * 4 * self.nodes as u128;
        let shares = self.length as u128;
        (0..self.nodes).map(length_of).all(|length| (3 * shares..=5 * shares).contains(&fours(length)))
    }

    /// The first element of `node` if all shares are equal.
    fn equal_border(&self, node: usize) -> usize {
        (self.length as u128 * node as u128 / self.nodes as u128) as usize
    }

    /// The element at the beginning of a page that is nearest to the equal border of `node`. The end of the array stays
    /// the end.
    fn page_border(&self, node: usize) -> usize {
        if node == self.nodes {
            return self.length;
        }
        // Only every few pages, an element begins at the first byte of a page.
        let element_bytes = self.element_bytes.max(1);
        let step = lcm(element_bytes, self.page_bytes) / element_bytes;
        let equal = self.equal_border(node);
        ((equal + step / 2) / step).saturating_mul(step).min(self.length)
    }
}

fn lcm(one: usize, other: usize) -> usize {
    let (mut greater, mut less) = (one, other);
    while less > 0 {
        (greater, less) = (less, greater % less);
    }
    (one / greater).saturating_mul(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trellis_base::Random;

    fn partitions(length: usize, element_bytes: usize, nodes: usize) -> Vec<Range<usize>> {
        let partitions = Partitions { length, element_bytes, page_bytes: 4096, nodes };
        (0..nodes).map(|node| partitions.of(node)).collect()
    }

    #[test]
    fn few_elements_are_divided_equally() {
        assert_eq!(partitions(4, 8, 4), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(partitions(1, 8, 2), [0..0, 0..1]);
        assert_eq!(partitions(0, 8, 2), [0..0, 0..0]);
        assert_eq!(partitions(700, 8, 2), [0..350, 350..700]);
    }

    #[test]
    fn blocks_begin_at_page_borders() {
        assert_eq!(partitions(2048, 8, 4), [0..512, 512..1024, 1024..1536, 1536..2048]);
        assert_eq!(partitions(1_000_000, 8, 3), [0..333_312, 333_312..666_624, 666_624..1_000_000]);
        // An element of 12 bytes begins a page every 3 pages, which are 1024 elements.
        assert_eq!(partitions(30_000, 12, 2), [0..15_360, 15_360..30_000]);
        assert_eq!(partitions(8, 4096, 2), [0..4, 4..8]);
    }

    #[test]
    fn no_block_is_empty_where_there_is_something_for_it() {
        // At page borders the middle node would get nothing.
        assert_eq!(partitions(2048, 8, 5), [0..409, 409..819, 819..1228, 1228..1638, 1638..2048]);
    }

    #[test]
    fn a_node_that_joined_later_has_no_partition() {
        assert_eq!(Partitions { length: 10, element_bytes: 8, page_bytes: 4096, nodes: 2 }.of(2), 10..10);
    }

    #[test]
    fn blocks_cover_the_array_and_are_balanced() {
        let mut random = Random::for_purpose(1, 1);
        for _ in 0..10_000 {
            let bits = random.below(30);
            let length = random.below(1 << bits) as usize;
            let (element_bytes, nodes) = (1 + random.index(5000), 1 + random.index(20));
            let partitions = partitions(length, element_bytes, nodes);
            let mut end = 0;
            for partition in &partitions {
                assert!(partition.start == end && partition.end >= partition.start);
                end = partition.end;
                let share = length as f64 / nodes as f64;
                let allowed = (0.75 * share).min(share.floor())..=(1.25 * share).max(share.ceil());
                assert!(allowed.contains(&(partition.len() as f64)), "{length} {element_bytes} {partitions:?}");
            }
            assert_eq!(end, length);
        }
    }
}
