//! Figures 2.1 to 2.6: the stores' runs of YCSB as tables and pictures.
//!
//! The paper's figures are plots without numbers; what its text says about them is in the remarks.

use serde_json::{Value, json};

use super::super::Reproduced;
use super::bars::Bars;
use super::comparison::{Comparison, Measured, Runs};
use super::ycsb::Workload;
use trellis_command::chart::number;

/// The description of a figure.
struct Shown {
    title: &'static str,
    file: &'static str,
    /// What the paper's text says about it.
    paper: &'static str,
    workloads: &'static [Workload],
}

/// Figure 2.1.
pub(super) fn load_latency(comparison: &Comparison) -> Reproduced {
    let shown = Shown {
        title: "Figure 2.1: latency of inserts, 1,000 rows",
        file: "figure2.1.svg",
        paper: "Bigtable and Spanner are much faster than Datastore",
        workloads: &[Workload::Load],
    };
    latency_figure(comparison, &shown, "INSERT")
}

/// Figure 2.2.
pub(super) fn load_throughput(comparison: &Comparison) -> Reproduced {
    let shown = Shown {
        title: "Figure 2.2: throughput of inserts, 1,000 rows",
        file: "figure2.2.svg",
        paper: "Bigtable and Spanner have a much higher throughput than Datastore",
        workloads: &[Workload::Load],
    };
    throughput_figure(comparison, &shown)
}

/// Figure 2.3.
pub(super) fn update_latency(comparison: &Comparison) -> Reproduced {
    let shown = Shown {
        title: "Figure 2.3: latency of writes, workloads A and F",
        file: "figure2.3.svg",
        paper: "Bigtable is the fastest by far, Datastore the slowest",
        workloads: &[Workload::A, Workload::F],
    };
    latency_figure(comparison, &shown, "UPDATE")
}

/// Figure 2.4.
pub(super) fn read_latency(comparison: &Comparison) -> Reproduced {
    let shown = Shown {
        title: "Figure 2.4: latency of reads, workloads A and F",
        file: "figure2.4.svg",
        paper: "Datastore is more than 2 times slower than Spanner and more than 4 times slower than Bigtable",
        workloads: &[Workload::A, Workload::F],
    };
    latency_figure(comparison, &shown, "READ")
}

/// Figure 2.5.
pub(super) fn modify_latency(comparison: &Comparison) -> Reproduced {
    let shown = Shown {
        title: "Figure 2.5: latency of read-modify-writes, workload F",
        file: "figure2.5.svg",
        paper: "as for reads and writes",
        workloads: &[Workload::F],
    };
    let mut made = latency_figure(comparison, &shown, "READ-MODIFY-WRITE");
    let mut rows = Vec::new();
    for store in &comparison.stores {
        let latency = store.fetch_add;
        let mut cells = vec![store.kind.name().to_owned(), "atomic add".to_owned()];
        cells.extend(std::iter::repeat_n(String::new(), 4));
        cells.extend([latency.operations.to_string()]);
        cells.extend([latency.mean, latency.p50, latency.p99].map(number));
        made.table.push(cells);
        rows.push(json!({ "store": store.kind.name(), "operation": "atomic-add", "operations": latency.operations,
                          "us_mean": latency.mean, "us_p50": latency.p50, "us_p99": latency.p99 }));
    }
    made.json["atomic_add"] = rows.into();
    made.remark.push_str(
        " The paper calls them atomic; YCSB reads and then updates, so that what somebody else wrote between is lost. \
         `atomic add` is one call that adds to a number of 8 bytes, measured from Rust.",
    );
    made
}

