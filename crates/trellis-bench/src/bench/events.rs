//! `trellis bench events`: the cost of the basic events of Sane, MacGregor and Campbell (1990, §4.2), and their cost
//! model fitted to it.
//!
//! The events are Read, Write, UpgradeO and UpgradeNO (a store to a read copy, by the page's owner and by another
//! node), each with different numbers of copies elsewhere, and Read with an owner one hop away from the requester's
//! guess.
//!
//! Promises: every access is one event on a page of its own, with prefetch off. Messages and pages are counted, not
//! derived. The model is fitted to the medians by least squares, and predicts the same events to which it was fitted.

use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trellis_base::Random;
use trellis_command::terminal::say;

use crate::bench::cluster::{ClusterPlan, Common};
use crate::bench::figures::p50;
use crate::bench::least_squares;
use crate::bench::node::{Found, Member, Task, WorkError, shuffled};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal;

const EXAMPLES: &str = "\
Examples:
  trellis bench events
  trellis bench events --nodes 4 --samples 2000 --json

Node 1 makes every event; node 0 is the home and first owner of every page.";

/// Measure the basic events of the dynamic protocol and their messages, and fit the cost model
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EventsArguments {
    /// The largest cluster; all sizes from two nodes on are measured
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(3..=16))]
    pub(crate) nodes: u8,
    /// Events measured of each kind
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    pub(crate) samples: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// An event of the paper, or a variation of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// A load from a page that is not here.
    Read,
    /// Like [`Kind::Read`], but this node's guess of the owner is wrong, and the guess of the node that it asks is
    /// right.
    ReadForwarded,
    /// A store to a page that is not here.
    Write,
    /// A store to a read copy that this node owns.
    UpgradeOwner,
    /// A store to a read copy that another node owns.
    UpgradeNotOwner,
}

/// One kind of event with a given number of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Situation {
    pub(crate) kind: Kind,
    /// Read copies at nodes other than the requester and the owner.
    pub(crate) copies: usize,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EventsTask {
    samples: usize,
    situations: Vec<Situation>,
}

/// The cost of an event in one situation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Measured {
    pub(crate) event: &'static str,
    pub(crate) nodes: usize,
    pub(crate) copies: usize,
    pub(crate) us_p50: f64,
    pub(crate) messages: f64,
    pub(crate) messages_predicted: f64,
    pub(crate) pages: f64,
    /// As predicted by the fitted model.
    pub(crate) us_predicted: f64,
    #[serde(skip)]
    flushes: f64,
    #[serde(skip)]
    handled: f64,
}

/// The fitted model: O = N·pk + M·pg + F + V·m, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Model {
    /// N: for each message.
    pub(crate) message_us: f64,
    /// M: for each page, in addition to its message.
    pub(crate) page_us: f64,
    /// F: once for each event that moves the ownership.
    pub(crate) fixed_us: f64,
    /// V: for each copy holder that is recorded or recalled.
    pub(crate) holder_us: f64,
    /// The part of the variance between the events that the model explains.
    pub(crate) explained: f64,
}

/// All events, and the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Events {
    pub(crate) model: Model,
    pub(crate) events: Vec<Measured>,
}

const PAGE_BYTES: usize = 4096;
/// A model that explains less of the variance than this says nothing about the cost of an event.
const EXPLAINED_LEAST: f64 = 0.5;

impl Kind {
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Read, Kind::ReadForwarded, Kind::Write, Kind::UpgradeOwner, Kind::UpgradeNotOwner];

    /// The paper's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Read => "Read",
            Kind::ReadForwarded => "Read, forwarded once",
            Kind::Write => "Write",
            Kind::UpgradeOwner => "UpgradeO",
            Kind::UpgradeNotOwner => "UpgradeNO",
        }
    }

    /// Nodes that take part besides the holders of copies.
    fn nodes_least(self) -> usize {
        if self == Kind::ReadForwarded { 3 } else { 2 }
    }

    fn is_store(self) -> bool {
        !matches!(self, Kind::Read | Kind::ReadForwarded)
    }
}

