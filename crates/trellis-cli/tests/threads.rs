//! `trellis threads`: programs that were never written for Trellis, as they are, on several nodes. Those of
//! `tests/threads` check their own results; those of Debian's packages must write what they write alone.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Ended, Run, command};
use trellis_testing::{Folder, Need, compiled, skip};

/// Whether a machine can do it; prints why not.
fn works(test: &str) -> bool {
    let found = support::json_of(&support::start_command(&["doctor", "--json"]).finish());
    let answer = &found["threads"];
    if answer["works"] != true {
        skip(
            test,
            Need::Kernel,
            format_args!("threads of a program cannot run on several nodes: {}", answer["detail"]),
        );
    }
    answer["works"] == true
}

/// A program of `tests/threads`, compiled with this compiler and these options.
fn built_with(compiler: &str, name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/threads").join(name);
    compiled(compiler, &source, options)
}

/// The same, in the usual way.
fn built(name: &str) -> PathBuf {
    match name.ends_with(".cpp") {
        true => built_with("g++", name, &["-std=c++20", "-O2", "-pthread"]),
        false => built_with("gcc", name, &["-O2", "-pthread"]),
    }
}

/// How a run ended, without what it said of nodes that had not come yet: on a busy machine they need a while.
fn end_of(run: Run) -> Ended {
    let mut ended = run.finish();
    let is_of_the_program = |line: &&str| !line.contains(": waiting for node ");
    ended.stderr = ended.stderr.split_inclusive('\n').filter(is_of_the_program).collect();
    ended
}

/// Runs a program on so many nodes.
fn on(nodes: usize, program: &Path, arguments: &[&str], folder: &Path) -> Ended {
    end_of(start(nodes, program, arguments, folder, ""))
}

/// Starts a program on so many nodes, with this text as its standard input.
fn start(nodes: usize, program: &Path, arguments: &[&str], folder: &Path, input: &str) -> Run {
    let file = Folder::new();
    let input = std::fs::File::open(file.write("input", input)).expect("the input is there");
    let mut command = command(&["threads", "-n", &nodes.to_string(), "--timeout", "50s"]);
    command.arg(program).args(arguments).current_dir(folder).stdin(input);
    Run::start(command)
}

/// A program that checks itself, on 1 to 4 nodes.
fn is_right(test: &str, name: &str, says: &str) {
    if !works(test) {
        return;
    }
    let (program, folder) = (built(name), Folder::new());
    for nodes in [1, 2, 4] {
        let ended = on(nodes, &program, &[], folder.path());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), says), "{name} on {nodes} nodes: {ended:?}");
        assert_eq!(ended.stderr, "", "{name} on {nodes} nodes");
    }
}

#[test]
fn every_object_of_pthreads() {
    is_right("every_object_of_pthreads", "pthreads.c", "pthreads: all right\n");
}

#[test]
fn what_a_process_has_once() {
    is_right("what_a_process_has_once", "state.c", "state: all right\n");
}

#[test]
fn threads_of_c11() {
    is_right("threads_of_c11", "c11.c", "c11: all right\n");
}

#[test]
fn threads_of_the_standard_library_of_cpp() {
    is_right("threads_of_the_standard_library_of_cpp", "standard.cpp", "standard: 1 left\n");
}

#[test]
fn threads_may_be_cancelled() {
    let test = "threads_may_be_cancelled";
    if !works(test) {
        return;
    }
    // The compiler for C++ takes it for a program in C++. On one node, the C library may lose what a call has done.
    for (compiler, nodes, arguments) in
        [("gcc", 1, &[][..]), ("gcc", 2, &["lossless"]), ("gcc", 3, &["lossless"]), ("g++", 2, &["lossless"])]
    {
        let program = built_with(compiler, "cancel.c", &["-O2", "-pthread", "-fexceptions"]);
        let ended = on(nodes, &program, arguments, Folder::new().path());
        let expected = (Some(0), "cancel: all right\n", "");
        let found = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
        assert_eq!(found, expected, "{compiler} on {nodes} nodes");
    }
}

#[test]
fn what_is_easily_done_wrong() {
    let test = "what_is_easily_done_wrong";
    if !works(test) {
        return;
    }
    let program = built("corners.c");
    for nodes in [1, 2, 3] {
        let folder = Folder::new();
        let ended = on(nodes, &program, &[], folder.path());
        let expected = (Some(0), "corners: all right\n", "");
        assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), expected, "on {nodes} nodes");
        let read = |name: &str| std::fs::read_to_string(folder.file(name)).expect("it was written");
        assert_eq!(read("waiting"), "important\n", "what a waiting thread's stream held, on {nodes} nodes");
        assert_eq!(read("signals").trim_end(), "SigBlk:\t0000000000000800", "on {nodes} nodes");
    }
}

