//! How much memory a region takes when it is created.
//!
//! Promises: the words are those of the configuration. It must never allocate; [`crate::Region::create`] does.

use std::fmt;
use std::str::FromStr;

use crate::error::UnknownWord;

/// How much memory is secured at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reserve {
    /// The region is refused if the machine could not hold all of it now. Memory is allocated page by page.
    #[default]
    Lazy,
    /// All memory is allocated at the start.
    Full,
    /// Nothing is checked: for a program that touches a small part of a large region.
    Overcommit,
}

impl Reserve {
    const ALL: [Reserve; 3] = [Reserve::Lazy, Reserve::Full, Reserve::Overcommit];

    const fn word(self) -> &'static str {
        match self {
            Reserve::Lazy => "lazy",
            Reserve::Full => "full",
            Reserve::Overcommit => "overcommit",
        }
    }
}

impl fmt::Display for Reserve {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.word())
    }
}

impl FromStr for Reserve {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Reserve, UnknownWord> {
        Reserve::ALL
            .into_iter()
            .find(|reserve| reserve.word() == word)
            .ok_or_else(|| UnknownWord { word: word.to_owned(), accepted: "lazy, full or overcommit" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_reserves_agree() {
        for reserve in Reserve::ALL {
            assert_eq!(reserve.to_string().parse::<Reserve>(), Ok(reserve));
        }
        assert!("eager".parse::<Reserve>().is_err());
    }
}
