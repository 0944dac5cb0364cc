//! The table of keys: name, default, what is accepted, what it means, and how it is read.
//!
//! One row defines a key completely: the file reader, the environment and `--set` use it, and a test compares the
//! reference page with the table.

use std::path::PathBuf;

use super::choices::{AcquireDrops, Catch, Home, LinkKind, Pin, Reserve, Security, Start, WriteDetection};
use super::draft::Draft;
use super::values::{self, Raw};
use super::{NODES_MAX, leased, ranges};

/// One key of the configuration.
pub struct Key {
    /// The name, as in the file and in `--set name=value`; the environment variable is `TRELLIS_` and the name in
    /// upper case.
    pub name: &'static str,
    /// The value when none is given, in words.
    pub default: &'static str,
    /// The accepted values, in words.
    pub accepted: &'static str,
    /// The meaning of the key, in one sentence.
    pub meaning: &'static str,
    /// Applies a value to the configuration, or says what is wrong with it.
    pub(super) apply: fn(&mut Draft, &Raw) -> Result<(), Wrong>,
}

/// What is wrong with a value, and the line when it is not the key's own (an item of a list).
pub(super) struct Wrong {
    pub(super) line: Option<usize>,
    pub(super) sentence: String,
}

impl From<String> for Wrong {
    fn from(sentence: String) -> Self {
        Wrong { line: None, sentence }
    }
}

