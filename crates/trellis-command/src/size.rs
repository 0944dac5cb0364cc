//! Sizes on the command line, in the notation of all of Trellis.

/// Parses a number of bytes, or one with KiB, MiB, GiB or TiB; not zero.
pub fn size(text: &str) -> Result<u64, String> {
    let bytes = trellis::config::bytes_of_text(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| {
        "is not a size; write a number of bytes, or one with KiB, MiB, GiB or TiB, such as 256MiB".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_are_not_zero() {
        assert_eq!((size("4GiB"), size("5 kib"), size("7")), (Ok(4 << 30), Ok(5 << 10), Ok(7)));
        assert!(["much", "0", "-1", "1.5GiB", "99999999TiB"].iter().all(|text| size(text).is_err()));
    }
}
