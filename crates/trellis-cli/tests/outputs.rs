//! Outputs that fail: full disks, files that may not grow or be opened, folders without write access, readers that leave
//! or do not read.

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use support::{in_role, start_command};
use trellis_testing::{Folder, Need, skip};

const TRELLIS: &str = env!("CARGO_BIN_EXE_trellis");

fn full() -> File {
    File::options().write(true).open("/dev/full").expect("every Linux has it")
}

fn sentence(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_full_disk_at_standard_output_is_a_sentence_and_a_status() {
    let node = ["run", "-n", "2", "--", "sh", "-c", "echo hello; sleep 600"];
    for arguments in [&node[..], &["doctor"], &["run", "--help"], &["bench", "--help"]] {
        let output = Command::new(TRELLIS).args(arguments).stdout(full()).stdin(Stdio::null()).output().unwrap();
        let said = sentence(&output);
        assert_eq!(output.status.code(), Some(74), "{arguments:?}: {said}");
        assert!(said.contains("No space left on device") && said.lines().count() == 1, "{arguments:?}: {said}");
    }
}

#[test]
fn who_serves_others_says_that_it_cannot_be_heard_and_goes_on() {
    let serve = ["store", "serve", "--store", "embedded:", "--resp", "127.0.0.1:0"];
    let mut command = Command::new(TRELLIS);
    command.args(serve).stdout(full()).stderr(Stdio::piped()).stdin(Stdio::null());
    let mut server = command.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let is_there = server.try_wait().unwrap().is_none();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(said.contains("standard output cannot be written (No space left on device"), "{said}");
    assert!(is_there, "it serves");
}

#[test]
fn a_server_that_may_open_no_more_files_says_so_and_goes_on() {
    let folder = Folder::new();
    let socket = folder.argument("resp");
    let serve = format!("ulimit -n 40; exec {TRELLIS} store serve --store embedded: --resp unix:{socket}");
    let mut command = Command::new("sh");
    command.args(["-c", &serve]).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    let mut server = command.spawn().unwrap();
    let mut listening = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut listening).unwrap();
    let mut clients = Vec::new();
    let mut ask = |request: &str| {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // A client that is refused may be hung up before it asks.
        client.write_all(request.as_bytes()).ok();
        let mut answer = vec![0; 4096];
        let count = client.read(&mut answer).expect("an answer");
        clients.push(client);
        String::from_utf8_lossy(&answer[..count]).into_owned()
    };
    let answers: Vec<String> = (0..80).map(|_| ask("PING\r\n")).collect();
    let refused = "-ERR max number of clients reached: the server may open no more files; raise `ulimit -n`\r\n";
    // One thread of the server may accept a client with the file that another one kept to refuse a client.
    let (served, others): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| *answer == "+PONG\r\n");
    assert!(!served.is_empty() && served.len() < 40, "{} of {listening}", served.len());
    assert!(others.iter().all(|answer| *answer == refused), "{answers:?}");

    clients.clear();
    // The server may still be about to close those, and refuse this one, too.
    let info = loop {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.write_all(b"INFO\r\nQUIT\r\n").ok();
        let mut info = String::new();
        match client.read_to_string(&mut info) {
            Ok(_) if !info.starts_with("-ERR") => break info,
            _ => assert!(server.try_wait().unwrap().is_none(), "it has ended"),
        }
    };
    let rejected = info.lines().find_map(|line| line.strip_prefix("rejected_connections:")).expect("a counter");
    assert!(rejected.parse::<usize>().unwrap() >= others.len(), "{info}");
    server.kill().unwrap();
    let said = sentence(&server.wait_with_output().unwrap());
    assert!(said.contains("a client is refused: max number of clients reached: the server may open no more"), "{said}");
}

/// A pipe that takes nothing more until somebody reads it.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(b"\n").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn a_reader_that_does_not_read_stops_no_controller() {
    let folder = Folder::new();
    let control = folder.argument("control");
    let (mut reader, writer) = full_pipe();
    let run = ["controller", "run", "--records", "embedded:", "--port", "0", "--prefix", "fd12:3456:c8::/48"];
    let mut command = Command::new(TRELLIS);
    command.args(run).args(["--control", &control]).stdin(Stdio::null());
    let mut controller = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
    drop(command);
    let status = || Command::new(TRELLIS).args(["controller", "status", "--control", &control]).output().unwrap();
    let mut answered = status();
    while !answered.status.success() && controller.try_wait().unwrap().is_none() {
        answered = status();
    }
    controller.kill().unwrap();
    controller.wait().unwrap();
    assert!(answered.status.success(), "{}", sentence(&answered));
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert_eq!(read.trim(), "", "the pipe was full");
}

