//! What a function of the C library answers if it does not exist.

/// An answer of the C library.
pub trait Answer: Copy {
    /// That of a function which this C library lacks.
    const MISSING: Self;

    /// Whether it says that the call did what it should.
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

answer!([] i32: -1, [] i64: -1, [] isize: -1, [] usize: 0, [<T>] *mut T: std::ptr::null_mut());
