//! A place where the nodes of a job meet: a port of one host, at which one of them answers the others.
//!
//! A node that has number 0 answers; where nobody has a number yet, the first node of that host that gets the port.
//! The others ask it, as a process asks that joins a running cluster: each question and answer is encrypted with the
//! secret that they have in common. Nodes without a number get one in the order in which they come, those of one host
//! one after the other.
//!
//! Promises: whoever does not know the secret learns nothing and changes nothing. All nodes hear the same list, and the
//! node that answers goes on only when all have heard it. A process of another job, or one too many, is refused with a
//! sentence.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_transport::links::tcp::question::{self, AskError};
use trellis_transport::links::tcp::{Tcp, TcpOptions};
use trellis_transport::{HELLO_BYTES_MAX, Security, interfaces};

use super::{Exchanged, advertisement::Advertisement, slurm};
use crate::config::{Config, NODES_MAX, Peers, Rendezvous};
use crate::secret::Secret;

/// How long one question may take, beside what is left of `start_seconds_max`.
pub(crate) const ANSWER: Deadline = Deadline {
    who: "a node at a rendezvous",
    waits_for: "an answer of the node that answers there",
    limit: Limit::seconds(5),
    then: "it asks again, until `start_seconds_max` is over, or five times if something listens there and does not answer",
    tested: "crates/trellis-cluster/src/engines/rendezvous.rs nobody_comes_alone",
};

/// The pauses between questions whether all are there. They are short at first, because nodes mostly start at once.
const ASK_AGAIN: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(10), Duration::from_millis(20), Duration::from_millis(50)];
/// After more questions without an answer than this, the listener is no node of this job, or has another secret.
const SILENCES_MAX: usize = 5;
/// The answer to whoever must ask again.
const WAIT: &[u8] = b"wait";

/// Where and who the nodes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    address: String,
    nodes: usize,
    job: String,
    /// This node's number, if somebody said it.
    node: Option<usize>,
}

impl Place {
    pub(super) fn of(config: &Config) -> Result<Place, String> {
        if let Peers::Rendezvous(place) = &config.peers {
            let node = config.places.contains_key("node").then_some(config.node);
            let Rendezvous { address, nodes, job } = place.clone();
            return Place { address, nodes, job, node }.checked();
        }
        Place::of_slurm(|name| std::env::var(name).ok())
    }

    /// The first host of a step, which has task 0, and a port that the step's numbers give.
    fn of_slurm(variable: impl Fn(&str) -> Option<String>) -> Result<Place, String> {
        let get = |name: &str| variable(name).ok_or_else(|| format!("{name} is not set; set the key rendezvous"));
        let number = |name: &str| {
            let value = get(name)?;
            value.parse::<usize>().map_err(|_| format!("{name}={value} is not a number"))
        };
        let (job, step) = (get("SLURM_JOB_ID")?, get("SLURM_STEP_ID")?);
        let hosts = slurm::hosts(&get("SLURM_STEP_NODELIST")?)?;
        let first = hosts.first().ok_or("SLURM_STEP_NODELIST is empty; set the key rendezvous")?;
        let address = format!("{first}:{}", slurm::port(&job, &step));
        let (nodes, node) = (number("SLURM_STEP_NUM_TASKS")?, Some(number("SLURM_PROCID")?));
        Place { address, nodes, job: format!("slurm-{job}.{step}"), node }.checked()
    }

    fn checked(self) -> Result<Place, String> {
        if self.nodes > NODES_MAX {
            return Err(format!("{} nodes are too many; at most {NODES_MAX} can share a region", self.nodes));
        }
        match self.node {
            Some(node) if node >= self.nodes => Err(format!("there is no node {node} among {} nodes", self.nodes)),
            _ => Ok(self),
        }
    }

    /// The socket with which this node answers, if it is the one that does.
    fn listen(&self) -> Result<Option<TcpListener>, String> {
        if self.node.is_some_and(|node| node != 0) {
            return Ok(None);
        }
        let cannot = |error| format!("this node cannot answer there ({error}); choose another host and port");
        let Some(resolved) = self.resolve() else {
            // Of a name that is not known yet, only the node with number 0 knows that it is its own.
            let port = self.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
            return if self.node == Some(0) { bind_everywhere(port).map(Some).map_err(cannot) } else { Ok(None) };
        };
        match resolved.iter().find(|address| is_here(address)) {
            None if self.node.is_none() => Ok(None),
            // A name of this host may stand for its loopback interface here alone, as with Debian's 127.0.1.1.
            found => {
                let is_number = self.address.parse::<SocketAddr>().is_ok();
                let bound = match found {
                    Some(address) if is_number => TcpListener::bind(address),
                    _ => bind_everywhere(resolved[0].port()),
                };
                match bound {
                    Ok(listener) => Ok(Some(listener)),
                    // Another node of this host was faster.
                    Err(error) if self.node.is_none() && error.kind() == std::io::ErrorKind::AddrInUse => Ok(None),
                    Err(error) => Err(cannot(error)),
                }
            }
        }
    }

