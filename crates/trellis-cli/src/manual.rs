//! `trellis completions`, and the manual pages: both are made from the definitions of the command line, as `--help` is.
//!
//! Promises: the same command writes the same bytes in the same environment (some defaults follow from it); a page
//! names no date. It must never write outside the given folder.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
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
    folder: PathBuf,
}

/// Writes the completions of the command for a shell to standard output.
pub(crate) fn completions(arguments: &CompletionsArguments, mut command: clap::Command) -> Ending {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "trellis", &mut script);
    terminal::put(format_args!("{}", String::from_utf8_lossy(&script)));
    Ok(exit::FINE)
}

/// Writes a manual page (man(7), section 1) for the command and for each of its subcommands.
pub(crate) fn manual(arguments: &ManualArguments, command: clap::Command) -> Ending {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    std::fs::create_dir_all(&arguments.folder)
        .and_then(|()| write_pages(&arguments.folder, &command))
        .map_err(|error| Failure::new(exit::FILE, format!("cannot write the manual pages: {error}")))?;
    Ok(exit::FINE)
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
