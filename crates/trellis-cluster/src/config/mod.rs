//! The configuration of a node: one file, overridden by the environment, overridden by flags.
//!
//! Promises: every value of a [`Config`] that [`Sources::load`] returns is within its bounds and fits the others. Every
//! error is one sentence that names the file, the line and the key (or the variable, or the flag), what is wrong, and
//! what is accepted. It must never read a secret, open a socket or map memory.
//!
//! The file is `trellis.toml`, or libivy's JSON unchanged.

pub(crate) mod checks;
mod choices;
mod draft;
mod elastic;
mod file;
mod keys;
mod leased;
#[cfg(not(feature = "remote"))]
mod no_prefix;
mod ports;
mod ranges;
mod values;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use checks::DATAGRAMS_COME_FROM;
pub use choices::{AcquireDrops, Catch, Engine, Home, LinkKind, Pin, Reserve, Security, Start, WriteDetection};
pub use keys::{KEYS, Key, key};
#[cfg(not(feature = "remote"))]
pub use no_prefix::HostPrefix;
pub use ports::Ports;
pub use ranges::CoherenceRange;
pub use trellis_cluster_protocol::coherence::Protocol;
#[cfg(feature = "remote")]
pub use trellis_fabric_protocol::wire::address::HostPrefix;
pub use trellis_transport::{Faults, Multicast};
pub use values::bytes_of_text;
pub use values::is_name_of_host;

use crate::engines;
use draft::Draft;
use values::Raw;

/// The maximum number of nodes of a cluster.
pub const NODES_MAX: usize = 64;
/// The maximum length of [`Config::agreement`] in bytes.
const AGREEMENT_BYTES_MAX: usize = trellis_transport::HELLO_BYTES_MAX;
/// The environment variable that names the configuration file.
pub const FILE_VARIABLE: &str = "TRELLIS_CONFIG";
/// The prefix of the names of the keys' environment variables.
pub const VARIABLE_PREFIX: &str = "TRELLIS_";

/// Whether a variable of the environment is a key of the configuration.
pub fn is_key_variable(name: &str) -> bool {
    name.strip_prefix(VARIABLE_PREFIX).is_some_and(|name| key(&name.to_ascii_lowercase()).is_some())
}

/// Variables that `trellis lab run` sets for a command and that are no keys.
const LAB_VARIABLES: &[&str] = &["TRELLIS_LAB", "TRELLIS_LAB_HOST", "TRELLIS_LAB_ADDRESS", "TRELLIS_LAB_SSH"];

/// How a node finds the others. The ways exclude each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// By the address `host:port` of every node; the position in the list is the node's number. An empty list is a
    /// cluster of one node that listens nowhere.
    Listed(Vec<String>),
    /// Through the engine that started them.
    Engine(Engine),
    /// At a port of one of their hosts.
    Rendezvous(Rendezvous),
    /// Through a node of a running cluster, at this address: the process joins, and gets from the cluster everything
    /// that nodes must agree on.
    Join(String),
}

/// Where the nodes of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// The address `host:port`.
    pub address: String,
    /// The number of nodes.
    pub nodes: usize,
    /// The name of the job.
    pub job: String,
}

