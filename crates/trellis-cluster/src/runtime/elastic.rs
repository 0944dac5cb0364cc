//! Nodes that join and leave: admits them, hands over what this node leaves behind, takes over what another node left.
//!
//! Promises: a node that leaves keeps no page that others may request, no lock, and no message that waits for an
//! answer. Nothing is sent to a node after the farewell to it; requests that it would have got go to the coordinator.
//! It must never make the program of a node wait because another node joins or leaves.
//!
//! The order of locks in [`super`] has one more here: the membership comes before a shard.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use trellis_cluster_protocol::membership::{self, NoPlace};
use trellis_cluster_protocol::node::{self, Awaited, Leaving, TakeOver, Taking};
use trellis_cluster_protocol::sync::Kind;
use trellis_cluster_protocol::{NodeId, PageRange};

use super::faults::Why;
use super::ordered::{Ordered, Rank, lock};
use super::watchdog::LeaveWords;
use super::{LEAVE_LOOK_NS, Node};
use crate::cluster::WaitError;
use crate::waits::Wait;

/// What a node knows about nodes that join and leave.
pub(super) struct Elastic {
    /// The node, for the thread that takes pages over.
    this: OnceLock<Weak<Node>>,
    /// Whether this node has met all members.
    joined: AtomicBool,
    /// Whether this node has begun to leave: no thread may use the region any more.
    is_leaving: AtomicBool,
    /// The addresses of the nodes that got a number after the start, in the order of their numbers.
    addresses: Ordered<Vec<String>>,
    /// The channel to the thread that takes pages over; dropping it ends the thread.
    taker: Ordered<Option<Sender<PageRange>>>,
}

impl Elastic {
    pub(super) fn new() -> Elastic {
        Elastic {
            this: OnceLock::new(),
            joined: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            addresses: Ordered::new(Rank::Joiners, Vec::new()),
            taker: Ordered::new(Rank::Last, None),
        }
    }

    pub(super) fn note_joined(&self) {
        self.joined.store(true, Ordering::Release);
    }
}

// Joining.
impl Node {
    pub(crate) fn know_thyself(self: &Arc<Node>) {
        // It is set only here, once, when the node is made.
        let _ = self.elastic.this.set(Arc::downgrade(self));
    }

    /// Whether this node joined after the start.
    pub(crate) fn is_joined_node(&self) -> bool {
        self.me.0 >= self.founders
    }

    /// Whether this node, which joined after the start, has met all members.
    pub(crate) fn has_joined(&self) -> bool {
        self.elastic.joined.load(Ordering::Acquire)
    }

    /// At the coordinator: reserves a number for a process at `address`. The error is the sentence that refuses it.
    pub(crate) fn reserve_place(&self, address: &str) -> Result<NodeId, String> {
        let mut addresses = lock(&self.elastic.addresses);
        let reserved = lock(&self.membership).reserve();
        let node = reserved.map_err(|why| match why {
            NoPlace::Full if self.config.joiners_max == 0 => {
                "it was started without places for others; start it with `trellis run --joiners-max N`".to_owned()
            }
            NoPlace::Full => format!(
                "all {} places were given away, and none is given twice; start it with a larger joiners_max",
                self.config.joiners_max
            ),
            NoPlace::Ending => "its program is done".to_owned(),
            NoPlace::AskCoordinator => format!("only node {} lets others in; ask there", self.config.manager),
        })?;
        addresses.push(address.to_owned());
        Ok(node)
    }

    /// The joined nodes with numbers below `node` that may still be present, with their addresses.
    pub(crate) fn joined_before(&self, node: NodeId) -> Vec<(NodeId, String)> {
        let addresses = lock(&self.elastic.addresses);
        let members = lock(&self.membership);
        let numbers = (self.founders..node.0).map(NodeId);
        let there = numbers.zip(addresses.iter()).filter(|(number, _)| !members.is_gone(*number));
        there.map(|(number, address)| (number, address.clone())).collect()
    }

    /// The number of nodes that are present, this one among them.
    pub(crate) fn members_present(&self) -> usize {
        let members = lock(&self.membership);
        let others = (0..self.nodes).map(NodeId).filter(|&node| node != self.me);
        1 + others.filter(|&node| members.is_present(node)).count()
    }

