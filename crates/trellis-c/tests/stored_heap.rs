//! The heap of compiled programs and of programs under `libtrellis_malloc.so`, over private memory of the process:
//! the C functions, and unmodified programs of this machine.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use trellis_testing::{Need, is_installed, skip};

use support::{C, Language, compilers, crate_folder, fresh_folder, link_flags, prefix, program, succeed};

const CPP_17: Language =
    Language { compilers: &["g++", "clang++"], flags: &["-std=c++17", "-Wall", "-Wextra", "-Werror"], extension: "cc" };
const KINDS: [&str; 3] = ["scalable", "first-fit", "bump"];

fn include() -> String {
    format!("-I{}", crate_folder().join("../../compiler/include").display())
}

fn build(test: &str, language: &Language, source: &str, extra: &[&str]) -> Option<PathBuf> {
    let include = include();
    let extra: Vec<&str> = extra.iter().copied().chain([include.as_str()]).collect();
    support::compile(test, language, &program(source), &extra)
}

/// The preloaded library, built as it is installed.
fn preloaded(test: &str) -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let compiler = *compilers(test, &C).first()?;
        let library = fresh_folder("preload").join("libtrellis_malloc.so");
        let source = crate_folder().join("../../compiler/runtime/malloc_preload.c");
        let mut command = Command::new(compiler);
        command.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]);
        command.arg(include()).arg(source).arg("-o").arg(&library).arg("-Wl,--no-as-needed").args(link_flags());
        succeed(&mut command);
        Some(library)
    });
    if library.is_none() {
        skip(test, Need::Program, "there is no C compiler");
    }
    library.as_deref()
}

/// A command with a heap of this kind.
fn under(library: &Path, kind: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library).env("LD_LIBRARY_PATH", prefix().join("lib"));
    command.env("TRELLIS_MALLOC_MEMORY", "private").env("TRELLIS_STORE_HEAP", kind);
    command
}

/// The output of a command that reads `input`.
fn output_of(command: &mut Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_owned());
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    // A program that ends before it has read everything closes its end of the pipe.
    let _ = writer.join().unwrap();
    output
}

#[test]
fn c_gets_the_answers_of_c() {
    let test = "c_gets_the_answers_of_c";
    let Some(program) = build(test, &C, "stored_heap.c", &["-Wno-alloc-size-larger-than"]) else { return };
    for kind in KINDS {
        let printed = succeed(Command::new(&program).arg(kind));
        assert_eq!(printed, "ok\n", "{kind}");
    }
}

#[test]
fn misuse_ends_the_process_with_one_sentence() {
    let test = "misuse_ends_the_process_with_one_sentence";
    let Some(program) = build(test, &C, "stored_heap.c", &["-Wno-alloc-size-larger-than"]) else { return };
    for kind in ["scalable", "first-fit"] {
        for (misuse, says) in [("twice", "double free"), ("inside", "no block begins"), ("again", "start it once")] {
            let output = Command::new(&program).args([kind, misuse]).output().unwrap();
            let complained = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(70), "{kind} {misuse}: {complained}");
            assert!(complained.starts_with("trellis: ") && complained.contains(says), "{kind} {misuse}: {complained}");
            assert_eq!(complained.lines().count(), 1, "{complained}");
        }
    }
    let output = Command::new(&program).arg("best-fit").output().unwrap();
    assert_eq!(output.status.code(), Some(70));
}

#[test]
fn a_program_that_was_not_compiled_for_trellis_allocates_in_the_region() {
    let test = "a_program_that_was_not_compiled_for_trellis_allocates_in_the_region";
    let Some(library) = preloaded(test) else { return };
    let flags = ["-D_GNU_SOURCE", "-Wno-alloc-size-larger-than", "-ldl"];
    let Some(program) = build(test, &C, "malloc_preload.c", &flags) else { return };
    for kind in KINDS {
        let output = output_of(&mut under(library, kind, &program), "");
        let complained = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (String::from_utf8_lossy(&output.stdout).as_ref(), output.status.code()),
            ("ok\n", Some(0)),
            "{kind}: {complained}"
        );
    }
    let unknown = output_of(under(library, "scalable", &program).env("TRELLIS_MALLOC_MEMORY", "public"), "");
    assert_eq!(unknown.status.code(), Some(70), "{}", String::from_utf8_lossy(&unknown.stderr));
}

#[test]
fn a_program_of_cpp_17_runs_with_its_heap_in_the_region() {
    let test = "a_program_of_cpp_17_runs_with_its_heap_in_the_region";
    let Some(library) = preloaded(test) else { return };
    let Some(program) = build(test, &CPP_17, "malloc_preload.cc", &[]) else { return };
    let expected = succeed(&mut Command::new(&program));
    for kind in KINDS {
        let output = output_of(&mut under(library, kind, &program), "");
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{kind}: {complained}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{kind}: {complained}");
    }
}

