//! The table of kinds in `docs/reference/wire-format.md` has every kind that the code has, and no other.

use std::collections::BTreeMap;
use std::path::Path;

/// A file of the repository.
fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_kind_of_message_is_documented_with_its_number() {
    let code = read("crates/trellis-cluster-protocol/src/wire/mod.rs");
    let constants = code.lines().filter_map(|line| {
        let (name, number) = line.trim().strip_prefix("pub const ")?.strip_suffix(';')?.split_once(": u8 = ")?;
        Some((number.parse::<u8>().ok()?, name.to_lowercase()))
    });
    let in_code: BTreeMap<u8, String> = constants.collect();
    assert!(in_code.len() > 40, "{in_code:?}");
    let page = read("docs/reference/wire-format.md");
    let rows = page.split_once("| kinds | about |").expect("the table").1.lines().skip(2);
    let cells = rows.take_while(|line| line.starts_with('|')).filter_map(|line| line.split('|').nth(1));
    let entries = cells.flat_map(|cell| cell.split(',')).filter_map(|entry| entry.trim().split_once(' '));
    let in_page: BTreeMap<u8, String> =
        entries.map(|(number, name)| (number.parse().expect("a number"), name.replace(' ', "_"))).collect();
    assert_eq!(in_code.keys().collect::<Vec<_>>(), in_page.keys().collect::<Vec<_>>());
    for (number, name) in in_page {
        // The code's names also have the object: `lock_request` is a request.
        assert!(in_code[&number].ends_with(&name), "kind {number} is {}, and the page says {name}", in_code[&number]);
    }
}
