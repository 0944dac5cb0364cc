//! The possible actions of a cluster, and their effects.
//!
//! Promises: the order of actions depends on the state alone, and each of them is something that a runtime can do at
//! that moment. It must never report that nothing must happen while something is pending in timers, a message is under
//! way or a thread can run.

use super::cluster::{Activity, Cluster, PURPOSES, RETRY, Thread, members};
use super::facts::{Fact, STAY};
use super::{Locks, Node, Pages, Requests};
use crate::model::{Envelope, Layout};
use trellis_cluster_protocol::coherence::{Input, Purpose};
use trellis_cluster_protocol::node::gathering;
use trellis_cluster_protocol::{Access, NodeId, PageRange};

/// A possible action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Deliver(u32),
    Begin {
        node: usize,
        thread: usize,
        operation: Operation,
    },
    Submit {
        node: usize,
        thread: usize,
    },
    Look {
        node: usize,
        thread: usize,
    },
    /// The thread has its lock: it changes all that it locked and unlocks it.
    Change {
        node: usize,
        thread: usize,
    },
    /// The thread unlocks what it does not hold any more, or not yet.
    Abandon {
        node: usize,
        thread: usize,
    },
    /// A page is held no longer, or an alarm goes off.
    Due {
        node: usize,
        due: Input,
    },
    /// No other action is possible: every node that was told to retry does so.
    RetryAll,
    Prefetch {
        node: usize,
        wanted: PageRange,
        write: bool,
        announced: bool,
    },
    /// The last node goes on leaving.
    Leave,
    /// Node 0 goes on taking over what the last node leaves behind.
    Take,
    /// A node is told that the last node departs.
    Depart {
        node: usize,
    },
    /// A node is told that the last node is gone.
    Vanish {
        node: usize,
    },
    /// Before a change of the protocol, the home of a page gets it.
    Gather {
        node: usize,
        page: usize,
    },
    /// All threads have met before a change of the protocol.
    Barrier,
    /// A node changes the protocol.
    Switch {
        node: usize,
    },
}

/// One access of a thread, and its request for the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Operation {
    pub(super) page: u8,
    pub(super) write: bool,
    pub(super) wide: bool,
    pub(super) asks_write: bool,
    /// Whether it locks the page (or the range, if wide), changes it and unlocks it.
    pub(super) lock: bool,
}

// The possible actions.
impl<N: Node> Pages<N> {
    /// Lists the possible actions; returns whether one of them must happen at some time.
    pub(super) fn enabled(&mut self, cluster: &Cluster, actions: &mut Vec<Action>) -> bool {
        actions.clear();
        let mut last = None;
        for &envelope in cluster.messages() {
            if last.replace(envelope) != Some(envelope) {
                actions.push(Action::Deliver(envelope));
            }
        }
        for node in 0..usize::from(self.instance.nodes) {
            for thread in 0..self.instance.threads_of(node) {
                self.enabled_of_thread(cluster.threads[node][thread], node, thread, actions);
            }
        }
        self.enabled_leaving(cluster, actions);
        self.enabled_change(cluster, actions);
        // A thread that locked for a time need not unlock: the alarm ends the lock.
        let is_timed = self.instance.locks == Locks::Timed;
        let may_wait = |action: &Action| match action {
            Action::Abandon { .. } => true,
            Action::Leave => cluster.leaving == 0,
            Action::Change { .. } => is_timed,
            _ => false,
        };
        let mut must_go_on = !actions.iter().all(may_wait);
        for node in 0..usize::from(self.instance.nodes) {
            must_go_on |= self.enabled_resumes(cluster, node, actions);
        }
        if self.instance.has_layers() {
            must_go_on |= self.enabled_alarms(cluster, must_go_on, actions);
        }
        for node in (0..usize::from(self.instance.nodes)).filter(|&node| cluster.prefetches[node] > 0) {
            let is_over = cluster.change.is_begun || cluster.leaving > 0 && self.instance.leaver() == Some(node);
            if !is_over {
                self.enabled_prefetches(node, actions);
            }
        }
        must_go_on
    }

