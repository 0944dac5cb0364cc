//! `trellis switch run`: runs a switch in this process.
//!
//! It ends with SIGINT or SIGTERM and removes its socket. If it is killed, the kernel removes what the switch had
//! loaded into it, and the next switch takes the socket over.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{ArgGroup, Args, value_parser};
use trellis_output::refusals::Refusals;
use trellis_output::sockets::{self, SocketFile};
use trellis_switch::control::{ControlServer, PortDescription};
use trellis_switch::switches::{self, Attach, KINDS, Wiring};
use trellis_switch::{Cluster, Port, Prefix, Route, Switch};

#[cfg(feature = "openflow")]
use super::external::{ConnectionMethod, connect};
use super::{default_socket, failure};
use trellis_command::ending::{Ends, say_ready};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::announce;

/// How a switch of another program is connected; this build refuses every way.
#[cfg(not(feature = "openflow"))]
type ConnectionMethod = String;

/// Run a switch, until SIGINT or SIGTERM
///
/// Each line of the list has one host: `client` or `server`, the interface of this machine that leads to the host,
/// the hardware address of the host's own interface, and the host's prefix; for example
///
///   server eth1 02:00:00:00:00:07 fd12:3456:7::/48
///
/// Ports are numbered in this order, from 1. Requests for anywhere go to the first server. The switch prints
/// one line when hosts may send.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("listed").required(true).multiple(true)))]
pub(super) struct RunArguments {
    /// The addresses of all hosts, 32 bits
    #[arg(long, value_name = "PREFIX")]
    cluster: String,
    /// A file that lists the hosts
    #[arg(long, value_name = "FILE", group = "listed")]
    hosts: Option<PathBuf>,
    /// A host, as in the file; may be repeated
    #[arg(long, value_name = "LINE", group = "listed")]
    host: Vec<String>,
    /// The kind of switch [default: bpf where this build has it and the user is root, else user]
    #[arg(long, value_name = "KIND")]
    pub(super) switch: Option<String>,
    /// Grant leases to the first host that asks, for this long
    #[arg(long, value_name = "MILLISECONDS")]
    lease: Option<u64>,
    /// Where the switch bpf sees frames: tc, xdp, or auto: xdp if no host is behind a pair of interfaces. Over a
    /// pair, xdp needs `ethtool -K e0 gro on tx off` at the host's end
    #[arg(long, value_name = "PLACE", default_value = Attach::Auto.name())]
    attach: Attach,
    /// Control a switch of another program by OpenFlow 1.3: ptcp:6653 or ptcp:PORT:ADDRESS if it connects to its
    /// controller, tcp:HOST:PORT if it waits, punix:FILE, unix:FILE. Hosts are listed with the switch's port numbers
    /// in place of interfaces. The default build has no OpenFlow
    #[arg(long, value_name = "PLACE")]
    openflow: Option<ConnectionMethod>,
    /// Room for redirects
    #[arg(long, value_name = "N", default_value_t = switches::REDIRECTS, value_parser = value_parser!(u32).range(1..))]
    pub(super) redirects: u32,
    /// The socket for commands to the switch
    #[arg(long, value_name = "SOCKET", env = "TRELLIS_SWITCH", default_value_os_t = default_socket())]
    control: PathBuf,
}

/// A line of the list of hosts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listed {
    is_memory: bool,
    pub(super) interface: String,
    pub(super) hardware_address: [u8; 6],
    prefix: Prefix,
}

pub(super) fn run(arguments: &RunArguments) -> Ending {
    let cluster = cluster(&arguments.cluster)?;
    let listed = listed(arguments)?;
    // Before any thread starts: no thread may be interrupted by the signals.
    let ends = Ends::listen()?;
    let Opened { switch, ports, socket } = open(arguments, cluster, &listed, &ends)?;
    let control = arguments.control.display();
    let (stop, is_over) = mpsc::channel();
    let listener = ends.begin(|| {
        let listener = sockets::listen(&arguments.control, "switch", "--control")
            .map_err(|error| Failure::new(exit::SYSTEM, format!("cannot listen at {control}: {error}")))?;
        let stops = move || {
            // If nothing waits for it any more, the process is already ending.
            let _ = stop.send(());
        };
        Ok::<_, Failure>((listener, stops))
    })?;
    let (name, file) = (switch.name(), listener.file().clone());
    let boot_id = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let server =
        ControlServer::new(switch, ports, boot_id, Refusals::new("switch", Some(trellis_output::lines::report)));
    announce(format_args!("switch {name}: {} hosts of {}, control {control}", listed.len(), cluster.everything()));
    let thread = std::thread::Builder::new().name("switch socket".to_owned());
    let serves = thread.spawn(move || {
        for stream in sockets::clients(&listener, "switch", Some(trellis_output::lines::report)) {
            // A client that is gone, or may not ask, is no reason to stop.
            let _ = server.serve(stream);
        }
    });
    serves.map_err(|_| Failure::system("start a thread"))?;
    say_ready();
    // Only a signal ends it.
    let _ = is_over.recv();
    file.remove();
    socket.iter().for_each(SocketFile::remove);
    Ok(exit::FINE)
}

