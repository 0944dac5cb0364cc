//! The counters and the advice after a run: `--stats`, `--advise` and `--phase`.
//!
//! Promises: these options do not change the status of the run. A record that the user asked for stays where the user
//! wants it. A record for the advice alone is small, and is removed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use trellis::config;
use trellis::record::advice::{self, Advice};
use trellis::record::{Choice, Counters, Record};

use super::{Made, RunArguments, status};
use crate::exit::Failure;
use crate::scratch::Scratch;

/// The number of faults of a node that a record for the advice alone keeps.
pub(super) const FAULTS_MAX: usize = 100_000;

/// The choices of the user.
pub(super) struct Review {
    shows_counters: bool,
    gives_advice: bool,
    phase: Option<String>,
    since: SystemTime,
    /// The directory in which nodes write records if the user names no other.
    scratch: Option<Scratch>,
    /// The reason why there is no such directory.
    failure: Option<Failure>,
}

impl Review {
    /// `None` if there is nothing to say.
    pub(super) fn of(arguments: &RunArguments) -> Option<Review> {
        if !arguments.stats && !arguments.advise && arguments.phase.is_none() {
            return None;
        }
        let (scratch, failure) = match Scratch::new("review") {
            Ok(scratch) => (Some(scratch), None),
            Err(failure) => (None, Some(failure)),
        };
        Some(Review {
            shows_counters: arguments.stats || !arguments.advise,
            gives_advice: arguments.stats || arguments.advise,
            phase: arguments.phase.clone(),
            since: SystemTime::now(),
            scratch,
            failure,
        })
    }

    /// The directory in which nodes write records if the configuration names no other.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.scratch.as_ref().map(Scratch::path)
    }

    /// The text to print after the run.
    pub(super) fn text(&self, made: &Made) -> String {
        let (records, unread) = made.record.as_ref().map_or_else(Default::default, |folder| self.read(folder));
        let reason = unread.or_else(|| self.failure.as_ref().map(|failure| failure.sentence.clone()));
        let mut text = String::new();
        if self.shows_counters && self.phase.is_none() {
            text.push_str(&status::counter_table(&made.counters));
        }
        if made.counters.iter().all(Option::is_none) {
            return text;
        }
        if records.is_empty() {
            let reason = reason.unwrap_or_else(|| "no node left a record of the run".to_owned());
            text.push_str(&format!("trellis: there is no advice: {reason}\n"));
            return text;
        }
        text.push_str(&self.about(&records).unwrap_or_else(|sentence| format!("trellis: {sentence}\n")));
        let joined = made.counters.iter().flatten().count();
        if let Some(missing) = joined.checked_sub(records.len()).filter(|missing| *missing > 0) {
            let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
            text.push_str(&format!(
                "{missing} of {joined} nodes left no record; the advice is about the others{reason}\n"
            ));
        }
        text
    }

    fn about(&self, records: &[Record]) -> Result<String, String> {
        let phase = self.phase.as_deref();
        let mut text = String::new();
        if self.shows_counters && phase.is_some() {
            text.push_str(&status::counter_table(&by_node(&advice::counters(records, phase)?)));
        }
        if self.shows_counters {
            text.push_str(&chosen(records));
        }
        if self.gives_advice {
            text.push_str(&advised(&advice::advise(records, phase)?, records));
        }
        Ok(text)
    }

    /// The records that this run left, and why one of them cannot be read.
    fn read(&self, folder: &Path) -> (Vec<Record>, Option<String>) {
        let is_new = |path: &PathBuf| {
            path.metadata().and_then(|about| about.modified()).is_ok_and(|modified| modified >= self.since)
        };
        let (mut records, mut unread) = (Vec::new(), None);
        for path in (0..config::NODES_MAX).map(|node| Record::path(folder, node)).filter(is_new) {
            match Record::read(&path) {
                Ok(record) => records.push(record),
                Err(error) => unread = Some(error.to_string()),
            }
        }
        (records, unread)
    }
}

/// Counters in the order of their nodes.
fn by_node(counters: &BTreeMap<usize, Counters>) -> Vec<Option<Counters>> {
    let nodes = counters.keys().last().map_or(0, |last| last + 1);
    (0..nodes).map(|node| counters.get(&node).copied()).collect()
}

/// The protocol's choices for pages, with their reasons.
fn chosen(records: &[Record]) -> String {
    let choices = [
        (
            Choice::MovesWithLoad,
            "loads brought pages with the right to store",
            "nodes loaded from them before and then stored to them",
        ),
        (Choice::Stays, "pages stayed for a while after they came", "threads stored to them when they were taken"),
    ];
    let coherence = records.first().map_or("", |record| &record.coherence);
    let about = |(choice, what, why): (Choice, &str, &str)| {
        let (times, place) = advice::chosen(records, choice)?;
        // A fixed time needs no reason.
        let because = if coherence.contains("us)") { String::new() } else { format!(", because {why}") };
        Some(format!("coherence = {coherence}: {what}, {times} times{because}: {place}\n"))
    };
    choices.into_iter().filter_map(about).collect()
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
            "{dropped} later faults are not considered (`--set record_faults_max=NUMBER` makes room for more)\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use trellis::record::Chosen;

    #[test]
    fn advice_is_numbered() {
        let advice = Advice { lost_seconds: 0.5, share: 0.25, sentence: "do this".to_owned() };
        assert_eq!(
            advised(&[advice], &[]),
            "advice, with the share of the threads' time that each can gain at most:\n1. 25.0 % (0.500 s): do this\n"
        );
        assert!(advised(&[], &[]).contains("nothing costs this run 2 %"));
    }

    #[test]
    fn what_the_protocol_chose_is_said_with_its_reason() {
        let with = |coherence: &str| {
            let mut record = crate::report::pictures::tests::example(0);
            record.coherence = coherence.to_owned();
            record.choices = vec![Chosen { choice: Choice::Stays, first: 2, pages: 1, times: 9 }];
            chosen(&[record])
        };
        let place = "bytes 0x2000 to 0x2fff of the region\n";
        let stays = "pages stayed for a while after they came, 9 times";
        let because =
            format!("coherence = auto: {stays}, because threads stored to them when they were taken: {place}");
        assert_eq!(with("auto"), because);
        assert_eq!(with("delay(ivy, 500us)"), format!("coherence = delay(ivy, 500us): {stays}: {place}"));
    }

    #[test]
    fn the_counters_of_a_phase_keep_their_nodes() {
        let counters = Counters { barriers: 3, ..Counters::default() };
        assert_eq!(by_node(&BTreeMap::from([(1, counters)])), [None, Some(counters)]);
        assert!(by_node(&BTreeMap::new()).is_empty());
    }
}
