//! The programs of `examples/parmacs`: with every macro file, and their C++ versions. Each verifies its own result;
//! these tests check that every number of processors gives a right result, and that a wrong result would be noticed.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use trellis_testing::{Need, are_installed, skip};

use support::CPP;

/// A program, its size as it prints it, and options that make it short but leave work for every processor.
struct Program {
    name: &'static str,
    size: &'static str,
    options: &'static [&'static str],
}

const PROGRAMS: [Program; 8] = [
    Program { name: "barnes", size: "2100", options: &["-n", "2100", "-s", "2"] },
    Program { name: "fft", size: "4096", options: &["-m", "12"] },
    Program { name: "fft", size: "2048", options: &["-m", "11"] },
    Program { name: "lu", size: "150", options: &["-n", "150", "-b", "16"] },
    Program { name: "lu", size: "70", options: &["-n", "70", "-b", "16", "-r"] },
    Program { name: "matmul", size: "130", options: &["-n", "130"] },
    Program { name: "ocean", size: "130", options: &["-n", "130", "-s", "10"] },
    Program { name: "radix", size: "20000", options: &["-n", "20000", "-r", "256", "-m", "65536"] },
];

const PROCESSORS: [usize; 5] = [1, 2, 3, 4, 8];

/// Protocols with one writer of a page at a time, and with many: correctly synchronised programs are right with both.
const COHERENCE: [&str; 4] = ["dynamic", "ivy", "hlrc(invalidate)", "hlrc(update)"];