    /// The cluster ended before this node was part of it. The other nodes hear nothing of it: no node failed.
    pub(crate) fn find_cluster_ended(&self) {
        let coordinator = self.name_of(NodeId(self.config.manager as u16));
        self.fail_alone(format!(
            "the cluster has ended before this process was let in: {coordinator} is gone; start it again, or join another"
        ));
    }
}

// Leaving.
impl Node {
    /// Refuses to let a joined node leave while it has something for which others may wait.
    pub(crate) fn may_leave(&self) -> Result<(), WaitError> {
        if !self.is_joined_node() || self.failure.is_set() {
            return Ok(());
        }
        let in_use = {
            let sync = &lock(&self.synchronisation).sync;
            sync.in_use().map(|subject| (subject, sync.own_standing(subject)))
        };
        if let Some((subject, standing)) = in_use {
            let kind = subject.kind;
            let subject = self.in_words(&subject, subject.id);
            return Err(WaitError::Misuse(match kind {
                _ if standing.holds == 0 => format!("a thread waits for {subject}; let it return before leaving"),
                Kind::Once => format!("{subject} was begun here; say that it is done, or failed, before leaving"),
                _ => format!("{subject} is held; give it back before leaving"),
            }));
        }
        match node::locked(&mut self.carrier(), self.now()) {
            Some(range) => {
                Err(WaitError::Misuse(format!("{range} are locked or waited for; give them back before leaving")))
            }
            None => Ok(()),
        }
    }

    /// A thread touched a page. Once this node has begun to leave, no node would answer the request.
    pub(super) fn refuse_after_leaving(&self) {
        if self.elastic.is_leaving.load(Ordering::Relaxed) {
            super::failure::end_process("the region was touched after this node began to leave the cluster");
        }
    }

    /// Leaves a cluster that continues: hands on everything that others may request. Returns when every member has said
    /// farewell, or the cluster has failed, and this node owes no answer.
    pub(crate) fn hand_over_and_go(&self) {
        self.elastic.is_leaving.store(true, Ordering::Relaxed);
        let mut leaving = Leaving::new(self.region.pages() as u32);
        let ticket = self.waiters.take();
        self.leaver.store(ticket.name(), Ordering::SeqCst);
        let mut words = LeaveWords::new(self.now());
        let mut page_since = None;
        while !self.failure.is_set() {
            let Ok(awaited) = leaving.go_on(&mut self.carrier(), self.now(), ticket.name());
            match awaited {
                Some(Awaited::Others) => {}
                Some(Awaited::Page(page)) => {
                    let since = *page_since.get_or_insert_with(|| self.now());
                    self.give_up_late(Wait::ReadFault(u64::from(page.0)), since);
                }
                Some(Awaited::Time(due)) => {
                    std::thread::sleep(Duration::from_nanos(due.saturating_sub(self.now())));
                    continue;
                }
                None => return,
            }
            self.wait_unseen(None, &ticket, self.now() + LEAVE_LOOK_NS);
            ticket.rearm();
            words.say(self, || {
                format!("leaving, and waiting for {} to take over", self.name_of(NodeId(self.config.manager as u16)))
            });
        }
    }

    /// Makes the thread that leaves look again.
    pub(super) fn rouse_leaver(&self) {
        self.waiters.signal(self.leaver.load(Ordering::SeqCst), 0);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.elastic.is_leaving.load(Ordering::Relaxed)
    }
}

// Taking over.
impl Node {
    /// A node leaves these pages behind. A separate thread takes them, because it may have to wait.
    pub(super) fn take_over(&self, range: PageRange) {
        let mut taker = lock(&self.elastic.taker);
        if taker.is_none() {
            let (sender, ranges) = channel();
            let Some(node) = self.elastic.this.get().and_then(Weak::upgrade) else { return };
            let thread = std::thread::Builder::new().name("trellis-takeover".to_owned());
            if let Err(error) = thread.spawn(move || node.take_all(&ranges)) {
                return self.fail(format!("no thread can be had to take over pages: {error}; see `ulimit -u`"));
            }
            *taker = Some(sender);
        }
        if let Some(taker) = &*taker {
            // A taker that has ended has reported why.
            let _ = taker.send(range);
        }
    }

