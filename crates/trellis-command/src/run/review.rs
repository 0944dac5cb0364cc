//! What a run says about itself at its end: `--stats`, `--advise` and `--phase`.
//!
//! Promises: the run ends as it would have without them; a record that the user did not ask for is removed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use trellis::record::advice::{self, Advice};
use trellis::record::{Counters, Record};

use super::{Plan, RunArguments, status};
use crate::exit::Failure;
use crate::scratch::Scratch;

/// What the user wants to know.
pub(super) struct Review {
    shows_counters: bool,
    /// `--advise`; `--stats` gives advice, too.
    is_advised: bool,
    phase: Option<String>,
}

/// Where the nodes write their records.
pub(super) struct Records {
    folder: PathBuf,
    /// Removes the folder, if the user named none.
    _scratch: Option<Scratch>,
}

impl Review {
    pub(super) fn of(arguments: &RunArguments) -> Review {
        Review { shows_counters: arguments.stats, is_advised: arguments.advise, phase: arguments.phase.clone() }
    }

    /// Has the nodes keep records; `None` if there is nothing to say.
    pub(super) fn prepare(&self, plan: &mut Plan) -> Result<Option<Records>, Failure> {
        if !self.shows_counters && !self.is_advised && self.phase.is_none() {
            return Ok(None);
        }
        if let Some((_, folder)) = plan.settings.iter().rev().find(|(key, _)| key == "record") {
            return Ok(Some(Records { folder: folder.into(), _scratch: None }));
        }
        let scratch = Scratch::new("record")?;
        let folder = scratch.path().to_owned();
        plan.settings.push(("record".to_owned(), folder.display().to_string()));
        Ok(Some(Records { folder, _scratch: Some(scratch) }))
    }

    /// What is printed. `counters` are those of the whole run, also of nodes that left no record.
    pub(super) fn text(&self, counters: &[Option<Counters>], records: &Records) -> String {
        let records = Record::read_folder(&records.folder).unwrap_or_default();
        let phase = self.phase.as_deref();
        let of_phase = match advice::counters(&records, phase) {
            Ok(of_phase) => of_phase,
            Err(sentence) => return format!("trellis: {sentence}\n"),
        };
        let mut text = String::new();
        if self.shows_counters || !self.is_advised {
            text.push_str(&match phase {
                None => status::counter_table(counters),
                Some(_) => status::counter_table(&listed(&of_phase)),
            });
        }
        if !records.is_empty() {
            text.push_str(&advised(&advice::advise(&records, phase).unwrap_or_default(), &records));
        }
        text
    }
}

/// Counters in the order of their nodes.
fn listed(counters: &BTreeMap<usize, Counters>) -> Vec<Option<Counters>> {
    let nodes = counters.keys().last().map_or(0, |last| last + 1);
    (0..nodes).map(|node| counters.get(&node).copied()).collect()
}

fn advised(advice: &[Advice], records: &[Record]) -> String {
    if advice.is_empty() {
        return "advice: nothing costs this run 2 % of its time\n".to_owned();
    }
    let mut text = "advice, with the share of the threads' time that each can gain at most:\n".to_owned();
    for (number, advice) in advice.iter().enumerate() {
        let Advice { lost_seconds, share, sentence } = advice;
        text.push_str(&format!("{}. {:.1} % ({lost_seconds:.3} s): {sentence}\n", number + 1, share * 100.0));
    }
    let dropped: u64 = records.iter().map(|record| record.faults_dropped).sum();
    if dropped > 0 {
        text.push_str(&format!(
            "{dropped} faults are not in the records (`--set record_faults_max=NUMBER` makes room for more)\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_numbered_and_says_what_is_missing() {
        let advice = Advice { lost_seconds: 0.5, share: 0.25, sentence: "do this".to_owned() };
        assert_eq!(
            advised(&[advice], &[]),
            "advice, with the share of the threads' time that each can gain at most:\n1. 25.0 % (0.500 s): do this\n"
        );
        assert!(advised(&[], &[]).contains("nothing costs this run 2 %"));
    }

    #[test]
    fn the_counters_of_a_phase_keep_their_nodes() {
        let counters = Counters { barriers: 3, ..Counters::default() };
        assert_eq!(listed(&BTreeMap::from([(1, counters)])), [None, Some(counters)]);
        assert!(listed(&BTreeMap::new()).is_empty());
    }
}
