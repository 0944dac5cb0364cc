//! The events of a node, and how its shard handles them, as in the runtime.
//!
//! Promises: the result of a fact depends on the shard and the fact alone. Time has no length here: every step is at
//! the same moment, and whatever is pending may go off at any later one. The only later moment is that at which the
//! time of a lock is over. It must never carry anything out.

use super::{COORDINATOR, Node, Pages};
use crate::intern::guarded;
use crate::simulate::NodeFault;
use std::convert::Infallible;
use trellis_cluster_protocol::coherence::{Effect, Input, Message};
use trellis_cluster_protocol::node::{self, Carrier, LockStep, LockedRange, Order, Parts, Shard};
use trellis_cluster_protocol::{Nanoseconds, NodeId, PageIndex, PageRange, membership};

/// The moment of every step.
const NOW: Nanoseconds = 0;
/// The duration of a lock that ends by itself, and the moment at which one that was given at [`NOW`] is over.
pub(super) const STAY: Nanoseconds = 1_000_000;
/// How long a page is held at most: until some later moment.
const HOLD_MAX: Nanoseconds = 1;

/// Something that happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fact {
    /// The protocol gets this.
    Input(Input),
    /// A thread that waited for this page after a fault was woken.
    Woken(PageIndex),
    /// That thread has run on.
    Looked(PageIndex),
    /// A thread has run on that was woken for another reason.
    RanOn(PageIndex),
    /// What is pending goes off.
    Due(Input),
    /// This thread locks pages.
    Locks { range: PageRange, thread: u32, stay: Option<Nanoseconds> },
    /// This thread gives back what it locked, or gives up waiting.
    Unlocks {
        range: PageRange,
        thread: u32,
        /// The time of the call is over.
        is_over: bool,
    },
    /// The node is told that another departs.
    Departs(NodeId),
    /// The node, which leaves, answers those that it told to ask again.
    AnswersDeferred,
    /// The node, which leaves, lets go what it holds for its threads.
    LetsGo,
    /// The protocol of all pages is changed.
    Changes,
}

impl<N: Node> Pages<N> {
    /// Lets `fact` happen to the node `me`; `tell` gets each effect of its protocol and the shard's order for it.
    pub(super) fn apply(
        &self,
        shard: &mut Shard<N>,
        me: NodeId,
        fact: Fact,
        tell: &mut dyn FnMut(Effect, Order),
    ) -> Result<(), String> {
        guarded(|| self.take(shard, me, fact, tell)).map_err(|what| format!("the protocol at {me} stopped: {what}"))?
    }

    fn take(
        &self,
        shard: &mut Shard<N>,
        me: NodeId,
        fact: Fact,
        tell: &mut dyn FnMut(Effect, Order),
    ) -> Result<(), String> {
        let mut taken = self.taken(shard, tell);
        let Ok(()) = match fact {
            Fact::Input(input) => node::take(&mut taken, input),
            Fact::Woken(page) if self.instance.silent => {
                taken.shard.timers.hold(page, NOW, self.fault.held_at_most(HOLD_MAX));
                Ok(())
            }
            Fact::Woken(page) => {
                taken.shard.timers.wake(page);
                Ok(())
            }
            Fact::Looked(page) => node::looks(&mut taken, page, || NOW),
            Fact::RanOn(page) => node::runs_on(&mut taken, page, || NOW),
            Fact::Due(input) if self.fault.take(taken.shard, input) => node::take(&mut taken, input),
            Fact::Due(_) => Ok(()),
            Fact::Locks { range, thread, stay } => {
                let mut locked = LockedRange::new(range.first().0..range.end(), thread.into(), stay);
                let Ok(step) = locked.go_on(&mut taken, NOW, thread, thread);
                if step != LockStep::Piece(range) {
                    return Err(format!("{me} does not lock {range} for thread {thread}: {step:?}"));
                }
                Ok(())
            }
            Fact::Unlocks { range, thread, is_over } => {
                let mut locked = LockedRange::new(range.end()..range.end(), thread.into(), None);
                locked.pieces.push((range, thread));
                let Ok(was_over) = locked.give_back(&mut taken, if is_over { STAY } else { NOW });
                if was_over != is_over {
                    let word = if is_over { "not over" } else { "over" };
                    return Err(format!("{me} tells thread {thread} that its time is {word}"));
                }
                Ok(())
            }
            Fact::Departs(node) => node::members_changed(&mut taken, membership::Effect::Departs(node), COORDINATOR),
            Fact::AnswersDeferred => node::answer_deferred(&mut taken),
            Fact::LetsGo => node::answer_held(&mut taken, NOW).map(drop),
            Fact::Changes => {
                let protocol = self.instance.change.expect("an instance with a change");
                self.instance.runs().try_for_each(|run| node::change_run(&mut taken, run, protocol))
            }
        };
        Ok(())
    }

    fn taken<'a>(&self, shard: &'a mut Shard<N>, tell: &'a mut dyn FnMut(Effect, Order)) -> Taken<'a, N> {
        Taken { shard, fault: self.fault, last: None, tell }
    }
}

/// A shard, the only one of its node, whose orders are told, and carried out later.
struct Taken<'a, N> {
    shard: &'a mut Shard<N>,
    fault: NodeFault,
    /// The effect of the next order.
    last: Option<Effect>,
    tell: &'a mut dyn FnMut(Effect, Order),
}

impl<N: Node> Carrier for Taken<'_, N> {
    type Protocol = N;
    type Attached = ();
    type Breach = Infallible;

    fn shard(&mut self) -> &mut Shard<N> {
        self.shard
    }

    fn decide(&mut self, input: Input, effects: &mut Vec<Effect>) {
        self.shard.protocol.step(NOW, input, effects);
    }

    fn order(&mut self, effect: Effect) -> Order {
        self.last = Some(effect);
        self.fault.order(self.shard, effect, NOW, HOLD_MAX)
    }

    fn carry_out(&mut self, order: Order, (): ()) -> Result<(), Infallible> {
        // A page that stays for threads is remembered by the shard.
        self.last.take().into_iter().for_each(|effect| (self.tell)(effect, order));
        Ok(())
    }

    fn send_diffs(&mut self, message: Message, _: impl Iterator<Item = NodeId>, (): ()) -> Result<(), Infallible> {
        unreachable!("under sequential consistency no node sends {message}")
    }
}

impl<N: Node> Parts for Taken<'_, N> {
    type Held<'a>
        = Taken<'a, N>
    where
        Self: 'a;
    type Breach = Infallible;

    fn shards(&self) -> u32 {
        1
    }

    fn hold(&mut self, _shard: u32) -> Taken<'_, N> {
        Taken { shard: self.shard, fault: self.fault, last: None, tell: self.tell }
    }
}
