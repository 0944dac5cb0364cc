//! Tests the switch `nft`, with and without privileges over the machine.

mod conformance;

use std::time::{Duration, Instant};

use conformance::{Context, DIRECT, PORT, READ, RENEW};
use trellis_switch::switches::{self, Attach, Wiring};

#[test]
fn nft_is_a_switch() {
    if conformance::is_possible("nft_is_a_switch") {
        conformance::run("nft");
    }
}

#[test]
fn nft_is_a_switch_without_rights_over_the_machine() {
    conformance::without_rights("nft_is_a_switch_without_rights_over_the_machine", || conformance::run("nft"));
}

#[test]
fn the_table_is_gone_with_the_switch() {
    if !conformance::is_possible("the_table_is_gone_with_the_switch") {
        return;
    }
    let context = Context::new("nft", "gone");
    let open = || {
        let wiring = Wiring { cluster: context.cluster(), ports: Vec::new(), redirects_max: 16, attach: Attach::Auto };
        context.host("c1").run(|| switches::open("nft", &wiring)).unwrap()
    };
    for _ in 0..2 {
        let first = open().unwrap_or_else(|error| panic!("the one before left something: {error}"));
        let refused = open().map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("where no other switch `nft` is"), "{refused}");
        // A child process that has not called exec yet has all descriptors, too.
        // SAFETY: the child only waits for the signal that ends it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: it has no arguments.
                unsafe { libc::pause() };
            }
        }
        drop(first);
        let next = open();
        // SAFETY: it is the child from above, which nobody has waited for.
        let ended = unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, std::ptr::null_mut(), 0)) };
        assert_eq!(ended, (0, child));
        drop(next.unwrap_or_else(|error| panic!("the one before left something: {error}")));
    }
}

#[test]
fn what_home_says_is_heard_without_being_asked_for() {
    if !conformance::is_possible("what_home_says_is_heard_without_being_asked_for") {
        return;
    }
    let context = Context::new("nft", "heard");
    context.switch().set_leases(Some(Duration::from_secs(3600))).unwrap();
    let (pointer, request) = (context.pointer("s1", RENEW, 5), context.request("c1", 7));
    context.send("s1", pointer, request, &conformance::header(0, 7, 4));
    assert_eq!(context.receive("c1").1, pointer);
    let deadline = Instant::now() + Duration::from_secs(30);
    for number in 0.. {
        assert!(Instant::now() < deadline, "requests still go home");
        let (from, read) = (context.request("c2", number), context.pointer("s1", READ, 5));
        context.send("c2", from, read, b"read");
        // What is sent to the owner after it shows whether it went there.
        context.send("c2", from, context.with_arguments("s1", READ, DIRECT, 6), b"after");
        let first = context.receive("s1").0;
        if first == b"after" {
            assert_eq!(context.receive("c1").0, b"read");
            break;
        }
        assert_eq!((first.as_slice(), context.receive("s1").0.as_slice()), (b"read".as_slice(), b"after".as_slice()));
    }
    let redirect = context.switch().redirect(context.page("s1", 5)).unwrap().unwrap();
    assert_eq!((redirect.port, redirect.epoch), (context.port("c1"), 4));
}

#[test]
fn more_hosts_than_a_chain_takes_devices_reach_each_other() {
    if !conformance::is_possible("more_hosts_than_a_chain_takes_devices_reach_each_other") {
        return;
    }
    let lab = conformance::lab("nft", "many", 2, 260);
    for (from, to) in [("c1", "s260"), ("s260", "s1"), ("s259", "c2")] {
        let (from, to) = (lab.host(from).unwrap(), lab.host(to).unwrap());
        let inbox = to.socket(to.plan().address, PORT).unwrap();
        inbox.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let socket = from.socket(from.plan().address, 0).unwrap();
        socket.send_to(b"hello", (to.plan().address, PORT)).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(inbox.recv_from(&mut buffer).unwrap().0, 5);
    }
}
