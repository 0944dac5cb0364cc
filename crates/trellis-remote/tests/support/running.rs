//! A memory server of its own, in a thread.

use std::thread::JoinHandle;

use trellis_remote::{Host, HostPrefix, RemoteError, Server, ServerOptions, Stop};

pub(super) struct Running {
    stop: Stop,
    thread: Option<JoinHandle<Server>>,
}

impl Running {
    pub(super) fn start(options: ServerOptions) -> Running {
        let mut server = good(Server::open(options));
        let stop = Stop::default();
        let stops = stop.clone();
        let thread = std::thread::spawn(move || {
            good(server.serve(&stops));
            server
        });
        Running { stop, thread: Some(thread) }
    }

    pub(super) fn stop(mut self) -> Server {
        self.stop.stop();
        self.thread.take().expect("it runs").join().expect("it ended well")
    }
}

pub(super) fn prefix(host: Host) -> HostPrefix {
    format!("fd01:203:{:x}::/48", host.0).parse().expect("it is a prefix")
}

pub(super) fn good<T>(result: Result<T, RemoteError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