    /// Whether the address may be one of this host.
    fn may_be_here(&self) -> bool {
        self.resolve().is_none_or(|resolved| resolved.iter().any(is_here))
    }

    fn resolve(&self) -> Option<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = self.address.to_socket_addrs().ok()?.collect();
        (!found.is_empty()).then_some(found)
    }
}

fn is_here(address: &SocketAddr) -> bool {
    address.ip().is_loopback()
        || interfaces().is_ok_and(|all| all.iter().any(|interface| interface.address == address.ip()))
}

fn bind_everywhere(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind((super::everywhere(), port))
}

/// Gives this node's text to all others and gets theirs.
pub(super) fn exchange(place: &Place, secret: &Secret, text: &str, until: Instant) -> Result<Exchanged, String> {
    let token = random_digits()?;
    match place.listen()? {
        Some(listener) => answer_others(place, listener, secret, &token, text, until),
        None => ask(place, secret, &token, text, until),
    }
}

/// 16 random hexadecimal digits.
fn random_digits() -> Result<String, String> {
    let number = trellis_transport::random::<8>().map_err(|error| format!("no random number can be drawn: {error}"))?;
    Ok(format!("{:016x}", u64::from_ne_bytes(number)))
}

/// The nodes that have come.
#[derive(Debug, Default)]
struct Roll {
    /// A random number of this rendezvous, which each question that changes something repeats: a recorded question is
    /// refused.
    rendezvous: String,
    nodes: usize,
    job: String,
    arrivals: Vec<Arrival>,
    /// The texts of all nodes by number, once all have come.
    texts: Vec<String>,
    /// The nodes that have heard the whole list.
    informed: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Arrival {
    token: String,
    node: Option<usize>,
    text: String,
}

impl Roll {
    /// Answers `begin`, `arrive RENDEZVOUS JOB TOKEN NUMBER TEXT` and `list RENDEZVOUS TOKEN OFFSET`; the number is `-`
    /// where nobody said one.
    fn answer(&mut self, question: &str) -> Result<Vec<u8>, String> {
        let unknown = || "this version does not understand the question; use one version on every node".to_owned();
        let words: Vec<&str> = question.split(' ').collect();
        match words[..] {
            ["begin"] => Ok(self.rendezvous.clone().into_bytes()),
            ["arrive" | "list", rendezvous, ..] if rendezvous != self.rendezvous => {
                Err("it belongs to an earlier rendezvous at this address; start all nodes of the job again".to_owned())
            }
            ["arrive", _, job, token, number, text] => {
                if job != self.job {
                    return Err(format!("the job {} meets here, and this node is of the job {job}", self.job));
                }
                let node = number.parse().ok();
                self.arrive(Arrival { token: token.to_owned(), node, text: text.to_owned() })?;
                Ok(self.number_of(token).map_or(WAIT.to_vec(), |number| number.to_string().into_bytes()))
            }
            ["list", _, token, offset] if self.is_complete() => {
                let list = self.texts.join("\n").into_bytes();
                let from = offset.parse().unwrap_or(0usize).min(list.len());
                let piece = list[from..].iter().copied().take(HELLO_BYTES_MAX).collect::<Vec<u8>>();
                if piece.len() < HELLO_BYTES_MAX && self.number_of(token).is_some() {
                    self.informed.insert(token.to_owned());
                }
                Ok(piece)
            }
            _ => Err(unknown()),
        }
    }

    fn arrive(&mut self, arrival: Arrival) -> Result<(), String> {
        if self.arrivals.iter().any(|known| known.token == arrival.token) {
            return Ok(());
        }
        if self.arrivals.len() == self.nodes {
            return Err(format!("all {} nodes of the job have come, and this is one more", self.nodes));
        }
        if let Some(node) = arrival.node {
            if node >= self.nodes {
                return Err(format!("there is no node {node} among {} nodes", self.nodes));
            }
            if self.arrivals.iter().any(|known| known.node == Some(node)) {
                return Err(format!("another process has come as node {node}; give each process its own number"));
            }
        }
        self.arrivals.push(arrival);
        if self.arrivals.len() == self.nodes {
            self.number();
        }
        Ok(())
    }

