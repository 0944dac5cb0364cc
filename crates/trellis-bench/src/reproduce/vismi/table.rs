//! Tables 2 and 3, and all measurements as JSON.

use serde_json::{Map, Value, json};
use trellis::record::Breakdown;

use super::super::Reproduced;
use super::measure::{Request, Row};
use super::programs::Program;
use trellis_command::chart::byte_text;

/// The values of a program in the paper's table 3.
struct Paper {
    serial_seconds: f64,
    /// On four processors; so are its speed-up and efficiency.
    parallel_seconds: f64,
    speedup: f64,
    vismi: f64,
    hlrc_via: f64,
    newgendsm: Option<f64>,
}

/// The number of processors of the paper's values.
const PAPER_NODES: usize = 4;

/// The paper's table 3; it has no over-relaxation.
fn paper(program: Program) -> Option<Paper> {
    let row = |serial_seconds, parallel_seconds, speedup, [vismi, hlrc_via]: [f64; 2], newgendsm| {
        Some(Paper { serial_seconds, parallel_seconds, speedup, vismi, hlrc_via, newgendsm })
    };
    match program {
        Program::Barnes => row(5.54, 1.68, 3.3, [0.82, 0.788], Some(0.806)),
        Program::Fft => row(2.78, 1.07, 2.6, [0.65, 0.725], None),
        Program::Lu => row(315.12, 80.8, 3.9, [0.975, 0.925], None),
        Program::Radix => row(2.22, 1.01, 2.2, [0.55, 0.538], Some(0.288)),
        Program::Ocean => None,
    }
}

/// The shared memory in the paper's table 2.
fn paper_memory(program: Program) -> &'static str {
    match program {
        Program::Barnes => "40MB",
        Program::Fft => "49MB",
        Program::Lu => "33MB",
        Program::Radix => "66MB",
        Program::Ocean => "",
    }
}

fn texts<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Table 2: description of the programs.
pub(super) fn table2(rows: &[Row]) -> Reproduced {
    let mut table =
        vec![texts(["program", "description", "size", "shared memory, paper", "fetched on most nodes, here"])];
    let mut json = Vec::new();
    for row in rows.iter().filter(|row| is_largest(rows, row)) {
        let [what, size] = row.program.description();
        let fetched = row.sum().bytes_in;
        let name = row.program.name();
        table.push(texts([name, what, size, paper_memory(row.program), &byte_text(fetched as f64)]));
        json.push(json!({ "program": name, "description": what, "paper_size": size, "nodes": row.nodes,
                          "paper_shared_memory": paper_memory(row.program), "bytes_in": fetched }));
    }
    Reproduced {
        title: "Table 2: description of the programs",
        table,
        remark:
            "The programs are our own, after the same algorithms. The last column is what all nodes received in the \
                 part that is timed, with the most nodes."
                .to_owned(),
        json: json!({ "rows": json }),
        pictures: Vec::new(),
    }
}

fn is_largest(rows: &[Row], row: &Row) -> bool {
    rows.iter().all(|other| other.program != row.program || other.nodes <= row.nodes)
}

/// Table 3: execution time, speed-up and efficiency.
pub(super) fn table3(request: &Request, rows: &[Row]) -> Reproduced {
    let heads = [
        "program",
        "nodes",
        "serial, s",
        "here, s",
        "speed-up",
        "of threads",
        "nodes / threads",
        "efficiency",
        "ViSMI",
        "HLRC-VIA",
        "NEWGENDSM",
    ];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let size = if request.quick { "Small sizes, not the paper's. " } else { "" };
    Reproduced {
        title: "Table 3: execution time, speed-up and efficiency",
        table: std::iter::once(texts(heads)).chain(rows.iter().map(line)).collect(),
        remark: format!(
            "{size}Median of {} runs that took turns; the serial program has no macros. The last three columns are the \
             paper's efficiencies, ViSMI's and HLRC-VIA's on four processors. This machine has {cores} cores: more \
             nodes than that cannot be faster, and there is no number for as many threads.",
            request.runs
        ),
        json: json!({ "paper": paper_json(), "runs": request.runs, "cores": cores, "quick": request.quick }),
        pictures: Vec::new(),
    }
}

fn line(row: &Row) -> Vec<String> {
    let number = |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
    let paper = paper(row.program);
    let of_threads = row.thread_seconds.map(|seconds| row.sequential_seconds / seconds);
    let efficiency = |of: fn(&Paper) -> Option<f64>| number(paper.as_ref().and_then(of), 3);
    vec![
        row.program.name().to_owned(),
        row.nodes.to_string(),
        number(Some(row.sequential_seconds), 4),
        number(Some(row.seconds), 4),
        number(Some(row.speedup()), 2),
        number(of_threads, 2),
        number(row.over_threads(), 3),
        number(Some(row.efficiency()), 3),
        efficiency(|paper| Some(paper.vismi)),
        efficiency(|paper| Some(paper.hlrc_via)),
        efficiency(|paper| paper.newgendsm),
    ]
}

