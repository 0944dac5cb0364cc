//! The end of a program whose threads run at several nodes: the steps of each node.
//!
//! Node 0 says when the program is over. Where no thread runs any more at any node, all nodes leave the cluster together.
//! Where threads still run, node 0 ends first, and its end ends the other nodes: its threads would take the end of another
//! node for a failure.
//!
//! Promises: no node ends before every node is ready to end. Where threads still run, node 0 does not end before every node
//! has written its record. All nodes decide alike. It must never wait: the caller carries out one step after the other.

/// What a node does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndStep {
    /// Count this node among the busy ones, at which threads still run.
    CountBusy,
    /// Tell every other node that the program is over.
    Announce,
    /// Say that this node is ready, once for each time that node 0 waits.
    SayReady,
    /// Wait until every other node has said once more that it is ready.
    AwaitReady,
    /// Let every other node go on.
    LetGo,
    /// Wait for that.
    AwaitGo,
    /// Look up how many nodes are busy.
    LookUpBusy,
    /// Write the record of this node.
    WriteRecord,
    /// Wait for the end of node 0.
    AwaitEnd,
    /// Leave the cluster together with every other node, and end this process.
    Leave,
    /// End this process at once.
    Exit,
}

/// The end of the program at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramEnd {
    is_first: bool,
    step: EndStep,
    /// Whether threads still run somewhere, once this node has looked it up.
    is_busy: Option<bool>,
}

impl ProgramEnd {
    /// The program is over; `is_first` is whether this is node 0, and `is_busy` whether threads still run here. Returns the
    /// first step.
    pub fn begin(is_first: bool, is_busy: bool) -> (ProgramEnd, EndStep) {
        let mut end = ProgramEnd { is_first, step: EndStep::CountBusy, is_busy: None };
        let step = if is_busy { end.step } else { end.go_on(0) };
        (end, step)
    }

    /// The step is done. `busy_nodes` is what was looked up, if this was the step. Returns the next one.
    pub fn go_on(&mut self, busy_nodes: u64) -> EndStep {
        if self.step == EndStep::LookUpBusy {
            self.is_busy = Some(busy_nodes > 0);
        }
        self.step = match (self.step, self.is_first, self.is_busy) {
            (EndStep::CountBusy, true, _) => EndStep::Announce,
            (EndStep::CountBusy, false, _) => EndStep::SayReady,
            (EndStep::Announce, ..) => EndStep::AwaitReady,
            (EndStep::SayReady, _, None) => EndStep::AwaitGo,
            (EndStep::AwaitReady | EndStep::AwaitGo, _, None) => EndStep::LookUpBusy,
            (EndStep::LookUpBusy, true, _) => EndStep::LetGo,
            (EndStep::LookUpBusy | EndStep::LetGo, _, Some(true)) => EndStep::WriteRecord,
            (EndStep::LookUpBusy | EndStep::LetGo, ..) => EndStep::Leave,
            (EndStep::WriteRecord, true, _) => EndStep::AwaitReady,
            (EndStep::WriteRecord, false, _) => EndStep::SayReady,
            (EndStep::SayReady, _, Some(_)) => EndStep::AwaitEnd,
            (EndStep::AwaitReady | EndStep::AwaitGo | EndStep::AwaitEnd | EndStep::Leave | EndStep::Exit, ..) => {
                EndStep::Exit
            }
        };
        self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn steps(is_first: bool, is_busy: bool, busy_nodes: u64) -> Vec<EndStep> {
        let (mut end, first) = ProgramEnd::begin(is_first, is_busy);
        let is_last = |step: &EndStep| matches!(step, EndStep::Leave | EndStep::Exit);
        let next = |step: &EndStep| (!is_last(step)).then(|| end.go_on(busy_nodes));
        core::iter::successors(Some(first), next).collect()
    }

    #[test]
    fn nodes_without_threads_leave_together() {
        use EndStep::{Announce, AwaitGo, AwaitReady, Leave, LetGo, LookUpBusy, SayReady};
        assert_eq!(steps(true, false, 0), [Announce, AwaitReady, LookUpBusy, LetGo, Leave]);
        assert_eq!(steps(false, false, 0), [SayReady, AwaitGo, LookUpBusy, Leave]);
    }

    #[test]
    fn where_threads_run_records_are_written_and_node_0_ends_first() {
        use EndStep::*;
        let first = [CountBusy, Announce, AwaitReady, LookUpBusy, LetGo, WriteRecord, AwaitReady, Exit];
        assert_eq!(steps(true, true, 2), first);
        assert_eq!(steps(true, false, 1), first[1..]);
        let other = [CountBusy, SayReady, AwaitGo, LookUpBusy, WriteRecord, SayReady, AwaitEnd, Exit];
        assert_eq!(steps(false, true, 1), other);
        assert_eq!(steps(false, false, 1), other[1..]);
    }
}
