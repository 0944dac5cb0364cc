//! Lets nodes find each other that an engine started: `srun`, `mpirun`, `mpiexec`, or anything with a rendezvous.
//!
//! Each node gives its advertisement to the exchange of its engine, and gets those of all nodes. Every node computes
//! the same list of addresses from them.
//!
//! Promises: an engine is recognised from the environment alone, and is not called before the node joins. The waits end
//! after `start_seconds_max`, with a sentence that says what to do. The secret of the cluster travels only through an
//! exchange that the engine keeps to the job (PMI, PMIx); otherwise the nodes must have it already.
//!
//! It must never start or end a process, or decide anything about memory.

mod advertisement;
mod pmi;
mod pmi2;
mod pmix;
pub(crate) mod rendezvous;
pub mod slurm;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trellis_transport::Interface;

use self::advertisement::Advertisement;
use crate::config::{Config, Engine, Peers};
use crate::join::JoinError;
use crate::secret::Secret;

/// The variables of engines that a configuration looks at.
pub(crate) const VARIABLES: &[&str] = &[
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PMI_FD",
    "PMI_PORT",
    "PMI_ID",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
];

/// The engine whose environment this is, if it is that of one.
///
/// `mpirun` in an allocation of Slurm leaves the variables of Slurm in place, so those of `mpirun` take precedence.
pub(crate) fn recognise(variable: impl Fn(&str) -> Option<String>) -> Option<Engine> {
    let has = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    if has("PMIX_NAMESPACE") && has("PMIX_RANK") {
        return Some(Engine::Pmix);
    }
    if has("PMI_FD") || (has("PMI_PORT") && has("PMI_ID")) {
        return Some(Engine::Pmi);
    }
    match slurm::tasks_of_step(variable) {
        Some(2..) => Some(Engine::Slurm),
        _ => None,
    }
}

/// A node's contribution to the exchange.
struct Offer {
    /// The text of its [`Advertisement`].
    advertisement: String,
    /// The secret, which the first node adds.
    secret: Option<Secret>,
}

impl Offer {
    /// The text of a node. It has no space, line break or quotation mark, because PMI-1 carries none.
    fn of(&self, node: usize) -> String {
        match &self.secret {
            Some(secret) if node == 0 => format!("{};{}", self.advertisement, secret.to_hexadecimal()),
            _ => self.advertisement.clone(),
        }
    }
}

/// The result of an exchange: this node's number, and the texts of all nodes in the order of their numbers.
#[derive(Debug, PartialEq, Eq)]
struct Exchanged {
    node: usize,
    texts: Vec<String>,
}

/// Gives a node's text to all others and gets theirs.
type Exchange = fn(Offer, Instant) -> Result<Exchanged, String>;

/// A node's view of the job after it has met the other nodes.
pub(crate) struct Met {
    /// The listener at the address that the others know.
    pub(crate) listener: Option<TcpListener>,
    /// The socket for datagrams at the address that the others know.
    pub(crate) datagrams: Option<UdpSocket>,
    /// The secret of the cluster.
    pub(crate) secret: Secret,
}

/// Whether this process has used its engine's exchange, which serves each process once.
static HAS_MET: AtomicBool = AtomicBool::new(false);

