//! `--count`: the paper's instruction counts (section 6.2, figure 6.1) of the compiled code.
//!
//! Promises: counts what this call compiled, function by function, and the sums. It must never count a function of a
//! library.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use trellis_command::exit::{self, Failure};
use trellis_command::scratch::Scratch;

/// The file to which the pass writes, one line of JSON for each function; it is removed with this value.
pub(super) struct CountFile {
    path: PathBuf,
    _folder: Scratch,
}

#[derive(Debug, Serialize, Deserialize)]
struct Row {
    file: String,
    function: String,
    original: u64,
    after: u64,
}

#[derive(Serialize)]
struct Report {
    rows: Vec<Row>,
    original: u64,
    after: u64,
}

impl CountFile {
    /// Makes an empty file of this process.
    pub(super) fn create() -> Result<CountFile, Failure> {
        let folder = Scratch::new("count")?;
        let path = folder.file("counts.json");
        std::fs::write(&path, "").map_err(|error| cannot("write", &path, &error))?;
        Ok(CountFile { path, _folder: folder })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The table, or the same as JSON.
    pub(super) fn report(&self, json: bool) -> Result<String, Failure> {
        let text = std::fs::read_to_string(&self.path).map_err(|error| cannot("read", &self.path, &error))?;
        let rows = text.lines().map(serde_json::from_str).collect::<Result<Vec<Row>, _>>().map_err(|error| {
            Failure::new(exit::FILE, format!("the pass wrote counts that cannot be read: {error}; build it again"))
        })?;
        let report = Report {
            original: rows.iter().map(|row| row.original).sum(),
            after: rows.iter().map(|row| row.after).sum(),
            rows,
        };
        if json {
            let text = serde_json::to_string(&report)
                .map_err(|error| Failure::new(exit::FILE, format!("cannot write the counts as JSON: {error}")))?;
            return Ok(text + "\n");
        }
        Ok(table(&report))
    }
}

fn cannot(verb: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(exit::FILE, format!("cannot {verb} {}: {error}", path.display()))
}

fn table(report: &Report) -> String {
    let names = report.rows.iter().map(|row| row.function.chars().count());
    let width = names.max().unwrap_or(0).clamp("function".len(), 60);
    let mut text = format!("{:width$}  {:>8}  {:>8}  {:>8}\n", "function", "original", "after", "growth");
    let mut line = |name: &str, original: u64, after: u64| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:width$}  {original:>8}  {after:>8}  {:>8}", growth(original, after));
    };
    for row in &report.rows {
        line(&row.function, row.original, row.after);
    }
    line("total", report.original, report.after);
    text
}

fn growth(original: u64, after: u64) -> String {
    if original == 0 {
        return String::new();
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of instructions are far below 2^52")]
    let percent = (after as f64 / original as f64 - 1.0) * 100.0;
    format!("{percent:+.1} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_and_the_growth_are_those_of_the_rows() {
        let file = CountFile::create().expect("the temporary folder can be written");
        let rows = "{\"file\":\"x.c\",\"function\":\"f()\",\"original\":10,\"after\":15}\n\
                    {\"file\":\"x.c\",\"function\":\"g()\",\"original\":30,\"after\":35}\n";
        std::fs::write(file.path(), rows).expect("it can be written");
        let table = file.report(false).expect("the rows are well formed");
        assert!(table.contains("f()             10        15   +50.0 %"), "{table}");
        assert!(table.contains("total           40        50   +25.0 %"), "{table}");
        let json = file.report(true).expect("the rows are well formed");
        assert!(json.contains("\"original\":40,\"after\":50"), "{json}");
        std::fs::write(file.path(), "nonsense\n").expect("it can be written");
        assert!(file.report(false).is_err());
    }
}
