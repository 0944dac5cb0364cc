//! The exchange of MPICH, Intel MPI and Slurm's `pmi2`: PMI-1, lines of text over a socket that the engine hands over.
//! If the engine has only the second version, or the user asks for it, the dialogue goes on in that one.
//!
//! Source: the simple PMI wire protocol of MPICH (`src/pmi/src/pmi_v1.c`), tried with MPICH 4.0.2 and Slurm 22.05.
//!
//! Promises: the dialogue is finished before the node continues, because an engine ends the job when a process begins a
//! dialogue and leaves before it has finished it. Nothing is linked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::{Exchanged, Offer};

/// The maximum length of a line. A line holds the longest value of an engine (4,096 bytes with Slurm) and its
/// surroundings.
const LINE_BYTES_MAX: u64 = 8_192;

/// Gives this node's text to all others and gets theirs, in PMI-1 if the engine has it.
pub(super) fn exchange(offer: Offer, until: Instant) -> Result<Exchanged, String> {
    exchange_in(1, offer, until)
}

/// The same in PMI-2.
pub(super) fn exchange_2(offer: Offer, until: Instant) -> Result<Exchanged, String> {
    exchange_in(2, offer, until)
}

fn exchange_in(version: u8, offer: Offer, until: Instant) -> Result<Exchanged, String> {
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let number = |name: &str| {
        let value = variable(name)?;
        value.parse::<usize>().map_err(|_| format!("{name}={value} is not a number"))
    };
    if is_over_port() {
        let port = variable("PMI_PORT")?;
        let unreachable = |error| format!("the engine cannot be reached at PMI_PORT={port}: {error}");
        let address = port.to_socket_addrs().map_err(unreachable)?.next();
        let address = address.ok_or_else(|| unreachable(std::io::ErrorKind::NotFound.into()))?;
        let stream = TcpStream::connect_timeout(&address, left(until)).map_err(unreachable)?;
        let mut server = PmiServer { stream: BufReader::new(stream), until };
        let (node, nodes) = server.acknowledge(&variable("PMI_ID")?)?;
        return server.exchange(version, node, nodes, &offer.of(node));
    }
    let (node, nodes) = (number("PMI_RANK")?, number("PMI_SIZE")?);
    let stream = stream_of(number("PMI_FD")?)?;
    PmiServer { stream: BufReader::new(stream), until }.exchange(version, node, nodes, &offer.of(node))
}

