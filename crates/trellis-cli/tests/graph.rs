//! `examples/graph`: an ordinary program with threads, alone and with its heap in a store.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use trellis_testing::{Folder, Need, compiled, skip};

/// The program, and a folder for its files.
struct Program {
    file: PathBuf,
    folder: Folder,
}

const FLAGS: [&str; 6] = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/graph/graph.cpp")
}

impl Program {
    fn compile() -> Program {
        Program { file: compiled("c++", &source(), &FLAGS), folder: Folder::new() }
    }

    /// The program with all these mistakes in its source; it makes the one whose name the variable `MISTAKE` has.
    fn with_mistakes(mistakes: &[Mistake]) -> Program {
        let mut text = std::fs::read_to_string(source()).expect("it is there");
        for mistake in mistakes {
            let right = mistake.right;
            assert!(text.contains(right), "graph.cpp has no `{right}` to be changed");
            text = text.replacen(right, mistake.wrong, 1);
        }
        let asked = "#include <cstdlib>\n#include <cstring>\nstatic bool makes(const char *mistake) {\n    \
                     static const char *const asked = std::getenv(\"MISTAKE\");\n    \
                     return asked && std::strcmp(asked, mistake) == 0;\n}\n";
        let folder = Folder::new();
        let source = folder.write("graph.cpp", format!("{asked}{text}"));
        let file = folder.file("graph");
        let output = Command::new("c++").args(FLAGS).arg(source).arg("-o").arg(&file).output();
        let output = output.expect("there is a C++ compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Program { file, folder }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.file);
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("it can be started")
    }

    /// Its output, without times and the number of threads.
    fn said(&self, arguments: &[&str]) -> Vec<String> {
        results(&self.output(arguments))
    }
}

fn results(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let parts = |line: &str| {
        let is_result = |part: &&str| !part.ends_with(" ms") && !part.ends_with(" threads");
        line.split(", ").filter(is_result).collect::<Vec<_>>().join(", ")
    };
    text.lines().map(parts).collect()
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let program = Program::compile();
    for kind in [&["--scale", "10"][..], &["--scale", "11", "--seed", "9", "--directed", "--edge-factor", "5"]] {
        let alone = program.said(&[kind, &["--threads", "1", "--check"]].concat());
        assert_eq!(alone.last().map(String::as_str), Some("checked: right"));
        assert!(
            alone.iter().any(|line| line.starts_with("bfs: "))
                && alone.iter().any(|line| line.starts_with("pagerank: "))
        );
        assert_eq!(program.said(&[kind, &["--threads", "5", "--check"]].concat()), alone);
    }
    assert_ne!(program.said(&["--scale", "10", "--seed", "2"])[2..], program.said(&["--scale", "10"])[2..]);
}

#[test]
fn a_graph_comes_from_a_file() {
    let program = Program::compile();
    program.folder.write("edges", "# a path, and an edge that leads nowhere near it\n0 1\n1 2\n\n2 3\n5 4\n");
    let input = ["--input", "edges", "--root", "0", "--check"];
    let both = program.said(&input);
    assert_eq!(both[0], "graph: 6 vertices, 4 edges");
    assert_eq!(both[1], "rows: 8 neighbours");
    assert!(both[2].starts_with("bfs: from 0, 4 vertices reached, 4 levels, checksum "), "{both:?}");
    let one_way = program.said(&[&["--directed", "bfs"][..], &["--input", "edges", "--root", "3", "--check"]].concat());
    assert_eq!(one_way[1], "rows: 4 neighbours");
    assert!(one_way[2].starts_with("bfs: from 3, 1 vertices reached, 1 levels, checksum "), "{one_way:?}");
    assert_eq!(one_way[3..], ["checked: right"]);
    // The ranks of two vertices that lead to each other are a half each.
    program.folder.write("pair", "0 1\n");
    let pair = program.said(&["pagerank", "--input", "pair", "--check"]);
    assert!(pair[2].starts_with("pagerank: 20 iterations, change 0, largest 0.5 of vertex 0, checksum "), "{pair:?}");
}

#[test]
fn what_is_wrong_is_said() {
    let program = Program::compile();
    program.folder.write("words", "0 1\none two\n");
    program.folder.write("nothing", "# nothing\n");
    for (arguments, sentence) in [
        (&["--scale", "99"][..], "99 is not a number from 4 to 30"),
        (&["--what"], "usage: graph"),
        (&["--input", "missing"], "missing: cannot be read"),
        (&["--input", "words"], "words: line 2 is no edge"),
        (&["--input", "nothing"], "nothing: has no edges"),
        (&["--scale", "4", "--root", "16"], "there is no vertex 16; the last one is 15"),
    ] {
        let output = program.output(arguments);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && printed.contains(sentence), "{arguments:?}: {printed}");
    }
    assert!(program.output(&["--help"]).status.success());
}

/// A text of the source, and what takes its place so that the program can be wrong.
struct Mistake {
    name: &'static str,
    right: &'static str,
    wrong: &'static str,
    noticed: &'static str,
}

#[test]
fn the_check_notices_what_is_wrong() {
    let (search, ranks) = ("the levels of the search are WRONG", "the ranks are WRONG");
    let mistakes = [
        Mistake {
            name: "level",
            right: "compare_exchange_strong(expected, level,",
            wrong: "compare_exchange_strong(expected, level + (makes(\"level\") && w % 8 == 3),",
            noticed: search,
        },
        Mistake {
            name: "rows",
            right: "std::memory_order_relaxed)] = w; });",
            wrong: "std::memory_order_relaxed)] = makes(\"rows\") ? w / 2 * 2 : w; });",
            noticed: search,
        },
        Mistake {
            name: "rank",
            right: "base + damping * collected;",
            wrong: "base + damping * collected * (makes(\"rank\") ? 1 + 1e-6 : 1);",
            noticed: ranks,
        },
        Mistake {
            name: "lost",
            right: "return degree(v) == 0 ? before[v] : 0;",
            wrong: "return degree(v) == makes(\"lost\") ? before[v] : 0;",
            noticed: ranks,
        },
    ];
    let program = Program::with_mistakes(&mistakes);
    assert!(program.output(&["--scale", "8", "--check"]).status.success(), "without a mistake it is right");
    for Mistake { name, noticed, .. } in mistakes {
        let output = program.command(&["--scale", "8", "--check"]).env("MISTAKE", name).output();
        let output = output.expect("it can be started");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && printed.contains(noticed), "{name}: {printed}");
    }
}

#[test]
fn its_heap_may_lie_in_a_store() {
    let test = "its_heap_may_lie_in_a_store";
    let program = Program::compile();
    let arguments = ["--scale", "12", "--threads", "3", "--check"];
    let store = format!("embedded-durable:{}", program.folder.file("store").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.args(["store", "run", "--store", &store, "--cache", "1MiB", "--"]).arg(&program.file).args(arguments);
    let stored = command.output().expect("it can be started");
    let printed = String::from_utf8_lossy(&stored.stderr);
    if printed.contains("the compiler's parts") {
        skip(test, Need::Part, printed);
        return;
    }
    assert_eq!(results(&stored), program.said(&arguments), "{printed}");
}
