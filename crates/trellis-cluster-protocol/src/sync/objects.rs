//! Objects kept at their home: what their kinds have in common, on the caller's side and on the home's side.
//!
//! A node sends the home a request that names the object, the demand and the waiting call. The home answers at once or
//! later, and each answer names the call. Some demands have no answer. So any node, also one that joined later, can use
//! any object at the cost of one message in each direction, and of none at the home itself. Each kind of object has its
//! own file, which deals neither with messages nor with places.
//!
//! A call whose deadline passed is *abandoned*: it ends at once, and the home is told. If the home has already granted it,
//! the grant is undone when it arrives (a lock is given back, a notification goes to the next waiting call), so nothing
//! is lost with an abandoned call. Messages may overtake each other, so the home pairs every abandonment with the request, or the
//! undoing, that belongs to it; see [`Stray`].
//!
//! It must never keep more than [`OBJECTS_MAX`] objects of a kind, nor more calls or strays.

use super::condition::{Condition, ConditionDemand};
use super::counting_barrier::CountingBarrier;
use super::event::{Event, EventDemand};
use super::once::{Once, OnceDemand};
use super::read_write_lock::{ReadWriteDemand, ReadWriteLock};
use super::semaphore::{Semaphore, SemaphoreDemand};
use super::{ABANDONED, Effect, Kind, Message, OBJECTS_MAX, Place, Standing, Subject, Waiter};
use crate::page::NodeId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The demand of a program on an object that is kept at its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Demand {
    /// Of a read-write lock.
    ReadWriteLock(ReadWriteDemand),
    /// Of a semaphore.
    Semaphore(SemaphoreDemand),
    /// Of an event flag.
    Event(EventDemand),
    /// Of a once object.
    Once(OnceDemand),
    /// Of a condition variable.
    Condition(ConditionDemand),
    /// Of a counting barrier: go on when this many calls have arrived. Answered with 1 for the last of them, with 0 for the
    /// others.
    CountingBarrier(u32),
}

impl Demand {
    /// The kind of object.
    pub fn kind(self) -> Kind {
        match self {
            Demand::ReadWriteLock(_) => Kind::ReadWriteLock,
            Demand::Semaphore(_) => Kind::Semaphore,
            Demand::Event(_) => Kind::Event,
            Demand::Once(_) => Kind::Once,
            Demand::Condition(_) => Kind::Condition,
            Demand::CountingBarrier(_) => Kind::CountingBarrier,
        }
    }

    /// Whether this demand makes known what the program did before.
    pub fn releases(self) -> bool {
        match self {
            Demand::ReadWriteLock(demand) => demand.is_end(),
            Demand::Semaphore(demand) => matches!(demand, SemaphoreDemand::Release(_) | SemaphoreDemand::Post(_)),
            Demand::Event(demand) => matches!(demand, EventDemand::Set | EventDemand::Clear),
            Demand::Once(demand) => matches!(demand, OnceDemand::Done | OnceDemand::Failed),
            Demand::Condition(demand) => !matches!(demand, ConditionDemand::Wait),
            Demand::CountingBarrier(_) => true,
        }
    }

    /// Whether the program, once this demand was granted, must see what others did before.
    pub fn acquires(self) -> bool {
        !self.releases() || matches!(self, Demand::CountingBarrier(_))
    }

    /// What the caller's node holds after an answer of 1, and has to give back.
    fn hold_taken(self) -> Option<Hold> {
        match self {
            Demand::ReadWriteLock(ReadWriteDemand::Read | ReadWriteDemand::TryRead) => Some(Hold::Read),
            Demand::ReadWriteLock(ReadWriteDemand::Write | ReadWriteDemand::TryWrite) => Some(Hold::Write),
            Demand::Once(OnceDemand::Begin) => Some(Hold::Run),
            _ => None,
        }
    }

    /// What the demand ends.
    fn hold_ended(self) -> Option<Hold> {
        match self {
            Demand::ReadWriteLock(ReadWriteDemand::EndRead) => Some(Hold::Read),
            Demand::ReadWriteLock(ReadWriteDemand::EndWrite) => Some(Hold::Write),
            Demand::Once(OnceDemand::Done | OnceDemand::Failed) => Some(Hold::Run),
            _ => None,
        }
    }

    /// Whether no call waits for an answer, and none is given.
    pub fn is_silent(self) -> bool {
        match self {
            Demand::ReadWriteLock(demand) => demand.is_end(),
            Demand::Semaphore(demand) => matches!(demand, SemaphoreDemand::Post(_)),
            Demand::Condition(demand) => demand.is_silent(),
            _ => false,
        }
    }
}

