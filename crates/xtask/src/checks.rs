//! The checkers in the short form that every change must pass: random clusters with faults, litmus tests in the
//! simulator and on real processes, histories, explorations, mutants. `cargo xtask soak` runs the long form.
//!
//! Promises: commands run as they were built for the tests, in which the protocols and the checkers are optimised and
//! their assertions are on. Commands that count states run one on each processor; commands that run processes run one
//! after the other. Each prints its findings. The first failure ends the step with the command that repeats it. It must
//! never choose seeds by the clock: what passed once passes again.

use anyhow::{Context, Result, bail};

use crate::parallel::on_all_processors;
use crate::step;
use crate::workspace::{Profile, Workspace};

/// The arguments of the `trellis check` calls, those that take longest first, so that no processor waits at the end.
const COMMANDS: &[&str] = &[
    "mutants",
    "explore --protocol lease",
    "swarm --protocol all --seeds 1000",
    "litmus --simulated --protocol release --runs 500000",
    "explore --protocol release --home all --nodes 2 --pages 2 --intervals 1 --program changes --program and-back --must-end",
    "swarm --protocol release --seeds 20000",
    "members --founders 2 --joiners 2 --kills",
    "explore --protocol release --nodes 2 --pages 1 --intervals 1 --give-ups 1 --noticing faults --program and-back --must-end",
    "litmus --simulated --runs 1000000",
    "explore --protocol release --nodes 3 --pages 1 --give-ups 2 --noticing faults --program items --program items-at-once --program too-few --must-end",
    "explore --protocol release --home all --nodes 3 --pages 1 --intervals 1 --program barriers --program locks --program chain --program flags --program at-home",
    "swarm --protocol lease --seeds 2000",
    "explore --protocol release --nodes 3 --pages 2 --intervals 2 --noticing marks --program chain --program at-home",
    "members --founders 3 --joiners 1 --kills",
    "explore --protocol release --nodes 2 --pages 1 --intervals 2 --give-ups 1 --objections 1 --may-disagree --noticing faults --program agree --program differ --must-end",
    "explore --protocol release --home migrating --nodes 2 --pages 1 --intervals 1 --program wanders --program company --must-end",
    "explore --protocol hlrc(invalidate) --nodes 3 --pages 1 --intervals 1 --give-ups 2 --objections 1 --may-disagree --noticing faults --program agree --must-end",
    "explore --protocol all --nodes 3 --pages 1 --operations 2 --must-end --overtaken-max",
    "heap",
    "scale --nodes 2,64,1024 --operations 1000",
    "explore --protocol release --nodes 3 --pages 1 --home all --program items --program items-at-once --program too-few --must-end",
    "explore --protocol all --nodes 2 --pages 2 --operations 1 --threads 2 --requests wide",
    "explore --protocol release --nodes 2 --pages 1 --intervals 1 --give-ups 2 --program barriers --program locks --program flags --program at-home --must-end",
    "ends",
    "explore --protocol release --nodes 2 --pages 1 --intervals 2 --program barriers --noticing marks --must-end",
];

/// The arguments of those calls that need processes.
const WITH_PROCESSES: &[&str] = &[
    "litmus --protocol release --runs 64 --nodes 3 --shape MP --shape SB --shape CoRR --shape MP+flags --shape ISA2+flags --shape SB+barrier --shape WRC+locks --shape HANDED-ON+locks --shape TURNS+lock --shape NEIGHBOURS+barrier",
    "litmus --protocol all --runs 64 --nodes 2 --shape MP --shape SB --shape LB --shape S --shape R --shape 2+2W",
    "litmus --protocol all --runs 64 --nodes 4 --shape WRC --shape RWC --shape IRIW",
    "history --protocol all --nodes 2 --operations 20000",
    "history --protocol dynamic --nodes 2 --operations 5000 --set link=udp --set link_faults=drop=10%,duplicate=5%,reorder=5%,seed=7",
];

/// Builds what is missing and runs all checkers.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    workspace.build(Profile::Debug)?;
    let again = "cargo run -p trellis-check -- ";
    on_all_processors(COMMANDS, |words| check(workspace, "debug/trellis-check", &[], words, again))?;
    for words in WITH_PROCESSES {
        check(workspace, "debug/trellis", &["check"], words, "cargo run -p trellis-cli -- check ")?;
    }
    Ok(())
}

fn check(workspace: &Workspace, program: &str, before: &[&str], words: &str, again: &str) -> Result<()> {
    let program = workspace.target.join(program);
    let mut command = std::process::Command::new(&program);
    command.args(before).args(words.split(' ')).current_dir(&workspace.root);
    let start = std::time::Instant::now();
    let output = command.output().with_context(|| format!("cannot start {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    eprintln!("    trellis check {words} ({})\n        {last}", step::seconds(start.elapsed()));
    if !output.status.success() {
        let lines: Vec<&str> = text.lines().collect();
        let shown = lines[lines.len().saturating_sub(40)..].join("\n");
        let printed = String::from_utf8_lossy(&output.stderr);
        bail!("again: {again}{words}\n{shown}\n{printed}");
    }
    Ok(())
}
