//! `cargo xtask bench`: measures every figure that has a target, several times, and puts the median beside the
//! target.
//!
//! Promises: a ratio is always computed within one run of one benchmark. With another checkout, each run measures both
//! builds one after the other, and the order changes with each run, so that a machine that becomes slower changes no
//! ratio between the builds. The result, with machine and commit, is kept in `benchmarks/runs`. A figure that misses
//! its target is marked, and the task then ends with an error after it has written the result.

mod machine;
pub(crate) mod targets;
mod threads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use trellis_base::statistics;
use trellis_output::files;

use crate::programs::{self, Psort};
use crate::workspace::{Profile, Workspace};
use crate::{compiler, demo, fabric, features, setup, step};

use machine::Machine;
use targets::{Benchmark, CHECK, Figure, REPRODUCE, TARGETS, THREADS};

/// The result of one figure.
struct Outcome {
    figure: &'static Figure,
    benchmark: &'static str,
    /// One value for each run, or the reason why this machine has none.
    values: Result<Vec<f64>, String>,
    /// The same of the other checkout; `None` without one.
    other: Option<Result<Vec<f64>, String>>,
}

/// The options of a run.
pub(crate) struct Options<'a> {
    /// How often each benchmark runs.
    pub(crate) runs: u32,
    /// Whether the result is kept.
    pub(crate) keep: bool,
    /// The names of the benchmarks; empty for all.
    pub(crate) only: &'a [String],
    /// A checkout of another commit, in which the same task has built the programs.
    pub(crate) against: Option<&'a Path>,
}

/// Runs the benchmarks.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let &Options { runs, keep, only, against } = options;
    setup::ensure(&[setup::COMPILER, setup::MACRO_PROCESSOR])?;
    let chosen = choose(only)?;
    let other = against.map(Workspace::at).transpose()?;
    setup::ensure(setup::PASS)?;
    workspace.build_release()?;
    programs::build_psort(workspace)?;
    compiler::build(workspace, Profile::Release)?;
    let machine = Machine::look(workspace);
    let mut conditions = machine.sentence();
    if let Some(other) = &other {
        conditions.push_str(&format!("; the other is {}", Machine::look(other).commit()));
    }
    let mut raw = BTreeMap::new();
    let mut outcomes = Vec::new();
    for benchmark in chosen {
        if benchmark.is_of_fabric() {
            if !setup::FABRIC.is_here() {
                eprintln!("SKIPPED {}: libfabric is not installed", benchmark.title());
                continue;
            }
            fabric::build(workspace)?;
        }
        if benchmark.is_of_bpf() {
            if !setup::is_root()? {
                eprintln!("SKIPPED {}: a switch in the kernel takes root", benchmark.title());
                continue;
            }
            let built = features::build_release(workspace, &["bpf".to_owned()])?;
            compiler::place(workspace, &built, Profile::Release)?;
        }
        let (found, found_there) = step::step(&format!("{} ({runs} runs)", benchmark.title()), || {
            in_turns(runs, || measure(workspace, benchmark), other.as_ref().map(|one| || measure(one, benchmark)))
        })?;
        for figure in benchmark.figures {
            let values = values_of(figure, &found)?;
            if let Err(why) = &values {
                eprintln!("SKIPPED {} of {}: {why}", figure.field, benchmark.title());
            }
            let other = found_there.as_ref().map(|there| match there {
                Ok(there) => values_of(figure, there).unwrap_or_else(|error| Err(error.to_string())),
                Err(error) => Err(without_path(&error.to_string(), other.as_ref())),
            });
            outcomes.push(Outcome { figure, benchmark: benchmark.name, values, other });
        }
        raw.insert(benchmark.title(), found);
        if keep {
            // A run of hours that is interrupted has kept what it measured.
            write(workspace, &machine, &conditions, options, &raw, &outcomes)?;
        }
    }
    let heads: Vec<String> = heads(other.is_some()).into_iter().map(str::to_owned).collect();
    let table = demo::table(&heads, &outcomes.iter().map(Outcome::row).collect::<Vec<_>>());
    println!("\n{conditions}\n\n{table}");
    if keep {
        println!("kept in {}", kept_in(workspace, &machine).display());
    }
    let missed: Vec<String> =
        outcomes.iter().filter(|one| !one.is_met()).map(|one| one.figure.field.to_owned()).collect();
    if !missed.is_empty() {
        bail!("{} of {} figures miss their target: {}", missed.len(), outcomes.len(), missed.join(", "));
    }
    Ok(())
}

/// The heads of the table; `with_other` adds the other checkout's columns.
fn heads(with_other: bool) -> Vec<&'static str> {
    let mut heads = vec!["figure", "median", "least", "most", "target", ""];
    if with_other {
        heads.extend(["other: median", "least", "most", "this / other"]);
    }
    heads
}

