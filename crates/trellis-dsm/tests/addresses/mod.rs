//! Addresses on loopback for nodes that listen by themselves.
//!
//! Promises: nobody listens there, and no other test is given one of them while this process lives. Their ports are below those
//! that the kernel gives to whoever asks for any port (`ip_local_port_range` in ip(7)), so no connection takes one meanwhile.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Mutex;

/// The ports; the kernel gives ports from 32,768 on, unless it was told otherwise.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Who has a port here has it on loopback, too, by agreement of the tests.
const RESERVED_AT: Ipv4Addr = Ipv4Addr::new(127, 0, 99, 1);

/// The sockets that keep others away; they are closed when the process ends.
static RESERVED: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());

pub(crate) fn addresses(count: usize) -> Vec<String> {
    let mut reserved = RESERVED.lock().expect("nobody panics with it");
    // Processes begin at places of their own, so that they seldom meet.
    let begin = std::process::id() as usize * 37 % PORTS.len();
    let mut found = Vec::new();
    for port in PORTS.skip(begin).chain(PORTS.take(begin)) {
        if found.len() == count {
            break;
        }
        let Ok(reservation) = TcpListener::bind((RESERVED_AT, port)) else { continue };
        let at = (Ipv4Addr::LOCALHOST, port);
        if TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok() {
            reserved.push(reservation);
            found.push(format!("127.0.0.1:{port}"));
        }
    }
    assert_eq!(found.len(), count, "there are no more free ports in {PORTS:?}");
    found
}
