//! What the link `fabric` promises besides the contract of all links.
//! Bodies are read one-sidedly from memory that was registered once. A node that cannot take part is told why. No read
//! from a killed peer writes anything after that peer was reported lost. (One-sided writes are in `fabric_writes.rs`.)

#![cfg(feature = "fabric")]

mod support;

use std::process::{Child, Command};
use std::sync::Arc;

use support::fabric::{Memory, PAGE_BYTES, PROVIDERS, page_header, poll_both};
use support::{HANG_SECONDS, Recorder, SECRET, build_fabric, options, poll_until, recorders};
use trellis_testing::{Port, listeners};
use trellis_transport::{Fabric, FabricError, FabricOptions, Link, Lost, Payload, Security};

#[test]
fn pages_of_the_shared_memory_are_read_by_their_receiver() {
    for provider in PROVIDERS {
        const PAGES: usize = 64;
        let mut memories = [Memory::new(PAGES * PAGE_BYTES), Memory::new(PAGES * PAGE_BYTES)];
        for (at, byte) in memories[0].bytes.iter_mut().enumerate() {
            *byte = (at / PAGE_BYTES * 3 + at) as u8;
        }
        let links = build_fabric(provider, 2);
        for (link, memory) in links.iter().zip(&mut memories) {
            link.share(memory.shared()).expect("memory of this process");
        }
        let source = memories[0].bytes.as_ptr();
        for page in 0..PAGES {
            let body = Payload::Pinned(source.wrapping_add(page * PAGE_BYTES), PAGE_BYTES);
            links[0].send(1, &page_header(page as u64, PAGE_BYTES), body).expect("room for few frames");
        }
        poll_both(&links, &mut memories, |memories| memories[1].pages.len() == PAGES);
        assert_eq!(memories[1].pages, (0..PAGES as u64).collect::<Vec<_>>(), "in order");
        assert!(memories[0].bytes == memories[1].bytes, "{provider}");
        let reads: Vec<u64> = links.iter().map(|link| link.one_sided_reads()).collect();
        assert_eq!(reads, [0, PAGES as u64], "the receiver reads, each page once");
        links.iter().for_each(|link| link.close());
    }
}

#[test]
fn bodies_outside_of_the_shared_memory_travel_as_well() {
    for provider in PROVIDERS {
        let mut memories = [Memory::new(1 << 20), Memory::new(1 << 20)];
        let links = build_fabric(provider, 2);
        links[1].share(memories[1].shared()).expect("memory of this process");
        let outside: Vec<u8> = (0..1 << 20).map(|at| (at / 7) as u8).collect();
        let body = Payload::Pinned(outside.as_ptr(), outside.len());
        links[0].send(1, &page_header(0, outside.len()), body).expect("room for a frame");
        poll_both(&links, &mut memories, |memories| memories[1].pages.len() == 1);
        assert!(*memories[1].bytes == *outside, "{provider}");
        links.iter().for_each(|link| link.close());
    }
}

fn start(provider: &str, security: Security) -> Result<Fabric, FabricError> {
    let (mut sockets, addresses) = listeners(2);
    let tcp = options(0, &addresses, Some(sockets.swap_remove(0)), security);
    Fabric::start(FabricOptions { tcp, provider: provider.to_owned() })
}

#[test]
fn frames_are_never_plain_where_they_should_be_protected() {
    for security in [Security::Signed, Security::Sealed] {
        let sentence = start("tcp", security).expect_err("it cannot protect them").to_string();
        assert!(sentence.contains("insecure-plain") && sentence.contains("loopback"), "{sentence}");
    }
}

#[test]
fn a_provider_that_is_not_here_is_named() {
    let sentence = start("no-such-provider", Security::Plain).expect_err("there is none").to_string();
    assert!(sentence.contains("`no-such-provider`") && sentence.contains("trellis doctor"), "{sentence}");
}

#[test]
fn this_machine_offers_the_providers_that_need_no_hardware() {
    let found = trellis_transport::links::fabric::providers();
    for provider in PROVIDERS {
        assert!(found.iter().any(|name| name.split(';').next() == Some(provider)), "{provider} in {found:?}");
    }
}

