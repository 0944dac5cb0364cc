//! The common part of `signal` and `handler`: it changes the access to pages with userfaultfd, and has the two ways to
//! detect a store to a page that allows loads.
//!
//! Whether a store is a fault or is only recorded is a property of a whole userfaultfd, so there are two. Every page
//! belongs to one of them, and `detect` moves it. A request for pages of both is divided at their boundaries. The
//! assignment is a set of bits that is read without a lock, and changed under a mutex that no fault ever takes.
//!
//! A mark must never be lost: `install` does not protect a present page again, and a page that the kernel has
//! reclaimed, which removes the mark, counts as stored to.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::pages::PageSet;
use super::{Refusal, Span};
use crate::places::Places;
use crate::region::Detection;
use crate::sys::linux::memfd::{Memfd, View, drop_pages};
use crate::sys::linux::moving::{Way, move_mapping};
use crate::sys::linux::pagemap::{Pagemap, Sought};
use crate::sys::linux::uffd::{self, Uffd};

const INSTALL: &str = "UFFDIO_CONTINUE";
const PROTECT: &str = "UFFDIO_WRITEPROTECT";
const REGISTER: &str = "UFFDIO_REGISTER";
const REMAP: &str = "mremap";
const SCAN: &str = "PAGEMAP_SCAN";
/// The maximum number of pages between held ones that are scanned too although they are not held: the kernel takes 20
/// ns for each, and 400 ns for a request.
const GAP_PAGES_MAX: usize = 16;
/// The name of a request that a machine without marks refuses, for errors.
pub(crate) const MARKS_REQUEST: &str = "noting stores without faults";

/// A region's userfaultfds.
pub(super) struct Userfault {
    places: Places,
    page_shift: u32,
    faults: Uffd,
    marks: Option<Marks>,
    /// The pieces of the view are mapped, so faults there are caught.
    has_pieces: AtomicBool,
}

/// What marks need in addition to the first userfaultfd.
struct Marks {
    uffd: Uffd,
    pagemap: Pagemap,
    /// The pages of the second userfaultfd.
    marked: PageSet,
    /// The number of these pages.
    count: AtomicUsize,
    /// Pages that were installed and not revoked. The set distinguishes a page that the kernel reclaimed from one that
    /// is *none*.
    held: PageSet,
    /// The region's bytes. The region closes it after this is dropped.
    file: RawFd,
    changes: Mutex<()>,
}

impl Userfault {
    /// Opens the userfaultfds, tests them on separate pages, and registers parts of the view for faults.
    /// Of the pages from the base on, those of `parts` are its own.
    pub(super) fn prepare(
        places: Places,
        parts: &[Span],
        page_bytes: usize,
        file: &Memfd,
        signal: bool,
    ) -> Result<Userfault, String> {
        let view = places.whole();
        let marks = Marks::prepare(view.bytes / page_bytes, file, signal);
        let faults = if marks.is_some() { Uffd::open_movable(signal)? } else { Uffd::open(signal)? };
        uffd::try_out(&faults)?;
        for part in parts {
            faults
                .register(part.start, part.bytes)
                .map_err(|error| format!("UFFDIO_REGISTER of the region failed ({error}); run `trellis doctor`"))?;
        }
        let has_pieces = AtomicBool::new(places.pieces().next().is_none());
        Ok(Userfault { places, page_shift: page_bytes.trailing_zeros(), faults, marks, has_pieces })
    }

    /// Catches faults in a part of the application view that was mapped just now.
    pub(super) fn watch(&self, span: Span) -> Result<(), Refusal> {
        let refused =
            |error: io::Error| Refusal { operation: REGISTER, errno: error.raw_os_error().unwrap_or(libc::EIO) };
        self.has_pieces.store(true, Ordering::SeqCst);
        let Some(marks) = &self.marks else { return self.faults.register(span.start, span.bytes).map_err(refused) };
        self.parts(marks, span, &mut |part, marked| {
            self.of(marks, marked).register(part.start, part.bytes).map_err(refused)
        })
    }

    /// The userfaultfd that every region has.
    pub(super) fn faults(&self) -> &Uffd {
        &self.faults
    }

    /// The userfaultfd of the pages under marks, if marks work.
    pub(super) fn marks(&self) -> Option<&Uffd> {
        self.marks.as_ref().map(|marks| &marks.uffd)
    }