impl Situation {
    /// All situations that are possible with this number of nodes and not with fewer.
    fn all(nodes: usize) -> Vec<Situation> {
        let with = |kind: Kind| {
            let copies = nodes - kind.nodes_least();
            // An owner without a copy elsewhere may already store; its copies include the one of node 0.
            Situation { kind, copies: if kind == Kind::UpgradeOwner { copies + 1 } else { copies } }
        };
        Kind::ALL.into_iter().filter(|kind| kind.nodes_least() <= nodes).map(with).collect()
    }

    /// The number of messages by the formulas of §4.2, without the acknowledgement and with a page in one message.
    fn messages(self) -> f64 {
        let callbacks = 2.0 * self.copies as f64;
        match self.kind {
            Kind::Read => 2.0,
            Kind::ReadForwarded => 3.0,
            Kind::Write | Kind::UpgradeNotOwner => 2.0 + callbacks,
            Kind::UpgradeOwner => callbacks,
        }
    }

    /// The factors of F and V in the paper's formula.
    fn flushes_and_handled(self) -> (f64, f64) {
        match self.kind {
            Kind::Read | Kind::ReadForwarded => (0.0, 1.0),
            Kind::Write | Kind::UpgradeNotOwner => (1.0, self.copies as f64),
            Kind::UpgradeOwner => (0.0, self.copies as f64),
        }
    }

    /// Who touches the pages before, in this order: the node, and whether it stores.
    fn preparation(self) -> Vec<(usize, bool)> {
        let readers = |first: usize| (first..first + self.copies).map(|node| (node, false));
        match self.kind {
            Kind::Read | Kind::Write => std::iter::once((0, true)).chain(readers(2)).collect(),
            // Node 2 takes the page from its home; node 1 still believes that the home is the owner.
            Kind::ReadForwarded => [(0, true), (2, true)].into_iter().chain(readers(3)).collect(),
            Kind::UpgradeNotOwner => [(0, true), (1, false)].into_iter().chain(readers(2)).collect(),
            Kind::UpgradeOwner => {
                let others = std::iter::once(0).chain(2..).take(self.copies).map(|node| (node, false));
                std::iter::once((1, true)).chain(others).collect()
            }
        }
    }
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &EventsArguments) -> Ending {
    let mut all = Vec::new();
    for nodes in 2..=usize::from(arguments.nodes) {
        all.extend(measure(nodes, arguments.samples as usize, &arguments.common)?);
    }
    let found = fitted(all)?;
    terminal::clear_line();
    if arguments.common.json {
        let mut object = serde_json::to_value(&found).map_err(exit::not_json)?;
        object["benchmark"] = "events".into();
        say!("{}", serde_json::to_string_pretty(&object).map_err(exit::not_json)?);
    } else {
        say!("{}", crate::reproduce::aligned(&found.table()));
        say!("{}", found.model.sentence());
    }
    Ok(exit::FINE)
}

/// The events that are possible with this number of nodes and not with fewer, without predicted times.
pub(crate) fn measure(nodes: usize, samples: usize, common: &Common) -> Result<Vec<Measured>, Failure> {
    let situations = Situation::all(nodes);
    let region_bytes = (situations.len() * samples * PAGE_BYTES).max(64 << 10).next_multiple_of(PAGE_BYTES);
    let task = Task::Events(EventsTask { samples, situations: situations.clone() });
    let settings = vec![
        ("region_bytes", region_bytes.to_string()),
        ("page_bytes", PAGE_BYTES.to_string()),
        ("prefetch_pages_max", "1".to_owned()),
        // Signs of life are messages, too.
        ("silence_seconds_max", "3600".to_owned()),
        ("coherence", "dynamic(forward)".to_owned()),
    ];
    let found = ClusterPlan { nodes, common, settings, task: &task, with_connection: false }.run::<Value>()?;
    let sum =
        |series: usize, name: &str| found.iter().filter_map(|node| node["series"][series][name].as_f64()).sum::<f64>();
    // The first series have no page: they count the messages of the barriers around each series.
    let barriers = p50((0..EMPTY_SERIES).map(|series| sum(series, "messages")));
    let of = |(index, situation): (usize, Situation)| {
        let (flushes, handled) = situation.flushes_and_handled();
        Measured {
            event: situation.kind.name(),
            nodes,
            copies: situation.copies,
            us_p50: found[1]["series"][index + EMPTY_SERIES]["us_p50"].as_f64().unwrap_or(f64::NAN),
            messages: (sum(index + EMPTY_SERIES, "messages") - barriers) / samples as f64,
            messages_predicted: situation.messages(),
            pages: sum(index + EMPTY_SERIES, "pages") / samples as f64,
            us_predicted: f64::NAN,
            flushes,
            handled,
        }
    };
    Ok(situations.into_iter().enumerate().map(of).collect())
}