    fn enabled_of_thread(&self, state: Thread, node: usize, thread: usize, actions: &mut Vec<Action>) {
        match state.activity {
            Activity::Idle if state.left == 0 => {}
            Activity::Idle => self.enabled_operations(node, thread, actions),
            Activity::Faulted => actions.push(Action::Submit { node, thread }),
            Activity::Waiting => {}
            Activity::Woken => actions.push(Action::Look { node, thread }),
            Activity::Locking if self.instance.locks == Locks::GivenUp => {
                actions.push(Action::Abandon { node, thread });
            }
            Activity::Locking => {}
            Activity::Holding => actions.push(Action::Change { node, thread }),
            Activity::Expired => actions.push(Action::Abandon { node, thread }),
        }
    }

    fn enabled_operations(&self, node: usize, thread: usize, actions: &mut Vec<Action>) {
        for page in 0..self.instance.pages.len() as u8 {
            for (write, asks_write) in [(false, false), (false, true), (true, true)] {
                if write != asks_write && !self.instance.eager {
                    continue;
                }
                for wide in self.widths() {
                    let operation = Operation { page, write, wide: *wide, asks_write, lock: false };
                    actions.push(Action::Begin { node, thread, operation });
                }
            }
        }
        if self.instance.locks == Locks::None {
            return;
        }
        for wide in self.widths() {
            let mut last = None;
            for page in 0..self.instance.pages.len() as u8 {
                if last.replace(self.wanted(page, *wide)) != Some(self.wanted(page, *wide)) {
                    let operation = Operation { page, write: true, wide: *wide, asks_write: true, lock: true };
                    actions.push(Action::Begin { node, thread, operation });
                }
            }
        }
    }

