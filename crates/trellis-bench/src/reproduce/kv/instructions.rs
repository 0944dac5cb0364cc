//! Figure 6.1: the number of LLVM instructions of each function of the test program in each mode.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::Reproduced;
use super::bars::Bars;
use super::programs::{Mode, Programs};
use super::table::APPENDIX_A;
use trellis_command::exit::{self, Failure};
use trellis_command::terminal::Progress;

/// The paper's totals.
const PAPER: [(Mode, u64); 3] = [(Mode::Original, 571), (Mode::Full, 761), (Mode::Heap, 1768)];
const MODES: [Mode; 3] = [Mode::Full, Mode::Heap, Mode::Line];

/// What `trellis c++ --count --json` prints.
#[derive(Debug, Deserialize)]
struct Report {
    rows: Vec<Row>,
    original: u64,
    after: u64,
}

#[derive(Debug, Deserialize)]
struct Row {
    function: String,
    original: u64,
    after: u64,
}

/// A function, or all of them.
#[derive(Debug, PartialEq, Eq)]
struct Counted {
    name: String,
    original: u64,
    /// In the order of [`MODES`].
    after: [u64; 3],
}

/// Figure 6.1.
pub(super) fn figure(progress: &mut Progress) -> Result<Reproduced, Failure> {
    let programs = Programs::new()?;
    let mut reports = Vec::new();
    for mode in MODES {
        progress.step(&format!("figure 6.1: {}", mode.name()));
        let text = programs.counts(&APPENDIX_A, mode, "-O0")?;
        let report: Report = serde_json::from_str(&text).map_err(|error| {
            Failure::new(exit::FAILED, format!("`trellis c++ --count --json` printed no counts: {error}"))
        })?;
        reports.push(report);
    }
    Ok(shown(&counted(&reports)?))
}

/// Counts function by function, with the sums at the end.
fn counted(reports: &[Report]) -> Result<Vec<Counted>, Failure> {
    let after = |find: &dyn Fn(&Report) -> Option<u64>| -> Result<[u64; 3], Failure> {
        let all: Option<Vec<u64>> = reports.iter().map(find).collect();
        all.and_then(|all| all.try_into().ok())
            .ok_or_else(|| Failure::new(exit::FAILED, "a function was counted in one mode and not in another"))
    };
    let mut functions = Vec::new();
    let first = reports.first().ok_or_else(|| Failure::new(exit::FAILED, "nothing was counted"))?;
    for row in &first.rows {
        let of = |report: &Report| report.rows.iter().find(|other| other.function == row.function).map(|row| row.after);
        functions.push(Counted { name: row.function.clone(), original: row.original, after: after(&of)? });
    }
    functions.push(Counted {
        name: "total".to_owned(),
        original: first.original,
        after: after(&|report| Some(report.after))?,
    });
    Ok(functions)
}

fn growth(original: u64, after: u64) -> f64 {
    after as f64 / original.max(1) as f64 - 1.0
}

fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

fn shown(functions: &[Counted]) -> Reproduced {
    let heads = ["function", "original", "full", "", "heap", "", "line", ""];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    for function in functions {
        let mut cells = vec![function.name.clone(), function.original.to_string()];
        for after in function.after {
            cells.extend([after.to_string(), percent(growth(function.original, after))]);
        }
        table.push(cells);
    }
    let mut cells = vec!["paper, total".to_owned()];
    for (mode, count) in PAPER {
        cells.push(count.to_string());
        if mode != Mode::Original {
            cells.push(percent(growth(PAPER[0].1, count)));
        }
    }
    table.push(cells);
    let total = functions.last();
    let growths: serde_json::Map<String, Value> = total
        .map(|total| {
            let of = |(mode, after): (Mode, u64)| (mode.name().to_owned(), growth(total.original, after).into());
            MODES.into_iter().zip(total.after).map(of).collect()
        })
        .unwrap_or_default();
    Reproduced {
        title: "Figure 6.1: LLVM instructions of each function, -O0",
        table,
        remark: "The program of appendix A, rewritten, so that totals of the original differ from the paper's 571; \
                 growth can be compared. Accesses that are provably to the stack or to globals are not translated in the \
                 modes heap and line; pointers have no types any more, so that full needs no casts."
            .to_owned(),
        json: json!({
            "paper": { "original": PAPER[0].1, "full": PAPER[1].1, "heap": PAPER[2].1,
                       "growth": { "full": growth(PAPER[0].1, PAPER[1].1), "heap": growth(PAPER[0].1, PAPER[2].1) } },
            "rows": functions.iter().map(json_of).collect::<Vec<Value>>(), "growth": growths,
        }),
        pictures: vec![("figure6.1.svg".to_owned(), picture(functions).draw())],
    }
}

fn json_of(function: &Counted) -> Value {
    let [full, heap, line] = function.after;
    json!({ "function": function.name, "original": function.original, "full": full, "heap": heap, "line": line })
}

fn picture(functions: &[Counted]) -> Bars {
    let short = |name: &str| name.split('(').next().unwrap_or(name).to_owned();
    let group = |function: &Counted| {
        let counts = std::iter::once(function.original).chain(function.after);
        (short(&function.name), counts.map(|count| Some(count as f64)).collect())
    };
    Bars {
        title: "Figure 6.1: LLVM instructions of each function".to_owned(),
        along: "instructions".to_owned(),
        series: ["original", "full", "heap", "line"].map(str::to_owned).to_vec(),
        groups: functions.iter().map(group).collect(),
        note: "Compiled with -O0. The axis is logarithmic.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(after: [u64; 2]) -> Report {
        let row = |function: &str, original, after| Row { function: function.to_owned(), original, after };
        let rows = vec![row("main", 60, after[0]), row("produce(void*)", 40, after[1])];
        Report { rows, original: 100, after: after.iter().sum() }
    }

    #[test]
    fn growth_is_that_of_the_totals() {
        let functions = counted(&[report([64, 42]), report([70, 44]), report([72, 45])]).expect("all are there");
        assert_eq!(functions[1], Counted { name: "produce(void*)".to_owned(), original: 40, after: [42, 44, 45] });
        let made = shown(&functions);
        assert!((made.json["growth"]["full"].as_f64().expect("a number") - 0.06).abs() < 1e-9);
        let text: Vec<&str> = made.table[3].iter().map(String::as_str).collect();
        assert_eq!(text, ["total", "100", "106", "+6.0 %", "114", "+14.0 %", "117", "+17.0 %"]);
        let paper: Vec<&str> = made.table[4].iter().map(String::as_str).collect();
        assert_eq!(paper, ["paper, total", "571", "761", "+33.3 %", "1768", "+209.6 %"]);
    }

    #[test]
    fn a_function_that_one_mode_does_not_have_is_an_error() {
        let mut other = report([70, 44]);
        other.rows.remove(1);
        assert!(counted(&[report([64, 42]), other, report([72, 45])]).is_err());
        assert!(counted(&[]).is_err());
    }

    #[test]
    fn names_in_the_picture_are_short() {
        let functions = counted(&[report([64, 42]), report([70, 44]), report([72, 45])]).expect("all are there");
        let text = picture(&functions).draw().into_file();
        assert!(text.contains("produce, line: 45") && text.contains("total, heap: 114"), "{text}");
    }
}
