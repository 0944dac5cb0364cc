//! Measures the stores with YCSB and, because YCSB has no atomic operations, with additions of our own, for figures
//! 2.1 to 2.6.
//!
//! Promises: every repetition runs all stores one after the other, alternately in ascending and descending order, so
//! that a disturbance affects all of them. A store is measured only after it has returned everything that was
//! written.

use std::time::Instant;

use trellis_store::{Applied, Change, Key, Operation};

use super::servers::{Chosen, Front, Kind, StoreServer};
use super::ycsb::{self, Latency, Run, Said, Workload, Ycsb};
use crate::bench::figures::p50;
use trellis_base::statistics::quantile;
use trellis_command::exit::{self, Failure};
use trellis_command::terminal::Progress;

/// In a long run, the number of operations for each row of a long load.
const OPERATIONS_FOR_ROW: usize = 4;

/// The measurements that were chosen.
pub(super) struct Request<'a> {
    /// The stores that the user named; if empty, all that can be started.
    pub(super) stores: &'a [Chosen],
    pub(super) runs: usize,
    pub(super) quick: bool,
}

/// All runs of one workload.
#[derive(Debug, Clone)]
pub(super) struct Runs {
    pub(super) workload: Workload,
    /// Whether there are so many operations that the start of YCSB is negligible, instead of as many as in the paper.
    pub(super) warm: bool,
    pub(super) operations: usize,
    pub(super) said: Vec<Said>,
}

impl Runs {
    /// The median throughput.
    pub(super) fn throughput(&self) -> f64 {
        p50(self.said.iter().map(|said| said.throughput))
    }

    /// The medians over the runs.
    pub(super) fn latency(&self, operation: &str) -> Option<Latency> {
        let all: Vec<Latency> = self.said.iter().filter_map(|said| said.latency(operation)).collect();
        let of = |number: fn(&Latency) -> f64| p50(all.iter().map(number));
        let operations = all.iter().map(|one| one.operations).max()?;
        Some(Latency { operations, mean: of(|one| one.mean), p50: of(|one| one.p50), p99: of(|one| one.p99) })
    }
}

/// The measurements of one store.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    pub(super) kind: Kind,
    pub(super) runs: Vec<Runs>,
    /// An atomic addition, from Rust.
    pub(super) fetch_add: Latency,
}

impl Measured {
    pub(super) fn find(&self, workload: Workload, warm: bool) -> Option<&Runs> {
        self.runs.iter().find(|runs| runs.workload == workload && runs.warm == warm)
    }
}

/// All measurements.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) stores: Vec<Measured>,
    /// Stores that cannot be started here, and why.
    pub(super) left_out: Vec<(Kind, String)>,
    pub(super) runs: usize,
}

impl Comparison {
    /// The throughput of our front end with the store `embedded` relative to that of Redis, workload A: the median of
    /// the runs.
    pub(super) fn throughput_ratio(&self) -> Option<f64> {
        let warm = |kind| {
            let store = self.stores.iter().find(|store| store.kind == kind)?;
            store.find(Workload::A, true)
        };
        let (ours, theirs) = (warm(Kind::Embedded)?, warm(Kind::Redis)?);
        let pairs = ours.said.iter().zip(&theirs.said);
        Some(p50(pairs.map(|(ours, theirs)| ours.throughput / theirs.throughput))).filter(|ratio| !ratio.is_nan())
    }
}

/// A store that is being measured.
struct Started {
    server: StoreServer,
    front: Front,
    runs: Vec<Runs>,
}

