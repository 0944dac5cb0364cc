//! Every system call that Rust's library does not make: namespaces, packet sockets, the monotonic clock.
//!
//! Wraps, decides nothing. The rest of the crate has no unsafe code.

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

/// The monotonic clock: the one that the kernel's switch reads, too.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours; the clock exists on every Linux, so that the call cannot fail.
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

/// Gives this process, which must have one thread, rights over what it makes from now on, and over nothing else: a user
/// namespace in which this user is root.
pub(crate) fn new_user() -> io::Result<()> {
    // SAFETY: neither call takes a pointer; they cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: unshare takes no pointer; with more than one thread it refuses.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER) })?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Puts an empty file system in memory in the place of a folder, for the calling thread and what it starts from now on;
/// nobody else sees it, and it ends with the last of them.
pub(crate) fn own_folder(folder: &str) -> io::Result<()> {
    let (folder, root, kind) = (CString::new(folder)?, c"/", c"tmpfs");
    // SAFETY: unshare takes no pointer; it changes this thread alone.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    // SAFETY: every text ends with a zero byte, and no data is handed over.
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

/// Makes the next child of this process the first of a process namespace: when it ends, all that are in there end.
pub(crate) fn new_processes() -> io::Result<()> {
    // SAFETY: unshare takes no pointer; it concerns children to come only.
    check(unsafe { libc::unshare(libc::CLONE_NEWPID) }).map(drop)
}

/// Whether this process has the rights of root in its user namespace.
pub(crate) fn is_root() -> bool {
    own_user() == 0
}

/// Lets this process's children that ended go by themselves.
pub(crate) fn forget_children() {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Keeps this process's children that end until they are waited for.
pub(crate) fn keep_children() {
    // SAFETY: the kernel's own way with a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Takes away the children that have ended already and that nobody waits for.
pub(crate) fn bury_children() {
    // SAFETY: the call takes numbers and no place for the status; it does not wait.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// Leaves interrupts from the terminal to others.
pub(crate) fn ignore_interrupts() {
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Lets a command end when the thread that starts it does.
pub(crate) fn end_with_us(command: &mut Command) {
    let ask = || {
        // SAFETY: the call takes numbers only.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).map(drop)
    };
    // SAFETY: what runs between fork and exec is one system call; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask) };
}

/// The user that this process belongs to.
pub(crate) fn own_user() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The process and the user at the other end of a connection.
pub(crate) fn peer(stream: &UnixStream) -> io::Result<(i32, u32)> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the structure is ours, and its size is said.
    let result = unsafe {
        let to = std::ptr::from_mut(&mut who).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut size)
    };
    check(result).map(|_| (who.pid, who.uid))
}

/// Leaves a file open in the command that is started.
pub(crate) fn hand_down(command: &mut Command, file: OwnedFd) {
    let keep = move || {
        // SAFETY: changes a flag of a descriptor that is open as long as this closure is there.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) }).map(drop)
    };
    // SAFETY: between fork and exec one system call is made, which allocates nothing.
    unsafe { command.pre_exec(keep) };
}

/// A file that this process was started with, by its number; the number stays open.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: duplicates a number, which fails if nothing is open under it.
    let copy = check(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// A process that is asked for once and then meant by descriptor, so that its number cannot become another's.
pub(crate) struct Process(OwnedFd);

impl Process {
    pub(crate) fn open(pid: i32) -> io::Result<Process> {
        // SAFETY: pidfd_open takes two numbers.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        check(descriptor as libc::c_int)?;
        // SAFETY: the kernel has just given this descriptor to us alone.
        Ok(Process(unsafe { OwnedFd::from_raw_fd(descriptor as libc::c_int) }))
    }

    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        let none = std::ptr::null_mut::<libc::siginfo_t>();
        // SAFETY: the descriptor is open; no information is handed over, which the kernel allows.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, none, 0) };
        check(result as libc::c_int).map(drop)
    }

    /// Waits until it has ended; says whether it has.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        !wait_readable(&[self.0.as_fd()], Some(patience)).is_empty()
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

/// Lets an end of a pair take frames that are no packets yet, and send packets with whole checksums: what was offloaded is
/// lost on the way of such frames.
pub(crate) fn take_frames(interface: &str) -> io::Result<()> {
    const SET_RECEIVE_OFFLOAD: u32 = 0x2c;
    const SET_SEND_CHECKSUMS: u32 = 0x17;
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let socket = UdpSocket::bind((std::net::Ipv6Addr::UNSPECIFIED, 0))?;
    for (what, value) in [(SET_RECEIVE_OFFLOAD, 1), (SET_SEND_CHECKSUMS, 0)] {
        let mut asked: [u32; 2] = [what, value];
        // SAFETY: all zeros are a valid request; the name gets a zero byte behind it.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = interface.as_bytes();
        if name.len() >= request.ifr_name.len() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = asked.as_mut_ptr().cast();
        // SAFETY: the request is ours; what it points to is what this call takes, and lives until it is over.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) })?;
    }
    Ok(())
}

/// Which of these can be read; waits at most `patience`, or until one can.
pub(crate) fn wait_readable(descriptors: &[BorrowedFd<'_>], patience: Option<Duration>) -> Vec<usize> {
    let mut polled: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|descriptor| libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let time = patience.map(|patience| libc::timespec {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(patience.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array has as many entries as is said, and the time is null or lives until the call is over.
    unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, time, std::ptr::null()) };
    // Interrupted, nothing can be read and the caller comes again.
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

/// A socket for UDP that may send from any address and port, also one that is nobody's.
pub(crate) fn bind_freely(address: SocketAddrV6) -> io::Result<UdpSocket> {
    // SAFETY: socket takes three numbers.
    let socket = check(unsafe { libc::socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel has just given this descriptor to us alone.
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
    // SAFETY: the value lives until the call is over, and its size is that of its type.
    let result = unsafe {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(&value).cast(), size)
    };
    check(result).map(drop)
}

fn bind<A>(socket: BorrowedFd<'_>, address: &A) -> io::Result<()> {
    // SAFETY: the address lives until the call is over and is as long as its type; the callers pass socket addresses.
    let result = unsafe {
        let size = size_of::<A>() as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), std::ptr::from_ref(address).cast(), size)
    };
    check(result).map(drop)
}

/// A conversation with the kernel's packet filter. It never waits: what the kernel answers is there when `send` returns.
pub(crate) struct Netlink(OwnedFd);

/// How much may wait in either direction of a socket, where the kernel's settings do not allow less.
const WAITING_BYTES: libc::c_int = 8 << 20;

/// Lets much wait in both directions of a socket. What takes rights over the machine is tried first.
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
        // SAFETY: the kernel has just given this descriptor to us alone.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        widen(socket.as_fd())?;
        // A refusal need not repeat what was refused.
        set(socket.as_fd(), libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        // SAFETY: all zeros are a valid address of this kind: the kernel chooses a number for the socket.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        bind(socket.as_fd(), &address)?;
        Ok(Netlink(socket))
    }

    /// The same socket under another descriptor.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Hands over messages; the kernel has dealt with them when this returns.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the buffer is as long as is said.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        usize::try_from(sent).map(drop).map_err(|_| io::Error::last_os_error())
    }

    /// The next messages; none when there are none now.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: the buffer is as long as is said.
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

/// Takes whole frames from an interface and puts frames out at it, each after ten bytes that say how its checksum is
/// offloaded; what comes in with them goes out with them.
pub(crate) struct PacketSocket(OwnedFd);

/// Not in libc for every target: say nothing about what this machine sends itself.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// The only flag of the ten bytes that means something to whom a frame is handed.
const NEEDS_CHECKSUM: u8 = 1;

impl PacketSocket {
    /// What stands before each frame.
    pub(crate) const OFFLOAD_BYTES: usize = 10;

    pub(crate) fn open(interface: u32) -> io::Result<PacketSocket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // No protocol yet: nothing comes in before it is bound to its interface.
        // SAFETY: socket takes three numbers.
        let socket = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the kernel has just given this descriptor to us alone.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        set(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        set(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        // A frame with a page takes twice its length: of the kernel's usual share not thirty find room, and a home gives
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

    /// How many frames found no room since the last call: nobody took those before them in time.
    pub(crate) fn take_dropped(&self) -> io::Result<u32> {
        // `struct tpacket_stats` (linux/if_packet.h): how many came, and how many of them were dropped.
        let (mut counted, mut bytes) = ([0_u32; 2], size_of::<[u32; 2]>() as libc::socklen_t);
        // SAFETY: both outlive the call, and the kernel writes no more than `bytes` says.
        check(unsafe {
            let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
            libc::getsockopt(self.0.as_raw_fd(), level, option, counted.as_mut_ptr().cast(), &raw mut bytes)
        })?;
        Ok(counted[1])
    }

    /// The next frame, with what stands before it; none when there is none now.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        // SAFETY: the buffer is as long as is said.
        let bytes = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        let bytes = usize::try_from(bytes).ok()?;
        if let Some(flags) = buffer[..bytes].first_mut() {
            *flags &= NEEDS_CHECKSUM;
        }
        Some(bytes)
    }

    /// Puts a frame out, with what stands before it; says whether there was room.
    pub(crate) fn send(&self, bytes: &[u8]) -> bool {
        // SAFETY: the buffer is as long as is said.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        usize::try_from(sent) == Ok(bytes.len())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
