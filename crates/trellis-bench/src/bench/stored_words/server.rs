//! A Redis server for one run.
//!
//! Promises: it can be reached only through a socket in the benchmark's folder, writes nothing to the disk, and ends
//! with its value.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::place::Place;

/// How long it may take until the server answers.
const START_MAX: Duration = Duration::from_secs(30);
/// The longest path of a socket.
const SOCKET_PATH_MAX: usize = 100;

/// A server that ends with this value.
#[derive(Debug)]
pub(super) struct ServerProcess {
    process: Child,
    url: String,
    pid_file: std::path::PathBuf,
}

impl ServerProcess {
    /// Starts it; the error is the reason why that does not work.
    pub(super) fn start(place: &Place) -> Result<ServerProcess, String> {
        let (socket, log, pid_file) = (place.file("redis.socket"), place.file("redis.log"), place.file("redis.pid"));
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            return Err("the path of --directory is too long for a socket".to_owned());
        }
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.arg("--unixsocket").arg(&socket).args(["--unixsocketperm", "700"]);
        command.arg("--dir").arg(place.folder()).arg("--logfile").arg(&log);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "redis-server is not installed".to_owned(),
            _ => format!("redis-server cannot be started: {error}"),
        })?;
        let noted = std::fs::write(&pid_file, process.id().to_string());
        let mut server = ServerProcess { process, url: format!("redis+unix:{}", socket.display()), pid_file };
        noted.map_err(|error| format!("its number cannot be written: {error}"))?;
        let deadline = Instant::now() + START_MAX;
        while !answers(&socket).is_ok_and(|answers| answers) {
            let ended = server.process.try_wait().ok().flatten().is_some();
            if ended || Instant::now() > deadline {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let line = said.trim().lines().last().unwrap_or("it said nothing").to_owned();
                return Err(format!("redis-server did not start: {line}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended by itself. It is waited for in either case, so that its number belongs to no other
        // process.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.pid_file);
    }
}

fn answers(socket: &Path) -> std::io::Result<bool> {
    let mut stream = trellis_output::sockets::connect_path(socket, START_MAX)?;
    stream.set_read_timeout(Some(START_MAX))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    Ok(&answer == b"+PONG")
}