/// The key of that name.
pub fn key(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Every key, in the order of the reference page.
pub const KEYS: &[Key] = &[
    Key {
        name: "nodes",
        default: "[] (one node)",
        accepted: "a list of \"host:port\"",
        meaning: "The address of every node; the position in the list is the node's number.",
        apply: |draft, raw| {
            draft.nodes = nodes(raw)?;
            Ok(())
        },
    },
    Key {
        name: "node",
        default: "0 with one node, otherwise required",
        accepted: "a node number",
        meaning: "Which of the nodes this process is; never in a file, because the file is shared.",
        apply: |draft, raw| {
            draft.config.node = values::number(raw, 0, NODES_MAX as u64 - 1)? as usize;
            Ok(())
        },
    },
    Key {
        name: "manager",
        default: "0",
        accepted: "a node number",
        meaning: "The node that keeps the directory and owns every page at first.",
        apply: |draft, raw| {
            draft.config.manager = values::number(raw, 0, NODES_MAX as u64 - 1)? as usize;
            Ok(())
        },
    },
    Key {
        name: "joiners_max",
        default: "0",
        accepted: "0 to 63, with the nodes at most 64",
        meaning: "How many processes may join while the cluster runs, in all; 0 admits none.",
        apply: |draft, raw| {
            draft.config.joiners_max = values::number(raw, 0, NODES_MAX as u64 - 1)? as usize;
            Ok(())
        },
    },
    Key {
        name: "join",
        default: "none",
        accepted: "host:port",
        meaning: "A node of a running cluster that this process joins; what nodes must agree on is asked there.",
        apply: |draft, raw| {
            let address = values::text(raw, "host:port")?;
            values::host_and_port(&address)?;
            draft.join = Some(address);
            Ok(())
        },
    },
    Key {
        name: "engine",
        default: "auto",
        accepted: "auto, none, pmix, pmi, pmi2, slurm",
        meaning: "The engine that started the nodes, by which they find each other; auto looks for what mpirun, mpiexec and srun set.",
        apply: |draft, raw| {
            draft.engine = values::choice(raw, &["auto", "none", "pmix", "pmi", "pmi2", "slurm"])?;
            Ok(())
        },
    },
    Key {
        name: "rendezvous",
        default: "none",
        accepted: "host:port",
        meaning: "Where the nodes of a job meet: a port of one of their hosts.",
        apply: |draft, raw| {
            let address = values::text(raw, "host:port")?;
            values::host_and_port(&address)?;
            draft.rendezvous = Some(address);
            Ok(())
        },
    },
    Key {
        name: "rendezvous_nodes",
        default: "none",
        accepted: "with rendezvous: 1 to 64",
        meaning: "How many nodes meet there.",
        apply: |draft, raw| {
            draft.rendezvous_nodes = values::number(raw, 1, NODES_MAX as u64)? as usize;
            Ok(())
        },
    },
    Key {
        name: "rendezvous_job",
        default: "trellis",
        accepted: "with rendezvous: up to 40 letters, digits, and . _ -",
        meaning: "The name of the job, so that the nodes of another job are refused there.",
        apply: |draft, raw| {
            draft.rendezvous_job = Some(values::name(raw)?);
            Ok(())
        },
    },
    Key {
        name: "network",
        default: "none (the first that all hosts have)",
        accepted: "with an engine or a rendezvous: a prefix such as 10.1.0.0/16, or an interface",
        meaning: "The network by which nodes reach this host.",
        apply: |draft, raw| {
            draft.config.network =
                Some(values::text(raw, "a prefix such as 10.1.0.0/16, or an interface such as eth0")?);
            Ok(())
        },
    },
    Key {
        name: "advertise",
        default: "none (an address of this host)",
        accepted: "with an engine or a rendezvous: a name or an address, without a port",
        meaning: "What the others call this host, where they do not reach it at an address that it has; for each host its own.",
        apply: |draft, raw| {
            draft.config.advertise = Some(values::name_of_host(raw)?);
            Ok(())
        },
    },
    Key {
        name: "ports",
        default: "any",
        accepted: "with an engine, a rendezvous or `--hosts`: any, or a range such as 7000-7099",
        meaning: "The ports at which nodes listen, where a firewall between hosts lets only these through.",
        apply: |draft, raw| {
            draft.config.ports = values::text(raw, "any, or a range of ports such as 7000-7099")?.parse()?;
            Ok(())
        },
    },
    Key {
        name: "region_bytes",
        default: "256MiB",
        accepted: "64KiB to 64GiB, a multiple of page_bytes",
        meaning: "The size of the shared region.",
        apply: |draft, raw| {
            draft.config.region_bytes = usize::try_from(values::bytes(raw)?).map_err(|error| error.to_string())?;
            Ok(())
        },
    },
    Key {
        name: "heap_bytes",
        default: "none (half of region_bytes)",
        accepted: "0 to region_bytes, a multiple of page_bytes",
        meaning: "How much of the region, from its end, is the shared heap's; views end there. The same at every node.",
        apply: |draft, raw| {
            draft.config.heap_bytes = Some(usize::try_from(values::bytes(raw)?).map_err(|error| error.to_string())?);
            Ok(())
        },
    },
    Key {
        name: "base_address",
        default: "0x400000000000",
        accepted: "a hexadecimal address, a multiple of page_bytes and of 4096",
        meaning: "Where the region is mapped, the same in every process, so that pointers may be shared.",
        apply: |draft, raw| {
            draft.config.base_address = values::address(raw)?;
            Ok(())
        },
    },
    Key {
        name: "page_bytes",
        default: "4096",
        accepted: "a power of two from 4KiB to 2MiB",
        meaning: "The unit of coherence: what moves, is protected and is invalidated at once.",
        apply: |draft, raw| {
            draft.config.page_bytes = usize::try_from(values::bytes(raw)?).map_err(|error| error.to_string())?;
            Ok(())
        },
    },
    Key {
        name: "catch",
        default: "auto",
        accepted: "auto, signal, handler, mprotect",
        meaning: "How an access to a page that is not held is noticed.",
        apply: |draft, raw| {
            draft.config.catch = values::choice(raw, Catch::WORDS)?;
            Ok(())
        },
    },
    Key {
        name: "coherence",
        default: "ivy",
        accepted: "ivy, dynamic(forward), dynamic(redirect), dynamic(migratory), migrate, round any of them lock(…), delay(…); auto, round it lock(…); hlrc(invalidate), hlrc(update), hlrc(adaptive); lease",
        meaning: "The protocol that decides who may read or write a page now; lease goes with home = memory-server.",
        apply: leased::coherence,
    },
    Key {
        name: "coherence_ranges",
        default: "[] (none)",
        accepted: "a list of \"FIRST-END=PROTOCOL\", in bytes, multiples of page_bytes",
        meaning: "Parts of the region that have another protocol than the rest from the start; END is one past the last byte.",
        apply: |draft, raw| {
            draft.config.coherence_ranges = ranges::ranges(raw)?;
            Ok(())
        },
    },
    Key {
        name: "home",
        default: "manager; with hlrc first-touch",
        accepted: "manager, interleaved; with hlrc also first-touch, migrating; memory-server",
        meaning: "Which node keeps a page's directory entry and its first copy, or that the region lies at memory servers.",
        apply: |draft, raw| {
            draft.config.home = values::choice(raw, Home::WORDS)?;
            Ok(())
        },
    },
    Key {
        name: "memory_server",
        default: "none (`trellis run` starts one)",
        accepted: "with home = memory-server: a list of prefixes of hosts, such as fd12:3456:7::/48",
        meaning: "The memory servers at which the region lies, each with an equal part of it; needed at the manager.",
        apply: |draft, raw| {
            draft.config.memory_servers = leased::prefixes(raw)?;
            Ok(())
        },
    },
    Key {
        name: "prefix",
        default: "none",
        accepted: "the prefix of a host, such as fd12:3456:7::/48",
        meaning: "The addresses of this host in the memory servers' network.",
        apply: |draft, raw| {
            draft.config.prefix = Some(leased::prefix(raw)?);
            Ok(())
        },
    },
    Key {
        name: "cache_bytes_max",
        default: "256MiB",
        accepted: "with home = memory-server: 1MiB and more",
        meaning: "How much memory pages of memory servers take at a node; what is used the least goes back.",
        apply: |draft, raw| {
            draft.config.cache_bytes_max = usize::try_from(values::bytes(raw)?).map_err(|error| error.to_string())?;
            Ok(())
        },
    },
    Key {
        name: "pin",
        default: "none",
        accepted: "none, core",
        meaning: "Where the thread that joins, and threads that it starts, may run: anywhere, or on core (node number modulo cores), for comparable times.",
        apply: |draft, raw| {
            draft.config.pin = values::choice(raw, Pin::WORDS)?;
            Ok(())
        },
    },
    Key {
        name: "write_detection",
        default: "auto",
        accepted: "auto, marks, faults",
        meaning: "How stores to copies are noticed under hlrc: by marks that the kernel makes (Linux 6.7) or by faults.",
        apply: |draft, raw| {
            draft.config.write_detection = values::choice(raw, WriteDetection::WORDS)?;
            Ok(())
        },
    },
    Key {
        name: "acquire_drops",
        default: "noticed",
        accepted: "noticed, all",
        meaning: "Which copies under hlrc an acquire drops: those that notices name, or all, which finds programs that lack synchronisation; all needs marks.",
        apply: |draft, raw| {
            draft.config.acquire_drops = values::choice(raw, AcquireDrops::WORDS)?;
            Ok(())
        },
    },
    Key {
        name: "link",
        default: "auto",
        accepted: "auto, tcp, udp, shm, fabric",
        meaning: "How messages travel between nodes; auto takes the best that both nodes of a pair have.",
        apply: |draft, raw| {
            draft.config.link = values::choice(raw, LinkKind::WORDS)?;
            Ok(())
        },
    },
    Key {
        name: "fabric_provider",
        default: "none (libfabric's choice)",
        accepted: "with link = fabric: a provider such as tcp, shm, verbs, efa, cxi",
        meaning: "Which provider of libfabric carries frames, the same on every node; `trellis doctor` lists them.",
        apply: |draft, raw| {
            draft.fabric_provider = match raw {
                Raw::Text(text) if text.trim().is_empty() => None,
                _ => Some(values::text(raw, "a provider such as tcp or shm")?),
            };
            Ok(())
        },
    },
    Key {
        name: "link_faults",
        default: "none",
        accepted: "with link = udp: drop=10%,duplicate=5%,reorder=5%,seed=7, and corrupt=1%, delay=2ms, partition=100ms/2s",
        meaning: "A bad network between this node and its peers, for tests and experiments.",
        apply: |draft, raw| {
            draft.link_faults = match raw {
                Raw::Text(text) if text.trim().is_empty() => None,
                _ => Some(values::text(raw, "faults such as drop=10%,seed=7")?.parse()?),
            };
            Ok(())
        },
    },
    Key {
        name: "multicast_group",
        default: "auto",
        accepted: "with link = udp: auto, off, an IPv4 group such as 239.1.2.3, or one with the port of node 0, 239.1.2.3:4567",
        meaning: "Where frames for several nodes go in one datagram; auto takes an address of 239.255.0.0/16 that follows from the secret.",
        apply: |draft, raw| {
            draft.multicast = values::text(raw, "auto, off, or a group such as 239.1.2.3")?.parse()?;
            Ok(())
        },
    },
    Key {
        name: "security",
        default: "auto",
        accepted: "auto, sealed, signed, insecure-plain",
        meaning: "What protects a frame on its way; auto is plain on loopback and sealed otherwise.",
        apply: |draft, raw| {
            draft.config.security = values::choice(raw, Security::WORDS)?;
            Ok(())
        },
    },
    Key {
        name: "secret_file",
        default: "none",
        accepted: "a path",
        meaning: "A file of mode 0600 with the 32 bytes, or 64 hexadecimal digits, that every node must know.",
        apply: |draft, raw| {
            draft.config.secret_file = Some(PathBuf::from(values::text(raw, "a path")?));
            Ok(())
        },
    },
    Key {
        name: "reserve",
        default: "lazy",
        accepted: "lazy, full, overcommit",
        meaning: "When this machine must prove that it can hold the region.",
        apply: |draft, raw| {
            draft.config.reserve = values::choice(raw, Reserve::WORDS)?;
            Ok(())
        },
    },
    Key {
        name: "start",
        default: "all; manager with a libivy JSON file",
        accepted: "all, manager",
        meaning: "The nodes that a node waits for when it starts: all nodes, or only the manager.",
        apply: |draft, raw| {
            draft.config.start = values::choice(raw, Start::WORDS)?;
            Ok(())
        },
    },
    Key {
        name: "start_seconds_max",
        default: "60",
        accepted: "1 to 86400",
        meaning: "How long a node waits for its peers when it starts; the error names who did not come.",
        apply: |draft, raw| {
            draft.config.start_seconds_max = values::number(raw, 1, 86_400)?;
            Ok(())
        },
    },
    Key {
        name: "silence_seconds_max",
        default: "10",
        accepted: "1 to 3600",
        meaning: "How long a peer may be silent while something is expected of it before it is reported by name.",
        apply: |draft, raw| {
            draft.config.silence_seconds_max = values::number(raw, 1, 3_600)?;
            Ok(())
        },
    },
    Key {
        name: "wait_seconds_max",
        default: "3600",
        accepted: "1 to 604800",
        meaning: "How long a barrier or a lock waits for other nodes before it returns an error.",
        apply: |draft, raw| {
            draft.config.wait_seconds_max = values::number(raw, 1, 604_800)?;
            Ok(())
        },
    },
    Key {
        name: "fault_seconds_max",
        default: "120",
        accepted: "1 to 604800",
        meaning: "How long a thread waits for a page, which travels in microseconds, before the node gives up.",
        apply: |draft, raw| {
            draft.config.fault_seconds_max = values::number(raw, 1, 604_800)?;
            Ok(())
        },
    },
    Key {
        name: "spin_microseconds_max",
        default: "200",
        accepted: "0 to 1000000",
        meaning: "How long a waiting thread polls before it sleeps; never while other threads want the cores, or when more nodes than cores share a host.",
        apply: |draft, raw| {
            draft.config.spin_microseconds_max = values::number(raw, 0, 1_000_000)?;
            Ok(())
        },
    },
    Key {
        name: "prefetch_pages_max",
        default: "128",
        accepted: "0 to 65536",
        meaning: "How many pages a sequential access may ask for at once; 0 asks for each page alone.",
        apply: |draft, raw| {
            draft.config.prefetch_pages_max = values::number(raw, 0, 65_536)? as usize;
            Ok(())
        },
    },
    Key {
        name: "ready_file",
        default: "none",
        accepted: "a path",
        meaning: "A file that exists from when this node has met all others until it leaves, for probes; each node of a host has its own.",
        apply: |draft, raw| {
            draft.config.ready_file = Some(PathBuf::from(values::text(raw, "a path")?));
            Ok(())
        },
    },
    Key {
        name: "record",
        default: "none",
        accepted: "a folder",
        meaning: "Where every node writes what it did (node-0.json and so on), for `trellis report`.",
        apply: |draft, raw| {
            draft.config.record = Some(PathBuf::from(values::text(raw, "a folder")?));
            Ok(())
        },
    },
    Key {
        name: "record_faults_max",
        default: "1000000",
        accepted: "0 to 100000000",
        meaning: "How many faults a node's record keeps; later ones are counted, not kept.",
        apply: |draft, raw| {
            draft.config.record_faults_max = values::number(raw, 0, 100_000_000)? as usize;
            Ok(())
        },
    },
    Key {
        name: "statistics",
        default: "false",
        accepted: "true, false",
        meaning: "Whether a node prints its counters on standard error when it leaves.",
        apply: |draft, raw| {
            draft.config.statistics = values::truth(raw)?;
            Ok(())
        },
    },
];

/// Reads the list of nodes: every address valid, none twice, not more than a cluster may have.
pub(super) fn nodes(raw: &Raw) -> Result<Vec<String>, Wrong> {
    let items = values::addresses(raw)?;
    if items.len() > NODES_MAX {
        return Err(format!("{} nodes are too many; accepted: at most {NODES_MAX}", items.len()).into());
    }
    let mut seen: Vec<(String, u16)> = Vec::with_capacity(items.len());
    for (item, line) in &items {
        let at_line = |sentence| Wrong { line: *line, sentence };
        let (host, port) = values::host_and_port(item).map_err(at_line)?;
        let host = host.to_ascii_lowercase();
        let same_place = (if host == "localhost" { "127.0.0.1".to_owned() } else { host }, port);
        if let Some(first) = seen.iter().position(|other| *other == same_place) {
            let sentence = format!(
                "node {first} and node {} both have the address {item}; accepted: every node its own host and port",
                seen.len()
            );
            return Err(at_line(sentence));
        }
        seen.push(same_place);
    }
    Ok(items.into_iter().map(|(item, _)| item).collect())
}
