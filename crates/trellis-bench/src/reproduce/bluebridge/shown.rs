//! The paper's numbers beside ours.

use serde_json::{Map, Value, json};

use super::super::Reproduced;
use super::measure::{Condition, Faults, PaperFound, PaperTask};
use super::picture::{self, Bar};
use super::requests::OPERATIONS;

/// Table 1: UDP, RDMA and speed-up of create, read, update and delete.
const PAPER: [(f64, f64, f64); 4] =
    [(34.919, 5.84, 5.979), (33.732, 5.92, 5.698), (34.151, 5.96, 5.730), (32.963, 5.84, 5.644)];
/// §5.3: the time of a page fault from the local disk, with the paper's own solution and RDMA's latency instead of
/// UDP's, and with a directory service over UDP.
const PAPER_LOCAL_US: f64 = 24.304;
const PAPER_WITH_RDMA_US: f64 = 22.116;
const PAPER_DIRECTORY_US: f64 = 45.0;
/// §1 and figure 4: how much faster the paper's page fault is without a directory service.
const PAPER_SPEEDUP: f64 = 2.0;
/// §5.2: how much longer directory and data take than the other parts.
const PAPER_TRIP_OVER_REST: f64 = 9.0;

const PARTS: [&str; 4] = ["enter handler", "access directory", "get data", "exit handler"];

fn us(value: f64) -> String {
    if value.is_finite() { format!("{value:.1}") } else { String::new() }
}

/// The measured conditions, in their order.
fn measured(found: &PaperFound) -> impl Iterator<Item = (Condition, &Faults)> {
    Condition::ALL.into_iter().filter_map(|condition| Some((condition, found.faults.get(condition.name())?)))
}

fn left_out(found: &PaperFound) -> String {
    let word = |name: &str| Condition::ALL.into_iter().find(|condition| condition.name() == name).map(Condition::words);
    found.left_out.iter().map(|(name, why)| format!("\nleft out: {}: {why}", word(name).unwrap_or(name))).collect()
}

/// Figure 4: the time of a fault.
pub(super) fn figure4(task: &PaperTask, found: &PaperFound) -> Reproduced {
    let mut table = vec![["condition", "paper, µs", "here, µs (median)", "95 %", "/ READ"].map(str::to_owned).to_vec()];
    for (condition, faults) in measured(found) {
        let paper = match condition {
            Condition::WithDirectory | Condition::WithoutDirectory => "plot".to_owned(),
            Condition::Cached => PAPER_LOCAL_US.to_string(),
            _ => String::new(),
        };
        table.push(vec![
            condition.words().to_owned(),
            paper,
            us(faults.total.p50),
            us(faults.total.p95),
            format!("{:.2}", faults.over_read),
        ]);
    }
    let ratio = format!("{:.2}", found.directory_over_switch);
    table.push(vec![
        "with / without a directory service".to_owned(),
        format!("{PAPER_SPEEDUP}"),
        ratio.clone(),
        String::new(),
        String::new(),
    ]);
    let bars: Vec<Bar> = measured(found)
        .map(|(condition, faults)| Bar {
            name: condition.words().to_owned(),
            parts: vec![faults.total.p50],
            p95: faults.total.p95,
        })
        .collect();
    let note =
        format!("Median of {} faults, whiskers at 95 %. Switch {}.", task.pages * task.runs as usize, task.switch);
    Reproduced {
        title: "Figure 4: time of a page fault",
        table,
        remark: format!(
            "{note} The paper's figure has no numbers; its text gives the local file, {PAPER_WITH_RDMA_US} µs for its own \
             way with RDMA's latency instead of UDP's, and a factor of {PAPER_SPEEDUP}. Its local file came out of the \
             kernel's cache (§5.5.3), so that is what stands beside it. `/ READ` divides by a READ of 4 KiB without a \
             fault, {:.1} µs.{}",
            found.read_us_p50,
            left_out(found)
        ),
        json: json!({
            "paper": {
                "local_us": PAPER_LOCAL_US, "with_rdma_us": PAPER_WITH_RDMA_US, "directory_us": PAPER_DIRECTORY_US,
                "with_over_without": PAPER_SPEEDUP,
            },
            "ours": of_conditions(found, |faults| json!({
                "us_p50": faults.total.p50, "us_p95": faults.total.p95, "over_read": faults.over_read,
            })),
            "directory_over_switch": found.directory_over_switch, "left_out": found.left_out,
        }),
        pictures: vec![(
            "figure4.svg".to_owned(),
            picture::draw("Figure 4: time of a page fault", "time (µs)", &["all"], &bars, &note),
        )],
    }
}

