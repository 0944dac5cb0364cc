//! Every system call that Rust's library does not make: namespaces, packet sockets, the monotonic clock. Only what
//! `rustix` does not have either is unsafe code.
//!
//! It promises that the rest of the crate has no unsafe code, except `memory`. It must never decide anything.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::net::{Shutdown, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::mount::{mount, mount_bind, mount_change, move_mount, open_tree, unmount};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, netlink, sockopt};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use rustix::time::ClockId;

/// The folder of temporary files.
const TEMPORARY: &str = "/tmp";
/// The folder of memory that processes share.
const SHARED_MEMORY: &str = "/dev/shm";
/// The folder of users and names.
const SETTINGS: &str = "/etc";

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The monotonic clock, which the kernel's switch also reads.
pub(crate) fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Moves the calling thread, or for processes its children to come, into new namespaces of these kinds.
fn unshare(kinds: UnshareFlags) -> io::Result<()> {
    // SAFETY: the callers ask for namespaces. Only a table of descriptors of its own could harm other threads.
    Ok(unsafe { rustix::thread::unshare_unsafe(kinds) }?)
}

/// Moves the calling thread into a network namespace of its own, and returns a descriptor of it.
pub(crate) fn new_network() -> io::Result<File> {
    unshare(UnshareFlags::NEWNET)?;
    File::open("/proc/thread-self/ns/net")
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter_network(network: BorrowedFd<'_>) -> io::Result<()> {
    enter(network, LinkNameSpaceType::Network)
}

/// Moves the calling thread, or for some kinds its children to come, into a namespace.
pub(crate) fn enter(namespace: BorrowedFd<'_>, kind: LinkNameSpaceType) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(namespace, Some(kind))?)
}

/// Gives this process, which must have one thread, privileges over what it creates from now on, and over nothing else: a
/// user namespace in which this user is root.
pub(crate) fn new_user() -> io::Result<()> {
    let (user, group) = (trellis_output::sockets::own_user(), rustix::process::getegid().as_raw());
    unshare(UnshareFlags::NEWUSER)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Mounts an empty file system in memory over a folder, for the calling thread and what it starts from now on; no other
/// process sees it, and it ends with the last of them.
#[cfg(feature = "openflow")]
pub(crate) fn own_folder(folder: &str) -> io::Result<()> {
    own_mounts()?;
    mount_memory(folder, MountFlags::NOEXEC)
}

/// Lets the calling thread mount for itself alone. Later mounts of the machine appear there, too.
fn own_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    Ok(mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM)?)
}

fn mount_memory(folder: &str, more: MountFlags) -> io::Result<()> {
    Ok(mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV | more, None::<&CStr>)?)
}

