//! The rules that must hold when a call of an object ends; computed beside a run.
//!
//! Promises: the rules use only what a program can know: which calls have begun, and which have ended, in which order.
//! Where two orders are possible, both are allowed. It must never inspect a node.

use super::Objects;
use crate::release::effects::Event;
use trellis_cluster_protocol::sync::{
    ConditionDemand, Contribution, Demand, EventDemand, Input, OnceDemand, Operation, ReadWriteDemand, SemaphoreDemand,
};

/// What is known of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Object {
    /// The threads that read or write under it, that it admitted, or that do its work.
    holders: Vec<u8>,
    /// One of them excludes all others.
    is_exclusive: bool,
    /// The values that additions saw, one bit each.
    seen: u32,
    /// The number of additions begun.
    begun: u8,
    /// The nodes whose requests for the lock reached its home, in that order, and that have not received the token.
    queue: Vec<u16>,
    /// A thread has begun to report that its work is done.
    is_done: bool,
}

/// What a thread may see of an object, while it waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Waiting {
    /// The smallest value that an addition may see, or how many operations on the event had ended.
    floor: u8,
    /// It waits for a condition; it is enrolled; a notification of all may reach it.
    awaits: bool,
    is_enrolled: bool,
    by_all: bool,
}

/// A notification that has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Notice {
    One,
    All,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ledger {
    permits: u8,
    objects: Vec<Object>,
    threads: Vec<Waiting>,
    /// Operations on the event that have begun, and that have ended.
    event_begun: u8,
    event_ended: u8,
    /// The call that notifies; the notification that has not arrived; the threads that must receive it; notifications that
    /// may have been lost correctly.
    notifies: Option<Notice>,
    outstanding: Option<Notice>,
    for_whom: u8,
    maybe: u8,
}

impl Ledger {
    pub(crate) fn new(objects: &Objects, threads: usize) -> Ledger {
        Ledger {
            permits: objects.permits,
            objects: vec![Object::default(); usize::from(objects.count)],
            threads: vec![Waiting::default(); threads],
            event_begun: 0,
            event_ended: 0,
            notifies: None,
            outstanding: None,
            for_whom: 0,
            maybe: 0,
        }
    }

    /// Whether a thread may notify now: another one waits, and no notification is under way.
    pub(crate) fn may_notify(&self) -> bool {
        self.threads.iter().any(|thread| thread.is_enrolled) && self.outstanding.is_none()
    }

