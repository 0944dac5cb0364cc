//! Histories: correct ones pass, and for every kind of incorrect one there is an explanation.

use std::sync::atomic::{AtomicU64, Ordering};
use trellis_base::Random;
use trellis_check::history::check::{Fault, check};
use trellis_check::history::record::{RecordPlan, record_alone, record_node};
use trellis_check::history::{History, Operation, Thread, log, value_of, value_text};

fn read(cell: u32, value: u64) -> Operation {
    Operation::Read { cell, value }
}

fn exchange(cell: u32, value: u64, replaced: u64) -> Operation {
    Operation::Exchange { cell, value, replaced }
}

fn write(cell: u32, value: u64, version: u64) -> Operation {
    Operation::Write { cell, value, version }
}

fn history(threads: &[&[Operation]]) -> History {
    let thread =
        |(node, operations): (usize, &&[Operation])| Thread { node: node as u16, operations: operations.to_vec() };
    History { threads: threads.iter().enumerate().map(thread).collect() }
}

/// The error in the history, after its explanation was printed.
fn fault(threads: &[&[Operation]]) -> Option<Fault> {
    let wrong = check(&history(threads)).err()?;
    println!("{:?}\n{}", wrong.fault, wrong.story.join("\n"));
    Some(wrong.fault)
}

/// The value of a first write to a cell, and of a second one.
const ONE: u64 = 11;
const TWO: u64 = 22;

#[test]
fn histories_of_one_memory_pass() {
    assert_eq!(fault(&[]), None);
    assert_eq!(fault(&[&[exchange(0, ONE, 0), read(0, ONE)], &[read(0, 0), read(0, ONE)]]), None);
    assert_eq!(fault(&[&[exchange(0, ONE, 0), read(1, 0)], &[exchange(1, ONE, 0), read(0, ONE)]]), None);
    assert_eq!(fault(&[&[write(0, ONE, 4), write(0, TWO, 9)], &[read(0, 0), read(0, TWO)]]), None);
}

#[test]
fn the_classic_outcomes_are_circles() {
    let store_buffering: [&[Operation]; 2] = [&[exchange(0, ONE, 0), read(1, 0)], &[exchange(1, ONE, 0), read(0, 0)]];
    assert_eq!(fault(&store_buffering), Some(Fault::Cycle));
    let message_passing: [&[Operation]; 2] = [&[write(0, ONE, 1), write(1, ONE, 1)], &[read(1, ONE), read(0, 0)]];
    assert_eq!(fault(&message_passing), Some(Fault::Cycle));
    let load_buffering: [&[Operation]; 2] = [&[read(0, ONE), write(1, ONE, 1)], &[read(1, ONE), write(0, ONE, 1)]];
    assert_eq!(fault(&load_buffering), Some(Fault::Cycle));
    let both_writes: [&[Operation]; 2] = [&[write(0, ONE, 1), write(1, TWO, 2)], &[write(1, ONE, 1), write(0, TWO, 2)]];
    assert_eq!(fault(&both_writes), None, "the second writes win in both cells: one order explains it");
    let neither: [&[Operation]; 2] = [&[write(0, ONE, 2), write(1, TWO, 1)], &[write(1, ONE, 2), write(0, TWO, 1)]];
    assert_eq!(fault(&neither), Some(Fault::Cycle));
    let independent: [&[Operation]; 4] =
        [&[write(0, ONE, 1)], &[write(1, ONE, 1)], &[read(0, ONE), read(1, 0)], &[read(1, ONE), read(0, 0)]];
    assert_eq!(fault(&independent), Some(Fault::Cycle));
    assert_eq!(fault(&[&[write(0, ONE, 1)], &[read(0, ONE), read(0, 0)]]), Some(Fault::Cycle));
    assert_eq!(fault(&[&[read(0, ONE), write(0, ONE, 1)]]), Some(Fault::Cycle));
    // Each exchange replaced the value of the other: neither was first.
    assert_eq!(fault(&[&[exchange(0, ONE, TWO)], &[exchange(0, TWO, ONE)]]), Some(Fault::Cycle));
}