/// The configuration of a node. The fields are the keys of the reference page, but for keys that exclude each other or
/// belong to one link: [`Peers`] and [`LinkKind`] have these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How this node finds the others.
    pub peers: Peers,
    /// The number of this process's node.
    pub node: usize,
    /// The number of the node that keeps the directory and owns every page at first.
    pub manager: usize,
    /// The maximum number of processes that join while the cluster runs.
    pub joiners_max: usize,
    /// The network, or the interface, by which nodes of other hosts reach this one.
    pub network: Option<String>,
    /// The name or address by which the others reach this host, if it is not one that the host knows.
    pub advertise: Option<String>,
    /// The ports at which a node listens that finds its address itself.
    pub ports: Ports,
    /// The size of the shared region.
    pub region_bytes: usize,
    /// The number of bytes at the end of the region that the shared heap may use. `None` means half of it.
    pub heap_bytes: Option<usize>,
    /// The address at which every process maps the region.
    pub base_address: usize,
    /// The size of a page, the unit of coherence, in bytes.
    pub page_bytes: usize,
    /// How an access to a page that is not held is noticed.
    pub catch: Catch,
    /// The protocol of the region. It has no effect if [`Config::is_leased`].
    pub coherence: Protocol,
    /// Parts of the region that have another protocol from the start.
    pub coherence_ranges: Vec<CoherenceRange>,
    /// Which node keeps the directory entry and the first copy of a page.
    pub home: Home,
    /// The memory servers at which the region lies (home `memory-server`), each with an equal part. Only the manager
    /// needs them.
    pub memory_servers: Vec<HostPrefix>,
    /// The addresses of this host in the memory servers' network.
    pub prefix: Option<HostPrefix>,
    /// The maximum number of bytes of this node's memory that pages of memory servers take.
    pub cache_bytes_max: usize,
    /// Where the thread that joins may run.
    pub pin: Pin,
    /// How stores to copies are noticed under `hlrc`.
    pub write_detection: WriteDetection,
    /// Which copies an acquire drops under `hlrc`.
    pub acquire_drops: AcquireDrops,
    /// How messages travel between nodes.
    pub link: LinkKind,
    /// The requested protection of frames; see [`Config::security_in_use`].
    pub security: Security,
    /// The file with the secret that every node must know.
    pub secret_file: Option<PathBuf>,
    /// When this machine must prove that it can hold the region.
    pub reserve: Reserve,
    /// The nodes that a node waits for when it starts.
    pub start: Start,
    /// How long a node waits for its peers when it starts.
    pub start_seconds_max: u64,
    /// How long a peer may be silent while this node expects something of it.
    pub silence_seconds_max: u64,
    /// How long a barrier or a lock waits.
    pub wait_seconds_max: u64,
    /// How long a thread waits for a page that no program keeps locked.
    pub fault_seconds_max: u64,
    /// How long a waiting thread polls before it sleeps.
    pub spin_microseconds_max: u64,
    /// The maximum number of pages that a sequential access requests at once.
    pub prefetch_pages_max: usize,
    /// The file that exists while this node takes part in the cluster.
    pub ready_file: Option<PathBuf>,
    /// The folder for the record of the run.
    pub record: Option<PathBuf>,
    /// The maximum number of faults that the record keeps.
    pub record_faults_max: usize,
    /// Whether counters are printed when the node leaves.
    pub statistics: bool,
    /// The place where each given value came from, for values that are refused only later: see [`Config::place_of`].
    pub places: BTreeMap<&'static str, String>,
}

impl Default for Config {
    /// A cluster of one node, with the default of every key.
    fn default() -> Self {
        Config {
            peers: Peers::Listed(Vec::new()),
            node: 0,
            manager: 0,
            joiners_max: 0,
            network: None,
            advertise: None,
            ports: Ports::default(),
            region_bytes: 256 << 20,
            heap_bytes: None,
            base_address: 0x4000_0000_0000,
            page_bytes: 4096,
            catch: Catch::Auto,
            coherence: Protocol::IVY,
            coherence_ranges: Vec::new(),
            home: Home::Manager,
            memory_servers: Vec::new(),
            prefix: None,
            cache_bytes_max: 256 << 20,
            pin: Pin::None,
            write_detection: WriteDetection::Auto,
            acquire_drops: AcquireDrops::Noticed,
            link: LinkKind::Auto,
            security: Security::Auto,
            secret_file: None,
            reserve: Reserve::Lazy,
            start: Start::All,
            start_seconds_max: 60,
            silence_seconds_max: 10,
            wait_seconds_max: 3_600,
            fault_seconds_max: 120,
            spin_microseconds_max: 200,
            prefetch_pages_max: 128,
            ready_file: None,
            record: None,
            record_faults_max: 1_000_000,
            statistics: false,
            places: BTreeMap::new(),
        }
    }
}

impl Config {
    /// The configuration of a node that `trellis run` started, or that was started by hand with `TRELLIS_CONFIG` and
    /// `TRELLIS_NODE`: the file that the environment names, if any, overridden by the environment.
    pub fn from_environment() -> Result<Config, ConfigError> {
        Sources::new().process_environment().load()
    }

    /// The configuration in a file, for one of its nodes, overridden by the environment.
    pub fn from_file(path: impl AsRef<Path>, node: usize) -> Result<Config, ConfigError> {
        Sources::new().file(path.as_ref()).process_environment().set(format!("node={node}")).load()
    }

