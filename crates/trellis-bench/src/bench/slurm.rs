//! `trellis bench slurm`: how long `srun` takes for a program whose tasks join a cluster, compared with one whose tasks
//! only start and end MPI.
//!
//! Promises: Slurm is that of a lab, and ends with the benchmark. Both programs are started in turns, by the same `srun`
//! with the same exchange (PMI), and it is the whole command that is timed.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;

use crate::bench::cluster::{JOINER, own_program};
use crate::bench::figures::{Figures, p50};
use crate::bench::hosts::Lab;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::scratch::Scratch;

const EXAMPLE: &str = "Example:\n  trellis bench slurm --tasks 4 --json";

/// Starts and ends MPI. MPICH's headers need not be installed.
const MPI: &str = "int MPI_Init(int *, char ***);\nint MPI_Finalize(void);\n\
    int main(int count, char **words) {\n    MPI_Init(&count, &words);\n    return MPI_Finalize();\n}\n";

/// Time srun of a program that joins, and of an MPI program; needs root, slurm-wlm, munge, mpich and a C compiler
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct SlurmArguments {
    /// Tasks, all on one host
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=4))]
    tasks: u8,
    /// How often each runs
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &SlurmArguments) -> Ending {
    let folder = Scratch::for_hosts("bench-slurm")?;
    let mpi = compiled(&folder)?;
    let own = own_program()?.display().to_string();
    let lab = Lab::up(1, "--slurm")?;
    let tasks = format!("-n{}", arguments.tasks);
    let srun = |exchange: &str, program: &[&str]| {
        let mut command = lab.task("run")?;
        command.args(["c1", "--", "srun", &tasks, exchange]).args(program);
        milliseconds(command)
    };
    let (mut joins, mut plain, mut of_mpi, mut nothing) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        joins.push(srun("--mpi=pmi2", &[&own, "bench-node", JOINER])?);
        of_mpi.push(srun("--mpi=pmi2", &[&mpi])?);
        plain.push(srun("--mpi=none", &[&own, "bench-node", JOINER])?);
        nothing.push(srun("--mpi=none", &["true"])?);
    }
    let (joins, of_mpi) = (p50(joins), p50(of_mpi));
    let mut figures = Figures::new("slurm");
    figures.add("srun_ms_p50", joins, "srun of a program that joins and leaves, with PMI (ms, median)");
    figures.add("srun_mpi_ms_p50", of_mpi, "srun of a program that starts and ends MPICH (ms, median)");
    figures.add("srun_over_mpi", joins / of_mpi, "joining / MPI");
    figures.add("srun_without_pmi_ms_p50", p50(plain), "srun of the first program without PMI (ms, median)");
    figures.add("srun_true_ms_p50", p50(nothing), "srun of a program that does nothing (ms, median)");
    figures.add_value("tasks", arguments.tasks, "tasks");
    figures.print(arguments.json)
}

fn compiled(folder: &Scratch) -> Result<String, Failure> {
    let (source, program) = (folder.file("mpi.c"), folder.file("mpi").display().to_string());
    let failed = |why: &str| Failure::new(exit::SYSTEM, format!("an MPI program cannot be compiled: {why}"));
    fs::write(&source, MPI).map_err(|error| failed(&error.to_string()))?;
    let mut command = Command::new("cc");
    command.arg(&source).args(["-o", &program, "-l:libmpich.so.12"]).stdin(Stdio::null());
    let output = command.output().map_err(|error| failed(&error.to_string()))?;
    if output.status.success() {
        return Ok(program);
    }
    Err(failed(&format!("{}; is mpich installed?", String::from_utf8_lossy(&output.stderr).trim())))
}

/// How long a command takes that ends well.
fn milliseconds(mut command: Command) -> Result<f64, Failure> {
    let failed = |why: String| Failure::new(exit::CLUSTER, format!("srun in the lab failed: {why}"));
    let begin = Instant::now();
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    let time = begin.elapsed().as_secs_f64() * 1e3;
    if output.status.success() {
        return Ok(time);
    }
    Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}
