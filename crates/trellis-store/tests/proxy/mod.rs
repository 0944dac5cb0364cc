//! A stretch of wire that can be cut at any byte.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToServer,
    ToClient,
}

/// What passes, and when it ends.
#[derive(Default)]
struct Plan {
    /// How many bytes have passed each way since the last look.
    passed: [usize; 2],
    /// After how many more bytes of which way every connection is cut.
    cut: Option<(Way, usize)>,
    wires: Vec<TcpStream>,
}

/// A stretch of wire in front of a server.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    plan: Arc<Mutex<Plan>>,
}

impl Proxy {
    /// In front of a server of this machine. It goes with the process.
    pub(crate) fn start(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let plan: Arc<Mutex<Plan>> = Arc::default();
        let of_listener = Arc::clone(&plan);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                of_listener.lock().unwrap().wires.extend([copy(&client), copy(&server)]);
                for (way, from, to) in [(Way::ToServer, copy(&client), copy(&server)), (Way::ToClient, server, client)]
                {
                    let plan = Arc::clone(&of_listener);
                    std::thread::spawn(move || carry(way, from, to, &plan));
                }
            }
        });
        Proxy { port, plan }
    }

    /// Cuts everything after so many more bytes of one way.
    pub(crate) fn cut_after(&self, way: Way, bytes: usize) {
        self.plan.lock().unwrap().cut = Some((way, bytes));
    }

    /// Whether a cut still waits for its byte; it is taken back.
    pub(crate) fn mend(&self) -> bool {
        self.plan.lock().unwrap().cut.take().is_some()
    }

    /// How many bytes passed since the last look: to the server, to the client.
    pub(crate) fn passed(&self) -> [usize; 2] {
        std::mem::take(&mut self.plan.lock().unwrap().passed)
    }
}

fn carry(way: Way, mut from: TcpStream, mut to: TcpStream, plan: &Mutex<Plan>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        // Held while the bytes go on, so that a cut is between two bytes and not beside them.
        let mut plan = plan.lock().unwrap();
        plan.passed[way as usize] += count;
        let mut passes = count;
        if let Some((cut, left)) = &mut plan.cut
            && *cut == way
        {
            passes = count.min(*left);
            *left -= passes;
        }
        let sent = to.write_all(&buffer[..passes]);
        if passes < count || matches!(plan.cut, Some((cut, 0)) if cut == way) {
            plan.cut = None;
            plan.wires.drain(..).for_each(|wire| drop(wire.shutdown(Shutdown::Both)));
            return;
        }
        if sent.is_err() {
            break;
        }
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}
