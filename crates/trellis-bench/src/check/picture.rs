//! The cost of operations on clusters of different sizes as one picture: for each workload a row of panels, with
//! messages, bytes and simulated time.
//!
//! Promises: each protocol of a row has one line, in the colours and dashes of the legend; both axes are logarithmic
//! and labelled so. It must never draw more between two sizes than the line that joins them.

use trellis_check::scale::{Quantity, ScaleRow, Series, Workload, series};

use trellis_command::chart::number;
use trellis_command::svg::{self, Anchor, COLOURS, Picture};

const PANEL: (f64, f64) = (260.0, 190.0);
/// Left of and above each panel.
const MARGIN: (f64, f64) = (72.0, 40.0);
const RIGHT: f64 = 24.0;
/// Below each row: the ticks and the title of the axis.
const BELOW: f64 = 44.0;
const HEAD: f64 = 44.0;
const LEGEND_LINE: f64 = 18.0;
const LEGEND_COLUMN: f64 = 240.0;

/// The picture of all rows.
pub(super) fn picture_of(rows: &[ScaleRow]) -> Picture {
    let workloads = series(rows);
    let names = names(&workloads);
    let width = 3.0 * (MARGIN.0 + PANEL.0) + RIGHT;
    let columns = ((width - MARGIN.0) / LEGEND_COLUMN).floor() as usize;
    let top = HEAD + LEGEND_LINE * names.len().div_ceil(columns) as f64;
    let row_height = MARGIN.1 + PANEL.1 + BELOW;
    let height = top + row_height * workloads.len() as f64 + 8.0;
    let title = "What an operation costs, by the number of nodes (simulated)";
    let mut picture = Picture::new(width, height, title);
    picture.text("title", (MARGIN.0, 26.0), Anchor::Start, title);
    for (index, name) in names.iter().enumerate() {
        let at = (MARGIN.0 + LEGEND_COLUMN * (index % columns) as f64, HEAD + LEGEND_LINE * (index / columns) as f64);
        picture.path(&class(index), &[at, (at.0 + 26.0, at.1)]);
        picture.text("small", (at.0 + 32.0, at.1 + 4.0), Anchor::Start, name);
    }
    for (line, (workload, all)) in workloads.iter().enumerate() {
        for (column, quantity) in Quantity::ALL.into_iter().enumerate() {
            let corner = (MARGIN.0 + (MARGIN.0 + PANEL.0) * column as f64, top + MARGIN.1 + row_height * line as f64);
            let panel = Panel::new(corner, all, quantity);
            panel.draw_axes(&mut picture, *workload);
            for series in all {
                let index = names.iter().position(|name| *name == series.name).unwrap_or(0);
                panel.draw_series(&mut picture, index, series);
            }
        }
    }
    picture
}

/// The name of everything that has a line, each once.
fn names(workloads: &[(Workload, Vec<Series<'_>>)]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for series in workloads.iter().flat_map(|(_, all)| all) {
        if !names.contains(&series.name) {
            names.push(series.name.clone());
        }
    }
    names
}

/// Colours repeat with dashes.
fn class(index: usize) -> String {
    let dash = if (index / COLOURS) % 2 == 1 { " dash" } else { "" };
    format!("{}{dash}", svg::stroke(index))
}

fn title(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Messages => "messages per operation",
        Quantity::Bytes => "bytes per operation",
        Quantity::Microseconds => "simulated µs per operation",
    }
}

/// One pair of axes.
struct Panel {
    corner: (f64, f64),
    quantity: Quantity,
    /// The sizes, each once.
    nodes: Vec<u16>,
    /// Powers of ten.
    low: i32,
    high: i32,
}

