//! One node: its parts, which decide as in the runtime ([`node::Node`]); its memory and its threads.
//!
//! Promises: everything at a node depends on that node alone, so the result of a step can be stored. It publishes
//! before a release, sends knowledge with every message that may release something, and applies notices before an
//! acquire ends. Pages are piggybacked on the token of a lock. It must never inspect another node.

use super::changing::Changing;
use super::conditions::{self, Wait};
use super::effects::{Event, Out, Packet};
use super::{Fault, Operation, PAGE_WORDS, Page, Setup, Source, Turn, Value, faults};
use crate::model::twinned::{Releasing, Twinned};
use crate::mutants::SyncMutant;
use trellis_cluster_protocol::coherence::hlrc::intervals::Notice;
use trellis_cluster_protocol::coherence::{Coherence, Input, Ranges};
use trellis_cluster_protocol::node::{self, Consistency, Parts, Shard};
use trellis_cluster_protocol::sync::{
    self, Call, CallOutcome, CallStep, ConditionDemand, Contribution, Demand, Reduction, Sync, WaitOutcome, WaitStep,
    Waiter,
};
use trellis_cluster_protocol::{CHUNK_PAGES, NodeId, PageIndex, PageRange, wire};

/// The number of the barrier at which threads meet.
const BARRIER: u64 = 0;

/// Where a name of a call has the number of the operation in its script.
pub const NAME_NEXT_SHIFT: u32 = 16;

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// It is about to do its next operation.
    Ready,
    /// The access failed; the protocol does not know yet.
    Faulted,
    /// It waits for the page at this place.
    Waiting(u8),
    /// It is about to take this step of its call.
    Calls(CallStep),
    /// It has taken this step, and waits until it is over.
    Awaits(CallStep),
    /// It is about to take this step of its wait for a condition.
    Waits(WaitStep),
    /// It has enrolled its wait, or waits to be notified.
    AwaitsNotice(WaitStep),
    /// It changes the protocol of pages.
    Changes,
    /// It is done.
    Over,
}

/// A thread of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    /// Its number among all threads, which identifies it in calls.
    pub number: u8,
    /// Its next operation in its script.
    pub next: u16,
    /// The branch that it chose there, and its next operation in the branch.
    pub(super) branch: Option<u8>,
    inner: u8,
    /// How often it has begun its operation again.
    pub(super) tries: u8,
    /// Its state.
    pub doing: Doing,
    /// It was woken for the page at this place, which is held for it, and has not retried its access.
    pub(super) woken: Option<u8>,
    /// Its call, while it makes one.
    pub(super) call: Option<Call>,
    /// Its wait for a condition.
    pub(super) wait: Option<Wait>,
    /// Its call, a wait for a condition, is enrolled.
    pub(super) is_enrolled: bool,
    /// The values that it loaded.
    pub registers: Vec<Value>,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its number.
    pub me: u16,
    pub(super) parts: node::Node<Ranges>,
    pub(super) copies: Twinned,
    /// Its synchronisation has a rule broken.
    pub(super) mutant: Option<SyncMutant>,
    /// The change of a protocol that is under way.
    pub(super) changing: Option<Changing>,
    /// The protocol of some pages may be another than at the start.
    pub(super) has_changed: bool,
    /// Calls of changes so far.
    pub(super) calls: Waiter,
    /// Its threads.
    pub threads: Vec<Thread>,
}

impl Thread {
    /// Its operation, unless it is over.
    pub fn operation(&self, setup: &Setup) -> Operation {
        match (self.branch, &setup.objects) {
            (Some(branch), Some(objects)) => objects.branches[usize::from(branch)][usize::from(self.inner)],
            _ => setup.scripts[usize::from(self.number)].operations[usize::from(self.next)],
        }
    }

    /// Names the call that it makes now: no other call of the run has this name.
    pub(super) fn name(&self) -> Waiter {
        let place = Waiter::from(self.inner) << 12 | Waiter::from(self.next) << NAME_NEXT_SHIFT;
        place | Waiter::from(self.tries) << 8 | Waiter::from(self.number)
    }

    /// Whether it publishes, or has published and releases nothing yet.
    fn publishes(&self) -> bool {
        match self.doing {
            Doing::Awaits(CallStep::Publish) => true,
            Doing::Calls(CallStep::Enter) => self.call.is_some_and(|call| call.input().releases()),
            _ => false,
        }
    }
}

