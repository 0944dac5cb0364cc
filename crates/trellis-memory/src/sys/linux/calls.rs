//! The library that makes calls of the C library whole (`trellis-calls`), if this process has it.
//!
//! It is found by the names of its functions, because it is loaded into programs that may not use Trellis at all, and
//! before this code. Promises: without it, everything works as if nothing was asked.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;

use super::signals::{announce, claim_signal};

type Claim = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> bool;
type Announce = extern "C" fn(usize, usize, bool);

/// The address of a function of the library; `None` if no library of this process has it.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Whether this process's calls of the C library are made whole.
pub(crate) fn are_answered() -> bool {
    function(c"__trellis_calls_are_answered").is_some_and(|answered| {
        // SAFETY: the library's function, which has this type.
        unsafe { transmute::<*mut c_void, extern "C" fn() -> bool>(answered)() }
    })
}

/// Why this program makes system calls that the library does not see; `None` if it is not known to make any.
pub(crate) fn made_elsewhere() -> Option<&'static str> {
    let mut is_go = false;
    // SAFETY: the function looks at notes of loaded objects, and at the flag, which lives for the call.
    unsafe { libc::dl_iterate_phdr(Some(look_for_go), (&raw mut is_go).cast()) };
    is_go.then_some("this program is written in Go, which makes system calls without the C library")
}

/// The owner of the note with which Go marks what it links.
const GO: &[u8; 4] = b"Go\0\0";

/// It is called for each loaded object, and looks at its notes, which are loaded (elf(5)).
unsafe extern "C" fn look_for_go(object: *mut libc::dl_phdr_info, _: usize, is_go: *mut c_void) -> c_int {
    // SAFETY: the C library passes a valid description; its headers and notes are mapped.
    unsafe {
        let object = &*object;
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        for header in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
            let start = (object.dlpi_addr + header.p_vaddr) as *const u8;
            let notes = std::slice::from_raw_parts(start, header.p_memsz as usize);
            // A note consists of the length of the owner's name, that of the rest, a kind, and the name, in whole
            // words.
            if notes.chunks_exact(4).any(|word| word == GO) {
                is_go.cast::<bool>().write(true);
            }
        }
    }
    0
}

/// A range whose calls are made whole until this is dropped.
pub(crate) struct Watching {
    start: usize,
}

/// Lets calls with memory of this range be made whole from now on; `None` if this process's calls are not made whole.
pub(crate) fn watch(start: usize, bytes: usize) -> Option<Watching> {
    if !are_answered() {
        return None;
    }
    let watch = function(c"__trellis_calls_watch")?;
    // SAFETY: the library's function, which has this type. The range stays mapped until `Watching` is dropped, and the
    // claim may be made at any time.
    let is_watched = unsafe {
        transmute::<*mut c_void, unsafe extern "C" fn(usize, usize, Claim) -> bool>(watch)(start, bytes, claim)
    };
    if let Some(announce_to) = function(c"__trellis_calls_announce_to").filter(|_| is_watched) {
        // SAFETY: the library's function, which has this type.
        unsafe { transmute::<*mut c_void, extern "C" fn(Announce)>(announce_to)(announced) };
    }
    is_watched.then_some(Watching { start })
}

extern "C" fn announced(start: usize, bytes: usize, write: bool) {
    announce(start, bytes, write);
}

unsafe extern "C" fn claim(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> bool {
    // SAFETY: the library's promise, as that of sigaction(2).
    unsafe { claim_signal(signal, action, before) }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(forget) = function(c"__trellis_calls_forget") {
            // SAFETY: the library's function, which has this type.
            unsafe { transmute::<*mut c_void, extern "C" fn(usize)>(forget)(self.start) };
        }
    }
}
