//! A server that takes no connection, as one that hangs or whose machine is overloaded.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// A listener whose queue is full and stays so while this value lives: the kernel drops further connections without an
/// answer.
pub struct FullListener {
    listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl FullListener {
    /// Listens at a port of the loopback interface that the system chooses.
    ///
    /// # Panics
    ///
    /// If the system refuses that, or takes all connections.
    #[expect(clippy::new_without_default, reason = "it opens sockets")]
    pub fn new() -> FullListener {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        // The smallest queue.
        rustix::net::listen(&listener, 0).expect("it is a listener");
        let address = listener.local_addr().expect("it has one");
        let mut waiting = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(50)) {
            waiting.push(stream);
            assert!(waiting.len() < 100, "the kernel takes all of them");
        }
        FullListener { listener, _waiting: waiting }
    }

    /// Its address.
    ///
    /// # Panics
    ///
    /// Never: the listener is bound.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("it has one")
    }
}
