//! What a seed stands for: the cluster, its programs, its network and what goes wrong.
//!
//! Promises: a scenario is decided by its seed and the protocol that was asked for, on every machine; each kind of
//! fault is on or off by itself (swarm testing: Groce et al. 2012), so that no fault hides what another would show. It
//! must never look at anything but the seed.

use std::fmt;
use std::str::FromStr;
use trellis_base::Random;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::homes::{Home, Interleaved, Manager};
use trellis_cluster_protocol::{CHUNK_PAGES, Nanoseconds, NodeId, PageIndex, PageRange};

/// The maximum number of shards of a node.
const SHARDS_MAX: u32 = 2;

/// What names a simulation: a protocol, or whichever the number chooses, and a number.
///
/// `ivy:12345` and `12345` are seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seed {
    /// The protocol; `None` leaves the choice to the number.
    pub protocol: Option<Protocol>,
    /// Decides everything else.
    pub number: u64,
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Some(protocol) => write!(f, "{protocol}:{}", self.number),
            None => write!(f, "{}", self.number),
        }
    }
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Seed, String> {
        let (protocol, number) = match text.trim().rsplit_once(':') {
            Some((protocol, number)) => {
                (Some(protocol.parse::<Protocol>().map_err(|error| error.to_string())?), number)
            }
            None => (None, text.trim()),
        };
        match number.parse() {
            Ok(number) => Ok(Seed { protocol, number }),
            Err(_) => {
                Err(format!("`{text}` is not a seed; a seed is a whole number, or a protocol and one: ivy:12345"))
            }
        }
    }
}

/// Which pages programs use: the first ones of every chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of chunks; each may have a home of its own.
    pub chunks: u32,
    /// Pages used of each chunk.
    pub pages_of_chunk: u32,
}

impl crate::model::Layout for Layout {
    fn places(self) -> usize {
        Layout::places(self) as usize
    }

    fn place(self, page: PageIndex) -> usize {
        Layout::place(self, page)
    }

    fn has(self, range: PageRange) -> bool {
        Layout::has(self, range)
    }
}

impl Layout {
    /// How many pages are used.
    pub fn places(self) -> u32 {
        self.chunks * self.pages_of_chunk
    }

    /// The number of shards of a node.
    pub fn shards(self) -> u32 {
        self.chunks.min(SHARDS_MAX)
    }

    /// Pages of the region.
    pub fn pages(self) -> u32 {
        (self.chunks - 1) * CHUNK_PAGES + self.pages_of_chunk
    }

    /// The number of a used page among those that are used.
    pub fn place(self, page: PageIndex) -> usize {
        let chunk = page.0 / CHUNK_PAGES;
        (chunk * self.pages_of_chunk + page.0 - self.first_of(chunk)) as usize
    }

    /// The used page with that number.
    pub fn page(self, place: u32) -> PageIndex {
        PageIndex(self.first_of(place / self.pages_of_chunk) + place % self.pages_of_chunk)
    }

    /// The used pages of each chunk.
    pub fn runs(self) -> impl Iterator<Item = PageRange> {
        let run = move |first: u32| PageRange::around(PageIndex(first), first, first + self.pages_of_chunk);
        (0..self.chunks).map(move |chunk| run(self.first_of(chunk)))
    }

    /// Whether all pages of `range` are used.
    pub fn has(self, range: PageRange) -> bool {
        let chunk = range.first().0 / CHUNK_PAGES;
        let first = self.first_of(chunk);
        chunk < self.chunks && first <= range.first().0 && range.end() <= first + self.pages_of_chunk
    }

    /// `before` and `after` pages round `page`, as far as they are used.
    pub fn around(self, page: PageIndex, before: u32, after: u32) -> PageRange {
        let first = self.first_of(page.0 / CHUNK_PAGES);
        let end = first + self.pages_of_chunk;
        PageRange::around(page, page.0.saturating_sub(before).max(first), (page.0 + 1 + after).min(end))
    }

    /// The end of the used pages from `first` on, of which there are at most `count`; they may be of several chunks.
    pub fn end_of_run(self, first: PageIndex, count: u32) -> u32 {
        let place = self.place(first) as u32;
        let is_next = |&offset: &u32| place + offset < self.places() && self.page(place + offset).0 == first.0 + offset;
        first.0 + (0..count).take_while(is_next).count() as u32
    }

