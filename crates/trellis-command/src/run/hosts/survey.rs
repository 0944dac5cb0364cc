//! `trellis doctor --hosts`: what each host has, and how fast the way from each to each is.
//!
//! Pairs are measured one after the other, so that they do not disturb each other. A host that cannot take part is left
//! out and named; the others are measured.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use trellis::config::Ports;
use trellis::memory::{available_bytes, choose, probe};
use trellis_base::statistics::quantile;

use super::connection::Carrier;
use super::dialogue::{Facts, Order, Pair};
use super::list::MapBy;
use super::{Common, Fleet, Hosts, HostsArguments, REACH, START, network, usage};
use crate::exit::Failure;
use crate::run::binding::BindTo;
use crate::run::descendants;
use crate::run::guard::Guard;
use crate::run::signals::Signals;

/// Round trips whose median counts.
const ROUND_TRIPS: usize = 200;
/// Fewer of them have to do where they take long.
const ROUND_TRIPS_SPAN: Duration = Duration::from_secs(1);
/// How long bytes are sent.
const STREAM: Duration = Duration::from_millis(300);
const PIECE_BYTES: usize = 64 << 10;
/// Both sides of a measurement give up after this time without a byte.
const SILENCE: Duration = REACH.time();
/// What the measuring side sends before a round trip, and before a piece of a stream.
const ONE: u8 = 1;
const PIECE: u8 = 2;

/// What is said when a stream stops after small packets came through.
const LARGE_PACKETS: &str = "small packets arrive and large ones do not; give all interfaces on the way the same MTU, or \
                             let ICMP through, which says how large packets may be";

/// A host that was surveyed.
#[derive(Debug)]
pub struct SurveyedHost {
    /// Its name.
    pub name: String,
    /// Where its nodes would listen.
    pub address: String,
    /// The processors that its nodes may use.
    pub cores: usize,
    /// The memory that is available.
    pub memory_bytes: u64,
    /// The release of its kernel.
    pub kernel: String,
    /// The catcher of its nodes, or why there is none.
    pub catcher: Result<String, String>,
    /// The way to each host of the survey, in their order; `None` to itself.
    pub ways: Vec<Option<Result<Pair, String>>>,
}

/// What `trellis doctor --hosts` found.
#[derive(Debug)]
pub struct Survey {
    /// The hosts that answered.
    pub hosts: Vec<SurveyedHost>,
    /// A sentence about each of the others.
    pub failures: Vec<String>,
}

/// Surveys the hosts, if some are named.
pub fn survey(arguments: &HostsArguments) -> Result<Option<Survey>, Failure> {
    let Some(listed) = arguments.listed()? else {
        return arguments.needs_hosts().map(|()| None);
    };
    let mut placed = super::list::placed(listed, None, Some(1), MapBy::Slot).map_err(usage)?;
    super::list::advertise(&mut placed, &arguments.advertise).map_err(usage)?;
    let (carrier, network) = (Carrier::Ssh(arguments.ssh.clone()), arguments.network.clone());
    let hosts = Hosts { placed, carrier, network, copies: false, is_tree: false, took_stdin: false };
    let signals = Signals::block()?;
    descendants::adopt_orphans();
    let guard = Guard::start()?;
    let mut fleet = Fleet { silence: START.time(), ..Fleet::default() };
    let surveyed = fleet.survey(&hosts, &signals, &guard);
    fleet.abandon();
    surveyed.map(Some)
}

impl Fleet {
    fn survey(&mut self, hosts: &Hosts, signals: &Signals, guard: &Guard) -> Result<Survey, Failure> {
        let common = Common {
            // Every host has it, and nothing of it is started.
            program: "sh".into(),
            search_path: None,
            directory: None,
            has_datagrams: false,
            ports: Ports::default(),
            bind_to: BindTo::None,
            silence: START.time(),
        };
        let mut failures = Vec::new();
        self.open(hosts, guard)?;
        let arrived = self.until(signals, START.time(), "say hello", |connection| connection.hello.is_some());
        self.leave_out(arrived, &mut failures)?;
        let prepared = self.prepare(hosts, &common, signals);
        self.leave_out(prepared, &mut failures)?;
        self.order_all(&Order::Survey);
        let surveyed = self.until(signals, START.time(), "say what it has", |connection| connection.facts.is_some());
        self.leave_out(surveyed, &mut failures)?;
        let addresses = self.addresses();
        let mut surveyed = Vec::new();
        for from in 0..self.connections.len() {
            let mut ways = Vec::new();
            for (to, address) in addresses.iter().enumerate() {
                ways.push(if from == to { None } else { Some(self.measure(from, address, signals)?) });
            }
            let connection = &mut self.connections[from];
            let Some(facts) = connection.facts.take() else { continue };
            let Facts { cores, memory_bytes, kernel, catcher } = facts;
            let (name, address) = (connection.host.name().to_owned(), addresses[from].clone());
            surveyed.push(SurveyedHost { name, address, cores, memory_bytes, kernel, catcher, ways });
        }
        Ok(Survey { hosts: surveyed, failures })
    }

