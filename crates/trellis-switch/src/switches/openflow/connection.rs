//! A controller's connection to one switch: who speaks when, whether the other side still lives, which answer is to
//! what.
//!
//! Promises: a thread reads; it says hello, asks what the switch is, and lets its [`Listener`] tell the switch
//! everything, for each connection anew. Packets are handed to the listener in the order in which they came, by a
//! second thread: a switch throws packets for the controller away when those before are not read at once. A switch that
//! is silent for 15 s is left, and the next connection is waited for. Whoever asks waits until the answer, a deadline,
//! or the end of the connection. Never waits for an answer in its own threads, and never while a lock of its listener
//! is held.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::codec::{self, Answer, Body, Features, Message, NO_BUFFER, PacketIn, PacketOut, WHOLE, port};
use super::meeting::{Meeting, Place, Stream};
use crate::error::SwitchError;
use crate::sys;

/// After so much silence the other side is asked whether it lives.
const ECHO_AFTER: Duration = Duration::from_secs(5);
/// After so much silence it does not.
const DEAD_AFTER: Duration = Duration::from_secs(15);
/// How long hello and who-are-you may take.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may take.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// How long a switch that cannot be reached is left alone.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// The most packets that wait to be handed over; then the switch waits.
const WAITING_MAX: usize = 65_536;
/// The most that are handed over at once.
const AT_ONCE_MAX: usize = 256;
/// The most refusals that are kept until somebody asks.
const REFUSALS_MAX: usize = 1024;
/// What a packet to ourselves says it is: a kind that is free for experiments, and a word.
const FENCE: [u8; 10] = [0x88, 0xb5, b't', b'r', b'e', b'l', b'l', b'i', b's', 0];
const FENCE_AT: usize = 12;
const FENCE_BYTES: usize = 60;

/// Who has something to tell to a switch and hears from it. Called by the connection's threads only.
pub(super) trait Listener: Send + Sync {
    /// There is a connection. `begin` must be called with every lock held under which anything is sent.
    ///
    /// # Errors
    ///
    /// Why this switch is of no use.
    fn up(&self, begin: &mut dyn FnMut(), features: &Features) -> Result<(), String>;

    /// Packets came, in this order.
    fn packets(&self, packets: &[PacketIn]);

    /// A flow ended, a port changed, or anything else was said that is no answer.
    fn told(&self, body: Body);

    /// Does what is due, and says when the next is.
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

/// An answer that is waited for.
#[derive(Default)]
struct Slot {
    parts: Vec<Answer>,
    end: Option<Result<(), Trouble>>,
}

#[derive(Default)]
struct Waiting {
    slots: HashMap<u32, Slot>,
    /// What was refused, by the number of what was sent.
    refusals: VecDeque<(u32, u16, u16)>,
    /// Why there is no connection.
    last_trouble: String,
    /// How many connections there have been.
    lives: u64,
    is_up: bool,
}

struct Shared {
    writer: Mutex<Option<Stream>>,
    waiting: Mutex<Waiting>,
    changed: Condvar,
    next_number: AtomicU32,
    meeting: Meeting,
    datapath: Option<u64>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds one leaves it half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A way to tell the switch something, for its owner and the listener.
#[derive(Clone)]
pub(super) struct Line(Arc<Shared>);

/// Messages that were sent, and the last of which is waited for.
pub(super) struct Sent {
    first: u32,
    last: u32,
}

impl Line {
    pub(super) fn new(meeting: Meeting, datapath: Option<u64>) -> Line {
        Line(Arc::new(Shared {
            writer: Mutex::new(None),
            waiting: Mutex::new(Waiting::default()),
            changed: Condvar::new(),
            next_number: AtomicU32::new(1),
            meeting,
            datapath,
        }))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        locked(&self.0.waiting)
    }

