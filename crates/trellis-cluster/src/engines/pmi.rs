//! The exchange of MPICH, Intel MPI and Slurm's `pmi2`: PMI-1, lines of text over a socket that the engine hands over.
//!
//! Source: the simple PMI wire protocol of MPICH (`src/pmi/src/pmi_v1.c`), tried with MPICH 4.0.2 and Slurm 22.05.
//!
//! Promises: the dialogue is finished before the node goes on, because an engine ends the job when a process leaves
//! that has begun it and not finished it. Nothing is linked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::{Exchanged, Offer};

/// The longest line, which holds the longest value of an engine (4,096 bytes with Slurm) and what is around it.
const LINE_BYTES_MAX: u64 = 8_192;

/// Gives this node's text to all others and gets theirs.
pub(super) fn exchange(offer: Offer, until: Instant) -> Result<Exchanged, String> {
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let number = |name: &str| {
        let value = variable(name)?;
        value.parse::<usize>().map_err(|_| format!("{name}={value} is not a number"))
    };
    if let Ok(port) = variable("PMI_PORT")
        && variable("PMI_FD").is_err()
    {
        let unreachable = |error| format!("the engine cannot be reached at PMI_PORT={port}: {error}");
        let stream = TcpStream::connect(&*port).map_err(unreachable)?;
        stream.set_read_timeout(Some(left)).and_then(|()| stream.set_write_timeout(Some(left))).map_err(unreachable)?;
        let mut server = Server(BufReader::new(stream));
        let (node, nodes) = server.acknowledge(&variable("PMI_ID")?)?;
        return server.exchange(node, nodes, &offer.of(node));
    }
    let (node, nodes) = (number("PMI_RANK")?, number("PMI_SIZE")?);
    let stream = stream_of(number("PMI_FD")?)?;
    let unusable = |error| format!("the descriptor of PMI_FD cannot be used: {error}");
    stream.set_read_timeout(Some(left)).and_then(|()| stream.set_write_timeout(Some(left))).map_err(unusable)?;
    Server(BufReader::new(stream)).exchange(node, nodes, &offer.of(node))
}

/// A copy of the descriptor that the engine handed over.
#[allow(unsafe_code)]
fn stream_of(number: usize) -> Result<UnixStream, String> {
    let raw = i32::try_from(number).map_err(|_| format!("PMI_FD={number} is no descriptor"))?;
    // SAFETY: the descriptor is only duplicated, which fails if it is not open.
    let copy = unsafe { BorrowedFd::borrow_raw(raw) }.try_clone_to_owned();
    copy.map(UnixStream::from).map_err(|error| format!("PMI_FD={number} is not open here: {error}"))
}

/// The engine's end of the dialogue.
struct Server<S>(BufReader<S>);

impl<S: Read + Write> Server<S> {
    /// Says who this is, on a connection that every process could have made.
    fn acknowledge(&mut self, id: &str) -> Result<(usize, usize), String> {
        self.ask(&format!("cmd=initack pmiid={id}"), "initack")?;
        let mut set = |name: &str| {
            let line = self.line()?;
            let value = field(&line, name).and_then(|value| value.parse::<usize>().ok());
            value.ok_or_else(|| format!("it does not say its {name}, but `{line}`"))
        };
        let (nodes, node) = (set("size")?, set("rank")?);
        set("debug")?;
        Ok((node, nodes))
    }

    fn exchange(&mut self, node: usize, nodes: usize, text: &str) -> Result<Exchanged, String> {
        self.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
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
            texts.push(value.ok_or_else(|| format!("node {peer} said nothing; is it the same program?"))?);
        }
        self.ask("cmd=finalize", "finalize_ack")?;
        Ok(Exchanged { node, texts })
    }

    /// Sends a line, and gets the answer, which must be of this kind.
    fn ask(&mut self, line: &str, answer: &str) -> Result<String, String> {
        let stream = self.0.get_mut();
        stream
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| stream.flush())
            .map_err(|error| format!("the engine does not take `{line}`: {error}"))?;
        let got = self.line()?;
        let is_good = field(&got, "cmd") == Some(answer) && field(&got, "rc").is_none_or(|code| code == "0");
        if is_good { Ok(got) } else { Err(format!("the engine answers `{line}` with `{got}`")) }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let silent = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::WouldBlock => "the engine does not answer within start_seconds_max".to_owned(),
            _ => format!("the engine does not answer: {error}"),
        };
        let count = (&mut self.0).take(LINE_BYTES_MAX).read_line(&mut line).map_err(silent)?;
        if count == 0 {
            return Err("the engine closed its end; a process of the job may have ended".to_owned());
        }
        Ok(line.trim_end().to_owned())
    }
}

/// The value of `name=` in a line of such fields.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers the lines of a dialogue.
    fn engine(answers: &'static [(&'static str, &'static str)]) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().expect("sockets can be made");
        std::thread::spawn(move || {
            let mut theirs = BufReader::new(theirs);
            for (question, answer) in answers {
                let mut line = String::new();
                theirs.read_line(&mut line).expect("the node asks");
                assert_eq!(line.trim_end(), *question);
                theirs.get_mut().write_all(answer.as_bytes()).expect("the node is there");
            }
        });
        ours
    }

    #[test]
    fn every_node_gets_the_text_of_every_node() {
        let engine = engine(&[
            ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"),
            ("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n"),
            ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_1_0\n"),
            ("cmd=put kvsname=kvs_1_0 key=trellis-1 value=b=1;c", "cmd=put_result rc=0 msg=success\n"),
            ("cmd=barrier_in", "cmd=barrier_out\n"),
            ("cmd=get kvsname=kvs_1_0 key=trellis-0", "cmd=get_result rc=0 msg=success value=a=0;c\n"),
            ("cmd=get kvsname=kvs_1_0 key=trellis-1", "cmd=get_result rc=0 msg=success value=b=1;c\n"),
            ("cmd=finalize", "cmd=finalize_ack\n"),
        ]);
        let exchanged = Server(BufReader::new(engine)).exchange(1, 2, "b=1;c");
        assert_eq!(exchanged, Ok(Exchanged { node: 1, texts: vec!["a=0;c".to_owned(), "b=1;c".to_owned()] }));
    }

    #[test]
    fn a_process_that_connects_learns_its_number() {
        let engine =
            engine(&[("cmd=initack pmiid=3", "cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=3\ncmd=set debug=0\n")]);
        assert_eq!(Server(BufReader::new(engine)).acknowledge("3"), Ok((3, 4)));
    }

    #[test]
    fn what_the_engine_refuses_is_said() {
        let refusing = engine(&[("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init rc=-1\n")]);
        let why = Server(BufReader::new(refusing)).exchange(0, 1, "").unwrap_err();
        assert_eq!(
            why,
            "the engine answers `cmd=init pmi_version=1 pmi_subversion=1` with `cmd=response_to_init rc=-1`"
        );
        let (gone, _) = UnixStream::pair().expect("sockets can be made");
        assert!(Server(BufReader::new(gone)).exchange(0, 1, "").unwrap_err().starts_with("the engine"));
    }
}