/// Whether the dialogue goes over a port of the engine, to which every process of the machine could connect.
pub(super) fn is_over_port() -> bool {
    std::env::var_os("PMI_FD").is_none()
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// A copy of the descriptor that the engine handed over.
#[allow(unsafe_code)]
fn stream_of(number: usize) -> Result<UnixStream, String> {
    let raw = i32::try_from(number).map_err(|_| format!("PMI_FD={number} is no descriptor"))?;
    // SAFETY: the descriptor is only duplicated, which fails if it is not open.
    let copy = unsafe { BorrowedFd::borrow_raw(raw) }.try_clone_to_owned();
    copy.map(UnixStream::from).map_err(|error| format!("PMI_FD={number} is not open here: {error}"))
}

/// A socket whose waits can be limited.
pub(super) trait Limited: Read + Write {
    fn limit(&self, time: Duration) -> std::io::Result<()>;
}

impl Limited for UnixStream {
    fn limit(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Limited for TcpStream {
    fn limit(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

/// The engine's end of the dialogue. Errors name commands and never values, because a value may hold the secret.
pub(super) struct PmiServer<S> {
    pub(super) stream: BufReader<S>,
    until: Instant,
}

impl<S: Limited> PmiServer<S> {
    /// Says who this is, on a connection that every process could have made.
    fn acknowledge(&mut self, id: &str) -> Result<(usize, usize), String> {
        self.ask(&format!("cmd=initack pmiid={id}"), "initack")?;
        let mut set = |name: &str| {
            let line = self.line()?;
            let value = field(&line, name).and_then(|value| value.parse::<usize>().ok());
            value.ok_or_else(|| format!("the engine does not say the {name}"))
        };
        let (nodes, node) = (set("size")?, set("rank")?);
        set("debug")?;
        Ok((node, nodes))
    }

    /// Agrees on a version, and carries out the exchange in it.
    pub(super) fn exchange(&mut self, version: u8, node: usize, nodes: usize, text: &str) -> Result<Exchanged, String> {
        match self.agree(version)? {
            2 => self.exchange_2(node, nodes, text),
            _ => self.exchange_1(node, nodes, text),
        }
    }

    /// Begins the dialogue. The first line and its answer have the form of PMI-1 in both versions.
    fn agree(&mut self, version: u8) -> Result<u8, String> {
        let subversion = if version == 1 { 1 } else { 0 };
        self.send(&format!("cmd=init pmi_version={version} pmi_subversion={subversion}\n"), "cmd=init")?;
        let got = self.line()?;
        match (field(&got, "cmd"), field(&got, "rc").unwrap_or("0"), field(&got, "pmi_version")) {
            (Some("response_to_init"), "0", _) => Ok(version),
            // The engine says which one it has.
            (Some("response_to_init"), _, Some("2")) if version == 1 => self.agree(2),
            (kind, code, _) => Err(format!(
                "the engine answers `cmd=init` with `cmd={} rc={code}`; a task can join once, so start each program with a \
                 srun or mpiexec of its own",
                kind.unwrap_or_default()
            )),
        }
    }

    fn exchange_1(&mut self, node: usize, nodes: usize, text: &str) -> Result<Exchanged, String> {
        let longest = self.ask("cmd=get_maxes", "maxes")?;
        let longest = field(&longest, "vallen_max").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        if text.len() > longest {
            return Err(format!("it carries values of {longest} bytes, and {} are needed", text.len()));
        }
        let name = self.ask("cmd=get_my_kvsname", "my_kvsname")?;
        let name = field(&name, "kvsname").ok_or("it has no name for the values of the job")?.to_owned();
        self.ask(&format!("cmd=put kvsname={name} key=trellis-{node} value={text}"), "put_result")?;
        self.ask("cmd=barrier_in", "barrier_out").map_err(|why| format!("waiting for all {nodes} nodes: {why}"))?;
        let mut texts = Vec::new();
        for peer in 0..nodes {
            let line = self.ask(&format!("cmd=get kvsname={name} key=trellis-{peer}"), "get_result")?;
            let value = line.split_once(" value=").map(|(_, value)| value.trim_end().to_owned());
            texts.push(value.ok_or_else(|| not_said(peer))?);
        }
        self.ask("cmd=finalize", "finalize_ack")?;
        Ok(Exchanged { node, texts })
    }

    /// Sends a line and returns the answer, which must be of the kind `answer`.
    fn ask(&mut self, line: &str, answer: &str) -> Result<String, String> {
        let command = line.split(' ').next().unwrap_or_default();
        self.send(&format!("{line}\n"), command)?;
        let got = self.line()?;
        let (kind, code) = (field(&got, "cmd").unwrap_or_default(), field(&got, "rc").unwrap_or("0"));
        if kind == answer && code == "0" {
            return Ok(got);
        }
        Err(format!("the engine answers `{command}` with `cmd={kind} rc={code}`"))
    }

    /// Sends a message; `command` is its name for an error.
    pub(super) fn send(&mut self, message: &str, command: &str) -> Result<(), String> {
        let sent = self.limit().and_then(|()| self.stream.get_mut().write_all(message.as_bytes()));
        sent.map_err(|error| format!("the engine does not take `{command}`: {error}"))
    }

    /// Limits the next wait.
    pub(super) fn limit(&self) -> std::io::Result<()> {
        self.stream.get_ref().limit(left(self.until))
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.limit().map_err(silent)?;
        let count = (&mut self.stream).take(LINE_BYTES_MAX).read_line(&mut line).map_err(silent)?;
        if count == 0 {
            return Err(silent(std::io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(line.trim_end().to_owned())
    }
}

/// Why nothing was read.
pub(super) fn silent(error: std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::WouldBlock => "the engine does not answer within start_seconds_max".to_owned(),
        std::io::ErrorKind::UnexpectedEof => {
            "the engine closed its end; a process of the job may have ended".to_owned()
        }
        _ => format!("the engine does not answer: {error}"),
    }
}

/// The sentence about a node without a text.
pub(super) fn not_said(peer: usize) -> String {
    format!("node {peer} said nothing; is it the same program?")
}

/// The value of `name=` in a line of such fields.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
pub(super) mod tests {
    use std::thread::{self, JoinHandle};

    use super::*;

    /// Answers the messages of a dialogue.
    pub(crate) fn engine(answers: Vec<(String, String)>) -> (UnixStream, JoinHandle<()>) {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets can be made");
        let answering = thread::spawn(move || {
            for (question, answer) in answers {
                let mut asked = vec![0; question.len()];
                theirs.read_exact(&mut asked).expect("the node asks");
                assert_eq!(String::from_utf8_lossy(&asked), question);
                theirs.write_all(answer.as_bytes()).expect("the node is there");
            }
        });
        (ours, answering)
    }

    /// Answers the lines of a dialogue.
    fn engine_1(answers: &[(&str, &str)]) -> (UnixStream, JoinHandle<()>) {
        engine(answers.iter().map(|(question, answer)| (format!("{question}\n"), format!("{answer}\n"))).collect())
    }

    pub(crate) fn server(stream: UnixStream) -> PmiServer<UnixStream> {
        PmiServer { stream: BufReader::new(stream), until: Instant::now() + Duration::from_secs(60) }
    }

    #[test]
    fn every_node_gets_the_text_of_every_node() {
        let (engine, _answering) = engine_1(&[
            ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"),
            ("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"),
            ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_1_0"),
            ("cmd=put kvsname=kvs_1_0 key=trellis-1 value=b=1;c", "cmd=put_result rc=0 msg=success"),
            ("cmd=barrier_in", "cmd=barrier_out"),
            ("cmd=get kvsname=kvs_1_0 key=trellis-0", "cmd=get_result rc=0 msg=success value=a=0;c"),
            ("cmd=get kvsname=kvs_1_0 key=trellis-1", "cmd=get_result rc=0 msg=success value=b=1;c"),
            ("cmd=finalize", "cmd=finalize_ack"),
        ]);
        let exchanged = server(engine).exchange(1, 1, 2, "b=1;c");
        assert_eq!(exchanged, Ok(Exchanged { node: 1, texts: vec!["a=0;c".to_owned(), "b=1;c".to_owned()] }));
    }

    #[test]
    fn a_process_that_connects_learns_its_number() {
        let (engine, _answering) =
            engine_1(&[("cmd=initack pmiid=3", "cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=3\ncmd=set debug=0")]);
        assert_eq!(server(engine).acknowledge("3"), Ok((3, 4)));
    }

    #[test]
    fn what_the_engine_refuses_is_said() {
        let (refusing, _answering) =
            engine_1(&[("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init rc=-1")]);
        let why = server(refusing).exchange(1, 0, 1, "").unwrap_err();
        assert!(why.starts_with("the engine answers `cmd=init` with `cmd=response_to_init rc=-1`; a task"), "{why}");
        let (gone, _) = UnixStream::pair().expect("sockets can be made");
        assert!(server(gone).exchange(1, 0, 1, "").unwrap_err().starts_with("the engine"));
    }

    #[test]
    fn no_error_shows_a_value() {
        let (refusing, _answering) = engine_1(&[
            ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init rc=0"),
            ("cmd=get_maxes", "cmd=maxes vallen_max=1024"),
            ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=k"),
            ("cmd=put kvsname=k key=trellis-0 value=secret", "cmd=put_result rc=-1 msg=value=secret"),
        ]);
        let why = server(refusing).exchange(1, 0, 1, "secret").unwrap_err();
        assert_eq!(why, "the engine answers `cmd=put` with `cmd=put_result rc=-1`");
    }
}