impl Panel {
    fn new(corner: (f64, f64), all: &[Series<'_>], quantity: Quantity) -> Panel {
        let rows = || all.iter().flat_map(|series| &series.rows);
        let mut nodes: Vec<u16> = rows().map(|row| row.nodes).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let values = || rows().map(|row| quantity.of(row)).filter(|value| *value > 0.0).map(f64::log10);
        let low = values().fold(f64::INFINITY, f64::min);
        let high = values().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low.is_finite() { (low.floor() as i32, high.ceil() as i32) } else { (-1, 0) };
        Panel { corner, quantity, nodes, low, high: high.max(low + 1) }
    }

    /// The position of a number of nodes; a single one is in the middle.
    fn across(&self, nodes: u16) -> f64 {
        let first = f64::from(*self.nodes.first().unwrap_or(&1)).log2();
        let last = f64::from(*self.nodes.last().unwrap_or(&1)).log2();
        let part = if last > first { (f64::from(nodes).log2() - first) / (last - first) } else { 0.5 };
        self.corner.0 + part * PANEL.0
    }

    /// The position of a value; zero, which has no logarithm, is on the floor.
    fn up(&self, value: f64) -> f64 {
        let power = if value > 0.0 { value.log10() } else { f64::from(self.low) };
        let part = (power - f64::from(self.low)) / f64::from(self.high - self.low);
        self.corner.1 + (1.0 - part.clamp(0.0, 1.0)) * PANEL.1
    }

    fn draw_axes(&self, picture: &mut Picture, workload: Workload) {
        let ((left, ceiling), (right, floor)) = (self.corner, (self.corner.0 + PANEL.0, self.corner.1 + PANEL.1));
        picture.text("", (left, ceiling - 10.0), Anchor::Start, &format!("{workload}: {}", title(self.quantity)));
        for power in self.low..=self.high {
            let y = self.up(10f64.powi(power));
            picture.line("rule", (left, y), (right, y));
            picture.text("small", (left - 6.0, y + 4.0), Anchor::End, &number(10f64.powi(power)));
        }
        let mut free_from = f64::NEG_INFINITY;
        for &nodes in &self.nodes {
            let x = self.across(nodes);
            picture.line("axis", (x, floor), (x, floor + 4.0));
            // Labels of sizes that lie close together would overlap.
            let label = nodes.to_string();
            let half = 3.5 * label.len() as f64;
            if x - half >= free_from {
                picture.text("small", (x, floor + 16.0), Anchor::Middle, &label);
                free_from = x + half + 2.0;
            }
        }
        picture.line("axis", (left, floor), (right, floor));
        picture.line("axis", (left, ceiling), (left, floor));
        let middle = (left + right) / 2.0;
        picture.text("small", (middle, floor + 32.0), Anchor::Middle, "nodes (both axes logarithmic)");
    }

    fn draw_series(&self, picture: &mut Picture, index: usize, series: &Series<'_>) {
        let at = |row: &&ScaleRow| (self.across(row.nodes), self.up(self.quantity.of(row)));
        picture.path(&class(index), &series.rows.iter().map(at).collect::<Vec<_>>());
        for row in &series.rows {
            let tip = format!("{}, {} nodes: {}", series.name, row.nodes, number(self.quantity.of(row)));
            picture.dot(&svg::fill(index), at(row), 2.5, &tip);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trellis_check::scale::{Options, scale};
    use trellis_cluster_protocol::coherence::Protocol;

    #[test]
    fn every_protocol_has_a_line_in_every_panel() {
        let options = Options { nodes: vec![2, 4], operations: 40, ..Options::default() };
        let rows = scale(&options, &mut |_| ()).expect("simulates");
        let file = picture_of(&rows).into_file();
        let lines = |class: &str| file.matches(&format!(r#"<polyline class="{class}""#)).count();
        for (index, protocol) in Protocol::all().iter().enumerate() {
            // One in the legend, and one for each quantity of the two workloads that touch pages.
            assert_eq!(lines(&class(index)), 1 + 3 * 2, "{protocol}");
            assert!(file.contains(&format!(">{}</text>", svg::escape(&protocol.to_string()))), "{protocol}");
            assert!(file.contains(&format!("{protocol}, 4 nodes: ")), "{protocol}");
        }
        for (index, name) in (Protocol::all().len()..).zip(["barrier", "lock"]) {
            assert_eq!(lines(&class(index)), 1 + 3, "{name}");
            assert!(file.contains(&format!("{name}: simulated µs per operation")), "{name}");
        }
        assert!(!file.contains("NaN") && !file.contains("inf"), "every place is a number");
    }

    #[test]
    fn one_size_and_no_messages_can_be_drawn() {
        let row = ScaleRow {
            protocol: Some(Protocol::IVY),
            workload: Workload::Hot,
            nodes: 2,
            operations: 1,
            messages_per_operation: 0.0,
            bytes_per_operation: 0.0,
            simulated_microseconds_per_operation: 10.0,
            steps: 1,
        };
        let panel = Panel::new((0.0, 0.0), &series(std::slice::from_ref(&row))[0].1, Quantity::Messages);
        assert_eq!((panel.across(2), panel.up(0.0)), (PANEL.0 / 2.0, PANEL.1));
        let file = picture_of(&[row]).into_file();
        assert!(!file.contains("NaN") && !file.contains("inf"), "{file}");
    }
}