#[test]
fn system_calls_have_memory_that_other_nodes_take() {
    let test = "system_calls_have_memory_that_other_nodes_take";
    if !works(test) {
        return;
    }
    let program = built_with("gcc", "calls.c", &["-O2", "-pthread", "-D_FORTIFY_SOURCE=2"]);
    const BY_ANOTHER_THREAD: &[&str] = &["--set", "catch=handler"];
    for (nodes, options) in [(1, &[] as &[&str]), (2, &[]), (3, &[]), (2, BY_ANOTHER_THREAD)] {
        let ended = with_options(nodes, &program, options);
        let result = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
        assert_eq!(result, (Some(0), "calls: all right\n", ""), "{options:?} on {nodes} nodes");
    }
}

#[test]
fn blocks_go_from_thread_to_thread() {
    is_right("blocks_go_from_thread_to_thread", "allocator.c", "allocator: 0 bad\n");
}

#[test]
fn memory_is_sequentially_consistent() {
    is_right("memory_is_sequentially_consistent", "stress.c", "stress: right, 0 missed\n");
}

/// Runs a program on so many nodes with these options.
fn with_options(nodes: usize, program: &Path, options: &[&str]) -> Ended {
    let folder = Folder::new();
    let mut command = command(&["threads", "-n", &nodes.to_string(), "--timeout", "50s"]);
    command.args(options).arg(program).current_dir(folder.path()).stdin(Stdio::null());
    end_of(Run::start(command))
}

#[test]
fn a_program_without_races_may_have_release_consistency() {
    let test = "a_program_without_races_may_have_release_consistency";
    if !works(test) {
        return;
    }
    let program = built("no_races.cpp");
    const NONE: &[&str] = &["--races", "none"];
    const AUTO: &[&str] = &["--races", "auto"];
    const DROPS_ALL: &[&str] = &["--races", "none", "--set", "acquire_drops=all"];
    const WITH_RULES: &[&str] = &["--races", "none", "--sequential", "cel*,heap<1KiB"];
    for (nodes, options) in [(1, NONE), (2, NONE), (3, NONE), (2, DROPS_ALL), (2, WITH_RULES)] {
        let ended = with_options(nodes, &program, options);
        let result = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
        assert_eq!(result, (Some(0), "no races: all right\n", ""), "{options:?} on {nodes} nodes");
    }
    // Stores to relaxed memory travel as diffs.
    let has_diffs = |rules: &str| {
        let ended = with_options(2, &program, &["--races", "none", "--stats", "--sequential", rules]);
        assert_eq!(ended.stdout, "no races: all right\n", "{ended:?}");
        ended.stderr.contains("\ndiffs_out ")
    };
    assert!(has_diffs("heap<4KiB") && !has_diffs("*,heap<1TiB"));
    let ended = with_options(2, &program, AUTO);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "no races: all right\n"), "{ended:?}");
    assert!(ended.stderr.contains("--races auto: no atomic instruction was found"), "{ended:?}");
    for compiler in ["gcc", "clang-19"] {
        let Some(program) = built_with_openmp(test, compiler, "no_races_openmp.c", "-O2") else { continue };
        for (nodes, options) in [(2, NONE), (3, DROPS_ALL), (2, AUTO)] {
            let ended = with_options(nodes, &program, options);
            let result = (ended.code, ended.stdout.as_str());
            assert_eq!(result, (Some(0), "no races of OpenMP: all right\n"), "{compiler} {options:?}: {ended:?}");
        }
    }
}

#[test]
fn a_program_with_atomic_instructions_stays_sequentially_consistent() {
    if !works("a_program_with_atomic_instructions_stays_sequentially_consistent") {
        return;
    }
    let program = built("stress.c");
    let ended = with_options(2, &program, &["--races", "auto"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "stress: right, 0 missed\n"), "{ended:?}");
    let says = "--races auto: all memory is sequentially consistent, because ";
    assert!(ended.stderr.contains(says) && ended.stderr.contains("orders threads by `"), "{ended:?}");
    let ended = with_options(2, &program, &["--races", "none", "--sequential", "nothing,page"]);
    assert!(ended.stderr.contains("--sequential: the program has no variable with the name nothing\n"), "{ended:?}");
    for (options, sentence) in [
        (&["--sequential", "x"][..], "without --races none or auto"),
        (&["--races", "none", "--sequential", "heap<much"], "has no size"),
    ] {
        let ended = with_options(2, &program, options);
        assert!(ended.code == Some(2) && ended.stderr.contains(sentence), "{ended:?}");
    }
}

