//! Reports waits that take long, and which node each one waits for.
//!
//! Promises: a wait that has lasted for [`REPORT_NS`] is reported on standard error and in the status page, with what
//! is in its way, and again when it has lasted ten times as long. A reported wait that ended was harmless, so the next
//! one of its kind is reported after twice the time. A thread that the kernel blocks at a page has the same limit as
//! any other. It must never run on the fault path, nor keep a thread from continuing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use trellis_cluster_protocol::coherence::Event;

use super::Node;
use super::ordered::lock;
use super::pages::Waiting;
use super::waiters::{WAITERS_MAX, Waits};
use crate::waits::Wait;

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// How long a wait takes until it is reported.
const REPORT_NS: u64 = 5_000_000_000;
/// The factor by which a wait, or a number of refusals, grows until it is reported again.
const AGAIN: u64 = 10;

/// The watchdog's thread. It ends when this is dropped.
pub(crate) struct Watchdog {
    is_over: Arc<AtomicBool>,
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn start(node: &Arc<Node>) -> std::io::Result<Watchdog> {
        let (node, is_over) = (Arc::downgrade(node), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&is_over);
        let handle = std::thread::Builder::new().name("trellis-watchdog".to_owned()).spawn(move || {
            super::progress::block_all_signals();
            let mut watch = Watch::new();
            while !ended.load(Ordering::Acquire) {
                std::thread::park_timeout(LOOK);
                let Some(node) = node.upgrade() else { return };
                if node.is_over() {
                    return;
                }
                watch.look(&node);
            }
        })?;
        Ok(Watchdog { is_over, thread: handle.thread().clone(), handle: Some(handle) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.thread.unpark();
        if let Some(handle) = self.handle.take().filter(|handle| handle.thread().id() != std::thread::current().id()) {
            // The thread ends at once: it was unparked, and sees that it is over. Its panic was printed when it
            // happened.
            let _ = handle.join();
        }
    }
}

/// A wait that was reported.
struct Reported {
    waits: Waits,
    next_ns: u64,
}

/// The waits that were reported so far.
struct Watch {
    reported: Vec<Reported>,
    /// How long a wait of a kind takes until it is reported, if that is not [`REPORT_NS`].
    normal: Vec<(Wait, u64)>,
    /// The waits that the last look saw. This and `blocked` have their room from the start, so that a look that reports
    /// nothing allocates nothing.
    waits: Vec<Waits>,
    blocked: Vec<(Wait, u64)>,
    unauthenticated: Refused,
    packets: Refused,
}

/// How many of a kind had been refused at the last report.
#[derive(Default)]
struct Refused {
    said: u64,
}

impl Refused {
    /// Whether `count` refusals are to be reported: the first is, and then ten times as many as at the last report.
    fn is_due(&mut self, count: u64) -> bool {
        let is_due = count > 0 && count >= self.said.saturating_mul(AGAIN);
        if is_due {
            self.said = count;
        }
        is_due
    }
}

impl Watch {
    fn new() -> Watch {
        let (waits, blocked) = (Vec::with_capacity(2 * WAITERS_MAX), Vec::with_capacity(WAITERS_MAX));
        Watch {
            reported: Vec::new(),
            normal: Vec::new(),
            waits,
            blocked,
            unauthenticated: Refused::default(),
            packets: Refused::default(),
        }
    }

    fn look(&mut self, node: &Node) {
        self.say_refused(node);
        self.see(node);
        let now = node.now();
        self.forget_ended();
        let mut due: Vec<Waits> = Vec::new();
        for place in 0..self.waits.len() {
            let one = self.waits[place];
            let waited = now.saturating_sub(one.since_ns);
            let timeout = self.timeout(one.wait);
            let next_ns = waited.saturating_mul(AGAIN);
            match self.reported.iter_mut().find(|it| it.waits == one) {
                Some(known) if waited < known.next_ns => continue,
                Some(known) => known.next_ns = next_ns,
                None if waited < timeout => continue,
                None => self.reported.push(Reported { waits: one, next_ns }),
            }
            // Threads that wait for the same thing are reported once.
            if due.iter().all(|other| other.wait != one.wait) {
                due.push(one);
            }
        }
        for one in due {
            node.report_wait(one, now, self.waits.iter().filter(|other| other.wait == one.wait).count());
        }
        if self.reported.is_empty() {
            node.status.set_waiting("");
        }
    }

    /// Reports refused peers and datagrams, which get no answer.
    fn say_refused(&mut self, node: &Node) {
        let statistics = node.link.statistics();
        let (unauthenticated, packets, me) =
            (statistics.unauthenticated_refused, statistics.packets_refused, node.me.0);
        if self.unauthenticated.is_due(unauthenticated) {
            trellis_output::lines::report(format_args!(
                "node {me}: attempts to connect are refused ({unauthenticated} so far), because whoever makes them does not know the secret; look who \
                 connects to {}, or let only the cluster's hosts reach it",
                node.name_of(node.me)
            ));
        }
        if self.packets.is_due(packets) {
            trellis_output::lines::report(format_args!(
                "node {me}: datagrams are refused ({packets} so far), because they are damaged, forged or come twice; look at the network of {}",
                node.name_of(node.me)
            ));
        }
    }

    /// Notes reported waits that have ended as normal. Threads that waited for the same thing count once.
    fn forget_ended(&mut self) {
        let mut ended: Vec<Wait> = Vec::new();
        for wait in self.reported.iter().map(|it| it.waits).filter(|it| !self.waits.contains(it)).map(|it| it.wait) {
            if !ended.contains(&wait) {
                ended.push(wait);
            }
        }
        self.reported.retain(|it| self.waits.contains(&it.waits));
        ended.into_iter().for_each(|wait| self.was_normal(wait));
    }

    /// Collects what threads wait for, including threads that the kernel blocks. If one of the latter has reached its
    /// limit, the node ends.
    fn see(&mut self, node: &Node) {
        for shard in &node.shards {
            self.blocked.extend(lock(shard).waiting.iter().filter_map(|waiting| match *waiting {
                Waiting::Kernel { page, since, event: Event::Read, .. } => {
                    Some((Wait::ReadFault(page.0.into()), since))
                }
                Waiting::Kernel { page, since, .. } => Some((Wait::WriteFault(page.0.into()), since)),
                Waiting::Thread { .. } | Waiting::Fault { .. } => None,
            }));
        }
        self.waits.clear();
        let is_normal = node.waits_are_normal.load(Ordering::Relaxed);
        let is_for_page = |wait| matches!(wait, Wait::ReadFault(_) | Wait::WriteFault(_) | Wait::Fetch(_));
        self.waits.extend(node.waiters.waits().filter(|one| !is_normal || is_for_page(one.wait)));
        self.waits.extend(self.blocked.drain(..).map(|(wait, since_ns)| {
            node.give_up_late(wait, since_ns);
            Waits { wait, since_ns, until_ns: since_ns.saturating_add(wait.limit_ns(&node.config)) }
        }));
    }

    fn timeout(&self, wait: Wait) -> u64 {
        let known = self.normal.iter().find(|(kind, _)| kind.is_like(wait));
        known.map_or(REPORT_NS, |(_, timeout)| *timeout)
    }

    fn was_normal(&mut self, wait: Wait) {
        let timeout = self.timeout(wait).saturating_mul(2);
        self.normal.retain(|(kind, _)| !kind.is_like(wait));
        self.normal.push((wait, timeout));
    }
}

/// Reports for which nodes a leaving node waits, as often as any other wait is reported.
pub(super) struct LeaveWords {
    since_ns: u64,
    next_ns: u64,
}

impl LeaveWords {
    pub(super) fn new(now: u64) -> LeaveWords {
        LeaveWords { since_ns: now, next_ns: REPORT_NS }
    }

    /// Reports, if it is time to.
    pub(super) fn say(&mut self, node: &Node, what: impl FnOnce() -> String) {
        let waited_ns = node.now().saturating_sub(self.since_ns);
        if waited_ns >= self.next_ns {
            self.next_ns = waited_ns.saturating_mul(AGAIN);
            let seconds = waited_ns / 1_000_000_000;
            trellis_output::lines::report(format_args!("node {}: {} ({seconds} s)", node.me.0, what()));
        }
    }
}

impl Node {
    /// Reports one wait, and how many threads have it.
    fn report_wait(&self, Waits { wait, since_ns, until_ns }: Waits, now: u64, threads: usize) {
        let who = if threads == 1 { String::new() } else { format!("{threads} threads are ") };
        let seconds = now.saturating_sub(since_ns) / 1_000_000_000;
        let until_ns = match wait {
            Wait::ReadFault(_) | Wait::WriteFault(_) | Wait::Fetch(_) => {
                since_ns.saturating_add(self.limit_now_ns(wait))
            }
            _ => until_ns,
        };
        let left = until_ns.saturating_sub(now) / 1_000_000_000;
        let (what, whom) = (self.described(wait), self.whom(wait));
        let sentence = format!("{who}{what} for {seconds} s: {whom}; this ends in {left} s at the latest");
        self.status.set_waiting(&sentence);
        trellis_output::lines::report(format_args!("node {}: {sentence}", self.me.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_waited_for_the_same_are_one_wait_that_was_normal() {
        let mut watch = Watch::new();
        let of = |since_ns| Waits { wait: Wait::Barrier(3), since_ns, until_ns: u64::MAX };
        watch.reported = (0..8).map(|since| Reported { waits: of(since), next_ns: 0 }).collect();
        watch.forget_ended();
        assert!(watch.reported.is_empty());
        assert_eq!(watch.timeout(Wait::Barrier(3)), 2 * REPORT_NS);
    }

    #[test]
    fn a_kind_that_ended_well_is_waited_for_longer() {
        let mut watch = Watch::new();
        assert_eq!(watch.timeout(Wait::Barrier(3)), REPORT_NS);
        watch.was_normal(Wait::Barrier(3));
        watch.was_normal(Wait::Barrier(4));
        assert_eq!(watch.timeout(Wait::Barrier(5)), 4 * REPORT_NS);
        assert_eq!(watch.timeout(Wait::Lock(3)), REPORT_NS);
    }
}
