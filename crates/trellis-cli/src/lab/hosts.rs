//! The other tasks of `trellis lab`: show a lab, and cause failures in it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use clap::{Args, ValueEnum};
use serde_json::json;
use trellis::remote::HostPrefix;
use trellis_base::{Deadline, Limit};
use trellis_controller::control::forget_sockets;
use trellis_switch::lab::space::Process;

use super::Which;
use super::messages::{Description, HostDescription, InitProcess, Request, TIMEOUT, socket_names};
use super::run::find;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::{self, say};

/// How long ended processes are waited for.
pub(crate) const END: Deadline = Deadline {
    who: "`trellis lab kill`",
    waits_for: "processes that were killed",
    limit: Limit::seconds(10),
    then: "exit status 71, with their numbers",
    tested: "only the kernel can keep a killed process",
};
/// How often a host is searched for processes that were started while others were ended.
const ROUNDS_MAX: usize = 100;

/// Show hosts, addresses, processes and counters
#[derive(Debug, Args)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    which: Which,
    /// Everything, as JSON
    #[arg(long)]
    json: bool,
}

/// End everything that runs in hosts, or send it another signal
#[derive(Debug, Args)]
pub(super) struct KillArguments {
    #[command(flatten)]
    which: Which,
    /// The signal: stop freezes a host's processes, cont lets them continue
    #[arg(long, value_enum, default_value_t = Signal::Kill)]
    signal: Signal,
    /// The hosts: c1, s1 and so on
    #[arg(required = true, value_name = "HOST")]
    hosts: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Signal {
    Kill,
    Term,
    Int,
    Stop,
    Cont,
}

impl Signal {
    fn number(self) -> i32 {
        match self {
            Signal::Kill => libc::SIGKILL,
            Signal::Term => libc::SIGTERM,
            Signal::Int => libc::SIGINT,
            Signal::Stop => libc::SIGSTOP,
            Signal::Cont => libc::SIGCONT,
        }
    }
}

/// Let hosts reach only those in the same group
#[derive(Debug, Args)]
pub(super) struct PartitionArguments {
    #[command(flatten)]
    which: Which,
    /// The groups, hosts separated by commas; the hosts that are not named form one more
    #[arg(required_unless_present = "heal", conflicts_with = "heal", value_name = "HOST,HOST...")]
    parts: Vec<String>,
    /// Let every host reach every host
    #[arg(long)]
    heal: bool,
}

/// Restart the switch, as if its machine had failed for a moment; it forgets everything but the hosts
#[derive(Debug, Args)]
pub(super) struct RestartArguments {
    #[command(flatten)]
    which: Which,
}

/// Lose, repeat or delay packets on purpose from now on; `drop=0%` ends that
#[derive(Debug, Args)]
pub(super) struct FaultsArguments {
    #[command(flatten)]
    which: Which,
    /// For example drop=1%,duplicate=1%,reorder=1%,delay=500us,jitter=200us,seed=7
    faults: String,
}

/// List the labs of this user
#[derive(Debug, Args)]
pub(super) struct ListArguments {}

/// End a lab and everything in it
#[derive(Debug, Args)]
pub(super) struct DownArguments {
    #[command(flatten)]
    which: Which,
}

pub(super) fn status(arguments: &StatusArguments) -> Ending {
    let (init, lab) = InitProcess::of(&arguments.which.name)?;
    let processes: Vec<Vec<i32>> = lab.hosts.iter().map(|host| processes_of(&init, host)).collect();
    if arguments.json {
        let mut text = json!(lab);
        text["init_process"] = json!(init.process().pid());
        for (index, processes) in processes.iter().enumerate() {
            text["hosts"][index]["processes"] = json!(processes);
        }
        say!("{text:#}");
    } else {
        terminal::put(format_args!("{}", table(&lab, &processes)));
    }
    Ok(exit::FINE)
}

fn table(lab: &Description, processes: &[Vec<i32>]) -> String {
    let Description { name, switch, cluster, mtu_bytes, .. } = lab;
    let mut text = format!("lab {name}: switch {switch}, addresses {cluster}, MTU {mtu_bytes}\n");
    if !lab.faults.is_empty() {
        text += &format!("faults: {}\n", lab.faults);
    }
    if lab.is_without_switch {
        text += "nothing passes: the switch did not start again; `trellis lab restart` tries once more\n";
    }
    if lab.refused > 0 {
        text += &format!("requests to the lab that were refused: {}; each sender was told why\n", lab.refused);
    }
    text += &format!(
        "{:<7}{:<24}{:>5}{:>6}{:>11}{:>12}{:>12}{:>9}{:>9}\n",
        "host", "prefix", "port", "side", "processes", "in", "out", "refused", "lost"
    );
    for (host, processes) in lab.hosts.iter().zip(processes) {
        let count = |name: &str| host.counters.get(name).copied().unwrap_or_default();
        let sum = |names: &[&str]| names.iter().map(|name| count(name)).sum::<u64>();
        let refused = sum(&["not_addressed", "forged", "no_route", "denied", "no_port"]);
        let lost = sum(&["partitioned", "dropped", "overflowed"]);
        let all = sum(&["delivered", "redirected"]) + refused + lost;
        text += &format!(
            "{:<7}{:<24}{:>5}{:>6}{:>11}{all:>12}{:>12}{refused:>9}{lost:>9}\n",
            host.name,
            host.prefix,
            host.port,
            host.side,
            processes.len(),
            count("packets_out"),
        );
    }
    text
}

/// The processes in a host, by their numbers in this process namespace.
fn processes_of(init: &InitProcess, host: &HostDescription) -> Vec<i32> {
    let namespace = |path: String| fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    let Some(wanted) = namespace(format!("/proc/{}/fd/{}", init.process().pid(), host.descriptors[0])) else {
        return Vec::new();
    };
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<i32> = numbers.filter(|pid| namespace(format!("/proc/{pid}/ns/net")) == Some(wanted)).collect();
    // `lab run` itself waits inside for its command, and the first process is the host itself.
    let processes = namespace(format!("/proc/{}/fd/{}", init.process().pid(), host.descriptors[3]));
    let is_first = |pid: i32| is_first_process(pid) && namespace(format!("/proc/{pid}/ns/pid")) == processes;
    found.retain(|&pid| pid != init.process().pid() && !is_waiting_command(pid) && !is_first(pid));
    found.sort_unstable();
    found
}

/// Whether a process is the first one of its process namespace.
fn is_first_process(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // Its number in each namespace that sees it, the innermost last.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.and_then(|numbers| numbers.split_whitespace().last()) == Some("1")
}

/// Whether a process is a `trellis lab run`: such a process is outside of the lab's process namespace.
fn is_waiting_command(pid: i32) -> bool {
    let same = |one: &str, other: &str| match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    };
    same(&format!("/proc/{pid}/ns/pid"), "/proc/self/ns/pid")
}

