//! Globals that all processes share: .data and .bss of the program are the first pages of the region.
//!
//! This is for programs that were written for threads. The linker puts the program's globals at an address of their
//! own, with nothing behind them up to a limit. Before the cluster starts, their memory is unmapped and the region is
//! mapped there instead. Node 0 restores the contents.
//!
//! Promises: nothing is unmapped before it is known that the program was compiled and linked for this. After
//! [`Globals::leave`] the program's globals are private memory again, with their last contents. It must never be used
//! while the program's own code runs, except for [`Globals::leave`] at the end of main.

use std::ops::Range;

use crate::layout::Layout;

/// The flags that a program needs, for messages; `trellis.pc` and the guide have them, too.
const FLAGS: &str = "compile with -fPIC -DTRELLIS_PARMACS_GLOBALS_SHARED and link with -no-pie \
                     -Wl,--section-start=.data=0x40000000 -Wl,--section-start=.trellis_parmacs_limit=0x300000000000";

/// A program with less room before the limit was not linked for this.
const ROOM_BYTES_MIN: usize = 1 << 30;

/// The addresses of the program's globals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Globals {
    place: Range<usize>,
    /// The address of the variable that MAIN_ENV places far behind them.
    limit: usize,
}

/// The contents of the globals when their memory was unmapped.
pub(super) struct Saved(Vec<u8>);

impl Globals {
    /// Finds the globals of a program that was linked to share them; `says` is whether it was compiled for that.
    pub(super) fn find(layout: &Layout, says: bool) -> Result<Globals, String> {
        if !says {
            return Err(format!("this program was not compiled to share its globals; {FLAGS}"));
        }
        match &layout.globals[..] {
            [place, limit] if place.start.is_multiple_of(4096) && limit.start - place.end > ROOM_BYTES_MIN => {
                Ok(Globals { place: place.clone(), limit: limit.start })
            }
            [_] | [_, _] => Err(format!("this program was not linked to share its globals; {FLAGS}")),
            _ if layout.copied.is_empty() => {
                Err(format!("the linker left some of the globals of this program beside its code; {FLAGS}"))
            }
            _ => Err(format!(
                "the linker put variables of libraries ({}) between the globals of this program, because a file or a \
                 library that is linked in was compiled without -fPIC; `nm -A FILES | grep ' U {}'` tells which uses \
                 them; {FLAGS}",
                layout.copied.join(", "),
                layout.copied[0]
            )),
        }
    }

    /// The address of the region, which is that of the globals.
    pub(super) fn start(&self) -> usize {
        self.place.start
    }

    /// The end of the address range that the region may use: the kernel's heap and libraries are behind it.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The bytes of the region that the globals take, in pages of this size.
    pub(super) fn region_bytes(&self, page_bytes: usize) -> usize {
        self.place.len().next_multiple_of(page_bytes)
    }

    /// Unmaps the memory of the globals. Until [`Globals::put_back`] nothing may use a global of the program.
    ///
    /// # Safety
    /// No code of the program runs until then, in any thread.
    pub(super) unsafe fn take_away(&self) -> Result<Saved, String> {
        let saved = self.contents();
        // SAFETY: whole pages of the program's own data segment, which nothing uses by the caller's promise.
        let taken = unsafe { libc::munmap(self.place.start as *mut _, self.place.len().next_multiple_of(4096)) };
        if taken != 0 {
            return Err(format!("the program's globals cannot be moved: {}", std::io::Error::last_os_error()));
        }
        Ok(saved)
    }

    /// Restores the contents of the globals, at one node, before any other node uses them.
    ///
    /// # Safety
    /// The region is mapped at [`Globals::start`], and nothing else uses these bytes.
    pub(super) unsafe fn put_back(&self, saved: &Saved) {
        assert_eq!(saved.0.len(), self.place.len(), "what was saved is what is put back");
        // SAFETY: the caller's promise.
        unsafe { (self.place.start as *mut u8).copy_from_nonoverlapping(saved.0.as_ptr(), saved.0.len()) };
    }

    /// Leaves the cluster by calling `leave`; afterwards the globals are private memory of this process.
    ///
    /// # Safety
    /// No other thread uses the globals meanwhile, and nothing uses the rest of the region afterwards.
    pub(super) unsafe fn leave<T>(&self, leave: impl FnOnce() -> T) -> Result<T, String> {
        let saved = self.contents();
        let outcome = leave();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let bytes = self.place.len().next_multiple_of(4096);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the mapping replaces the first pages of the region, which this node has left.
        let got = unsafe { libc::mmap(self.place.start as *mut _, bytes, protection, flags, -1, 0) };
        if got as usize != self.place.start {
            return Err(format!("the program's globals cannot be kept: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: fresh memory of this process.
        unsafe { self.put_back(&saved) };
        Ok(outcome)
    }

    fn contents(&self) -> Saved {
        // SAFETY: the data segment of the program, or the region in its place; no code of the program runs.
        Saved(unsafe { std::slice::from_raw_parts(self.place.start as *const u8, self.place.len()) }.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(globals: Vec<Range<usize>>, says: bool) -> Result<Globals, String> {
        Globals::find(
            &Layout { globals, images: Vec::new(), copied: vec!["optarg".to_owned()], objects: String::new() },
            says,
        )
    }

    #[test]
    fn only_a_program_made_for_it_is_taken() {
        let limit = 0x3000_0000_0000..0x3000_0000_0001;
        let globals = found(vec![0x4000_0000..0x4000_5432, limit.clone()], true).unwrap();
        assert_eq!((globals.start(), globals.limit()), (0x4000_0000, limit.start));
        assert_eq!((globals.region_bytes(4096), globals.region_bytes(1 << 16)), (0x6000, 1 << 16));
        for (globals, says, why) in [
            (vec![0x4000_0000..0x4000_5432, limit.clone()], false, "not compiled"),
            (vec![0x40_4010..0x40_5432, limit.clone()], true, "not linked"),
            (std::iter::once(0x40_4000..0x40_5432).collect(), true, "not linked"),
            (vec![0x4000_0000..0x4000_5432, 0x4000_6000..0x4000_6001], true, "not linked"),
            (vec![0x4000_0000..0x4000_5432, 0x4000_5440..0x4000_5500, limit], true, "variables of libraries (optarg)"),
        ] {
            let said = found(globals, says).unwrap_err();
            assert!(said.contains(why) && said.contains("-fPIC"), "{said}");
        }
    }
}
