//! What a launcher hands over to a node, and what a node shows its launcher.
//!
//! A node gets its number and the addresses in the environment, and three open descriptors: a listening socket, a pipe
//! with the secret, and a [`StatusPage`] in shared memory, in which the launcher sees what the node does, even after
//! the node was killed.
//!
//! Promises: descriptors are taken once, their variables leave the environment, and no program that the node starts
//! inherits them. It must never wait for the other side.

use std::fs::File;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::SocketType;
use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::secret::{Secret, SecretError};
use crate::waits::Wait;
use trellis_record::LiveCounters;

/// The number of the node.
pub const NODE_VARIABLE: &str = "TRELLIS_NODE";
/// The addresses of all nodes, separated by commas.
pub const NODES_VARIABLE: &str = "TRELLIS_NODES";
/// The descriptor of the socket that already listens on the node's address.
pub const LISTEN_FD_VARIABLE: &str = "TRELLIS_LISTEN_FD";
/// The descriptor of the pipe with the 32 bytes of the secret.
pub const SECRET_FD_VARIABLE: &str = "TRELLIS_SECRET_FD";
/// The descriptor of the node's status page.
pub const STATUS_FD_VARIABLE: &str = "TRELLIS_STATUS_FD";
/// Set if the memory servers belong to the run and end with it, so that no node needs to delete the region.
pub const MEMORY_ENDS_VARIABLE: &str = "TRELLIS_MEMORY_ENDS";

/// The variables of a launcher that are no keys of the configuration.
pub const VARIABLES: [&str; 4] = [LISTEN_FD_VARIABLE, SECRET_FD_VARIABLE, STATUS_FD_VARIABLE, MEMORY_ENDS_VARIABLE];

pub use trellis_cache::end::EXIT_CLUSTER;
/// The exit status of a node whose configuration was refused.
pub const EXIT_CONFIGURATION: i32 = 78;

/// What a launcher handed over. Everything is absent in a process that was started by hand.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The socket that listens on this node's address, if the link uses connections.
    pub listener: Option<TcpListener>,
    /// The socket on this node's address, if the link uses datagrams.
    pub datagrams: Option<UdpSocket>,
    /// The secret of the job.
    pub secret: Option<Secret>,
    /// The page that the launcher watches.
    pub status: Option<StatusPage>,
}

/// Why something that a launcher handed over cannot be used, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A variable does not name a descriptor of the right kind.
    #[error("{variable}={value}: {why}; start the program with `trellis run`, or unset the variable")]
    Descriptor {
        /// The name of the variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with the value.
        why: String,
    },
    /// The secret could not be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl Inherited {
    /// Takes what the environment names, and removes the names from the environment. A second call finds nothing.
    pub fn take() -> Result<Inherited, LaunchError> {
        let listener = descriptor(LISTEN_FD_VARIABLE)?;
        let secret = descriptor(SECRET_FD_VARIABLE)?;
        let status = descriptor(STATUS_FD_VARIABLE)?;
        let (listener, datagrams) = match listener {
            Some(socket) if socket_type(&socket) == Ok(SocketType::DGRAM) => (None, Some(socket.into())),
            Some(socket) => (Some(listener_of(socket)?), None),
            None => (None, None),
        };
        Ok(Inherited {
            listener,
            datagrams,
            secret: secret.map(Secret::from_pipe).transpose()?,
            status: status.map(status_of).transpose()?,
        })
    }
}

/// Takes one variable, and the ownership of the descriptor that it names.
fn descriptor(variable: &'static str) -> Result<Option<OwnedFd>, LaunchError> {
    let Some(value) = std::env::var_os(variable) else {
        return Ok(None);
    };
    // SAFETY: Rust's own readers of the environment hold a lock against this. C code that reads the environment in
    // another thread at this moment may miss one variable, but the strings themselves stay where they are.
    unsafe { std::env::remove_var(variable) };
    let wrong = |why: String| LaunchError::Descriptor { variable, value: value.to_string_lossy().into_owned(), why };
    let number: RawFd = value
        .to_str()
        .and_then(|text| text.parse().ok())
        .filter(|number| *number > 2)
        .ok_or_else(|| wrong("this is no descriptor above 2".to_owned()))?;
    // SAFETY: fcntl on a plain number; a number that is not open gives EBADF.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(wrong(format!("the descriptor is not open here ({})", io::Error::last_os_error())));
    }
    // SAFETY: it is open, and the launcher gave it to this process alone. It cannot be taken twice, because the
    // variable is gone.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(number) }))
}

