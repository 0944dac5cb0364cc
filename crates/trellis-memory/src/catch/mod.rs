//! The axis *catch*: how an access to a page that is not held is detected, and how the access to pages is changed.
//!
//! # The contract
//!
//! A page of the application view is at any time in one of three states: *none* (every access is a fault), *read* (a
//! write is a fault) or *write*. Promises of every catcher:
//!
//! 1. Each fault is reported with the page and with whether it was a write. It may be reported again although it was
//!    served meanwhile. Serving it again is harmless.
//! 2. The thread that faulted continues only when its access is allowed; otherwise the fault is reported again.
//! 3. `install` makes *none* pages visible, with the bytes that the privileged view holds at that moment.
//! 4. When `downgrade` or `revoke` returns, no processor writes (or reads) through an old translation: every store of
//!    the application that took effect is visible in the privileged view, and no later one happens without a new fault.
//! 5. `revoke` keeps the bytes.
//! 6. Every change may be requested from any thread, also while a fault is served, allocates nothing and takes no lock.
//!    Requesting a state that already holds is not an error.
//!
//! The caller must ensure the initial state: `upgrade` and `downgrade` are for pages that are *read* or *write*.
//!
//! # Marks
//!
//! A catcher may let the kernel record stores instead of turning them into faults ([`crate::Detection::Marks`]), page
//! by page. For a page under marks, the contract differs in two points. A store to a *read* page is not a fault, and
//! `stored_to` reports the page from then on until `downgrade` or `revoke`. `install` leaves a present page unchanged,
//! so that no mark is lost. `stored_to` may report a page that was not stored to (the kernel reclaimed it), but must
//! never omit one that was. Stores through the privileged view are never reported.
//!
//! [`Abilities`] lists what a catcher cannot do, so that a protocol or a program that needs more is refused with a
//! message instead of failing later. A new catcher is one file here, one line in [`Catcher::ALL`], its arms in
//! `prepare` and in the other matches on [`Catcher`], a choice of the key `catch` in the crate `trellis-cluster`, and
//! the suite in `tests/conformance.rs`.

mod handler;
mod mixed;
mod mprotect;
mod pages;
mod signal;
mod userfault;

use std::fmt;
use std::ops::Range;
use std::os::fd::RawFd;
use std::str::FromStr;

use crate::doctor::Capabilities;
use crate::error::UnknownWord;
use crate::places::Places;
use crate::region::Detection;
use crate::sys::linux::memfd::Memfd;
use crate::sys::linux::uffd::Message;

pub(crate) use mprotect::REQUEST as MPROTECT_REQUEST;
pub use pages::PageSet;
pub(crate) use userfault::MARKS_REQUEST;

/// The ways to detect an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Catcher {
    /// userfaultfd with SIGBUS: the fault is served in the thread that caused it. It is the fastest. System calls on
    /// shared buffers work if calls of the C library are made whole.
    Signal,
    /// userfaultfd with a queue of faults: the thread waits in the kernel while another thread serves the fault. System
    /// calls on shared buffers work.
    Handler,
    /// mprotect(2) and SIGSEGV: for kernels and containers without userfaultfd.
    Mprotect,
}

/// What a catcher can and cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Whether the thread that faulted serves the fault; otherwise a thread that polls [`crate::Region::event_fd`]
    /// does.
    pub serves_in_the_faulting_thread: bool,
    /// Whether `read(2)`, `recv(2)` and others wait for a page that is not held; otherwise they fail with EFAULT,
    /// unless calls of the C library are made whole ([`crate::Region::system_calls_work`]).
    pub system_calls_wait: bool,
    /// Whether a thread that blocks all signals may touch the region; otherwise the kernel kills the process.
    pub works_with_signals_blocked: bool,
    /// Whether it needs userfaultfd with minor faults and write protection of shared memory (Linux 6.4).
    pub needs_userfaultfd: bool,
}

impl Catcher {
    /// Every catcher.
    pub const ALL: [Catcher; 3] = [Catcher::Signal, Catcher::Handler, Catcher::Mprotect];

    /// The abilities of the catcher.
    pub const fn abilities(self) -> Abilities {
        match self {
            Catcher::Signal => signal::ABILITIES,
            Catcher::Handler => handler::ABILITIES,
            Catcher::Mprotect => mprotect::ABILITIES,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Catcher::Signal => "signal",
            Catcher::Handler => "handler",
            Catcher::Mprotect => "mprotect",
        }
    }
}

impl fmt::Display for Catcher {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.word())
    }
}

