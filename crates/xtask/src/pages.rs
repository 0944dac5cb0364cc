//! `cargo xtask pages`: writes the parts of the documentation that are generated from other files.
//!
//! A page contains `<!-- scripts NAME -->` where the table of the text scripts of a protocol crate's `tests/scripts/NAME`
//! belongs: what each shows, which is its first comment, and a link to it. The page of the benchmarks contains
//! `<!-- speed -->` where the table of the newest kept run of `trellis bench speed` belongs, the page of the catchers
//! `<!-- fault -->` where the parts of one fault belong, of the newest kept run of `trellis bench links`. The text between
//! such a line and the end mark of its kind is generated. The README has `<!-- threads -->` where the ratios of the
//! newest kept run of the benchmark of programs with threads belong. Promises: a page whose table is up to date is not
//! touched, and [`check`] names the pages that are not. It must never change anything outside the marks.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use trellis_base::statistics::median;

use crate::bench::targets;

/// The folder of the pages with scripts.
const PAGES: &str = "docs/protocols";
const SCRIPTS: [&str; 2] =
    ["crates/trellis-cluster-protocol/tests/scripts", "crates/trellis-fabric-protocol/tests/scripts"];
const SCRIPTS_END: &str = "<!-- end of scripts -->";
/// The page with the figures, and the kept runs.
const FIGURES: &str = "docs/reference/benchmarks.md";
const RUNS: &str = "benchmarks/runs";
const SPEED: &str = "<!-- speed -->";
const SPEED_END: &str = "<!-- end of speed -->";
/// The name of the benchmark whose rows are shown.
const SPEED_BENCHMARK: &str = "speed";
/// The page with the parts of a fault, and the benchmark that measures them.
const CATCHERS: &str = "docs/concepts/catchers.md";
const FAULT: &str = "<!-- fault -->";
const FAULT_END: &str = "<!-- end of fault -->";
const FAULT_BENCHMARK: &str = "links --rounds 1";
/// The page with programs with threads, and the fields of their times in milliseconds and of their ratios.
const README: &str = "README.md";
const THREADS: &str = "<!-- threads -->";
const THREADS_END: &str = "<!-- end of threads -->";
const WITH_THREADS: [(&str, &str, &str); 5] = [
    ("a loop with a sum (OpenMP)", "integrate_alone_ms", "integrate_ratio"),
    ("matrix product 1,024 (OpenMP)", "matmul_1024_alone_ms", "matmul_1024_ratio"),
    ("Jacobi 2,000 x 2,000, 200 steps (OpenMP)", "jacobi_2000_alone_ms", "jacobi_2000_ratio"),
    ("`pigz`", "pigz_alone_ms", "pigz_ratio"),
    ("`povray`", "povray_alone_ms", "povray_ratio"),
];
/// Each link with the field of its round trip.
const LINKS: [(&str, &str); 2] = [("shm", "memory_round_trip_us_p50"), ("tcp", "tcp_round_trip_us_p50")];
/// A letter of the bar is so many microseconds.
const LETTER_US: f64 = 0.5;

/// Updates every page.
pub(crate) fn write(root: &Path) -> Result<()> {
    for page in pages(root)? {
        if page.is != page.should_be {
            std::fs::write(&page.path, &page.should_be).with_context(|| format!("{} cannot be written", page.name))?;
            println!("{}", page.name);
        }
    }
    Ok(())
}

/// Errors for the pages that are not up to date.
pub(crate) fn check(root: &Path) -> Result<()> {
    let old: Vec<String> =
        pages(root)?.into_iter().filter(|page| page.is != page.should_be).map(|page| page.name).collect();
    if !old.is_empty() {
        bail!("{} not up to date with its sources; run `cargo xtask pages`", old.join(", "));
    }
    Ok(())
}

struct Page {
    path: PathBuf,
    name: String,
    is: String,
    should_be: String,
}

