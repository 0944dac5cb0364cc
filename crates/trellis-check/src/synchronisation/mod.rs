//! Programs whose threads wait for each other in every possible way, on a cluster without shared pages.
//!
//! The [cluster](crate::release) is that of the other explorations; its pages are not used, and nothing is published. A
//! thread chooses an object, and what it wants of it. A ledger of all calls checks for each program:
//!
//! 1. *Mutual exclusion*: a lock is given to a thread only while no other holds it; a read-write lock only to one
//!    writer or to readers; a semaphore admits as many threads as there were permits.
//! 2. *First come, first served*: nodes get the token of a lock in the order in which their requests reached its home.
//! 3. *No thread leaves a barrier* before all have entered it; a reduction contains every contribution.
//! 4. *Additions are linearizable*: each sees a value that no other saw, larger than all that were seen before it
//!    began and smaller than the number of additions begun.
//! 5. *No wake-up without a cause*: an event must have been set, a condition notified, a once completed.
//! 6. *Every call ends*, and is woken exactly once: no notification, permit or lock is lost, even if calls are abandoned.
//! 7. *Nothing is left behind*: at the end no node remembers anything about calls.

mod ledger;

pub(crate) use ledger::Ledger;

use crate::mutants::SyncFault;
use crate::release::explore::Orders;
use crate::release::{Fault, Operation, Script, Setup, Troubles};
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::homes::{Home, Manager};
use trellis_cluster_protocol::node::{PublicationLimits, STORED_IN_A_ROW};
use trellis_cluster_protocol::sync::{
    Demand, EventDemand, Input, OnceDemand, ReadWriteDemand, SemaphoreDemand, Waiter,
};

/// The programs; every thread runs its program `rounds` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Program {
    /// Takes one of the locks and releases it.
    Locks,
    /// The same, but a waiting call may be abandoned.
    AbandonedLocks,
    /// Enters the barrier (one thread per node).
    Barrier,
    /// Adds one to one of the words.
    Words,
    /// Takes or tries one of the locks, and releases it if it was taken.
    TriedLocks,
    /// Enters the barrier with a number, and receives the sum (one thread per node).
    Reduce,
    /// Reads or writes under one of the read-write locks, or tries to.
    ReadWriteLocks,
    /// Lowers the semaphore, which admits two threads, or tries to; then raises it.
    Semaphores,
    /// The first thread sets the event, clears it, and sets it again; each other waits for it once.
    Events,
    /// Finds the work done, or does it, or fails to do it, which counts as an abandoned call.
    Onces,
    /// The first thread notifies one or all while another waits; each other thread waits to be woken.
    Conditions,
    /// Enters the counting barrier.
    CountingBarrier,
}

/// The size of a cluster and the program of its threads.
#[derive(Clone, Copy, Debug)]
pub struct SyncInstance {
    /// The program of every thread.
    pub program: Program,
    /// Number of nodes.
    pub nodes: u16,
    /// Threads of each node.
    pub threads: u8,
    /// The number of rounds.
    pub rounds: u8,
    /// Locks or words to choose from, with homes at different nodes.
    pub objects: u8,
    /// The maximum number of abandoned calls, in all.
    pub time_outs: u8,
}

/// What a [`Setup`] says about the objects that its threads call. Nothing is published for a call.
#[derive(Clone, Debug)]
pub struct Objects {
    /// What threads may choose.
    pub branches: Vec<Vec<Operation>>,
    /// The inputs, each at a node, before any thread runs.
    pub prelude: Vec<(u16, Input)>,
    /// The number of objects of a kind.
    pub count: u8,
    /// The number of threads that a semaphore admits.
    pub permits: u8,
    /// The synchronisation is one with this rule broken.
    pub fault: Option<SyncFault>,
}

impl Program {
    /// The number of things that a thread may do with an object.
    fn modes(self) -> u8 {
        match self {
            Program::Locks | Program::AbandonedLocks | Program::Words | Program::Onces => 1,
            Program::TriedLocks | Program::Semaphores => 2,
            Program::ReadWriteLocks => 4,
            Program::Barrier | Program::Reduce | Program::Events | Program::Conditions | Program::CountingBarrier => 0,
        }
    }

    /// One of these: a thread takes the object and gives it back, or uses it.
    fn branch(self, mode: u8, object: u8) -> Vec<Operation> {
        use ReadWriteDemand::{EndRead, EndWrite, Read, TryRead, TryWrite, Write};
        let both = |demands: [Demand; 2]| demands.map(|demand| Operation::Demand { object, demand }).to_vec();
        match (self, mode) {
            (Program::TriedLocks, 1) => vec![Operation::TryLock(object), Operation::Unlock(object)],
            (Program::Words, _) => vec![Operation::Count(object)],
            (Program::ReadWriteLocks, 0) => both([Read, EndRead].map(Demand::ReadWriteLock)),
            (Program::ReadWriteLocks, 1) => both([Write, EndWrite].map(Demand::ReadWriteLock)),
            (Program::ReadWriteLocks, 2) => both([TryRead, EndRead].map(Demand::ReadWriteLock)),
            (Program::ReadWriteLocks, _) => both([TryWrite, EndWrite].map(Demand::ReadWriteLock)),
            (Program::Semaphores, 0) => {
                both([SemaphoreDemand::Acquire, SemaphoreDemand::Release(1)].map(Demand::Semaphore))
            }
            (Program::Semaphores, _) => {
                both([SemaphoreDemand::TryAcquire, SemaphoreDemand::Release(1)].map(Demand::Semaphore))
            }
            (Program::Onces, _) => both([OnceDemand::Begin, OnceDemand::Done].map(Demand::Once)),
            _ => vec![Operation::Lock(object), Operation::Unlock(object)],
        }
    }
}