impl Node {
    /// Node `me` of `setup`, at the start.
    pub fn new(setup: &Setup, me: u16) -> Node {
        let threads = setup.scripts.iter().enumerate().filter(|(_, script)| script.node == me);
        let thread = |(number, script): (usize, &super::Script)| Thread {
            number: number as u8,
            next: 0,
            branch: None,
            inner: 0,
            tries: 0,
            doing: if script.operations.is_empty() { Doing::Over } else { Doing::Ready },
            woken: None,
            call: None,
            wait: None,
            is_enrolled: false,
            registers: script.registers.clone(),
        };
        let pages = |geometry| {
            let shard = Shard::new(Ranges::new(setup.protocol, geometry), geometry, NodeId(0));
            shard.opening_after(setup.stored_in_a_row)
        };
        let pages = (0..setup.shards()).map(|shard| setup.geometry(me, shard)).map(pages).collect();
        let mut node = Node {
            me,
            parts: node::Node::new(pages, Sync::new(NodeId(me), setup.nodes), None, NodeId(0)),
            copies: Twinned::new(setup.pages.len()),
            mutant: None,
            changing: None,
            has_changed: false,
            calls: 0,
            threads: threads.map(thread).collect(),
        };
        if setup.protocol.is_release_consistent() {
            node.use_releases(setup);
        }
        if let Some(objects) = &setup.objects {
            node.mutant = objects.fault.map(|fault| SyncMutant::new(NodeId(me), setup.nodes, fault));
            let mine = objects.prelude.iter().filter(|(at, _)| *at == me);
            mine.for_each(|(_, input)| node.parts.sync.step(*input, &mut Vec::new()));
        }
        node
    }

    /// Some pages are under release consistency from now on.
    pub(super) fn use_releases(&mut self, setup: &Setup) {
        let (me, pages) = (NodeId(self.me), setup.region_pages());
        let new = || Consistency::new(me, setup.nodes, pages, setup.is_ordered, usize::MAX);
        self.parts.releases.get_or_insert_with(new);
    }

    /// Gives the threads new scripts when all are done.
    pub fn set_scripts(&mut self, setup: &Setup) {
        for thread in &mut self.threads {
            let script = &setup.scripts[usize::from(thread.number)];
            (thread.next, thread.tries) = (0, 0);
            thread.registers.clone_from(&script.registers);
            thread.doing = if script.operations.is_empty() { Doing::Over } else { Doing::Ready };
        }
    }

    /// Whether the thread at this index may do this now.
    pub fn can_take(&self, setup: &Setup, thread: usize, turn: Turn) -> bool {
        match turn {
            Turn::Goes => self.can_go(setup, thread),
            Turn::GivesUp => match self.threads[thread].doing {
                Doing::Ready => self.may_fail(setup, thread),
                Doing::Awaits(CallStep::Await) => {
                    self.threads[thread].wait.is_some() || self.may_abandon(setup, thread)
                }
                Doing::Awaits(step) => step == CallStep::Publish,
                Doing::AwaitsNotice(step) => step == WaitStep::Await,
                Doing::Changes => self.changing.as_ref().is_some_and(|changing| changing.can_give_up(setup)),
                _ => false,
            },
            Turn::Objects => self.threads[thread].doing == Doing::Changes && self.may_object(),
            Turn::Chooses(branch) => branch < self.choices(setup, thread),
        }
    }

    fn can_go(&self, setup: &Setup, thread: usize) -> bool {
        match self.threads[thread].doing {
            Doing::Ready => {
                let call = self.call_of(thread, self.threads[thread].operation(setup));
                let releases = call.is_some_and(|call| call.releases());
                self.choices(setup, thread) == 0 && !(releases && self.is_publishing())
            }
            // It publishes.
            Doing::Waits(WaitStep::LetGo) => !self.is_publishing(),
            Doing::Faulted | Doing::Calls(_) | Doing::Waits(_) => true,
            Doing::Changes => self.can_change(),
            Doing::Waiting(_) | Doing::Awaits(_) | Doing::AwaitsNotice(_) | Doing::Over => false,
        }
    }

