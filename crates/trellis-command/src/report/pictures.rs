//! The pictures of a run: which node touched what and when, how long faults waited, what each phase took.

use trellis::record::{Counters, FaultKind, Record};

use crate::chart::{self, Axis, Plot, Series, Style};
use crate::svg::{self, Anchor, Picture};

/// Dots drawn per node; if there are more faults, they are thinned evenly.
const DOTS_MAX: usize = 3000;
/// Columns of the heat map.
const COLUMNS: usize = 96;

/// Faults over time and place, one colour per node.
pub fn access_pattern(records: &[Record], title: &str, note: &str) -> Picture {
    let Some((low, high)) = touched(records) else { return empty(title) };
    let page_bytes = records[0].page_bytes as f64;
    // Joining the cluster takes most of a short run and shows nothing.
    let (first_us, last_us) = fault_times_us(records);
    let milliseconds = |time_us: f64| (time_us - first_us) / 1000.0;
    let series = records
        .iter()
        .map(|record| Series {
            name: format!("node {}", record.node),
            points: thinned(record)
                .map(|fault| {
                    (
                        milliseconds(lag_us(records, record) + fault.time_us as f64),
                        ((fault.page - low) as f64 + 0.5) * page_bytes,
                    )
                })
                .collect(),
            style: Style::Dots,
        })
        .collect();
    Plot {
        title: title.to_owned(),
        across: Axis::linear(
            "time since the first fault (ms), the nodes' clocks aligned where they left",
            0.0,
            milliseconds(last_us),
        ),
        up: Axis::offsets("offset of the page", (high - low + 1) as f64 * page_bytes),
        series,
        note: note.to_owned(),
    }
    .draw()
}

/// How many faults each part of the touched range had, one row per node.
pub fn heat_map(records: &[Record]) -> Picture {
    let Some((low, high)) = touched(records) else { return empty("Faults per page") };
    let pages = high - low + 1;
    let per_column = pages.div_ceil(COLUMNS as u64);
    let columns = pages.div_ceil(per_column) as usize;
    let counts: Vec<Vec<u64>> = records.iter().map(|record| column_counts(record, low, per_column, columns)).collect();
    let most = counts.iter().flatten().copied().max().unwrap_or(1).max(1);
    let (left, top, row) = (84.0, 58.0, 26.0);
    let cell = 612.0 / columns as f64;
    let mut picture = Picture::new(720.0, top + row * records.len() as f64 + 56.0, "faults per page and node");
    let page_bytes = records[0].page_bytes as f64;
    picture.text("title", (left, 24.0), Anchor::Start, "Faults per page");
    let unit = format!(
        "{per_column} page{} per column; darkest column: {most} faults",
        if per_column == 1 { "" } else { "s" }
    );
    picture.text("small", (left, 44.0), Anchor::Start, &unit);
    for (index, (record, counts)) in records.iter().zip(&counts).enumerate() {
        let y = top + row * index as f64;
        picture.text("small", (left - 8.0, y + 16.0), Anchor::End, &format!("node {}", record.node));
        for (column, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            // The square root keeps single faults visible beside a heavily contended page.
            let opacity = 0.15 + 0.84 * (*count as f64 / most as f64).sqrt();
            let first = low + column as u64 * per_column;
            let tip = format!("node {}, from page {first}: {count} faults", record.node);
            let class = svg::fill(record.node);
            picture.rectangle(
                &class,
                (left + column as f64 * cell, y + 2.0),
                (cell.max(1.0), row - 4.0),
                opacity,
                &tip,
            );
        }
    }
    let floor = top + row * records.len() as f64 + 6.0;
    picture.line("axis", (left, floor), (left + 612.0, floor));
    let text = |offset: u64| chart::byte_text(offset as f64 * page_bytes);
    picture.text("small", (left, floor + 18.0), Anchor::Start, &format!("offset {}", text(low)));
    picture.text("small", (left + 612.0, floor + 18.0), Anchor::End, &text(high + 1));
    picture
}