    /// No more ranges follow. Without a range, no thread has anything to take over.
    pub(super) fn end_take_over(&self) {
        let taker = lock(&self.elastic.taker).take();
        if taker.is_none() {
            self.member_took_over();
        }
    }

    fn take_all(&self, ranges: &Receiver<PageRange>) {
        super::progress::block_all_signals();
        let mut take_over = TakeOver::default();
        loop {
            let taken = match self.take_pages(&mut take_over) {
                Ok(Some(Taking::Announce(range))) => self.fetch(range.first().0..range.end(), true, Why::Announced),
                Ok(Some(Taking::Page(_))) => unreachable!("it was waited for"),
                Ok(Some(Taking::Done)) => return self.member_took_over(),
                // This ends with a range, or when no more follow; after a failure of the cluster, it ends with the
                // process.
                Ok(None) => {
                    match ranges.recv() {
                        Ok(range) => take_over.name(range),
                        Err(_) => take_over.end(),
                    }
                    Ok(())
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok(()) => {}
                Err(WaitError::Failed(_)) => return,
                Err(late) => return self.fail(format!("a page cannot be taken over from a node that leaves: {late}")),
            }
        }
    }

    /// Gets pages with the right to store, until something else is next.
    fn take_pages(&self, take_over: &mut TakeOver) -> Result<Option<Taking>, WaitError> {
        let (mut last, mut deadline) = (None, 0);
        loop {
            let ticket = self.waiters.take();
            let Ok(step) = take_over.go_on(&mut self.carrier(), self.now(), ticket.name());
            let Some(Taking::Page(page)) = step else { return Ok(step) };
            let wait = Wait::TakeOver(u64::from(page.0));
            if last.replace(page) != Some(page) {
                deadline = self.now().saturating_add(wait.limit_ns(&self.config));
            }
            let waited = self.wait_polling(None, &ticket, wait, deadline);
            self.has_waited(waited, || self.too_long(wait, self.whom(wait)))?;
        }
    }
}

impl Node {
    pub(super) fn member_took_over(&self) {
        self.member_step(membership::Input::TookOver);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use trellis_transport::links::in_process;

    use super::*;
    use crate::{Cluster, Config, config::Peers};
    use trellis_cluster_protocol::PageIndex;

    #[test]
    fn taking_over_a_page_ends_at_its_limit_and_names_who_has_it() {
        let (locked, ended) = (Barrier::new(2), Barrier::new(2));
        let node = |node: usize, link| {
            let config = Config {
                peers: Peers::Listed(vec!["localhost:1".to_owned(), "localhost:2".to_owned()]),
                node,
                coherence: "lock(dynamic)".parse().expect("there is such a protocol"),
                region_bytes: 1 << 20,
                base_address: 0x2800_0000_0000 + node * (128 << 20),
                wait_seconds_max: 1,
                ..Config::default()
            };
            let cluster = Cluster::join_over(config, Box::new(link)).expect("the node joins");
            let guard = (node == 1).then(|| cluster.region().lock_range(0, 1).expect("the range is free"));
            locked.wait();
            let mut take_over = TakeOver::default();
            take_over.name(PageRange::one(PageIndex(0)));
            // An announced page need not be fetched.
            let announced = take_over.next_step();
            assert_eq!(announced, Some(Taking::Announce(PageRange::one(PageIndex(0)))));
            let taken = if node == 0 { cluster.inner().take_pages(&mut take_over) } else { Ok(None) };
            ended.wait();
            drop(guard);
            cluster.leave().expect("the node leaves");
            taken
        };
        let mut links = in_process::mesh(2).expect("descriptors can be made").into_iter();
        let (first, second) = (links.next().unwrap(), links.next().unwrap());
        let taken = std::thread::scope(|scope| {
            scope.spawn(|| node(1, second));
            node(0, first)
        });
        let said = taken.unwrap_err().to_string();
        assert!(said.contains("gave up after 1 s taking over page 0: it is locked at node 1"), "{said}");
    }
}
