//! The wrapper that makes a mutant of a coherence protocol.
//!
//! Promises: with [`Fault::None`] the wrapper behaves exactly like the protocol. It must never use more of a protocol
//! than its inputs, its effects, copies of its state and the queries of [`Coherence`].

use super::rules;
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Input, Message, Running};
use trellis_cluster_protocol::{Nanoseconds, NodeId, PageIndex, PageRange};

/// The faults; [`super::TABLE`] describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Fault {
    None,
    // Views and bytes, for any protocol.
    NoRevoke,
    SendBeforeRevoke,
    KeptNotBytes,
    ZeroNotBytes,
    BytesNotZero,
    ZeroForgotten,
    InstallsNothing,
    InstallsReadForWrite,
    RevokesGranted,
    // Waiting threads, for any protocol.
    NoWake,
    WakesAtOnce,
    NoHold,
    IgnoresResumed,
    NeverHolds,
    ServesBeforeResumed,
    // Messages, for any protocol.
    RequestLost,
    RequestTwice,
    RequestForOther,
    RequestForgotten,
    GrantLost,
    GrantTwice,
    GrantToAnother,
    GrantIgnored,
    OwnershipKept,
    OwnershipNotTaken,
    LosesQueued,
    LosesDeferred,
    // Protocols with read copies.
    KeepsCopy,
    NoDowngrade,
    DowngradeNotRevoke,
    RevokeNotDowngrade,
    NoUpgrade,
    UpgradesItself,
    WriteForRead,
    SendsWriteForRead,
    SendsReadForWrite,
    AsksReadForWrite,
    GrantsTooEarly,
    ForgetsReader,
    ForgetsCopy,
    InvalidationLost,
    InvalidatesAnother,
    NeverAcknowledges,
    AcknowledgesTwice,
    AcknowledgesUnheard,
    AcknowledgementIgnored,
    // Protocols that grant ranges of pages.
    NarrowWake,
    GrantTooWide,
    InstallTooWide,
    InstallTooNarrow,
    DowngradeTooNarrow,
    // Protocols with a manager.
    NoWaitForConfirm,
    NoConfirm,
    ConfirmTwice,
    ConfirmOfAnother,
    ForwardLost,
    ForwardTwice,
    ForwardToAnother,
    ForwardForManager,
    // `ivy`.
    IgnoresAfter,
    WrongNumber,
    MigratesAsCopy,
    // `dynamic`.
    LosesReader,
    LosesNext,
    ReversalForLoads,
    PassesOnAsItsOwn,
    PassesOnTwice,
    PassesOnNothing,
    PassesOnBack,
    InvalidatesNewOwner,
    CopyOfCopy,
    RedirectsToRequester,
    RedirectsToItself,
    RedirectIgnored,
    RedirectTwice,
    // `lock`.
    ForgetsLock,
    LetsIn,
    LocksAtOnce,
    LocksTwice,
    NeverLocked,
    ToldTwice,
    WrongCall,
    IgnoresUnlock,
    IgnoresWithdrawal,
    UnlocksOthers,
    LosesParked,
    DropsAtUnlock,
    NoRetry,
    NoRetryAlarm,
    IgnoresRetryAlarm,
    IgnoresAgain,
    NoExpiryAlarm,
    IgnoresExpiry,
    ExpiresAtOnce,
    // `delay`.
    LosesHeldBack,
    HeldBackTwice,
    NoThresholdAlarm,
    IgnoresThreshold,
    ThresholdOfOther,
    ThresholdMisnamed,
    DropsAtThreshold,
    ReleasedAgain,
    AcknowledgesHeldBack,
}

/// The real protocol with one fault.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mutant {
    pub(super) inner: Running,
    pub(super) geometry: Geometry,
    pub(super) fault: Fault,
    /// The numbers of the last write grants that arrived here, for [`Fault::IgnoresAfter`].
    pub(super) granted: Vec<(PageIndex, u32)>,
    /// Messages that the fault made up; the true ones must be dropped.
    pub(super) anticipated: Vec<(NodeId, Message)>,
    /// Calls that wait for a lock or hold it, for the faults of locks.
    pub(super) calls: Vec<Call>,
}

/// A call of [`Input::Lock`] that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) range: PageRange,
    pub(super) number: u32,
    pub(super) is_locked: bool,
}

impl Coherence for Mutant {
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        let Some(input) = self.alter_input(now, input, effects) else { return };
        let before = self.inner.clone();
        let mut made = Vec::new();
        self.inner.step(now, input, &mut made);
        if self.forgets(input, &before, &made) {
            self.inner = before;
        } else if self.fault == Fault::ReversalForLoads && rules::is_passed_on_load(input, &made) {
            self.inner = before;
            made = rules::step_as_store(&mut self.inner, now, input);
        }
        self.goes_on(now, input, &mut made);
        self.alter_effects(input, &mut made);
        self.note_calls(input, &made);
        effects.append(&mut made);
    }

    crate::answers_as!(inner);
}

impl Mutant {
    /// Wraps `inner`, which was started with `geometry`, with `fault`.
    pub fn new(inner: Running, geometry: Geometry, fault: Fault) -> Mutant {
        Mutant { inner, geometry, fault, granted: Vec::new(), anticipated: Vec::new(), calls: Vec::new() }
    }

    /// Records locks if the fault concerns them.
    fn note_calls(&mut self, input: Input, made: &[Effect]) {
        if !matches!(
            self.fault,
            Fault::ForgetsLock | Fault::LetsIn | Fault::LocksTwice | Fault::IgnoresWithdrawal | Fault::UnlocksOthers
        ) {
            return;
        }
        match input {
            Input::Lock { range, call, .. } => self.calls.push(Call { range, number: call, is_locked: false }),
            Input::Unlock { call, .. } => self.calls.retain(|known| known.number != call),
            _ => {}
        }
        for effect in made {
            if let Effect::Locked { call, .. } = effect {
                for known in self.calls.iter_mut().filter(|known| known.number == *call) {
                    known.is_locked = true;
                }
            }
        }
        self.calls.sort_unstable_by_key(|call| call.number);
    }
}
