//! `examples/remote/crud` in Rust, C and C++ against `trellis serve` in a lab: one program, one output.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const EXPECTED: &str = "\
a mebibyte of zeros is at POINTER
it begins: memory is a place, and a place has an address
3 of 4 calls were done
in the middle: leftright
the word is 42
20000 sevens are there
that is in 1048576 bytes at POINTER
this host has 1048576 of 67108864 bytes
afterwards: READ of POINTER was refused: the object was deleted, and its memory may hold another one; drop the pointer
";

/// A folder and a lab, gone with this value.
struct Place {
    folder: PathBuf,
    lab: String,
    server: Option<Child>,
}

impl Place {
    fn new() -> Place {
        let lab = format!("crud-{}", std::process::id());
        let folder = std::env::temp_dir().join(format!("trellis-{lab}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        Place { folder, lab, server: None }
    }

    fn command(&self, task: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(["lab", task, "--name", &self.lab]).args(arguments).stdin(Stdio::null());
        command
    }

    fn ask(&self, task: &str, arguments: &[&str]) -> Output {
        self.command(task, arguments).output().expect("the command can be started")
    }

    /// Returns when the server says that clients may come.
    fn serve(&mut self) {
        let arguments = ["s1", "--", env!("CARGO_BIN_EXE_trellis"), "serve", "--memory", "64MiB"];
        let mut child = self.command("run", &arguments).stdout(Stdio::piped()).spawn().expect("it can be started");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is a pipe");
        BufReader::new(output).read_line(&mut line).expect("it is text");
        self.server = Some(child);
        assert!(line.starts_with("serving 67108864 bytes as fd"), "{line}");
    }

    /// Compiles an example, as who has only the library and the headers.
    fn compiled(&self, compiler: &str, standard: &str, source: &str) -> PathBuf {
        let program = self.folder.join(source.replace('.', "-"));
        let of_crate = |path: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-I"]);
        command.arg(of_crate("../trellis-c/include")).arg(of_crate("../../examples/remote").join(source));
        command.arg("-o").arg(&program).arg("-L").arg(&self.folder);
        command.arg(format!("-Wl,-rpath,{}", self.folder.display())).arg("-ltrellis");
        let output = command.output().expect("the compiler can be started");
        assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
        program
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Where the test has not come so far, there is none to end.
        let _ = self.ask("down", &[]);
        if let Some(mut server) = self.server.take() {
            let _ = server.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
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
    let built = Path::new(env!("CARGO_BIN_EXE_trellis")).parent().expect("a folder");
    let (library, example) = (built.join("libtrellis_c.so"), built.join("examples/crud"));
    for (path, how) in [(&library, "cargo build -p trellis-c"), (&example, "cargo build -p trellis --examples")] {
        if !path.is_file() {
            println!("SKIPPED {test}: {} is not built ({how})", path.display());
            return;
        }
    }
    for compiler in ["cc", "c++"] {
        if Command::new(compiler).arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIPPED {test}: {compiler} is not installed");
            return;
        }
    }
    let mut place = Place::new();
    let output = place.ask("up", &["--clients", "1", "--servers", "1", "--switch", "user", "--rootless"]);
    let told = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(71) && told.contains("user namespace") {
        println!("SKIPPED {test}: {told}");
        return;
    }
    assert!(output.status.success(), "{told}");
    place.serve();
    // What a linker looks for, and what a program looks for when it starts.
    for name in ["libtrellis.so", "libtrellis.so.0"] {
        std::os::unix::fs::symlink(&library, place.folder.join(name)).expect("a link");
    }
    let programs =
        [example, place.compiled("cc", "-std=c11", "crud.c"), place.compiled("c++", "-std=c++20", "crud.cpp")];
    for program in programs {
        let output = place.ask("run", &["c1", "--", program.to_str().expect("a path of text"), "s1"]);
        let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}: {said}{complained}", program.display());
        let (lines, pointers) = without_pointers(&said);
        assert_eq!(lines, EXPECTED, "{}", program.display());
        assert!(pointers.len() == 3 && pointers.iter().all(|it| *it == pointers[0]), "{pointers:?}");
        let output = place.ask("run", &["c1", "--", program.to_str().expect("a path of text"), "nobody"]);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1), "{}: {complained}", program.display());
        assert!(complained.contains("usage: crud SERVER, a number such as 4097, or s1"), "{complained}");
    }
}
