//! The acceptor: one thread per link that dials, accepts, and performs handshakes.
//!
//! Promises: an unauthenticated peer gets no byte, holds one of [`HANDSHAKES_MAX`] places for a bounded time, and is
//! counted. A peer that knows the secret and is refused is told why, and so is this node's user. Once all peers are up
//! the thread sleeps.
//!
//! It must never carry frames, or touch a connection after handing it over.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::handshake::{Failure, Handshake, Progress};
use super::peers::Peers;
use super::question::OUTSIDER;
use super::sockets;
use super::{Answer, TcpOptions};
use crate::links::Lost;
use crate::links::addresses::Addresses;
use crate::links::admission::{self, Rules};
use crate::links::descriptors::Descriptor;
use crate::wrap::secure::{Answering, Carrier, Dialling, LINK_VERSION, NodeDescription, Remembered};

/// The maximum number of concurrent handshakes with ends that connected here.
const HANDSHAKES_MAX: usize = 64;
/// Connections accepted before the existing handshakes are served again.
const ACCEPTS_MAX: usize = 16;
/// The pause between two attempts to reach a peer that does not listen.
const DIAL_AGAIN_MS: u64 = 20;
/// The pause after a listener hung up without an answer, or a name did not resolve: both last.
const DIAL_AGAIN_SLOW_MS: u64 = 250;
/// The pause after the operating system had no descriptor left.
const ACCEPT_AGAIN_MS: u64 = 20;

/// See the module text.
pub(super) struct Acceptor {
    peers: Arc<Peers>,
    listener: Descriptor,
    accept_from: Instant,
    options: TcpOptions,
    /// Answers questions of processes that are not nodes yet.
    questions: Answer,
    dials: Vec<Dial>,
    handshakes: Vec<Handshake>,
    remembered: Remembered,
}

/// A peer that this node dials.
struct Dial {
    peer: usize,
    addresses: Addresses,
    /// None during an attempt.
    due: Option<Instant>,
}

/// Starts the thread, with every signal blocked: signals belong to the application's threads.
pub(super) fn spawn(acceptor: Acceptor) -> io::Result<JoinHandle<()>> {
    spawn_without_signals(acceptor.peers.roster.node, move || acceptor.run())
}

/// Starts the thread of an acceptor of any link.
pub(in crate::links) fn spawn_without_signals(
    node: usize,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let before = block_signals();
    let thread = std::thread::Builder::new().name(format!("trellis-accept-{node}")).spawn(run);
    restore_signals(&before);
    thread
}

impl Acceptor {
    pub(super) fn new(peers: Arc<Peers>, listener: Descriptor, options: TcpOptions, questions: Answer) -> Acceptor {
        let now = Instant::now();
        let is_known = |peer: &usize| !options.addresses[*peer].is_empty();
        let dial = |peer| Dial { peer, addresses: Addresses::default(), due: Some(now) };
        let dials = (0..peers.roster.node).filter(is_known).map(dial).collect();
        Acceptor {
            peers,
            listener,
            accept_from: now,
            options,
            questions,
            dials,
            handshakes: Vec::new(),
            remembered: Remembered::new(),
        }
    }

    fn run(mut self) {
        while !self.peers.roster.closed.load(Ordering::SeqCst) {
            self.dial_due(Instant::now());
            let ready = self.wait(Instant::now());
            if ready[0] {
                self.peers.roster.wake.drain();
            }
            let listener_at = 1 + self.handshakes.len();
            // Backwards, because a finished handshake is replaced by the last one.
            for index in (0..self.handshakes.len()).rev() {
                if ready[1 + index] {
                    self.advance(index);
                }
            }
            let known = self.handshakes.len();
            if ready.get(listener_at) == Some(&true) {
                self.accept_some(Instant::now());
            }
            // A node sends its first message at once, so most likely it has arrived with the connection.
            for index in (known..self.handshakes.len()).rev() {
                self.advance(index);
            }
            self.expire(Instant::now());
        }
    }

    /// Waits until something happens or is due. Returns what is ready: a request to wake up, then every handshake, then
    /// the listener unless it is left alone for now.
    fn wait(&self, now: Instant) -> Vec<bool> {
        let accepting = self.accept_from <= now;
        let mut sockets = vec![(self.peers.roster.wake.descriptor(), PollFlags::IN)];
        sockets.extend(self.handshakes.iter().map(|handshake| (&handshake.socket, handshake.events())));
        sockets.extend(accepting.then_some((&self.listener, PollFlags::IN)));
        let next = self
            .dials
            .iter()
            .filter_map(|dial| dial.due)
            .chain(self.handshakes.iter().map(|handshake| handshake.deadline))
            .chain((!accepting).then_some(self.accept_from))
            .min();
        // Rounded up: a wait that ends slightly too early would only cause another iteration.
        let timeout_ms = next.map_or(-1, |next| {
            i32::try_from(next.saturating_duration_since(now).as_millis()).unwrap_or(i32::MAX - 1) + 1
        });
        sockets::wait(&sockets, timeout_ms)
    }

