//! The shared heap over a link inside one process: nodes allocate, fill, free and allocate again what others had.
//!
//! Each node has its region at another address here, so nodes tell each other offsets.

mod support;

use std::alloc::Layout;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use support::{REGION_BYTES, on_every_kind, run, word};
use trellis::config::Catch;
use trellis::{Cluster, HeapError, Home, Padding};

fn offset_of(cluster: &Cluster, pointer: NonNull<u8>) -> usize {
    pointer.as_ptr().addr() - cluster.region().base().addr()
}

fn at(cluster: &Cluster, offset: usize) -> NonNull<u8> {
    NonNull::new(cluster.region().base().wrapping_add(offset)).unwrap()
}

/// The bytes of a block that nobody else uses now.
fn bytes(pointer: NonNull<u8>, length: usize) -> &'static mut [u8] {
    // SAFETY: the block has so many bytes, any bytes are bytes, and the tests order their uses by barriers.
    unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), length) }
}

fn free(cluster: &Cluster, offset: usize) {
    // SAFETY: nobody uses the block any more.
    unsafe { cluster.heap().free(at(cluster, offset)) }.unwrap();
}

/// The slot of the region's first pages in which a node tells where its block is.
fn post(cluster: &Cluster, slot: usize, offset: usize) {
    word(cluster, slot).store(offset as u64, Ordering::Relaxed);
}

fn posted(cluster: &Cluster, slot: usize) -> usize {
    word(cluster, slot).load(Ordering::Relaxed) as usize
}

#[test]
fn what_one_node_allocates_another_reads_and_frees() {
    on_every_kind(3, |cluster| {
        let (me, nodes) = (cluster.node(), cluster.nodes());
        for round in 0..20 {
            let length = 40 << (round % 14);
            let mine = cluster.heap().allocate::<u8>(length, Home::Here).unwrap();
            bytes(mine, length).fill((me * 50 + round) as u8);
            post(cluster, me, offset_of(cluster, mine));
            cluster.barrier(1).unwrap();
            let other = (me + 1) % nodes;
            let theirs = posted(cluster, other);
            let block = at(cluster, theirs);
            assert!(bytes(block, length).iter().all(|&byte| byte == (other * 50 + round) as u8));
            assert!(cluster.heap().usable_bytes(block).unwrap() >= length);
            free(cluster, theirs);
            cluster.barrier(2).unwrap();
        }
        let now = cluster.heap().statistics();
        assert_eq!((now.blocks, now.block_bytes, now.allocations, now.frees_by_others), (0, 0, 20, 20));
        cluster.barrier(3).unwrap();
    });
}

#[test]
fn small_objects_of_two_nodes_never_share_a_page() {
    run(
        3,
        |_| (),
        |cluster| {
            let me = cluster.node();
            let blocks: Vec<usize> = (0..600)
                .map(|number| {
                    let home = if number % 3 == 0 { Home::Node((me + 1) % 3) } else { Home::Unspecified };
                    offset_of(cluster, cluster.heap().allocate::<u8>(1 + number % 200, home).unwrap())
                })
                .collect();
            let pages: BTreeSet<usize> = blocks.iter().map(|offset| offset / 4096).collect();
            for &page in &pages {
                // A bit for each node that has blocks on the page.
                word(cluster, page).fetch_or(1 << me, Ordering::SeqCst);
            }
            cluster.barrier(0).unwrap();
            for &page in &pages {
                assert_eq!(word(cluster, page).load(Ordering::SeqCst), 1 << me, "page {page}");
            }
            assert!(pages.len() < 40, "blocks of one node lie together: {} pages", pages.len());
            cluster.barrier(1).unwrap();
        },
    );
}