    /// Goes on without the hosts that failed.
    fn leave_out(&mut self, step: Result<(), Failure>, failures: &mut Vec<String>) -> Result<(), Failure> {
        let Err(failure) = step else { return Ok(()) };
        let before = failures.len();
        for connection in self.connections.extract_if(.., |connection| connection.failure.is_some()) {
            failures.extend(connection.failure.as_ref().map(|failure| failure.sentence.clone()));
        }
        for (place, connection) in self.connections.iter_mut().enumerate() {
            connection.nodes = vec![place];
        }
        // It was not about a host, such as a signal.
        if failures.len() == before { Err(failure) } else { Ok(()) }
    }

    fn measure(&mut self, from: usize, address: &str, signals: &Signals) -> Result<Result<Pair, String>, Failure> {
        self.order(from, &Order::Measure(address.to_owned()), b"");
        let place = self.connections[from].nodes[0];
        let is_done = |connection: &super::Connection| connection.nodes[0] != place || connection.measured.is_some();
        let measured = self.until(signals, START.time(), "measure", is_done);
        let connection = &mut self.connections[from];
        match (connection.measured.take(), measured) {
            (Some(measured), _) => Ok(measured),
            // The others can still be measured, unless this is about a signal.
            (None, Err(failure)) if self.connections.iter().any(|connection| connection.failure.is_some()) => {
                Ok(Err(failure.sentence))
            }
            (None, Err(failure)) => Err(failure),
            (None, Ok(())) => Ok(Err("it measured nothing".to_owned())),
        }
    }
}

/// What this host has.
pub(super) fn facts() -> Facts {
    Facts {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: available_bytes(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        catcher: choose(None, &probe()).map(|(catcher, _)| catcher.to_string()),
    }
}

/// Answers those who measure, one after the other, as long as this process lives.
pub(super) fn answer(socket: OwnedFd) {
    let listener = TcpListener::from(socket);
    for stream in listener.incoming().flatten() {
        // A measurement that breaks off is noticed by the other side.
        let _ = answer_one(stream);
    }
}

fn answer_one(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let mut word = [0];
    let mut piece = vec![0; PIECE_BYTES];
    while stream.read(&mut word)? == 1 {
        if word[0] == PIECE {
            stream.read_exact(&mut piece)?;
        } else {
            stream.write_all(&word)?;
        }
    }
    Ok(())
}

/// Measures the way to an agent that answers.
pub(super) fn measure(address: &str) -> Result<Pair, String> {
    measured(address).map_err(|error| error.to_string())
}

fn measured(address: &str) -> std::io::Result<Pair> {
    let mut stream = TcpStream::connect_timeout(&network::resolved(address)?, REACH.time())?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < ROUND_TRIPS && begin.elapsed() < ROUND_TRIPS_SPAN {
        times.push(round_trip(&mut stream)?.as_secs_f64() * 1e6);
    }
    let bytes_per_second = streamed(&mut stream).map_err(|error| match error.kind() {
        // Packets of one byte came through before.
        ErrorKind::WouldBlock | ErrorKind::TimedOut => std::io::Error::other(LARGE_PACKETS),
        _ => error,
    })?;
    Ok(Pair { round_trip_us: quantile(&mut times, 0.5), bytes_per_second })
}

/// How many bytes a second one stream carries.
fn streamed(stream: &mut TcpStream) -> std::io::Result<f64> {
    let mut piece = vec![0; 1 + PIECE_BYTES];
    piece[0] = PIECE;
    let begin = Instant::now();
    let mut bytes = 0;
    while begin.elapsed() < STREAM {
        stream.write_all(&piece)?;
        bytes += piece.len();
    }
    // Its answer follows everything that was sent before.
    round_trip(stream)?;
    Ok(bytes as f64 / begin.elapsed().as_secs_f64())
}

fn round_trip(stream: &mut TcpStream) -> std::io::Result<Duration> {
    let begin = Instant::now();
    stream.write_all(&[ONE])?;
    stream.read_exact(&mut [0])?;
    Ok(begin.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_measured_and_a_closed_one_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        std::thread::spawn(|| answer(listener.into()));
        let pair = measure(&address).expect("it answers");
        assert!(pair.round_trip_us > 0.0 && pair.bytes_per_second > 0.0, "{pair:?}");
        let closed = trellis_testing::Port::new();
        assert!(measure(&closed.address().to_string()).expect_err("nobody listens").contains("refused"));
    }

    #[test]
    fn large_packets_that_do_not_arrive_are_named() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let network = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody measures");
            let mut word = [0];
            while stream.read_exact(&mut word).is_ok() && word[0] == ONE {
                stream.write_all(&word).expect("it listens");
            }
            stream
        });
        assert_eq!(measure(&address), Err(LARGE_PACKETS.to_owned()));
        network.join().expect("it saw a large one");
    }

    #[test]
    fn a_host_has_processors_memory_and_a_kernel() {
        let facts = facts();
        assert!(facts.cores > 0 && facts.memory_bytes > 0 && !facts.kernel.is_empty(), "{facts:?}");
    }
}
