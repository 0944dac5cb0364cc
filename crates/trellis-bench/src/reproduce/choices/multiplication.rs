//! Table 1 and figure 1: a product of matrices with three loops, with shared memory (threads of one process) and with
//! distributed memory (nodes), with the basic protocol and with locked rows.

use serde_json::{Value, json};

use super::super::{Reproduced, Settings};
use crate::bench::figures::p50;
use crate::bench::matmul::{self, MatmulTask, Order};
use trellis_command::chart::{Axis, Plot, Series, Style};
use trellis_command::exit::Failure;

/// The paper's column heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// Processes of one machine; here threads of one process.
    Shared,
    /// The paper's basic protocol.
    Basic,
    /// The basic protocol, with the pages of a row locked while it is computed.
    Locking,
}

impl Memory {
    const ALL: [Memory; 3] = [Memory::Shared, Memory::Basic, Memory::Locking];

    fn name(self) -> &'static str {
        match self {
            Memory::Shared => "shared",
            Memory::Basic => "dynamic(forward)",
            Memory::Locking => "lock(dynamic(forward))",
        }
    }
}

/// One line of the table.
struct Row {
    size: usize,
    order: Order,
    memory: Memory,
    /// Nodes, or threads for shared memory.
    processes: usize,
    seconds: f64,
    /// Relative to one process of the same kind.
    speedup: f64,
    pages: f64,
    messages: f64,
}

/// The paper's seconds for 256x256: processes, then shared, basic and locking, first for kij and then for ijk.
const PAPER: [(usize, [f64; 3], [f64; 3]); 3] = [
    (2, [89.2, 91.9, 90.98], [176.93, 186.71, 181.01]),
    (4, [44.56, 47.45, 47.36], [88.12, 96.47, 92.23]),
    (8, [45.50, 25.66, 24.96], [90.18, 51.92, 51.03]),
];
const PAPER_SIZE: usize = 256;

/// The paper's value for a line of ours.
fn paper_seconds(size: usize, order: Order, memory: Memory, processes: usize) -> Option<f64> {
    let (_, kij, ijk) = PAPER.iter().find(|row| row.0 == processes && size == PAPER_SIZE)?;
    Some(if order == Order::Kij { kij } else { ijk }[memory as usize])
}

/// Table 1: matrix multiplication.
pub(super) fn table1(settings: &mut Settings, sizes: &[usize], processes: &[usize]) -> Result<Reproduced, Failure> {
    let rows = measure(settings, "table 1", sizes, processes)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Reproduced {
        title: "Table 1: matrix multiplication",
        table: table_of(&rows),
        remark: format!(
            "Median of {} runs, from the filled factors to the whole product; every fetch is in it. The speed-up is over \
             one process with the same protocol; the paper prints none. \"shared\" is threads of one process. This \
             machine has {cores} cores: more processes than that cannot be faster.",
            settings.runs
        ),
        json: json!({ "paper": paper_json(), "rows": json_of(&rows), "runs": settings.runs, "cores": cores }),
        pictures: Vec::new(),
    })
}

/// Figure 1: speed-up and comparative performance, 256x256.
pub(super) fn figure1(settings: &mut Settings) -> Result<Reproduced, Failure> {
    let rows = measure(settings, "figure 1", &[PAPER_SIZE], &[1, 2, 4, 8])?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let note = format!("256 x 256, median of {} runs on a machine with {cores} cores.", settings.runs);
    let high = |of: fn(&Row) -> f64| rows.iter().map(of).fold(0.0, f64::max);
    let plot = |title: &str, up: &str, of: fn(&Row) -> f64| {
        let across = Axis::counting("processes", 1, 8);
        let up = Axis::linear(up, 0.0, high(of));
        Plot { title: title.to_owned(), across, up, series: series(&rows, of), note: note.clone() }.draw()
    };
    let pictures = vec![
        (
            "figure1-time.svg".to_owned(),
            plot("Figure 1: comparative performance", "time (ms)", |row| row.seconds * 1e3),
        ),
        ("figure1-speedup.svg".to_owned(), plot("Figure 1: speed-up", "one process / all", |row| row.speedup)),
    ];
    Ok(Reproduced {
        title: "Figure 1: speed-up and comparative performance, 256x256",
        table: table_of(&rows),
        remark: format!("{note} The paper's figure has no numbers but those of its table 1."),
        json: json!({ "paper": "plot", "rows": json_of(&rows), "runs": settings.runs, "cores": cores }),
        pictures,
    })
}