#[test]
fn values_from_nowhere_and_lost_updates_have_their_names() {
    assert_eq!(fault(&[&[write(0, ONE, 1)], &[read(0, TWO)]]), Some(Fault::ThinAir));
    assert_eq!(fault(&[&[write(0, ONE, 1)], &[read(1, ONE)]]), Some(Fault::ThinAir));
    assert_eq!(fault(&[&[exchange(0, ONE, TWO)]]), Some(Fault::ThinAir));
    let (one, two) = (value_of(0, 1), value_of(1, 1));
    let half = one & 0xFFFF_FFFF | two & !0xFFFF_FFFF;
    assert_eq!(fault(&[&[write(0, one, 1), write(0, two, 2)], &[read(0, half)]]), Some(Fault::Torn));
    assert_eq!(fault(&[&[exchange(0, ONE, 0)], &[exchange(0, TWO, 0)]]), Some(Fault::LostUpdate));
    assert_eq!(fault(&[&[write(0, ONE, 7)], &[write(0, TWO, 7)]]), Some(Fault::LostUpdate));
    assert_eq!(fault(&[&[write(0, ONE, 1)], &[write(0, ONE, 2)]]), Some(Fault::Unreadable));
    assert_eq!(fault(&[&[write(0, ONE, 1)], &[exchange(0, TWO, ONE)]]), Some(Fault::Unreadable));
}

#[test]
fn a_barrier_orders_what_is_on_its_sides() {
    let barrier = Operation::Barrier { number: 0 };
    assert_eq!(fault(&[&[write(0, ONE, 1), barrier], &[barrier, read(0, ONE)]]), None);
    assert_eq!(fault(&[&[write(0, ONE, 1), barrier], &[barrier, read(0, 0)]]), Some(Fault::Cycle));
    assert_eq!(fault(&[&[write(0, ONE, 1), barrier], &[read(0, 0), barrier]]), None);
}

#[test]
fn a_circle_is_told_by_its_corners() {
    let padding: Vec<Operation> = (0..500).map(|_| read(9, 0)).collect();
    let first = [vec![exchange(0, ONE, 0)], padding.clone(), vec![read(1, 0)]].concat();
    let second = [vec![exchange(1, ONE, 0)], padding, vec![read(0, 0)]].concat();
    let wrong = check(&history(&[&first, &second])).expect_err("store buffering");
    assert_eq!(wrong.story.len(), 1 + 4 * 2 + 1, "{}", wrong.story.join("\n"));
    assert!(wrong.story.iter().any(|line| line.contains("thread 0 of node 0, operation 501: reads 0 from cell 1")));
}

/// A history of one memory, with steps in random order.
fn random_history(seed: u64, threads: usize, operations: usize, cells: u32) -> History {
    let mut random = Random::new(seed);
    let mut memory = vec![(0, 0); cells as usize];
    let mut history = History::default();
    (0..threads).for_each(|node| history.threads.push(Thread { node: node as u16, operations: Vec::new() }));
    for number in 0..operations {
        let thread = random.below(threads as u64) as u32;
        let cell = random.below(cells.into()) as u32;
        let (value, version) = &mut memory[cell as usize];
        let operation = if random.once_in(2) {
            read(cell, *value)
        } else {
            let new = value_of(thread, number as u32);
            let replaced = std::mem::replace(value, new);
            *version += 1;
            // A cell has either exchanges or versions.
            if cell.is_multiple_of(2) { exchange(cell, new, replaced) } else { write(cell, new, *version) }
        };
        history.threads[thread as usize].operations.push(operation);
    }
    history
}

#[test]
fn whatever_one_memory_did_passes_and_is_read_back() {
    for seed in 0..50 {
        let history = random_history(seed, 1 + seed as usize % 5, 300, 1 + seed as u32 % 7);
        let checked = check(&history).unwrap_or_else(|wrong| panic!("seed {seed}: {}", wrong.story.join("\n")));
        assert_eq!(checked.operations, 300);
        let mut text = Vec::new();
        log::write(&mut text, &history.threads).unwrap();
        let mut again = History::default();
        log::read("log", &mut text.as_slice(), &mut again).unwrap();
        assert_eq!(again, history);
    }
}