/// How long faults waited, in steps of a factor of two.
pub fn wait_histogram(records: &[Record]) -> Picture {
    const BINS: usize = 24;
    let kinds = [
        (FaultKind::Read, "read"),
        (FaultKind::Write, "write"),
        (FaultKind::Upgrade, "upgrade"),
        (FaultKind::UpgradeOwner, "upgrade by the owner"),
    ];
    let mut bins = [[0u64; 4]; BINS];
    for fault in records.iter().flat_map(|record| &record.faults) {
        if let Some(kind) = kinds.iter().position(|(kind, _)| *kind == fault.kind) {
            let us = fault.wait_us_x10 / 10;
            bins[(u64::BITS - us.leading_zeros()).min(BINS as u32 - 1) as usize][kind] += 1;
        }
    }
    let total = |bin: usize| bins[bin].iter().sum::<u64>();
    let Some(last) = (0..BINS).rev().find(|bin| total(*bin) > 0) else { return empty("Waiting time of a fault") };
    let first = (0..BINS).find(|bin| total(*bin) > 0).unwrap_or(0);
    let most = (first..=last).map(total).max().unwrap_or(1) as f64;
    let (left, floor, height) = (84.0, 250.0, 180.0);
    let width = (612.0 / (last - first + 1) as f64).min(80.0);
    let mut picture = Picture::new(720.0, 310.0, "histogram of the waiting time of faults");
    picture.text("title", (left, 24.0), Anchor::Start, "Waiting time of a fault");
    for (index, (_, name)) in kinds.iter().enumerate() {
        let x = left + 90.0 * index as f64;
        picture.rectangle(&svg::fill(index), (x, 36.0), (11.0, 11.0), 1.0, "");
        picture.text("small", (x + 16.0, 46.0), Anchor::Start, name);
    }
    for (bin, counts) in bins.iter().enumerate().take(last + 1).skip(first) {
        let x = left + (bin - first) as f64 * width;
        let mut y = floor;
        for (index, (_, name)) in kinds.iter().enumerate().filter(|(index, _)| counts[*index] > 0) {
            let count = counts[index];
            let tall = count as f64 / most * height;
            y -= tall;
            let tip = format!("{name}, {} µs to {} µs: {count} faults", lower_us(bin), 1u64 << bin);
            picture.rectangle(&svg::fill(index), (x + 1.0, y), (width - 2.0, tall), 1.0, &tip);
        }
        picture.text("small", (x, floor + 18.0), Anchor::Middle, &lower_us(bin).to_string());
    }
    picture.line("axis", (left, floor), (left + 612.0, floor));
    picture.text("small", (left - 8.0, floor - height + 4.0), Anchor::End, &chart::number(most));
    picture.text("small", (left - 8.0, floor + 4.0), Anchor::End, "0");
    picture.text(
        "",
        (left + 306.0, floor + 44.0),
        Anchor::Middle,
        "waiting time (µs), each column twice the one before",
    );
    picture.upright_text("", (20.0, floor - height / 2.0), "faults");
    picture
}

/// The names of the phases, each once.
pub(super) fn phase_names(records: &[Record]) -> Vec<&str> {
    distinct(records.iter().flat_map(|record| record.phases.iter().map(|phase| phase.name.as_str())))
}

/// What a node counted in all phases of one name.
pub(super) fn counters_of_phase(record: &Record, name: &str) -> Counters {
    let phases = record.phases.iter().filter(|phase| phase.name == name);
    let sum = phases.fold(Counters::default(), |sum, phase| sum.plus(&phase.counters));
    Counters { program_threads: record.counters.program_threads, ..sum }
}

