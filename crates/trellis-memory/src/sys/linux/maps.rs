//! Reads `/proc/self/maps` to name the mapping that occupies a region's addresses. It must never be used on the path of
//! a fault.

/// The first mapping of this process that overlaps `[start, end)`, as a phrase for an error.
pub(crate) fn overlapping(start: usize, end: usize) -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/maps").ok()?;
    first_overlap(&text, start, end)
}

fn first_overlap(maps: &str, start: usize, end: usize) -> Option<String> {
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (low, high) = fields.next()?.split_once('-')?;
        let low = usize::from_str_radix(low, 16).ok()?;
        let high = usize::from_str_radix(high, 16).ok()?;
        if low >= end || start >= high {
            return None;
        }
        let permissions = fields.next()?;
        // Offset, device and inode are between the permissions and the name, which may contain spaces.
        let name = fields.skip(3).collect::<Vec<_>>().join(" ");
        let name = if name.is_empty() { "anonymous memory".to_owned() } else { name };
        Some(format!("{name} ({low:#x}-{high:#x}, {permissions})"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/a program
00e03000-00e24000 rw-p 00000000 00:00 0
7fff0000-7fff1000 rw-p 00000000 00:00 0           [stack]
";

    #[test]
    fn the_mapping_in_the_way_is_named() {
        assert_eq!(
            first_overlap(MAPS, 0x451000, 0x500000).as_deref(),
            Some("/usr/bin/a program (0x400000-0x452000, r-xp)")
        );
        assert_eq!(
            first_overlap(MAPS, 0x1000, 0xe03001).as_deref(),
            Some("/usr/bin/a program (0x400000-0x452000, r-xp)")
        );
        assert_eq!(
            first_overlap(MAPS, 0xe04000, 0xe05000).as_deref(),
            Some("anonymous memory (0xe03000-0xe24000, rw-p)")
        );
    }

    #[test]
    fn neighbours_are_not_in_the_way() {
        assert_eq!(first_overlap(MAPS, 0x452000, 0xe03000), None);
    }
}