    fn widths(&self) -> &'static [bool] {
        match self.instance.requests {
            Requests::Narrow => &[false],
            Requests::Wide => &[true],
            Requests::Both => &[false, true],
        }
    }

    /// A page that is held may be let go: after the thread for which it is held has run on, or because the thread is
    /// late. Returns whether one finally is.
    fn enabled_resumes(&self, cluster: &Cluster, node: usize, actions: &mut Vec<Action>) -> bool {
        let mut must = false;
        for page in members(self.pending(cluster, node).held) {
            let is_early = cluster.is_about_to_look(node, page);
            if !is_early || cluster.time_outs[node] > 0 {
                actions.push(Action::Due { node, due: Input::Resumed { page: self.page_index(page) } });
                must |= !is_early && (!self.instance.silent || cluster.asked_for[node] >> page & 1 != 0);
            }
        }
        must
    }

    /// An alarm may go off at any time, and finally goes off. A retry for a locked page while its holder does not run
    /// leads back to the same state, so each node retries a bounded number of times; in addition, all retry when no
    /// other action is possible.
    fn enabled_alarms(&self, cluster: &Cluster, others_go_on: bool, actions: &mut Vec<Action>) -> bool {
        let before = actions.len();
        let mut a_retry_waits = false;
        for node in 0..usize::from(self.instance.nodes) {
            for (purpose, pages) in self.pending(cluster, node).alarms.into_iter().enumerate() {
                if purpose == RETRY && cluster.spins[node] == 0 {
                    a_retry_waits |= pages != 0;
                } else {
                    actions.extend(members(pages).map(|page| self.alarm(node, page, purpose)));
                }
            }
        }
        if a_retry_waits && actions.len() == before && !others_go_on {
            actions.push(Action::RetryAll);
        }
        actions.len() > before
    }

    fn alarm(&self, node: usize, page: usize, purpose: usize) -> Action {
        Action::Due { node, due: Input::Alarm { page: self.page_index(page), purpose: PURPOSES[purpose] } }
    }

    /// The alarms that go off with [`Action::RetryAll`].
    pub(super) fn retries(&self, cluster: &Cluster) -> Vec<Action> {
        let of_node =
            |node| members(self.pending(cluster, node).alarms[RETRY]).map(move |page| self.alarm(node, page, RETRY));
        (0..usize::from(self.instance.nodes)).flat_map(of_node).collect()
    }

    fn enabled_prefetches(&self, node: usize, actions: &mut Vec<Action>) {
        for (write, announced) in [(false, false), (true, false), (true, true)] {
            let mut last = None;
            for page in 0..self.instance.pages.len() as u8 {
                let wanted = self.wanted(page, true);
                if last.replace(wanted) != Some(wanted) {
                    actions.push(Action::Prefetch { node, wanted, write, announced });
                }
            }
        }
    }

    /// The threads meet; the home of each touched page takes the page over; every node changes the protocol; the
    /// threads go on.
    fn enabled_change(&mut self, cluster: &Cluster, actions: &mut Vec<Action>) {
        if self.instance.change.is_none() {
            return;
        }
        let all = self.all_nodes();
        if !cluster.change.is_begun {
            if cluster.is_at_rest() {
                actions.push(Action::Barrier);
            }
            return;
        }
        if cluster.change.done == all {
            return;
        }
        let mut is_ready = true;
        for page in 0..self.instance.pages.len() {
            let home = self.home_of(page);
            let may_hand_over = self.shown(cluster, home).may_hand_over[page] || cluster.change.done >> home & 1 != 0;
            is_ready &= may_hand_over;
            if !may_hand_over && self.matters(cluster, home, Fact::Input(self.gathered(page))) {
                actions.push(Action::Gather { node: home, page });
            }
        }
        if is_ready {
            let waiting = (0..usize::from(self.instance.nodes)).filter(|node| cluster.change.done >> node & 1 == 0);
            actions.extend(waiting.map(|node| Action::Switch { node }));
        }
    }

    fn all_nodes(&self) -> u8 {
        ((1u16 << self.instance.nodes) - 1) as u8
    }

    pub(super) fn home_of(&self, page: usize) -> usize {
        use trellis_cluster_protocol::homes::HomeOf;
        usize::from(self.instance.home.manager_of(self.page_index(page), self.instance.founders()).0)
    }
}

// The effects of actions.
impl<N: Node> Pages<N> {
    pub(super) fn act(&mut self, cluster: &mut Cluster, action: Action) -> Result<(), String> {
        match action {
            Action::Deliver(envelope) => self.deliver(cluster, envelope),
            Action::Begin { node, thread, operation } => {
                cluster.threads[node][thread].operation = operation;
                if operation.lock { self.lock(cluster, node, thread) } else { self.access(cluster, node, thread) }
            }
            Action::Submit { node, thread } => self.submit(cluster, node, thread),
            Action::Look { node, thread } => {
                let page = self.page_index(usize::from(cluster.threads[node][thread].operation.page));
                self.access(cluster, node, thread)?;
                match self.instance.silent || self.instance.is_taker(node, thread) {
                    true => Ok(()),
                    false => self.happen(cluster, node, Fact::Looked(page)),
                }
            }
            Action::Change { node, thread } => {
                for page in self.locks(cluster.threads[node][thread].operation).pages() {
                    cluster.memory.load(node as u16, page)?;
                    cluster.memory.store(node as u16, page)?;
                }
                self.unlock(cluster, node, thread)
            }
            Action::Abandon { node, thread } => self.unlock(cluster, node, thread),
            Action::Due { node, due } => self.go_off(cluster, node, due),
            Action::RetryAll => self.retries(cluster).into_iter().try_for_each(|alarm| self.act(cluster, alarm)),
            Action::Prefetch { node, wanted, write, announced } => {
                cluster.prefetches[node] -= 1;
                self.step(cluster, node, Input::Prefetch { wanted, write, announced })
            }
            Action::Leave => self.leave(cluster),
            Action::Take => self.take_over(cluster),
            Action::Depart { node } => self.note_departs(cluster, node),
            Action::Vanish { node } => self.note_vanished(cluster, node),
            Action::Gather { node, page } => self.step(cluster, node, self.gathered(page)),
            Action::Barrier => {
                cluster.change.is_begun = true;
                Ok(())
            }
            Action::Switch { node } => self.switch(cluster, node),
        }
    }