    /// The first used page of a chunk. Where two chunks are, the last pages of the one and the first of the other are
    /// neighbours.
    fn first_of(self, chunk: u32) -> u32 {
        let is_at_end = chunk.is_multiple_of(2) && chunk + 1 < self.chunks;
        chunk * CHUNK_PAGES + if is_at_end { CHUNK_PAGES - self.pages_of_chunk } else { 0 }
    }
}

/// What the threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Any page, any kind.
    Uniform,
    /// Mostly one page.
    Hot,
    /// Pages one after the other, announced now and then.
    Stream,
    /// One node stores, the others load.
    ProducerConsumer,
    /// Each load is followed by a store to the same page.
    Migratory,
    /// One access in twenty stores.
    ReadMostly,
    /// All nodes store to the same few pages.
    FalseSharing,
    /// Critical sections under locks, and words.
    Sections,
    /// Ranges of pages are locked (only where the protocol can).
    RangeLocks,
    /// A barrier after every few accesses.
    Phases,
    /// One thread of each node changes the protocol of a range, while the others use it.
    Changes,
    /// Blocks of the shared heap are allocated, and freed at any node.
    Blocks,
    /// Anything of the above that needs no barrier.
    Mixed,
    /// Every thread stores to the first page as often as it can.
    Writers,
    /// The threads take turns at the first page; whose turn it is stands in the page.
    Turns,
    /// The same by stores alone: who waits stores to the page all the time, as on a test-and-set lock.
    Exchanges,
    /// Nothing but barriers.
    Barriers,
    /// Nothing but one lock.
    OneLock,
}

impl Pattern {
    const RANDOM: [Pattern; 13] = [
        Pattern::Uniform,
        Pattern::Hot,
        Pattern::Stream,
        Pattern::ProducerConsumer,
        Pattern::Migratory,
        Pattern::ReadMostly,
        Pattern::FalseSharing,
        Pattern::Sections,
        Pattern::RangeLocks,
        Pattern::Phases,
        Pattern::Changes,
        Pattern::Blocks,
        Pattern::Mixed,
    ];
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Datagrams are lost.
    pub drop: bool,
    /// Datagrams arrive twice.
    pub duplicate: bool,
    /// Some messages take very long.
    pub delay: bool,
    /// Messages overtake each other.
    pub reorder: bool,
    /// The network falls into two parts for a while.
    pub partition: bool,
    /// A node stops for ever.
    pub crash: bool,
    /// A node does nothing for a while, and goes on.
    pub pause: bool,
    /// Nodes join late.
    pub join: bool,
    /// Nodes that joined leave.
    pub leave: bool,
}

impl Faults {
    /// Their names, in the order of the issue that asked for them.
    pub fn names(self) -> Vec<&'static str> {
        let all = [
            (self.drop, "drop"),
            (self.duplicate, "duplicate"),
            (self.delay, "delay"),
            (self.reorder, "reorder"),
            (self.partition, "partition"),
            (self.crash, "crash"),
            (self.pause, "pause"),
            (self.join, "late join"),
            (self.leave, "leave"),
        ];
        all.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect()
    }
}

/// The network between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wires {
    /// The shortest way from node to node.
    pub latency_ns: Nanoseconds,
    /// Pairs of nodes are up to so much further apart.
    pub spread_ns: Nanoseconds,
    /// Each message takes up to so much longer.
    pub jitter_ns: Nanoseconds,
    /// What a node can send; what it sends at the same time queues.
    pub bytes_per_second: u64,
    /// Bytes of a page.
    pub page_bytes: u32,
}

/// How threads and runtimes behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manners {
    /// A thread computes up to so long between accesses.
    pub think_ns: Nanoseconds,
    /// A woken thread looks again after up to so long.
    pub look_ns: Nanoseconds,
    /// A page that is wanted stays at most so long for the thread that it came for.
    pub hold_ns: Nanoseconds,
    /// Time passes between an access and the report of its fault.
    pub late_faults: bool,
    /// Some loads ask for the right to store.
    pub eager: bool,
    /// Requests also ask for the pages around theirs.
    pub wide: bool,
    /// Pages are guessed and announced.
    pub guesses: bool,
    /// The runtime is not told when a thread runs on, as with the `handler` catcher.
    pub silent: bool,
}

