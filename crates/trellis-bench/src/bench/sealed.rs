//! `trellis bench sealed`: what it costs that frames are encrypted and authenticated, compared with plain ones.
//!
//! Promises: both are measured in turns, over tcp. The bandwidth is that of a network namespace whose loopback interface
//! is shaped to 10 Gbit/s (tc-tbf(8)), because the loopback interface alone is faster than networks are.

use std::process::{Command, Stdio};

use clap::Args;
use serde_json::Value;

use crate::bench::cluster::{Common, own_program};
use crate::bench::fault;
use crate::bench::figures::{Figures, p50};
use trellis_command::exit::{self, Ending, Failure};

const EXAMPLE: &str = "Example:\n  trellis bench sealed --rounds 5 --json";

/// A network of its own, in which the command that follows is run.
const SHAPED: &str =
    "ip link set lo up && tc qdisc add dev lo root tbf rate 10gbit burst 4mb latency 20ms && exec \"$0\" \"$@\"";

/// Compare sealed frames with plain ones; needs root, `ip` and `tc`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct SealedArguments {
    /// Faults measured in each round
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    samples: u32,
    /// How often both are measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    common: Common,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &SealedArguments) -> Ending {
    const WAYS: [&str; 2] = ["insecure-plain", "sealed"];
    let mut faults = [Vec::new(), Vec::new()];
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..arguments.rounds {
        for (way, security) in WAYS.into_iter().enumerate() {
            let common = arguments.common.with("link", "tcp").with("security", security);
            let found = fault::figures(2, arguments.samples as usize, &common)?;
            faults[way].push(found.get("read_us_p50").unwrap_or(f64::NAN));
            rates[way].push(read_gb_per_s(security)?);
        }
    }
    let ([plain, sealed], [plain_rate, sealed_rate]) = (faults.map(p50), rates.map(p50));
    let mut figures = Figures::new("sealed");
    figures.add("plain_read_us_p50", plain, "read fault over tcp, plain frames (µs, median)");
    figures.add("sealed_read_us_p50", sealed, "read fault over tcp, sealed frames (µs, median)");
    figures.add("sealed_over_plain", sealed / plain, "sealed / plain, time");
    figures.add("plain_gb_per_s_p50", plain_rate, "reading in order at 10 Gbit/s, plain frames (GB/s, median)");
    figures.add("sealed_gb_per_s_p50", sealed_rate, "reading in order at 10 Gbit/s, sealed frames (GB/s, median)");
    figures.add("sealed_over_plain_gb_per_s", sealed_rate / plain_rate, "sealed / plain, bandwidth");
    figures.add_value("rounds", arguments.rounds, "rounds");
    figures.print(arguments.common.json)
}

/// The rate at which a node reads what another one wrote, in a network of 10 Gbit/s.
fn read_gb_per_s(security: &str) -> Result<f64, Failure> {
    let failed = |why: String| Failure::new(exit::SYSTEM, format!("reading at 10 Gbit/s cannot be measured: {why}"));
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", SHAPED]).arg(own_program()?);
    command.args(["bench", "stream", "--rounds", "3", "--set", "link=tcp", "--security", security, "--json"]);
    let output = command.stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
    let found: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))?;
    found["read_gb_per_s_p50"].as_f64().ok_or_else(|| failed(found.to_string()))
}
