//! Figures 4 to 7 of the libivy paper: thrashing, access patterns, and the scaling of psort and pdot.

use serde_json::{Value, json};

use super::{Reproduced, Settings};
use crate::bench::cluster::ClusterPlan;
use crate::bench::figures::p50;
use crate::bench::node::Task;
use crate::bench::thrash;
use crate::bench::workloads::{DotTask, SortTask};
use trellis_command::chart::{Axis, Plot, Series, Style};
use trellis_command::exit::{self, Failure};
use trellis_command::scratch::Scratch;
use trellis_command::svg::Picture;

/// Figure 4: time for some nodes to count to 50 in turns.
pub(super) fn figure4(settings: &mut Settings) -> Result<Reproduced, Failure> {
    const COUNT: u64 = 50;
    let mut points = Vec::new();
    let mut table = vec![["nodes", "paper", "here, ms (median)"].map(str::to_owned).to_vec()];
    for nodes in 1..=8 {
        let mut seconds = Vec::new();
        for run in 0..settings.runs {
            settings.progress.step(&format!("figure 4: {nodes} nodes, run {} of {}", run + 1, settings.runs));
            seconds.extend(thrash::figures(nodes, COUNT, settings.common)?.get("seconds"));
        }
        let median = p50(seconds);
        let paper = match nodes {
            1..=4 => "plot",
            5 | 6 => "timed out",
            _ => "not run",
        };
        table.push(vec![nodes.to_string(), paper.to_owned(), format!("{:.2}", median * 1e3)]);
        points.push((nodes as f64, median));
    }
    let json = json!({
        "paper": { "timed_out_nodes": [5, 6] },
        "ours": { "nodes": column(&points, 0), "seconds_p50": column(&points, 1), "count": COUNT, "runs": settings.runs },
    });
    let (low, high) = range(&points);
    let picture = Plot {
        title: "Figure 4: counting to 50 in turns".to_owned(),
        across: Axis::counting("nodes", 1, 8),
        up: Axis::logarithmic("time to the last increment (s)", low, high),
        series: vec![line("Trellis", points)],
        note: "The paper's run (a plot without numbers) timed out with 5 and 6 nodes.".to_owned(),
    }
    .draw();
    Ok(Reproduced {
        title: "Figure 4: shared memory thrashing, time to count to 50",
        table,
        remark: "The paper shows 1 to 4 nodes as a plot in seconds and reports a time-out for 5 and 6.".to_owned(),
        json,
        pictures: vec![("figure4.svg".to_owned(), picture)],
    })
}

/// Figure 5: which node touches which memory, drawn from the faults that the run recorded.
pub(super) fn figure5(settings: &mut Settings) -> Result<Reproduced, Failure> {
    const NODES: usize = 4;
    let sort = |elements| Task::Sort(SortTask { elements, prefetch: false });
    let dot = |elements| Task::Dot(DotTask { elements, prefetch: false });
    let cases = [
        ("figure5a.svg", "Figure 5a: psort, 1024 elements, 4 nodes", sort(1024)),
        ("figure5b.svg", "Figure 5b: pdot, 2 x 512 elements, 4 nodes", dot(512)),
        ("figure5a-large.svg", "Figure 5a at a size where pages show: psort, 131072 elements", sort(131_072)),
        ("figure5b-large.svg", "Figure 5b at a size where pages show: pdot, 2 x 65536 elements", dot(65_536)),
    ];
    let mut table = vec![["run", "pages touched", "faults", "pages of one worker only"].map(str::to_owned).to_vec()];
    let mut json = json!({ "paper": "plots", "ours": {} });
    let mut pictures = Vec::new();
    for (file, title, task) in cases {
        settings.progress.step(title);
        let records = recorded(settings, NODES, &task)?;
        let (pages, alone, faults) = sharing(&records);
        table.push(vec![title.to_owned(), pages.to_string(), faults.to_string(), alone.to_string()]);
        json["ours"][file.trim_end_matches(".svg")] =
            json!({ "pages": pages, "faults": faults, "pages_of_one_node": alone });
        let note = "Each dot is a page fault of 4 KiB. The paper traced every access of every byte; a fault is a page's first.";
        pictures.push((file.to_owned(), trellis_command::report::pictures::access_pattern(&records, title, note)));
    }
    Ok(Reproduced {
        title: "Figure 5: distribution of accesses over the nodes",
        table,
        remark:
            "Pages are 4 KiB, so the paper's sizes fill two or three of them; the larger runs show the pattern. Node 0 \
                 fills the memory and collects the results, so it touches every page; the last column leaves it out."
                .to_owned(),
        json,
        pictures,
    })
}

/// Runs a task with a record and returns the records.
fn recorded(settings: &Settings, nodes: usize, task: &Task) -> Result<Vec<trellis::record::Record>, Failure> {
    let scratch = Scratch::new("reproduce")?;
    let more = [("record", scratch.path().display().to_string()), ("prefetch_pages_max", "1".to_owned())];
    run_task(settings, nodes, task, &more)?;
    trellis_command::report::read_records(scratch.path())
}

