//! Objects of synchronisation that have the address of a variable of the program as their name, where a program knows
//! them by that: locks of PARMACS, mutexes of pthreads.
//!
//! Promises: different addresses are different numbers, all below [`OWN_NUMBERS`], and spread over the homes.

use std::ffi::c_void;

/// The first number of the objects that a runtime of such programs names itself.
pub(crate) const OWN_NUMBERS: u64 = 0x5041_524d_0000_0000;

/// The name of the object at an address: unique, and spread over the homes for any distance between objects.
pub(crate) fn name(object: *const c_void) -> u64 {
    // Multiplying by an odd factor and folding the upper half onto the lower one are reversible; an address has 46
    // relevant bits.
    let number = (object as u64 >> 2).wrapping_mul(FACTOR) & NAME_BITS;
    number ^ number >> 24
}

/// The factor of [`name`], and its inverse.
const FACTOR: u64 = 0x9e37_79b9_7f4b;
const UNDOES_FACTOR: u64 = {
    // Newton's method: each step doubles the number of correct bits; an odd number starts with three.
    let mut inverse = FACTOR;
    let mut bits = 3;
    while bits < 64 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse
};
/// The bits of a name: the 46 relevant bits of an address, in 48.
const NAME_BITS: u64 = (1 << 48) - 1;

/// The text for an object in messages: its address, computed back from [`name`].
pub(crate) fn label(number: u64) -> String {
    if number >= OWN_NUMBERS {
        return number.to_string();
    }
    // The rest says what the object at the address is for.
    let number = number & NAME_BITS;
    let address = (number ^ number >> 24).wrapping_mul(UNDOES_FACTOR) & (NAME_BITS >> 2);
    format!("at {:#x}", address << 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_spread_whatever_the_distance() {
        for distance in [8usize, 64, 4096, 1 << 20] {
            let names: Vec<u64> = (0..1000).map(|i| name((0x1000_0000_0000 + i * distance) as *const c_void)).collect();
            assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{distance}");
            for nodes in [2u64, 3, 4, 8] {
                for node in 0..nodes {
                    let here = names.iter().filter(|name| *name % nodes == node).count() as u64;
                    assert!(
                        here > 500 / nodes,
                        "{here} of 1000 objects {distance} bytes apart at node {node} of {nodes}"
                    );
                }
            }
        }
    }

    #[test]
    fn people_are_told_of_addresses() {
        for address in [0x1000_0000_0000usize, 0x1000_0000_a2c8, 0x4000_0004, 0x7fff_ffff_fff8] {
            assert_eq!(label(name(address as *const c_void)), format!("at {address:#x}"));
        }
        assert_eq!(label(OWN_NUMBERS + 5), (OWN_NUMBERS + 5).to_string());
    }

    #[test]
    fn names_of_objects_are_below_our_own() {
        assert!(name(usize::MAX as *const c_void) < OWN_NUMBERS && OWN_NUMBERS > 1 << 48);
    }
}
