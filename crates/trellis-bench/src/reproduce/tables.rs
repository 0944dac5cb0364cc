//! Tables 3 and 4 of the libivy paper: the cost of a fault on one machine and between two nodes.

use serde_json::json;

use super::{Reproduced, Settings};
use crate::bench::figures::p50;
use crate::bench::{fault, local_fault};
use trellis_command::chart::number;
use trellis_command::exit::Failure;

/// The paper's numbers, in microseconds.
const PAPER_MPROTECT_PAIR_US: f64 = 1.052;
const PAPER_SIGACTION_FAULT_US: f64 = 3.431;
const PAPER_READ_US: f64 = 1.055e6;
const PAPER_WRITE_US: f64 = 1.044e6;

/// Table 3: local page fault latency.
pub(super) fn table3(settings: &mut Settings) -> Result<Reproduced, Failure> {
    settings.progress.step("table 3: local faults");
    let found = local_fault::figures(200_000)?;
    let us = |name: &str| found.get(name).map_or("not available here".to_owned(), number);
    let row = |what: &str, paper: &str, ours: String| vec![what.to_owned(), paper.to_owned(), ours];
    let table = vec![
        row("operation (µs)", "paper", "here".to_owned()),
        row("mprotect lock + unlock, mean", "1.052", us("mprotect_pair_us_mean")),
        row("fault handled with sigaction, mean", "3.431", us("sigaction_fault_us_mean")),
        row("catcher signal, median", "", us("signal_fault_us_p50")),
        row("catcher handler, median", "", us("handler_fault_us_p50")),
        row("catcher mprotect, median", "", us("mprotect_fault_us_p50")),
    ];
    Ok(Reproduced {
        title: "Table 3: local page fault latency",
        table,
        remark: "The first two rows are measured as in the paper; the catchers include finding and mapping the page."
            .to_owned(),
        json: json!({
            "paper": { "mprotect_pair_us_mean": PAPER_MPROTECT_PAIR_US, "sigaction_fault_us_mean": PAPER_SIGACTION_FAULT_US },
            "ours": found,
        }),
        pictures: Vec::new(),
    })
}

/// Table 4: remote page fault latency.
pub(super) fn table4(settings: &mut Settings) -> Result<Reproduced, Failure> {
    let mut reads = Vec::new();
    let mut writes = Vec::new();
    let mut floors = Vec::new();
    for run in 0..settings.runs {
        settings.progress.step(&format!("table 4: remote faults, run {} of {}", run + 1, settings.runs));
        let found = fault::figures(2, 3000, settings.common)?;
        reads.extend(found.get("read_us_p50"));
        writes.extend(found.get("write_us_p50"));
        floors.extend(found.get("floor_us"));
    }
    let (read, write, floor) = (p50(reads), p50(writes), p50(floors));
    let row = |what: &str, paper: &str, ours: f64, times: &str| {
        vec![what.to_owned(), paper.to_owned(), number((ours * 100.0).round() / 100.0), times.to_owned()]
    };
    let head = ["fault (µs)", "paper, mean", "here, median", "paper / here"].map(str::to_owned).to_vec();
    let times = |paper: f64, ours: f64| number((paper / ours / 100.0).round() * 100.0);
    let table = vec![
        head,
        row("read", "1055000", read, &times(PAPER_READ_US, read)),
        row("write", "1044000", write, &times(PAPER_WRITE_US, write)),
        row("floor of this machine", "", floor, ""),
    ];
    Ok(Reproduced {
        title: "Table 4: remote page fault latency, two nodes",
        table,
        remark: format!(
            "Median over {} runs. The paper's nodes were on two machines, ours are two processes of one; its latency is \
             a pause of one second in its own code.",
            settings.runs
        ),
        json: json!({
            "paper": { "read_us_mean": PAPER_READ_US, "write_us_mean": PAPER_WRITE_US },
            "ours": { "read_us_p50": read, "write_us_p50": write, "floor_us": floor, "runs": settings.runs },
        }),
        pictures: Vec::new(),
    })
}