/// How a node's program holds an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Hold {
    Read,
    Write,
    Run,
}

impl Hold {
    fn kind(self) -> Kind {
        if self == Hold::Run { Kind::Once } else { Kind::ReadWriteLock }
    }
}

/// Why a home refuses a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The home keeps [`OBJECTS_MAX`] objects of this kind.
    TooMany,
    /// A semaphore would pass 2^64 - 1.
    Overflow,
    /// The number of participants is zero, or differs from the one that the calls waiting in the counting barrier gave.
    Participants,
}

impl Refusal {
    /// All refusals, in the order of their codes on the wire.
    pub const ALL: [Refusal; 3] = [Refusal::TooMany, Refusal::Overflow, Refusal::Participants];

    /// The text for the program.
    pub fn text(self) -> &'static str {
        match self {
            Refusal::TooMany => "too many objects of this kind at their home; use fewer numbers",
            Refusal::Overflow => "the semaphore cannot have more permits: it would pass 2^64 - 1",
            Refusal::Participants => {
                "this barrier is waited in with another number of participants; give the same number, at least 1, in \
                 every call until it has opened"
            }
        }
    }
}

/// A home's answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is done.
    Done(u64),
    /// The call waits, and no notification from now on is missed. Sent only for a wait on a condition.
    Enrolled,
    /// The call was abandoned, and nothing has been granted.
    Forgotten,
    /// The demand cannot be met.
    Refused(Refusal),
}

/// A call as the home knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Caller {
    pub(super) node: NodeId,
    pub(super) waiter: Waiter,
}

/// The results of a demand on an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    To(Caller, Outcome),
    /// The node that sent the demand did what no correct node does.
    Wrong(&'static str),
}

/// An object that is kept at its home. In its initial state it need not be kept.
pub(super) trait HomeObject: Default + PartialEq {
    type Demand: Copy;

    /// Answers now, or keeps the caller and answers later. `numbers` is the counter by which this kind tells calls apart.
    fn demand(&mut self, caller: Caller, demand: Self::Demand, numbers: &mut u64, answers: &mut Vec<Answer>);

    /// The call no longer waits. Returns whether it did wait. Other calls may go on because of it.
    fn forget(&mut self, caller: Caller, answers: &mut Vec<Answer>) -> bool;

    /// Takes back what was granted, with `value`, to a call that was abandoned in the meantime.
    fn undo(&mut self, node: NodeId, demand: Self::Demand, value: u64, answers: &mut Vec<Answer>);
}

/// All objects of one kind whose home is here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Table<K> {
    objects: BTreeMap<u64, K>,
    numbers: u64,
}

impl<K: HomeObject> Table<K> {
    fn demand(&mut self, id: u64, caller: Caller, demand: K::Demand, is_silent: bool, answers: &mut Vec<Answer>) {
        let is_one_too_many = self.objects.len() >= OBJECTS_MAX && !self.objects.contains_key(&id);
        if is_one_too_many && !is_silent {
            return answers.push(Answer::To(caller, Outcome::Refused(Refusal::TooMany)));
        }
        if is_one_too_many {
            let mut object = K::default();
            object.demand(caller, demand, &mut self.numbers, answers);
            if object != K::default() {
                // No thread waits for an answer that could say so.
                answers.push(Answer::Wrong("a release of one more semaphore than a home keeps"));
            }
            return;
        }
        let object = self.objects.entry(id).or_default();
        object.demand(caller, demand, &mut self.numbers, answers);
        self.tidy(id);
    }

    fn forget(&mut self, id: u64, caller: Caller, answers: &mut Vec<Answer>) -> bool {
        let Some(object) = self.objects.get_mut(&id) else { return false };
        let waited = object.forget(caller, answers);
        self.tidy(id);
        waited
    }

    fn undo(&mut self, id: u64, node: NodeId, demand: K::Demand, value: u64, answers: &mut Vec<Answer>) {
        // A grant that left the object in its initial state has removed it from the table.
        self.objects.entry(id).or_default().undo(node, demand, value, answers);
        self.tidy(id);
    }

    fn tidy(&mut self, id: u64) {
        if self.objects.get(&id).is_some_and(|object| *object == K::default()) {
            self.objects.remove(&id);
        }
    }
}

/// One half of a pair that has reached the home; the other half is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stray {
    /// The call was abandoned; its request, or the undoing of its grant, is still to come.
    Abandoned,
    /// The grant was undone; the abandonment is still to come.
    Undone,
}

