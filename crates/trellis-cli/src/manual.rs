//! `trellis completions`, the manual pages, and the reference of all options. They are made from the definitions of the
//! command line, as `--help` is.
//!
//! Promises: the same command writes the same bytes in the same environment (some defaults follow from it); a page
//! names no date. It must never write outside the given folder.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, Args};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal;

const EXAMPLES: &str = "\
Examples:
  trellis completions bash > /etc/bash_completion.d/trellis
  trellis completions zsh > ~/.zfunc/_trellis       the folder must be in fpath
  trellis completions fish > ~/.config/fish/completions/trellis.fish

The packages of Trellis bring these files along.";

/// Write the file with which a shell completes command lines
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

/// The arguments of the hidden command that `cargo xtask package` runs.
#[derive(Debug, Args)]
pub(crate) struct ManualArguments {
    /// The folder
    #[arg(required_unless_present = "markdown")]
    folder: Option<PathBuf>,
    /// Print `docs/reference/options.md` instead
    #[arg(long, conflicts_with = "folder")]
    markdown: bool,
}

/// The beginning of the reference of all options.
const OPTIONS: &str = "\
# Options

Every option of every command. `trellis COMMAND --help` has the same texts, with examples and exit codes, and
[Command](cli.md) has what is behind them. This page is printed by `trellis manual --markdown`. Every command also
takes `-h` and `--help`.
";

/// Writes the completions of the command for a shell to standard output.
pub(crate) fn completions(arguments: &CompletionsArguments, mut command: clap::Command) -> Ending {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "trellis", &mut script);
    terminal::put(format_args!("{}", String::from_utf8_lossy(&script)));
    Ok(exit::FINE)
}

/// Writes a manual page (man(7), section 1) for the command and for each of its subcommands, or one page with all options.
pub(crate) fn manual(arguments: &ManualArguments, command: clap::Command) -> Ending {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let Some(folder) = &arguments.folder else {
        let mut page = OPTIONS.to_owned();
        list_options(&mut page, &command);
        terminal::put(format_args!("{page}"));
        return Ok(exit::FINE);
    };
    std::fs::create_dir_all(folder)
        .and_then(|()| write_pages(folder, &command))
        .map_err(|error| Failure::new(exit::FILE, format!("cannot write the manual pages: {error}")))?;
    Ok(exit::FINE)
}

/// The number of options that a command must have in common with an earlier one to refer to it.
const COMMON_MIN: usize = 4;

/// The tables so far: of each command its name and its rows.
type Tables = Vec<(String, BTreeSet<String>)>;

/// Adds the table of each command that is not within another one, in the order of the help.
fn list_options(page: &mut String, command: &clap::Command) {
    let mut before = Tables::new();
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        let about = inner.get_about().map(|about| in_cell(&about.to_string())).unwrap_or_default();
        let name = name_of(inner);
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## `{name}`\n\n{about}.\n\n| option | |\n|---|---|\n{}", rows_of(inner, &mut before));
    }
}

/// The rows of a command, and those of the commands in it, each behind its name. Options that an earlier command has, too,
/// share a row that refers to it.
fn rows_of(command: &clap::Command, before: &mut Tables) -> String {
    let is_listed =
        |argument: &&Arg| !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version");
    let all: Vec<[String; 2]> = command.get_arguments().filter(is_listed).map(option).collect();
    let own: BTreeSet<String> = all.iter().map(row).collect();
    let alike = before.iter().map(|(first, rows)| (rows.intersection(&own).count(), first, rows));
    // Of several, the first one.
    let most = alike.rev().max_by_key(|(count, ..)| *count).filter(|(count, ..)| *count >= COMMON_MIN);
    let is_common = |cells: &&[String; 2]| most.is_some_and(|(_, _, rows)| rows.contains(&row(cells)));
    let mut rows: String = all.iter().filter(|cells| !is_common(cells)).map(row).collect();
    if let Some((_, first, theirs)) = most {
        let names: Vec<&str> = all.iter().filter(is_common).map(|cells| cells[0].as_str()).collect();
        let names = if theirs.is_subset(&own) { "all options".to_owned() } else { names.join(", ") };
        let _ = writeln!(rows, "| {names} of `{first}` | as there |");
    }
    before.push((name_of(command).to_owned(), own));
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        let about = inner.get_about().map(|about| in_cell(&about.to_string())).unwrap_or_default();
        let _ = write!(rows, "| **`{}`** | **{about}** |\n{}", name_of(inner), rows_of(inner, before));
    }
    rows
}