/// Measures this build so often, and the other one beside it; the other one's failure is a result.
#[expect(clippy::type_complexity, reason = "the second is optional, and it may fail alone")]
fn in_turns(
    runs: u32,
    this: impl Fn() -> Result<Value>,
    other: Option<impl Fn() -> Result<Value>>,
) -> Result<(Vec<Value>, Option<Result<Vec<Value>>>)> {
    let (mut found, mut there) = (Vec::new(), Ok(Vec::new()));
    for run in 0..runs {
        for is_this in [run % 2 == 0, run % 2 != 0] {
            if is_this {
                found.push(this()?);
            } else if let (Some(other), Ok(values)) = (&other, &mut there) {
                match other() {
                    Ok(value) => values.push(value),
                    Err(error) => there = Err(error),
                }
            }
        }
    }
    Ok((found, other.is_some().then_some(there)))
}

/// The named benchmarks, or all; a name is the name itself or the beginning of the title (`reproduce bluebridge`).
fn choose(only: &[String]) -> Result<Vec<&'static Benchmark>> {
    let is_meant = |one: &Benchmark, name: &str| {
        let title = one.title();
        title == name || title.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '))
    };
    if let Some(unknown) = only.iter().find(|name| !TARGETS.iter().any(|one| is_meant(one, name))) {
        let mut names: Vec<&str> = TARGETS.iter().map(|one| one.name).collect();
        names.dedup();
        bail!("--only {unknown}: no benchmark has this name; accepted: {}", names.join(", "));
    }
    Ok(TARGETS.iter().filter(|one| only.is_empty() || only.iter().any(|name| is_meant(one, name))).collect())
}

/// The sentence with `CHECKOUT` in place of the other checkout's path: what is kept names no path of this machine.
fn without_path(sentence: &str, other: Option<&Workspace>) -> String {
    other.map_or_else(|| sentence.to_owned(), |other| sentence.replace(&*other.root.to_string_lossy(), "CHECKOUT"))
}

/// Runs one benchmark of a checkout once; returns its result as one object.
fn measure(workspace: &Workspace, benchmark: &Benchmark) -> Result<Value> {
    if benchmark.name == "psort" {
        return measure_psort(workspace);
    }
    if benchmark.name == THREADS {
        return threads::measure(workspace);
    }
    let program = match benchmark {
        benchmark if benchmark.is_of_fabric() => fabric::program(workspace),
        benchmark if benchmark.is_of_bpf() => features::program(workspace),
        _ => workspace.trellis(),
    };
    let mut command = workspace.command(program);
    if ![CHECK, REPRODUCE].contains(&benchmark.name) {
        command.arg("bench");
    }
    command.arg(benchmark.name).args(benchmark.arguments).arg("--json");
    let start = Instant::now();
    let text = step::output(&mut command)?;
    let seconds = start.elapsed().as_secs_f64();
    let found = if benchmark.name == CHECK { last_of(&text, seconds) } else { serde_json::from_str(&text) };
    found.with_context(|| format!("`{}` printed no JSON", step::shown(&command)))
}

/// The last of the objects that a check printed, one on each line, with the duration of the call and the steps of all
/// objects per second: simulations report no real time themselves.
fn last_of(text: &str, seconds: f64) -> serde_json::Result<Value> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let objects = lines.map(serde_json::from_str).collect::<serde_json::Result<Vec<Value>>>()?;
    let steps: u64 = objects.iter().filter_map(|one| one["steps"].as_u64()).sum();
    let mut last = objects.into_iter().next_back().unwrap_or(json!({}));
    last["call_seconds"] = seconds.into();
    last["call_steps_per_second"] = (steps as f64 / seconds).into();
    Ok(last)
}

/// Sorts the same integers on one node and on two, one after the other.
fn measure_psort(workspace: &Workspace) -> Result<Value> {
    let program = &programs::psort(workspace);
    let sort = |nodes: usize| {
        let record = workspace.target.join("bench").join(format!("psort-{nodes}"));
        let settings = ["catch=signal".to_owned()];
        let arguments = ["262144".to_owned()];
        let run =
            Psort { program, nodes, settings: &settings, arguments: &arguments, record: &record }.run(workspace)?;
        anyhow::Ok((run.milliseconds, run.whole.as_secs_f64() * 1e3))
    };
    let ((one, program_one), (two, program_two)) = (sort(1)?, sort(2)?);
    Ok(json!({
        "benchmark": "psort", "sort_ms_1_node": one, "sort_ms_2_nodes": two, "two_nodes_over_one": two / one,
        "program_ms_1_node": program_one, "program_ms_2_nodes": program_two,
    }))
}