    /// The beginning of a sentence about the value of `key`: `FILE:LINE: key`, the variable, the flag, or the key alone
    /// if the value was not given.
    pub fn place_of(&self, key: &'static str) -> String {
        self.places.get(key).cloned().unwrap_or_else(|| key.to_owned())
    }

    /// The address `host:port` of every node; empty for a node that is alone, and until the others are found.
    pub fn nodes(&self) -> &[String] {
        match &self.peers {
            Peers::Listed(nodes) => nodes,
            Peers::Engine(_) | Peers::Rendezvous(_) | Peers::Join(_) => &[],
        }
    }

    /// The number of nodes at the start.
    pub fn node_count(&self) -> usize {
        self.nodes().len().max(1)
    }

    /// The maximum number of nodes: those at the start, and those that may join.
    pub fn capacity(&self) -> usize {
        self.node_count() + self.joiners_max
    }

    /// Whether some of the region starts under a protocol with release consistency.
    pub fn has_release_consistency(&self) -> bool {
        let ranges = self.coherence_ranges.iter().map(|range| range.protocol);
        std::iter::once(self.coherence).chain(ranges).any(|protocol| protocol.is_release_consistent())
    }

    /// Whether every node is certainly on this host: each known address is `localhost` or a loopback address.
    pub fn is_on_loopback(&self) -> bool {
        let is_here = |item: &String| values::host_and_port(item).is_ok_and(|(host, _)| values::is_loopback(host));
        match &self.peers {
            Peers::Listed(nodes) => nodes.iter().all(is_here),
            Peers::Join(address) => is_here(address),
            Peers::Engine(_) | Peers::Rendezvous(_) => false,
        }
    }

    /// The protection of frames: the key `security`, with `auto` replaced by what it means here. Never
    /// [`Security::Auto`].
    pub fn security_in_use(&self) -> Security {
        match self.security {
            Security::Auto if self.is_on_loopback() => Security::InsecurePlain,
            Security::Auto => Security::Sealed,
            asked => asked,
        }
    }

    /// The settings that must be the same on all nodes, as text: `key=value` pairs, separated by spaces, at most 256 bytes.
    pub fn agreement(&self) -> String {
        if self.is_leased() {
            return self.agreement_with(leased::LEASE);
        }
        let spelt_out = self.agreement_with(&ranges::word(self.coherence));
        // The text is too long only with the largest numbers and a long protocol together.
        let text = match spelt_out.len() {
            0..=AGREEMENT_BYTES_MAX => spelt_out,
            _ => self.agreement_with(&ranges::short_word(self.coherence)),
        };
        assert!(text.len() <= AGREEMENT_BYTES_MAX, "the agreement fits the hello of a link");
        text
    }

    fn agreement_with(&self, coherence: &str) -> String {
        // The start of the heap counts, whether the key was given or not.
        let heap_bytes = self.region_bytes - self.heap_start();
        format!(
            "version={} nodes={} joiners_max={} manager={} region_bytes={} heap_bytes={heap_bytes} base_address={:#x} \
             page_bytes={} coherence={coherence} coherence_ranges={} home={} link={} security={}",
            env!("CARGO_PKG_VERSION"),
            self.node_count(),
            self.joiners_max,
            self.manager,
            self.region_bytes,
            self.base_address,
            self.page_bytes,
            ranges::fingerprint(&self.coherence_ranges),
            self.home,
            self.link,
            self.security_in_use(),
        )
    }

    /// Compares a peer's [`Config::agreement`] with this node's. The error is one sentence about the first difference.
    pub fn agree(&self, theirs: &str) -> Result<(), String> {
        let ours = self.agreement();
        if ours == theirs {
            return Ok(());
        }
        for our_part in ours.split(' ') {
            let (name, our_value) = our_part.split_once('=').unwrap_or((our_part, ""));
            let their_value = theirs.split(' ').filter_map(|part| part.split_once('=')).find(|part| part.0 == name);
            match their_value {
                Some((_, their_value)) if their_value == our_value => {}
                Some((_, their_value)) => {
                    return Err(format!(
                        "it has {name} {their_value}, this node has {our_value}; \
                         start every node with the same configuration and version"
                    ));
                }
                None => {
                    return Err(format!("it does not say its {name}; use one version on every node"));
                }
            }
        }
        Err("it says more than this version knows; use one version on every node".to_owned())
    }
}

