//! userfaultfd(2): the kernel's structures, asserted, and the few requests that regions need.
//!
//! Promises: every request here may be made while a fault is served: it allocates nothing and takes no lock of the
//! runtime. The numbers and sizes below are the kernel's ABI (include/uapi/linux/userfaultfd.h); a wrong size does not
//! compile.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::errno;
use super::memfd::{Memfd, View, drop_pages};
use super::pagemap::{Pagemap, Sought};

/// Faults of pages that are in the page cache but not mapped are reported (Linux 5.14).
pub(crate) const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
/// Missing pages of shared memory are reported.
pub(crate) const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
/// Shared memory can be write-protected (Linux 5.19).
pub(crate) const FEATURE_WRITE_PROTECT_SHMEM: u64 = 1 << 12;
/// A fault is a SIGBUS in the thread that caused it (Linux 4.14).
pub(crate) const FEATURE_SIGBUS: u64 = 1 << 7;
/// The kernel can lift a write protection by itself and only record it (Linux 6.7).
pub(crate) const FEATURE_WRITE_PROTECT_ASYNC: u64 = 1 << 15;
/// A mapping that changes its address stays registered, and the change is reported (Linux 4.11).
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
/// The address of a fault is exact, and not that of its page (Linux 5.18).
const FEATURE_EXACT_ADDRESS: u64 = 1 << 11;
/// Write-protect faults are marked as such.
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;

const API: u64 = 0xaa;
const REGISTER_MISSING: u64 = 1 << 0;
const REGISTER_WRITE_PROTECT: u64 = 1 << 1;
const REGISTER_MINOR: u64 = 1 << 2;
const CONTINUE_DONT_WAKE: u64 = 1 << 0;
const CONTINUE_WRITE_PROTECTED: u64 = 1 << 1;
const REGISTERED_FOR_ALL: u64 = REGISTER_MISSING | REGISTER_WRITE_PROTECT | REGISTER_MINOR;
const PROTECT_WRITE: u64 = 1 << 0;
const PROTECT_DONT_WAKE: u64 = 1 << 1;
const USER_MODE_ONLY: libc::c_int = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const PAGEFAULT_WRITE: u64 = 1 << 0;
const PAGEFAULT_WRITE_PROTECT: u64 = 1 << 1;

#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    requests: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    bytes: u64,
}

#[repr(C)]
struct RegisterRequest {
    range: Range,
    mode: u64,
    requests: u64,
}

#[repr(C)]
struct ContinueRequest {
    range: Range,
    mode: u64,
    mapped: i64,
}

#[repr(C)]
struct ProtectRequest {
    range: Range,
    mode: u64,
}

/// The result of a read of the descriptor: `struct uffd_msg` with the variant for page faults.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Message {
    event: u8,
    reserved_1: u8,
    reserved_2: u16,
    reserved_3: u32,
    flags: u64,
    address: u64,
    thread: u64,
}

const DIRECTION_WRITE: u64 = 1;
const DIRECTION_READ: u64 = 2;

const fn request(direction: u64, number: u64, bytes: usize) -> u64 {
    (direction << 30) | ((bytes as u64) << 16) | (0xaa << 8) | number
}

const USERFAULTFD_NEW: u64 = request(0, 0x00, 0);
const UFFDIO_API: u64 = request(DIRECTION_READ | DIRECTION_WRITE, 0x3f, size_of::<ApiRequest>());
const UFFDIO_REGISTER: u64 = request(DIRECTION_READ | DIRECTION_WRITE, 0x00, size_of::<RegisterRequest>());
const UFFDIO_WAKE: u64 = request(DIRECTION_READ, 0x02, size_of::<Range>());
const UFFDIO_WRITEPROTECT: u64 = request(DIRECTION_READ | DIRECTION_WRITE, 0x06, size_of::<ProtectRequest>());
const UFFDIO_CONTINUE: u64 = request(DIRECTION_READ | DIRECTION_WRITE, 0x07, size_of::<ContinueRequest>());

const _: () = {
    assert!(size_of::<ApiRequest>() == 24);
    assert!(size_of::<Range>() == 16);
    assert!(size_of::<RegisterRequest>() == 32);
    assert!(size_of::<ContinueRequest>() == 32);
    assert!(size_of::<ProtectRequest>() == 24);
    assert!(size_of::<Message>() == 32);
    assert!(std::mem::offset_of!(Message, flags) == 8);
    assert!(std::mem::offset_of!(Message, address) == 16);
    assert!(USERFAULTFD_NEW == 0xaa00);
    assert!(UFFDIO_API == 0xc018_aa3f);
    assert!(UFFDIO_REGISTER == 0xc020_aa00);
    assert!(UFFDIO_WAKE == 0x8010_aa02);
    assert!(UFFDIO_WRITEPROTECT == 0xc018_aa06);
    assert!(UFFDIO_CONTINUE == 0xc020_aa07);
};