/// Everything about one simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What it was made of.
    pub seed: Seed,
    /// The protocol of every page at the start.
    pub protocol: Protocol,
    /// Who manages which page.
    pub home: Home,
    /// The founder that lets nodes in and out.
    pub coordinator: u16,
    /// Nodes that are there from the start.
    pub founders: u16,
    /// Nodes that may join.
    pub joiners: u16,
    /// The pages.
    pub layout: Layout,
    /// Threads of every node.
    pub threads: u8,
    /// How often each thread does what the pattern says.
    pub operations: u32,
    /// What the threads do.
    pub pattern: Pattern,
    /// Which share of the accesses are stores, where the pattern leaves that open.
    pub write_percent: u8,
    /// How they and their runtimes behave.
    pub manners: Manners,
    /// The network.
    pub wires: Wires,
    /// What goes wrong.
    pub faults: Faults,
    /// Whether messages travel as datagrams, under the recovery of the `udp` link.
    pub datagrams: bool,
    /// When the faults end.
    pub heal_at: Nanoseconds,
}

const MICROSECOND: Nanoseconds = 1_000;
const MILLISECOND: Nanoseconds = 1_000_000;

impl Scenario {
    /// A cluster without faults: programs with one thread on each of `nodes` nodes, which all use one page of node 0.
    /// Threads compute for a microsecond, and runtimes do not delay.
    pub fn calm(protocol: Protocol, nodes: u16, pattern: Pattern) -> Scenario {
        Scenario {
            seed: Seed { protocol: Some(protocol), number: 1 },
            protocol,
            home: Home::Manager(Manager(NodeId(0))),
            coordinator: 0,
            founders: nodes,
            joiners: 0,
            layout: Layout { chunks: 1, pages_of_chunk: 1 },
            threads: 1,
            operations: 60,
            pattern,
            write_percent: 50,
            manners: Manners {
                think_ns: MICROSECOND,
                look_ns: 2 * MICROSECOND,
                hold_ns: 5 * MILLISECOND,
                late_faults: false,
                eager: false,
                wide: false,
                guesses: false,
                silent: false,
            },
            wires: Wires {
                latency_ns: 10 * MICROSECOND,
                spread_ns: 0,
                jitter_ns: 0,
                bytes_per_second: 1_250_000_000,
                page_bytes: 4096,
            },
            faults: Faults::default(),
            datagrams: false,
            heal_at: 0,
        }
    }

    /// The scenario that `seed` stands for.
    pub fn from_seed(seed: Seed) -> Scenario {
        let mut random = Random::for_purpose(seed.number, 0);
        let any = random.one_of(&Protocol::all());
        let protocol = seed.protocol.unwrap_or(any);
        let large = random.once_in(25);
        let founders = if large { random.between(9, 40) } else { random.between(2, 8) } as u16;
        let faults = draw_faults(&mut random);
        let joiners = if faults.join { random.between(1, 3) as u16 } else { 0 };
        let central = random.once_in(2);
        let chunks = if central { 1 } else { random.between(1, 4) as u32 };
        let pages = if random.once_in(3) { random.between(1, 3) } else { random.between(2, 64) } as u32;
        let manager = NodeId(random.below(u64::from(founders)) as u16);
        let pattern = draw_pattern(&mut random, protocol, faults);
        let threads = random.between(1, 3) as u8;
        let workers = u32::from(founders + joiners) * u32::from(threads);
        let operations = (random.between(200, 1200) as u32 / workers).clamp(6, 120);
        // Nodes do not join over datagrams, whose order is not kept.
        let datagrams = random.once_in(2) && !faults.join;
        Scenario {
            seed: Seed { protocol: Some(protocol), number: seed.number },
            protocol,
            home: if central { Home::Manager(Manager(manager)) } else { Home::Interleaved(Interleaved) },
            coordinator: manager.0,
            founders,
            joiners,
            layout: Layout { chunks, pages_of_chunk: pages.div_ceil(chunks) },
            threads,
            operations,
            pattern,
            write_percent: random.between(5, 80) as u8,
            manners: draw_manners(&mut random),
            wires: draw_wires(&mut random),
            faults: Faults { drop: faults.drop && datagrams, duplicate: faults.duplicate && datagrams, ..faults },
            datagrams,
            heal_at: random.between(1, 30) * MILLISECOND,
        }
    }

