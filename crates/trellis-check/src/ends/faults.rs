//! Ends of programs with one rule broken: some of their steps are not carried out, or not when it is time.

use trellis_cluster_protocol::sync::EndStep;

/// Faults: each breaks one rule of the end of a program on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndFault {
    /// No fault.
    None,
    /// A node at which threads still run is not counted.
    CountsNobody,
    /// A node other than node 0 counts itself after node 0 has looked.
    CountsLate,
    /// Node 0 does not tell the others that the program is over.
    AnnouncesNothing,
    /// Node 0 does not wait until the others are ready.
    WaitsForNobody,
    /// Node 0 lets only one node go on.
    LetsOneGo,
    /// A node writes no record.
    WritesNothing,
    /// A node does not wait for the end of node 0.
    EndsBefore,
}

impl EndFault {
    /// Whether a node passes over this step; `ready` is how many nodes have said that they are ready.
    pub(super) fn passes_over(self, step: EndStep, ready: u8) -> bool {
        match (self, step) {
            (EndFault::CountsNobody, EndStep::CountBusy)
            | (EndFault::AnnouncesNothing, EndStep::Announce)
            | (EndFault::WritesNothing, EndStep::WriteRecord)
            | (EndFault::EndsBefore, EndStep::AwaitEnd) => true,
            (EndFault::WaitsForNobody, EndStep::AwaitReady) => ready == 0,
            _ => false,
        }
    }
}
