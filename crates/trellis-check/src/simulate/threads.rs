//! How a thread's actions meet the protocols: faults, wakes, calls, and what they must find.
//!
//! Promises: a thread looks again only after a wake; a page that came for it is let go when it ran on, or after the
//! runtime's bound once somebody wants it; how long each access waited, and how many others were served meanwhile, is
//! counted. It must never let a thread touch what its view does not allow.

use super::Start;
use super::events::Event;
use super::node::{Action, Doing, Taker};
use super::node_faults::{Locking, NodeFault};
use super::scenario::Pattern;
use super::workload;
use super::world::World;
use super::{overtaken_max, wait_ns_max};
use crate::model::Stepping;
use std::ops::Range;
use trellis_cluster_protocol::coherence::Event as Kind;
use trellis_cluster_protocol::node::{self, LockStep, Shard};
use trellis_cluster_protocol::sync::{self, Operation};
use trellis_cluster_protocol::{Access, Nanoseconds, PageIndex, PageRange};

/// The pause after which a thread looks again whether a page that it locks is thawed.
const FROZEN_NS: Nanoseconds = 20_000;
/// A thread that waits for its turn looks at the page so often.
const TURN_NS: Nanoseconds = 1_000;
/// What a page is kept for a thread that nobody hears of again, as in the runtime.
const SILENT_NS: Nanoseconds = 100_000;

