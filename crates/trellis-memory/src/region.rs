//! A region: one memfd with an application view, in which accesses are caught, and a privileged view, which is always
//! accessible.
//!
//! Promises: [`Region::create`] refuses with a message a region that does not fit or cannot be mapped at its address.
//! Changes of access allocate nothing and take no lock, so they may be made while a fault is served. The runtime must
//! never touch the application view itself, and this file never does.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::catch::{self, Catch, Catcher, Refusal, Span};
use crate::error::{MapError, RegionError};
use crate::places::{Piece, Places};
use crate::reserve::Reserve;
use crate::sys::linux::calls::{self, Watching};
use crate::sys::linux::memfd::{Memfd, View, ViewError};
use crate::sys::linux::private::Private;
use crate::sys::linux::uffd::Message;
use crate::sys::linux::watches::{self, Slots, Watched};
use crate::sys::linux::{kernel_page_bytes, limits, signals};

/// The minimum size of a region in bytes.
pub const REGION_BYTES_MIN: usize = 64 << 10;
/// The maximum size of a region in bytes.
pub const REGION_BYTES_MAX: usize = 1 << 40;
/// The minimum size of a page in bytes.
pub const PAGE_BYTES_MIN: usize = 4 << 10;
/// The maximum size of a page in bytes.
pub const PAGE_BYTES_MAX: usize = 2 << 20;
/// The maximum number of faults that [`Region::take_faults`] takes at once.
pub const FAULT_BATCH: usize = 64;

/// What the application may do with a page of its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Nothing: each access is a fault.
    None,
    /// Read; a write is a fault.
    Read,
    /// Read and write.
    Write,
}

/// How a store to a page that allows loads is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Detection {
    /// Each store is a fault.
    Faults,
    /// The kernel records the store and lets it pass; see [`Region::stored_to`].
    Marks,
}

/// An access that was not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// The page, counted from the start of the region in units of its page size.
    pub page: usize,
    /// The byte of the page that was touched.
    pub offset: usize,
    /// Whether the access was a write.
    pub write: bool,
}

/// Serves faults, for catchers that serve them in the faulting thread.
pub trait FaultServer: Send + Sync {
    /// Returns when the access may be retried; a page that is still not accessible faults again.
    ///
    /// It is called inside a signal handler, on the stack of the code that faulted, by any number of threads at once.
    /// The interrupted code can hold any lock of the application, the allocator's included, so this must neither
    /// allocate nor take a lock that code touching a region can hold. A panic here ends the process.
    fn serve(&self, fault: Fault);

    /// The calling thread is about to touch these pages, all of them, and stores to them with `write`. This is a hint: what
    /// is missing may be requested at once. It is called under the same conditions as [`FaultServer::serve`].
    fn announce(&self, pages: Range<usize>, write: bool) {
        let _ = (pages, write);
    }
}

/// The parameters of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOptions {
    /// The address of the application view; `None` leaves it to the kernel.
    pub base_address: Option<usize>,
    /// The size: 64 KiB to 1 TiB, a multiple of `page_bytes`.
    pub bytes: usize,
    /// The size of a page: a power of two, 4 KiB to 2 MiB.
    pub page_bytes: usize,
    /// How accesses are caught.
    pub catcher: Catcher,
    /// How much memory is secured now.
    pub reserve: Reserve,
}

/// Parts of a region that are not like the rest, which lies at its base address and has the catcher that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The first pages, which are at addresses of their own: the pages of the first piece, then those of the second, and
    /// so on.
    pub pieces: Vec<Piece>,
    /// The offsets of pages whose faults are queued although the catcher is `signal`, so that system calls on them wait:
    /// the kernel uses stacks and some thread-local variables by itself. The ranges do not overlap. Without effect for
    /// other catchers.
    pub queued: Vec<Range<usize>>,
}

/// A region. It is unmapped when dropped, and must not be touched after that.
///
/// A forked child does not have the region: neither view is mapped there, and dropping the child's copy of this value
/// does nothing.
pub struct Region {
    parts: ManuallyDrop<Mappings>,
    places: Places,
    page_bytes: usize,
    bytes: usize,
    catcher: Catcher,
    /// Whether the region's calls of the C library are made whole.
    calls_are_answered: AtomicBool,
    creator: libc::pid_t,
}

