//! Why a run failed: finds the first cause in the reports of the nodes, and describes it in one sentence.
//!
//! It is pure: it looks only at recorded endings. A node that lost another records that in its status page, however its
//! program then ends: with status 70, another one, or an uncaught exception. Such an end is a consequence. It must
//! never hide the node that was lost, which may itself have ended with status 70 or 0.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::exit::{self, Ending, Failure};
use crate::run::signals;

/// How a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ended {
    Exited(i32),
    Killed {
        signal: i32,
        core: bool,
    },
    /// Its host was lost, so its end is not known.
    Lost,
}

/// One node, as the launcher observed it.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) pid: i32,
    /// The host on which it runs, if hosts were named.
    pub(super) host: Option<String>,
    /// Its number, if it has one: for nodes that started the cluster, the index in the list.
    pub(super) number: Option<usize>,
    /// Whether it joins a cluster that others started.
    pub(super) joins: bool,
    pub(super) ended: Option<Ended>,
    /// Its place in the order of endings.
    pub(super) order: usize,
    /// Whether the launcher had already begun to end the nodes.
    pub(super) was_asked_to_end: bool,
    pub(super) stopped: bool,
    /// "while waiting in barrier 3", from its status page when it ended; `None` if it never joined the cluster.
    pub(super) doing: Option<String>,
    /// The sentence that the node left when it gave up.
    pub(super) last_words: Option<String>,
    /// The node that this sentence is about.
    pub(super) blames: Option<usize>,
    /// Whether it joined the cluster and did not leave it.
    pub(super) still_member: bool,
}

impl Ended {
    pub(super) fn is_failure(self) -> bool {
        self != Ended::Exited(0)
    }

    /// The shell's exit code for this end.
    pub(super) fn exit_code(self) -> u8 {
        match self {
            Ended::Exited(status) => status as u8,
            Ended::Killed { signal, .. } => 128 + signal as u8,
            Ended::Lost => exit::CLUSTER,
        }
    }
}

impl Seen {
    /// Whether this end shows another node's failure rather than its own.
    pub(super) fn is_consequence(&self, node: usize) -> bool {
        self.blames.is_some_and(|blamed| blamed != self.number.unwrap_or(node))
    }

    /// Whether the cause may appear later: this end blames another node, or no node but says that the cluster failed.
    pub(super) fn may_have_a_cause(&self, node: usize) -> bool {
        self.weight(node) > 0
    }

    /// How little this end explains. A node that blames no node but ends with the status of a lost cluster may not
    /// have learned which node failed.
    fn weight(&self, node: usize) -> u8 {
        let has_lost = self.blames.is_none() && self.ended == Some(Ended::Exited(exit::CLUSTER.into()));
        if self.is_consequence(node) { 2 } else { has_lost.into() }
    }

    /// Whether it ended with status 0 while others may still have needed it.
    fn ended_early(&self) -> bool {
        self.ended == Some(Ended::Exited(0)) && self.still_member
    }
}

/// The end of the program whose threads ran on these nodes, if it ended by itself. It is the end of node 0. `None` if
/// another node failed first, or all were ended.
pub(super) fn end_of_program(nodes: &[Seen]) -> Option<Ending> {
    let first = nodes.first()?;
    // A node that noticed the end of node 0 may be reaped first.
    let earlier =
        |seen: &Seen| seen.order < first.order && seen.ended.is_some_and(Ended::is_failure) && seen.blames != Some(0);
    if first.is_consequence(0) || nodes.iter().skip(1).any(earlier) {
        return None;
    }
    match first.ended? {
        // The library ends a node with this status, and has said why.
        Ended::Exited(status) if status == i32::from(exit::CLUSTER) && first.last_words.is_some() => None,
        Ended::Exited(status) => Some(Ok(status as u8)),
        killed @ Ended::Killed { .. } => {
            Some(Err(Failure::new(killed.exit_code(), format!("the program {}", how(killed)))))
        }
        Ended::Lost => None,
    }
}

