//! Open vSwitch, started by this process: a software switch for tests of OpenFlow.
//!
//! Promises: both of its programs run in the network namespace of the thread that starts them, forward packets
//! themselves (without a kernel module), and write only to a file system in memory that no other process sees. They end
//! with this value, or with the process, however that ends, and nothing of them remains. It must never use an Open
//! vSwitch of the machine.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trellis_output::programs;
use trellis_output::sockets::connect_path;

use crate::entries::Port;
use crate::error::SwitchError;
use crate::lab::space::Process;
use crate::switches::waits::OPEN_VSWITCH;
use crate::sys;

/// The required programs, all from Debian's package `openvswitch-switch` except the last.
const PROGRAMS: [&str; 5] = ["ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ip"];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// The folder that becomes a file system of its own.
const FOLDER: &str = "/run";
const DATABASE: &str = "/run/conf.db";
const DATABASE_SOCKET: &str = "/run/db.sock";
/// The control socket of the switch, in the folder.
const CONTROL: &str = "vswitchd.ctl";
const BRIDGE: &str = "trellis";
/// The datapath that receives packets from the interfaces and decides about them in its own process.
const DATAPATH: &str = "netdev";
const AGAIN: Duration = Duration::from_millis(2);
/// Disables its logging.
const SILENT: [&str; 2] = ["-vconsole:off", "-vsyslog:off"];
/// How long a flow may stay in its cache after a change, and how often counts are reported, in milliseconds.
const LOOK_MILLISECONDS: u32 = 100;
/// The maximum length of an answer of its control socket.
const ANSWER_BYTES_MAX: usize = 65_536;

/// What is missing to start it here.
pub(super) fn lacking() -> Option<String> {
    let is_in = |folder: &str, program: &str| programs::is_executable(&Path::new(folder).join(program));
    let is_here = |program: &&&str| {
        programs::find(program).is_some() || ["/usr/sbin", "/sbin"].iter().any(|folder| is_in(folder, program))
    };
    let missing = PROGRAMS.iter().find(|program| !is_here(program)).copied();
    let missing = missing.or_else(|| (!Path::new(SCHEMA).is_file()).then_some(SCHEMA));
    missing.map(|missing| format!("there is no {missing} here"))
}

/// A running Open vSwitch.
pub(super) struct Ovs {
    /// Its folder, which is accessible only through this descriptor.
    folder: File,
    thread: Option<JoinHandle<()>>,
    /// Dropping it ends the thread.
    alarm: Option<sys::Alarm>,
    /// One conversation at a time.
    talking: Mutex<()>,
}

impl Ovs {
    /// Starts it with these ports, which keep their numbers, and with this port of 127.0.0.1 as its controller's.
    pub(super) fn start(ports: &[Port], controller: u16) -> Result<Ovs, SwitchError> {
        if let Some(lacking) = lacking() {
            return Err(SwitchError::System {
                attempt: "start Open vSwitch".to_owned(),
                cause: lacking,
                hint: "install it (Debian: `apt-get install openvswitch-switch`), or take another switch".to_owned(),
            });
        }
        let (alarm, ringing) = sys::alarm().map_err(|error| SwitchError::system("make a socket pair", &error))?;
        let ports = ports.to_vec();
        let (ready, is_ready) = channel();
        // The programs end with the thread that starts them, so the thread stays.
        let thread = std::thread::Builder::new()
            .name("trellis-ovs".to_owned())
            .spawn(move || keep(&ports, controller, &ready, &ringing))
            .map_err(|error| SwitchError::system("start the thread that keeps Open vSwitch", &error))?;
        // Ends with the report of the thread: when the programs that it runs have ended, or are up or late.
        let folder = is_ready.recv().unwrap_or_else(|_| Err(failed("keep it", "the thread for that ended")))?;
        Ok(Ovs { folder, thread: Some(thread), alarm: Some(alarm), talking: Mutex::new(()) })
    }

    /// Waits until it has searched its flow cache once; that search may have begun already.
    pub(super) fn wait_for_look(&self) -> Result<(), SwitchError> {
        let _one = self.talking.lock();
        let wait = || -> io::Result<()> {
            let path = format!("/proc/self/fd/{}/{CONTROL}", self.folder.as_raw_fd());
            let mut stream = connect_path(Path::new(&path), OPEN_VSWITCH.time())?;
            stream.set_read_timeout(Some(OPEN_VSWITCH.time()))?;
            stream.write_all(b"{\"method\":\"revalidator/wait\",\"params\":[],\"id\":1}")?;
            let mut answer = Vec::new();
            let mut buffer = [0; 1024];
            // The answer is one object of JSON, and nothing follows it.
            while serde_json::from_slice::<serde_json::Value>(&answer).is_err() {
                match stream.read(&mut buffer)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    count => answer.extend_from_slice(&buffer[..count]),
                }
                if answer.len() > ANSWER_BYTES_MAX {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            Ok(())
        };
        wait().map_err(|error| SwitchError::system("wait for Open vSwitch to look through its flows", &error))
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        self.alarm = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            // Ends when the thread has ended the programs; the alarm woke it.
            let _ = thread.join();
        }
    }
}

fn failed(attempt: &str, cause: impl Into<String>) -> SwitchError {
    SwitchError::System {
        attempt: format!("{attempt}, for Open vSwitch"),
        cause: cause.into(),
        hint: "it takes root and /dev/net/tun; the switches `user` and `nft` do not take it".to_owned(),
    }
}