/// The entries of a region that catches faults in the tables of the process.
struct Caught {
    _slots: Slots,
    _calls: Vec<Watching>,
}

/// Dropped in this order: first serving ends, then catching faults, and then the views are unmapped.
struct Mappings {
    place: Mutex<Option<Caught>>,
    catch: Box<dyn Catch>,
    application: View,
    privileged: View,
    twins: Private,
    file: Memfd,
}

impl Region {
    /// Maps a region in which no page is accessible yet. Faults are caught from [`Region::catch`] on.
    ///
    /// # Errors
    /// Each says what prevents the mapping and what to change.
    pub fn create(options: &RegionOptions) -> Result<Region, RegionError> {
        Region::create_in_parts(options, &Parts::default())
    }

    /// Maps a region like [`Region::create`], of which some parts are different. Nothing is mapped at the addresses of
    /// pieces before [`Region::occupy`].
    ///
    /// # Errors
    /// As [`Region::create`].
    ///
    /// # Panics
    /// When a part is not made of whole pages, or the region does not have so many.
    pub fn create_in_parts(options: &RegionOptions, parts: &Parts) -> Result<Region, RegionError> {
        check_options(options)?;
        let Parts { pieces, queued } = parts;
        let is_whole = |bytes: usize| bytes.is_multiple_of(options.page_bytes);
        assert!(
            pieces.iter().all(|piece| is_whole(piece.address) && is_whole(piece.bytes) && piece.bytes > 0)
                && pieces.iter().map(|piece| piece.bytes).sum::<usize>() <= options.bytes,
            "pieces are whole pages of the region: {pieces:x?}"
        );
        assert!(
            queued.iter().all(|part| is_whole(part.start) && is_whole(part.end) && part.end <= options.bytes),
            "queued pages are whole pages of the region: {queued:x?}"
        );
        check_room(options)?;
        let bytes = options.bytes;
        let file = Memfd::create(bytes).map_err(|source| RegionError::Kernel {
            operation: "memfd_create",
            source,
            next: "look at `ulimit -n` and the sysctl vm.memfd_noexec",
        })?;
        let application = map_application(&file, options)?;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let privileged = View::map(&file, bytes, None, options.page_bytes, writable)
            .map_err(|error| error_without_base(error, bytes))?;
        keep_private(&application, &privileged)?;
        if options.reserve == Reserve::Full {
            // The privileged view is populated too if the kernel supports this, so that no first touch costs anything
            // later.
            let taken = file.populate(0, bytes).and_then(|()| match privileged.populate(0, bytes) {
                Err(libc::EINVAL) => Ok(()),
                done => done,
            });
            taken.map_err(|error| RegionError::DoesNotFit {
                bytes,
                limit: not_taken(&io::Error::from_raw_os_error(error)),
            })?;
        }
        let places = Places::new(application.base(), bytes, options.page_bytes, pieces);
        let pages = |part: &Range<usize>| part.start / options.page_bytes..part.end / options.page_bytes;
        let queued: Vec<Range<usize>> = queued.iter().map(pages).collect();
        let catch = catch::prepare(options.catcher, places.clone(), &queued, options.page_bytes, &file)
            .map_err(|why| RegionError::Catcher { catcher: options.catcher, why })?;
        Ok(Region {
            parts: ManuallyDrop::new(Mappings {
                place: Mutex::new(None),
                catch,
                application,
                privileged,
                twins: Private::new(bytes),
                file,
            }),
            places,
            page_bytes: options.page_bytes,
            bytes,
            catcher: options.catcher,
            calls_are_answered: AtomicBool::new(false),
            // SAFETY: getpid has no conditions.
            creator: unsafe { libc::getpid() },
        })
    }

