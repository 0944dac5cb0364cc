//! Pages of an object of a memory server, had by this process for a time: as copies, which many may have, or under leases,
//! under which one process may change them.
//!
//! A [`Leased`] is one process' part in the lease protocol (`docs/protocols/lease.md`) for one object; any thread may call
//! it. A thread of its own hears what the server says, renews what is had, and another one tells [`Events`].
//!
//! Promises: a page that was put is what the server holds until [`Events`] says otherwise; home is told that a copy is gone
//! only after [`Events::invalidate`] returned; a page is had under a lease by one process at a time, and what was committed
//! is not lost while the server lives; a call ends until its deadline, and its error names the server. Rights end here
//! before they end there, by this machine's clock.
//!
//! Must never keep a page's bytes (but those of a commit until it is answered), nor call [`Events`] from a caller's thread.

mod engine;
mod state;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trellis_fabric_protocol::wire::address::{HostPrefix, PAGE_BYTES, PORT, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::Status;
use trellis_transport::links::ipv6::{Endpoint, NoAnswer};

use super::{Client, ClientOptions, RemoteError, drawn, nanoseconds};
use state::{End, Heard, Keeps, Kind, State};

/// Pages that one call has under way at the same time.
const WINDOW_PAGES: usize = 64;

/// Which object, and how it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedOptions {
    /// The addresses of this host.
    pub prefix: HostPrefix,
    /// Any byte of the object.
    pub object: Pointer,
    /// Where servers listen. If nobody has this port here, requests that a switch delivers here are answered.
    pub port: u16,
    /// The longest a call may take.
    pub deadline: Duration,
    /// After so long without an answer something is said again.
    pub retry: Duration,
}

impl LeasedOptions {
    /// For an object: port 5000, 10 s, said again after 20 ms.
    pub fn new(prefix: HostPrefix, object: Pointer) -> LeasedOptions {
        let (deadline, retry) = (Duration::from_secs(10), Duration::from_millis(20));
        LeasedOptions { prefix, object, port: PORT, deadline, retry }
    }
}

/// The bytes of a page that is had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes<'a> {
    /// These.
    New(&'a [u8]),
    /// Those that are here: the page has not changed since they were put or committed; or it was had already.
    Same,
}

/// What happens to pages without a call. Pages are numbered in the object.
///
/// One thread calls these, one after the other, while others may be inside of a call of [`Leased`]: an event must never
/// wait for one of those.
pub trait Events: Send + Sync {
    /// The copy of this page is not to be used any more: when this returns, nobody here does.
    fn invalidate(&self, page: u64);

    /// Somebody wants this page: commit it with release, or release it, soon. It is not renewed any more.
    fn recalled(&self, page: u64);

    /// The lease or the copy of this page is over: when this returns, nobody here uses it. What was changed and not
    /// committed is lost, unless [`Leased::update_again`] says that nobody has changed the page since.
    fn lost(&self, page: u64);

    /// Whether the copy of this page was used since this was asked last. One that was not ends with its term, and is lost
    /// then; who cannot tell says that it was. It is asked about once a term.
    fn is_used(&self, _page: u64) -> bool {
        true
    }
}

/// See the module.
pub struct Leased {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads share.
struct Shared {
    options: LeasedOptions,
    endpoint: Endpoint,
    object: Pointer,
    bytes: u64,
    began: Instant,
    state: Mutex<State>,
    /// Something that a caller, or the thread that tells events, waits for may have happened.
    changed: Condvar,
    events: Arc<dyn Events>,
}

impl Leased {
    /// Asks the server for the object, and takes a socket.
    ///
    /// # Errors
    ///
    /// No answer; no such object; the system gives no socket or thread.
    pub fn open(options: LeasedOptions, events: Arc<dyn Events>) -> Result<Leased, RemoteError> {
        let asks =
            ClientOptions { port: options.port, deadline: options.deadline, ..ClientOptions::new(options.prefix) };
        let (object, bytes) = Client::open(asks)?.inquire(options.object)?;
        let socket = |port: u16| Endpoint::open(port).map_err(|error| RemoteError::Socket { port, error });
        let endpoint = socket(options.port).or_else(|_| socket(0))?;
        let state = State::new(&options, object, bytes, drawn()?, drawn()?);
        let shared = Arc::new(Shared {
            options,
            endpoint,
            object,
            bytes,
            began: Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            events,
        });
        let mut leased = Leased { shared, threads: Vec::new() };
        for (name, body) in [("trellis-lease", Shared::hear as fn(&Shared)), ("trellis-event", Shared::tell)] {
            let shared = Arc::clone(&leased.shared);
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || body(&shared));
            leased.threads.push(thread.map_err(|error| {
                RemoteError::Setting(format!("the system starts no thread ({error}); look at `ulimit -u`"))
            })?);
        }
        Ok(leased)
    }

