//! `c.m4.trellis`: every macro, the fork semantics of CREATE, shared globals, and every way in which a program ends.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use trellis_testing::are_installed;

use support::{C, Node};

/// The flags of a program that was written for the original macros, and must still compile without warnings.
const FLAGS: [&str; 5] = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"];

/// Protocols under which the programs run; the default of these programs runs on every number of nodes.
const COHERENCE: [&str; 4] = ["ivy", "dynamic", "hlrc(invalidate)", "hlrc(update)"];

/// Expands and compiles one of the programs beside the tests; None, after reporting it, if a tool is missing.
fn build(test: &str, sources: &[&str], extra: &[&str]) -> Option<PathBuf> {
    if !are_installed(test, &["m4", "pkg-config"]) {
        return None;
    }
    let compiler = *support::compilers(test, &C).first()?;
    let folder = support::fresh_folder(&format!("{test}-sources"));
    for source in std::fs::read_dir(support::program("parmacs")).unwrap() {
        expand(&source.unwrap().path(), &folder);
    }
    let program = folder.join("program");
    let mut command = Command::new(compiler);
    command.args(FLAGS).args(sources.iter().map(|source| folder.join(source))).arg("-o").arg(&program);
    support::succeed(command.args(support::link_flags()).args(extra));
    Some(program)
}

/// The expansion that a makefile of SPLASH-2 does for each file.
fn expand(source: &Path, folder: &Path) {
    let macros = support::prefix().join("share/trellis/c.m4.trellis");
    let text = support::succeed(Command::new("m4").args(["-s", "-Ulen", "-Uindex"]).arg(macros).arg(source));
    std::fs::write(folder.join(source.file_stem().unwrap()), text).unwrap();
}

/// The value of a pkg-config variable, as for makefiles.
fn variable(name: &str) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.arg(format!("--variable={name}")).arg("trellis");
    command.env("PKG_CONFIG_PATH", support::prefix().join("lib/pkgconfig"));
    support::succeed(&mut command).split_whitespace().map(str::to_owned).collect()
}

/// Another process writes the file that is executed: a child that a test of this process makes meanwhile would keep it open
/// for writing until it has executed its own program.
fn write_script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let (script, source) = (folder.join(name), folder.join(format!("{name}.text")));
    std::fs::write(&source, text).unwrap();
    support::succeed(Command::new("install").args(["-m", "755"]).args([&source, &script]));
    script
}

/// A program that gets this text as standard input at node 0, and nothing elsewhere, as from `trellis run`.
fn with_input(program: &Path, input: &str) -> PathBuf {
    let folder = program.parent().unwrap();
    std::fs::write(folder.join("input"), input).unwrap();
    let text = format!(
        "#!/bin/sh\n[ \"${{TRELLIS_NODE:-0}}\" = 0 ] && exec < {}\nexec {} \"$@\"\n",
        folder.join("input").display(),
        program.display()
    );
    write_script(folder, "with-input", &text)
}

const INPUT: &str = "40 2\nword\n";