pub(super) fn kill(arguments: &KillArguments) -> Ending {
    let (init, lab) = InitProcess::of(&arguments.which.name)?;
    let hosts: Vec<&HostDescription> = arguments.hosts.iter().map(|host| find(&lab, host)).collect::<Result<_, _>>()?;
    for host in hosts {
        let count = signal_host(&init, host, arguments.signal)?;
        say!("{}: {count} processes", host.name);
    }
    Ok(exit::FINE)
}

/// Signals every process in a host, including those started meanwhile, and waits for those that were killed.
fn signal_host(init: &InitProcess, host: &HostDescription, signal: Signal) -> Result<usize, Failure> {
    let mut done: Vec<(i32, Process)> = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let mut is_new = false;
        for pid in processes_of(init, host) {
            if done.iter().any(|(known, _)| *known == pid) {
                continue;
            }
            // The process is opened first and then checked again: its number may have been reused.
            let Ok(process) = Process::open(pid) else { continue };
            if !processes_of(init, host).contains(&pid) {
                continue;
            }
            is_new = true;
            process.signal(signal.number()).map_err(|error| {
                Failure::new(exit::SYSTEM, format!("cannot signal process {pid} in host {}: {error}", host.name))
            })?;
            done.push((pid, process));
        }
        if !is_new {
            break;
        }
    }
    for (pid, process) in &done {
        if signal == Signal::Kill && !process.wait(END.time()) {
            let sentence = format!("process {pid} in host {} does not end; it waits for the kernel", host.name);
            return Err(Failure::new(exit::SYSTEM, sentence));
        }
    }
    Ok(done.len())
}

pub(super) fn partition(arguments: &PartitionArguments) -> Ending {
    let (init, _) = InitProcess::of(&arguments.which.name)?;
    let part = |part: &String| part.split(',').filter(|host| !host.is_empty()).map(str::to_owned).collect();
    init.ask(&Request::Partition(arguments.parts.iter().map(part).collect()))?;
    Ok(exit::FINE)
}

pub(super) fn faults(arguments: &FaultsArguments) -> Ending {
    let (init, _) = InitProcess::of(&arguments.which.name)?;
    init.ask(&Request::Faults(arguments.faults.clone()))?;
    Ok(exit::FINE)
}

