//! The axis *catch*: how an access to a page that is not held is noticed, and how the access to
//! pages is changed.
//!
//! # The contract
//!
//! A page of the application view is at any time in one of three states: *none* (every access is a
//! fault), *read* (a write is a fault) or *write*. A catcher keeps these promises:
//!
//! 1. A fault is reported as often as it happens, with the page and with whether it was a write. It
//!    may be reported again although it was answered meanwhile; answering it again does no harm.
//! 2. The thread that made the fault goes on only when its access is allowed; if it is not, the
//!    fault is reported again.
//! 3. `install` makes pages visible that were *none*; what the engine view holds at that moment is
//!    what is seen.
//! 4. When `downgrade` or `revoke` returns, no processor writes (or reads) through an old
//!    translation: every store of the application that took effect is visible in the engine view,
//!    and no later one is without a new fault.
//! 5. `revoke` keeps the bytes.
//! 6. Every change may be asked for from any thread, also while a fault is being served, allocates
//!    nothing and takes no lock. Asking for a state that holds already is no error.
//!
//! Who calls it keeps the from-state: `upgrade` and `downgrade` are for pages that are *read* or
//! *write*.
//!
//! # Marks
//!
//! A catcher may let the kernel note stores instead of making them faults ([`crate::Detection::Marks`]), page by page.
//! For a page under marks the contract has two differences: a store to a *read* page is no fault, and `stored_to` tells
//! of the page from then on until `downgrade` or `revoke`; and `install` leaves a page that is there as it is, so that
//! no mark is lost. `stored_to` may tell of a page that nobody stored to (the kernel reclaimed it), never the other way
//! round. Stores through the engine view are never told.
//!
//! What the catchers cannot do is in [`Abilities`], so that a protocol or a program that needs more
//! is refused with a sentence instead of failing later. A new catcher is one file here, one line in
//! [`Catcher::ALL`], its arm in `prepare`, and the suite in `tests/conformance.rs`.

mod handler;
mod mprotect;
mod pages;
mod signal;
mod userfault;

use std::fmt;
use std::os::fd::RawFd;
use std::str::FromStr;

use crate::doctor::Capabilities;
use crate::error::UnknownWord;
use crate::region::Detection;
use crate::sys::linux::memfd::Memfd;
use crate::sys::linux::uffd::Message;

pub(crate) use mprotect::REQUEST as MPROTECT_REQUEST;
pub(crate) use userfault::MARKS_REQUEST;

/// The ways to notice an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Catcher {
    /// userfaultfd with SIGBUS: the fault is served in the thread that made it. Fastest; a system
    /// call on a page that is not held fails with EFAULT.
    Signal,
    /// userfaultfd with a queue of faults: the thread waits in the kernel while another thread
    /// serves. System calls on shared buffers work.
    Handler,
    /// mprotect(2) and SIGSEGV: for kernels and containers without userfaultfd.
    Mprotect,
}

/// What a catcher can and cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// A fault says whether it was a write.
    pub tells_writes_from_reads: bool,
    /// The thread that made the fault serves it; otherwise a thread that polls
    /// [`crate::Region::event_fd`] does.
    pub serves_in_the_faulting_thread: bool,
    /// `read(2)`, `recv(2)` and others wait for a page that is not held; otherwise they fail with
    /// EFAULT.
    pub system_calls_wait: bool,
    /// A thread that blocks all signals may touch the region; otherwise the kernel kills the
    /// process.
    pub works_with_signals_blocked: bool,
    /// Needs userfaultfd with minor faults and write protection of shared memory (Linux 6.4).
    pub needs_userfaultfd: bool,
    /// Every change of protection can split a mapping, of which a process may have vm.max_map_count
    /// (65,530).
    pub bounded_by_mapping_count: bool,
}

impl Catcher {
    /// Every catcher there is.
    pub const ALL: [Catcher; 3] = [Catcher::Signal, Catcher::Handler, Catcher::Mprotect];

