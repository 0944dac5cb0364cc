//! C pointers to remote memory: 16 bytes in network order, as in a packet.
//!
//! Promises: any 16 bytes are accepted as input; those that are not a pointer are refused with a message.

use std::ffi::{c_char, c_int};

use trellis::remote::Pointer as Place;
use trellis_fabric_protocol::wire::address::{Address, NotAnAddress};

use crate::failure::{Failure, answer, place, text, value_or};
use crate::status;

/// `struct trellis_remote_pointer`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pointer {
    bytes: [u8; 16],
}

/// `TRELLIS_REMOTE_TEXT_BYTES`
pub const TEXT_BYTES: usize = 46;

const _: () = assert!(size_of::<Pointer>() == 16 && align_of::<Pointer>() == 1);

impl From<Place> for Pointer {
    fn from(place: Place) -> Pointer {
        Pointer { bytes: place.encode().0 }
    }
}

impl Pointer {
    pub(super) fn place(self) -> Result<Place, Failure> {
        let refused =
            |why: &dyn std::fmt::Display| Failure::new(status::ARGUMENT, format!("it is not a pointer: {why}"));
        let place = Place::decode(Address(self.bytes)).map_err(|why| refused(&why))?;
        if !place.home().is_one() {
            return Err(refused(&NotAnAddress::Host(place.home().0)));
        }
        Ok(place)
    }
}

/// Writes a pointer as text.
///
/// # Safety
///
/// `text` is NULL or has room for `text_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_format(pointer: Pointer, text: *mut c_char, text_bytes: usize) -> c_int {
    answer(|| {
        let written = Address(pointer.bytes).to_string();
        if text.is_null() || text_bytes <= written.len() {
            let why = format!("there is no room for the pointer's text; give TRELLIS_REMOTE_TEXT_BYTES ({TEXT_BYTES})");
            return Err(Failure::new(status::ARGUMENT, why));
        }
        // SAFETY: the buffer has room for the text and its NUL by the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(written.as_ptr().cast(), text, written.len());
            text.add(written.len()).write(0);
        }
        Ok(status::OK)
    })
}

/// Parses a pointer's text.
///
/// # Safety
///
/// `written` is NULL or ends with a NUL; `pointer` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_parse(written: *const c_char, pointer: *mut Pointer) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let (written, pointer) = unsafe { (text(written, "text")?, place(pointer, "pointer")?) };
        let refused = |why| Failure::new(status::ARGUMENT, format!("{written:?} is not a pointer: {why}"));
        let found = Pointer::from(written.parse::<Place>().map_err(refused)?);
        found.place()?;
        *pointer = found;
        Ok(status::OK)
    })
}

/// Advances a pointer.
///
/// # Safety
///
/// `pointer` is NULL or valid for reading and writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_remote_advance(pointer: *mut Pointer, bytes: i64) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let pointer = unsafe { place(pointer, "pointer")? };
        let old = pointer.place()?;
        let moved = old
            .offset()
            .checked_add_signed(bytes)
            .and_then(|offset| Place::new(old.cluster(), old.home(), old.generation(), offset));
        let why = || format!("{bytes} bytes from {old} on no memory can be; look at the distance");
        *pointer = moved.ok_or_else(|| Failure::new(status::ARGUMENT, why()))?.into();
        Ok(status::OK)
    })
}

/// The number of the server that has the object.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_remote_home(pointer: Pointer) -> c_int {
    answer(|| Ok(c_int::from(pointer.place()?.home().0)))
}

/// The offset in that server's memory.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_remote_offset(pointer: Pointer) -> u64 {
    value_or(0, || pointer.place().ok().map(Place::offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pointer_is_refused() {
        assert!(Pointer::default().place().is_err(), "all zeros name nothing");
        assert_eq!(trellis_remote_home(Pointer { bytes: [0xff; 16] }), status::ARGUMENT);
        let mut pointer = Pointer::default();
        // SAFETY: the texts end with a NUL, and the pointer is valid.
        unsafe {
            for text in [c"fd01:203:0:0:1::5", c"fd01:203:7:100:1::5", c"2001:db8::1", c"memory", c""] {
                assert_eq!(trellis_remote_parse(text.as_ptr(), &raw mut pointer), status::ARGUMENT, "{text:?}");
            }
            assert_eq!(pointer, Pointer::default(), "it stays as it was");
            assert_eq!(trellis_remote_parse(c"fd01:203:7:0:1::5".as_ptr(), &raw mut pointer), status::OK);
            assert_eq!((trellis_remote_home(pointer), trellis_remote_offset(pointer)), (7, 5));
            assert_eq!(trellis_remote_advance(&raw mut pointer, -6), status::ARGUMENT);
            assert_eq!(trellis_remote_advance(&raw mut pointer, 1 << 48), status::ARGUMENT);
            assert_eq!(trellis_remote_advance(&raw mut pointer, i64::MIN), status::ARGUMENT);
            assert_eq!(trellis_remote_advance(&raw mut pointer, (1 << 48) - 6), status::OK);
            assert_eq!(trellis_remote_advance(&raw mut pointer, 1), status::ARGUMENT);
            let mut text = [0x55; TEXT_BYTES];
            assert_eq!(trellis_remote_format(pointer, text.as_mut_ptr(), 4), status::ARGUMENT);
            assert_eq!(trellis_remote_format(pointer, text.as_mut_ptr(), text.len()), status::OK);
            let written = std::ffi::CStr::from_ptr(text.as_ptr());
            assert_eq!(written, c"fd01:203:7:0:1:ffff:ffff:ffff");
        }
    }
}