fn name_of(command: &clap::Command) -> &str {
    command.get_bin_name().unwrap_or_else(|| command.get_name())
}

fn row([names, text]: &[String; 2]) -> String {
    format!("| {names} | {text} |\n")
}

/// The cells of an option: how it is written; its text, and what `--help` adds to that.
fn option(argument: &Arg) -> [String; 2] {
    let values =
        argument.get_value_names().filter(|_| argument.is_positional() || argument.get_action().takes_values());
    let value = values.unwrap_or_default().join(" ");
    let names =
        [argument.get_short().map(|short| format!("-{short}")), argument.get_long().map(|long| format!("--{long}"))];
    let mut written: Vec<String> = names.into_iter().flatten().collect();
    match written.last_mut() {
        Some(last) if !value.is_empty() => *last += &format!(" {value}"),
        Some(_) => {}
        None => written.push(value),
    }
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = vec![in_cell(&help)];
    let mut add = |what: &str, values: Vec<String>| {
        if !values.is_empty() {
            let values: Vec<String> = values.iter().map(|value| format!("`{}`", value.replace('|', "\\|"))).collect();
            text.push(format!("{what}: {}", values.join(", ")));
        }
    };
    let takes_values = argument.get_action().takes_values();
    let possible = argument.get_possible_values().into_iter().filter(|one| takes_values && !one.is_hide_set());
    add("Accepted", possible.map(|one| one.get_name().to_owned()).collect());
    let defaults = argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
    // A path is that of the user who asks.
    add("Default", defaults.filter(|value| takes_values && !value.is_empty() && !value.starts_with('/')).collect());
    add("Variable", argument.get_env().into_iter().map(|name| name.to_string_lossy().into_owned()).collect());
    let written: Vec<String> = written.iter().map(|name| format!("`{}`", name.replace('|', "\\|"))).collect();
    [written.join(", "), text.join(". ")]
}

/// Text in a cell of a table; what is code stays as it is.
fn in_cell(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let parts = words.trim_end_matches('.').split('`').enumerate();
    let parts = parts.map(|(place, part)| match place % 2 {
        0 => part.replace('*', "\\*").replace('<', "\\<"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

fn write_pages(folder: &Path, command: &clap::Command) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write_pages(folder, inner)?;
    }
    let man = Man::new(command.clone());
    std::fs::write(folder.join(man.get_filename()), page(&man, command)?)
}

fn page(man: &Man, command: &clap::Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        after_options(&text.to_string()).to_writer(&mut page)?;
    }
    Ok(page)
}

/// The sections after the options. In help, a paragraph begins with its title and a colon, and examples are indented.
fn after_options(help: &str) -> Roff {
    let mut sections = Roff::new();
    let mut has_notes = false;
    for paragraph in help.split("\n\n") {
        let (first, lines) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        if let Some(title) = first.strip_suffix(':').filter(|title| title.split(' ').count() <= 2) {
            sections.control("SH", [title.to_uppercase().as_str()]);
            as_they_are(&mut sections, lines);
        } else if let Some(codes) = paragraph.strip_prefix("Exit codes: ") {
            sections.control("SH", ["EXIT STATUS"]).text([roman(codes)]);
        } else {
            let heading = if has_notes { ("PP", None) } else { ("SH", Some("NOTES")) };
            sections.control(heading.0, heading.1).text([roman(first)]);
            as_they_are(&mut sections, lines);
            has_notes = true;
        }
    }
    sections
}

/// Indented lines are not filled; others are prose.
fn as_they_are(sections: &mut Roff, lines: &str) {
    for line in lines.lines() {
        match line.starts_with(' ') {
            true => sections.control("nf", []).text([roman(line)]).control("fi", []),
            false => sections.text([roman(line)]),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_after_the_options_becomes_sections() {
        let help = "Examples:\n  trellis run ./a -b\n  .hidden\n\nExit codes: 0 fine; 1 not.\n\nOne.\n\nTwo.";
        let page = after_options(help).to_roff();
        let lines: Vec<&str> = page.lines().collect();
        let at = |line: &str| lines.iter().position(|found| *found == line).unwrap_or_else(|| panic!("{line}: {page}"));
        assert!(at(".SH EXAMPLES") < at(".nf") && at(".nf") < at("  trellis run ./a \\-b"), "{page}");
        assert!(at("  .hidden") < at(".SH \"EXIT STATUS\"") && at("0 fine; 1 not.") < at(".SH NOTES"), "{page}");
        assert!(at("One.") < at(".PP") && at(".PP") < at("Two."), "{page}");
        assert_eq!(page.matches(".SH NOTES").count(), 1);
    }
}
