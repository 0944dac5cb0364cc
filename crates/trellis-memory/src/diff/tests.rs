//! Tests diffs against a naive model, with malicious peers, and with threads that store to the same words.

use std::sync::atomic::{AtomicBool, AtomicU8};

use trellis_base::Random;

use super::*;

/// A page with the alignment of one.
#[derive(Clone, PartialEq)]
#[repr(align(64))]
struct Page<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Page<BYTES> {
    fn diff(&self, twin: &mut Page<BYTES>) -> Vec<u8> {
        let mut out = vec![0xee; 3];
        // SAFETY: both are BYTES long, aligned, and used by no other thread.
        let any = unsafe { encode(self.0.as_ptr(), twin.0.as_mut_ptr(), BYTES, &mut out) };
        assert_eq!(out[..3], [0xee; 3], "what was there stays");
        assert_eq!(any, out.len() > 3);
        out.split_off(3)
    }

    fn apply(&mut self, diff: &[u8]) {
        check(diff, BYTES).expect("made by encode");
        // SAFETY: checked for this size, aligned, and used by no other thread.
        unsafe { apply(diff, self.0.as_mut_ptr()) };
    }

    /// Changes the page in one of many manners; each changed byte really differs from before.
    fn change(&mut self, random: &mut Random) {
        let (manner, start) = (random.index(7), random.index(BYTES));
        let length = match random.below(4) {
            0 => random.index(17),
            1 => random.index(200),
            _ => random.index(BYTES),
        };
        let every = [1, 2, 3, 8, 8, 50, 500][manner];
        let left_out = if random.once_in(3) { random.index(9) + 2 } else { usize::MAX };
        for at in (start..BYTES.min(start + length)).step_by(every) {
            if at % left_out != 1 {
                self.0[at] ^= (random.below(255) + 1) as u8;
            }
        }
    }
}