fn pages(root: &Path) -> Result<Vec<Page>> {
    let mut pages = Vec::new();
    let paths =
        sorted_files(&root.join(PAGES))?.into_iter().chain([FIGURES, CATCHERS, README].map(|page| root.join(page)));
    for path in paths {
        let is = std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let should_be = with_scripts(&is, root, &SCRIPTS.map(|scripts| root.join(scripts)))
            .and_then(|page| with_parts(&page, SPEED_END, |line| (line == SPEED).then(|| speed(root))))
            .and_then(|page| with_parts(&page, FAULT_END, |line| (line == FAULT).then(|| fault(root))))
            .and_then(|page| with_parts(&page, THREADS_END, |line| (line == THREADS).then(|| with_threads(root))));
        let should_be = should_be.with_context(|| name.clone())?;
        pages.push(Page { path, name, is, should_be });
    }
    Ok(pages)
}

/// The page with what `made` makes of lines that begin a generated part, up to the mark `end`.
fn with_parts(page: &str, end: &str, made: impl Fn(&str) -> Option<Result<String>>) -> Result<String> {
    let mut whole = String::new();
    let mut rest = page.lines();
    while let Some(line) = rest.next() {
        whole += line;
        whole += "\n";
        let Some(part) = made(line) else { continue };
        let _ = write!(whole, "\n{}\n{end}\n", part?);
        // Existing parts extend to their end mark; a new page has none.
        let old: Vec<&str> = rest.clone().collect();
        if let Some(place) = old.iter().position(|line| *line == end) {
            rest.nth(place);
        }
    }
    Ok(whole)
}

/// The page with the table of the present scripts.
fn with_scripts(page: &str, root: &Path, scripts: &[PathBuf]) -> Result<String> {
    with_parts(page, SCRIPTS_END, |line| {
        let folder = line.strip_prefix("<!-- scripts ").and_then(|rest| rest.strip_suffix(" -->"))?;
        Some(table_of_scripts(folder, root, scripts))
    })
}

fn table_of_scripts(folder: &str, root: &Path, scripts: &[PathBuf]) -> Result<String> {
    let Some(scripts) = scripts.iter().map(|scripts| scripts.join(folder)).find(|scripts| scripts.is_dir()) else {
        bail!("there are no scripts of {folder}");
    };
    let mut made = "| script | what it shows |\n|---|---|\n".to_owned();
    for script in sorted_files(&scripts)? {
        let text = std::fs::read_to_string(&script).with_context(|| format!("{} cannot be read", script.display()))?;
        let name = script.file_stem().unwrap_or_default().to_string_lossy();
        let place = script.strip_prefix(root).unwrap_or(&script).display();
        let _ = writeln!(made, "| [{}](../../{place}) | {} |", title(&name), first_comment(&text));
    }
    Ok(made)
}

/// The results of a kept run.
struct Kept {
    /// The results of each run of the benchmark.
    runs: Vec<Value>,
    machine: Value,
    place: String,
}

impl Kept {
    /// The last kept run of the benchmark whose results have `field`, of those whose files were as committed.
    fn newest(root: &Path, benchmark: &str, field: &str) -> Result<Kept> {
        let mut kept: Vec<PathBuf> = std::fs::read_dir(root.join(RUNS))
            .and_then(|runs| runs.map(|run| Ok(run?.path())).collect())
            .with_context(|| format!("{RUNS} cannot be read"))?;
        // Names begin with the date.
        kept.sort();
        for folder in kept.iter().rev() {
            let path = folder.join("results.json");
            let text = std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            let results: Value =
                serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
            let is_changed = results["machine"]["changed"].as_bool().unwrap_or(false);
            let runs = results["raw"][benchmark].as_array().filter(|_| !is_changed);
            if let Some(runs) = runs.filter(|runs| !runs.is_empty() && runs.iter().all(|run| run.get(field).is_some()))
            {
                let place = folder.strip_prefix(root).unwrap_or(folder).display().to_string();
                return Ok(Kept { runs: runs.clone(), machine: results["machine"].clone(), place });
            }
        }
        let name = benchmark.split(' ').next().unwrap_or_default();
        bail!("no run in {RUNS} has `{benchmark}` with `{field}`; make one with `cargo xtask bench --only {name}`")
    }