    /// Starts to catch faults. `server` serves them; with the catcher `handler` it is not called, and the faults are
    /// taken with [`Region::take_faults`] instead.
    ///
    /// This takes over the handler of SIGSEGV, and of SIGBUS if the catcher needs it. The handlers that the application
    /// installed before receive every fault outside the regions; see [`crate::claim_signal`] for handlers installed
    /// later.
    ///
    /// # Errors
    /// The maximum number of regions that catch faults is reached, or this region catches already.
    pub fn catch(&self, server: Arc<dyn FaultServer>) -> Result<(), RegionError> {
        let mut place = self.parts.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() {
            return Err(RegionError::AlreadyCatching);
        }
        let signal = self.parts.catch.signal();
        let mut descriptors = [Some(self.parts.file.number()); watches::DESCRIPTORS];
        descriptors[1..].copy_from_slice(&self.parts.catch.descriptors());
        let ranges = self.ranges();
        let watched = |(first_page, span): (usize, Span)| Watched {
            base: span.start,
            bytes: span.bytes,
            page_bytes: self.page_bytes,
            first_page,
            server: signal.map(|_| Arc::clone(&server)),
            descriptors,
        };
        let slots = watches::take(ranges.iter().map(|range| watched(*range)).collect());
        let slots = slots.ok_or(RegionError::TooManyRegions { max: signals::REGIONS_MAX })?;
        let refused = |source| RegionError::Kernel {
            operation: "sigaction",
            source,
            next: "a sandbox may forbid it; `trellis doctor` says what this process may do",
        };
        if let Some(signal) = signal {
            signals::take_over(signal, true).map_err(refused)?;
        }
        // This is for any catcher: a forked child that touches the region gets SIGSEGV and a message.
        signals::take_over(libc::SIGSEGV, signal == Some(libc::SIGSEGV)).map_err(refused)?;
        let watch = |(_, span): &(usize, Span)| signal.and_then(|_| calls::watch(span.start, span.bytes));
        let calls: Vec<Watching> = ranges.iter().filter_map(watch).collect();
        self.calls_are_answered.store(calls.len() == ranges.len(), Ordering::SeqCst);
        *place = Some(Caught { _slots: slots, _calls: calls });
        Ok(())
    }

    /// Maps the pieces at their addresses, except vacant ones, and replaces what is mapped there. From now on their pages
    /// are *none*, like all pages that no node has used.
    ///
    /// # Errors
    /// The kernel refused; what was mapped there may be gone.
    ///
    /// # Safety
    /// The caller owns what is mapped there now, and nothing uses it meanwhile. The pieces stay mapped after the region
    /// is dropped.
    pub unsafe fn occupy(&self) -> Result<(), MapError> {
        let pieces = self.places.pieces().filter(|(_, piece)| !piece.is_vacant);
        pieces.into_iter().try_for_each(|(first, piece)| {
            // SAFETY: the caller's promise.
            unsafe { self.map_at(first, Span { start: piece.address, bytes: piece.bytes }) }
        })
    }

    /// Does the same for some pages of a vacant piece, which are no longer vacant then.
    ///
    /// # Errors
    /// The same.
    ///
    /// # Panics
    /// When the addresses are not those of whole pages of the region.
    ///
    /// # Safety
    /// The same. No other node has used these pages of the region.
    pub unsafe fn occupy_part(&self, addresses: Range<usize>) -> Result<(), MapError> {
        let (first, count) = (self.places.page_of(addresses.start), addresses.len() / self.page_bytes);
        self.check(first, count);
        assert!(
            addresses.start.is_multiple_of(self.page_bytes) && addresses.len().is_multiple_of(self.page_bytes),
            "pages are occupied as a whole: {addresses:x?}"
        );
        // SAFETY: the caller's promise.
        unsafe { self.map_at(first, Span { start: addresses.start, bytes: addresses.len() })? };
        self.places.occupied(first, first + count);
        Ok(())
    }

    /// Maps pages of the region at an address, and catches faults there.
    ///
    /// # Safety
    /// As [`Region::occupy`].
    unsafe fn map_at(&self, first: usize, span: Span) -> Result<(), MapError> {
        let count = span.bytes / self.page_bytes;
        let protection = catch::first_protection(self.catcher);
        // SAFETY: the caller's promise.
        let mapped = unsafe { self.parts.file.map_over(first * self.page_bytes, span.start, span.bytes, protection) };
        mapped.map_err(|errno| MapError::Kernel { operation: "mmap", page: first, count, errno })?;
        self.parts.catch.watch(span).map_err(|refusal| map_error(refusal, first, count))
    }

    /// The ranges of addresses in which faults are caught, each with its first page.
    fn ranges(&self) -> Vec<(usize, Span)> {
        let pieces =
            self.places.pieces().map(|(first, piece)| (first, Span { start: piece.address, bytes: piece.bytes }));
        pieces.chain([(0, self.places.whole())]).collect()
    }