    /// A thread tries its instruction, which retires or faults.
    pub(super) fn access(&mut self, cluster: &mut Cluster, node: usize, thread: usize) -> Result<(), String> {
        let operation = cluster.threads[node][thread].operation;
        let page = self.page_index(usize::from(operation.page));
        if !self.retires(cluster, node, operation) {
            if !self.instance.late_faults {
                return self.submit(cluster, node, thread);
            }
            cluster.threads[node][thread].activity = Activity::Faulted;
            return Ok(());
        }
        if self.instance.is_taker(node, thread) {
            cluster.threads[node][thread].retire();
            return self.happen(cluster, node, Fact::RanOn(page));
        }
        let memory = &mut cluster.memory;
        if operation.write {
            memory.store(node as u16, page)?
        } else {
            memory.load(node as u16, page)?
        };
        cluster.threads[node][thread].retire();
        Ok(())
    }

    /// Whether the view allows the access.
    fn retires(&self, cluster: &Cluster, node: usize, operation: Operation) -> bool {
        let needed = if operation.write { Access::Write } else { Access::Read };
        cluster.memory.view(node as u16, self.page_index(usize::from(operation.page))) >= needed
    }

    fn submit(&mut self, cluster: &mut Cluster, node: usize, thread: usize) -> Result<(), String> {
        let input = self.fault(cluster.threads[node][thread].operation);
        cluster.threads[node][thread].activity = Activity::Waiting;
        self.step(cluster, node, input)
    }

    fn lock(&mut self, cluster: &mut Cluster, node: usize, thread: usize) -> Result<(), String> {
        let fact = self.locking(cluster.threads[node][thread].operation, thread);
        cluster.threads[node][thread].activity = Activity::Locking;
        self.happen(cluster, node, fact)
    }

    fn unlock(&mut self, cluster: &mut Cluster, node: usize, thread: usize) -> Result<(), String> {
        let fact = self.unlocking(cluster.threads[node][thread], thread);
        cluster.threads[node][thread].retire();
        self.happen(cluster, node, fact)
    }

    fn go_off(&mut self, cluster: &mut Cluster, node: usize, due: Input) -> Result<(), String> {
        match due {
            Input::Resumed { page } => {
                let place = cluster.memory.layout().place(page);
                cluster.time_outs[node] -= u8::from(cluster.is_about_to_look(node, place));
                cluster.asked_for[node] &= !(1 << place);
            }
            Input::Alarm { purpose: Purpose::Retry, .. } => {
                cluster.spins[node] = cluster.spins[node].saturating_sub(1);
            }
            Input::Alarm { page, purpose: Purpose::Expiry } => {
                for thread in 0..usize::from(self.instance.threads) {
                    let Thread { activity, operation, .. } = cluster.threads[node][thread];
                    if activity == Activity::Holding && self.wanted(operation.page, operation.wide).first() == page {
                        cluster.threads[node][thread].activity = Activity::Expired;
                    }
                }
            }
            _ => {}
        }
        self.happen(cluster, node, Fact::Due(due))
    }

    fn switch(&mut self, cluster: &mut Cluster, node: usize) -> Result<(), String> {
        cluster.change.done |= 1 << node;
        self.happen(cluster, node, Fact::Changes)?;
        cluster.asked_for[node] = 0;
        if cluster.change.done == self.all_nodes() {
            for thread in cluster.threads[..usize::from(self.instance.nodes)].iter_mut().flatten() {
                thread.left = self.instance.operations;
            }
            for threads in &mut cluster.threads {
                threads[usize::from(self.instance.threads)..].fill(Thread::default());
            }
        }
        Ok(())
    }

