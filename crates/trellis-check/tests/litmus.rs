//! Litmus tests in the simulator: every protocol passes, broken ones are noticed, failing runs repeat.
//!
//! The part for real processes runs on the memory of one process.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Condvar, Mutex};
use trellis_check::litmus::generate::shapes;
use trellis_check::litmus::oracle::{Memory, allowed};
use trellis_check::litmus::parse::parse_file;
use trellis_check::litmus::program::Program;
use trellis_check::litmus::real::{Calls, RealPlan, RealReport, arrangements, run_calling_node, run_node};
use trellis_check::litmus::simulate::{BLOCK, simulate, simulate_with, tell, tell_with};
use trellis_check::litmus::{LitmusOptions, LitmusReport, Progress, verdict};
use trellis_cluster_protocol::Nanoseconds;
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Input, Message, Protocol, Running};

fn all_protocols(runs: u64) -> LitmusOptions {
    LitmusOptions::new(Protocol::all(), runs)
}

fn run(options: &LitmusOptions) -> LitmusReport {
    simulate(options, &mut |_| {}).expect("the options fit")
}

#[test]
fn every_protocol_shows_allowed_outcomes_only() {
    let options = all_protocols(120_000);
    let report = run(&options);
    println!("{}", report.to_json(false));
    if let Some(failure) = report.failures.first() {
        panic!("{failure:?}\n{}", tell(&failure.options(&options)).unwrap().join("\n"));
    }
    assert!(report.passed() && report.completed == 120_000);
    // This is not because too little happens: nearly every allowed outcome was seen.
    let seen: usize = report.shapes.iter().map(|shape| shape.outcomes_seen()).sum();
    let allowed: usize = report.shapes.iter().map(|shape| shape.seen.len()).sum();
    assert!(seen * 100 >= allowed * 98, "{seen} of {allowed} allowed outcomes were seen");
    for shape in &report.shapes {
        assert_eq!(shape.condition.as_ref().map(|(_, held)| *held), Some(0), "{}", shape.name);
    }
}

#[test]
fn the_report_has_what_scripts_look_for() {
    let json = run(&LitmusOptions { seed: 5, ..all_protocols(800) }).to_json(true);
    for key in ["\"runs\": 800", "\"completed\": 800", "\"forbidden\": 0", "\"stuck\": 0", "\"shapes\": 64"] {
        assert!(json.contains(key), "{key} in {json}");
    }
    assert!(json.contains("\"protocols\": [\"ivy\"") && json.contains("{\"name\": \"IRIW\""), "{json}");
}

#[test]
fn jobs_share_the_same_runs() {
    let alone = run(&LitmusOptions { seed: 77, ..all_protocols(20_003) });
    let together = run(&LitmusOptions { seed: 77, jobs: 3, ..all_protocols(20_003) });
    assert_eq!((together.runs, together.completed, together.steps), (20_003, alone.completed, alone.steps));
    let seen =
        |report: &LitmusReport| report.shapes.iter().map(|shape| (shape.runs, shape.seen.clone())).collect::<Vec<_>>();
    assert_eq!(seen(&alone), seen(&together));
}

#[test]
fn progress_is_told() {
    let mut reported = Vec::new();
    let options = LitmusOptions::new(vec![Protocol::IVY], 40_000);
    simulate(&options, &mut |progress: Progress| reported.push(progress.runs)).unwrap();
    assert!(reported.len() == 2 && reported.is_sorted(), "{reported:?}");
}

/// A rule to break in any protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    None,
    /// An invalidation is acknowledged and the copy stays.
    GiveUpCopies,
    /// The bytes and the right to write go, and the view stays.
    GiveUpRights,
    /// A reader gets a copy, and the writer continues to write.
    Downgrade,
    /// A thread is not woken.
    Wake,
    /// The protocol is not told that a held page is wanted.
    Hold,
    /// The third message from here is lost.
    Send,
}

#[derive(Clone)]
struct Broken {
    inner: Running,
    rule: Rule,
    sent: u32,
}

