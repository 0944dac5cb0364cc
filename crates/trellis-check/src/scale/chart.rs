//! A chart in characters of what sizes of clusters cost: one line for each protocol, one block for each size.
//!
//! Promises: the same rows give the same lines. Within a workload and a quantity the heights of all lines are
//! comparable, on a logarithmic scale. It must never draw a size that was not simulated.

use super::{Quantity, ScaleRow, Series, series};

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The width of a name.
const NAME: usize = 34;
/// The width of a figure.
const FIGURE: usize = 10;

/// The lines of the chart.
pub fn lines(rows: &[ScaleRow]) -> Vec<String> {
    let mut lines = Vec::new();
    for (workload, all) in series(rows) {
        let sizes = || all.iter().flat_map(|line| &line.rows).map(|row| row.nodes);
        let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        let blocks = all.iter().map(|line| line.rows.len()).max().unwrap_or(0);
        let column = blocks + 1 + FIGURE;
        lines.push(String::new());
        lines.push(format!("{workload}, {least} to {most} nodes, logarithmic, and the figure of the most nodes"));
        lines.push(format!("{:NAME$} {:>column$}  {:>column$}  {:>column$}", "", "messages/o", "bytes/o", "us/o"));
        let scales = Quantity::ALL.map(|quantity| Scale::of(&all, quantity));
        for line in &all {
            let drawn: Vec<String> = Quantity::ALL
                .iter()
                .zip(&scales)
                .map(|(&quantity, scale)| scale.draw(line, quantity, blocks))
                .collect();
            lines.push(format!("{:NAME$} {}", line.name, drawn.join("  ")));
        }
    }
    lines
}

/// The range of values of the blocks.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn of(all: &[Series<'_>], quantity: Quantity) -> Scale {
        let values = all.iter().flat_map(|line| &line.rows).map(|row| quantity.of(row)).filter(|value| *value > 0.0);
        values.fold(Scale { low: f64::INFINITY, high: 0.0 }, |Scale { low, high }, value| Scale {
            low: low.min(value),
            high: high.max(value),
        })
    }

    fn draw(&self, line: &Series<'_>, quantity: Quantity, blocks: usize) -> String {
        let drawn: String = line.rows.iter().map(|row| self.block(quantity.of(row))).collect();
        let last = line.rows.last().map_or(0.0, |row| quantity.of(row));
        let figure = if last < 100.0 { format!("{last:.2}") } else { format!("{last:.0}") };
        format!("{drawn:blocks$} {figure:>FIGURE$}")
    }

    fn block(&self, value: f64) -> char {
        let (height, whole) = ((value / self.low).ln(), (self.high / self.low).ln());
        // A scale of one value has no height, and zero lies below every scale.
        let part = if height > 0.0 && whole > 0.0 { height / whole } else { 0.0 };
        BLOCKS[((part * BLOCKS.len() as f64) as usize).min(BLOCKS.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::Workload;
    use trellis_cluster_protocol::coherence::Protocol;

    fn row(protocol: Option<Protocol>, workload: Workload, nodes: u16, value: f64) -> ScaleRow {
        ScaleRow {
            protocol,
            workload,
            nodes,
            operations: 1,
            messages_per_operation: value,
            bytes_per_operation: value * 1000.0,
            simulated_microseconds_per_operation: 5.0,
            steps: 1,
        }
    }

    #[test]
    fn every_protocol_has_a_line_and_the_largest_value_the_highest_block() {
        let (ivy, dynamic) = (Some(Protocol::IVY), Some(Protocol::DYNAMIC));
        let rows = [
            row(ivy, Workload::Hot, 8, 10.0),
            row(ivy, Workload::Hot, 2, 1.0),
            row(dynamic, Workload::Hot, 2, 0.0),
            row(dynamic, Workload::Hot, 8, 1000.0),
            row(None, Workload::Barrier, 2, 3.0),
        ];
        let drawn = lines(&rows);
        let line = |name: &str| drawn.iter().find(|line| line.starts_with(&format!("{name} "))).expect("a line");
        let words = |name: &str| line(name).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words("ivy")[1..], ["▁▃", "10.00", "▁▃", "10000", "▁▁", "5.00"]);
        assert_eq!(words("dynamic(forward)")[1..], ["▁█", "1000", "▁█", "1000000", "▁▁", "5.00"]);
        assert_eq!(words("barrier")[1..], ["▁", "3.00", "▁", "3000", "▁", "5.00"]);
        assert!(drawn.iter().any(|line| line.starts_with("hot, 2 to 8 nodes,")), "{drawn:?}");
    }
}