/// The phases of each node over time.
pub fn phases(records: &[Record]) -> Option<Picture> {
    let names = phase_names(records);
    if names.is_empty() {
        return None;
    }
    let last =
        records.iter().flat_map(|record| record.phases.iter().map(|phase| phase.end_us)).max().unwrap_or(1).max(1)
            as f64;
    let (left, top, row, width) = (84.0, 64.0, 30.0, 612.0);
    let mut picture = Picture::new(720.0, top + row * records.len() as f64 + 52.0, "phases of each node over time");
    picture.text("title", (left, 24.0), Anchor::Start, "Time per phase");
    let mut x = left;
    for (index, name) in names.iter().enumerate() {
        picture.rectangle(&svg::fill(index), (x, 38.0), (11.0, 11.0), 1.0, "");
        picture.text("small", (x + 16.0, 48.0), Anchor::Start, name);
        x += 32.0 + 6.6 * name.chars().count() as f64;
    }
    for (index, record) in records.iter().enumerate() {
        let y = top + row * index as f64;
        picture.text("small", (left - 8.0, y + 18.0), Anchor::End, &format!("node {}", record.node));
        for phase in &record.phases {
            let from = left + (lag_us(records, record) + phase.start_us as f64) / last * width;
            let wide = (phase.end_us.saturating_sub(phase.start_us)) as f64 / last * width;
            let class = svg::fill(names.iter().position(|name| *name == phase.name).unwrap_or(0));
            let milliseconds = phase.end_us.saturating_sub(phase.start_us) as f64 / 1000.0;
            let tip = format!("node {}, {}: {} ms", record.node, phase.name, chart::number(milliseconds));
            picture.rectangle(&class, (from, y + 3.0), (wide.max(1.0), row - 6.0), 1.0, &tip);
        }
    }
    let floor = top + row * records.len() as f64 + 6.0;
    picture.line("axis", (left, floor), (left + width, floor));
    picture.text("small", (left, floor + 18.0), Anchor::Start, "0");
    picture.text("small", (left + width, floor + 18.0), Anchor::End, &format!("{} ms", chart::number(last / 1000.0)));
    Some(picture)
}

/// A part of a bar: its name, and its length for a node.
pub type BarPart<'a> = (&'a str, &'a dyn Fn(&Record) -> f64);

/// Bars of one or more parts per node: the values of `parts`, in its order.
pub fn bars(records: &[Record], title: &str, unit: &str, parts: &[BarPart]) -> Picture {
    let (left, top, row, width) = (84.0, 64.0, 28.0, 520.0);
    let sum = |record: &Record| parts.iter().map(|(_, part)| part(record)).sum::<f64>();
    let most = records.iter().map(sum).fold(1e-9, f64::max);
    let mut picture = Picture::new(720.0, top + row * records.len() as f64 + 20.0, title);
    picture.text("title", (left, 24.0), Anchor::Start, title);
    let mut x = left;
    for (index, (name, _)) in parts.iter().enumerate() {
        picture.rectangle(&svg::fill(index), (x, 38.0), (11.0, 11.0), 1.0, "");
        picture.text("small", (x + 16.0, 48.0), Anchor::Start, name);
        x += 32.0 + 6.6 * name.chars().count() as f64;
    }
    for (index, record) in records.iter().enumerate() {
        let y = top + row * index as f64;
        picture.text("small", (left - 8.0, y + 17.0), Anchor::End, &format!("node {}", record.node));
        let mut from = left;
        for (series, (name, part)) in parts.iter().enumerate() {
            let value = part(record);
            let wide = value / most * width;
            if wide > 0.0 {
                let tip = format!("node {}, {name}: {} {unit}", record.node, chart::number(value));
                picture.rectangle(&svg::fill(series), (from, y + 3.0), (wide, row - 8.0), 1.0, &tip);
            }
            from += wide;
        }
        let label =
            if unit == "B" { chart::byte_text(sum(record)) } else { format!("{} {unit}", chart::number(sum(record))) };
        picture.text("small", (from + 6.0, y + 17.0), Anchor::Start, &label);
    }
    picture
}

/// The waiting times of a node's faults, ascending, in microseconds.
pub fn sorted_waits_us(record: &Record) -> Vec<f64> {
    let waiting = record.faults.iter().filter(|fault| fault.kind != FaultKind::Local);
    let mut waits: Vec<f64> = waiting.map(|fault| fault.wait_us_x10 as f64 / 10.0).collect();
    waits.sort_by(f64::total_cmp);
    waits
}

fn empty(title: &str) -> Picture {
    let mut picture = Picture::new(720.0, 80.0, title);
    picture.text("title", (84.0, 24.0), Anchor::Start, title);
    picture.text("small", (84.0, 50.0), Anchor::Start, "No fault was recorded.");
    picture
}

fn touched(records: &[Record]) -> Option<(u64, u64)> {
    let pages = || records.iter().flat_map(|record| record.faults.iter().map(|fault| fault.page));
    Some((pages().min()?, pages().max()?))
}