#[test]
fn every_program_is_right_on_one_processor_without_a_library() {
    let Some(folder) = build("null") else { return };
    for program in &PROGRAMS {
        let output = run(&folder.join(program.name), program.options);
        assert!(output.status.success(), "{output:?}");
        assert_is_verified(&text(&output.stdout), program, "parmacs", 1);
    }
    let refused = run(&folder.join("fft"), &["-p", "2"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("c.m4.null"), "{refused:?}");
}

#[test]
fn every_program_is_right_on_any_number_of_threads() {
    let Some(folder) = build("pthreads") else { return };
    for program in &PROGRAMS {
        for processors in PROCESSORS {
            let output = run(&folder.join(program.name), &with_processors(program, processors));
            assert!(output.status.success(), "{processors} threads: {output:?}");
            assert_is_verified(&text(&output.stdout), program, "parmacs", processors);
        }
    }
}

#[test]
fn every_program_is_right_with_more_processors_than_parts() {
    let Some(folder) = build("pthreads") else { return };
    for (name, options) in [
        ("barnes", &["-n", "64", "-p", "5"][..]),
        ("fft", &["-m", "2", "-p", "7"]),
        ("lu", &["-n", "3", "-b", "2", "-p", "9"]),
        ("matmul", &["-n", "1", "-p", "4"]),
        ("ocean", &["-n", "3", "-s", "2", "-p", "4"]),
        ("radix", &["-n", "1", "-p", "6"]),
        ("radix", &["-n", "5000", "-r", "65536", "-m", "4294967296", "-p", "3"]),
    ] {
        let output = run(&folder.join(name), options);
        assert!(output.status.success(), "{name} {options:?}: {output:?}");
    }
}

#[test]
fn a_wrong_result_is_noticed() {
    let Some(folder) = build("null") else { return };
    for program in &PROGRAMS {
        let mut options = program.options.to_vec();
        options.push("-x");
        let output = run(&folder.join(program.name), &options);
        assert_eq!(output.status.code(), Some(1), "{}: {output:?}", program.name);
        assert!(text(&output.stdout).ends_with("verified=no\n"), "{}: {output:?}", program.name);
    }
}

#[test]
fn options_that_make_no_sense_are_named() {
    let Some(folder) = build("null") else { return };
    for (name, options, expected) in [
        ("fft", &["-m", "1"][..], "-m is \"1\" and must be a number from 2 to 28"),
        ("lu", &["-n"], "-n is \"\" and must be"),
        ("lu", &["-b", "4x"], "-b is \"4x\" and must be"),
        ("radix", &["-r", "1000"], "-r is not a power of two"),
        ("barnes", &["bodies"], "bodies is not an option"),
        ("ocean", &["-tt"], "-tt is not an option"),
    ] {
        let output = run(&folder.join(name), options);
        assert_eq!(output.status.code(), Some(2), "{name} {options:?}");
        assert!(text(&output.stderr).contains(expected), "{name} {options:?}: {output:?}");
    }
    assert!(text(&run(&folder.join("matmul"), &["-h"]).stdout).contains("-p number"));
}

#[test]
fn every_program_is_right_on_any_number_of_nodes() {
    let Some(folder) = build("trellis") else { return };
    for (row, program) in PROGRAMS.iter().enumerate() {
        for (number, processors) in PROCESSORS.into_iter().enumerate() {
            // Every program is combined with every protocol, and every protocol with every number of nodes.
            let coherence = COHERENCE[(row + number) % COHERENCE.len()];
            let test = format!("parmacs-{}-{row}", program.name);
            let variables = [("TRELLIS_COHERENCE", coherence)];
            let options = with_processors(program, processors);
            let printed = support::run_cluster(&test, &folder.join(program.name), processors, &options, &variables);
            assert_is_verified(&printed[0], program, "parmacs", processors);
        }
    }
}

#[test]
fn a_program_that_an_engine_starts_is_no_launcher() {
    const TEST: &str = "a_program_that_an_engine_starts_is_no_launcher";
    let Some(folder) = build("trellis").filter(|_| are_installed(TEST, &["mpiexec.hydra"])) else { return };
    // A program that starts alone would take this command.
    let other = support::fresh_folder(TEST);
    std::os::unix::fs::symlink("/bin/false", other.join("trellis")).unwrap();
    let path = format!("{}:{}", other.display(), std::env::var("PATH").unwrap());
    for program in &PROGRAMS[1..4] {
        let mut command = Command::new("mpiexec.hydra");
        command.args(["-n", "3"]).arg(folder.join(program.name)).args(with_processors(program, 3));
        command.env("PATH", &path).env("TRELLIS_REGION_BYTES", "64MiB").stdin(Stdio::null());
        assert_is_verified(&support::succeed(&mut command), program, "parmacs", 3);
    }
}

/// The programs can rely on release consistency only if no two processors touch a location without a lock or a
/// barrier between them.
#[test]
fn no_program_has_a_data_race() {
    let Some(folder) = build_all("races", "pthreads", "-g -fsanitize=thread") else { return };
    for program in &PROGRAMS {
        for processors in [2, 3, 8] {
            let output = run(&folder.join(program.name), &with_processors(program, processors));
            if text(&output.stderr).contains("unexpected memory mapping") {
                skip(
                    "no_program_has_a_data_race",
                    Need::Kernel,
                    "this kernel places memory where the sanitizer cannot look",
                );
                return;
            }
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{processors} threads: {}",
                text(&output.stderr)
            );
        }
    }
}

/// The program that uses every macro of `c.m4.trellis`, so that the macro files stay interchangeable.
#[test]
fn every_macro_works_with_threads_and_on_one_processor() {
    for (macros, processors) in [("null", &["1"][..]), ("pthreads", &["1", "2", "5", "8"])] {
        if !are_installed(format_args!("every macro with {macros}"), &["m4"]) {
            return;
        }
        let Some(compiler) = support::compilers("every macro", &support::C).first().copied() else { return };
        let folder = support::fresh_folder(&format!("every-macro-{macros}"));
        let file = support::crate_folder().join(format!("../../parmacs/c.m4.{macros}"));
        for source in ["macros.h", "macros.c", "macros_more.c"] {
            let source_in = support::program(&format!("parmacs/{source}.in"));
            let text = support::succeed(Command::new("m4").args(["-s", "-Ulen", "-Uindex"]).arg(&file).arg(source_in));
            std::fs::write(folder.join(source), text).unwrap();
        }
        let program = folder.join("program");
        let mut command = Command::new(compiler);
        command
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fno-common", "-pthread", "-o"])
            .arg(&program);
        support::succeed(command.arg(folder.join("macros.c")).arg(folder.join("macros_more.c")));
        for number in processors {
            assert_eq!(support::succeed(Command::new(&program).arg(number)), "macros complete\n", "{macros} {number}");
        }
    }
}

