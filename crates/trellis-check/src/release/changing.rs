//! A change of the protocol of pages at one node, which the real [`PageChange`] decides.
//!
//! A thread of each node makes the call, while other threads go on. It takes the steps that a runtime carries out, with the
//! real barriers and words. It may wait too long, and its node may object; then no node changes.
//!
//! Promises: a call that ends as agreed, without objections, orders memory like a barrier. It must never let a node change
//! its pages by itself.

use super::effects::{Event, Out};
use super::node::{Doing, Node};
use super::{Fault, Setup, faults};
use trellis_cluster_protocol::coherence::Coherence;
use trellis_cluster_protocol::node::change::{Ending, Input};
use trellis_cluster_protocol::node::{self, Next, PageChange};
use trellis_cluster_protocol::sync::{self, Contribution, Operation, Waiter};
use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange};

/// The first number of barriers and words of changes.
pub(super) const FIRST_NUMBER: u64 = 1 << 32;
/// The first number of calls of changes. Smaller ones are calls of threads.
pub(super) const FIRST_CALL: Waiter = 1 << 30;
/// How many numbers one set of barriers and words takes; [`FIRST_NUMBER`] is a multiple of it.
const NUMBERS_PER_SET: u64 = 8;
/// The indexes of words in a set: the one that decides, and the one that counts objections.
const DECISION: u64 = 0;
const OBJECTIONS: u64 = 2;
/// The number with which a change waits for pages and for a publication.
const CHANGER: Waiter = FIRST_CALL - 1;

/// A change under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Changing {
    /// The index of the thread that made the call.
    thread: u8,
    /// The number of the change.
    number: u8,
    change: PageChange,
    /// The call of the barrier to which this node came last, and whether all have come.
    barrier: (Waiter, bool),
    step: Step,
    /// It publishes, or has published.
    has_turn: bool,
}

/// The step at which the thread is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// It has ended in this way.
    Ended(Input),
    /// It says whether its node objects.
    MayObject,
    /// It waits for the answer to this call.
    Awaits(Waiter),
    /// It waits until something about this page has changed.
    AwaitsPage(PageIndex),
    /// It waits until these pages have come, or have been granted to others.
    Gathers(PageRange),
    /// It publishes when no other thread does.
    IsToPublish,
    /// It waits for its publication.
    Publishes,
    /// Its publication is over.
    HasPublished,
}

impl Changing {
    /// Whether no other thread of the node publishes: from the publication for the change until its end.
    pub(super) fn publishes(&self) -> bool {
        self.has_turn
    }

    /// Whether its thread may give up what it waits for.
    pub(super) fn can_give_up(&self, setup: &Setup) -> bool {
        match self.step {
            Step::Awaits(_) if setup.may_disagree => true,
            Step::Awaits(call) => call == self.barrier.0 && !self.change.is_in_last_barrier(),
            Step::AwaitsPage(_) | Step::Gathers(_) | Step::IsToPublish | Step::Publishes => true,
            Step::Ended(_) | Step::MayObject | Step::HasPublished => false,
        }
    }

    /// Something about these pages has changed.
    pub(super) fn look_again(&mut self, pages: PageRange) {
        if matches!(self.step, Step::AwaitsPage(page) if pages.contains(page)) {
            self.step = Step::Ended(Input::Done);
        }
    }

    /// The thread waits for this page from now on.
    pub(super) fn wait_for(&mut self, page: PageIndex) {
        self.step = Step::AwaitsPage(page);
    }

    /// A call was answered. It may be one that the thread has given up.
    pub(super) fn returned(&mut self, call: Waiter, value: u64) {
        let awaited = self.step == Step::Awaits(call);
        if call == self.barrier.0 {
            self.barrier.1 = true;
        }
        if awaited {
            self.step = Step::Ended(if call == self.barrier.0 { Input::Met } else { Input::Value(value) });
        }
    }
}

impl Node {
    /// A thread gives pages another protocol, together with a thread of every other node.
    pub(super) fn begin_change(&mut self, setup: &Setup, thread: usize, number: u8, out: &mut Out) {
        let what = setup.changes[usize::from(number)].clone();
        let begun = PageChange::begin(&self.parts.changes, NodeId(self.me), what, u64::from(number) + 1, FIRST_NUMBER);
        let (change, next) = begun.expect("few changes are given up");
        out.event(Event::Meets { thread: self.threads[thread].number });
        self.threads[thread].doing = Doing::Changes;
        let (barrier, step) = ((0, false), Step::Ended(Input::Done));
        self.changing = Some(Changing { thread: thread as u8, number, change, barrier, step, has_turn: false });
        self.follow(setup, next, out);
        self.go_on_changing(setup, out);
    }

