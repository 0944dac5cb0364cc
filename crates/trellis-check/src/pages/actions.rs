//! The possible actions of a cluster, and their effects.
//!
//! Promises: the order of actions depends on the state alone, and each of them is something that a runtime can do at
//! that moment. It must never report that nothing must happen while an alarm is set, a message is under way or a
//! thread can run.

use super::cluster::{Activity, Cluster, PAGES_MAX, PURPOSES, RETRY, Thread, members};
use super::{Envelope, Locks, Node, PageSet, Pages, Requests};
use trellis_cluster_protocol::coherence::{Input, Message, Purpose};
use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange};

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
    Resume {
        node: usize,
        page: usize,
    },
    Alarm {
        node: usize,
        page: usize,
        purpose: usize,
    },
    /// No other action is possible: every node that was told to retry does so.
    RetryAll,
    Prefetch {
        node: usize,
        wanted: PageRange,
        write: bool,
        announced: bool,
    },
    /// The last node reports which pages it leaves behind.
    Leave,
    /// A node takes over a page, for stores.
    TakeOver {
        node: usize,
        page: usize,
    },
    /// A node learns that the last node has left.
    Tell {
        node: usize,
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

/// The duration of a lock that ends by itself. The explorer lets alarms go off at any time.
const STAY: u64 = 1_000_000;

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
            for thread in 0..usize::from(self.instance.threads) {
                self.enabled_of_thread(cluster.threads[node][thread], node, thread, actions);
            }
        }
        self.enabled_leaving(cluster, actions);
        self.enabled_change(cluster, actions);
        // A thread that locked for a time need not unlock: the alarm ends the lock.
        let is_timed = self.instance.locks == Locks::Timed;
        let may_wait = |action: &Action| match action {
            Action::Abandon { .. } | Action::Leave => true,
            Action::Change { .. } => is_timed,
            _ => false,
        };
        let mut must_go_on = !actions.iter().all(may_wait);
        for node in 0..usize::from(self.instance.nodes) {
            for page in 0..self.instance.pages.len() {
                must_go_on |= self.enabled_resume(cluster, node, page, actions);
            }
        }
        if self.instance.has_layers() {
            must_go_on |= self.enabled_alarms(cluster, must_go_on, actions);
        }
        let is_leaver = |node: usize| self.instance.leaver && node == usize::from(self.instance.founders());
        for node in (0..usize::from(self.instance.nodes)).filter(|&node| cluster.prefetches[node] > 0) {
            let is_over = cluster.change.is_begun || cluster.is_leaving && is_leaver(node);
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

    /// A thread that was granted the page has run on, or may be reported as late. Returns whether the protocol waits
    /// for that report.
    fn enabled_resume(&mut self, cluster: &Cluster, node: usize, page: usize, actions: &mut Vec<Action>) -> bool {
        let place = cluster.places[node][page];
        let about_to_look = cluster.is_about_to_look(node, page);
        let may = if about_to_look { cluster.time_outs[node] > 0 } else { place.owes_resume || place.is_wanted };
        if !may || !(place.is_wanted || self.matters(cluster, node, self.resumed(page))) {
            return false;
        }
        actions.push(Action::Resume { node, page });
        place.is_wanted && !about_to_look
    }

    /// An alarm may go off at any time, and finally goes off. A retry for a locked page while its holder does not run
    /// leads back to the same state, so each node retries a bounded number of times; in addition, all retry when no
    /// other action is possible.
    fn enabled_alarms(&self, cluster: &Cluster, others_go_on: bool, actions: &mut Vec<Action>) -> bool {
        let before = actions.len();
        let mut is_patient = false;
        for node in 0..usize::from(self.instance.nodes) {
            for page in 0..self.instance.pages.len() {
                for purpose in members(cluster.places[node][page].alarms) {
                    if PURPOSES[purpose] == Purpose::Retry && cluster.spins[node] == 0 {
                        is_patient = true;
                    } else {
                        actions.push(Action::Alarm { node, page, purpose });
                    }
                }
            }
        }
        if is_patient && actions.len() == before && !others_go_on {
            actions.push(Action::RetryAll);
        }
        actions.len() > before
    }

    /// The alarms that go off with [`Action::RetryAll`].
    pub(super) fn retries(&self, cluster: &Cluster) -> Vec<Action> {
        let places =
            (0..usize::from(self.instance.nodes)).flat_map(|node| (0..PAGES_MAX).map(move |page| (node, page)));
        let is_set = |&(node, page): &(usize, usize)| cluster.places[node][page].alarms & 1 << RETRY != 0;
        places.filter(is_set).map(|(node, page)| Action::Alarm { node, page, purpose: RETRY }).collect()
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

    /// The last node leaves when its threads are done and it waits for nothing. Node 0 takes over what it leaves
    /// behind. Then every other node is told, as soon as no message is under way between the two and the leaver owes
    /// no answer.
    fn enabled_leaving(&mut self, cluster: &Cluster, actions: &mut Vec<Action>) {
        if !self.instance.leaver {
            return;
        }
        let leaver = usize::from(self.instance.founders());
        if !cluster.is_leaving {
            let threads = &cluster.threads[leaver];
            let is_done = threads.iter().all(|thread| thread.activity == Activity::Idle && thread.left == 0);
            if is_done && !self.shown(cluster, leaver).is_pending.iter().any(|&pending| pending) {
                actions.push(Action::Leave);
            }
            return;
        }
        for page in members(cluster.left_behind) {
            if self.matters(cluster, 0, self.take_over(page)) {
                actions.push(Action::TakeOver { node: 0, page });
            }
        }
        let between = |node: usize| {
            cluster.messages().iter().any(|&number| {
                let Envelope { from, to, .. } = *self.envelopes.value(number);
                let ends = [usize::from(from.0), usize::from(to.0)];
                ends.contains(&node) && ends.contains(&leaver)
            })
        };
        // A message that arrived at the leaver may wait there for a thread to run on, or for an alarm.
        let owes = cluster.places[leaver].iter().any(|place| place.is_wanted || place.alarms != 0);
        for node in (0..leaver).filter(|node| cluster.informed >> node & 1 == 0) {
            if cluster.left_behind == 0 && !owes && !between(node) {
                actions.push(Action::Tell { node });
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
            let may_change = self.shown(cluster, home).may_change[page] || cluster.change.done >> home & 1 != 0;
            is_ready &= may_change;
            if !may_change && self.matters(cluster, home, self.take_over(page)) {
                actions.push(Action::TakeOver { node: home, page });
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
                let page = usize::from(cluster.threads[node][thread].operation.page);
                cluster.places[node][page].owes_resume = self.matters(cluster, node, self.resumed(page));
                self.access(cluster, node, thread)
            }
            Action::Change { node, thread } => {
                for page in members(self.pages_of(cluster.threads[node][thread].operation)) {
                    cluster.load(node, page)?;
                    self.store(cluster, node, page)?;
                }
                self.unlock(cluster, node, thread)
            }
            Action::Abandon { node, thread } => self.unlock(cluster, node, thread),
            Action::Resume { node, page } => {
                if cluster.is_about_to_look(node, page) {
                    cluster.time_outs[node] -= 1;
                }
                let place = &mut cluster.places[node][page];
                place.owes_resume = false;
                place.is_wanted = false;
                self.step(cluster, node, self.resumed(page))
            }
            Action::Alarm { node, page, purpose } => self.alarm(cluster, node, page, purpose),
            Action::RetryAll => self.retries(cluster).into_iter().try_for_each(|alarm| self.act(cluster, alarm)),
            Action::Prefetch { node, wanted, write, announced } => {
                cluster.prefetches[node] -= 1;
                self.step(cluster, node, Input::Prefetch { wanted, write, announced })
            }
            Action::Leave => self.leave(cluster),
            Action::TakeOver { node, page } => self.step(cluster, node, self.take_over(page)),
            Action::Tell { node } => {
                cluster.informed |= 1 << node;
                self.step(cluster, node, self.gone())
            }
            Action::Barrier => {
                cluster.change.is_begun = true;
                Ok(())
            }
            Action::Switch { node } => self.switch(cluster, node),
        }
    }

    /// A thread tries its instruction, which retires or faults.
    fn access(&mut self, cluster: &mut Cluster, node: usize, thread: usize) -> Result<(), String> {
        let operation = cluster.threads[node][thread].operation;
        let needed = if operation.write { Access::Write } else { Access::Read };
        if cluster.places[node][usize::from(operation.page)].access < needed {
            if !self.instance.late_faults {
                return self.submit(cluster, node, thread);
            }
            cluster.threads[node][thread].activity = Activity::Faulted;
            return Ok(());
        }
        if operation.write {
            self.store(cluster, node, usize::from(operation.page))?;
        } else {
            cluster.load(node, usize::from(operation.page))?;
        }
        cluster.threads[node][thread].retire();
        Ok(())
    }

    fn store(&self, cluster: &mut Cluster, node: usize, page: usize) -> Result<(), String> {
        for &number in cluster.messages() {
            let envelope = self.envelopes.value(number);
            let bytes = envelope.message.bytes();
            if bytes.is_some_and(|range| range.contains(self.page_index(page))) {
                return Err(format!(
                    "node {node} stores to {} while its bytes are on their way from {} to {}",
                    self.page_index(page),
                    envelope.from,
                    envelope.to
                ));
            }
        }
        cluster.store(node, page);
        Ok(())
    }

    fn submit(&mut self, cluster: &mut Cluster, node: usize, thread: usize) -> Result<(), String> {
        let input = self.fault(cluster.threads[node][thread].operation);
        cluster.threads[node][thread].activity = Activity::Waiting;
        self.step(cluster, node, input)
    }

    fn lock(&mut self, cluster: &mut Cluster, node: usize, thread: usize) -> Result<(), String> {
        let input = self.lock_of(cluster.threads[node][thread].operation, thread);
        cluster.threads[node][thread].activity = Activity::Locking;
        self.step(cluster, node, input)
    }

    fn unlock(&mut self, cluster: &mut Cluster, node: usize, thread: usize) -> Result<(), String> {
        let input = self.unlock_of(cluster.threads[node][thread].operation, thread);
        cluster.threads[node][thread].retire();
        self.step(cluster, node, input)
    }

    fn alarm(&mut self, cluster: &mut Cluster, node: usize, page: usize, purpose: usize) -> Result<(), String> {
        cluster.places[node][page].alarms &= !(1 << purpose);
        match PURPOSES[purpose] {
            Purpose::Retry => cluster.spins[node] = cluster.spins[node].saturating_sub(1),
            Purpose::Expiry => {
                for thread in 0..usize::from(self.instance.threads) {
                    let state = cluster.threads[node][thread];
                    let first = self.pages_of(state.operation).trailing_zeros() as usize;
                    if state.activity == Activity::Holding && first == page {
                        cluster.threads[node][thread].activity = Activity::Expired;
                    }
                }
            }
            Purpose::Threshold => {}
        }
        self.step(cluster, node, Input::Alarm { page: self.page_index(page), purpose: PURPOSES[purpose] })
    }

    /// Assumes that every node that was told to retry for a page has done so, because it could not later. Then the
    /// last node reports what it leaves behind.
    fn leave(&mut self, cluster: &mut Cluster) -> Result<(), String> {
        let leaver = self.instance.founders();
        cluster.is_leaving = true;
        if self.instance.protocol.can_lock() {
            for (from, page) in (0..leaver).flat_map(|from| (0..PAGES_MAX).map(move |page| (NodeId(from), page))) {
                if page < self.instance.pages.len() {
                    let message = Message::Again { page: self.page_index(page) };
                    self.step(cluster, usize::from(leaver), Input::Message { from, message })?;
                }
            }
        }
        cluster.left_behind = self.shown(cluster, usize::from(leaver)).leaves_behind;
        self.note_taken_over(cluster);
        Ok(())
    }

    fn switch(&mut self, cluster: &mut Cluster, node: usize) -> Result<(), String> {
        cluster.change.done |= 1 << node;
        cluster.nodes[node] = self.changed(cluster.nodes[node])?;
        self.compare(cluster, node)?;
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
        let receiver = usize::from(to.0);
        if let Some(range) = message.bytes() {
            for page in self.places_of(range)? {
                if !cluster.holds_last_value(usize::from(from.0), page) {
                    return Err(format!(
                        "the bytes of {} changed at {from} before {to} had them",
                        self.page_index(page)
                    ));
                }
                if cluster.places[receiver][page].access != Access::None {
                    return Err(format!("bytes arrive for {}, which {to} has mapped", self.page_index(page)));
                }
                cluster.copy(receiver, page);
            }
        }
        self.step(cluster, receiver, Input::Message { from, message })
    }
}

// The inputs of the protocol.
impl<N: Node> Pages<N> {
    /// The first input that `action` gives to a protocol in `cluster`, and its node; `None` if the action does not
    /// concern the protocol.
    pub(super) fn input_of(&self, cluster: &Cluster, action: Action) -> Option<(usize, Input)> {
        let fault = |node: usize, operation: Operation| {
            let needed = if operation.write { Access::Write } else { Access::Read };
            let retires = cluster.places[node][usize::from(operation.page)].access >= needed;
            (!retires && !self.instance.late_faults).then(|| (node, self.fault(operation)))
        };
        match action {
            Action::Deliver(number) => {
                let Envelope { from, to, message } = *self.envelopes.value(number);
                Some((usize::from(to.0), Input::Message { from, message }))
            }
            Action::Begin { node, thread, operation } if operation.lock => {
                Some((node, self.lock_of(operation, thread)))
            }
            Action::Begin { node, operation, .. } => fault(node, operation),
            Action::Look { node, thread } => fault(node, cluster.threads[node][thread].operation),
            Action::Submit { node, thread } => Some((node, self.fault(cluster.threads[node][thread].operation))),
            Action::Change { node, thread } | Action::Abandon { node, thread } => {
                Some((node, self.unlock_of(cluster.threads[node][thread].operation, thread)))
            }
            Action::Resume { node, page } => Some((node, self.resumed(page))),
            Action::Alarm { node, page, purpose } => {
                Some((node, Input::Alarm { page: self.page_index(page), purpose: PURPOSES[purpose] }))
            }
            Action::Prefetch { node, wanted, write, announced } => {
                Some((node, Input::Prefetch { wanted, write, announced }))
            }
            Action::TakeOver { node, page } => Some((node, self.take_over(page))),
            Action::Tell { node } => Some((node, self.gone())),
            Action::RetryAll | Action::Leave | Action::Barrier | Action::Switch { .. } => None,
        }
    }

    fn fault(&self, operation: Operation) -> Input {
        let page = self.page_index(usize::from(operation.page));
        Input::Fault { page, write: operation.asks_write, wanted: self.wanted(operation.page, operation.wide) }
    }

    fn resumed(&self, page: usize) -> Input {
        Input::Resumed { page: self.page_index(page) }
    }

    fn lock_of(&self, operation: Operation, thread: usize) -> Input {
        let stay = (self.instance.locks == Locks::Timed).then_some(STAY);
        Input::Lock { range: self.wanted(operation.page, operation.wide), call: thread as u32, stay }
    }

    fn unlock_of(&self, operation: Operation, thread: usize) -> Input {
        Input::Unlock { range: self.wanted(operation.page, operation.wide), call: thread as u32 }
    }

    fn take_over(&self, page: usize) -> Input {
        Input::Prefetch { wanted: PageRange::one(self.page_index(page)), write: true, announced: true }
    }

    fn gone(&self) -> Input {
        Input::Gone { node: NodeId(self.instance.founders()), successor: NodeId(0) }
    }

    /// The pages that `operation` locks, if it is a lock.
    pub(super) fn pages_of(&self, operation: Operation) -> PageSet {
        let range = self.wanted(operation.page, operation.wide);
        let place = |page: PageIndex| self.instance.pages.iter().position(|&other| other == page.0);
        range.pages().filter_map(place).fold(0, |set, page| set | 1 << page)
    }

    pub(super) fn wanted(&self, page: u8, wide: bool) -> PageRange {
        let page = self.page_index(usize::from(page));
        if !wide {
            return PageRange::one(page);
        }
        let mut first = page.0;
        let mut end = page.0 + 1;
        while self.instance.pages.contains(&end) {
            end += 1;
        }
        while first > 0 && self.instance.pages.contains(&(first - 1)) {
            first -= 1;
        }
        PageRange::around(page, first, end)
    }
}
