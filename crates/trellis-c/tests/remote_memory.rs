//! `trellis/remote_memory.hpp`, called by a C++ program whose memory is at a memory server.

mod support;

#[path = "../../trellis-transport/tests/support/network.rs"]
mod network;

use std::process::Command;

use network::{ALONE, in_own_network};
use support::{CPP, Node};
use trellis::remote::{Server, ServerOptions, Stop};
use trellis_testing::{Need, skip};

#[test]
fn containers_have_more_elements_than_fit_here() {
    let test = "cpp-remote-memory";
    let Some(program) = support::compile(test, &CPP, &support::program("remote_memory.cpp"), &[]) else { return };
    let missing = trellis::memory::choose(Some(trellis::memory::Catcher::Handler), &trellis::memory::probe()).err();
    if let Some(why) = &missing {
        return skip(test, Need::Kernel, why);
    }
    let folder = support::fresh_folder("cpp-remote-memory-run");
    in_own_network(test, &ALONE, || {
        let prefix = |host: u16| format!("fd01:203:{host:x}::/48").parse().expect("it is a prefix");
        let mut server =
            Server::open(ServerOptions::new(prefix(7), 64 << 20)).unwrap_or_else(|error| panic!("{error}"));
        let stop = Stop::default();
        let stops = stop.clone();
        let serving = std::thread::spawn(move || {
            server.serve(&stops).unwrap_or_else(|error| panic!("{error}"));
            server.statistics().objects
        });
        let store = "memory-server:fd01:203:7::/48?object=4MiB";
        let mut node = Node::start(
            &folder,
            "program",
            Command::new(&program).arg(store),
            &[("TRELLIS_PREFIX", "fd01:203:9::/48")],
        );
        assert_eq!(node.succeed(), "done\n");
        stop.stop();
        assert_eq!(serving.join().expect("it ended well"), 0, "nothing is left at the server");
    });
}
