//! A proxy between a client and a server that speak HTTP/2, which loses a request or its answer on demand.
//!
//! A connection on which something was lost is closed, as after a network failure.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The length of every client's preface.
const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
/// The type of the frame with which a request or an answer begins.
const HEADERS: u8 = 1;

const NOTHING: u8 = 0;
const REQUEST: u8 = 1;
const ANSWER: u8 = 2;

/// Accepts connections as long as the test runs.
pub(crate) struct Proxy {
    address: SocketAddr,
    lose: Arc<AtomicU8>,
}

impl Proxy {
    /// A proxy in front of a server.
    pub(crate) fn before(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        let lose = Arc::new(AtomicU8::new(NOTHING));
        let loses = Arc::clone(&lose);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                for stream in [&client, &server] {
                    stream.set_nodelay(true).expect("a connection of ours");
                }
                let (client_again, server_again) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (requests, answers) = (Arc::clone(&loses), Arc::clone(&loses));
                std::thread::spawn(move || carry(client, server, PREFACE_BYTES, &requests, REQUEST));
                std::thread::spawn(move || carry(server_again, client_again, 0, &answers, ANSWER));
            }
        });
        Proxy { address, lose }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loses the next request before the server receives it.
    pub(crate) fn lose_request(&self) {
        self.lose.store(REQUEST, Ordering::SeqCst);
    }

    /// Loses the next answer after the server has carried out the request.
    pub(crate) fn lose_answer(&self) {
        self.lose.store(ANSWER, Ordering::SeqCst);
    }

    /// Whether the loss has happened.
    pub(crate) fn is_done(&self) -> bool {
        self.lose.load(Ordering::SeqCst) == NOTHING
    }
}

/// Forwards frames in one direction, until one begins that is to be lost.
fn carry(mut from: TcpStream, mut to: TcpStream, preface_bytes: usize, lose: &AtomicU8, what: u8) {
    let mut preface = vec![0; preface_bytes];
    let carried = from.read_exact(&mut preface).and_then(|()| to.write_all(&preface));
    if carried.is_ok() {
        while let Ok(frame) = frame(&mut from) {
            let lost =
                frame[3] == HEADERS && lose.compare_exchange(what, NOTHING, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            if lost || to.write_all(&frame).is_err() {
                break;
            }
        }
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

fn frame(from: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut frame = vec![0; FRAME_HEADER_BYTES];
    from.read_exact(&mut frame)?;
    let bytes = usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2]);
    frame.resize(FRAME_HEADER_BYTES + bytes, 0);
    from.read_exact(&mut frame[FRAME_HEADER_BYTES..])?;
    Ok(frame)
}
