//! Mutants of the coherence protocol.
//!
//! Promises: with [`Fault::None`] the wrapper does exactly what the protocol does. It must never
//! use more of a protocol than its inputs, its effects and [`Coherence`]'s questions.

use trellis_protocol::coherence::{Coherence, Content, Effect, Geometry, Input, Message, Running};
use trellis_protocol::homes::HomeOf;
use trellis_protocol::{Access, Nanoseconds, NodeId, PageIndex, PageRange};

/// What is broken; the table in the module above says it in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Fault {
    None,
    KeepsCopy,
    NoDowngrade,
    NoRevoke,
    GrantsTooEarly,
    ForgetsReader,
    KeptNotBytes,
    ZeroNotBytes,
    IgnoresAfter,
    NoWaitForConfirm,
    LosesQueued,
    NoWake,
    NarrowWake,
    NoConfirm,
    WriteForRead,
    SendsWriteForRead,
    SendBeforeRevoke,
    NoHold,
    IgnoresResumed,
    AcknowledgesUnheard,
    GrantTooWide,
    AcknowledgesTwice,
    NoUpgrade,
}

/// The real protocol with one fault.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mutant {
    inner: Running,
    geometry: Geometry,
    fault: Fault,
    /// Numbers of the last write grants that arrived here, for [`Fault::IgnoresAfter`].
    granted: Vec<(PageIndex, u32)>,
    /// Messages that were made up and whose true ones must not come through any more.
    anticipated: Vec<(NodeId, Message)>,
}

impl Coherence for Mutant {
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        let Some(input) = self.alter_input(input, effects) else { return };
        let before = self.inner.clone();
        let mut made = Vec::new();
        self.inner.step(now, input, &mut made);
        if self.fault == Fault::LosesQueued && is_request(input) && made.is_empty() {
            self.inner = before;
        }
        self.anticipate(now, &mut made);
        self.alter_effects(input, &mut made);
        effects.append(&mut made);
    }

    fn access(&self, page: PageIndex) -> Access {
        self.inner.access(page)
    }

    fn is_pending(&self, page: PageIndex) -> bool {
        self.inner.is_pending(page)
    }
}

impl Mutant {
    /// `inner`, which was started with `geometry`, with `fault`.
    pub fn new(inner: Running, geometry: Geometry, fault: Fault) -> Mutant {
        Mutant { inner, geometry, fault, granted: Vec::new(), anticipated: Vec::new() }
    }

    fn alter_input(&mut self, input: Input, effects: &mut Vec<Effect>) -> Option<Input> {
        if let Input::Message { from, message } = input {
            let made_up = self.anticipated.iter().position(|&other| other == (from, message));
            if let Some(index) = made_up {
                self.anticipated.remove(index);
                return None;
            }
        }
        match (self.fault, input) {
            (Fault::IgnoresResumed, Input::Resumed { .. }) => None,
            (Fault::AcknowledgesUnheard, Input::Message { from, message })
                if matches!(message, Message::Invalidate { .. }) && self.access(message.page()) == Access::None =>
            {
                let message = Message::Invalidated { page: message.page() };
                effects.push(Effect::Send { to: from, message });
                None
            }
            (Fault::IgnoresAfter, Input::Message { from, message }) => {
                let message = self.forget_after(message);
                Some(Input::Message { from, message })
            }
            _ => Some(input),
        }
    }

    fn forget_after(&mut self, message: Message) -> Message {
        match message {
            Message::Grant { demand, write: true, sequence, .. } => {
                self.granted.retain(|&(page, _)| page != demand);
                self.granted.push((demand, sequence));
                self.granted.sort_unstable();
                message
            }
            Message::Forward { demand, range, write, requester, sequence, .. } => {
                let known = self.granted.iter().find(|&&(page, _)| page == demand);
                let after = known.map_or(0, |&(_, sequence)| sequence);
                Message::Forward { demand, range, write, requester, after, sequence }
            }
            other => other,
        }
    }

