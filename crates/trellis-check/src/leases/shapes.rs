//! Small clusters with leases: each is the smallest that needs a certain rule.
//!
//! Promises: the tests explore [`small`] completely, also for every mutant; the command explores [`larger`]. Terms are
//! a few ticks and clocks are wrong by up to a third, so that the bound on clocks is reached exactly: a term of 12 is
//! held for 6, which is three ticks of the slowest clock and of the home's fastest clock.

use super::{Fault, Injection, Operation, Setup};
use trellis_fabric_protocol::lease::parts::Part;
use trellis_fabric_protocol::lease::{Host, RangeNumber, Timing};
use trellis_fabric_protocol::wire::address::PARTS_FROM;

/// The advance of a correct clock in a tick of real time.
const RIGHT: u64 = 3;
/// The advance of the slowest clock.
const SLOW: u64 = 2;
/// The advance of the fastest clock.
const FAST: u64 = 4;
const RATE_ERROR_PPM: u32 = 333_333;

/// The page is split off.
const SPLIT: Injection = Injection::Split(0, 1);

/// A read.
const READ: Operation = Operation::Read(0);

/// Takes page 0, loads from it, changes it and commits it; gives the lease back with the commit or keeps it.
fn change(release: bool) -> Vec<Operation> {
    let commit = Operation::Commit { page: 0, release };
    vec![Operation::Update(0), Operation::Change(0), commit]
}

/// Longer than an explored cluster lasts.
const NEVER: u64 = 1_000;

/// The timing of explored clusters. Without losses, no retries are needed.
fn timing(term: u64, home_lease: u64) -> Timing {
    Timing { renew: NEVER, ..Timing::new(term, home_lease, NEVER, RATE_ERROR_PPM) }
}

/// Owners renew their lease after a tick.
fn renewing(setup: Setup) -> Setup {
    Setup { timing: Timing { renew: 3, ..setup.timing }, ..setup }
}

/// A cluster with correct clocks.
fn setup(name: &str, servers: u16, backups: &[u16], clients: Vec<Vec<Operation>>) -> Setup {
    let mut setup = Setup {
        name: name.to_string(),
        pages: 1,
        servers,
        backups: backups.iter().copied().map(Host).collect(),
        parts: Vec::new(),
        part_backups: Vec::new(),
        clients,
        home_changes: 0,
        window: 64,
        readers: 0,
        timing: timing(12, NEVER),
        rates: Vec::new(),
        ticks: 0,
        duplicates: 0,
        misrouted: 0,
        injections: Vec::new(),
        fault: Fault::None,
    };
    setup.rates = vec![RIGHT; setup.nodes()];
    setup
}

/// The home's clock is fast and the first client's slow.
fn with_worst_clocks(mut setup: Setup) -> Setup {
    setup.rates[0] = FAST;
    let client = setup.client(0);
    setup.rates[client] = SLOW;
    setup
}

fn with_readers(readers: u16, setup: Setup) -> Setup {
    let mut setup = Setup { readers, ..setup };
    setup.rates = vec![RIGHT; setup.nodes()];
    setup
}

fn two(first: Vec<Operation>, second: Vec<Operation>) -> Vec<Vec<Operation>> {
    vec![first, second]
}

/// The page is a part from the start, at the home of the range.
fn with_part(setup: Setup) -> Setup {
    let part_backups = setup.backups.clone();
    Setup { parts: vec![Part { number: RangeNumber(PARTS_FROM), first: 0, pages: 1, since: 1 }], part_backups, ..setup }
}

/// Takes a lease and loads from the page.
fn look() -> Vec<Operation> {
    vec![Operation::Update(0), Operation::Look(0)]
}

/// Changes the page that it owns, and gives it back.
fn again() -> Vec<Operation> {
    vec![Operation::Change(0), Operation::Commit { page: 0, release: true }]
}