/// Starts the stores, measures them, and stops them.
pub(super) fn measure(request: &Request, progress: &mut Progress) -> Result<Comparison, Failure> {
    let ycsb = Ycsb::new(|what| progress.step(what))?;
    let (mut started, left_out) = start(request.stores)?;
    for store in &started {
        progress.step(&format!("{}: everything that is written is read again", store.server.kind.name()));
        check(&ycsb, store, request)?;
    }
    for warm in [false, true] {
        for run in 0..request.runs {
            // Ascending, and descending the next time.
            let mut order: Vec<usize> = (0..started.len()).collect();
            if run % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let store = &mut started[index];
                let name = store.server.kind.name();
                let long = if warm { ", long" } else { "" };
                for workload in [Workload::Load, Workload::A, Workload::F] {
                    progress.step(&format!("{name}: {}{long}, run {} of {}", workload.name(), run + 1, request.runs));
                    one(&ycsb, store, (workload, warm, run), request.quick)?;
                }
            }
        }
    }
    let mut stores = Vec::new();
    for Started { server, front, runs } in started {
        progress.step(&format!("{}: atomic additions", server.kind.name()));
        // A store for one process at a time can be opened only after its front end has ended.
        drop(front);
        let fetch_add = fetch_add(&server, operations(server.kind, true, request.quick))?;
        stores.push(Measured { kind: server.kind, runs, fetch_add });
    }
    Ok(Comparison { stores, left_out, runs: request.runs })
}

/// Starts the stores that can be started; a named one that cannot is an error.
#[allow(clippy::type_complexity, reason = "two lists")]
fn start(named: &[Chosen]) -> Result<(Vec<Started>, Vec<(Kind, String)>), Failure> {
    let all: Vec<Chosen> = Kind::ALL.into_iter().map(Chosen::from).collect();
    let (mut started, mut left_out) = (Vec::new(), Vec::new());
    for chosen in if named.is_empty() { &all } else { named } {
        let made = StoreServer::start(chosen).and_then(|server| {
            let front = Front::of(&server)?;
            Ok(Started { server, front, runs: Vec::new() })
        });
        match made {
            Ok(store) => started.push(store),
            Err(failure) if named.is_empty() => left_out.push((chosen.kind, failure.sentence)),
            Err(failure) => return Err(failure),
        }
    }
    if started.is_empty() {
        let (_, why) = left_out.remove(0);
        return Err(Failure::new(exit::CLUSTER, format!("no store can be started; the first: {why}")));
    }
    Ok((started, left_out))
}

fn operations(kind: Kind, warm: bool, quick: bool) -> usize {
    match (warm, quick) {
        (false, _) => ycsb::ROWS,
        (true, true) => 2 * ycsb::ROWS,
        (true, false) => kind.warm_operations(),
    }
}

/// YCSB compares every field that it reads with what it wrote.
fn check(ycsb: &Ycsb, store: &Started, request: &Request) -> Result<(), Failure> {
    let rows = if request.quick { ycsb::ROWS / 10 } else { ycsb::ROWS };
    for workload in [Workload::Load, Workload::A] {
        let server = store.front.address;
        let said = ycsb.run(&Run { server, workload, table: "check", rows, operations: rows, verified: true })?;
        let (read, verified) = (said.latency("READ"), said.latency("VERIFY"));
        if read.map(|one| one.operations) != verified.map(|one| one.operations) {
            let name = store.server.kind.name();
            return Err(Failure::new(exit::FAILED, format!("{name} did not return what was written, says YCSB")));
        }
    }
    Ok(())
}

/// One run of YCSB.
fn one(
    ycsb: &Ycsb,
    store: &mut Started,
    (workload, warm, run): (Workload, bool, usize),
    quick: bool,
) -> Result<(), Failure> {
    let most = operations(store.server.kind, warm, quick);
    // A and F always use the paper's thousand rows; only a long load has more, in a table of its own.
    let (operations, rows) = match (workload, warm) {
        (Workload::Load, true) => (most / OPERATIONS_FOR_ROW, most / OPERATIONS_FOR_ROW),
        _ => (most, ycsb::ROWS),
    };
    let table = if warm && workload == Workload::Load { format!("long{run}") } else { format!("rows{run}") };
    let server = store.front.address;
    let said = ycsb.run(&Run { server, workload, table: &table, rows, operations, verified: false })?;
    match store.runs.iter_mut().find(|runs| runs.workload == workload && runs.warm == warm) {
        Some(runs) => runs.said.push(said),
        None => store.runs.push(Runs { workload, warm, operations, said: vec![said] }),
    }
    Ok(())
}

