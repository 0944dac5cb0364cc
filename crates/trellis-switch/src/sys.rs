//! Every system call that Rust's library does not make: namespaces, packet sockets, the monotonic clock.
//!
//! Promises that the rest of the crate has no unsafe code. Must never decide anything.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::net::{SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The monotonic clock, which the kernel's switch also reads.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local timespec; the clock exists on every Linux, so that the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Moves the calling thread into a network namespace of its own, and returns a descriptor of it.
pub(crate) fn new_network() -> io::Result<File> {
    // SAFETY: unshare takes no pointer; it changes this thread alone.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    File::open("/proc/thread-self/ns/net")
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter_network(network: BorrowedFd<'_>) -> io::Result<()> {
    enter(network, libc::CLONE_NEWNET)
}

/// Moves the calling thread, or for some kinds its children to come, into a namespace.
pub(crate) fn enter(namespace: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as it is borrowed; setns takes no pointer.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kind) }).map(drop)
}

/// Gives this process, which must have one thread, privileges over what it creates from now on, and over nothing else: a
/// user namespace in which this user is root.
pub(crate) fn new_user() -> io::Result<()> {
    // SAFETY: neither call takes a pointer; they cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: unshare takes no pointer; with more than one thread it refuses.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER) })?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Mounts an empty file system in memory over a folder, for the calling thread and what it starts from now on; no other
/// process sees it, and it ends with the last of them.
pub(crate) fn own_folder(folder: &str) -> io::Result<()> {
    let (folder, root, kind) = (CString::new(folder)?, c"/", c"tmpfs");
    // SAFETY: unshare takes no pointer; it changes this thread alone.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    // SAFETY: every text ends with a zero byte, and no data is passed.
    check(unsafe {
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        libc::mount(std::ptr::null(), root.as_ptr(), std::ptr::null(), flags, std::ptr::null())
    })?;
    // SAFETY: as above.
    check(unsafe {
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        libc::mount(kind.as_ptr(), folder.as_ptr(), kind.as_ptr(), flags, std::ptr::null())
    })
    .map(drop)
}

/// Makes the next child of this process the first of a process namespace: when it ends, all processes in the namespace
/// end.
pub(crate) fn new_processes() -> io::Result<()> {
    // SAFETY: unshare takes no pointer; it affects only future children.
    check(unsafe { libc::unshare(libc::CLONE_NEWPID) }).map(drop)
}

/// Whether this process has root's privileges in its user namespace.
pub(crate) fn is_root() -> bool {
    own_user() == 0
}

/// Lets this process's ended children disappear without being waited for.
pub(crate) fn forget_children() {
    // SAFETY: ignoring a signal runs no code of this process.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Keeps this process's ended children until they are waited for.
pub(crate) fn keep_children() {
    // SAFETY: the kernel's default action runs no code of this process.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Reaps the children that have ended already.
pub(crate) fn bury_children() {
    // SAFETY: the call takes numbers and no pointer for the status; it does not wait.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// Ignores interrupts from the terminal, which other processes handle.
pub(crate) fn ignore_interrupts() {
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: ignoring a signal runs no code of this process.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Makes a command end when the thread that starts it ends.
pub(crate) fn end_with_us(command: &mut Command) {
    let ask = || {
        // SAFETY: the call takes numbers only.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).map(drop)
    };
    // SAFETY: a single system call runs between fork and exec; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask) };
}

/// The user of this process.
pub(crate) fn own_user() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The process and the user at the other end of a connection.
pub(crate) fn peer(stream: &UnixStream) -> io::Result<(i32, u32)> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the structure is a local variable, and its size is passed.
    let result = unsafe {
        let to = std::ptr::from_mut(&mut who).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut size)
    };
    check(result).map(|_| (who.pid, who.uid))
}

/// Keeps a file open in the command that is started.
pub(crate) fn hand_down(command: &mut Command, file: OwnedFd) {
    let keep = move || {
        // SAFETY: changes a flag of a descriptor that is open as long as this closure exists.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) }).map(drop)
    };
    // SAFETY: between fork and exec one system call is made, which allocates nothing.
    unsafe { command.pre_exec(keep) };
}

/// A file that this process inherited, by its number; the number stays open.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: duplicates a number, which fails if nothing is open under it.
    let copy = check(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// A process that is identified by a descriptor, so that its number cannot become another's.
pub(crate) struct Process(OwnedFd);

impl Process {
    pub(crate) fn open(pid: i32) -> io::Result<Process> {
        // SAFETY: pidfd_open takes two numbers.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        check(descriptor as libc::c_int)?;
        // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
        Ok(Process(unsafe { OwnedFd::from_raw_fd(descriptor as libc::c_int) }))
    }

    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        let none = std::ptr::null_mut::<libc::siginfo_t>();
        // SAFETY: the descriptor is open; no information is passed, which the kernel allows.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, none, 0) };
        check(result as libc::c_int).map(drop)
    }

    /// Waits until it has ended; returns whether it has.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        !wait_readable(&[self.0.as_fd()], Some(timeout)).is_empty()
    }
}

/// The number of an interface of the calling thread's network namespace.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: the name ends with a zero byte.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Makes one end of a pair accept frames before packets are built from them, and send packets with complete checksums:
/// offload information is lost for such frames.
pub(crate) fn take_frames(interface: &str) -> io::Result<()> {
    const SET_RECEIVE_OFFLOAD: u32 = 0x2c;
    const SET_SEND_CHECKSUMS: u32 = 0x17;
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let socket = UdpSocket::bind((std::net::Ipv6Addr::UNSPECIFIED, 0))?;
    for (what, value) in [(SET_RECEIVE_OFFLOAD, 1), (SET_SEND_CHECKSUMS, 0)] {
        let mut asked: [u32; 2] = [what, value];
        // SAFETY: all zeros are a valid request; the name is followed by a zero byte.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = interface.as_bytes();
        if name.len() >= request.ifr_name.len() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = asked.as_mut_ptr().cast();
        // SAFETY: the request is a local variable; it points to what this call expects, which lives until it returns.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) })?;
    }
    Ok(())
}

/// The indexes of the readable descriptors; waits at most `timeout`, or until one is readable.
pub(crate) fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Vec<usize> {
    let mut polled: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|descriptor| libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let time = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array has as many entries as is passed, and the time is null or lives until the call returns.
    unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, time, std::ptr::null()) };
    // An interrupted call reports nothing, and the caller repeats it.
    polled.iter().enumerate().filter(|(_, one)| one.revents != 0).map(|(place, _)| place).collect()
}