/// Measures every combination; the runs of one size take turns, so that a disturbance affects all of them.
fn measure(settings: &mut Settings, what: &str, sizes: &[usize], processes: &[usize]) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for &size in sizes {
        let mut cells = Vec::new();
        for order in [Order::Kij, Order::Ijk] {
            for memory in Memory::ALL {
                cells.extend(processes.iter().map(|&processes| (order, memory, processes, Vec::new())));
            }
        }
        for run in 0..settings.runs {
            for (order, memory, processes, found) in &mut cells {
                settings.progress.step(&format!(
                    "{what}: {size} x {size} {}, {}, {processes} processes, run {} of {}",
                    order.name(),
                    memory.name(),
                    run + 1,
                    settings.runs
                ));
                found.push(one(settings, size, *order, *memory, *processes)?);
            }
        }
        let median = |found: &[matmul::Product], of: fn(&matmul::Product) -> f64| p50(found.iter().map(of));
        let mut one_process = f64::NAN;
        for (order, memory, processes, found) in &cells {
            let seconds = median(found, |one| one.seconds);
            // Each list of processes begins with one.
            if *processes == 1 {
                one_process = seconds;
            }
            rows.push(Row {
                size,
                order: *order,
                memory: *memory,
                processes: *processes,
                seconds,
                speedup: one_process / seconds,
                pages: median(found, |one| one.pages),
                messages: median(found, |one| one.messages),
            });
        }
    }
    Ok(rows)
}

fn one(
    settings: &Settings,
    size: usize,
    order: Order,
    memory: Memory,
    processes: usize,
) -> Result<matmul::Product, Failure> {
    let (nodes, threads) = if memory == Memory::Shared { (1, processes) } else { (processes, 1) };
    let task = MatmulTask { size, order, lock: memory == Memory::Locking, threads };
    let coherence = if memory == Memory::Shared { Memory::Basic.name() } else { memory.name() };
    matmul::product(nodes, &task, &[("coherence", coherence.to_owned())], settings.common)
}

fn table_of(rows: &[Row]) -> Vec<Vec<String>> {
    let heads =
        ["size", "order", "memory", "processes", "paper, s", "here, s", "speed-up", "pages fetched", "messages"];
    let line = |row: &Row| {
        let paper = paper_seconds(row.size, row.order, row.memory, row.processes);
        vec![
            row.size.to_string(),
            row.order.name().to_owned(),
            row.memory.name().to_owned(),
            row.processes.to_string(),
            paper.map_or(String::new(), |seconds| format!("{seconds:.2}")),
            format!("{:.4}", row.seconds),
            format!("{:.2}", row.speedup),
            format!("{:.0}", row.pages),
            format!("{:.0}", row.messages),
        ]
    };
    std::iter::once(heads.map(str::to_owned).to_vec()).chain(rows.iter().map(line)).collect()
}

fn json_of(rows: &[Row]) -> Vec<Value> {
    let line = |row: &Row| {
        json!({
            "size": row.size, "order": row.order.name(), "protocol": row.memory.name(), "nodes": row.processes,
            "seconds": row.seconds, "speedup": row.speedup, "pages_in": row.pages, "messages": row.messages,
            "threads_of_one_process": row.memory == Memory::Shared,
            "paper_seconds": paper_seconds(row.size, row.order, row.memory, row.processes),
        })
    };
    rows.iter().map(line).collect()
}

fn paper_json() -> Value {
    let line = |(processes, kij, ijk): &(usize, [f64; 3], [f64; 3])| {
        json!({ "processes": processes, "size": PAPER_SIZE, "kij_seconds": kij, "ijk_seconds": ijk,
                "of": Memory::ALL.map(Memory::name) })
    };
    PAPER.iter().map(line).collect()
}

/// One line for each order and kind of memory.
fn series(rows: &[Row], of: fn(&Row) -> f64) -> Vec<Series> {
    let mut all = Vec::new();
    for order in [Order::Kij, Order::Ijk] {
        for (memory, word) in Memory::ALL.into_iter().zip(["shared", "basic", "locking"]) {
            let own = rows.iter().filter(|row| row.order == order && row.memory == memory);
            let style = if order == Order::Kij { Style::Line } else { Style::Dashed };
            all.push(Series {
                name: format!("{word} {}", order.name()),
                points: own.map(|row| (row.processes as f64, of(row))).collect(),
                style,
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_numbers_are_for_its_own_size_only() {
        assert_eq!(paper_seconds(256, Order::Kij, Memory::Shared, 2), Some(89.2));
        assert_eq!(paper_seconds(256, Order::Ijk, Memory::Locking, 8), Some(51.03));
        assert_eq!(paper_seconds(512, Order::Ijk, Memory::Basic, 2), None);
        assert_eq!(paper_seconds(256, Order::Ijk, Memory::Basic, 1), None);
    }

    #[test]
    fn a_row_has_what_the_reference_promises() {
        let row = Row {
            size: 512,
            order: Order::Ijk,
            memory: Memory::Basic,
            processes: 2,
            seconds: 0.5,
            speedup: 1.9,
            pages: 700.0,
            messages: 900.0,
        };
        let json = json_of(&[row]).remove(0);
        for (field, value) in [("size", json!(512)), ("order", json!("ijk")), ("protocol", json!("dynamic(forward)"))] {
            assert_eq!(json[field], value);
        }
        assert_eq!(
            (json["nodes"].as_u64(), json["seconds"].as_f64(), json["speedup"].as_f64()),
            (Some(2), Some(0.5), Some(1.9))
        );
    }
}
