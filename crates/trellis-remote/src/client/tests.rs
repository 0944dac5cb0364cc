//! Tests with clients of one host whose random numbers are predictable and collide.

#[path = "../../../trellis-transport/tests/support/network.rs"]
mod network;

use super::super::{Server, ServerOptions, Stop};
use super::*;
use network::{ALONE, in_own_network};

const SERVER: Host = Host(7);

fn prefix(host: Host) -> HostPrefix {
    format!("fd01:203:{:x}::/48", host.0).parse().expect("it is a prefix")
}

fn client(identity: u64, seed: u64) -> Client {
    let options = ClientOptions::new(prefix(Host(9)));
    Client::open_as(options, identity, Random::new(seed)).expect("there is a socket")
}

#[test]
fn three_hundred_clients_of_a_host_that_draw_the_same_numbers_have_sessions() {
    in_own_network("three_hundred_clients_of_a_host_that_draw_the_same_numbers_have_sessions", &ALONE, || {
        let mut server = Server::open(ServerOptions::new(prefix(SERVER), 1 << 20)).expect("it opens");
        let stop = Stop::default();
        let stops = stop.clone();
        let thread = std::thread::spawn(move || server.serve(&stops).expect("it serves"));
        // Twenty sequences of numbers, each used by fifteen processes: the last of them learns fourteen times that its
        // number is in use.
        let mut clients: Vec<Client> = (0..300).map(|identity| client(identity, identity % 20)).collect();
        let word = clients[0].create(SERVER, 8).expect("there is room");
        for (number, client) in clients.iter_mut().enumerate() {
            let before = client.fetch_add(word, 1).unwrap_or_else(|error| panic!("client {number}: {error}"));
            assert_eq!(before, number as u64);
        }
        // They keep their numbers.
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.fetch_add(word, 1).expect("its session is open"), 300 + number as u64);
        }
        let incarnations: std::collections::BTreeSet<_> =
            clients.iter().map(|client| client.sessions.incarnation()).collect();
        assert_eq!(incarnations.len(), 300);
        // The number of attempts is limited: after the next number, sixteen numbers of a sequence are taken, if they were
        // not before.
        let mut more: Vec<Client> = (0..2).map(|more| client(1_000 + more, 3)).collect();
        let _ = more[0].fetch_add(word, 1);
        let error = more[1].fetch_add(word, 1).expect_err("sixteen numbers are taken");
        assert!(matches!(error, RemoteError::Refused { status: Status::Denied, .. }), "{error}");
        stop.stop();
        thread.join().expect("it ended well");
    });
}