    /// Whether any page is under marks now.
    pub(super) fn marks_in_use(&self) -> bool {
        self.marks.as_ref().is_some_and(|marks| marks.count.load(Ordering::SeqCst) > 0)
    }

    /// Every descriptor, for a forked child to close.
    pub(super) fn descriptors(&self) -> [Option<RawFd>; 3] {
        let marks = self.marks.as_ref();
        [Some(self.faults.number()), marks.map(|marks| marks.uffd.number()), marks.map(|marks| marks.pagemap.number())]
    }

    pub(super) fn install(&self, span: Span, writable: bool) -> Result<(), Refusal> {
        let Some(marks) = &self.marks else {
            return self.faults.make_present(span.start, span.bytes, writable, true).map_err(Refusal::of(INSTALL));
        };
        self.parts(marks, span, &mut |part, marked| {
            let (first, end) = self.pages(part);
            if !marked {
                // The bit is set before the page can be stored to: a thread that looks for stores afterwards must find
                // it held.
                marks.held.set(first, end, true);
                return self.faults.make_present(part.start, part.bytes, writable, true).map_err(Refusal::of(INSTALL));
            }
            let mut at = first;
            while at < end {
                // A held page is either present, and protecting it would lose a store that was made since, or it was
                // reclaimed, perhaps with a mark, and must count as stored to.
                let (held, until) = marks.held.run(at, end);
                marks.held.set(at, until, true);
                let run = self.span(at, until);
                marks
                    .uffd
                    .make_present(run.start, run.bytes, writable || held, writable)
                    .map_err(Refusal::of(INSTALL))?;
                at = until;
            }
            Ok(())
        })
    }

    pub(super) fn upgrade(&self, span: Span) -> Result<(), Refusal> {
        self.protect(span, true)
    }

    pub(super) fn downgrade(&self, span: Span) -> Result<(), Refusal> {
        self.protect(span, false)
    }

    fn protect(&self, span: Span, writable: bool) -> Result<(), Refusal> {
        let to = |uffd: &Uffd, part: Span| uffd.protect(part.start, part.bytes, writable).map_err(Refusal::of(PROTECT));
        match &self.marks {
            None => to(&self.faults, span),
            Some(marks) => self.parts(marks, span, &mut |part, marked| to(self.of(marks, marked), part)),
        }
    }

    pub(super) fn revoke(&self, span: Span) -> Result<(), Refusal> {
        drop_pages(span.start, span.bytes).map_err(Refusal::of("madvise(MADV_DONTNEED)"))?;
        if let Some(marks) = &self.marks {
            let (first, end) = self.pages(span);
            marks.held.set(first, end, false);
        }
        Ok(())
    }

    pub(super) fn wake(&self, span: Span) {
        let Some(marks) = &self.marks else { return self.faults.wake(span.start, span.bytes) };
        // Waking cannot fail.
        let _ = self.parts(marks, span, &mut |part, marked| {
            self.of(marks, marked).wake(part.start, part.bytes);
            Ok(())
        });
    }

    /// Whether stores can be recorded here.
    pub(super) fn marks_work(&self) -> bool {
        self.marks.is_some()
    }

    /// Calls `found` with ranges of pages, by number, that are held and were or may have been stored to.
    pub(super) fn stored_to(&self, span: Span, found: &mut dyn FnMut(usize, usize)) -> Result<(), Refusal> {
        let Some(marks) = &self.marks else { return Err(without_marks()) };
        let mut runs = Runs { found, first: 0, end: 0 };
        self.parts(marks, span, &mut |part, marked| {
            // For pages whose stores are faults, the kernel is asked for *write* pages only: a reclaimed page faults
            // again before it is stored to.
            let sought = if marked { Sought::WrittenOrGone } else { Sought::Written };
            self.held_parts(marks, part, &mut |held| self.scan(marks, held, sought, &mut runs))
        })?;
        runs.finish();
        Ok(())
    }

    /// Calls `step` for the parts of `span` that are worth a scan: from one held page to another.
    fn held_parts(
        &self,
        marks: &Marks,
        span: Span,
        step: &mut dyn FnMut(Span) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let (mut at, end) = self.pages(span);
        let mut part = at..at;
        while at < end {
            let (held, until) = marks.held.run(at, end);
            if held && (part.is_empty() || at - part.end > GAP_PAGES_MAX) {
                if !part.is_empty() {
                    step(self.span(part.start, part.end))?;
                }
                part = at..until;
            } else if held {
                part.end = until;
            }
            at = until;
        }
        if part.is_empty() { Ok(()) } else { step(self.span(part.start, part.end)) }
    }