/// Each node's exit status, standard output and standard error.
fn run_to_the_end(
    test: &str,
    program: &Path,
    nodes: usize,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Vec<(ExitStatus, String, String)> {
    let folder = support::fresh_folder(&format!("{test}-{nodes}-nodes"));
    let mut cluster = support::start_cluster(&folder, program, nodes, arguments, variables);
    cluster.iter_mut().map(|node| (node.end(), node.printed(), node.complained())).collect()
}

fn check_fork(program: &Path, nodes: usize, variables: &[(&str, &str)]) {
    let ended = run_to_the_end("fork", program, nodes, &[&nodes.to_string(), "horse"], variables);
    let mut seen = Vec::new();
    for (node, (status, printed, complained)) in ended.iter().enumerate() {
        assert!(status.success(), "node {node} of {nodes}, {variables:?}: {status}\n{printed}\n{complained}");
        let mut lines: Vec<&str> = printed.lines().collect();
        if node == 0 {
            assert_eq!((lines.remove(0), lines.pop()), ("main before create", Some("fork complete")), "{printed}");
        }
        // Each process ran the function once, and its streams work, although their addresses came from node 0.
        assert_eq!(lines.len(), 1, "node {node}: {printed}");
        let number = lines[0].strip_prefix("process ").unwrap().strip_suffix(" on stdout").unwrap();
        // On a busy machine a node reports at the start for whom it waits.
        let said: Vec<&str> = complained.lines().filter(|line| !line.contains(": waiting for node")).collect();
        assert_eq!(said, [format!("process {number} on stderr")], "node {node}");
        seen.push(number.parse::<usize>().unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..nodes).collect::<Vec<_>>());
}

#[test]
fn workers_get_a_copy_of_what_main_had() {
    let Some(program) = build("parmacs-fork", &["fork.c"], &[]) else { return };
    let program = with_input(&program, INPUT);
    for nodes in [1, 2, 3, 4] {
        check_fork(&program, nodes, &[]);
    }
    for coherence in COHERENCE {
        check_fork(&program, 3, &[("TRELLIS_COHERENCE", coherence)]);
    }
    check_fork(&program, 2, &[("TRELLIS_CATCH", "signal")]);
}

fn check_macros(program: &Path, nodes: usize, processes: usize, variables: &[(&str, &str)]) {
    let ended = run_to_the_end("macros", program, nodes, &[&processes.to_string()], variables);
    for (node, (status, printed, complained)) in ended.iter().enumerate() {
        assert!(status.success(), "node {node} of {nodes}, {variables:?}: {status}\n{printed}\n{complained}");
        assert_eq!(printed, if node == 0 { "macros complete\n" } else { "" });
    }
}

#[test]
fn every_macro_does_what_it_says() {
    let Some(program) = build("parmacs-macros", &["macros.c", "macros_more.c"], &["-fno-common"]) else { return };
    for nodes in [1, 2, 3, 4] {
        check_macros(&program, nodes, nodes, &[]);
    }
    // Fewer processes than nodes: the others stay idle, and barriers do not wait for them.
    check_macros(&program, 4, 2, &[]);
    check_macros(&program, 3, 1, &[]);
    for coherence in COHERENCE {
        check_macros(&program, 3, 3, &[("TRELLIS_COHERENCE", coherence)]);
    }
}

#[test]
fn a_pause_can_be_a_semaphore_and_a_clock_can_tick_seconds() {
    let test = "parmacs-pause";
    let flags = ["-DTRELLIS_PARMACS_PAUSE_SEMAPHORE", "-DTRELLIS_PARMACS_CLOCK_SECONDS"];
    let Some(program) = build(test, &["pause.c"], &flags) else { return };
    for nodes in [1, 2, 3] {
        for printed in support::run_cluster(test, &program, nodes, &[&nodes.to_string()], &[]).iter().take(1) {
            assert_eq!(printed, "pause complete\n");
        }
    }
}

#[test]
fn a_program_may_allocate_nearly_all_of_its_region() {
    let test = "parmacs-room";
    let Some(program) = build(test, &["room.c"], &[]) else { return };
    let variables = [("TRELLIS_REGION_BYTES", "4MiB")];
    assert_eq!(support::run_cluster(test, &program, 2, &[], &variables)[0], "room complete\n");
    let less = [variables[0], ("TRELLIS_HEAP_BYTES", "2MiB")];
    let complained = &run_to_the_end(test, &program, 2, &[], &less)[0].2;
    assert!(complained.contains("the shared heap has no 3145728 bytes"), "{complained}");
}

#[test]
fn nodes_are_used_again_and_the_end_comes_in_good_order() {
    let test = "parmacs-again";
    let Some(program) = build(test, &["again.c"], &[]) else { return };
    for nodes in [1, 2, 4] {
        let printed = support::run_cluster(test, &program, nodes, &[&nodes.to_string()], &[]);
        assert_eq!(printed[0], "again complete\n");
        // Three of the six functions end with exit(0).
        assert!(printed[1..].iter().all(|text| text.matches("exit of a worker\n").count() == 3), "{printed:?}");
    }
    let ended = run_to_the_end(test, &program, 3, &["3", "status"], &[]);
    let codes: Vec<_> = ended.iter().map(|(status, ..)| status.code()).collect();
    assert_eq!(codes, [Some(3), Some(0), Some(0)], "{ended:?}");
}

#[test]
fn no_deadline_ends_a_wait_for_a_computation() {
    let test = "parmacs-late";
    let Some(program) = build(test, &["again.c"], &[]) else { return };
    let printed = support::run_cluster(test, &program, 2, &["2", "late"], &[("TRELLIS_WAIT_SECONDS_MAX", "1")]);
    assert_eq!(printed[0], "again complete\n");
}

#[test]
fn whoever_fails_ends_the_program_with_a_sentence() {
    let test = "parmacs-fails";
    let Some(program) = build(test, &["again.c"], &[]) else { return };
    for (ending, culprit, code, sentence) in [
        ("busy", 0, Some(4), "node 0 called exit(4) while 1 workers were running"),
        ("worker", 1, Some(5), "called exit(5)"),
        ("twice", 0, Some(70), "is no block of the private heap (it is free already)"),
        ("nested", 1, Some(70), "CREATE: a worker cannot create workers"),
        ("killed", 1, None, ""),
    ] {
        let ended = run_to_the_end(test, &program, 3, &["3", ending], &[]);
        assert!(ended.iter().all(|(status, ..)| !status.success()), "{ending}: nobody goes on: {ended:?}");
        // The worker depends on which node was free.
        let said = if culprit == 0 { &ended[..1] } else { &ended[1..] };
        let is_it = |(status, _, complained): &&(ExitStatus, String, String)| {
            status.code() == code && complained.contains(sentence)
        };
        assert_eq!(said.iter().filter(is_it).count(), 1, "{ending}: {ended:?}");
    }
}

#[test]
fn more_processes_than_nodes_are_refused_with_the_command_that_helps() {
    let test = "parmacs-many";
    let Some(program) = build(test, &["macros.c", "macros_more.c"], &[]) else { return };
    let ended = run_to_the_end(test, &program, 2, &["3"], &[]);
    let (status, _, complained) = &ended[0];
    assert_eq!(status.code(), Some(70));
    assert!(complained.contains("3 processes and there are 2 nodes; start it with `trellis run -n 3`"), "{complained}");
    assert!(!ended[1].0.success());
}

#[test]
fn another_binary_is_refused_before_its_memory_is_changed() {
    let test = "parmacs-other";
    let Some(program) = build(test, &["again.c"], &[]) else { return };
    let Some(other) = build("parmacs-other-built", &["again.c"], &["-O2"]) else { return };
    let text = format!(
        "#!/bin/sh\n[ \"$TRELLIS_NODE\" = 1 ] && exec {} \"$@\"\nexec {} \"$@\"\n",
        other.display(),
        program.display()
    );
    let either = write_script(program.parent().unwrap(), "either", &text);
    let ended = run_to_the_end(test, &either, 2, &["2"], &[]);
    let (status, _, complained) = &ended[1];
    assert_eq!(status.code(), Some(70), "{ended:?}");
    assert!(complained.contains("was not loaded as node 0 was: there it is `the program at"), "{complained}");
    assert!(!ended[0].0.success(), "{ended:?}");
}

#[test]
fn globals_can_be_shared_as_between_threads() {
    let test = "parmacs-shared";
    if !are_installed(test, &["pkg-config"]) {
        return;
    }
    let mut flags = variable("parmacs_shared_cflags");
    flags.extend(variable("parmacs_shared_libs"));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let Some(program) = build(test, &["shared.c"], &flags) else { return };
    let check = |nodes: usize, variables: &[(&str, &str)]| {
        let printed = support::run_cluster(test, &program, nodes, &[&nodes.to_string(), "horse"], variables);
        let wanted = format!("shared complete\ntotal {} horse\n", 1001 + 50 * nodes);
        assert_eq!(printed[0], wanted, "{nodes} nodes, {variables:?}");
        assert!(printed[1..].iter().all(String::is_empty), "{printed:?}");
    };
    for nodes in [1, 2, 3, 4] {
        check(nodes, &[]);
    }
    for coherence in COHERENCE {
        check(3, &[("TRELLIS_COHERENCE", coherence)]);
    }
    // Sharing for which the program was compiled can be turned off, but not on.
    let ended = run_to_the_end(test, &program, 2, &["2", "horse"], &[("TRELLIS_PARMACS_GLOBALS", "copied")]);
    assert!(ended.iter().any(|(_, _, complained)| complained.contains("does not hold")), "{ended:?}");
    let Some(copied) = build("parmacs-not-shared", &["again.c"], &[]) else { return };
    for (value, sentence) in [("shared", "was not compiled to share its globals"), ("both", "neither `shared` nor")] {
        let ended = run_to_the_end(test, &copied, 1, &["1"], &[("TRELLIS_PARMACS_GLOBALS", value)]);
        assert_eq!(ended[0].0.code(), Some(78), "{ended:?}");
        assert!(ended[0].2.contains(sentence), "{ended:?}");
    }
}

/// A command `trellis` that does the part of `trellis run` that this test needs: checks its arguments and starts the
/// nodes.
const LAUNCHER: &str = "#!/bin/sh\n\
    [ \"$1 $2 $3 $4 $6\" = 'run --output raw -n --' ] || { echo \"wrong arguments: $*\" >&2; exit 99; }\n\
    count=$5; shift 6; node=$count\n\
    export TRELLIS_NODES=\"$ADDRESSES\"\n\
    while [ $node -gt 1 ]; do node=$((node - 1)); TRELLIS_NODE=$node \"$@\" < /dev/null & done\n\
    TRELLIS_NODE=0 \"$@\"; status=$?; wait; exit $status\n";

#[test]
fn a_program_that_is_started_by_itself_starts_its_nodes() {
    let test = "parmacs-alone";
    let Some(program) = build(test, &["fork.c"], &[]) else { return };
    let folder = support::fresh_folder(test);
    write_script(&folder, "trellis", LAUNCHER);
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let program = with_input(&program, INPUT);
    let run = |name: &str, nodes: &str, path: &str, arguments: &[&str]| {
        let addresses = support::addresses(3).join(",");
        let variables = [("PATH", path), ("TRELLIS_NODES", nodes), ("ADDRESSES", &addresses)];
        let mut node = Node::start(&folder, name, Command::new(&program).args(arguments), &variables);
        (node.end(), node.printed(), node.complained())
    };
    let (status, printed, complained) = run("three", "3", &path, &["3", "horse"]);
    assert!(status.success(), "{status}: {printed}\n{complained}");
    assert!(printed.contains("process 2 on stdout\n") && printed.ends_with("fork complete\n"), "{printed}");
    let (status, printed, _) = run("one", "1", &path, &["1", "horse"]);
    assert!(status.success() && printed.ends_with("fork complete\n"), "{printed}");
    let (status, _, complained) = run("nowhere", "3", "/nowhere", &["3", "horse"]);
    assert_eq!(status.code(), Some(78));
    assert!(complained.contains("the command `trellis` is not in PATH"), "{complained}");
}

#[test]
fn declarations_and_the_header_stand_alone() {
    let test = "parmacs-header";
    if !are_installed(test, &["m4"]) {
        return;
    }
    // Declarations are complete types, and may precede everything.
    let folder = support::fresh_folder(test);
    let text = "struct s { LOCKDEC(a) BARDEC(b) ALOCKDEC(c, 3) PAUSEDEC(d) CONDVARDEC(e) GSDEC(f) SEMDEC(g) };\n\
                extern struct s *s; struct s *s;\n\
                char size[sizeof(struct s) == 9 * sizeof(long) ? 1 : -1];\n";
    let source = folder.join("declared.c.in");
    std::fs::write(&source, text).unwrap();
    expand(&source, &folder);
    for compiler in support::compilers(test, &C) {
        let mut command = Command::new(compiler);
        command.args(FLAGS).arg("-fsyntax-only").arg(folder.join("declared.c"));
        support::succeed(&mut command);
        // The options of the header, which is included twice.
        let text = "#include <trellis/parmacs.h>\n#include <trellis/parmacs.h>\n#include <stdlib.h>\n\
                    struct { int free, malloc; } s;\nint main(void) { return s.free + s.malloc; }\n";
        let source = folder.join("header.c");
        std::fs::write(&source, text).unwrap();
        for option in ["", "-DTRELLIS_PARMACS_LIBC_MALLOC", "-DTRELLIS_PARMACS_GLOBALS_SHARED"] {
            let mut command = Command::new(compiler);
            command.args(FLAGS).arg("-fsyntax-only").arg("-I").arg(support::crate_folder().join("include"));
            support::succeed(command.args(Some(option).filter(|option| !option.is_empty())).arg(&source));
        }
    }
}
