//! The choices that a configuration names by word: one enumeration per key, each word listed once.
//!
//! It must never accept or guess a word that is not listed: the error lists the accepted ones.

use trellis_transport::{Faults, Multicast};

/// Declares an enumeration whose variants have words, with the list, `Display` and `FromStr`.
macro_rules! choices {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every accepted word, in the order of the documentation.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word of this choice.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.word())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!("`{word}` is none of the choices; accepted: {}", Self::WORDS.join(", "))),
                }
            }
        }
    };
}

choices! {
    /// How an access to a page that is not held is noticed.
    Catch {
        /// The best one that this machine offers; `trellis doctor` says which and why.
        Auto = "auto",
        /// userfaultfd, served in the faulting thread: the fastest. System calls work through the C library.
        Signal = "signal",
        /// userfaultfd, served by a thread: system calls on shared buffers work.
        Handler = "handler",
        /// SIGSEGV and mprotect, for machines without userfaultfd.
        Mprotect = "mprotect",
    }
}

choices! {
    /// Which node keeps the directory entry and the first copy of a page.
    Home {
        /// All pages at the node named by the key `manager`.
        Manager = "manager",
        /// Pages dealt out to the nodes in turn.
        Interleaved = "interleaved",
        /// Each page at the first node that touches it (`hlrc`).
        FirstTouch = "first-touch",
        /// Each page at the first node that touches it, then at the node that writes it most (`hlrc`).
        Migrating = "migrating",
        /// At memory servers; nodes have pages under leases (`lease`).
        MemoryServer = "memory-server",
    }
}

choices! {
    /// How stores to a copy are noticed under `hlrc`.
    WriteDetection {
        /// Marks if this machine's kernel makes them, else faults; `trellis doctor` says which and why.
        Auto = "auto",
        /// The kernel marks pages that are stored to.
        Marks = "marks",
        /// The first store to each page after each publication is a fault.
        Faults = "faults",
    }
}

choices! {
    /// Which copies an acquire drops under `hlrc`, unless this node is their home.
    AcquireDrops {
        /// The copies that notices name.
        Noticed = "noticed",
        /// All: a program that lacks synchronisation fails more often, and runs slowly.
        All = "all",
    }
}

/// How messages travel between nodes, with what belongs to one link only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// The best for each pair of nodes: shared memory on one host, otherwise tcp.
    Auto,
    /// One TCP connection per pair of nodes.
    Tcp,
    /// Datagrams, with delivery made by the nodes themselves.
    Udp {
        /// Faults of the network between this node and its peers, for tests and experiments.
        faults: Option<Faults>,
        /// The group to which frames for several nodes go in one datagram.
        multicast: Multicast,
    },
    /// Shared memory between nodes of one host, and nothing else.
    Shm,
    /// Messages and one-sided reads through libfabric; only in builds with the feature `fabric`.
    Fabric {
        /// The provider of libfabric. `None` leaves the choice to libfabric.
        provider: Option<String>,
    },
}

impl LinkKind {
    /// Every accepted word, in the order of the documentation.
    pub const WORDS: &'static [&'static str] = &["auto", "tcp", "udp", "shm", "fabric"];

    /// The word of this choice.
    pub fn word(&self) -> &'static str {
        match self {
            LinkKind::Auto => "auto",
            LinkKind::Tcp => "tcp",
            LinkKind::Udp { .. } => "udp",
            LinkKind::Shm => "shm",
            LinkKind::Fabric { .. } => "fabric",
        }
    }

    /// Whether nodes exchange datagrams.
    pub fn has_datagrams(&self) -> bool {
        matches!(self, LinkKind::Udp { .. })
    }
}

impl std::fmt::Display for LinkKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.word())
    }
}

impl std::str::FromStr for LinkKind {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Ok(match word {
            "auto" => LinkKind::Auto,
            "tcp" => LinkKind::Tcp,
            "udp" => LinkKind::Udp { faults: None, multicast: Multicast::Automatic },
            "shm" => LinkKind::Shm,
            "fabric" => LinkKind::Fabric { provider: None },
            _ => return Err(format!("`{word}` is none of the choices; accepted: {}", Self::WORDS.join(", "))),
        })
    }
}

choices! {
    /// What a link does to a frame before it is sent.
    Security {
        /// Plain when every node is on this host's loopback, sealed otherwise.
        Auto = "auto",
        /// Encrypted and authenticated.
        Sealed = "sealed",
        /// Authenticated, readable by anyone on the path.
        Signed = "signed",
        /// Neither encrypted nor authenticated: anyone on the path can read and change memory.
        InsecurePlain = "insecure-plain",
    }
}

choices! {
    /// The launcher of a job, through which its nodes find each other.
    Engine {
        /// Open MPI, PRRTE, or Slurm with `--mpi=pmix`: through libpmix.
        Pmix = "pmix",
        /// MPICH, Intel MPI, or Slurm with `--mpi=pmi2`: through PMI-1, or PMI-2 if the engine has only that.
        Pmi = "pmi",
        /// The same through PMI-2.
        Pmi2 = "pmi2",
        /// Slurm's tasks, at the first host of their step.
        Slurm = "slurm",
    }
}

choices! {
    /// When the machine must prove that it can hold the region.
    Reserve {
        /// The start is refused if the region is larger than the available memory. Memory is taken when it is touched.
        Lazy = "lazy",
        /// All memory is taken and mapped at the start, so that no first touch costs anything later. With hlrc, it is
        /// twice as much.
        Full = "full",
        /// The memory is not checked.
        Overcommit = "overcommit",
    }
}

choices! {
    /// Where the thread that joins may run.
    Pin {
        /// On any core that the kernel chooses.
        None = "none",
        /// On one core: the core with the node's number, modulo the number of cores.
        Core = "core",
    }
}

choices! {
    /// The nodes that a node waits for when it starts.
    Start {
        /// Every node must come within `start_seconds_max`.
        All = "all",
        /// Only the manager must come within that time; the others may come at any time, as in libivy.
        Manager = "manager",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_back_as_the_choice_that_prints_it() {
        for word in Catch::WORDS {
            assert_eq!(&word.parse::<Catch>().unwrap().to_string(), word);
        }
        for word in Security::WORDS {
            assert_eq!(&word.parse::<Security>().unwrap().to_string(), word);
        }
    }

    #[test]
    fn an_unknown_word_lists_the_accepted_ones() {
        assert_eq!(
            "plain".parse::<Security>().unwrap_err(),
            "`plain` is none of the choices; accepted: auto, sealed, signed, insecure-plain"
        );
    }
}
