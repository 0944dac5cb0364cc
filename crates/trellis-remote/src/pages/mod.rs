//! Pages of one process at memory servers.
//!
//! A page is named by a space and a number. It lies in an object that is created when one of its pages is first
//! written, and deleted when all of its pages are empty. The object follows from the number (`placement`); for each
//! object, a process only has to remember one pointer and two bits a page.
//!
//! Promises: a page that was never written is not requested. A write is complete when the call returns, and visible to
//! later reads. Several servers are accessed at once. Any number of threads may call, and each sends and receives by
//! itself. An operation that needs pages as a whole ([`Alone`]) excludes all others meanwhile.
//!
//! Objects end with the process: servers delete those that the process did not delete, when they no longer hear from
//! it.
//!
//! It must never be shared by processes: only this process knows what an object holds.

mod clients;
mod heartbeats;
mod joining;
mod object;
mod placement;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use trellis_fabric_protocol::wire::address::{Address, Destination};
use trellis_fabric_protocol::wire::datagram::Status;

use super::{ClientOptions, Host, Pointer, RemoteError};
use clients::Clients;
use heartbeats::Heartbeats;
use joining::At;
use object::Object;
use placement::{Place, Placement, RUN_PAGES};

/// The size of a page.
pub const PAGE_BYTES: usize = 4096;
/// The size of an object is a multiple of this.
pub const OBJECT_BYTES_UNIT: u64 = RUN_PAGES * PAGE_BYTES as u64;

/// A page: its space, and its number there.
pub type PageName = (u32, u64);

/// The client's options, and the place of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagesOptions {
    /// How requests are sent.
    pub client: ClientOptions,
    /// The servers; with [`Host::ANYWHERE`] alone, the switch chooses one for each object.
    pub homes: Vec<Host>,
    /// The size of an object, a multiple of [`OBJECT_BYTES_UNIT`].
    pub object_bytes: u64,
}

/// A change of some bytes of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageChange<'a> {
    /// The page.
    pub page: PageName,
    /// The offset in the page.
    pub offset: usize,
    /// The new bytes.
    pub bytes: &'a [u8],
}

/// A failure, and the pages that are unavailable because of it.
#[derive(Debug)]
pub struct PagesError {
    /// The server's answer, or that there was none.
    pub error: RemoteError,
    /// The first and the last of the requested pages at the server that failed.
    pub pages: Option<(PageName, PageName)>,
    /// How many pages that server holds.
    pub kept: u64,
}

impl fmt::Display for PagesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        f.write_str(match &self.error {
            RemoteError::Refused { status: Status::Stale | Status::Bounds, .. } => {
                "; the server was restarted, or did not hear of this process for too long, and what it kept is gone"
            }
            RemoteError::Refused { status: Status::NoMemory | Status::Quota, .. } => {
                "; name more servers, or make objects smaller with `object=` in the store's address"
            }
            _ => "",
        })
    }
}

/// See the top of this file.
pub struct Pages {
    clients: Clients,
    heartbeats: Heartbeats,
    placement: Placement,
    /// Whether a datagram can hold more than a page.
    joins: bool,
    objects: RwLock<HashMap<(u32, u64), Arc<Object>>>,
    /// Held by the thread that creates an object.
    making: Mutex<()>,
    /// Held for reading by calls that may run concurrently.
    passage: RwLock<()>,
}

/// Exclusive access: no other thread reads, writes or discards a page.
pub struct Alone<'a> {
    pages: &'a Pages,
    _passage: RwLockWriteGuard<'a, ()>,
}

impl Pages {
    /// Checks that every named server answers.
    ///
    /// # Errors
    ///
    /// That of a server that does not answer.
    pub fn open(options: PagesOptions) -> Result<Pages, RemoteError> {
        let PagesOptions { client, homes, object_bytes } = options;
        let clients = Clients::new(client);
        for &home in homes.iter().filter(|home| home.is_one()) {
            clients.with(|client| client.hello(home))?;
        }
        Ok(Pages {
            clients,
            heartbeats: Heartbeats::start(client)?,
            placement: Placement::new(homes, object_bytes),
            joins: client.piece_bytes as usize > PAGE_BYTES,
            objects: RwLock::default(),
            making: Mutex::default(),
            passage: RwLock::default(),
        })
    }

    /// The bytes of pages, in the order of their names; `None` for an empty one.
    ///
    /// # Errors
    ///
    /// A server's.
    pub fn read(&self, names: &[PageName]) -> Result<Vec<Option<Vec<u8>>>, PagesError> {
        let _passage = self.beside_others();
        self.read_now(names)
    }

