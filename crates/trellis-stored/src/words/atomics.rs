//! Atomic changes of numbers, for all processes.
//!
//! Promises: an update has the effect of the corresponding instruction of the processor, at any alignment. An addition
//! is one call, and so is a comparison. Every other update is a load and comparisons, which are repeated as long as
//! other writers are faster.

use trellis_store::{Applied, Change, Expect, Operation, Outcome, Refused};

use super::{AccessPart, Place, Words, native};
use crate::error::StoredError;
use crate::layout::is_inside;

/// An atomic update. The numbers are those of `enum trellis_atomic_operation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Update {
    Exchange = 0,
    Add = 1,
    Subtract = 2,
    And = 3,
    Or = 4,
    Xor = 5,
    Nand = 6,
    Max = 7,
    Min = 8,
    UnsignedMax = 9,
    UnsignedMin = 10,
}

impl Update {
    const ALL: [Update; 11] = [
        Update::Exchange,
        Update::Add,
        Update::Subtract,
        Update::And,
        Update::Or,
        Update::Xor,
        Update::Nand,
        Update::Max,
        Update::Min,
        Update::UnsignedMax,
        Update::UnsignedMin,
    ];

    /// The update with this number.
    pub fn from_number(number: u32) -> Option<Update> {
        Update::ALL.into_iter().find(|update| *update as u32 == number)
    }

    /// The new value of `now`; both are numbers of `bytes` bytes, without higher bits.
    pub fn of(self, now: u64, operand: u64, bytes: usize) -> u64 {
        let unused = 64 - 8 * bytes as u32;
        let signed = |number: u64| ((number << unused) as i64) >> unused;
        let next = match self {
            Update::Exchange => operand,
            Update::Add => now.wrapping_add(operand),
            Update::Subtract => now.wrapping_sub(operand),
            Update::And => now & operand,
            Update::Or => now | operand,
            Update::Xor => now ^ operand,
            Update::Nand => !(now & operand),
            Update::Max => signed(now).max(signed(operand)) as u64,
            Update::Min => signed(now).min(signed(operand)) as u64,
            Update::UnsignedMax => now.max(operand),
            Update::UnsignedMin => now.min(operand),
        };
        next & mask(bytes)
    }
}

fn mask(bytes: usize) -> u64 {
    u64::MAX >> (64 - 8 * bytes as u32)
}

impl Words {
    /// Changes a number. Returns its previous value.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    ///
    /// # Safety
    ///
    /// As [`Words::store`].
    ///
    /// # Panics
    ///
    /// When `bytes` is not 1, 2, 4 or 8.
    pub unsafe fn update(
        &self,
        address: usize,
        operand: u64,
        bytes: usize,
        update: Update,
    ) -> Result<u64, StoredError> {
        assert!(matches!(bytes, 1 | 2 | 4 | 8), "a number of {bytes} bytes");
        let operand = operand & mask(bytes);
        // SAFETY: the caller's promise.
        let Some(parts) = (unsafe { self.number(address, bytes)? }) else {
            // SAFETY: the caller's promise; it is memory of this process.
            return Ok(unsafe { native::update(address, bytes, &mut |now| Some(update.of(now, operand, bytes))) });
        };
        if let ([part], Some(delta)) = (&parts[..], delta(update, operand, bytes)) {
            let (key, offset) = (part.key(), part.offset);
            let add = Operation::Add { key, offset, width: bytes as u8, delta, bounds: None };
            let outcomes = self.apply(&[add])?;
            self.changed(address, &parts);
            return match outcomes[..] {
                [Outcome::Added(before)] => Ok(before as u64 & mask(bytes)),
                _ => Err(StoredError::Argument("an addition was answered with something else".to_owned())),
            };
        }
        if update == Update::Exchange && self.whole_calls {
            return self.exchange(address, &parts, operand, bytes);
        }
        let mut now = self.read(&parts)?;
        loop {
            match self.swap(&parts, now, update.of(now, operand, bytes), bytes)? {
                None => {
                    self.changed(address, &parts);
                    return Ok(now);
                }
                Some(found) => now = found,
            }
        }
    }

    /// Sets a number to `desired` if it is `expected`; otherwise returns its value.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    ///
    /// # Safety
    ///
    /// As [`Words::store`].
    ///
    /// # Panics
    ///
    /// When `bytes` is not 1, 2, 4 or 8.
    pub unsafe fn compare_exchange(
        &self,
        address: usize,
        expected: u64,
        desired: u64,
        bytes: usize,
    ) -> Result<Result<(), u64>, StoredError> {
        assert!(matches!(bytes, 1 | 2 | 4 | 8), "a number of {bytes} bytes");
        let (expected, desired) = (expected & mask(bytes), desired & mask(bytes));
        // SAFETY: the caller's promise.
        let Some(parts) = (unsafe { self.number(address, bytes)? }) else {
            let next = &mut |now| (now == expected).then_some(desired);
            // SAFETY: the caller's promise; it is memory of this process.
            let found = unsafe { native::update(address, bytes, next) };
            return Ok(if found == expected { Ok(()) } else { Err(found) });
        };
        loop {
            match self.swap(&parts, expected, desired, bytes)? {
                None => {
                    self.changed(address, &parts);
                    return Ok(Ok(()));
                }
                Some(found) if found != expected => return Ok(Err(found)),
                // This is possible only if a number lies in two pages, and is read after the comparison failed.
                Some(_) => {}
            }
        }
    }

