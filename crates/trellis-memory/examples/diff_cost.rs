//! Measures the cost of multiple writers on this machine, without a network: diffs of pages, stores that the kernel
//! records, and finding those.
//!
//! ```text
//! cargo run --release -p trellis-memory --example diff_cost
//! ```
//!
//! It prints the median of several rounds, in microseconds for a page of 4 KiB. `stored_to` is one request over all
//! pages, divided by their number: with stores to none of them, to each, and to every second one.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use trellis_base::statistics::median;

use trellis_memory::{
    Access, Catcher, Detection, Fault, FaultServer, Region, RegionOptions, Reserve, choose, diff, probe,
};

const PAGE: usize = 4096;
const PAGES: usize = 4096;
const ROUNDS: usize = 31;
/// Diffs in a round: this many pages fit into the second-level cache.
const BATCH: usize = 32;

/// No page is touched that was not installed.
struct Nobody;

impl FaultServer for Nobody {
    fn serve(&self, fault: Fault) {
        unreachable!("{fault:?}");
    }
}

fn main() {
    println!("{:<10} {:>34} {:>9}", "", "step", "µs");
    diffs();
    for catcher in [Catcher::Signal, Catcher::Handler] {
        match choose(Some(catcher), &probe()) {
            Ok(_) => marks(catcher),
            Err(why) => println!("SKIPPED {catcher}: {why}"),
        }
    }
}

fn show(what: &str, step: &str, mut samples: Vec<f64>) {
    println!("{what:<10} {step:>34} {:>9.4}", median(&mut samples));
}

#[repr(align(4096))]
struct Page([u8; PAGE]);

fn pages() -> Vec<Page> {
    (0..BATCH).map(|_| Page([0; PAGE])).collect()
}

/// Which bytes of a page change.
type Pattern = fn(usize) -> bool;

fn diffs() {
    let patterns: [(&str, Pattern); 6] = [
        ("equal", |_| false),
        ("one byte", |at| at == 1000),
        ("1 % in one place", |at| (1000..1041).contains(&at)),
        ("one byte in eight", |at| at % 8 == 0),
        ("six bytes in eight, apart", |at| !matches!(at % 8, 0 | 4)),
        ("every byte", |_| true),
    ];
    for (name, pattern) in patterns {
        let (mut encoding, mut applying) = (Vec::new(), Vec::new());
        let (mut source, mut twins, mut targets) = (pages(), pages(), pages());
        let mut out: Vec<Vec<u8>> = (0..BATCH).map(|_| Vec::with_capacity(2 * diff::bytes_max(PAGE))).collect();
        for round in 0..ROUNDS {
            for page in &mut source {
                (0..PAGE).filter(|at| pattern(*at)).for_each(|at| page.0[at] = round as u8 + 1);
            }
            out.iter_mut().for_each(Vec::clear);
            let start = Instant::now();
            for ((page, twin), out) in source.iter().zip(&mut twins).zip(&mut out) {
                // SAFETY: two pages of this program.
                black_box(unsafe { diff::encode(page.0.as_ptr(), twin.0.as_mut_ptr(), PAGE, out) });
            }
            encoding.push(start.elapsed().as_secs_f64() * 1e6 / BATCH as f64);
            let start = Instant::now();
            for (page, diff) in targets.iter_mut().zip(&out) {
                diff::check(diff, PAGE).expect("made above");
                // SAFETY: checked for a page of this size.
                unsafe { diff::apply(diff, page.0.as_mut_ptr()) };
            }
            applying.push(start.elapsed().as_secs_f64() * 1e6 / BATCH as f64);
        }
        assert!(source.iter().zip(&targets).all(|(page, target)| page.0 == target.0));
        println!("{:<10} {:>34} {:>9} bytes", "diff", name, out[0].len());
        show("diff", "encode", encoding);
        show("diff", "check and apply", applying);
    }
}

const STEPS: [&str; 12] = [
    "keep twin, first time",
    "keep twin again",
    "install for reading, 64 at once",
    "first store to a clean page",
    "store to a page stored to",
    "stored_to, none was",
    "stored_to, each was, one run",
    "stored_to, every second one",
    "downgrade, one by one",
    "downgrade, 64 at once",
    "drop twins, 64 at once",
    "revoke, 64 at once",
];

fn marks(catcher: Catcher) {
    let options =
        RegionOptions { base_address: None, bytes: PAGES * PAGE, page_bytes: PAGE, catcher, reserve: Reserve::Lazy };
    let region = Region::create(&options).unwrap_or_else(|error| panic!("{error}"));
    if !region.marks_work() {
        println!("SKIPPED marks with {catcher}: {}", probe().marks.detail);
        return;
    }
    region.catch(Arc::new(Nobody)).unwrap_or_else(|error| panic!("{error}"));
    region.detect(0, PAGES, Detection::Marks).expect("detected by marks");
    region.prepare(0, PAGES).expect("there is memory");
    let mut samples = STEPS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (sample, microseconds) in samples.iter_mut().zip(one_round(&region)) {
            sample.push(microseconds);
        }
    }
    for (step, sample) in STEPS.iter().zip(samples) {
        show(&catcher.to_string(), step, sample);
    }
}

fn one_round(region: &Region) -> [f64; STEPS.len()] {
    let store = |page: usize| {
        // SAFETY: a byte of the region, whose pages are all installed.
        unsafe { region.base().add(page * PAGE).write_volatile(1) };
    };
    let found = || {
        let mut pages = 0;
        region.stored_to(0, PAGES, &mut |_, count| pages += count).expect("scanned");
        pages
    };
    let keep_first = per_page(1, |page| region.keep_twin(page, 1));
    let keep_again = per_page(1, |page| region.keep_twin(page, 1));
    let install = per_page(64, |page| region.install(page, 64, Access::Read, false).expect("installed"));
    let first_store = per_page(1, store);
    let second_store = per_page(1, store);
    let each = per_page(PAGES, |_| assert_eq!(found(), PAGES));
    let downgrade = per_page(1, |page| region.downgrade(page, 1).expect("downgraded"));
    let none = per_page(PAGES, |_| assert_eq!(found(), 0));
    (0..PAGES).step_by(2).for_each(store);
    let half = per_page(PAGES, |_| assert_eq!(found(), PAGES / 2));
    (0..PAGES).for_each(store);
    let downgrade_many = per_page(64, |page| region.downgrade(page, 64).expect("downgraded"));
    let drop_twins = per_page(64, |page| region.drop_twins(page, 64));
    let revoke = per_page(64, |page| region.revoke(page, 64).expect("revoked"));
    [
        keep_first,
        keep_again,
        install,
        first_store,
        second_store,
        none,
        each,
        half,
        downgrade,
        downgrade_many,
        drop_twins,
        revoke,
    ]
}

/// The time for one page of a step that handles `at_once` pages.
fn per_page(at_once: usize, mut step: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    (0..PAGES).step_by(at_once).for_each(&mut step);
    start.elapsed().as_secs_f64() * 1e6 / PAGES as f64
}