/// The node that failed first, if any: a node's own failure comes before any consequence. A node that ended with
/// status 0 without leaving the cluster counts as one if others fail for want of it.
pub(super) fn first_cause(nodes: &[Seen]) -> Option<usize> {
    let independent = || nodes.iter().enumerate().filter(|(_, seen)| !seen.was_asked_to_end);
    let first = independent()
        .filter(|(_, seen)| seen.ended.is_some_and(Ended::is_failure))
        .min_by_key(|(node, seen)| (seen.weight(*node), seen.order))
        .map(|(node, _)| node)?;
    let blamed = nodes[first].blames.filter(|_| nodes[first].is_consequence(first));
    let early = independent().find(|(node, seen)| seen.ended_early() && blamed == Some(number(nodes, *node)));
    Some(early.map_or(first, |(node, _)| node))
}

/// The place of the node that this one blames, if it is another one.
pub(super) fn blamed(nodes: &[Seen], consequence: usize) -> Option<usize> {
    let blamed = nodes[consequence].blames.filter(|_| nodes[consequence].is_consequence(consequence))?;
    (0..nodes.len()).find(|&node| number(nodes, node) == blamed)
}

/// The sentence about the node that failed first.
pub(super) fn sentence(nodes: &[Seen], cause: usize) -> String {
    let ended = nodes[cause].ended.unwrap_or(Ended::Exited(0));
    let is_consequence = nodes[cause].is_consequence(cause);
    if nodes[cause].ended_early() {
        return early_sentence(nodes, cause);
    }
    if is_consequence && let Some(stopped) = (0..nodes.len()).find(|node| nodes[*node].stopped && *node != cause) {
        return stopped_sentence(nodes, cause, stopped);
    }
    let mut text = format!("{} {}{}", named(nodes, cause), how(ended), doing(&nodes[cause]));
    let is_of_cluster = is_consequence || ended == Ended::Lost || ended == Ended::Exited(exit::CLUSTER.into());
    if let Some(words) = nodes[cause].last_words.as_ref().filter(|_| is_of_cluster) {
        text.push_str(": ");
        text.push_str(&without_signature(words, number(nodes, cause)));
    }
    text + &the_others(nodes, cause)
}

/// The sentence about a run that took too long. It says what the nodes did at that time.
pub(super) fn late_sentence(nodes: &[Seen], time: Duration) -> String {
    let did: Vec<String> = (0..nodes.len())
        .filter(|&node| nodes[node].was_asked_to_end)
        .map(|node| match &nodes[node].doing {
            Some(doing) => format!("{} was {doing}", named(nodes, node)),
            None => format!("{} was in no cluster", named(nodes, node)),
        })
        .collect();
    format!("the run took longer than --timeout {time:?}: {}", did.join("; "))
}

fn stopped_sentence(nodes: &[Seen], cause: usize, stopped: usize) -> String {
    let words =
        nodes[cause].last_words.as_ref().map(|words| format!(": {}", without_signature(words, number(nodes, cause))));
    format!(
        "{} is stopped (SIGSTOP or a debugger){}, and node {cause} gave up waiting{}{}",
        named(nodes, stopped),
        doing(&nodes[stopped]),
        words.unwrap_or_default(),
        the_others(nodes, usize::MAX)
    )
}

fn early_sentence(nodes: &[Seen], early: usize) -> String {
    let needed = (0..nodes.len()).filter(|&node| nodes[node].blames == Some(number(nodes, early)));
    let needed = needed.min_by_key(|&node| nodes[node].order).map_or(early, |node| number(nodes, node));
    format!(
        "{} exited with status 0{} without leaving the cluster, and node {needed} still needed it{}",
        named(nodes, early),
        doing(&nodes[early]),
        the_others(nodes, early)
    )
}

pub(super) fn named(nodes: &[Seen], node: usize) -> String {
    let seen = &nodes[node];
    if seen.joins && seen.number.is_none() {
        return format!("the process that should join (pid {})", seen.pid);
    }
    let number = number(nodes, node);
    match &seen.host {
        // Its host was lost before it said the number of the process.
        Some(host) if seen.pid == 0 => format!("node {number} (on {host})"),
        Some(host) => format!("node {number} (pid {} on {host})", seen.pid),
        None => format!("node {number} (pid {})", seen.pid),
    }
}

fn number(nodes: &[Seen], node: usize) -> usize {
    nodes[node].number.unwrap_or(node)
}

