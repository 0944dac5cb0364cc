//! The installed tree as build systems use it: pkg-config and CMake find it, even after it was moved.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use trellis_testing::{Need, are_installed, is_installed, skip};

/// A copy of the installed tree at another path: nothing in it may depend on the original path.
fn moved_prefix(test: &str) -> PathBuf {
    let moved = support::fresh_folder(test).join("elsewhere");
    support::succeed(Command::new("cp").arg("-a").arg(support::prefix()).arg(&moved));
    moved
}

fn flags_of(package: &str, prefix: &Path) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", package]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    support::succeed(&mut command).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn pkg_config_builds_programs_for_both_interfaces() {
    let test = "pkg_config_builds_programs_for_both_interfaces";
    if !is_installed("pkg-config") || support::compilers(test, &support::CPP).is_empty() {
        skip(test, Need::Program, "pkg-config or a C++ compiler is not installed");
        return;
    }
    let prefix = moved_prefix("pkg-config");
    let folder = support::fresh_folder("pkg-config-programs");
    for (package, source) in
        [("trellis", support::example("hello/hello.cpp")), ("libivy", support::program("ivy_interface.cc"))]
    {
        let program = folder.join(package);
        let compiler = support::compilers(test, &support::CPP)[0];
        let mut command = Command::new(compiler);
        support::succeed(
            command.arg("-std=c++20").arg(source).arg("-o").arg(&program).args(flags_of(package, &prefix)),
        );
        if package == "trellis" {
            assert!(support::run_alone("pkg-config", &program).contains("hello from node 0"));
        }
    }
    for (source, standard) in [("remote/crud.c", "-std=c11"), ("remote/crud.cpp", "-std=c++20")] {
        let (source, program) = (support::example(source), folder.join("crud"));
        let language = if standard == "-std=c11" { &support::C } else { &support::CPP };
        let Some(compiler) = support::compilers(test, language).first().copied() else { continue };
        let mut command = Command::new(compiler);
        command.arg(standard).arg(source).arg("-o").arg(&program).args(flags_of("trellis", &prefix));
        support::succeed(&mut command);
        // The program is found, and reports its missing argument.
        let complained = support::complains(Command::new(&program).env_remove("TRELLIS_PREFIX"));
        assert!(complained.contains("usage: crud SERVER"), "{complained}");
    }
    let version = Command::new("pkg-config")
        .args(["--modversion", "trellis"])
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&version.stdout).trim(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn cmake_finds_the_package_and_both_targets() {
    let test = "cmake_finds_the_package_and_both_targets";
    if !is_installed("cmake") || support::compilers(test, &support::CPP).is_empty() {
        skip(test, Need::Program, "cmake or a C++ compiler is not installed");
        return;
    }
    let prefix = moved_prefix("cmake");
    let folder = support::fresh_folder("cmake-project");
    let text = format!(
        "cmake_minimum_required(VERSION 3.16)\nproject(consumer C CXX)\nset(CMAKE_CXX_STANDARD 20)\n\
         find_package(Trellis 0.1 REQUIRED)\nfind_package(Trellis CONFIG REQUIRED)\n\
         add_executable(hello \"{}\")\ntarget_link_libraries(hello Trellis::trellis)\n\
         add_executable(crud \"{}\")\ntarget_link_libraries(crud Trellis::trellis)\n\
         add_executable(ivy \"{}\")\ntarget_link_libraries(ivy Trellis::ivy)\n",
        support::example("hello/hello.c").display(),
        support::example("remote/crud.cpp").display(),
        support::program("ivy_interface.cc").display(),
    );
    std::fs::write(folder.join("CMakeLists.txt"), text).unwrap();
    let build = folder.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&folder).arg("-B").arg(&build).arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    support::succeed(&mut configure);
    support::succeed(Command::new("cmake").arg("--build").arg(&build));
    assert!(support::run_alone("cmake", &build.join("hello")).contains("hello from node 0"));
    let complained = support::complains(&mut Command::new(build.join("crud")));
    assert!(complained.contains("usage: crud SERVER"), "{complained}");
}

#[test]
fn another_minor_version_is_not_taken() {
    let test = "another_minor_version_is_not_taken";
    if !are_installed(test, &["cmake"]) {
        return;
    }
    let folder = support::fresh_folder("cmake-version");
    for (wanted, taken) in [("0.1", true), ("0.1.0", true), ("0", true), ("0.2", false), ("1", false), ("0.0", false)] {
        let script = folder.join("asks.cmake");
        let package = support::prefix().join("lib/cmake/Trellis/TrellisConfigVersion.cmake");
        let text = format!(
            "set(PACKAGE_FIND_VERSION \"{wanted}\")\ninclude(\"{}\")\nmessage(\"taken=${{PACKAGE_VERSION_COMPATIBLE}}\")\n",
            package.display()
        );
        std::fs::write(&script, text).unwrap();
        let output = Command::new("cmake").arg("-P").arg(&script).output().unwrap();
        let answer = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(answer.contains(if taken { "taken=TRUE" } else { "taken=FALSE" }), "{wanted}: {answer}");
    }
}

#[test]
fn installing_twice_changes_nothing() {
    let prefix = support::fresh_folder("installed-twice");
    let library = support::prefix().join("lib/libtrellis.so");
    let mut trees = Vec::new();
    for _ in 0..2 {
        let mut written =
            support::install::install(support::crate_folder(), &library, &prefix, env!("CARGO_PKG_VERSION")).unwrap();
        written.sort();
        assert!(written.iter().all(|path| path.exists()), "{written:?}");
        trees.push(written);
    }
    assert_eq!(trees[0], trees[1]);
    let target = std::fs::read_link(prefix.join("lib/libtrellis.so")).unwrap();
    assert!(target.is_relative(), "the tree can be moved: {}", target.display());
}
