//! The answers of functions that this C library does not have.

/// An answer of the C library.
pub trait Answer: Copy {
    /// The answer of a function that this C library does not have.
    const MISSING: Self;

    /// Whether it reports success.
    fn is_good(self) -> bool;
}

macro_rules! answer {
    ($([$($generic:tt)*] $type:ty: $missing:expr),*) => { $(
        impl $($generic)* Answer for $type {
            const MISSING: Self = $missing;

            fn is_good(self) -> bool {
                self != Self::MISSING
            }
        }
    )* };
}

impl Answer for () {
    const MISSING: () = ();

    fn is_good(self) -> bool {
        true
    }
}

answer!([] i32: -1, [] i64: -1, [] f64: f64::NAN, [] isize: -1, [] usize: 0, [<T>] *mut T: std::ptr::null_mut());