#[test]
fn libraries_may_be_loaded_while_threads_run() {
    let test = "libraries_may_be_loaded_while_threads_run";
    if !works(test) {
        return;
    }
    let folder = Folder::new();
    let library = |name: &str, more: &[&str]| {
        let built = built_with("gcc", "loaded.c", &[&["-O2", "-shared", "-fPIC", "-pthread"], more].concat());
        std::fs::copy(built, folder.file(name)).expect("a library");
    };
    let lower = folder.file("lower.so");
    library("inner.so", &["-DINNER"]);
    library("lower.so", &["-DLOWER"]);
    library("upper.so", &["-DUPPER", lower.to_str().expect("a name")]);
    let program = built("loading.c");
    let says = "loading: all right\nupper ends after 301\nlower ends\n";
    const BY_ANOTHER_THREAD: &[&str] = &["--set", "catch=handler"];
    for (nodes, options) in [(1, &[] as &[&str]), (2, &[]), (3, &[]), (2, BY_ANOTHER_THREAD)] {
        for place in ["here", "there", "together"] {
            let file = Folder::new();
            let mut command = command(&["threads", "-n", &nodes.to_string(), "--timeout", "50s"]);
            command.args(options).arg(&program).arg(folder.path()).arg(place).current_dir(file.path());
            let ended = end_of(Run::start(command));
            let result = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
            assert_eq!(result, (Some(0), says, ""), "{place}, {options:?} on {nodes} nodes");
        }
    }
}

#[test]
fn a_library_of_the_program_is_part_of_it() {
    if !works("a_library_of_the_program_is_part_of_it") {
        return;
    }
    let folder = Folder::new();
    let library = built_with("gcc", "library.c", &["-O2", "-shared", "-fPIC", "-pthread"]);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/threads/with_library.c");
    let program = compiled("gcc", &source, &["-O2".as_ref(), "-pthread".as_ref(), library.as_os_str()]);
    for nodes in [1, 2, 3] {
        let ended = on(nodes, &program, &[], folder.path());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "with a library: from main, 401\n"), "{ended:?}");
    }
}

#[test]
fn however_the_program_was_linked() {
    let test = "however_the_program_was_linked";
    if !works(test) {
        return;
    }
    let folder = Folder::new();
    for options in [&["-no-pie"][..], &["-s", "-pie", "-fPIE"], &["-Wl,-z,lazy", "-Wl,-z,norelro"], &["-O0", "-g"]] {
        let program = built_with("gcc", "pthreads.c", &[&["-pthread"], options].concat());
        let ended = on(2, &program, &[], folder.path());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "pthreads: all right\n"), "{options:?}: {ended:?}");
    }
    let program = built_with("gcc", "entries.c", &["-O2", "-pthread", "-no-pie", "-fno-pie"]);
    let ended = on(3, &program, &[], folder.path());
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "all right\n"), "{ended:?}");
    if trellis_testing::is_installed("clang++-19") {
        let program = built_with("clang++-19", "standard.cpp", &["-std=c++20", "-O2", "-pthread"]);
        let ended = on(2, &program, &[], folder.path());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "standard: 1 left\n"), "{ended:?}");
    }
}

/// A program of OpenMP that this compiler has made; none if the compiler is not installed.
fn built_with_openmp(test: &str, compiler: &str, name: &str, option: &str) -> Option<PathBuf> {
    if !trellis_testing::is_installed(compiler) {
        skip(test, Need::Program, format_args!("{compiler} is not installed"));
        return None;
    }
    // Of Fortran's compiler, only the preprocessor knows which files a program is made from.
    let preprocessor: &[&str] = if compiler == "gfortran" { &["-cpp"] } else { &[] };
    Some(built_with(compiler, name, &[&[option, "-fopenmp", "-lm"], preprocessor].concat()))
}