impl Message {
    pub(crate) const EMPTY: Message =
        Message { event: 0, reserved_1: 0, reserved_2: 0, reserved_3: 0, flags: 0, address: 0, thread: 0 };

    /// The address, and whether it was a write, if this is a page fault.
    pub(crate) fn page_fault(&self) -> Option<(usize, bool)> {
        let write = self.flags & (PAGEFAULT_WRITE | PAGEFAULT_WRITE_PROTECT) != 0;
        (self.event == EVENT_PAGEFAULT).then_some((self.address as usize, write))
    }
}

/// The ways to get a userfaultfd, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// `/dev/userfaultfd`: file permissions decide who may open it.
    Device,
    /// The system call: root, CAP_SYS_PTRACE or the sysctl vm.unprivileged_userfaultfd.
    SystemCall,
    /// The system call for faults of user code only: allowed for every process, but a system call on a page that is not
    /// held fails.
    UserModeOnly,
}

impl Entry {
    pub(crate) const ALL: [Entry; 3] = [Entry::Device, Entry::SystemCall, Entry::UserModeOnly];

    /// Opens a userfaultfd, which is non-blocking and closed on exec.
    pub(crate) fn open(self) -> io::Result<OwnedFd> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let number = match self {
            Entry::Device => {
                let device = File::options().read(true).write(true).open("/dev/userfaultfd")?;
                // SAFETY: the request takes flags by value and returns a new descriptor.
                unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_NEW as _, flags) }
            }
            Entry::SystemCall => system_call(flags),
            Entry::UserModeOnly => system_call(flags | USER_MODE_ONLY),
        };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

fn system_call(flags: libc::c_int) -> RawFd {
    // SAFETY: userfaultfd(2) takes flags by value and returns a new descriptor.
    unsafe { libc::syscall(libc::SYS_userfaultfd, flags) as RawFd }
}

/// The features of a userfaultfd opened through `entry`, as bits.
pub(crate) fn features(entry: Entry) -> io::Result<u64> {
    let file = entry.open()?;
    handshake(&file, 0)
}

fn handshake(file: &OwnedFd, features: u64) -> io::Result<u64> {
    let mut api = ApiRequest { api: API, features, requests: 0 };
    // SAFETY: the request matches the number, and lives for the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), UFFDIO_API as _, &raw mut api) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(api.features)
}

/// An open userfaultfd with the features that a region needs.
pub(crate) struct Uffd {
    file: OwnedFd,
    /// Whether threads wait in the kernel for a page, and must be woken.
    threads_wait: bool,
    /// How it was opened.
    entry: Entry,
}

impl Uffd {
    /// Opens a userfaultfd in the first way that works. With `signal`, a fault is a SIGBUS and no thread waits.
    pub(crate) fn open(signal: bool) -> Result<Uffd, String> {
        Uffd::open_with(signal, false, 0)
    }

    /// Opens one like [`Uffd::open`], for mappings that [`super::moving`] moves.
    pub(crate) fn open_movable(signal: bool) -> Result<Uffd, String> {
        Uffd::open_with(signal, false, FEATURE_EVENT_REMAP)
    }

    /// Opens one like [`Uffd::open`], for pages on which the kernel records stores (Linux 6.7).
    pub(crate) fn open_for_marks(signal: bool) -> Result<Uffd, String> {
        Uffd::open_with(signal, true, FEATURE_WRITE_PROTECT_ASYNC | FEATURE_EVENT_REMAP)
    }

    fn open_with(signal: bool, marks: bool, more: u64) -> Result<Uffd, String> {
        let wanted = FEATURE_MINOR_SHMEM
            | FEATURE_MISSING_SHMEM
            | FEATURE_WRITE_PROTECT_SHMEM
            | FEATURE_PAGEFAULT_FLAG_WP
            | FEATURE_EXACT_ADDRESS;
        let wanted = if signal { wanted | FEATURE_SIGBUS } else { wanted } | more;
        let mut why = String::from("no userfaultfd could be opened");
        for entry in Entry::ALL {
            let file = match entry.open() {
                Ok(file) => file,
                Err(error) => {
                    why = format!("userfaultfd cannot be opened ({error}); run `trellis doctor`");
                    continue;
                }
            };
            return match handshake(&file, wanted) {
                Ok(_) => Ok(Uffd { file, threads_wait: !signal, entry }),
                Err(error) if marks => Err(format!(
                    "this kernel's userfaultfd cannot note stores without a fault ({error}); Linux 6.7 or newer can"
                )),
                Err(error) => Err(format!(
                    "this kernel's userfaultfd lacks minor faults or write protection of shared memory ({error}); \
                     Linux 6.4 or newer has both, catch = \"mprotect\" works without"
                )),
            };
        }
        Err(why)
    }