impl Coherence for Broken {
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        let before = effects.len();
        Coherence::step(&mut self.inner, now, input, effects);
        let is_invalidation = matches!(input, Input::Message { message: Message::Invalidate { .. }, .. });
        let mut kept = effects.split_off(before);
        kept.retain(|effect| match (self.rule, effect) {
            (Rule::GiveUpCopies, Effect::Revoke(_)) => !is_invalidation,
            (Rule::GiveUpRights, Effect::Revoke(_)) => is_invalidation,
            (Rule::Downgrade, Effect::Downgrade(_)) | (Rule::Wake, Effect::Wake(_)) | (Rule::Hold, Effect::Hold(_)) => {
                false
            }
            (Rule::Send, Effect::Send { .. }) => {
                self.sent += 1;
                self.sent != 3
            }
            _ => true,
        });
        effects.append(&mut kept);
    }

    trellis_check::answers_as!(inner);
}

fn broken(rule: Rule) -> impl Fn(Protocol, Geometry) -> Broken + Sync {
    move |protocol, geometry| Broken { inner: protocol.start(geometry), rule, sent: 0 }
}

#[test]
fn broken_protocols_are_noticed_by_what_threads_see() {
    for protocol in [Protocol::IVY, Protocol::DYNAMIC] {
        // Only outcomes and waiting count here: the contract is not checked.
        let options = LitmusOptions { checks_contract: false, ..LitmusOptions::new(vec![protocol], 8_000) };
        let with = |rule| simulate_with(&options, broken(rule), &mut |_| {}).unwrap();
        assert!(with(Rule::None).passed(), "{protocol}: the wrapper alone breaks nothing");
        for rule in [Rule::GiveUpCopies, Rule::GiveUpRights, Rule::Downgrade] {
            let report = with(rule);
            println!(
                "{protocol} without {rule:?}: {} forbidden, {} stuck, {} broken",
                report.forbidden, report.stuck, report.broken
            );
            assert!(report.forbidden > 0, "{protocol} without {rule:?}: no forbidden outcome");
        }
        for rule in [Rule::Wake, Rule::Send, Rule::Hold] {
            let report = with(rule);
            println!(
                "{protocol} without {rule:?}: {} forbidden, {} stuck, {} broken",
                report.forbidden, report.stuck, report.broken
            );
            assert!(report.stuck > 0, "{protocol} without {rule:?}: every run ended");
        }
    }
}

#[test]
fn breaches_of_the_contract_are_noticed_before_an_outcome_shows_them() {
    let options = LitmusOptions::new(vec![Protocol::IVY], 2_000);
    for rule in [Rule::GiveUpCopies, Rule::GiveUpRights, Rule::Downgrade] {
        let report = simulate_with(&options, broken(rule), &mut |_| {}).unwrap();
        assert!(report.broken > 100 && report.forbidden == 0, "{rule:?}: {}", report.to_json(false));
    }
}

#[test]
fn a_failing_run_repeats_alone_and_is_told() {
    let options = LitmusOptions { checks_contract: false, ..LitmusOptions::new(Protocol::all(), 4_000) };
    let start = broken(Rule::GiveUpCopies);
    let report = simulate_with(&options, &start, &mut |_| {}).unwrap();
    assert!(
        report.failures.iter().any(|failure| failure.number > 0),
        "failures are not only in the first run of a block"
    );
    for failure in &report.failures {
        let alone = failure.options(&options);
        assert!(alone.runs <= BLOCK && alone.protocols.len() == 1 && alone.programs.len() == 1);
        let again = simulate_with(&alone, &start, &mut |_| {}).unwrap();
        let last = again.failures.last().expect("it fails again");
        assert_eq!((&last.what, last.kind, last.number), (&failure.what, failure.kind, failure.number));
        let story = tell_with(&alone, &start).unwrap();
        assert!(story.last().unwrap().contains(&failure.what), "{}", story.join("\n"));
    }
    let story = tell_with(&report.failures[0].options(&options), &start).unwrap().join("\n");
    println!("{story}");
    assert!(story.contains("the threads start") && story.contains("hears from n"));
}

