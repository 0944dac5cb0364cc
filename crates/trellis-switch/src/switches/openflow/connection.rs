//! A controller's connection to one switch: the exchange of messages, the detection of a dead peer, and the matching of
//! answers to requests.
//!
//! Promises: a thread reads; for each connection, it sends hello, asks for the switch's features, and lets its
//! [`Listener`] send everything. A second thread passes packets to the listener in the order in which they arrived: a
//! switch drops packets for the controller if earlier ones are not read at once. A switch that is silent for 15 s is
//! disconnected, and the next connection is waited for. A caller that asks waits until the answer, a deadline, or the
//! end of the connection. It must never wait for an answer in its own threads, nor while a lock of its listener is
//! held.

use std::collections::{HashMap, VecDeque};
use std::fmt::Arguments;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trellis_output::sockets::SocketFile;

use super::codec::{self, Answer, Body, Features, Message, NO_BUFFER, PacketIn, PacketOut, WHOLE, port};
use super::connecting::{ConnectionMethod, Place, Stream};
use crate::error::SwitchError;
use crate::switches::waits::{ANSWER, DEAD, HELLO};
use crate::sys;

/// After this much silence an echo is sent.
const ECHO_AFTER: Duration = Duration::from_secs(5);
/// The pause before a switch that could not be reached is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// The maximum number of packets that wait to be passed on; then the switch waits.
const WAITING_MAX: usize = 65_536;
/// The maximum number that is passed on at once.
const AT_ONCE_MAX: usize = 256;
/// The maximum number of refusals that are kept until they are fetched.
const REFUSALS_MAX: usize = 1024;
/// The type of a packet to the controller itself: an experimental EtherType and a word.
const FENCE: [u8; 10] = [0x88, 0xb5, b't', b'r', b'e', b'l', b'l', b'i', b's', 0];
const FENCE_AT: usize = 12;
const FENCE_BYTES: usize = 60;

/// Receives what the switch sends, and sends the switch its state. Called by the connection's threads only.
pub(super) trait Listener: Send + Sync {
    /// Called for a new connection. `begin` must be called with every lock held under which messages are sent.
    ///
    /// # Errors
    ///
    /// Why this switch cannot be used.
    fn up(&self, begin: &mut dyn FnMut(), features: &Features) -> Result<(), String>;

    /// Packets have arrived, in this order.
    fn packets(&self, packets: &[PacketIn]);

    /// A flow ended, a port changed, or another message arrived that is not an answer.
    fn received(&self, body: Body);

    /// Does what is due; returns when the next action is due.
    fn due(&self) -> Option<Duration>;
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no connection, or it ended.
    Down,
    /// No answer within the time for it.
    Silent,
    /// The switch refused: kind and code of the error.
    Refused(u16, u16),
}

/// An expected answer.
#[derive(Default)]
struct Slot {
    parts: Vec<Answer>,
    end: Option<Result<(), Trouble>>,
}

#[derive(Default)]
struct Waiting {
    slots: HashMap<u32, Slot>,
    /// Refusals, by the number of the message.
    refusals: VecDeque<(u32, u16, u16)>,
    /// Why there is no connection.
    last_trouble: String,
    /// The number of connections so far.
    connections: u64,
    /// How many of those that came were hung up, or lost.
    hung_up: u64,
    is_up: bool,
}