/// The number of pages touched, of pages that only one of the nodes 1… touched, and of faults.
fn sharing(records: &[trellis::record::Record]) -> (usize, usize, usize) {
    let mut nodes_of = std::collections::BTreeMap::<u64, std::collections::BTreeSet<usize>>::new();
    for record in records {
        for fault in &record.faults {
            let nodes = nodes_of.entry(fault.page).or_default();
            if record.node > 0 {
                nodes.insert(record.node);
            }
        }
    }
    let alone = nodes_of.values().filter(|nodes| nodes.len() <= 1).count();
    (nodes_of.len(), alone, records.iter().map(|record| record.faults.len()).sum())
}

/// Figure 6: psort of 262144 elements on 1 to 6 nodes.
pub(super) fn figure6(settings: &mut Settings) -> Result<Reproduced, Failure> {
    let task = Task::Sort(SortTask { elements: 262_144, prefetch: true });
    scaling(
        settings,
        &task,
        "Figure 6: psort of 262144 elements",
        "figure6.svg",
        "The paper's workers sort in quadratic time (a plot; its axis reaches 2000 s), ours in n log n.",
    )
}

/// Figure 7: pdot of 32768 elements on 1 to 6 nodes.
pub(super) fn figure7(settings: &mut Settings) -> Result<Reproduced, Failure> {
    let task = Task::Dot(DotTask { elements: 32_768, prefetch: true });
    scaling(
        settings,
        &task,
        "Figure 7: pdot of 2 x 32768 elements",
        "figure7.svg",
        "The paper gives a plot whose axis reaches 140 s.",
    )
}

fn scaling(
    settings: &mut Settings,
    task: &Task,
    title: &'static str,
    file: &str,
    remark: &str,
) -> Result<Reproduced, Failure> {
    let head =
        ["nodes", "paper", "worker, ms (mean of nodes)", "whole, ms", "whole / 1 node"].map(str::to_owned).to_vec();
    let mut table = vec![head];
    let (mut worker_points, mut whole_points) = (Vec::new(), Vec::new());
    for nodes in 1..=6 {
        let (mut workers, mut wholes) = (Vec::new(), Vec::new());
        for run in 0..settings.runs {
            settings.progress.step(&format!("{title}: {nodes} nodes, run {} of {}", run + 1, settings.runs));
            let found = run_task(settings, nodes, task, &[])?;
            let seconds = |node: &Value, name: &str| node[name].as_f64().unwrap_or(f64::NAN);
            workers.push(found.iter().map(|node| seconds(node, "worker_seconds")).sum::<f64>() / nodes as f64 * 1e3);
            wholes.push(seconds(&found[0], "whole_seconds") * 1e3);
        }
        let (worker, whole) = (p50(workers), p50(wholes));
        worker_points.push((nodes as f64, worker));
        whole_points.push((nodes as f64, whole));
        let ratio = format!("{:.2}", whole / whole_points[0].1);
        table.push(vec![nodes.to_string(), "plot".to_owned(), format!("{worker:.2}"), format!("{whole:.2}"), ratio]);
    }
    let json = json!({
        "paper": "plot",
        "ours": {
            "nodes": column(&worker_points, 0), "worker_ms_p50": column(&worker_points, 1),
            "whole_ms_p50": column(&whole_points, 1), "runs": settings.runs,
            "whole_2_nodes_over_1_node": whole_points[1].1 / whole_points[0].1,
        },
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let high = worker_points.iter().chain(&whole_points).map(|point| point.1).fold(0.0, f64::max);
    let picture: Picture = Plot {
        title: title.to_owned(),
        across: Axis::counting("nodes", 1, 6),
        up: Axis::linear("time (ms)", 0.0, high),
        series: vec![
            line("mean of the workers", worker_points),
            Series { name: "whole run".to_owned(), points: whole_points, style: Style::Dashed },
        ],
        note: format!("Median of {} runs on a machine with {cores} cores.", settings.runs),
    }
    .draw();
    let remark = format!("{remark} This machine has {cores} cores: more nodes than that cannot be faster.");
    Ok(Reproduced { title, table, remark, json, pictures: vec![(file.to_owned(), picture)] })
}

fn run_task(
    settings: &Settings,
    nodes: usize,
    task: &Task,
    more: &[(&'static str, String)],
) -> Result<Vec<Value>, Failure> {
    let region_bytes = match task {
        Task::Sort(task) => task.region_bytes(),
        Task::Dot(task) => task.region_bytes(nodes),
        _ => return Err(Failure::new(exit::USAGE, "only psort and pdot have figures about scaling")),
    };
    let mut all = vec![("region_bytes", region_bytes.to_string())];
    all.extend_from_slice(more);
    ClusterPlan { nodes, common: settings.common, settings: all, task, with_connection: false }.run()
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), points, style: Style::Line }
}

fn column(points: &[(f64, f64)], index: usize) -> Vec<f64> {
    points.iter().map(|point| if index == 0 { point.0 } else { point.1 }).collect()
}

fn range(points: &[(f64, f64)]) -> (f64, f64) {
    let values = || points.iter().map(|point| point.1);
    (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scratch_folder_is_gone_afterwards() {
        let scratch = Scratch::new("reproduce").expect("folder");
        let path = scratch.path().to_owned();
        std::fs::write(path.join("node-0.json"), "{}").expect("write");
        drop(scratch);
        assert!(!path.exists());
    }
}