    /// Whether the thread of the change can go on.
    pub(super) fn can_change(&self) -> bool {
        self.may_object() || self.has_more_to_do()
    }

    /// Whether the node may object to the change.
    pub(super) fn may_object(&self) -> bool {
        self.changing.as_ref().is_some_and(|changing| changing.step == Step::MayObject)
    }

    fn has_more_to_do(&self) -> bool {
        match self.changing.as_ref().map(|changing| &changing.step) {
            Some(Step::Ended(_) | Step::HasPublished) => true,
            Some(Step::IsToPublish) => !self.is_publishing(),
            // As in the runtime: a page that may be stored to has come, though something about it is under way.
            Some(Step::Gathers(pages)) => !pages.pages().any(|page| {
                let protocol = &self.parts.shard(page).protocol;
                protocol.is_pending(page) && protocol.access(page) < Access::Write
            }),
            Some(Step::Awaits(_) | Step::AwaitsPage(_) | Step::MayObject | Step::Publishes) | None => false,
        }
    }

    /// The thread of the change goes on until it waits, or may object. If it may, its node does not.
    pub(super) fn go_on_changing(&mut self, setup: &Setup, out: &mut Out) {
        if self.may_object() {
            self.changing().step = Step::Ended(Input::Frozen { objects: false });
        }
        while self.has_more_to_do() {
            let input = match self.changing().step {
                Step::Ended(input) => input,
                Step::IsToPublish => {
                    let changing = self.changing();
                    (changing.step, changing.has_turn) = (Step::Publishes, true);
                    self.publish(setup, CHANGER, out);
                    continue;
                }
                Step::HasPublished => {
                    self.changing().has_turn = setup.fault != Fault::ChangesWhilePublishing;
                    faults::end_publication(setup.fault, self.consistency());
                    Input::Done
                }
                _ => Input::Done,
            };
            self.proceed(setup, input, out);
        }
    }

    /// The node objects to the change.
    pub(super) fn object(&mut self, setup: &Setup, out: &mut Out) {
        out.event(Event::Objects { thread: self.changer() });
        self.changing().step = Step::Ended(Input::Frozen { objects: true });
        self.go_on_changing(setup, out);
    }

    /// The thread of the change waits no longer.
    pub(super) fn give_up_changing(&mut self, setup: &Setup, out: &mut Out) {
        out.event(Event::TooLong { thread: self.changer() });
        if self.changing().step == Step::Publishes {
            faults::end_publication(setup.fault, self.consistency());
        }
        self.proceed(setup, Input::TooLong, out);
        self.go_on_changing(setup, out);
    }

    /// The publication for this number is over; says whether it was one of a change.
    pub(super) fn has_published_for_change(&mut self, publisher: Waiter, out: &mut Out) -> bool {
        if publisher != CHANGER {
            return false;
        }
        let Some(changing) = self.changing.as_mut().filter(|changing| changing.step == Step::Publishes) else {
            return true;
        };
        changing.step = Step::HasPublished;
        out.event(Event::Published { thread: self.changer() });
        true
    }

    fn changing(&mut self) -> &mut Changing {
        self.changing.as_mut().expect("a change is under way")
    }

    /// The thread of the change, by its number among all threads.
    fn changer(&mut self) -> u8 {
        let thread = self.changing().thread;
        self.threads[usize::from(thread)].number
    }

    fn call_for_change(&mut self) -> Waiter {
        self.calls += 1;
        FIRST_CALL + self.calls
    }

    /// The last step has ended in this way.
    fn proceed(&mut self, setup: &Setup, input: Input, out: &mut Out) {
        let mut change = self.changing().change.clone();
        let next = change.go_on(&mut self.acting(setup, out), 0, input, CHANGER);
        self.changing().change = change;
        match next {
            Ok(next) => self.follow(setup, next, out),
            Err(what) => {
                self.changing = None;
                out.problem(what);
            }
        }
    }