#[test]
fn every_program_in_cpp_is_right_on_any_number_of_nodes() {
    for (row, program) in PROGRAMS.iter().enumerate() {
        let test = format!("parmacs-cpp-{}-{row}", program.name);
        let source = support::example(&format!("parmacs/{0}/{0}.cpp", program.name));
        let Some(binary) = support::compile(&test, &CPP, &source, &["-lm"]) else { return };
        for (number, processors) in PROCESSORS.into_iter().enumerate() {
            let variables = [("TRELLIS_COHERENCE", COHERENCE[(row + number + 1) % COHERENCE.len()])];
            let printed = support::run_cluster(&test, &binary, processors, program.options, &variables);
            assert_is_verified(&printed[0], program, "cpp", processors);
            assert!(printed[1..].iter().all(String::is_empty), "{printed:?}");
        }
    }
}

/// The programs built with a macro file, once for all tests; None, after reporting it, if that is impossible.
fn build(macros: &'static str) -> Option<PathBuf> {
    static BUILT: [OnceLock<Option<PathBuf>>; 3] = [const { OnceLock::new() }; 3];
    let number = ["null", "pthreads", "trellis"].iter().position(|other| *other == macros).expect("a macro file");
    BUILT[number].get_or_init(|| build_all(macros, macros, "-Wpedantic -Werror")).clone()
}

/// Builds into a folder named `test` as the Makefile does, with additional flags.
fn build_all(test: &str, macros: &str, flags: &str) -> Option<PathBuf> {
    for needed in ["m4", "make"] {
        if !are_installed(format_args!("parmacs programs with {macros}"), &[needed]) {
            return None;
        }
    }
    let compiler = *support::compilers("parmacs programs", &support::C).first()?;
    let folder = support::fresh_folder(&format!("parmacs-{test}"));
    let mut make = Command::new("make");
    make.arg("-C").arg(support::example("parmacs"));
    make.arg(format!("MACROS=../../parmacs/c.m4.{macros}")).arg(format!("OUT={}", folder.display()));
    make.arg(format!("CC={compiler}")).arg(format!("CFLAGS=-std=gnu11 -O1 -Wall -Wextra {flags}"));
    if macros == "trellis" {
        make.arg(format!("TRELLIS_FLAGS={}", support::link_flags().join(" ")));
    }
    // A make that runs these tests must not influence this one.
    support::succeed(make.env_remove("MAKEFLAGS").env_remove("MFLAGS"));
    Some(folder)
}

fn with_processors(program: &Program, processors: usize) -> Vec<&'static str> {
    let number = ["0", "1", "2", "3", "4", "5", "6", "7", "8"][processors];
    let mut options = program.options.to_vec();
    options.extend(["-p", number]);
    options
}

fn run(program: &Path, options: &[&str]) -> Output {
    let output = Command::new(program).args(options).stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts that the machine-readable line is there, and names the run.
fn assert_is_verified(printed: &str, program: &Program, interface: &str, processors: usize) {
    let begin = format!(
        "trellis-result program={} interface={interface} processors={processors} size={} seconds=",
        program.name, program.size
    );
    let line = printed.lines().find(|line| line.starts_with("trellis-result "));
    let line = line.unwrap_or_else(|| panic!("no result in {printed:?}"));
    let seconds = line.strip_prefix(&begin).and_then(|rest| rest.strip_suffix(" verified=yes"));
    let seconds: f64 =
        seconds.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{begin}...: {printed:?}"));
    assert!(seconds >= 0.0, "{line}");
}
