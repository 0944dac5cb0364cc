//! The paper's two programs, psort and pdot, as nodes of this command: for the figures about their scaling and
//! accesses.
//!
//! Every run checks its own result; a wrong one ends the cluster instead of becoming a figure.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::json;
use trellis_base::Random;

use crate::bench::node::{Found, Member};
use trellis_command::exit::{self, Failure};

/// Sorts a list in parts, one per node; node 0 fills it and merges the parts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SortTask {
    pub(crate) elements: usize,
    /// Whether a node prefetches its part before it touches it; otherwise every page is a fault of its own.
    pub(crate) prefetch: bool,
}

/// Multiplies two vectors in parts, one per node; node 0 fills them and adds up the results.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DotTask {
    pub(crate) elements: usize,
    pub(crate) prefetch: bool,
}

const PAGE_BYTES: usize = 4096;
const WORD_BYTES: usize = 8;

impl SortTask {
    pub(crate) fn region_bytes(&self) -> usize {
        whole_pages(self.elements * WORD_BYTES).max(64 << 10)
    }
}

impl DotTask {
    fn vector_bytes(&self) -> usize {
        self.elements * WORD_BYTES
    }

    fn results_at(&self) -> usize {
        whole_pages(2 * self.vector_bytes())
    }

    pub(crate) fn region_bytes(&self, nodes: usize) -> usize {
        (self.results_at() + nodes * PAGE_BYTES).max(64 << 10)
    }
}

fn whole_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}

/// The elements of a node, divided as equally as possible.
fn part(elements: usize, node: usize, nodes: usize) -> std::ops::Range<usize> {
    elements * node / nodes..elements * (node + 1) / nodes
}

/// The time in which threads of one process do the same as nodes in [`sort_node`].
pub(crate) fn sort_with_threads(elements: usize, workers: usize) -> Result<f64, Failure> {
    let mut random = Random::new(2);
    let mut list: Vec<u64> = (0..elements).map(|_| random.draw() >> 1).collect();
    let sum = sum_of(&list);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let mut rest = list.as_mut_slice();
        for worker in 1..workers {
            let (own, others) = rest.split_at_mut(part(elements, worker - 1, workers).len());
            scope.spawn(|| own.sort_unstable());
            rest = others;
        }
        rest.sort_unstable();
    });
    let merged = merge((0..workers).map(|worker| &list[part(elements, worker, workers)]).collect());
    let seconds = start.elapsed().as_secs_f64();
    if !merged.is_sorted() || merged.len() != elements || sum_of(&merged) != sum {
        return Err(Failure::new(exit::CLUSTER, "the list that threads sorted is not sorted"));
    }
    Ok(seconds)
}

fn sum_of(list: &[u64]) -> u64 {
    list.iter().fold(0, |sum, element| sum.wrapping_add(*element))
}

/// Runs a node's part of psort.
pub(crate) fn sort_node(task: &SortTask, member: &Member) -> Found {
    let cluster = &member.cluster;
    let (node, nodes) = (cluster.node(), cluster.nodes());
    let mut sum = 0u64;
    if node == 0 {
        cluster.phase("fill");
        let mut random = Random::new(2);
        // SAFETY: the other nodes wait in the barrier below.
        for element in unsafe { cluster.region().slice_mut::<u64>(0, task.elements) } {
            *element = random.draw() >> 1;
            sum = sum.wrapping_add(*element);
        }
    }
    cluster.barrier(1)?;
    let start = Instant::now();
    cluster.phase("sort");
    let own = part(task.elements, node, nodes);
    if task.prefetch {
        cluster.prefetch(own.start * WORD_BYTES, own.len() * WORD_BYTES, true)?;
    }
    // SAFETY: the parts do not overlap, and each node uses its own only.
    unsafe { cluster.region().slice_mut::<u64>(own.start * WORD_BYTES, own.len()) }.sort_unstable();
    let sort_seconds = start.elapsed().as_secs_f64();
    let mut whole_seconds = sort_seconds;
    cluster.barrier(2)?;
    if node == 0 {
        cluster.phase("merge");
        if task.prefetch {
            cluster.prefetch(0, task.elements * WORD_BYTES, false)?;
        }
        // SAFETY: the other nodes no longer write.
        let list = unsafe { cluster.region().slice::<u64>(0, task.elements) };
        let merged = merge((0..nodes).map(|node| &list[part(task.elements, node, nodes)]).collect());
        whole_seconds = start.elapsed().as_secs_f64();
        let is_right = merged.is_sorted() && sum_of(&merged) == sum;
        if !is_right || merged.len() != task.elements {
            return Err("the sorted list is not the list that was to be sorted".into());
        }
    }
    cluster.barrier(3)?;
    Ok(json!({ "worker_seconds": sort_seconds, "whole_seconds": whole_seconds, "counters": cluster.counters() }))
}

