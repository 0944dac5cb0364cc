//! `cargo xtask ci`: runs the checks that every change must pass, the quick ones first, all in one target folder. With
//! `--full` it goes on with those that build the project in other ways: the documents, the packages, the features.
//!
//! It stops at the first check that fails, because the later ones take minutes.

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use crate::{
    checks, dependencies, documents, instructions, matrix, optional, package, pages, pure, setup, site, spelling, step,
    tidy,
};

/// Runs the checks of every change, or all checks.
pub(crate) fn run(workspace: &Workspace, in_full: bool) -> Result<()> {
    let start = std::time::Instant::now();
    setup::ensure(setup::NEEDED)?;
    step::step("files: sizes, openings, unsafe, links", || tidy::check(&workspace.root))?;
    step::step("spelling", || spelling::check(workspace))?;
    step::step("pages that are made from other files", || pages::check(&workspace.root))?;
    step::command("format", workspace.cargo().args(["fmt", "--all", "--check"]))?;
    step::step("dependencies: licences, sources, layers", || dependencies::check(workspace))?;
    let mut clippy = workspace.cargo();
    clippy.args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]);
    step::command("lints", &mut clippy)?;
    let mut small = workspace.cargo();
    small.args(["clippy", "--no-default-features", "-p", "trellis-cli", "-p", "trellis-c", "--locked"]);
    step::command("lints: what `cargo xtask demo` builds", small.args(["--", "-D", "warnings"]))?;
    let mut documentation = workspace.cargo();
    documentation.args(["doc", "--workspace", "--no-deps", "--locked"]).env("RUSTDOCFLAGS", "-D warnings");
    step::command("documentation", &mut documentation)?;
    step::step("the protocols need no operating system", || pure::check(workspace))?;
    let readme = std::fs::read_to_string(workspace.root.join("README.md")).context("README.md cannot be read")?;
    let words = test_command(&readme)?;
    let mut test = workspace.command(&words[0]);
    step::command(&format!("the README's test command: {}", words.join(" ")), test.args(&words[1..]))?;
    step::step("protocols: mutants, explorations, swarms, litmus tests, histories", || checks::run(workspace))?;
    step::step("instructions of the protocols for a fault", || instructions::run(workspace, false))?;
    matrix::run(workspace, true, None)?;
    if in_full {
        site::check(workspace)?;
        documents::run(workspace, None)?;
        package::check(workspace)?;
        optional::check(workspace)?;
    }
    let which = if in_full { "all checks" } else { "the checks of every change (`--full` has more)" };
    eprintln!("==> {which} passed in {}", step::seconds(start.elapsed()));
    Ok(())
}

/// The test command of the README: the only line of its code blocks with this beginning.
fn test_command(readme: &str) -> Result<Vec<String>> {
    let mut inside_block = false;
    let mut found = Vec::new();
    for line in readme.lines().map(str::trim) {
        if line.starts_with("```") {
            inside_block = !inside_block;
        } else if inside_block && line.trim_start_matches("$ ").starts_with("cargo xtask test") {
            let command = line.trim_start_matches("$ ").split('#').next().unwrap_or(line);
            found.push(command.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        }
    }
    found.dedup();
    match <[Vec<String>; 1]>::try_from(found) {
        Ok([words]) => Ok(words),
        Err(found) => {
            bail!("README.md has {} test commands; it needs one line `cargo xtask test` in a code block", found.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_command_is_taken_from_a_code_block() {
        let readme = "Run `cargo xtask test`.\n```\ncargo xtask demo\n$ cargo xtask test   # all of them\n```\n";
        assert_eq!(test_command(readme).unwrap(), ["cargo", "xtask", "test"]);
        assert!(
            test_command("cargo xtask test\n").unwrap_err().to_string().starts_with("README.md has 0 test commands")
        );
        assert!(test_command("```\ncargo xtask test\ncargo xtask test --fast\n```").is_err());
    }
}
