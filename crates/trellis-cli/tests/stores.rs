//! The stores that are not in the default build, through the command and the library: ordinary programs in page mode,
//! two processes of one region, inspection and clean-up, the front end. Each test starts its own server: etcd itself,
//! Google's emulator of Bigtable, our servers of Spanner and Datastore.
//!
//! It needs the library of the same build beside the command, and the compiler's parts for page mode.

#[path = "support/library.rs"]
mod library;
#[path = "../../trellis-store/tests/servers/mod.rs"]
mod servers;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use servers::kinds::Kind;
use support::{Ended, start_command};
use trellis_testing::compiled;

/// Several times the size of the cache.
const BYTES: &str = "4194304";
const PAGES: u64 = 4_194_304 / 4096;
const ITEMS: &str = "50";

/// The tests of a store.
macro_rules! tests_of {
    ($($store:ident: $kind:expr;)*) => {$(
        mod $store {
            use super::*;

            #[test]
            fn a_heap_larger_than_the_cache_is_found_by_the_next_run() {
                with_server($kind, "a_heap_larger_than_the_cache_is_found_by_the_next_run", heap_is_found);
            }

            #[test]
            fn two_processes_of_the_library_pass_items() {
                with_server($kind, "two_processes_of_the_library_pass_items", items_pass);
            }

            #[test]
            fn the_front_end_offers_it() {
                with_server($kind, "the_front_end_offers_it", front_end_offers);
            }
        }
    )*};
}

tests_of! {
    etcd: Kind::Etcd;
    bigtable: Kind::Bigtable;
    spanner: Kind::Spanner;
    datastore: Kind::Datastore;
}

#[test]
fn the_command_says_that_it_has_them() {
    for arguments in [&["store", "--help"][..], &["doctor"]] {
        let printed = start_command(arguments).finish().stdout;
        let all = "embedded, embedded-durable, redis, etcd, bigtable, spanner, datastore";
        assert!(printed.contains(all) && !printed.contains("--features etcd"), "{printed}");
    }
}

fn with_server(kind: Kind, test: &str, run: fn(&str)) {
    let Some(server) = kind.start(test, &[]) else { return };
    run(&kind.url(&server, "memory"));
}

fn heap_is_found(url: &str) {
    let program = linked("tests/programs/left_behind.c");
    for run in 1..=2 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(["store", "run", "--store", url, "--region", "left", "--cache", "1MiB", "--"]);
        let ended = command.arg(&program).arg(BYTES).output().expect("it can be started");
        assert_eq!(said(&ended), format!("run {run}\n"));
    }
    let stat = store(url, &["stat", "left", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&stat.stdout).expect("one JSON object");
    assert!(found["pages"].as_u64().is_some_and(|pages| pages >= PAGES), "{found}");
    assert_eq!((found["members"].as_array().map(Vec::len), &found["pending"]), (Some(0), &false.into()), "{found}");
    assert!(store(url, &["ls"]).stdout.contains("\nleft "));
    store(url, &["rm", "left"]);
    assert!(store(url, &["ls"]).stdout.starts_with("no regions in store"));
}

fn items_pass(url: &str) {
    let program = linked("../../examples/stored/producer_consumer.c");
    let started = ["produce", "consume"].map(|role| {
        let mut command = Command::new(&program);
        command.args([role, ITEMS]).env("TRELLIS_STORE", url).env("TRELLIS_STORE_REGION", "queue");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started")
    });
    for process in started {
        let ended = process.wait_with_output().expect("it ends");
        let found: serde_json::Value = serde_json::from_str(&said(&ended)).expect("one JSON object");
        assert_eq!((&found["items"], &found["sum"]), (&50.into(), &(50 * 51 / 2).into()), "{found}");
    }
    assert!(store(url, &["stat", "queue"]).stdout.contains("used by       nobody"));
}

fn front_end_offers(url: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.args(["store", "serve", "--resp", "127.0.0.1:0", "--store", url]).stdout(Stdio::piped());
    let mut front = command.spawn().expect("the command can be started");
    let mut line = String::new();
    BufReader::new(front.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let answer = line.trim().strip_prefix("listening on ").map(|address| {
        let mut stream = TcpStream::connect(address).expect("somebody listens");
        stream.write_all(b"SET message hello\r\nGET message\r\nINCRBY count 41\r\nINCR count\r\n").expect("sent");
        let mut answer = vec![0; 26];
        stream.read_exact(&mut answer).expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    });
    front.kill().expect("it is ours");
    front.wait().expect("it ends");
    assert_eq!(answer.as_deref(), Some("+OK\r\n$5\r\nhello\r\n:41\r\n:42\r\n"), "{line}");
}

/// A program that is linked with the library of this build.
fn linked(source: &str) -> PathBuf {
    let library = library::of_this_build("stores").expect("the feature's tests build it");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let flags = ["-O1", "-Wall", "-Wextra"].map(str::to_owned);
    compiled("cc", &source, &[&flags, &library[..]].concat())
}

/// The output of a program that ended well.
fn said(ended: &Output) -> String {
    assert!(ended.status.success(), "{}: {}", ended.status, String::from_utf8_lossy(&ended.stderr));
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

/// Runs `trellis store`, which must end well.
fn store(url: &str, task: &[&str]) -> Ended {
    let ended = start_command(&[&["store"], task, &["--store", url]].concat()).finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended
}
