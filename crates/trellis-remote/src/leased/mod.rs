//! Pages of objects at memory servers that this process holds for a time: as copies, which many processes may hold, or
//! under leases, with which one process may change them.
//!
//! A [`LeasedPages`] is one process's part in the lease protocol (`docs/protocols/lease.md`) for some objects, whose
//! pages are numbered one after the other; any thread may call it. One thread receives what the servers send and renews
//! what is held, and another one calls [`Events`].
//!
//! Promises: the bytes of a page that was put are those that the server holds until [`Events`] reports otherwise. The
//! home is informed that a copy is gone only after [`Events::invalidate`] has returned. One process at a time holds the
//! lease of a page, and what was committed is not lost while the server lives. A call ends by its deadline, and its
//! error names the server. Rights end here before they end at the server, by this machine's clock.
//!
//! It must never keep a page's bytes (except those of a commit until it is answered), nor call [`Events`] from a
//! caller's thread.

mod state;
mod threads;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trellis_fabric_protocol::wire::address::{HostPrefix, PAGE_BYTES, PORT, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::Status;
use trellis_transport::links::ipv6::{Endpoint, NoAnswer};

use super::client::DEADLINE;
use super::{Client, ClientOptions, RemoteError, nanoseconds, random_number};
use state::{End, InterimAnswer, Keeps, Kind, State};

/// The number of pages that one call has under way at the same time.
const WINDOW_PAGES: usize = 64;

/// The objects, and the parameters of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedOptions {
    /// The addresses of this host.
    pub prefix: HostPrefix,
    /// Any byte of each object. The pages are numbered through all of them, in this order.
    pub objects: Vec<Pointer>,
    /// The port on which servers listen. If no other socket here uses it, requests that a switch delivers to this host
    /// are answered.
    pub port: u16,
    /// The maximum duration of a call.
    pub deadline: Duration,
    /// The time without an answer after which a datagram is sent again.
    pub retry: Duration,
}

impl LeasedOptions {
    /// For objects: port 5000, 10 s, and 20 ms until a datagram is sent again.
    pub fn new(prefix: HostPrefix, objects: &[Pointer]) -> LeasedOptions {
        let retry = Duration::from_millis(20);
        LeasedOptions { prefix, objects: objects.to_vec(), port: PORT, deadline: DEADLINE.time(), retry }
    }
}

/// The bytes of a page that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes<'a> {
    /// These bytes.
    New(&'a [u8]),
    /// The local bytes: the page has not changed since they were put or committed, or it was held already.
    Same,
}

/// Receives what happens to pages outside calls.
///
/// One thread makes these calls, one after the other, while other threads may be inside a call of [`LeasedPages`]: an
/// event must never wait for one of those.
pub trait Events: Send + Sync {
    /// The copy of this page must not be used any more: no thread here may use it after this returns.
    fn invalidate(&self, page: u64);

    /// Another client wants this page: commit it with release, or release it, soon. It is not renewed any more.
    fn recalled(&self, page: u64);

    /// The lease or the copy of this page has ended: no thread here may use it after this returns. After the end of a
    /// lease, commit the changes, which succeeds if nobody else was granted the page since, or release the page.
    fn lost(&self, page: u64);

    /// Whether the copy of this page was used since the last query. An unused copy ends with its term, and is then
    /// reported as lost; return true if this is not known. Called once per term.
    fn is_used(&self, _page: u64) -> bool {
        true
    }
}