fn how(ended: Ended) -> String {
    match ended {
        Ended::Exited(101) => "exited with status 101 (a Rust panic)".to_owned(),
        Ended::Exited(status) if status == i32::from(exit::CLUSTER) => {
            "exited with status 70 (cluster failure)".to_owned()
        }
        Ended::Exited(status) if status == i32::from(exit::CONFIGURATION) => {
            "exited with status 78 (configuration refused)".to_owned()
        }
        Ended::Exited(status) => format!("exited with status {status}"),
        Ended::Killed { signal, core } => {
            format!("was killed by {}{}", signals::name(signal), if core { " (core dumped)" } else { "" })
        }
        Ended::Lost => "was lost with its host".to_owned(),
    }
}

fn doing(seen: &Seen) -> String {
    seen.doing.as_ref().map(|doing| format!(" while {doing}")).unwrap_or_default()
}

/// A node signs its sentence ("trellis: node 1: …"); inside ours the signature would be redundant.
fn without_signature(words: &str, node: usize) -> String {
    let words = words.trim().trim_end_matches('.');
    let words = words.strip_prefix("trellis: ").unwrap_or(words);
    words.strip_prefix(&format!("node {node}: ")).unwrap_or(words).to_owned()
}

/// "; nodes 0, 2 were ended": those that the launcher had to end, without the cause.
pub(super) fn the_others(nodes: &[Seen], cause: usize) -> String {
    let ended: Vec<String> = nodes
        .iter()
        .enumerate()
        .filter(|(node, seen)| *node != cause && (seen.was_asked_to_end || seen.ended.is_none()))
        .map(|(node, _)| number(nodes, node).to_string())
        .collect();
    match ended.as_slice() {
        [] => String::new(),
        [one] => format!("; node {one} was ended"),
        many => format!("; nodes {} were ended", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_time_is_over_says_what_each_node_did() {
        let asked = |node, doing: Option<&str>| Seen {
            was_asked_to_end: true,
            doing: doing.map(str::to_owned),
            ..seen(node, Some(Ended::Exited(0)), node)
        };
        let nodes = [asked(0, Some("waiting at barrier 7")), asked(1, None), seen(2, Some(Ended::Exited(0)), 0)];
        assert_eq!(
            late_sentence(&nodes, Duration::from_secs(90)),
            "the run took longer than --timeout 90s: node 0 (pid 4710) was waiting at barrier 7; node 1 (pid 4711) was in no cluster"
        );
    }

    fn seen(node: usize, ended: Option<Ended>, order: usize) -> Seen {
        Seen { pid: 4710 + node as i32, ended, order, ..Seen::default() }
    }

    const KILLED: Ended = Ended::Killed { signal: libc::SIGKILL, core: false };

    #[test]
    fn the_sentence_names_node_pid_signal_and_activity() {
        let mut nodes = vec![seen(0, None, 0), seen(1, Some(KILLED), 0), seen(2, None, 0)];
        nodes[1].doing = Some("waiting in barrier 3".to_owned());
        assert_eq!(first_cause(&nodes), Some(1));
        assert_eq!(
            sentence(&nodes, 1),
            "node 1 (pid 4711) was killed by SIGKILL while waiting in barrier 3; nodes 0, 2 were ended"
        );
        assert_eq!(KILLED.exit_code(), 137);
    }

    #[test]
    fn a_consequence_does_not_hide_the_cause() {
        let mut nodes = vec![seen(0, Some(Ended::Exited(70)), 0), seen(1, Some(KILLED), 1)];
        nodes[0].blames = Some(1);
        assert_eq!(first_cause(&nodes), Some(1));
        assert_eq!(sentence(&nodes, 1), "node 1 (pid 4711) was killed by SIGKILL");
        nodes[0].blames = None;
        assert_eq!(first_cause(&nodes), Some(1), "a program may end like this without a word");
    }

    #[test]
    fn a_cause_that_ends_as_consequences_do_is_found() {
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let mut nodes: Vec<Seen> = (0..3).map(|node| seen(node, Some(Ended::Exited(70)), order[node])).collect();
            (nodes[0].blames, nodes[2].blames) = (Some(1), Some(1));
            nodes[1].blames = Some(1);
            nodes[1].last_words = Some("UNLOCK: lock 5 is not held by this node".to_owned());
            assert_eq!(first_cause(&nodes), Some(1), "{order:?}");
            let sentence = sentence(&nodes, 1);
            assert!(sentence.starts_with("node 1 (pid 4711)") && sentence.contains("UNLOCK: lock 5"), "{sentence}");
            nodes[1].blames = None;
            assert_eq!(first_cause(&nodes), Some(1), "{order:?}: also where it says nothing");
        }
    }

    #[test]
    fn a_program_that_reacts_to_the_loss_in_its_own_way_does_not_hide_the_cause() {
        let aborted = Ended::Killed { signal: libc::SIGABRT, core: false };
        let mut nodes = vec![seen(0, Some(aborted), 0), seen(1, Some(KILLED), 1), seen(2, Some(Ended::Exited(1)), 2)];
        nodes[0].last_words = Some("node 1 (127.0.0.1:1) is gone without having left the cluster".to_owned());
        (nodes[0].blames, nodes[2].blames) = (Some(1), Some(1));
        assert_eq!(first_cause(&nodes), Some(1));
        let panicked = Seen { blames: Some(1), ..seen(1, Some(Ended::Exited(101)), 1) };
        assert!(!panicked.is_consequence(1));
    }

    #[test]
    fn nodes_that_were_asked_to_end_are_no_cause() {
        let mut nodes = vec![seen(0, Some(Ended::Exited(1)), 3), seen(1, Some(KILLED), 1)];
        nodes[1].was_asked_to_end = true;
        assert_eq!(first_cause(&nodes), Some(0));
        assert_eq!(sentence(&nodes, 0), "node 0 (pid 4710) exited with status 1; node 1 was ended");
    }

    #[test]
    fn a_cluster_failure_speaks_the_nodes_own_words_once() {
        let mut nodes = vec![seen(0, Some(Ended::Exited(70)), 0)];
        nodes[0].last_words = Some("trellis: node 0: node 1 was silent for 10 s".to_owned());
        nodes[0].doing = Some("waiting in barrier 1".to_owned());
        assert_eq!(
            sentence(&nodes, 0),
            "node 0 (pid 4710) exited with status 70 (cluster failure) while waiting in barrier 1: node 1 was silent for 10 s"
        );
    }

    #[test]
    fn a_lost_host_is_named_with_the_reason() {
        let mut nodes = vec![seen(0, Some(Ended::Exited(70)), 0), seen(1, Some(Ended::Lost), 1)];
        nodes[0].blames = Some(1);
        nodes[1].host = Some("b".to_owned());
        nodes[1].last_words = Some("it has said nothing for 10 s".to_owned());
        assert_eq!(first_cause(&nodes), Some(1));
        let expected = "node 1 (pid 4711 on b) was lost with its host: it has said nothing for 10 s";
        assert_eq!(sentence(&nodes, 1), expected);
        assert_eq!(Ended::Lost.exit_code(), 70);
    }

    #[test]
    fn a_stopped_node_is_named() {
        let mut nodes = vec![seen(0, Some(Ended::Exited(70)), 0), seen(1, None, 0)];
        nodes[0].blames = Some(1);
        nodes[1].stopped = true;
        nodes[1].doing = Some("computing".to_owned());
        assert_eq!(
            sentence(&nodes, 0),
            "node 1 (pid 4711) is stopped (SIGSTOP or a debugger) while computing, and node 0 gave up waiting; node 1 was ended"
        );
    }

    #[test]
    fn a_member_that_left_without_a_word_is_named() {
        let aborted = Ended::Killed { signal: libc::SIGABRT, core: false };
        for ended in [Ended::Exited(70), aborted, Ended::Exited(1)] {
            let mut nodes = vec![seen(0, Some(ended), 1), seen(1, Some(Ended::Exited(0)), 0)];
            nodes[1].still_member = true;
            nodes[0].blames = Some(1);
            assert_eq!(first_cause(&nodes), Some(1));
            let sentence = sentence(&nodes, 1);
            assert!(sentence.starts_with("node 1 (pid 4711) exited with status 0 without leaving"), "{sentence}");
            assert!(sentence.contains("and node 0 still needed it"), "{sentence}");
        }
    }

    #[test]
    fn no_failure_no_cause() {
        assert_eq!(first_cause(&[seen(0, Some(Ended::Exited(0)), 0), seen(1, None, 0)]), None);
        assert!(!Ended::Exited(0).is_failure());
    }
}