    /// Writes parts of pages, which must be ascending and not overlap. False, with nothing done, if that requires
    /// exclusive access.
    ///
    /// # Errors
    ///
    /// A server's; some parts may have been written then.
    pub fn write(&self, parts: &[PageChange<'_>]) -> Result<bool, PagesError> {
        let _passage = self.beside_others();
        let is_ascending = parts.is_sorted_by(|before, after| {
            before.page < after.page || before.page == after.page && before.offset + before.bytes.len() <= after.offset
        });
        if !is_ascending || !parts.iter().all(|part| self.takes(part)) {
            return Ok(false);
        }
        self.write_now(parts)?;
        Ok(true)
    }

    /// Waits for exclusive access.
    pub fn alone(&self) -> Alone<'_> {
        Alone { pages: self, _passage: self.passage.write().unwrap_or_else(PoisonError::into_inner) }
    }

    /// The non-empty pages of a space, ascending, from `from` on, at most `count`.
    pub fn stored(&self, space: u32, from: u64, count: usize) -> Vec<u64> {
        let mut pages = Vec::new();
        for (&(of, number), object) in self.objects().iter().filter(|((of, _), _)| *of == space) {
            debug_assert_eq!(of, space);
            let at = |page| self.placement.at(Place { object: number, page });
            pages.extend(object.stored().map(at).filter(|&page| page >= from));
        }
        pages.sort_unstable();
        pages.truncate(count);
        pages
    }

