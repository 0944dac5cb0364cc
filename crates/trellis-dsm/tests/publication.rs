//! A release whose publication does not end in time: nothing is released, nothing that was stored is lost, and the release
//! can be tried again.

mod support;

use std::os::fd::RawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use support::{run_over, word};
use trellis::transport::links::{Choice, LinkStatistics};
use trellis::transport::{HEADER_BYTES, InProcess, Link, Payload, SendError, Sink, mesh};
use trellis::{Protocol, WaitError};

const PAGE_WORDS: usize = 4096 / 8;
/// More than are sent before the first of them is acknowledged, all of one shard.
const PAGES: usize = 400;
/// The byte of a header that says which message it is, and a diff there (docs/reference/wire-format.md).
const KIND: usize = 3;
const DIFF: u8 = 11;

/// Receiver, header and body.
type Frame = (usize, [u8; HEADER_BYTES], Vec<u8>);

/// A link that keeps diffs back while it is told to.
struct Holding {
    link: InProcess,
    holds: AtomicBool,
    held: Mutex<Vec<Frame>>,
}

impl Holding {
    fn new(link: InProcess) -> Holding {
        Holding { link, holds: AtomicBool::new(false), held: Mutex::default() }
    }

    fn hold(&self) {
        self.holds.store(true, Ordering::SeqCst);
    }

    fn let_go(&self) {
        self.holds.store(false, Ordering::SeqCst);
        for (peer, header, body) in self.held.lock().unwrap().drain(..) {
            self.link.send(peer, &header, Payload::Copy(&body)).unwrap();
        }
    }
}

impl Link for &'static Holding {
    fn node(&self) -> usize {
        self.link.node()
    }
    fn nodes(&self) -> usize {
        self.link.nodes()
    }
    fn send(&self, peer: usize, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<(), SendError> {
        if let (DIFF, Payload::Copy(body), true) = (header[KIND], payload, self.holds.load(Ordering::SeqCst)) {
            self.held.lock().unwrap().push((peer, *header, body.to_vec()));
            return Ok(());
        }
        self.link.send(peer, header, payload)
    }
    fn way(&self, peer: usize) -> Choice {
        self.link.way(peer)
    }
    fn poll(&self, sink: &mut dyn Sink) -> bool {
        self.link.poll(sink)
    }
    fn readiness(&self) -> RawFd {
        self.link.readiness()
    }
    fn is_connected(&self, peer: usize) -> bool {
        self.link.is_connected(peer)
    }
    fn is_lost(&self, peer: usize) -> bool {
        self.link.is_lost(peer)
    }
    fn statistics(&self) -> LinkStatistics {
        self.link.statistics()
    }
    fn close(&self) {
        self.link.close();
    }
}

fn links() -> Vec<&'static Holding> {
    mesh(2)
        .expect("descriptors can be made")
        .into_iter()
        .map(|link| &*Box::leak(Box::new(Holding::new(link))))
        .collect()
}

/// Node 1 waits a second at most; node 0 has all the time that the test needs.
fn with_short_waits(config: &mut trellis::Config) {
    config.coherence = Protocol::all_release_consistent()[0];
    if config.node == 1 {
        config.wait_seconds_max = 1;
    }
}

#[test]
fn a_lock_whose_stores_did_not_reach_their_homes_stays_held_and_loses_nothing() {
    let links = links();
    let gate = links[1];
    let (tell, heard) = mpsc::channel();
    let heard = Mutex::new(heard);
    run_over(links, with_short_waits, |cluster| {
        if cluster.node() == 0 {
            heard.lock().unwrap().recv().unwrap();
            assert!(
                cluster.mutex(5).try_lock().unwrap().is_none(),
                "the lock went although the stores were not at home"
            );
            gate.let_go();
            let _guard = cluster.mutex(5).lock().unwrap();
            for page in 0..PAGES {
                assert_eq!(word(cluster, page * PAGE_WORDS).load(Ordering::Relaxed), page as u64 + 1, "page {page}");
                assert_eq!(word(cluster, page * PAGE_WORDS + 1).load(Ordering::Relaxed), 7, "page {page}, later");
            }
        } else {
            cluster.mutex(5).acquire().unwrap();
            for page in 0..PAGES {
                word(cluster, page * PAGE_WORDS).store(page as u64 + 1, Ordering::Relaxed);
            }
            gate.hold();
            let late = cluster.mutex(5).release().unwrap_err();
            assert!(matches!(late, WaitError::TooLong { .. }), "{late}");
            assert!(late.to_string().contains("node 0"), "it names who did not answer: {late}");
            // More is stored after it was given up, to pages that went and to pages that did not.
            for page in 0..PAGES {
                word(cluster, page * PAGE_WORDS + 1).store(7, Ordering::Relaxed);
            }
            let again = cluster.mutex(5).release().unwrap_err();
            assert!(matches!(again, WaitError::TooLong { .. }), "the lock is still held: {again}");
            tell.send(()).unwrap();
            while let Err(error) = cluster.mutex(5).release() {
                assert!(matches!(error, WaitError::TooLong { .. }), "{error}");
            }
        }
        // Only node 0 may be late here.
        while cluster.barrier(1).is_err() {}
    });
}

/// A guard cannot be asked again when it is gone, so the cluster ends instead of waiting for what it held.
#[test]
fn a_guard_that_cannot_give_back_its_lock_ends_the_cluster() {
    let links = links();
    let gate = links[1];
    std::thread::scope(|scope| {
        for link in links {
            scope.spawn(move || {
                let mut config = support::config(link.node(), 2);
                with_short_waits(&mut config);
                let cluster = trellis::Cluster::join_over(config, Box::new(link)).expect("the node joins");
                if cluster.node() == 1 {
                    let guard = cluster.mutex(5).lock().unwrap();
                    word(&cluster, 0).store(1, Ordering::Relaxed);
                    gate.hold();
                    drop(guard);
                }
                let failed = cluster.barrier(1).unwrap_err().to_string();
                let expected = ["node 1", "what a guard held cannot be given back"][cluster.node()];
                assert!(failed.contains(expected), "node {}: {failed}", cluster.node());
                assert!(cluster.leave().is_err());
            });
        }
    });
}