    /// Its first byte, and how many it has.
    pub fn object(&self) -> (Pointer, u64) {
        (self.shared.object, self.shared.bytes)
    }

    /// How many pages it has; the last one may be shorter than a page.
    pub fn pages(&self) -> u64 {
        self.shared.bytes.div_ceil(PAGE_BYTES)
    }

    /// Takes copies; each is put as soon as it is there, in any order. With `keeps` the bytes that were put or committed last
    /// are still here, and [`Bytes::Same`] says that they are the page's.
    ///
    /// # Errors
    ///
    /// No answer, or somebody kept the page for all that time; the server refused. Pages that were put are had nevertheless.
    pub fn copy(&self, pages: &[u64], keeps: bool, put: &mut dyn FnMut(u64, Bytes<'_>)) -> Result<(), RemoteError> {
        self.shared.have(Kind::Copy, pages, if keeps { Keeps::Known } else { Keeps::Nothing }, put)
    }

    /// Takes leases; each page is put as soon as it is granted, in any order, and may be changed from then on. `keeps` is as
    /// with [`Self::copy`]. If there is a copy here, it is invalidated first.
    ///
    /// # Errors
    ///
    /// As [`Self::copy`].
    pub fn update(&self, pages: &[u64], keeps: bool, put: &mut dyn FnMut(u64, Bytes<'_>)) -> Result<(), RemoteError> {
        self.shared.have(Kind::Update, pages, if keeps { Keeps::Known } else { Keeps::Nothing }, put)
    }

    /// Takes leases anew of pages whose leases were over before what was changed in them was committed: because a home died,
    /// or this process could not renew them. [`Bytes::Same`]: nobody has committed or written such a page since the lease was
    /// granted, and it can be committed as it is here. Otherwise these are its bytes, and what was changed here is of nothing.
    /// The home that a controller put in the place of one that died gives leases again when those of before have ended.
    ///
    /// # Errors
    ///
    /// As [`Self::copy`].
    pub fn update_again(&self, pages: &[u64], put: &mut dyn FnMut(u64, Bytes<'_>)) -> Result<(), RemoteError> {
        self.shared.have(Kind::Update, pages, Keeps::Changed, put)
    }

    /// These are the pages' bytes from now on; with `release` the leases are given back. The answer has the pages for which
    /// that is not so, because their leases were over.
    ///
    /// # Errors
    ///
    /// No answer: nobody knows then whether it was done, and the leases are given up.
    ///
    /// # Panics
    ///
    /// When the bytes are more or less than the page has.
    pub fn commit(&self, pages: &[(u64, &[u8])], release: bool) -> Result<Vec<u64>, RemoteError> {
        self.shared.commit(pages, release)
    }

    /// Gives leases back; what was changed and not committed is forgotten.
    pub fn release(&self, pages: &[u64]) {
        let mut state = self.shared.lock();
        let now = self.shared.now();
        pages.iter().for_each(|page| state.release(&self.shared, now, *page));
    }

    /// These copies are not used here any more; their server is told, so that nobody has to wait for their end.
    pub fn drop_copies(&self, pages: &[u64]) {
        let mut state = self.shared.lock();
        pages.iter().for_each(|page| self.shared.drop_copy(&mut state, *page));
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.close(&self.shared, self.shared.now());
        }
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        nanoseconds(self.began)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, at_most: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0
    }

    fn page_bytes(&self, page: u64) -> usize {
        (self.bytes - page * PAGE_BYTES).min(PAGE_BYTES) as usize
    }

    /// Takes copies or leases, some at a time.
    fn have(
        &self,
        kind: Kind,
        pages: &[u64],
        keeps: Keeps,
        put: &mut dyn FnMut(u64, Bytes<'_>),
    ) -> Result<(), RemoteError> {
        let began = Instant::now();
        for some in pages.chunks(WINDOW_PAGES) {
            self.all(kind, some, began, |state, now, page| state.begin(self, now, page, kind, keeps, None), put)?;
        }
        Ok(())
    }

    fn commit(&self, pages: &[(u64, &[u8])], release: bool) -> Result<Vec<u64>, RemoteError> {
        let (began, kind) = (Instant::now(), Kind::Commit { release });
        let mut fenced = Vec::new();
        for some in pages.chunks(WINDOW_PAGES) {
            let numbers: Vec<u64> = some.iter().map(|(page, _)| *page).collect();
            let begin = |state: &mut State, now, page| {
                let bytes = some.iter().find(|(number, _)| *number == page).expect("it is one of these").1;
                assert_eq!(bytes.len(), self.page_bytes(page), "a commit has all bytes of page {page}");
                state.begin(self, now, page, kind, Keeps::Nothing, Some(bytes));
            };
            fenced.extend(self.all(kind, &numbers, began, begin, &mut |_, _| {})?);
        }
        Ok(fenced)
    }

    /// Begins something with each of these pages, and waits until it ended; the pages whose lease was over.
    fn all(
        &self,
        kind: Kind,
        pages: &[u64],
        began: Instant,
        begin: impl Fn(&mut State, u64, u64),
        put: &mut dyn FnMut(u64, Bytes<'_>),
    ) -> Result<Vec<u64>, RemoteError> {
        let (mut open, mut to_begin): (Vec<u64>, Vec<u64>) = (Vec::new(), pages.to_vec());
        let (mut fenced, mut failed) = (Vec::new(), None);
        let mut state = self.lock();
        while !open.is_empty() || !to_begin.is_empty() {
            let now = self.now();
            to_begin.retain(|&page| {
                let may = state.may_begin(page);
                if may {
                    begin(&mut state, now, page);
                    open.push(page);
                }
                !may
            });
            if let Some(place) = open.iter().position(|page| state.has_ended(*page)) {
                let page = open.swap_remove(place);
                match state.end(page) {
                    End::Put(bytes) => {
                        drop(state);
                        put(page, bytes.as_deref().map_or(Bytes::Same, Bytes::New));
                        state = self.lock();
                        state.was_put(page);
                    }
                    End::Done => state.was_put(page),
                    End::Fenced => fenced.push(page),
                    End::Refused(status) => failed = Some(self.refused(kind, page, status)),
                }
                self.changed.notify_all();
                continue;
            }
            let left = self.options.deadline.saturating_sub(began.elapsed());
            if failed.is_some() || left.is_zero() {
                let now = self.now();
                let about = open.first().or(to_begin.first()).copied();
                let late = about.map(|page| self.late(kind, page, state.patience(page), began.elapsed()));
                open.iter().for_each(|page| state.give_up(self, now, *page));
                self.changed.notify_all();
                return Err(failed.or(late).expect("something is left to do"));
            }
            state = self.wait(state, left);
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(fenced),
        }
    }

    fn refused(&self, kind: Kind, page: u64, status: Status) -> RemoteError {
        RemoteError::Refused { command: kind.command(), pointer: self.pointer(page), status }
    }

    /// What a caller is told at its deadline.
    fn late(&self, kind: Kind, page: u64, heard: (u32, Option<Heard>), waited: Duration) -> RemoteError {
        match heard {
            (sent, Some((status, told))) if status.is_of_no_home() => {
                let (command, pointer) = (kind.command(), self.pointer(page));
                RemoteError::Unserved { command, pointer, status, told, sent, waited }
            }
            (_, Some((status, _))) => self.refused(kind, page, status),
            (sent, None) => NoAnswer { to: self.pointer(page).encode().0, sent, waited, error: None }.into(),
        }
    }

    fn pointer(&self, page: u64) -> Pointer {
        self.object.plus(page * PAGE_BYTES).expect("it is inside of the object")
    }
}

impl Kind {
    fn command(self) -> Command {
        match self {
            Kind::Copy => Command::Clone,
            Kind::Update => Command::Update,
            Kind::Commit { .. } => Command::Commit,
        }
    }
}
