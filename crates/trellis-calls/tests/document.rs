//! The reference lists every function that the library has, and no other.

use std::collections::BTreeSet;

#[test]
fn the_reference_lists_every_function() {
    let table = include_str!("../src/table.rs");
    let rows = table.split_once("\ncalls! {\n").expect("the table").1;
    let rows: BTreeSet<&str> =
        rows.lines().filter_map(|line| line.strip_prefix("    fn ")?.split('(').next()).collect();
    let page = include_str!("../../../docs/reference/calls.md");
    let listed = page.split_once("| family | functions |").expect("the list").1.split_once("\n\n").expect("its end").0;
    let listed: BTreeSet<&str> = listed.split('`').skip(1).step_by(2).collect();
    assert!(rows.len() > 100);
    assert_eq!(rows.difference(&listed).collect::<Vec<_>>(), Vec::<&&str>::new(), "not in docs/reference/calls.md");
    assert_eq!(listed.difference(&rows).collect::<Vec<_>>(), Vec::<&&str>::new(), "not in the table");
}
