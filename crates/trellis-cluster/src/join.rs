//! Start-up: region, secret, link, service thread, catcher, peers, in that order. A process that joins a running
//! cluster asks that cluster for settings before all this.
//!
//! Promises: if something is missing, the error is one sentence, and nothing that was started outlives it. Nodes may
//! start in any order; a node waits for its peers and names those that it waits for.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_cluster_protocol::NodeId;
use trellis_memory::{Catcher, Parts, RegionOptions};
use trellis_transport::links::tcp::question::{self, AskError};
use trellis_transport::links::{in_process, shm, tcp, udp};
use trellis_transport::{Faults, Link, Manner, Multicast, SharedMemory, ShmOptions, TcpOptions, UdpOptions};

use crate::config::{self, Config, ConfigError, Peers, Start};
use crate::engines;
use crate::launch::{Activity, Inherited, LaunchError, StatusPage};
use crate::runtime::{Node, NodeFaults, start_service};
use crate::secret::{Secret, SecretError};
use crate::waits::Wait;

/// Why a node could not join its cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The memory of the region is not available.
    #[error("{place}: {source}")]
    Region {
        /// The place of the value that was refused.
        place: String,
        /// Why the region cannot be mapped.
        source: trellis_memory::RegionError,
    },
    /// No catcher works here.
    #[error("accesses cannot be caught: {0}")]
    Catcher(String),
    /// Something that the launcher handed over cannot be used.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// There is no valid secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The link could not be started.
    #[error("{place}: {source}")]
    Link {
        /// The place where the addresses were given.
        place: String,
        /// Why the link did not start.
        source: trellis_transport::StartError,
    },
    /// The link `fabric` could not be started.
    #[cfg(feature = "fabric")]
    #[error("{place}: {source}")]
    Fabric {
        /// The place where the link was given.
        place: String,
        /// Why the link did not start.
        source: trellis_transport::FabricError,
    },
    /// The system refused a call.
    #[error("{what}: {source}")]
    System {
        /// The purpose of the call.
        what: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The nodes of the job did not find each other through their engine.
    #[error("{engine}: {why}")]
    Engine {
        /// The engine, or the address of the rendezvous.
        engine: String,
        /// What went wrong, and what to do.
        why: String,
    },
    /// A running cluster does not admit this process.
    #[error("cannot join the cluster at {address}: {why}")]
    Refused {
        /// The address that was asked.
        address: String,
        /// The sentence of the refusal, or why there was no answer.
        why: String,
    },
    /// Peers did not come, or the cluster failed meanwhile.
    #[error("{0}")]
    Peers(String),
    /// The region lies at memory servers, which do not provide it.
    #[error("{0}")]
    Leases(String),
}

type Joined = (Arc<Node>, JoinHandle<()>);

pub(crate) fn join(mut config: Config, parts: &Parts) -> Result<Joined, JoinError> {
    let Inherited { mut listener, mut datagrams, mut secret, status } = Inherited::take()?;
    // An earlier node may have been killed.
    say_not_ready(&config).map_err(|source| JoinError::System { what: "ready_file cannot be removed", source })?;
    if let Peers::Join(address) = config.peers.clone() {
        return join_running(config, address, listener, secret, status);
    }
    if config.is_placed_by_engine() {
        let met = engines::meet(&mut config, secret)?;
        (listener, datagrams, secret) = (met.listener, met.datagrams, Some(met.secret));
    }
    let region = make_region(&config, parts, status.is_some())?;
    let this = ThisNode::default();
    let link: Box<dyn Link> = if config.capacity() == 1 {
        let alone =
            in_process::mesh(1).map_err(|source| JoinError::System { what: "descriptors cannot be made", source });
        Box::new(alone?.pop().expect("a mesh of one has one link"))
    } else {
        let secret = Secret::choose(&config, secret)?;
        let mut addresses = config.nodes().to_vec();
        // The addresses of nodes that may join are not known yet.
        addresses.resize(config.capacity(), String::new());
        make_link(&config, addresses, listener, datagrams, &secret, &this)?
    };
    start(config, region, link, status, &this, &|| true)
}

