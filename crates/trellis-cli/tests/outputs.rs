//! Outputs that fail: full disks, files that may not grow, folders without write access, readers that leave.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use support::{in_role, start_command};

const TRELLIS: &str = env!("CARGO_BIN_EXE_trellis");

/// A folder that is removed with its value.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("trellis-outputs-{test}-{}", std::process::id()));
        fs::create_dir(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

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
    let folder = Folder::new("grow");
    let script = "ulimit -f 100; exec \"$0\" run -- sh -c 'while echo hello; do :; done' > output";
    let mut command = Command::new("sh");
    command.args(["-c", script, TRELLIS]).current_dir(&folder.0).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.status.signal()), (Some(74), None), "{}", sentence(&output));
    assert!(sentence(&output).contains("cannot be written: File too large"), "{}", sentence(&output));
}

#[test]
fn a_record_that_cannot_be_written_is_a_status() {
    let folder = Folder::new("record");
    // A file system of our own with room for the folder, and for nothing in it.
    let script = "mount -t tmpfs -o size=4k trellis \"$1\" && mkdir \"$1/record\" && \
        head -c 4096 /dev/zero > \"$1/full\"; shift; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]).arg(&folder.0).arg(TRELLIS);
    command.args(["run", "-n", "2", "--record"]).arg(folder.0.join("record")).arg("--").stdin(Stdio::null());
    in_role(&mut command, "sum");
    let output = command.output().expect("unshare is in util-linux");
    let said = sentence(&output);
    if said.contains("unshare: ") {
        println!("SKIPPED a_record_that_cannot_be_written_is_a_status: {}", said.trim());
        return;
    }
    assert_eq!(output.status.code(), Some(74), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
}

#[test]
fn a_folder_that_cannot_be_written_is_said_before_the_work() {
    let ended = start_command(&["run", "--record", "/sys", "--", "sh", "-c", "echo started"]).finish();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(74), ""), "{ended:?}");
    assert!(ended.stderr.starts_with("trellis: cannot write into /sys: "), "{ended:?}");
}

/// Not a test of its own: what runs inside the processes that the tests above start.
#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    if let Ok(role) = std::env::var("CLI_TEST_ROLE") {
        support::node::act(&role);
    }
}
