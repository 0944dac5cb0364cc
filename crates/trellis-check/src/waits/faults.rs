//! Waits for a condition with one rule broken: their steps are altered.

use trellis_cluster_protocol::sync::WaitStep;

/// Faults: each breaks one rule of a wait for a condition on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitFault {
    /// No fault.
    None,
    /// The lock is released before the wait is enrolled.
    LetsGoFirst,
    /// The lock is released while the enrolment is on its way.
    EnrolledAtOnce,
    /// A wait that does not begin stays enrolled.
    WithdrawsNothing,
    /// A wait that is given up stays enrolled.
    GivesUpSilently,
    /// A wait does not take its lock again.
    TakesNothing,
}

impl WaitFault {
    /// The step in place of `step`.
    pub(super) fn order(self, step: WaitStep) -> WaitStep {
        match (self, step) {
            (WaitFault::LetsGoFirst, WaitStep::Enroll) => WaitStep::LetGo,
            (WaitFault::LetsGoFirst, WaitStep::LetGo) => WaitStep::Enroll,
            _ => step,
        }
    }
}
