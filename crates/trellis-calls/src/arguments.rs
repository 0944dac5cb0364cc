//! Arguments of calls, by what the kernel does with them.
//!
//! Promises: private memory stands for a shared argument while the call runs, so another node cannot take it away. It
//! begins as a copy, because some calls write a part of it or nothing. It is copied back only if the call succeeded.
//! Private arguments are passed on as they are.

use std::ffi::{c_char, c_void};
use std::mem::{MaybeUninit, size_of};

use crate::buffer::Buffer;
use crate::shared;

/// An argument that may lie in shared memory.
pub(crate) trait Argument: Copy {
    /// The private copy; `None` if the argument itself is private.
    type StandIn;

    fn is_shared(self) -> bool;

    /// # Safety
    /// The argument is one that the call accepts.
    unsafe fn stand_in(self) -> Self::StandIn;

    /// The argument for the call.
    fn given(self, stand_in: &mut Self::StandIn) -> Self;

    /// The call succeeded.
    ///
    /// # Safety
    /// As for `stand_in`.
    unsafe fn finish(self, stand_in: &mut Self::StandIn);
}

/// Numbers, and pointers that the kernel does not follow.
macro_rules! plain {
    ($([$($generic:tt)*] $type:ty),*) => { $(
        impl $($generic)* Argument for $type {
            type StandIn = ();

            fn is_shared(self) -> bool {
                false
            }

            unsafe fn stand_in(self) {}

            fn given(self, (): &mut ()) -> Self {
                self
            }

            unsafe fn finish(self, (): &mut ()) {}
        }
    )* };
}

plain!([] i32, [] u32, [] i64, [] u64, [] usize, [] isize, [<T>] *mut T, [<T>] *const T);

/// A value that the kernel reads.
#[repr(transparent)]
pub(crate) struct In<T>(pub(crate) *const T);

/// A value that the kernel writes.
#[repr(transparent)]
pub(crate) struct Out<T>(pub(crate) *mut T);

/// A value that the kernel reads and writes.
#[repr(transparent)]
pub(crate) struct InOut<T>(pub(crate) *mut T);

/// A string that ends with a zero byte.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(pub(crate) *const c_char);

macro_rules! value {
    ($type:ident, $sets:literal) => {
        impl<T> Clone for $type<T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $type<T> {}

        impl<T> Argument for $type<T> {
            type StandIn = Option<MaybeUninit<T>>;

            fn is_shared(self) -> bool {
                shared::overlaps(self.0, size_of::<T>())
            }

            unsafe fn stand_in(self) -> Self::StandIn {
                self.is_shared().then(|| {
                    let mut copy = MaybeUninit::<T>::uninit();
                    // SAFETY: the kernel would use this many bytes there.
                    unsafe { self.0.cast::<u8>().copy_to_nonoverlapping(copy.as_mut_ptr().cast(), size_of::<T>()) };
                    copy
                })
            }

            fn given(self, stand_in: &mut Self::StandIn) -> Self {
                stand_in.as_mut().map_or(self, |copy| $type(copy.as_mut_ptr()))
            }

            unsafe fn finish(self, stand_in: &mut Self::StandIn) {
                if let (true, Some(copy)) = ($sets, stand_in) {
                    let to = self.0 as *mut u8;
                    // SAFETY: the kernel set the copy, and would have written this many bytes there.
                    unsafe { to.copy_from_nonoverlapping(copy.as_ptr().cast(), size_of::<T>()) };
                }
            }
        }
    };
}

value!(In, false);
value!(Out, true);
value!(InOut, true);

impl Argument for Text {
    type StandIn = Option<Buffer>;

    fn is_shared(self) -> bool {
        // Regions have mappings of their own: a string that begins outside ends there.
        shared::overlaps(self.0, 1)
    }

    unsafe fn stand_in(self) -> Option<Buffer> {
        self.is_shared().then(|| {
            // SAFETY: a string, by the caller's promise.
            unsafe { Buffer::copied(self.0.cast::<c_void>(), libc::strlen(self.0) + 1) }
        })
    }

    fn given(self, stand_in: &mut Option<Buffer>) -> Text {
        stand_in.as_mut().map_or(self, |copy| Text(copy.at()))
    }

    unsafe fn finish(self, _: &mut Option<Buffer>) {}
}

/// The call with private memory in place of an argument that the kernel reads.
pub(crate) fn given<A: Argument, R>(argument: A, call: impl FnOnce(A) -> R) -> R {
    // SAFETY: the kernel would read it.
    let mut private = unsafe { argument.stand_in() };
    call(argument.given(&mut private))
}