    /// What it can do.
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
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

/// The kernel's no: which request, and the error number.
pub(crate) struct Refusal {
    pub(crate) operation: &'static str,
    pub(crate) errno: i32,
}

impl Refusal {
    pub(crate) fn of(operation: &'static str) -> impl Fn(i32) -> Refusal {
        move |errno| Refusal { operation, errno }
    }
}

/// A prepared catcher of one region. Its methods are the contract above; see [`crate::Region`] for
/// their callers' side.
pub(crate) trait Catch: Send + Sync {
    /// The signal that a fault becomes; `None` when faults wait in a queue.
    fn signal(&self) -> Option<libc::c_int>;
    fn install(&self, span: Span, writable: bool) -> Result<(), Refusal>;
    fn upgrade(&self, span: Span) -> Result<(), Refusal>;
    fn downgrade(&self, span: Span) -> Result<(), Refusal>;
    fn revoke(&self, span: Span) -> Result<(), Refusal>;
    fn wake(&self, span: Span);
    /// The descriptor that is readable while faults wait, where faults wait.
    fn event(&self) -> Option<RawFd>;
    /// Every descriptor, for a forked child to close.
    fn descriptors(&self) -> [Option<RawFd>; DESCRIPTORS];
    /// Whether a system call waits for a page here, all permissions considered.
    fn system_calls_wait(&self) -> bool;
    /// Takes waiting faults out of the queue; returns how many.
    fn take(&self, into: &mut [Message]) -> usize;
    /// Whether stores can be noted without a fault.
    fn marks_work(&self) -> bool;
    /// From now on stores to these pages are noticed so.
    fn detect(&self, span: Span, detection: Detection) -> Result<(), Refusal>;
    /// Calls `found` with runs of pages (first, count) that were stored to; changes nothing.
    fn stored_to(&self, span: Span, found: &mut dyn FnMut(usize, usize)) -> Result<(), Refusal>;
}

/// How many descriptors a catcher has at most.
pub(crate) const DESCRIPTORS: usize = 4;

/// Makes the catcher of a region whose application view is `view`; from here on the view's pages
/// are *none*. `file` holds its bytes and must live longer.
pub(crate) fn prepare(catcher: Catcher, view: Span, page_bytes: usize, file: &Memfd) -> Result<Box<dyn Catch>, String> {
    Ok(match catcher {
        Catcher::Signal => Box::new(signal::Signal::prepare(view, page_bytes, file)?),
        Catcher::Handler => Box::new(handler::Handler::prepare(view, page_bytes, file)?),
        Catcher::Mprotect => Box::new(mprotect::Mprotect),
    })
}

/// The protection with which the application view of a region is first mapped.
pub(crate) fn first_protection(catcher: Catcher) -> libc::c_int {
    match catcher {
        Catcher::Signal | Catcher::Handler => libc::PROT_READ | libc::PROT_WRITE,
        Catcher::Mprotect => libc::PROT_NONE,
    }
}

/// Chooses a catcher for what this machine can do. The answer comes with the reason and with what
/// would be better.
///
/// Without a wish it is `handler`, because then every system call works on shared buffers; `signal`
/// where userfaultfd is allowed for user code only, which takes that advantage away; `mprotect`
/// where there is no userfaultfd.
///
/// # Errors
/// The catcher asked for does not work here; the sentence says why and what would bring it.
pub fn choose(requested: Option<Catcher>, machine: &Capabilities) -> Result<(Catcher, String), String> {
    match requested {
        Some(catcher) => match missing(catcher, machine) {
            None => Ok((catcher, format!("{catcher} was asked for; {}", character(catcher, machine)))),
            Some(why) => Err(format!("catch = \"{catcher}\" does not work here: {why}")),
        },
        None if missing(Catcher::Handler, machine).is_none() && machine.kernel_faults_wait() => {
            Ok((Catcher::Handler, character(Catcher::Handler, machine)))
        }
        None if missing(Catcher::Signal, machine).is_none() => Ok((
            Catcher::Signal,
            format!(
                "userfaultfd is allowed for user code only, so {}; with the sysctl vm.unprivileged_userfaultfd=1, or \
                 with permission to open /dev/userfaultfd, the catcher handler would be chosen and system calls would \
                 work on shared buffers",
                character(Catcher::Signal, machine)
            ),
        )),
        None => {
            let why = missing(Catcher::Signal, machine).unwrap_or_default();
            Ok((Catcher::Mprotect, format!("{why}; so {}", character(Catcher::Mprotect, machine))))
        }
    }
}

/// What keeps `catcher` from working, as a phrase.
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

fn character(catcher: Catcher, machine: &Capabilities) -> String {
    match catcher {
        Catcher::Signal => "a fault is served in the thread that made it, which is the fastest way, but a system call \
                            on a page that is not held fails with EFAULT"
            .to_owned(),
        Catcher::Handler if machine.kernel_faults_wait() => {
            "a thread that faults waits in the kernel, so system calls work on shared buffers; catch = \"signal\" is \
             faster when the program passes no shared buffer to a system call"
                .to_owned()
        }
        Catcher::Handler => "a thread that faults waits in the kernel, but userfaultfd is allowed for user code only, \
                             so a system call on a page that is not held fails with EFAULT; catch = \"signal\" is faster \
                             and loses nothing"
            .to_owned(),
        Catcher::Mprotect => "pages are protected with mprotect and faults arrive as SIGSEGV: it works everywhere, but \
                              a system call on a page that is not held fails with EFAULT and the region can be cut into \
                              at most vm.max_map_count pieces"
            .to_owned(),
    }
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
        assert_eq!(choose(None, &machine).expect("there is one").0, Catcher::Handler);

        machine.device.available = false;
        machine.system_call.available = false;
        let (catcher, why) = choose(None, &machine).expect("there is one");
        assert_eq!(catcher, Catcher::Signal);
        assert!(why.contains("vm.unprivileged_userfaultfd"), "{why}");

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