    /// Sends messages in this order. What is to be waited for is the last one.
    fn write(&self, bodies: Vec<Body>, is_asked: bool) -> Result<Sent, Trouble> {
        let mut writer = locked(&self.0.writer);
        let count = bodies.len() as u32;
        let first = self.0.next_number.fetch_add(count, Ordering::Relaxed);
        let last = first.wrapping_add(count).wrapping_sub(1);
        let Some(stream) = writer.as_mut() else { return Err(Trouble::Down) };
        let mut bytes = Vec::new();
        for (index, body) in bodies.into_iter().enumerate() {
            let message = Message { number: first.wrapping_add(index as u32), body };
            // What does not fit into a message came from no packet that did.
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

    /// Tells the switch something; nobody waits. Without a connection, nobody is told.
    pub(super) fn tell(&self, bodies: Vec<Body>) {
        if !bodies.is_empty() {
            let _ = self.write(bodies, false);
        }
    }

    /// Tells the switch something and asks; [`Line::wait`] waits for the answer to the last.
    pub(super) fn ask(&self, mut bodies: Vec<Body>, question: Body) -> Result<Sent, Trouble> {
        bodies.push(question);
        self.write(bodies, true)
    }

    /// The answer to the last of what was sent; an error also when anything before it was refused.
    pub(super) fn wait(&self, sent: &Sent) -> Result<Vec<Answer>, Trouble> {
        let deadline = Instant::now() + ANSWER_PATIENCE;
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

    /// Waits until every packet that the switch sent here before this call was heard.
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

    /// Waits until there is a connection over which everything was told.
    pub(super) fn wait_up(&self, patience: Duration) -> Result<(), SwitchError> {
        let deadline = Instant::now() + patience;
        let mut waiting = self.waiting();
        while !waiting.is_up {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let trouble = match waiting.last_trouble.as_str() {
                    "" => "none comes".to_owned(),
                    trouble => trouble.to_owned(),
                };
                return Err(SwitchError::System {
                    attempt: format!("reach a switch at {}", self.0.meeting),
                    cause: format!("{trouble}, for {patience:?}"),
                    hint: "what it shall do is told to it as soon as it connects; see its controller's address"
                        .to_owned(),
                });
            }
            waiting = self.0.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// How many connections there have been.
    pub(super) fn lives(&self) -> u64 {
        self.waiting().lives
    }

    /// What the switch refused while nobody waited for it: kind and code.
    pub(super) fn refusals(&self) -> Vec<(u16, u16)> {
        self.waiting().refusals.drain(..).map(|(_, kind, code)| (kind, code)).collect()
    }

    /// Ends the connection; the thread looks for the next one.
    pub(super) fn hang_up(&self) {
        if let Some(stream) = locked(&self.0.writer).as_ref() {
            stream.end();
        }
    }

    fn down(&self, trouble: String) {
        *locked(&self.0.writer) = None;
        let mut waiting = self.waiting();
        waiting.is_up = false;
        waiting.last_trouble = trouble;
        waiting.slots.values_mut().for_each(|slot| slot.end = Some(slot.end.take().unwrap_or(Err(Trouble::Down))));
        waiting.refusals.clear();
        self.0.changed.notify_all();
    }

    /// An answer, or the end of one.
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

/// What must be heard in the order in which it came.
enum Heard {
    Packet(PacketIn),
    Fence(u32),
    Told(Body),
}

/// Hands over what was heard, many at once where many wait, until the other end of the queue is dropped.
fn hand_over(line: &Line, listener: &dyn Listener, queue: &Receiver<Heard>) {
    while let Ok(first) = queue.recv() {
        let mut packets = Vec::new();
        for heard in std::iter::once(first).chain(queue.try_iter().take(AT_ONCE_MAX)) {
            if let Heard::Packet(packet) = heard {
                packets.push(packet);
                continue;
            }
            listener.packets(&std::mem::take(&mut packets));
            match heard {
                Heard::Fence(number) => line.answered(number, None, Some(Ok(()))),
                Heard::Told(body) => listener.told(body),
                Heard::Packet(_) => {}
            }
        }
        listener.packets(&packets);
    }
}

/// The threads that read and hand over; dropped, they end, and so does the connection.
pub(super) struct Connection {
    line: Line,
    address: Option<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
    alarm: Option<sys::Alarm>,
}

impl Connection {
    /// Takes the place and waits there for the switch, or goes there.
    pub(super) fn open(line: Line, listener: Arc<dyn Listener>) -> Result<Connection, SwitchError> {
        let place = Place::take(&line.0.meeting)
            .map_err(|error| SwitchError::system(format!("wait for a switch at {}", line.0.meeting), &error))?;
        let address = place.address();
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
        Ok(Connection { line, address, threads: vec![reads, hears], alarm: Some(alarm) })
    }

    /// The address that switches connect to, where they do.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.alarm = None;
        self.line.hang_up();
        for thread in self.threads.drain(..) {
            // A panic of the thread was told when it happened.
            let _ = thread.join();
        }
    }
}

struct Reading {
    line: Line,
    listener: Arc<dyn Listener>,
    place: Place,
    ringing: sys::Ringing,
    /// What the other thread hands over.
    heard: SyncSender<Heard>,
}

/// Bytes that came, up to the next whole message.
struct Incoming {
    stream: Stream,
    bytes: Vec<u8>,
    /// How many of them are read.
    read: usize,
    heard: Instant,
}

/// What became of waiting.
enum Came {
    Ring,
    Bytes,
    Nothing,
}

impl Reading {
    fn run(self) {
        loop {
            let Some(stream) = self.meet() else { return };
            let trouble = match self.talk(stream) {
                Ok(()) => return,
                Err(trouble) => trouble,
            };
            self.line.down(trouble);
        }
    }

    /// Waits for the switch; none when the alarm rings.
    fn meet(&self) -> Option<Stream> {
        loop {
            let next = self.listener.due();
            match self.place.meet() {
                Ok(stream) => return Some(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => self.line.waiting().last_trouble = error.to_string(),
            }
            let mut descriptors = vec![self.ringing.as_fd()];
            descriptors.extend(self.place.waiting());
            let patience = if self.place.waiting().is_some() { next } else { Some(AGAIN_AFTER) };
            if sys::wait_readable(&descriptors, patience).contains(&0) {
                return None;
            }
        }
    }

    /// One connection from hello to its end; fine when the alarm rang.
    fn talk(&self, stream: Stream) -> Result<(), String> {
        let mut incoming = Incoming { stream, bytes: Vec::new(), read: 0, heard: Instant::now() };
        let Some(features) = self.greet(&mut incoming)? else { return Ok(()) };
        let writer = incoming.stream.try_clone().map_err(|error| error.to_string())?;
        let mut writer = Some(writer);
        self.listener.up(&mut || *locked(&self.line.0.writer) = writer.take(), &features)?;
        let told = self.line.ask(Vec::new(), Body::BarrierRequest).map_err(|_| "it ended the connection".to_owned())?;
        let number = told.last;
        let ended = self.serve(incoming, told);
        self.line.waiting().slots.remove(&number);
        ended
    }

    fn serve(&self, mut incoming: Incoming, told: Sent) -> Result<(), String> {
        let mut told = Some(told);
        let mut asked = false;
        loop {
            while let Some(message) = incoming.next()? {
                asked = false;
                self.hear(message);
            }
            told = told.filter(|told| !self.is_told(told));
            let due = self.listener.due();
            let silence = if asked { DEAD_AFTER } else { ECHO_AFTER };
            let patience = silence.saturating_sub(incoming.heard.elapsed());
            match incoming.wait(&self.ringing, due.map_or(patience, |due| due.min(patience)))? {
                Came::Ring => return Ok(()),
                Came::Bytes => {}
                Came::Nothing if incoming.heard.elapsed() >= DEAD_AFTER => {
                    return Err(format!("it was silent for {} s", DEAD_AFTER.as_secs()));
                }
                Came::Nothing if incoming.heard.elapsed() >= ECHO_AFTER && !asked => {
                    self.line.tell(vec![Body::EchoRequest(Vec::new())]);
                    asked = true;
                }
                Came::Nothing => {}
            }
        }
    }

    /// Whether the switch has taken all that it was told at the start.
    fn is_told(&self, told: &Sent) -> bool {
        let mut waiting = self.line.waiting();
        let is_over = waiting.slots.get(&told.last).is_none_or(|slot| slot.end.is_some());
        if is_over {
            waiting.slots.remove(&told.last);
            waiting.is_up = true;
            waiting.lives += 1;
            self.line.0.changed.notify_all();
        }
        is_over
    }

    /// Hello and who are you; none when the alarm rang.
    fn greet(&self, incoming: &mut Incoming) -> Result<Option<Features>, String> {
        let hello = Body::Hello { version: codec::VERSION, versions: Some(1 << codec::VERSION) };
        for (number, body) in [hello, Body::FeaturesRequest].into_iter().enumerate() {
            let bytes = Message { number: number as u32, body }.encode().map_err(|error| error.to_string())?;
            incoming.stream.write_all(&bytes).map_err(|error| error.to_string())?;
        }
        let deadline = Instant::now() + HELLO_PATIENCE;
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
                Some(fence) => Heard::Fence(fence),
                None => Heard::Packet(packet),
            }),
            body => self.queue(Heard::Told(body)),
        }
    }

    fn queue(&self, heard: Heard) {
        // The other thread ends after this one only.
        let _ = self.heard.send(heard);
    }

    /// An echo has the number of its question.
    fn echo(&self, number: u32, data: Vec<u8>) {
        let reply = Message { number, body: Body::EchoReply(data) };
        if let (Some(stream), Ok(bytes)) = (locked(&self.line.0.writer).as_mut(), reply.encode()) {
            // Where it cannot be written, reading ends, too.
            let _ = stream.write_all(&bytes);
        }
    }
}

/// Whether a switch speaks OpenFlow 1.3.
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
    /// The next whole message that is here; one that cannot be understood is passed over.
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

    fn wait(&mut self, ringing: &sys::Ringing, patience: Duration) -> Result<Came, String> {
        let descriptors: [BorrowedFd<'_>; 2] = [ringing.as_fd(), self.stream.as_fd()];
        let ready = sys::wait_readable(&descriptors, Some(patience));
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