fn listener_of(descriptor: OwnedFd) -> Result<TcpListener, LaunchError> {
    if socket_acceptconn(&descriptor) != Ok(true) {
        return Err(LaunchError::Descriptor {
            variable: LISTEN_FD_VARIABLE,
            value: descriptor.as_raw_fd().to_string(),
            why: "the descriptor is not a listening socket".to_owned(),
        });
    }
    Ok(TcpListener::from(descriptor))
}

fn status_of(descriptor: OwnedFd) -> Result<StatusPage, LaunchError> {
    let value = descriptor.as_raw_fd().to_string();
    StatusPage::open(descriptor).map_err(|error| LaunchError::Descriptor {
        variable: STATUS_FD_VARIABLE,
        value,
        why: format!("the descriptor is no status page of this version ({error})"),
    })
}

/// What a node does now. With several threads, it is what one of them began last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Running the program.
    Computing,
    /// Waiting for another node, or for another thread.
    Waiting(Wait),
    /// No longer a member.
    Left,
}

impl std::fmt::Display for Activity {
    /// In words that complete "the node was killed while …".
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Activity::Computing => formatter.write_str("computing"),
            Activity::Waiting(wait) => wait.fmt(formatter),
            Activity::Left => formatter.write_str("ending after it left the cluster"),
        }
    }
}

/// The number of bits of an activity's word that hold its page or id. The code is above them. A longer id is cut for
/// display.
const DETAIL_BITS: u32 = 56;

impl Activity {
    /// Encodes the activity in one word, so that a reader never sees the code of one activity with the page of another.
    /// It is never 0.
    pub(crate) fn to_word(self) -> u64 {
        let (code, detail) = match self {
            Activity::Computing => (2, 0),
            Activity::Left => (9, 0),
            Activity::Waiting(wait) => wait.to_code(),
        };
        code << DETAIL_BITS | detail & ((1 << DETAIL_BITS) - 1)
    }

    pub(crate) fn from_word(word: u64) -> Option<Activity> {
        let detail = word & ((1 << DETAIL_BITS) - 1);
        match word >> DETAIL_BITS {
            2 => Some(Activity::Computing),
            9 => Some(Activity::Left),
            code => Wait::from_code(code, detail).map(Activity::Waiting),
        }
    }
}

/// Nanoseconds of the kernel's monotonic clock, which a launcher and its nodes share.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable, and this clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Lets the calling thread, and threads that it starts, run on one core only: number `number`, modulo the number of
/// cores that the process may use. If the kernel refuses, nothing changes: pinning affects times and not results.
pub fn pin_thread(number: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    let mut one = CpuSet::new();
    one.set(cores[number % cores.len()]);
    let _ = sched_setaffinity(None, &one);
}

/// The maximum length of a sentence in a status page, in bytes.
pub const FAILURE_BYTES_MAX: usize = 512;

/// It changes with the layout below, so that a launcher and a node of different versions notice.
const MAGIC: u64 = u64::from_le_bytes(*b"trellis3");

/// The layout of the shared page.
#[repr(C)]
struct Shared {
    magic: AtomicU64,
    pid: AtomicU32,
    /// The node's number plus 1; 0 before it has one.
    node: AtomicU32,
    /// Not 0 if a user asked the node to leave.
    leave_requested: AtomicU32,
    activity: AtomicU64,
    since_ns: AtomicU64,
    counters: LiveCounters,
    /// The number of the node that the failure is about, plus 1; 0 while there is none.
    culprit: AtomicU32,
    /// Not 0 if a record was requested and could not be written.
    has_lost_record: AtomicU32,
    failure: Sentence,
    waiting: Sentence,
}