    /// Gives a number to all who have none.
    fn number(&mut self) {
        let host = |arrival: &Arrival| Advertisement::parse(&arrival.text).map(|(known, _)| known.host().to_owned());
        let hosts: Vec<Option<String>> = self.arrivals.iter().map(host).collect();
        let first_of_host = |at: usize| hosts.iter().position(|host| *host == hosts[at]);
        let mut without: Vec<usize> = (0..self.nodes).filter(|at| self.arrivals[*at].node.is_none()).collect();
        without.sort_by_key(|at| (first_of_host(*at), *at));
        let taken: BTreeSet<usize> = self.arrivals.iter().filter_map(|arrival| arrival.node).collect();
        let free = (0..self.nodes).filter(|node| !taken.contains(node));
        for (at, node) in without.into_iter().zip(free) {
            self.arrivals[at].node = Some(node);
        }
        let mut in_order = self.arrivals.clone();
        in_order.sort_by_key(|arrival| arrival.node);
        self.texts = in_order.into_iter().map(|arrival| arrival.text).collect();
    }

    fn is_complete(&self) -> bool {
        !self.texts.is_empty()
    }

    fn number_of(&self, token: &str) -> Option<usize> {
        let arrival = self.arrivals.iter().find(|arrival| arrival.token == token);
        arrival.filter(|_| self.is_complete())?.node
    }

    fn missing(&self) -> usize {
        self.nodes - self.arrivals.len()
    }
}

/// Progress of a wait, reported after a second and then every ten seconds.
struct Progress {
    next: Instant,
}

impl Progress {
    fn begin() -> Progress {
        Progress { next: Instant::now() + Duration::from_secs(1) }
    }

    fn say(&mut self, sentence: impl FnOnce() -> String) {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + Duration::from_secs(10);
            trellis_output::lines::report(format_args!("{}", sentence()));
        }
    }
}

/// The roll, and who waits for it to change.
type Shared = (Mutex<Roll>, Condvar);

fn locked(shared: &Shared) -> MutexGuard<'_, Roll> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer_others(
    place: &Place,
    listener: TcpListener,
    secret: &Secret,
    token: &str,
    text: &str,
    until: Instant,
) -> Result<Exchanged, String> {
    let shared = Arc::new((Mutex::new(Roll::default()), Condvar::new()));
    {
        let mut roll = locked(&shared);
        (roll.rendezvous, roll.nodes, roll.job) = (random_digits()?, place.nodes, place.job.clone());
        roll.arrive(Arrival { token: token.to_owned(), node: place.node, text: text.to_owned() })?;
        roll.informed.insert(token.to_owned());
    }
    let options = TcpOptions {
        node: 0,
        // No node is dialled.
        addresses: vec![place.address.clone(), String::new()],
        listener: Some(listener),
        secret: *secret.bytes(),
        security: Security::Sealed,
        hello: Vec::new(),
        admit: Box::new(|_, _| Err("this is a rendezvous, and no node".to_owned())),
        refused: Box::new(|sentence| trellis_output::lines::report(format_args!("{sentence}"))),
    };
    let answering = Arc::clone(&shared);
    let answer = Box::new(move |is_meant_for_this: bool, question: &[u8]| {
        if !is_meant_for_this {
            return Err("this is a rendezvous, and no node".to_owned());
        }
        let answer = locked(&answering).answer(&String::from_utf8_lossy(question));
        answering.1.notify_all();
        answer
    });
    let server = Tcp::start_and_answer(options, answer).map_err(|error| error.to_string())?;
    let mut progress = Progress::begin();
    let mut roll = locked(&shared);
    while roll.informed.len() < roll.nodes {
        let left = until.saturating_duration_since(Instant::now());
        let (missing, nodes) = (roll.missing(), roll.nodes);
        if left.is_zero() {
            return Err(match missing {
                0 => "a node came and did not ask for the list of all nodes; it may have ended".to_owned(),
                missing if place.may_be_here() => {
                    format!("{missing} of {nodes} nodes did not come within start_seconds_max")
                }
                missing => format!(
                    "{missing} of {nodes} nodes did not come within start_seconds_max; {} is no address of this host, \
                     where node 0 answers: let node 0 run there, or name this host",
                    place.address
                ),
            });
        }
        progress.say(|| format!("waiting for {missing} of {nodes} nodes at {}", place.address));
        let pause = left.min(Duration::from_secs(1));
        roll = shared.1.wait_timeout(roll, pause).unwrap_or_else(PoisonError::into_inner).0;
    }
    let exchanged =
        Exchanged { node: roll.number_of(token).expect("all nodes have a number"), texts: roll.texts.clone() };
    drop(roll);
    drop(server);
    Ok(exchanged)
}

