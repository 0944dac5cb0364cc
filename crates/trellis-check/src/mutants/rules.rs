//! The broken rules: how a mutant changes the input, the state and the output.
//!
//! Promises: all other rules are kept. It must never depend on anything but the mutant's state and the input.

use super::pages::{Fault, Mutant};
use trellis_cluster_protocol::coherence::{Coherence, Content, Effect, Input, Message, Purpose, Running};
use trellis_cluster_protocol::{Access, Nanoseconds, NodeId, PageIndex, PageRange};

// Input.
impl Mutant {
    /// The input that the protocol receives instead of `input`, if any.
    pub(super) fn alter_input(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) -> Option<Input> {
        if let Input::Message { from, message } = input {
            let made_up = self.anticipated.iter().position(|&other| other == (from, message));
            if let Some(index) = made_up {
                self.anticipated.remove(index);
                return None;
            }
        }
        let is_ignored = match (self.fault, input) {
            (Fault::IgnoresResumed, Input::Resumed { .. })
            | (Fault::GrantIgnored, Input::Message { message: Message::Grant { .. }, .. })
            | (Fault::RequestForgotten, Input::Message { message: Message::Request { .. }, .. })
            | (Fault::AcknowledgementIgnored, Input::Message { message: Message::Invalidated { .. }, .. })
            | (Fault::RedirectIgnored, Input::Message { message: Message::Redirect { .. }, .. })
            | (Fault::IgnoresAgain, Input::Message { message: Message::Again { .. }, .. })
            | (Fault::IgnoresUnlock, Input::Unlock { .. })
            | (Fault::IgnoresRetryAlarm, Input::Alarm { purpose: Purpose::Retry, .. })
            | (Fault::IgnoresExpiry, Input::Alarm { purpose: Purpose::Expiry, .. })
            | (Fault::IgnoresThreshold, Input::Alarm { purpose: Purpose::Threshold, .. }) => true,
            (Fault::IgnoresWithdrawal, Input::Unlock { call, .. }) => {
                self.calls.iter().any(|known| known.number == call && !known.is_locked)
            }
            _ => false,
        };
        if is_ignored {
            return None;
        }
        match input {
            Input::Message { from, message } => self.alter_message(now, from, message, effects),
            Input::Fault { page, write, .. } => {
                self.alter_fault(page, write, effects);
                Some(input)
            }
            Input::Lock { range, call, .. } => {
                let shares = |known: &super::pages::Call| known.is_locked && known.range.covers(range);
                let is_told = match self.fault {
                    Fault::LocksAtOnce => true,
                    Fault::LocksTwice => self.calls.iter().any(shares),
                    _ => false,
                };
                if is_told {
                    effects.push(Effect::Locked { range, call });
                }
                (!is_told).then_some(input)
            }
            _ => Some(input),
        }
    }

    fn alter_message(
        &mut self,
        now: Nanoseconds,
        from: NodeId,
        message: Message,
        effects: &mut Vec<Effect>,
    ) -> Option<Input> {
        let page = message.page();
        match (self.fault, message) {
            (Fault::AcknowledgesUnheard, Message::Invalidate { .. }) if self.access(page) == Access::None => {
                effects.push(Effect::Send { to: from, message: Message::Invalidated { page } });
                return None;
            }
            (Fault::CopyOfCopy, Message::Request { demand, write: false, requester, .. })
                if self.access(page) == Access::Read && !self.owns(page) =>
            {
                let (range, content) = (PageRange::one(demand), Content::Bytes);
                let message = Message::Grant { demand, range, write: false, content, sequence: 0 };
                effects.push(Effect::Send { to: requester, message });
                return None;
            }
            (Fault::ConfirmOfAnother, Message::Confirm { .. }) => {
                return Some(Input::Message { from: self.another(from), message });
            }
            (Fault::IgnoresAfter, _) => {
                return Some(Input::Message { from, message: self.forget_after(message) });
            }
            (Fault::ServesBeforeResumed, _) if message.asks().is_some() => {
                self.inner.step(now, Input::Resumed { page }, effects);
            }
            (Fault::LetsIn, _) if message.asks().is_some() => {
                let locking = self.calls.iter().find(|call| call.is_locked && call.range.contains(page));
                if let Some(&super::pages::Call { range, number, .. }) = locking {
                    self.inner.step(now, Input::Unlock { range, call: number }, effects);
                }
            }
            _ => {}
        }
        Some(Input::Message { from, message })
    }

