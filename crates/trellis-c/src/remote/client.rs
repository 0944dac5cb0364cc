//! `trellis_remote_client` and its calls, one at a time.
//!
//! Promises: no request is made with a NULL, with a length that no memory has, or with a client that another thread
//! is using.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use trellis::remote::{Client, ClientOptions, Host, HostPrefix, RemoteError};
use trellis_fabric_protocol::wire::datagram::Status;

use super::pointer::Pointer;
use crate::failure::{Failure, answer, place, text};
use crate::status;

/// `TRELLIS_REMOTE_NO_ROUTE`; a server's refusal is this number minus its status on the wire.
pub const NO_ROUTE: c_int = -100;

/// `struct trellis_remote_options`
#[repr(C)]
#[allow(missing_docs)] // The header describes the fields.
pub struct Options {
    pub prefix: *const c_char,
    pub deadline_ms: u32,
    pub piece_bytes: u32,
    pub port: u16,
}

/// `struct trellis_remote_welcome`
#[repr(C)]
pub struct Welcome {
    quota_bytes: u64,
    used_bytes: u64,
}

const _: () = assert!(size_of::<Options>() == 24);
const _: () = assert!(size_of::<Welcome>() == 16);

/// `struct trellis_remote_client`
pub struct Handle {
    /// The process that opened it.
    process: u32,
    client: Mutex<Client>,
}

/// The C status of an error of the crate `trellis`.
pub(super) fn code(error: &RemoteError) -> c_int {
    match error {
        RemoteError::Refused { status, .. } | RemoteError::Unserved { status, .. } => {
            NO_ROUTE - c_int::from(*status as u8)
        }
        RemoteError::SeveralPages { .. } => NO_ROUTE - c_int::from(Status::Lease as u8),
        RemoteError::Unknown { .. } => NO_ROUTE - c_int::from(Status::Fenced as u8),
        RemoteError::NoAnswer(why) if why.error.is_some() => NO_ROUTE,
        RemoteError::NoAnswer(_) => status::DEADLINE,
        RemoteError::Setting(_) | RemoteError::Range { .. } | RemoteError::TooLong { .. } => status::ARGUMENT,
        _ => status::JOIN,
    }
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Failure {
        Failure::new(code(&error), error)
    }
}

/// Opens a client.
///
/// # Safety
///
/// `options` is NULL or points to options whose text is NULL or ends with a NUL; `client` is NULL or valid for
/// writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_open(options: *const Options, client: *mut *mut Handle) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let client = unsafe { place(client, "client")? };
        *client = ptr::null_mut();
        // SAFETY: the caller's promise.
        let options = unsafe { options.as_ref() };
        // SAFETY: the caller's promise.
        let named = options.filter(|it| !it.prefix.is_null()).map(|it| unsafe { text(it.prefix, "prefix") });
        let mut wanted = ClientOptions::new(prefix(named.transpose()?)?);
        if let Some(options) = options {
            if options.deadline_ms != 0 {
                wanted.deadline = Duration::from_millis(options.deadline_ms.into());
            }
            if options.piece_bytes != 0 {
                wanted.piece_bytes = options.piece_bytes;
            }
            if options.port != 0 {
                wanted.port = options.port;
            }
        }
        let opened = Mutex::new(Client::open(wanted)?);
        *client = Box::into_raw(Box::new(Handle { process: std::process::id(), client: opened }));
        Ok(status::OK)
    })
}

fn prefix(named: Option<&str>) -> Result<HostPrefix, Failure> {
    let (name, said) = match named {
        Some(said) => ("prefix", said.to_owned()),
        None => ("TRELLIS_PREFIX", std::env::var("TRELLIS_PREFIX").unwrap_or_default()),
    };
    if said.is_empty() {
        let why =
            "the addresses of this host are not known; give a prefix or set TRELLIS_PREFIX, like fd12:3456:7::/48";
        return Err(Failure::new(status::CONFIGURATION, why));
    }
    said.parse().map_err(|why| Failure::new(status::CONFIGURATION, format!("{name}={said} is not a prefix: {why}")))
}

/// Closes a client.
///
/// # Safety
///
/// `client` is NULL, or came from [`trellis_remote_open`] and was not closed; no thread is in a call of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_close(client: *mut Handle) {
    if !client.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(client) });
    }
}

/// Runs the body of a call.
///
/// # Safety
///
/// `client` is NULL, or came from [`trellis_remote_open`] and was not closed.
pub(super) unsafe fn on_client(
    client: *const Handle,
    body: impl FnOnce(&mut Client) -> Result<c_int, Failure>,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { client.as_ref() }
            .ok_or_else(|| Failure::new(status::ARGUMENT, "client is NULL; give what trellis_remote_open made"))?;
        if handle.process != std::process::id() {
            let why =
                "the client was opened before this process was forked, and is its parent's; open another one here";
            return Err(Failure::new(status::STATE, why));
        }
        match handle.client.try_lock() {
            Ok(mut client) => body(&mut client),
            Err(TryLockError::WouldBlock) => {
                let why = "another thread is in a call of this client; give each thread a client of its own";
                Err(Failure::new(status::STATE, why))
            }
            // The panic was reported, and the state of the client is unknown.
            Err(TryLockError::Poisoned(_)) => {
                Err(Failure::new(status::INTERNAL, "an earlier call of this client broke off; close it"))
            }
        }
    })
}

