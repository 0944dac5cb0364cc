//! Shared memory that is never here, in a process that has the library loaded first.
//!
//! Each test runs again in a process of its own, in which another thread may take the pages away while calls are made.

#![allow(dead_code)] // each test program uses its part

#[path = "../../../trellis-memory/tests/peer/mod.rs"]
mod peer;

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use peer::{Plan, World, again, is_child, said};
use trellis_memory::{Access, Catcher};

pub(crate) const PAGE: usize = 4096;

/// The library, which cargo built for this test.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this test's program");
    let folder = program.parent().expect("it lies in a folder");
    folder.join("libtrellis_calls.so")
}

/// Runs the test in a process that has the library; there, `check` gets memory that is never here.
pub(crate) fn with_the_library(name: &str, check: impl Fn(&Shared)) {
    if is_child() {
        for catcher in [Catcher::Signal, Catcher::Mprotect] {
            let Some(world) = World::make(name, Plan::of(catcher)) else { return };
            assert!(world.region.system_calls_work(), "the library's functions are the ones that are called");
            check(&Shared { world, next: AtomicUsize::new(0) });
        }
        println!("made whole");
        return;
    }
    let output = again(name, &[("LD_PRELOAD", library().to_str().expect("a path of characters"))]);
    let said = said(&output);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert!(said.contains("made whole") || said.contains("SKIPPED"), "{said}");
    print!("{}", said.lines().filter(|line| line.contains("SKIPPED")).collect::<Vec<_>>().join("\n"));
}

/// Shared memory of which no page is here until something touches it.
pub(crate) struct Shared {
    pub(crate) world: World,
    next: AtomicUsize,
}

impl Shared {
    /// So many bytes that begin shortly before the end of a page: all but the first lie on others.
    pub(crate) fn room(&self, bytes: usize) -> *mut c_void {
        let pages = (bytes + 8).div_ceil(PAGE) + 1;
        let page = self.next.fetch_add(pages, Ordering::SeqCst);
        assert!(page + pages <= self.world.region.pages(), "the region is large enough");
        let at = (page + 1) * PAGE - 8;
        self.world.at(at).cast()
    }

    /// Room of the first pages again: what was there is not needed any more.
    pub(crate) fn again(&self) {
        self.next.store(0, Ordering::SeqCst);
        self.take_away();
    }

    pub(crate) fn of<T>(&self, value: T) -> *mut T {
        let room = self.room(size_of::<T>() + 8);
        // Aligned, and still across the border of a page if it is larger than one word.
        let at = (room as usize).next_multiple_of(align_of::<T>()) as *mut T;
        // SAFETY: room for it.
        unsafe { at.write_unaligned(value) };
        self.take_away();
        at
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) -> *mut c_void {
        let at = self.room(bytes.len());
        // SAFETY: room for them.
        unsafe { at.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.take_away();
        at
    }

    pub(crate) fn text(&self, text: &str) -> *mut c_char {
        self.bytes(CString::new(text).expect("no zero byte").as_bytes_with_nul()).cast()
    }

    pub(crate) fn path(&self, path: &Path) -> *mut c_char {
        self.text(path.to_str().expect("a path of characters"))
    }

    /// Another node takes every page.
    pub(crate) fn take_away(&self) {
        self.world.withdraw(0, self.world.region.pages(), Access::None);
    }

    pub(crate) fn seen(&self, at: *const c_void, bytes: usize) -> Vec<u8> {
        self.take_away();
        // SAFETY: inside the region.
        unsafe { std::slice::from_raw_parts(at.cast::<u8>(), bytes) }.to_vec()
    }
}

/// What was there before, to be seen if a call wrote too much or too little.
pub(crate) fn some(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 7 % 251) as u8).collect()
}

#[track_caller]
pub(crate) fn good(answer: isize) -> usize {
    assert!(answer >= 0, "{}", std::io::Error::last_os_error());
    answer as usize
}

pub(crate) fn done(answer: c_int) {
    good(answer as isize);
}

pub(crate) fn pipe_of() -> [c_int; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    done(unsafe { libc::pipe(ends.as_mut_ptr()) });
    ends
}

pub(crate) fn pair_of(kind: c_int) -> [c_int; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    done(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) });
    ends
}

pub(crate) const SIZES: [usize; 5] = [1, 9, PAGE, PAGE + 100, 30 * PAGE + 3];