/// Joins a running cluster: asks for the settings that all nodes share, then for a number, and meets the present nodes.
fn join_running(
    mut config: Config,
    address: String,
    listener: Option<TcpListener>,
    secret: Option<Secret>,
    status: Option<StatusPage>,
) -> Result<Joined, JoinError> {
    let secret = Secret::choose(&config, secret)?;
    let contact = Contact { address, secret: &secret, until: timeout(&config), is_known: false };
    let (settings, local) = contact.read(None, "configuration")?;
    config.take_from_cluster(&settings).map_err(|why| contact.refused(why))?;
    if config.manager >= config.nodes().len() {
        return Err(contact.refused("it does not say who takes others in".to_owned()));
    }
    // If this machine lacks something, that must be known before the others hear of this process.
    let region = make_region(&config, &Parts::default(), status.is_some())?;
    let listener = match listener {
        Some(listener) => listener,
        None => {
            TcpListener::bind((local, 0)).map_err(|source| JoinError::System { what: "no port is free", source })?
        }
    };
    let own = listener.local_addr().map_err(|source| JoinError::System { what: "a socket has no address", source })?;
    let coordinator = Contact { address: config.nodes()[config.manager].clone(), is_known: true, ..contact };
    let number = coordinator.ask(Some(config.manager), &format!("place {own}"))?.0;
    config.node = number.parse().map_err(|_| coordinator.refused(format!("it gave the number `{number}`")))?;
    if config.node < config.node_count() || config.node >= config.capacity() {
        return Err(coordinator.refused(format!("it gave the number {number}, which no joining process can have")));
    }
    let (there, _) = coordinator.read(Some(config.manager), &format!("nodes {number}"))?;
    let mut addresses = config.nodes().to_vec();
    addresses.resize(config.capacity(), String::new());
    for (node, address) in there.lines().filter_map(|line| line.split_once('=')) {
        let place = node.parse().ok().and_then(|node: usize| addresses.get_mut(node));
        *place.ok_or_else(|| coordinator.refused(format!("it speaks of a node {node}")))? = address.to_owned();
    }
    addresses[config.node] = own.to_string();
    let this = ThisNode::default();
    let link = make_link(&config, addresses, Some(listener), None, &secret, &this)?;
    let still_there = || coordinator.is_open();
    start(config, region, link, status, &this, &still_there)
}

/// When a wait at the start ends.
fn timeout(config: &Config) -> Instant {
    Instant::now() + Duration::from_secs(config.start_seconds_max)
}

/// The address at which a process that is not yet a node asks.
struct Contact<'a> {
    address: String,
    secret: &'a Secret,
    until: Instant,
    /// Whether a node of this cluster has answered: the secret is then the right one.
    is_known: bool,
}

