//! The processors that a node may use: `--bind-to`.
//!
//! Promises: nodes get only processors that this process itself may use, so the limits of a cgroup, of `taskset` and of
//! a scheduler hold. With `core` no core is given to two nodes of a host. A binding that is not possible is refused
//! before a node starts. It must never bind this process.

use std::fs;

use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

use crate::exit::{self, Failure};

/// The processors to which a node is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
pub enum BindTo {
    /// Cores that no other node has: those of the host are divided evenly
    Core,
    /// The processors of one socket; the nodes are divided among the sockets
    Socket,
    /// The processors of one NUMA node; the nodes are divided among the NUMA nodes
    Numa,
    /// Every processor that the launcher may use
    #[default]
    None,
}

/// A processor by its number in Linux, with its core, socket and NUMA node.
#[derive(Debug, Clone)]
struct Processor {
    number: usize,
    core: String,
    socket: String,
    numa: String,
}

impl BindTo {
    /// The word on the command line.
    fn word(self) -> &'static str {
        match self {
            BindTo::Core => "core",
            BindTo::Socket => "socket",
            BindTo::Numa => "numa",
            BindTo::None => "none",
        }
    }

    /// The processors of each node of this host; `None` if the nodes are not bound.
    pub(super) fn processors(self, nodes: usize) -> Result<Option<Vec<CpuSet>>, Failure> {
        if self == BindTo::None {
            return Ok(None);
        }
        let refused = |why: String| {
            let word = self.word();
            Failure::new(exit::SYSTEM, format!("--bind-to {word}: {why}; without the option nodes are not bound"))
        };
        let allowed = sched_getaffinity(None)
            .map_err(|error| refused(format!("the processors of this process are not known: {error}")))?;
        let numbers = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
        let processors = numbers.map(processor).collect::<Result<Vec<_>, _>>().map_err(refused)?;
        let set = |numbers: Vec<usize>| {
            let mut set = CpuSet::new();
            numbers.into_iter().for_each(|number| set.set(number));
            set
        };
        let shares = self.shares(processors, nodes).map_err(refused)?;
        Ok(Some(shares.into_iter().map(set).collect()))
    }

    /// The numbers of the processors of each node.
    fn shares(self, processors: Vec<Processor>, nodes: usize) -> Result<Vec<Vec<usize>>, String> {
        let groups = self.groups(processors);
        let count = groups.len();
        if self == BindTo::Core && count < nodes {
            return Err(format!("{nodes} nodes cannot have a core each, because {count} can be used here"));
        }
        let share = |node: usize| match self {
            BindTo::Core => groups[node * count / nodes..(node + 1) * count / nodes].concat(),
            _ => groups[node * count / nodes].clone(),
        };
        Ok((0..nodes).map(share).collect())
    }

    /// The cores, sockets or NUMA nodes. Cores of one socket follow each other, so that neighbours share one.
    fn groups(self, mut processors: Vec<Processor>) -> Vec<Vec<usize>> {
        processors.sort_by(|one, other| (&one.socket, one.number).cmp(&(&other.socket, other.number)));
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        for Processor { number, core, socket, numa } in processors {
            let name = match self {
                BindTo::Core => core,
                BindTo::Numa => numa,
                BindTo::Socket | BindTo::None => socket,
            };
            match groups.iter_mut().find(|(known, _)| *known == name) {
                Some((_, numbers)) => numbers.push(number),
                None => groups.push((name, vec![number])),
            }
        }
        groups.into_iter().map(|(_, numbers)| numbers).collect()
    }
}

/// A fact that the kernel reports about a processor (`Documentation/admin-guide/cputopology.rst`).
fn processor(number: usize) -> Result<Processor, String> {
    let folder = format!("/sys/devices/system/cpu/cpu{number}");
    let read = |name: &str| {
        let file = format!("{folder}/topology/{name}");
        fs::read_to_string(&file).map_err(|error| format!("{file} cannot be read: {error}"))
    };
    let is_numa = |name: &String| name.strip_prefix("node").is_some_and(|rest| rest.parse::<usize>().is_ok());
    let names = fs::read_dir(&folder).into_iter().flatten().flatten();
    // A kernel without NUMA has one such node, and no name for it.
    let numa = names.filter_map(|entry| entry.file_name().into_string().ok()).find(is_numa).unwrap_or_default();
    Ok(Processor { number, core: read("thread_siblings_list")?, socket: read("physical_package_id")?, numa })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets that take turns with their numbers, of two cores with two threads each; a socket is a NUMA node.
    fn machine() -> Vec<Processor> {
        let processor = |number: usize| {
            let socket = (number % 2).to_string();
            Processor { number, core: (number % 4).to_string(), numa: format!("node{socket}"), socket }
        };
        (0..8).map(processor).collect()
    }

    #[test]
    fn cores_are_divided_and_neighbours_share_a_socket() {
        let shares = |nodes| BindTo::Core.shares(machine(), nodes).unwrap();
        assert_eq!(shares(1), [[0, 4, 2, 6, 1, 5, 3, 7]]);
        assert_eq!(shares(2), [[0, 4, 2, 6], [1, 5, 3, 7]]);
        assert_eq!(shares(3), [vec![0, 4], vec![2, 6], vec![1, 5, 3, 7]]);
        assert_eq!(shares(4), [[0, 4], [2, 6], [1, 5], [3, 7]]);
        let many = BindTo::Core.shares(machine(), 5).unwrap_err();
        assert_eq!(many, "5 nodes cannot have a core each, because 4 can be used here");
    }

    #[test]
    fn sockets_and_numa_nodes_take_any_number_of_nodes() {
        for kind in [BindTo::Socket, BindTo::Numa] {
            let [even, odd] = [vec![0, 2, 4, 6], vec![1, 3, 5, 7]];
            assert_eq!(kind.shares(machine(), 1).unwrap(), std::slice::from_ref(&even));
            assert_eq!(kind.shares(machine(), 3).unwrap(), [even.clone(), even, odd]);
        }
    }

    #[test]
    fn this_machine_has_processors_of_each_kind() {
        for kind in [BindTo::Core, BindTo::Socket, BindTo::Numa] {
            let of_one = kind.processors(1).expect("Linux describes them").expect("it is bound");
            assert!(of_one.len() == 1 && of_one[0].count() > 0, "{kind:?}: {of_one:?}");
        }
        assert!(BindTo::None.processors(1).expect("nothing is asked for").is_none());
    }
}
