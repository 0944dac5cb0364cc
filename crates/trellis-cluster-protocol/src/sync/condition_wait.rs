//! The steps of a wait for a condition under a lock.
//!
//! Promises: the wait is enrolled before its lock is released, so that it misses no notification that is given under the
//! lock. It ends with the lock held again, or it says that the lock is not held. A wait that does not begin is withdrawn, so
//! that no notification goes to it. It must never wait: the caller carries out one step after the other.

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitStep {
    /// Enroll the wait ([`Input::Enroll`](super::Input::Enroll)), until no notification can be missed any more.
    Enroll,
    /// Release the lock.
    LetGo,
    /// Wait for the notification; what is given up is abandoned ([`Input::AbandonDemand`](super::Input::AbandonDemand)).
    Await,
    /// Abandon the wait, which nobody waits for; then [`WaitOutcome::Done`].
    Withdraw,
    /// Take the lock again.
    TakeAgain,
    /// The wait is over.
    End(WaitEnd),
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitOutcome {
    /// It is done; for [`WaitStep::Await`]: notified.
    Done,
    /// The time of the wait is over, and there was no notification.
    NotNotified,
    /// It failed. The lock is as it was before the step, unless its release found it not held.
    Failed {
        /// Whether the lock turned out not to be held.
        is_lock_lost: bool,
    },
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitEnd {
    /// `None` if a step failed.
    pub is_notified: Option<bool>,
    /// Whether the lock is held.
    pub is_lock_held: bool,
}

/// A wait for a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConditionWait {
    stage: Stage,
    is_notified: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Enrolls,
    LetsGo,
    Awaits,
    Withdraws { is_lock_held: bool },
    Takes,
}

impl ConditionWait {
    /// A wait of a thread that holds the lock, and its first step.
    pub fn begin() -> (ConditionWait, WaitStep) {
        (ConditionWait { stage: Stage::Enrolls, is_notified: None }, WaitStep::Enroll)
    }

    /// The step after the one whose outcome is `outcome`.
    pub fn go_on(&mut self, outcome: WaitOutcome) -> WaitStep {
        let (stage, step) = match (self.stage, outcome) {
            (Stage::Enrolls, WaitOutcome::Done) => (Stage::LetsGo, WaitStep::LetGo),
            (Stage::LetsGo, WaitOutcome::Done) => (Stage::Awaits, WaitStep::Await),
            (Stage::Enrolls | Stage::LetsGo, WaitOutcome::Failed { is_lock_lost }) => {
                (Stage::Withdraws { is_lock_held: !is_lock_lost }, WaitStep::Withdraw)
            }
            (Stage::Awaits, outcome) => {
                self.is_notified = match outcome {
                    WaitOutcome::Done => Some(true),
                    WaitOutcome::NotNotified => Some(false),
                    WaitOutcome::Failed { .. } => None,
                };
                (Stage::Takes, WaitStep::TakeAgain)
            }
            (Stage::Withdraws { is_lock_held }, _) => return self.end(is_lock_held),
            (Stage::Takes, WaitOutcome::Done) => return self.end(true),
            (Stage::Takes, _) => {
                self.is_notified = None;
                return self.end(false);
            }
            (stage, outcome) => unreachable!("{outcome:?} is no outcome of {stage:?}"),
        };
        self.stage = stage;
        step
    }

    fn end(&self, is_lock_held: bool) -> WaitStep {
        WaitStep::End(WaitEnd { is_notified: self.is_notified, is_lock_held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const FAILED: WaitOutcome = WaitOutcome::Failed { is_lock_lost: false };

    /// The steps of a wait whose steps have these outcomes.
    fn steps(outcome: &[WaitOutcome]) -> Vec<WaitStep> {
        let (mut wait, first) = ConditionWait::begin();
        let mut steps = vec![first];
        steps.extend(outcome.iter().map(|&outcome| wait.go_on(outcome)));
        steps
    }

    fn end(is_notified: Option<bool>, is_lock_held: bool) -> WaitStep {
        WaitStep::End(WaitEnd { is_notified, is_lock_held })
    }

    #[test]
    fn a_wait_is_enrolled_before_its_lock_is_released_and_takes_it_again() {
        use WaitStep::{Await, Enroll, LetGo, TakeAgain};
        let all = steps(&[WaitOutcome::Done; 4]);
        assert_eq!(all, [Enroll, LetGo, Await, TakeAgain, end(Some(true), true)]);
        let late = steps(&[WaitOutcome::Done, WaitOutcome::Done, WaitOutcome::NotNotified, WaitOutcome::Done]);
        assert_eq!(late.last(), Some(&end(Some(false), true)));
    }

    #[test]
    fn a_wait_that_does_not_begin_is_withdrawn() {
        use WaitStep::{Enroll, LetGo, Withdraw};
        assert_eq!(steps(&[FAILED, WaitOutcome::Done]), [Enroll, Withdraw, end(None, true)]);
        assert_eq!(steps(&[WaitOutcome::Done, FAILED, WaitOutcome::Done]), [Enroll, LetGo, Withdraw, end(None, true)]);
        let lost = steps(&[WaitOutcome::Done, WaitOutcome::Failed { is_lock_lost: true }, WaitOutcome::Done]);
        assert_eq!(lost.last(), Some(&end(None, false)));
    }

    #[test]
    fn a_wait_that_failed_takes_its_lock_again_if_it_can() {
        let taken = steps(&[WaitOutcome::Done, WaitOutcome::Done, FAILED, WaitOutcome::Done]);
        assert_eq!(taken.last(), Some(&end(None, true)));
        let lost = steps(&[WaitOutcome::Done, WaitOutcome::Done, WaitOutcome::Done, FAILED]);
        assert_eq!(lost.last(), Some(&end(None, false)));
    }
}