    /// Does what the change needs next.
    fn follow(&mut self, setup: &Setup, next: Next, out: &mut Out) {
        if let Some(input) = self.passes_over(setup, &next) {
            self.changing().step = Step::Ended(input);
            return;
        }
        match next {
            Next::Barrier(barrier) => {
                let call = self.call_for_change();
                let changing = self.changing();
                (changing.barrier, changing.step) = ((call, false), Step::Awaits(call));
                self.arrive(setup, barrier, call, out);
            }
            Next::Again(_) => {
                let changing = self.changing();
                let (call, all_came) = changing.barrier;
                changing.step = if all_came { Step::Ended(Input::Met) } else { Step::Awaits(call) };
            }
            Next::Operate(word, operation) => {
                let call = self.call_for_change();
                self.changing().step = Step::Awaits(call);
                self.take(setup, node::Input::Sync(sync::Input::Operate(word, operation, call)), out);
            }
            Next::Object(Some(locked)) => out.problem(format!("no thread locks {locked}, and it is locked")),
            Next::Object(None) => {
                let asks = setup.troubles.objections > 0;
                self.changing().step =
                    if asks { Step::MayObject } else { Step::Ended(Input::Frozen { objects: false }) };
            }
            // It waits for the page already, or the page has come.
            Next::Page(_) => {}
            Next::Gather(wanted) => {
                self.changing().step = Step::Gathers(wanted);
                self.take(setup, node::Input::Page(wanted.first(), node::gathering(wanted)), out);
            }
            Next::Publish if self.parts.releases.is_some() && setup.fault != Fault::ChangesUnpublished => {
                self.changing().step = Step::IsToPublish;
            }
            Next::Publish => self.changing().step = Step::Ended(Input::Done),
            Next::Prepare => {
                self.has_changed = true;
                let (thread, change) = (self.changer(), self.changing().number);
                out.event(Event::Changes { thread, change });
                let (_, to) = setup.changes[usize::from(change)];
                if to.is_release_consistent() && setup.fault != Fault::ChangesUnknown {
                    self.use_releases(setup);
                }
                self.changing().step = Step::Ended(Input::Done);
            }
            Next::Pass(barriers) => {
                for barrier in barriers {
                    let call = self.call_for_change();
                    self.arrive(setup, barrier, call, out);
                }
                self.changing().step = Step::Ended(Input::Done);
            }
            Next::End(ending) => self.end_change(setup, ending, out),
        }
    }

    fn arrive(&mut self, setup: &Setup, barrier: u64, call: Waiter, out: &mut Out) {
        self.take(setup, node::Input::Sync(sync::Input::Arrive(barrier, Contribution::Nothing, call)), out);
    }

    fn end_change(&mut self, setup: &Setup, ending: Ending, out: &mut Out) {
        let Changing { thread, number, .. } = self.changing.take().expect("a change is under way");
        if !(setup.fault == Fault::KeepsNumbers && matches!(ending, Ending::GivenUp { .. })) {
            self.parts.changes.end(ending);
        }
        let (pages, _) = setup.changes[usize::from(number)].clone();
        let thawed = node::thaw(&mut self.acting(setup, out), pages);
        out.check(thawed);
        let thread = usize::from(thread);
        if matches!(ending, Ending::Agreed { objections: 0, .. }) && setup.fault != Fault::ChangesUnrefreshed {
            self.refresh(setup, out);
        }
        out.event(Event::Ended { thread: self.threads[thread].number, ending });
        self.passes(setup, thread, 0);
    }

    /// With a fault: how a step ends that is not carried out.
    fn passes_over(&self, setup: &Setup, next: &Next) -> Option<Input> {
        let is = |word: &u64, index| word % NUMBERS_PER_SET == index;
        match (setup.fault, next) {
            (Fault::GivesUpAlone, Next::Operate(word, Operation::CompareExchange(before, decision)))
                if is(word, DECISION) && *decision > u64::from(u32::MAX) =>
            {
                Some(Input::Value(*before))
            }
            (Fault::Undecided, Next::Operate(word, Operation::CompareExchange(before, decision)))
                if is(word, DECISION) && *decision == before + 1 =>
            {
                Some(Input::Value(*before))
            }
            (Fault::StaysAway, Next::Pass(_)) => Some(Input::Done),
            (Fault::PassesOverObjections, Next::Operate(word, Operation::Load))
                if is(word, OBJECTIONS) && self.me + 1 == setup.nodes =>
            {
                Some(Input::Value(0))
            }
            (Fault::KeepsObjections, Next::Operate(word, Operation::Exchange(_))) if is(word, OBJECTIONS) => {
                Some(Input::Value(0))
            }
            _ => None,
        }
    }
}