    /// Whether a fault inside a system call waits instead of failing.
    pub(crate) fn catches_system_calls(&self) -> bool {
        self.threads_wait && self.entry != Entry::UserModeOnly
    }

    /// The descriptor's number.
    pub(crate) fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Catches accesses to the range from now on.
    pub(crate) fn register(&self, start: usize, bytes: usize) -> io::Result<()> {
        let mut register = RegisterRequest {
            range: Range { start: start as u64, bytes: bytes as u64 },
            mode: REGISTERED_FOR_ALL,
            requests: 0,
        };
        // SAFETY: the request matches the number, and lives for the call.
        let done = unsafe { libc::ioctl(self.number(), UFFDIO_REGISTER as _, &raw mut register) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Maps the pages that the page cache holds for the range, and wakes the threads that wait for them.
    ///
    /// A page that is already present is accepted, but may have the other protection; with `change`, the whole range is
    /// then given the requested one. A write-protect marker that an earlier protect-then-drop left in the page table
    /// does not count as a page: CONTINUE replaces it, with either protection.
    pub(crate) fn make_present(&self, start: usize, bytes: usize, writable: bool, change: bool) -> Result<(), i32> {
        let end = start + bytes;
        let mut at = start;
        let mut until = end;
        let mut met_a_page = false;
        while at < end {
            match self.continue_once(at, until - at, writable) {
                Ok(()) => at = until,
                // The kernel stopped half way, or another thread is changing mappings; the rest is requested again.
                Err((libc::EAGAIN, mapped)) => {
                    at += mapped;
                    continue;
                }
                Err((libc::EEXIST, _)) => {
                    met_a_page = true;
                    at += super::kernel_page_bytes();
                }
                // The kernel takes pages of one mapping only, and the program has divided it (mbind(2), madvise(2)).
                Err((libc::ENOENT, _)) if until - at > super::kernel_page_bytes() => {
                    until = at + ((until - at) / 2).next_multiple_of(super::kernel_page_bytes());
                    continue;
                }
                Err((error, _)) => return Err(error),
            }
            until = end;
        }
        if met_a_page {
            if change {
                self.protect(start, bytes, writable)?;
            }
            self.wake(start, bytes);
        }
        Ok(())
    }

    fn continue_once(&self, start: usize, bytes: usize, writable: bool) -> Result<(), (i32, usize)> {
        let protection = if writable { 0 } else { CONTINUE_WRITE_PROTECTED };
        let waking = if self.threads_wait { 0 } else { CONTINUE_DONT_WAKE };
        let mut request = ContinueRequest {
            range: Range { start: start as u64, bytes: bytes as u64 },
            mode: protection | waking,
            mapped: 0,
        };
        // SAFETY: the request matches the number, and lives for the call.
        if unsafe { libc::ioctl(self.number(), UFFDIO_CONTINUE as _, &raw mut request) } == 0 {
            return Ok(());
        }
        Err((errno(), usize::try_from(request.mapped).unwrap_or(0)))
    }

    /// Removes write access, or restores it and wakes the threads that wait for it.
    ///
    /// When it returns, no processor can write through an old translation any more.
    pub(crate) fn protect(&self, start: usize, bytes: usize, writable: bool) -> Result<(), i32> {
        let mode = match (writable, self.threads_wait) {
            (false, _) => PROTECT_WRITE,
            (true, true) => 0,
            (true, false) => PROTECT_DONT_WAKE,
        };
        let mut request = ProtectRequest { range: Range { start: start as u64, bytes: bytes as u64 }, mode };
        loop {
            // SAFETY: the request matches the number, and lives for the call.
            let done = unsafe { libc::ioctl(self.number(), UFFDIO_WRITEPROTECT as _, &raw mut request) };
            match done {
                0 => return Ok(()),
                _ if errno() == libc::EAGAIN => {}
                _ => return Err(errno()),
            }
        }
    }

    /// Wakes the threads that wait for the range; they retry their accesses.
    pub(crate) fn wake(&self, start: usize, bytes: usize) {
        if !self.threads_wait {
            return;
        }
        let mut range = Range { start: start as u64, bytes: bytes as u64 };
        // SAFETY: the request matches the number, and lives for the call. It can only fail for a range that is not
        // registered, which the caller's check of the page numbers excludes.
        unsafe { libc::ioctl(self.number(), UFFDIO_WAKE as _, &raw mut range) };
    }

    /// Reads the queued faults without waiting. Returns how many there were.
    pub(crate) fn read(&self, into: &mut [Message]) -> usize {
        let bytes = std::mem::size_of_val(into);
        // SAFETY: the buffer is `bytes` long, and every bit pattern is a valid Message.
        let got = unsafe { libc::read(self.number(), into.as_mut_ptr().cast(), bytes) };
        usize::try_from(got).map_or(0, |got| got / size_of::<Message>())
    }
}

/// Tests the whole mechanism on one page: maps it write-protected, then lifts the protection.
///
/// The feature bits do not tell whether CONTINUE can map a page write-protected (Linux 6.4), so it is tried.
pub(crate) fn try_out(uffd: &Uffd) -> Result<(), String> {
    let page = super::kernel_page_bytes();
    let file = Memfd::create(page).map_err(|error| format!("memfd_create failed ({error})"))?;
    let view = View::map(&file, page, None, page, libc::PROT_READ | libc::PROT_WRITE)
        .map_err(|_| "a page of shared memory could not be mapped".to_owned())?;
    uffd.register(view.base(), page)
        .map_err(|error| format!("UFFDIO_REGISTER for missing, minor and write-protect faults failed ({error})"))?;
    file.populate(0, page).map_err(|error| format!("fallocate failed ({})", io::Error::from_raw_os_error(error)))?;
    uffd.make_present(view.base(), page, false, true).map_err(|error| {
        format!(
            "UFFDIO_CONTINUE cannot map a page write-protected ({}); Linux 6.4 or newer can, \
             catch = \"mprotect\" works without",
            io::Error::from_raw_os_error(error)
        )
    })?;
    uffd.protect(view.base(), page, true)
        .map_err(|error| format!("UFFDIO_WRITEPROTECT failed ({})", io::Error::from_raw_os_error(error)))
}

/// Tests on one page whether the kernel records stores: a page that is mapped for reading lets a store pass and reports
/// it; protecting or dropping the page removes the record.
pub(crate) fn try_out_marks() -> Result<(), String> {
    // A fault must be an error and not a wait: no thread would serve it.
    let uffd = Uffd::open_for_marks(true)?;
    try_out(&uffd)?;
    let map = Pagemap::open().map_err(|error| format!("/proc/self/pagemap cannot be opened ({error})"))?;
    let page = super::kernel_page_bytes();
    let refused = |operation: &'static str| {
        move |error: i32| format!("{operation} failed ({})", io::Error::from_raw_os_error(error))
    };
    let file = Memfd::create(page).map_err(|error| format!("memfd_create failed ({error})"))?;
    let view = View::map(&file, page, None, page, libc::PROT_READ | libc::PROT_WRITE)
        .map_err(|_| "a page of shared memory could not be mapped".to_owned())?;
    let start = view.base();
    uffd.register(start, page).map_err(|error| format!("UFFDIO_REGISTER for marks failed ({error})"))?;
    file.populate(0, page).map_err(refused("fallocate"))?;
    let finds = |sought| {
        let mut found = false;
        map.scan(start, start + page, sought, &mut |_, _| found = true).map_err(|error| {
            format!("PAGEMAP_SCAN failed ({}); Linux 6.7 or newer has it", io::Error::from_raw_os_error(error))
        })?;
        Ok::<bool, String>(found)
    };
    let is = |marked: bool, sought, when: &str| match finds(sought)? == marked {
        true => Ok(()),
        false => Err(format!("PAGEMAP_SCAN tells the wrong state of a page {when}; Linux 6.7 tells the right one")),
    };
    let expect = |marked: bool, when: &str| is(marked, Sought::Written, when);
    expect(false, "that was never there")?;
    uffd.make_present(start, page, false, true).map_err(refused("UFFDIO_CONTINUE"))?;
    expect(false, "that was mapped for reading")?;
    store_by_the_kernel(start)?;
    expect(true, "that was stored to")?;
    is(true, Sought::WrittenOrGone, "that was stored to")?;
    uffd.protect(start, page, false).map_err(refused("UFFDIO_WRITEPROTECT"))?;
    expect(false, "that was protected again")?;
    is(false, Sought::WrittenOrGone, "that was protected again")?;
    store_by_the_kernel(start)?;
    drop_pages(start, page).map_err(refused("madvise(MADV_DONTNEED)"))?;
    expect(false, "that was dropped")?;
    is(true, Sought::WrittenOrGone, "that was stored to and is gone")
}

/// A store whose failure is an error number instead of a signal.
fn store_by_the_kernel(start: usize) -> Result<(), String> {
    const _: () = assert!(size_of::<libc::utsname>() <= 4096);
    // SAFETY: the page is mapped, belongs to this function, and is large enough.
    match unsafe { libc::uname(start as *mut libc::utsname) } {
        0 => Ok(()),
        _ => Err(format!("a store to a page under marks failed ({})", io::Error::last_os_error())),
    }
}