/// Dropped, it makes [`Ringing`] readable.
pub(crate) struct Alarm(#[allow(dead_code, reason = "it works by being dropped")] UnixStream);

/// Readable when the alarm was dropped.
pub(crate) struct Ringing(UnixStream);

impl AsFd for Ringing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A way to wake a thread.
pub(crate) fn alarm() -> io::Result<(Alarm, Ringing)> {
    let (alarm, ringing) = UnixStream::pair()?;
    Ok((Alarm(alarm), Ringing(ringing)))
}

/// A socket for UDP that may send from any address and port, including unassigned ones.
pub(crate) fn bind_freely(address: SocketAddrV6) -> io::Result<UdpSocket> {
    // SAFETY: socket takes three numbers.
    let socket = check(unsafe { libc::socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    let socket = unsafe { UdpSocket::from_raw_fd(socket) };
    set(socket.as_fd(), libc::SOL_IPV6, libc::IPV6_FREEBIND, 1)?;
    let address = libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: address.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
        sin6_scope_id: address.scope_id(),
    };
    bind(socket.as_fd(), &address)?;
    Ok(socket)
}

fn set(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the value lives until the call returns, and its size is that of its type.
    let result = unsafe {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(&value).cast(), size)
    };
    check(result).map(drop)
}

fn bind<A>(socket: BorrowedFd<'_>, address: &A) -> io::Result<()> {
    // SAFETY: the address lives until the call returns and is as long as its type; the callers pass socket addresses.
    let result = unsafe {
        let size = size_of::<A>() as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), std::ptr::from_ref(address).cast(), size)
    };
    check(result).map(drop)
}

