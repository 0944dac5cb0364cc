//! Pages on the command line: the numbers of the first and the last.

/// Consecutive pages of a range; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

/// Parses the first and the last page, or a single one.
pub(crate) fn pages(text: &str) -> Result<Pages, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let of = |number: &str| number.parse::<u64>().ok();
    let count = of(first).zip(of(last)).and_then(|(first, last)| last.checked_sub(first)?.checked_add(1));
    let run = of(first).zip(count).map(|(first, count)| Pages { first, count });
    run.ok_or_else(|| format!("`{text}` names no pages; give the first and the last, as 64-127, or one, as 64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_numbers_from_to() {
        assert_eq!(pages("64-127"), Ok(Pages { first: 64, count: 64 }));
        assert_eq!(pages("7"), Ok(Pages { first: 7, count: 1 }));
        assert!(pages("7-6").is_err_and(|sentence| sentence.contains("`7-6` names no pages")));
    }
}