    /// The median of a field of all runs.
    fn median(&self, field: &str) -> Result<f64> {
        let mut values: Vec<f64> = self.runs.iter().filter_map(|run| run[field].as_f64()).collect();
        if values.is_empty() {
            bail!("{} has no `{field}`", self.place);
        }
        Ok(median(&mut values))
    }

    /// Where and when this was measured.
    fn source(&self) -> String {
        let fact = |name: &str| self.machine[name].as_str().unwrap_or("unknown").to_owned();
        format!(
            "\nMeasured on {}, {} cores, {}, {}:\n[the kept run](../../{}/README.md).\n",
            fact("processor"),
            self.machine["cores"],
            fact("kernel"),
            fact("date"),
            self.place
        )
    }
}

fn speed(root: &Path) -> Result<String> {
    table_of_speed(&Kept::newest(root, SPEED_BENCHMARK, "rows")?)
}

fn fault(root: &Path) -> Result<String> {
    parts_of_fault(&Kept::newest(root, FAULT_BENCHMARK, "shm_rest_us")?)
}

/// The time of each program with two threads, and what it is beside the time on two nodes.
fn with_threads(root: &Path) -> Result<String> {
    let kept = Kept::newest(root, targets::THREADS, "povray_ratio")?;
    let mut made = "| program | 2 threads | 2 threads / 2 nodes |\n|---|---|---|\n".to_owned();
    for (program, time, ratio) in WITH_THREADS {
        let (seconds, ratio) = (kept.median(time)? / 1e3, kept.median(ratio)?);
        let _ = writeln!(made, "| {program} | {seconds:.2} s | {ratio:.2} |");
    }
    let _ = write!(made, "\n[Measured]({}/README.md) on two cores of one machine.\n", kept.place);
    Ok(made)
}

/// A bar for each link, and the numbers.
fn parts_of_fault(kept: &Kept) -> Result<String> {
    let (local, downgrade) = (kept.median("local_fault_us_p50")?, kept.median("downgrade_us_p50")?);
    let mut bars = String::new();
    let mut table =
        "| link | whole | local fault (F) | change at the owner (O) | round trip (T) | rest (R) |\n".to_owned();
    table += "|---|---|---|---|---|---|\n";
    for (link, round_trip) in LINKS {
        let whole = kept.median(&format!("{link}_read_us_p50"))?;
        let (trip, rest) = (kept.median(round_trip)?, kept.median(&format!("{link}_rest_us"))?);
        let letters: String = [("F", local), ("O", downgrade), ("T", trip), ("R", rest)]
            .map(|(letter, us)| letter.repeat((us / LETTER_US).round().max(0.0) as usize))
            .concat();
        let _ = writeln!(bars, "{link}  {letters}  {} µs", three_digits(whole));
        let numbers = [whole, local, downgrade, trip, rest].map(|us| format!("{} µs", three_digits(us)));
        let _ = writeln!(table, "| `{link}` | {} |", numbers.join(" | "));
    }
    Ok(format!("```text\n{bars}```\n\n{table}{}", kept.source()))
}

/// The medians of all runs in each column.
fn table_of_speed(kept: &Kept) -> Result<String> {
    let rows = |run: &Value| run["rows"].as_array().cloned().unwrap_or_default();
    let runs: Vec<Vec<Value>> = kept.runs.iter().map(rows).collect();
    let first = runs.first().filter(|rows| !rows.is_empty()).context("the run has no rows")?;
    let mut made = "| two processes | no option | best options | threads or memory |\n|---|---|---|---|\n".to_owned();
    for (index, row) in first.iter().enumerate() {
        let cell = |column: &str| {
            let mut values: Vec<f64> = runs.iter().filter_map(|rows| rows.get(index)?[column].as_f64()).collect();
            if values.is_empty() { "–".to_owned() } else { three_digits(median(&mut values)) }
        };
        let text = |name: &str| row[name].as_str().unwrap_or_default();
        let (default, best, limit) = (cell("default"), cell("best"), cell("limit"));
        let _ = writeln!(made, "| {} ({}) | {default} | {best} | {limit} |", text("words"), text("unit"));
    }
    made += &kept.source();
    Ok(made)
}

