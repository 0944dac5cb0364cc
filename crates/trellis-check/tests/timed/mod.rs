//! A cluster with a clock: every message takes the same time, threads run endless programs, and alarms expire when
//! they are due.
//!
//! Promises: the same programs give the same run. The network loses nothing and keeps the order of messages, so every
//! long wait in such a run is caused by the protocol. It must never report `Resumed` before the thread has run on.

use std::collections::VecDeque;
use trellis_check::model::{Driven, Outcome};
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::homes::{Home, Manager};
use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange};

/// The time that a message takes.
pub(crate) const LATENCY: u64 = 12_000;
/// The time that a woken thread takes to retry.
const WAKE: u64 = 500;
/// What a thread repeats endlessly.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    /// Stores to a page.
    Store { page: u32 },
    /// Loads from a page.
    Load { page: u32 },
    /// Loads from a page until it is its turn, and stores once, which passes the turn to the next thread.
    Flag { page: u32 },
    /// Stores to a page until it is its turn, as a test-and-set lock does.
    Exchange { page: u32 },
    /// Locks a range of pages, keeps it for a time, and pauses for a time.
    Lock { range: PageRange, keeps: u64, pauses: u64 },
}

impl Program {
    /// Whether its loads or stores are to `page`.
    fn touches(self, page: u32) -> bool {
        match self {
            Program::Store { page: of } | Program::Load { page: of } => of == page,
            Program::Flag { page: of } | Program::Exchange { page: of } => of == page,
            Program::Lock { .. } => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Thread {
    node: u16,
    program: Program,
    /// When it continues; `None` while it waits.
    at: Option<u64>,
    /// When the wait began, and how often other nodes had received its page by then.
    waits: Option<(u64, u64)>,
    call: Option<u32>,
    /// Completed accesses or locks.
    pub(crate) done: u64,
    /// The longest wait for one access or one lock.
    pub(crate) waited_max: u64,
    /// How often, at most, other nodes received its page during one wait.
    pub(crate) overtaken_max: u64,
}

pub(crate) struct Timed {
    pub(crate) cluster: Driven,
    pub(crate) threads: Vec<Thread>,
    /// When the messages under way arrive, the earliest first.
    arrivals: VecDeque<u64>,
    /// The index of the thread whose turn it is, and the number of changes.
    turn: usize,
    pub(crate) turns: u64,
    /// The pause of a thread between two accesses.
    pub(crate) pause: u64,
}

impl Timed {
    /// Creates a cluster whose pages are managed, or initially owned, by node 0.
    pub(crate) fn new(protocol: &str, nodes: u16, programs: &[(u16, Program)]) -> Timed {
        let protocol: Protocol = protocol.parse().expect("a protocol");
        let cluster = Driven::new(protocol, Home::Manager(Manager(NodeId(0))), nodes, 8, 1);
        let thread = |(index, &(node, program)): (usize, &(u16, Program))| Thread {
            node,
            program,
            at: Some(index as u64 * 70),
            waits: None,
            call: None,
            done: 0,
            waited_max: 0,
            overtaken_max: 0,
        };
        let threads = programs.iter().enumerate().map(thread).collect();
        Timed { cluster, threads, arrivals: VecDeque::new(), turn: 0, turns: 0, pause: 100 }
    }

    /// Runs until `end`.
    pub(crate) fn run(&mut self, end: u64) {
        loop {
            let thread = (0..self.threads.len()).filter_map(|index| Some((self.threads[index].at?, index))).min();
            let arrival = self.arrivals.front().copied().unwrap_or(u64::MAX);
            let alarms = self.cluster.alarms();
            let (alarm, next) = alarms.iter().map(|&(alarm, due)| (due, Some(alarm))).min().unwrap_or((u64::MAX, None));
            let act = thread.map_or(u64::MAX, |(at, _)| at);
            let now = arrival.min(alarm).min(act);
            if now >= end {
                return;
            }
            self.cluster.now = self.cluster.now.max(now);
            self.cluster.log.clear();
            if arrival == now {
                self.arrivals.pop_front();
                self.cluster.deliver(0);
            } else if alarm == now {
                self.cluster.alarm(next.expect("an alarm is due"));
            } else {
                self.act(thread.expect("a thread goes on").1);
            }
            self.follow();
        }
    }

    /// How often nodes received the page.
    pub(crate) fn transfers(&self, page: u32) -> u64 {
        self.cluster.grants_to_others(u16::MAX, page)
    }

    fn act(&mut self, index: usize) {
        let thread = &self.threads[index];
        let (node, program) = (thread.node, thread.program);
        match program {
            Program::Store { page } | Program::Exchange { page } => {
                let is_done = self.access(index, page, true);
                if is_done && matches!(program, Program::Exchange { .. }) {
                    self.pass_turn(index);
                }
            }
            Program::Load { page } => {
                self.access(index, page, false);
            }
            Program::Flag { page } => {
                // A thread that has seen that it is its turn stores; no other thread can pass the turn on.
                let write = self.turn == index && self.cluster.view(node, page) != Access::None;
                if self.access(index, page, write) && write {
                    self.pass_turn(index);
                }
            }
            Program::Lock { range, pauses, .. } => match thread.call {
                Some(call) => {
                    self.cluster.unlock(node, range, call);
                    let now = self.cluster.now;
                    let thread = &mut self.threads[index];
                    (thread.call, thread.at) = (None, Some(now + pauses));
                }
                None => {
                    self.wait(index, range.first().0);
                    self.threads[index].at = None;
                    let call = self.cluster.lock(node, range, None);
                    self.threads[index].call = Some(call);
                }
            },
        }
    }

    fn pass_turn(&mut self, index: usize) {
        if self.turn == index {
            self.turn = (index + 1) % self.threads.len();
            self.turns += 1;
        }
    }

    /// Whether the access was done; otherwise the thread waits.
    fn access(&mut self, index: usize, page: u32, write: bool) -> bool {
        let node = self.threads[index].node;
        if self.cluster.access(node, page, write) == Outcome::Faulted {
            self.wait(index, page);
            self.threads[index].at = None;
            self.cluster.fault(node, page, write, PageRange::one(PageIndex(page)));
            return false;
        }
        self.went_on(index, page);
        self.threads[index].at = Some(self.cluster.now + self.pause);
        true
    }

    fn wait(&mut self, index: usize, page: u32) {
        let thread = &mut self.threads[index];
        let others = self.cluster.grants_to_others(thread.node, page);
        thread.waits.get_or_insert((self.cluster.now, others));
    }

    fn went_on(&mut self, index: usize, page: u32) {
        let thread = &mut self.threads[index];
        thread.done += 1;
        if let Some((since, before)) = thread.waits.take() {
            let others = self.cluster.grants_to_others(thread.node, page);
            thread.waited_max = thread.waited_max.max(self.cluster.now - since);
            thread.overtaken_max = thread.overtaken_max.max(others - before);
        }
    }

    /// Wakes threads, reports `Resumed` if no thread is about to retry, and records when new messages arrive.
    fn follow(&mut self) {
        let now = self.cluster.now;
        for index in 0..self.threads.len() {
            let Thread { node, program, at, call, .. } = self.threads[index].clone();
            if at.is_some() {
                continue;
            }
            if let (Some(number), Program::Lock { range, keeps, .. }) = (call, program) {
                if self.cluster.calls.iter().any(|call| call.number == number && call.has_all) {
                    self.went_on(index, range.first().0);
                    self.threads[index].at = Some(now + keeps);
                }
                continue;
            }
            let waiting = &self.cluster.waiting[usize::from(node)];
            let woken = waiting.iter().position(|waiting| waiting.woken && program.touches(waiting.page));
            if let Some(place) = woken {
                self.cluster.take_woken(node, place);
                self.threads[index].at = Some(now + WAKE);
            }
        }
        let is_about_to_look = |&(node, page): &(u16, u32)| {
            self.threads.iter().any(|thread| {
                let is_woken = thread.waits.is_some() && thread.at.is_some();
                thread.node == node && is_woken && thread.program.touches(page)
            })
        };
        let resumed: Vec<(u16, u32)> =
            self.cluster.wanted().into_iter().filter(|wanted| !is_about_to_look(wanted)).collect();
        for &(node, page) in &resumed {
            self.cluster.resume(node, page);
        }
        while self.arrivals.len() < self.cluster.under_way.len() {
            self.arrivals.push_back(now + LATENCY);
        }
        if !resumed.is_empty() {
            self.follow();
        }
    }
}