fn paper_json() -> Value {
    let programs = [Program::Barnes, Program::Fft, Program::Lu, Program::Radix];
    let line = |program: Program| {
        let paper = paper(program)?;
        Some(json!({
            "program": program.name(), "processors": PAPER_NODES, "serial_seconds": paper.serial_seconds,
            "seconds": paper.parallel_seconds, "speedup": paper.speedup, "vismi_efficiency": paper.vismi,
            "hlrc_via_efficiency": paper.hlrc_via, "newgendsm_efficiency": paper.newgendsm,
        }))
    };
    programs.into_iter().filter_map(line).collect()
}

/// Every row, with the six shares of all nodes together and of each.
pub(super) fn json_of(rows: &[Row]) -> Vec<Value> {
    let shares = |shares: [f64; 6]| -> Map<String, Value> {
        Breakdown::NAMES.into_iter().zip(shares).map(|(name, share)| (name.to_owned(), share.into())).collect()
    };
    let line = |row: &Row| {
        let sum = row.sum();
        let each: Vec<Value> = row.breakdowns().iter().map(|one| shares(one.shares()).into()).collect();
        let mut json = json!({
            "program": row.program.name(), "nodes": row.nodes, "seconds": row.seconds,
            "sequential_seconds": row.sequential_seconds, "thread_seconds": row.thread_seconds,
            "speedup": row.speedup(), "efficiency": row.efficiency(), "over_threads": row.over_threads(),
            "verified": row.verified, "messages": sum.messages_in, "bytes_in": sum.bytes_in,
            "measuring_share_max": row.measuring_share(), "each_node": each,
            "vismi_efficiency": paper(row.program).map(|paper| paper.vismi),
        });
        if let Some(object) = json.as_object_mut() {
            object.extend(shares(row.shares()));
        }
        json
    };
    rows.iter().map(line).collect()
}

/// The figures that have a bound, with their own names: those of two nodes, and the upper bound of the measurement's
/// cost.
pub(super) fn summary(rows: &[Row]) -> Map<String, Value> {
    let mut object = Map::new();
    for row in rows.iter().filter(|row| row.nodes == 2) {
        let name = row.program.name();
        object.insert(format!("{name}_ratio"), row.over_threads().into());
        object.insert(format!("{name}_efficiency"), row.efficiency().into());
    }
    let most = rows.iter().map(Row::measuring_share).fold(0.0, f64::max);
    object.insert("measuring_share_max".to_owned(), most.into());
    object
}

#[cfg(test)]
mod tests {
    use super::super::measure::tests::example;
    use super::*;

    #[test]
    fn the_papers_efficiency_is_its_speedup_for_each_processor() {
        for program in [Program::Barnes, Program::Fft, Program::Lu, Program::Radix] {
            let paper = paper(program).expect("it is in the paper");
            assert!((paper.speedup / PAPER_NODES as f64 - paper.vismi).abs() < 0.006, "{}", program.name());
            let measured = paper.serial_seconds / paper.parallel_seconds;
            assert!((measured - paper.speedup).abs() < 0.06, "{}", program.name());
        }
        assert!(paper(Program::Ocean).is_none());
    }

    #[test]
    fn a_row_has_what_the_reference_promises() {
        let row = json_of(&[example(Program::Lu, 2)]).remove(0);
        assert_eq!((row["program"].as_str(), row["nodes"].as_u64()), (Some("lu"), Some(2)));
        assert_eq!((row["seconds"].as_f64(), row["sequential_seconds"].as_f64()), (Some(1.0), Some(1.8)));
        assert_eq!((row["efficiency"].as_f64(), row["verified"].as_bool()), (Some(0.9), Some(true)));
        let shares: f64 = Breakdown::NAMES.iter().map(|name| row[*name].as_f64().expect("a share")).sum();
        assert!((shares - 1.0).abs() < 1e-9);
        assert_eq!(row["each_node"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn the_summary_is_about_two_nodes() {
        let rows = [example(Program::Fft, 1), example(Program::Fft, 2), example(Program::Fft, 4)];
        let summary = summary(&rows);
        assert_eq!((summary["fft_ratio"].as_f64(), summary["fft_efficiency"].as_f64()), (Some(0.95), Some(0.9)));
        assert!(summary["measuring_share_max"].as_f64().is_some_and(|share| share < 0.01));
        assert_eq!(table2(&rows).table.len(), 2);
    }
}
