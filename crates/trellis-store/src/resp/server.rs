//! The server: accepts clients and carries out their requests.
//!
//! Each loop is a thread with an epoll, and a client belongs to the loop that accepted it. A loop reads all input of a
//! client, carries out all complete requests in it, and sends all answers at once. A client that sends several requests
//! together therefore pays for one exchange.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trellis_output::sockets;

use super::commands::{self, After, Cursors, Lanes, RequestParts, Session};
use super::connection::{Connection, Progress, Socket};
use super::poll::{Event, Interest, Poll};
use super::reply::Reply;
use super::request::{Found, Limits, Place};
use super::waiting::{self, Waiter};
use crate::capabilities::{Atomic, Capabilities};
use crate::store::Store;

/// The number of loops that serve a store outside this process.
const LOOPS: usize = 8;
/// How much longer a request may be than the bytes of a call.
const REQUEST_EXTRA_BYTES: usize = 1 << 20;
/// The pause in accepting clients while there is no descriptor for one.
const PAUSE: Duration = Duration::from_millis(10);
/// The tokens of watched descriptors that are not clients.
const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const FIRST_CLIENT: u64 = 2;

/// The options of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The password that clients must give first. Without one, anybody who reaches the address may do anything.
    pub password: Option<String>,
    /// Allows an address that other machines can reach. Requests and the password travel in clear text.
    pub insecure_beyond_this_machine: bool,
    /// The number of threads that serve clients. `None` means one if the store is in this process, and several otherwise.
    /// Transactions require one.
    pub threads: Option<usize>,
    /// The maximum number of clients at the same time.
    pub clients_max: usize,
    /// The maximum number of calls that wait for a change at the same time; each has a thread.
    pub calls_waiting_max: usize,
    /// The region of the store that holds the clients' keys; database `n` is the region with `n` added to this number.
    pub region: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            password: None,
            insecure_beyond_this_machine: false,
            threads: None,
            clients_max: 10_000,
            calls_waiting_max: 1024,
            region: 0xffff_ff00,
        }
    }
}

/// State that all loops share.
pub(super) struct Shared {
    pub(super) store: Arc<dyn Store>,
    pub(super) can: Capabilities,
    pub(super) password: Option<Vec<u8>>,
    pub(super) region: u32,
    /// Whether nothing else can change the store between two commands.
    pub(super) alone: bool,
    /// Whether the store changes several keys atomically.
    pub(super) together: bool,
    /// Constant as long as no stored data is lost.
    pub(super) incarnation: String,
    /// Constant as long as the answers of lanes are kept.
    pub(super) session: String,
    pub(super) cursors: Mutex<Cursors>,
    pub(super) lanes: Mutex<Lanes>,
    pub(super) started: Instant,
    pub(super) clients: AtomicUsize,
    /// The number of connections that were refused: there were [`Options::clients_max`] clients, or no descriptor.
    pub(super) rejected: AtomicU64,
    /// The number of refused attempts to give the password.
    pub(super) denied: AtomicU64,
    /// The number of calls that wait for a change.
    pub(super) waiting: AtomicUsize,
    pub(super) calls_waiting_max: usize,
    /// The number of calls that could not wait.
    pub(super) calls_refused: AtomicU64,
    /// The number of requests that broke the protocol.
    pub(super) broken: AtomicU64,
    pub(super) loops: Vec<Mailbox>,
    clients_max: usize,
    limits: Limits,
    numbers: AtomicU64,
    stopped: AtomicBool,
}

impl Shared {
    /// Stops all loops.
    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.loops.iter().for_each(Mailbox::wake);
    }
}

/// Answers that other threads leave for a loop.
pub(super) struct Mailbox {
    answers: Mutex<Vec<(u64, Vec<u8>)>>,
    waker: UnixStream,
}

impl Mailbox {
    /// Leaves an answer for a client.
    pub(super) fn hand(&self, client: u64, answer: Vec<u8>) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push((client, answer));
        self.wake();
    }

    fn wake(&self) {
        // If the socket is full, the loop has been woken already.
        (&self.waker).write_all(&[1]).ok();
    }
}

