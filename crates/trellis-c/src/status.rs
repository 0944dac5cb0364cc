//! The codes of `enum trellis_status`, their names, the version, and the message of the last failure.

use std::ffi::{CStr, c_char, c_int};

use crate::failure;

/// `TRELLIS_OK`
pub const OK: c_int = 0;
/// `TRELLIS_ERROR_ARGUMENT`
pub const ARGUMENT: c_int = -1;
/// `TRELLIS_ERROR_CONFIGURATION`
pub const CONFIGURATION: c_int = -2;
/// `TRELLIS_ERROR_JOIN`
pub const JOIN: c_int = -3;
/// `TRELLIS_ERROR_DEADLINE`
pub const DEADLINE: c_int = -4;
/// `TRELLIS_ERROR_NODE_LOST`
pub const NODE_LOST: c_int = -5;
/// `TRELLIS_ERROR_STATE`
pub const STATE: c_int = -6;
/// `TRELLIS_ERROR_INTERNAL`
pub const INTERNAL: c_int = -7;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("a version has no NUL byte"),
};

/// The version of the library as text.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The message of the calling thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_last_error() -> *const c_char {
    failure::last_sentence()
}

/// The code of the calling thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_last_status() -> c_int {
    failure::last_status()
}

/// A short name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_status_text(status: c_int) -> *const c_char {
    let text = match status {
        OK.. => c"ok",
        ARGUMENT => c"wrong argument",
        CONFIGURATION => c"wrong configuration",
        JOIN => c"could not join",
        DEADLINE => c"deadline passed",
        NODE_LOST => c"node lost",
        STATE => c"does not fit the state",
        INTERNAL => c"internal error",
        // Codes of trellis/remote.h.
        -100 => c"no route",
        -101 => c"moved",
        -102 => c"object deleted",
        -103 => c"out of bounds",
        -104 => c"session over",
        -105 => c"busy",
        -106 => c"no memory",
        -107 => c"quota used up",
        -108 => c"wrong tag",
        -109 => c"unknown command",
        -110 => c"means nothing",
        -111 => c"denied",
        -112 => c"restarting",
        -114 => c"lease needed",
        _ => c"unknown status",
    };
    text.as_ptr()
}
