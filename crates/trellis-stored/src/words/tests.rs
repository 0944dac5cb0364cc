//! Tests words against a plain array, with many threads, and outside the region.

use std::sync::Arc;

use trellis_base::Random;
use trellis_store::Store;
use trellis_store::wrap::Counted;

use super::{PIECE_BYTES, Update, Words};
use crate::layout::{PAGE_BYTES, REGION_BASE};

const BYTES: usize = 4 << 20;

fn words(process: bool) -> (Arc<Words>, Arc<Counted>) {
    let store = Counted::new(trellis_store::open("embedded:").expect("it needs nothing"));
    let words = Words::new(Arc::clone(&store) as Arc<dyn Store>, 5, BYTES, true, process.then_some(6));
    (Arc::new(words), store)
}

fn load(words: &Words, address: usize, bytes: usize) -> Vec<u8> {
    let mut into = vec![0xaa; bytes];
    // SAFETY: tests name addresses of the region, or of their own variables.
    unsafe { words.load(address, &mut into).expect("loaded") };
    into
}

fn store(words: &Words, address: usize, from: &[u8]) {
    // SAFETY: as above.
    unsafe { words.store(address, from).expect("stored") };
}

#[test]
fn every_access_is_that_of_an_array() {
    let (words, _) = words(false);
    let mut model = vec![0u8; 64 * PAGE_BYTES];
    let mut random = Random::new(1);
    for round in 0..4000u64 {
        let bytes = random.one_of(&[1, 2, 4, 8, 16, 100, 5000]);
        let at = random.index(model.len() - bytes);
        let what = format!("round {round}: {bytes} bytes at {at}");
        match random.below(4) {
            0 => {
                let from: Vec<u8> = (0..bytes).map(|byte| (byte as u64 * 7 + round) as u8).collect();
                store(&words, REGION_BASE + at, &from);
                model[at..at + bytes].copy_from_slice(&from);
            }
            1 => {
                let to = random.index(model.len() - bytes);
                // SAFETY: addresses of the region.
                unsafe { words.copy(REGION_BASE + to, REGION_BASE + at, bytes).expect(&what) };
                model.copy_within(at..at + bytes, to);
            }
            2 => {
                let byte = (round % 3) as u8;
                // SAFETY: addresses of the region.
                unsafe { words.set(REGION_BASE + at, byte, bytes).expect(&what) };
                model[at..at + bytes].fill(byte);
            }
            _ => assert_eq!(load(&words, REGION_BASE + at, bytes), &model[at..at + bytes], "{what}"),
        }
    }
    assert_eq!(load(&words, REGION_BASE, model.len()), model);
}

#[test]
fn a_copy_longer_than_a_call_may_overlap() {
    let (words, counted) = words(false);
    let model: Vec<u8> = (0..PIECE_BYTES + 5000).map(|byte| (byte * 31 % 251) as u8).collect();
    for (from, to) in [(0, 3000), (3000, 0)] {
        store(&words, REGION_BASE + from, &model);
        let before = counted.counts();
        // SAFETY: addresses of the region.
        unsafe { words.copy(REGION_BASE + to, REGION_BASE + from, model.len()).expect("copied") };
        assert_eq!(counted.counts().since(&before).calls(), 4, "two pieces, each read and written");
        assert_eq!(load(&words, REGION_BASE + to, model.len()), model);
    }
}

#[test]
fn an_access_is_one_call() {
    let (words, counted) = words(false);
    for bytes in [1, 8, 64, 3 * PAGE_BYTES] {
        let before = counted.counts();
        store(&words, REGION_BASE + PAGE_BYTES - 3, &vec![1; bytes]);
        load(&words, REGION_BASE + PAGE_BYTES - 3, bytes);
        assert_eq!(counted.counts().since(&before).calls(), 2, "{bytes} bytes");
    }
    let before = counted.counts();
    // SAFETY: addresses of the region.
    unsafe {
        assert_eq!(words.update(REGION_BASE + 8192, 5, 8, Update::Add).expect("added"), 0x0101_0101_0101_0101);
        assert_eq!(words.update(REGION_BASE + 40960, 7, 4, Update::Exchange).expect("exchanged"), 0);
        assert_eq!(words.compare_exchange(REGION_BASE + 40960, 7, 9, 4).expect("compared"), Ok(()));
        assert_eq!(words.compare_exchange(REGION_BASE + 40960, 7, 9, 4).expect("compared"), Err(9));
    }
    assert_eq!(counted.counts().since(&before).calls(), 4);
}

