//! The common parts of the tests: an installed Trellis, the compilers of this machine, and clusters of processes on
//! loopback.
//!
//! Promises: every process that a test starts is a child of the test and is killed with it. A test that cannot run
//! reports the reason on a line that begins with SKIPPED.
#![allow(dead_code)] // each test program uses its part

#[path = "../../../trellis-dsm/tests/addresses/mod.rs"]
mod addresses;
#[path = "../../install.rs"]
pub(crate) mod install;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use trellis_testing::{Need, compiled, is_installed, skip};

pub(crate) use addresses::addresses;

/// How long a cluster may run before the test considers it stuck. Far more than any of them needs.
const STUCK_SECONDS: u64 = 120;

/// How long the folders of tests are kept after their end.
const KEPT_FOR: Duration = Duration::from_secs(3600);

/// The folder of this crate.
pub(crate) fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// An empty folder for this test. It stays for an hour, so that a failure can be looked into.
pub(crate) fn fresh_folder(name: &str) -> PathBuf {
    static SWEPT: Once = Once::new();
    // Tests of one program run concurrently, and two may choose the same name.
    static FOLDERS: AtomicUsize = AtomicUsize::new(0);
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    SWEPT.call_once(|| sweep(parent));
    let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
    let folder = parent.join(format!("{name}-{}-{number}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder for test files can be made");
    folder
}

/// Removes the folders of test programs that ended long ago.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut parts = name.rsplitn(3, '-').skip(1);
        let process = parts.next().and_then(|process| process.parse::<u32>().ok());
        let has_ended = process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists());
        let age = entry.metadata().and_then(|about| about.modified()).ok().and_then(|made| made.elapsed().ok());
        if has_ended && age.is_some_and(|age| age > KEPT_FOR) {
            // Another test program may be removing it.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// An installed Trellis, as users have it, under a prefix that the test programs of this build share.
pub(crate) fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let program = std::env::current_exe().expect("a test knows where it is");
        // Cargo builds the shared library into the folder of the test program, because the test depends on the crate.
        let library = program.with_file_name("libtrellis_c.so");
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let profile = program.ancestors().nth(2).and_then(Path::file_name).expect("cargo puts it into PROFILE/deps");
        let beside = |ending: &str| parent.join(format!("prefix-{}{ending}", profile.display()));
        let (prefix, made_from) = (beside(""), beside(".made-from"));
        let lock = File::create(beside(".lock")).expect("a file beside the tests' folders");
        lock.lock().expect("it can be locked");
        let state = state_of_install(&library);
        if std::fs::read_to_string(&made_from).ok().as_ref() != Some(&state) {
            let _ = std::fs::remove_dir_all(&prefix);
            install::install(crate_folder(), &library, &prefix, env!("CARGO_PKG_VERSION")).expect("installing works");
            std::fs::write(&made_from, state).expect("a file beside the tests' folders");
        }
        prefix
    })
}

/// When the library and the files that are installed with it last changed.
fn state_of_install(library: &Path) -> String {
    let changed = |file: &Path| {
        file.metadata()
            .and_then(|metadata| metadata.modified())
            .unwrap_or_else(|error| panic!("{}: {error}; cargo builds the library with this test", file.display()))
    };
    let mut folders =
        ["include", "cmake", "../../parmacs", "../../examples/parmacs"].map(|name| crate_folder().join(name)).to_vec();
    let mut newest = changed(library).max(changed(&crate_folder().join("install.rs")));
    while let Some(folder) = folders.pop() {
        newest = newest.max(changed(&folder));
        for entry in std::fs::read_dir(folder).expect("a folder of the repository").flatten() {
            newest = newest.max(changed(&entry.path()));
            if entry.path().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    format!("{:?} {newest:?}", changed(library))
}

/// A language, its compilers, and the flags with which a header must compile without warnings.
pub(crate) struct Language {
    pub(crate) compilers: &'static [&'static str],
    pub(crate) flags: &'static [&'static str],
    pub(crate) extension: &'static str,
}