#[test]
fn nodes_with_different_providers_say_so() {
    let (sockets, addresses) = listeners(2);
    let links: Vec<Arc<dyn Link>> = sockets
        .into_iter()
        .zip(PROVIDERS)
        .enumerate()
        .map(|(node, (socket, provider))| {
            let tcp = options(node, &addresses, Some(socket), Security::Plain);
            let link = Fabric::start(FabricOptions { tcp, provider: provider.to_owned() });
            Arc::new(link.expect("a node on loopback")) as Arc<dyn Link>
        })
        .collect();
    let mut sinks = recorders(2);
    poll_until(&links, &mut sinks, |sinks| sinks.iter().any(|sink: &Recorder| !sink.lost.is_empty()));
    let refused = sinks.iter().flat_map(|sink| &sink.lost).find_map(|(_, why)| match why {
        Lost::NodeRefused { why } => Some(why.clone()),
        _ => None,
    });
    let sentence = refused.expect("one of them says why");
    assert!(
        sentence.contains("`shm`") && sentence.contains("`tcp") && sentence.contains("fabric_provider"),
        "{sentence}"
    );
    assert!(sinks.iter().all(|sink| sink.connected.is_empty()));
}

const CHILD_ADDRESSES: &str = "TRELLIS_TEST_FABRIC_ADDRESSES";
const CHILD_PROVIDER: &str = "TRELLIS_TEST_FABRIC_PROVIDER";
const KILLED_BYTES: usize = 48 << 20;
const FRAMES: u64 = 400;

/// Not a test by itself: node 1 of the test below, in its own process. Sends as much as it can until it is killed.
#[test]
#[ignore = "a role that tests start"]
fn node_that_is_killed() {
    let (Ok(addresses), Ok(provider)) = (std::env::var(CHILD_ADDRESSES), std::env::var(CHILD_PROVIDER)) else {
        return;
    };
    let addresses: Vec<String> = addresses.split(',').map(str::to_owned).collect();
    let tcp = options(1, &addresses, None, Security::Plain);
    assert_eq!(tcp.secret, SECRET);
    let link = Fabric::start(FabricOptions { tcp, provider }).expect("a node on loopback");
    let mut memory = Memory::new(KILLED_BYTES);
    memory.bytes.fill(0xA5);
    link.share(memory.shared()).expect("memory of this process");
    let source = memory.bytes.as_ptr();
    for frame in 0..FRAMES {
        let header = page_header(0, if frame % 2 == 0 { KILLED_BYTES } else { 100 });
        let bytes = support::read_header(&header).bytes;
        link.send(0, &header, Payload::Pinned(source, bytes)).expect("room for the frames of this test");
    }
    while memory.lost.is_none() {
        link.poll(&mut memory);
    }
}

/// A process that ends with its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already, which is the wanted result.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_node_is_lost_and_writes_nothing_after_that() {
    for provider in PROVIDERS {
        let (mut sockets, mut addresses) = listeners(1);
        let free = Port::new();
        addresses.push(free.address().to_string());
        let tcp = options(0, &addresses, Some(sockets.swap_remove(0)), Security::Plain);
        let link = Fabric::start(FabricOptions { tcp, provider: provider.to_owned() }).expect("a node on loopback");
        let mut memory = Memory::new(KILLED_BYTES);
        link.share(memory.shared()).expect("memory of this process");
        let mut child = Killed(
            Command::new(std::env::current_exe().expect("this test"))
                .args(["--ignored", "--exact", "node_that_is_killed", "--nocapture"])
                .env(CHILD_ADDRESSES, addresses.join(","))
                .env(CHILD_PROVIDER, provider)
                .spawn()
                .expect("this test can be started"),
        );
        let start = std::time::Instant::now();
        // The first body has arrived and the reads of the next are in flight.
        while memory.pages.len() < 2 || link.one_sided_reads() < 60 {
            link.poll(&mut memory);
            assert!(start.elapsed().as_secs() < HANG_SECONDS, "the test hangs");
            assert!(memory.lost.is_none(), "{:?}", memory.lost);
        }
        child.0.kill().expect("it runs");
        while memory.lost.is_none() {
            link.poll(&mut memory);
            assert!(start.elapsed().as_secs() < HANG_SECONDS, "the test hangs");
        }
        println!("{provider}: {}", memory.lost.as_ref().expect("just now"));
        assert!(memory.connected && link.is_lost(1));
        memory.bytes.fill(0x5A);
        for _ in 0..1000 {
            link.poll(&mut memory);
        }
        link.close();
        assert!(memory.bytes.iter().all(|&byte| byte == 0x5A), "{provider}: a body of a lost node came late");
    }
}