/// A call of this node's program that the home has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    id: u64,
    demand: Demand,
    /// To be woken when the home has enrolled the call.
    enrolled: Option<Waiter>,
    /// To be woken in the end; `None` if the call was abandoned.
    waiter: Option<Waiter>,
}

/// Both sides, at one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Objects {
    place: Place,
    calls: BTreeMap<Waiter, Call>,
    /// What this node's program holds, and how many times.
    held: BTreeMap<(u64, Hold), u32>,
    /// Counting barriers that opened for calls that had been abandoned, with the answers to those calls.
    opened: BTreeMap<u64, Vec<u64>>,
    strays: BTreeMap<Caller, Stray>,
    read_write_locks: Table<ReadWriteLock>,
    semaphores: Table<Semaphore>,
    events: Table<Event>,
    onces: Table<Once>,
    conditions: Table<Condition>,
    counting_barriers: Table<CountingBarrier>,
}

// The side of the caller.
impl Objects {
    pub(super) fn new(place: Place) -> Objects {
        Objects {
            place,
            calls: BTreeMap::new(),
            held: BTreeMap::new(),
            opened: BTreeMap::new(),
            strays: BTreeMap::new(),
            read_write_locks: Table::default(),
            semaphores: Table::default(),
            events: Table::default(),
            onces: Table::default(),
            conditions: Table::default(),
            counting_barriers: Table::default(),
        }
    }

    /// Takes a call of the program. A demand that gives something back gives back what this node's program holds; the
    /// caller has checked that it does.
    pub(super) fn call(
        &mut self,
        id: u64,
        demand: Demand,
        enrolled: Option<Waiter>,
        waiter: Waiter,
        effects: &mut Vec<Effect>,
    ) {
        debug_assert_eq!(enrolled.is_some(), demand == Demand::Condition(ConditionDemand::Wait));
        if let Demand::CountingBarrier(_) = demand
            && self.continues(id, waiter, effects)
        {
            return;
        }
        if let Some(hold) = demand.hold_ended() {
            self.let_go(id, hold);
        }
        if !demand.is_silent() {
            if self.calls.len() >= OBJECTS_MAX {
                return effects.push(Effect::Refused(waiter, "too many calls of this node wait"));
            }
            let before = self.calls.insert(waiter, Call { id, demand, enrolled, waiter: Some(waiter) });
            debug_assert!(before.is_none(), "the number of a call is used once");
        }
        if self.place.is_home_of(id) {
            self.at_home(id, Caller { node: self.place.me, waiter }, demand, effects);
        } else {
            effects.push(Effect::Send(self.place.home_of(id), Message::ObjectRequest(id, demand, waiter)));
        }
    }

    /// Whether an abandoned arrival of this node still stands: the call then continues its wait.
    fn continues(&mut self, id: u64, waiter: Waiter, effects: &mut Vec<Effect>) -> bool {
        if let Some(answers) = self.opened.get_mut(&id) {
            effects.extend(answers.pop().map(|value| Effect::Wake(waiter, value)));
            if answers.is_empty() {
                self.opened.remove(&id);
            }
            return true;
        }
        let stands = |call: &&mut Call| call.id == id && call.is_arrival() && call.waiter.is_none();
        let call = self.calls.values_mut().find(stands);
        call.map(|call| call.waiter = Some(waiter)).is_some()
    }

    /// The deadline of a call passed.
    pub(super) fn abandon(&mut self, waiter: Waiter, effects: &mut Vec<Effect>) {
        let found = self.calls.iter_mut().find(|(_, call)| call.waiter == Some(waiter));
        let Some((&name, call)) = found else { return };
        (call.waiter, call.enrolled) = (None, None);
        let (id, demand, is_arrival) = (call.id, call.demand, call.is_arrival());
        effects.push(Effect::Refused(waiter, ABANDONED));
        // An arrival at a barrier stands: the next call of this node continues the wait.
        if is_arrival {
            return;
        }
        if self.place.is_home_of(id) {
            self.abandoned(self.place.me, id, demand.kind(), name, effects);
        } else {
            effects.push(Effect::Send(self.place.home_of(id), Message::ObjectAbandon(id, demand.kind(), name)));
        }
    }