    /// Scans for kernel pages and reports held pages of the region, each once.
    fn scan(&self, marks: &Marks, span: Span, sought: Sought, runs: &mut Runs<'_>) -> Result<(), Refusal> {
        let mut reported = self.pages(span).0;
        let look = &mut |start: usize, end: usize| {
            // Two kernel pages of one page are found separately if a third one between them is clean.
            let mut at = reported.max(self.places.page_of(start));
            let last = self.places.page_of(end - 1);
            while at <= last {
                let (held, until) = marks.held.run(at, last + 1);
                if held {
                    runs.tell(at, until);
                }
                at = until;
            }
            reported = reported.max(last + 1);
        };
        marks.pagemap.scan(span.start, span.start + span.bytes, sought, look).map_err(Refusal::of(SCAN))
    }

    /// Sets how stores to the pages are detected from now on. Their access is unchanged.
    pub(super) fn detect(&self, span: Span, detection: Detection) -> Result<(), Refusal> {
        let wanted = detection == Detection::Marks;
        let Some(marks) = &self.marks else {
            return if wanted { Err(without_marks()) } else { Ok(()) };
        };
        let _changing = marks.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.parts(marks, span, &mut |part, marked| {
            if marked == wanted { Ok(()) } else { self.switch(marks, part, wanted) }
        })
    }

    /// Moves pages to the other userfaultfd while threads use them: a new mapping of the same bytes, which belongs to
    /// the other userfaultfd and has no pages, replaces the present one in one step, and then gets the pages back.
    /// Until then an access waits, or is a fault that is reported although its page is held.
    fn switch(&self, marks: &Marks, span: Span, to_marks: bool) -> Result<(), Refusal> {
        let (first, end) = self.pages(span);
        if !self.has_pieces.load(Ordering::SeqCst) && !self.places.is_in_whole(first) {
            // Something else is mapped there: the piece begins with this userfaultfd.
            marks.marked.set(first, end, to_marks);
            let pages = end - first;
            match to_marks {
                true => marks.count.fetch_add(pages, Ordering::SeqCst),
                false => marks.count.fetch_sub(pages, Ordering::SeqCst),
            };
            return Ok(());
        }
        let (from, to) = (self.of(marks, !to_marks), self.of(marks, to_marks));
        let os_error =
            |operation| move |error: io::Error| Refusal { operation, errno: error.raw_os_error().unwrap_or(libc::EIO) };
        let new = View::map_part(marks.file, first << self.page_shift, span.bytes).map_err(os_error("mmap"))?;
        to.register(new.base(), span.bytes).map_err(os_error(REGISTER))?;
        let writable = self.take_states(marks, span, to_marks)?;
        // The new mapping's faults have to be taken from the moment at which it is in place.
        let pages = end - first;
        marks.count.fetch_add(if to_marks { pages } else { 0 }, Ordering::SeqCst);
        // SAFETY: the new mapping is not used elsewhere; what it replaces has the same bytes, and there are never
        // references into the application view.
        let moved = unsafe { move_mapping(to, new.base(), span.bytes, Way::Onto(span.start)) };
        let gone = if moved.is_ok() != to_marks { pages } else { 0 };
        marks.count.fetch_sub(gone, Ordering::SeqCst);
        if moved.is_ok() {
            new.give_up();
            marks.marked.set(first, end, to_marks);
        }
        // If the move failed, the pages return to where they were.
        let owner = if moved.is_ok() { to } else { from };
        let restored = self.restore(marks, owner, span, &writable);
        let whole = self.places.whole();
        let pieces = self.places.pieces().map(|(_, piece)| Span { start: piece.address, bytes: piece.bytes });
        for part in pieces.chain([whole]) {
            from.wake(part.start, part.bytes);
            to.wake(part.start, part.bytes);
        }
        moved.map_err(Refusal::of(REMAP)).and(restored)
    }

