//! One libfabric endpoint: its packets, its registrations, its completions.
//!
//! Promises: a packet's bytes are accessed here only while the provider does not own them. A registration is released
//! when its [`Registration`] is dropped. After [`Device::stop`] the provider accesses no memory any more.
//!
//! It must never know what a packet means or which node is behind an address.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::packet::PACKET_BYTES;
use crate::links::SharedMemory;
use crate::links::roster::lock;

/// Maximum sends in flight.
const SENDS_MAX: usize = 256;
/// Maximum one-sided reads in flight.
const READS_MAX: usize = 64;
/// The maximum size of one read; a longer body takes several.
const READ_BYTES_MAX: usize = 1 << 20;
/// Maximum one-sided writes in flight.
const WRITES_MAX: usize = 64;
/// Maximum completions taken at one time.
pub(super) const COMPLETIONS_MAX: usize = 64;
/// The maximum size of an endpoint's address.
pub(super) const ADDRESS_BYTES_MAX: usize = 512;
/// The result of libfabric for an operation that must be tried again (FI_EAGAIN).
const AGAIN: i64 = -(libc::EAGAIN as i64);

/// The result of one operation; laid out as in `libfabric.c`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Completion {
    pub(super) slot: u32,
    pub(super) error: i32,
    pub(super) bytes: u64,
    pub(super) word: u64,
}

#[repr(C)]
#[derive(Default)]
struct Facts {
    receives_max: u64,
    sends_max: u64,
    message_bytes_max: u64,
    wait_descriptor: i32,
    needs_local_registration: i32,
    has_virtual_addresses: i32,
    word_bytes: i32,
}

const _: () = assert!(size_of::<Completion>() == 24 && size_of::<Facts>() == 40);

/// The slot of a peer's completed write to this node.
const LANDED: u32 = u32::MAX - 1;

#[repr(C)]
struct Endpoint {
    opaque: [u8; 0],
}

unsafe extern "C" {
    fn trellis_fabric_open(
        provider: *const c_char,
        host: *const c_char,
        slots: usize,
        why: *mut c_char,
        room: usize,
    ) -> *mut Endpoint;
    fn trellis_fabric_stop(endpoint: *mut Endpoint);
    fn trellis_fabric_close(endpoint: *mut Endpoint);
    fn trellis_fabric_facts(endpoint: *mut Endpoint, facts: *mut Facts);
    fn trellis_fabric_provider(endpoint: *mut Endpoint) -> *const c_char;
    fn trellis_fabric_address(endpoint: *mut Endpoint, address: *mut u8, room: usize) -> i64;
    fn trellis_fabric_insert(endpoint: *mut Endpoint, address: *const u8, peer: *mut u64) -> i32;
    fn trellis_fabric_register(
        endpoint: *mut Endpoint,
        pointer: *const c_void,
        bytes: usize,
        shared: i32,
        registration: *mut *mut c_void,
        key: *mut u64,
        description: *mut *mut c_void,
    ) -> i32;
    fn trellis_fabric_unregister(registration: *mut c_void);
    fn trellis_fabric_post(e: *mut Endpoint, slot: u32, at: *mut u8, bytes: usize, description: *mut c_void) -> i64;
    fn trellis_fabric_send(
        endpoint: *mut Endpoint,
        slot: u32,
        at: *const u8,
        bytes: usize,
        description: *mut c_void,
        peer: u64,
    ) -> i64;
    fn trellis_fabric_read(
        endpoint: *mut Endpoint,
        slot: u32,
        at: *mut u8,
        bytes: usize,
        description: *mut c_void,
        peer: u64,
        address: u64,
        key: u64,
    ) -> i64;
    fn trellis_fabric_write(
        endpoint: *mut Endpoint,
        slot: u32,
        at: *const u8,
        bytes: usize,
        description: *mut c_void,
        peer: u64,
        address: u64,
        key: u64,
        word: u64,
    ) -> i64;
    fn trellis_fabric_poll(endpoint: *mut Endpoint, out: *mut Completion, room: usize) -> i64;
    fn trellis_fabric_may_sleep(endpoint: *mut Endpoint) -> i32;
    fn trellis_fabric_sentence(error: i32) -> *const c_char;
    fn trellis_fabric_providers(text: *mut c_char, room: usize) -> usize;
}

