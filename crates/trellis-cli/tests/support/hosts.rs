//! Hosts of a lab without memory servers, with ssh servers if they are wanted.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use trellis_testing::{Need, skip};

use super::lab::Lab;
use super::{Run, in_role, wait_until};

/// They end with this value.
pub(crate) struct Hosts {
    lab: Lab,
    /// The command with which they reach each other; empty without ssh.
    pub(crate) ssh: String,
}

impl Hosts {
    /// Hosts that have an ssh server; `None`, with the reason, where there can be none.
    pub(crate) fn up(test: &str, hosts: u16) -> Option<Hosts> {
        if !fs::exists("/usr/sbin/sshd").unwrap_or(false) {
            skip(test, Need::Program, "openssh-server is not installed");
            return None;
        }
        let mut made = Hosts::made(test, hosts, &["--ssh"])?;
        made.ssh = made.status()["ssh"][0].as_str().expect("a command").to_owned();
        Some(made)
    }

    /// Hosts of a Slurm, each with room for four tasks; `None`, with the reason, where there can be none.
    pub(crate) fn of_slurm(test: &str, hosts: u16) -> Option<Hosts> {
        for program in ["/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd"] {
            if !fs::exists(program).unwrap_or(false) {
                skip(test, Need::Program, format_args!("{program} is not installed"));
                return None;
            }
        }
        Hosts::made(test, hosts, &["--slurm"])
    }

    /// Hosts without servers; `None`, with the reason, where there can be none.
    pub(crate) fn plain(test: &str, hosts: u16) -> Option<Hosts> {
        Hosts::made(test, hosts, &[])
    }

    fn made(test: &str, hosts: u16, options: &[&str]) -> Option<Hosts> {
        let is_root = Command::new("id").arg("-u").output().expect("id").stdout == b"0\n";
        if !is_root {
            skip(test, Need::Root, "the servers of its hosts need it");
            return None;
        }
        static LABS: AtomicU32 = AtomicU32::new(0);
        let name = format!("hosts-{}", LABS.fetch_add(1, Ordering::Relaxed));
        Some(Hosts { lab: Lab::up(test, &name, hosts, 0, options)?, ssh: String::new() })
    }

    /// A task of `trellis lab`.
    pub(crate) fn task(&self, task: &str, arguments: &[&str]) -> Command {
        let mut command = self.lab.command(task, arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn ask(&self, task: &str, arguments: &[&str]) -> Output {
        self.lab.ask(task, arguments)
    }

    /// A command on a host.
    pub(crate) fn inside(&self, host: &str, arguments: &[&str]) -> Command {
        self.task("run", &[&[host, "--"], arguments].concat())
    }

    pub(crate) fn status(&self) -> Value {
        serde_json::from_slice(&self.ask("status", &["--json"]).stdout).expect("JSON")
    }

    /// Lets a host answer at an address that none of its interfaces has.
    pub(crate) fn answer_elsewhere(&self, place: usize) -> String {
        let status = self.status();
        let host = &status["hosts"][place];
        let address = host["address"].as_str().expect("an address").replace("::1", ":99::7");
        let name = host["name"].as_str().expect("a name");
        let routed = self.ask("run", &[name, "--", "ip", "-6", "route", "add", "local", &address, "dev", "lo"]);
        assert!(routed.status.success(), "{}", printed(&routed));
        address
    }

    /// How many processes run on each host, without its ssh server: that keeps a connection until the network says that
    /// it is lost.
    pub(crate) fn processes(&self) -> Vec<usize> {
        let status = self.status();
        let is_ssh = |process: &Value| {
            let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
            name.starts_with("sshd")
        };
        let count = |host: &Value| {
            let processes = host["processes"].as_array().expect("processes");
            processes.iter().filter(|process| !is_ssh(process)).count()
        };
        status["hosts"].as_array().expect("hosts").iter().map(count).collect()
    }

    /// Waits until nothing is left on any host.
    pub(crate) fn wait_until_quiet(&self) {
        wait_until("nothing is left on any host", || self.processes().iter().all(|count| *count == 0));
    }

    /// `trellis run` with these options, in host c1.
    pub(crate) fn run(&self, options: &[&str]) -> Command {
        let mut command = self.task("run", &["c1", "--", env!("CARGO_BIN_EXE_trellis"), "run", "--ssh", &self.ssh]);
        command.args(options);
        command
    }

    /// The same with this executable as the nodes, in a role.
    pub(crate) fn start_role(&self, role: &str, options: &[&str]) -> Run {
        let mut command = self.run(options);
        command.args(["-x", &format!("CLI_TEST_ROLE={role}"), "-x", "RUST_BACKTRACE=0", "--"]);
        in_role(&mut command, role);
        command.env_remove("CLI_TEST_ROLE");
        Run::start(command)
    }

    /// Sends a signal to a node on a host, which has said its number there.
    pub(crate) fn signal_node(&self, run: &Run, host: &str, node: usize, signal: &str) {
        let pid = run.node_pid(node).to_string();
        let output = self.ask("run", &[host, "--", "kill", &format!("-{signal}"), &pid]);
        assert!(output.status.success(), "{}", printed(&output));
    }
}

/// The command that a `trellis lab run` started.
pub(crate) fn command_in(run: &Run) -> i32 {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid())).expect("Linux lists them");
    children.split_whitespace().next().expect("it runs its command").parse().expect("a number")
}

/// Everything that a command said.
pub(crate) fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
