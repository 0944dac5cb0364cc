//! Fields of the files that Linux offers below `/proc`.
//!
//! Promises: a field is found by its whole name. It must never read a file: the caller does.

/// The bytes that a field of `/proc/meminfo`, or of a process's `status` or `smaps_rollup`, says in kB (proc(5)).
pub fn proc_bytes(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "MemTotalX: 7 kB\nMemTotal:       1000 kB\nMemAvailable:    400 kB\nHugePages_Free:    3\n";
        assert_eq!(proc_bytes(text, "MemTotal"), Some(1000 << 10));
        assert_eq!(proc_bytes(text, "MemAvailable"), Some(400 << 10));
        assert_eq!(proc_bytes(text, "SwapFree"), None);
        assert_eq!(proc_bytes(text, "HugePages_Free"), None, "a number of pages");
        assert_eq!(proc_bytes("MemTotal: 99999999999999999999 kB", "MemTotal"), None);
    }
}
