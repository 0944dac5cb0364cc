//! The table of all waits that are not a node's, as the documentation has it.

use trellis_base::{Deadline, Limit};

use crate::controller::change;
use crate::lab::{hosts, messages, slurm, ssh, up};

/// Commands run other programs.
const PROGRAM: Deadline = Deadline {
    who: "a command",
    waits_for: "a program that it runs: the user's, a compiler, `ip`",
    limit: Limit::Other("as long as that runs"),
    then: "its exit status counts",
    tested: "nothing but the end of the program ends it",
};

/// The waits of this crate.
const WAITS: &[Deadline] = &[
    change::DONE,
    change::LEADER,
    change::STUCK,
    up::READY,
    ssh::SERVERS,
    slurm::HOSTS,
    messages::TIMEOUT,
    hosts::END,
    PROGRAM,
];

#[test]
fn the_reference_page_has_the_table() {
    let all = [
        trellis::waits::WAITS,
        trellis::transport::WAITS,
        trellis::remote::WAITS,
        trellis_store::WAITS,
        trellis::stored::WAITS,
        trellis_controller::WAITS,
        trellis_switch::WAITS,
        trellis_command::WAITS,
        trellis_output::WAITS,
        WAITS,
    ];
    let rows: String = all.concat().iter().map(|wait| format!("{wait}\n")).collect();
    let table = format!("\n\n| who | waits for | at most | then |\n|---|---|---|---|\n{rows}");
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/waits.md");
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page.ends_with(&table), "{} does not end with the table{table}", path.display());
}
