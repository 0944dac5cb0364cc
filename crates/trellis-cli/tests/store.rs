//! `trellis store`, driven from outside: inspection, clean-up, the front end, and ordinary programs in page mode.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use trellis_testing::{Folder, Need, compiled, skip};

use support::{signal, start_command};

/// The address of a durable store in this folder.
fn durable(folder: &Folder) -> String {
    format!("embedded-durable:{folder}/store")
}

/// `trellis store serve`, which ends with this value.
struct Front {
    child: Child,
    address: String,
}

impl Front {
    fn start(store: &str) -> Front {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(["store", "serve", "--resp", "127.0.0.1:0", "--store", store]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command can be started");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on ").expect("it says where").to_owned();
        Front { child, address }
    }

    /// The raw answers to some commands.
    fn ask(&self, commands: &str, answer_bytes: usize) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("somebody listens");
        stream.write_all(commands.as_bytes()).expect("sent");
        let mut answer = vec![0; answer_bytes];
        stream.read_exact(&mut answer).expect("an answer");
        String::from_utf8(answer).expect("text")
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_service_manager_hears_when_a_store_is_served_and_when_it_ends() {
    let folder = Folder::new();
    let path = folder.file("manager");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("a time");
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.args(["store", "serve", "--resp", "127.0.0.1:0", "--store", "embedded:"]).env("NOTIFY_SOCKET", &path);
    let mut child = command.stdout(Stdio::null()).spawn().expect("the command can be started");
    let heard = || {
        let mut bytes = [0; 64];
        let length = manager.recv(&mut bytes).expect("a report");
        String::from_utf8_lossy(&bytes[..length]).trim().to_owned()
    };
    assert_eq!(heard(), "READY=1");
    signal(child.id() as i32, libc::SIGTERM);
    assert_eq!(heard(), "STOPPING=1");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_durable_store_is_looked_through_copied_and_salvaged() {
    let folder = Folder::new();
    let file = |name: &str| folder.argument(name);
    let front = Front::start(&durable(&folder));
    for number in 0..40 {
        let value = format!("{number:08}").repeat(100);
        let command = format!("*3\r\n$3\r\nSET\r\n$4\r\nk{number:03}\r\n$800\r\n{value}\r\n");
        assert_eq!(front.ask(&command, 5), "+OK\r\n");
    }
    let busy = start_command(&["store", "check", &file("store")]).finish();
    assert_eq!((busy.code, busy.stderr.contains("another process has it open")), (Some(70), true), "{busy:?}");
    drop(front);

    std::fs::set_permissions(file("store"), std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    let whole = start_command(&["store", "check", &durable(&folder)]).finish();
    assert_eq!((whole.code, whole.stdout.contains(" is whole: ")), (Some(0), true), "{whole:?}");
    assert!(
        whole.stderr.contains(" had mode 0644, so that other users could get at it; it has mode 0600 now"),
        "{whole:?}"
    );
    let copied = start_command(&["store", "backup", &file("store"), &file("copy")]).finish();
    assert_eq!((copied.code, copied.stdout.contains(" is a whole copy: ")), (Some(0), true), "{copied:?}");

    // A page of the file with four values is gone, and another has a flipped bit.
    let mut bytes = std::fs::read(file("store")).expect("a store");
    let of = |number: u64| {
        let value = format!("{number:08}").repeat(100);
        let found = bytes.windows(800).rposition(|window| window == value.as_bytes()).expect("it is there");
        found / 4096 * 4096
    };
    let (gone, flipped) = (of(7), of(30));
    bytes[gone..gone + 4096].fill(0);
    bytes[flipped] ^= 1;
    std::fs::write(file("store"), bytes).expect("written");
    let damaged = start_command(&["store", "check", &file("store"), "--json"]).finish();
    assert_eq!(damaged.code, Some(1), "{damaged:?}");
    let report: serde_json::Value = serde_json::from_str(&damaged.stdout).expect("JSON");
    assert_eq!(report["damaged_count"], 2, "{report}");
    let refused = start_command(&["store", "backup", &file("store"), &file("other")]).finish();
    assert!(refused.code == Some(70) && refused.stderr.contains("`trellis store salvage"), "{refused:?}");
    let salvaged = start_command(&["store", "salvage", &file("store"), &file("new")]).finish();
    assert_eq!(salvaged.code, Some(1), "{salvaged:?}");
    assert!(salvaged.stdout.contains("one bit is wrong, and can be mended"), "{salvaged:?}");
    assert!(salvaged.stdout.contains("the values after the key `"), "{salvaged:?}");
    let missing = start_command(&["store", "check", &file("nowhere")]).finish();
    assert_eq!((missing.code, missing.stderr.contains("does not exist")), (Some(78), true), "{missing:?}");

    let front = Front::start(&format!("embedded-durable:{}", file("new")));
    assert_eq!(front.ask("*2\r\n$3\r\nGET\r\n$4\r\nk030\r\n", 14), "$800\r\n00000030");
    assert_eq!(front.ask("*2\r\n$6\r\nEXISTS\r\n$4\r\nk007\r\n", 4), ":0\r\n");
}

#[test]
fn a_store_without_regions_says_so() {
    let folder = Folder::new();
    let store = durable(&folder);
    // The first user of a store makes its file.
    drop(Front::start(&store));
    let listed = start_command(&["store", "ls", "--store", &store]).finish();
    assert_eq!((listed.code, listed.stdout.starts_with("no regions in store")), (Some(0), true), "{listed:?}");
    let json = start_command(&["store", "ls", "--json", "--store", &store]).finish();
    assert!(json.stdout.contains(r#""regions":[]"#), "{json:?}");
    for task in [&["store", "stat", "queue"][..], &["store", "rm", "queue"]] {
        let ended = start_command(&[task, &["--store", &store]].concat()).finish();
        assert_eq!(ended.code, Some(1));
        assert!(ended.stderr.contains("no region `queue`; `trellis store ls` lists"), "{}", ended.stderr);
    }
}

#[test]
fn who_looks_at_a_store_makes_none() {
    let folder = Folder::new();
    let store = durable(&folder);
    for task in [&["store", "ls"][..], &["store", "stat", "queue"], &["store", "rm", "queue", "--force"]] {
        let ended = start_command(&[task, &["--store", &store]].concat()).finish();
        let file = folder.file("store");
        let sentence = format!("trellis: there is no store in {}: no such file; correct the path", file.display());
        assert_eq!((ended.code, ended.stderr.starts_with(&sentence)), (Some(78), true), "{ended:?}");
        assert!(!file.exists(), "{task:?} made the file");
    }
}

#[test]
fn an_address_that_is_none_is_answered_with_those_that_are() {
    let ended = start_command(&["store", "ls", "--store", "nosql://here"]).finish();
    assert_eq!(ended.code, Some(78));
    assert!(ended.stderr.starts_with("trellis: store `nosql://here`"), "{}", ended.stderr);
    assert!(ended.stderr.contains("accepted: embedded:"), "{}", ended.stderr);
}

#[test]
fn a_store_where_nobody_listens_is_named() {
    let ended = start_command(&["store", "ls", "--store", "redis://127.0.0.1:1"]).finish();
    assert_eq!(ended.code, Some(70));
    assert!(ended.stderr.contains("127.0.0.1:1"), "{}", ended.stderr);
}

#[test]
fn ordinary_clients_reach_any_store_through_the_front_end() {
    let folder = Folder::new();
    for store in ["embedded:".to_owned(), durable(&folder)] {
        let front = Front::start(&store);
        let answer = front.ask("SET message hello\r\nGET message\r\nINCRBY count 41\r\nINCR count\r\n", 26);
        assert_eq!(answer, "+OK\r\n$5\r\nhello\r\n:41\r\n:42\r\n");
        let through = start_command(&["store", "ls", "--store", &format!("redis://{}", front.address)]).finish();
        assert_eq!((through.code, through.stdout.starts_with("no regions")), (Some(0), true), "{through:?}");
    }
}

/// Says that a test is skipped if the library that is loaded first was not built.
fn lacks_parts(test: &str, said: &str) -> bool {
    let lacks = said.contains("the compiler's parts");
    if lacks {
        skip(test, Need::Part, said);
    }
    lacks
}

#[test]
fn a_size_that_is_none_is_refused_before_the_program_starts() {
    let ended = start_command(&["store", "run", "--store", "embedded:", "--cache", "much", "true"]).finish();
    if lacks_parts("a_size_that_is_none_is_refused_before_the_program_starts", &ended.stderr) {
        return;
    }
    let is_named = ended.code == Some(78) && ended.stderr.starts_with("trellis: --cache much is not possible");
    assert!(is_named, "{ended:?}");
}

/// A script, a shell and a program without a loader: the first two crash in forked children, the third never uses the
/// store.
#[test]
fn a_program_whose_heap_cannot_lie_in_a_store_is_refused_before_it_starts() {
    let folder = Folder::new();
    let write = |name: &str, text: &str| {
        let path = folder.file(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let statically = folder.file("alone");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-static", "-x", "c", "-o"])
        .arg(&statically)
        .arg(write("alone.c", "int main(void) { return 0; }\n"));
    assert!(compiler.status().expect("a compiler").success());
    let refused = [
        (write("script", "#!/bin/sh\necho started\n"), "is a script, which /bin/sh runs"),
        (write("bare", "echo started\n"), "is not a program, so that /bin/sh would run it as a script"),
        (write("other", "#!/usr/bin/env perl\nprint 1;\n"), "name both: `perl "),
        (PathBuf::from("sh"), "is a shell"),
        (statically, "is linked statically"),
    ];
    for (program, part) in refused {
        let program = program.to_str().unwrap();
        let ended = start_command(&["store", "run", "--store", "embedded:", program, "-c", "echo started"]).finish();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(126), ""), "{program}: {ended:?}");
        assert!(ended.stderr.starts_with(&format!("trellis: {program} ")), "{ended:?}");
        assert!(ended.stderr.contains(part), "{ended:?}");
    }
}

/// The launcher sees only `env`; the shell that `env` becomes reports it itself. A shell that a program starts is no
/// concern.
#[test]
fn a_shell_behind_another_program_is_refused_and_one_that_a_program_starts_is_not() {
    let run = ["store", "run", "--store", "embedded:", "--"];
    let ended =
        start_command(&[&run[..], &["env", "nice", "bash", "-c", "echo started; true | true"]].concat()).finish();
    if lacks_parts("a_shell_behind_another_program_is_refused_and_one_that_a_program_starts_is_not", &ended.stderr) {
        return;
    }
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(70), ""), "{ended:?}");
    assert!(ended.stderr.contains("bash is a shell, and what it starts is a forked child"), "{ended:?}");
    let program = "BEGIN { exit system(\"echo started\") }";
    let ended = start_command(&[&run[..], &["awk", program]].concat()).finish();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "started\n"), "{ended:?}");
}

#[test]
fn a_file_with_a_password_that_is_none_is_named_with_its_option() {
    let serve = ["store", "serve", "--store", "embedded:", "--resp", "127.0.0.1:0", "--password-file", "/nowhere/word"];
    let ended = start_command(&serve).finish();
    assert_eq!(ended.code, Some(74));
    assert!(ended.stderr.starts_with("trellis: --password-file /nowhere/word: "), "{}", ended.stderr);
}

/// An ordinary program of `examples/stored`, compiled by the machine's compiler.
fn example(compiler: &str, source: &str) -> PathBuf {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/stored").join(source);
    compiled(compiler, &source, &["-O1", "-pthread"])
}

/// Runs the same program alone and with its heap in a store; both must have the same output.
fn says_the_same(test: &str, store: &str, cache: &str, program: &std::path::Path, arguments: &[&str]) {
    let alone = Command::new(program).args(arguments).output().expect("it can be started");
    assert!(alone.status.success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.args(["store", "run", "--store", store, "--cache", cache, "--"]).arg(program).args(arguments);
    let stored = command.output().expect("it can be started");
    let printed = String::from_utf8_lossy(&stored.stderr);
    if printed.contains("the compiler's parts") {
        skip(test, Need::Part, printed);
        return;
    }
    assert!(stored.status.success(), "{}: {printed}", stored.status);
    assert_eq!(String::from_utf8_lossy(&stored.stdout), String::from_utf8_lossy(&alone.stdout), "{printed}");
    let listed = start_command(&["store", "ls", "--store", store]).finish();
    assert!(store.starts_with("embedded:") || listed.stdout.starts_with("no regions"), "{listed:?}");
}

#[test]
fn a_program_in_cpp_that_knows_nothing_runs_on_pages() {
    let program = example("c++", "inventory.cpp");
    let test = "a_program_in_cpp_that_knows_nothing_runs_on_pages";
    says_the_same(test, "embedded:", "64MiB", &program, &["100", "3"]);
}

#[test]
fn a_text_that_is_larger_than_the_cache_is_counted() {
    let folder = Folder::new();
    let program = example("cc", "word_count.c");
    let test = "a_text_that_is_larger_than_the_cache_is_counted";
    says_the_same(test, &durable(&folder), "6MiB", &program, &["--generate", "12000000"]);
}
