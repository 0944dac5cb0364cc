//! The stores that are compared: chosen by name or by address, started if they need a server, and stopped.
//!
//! Promises: a server that was started here listens on loopback only, keeps its files in a folder of its own, and
//! ends with its value. For one that cannot be started, the error says what is missing and where to get it. It must
//! never touch a server that it did not start, except to use it through a given address.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use trellis_store::Key;

use super::ycsb::missing;
use trellis_command::exit::{self, Failure};
use trellis_command::installed;
use trellis_command::scratch::Scratch;

/// How long it may take until a server answers.
const START_MAX: Duration = Duration::from_secs(30);

/// The file in the server's folder for its output.
const LOG: &str = "log";

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Embedded,
    Redis,
    EmbeddedDurable,
    Etcd,
    Bigtable,
    Spanner,
    Datastore,
}

impl Kind {
    pub(super) const ALL: [Kind; 7] = [
        Kind::Embedded,
        Kind::Redis,
        Kind::EmbeddedDurable,
        Kind::Etcd,
        Kind::Bigtable,
        Kind::Spanner,
        Kind::Datastore,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Embedded => "embedded",
            Kind::Redis => "redis",
            Kind::EmbeddedDurable => "embedded-durable",
            Kind::Etcd => "etcd",
            Kind::Bigtable => "bigtable",
            Kind::Spanner => "spanner",
            Kind::Datastore => "datastore",
        }
    }

    /// The environment variable with the address of a local emulator, for stores of Google's, and the store's
    /// address.
    fn emulator(self) -> Option<[&'static str; 2]> {
        match self {
            Kind::Bigtable => Some(["BIGTABLE_EMULATOR_HOST", "bigtable://trellis/reproduce/kv"]),
            Kind::Spanner => Some(["SPANNER_EMULATOR_HOST", "spanner://trellis/reproduce/kv"]),
            Kind::Datastore => Some(["DATASTORE_EMULATOR_HOST", "datastore://trellis"]),
            _ => None,
        }
    }

    /// How to get a local server of it.
    fn how_to_start(self) -> &'static str {
        match self {
            Kind::Bigtable => {
                "start one (`go install cloud.google.com/go/bigtable/cmd/emulator@latest` brings `emulator`)"
            }
            _ => "start one (the documentation's page about the store says how)",
        }
    }

    /// The operations of a run that is long enough to make YCSB's own start negligible.
    pub(super) fn warm_operations(self) -> usize {
        match self {
            Kind::Embedded | Kind::Redis => 200_000,
            Kind::Etcd | Kind::Bigtable => 20_000,
            Kind::EmbeddedDurable | Kind::Spanner | Kind::Datastore => 10_000,
        }
    }
}

/// A store on the command line: a name, or an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) kind: Kind,
    pub(super) address: Option<String>,
}

impl From<Kind> for Chosen {
    fn from(kind: Kind) -> Chosen {
        Chosen { kind, address: None }
    }
}

impl FromStr for Chosen {
    type Err = String;

    fn from_str(text: &str) -> Result<Chosen, String> {
        let named = |name: &str| Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let scheme = text.split_once(':').map(|(scheme, _)| scheme.trim_end_matches("+unix"));
        match (named(text), scheme.and_then(named)) {
            (Some(kind), _) => Ok(kind.into()),
            (None, Some(kind)) => Ok(Chosen { kind, address: Some(text.to_owned()) }),
            (None, None) => {
                let names = Kind::ALL.map(Kind::name).join(", ");
                Err(format!("is not a store; accepted: {names}, or the address of one, such as redis://127.0.0.1:6379"))
            }
        }
    }
}