/// Gives the calling thread a host name, `/etc` with these files, temporary files and shared memory of its own; returns
/// descriptors of the name's namespace and of that of the mounts.
pub(crate) fn new_machine(name: &str, files: &[(&str, String)]) -> io::Result<[File; 2]> {
    unshare(UnshareFlags::NEWUTS)?;
    rustix::system::sethostname(name.as_bytes())?;
    own_mounts()?;
    let kept = kept_folders()?;
    // What is mounted elsewhere stays when its folder is no longer mounted: it has no other name.
    mount_memory(TEMPORARY, MountFlags::NOEXEC)?;
    own_settings(files)?;
    unmount(TEMPORARY, UnmountFlags::DETACH)?;
    mount_memory(TEMPORARY, MountFlags::empty())?;
    open_to_all(TEMPORARY)?;
    for (entry, tree) in kept {
        match FileType::from_raw_mode(fstat(&tree)?.st_mode).is_dir() {
            true => std::fs::create_dir(&entry)?,
            false => drop(File::create(&entry)?),
        }
        move_mount(&tree, "", CWD, &entry, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    if std::fs::exists(SHARED_MEMORY)? {
        mount_memory(SHARED_MEMORY, MountFlags::NOEXEC)?;
        open_to_all(SHARED_MEMORY)?;
    }
    Ok([File::open("/proc/thread-self/ns/uts")?, File::open("/proc/thread-self/ns/mnt")?])
}

/// What a host keeps of the machine's `/tmp`: the entry with the program of this process, and the one in which the process
/// runs. Those who work there expect hosts to find their programs.
fn kept_folders() -> io::Result<Vec<(PathBuf, OwnedFd)>> {
    let mut kept: Vec<(PathBuf, OwnedFd)> = Vec::new();
    for place in [std::env::current_exe()?, std::env::current_dir()?] {
        let Ok(inside) = place.strip_prefix(TEMPORARY) else { continue };
        let Some(entry) = inside.iter().next().map(|name| Path::new(TEMPORARY).join(name)) else { continue };
        if kept.iter().all(|(known, _)| *known != entry) {
            let how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
            let tree = open_tree(CWD, &entry, how)?;
            kept.push((entry, tree));
        }
    }
    Ok(kept)
}

/// Lays an empty folder over `/etc`, which has these files and keeps what is changed, such as users.
fn own_settings(files: &[(&str, String)]) -> io::Result<()> {
    let [upper, work] = ["upper", "work"].map(|folder| format!("{TEMPORARY}/{folder}"));
    for folder in [&upper, &work] {
        std::fs::create_dir(folder)?;
        // Whatever the umask is.
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    }
    for (file, contents) in files {
        let place = format!("{upper}/{file}");
        std::fs::write(&place, contents)?;
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o644))?;
    }
    let options = CString::new(format!("lowerdir={SETTINGS},upperdir={upper},workdir={work}"))?;
    if mount("overlay", SETTINGS, "overlay", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str()).is_ok() {
        return Ok(());
    }
    // Some kernels and containers have no such mounts, or only for root of the machine. There, hosts share their users.
    for (file, _) in files {
        match mount_bind(format!("{upper}/{file}"), format!("{SETTINGS}/{file}")) {
            // A machine without the file asks others for what would be in it.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Lets every user make files in a folder, and remove only those.
fn open_to_all(folder: &str) -> io::Result<()> {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o1777))
}

/// Shows the calling process its own process namespace in `/proc`, and so everybody with the same mounts.
pub(crate) fn show_processes() {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Where a container hides parts of /proc, the kernel allows no second one, and that of the machine stays.
    let _ = mount("proc", "/proc", "proc", flags, None::<&CStr>);
}

/// Makes the next child of the calling thread the first of a process namespace, starts the command as that, and returns
/// it with a descriptor of the namespace.
pub(crate) fn begin_processes(command: &mut Command) -> io::Result<(Child, File)> {
    new_processes()?;
    // The command may show only its own processes in `/proc` as soon as it runs, and this thread is none of them.
    let own = File::open("/proc/thread-self/ns")?;
    let child = command.spawn()?;
    let namespace = openat(own, "pid_for_children", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok((child, namespace.into()))
}

/// Moves the calling thread to the host name and the mounts of a machine. It stays in its folder, if the machine has that.
pub(crate) fn enter_machine([name, mounts]: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    let folder = std::env::current_dir()?;
    // A thread changes its mounts only if no other one shares its folder.
    unshare(UnshareFlags::FS)?;
    enter(name, LinkNameSpaceType::HostNameAndNISDomainName)?;
    enter(mounts, LinkNameSpaceType::Mount)?;
    let hint = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    std::env::set_current_dir(&folder).map_err(hint)
}

/// Makes the next child of this process the first of a process namespace: when it ends, all processes in the namespace
/// end.
pub(crate) fn new_processes() -> io::Result<()> {
    unshare(UnshareFlags::NEWPID)
}

/// Whether this process has root's privileges in its user namespace.
pub(crate) fn is_root() -> bool {
    trellis_output::sockets::own_user() == 0
}

/// Ignores a signal, or leaves it to the kernel's default action.
fn ignore(signal: libc::c_int, is_ignored: bool) {
    let action = if is_ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither action runs code of this process.
    unsafe { libc::signal(signal, action) };
}

/// Lets this process's ended children disappear without being waited for.
pub(crate) fn forget_children() {
    ignore(libc::SIGCHLD, true);
}

/// Keeps this process's ended children until they are waited for.
pub(crate) fn keep_children() {
    ignore(libc::SIGCHLD, false);
}

/// Reaps the children that have ended already.
pub(crate) fn bury_children() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// Ignores interrupts from the terminal, which other processes handle.
pub(crate) fn ignore_interrupts() {
    [libc::SIGINT, libc::SIGQUIT].into_iter().for_each(|signal| ignore(signal, true));
}

/// Makes a command end when the thread that starts it ends.
pub(crate) fn end_with_us(command: &mut Command) {
    let ask = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: a single system call runs between fork and exec; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask) };
}

/// Keeps a file open in the command that is started.
pub(crate) fn hand_down(command: &mut Command, file: OwnedFd) {
    let keep = move || Ok(rustix::io::fcntl_setfd(&file, FdFlags::empty())?);
    // SAFETY: between fork and exec one system call is made, which allocates nothing.
    unsafe { command.pre_exec(keep) };
}

/// A file that this process inherited, by its number; the number stays open.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: borrowed for one system call, which fails if nothing is open under the number.
    Ok(rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(number) }, 3)?)
}