    /// Most nodes that there can be.
    pub fn nodes(&self) -> u16 {
        self.founders + self.joiners
    }

    /// Whether nothing happens that may keep a request waiting beyond what the protocols promise.
    pub fn is_fair(&self) -> bool {
        self.faults == Faults { reorder: self.faults.reorder, ..Faults::default() }
            // A congestion window makes one node's requests slower than another's by any factor.
            && !self.datagrams
            && !self.protocol.can_lock()
            && self.manners.look_ns < self.manners.hold_ns
            && self.pattern != Pattern::Changes
    }

    /// In a few words.
    pub fn describe(&self) -> String {
        let faults = self.faults.names();
        format!(
            "{}: {} of {} + {} nodes, {} pages in {} chunks, home {}, {} threads, {} x {:?}, {}, faults: {}",
            self.seed,
            self.protocol,
            self.founders,
            self.joiners,
            self.layout.places(),
            self.layout.chunks,
            self.home.name(),
            self.threads,
            self.operations,
            self.pattern,
            if self.datagrams { "datagrams" } else { "streams" },
            if faults.is_empty() { "none".to_string() } else { faults.join(", ") }
        )
    }
}

fn draw_faults(random: &mut Random) -> Faults {
    let mut toss = || random.once_in(3);
    let mut faults = Faults {
        drop: toss(),
        duplicate: toss(),
        delay: toss(),
        reorder: toss(),
        partition: toss(),
        crash: toss() && toss(),
        pause: toss(),
        join: toss(),
        leave: toss(),
    };
    // A cluster with a dead node ends: joining and leaving in it would be tried by fewer seeds than alone.
    faults.join &= !faults.crash;
    faults.leave &= faults.join;
    // One seed in six is a calm one, in which waiting is bounded.
    if random.once_in(6) {
        faults = Faults { reorder: faults.reorder, ..Faults::default() };
    }
    faults
}

fn draw_pattern(random: &mut Random, protocol: Protocol, faults: Faults) -> Pattern {
    let pattern = random.one_of(&Pattern::RANDOM);
    match pattern {
        Pattern::RangeLocks if !protocol.can_lock() => Pattern::Hot,
        Pattern::Uniform | Pattern::Stream if protocol.can_lock() => Pattern::RangeLocks,
        // All nodes change a protocol together.
        Pattern::Changes if faults.join || faults.crash => Pattern::Mixed,
        other => other,
    }
}

fn draw_manners(random: &mut Random) -> Manners {
    let hold_ns = random.one_of(&[50 * MICROSECOND, MILLISECOND, 5 * MILLISECOND]);
    Manners {
        think_ns: random.one_of(&[0, MICROSECOND, 20 * MICROSECOND, 200 * MICROSECOND]),
        // Now and then threads are so slow that pages do not wait for them.
        look_ns: if random.once_in(5) { hold_ns * 2 } else { hold_ns / 2 }.min(200 * MICROSECOND),
        hold_ns,
        late_faults: random.once_in(3),
        eager: random.once_in(3),
        wide: random.once_in(2),
        guesses: random.once_in(3),
        silent: random.once_in(3),
    }
}

fn draw_wires(random: &mut Random) -> Wires {
    let latency_ns = random.one_of(&[MICROSECOND, 10 * MICROSECOND, 50 * MICROSECOND, 500 * MICROSECOND]);
    Wires {
        latency_ns,
        spread_ns: random.one_of(&[0, latency_ns / 2, latency_ns * 3]),
        jitter_ns: random.one_of(&[0, latency_ns / 4, latency_ns]),
        bytes_per_second: random.one_of(&[125_000_000, 1_250_000_000, 12_500_000_000]),
        page_bytes: random.one_of(&[4096, 4096, 65_536]),
    }
}