pub(super) fn restart(arguments: &RestartArguments) -> Ending {
    let (init, _) = InitProcess::of(&arguments.which.name)?;
    init.ask(&Request::Restart)?;
    Ok(exit::FINE)
}

pub(super) fn list() -> Ending {
    let sockets = fs::read("/proc/net/unix")
        .map_err(|error| Failure::new(exit::FILE, format!("cannot read /proc/net/unix: {error}")))?;
    // The names of other programs' sockets may not be text.
    for name in labs_in(&String::from_utf8_lossy(&sockets), &socket_names()) {
        say!("{name}");
    }
    Ok(exit::FINE)
}

/// The labs whose sockets are in a table of sockets.
fn labs_in(sockets: &str, prefix: &str) -> Vec<String> {
    let name = |line: &str| line.rsplit_once(' ')?.1.strip_prefix('@')?.strip_prefix(prefix).map(str::to_owned);
    let mut names: Vec<String> = sockets.lines().filter_map(name).collect();
    names.sort_unstable();
    // The table lists connections besides the socket that accepted them.
    names.dedup();
    names
}

pub(super) fn down(arguments: &DownArguments) -> Ending {
    let (init, lab) = InitProcess::of(&arguments.which.name)?;
    let process = init.process();
    let refused = |what: String| Failure::new(exit::SYSTEM, format!("cannot end the lab {}: {what}", lab.name));
    process.signal(libc::SIGKILL).map_err(|error| refused(error.to_string()))?;
    if !process.wait(TIMEOUT.time()) {
        return Err(refused(format!(
            "its init process, process {}, does not end; a process in it waits",
            process.pid()
        )));
    }
    // Sockets of its processes for other processes of this machine are outside of the lab.
    let of_host = |host: &HostDescription| host.prefix.parse::<HostPrefix>().ok();
    if let Some(prefix) = lab.hosts.iter().find_map(of_host) {
        forget_sockets(prefix.cluster);
    }
    let of_slurm = lab.slurm.as_deref().and_then(Path::parent);
    for folder in lab.ssh.iter().map(|(_, folder)| folder.as_path()).chain(of_slurm) {
        // Its keys serve nobody any more.
        let _ = fs::remove_dir_all(folder);
    }
    say!("lab {}: down", lab.name);
    Ok(exit::FINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labs_are_found_among_sockets() {
        let sockets = "Num RefCount Protocol Flags Type St Inode Path\n\
            0000: 00000002 00000000 00010000 0001 01 5 @trellis-lab-0-rack\n\
            0000: 00000003 00000000 00000000 0001 03 6 @trellis-lab-0-rack\n\
            0000: 00000002 00000000 00010000 0001 01 7 @trellis-lab-1000-lab\n\
            0000: 00000002 00000000 00010000 0001 01 8 /run/trellis-lab-0-no\n\
            0000: 00000002 00000000 00010000 0001 01 9 @trellis-lab-0-a\n";
        assert_eq!(labs_in(sockets, "trellis-lab-0-"), ["a", "rack"]);
        assert!(labs_in("", "trellis-lab-0-").is_empty());
    }

    #[test]
    fn the_table_has_a_line_for_each_host() {
        let counters = [("delivered", 5), ("forged", 2), ("dropped", 1), ("packets_out", 9)];
        let host = HostDescription {
            name: "c1".to_owned(),
            role: "client".to_owned(),
            number: 1,
            port: 1,
            prefix: "fd00:1:1::/48".to_owned(),
            address: "fd00:1:1::1".to_owned(),
            side: 0,
            descriptors: [3, 4, 5, 6],
            counters: counters.map(|(name, count)| (name.to_owned(), count)).into(),
        };
        let lab = Description {
            name: "lab".to_owned(),
            switch: "user".to_owned(),
            cluster: "fd00:1::/32".to_owned(),
            rootless: true,
            mtu_bytes: 9000,
            faults: String::new(),
            is_without_switch: false,
            refused: 0,
            ssh: None,
            slurm: None,
            hosts: vec![host],
        };
        let text = table(&lab, &[vec![7, 8]]);
        let words: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(words, ["c1", "fd00:1:1::/48", "1", "0", "2", "8", "9", "2", "1"]);
        let text = table(&Description { is_without_switch: true, refused: 3, ..lab }, &[Vec::new()]);
        assert!(text.contains("`trellis lab restart` tries once more") && text.contains("refused: 3;"), "{text}");
    }
}
