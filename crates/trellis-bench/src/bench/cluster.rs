//! A benchmark's own cluster: this executable, started again as its nodes by the launcher of `run`.
//!
//! A node gets its task as one JSON argument and prints one line of JSON. Everything else that it prints belongs to a
//! failure.

use std::ffi::OsString;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::process::{Child, Command};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bench::raw_link::Connection;
use trellis_command::exit::{self, Failure};
use trellis_command::run::stdin::InputMode;
use trellis_command::run::{self, BindTo, Output, Plan};

/// In place of an assignment: computes until the command ends.
pub(crate) const NEIGHBOUR: &str = "neighbour";

/// In place of an assignment: joins the cluster and leaves it.
pub(crate) const JOINER: &str = "joiner";

/// Settings that all benchmarks of a cluster have in common.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Common {
    /// How an access is noticed: signal, handler or mprotect
    #[arg(long = "catch", value_name = "CATCHER", default_value = "auto", value_parser = ["signal", "handler", "mprotect", "auto"])]
    pub(crate) catcher: String,
    /// What protects a frame: auto, sealed, signed or insecure-plain
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = ["auto", "sealed", "signed", "insecure-plain"])]
    pub(crate) security: String,
    /// Override one configuration key for every node; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, String)>,
    /// Processes that compute meanwhile, as other programs on the machine would
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) neighbours: u8,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Splits `key=value`; the configuration decides what it means.
fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("has no equals sign; accepted: key=value, such as link=udp")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// The settings of what has none of these options.
impl Default for Common {
    fn default() -> Common {
        Common { catcher: "auto".to_owned(), security: "auto".to_owned(), set: Vec::new(), neighbours: 0, json: false }
    }
}

impl Common {
    /// These settings on a quiet machine.
    pub(crate) fn without_neighbours(&self) -> Common {
        Common { neighbours: 0, ..self.clone() }
    }

    /// These settings with one more key.
    pub(crate) fn with(&self, key: &str, value: &str) -> Common {
        let mut more = self.clone();
        more.set.push((key.to_owned(), value.to_owned()));
        more
    }
}

/// A cluster to be started.
pub(crate) struct ClusterPlan<'a, T: Serialize> {
    pub(crate) nodes: usize,
    pub(crate) common: &'a Common,
    pub(crate) settings: Vec<(&'static str, String)>,
    pub(crate) task: &'a T,
    /// Whether nodes 0 and 1 get the two ends of a plain connection.
    pub(crate) with_connection: bool,
}

/// The argument with which a node is started.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Assignment<T> {
    pub(crate) task: T,
    pub(crate) connections: Vec<RawFd>,
}

impl<T: Serialize> ClusterPlan<'_, T> {
    /// Runs the nodes and returns the result of each.
    pub(crate) fn run<R: DeserializeOwned>(self) -> Result<Vec<R>, Failure> {
        let connection = if self.with_connection { Some(Connection::make()?) } else { None };
        let ends: Vec<RawFd> = connection.iter().flat_map(|c| c.ends.iter().map(TcpStream::as_raw_fd)).collect();
        let assignment = Assignment { task: self.task, connections: ends.clone() };
        let text = serde_json::to_string(&assignment).map_err(exit::not_json)?;
        let program = own_program()?;
        let mut settings: Vec<(String, String)> =
            self.settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        // Tasks place their data in the whole region themselves.
        settings.push(("heap_bytes".to_owned(), "0".to_owned()));
        settings.push(("catch".to_owned(), self.common.catcher.clone()));
        settings.push(("security".to_owned(), self.common.security.clone()));
        // The link of a figure must be known: it is tcp unless set, even if nodes of one host could use a faster one.
        if settings.iter().all(|(key, _)| key != "link") {
            settings.push(("link".to_owned(), "tcp".to_owned()));
        }
        for (key, value) in &self.common.set {
            settings.retain(|(other, _)| other != key);
            settings.push((key.clone(), value.clone()));
        }
        let plan = Plan {
            nodes: self.nodes,
            program: program.into_os_string(),
            arguments: vec![OsString::from("bench-node"), OsString::from(text)],
            config: None,
            settings,
            variables: Vec::new(),
            hosts: None,
            directory: None,
            bind_to: BindTo::None,
            output: Output::Captured,
            inherited: ends.iter().map(|end| vec![*end]).collect(),
            shown: None,
            input: InputMode::None,
            time_max: None,
            is_quiet: false,
            processors: None,
        };
        let neighbours = Neighbours::start(self.common.neighbours)?;
        let made = run::launch(&plan)?;
        drop(neighbours);
        match made.ending? {
            exit::FINE => made.stdout.iter().enumerate().map(|(node, bytes)| answer_of(node, bytes)).collect(),
            code => Err(Failure::new(code, "the benchmark's output was closed")),
        }
    }
}

/// Processes that compute while this value lives, as other programs on the machine would.
pub(crate) struct Neighbours(Vec<Child>);

impl Neighbours {
    pub(crate) fn start(count: u8) -> Result<Neighbours, Failure> {
        let (program, mut neighbours) = (own_program()?, Neighbours(Vec::new()));
        for _ in 0..count {
            let child = Command::new(&program).args(["bench-node", NEIGHBOUR]).spawn();
            let not_started = |error| Failure::new(exit::SYSTEM, format!("cannot start a neighbour: {error}"));
            neighbours.0.push(child.map_err(not_started)?);
        }
        Ok(neighbours)
    }
}

/// This executable, to be started again.
pub(crate) fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| {
        Failure::new(exit::SYSTEM, format!("cannot find this executable to start it as a node: {error}"))
    })
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for neighbour in &mut self.0 {
            // It may have ended.
            let _ = neighbour.kill();
            let _ = neighbour.wait();
        }
    }
}

/// The number `name` of each node.
pub(crate) fn numbers<'a>(found: &'a [Value], name: &'a str) -> impl Iterator<Item = f64> + 'a {
    found.iter().filter_map(move |node| node[name].as_f64())
}

/// The number `name` of a node.
pub(crate) fn number_of(node: &Value, name: &str) -> Result<f64, Failure> {
    let missing = || Failure::new(exit::CLUSTER, format!("a node of the benchmark gave no {name}"));
    node[name].as_f64().filter(|value| value.is_finite()).ok_or_else(missing)
}

fn answer_of<R: DeserializeOwned>(node: usize, bytes: &[u8]) -> Result<R, Failure> {
    serde_json::from_slice(bytes).map_err(|error| {
        let text = String::from_utf8_lossy(bytes);
        Failure::new(exit::CLUSTER, format!("node {node} of the benchmark gave no answer ({error}): {}", text.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_has_a_key_and_a_value() {
        assert_eq!(setting("coherence=lock(ivy)"), Ok(("coherence".to_owned(), "lock(ivy)".to_owned())));
        assert!(setting("link").is_err());
    }

    #[test]
    fn an_answer_is_one_line_of_json() {
        assert_eq!(answer_of::<Vec<u32>>(0, b"[1,2]\n"), Ok(vec![1, 2]));
        let failure = answer_of::<Vec<u32>>(3, b"oops").expect_err("no JSON");
        assert!(failure.sentence.contains("node 3") && failure.sentence.contains("oops"), "{failure}");
    }
}