/// Fits the model to the events, and predicts them.
pub(crate) fn fitted(mut events: Vec<Measured>) -> Result<Events, Failure> {
    let terms = |event: &Measured| [event.messages, event.pages, event.flushes, event.handled];
    let rows: Vec<([f64; 4], f64)> = events.iter().map(|event| (terms(event), event.us_p50)).collect();
    let Some(factors) = least_squares::solve(&rows) else {
        let sentence = "the events do not determine the cost model; measure with three nodes or more (--nodes 4)";
        return Err(Failure::new(exit::FAILED, sentence));
    };
    for event in &mut events {
        event.us_predicted = terms(event).iter().zip(factors).map(|(term, factor)| term * factor).sum();
    }
    let mean = events.iter().map(|event| event.us_p50).sum::<f64>() / events.len() as f64;
    let squares = |of: &dyn Fn(&Measured) -> f64| events.iter().map(|event| of(event).powi(2)).sum::<f64>();
    let explained = 1.0 - squares(&|event| event.us_p50 - event.us_predicted) / squares(&|event| event.us_p50 - mean);
    let [message_us, page_us, fixed_us, holder_us] = factors;
    Ok(Events { model: Model { message_us, page_us, fixed_us, holder_us, explained }, events })
}

impl Events {
    /// The table for people: heads and rows.
    pub(crate) fn table(&self) -> Vec<Vec<String>> {
        let heads = ["event", "nodes", "copies", "here, µs", "by the model, µs", "messages", "by the formula", "pages"];
        let row = |event: &Measured| {
            vec![
                event.event.to_owned(),
                event.nodes.to_string(),
                event.copies.to_string(),
                format!("{:.1}", event.us_p50),
                format!("{:.1}", event.us_predicted),
                format!("{:.2}", event.messages),
                format!("{:.0}", event.messages_predicted),
                format!("{:.2}", event.pages),
            ]
        };
        std::iter::once(heads.map(str::to_owned).to_vec()).chain(self.events.iter().map(row)).collect()
    }
}

impl Model {
    pub(crate) fn sentence(&self) -> String {
        // A comparison with NaN is false, so it is tested separately: if all events cost the same, nothing is
        // explained either.
        if self.explained.is_nan() || self.explained < EXPLAINED_LEAST {
            return "the cost model does not explain these times, which leave no factor to be trusted; measure again on an \
                    idle machine"
                .to_owned();
        }
        format!(
            "O = {:.1} µs for each message + {:.1} µs for each page + {:.1} µs if the owner changes + {:.1} µs for each \
             copy holder; {:.0} % of the variance",
            self.message_us,
            self.page_us,
            self.fixed_us,
            self.holder_us,
            self.explained * 100.0
        )
    }
}

/// Runs a node's part: some series without pages, then one for each situation.
pub(crate) fn node(task: &EventsTask, member: &Member) -> Found {
    let mut series = empty_series(member)?;
    for (index, situation) in task.situations.iter().enumerate() {
        let pages = shuffled(&mut Random::new(index as u64 + 1), index * task.samples, task.samples);
        for (node, store) in situation.preparation() {
            if node == member.cluster.node() {
                pages.iter().for_each(|page| touch(member, *page, store));
            }
            member.cluster.barrier(1)?;
        }
        series.push(one_series(member, &pages, situation.kind.is_store(), 1)?);
    }
    Ok(json!({ "series": series }))
}

/// Series without pages; their median is what the barriers around a series send. A manager may answer a barrier just
/// before or after it reads its counters, so a single series could be off by a few messages.
pub(crate) fn empty_series(member: &Member) -> Result<Vec<Value>, WorkError> {
    (0..EMPTY_SERIES).map(|_| one_series(member, &[], false, 0)).collect()
}

/// The number of series without pages.
pub(crate) const EMPTY_SERIES: usize = 9;