    /// Copies the bytes of a grant, which are read from the supplier only now; then the protocol receives the message.
    fn deliver(&mut self, cluster: &mut Cluster, number: u32) -> Result<(), String> {
        cluster.remove_message(number);
        let Envelope { from, to, message } = *self.envelopes.value(number);
        if let Some(range) = message.bytes() {
            cluster.memory.arrive(from, to, range)?;
        }
        let receiver = usize::from(to);
        if self.has_ended(cluster, receiver) {
            return Err(format!("{message} arrives at node {to}, which has left"));
        }
        self.happen_numbered(cluster, receiver, self.arrivals[number as usize])
    }
}

// The facts.
impl<N: Node> Pages<N> {
    /// The first fact that `action` is for a node of `cluster`; `None` if it is none, or several.
    pub(super) fn fact_of(&self, cluster: &Cluster, action: Action) -> Option<(usize, Fact)> {
        let fault = |node: usize, operation: Operation| {
            (!self.retires(cluster, node, operation) && !self.instance.late_faults)
                .then(|| (node, Fact::Input(self.fault(operation))))
        };
        match action {
            Action::Deliver(number) => {
                let Envelope { from, to, message } = *self.envelopes.value(number);
                Some((usize::from(to), Fact::Input(Input::Message { from: NodeId(from), message })))
            }
            Action::Begin { node, thread, operation } if operation.lock => {
                Some((node, self.locking(operation, thread)))
            }
            Action::Begin { node, operation, .. } => fault(node, operation),
            Action::Look { node, thread } => {
                let operation = cluster.threads[node][thread].operation;
                let looked = || Fact::Looked(self.page_index(usize::from(operation.page)));
                fault(node, operation).or_else(|| Some((node, looked())))
            }
            Action::Submit { node, thread } => {
                Some((node, Fact::Input(self.fault(cluster.threads[node][thread].operation))))
            }
            Action::Change { node, thread } | Action::Abandon { node, thread } => {
                Some((node, self.unlocking(cluster.threads[node][thread], thread)))
            }
            Action::Due { node, due } => Some((node, Fact::Due(due))),
            Action::Prefetch { node, wanted, write, announced } => {
                Some((node, Fact::Input(Input::Prefetch { wanted, write, announced })))
            }
            Action::Gather { node, page } => Some((node, Fact::Input(self.gathered(page)))),
            Action::Depart { node } => Some((node, self.departs())),
            Action::Vanish { node } => Some((node, Fact::Input(self.gone()))),
            Action::Switch { node } => Some((node, Fact::Changes)),
            Action::RetryAll | Action::Leave | Action::Take | Action::Barrier => None,
        }
    }

    fn fault(&self, operation: Operation) -> Input {
        let page = self.page_index(usize::from(operation.page));
        Input::Fault { page, write: operation.asks_write, wanted: self.wanted(operation.page, operation.wide) }
    }

    fn locking(&self, operation: Operation, thread: usize) -> Fact {
        let stay = (self.instance.locks == Locks::Timed).then_some(STAY);
        Fact::Locks { range: self.locks(operation), thread: thread as u32, stay }
    }

    fn unlocking(&self, thread: Thread, number: usize) -> Fact {
        let is_over = thread.activity == Activity::Expired;
        Fact::Unlocks { range: self.locks(thread.operation), thread: number as u32, is_over }
    }

    fn gathered(&self, page: usize) -> Input {
        gathering(PageRange::one(self.page_index(page)))
    }

    /// The pages that `operation` locks, if it is a lock.
    pub(super) fn locks(&self, operation: Operation) -> PageRange {
        self.wanted(operation.page, operation.wide)
    }

    pub(super) fn wanted(&self, page: u8, wide: bool) -> PageRange {
        let page = self.page_index(usize::from(page));
        let run = self.instance.runs().find(|run| wide && run.contains(page));
        run.unwrap_or(PageRange::one(page))
    }
}
