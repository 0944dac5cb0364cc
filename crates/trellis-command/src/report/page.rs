//! The HTML of a report: figures first, then pictures, then every counter of every node.

use std::collections::BTreeMap;
use std::fmt::Write;

use trellis::record::advice::{Advice, advise};
use trellis::record::{Breakdown, Counters, Record};

use crate::chart;
use crate::report::pictures::{self, BarPart};
use crate::svg::{self, Picture, escape};

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1f2328;background:#fff}\
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2rem}p.settings{color:#59636e;margin-top:0}\
.tiles{display:flex;flex-wrap:wrap;gap:.8rem}.tiles div{border:1px solid #d1d9e0;border-radius:.5rem;padding:.6rem 1rem;min-width:8rem}\
.tiles b{display:block;font-size:1.35rem}.tiles span{color:#59636e}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.25rem .8rem;text-align:right;border-bottom:1px solid #d1d9e0}th:first-child,td:first-child{text-align:left}\
.wide{overflow-x:auto}svg{max-width:100%;height:auto;margin:.4rem 0}\
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}.tiles div,th,td{border-color:#3d444d}p.settings,.tiles span{color:#9198a1}}";

/// The whole page. There is at least one record.
pub(super) fn html(records: &[Record]) -> String {
    let first = &records[0];
    let program = escape(&first.program);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{program}, {} nodes: Trellis report</title>\n<style>{STYLE}{}</style>\n</head>\n<body>\n\
         <h1>{program} on {} node{}</h1>\n<p class=\"settings\">{}</p>\n",
        first.nodes,
        svg::STYLE,
        first.nodes,
        if first.nodes == 1 { "" } else { "s" },
        escape(&settings(records)),
    );
    warnings(&mut page, records);
    tiles(&mut page, records);
    advice(&mut page, records);
    section_of_pictures(&mut page, records);
    phase_table(&mut page, records);
    counter_table(&mut page, records);
    page.push_str("</body>\n</html>\n");
    page
}

fn settings(records: &[Record]) -> String {
    let record = &records[0];
    format!(
        "catch {} · coherence {} · home {} · link {} · security {} · page {} · region {}",
        record.catch,
        record.coherence,
        record.home,
        link(records),
        record.security,
        chart::byte_text(record.page_bytes as f64),
        chart::byte_text(record.region_bytes as f64)
    )
}

/// The configured link, and over which links nodes exchanged frames where they chose one.
fn link(records: &[Record]) -> String {
    let asked = &records[0].link;
    let mut pairs: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for record in records {
        for (peer, way) in record.ways.iter().enumerate().filter(|(_, way)| !way.is_empty()) {
            // The other end reports the same, unless it left no record.
            if record.node < peer || records.iter().all(|other| other.node != peer) {
                let (low, high) = (record.node.min(peer), record.node.max(peer));
                pairs.entry(way).or_default().push(format!("{low}–{high}"));
            }
        }
    }
    match pairs.len() {
        0 => asked.clone(),
        1 => pairs.keys().next().filter(|way| *way != asked).map_or(asked.clone(), |way| format!("{asked} ({way})")),
        _ => {
            let each: Vec<String> = pairs.iter().map(|(way, pairs)| format!("{} {way}", pairs.join(" "))).collect();
            format!("{asked} ({})", each.join(", "))
        }
    }
}

fn warnings(page: &mut String, records: &[Record]) {
    let missing: Vec<String> = (0..records[0].nodes)
        .filter(|node| records.iter().all(|record| record.node != *node))
        .map(|node| node.to_string())
        .collect();
    if !missing.is_empty() {
        let _ = writeln!(
            page,
            "<p><strong>No record of node {}: it did not end in order.</strong></p>",
            missing.join(", ")
        );
    }
    let dropped: u64 = records.iter().map(|record| record.faults_dropped).sum();
    if dropped > 0 {
        let _ = writeln!(
            page,
            "<p><strong>{dropped} faults are counted but not drawn: raise record_faults_max to keep them.</strong></p>"
        );
    }
}

fn advice(page: &mut String, records: &[Record]) {
    // The whole run has no phase that could be unknown.
    let advice = advise(records, None).unwrap_or_default();
    if advice.is_empty() {
        return;
    }
    page.push_str("<h2>Advice</h2>\n<p>With the share of the threads' time that each can gain at most.</p>\n<ol>\n");
    for Advice { lost_seconds, share, sentence } in advice {
        let (percent, sentence) = (share * 100.0, escape(&sentence));
        let _ = writeln!(page, "<li>{percent:.1} % ({lost_seconds:.3} s): {sentence}</li>");
    }
    page.push_str("</ol>\n");
}

fn tiles(page: &mut String, records: &[Record]) {
    let sum = |of: &dyn Fn(&Counters) -> u64| records.iter().map(|record| of(&record.counters)).sum::<u64>();
    let seconds = records.iter().map(|record| record.seconds).fold(0.0, f64::max);
    let faults = sum(&|c| c.read_faults + c.write_faults + c.upgrade_faults + c.upgrade_owner_faults);
    let mut waits: Vec<f64> = records.iter().flat_map(pictures::sorted_waits_us).collect();
    waits.sort_by(f64::total_cmp);
    let wait = |part: f64| {
        trellis_base::statistics::quantile_of_ascending(&waits, part)
            .map_or("none".to_owned(), |us| format!("{} µs", chart::number((us * 10.0).round() / 10.0)))
    };
    page.push_str("<div class=\"tiles\">\n");
    for (value, label) in [
        (format!("{} s", chart::number((seconds * 1000.0).round() / 1000.0)), "longest node"),
        (faults.to_string(), "remote faults"),
        (wait(0.5), "median wait of a fault"),
        (wait(0.99), "99 % wait at most"),
        (chart::byte_text(sum(&|c| c.bytes_out) as f64), "sent"),
        (sum(&|c| c.messages_out).to_string(), "messages"),
    ] {
        let _ = writeln!(page, "<div><b>{value}</b><span>{label}</span></div>");
    }
    page.push_str("</div>\n");
}

fn section_of_pictures(page: &mut String, records: &[Record]) {
    page.push_str("<h2>Where and when</h2>\n");
    page.push_str(&pictures::heat_map(records).into_inline());
    let note = "Each dot is a page fault; a page that a node keeps makes no more dots.";
    page.push_str(&pictures::access_pattern(records, "Faults over time", note).into_inline());
    page.push_str("<h2>How long</h2>\n");
    page.push_str(&pictures::wait_histogram(records).into_inline());
    if let Some(picture) = pictures::phases(records) {
        page.push_str(&picture.into_inline());
    }
    page.push_str("<h2>What for</h2>\n");
    breakdowns(page, records);
    page.push_str("<h2>How much</h2>\n");
    let faults: [BarPart; 4] = [
        ("read", &|record| record.counters.read_faults as f64),
        ("write", &|record| record.counters.write_faults as f64),
        ("upgrade", &|record| (record.counters.upgrade_faults + record.counters.upgrade_owner_faults) as f64),
        ("local", &|record| record.counters.local_faults as f64),
    ];
    page.push_str(&pictures::bars(records, "Faults", "faults", &faults).into_inline());
    let bytes: [BarPart; 2] =
        [("received", &|record| record.counters.bytes_in as f64), ("sent", &|record| record.counters.bytes_out as f64)];
    page.push_str(&pictures::bars(records, "Bytes", "B", &bytes).into_inline());
    let messages: [BarPart; 2] = [
        ("received", &|record| record.counters.messages_in as f64),
        ("sent", &|record| record.counters.messages_out as f64),
    ];
    page.push_str(&pictures::bars(records, "Messages", "messages", &messages).into_inline());
}

/// Where the time of the nodes went: in the whole run, and in each phase.
fn breakdowns(page: &mut String, records: &[Record]) {
    let whole = |record: &Record| record.counters;
    page.push_str(&breakdown(records, "Where the time went, all threads", &whole).into_inline());
    for name in pictures::phase_names(records) {
        let inside = |record: &Record| pictures::counters_of_phase(record, name);
        page.push_str(&breakdown(records, &format!("The same in {name}"), &inside).into_inline());
    }
}

fn breakdown(records: &[Record], title: &str, counters: &dyn Fn(&Record) -> Counters) -> Picture {
    let part = |index: usize| move |record: &Record| Breakdown::of(&counters(record)).parts()[index] * 1e3;
    let lengths: [_; 6] = std::array::from_fn(part);
    let parts: [BarPart; 6] = std::array::from_fn(|index| (Breakdown::WORDS[index], &lengths[index] as _));
    pictures::bars(records, title, "ms", &parts)
}

fn phase_table(page: &mut String, records: &[Record]) {
    if records.iter().all(|record| record.phases.is_empty()) {
        return;
    }
    page.push_str("<h2>Phases</h2>\n<div class=\"wide\"><table>\n<tr><th>phase</th><th>node</th><th>ms</th><th>faults</th><th>wait ms</th></tr>\n");
    for record in records {
        for phase in &record.phases {
            let inside = record.faults.iter().filter(|fault| (phase.start_us..phase.end_us).contains(&fault.time_us));
            let (count, wait) = inside.fold((0, 0), |(count, wait), fault| (count + 1, wait + fault.wait_us_x10));
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td>{}</td><td>{:.3}</td><td>{count}</td><td>{:.3}</td></tr>",
                escape(&phase.name),
                record.node,
                phase.end_us.saturating_sub(phase.start_us) as f64 / 1000.0,
                wait as f64 / 10_000.0
            );
        }
    }
    page.push_str("</table></div>\n");
}

fn counter_table(page: &mut String, records: &[Record]) {
    page.push_str("<h2>Counters</h2>\n<div class=\"wide\"><table>\n<tr><th>counter</th>");
    for record in records {
        let _ = write!(page, "<th>node {}</th>", record.node);
    }
    page.push_str("</tr>\n");
    for (index, name) in Counters::NAMES.iter().enumerate() {
        let _ = write!(page, "<tr><td>{name}</td>");
        for record in records {
            let value = record.counters.entries().nth(index).map_or(0, |(_, value)| value);
            let _ = write!(page, "<td>{value}</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::pictures::tests::example;

    #[test]
    fn the_page_is_complete_and_fetches_nothing() {
        let page = html(&[example(0), example(1)]);
        for part in
            ["Faults per page", "Waiting time of a fault", "Time per phase", "Bytes", "Messages", "fault_wait_ns"]
        {
            assert!(page.contains(part), "{part} is missing");
        }
        assert!(page.contains("psort&lt;1&gt;") && !page.contains("psort<1>"));
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        for reference in ["http:", "https:", "src=", "href=", "<script", "@import", "url("] {
            assert!(!outside.contains(reference), "{reference} refers outside");
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert_eq!(page.matches("<tr>").count(), page.matches("</tr>").count());
    }

    #[test]
    fn the_time_of_each_node_is_broken_down() {
        let mut records = [example(0), example(1)];
        let counters = Counters { program_ns: 500_000_000, barrier_wait_ns: 300_000_000, ..Counters::default() };
        records[1].counters = counters;
        records[0].phases[0].counters = Counters { program_ns: 2_000_000, overhead_ns: 1_000_000, ..counters };
        records[0].phases[0].counters.barrier_wait_ns = 0;
        let page = html(&records);
        for part in
            ["node 1, Computation: 200 ms", "node 1, Barrier: 300 ms", "The same in sort", "node 0, Overhead: 1 ms"]
        {
            assert!(page.contains(part), "{part} is missing");
        }
        assert!(page.contains("<h2>Advice</h2>") && page.contains("barriers for node 0, which waited least"), "{page}");
    }

    #[test]
    fn the_ways_of_the_pairs_are_named() {
        let mut records = [example(0), example(1)];
        assert!(html(&records).contains("link auto (shm)"));
        records[0].ways = ["", "shm", "tcp: the two run on different hosts"].map(str::to_owned).to_vec();
        assert!(html(&records).contains("link auto (0–1 shm, 0–2 tcp: the two run on different hosts)"));
        records.iter_mut().for_each(|record| record.ways = Vec::new());
        assert!(html(&records).contains("link auto ·"));
    }

    #[test]
    fn a_missing_node_is_named() {
        assert!(html(&[example(0)]).contains("No record of node 1"));
        assert!(!html(&[example(0), example(1)]).contains("No record"));
    }
}
