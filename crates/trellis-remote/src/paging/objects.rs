//! The objects in which a region lies: each at a memory server, one after the other in the region.
//!
//! Promises: a page is requested from its object's server; an error names the server and the part of the region that
//! lies there. It must never change the place of a page while a cluster runs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use trellis_fabric_protocol::wire::address::{HostPrefix, PAGE_BYTES, Pointer};

use super::{Pages, Paging};
use crate::leased::{Bytes, LeasedOptions, LeasedPages};
use crate::{Client, ClientOptions, RemoteError};

/// The time without an answer after which a datagram is sent again: a server that many nodes ask at once is slow before
/// it is gone.
const RETRY: Duration = Duration::from_millis(50);

/// The number of a region's pages at each of this many servers; the last one may have fewer.
pub fn pages_of_each(pages: u64, servers: usize) -> u64 {
    pages.div_ceil(servers.max(1) as u64)
}

/// Creates a region's objects, all zero: one at each server.
///
/// # Errors
///
/// A message: a server has no room, or does not answer.
pub fn create(
    servers: &[HostPrefix],
    prefix: HostPrefix,
    pages: u64,
    deadline: Duration,
) -> Result<Vec<Pointer>, String> {
    let mut client = client(prefix, deadline)?;
    let each = pages_of_each(pages, servers.len());
    let mut objects: Vec<Pointer> = Vec::with_capacity(servers.len());
    for (number, server) in servers.iter().enumerate() {
        let first = number as u64 * each;
        let count = each.min(pages.saturating_sub(first)).max(1);
        match client.create(server.host, count * PAGE_BYTES) {
            Ok(object) => objects.push(object),
            Err(error) => {
                for object in objects {
                    // An object that cannot be deleted is the lesser problem.
                    let _ = client.delete(object);
                }
                return Err(sentence(*server, first, first + count, &error));
            }
        }
    }
    Ok(objects)
}

/// Deletes a region's objects.
///
/// # Errors
///
/// A message: what remains, and where.
pub fn delete(objects: &[Pointer], prefix: HostPrefix, deadline: Duration) -> Result<(), String> {
    let mut client = client(prefix, deadline)?;
    objects.iter().try_for_each(|object| {
        client.delete(*object).map_err(|error| {
            format!("the region's memory {object} stays at its server, until that is started again: {error}")
        })
    })
}

fn client(prefix: HostPrefix, deadline: Duration) -> Result<Client, String> {
    let options = ClientOptions { deadline, ..ClientOptions::new(prefix) };
    Client::open(options).map_err(|error| error.to_string())
}

fn sentence(server: HostPrefix, first: u64, end: u64, error: &RemoteError) -> String {
    format!(
        "pages {first} to {} of the region cannot be had at memory server {server}: {error}; look whether `trellis serve` runs \
         there and the network takes {server} to it",
        end - 1
    )
}

/// A region's objects, for the pages of this process.
pub struct Objects {
    parts: Vec<ObjectSpan>,
    leased: Mutex<Option<Arc<LeasedPages>>>,
}

struct ObjectSpan {
    server: HostPrefix,
    /// Its first page in the region.
    first: u64,
    end: u64,
}

impl Objects {
    /// Opens all objects; their events go to `paging`.
    ///
    /// # Errors
    ///
    /// A message: a server does not answer.
    pub fn open(
        objects: &[Pointer],
        prefix: HostPrefix,
        pages: u64,
        deadline: Duration,
        paging: &Arc<Paging>,
    ) -> Result<Objects, String> {
        let each = pages_of_each(pages, objects.len());
        let part = |(number, object): (usize, &Pointer)| {
            let first = (number as u64 * each).min(pages);
            let server = HostPrefix { cluster: object.cluster(), host: object.home() };
            ObjectSpan { server, first, end: (first + each).min(pages) }
        };
        let mut opened = Objects { parts: objects.iter().enumerate().map(part).collect(), leased: Mutex::new(None) };
        let options = LeasedOptions { deadline, retry: RETRY, ..LeasedOptions::new(prefix, objects) };
        let leased = LeasedPages::open(options, Arc::new(Arc::downgrade(paging))).map_err(|error| {
            let part = opened.parts.iter().find(|part| Some(part.server.host) == error.host());
            part.map_or_else(|| error.to_string(), |part| part.sentence(&error))
        })?;
        opened.leased = Mutex::new(Some(Arc::new(leased)));
        Ok(opened)
    }

    /// Groups pages by object.
    fn each<'a>(&'a self, pages: &'a [u64]) -> impl Iterator<Item = (&'a ObjectSpan, Vec<u64>)> {
        let within = move |part: &'a ObjectSpan| {
            let own = pages.iter().filter(|page| (part.first..part.end).contains(page));
            (part, own.copied().collect::<Vec<u64>>())
        };
        self.parts.iter().map(within).filter(|(_, own)| !own.is_empty())
    }

    fn with<T>(
        &self,
        part: &ObjectSpan,
        work: impl FnOnce(&LeasedPages) -> Result<T, RemoteError>,
    ) -> Result<T, String> {
        let leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let leased = leased.ok_or_else(|| format!("memory server {} is not asked any more", part.server))?;
        work(&leased).map_err(|error| part.sentence(&error))
    }
}

impl ObjectSpan {
    fn sentence(&self, error: &RemoteError) -> String {
        sentence(self.server, self.first, self.end, error)
    }
}

impl Pages for Objects {
    fn copy(&self, pages: &[u64], put: &mut dyn FnMut(u64, &[u8])) -> Result<(), String> {
        self.each(pages).try_for_each(|(part, own)| {
            self.with(part, |leased| {
                leased.copy(&own, false, &mut |page, bytes| {
                    if let Bytes::New(bytes) = bytes {
                        put(page, bytes);
                    }
                })
            })
        })
    }

    fn update(&self, pages: &[u64], keeps: bool, granted: &mut dyn FnMut(u64, Option<&[u8]>)) -> Result<(), String> {
        self.each(pages).try_for_each(|(part, own)| {
            self.with(part, |leased| {
                leased.update(&own, keeps, &mut |page, bytes| match bytes {
                    Bytes::New(bytes) => granted(page, Some(bytes)),
                    Bytes::Same => granted(page, None),
                })
            })
        })
    }

    fn commit(&self, pages: &[(u64, &[u8])]) -> Result<Vec<u64>, String> {
        let mut late = Vec::new();
        for part in &self.parts {
            let own = pages.iter().filter(|(page, _)| (part.first..part.end).contains(page));
            let own: Vec<(u64, &[u8])> = own.copied().collect();
            if !own.is_empty() {
                late.extend(self.with(part, |leased| leased.commit(&own, true))?);
            }
        }
        Ok(late)
    }

    fn server_of(&self, page: u64) -> String {
        let part = self.parts.iter().find(|part| (part.first..part.end).contains(&page));
        part.map_or_else(String::new, |part| format!("memory server {}", part.server))
    }

    fn drop_copies(&self, pages: &[u64]) {
        // Servers that are no longer asked hold nothing for this process either.
        let leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner).clone();
        leased.iter().for_each(|leased| leased.drop_copies(pages));
    }

    fn close(&self) {
        let leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(leased);
    }
}
