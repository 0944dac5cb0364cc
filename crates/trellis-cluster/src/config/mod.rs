//! The configuration of a node: one file, overridden by the environment, overridden by flags.
//!
//! Promises: every value of a [`Config`] that came out of [`Sources::load`] is within its bounds and fits the others;
//! every error is one sentence that names the file, the line and the key (or the variable, or the flag), what is
//! wrong, and what is accepted. Never reads a secret, opens a socket or maps memory: it only says what shall be done.
//!
//! The file is `trellis.toml`, or libivy's JSON as it stands.

pub(crate) mod checks;
mod choices;
mod elastic;
mod file;
mod keys;
mod leased;
mod ranges;
mod values;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use choices::{Catch, Engine, Home, LinkKind, Pin, Reserve, Security, Start, WriteDetection};
pub use keys::{KEYS, Key, key};
pub use ranges::CoherenceRange;
pub use trellis_cluster_protocol::coherence::Protocol;
pub use trellis_fabric_protocol::wire::address::HostPrefix;
pub use trellis_transport::{Faults, Multicast};
pub use values::bytes_of_text;

use crate::engines;
use values::Raw;

/// The most nodes a cluster may have.
pub const NODES_MAX: usize = 64;
/// Longest text in which nodes say what they must have in common.
const AGREEMENT_BYTES_MAX: usize = trellis_transport::HELLO_BYTES_MAX;
/// The environment variable that names the configuration file.
pub const FILE_VARIABLE: &str = "TRELLIS_CONFIG";
/// What the name of a key's environment variable begins with.
pub const VARIABLE_PREFIX: &str = "TRELLIS_";

/// Whether a variable of the environment is a key of the configuration.
pub fn is_key_variable(name: &str) -> bool {
    name.strip_prefix(VARIABLE_PREFIX).is_some_and(|name| key(&name.to_ascii_lowercase()).is_some())
}

/// What `trellis lab run` says to a command beside keys.
const LAB_VARIABLES: &[&str] = &["TRELLIS_LAB", "TRELLIS_LAB_HOST", "TRELLIS_LAB_ADDRESS", "TRELLIS_LAB_SSH"];

/// Everything a node is told before it starts. The fields are the keys of the reference page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The address `host:port` of every node; empty for a cluster of one node that listens nowhere.
    pub nodes: Vec<String>,
    /// Which of the nodes this process is.
    pub node: usize,
    /// The node that keeps the directory and owns every page at first.
    pub manager: usize,
    /// How many processes may join while the cluster runs.
    pub joiners_max: usize,
    /// A node of the running cluster to join; everything that nodes must agree on is then asked there.
    pub join: Option<String>,
    /// The source of the list of nodes if `nodes` is empty. A loaded configuration never has [`Engine::Auto`] here.
    pub engine: Engine,
    /// The address `host:port` where the nodes meet if `nodes` is empty.
    pub rendezvous: Option<String>,
    /// How many nodes meet there.
    pub rendezvous_nodes: usize,
    /// The name of the job that meets there.
    pub rendezvous_job: String,
    /// The network, or the interface, by which nodes of other hosts reach this one.
    pub network: Option<String>,
    /// Size of the shared region.
    pub region_bytes: usize,
    /// How much of the region, from its end, the shared heap may use; all of it when nobody says.
    pub heap_bytes: Option<usize>,
    /// Where the region is mapped in every process.
    pub base_address: usize,
    /// The unit of coherence.
    pub page_bytes: usize,
    /// How an access to a page that is not held is noticed.
    pub catch: Catch,
    /// Who may read or write a page now; of no account where [`Config::is_leased`].
    pub coherence: Protocol,
    /// Leases were asked for instead of a protocol; see [`Config::is_leased`].
    pub has_leases: bool,
    /// Parts of the region that have another protocol from the start.
    pub coherence_ranges: Vec<CoherenceRange>,
    /// Which node keeps the directory entry and the first copy of a page.
    pub home: Home,
    /// The memory servers at which the region lies (home `memory-server`), each with an equal part; told at the manager.
    pub memory_servers: Vec<HostPrefix>,
    /// The addresses of this host in the memory servers' network.
    pub prefix: Option<HostPrefix>,
    /// How much memory of this node pages take that lie at memory servers.
    pub cache_bytes_max: usize,
    /// Where the thread that joins may run.
    pub pin: Pin,
    /// How stores to copies are noticed under `hlrc`.
    pub write_detection: WriteDetection,
    /// How messages travel.
    pub link: LinkKind,
    /// Which provider of libfabric the link `fabric` uses; its own choice when nobody says.
    pub fabric_provider: Option<String>,
    /// A bad network between this node and its peers, for tests and experiments.
    pub link_faults: Option<Faults>,
    /// Where frames for several nodes go in one datagram.
    pub multicast_group: Multicast,
    /// What protects a frame, as asked for; see [`Config::security_in_use`].
    pub security: Security,
    /// The file with the secret every node must know.
    pub secret_file: Option<PathBuf>,
    /// When this machine must prove that it can hold the region.
    pub reserve: Reserve,
    /// For whom a node waits when it starts.
    pub start: Start,
    /// How long a node waits for its peers when it starts.
    pub start_seconds_max: u64,
    /// How long a peer may be silent while something is expected of it.
    pub silence_seconds_max: u64,
    /// How long a barrier or a lock waits.
    pub wait_seconds_max: u64,
    /// How long a thread waits for a page that no program keeps locked.
    pub fault_seconds_max: u64,
    /// How long a waiting thread polls before it sleeps.
    pub spin_microseconds_max: u64,
    /// How many pages a sequential access may ask for at once.
    pub prefetch_pages_max: usize,
    /// The folder for the record of the run.
    pub record: Option<PathBuf>,
    /// How many faults the record keeps.
    pub record_faults_max: usize,
    /// Whether counters are printed when the node leaves.
    pub statistics: bool,
    /// Where each value that was given came from, for what can only be refused later: see [`Config::place_of`].
    pub places: BTreeMap<&'static str, String>,
}

