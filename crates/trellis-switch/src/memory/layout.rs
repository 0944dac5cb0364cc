//! Numbers that the server in the kernel and this crate must share: `switch/memory_layout.h`, in Rust. A test compares
//! them.

macro_rules! layout {
    ($($name:ident: $kind:ty = $value:expr;)*) => {
        $(
            #[doc = concat!("`TRELLIS_", stringify!($name), "` of `switch/memory_layout.h`.")]
            #[allow(dead_code, reason = "some numbers are the program's alone")]
            pub(super) const $name: $kind = $value;
        )*

        #[cfg(test)]
        const NUMBERS: &[(&str, u64)] = &[$((stringify!($name), $name as u64)),*];
    };
}

layout! {
    EXTENT_SHIFT: u32 = 24;
    EXTENT_BYTES: u64 = 16_777_216;
    EXTENT_PAGES: u64 = 4096;
    EXTENT_TABLE_AT: u64 = 16_781_312;
    EXTENT_VALUE_BYTES: u64 = 16_912_384;
    EXTENTS_MAX: u64 = 16_384;
    PAGE_BYTES: u64 = 4096;
    KNOWN_BYTES: usize = 32;
    KNOWN_VERSION_AT: usize = 8;
    KNOWN_DIGEST_AT: usize = 16;
    ENTRY_VALID_SHIFT: u32 = 16;
    ENTRY_FIRST: u64 = 0x1_0000_0000;
    ENTRY_GUARDED: u64 = 0x2_0000_0000;
    DIGEST_VERSION_SHIFT: u32 = 48;
    DIGEST_SUM_SHIFT: u32 = 32;
    DIGEST_THERE: u64 = 1;
    CRC_TABLES: usize = 16;
    CRC_PAGE_TABLES: usize = 4;
    MEMORY_SETTINGS_BYTES: usize = 8;
    MEMORY_SETTINGS_HOME_AT: usize = 4;
    MEMORY_SETTINGS_PORT_AT: usize = 6;
    ANSWERED_READ: usize = 0;
    ANSWERED_WRITE: usize = 1;
    NOT_ASKED: usize = 2;
    UNUSUAL: usize = 3;
    UNSOUND: usize = 4;
    NOT_HERE: usize = 5;
    NOT_ADMITTED: usize = 6;
    GUARDED: usize = 7;
    CHANGING: usize = 8;
    TOO_LONG: usize = 9;
    NO_ROOM: usize = 10;
    OUTCOMES: usize = 11;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_and_rust_say_the_same() {
        assert_eq!(crate::layout::numbers_in_c(include_str!("../../../../switch/memory_layout.h")), NUMBERS);
    }
}