impl FromStr for Catcher {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Catcher, UnknownWord> {
        Catcher::ALL
            .into_iter()
            .find(|catcher| catcher.word() == word)
            .ok_or_else(|| UnknownWord { word: word.to_owned(), accepted: "signal, handler or mprotect" })
    }
}

/// Part of the application view, in addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

/// A refusal of the kernel: the request, and the error number.
pub(crate) struct Refusal {
    pub(crate) operation: &'static str,
    pub(crate) errno: i32,
}

impl Refusal {
    pub(crate) fn of(operation: &'static str) -> impl Fn(i32) -> Refusal {
        move |errno| Refusal { operation, errno }
    }
}

/// A prepared catcher of one region. Its methods implement the contract above; see [`crate::Region`] for the callers'
/// side.
pub(crate) trait Catch: Send + Sync {
    /// The signal that a fault becomes; `None` if faults are queued.
    fn signal(&self) -> Option<libc::c_int>;
    fn install(&self, span: Span, writable: bool) -> Result<(), Refusal>;
    fn upgrade(&self, span: Span) -> Result<(), Refusal>;
    fn downgrade(&self, span: Span) -> Result<(), Refusal>;
    fn revoke(&self, span: Span) -> Result<(), Refusal>;
    /// Catches faults in a piece of the view that was mapped just now; its pages are *none*.
    fn watch(&self, span: Span) -> Result<(), Refusal>;
    fn wake(&self, span: Span);
    /// The descriptor that is readable while faults are queued, if they are queued.
    fn event(&self) -> Option<RawFd>;
    /// Every descriptor, for a forked child to close.
    fn descriptors(&self) -> [Option<RawFd>; DESCRIPTORS];
    /// Whether a system call waits for a page here, all permissions considered.
    fn system_calls_wait(&self) -> bool;
    /// Takes queued faults. Returns their number.
    fn take(&self, into: &mut [Message]) -> usize;
    /// Whether stores can be recorded without a fault.
    fn marks_work(&self) -> bool;
    /// Sets how stores to these pages are detected from now on.
    fn detect(&self, span: Span, detection: Detection) -> Result<(), Refusal>;
    /// Calls `found` with ranges of pages (first, count) that were stored to; changes nothing.
    fn stored_to(&self, span: Span, found: &mut dyn FnMut(usize, usize)) -> Result<(), Refusal>;
}

/// The maximum number of a catcher's descriptors.
pub(crate) const DESCRIPTORS: usize = 7;

/// Creates the catcher of a region whose application view has its pages at `places`. From now on they are *none*,
/// except those of pieces, which [`Catch::watch`] adds. The faults of the pages `queued` are queued, if the catcher uses
/// userfaultfd. `file` holds the bytes and must outlive the catcher.
pub(crate) fn prepare(
    catcher: Catcher,
    places: Places,
    queued: &[Range<usize>],
    page_bytes: usize,
    file: &Memfd,
) -> Result<Box<dyn Catch>, String> {
    let whole = places.whole();
    Ok(match catcher {
        Catcher::Signal if !queued.is_empty() => Box::new(mixed::Mixed::prepare(places, queued, page_bytes, file)?),
        Catcher::Signal => Box::new(signal::Signal::prepare(places, &[whole], page_bytes, file)?),
        Catcher::Handler => Box::new(handler::Handler::prepare(places, &[whole], page_bytes, file)?),
        Catcher::Mprotect => Box::new(mprotect::Mprotect),
    })
}

/// The protection with which a region's application view is first mapped.
pub(crate) fn first_protection(catcher: Catcher) -> libc::c_int {
    match catcher {
        Catcher::Signal | Catcher::Handler => libc::PROT_READ | libc::PROT_WRITE,
        Catcher::Mprotect => libc::PROT_NONE,
    }
}

/// Chooses a catcher for this machine. The answer includes the reason, and what would be better.
///
/// Without a request, the choice is the first of these with which system calls work on shared memory: `signal`, if
/// calls of the C library are made whole, and `handler`, if userfaultfd is allowed for faults of the kernel. Otherwise
/// it is `signal`, and `mprotect` if there is no userfaultfd.
///
/// # Errors
/// The requested catcher does not work here; the message says why and how to make it work.
pub fn choose(requested: Option<Catcher>, machine: &Capabilities) -> Result<(Catcher, String), String> {
    if let Some(catcher) = requested {
        return match missing(catcher, machine) {
            None => Ok((catcher, format!("{catcher} was asked for; {}", character(catcher, machine)))),
            Some(why) => Err(format!("catch = \"{catcher}\" does not work here: {why}")),
        };
    }
    let works = |catcher: &Catcher| missing(*catcher, machine).is_none();
    let serves_calls = |catcher: &Catcher| works(catcher) && machine.system_calls_work(*catcher);
    let chosen = [Catcher::Signal, Catcher::Handler].into_iter().find(serves_calls);
    Ok(match chosen.or_else(|| Some(Catcher::Signal).filter(works)) {
        Some(catcher) => (catcher, character(catcher, machine)),
        None => {
            let why = missing(Catcher::Signal, machine).unwrap_or_default();
            (Catcher::Mprotect, format!("{why}; so {}", character(Catcher::Mprotect, machine)))
        }
    })
}