/// The error in the configuration, in one sentence: `FILE:LINE: key: what is wrong; what is accepted`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct ConfigError {
    place: String,
    what: String,
}

/// Where a value came from. Its `Display` is the beginning of the sentence of an error.
#[derive(Clone, Debug)]
enum Origin {
    /// A file, a line, and the key as that file spells it.
    File {
        path: PathBuf,
        line: usize,
        key: String,
    },
    Variable(String),
    Flag(String),
    /// A setting that the program made, as `key=value`.
    Program(String),
    /// The displayed text of an earlier [`Origin`].
    Said(String),
    /// The name of a key whose value was not given.
    Default(&'static str),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::File { path, line, key } => write!(formatter, "{}:{line}: {key}", path.display()),
            Origin::Variable(text) | Origin::Said(text) => formatter.write_str(text),
            Origin::Flag(text) => write!(formatter, "--set {text}"),
            Origin::Program(text) => write!(formatter, "{text} (set by the program)"),
            Origin::Default(key) => formatter.write_str(key),
        }
    }
}

impl Origin {
    fn error(&self, what: impl Into<String>) -> ConfigError {
        ConfigError { place: self.to_string(), what: what.into() }
    }

    /// A larger value overrides a smaller one.
    fn strength(&self) -> u8 {
        match self {
            Origin::Flag(_) | Origin::Program(_) => 2,
            Origin::Variable(_) => 1,
            Origin::File { .. } | Origin::Said(_) | Origin::Default(_) => 0,
        }
    }

    /// The same place, but another line of the file.
    fn at_line(&self, other: Option<usize>) -> Origin {
        match (self, other) {
            (Origin::File { path, key, .. }, Some(line)) => Origin::File { path: path.clone(), line, key: key.clone() },
            _ => self.clone(),
        }
    }
}

/// The sources of a configuration. Flags override the environment, which overrides the file.
///
/// ```
/// # use trellis_cluster as trellis;
/// use trellis::config::Sources;
/// let config = Sources::new().set("region_bytes=1MiB").set("catch=signal").load()?;
/// assert_eq!(config.region_bytes, 1 << 20);
/// # Ok::<(), trellis::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sources {
    file: Option<PathBuf>,
    variables: BTreeMap<String, Raw>,
    /// The variables of engines.
    of_engine: BTreeMap<&'static str, String>,
    /// The flags, in the order in which they were given.
    flags: Vec<Origin>,
}

impl Sources {
    /// No sources: every key has its default.
    pub fn new() -> Self {
        Sources::default()
    }

    /// Reads this file, whatever `TRELLIS_CONFIG` says.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Takes the `TRELLIS_` variables of this process.
    #[must_use]
    pub fn process_environment(mut self) -> Self {
        for (name, value) in std::env::vars_os() {
            if let Some(name) = name.to_str().filter(|name| name.starts_with(VARIABLE_PREFIX)) {
                self.variables.insert(name.to_owned(), raw_of_variable(value));
            }
        }
        let of_engine = engines::VARIABLES.iter().filter_map(|name| Some((*name, std::env::var(name).ok()?)));
        self.of_engine.extend(of_engine);
        self
    }

