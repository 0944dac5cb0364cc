//! The files that the command makes, and who may use them: the table of SECURITY.md, checked with an empty umask.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Ended, Run, signal, wait_until};
use trellis_testing::Folder;

/// The rows without files here: made only by a node that a user starts, by a switch with interfaces of its own, on file
/// systems of few machines, by commands that take minutes, or outside of this folder. Tests of `secret.rs`, `sockets.rs`, `files.rs` and
/// `scratch.rs` check their modes.
const ELSEWHERE: [&str; 6] = [
    "secret of a user, for nodes that are started by hand",
    "socket of a switch",
    "result that is not complete, where the file system has no files without names (`O_TMPFILE`, open(2)); elsewhere only while it replaces another one",
    "YCSB, as `trellis reproduce kv` builds it",
    "folder of a benchmark, of `trellis reproduce`, of `trellis cc --count`, of `trellis run --stats` and `--advise`, of an agent with what `--copy` and `--config` sent and with records, of `trellis lab up --ssh` and `--slurm` with the lab's keys",
    "the empty folder that sshd(8) needs, of `trellis lab up --ssh`",
];

/// A folder for everything that commands make.
struct Place(Folder);

impl Place {
    fn file(&self, name: &str) -> String {
        self.0.argument(name)
    }

    /// The command with these arguments, with an empty umask, and with all its places for files in this folder.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "umask 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_trellis")]).args(arguments);
        for place in ["TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"] {
            command.env(place, self.0.path());
        }
        command.current_dir(self.0.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, arguments: &[&str]) -> Run {
        Run::start(self.command(arguments))
    }

    /// Starts nodes in a role.
    fn nodes(&self, role: &str, options: &[&str]) -> Run {
        let mut command = self.command(&["run"]);
        command.args(options).arg("--");
        support::in_role(&mut command, role);
        Run::start(command)
    }

    /// Everything in the folder, with its mode. All of it belongs to the user of this process.
    fn list(&self) -> Vec<(PathBuf, u32)> {
        let own = fs::metadata(self.0.path()).expect("it is ours").uid();
        let mut found = Vec::new();
        let mut folders = vec![self.0.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("it is ours").map(|entry| entry.expect("it is ours").path()) {
                let about = fs::symlink_metadata(&entry).expect("nothing goes meanwhile");
                assert_eq!(about.uid(), own, "the owner of {}", entry.display());
                found.push((
                    entry.strip_prefix(self.0.path()).expect("below").to_owned(),
                    about.permissions().mode() & 0o7777,
                ));
                if about.is_dir() {
                    folders.push(entry);
                }
            }
        }
        found
    }
}

fn is_socket(path: &str) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket())
}

/// The row of the table to which a file belongs.
fn row_of(file: &Path) -> &'static str {
    let name = file.to_str().expect("text");
    match name {
        "store" | "copy" | "salvaged" | "records" => {
            "file of a durable store (the memory of programs, the records of a controller) and its copies"
        }
        "resp" => "socket of `trellis store serve`",
        "openflow" => "socket at which an OpenFlow switch is met",
        "record" | "output" => "records, outputs of nodes, summaries of runs, reports, compiled programs",
        _ if name.starts_with("record/") || name.starts_with("output/") => row_of(Path::new("record")),
        _ if name.starts_with("trellis-controller-") && name.ends_with(".sock") => "socket of a controller",
        _ if name.starts_with("trellis-") && name.ends_with(".secret") => "secret of a run that others may join",
        _ => panic!("say in the table of SECURITY.md what {name} is"),
    }
}

/// The first column of the table, and the modes.
fn table() -> Vec<(String, String)> {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../SECURITY.md")).expect("it is there");
    let (_, section) = text.split_once("## Files and sockets").expect("it has the section");
    let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    rows.map(cells).map(|cells| (cells[1].clone(), cells[3].clone())).collect()
}

#[test]
fn everything_that_a_run_makes_has_the_mode_that_the_table_says() {
    let folder = Place(Folder::new());
    let record = folder.file("record");
    let output = folder.file("output");
    let options =
        ["-n", "2", "--joiners-max", "1", "--record", &record, "--output", "files", "--output-directory", &output];
    let founders = folder.nodes("count", &options);
    let durable = format!("embedded-durable:{}", folder.file("store"));
    let resp = folder.file("resp");
    let served = folder.start(&["store", "serve", "--store", &durable, "--resp", &format!("unix:{resp}")]);
    wait_until("the store is served", || is_socket(&resp));
    assert_eq!(fs::metadata(&resp).expect("it is there").permissions().mode() & 0o7777, 0o600);
    let ended = end(served);
    assert_eq!((ended.code, Path::new(&resp).exists()), (Some(0), false), "{ended:?}");
    for (command, new) in [("backup", "copy"), ("salvage", "salvaged")] {
        let ended = folder.start(&["store", command, "store", new]).finish();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let records = format!("embedded-durable:{}", folder.file("records"));
    let prefix = "fd12:3456:c8::/48";
    let controller = folder.start(&["controller", "run", "--prefix", prefix, "--records", &records, "--port", "0"]);
    let openflow = folder.file("openflow");
    let host = "server 1 02:00:00:00:00:07 fd12:3456:7::/48";
    let method = format!("punix:{openflow}");
    let arguments = ["--cluster", "fd12:3456::/32", "--host", host, "--switch", "openflow", "--openflow", &method];
    // The default build has no OpenFlow.
    let switch = cfg!(feature = "openflow").then(|| folder.start(&[&["switch", "run"], &arguments[..]].concat()));
    let has = |part: &str| folder.list().iter().any(|(file, _)| file.to_string_lossy().contains(part));
    let served = folder.start(&["store", "serve", "--store", "embedded:", "--resp", &format!("unix:{resp}")]);
    wait_until("the other store is served", || is_socket(&resp));
    wait_until("the controller listens", || has("trellis-controller-"));
    wait_until("the switch is waited for", || switch.is_none() || is_socket(&openflow));
    wait_until("the nodes write", || has("output/node-1.out") && has(".secret"));

    let table = table();
    let mut seen: BTreeSet<&str> = ELSEWHERE.into();
    if switch.is_none() {
        seen.insert(row_of(Path::new("openflow")));
    }
    for (file, mode) in folder.list() {
        let row = row_of(&file);
        let (_, said) = table.iter().find(|(what, _)| what == row).unwrap_or_else(|| panic!("the table lacks: {row}"));
        let is_folder = folder.0.file(&file).is_dir();
        let expected = match said.as_str() {
            "umask" if is_folder => 0o777,
            "umask" => 0o666,
            mode => u32::from_str_radix(mode, 8).expect("a mode"),
        };
        assert_eq!(mode, expected, "{} has mode {mode:04o}, and the table says {said}", file.display());
        seen.insert(row);
    }
    let rows: BTreeSet<&str> = table.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(rows.difference(&seen).collect::<Vec<_>>(), Vec::<&&str>::new(), "rows of which nothing was made");

    for run in switch.into_iter().chain([controller, served, founders]) {
        end(run);
    }
    let left = folder.list().into_iter().map(|(file, _)| file);
    let left: Vec<_> = left
        .filter(|file| ["sock", "secret", "resp", "flow"].iter().any(|end| file.to_string_lossy().ends_with(end)))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Ends a command that does not end by itself.
fn end(run: Run) -> Ended {
    signal(run.pid(), libc::SIGTERM);
    run.finish()
}

/// Not a test of its own: the nodes of the test are this executable.
#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    if let Ok(role) = std::env::var("CLI_TEST_ROLE") {
        support::node::act(&role);
    }
}
