//! `trellis leave`: asks processes that joined a running cluster to finish their piece of work and leave it.
//!
//! It only asks; the program decides when it leaves. Only processes that `trellis run --join` of this user started on
//! this machine are found. Without arguments, it lists them.

use std::collections::BTreeSet;

use clap::Args;

use trellis_command::exit::{self, Ending, Failure};
use trellis_command::run::{self, JoinedNode};
use trellis_command::terminal::{self, say};

const EXAMPLES: &str = "\
Examples:
  trellis leave               list the processes of this user that joined a cluster from here
  trellis leave 4711          ask process 4711 to leave, or all of the `trellis run --join` 4711
  trellis leave --node 5      the same for node 5
  trellis leave --all         the same for all of them; of one cluster with --cluster, or of
                              every one with --every-cluster

The program sees the request (Cluster::is_leave_requested, trellis_leave_requested), finishes its piece of work and leaves; \
`trellis run --join` then ends.

Exit codes: 0 listed or asked; 1 there is no such process; 2 wrong command line; 71 refused by the operating system.";

/// Ask processes that joined a cluster to leave it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LeaveArguments {
    /// Process numbers: of a node, or of the `trellis run --join` that started it
    #[arg(value_name = "PID", conflicts_with_all = ["node", "all"])]
    processes: Vec<i32>,
    /// The node with this number
    #[arg(long, value_name = "N", conflicts_with = "all")]
    node: Option<u16>,
    /// Every listed process; all must be of one cluster
    #[arg(long)]
    all: bool,
    /// With --all: processes of every listed cluster
    #[arg(long, requires = "all", conflicts_with = "cluster")]
    every_cluster: bool,
    /// Only processes that joined at this address
    #[arg(long, value_name = "HOST:PORT")]
    cluster: Option<String>,
}

/// Runs the `leave` subcommand.
pub(crate) fn leave(arguments: &LeaveArguments) -> Ending {
    let (mut there, mut failures) = run::joined_nodes()?;
    if let Some(cluster) = &arguments.cluster {
        there.retain(|node| node.cluster == *cluster);
    }
    if there.is_empty() && failures.is_empty() {
        return Err(Failure::new(
            exit::FAILED,
            "no process of this user joined a cluster from this machine; start one with `trellis run --join`",
        ));
    }
    if arguments.processes.is_empty() && arguments.node.is_none() && !arguments.all {
        if !there.is_empty() {
            terminal::put(format_args!("{}", table(&there)));
        }
        return all_said(failures);
    }
    let chosen = if there.is_empty() { Vec::new() } else { chosen(arguments, &there)? };
    for node in chosen {
        match run::ask_to_leave(node) {
            Ok(true) => say!("{} of the cluster at {} was asked to leave", named(node), node.cluster),
            Ok(false) => failures.push(Failure::new(exit::FAILED, format!("{} has just ended", named(node)))),
            // The others are asked nevertheless.
            Err(failure) => failures.push(failure),
        }
    }
    all_said(failures)
}

/// Says all failures; the last one is that of the command.
fn all_said(mut failures: Vec<Failure>) -> Ending {
    let Some(last) = failures.pop() else { return Ok(exit::FINE) };
    failures.iter().for_each(|failure| trellis_output::lines::complain(format_args!("{failure}")));
    Err(last)
}

fn chosen<'a>(arguments: &LeaveArguments, there: &'a [JoinedNode]) -> Result<Vec<&'a JoinedNode>, Failure> {
    if arguments.all {
        return if arguments.every_cluster { Ok(there.iter().collect()) } else { all_of_one_cluster(there) };
    }
    let mut chosen = Vec::new();
    if let Some(number) = arguments.node {
        chosen.extend(there.iter().filter(|node| node.number == Some(number)));
        if chosen.is_empty() {
            return Err(Failure::new(exit::FAILED, format!("no process here is node {number}; see `trellis leave`")));
        }
        if chosen.len() > 1 {
            let clusters: Vec<&str> = chosen.iter().map(|node| node.cluster.as_str()).collect();
            let sentence = format!(
                "there is a node {number} of each of {}; say which with --cluster or a process number",
                clusters.join(", ")
            );
            return Err(Failure::new(exit::USAGE, sentence));
        }
    }
    for &process in &arguments.processes {
        let before = chosen.len();
        chosen.extend(there.iter().filter(|node| node.pid == process || node.launcher == process));
        if chosen.len() == before {
            let sentence =
                format!("process {process} did not join a cluster by `trellis run --join`; see `trellis leave`");
            return Err(Failure::new(exit::FAILED, sentence));
        }
    }
    Ok(chosen)
}

