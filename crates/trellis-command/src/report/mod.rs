//! `trellis report`: makes one self-contained HTML page from the records of a run.
//!
//! The page never fetches anything and runs no script; it can be mailed, archived and opened without a network.

mod page;
pub mod pictures;

use std::path::{Path, PathBuf};

use crate::terminal::say;
use clap::Args;
use trellis::record::Record;

use crate::exit::{self, Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis run -n 2 --record record ./program     write the records
  trellis report record                          record/report.html
  trellis report record --output psort.html
  trellis report record --json                   the same figures as JSON, on standard output

Exit codes: 0 the page was written; 74 a record cannot be read, or the page not written.";

/// Turn a run's records into one HTML page
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArguments {
    /// The directory that `trellis run --record` filled
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
    /// Where the page is written [default: DIRECTORY/report.html]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the figures as JSON instead of writing a page
    #[arg(long)]
    json: bool,
}

/// Runs the `report` subcommand.
pub fn report(arguments: &ReportArguments) -> Ending {
    let records = read_records(&arguments.directory)?;
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&figures(&records)).map_err(exit::not_json)?);
        return Ok(exit::FINE);
    }
    let file = arguments.output.clone().unwrap_or_else(|| arguments.directory.join("report.html"));
    crate::files::write(&file, page::html(&records))?;
    say!("{}", file.display());
    Ok(exit::FINE)
}

/// The records of all nodes, in the order of the nodes.
pub fn read_records(directory: &Path) -> Result<Vec<Record>, Failure> {
    Record::read_folder(directory).map_err(|error| Failure::new(exit::FILE, error.to_string()))
}

fn figures(records: &[Record]) -> serde_json::Value {
    let nodes: Vec<serde_json::Value> = records
        .iter()
        .map(|record| {
            let waits = pictures::sorted_waits_us(record);
            serde_json::json!({
                "node": record.node,
                "ways": record.ways,
                "seconds": record.seconds,
                "counters": record.counters,
                "breakdown_seconds": trellis::record::Breakdown::of(&record.counters),
                "fault_wait_us_p50": trellis_base::statistics::quantile_of_ascending(&waits, 0.5),
                "fault_wait_us_p99": trellis_base::statistics::quantile_of_ascending(&waits, 0.99),
                "faults_recorded": record.faults.len(),
                "faults_dropped": record.faults_dropped,
                "phases": record.phases,
            })
        })
        .collect();
    let first = &records[0];
    serde_json::json!({
        "program": first.program, "nodes": first.nodes, "catch": first.catch, "link": first.link,
        "coherence": first.coherence, "home": first.home, "security": first.security,
        "page_bytes": first.page_bytes, "region_bytes": first.region_bytes, "node": nodes,
        // The whole run has no phase that could be unknown.
        "advice": trellis::record::advice::advise(records, None).unwrap_or_default(),
    })
}