/// Additions to one number, one call each, like those of a program's locks and counters.
fn fetch_add(server: &StoreServer, times: usize) -> Result<Latency, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(exit::CLUSTER, error.to_string());
    let store = trellis_store::open(&server.url).map_err(|error| failed(&error))?;
    let key = Key::named(0, format!("trellis-reproduce-{}", std::process::id()).as_bytes());
    let add = [Operation::Add { key: key.clone(), offset: 0, width: 8, delta: 1, bounds: None }];
    let mut samples = Vec::with_capacity(times);
    for _ in 0..times {
        let begin = Instant::now();
        let applied = store.apply(&add, None).map_err(|error| failed(&error))?;
        samples.push(begin.elapsed().as_secs_f64() * 1e6);
        if !matches!(applied, Applied::Done(_)) {
            return Err(failed(&format!("{} refused to add without a bound", store.name())));
        }
    }
    let read = store.get_many(std::slice::from_ref(&key)).map_err(|error| failed(&error))?;
    let delete = [Operation::Change { key, change: Change::Delete }];
    store.apply(&delete, None).map_err(|error| failed(&error))?;
    if read != [Some((times as u64).to_le_bytes().to_vec())] {
        return Err(failed(&format!("{} lost an addition: {read:?} after {times}", store.name())));
    }
    let mean = samples.iter().sum::<f64>() / samples.len().max(1) as f64;
    let p50 = quantile(&mut samples, 0.5);
    Ok(Latency { operations: times, mean, p50, p99: quantile(&mut samples, 0.99) })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A store whose operations each take `us`, in `runs` runs that differ by a tenth.
    pub(crate) fn example(kind: Kind, us: f64, runs: usize) -> Measured {
        let latency = |factor: f64| Latency { operations: 500, mean: us * factor, p50: us * factor, p99: 2.0 * us };
        let said = |run: usize| {
            let factor = 1.0 + 0.1 * run as f64;
            let names = ["INSERT", "READ", "UPDATE", "READ-MODIFY-WRITE"];
            let latencies = names.map(|name| (name.to_owned(), latency(factor))).into_iter().collect();
            Said { throughput: 1e6 / (us * factor), latencies }
        };
        let all = |workload, warm| Runs {
            workload,
            warm,
            operations: operations(kind, warm, false),
            said: (0..runs).map(said).collect(),
        };
        let workloads = [Workload::Load, Workload::A, Workload::F];
        let runs = workloads.into_iter().flat_map(|workload| [all(workload, false), all(workload, true)]).collect();
        Measured { kind, runs, fetch_add: latency(0.5) }
    }

    #[test]
    fn the_ratio_is_that_of_runs_beside_each_other() {
        let stores = vec![example(Kind::Embedded, 20.0, 3), example(Kind::Redis, 19.0, 3)];
        let comparison = Comparison { stores, left_out: Vec::new(), runs: 3 };
        assert!((comparison.throughput_ratio().expect("both are there") - 0.95).abs() < 1e-9);
        let alone = Comparison { stores: vec![example(Kind::Embedded, 20.0, 3)], left_out: Vec::new(), runs: 3 };
        assert_eq!(alone.throughput_ratio(), None);
    }

    #[test]
    fn medians_are_taken_over_the_runs() {
        let store = example(Kind::Etcd, 100.0, 3);
        let runs = store.find(Workload::A, false).expect("it was run");
        assert!((runs.latency("READ").expect("reads").mean - 110.0).abs() < 1e-9);
        assert!((runs.throughput() - 1e6 / 110.0).abs() < 1e-6);
        assert_eq!(runs.latency("SCAN"), None);
    }

    #[test]
    fn additions_are_counted_and_the_number_is_gone_afterwards() {
        let server = StoreServer::start(&Chosen {
            kind: Kind::Embedded,
            address: Some("embedded:reproduce-kv-fetch-add".to_owned()),
        });
        let server = server.expect("it needs nothing");
        let found = fetch_add(&server, 100).expect("it adds");
        assert_eq!(found.operations, 100);
        assert!(found.p50 > 0.0 && found.p50 <= found.p99, "{found:?}");
        let store = trellis_store::open(&server.url).expect("the same");
        assert_eq!(store.names(0, None, 10).expect("names"), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_store_that_was_named_must_start() {
        let named = ["datastore:nothing".parse().expect("an address")];
        assert!(start(&named).is_err());
    }
}