    /// Stops catching and drops the server, for a server that itself holds the region. A page that is not accessible
    /// must not be touched after that.
    pub fn release(&self) {
        *self.parts.place.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The first address of the application view.
    pub fn base(&self) -> *mut u8 {
        self.parts.application.base() as *mut u8
    }

    /// The size of the region in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The size of a page in bytes.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.bytes / self.page_bytes
    }

    /// How accesses are caught.
    pub fn catcher(&self) -> Catcher {
        self.catcher
    }

    /// Whether system calls on pages that are not held work, on this machine, with this process's permissions and
    /// libraries; otherwise they fail with EFAULT. The answer is valid when faults are caught.
    pub fn system_calls_work(&self) -> bool {
        self.parts.catch.system_calls_wait() || self.calls_are_answered.load(Ordering::SeqCst)
    }

    /// The privileged view of these pages: always readable and writable.
    ///
    /// Writing to a page that never existed allocates memory, and a machine without memory answers with SIGBUS; call
    /// [`Region::populate`] first.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn privileged(&self, page: usize, count: usize) -> *mut u8 {
        self.check(page, count);
        (self.parts.privileged.base() + page * self.page_bytes) as *mut u8
    }

    /// The file that holds the bytes, from its start, for mapping it in another process. Its size is sealed. The region
    /// owns the descriptor.
    pub fn file(&self) -> RawFd {
        self.parts.file.number()
    }

    /// Makes pages that were *none* accessible, and wakes the threads that wait for them.
    ///
    /// With `zero`, the pages were never written anywhere, and are created. Otherwise their bytes must have been put
    /// into the privileged view.
    ///
    /// # Errors
    /// There is no memory, or the kernel allows no further mapping.
    ///
    /// # Panics
    /// When the range is not inside the region, or the access is [`Access::None`].
    pub fn install(&self, page: usize, count: usize, access: Access, zero: bool) -> Result<(), MapError> {
        assert_ne!(access, Access::None, "install gives access; revoke takes it");
        let writable = access == Access::Write;
        if zero {
            self.populate(page, count)?;
        }
        let install = || self.change(page, count, |catch, span| catch.install(span, writable));
        match install() {
            // Some of the pages were never written, so they do not exist.
            Err(MapError::Kernel { errno: libc::EFAULT, .. }) => {
                self.populate(page, count)?;
                install()
            }
            done => done,
        }
    }

    /// Makes readable pages writable, and wakes the threads that wait for that.
    ///
    /// # Errors
    /// The kernel allows no further mapping (catcher `mprotect`).
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn upgrade(&self, page: usize, count: usize) -> Result<(), MapError> {
        self.change(page, count, |catch, span| catch.upgrade(span))
    }

    /// Removes write access from pages that have it. When it returns, every store of the application is visible in the
    /// privileged view.
    ///
    /// # Errors
    /// The kernel allows no further mapping (catcher `mprotect`) or has no memory for page tables.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn downgrade(&self, page: usize, count: usize) -> Result<(), MapError> {
        self.change(page, count, |catch, span| catch.downgrade(span))
    }

    /// Removes all access. When it returns, every store of the application is visible in the privileged view, which
    /// keeps the bytes.
    ///
    /// # Errors
    /// The kernel allows no further mapping (catcher `mprotect`).
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn revoke(&self, page: usize, count: usize) -> Result<(), MapError> {
        self.change(page, count, |catch, span| catch.revoke(span))
    }

    /// Removes all access and frees the memory of the bytes: the pages are as if they had never been written.
    ///
    /// # Errors
    /// The kernel allows no further mapping (catcher `mprotect`), or does not free memory of the file.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn discard(&self, page: usize, count: usize) -> Result<(), MapError> {
        self.revoke(page, count)?;
        if count == 0 {
            return Ok(());
        }
        let (offset, bytes) = (page * self.page_bytes, count * self.page_bytes);
        let given = self.parts.file.give_back(offset, bytes);
        given.map_err(|errno| MapError::Kernel { operation: "fallocate(FALLOC_FL_PUNCH_HOLE)", page, count, errno })
    }

    /// Wakes the threads that wait for pages that are accessible already (catcher `handler`; no effect otherwise).
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn wake(&self, page: usize, count: usize) {
        // Waking cannot fail.
        let _ = self.change(page, count, |catch, span| {
            catch.wake(span);
            Ok(())
        });
    }

    /// Creates pages, zero if nothing was written yet, so that writing to the privileged view cannot fail.
    ///
    /// # Errors
    /// There is no memory.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn populate(&self, page: usize, count: usize) -> Result<(), MapError> {
        self.check(page, count);
        if count == 0 {
            return Ok(());
        }
        let (offset, bytes) = (page * self.page_bytes, count * self.page_bytes);
        self.parts.file.populate(offset, bytes).map_err(|errno| match errno {
            libc::ENOSPC | libc::ENOMEM => MapError::OutOfMemory { page, count },
            errno => MapError::Kernel { operation: "fallocate", page, count, errno },
        })
    }

    /// Creates pages and maps them in the privileged view, so that receiving into them causes no fault in the kernel.
    /// This takes half a microsecond for each page, which a thread can spend while its request is under way.
    ///
    /// # Errors
    /// There is no memory.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn prepare(&self, page: usize, count: usize) -> Result<(), MapError> {
        self.check(page, count);
        if count == 0 {
            return Ok(());
        }
        match self.parts.privileged.populate(page * self.page_bytes, count * self.page_bytes) {
            Ok(()) => Ok(()),
            // This advice does not exist before Linux 5.14; receiving maps the pages then.
            Err(libc::EINVAL) => self.populate(page, count),
            Err(libc::ENOMEM | libc::EFAULT) => Err(MapError::OutOfMemory { page, count }),
            Err(errno) => Err(MapError::Kernel { operation: "madvise", page, count, errno }),
        }
    }

    /// The descriptor that is readable while faults are queued, with the catcher `handler` only.
    pub fn event_fd(&self) -> Option<RawFd> {
        self.parts.catch.event()
    }

    /// Takes queued faults, at most [`FAULT_BATCH`] and at most as many as `into` has room for. It never blocks or
    /// allocates. There are none unless the catcher is `handler`.
    ///
    /// # Panics
    /// When `into` has no room: the faults would never be taken.
    pub fn take_faults(&self, into: &mut Vec<Fault>) {
        let room = FAULT_BATCH.min(into.capacity() - into.len());
        assert!(room > 0, "take_faults needs a vector with room for at least one fault");
        let mut messages = [Message::EMPTY; FAULT_BATCH];
        let taken = self.parts.catch.take(&mut messages[..room]);
        for (address, write) in messages[..taken].iter().filter_map(Message::page_fault) {
            let offset = self.places.offset_of(address);
            assert!(offset < self.bytes, "the kernel reports faults of the registered range only");
            into.push(Fault { page: offset / self.page_bytes, offset: offset % self.page_bytes, write });
        }
    }

    /// Whether [`Detection::Marks`] works. This was tested when the region was created; it never works with the catcher
    /// `mprotect`, nor before Linux 6.7.
    pub fn marks_work(&self) -> bool {
        self.parts.catch.marks_work()
    }

    /// Sets how stores to these pages are detected from now on. Pages may be in any state: *none* and *read* pages keep
    /// their state, and a *write* page stays *write* and counts as stored to.
    ///
    /// Threads may use the pages meanwhile; a fault may be reported for a page that is accessible already. The access
    /// of these pages must not be changed meanwhile. It starts a thread and waits for it, so it must not be called
    /// while a fault is served.
    ///
    /// # Errors
    /// Marks do not work here, or the kernel refused.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn detect(&self, page: usize, count: usize, detection: Detection) -> Result<(), MapError> {
        self.change(page, count, |catch, span| catch.detect(span, detection))
    }

    /// Calls `found` with ranges of pages, first and count, that were stored to since they were installed or
    /// downgraded; **write* pages count as stored to. It changes nothing: the caller downgrades the pages, and then
    /// examines their bytes.
    ///
    /// Under marks, `install` for [`Access::Read`] maps pages in which stores pass and are recorded. A page that the
    /// kernel reclaimed may be reported although it was not stored to. It allocates nothing and takes no lock.
    ///
    /// # Errors
    /// Marks do not work here, or the kernel refused.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn stored_to(&self, page: usize, count: usize, found: &mut dyn FnMut(usize, usize)) -> Result<(), MapError> {
        self.change(page, count, |catch, span| catch.stored_to(span, found))
    }

    /// Copies the current content of these pages' privileged view to their twins.
    ///
    /// # Panics
    /// When the range is not inside the region, or this process cannot have a second memory of the region's size.
    pub fn keep_twin(&self, page: usize, count: usize) {
        let (bytes, twin) = (count * self.page_bytes, self.twin(page, count));
        // SAFETY: both are `count` pages long, in different mappings. Threads of the application may store to the page
        // meanwhile: each byte of the twin is then either an earlier or a later one, and a later diff is taken against
        // it.
        unsafe { self.privileged(page, count).copy_to_nonoverlapping(twin, bytes) };
    }

    /// The twins of these pages: private memory, zero until a twin is kept.
    ///
    /// # Panics
    /// When the range is not inside the region, or this process cannot have a second memory of the region's size.
    pub fn twin(&self, page: usize, count: usize) -> *mut u8 {
        self.check(page, count);
        let base = self.parts.twins.base().unwrap_or_else(|error| {
            panic!(
                "no room for the twins of a region of {} bytes ({error}); raise `ulimit -v` or set vm.overcommit_memory=0",
                self.bytes
            )
        });
        (base + page * self.page_bytes) as *mut u8
    }

    /// Allocates the memory of all twins now, as much again as the region has.
    ///
    /// # Errors
    /// The machine does not have that much.
    pub fn reserve_twins(&self) -> Result<(), RegionError> {
        let bytes = self.bytes;
        limits::can_hold(bytes).map_err(|limit| RegionError::DoesNotFit { bytes, limit })?;
        let taken = self.parts.twins.populate();
        taken.map_err(|error| RegionError::DoesNotFit { bytes, limit: not_taken(&error) })
    }

    /// Frees the memory of twins.
    ///
    /// # Panics
    /// When the range is not inside the region, as in all functions here.
    pub fn drop_twins(&self, page: usize, count: usize) {
        self.check(page, count);
        self.parts.twins.give_back(page * self.page_bytes, count * self.page_bytes);
    }

    /// Lets the catcher do something for pages, which it gets in spans of consecutive addresses.
    fn change(
        &self,
        page: usize,
        count: usize,
        mut step: impl FnMut(&dyn Catch, Span) -> Result<(), Refusal>,
    ) -> Result<(), MapError> {
        self.check(page, count);
        let done = self.places.spans(page, count, |span| step(&*self.parts.catch, span));
        done.map_err(|refusal| map_error(refusal, page, count))
    }

    fn check(&self, page: usize, count: usize) {
        let pages = self.pages();
        assert!(
            count <= pages && page <= pages - count,
            "{count} pages from page {page} are not inside a region of {pages} pages"
        );
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Region")
            .field("base", &self.base())
            .field("bytes", &self.bytes)
            .field("page_bytes", &self.page_bytes)
            .field("catcher", &self.catcher)
            .finish_non_exhaustive()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: getpid has no conditions.
        if unsafe { libc::getpid() } == self.creator {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.parts) };
        }
    }
}