#[test]
fn a_read_that_goes_back_is_noticed_wherever_it_is() {
    let mut noticed = 0;
    for seed in 0..100 {
        let mut history = random_history(seed, 3, 300, 2);
        // The reader saw a value and then the initial value again in the same cell.
        let thread = &mut history.threads[seed as usize % 3].operations;
        let Some(at) = thread.iter().rposition(|operation| matches!(operation, Operation::Read { .. })) else {
            continue;
        };
        let Operation::Read { cell, value } = thread[at] else { continue };
        if value == 0 {
            continue;
        }
        thread.push(read(cell, 0));
        noticed += 1;
        assert_eq!(check(&history).expect_err("it went back").fault, Fault::Cycle, "seed {seed}");
    }
    assert!(noticed > 90);
}

#[test]
fn a_large_history_takes_no_stack() {
    let history = random_history(7, 8, 400_000, 64);
    assert_eq!(check(&history).map(|checked| checked.cells), Ok(64));
}

#[test]
fn lines_that_are_no_history_are_refused() {
    let refused = |text: &str| log::read("f", &mut text.as_bytes(), &mut History::default()).unwrap_err();
    assert_eq!(refused(""), "f: the history has no thread");
    assert_eq!(refused("what\n"), "f:1: a history begins with `trellis-history 1`");
    let after = |line: &str| refused(&format!("{}\nthread 0\n{line}\n", log::HEADER));
    for line in ["r 5", "r x 5", "r 5 g", "x 1 2", "w 1 2 -3", "b 4294967296", "q 1", "r 1 2 3", "thread 65536"] {
        assert_eq!(after(line), format!("f:3: `{line}` is not a line of a history"));
    }
    assert_eq!(refused(&format!("{}\nr 1 2\n", log::HEADER)), "f:2: an operation stands before the first `thread`");
    let long = "r ".repeat(1000);
    assert!(after(&long).starts_with("f:3: "));
}

#[test]
fn values_say_whose_they_are() {
    assert_eq!(value_text(value_of(3, 17)), "3.17");
    assert_eq!((value_text(0), value_text(5)), ("0".to_string(), "0x5".to_string()));
}

fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(u64::MAX)).collect()
}

#[test]
fn threads_on_one_memory_record_a_history_that_passes() {
    let plan = RecordPlan::new(2, 2, 20_000);
    let history = record_alone(&plan, &words(plan.words())).unwrap();
    let checked = check(&history).unwrap_or_else(|wrong| panic!("{}", wrong.story.join("\n")));
    assert!(checked.operations >= 20_000 && checked.writes > 4_000 && checked.cells == 16, "{checked:?}");
}

#[test]
fn a_memory_that_loses_a_page_is_noticed() {
    // A single node, so that the run is the same each time; the memory is changed at the third barrier.
    for broken in [
        |word: &AtomicU64| word.store(0, Ordering::SeqCst),
        |word: &AtomicU64| {
            word.store(word.load(Ordering::SeqCst) ^ 1 << 40, Ordering::SeqCst);
        },
    ] {
        let plan = RecordPlan::new(1, 1, 1_000);
        let words = words(plan.words());
        let mut barriers = 0;
        let threads = record_node(&plan, 0, &words, &mut || {
            barriers += 1;
            if barriers == 3 {
                words[..plan.page_words as usize].iter().for_each(broken);
            }
            Ok(())
        });
        let wrong = check(&History { threads: threads.unwrap() }).expect_err("the memory was changed");
        println!("{:?}\n{}", wrong.fault, wrong.story.join("\n"));
        assert!(matches!(wrong.fault, Fault::Cycle | Fault::LostUpdate | Fault::ThinAir | Fault::Torn));
    }
}

#[test]
fn a_barrier_that_fails_ends_the_recording() {
    let plan = RecordPlan::new(1, 1, 100);
    let end = record_node(&plan, 0, &words(plan.words()), &mut || Err("node 1 is gone".to_string()));
    assert_eq!(end, Err("node 1 is gone".to_string()));
    let end = record_node(&plan, 0, &[], &mut || Ok(()));
    assert_eq!(end, Err("the history needs 2048 shared words and was given 0".to_string()));
}
