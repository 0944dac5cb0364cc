//! A real `redis-server` for a test: on a free port and a socket, in a folder of its own, ended with the test.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{Folder, Port, are_installed};

/// A server.
pub struct RedisServer {
    child: Child,
    port: Port,
    folder: Folder,
    options: Vec<String>,
}

impl RedisServer {
    /// Starts one; prints why and returns `None` if none is installed.
    pub fn start(test: &str, options: &[&str]) -> Option<RedisServer> {
        if !are_installed(test, &["redis-server"]) {
            return None;
        }
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let child = placeholder();
        let mut server = RedisServer { child, port: Port::new(), folder: Folder::new(), options };
        server.launch(&[]);
        Some(server)
    }

    /// Its address as a store.
    pub fn url(&self) -> String {
        format!("redis://{}", self.port.address())
    }

    /// Its address as a store, over a socket of this machine.
    pub fn socket_url(&self) -> String {
        format!("redis+unix:{}", self.socket().display())
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// The socket at which it listens as well.
    pub fn socket(&self) -> PathBuf {
        self.folder.file("socket")
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        // Ends at once: it was killed.
        self.child.wait().ok();
    }

    /// Starts it again on the same port.
    pub fn restart(&mut self) {
        self.restart_with(&[]);
        self.until("it has loaded what it kept", |answer| !answer.starts_with("-LOADING"));
    }

    /// Like `restart`, with more options; it may still be loading its data.
    pub fn restart_with(&mut self, more: &[&str]) {
        self.launch(more);
    }

    /// What `redis-cli` would print.
    pub fn ask(&self, command: &str) -> String {
        let stream = TcpStream::connect(self.port.address()).expect("the server is there");
        ask(stream, command).expect("the server answers")
    }

    /// Starts it and waits until it answers.
    fn launch(&mut self, more: &[&str]) {
        let log = std::fs::File::create(self.folder.file("log")).expect("a file for the server's log");
        self.child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no", "--unixsocket"])
            .arg(self.socket())
            .args(["--port", &self.port.number().to_string(), "--dir"])
            .arg(self.folder.path())
            .args(&self.options)
            .args(more)
            .stdout(log)
            .stdin(Stdio::null())
            .spawn()
            .expect("redis-server starts");
        // A request for the password is an answer too.
        self.until("it answers", |_| true);
    }

    /// Asks it until an answer is right.
    fn until(&mut self, what: &str, is_right: impl Fn(&str) -> bool) {
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                panic!("redis-server ended with {status} before {what}");
            }
            let answer = UnixStream::connect(self.socket()).and_then(|stream| ask(stream, "PING"));
            if answer.is_ok_and(|answer| !answer.is_empty() && is_right(&answer)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            println!("{}", std::fs::read_to_string(self.folder.file("log")).unwrap_or_default());
        }
    }
}

/// Sends a line and returns the first bytes of the answer.
fn ask(mut stream: impl Read + Write, command: &str) -> std::io::Result<String> {
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = [0; 4096];
    let read = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
}

fn placeholder() -> Child {
    Command::new("true").spawn().expect("true starts")
}
