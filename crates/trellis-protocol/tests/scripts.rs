//! Text scripts: `tests/scripts/<base or layer>/*.txt`, each a story that a reader can follow.
//!
//! A script is blocks of commands, `----`, and everything that happened. The blocks of a coherence
//! protocol know
//!
//! * `cluster nodes=3 pages=4 [home=manager|interleaved] [manager=0] [protocol=lock(ivy, spin 100us)]`: a new cluster;
//!   the protocol, which comes last, is that of the folder (of `dynamic(forward)` in the folders of layers) unless told;
//! * `read n1 p0 [wish=0-3]`, `write n1 p0 [wish=0-3]`: a thread of node 1 touches page 0, and
//!   looks again by itself once it is woken;
//! * `prefetch n1 0-3 [write] [guess]`: the program announces an access (or the node guesses it);
//! * `deliver`: every message that is under way, the oldest first, until none is left;
//!   `deliver n0->n1 [kind]`: the oldest one of that link (and kind) alone;
//! * `resume n1 p0`: the thread for which page 0 was held has run on;
//! * `lock n1 p0-3 [stay=500us]`, `unlock n1 p0-3 [call=1]`: the program locks pages, and lets them go;
//! * `wait 500us`: time passes, and alarms go off when they are due; `alarm n1 p0 retry|expiry|threshold`: that one goes
//!   off at once;
//! * `gone n2 n0`: node 2 left, and node 0 took over what it had;
//! * `state`: what every node's view allows, with the value, and what is under way.
//!
//! The blocks of `hlrc`, where a page has four words, know
//!
//! * `cluster nodes=3 pages=1 [home=manager|interleaved|first-touch|migrating] [manager=0] [marks]
//!   [protocol=hlrc(update)]`: a new cluster, of `hlrc(invalidate)` unless told; `marks`: the kernel marks stores;
//! * `read n1 p0.2 [wish=0-3]`, `write n1 p0.2=7 [wish=0-3]`: a thread of node 1 touches word 2 of page 0; `prefetch`,
//!   `deliver` and `state` as above; `place n1 0-3 n2`: the program wants pages 0 to 3 to be at home at node 2;
//! * `publish n1`: what node 1 stored goes to the homes; over when it says `published`;
//! * `release n1->n2`: node 2 acquires what node 1 releases, as with a lock that is handed over; `carry n1->n2` before it:
//!   the pages that go with the lock; `barrier`: all release to all.
//!
//! The blocks of `sync` know `cluster nodes=3`, `acquire n1 lock=0`, `release n1 lock=0`, `abandon
//! n1 lock=0`, `arrive n1 barrier=0`, `add n1 word=0 by=5`, `exchange n1 word=0 to=5`, `compare n1
//! word=0 from=5 to=6`, `load n1 word=0`, and the same `deliver`.
//!
//! The blocks of `lease` know `cluster servers=2 clients=2 [backups=1] [readers=1]` (server 0 is home, a lease lasts 9, a
//! tenure 12); `read c0 p0`, `update c0 p0`, `change c0 p0`, `commit c0 p0 [release]`, `release c0 p0`, `follow r0 p0`;
//! `deliver`, `deliver c0->s0 [at=c1]` (where a switch delivers it), `repeat c0->s0` (it arrives, and stays under way),
//! `lose c0->s0`; `wait 5`; `stop s0`, `restart s0 [blank]`, `restart controller`; `move s1`.
//!
//! `TRELLIS_REWRITE_SCRIPTS=1 cargo test -p trellis-protocol --test scripts` writes down what
//! happens now; review the difference as you would review code. A script must end with nothing
//! under way and nobody waiting.

#[allow(dead_code, reason = "every test program uses a part of it")]
mod cluster;
mod stories;

use std::path::{Path, PathBuf};
use stories::{Story, coherence, lease, release, synchronisation};
use trellis_protocol::coherence::Protocol;
use trellis_protocol::coherence::choices::Base;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(name)
}

/// Whether to write down what happens now instead of comparing.
#[allow(clippy::disallowed_methods, reason = "whoever runs the tests decides; the protocol itself never asks")]
fn rewrites() -> bool {
    std::env::var_os("TRELLIS_REWRITE_SCRIPTS").is_some()
}

fn run_all(name: &str, start: impl Fn() -> Box<dyn Story>) {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory(name))
        .unwrap_or_else(|error| panic!("{}: {error}", directory(name).display()))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no scripts", directory(name).display());
    let mut different = Vec::new();
    for file in files {
        let expected = std::fs::read_to_string(&file).expect("a readable script");
        let actual = replay(&file, &expected, start());
        if rewrites() {
            std::fs::write(&file, &actual).expect("a writable script");
        } else if actual != expected {
            eprintln!("{}", first_difference(&file, &expected, &actual));
            different.push(file);
        }
    }
    assert!(
        different.is_empty(),
        "{different:?} tell another story now; if it is right: \
         TRELLIS_REWRITE_SCRIPTS=1 cargo test -p trellis-protocol --test scripts"
    );
}

/// The script with the output that its commands have now.
fn replay(file: &Path, script: &str, mut story: Box<dyn Story>) -> String {
    assert!(script.starts_with("# "), "{} does not begin with a title", file.display());
    let mut text = String::new();
    for block in script.trim_end().split("\n\n") {
        let input = block.split("\n----").next().expect("a block has lines");
        text += input;
        let commands: Vec<&str> = input.lines().filter(|line| !line.starts_with('#')).collect();
        if !commands.is_empty() {
            text += "\n----";
            for command in commands {
                let lines = story.command(command).unwrap_or_else(|error| {
                    panic!("{}: `{command}`: {error}", file.display());
                });
                lines.iter().for_each(|line| text += &format!("\n{line}"));
            }
        }
        text += "\n\n";
    }
    let left = story.left_over();
    if !left.is_empty() {
        eprintln!("{text}");
        panic!("{} ends while {}", file.display(), left.join(", "));
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn first_difference(file: &Path, expected: &str, actual: &str) -> String {
    let lines = expected.lines().zip(actual.lines()).enumerate();
    match lines.into_iter().find(|(_, (before, now))| before != now) {
        Some((index, (before, now))) => {
            format!("{}:{}\n  written: {before}\n  now:     {now}", file.display(), index + 1)
        }
        None => format!("{}: one is longer than the other", file.display()),
    }
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
fn leases() {
    run_all("lease", || Box::new(lease::Script::new()));
}

#[test]
fn every_base_has_scripts() {
    for base in Base::ALL {
        let folder = base.name().split('(').next().expect("a word");
        let known = FOLDERS.iter().map(|(known, _)| *known).chain(["hlrc"]);
        assert!(known.into_iter().any(|known| known == folder), "{} has no scripts", base.name());
    }
}
