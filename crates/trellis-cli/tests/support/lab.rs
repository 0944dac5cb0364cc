//! A lab with memory servers, driven by the command; it ends with its value, however a test ends.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use trellis_testing::{Need, skip};

/// The seconds after which a host was given up, in a sentence that names it.
pub(crate) fn seconds_without_answer(printed: &str, host: &str) -> f64 {
    let begin = format!("the host {host} did not answer within ");
    let seconds = printed.split_once(&begin).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    seconds.unwrap_or_else(|| panic!("{printed}"))
}

pub(crate) struct Lab {
    pub(crate) name: String,
    /// The processes that were started.
    lasting: Vec<Child>,
}

impl Lab {
    /// Makes this many hosts, joined by the switch `user`. `None` if no lab can be made; then the reason is printed.
    pub(crate) fn up(test: &str, name: &str, clients: u16, servers: u16, more: &[&str]) -> Option<Lab> {
        let lab = Lab { name: format!("{name}-{}", std::process::id()), lasting: Vec::new() };
        let (clients, servers) = (clients.to_string(), servers.to_string());
        let hosts = ["--clients", &clients, "--servers", &servers, "--switch", "user"];
        let output = lab.ask("up", &[&hosts, more].concat());
        let printed = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(71) && printed.contains("user namespace") {
            skip(test, Need::Namespaces, printed);
            // There is nothing to end.
            std::mem::forget(lab);
            return None;
        }
        assert!(output.status.success(), "{printed}");
        Some(lab)
    }

    pub(crate) fn command(&self, task: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(["lab", task, "--lab", &self.name]).args(arguments).stdin(Stdio::null());
        command
    }

    pub(crate) fn ask(&self, task: &str, arguments: &[&str]) -> Output {
        self.command(task, arguments).output().expect("the command can be started")
    }

    /// Starts a memory server in a host; returns the line that it prints when clients can connect.
    pub(crate) fn serve(&mut self, host: &str, memory: &str) -> String {
        let line = self.start(host, &["serve", "--memory", memory], "serving ");
        assert!(line.contains("/48 at port 5000, "), "{line}");
        line
    }

    /// Starts a controller in a client's host, and memory servers in both servers' hosts that keep copies of each
    /// other's memory, as in the guide for operators; returns when the copies are complete. `times` are options of
    /// all of them.
    pub(crate) fn serve_with_copies(&mut self, controller: &str, memory: &str, times: &[&str]) {
        let run = ["controller", "run", "--records", "embedded:", "--backups", "1"];
        self.start(controller, &[&run, times].concat(), "this controller leads");
        let number = controller.trim_start_matches('c');
        for server in ["s1", "s2"] {
            let options = ["--controller", number, "--backup-memory", memory];
            self.start(server, &[&["serve", "--memory", memory], &options[..], times].concat(), "serving ");
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let status = [controller, "--", env!("CARGO_BIN_EXE_trellis"), "controller", "status", "--json"];
            let output = self.ask("run", &status);
            let found: Value =
                serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
            let has_copy = |range: &Value| range["complete"].as_array().map(Vec::len) == Some(1);
            if found["ranges"].as_array().is_some_and(|ranges| ranges.len() == 2 && ranges.iter().all(has_copy)) {
                return;
            }
            assert!(Instant::now() < deadline, "no copies: {found}");
        }
    }

    /// Starts a lasting command of ours in a host; returns the line that it prints when others may go on.
    pub(crate) fn start(&mut self, host: &str, arguments: &[&str], ready: &str) -> String {
        let arguments = [&[host, "--", env!("CARGO_BIN_EXE_trellis")], arguments].concat();
        let mut child = self.command("run", &arguments).stdout(Stdio::piped()).spawn().expect("it can be started");
        let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines().map_while(Result::ok);
        self.lasting.push(child);
        let line = lines.find(|line| line.starts_with(ready)).unwrap_or_else(|| panic!("{arguments:?} ended"));
        // Its later output is discarded, so that it is never blocked.
        std::thread::spawn(move || lines.for_each(drop));
        line
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let output = self.ask("down", &[]);
        for mut child in self.lasting.drain(..) {
            child.wait().expect("it ends with the lab");
        }
        assert!(output.status.success() || std::thread::panicking(), "{output:?}");
    }
}