/// A socket on which clients connect.
enum Listener {
    Tcp(TcpListener),
    Unix(sockets::Socket),
}

impl Listener {
    fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(Socket::Tcp(stream))
            }
            Listener::Unix(socket) => {
                let (stream, _) = socket.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Socket::Unix(stream))
            }
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(socket) => socket.as_fd(),
        }
    }
}

/// A server that listens but does not serve yet.
pub struct RespServer {
    listener: Arc<Listener>,
    shared: Arc<Shared>,
    wakers: Vec<UnixStream>,
}

/// A server that serves on its own threads until this is dropped.
pub struct Running {
    address: String,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl RespServer {
    /// Listens at `HOST:PORT` (port 0 for any free port) or `unix:/PATH`.
    ///
    /// # Errors
    ///
    /// When the address is not available, and when other machines can reach it and the options do not allow that.
    pub fn bind(address: &str, store: Arc<dyn Store>, options: &Options) -> io::Result<RespServer> {
        let listener = listen(address, options)?;
        let can = store.capabilities();
        let threads = options.threads.unwrap_or(if can.shared { LOOPS } else { 1 }).max(1);
        let (mut loops, mut wakers) = (Vec::new(), Vec::new());
        for _ in 0..threads {
            let (waker, woken) = UnixStream::pair()?;
            waker.set_nonblocking(true)?;
            woken.set_nonblocking(true)?;
            loops.push(Mailbox { answers: Mutex::default(), waker });
            wakers.push(woken);
        }
        let session = random_name()?;
        let kept = can.durable || can.shared;
        let shared = Shared {
            can,
            password: options.password.as_ref().map(|password| password.clone().into_bytes()),
            region: options.region,
            alone: threads == 1 && !can.shared,
            together: can.atomic == Atomic::Call,
            incarnation: if kept { "kept".to_owned() } else { session.clone() },
            session,
            cursors: Mutex::default(),
            lanes: Mutex::default(),
            started: Instant::now(),
            clients: AtomicUsize::new(0),
            rejected: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            calls_waiting_max: options.calls_waiting_max,
            calls_refused: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            loops,
            clients_max: options.clients_max,
            limits: Limits { parts_max: 1 << 20, bytes_max: can.call_bytes_max.saturating_add(REQUEST_EXTRA_BYTES) },
            numbers: AtomicU64::new(FIRST_CLIENT),
            stopped: AtomicBool::new(false),
            store,
        };
        Ok(RespServer { listener: Arc::new(listener), shared: Arc::new(shared), wakers })
    }

    /// The address that clients use.
    pub fn address(&self) -> String {
        match &*self.listener {
            Listener::Tcp(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |address| address.to_string())
            }
            Listener::Unix(socket) => format!("unix:{}", socket.file().path().display()),
        }
    }

    /// Starts to serve.
    ///
    /// # Errors
    ///
    /// When a thread cannot be started.
    pub fn start(self) -> io::Result<Running> {
        let address = self.address();
        let mut running = Running { address, shared: Arc::clone(&self.shared), threads: Vec::new() };
        for (place, woken) in self.wakers.into_iter().enumerate() {
            let mut turn = Loop::new(place, Arc::clone(&self.shared), Arc::clone(&self.listener), woken)?;
            let thread = std::thread::Builder::new().name("trellis-resp".to_owned()).spawn(move || turn.run())?;
            running.threads.push(thread);
        }
        Ok(running)
    }
}

impl Running {
    /// The address on which it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A function that stops the server from any thread: [`Running::wait`] then returns, and the socket's file is
    /// removed.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.stop()
    }

    /// Serves until the server is stopped.
    pub fn wait(mut self) {
        for thread in self.threads.drain(..) {
            // Ends when the server is stopped, which wakes the threads.
            thread.join().ok();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            // Ends when the threads see that the server is stopped, which wakes them.
            thread.join().ok();
        }
    }
}