/// See the module.
pub struct LeasedPages {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// An object, and where its pages are among those of all objects.
#[derive(Clone, Copy, Debug)]
struct Placed {
    /// Its first byte.
    pointer: Pointer,
    bytes: u64,
    first_page: u64,
}

impl Placed {
    /// The page that contains this byte, if it is one of the object.
    fn page(&self, pointer: Pointer) -> Option<u64> {
        let place = pointer.page().checked_sub(self.pointer.page())?;
        let is_here = pointer.home() == self.pointer.home() && place < self.bytes.div_ceil(PAGE_BYTES);
        is_here.then(|| self.first_page + place)
    }
}

/// The state that the threads share.
struct Shared {
    options: LeasedOptions,
    endpoint: Endpoint,
    /// In the order of their pages.
    objects: Vec<Placed>,
    began: Instant,
    state: Mutex<State>,
    /// Signalled when something may have happened for which a caller, or the thread that calls events, waits.
    changed: Condvar,
    events: Arc<dyn Events>,
}

impl LeasedPages {
    /// Asks the servers for the objects, and opens a socket.
    ///
    /// # Errors
    ///
    /// No answer; no such object; the system provides no socket or thread. [`RemoteError::host`] says of whom.
    pub fn open(options: LeasedOptions, events: Arc<dyn Events>) -> Result<LeasedPages, RemoteError> {
        let asks =
            ClientOptions { port: options.port, deadline: options.deadline, ..ClientOptions::new(options.prefix) };
        let mut client = Client::open(asks)?;
        let (mut objects, mut first_page) = (Vec::<Placed>::new(), 0);
        for &object in &options.objects {
            let (pointer, bytes) = client.inquire(object)?;
            if objects.iter().any(|placed| placed.pointer == pointer) {
                return Err(RemoteError::Setting(format!("the object {pointer} is named twice; name each once")));
            }
            objects.push(Placed { pointer, bytes, first_page });
            first_page += bytes.div_ceil(PAGE_BYTES);
        }
        if objects.is_empty() {
            return Err(RemoteError::Setting("there are no objects to hold pages of; name one".to_owned()));
        }
        let socket = |port: u16| Endpoint::open(port).map_err(|error| RemoteError::Socket { port, error });
        let endpoint = socket(options.port).or_else(|_| socket(0))?;
        let state = State::new(&options, &objects, random_number()?, random_number()?);
        let shared = Arc::new(Shared {
            options,
            endpoint,
            objects,
            began: Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            events,
        });
        let mut leased = LeasedPages { shared, threads: Vec::new() };
        for (name, body) in [("trellis-lease", Shared::hear as fn(&Shared)), ("trellis-event", Shared::call_events)] {
            let shared = Arc::clone(&leased.shared);
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || body(&shared));
            leased.threads.push(thread.map_err(|error| {
                RemoteError::Setting(format!("the system starts no thread ({error}); look at `ulimit -u`"))
            })?);
        }
        Ok(leased)
    }

    /// The number of the objects' pages; the last one of an object may be shorter than a page.
    pub fn pages(&self) -> u64 {
        self.shared.objects.iter().map(|placed| placed.bytes.div_ceil(PAGE_BYTES)).sum()
    }