#[test]
fn options_that_cannot_be_are_refused() {
    let of = |options: &LitmusOptions| simulate(options, &mut |_| {}).unwrap_err();
    let none = LitmusOptions { programs: Vec::new(), ..all_protocols(1) };
    assert_eq!(of(&none), "there is no litmus test or no protocol to run; name at least one of each");
    let many = LitmusOptions { nodes_max: 9, ..all_protocols(1) };
    assert_eq!(of(&many), "litmus tests run on 1 to 8 nodes, not on 9");
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/litmus");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The answer to each file's condition with every thread on its own node, and with all on one.
const VERDICTS: [(&str, &str, &str); 6] = [
    ("coherence.litmus", "forbidden", "forbidden"),
    ("exchange-chain.litmus", "always", "always"),
    ("handshake.litmus", "cannot be", "cannot be"),
    ("initial-values.litmus", "allowed", "allowed"),
    ("store-buffering-fenced.litmus", "forbidden", "forbidden"),
    ("store-buffering.litmus", "forbidden", "allowed"),
];

#[test]
fn the_example_files_are_read_judged_and_run() {
    let files = files();
    let programs: Vec<Program> = files.iter().map(|file| parse_file(file).unwrap()).collect();
    assert_eq!(files.len(), VERDICTS.len());
    for ((file, program), (name, apart, together)) in files.iter().zip(&programs).zip(VERDICTS) {
        assert!(file.ends_with(name), "{}", file.display());
        assert_eq!(verdict(program, &allowed(program, Memory::Sequential).unwrap()), Some(apart), "{name}");
        let (placement, layout) = (vec![0; program.threads.len()], vec![0; program.locations.len()]);
        let one_node = Memory::Processes { placement: &placement, layout: &layout };
        assert_eq!(verdict(program, &allowed(program, one_node).unwrap()), Some(together), "{name}");
    }
    let report = run(&LitmusOptions { programs, ..all_protocols(30_000) });
    assert!(report.passed(), "{}", report.to_json(true));
    let seen: usize = report.shapes.iter().map(|shape| shape.outcomes_seen()).sum();
    assert_eq!(seen, report.shapes.iter().map(|shape| shape.seen.len()).sum::<usize>());
}

#[test]
fn a_file_that_is_not_there_is_refused() {
    let sentence = parse_file(Path::new("no-such.litmus")).unwrap_err();
    assert!(sentence.starts_with("no-such.litmus: the litmus test cannot be read: "), "{sentence}");
}

fn named(name: &str) -> Program {
    shapes().into_iter().find(|program| program.name == name).expect("it is generated")
}

fn words(plan: &RealPlan) -> Vec<AtomicU64> {
    (0..plan.words()).map(|_| AtomicU64::new(7)).collect()
}

/// Runs every node as a thread of this process.
fn run_here(plan: &RealPlan) -> RealReport {
    let (words, together) = (words(plan), Barrier::new(plan.nodes.into()));
    let mut reports = std::thread::scope(|scope| {
        let (words, together) = (&words, &together);
        let node = |node| {
            scope.spawn(move || {
                run_node(plan, node, words, &mut || {
                    together.wait();
                    Ok(())
                })
            })
        };
        let nodes: Vec<_> = (0..plan.nodes).map(node).collect();
        nodes.into_iter().map(|node| node.join().unwrap().unwrap()).collect::<Vec<_>>()
    });
    assert!(reports[1..].iter().all(Option::is_none), "node 0 alone tells");
    reports.swap_remove(0).expect("node 0 tells")
}

#[test]
fn on_memory_of_one_process_nothing_that_x86_forbids_is_seen() {
    // The nodes share a memory without pages here, so tests in which a load may pass a store run as threads of one
    // node.
    let mut report = LitmusReport { protocols: vec!["memory".to_string()], ..LitmusReport::default() };
    for name in ["MP", "S", "LB", "2+2W", "WRC", "CoRR", "CoRW2", "3+XCHG", "SB+XCHG", "SB+fences"] {
        for (placement, layout) in arrangements(&named(name), 4, false) {
            let plan = RealPlan { delay_max: 20, ..RealPlan::new(named(name), placement, layout, 4, 500) };
            run_here(&plan).add_to(&plan, &mut report);
        }
    }
    for name in ["SB", "R", "RWC"] {
        let program = named(name);
        let (placement, layout) = (vec![0; program.threads.len()], vec![0; program.locations.len()]);
        let plan = RealPlan { delay_max: 20, ..RealPlan::new(program, placement, layout, 1, 500) };
        run_here(&plan).add_to(&plan, &mut report);
    }
    assert!(report.passed() && report.runs == 20 * 512, "{}", report.to_json(true));
    assert_eq!(report.shapes.len(), 13);
}

#[test]
fn a_memory_that_loses_or_tears_words_is_noticed() {
    // A word of the first instance changes between the initial values and the threads, as if a page arrived late or in
    // halves.
    for change in [|word: u64| word - 16, |word: u64| word ^ 1 << 35] {
        let plan = RealPlan::new(named("CoRR"), vec![0, 0], vec![0], 1, 64);
        let words = words(&plan);
        let mut barriers = 0;
        let report = run_node(&plan, 0, &words, &mut || {
            barriers += 1;
            if barriers == 3 {
                // The threads' final value of the first cell is replaced before it is read for the last time.
                words[0].store(change(words[0].load(Ordering::Relaxed)), Ordering::Relaxed);
            }
            Ok(())
        });
        let report = report.unwrap().unwrap();
        assert_eq!((report.forbidden_runs(), report.forbidden.len()), (1, 1));
        let (batch, instance, outcome) = report.forbidden[0];
        assert_eq!((batch, instance), (0, 0));
        assert!(plan.program.outcome_text(outcome).ends_with("x=never-written"));
        let mut all = LitmusReport::default();
        report.add_to(&plan, &mut all);
        assert!(!all.passed() && all.failures[0].what.contains("batch 0, instance 0"));
    }
}

#[test]
fn plans_that_cannot_be_are_refused_and_a_failed_barrier_ends_the_run() {
    let plan = RealPlan::new(named("MP"), vec![0, 1], vec![0, 1], 2, 64);
    let fails = run_node(&plan, 1, &words(&plan), &mut || Err("node 0 is gone".to_string()));
    assert_eq!(fails.unwrap_err(), "node 0 is gone");
    let small = run_node(&plan, 0, &[], &mut || Ok(())).unwrap_err();
    assert!(small.starts_with("MP: the test needs ") && small.ends_with(" shared words and was given 0"), "{small}");
    let outside = RealPlan { nodes: 1, ..plan };
    assert_eq!(outside.check(), Err("MP: a thread is placed on a node past the 1 that there are".to_string()));
}

/// Locks, flags and a barrier of one process.
struct Here {
    locks: Vec<(Mutex<bool>, Condvar)>,
    flags: Vec<AtomicU64>,
    together: Barrier,
}

impl Calls for Here {
    fn barrier(&self) -> Result<(), String> {
        self.together.wait();
        Ok(())
    }

    fn lock(&self, lock: u64) -> Result<(), String> {
        let (is_held, freed) = &self.locks[lock as usize];
        *freed.wait_while(is_held.lock().unwrap(), |is_held| *is_held).unwrap() = true;
        Ok(())
    }

    fn unlock(&self, lock: u64) -> Result<(), String> {
        let (is_held, freed) = &self.locks[lock as usize];
        *is_held.lock().unwrap() = false;
        freed.notify_one();
        Ok(())
    }

    fn set(&self, flag: u64, value: u64) -> Result<(), String> {
        self.flags[flag as usize].store(value, Ordering::SeqCst);
        Ok(())
    }

    fn get(&self, flag: u64) -> Result<u64, String> {
        Ok(self.flags[flag as usize].load(Ordering::SeqCst))
    }
}

#[test]
fn threads_of_a_test_call_locks_barriers_and_flags() {
    let shapes = trellis_check::release::shapes::released_shapes();
    for name in ["MP+flags", "SB+barrier", "WRC+locks", "ISA2+flags", "NEIGHBOURS+barrier", "TURNS+lock"] {
        let program = shapes.iter().find(|program| program.name == name).expect("it is made").clone();
        let (placement, layout) = arrangements(&program, 4, false).swap_remove(0);
        let plan = RealPlan { delay_max: 20, is_released: true, ..RealPlan::new(program, placement, layout, 4, 256) };
        let objects = plan.instances as usize * plan.program.objects();
        let here = Here {
            locks: (0..objects).map(|_| (Mutex::new(false), Condvar::new())).collect(),
            flags: (0..objects).map(|_| AtomicU64::new(0)).collect(),
            together: Barrier::new(plan.nodes.into()),
        };
        let words = words(&plan);
        let report = std::thread::scope(|scope| {
            let (plan, words, here) = (&plan, &words, &here);
            let node = |node| scope.spawn(move || run_calling_node(plan, node, words, here).unwrap());
            let nodes: Vec<_> = (0..plan.nodes).map(node).collect();
            nodes.into_iter().map(|node| node.join().unwrap()).collect::<Vec<_>>().swap_remove(0)
        });
        let report = report.expect("node 0 tells");
        assert_eq!(report.forbidden_runs(), 0, "{name}: {:?}", report.outcomes);
        assert_eq!(report.outcomes.values().sum::<u64>(), 256, "{name}");
    }
}