fn ask(place: &Place, secret: &Secret, token: &str, text: &str, until: Instant) -> Result<Exchanged, String> {
    let number = place.node.map_or("-".to_owned(), |node| node.to_string());
    let asked = |question: &str| ask_until_answered(place, secret, question, until);
    let rendezvous = String::from_utf8_lossy(&asked("begin")?).into_owned();
    let arrival = format!("arrive {rendezvous} {} {token} {number} {text}", place.job);
    let mut questions = 0;
    let node = loop {
        let answer = asked(&arrival)?;
        if answer != WAIT {
            let number = String::from_utf8_lossy(&answer).parse();
            break number.map_err(|_| "it gave no number; use one version on every node".to_owned())?;
        }
        if Instant::now() >= until {
            return Err(format!("not all {} nodes came within start_seconds_max", place.nodes));
        }
        std::thread::sleep(ASK_AGAIN[questions.min(ASK_AGAIN.len() - 1)]);
        questions += 1;
    };
    let mut list = Vec::new();
    loop {
        let piece = asked(&format!("list {rendezvous} {token} {}", list.len()))?;
        list.extend_from_slice(&piece);
        if piece.len() < HELLO_BYTES_MAX {
            break;
        }
    }
    let texts: Vec<String> = String::from_utf8_lossy(&list).lines().map(str::to_owned).collect();
    if texts.len() != place.nodes || node >= place.nodes {
        let (heard, nodes) = (texts.len(), place.nodes);
        return Err(format!("it knows {heard} nodes, and this node expects {nodes}; give all the same number"));
    }
    Ok(Exchanged { node, texts })
}