    /// Takes copies; each is put as soon as it arrives, in any order. With `keeps`, the bytes that were last put or
    /// committed are still here, and [`Bytes::Same`] says that they are current.
    ///
    /// # Errors
    ///
    /// No answer, or another client held the page all the time; the server refused. Pages that were put are held
    /// nevertheless.
    pub fn copy(&self, pages: &[u64], keeps: bool, put: &mut dyn FnMut(u64, Bytes<'_>)) -> Result<(), RemoteError> {
        self.shared.have(Kind::Copy, pages, if keeps { Keeps::Known } else { Keeps::Nothing }, put)
    }

    /// Takes leases; each page is put as soon as it is granted, in any order, and may be changed from then on. `keeps` is
    /// as with [`Self::copy`]. A local copy is invalidated first.
    ///
    /// # Errors
    ///
    /// As [`Self::copy`].
    pub fn update(&self, pages: &[u64], keeps: bool, put: &mut dyn FnMut(u64, Bytes<'_>)) -> Result<(), RemoteError> {
        self.shared.have(Kind::Update, pages, if keeps { Keeps::Known } else { Keeps::Nothing }, put)
    }

    /// Commits these bytes as the pages' content; with `release` the leases are returned. Returns the pages for which
    /// this failed: their leases had ended, and somebody else had the page since, or may have had it.
    ///
    /// # Errors
    ///
    /// No answer: it is then unknown whether it was done, and the leases are given up.
    ///
    /// # Panics
    ///
    /// When the number of bytes differs from the page's.
    pub fn commit(&self, pages: &[(u64, &[u8])], release: bool) -> Result<Vec<u64>, RemoteError> {
        self.shared.commit(pages, release)
    }

    /// Returns leases; uncommitted changes are dropped.
    pub fn release(&self, pages: &[u64]) {
        let mut state = self.shared.lock();
        let now = self.shared.now();
        pages.iter().for_each(|page| state.release(&self.shared, now, *page));
    }

    /// Reports to the server that these copies are not used here any more, so that no client has to wait for their end.
    pub fn drop_copies(&self, pages: &[u64]) {
        let mut state = self.shared.lock();
        pages.iter().for_each(|page| self.shared.drop_copy(&mut state, *page));
    }
}

impl Drop for LeasedPages {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.close(&self.shared, self.shared.now());
        }
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it.
            // Ends when the thread has handled its event; it looks at least once a second.
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

    /// The object of a page.
    fn placed(&self, page: u64) -> &Placed {
        &self.objects[self.objects.partition_point(|placed| placed.first_page <= page) - 1]
    }

    fn page_bytes(&self, page: u64) -> usize {
        let placed = self.placed(page);
        (placed.bytes - (page - placed.first_page) * PAGE_BYTES).min(PAGE_BYTES) as usize
    }

    /// The page that contains this byte, if it is one of the objects, and the object.
    fn page(&self, pointer: Pointer) -> Option<(u64, &Placed)> {
        self.objects.iter().find_map(|placed| Some((placed.page(pointer)?, placed)))
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

    /// Begins an operation for each of these pages, and waits until all have ended; returns the pages whose lease had
    /// ended.
    fn all(
        &self,
        kind: Kind,
        pages: &[u64],
        began: Instant,
        begin: impl Fn(&mut State, u64, u64),
        put: &mut dyn FnMut(u64, Bytes<'_>),
    ) -> Result<Vec<u64>, RemoteError> {
        let count: u64 = self.objects.iter().map(|placed| placed.bytes.div_ceil(PAGE_BYTES)).sum();
        if let Some(page) = pages.iter().find(|page| **page >= count) {
            return Err(RemoteError::Setting(format!("there is no page {page}: the objects have {count} pages")));
        }
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
                    End::Put(came) => {
                        drop(state);
                        put(page, came.as_ref().map_or(Bytes::Same, |came| Bytes::New(came.bytes())));
                        state = self.lock();
                        state.was_put(page, came);
                    }
                    End::Done => state.was_put(page, None),
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
                let late = about.map(|page| self.late(kind, page, state.timeout(page), began.elapsed()));
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

    /// The error that a caller gets at its deadline.
    fn late(&self, kind: Kind, page: u64, heard: (u32, Option<InterimAnswer>), waited: Duration) -> RemoteError {
        match heard {
            // The last answer may be about one commit although the home has made another one.
            (sent, _) if matches!(kind, Kind::Commit { .. }) => {
                NoAnswer { to: self.pointer(page).encode().0, sent, waited, error: None }.into()
            }
            (sent, Some((status, moved_to))) if status.is_of_no_home() => {
                let (command, pointer) = (kind.command(), self.pointer(page));
                RemoteError::Unserved { command, pointer, status, moved_to, sent, waited }
            }
            (_, Some((status, _))) => self.refused(kind, page, status),
            (sent, None) => NoAnswer { to: self.pointer(page).encode().0, sent, waited, error: None }.into(),
        }
    }

    fn pointer(&self, page: u64) -> Pointer {
        let placed = self.placed(page);
        placed.pointer.plus((page - placed.first_page) * PAGE_BYTES).expect("it is inside of the object")
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
