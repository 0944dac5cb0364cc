//! Release consistency: small clusters in every order, and random ones; what is broken on purpose is noticed.
//!
//! Larger: `cargo run -p trellis-check --release -- explore --protocol release`, `… -- swarm --protocol release`.

use trellis_check::explore::{Options, Report, Verdict, explore};
use trellis_check::release::explore::Orders;
use trellis_check::release::{Fault, Setup, scripts, swarm};
use trellis_protocol::coherence::Protocol;

fn passes(setup: Setup, program: &str, options: Options) -> Report {
    let name = format!("{} {program}", setup.describe());
    let report = explore(&mut Orders::new(setup), options, &mut |_| {});
    println!("{name}: {} states, {:.0} states/s", report.states, report.states_per_second());
    match &report.verdict {
        Verdict::Passed => report,
        Verdict::Broken { what, trace } => panic!("{name}: {what}\n{}", trace.join("\n")),
        Verdict::Endless { trace } => panic!("{name}: this goes on for ever\n{}", trace.join("\n")),
        Verdict::TooLarge => panic!("{name}: more states than the bound"),
    }
}

#[test]
fn small_clusters_are_right_in_every_order() {
    for protocol in Protocol::all_release_consistent() {
        for setup in scripts::small(protocol) {
            passes(setup, "", Options { states_max: 30_000_000, must_end: true });
        }
    }
}

#[test]
fn random_clusters_are_right() {
    for protocol in Protocol::all_release_consistent() {
        for seed in 0..2000 {
            let outcome = swarm::run(protocol, seed, Fault::None, false);
            assert_eq!(outcome.complaint(), None);
        }
    }
}
