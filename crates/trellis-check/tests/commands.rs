//! The command line, tested from outside: exit codes, the options of each command, and a reader that goes away.

use std::process::{Command, Output, Stdio};

use trellis_testing::Folder;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis-check"));
    command.args(arguments);
    command
}

fn output(arguments: &[&str]) -> Output {
    command(arguments).output().expect("starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_reader_that_goes_away_ends_the_command_without_a_word() {
    for arguments in
        [&["swarm", "--protocol", "ivy", "--seeds", "1"][..], &["mutants", "--markdown"], &["litmus", "--list"]]
    {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ended = command(arguments).stdout(writer).stderr(Stdio::piped()).output().expect("starts");
        assert_eq!(ended.status.code(), Some(141), "{arguments:?}: {}", text(&ended.stderr));
        assert_eq!(text(&ended.stderr), "", "{arguments:?}");
    }
}

#[test]
fn output_that_cannot_be_kept_is_told() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("every Linux has it");
    let ended = command(&["litmus", "--list"]).stdout(full).stderr(Stdio::piped()).output().expect("starts");
    assert_eq!(ended.status.code(), Some(74));
    assert!(text(&ended.stderr).starts_with("trellis: cannot write to standard output: "), "{}", text(&ended.stderr));
}

#[test]
fn only_explorations_have_a_bound_of_states() {
    let help = |of: &str| text(&output(&[of, "--help"]).stdout).contains("--states-max");
    for of in ["explore", "sync", "mutants"] {
        assert!(help(of), "{of}");
    }
    for of in ["swarm", "replay", "scale", "litmus", "history"] {
        assert!(!help(of), "{of}");
    }
    let cut = output(&["explore", "--nodes", "2", "--pages", "1", "--states-max", "5"]);
    assert_eq!(cut.status.code(), Some(1));
    assert!(text(&cut.stdout).contains("too large"), "{}", text(&cut.stdout));
}

#[test]
fn the_mutants_of_synchronisation_can_be_chosen() {
    let ended = output(&["mutants", "--protocol", "synchronisation", "--json"]);
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    let shown = text(&ended.stdout);
    assert!(
        !shown.is_empty() && shown.lines().all(|line| line.contains(r#""protocol": "synchronisation""#)),
        "{shown}"
    );
}

#[test]
fn scale_draws_below_its_table_and_leaves_files_to_trellis() {
    let small = ["scale", "--protocol", "ivy", "--workload", "hot", "--nodes", "2,4", "--operations", "20"];
    let plain = output(&small);
    let drawn = output(&[&small[..], &["--chart"]].concat());
    assert_eq!((plain.status.code(), drawn.status.code()), (Some(0), Some(0)));
    // A pipe is not a terminal: the chart appears only if requested, below the same table.
    let (plain, drawn) = (text(&plain.stdout), text(&drawn.stdout));
    assert!(!plain.contains('▁'), "{plain}");
    assert!(drawn.starts_with(&plain) && drawn[plain.len()..].contains("▁█"), "{drawn}");

    let refused = output(&[&small[..], &["--svg", "never-made.svg"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("`trellis check scale --svg`"), "{}", text(&refused.stderr));
    assert_eq!(text(&refused.stdout), "", "nothing is simulated before");
    let both = output(&[&small[..], &["--chart", "--json"]].concat());
    assert_eq!(both.status.code(), Some(2));
    let one = output(&["scale", "--nodes", "1"]);
    assert_eq!(one.status.code(), Some(2));
    assert!(text(&one.stderr).contains("--nodes 1:"), "{}", text(&one.stderr));
}

/// Each file is a separate test: an error in one is reported, and the others run.
#[test]
fn a_litmus_file_that_is_refused_does_not_keep_the_others_from_running() {
    let folder = Folder::new();
    let file = |name: &str, text: &str| folder.write(name, text).display().to_string();
    let good =
        file("good.litmus", "X86_64 SB\n{}\nP0 | P1 ;\nmovq $1,(x) | movq $1,(y) ;\nmovq (y),%rax | movq (x),%rax ;\n");
    let bad = file("bad.litmus", "X86 bad\n{}\nP0 ;\nINC [x] ;\n");
    let columns = ["MOV [x],$1", "MOV [y],$1", "MOV [z],$1", "MOV [x],$2", "MOV [y],$2", "MOV [z],$2"];
    let rows: String = columns.iter().map(|cell| format!("{} ;\n", [*cell; 4].join(" | "))).collect();
    let large = file("large.litmus", &format!("X86 large\n{{}}\nP0 | P1 | P2 | P3 ;\n{rows}"));
    let missing = folder.argument("missing.litmus");
    let some = ["litmus", "--simulated", "--protocol", "hlrc(invalidate)", "--runs", "20"];
    let ended = output(&[&some[..], &[&bad, &missing, &good, &large]].concat());
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(text(&ended.stdout).contains("1 tests on 1 protocols: 20 runs, 20 completed"), "{}", text(&ended.stdout));
    assert!(said.contains("bad.litmus:4: ") && said.contains("more than 1000000 states"), "{said}");
    assert!(said.contains("missing.litmus: No such file"), "{said}");
    assert!(said.ends_with("trellis: 3 files did not run\n"), "{said}");
}