impl SyncInstance {
    /// The model of this instance with the real synchronisation at every node.
    pub fn model(&self) -> Orders {
        Orders::new(self.setup(None))
    }

    /// The model of this instance with a rule broken.
    pub fn model_with(&self, fault: SyncFault) -> Orders {
        Orders::new(self.setup(Some(fault)))
    }

    /// A short description of this instance, with everything that distinguishes it.
    pub fn describe(&self) -> String {
        format!(
            "{} nodes={} threads={} rounds={} objects={} time_outs={}",
            match self.program {
                Program::Locks => "locks",
                Program::AbandonedLocks => "locks abandoned",
                Program::Barrier => "barrier",
                Program::Words => "words",
                Program::TriedLocks => "locks tried",
                Program::Reduce => "barrier with a sum",
                Program::ReadWriteLocks => "read-write locks",
                Program::Semaphores => "semaphores",
                Program::Events => "events",
                Program::Onces => "onces",
                Program::Conditions => "conditions",
                Program::CountingBarrier => "counting barrier",
            },
            self.nodes,
            self.threads,
            self.rounds,
            self.objects,
            self.time_outs
        )
    }

    fn setup(&self, fault: Option<SyncFault>) -> Setup {
        let SyncInstance { nodes, objects: count, .. } = *self;
        let of_mode = |mode| (0..count).map(move |object| self.program.branch(mode, object));
        let branches = (0..self.program.modes()).flat_map(of_mode).collect();
        let threads = u32::from(nodes) * u32::from(self.threads);
        let script = |thread: u32| Script {
            node: (thread / u32::from(self.threads)) as u16,
            operations: self.operations(thread, threads),
            registers: Vec::new(),
        };
        let give_ups = match self.program {
            // A call that is abandoned ends its round.
            Program::AbandonedLocks => threads as u8 * self.rounds,
            _ => self.time_outs,
        };
        Setup {
            protocol: Protocol::IVY,
            nodes,
            pages: Vec::new(),
            home: Home::Manager(Manager(NodeId(0))),
            marks: 0,
            stored_in_a_row: STORED_IN_A_ROW,
            is_ordered: false,
            is_wide: false,
            late_faults: false,
            late_bytes: false,
            limits: PublicationLimits { unacknowledged_pages_max: 1, together_pages_max: 1 },
            troubles: Troubles { give_ups, objections: 0 },
            may_disagree: false,
            changes: Vec::new(),
            objects: Some(Objects { branches, prelude: self.prelude(), count, permits: self.permits(), fault }),
            fault: Fault::None,
            scripts: (0..threads).map(script).collect(),
        }
    }

    fn operations(&self, thread: u32, threads: u32) -> Vec<Operation> {
        let event = |demand| Operation::Demand { object: 0, demand: Demand::Event(demand) };
        match (self.program, thread) {
            (Program::Events, 0) => [EventDemand::Set, EventDemand::Clear, EventDemand::Set].map(event).to_vec(),
            (Program::Conditions, 0) => vec![Operation::Notify(0)],
            _ => (0..self.rounds).map(|round| self.operation(round, threads)).collect(),
        }
    }

    fn operation(&self, round: u8, threads: u32) -> Operation {
        match self.program {
            Program::Barrier => Operation::Barrier,
            Program::Reduce => Operation::Sum(round),
            Program::Events => Operation::Demand { object: 0, demand: Demand::Event(EventDemand::Wait) },
            Program::Conditions => Operation::Await(0),
            Program::CountingBarrier => Operation::Demand { object: 0, demand: Demand::CountingBarrier(threads) },
            _ => Operation::Choose { first: 0, count: self.program.modes() * self.objects },
        }
    }

    /// If calls may be abandoned it is one, so that a lost release leaves a thread waiting.
    fn permits(&self) -> u8 {
        if self.time_outs == 0 { 2 } else { 1 }
    }

    fn prelude(&self) -> Vec<(u16, Input)> {
        if self.program != Program::Semaphores {
            return Vec::new();
        }
        let release = |object: u8| {
            let demand = Demand::Semaphore(SemaphoreDemand::Release(self.permits().into()));
            (u16::from(object) % self.nodes, Input::Demand(object.into(), demand, Waiter::MAX))
        };
        (0..self.objects).map(release).collect()
    }
}
