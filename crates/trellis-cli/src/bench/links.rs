//! `trellis bench links`: a remote read fault over `udp` beside the same over `tcp`, in one run.
//!
//! It is the benchmark `fault` over each link in turn; the ratio is of the medians of the rounds.

use clap::Args;

use crate::bench::cluster::Common;
use crate::bench::fault;
use crate::bench::figures::{Figures, quantile};
use crate::exit::{Ending, Failure};

const EXAMPLE: &str = "Example:\n  trellis bench links --rounds 5 --json";

/// A read fault over udp beside one over tcp
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct LinksArguments {
    /// Faults measured in each round
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub(crate) samples: u32,
    /// How often each link is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The subcommand.
pub(crate) fn run(arguments: &LinksArguments) -> Ending {
    let (mut tcp, mut udp) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        tcp.push(read_us(arguments, "tcp")?);
        udp.push(read_us(arguments, "udp")?);
    }
    let (tcp, udp) = (quantile(&mut tcp, 0.5), quantile(&mut udp, 0.5));
    let mut figures = Figures::new("links");
    figures.add("tcp_read_us_p50", tcp, "read fault over tcp (µs, median)");
    figures.add("udp_read_us_p50", udp, "read fault over udp (µs, median)");
    figures.add("udp_over_tcp", udp / tcp, "udp / tcp");
    figures.tell("samples", arguments.samples, "faults in each round");
    figures.tell("rounds", arguments.rounds, "rounds");
    figures.print(arguments.common.json)
}

fn read_us(arguments: &LinksArguments, link: &str) -> Result<f64, Failure> {
    let common = arguments.common.with("link", link);
    Ok(fault::figures(2, arguments.samples as usize, &common)?.get("read_us_p50").unwrap_or(f64::NAN))
}
