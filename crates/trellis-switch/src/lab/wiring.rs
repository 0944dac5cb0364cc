//! Creates the interfaces, addresses and routes of a lab with the command `ip`: one call for the switch, and one for
//! each host.
//!
//! It promises that both ends of a pair are created where they belong. It must never let one appear elsewhere.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};

use super::namespace::Network;
use super::{Host, HostPlan, Plan};
use crate::entries::Port;
use crate::error::SwitchError;
use crate::switches;
use crate::sys;

/// The hardware address of every port of the switch: all hosts have the same neighbour.
const SWITCH_MAC: &str = "02:bb:ff:ff:ff:ff";
/// The neighbour's address; there are no other addresses of this kind.
const SWITCH_ADDRESS: &str = "fe80::bb";
/// How long the kernel may take to report that interfaces are up.
pub(crate) const LINKS: Deadline = Deadline {
    who: "`trellis lab up`",
    waits_for: "interfaces to be up",
    limit: Limit::seconds(20),
    then: "the lab ends, with the interface",
    tested: "the kernel brings interfaces up, unless it is overloaded",
};
/// The routing table of what a host accepts.
const ACCEPTED_TABLE: u32 = 100;

/// The port of a host.
pub(super) fn port(host: &HostPlan) -> Port {
    Port { number: host.port, interface: interface(host), host_mac: mac(host), is_pair: true }
}

fn interface(host: &HostPlan) -> String {
    format!("p{}", host.port)
}

fn mac(host: &HostPlan) -> [u8; 6] {
    let [high, low] = host.number.to_be_bytes();
    [0x02, 0xbb, 0, 0, high, low]
}

/// Connects the hosts with the namespace of the switch.
pub(super) fn join(plan: &Plan, middle: &Network, hosts: &[Host]) -> Result<(), SwitchError> {
    middle.run(|| {
        // No interface there has an address; without this setting the kernel would assign some.
        for which in ["all", "default"] {
            let file = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            std::fs::write(&file, "1").map_err(|error| SwitchError::system(format!("write {file}"), &error))?;
        }
        let commands: Vec<String> = hosts.iter().flat_map(|host| plug_in(plan, host)).collect();
        configure("the switch", &commands)
    })??;
    for host in hosts {
        host.run(|| configure(&host.plan.name, &settle(plan, &host.plan)))??;
        if switches::needs_whole_checksums(&plan.switch, plan.attach) {
            let suited = host.run(|| sys::take_frames("e0"))?;
            suited.map_err(|error| {
                SwitchError::system(format!("prepare host {} for the switch", host.plan.name), &error)
            })?;
        }
    }
    middle.run(wait_for_links)?
}

/// Waits until the kernel reports that both ends of all pairs are up: until then it drops what is sent here.
fn wait_for_links() -> Result<(), SwitchError> {
    let deadline = Instant::now() + LINKS.time();
    loop {
        let output = Command::new("ip").args(["-brief", "link", "show", "type", "veth"]).output();
        let output =
            output.map_err(|error| SwitchError::system("ask `ip` for the interfaces of the switch", &error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some(down) = text.lines().find(|line| line.split_whitespace().nth(1) != Some("UP")) else { return Ok(()) };
        if Instant::now() > deadline {
            return Err(SwitchError::System {
                attempt: format!("bring up {}", down.split_whitespace().next().unwrap_or_default()),
                cause: format!("it is not up after {} s", LINKS.time().as_secs()),
                hint: "the machine may be overloaded; try again with fewer hosts".to_owned(),
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Creates a pair of interfaces, one end here and one in the host.
fn plug_in(plan: &Plan, host: &Host) -> [String; 2] {
    let here = interface(&host.plan);
    let mtu = plan.mtu_bytes;
    let [a, b, c, d, e, f] = mac(&host.plan);
    let there = host.network.as_fd().as_raw_fd();
    [
        format!(
            "link add {here} mtu {mtu} address {SWITCH_MAC} type veth peer name e0 mtu {mtu} \
             address {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} netns /proc/{}/fd/{there}",
            own_process()
        ),
        format!("link set {here} up"),
    ]
}

/// This process's number in the mounted /proc, which differs in a process namespace of its own.
fn own_process() -> String {
    std::fs::read_link("/proc/self").map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The configuration of a host: one route, one neighbour, its own addresses, and acceptance of everything that is
/// delivered to it.
fn settle(plan: &Plan, host: &HostPlan) -> Vec<String> {
    let everything = plan.cluster().everything();
    vec![
        "link set lo up".to_owned(),
        "link set e0 addrgenmode none".to_owned(),
        "link set e0 up".to_owned(),
        format!("addr add {}/128 dev lo", host.address),
        format!("route add local {} dev lo", host.prefix),
        format!("neigh add {SWITCH_ADDRESS} lladdr {SWITCH_MAC} dev e0 nud permanent"),
        format!("route add {everything} via {SWITCH_ADDRESS} dev e0"),
        format!("route add local {everything} dev lo table {ACCEPTED_TABLE}"),
        format!("rule add pref 5 iif e0 lookup {ACCEPTED_TABLE}"),
    ]
}

/// Passes commands to `ip`, in the namespace of the calling thread.
pub(super) fn configure(whom: &str, commands: &[String]) -> Result<(), SwitchError> {
    let failed = |cause: String| SwitchError::System {
        attempt: format!("configure the network of {whom} with `ip`"),
        cause,
        hint: "it takes iproute2 (Debian: `apt-get install iproute2`) and root, or a user namespace".to_owned(),
    };
    let mut child = Command::new("ip")
        .args(["-6", "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let text = commands.join("\n") + "\n";
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() || !matches!(written, Some(Ok(()))) {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ")));
    }
    Ok(())
}