    /// Answers for others at once.
    fn anticipate(&mut self, now: Nanoseconds, made: &mut Vec<Effect>) {
        let mut index = 0;
        while index < made.len() {
            let Effect::Send { to, message } = made[index] else {
                index += 1;
                continue;
            };
            index += 1;
            let answer = match (self.fault, message) {
                (Fault::GrantsTooEarly | Fault::ForgetsReader, Message::Invalidate { page }) => {
                    (to, Message::Invalidated { page })
                }
                (Fault::NoWaitForConfirm, Message::Forward { demand, range, requester, .. })
                    if requester != self.geometry.me =>
                {
                    (requester, Message::Confirm { demand, range })
                }
                _ => continue,
            };
            if self.fault == Fault::ForgetsReader {
                index -= 1;
                made.remove(index);
            } else {
                self.anticipated.push(answer);
                self.anticipated.sort_unstable_by_key(|(from, message)| (*from, message.page()));
            }
            let (from, message) = answer;
            self.inner.step(now, Input::Message { from, message }, made);
        }
    }

    fn alter_effects(&self, input: Input, made: &mut Vec<Effect>) {
        let invalidation = matches!(input, Input::Message { message: Message::Invalidate { .. }, .. });
        let is_send_of = |effect: &Effect, which: fn(&Message) -> bool| matches!(effect, Effect::Send { message, .. } if which(message));
        match self.fault {
            Fault::KeepsCopy if invalidation => {
                made.retain(|effect| !matches!(effect, Effect::Revoke(_)));
            }
            Fault::NoDowngrade => made.retain(|effect| !matches!(effect, Effect::Downgrade(_))),
            Fault::NoRevoke if !invalidation => {
                made.retain(|effect| !matches!(effect, Effect::Revoke(_)));
            }
            Fault::NoWake => made.retain(|effect| !matches!(effect, Effect::Wake(_))),
            Fault::NoHold => made.retain(|effect| !matches!(effect, Effect::Hold(_))),
            Fault::NoUpgrade => made.retain(|effect| !matches!(effect, Effect::Upgrade(_))),
            Fault::NoConfirm => {
                made.retain(|effect| !is_send_of(effect, |m| matches!(m, Message::Confirm { .. })));
            }
            Fault::SendBeforeRevoke => {
                made.sort_by_key(|effect| !matches!(effect, Effect::Send { .. }));
            }
            Fault::AcknowledgesTwice => {
                let twice = |m: &Message| matches!(m, Message::Invalidated { .. });
                let again = made.iter().copied().find(|effect| is_send_of(effect, twice));
                made.extend(again);
            }
            _ => made.iter_mut().for_each(|effect| self.alter_effect(effect)),
        }
    }

    fn alter_effect(&self, effect: &mut Effect) {
        match effect {
            Effect::Wake(range) if self.fault == Fault::NarrowWake => {
                *range = PageRange::one(range.first());
            }
            Effect::Install { access, .. } if self.fault == Fault::WriteForRead => {
                *access = Access::Write;
            }
            Effect::Send { message: Message::Grant { demand, range, write, content, .. }, .. } => {
                let bytes = *content == Content::Bytes;
                match self.fault {
                    Fault::KeptNotBytes if bytes => *content = Content::Kept,
                    Fault::ZeroNotBytes if bytes => *content = Content::Zero,
                    Fault::SendsWriteForRead => *write = true,
                    Fault::GrantTooWide => *range = self.widened(*demand, *range),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn widened(&self, demand: PageIndex, range: PageRange) -> PageRange {
        let home = &self.geometry.home;
        debug_assert!(home.manager_of(demand, self.geometry.nodes).0 < self.geometry.nodes);
        PageRange::around(demand, range.first().0, (range.end() + 1).min(self.geometry.pages))
    }
}

fn is_request(input: Input) -> bool {
    matches!(input, Input::Message { message: Message::Request { .. }, .. })
}