    /// The pages that count as *write*, numbered from 0. No store that a mark reports is missed: pages under marks are
    /// removed first, so that no thread can store to them any more.
    fn take_states(&self, marks: &Marks, span: Span, to_marks: bool) -> Result<PageSet, Refusal> {
        let (first, end) = self.pages(span);
        let writable = PageSet::new(end - first);
        let mut note = |at: usize, count: usize| writable.set(at - first, at - first + count, true);
        if to_marks {
            let mut runs = Runs { found: &mut note, first: 0, end: 0 };
            self.scan(marks, span, Sought::Written, &mut runs)?;
            runs.finish();
            return Ok(writable);
        }
        if marks.held.run(first, end) == (false, end) {
            // No page is held, so no thread can have stored to any.
            return Ok(writable);
        }
        // SAFETY: the pages remain this region's; there are never references into the application view.
        let away = unsafe { move_mapping(&marks.uffd, span.start, span.bytes, Way::PagesAway) };
        let away = View::take_over(away.map_err(Refusal::of(REMAP))?, span.bytes);
        let look = &mut |start: usize, end: usize| {
            let page = |address: usize| (address - away.base()) >> self.page_shift;
            note(first + page(start), page(end - 1) + 1 - page(start));
        };
        let looked = marks.pagemap.scan(away.base(), away.base() + span.bytes, Sought::WrittenOrGone, look);
        if let Err(errno) = looked {
            // The states of the pages are not known now, so all count as stored to.
            writable.set(0, end - first, true);
            self.restore(marks, &marks.uffd, span, &writable)?;
            return Err(Refusal { operation: SCAN, errno });
        }
        Ok(writable)
    }

    /// Makes held pages present again.
    fn restore(&self, marks: &Marks, owner: &Uffd, span: Span, writable: &PageSet) -> Result<(), Refusal> {
        let (first, end) = self.pages(span);
        let mut at = first;
        while at < end {
            let (held, until) = marks.held.run(at, end);
            let (open, alike) = writable.run(at - first, until - first);
            let until = if held { first + alike } else { until };
            if held {
                let run = self.span(at, until);
                owner.make_present(run.start, run.bytes, open, open).map_err(Refusal::of(INSTALL))?;
            }
            at = until;
        }
        Ok(())
    }

    /// Calls `step` for each part of `span` whose pages all belong to one userfaultfd, with true if it is that of
    /// marks.
    fn parts(
        &self,
        marks: &Marks,
        span: Span,
        step: &mut dyn FnMut(Span, bool) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if marks.count.load(Ordering::SeqCst) == 0 {
            return step(span, false);
        }
        let (mut at, end) = self.pages(span);
        while at < end {
            let (marked, until) = marks.marked.run(at, end);
            step(self.span(at, until), marked)?;
            at = until;
        }
        Ok(())
    }

    fn of<'a>(&'a self, marks: &'a Marks, marked: bool) -> &'a Uffd {
        if marked { &marks.uffd } else { &self.faults }
    }

    /// The first page of a part of the view, and the one after its last.
    fn pages(&self, span: Span) -> (usize, usize) {
        let first = self.places.page_of(span.start);
        (first, first + (span.bytes >> self.page_shift))
    }

    fn span(&self, first: usize, end: usize) -> Span {
        Span { start: self.places.address_of(first), bytes: (end - first) << self.page_shift }
    }
}

/// Joins adjacent ranges of pages.
struct Runs<'a> {
    found: &'a mut dyn FnMut(usize, usize),
    first: usize,
    end: usize,
}

impl Runs<'_> {
    /// Adds the pages of `[first, end)`. `first` is not before the end of those that were added last.
    fn tell(&mut self, first: usize, end: usize) {
        if first != self.end {
            self.finish();
            self.first = first;
        }
        self.end = end;
    }

    /// Reports the last range.
    fn finish(&mut self) {
        if self.first < self.end {
            (self.found)(self.first, self.end - self.first);
        }
        self.first = self.end;
    }
}

impl Marks {
    /// Prepares marks; `None` if this machine cannot record stores.
    fn prepare(pages: usize, file: &Memfd, signal: bool) -> Option<Marks> {
        uffd::try_out_marks().ok()?;
        Some(Marks {
            uffd: Uffd::open_for_marks(signal).ok()?,
            pagemap: Pagemap::open().ok()?,
            marked: PageSet::new(pages),
            count: AtomicUsize::new(0),
            held: PageSet::new(pages),
            file: file.number(),
            changes: Mutex::new(()),
        })
    }
}

/// The refusal of a catcher or a machine that cannot record stores.
pub(super) fn without_marks() -> Refusal {
    Refusal { operation: MARKS_REQUEST, errno: libc::EOPNOTSUPP }
}