#[test]
fn every_construct_of_openmp() {
    let test = "every_construct_of_openmp";
    if !works(test) {
        return;
    }
    let folder = Folder::new();
    for (compiler, option) in [("gcc", "-O2"), ("gcc", "-O0"), ("clang-19", "-O2"), ("clang-19", "-O0")] {
        let Some(program) = built_with_openmp(test, compiler, "openmp.c", option) else { continue };
        for nodes in [1, 2, 3, 4] {
            let ended = on(nodes, &program, &[], folder.path());
            let result = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
            assert_eq!(result, (Some(0), "openmp: all right\n", ""), "{compiler} {option} on {nodes} nodes");
        }
    }
}

#[test]
fn openmp_of_fortran() {
    let test = "openmp_of_fortran";
    if !works(test) {
        return;
    }
    let folder = Folder::new();
    let Some(program) = built_with_openmp(test, "gfortran", "openmp.f90", "-O2") else { return };
    for nodes in [1, 2, 3] {
        let ended = on(nodes, &program, &[], folder.path());
        let result = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
        assert_eq!(result, (Some(0), "openmp in Fortran: all right\n", ""), "on {nodes} nodes");
    }
}

#[test]
fn regions_of_openmp_in_unusual_places() {
    let test = "regions_of_openmp_in_unusual_places";
    if !works(test) {
        return;
    }
    let folder = Folder::new();
    let set = [
        ("OMP_NUM_THREADS", "3,2"),
        ("OMP_THREAD_LIMIT", "5"),
        ("OMP_SCHEDULE", "guided,9"),
        ("OMP_MAX_ACTIVE_LEVELS", "4"),
    ];
    const USES: [&str; 10] = [
        "allocators",
        "threads",
        "environment",
        "pipeline",
        "locked tasks",
        "untied tasks",
        "odd chunks",
        "joined loops",
        "long loops",
        "leaving",
    ];
    // The first is a program that calls the functions of libraries without a table of them.
    for (compiler, option) in [("gcc", "-fno-plt"), ("clang-19", "-O2")] {
        let Some(program) = built_with_openmp(test, compiler, "openmp_corners.c", option) else { continue };
        let run = |nodes: &str, what: &str| {
            let mut command = command(&["threads", "-n", nodes, "--timeout", "50s"]);
            command.arg(&program).arg(what).current_dir(folder.path()).envs(set).stdin(Stdio::null());
            end_of(Run::start(command))
        };
        for nodes in ["1", "2", "3"] {
            for what in USES {
                let ended = run(nodes, what);
                let result = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
                assert_eq!(result, (Some(0), "all right\n", ""), "{what}, {compiler}, on {nodes} nodes");
            }
            let ended = run(nodes, "exit");
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(9), ""), "{compiler} on {nodes} nodes");
        }
    }
}

#[test]
fn constructs_of_openmp_are_cancelled() {
    let test = "constructs_of_openmp_are_cancelled";
    if !works(test) {
        return;
    }
    let folder = Folder::new();
    for compiler in ["gcc", "clang-19"] {
        let Some(program) = built_with_openmp(test, compiler, "openmp_cancel.c", "-O2") else { continue };
        for nodes in ["1", "2", "3"] {
            let mut command = command(&["threads", "-n", nodes, "--timeout", "50s"]);
            command.arg(&program).current_dir(folder.path()).stdin(Stdio::null());
            command.env("OMP_CANCELLATION", "true");
            let ended = end_of(Run::start(command));
            let result = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
            assert_eq!(result, (Some(0), "cancellation: all right\n", ""), "{compiler} on {nodes} nodes");
        }
    }
}

/// What `process.c` does in a thread of another node.
fn process(what: &str, input: &str) -> Option<(Ended, Folder)> {
    if !works(what) {
        return None;
    }
    let folder = Folder::new();
    let ended = end_of(start(2, &built("process.c"), &[what], folder.path(), input));
    Some((ended, folder))
}

#[test]
fn any_thread_ends_the_program_with_its_status() {
    for (what, code, stdout) in
        [("exit", 5, "last 1\n"), ("_exit", 6, ""), ("busy", 4, "last 1\n"), ("leave", 0, "last 1\n")]
    {
        let Some((ended, _)) = process(what, "") else { return };
        assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(code), stdout, ""), "{what}");
    }
}

#[test]
fn threads_that_end_the_program_at_the_same_time_end_it_once() {
    for _ in 0..5 {
        let Some((ended, _)) = process("together", "") else { return };
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(3), ""), "{ended:?}");
    }
}