/// C memory that is read.
///
/// # Safety
///
/// `from` is NULL or has `bytes` bytes, which do not change for `'a`.
pub(super) unsafe fn bytes_from<'a>(from: *const c_void, bytes: u64) -> Result<&'a [u8], Failure> {
    let bytes = checked(from, bytes, "from")?;
    if bytes == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null and not too long; otherwise the caller's promise.
    Ok(unsafe { slice::from_raw_parts(from.cast(), bytes) })
}

/// C memory that is written.
///
/// # Safety
///
/// `into` is NULL or has `bytes` bytes, which nothing else uses for `'a`.
pub(super) unsafe fn bytes_into<'a>(into: *mut c_void, bytes: u64) -> Result<&'a mut [u8], Failure> {
    let bytes = checked(into, bytes, "into")?;
    if bytes == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null and not too long; otherwise the caller's promise.
    Ok(unsafe { slice::from_raw_parts_mut(into.cast(), bytes) })
}

fn checked(at: *const c_void, bytes: u64, name: &str) -> Result<usize, Failure> {
    let refused = |why| Failure::new(status::ARGUMENT, why);
    if at.is_null() && bytes > 0 {
        return Err(refused(format!("{name} is NULL; give the address of {bytes} bytes")));
    }
    match isize::try_from(bytes) {
        Ok(bytes) => Ok(bytes.unsigned_abs()),
        Err(_) => Err(refused(format!("{name} cannot have {bytes} bytes; look at the length"))),
    }
}

/// Creates an object of zeros.
///
/// # Safety
///
/// As `on_client`; `object` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_create(
    client: *mut Handle,
    server: u16,
    bytes: u64,
    object: *mut Pointer,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_client(client, |client| {
            let object = place(object, "object")?;
            *object = client.create(Host(server), bytes)?.into();
            Ok(status::OK)
        })
    }
}

/// Creates an object with the given bytes.
///
/// # Safety
///
/// As [`trellis_remote_create`]; `from` has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_create_with(
    client: *mut Handle,
    server: u16,
    from: *const c_void,
    bytes: usize,
    object: *mut Pointer,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_client(client, |client| {
            let (object, from) = (place(object, "object")?, bytes_from(from, bytes as u64)?);
            *object = client.create_with(Host(server), from)?.into();
            Ok(status::OK)
        })
    }
}

/// Deletes an object.
///
/// # Safety
///
/// As `on_client`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_delete(client: *mut Handle, object: Pointer) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_client(client, |client| {
            client.delete(object.place()?)?;
            Ok(status::OK)
        })
    }
}

/// Finds the object into which a pointer points.
///
/// # Safety
///
/// As `on_client`; `object` and `bytes` are NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_inquire(
    client: *mut Handle,
    pointer: Pointer,
    object: *mut Pointer,
    bytes: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_client(client, |client| {
            let (first, length) = client.inquire(pointer.place()?)?;
            if let Some(object) = object.as_mut() {
                *object = first.into();
            }
            if let Some(bytes) = bytes.as_mut() {
                *bytes = length;
            }
            Ok(status::OK)
        })
    }
}

/// Reads a range.
///
/// # Safety
///
/// As `on_client`; `into` has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_read(
    client: *mut Handle,
    pointer: Pointer,
    into: *mut c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_client(client, |client| {
            client.read(pointer.place()?, bytes_into(into, bytes as u64)?)?;
            Ok(status::OK)
        })
    }
}

/// Writes a range.
///
/// # Safety
///
/// As `on_client`; `from` has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_write(
    client: *mut Handle,
    pointer: Pointer,
    from: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_client(client, |client| {
            client.write(pointer.place()?, bytes_from(from, bytes as u64)?)?;
            Ok(status::OK)
        })
    }
}

/// Writes a range in one step.
///
/// # Safety
///
/// As [`trellis_remote_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_write_whole(
    client: *mut Handle,
    pointer: Pointer,
    from: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_client(client, |client| {
            client.write_whole(pointer.place()?, bytes_from(from, bytes as u64)?)?;
            Ok(status::OK)
        })
    }
}

/// Adds to eight bytes.
///
/// # Safety
///
/// As `on_client`; `before` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_fetch_add(
    client: *mut Handle,
    pointer: Pointer,
    addend: u64,
    before: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_client(client, |client| {
            let found = client.fetch_add(pointer.place()?, addend)?;
            if let Some(before) = before.as_mut() {
                *before = found;
            }
            Ok(status::OK)
        })
    }
}

/// Replaces eight bytes if they have the expected value: 1; or 0, and the present value.
///
/// # Safety
///
/// As `on_client`; `expected` is NULL or valid for reading and writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_compare_swap(
    client: *mut Handle,
    pointer: Pointer,
    expected: *mut u64,
    desired: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_client(client, |client| {
            let expected = place(expected, "expected")?;
            let found = client.compare_swap(pointer.place()?, *expected, desired)?;
            let is_done = found == *expected;
            *expected = found;
            Ok(c_int::from(is_done))
        })
    }
}

/// Opens a session with a server.
///
/// # Safety
///
/// As `on_client`; `welcome` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_hello(client: *mut Handle, server: u16, welcome: *mut Welcome) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_client(client, |client| {
            let said = client.hello(Host(server))?;
            if let Some(welcome) = welcome.as_mut() {
                *welcome = Welcome { quota_bytes: said.quota_bytes, used_bytes: said.used_bytes };
            }
            Ok(status::OK)
        })
    }
}
