//! The report of a node to its launcher: its activity, its last sentence, its counters.
//!
//! The page is only read here. A program that does not use Trellis never opens it, and then there is no report.

use std::os::fd::RawFd;

use trellis::launch::{Activity, StatusPage};
use trellis::record::{Breakdown, Counters};

use crate::exit::Failure;
use crate::run::cause::Seen;

/// The launcher's side of a node's status page.
pub(super) struct NodeStatus {
    page: StatusPage,
}

impl NodeStatus {
    pub(super) fn create() -> Result<NodeStatus, Failure> {
        let page = StatusPage::create().map_err(|error| {
            Failure::new(crate::exit::SYSTEM, format!("cannot make a status page in shared memory: {error}"))
        })?;
        Ok(NodeStatus { page })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.page.descriptor()
    }

    /// The bytes of the page, for a launcher on another host.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.page.bytes()
    }

    /// Replaces the page by the bytes of one on another host.
    pub(super) fn replace(&self, bytes: &[u8]) {
        self.page.replace(bytes);
    }

    /// Asks the node to leave.
    pub(super) fn request_leave(&self) {
        self.page.request_leave();
    }

    /// Records what the node is doing, or did last.
    pub(super) fn describe(&self, seen: &mut Seen) {
        let activity = self.page.activity().map(|(activity, _)| activity);
        // A wait's holder is known only for long waits, and stays on the page a moment longer than the wait.
        let waiting = self.page.waiting().filter(|_| matches!(activity, Some(Activity::Waiting(_))));
        seen.doing = waiting.or_else(|| activity.map(|activity| activity.to_string()));
        seen.number = self.page.node().map(usize::from);
        seen.last_words = self.page.failure();
        seen.blames = self.page.culprit().map(usize::from);
        seen.still_member = activity.is_some_and(|activity| activity != Activity::Left);
    }

    /// Whether the node could not write its record.
    pub(super) fn has_lost_its_record(&self) -> bool {
        self.page.has_lost_record()
    }

    /// Notes that the node's record could not be brought here.
    pub(super) fn set_lost_record(&self) {
        self.page.set_lost_record();
    }

    /// The node's counters; `None` if it never joined a cluster.
    pub(super) fn counters(&self) -> Option<Counters> {
        (self.page.pid() != 0).then(|| self.page.counters().load())
    }
}

/// The counters of all nodes side by side, and below them the shares of their time; rows of zeros are left out.
pub(super) fn counter_table(nodes: &[Option<Counters>]) -> String {
    let columns: Vec<(usize, &Counters)> =
        nodes.iter().enumerate().filter_map(|(node, counters)| Some((node, counters.as_ref()?))).collect();
    if columns.is_empty() {
        return "no node joined the cluster, so there are no counters\n".to_owned();
    }
    let mut table = format!("{:<22}", "counter");
    for (node, _) in &columns {
        table.push_str(&format!("{:>16}", format!("node {node}")));
    }
    table.push('\n');
    for (row, name) in Counters::NAMES.iter().enumerate() {
        let values: Vec<u64> =
            columns.iter().filter_map(|(_, counters)| counters.entries().nth(row)).map(|(_, value)| value).collect();
        if values.iter().any(|value| *value > 0) {
            table.push_str(&format!("{name:<22}"));
            table.extend(values.iter().map(|value| format!("{value:>16}")));
            table.push('\n');
        }
    }
    let shares: Vec<[f64; 6]> = columns.iter().map(|(_, counters)| Breakdown::of(counters).shares()).collect();
    for (part, word) in Breakdown::WORDS.iter().enumerate() {
        table.push_str(&format!("{word:<22}"));
        table.extend(shares.iter().map(|shares| format!("{:>14.1} %", shares[part] * 100.0)));
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_column_per_member_and_no_row_of_zeros() {
        let one = Counters { read_faults: 7, program_ns: 400, fault_wait_ns: 100, ..Counters::default() };
        let table = counter_table(&[Some(one), None, Some(Counters::default())]);
        assert!(table.contains("node 0") && table.contains("node 2") && !table.contains("node 1"), "{table}");
        assert!(table.contains("read_faults") && !table.contains("write_faults"), "{table}");
        let shares = |word: &str| table.lines().find(|line| line.starts_with(word)).unwrap_or_default().to_owned();
        assert!(shares("Computation").contains("75.0 %"), "{table}");
        assert!(shares("Page Fetch").contains("25.0 %"), "{table}");
        assert!(counter_table(&[None]).contains("no node joined"));
    }

    #[test]
    fn a_page_nobody_opened_describes_nothing() {
        let status = NodeStatus::create().expect("page");
        let mut seen = Seen::default();
        status.describe(&mut seen);
        assert!(seen.doing.is_none() && seen.last_words.is_none() && !seen.still_member);
        assert_eq!(status.counters(), None);
    }
}