/// Runs `check` with many seeds; on a failure the seed is printed.
fn with_seeds(count: u64, check: impl Fn(&mut Random) + std::panic::RefUnwindSafe) {
    let only = std::env::var("TRELLIS_SEED").ok().map(|seed| seed.parse::<u64>().expect("TRELLIS_SEED is a number"));
    for seed in only.map_or(1..=count, |seed| seed..=seed) {
        let run = || check(&mut Random::new(seed));
        if let Err(panic) = std::panic::catch_unwind(run) {
            println!("failed with seed {seed}; again: TRELLIS_SEED={seed} cargo test -p trellis-memory diff::");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Where two pages differ, byte by byte: the model.
fn differences<const BYTES: usize>(one: &Page<BYTES>, other: &Page<BYTES>) -> Vec<usize> {
    (0..BYTES).filter(|at| one.0[*at] != other.0[*at]).collect()
}

fn agrees_with_the_model<const BYTES: usize>(random: &mut Random) {
    let mut before = Page([0; BYTES]);
    before.0.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    let mut now = before.clone();
    (0..random.below(5)).for_each(|_| now.change(random));
    let changed = differences(&before, &now);

    let mut twin = before.clone();
    let diff = now.diff(&mut twin);
    assert_eq!(diff.is_empty(), changed.is_empty());
    let mut plain = Vec::new();
    // SAFETY: both are BYTES long, aligned, and used by no other thread.
    unsafe { encode_with::<Plain>(now.0.as_ptr().cast(), before.clone().0.as_mut_ptr().cast(), BYTES / 8, &mut plain) };
    assert!(plain == diff, "the processor makes no difference");
    assert!(twin == now, "the twin is what was sent");
    assert!(now.diff(&mut twin).is_empty(), "and nothing is left");
    assert!(diff.len() <= bytes_max(BYTES), "{} bytes", diff.len());

    // Over a page in which every byte has another value: changed bytes are there, all others untouched.
    let mut target = Page([0; BYTES]);
    target.0.iter_mut().zip(&now.0).for_each(|(byte, now)| *byte = now ^ 0x55);
    let untouched = target.clone();
    target.apply(&diff);
    assert_eq!(differences(&untouched, &target), changed, "exactly the changed bytes change");
    assert!(changed.iter().all(|at| target.0[*at] == now.0[*at]));
    let mut plainly = untouched;
    // SAFETY: checked for this size, aligned, and used by no other thread.
    unsafe { apply_with::<Plain>(&diff, plainly.0.as_mut_ptr().cast()) };
    assert!(plainly == target, "the processor makes no difference");
}

#[test]
fn bytes_are_packed_and_spread_by_every_mask() {
    fn check<P: Packing>() {
        for mask in 0..=u8::MAX {
            let named: Vec<u8> = (0..8).filter(|byte| mask >> byte & 1 == 1).collect();
            let packed = P::pack(0x8877_6655_4433_2211, mask).to_le_bytes();
            assert!(named.iter().zip(packed).all(|(byte, packed)| packed == 0x11 * (byte + 1)), "{mask:#x}");
            let spread = P::spread(u64::from_le_bytes(packed), mask).to_le_bytes();
            assert!(named.iter().all(|byte| spread[usize::from(*byte)] == 0x11 * (byte + 1)), "{mask:#x}");
        }
    }
    check::<Plain>();
    #[cfg(target_arch = "x86_64")]
    if Shuffled::is_possible() {
        check::<Shuffled>();
    }
}

#[test]
fn encode_and_apply_agree_with_a_byte_for_byte_model() {
    with_seeds(1500, agrees_with_the_model::<4096>);
    with_seeds(60, agrees_with_the_model::<65_536>);
    with_seeds(100, agrees_with_the_model::<64>);
}

#[test]
fn the_largest_page_needs_several_runs() {
    const BYTES: usize = PAGE_BYTES_MAX;
    let mut page = vec![Page([0u8; 64]); BYTES / 64];
    let (mut twin, mut target) = (page.clone(), page.clone());
    page.fill(Page([0xff; 64]));
    page[10_000].0[8..16].copy_from_slice(&[0x11, 0x22, 0, 0, 0, 0, 0x33, 0x44]);
    page[20_000].0[56..].fill(0);
    let mut diff = Vec::new();
    // SAFETY: both have BYTES bytes and are used by no other thread.
    assert!(unsafe { encode(page.as_ptr().cast(), twin.as_mut_ptr().cast(), BYTES, &mut diff) });
    check(&diff, BYTES).expect("made by encode");
    assert!(diff.len() < BYTES + BYTES / (GROUP * WORD_BYTES) * HEADER_BYTES + 200, "{} bytes", diff.len());
    // SAFETY: checked for this size, and used by nobody else.
    unsafe { apply(&diff, target.as_mut_ptr().cast()) };
    assert!(target == page && twin == page);
}

#[test]
fn sparse_and_dense_changes_are_small() {
    let zero = Page([0u8; 4096]);
    let diff_of = |change: &dyn Fn(usize) -> bool| {
        let mut page = zero.clone();
        (0..4096).filter(|at| change(*at)).for_each(|at| page.0[at] = 1);
        page.diff(&mut zero.clone()).len()
    };
    assert_eq!(diff_of(&|_| false), 0);
    assert_eq!(diff_of(&|at| at == 77), HEADER_BYTES + 2, "one byte");
    assert_eq!(diff_of(&|at| at % 8 == 3), HEADER_BYTES + 512 * 2, "one byte of each word");
    assert_eq!(diff_of(&|_| true), HEADER_BYTES + 4096, "the whole page");
    assert_eq!(diff_of(&|at| at == 7 || at == 8), HEADER_BYTES + 4, "two bytes of neighbouring words");
    assert!(diff_of(&|at| at % 8 != 0) <= bytes_max(4096), "all but one byte of each word");
    assert!(diff_of(&|at| at % 64 != 0) <= bytes_max(4096));
    assert!(diff_of(&|at| at % 72 != 71) <= bytes_max(4096));
}

/// Every combination of unchanged, hardly changed, nearly and completely changed words.
#[test]
fn no_diff_is_longer_than_it_may_be() {
    const KINDS: [u64; 4] = [0, 0xff, 0xffff_ffff_ffff_ff00, u64::MAX];
    for number in 0..KINDS.len().pow(8) {
        let mut page = Page([0u8; 64]);
        let mut left = number;
        for word in page.0.chunks_exact_mut(8) {
            word.copy_from_slice(&KINDS[left % KINDS.len()].to_le_bytes());
            left /= KINDS.len();
        }
        let length = page.diff(&mut Page([0; 64])).len();
        assert!(length <= bytes_max(64), "{number:o} takes {length} bytes");
    }
}

#[test]
fn a_diff_from_a_peer_is_refused_or_harmless_whatever_it_is() {
    const BYTES: usize = 4096;
    let run = |first: u32, count: u32, masked: bool| {
        (first | (count - 1) << FIRST_BITS | if masked { MASKED } else { 0 }).to_le_bytes().to_vec()
    };
    assert_eq!(check(&[], BYTES), Ok(()));
    assert_eq!(check(&[0, 0, 0], BYTES), Err(BadDiff::Short { at: 0 }));
    assert_eq!(check(&run(0, 1, false), BYTES), Err(BadDiff::Short { at: 0 }));
    assert_eq!(check(&[run(3, 2, true), vec![0, 3, 1]].concat(), BYTES), Err(BadDiff::Short { at: 0 }));
    let outside = BadDiff::Outside { first: 511, count: 2, words: 512 };
    assert_eq!(check(&[run(511, 2, false), vec![0; 16]].concat(), BYTES), Err(outside));
    let twice = [run(4, 1, true), vec![1, 9], run(4, 1, true), vec![2, 9]].concat();
    assert_eq!(check(&twice, BYTES), Err(BadDiff::Backwards { first: 4, end: 5 }));
    assert_eq!(check(&[run(511, 1, false), vec![0; 9]].concat(), BYTES), Err(BadDiff::Short { at: 12 }));
    let said = outside.to_string();
    assert!(said.contains("page of 512") && said.contains("page_bytes"), "{said}");

    with_seeds(3000, |random| {
        let mut page = Page([0u8; BYTES]);
        page.change(random);
        let mut diff = page.diff(&mut Page([0; BYTES]));
        for _ in 0..random.below(4) {
            match (random.below(3), diff.len()) {
                (_, 0) | (0, _) => diff.push(random.below(256) as u8),
                (1, length) => diff.truncate(random.index(length)),
                (_, length) => diff[random.index(length)] ^= 1 << random.below(8),
            }
        }
        // The bytes after the page must not be touched.
        let mut guarded = [Page([0u8; BYTES]), Page([0xaa; BYTES])];
        if check(&diff, BYTES).is_ok() {
            guarded[0].apply(&diff);
        }
        assert!(guarded[1].0.iter().all(|byte| *byte == 0xaa));
    });
}

/// What a node stored and did not publish stays, everything else becomes the later state; so does the twin.
fn merges_like_the_model<const BYTES: usize>(random: &mut Random) {
    let mut twin = Page([0; BYTES]);
    twin.0.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    let (mut page, mut later) = (twin.clone(), twin.clone());
    (0..random.below(4)).for_each(|_| page.change(random));
    (0..random.below(4)).for_each(|_| later.change(random));
    let mut expected = page.clone();
    for at in differences(&twin, &later) {
        expected.0[at] = later.0[at];
    }
    let stored: Vec<usize> = differences(&twin, &page).into_iter().filter(|at| twin.0[*at] == later.0[*at]).collect();

    // As it comes from a link: at any address.
    let shift = random.index(9);
    let bytes = [&vec![0; shift], &later.0[..]].concat();
    let mut copy = page.clone();
    // SAFETY: both are BYTES long, aligned, and used by no other thread.
    unsafe { merge(&bytes[shift..], Some(twin.0.as_mut_ptr()), copy.0.as_mut_ptr()) };
    assert!(copy == expected, "{:?} are wrong", differences(&copy, &expected));
    assert!(twin == later, "the twin is the later state");
    assert_eq!(differences(&copy, &twin), stored, "what was stored is still to be published, and nothing else");

    // SAFETY: BYTES long, aligned, and used by no other thread.
    unsafe { merge(&bytes[shift..], None, page.0.as_mut_ptr()) };
    assert!(page == later, "a copy to which nothing was stored becomes the later state");
}

#[test]
fn merge_agrees_with_a_byte_for_byte_model() {
    with_seeds(1500, merges_like_the_model::<4096>);
    with_seeds(60, merges_like_the_model::<65_536>);
    with_seeds(100, merges_like_the_model::<64>);
}

/// One thread stores to some bytes of a few words, diffs and later states put values into the others: both survive.
#[test]
fn neighbours_in_the_same_words_both_survive() {
    const APPLIED: usize = 5_000;
    // Masks of every kind: single bytes, aligned parts, and bytes apart.
    for theirs in [0x02u8, 0x0c, 0xf0, 0xaa, 0x71] {
        let words = AtomicWords::new();
        let done = AtomicBool::new(false);
        let is_theirs = |at: usize| theirs >> (at % 8) & 1 == 1;
        let byte = |at: usize| {
            // SAFETY: a byte of the words, which live long enough; both threads use atomics.
            unsafe { AtomicU8::from_ptr(words.0.as_ptr().cast::<u8>().add(at).cast_mut()) }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut round = 0u8;
                while !done.load(Ordering::Relaxed) {
                    let ours = || (0..64).filter(|at| !is_theirs(*at)).map(byte);
                    let before = round;
                    assert!(ours().all(|byte| byte.load(Ordering::Relaxed) == before), "a store was undone");
                    round = round.wrapping_add(1);
                    ours().for_each(|byte| byte.store(round, Ordering::Relaxed));
                }
            });
            let (mut source, mut kept) = (Page([0u8; 64]), true);
            let (mut twin, mut merged) = (source.clone(), source.clone());
            for round in 1..=APPLIED {
                (0..64).filter(|at| is_theirs(*at)).for_each(|at| source.0[at] = round as u8);
                let diff = source.diff(&mut twin);
                check(&diff, 64).expect("made by encode");
                if round % 2 == 0 {
                    // SAFETY: checked for this size; the other thread uses atomics.
                    unsafe { apply(&diff, words.0.as_ptr() as *mut u8) };
                    merged.clone_from(&twin);
                } else {
                    // SAFETY: as large; the other thread uses atomics.
                    unsafe { merge(&twin.0, Some(merged.0.as_mut_ptr()), words.0.as_ptr() as *mut u8) };
                }
                kept &= (0..64).all(|at| !is_theirs(at) || byte(at).load(Ordering::Relaxed) == round as u8);
            }
            done.store(true, Ordering::Relaxed);
            assert!(kept, "what was applied was undone");
        });
    }
}