impl Default for Config {
    /// One node, with every key's default.
    fn default() -> Self {
        Config {
            nodes: Vec::new(),
            node: 0,
            manager: 0,
            joiners_max: 0,
            join: None,
            engine: Engine::None,
            rendezvous: None,
            rendezvous_nodes: 0,
            rendezvous_job: "trellis".to_owned(),
            network: None,
            region_bytes: 256 << 20,
            heap_bytes: None,
            base_address: 0x1000_0000_0000,
            page_bytes: 4096,
            catch: Catch::Auto,
            coherence: Protocol::IVY,
            has_leases: false,
            coherence_ranges: Vec::new(),
            home: Home::Manager,
            memory_servers: Vec::new(),
            prefix: None,
            cache_bytes_max: 256 << 20,
            pin: Pin::None,
            write_detection: WriteDetection::Auto,
            link: LinkKind::Auto,
            fabric_provider: None,
            link_faults: None,
            multicast_group: Multicast::Automatic,
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
            record: None,
            record_faults_max: 1_000_000,
            statistics: false,
            places: BTreeMap::new(),
        }
    }
}

impl Config {
    /// The configuration of a node that `trellis run` started, or that was started by hand with `TRELLIS_CONFIG` and
    /// `TRELLIS_NODE`: the file named by the environment if one is, then the environment.
    pub fn from_environment() -> Result<Config, ConfigError> {
        Sources::new().process_environment().load()
    }

    /// The configuration in a file, for one of its nodes, overridden by the environment.
    pub fn from_file(path: impl AsRef<Path>, node: usize) -> Result<Config, ConfigError> {
        Sources::new().file(path.as_ref()).process_environment().set(format!("node={node}")).load()
    }

    /// How a sentence about the value of `key` opens: `FILE:LINE: key`, the variable, the flag, or the key alone where
    /// nobody gave the value.
    pub fn place_of(&self, key: &'static str) -> String {
        self.places.get(key).cloned().unwrap_or_else(|| key.to_owned())
    }

    /// How many nodes the cluster starts with.
    pub fn node_count(&self) -> usize {
        self.nodes.len().max(1)
    }

    /// How many nodes the cluster can have: those that it starts with, and those that may join.
    pub fn capacity(&self) -> usize {
        self.node_count() + self.joiners_max
    }

    /// Whether some of the region starts under a protocol with release consistency.
    pub fn has_release_consistency(&self) -> bool {
        let ranges = self.coherence_ranges.iter().map(|range| range.protocol);
        std::iter::once(self.coherence).chain(ranges).any(|protocol| protocol.is_release_consistent())
    }

    /// Whether every node is certainly on this host: each address is `localhost` or a loopback address.
    pub fn is_on_loopback(&self) -> bool {
        self.nodes.iter().all(|item| values::host_and_port(item).is_ok_and(|(host, _)| values::is_loopback(host)))
    }

    /// What protects a frame: the key `security` with `auto` decided. Never [`Security::Auto`].
    pub fn security_in_use(&self) -> Security {
        match self.security {
            Security::Auto if self.is_on_loopback() => Security::InsecurePlain,
            Security::Auto => Security::Sealed,
            asked => asked,
        }
    }