/// A switch that has its prefixes.
struct Opened {
    switch: Arc<dyn Switch>,
    ports: Vec<PortDescription>,
    /// The file of the socket at which another program's switch connects.
    socket: Option<SocketFile>,
}

/// Makes the switch, and sets its prefixes.
fn open(arguments: &RunArguments, cluster: Cluster, listed: &[Listed], ends: &Ends) -> Result<Opened, Failure> {
    let (switch, socket): (Arc<dyn Switch>, _) = match &arguments.openflow {
        Some(method) => {
            let (switch, file) = connect(arguments, method, cluster, listed, ends)?;
            (switch.into(), file)
        }
        None => (make(arguments, cluster, listed)?.into(), None),
    };
    let mut ports = Vec::new();
    for (listed, port) in listed.iter().zip(1..) {
        let is_memory = listed.is_memory;
        switch.set_prefix(listed.prefix, Route { port, is_memory }).map_err(|error| failure(&error))?;
        ports.push(PortDescription { port, host: listed.prefix.home(), is_memory });
    }
    if let Some(first) = ports.iter().find(|host| host.is_memory) {
        let route = Route { port: first.port, is_memory: true };
        switch.set_prefix(Prefix::host(cluster, 0), route).map_err(|error| failure(&error))?;
    }
    if arguments.lease.is_some() {
        switch.set_leases(arguments.lease.map(Duration::from_millis)).map_err(|error| failure(&error))?;
    }
    Ok(Opened { switch, ports, socket })
}

/// Makes a switch of the interfaces of this machine.
fn make(arguments: &RunArguments, cluster: Cluster, listed: &[Listed]) -> Result<Box<dyn Switch>, Failure> {
    let port = |(listed, number): (&Listed, u16)| Port {
        number,
        interface: listed.interface.clone(),
        host_mac: listed.hardware_address,
        is_pair: is_pair(&listed.interface),
    };
    let ports = listed.iter().zip(1..).map(port).collect();
    let wiring = Wiring { cluster, ports, redirects_max: arguments.redirects, attach: arguments.attach };
    let rootless = !trellis_switch::lab::space::is_root();
    let works = |kind: &&switches::SwitchKind| kind.is_built && (kind.is_rootless || !rootless);
    let best = KINDS.iter().find(works).map_or("user", |kind| kind.name);
    let kind = arguments.switch.as_deref().unwrap_or(best);
    switches::open(kind, &wiring).map_err(|error| failure(&error))
}

/// Refuses a switch of another program.
#[cfg(not(feature = "openflow"))]
fn connect(
    _: &RunArguments,
    _: &ConnectionMethod,
    _: Cluster,
    _: &[Listed],
    _: &Ends,
) -> Result<(Box<dyn Switch>, Option<SocketFile>), Failure> {
    Err(failure(&trellis_switch::SwitchError::NotBuilt { name: "openflow" }))
}

fn cluster(text: &str) -> Result<Cluster, Failure> {
    let wrong = || {
        Failure::new(
            exit::CONFIGURATION,
            format!("`{text}` is no cluster; give the 32 bits that all addresses begin with, as fd12:3456::/32"),
        )
    };
    let first: Prefix =
        text.strip_suffix("/32").and_then(|address| format!("{address}/48").parse().ok()).ok_or_else(wrong)?;
    let [scope, a, b, c, rest @ ..] = first.address().octets();
    let cluster = Cluster::new(u32::from_be_bytes([0, a, b, c]));
    if cluster.scope()[0] == scope && rest == [0; 12] { Ok(cluster) } else { Err(wrong()) }
}