/// A connection to the kernel's packet filter. It never waits: the kernel's answers are available when `send` returns.
pub(crate) struct Netlink(OwnedFd);

/// The buffer size in either direction of a socket, unless the kernel's settings allow less.
const WAITING_BYTES: libc::c_int = 8 << 20;

/// Enlarges the buffers of a socket in both directions. The way that needs privileges over the machine is tried first.
fn widen(socket: BorrowedFd<'_>) -> io::Result<()> {
    [(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF), (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)].into_iter().try_for_each(
        |(forced, asked)| {
            set(socket, libc::SOL_SOCKET, forced, WAITING_BYTES)
                .or_else(|_| set(socket, libc::SOL_SOCKET, asked, WAITING_BYTES))
        },
    )
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Netlink> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket takes three numbers.
        let socket = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_NETFILTER) })?;
        // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        widen(socket.as_fd())?;
        // A refusal need not repeat the refused message.
        set(socket.as_fd(), libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        // SAFETY: all zeros are a valid address of this kind; the kernel chooses a number for the socket.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        bind(socket.as_fd(), &address)?;
        Ok(Netlink(socket))
    }

    /// The same socket under another descriptor.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Sends messages; the kernel has processed them when this returns.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the buffer has the length that is passed.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        usize::try_from(sent).map(drop).map_err(|_| io::Error::last_os_error())
    }

    /// The next messages; `None` if there are none now.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: the buffer has the length that is passed.
        let bytes = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        match usize::try_from(bytes) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                error => Err(error),
            },
        }
    }
}

/// Receives whole frames from an interface and sends frames, each preceded by ten bytes that describe its checksum
/// offload; these bytes are sent as they were received.
pub(crate) struct PacketSocket(OwnedFd);

/// Not in libc for every target: do not receive what this machine sends itself.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// The only flag of the ten bytes that matters to the receiver of a frame.
const NEEDS_CHECKSUM: u8 = 1;

impl PacketSocket {
    /// The number of bytes before each frame.
    pub(crate) const OFFLOAD_BYTES: usize = 10;

    pub(crate) fn open(interface: u32) -> io::Result<PacketSocket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // No protocol yet, so that nothing is received before the socket is bound to its interface. SAFETY: socket takes
        // three numbers.
        let socket = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        set(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        set(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        // A frame with a page uses twice its length: the kernel's default has room for less than thirty, and a home sends
        // twice as many pages to a backup at once.
        widen(socket.as_fd())?;
        // SAFETY: all zeros are a valid address of this kind.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = interface as libc::c_int;
        bind(socket.as_fd(), &address)?;
        Ok(PacketSocket(socket))
    }

    /// The same socket under another descriptor.
    pub(crate) fn again(&self) -> io::Result<PacketSocket> {
        self.0.try_clone().map(PacketSocket)
    }

    /// How many frames were dropped since the last call because the queue was full.
    pub(crate) fn take_dropped(&self) -> io::Result<u32> {
        // `struct tpacket_stats` (linux/if_packet.h): how many frames arrived, and how many of them were dropped.
        let (mut counted, mut bytes) = ([0_u32; 2], size_of::<[u32; 2]>() as libc::socklen_t);
        // SAFETY: both outlive the call, and the kernel writes no more than `bytes` allows.
        check(unsafe {
            let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
            libc::getsockopt(self.0.as_raw_fd(), level, option, counted.as_mut_ptr().cast(), &raw mut bytes)
        })?;
        Ok(counted[1])
    }

    /// The next frame, with the bytes before it; `None` if there is none now.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        // SAFETY: the buffer has the length that is passed.
        let bytes = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        let bytes = usize::try_from(bytes).ok()?;
        if let Some(flags) = buffer[..bytes].first_mut() {
            *flags &= NEEDS_CHECKSUM;
        }
        Some(bytes)
    }

    /// Sends a frame, with the bytes before it; returns whether there was room.
    pub(crate) fn send(&self, bytes: &[u8]) -> bool {
        // SAFETY: the buffer has the length that is passed.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        usize::try_from(sent) == Ok(bytes.len())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
