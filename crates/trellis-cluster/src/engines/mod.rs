//! How nodes find each other that an engine started: `srun`, `mpirun`, `mpiexec`, or anything with a rendezvous.
//!
//! Each node says where it can be reached, and gets what all others said, through the exchange of its engine. From
//! these texts every node computes the same list of addresses.
//!
//! Promises: an engine is recognised from the environment alone, and nothing is asked of it before the node joins. The
//! waits end after `start_seconds_max`, with a sentence that says what to do. The secret of the cluster travels only
//! through an exchange that the engine keeps to the job (PMI, PMIx); otherwise the nodes must have it already.
//!
//! It must never start or end a process, and it decides nothing about memory.

mod advertisement;
mod pmi;
mod pmix;
pub(crate) mod rendezvous;
pub mod slurm;

use std::net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use self::advertisement::Advertisement;
use crate::config::{Config, Engine, LinkKind};
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

/// The engine whose environment this is.
///
/// `mpirun` in an allocation of Slurm leaves the variables of Slurm in place, so its own ones count first.
pub(crate) fn recognise(variable: impl Fn(&str) -> Option<String>) -> Engine {
    let has = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    if has("PMIX_NAMESPACE") && has("PMIX_RANK") {
        return Engine::Pmix;
    }
    if has("PMI_FD") || (has("PMI_PORT") && has("PMI_ID")) {
        return Engine::Pmi;
    }
    // A batch script has a number of tasks, and is not one of them: its step is none, or one of the last numbers.
    let step = variable("SLURM_STEP_ID").and_then(|step| step.parse().ok());
    let is_task = step.is_some_and(|step: u32| step < slurm::FIRST_RESERVED_STEP) && has("SLURM_PROCID");
    match variable("SLURM_STEP_NUM_TASKS").and_then(|tasks| tasks.parse().ok()) {
        Some(2u32..) if is_task => Engine::Slurm,
        _ => Engine::None,
    }
}

/// What a node gives to the exchange.
struct Offer {
    /// Where it can be reached, as text.
    advertisement: String,
    /// The secret, which the first node adds.
    secret: Option<Secret>,
}

impl Offer {
    /// The text of a node. Texts have no space, line break or quotation mark, because PMI-1 carries none.
    fn of(&self, node: usize) -> String {
        match &self.secret {
            Some(secret) if node == 0 => format!("{};{}", self.advertisement, secret.to_hexadecimal()),
            _ => self.advertisement.clone(),
        }
    }
}

/// What an exchange gave: this node's number, and the texts of all nodes in the order of their numbers.
#[derive(Debug, PartialEq, Eq)]
struct Exchanged {
    node: usize,
    texts: Vec<String>,
}

/// What a node has after it met the others.
pub(crate) struct Met {
    /// Listens where the others were told.
    pub(crate) listener: Option<TcpListener>,
    /// The same for datagrams.
    pub(crate) datagrams: Option<UdpSocket>,
    /// The secret of the cluster.
    pub(crate) secret: Secret,
}

/// Whether this process has used its engine's exchange, which serves each process once.
static HAS_MET: AtomicBool = AtomicBool::new(false);

/// Whether the configuration leaves it to an engine who the nodes are.
pub(crate) fn is_wanted(config: &Config) -> bool {
    config.is_placed_by_engine() && config.nodes.is_empty() && config.join.is_none()
}

