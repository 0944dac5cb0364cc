//! The macro that makes functions of the C library's names from a table.

/// Defines functions from rows of a table: `fn name(argument: type) -> type = answer;`, where `answer` is a function that
/// gets the C library's function first, or `with |real| …`, or `copied`, for a
/// caller whose types of arguments have the methods of `trellis-calls` (arguments.rs).
#[macro_export]
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $answer:tt $(:: $path:ident)* $(|$real:ident| $body:expr)?;)*) => {
        $( $crate::functions!(@ $name ($($argument: $type),*) $result, [$answer $(:: $path)*] $(|$real| $body)?); )*

        /// Every function, to be looked up when the library is loaded.
        pub(crate) static ALL: &[&$crate::Real] = &[$( &reals::$name ),*];

        #[allow(non_upper_case_globals, reason = "they have the names of their functions")]
        pub(crate) mod reals {
            $( pub(crate) static $name: $crate::Real = $crate::Real::new(concat!(stringify!($name), "\0")); )*
        }
    };
    (@ $name:ident ($($argument:ident: $type:ty),*) $result:ty, [copied]) => {
        $crate::functions!(@@ $name ($($argument: $type),*) $result, |real| {
            if !(false $(|| $argument.is_shared())*) {
                // SAFETY: as the program calls it.
                return unsafe { real($($argument),*) };
            }

            /// A function of its own, so that a call without shared memory needs little stack.
            #[cold]
            #[inline(never)]
            fn with_private_memory(
                real: unsafe extern "C" fn($($type),*) -> $result,
                $($argument: $type),*
            ) -> $result {
                // SAFETY: as the program calls it, with private memory in place of what is shared.
                unsafe {
                    $( let mut $argument = ($argument, $argument.stand_in()); )*
                    let answer = real($( $argument.0.given(&mut $argument.1) ),*);
                    if answer.is_good() {
                        $( $argument.0.finish(&mut $argument.1); )*
                    }
                    answer
                }
            }
            with_private_memory(real, $($argument),*)
        });
    };
    (@ $name:ident ($($argument:ident: $type:ty),*) $result:ty, [with] |$real:ident| $body:expr) => {
        $crate::functions!(@@ $name ($($argument: $type),*) $result, |$real| $body);
    };
    (@ $name:ident ($($argument:ident: $type:ty),*) $result:ty, [$($answer:tt)*]) => {
        $crate::functions!(@@ $name ($($argument: $type),*) $result, |real| $($answer)*(real, $($argument),*));
    };
    (@@ $name:ident ($($argument:ident: $type:ty),*) $result:ty, |$real:ident| $body:expr) => {
        #[allow(non_snake_case, reason = "it has the name of its function")]
        pub(crate) mod $name {
            #[allow(unused_imports, reason = "some rows use nothing but their own arguments")]
            use super::*;

            /// The answer, with this function in place of the C library's. It may end its thread, which unwinds the
            /// stack: the caller's frames come next.
            #[inline]
            pub(crate) unsafe extern "C-unwind" fn answer_with(
                $real: unsafe extern "C" fn($($type),*) -> $result,
                $($argument: $type),*
            ) -> $result {
                $body
            }

            /// The answer has no name of the C library, so its address is that of this function, and not that of one in a
            /// library that was loaded before.
            pub(crate) unsafe extern "C-unwind" fn answer($($argument: $type),*) -> $result {
                let address = reals::$name.address();
                if address.is_null() {
                    $crate::set_errno($crate::ENOSYS);
                    return <$result as $crate::Answer>::MISSING;
                }
                // SAFETY: the C library's function of this name, which has this type; as the program calls it.
                unsafe {
                    let real = std::mem::transmute::<
                        *mut std::ffi::c_void,
                        unsafe extern "C" fn($($type),*) -> $result,
                    >(address);
                    answer_with(real, $($argument),*)
                }
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            // SAFETY: as the program calls it.
            unsafe { $name::answer($($argument),*) }
        }
    };
}