/// Rounds to three digits, and puts a comma before each three of a whole number.
fn three_digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = value.abs().log10().floor() as i32;
    let size = 10f64.powi(digits - 2);
    let rounded = (value / size).round() * size;
    if rounded < 100.0 {
        let places = usize::try_from(2 - rounded.abs().log10().floor() as i32).unwrap_or(0);
        return format!("{rounded:.places$}");
    }
    let digits = format!("{rounded:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// The title of a script: `04-two-writers-queue` becomes "Two writers queue".
fn title(stem: &str) -> String {
    let words = stem.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '-').replace('-', " ");
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The comment at the start of a script, in one line.
fn first_comment(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix('#'));
    lines.map(str::trim).collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn sorted_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    let mut paths: Vec<_> = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn kept(runs: Vec<Value>) -> super::Kept {
        let machine = json!({ "processor": "Fast", "cores": 2, "kernel": "Linux", "date": "2026-01-31" });
        super::Kept { runs, machine, place: "runs/x".to_owned() }
    }

    #[test]
    fn figures_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.0123, "0.0123"),
            (2.0, "2.00"),
            (13.37, "13.4"),
            (9.995, "9.99"),
            (99.99, "100"),
            (999.6, "1,000"),
            (537.4, "537"),
            (88_412.0, "88,400"),
            (1_234_567.0, "1,230,000"),
        ] {
            assert_eq!(super::three_digits(value), text);
        }
    }

    #[test]
    fn a_kept_run_becomes_a_table_of_medians() {
        let run = |default: f64| json!({ "rows": [{ "words": "work", "unit": "ms", "default": default, "best": 2.0, "limit": null }] });
        let made = super::table_of_speed(&kept(vec![run(9.0), run(3.0), run(4.0)])).unwrap();
        assert!(made.contains("\n| work (ms) | 4.00 | 2.00 | – |\n"), "{made}");
        assert!(
            made.contains("\nMeasured on Fast, 2 cores, Linux, 2026-01-31:\n[the kept run](../../runs/x/README.md).\n"),
            "{made}"
        );
        assert!(super::table_of_speed(&kept(vec![json!({})])).is_err());
    }

    #[test]
    fn the_parts_of_a_fault_become_a_bar_as_long_as_they_are() {
        let mut run = json!({ "local_fault_us_p50": 3.0, "downgrade_us_p50": 1.0 });
        for (link, whole, round_trip, trip, rest) in
            [("shm", 6.0, "memory_round_trip_us_p50", 0.5, 1.5), ("tcp", 14.0, "tcp_round_trip_us_p50", 8.0, 2.0)]
        {
            run[format!("{link}_read_us_p50")] = json!(whole);
            run[round_trip] = json!(trip);
            run[format!("{link}_rest_us")] = json!(rest);
        }
        let made = super::parts_of_fault(&kept(vec![run])).unwrap();
        assert!(
            made.starts_with("```text\nshm  FFFFFFOOTRRR  6.00 µs\ntcp  FFFFFFOOTTTTTTTTTTTTTTTTRRRR  14.0 µs\n"),
            "{made}"
        );
        assert!(made.contains("\n| `shm` | 6.00 µs | 3.00 µs | 1.00 µs | 0.500 µs | 1.50 µs |\n"), "{made}");
        assert!(super::parts_of_fault(&kept(vec![json!({})])).is_err());
    }

    #[test]
    fn scripts_are_put_between_the_marks_and_once() {
        let folder = trellis_testing::Folder::new();
        folder.write("p/01-first-touch.txt", "# Touch\n# it.\n\nread n0 p0\n# no\n");
        let page = "# P\n\n<!-- scripts p -->\n\nAfter.\n";
        let with_scripts = |page: &str| super::with_scripts(page, folder.path(), &[folder.path().to_owned()]);
        let once = with_scripts("# P\n\n<!-- scripts p -->\n").unwrap();
        assert!(once.contains("\n| [First touch](../../p/01-first-touch.txt) | Touch it. |\n"), "{once}");
        assert_eq!(with_scripts(&once).unwrap(), once);
        assert!(with_scripts(page).unwrap().ends_with("<!-- end of scripts -->\n\nAfter.\n"));
        assert!(with_scripts("<!-- scripts q -->").is_err());
    }
}
