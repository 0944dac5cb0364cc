//! Numbers that the switch in the kernel and this crate must share: `switch/layout.h`, in Rust.
//!
//! Promises: a test reads that file and compares every number with the one of the same name here. The numbers repeat a
//! part of the protocol's address and header on purpose. It must never follow a change of the protocol's source by
//! themselves: a switch must continue to understand what is on the wire.

macro_rules! layout {
    ($($name:ident: $kind:ty = $value:expr;)*) => {
        $(
            #[doc = concat!("`TRELLIS_", stringify!($name), "` of `switch/layout.h`.")]
            pub const $name: $kind = $value;
        )*

        /// Every number of this file, by its name in C without `TRELLIS_`.
        #[cfg(test)]
        const NUMBERS: &[(&str, u64)] = &[$((stringify!($name), $name as u64)),*];
    };
}

layout! {
    ADDRESS_BYTES: usize = 16;
    ADDRESS_HOME_AT: usize = 4;
    ADDRESS_COMMAND_AT: usize = 6;
    ADDRESS_ARGUMENTS_AT: usize = 7;
    ADDRESS_GENERATION_AT: usize = 8;
    ADDRESS_OFFSET_AT: usize = 10;
    OFFSET_BITS: u32 = 48;
    PAGE_SHIFT: u32 = 12;
    INCARNATION: u8 = 0x80;
    ARGUMENT_DIRECT: u8 = 0x10;
    CLASS_READING: u8 = 0;
    CLASS_CHANGING: u8 = 1;
    CLASS_LEASES: u8 = 3;
    COMMAND_COMMIT: u8 = 0x13;
    COMMAND_UPDATE: u8 = 0x30;
    COMMAND_RENEW: u8 = 0x31;
    COMMAND_RELEASE: u8 = 0x32;
    COMMAND_CLONE: u8 = 0x44;
    COMMAND_INVALIDATED: u8 = 0x45;
    HEADER_BYTES: usize = 32;
    HEADER_VERSION: u8 = 1;
    HEADER_STATUS_AT: usize = 1;
    HEADER_FLAGS_AT: usize = 2;
    HEADER_REQUEST_AT: usize = 8;
    HEADER_EPOCH_AT: usize = 16;
    FLAG_ANSWER: u16 = 0x20;
    FLAG_RELEASE: u16 = 0x40;
    STATUS_OK: u8 = 0;
    TICK_SHIFT: u32 = 16;
    TICKS_FOREVER: u64 = 0xffff_ffff_ffff;
    PORTS_MAX: u32 = 1024;
    PORT_BYTES: usize = 16;
    PORT_SIDE_AT: usize = 4;
    PORT_MAC_AT: usize = 8;
    PORT_FLAGS_AT: usize = 14;
    PORT_PEER: u16 = 1;
    HOMES: u32 = 65_536;
    PREFIXES_MAX: u32 = 65_536;
    ROUTE_BYTES: usize = 8;
    ROUTE_FLAGS_AT: usize = 2;
    ROUTE_GROUP_AT: usize = 4;
    ROUTE_CLASSES_AT: usize = 6;
    ROUTE_VALID: u16 = 1;
    ROUTE_MEMORY: u16 = 2;
    ROUTE_HAS_LONGER: u16 = 4;
    ROUTE_HAS_PAGES: u16 = 8;
    PAGE_ROUTES_MAX: u32 = 65_536;
    PAGE_RANGE_BYTES: usize = 8;
    PAGE_RANGE_OFFSET_AT: usize = 2;
    PAGE_RANGE_BITS: u32 = 52;
    REDIRECT_BYTES: usize = 24;
    REDIRECT_EPOCH_AT: usize = 8;
    REDIRECT_ENDING_AT: usize = 16;
    GROUPS_MAX: u32 = 256;
    CLONES_MAX: u32 = 8;
    GROUP_BYTES: usize = 16;
    RULES_MAX: u32 = 65_536;
    HOT_MAX: u32 = 16_384;
    HOT_PORT_SHIFT: u32 = 36;
    SETTINGS_BYTES: usize = 24;
    SETTINGS_FLAGS_AT: usize = 4;
    SETTINGS_TERM_AT: usize = 8;
    SETTINGS_DROP_AT: usize = 16;
    SETTINGS_RULES: u32 = 1;
    COUNT_DELIVERED: usize = 0;
    COUNT_REDIRECTED: usize = 1;
    COUNT_NOT_ADDRESSED: usize = 2;
    COUNT_FORGED: usize = 3;
    COUNT_NO_ROUTE: usize = 4;
    COUNT_DENIED: usize = 5;
    COUNT_NO_PORT: usize = 6;
    COUNT_PARTITIONED: usize = 7;
    COUNT_DROPPED: usize = 8;
    COUNT_OVERFLOWED: usize = 9;
    COUNT_GRANTED: usize = 10;
    COUNT_TABLE_FULL: usize = 11;
    COUNT_EVENTS_LOST: usize = 12;
    COUNT_BYTES_IN: usize = 13;
    COUNT_PACKETS_OUT: usize = 14;
    COUNT_BYTES_OUT: usize = 15;
    COUNTERS: usize = 16;
    EVENTS_BYTES: u32 = 262_144;
    EVENT_BYTES: usize = 32;
    EVENT_PAGE_AT: usize = 8;
    EVENT_EPOCH_AT: usize = 16;
    EVENT_KIND_AT: usize = 24;
    EVENT_PORT_AT: usize = 28;
    EVENT_GRANTED: u32 = 1;
    EVENT_CONFIRMED: u32 = 2;
    EVENT_REFUSED: u32 = 3;
    EVENT_RENEWED: u32 = 4;
    EVENT_RETURNED: u32 = 5;
    EVENT_EXPIRED: u32 = 6;
}

/// The numbers of a header in C, by their names without `TRELLIS_`.
#[cfg(test)]
pub(crate) fn numbers_in_c(header: &'static str) -> Vec<(&'static str, u64)> {
    let number = |line: &'static str| {
        let mut words = line.strip_prefix("#define TRELLIS_")?.split_whitespace();
        let (name, value) = (words.next()?, words.next()?);
        let number = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => value.parse(),
        };
        Some((name, number.ok()?))
    };
    header.lines().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_and_rust_say_the_same() {
        assert_eq!(numbers_in_c(include_str!("../../../switch/layout.h")), NUMBERS);
    }
}