#[test]
fn a_program_whose_threads_still_run_at_its_end_leaves_a_record() {
    let test = "a_program_whose_threads_still_run_at_its_end_leaves_a_record";
    if !works(test) {
        return;
    }
    let folder = Folder::new();
    let mut command = command(&["threads", "-n", "2", "--timeout", "50s", "--advise", "--record", "record"]);
    command.arg(built("process.c")).arg("busy").current_dir(folder.path()).stdin(Stdio::null());
    let ended = end_of(Run::start(command));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(4), "last 1\n"), "{ended:?}");
    assert!(!ended.stderr.contains("inf %") && !ended.stderr.contains("no node left a record"), "{ended:?}");
    for node in 0..2 {
        let record = std::fs::read_to_string(folder.file(format!("record/node-{node}.json"))).expect("it is there");
        let record: serde_json::Value = serde_json::from_str(&record).expect("it is JSON");
        assert!(record["counters"]["program_ns"].as_u64().is_some_and(|time_ns| time_ns > 0), "{record}");
        let areas = record["areas"].as_array().expect("parts of the region have names");
        let bytes_of = |name: &str| areas.iter().find(|area| area["name"] == name).map(|area| area["bytes"].as_u64());
        assert_eq!(bytes_of("start"), Some(Some(size_of::<libc::pthread_barrier_t>() as u64)), "a variable");
        assert!(bytes_of("the stack of thread 1").is_some() && bytes_of("the heap").is_some(), "{areas:?}");
    }
}

/// The number 32767 is also the upper half of many addresses.
#[test]
fn a_thread_may_have_any_number() {
    let test = "a_thread_may_have_any_number";
    if !works(test) {
        return;
    }
    // In a process namespace numbers can be chosen. One of these runs gives that number to the first thread.
    let is_root = rustix::process::geteuid().is_root();
    let of_user = ["--user", "--map-root-user"].into_iter().filter(|_| !is_root);
    let namespaces = of_user.chain(["--pid", "--fork", "--mount-proc", "--kill-child"]).collect::<Vec<&str>>();
    let possible = Command::new("unshare").args(&namespaces).arg("true").status();
    if !possible.is_ok_and(|status| status.success()) {
        return skip(test, Need::Namespaces, "this machine lets nobody make a user namespace");
    }
    let script = "for before in $(seq 5 30); do
        echo $((32767 - before)) > /proc/sys/kernel/ns_last_pid
        \"$0\" threads -n 2 --timeout 50s \"$1\" leave || exit
    done";
    let own = command(&[]).get_program().to_owned();
    let folder = Folder::new();
    let mut runs = Command::new("unshare");
    runs.args(&namespaces).args(["sh", "-c", script]).arg(own).arg(built("process.c")).current_dir(folder.path());
    let ended = runs.stdin(Stdio::null()).output().expect("unshare is in util-linux");
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success() && stdout == "last 1\n".repeat(26) && stderr.is_empty(), "{stdout}{stderr}");
}

#[test]
fn a_thread_that_aborts_ends_the_program() {
    let Some((ended, _)) = process("abort", "") else { return };
    assert_eq!(ended.code, Some(128 + libc::SIGABRT), "{ended:?}");
    assert!(ended.stderr.contains("node 1 ") && ended.stderr.contains("was killed by SIGABRT"), "{ended:?}");
}

#[test]
fn files_and_input_are_those_of_one_process() {
    let Some((ended, _)) = process("input", "a\nb\n") else { return };
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "line a\nline b\nlast 1\n"), "{ended:?}");
    let Some((ended, folder)) = process("files", "") else { return };
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "last 1\n"), "{ended:?}");
    let written = std::fs::read_to_string(folder.file("stream")).expect("it was written");
    assert_eq!(written, "from a thread 7\nfrom main\n");
}

#[test]
fn children_know_nothing_of_trellis() {
    let Some((ended, folder)) = process("children", "") else { return };
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(std::fs::read_to_string(folder.file("count")).expect("the child wrote it"), "0\n");
}

