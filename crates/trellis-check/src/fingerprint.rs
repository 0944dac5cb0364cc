//! Fingerprints of states, and the set of those that were seen.
//!
//! Promises: equal bytes have equal fingerprints on every machine. Different bytes collide with a probability that is
//! negligible for any number of states that fits into memory (128 bits). It must never be used where an adversary
//! could choose the bytes.

/// 128 bits that identify a state; never zero.
pub(crate) type Fingerprint = u128;

const FIRST: u64 = 0x9E37_79B9_7F4A_7C15;
const SECOND: u64 = 0xD6E8_FEB8_6659_FD93;

fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ (product >> 64) as u64
}

/// The fingerprint of `bytes`.
pub(crate) fn fingerprint(bytes: &[u8]) -> Fingerprint {
    let mut lanes = [FIRST ^ bytes.len() as u64, SECOND];
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        mix(&mut lanes, u64::from_le_bytes(word.try_into().expect("eight bytes")));
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(&mut lanes, u64::from_le_bytes(last));
    mix(&mut lanes, FIRST);
    let print = u128::from(lanes[0]) | u128::from(lanes[1]) << 64;
    print.max(1)
}

fn mix(lanes: &mut [u64; 2], word: u64) {
    lanes[0] = fold(lanes[0] ^ word ^ FIRST, SECOND ^ lanes[0].rotate_left(23));
    lanes[1] = fold(lanes[1] ^ word.rotate_left(32) ^ SECOND, FIRST ^ lanes[1].rotate_left(41));
}

/// Numbers fingerprints in the order of discovery. Open addressing, 20 bytes a slot, doubled at three quarters full.
pub(crate) struct Seen {
    places: Vec<Fingerprint>,
    numbers: Vec<u32>,
    count: u32,
}

impl Seen {
    pub(crate) fn new() -> Seen {
        Seen { places: vec![0; 1 << 12], numbers: vec![0; 1 << 12], count: 0 }
    }

    /// The number of `print`, and whether it is new.
    pub(crate) fn insert(&mut self, print: Fingerprint) -> (u32, bool) {
        if self.count as usize * 4 >= self.places.len() * 3 {
            self.grow();
        }
        let place = self.place(print);
        let is_new = self.places[place] == 0;
        if is_new {
            self.places[place] = print;
            self.numbers[place] = self.count;
            self.count += 1;
        }
        (self.numbers[place], is_new)
    }

    /// The number of `print`, if it was seen.
    pub(crate) fn number(&self, print: Fingerprint) -> Option<u32> {
        let place = self.place(print);
        (self.places[place] != 0).then(|| self.numbers[place])
    }

    fn grow(&mut self) {
        let larger = self.places.len() * 2;
        let places = std::mem::replace(&mut self.places, vec![0; larger]);
        let numbers = std::mem::replace(&mut self.numbers, vec![0; larger]);
        for (print, number) in places.into_iter().zip(numbers).filter(|(print, _)| *print != 0) {
            let place = self.place(print);
            self.places[place] = print;
            self.numbers[place] = number;
        }
    }

    /// The slot where `print` is or belongs.
    fn place(&self, print: Fingerprint) -> usize {
        let mask = self.places.len() - 1;
        let mut place = (print >> 64) as usize & mask;
        while self.places[place] != 0 && self.places[place] != print {
            place = (place + 1) & mask;
        }
        place
    }
}

/// A hasher for tables that are never iterated: fast, and the same on every machine.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fold(u64);

impl std::hash::Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let print = fingerprint(bytes);
        self.write_u64(print as u64);
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = fold(self.0.rotate_left(29) ^ value ^ FIRST, SECOND);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

pub(crate) type Table<K, V> = std::collections::HashMap<K, V, std::hash::BuildHasherDefault<Fold>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_print_depends_on_every_byte_and_on_the_length() {
        let mut seen = Seen::new();
        for length in 0..40 {
            let mut bytes = vec![0u8; length];
            assert!(seen.insert(fingerprint(&bytes)).1);
            for index in 0..length {
                for bit in 0..8 {
                    bytes[index] ^= 1 << bit;
                    assert!(seen.insert(fingerprint(&bytes)).1, "byte {index} of {length}");
                    bytes[index] ^= 1 << bit;
                }
            }
        }
    }

    #[test]
    fn the_set_keeps_what_it_saw_while_it_grows() {
        let mut seen = Seen::new();
        let prints = || (0..20_000u32).map(|number| fingerprint(&number.to_le_bytes()));
        assert!(prints().zip(0..).all(|(print, number)| seen.insert(print) == (number, true)));
        assert!(prints().zip(0..).all(|(print, number)| seen.insert(print) == (number, false)));
        assert!(prints().zip(0..).all(|(print, number)| seen.number(print) == Some(number)));
        assert_eq!(seen.number(fingerprint(b"never seen")), None);
    }
}