/// Figure 2.6.
pub(super) fn throughput(comparison: &Comparison) -> Reproduced {
    let shown = Shown {
        title: "Figure 2.6: throughput, workloads A and F",
        file: "figure2.6.svg",
        paper: "Bigtable's is the highest by far",
        workloads: &[Workload::A, Workload::F],
    };
    let mut made = throughput_figure(comparison, &shown);
    let ratio = comparison.throughput_ratio();
    if let Some(ratio) = ratio {
        let sentence = format!(" Front end with embedded over Redis, workload A, long runs: {ratio:.3}.");
        made.remark.push_str(&sentence);
    }
    made.json["ycsb_a_throughput_ratio"] = ratio.into();
    made
}

/// Every run of the shown workloads: store by store, the short next to the long.
fn pairs<'a>(
    comparison: &'a Comparison,
    workloads: &'a [Workload],
) -> impl Iterator<Item = (&'a Measured, Workload, [Option<&'a Runs>; 2])> {
    comparison.stores.iter().flat_map(move |store| {
        workloads.iter().map(move |&workload| (store, workload, [false, true].map(|warm| store.find(workload, warm))))
    })
}

fn latency_figure(comparison: &Comparison, shown: &Shown, operation: &str) -> Reproduced {
    let heads =
        ["store", "workload", "operations", "mean, µs", "median", "p99", "long run", "mean, µs", "median", "p99"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    let mut rows: Vec<Value> = Vec::new();
    for (store, workload, both) in pairs(comparison, shown.workloads) {
        let mut cells = vec![store.kind.name().to_owned(), workload.name().to_owned()];
        for runs in both {
            let Some((runs, latency)) = runs.and_then(|runs| Some((runs, runs.latency(operation)?))) else {
                cells.extend(std::iter::repeat_n(String::new(), 4));
                continue;
            };
            cells.push(latency.operations.to_string());
            cells.extend([latency.mean, latency.p50, latency.p99].map(number));
            rows.push(json!({
                "store": store.kind.name(), "workload": workload.name(), "operation": operation.to_lowercase(),
                "long": runs.warm, "operations": latency.operations,
                "us_mean": latency.mean, "us_p50": latency.p50, "us_p99": latency.p99,
            }));
        }
        table.push(cells);
    }
    let value = |runs: &Runs| runs.latency(operation).map(|latency| latency.mean);
    let plotted = Plotted { along: "latency (µs), mean", value: &value };
    finish(comparison, shown, (table, rows), &plotted)
}

fn throughput_figure(comparison: &Comparison, shown: &Shown) -> Reproduced {
    let heads = ["store", "workload", "operations", "operations/s", "long run", "operations/s"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    let mut rows: Vec<Value> = Vec::new();
    for (store, workload, both) in pairs(comparison, shown.workloads) {
        let mut cells = vec![store.kind.name().to_owned(), workload.name().to_owned()];
        for runs in both {
            let Some(runs) = runs else {
                cells.extend(std::iter::repeat_n(String::new(), 2));
                continue;
            };
            cells.extend([runs.operations.to_string(), number(runs.throughput().round())]);
            rows.push(json!({
                "store": store.kind.name(), "workload": workload.name(), "long": runs.warm,
                "operations": runs.operations, "operations_per_second": runs.throughput(),
            }));
        }
        table.push(cells);
    }
    let plotted = Plotted { along: "operations per second", value: &|runs: &Runs| Some(runs.throughput()) };
    finish(comparison, shown, (table, rows), &plotted)
}

/// The value of each bar of a figure, and the title of its axis.
struct Plotted<'a> {
    along: &'a str,
    value: &'a dyn Fn(&Runs) -> Option<f64>,
}

/// A table with its remark and its picture.
fn finish(
    comparison: &Comparison,
    shown: &Shown,
    (table, rows): (Vec<Vec<String>>, Vec<Value>),
    plotted: &Plotted,
) -> Reproduced {
    let series: Vec<(Workload, bool)> =
        shown.workloads.iter().flat_map(|&workload| [(workload, false), (workload, true)]).collect();
    let series_name = |(workload, warm): &(Workload, bool)| {
        format!("{}, {}", workload.name(), if *warm { "long run" } else { "1,000 operations" })
    };
    let group = |store: &Measured| {
        let values =
            series.iter().map(|&(workload, warm)| store.find(workload, warm).and_then(plotted.value)).collect();
        (store.kind.name().to_owned(), values)
    };
    let picture = Bars {
        title: shown.title.to_owned(),
        along: plotted.along.to_owned(),
        series: series.iter().map(series_name).collect(),
        groups: comparison.stores.iter().map(group).collect(),
        note: format!("One client on this machine; median of {} runs. The axis is logarithmic.", comparison.runs),
    }
    .draw();
    Reproduced {
        title: shown.title,
        table,
        remark: remark(comparison, shown.paper),
        json: json!({
            "paper": { "plot": true, "says": shown.paper },
            "rows": rows, "runs": comparison.runs, "left_out": left_out(comparison),
        }),
        pictures: vec![(shown.file.to_owned(), picture)],
    }
}

fn remark(comparison: &Comparison, paper: &str) -> String {
    let mut text = format!(
        "Median of {} runs of YCSB 0.17.0 with one thread. The paper's figure is a plot without numbers of Google's \
         services from a machine in their data centre; its text says: {paper}. Here every server is on this machine, so \
         this is the cost of a call without a network. A thousand operations are mostly the start of YCSB itself; the \
         long run is what the store takes.",
        comparison.runs
    );
    for (kind, why) in &comparison.left_out {
        text.push_str(&format!("\nleft out: {}: {why}", kind.name()));
    }
    text
}

fn left_out(comparison: &Comparison) -> Vec<Value> {
    comparison.left_out.iter().map(|(kind, why)| json!({ "store": kind.name(), "why": why })).collect()
}

#[cfg(test)]
mod tests {
    use super::super::comparison::tests::example;
    use super::super::servers::Kind;
    use super::*;

    fn comparison() -> Comparison {
        Comparison {
            stores: vec![example(Kind::Embedded, 20.0, 1), example(Kind::Redis, 19.0, 1)],
            left_out: vec![(Kind::Etcd, "etcd is not installed".to_owned())],
            runs: 1,
        }
    }

    #[test]
    fn every_store_has_a_row_for_every_workload() {
        let made = read_latency(&comparison());
        let names: Vec<[&str; 2]> = made.table[1..].iter().map(|row| [row[0].as_str(), row[1].as_str()]).collect();
        assert_eq!(names, [["embedded", "A"], ["embedded", "F"], ["redis", "A"], ["redis", "F"]]);
        assert!(made.table.iter().all(|row| row.len() == 10), "{:?}", made.table);
        let rows = made.json["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 8);
        assert_eq!((&rows[1]["operation"], &rows[1]["long"]), (&json!("read"), &json!(true)));
    }

    #[test]
    fn what_was_left_out_is_said_with_the_reason() {
        let made = load_throughput(&comparison());
        assert!(made.remark.contains("left out: etcd: etcd is not installed"), "{}", made.remark);
        assert_eq!(made.json["left_out"][0]["store"], "etcd");
    }

    #[test]
    fn the_ratio_stands_in_figure_6_and_additions_in_figure_5() {
        assert!((throughput(&comparison()).json["ycsb_a_throughput_ratio"].as_f64().expect("it") - 0.95).abs() < 1e-9);
        let made = modify_latency(&comparison());
        assert_eq!(made.json["atomic_add"][1]["us_p50"], 9.5);
        assert_eq!(made.table.last().map(|row| (row.len(), row[1].as_str())), Some((10, "atomic add")));
    }

    #[test]
    fn pictures_have_a_bar_for_each_series() {
        for made in [load_latency, update_latency, throughput].map(|figure| figure(&comparison())) {
            let (file, picture) = made.pictures.into_iter().next().expect("a picture");
            let text = picture.into_file();
            assert!(
                file.ends_with(".svg") && text.contains("redis, ") && text.contains("long run: "),
                "{file}: {text}"
            );
        }
    }
}