fn listed(arguments: &RunArguments) -> Result<Vec<Listed>, Failure> {
    let mut listed = Vec::new();
    if let Some(file) = &arguments.hosts {
        let text = fs::read_to_string(file)
            .map_err(|error| Failure::new(exit::FILE, format!("cannot read {}: {error}", file.display())))?;
        for (line, number) in text.lines().zip(1..) {
            let words = line.split('#').next().unwrap_or_default();
            if !words.trim().is_empty() {
                let place = format!("{} line {number}", file.display());
                listed.push(read(words).map_err(|what| Failure::new(exit::CONFIGURATION, format!("{place}: {what}")))?);
            }
        }
    }
    for line in &arguments.host {
        listed.push(read(line).map_err(|what| Failure::new(exit::CONFIGURATION, what))?);
    }
    check(&listed).map_err(|what| Failure::new(exit::CONFIGURATION, what))?;
    Ok(listed)
}

/// Checks that no two hosts are behind the same interface, or have the same prefix.
fn check(listed: &[Listed]) -> Result<(), String> {
    for (place, host) in listed.iter().enumerate() {
        let before = &listed[..place];
        if before.iter().any(|other| other.interface == host.interface) {
            return Err(format!("two hosts are listed at `{}`; give each a port of its own", host.interface));
        }
        if before.iter().any(|other| other.prefix == host.prefix) {
            return Err(format!("two hosts are listed with {}; give each a prefix of its own", host.prefix));
        }
    }
    Ok(())
}

fn read(line: &str) -> Result<Listed, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [role, interface, hardware_address, prefix] = words[..] else {
        return Err(format!(
            "`{}` is not a host; an example: server eth1 02:00:00:00:00:07 fd12:3456:7::/48",
            line.trim()
        ));
    };
    let is_memory = match role {
        "client" => false,
        "server" => true,
        other => return Err(format!("a host is a client or a server, not `{other}`")),
    };
    let wrong = || format!("`{hardware_address}` is no hardware address; an example: 02:00:00:00:00:07");
    let bytes = hardware_address.split(':').map(|byte| u8::from_str_radix(byte, 16).map_err(|_| wrong()));
    let bytes: Vec<u8> = bytes.collect::<Result<_, _>>()?;
    Ok(Listed {
        is_memory,
        interface: interface.to_owned(),
        hardware_address: bytes.try_into().map_err(|_| wrong())?,
        prefix: prefix.parse()?,
    })
}

/// Whether an interface is one end of a pair: packets for the other end can then be passed on directly.
fn is_pair(interface: &str) -> bool {
    let shown = Command::new("ip").args(["-details", "link", "show", "dev", interface]).output();
    shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).split_whitespace().any(|word| word == "veth"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_line() {
        let host = read(" server eth1 02:00:00:00:0a:07 fd12:3456:7::/48 ").unwrap();
        assert_eq!((host.is_memory, host.interface.as_str()), (true, "eth1"));
        assert_eq!((host.hardware_address, host.prefix.home()), ([2, 0, 0, 0, 10, 7], 7));
        for (line, why) in [
            ("server eth1 02:00:00:00:00:07", "is not a host"),
            ("hub eth1 02:00:00:00:00:07 fd12:3456:7::/48", "client or a server"),
            ("client eth1 02:00:00:00:00 fd12:3456:7::/48", "no hardware address"),
            ("client eth1 02:00:00:00:00:x7 fd12:3456:7::/48", "no hardware address"),
            ("client eth1 02:00:00:00:00:07 fd12:3456:7::", "not a prefix"),
        ] {
            assert!(read(line).unwrap_err().contains(why), "{line}");
        }
    }

    #[test]
    fn a_host_is_listed_once() {
        let check = |lines: &[&str]| check(&lines.iter().map(|line| read(line).unwrap()).collect::<Vec<_>>());
        let host = "server eth1 02:00:00:00:00:07 fd12:3456:7::/48";
        assert!(check(&[host, "server eth2 02:00:00:00:00:08 fd12:3456:8::/48"]).is_ok());
        assert!(check(&[host, host]).unwrap_err().contains("two hosts are listed at `eth1`"));
        let again = "client eth2 02:00:00:00:00:08 fd12:3456:7::/48";
        assert!(check(&[host, again]).unwrap_err().contains("two hosts are listed with fd12:3456:7::/48"));
    }

    #[test]
    fn a_cluster_is_32_bits() {
        assert_eq!(cluster("fd12:3456::/32").unwrap(), Cluster::new(0x12_3456));
        for wrong in ["fd12:3456::", "fd12:3456::/48", "fc12:3456::/32", "fd12:3456:1::/32", "2001:db8::/32", "x/32"] {
            assert!(cluster(wrong).is_err(), "{wrong}");
        }
    }
}