    /// Whether a thread publishes.
    pub(super) fn is_publishing(&self) -> bool {
        self.threads.iter().any(Thread::publishes) || self.changing.as_ref().is_some_and(Changing::publishes)
    }

    /// Whether all threads are done.
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(|thread| thread.doing == Doing::Over)
    }

    /// Whether it holds nothing back.
    pub fn is_quiet(&self) -> bool {
        self.parts.releases.as_ref().is_none_or(|consistency| consistency.knowledge.is_quiet())
    }

    /// The current content of the page at `place`, if this node is its home.
    pub fn master(&self, setup: &Setup, place: usize) -> Option<&Page> {
        let page = setup.page(place);
        self.parts.shard(page).protocol.owns(page).then(|| &self.copies.bytes[place])
    }

    /// Whether stores to the page at `place` are noticed by marks.
    pub(super) fn marks(&self, setup: &Setup, place: usize) -> bool {
        let page = setup.page(place);
        setup.marks(self.me) && self.parts.shard(page).protocol.protocol(page).is_release_consistent()
    }

    /// The thread at this index does this.
    pub fn take_turn(&mut self, setup: &Setup, thread: usize, turn: Turn, out: &mut Out) {
        match turn {
            Turn::Goes => self.go(setup, thread, out),
            Turn::GivesUp => self.give_up(setup, thread, out),
            Turn::Objects => self.object(setup, out),
            Turn::Chooses(branch) => self.choose(setup, thread, branch, out),
        }
        self.let_go(setup, out);
    }

    pub(super) fn go(&mut self, setup: &Setup, thread: usize, out: &mut Out) {
        let Thread { number, doing, .. } = self.threads[thread];
        let operation = self.threads[thread].operation(setup);
        match (doing, operation) {
            (
                Doing::Ready,
                Operation::Load { .. } | Operation::Store { .. } | Operation::Add { .. } | Operation::Take { .. },
            ) => {
                self.access(setup, thread, operation, out);
            }
            (Doing::Waits(step), _) => self.take_wait_step(setup, thread, step, out),
            (Doing::Faulted, operation) => self.submit(setup, thread, operation, out),
            (Doing::Ready, Operation::Change(number)) => self.begin_change(setup, thread, number, out),
            (Doing::Changes, _) => self.go_on_changing(setup, out),
            (Doing::Ready, Operation::Announce { page, write, announced }) => {
                self.passes(setup, thread, 0);
                let page = setup.page(usize::from(page));
                let wanted = PageRange::around(page, page.0, setup.region_pages());
                let wanted = wanted.grow(page, |other| setup.place(other).is_some());
                if let Some(input) = self.parts.shard(page).prefetch(wanted, write, announced) {
                    self.take(setup, node::Input::Page(page, input), out);
                }
            }
            (Doing::Ready, operation) => {
                let Some(input) = self.call_of(thread, operation) else { unreachable!("{operation:?} is a call") };
                self.begin_call(setup, thread, input, out);
            }
            (Doing::Calls(step), _) => self.take_step(setup, thread, step, out),
            _ => out.problem(format!("thread {number} cannot go on: {doing:?}")),
        }
    }

    fn access(&mut self, setup: &Setup, thread: usize, operation: Operation, out: &mut Out) {
        let (word, write) = operation.access().expect("only accesses are made");
        let (page, place) = (usize::from(word) / PAGE_WORDS, usize::from(word) % PAGE_WORDS);
        let woken = self.threads[thread].woken.take();
        if !self.copies.allows(page, write, self.marks(setup, page)) {
            self.looks(setup, woken, out);
            self.threads[thread].doing = Doing::Faulted;
            if !setup.late_faults {
                self.submit(setup, thread, operation, out);
            }
            return;
        }
        let number = self.threads[thread].number;
        match operation {
            Operation::Load { register, .. } => {
                let value = self.copies.bytes[page][place];
                if let Some(register) = self.threads[thread].registers.get_mut(usize::from(register)) {
                    *register = value;
                }
                out.event(Event::Load { thread: number, word, value });
            }
            Operation::Store { source, .. } => self.store(number, word, self.value(thread, source), out),
            Operation::Add { .. } | Operation::Take { .. } => {
                let value = self.copies.bytes[page][place];
                out.event(Event::Load { thread: number, word, value });
                match operation {
                    Operation::Add { by, .. } => self.store(number, word, value + by, out),
                    Operation::Take { lock, condition, .. } if value == 0 => {
                        self.begin_wait(thread, lock, condition);
                        return self.looks(setup, woken, out);
                    }
                    _ => self.store(number, word, value - 1, out),
                }
            }
            _ => unreachable!("only accesses are made"),
        }
        self.passes(setup, thread, 0);
        self.looks(setup, woken, out);
    }

    /// A thread stores to a word that its node may store to.
    fn store(&mut self, thread: u8, word: u16, value: Value, out: &mut Out) {
        let page = usize::from(word) / PAGE_WORDS;
        self.copies.bytes[page][usize::from(word) % PAGE_WORDS] = value;
        self.copies.stored[page] = true;
        out.event(Event::Store { thread, word, value });
    }

    /// A thread that was woken has retried its access.
    fn looks(&mut self, setup: &Setup, woken: Option<u8>, out: &mut Out) {
        let Some(page) = woken.map(|place| setup.page(place.into())) else { return };
        let looked = node::looks(&mut self.acting(setup, out).hold_of(page), page, || 0);
        out.check(looked);
    }

    /// The time is over for pages that are held for no thread that was woken.
    fn let_go(&mut self, setup: &Setup, out: &mut Out) {
        while let Some((page, due)) = self.held_for_nobody(setup) {
            self.parts.shard_mut(page).timers.take(due);
            self.take(setup, node::Input::Page(page, due), out);
        }
    }

    fn held_for_nobody(&self, setup: &Setup) -> Option<(PageIndex, Input)> {
        let is_awaited = |page| self.threads.iter().any(|thread| thread.woken.map(usize::from) == setup.place(page));
        self.parts.shards.iter().flat_map(|shard| shard.timers.pending()).find_map(|(due, _)| match due {
            Input::Resumed { page } => (!is_awaited(page)).then_some((page, due)),
            _ => None,
        })
    }

    fn value(&self, thread: usize, source: Source) -> Value {
        match source {
            Source::Constant(value) => value,
            Source::Register(register) => self.threads[thread].registers[usize::from(register)],
        }
    }

    /// The thread's operation is over, and so many behind it are left out.
    pub(super) fn passes(&mut self, setup: &Setup, thread: usize, left_out: u8) {
        let of = &mut self.threads[thread];
        (of.tries, of.is_enrolled) = (0, false);
        of.inner += 1 + left_out;
        let ends_at =
            of.branch.zip(setup.objects.as_ref()).map(|(branch, all)| all.branches[usize::from(branch)].len());
        match ends_at {
            Some(end) if usize::from(of.inner) < end => {}
            Some(_) => (of.branch, of.inner, of.next) = (None, 0, of.next + 1),
            None => (of.inner, of.next) = (0, of.next + 1 + u16::from(left_out)),
        }
        let is_over = usize::from(of.next) >= setup.scripts[usize::from(of.number)].operations.len();
        of.doing = if is_over { Doing::Over } else { Doing::Ready };
    }

    fn submit(&mut self, setup: &Setup, thread: usize, operation: Operation, out: &mut Out) {
        let (word, write) = operation.access().expect("only accesses fault");
        let place = usize::from(word) / PAGE_WORDS;
        self.threads[thread].doing = Doing::Waiting(place as u8);
        let page = setup.page(place);
        let wanted = if setup.is_wide {
            let chunk = page.0 / CHUNK_PAGES * CHUNK_PAGES;
            let all = PageRange::around(page, chunk, setup.region_pages());
            all.grow(page, |other| setup.place(other).is_some())
        } else {
            PageRange::one(page)
        };
        // A frozen page is thawed later.
        if let Some(input) = self.parts.shard(page).fault(page, write, wanted) {
            self.take(setup, node::Input::Page(page, input), out);
        }
    }

    /// The call that an operation is, if it is one.
    fn call_of(&self, thread: usize, operation: Operation) -> Option<sync::Input> {
        let number = self.threads[thread].number;
        let waiter = self.threads[thread].name();
        Some(match operation {
            Operation::Lock(lock) => sync::Input::Acquire(lock.into(), waiter),
            Operation::Unlock(lock) => sync::Input::Release(lock.into()),
            Operation::Barrier => sync::Input::Arrive(BARRIER, Contribution::Nothing, waiter),
            Operation::Get { flag, .. } => sync::Input::Operate(flag.into(), sync::Operation::Load, waiter),
            Operation::Set { flag, source } => {
                let value = u64::from(self.value(thread, source));
                sync::Input::Operate(flag.into(), sync::Operation::Exchange(value), waiter)
            }
            Operation::TryLock(lock) => sync::Input::TryAcquire(lock.into(), waiter),
            Operation::Sum(round) => {
                let brought = (u64::from(round) + 1) << (8 * number);
                sync::Input::Arrive(BARRIER, Contribution::Value(Reduction::Sum, brought), waiter)
            }
            Operation::Count(word) => sync::Input::Operate(word.into(), sync::Operation::FetchAdd(1), waiter),
            Operation::Demand { object, demand } => {
                sync::Input::Demand(object.into(), demand, if demand.is_silent() { 0 } else { waiter })
            }
            Operation::Await(condition) => {
                sync::Input::Demand(condition.into(), Demand::Condition(ConditionDemand::Wait), waiter)
            }
            Operation::Load { .. }
            | Operation::Store { .. }
            | Operation::Add { .. }
            | Operation::Take { .. }
            | Operation::Announce { .. }
            | Operation::Change(_)
            | Operation::Choose { .. }
            | Operation::Notify(_) => return None,
        })
    }

    /// The thread begins a call.
    pub(super) fn begin_call(&mut self, setup: &Setup, thread: usize, input: sync::Input, out: &mut Out) {
        let (call, first) = Call::begin(input);
        self.threads[thread].call = Some(call);
        self.take_step(setup, thread, first, out);
    }

    /// Takes a step of the thread's call.
    fn take_step(&mut self, setup: &Setup, thread: usize, step: CallStep, out: &mut Out) {
        self.threads[thread].doing = Doing::Awaits(step);
        match step {
            CallStep::Publish if setup.objects.is_some() => {
                let enter = self.go_on(thread, CallOutcome::Done);
                self.take_step(setup, thread, enter, out);
            }
            CallStep::Publish if setup.fault == Fault::ReleasesUnpublished || self.parts.releases.is_none() => {
                self.go_on(thread, CallOutcome::Done);
            }
            CallStep::Publish => {
                self.publish(setup, self.threads[thread].number.into(), out);
                if setup.fault == Fault::ReleasesUnacknowledged
                    && self.threads[thread].doing == Doing::Awaits(CallStep::Publish)
                {
                    self.go_on(thread, CallOutcome::Done);
                }
            }
            CallStep::Enter => self.enter(setup, thread, out),
            CallStep::Await => unreachable!("a message, or its own node, wakes a thread that waits"),
            CallStep::Refresh => {
                self.acquired(setup, thread, out);
                if setup.fault != Fault::AcquiresUnrefreshed {
                    self.refresh(setup, out);
                }
                let end = self.go_on(thread, CallOutcome::Done);
                self.take_step(setup, thread, end, out);
            }
            CallStep::End(outcome) => self.end_call(setup, thread, outcome, out),
        }
    }

    /// The step of the thread's call is over. Returns the next one.
    pub(super) fn go_on(&mut self, thread: usize, outcome: CallOutcome) -> CallStep {
        let Thread { doing, call, .. } = &mut self.threads[thread];
        let next = call.as_mut().expect("it makes a call").go_on(outcome);
        *doing = Doing::Calls(next);
        next
    }

    /// A thread's call was answered, or was abandoned.
    ///
    /// # Errors
    ///
    /// No thread waits for that.
    pub(super) fn answered(
        &mut self,
        setup: &Setup,
        call: Waiter,
        outcome: CallOutcome,
        out: &mut Out,
    ) -> Result<(), String> {
        let awaits = Doing::Awaits(CallStep::Await);
        let is_it = |thread: &Thread| thread.name() == call && thread.doing == awaits;
        let Some(thread) = self.threads.iter().position(is_it) else {
            return Err(format!("node {} answers {call}, which does not wait", self.me));
        };
        let next = self.go_on(thread, outcome);
        if setup.objects.is_some() {
            self.take_step(setup, thread, next, out);
        }
        Ok(())
    }

    pub(super) fn publish(&mut self, setup: &Setup, publisher: Waiter, out: &mut Out) {
        if setup.fault == Fault::ClosesEarly {
            self.consistency().knowledge.intervals.close();
        }
        let mut acting = self.acting(setup, out);
        let published = node::look_for_stores(&mut acting, &mut Vec::new())
            .and_then(|()| node::publish(&mut acting, publisher, &setup.limits));
        out.check(published);
    }

    /// A thread waits for its publication no longer. It releases nothing, and begins its operation again, unless that was to
    /// wait. Or it waits no longer for a change, for a notification, or for the lock of its wait.
    fn give_up(&mut self, setup: &Setup, thread: usize, out: &mut Out) {
        match self.threads[thread].doing {
            Doing::Changes => return self.give_up_changing(setup, out),
            Doing::AwaitsNotice(_) => return self.give_up_wait(setup, thread, out),
            Doing::Ready => return self.fail(setup, thread, out),
            Doing::Awaits(CallStep::Await) => {
                let call = self.threads[thread].call.expect("it makes a call").input();
                let abandon = call.abandoned_by().expect("it takes its lock again");
                return self.take(setup, node::Input::Sync(abandon), out);
            }
            _ => {}
        }
        faults::end_publication(setup.fault, self.consistency());
        if setup.fault == Fault::ForgetsLate {
            let knowledge = self.consistency().knowledge.clone();
            let (me, pages) = (NodeId(self.me), setup.region_pages());
            *self.consistency() = Consistency::new(me, setup.nodes, pages, setup.is_ordered, usize::MAX);
            self.consistency().knowledge = knowledge;
        }
        if self.threads[thread].wait.is_some() {
            self.go_on(thread, CallOutcome::Failed);
        } else {
            (self.threads[thread].doing, self.threads[thread].call) = (Doing::Ready, None);
        }
    }

    /// The current bytes of a range of pages.
    pub fn bytes_of(&self, setup: &Setup, range: PageRange) -> Vec<Page> {
        let bytes = |page| setup.place(page).map_or([0; PAGE_WORDS], |place| self.copies.bytes[place]);
        range.pages().map(bytes).collect()
    }

    /// The thread that waits for the publication continues, if it still waits.
    pub(super) fn publication_is_over(&mut self, publisher: u32, setup: &Setup, out: &mut Out) {
        if self.has_published_for_change(publisher, out) {
            return;
        }
        let is_it =
            |thread: &Thread| u32::from(thread.number) == publisher && thread.doing == Doing::Awaits(CallStep::Publish);
        let Some(thread) = self.threads.iter().position(is_it) else { return };
        self.go_on(thread, CallOutcome::Done);
        if setup.fault != Fault::ReleasesUnacknowledged {
            out.event(Event::Published { thread: self.threads[thread].number });
        }
    }

    fn enter(&mut self, setup: &Setup, thread: usize, out: &mut Out) {
        let Thread { number, call, tries, .. } = self.threads[thread];
        let input = call.expect("it makes a call").input();
        if input.releases() && setup.fault != Fault::ReleasesUnpublished && self.parts.releases.is_some() {
            faults::end_publication(setup.fault, self.consistency());
        }
        match input {
            sync::Input::Release(lock) => out.event(Event::Unlock { thread: number, lock: lock as u8 }),
            sync::Input::Arrive(..) | sync::Input::Demand(_, Demand::CountingBarrier(_), _) if tries == 0 => {
                out.event(Event::Arrive { thread: number });
            }
            _ => {}
        }
        if setup.objects.is_some() {
            out.event(Event::Enters { thread: number, call: input });
        }
        node::enters(&mut self.acting(setup, out), &input);
        match self.go_on(thread, CallOutcome::Done) {
            CallStep::End(outcome) => self.end_call(setup, thread, outcome, out),
            step => self.threads[thread].doing = Doing::Awaits(step),
        }
        self.take(setup, node::Input::Sync(conditions::enrolling(input)), out);
    }

    /// The thread's call was answered: what was learnt is applied before the program continues.
    fn acquired(&mut self, setup: &Setup, thread: usize, out: &mut Out) {
        let Thread { number, call, .. } = self.threads[thread];
        let call = call.expect("it makes a call").input();
        match call {
            sync::Input::Acquire(lock, _) | sync::Input::TryAcquire(lock, _) => {
                out.event(Event::Locked { thread: number, lock: lock as u8 })
            }
            sync::Input::Arrive(..) => {
                if setup.fault == Fault::ForgetsTooEarly {
                    let intervals = &mut self.consistency().knowledge.intervals;
                    let time = intervals.time().to_vec();
                    intervals.everybody_knows(&time);
                }
                node::leaves(&mut self.acting(setup, out), &call, true);
                out.event(Event::Left { thread: number });
            }
            sync::Input::Demand(_, Demand::CountingBarrier(_), _) => out.event(Event::Left { thread: number }),
            _ => {}
        }
    }

    /// The thread's call is over.
    fn end_call(&mut self, setup: &Setup, thread: usize, outcome: CallOutcome, out: &mut Out) {
        if self.threads[thread].wait.is_some() {
            self.threads[thread].call = None;
            let outcome = match outcome {
                CallOutcome::Done | CallOutcome::Granted(_) => WaitOutcome::Done,
                CallOutcome::NotGranted | CallOutcome::Failed => WaitOutcome::Failed { is_lock_lost: false },
            };
            return self.go_on_waiting(thread, outcome);
        }
        let Thread { number, call, .. } = &mut self.threads[thread];
        let (number, call) = (*number, call.take().expect("it makes a call").input());
        let operation = self.threads[thread].operation(setup);
        if setup.objects.is_some() {
            return self.end_object_call(setup, thread, call, outcome, out);
        }
        match (operation, outcome) {
            (Operation::Get { register, .. }, CallOutcome::Granted(value)) => {
                if let Some(register) = self.threads[thread].registers.get_mut(usize::from(register)) {
                    *register = value as Value;
                }
            }
            (_, CallOutcome::Granted(_) | CallOutcome::Done) => {}
            (operation, outcome) => out.problem(format!("thread {number} ends {operation:?} with {outcome:?}")),
        }
        self.passes(setup, thread, 0);
    }

    pub(super) fn refresh(&mut self, setup: &Setup, out: &mut Out) {
        if self.parts.releases.is_none() {
            return;
        }
        let acquired = node::acquired(&mut self.acting(setup, out), false);
        let Some(notices) = acquired.unwrap_or_else(|what| {
            out.problem(what);
            None
        }) else {
            return;
        };
        let mut notices: Vec<Notice> = notices.collect();
        faults::alter_notices(setup.fault, &mut notices);
        let applied = node::apply(&mut self.acting(setup, out), notices.into_iter());
        out.check(applied);
    }

    /// Delivers a message.
    pub fn deliver(&mut self, setup: &Setup, from: u16, packet: &Packet, out: &mut Out) {
        match packet {
            Packet::Page { message, body } => {
                let (mut acting, message) = (self.acting(setup, out), *message);
                let input = Input::Message { from: NodeId(from), message };
                let arrived = acting.arrive(message, body);
                let step = |()| node::step(&mut acting.hold_of(message.page()), input, Some((message, body)));
                let stepped = arrived.and_then(step);
                out.check(stepped.map(drop));
            }
            Packet::Sync { message, knowledge }
                if message.releases() && setup.fault == Fault::UsesTooEarly && self.parts.releases.is_some() =>
            {
                // This mutant does not wait for the knowledge on which the message depends.
                let _ = self.consistency().knowledge.intervals.learn(NodeId(from), knowledge);
                self.take(setup, node::Input::Sync(sync::Input::Message(NodeId(from), *message)), out);
            }
            Packet::Sync { message, knowledge } => {
                let message = wire::Message::Sync(*message);
                let received = node::receive(&mut self.acting(setup, out), NodeId(from), message, knowledge);
                out.check(received);
            }
        }
        self.let_go(setup, out);
    }

    pub(super) fn take(&mut self, setup: &Setup, input: node::Input, out: &mut Out) {
        let stepped = node::take_fact(&mut self.acting(setup, out), input);
        out.check(stepped);
    }

    pub(super) fn consistency(&mut self) -> &mut Consistency {
        self.parts.releases.as_mut().expect("its pages are under release consistency")
    }
}