/// Another cluster of the same user, perhaps with an hour's work, must not be emptied by mistake.
fn all_of_one_cluster(there: &[JoinedNode]) -> Result<Vec<&JoinedNode>, Failure> {
    let clusters: BTreeSet<&str> = there.iter().map(|node| node.cluster.as_str()).collect();
    if clusters.len() < 2 {
        return Ok(there.iter().collect());
    }
    let clusters: Vec<&str> = clusters.into_iter().collect();
    let sentence = format!(
        "processes here joined at {} addresses, {}; say which with --cluster, or give --every-cluster",
        clusters.len(),
        clusters.join(", ")
    );
    Err(Failure::new(exit::USAGE, sentence))
}

fn named(node: &JoinedNode) -> String {
    match node.number {
        Some(number) => format!("node {number} (pid {})", node.pid),
        None => format!("the joining process {}", node.pid),
    }
}

fn table(nodes: &[JoinedNode]) -> String {
    let mut text = format!("{:<6}{:<10}{:<10}{:<24}doing\n", "node", "pid", "launcher", "cluster");
    for node in nodes {
        let number = node.number.map_or("-".to_owned(), |number| number.to_string());
        text += &format!("{number:<6}{:<10}{:<10}{:<24}{}\n", node.pid, node.launcher, node.cluster, node.doing);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u16, pid: i32, launcher: i32, cluster: &str) -> JoinedNode {
        JoinedNode { number: Some(number), pid, launcher, cluster: cluster.to_owned(), doing: "computing".to_owned() }
    }

    fn asks(processes: &[i32], node: Option<u16>, all: bool) -> LeaveArguments {
        LeaveArguments { processes: processes.to_vec(), node, all, every_cluster: false, cluster: None }
    }

    #[test]
    fn processes_are_chosen_by_number_launcher_or_node() {
        let there = [node(3, 11, 10, "a:1"), node(4, 12, 10, "a:1"), node(3, 21, 20, "b:1")];
        let pids = |arguments: LeaveArguments| {
            chosen(&arguments, &there).map(|nodes| nodes.iter().map(|node| node.pid).collect::<Vec<_>>())
        };
        assert_eq!(pids(asks(&[11], None, false)), Ok(vec![11]));
        assert_eq!(pids(asks(&[10], None, false)), Ok(vec![11, 12]));
        assert_eq!(pids(asks(&[], Some(4), false)), Ok(vec![12]));
        let every = LeaveArguments { every_cluster: true, ..asks(&[], None, true) };
        assert_eq!(pids(every), Ok(vec![11, 12, 21]));
        let refused = pids(asks(&[], None, true)).unwrap_err();
        assert_eq!(refused.code, exit::USAGE);
        assert!(refused.sentence.contains("at 2 addresses, a:1, b:1; say which"), "{}", refused.sentence);
        let of_one = chosen(&asks(&[], None, true), &there[..2]).map(|nodes| nodes.len());
        assert_eq!(of_one, Ok(2));
        assert_eq!(pids(asks(&[], Some(3), false)).unwrap_err().code, exit::USAGE);
        assert_eq!(pids(asks(&[99], None, false)).unwrap_err().code, exit::FAILED);
        assert_eq!(pids(asks(&[], Some(9), false)).unwrap_err().code, exit::FAILED);
    }

    #[test]
    fn the_table_has_a_line_for_each() {
        let text = table(&[node(3, 11, 10, "a:1")]);
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().nth(1).is_some_and(|line| line.contains("3     11") && line.ends_with("computing")));
    }
}