#[test]
fn padding_keeps_cache_lines_and_pages_apart() {
    run(
        1,
        |config| (config.region_bytes, config.heap_bytes) = (256 << 20, Some(128 << 20)),
        |cluster| {
            let heap = cluster.heap();
            let layout = Layout::from_size_align(40, 8).unwrap();
            let place = |padding| offset_of(cluster, heap.allocate_layout(layout, Home::Here, padding).unwrap());
            let pages: BTreeSet<usize> = (0..10).map(|_| place(Padding::PerPage)).collect();
            assert!(pages.iter().all(|offset| offset % 4096 == 0) && pages.len() == 10);
            let others: Vec<usize> = (0..100).map(|_| place(Padding::Packed)).collect();
            assert!(others.iter().all(|offset| !pages.contains(&(offset / 4096 * 4096))));
            let lines: BTreeSet<usize> = (0..100).map(|_| place(Padding::PerCacheLine)).collect();
            assert!(lines.iter().all(|offset| offset % 64 == 0) && lines.len() == 100);
            assert!(others.iter().all(|offset| !lines.contains(&(offset / 64 * 64))));
            // One for each 4 MiB of the heap has pages of its own; the others share them.
            let few: Vec<usize> = (0..300).map(|_| place(Padding::PerPageWhileFew)).collect();
            let of_page = |page: usize| few.iter().filter(|&offset| offset / 4096 == page).count();
            let alone: Vec<bool> = few.iter().map(|offset| of_page(offset / 4096) == 1).collect();
            let first = alone.iter().take_while(|&&is_alone| is_alone).count();
            assert!((8..=32).contains(&first) && alone[first..].iter().all(|is_alone| !is_alone), "{alone:?}");
            let places: BTreeSet<usize> = few[..first].iter().map(|offset| offset % 4096).collect();
            assert!(first < 2 || places.len() > 1, "they use the same lines of a cache");
            for align in [16, 64, 4096, 65536, 1 << 20] {
                let layout = Layout::from_size_align(100, align).unwrap();
                let block = heap.allocate_layout(layout, Home::Here, Padding::Packed).unwrap();
                assert_eq!(block.as_ptr().addr() % align, 0);
            }
        },
    );
}

#[test]
fn memory_that_somebody_had_is_zeroed_on_request_and_moves_with_its_contents() {
    run(
        2,
        |_| (),
        |cluster| {
            for length in [100, 30_000, 200_000] {
                if cluster.node() == 1 {
                    let block = cluster.heap().allocate_zeroed::<u8>(length, Home::Unspecified).unwrap();
                    assert!(bytes(block, length).iter().all(|&byte| byte == 0));
                    bytes(block, length).fill(7);
                    post(cluster, 0, offset_of(cluster, block));
                }
                cluster.barrier(0).unwrap();
                if cluster.node() == 0 {
                    bytes(at(cluster, posted(cluster, 0)), length).fill(9);
                    free(cluster, posted(cluster, 0));
                }
                cluster.barrier(1).unwrap();
                if cluster.node() == 1 {
                    let heap = cluster.heap();
                    let block = heap.allocate_zeroed::<u8>(length, Home::Unspecified).unwrap();
                    assert_eq!(offset_of(cluster, block), posted(cluster, 0), "the same memory again");
                    assert!(bytes(block, length).iter().all(|&byte| byte == 0));
                    bytes(block, length).iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
                    // SAFETY: nobody else knows the block.
                    let moved = unsafe { heap.reallocate(block, length * 5) }.unwrap();
                    assert!(moved != block);
                    assert!(bytes(moved, length).iter().enumerate().all(|(at, &byte)| byte == at as u8));
                    // SAFETY: as above.
                    let same = unsafe { heap.reallocate(moved, length * 5 - 1) }.unwrap();
                    assert_eq!(same, moved);
                    free(cluster, offset_of(cluster, same));
                }
                cluster.barrier(2).unwrap();
            }
        },
    );
}

/// Node 1 allocates, node 2 stores and frees, and nodes 1 and 0 get the memory again: nothing but the heap orders them.
/// Zeros over zeros in an old copy of a page would be no stores, and what node 2 stored would come back.
fn memory_moves_by_the_heap_alone(protocol: &str, home: Home) {
    run(
        3,
        |config| config.coherence = protocol.parse().unwrap(),
        |cluster| {
            let (me, heap) = (cluster.node(), cluster.heap());
            for (round, length) in [200, 3000, 20_000, 70_000].into_iter().enumerate() {
                let is_zero = |offset: usize| bytes(at(cluster, offset), length).iter().all(|&byte| byte == 0);
                if me == 1 {
                    let block = offset_of(cluster, heap.allocate_zeroed::<u8>(length, home).unwrap());
                    assert!(is_zero(block));
                    post(cluster, 1, block);
                }
                cluster.barrier(0).unwrap();
                let block = posted(cluster, 1);
                if me == 2 {
                    bytes(at(cluster, block), length).fill(9);
                    free(cluster, block);
                }
                if me == 1 {
                    while heap.statistics().frees_by_others == round as u64 {
                        std::thread::yield_now();
                    }
                    let again = offset_of(cluster, heap.allocate_zeroed::<u8>(length, home).unwrap());
                    assert_eq!(again, block, "the same memory again");
                    assert!(is_zero(block));
                }
                cluster.barrier(1).unwrap();
                assert!(is_zero(block), "node {me}, {length} bytes under {protocol}");
                cluster.barrier(2).unwrap();
                if me == 1 {
                    free(cluster, block);
                }
                cluster.barrier(3).unwrap();
            }
        },
    );
}