impl Contact<'_> {
    /// Reads a text that may be longer than one answer.
    fn read(&self, node: Option<usize>, question: &str) -> Result<(String, IpAddr), JoinError> {
        let mut text = Vec::new();
        loop {
            let (piece, local) = self.ask_bytes(node, &format!("{question} {}", text.len()))?;
            text.extend_from_slice(&piece);
            if piece.len() < ANSWER_BYTES_MAX {
                return Ok((String::from_utf8_lossy(&text).into_owned(), local));
            }
        }
    }

    fn ask(&self, node: Option<usize>, question: &str) -> Result<(String, IpAddr), JoinError> {
        let (answer, local) = self.ask_bytes(node, question)?;
        Ok((String::from_utf8_lossy(&answer).into_owned(), local))
    }

    /// Whether a node still listens here. Only for an address that has answered this process before.
    fn is_open(&self) -> bool {
        let asked = question::ask(&self.address, None, self.secret.bytes(), b"configuration 0", LOOK.time());
        !matches!(asked, Err(AskError::Unreachable { source, .. }) if source.kind() == ErrorKind::ConnectionRefused)
    }

    fn ask_bytes(&self, node: Option<usize>, question: &str) -> Result<(Vec<u8>, IpAddr), JoinError> {
        let mut silences = 0;
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            match question::ask(&self.address, node, self.secret.bytes(), question.as_bytes(), left) {
                Ok(answered) => return Ok((answered.text, answered.local)),
                // The node will be ready in a moment, so this process asks again, as a node dials again that finds no
                // listener.
                Err(AskError::Refused { why }) if why == NOT_READY && !left.is_zero() => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                // A node that ends hangs up, as does a node with another secret. A moment later, an ended node does not
                // listen.
                Err(AskError::Silent { .. }) if silences < LOOKS && !left.is_zero() => {
                    silences += 1;
                    std::thread::sleep(BETWEEN_LOOKS);
                }
                Err(AskError::Unreachable { source, .. })
                    if source.kind() == ErrorKind::ConnectionRefused && (silences > 0 || self.is_known) =>
                {
                    return Err(self.refused("the cluster has ended; nobody listens there any more".to_owned()));
                }
                Err(AskError::Unreachable { source, .. }) => {
                    return Err(self.refused(format!("it cannot be reached ({source}); is it still running?")));
                }
                Err(AskError::Silent { .. }) if self.is_known => {
                    return Err(self.refused("it does not answer any more; the cluster may be ending".to_owned()));
                }
                Err(AskError::Silent { .. }) => {
                    return Err(self.refused(
                        "the process that listens there does not answer: it has another secret, or is not a node of a \
                         cluster; give --secret-file the file that `trellis run` named when it started the cluster"
                            .to_owned(),
                    ));
                }
                Err(error) => return Err(self.refused(error.to_string())),
            }
        }
    }

    fn refused(&self, why: String) -> JoinError {
        JoinError::Refused { address: self.address.clone(), why }
    }
}

/// The number of looks without an answer after which a process believes that the node it wants to join is gone.
const LOOKS: u32 = 3;
/// The time between two of these looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// How long one look may take. A node that does not answer at once may be busy, and counts as present.
pub(crate) const LOOK: Deadline = Deadline {
    who: "a process that joins a cluster",
    waits_for: "the coordinator, to say that it is still there",
    limit: Limit::seconds(1),
    then: "it counts as there, until `start_seconds_max` is over",
    tested: "crates/trellis-cluster/src/join.rs who_says_nothing_is_there_and_who_does_not_listen_is_not",
};
/// The maximum length of an answer to one question in bytes.
const ANSWER_BYTES_MAX: usize = trellis_transport::HELLO_BYTES_MAX;
/// The answer of a node that has only a link yet.
const NOT_READY: &str = "this node is still starting";

/// The link's view of its node, which is made after the link: a link answers questions and refuses peers before that.
type ThisNode = Arc<Meeting>;

#[derive(Default)]
struct Meeting {
    node: OnceLock<Weak<Node>>,
    /// The sentence about the peer that was refused last.
    refusal: Mutex<Option<String>>,
}

impl Meeting {
    fn node(&self) -> Option<Arc<Node>> {
        self.node.get().and_then(Weak::upgrade)
    }