/// What prevents `catcher` from working, as a phrase.
fn missing(catcher: Catcher, machine: &Capabilities) -> Option<String> {
    if !catcher.abilities().needs_userfaultfd {
        return None;
    }
    let mut needed = vec![&machine.minor_shmem, &machine.write_protect_shmem, &machine.mechanism];
    if catcher == Catcher::Signal {
        needed.push(&machine.sigbus);
    }
    if [&machine.device, &machine.system_call, &machine.user_mode_only].iter().all(|door| !door.available) {
        return Some(format!(
            "userfaultfd cannot be opened ({}; {})",
            machine.device.detail, machine.user_mode_only.detail
        ));
    }
    needed
        .into_iter()
        .find(|capability| !capability.available)
        .map(|lacking| format!("{}: {}", lacking.name, lacking.detail))
}

/// What a catcher does here, and what would be better.
fn character(catcher: Catcher, machine: &Capabilities) -> String {
    let serves = match catcher {
        Catcher::Signal => "a fault is served in the thread that made it",
        Catcher::Handler => "a thread that faults waits in the kernel, and a service thread fetches the page",
        Catcher::Mprotect => {
            "pages are protected with mprotect, and the region can be cut into at most vm.max_map_count pieces"
        }
    };
    let calls = match (catcher, machine.system_calls_work(catcher)) {
        (Catcher::Handler, true) => {
            let faster = format!("{} {}", machine.calls.name, machine.calls.detail);
            return format!("{serves}; signal would be faster: {faster}");
        }
        (_, true) => "and system calls on a page that is not held are made whole".to_owned(),
        (Catcher::Handler, false) => {
            "but userfaultfd is allowed for user code only, so a system call on a page that is \
                                      not held fails with EFAULT"
                .to_owned()
        }
        (_, false) => {
            format!("but a system call on a page that is not held fails with EFAULT: {}", machine.calls.detail)
        }
    };
    format!("{serves}, {calls}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_catchers_agree() {
        for catcher in Catcher::ALL {
            assert_eq!(catcher.to_string().parse::<Catcher>(), Ok(catcher));
        }
        let error = "sigsegv".parse::<Catcher>().expect_err("no such catcher");
        assert!(error.to_string().contains("signal, handler or mprotect"), "{error}");
    }

    #[test]
    fn the_default_follows_the_machine() {
        let mut machine = Capabilities::everything_for_tests();
        assert_eq!(choose(None, &machine).expect("there is one").0, Catcher::Signal);

        machine.calls.available = false;
        machine.calls.detail = "is not loaded".to_owned();
        let (catcher, why) = choose(None, &machine).expect("there is one");
        assert_eq!(catcher, Catcher::Handler, "where system calls work");
        assert!(why.contains("is not loaded"), "{why}");

        machine.device.available = false;
        machine.system_call.available = false;
        let (catcher, why) = choose(None, &machine).expect("there is one");
        assert_eq!(catcher, Catcher::Signal, "the faster one of two with which they fail");
        assert!(why.contains("EFAULT: is not loaded"), "{why}");

        machine.user_mode_only.available = false;
        assert_eq!(choose(None, &machine).expect("there is one").0, Catcher::Mprotect);
        let error = choose(Some(Catcher::Handler), &machine).expect_err("it cannot work");
        assert!(error.contains("cannot be opened"), "{error}");
        assert_eq!(choose(Some(Catcher::Mprotect), &machine).expect("it always works").0, Catcher::Mprotect);
    }

    #[test]
    fn a_kernel_without_the_mechanism_gets_mprotect() {
        let mut machine = Capabilities::everything_for_tests();
        machine.mechanism.available = false;
        machine.mechanism.detail = "needs Linux 6.4".to_owned();
        let (catcher, why) = choose(None, &machine).expect("there is one");
        assert_eq!(catcher, Catcher::Mprotect);
        assert!(why.contains("needs Linux 6.4"), "{why}");
    }
}
