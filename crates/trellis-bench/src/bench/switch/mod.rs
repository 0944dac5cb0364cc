//! `trellis bench switch`: the cost of a switch, compared with a bare pair of interfaces in the same run.
//!
//! Promises: it uses labs and servers of its own, which are gone when the command ends, however it ends. Nothing
//! outside of them is touched, and no root rights are needed if the switch needs none. A figure that cannot be
//! measured here is null, with the reason beside it. It must never make a ratio of two runs.

pub(crate) mod bare;
pub(crate) mod courses;
mod failover;
pub(crate) mod inside;
pub(crate) mod latency;
mod lease;
mod migration;
mod placed;
mod rack;
pub(crate) mod served;

use std::collections::BTreeMap;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bench::figures::Figures;
use trellis_command::exit::{Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis bench switch                             the best switch that works here
  trellis bench switch --switch user --json
  trellis bench switch --quick                     a moment, to see that everything works

Latencies are of one client that waits for each answer; both ends run on one processor, the switch too if it is a process. They \
take turns, and a ratio is the median of the ratios of the rounds. The rack, the failover and the migration use all processors.

Exit codes: 0 fine; 1 an answer was wrong; 71 refused by the operating system; 78 a switch that there is not, or that takes \
root.";

/// Measure what a switch costs, compared with a bare pair of interfaces
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SwitchArguments {
    /// Which switch; `trellis lab up --help` lists them [default: the best that works here]
    #[arg(long, value_name = "NAME")]
    switch: Option<String>,
    /// Use no root rights, even if there are some: everything runs in a user namespace
    #[arg(long)]
    rootless: bool,
    /// Rounds in which every way has its turn
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Requests of each way in a round
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    samples: u32,
    /// Redirects in the switch whose table is full
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=8_000_000))]
    redirects: u32,
    /// Clients, and servers, of the rack; each client reads 1,200 pages
    #[arg(long, value_name = "N", default_value_t = 42, value_parser = clap::value_parser!(u16).range(1..=400))]
    rack: u16,
    /// Use small numbers of everything; not with --rounds, --samples, --redirects or --rack
    #[arg(long, conflicts_with_all = ["rounds", "samples", "redirects", "rack"])]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The task of the process that measures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SwitchTask {
    switch: String,
    rounds: u32,
    samples: u32,
    /// Pages from which each READ takes a random one.
    pages: usize,
    redirects: u32,
    rack: u16,
    /// Pages that each client of the rack reads.
    rack_pages: u32,
    /// How often a server dies.
    deaths: u32,
    /// Size of the pages that move.
    moved_mebibytes: u32,
}

impl SwitchTask {
    fn of(arguments: &SwitchArguments, switch: &str) -> SwitchTask {
        let SwitchArguments { rounds, samples, redirects, rack, .. } = *arguments;
        let switch = switch.to_owned();
        match arguments.quick {
            false => SwitchTask {
                switch,
                rounds,
                samples,
                pages: 16_384,
                redirects,
                rack,
                rack_pages: 1200,
                deaths: 10,
                moved_mebibytes: 64,
            },
            true => SwitchTask {
                switch,
                rounds: 2,
                samples: 50,
                pages: 64,
                redirects: 1000,
                rack: 2,
                rack_pages: 50,
                deaths: 1,
                moved_mebibytes: 1,
            },
        }
    }
}

/// The measurements, by the names of the figures, and why some are missing.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    values: BTreeMap<String, f64>,
    /// By the first part of the names.
    left_out: BTreeMap<String, String>,
}

impl Found {
    fn put(&mut self, figure: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.values.insert(figure.to_owned(), value);
        }
    }

    fn leave_out(&mut self, what: &str, why: &str) {
        self.left_out.insert(what.to_owned(), why.to_owned());
    }
}