    /// Takes one variable, as if it were in the environment; replaces an earlier one of that name.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.insert(name.into(), Raw::Text(value.into()));
        self
    }

    /// Takes one `key=value`, as `--set` gives it.
    #[must_use]
    pub fn set(mut self, key_and_value: impl Into<String>) -> Self {
        self.flags.push(Origin::Flag(key_and_value.into()));
        self
    }

    /// Takes one `key=value` from the program itself. Error sentences then do not mention a command line.
    #[must_use]
    pub fn set_by_program(mut self, key_and_value: impl Into<String>) -> Self {
        self.flags.push(Origin::Program(key_and_value.into()));
        self
    }

    /// Reads the configuration of one node. With more than one node, `node` must be given.
    pub fn load(self) -> Result<Config, ConfigError> {
        let mut reader = self.read()?;
        reader.check_node_is_known()?;
        reader.check_servers_are_known()?;
        reader.draft.config.places = reader.origins.iter().map(|(key, origin)| (*key, origin.to_string())).collect();
        Ok(reader.draft.config)
    }

    /// Reads the configuration for no particular node, as a launcher does before it starts the nodes.
    pub fn load_for_all(self) -> Result<Config, ConfigError> {
        Ok(self.read()?.draft.config)
    }

    fn read(self) -> Result<Reader, ConfigError> {
        let mut reader = Reader::default();
        if let Some(path) = self.path_of_file()? {
            reader.take_file(&path)?;
        }
        for (name, value) in &self.variables {
            reader.take_variable(name, value)?;
        }
        for flag in &self.flags {
            reader.take_flag(flag)?;
        }
        let recognised = engines::recognise(|name| self.of_engine.get(name).cloned());
        reader.draft.finish(&reader.origins, recognised)?;
        reader.check()?;
        Ok(reader)
    }

    fn path_of_file(&self) -> Result<Option<PathBuf>, ConfigError> {
        match (&self.file, self.variables.get(FILE_VARIABLE)) {
            (Some(path), _) => Ok(Some(path.clone())),
            (None, Some(raw)) => values::text(raw, "the path of a configuration file")
                .map(|path| Some(PathBuf::from(path)))
                .map_err(|sentence| Origin::Variable(FILE_VARIABLE.to_owned()).error(sentence)),
            (None, None) => Ok(None),
        }
    }
}

fn raw_of_variable(value: OsString) -> Raw {
    value.into_string().map_or(Raw::Other("text that is not UTF-8"), Raw::Text)
}

/// A configuration under construction, with the origin of every value.
#[derive(Default)]
struct Reader {
    draft: Draft,
    origins: BTreeMap<&'static str, Origin>,
    /// Whether the file was libivy's. Its sizes mean what they mean in libivy.
    is_libivy: bool,
}

/// libivy's four keys, and the names of the same keys here.
const LIBIVY_KEYS: [(&str, &str); 4] =
    [("nodes", "nodes"), ("manager_id", "manager"), ("region_sz", "region_bytes"), ("base_addr", "base_address")];