fn check_options(options: &RegionOptions) -> Result<(), RegionError> {
    let RegionOptions { base_address, bytes, page_bytes, .. } = *options;
    if !(REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&bytes) {
        return Err(RegionError::Size { bytes });
    }
    if !page_bytes.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes) {
        return Err(RegionError::PageSize { page_bytes });
    }
    if page_bytes < kernel_page_bytes() {
        return Err(RegionError::KernelPageSize { page_bytes, kernel_page_bytes: kernel_page_bytes() });
    }
    if !bytes.is_multiple_of(page_bytes) {
        return Err(RegionError::NotWholePages { bytes, page_bytes });
    }
    match base_address {
        Some(base) if base.checked_add(bytes + page_bytes).is_none() || base == 0 => {
            Err(RegionError::BaseUnreachable { base, bytes })
        }
        Some(base) if !base.is_multiple_of(page_bytes) => Err(RegionError::BaseUnaligned { base, page_bytes }),
        _ => Ok(()),
    }
}

fn not_taken(error: &io::Error) -> String {
    format!("taking all of it at the start failed ({error})")
}

fn check_room(options: &RegionOptions) -> Result<(), RegionError> {
    let bytes = options.bytes;
    let fits = match options.reserve {
        Reserve::Overcommit => Ok(()),
        Reserve::Lazy | Reserve::Full => limits::can_hold(bytes),
    };
    fits.and_then(|()| limits::resource_limits_allow(bytes)).map_err(|limit| RegionError::DoesNotFit { bytes, limit })
}

