//! The protocol between the commands and an init process: one line of JSON each way, over a socket that only processes
//! of this machine and this network namespace can name. Both sides check that the other belongs to the same user.

use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use trellis_base::{Deadline, Limit};
use trellis_output::json_lines::Lines;
use trellis_output::sockets;
use trellis_switch::lab::space::Process;

use trellis_command::exit::{self, Failure};

/// Longer than an init process needs for anything.
pub(crate) const TIMEOUT: Deadline = Deadline {
    who: "`trellis lab …`",
    waits_for: "the lab's process, to answer or to end",
    limit: Limit::seconds(20),
    then: "exit status 71, with the lab's name",
    tested: "crates/trellis-output/src/json_lines.rs who_says_nothing_or_takes_nothing_is_not_waited_for",
};

/// The lab that shall be kept.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) name: String,
    pub(super) socket: String,
    pub(super) clients: u16,
    pub(super) servers: u16,
    pub(super) switch: String,
    pub(super) mtu_bytes: u32,
    pub(super) redirects_max: u32,
    pub(super) attach: String,
    pub(super) lease_milliseconds: Option<u64>,
    pub(super) faults: String,
    pub(super) rootless: bool,
    pub(super) has_ssh: bool,
    pub(super) has_slurm: bool,
}

/// An init process's report that the lab is up, or why it is not.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    Ready,
    Failed { code: u8, sentence: String },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Describe,
    Partition(Vec<Vec<String>>),
    Faults(String),
    /// Ends the switch, and starts it again.
    Restart,
    /// What follows on this connection is between the sender and the switch.
    Switch,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Lab(Description),
    Done,
    Refused { code: u8, sentence: String },
}

/// A lab that is up.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) name: String,
    pub(super) switch: String,
    pub(super) cluster: String,
    pub(super) rootless: bool,
    pub(super) mtu_bytes: u32,
    pub(super) faults: String,
    /// Whether a restart of the switch failed.
    pub(super) is_without_switch: bool,
    /// Requests of other users, or that were not understood.
    pub(super) refused: u64,
    /// The command with which its hosts reach each other, and the folder with the keys.
    pub(super) ssh: Option<(String, PathBuf)>,
    /// The configuration of its Slurm, in a folder of its own.
    pub(super) slurm: Option<PathBuf>,
    pub(super) hosts: Vec<HostDescription>,
}

/// A host of a lab.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HostDescription {
    pub(super) name: String,
    pub(super) role: String,
    pub(super) number: u16,
    pub(super) port: u16,
    pub(super) prefix: String,
    pub(super) address: String,
    pub(super) side: u32,
    /// The numbers of its namespaces' descriptors in the init process: its network, its name, its mounts,
    /// its processes.
    pub(super) descriptors: [i32; 4],
    pub(super) counters: BTreeMap<String, u64>,
}

/// The socket of a lab of this user.
pub(super) fn socket_name(lab: &str) -> String {
    format!("{}{lab}", socket_names())
}

/// The prefix of the names of the sockets of all labs of this user.
pub(super) fn socket_names() -> String {
    format!("trellis-lab-{}-", sockets::own_user())
}

/// The address of a socket.
pub(super) fn address(socket: &str) -> Result<SocketAddr, Failure> {
    SocketAddr::from_abstract_name(socket)
        .map_err(|error| Failure::new(exit::USAGE, format!("`{socket}` is not a name of a socket: {error}")))
}

/// The init process of a lab.
pub(super) struct InitProcess {
    lab: String,
    process: Process,
}

impl InitProcess {
    /// Finds the init process of a lab; `None` if the lab is not up.
    pub(super) fn find(lab: &str) -> Result<Option<(InitProcess, Description)>, Failure> {
        let Some(stream) = connect(lab)? else { return Ok(None) };
        let (pid, user) = sockets::peer(&stream).map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))?;
        if user != sockets::own_user() {
            return Err(Failure::new(exit::SYSTEM, format!("the lab {lab} belongs to another user ({user})")));
        }
        // The request comes after this, so an answer shows that the process is still the one that was meant.
        let Ok(process) = Process::open(pid) else { return Ok(None) };
        match ask(lab, stream, &Request::Describe)? {
            Answer::Lab(description) => Ok(Some((InitProcess { lab: lab.to_owned(), process }, description))),
            other => Err(misunderstood(lab, &other)),
        }
    }

    /// Like [`InitProcess::find`], with an error if the lab is not up.
    pub(super) fn of(lab: &str) -> Result<(InitProcess, Description), Failure> {
        InitProcess::find(lab)?.ok_or_else(|| no_lab(lab))
    }

    /// Its process.
    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    /// Opens a connection to the switch.
    pub(super) fn switch(&self) -> Result<UnixStream, Failure> {
        let stream = connect(&self.lab)?.ok_or_else(|| no_lab(&self.lab))?;
        let copy = stream.try_clone().map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))?;
        match ask(&self.lab, copy, &Request::Switch)? {
            Answer::Done => Ok(stream),
            other => Err(misunderstood(&self.lab, &other)),
        }
    }

    /// Sends a request that is carried out or refused.
    pub(super) fn ask(&self, request: &Request) -> Result<(), Failure> {
        let stream = connect(&self.lab)?.ok_or_else(|| no_lab(&self.lab))?;
        match ask(&self.lab, stream, request)? {
            Answer::Done => Ok(()),
            Answer::Refused { code, sentence } => Err(Failure::new(code, sentence)),
            other => Err(misunderstood(&self.lab, &other)),
        }
    }
}

fn connect(lab: &str) -> Result<Option<UnixStream>, Failure> {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    match trellis_output::sockets::connect(&address(&socket_name(lab))?, TIMEOUT.time()) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => Ok(None),
        Err(error) => {
            Err(Failure::new(exit::SYSTEM, format!("cannot reach the init process of the lab {lab}: {error}")))
        }
    }
}

fn ask(lab: &str, stream: UnixStream, request: &Request) -> Result<Answer, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(exit::SYSTEM, format!("the init process of the lab {lab} does not answer: {error}"))
    };
    Lines::new(stream, TIMEOUT.time())
        .and_then(|lines| lines.limiting_silence(TIMEOUT.time()).ask(request))
        .map_err(failed)
}

fn no_lab(lab: &str) -> Failure {
    Failure::new(exit::FAILED, format!("there is no lab {lab}; start one with `trellis lab up --lab {lab}`"))
}

fn misunderstood(lab: &str, answer: &Answer) -> Failure {
    let sentence = format!("the init process of the lab {lab} is of another version; end it with `trellis lab down`");
    match answer {
        Answer::Refused { code, sentence } => Failure::new(*code, sentence.clone()),
        _ => Failure::new(exit::FAILED, sentence),
    }
}