impl Reader {
    fn take_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let contents = file::read(path).map_err(|unreadable| ConfigError {
            place: unreadable.line.map_or(path.display().to_string(), |line| format!("{}:{line}", path.display())),
            what: unreadable.sentence,
        })?;
        let origin_of = |line: usize, key: &str| Origin::File { path: path.to_owned(), line, key: key.to_owned() };
        for entry in &contents.entries {
            let origin = origin_of(entry.line, &entry.key);
            let key = if contents.is_libivy { libivy_key(&entry.key) } else { toml_key(&entry.key) };
            let key = key.map_err(|sentence| origin.error(sentence))?;
            if let Some(Origin::File { line, .. }) = self.origins.get(key.name) {
                return Err(origin.error(format!("is given twice, first on line {line}; accepted: once")));
            }
            let value = if contents.is_libivy { as_libivy_means(key, &entry.value) } else { entry.value.clone() };
            self.apply(key, &value, origin)?;
        }
        if contents.is_libivy {
            self.finish_libivy(|key| origin_of(1, key))?;
        }
        self.resolve_paths(path);
        Ok(())
    }

    fn finish_libivy(&mut self, origin_of: impl Fn(&str) -> Origin) -> Result<(), ConfigError> {
        for (theirs, ours) in LIBIVY_KEYS {
            if !self.origins.contains_key(ours) {
                return Err(origin_of(theirs)
                    .error("is missing; a libivy configuration has nodes, manager_id, region_sz and base_addr"));
            }
        }
        if self.draft.nodes.is_empty() {
            return Err(self.origin("nodes").error("is empty; accepted: a list of at least one \"host:port\""));
        }
        // libivy's workers need only the manager, so a program may list more nodes than it starts.
        self.draft.config.start = Start::Manager;
        self.is_libivy = true;
        Ok(())
    }

    /// Makes paths in a file relative to the file, so that a configuration means the same from every folder.
    fn resolve_paths(&mut self, file: &Path) {
        let folder = file.parent().unwrap_or(Path::new(""));
        let config = &mut self.draft.config;
        for path in [&mut config.secret_file, &mut config.ready_file, &mut config.record].into_iter().flatten() {
            *path = folder.join(&*path);
        }
    }

    /// Takes a variable. One that is no key is refused if it looks like a misspelt key, and ignored otherwise.
    fn take_variable(&mut self, name: &str, value: &Raw) -> Result<(), ConfigError> {
        let origin = Origin::Variable(name.to_owned());
        let Some(lower) = name.strip_prefix(VARIABLE_PREFIX).map(str::to_ascii_lowercase) else {
            return Ok(());
        };
        if let Some(key) = key(&lower) {
            return self.apply(key, value, origin);
        }
        if name == FILE_VARIABLE || LAB_VARIABLES.contains(&name) || crate::launch::VARIABLES.contains(&name) {
            return Ok(());
        }
        match values::nearest(&lower, KEYS.iter().map(|key| key.name)) {
            Some(suggested) => Err(origin.error(format!(
                "no key has this name; did you mean {VARIABLE_PREFIX}{}?",
                suggested.to_ascii_uppercase()
            ))),
            None => Ok(()),
        }
    }

    fn take_flag(&mut self, origin: &Origin) -> Result<(), ConfigError> {
        let (Origin::Flag(flag) | Origin::Program(flag)) = origin else { return Ok(()) };
        let (name, value) = flag
            .split_once('=')
            .ok_or_else(|| origin.error("has no equals sign; accepted: key=value, such as page_bytes=16KiB"))?;
        let key =
            key(name.trim()).ok_or_else(|| origin.error(unknown_key(name.trim(), KEYS.iter().map(|key| key.name))))?;
        // The launcher sets the number of a launched process. A program that set another one would take the place of
        // another node.
        if key.name == "node"
            && let Some(Origin::Variable(variable)) = self.origins.get("node")
            && value.trim().parse() != Ok(self.draft.config.node)
        {
            return Err(origin.error(format!(
                "the environment says {variable}={}; give the program the same node number, or none",
                self.draft.config.node
            )));
        }
        self.apply(key, &Raw::Text(value.to_owned()), origin.clone())
    }

    fn apply(&mut self, key: &'static Key, value: &Raw, origin: Origin) -> Result<(), ConfigError> {
        if let Err(wrong) = (key.apply)(&mut self.draft, value) {
            return Err(origin.at_line(wrong.line).error(wrong.sentence));
        }
        self.origins.insert(key.name, origin);
        Ok(())
    }

    /// Where the value of a key came from.
    fn origin(&self, key: &'static str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default(key))
    }
}

/// libivy reads its address as hexadecimal digits, with or without the prefix.
fn as_libivy_means(key: &Key, value: &Raw) -> Raw {
    match value {
        Raw::Text(text) if key.name == "base_address" && !text.trim().to_ascii_lowercase().starts_with("0x") => {
            Raw::Text(format!("0x{}", text.trim()))
        }
        other => other.clone(),
    }
}

fn libivy_key(name: &str) -> Result<&'static Key, String> {
    match LIBIVY_KEYS.iter().find(|(theirs, _)| *theirs == name) {
        Some((_, ours)) => Ok(key(ours).expect("each of libivy's keys is one of ours")),
        None if key(name).is_some() => Err(format!(
            "libivy's JSON does not have this key; put it into a trellis.toml, into {VARIABLE_PREFIX}{} or after --set",
            name.to_ascii_uppercase()
        )),
        None => Err(unknown_key(name, LIBIVY_KEYS.iter().map(|(theirs, _)| *theirs))),
    }
}

fn toml_key(name: &str) -> Result<&'static Key, String> {
    match key(name) {
        Some(key) if key.name == "node" => {
            Err("the file is shared by all nodes; set TRELLIS_NODE or --set node=N instead".to_owned())
        }
        Some(key) => Ok(key),
        None => match LIBIVY_KEYS.iter().find(|(theirs, _)| *theirs == name) {
            Some((_, ours)) => Err(format!("this is libivy's name; did you mean {ours}?")),
            None => Err(unknown_key(name, KEYS.iter().map(|key| key.name))),
        },
    }
}

fn unknown_key(name: &str, names: impl Iterator<Item = &'static str> + Clone) -> String {
    match values::nearest(name, names.clone()) {
        Some(suggested) => format!("no key has this name; did you mean {suggested}?"),
        None => format!("no key has this name; accepted: {}", names.collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests;
