//! `examples/graph`: an ordinary program with threads, alone and with its heap in a store.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use trellis_testing::{Folder, Need, skip};

/// A folder with the program in it.
struct Program(Folder);

impl Program {
    fn compile() -> Program {
        Program::changed("", "")
    }

    /// The program with one text in its source replaced by another.
    fn changed(from: &str, to: &str) -> Program {
        let program = Program(Folder::new());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/graph/graph.cpp");
        let text = std::fs::read_to_string(source).expect("it is there");
        assert!(text.contains(from), "graph.cpp has no `{from}` to be changed");
        let copy = program.0.write("graph.cpp", text.replacen(from, to, 1));
        let mut command = Command::new("c++");
        command.args(["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        let output = command.arg(copy).arg("-o").arg(program.path()).output().expect("there is a C++ compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    fn path(&self) -> PathBuf {
        self.0.file("graph")
    }

    fn output(&self, arguments: &[&str]) -> Output {
        Command::new(self.path()).args(arguments).current_dir(self.0.path()).output().expect("it can be started")
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
    program.0.write("edges", "# a path, and an edge that leads nowhere near it\n0 1\n1 2\n\n2 3\n5 4\n");
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
    program.0.write("pair", "0 1\n");
    let pair = program.said(&["pagerank", "--input", "pair", "--check"]);
    assert!(pair[2].starts_with("pagerank: 20 iterations, change 0, largest 0.5 of vertex 0, checksum "), "{pair:?}");
}

#[test]
fn what_is_wrong_is_said() {
    let program = Program::compile();
    program.0.write("words", "0 1\none two\n");
    program.0.write("nothing", "# nothing\n");
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

#[test]
fn the_check_notices_what_is_wrong() {
    let (search, ranks) = ("the levels of the search are WRONG", "the ranks are WRONG");
    for (name, from, to, sentence) in [
        (
            "level",
            "compare_exchange_strong(expected, level,",
            "compare_exchange_strong(expected, level + (w % 8 == 3),",
            search,
        ),
        ("rows", "std::memory_order_relaxed)] = w; });", "std::memory_order_relaxed)] = w / 2 * 2; });", search),
        ("rank", "base + damping * collected;", "base + damping * collected * (1 + 1e-6);", ranks),
        ("lost", "return degree(v) == 0 ? before[v] : 0;", "return degree(v) == 1 ? before[v] : 0;", ranks),
    ] {
        let output = Program::changed(from, to).output(&["--scale", "8", "--check"]);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && printed.contains(sentence), "{name}: {printed}");
    }
}

#[test]
fn its_heap_may_lie_in_a_store() {
    let test = "its_heap_may_lie_in_a_store";
    let program = Program::compile();
    let arguments = ["--scale", "12", "--threads", "3", "--check"];
    let store = format!("embedded-durable:{}", program.0.file("store").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.args(["store", "run", "--store", &store, "--cache", "1MiB", "--"]).arg(program.path()).args(arguments);
    let stored = command.output().expect("it can be started");
    let printed = String::from_utf8_lossy(&stored.stderr);
    if printed.contains("the compiler's parts") {
        skip(test, Need::Part, printed);
        return;
    }
    assert_eq!(results(&stored), program.said(&arguments), "{printed}");
}