/// The purpose of a slot.
pub(super) enum Use {
    /// Its packet is received into.
    Receive,
    /// Its packet is sent from.
    Send,
    /// A one-sided read.
    Read,
    /// A one-sided write.
    Write,
    /// A peer's completed one-sided write to the shared memory of this node.
    Landed,
}

/// Whether the provider took an operation, or wants to be tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    Yes,
    Again,
}

/// Which side may use registered memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Here = 0,
    Peers = 1,
    Both = 2,
}

/// Memory that is registered with the provider; released on drop.
pub(super) struct Registration {
    handle: *mut c_void,
    key: u64,
    description: *mut c_void,
}

// SAFETY: libfabric's registrations may be released on any thread; nothing else is done with the handle.
unsafe impl Send for Registration {}
// SAFETY: as above; a shared reference only reads the key and the description.
unsafe impl Sync for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: made by `register`, released once; the device outlives its registrations (see `Device::stop`).
        unsafe { trellis_fabric_unregister(self.handle) };
    }
}

/// The address of a peer's memory that is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) address: u64,
    pub(super) key: u64,
}

/// Memory of a peer that this node may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: u64,
    pub(super) key: u64,
    pub(super) bytes: u64,
}

impl Target {
    /// The address of `bytes` bytes at the offset `place`, if they are inside.
    pub(super) fn part(self, place: u64, bytes: usize) -> Option<Source> {
        let end = place.checked_add(bytes as u64)?;
        (end <= self.bytes).then_some(Source { address: self.address.checked_add(place)?, key: self.key })
    }
}

struct Shared {
    base: usize,
    bytes: usize,
    registration: Registration,
}

/// One endpoint; see the module text.
pub(super) struct Device {
    endpoint: AtomicPtr<Endpoint>,
    stopped: AtomicBool,
    packets: Box<[UnsafeCell<[u8; PACKET_BYTES]>]>,
    packet_registration: Mutex<Option<Registration>>,
    packet_description: AtomicPtr<c_void>,
    shared: Mutex<Option<Shared>>,
    receives: usize,
    sends: usize,
    free_sends: Mutex<Vec<u32>>,
    free_reads: Mutex<Vec<u32>>,
    free_writes: Mutex<Vec<u32>>,
    /// Whether a write can bring the peer a word.
    writes: bool,
    read_bytes_max: usize,
    needs_local_registration: bool,
    has_virtual_addresses: bool,
    wait_descriptor: RawFd,
    provider: String,
}