    /// Takes the home's answer to a call.
    pub(super) fn answered(
        &mut self,
        from: NodeId,
        id: u64,
        name: Waiter,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        let call = self.calls.get_mut(&name).filter(|call| call.id == id && self.place.home_of(id) == from);
        if outcome == Outcome::Enrolled {
            // It may come after the call was woken or forgotten, and is outdated then.
            let enrolled = call.and_then(|call| call.enrolled.take());
            return effects.extend(enrolled.map(|waiter| Effect::Wake(waiter, 0)));
        }
        let Some(call) = call.copied() else {
            return effects.push(Effect::Violation(from, "an answer that nobody waits for"));
        };
        self.calls.remove(&name);
        match (outcome, call.waiter) {
            (Outcome::Done(value), Some(waiter)) => {
                if let Some(hold) = call.demand.hold_taken().filter(|_| value == 1) {
                    *self.held.entry((id, hold)).or_default() += 1;
                }
                effects.extend(call.enrolled.map(|enrolled| Effect::Wake(enrolled, 0)));
                effects.push(Effect::Wake(waiter, value));
            }
            (Outcome::Refused(why), Some(waiter)) => {
                effects.extend(call.enrolled.map(|enrolled| Effect::Refused(enrolled, why.text())));
                effects.push(Effect::Refused(waiter, why.text()));
            }
            (Outcome::Done(value), None) if call.is_arrival() => {
                self.opened.entry(id).or_default().push(value);
            }
            (Outcome::Refused(_), None) if call.is_arrival() => {}
            (Outcome::Done(value), None) => self.take_back(id, call.demand, name, value, effects),
            (Outcome::Refused(_), None) => self.take_back(id, call.demand, name, 0, effects),
            (Outcome::Forgotten, None) => {}
            (Outcome::Forgotten, Some(_)) => {
                effects.push(Effect::Violation(from, "the end of a call that was not abandoned"));
            }
            (Outcome::Enrolled, _) => unreachable!("handled above"),
        }
    }

    /// Sends back what was granted to a call that no thread waits for any more. At the home it meets the abandonment.
    fn take_back(&self, id: u64, demand: Demand, name: Waiter, value: u64, effects: &mut Vec<Effect>) {
        debug_assert!(!self.place.is_home_of(id), "at the home an abandoned call is forgotten at once");
        effects.push(Effect::Send(self.place.home_of(id), Message::ObjectUndo(id, demand, name, value)));
    }

    fn let_go(&mut self, id: u64, hold: Hold) {
        let count = self.held.get_mut(&(id, hold)).expect("only what is held is given back; the runtime checks it");
        *count -= 1;
        if *count == 0 {
            self.held.remove(&(id, hold));
        }
    }

    pub(super) fn may_end(&self, id: u64, demand: Demand) -> bool {
        demand.hold_ended().is_none_or(|hold| self.held.contains_key(&(id, hold)))
    }

    pub(super) fn standing(&self, subject: Subject) -> Standing {
        let waits = |call: &&Call| call.id == subject.id && call.demand.kind() == subject.kind && call.waiter.is_some();
        let of_it = |held: &(&(u64, Hold), &u32)| held.0.0 == subject.id && held.0.1.kind() == subject.kind;
        Standing {
            holds: self.held.iter().filter(of_it).map(|(_, count)| count).sum(),
            waits: self.calls.values().filter(waits).count() as u32,
        }
    }

    /// The first object that this node's program holds or waits for.
    pub(super) fn in_use(&self) -> Option<Subject> {
        let held = self.held.keys().next().map(|(id, hold)| Subject { kind: hold.kind(), id: *id });
        let waiting = self.calls.values().find(|call| call.waiter.is_some());
        held.or(waiting.map(|call| Subject { kind: call.demand.kind(), id: call.id }))
    }

    /// Whether no answer is still to come.
    pub(super) fn is_clear(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether this node waits for nothing, holds nothing, and remembers nothing about calls that are over.
    pub(super) fn is_quiet(&self) -> bool {
        self.calls.is_empty() && self.held.is_empty() && self.opened.is_empty() && self.strays.is_empty()
    }
}

impl Call {
    fn is_arrival(&self) -> bool {
        matches!(self.demand, Demand::CountingBarrier(_))
    }
}

// The side of the home.
impl Objects {
    pub(super) fn requested(
        &mut self,
        from: NodeId,
        id: u64,
        demand: Demand,
        waiter: Waiter,
        effects: &mut Vec<Effect>,
    ) {
        if !self.place.is_home_of(id) {
            return effects.push(Effect::Violation(from, "a demand at a wrong home"));
        }
        let caller = Caller { node: from, waiter };
        if !demand.is_silent() && self.strays.get(&caller) == Some(&Stray::Abandoned) {
            self.strays.remove(&caller);
            return effects.push(Effect::Send(from, Message::ObjectReply(id, waiter, Outcome::Forgotten)));
        }
        self.at_home(id, caller, demand, effects);
    }

