//! The command `turns`: passes a page between two nodes, for tools that count instructions.

use super::explore::protocols;
use super::json_text;
use crate::turns::{self, Turn};
use clap::{Args, value_parser};
use trellis_output::lines::say;

#[derive(Args, Debug)]
pub(super) struct Turns {
    /// The protocol; `all` for each that the tests cover.
    #[arg(long, default_value = "all")]
    protocol: String,
    /// The accesses of a node in its turn.
    #[arg(long, value_enum, default_value = "stores")]
    access: Turn,
    /// How many turns the two nodes take together.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..))]
    turns: u32,
}

/// Takes the turns, and prints the number of faults.
pub(super) fn run(chosen: &Turns, json: bool) -> Result<bool, String> {
    for protocol in protocols(&chosen.protocol)? {
        if protocol.is_release_consistent() {
            return Err(format!("--protocol {protocol}: it moves pages at releases, and there are none here"));
        }
        let faults = turns::take(protocol, chosen.turns, chosen.access);
        if json {
            let name = json_text(&protocol.to_string());
            say!("{{\"protocol\": {name}, \"turns\": {}, \"faults\": {faults}}}", chosen.turns);
        } else {
            say!("{protocol}: {faults} faults in {} turns", chosen.turns);
        }
    }
    Ok(true)
}
