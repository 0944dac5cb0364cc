//! Start-up: region, secret, link, service thread, catcher, peers, in that order.
//!
//! Promises: what cannot be had is one sentence before anything was started that would outlive it; a node waits for
//! its peers, whatever the order in which they start, and says for whom.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trellis_memory::{Catcher, RegionOptions};
use trellis_transport::links::{in_process, tcp};
use trellis_transport::{Link, TcpOptions};

use crate::config::{self, Config, ConfigError, Start};
use crate::launch::{Activity, Inherited, LaunchError, StatusPage};
use crate::runtime::{Node, Server, start_service};
use crate::secret::{Secret, SecretError};

/// A node could not join its cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The memory.
    #[error("{place}: {source}")]
    Region {
        /// Where the value that cannot be had was given.
        place: String,
        /// What cannot be had, and why.
        source: trellis_memory::RegionError,
    },
    /// No catcher works here.
    #[error("accesses cannot be caught: {0}")]
    Catcher(String),
    /// What the launcher handed over.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The link.
    #[error("{place}: {source}")]
    Link {
        /// Where the addresses were given.
        place: String,
        /// What cannot be had, and why.
        source: trellis_transport::StartError,
    },
    /// Something small that the system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Peers did not come, or the cluster failed while they did.
    #[error("{0}")]
    Peers(String),
}

type Joined = (Arc<Node>, JoinHandle<()>);

pub(crate) fn join(config: Config) -> Result<Joined, JoinError> {
    let Inherited { listener, secret, status } = Inherited::take()?;
    let region = make_region(&config)?;
    let link: Box<dyn Link> = if config.node_count() == 1 {
        let alone =
            in_process::mesh(1).map_err(|source| JoinError::System { what: "descriptors cannot be made", source });
        Box::new(alone?.pop().expect("a mesh of one has one link"))
    } else {
        Box::new(make_link(&config, listener, &Secret::choose(&config, secret)?)?)
    };
    start(config, region, link, status)
}

pub(crate) fn join_over(config: Config, link: Box<dyn Link>) -> Result<Joined, JoinError> {
    let region = make_region(&config)?;
    start(config, region, link, None)
}

fn make_region(config: &Config) -> Result<trellis_memory::Region, JoinError> {
    let requested = match config.catch {
        config::Catch::Auto => None,
        config::Catch::Signal => Some(Catcher::Signal),
        config::Catch::Handler => Some(Catcher::Handler),
        config::Catch::Mprotect => Some(Catcher::Mprotect),
    };
    let (catcher, _why) = trellis_memory::choose(requested, &trellis_memory::probe()).map_err(JoinError::Catcher)?;
    let reserve = match config.reserve {
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
    trellis_memory::Region::create(&options).map_err(|source| refused_region(config, source))
}

/// Which key the memory was refused for.
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

fn make_link(config: &Config, listener: Option<TcpListener>, secret: &Secret) -> Result<tcp::Tcp, JoinError> {
    let agreement = config.clone();
    let options = TcpOptions {
        node: config.node,
        addresses: config.nodes.clone(),
        listener,
        secret: *secret.bytes(),
        security: match config.security_in_use() {
            config::Security::Signed => trellis_transport::Security::Signed,
            config::Security::InsecurePlain => trellis_transport::Security::Plain,
            _ => trellis_transport::Security::Sealed,
        },
        hello: config.agreement().into_bytes(),
        admit: Box::new(move |_peer, hello| agreement.agree(&String::from_utf8_lossy(hello))),
        refused: Box::new(|sentence| eprintln!("trellis: {sentence}")),
    };
    tcp::Tcp::start(options).map_err(|source| JoinError::Link { place: config.place_of("nodes"), source })
}

fn start(
    config: Config,
    region: trellis_memory::Region,
    link: Box<dyn Link>,
    status: Option<StatusPage>,
) -> Result<Joined, JoinError> {
    let system = |what| move |source| JoinError::System { what, source };
    let status = match status {
        Some(status) => status,
        None => StatusPage::create().map_err(system("a page for the counters cannot be made"))?,
    };
    let node = Node::new(config, region, link, status).map_err(system("descriptors cannot be made"))?;
    let node = Arc::new(node);
    let service = start_service(&node).map_err(system("the service thread cannot be started"))?;
    let caught = node.region.catch(Arc::new(Server::new(&node)));
    caught.map_err(|source| refused_region(&node.config, source))?;
    match wait_for_peers(&node) {
        Ok(()) => {
            node.doing(Activity::Computing);
            Ok((node, service))
        }
        Err(sentence) => {
            // The sentence is the error; that the service thread ended is all that matters here.
            let _ = node.close(service);
            Err(JoinError::Peers(sentence))
        }
    }
}

fn wait_for_peers(node: &Node) -> Result<(), String> {
    let begun = Instant::now();
    let limit = Duration::from_secs(node.config.start_seconds_max);
    let mut next_word = Duration::from_secs(1);
    loop {
        let missing = missing_peers(node);
        if missing.is_empty() {
            return Ok(());
        }
        if node.failure.is_set() {
            return Err(node.failure.sentence());
        }
        let waited = begun.elapsed();
        if waited >= limit {
            return Err(format!(
                "{} did not come within {} s; start it, or set start_seconds_max",
                names(node, &missing),
                limit.as_secs()
            ));
        }
        if waited >= next_word {
            next_word = waited * 2;
            eprintln!("trellis: node {}: waiting for {}", node.me.0, names(node, &missing));
        }
        // The service thread receives; this thread only looks. Start-up is not a fault path.
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn missing_peers(node: &Node) -> Vec<usize> {
    let wanted: Vec<usize> = match node.config.start {
        Start::All => (0..usize::from(node.nodes)).collect(),
        Start::Manager => vec![node.config.manager],
    };
    wanted.into_iter().filter(|&peer| peer != usize::from(node.me.0) && !node.has_met(peer)).collect()
}

fn names(node: &Node, peers: &[usize]) -> String {
    let mut text = String::new();
    for (index, &peer) in peers.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        let _ = write!(text, "{separator}{}", node.name_of(trellis_protocol::NodeId(peer as u16)));
        if let Some(trouble) = node.trouble_with(peer) {
            let _ = write!(text, " ({trouble})");
        }
    }
    text
}