/// Node `who` touches each page once; every node returns what it sent meanwhile.
pub(crate) fn one_series(member: &Member, pages: &[usize], store: bool, who: usize) -> Result<Value, WorkError> {
    let cluster = &member.cluster;
    cluster.barrier(2)?;
    let before = cluster.counters();
    // No node touches a page before every node has read its counters, …
    cluster.barrier(3)?;
    let mut samples = Vec::with_capacity(pages.len());
    if cluster.node() == who {
        for page in pages {
            let start = Instant::now();
            touch(member, *page, store);
            samples.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    cluster.barrier(4)?;
    let counted = cluster.counters().since(&before);
    // … and none prepares the next series before every node has read them again.
    cluster.barrier(5)?;
    Ok(json!({
        "us_p50": p50(samples), "messages": counted.messages_out, "pages": counted.pages_in,
    }))
}

/// One load or store in a page.
pub(crate) fn touch(member: &Member, page: usize, store: bool) {
    assert!((page + 1) * PAGE_BYTES <= member.cluster.region().bytes());
    let place = member.cluster.region().base().wrapping_add(page * PAGE_BYTES).cast::<u64>();
    // SAFETY: inside the region and aligned; between two barriers one node alone touches the pages of a series.
    unsafe {
        if store {
            place.write_volatile(page as u64 + 1);
        } else {
            place.read_volatile();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All situations of up to four nodes, with the cost that a model predicts.
    fn made_of(factors: [f64; 4]) -> Vec<Measured> {
        let mut events = Vec::new();
        for nodes in 2..=4 {
            for situation in Situation::all(nodes) {
                let (flushes, handled) = situation.flushes_and_handled();
                let pages =
                    if matches!(situation.kind, Kind::UpgradeOwner | Kind::UpgradeNotOwner) { 0.0 } else { 1.0 };
                let terms = [situation.messages(), pages, flushes, handled];
                events.push(Measured {
                    event: situation.kind.name(),
                    nodes,
                    copies: situation.copies,
                    us_p50: terms.iter().zip(factors).map(|(term, factor)| term * factor).sum(),
                    messages: situation.messages(),
                    messages_predicted: situation.messages(),
                    pages,
                    us_predicted: f64::NAN,
                    flushes,
                    handled,
                });
            }
        }
        events
    }

    #[test]
    fn the_model_is_found_again_in_what_it_made() {
        let found = fitted(made_of([5.0, 3.0, 2.0, 0.5])).expect("determined");
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-6, "{:?}", found.model);
        close(found.model.message_us, 5.0);
        close(found.model.page_us, 3.0);
        close(found.model.fixed_us, 2.0);
        close(found.model.holder_us, 0.5);
        close(found.model.explained, 1.0);
    }

    #[test]
    fn a_model_that_explains_nothing_says_so() {
        let mut events = made_of([5.0, 3.0, 2.0, 0.5]);
        assert!(fitted(events.clone()).expect("determined").model.sentence().ends_with("; 100 % of the variance"));
        // Times that do not depend on messages, pages or holders.
        for (index, event) in events.iter_mut().enumerate() {
            event.us_p50 = if index % 2 == 0 { 1.0 } else { 900.0 };
        }
        let model = fitted(events).expect("determined").model;
        let sentence = model.sentence();
        assert!(sentence.contains("does not explain") && sentence.contains("idle machine"), "{model:?}: {sentence}");
        assert!(!sentence.contains('%'), "{sentence}");
        assert!(Model { explained: f64::NAN, ..model }.sentence().contains("does not explain"));
    }

    #[test]
    fn the_events_of_two_nodes_alone_do_not_determine_it() {
        // Without a forwarded request every event has the same messages for each holder: one number too many.
        let events = made_of([5.0, 3.0, 2.0, 0.5]).into_iter().filter(|event| event.nodes == 2).collect();
        assert!(fitted(events).is_err());
    }

    #[test]
    fn every_node_that_prepares_is_there() {
        for nodes in 2..=6 {
            for situation in Situation::all(nodes) {
                for (node, _) in situation.preparation() {
                    assert!(node < nodes, "{situation:?} with {nodes} nodes");
                }
            }
        }
    }
}