    fn refusal(&self) -> MutexGuard<'_, Option<String>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers a process that knows the secret and wants to join. `meant_for_this` says whether the question was certainly
/// meant for this node, and is not a recording of a question to another node.
fn answer(config: &Config, node: Option<&Node>, meant_for_this: bool, question: &str) -> Result<Vec<u8>, String> {
    let mut words = question.split(' ');
    let piece = |text: String, from: Option<&str>| {
        let from = from.and_then(|from| from.parse().ok()).unwrap_or(0usize).min(text.len());
        text.as_bytes()[from..].iter().copied().take(ANSWER_BYTES_MAX).collect::<Vec<u8>>()
    };
    if config.joiners_max == 0 {
        return Err("it was started without places for others; start it with `trellis run --joiners-max N`".to_owned());
    }
    let node = || node.ok_or_else(|| NOT_READY.to_owned());
    match (words.next(), meant_for_this) {
        (Some("configuration"), _) => Ok(piece(config.text_for_joiners(), words.next())),
        (Some("place"), true) => {
            let address = words.next().unwrap_or_default();
            if node()?.has_changed_protocols() {
                return Err("its program has changed protocols while it ran; join before it does".to_owned());
            }
            node()?.reserve_place(address).map(|number| number.0.to_string().into_bytes())
        }
        (Some("nodes"), true) => {
            let number = words.next().and_then(|number| number.parse().ok()).ok_or("it asks for no number")?;
            let there = node()?.joined_before(NodeId(number));
            let lines: String = there.iter().map(|(node, address)| format!("{}={address}\n", node.0)).collect();
            Ok(piece(lines, words.next()))
        }
        _ => Err("this version does not understand the question; use the same release everywhere".to_owned()),
    }
}

pub(crate) fn join_over(config: Config, link: Box<dyn Link>) -> Result<Joined, JoinError> {
    let region = make_region(&config, &Parts::default(), true)?;
    start(config, region, link, None, &ThisNode::default(), &|| true)
}

fn make_region(config: &Config, parts: &Parts, is_launched: bool) -> Result<trellis_memory::Region, JoinError> {
    let requested = match config.catch {
        config::Catch::Auto if config.is_leased() => Some(Catcher::Handler),
        config::Catch::Auto => None,
        config::Catch::Signal => Some(Catcher::Signal),
        config::Catch::Handler => Some(Catcher::Handler),
        config::Catch::Mprotect => Some(Catcher::Mprotect),
    };
    let machine = trellis_memory::probe();
    let (catcher, why) = trellis_memory::choose(requested, &machine).map_err(JoinError::Catcher)?;
    let names_it = matches!(config.catch, config::Catch::Signal | config::Catch::Mprotect);
    if !machine.system_calls_work(catcher) && !names_it && (config.node == 0 || !is_launched) {
        // The user did not choose this catcher, and programs may notice it: a system call on shared memory may fail.
        trellis_output::lines::report(format_args!("node {}: catch = \"{catcher}\": {why}", config.node));
    }
    let reserve = match config.reserve {
        // The cache bounds the memory that is used here, whatever the region's size.
        _ if config.is_leased() => trellis_memory::Reserve::Overcommit,
        config::Reserve::Lazy => trellis_memory::Reserve::Lazy,
        config::Reserve::Full => trellis_memory::Reserve::Full,
        config::Reserve::Overcommit => trellis_memory::Reserve::Overcommit,
    };
    let options = RegionOptions {
        base_address: Some(config.base_address),
        bytes: config.region_bytes,
        page_bytes: config.page_bytes,
        catcher,
        reserve,
    };
    let region =
        trellis_memory::Region::create_in_parts(&options, parts).map_err(|source| refused_region(config, source))?;
    if reserve == trellis_memory::Reserve::Full && config.has_release_consistency() {
        // Beside its copy of a page, each node keeps the bytes of the last publication.
        region.reserve_twins().map_err(|source| refused_region(config, source))?;
    }
    Ok(region)
}

/// Checks whether `nodes` nodes of this machine can have the region of a configuration, and keeps no memory.
///
/// # Errors
///
/// The sentence with which a node would end.
pub fn try_region(config: &Config, nodes: usize) -> Result<(), String> {
    if config.reserve != config::Reserve::Full {
        return make_region(config, &Parts::default(), true).map(drop).map_err(|error| error.to_string());
    }
    // `reserve = "full"` would fill the whole region.
    let lazy = Config { reserve: config::Reserve::Lazy, ..config.clone() };
    make_region(&lazy, &Parts::default(), true).map_err(|error| error.to_string())?;
    trellis_memory::can_hold(config.region_bytes.saturating_mul(nodes)).map_err(|limit| {
        let place = config.place_of("reserve");
        format!("{place}: {nodes} nodes reserve their region in full, and {limit}; use fewer nodes there, or a smaller region")
    })
}

/// The error, with the key for which the memory was refused.
fn refused_region(config: &Config, source: trellis_memory::RegionError) -> JoinError {
    use trellis_memory::RegionError::{
        BaseTaken, BaseUnaligned, BaseUnreachable, Catcher, KernelPageSize, NotWholePages, PageSize,
    };
    let key = match source {
        PageSize { .. } | KernelPageSize { .. } | NotWholePages { .. } => "page_bytes",
        BaseUnaligned { .. } | BaseTaken { .. } | BaseUnreachable { .. } => "base_address",
        Catcher { .. } => "catch",
        _ => "region_bytes",
    };
    JoinError::Region { place: config.place_of(key), source }
}

/// The link that the configuration names.
fn make_link(
    config: &Config,
    addresses: Vec<String>,
    listener: Option<TcpListener>,
    datagrams: Option<UdpSocket>,
    secret: &Secret,
    this: &ThisNode,
) -> Result<Box<dyn Link>, JoinError> {
    let refused = |source| JoinError::Link { place: config.place_of("nodes"), source };
    let over_tcp = |listener| (tcp_options(config, addresses, listener, secret, this), answers(config, this));
    Ok(match &config.link {
        config::LinkKind::Udp { faults, multicast } => {
            Box::new(make_udp(config, (faults, *multicast), datagrams, secret, this)?)
        }
        config::LinkKind::Tcp => {
            let (options, answer) = over_tcp(listener);
            Box::new(tcp::Tcp::start_and_answer(options, answer).map_err(refused)?)
        }
        #[cfg(feature = "fabric")]
        config::LinkKind::Fabric { provider } => {
            let (tcp, answer) = over_tcp(listener);
            let options = trellis_transport::FabricOptions { tcp, provider: provider.clone().unwrap_or_default() };
            Box::new(trellis_transport::Fabric::start_and_answer(options, answer).map_err(|source| match source {
                trellis_transport::FabricError::Start(source) => refused(source),
                source => JoinError::Fabric { place: config.place_of("link"), source },
            })?)
        }
        #[cfg(not(feature = "fabric"))]
        config::LinkKind::Fabric { .. } => unreachable!("the configuration refuses it in builds without the feature"),
        config::LinkKind::Auto | config::LinkKind::Shm => {
            let manner = if config.link == config::LinkKind::Shm { Manner::Require } else { Manner::Prefer };
            let (tcp, answer) = over_tcp(listener);
            let options = ShmOptions { tcp, manner, host: None };
            Box::new(shm::Shm::start_and_answer(options, answer).map_err(refused)?)
        }
    })
}

fn tcp_options(
    config: &Config,
    addresses: Vec<String>,
    listener: Option<TcpListener>,
    secret: &Secret,
    this: &ThisNode,
) -> TcpOptions {
    let agreement = config.clone();
    TcpOptions {
        node: config.node,
        addresses,
        listener,
        secret: *secret.bytes(),
        security: security(config),
        hello: config.agreement().into_bytes(),
        admit: Box::new(move |_peer, hello| agreement.agree(&String::from_utf8_lossy(hello))),
        refused: refused(this),
    }
}

/// The answers to processes that ask to join.
fn answers(config: &Config, this: &ThisNode) -> tcp::Answer {
    let (config, this) = (config.clone(), Arc::clone(this));
    Box::new(move |meant_for_this: bool, question: &[u8]| {
        answer(&config, this.node().as_deref(), meant_for_this, &String::from_utf8_lossy(question))
    })
}

/// Handles the sentence about a peer that was refused: it is reported at once, and again in an error about missing
/// peers.
fn refused(this: &ThisNode) -> Box<dyn Fn(String) + Send + Sync> {
    let this = Arc::clone(this);
    Box::new(move |sentence| {
        trellis_output::lines::report(format_args!("{sentence}"));
        *this.refusal() = Some(sentence);
    })
}

fn make_udp(
    config: &Config,
    (faults, multicast): (&Option<Faults>, Multicast),
    socket: Option<UdpSocket>,
    secret: &Secret,
    this: &ThisNode,
) -> Result<udp::Udp, JoinError> {
    let agreement = config.clone();
    let options = UdpOptions {
        node: config.node,
        addresses: config.nodes().to_vec(),
        socket,
        secret: *secret.bytes(),
        security: security(config),
        hello: config.agreement().into_bytes(),
        admit: Box::new(move |_peer, hello| agreement.agree(&String::from_utf8_lossy(hello))),
        refused: refused(this),
        faults: faults.clone(),
        multicast,
    };
    udp::Udp::start(options).map_err(|source| JoinError::Link { place: config.place_of("nodes"), source })
}

fn security(config: &Config) -> trellis_transport::Security {
    match config.security_in_use() {
        config::Security::Signed => trellis_transport::Security::Signed,
        config::Security::InsecurePlain => trellis_transport::Security::Plain,
        _ => trellis_transport::Security::Sealed,
    }
}

fn start(
    config: Config,
    region: trellis_memory::Region,
    link: Box<dyn Link>,
    status: Option<StatusPage>,
    this: &ThisNode,
    still_there: &dyn Fn() -> bool,
) -> Result<Joined, JoinError> {
    let system = |what| move |source| JoinError::System { what, source };
    let status = match status {
        Some(status) => status,
        None => StatusPage::create().map_err(system("a page for the counters cannot be made"))?,
    };
    // This comes before any thread polls: a link tells its peers about this memory when they meet.
    let pages = region.bytes() / config.page_bytes;
    let memory = SharedMemory { pointer: region.privileged(0, pages), bytes: region.bytes(), file: region.file() };
    link.share(memory).map_err(|sentence| JoinError::System {
        what: "the link cannot make the region known",
        source: std::io::Error::other(sentence),
    })?;
    let node = Node::new(config, region, link, status).map_err(system("descriptors cannot be made"))?;
    let node = Arc::new(node);
    node.status.set_node(node.me.0);
    node.know_thyself();
    // The link finds the node here from now on.
    let _ = this.node.set(Arc::downgrade(&node));
    let service = start_service(&node).map_err(system("the service thread cannot be started"))?;
    let caught = node.region.catch(Arc::new(NodeFaults::new(&node)));
    caught.map_err(|source| refused_region(&node.config, source))?;
    match wait_for_peers(&node, this, still_there) {
        Ok(()) => {
            if let Err(sentence) = node.begin_leases() {
                // The others must not wait for a node that cannot take part.
                node.fail(sentence.clone());
                node.end_leases();
                let _ = node.close(service);
                return Err(JoinError::Leases(sentence));
            }
            if let Err(source) = node.say_ready() {
                node.fail(format!("ready_file: {source}"));
                let _ = node.close(service);
                return Err(JoinError::System { what: "ready_file cannot be written", source });
            }
            node.doing(Activity::Computing);
            if node.config.pin == config::Pin::Core {
                // The service thread is not pinned: it may use the core of a thread that waits.
                crate::launch::pin_thread(node.config.node);
            }
            Ok((node, service))
        }
        Err(sentence) => {
            // The sentence is the error. It only matters here that the service thread has ended.
            let _ = node.close(service);
            Err(JoinError::Peers(sentence))
        }
    }
}

impl Node {
    /// Makes the file for probes.
    fn say_ready(&self) -> std::io::Result<()> {
        self.config.ready_file.as_ref().map_or(Ok(()), |file| std::fs::write(file, ""))
    }
}

/// Removes the file for probes.
pub(crate) fn say_not_ready(config: &Config) -> std::io::Result<()> {
    match config.ready_file.as_ref().map(std::fs::remove_file) {
        Some(Err(error)) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Waits for the peers. `still_there` says whether the node that admits this one still listens; it is `true` if that
/// cannot be known.
fn wait_for_peers(node: &Node, this: &ThisNode, still_there: &dyn Fn() -> bool) -> Result<(), String> {
    node.doing(Activity::Waiting(Wait::Start));
    let begun = Instant::now();
    let limit = Duration::from_nanos(Wait::Start.limit_ns(&node.config));
    let mut next_word = Duration::from_secs(1);
    let (mut next_look, mut looks_in_vain) = (BETWEEN_LOOKS, 0);
    loop {
        let missing = missing_peers(node);
        if missing.is_empty() && (!node.is_joined_node() || node.has_joined()) {
            return Ok(());
        }
        if node.failure.is_set() {
            return Err(node.failure.sentence());
        }
        let waited = begun.elapsed();
        if node.is_joined_node() && !missing.is_empty() && waited >= next_look {
            looks_in_vain = if still_there() { 0 } else { looks_in_vain + 1 };
            next_look = begun.elapsed() + BETWEEN_LOOKS;
            if looks_in_vain == LOOKS {
                node.find_cluster_ended();
                continue;
            }
        }
        if waited >= limit && missing.is_empty() {
            return Err(format!(
                "it was not let in by {} within {} s; others may be leaving, or founders have not come yet; try again, or set start_seconds_max",
                node.name_of(NodeId(node.config.manager as u16)),
                limit.as_secs()
            ));
        }
        if waited >= limit {
            return Err(format!(
                "{} did not come within {} s; start it, or set start_seconds_max{}",
                names(node, &missing),
                limit.as_secs(),
                refused_peers(node, this)
            ));
        }
        if waited >= next_word && !missing.is_empty() {
            next_word = waited * 2;
            let refused = refused_peers(node, this);
            trellis_output::lines::report(format_args!(
                "node {}: waiting for {}{refused}",
                node.me.0,
                names(node, &missing)
            ));
        }
        // The service thread receives, and this thread only looks. Start-up is not a fault path.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A part of the sentence about missing peers: a missing peer may be one that was refused.
fn refused_peers(node: &Node, this: &ThisNode) -> String {
    let unauthenticated = match node.unauthenticated_refused() {
        0 => String::new(),
        count => format!(
            "; {count} attempts to connect were refused, because whoever made them does not know the secret of this \
             cluster: give every node the same secret_file"
        ),
    };
    match &*this.refusal() {
        Some(refusal) => format!("; {refusal}{unauthenticated}"),
        None => unauthenticated,
    }
}

fn missing_peers(node: &Node) -> Vec<usize> {
    let wanted: Vec<usize> = match node.config.start {
        // The coordinator says which others are present.
        _ if node.is_joined_node() => vec![node.config.manager],
        Start::All => (0..usize::from(node.founders)).collect(),
        Start::Manager => vec![node.config.manager],
    };
    wanted.into_iter().filter(|&peer| peer != usize::from(node.me.0) && !node.has_met(peer)).collect()
}

fn names(node: &Node, peers: &[usize]) -> String {
    let mut text = String::new();
    for (index, &peer) in peers.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        let _ = write!(text, "{separator}{}", node.name_of(trellis_cluster_protocol::NodeId(peer as u16)));
        if let Some(trouble) = node.trouble_with(peer) {
            let _ = write!(text, " ({trouble})");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_nothing_is_there_and_who_does_not_listen_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let secret = Secret::random().unwrap();
        let contact = Contact { address, secret: &secret, until: Instant::now(), is_known: true };
        assert!(contact.is_open());
        drop(listener);
        assert!(!contact.is_open());
    }
}