/// A word that two values alternate in is never seen, nor sent, half changed.
#[test]
fn words_are_never_seen_half_changed() {
    const VALUES: [u64; 2] = [0x0101_0101_0101_0101, 0xfefe_fefe_fefe_fefe];
    let (source, target) = (AtomicWords::new(), AtomicWords::new());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for step in 0..200_000usize {
                source.0[step % 8].store(VALUES[step / 8 % 2], Ordering::Relaxed);
            }
            done.store(true, Ordering::SeqCst);
        });
        scope.spawn(|| {
            let mut twin = Page([0u8; 64]);
            let mut diff = Vec::new();
            let mut last = false;
            while !last {
                last = done.load(Ordering::SeqCst);
                diff.clear();
                // SAFETY: 64 bytes, aligned; the other thread stores whole words.
                unsafe { encode(source.0.as_ptr().cast(), twin.0.as_mut_ptr(), 64, &mut diff) };
                check(&diff, 64).expect("made by encode");
                // SAFETY: checked for this size; the other thread uses atomics.
                unsafe { apply(&diff, target.0.as_ptr() as *mut u8) };
            }
        });
        while !done.load(Ordering::SeqCst) {
            for word in &target.0 {
                let seen = word.load(Ordering::Relaxed);
                assert!(seen == 0 || VALUES.contains(&seen), "{seen:#x} is half of each");
            }
        }
    });
    let words = |words: &AtomicWords| words.0.each_ref().map(|word| word.load(Ordering::Relaxed));
    assert_eq!(words(&source), words(&target));
}

#[repr(align(64))]
struct AtomicWords([AtomicU64; 8]);

impl AtomicWords {
    fn new() -> AtomicWords {
        AtomicWords([const { AtomicU64::new(0) }; 8])
    }
}