fn map_application(file: &Memfd, options: &RegionOptions) -> Result<View, RegionError> {
    let protection = catch::first_protection(options.catcher);
    let bytes = options.bytes;
    View::map(file, bytes, options.base_address, options.page_bytes, protection).map_err(|error| {
        match (error, options.base_address) {
            (ViewError::Taken(mapping), Some(base)) => RegionError::BaseTaken { base, bytes, mapping },
            (ViewError::Unreachable, Some(base)) => RegionError::BaseUnreachable { base, bytes },
            (error, _) => error_without_base(error, bytes),
        }
    })
}

fn error_without_base(error: ViewError, bytes: usize) -> RegionError {
    let source = match error {
        ViewError::Kernel(source) => source,
        ViewError::Taken(_) | ViewError::Unreachable => io::Error::from_raw_os_error(libc::ENOMEM),
    };
    match source.raw_os_error() {
        Some(libc::ENOMEM) => RegionError::DoesNotFit {
            bytes,
            limit: "no room is left among the addresses of this process (`ulimit -v`, sysctl vm.max_map_count)"
                .to_owned(),
        },
        _ => RegionError::Kernel { operation: "mmap", source, next: "run `trellis doctor`" },
    }
}

/// Keeps both views out of forked children, and one of them out of core dumps, so that a dump has the bytes once.
fn keep_private(application: &View, privileged: &View) -> Result<(), RegionError> {
    let refused = |source| RegionError::Kernel { operation: "madvise", source, next: "run `trellis doctor`" };
    application.advise(libc::MADV_DONTFORK).map_err(refused)?;
    privileged.advise(libc::MADV_DONTFORK).map_err(refused)?;
    privileged.advise(libc::MADV_DONTDUMP).map_err(refused)
}