    pub(super) fn abandoned(&mut self, from: NodeId, id: u64, kind: Kind, waiter: Waiter, effects: &mut Vec<Effect>) {
        if !self.place.is_home_of(id) {
            return effects.push(Effect::Violation(from, "an abandonment at a wrong home"));
        }
        let caller = Caller { node: from, waiter };
        let mut answers = Vec::new();
        let waited = match kind {
            Kind::ReadWriteLock => self.read_write_locks.forget(id, caller, &mut answers),
            Kind::Semaphore => self.semaphores.forget(id, caller, &mut answers),
            Kind::Event => self.events.forget(id, caller, &mut answers),
            Kind::Once => self.onces.forget(id, caller, &mut answers),
            Kind::Condition => self.conditions.forget(id, caller, &mut answers),
            Kind::CountingBarrier | Kind::Lock | Kind::Barrier => {
                return effects.push(Effect::Violation(from, "an abandonment of what stays entered"));
            }
        };
        if waited {
            answers.insert(0, Answer::To(caller, Outcome::Forgotten));
        } else {
            self.pair(caller, Stray::Abandoned, Stray::Undone, effects);
        }
        self.tell(from, id, answers, effects);
    }

    pub(super) fn undone(
        &mut self,
        from: NodeId,
        id: u64,
        demand: Demand,
        waiter: Waiter,
        value: u64,
        effects: &mut Vec<Effect>,
    ) {
        if !self.place.is_home_of(id) {
            return effects.push(Effect::Violation(from, "an undoing at a wrong home"));
        }
        self.pair(Caller { node: from, waiter }, Stray::Undone, Stray::Abandoned, effects);
        let mut answers = Vec::new();
        match demand {
            Demand::ReadWriteLock(demand) => self.read_write_locks.undo(id, from, demand, value, &mut answers),
            Demand::Semaphore(demand) => self.semaphores.undo(id, from, demand, value, &mut answers),
            Demand::Event(demand) => self.events.undo(id, from, demand, value, &mut answers),
            Demand::Once(demand) => self.onces.undo(id, from, demand, value, &mut answers),
            Demand::Condition(demand) => self.conditions.undo(id, from, demand, value, &mut answers),
            Demand::CountingBarrier(_) => answers.push(Answer::Wrong("an arrival that was undone")),
        }
        self.tell(from, id, answers, effects);
    }

    /// One half of a pair arrived: the other has come before, or is still to come.
    fn pair(&mut self, caller: Caller, this: Stray, other: Stray, effects: &mut Vec<Effect>) {
        match self.strays.get(&caller) {
            Some(&before) if before == other => {
                self.strays.remove(&caller);
            }
            None if self.strays.len() < OBJECTS_MAX => {
                self.strays.insert(caller, this);
            }
            Some(_) => effects.push(Effect::Violation(caller.node, "a call abandoned or undone twice")),
            None => effects.push(Effect::Violation(caller.node, "too many abandoned calls at their home")),
        }
    }

    fn at_home(&mut self, id: u64, caller: Caller, demand: Demand, effects: &mut Vec<Effect>) {
        debug_assert!(self.place.is_home_of(id));
        let mut answers = Vec::new();
        let is_silent = demand.is_silent();
        match demand {
            Demand::ReadWriteLock(demand) => self.read_write_locks.demand(id, caller, demand, is_silent, &mut answers),
            Demand::Semaphore(demand) => self.semaphores.demand(id, caller, demand, is_silent, &mut answers),
            Demand::Event(demand) => self.events.demand(id, caller, demand, is_silent, &mut answers),
            Demand::Once(demand) => self.onces.demand(id, caller, demand, is_silent, &mut answers),
            Demand::Condition(demand) => self.conditions.demand(id, caller, demand, is_silent, &mut answers),
            Demand::CountingBarrier(count) => self.counting_barriers.demand(id, caller, count, is_silent, &mut answers),
        }
        self.tell(caller.node, id, answers, effects);
    }

    /// Sends the callers, here or elsewhere, the object's answers to a demand of `from`.
    fn tell(&mut self, from: NodeId, id: u64, answers: Vec<Answer>, effects: &mut Vec<Effect>) {
        let me = self.place.me;
        for answer in answers {
            match answer {
                Answer::To(caller, outcome) if caller.node == me => {
                    self.answered(me, id, caller.waiter, outcome, effects);
                }
                Answer::To(caller, outcome) => {
                    effects.push(Effect::Send(caller.node, Message::ObjectReply(id, caller.waiter, outcome)));
                }
                Answer::Wrong(what) => effects.push(Effect::Violation(from, what)),
            }
        }
    }
}