/// Clusters of thousands of states.
pub fn small() -> Vec<Setup> {
    let reads = || vec![READ, READ];
    vec![
        // The case of the paper: two clients take the page, one through a wrong redirect.
        Setup { misrouted: 2, ..setup("steal", 1, &[], two(change(true), change(true))) },
        // A lease runs out while its owner is about to commit; clocks differ as much as they may.
        Setup { ticks: 4, ..with_worst_clocks(setup("expiry", 1, &[], two(change(true), change(true)))) },
        // An owner whose lease has ended is asked for a page that another client has changed since.
        Setup {
            ticks: 3,
            misrouted: 1,
            ..with_worst_clocks(setup(
                "ended",
                1,
                &[],
                two(vec![Operation::Update(0)], [change(true), vec![READ]].concat()),
            ))
        },
        // An owner renews its lease, and the answer is late.
        renewing(Setup {
            ticks: 3,
            ..with_worst_clocks(setup("renewal", 1, &[], two(look(), vec![Operation::Update(0)])))
        }),
        // An owner commits twice, and a message arrives twice.
        Setup { duplicates: 1, ..setup("twice", 1, &[], two([change(false), again()].concat(), reads())) },
        // A switch delivers reads to the owner of the page.
        Setup { misrouted: 2, ..setup("redirect", 1, &[], two(change(false), reads())) },
        // A reader has a copy and is asked in place of the home.
        Setup { misrouted: 1, ..with_readers(1, setup("copies", 1, &[], two(change(true), vec![READ]))) },
        // A copy's term ends, by the slowest clock, while the home's clock is the fastest.
        {
            let mut setup = with_readers(1, setup("copy-expiry", 1, &[], vec![look()]));
            setup.rates = vec![FAST, RIGHT, SLOW, RIGHT];
            Setup { ticks: 4, ..setup }
        },
        // The home restarts while a client owns the page.
        Setup { ticks: 4, injections: vec![Injection::Restart(0)], ..setup("restart", 1, &[], two(look(), look())) },
        // The home restarts during a commit.
        Setup {
            injections: vec![Injection::Restart(0)],
            ..setup("restart-commit", 1, &[], two(change(false), reads()))
        },
        // The home restarts after a commit and receives the commit once more.
        Setup {
            duplicates: 1,
            injections: vec![Injection::Restart(0)],
            ..setup("restart-repeat", 1, &[], vec![[change(false), again(), vec![READ]].concat()])
        },
        // A commit is under way to a backup when the home restarts.
        Setup { injections: vec![Injection::Restart(0)], ..setup("staged", 2, &[1], two(change(true), reads())) },
        // The home dies; its backup takes over when the home lease has ended.
        Setup {
            timing: timing(6, 6),
            ticks: 2,
            misrouted: 1,
            injections: vec![Injection::Death(0)],
            ..setup("failover", 2, &[1], two(change(true), vec![READ]))
        },
        // A lease ends before its changes are committed; a reader wants a copy.
        Setup { ticks: 4, ..with_worst_clocks(with_readers(1, setup("late-commit", 1, &[], vec![change(true)]))) },
        // The home dies while a client owns the page that another wants.
        Setup {
            timing: timing(12, 3),
            ticks: 1,
            injections: vec![Injection::Death(0)],
            ..setup("failover-owned", 2, &[1], two(change(true), look()))
        },
        // The home is not heard for a while and does not know it.
        Setup { timing: timing(6, 6), ticks: 2, misrouted: 1, ..setup("silence", 2, &[1], vec![vec![READ]]) },
        // The range moves to a complete backup.
        Setup {
            misrouted: 1,
            injections: vec![Injection::Move(Host(1))],
            ..setup("move", 2, &[1], two(change(true), vec![READ]))
        },
        // The range gets a backup, which is removed a little later.
        Setup {
            injections: vec![Injection::Back(Host(1)), Injection::Drop(Host(1))],
            ..setup("backup", 2, &[], two(change(true), vec![READ]))
        },
        // Two clients wait for leases, one reader for a copy: each has its turn.
        with_readers(1, setup("turns", 1, &[], two(change(true), change(true)))),
        // The home changes the page itself and restarts.
        Setup {
            home_changes: 2,
            injections: vec![Injection::Restart(0)],
            ..setup("home-changes", 2, &[1], two(vec![READ], vec![READ]))
        },
        // The home dies during that, and its backup continues to change the page.
        Setup {
            home_changes: 1,
            timing: timing(6, 6),
            ticks: 2,
            misrouted: 1,
            injections: vec![Injection::Death(0)],
            ..setup("home-changes-failover", 2, &[1], vec![vec![READ, READ]])
        },
        // The range moves during that.
        Setup {
            home_changes: 1,
            injections: vec![Injection::Move(Host(1))],
            ..setup("home-changes-move", 2, &[1], two(vec![READ], vec![READ]))
        },
        // A client owns the page while the range moves.
        Setup {
            ticks: 1,
            injections: vec![Injection::Move(Host(1))],
            ..setup("move-owned", 2, &[1], two(look(), look()))
        },
        // The page is split off while a client owns it.
        Setup { injections: vec![SPLIT], ..setup("split-owned", 1, &[], two(look(), change(true))) },
        // The page is split off while a commit is under way to a backup.
        Setup { injections: vec![SPLIT], ..setup("split-staged", 2, &[1], vec![change(true)]) },
        // The page is split off while the home restarts.
        Setup {
            injections: vec![SPLIT, Injection::Restart(0)],
            ..setup("split-restart", 1, &[], two(change(true), vec![READ]))
        },
        // The page is split off while the controller restarts.
        Setup {
            injections: vec![SPLIT, Injection::Restart(2)],
            ..setup("split-controller", 1, &[], vec![change(true)])
        },
        // The home is not heard for a while and does not know that the part has been merged.
        with_part(Setup {
            timing: timing(6, 6),
            ticks: 2,
            injections: vec![Injection::Merge],
            ..setup("merge-silence", 2, &[1], vec![])
        }),
        // The part is merged while a client owns the page.
        with_part(Setup {
            injections: vec![Injection::Merge],
            ..setup("merge-owned", 1, &[], two(look(), change(true)))
        }),
        // The part is merged while a commit is under way to a backup.
        with_part(Setup { injections: vec![Injection::Merge], ..setup("merge-staged", 2, &[1], vec![change(true)]) }),
        // The part gets the range's backup, which lacks what was committed.
        Setup {
            part_backups: Vec::new(),
            injections: vec![Injection::BackPart(Host(1)), Injection::Merge],
            ..with_part(setup("merge-lacking", 2, &[1], vec![change(true)]))
        },
        // The part is merged while the home restarts.
        with_part(Setup {
            injections: vec![Injection::Merge, Injection::Restart(0)],
            ..setup("merge-restart", 1, &[], two(change(true), vec![READ]))
        }),
        // The part moves.
        with_part(Setup {
            misrouted: 1,
            injections: vec![Injection::MovePart(Host(1))],
            ..setup("part-move", 2, &[1], two(change(true), vec![READ]))
        }),
    ]
}