pub(crate) const C: Language = Language {
    compilers: &["gcc", "clang"],
    flags: &["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"],
    extension: "c",
};
pub(crate) const CPP: Language = Language {
    compilers: &["g++", "clang++"],
    flags: &["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror"],
    extension: "cc",
};
/// Programs written for libivy use a flexible array member, which is not standard C++.
pub(crate) const CPP_OF_LIBIVY: Language =
    Language { compilers: CPP.compilers, flags: &["-std=c++20", "-Wall", "-Wextra", "-Werror"], extension: "cc" };

/// The installed compilers of a language; reports the missing ones.
pub(crate) fn compilers(test: &str, language: &Language) -> Vec<&'static str> {
    let (there, missing): (Vec<_>, Vec<_>) = language.compilers.iter().partition(|name| is_installed(name));
    for name in missing {
        skip(format_args!("{test} with {name}"), Need::Program, "it is not installed");
    }
    there
}

/// Compiles with the first compiler of the language; None, after reporting it, if there is none.
pub(crate) fn compile(test: &str, language: &Language, source: &Path, extra: &[&str]) -> Option<PathBuf> {
    let compiler = *compilers(test, language).first()?;
    let flags = language.flags.iter().copied().chain(["-O1"]).map(str::to_owned);
    let arguments: Vec<String> = flags.chain(link_flags()).chain(extra.iter().map(|&flag| flag.to_owned())).collect();
    Some(compiled(compiler, source, &arguments))
}

/// The flags that a user without pkg-config writes.
pub(crate) fn link_flags() -> Vec<String> {
    let (include, lib) = (prefix().join("include"), prefix().join("lib"));
    vec![
        format!("-I{}", include.display()),
        format!("-L{}", lib.display()),
        format!("-Wl,-rpath,{}", lib.display()),
        "-ltrellis".to_owned(),
        "-pthread".to_owned(),
    ]
}

/// The flags of a program written for libivy, with only the folders changed.
pub(crate) fn libivy_link_flags() -> Vec<String> {
    let mut flags = link_flags();
    flags.push(format!("-I{}", prefix().join("include/libivy").display()));
    flags.iter().map(|flag| if flag == "-ltrellis" { "-livy".to_owned() } else { flag.clone() }).collect()
}

/// One of the programs beside the tests.
pub(crate) fn program(name: &str) -> PathBuf {
    crate_folder().join("tests/programs").join(name)
}

/// One of the repository's examples.
pub(crate) fn example(name: &str) -> PathBuf {
    crate_folder().join("../../examples").join(name)
}

