//! `trellis_array` and the other functions for things with names.
//!
//! Promises: an array that a C program opens is the same as the one that a Rust or C++ program opens under that name.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use trellis::named::{Element, Form, Kind};

use crate::cluster::{ClusterHandle, on_cluster};
use crate::failure::{self, Failure, answer_or};
use crate::heap::{memory, no_cluster};
use crate::status;

/// `TRELLIS_OTHER`
pub const OTHER: c_int = 0;
/// `TRELLIS_UNSIGNED`
pub const UNSIGNED: c_int = 1;
/// `TRELLIS_SIGNED`
pub const SIGNED: c_int = 2;
/// `TRELLIS_FLOAT`
pub const FLOAT: c_int = 3;

fn element(bytes: usize, form: c_int) -> Result<Element, Failure> {
    let form = match form {
        OTHER => Form::Other,
        UNSIGNED => Form::Unsigned,
        SIGNED => Form::Signed,
        FLOAT => Form::Float,
        _ => {
            let why = format!(
                "there is no type {form}; give TRELLIS_FLOAT, TRELLIS_SIGNED, TRELLIS_UNSIGNED or TRELLIS_OTHER"
            );
            return Err(Failure::new(status::ARGUMENT, why));
        }
    };
    if bytes == 0 {
        return Err(Failure::new(status::ARGUMENT, "an element has 0 bytes; give its size, as sizeof says it"));
    }
    Ok(Element { form, bytes })
}

/// Makes or finds an array.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed; `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_array(
    cluster: *mut ClusterHandle,
    name: *const c_char,
    count: usize,
    element_bytes: usize,
    form: c_int,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        memory(cluster, |cluster| {
            let name = failure::text(name, "name")?;
            let fill = |_: NonNull<u8>| ();
            Ok(cluster.named_memory(Kind::Array, name, element(element_bytes, form)?, count, fill)?)
        })
    }
}

/// The elements of a node.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed; `first` and `length` are NULL or have room for a
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_partition(
    cluster: *const ClusterHandle,
    count: usize,
    element_bytes: usize,
    node: usize,
    first: *mut usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            failure::place(first, "first")?;
            failure::place(length, "length")?;
            let element = element(element_bytes, OTHER)?;
            let partition = cluster.partitions_of(count, element.bytes).of(node);
            first.write(partition.start);
            length.write(partition.len());
            Ok(status::OK)
        })
    }
}

/// The number of an object.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed; `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_id(cluster: *const ClusterHandle, name: *const c_char) -> u64 {
    answer_or(0, || {
        // SAFETY: the caller's promise.
        let (handle, name) = unsafe { (cluster.as_ref().ok_or_else(no_cluster)?, failure::text(name, "name")?) };
        Ok(handle.cluster().id(name))
    })
}
