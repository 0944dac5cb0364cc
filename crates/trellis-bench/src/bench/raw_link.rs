//! The yardstick: a plain TCP connection between the same two processes, without Trellis.
//!
//! The command makes the connection and each of the two nodes inherits its end. Both figures of a ratio therefore
//! come from the same processes and machine, within the same minute.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{FromRawFd, RawFd};
use std::time::Instant;

use trellis_base::statistics::quantile;
use trellis_command::exit::{self, Failure};

/// The bytes of a request for a page: a header.
pub(crate) const REQUEST_BYTES: usize = 32;
/// The bytes of a reply: a page, its header, and the header's share of a frame.
pub(crate) const REPLY_BYTES: usize = 4160;

/// Both ends of a connection on the loopback interface.
pub(crate) struct Connection {
    pub(crate) ends: [TcpStream; 2],
}

impl Connection {
    pub(crate) fn make() -> Result<Connection, Failure> {
        let failed = |error: io::Error| Failure::new(exit::SYSTEM, format!("cannot connect on 127.0.0.1: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let near = TcpStream::connect(address).map_err(failed)?;
        let (far, _) = listener.accept().map_err(failed)?;
        near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).map_err(failed)?;
        Ok(Connection { ends: [near, far] })
    }
}

/// Takes over an inherited end.
///
/// The number comes from the command that started this process, and is used once.
pub(crate) fn inherited(descriptor: RawFd) -> TcpStream {
    // SAFETY: the launcher left this descriptor open for us, and nothing else in this process knows it.
    unsafe { TcpStream::from_raw_fd(descriptor) }
}

/// Sends requests and polls for the answers; returns the round trips in microseconds.
pub(crate) fn ask(stream: &mut TcpStream, rounds: usize) -> io::Result<Vec<f64>> {
    stream.set_nonblocking(true)?;
    let mut reply = [0u8; REPLY_BYTES];
    let mut samples = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        polling_write(stream, &[1; REQUEST_BYTES])?;
        polling_read(stream, &mut reply)?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
    }
    stream.set_nonblocking(false)?;
    Ok(samples)
}

/// Polls for requests and answers them.
pub(crate) fn answer(stream: &mut TcpStream, rounds: usize) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let mut request = [0u8; REQUEST_BYTES];
    for _ in 0..rounds {
        polling_read(stream, &mut request)?;
        polling_write(stream, &[2; REPLY_BYTES])?;
    }
    stream.set_nonblocking(false)
}

/// The median round trip as measured by node 1; node 0 answers and gets `None`.
pub(crate) fn round_trip_us_p50(stream: &mut TcpStream, node: usize, rounds: usize) -> io::Result<Option<f64>> {
    if node == 0 {
        answer(stream, rounds)?;
        return Ok(None);
    }
    let mut samples = ask(stream, rounds)?;
    // The first rounds have cold caches and small windows.
    Ok(Some(quantile(&mut samples[rounds / 10..], 0.5)))
}

/// Sends `bytes` from node 0 to node 1; node 1 gets the rate in GB/s.
pub(crate) fn bulk_gb_per_s(
    stream: &mut TcpStream,
    node: usize,
    bytes: usize,
    memory_bytes: usize,
) -> io::Result<Option<f64>> {
    let memory_bytes = memory_bytes.min(bytes);
    let mut memory = vec![0x5au8; memory_bytes];
    if node == 0 {
        let mut ready = [0u8; 1];
        stream.read_exact(&mut ready)?;
        for start in (0..bytes).step_by(memory_bytes) {
            stream.write_all(&memory[..memory_bytes.min(bytes - start)])?;
        }
        return Ok(None);
    }
    let start = Instant::now();
    stream.write_all(&[1])?;
    for start in (0..bytes).step_by(memory_bytes) {
        stream.read_exact(&mut memory[..memory_bytes.min(bytes - start)])?;
    }
    Ok(Some(bytes as f64 / start.elapsed().as_secs_f64() / 1e9))
}

fn polling_read(stream: &mut TcpStream, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(got) => buffer = &mut buffer[got..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn polling_write(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(put) => bytes = &bytes[put..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_measure_the_same_connection() {
        let Connection { ends: [mut near, mut far] } = Connection::make().expect("connection");
        let peer = std::thread::spawn(move || {
            answer(&mut far, 20)?;
            bulk_gb_per_s(&mut far, 0, 1 << 20, 1 << 16)
        });
        assert_eq!(ask(&mut near, 20).expect("round trips").len(), 20);
        assert!(bulk_gb_per_s(&mut near, 1, 1 << 20, 1 << 16).expect("bulk").is_some_and(|rate| rate > 0.0));
        assert_eq!(peer.join().expect("thread").expect("peer"), None);
    }
}
