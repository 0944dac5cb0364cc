//! Identifies an object by an address in the region, or by a name.
//!
//! An address is its own number. A name gets the number that its hash gives, and a record in the region's directory
//! that holds the name, which the first user creates. A collision of two names is thus detected, and the second name
//! takes another number. This costs one call for each name in each process.
//!
//! Promises: the same name is the same object in every process; names and addresses never collide. It must never forget
//! a name while the process uses it.

use trellis_base::fnv1a;
use trellis_store::{Change, Expect, Key, Kind, Operation};

use super::error::SynchronisationError;
use super::record::{self, Form};
use super::session::{Answer, Core, locked};

/// The number of numbers that a name may be refused before its hash is considered at fault.
const ATTEMPTS_MAX: u64 = 16;
/// The maximum length of a name.
pub const NAME_BYTES_MAX: usize = 255;

/// The place of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// At this offset in bytes from the start of the region. No data of the object is stored there.
    At(u64),
    /// Under a name.
    Named(&'a str),
}

impl<'a> From<&'a str> for Place<'a> {
    fn from(name: &'a str) -> Place<'a> {
        Place::Named(name)
    }
}

impl From<u64> for Place<'_> {
    fn from(address: u64) -> Self {
        Place::At(address)
    }
}

/// An object whose number is known.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) number: u64,
    pub(super) key: Key,
    /// The object's name in messages: "lock `jobs`".
    pub(super) label: String,
}

impl Form {
    /// The form's word in messages.
    fn word(self) -> &'static str {
        match self {
            Form::Lock => "lock",
            Form::ReadWriteLock => "read-write lock",
            Form::Semaphore => "semaphore",
            Form::Barrier => "barrier",
            Form::Condition => "condition",
            Form::Event => "event",
            Form::Once => "once",
            Form::Holds => "holds",
        }
    }
}

impl Core {
    /// The object of a form at a place.
    pub(super) fn object(&self, form: Form, place: Place<'_>) -> Result<Object, SynchronisationError> {
        let (number, label) = match place {
            Place::At(address) if address <= record::ADDRESS_MAX => {
                (record::at_address(form, address), format!("{} at offset {address:#x}", form.word()))
            }
            Place::At(address) => {
                return Err(SynchronisationError::Misuse(format!(
                    "{address:#x} is not an offset in a region; the largest is {:#x}",
                    record::ADDRESS_MAX
                )));
            }
            Place::Named(name) => (self.number_of(form, name)?, format!("{} `{name}`", form.word())),
        };
        Ok(Object { number, key: record::key(self.region(), number), label })
    }

    fn number_of(&self, form: Form, name: &str) -> Result<u64, SynchronisationError> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(SynchronisationError::Misuse(format!(
                "a name of {} bytes is not possible; 1 to {NAME_BYTES_MAX}",
                name.len()
            )));
        }
        let known = locked(&self.names).get(&(form, name.to_owned())).copied();
        if let Some(number) = known {
            return Ok(number);
        }
        let text = format!("{} {name}", form.word()).into_bytes();
        for attempt in 0..ATTEMPTS_MAX {
            let number = record::with_name(form, hash(&text).wrapping_add(attempt));
            if self.is_number_of(number, &text)? {
                locked(&self.names).insert((form, name.to_owned()), number);
                return Ok(number);
            }
        }
        let what = String::from_utf8_lossy(&text);
        Err(SynchronisationError::Misuse(format!(
            "{what}: the {ATTEMPTS_MAX} numbers its name may have belong to other names; choose another name"
        )))
    }

    /// Whether the directory assigns a number to this text; if the number was free, it does so from now on.
    fn is_number_of(&self, number: u64, text: &[u8]) -> Result<bool, SynchronisationError> {
        let step = Operation::CompareAndSwap {
            key: Key::new(self.region(), Kind::Directory, number),
            expect: Expect::Absent,
            change: Change::Put(text.to_vec()),
        };
        Ok(match self.apply(&[step])? {
            Answer::Done(_) => true,
            Answer::Refused(refused) => refused.found.as_deref() == Some(text),
        })
    }
}

/// FNV-1a, followed by mixing, so that every bit depends on every other.
fn hash(text: &[u8]) -> u64 {
    let hash = fnv1a(text);
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_stays_as_it_is() {
        // The value is fixed because processes of different versions may share a region.
        assert_eq!(hash(b"lock jobs"), 4_332_140_671_695_915_526);
    }
}
