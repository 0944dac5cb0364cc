//! Figure 3: where the time went, one stacked bar for each node.

use serde_json::{Value, json};
use trellis::record::Breakdown;

use super::super::Reproduced;
use super::measure::{Request, Row};
use super::programs::Program;
use trellis_command::svg::{self, Anchor, Picture};

const LEFT: f64 = 64.0;
const TOP: f64 = 64.0;
const HEIGHT: f64 = 260.0;
/// The distance between bars, and the gaps between clusters and between programs.
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
    let (mut below, mut bottom) = (0.0, TOP + HEIGHT);
    for (part, (share, word)) in breakdown.shares().iter().zip(Breakdown::WORDS).enumerate() {
        below += share;
        let y = on_paper(TOP + HEIGHT * (1.0 - below));
        if y < bottom {
            let (name, nodes) = (row.program.name(), row.nodes);
            let tip = format!("{name}, node {node} of {nodes}, {word}: {:.1} %", share * 100.0);
            picture.rectangle(&svg::fill(part), (x + 1.0, y), (BAR - 2.0, bottom - y), 1.0, &tip);
            bottom = y;
        }
    }
}

/// Rounds as the picture does, so that one part ends where the next begins and all together are as tall as the bar.
fn on_paper(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

fn legend(picture: &mut Picture) {
    let mut x = LEFT;
    for (part, word) in Breakdown::WORDS.iter().enumerate() {
        picture.rectangle(&svg::fill(part), (x, 38.0), (11.0, 11.0), 1.0, "");
        picture.text("small", (x + 16.0, 48.0), Anchor::Start, word);
        x += 32.0 + 6.6 * word.chars().count() as f64;
    }
}

/// The programs, each once, in the order of the rows.
fn programs(rows: &[Row]) -> Vec<Program> {
    let mut programs: Vec<Program> = rows.iter().map(|row| row.program).collect();
    programs.dedup();
    programs
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::measure::tests::example;
    use super::*;
    use trellis::record::Counters;

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

    /// A part of a bar, as it is in the file.
    #[derive(Debug)]
    struct BarPart {
        class: String,
        x: f64,
        y: f64,
        width: f64,
        height: f64,
        tip: String,
    }

    fn parts(text: &str) -> Vec<BarPart> {
        let read = |line: &str| {
            let attribute = |name: &str| line.split_once(&format!(" {name}=\""))?.1.split('"').next();
            let number = |name: &str| attribute(name).and_then(|digits| digits.parse::<f64>().ok());
            let tip = line.split_once("<title>")?.1.strip_suffix("</title></rect>")?.to_owned();
            let class = attribute("class")?.to_owned();
            Some(BarPart {
                class,
                x: number("x")?,
                y: number("y")?,
                width: number("width")?,
                height: number("height")?,
                tip,
            })
        };
        text.lines().filter(|line| line.starts_with("<rect")).filter_map(read).collect()
    }

    #[test]
    fn the_parts_of_a_bar_stand_on_each_other_and_are_as_tall_as_the_bar() {
        // Shares that are no whole tenths of a pixel, and one that is too small to be seen.
        let uneven = |node: u64| Counters {
            program_ns: 7_000_000_000 + node * 333_333_333,
            fault_wait_ns: 1_111_111_111 * node,
            lock_wait_ns: 1_000_000_007,
            barrier_wait_ns: 777_777_777,
            handler_ns: 1000,
            overhead_ns: 123_456_789,
            ..Counters::default()
        };
        let uneven = Row { counters: (0..4).map(uneven).collect(), ..example(Program::Fft, 4) };
        let idle = Row { counters: vec![Counters::default()], ..example(Program::Ocean, 1) };
        let rows = [example(Program::Lu, 1), example(Program::Lu, 2), uneven, idle];
        let text = draw(&rows).into_file();
        let parts = parts(&text);
        let mut bars: BTreeMap<String, Vec<&BarPart>> = BTreeMap::new();
        for part in &parts {
            let (bar, what) = part.tip.rsplit_once(", ").expect("program, node, part");
            let word = what.split(':').next().expect("a word");
            let series = Breakdown::WORDS.iter().position(|other| *other == word).expect("a part's word");
            assert_eq!(part.class, svg::fill(series), "the colour of the legend: {part:?}");
            bars.entry(bar.to_owned()).or_default().push(part);
        }
        assert_eq!(bars.len(), 8, "{bars:?}");
        for (bar, parts) in &bars {
            let mut bottom = TOP + HEIGHT;
            for part in parts {
                assert!(part.height > 0.0 && (part.x, part.width) == (parts[0].x, BAR - 2.0), "{bar}: {part:?}");
                assert!((part.y + part.height - bottom).abs() < 1e-9, "{bar} ends at {bottom}: {part:?}");
                bottom = part.y;
            }
            assert_eq!(bottom, TOP, "{bar}");
            assert!((parts.iter().map(|part| part.height).sum::<f64>() - HEIGHT).abs() < 1e-9, "{bar}: {parts:?}");
        }
        let shares = rows[2].breakdowns()[3].shares();
        let shown = bars["fft, node 3 of 4"].iter().map(|part| part.height / HEIGHT);
        let seen = shares.iter().filter(|share| **share > 1e-3);
        assert!(shown.zip(seen).all(|(shown, share)| (shown - share).abs() < 0.1 / HEIGHT), "{shares:?}");
        let mut places: Vec<f64> = bars.values().map(|parts| parts[0].x).collect();
        places.sort_by(f64::total_cmp);
        assert!(places.windows(2).all(|pair| pair[0] + BAR - 2.0 < pair[1]), "bars stand apart: {places:?}");
    }
}
