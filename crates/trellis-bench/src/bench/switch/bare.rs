//! The yardstick: two hosts of a lab that are also joined by a bare pair of interfaces, without a switch.
//!
//! The pair has addresses of a cluster of its own, so that its traffic cannot go through the switch by mistake.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

use trellis::remote::HostPrefix;
use trellis_switch::Cluster;
use trellis_switch::lab::{Host, Lab};

use super::{inside, served};
use trellis_command::exit::{self, Failure};

/// The name of the interface at both ends; `e0` leads to the switch.
const INTERFACE: &str = "e1";
/// The table of the addresses that a host accepts from the pair.
const ACCEPTED_TABLE: u32 = 101;
/// The next hop, the same for both ends.
const NEIGHBOUR: &str = "fe80::bc";

/// Joins two hosts; returns the addresses of both over the pair.
pub(crate) fn join(lab: &Lab, client: &Host, server: &Host) -> Result<[HostPrefix; 2], Failure> {
    let cluster = Cluster::new(lab.cluster().number() ^ 1);
    let macs = ["02:bc:00:00:00:01", "02:bc:00:00:00:02"];
    let mtu = lab.plan().mtu_bytes;
    // This process's number in the host's /proc, which may differ from those in its process namespace and elsewhere.
    let own = client.run(|| std::fs::read_link("/proc/self")).map_err(|error| inside::failure(&error))?;
    let own = own.map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))?;
    let there = format!("/proc/{}/fd/{}", own.display(), server.as_fd().as_raw_fd());
    let [near, far] = macs;
    let pair = format!(
        "link add {INTERFACE} mtu {mtu} address {near} type veth peer name {INTERFACE} mtu {mtu} address {far} netns {there}"
    );
    configure(client, vec![pair])?;
    let ends = [client, server];
    for (place, host) in ends.iter().enumerate() {
        let own = served::prefix(cluster, host.plan().number);
        let others = cluster.everything();
        configure(
            host,
            vec![
                format!("link set {INTERFACE} addrgenmode none"),
                format!("link set {INTERFACE} up"),
                format!("addr add {}/128 dev lo", cluster.address(host.plan().number, 0, 0, 1)),
                format!("route add local {own} dev lo"),
                format!("neigh add {NEIGHBOUR} lladdr {} dev {INTERFACE} nud permanent", macs[1 - place]),
                format!("route add {others} via {NEIGHBOUR} dev {INTERFACE}"),
                format!("route add local {others} dev lo table {ACCEPTED_TABLE}"),
                format!("rule add pref 4 iif {INTERFACE} lookup {ACCEPTED_TABLE}"),
            ],
        )?;
    }
    Ok(ends.map(|host| served::prefix(cluster, host.plan().number)))
}

/// Passes commands to `ip` in a host.
fn configure(host: &Host, commands: Vec<String>) -> Result<(), Failure> {
    let failed = |what: String| {
        let name = &host.plan().name;
        Failure::new(exit::SYSTEM, format!("cannot join host {name} to another one with `ip`: {what}"))
    };
    let run = || {
        let mut command = Command::new("ip");
        command.args(["-6", "-batch", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let text = commands.join("\n") + "\n";
        child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(text.as_bytes()))?;
        child.wait_with_output()
    };
    let output = host.run(run).map_err(|error| inside::failure(&error))?;
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ")))
}