/// A process that is identified by a descriptor, so that its number cannot become another's.
pub(crate) struct Process(OwnedFd);

impl Process {
    pub(crate) fn open(pid: i32) -> io::Result<Process> {
        let pid = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
        Ok(Process(rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
    }

    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        let signal = Signal::from_named_raw(signal).ok_or(Errno::INVAL)?;
        Ok(rustix::process::pidfd_send_signal(&self.0, signal)?)
    }

    /// Waits until it has ended; returns whether it has.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        !wait_readable(&[self.0.as_fd()], Some(timeout)).is_empty()
    }
}

/// The number of an interface of the calling thread's network namespace.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let any = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(netdevice::name_to_index(any, name)?)
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
        // The name is followed by a zero byte.
        let (mut ifr_name, name) = ([0; libc::IFNAMSIZ], interface.as_bytes());
        if name.len() >= ifr_name.len() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        for (to, from) in ifr_name.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: asked.as_mut_ptr().cast() };
        let mut request = libc::ifreq { ifr_name, ifr_ifru };
        // SAFETY: the request is a local variable; it points to what this call expects, which lives until it returns.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) })?;
    }
    Ok(())
}

/// The indexes of the readable descriptors; waits at most `timeout`, or until one is readable.
pub(crate) fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Vec<usize> {
    let mut polled: Vec<PollFd<'_>> =
        descriptors.iter().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
    let time =
        timeout.map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() });
    // An interrupted call reports nothing, and the caller repeats it.
    let _ = poll(&mut polled, time.as_ref());
    polled.iter().enumerate().filter(|(_, one)| !one.revents().is_empty()).map(|(place, _)| place).collect()
}

/// Dropped, it makes [`Ringing`] readable, also while a child process that has not called exec yet has the descriptor.
pub(crate) struct Alarm(UnixStream);

impl Drop for Alarm {
    fn drop(&mut self) {
        // Two connected sockets can be shut down.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

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
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_ipv6_freebind(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket.into())
}

fn set(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the value lives until the call returns, and its size is that of its type.
    let result = unsafe {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(&value).cast(), size)
    };
    check(result).map(drop)
}

/// A connection to the kernel's packet filter. It never waits: the kernel's answers are available when `send` returns.
pub(crate) struct Netlink(OwnedFd);

/// The buffer size in either direction of a socket, unless the kernel's settings allow less.
const WAITING_BYTES: usize = 8 << 20;

/// Enlarges the buffers of a socket in both directions. The way that needs privileges over the machine is tried first.
fn widen(socket: BorrowedFd<'_>) -> io::Result<()> {
    sockopt::set_socket_send_buffer_size_force(socket, WAITING_BYTES)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, WAITING_BYTES))?;
    sockopt::set_socket_recv_buffer_size_force(socket, WAITING_BYTES)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, WAITING_BYTES))?;
    Ok(())
}

/// The flags of a socket that never waits.
fn at_once() -> SocketFlags {
    SocketFlags::CLOEXEC | SocketFlags::NONBLOCK
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Netlink> {
        let protocol = Some(netlink::NETFILTER);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, at_once(), protocol)?;
        widen(socket.as_fd())?;
        // A refusal need not repeat the refused message.
        set(socket.as_fd(), libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        // The kernel chooses a number for the socket.
        rustix::net::bind(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
        Ok(Netlink(socket))
    }

    /// The same socket under another descriptor.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Sends messages; the kernel has processed them when this returns.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.0, bytes, SendFlags::empty())?;
        Ok(())
    }

    /// The next messages; `None` if there are none now.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(&self.0, buffer, RecvFlags::empty()) {
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
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
        // No protocol yet, so that nothing is received before the socket is bound to its interface.
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, at_once(), None)?;
        set(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        set(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        // A frame with a page uses twice its length: the kernel's default has room for less than thirty, and a home sends
        // twice as many pages to a backup at once.
        widen(socket.as_fd())?;
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as libc::c_ushort,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: interface as libc::c_int,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address lives until the call returns, and its length is that of its type.
        check(unsafe {
            let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), bytes)
        })?;
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
        let (bytes, _) = rustix::net::recv(&self.0, &mut *buffer, RecvFlags::empty()).ok()?;
        if let Some(flags) = buffer[..bytes].first_mut() {
            *flags &= NEEDS_CHECKSUM;
        }
        Some(bytes)
    }

    /// Sends a frame, with the bytes before it; returns whether there was room.
    pub(crate) fn send(&self, bytes: &[u8]) -> bool {
        rustix::net::send(&self.0, bytes, SendFlags::empty()) == Ok(bytes.len())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
