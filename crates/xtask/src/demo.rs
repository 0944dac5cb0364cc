//! `cargo xtask demo`: sorts ten million integers on 1, 2 and 4 nodes, and compares each result with a plain sort.
//!
//! Promises: it leaves its files in the target folder and nothing else. It must never print a time for a wrong
//! result.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::compiler;
use crate::features;
use crate::programs::{self, Psort};
use crate::workspace::{Profile, Workspace};
use crate::{install, setup, step};

/// Builds what is needed and runs the demonstration.
pub(crate) fn run(workspace: &Workspace, elements: u64) -> Result<()> {
    setup::ensure(&[setup::COMPILER])?;
    workspace.build_to_try()?;
    let psort = programs::build_psort(workspace)?;
    let folder = workspace.target.join("demo");
    std::fs::create_dir_all(&folder)?;
    let plain_sort = folder.join("plain_sort");
    programs::compile(workspace, "crates/xtask/assets/plain_sort.cpp", &plain_sort, None)?;
    let (input, expected) = (folder.join("numbers.bin"), folder.join("expected.bin"));
    step::step(&format!("make {elements} random integers"), || {
        step::run(workspace.command(&plain_sort).arg("make").arg(elements.to_string()).arg(&input))
    })?;
    let (plain_ms, plain_whole_ms) = step::step("sort them without Trellis", || {
        let start = Instant::now();
        let said = step::output(workspace.command(&plain_sort).arg("sort").arg(&input).arg(&expected))?;
        let whole_ms = start.elapsed().as_secs_f64() * 1e3;
        let sort_ms = said.trim().parse().with_context(|| format!("the plain sort said no time: {said:?}"))?;
        Ok((sort_ms, whole_ms))
    })?;
    let without = [
        "without Trellis".to_owned(),
        number(plain_ms),
        number(plain_whole_ms),
        "0".to_owned(),
        "0".to_owned(),
        "0".to_owned(),
    ];
    let mut rows = vec![without.to_vec()];
    for nodes in [1, 2, 4] {
        let name = format!("sort them on {nodes} {}", if nodes == 1 { "node" } else { "nodes" });
        rows.push(step::step(&name, || sort(workspace, &psort, nodes, elements, &input, &expected))?);
    }
    println!(
        "\n{} integers of 64 bits, read from a file, sorted, written to a file; every result is right.\n",
        grouped(elements)
    );
    let heads = ["", "sort (ms)", "program (ms)", "faults", "pages moved", "bytes moved"];
    print!("{}", table(&heads.map(str::to_owned), &rows));
    println!(
        "\nEach run left a record; a page of the one on 2 nodes: {} report {}",
        workspace.trellis().display(),
        folder.join("record-2").display()
    );
    Ok(())
}

/// Measures one row of the table.
fn sort(
    workspace: &Workspace,
    psort: &Path,
    nodes: usize,
    elements: u64,
    input: &Path,
    expected: &Path,
) -> Result<Vec<String>> {
    let folder = workspace.target.join("demo");
    let output = folder.join(format!("sorted-{nodes}.bin"));
    if output.exists() {
        std::fs::remove_file(&output)?;
    }
    let arguments = ["--input", &input.to_string_lossy(), "--output", &output.to_string_lossy()].map(str::to_owned);
    let sorted = Psort {
        program: psort,
        nodes,
        settings: &[format!("region_bytes={}", region_bytes(elements)), "heap_bytes=0".to_owned()],
        arguments: &arguments,
        record: &folder.join(format!("record-{nodes}")),
    }
    .run(workspace)?;
    programs::compare(&output, expected)?;
    Ok(vec![
        format!("{nodes} {}", if nodes == 1 { "node" } else { "nodes" }),
        number(sorted.milliseconds),
        number(sorted.whole.as_secs_f64() * 1e3),
        grouped(sorted.faults),
        grouped(sorted.pages),
        grouped(sorted.bytes),
    ])
}

/// Room for the integers and the program's own data, in steps of 64 MiB; at least the default.
fn region_bytes(elements: u64) -> u64 {
    (elements * 8 + (1 << 20)).next_multiple_of(64 << 20).max(256 << 20)
}

/// Installs the command, the library, the headers, and the files for pkg-config and CMake; the first two with these
/// features.
pub(crate) fn install_under(workspace: &Workspace, prefix: &Path, features: &[String]) -> Result<()> {
    let built = features::build_release(workspace, features)?;
    let prefix = workspace.root.join(prefix);
    install_built(workspace, &built, Profile::Release, &prefix)?;
    let with = if features.is_empty() { String::new() } else { format!(", with {}", features.join(", ")) };
    println!(
        "installed {}, the library and its headers{with}; what debuggers need is beside, in .debug",
        prefix.join("bin/trellis").display()
    );
    Ok(())
}

/// The same with what was built already, in silence.
pub(crate) fn install_built(workspace: &Workspace, built: &Workspace, profile: Profile, prefix: &Path) -> Result<()> {
    programs::install_library(built, profile, prefix)?;
    for library in [&format!("libtrellis.so.{}", env!("CARGO_PKG_VERSION")), install::CALLS, install::THREADS] {
        programs::separate_symbols(&prefix.join("lib").join(library))?;
    }
    // Users who do not compile for a store need no clang.
    match setup::ensure(setup::PASS) {
        Ok(()) => compiler::install(workspace, prefix)?,
        Err(error) => eprintln!("    left out: `trellis cc` and the library of `trellis store run`: {error:#}"),
    }
    std::fs::create_dir_all(prefix.join("bin"))?;
    for name in ["trellis", "trellis-bench"] {
        let program = prefix.join("bin").join(name);
        // A running program cannot be written, but it can be replaced.
        let unfinished = prefix.join(format!("bin/.{name}.new"));
        std::fs::copy(built.built(profile, name), &unfinished)
            .and_then(|_| std::fs::rename(&unfinished, &program))
            .with_context(|| format!("cannot write {}", program.display()))?;
        programs::separate_symbols(&program)?;
    }
    Ok(())
}

fn number(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { grouped(value.round() as u64) }
}

/// A whole number with thin spaces between groups of three digits.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Columns as wide as their widest entry; all but the first aligned to the right.
pub(crate) fn table(heads: &[String], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let entries = rows.iter().map(|row| row[column].chars().count());
        entries.chain([heads[column].chars().count()]).max().unwrap_or(0)
    };
    let line = |cells: &[String]| {
        let padded = cells.iter().enumerate().map(|(column, cell)| {
            let wide = width(column);
            if column == 0 { format!("{cell:<wide$}") } else { format!("{cell:>wide$}") }
        });
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    std::iter::once(line(heads)).chain(rows.iter().map(|row| line(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([1.25, 99.0, 1234.4].map(number), ["1.2", "99.0", "1,234"]);
    }

    #[test]
    fn a_region_has_room_for_the_numbers() {
        assert_eq!(region_bytes(1), 256 << 20);
        assert_eq!(region_bytes(10_000_000), 256 << 20);
        assert_eq!(region_bytes(100_000_000), 768 << 20);
    }

    #[test]
    fn a_table_is_aligned() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["bb".to_owned(), "1,000".to_owned()]];
        assert_eq!(table(&["".to_owned(), "ms".to_owned()], &rows), "       ms\na       1\nbb  1,000\n");
    }
}