    fn beside_others(&self) -> RwLockReadGuard<'_, ()> {
        self.passage.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn objects(&self) -> RwLockReadGuard<'_, HashMap<(u32, u64), Arc<Object>>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn object(&self, space: u32, number: u64) -> Option<Arc<Object>> {
        self.objects().get(&(space, number)).cloned()
    }

    /// Whether a part may be written without reading the page.
    fn takes(&self, part: &PageChange<'_>) -> bool {
        let Place { object, page } = self.placement.of(part.page.1);
        let is_whole = part.bytes.len() == PAGE_BYTES;
        is_whole || self.object(part.page.0, object).is_none_or(|object| object.takes_part(page))
    }

    fn read_now(&self, names: &[PageName]) -> Result<Vec<Option<Vec<u8>>>, PagesError> {
        let places = self.stored_places(names);
        let known: Vec<At> = places.iter().flatten().copied().collect();
        if known.is_empty() {
            return Ok(vec![None; names.len()]);
        }
        let read = if self.joins { self.read_runs(&known) } else { self.read_pages(&known) };
        let mut pages = read.map_err(|error| self.failed(error, names))?.into_iter();
        Ok(places.into_iter().map(|place| place.and_then(|_| pages.next())).collect())
    }

    /// The places of the non-empty pages.
    fn stored_places(&self, names: &[PageName]) -> Vec<Option<At>> {
        let objects = self.objects();
        let place = |&(space, page): &PageName| {
            let place = self.placement.of(page);
            let object = objects.get(&(space, place.object)).filter(|object| object.is_stored(place.page))?;
            Some(((space, place.object), pointer_at(object, place.page, 0)))
        };
        names.iter().map(place).collect()
    }

    /// Reads each page by itself, directly to its destination.
    fn read_pages(&self, places: &[At]) -> Result<Vec<Vec<u8>>, RemoteError> {
        let mut pages = vec![vec![0; PAGE_BYTES]; places.len()];
        self.clients.with(|client| {
            let ranges = places.iter().zip(&mut pages).map(|((_, pointer), page)| (*pointer, &mut page[..]));
            client.read_many(&mut ranges.collect::<Vec<_>>())
        })?;
        Ok(pages)
    }

    /// Reads adjacent pages together.
    fn read_runs(&self, places: &[At]) -> Result<Vec<Vec<u8>>, RemoteError> {
        let runs = joining::runs(places);
        let mut bytes = vec![0; places.len() * PAGE_BYTES];
        self.clients.with(|client| {
            let (mut ranges, mut rest, mut first) = (Vec::with_capacity(runs.len()), &mut bytes[..], 0);
            for &pages in &runs {
                let (run, behind) = rest.split_at_mut(pages * PAGE_BYTES);
                ranges.push((places[first].1, run));
                (rest, first) = (behind, first + pages);
            }
            client.read_many(&mut ranges)
        })?;
        Ok(bytes.chunks_exact(PAGE_BYTES).map(<[u8]>::to_vec).collect())
    }

    fn write_now(&self, parts: &[PageChange<'_>]) -> Result<(), PagesError> {
        let names = || parts.iter().map(|part| part.page).collect::<Vec<_>>();
        let mut places = Vec::with_capacity(parts.len());
        for part in parts {
            let place = self.placement.of(part.page.1);
            let object = match self.object(part.page.0, place.object) {
                Some(object) => object,
                None => self.make(part.page.0, place.object).map_err(|error| self.failed(error, &names()))?,
            };
            object.begin(place.page);
            places.push((object, place.page));
        }
        let at = |(object, page): &(Arc<Object>, u64), part: &PageChange<'_>| pointer_at(object, *page, part.offset);
        // May be repeated: no other thread writes there meanwhile, so it writes the same bytes to the same place.
        let written = if self.joins {
            let number = |part: &PageChange<'_>| (part.page.0, self.placement.of(part.page.1).object);
            let parts: Vec<(At, &[u8])> =
                places.iter().zip(parts).map(|(place, part)| ((number(part), at(place, part)), part.bytes)).collect();
            let joined = joining::joined(&parts);
            let ranges: Vec<(Pointer, &[u8])> = joined.iter().map(|(pointer, bytes)| (*pointer, &**bytes)).collect();
            self.clients.with(|client| client.write_many(&ranges))
        } else {
            let ranges: Vec<(Pointer, &[u8])> =
                places.iter().zip(parts).map(|(place, part)| (at(place, part), part.bytes)).collect();
            self.clients.with(|client| client.write_many(&ranges))
        };
        written.map_err(|error| self.failed(error, &names()))?;
        places.iter().for_each(|(object, page)| object.keep(*page));
        Ok(())
    }

    /// Creates an object, at its intended server or at another one that has room.
    fn make(&self, space: u32, number: u64) -> Result<Arc<Object>, RemoteError> {
        let _one = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(object) = self.object(space, number) {
            return Ok(object);
        }
        let pages = self.placement.object_pages();
        let mut full = None;
        for home in self.placement.homes_of(number) {
            match self.heartbeats.create(home, pages * PAGE_BYTES as u64) {
                Ok(pointer) => {
                    let object = Arc::new(Object::new(pointer, pages));
                    let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
                    objects.insert((space, number), Arc::clone(&object));
                    return Ok(object);
                }
                Err(error @ RemoteError::Refused { status: Status::NoMemory | Status::Quota, .. }) => {
                    full = full.or(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(full.unwrap_or_else(|| RemoteError::Setting("there is no memory server".to_owned())))
    }

    /// The error with the unavailable ones among these pages, and the number of further pages at the same server.
    fn failed(&self, error: RemoteError, names: &[PageName]) -> PagesError {
        let home = match &error {
            RemoteError::NoAnswer(silent) => Destination::decode(Address(silent.to)).ok().map(|to| to.pointer.home()),
            RemoteError::Refused { pointer, .. } => Some(pointer.home()),
            _ => None,
        };
        let objects = self.objects();
        let is_there = |object: &&Arc<Object>| Some(object.pointer.home()) == home;
        let of = |name: &&PageName| objects.get(&(name.0, self.placement.of(name.1).object)).filter(is_there).is_some();
        let affected = || names.iter().filter(of);
        let pages = affected().min().zip(affected().max()).map(|(first, last)| (*first, *last));
        let kept = objects.values().filter(is_there).map(|object| object.count()).sum();
        drop(objects);
        PagesError { error, pages, kept }
    }
}

impl Alone<'_> {
    /// As [`Pages::read`].
    ///
    /// # Errors
    ///
    /// A server's.
    pub fn read(&self, names: &[PageName]) -> Result<Vec<Option<Vec<u8>>>, PagesError> {
        self.pages.read_now(names)
    }

    /// Writes whole pages.
    ///
    /// # Errors
    ///
    /// A server's; some pages may have been written then.
    pub fn write(&self, pages: &[(PageName, &[u8; PAGE_BYTES])]) -> Result<(), PagesError> {
        let parts: Vec<PageChange<'_>> =
            pages.iter().map(|(page, bytes)| PageChange { page: *page, offset: 0, bytes: *bytes }).collect();
        self.pages.write_now(&parts)
    }

    /// Makes these pages empty; an object whose pages are all empty is deleted.
    ///
    /// # Errors
    ///
    /// That of a server that does not answer. The pages are empty nevertheless.
    pub fn give_up(&self, names: &[PageName]) -> Result<(), PagesError> {
        let mut emptied = Vec::new();
        for &(space, page) in names {
            let place = self.pages.placement.of(page);
            let Some(object) = self.pages.object(space, place.object) else { continue };
            object.give_up(place.page);
            if object.count() == 0 {
                let mut objects = self.pages.objects.write().unwrap_or_else(PoisonError::into_inner);
                objects.remove(&(space, place.object));
                drop(objects);
                emptied.push(object.pointer);
            }
        }
        for pointer in emptied {
            match self.pages.clients.with(|client| client.delete(pointer)) {
                // It no longer exists, whichever request deleted it.
                Ok(()) | Err(RemoteError::Refused { status: Status::Stale, .. }) => {}
                Err(error) => return Err(self.pages.failed(error, names)),
            }
        }
        Ok(())
    }
}

fn pointer_at(object: &Object, page: u64, offset: usize) -> Pointer {
    let at = page * PAGE_BYTES as u64 + offset as u64;
    object.pointer.plus(at).expect("an object is inside of its server's memory")
}