#[test]
fn a_signal_reaches_the_thread_that_it_is_for() {
    let Some((ended, _)) = process("signals", "") else { return };
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn state_of_the_c_library_is_that_of_one_process() {
    let Some((ended, _)) = process("state", "") else { return };
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn what_is_not_supported_is_named() {
    let Some((ended, _)) = process("fork", "") else { return };
    assert_eq!(ended.code, Some(70), "{ended:?}");
    assert!(ended.stderr.contains("fork without exec is not supported by `trellis threads`"), "{ended:?}");
    let folder = Folder::new();
    let static_one = built_with("gcc", "c11.c", &["-static", "-pthread"]);
    let refused = on(2, &static_one, &[], folder.path());
    assert_eq!(refused.code, Some(126), "{refused:?}");
    assert!(refused.stderr.contains("cannot run on several nodes: it is linked statically"), "{refused:?}");
    let catcher = command(&["threads", "-n", "2", "--set", "catch=mprotect", "true"]).output().expect("it runs");
    assert_eq!(catcher.status.code(), Some(78));
}

#[test]
fn a_program_that_starts_no_thread_is_as_it_is_alone() {
    let test = "a_program_that_starts_no_thread_is_as_it_is_alone";
    if !works(test) {
        return;
    }
    let folder = Folder::new();
    let program = Path::new("sh");
    let ended = on(2, program, &["-c", "echo out; echo err >&2; exit 3"], folder.path());
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(3), "out\n", "err\n"));
    let killed = on(2, program, &["-c", "kill -KILL $$"], folder.path());
    assert_eq!(killed.code, Some(128 + libc::SIGKILL), "{killed:?}");
    assert!(killed.stderr.contains("the program was killed by SIGKILL"), "{killed:?}");
}

/// Threads with libraries that Python loads when they are imported.
const OF_PYTHON: &str = "
import hashlib, threading, zlib, sqlite3
found = [None] * 6
def work(number):
    import bz2, ctypes, lzma
    data = str(number).encode() * 100_000
    found[number] = (hashlib.sha256(data).hexdigest(), len(bz2.compress(data)), len(lzma.compress(data)), zlib.crc32(data))
threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(found, sqlite3.connect(':memory:').execute('select 6 * 7').fetchone())
";

/// Programs of Debian that have threads, and one that has OpenMP: what they write is what they write alone.
#[test]
fn programs_that_nobody_here_wrote() {
    let test = "programs_that_nobody_here_wrote";
    if !works(test) {
        return;
    }
    let folder = Folder::new();
    let text: String = (0..60_000).map(|line| format!("{} {:x}\n", line % 977, line * 2_654_435_761u64)).collect();
    folder.write("text", &text);
    let protein = |number: usize| {
        let letters = (0..60).map(|place| b"ACDEFGHIKLMNPQRSTVWY"[(place * 7 + place * number / 9) % 20] as char);
        format!(">{number}\n{}\n", letters.collect::<String>())
    };
    folder.write("proteins", (0..12).map(protein).collect::<String>());
    for (program, arguments) in [
        ("xz", &["-T4", "--block-size=64KiB", "-c", "text"][..]),
        ("zstd", &["-T4", "-B64KiB", "-q", "-c", "text"]),
        ("pigz", &["-p", "4", "-c", "text"]),
        ("pbzip2", &["-p4", "-b1", "-k", "-c", "text"]),
        ("sort", &["--parallel=4", "-S", "1M", "text"]),
        ("clustalo", &["-i", "proteins", "--threads=4"]),
        ("/usr/bin/python3", &["-c", OF_PYTHON]),
    ] {
        if !trellis_testing::is_installed(program) {
            skip(test, Need::Program, format_args!("{program} is not installed"));
            continue;
        }
        let output =
            |mut command: Command| command.current_dir(folder.path()).stdin(Stdio::null()).output().expect("it runs");
        let mut alone = Command::new(program);
        alone.args(arguments);
        let mut on_two = command(&["threads", "-n", "2", "--timeout", "50s", program]);
        on_two.args(arguments);
        let (alone, on_two) = (output(alone), output(on_two));
        assert_eq!(on_two.status.code(), Some(0), "{program}: {}", String::from_utf8_lossy(&on_two.stderr));
        assert!(alone.stdout == on_two.stdout, "{program} writes something else on two nodes");
    }
}

#[test]
fn a_signal_to_the_launcher_is_one_to_the_program() {
    let test = "a_signal_to_the_launcher_is_one_to_the_program";
    if !works(test) {
        return;
    }
    let folder = Folder::new();
    let script = "trap 'echo caught; exit 7' TERM; echo ready > ready; while :; do sleep 0.01; done";
    let run = start(2, Path::new("sh"), &["-c", script], folder.path(), "");
    support::wait_until("the program is ready", || folder.file("ready").exists());
    support::signal(run.pid(), libc::SIGTERM);
    let ended = end_of(run);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(7), "caught\n"), "{ended:?}");
}
