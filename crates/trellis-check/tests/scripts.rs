//! Text scripts: `tests/scripts/<base or layer>/*.txt` of the crate `trellis-cluster-protocol`, each of which tells one
//! story.
//!
//! `trellis_testing::scripts` defines what a script is. The blocks of a coherence protocol have these commands:
//!
//! * `cluster nodes=3 pages=4 [home=manager|interleaved] [manager=0] [protocol=lock(ivy, spin 100us)]`: a new
//!   cluster. The protocol, which comes last, defaults to that of the folder (`dynamic(forward)` in the folders of
//!   layers);
//! * `read n1 p0 [wanted=0-3]`, `write n1 p0 [wanted=0-3]`: a thread of node 1 touches page 0, and retries by itself when
//!   it is woken;
//! * `prefetch n1 0-3 [write] [guess]`: the program announces an access (or the node guesses it);
//! * `deliver`: every message that is under way, the oldest first, until none is left; `deliver n0->n1 [kind]`: only
//!   the oldest one of that link (and kind);
//! * `resume n1 p0`: the thread for which page 0 was held has run on;
//! * `lock n1 p0-3 [stay=500us]`, `unlock n1 p0-3 [call=1]`: the program locks pages, and unlocks them;
//! * `wait 500us`: time passes, and alarms expire when they are due; `alarm n1 p0 retry|expiry|threshold`: that alarm
//!   expires at once;
//! * `gone n2 n0`: node 2 left, and node 0 took over what it had;
//! * `state`: what every node's view allows, with the value, and what is under way.
//!
//! The blocks of `hlrc`, in which a page has four words, have these commands:
//!
//! * `cluster nodes=3 pages=1 [home=manager|interleaved|first-touch|migrating] [manager=0] [marks]
//!   [protocol=hlrc(update)]`: a new cluster, by default of `hlrc(invalidate)`; `marks`: the kernel marks stores;
//! * `read n1 p0.2 [wanted=0-3]`, `write n1 p0.2=7 [wanted=0-3]`: a thread of node 1 touches word 2 of page 0;
//!   `prefetch`, `deliver` and `state` as above; `place n1 0-3 n2`: the program requests node 2 as the home of pages
//!   0 to 3;
//! * `publish n1`: node 1's stores go to the homes; the publication ends with `published`;
//! * `release n1->n2`: node 2 acquires what node 1 releases, as with a lock that is handed over; before it,
//!   `carry n1->n2`: the pages that go with the lock; `barrier`: all release to all.
//!
//! The blocks of `sync` have `cluster nodes=3`, `acquire n1 lock=0`, `release n1 lock=0`, `abandon n1 lock=0`,
//! `arrive n1 barrier=0`, `add n1 word=0 by=5`, `exchange n1 word=0 to=5`, `compare n1 word=0 from=5 to=6`,
//! `load n1 word=0`, and the same `deliver`.
//!
//! `TRELLIS_REWRITE_SCRIPTS=1 cargo test -p trellis-check --test scripts` records the present behaviour.

mod stories;

use std::path::Path;
use stories::{Story, coherence, release, synchronisation};
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::coherence::choices::Base;

fn run_all(name: &str, start: impl Fn() -> Box<dyn Story>) {
    trellis_testing::scripts::run_all(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../trellis-cluster-protocol/tests/scripts").join(name),
        start,
    );
}

/// The folders about pages, and the protocol of their scripts.
const FOLDERS: [(&str, &str); 5] = [
    ("ivy", "ivy"),
    ("dynamic", "dynamic(forward)"),
    ("migrate", "migrate"),
    ("lock", "lock(dynamic(forward))"),
    ("delay", "delay(dynamic(forward))"),
];

fn run_folder(name: &str) {
    let (_, protocol) = FOLDERS.iter().find(|(folder, _)| *folder == name).expect("a known folder");
    let protocol: Protocol = protocol.parse().expect("a protocol");
    run_all(name, || Box::new(coherence::Script::new(protocol)));
}

#[test]
fn ivy() {
    run_folder("ivy");
}

#[test]
fn dynamic() {
    run_folder("dynamic");
}

#[test]
fn migrate() {
    run_folder("migrate");
}

#[test]
fn lock() {
    run_folder("lock");
}

#[test]
fn delay() {
    run_folder("delay");
}

#[test]
fn hlrc() {
    run_all("hlrc", || Box::new(release::Script::new()));
}

#[test]
fn sync() {
    run_all("sync", || Box::new(synchronisation::Script::new()));
}

#[test]
fn every_base_has_scripts() {
    for base in Base::ALL {
        let folder = base.name().split('(').next().expect("a word");
        let known = FOLDERS.iter().map(|(known, _)| *known).chain(["hlrc"]);
        assert!(known.into_iter().any(|known| known == folder), "{} has no scripts", base.name());
    }
}