fn map_error(refusal: Refusal, page: usize, count: usize) -> MapError {
    let Refusal { operation, errno } = refusal;
    match errno {
        libc::ENOMEM if operation == catch::MPROTECT_REQUEST => MapError::TooManyMappings { page, count },
        libc::ENOMEM => MapError::OutOfMemory { page, count },
        libc::EOPNOTSUPP if operation == catch::MARKS_REQUEST => MapError::NoMarks { page, count },
        _ => MapError::Kernel { operation, page, count, errno },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> RegionOptions {
        RegionOptions {
            base_address: None,
            bytes: 1 << 20,
            page_bytes: 4096,
            catcher: Catcher::Mprotect,
            reserve: Reserve::Lazy,
        }
    }

    #[test]
    fn impossible_options_are_refused_with_a_number_to_use() {
        let sentence = |options: RegionOptions| Region::create(&options).expect_err("impossible").to_string();
        let said = sentence(RegionOptions { bytes: 4096, ..options() });
        assert!(said.contains("64 KiB"), "{said}");
        let said = sentence(RegionOptions { bytes: REGION_BYTES_MAX + 4096, ..options() });
        assert!(said.contains("1024 GiB"), "{said}");
        let said = sentence(RegionOptions { page_bytes: 5000, ..options() });
        assert!(said.contains("power of two"), "{said}");
        let said = sentence(RegionOptions { page_bytes: 4 << 20, ..options() });
        assert!(said.contains("2 MiB"), "{said}");
        let said = sentence(RegionOptions { bytes: (1 << 20) + 512, ..options() });
        assert!(said.contains("1052672"), "{said}");
        let said = sentence(RegionOptions { base_address: Some(0x1_0000_0800), ..options() });
        assert!(said.contains("0x100001000"), "{said}");
        let said = sentence(RegionOptions { base_address: Some(usize::MAX & !4095), ..options() });
        assert!(said.contains("outside the addresses"), "{said}");
        let said = sentence(RegionOptions { base_address: Some(1 << 62), ..options() });
        assert!(said.contains("outside the addresses"), "{said}");
    }
}