#[test]
fn memory_that_moves_by_the_heap_alone_is_never_older_than_the_free() {
    for protocol in ["ivy", "dynamic", "hlrc(invalidate)", "hlrc(update)"] {
        // A home has no old copy, so the others' are the matter.
        for home in [Home::Here, Home::Node(0), Home::Node(2)] {
            memory_moves_by_the_heap_alone(protocol, home);
        }
    }
}

#[test]
fn a_region_that_is_full_says_what_there_is_and_has_room_again_after_a_free_elsewhere() {
    run(
        2,
        |config| config.heap_bytes = Some(REGION_BYTES / 2),
        |cluster| {
            let heap = cluster.heap();
            assert_eq!(cluster.region().heap_start(), REGION_BYTES / 2);
            let large = 3 << 20;
            if cluster.node() == 1 {
                let block = heap.allocate::<u8>(large, Home::Interleaved).unwrap();
                assert!(offset_of(cluster, block) >= REGION_BYTES / 2);
                let error = heap.allocate::<u8>(large, Home::Here).unwrap_err();
                assert!(matches!(error, HeapError::NoRoom(_)));
                let sentence = error.to_string();
                assert!(sentence.contains("1048576") && sentence.contains("raise heap_bytes"), "{sentence}");
                assert!(heap.allocate::<u64>(usize::MAX, Home::Here).unwrap_err().to_string().contains("more than"));
                let sentence = heap.allocate::<u8>(1 << 40, Home::Here).unwrap_err().to_string();
                for part in ["in a row", "and this node has allocated", "raise heap_bytes or region_bytes"] {
                    assert!(sentence.contains(part), "{sentence}");
                }
                post(cluster, 0, offset_of(cluster, block));
            }
            cluster.barrier(0).unwrap();
            if cluster.node() == 0 {
                free(cluster, posted(cluster, 0));
                let again = heap.allocate::<u8>(large, Home::Node(1)).unwrap();
                free(cluster, offset_of(cluster, again));
                assert_eq!(heap.statistics().free_bytes, REGION_BYTES as u64 / 2);
            }
            cluster.barrier(1).unwrap();
        },
    );
}

/// Where nothing is configured: what a program places by itself and what the heap gives it never meet.
#[test]
fn views_and_the_heap_have_parts_of_their_own() {
    run(
        1,
        |_| (),
        |cluster| {
            let region = cluster.region();
            let start = region.heap_start();
            let block = cluster.heap().allocate_zeroed::<u8>(region.bytes() - start, Home::Here).unwrap();
            // SAFETY: no other thread is there.
            unsafe { region.slice_mut::<u8>(0, start) }.fill(7);
            assert!(
                bytes(block, region.bytes() - start).iter().all(|&byte| byte == 0),
                "a view changed what the heap gave"
            );
            for (offset, length) in [(0, region.bytes()), (start, 1), (start - 1, 2)] {
                // SAFETY: it panics.
                let view = || unsafe { region.slice::<u8>(offset, length) };
                let sentence =
                    panic_message(catch_unwind(AssertUnwindSafe(view)).expect_err("it reaches into the heap"));
                assert!(sentence.contains("heap_bytes=0") && sentence.contains(&format!("{start} to")), "{sentence}");
            }
            // SAFETY: it panics.
            let view = || unsafe { region.slice::<u64>(4, 1) };
            let sentence = panic_message(catch_unwind(AssertUnwindSafe(view)).expect_err("it is not aligned"));
            assert!(sentence.ends_with("byte 8 is"), "{sentence}");
        },
    );
}

fn panic_message(panic: Box<dyn std::any::Any + Send>) -> String {
    panic.downcast_ref::<String>().expect("a sentence").clone()
}