#[test]
fn a_full_disk_at_standard_error_changes_no_status() {
    for (arguments, code) in
        [(&["run", "no-program-of-this-name"][..], 127), (&["run", "-n", "2", "--stats", "true"], 0)]
    {
        let mut command = Command::new(TRELLIS);
        let status =
            command.args(arguments).stdout(Stdio::null()).stderr(full()).stdin(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn a_file_that_may_not_grow_is_no_signal() {
    let folder = Folder::new();
    let script = "ulimit -f 100; exec \"$0\" run -- sh -c 'while echo hello; do :; done' > output";
    let mut command = Command::new("sh");
    command.args(["-c", script, TRELLIS]).current_dir(folder.path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.status.signal()), (Some(74), None), "{}", sentence(&output));
    assert!(sentence(&output).contains("cannot be written: File too large"), "{}", sentence(&output));
}

/// The command, with a folder that is a file system of its own, full after these files were made in it. After it the
/// files are shown.
fn on_a_full_disk(folder: &Folder) -> Command {
    let script = "mount -t tmpfs -o size=64k trellis \"$1\" && cd \"$1\" && mkdir record kept || exit; \
        echo before | tee picture.svg > kept/ivy.history; head -c 64k /dev/zero > full 2> /dev/null; shift; \
        \"$@\"; status=$?; cat picture.svg kept/ivy.history; ls -A . kept; exit $status";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]).arg(folder.path()).arg(TRELLIS);
    command
}

/// The end of the output if every file is as it was, and no other one was made.
const UNCHANGED: &str = "before\nbefore\n.:\nfull\nkept\npicture.svg\nrecord\n\nkept:\nivy.history\n";

fn fails_and_changes_nothing(test: &str, mut command: Command) {
    let output = command.stdin(Stdio::null()).output().expect("unshare is in util-linux");
    let said = sentence(&output);
    if said.contains("unshare: ") {
        return skip(test, Need::Namespaces, said);
    }
    assert_eq!(output.status.code(), Some(74), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.ends_with(UNCHANGED), "{shown}");
}

#[test]
fn a_record_that_cannot_be_written_is_a_status() {
    let folder = Folder::new();
    let mut command = on_a_full_disk(&folder);
    command.args(["run", "-n", "2", "--record", "record", "--"]);
    in_role(&mut command, "sum");
    fails_and_changes_nothing("a_record_that_cannot_be_written_is_a_status", command);
}

#[test]
fn a_picture_that_cannot_be_written_replaces_none() {
    let folder = Folder::new();
    let mut command = on_a_full_disk(&folder);
    command.args(["check", "scale", "--protocol", "ivy", "--workload", "hot", "--nodes", "2", "--operations", "20"]);
    command.args(["--svg", "picture.svg"]);
    fails_and_changes_nothing("a_picture_that_cannot_be_written_replaces_none", command);
}

#[test]
fn a_history_that_cannot_be_kept_replaces_none() {
    let folder = Folder::new();
    let mut command = on_a_full_disk(&folder);
    command.args(["check", "history", "--protocol", "ivy", "--operations", "200", "--keep", "kept"]);
    fails_and_changes_nothing("a_history_that_cannot_be_kept_replaces_none", command);
}

#[test]
fn a_folder_that_cannot_be_written_is_said_before_the_work() {
    let program = ["--", "sh", "-c", "echo started"];
    for options in [&["--record", "/sys"][..], &["--output", "files", "--output-directory", "/sys"]] {
        let ended = start_command(&[&["run"], options, &program].concat()).finish();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(74), ""), "{ended:?}");
        assert!(ended.stderr.starts_with("trellis: cannot write ") && ended.stderr.contains("/sys"), "{ended:?}");
    }
    // A socket is a file, too.
    let serve = ["store", "serve", "--store", "embedded:", "--resp", "unix:/sys/socket"];
    let ended = start_command(&serve).finish();
    assert_eq!(ended.code, Some(71), "{ended:?}");
    assert!(ended.stderr.contains("cannot listen at unix:/sys/socket: "), "{ended:?}");
    let ended = start_command(&["check", "scale", "--svg", "/sys/picture.svg"]).finish();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(74), ""), "{ended:?}");
    assert!(ended.stderr.starts_with("trellis check: cannot write /sys/picture.svg: "), "{ended:?}");
}

/// Not a test of its own: what runs inside the processes that the tests above start.
#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    if let Ok(role) = std::env::var("CLI_TEST_ROLE") {
        support::node::act(&role);
    }
}