/// A sentence that one process writes and another reads.
#[repr(C)]
struct Sentence {
    /// 0: no sentence; 1: it is being written; else its length plus 1, and in the bits above, how often it was written.
    state: AtomicU64,
    bytes: [AtomicU8; FAILURE_BYTES_MAX],
}

impl Sentence {
    /// Writes the sentence, cut to the room, unless another thread writes at this moment.
    fn set(&self, text: &str) {
        let before = self.state.load(Ordering::Relaxed);
        let claim = self.state.compare_exchange(before, BEING_WRITTEN, Ordering::Acquire, Ordering::Relaxed);
        if before == BEING_WRITTEN || claim.is_err() {
            return;
        }
        let length = (0..=text.len().min(FAILURE_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
        let bytes = &text.as_bytes()[..length.unwrap_or(0)];
        for (cell, byte) in self.bytes.iter().zip(bytes) {
            cell.store(*byte, Ordering::Relaxed);
        }
        // The length is written last: a reader that sees it sees the bytes.
        let written = (before / WRITTEN_ONCE + 1) * WRITTEN_ONCE;
        self.state.store(written + bytes.len() as u64 + 1, Ordering::Release);
    }

    /// The sentence; `None` if there is none, or if it is being written.
    fn get(&self) -> Option<String> {
        let state = self.state.load(Ordering::Acquire);
        let length = ((state % WRITTEN_ONCE) as usize).checked_sub(1)?.min(FAILURE_BYTES_MAX);
        let bytes: Vec<u8> = self.bytes[..length].iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
        fence(Ordering::Acquire);
        let is_whole = self.state.load(Ordering::Relaxed) == state;
        (is_whole && !bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
    }
}

const BEING_WRITTEN: u64 = 1;
const WRITTEN_ONCE: u64 = 1 << 16;

const PAGE_BYTES: usize = 4096;
const _: () = assert!(size_of::<Shared>() <= PAGE_BYTES);
const _: () = assert!(FAILURE_BYTES_MAX + 1 < WRITTEN_ONCE as usize);

/// One page of memory that a node writes and its launcher reads, during the node's life and after it.
///
/// The node may die at any moment, so every field is an atomic and none is a lock.
#[derive(Debug)]
pub struct StatusPage {
    shared: NonNull<Shared>,
    descriptor: OwnedFd,
}

// SAFETY: the page consists of atomics only, and stays mapped as long as the value lives.
unsafe impl Send for StatusPage {}
// SAFETY: as above.
unsafe impl Sync for StatusPage {}

impl StatusPage {
    /// Makes an empty page. A launcher does so for each node, and a node without a launcher for itself.
    pub fn create() -> io::Result<StatusPage> {
        let file = File::from(memfd_create(c"trellis-status", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.set_len(PAGE_BYTES as u64)?;
        // A node that made its page shorter would kill the launcher with SIGBUS.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
        let page = StatusPage::map(OwnedFd::from(file))?;
        page.shared().magic.store(MAGIC, Ordering::Release);
        Ok(page)
    }

    /// Opens the page that a launcher made, and stores the number of this process in it.
    pub fn open(descriptor: OwnedFd) -> io::Result<StatusPage> {
        let file = File::from(descriptor);
        if file.metadata()?.len() < PAGE_BYTES as u64 {
            return Err(io::Error::other("it is shorter than a page"));
        }
        let page = StatusPage::map(OwnedFd::from(file))?;
        if page.shared().magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::other("it does not begin as a status page"));
        }
        page.shared().pid.store(std::process::id(), Ordering::Relaxed);
        Ok(page)
    }

    /// The bytes of the page, for a launcher on another host.
    pub fn bytes(&self) -> Vec<u8> {
        self.words().iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    /// Replaces the page by the bytes of another one. Bytes that are missing stay. No other thread or process may write
    /// the page.
    pub fn replace(&self, bytes: &[u8]) {
        for (word, bytes) in self.words().iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// The page as words. An activity is one word, and is never torn.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is this long, page-aligned, consists of atomics, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.shared.as_ptr().cast(), PAGE_BYTES / size_of::<u64>()) }
    }

    /// The descriptor to hand over. Programs that this process starts do not inherit it otherwise.
    pub fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// The number of the process that opened the page; 0 before that.
    pub fn pid(&self) -> u32 {
        self.shared().pid.load(Ordering::Relaxed)
    }

    /// Stores the node's number.
    pub fn set_node(&self, node: u16) {
        self.shared().node.store(u32::from(node) + 1, Ordering::Relaxed);
    }

    /// The node's number; `None` before it has one.
    pub fn node(&self) -> Option<u16> {
        self.shared().node.load(Ordering::Relaxed).checked_sub(1).map(|node| node as u16)
    }

    /// Asks the node to leave when its program reaches a suitable point.
    pub fn request_leave(&self) {
        self.shared().leave_requested.store(1, Ordering::Relaxed);
    }

    /// Whether a user asked the node to leave.
    pub fn is_leave_requested(&self) -> bool {
        self.shared().leave_requested.load(Ordering::Relaxed) != 0
    }

    /// Stores what the node does from now on. Returns what it did before, which the caller can restore.
    pub fn enter(&self, activity: Activity, now_ns: u64) -> Option<Activity> {
        self.shared().since_ns.store(now_ns, Ordering::Relaxed);
        Activity::from_word(self.shared().activity.swap(activity.to_word(), Ordering::Relaxed))
    }

    /// What the node does, and since when on the clock of [`monotonic_ns`]; `None` before the node stored it.
    pub fn activity(&self) -> Option<(Activity, u64)> {
        let activity = Activity::from_word(self.shared().activity.load(Ordering::Relaxed))?;
        Some((activity, self.shared().since_ns.load(Ordering::Relaxed)))
    }

    /// The counters of the node. Its threads count in them directly.
    pub fn counters(&self) -> &LiveCounters {
        &self.shared().counters
    }

    /// Stores the node's last sentence for the launcher, and the node that it is about. Only the first one is kept,
    /// because later ones are consequences.
    pub fn set_failure(&self, culprit: u16, sentence: &str) {
        let first =
            self.shared().culprit.compare_exchange(0, u32::from(culprit) + 1, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_ok() {
            self.shared().failure.set(sentence);
        }
    }

    /// The node that the last sentence is about: this one, or one that it lost.
    pub fn culprit(&self) -> Option<u16> {
        self.shared().culprit.load(Ordering::Relaxed).checked_sub(1).map(|node| node as u16)
    }

    /// The node's last sentence, if it left one.
    pub fn failure(&self) -> Option<String> {
        self.shared().failure.get()
    }

    /// Stores that the node could not write its record.
    pub fn set_lost_record(&self) {
        self.shared().has_lost_record.store(1, Ordering::Relaxed);
    }

    /// Whether the node could not write its record.
    pub fn has_lost_record(&self) -> bool {
        self.shared().has_lost_record.load(Ordering::Relaxed) != 0
    }

    /// Stores for what the node has been waiting for long, and who is in the way. An empty sentence means that it is
    /// not.
    pub fn set_waiting(&self, sentence: &str) {
        if !sentence.is_empty() || self.waiting().is_some() {
            self.shared().waiting.set(sentence);
        }
    }

    /// The sentence of [`StatusPage::set_waiting`].
    pub fn waiting(&self) -> Option<String> {
        self.shared().waiting.get()
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping is as long as `Shared`, page-aligned, began as zeros and is changed only through atomics,
        // and lives as long as `self`; the file cannot be made shorter.
        unsafe { self.shared.as_ref() }
    }

    fn map(descriptor: OwnedFd) -> io::Result<StatusPage> {
        // SAFETY: a new mapping where the kernel likes; the file was checked to be at least this long.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                descriptor.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let shared = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(StatusPage { shared, descriptor })
    }
}

impl Drop for StatusPage {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.shared.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests;