/// The figures in their order: the group, the name, and the description.
const FIGURES: [(&str, &str, &str); 34] = [
    ("veth", "veth_us_p50", "READ of 4 KiB, bare pair of interfaces (µs, median)"),
    ("read_64", "read_64_us_p50", "READ of 64 B through the switch (µs, median)"),
    ("read_4k", "read_4k_us_p50", "READ of 4 KiB through the switch (µs, median)"),
    ("read_4k", "read_4k_over_veth", "READ of 4 KiB, switch / bare pair"),
    ("in_kernel", "in_kernel_us_p50", "READ of 4 KiB, memory server in the kernel (µs, median)"),
    ("in_kernel", "in_kernel_over_read_4k", "READ of 4 KiB, server in the kernel / server process"),
    ("update", "update_us_p50", "UPDATE of 4 KiB, granted by the switch (µs, median)"),
    ("update", "update_over_read_4k", "UPDATE / READ of 4 KiB"),
    ("directory", "directory_us_p50", "READ of 4 KiB after asking a directory service (µs, median)"),
    ("directory", "directory_over_read_4k", "with a directory service / with the switch as directory"),
    ("full_table", "redirects", "redirects in the full table"),
    ("full_table", "full_table_us_p50", "READ of 4 KiB, full table (µs, median)"),
    ("full_table", "full_table_over_read_4k", "READ of 4 KiB, full table / empty table"),
    ("requests", "requests_per_second", "READs of 64 B, 32 at the same time (1/s)"),
    ("rack", "rack_clients", "rack: clients, and as many servers"),
    ("rack", "rack_up_seconds", "rack: until it is up (s)"),
    ("rack", "rack_reads", "rack: READs of 4 KiB"),
    ("rack", "rack_unanswered", "rack: READs without the right answer"),
    ("rack", "rack_reads_per_second", "rack: READs of 4 KiB (1/s)"),
    ("failover", "failover_deaths", "failover: servers that died"),
    ("failover", "failover_gap_ms_p50", "failover: longest gap of a client after the death is known (ms, median)"),
    ("failover", "failover_gap_ms_max", "failover: the same (ms, longest)"),
    ("migration", "migration_mebibytes", "migration: pages that move (MiB)"),
    ("migration", "migration_seconds", "migration: until they are there (s)"),
    ("migration", "migration_requests", "migration: requests of two clients"),
    ("migration", "migration_lost", "migration: requests without an answer"),
    ("migration", "migration_wrong", "migration: READs with wrong bytes"),
    ("migration", "migration_slowest_ms", "migration: slowest request (ms)"),
    ("migration", "pages_migration_mebibytes", "migration of pages of a range (MiB)"),
    ("migration", "pages_migration_seconds", "migration of pages: until they are there (s)"),
    ("migration", "pages_migration_requests", "migration of pages: requests of two clients"),
    ("migration", "pages_migration_lost", "migration of pages: requests without an answer"),
    ("migration", "pages_migration_wrong", "migration of pages: READs with wrong bytes"),
    ("migration", "pages_migration_slowest_ms", "migration of pages: slowest request (ms)"),
];

/// Runs the subcommand.
pub(crate) fn run(arguments: &SwitchArguments) -> Ending {
    let (kind, rootless) = inside::choose(arguments.switch.as_deref(), arguments.rootless)?;
    let task = SwitchTask::of(arguments, kind.name);
    let found: Found = inside::start(&inside::Task::Switch(task), rootless)?;
    figures(kind.name, rootless, &found, arguments.json).print(arguments.json)
}

/// For people the reason stands where the label is: it is too long for the column of the numbers.
fn figures(switch: &str, rootless: bool, found: &Found, is_json: bool) -> Figures {
    let mut figures = Figures::new("switch");
    figures.add_value("switch", switch, "switch");
    figures.add_value("rootless", rootless, "without rights over the machine");
    let mut explained = "";
    for (what, name, label) in FIGURES {
        match (found.values.get(name), found.left_out.get(what)) {
            (Some(value), _) => figures.add(name, *value, label),
            (None, why) => {
                figures.add_value(name, Value::Null, label);
                if let Some(why) = why.filter(|_| explained != what) {
                    explained = what;
                    let value = if is_json { why.as_str() } else { "" };
                    figures.add_value(left_out(what), value, format!("    because {why}"));
                }
            }
        }
    }
    figures
}

/// The name of the figure with the reason.
fn left_out(what: &str) -> &'static str {
    match what {
        "in_kernel" => "in_kernel_left_out",
        "update" => "update_left_out",
        "full_table" => "full_table_left_out",
        _ => "left_out",
    }
}

/// Measures, in the process for that.
pub(crate) fn measure(task: &SwitchTask) -> Result<Found, Failure> {
    let mut found = Found::default();
    pinned(|| latency::measure(task, &mut found))?;
    found.put("redirects", Some(f64::from(task.redirects)).filter(|_| !found.left_out.contains_key("full_table")));
    found.put("rack_clients", Some(f64::from(task.rack)));
    rack::measure(task, &mut found)?;
    found.put("failover_deaths", Some(f64::from(task.deaths)));
    failover::measure(task, &mut found)?;
    migration::measure(task, &mut found)?;
    Ok(found)
}

/// Runs `work` in a thread that runs, with everything that it starts, on one processor.
pub(crate) fn pinned<T: Send>(work: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            trellis::launch::pin_thread(0);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_null_with_its_reason() {
        let mut found = Found::default();
        found.put("veth_us_p50", Some(14.25));
        found.put("read_4k_us_p50", None);
        found.leave_out("in_kernel", "no such thing here");
        let made = serde_json::to_value(figures("user", true, &found, true)).expect("json");
        assert_eq!(
            (&made["switch"], &made["rootless"], &made["veth_us_p50"]),
            (&"user".into(), &true.into(), &14.25.into())
        );
        let object = made.as_object().expect("an object");
        assert!(object["in_kernel_us_p50"].is_null() && object["in_kernel_over_read_4k"].is_null());
        assert_eq!(object["in_kernel_left_out"], "no such thing here");
        assert!(FIGURES.iter().all(|(_, name, _)| object.contains_key(*name)));
        assert!(!object.contains_key("update_left_out"));
    }
}