/// Runs a command that must succeed and returns its standard output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Runs a command that must fail and returns its error message.
pub(crate) fn complains(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(!output.status.success(), "{command:?} should have failed");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A process of a cluster and its output files; killed when dropped.
pub(crate) struct Node {
    child: Child,
    folder: PathBuf,
}

impl Node {
    /// Starts a program whose environment contains only these `variables` of Trellis.
    pub(crate) fn start(folder: &Path, name: &str, command: &mut Command, variables: &[(&str, &str)]) -> Node {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let into = |file: &str| std::fs::File::create(folder.join(file)).unwrap();
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TRELLIS_")) {
            command.env_remove(name);
        }
        let child = command
            // Cargo names its own folders there, in which an older library may lie.
            .env_remove("LD_LIBRARY_PATH")
            // The key for processes of one user is kept in the home folder.
            .env("HOME", folder.parent().unwrap())
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(into("stdout"))
            .stderr(into("stderr"))
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Node { child, folder }
    }

    pub(crate) fn printed(&self) -> String {
        std::fs::read_to_string(self.folder.join("stdout")).unwrap()
    }

    pub(crate) fn complained(&self) -> String {
        std::fs::read_to_string(self.folder.join("stderr")).unwrap()
    }

    /// Waits for the end of the process and returns its exit status.
    pub(crate) fn end(&mut self) -> std::process::ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            self.panic_if_stuck(start, "to end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a process that must succeed and returns its standard output.
    pub(crate) fn succeed(&mut self) -> String {
        let status = self.end();
        assert!(status.success(), "{status}; it printed\n{}\nand complained\n{}", self.printed(), self.complained());
        self.printed()
    }

    /// Waits until the process has printed `line`; for programs that never end.
    pub(crate) fn until_printed(&mut self, line: &str) -> String {
        self.until_line(line, |other| other == line)
    }

    /// Waits until the process has printed a line with this beginning.
    pub(crate) fn until_begun(&mut self, begin: &str) -> String {
        self.until_line(begin, |line| line.starts_with(begin))
    }

    /// Stops the process, so that it answers no peer, and returns when it has stopped.
    pub(crate) fn stop(&mut self) {
        succeed(Command::new("kill").args(["-STOP", &self.child.id().to_string()]));
        self.until_state("to stop", |state| state == 'T');
    }

    /// Ends the process as a machine failure does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the first thread of the process sleeps or has ended.
    pub(crate) fn until_asleep(&self) {
        self.until_state("to sleep", |state| state != 'R');
    }

    fn until_state(&self, name: &str, is_it: impl Fn(char) -> bool) {
        let start = Instant::now();
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap()
        };
        while !is_it(state()) {
            self.panic_if_stuck(start, name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn until_line(&mut self, line: &str, is_it: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let printed = self.printed();
            // A line without its end is not counted yet.
            if printed.split_inclusive('\n').any(|other| other.strip_suffix('\n').is_some_and(&is_it)) {
                return printed;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!(
                    "{status} before it printed {line:?}; it printed\n{printed}\nand complained\n{}",
                    self.complained()
                );
            }
            self.panic_if_stuck(start, line);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn panic_if_stuck(&self, start: Instant, waiting_for: &str) {
        if start.elapsed() > Duration::from_secs(STUCK_SECONDS) {
            panic!(
                "stuck, waiting for it {waiting_for}: it printed\n{}\nand complained\n{}",
                self.printed(),
                self.complained()
            );
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a program once for every node, as `trellis run` does.
pub(crate) fn start_cluster(
    folder: &Path,
    program: &Path,
    nodes: usize,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Vec<Node> {
    let list = addresses(nodes).join(",");
    let start = |node: usize| {
        let number = node.to_string();
        let mut all = vec![("TRELLIS_NODES", list.as_str()), ("TRELLIS_NODE", number.as_str())];
        all.extend_from_slice(variables);
        Node::start(folder, &number, Command::new(program).args(arguments).current_dir(folder), &all)
    };
    (0..nodes).map(start).collect()
}

/// Runs a cluster in which every node must succeed and returns what each printed.
pub(crate) fn run_cluster(
    test: &str,
    program: &Path,
    nodes: usize,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Vec<String> {
    let folder = fresh_folder(&format!("{test}-{nodes}-nodes"));
    let mut cluster = start_cluster(&folder, program, nodes, arguments, variables);
    let ended: Vec<_> = cluster.iter_mut().map(Node::end).collect();
    // The first failure makes the other nodes fail.
    let said = |node: &Node| format!("it printed\n{}\nand complained\n{}", node.printed(), node.complained());
    let failed: Vec<String> = ended
        .iter()
        .zip(&cluster)
        .enumerate()
        .filter(|(_, (status, _))| !status.success())
        .map(|(number, (status, node))| format!("node {number}: {status}; {}", said(node)))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    cluster.iter().map(Node::printed).collect()
}

/// Starts a program alone, without any configuration.
pub(crate) fn run_alone(test: &str, program: &Path) -> String {
    let folder = fresh_folder(&format!("{test}-alone"));
    Node::start(&folder, "0", &mut Command::new(program), &[]).succeed()
}