    /// The parts of a number in the store; `None` for one that stays native.
    unsafe fn number(&self, address: usize, bytes: usize) -> Result<Option<Vec<AccessPart>>, StoredError> {
        let mut parts = Vec::new();
        let mut is_native = false;
        let mut note = |place: Place, _: usize, _: usize| match place {
            Place::Native => is_native = true,
            Place::Stored(part) => parts.push(part),
        };
        if is_inside(address) || self.process.is_none() {
            self.split(address, bytes, false, &mut note)?;
            return Ok((!is_native).then_some(parts));
        }
        let Some(process) = &self.process else { return Ok(None) };
        let _one = process.importing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut in_store = true;
        process.presence.runs(address, bytes, &mut |place, _, _| in_store &= place == super::Where::Stored);
        if !in_store {
            let mut now = [0; 8];
            // SAFETY: the caller's promise. Bytes that are native permanently stay so.
            unsafe {
                self.load_piece(address, &mut now[..bytes])?;
                if process.presence.is_native(address, bytes) {
                    return Ok(None);
                }
                self.store_piece(address, &now[..bytes])?;
            }
        }
        self.split(address, bytes, false, &mut note)?;
        if is_native {
            return Err(StoredError::Argument(format!(
                "the number of {bytes} bytes at {address:#x} lies in the store in part and outside of it in part"
            )));
        }
        Ok(Some(parts))
    }

    fn read(&self, parts: &[AccessPart]) -> Result<u64, StoredError> {
        let gets: Vec<Operation> = parts.iter().map(AccessPart::get).collect();
        Ok(number_of(parts, &self.apply(&gets)?))
    }

    fn exchange(&self, address: usize, parts: &[AccessPart], operand: u64, bytes: usize) -> Result<u64, StoredError> {
        let new = operand.to_le_bytes();
        let mut steps: Vec<Operation> = parts.iter().map(AccessPart::get).collect();
        steps.extend(parts.iter().map(|part| part.put(&new[..bytes])));
        let outcomes = self.apply(&steps)?;
        self.changed(address, parts);
        Ok(number_of(parts, &outcomes))
    }

    /// Compares and swaps: `None` if the number was changed, otherwise its value.
    fn swap(
        &self,
        parts: &[AccessPart],
        expected: u64,
        desired: u64,
        bytes: usize,
    ) -> Result<Option<u64>, StoredError> {
        let (old, new) = (expected.to_le_bytes(), desired.to_le_bytes());
        debug_assert!(bytes <= 8);
        let steps: Vec<Operation> = parts
            .iter()
            .map(|part| {
                let range = part.at..part.at + part.bytes;
                let offset = part.offset;
                Operation::CompareAndSwap {
                    key: part.key(),
                    expect: Expect::Range { offset, bytes: old[range.clone()].to_vec() },
                    change: Change::PutRange { offset, bytes: new[range].to_vec() },
                }
            })
            .collect();
        match self.store.apply(&steps, None)? {
            Applied::Refused(Refused { found, .. }, _) => match parts {
                [part] => {
                    let found = found.unwrap_or_default();
                    let from = (part.offset as usize).min(found.len());
                    let to = (from + part.bytes).min(found.len());
                    let mut number = [0; 8];
                    number[..to - from].copy_from_slice(&found[from..to]);
                    Ok(Some(u64::from_le_bytes(number)))
                }
                parts => self.read(parts).map(Some),
            },
            _ => Ok(None),
        }
    }
}

fn number_of(parts: &[AccessPart], outcomes: &[Outcome]) -> u64 {
    let mut number = [0; 8];
    for (part, outcome) in parts.iter().zip(outcomes) {
        if let Outcome::Value(Some(found)) = outcome {
            let count = found.len().min(part.bytes);
            number[part.at..part.at + count].copy_from_slice(&found[..count]);
        }
    }
    u64::from_le_bytes(number)
}

/// The summand of an update that is an addition.
fn delta(update: Update, operand: u64, bytes: usize) -> Option<i64> {
    let unused = 64 - 8 * bytes as u32;
    let signed = ((operand << unused) as i64) >> unused;
    match update {
        Update::Add => Some(signed),
        Update::Subtract => Some(signed.wrapping_neg()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_are_those_of_the_processor() {
        assert_eq!(Update::Add.of(0xff, 1, 1), 0);
        assert_eq!(Update::Subtract.of(0, 1, 2), 0xffff);
        assert_eq!(Update::Nand.of(0b1100, 0b1010, 1), 0xf7);
        assert_eq!(Update::Max.of(0x80, 1, 1), 1, "-128 is less than 1");
        assert_eq!(Update::Min.of(0x80, 1, 1), 0x80);
        assert_eq!(Update::UnsignedMax.of(0x80, 1, 1), 0x80);
        assert_eq!(Update::UnsignedMin.of(0x80, 1, 1), 1);
        assert_eq!(Update::Max.of(u64::MAX, 0, 8), 0);
        for update in Update::ALL {
            assert_eq!(Update::from_number(update as u32), Some(update));
        }
        assert_eq!(Update::from_number(11), None);
        assert_eq!(delta(Update::Subtract, 1 << 63, 8), Some(i64::MIN));
    }
}