#[test]
fn programs_of_this_machine_run_with_their_heap_in_the_region() {
    let test = "programs_of_this_machine_run_with_their_heap_in_the_region";
    let Some(library) = preloaded(test) else { return };
    let lines: String = (0..5_000u32)
        .map(|line| format!("{} word{}\n", line.wrapping_mul(2_654_435_761) % 99_991, line % 77))
        .collect();
    let python = "import subprocess, threading, sys\n\
         words = {}\n\
         for line in sys.stdin: words.setdefault(line.split()[1], []).append(int(line.split()[0]))\n\
         threads = [threading.Thread(target=lambda: [str(i) * 10 for i in range(1000)]) for _ in range(4)]\n\
         [t.start() for t in threads]; [t.join() for t in threads]\n\
         print(sorted((sum(v), k) for k, v in words.items())[:5], subprocess.check_output(['echo', 'child']))\n";
    let programs: [(&str, &[&str]); 5] = [
        ("sort", &["-k2,2", "-k1,1n"]),
        ("awk", &["{ sum[$2] += $1 } END { for (word in sum) total += sum[word]; print total }"]),
        ("grep", &["-c", "7 word1"]),
        ("bash", &["-c", "n=0; while read -r a b; do n=$((n + a)); done; echo $n $(echo child) | cat"]),
        ("python3", &["-c", python]),
    ];
    for (program, arguments) in programs {
        if !is_installed(program) && program != "awk" {
            skip(format_args!("{test} with {program}"), Need::Program, "it is not installed");
            continue;
        }
        let expected = output_of(Command::new(program).args(arguments), &lines);
        assert!(expected.status.success(), "{program}: {}", String::from_utf8_lossy(&expected.stderr));
        // Starting Python in a debug build with the paper's list takes seconds.
        let kinds = if program == "python3" { &KINDS[..1] } else { &KINDS[..] };
        for kind in kinds {
            let output = output_of(under(library, kind, program).args(arguments), &lines);
            let complained = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} with {kind}: {} {complained}", output.status);
            assert!(output.stdout == expected.stdout, "{program} with {kind} printed something else; {complained}");
        }
    }
}

/// A command whose heap is in its own region in a store.
fn in_store(library: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library).env("LD_LIBRARY_PATH", prefix().join("lib"));
    command.env("TRELLIS_STORE", "embedded:").env("TRELLIS_STORE_STATISTICS", "1");
    command
}

/// The reason why this machine cannot catch pages; `None` if it can.
fn cannot_catch(library: &Path) -> Option<String> {
    let output = output_of(&mut in_store(library, "true"), "");
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    let lacks = output.status.code() == Some(70) && complained.contains("userfaultfd");
    assert!(lacks || output.status.success(), "{}: {complained}", output.status);
    lacks.then(|| complained.trim().to_owned())
}

#[test]
fn programs_run_with_their_heap_in_a_store() {
    let test = "programs_run_with_their_heap_in_a_store";
    let Some(library) = preloaded(test) else { return };
    let Some(cpp) = build(test, &CPP_17, "malloc_preload.cc", &[]) else { return };
    if let Some(reason) = cannot_catch(library) {
        skip(test, Need::Kernel, reason);
        return;
    }
    let lines: String =
        (0..5_000u32).map(|line| format!("{} word{}\n", line.wrapping_mul(7919) % 9973, line % 77)).collect();
    let summing = "{ sum[$2] += $1 } END { for (word in sum) total += sum[word]; print total }";
    let cpp = cpp.to_str().expect("the folder's name is text");
    let programs: [(&str, &[&str]); 4] =
        [(cpp, &[]), ("sort", &["-k2,2", "-k1,1n"]), ("awk", &[summing]), ("grep", &["-c", "7 word1"])];
    for (program, arguments) in programs {
        let expected = output_of(Command::new(program).args(arguments), &lines);
        let output = output_of(in_store(library, program).args(arguments), &lines);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program}: {} {complained}", output.status);
        assert!(output.stdout == expected.stdout, "{program} printed something else; {complained}");
    }
    // Programs that close their standard error before the end print no statistics; this one does not.
    let output = output_of(&mut in_store(library, cpp), "");
    let complained = String::from_utf8_lossy(&output.stderr);
    let faults = complained.split("pages: ").nth(1).and_then(|rest| rest.split(' ').next()).map(str::parse::<u64>);
    assert!(matches!(faults, Some(Ok(1..))), "its heap was in the region: {complained}");
}

/// A program and its library, both linked as usual.
fn with_library(test: &str) -> Option<PathBuf> {
    let compiler = *compilers(test, &CPP_17).first()?;
    let folder = fresh_folder(test);
    let (source, library, end) = (program("stored_end.cc"), folder.join("libend.so"), folder.join("end"));
    let build = |extra: &[&str], output: &Path| {
        let mut command = Command::new(compiler);
        command.args(CPP_17.flags).args(["-O1", "-fPIC"]).args(extra).arg(&source).arg("-o").arg(output);
        command
    };
    succeed(&mut build(&["-shared", "-DLIBRARY"], &library));
    let place = folder.display();
    succeed(build(&[], &end).args([format!("-L{place}"), format!("-Wl,-rpath,{place}")]).args(["-lend", "-pthread"]));
    Some(end)
}

#[test]
fn memory_is_there_till_the_last_instruction() {
    let test = "memory_is_there_till_the_last_instruction";
    let Some(library) = preloaded(test) else { return };
    let Some(program) = with_library(test) else { return };
    if let Some(reason) = cannot_catch(library) {
        skip(test, Need::Kernel, reason);
        return;
    }
    for threads in [&[][..], &["thread"]] {
        let mut command = in_store(library, &program);
        // A small part of 8 MiB.
        command.args(threads).env("TRELLIS_STORE_CACHE_BYTES_MAX", "1MiB").env_remove("TRELLIS_STORE_STATISTICS");
        for _ in 0..3 {
            let output = output_of(&mut command, "");
            let complained = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                "handler: ok\nstatic of the program: ok\ndestructor of the library: ok\nstatic of the library: ok\n",
                "{threads:?}: {} {complained}",
                output.status
            );
            assert_eq!(output.status.code(), Some(3), "{threads:?}: {complained}");
        }
    }
}
