//! Table 3: the basic events, the paper's cost model fitted to them, and the packets of each.

use serde_json::{Value, json};

use super::super::{Reproduced, Settings};
use crate::bench::events::{self, Kind, Measured};
use crate::bench::figures::p50;
use trellis_command::exit::Failure;

/// The paper's milliseconds, measured with two machines.
const PAPER_MS: [(Kind, f64); 4] =
    [(Kind::Read, 39.9), (Kind::Write, 48.2), (Kind::UpgradeOwner, 19.4), (Kind::UpgradeNotOwner, 11.1)];
const NODES_MAX: usize = 4;

/// The paper's packets for an event with this many copies besides the requester's and the owner's (§4.2): a page is
/// three packets, and the node that gets the ownership acknowledges it.
fn paper_packets(event: &str, copies: usize) -> Option<usize> {
    let callbacks = 2 * copies;
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == event)?;
    match kind {
        Kind::Read => Some(4),
        Kind::ReadForwarded => None,
        Kind::Write => Some(5 + callbacks),
        Kind::UpgradeOwner => Some(callbacks),
        Kind::UpgradeNotOwner => Some(3 + callbacks),
    }
}

fn paper_ms(event: &Measured) -> Option<f64> {
    PAPER_MS.iter().find(|(kind, _)| kind.name() == event.event && event.nodes == 2).map(|(_, ms)| *ms)
}

/// Table 3: basic operation timings.
pub(super) fn table3(settings: &mut Settings, samples: usize) -> Result<Reproduced, Failure> {
    let mut runs: Vec<Vec<Measured>> = Vec::new();
    for run in 0..settings.runs {
        let mut all = Vec::new();
        for nodes in 2..=NODES_MAX {
            settings.progress.step(&format!("table 3: {nodes} nodes, run {} of {}", run + 1, settings.runs));
            all.extend(events::measure(nodes, samples, settings.common)?);
        }
        runs.push(all);
    }
    let found = events::fitted(medians(&runs))?;
    let mut table = found.table();
    for (index, heads) in ["paper, ms", "paper, packets"].into_iter().enumerate() {
        table[0].insert(3 + 4 * index, heads.to_owned());
    }
    for (cells, event) in table[1..].iter_mut().zip(&found.events) {
        cells.insert(3, paper_ms(event).map_or(String::new(), |ms| ms.to_string()));
        cells.insert(7, paper_packets(event.event, event.copies).map_or(String::new(), |packets| packets.to_string()));
    }
    Ok(Reproduced {
        title: "Table 3: basic events, and the cost model O = N·pk + M·pg + F + V·m",
        table,
        remark: format!(
            "Median of {} runs of {samples} events. Fitted: {}. The paper's page is three packets and its writers \
             acknowledge; here a page is in one message and ownership needs no acknowledgement. The model lets the callbacks \
             of several copies cost one after the other; they overlap.",
            settings.runs,
            found.model.sentence()
        ),
        json: json!({
            "paper": PAPER_MS.iter().map(|(kind, ms)| (kind.name().to_owned(), json!(ms))).collect::<serde_json::Map<_, _>>(),
            "model": found.model,
            "rows": found.events.iter().map(json_of).collect::<Vec<Value>>(),
            "runs": settings.runs, "samples": samples,
        }),
        pictures: Vec::new(),
    })
}

/// The median of each event over the runs, which all have the same events in the same order.
fn medians(runs: &[Vec<Measured>]) -> Vec<Measured> {
    let mut events = runs.first().cloned().unwrap_or_default();
    for (index, event) in events.iter_mut().enumerate() {
        let of = |number: fn(&Measured) -> f64| p50(runs.iter().map(|run| number(&run[index])));
        event.us_p50 = of(|one| one.us_p50);
        event.messages = of(|one| one.messages);
        event.pages = of(|one| one.pages);
    }
    events
}

fn json_of(event: &Measured) -> Value {
    json!({
        "event": event.event, "nodes": event.nodes, "copies": event.copies, "us_p50": event.us_p50,
        "us_predicted": event.us_predicted, "messages": event.messages, "messages_predicted": event.messages_predicted,
        "pages": event.pages, "paper_ms": paper_ms(event), "paper_packets": paper_packets(event.event, event.copies),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_packets_are_those_of_its_formulas() {
        // m is the number of machines: 4 here; the owner and the requester have no copy to be recalled.
        assert_eq!(paper_packets("Read", 2), Some(4));
        assert_eq!(paper_packets("Write", 2), Some(5 + 2 * 2));
        assert_eq!(paper_packets("UpgradeO", 3), Some(2 * 3));
        assert_eq!(paper_packets("UpgradeNO", 0), Some(3));
        assert_eq!(paper_packets("Read, forwarded once", 0), None);
    }
}
