//! Programs in other languages, which pass shared buffers to the system calls of their libraries.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use trellis_testing::{Need, is_installed, skip};

fn source(name: &str) -> PathBuf {
    support::program(&format!("languages/{name}"))
}

/// Runs a program on two nodes with the defaults, once as `trellis run` starts it and once without the library that it
/// loads first.
fn runs_on_two_nodes(folder: &Path, program: &Path, arguments: &[&str]) {
    let library = support::prefix().join("lib").join(support::install::CALLS);
    let first = [("TRELLIS_HEAP_BYTES", "0"), ("LD_PRELOAD", library.to_str().unwrap())];
    for (name, variables) in [("preloaded", &first[..]), ("alone", &first[..1])] {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let arguments = [arguments, &[folder.to_str().unwrap()]].concat();
        let mut nodes = support::start_cluster(&folder, program, 2, &arguments, variables);
        for node in &mut nodes {
            assert_eq!(node.succeed(), "complete\n", "{name}");
        }
    }
}

#[test]
fn python_reads_files_into_shared_memory() {
    let test = "python_reads_files_into_shared_memory";
    if !is_installed("python3") {
        return skip(test, Need::Program, "there is no python3");
    }
    let folder = support::fresh_folder(test);
    let library = support::prefix().join("lib/libtrellis.so");
    let arguments = [source("buffers.py"), library].map(|path| path.to_str().unwrap().to_owned());
    runs_on_two_nodes(&folder, Path::new("python3"), &arguments.each_ref().map(String::as_str));
}

#[test]
fn go_reads_files_into_shared_memory() {
    let test = "go_reads_files_into_shared_memory";
    if !Command::new("go").arg("version").output().is_ok_and(|output| output.status.success()) {
        return skip(test, Need::Program, "there is no Go");
    }
    let folder = support::fresh_folder(test);
    let program = folder.join("buffers");
    let [include, lib] = ["include", "lib"].map(|name| support::prefix().join(name));
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(source("buffers.go"));
    build.env("CGO_CFLAGS", format!("-I{}", include.display()));
    build.env("CGO_LDFLAGS", format!("-L{0} -Wl,-rpath,{0} -ltrellis", lib.display()));
    build.env("CGO_LDFLAGS_ALLOW", "-Wl,-rpath,.*").env("GO111MODULE", "off").env("GOTOOLCHAIN", "local");
    support::succeed(&mut build);
    runs_on_two_nodes(&folder, &program, &[]);
}

#[test]
fn java_reads_files_into_shared_memory() {
    let test = "java_reads_files_into_shared_memory";
    let Some(home) = java_home() else { return skip(test, Need::Program, "there is no Java development kit") };
    let folder = support::fresh_folder(test);
    support::succeed(Command::new("javac").arg("-d").arg(&folder).arg(source("Buffers.java")));
    let mut build = Command::new("cc");
    build.args(["-shared", "-fPIC", "-o"]).arg(folder.join("libbuffers.so")).arg(source("buffers_jni.c"));
    build.arg(format!("-I{}", home.join("include").display()));
    build.arg(format!("-I{}", home.join("include/linux").display())).args(support::link_flags());
    support::succeed(&mut build);
    let path = format!("-Djava.library.path={}", folder.display());
    let arguments = [path.as_str(), "-Xmx64m", "-cp", folder.to_str().unwrap(), "Buffers"];
    runs_on_two_nodes(&folder, Path::new("java"), &arguments);
}

/// Where the development kit is whose `javac` is in the path.
fn java_home() -> Option<PathBuf> {
    if !is_installed("javac") {
        return None;
    }
    let path = support::succeed(Command::new("sh").args(["-c", "readlink -f \"$(command -v javac)\""]));
    let home = Path::new(path.trim()).parent()?.parent()?.to_owned();
    home.join("include/jni.h").is_file().then_some(home)
}