    fn dial_due(&mut self, now: Instant) {
        let peers = &self.peers;
        self.dials.retain(|dial| peers.roster.is_absent(dial.peer));
        for dial in &mut self.dials {
            if dial.due.is_none_or(|due| due > now) {
                continue;
            }
            let address = &self.options.addresses[dial.peer];
            let (failure, again_ms) = match dial.addresses.next(address) {
                Err(error) => (format!("{address} is not an address: {error}"), DIAL_AGAIN_SLOW_MS),
                Ok(target) => match sockets::dial(&target) {
                    Ok(socket) => {
                        dial.due = None;
                        self.handshakes.push(Handshake::dialled(socket, dial.peer, now));
                        continue;
                    }
                    Err(error) => (unreachable_sentence(address, &error), DIAL_AGAIN_MS),
                },
            };
            dial.due = Some(now + Duration::from_millis(again_ms));
            peers.roster.set_trouble(dial.peer, Some(failure));
        }
    }

    fn accept_some(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_MAX {
            match sockets::accept(&self.listener) {
                Ok(Some(socket)) => {
                    self.make_room();
                    self.handshakes.push(Handshake::accepted(socket, now));
                }
                Ok(None) => return,
                Err(_) => {
                    self.accept_from = now + Duration::from_millis(ACCEPT_AGAIN_MS);
                    return;
                }
            }
        }
    }

    /// When all places are taken, drops the unauthenticated peer that has waited longest: a node of the cluster sends
    /// its first message at once, so a peer that waits is most likely not a node.
    fn make_room(&mut self) {
        let unauthenticated = self.handshakes.iter().filter(|handshake| handshake.is_unauthenticated()).count();
        if unauthenticated < HANDSHAKES_MAX {
            return;
        }
        let oldest = self
            .handshakes
            .iter()
            .enumerate()
            .filter(|(_, handshake)| handshake.is_unauthenticated())
            .min_by_key(|(_, handshake)| handshake.deadline)
            .map(|(index, _)| index);
        if let Some(index) = oldest {
            self.over(index, Failure::Unauthenticated);
        }
    }

    fn expire(&mut self, now: Instant) {
        for index in (0..self.handshakes.len()).rev() {
            if self.handshakes[index].deadline <= now {
                let failure = self.handshakes[index].timed_out();
                self.over(index, failure);
            }
        }
    }

    /// Advances one handshake as far as possible now.
    fn advance(&mut self, index: usize) {
        let dialled = self.handshakes[index].dialled_peer();
        let progress = self.handshakes[index].advance(&self.options.secret, self.options.security);
        match progress {
            Progress::Waits => {}
            Progress::Connected { peer } => self.say_first(index, peer),
            Progress::Answered { peer, description, keys, confirmation } => {
                if description.refused {
                    let why = String::from_utf8_lossy(&description.text).into_owned();
                    let why = format!("node {peer} refused this node: {why}");
                    self.turn_away_dialled(index, peer, why);
                } else if let Err(why) = self.judge(peer, &description) {
                    self.turn_away_dialled(index, peer, format!("node {peer} was refused: {why}"));
                } else {
                    let handshake = self.handshakes.swap_remove(index);
                    match sockets::send_whole(handshake.socket.raw(), &confirmation) {
                        Ok(()) => drop(self.peers.install(peer, handshake.socket, *keys)),
                        Err(_) => self.dial_again(peer, DIAL_AGAIN_MS),
                    }
                }
            }
            Progress::Introduced { answering, description } => self.answer(index, answering, &description),
            Progress::Confirmed { peer, keys } => {
                let handshake = self.handshakes.swap_remove(index);
                // If the peer came up by another connection meanwhile, this one is dropped.
                self.peers.install(peer, handshake.socket, *keys);
            }
            Progress::Over(failure) => {
                if let (Some(peer), Failure::Unauthenticated) = (dialled, &failure) {
                    // The process that answers at that address does not know the secret.
                    self.dial_again(peer, DIAL_AGAIN_SLOW_MS);
                    self.peers.roster.set_trouble(peer, Some(self.no_answer_sentence(peer)));
                }
                self.over(index, failure);
            }
        }
    }

    fn say_first(&mut self, index: usize, peer: usize) {
        let description = self.rules().description(peer, false, &self.options.hello);
        let said =
            Dialling::start(Carrier::Stream, &self.options.secret, &description).ok().and_then(|(dialling, first)| {
                let socket = &self.handshakes[index].socket;
                sockets::send_whole(socket.raw(), &first).ok().map(|()| dialling)
            });
        match said {
            Some(dialling) => self.handshakes[index].await_answer(peer, dialling),
            None => self.over(index, Failure::NoAnswer),
        }
    }