/// The values of a figure in all runs, as numbers; or the reason why the benchmark omitted it.
fn values_of(figure: &Figure, found: &[Value]) -> Result<Result<Vec<f64>, String>> {
    let mut values = Vec::new();
    for one in found {
        match one[figure.field].as_f64() {
            Some(value) => values.push(value),
            None => {
                let why = why_left_out(figure.field, one);
                return why.map(Err).with_context(|| format!("the benchmark printed no {}", figure.field));
            }
        }
    }
    Ok(Ok(values))
}

/// The reason beside a figure that is null. Its name is a prefix of the figure's name, followed by `_left_out`.
fn why_left_out(field: &str, one: &Value) -> Option<String> {
    let reason = |(name, why): (&String, &Value)| {
        let what = name.strip_suffix("_left_out")?;
        field.strip_prefix(what)?.starts_with('_').then_some(why.as_str()?.to_owned())
    };
    one.get(field).filter(|value| value.is_null())?;
    one.as_object()?.iter().find_map(reason)
}

impl Outcome {
    fn numbers(&self) -> &[f64] {
        self.values.as_deref().unwrap_or_default()
    }

    /// Not a number if there are no values.
    fn median(&self) -> f64 {
        statistics::median(&mut self.numbers().to_vec())
    }

    /// Whether it reaches its target; a figure that this machine does not have counts as met.
    fn is_met(&self) -> bool {
        self.values.is_err() || self.figure.target.is_met(self.median())
    }

    /// The median of the ratios of each run to the other checkout's run beside it.
    fn over_other(&self) -> Option<f64> {
        let other = self.other.as_ref()?.as_ref().ok()?;
        let mut ratios: Vec<f64> = self.numbers().iter().zip(other).map(|(here, there)| here / there).collect();
        (!ratios.is_empty()).then(|| statistics::median(&mut ratios))
    }

    fn row(&self) -> Vec<String> {
        let mut row = vec![self.figure.words.to_owned()];
        row.extend(spread(self.numbers()));
        row.push(self.figure.target.to_string());
        let verdict = match (&self.values, self.is_met()) {
            (Err(_), _) => "SKIPPED",
            (Ok(_), true) => "",
            (Ok(_), false) => "MISSED",
        };
        row.push(verdict.to_owned());
        if let Some(other) = &self.other {
            row.extend(spread(other.as_deref().unwrap_or_default()));
            row.push(self.over_other().map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}")));
        }
        row
    }
}

