//! `trellis_remote_batch`: converts C calls to calls of the crate `trellis`, and their results to members of a
//! structure.
//!
//! Promises: every call gets a status, even one with invalid members, which does not prevent the others.

use std::ffi::{c_int, c_void};

use trellis::remote::{Call, Host, Outcome};

use super::client::{Handle, bytes_from, bytes_into, on_client};
use super::pointer::Pointer;
use crate::failure::Failure;
use crate::status;

/// `TRELLIS_REMOTE_READ`
pub const READ: i32 = 0;
/// `TRELLIS_REMOTE_WRITE`
pub const WRITE: i32 = 1;
/// `TRELLIS_REMOTE_WRITE_WHOLE`
pub const WRITE_WHOLE: i32 = 2;
/// `TRELLIS_REMOTE_FETCH_ADD`
pub const FETCH_ADD: i32 = 3;
/// `TRELLIS_REMOTE_COMPARE_SWAP`
pub const COMPARE_SWAP: i32 = 4;
/// `TRELLIS_REMOTE_CREATE`
pub const CREATE: i32 = 5;
/// `TRELLIS_REMOTE_CREATE_WITH`
pub const CREATE_WITH: i32 = 6;
/// `TRELLIS_REMOTE_DELETE`
pub const DELETE: i32 = 7;
/// `TRELLIS_REMOTE_INQUIRE`
pub const INQUIRE: i32 = 8;

/// `struct trellis_remote_call`
#[repr(C)]
#[allow(missing_docs)] // The header describes the fields.
pub struct Entry {
    pub kind: i32,
    pub status: i32,
    pub pointer: Pointer,
    pub memory: *mut c_void,
    pub bytes: u64,
    pub value: u64,
    pub desired: u64,
    pub server: u16,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// Carries out calls at the same time.
///
/// # Safety
///
/// As `on_client`; `entries` is NULL or has `count` entries; memory that a call writes is used by that call alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_batch(client: *mut Handle, entries: *mut Entry, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_client(client, |client| {
            if count == 0 {
                return Ok(status::OK);
            }
            if entries.is_null() || isize::try_from(count.saturating_mul(size_of::<Entry>())).is_err() {
                let why = format!("calls is NULL or cannot have {count} of them; give the address of an array");
                return Err(Failure::new(status::ARGUMENT, why));
            }
            let entries = std::slice::from_raw_parts_mut(entries, count);
            let (mut calls, mut places, mut first) = (Vec::with_capacity(count), Vec::with_capacity(count), None);
            for (number, entry) in entries.iter_mut().enumerate() {
                match call(entry) {
                    Ok(call) => {
                        calls.push(call);
                        places.push(number);
                    }
                    Err(failure) => end(number, entry, failure, &mut first),
                }
            }
            for (number, outcome) in places.into_iter().zip(client.batch(&mut calls)) {
                let entry = &mut entries[number];
                match outcome {
                    Ok(outcome) => put(entry, outcome),
                    Err(error) => end(number, entry, error.into(), &mut first),
                }
            }
            match first {
                Some((_, failure)) => Err(failure),
                None => Ok(status::OK),
            }
        })
    }
}

/// Records the failure of a call; the first failure is reported.
fn end(number: usize, entry: &mut Entry, failure: Failure, first: &mut Option<(usize, Failure)>) {
    entry.status = failure.status;
    if first.as_ref().is_none_or(|(other, _)| number < *other) {
        *first = Some((number, failure));
    }
}

fn put(entry: &mut Entry, outcome: Outcome) {
    entry.status = status::OK;
    match outcome {
        Outcome::Done => {}
        Outcome::Made(pointer) => entry.pointer = pointer.into(),
        Outcome::Found { pointer, bytes } => (entry.pointer, entry.bytes) = (pointer.into(), bytes),
        Outcome::Before(value) => entry.value = value,
    }
}

/// The call of an entry.
///
/// # Safety
///
/// Its memory is valid for `'a`, and nothing else uses it where it is written.
unsafe fn call<'a>(entry: &Entry) -> Result<Call<'a>, Failure> {
    let Entry { kind, memory, bytes, value, desired, .. } = *entry;
    let home = Host(entry.server);
    let pointer = || entry.pointer.place();
    // SAFETY: the caller's promise.
    let from = || unsafe { bytes_from(memory, bytes) };
    Ok(match kind {
        // SAFETY: the caller's promise.
        READ => Call::Read { pointer: pointer()?, bytes: unsafe { bytes_into(memory, bytes)? } },
        WRITE => Call::Write { pointer: pointer()?, bytes: from()? },
        WRITE_WHOLE => Call::WriteWhole { pointer: pointer()?, bytes: from()? },
        FETCH_ADD => Call::FetchAdd { pointer: pointer()?, addend: value },
        COMPARE_SWAP => Call::CompareSwap { pointer: pointer()?, expected: value, new: desired },
        CREATE => Call::Create { home, bytes },
        CREATE_WITH => Call::CreateWith { home, bytes: from()? },
        DELETE => Call::Delete { pointer: pointer()? },
        INQUIRE => Call::Inquire { pointer: pointer()? },
        _ => {
            let why =
                format!("{kind} is not a kind of call; give one of TRELLIS_REMOTE_READ to TRELLIS_REMOTE_INQUIRE");
            return Err(Failure::new(status::ARGUMENT, why));
        }
    })
}
