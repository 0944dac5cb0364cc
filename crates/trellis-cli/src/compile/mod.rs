//! `trellis cc` and `trellis c++`: clang-19 with the pass that redirects a program's memory to a store.
//!
//! Promises: every argument that is not ours reaches clang unchanged and in order, so make, CMake and configure
//! scripts can use the command as their compiler. Code that the pass cannot translate fails the build with its
//! location. It must never run a compiler without the pass, or link a program of one mode with the runtime of
//! another.

mod arguments;
mod count;
mod link;
mod toolchain;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::{self, say};

pub(crate) use arguments::Language;
use arguments::{Invocation, Mode};
use toolchain::Toolchain;

/// Compile for memory in a key-value store; takes clang's arguments
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct CompileArguments {
    /// --mode full|heap|line, --count [--json], --assume-native FILE, and whatever clang-19 takes
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

const HELP: &str = "\
Compile for memory in a key-value store

Usage: trellis cc  [--mode MODE] [--count [--json]] [--assume-native FILE] [clang's arguments...]
       trellis c++ [--mode MODE] [--count [--json]] [--assume-native FILE] [clang's arguments...]

  --mode full           stack, globals and heap are words in the store
  --mode heap           the heap is words in the store, each access decides by its address
  --mode line           the heap is in the store and cached line by line (the default)
  --count               print how many LLVM instructions each function has before and after the translation
  --json                with --count: as JSON
  --assume-native FILE  more functions that touch no memory of the program: lines `native NAME`, for full and heap

Everything else goes to clang-19 (clang++-19). Compile and link with the same mode. When the program runs, TRELLIS_STORE
says where the store is. What cannot be translated is an error that names file, line and function.

Environment: TRELLIS_COMPILER_DIRECTORY is the folder with the pass and the runtime (else beside the command, or
../lib/trellis); TRELLIS_LIBRARY_DIRECTORY the one with libtrellis.so (else beside the command, or ../lib).

Exit codes: those of clang; 2 wrong command line; 71 clang or a part of Trellis' compiler is not there.";

/// Runs the `cc` and `c++` subcommands.
pub(crate) fn compile(given: &CompileArguments, language: Language) -> Ending {
    if given.arguments.len() == 1 && given.arguments[0] == "--help" {
        say!("{HELP}");
        return Ok(exit::FINE);
    }
    let invocation = Invocation::parse(&given.arguments)?;
    let tools = Toolchain::find(language)?;
    let counts = invocation.count.then(count::CountFile::create).transpose()?;
    let mut command = prepared(&invocation, &tools, language)?;
    if let Some(file) = &counts {
        command.env("TRELLIS_COMPILER_COUNT_FILE", file.path());
    }
    let code = if invocation.links {
        link::run_and_explain(command, invocation.mode)?
    } else if counts.is_some() {
        let status = command.status().map_err(|error| not_started(&tools, &error))?;
        link::code_of(status)
    } else {
        // Nothing is left to do here, so the compiler replaces this process: signals and status are its own.
        return Err(not_started(&tools, &command.exec()));
    };
    if let (Some(file), exit::FINE) = (&counts, code) {
        terminal::put(format_args!("{}", file.report(invocation.json)?));
    }
    Ok(code)
}

fn not_started(tools: &Toolchain, error: &std::io::Error) -> Failure {
    Failure::new(exit::SYSTEM, format!("cannot run {}: {error}", tools.clang.display()))
}

/// Prepares clang with our arguments before the user's (so that the user's win) and the libraries behind them.
fn prepared(invocation: &Invocation, tools: &Toolchain, language: Language) -> Result<Command, Failure> {
    let mut command = Command::new(&tools.clang);
    command.env("TRELLIS_COMPILER_MODE", invocation.mode.name());
    command.env("TRELLIS_COMPILER_NATIVE_FILES", joined(&invocation.native_files)?);
    // clang would warn if an invocation does not use one of these.
    command.arg("--start-no-unused-arguments");
    command.arg(format!("-fpass-plugin={}", tools.pass().display()));
    command.arg(format!("-D__TRELLIS_{}__=1", invocation.mode.name().to_uppercase()));
    if invocation.mode != Mode::Line {
        // Checked variants of library functions would only hide the ones that are wrapped.
        command.args(["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=0"]);
        if language == Language::Cxx {
            command.arg("-include").arg(tools.prelude());
        }
        if !invocation.has_debug_option {
            // So that an error has a line.
            command.arg("-gline-tables-only");
        }
    }
    if invocation.links && std::io::stderr().is_terminal() {
        // The output is read here before it reaches the terminal.
        command.arg("-fcolor-diagnostics");
    }
    command.arg("--end-no-unused-arguments");
    command.args(&invocation.passed_on);
    if invocation.links {
        command.args(tools.libraries(invocation.mode, language)?);
    }
    Ok(command)
}

/// The plugin takes the lists separated by colons.
fn joined(files: &[PathBuf]) -> Result<OsString, Failure> {
    std::env::join_paths(files)
        .map_err(|_| Failure::new(exit::USAGE, "--assume-native: the name of the file must not contain a colon"))
}
