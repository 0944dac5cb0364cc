//! A lab: hosts that are namespaces of this machine, connected by a switch.
//!
//! # Contract
//!
//! - Everything is created in namespaces of its own: no interface, route or name appears in the namespace from which the
//!   lab was made, and two labs never interact. Nothing has a name in the file system; when the process that made a lab
//!   ends, in whatever way, the kernel removes all of it.
//! - Every host has one interface, `e0`, one route to the whole cluster with one neighbour that never changes, and all
//!   addresses of its own prefix. It accepts what the switch delivers to it, for any address; what it sends to another
//!   host's address leaves through the switch.
//! - Every host has its own host name, its own mounts, its own `/tmp` and `/dev/shm`, and its own `/etc`, where `hosts` knows
//!   all of them: what is mounted, or which user is added, in one host is in no other. Its `/tmp` has only the entries in
//!   which the lab's program lies and runs, if they are there. It has the machine's other files.
//! - After [`Lab::begin`], every host has its own numbers of processes, and everything that runs in it ends with its first
//!   process.
//! - The switch knows the prefix of every host from the start, and sends requests to *anywhere* to the first server.
//!
//! It must never change the namespaces of the calling thread: what has to happen elsewhere happens on threads that end.
//! ([`alone`] and the functions of [`space`] are for processes that want to be moved, and say so.)

mod alone;
mod namespace;
mod plan;
pub mod space;
pub(crate) mod wiring;

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::process::Command;
use std::sync::Arc;

use crate::address::{Cluster, Prefix};
use crate::control::{self, PortDescription};
use crate::entries::{Port, Route};
use crate::error::SwitchError;
use crate::switch::Switch;
use crate::switches::{self, Wiring};
use crate::sys;
use namespace::{Machine, Network, Processes};

pub use alone::alone;
pub use plan::{HOSTS_MAX, HostPlan, Plan, Role};

/// A host of a lab.
pub struct Host {
    plan: HostPlan,
    side: u32,
    network: Network,
    machine: Machine,
    processes: Option<Processes>,
}

impl Host {
    /// Its parameters.
    #[must_use]
    pub fn plan(&self) -> &HostPlan {
        &self.plan
    }

    /// Its side of a partition; 0 if there is none.
    #[must_use]
    pub fn side(&self) -> u32 {
        self.side
    }

    /// The numbers of its namespaces' descriptors in this process: its network, its name, its mounts, its processes. `None`
    /// before [`Lab::begin`].
    #[must_use]
    pub fn descriptors(&self) -> Option<[RawFd; 4]> {
        let [name, mounts] = self.machine.descriptors();
        let processes = self.processes.as_ref()?.as_fd();
        Some([self.network.as_fd(), name, mounts, processes].map(|descriptor| descriptor.as_raw_fd()))
    }

    /// Runs a function in the host, on a thread of its own. What it opens remains in the host, and so do the processes that
    /// it starts. After [`Lab::begin`] it must start no thread.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`] if the thread cannot be created or moved.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, SwitchError> {
        self.network.run(|| {
            self.machine.enter()?;
            self.processes.as_ref().map_or(Ok(()), Processes::enter)?;
            Ok(work())
        })?
    }

    /// A socket for UDP in the host, which may be bound to any address and port, including unassigned ones.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    pub fn socket(&self, address: Ipv6Addr, port: u16) -> Result<UdpSocket, SwitchError> {
        let bound = self.run(|| sys::bind_freely(SocketAddrV6::new(address, port, 0, 0)))?;
        bound
            .map_err(|error| SwitchError::system(format!("bind [{address}]:{port} in host {}", self.plan.name), &error))
    }
}

impl AsFd for Host {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.network.as_fd()
    }
}

/// Starts the switch between hosts, with their prefixes.
fn started(plan: &Plan, middle: &Network, hosts: &[Host]) -> Result<Arc<dyn Switch>, SwitchError> {
    let cluster = plan.cluster();
    let ports: Vec<Port> = hosts.iter().map(|host| wiring::port(&host.plan)).collect();
    let wires = Wiring { cluster, ports, redirects_max: plan.redirects_max, attach: plan.attach };
    let switch = middle.run(|| switches::open(&plan.switch, &wires))??;
    for host in hosts {
        let route = Route { port: host.plan.port, is_memory: host.plan.role == Role::Server };
        switch.set_prefix(Prefix::host(cluster, host.plan.number), route)?;
    }
    if let Some(first) = hosts.iter().find(|host| host.plan.role == Role::Server) {
        switch.set_prefix(Prefix::host(cluster, 0), Route { port: first.plan.port, is_memory: true })?;
    }
    Ok(switch.into())
}

/// Hosts and their switch; the module's text is the contract.
pub struct Lab {
    plan: Plan,
    // Dropped before the namespaces, while its interfaces still exist.
    switch: Option<Arc<dyn Switch>>,
    control: Arc<control::ControlServer>,
    hosts: Vec<Host>,
    /// How often the switch was started.
    starts: u64,
    middle: Network,
}