fn of_conditions(found: &PaperFound, what: impl Fn(&Faults) -> Value) -> Map<String, Value> {
    measured(found).map(|(condition, faults)| (condition.name().to_owned(), what(faults))).collect()
}

/// Figure 5: the parts of a fault.
pub(super) fn figure5(task: &PaperTask, found: &PaperFound) -> Reproduced {
    let heads = ["condition"].into_iter().chain(PARTS).chain(["all, µs", "(directory + data) / rest"]);
    let mut table = vec![heads.map(str::to_owned).collect::<Vec<_>>()];
    for (condition, faults) in measured(found) {
        let mut row = vec![condition.words().to_owned()];
        row.extend(faults.parts().iter().map(|part| us(part.p50)));
        row.push(us(faults.total.p50));
        row.push(format!("{:.1}", trip_over_rest(faults)));
        table.push(row);
    }
    let bars: Vec<Bar> = measured(found)
        .map(|(condition, faults)| Bar {
            name: condition.words().to_owned(),
            parts: faults.parts().map(|part| part.p50).to_vec(),
            p95: faults.total.p95,
        })
        .collect();
    let note = format!(
        "Medians of the parts of {} faults; whiskers: 95 % of whole faults. Switch {}.",
        task.pages * task.runs as usize,
        task.switch
    );
    Reproduced {
        title: "Figure 5: the parts of a page fault",
        table,
        remark: format!(
            "{note} The parts meet: until the handler has the fault, until it knows where the page is, until the bytes are \
             here, until the program goes on. The paper's figure has no numbers; its text says that asking the directory adds \
             {PAPER_DIRECTORY_US} µs, and that the trips take about {PAPER_TRIP_OVER_REST} times as long as the rest.{}",
            left_out(found)
        ),
        json: json!({
            "paper": { "directory_us": PAPER_DIRECTORY_US, "trip_over_rest": PAPER_TRIP_OVER_REST },
            "parts": ["enter", "directory", "data", "exit"],
            "ours": of_conditions(found, |faults| json!({
                "us_p50": faults.parts().map(|part| part.p50), "us_p95": faults.parts().map(|part| part.p95),
                "trip_over_rest": trip_over_rest(faults),
            })),
            "left_out": found.left_out,
        }),
        pictures: vec![(
            "figure5.svg".to_owned(),
            picture::draw("Figure 5: the parts of a page fault", "time (µs)", &PARTS, &bars, &note),
        )],
    }
}

fn trip_over_rest(faults: &Faults) -> f64 {
    (faults.directory.p50 + faults.data.p50) / (faults.enter.p50 + faults.exit.p50)
}

/// Table 1: requests.
pub(super) fn table1(task: &PaperTask, found: &PaperFound) -> Reproduced {
    let mut heads =
        vec!["operation".to_owned(), "paper: UDP, µs".to_owned(), "RDMA, µs".to_owned(), "UDP / RDMA".to_owned()];
    heads.extend(found.requests.iter().map(|requests| format!("here: {}, µs", requests.over)));
    let has_ratio = found.requests.len() > 1;
    heads.extend(has_ratio.then(|| "first / last".to_owned()));
    let mut table = vec![heads];
    for (place, (operation, (udp, rdma, speedup))) in OPERATIONS.iter().zip(PAPER).enumerate() {
        let mut row = vec![(*operation).to_owned(), udp.to_string(), rdma.to_string(), format!("{speedup:.2}")];
        row.extend(found.requests.iter().map(|requests| us(requests.us_p50[place])));
        if let [first, .., last] = &found.requests[..] {
            row.push(format!("{:.2}", first.us_p50[place] / last.us_p50[place]));
        }
        table.push(row);
    }
    let fabric = found.fabric_left_out.as_ref().map_or(String::new(), |why| format!("\nleft out: libfabric: {why}"));
    let paper: Vec<Value> = OPERATIONS
        .iter()
        .zip(PAPER)
        .map(|(operation, (udp, rdma, _))| json!({ "operation": operation, "udp_us": udp, "rdma_us": rdma }))
        .collect();
    let ours: Vec<Value> = found
        .requests
        .iter()
        .map(|requests| json!({ "over": requests.over, "operations": OPERATIONS, "us_p50": requests.us_p50 }))
        .collect();
    Reproduced {
        title: "Table 1: create, read, update, delete",
        table,
        remark: format!(
            "Medians of {} requests of each kind about objects of 4 KiB, each answered before the next. The paper's RDMA column \
             was measured with qperf, twice a way in one direction; UPDATE is there a write of a page, and so it is here.{fabric}",
            task.pages * task.runs as usize
        ),
        json: json!({ "paper": paper, "ours": ours, "fabric_left_out": found.fabric_left_out }),
        pictures: Vec::new(),
    }
}