#[test]
fn threads_that_write_neighbouring_bytes_lose_nothing() {
    let (words, _) = words(false);
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let words = &words;
            scope.spawn(move || {
                for round in 1..=100u8 {
                    for word in 0..4 {
                        // One byte of each word, and the words lie across two pages.
                        store(words, REGION_BASE + PAGE_BYTES - 16 + 8 * word + thread, &[round]);
                    }
                    // SAFETY: addresses of the region; unaligned, and in two pages.
                    unsafe {
                        words.update(REGION_BASE + 3 * PAGE_BYTES - 4, 3, 8, Update::Add).expect("added");
                        words.update(REGION_BASE + 5 * PAGE_BYTES + 1, 3, 4, Update::Subtract).expect("subtracted");
                        words.update(REGION_BASE + 6 * PAGE_BYTES, u64::from(round), 2, Update::Max).expect("greater");
                    }
                }
            });
        }
    });
    assert_eq!(load(&words, REGION_BASE + PAGE_BYTES - 16, 32), [100; 32]);
    assert_eq!(load(&words, REGION_BASE + 3 * PAGE_BYTES - 4, 8), 2400u64.to_le_bytes());
    assert_eq!(load(&words, REGION_BASE + 5 * PAGE_BYTES + 1, 4), 0u32.wrapping_sub(2400).to_le_bytes());
    assert_eq!(load(&words, REGION_BASE + 6 * PAGE_BYTES, 2), 100u16.to_le_bytes());
}

#[test]
fn outside_the_region_a_byte_is_in_the_store_once_it_was_stored() {
    let (words, counted) = words(true);
    let mut variable = [1u8, 2, 3, 4, 5, 6, 7, 8];
    let address = (&raw mut variable).expose_provenance();
    assert_eq!(load(&words, address, 8), [1, 2, 3, 4, 5, 6, 7, 8], "what was never stored is where it seems to be");
    assert_eq!(counted.counts().calls(), 0);
    store(&words, address + 2, &[30, 40]);
    assert_eq!(variable, [1, 2, 3, 4, 5, 6, 7, 8], "a store goes to the store");
    assert_eq!(load(&words, address, 8), [1, 2, 30, 40, 5, 6, 7, 8]);
    // Plain instructions write it, so the store's bytes are old.
    variable[2] = 33;
    words.import(address + 2, 1);
    assert_eq!(load(&words, address, 4), [1, 2, 33, 40]);
    // SAFETY: the variable's own bytes.
    unsafe { words.export(address, 8).expect("exported") };
    assert_eq!(variable, [1, 2, 33, 40, 5, 6, 7, 8]);
    // SAFETY: the same.
    unsafe {
        assert_eq!(words.update(address + 4, 1, 4, Update::Add).expect("added"), 0x0807_0605);
        assert_eq!(words.update(address + 4, 1, 4, Update::Add).expect("added"), 0x0807_0606);
    }
    assert_eq!(load(&words, address + 4, 4), [7, 6, 7, 8]);
    // SAFETY: the same.
    unsafe { words.keep_native(address, 8).expect("kept") };
    assert_eq!(variable, [1, 2, 33, 40, 7, 6, 7, 8]);
    let before = counted.counts();
    store(&words, address, &[9]);
    // SAFETY: the same.
    unsafe { words.update(address + 4, 1, 1, Update::Add).expect("added") };
    assert_eq!((variable[0], variable[4]), (9, 8), "plain memory for good");
    assert_eq!(counted.counts().since(&before).calls(), 0);
}

#[test]
fn an_address_behind_the_region_is_refused() {
    let (words, _) = words(false);
    for address in [REGION_BASE + BYTES - 3, REGION_BASE + BYTES, REGION_BASE + (1 << 40) - 8] {
        // SAFETY: it is refused.
        let said = unsafe { words.load(address, &mut [0; 8]) }.expect_err("outside").to_string();
        assert!(said.contains(&format!("{address:#x}")), "{said}");
    }
}