/// A running program; dropping it ends the program and waits for it.
struct Running {
    name: &'static str,
    child: Child,
    process: Process,
}

impl Running {
    fn start(name: &'static str, arguments: &[&str]) -> Result<Running, SwitchError> {
        let attempt = || format!("run {name}");
        let mut command = program(name);
        command.args(arguments).args(SILENT).stdout(Stdio::null()).stderr(Stdio::null());
        sys::end_with_us(&mut command);
        let child = command.spawn().map_err(|error| failed(&attempt(), error.to_string()))?;
        // The child has not been waited for yet, so that the number is still its own.
        let process = Process::open(child.id().cast_signed()).map_err(|error| failed(&attempt(), error.to_string()))?;
        Ok(Running { name, child, process })
    }

    /// Waits until it has created its socket, as long as it runs.
    fn wait_for(&self, socket: &str) -> Result<(), SwitchError> {
        let deadline = Instant::now() + OPEN_VSWITCH.time();
        while connect_path(Path::new(socket), OPEN_VSWITCH.time()).is_err() {
            let is_over = self.process.wait(AGAIN);
            if is_over || Instant::now() > deadline {
                let cause = if is_over { "it ended at once" } else { "it does not answer" };
                return Err(failed(&format!("run {}", self.name), cause));
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already. If children are not waited for in this process, none is.
        let _ = self.process.signal(libc::SIGKILL);
        let _ = self.process.wait(OPEN_VSWITCH.time());
        // Ends at once: it was killed.
        let _ = self.child.wait();
    }
}

/// The parts that keep it running, in the order in which they end.
struct Processes {
    _switch: Running,
    _database: Running,
}

/// The thread: starts it, reports the result, and keeps it running until the alarm rings.
fn keep(ports: &[Port], controller: u16, ready: &Sender<Result<File, SwitchError>>, ringing: &sys::Ringing) {
    // The caller waits for the result.
    match start(ports, controller) {
        Ok((folder, _processes)) => {
            let _ = ready.send(Ok(folder));
            while sys::wait_readable(&[ringing.as_fd()], None).is_empty() {}
        }
        Err(error) => drop(ready.send(Err(error))),
    }
}

fn start(ports: &[Port], controller: u16) -> Result<(File, Processes), SwitchError> {
    sys::own_folder(FOLDER).map_err(|error| failed("make a folder in memory", error.to_string()))?;
    let folder = File::open(FOLDER).map_err(|error| failed("open its folder", error.to_string()))?;
    run("ip", &["link", "set", "lo", "up"])?;
    run("ovsdb-tool", &["create", DATABASE, SCHEMA])?;
    let listening = format!("--remote=punix:{DATABASE_SOCKET}");
    let database = Running::start("ovsdb-server", &[DATABASE, &listening, "--unixctl=/run/ovsdb.ctl"])?;
    database.wait_for(DATABASE_SOCKET)?;
    let there = format!("--db=unix:{DATABASE_SOCKET}");
    run("ovs-vsctl", &[&there, "--no-wait", "init"])?;
    let control = format!("{FOLDER}/{CONTROL}");
    let database_at = format!("unix:{DATABASE_SOCKET}");
    let switch = Running::start("ovs-vswitchd", &[&database_at, &format!("--unixctl={control}"), "--disable-system"])?;
    switch.wait_for(&control)?;
    let mut arguments = vec![there, format!("--timeout={}", OPEN_VSWITCH.time().as_secs())];
    arguments.extend(bridge(ports, controller));
    run("ovs-vsctl", &arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok((folder, Processes { _switch: switch, _database: database }))
}

/// The configuration: one bridge, its ports with their numbers, one controller.
fn bridge(ports: &[Port], controller: u16) -> Vec<String> {
    let mut words = vec![
        "set open_vswitch . other_config:flow-restore-wait=false".to_owned(),
        format!("set open_vswitch . other_config:max-revalidator={LOOK_MILLISECONDS}"),
        format!("add-br {BRIDGE}"),
        format!("set bridge {BRIDGE} datapath_type={DATAPATH} fail_mode=secure protocols=OpenFlow13"),
        format!("set bridge {BRIDGE} other_config:disable-in-band=true"),
    ];
    for port in ports {
        let (name, number) = (&port.interface, port.number);
        words.push(format!("add-port {BRIDGE} {name}"));
        words.push(format!("set interface {name} ofport_request={number}"));
    }
    words.push(format!("set-controller {BRIDGE} tcp:127.0.0.1:{controller}"));
    words.join(" -- ").split_whitespace().map(str::to_owned).collect()
}

/// A program that writes only to the folder.
fn program(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).stdin(Stdio::null());
    for place in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(place, FOLDER);
    }
    command
}

/// Runs a program until it ends.
fn run(name: &str, arguments: &[&str]) -> Result<(), SwitchError> {
    let output =
        program(name).args(arguments).output().map_err(|error| failed(&format!("run {name}"), error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(&format!("run {name}"), String::from_utf8_lossy(&output.stderr).trim().replace('\n', " "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bridge_has_the_ports_with_their_numbers() {
        let port = |number: u16| Port { number, interface: format!("p{number}"), host_mac: [2; 6], is_pair: true };
        let words = bridge(&[port(1), port(7)], 6653).join(" ");
        assert!(words.contains("add-port trellis p7 -- set interface p7 ofport_request=7"), "{words}");
        assert!(words.ends_with("set-controller trellis tcp:127.0.0.1:6653"), "{words}");
    }
}
