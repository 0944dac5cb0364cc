//! Figure 3: where the time went, one stacked bar for each node.

use serde_json::{Value, json};
use trellis::record::Breakdown;

use super::super::Reproduced;
use super::measure::{Request, Row};
use super::programs::Program;
use crate::svg::{self, Anchor, Picture};

const LEFT: f64 = 64.0;
const TOP: f64 = 64.0;
const HEIGHT: f64 = 260.0;
/// From one bar to the next, between clusters, and between programs.
const BAR: f64 = 15.0;
const CLUSTER_GAP: f64 = 10.0;
const PROGRAM_GAP: f64 = 26.0;

/// Figure 3: normalised execution time breakdown.
pub(super) fn figure3(request: &Request, rows: &[Row]) -> Reproduced {
    let heads = ["program", "nodes", "node"].into_iter().chain(Breakdown::WORDS).map(str::to_owned).collect();
    let mut table = vec![heads];
    for row in rows {
        for (node, breakdown) in row.breakdowns().iter().enumerate() {
            let mut line = vec![row.program.name().to_owned(), row.nodes.to_string(), node.to_string()];
            line.extend(breakdown.shares().iter().map(|share| format!("{:.1} %", share * 100.0)));
            table.push(line);
        }
    }
    let most = rows.iter().map(Row::measuring_share).fold(0.0, f64::max);
    Reproduced {
        title: "Figure 3: normalised execution time breakdown",
        table,
        remark: format!(
            "Shares of the part that is timed, in the run with the median time of {}. Measuring them took at most {:.2} % \
             of it. The paper's figure has no numbers.",
            request.runs,
            most * 100.0
        ),
        json: json!({ "paper": "plot", "parts": Breakdown::NAMES, "bars": bars(rows), "measuring_share_max": most }),
        pictures: vec![("figure3.svg".to_owned(), draw(rows))],
    }
}

fn bars(rows: &[Row]) -> Vec<Value> {
    let of_row = |row: &Row| {
        let (program, nodes) = (row.program.name(), row.nodes);
        let bar = |(node, breakdown): (usize, &Breakdown)| {
            let shares = breakdown.shares();
            json!({ "program": program, "nodes": nodes, "node": node, "shares": shares })
        };
        row.breakdowns().iter().enumerate().map(bar).collect::<Vec<_>>()
    };
    rows.iter().flat_map(of_row).collect()
}

fn draw(rows: &[Row]) -> Picture {
    let bars: usize = rows.iter().map(|row| row.nodes).sum();
    let wide = bars as f64 * BAR + rows.len() as f64 * CLUSTER_GAP + programs(rows).len() as f64 * PROGRAM_GAP;
    let width = (LEFT + wide).max(640.0);
    let floor = TOP + HEIGHT;
    let mut picture = Picture::new(width, floor + 64.0, "execution time breakdown, one stacked bar for each node");
    picture.text("title", (LEFT, 24.0), Anchor::Start, "Figure 3: normalised execution time breakdown");
    legend(&mut picture);
    for percent in [0, 20, 40, 60, 80, 100] {
        let y = floor - HEIGHT * f64::from(percent) / 100.0;
        picture.line("rule", (LEFT, y), (width - 8.0, y));
        picture.text("small", (LEFT - 8.0, y + 4.0), Anchor::End, &format!("{percent} %"));
    }
    let mut x = LEFT + PROGRAM_GAP / 2.0;
    for program in programs(rows) {
        let begin = x;
        for row in rows.iter().filter(|row| row.program == program) {
            let cluster = x;
            for (node, breakdown) in row.breakdowns().iter().enumerate() {
                bar(&mut picture, x, (row, node), breakdown);
                x += BAR;
            }
            picture.text("small", ((cluster + x) / 2.0, floor + 18.0), Anchor::Middle, &row.nodes.to_string());
            x += CLUSTER_GAP;
        }
        picture.text("", ((begin + x - CLUSTER_GAP) / 2.0, floor + 38.0), Anchor::Middle, program.name());
        x += PROGRAM_GAP;
    }
    picture.line("axis", (LEFT, floor), (width - 8.0, floor));
    picture.text("small", (LEFT, floor + 56.0), Anchor::Start, "nodes of the cluster, and one bar for each of them");
    picture
}

fn bar(picture: &mut Picture, x: f64, (row, node): (&Row, usize), breakdown: &Breakdown) {
    let mut y = TOP + HEIGHT;
    for (part, (share, word)) in breakdown.shares().iter().zip(Breakdown::WORDS).enumerate() {
        let tall = share * HEIGHT;
        y -= tall;
        if *share > 0.0 {
            let (name, nodes) = (row.program.name(), row.nodes);
            let tip = format!("{name}, node {node} of {nodes}, {word}: {:.1} %", share * 100.0);
            picture.rectangle(&svg::fill(part), (x + 1.0, y), (BAR - 2.0, tall), 1.0, &tip);
        }
    }
}

fn legend(picture: &mut Picture) {
    let mut x = LEFT;
    for (part, word) in Breakdown::WORDS.iter().enumerate() {
        picture.rectangle(&svg::fill(part), (x, 38.0), (11.0, 11.0), 1.0, "");
        picture.text("small", (x + 16.0, 48.0), Anchor::Start, word);
        x += 32.0 + 6.6 * word.chars().count() as f64;
    }
}

/// Each once, in the order of the rows.
fn programs(rows: &[Row]) -> Vec<Program> {
    let mut programs: Vec<Program> = rows.iter().map(|row| row.program).collect();
    programs.dedup();
    programs
}

#[cfg(test)]
mod tests {
    use super::super::measure::tests::example;
    use super::*;

    #[test]
    fn every_node_has_a_bar_and_every_part_a_word() {
        let rows = [example(Program::Lu, 1), example(Program::Lu, 2), example(Program::Radix, 2)];
        let text = draw(&rows).into_file();
        for part in
            ["lu, node 1 of 2, Barrier: 10.0 %", "radix, node 0 of 2, Page Fetch: 10.0 %", "Handler", "Overhead"]
        {
            assert!(text.contains(part), "{part} is missing");
        }
        assert_eq!(bars(&rows).len(), 5);
        assert_eq!(programs(&rows), [Program::Lu, Program::Radix]);
    }
}