    /// Applies an event.
    ///
    /// # Errors
    ///
    /// It must not be.
    pub(crate) fn note(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Enters { thread, call } => self.enters(thread, &call),
            Event::Enrolled { thread } => self.threads[usize::from(thread)].is_enrolled = true,
            Event::Answered { thread, call, value } => {
                self.answered(thread, &call, value)?;
                self.threads[usize::from(thread)] = Waiting::default();
            }
            Event::Abandoned { thread, call } => self.abandoned(thread, &call),
            Event::Requested { lock, node } => self.objects[usize::from(lock)].queue.push(node),
            Event::Handed { lock, node } => {
                let queue = &mut self.objects[usize::from(lock)].queue;
                if queue.first() != Some(&node) {
                    return Err(format!("the token reaches node {node}, but the order is {queue:?}"));
                }
                queue.remove(0);
            }
            _ => {}
        }
        Ok(())
    }

    fn enters(&mut self, thread: u8, call: &Input) {
        let waiting = &mut self.threads[usize::from(thread)];
        match *call {
            Input::Operate(word, ..) => {
                let word = &mut self.objects[word as usize];
                waiting.floor = (u32::BITS - word.seen.leading_zeros()) as u8;
                word.begun += 1;
            }
            Input::Demand(id, demand, _) => match demand {
                Demand::Event(EventDemand::Wait) => waiting.floor = self.event_ended,
                Demand::Event(_) => self.event_begun += 1,
                Demand::Condition(ConditionDemand::Wait) => {
                    // A notification of all under way may reach this thread.
                    *waiting = Waiting { awaits: true, by_all: self.notifies == Some(Notice::All), ..*waiting };
                }
                Demand::Condition(ConditionDemand::NotifyAll) => self.begin_notice(Notice::All),
                Demand::Condition(_) => self.begin_notice(Notice::One),
                Demand::Once(OnceDemand::Done) => {
                    self.objects[id as usize].is_done = true;
                    self.lets_go(id, thread);
                }
                Demand::Once(OnceDemand::Failed)
                | Demand::ReadWriteLock(ReadWriteDemand::EndRead | ReadWriteDemand::EndWrite)
                | Demand::Semaphore(SemaphoreDemand::Release(_)) => self.lets_go(id, thread),
                _ => {}
            },
            _ => {}
        }
    }

    fn begin_notice(&mut self, notice: Notice) {
        (self.notifies, self.outstanding, self.for_whom) = (Some(notice), Some(notice), 0);
        for (index, thread) in self.threads.iter_mut().enumerate().filter(|(_, thread)| thread.awaits) {
            self.for_whom |= u8::from(thread.is_enrolled) << index;
            thread.by_all |= notice == Notice::All;
        }
    }

    fn lets_go(&mut self, id: u64, thread: u8) {
        let object = &mut self.objects[id as usize];
        object.holders.retain(|&holder| holder != thread);
        object.is_exclusive = false;
    }

    fn abandoned(&mut self, thread: u8, call: &Input) {
        self.threads[usize::from(thread)] = Waiting::default();
        if !matches!(call, Input::Demand(_, Demand::Condition(ConditionDemand::Wait), _)) {
            return;
        }
        self.for_whom &= !(1 << thread);
        if self.for_whom == 0 {
            self.maybe += u8::from(self.outstanding == Some(Notice::One));
            self.outstanding = None;
        }
    }

    /// A call of the thread has been answered: checks whether it may be.
    fn answered(&mut self, thread: u8, call: &Input, value: u64) -> Result<(), String> {
        match *call {
            Input::Operate(word, Operation::FetchAdd(_), _) => self.adds(thread, word, value),
            Input::Arrive(_, Contribution::Value(_, brought), _) => self.sums(thread, brought, value),
            Input::Demand(id, demand, _) => match demand {
                Demand::ReadWriteLock(ReadWriteDemand::Read) => self.takes(thread, id, value, false, false),
                Demand::ReadWriteLock(ReadWriteDemand::TryRead) => self.takes(thread, id, value, false, true),
                Demand::ReadWriteLock(ReadWriteDemand::Write) => self.takes(thread, id, value, true, false),
                Demand::ReadWriteLock(ReadWriteDemand::TryWrite) => self.takes(thread, id, value, true, true),
                Demand::Semaphore(SemaphoreDemand::Acquire) => self.is_admitted(thread, id, value, false),
                Demand::Semaphore(SemaphoreDemand::TryAcquire) => self.is_admitted(thread, id, value, true),
                Demand::Event(demand) => self.goes_on(thread, demand),
                Demand::Once(OnceDemand::Begin) => self.finds(thread, id, value),
                Demand::Condition(ConditionDemand::Wait) => self.is_notified(thread),
                Demand::Condition(_) => {
                    self.notifies = None;
                    Ok(())
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn adds(&mut self, thread: u8, word: u64, value: u64) -> Result<(), String> {
        let word = &mut self.objects[word as usize];
        let range = u64::from(self.threads[usize::from(thread)].floor)..u64::from(word.begun);
        if !range.contains(&value) || word.seen >> value & 1 != 0 {
            return Err(format!("thread {thread} sees {value}, which cannot be"));
        }
        word.seen |= 1 << value;
        Ok(())
    }

    /// Each thread brought the number of its round, from 1 on, in the byte with its own number.
    fn sums(&self, thread: u8, brought: u64, value: u64) -> Result<(), String> {
        let round = brought >> (8 * thread);
        let sum = (0..self.threads.len()).map(|other| round << (8 * other)).sum::<u64>();
        if value == sum { Ok(()) } else { Err(format!("thread {thread} gets {value:#x}, but the sum is {sum:#x}")) }
    }

    fn takes(&mut self, thread: u8, id: u64, value: u64, writes: bool, tries: bool) -> Result<(), String> {
        if value == 0 {
            return refused(thread, tries);
        }
        let object = &mut self.objects[id as usize];
        if let Some(holder) = object.holders.first().filter(|_| writes || object.is_exclusive) {
            return Err(format!("thread {thread} gets the lock although thread {holder} holds it"));
        }
        hold(object, thread);
        object.is_exclusive = writes;
        Ok(())
    }

    fn is_admitted(&mut self, thread: u8, id: u64, value: u64, tries: bool) -> Result<(), String> {
        if value == 0 {
            return refused(thread, tries);
        }
        let object = &mut self.objects[id as usize];
        if object.holders.len() >= usize::from(self.permits) {
            return Err(format!("thread {thread} is let in by a semaphore that is used up"));
        }
        hold(object, thread);
        Ok(())
    }

    fn goes_on(&mut self, thread: u8, demand: EventDemand) -> Result<(), String> {
        if demand != EventDemand::Wait {
            self.event_ended += 1;
            return Ok(());
        }
        let by_the_first = self.event_begun >= 1 && self.threads[usize::from(thread)].floor < 2;
        if !by_the_first && self.event_begun < 3 {
            return Err(format!("thread {thread} goes on although the event is not set"));
        }
        Ok(())
    }

    fn finds(&mut self, thread: u8, id: u64, value: u64) -> Result<(), String> {
        let object = &mut self.objects[id as usize];
        match (value, object.is_done, object.holders.first()) {
            (0, true, _) => Ok(()),
            (0, false, _) => Err(format!("thread {thread} finds done what nobody has done")),
            (_, true, _) => Err(format!("thread {thread} is to do what is done")),
            (_, false, Some(holder)) => Err(format!("thread {thread} is to do it although thread {holder} does")),
            (_, false, None) => {
                hold(object, thread);
                Ok(())
            }
        }
    }

    fn is_notified(&mut self, thread: u8) -> Result<(), String> {
        let by_all = self.threads[usize::from(thread)].by_all;
        match self.outstanding {
            Some(Notice::All) if by_all => {
                self.for_whom &= !(1 << thread);
                if self.for_whom == 0 {
                    self.outstanding = None;
                }
            }
            Some(Notice::One) => {
                // The cause may have been an earlier notification of all: then this one is still to come.
                self.maybe += u8::from(by_all);
                self.outstanding = None;
            }
            _ if by_all => {}
            _ if self.maybe > 0 => self.maybe -= 1,
            _ => return Err(format!("thread {thread} is woken although nobody notified")),
        }
        Ok(())
    }
}

fn refused(thread: u8, tries: bool) -> Result<(), String> {
    if tries { Ok(()) } else { Err(format!("thread {thread} did not only try, but got nothing")) }
}

fn hold(object: &mut Object, thread: u8) {
    object.holders.push(thread);
    object.holders.sort_unstable();
}