struct Shared {
    writer: Mutex<Option<Stream>>,
    waiting: Mutex<Waiting>,
    changed: Condvar,
    next_number: AtomicU32,
    method: ConnectionMethod,
    datapath: Option<u64>,
    report: Option<fn(Arguments<'_>)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No holder of a lock leaves the state half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle to send messages to the switch, for the owner and the listener.
#[derive(Clone)]
pub(super) struct Line(Arc<Shared>);

/// Messages that were sent, the last of which is waited for.
pub(super) struct Sent {
    first: u32,
    last: u32,
}

impl Line {
    pub(super) fn new(method: ConnectionMethod, datapath: Option<u64>, report: Option<fn(Arguments<'_>)>) -> Line {
        Line(Arc::new(Shared {
            writer: Mutex::new(None),
            waiting: Mutex::new(Waiting::default()),
            changed: Condvar::new(),
            next_number: AtomicU32::new(1),
            method,
            datapath,
            report,
        }))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        locked(&self.0.waiting)
    }

    /// Sends messages in this order. The last one is the one to be waited for.
    fn write(&self, bodies: Vec<Body>, is_asked: bool) -> Result<Sent, Trouble> {
        let mut writer = locked(&self.0.writer);
        let count = bodies.len() as u32;
        let first = self.0.next_number.fetch_add(count, Ordering::Relaxed);
        let last = first.wrapping_add(count).wrapping_sub(1);
        let Some(stream) = writer.as_mut() else { return Err(Trouble::Down) };
        let mut bytes = Vec::new();
        for (index, body) in bodies.into_iter().enumerate() {
            let message = Message { number: first.wrapping_add(index as u32), body };
            // A message that is too long did not originate from a packet that fits.
            bytes.extend(message.encode().unwrap_or_default());
        }
        if is_asked {
            self.waiting().slots.insert(last, Slot::default());
        }
        if stream.write_all(&bytes).is_err() {
            stream.end();
            *writer = None;
            let mut waiting = self.waiting();
            waiting.slots.remove(&last);
            waiting.is_up = false;
            return Err(Trouble::Down);
        }
        Ok(Sent { first, last })
    }

    /// Sends messages without waiting. Without a connection, they are dropped.
    pub(super) fn tell(&self, bodies: Vec<Body>) {
        if !bodies.is_empty() {
            let _ = self.write(bodies, false);
        }
    }

    /// Sends messages and a question; [`Line::wait`] waits for the answer to the question.
    pub(super) fn ask(&self, mut bodies: Vec<Body>, question: Body) -> Result<Sent, Trouble> {
        bodies.push(question);
        self.write(bodies, true)
    }

    /// The answer to the last message; also an error if an earlier one was refused.
    pub(super) fn wait(&self, sent: &Sent) -> Result<Vec<Answer>, Trouble> {
        let deadline = Instant::now() + ANSWER.time();
        let mut waiting = self.waiting();
        loop {
            let is_over = waiting.slots.get(&sent.last).is_none_or(|slot| slot.end.is_some());
            let left = deadline.saturating_duration_since(Instant::now());
            if is_over || left.is_zero() {
                break;
            }
            waiting = self.0.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let slot = waiting.slots.remove(&sent.last).ok_or(Trouble::Down)?;
        let mine = |number: u32| number.wrapping_sub(sent.first) <= sent.last.wrapping_sub(sent.first);
        let refused = waiting.refusals.iter().find(|refusal| mine(refusal.0)).copied();
        waiting.refusals.retain(|refusal| !mine(refusal.0));
        match (slot.end, refused) {
            (Some(Err(trouble)), _) => Err(trouble),
            (None, _) => Err(Trouble::Silent),
            (Some(Ok(())), Some((_, kind, code))) => Err(Trouble::Refused(kind, code)),
            (Some(Ok(())), None) => Ok(slot.parts),
        }
    }

    /// Waits until every packet that the switch sent here before this call was handled.
    pub(super) fn fence(&self) -> Result<(), Trouble> {
        let number = self.0.next_number.fetch_add(1, Ordering::Relaxed);
        self.waiting().slots.insert(number, Slot::default());
        let packet = PacketOut {
            buffer: NO_BUFFER,
            in_port: port::CONTROLLER,
            actions: vec![codec::Action::Output { port: port::CONTROLLER, bytes_max: WHOLE }],
            data: fence_frame(number),
        };
        if let Err(trouble) = self.write(vec![Body::PacketOut(packet)], false) {
            self.waiting().slots.remove(&number);
            return Err(trouble);
        }
        self.wait(&Sent { first: number, last: number }).map(drop)
    }

    /// Waits until there is a connection over which everything was sent.
    pub(super) fn wait_up(&self, began: Instant, timeout: Duration) -> Result<(), SwitchError> {
        let mut waiting = self.waiting();
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            if waiting.is_up && !left.is_zero() {
                return Ok(());
            }
            if left.is_zero() {
                let trouble = match waiting.last_trouble.as_str() {
                    "" => "none comes".to_owned(),
                    trouble => trouble.to_owned(),
                };
                return Err(SwitchError::System {
                    attempt: format!("reach a switch at {}", self.0.method),
                    cause: format!("{trouble}, for {timeout:?}"),
                    hint: "it gets its flows as soon as it connects; see its controller's address".to_owned(),
                });
            }
            waiting = self.0.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The number of connections so far.
    pub(super) fn connections(&self) -> u64 {
        self.waiting().connections
    }

    /// How many connections were hung up, or lost.
    pub(super) fn hung_up(&self) -> u64 {
        self.waiting().hung_up
    }

    /// Refusals of the switch for which no call waited: kind and code.
    pub(super) fn refusals(&self) -> Vec<(u16, u16)> {
        self.waiting().refusals.drain(..).map(|(_, kind, code)| (kind, code)).collect()
    }

    /// Ends the connection; the thread then looks for the next one.
    pub(super) fn hang_up(&self) {
        if let Some(stream) = locked(&self.0.writer).as_ref() {
            stream.end();
        }
    }

    /// A connection has ended: because this process hung it up, or by itself.
    fn down(&self, trouble: String) {
        *locked(&self.0.writer) = None;
        let mut waiting = self.waiting();
        waiting.is_up = false;
        waiting.hung_up += 1;
        let count = waiting.hung_up;
        if let Some(report) = self.0.report.filter(|_| trellis_base::is_worth_reporting(count)) {
            let method = &self.0.method;
            report(format_args!("the connection to the switch at {method} has ended: {trouble} (number {count})"));
        }
        waiting.last_trouble = trouble;
        waiting.slots.values_mut().for_each(|slot| slot.end = Some(slot.end.take().unwrap_or(Err(Trouble::Down))));
        waiting.refusals.clear();
        self.0.changed.notify_all();
    }

    /// Handles an answer, or the end of one.
    fn answered(&self, number: u32, part: Option<Answer>, end: Option<Result<(), Trouble>>) {
        let mut waiting = self.waiting();
        if let Some(slot) = waiting.slots.get_mut(&number) {
            slot.parts.extend(part);
            if end.is_some() {
                slot.end = end;
                self.0.changed.notify_all();
            }
        }
    }

    fn refused(&self, number: u32, kind: u16, code: u16) {
        if (kind, code) == codec::GROUP_EXISTS {
            return;
        }
        self.answered(number, None, Some(Err(Trouble::Refused(kind, code))));
        let mut waiting = self.waiting();
        if waiting.refusals.len() == REFUSALS_MAX {
            waiting.refusals.pop_front();
        }
        waiting.refusals.push_back((number, kind, code));
    }
}

fn fence_frame(number: u32) -> Vec<u8> {
    let mut frame = vec![0; FENCE_AT];
    frame.extend_from_slice(&FENCE);
    frame.extend_from_slice(&number.to_be_bytes());
    frame.resize(FENCE_BYTES, 0);
    frame
}

/// The number of a fence, if a packet is one.
fn fence_of(frame: &[u8]) -> Option<u32> {
    let number = frame.get(FENCE_AT..)?.strip_prefix(&FENCE)?.first_chunk()?;
    Some(u32::from_be_bytes(*number))
}

/// Messages that must be handled in the order of arrival.
enum Arrival {
    Packet(PacketIn),
    Fence(u32),
    Message(Body),
}

/// Passes messages on, many at once if many wait, until the queue is closed.
fn hand_over(line: &Line, listener: &dyn Listener, queue: &Receiver<Arrival>) {
    // Ends with a message, or with the thread that reads.
    while let Ok(first) = queue.recv() {
        let mut packets = Vec::new();
        for heard in std::iter::once(first).chain(queue.try_iter().take(AT_ONCE_MAX)) {
            if let Arrival::Packet(packet) = heard {
                packets.push(packet);
                continue;
            }
            listener.packets(&std::mem::take(&mut packets));
            match heard {
                Arrival::Fence(number) => line.answered(number, None, Some(Ok(()))),
                Arrival::Message(body) => listener.received(body),
                Arrival::Packet(_) => {}
            }
        }
        listener.packets(&packets);
    }
}

/// The threads that read and pass on; dropping it ends them and the connection.
pub(super) struct Connection {
    line: Line,
    address: Option<SocketAddr>,
    file: Option<SocketFile>,
    threads: Vec<JoinHandle<()>>,
    alarm: Option<sys::Alarm>,
}

impl Connection {
    /// Listens and waits for the switch, or connects to it.
    pub(super) fn open(line: Line, listener: Arc<dyn Listener>) -> Result<Connection, SwitchError> {
        let place = Place::take(&line.0.method)
            .map_err(|error| SwitchError::system(format!("wait for a switch at {}", line.0.method), &error))?;
        let (address, file) = (place.address(), place.file());
        let (alarm, ringing) = sys::alarm().map_err(|error| SwitchError::system("make a socket pair", &error))?;
        let (heard, queue) = sync_channel(WAITING_MAX);
        let (line_there, listener_there) = (line.clone(), Arc::clone(&listener));
        let reading = Reading { line: line.clone(), listener, place, ringing, heard };
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
            thread.map_err(|error| SwitchError::system("start a thread of the connection", &error))
        };
        let hears = start("trellis-packets", Box::new(move || hand_over(&line_there, &*listener_there, &queue)))?;
        let reads = start("trellis-openflow", Box::new(move || reading.run()))?;
        Ok(Connection { line, address, file, threads: vec![reads, hears], alarm: Some(alarm) })
    }

    /// The address to which switches connect, if they do.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The file of the socket at which switches connect, if there is one.
    pub(super) fn file(&self) -> Option<&SocketFile> {
        self.file.as_ref()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.alarm = None;
        self.line.hang_up();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported when it happened.
            // Ends when the threads see that the connection is hung up; dropping the alarm woke them.
            let _ = thread.join();
        }
    }
}

struct Reading {
    line: Line,
    listener: Arc<dyn Listener>,
    place: Place,
    ringing: sys::Ringing,
    /// The messages for the other thread.
    heard: SyncSender<Arrival>,
}

/// Received bytes, up to the next complete message.
struct Incoming {
    stream: Stream,
    bytes: Vec<u8>,
    /// How many of them were read.
    read: usize,
    heard: Instant,
}

/// The result of waiting.
enum Came {
    Ring,
    Bytes,
    Nothing,
}

impl Reading {
    fn run(self) {
        loop {
            let Some(stream) = self.connect() else { return };
            let trouble = match self.talk(stream) {
                Ok(()) => return,
                Err(trouble) => trouble,
            };
            self.line.down(trouble);
        }
    }

    /// Waits for the switch; `None` if the alarm rings.
    fn connect(&self) -> Option<Stream> {
        loop {
            let next = self.listener.due();
            match self.place.connect() {
                Ok(stream) => return Some(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => self.line.waiting().last_trouble = error.to_string(),
            }
            let mut descriptors = vec![self.ringing.as_fd()];
            descriptors.extend(self.place.waiting());
            let timeout = if self.place.waiting().is_some() { next } else { Some(AGAIN_AFTER) };
            if sys::wait_readable(&descriptors, timeout).contains(&0) {
                return None;
            }
        }
    }

    /// One connection from hello to its end; not an error if the alarm rang.
    fn talk(&self, stream: Stream) -> Result<(), String> {
        let mut incoming = Incoming { stream, bytes: Vec::new(), read: 0, heard: Instant::now() };
        let Some(features) = self.say_hello(&mut incoming)? else { return Ok(()) };
        let writer = incoming.stream.try_clone().map_err(|error| error.to_string())?;
        let mut writer = Some(writer);
        self.listener.up(&mut || *locked(&self.line.0.writer) = writer.take(), &features)?;
        let barrier =
            self.line.ask(Vec::new(), Body::BarrierRequest).map_err(|_| "it ended the connection".to_owned())?;
        let number = barrier.last;
        let ended = self.serve(incoming, barrier);
        self.line.waiting().slots.remove(&number);
        ended
    }

    fn serve(&self, mut incoming: Incoming, barrier: Sent) -> Result<(), String> {
        let mut barrier = Some(barrier);
        let mut asked = false;
        loop {
            while let Some(message) = incoming.next()? {
                asked = false;
                self.hear(message);
            }
            barrier = barrier.filter(|barrier| !self.is_answered(barrier));
            let due = self.listener.due();
            let silence = if asked { DEAD.time() } else { ECHO_AFTER };
            let timeout = silence.saturating_sub(incoming.heard.elapsed());
            match incoming.wait(&self.ringing, due.map_or(timeout, |due| due.min(timeout)))? {
                Came::Ring => return Ok(()),
                Came::Bytes => {}
                Came::Nothing if incoming.heard.elapsed() >= DEAD.time() => {
                    return Err(format!("it was silent for {} s", DEAD.time().as_secs()));
                }
                Came::Nothing if incoming.heard.elapsed() >= ECHO_AFTER && !asked => {
                    self.line.tell(vec![Body::EchoRequest(Vec::new())]);
                    asked = true;
                }
                Came::Nothing => {}
            }
        }
    }

    /// Whether the switch has accepted everything that it was sent at the start.
    fn is_answered(&self, barrier: &Sent) -> bool {
        let mut waiting = self.line.waiting();
        let is_over = waiting.slots.get(&barrier.last).is_none_or(|slot| slot.end.is_some());
        if is_over {
            waiting.slots.remove(&barrier.last);
            waiting.is_up = true;
            waiting.connections += 1;
            self.line.0.changed.notify_all();
        }
        is_over
    }

    /// Exchanges hello and features; `None` if the alarm rang.
    fn say_hello(&self, incoming: &mut Incoming) -> Result<Option<Features>, String> {
        let hello = Body::Hello { version: codec::VERSION, versions: Some(1 << codec::VERSION) };
        for (number, body) in [hello, Body::FeaturesRequest].into_iter().enumerate() {
            let bytes = Message { number: number as u32, body }.encode().map_err(|error| error.to_string())?;
            incoming.stream.write_all(&bytes).map_err(|error| error.to_string())?;
        }
        let deadline = Instant::now() + HELLO.time();
        loop {
            while let Some(message) = incoming.next()? {
                match message.body {
                    Body::Hello { version, versions } => agree(version, versions)?,
                    Body::Error { kind, code, .. } => return Err(format!("it refused with error {kind}, {code}")),
                    Body::FeaturesReply(features) => return self.recognise(incoming, features).map(Some),
                    _ => {}
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("it connected and did not say what it is".to_owned());
            }
            if matches!(incoming.wait(&self.ringing, left)?, Came::Ring) {
                return Ok(None);
            }
        }
    }

    fn recognise(&self, incoming: &mut Incoming, features: Features) -> Result<Features, String> {
        if self.line.0.datapath.is_some_and(|wanted| wanted != features.datapath) {
            return Err(format!("the switch that came is {:016x}, which is another one", features.datapath));
        }
        let config = Body::SetConfig { flags: 0, miss_bytes_max: WHOLE };
        let bytes = Message { number: 2, body: config }.encode().map_err(|error| error.to_string())?;
        incoming.stream.write_all(&bytes).map_err(|error| error.to_string())?;
        Ok(features)
    }

    fn hear(&self, message: Message) {
        let number = message.number;
        match message.body {
            Body::EchoRequest(data) => self.echo(number, data),
            Body::EchoReply(_) | Body::Hello { .. } => {}
            Body::BarrierReply => self.line.answered(number, None, Some(Ok(()))),
            Body::MultipartReply { answer, has_more } => {
                self.line.answered(number, Some(answer), (!has_more).then_some(Ok(())));
            }
            Body::Error { kind, code, .. } => self.line.refused(number, kind, code),
            Body::PacketIn(packet) => self.queue(match fence_of(&packet.data) {
                Some(fence) => Arrival::Fence(fence),
                None => Arrival::Packet(packet),
            }),
            body => self.queue(Arrival::Message(body)),
        }
    }

    fn queue(&self, heard: Arrival) {
        // The other thread ends only after this one.
        let _ = self.heard.send(heard);
    }

    /// Answers an echo; the answer has the number of the request.
    fn echo(&self, number: u32, data: Vec<u8>) {
        let reply = Message { number, body: Body::EchoReply(data) };
        if let (Some(stream), Ok(bytes)) = (locked(&self.line.0.writer).as_mut(), reply.encode()) {
            // If it cannot be written, reading ends, too.
            let _ = stream.write_all(&bytes);
        }
    }
}

/// Checks that a switch supports OpenFlow 1.3.
fn agree(version: u8, versions: Option<u32>) -> Result<(), String> {
    let speaks = match versions {
        Some(versions) => versions >> codec::VERSION & 1 == 1,
        None => version >= codec::VERSION,
    };
    match speaks {
        true => Ok(()),
        false => Err(codec::CodecError::Version(version).to_string()),
    }
}

impl Incoming {
    /// The next complete message; one that cannot be decoded is skipped.
    fn next(&mut self) -> Result<Option<Message>, String> {
        loop {
            let bytes = &self.bytes[self.read..];
            let length = codec::message_bytes(bytes).map_err(|error| error.to_string())?;
            let Some(length) = length.filter(|&length| length <= bytes.len()) else {
                self.bytes.drain(..self.read);
                self.read = 0;
                return Ok(None);
            };
            let message = Message::decode(&bytes[..length]);
            self.read += length;
            match message {
                Ok(message) => return Ok(Some(message)),
                Err(error @ codec::CodecError::Version(_)) => return Err(error.to_string()),
                Err(_) => {}
            }
        }
    }

    fn wait(&mut self, ringing: &sys::Ringing, timeout: Duration) -> Result<Came, String> {
        let descriptors: [BorrowedFd<'_>; 2] = [ringing.as_fd(), self.stream.as_fd()];
        let ready = sys::wait_readable(&descriptors, Some(timeout));
        if ready.contains(&0) {
            return Ok(Came::Ring);
        }
        if ready.is_empty() {
            return Ok(Came::Nothing);
        }
        let mut buffer = [0; 65_536];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err("it ended the connection".to_owned()),
            Ok(count) => {
                self.bytes.extend_from_slice(&buffer[..count]);
                self.heard = Instant::now();
                Ok(Came::Bytes)
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