    /// Handles the first message of a peer that knows the secret: admits it, or tells it why not.
    fn answer(&mut self, index: usize, mut answering: Box<Answering>, description: &NodeDescription) {
        if description.from == OUTSIDER {
            return self.answer_question(index, &mut answering, description);
        }
        let peer = description.from as usize;
        // A first message that was meant for another node, or that was received before, is a recording: no answer, as
        // for any unauthenticated peer.
        if description.to as usize != self.peers.roster.node || !self.remembered.is_new(answering.ephemeral()) {
            self.over(index, Failure::Unauthenticated);
            return;
        }
        let known = !self.peers.roster.is_absent(peer);
        let verdict = self.rules().judge_dialler(description, known).and_then(|()| self.judge(peer, description));
        let text = match &verdict {
            Ok(()) => self.options.hello.clone(),
            Err(why) => admission::shortened(why),
        };
        let reply = self.rules().description(peer, verdict.is_err(), &text);
        let sent = answering
            .answer(&reply)
            .is_ok_and(|second| sockets::send_whole(self.handshakes[index].socket.raw(), &second).is_ok());
        match verdict {
            Ok(()) if sent => {
                self.handshakes[index].await_confirmation(peer, answering, Instant::now());
            }
            Ok(()) => self.over(index, Failure::Left),
            Err(why) => {
                self.peers.roster.nodes_refused.fetch_add(1, Ordering::Relaxed);
                (self.options.refused)(format!("node {peer} was refused: {why}"));
                self.over(index, Failure::Left);
            }
        }
    }

    /// Handles a question of a process that knows the secret and is not a node.
    fn answer_question(&mut self, index: usize, answering: &mut Answering, description: &NodeDescription) {
        let meant_for_this = description.to as usize == self.peers.roster.node;
        if !meant_for_this && description.to != OUTSIDER || !self.remembered.is_new(answering.ephemeral()) {
            return self.over(index, Failure::Unauthenticated);
        }
        let answered = if description.version == LINK_VERSION {
            (self.questions)(meant_for_this, &description.text)
        } else {
            let theirs = description.version;
            Err(format!(
                "this process speaks link version {theirs}, the cluster version {LINK_VERSION}; run the same release"
            ))
        };
        if let Err(why) = &answered {
            self.peers.roster.nodes_refused.fetch_add(1, Ordering::Relaxed);
            (self.options.refused)(format!("a process that asks to join was refused, and told of this cluster: {why}"));
        }
        let reply = match &answered {
            Ok(text) => self.rules().description(OUTSIDER as usize, false, text),
            Err(why) => self.rules().description(OUTSIDER as usize, true, &admission::shortened(why)),
        };
        if let Ok(second) = answering.answer(&reply) {
            // An asker that hung up needs no answer.
            let _ = sockets::send_whole(self.handshakes[index].socket.raw(), &second);
        }
        self.over(index, Failure::Left);
    }

    /// The checks that both sides make.
    fn judge(&self, peer: usize, description: &NodeDescription) -> Result<(), String> {
        self.rules().judge(peer, description)?;
        (self.options.admit)(peer, &description.text)
    }

    fn rules(&self) -> Rules {
        Rules { node: self.peers.roster.node, nodes: self.peers.roster.count(), security: self.options.security }
    }

    /// A peer that this node dialled and that refuses or is refused: reported once, never dialled again.
    fn turn_away_dialled(&mut self, index: usize, peer: usize, why: String) {
        drop(self.handshakes.swap_remove(index));
        self.peers.roster.nodes_refused.fetch_add(1, Ordering::Relaxed);
        self.peers.give_up(peer, Lost::NodeRefused { why: why.clone() });
        (self.options.refused)(why);
    }

    /// Ends a handshake that failed.
    fn over(&mut self, index: usize, failure: Failure) {
        let handshake = self.handshakes.swap_remove(index);
        if matches!(failure, Failure::Unauthenticated) {
            self.peers.roster.unauthenticated.fetch_add(1, Ordering::Relaxed);
        }
        let Some(peer) = handshake.dialled_peer() else { return };
        match failure {
            Failure::Unreachable(error) => {
                let sentence = unreachable_sentence(&self.options.addresses[peer], &error);
                self.peers.roster.set_trouble(peer, Some(sentence));
                self.dial_again(peer, DIAL_AGAIN_MS);
            }
            Failure::NoAnswer => {
                self.peers.roster.set_trouble(peer, Some(self.no_answer_sentence(peer)));
                self.dial_again(peer, DIAL_AGAIN_SLOW_MS);
            }
            Failure::Unauthenticated | Failure::Left => self.dial_again(peer, DIAL_AGAIN_SLOW_MS),
        }
    }