    fn alter_fault(&self, page: PageIndex, write: bool, effects: &mut Vec<Effect>) {
        match self.fault {
            Fault::WakesAtOnce => effects.push(Effect::Wake(PageRange::one(page))),
            Fault::UpgradesItself if write && self.access(page) == Access::Read => {
                effects.push(Effect::Upgrade(PageRange::one(page)));
                effects.push(Effect::Wake(PageRange::one(page)));
            }
            _ => {}
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

    /// A node that is neither this one nor `node`, if there is one.
    fn another(&self, node: NodeId) -> NodeId {
        let others = (1..self.geometry.nodes).map(|step| NodeId((node.0 + step) % self.geometry.nodes));
        others.into_iter().find(|&other| other != self.geometry.me).unwrap_or(node)
    }
}

// State.
impl Mutant {
    /// Whether the protocol forgets `input`, although its effects are carried out.
    pub(super) fn forgets(&self, input: Input, before: &Running, made: &[Effect]) -> bool {
        let sends = |which: fn(&Message) -> bool| made.iter().any(|effect| is_send_of(effect, which));
        let answers = sends(|message| !matches!(message, Message::Retry { .. }))
            || made.iter().any(|effect| matches!(effect, Effect::Install { .. }));
        let Input::Message { message, .. } = input else {
            let is_release = matches!(input, Input::Alarm { purpose: Purpose::Threshold, .. });
            return match self.fault {
                Fault::ReleasedAgain => is_release && answers,
                Fault::OwnershipKept => sends(is_write_grant),
                _ => false,
            };
        };
        match (self.fault, message) {
            (Fault::LosesQueued, Message::Request { .. })
            | (Fault::LosesReader, Message::Request { write: false, .. })
            | (Fault::LosesNext, Message::Request { write: true, .. })
            | (Fault::LosesDeferred, Message::Forward { .. } | Message::Invalidate { .. }) => !answers,
            (Fault::LosesHeldBack, _) => message.asks().is_some() && !answers,
            (Fault::LosesParked, _) => sends(|message| matches!(message, Message::Retry { .. })),
            (Fault::OwnershipKept, _) => sends(is_write_grant),
            (Fault::OwnershipNotTaken, Message::Grant { write: true, .. }) => true,
            (Fault::ForgetsCopy, _) => {
                let page = message.page();
                sends(is_read_grant) && before.access(page) == self.inner.access(page)
            }
            _ => false,
        }
    }

    /// Gives the protocol additional inputs at once.
    pub(super) fn goes_on(&mut self, now: Nanoseconds, input: Input, made: &mut Vec<Effect>) {
        self.anticipate(now, made);
        let is_locked = made.iter().find_map(|effect| match *effect {
            Effect::Locked { range, call } => Some((range, call)),
            _ => None,
        });
        match (self.fault, input, is_locked) {
            (Fault::NeverHolds, ..) => {
                let installed = made.iter().filter_map(|effect| match *effect {
                    Effect::Install { range, .. } | Effect::Upgrade(range) => Some(range),
                    _ => None,
                });
                for page in installed.collect::<Vec<_>>().into_iter().flat_map(PageRange::pages) {
                    self.inner.step(now, Input::Resumed { page }, made);
                }
            }
            (Fault::HeldBackTwice, Input::Message { message, .. }, _)
                if message.asks().is_some() && !made.iter().any(|effect| is_send_of(effect, |_| true)) =>
            {
                self.inner.step(now, input, made);
            }
            (Fault::ForgetsLock, _, Some((range, call))) => {
                self.inner.step(now, Input::Unlock { range, call }, made);
            }
            (Fault::ExpiresAtOnce, _, Some((range, _))) => {
                let expiry = Input::Alarm { page: range.first(), purpose: Purpose::Expiry };
                self.inner.step(now, expiry, made);
            }
            (Fault::UnlocksOthers, Input::Unlock { call, .. }, _) => {
                let others: Vec<_> = self.calls.iter().filter(|known| known.number != call).copied().collect();
                for other in others {
                    self.inner.step(now, Input::Unlock { range: other.range, call: other.number }, made);
                }
            }
            _ => {}
        }
    }

    /// Answers for other nodes at once.
    fn anticipate(&mut self, now: Nanoseconds, made: &mut Vec<Effect>) {
        let mut index = 0;
        while index < made.len() {
            let Effect::Send { to, message } = made[index] else {
                index += 1;
                continue;
            };
            index += 1;
            let answer = match (self.fault, message) {
                (Fault::GrantsTooEarly | Fault::ForgetsReader, Message::Invalidate { page, .. }) => {
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
}

// Output.
impl Mutant {
    pub(super) fn alter_effects(&self, input: Input, made: &mut Vec<Effect>) {
        let invalidation = matches!(input, Input::Message { message: Message::Invalidate { .. }, .. });
        if made.iter().any(|effect| self.is_dropped(input, invalidation, effect)) {
            made.retain(|effect| !self.is_dropped(input, invalidation, effect));
        }
        if self.fault == Fault::SendBeforeRevoke {
            made.sort_by_key(|effect| !matches!(effect, Effect::Send { .. }));
        }
        made.iter_mut().for_each(|effect| self.alter_effect(input, effect));
        let more: Vec<Effect> = made.iter().filter_map(|effect| self.besides(input, effect)).collect();
        made.extend(more);
        let is_unanswered = invalidation && !made.iter().any(|effect| is_send_of(effect, |_| true));
        if let Input::Message { from, message } = input
            && self.fault == Fault::AcknowledgesHeldBack
            && is_unanswered
        {
            made.push(Effect::Send { to: from, message: Message::Invalidated { page: message.page() } });
        }
    }

    /// Whether the mutant drops `effect`.
    fn is_dropped(&self, input: Input, invalidation: bool, effect: &Effect) -> bool {
        let is_alarm = |which| matches!(effect, Effect::Alarm { purpose, .. } if *purpose == which);
        match self.fault {
            Fault::KeepsCopy => invalidation && matches!(effect, Effect::Revoke(_)),
            Fault::NoRevoke => !invalidation && matches!(effect, Effect::Revoke(_)),
            Fault::NoDowngrade => matches!(effect, Effect::Downgrade(_)),
            Fault::NoUpgrade => matches!(effect, Effect::Upgrade(_)),
            Fault::InstallsNothing => matches!(effect, Effect::Install { .. }),
            Fault::NoWake => matches!(effect, Effect::Wake(_)),
            Fault::NoHold => matches!(effect, Effect::Hold(_)),
            Fault::NeverLocked => matches!(effect, Effect::Locked { .. }),
            Fault::NoRetryAlarm => is_alarm(Purpose::Retry),
            Fault::NoExpiryAlarm => is_alarm(Purpose::Expiry),
            Fault::NoThresholdAlarm => is_alarm(Purpose::Threshold),
            Fault::DropsAtUnlock => matches!((input, effect), (Input::Unlock { .. }, Effect::Send { .. })),
            Fault::DropsAtThreshold => {
                let is_end = matches!(input, Input::Alarm { purpose: Purpose::Threshold, .. });
                is_end && matches!(effect, Effect::Send { .. })
            }
            _ => self.is_message_dropped(input, effect),
        }
    }

    fn is_message_dropped(&self, input: Input, effect: &Effect) -> bool {
        let Effect::Send { message, .. } = effect else { return false };
        match (self.fault, message) {
            (Fault::GrantLost, Message::Grant { .. })
            | (Fault::ForwardLost, Message::Forward { .. })
            | (Fault::NoConfirm, Message::Confirm { .. })
            | (Fault::InvalidationLost, Message::Invalidate { .. })
            | (Fault::NeverAcknowledges, Message::Invalidated { .. })
            | (Fault::NoRetry, Message::Retry { .. }) => true,
            (Fault::RequestLost, Message::Request { requester, .. }) => *requester == self.geometry.me,
            (Fault::PassesOnNothing, Message::Request { .. } | Message::Redirect { .. }) => is_request(input),
            _ => false,
        }
    }

    /// An effect that the mutant adds to `effect`.
    fn besides(&self, input: Input, effect: &Effect) -> Option<Effect> {
        match (self.fault, *effect) {
            (Fault::RevokesGranted, Effect::Install { range, .. }) => Some(Effect::Revoke(range)),
            (Fault::ToldTwice, Effect::Locked { .. }) => Some(*effect),
            (Fault::InvalidatesNewOwner, Effect::Send { to, message: Message::Grant { demand, write: true, .. } }) => {
                let message = Message::Invalidate { page: demand, owner: self.geometry.me };
                Some(Effect::Send { to, message })
            }
            (fault, Effect::Send { message, .. }) => {
                let is_mine = |requester: NodeId| requester == self.geometry.me;
                let again = match (fault, message) {
                    (Fault::AcknowledgesTwice, Message::Invalidated { .. })
                    | (Fault::GrantTwice, Message::Grant { .. })
                    | (Fault::ForwardTwice, Message::Forward { .. })
                    | (Fault::ConfirmTwice, Message::Confirm { .. })
                    | (Fault::RedirectTwice, Message::Redirect { .. }) => true,
                    (Fault::RequestTwice, Message::Request { requester, .. }) => is_mine(requester),
                    (Fault::PassesOnTwice, Message::Request { requester, .. }) => {
                        is_request(input) && !is_mine(requester)
                    }
                    _ => false,
                };
                again.then_some(*effect)
            }
            _ => None,
        }
    }

    fn alter_effect(&self, input: Input, effect: &mut Effect) {
        match (self.fault, &mut *effect) {
            (Fault::NarrowWake, Effect::Wake(range))
            | (Fault::DowngradeTooNarrow, Effect::Downgrade(range))
            | (Fault::InstallTooNarrow, Effect::Install { range, .. }) => *range = PageRange::one(range.first()),
            (Fault::InstallTooWide, Effect::Install { range, .. }) => *range = self.widened(range.first(), *range),
            (Fault::WriteForRead, Effect::Install { access, .. }) => *access = Access::Write,
            (Fault::InstallsReadForWrite, Effect::Install { access, .. }) => *access = Access::Read,
            (Fault::ZeroForgotten, Effect::Install { zero, .. }) => *zero = false,
            (Fault::DowngradeNotRevoke, Effect::Revoke(range)) => *effect = Effect::Downgrade(*range),
            (Fault::RevokeNotDowngrade, Effect::Downgrade(range)) => *effect = Effect::Revoke(*range),
            (Fault::WrongCall, Effect::Locked { call, .. }) => *call += 1,
            (Fault::ThresholdOfOther, Effect::Alarm { page, purpose: Purpose::Threshold, .. }) => {
                *page = self.neighbour(*page);
            }
            (Fault::ThresholdMisnamed, Effect::Alarm { purpose, .. }) if *purpose == Purpose::Threshold => {
                *purpose = Purpose::Expiry;
            }
            (_, Effect::Send { to, message }) => self.alter_send(input, to, message),
            _ => {}
        }
    }

    fn alter_send(&self, input: Input, to: &mut NodeId, message: &mut Message) {
        let me = self.geometry.me;
        match (self.fault, &mut *message) {
            (Fault::GrantToAnother, Message::Grant { .. })
            | (Fault::ForwardToAnother, Message::Forward { .. })
            | (Fault::InvalidatesAnother, Message::Invalidate { .. }) => *to = self.another(*to),
            (Fault::KeptNotBytes, Message::Grant { content, .. }) if *content == Content::Bytes => {
                *content = Content::Kept;
            }
            (Fault::ZeroNotBytes, Message::Grant { content, .. }) if *content == Content::Bytes => {
                *content = Content::Zero;
            }
            (Fault::BytesNotZero, Message::Grant { content, .. }) if *content == Content::Zero => {
                *content = Content::Bytes;
            }
            (Fault::SendsWriteForRead, Message::Grant { write, .. }) => *write = true,
            (Fault::SendsReadForWrite, Message::Grant { write, .. }) => *write = false,
            (Fault::MigratesAsCopy, Message::Grant { write, .. }) if is_load(input) => *write = false,
            (Fault::GrantTooWide, Message::Grant { demand, range, .. }) => *range = self.widened(*demand, *range),
            (Fault::WrongNumber, Message::Grant { sequence, .. }) => *sequence += 1,
            (Fault::AsksReadForWrite, Message::Request { write, requester, .. }) if *requester == me => *write = false,
            (Fault::RequestForOther, Message::Request { demand, range, requester, .. }) if *requester == me => {
                *demand = self.neighbour(*demand);
                *range = PageRange::one(*demand);
            }
            (Fault::PassesOnAsItsOwn, Message::Request { requester, .. }) => *requester = me,
            (Fault::PassesOnBack, Message::Request { requester, .. }) if *requester != me => *to = *requester,
            (Fault::ForwardForManager, Message::Forward { requester, .. }) => *requester = me,
            (Fault::RedirectsToRequester, Message::Redirect { owner, .. }) => *owner = *to,
            (Fault::RedirectsToItself, Message::Redirect { owner, .. }) => *owner = me,
            _ => {}
        }
    }

    /// The page after `page`, or the first one after the last.
    fn neighbour(&self, page: PageIndex) -> PageIndex {
        PageIndex((page.0 + 1) % self.geometry.pages)
    }

    fn widened(&self, demand: PageIndex, range: PageRange) -> PageRange {
        PageRange::around(demand, range.first().0, (range.end() + 1).min(self.geometry.pages))
    }
}

/// Whether `input` is a load's request that was passed on to another node.
pub(super) fn is_passed_on_load(input: Input, made: &[Effect]) -> bool {
    let goes_on = |message: &Message| matches!(message, Message::Request { .. } | Message::Redirect { .. });
    is_load(input) && is_request(input) && made.iter().any(|effect| is_send_of(effect, goes_on))
}

/// Treats a load's request as a store's, and passes it on as a load's.
pub(super) fn step_as_store(inner: &mut Running, now: Nanoseconds, mut input: Input) -> Vec<Effect> {
    if let Input::Message { message: Message::Request { write, .. }, .. } = &mut input {
        *write = true;
    }
    let mut made = Vec::new();
    inner.step(now, input, &mut made);
    for effect in &mut made {
        if let Effect::Send { message: Message::Request { write, .. }, .. } = effect {
            *write = false;
        }
    }
    made
}

fn is_send_of(effect: &Effect, which: fn(&Message) -> bool) -> bool {
    matches!(effect, Effect::Send { message, .. } if which(message))
}

fn is_write_grant(message: &Message) -> bool {
    matches!(message, Message::Grant { write: true, .. })
}

fn is_read_grant(message: &Message) -> bool {
    matches!(message, Message::Grant { write: false, .. })
}

fn is_request(input: Input) -> bool {
    matches!(input, Input::Message { message: Message::Request { .. }, .. })
}

/// Whether `input` is a request to load.
fn is_load(input: Input) -> bool {
    matches!(input, Input::Message { message: Message::Request { write: false, .. }, .. })
}
