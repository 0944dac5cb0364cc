//! Programs that were not written for Trellis, compiled in every mode and run in page mode without compiling: Lua
//! (C), SQLite (C), and nlohmann's json with threads (C++17). Their output must be the same as without Trellis.
//!
//! Their sources are crates, pinned and checked by `compiler/tests/foreign/Cargo.lock`, fetched by cargo and read
//! where it keeps them. `TRELLIS_FOREIGN=all` compiles at every level and puts every mode on a real Redis, which
//! takes many minutes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use trellis_testing::redis_server::RedisServer;
use trellis_testing::{Folder, Need, are_installed, skip};

/// The sources, the options for compiling them, and the program's arguments.
struct Program {
    name: &'static str,
    language: &'static str,
    options: Vec<String>,
    /// The word before the size, if there is one.
    before: Option<String>,
    /// The amount of work: in word modes, where every access is a call; and in the others.
    sizes: [&'static str; 2],
    /// The optimisation level where not every one is tried.
    level: &'static str,
}

/// A way to run a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Page,
    Mode(&'static str),
}

fn drivers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../compiler/tests/foreign")
}

/// The folder of a crate, which cargo fetches if necessary.
fn source_of(test: &str, package: &str) -> Option<PathBuf> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path"])
        .arg(drivers().join("Cargo.toml"));
    let output = command.output().expect("cargo can be started");
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        skip(
            test,
            Need::Registry,
            format_args!("cargo cannot fetch {package}: {}", complaint.lines().last().unwrap_or("")),
        );
        return None;
    }
    let found: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = found["packages"].as_array().expect("packages");
    let manifest =
        packages.iter().find(|found| found["name"] == package).and_then(|found| found["manifest_path"].as_str());
    Some(Path::new(manifest.expect("a package that is asked for")).parent().expect("a folder").to_owned())
}

fn text(path: &Path) -> String {
    path.to_str().expect("a name that is text").to_owned()
}

/// Compiles with the compiler that is named by the first words.
fn compiled(first: &[&str], program: &Program, level: &str, to: &Path) -> Output {
    let mut command = Command::new(first[0]);
    command.args(&first[1..]).arg(level).arg("-w").args(&program.options).args(["-lm", "-pthread", "-o"]).arg(to);
    command.output().expect("a compiler")
}

fn asked(command: &mut Command, program: &Program, size: &str, store: &str) -> Output {
    command.args(&program.before).arg(size).env("TRELLIS_STORE", store).stdin(Stdio::null());
    command.output().expect("the program can be started")
}

/// The output of a successful run.
#[track_caller]
fn printed(output: &Output, what: &str) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}: {complaint}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a program natively and in each way on each store, and compares.
fn compare(test: &str, program: &Program) {
    let trellis = env!("CARGO_BIN_EXE_trellis");
    let native_compiler = if program.language == "cc" { "clang-19" } else { "clang++-19" };
    if !are_installed(test, &[native_compiler]) {
        return;
    }
    let folder = Folder::new();
    let native = folder.file("native");
    printed(&compiled(&[native_compiler], program, "-O0", &native), "the native compiler");
    let expected = program.sizes.map(|size| {
        let output = printed(&asked(&mut Command::new(&native), program, size, "embedded:"), "the native program");
        assert!(output.lines().count() > 5, "{output}");
        output
    });
    let everything = std::env::var_os("TRELLIS_FOREIGN").is_some_and(|value| value == "all");
    let redis = RedisServer::start(&format!("{test} with Redis"), &[]);
    let levels = if everything { vec!["-O0", "-O1", "-O2"] } else { vec![program.level] };
    for level in levels {
        for way in [Way::Page, Way::Mode("line"), Way::Mode("heap"), Way::Mode("full")] {
            let words = matches!(way, Way::Mode("heap" | "full"));
            let path = if let Way::Mode(mode) = way {
                let path = folder.file(format!("{mode}{level}"));
                let output = compiled(&[trellis, program.language, "--mode", mode], program, level, &path);
                let complaint = String::from_utf8_lossy(&output.stderr);
                if complaint.contains("build them with") || complaint.contains("build it with") {
                    skip(test, Need::Part, complaint);
                    return;
                }
                printed(&output, &format!("{} --mode {mode} {level}", program.name));
                path
            } else {
                native.clone()
            };
            // In word modes a program makes a call for each access, and a hundred thousand calls of Redis take
            // seconds.
            let on_redis = redis.as_ref().filter(|_| everything || !words).map(RedisServer::socket_url);
            for store in ["embedded:"].into_iter().chain(on_redis.as_deref()) {
                let mut command = Command::new(&path);
                if way == Way::Page {
                    command = Command::new(trellis);
                    command.args(["store", "run", "--store", store]).arg(&path);
                }
                let size = usize::from(!words);
                let what = format!("{} {way:?} {level} on {store}", program.name);
                let output = printed(&asked(&mut command, program, program.sizes[size], store), &what);
                assert_eq!(output, expected[size], "{what}");
                println!("{what}: the same");
            }
        }
    }
}

#[test]
fn lua_runs_in_every_mode() {
    let test = "lua_runs_in_every_mode";
    let Some(source) = source_of(test, "lua-src") else { return };
    let source = source.join("lua-5.4.9");
    let mut options = vec!["-DLUA_USE_POSIX".to_owned(), format!("-I{}", text(&source))];
    options.push(text(&drivers().join("interpreter.c")));
    let entries = std::fs::read_dir(&source).expect("Lua's folder");
    let mut files: Vec<String> = entries.map(|entry| text(&entry.expect("an entry").path())).collect();
    files.retain(|file| file.ends_with(".c"));
    files.sort();
    options.extend(files);
    let before = Some(text(&drivers().join("script.lua")));
    compare(test, &Program { name: "lua", language: "cc", options, before, sizes: ["3", "200"], level: "-O1" });
}

#[test]
fn sqlite_runs_in_every_mode() {
    let test = "sqlite_runs_in_every_mode";
    let Some(source) = source_of(test, "libsqlite3-sys") else { return };
    let source = source.join("sqlite3");
    let options = vec![
        "-DSQLITE_OMIT_LOAD_EXTENSION".to_owned(),
        format!("-I{}", text(&source)),
        text(&drivers().join("rows.c")),
        text(&source.join("sqlite3.c")),
    ];
    // Its hundred thousand lines in one file take a minute for each mode at -O1, most of it in clang's own allocation
    // of registers, and seconds at -O0.
    let sizes = ["20", "10000"];
    compare(test, &Program { name: "sqlite", language: "cc", options, before: None, sizes, level: "-O0" });
}

#[test]
fn json_in_threads_runs_in_every_mode() {
    let test = "json_in_threads_runs_in_every_mode";
    let Some(source) = source_of(test, "jsonnet-sys") else { return };
    let options = vec![
        "-std=c++17".to_owned(),
        format!("-I{}", text(&source.join("jsonnet/third_party/json"))),
        text(&drivers().join("documents.cpp")),
    ];
    compare(test, &Program { name: "json", language: "c++", options, before: None, sizes: ["1", "40"], level: "-O1" });
}
