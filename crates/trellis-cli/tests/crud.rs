//! `examples/remote/crud` in Rust, C and C++ against `trellis serve` in a lab: one program, one output, whether or
//! not a controller makes another server keep copies.

#[path = "support/lab.rs"]
mod lab;
#[path = "support/library.rs"]
mod library;

use std::path::{Path, PathBuf};

use trellis_testing::{Need, are_installed, compiled, skip};

use lab::Lab;

const EXPECTED: &str = "\
a mebibyte of zeros is at POINTER
it begins: memory is a place, and a place has an address
3 of 4 calls were done
in the middle: leftright
the word is 42
15904 sevens and 4096 eights are there
that is in 1048576 bytes at POINTER
this host has 1048576 of 67108864 bytes
afterwards: READ of POINTER was refused: the object is gone: it was deleted, or its server was started again or reset without it; its memory may hold another one, so drop the pointer
";

/// An example, compiled as a user who has only the library and the headers.
fn example(library: &[String], compiler: &str, standard: &str, source: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/remote").join(source);
    let flags = [standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"].map(str::to_owned);
    compiled(compiler, &source, &[&flags, library].concat())
}

/// The output with a word for each pointer; and the pointers.
fn without_pointers(text: &str) -> (String, Vec<String>) {
    let mut pointers = Vec::new();
    let mut lines = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line
            .split(' ')
            .map(|word| {
                if !word.starts_with("fd") || !word.contains(':') {
                    return word;
                }
                pointers.push(word.to_owned());
                "POINTER"
            })
            .collect();
        lines += &(words.join(" ") + "\n");
    }
    (lines, pointers)
}

#[test]
fn one_program_in_three_languages_says_the_same() {
    let test = "one_program_in_three_languages_says_the_same";
    let Some(library) = library::of_this_build(test) else { return };
    let in_rust = Path::new(env!("CARGO_BIN_EXE_trellis")).with_file_name("examples").join("crud");
    if !in_rust.is_file() {
        return skip(
            test,
            Need::Part,
            format_args!("{} is not built (cargo build -p trellis-dsm --examples)", in_rust.display()),
        );
    }
    if !are_installed(test, &["cc", "c++"]) {
        return;
    }
    let Some(mut lab) = Lab::up(test, "crud", 2, 2, &["--rootless"]) else { return };
    let programs =
        [in_rust, example(&library, "cc", "-std=c11", "crud.c"), example(&library, "c++", "-std=c++20", "crud.cpp")];
    assert!(lab.serve("s1", "64MiB").starts_with("serving 67108864 bytes as fd"));
    all_say_the_same(&lab, &programs);
    lab.ask("kill", &["s1"]);
    lab.serve_with_copies("c2", "64MiB", &[]);
    all_say_the_same(&lab, &programs);
}

fn all_say_the_same(lab: &Lab, programs: &[PathBuf]) {
    for program in programs {
        let output = lab.ask("run", &["c1", "--", program.to_str().expect("a path of text"), "s1"]);
        let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}: {said}{complained}", program.display());
        let (lines, pointers) = without_pointers(&said);
        assert_eq!(lines, EXPECTED, "{}", program.display());
        assert!(pointers.len() == 3 && pointers.iter().all(|it| *it == pointers[0]), "{pointers:?}");
        let output = lab.ask("run", &["c1", "--", program.to_str().expect("a path of text"), "nobody"]);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1), "{}: {complained}", program.display());
        assert_eq!(complained.trim_start_matches("crud: ").trim(), "usage: crud SERVER, a number such as 4097, or s1");
    }
}