    /// What all nodes must have in common, as text: `key=value` separated by spaces, at most 256 bytes.
    pub fn agreement(&self) -> String {
        if self.is_leased() {
            return self.agreement_with(leased::LEASE);
        }
        let spelt_out = self.agreement_with(&ranges::word(self.coherence));
        // Only the largest numbers and a long protocol together are too much.
        let text = match spelt_out.len() {
            0..=AGREEMENT_BYTES_MAX => spelt_out,
            _ => self.agreement_with(&ranges::short_word(self.coherence)),
        };
        assert!(text.len() <= AGREEMENT_BYTES_MAX, "the agreement fits the hello of a link");
        text
    }

    fn agreement_with(&self, coherence: &str) -> String {
        // Where the heap begins decides, whether it was told or not.
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

    /// Compares a peer's [`Config::agreement`] with ours; the error is one sentence about the first difference.
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

/// What is wrong with the configuration, in one sentence: `FILE:LINE: key: what is wrong; what is accepted`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct ConfigError {
    place: String,
    what: String,
}

/// Where a value came from; its `Display` opens the sentence of an error.
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
    /// What the program said, in the same form.
    Program(String),
    /// The text that an earlier [`Origin`] displayed.
    Said(String),
    /// Nobody gave the value: the name of the key.
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

    /// The same place, but another line of the file.
    fn at_line(&self, other: Option<usize>) -> Origin {
        match (self, other) {
            (Origin::File { path, key, .. }, Some(line)) => Origin::File { path: path.clone(), line, key: key.clone() },
            _ => self.clone(),
        }
    }
}

/// Where a configuration comes from. Later kinds win over earlier ones: file, environment, flags.
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
    /// In the order in which they were given.
    flags: Vec<Origin>,
}

impl Sources {
    /// No source at all: every key has its default.
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

    /// The same from the program itself: sentences do not speak of a command line then.
    #[must_use]
    pub fn set_by_program(mut self, key_and_value: impl Into<String>) -> Self {
        self.flags.push(Origin::Program(key_and_value.into()));
        self
    }

    /// Reads everything for one node: with more than one node, `node` must be given.
    pub fn load(self) -> Result<Config, ConfigError> {
        let mut reader = self.read()?;
        reader.check_node_is_known()?;
        reader.check_servers_are_known()?;
        reader.config.places = reader.origins.iter().map(|(key, origin)| (*key, origin.to_string())).collect();
        Ok(reader.config)
    }

    /// Reads everything but for no particular node: what a launcher does before it starts the nodes.
    pub fn load_for_all(self) -> Result<Config, ConfigError> {
        Ok(self.read()?.config)
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
        if reader.config.engine == Engine::Auto || !reader.origins.contains_key("engine") {
            reader.config.engine = engines::recognise(|name| self.of_engine.get(name).cloned());
        }
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

/// A configuration under construction, with the place every value came from.
#[derive(Default)]
struct Reader {
    config: Config,
    origins: BTreeMap<&'static str, Origin>,
    /// Whether the file was libivy's: its sizes are taken as libivy takes them.
    is_libivy: bool,
}

/// libivy's four keys and ours.
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
        if self.config.nodes.is_empty() {
            return Err(self.origin("nodes").error("is empty; accepted: a list of at least one \"host:port\""));
        }
        // libivy's workers ask only the manager, so a program may list more nodes than it starts.
        self.config.start = Start::Manager;
        self.is_libivy = true;
        Ok(())
    }

    /// A path in a file is relative to the file, so that a configuration means the same from every folder.
    fn resolve_paths(&mut self, file: &Path) {
        let folder = file.parent().unwrap_or(Path::new(""));
        for path in [&mut self.config.secret_file, &mut self.config.record].into_iter().flatten() {
            *path = folder.join(&*path);
        }
    }

    /// A variable that is no key is refused if it looks like a misspelt one; others are somebody else's.
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
        // A launched process knows which node it is; a program that says otherwise would take another's place.
        if key.name == "node"
            && let Some(Origin::Variable(variable)) = self.origins.get("node")
            && value.trim().parse() != Ok(self.config.node)
        {
            return Err(origin.error(format!(
                "the environment says {variable}={}; give the program the same node number, or none",
                self.config.node
            )));
        }
        self.apply(key, &Raw::Text(value.to_owned()), origin.clone())
    }

    fn apply(&mut self, key: &'static Key, value: &Raw, origin: Origin) -> Result<(), ConfigError> {
        if let Err(wrong) = (key.apply)(&mut self.config, value) {
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

/// libivy reads its address as hexadecimal digits whether or not they have their prefix.
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
