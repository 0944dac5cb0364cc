//! `trellis bench sealed`: what it costs that frames are encrypted and authenticated, compared with plain ones.
//!
//! Promises: both are measured in turns, over tcp. The bandwidth is that between two network namespaces, each with a node,
//! that a veth(4) pair joins; both ends are shaped to 10 Gbit/s (tc-tbf(8)), because such a pair alone is faster than
//! networks are. Nothing of them stays.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::Value;
use trellis::secret::Secret;

use crate::bench::cluster::{Assignment, Common, number_of, own_program};
use crate::bench::fault;
use crate::bench::figures::{Figures, p50};
use crate::bench::node::Task;
use crate::bench::stream::StreamTask;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::scratch::Scratch;

const EXAMPLE: &str = "Example:\n  trellis bench sealed --rounds 5 --json";

/// Makes the two networks, and runs the program `$0` with the task `$1` as node 0 in one and as node 1 in the other; prints
/// what node 1 prints. The addresses are those for benchmarks (RFC 2544).
const SHAPED: &str = r#"
there() { nsenter "--net=/proc/$other/ns/net" "$@"; }
unshare --net sleep 600 &
other=$!
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link add here type veth peer name there netns "$other"
ip address add 198.18.0.1/24 dev here
ip link set here up
tc qdisc add dev here root tbf rate 10gbit burst 4mb latency 20ms
there ip address add 198.18.0.2/24 dev there
there ip link set there up
there tc qdisc add dev there root tbf rate 10gbit burst 4mb latency 20ms
TRELLIS_NODE=0 "$0" bench-node "$1" >/dev/null &
first=$!
TRELLIS_NODE=1 there "$0" bench-node "$1"
wait "$first"
"#;
const NODES: &str = "198.18.0.1:7000,198.18.0.2:7000";
/// What node 0 writes and node 1 reads.
const STREAM_BYTES: usize = 256 << 20;
const STREAM_ROUNDS: usize = 3;

/// Compare sealed frames with plain ones; needs root, `ip`, `tc` and `nsenter`
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
    let folder = Scratch::new("sealed")?;
    let secret = folder.file("secret");
    let drawn = Secret::random().map_err(|error| failed(error.to_string()))?;
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&secret);
    written.and_then(|mut file| file.write_all(drawn.bytes())).map_err(|error| failed(error.to_string()))?;
    let task = Task::Stream(StreamTask { bytes: STREAM_BYTES, rounds: STREAM_ROUNDS });
    let assignment = serde_json::to_string(&Assignment { task, connections: Vec::new() }).map_err(exit::not_json)?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount-proc", "--pid", "--fork", "--kill-child", "sh", "-e", "-c", SHAPED]);
    command.arg(own_program()?).arg(assignment).stdin(Stdio::null());
    command.env("TRELLIS_NODES", NODES).env("TRELLIS_SECRET_FILE", secret).env("TRELLIS_SECURITY", security);
    command.env("TRELLIS_LINK", "tcp").env("TRELLIS_HEAP_BYTES", "0");
    command.env("TRELLIS_REGION_BYTES", STREAM_BYTES.to_string());
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    let found: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))?;
    number_of(&found, "read_gb_per_s_p50")
}