impl Lab {
    /// Creates the lab.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Lab`] for an impossible plan, [`SwitchError::System`] for what the system refuses, and any error of
    /// the switch.
    pub fn up(plan: &Plan) -> Result<Lab, SwitchError> {
        plan.check()?;
        let middle = Network::new()?;
        let mut hosts = Vec::new();
        let names = plan.host_names();
        for host in plan.hosts() {
            let files = [("hosts", names.clone()), ("hostname", host.name.clone() + "\n")];
            let machine = Machine::new(&host.name, &files)?;
            hosts.push(Host { plan: host, side: 0, network: Network::new()?, machine, processes: None });
        }
        wiring::join(plan, &middle, &hosts)?;
        let switch = started(plan, &middle, &hosts)?;
        let port = |host: &Host| PortDescription {
            port: host.plan.port,
            host: host.plan.number,
            is_memory: host.plan.role == Role::Server,
        };
        let refusals = trellis_output::refusals::Refusals::new("switch", None);
        let control = control::ControlServer::new(Arc::clone(&switch), hosts.iter().map(port).collect(), 1, refusals);
        Ok(Lab { plan: plan.clone(), switch: Some(switch), control, hosts, starts: 1, middle })
    }

    /// Starts the first process of each host's own process namespace: it calls [`space::begin`], then writes a line to its
    /// standard output, and never ends.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`] if the kernel refuses the namespaces, or the command ends before its line.
    pub fn begin(&mut self, first: impl Fn() -> Command) -> Result<(), SwitchError> {
        for host in &mut self.hosts {
            let first = first();
            let begun = host.run(|| Processes::begin(first))??;
            host.processes = Some(begun);
        }
        Ok(())
    }

    /// Restarts the switch: it knows the prefixes of the hosts, and nothing else that it was sent before. No packet
    /// passes meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Lab::up`]; there is no switch then until a later call succeeds. Two switches at once are impossible, because
    /// they would need the same interfaces.
    pub fn restart_switch(&mut self) -> Result<(), SwitchError> {
        self.control.stop();
        self.switch = None;
        let switch = started(&self.plan, &self.middle, &self.hosts)?;
        self.starts += 1;
        self.control.go_on(Arc::clone(&switch), self.starts);
        self.hosts.iter_mut().for_each(|host| host.side = 0);
        self.switch = Some(switch);
        Ok(())
    }

    /// The plan from which it was made.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The cluster of its hosts' addresses.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        self.plan.cluster()
    }

    /// Its switch.
    ///
    /// # Panics
    ///
    /// After a failed [`Lab::restart_switch`]; [`Lab::running`] returns an error instead.
    #[must_use]
    pub fn switch(&self) -> &dyn Switch {
        self.switch.as_deref().expect("a lab whose switch did not start again is not used")
    }

    /// Its switch, if it runs.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Lab`] if it was not restarted.
    pub fn running(&self) -> Result<&dyn Switch, SwitchError> {
        let what = "its switch did not start again; `trellis lab restart` tries once more";
        self.switch.as_deref().ok_or_else(|| self.refused(what.to_owned()))
    }

    /// Its switch, for processes that use it over a socket.
    #[must_use]
    pub fn control(&self) -> &Arc<control::ControlServer> {
        &self.control
    }

    /// Its hosts, clients first.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host with this name.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Lab`] if there is none.
    pub fn host(&self, name: &str) -> Result<&Host, SwitchError> {
        self.hosts.iter().find(|host| host.plan.name == name).ok_or_else(|| self.no_host(name))
    }

    /// Lets hosts reach only those that are named in the same group; those that are not named form a group, too. Without
    /// groups, every host reaches every other.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Lab`] for a host that does not exist or is named twice; any error of the switch.
    pub fn partition(&mut self, parts: &[Vec<String>]) -> Result<(), SwitchError> {
        let mut sides = vec![0; self.hosts.len()];
        for (side, name) in parts.iter().zip(1..).flat_map(|(part, side)| part.iter().map(move |name| (side, name))) {
            let place = self.hosts.iter().position(|host| host.plan.name == *name);
            let place = place.ok_or_else(|| self.no_host(name))?;
            if std::mem::replace(&mut sides[place], side) != 0 {
                return Err(self.refused(format!("host {name} is named twice; a host is on one side of a partition")));
            }
        }
        for (place, side) in sides.into_iter().enumerate() {
            self.running()?.set_side(self.hosts[place].plan.port, side)?;
            self.hosts[place].side = side;
        }
        Ok(())
    }

    fn no_host(&self, name: &str) -> SwitchError {
        let names: Vec<&str> = self.hosts.iter().map(|host| host.plan.name.as_str()).collect();
        self.refused(format!("there is no host {name}; there are {}", names.join(", ")))
    }

    fn refused(&self, what: String) -> SwitchError {
        SwitchError::Lab { lab: self.plan.name.clone(), what }
    }
}
