//! Servers that tests start themselves, on a free port of this machine, and that end with their process.
//!
//! Other crates include this folder by its path. A test must never use a server that it did not start.

#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod kinds;
pub(crate) mod proxy;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use trellis_testing::{Port, programs};

/// Longer than any server needs to start.
const START_SECONDS_MAX: u64 = 60;

/// The prefix of servers' folders; the number of the process that created it and a counter follow.
const FOLDER: &str = "trellis-store-";

/// A server that runs as long as this lives.
pub(crate) struct ServerProcess {
    child: Option<Child>,
    command: Vec<String>,
    port: Port,
    /// For etcd's members among each other.
    _peer_port: Port,
    folder: PathBuf,
}

impl ServerProcess {
    /// Starts it and waits until it accepts connections. `{port}`, `{peer_port}` and `{folder}` are replaced in
    /// the arguments.
    pub(crate) fn start(command: &[&str]) -> ServerProcess {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        // In memory if there is such a folder: what a server must keep when it is killed stays there too.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        sweep(&parent);
        let folder = parent.join(format!("{FOLDER}{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the server can be made");
        let (port, peer_port) = (Port::new(), Port::new());
        let fill = |part: &&str| {
            let part = part.replace("{port}", &port.number().to_string());
            let part = part.replace("{peer_port}", &peer_port.number().to_string());
            part.replace("{folder}", &folder.display().to_string())
        };
        let command = command.iter().map(fill).collect();
        let mut server = ServerProcess { child: None, command, port, _peer_port: peer_port, folder };
        server.start_again();
        server
    }

    /// Starts it once more on the same port and the same folder, after [`ServerProcess::kill`].
    pub(crate) fn start_again(&mut self) {
        let log = std::fs::File::create(self.folder.join("log")).expect("a file for the server's log can be made");
        let child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log can be opened twice"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{:?} cannot be started: {error}", self.command));
        self.child = Some(child);
        let begin = Instant::now();
        while TcpStream::connect(self.address()).is_err() {
            let ended = self.child.as_mut().expect("just started").try_wait().expect("a child of ours");
            if ended.is_some() || begin.elapsed() > Duration::from_secs(START_SECONDS_MAX) {
                panic!("{:?} does not take connections ({ended:?}): {}", self.command, self.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child of ours can be ended");
            child.wait().expect("a child of ours ends");
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Its output since its last start.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            println!("{:?}: {}", self.command, self.log());
        }
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// Removes what killed test programs left behind.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(FOLDER)?.split('-').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            std::fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// The path of a program, if it is installed.
pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    programs::find(program).or_else(|| programs::find(Path::new("/usr/local/go/bin").join(program)))
}

/// Builds one of the servers that are written in Go, once, and returns its path, or why that is not possible here.
///
/// The result is below the target folder, under a name derived from its sources, so that it is built again after a
/// change.
pub(crate) fn built(name: &str) -> Result<PathBuf, String> {
    let go = installed("go").ok_or("go is not installed")?;
    // Every crate is beside the one that contains this folder.
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trellis-store/tests/servers").join(name);
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("servers");
    std::fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    let program = cache.join(format!("{name}-{:016x}", fingerprint(&sources)));
    // One process at a time builds; others wait for it.
    let lock = std::fs::File::create(cache.join(format!("{name}.lock"))).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    if program.is_file() {
        return Ok(program);
    }
    let unfinished = cache.join(format!("{name}.unfinished"));
    let output = Command::new(go)
        .args(["build", "-trimpath", "-mod=readonly", "-o"])
        .arg(&unfinished)
        .arg(".")
        .current_dir(&sources)
        // Exactly the versions in go.mod and go.sum.
        .env("GOFLAGS", "")
        .env("GOTOOLCHAIN", "local")
        .output()
        .map_err(|error| format!("go cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("go cannot build {name}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    std::fs::rename(&unfinished, &program).map_err(|error| error.to_string())?;
    Ok(program)
}

fn fingerprint(folder: &Path) -> u64 {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    let bytes = files.iter().flat_map(|file| std::fs::read(file).unwrap_or_default());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
