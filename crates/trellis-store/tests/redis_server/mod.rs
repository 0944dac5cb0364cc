//! A real `redis-server` for a test: on a free port and a socket, in a folder of its own, ended with the test.

#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A server.
pub(crate) struct RedisServer {
    child: Child,
    pub(crate) port: u16,
    folder: PathBuf,
    options: Vec<String>,
}

impl RedisServer {
    /// Starts one; prints why and returns `None` if none is installed.
    pub(crate) fn start(test: &str, options: &[&str]) -> Option<RedisServer> {
        if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIPPED {test}: redis-server is not installed");
            return None;
        }
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("trellis-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the server");
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let child = placeholder();
        let mut server = RedisServer { child, port: 0, folder, options };
        // Another process may take the port between the check and the server's start.
        while !server.launch(free_port(), &[]) {}
        Some(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Starts it again on the same port.
    pub(crate) fn restart(&mut self) {
        self.restart_with(&[]);
        self.until("it has loaded what it kept", |answer| !answer.starts_with("-LOADING"));
    }

    /// Like `restart`, with more options; it may still be loading its data.
    pub(crate) fn restart_with(&mut self, more: &[&str]) {
        let port = self.port;
        assert!(self.launch(port, more), "the port of the server is free again");
    }

    /// What `redis-cli` would print.
    pub(crate) fn ask(&self, command: &str) -> String {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server is there");
        ask(stream, command).expect("the server answers")
    }

    /// Starts it and waits until it answers; false if it ended instead.
    fn launch(&mut self, port: u16, more: &[&str]) -> bool {
        let log = std::fs::File::create(self.folder.join("log")).expect("a file for the server's log");
        self.port = port;
        self.child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no", "--unixsocket"])
            .arg(self.socket())
            .args(["--port", &port.to_string(), "--dir"])
            .arg(&self.folder)
            .args(&self.options)
            .args(more)
            .stdout(log)
            .stdin(Stdio::null())
            .spawn()
            .expect("redis-server starts");
        // On its own socket no other process answers, unlike on a port that another process may have taken first. A
        // request for the password is an answer too.
        self.until("it answers", |_| true)
    }

    /// Asks it until an answer is right; false if it ended instead.
    fn until(&mut self, what: &str, is_right: impl Fn(&str) -> bool) -> bool {
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                println!("redis-server ended with {status} before {what}");
                return false;
            }
            let answer = UnixStream::connect(self.socket()).and_then(|stream| ask(stream, "PING"));
            if answer.is_ok_and(|answer| !answer.is_empty() && is_right(&answer)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            println!("{}", std::fs::read_to_string(self.folder.join("log")).unwrap_or_default());
        }
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// Sends a line and returns the first bytes of the answer.
fn ask(mut stream: impl Read + Write, command: &str) -> std::io::Result<String> {
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = [0; 4096];
    let read = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

fn placeholder() -> Child {
    Command::new("true").spawn().expect("true starts")
}