/// Clusters of up to some millions of states.
pub fn larger() -> Vec<Setup> {
    vec![
        renewing(Setup { ticks: 4, ..with_worst_clocks(setup("renewal-commit", 1, &[], two(change(true), look()))) }),
        Setup {
            ticks: 3,
            duplicates: 1,
            ..with_worst_clocks(setup("expiry-twice", 1, &[], two(change(true), change(true))))
        },
        Setup {
            misrouted: 2,
            duplicates: 2,
            ..setup("redirect-twice", 1, &[], two([change(false), again()].concat(), vec![READ, READ, READ]))
        },
        Setup {
            ticks: 1,
            misrouted: 1,
            duplicates: 1,
            ..with_readers(1, setup("copies-twice", 1, &[], two(change(true), vec![READ])))
        },
        Setup {
            duplicates: 1,
            misrouted: 1,
            injections: vec![Injection::Move(Host(1))],
            ..setup("move-to-new", 2, &[], two(change(true), vec![READ]))
        },
        Setup {
            ticks: 0,
            injections: vec![Injection::Move(Host(1)), Injection::Restart(0)],
            ..setup("move-restart", 2, &[1], two(look(), look()))
        },
        Setup {
            timing: timing(6, 6),
            ticks: 2,
            misrouted: 1,
            injections: vec![Injection::Death(0), Injection::Restart(3)],
            ..setup("failover-restart", 2, &[1], vec![vec![READ, READ]])
        },
        Setup {
            timing: timing(6, 6),
            ticks: 2,
            misrouted: 2,
            ..setup("silence-commit", 2, &[1], two(change(false), vec![READ]))
        },
        // The page is split off, and a message arrives twice.
        Setup {
            duplicates: 1,
            injections: vec![SPLIT],
            ..setup("split-twice", 2, &[1], two(change(true), vec![READ]))
        },
        // The part is merged, and a message arrives twice, or at another host.
        with_part(Setup {
            duplicates: 1,
            misrouted: 1,
            injections: vec![Injection::Merge],
            ..setup("merge-twice", 2, &[1], two(change(true), vec![READ]))
        }),
    ]
}

/// All clusters.
pub fn all() -> Vec<Setup> {
    small().into_iter().chain(larger()).collect()
}