/// A process that is killed when this value is dropped.
#[derive(Debug)]
pub(super) struct Process(pub(super) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; it is waited for in either case.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The folder of a process, with a file for its output.
#[derive(Debug)]
pub(super) struct Folder(Scratch);

impl Folder {
    pub(super) fn new() -> Result<Folder, Failure> {
        Scratch::new("kv").map(Folder)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Opens a file for the output of a process; a full pipe that nobody reads would block it.
    pub(super) fn log(&self) -> Result<File, Failure> {
        let file = self.0.file(LOG);
        let opened = File::options().create(true).append(true).open(&file);
        opened.map_err(|error| Failure::new(exit::FILE, format!("cannot write {}: {error}", file.display())))
    }

    /// The content of that file.
    pub(super) fn said(&self) -> String {
        // A process without output may not even have a file.
        std::fs::read_to_string(self.0.file(LOG)).unwrap_or_default()
    }
}

/// A store that can be opened.
#[derive(Debug)]
pub(super) struct StoreServer {
    pub(super) kind: Kind,
    /// Its address as a store.
    pub(super) url: String,
    /// Its own address for the Redis protocol, if it has one.
    redis: Option<SocketAddr>,
    // The order matters: the process ends before its files are removed.
    _process: Option<Process>,
    _folder: Option<Folder>,
}

impl StoreServer {
    /// The chosen store; it is started if it has no address.
    pub(super) fn start(chosen: &Chosen) -> Result<StoreServer, Failure> {
        let kind = chosen.kind;
        let at = |url: String| StoreServer { kind, url, redis: None, _process: None, _folder: None };
        if let Some(address) = &chosen.address {
            is_there(address)?;
            return Ok(StoreServer { redis: plain_redis(address), ..at(address.clone()) });
        }
        match kind {
            Kind::Embedded => Ok(at("embedded:".to_owned())),
            Kind::EmbeddedDurable => {
                let folder = Folder::new()?;
                let url = format!("embedded-durable:{}", folder.path().join("store").display());
                Ok(StoreServer { _folder: Some(folder), ..at(url) })
            }
            Kind::Redis => redis(),
            Kind::Etcd => etcd(),
            Kind::Bigtable | Kind::Spanner | Kind::Datastore => {
                let [variable, url] = kind.emulator().unwrap_or_default();
                match std::env::var_os(variable) {
                    Some(_) => Ok(at(url.to_owned())),
                    None => Err(Failure::new(
                        exit::NOT_FOUND,
                        format!(
                            "no server is named; {}, and set {variable}, or give the store's address to --stores",
                            kind.how_to_start()
                        ),
                    )),
                }
            }
        }
    }
}

/// Checks that a named store answers; it is closed again, because a file is for one process at a time.
fn is_there(address: &str) -> Result<(), Failure> {
    let key = Key::named(0, b"trellis-reproduce");
    let answered = trellis_store::open(address).and_then(|store| store.get_many(&[key]).map(drop));
    answered.map_err(|error| Failure::new(exit::CLUSTER, error.to_string()))
}

/// A server for the Redis protocol: a store's own, or our front end for it.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) address: SocketAddr,
    // The order matters: the process ends before its files are removed.
    _process: Option<Process>,
    _folder: Option<Folder>,
}

impl Front {
    pub(super) fn of(server: &StoreServer) -> Result<Front, Failure> {
        if let Some(address) = server.redis {
            return Ok(Front { address, _process: None, _folder: None });
        }
        let folder = Folder::new()?;
        let child = Command::new(installed::command()?)
            .args(["store", "serve", "--resp", "127.0.0.1:0", "--store", &server.url])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(folder.log()?)
            .spawn()
            .map_err(|error| Failure::new(exit::SYSTEM, format!("cannot start the front end: {error}")))?;
        let mut process = Process(child);
        let mut said = String::new();
        if let Some(stdout) = process.0.stdout.take() {
            // A front end that ends instead closes its end of the pipe.
            let _ = BufReader::new(stdout).read_line(&mut said);
        }
        let address = said.trim().strip_prefix("listening on ").and_then(|address| address.parse().ok());
        match address {
            Some(address) => Ok(Front { address, _process: Some(process), _folder: Some(folder) }),
            None => Err(not_started(process, &folder, &format!("the front end of {}", server.url))),
        }
    }
}

/// The error of a process that did not start, from its output.
fn not_started(process: Process, folder: &Folder, who: &str) -> Failure {
    drop(process);
    let said = folder.said();
    let line = said.trim().lines().last().unwrap_or("it said nothing").to_owned();
    let line = line.strip_prefix("trellis: ").unwrap_or(&line);
    Failure::new(exit::CLUSTER, format!("{who} did not start: {line}"))
}

/// The server behind an address without a password or a database, which accepts any Redis client.
fn plain_redis(address: &str) -> Option<SocketAddr> {
    use std::net::ToSocketAddrs;
    let authority = address.strip_prefix("redis://")?;
    if authority.contains(['@', '/']) {
        return None;
    }
    let with_port = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:6379") };
    with_port.to_socket_addrs().ok()?.next()
}

fn redis() -> Result<StoreServer, Failure> {
    let folder = Folder::new()?;
    let (process, address) = started("redis-server", "redis-server", &folder, answers_a_ping, |command, address| {
        // In memory only, like a cache.
        command.args([
            "--port",
            &address.port().to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.arg("--dir").arg(folder.path());
    })?;
    Ok(StoreServer {
        kind: Kind::Redis,
        url: format!("redis://{address}"),
        redis: Some(address),
        _process: Some(process),
        _folder: Some(folder),
    })
}

fn etcd() -> Result<StoreServer, Failure> {
    let folder = Folder::new()?;
    let peers = format!("http://{}", free_address()?);
    let (process, address) = started("etcd", "etcd-server", &folder, is_healthy, |command, address| {
        let clients = format!("http://{address}");
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"]);
        command.arg("--data-dir").arg(folder.path().join("data"));
    })?;
    Ok(StoreServer {
        kind: Kind::Etcd,
        url: format!("etcd://{address}"),
        redis: None,
        _process: Some(process),
        _folder: Some(folder),
    })
}

/// An address of this machine on which nobody listens.
fn free_address() -> Result<SocketAddr, Failure> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|error| Failure::new(exit::SYSTEM, format!("cannot listen on loopback: {error}")))
}

/// Starts a server, and returns when it answers.
fn started(
    program: &str,
    package: &str,
    folder: &Folder,
    answers: fn(SocketAddr) -> std::io::Result<bool>,
    arguments: impl FnOnce(&mut Command, SocketAddr),
) -> Result<(Process, SocketAddr), Failure> {
    let address = free_address()?;
    let mut command = Command::new(program);
    arguments(&mut command, address);
    command.stdin(Stdio::null()).stdout(folder.log()?).stderr(folder.log()?);
    let mut process = Process(command.spawn().map_err(|error| missing(program, package, &error))?);
    let deadline = Instant::now() + START_MAX;
    loop {
        if answers(address).is_ok_and(|answers| answers) {
            return Ok((process, address));
        }
        let ended = process.0.try_wait().ok().flatten().is_some();
        if ended || Instant::now() > deadline {
            return Err(not_started(process, folder, &format!("{program} at {address}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn answers_a_ping(address: SocketAddr) -> std::io::Result<bool> {
    Ok(asked(address, "PING\r\n")?.starts_with("+PONG"))
}

fn is_healthy(address: SocketAddr) -> std::io::Result<bool> {
    let answer = asked(address, "GET /health HTTP/1.0\r\n\r\n")?;
    Ok(answer.contains(r#""health":"true""#))
}

/// The part of a server's answer that comes at once.
fn asked(address: SocketAddr, question: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, START_MAX)?;
    stream.set_read_timeout(Some(START_MAX))?;
    stream.write_all(question.as_bytes())?;
    let mut answer = vec![0; 4096];
    let mut length = 0;
    while !answer[..length].ends_with(b"\n") && !answer[..length].ends_with(b"}") {
        match stream.read(&mut answer[length..])? {
            0 => break,
            more => length += more,
        }
    }
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_chosen_by_name_or_by_address() {
        let chosen = |text: &str| text.parse::<Chosen>();
        assert_eq!(chosen("embedded-durable"), Ok(Kind::EmbeddedDurable.into()));
        let address = |text: &str| Some(text.to_owned());
        let durable = Chosen { kind: Kind::EmbeddedDurable, address: address("embedded-durable:/var/tmp/s") };
        assert_eq!(chosen("embedded-durable:/var/tmp/s"), Ok(durable));
        let socket = Chosen { kind: Kind::Redis, address: address("redis+unix:/tmp/s") };
        assert_eq!(chosen("redis+unix:/tmp/s"), Ok(socket));
        for wrong in ["", "memcached", "mongodb://host:1"] {
            assert!(chosen(wrong).expect_err(wrong).contains("accepted: embedded, redis"), "{wrong}");
        }
    }

    #[test]
    fn only_a_plain_address_of_redis_is_asked_directly() {
        assert_eq!(plain_redis("redis://127.0.0.1:7000"), Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7000))));
        assert_eq!(plain_redis("redis://127.0.0.1"), Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 6379))));
        for other in ["redis://user:word@127.0.0.1:1", "redis://127.0.0.1:1/2", "redis+unix:/s", "etcd://127.0.0.1:1"] {
            assert_eq!(plain_redis(other), None, "{other}");
        }
    }

    #[test]
    fn a_store_that_was_named_must_answer() {
        let nobody = trellis_testing::Port::new();
        let chosen: Chosen = format!("redis://{}", nobody.address()).parse().expect("an address");
        let failure = StoreServer::start(&chosen).map(|_| ()).expect_err("nobody listens there");
        assert!(failure.code == exit::CLUSTER && failure.sentence.contains(&nobody.address().to_string()), "{failure}");
        let parent = Folder::new().expect("a folder");
        let file = format!("embedded-durable:{}", parent.path().join("store").display());
        let server = StoreServer::start(&file.parse().expect("an address")).expect("a file is made");
        assert!(trellis_store::open(&server.url).is_ok(), "it is open for who measures it");
    }

    #[test]
    fn a_server_that_is_not_installed_is_named_with_its_package() {
        let folder = Folder::new().expect("a folder");
        let refused = started("trellis-no-such-server", "some-package", &folder, |_| Ok(true), |_, _| ());
        let sentence = refused.map(|_| ()).expect_err("there is none").sentence;
        assert_eq!(sentence, "trellis-no-such-server is not installed; `apt-get install some-package` brings it");
    }

    #[test]
    fn a_server_that_ends_at_once_says_why() {
        let folder = Folder::new().expect("a folder");
        let refused = started(
            "sh",
            "dash",
            &folder,
            |_| Ok(false),
            |command, _| {
                command.args(["-c", "echo first; echo trellis: the port is taken >&2; exit 3"]);
            },
        );
        let sentence = refused.map(|_| ()).expect_err("it ended").sentence;
        assert!(sentence.ends_with("did not start: the port is taken"), "{sentence}");
    }
}