impl<S: Start> World<'_, S> {
    /// The thread takes its next action.
    pub(super) fn think(&mut self, node: u16, index: u8) -> Result<(), String> {
        let now = self.now;
        let thread = &mut self.nodes[usize::from(node)].threads[usize::from(index)];
        if thread.doing != Doing::Thinking {
            return Ok(());
        }
        if thread.plan.is_empty() {
            if now >= self.stop_at {
                thread.left = 0;
            }
            workload::plan(&self.scenario, node, index, thread);
        }
        let Some(action) = thread.plan.pop() else {
            return self.thread_is_done(node, index);
        };
        thread.action = Some(action);
        thread.since = now;
        self.act(node, index, action)
    }

    fn act(&mut self, node: u16, index: u8, action: Action) -> Result<(), String> {
        if let Some(page) = action.page() {
            let grants = self.pages.grants(page);
            let thread = self.thread(node, index);
            thread.grants_before = grants;
            thread.asks_write = false;
            return self.access(node, index, action, page);
        }
        match action {
            Action::Prefetch { wanted, write, announced } => {
                let input =
                    self.nodes[usize::from(node)].parts.shard(wanted.first()).prefetch(wanted, write, announced);
                input.map_or(Ok(()), |input| self.step(node, wanted.first(), input))?;
                self.go_on(node, index);
                Ok(())
            }
            Action::Acquire(lock) => self.call(node, index, |call| sync::Input::Acquire(lock, call)),
            Action::Arrive(barrier) => {
                self.arrivals[usize::from(node)] += 1;
                self.call(node, index, |call| sync::Input::Arrive(barrier, sync::Contribution::Nothing, call))
            }
            Action::Operate(word, operation) => {
                if let Operation::FetchAdd(amount) = operation {
                    self.words.entry(word).or_default().0 += amount;
                }
                self.call(node, index, |call| sync::Input::Operate(word, operation, call))
            }
            Action::Release(lock) => {
                if self.lock_holders.remove(&lock) != Some(node) {
                    return Err(format!("node {node} gives lock {lock} back, which it does not hold"));
                }
                self.synchronise(node, sync::Input::Release(lock))?;
                self.go_on(node, index);
                Ok(())
            }
            Action::Lock(first, end, stay) => self.lock(node, index, first, end, stay),
            Action::LockRest => self.lock_rest(node, index),
            Action::LockOwn(page) => self.lock_own(node, index, page),
            Action::Unlock => {
                self.unlock(node, index, false)?;
                self.go_on(node, index);
                Ok(())
            }
            Action::Change(first, end, turn) => self.begin_change(node, index, first.0..end, turn),
            Action::GoOnChanging => self.go_on_changing(node),
            Action::Allocate(_) | Action::Free(_) | Action::Measure(_) | Action::FreeNone(_) => {
                self.call_heap(node, index, action)
            }
            access => unreachable!("{access:?} has a page"),
        }
    }

    /// Tries an access; reports a fault if the view does not allow it.
    fn access(&mut self, node: u16, index: u8, action: Action, page: PageIndex) -> Result<(), String> {
        let view = self.memory.view(node, page);
        let write = !matches!(action, Action::Load(_) | Action::Turn(_));
        let needed = if write { Access::Write } else { Access::Read };
        if view >= needed {
            return self.performed(node, index, action, page);
        }
        let now = self.now;
        if self.pages.is_locked_by(node, page, now) {
            return Err(format!("node {node} faults on {page}, which its program has locked"));
        }
        let eager = self.scenario.manners.eager && !write;
        let thread = self.thread(node, index);
        thread.doing = Doing::Faulted;
        thread.asks_write = write || eager && thread.random.once_in(4);
        if self.scenario.manners.late_faults && self.random.once_in(4) {
            let at = now + self.random.below(2 * self.scenario.wires.latency_ns);
            self.queue.put(at, Event::Submit { node, thread: index });
            return Ok(());
        }
        self.submit(node, index)
    }

    /// The fault is reported, even if the page came meanwhile.
    pub(super) fn submit(&mut self, node: u16, index: u8) -> Result<(), String> {
        let thread = &mut self.nodes[usize::from(node)].threads[usize::from(index)];
        if thread.doing != Doing::Faulted {
            return Ok(());
        }
        thread.doing = Doing::Waiting;
        let page = page_of(thread.action);
        let wanted = workload::wanted(&self.scenario, thread, page);
        let write = thread.asks_write;
        self.tally.faults += 1;
        let machine = &self.nodes[usize::from(node)].parts.shard(page).protocol;
        match Kind::of(machine, page, write) {
            Kind::Read => self.tally.read_faults += 1,
            Kind::Write => self.tally.write_faults += 1,
            Kind::UpgradeOwner => self.tally.owner_upgrades += 1,
            Kind::UpgradeNotOwner => self.tally.other_upgrades += 1,
        }
        let input = self.nodes[usize::from(node)].parts.shard(page).fault(page, write, wanted);
        // A frozen page is waited for until it is thawed.
        input.map_or(Ok(()), |input| self.step(node, page, input))
    }

    pub(super) fn wake(&mut self, node: u16, range: PageRange) {
        let look_ns = self.scenario.manners.look_ns;
        let silent = self.scenario.manners.silent;
        let taker = &mut self.nodes[usize::from(node)].taker;
        if matches!(*taker, Taker::Waits(page) if range.contains(page)) {
            *taker = Taker::Woken;
            self.queue.put(self.now + 1 + look_ns, Event::Take { node });
        }
        for index in 0..self.nodes[usize::from(node)].threads.len() {
            let thread = &self.nodes[usize::from(node)].threads[index];
            if thread.doing != Doing::Waiting || !range.contains(page_of(thread.action)) {
                continue;
            }
            let page = page_of(thread.action);
            let ticket = self.nodes[usize::from(node)].ticket();
            let thread = &mut self.nodes[usize::from(node)].threads[index];
            thread.doing = Doing::Woken;
            thread.ticket = ticket;
            let at = self.now + 1 + thread.random.below(look_ns + 1);
            self.queue.put(at, Event::Look { node, thread: index as u8, ticket });
            if silent {
                self.hold(node, page, SILENT_NS.min(self.scenario.manners.hold_ns));
            } else {
                self.nodes[usize::from(node)].parts.shard_mut(page).timers.wake(page);
            }
        }
    }

    /// A woken thread tries again.
    pub(super) fn look(&mut self, node: u16, index: u8, ticket: u32) -> Result<(), String> {
        let thread = self.thread(node, index);
        if thread.doing != Doing::Woken || thread.ticket != ticket {
            return Ok(());
        }
        let action = thread.action.expect("it waited for something");
        let page = page_of(thread.action);
        thread.doing = Doing::Thinking;
        self.access(node, index, action, page)?;
        if self.scenario.manners.silent {
            return Ok(());
        }
        self.looks(node, page)
    }

    /// Somebody wants the page: it stays for its thread, but not for ever.
    pub(super) fn hold(&mut self, node: u16, page: PageIndex, at_most: Nanoseconds) {
        let at_most = self.start.fault().held_at_most(at_most);
        let due = self.nodes[usize::from(node)].parts.shard_mut(page).timers.hold(page, self.now, at_most);
        self.wake_at(node, due);
    }

    /// The node looks at its timers at this time. A page that is held for ever wakes nobody.
    pub(super) fn wake_at(&mut self, node: u16, due: Nanoseconds) {
        if due < Nanoseconds::MAX {
            self.queue.put(due.max(self.now), Event::Due { node });
        }
    }

    /// The protocol hears of everything whose time has come.
    pub(super) fn say_due(&mut self, node: u16) -> Result<(), String> {
        node::take_fact(&mut self.at(node), node::Input::Due)
    }

    /// The access happens now.
    fn performed(&mut self, node: u16, index: u8, action: Action, page: PageIndex) -> Result<(), String> {
        self.account(node, index, page)?;
        match action {
            Action::Load(_) => {
                let value = self.memory.load(node, page)?;
                self.recorder.fold(u64::from(value) << 16 | u64::from(node));
            }
            Action::Turn(_) | Action::Exchange(_) => return self.take_turn(node, index, action, page),
            _ => {
                let before = self.memory.load(node, page)?;
                let mine = self.nodes[usize::from(node)].threads[usize::from(index)].stored;
                if matches!(action, Action::Again(_)) && mine != Some((page, before)) {
                    return Err(format!(
                        "node {node} finds {before} in {page}, to which only it may store, and stored {mine:?} last"
                    ));
                }
                let other = self.pages.writer(page);
                if matches!(action, Action::AgainHere(_)) && other != node {
                    return Err(format!("node {other} stored to {page}, which a program of node {node} has locked"));
                }
                let value = self.memory.store(node, page)?;
                self.pages.stored(node, page);
                self.thread(node, index).stored = Some((page, value));
                self.tally.stores += 1;
                self.tally.turns += u64::from(self.scenario.pattern == Pattern::Turns);
                self.recorder.fold(u64::from(value) << 17 | u64::from(node));
            }
        }
        self.recorder.note(self.now, || format!("n{node} thread {index}: {action:?} done"));
        self.go_on(node, index);
        Ok(())
    }

    /// Notes how long an access waited, and holds it against the bounds.
    fn account(&mut self, node: u16, index: u8, page: PageIndex) -> Result<(), String> {
        self.tally.accesses += 1;
        let thread = &self.nodes[usize::from(node)].threads[usize::from(index)];
        let others = self.pages.grants(page).wrapping_sub(thread.grants_before).saturating_sub(1);
        let begun = thread.since;
        self.tally.wait_ns_max = self.tally.wait_ns_max.max(self.now - begun);
        self.tally.overtaken_max = self.tally.overtaken_max.max(others);
        let most = overtaken_max(&self.scenario);
        if self.scenario.is_fair() && others > most {
            return Err(format!(
                "{others} others were served with {page} while node {node} waited; at most {most} may"
            ));
        }
        self.check_wait(node, begun)
    }

    /// In the healing phase every wait is short.
    fn check_wait(&mut self, node: u16, begun: Nanoseconds) -> Result<(), String> {
        let most = wait_ns_max(&self.scenario);
        let waited = self.now.saturating_sub(begun.max(self.scenario.heal_at));
        self.tally.healed_wait_ns_max = self.tally.healed_wait_ns_max.max(waited);
        if self.is_healed && waited > most {
            let (waited, most) = (waited / 1000, most / 1000);
            return Err(format!("node {node} waited {waited} us after the faults ended; at most {most} us may pass"));
        }
        Ok(())
    }

    /// Who waits for its turn looks, or stores, again and again.
    fn take_turn(&mut self, node: u16, index: u8, action: Action, page: PageIndex) -> Result<(), String> {
        let by_stores = matches!(action, Action::Exchange(_));
        let is_mine = self.tally.turns % u64::from(self.scenario.founders) == u64::from(node);
        self.memory.load(node, page)?;
        if by_stores {
            self.memory.store(node, page)?;
            self.tally.stores += 1;
        }
        let is_stopped = self.now >= self.stop_at;
        let thread = self.thread(node, index);
        thread.doing = Doing::Thinking;
        match (is_mine, by_stores) {
            (true, true) => {}
            (true, false) => thread.plan.push(Action::Store(page)),
            (false, _) if is_stopped => {}
            (false, _) => thread.plan.push(action),
        }
        if is_mine && !is_stopped {
            // With loads it is the store, which comes next, that gives the turn on.
            self.tally.turns += u64::from(by_stores);
        }
        self.queue.put(self.now + TURN_NS, Event::Think { node, thread: index });
        Ok(())
    }

    fn call(&mut self, node: u16, index: u8, input: impl FnOnce(u32) -> sync::Input) -> Result<(), String> {
        let call = self.nodes[usize::from(node)].ticket();
        self.thread(node, index).doing = Doing::Calling(call);
        self.synchronise(node, input(call))
    }

    /// A call of a thread is over.
    pub(super) fn returned(&mut self, node: u16, call: u32, value: u64) -> Result<(), String> {
        if self.returned_to_change(node, call, value)? {
            return Ok(());
        }
        let index = self.caller(node, call)?;
        let thread = &self.nodes[usize::from(node)].threads[usize::from(index)];
        let action = thread.action;
        self.tally.calls += 1;
        match action {
            Some(Action::Acquire(lock)) => {
                if let Some(holder) = self.lock_holders.insert(lock, node) {
                    return Err(format!("node {node} is given lock {lock}, which node {holder} holds"));
                }
            }
            Some(Action::Arrive(_)) => {
                let mine = self.arrivals[usize::from(node)];
                if let Some(late) = self.arrivals.iter().position(|&arrivals| arrivals < mine) {
                    return Err(format!("node {node} leaves a barrier that node {late} has not entered"));
                }
            }
            Some(Action::Operate(word, Operation::FetchAdd(amount))) => {
                let begun = self.words.get(&word).expect("it was begun").0;
                if value + amount > begun {
                    return Err(format!("an addition to word {word} sees {value}, but only {begun} were added"));
                }
            }
            _ => {}
        }
        self.recorder.fold(value);
        self.go_on(node, index);
        Ok(())
    }

    /// A call has its pages, a piece of what its thread locks.
    pub(super) fn locked(&mut self, node: u16, range: PageRange, call: u32) -> Result<(), String> {
        let (index, now) = (self.caller(node, call)?, self.now);
        let known = self.nodes[usize::from(node)].parts.shard(range.first()).locks.find(call);
        let Some(known) = known.filter(|known| known.range == range) else {
            return Err(format!("node {node} is told that {range} is locked, which is not what call {call} wants"));
        };
        let until = now.saturating_add(known.stay.unwrap_or(Nanoseconds::MAX));
        self.pages.lock(node, range, call, now, until)?;
        self.thread(node, index).plan.push(Action::LockRest);
        self.go_on(node, index);
        Ok(())
    }

    pub(super) fn caller(&self, node: u16, call: u32) -> Result<u8, String> {
        let threads = &self.nodes[usize::from(node)].threads;
        let index = threads.iter().position(|thread| thread.doing == Doing::Calling(call));
        index.map(|index| index as u8).ok_or_else(|| format!("node {node} ends call {call}, in which nobody waits"))
    }

    /// A thread locks the pages from `first` up to `end`; some wait for them only for a while.
    fn lock(
        &mut self,
        node: u16,
        index: u8,
        first: PageIndex,
        end: u32,
        stay: Option<Nanoseconds>,
    ) -> Result<(), String> {
        let time_out = self.nodes[usize::from(node)].ticket();
        let fault = match self.start.fault() {
            NodeFault::AnyOrder if node.is_multiple_of(2) => NodeFault::None,
            fault => fault,
        };
        let number = if fault == NodeFault::WaitsForItself { u64::from(time_out) } else { u64::from(index) };
        let (latency_ns, now) = (self.scenario.wires.latency_ns, self.now);
        let thread = self.thread(node, index);
        thread.locking = Some(Locking::new(first.0..end, stay, time_out, number, fault));
        if thread.random.once_in(6) {
            let at = now + thread.random.below(20 * latency_ns);
            self.queue.put(at, Event::GiveUp { node, thread: index, time_out });
        }
        self.lock_rest(node, index)
    }

    /// Goes on with the range that a thread locks.
    fn lock_rest(&mut self, node: u16, index: u8) -> Result<(), String> {
        let number = self.nodes[usize::from(node)].ticket();
        let thread = self.thread(node, index);
        thread.doing = Doing::Calling(number);
        let mut locking = thread.locking.take().expect("it locks a range");
        let step = self.lock_piece(node, number, &mut locking);
        let has_time = locking.stay.is_some();
        let mut pages = locking.pages.clone().map(PageIndex);
        self.thread(node, index).locking = Some(locking);
        match step? {
            LockStep::Piece(_) => Ok(()),
            LockStep::Page(_) => {
                let thread = self.thread(node, index);
                thread.plan.push(Action::LockRest);
                thread.doing = Doing::Thinking;
                self.queue.put(self.now + FROZEN_NS, Event::Think { node, thread: index });
                Ok(())
            }
            LockStep::Locked => match pages.find(|&page| !has_time && !self.pages.is_locked_by(node, page, self.now)) {
                Some(page) => Err(format!("a thread of node {node} takes {page} for locked, which it is not")),
                None => {
                    self.tally.calls += 1;
                    self.thread(node, index).doing = Doing::Thinking;
                    self.think(node, index)
                }
            },
            refused => Err(format!("node {node} refuses to lock pages: {refused:?}")),
        }
    }

    fn lock_piece(&mut self, node: u16, number: u32, locking: &mut Locking) -> Result<LockStep, String> {
        let now = self.now;
        if self.start.fault() != NodeFault::LocksFrozen {
            return locking.go_on(&mut self.at(node), now, number);
        }
        let shards = &mut self.nodes[usize::from(node)].parts.shards;
        let frozen: Vec<Range<u32>> = shards.iter().map(Shard::frozen).collect();
        shards.iter_mut().for_each(Shard::thaw);
        let step = locking.go_on(&mut self.at(node), now, number);
        let shards = self.nodes[usize::from(node)].parts.shards.iter_mut();
        shards.zip(frozen).for_each(|(shard, pages)| shard.freeze(pages));
        step
    }

    /// A thread that holds `page` locks it: it would wait for itself.
    fn lock_own(&mut self, node: u16, index: u8, page: PageIndex) -> Result<(), String> {
        let (number, now, fault) = (self.nodes[usize::from(node)].ticket(), self.now, self.start.fault());
        let thread = if fault == NodeFault::WaitsForItself { u64::from(number) } else { u64::from(index) };
        let mut own = Locking::new(page.0..page.0 + 1, None, number, thread, fault);
        match own.go_on(&mut self.at(node), now, number)? {
            LockStep::Held(_) | LockStep::Page(_) => {
                self.go_on(node, index);
                Ok(())
            }
            step => Err(format!("a thread of node {node} holds {page}, and may wait for it: {step:?}")),
        }
    }

    /// Gives back what a thread holds of the range that it locked. If `is_early`, it waits for a part of it.
    fn unlock(&mut self, node: u16, index: u8, is_early: bool) -> Result<(), String> {
        let locking = self.thread(node, index).locking.take().expect("a range is unlocked after it was locked");
        locking.pieces().for_each(|(piece, number)| self.pages.unlock(node, piece, number));
        let (now, fault) = (self.now, self.start.fault());
        let is_kept = locking.stay.is_none();
        let was_over = locking.give_back(&mut self.at(node), now, is_early, fault)?;
        if was_over && is_kept {
            return Err(format!("node {node} finds that the time of a range is over, which has none"));
        }
        Ok(())
    }

    /// A thread that waits for a range waits no longer, and gives back what it had of it; or one waits no longer for a
    /// change of a protocol, or for a block.
    pub(super) fn give_up(&mut self, node: u16, index: u8, time_out: u32) -> Result<(), String> {
        self.times_out(node, time_out)?;
        if self.gives_up_block(node, index, time_out)? {
            return Ok(());
        }
        let now = self.now;
        let thread = self.thread(node, index);
        let is_locking = thread.locking.as_ref().is_some_and(|locking| locking.time_out == time_out);
        if !is_locking || !matches!(thread.doing, Doing::Calling(_)) {
            return Ok(());
        }
        // It does nothing of what it would have done with the range.
        while thread.plan.pop().is_some_and(|action| action != Action::Unlock) {}
        thread.doing = Doing::Thinking;
        self.tally.given_up += 1;
        self.recorder.note(now, || format!("n{node} thread {index} gives up a range"));
        self.unlock(node, index, true)?;
        self.go_on(node, index);
        Ok(())
    }

    /// The action is done; the thread computes and goes on.
    pub(super) fn go_on(&mut self, node: u16, index: u8) {
        let think_ns = self.scenario.manners.think_ns;
        let thread = &mut self.nodes[usize::from(node)].threads[usize::from(index)];
        thread.doing = Doing::Thinking;
        let pause = match self.scenario.pattern {
            Pattern::Writers | Pattern::Barriers | Pattern::OneLock => think_ns,
            _ => thread.random.below(think_ns + 1),
        };
        // An instruction takes its time.
        self.queue.put(self.now + 1 + pause, Event::Think { node, thread: index });
    }

    fn thread_is_done(&mut self, node: u16, index: u8) -> Result<(), String> {
        let thread = self.thread(node, index);
        thread.doing = Doing::Done;
        thread.action = None;
        self.busy_threads -= 1;
        self.tally.last_done = self.now;
        self.recorder.note(self.now, || format!("n{node} thread {index} is done"));
        self.thread_ended(node)
    }

    pub(super) fn thread(&mut self, node: u16, index: u8) -> &mut super::node::Thread {
        &mut self.nodes[usize::from(node)].threads[usize::from(index)]
    }
}

/// The page that an access is about.
fn page_of(action: Option<Action>) -> PageIndex {
    action.and_then(Action::page).expect("only an access waits for a page")
}