/// The figures that have a bound.
pub(super) fn summary(found: &PaperFound) -> Map<String, Value> {
    let of = |condition: Condition| found.faults.get(condition.name());
    let ratio = |condition| of(condition).map_or(Value::Null, |faults| faults.over_read.into());
    let mut map = Map::new();
    map.insert("read_us_p50".to_owned(), found.read_us_p50.into());
    map.insert(
        "fault_us_p50".to_owned(),
        of(Condition::WithoutDirectory).map_or(Value::Null, |it| it.total.p50.into()),
    );
    map.insert("fault_over_read".to_owned(), ratio(Condition::WithoutDirectory));
    map.insert("fault_signal_over_read".to_owned(), ratio(Condition::Signal));
    map.insert("fault_in_kernel_over_read".to_owned(), ratio(Condition::InKernel));
    if let Some(why) = found.left_out.get(Condition::InKernel.name()) {
        map.insert("fault_in_kernel_left_out".to_owned(), why.as_str().into());
    }
    map.insert("fault_directory_over_switch".to_owned(), found.directory_over_switch.into());
    map
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::measure::Spread;
    use super::super::requests::Requests;
    use super::*;

    pub(in super::super) fn example() -> PaperFound {
        let spread = |p50: f64| Spread { p50, p95: p50 * 2.0 };
        let faults = |total: f64, directory: f64| Faults {
            total: spread(total),
            enter: spread(2.0),
            directory: spread(directory),
            data: spread(16.0),
            exit: spread(4.0),
            over_read: 1.5,
        };
        let mut found = PaperFound { read_us_p50: 14.7, directory_over_switch: 1.98, ..PaperFound::default() };
        found.faults.insert("with_directory".to_owned(), faults(38.0, 16.0));
        found.faults.insert("without_directory".to_owned(), faults(22.0, 0.0));
        found.faults.insert("local_cached".to_owned(), faults(7.0, 0.0));
        found.left_out.insert("in_kernel".to_owned(), "no root".to_owned());
        found.left_out.insert("local_disk".to_owned(), "no disk".to_owned());
        found.requests.push(Requests { over: "UDP, switch user".to_owned(), us_p50: [15.0, 14.5, 16.0, 15.5] });
        found.fabric_left_out = Some("not built".to_owned());
        found
    }

    fn task() -> PaperTask {
        PaperTask { switch: "user".to_owned(), pages: 1500, runs: 5, has_faults: true, has_requests: true }
    }

    #[test]
    fn figure4_has_the_papers_numbers_beside_ours() {
        let made = figure4(&task(), &example());
        assert_eq!(made.table[1].join("|"), "remote, with a directory service|plot|38.0|76.0|1.50");
        assert_eq!(made.table[3].join("|"), "local file, in the kernel's cache|24.304|7.0|14.0|1.50");
        assert_eq!(made.table.last().expect("a row")[1..3], ["2", "1.98"]);
        assert!(made.remark.ends_with("left out: local file, from the disk: no disk"), "{}", made.remark);
        assert_eq!(made.json["ours"]["without_directory"]["us_p50"], 22.0);
    }

    #[test]
    fn figure5_has_the_parts_in_their_order() {
        let made = figure5(&task(), &example());
        assert_eq!(made.table[1].join("|"), "remote, with a directory service|2.0|16.0|16.0|4.0|38.0|5.3");
        assert_eq!(made.json["ours"]["with_directory"]["us_p50"], json!([2.0, 16.0, 16.0, 4.0]));
        let text = made.pictures.into_iter().next().expect("a picture").1.into_file();
        assert!(text.contains("get data: 16") && text.contains("access directory: 16"), "{text}");
    }

    #[test]
    fn table1_has_a_row_for_each_operation() {
        let made = table1(&task(), &example());
        assert_eq!(made.table[1].join("|"), "Create|34.919|5.84|5.98|15.0");
        assert_eq!(made.table[4].join("|"), "Delete|32.963|5.84|5.64|15.5");
        assert!(made.remark.ends_with("left out: libfabric: not built"));
        let mut both = example();
        both.requests.push(Requests { over: "libfabric, tcp".to_owned(), us_p50: [10.0, 10.0, 10.0, 10.0] });
        assert_eq!(table1(&task(), &both).table[1].join("|"), "Create|34.919|5.84|5.98|15.0|10.0|1.50");
    }
}