/// Meets the other nodes of the job, and sets the number and the addresses in the configuration. `handed_over` is the
/// secret from a launcher, if there is one.
pub(crate) fn meet(config: &mut Config, handed_over: Option<Secret>) -> Result<Met, JoinError> {
    let name = name_of(config);
    let refused = |why: String| JoinError::Engine { engine: name.clone(), why };
    if HAS_MET.swap(true, Ordering::SeqCst) {
        return Err(refused("a process can join once; leave the cluster only when the program is done".to_owned()));
    }
    let until = Instant::now() + Duration::from_secs(config.start_seconds_max);
    let network = config.network.as_deref().map(Interface::in_network).transpose();
    let network = network.map_err(|why| refused(format!("{}: {why}", config.place_of("network"))))?;
    let address = match &network {
        Some(interface) => interface.address,
        // A socket for datagrams serves only one kind of address.
        None if config.link.has_datagrams() => Ipv4Addr::UNSPECIFIED.into(),
        None => everywhere(),
    };
    let (listener, datagrams, port) =
        listen(config, address).map_err(|why| refused(format!("no port of {address} is free: {why}")))?;
    let mine = match (&config.advertise, &network) {
        (Some(name), _) => Advertisement::of_name(port, name.clone()),
        (None, Some(interface)) => Advertisement::of_interface(port, interface),
        (None, None) => Advertisement::of_this_host(port, address.is_ipv6()),
    };
    let mine = mine.map_err(&refused)?;
    let of_file = || config.secret_file.as_deref().map(Secret::from_file).transpose();
    let given = handed_over.map_or_else(of_file, |secret| Ok(Some(secret)))?;
    let is_over_port = matches!(config.peers, Peers::Engine(Engine::Pmi | Engine::Pmi2)) && pmi::is_over_port();
    let exchange: Option<Exchange> = match config.peers {
        Peers::Engine(Engine::Pmix) => Some(pmix::exchange),
        Peers::Engine(Engine::Pmi) => Some(pmi::exchange),
        Peers::Engine(Engine::Pmi2) => Some(pmi::exchange_2),
        _ => None,
    };
    let is_kept_to_the_job = exchange.is_some() && !is_over_port;
    let own = match given {
        None if !is_kept_to_the_job => Some(Secret::of_this_user()?),
        given => given,
    };
    let advertisement = mine.to_string();
    let exchanged = match (exchange, &own) {
        (Some(exchange), _) => {
            let secret = if own.is_none() { Some(Secret::random()?) } else { None };
            exchange(Offer { advertisement, secret }, until)
        }
        (None, Some(secret)) => {
            rendezvous::Place::of(config).and_then(|place| rendezvous::exchange(&place, secret, &advertisement, until))
        }
        (None, None) => unreachable!("without an exchange of the job alone a node has its secret"),
    };
    let exchanged = exchanged.map_err(&refused)?;
    let all = exchanged.texts.iter().enumerate().map(|(node, text)| {
        Advertisement::parse(text).ok_or_else(|| {
            refused(format!("node {node} says what this version does not understand; use one version on every node"))
        })
    });
    let all = all.collect::<Result<Vec<_>, _>>()?;
    let secret = match (own, &all[0].1) {
        (Some(secret), None) => secret,
        (Some(_), Some(_)) => {
            let why = "this node has a secret_file and node 0 has none; give every node the same configuration";
            return Err(refused(why.to_owned()));
        }
        (None, Some(secret)) => Secret::from_hexadecimal(secret)?,
        (None, None) => {
            let why = "node 0 has a secret_file and this node has none; give every node the same configuration";
            return Err(refused(why.to_owned()));
        }
    };
    let all: Vec<Advertisement> = all.into_iter().map(|(advertisement, _)| advertisement).collect();
    let addresses = advertisement::addresses(&all, config.network.is_some()).map_err(&refused)?;
    config.place(exchanged.node, addresses)?;
    Ok(Met { listener, datagrams, secret })
}

/// The engine, for sentences.
fn name_of(config: &Config) -> String {
    match &config.peers {
        Peers::Rendezvous(place) => format!("rendezvous {}", place.address),
        Peers::Engine(engine) => format!("engine {engine}"),
        Peers::Listed(_) | Peers::Join(_) => unreachable!("nodes that are listed, or join, do not meet"),
    }
}

/// The unspecified address of IPv6, which takes connections of both kinds, or that of IPv4 if the system separates them
/// (`bindv6only` in ip-sysctl). It is not known yet which address the others will use.
pub fn everywhere() -> IpAddr {
    let bound_apart = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    if bound_apart.is_ok_and(|flag| flag.trim() == "0") && TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok() {
        return Ipv6Addr::UNSPECIFIED.into();
    }
    Ipv4Addr::UNSPECIFIED.into()
}

fn listen(config: &Config, address: IpAddr) -> std::io::Result<(Option<TcpListener>, Option<UdpSocket>, u16)> {
    if config.link.has_datagrams() {
        let socket = config.ports.bind(|port| UdpSocket::bind((address, port)))?;
        let port = socket.local_addr()?.port();
        return Ok((None, Some(socket), port));
    }
    let listener = config.ports.bind(|port| TcpListener::bind((address, port)))?;
    let port = listener.local_addr()?.port();
    Ok((Some(listener), None, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recognised(variables: &[(&str, &str)]) -> Option<Engine> {
        recognise(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn each_engine_is_recognised_by_what_it_sets() {
        assert_eq!(recognised(&[]), None);
        assert_eq!(recognised(&[("PMI_FD", "5"), ("PMI_RANK", "0")]), Some(Engine::Pmi));
        assert_eq!(recognised(&[("PMI_PORT", "h:7"), ("PMI_ID", "1")]), Some(Engine::Pmi));
        let task = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert_eq!(recognised(&task), Some(Engine::Slurm));
        let mpirun_there = [task.as_slice(), &[("PMIX_NAMESPACE", "n"), ("PMIX_RANK", "0")]].concat();
        assert_eq!(recognised(&mpirun_there), Some(Engine::Pmix));
    }

    #[test]
    fn a_batch_script_and_a_single_task_are_no_cluster() {
        let script = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert_eq!(recognised(&script), None);
        assert_eq!(recognised(&[script.as_slice(), &[("SLURM_STEP_ID", "4294967291")]].concat()), None);
        let single = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        assert_eq!(recognised(&single), None);
    }

    #[test]
    fn only_the_first_node_sends_the_secret() {
        let offer = Offer { advertisement: "1;h;7;".to_owned(), secret: Some(Secret::random().expect("random")) };
        assert_eq!(offer.of(1), "1;h;7;");
        assert_eq!(offer.of(0).len(), "1;h;7;;".len() + 64);
    }
}