// SAFETY: the endpoint is opened for use by several threads (FI_THREAD_SAFE), and a packet belongs to the holder of
// its slot: the free list gives a sending slot to one caller, and a receiving slot is with the provider or with the
// one thread that polls.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens an endpoint of `provider` (empty for libfabric's own choice) on the interface of `host`, with room for
    /// `receives` packets.
    pub(super) fn open(provider: &str, host: &str, receives: usize) -> Result<Device, String> {
        let text = |text: &str| CString::new(text).map_err(|_| "a zero byte in a name".to_owned());
        let (named, host) = (text(provider)?, text(host)?);
        let slots = receives + SENDS_MAX + READS_MAX + WRITES_MAX;
        let mut why: [c_char; 256] = [0; 256];
        let before = SignalActions::take();
        // SAFETY: both texts end in zero and live through the call; `why` has the given room.
        let endpoint =
            unsafe { trellis_fabric_open(named.as_ptr(), host.as_ptr(), slots, why.as_mut_ptr(), why.len()) };
        before.restore();
        if endpoint.is_null() {
            // SAFETY: on failure `why` holds a text that ends in zero.
            let why = unsafe { CStr::from_ptr(why.as_ptr()) }.to_string_lossy().into_owned();
            let which = if provider.is_empty() { "no provider".to_owned() } else { format!("provider `{provider}`") };
            return Err(format!("libfabric: {which}: {why}"));
        }
        let mut facts = Facts::default();
        // SAFETY: `facts` is laid out as the callee expects.
        unsafe { trellis_fabric_facts(endpoint, &raw mut facts) };
        // SAFETY: the name lives as long as the endpoint and ends in zero.
        let provider = unsafe { CStr::from_ptr(trellis_fabric_provider(endpoint)) }.to_string_lossy().into_owned();
        let limit = |wanted: usize, most: u64| wanted.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1);
        let (receives, sends) = (limit(receives, facts.receives_max), limit(SENDS_MAX, facts.sends_max));
        let first_read = receives + sends;
        let first_write = first_read + READS_MAX;
        lock(&PARKED).0 += usize::from(is_of_this_host(&provider));
        let device = Device {
            endpoint: AtomicPtr::new(endpoint),
            stopped: AtomicBool::new(false),
            packets: (0..first_read).map(|_| UnsafeCell::new([0; PACKET_BYTES])).collect(),
            packet_registration: Mutex::new(None),
            packet_description: AtomicPtr::default(),
            shared: Mutex::new(None),
            receives,
            sends,
            free_sends: Mutex::new((receives as u32..first_read as u32).collect()),
            free_reads: Mutex::new((first_read as u32..first_write as u32).collect()),
            free_writes: Mutex::new((first_write as u32..(first_write + WRITES_MAX) as u32).collect()),
            writes: facts.word_bytes >= 4,
            read_bytes_max: limit(READ_BYTES_MAX, facts.message_bytes_max),
            needs_local_registration: facts.needs_local_registration != 0,
            has_virtual_addresses: facts.has_virtual_addresses != 0,
            wait_descriptor: facts.wait_descriptor,
            provider,
        };
        device.register_packets()?;
        Ok(device)
    }

    fn register_packets(&self) -> Result<(), String> {
        if self.needs_local_registration {
            let bytes = self.packets.len() * PACKET_BYTES;
            // SAFETY: the packets live until the device is dropped, which stops it before.
            let registration = unsafe { self.register(self.packets.as_ptr().cast(), bytes, Access::Here) }?;
            self.packet_description.store(registration.description, Ordering::Release);
            *lock(&self.packet_registration) = Some(registration);
        }
        Ok(())
    }

    fn endpoint(&self) -> Result<*mut Endpoint, String> {
        if self.stopped.load(Ordering::Acquire) {
            return Err("this node closed its endpoint".to_owned());
        }
        Ok(self.endpoint.load(Ordering::Acquire))
    }

    /// The provider that is used, by libfabric's name.
    pub(super) fn provider(&self) -> &str {
        &self.provider
    }

    /// The number of packets that can be received into.
    pub(super) fn receives(&self) -> usize {
        self.receives
    }

    /// A descriptor that reports completions, if the provider has one.
    pub(super) fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the provider keeps it open until the device is closed.
        (self.wait_descriptor >= 0).then(|| unsafe { BorrowedFd::borrow_raw(self.wait_descriptor) })
    }

    /// The address at which peers reach this endpoint.
    pub(super) fn address(&self) -> Result<Vec<u8>, String> {
        let mut address = vec![0; ADDRESS_BYTES_MAX];
        // SAFETY: `address` is writable for its whole length.
        let bytes = unsafe { trellis_fabric_address(self.endpoint()?, address.as_mut_ptr(), address.len()) };
        address.truncate(usize::try_from(bytes).map_err(|_| sentence(bytes))?);
        Ok(address)
    }

    /// The number under which a peer's endpoint is reached. `address` must be one of this provider's.
    pub(super) fn insert(&self, address: &[u8]) -> Result<u64, String> {
        // The provider reads as many bytes as its addresses have, whatever was received. The padding keeps it from
        // reading past the end.
        let mut whole = address.to_vec();
        whole.resize(ADDRESS_BYTES_MAX, 0);
        let mut peer = 0;
        // SAFETY: `whole` is at least as long as any address.
        let result = unsafe { trellis_fabric_insert(self.endpoint()?, whole.as_ptr(), &raw mut peer) };
        if result == 0 { Ok(peer) } else { Err(sentence(i64::from(result))) }
    }

    /// The purpose of a slot.
    pub(super) fn use_of(&self, slot: u32) -> Option<Use> {
        let slot = slot as usize;
        let first_read = self.receives + self.sends;
        match slot {
            _ if slot == LANDED as usize => Some(Use::Landed),
            _ if slot < self.receives => Some(Use::Receive),
            _ if slot < first_read => Some(Use::Send),
            _ if slot < first_read + READS_MAX => Some(Use::Read),
            _ if slot < first_read + READS_MAX + WRITES_MAX => Some(Use::Write),
            _ => None,
        }
    }

    /// The number of slots.
    pub(super) fn slots(&self) -> usize {
        self.receives + self.sends + READS_MAX + WRITES_MAX
    }

    /// Registers the memory that bodies come from and go to, once.
    pub(super) fn share(&self, memory: SharedMemory) -> Result<(), String> {
        // SAFETY: readable and writable until the link is closed, by the promise of `SharedMemory`.
        let registration = unsafe { self.register(memory.pointer, memory.bytes, Access::Both) }?;
        *lock(&self.shared) = Some(Shared { base: memory.pointer as usize, bytes: memory.bytes, registration });
        Ok(())
    }

    /// The shared memory as the target of peers' writes.
    pub(super) fn target(&self) -> Option<Target> {
        let shared = lock(&self.shared);
        let shared = shared.as_ref()?;
        let address = if self.has_virtual_addresses { shared.base as u64 } else { 0 };
        Some(Target { address, key: shared.registration.key, bytes: shared.bytes as u64 })
    }

    /// The address of the byte `place` of the shared memory, if `bytes` bytes begin there.
    pub(super) fn at(&self, place: u64, bytes: usize) -> Option<*mut u8> {
        let shared = lock(&self.shared);
        let pointer = (shared.as_ref()?.base as u64).checked_add(place)? as *mut u8;
        shared.as_ref()?.holds(pointer, bytes).then_some(pointer)
    }

    /// The address at which peers read a body that lies in the shared memory.
    pub(super) fn source(&self, pointer: *const u8, bytes: usize) -> Option<Source> {
        let shared = lock(&self.shared);
        let shared = shared.as_ref().filter(|shared| shared.holds(pointer, bytes))?;
        let start = if self.has_virtual_addresses { 0 } else { shared.base };
        Some(Source { address: (pointer as usize - start) as u64, key: shared.registration.key })
    }

    /// Registers a body that lies elsewhere, so that peers can read it.
    ///
    /// # Safety
    ///
    /// The bytes must stay readable until the registration is dropped or the device stopped.
    pub(super) unsafe fn offer(&self, pointer: *const u8, bytes: usize) -> Result<(Source, Registration), String> {
        // SAFETY: the caller's promise.
        let registration = unsafe { self.register(pointer, bytes, Access::Peers) }?;
        let address = if self.has_virtual_addresses { pointer as u64 } else { 0 };
        Ok((Source { address, key: registration.key }, registration))
    }

    /// Registers bytes that the provider must know before it reads into them or writes from them; `None` if it need
    /// not.
    ///
    /// # Safety
    ///
    /// The bytes must stay readable, and writable if they are read into, until the registration is dropped or the
    /// device stopped.
    pub(super) unsafe fn prepare(&self, pointer: *const u8, bytes: usize) -> Result<Option<Registration>, String> {
        if !self.needs_local_registration || self.source(pointer, bytes).is_some() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        unsafe { self.register(pointer, bytes, Access::Here) }.map(Some)
    }

    /// # Safety
    ///
    /// The bytes must stay valid for `access` until the registration is dropped or the device stopped.
    unsafe fn register(&self, pointer: *const u8, bytes: usize, access: Access) -> Result<Registration, String> {
        let mut made = Registration { handle: std::ptr::null_mut(), key: 0, description: std::ptr::null_mut() };
        let endpoint = match self.endpoint() {
            Ok(endpoint) => endpoint,
            Err(why) => {
                std::mem::forget(made);
                return Err(why);
            }
        };
        // SAFETY: the three results are writable; the caller's promise about the bytes.
        let result = unsafe {
            trellis_fabric_register(
                endpoint,
                pointer.cast(),
                bytes,
                access as i32,
                &raw mut made.handle,
                &raw mut made.key,
                &raw mut made.description,
            )
        };
        if result == 0 {
            return Ok(made);
        }
        // Nothing was created that could be released.
        std::mem::forget(made);
        Err(format!("{bytes} bytes cannot be registered with libfabric: {}", sentence(i64::from(result))))
    }

    /// A packet to send from, if one is free.
    pub(super) fn take_send(&self) -> Option<u32> {
        lock(&self.free_sends).pop()
    }

    /// A slot for a one-sided read, if one is free.
    pub(super) fn take_read(&self) -> Option<u32> {
        lock(&self.free_reads).pop()
    }

    /// A slot for a one-sided write, if one is free.
    pub(super) fn take_write(&self) -> Option<u32> {
        lock(&self.free_writes).pop()
    }

    /// Whether peers can be written to.
    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    /// Returns a slot whose operation is over to its free list; receiving slots have none.
    pub(super) fn give(&self, slot: u32) {
        match self.use_of(slot) {
            Some(Use::Send) => lock(&self.free_sends).push(slot),
            Some(Use::Read) => lock(&self.free_reads).push(slot),
            Some(Use::Write) => lock(&self.free_writes).push(slot),
            _ => {}
        }
    }

    /// The bytes of a packet.
    ///
    /// # Safety
    ///
    /// The caller must hold the slot, and the provider must not.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn packet(&self, slot: u32) -> &mut [u8; PACKET_BYTES] {
        // SAFETY: the caller's promise: nothing else uses these bytes.
        unsafe { &mut *self.packets[slot as usize].get() }
    }

    fn packet_at(&self, slot: u32) -> *mut u8 {
        self.packets[slot as usize].get().cast()
    }

    fn packet_description(&self) -> *mut c_void {
        self.packet_description.load(Ordering::Acquire)
    }

    /// Gives a receiving slot to the provider.
    pub(super) fn post(&self, slot: u32) -> Result<Taken, String> {
        let at = self.packet_at(slot);
        // SAFETY: the slot is a receiving one that the provider does not have; its packet lives as long as the device.
        taken(unsafe { trellis_fabric_post(self.endpoint()?, slot, at, PACKET_BYTES, self.packet_description()) })
    }

    /// Sends the first bytes of a packet; if it was taken, the provider owns the slot until its completion.
    pub(super) fn send(&self, slot: u32, bytes: usize, peer: u64) -> Result<Taken, String> {
        let at = self.packet_at(slot);
        assert!(bytes <= PACKET_BYTES, "a packet has {PACKET_BYTES} bytes");
        // SAFETY: the slot is the caller's, and its packet lives as long as the device.
        taken(unsafe { trellis_fabric_send(self.endpoint()?, slot, at, bytes, self.packet_description(), peer) })
    }

    /// Reads from a peer's memory; returns how many of the bytes were requested, `None` if it must be tried again.
    ///
    /// # Safety
    ///
    /// Nothing else may use the bytes at `pointer`, and they must stay writable, until the completion or until the
    /// device is stopped.
    pub(super) unsafe fn read(
        &self,
        slot: u32,
        (pointer, bytes): (*mut u8, usize),
        registration: Option<&Registration>,
        peer: u64,
        from: Source,
    ) -> Result<usize, String> {
        let description = self.description(registration);
        let bytes = bytes.min(self.read_bytes_max);
        // SAFETY: the caller's promise.
        let result = unsafe {
            trellis_fabric_read(self.endpoint()?, slot, pointer, bytes, description, peer, from.address, from.key)
        };
        Ok(if taken(result)? == Taken::Yes { bytes } else { 0 })
    }

    /// Writes to a peer's memory; the peer gets `word` when the bytes are there.
    ///
    /// # Safety
    ///
    /// The bytes at `pointer` must stay readable until the completion, or until the device is stopped.
    pub(super) unsafe fn write(
        &self,
        slot: u32,
        (pointer, bytes): (*const u8, usize),
        registration: Option<&Registration>,
        peer: u64,
        to: Source,
        word: u32,
    ) -> Result<Taken, String> {
        let description = self.description(registration);
        // SAFETY: the caller's promise.
        taken(unsafe {
            trellis_fabric_write(
                self.endpoint()?,
                slot,
                pointer,
                bytes,
                description,
                peer,
                to.address,
                to.key,
                u64::from(word),
            )
        })
    }

    /// The descriptor of this node's memory that the provider needs for a one-sided operation.
    fn description(&self, registration: Option<&Registration>) -> *mut c_void {
        match registration {
            Some(registration) => registration.description,
            None if self.needs_local_registration => {
                let shared = lock(&self.shared);
                shared.as_ref().map_or(std::ptr::null_mut(), |shared| shared.registration.description)
            }
            None => std::ptr::null_mut(),
        }
    }

    /// Takes available completions.
    pub(super) fn poll(&self, out: &mut [Completion; COMPLETIONS_MAX]) -> Result<usize, String> {
        // SAFETY: `out` is writable for its whole length.
        let count = unsafe { trellis_fabric_poll(self.endpoint()?, out.as_mut_ptr(), out.len()) };
        usize::try_from(count).map_err(|_| sentence(count))
    }

    /// Whether the descriptor will report whatever arrives from now on.
    pub(super) fn may_sleep(&self) -> bool {
        // SAFETY: no more pointers than the endpoint's own.
        self.endpoint().is_ok_and(|endpoint| unsafe { trellis_fabric_may_sleep(endpoint) != 0 })
    }

    /// Ends every operation: the provider accesses no memory any more. Later calls fail with a sentence.
    ///
    /// # Safety
    ///
    /// No other call may be in progress.
    pub(super) unsafe fn stop(&self) {
        *lock(&self.shared) = None;
        if self.stopped.swap(true, Ordering::AcqRel) || is_of_this_host(&self.provider) {
            return;
        }
        // SAFETY: the endpoint exists until the device is dropped; the caller's promise.
        unsafe { trellis_fabric_stop(self.endpoint.load(Ordering::Acquire)) };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: nothing else has the device any more; its owner dropped the registrations before.
        unsafe { self.stop() };
        *lock(&self.packet_registration) = None;
        let ended =
            Parked { endpoint: self.endpoint.load(Ordering::Acquire), packets: std::mem::take(&mut self.packets) };
        if !is_of_this_host(&self.provider) {
            return drop(ended);
        }
        let mut parked = lock(&PARKED);
        parked.0 -= 1;
        parked.1.push(ended);
        if parked.0 == 0 {
            parked.1.clear();
        }
    }
}