/// How much later a node's clock started than the longest record's. Nodes leave together, so their records end
/// together.
fn lag_us(records: &[Record], record: &Record) -> f64 {
    (records.iter().map(|record| record.seconds).fold(0.0, f64::max) - record.seconds) * 1e6
}

/// The first and the last fault on the common clock.
fn fault_times_us(records: &[Record]) -> (f64, f64) {
    let times = || {
        let of_node = |record| record_times(record).map(move |time_us| lag_us(records, record) + time_us);
        records.iter().flat_map(of_node)
    };
    (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max))
}

fn record_times(record: &Record) -> impl Iterator<Item = f64> {
    record.faults.iter().map(|fault| fault.time_us as f64)
}

fn thinned(record: &Record) -> impl Iterator<Item = &trellis::record::FaultRecord> {
    record.faults.iter().step_by(record.faults.len().div_ceil(DOTS_MAX).max(1))
}

fn column_counts(record: &Record, low: u64, per_column: u64, columns: usize) -> Vec<u64> {
    let mut counts = vec![0; columns];
    for fault in &record.faults {
        counts[((fault.page - low) / per_column) as usize] += 1;
    }
    counts
}

/// The lower end of a column of the histogram.
fn lower_us(bin: usize) -> u64 {
    if bin == 0 { 0 } else { 1 << (bin - 1) }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut known = Vec::new();
    for name in names {
        if !known.contains(&name) {
            known.push(name);
        }
    }
    known
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use trellis::record::{FaultRecord, Phase, VERSION};

    pub(crate) fn example(node: usize) -> Record {
        let fault =
            |time_us, page, kind| FaultRecord { time_us, page, offset: None, kind, wait_us_x10: 125, thread: 0 };
        Record {
            version: VERSION,
            node,
            nodes: 2,
            program: "psort<1>".to_owned(),
            page_bytes: 4096,
            region_bytes: 1 << 20,
            catch: "signal".to_owned(),
            link: "auto".to_owned(),
            ways: (0..2).map(|peer| if peer == node { String::new() } else { "shm".to_owned() }).collect(),
            coherence: "ivy".to_owned(),
            home: "manager".to_owned(),
            reserve: "lazy".to_owned(),
            security: "plain".to_owned(),
            seconds: 0.5,
            counters: Counters { read_faults: 2, write_faults: 1, bytes_in: 8192, ..Counters::default() },
            phases: vec![Phase { name: "sort".to_owned(), start_us: 0, end_us: 400, counters: Counters::default() }],
            areas: Vec::new(),
            choices: Vec::new(),
            faults_dropped: 0,
            faults: vec![
                fault(10, 3, FaultKind::Read),
                fault(20, 200, FaultKind::Write),
                fault(30, 3, FaultKind::Upgrade),
            ],
        }
    }

    #[test]
    fn every_fault_is_in_some_column() {
        let record = example(0);
        let counts = column_counts(&record, 3, 198u64.div_ceil(COLUMNS as u64), COLUMNS);
        assert_eq!(counts.iter().sum::<u64>(), 3);
        assert_eq!(counts[0], 2);
    }

    #[test]
    fn clocks_are_aligned_at_the_end() {
        let mut late = example(1);
        late.seconds = 0.2;
        let records = [example(0), late];
        assert_eq!(lag_us(&records, &records[0]), 0.0);
        assert!((lag_us(&records, &records[1]) - 300_000.0).abs() < 1.0);
        let (first, last) = fault_times_us(&records);
        assert_eq!(first, 10.0);
        assert!((last - 300_030.0).abs() < 1.0, "{last}");
    }

    #[test]
    fn pictures_of_nothing_say_so() {
        let mut record = example(0);
        record.faults.clear();
        record.phases.clear();
        let records = [record];
        assert!(heat_map(&records).into_inline().contains("No fault was recorded"));
        assert!(access_pattern(&records, "t", "").into_inline().contains("No fault was recorded"));
        assert!(wait_histogram(&records).into_inline().contains("No fault was recorded"));
        assert!(phases(&records).is_none());
    }

    #[test]
    fn the_heat_map_names_nodes_and_counts() {
        let text = heat_map(&[example(0), example(1)]).into_inline();
        assert!(text.contains("node 1, from page 3: 2 faults"), "{text}");
    }
}