/// Merges ascending lists, two at a time: each element is moved once per doubling.
fn merge(lists: Vec<&[u64]>) -> Vec<u64> {
    let mut merged: Vec<Vec<u64>> = match lists.as_slice() {
        [one] => return one.to_vec(),
        _ => lists.chunks(2).map(|pair| merge_two(pair[0], pair.get(1).copied().unwrap_or(&[]))).collect(),
    };
    while merged.len() > 1 {
        merged = merged.chunks(2).map(|pair| merge_two(&pair[0], pair.get(1).map_or(&[], Vec::as_slice))).collect();
    }
    merged.pop().unwrap_or_default()
}

fn merge_two(mut one: &[u64], mut other: &[u64]) -> Vec<u64> {
    let mut merged = Vec::with_capacity(one.len() + other.len());
    while let (Some(first), Some(second)) = (one.first(), other.first()) {
        if first <= second {
            merged.push(*first);
            one = &one[1..];
        } else {
            merged.push(*second);
            other = &other[1..];
        }
    }
    merged.extend_from_slice(one);
    merged.extend_from_slice(other);
    merged
}

/// Runs a node's part of pdot.
pub(crate) fn dot_node(task: &DotTask, member: &Member) -> Found {
    let cluster = &member.cluster;
    let (node, nodes) = (cluster.node(), cluster.nodes());
    let mut expected = 0u64;
    if node == 0 {
        cluster.phase("fill");
        let mut random = Random::new(3);
        // SAFETY: the other nodes wait in the barrier below.
        let both = unsafe { cluster.region().slice_mut::<u64>(0, 2 * task.elements) };
        both.iter_mut().for_each(|element| *element = random.draw() >> 40);
        let (one, other) = both.split_at(task.elements);
        expected = product(one, other);
    }
    cluster.barrier(1)?;
    let start = Instant::now();
    cluster.phase("multiply");
    let own = part(task.elements, node, nodes);
    let (at, bytes) = (own.start * WORD_BYTES, own.len() * WORD_BYTES);
    if task.prefetch {
        cluster.prefetch(at, bytes, false)?;
        cluster.prefetch(task.vector_bytes() + at, bytes, false)?;
    }
    // SAFETY: the vectors are only read from here on, and each node writes its own result only.
    unsafe {
        let one = cluster.region().slice::<u64>(at, own.len());
        let other = cluster.region().slice::<u64>(task.vector_bytes() + at, own.len());
        cluster.region().slice_mut::<u64>(task.results_at() + node * PAGE_BYTES, 1)[0] = product(one, other);
    }
    let worker_seconds = start.elapsed().as_secs_f64();
    cluster.barrier(2)?;
    if node == 0 {
        cluster.phase("add");
        let mut sum = 0u64;
        for node in 0..nodes {
            // SAFETY: every result was written before the barrier.
            sum =
                sum.wrapping_add(unsafe { cluster.region().slice::<u64>(task.results_at() + node * PAGE_BYTES, 1) }[0]);
        }
        if sum != expected {
            return Err(format!("the dot product is {sum} where one node alone finds {expected}").into());
        }
    }
    let whole_seconds = start.elapsed().as_secs_f64();
    cluster.barrier(3)?;
    Ok(json!({ "worker_seconds": worker_seconds, "whole_seconds": whole_seconds, "counters": cluster.counters() }))
}

fn product(one: &[u64], other: &[u64]) -> u64 {
    one.iter().zip(other).fold(0, |sum, (a, b)| sum.wrapping_add(a.wrapping_mul(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_everything_once() {
        for nodes in 1..=7 {
            let mut next = 0;
            for node in 0..nodes {
                let own = part(1000, node, nodes);
                assert_eq!(own.start, next);
                next = own.end;
            }
            assert_eq!(next, 1000);
        }
    }

    #[test]
    fn merging_gives_one_ascending_list() {
        assert_eq!(merge(vec![&[1, 5], &[2, 2, 9], &[]]), [1, 2, 2, 5, 9]);
        assert_eq!(merge(vec![&[3, 4]]), [3, 4]);
        assert_eq!(merge(vec![&[4], &[3], &[2], &[1], &[0]]), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn results_do_not_share_a_page_with_the_vectors() {
        let task = DotTask { elements: 512, prefetch: false };
        assert_eq!(task.results_at() % PAGE_BYTES, 0);
        assert!(task.results_at() >= 2 * 512 * 8);
        assert!(task.region_bytes(4) >= task.results_at() + 4 * PAGE_BYTES);
    }
}