/// Median, least and most of some values; empty cells without values.
fn spread(values: &[f64]) -> [String; 3] {
    if values.is_empty() {
        return Default::default();
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    [statistics::median(&mut values.to_vec()), least, most].map(shown)
}

fn shown(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

/// The folder of `benchmarks/runs` that keeps the results.
fn kept_in(workspace: &Workspace, machine: &Machine) -> PathBuf {
    workspace.root.join("benchmarks/runs").join(machine.folder())
}

/// Writes `results.json` and `README.md` into a new folder of `benchmarks/runs`.
fn write(
    workspace: &Workspace,
    machine: &Machine,
    conditions: &str,
    options: &Options,
    raw: &BTreeMap<String, Vec<Value>>,
    outcomes: &[Outcome],
) -> Result<()> {
    let folder = kept_in(workspace, machine);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let figures: Vec<Value> = outcomes
        .iter()
        .map(|one| {
            let met = one.values.is_ok().then(|| one.is_met());
            json!({ "benchmark": one.benchmark, "field": one.figure.field, "median": one.median(),
                    "values": one.numbers(), "target": one.figure.target.to_string(), "met": met,
                    "left_out": one.values.as_ref().err(), "other": one.other.as_ref().map(|it| it.as_ref().ok()),
                    "other_left_out": one.other.as_ref().map(|it| it.as_ref().err()), "over_other": one.over_other() })
        })
        .collect();
    let runs = options.runs;
    let results = json!({ "machine": machine.describe(), "conditions": conditions, "runs": runs, "figures": figures, "raw": raw });
    files::write(&folder.join("results.json"), format!("{}\n", serde_json::to_string_pretty(&results)?))?;
    let mut page = format!("# Benchmarks of {}\n\n{conditions}\n\n", machine.date);
    let against = options.against.map_or("", |_| " --against CHECKOUT");
    page.push_str(&format!(
        "Made by `cargo xtask bench --runs {runs}{against}`; raw results in [results.json](results.json).\n\n"
    ));
    let heads = heads(options.against.is_some());
    page.push_str(&format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len())));
    for outcome in outcomes {
        page.push_str(&format!("| {} |\n", outcome.row().join(" | ")));
    }
    // An empty last cell would leave a space at the end of the line.
    files::write(&folder.join("README.md"), page.replace(" |  |\n", " | |\n"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::targets::Target;
    use super::*;

    static FIGURE: Figure = Figure { field: "x_over_y", words: "x / y", target: Target::AtMost(1.5) };

    fn outcome(values: &[f64]) -> Outcome {
        Outcome { figure: &FIGURE, benchmark: "fault", values: Ok(values.to_vec()), other: None }
    }

    #[test]
    fn the_median_decides() {
        assert_eq!(outcome(&[3.0, 1.0, 1.2]).median(), 1.2);
        assert_eq!(outcome(&[2.0, 1.0]).median(), 1.5);
        assert!(outcome(&[9.0, 1.0, 1.5]).is_met());
        assert!(!outcome(&[1.0, 1.6, 1.7]).is_met());
        assert_eq!(outcome(&[1.6]).row(), ["x / y", "1.600", "1.600", "1.600", "<= 1.5", "MISSED"]);
    }

    #[test]
    fn two_builds_are_compared_run_by_run() {
        let order = std::cell::RefCell::new(String::new());
        let say = |who: char| {
            order.borrow_mut().push(who);
            Ok(json!(order.borrow().len()))
        };
        let (here, there) = in_turns(3, || say('h'), Some(|| say('t'))).unwrap();
        assert_eq!(*order.borrow(), "htthht");
        assert_eq!(
            (here, there.unwrap().unwrap()),
            (vec![json!(1), json!(4), json!(5)], vec![json!(2), json!(3), json!(6)])
        );
        let other = Some(Ok(vec![1.0, 4.0, 2.0]));
        let two = Outcome { other, ..outcome(&[1.0, 2.0, 1.2]) };
        assert_eq!(two.row()[5..], ["", "2", "1", "4", "0.60"]);
        let none = Outcome { other: Some(Err("unknown".to_owned())), ..outcome(&[1.0]) };
        assert_eq!(none.row()[6..], ["", "", "", "–"]);
        assert_eq!(none.row().len(), heads(true).len());
    }

    #[test]
    fn the_other_build_may_fail_alone() {
        let this = || Ok(json!(1));
        let (here, there) = in_turns(2, this, Some(|| bail!("it has no such benchmark"))).unwrap();
        assert_eq!((here.len(), there.unwrap().is_err()), (2, true));
        assert!(in_turns(2, || bail!("broken"), Some(this)).is_err());
        let other = Workspace { root: "/a/clone".into(), target: "/a/clone/target".into() };
        assert_eq!(without_path("`/a/clone/x` ended", Some(&other)), "`CHECKOUT/x` ended");
    }

    #[test]
    fn a_check_is_its_last_object_with_the_steps_of_all() {
        let found = last_of("{\"a\": 1, \"steps\": 30}\n{\"a\": 2, \"steps\": 10}\n", 4.0).unwrap();
        assert_eq!(found, json!({"a": 2, "steps": 10, "call_seconds": 4.0, "call_steps_per_second": 10.0}));
        assert!(last_of("no\n", 1.0).is_err());
    }

    #[test]
    fn a_missing_figure_is_an_error() {
        assert_eq!(values_of(&FIGURE, &[json!({"x_over_y": 1})]).unwrap().unwrap(), [1.0]);
        let error = values_of(&FIGURE, &[json!({"x_over_y": 1}), json!({})]).unwrap_err().to_string();
        assert_eq!(error, "the benchmark printed no x_over_y");
    }

    #[test]
    fn a_figure_that_is_null_needs_a_reason_of_its_own() {
        let found = |reason: &str| [json!({"x_over_y": null, reason: "there is no x here"})];
        let why = values_of(&FIGURE, &found("x_left_out")).unwrap().unwrap_err();
        assert_eq!(why, "there is no x here");
        assert!(values_of(&FIGURE, &found("y_left_out")).is_err());
        let skipped = Outcome { figure: &FIGURE, benchmark: "fault", values: Err(why), other: None };
        assert!(skipped.is_met() && skipped.median().is_nan());
        assert_eq!(skipped.row(), ["x / y", "", "", "", "<= 1.5", "SKIPPED"]);
    }

    #[test]
    fn benchmarks_are_chosen_by_name() {
        assert_eq!(choose(&[]).unwrap().len(), TARGETS.len());
        assert!(choose(&["lock".to_owned()]).unwrap().iter().all(|one| one.name == "lock"));
        let paper = choose(&["reproduce bluebridge".to_owned()]).unwrap();
        assert!(!paper.is_empty() && paper.iter().all(|one| one.arguments[0] == "bluebridge"));
        assert!(
            choose(&["haste".to_owned()])
                .unwrap_err()
                .to_string()
                .starts_with("--only haste: no benchmark has this name")
        );
    }
}