fn listen(address: &str, options: &Options) -> io::Result<Listener> {
    let failed = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot listen at {address}: {error}; name another one"))
    };
    if let Some(path) = address.strip_prefix("unix:") {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"));
        let socket = sockets::listen(Path::new(path), "server", "--resp").map_err(failed)?;
        socket.set_nonblocking(true)?;
        return Ok(Listener::Unix(socket));
    }
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound: SocketAddr = listener.local_addr()?;
    if !bound.ip().is_loopback() && !options.insecure_beyond_this_machine {
        let what = format!(
            "other machines reach {bound}, and the Redis protocol protects nothing that it carries; listen on 127.0.0.1, \
             or say that this is meant (--insecure-beyond-this-machine)"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    listener.set_nonblocking(true)?;
    Ok(Listener::Tcp(listener))
}

fn random_name() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn is_out_of_files(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(code, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

/// A client, and the call that it waits for.
struct Client {
    connection: Connection,
    waiter: Option<Arc<Waiter>>,
}

/// One thread that serves clients.
struct Loop {
    place: usize,
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    woken: UnixStream,
    /// A descriptor that is closed to accept a client when there is no other one.
    reserve: Option<UnixStream>,
    poll: Poll,
    clients: HashMap<u64, Client>,
    places: Vec<Place>,
}

impl Loop {
    fn new(place: usize, shared: Arc<Shared>, listener: Arc<Listener>, woken: UnixStream) -> io::Result<Loop> {
        let poll = Poll::new()?;
        poll.add_shared(listener.as_fd(), LISTENER)?;
        poll.add(woken.as_fd(), WAKER, Interest { read: true, ..Interest::default() })?;
        let reserve = Some(woken.try_clone()?);
        Ok(Loop { place, shared, listener, woken, reserve, poll, clients: HashMap::new(), places: Vec::new() })
    }

    fn run(&mut self) {
        let mut events: Vec<Event> = Vec::new();
        while !self.shared.stopped.load(Ordering::Relaxed) && self.poll.wait(&mut events).is_ok() {
            for event in &events {
                match event.token {
                    LISTENER => self.accept(),
                    WAKER => self.take_answers(),
                    number => self.serve(number, event.over),
                }
            }
        }
        self.shared.clients.fetch_sub(self.clients.len(), Ordering::Relaxed);
    }

    /// Accepts waiting connections. (Another loop may have accepted them first.)
    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok(socket) => self.welcome(socket),
                Err(error) if is_out_of_files(&error) => {
                    if !self.refuse_without_a_file() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // That client has gone, and there may be another one.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // The system lacks memory, for example. The listener stays readable.
                    std::thread::sleep(PAUSE);
                    return;
                }
            }
        }
    }

    /// Serves a new client, or refuses it.
    fn welcome(&mut self, socket: Socket) {
        let clients = self.shared.clients.load(Ordering::Relaxed);
        if clients >= self.shared.clients_max {
            return self
                .refuse(socket, &format!("max number of clients reached ({clients}); close some and try again"));
        }
        let number = self.shared.numbers.fetch_add(1, Ordering::Relaxed);
        let session = Session::new(self.shared.password.is_none(), number);
        let connection = Connection::new(socket, session);
        if let Err(error) = self.poll.add(connection.socket.as_fd(), number, connection.interest) {
            return self.refuse(connection.socket, &format!("max number of clients reached: {error}"));
        }
        self.shared.clients.fetch_add(1, Ordering::Relaxed);
        self.clients.insert(number, Client { connection, waiter: None });
    }

    /// The process may open no more files: takes the next client with the file that was kept for this, to tell it so. The
    /// client would otherwise wait without an answer, and this loop would spin. Whether there may be another one.
    fn refuse_without_a_file(&mut self) -> bool {
        self.reserve = None;
        let accepted = self.listener.accept();
        let is_taken = accepted.is_ok();
        if let Ok(socket) = accepted {
            self.refuse(socket, "max number of clients reached: the server may open no more files; raise `ulimit -n`");
        }
        self.reserve = self.woken.try_clone().ok();
        if self.reserve.is_none() {
            // Something else took the file. The system does not say when there is one again.
            std::thread::sleep(PAUSE);
        }
        is_taken
    }

    fn refuse(&self, mut socket: Socket, why: &str) {
        if self.shared.rejected.fetch_add(1, Ordering::Relaxed) == 0 {
            trellis_output::lines::report(format_args!(
                "a client is refused: {why}; INFO counts such refusals as rejected_connections"
            ));
        }
        // It begins as the sentence of Redis, which clients know. A new connection has room for it.
        socket.write(format!("-ERR {why}\r\n").as_bytes()).ok();
    }

    fn take_answers(&mut self) {
        let mut wakes = [0; 256];
        while matches!(self.woken.read(&mut wakes), Ok(count) if count > 0) {}
        let mailbox = &self.shared.loops[self.place];
        let answers = std::mem::take(&mut *mailbox.answers.lock().unwrap_or_else(PoisonError::into_inner));
        for (number, answer) in answers {
            if let Some(client) = self.clients.get_mut(&number) {
                client.waiter = None;
                client.connection.session.waiting = false;
                client.connection.output.extend_from_slice(&answer);
                self.go_on(number, Progress::Open);
            }
        }
    }

    fn serve(&mut self, number: u64, over: bool) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        // A client that waits or does not read its answers is not read from, but it may still disconnect.
        let progress = if client.connection.may_go_on() {
            client.connection.receive()
        } else if over {
            Progress::Ended
        } else {
            Progress::Open
        };
        self.go_on(number, progress);
    }

    /// Carries out received requests, sends answers, and removes clients that have disconnected.
    fn go_on(&mut self, number: u64, mut progress: Progress) {
        if let Some(client) = self.clients.get_mut(&number) {
            let asker = (self.place, number);
            while progress == Progress::Open {
                do_requests(&self.shared, asker, client, &mut self.places);
                let blocked = client.connection.session.is_waiting();
                let before = client.connection.may_go_on();
                progress = client.connection.send();
                // Pending output had stopped the requests; now there is room again.
                if blocked || before || !client.connection.may_go_on() {
                    break;
                }
            }
            let wanted = client.connection.wanted();
            if progress == Progress::Open && wanted != client.connection.interest {
                client.connection.interest = wanted;
                if self.poll.change(client.connection.socket.as_fd(), number, wanted).is_err() {
                    progress = Progress::Ended;
                }
            }
        }
        if progress == Progress::Ended
            && let Some(client) = self.clients.remove(&number)
        {
            if let Some(waiter) = client.waiter {
                waiter.leave((self.place, number));
            }
            self.shared.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Carries out the requests that were received completely.
fn do_requests(shared: &Arc<Shared>, asker: waiting::Client, client: &mut Client, places: &mut Vec<Place>) {
    let connection = &mut client.connection;
    while connection.may_go_on() {
        let bytes = match connection.request(shared.limits, places) {
            Found::Incomplete(_) => return,
            Found::Broken(why) => {
                if shared.broken.fetch_add(1, Ordering::Relaxed) == 0 {
                    trellis_output::lines::report(format_args!(
                        "a client is disconnected: {why}; look whether it speaks the Redis protocol. INFO counts such \
                         requests as trellis_protocol_errors"
                    ));
                }
                Reply::new(&mut connection.output, false).error(&format!("ERR {why}"));
                connection.closing = true;
                return;
            }
            Found::Request(bytes) => bytes,
        };
        if !places.is_empty() {
            let (session, input, output) = connection.parts();
            match commands::run(shared, session, RequestParts { bytes: input, places }, output) {
                After::Next => {}
                After::Close => connection.closing = true,
                After::Wait(wait) => match waiting::start(shared, asker, wait) {
                    Ok(waiter) => {
                        client.waiter = Some(waiter);
                        connection.session.waiting = true;
                    }
                    Err(why) => Reply::new(&mut connection.output, false).error(why),
                },
            }
        }
        connection.consume(bytes);
    }
}