#[test]
fn empty_pools_make_room_for_what_is_large() {
    run(
        2,
        |config| config.heap_bytes = Some(REGION_BYTES),
        |cluster| {
            if cluster.node() == 1 {
                let heap = cluster.heap();
                for size in (0..12).map(|shift| 16usize << shift) {
                    let block = heap.allocate::<u8>(size, Home::Here).unwrap();
                    free(cluster, offset_of(cluster, block));
                }
                assert!(heap.statistics().span_bytes > 0, "pools keep an empty span");
                let all = heap.allocate::<u8>(REGION_BYTES, Home::Unspecified).expect("the whole region");
                free(cluster, offset_of(cluster, all));
                assert_eq!(heap.statistics().span_bytes, 0);
            }
            cluster.barrier(0).unwrap();
        },
    );
}

#[test]
fn what_is_no_block_is_refused_at_every_node_and_changes_nothing() {
    run(
        3,
        |_| (),
        |cluster| {
            if cluster.node() == 2 {
                for slot in 0..3 {
                    let length = [100, 100, 100_000][slot];
                    let block = cluster.heap().allocate::<u8>(length, Home::Here).unwrap();
                    bytes(block, length).fill(slot as u8);
                    post(cluster, slot, offset_of(cluster, block));
                }
                free(cluster, posted(cluster, 1));
            }
            cluster.barrier(0).unwrap();
            let heap = cluster.heap();
            let refused = |offset: usize| {
                // SAFETY: what is refused is not freed.
                let error = unsafe { heap.free(at(cluster, offset)) }.unwrap_err();
                assert!(matches!(error, HeapError::Misuse(_)), "{error}");
                assert!(error.to_string().contains("freed before"), "{error}");
                assert!(heap.usable_bytes(at(cluster, offset)).is_err());
            };
            refused(posted(cluster, 1));
            refused(posted(cluster, 0) + 8);
            refused(posted(cluster, 2) + 4096);
            refused(0);
            let stack = 7u64;
            // SAFETY: what is refused is not freed.
            let error = unsafe { heap.free(NonNull::from(&stack)) }.unwrap_err();
            assert!(error.to_string().contains("not in the region"), "{error}");
            let error = heap.allocate::<u8>(1, Home::Node(3)).unwrap_err();
            assert!(error.to_string().contains("nodes 0 to 2"), "{error}");
            assert!(bytes(at(cluster, posted(cluster, 2)), 100_000).iter().all(|&byte| byte == 2));
            cluster.barrier(1).unwrap();
        },
    );
}

#[test]
fn threads_of_all_nodes_allocate_and_free_at_once() {
    const THREADS: usize = 4;
    const SLOTS: usize = 64;
    for catch in [Catch::Signal, Catch::Handler] {
        run(
            3,
            |config| config.catch = catch,
            |cluster| {
                let me = cluster.node();
                let mine =
                    |round: usize, thread: usize, slot: usize| ((round * 3 + me) * THREADS + thread) * SLOTS + slot;
                for round in 0..4 {
                    std::thread::scope(|scope| {
                        for thread in 0..THREADS {
                            scope.spawn(move || {
                                for slot in 0..SLOTS {
                                    let length = 16 + (slot * 37 + thread * 101) % 3000;
                                    let block = cluster.heap().allocate::<u8>(length, Home::Here).unwrap();
                                    bytes(block, length).fill(mine(round, thread, slot) as u8);
                                    // Words by node, so that the table itself is not the matter of the test.
                                    post(cluster, me * 1024 + thread * SLOTS + slot, offset_of(cluster, block));
                                }
                            });
                        }
                    });
                    cluster.barrier(0).unwrap();
                    std::thread::scope(|scope| {
                        for thread in 0..THREADS {
                            scope.spawn(move || {
                                let other = (me + thread) % 3;
                                for slot in (0..SLOTS).filter(|_| thread < 3) {
                                    let offset = posted(cluster, other * 1024 + thread * SLOTS + slot);
                                    let length = 16 + (slot * 37 + thread * 101) % 3000;
                                    let expected = ((round * 3 + other) * THREADS + thread) * SLOTS + slot;
                                    let block = bytes(at(cluster, offset), length);
                                    assert!(block.iter().all(|&byte| byte == expected as u8));
                                    free(cluster, offset);
                                }
                            });
                        }
                    });
                    for slot in 0..SLOTS {
                        free(cluster, posted(cluster, me * 1024 + 3 * SLOTS + slot));
                    }
                    cluster.barrier(1).unwrap();
                }
                assert_eq!(cluster.heap().statistics().blocks, 0);
                cluster.barrier(2).unwrap();
            },
        );
    }
}
