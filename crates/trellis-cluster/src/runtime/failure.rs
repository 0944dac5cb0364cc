//! How a node fails: it keeps one sentence, tells it to the peers, and ends the process.
//!
//! Promises: the first failure is the one reported. Every blocked call returns an error that carries it. A process
//! whose threads compute and never call Trellis is ended [`GRACE`] after the failure. It must never end a process whose
//! program reacts to the error in that time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use trellis_base::{Deadline, Limit};
use trellis_cluster_protocol::{NodeId, membership, wire};
use trellis_output::lines::complain;

use super::{EPOCH, Node};
use crate::launch::EXIT_CLUSTER;

/// How long the program has to react to an error before the process is ended.
pub(crate) const GRACE: Deadline = Deadline {
    who: "a node that is to end",
    waits_for: "the program, to react to the error",
    limit: Limit::seconds(1),
    then: "exit status 70",
    tested: "crates/trellis-cli/tests/run.rs a_stopped_member_is_named",
};

/// The first failure of a node.
#[derive(Default)]
pub(crate) struct Failure {
    sentence: OnceLock<String>,
    is_set: AtomicBool,
    reported: AtomicBool,
}

impl Failure {
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// The sentence about the first failure.
    pub(crate) fn sentence(&self) -> String {
        self.sentence.get().cloned().unwrap_or_default()
    }
}

impl Node {
    /// The cluster cannot continue because of this node; `sentence` says why.
    pub(crate) fn fail(&self, sentence: String) {
        self.fail_because_of(self.me, sentence);
    }

    /// The cluster cannot continue because of `culprit`. The others must hear its name, not this node's, whichever node
    /// tells them first.
    pub(crate) fn fail_because_of(&self, culprit: NodeId, sentence: String) {
        if !self.keep_failure(culprit, sentence) {
            return;
        }
        for (peer, message) in membership::failure_messages(self.me, self.nodes, culprit) {
            if self.link.is_connected(usize::from(peer.0)) {
                let encoded = wire::encode(&wire::Message::Membership(message), EPOCH);
                // A peer that cannot be told notices that the connection breaks.
                let _ = self.link.send(usize::from(peer.0), &encoded.header, trellis_transport::Payload::Nothing);
            }
        }
        self.end_waiting();
    }

    /// This node cannot continue. Its peers are not told.
    pub(super) fn fail_alone(&self, sentence: String) {
        if self.keep_failure(self.me, sentence) {
            self.end_waiting();
        }
    }

    /// Keeps the failure if it is the first; returns whether it is.
    fn keep_failure(&self, culprit: NodeId, sentence: String) -> bool {
        if self.failure.sentence.set(sentence).is_err() {
            return false;
        }
        self.status.set_failure(culprit.0, &self.failure.sentence());
        self.failure.is_set.store(true, Ordering::Release);
        true
    }

    fn end_waiting(&self) {
        self.waiters.rouse_all();
        self.progress.stop();
    }

    /// Ends the process because a thread cannot continue without its page, and a load or store cannot return an error.
    pub(super) fn end_after_failure(&self) -> ! {
        self.report_failure();
        end_now()
    }

    /// Gives the program time to end by itself, then ends the process.
    pub(super) fn end_unless_program_does(&self) {
        std::thread::sleep(GRACE.time());
        if !self.left.load(Ordering::Acquire) {
            self.end_after_failure();
        }
    }

    fn report_failure(&self) {
        if !self.failure.reported.swap(true, Ordering::AcqRel) {
            self.recorder.write(self);
            complain(format_args!("node {}: {}", self.me.0, self.failure.sentence()));
        }
    }
}

/// Reports `sentence` and ends the process.
pub(crate) fn end_process(sentence: &str) -> ! {
    complain(format_args!("{sentence}"));
    end_now()
}

fn end_now() -> ! {
    // SAFETY: ends the process without running destructors, which could wait for the cluster that just failed.
    unsafe { libc::_exit(EXIT_CLUSTER) }
}
