//! Mutants of locks, barriers and words.
//!
//! Promises: with [`SyncFault::None`] the wrapper does exactly what the protocol does. It must
//! never use more of it than its inputs and effects.

use crate::synchronisation::Synchronises;
use trellis_protocol::NodeId;
use trellis_protocol::sync::{Effect, Input, Message, Sync};

/// What is broken; the table in the module above says it in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum SyncFault {
    None,
    TokenTwice,
    NoForward,
    Misroutes,
    ReleasesEarly,
    ForgetsChild,
    AddsTwice,
    NoReply,
}

/// The real synchronisation with one fault.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SyncMutant {
    inner: Sync,
    me: NodeId,
    last: NodeId,
    fault: SyncFault,
    /// Generations in which the last child was taken for granted.
    anticipated: Vec<u32>,
}

impl SyncMutant {
    /// Node `me` of `nodes` with `fault`.
    pub fn new(me: NodeId, nodes: u16, fault: SyncFault) -> SyncMutant {
        let inner = Sync::new(me, nodes);
        SyncMutant { inner, me, last: NodeId(nodes - 1), fault, anticipated: Vec::new() }
    }

    fn is_anticipated(&mut self, input: Input) -> bool {
        let Input::Message(from, Message::BarrierArrive(_, generation, _)) = input else {
            return false;
        };
        let index = self.anticipated.iter().position(|&other| other == generation);
        if from != self.last {
            return false;
        }
        index.map(|index| self.anticipated.remove(index)).is_some()
    }
}

impl Synchronises for SyncMutant {
    fn is_quiet(&self) -> bool {
        self.inner.is_quiet()
    }

    fn step(&mut self, input: Input, effects: &mut Vec<Effect>) {
        if self.is_anticipated(input) {
            return;
        }
        let before = self.inner.clone();
        let start = effects.len();
        self.inner.step(input, effects);
        let hands_over = effects[start..].iter().any(|effect| matches!(effect, Effect::Send(_, Message::LockToken(_))));
        match self.fault {
            SyncFault::TokenTwice if hands_over && !matches!(input, Input::Release(_)) => {
                self.inner = before;
            }
            SyncFault::NoForward => {
                effects.retain(|effect| !matches!(effect, Effect::Send(_, Message::LockForward(..))))
            }
            SyncFault::Misroutes => {
                for effect in &mut effects[start..] {
                    if let Effect::Send(to, Message::LockForward(_, next, _)) = effect {
                        let other = NodeId((next.0 + 1) % (self.last.0 + 1));
                        *next = if other == *to { *next } else { other };
                    }
                }
            }
            SyncFault::ReleasesEarly if matches!(input, Input::Arrive(..)) && self.me.0 == 0 => {
                let Input::Arrive(id, own, waiter) = input else { unreachable!("just matched") };
                let generation = waiter & 0xFF;
                self.anticipated.push(generation);
                let arrival = Input::Message(self.last, Message::BarrierArrive(id, generation, own));
                self.inner.step(arrival, effects);
            }
            SyncFault::ForgetsChild => {
                let last = self.last;
                effects
                    .retain(|effect| !matches!(effect, Effect::Send(to, Message::BarrierRelease(..)) if *to == last));
            }
            SyncFault::AddsTwice if matches!(input, Input::Message(_, Message::AtomicRequest(..))) => {
                self.inner.step(input, &mut Vec::new());
            }
            SyncFault::NoReply => effects.retain(|effect| !matches!(effect, Effect::Send(_, Message::AtomicReply(..)))),
            _ => {}
        }
    }
}