/// The provider `shm` writes to a peer of the same process through that peer's own mapping, which is removed with its
/// endpoint. So its endpoints are kept until the last one of the process has ended: the number that have not ended,
/// and those that have.
static PARKED: Mutex<(usize, Vec<Parked>)> = Mutex::new((0, Vec::new()));

/// An endpoint that is no longer used, and what it may still receive into.
struct Parked {
    endpoint: *mut Endpoint,
    packets: Box<[UnsafeCell<[u8; PACKET_BYTES]>]>,
}

// SAFETY: both are only released, once.
unsafe impl Send for Parked {}

impl Drop for Parked {
    fn drop(&mut self) {
        // SAFETY: opened once and closed once; its packets still exist.
        unsafe { trellis_fabric_close(self.endpoint) };
        self.packets = Box::default();
    }
}

/// Whether the provider is `shm`. It also performs reads by itself, inside the calls of this process: without calls
/// nothing is written.
fn is_of_this_host(provider: &str) -> bool {
    provider.starts_with("shm")
}

/// The signal actions of this process. The provider `shm` replaces those of SIGSEGV, SIGBUS, SIGTERM and SIGINT when
/// its endpoint is opened; they belong to the program, and SIGSEGV to the catcher.
struct SignalActions([libc::sigaction; 4]);