/// The node that answers may not have started, and its name may not be known yet.
fn ask_until_answered(place: &Place, secret: &Secret, question: &str, until: Instant) -> Result<Vec<u8>, String> {
    let mut silences = 0;
    let mut progress = Progress::begin();
    loop {
        let left = until.saturating_duration_since(Instant::now()).clamp(ASK_AGAIN[0], ANSWER.time());
        let why = match question::ask(&place.address, Some(0), secret.bytes(), question.as_bytes(), left) {
            Ok(answered) => return Ok(answered.text),
            Err(AskError::Refused { why }) => return Err(why),
            Err(AskError::Silent { .. }) if silences < SILENCES_MAX => {
                silences += 1;
                "the process that listens there does not answer".to_owned()
            }
            Err(AskError::Silent { .. }) => {
                return Err(
                    "the process that listens there does not answer: it has another secret, or is no node of this job; \
                     give all nodes the same secret_file, or choose another port"
                        .to_owned(),
                );
            }
            Err(AskError::Unreachable { source, .. }) => source.to_string(),
            Err(error) => return Err(error.to_string()),
        };
        if Instant::now() >= until {
            return Err(format!("no answer within start_seconds_max ({why}); one of the nodes must be on that host"));
        }
        progress.say(|| format!("waiting for the node that answers at {} ({why})", place.address));
        std::thread::sleep(ASK_AGAIN[2]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roll(nodes: usize) -> Roll {
        Roll { rendezvous: "m".to_owned(), nodes, job: "job".to_owned(), ..Roll::default() }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn place(address: &str, nodes: usize, node: Option<usize>) -> Place {
        Place { address: address.to_owned(), nodes, job: "job".to_owned(), node }
    }

    /// A port that was free a moment ago.
    fn address() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.local_addr().expect("it is bound").to_string()
    }

    #[test]
    fn numbers_follow_arrival_and_hosts() {
        let mut roll = roll(4);
        assert_eq!(roll.answer("arrive m job t1 - 1;a;1;").unwrap(), WAIT);
        assert_eq!(roll.answer("arrive m job t2 - 1;b;2;").unwrap(), WAIT);
        assert_eq!(roll.answer("arrive m job t3 - 1;a;3;").unwrap(), WAIT);
        assert_eq!(roll.answer("arrive m job t1 - 1;a;1;").unwrap(), WAIT, "who asks again has not come twice");
        assert!(roll.answer("list m t1 0").is_err(), "nobody knows the list yet");
        assert_eq!(roll.answer("arrive m job t4 0 1;b;4;").unwrap(), b"0", "a number that was said is kept");
        let numbers = ["t1", "t2", "t3"].map(|token| roll.number_of(token).unwrap());
        assert_eq!(numbers, [1, 3, 2]);
        assert_eq!(roll.answer("list m t1 0").unwrap(), b"1;b;4;\n1;a;1;\n1;a;3;\n1;b;2;");
        assert!(roll.informed.contains("t1") && roll.informed.len() == 1);
    }

    #[test]
    fn who_does_not_belong_to_the_job_is_refused() {
        let mut roll = roll(2);
        let refused = |roll: &mut Roll, question| roll.answer(question).unwrap_err();
        assert!(refused(&mut roll, "arrive m other t1 - x").starts_with("the job job meets here"));
        assert!(refused(&mut roll, "arrive m job t1 2 x").starts_with("there is no node 2"));
        assert!(refused(&mut roll, "hello").starts_with("this version"));
        assert_eq!(roll.answer("begin").unwrap(), b"m");
        for recorded in ["arrive before job t1 1 x", "list before t1 0"] {
            assert!(refused(&mut roll, recorded).starts_with("it belongs to an earlier rendezvous"));
        }
        roll.answer("arrive m job t1 1 x").unwrap();
        assert!(refused(&mut roll, "arrive m job t2 1 x").starts_with("another process has come as node 1"));
        roll.answer("arrive m job t2 - x").unwrap();
        assert!(refused(&mut roll, "arrive m job t3 - x").starts_with("all 2 nodes"));
    }

    #[test]
    fn nodes_meet_at_a_port() {
        let address = address();
        let secret = Secret::random().expect("random");
        let met: Vec<Exchanged> = std::thread::scope(|scope| {
            let come = |number: usize| {
                let (secret, address) = (&secret, &address);
                scope.spawn(move || {
                    // Lists of this length take several questions.
                    let text = format!("1;host;{number};{}", "10.0.0.1/24,".repeat(8));
                    exchange(&place(address, 6, None), secret, &text, soon()).expect("all come")
                })
            };
            let threads: Vec<_> = (0..6).map(come).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let mut numbers: Vec<usize> = met.iter().map(|one| one.node).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
        assert!(met.iter().all(|one| one.texts == met[0].texts && one.texts.len() == 6));
    }

    #[test]
    fn nobody_comes_alone() {
        let secret = Secret::random().expect("random");
        let soon = || Instant::now() + Duration::from_millis(100);
        let alone = exchange(&place(&address(), 2, Some(0)), &secret, "x", soon()).unwrap_err();
        assert_eq!(alone, "1 of 2 nodes did not come within start_seconds_max");
        let nobody = exchange(&place(&address(), 2, Some(1)), &secret, "x", soon()).unwrap_err();
        assert!(nobody.starts_with("no answer within start_seconds_max"), "{nobody}");
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let there = silent.local_addr().expect("it is bound").to_string();
        let why = exchange(&place(&there, 2, Some(1)), &secret, "x", soon()).unwrap_err();
        assert!(why.contains("does not answer"), "{why}");
    }

    #[test]
    fn who_has_another_secret_is_not_let_in() {
        let address = address();
        let [ours, theirs] = [(); 2].map(|()| Secret::random().expect("random"));
        std::thread::scope(|scope| {
            let limit = Instant::now() + Duration::from_secs(2);
            let (address, ours) = (&address, &ours);
            let host = scope.spawn(move || exchange(&place(address, 2, Some(0)), ours, "x", limit));
            let why = exchange(&place(address, 2, Some(1)), &theirs, "x", soon()).unwrap_err();
            assert!(why.contains("it has another secret"), "{why}");
            assert!(host.join().expect("no panic").is_err());
        });
    }

    #[test]
    fn tasks_of_slurm_meet_at_the_first_host_of_their_step() {
        let variables = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "2"),
            ("SLURM_STEP_NODELIST", "h[08-09]"),
            ("SLURM_STEP_NUM_TASKS", "3"),
            ("SLURM_PROCID", "1"),
        ];
        let get = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let found = Place::of_slurm(get).unwrap();
        assert_eq!((found.nodes, found.node, &*found.job), (3, Some(1), "slurm-7.2"));
        assert_eq!(found.address, format!("h08:{}", slurm::port("7", "2")));
        assert!(Place::of_slurm(|_| None).unwrap_err().contains("is not set"));
    }
}
