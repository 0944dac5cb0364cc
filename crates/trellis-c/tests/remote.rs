//! `trellis/remote.h` and `trellis/remote.hpp`, called by C and C++ programs that are hosts of a separate network.

#[path = "../../trellis-transport/tests/support/network.rs"]
mod network;
mod support;

use std::path::Path;
use std::process::Command;

use network::{ALONE, in_own_network};
use support::{C, CPP, Language, Node};
use trellis::remote::{Server, ServerOptions, Stop};

/// Runs a program in a network in which a memory server is host 7, every address of the cluster is this machine's,
/// and packets to host 8 are lost.
fn against_a_server(test: &str, language: &Language, source: &Path) {
    let Some(program) = support::compile(test, language, source, &[]) else { return };
    let setup = [&ALONE[..], &["-6 route add fd01:203:8::/48 dev lo table local"]].concat();
    in_own_network(test, &setup, || {
        let prefix = "fd01:203:7::/48".parse().expect("it is a prefix");
        let mut server = Server::open(ServerOptions::new(prefix, 16 << 20)).unwrap_or_else(|error| panic!("{error}"));
        let stop = Stop::default();
        let stops = stop.clone();
        let thread = std::thread::spawn(move || {
            server.serve(&stops).unwrap_or_else(|error| panic!("{error}"));
            server
        });
        let folder = support::fresh_folder(&format!("{test}-run"));
        let variables = [("TRELLIS_PREFIX", "fd01:203:9::/48")];
        let mut node = Node::start(&folder, "client", &mut Command::new(&program), &variables);
        let printed = node.succeed();
        stop.stop();
        let statistics = thread.join().expect("it ended well").statistics();
        assert_eq!((printed.as_str(), statistics.objects), ("remote complete\n", 0));
    });
}

#[test]
fn remote_memory_from_c() {
    against_a_server("remote_memory_from_c", &C, &support::program("remote.c"));
}

#[test]
fn remote_memory_from_cpp() {
    against_a_server("remote_memory_from_cpp", &CPP, &support::program("remote.cpp"));
}