const TAKEN_SIGNALS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGTERM, libc::SIGINT];

impl SignalActions {
    fn take() -> SignalActions {
        SignalActions(TAKEN_SIGNALS.map(|signal| {
            // SAFETY: an action of zeros is a valid one, and is written for a signal that exists.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &raw mut action);
                action
            }
        }))
    }

    fn restore(&self) {
        for (signal, action) in TAKEN_SIGNALS.iter().zip(&self.0) {
            // SAFETY: restores the action that the system returned before.
            unsafe { libc::sigaction(*signal, action, std::ptr::null_mut()) };
        }
    }
}

impl Shared {
    fn holds(&self, pointer: *const u8, bytes: usize) -> bool {
        let start = pointer as usize;
        start >= self.base && start - self.base <= self.bytes && bytes <= self.bytes - (start - self.base)
    }
}

fn taken(result: i64) -> Result<Taken, String> {
    match result {
        0 => Ok(Taken::Yes),
        AGAIN => Ok(Taken::Again),
        other => Err(sentence(other)),
    }
}

/// The error message of libfabric.
pub(super) fn sentence(error: i64) -> String {
    let error = i32::try_from(error).unwrap_or(-libc::EIO);
    // SAFETY: the text is a constant of libfabric that ends in zero.
    unsafe { CStr::from_ptr(trellis_fabric_sentence(error)) }.to_string_lossy().into_owned()
}

/// The providers that libfabric offers on this machine for this link, in its order.
pub fn providers() -> Vec<String> {
    let mut text = vec![0_u8; 4096];
    // SAFETY: `text` is writable for its whole length.
    let bytes = unsafe { trellis_fabric_providers(text.as_mut_ptr().cast(), text.len()) };
    String::from_utf8_lossy(&text[..bytes.min(text.len())]).lines().map(str::to_owned).collect()
}