    fn dial_again(&mut self, peer: usize, after_ms: u64) {
        let due = Instant::now() + Duration::from_millis(after_ms);
        if let Some(dial) = self.dials.iter_mut().find(|dial| dial.peer == peer) {
            dial.due = Some(due);
        }
    }

    fn no_answer_sentence(&self, peer: usize) -> String {
        let address = &self.options.addresses[peer];
        format!(
            "{address} takes the connection and does not answer: its process is not that far yet, \
             has another secret, or is not a node of this cluster"
        )
    }
}

fn unreachable_sentence(address: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("no process listens at {address} yet"),
        _ => format!("{address} cannot be reached: {error}"),
    }
}

#[allow(unsafe_code)]
fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are local; the calls cannot fail with these arguments.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

#[allow(unsafe_code)]
fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set is the one that `block_signals` returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;
    use crate::Security;

    fn acceptor(address: &mut Option<SocketAddr>) -> Acceptor {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        *address = listener.local_addr().ok();
        let listener = Descriptor::adopt(|| Ok(listener.into())).unwrap();
        sockets::make_own(&listener).unwrap();
        let options = TcpOptions {
            node: 0,
            addresses: vec![String::new(); 2],
            listener: None,
            secret: [0; 32],
            security: Security::Sealed,
            hello: Vec::new(),
            admit: Box::new(|_, _| Ok(())),
            refused: Box::new(|_| {}),
        };
        Acceptor::new(Arc::new(Peers::new(0, 2).unwrap()), listener, options, Box::new(|_, _| Ok(Vec::new())))
    }

    #[test]
    fn unauthenticated_peers_beyond_the_places_push_out_the_one_that_waits_longest() {
        let mut address = None;
        let mut acceptor = acceptor(&mut address);
        let mut crowd = Vec::new();
        for number in 0..HANDSHAKES_MAX + 6 {
            crowd.push(TcpStream::connect(address.unwrap()).unwrap());
            // One at a time, so that it is known which one has waited longest.
            while acceptor.handshakes.len() + acceptor.peers.roster.unauthenticated.load(Ordering::Relaxed) as usize
                <= number
            {
                acceptor.accept_some(Instant::now());
            }
            assert!(acceptor.handshakes.len() <= HANDSHAKES_MAX);
        }
        assert_eq!(acceptor.handshakes.len(), HANDSHAKES_MAX);
        assert_eq!(acceptor.peers.roster.unauthenticated.load(Ordering::Relaxed), 6);
        for stream in &crowd {
            stream.set_nonblocking(true).unwrap();
        }
        let is_hung_up = |stream: &TcpStream| matches!(stream.peek(&mut [0]), Ok(0));
        assert!(crowd[..6].iter().all(is_hung_up));
        assert!(!crowd[6..].iter().any(is_hung_up));
    }

    #[test]
    fn an_unauthenticated_peer_is_hung_up_on_in_the_end() {
        let mut address = None;
        let mut acceptor = acceptor(&mut address);
        let _peer = TcpStream::connect(address.unwrap()).unwrap();
        let start = Instant::now();
        while acceptor.handshakes.is_empty() {
            acceptor.accept_some(start);
        }
        acceptor.expire(start + Duration::from_millis(4_999));
        assert_eq!((acceptor.handshakes.len(), acceptor.peers.roster.unauthenticated.load(Ordering::Relaxed)), (1, 0));
        acceptor.expire(start + Duration::from_millis(5_000));
        assert_eq!((acceptor.handshakes.len(), acceptor.peers.roster.unauthenticated.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn a_node_that_does_not_confirm_is_hung_up_on() {
        let mut address = None;
        let mut acceptor = acceptor(&mut address);
        let _node = TcpStream::connect(address.unwrap()).unwrap();
        let start = Instant::now();
        while acceptor.handshakes.is_empty() {
            acceptor.accept_some(start);
        }
        let description = Rules { node: 1, nodes: 2, security: Security::Sealed }.description(0, false, &[]);
        let (_, first) = Dialling::start(Carrier::Stream, &[0; 32], &description).unwrap();
        let Ok((answering, _)) = Answering::read(Carrier::Stream, &[0; 32], &first) else {
            panic!("it knows the secret");
        };
        acceptor.handshakes[0].await_confirmation(1, Box::new(answering), start);
        acceptor.expire(start + Duration::from_millis(59_999));
        assert_eq!(acceptor.handshakes.len(), 1);
        acceptor.expire(start + Duration::from_millis(60_000));
        assert_eq!((acceptor.handshakes.len(), acceptor.peers.roster.unauthenticated.load(Ordering::Relaxed)), (0, 0));
    }
}