/// Meets the other nodes of the job, and puts number and addresses into the configuration. A launcher may have handed
/// the secret over.
pub(crate) fn meet(config: &mut Config, handed_over: Option<Secret>) -> Result<Met, JoinError> {
    let name = name_of(config);
    let refused = |why: String| JoinError::Engine { engine: name.clone(), why };
    if HAS_MET.swap(true, Ordering::SeqCst) {
        return Err(refused("a process can join once; leave the cluster only when the program is done".to_owned()));
    }
    let until = Instant::now() + Duration::from_secs(config.start_seconds_max);
    let (listener, datagrams, port) = listen(config).map_err(|why| refused(format!("no port is free: {why}")))?;
    let mine = Advertisement::of_this_host(port, config.network.as_deref()).map_err(|why| match &config.network {
        Some(network) => refused(format!("{} {network}: {why}", config.place_of("network"))),
        None => refused(why),
    })?;
    let of_file = || config.secret_file.as_deref().map(Secret::from_file).transpose();
    let given = handed_over.map_or_else(of_file, |secret| Ok(Some(secret)))?;
    let is_secret_sent = given.is_none() && config.rendezvous.is_none() && config.engine != Engine::Slurm;
    let offer =
        Offer { advertisement: mine.to_string(), secret: if is_secret_sent { Some(Secret::random()?) } else { None } };
    let (exchanged, own) = if config.rendezvous.is_some() || config.engine == Engine::Slurm {
        let secret = given.map_or_else(Secret::of_this_user, Ok)?;
        let place = rendezvous::Place::of(config).map_err(&refused)?;
        (rendezvous::exchange(&place, &secret, &offer.advertisement, until).map_err(&refused)?, Some(secret))
    } else {
        let exchange = if config.engine == Engine::Pmix { pmix::exchange } else { pmi::exchange };
        (exchange(offer, until).map_err(&refused)?, given)
    };
    let all = exchanged.texts.iter().enumerate().map(|(node, text)| {
        Advertisement::parse(text).ok_or_else(|| {
            refused(format!("node {node} says what this version does not understand; use one version on every node"))
        })
    });
    let all = all.collect::<Result<Vec<_>, _>>()?;
    let secret = match (own, &all[0].1) {
        (Some(secret), _) => secret,
        (None, Some(secret)) => Secret::from_hexadecimal(secret)?,
        (None, None) => {
            let why = "node 0 has a secret_file and this node has none; give every node the same configuration";
            return Err(refused(why.to_owned()));
        }
    };
    let all: Vec<Advertisement> = all.into_iter().map(|(advertisement, _)| advertisement).collect();
    let addresses = advertisement::addresses(&all).map_err(&refused)?;
    config.place(exchanged.node, addresses)?;
    Ok(Met { listener, datagrams, secret })
}

/// The engine, for sentences.
fn name_of(config: &Config) -> String {
    match (&config.rendezvous, config.engine) {
        (Some(place), _) => format!("rendezvous {place}"),
        (None, engine) => format!("engine {engine}"),
    }
}

/// A socket on every address of this host, because it is not known yet by which one the others come.
fn listen(config: &Config) -> std::io::Result<(Option<TcpListener>, Option<UdpSocket>, u16)> {
    let all = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let all_of_ipv4 = SocketAddr::from(([0, 0, 0, 0], 0));
    if config.link == LinkKind::Udp {
        let socket = UdpSocket::bind(all_of_ipv4)?;
        let port = socket.local_addr()?.port();
        return Ok((None, Some(socket), port));
    }
    let listener = TcpListener::bind(all).or_else(|_| TcpListener::bind(all_of_ipv4))?;
    let port = listener.local_addr()?.port();
    Ok((Some(listener), None, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recognised(variables: &[(&str, &str)]) -> Engine {
        recognise(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn each_engine_is_recognised_by_what_it_sets() {
        assert_eq!(recognised(&[]), Engine::None);
        assert_eq!(recognised(&[("PMI_FD", "5"), ("PMI_RANK", "0")]), Engine::Pmi);
        assert_eq!(recognised(&[("PMI_PORT", "h:7"), ("PMI_ID", "1")]), Engine::Pmi);
        let task = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert_eq!(recognised(&task), Engine::Slurm);
        let mpirun_there = [task.as_slice(), &[("PMIX_NAMESPACE", "n"), ("PMIX_RANK", "0")]].concat();
        assert_eq!(recognised(&mpirun_there), Engine::Pmix);
    }

    #[test]
    fn a_batch_script_and_a_single_task_are_no_cluster() {
        let script = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert_eq!(recognised(&script), Engine::None);
        assert_eq!(recognised(&[script.as_slice(), &[("SLURM_STEP_ID", "4294967291")]].concat()), Engine::None);
        let single = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        assert_eq!(recognised(&single), Engine::None);
    }

    #[test]
    fn only_the_first_node_sends_the_secret() {
        let offer = Offer { advertisement: "1;h;7;".to_owned(), secret: Some(Secret::random().expect("random")) };
        assert_eq!(offer.of(1), "1;h;7;");
        assert_eq!(offer.of(0).len(), "1;h;7;;".len() + 64);
    }
}
