//! Tests labs: their hosts, what they leave behind, how large they can be.

mod conformance;

use std::fs;
use std::process::Command;

use conformance::{READ, lab};
use trellis_switch::lab::{HOSTS_MAX, Lab, Plan, Role};
use trellis_switch::switches::Attach;

/// The interfaces that this process sees.
fn interfaces() -> String {
    let output = Command::new("ip").args(["-brief", "link"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn nothing_is_seen_outside_and_nothing_is_left() {
    if !conformance::is_possible("nothing_is_seen_outside_and_nothing_is_left") {
        return;
    }
    let before = interfaces();
    let one = lab("user", "one", 2, 2);
    let other = lab("user", "other", 2, 2);
    assert_eq!(interfaces(), before);
    let inside = |lab: &Lab| {
        let host = lab.host("c1").unwrap();
        host.run(|| fs::read_link("/proc/thread-self/ns/net").unwrap()).unwrap().to_string_lossy().into_owned()
    };
    assert_ne!(inside(&one), inside(&other));
    assert_ne!(one.cluster(), other.cluster());
    let names = |lab: &Lab| lab.hosts().iter().map(|host| host.plan().name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&one), ["c1", "c2", "s1", "s2"]);
    drop((one, other));
    assert_eq!(interfaces(), before);
}

#[test]
fn hosts_are_what_the_plan_says() {
    if !conformance::is_possible("hosts_are_what_the_plan_says") {
        return;
    }
    let plan = Plan {
        name: "plan".to_owned(),
        clients: 1,
        servers: 1,
        switch: "user".to_owned(),
        mtu_bytes: 1500,
        redirects_max: 16,
        attach: Attach::Auto,
    };
    let lab = Lab::up(&plan).unwrap();
    assert_eq!(lab.plan(), &plan);
    let host = lab.host("s1").unwrap();
    assert_eq!(host.plan().role, Role::Server);
    let mtu = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let devices = host.run(mtu).unwrap();
    assert!(devices.contains("e0:") && devices.contains("lo:") && devices.lines().count() == 4, "{devices}");
    let error = lab.host("x").map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, "lab plan: there is no host x; there are c1, s1");
    let many = Plan { clients: HOSTS_MAX + 1, ..plan };
    assert!(Lab::up(&many).is_err());
}

#[test]
fn the_rack_of_the_paper_comes_up() {
    if !conformance::is_possible("the_rack_of_the_paper_comes_up") {
        return;
    }
    let lab = lab("user", "rack", 42, 42);
    let (client, server) = (lab.host("c42").unwrap(), lab.host("s42").unwrap());
    let inbox = server.socket(std::net::Ipv6Addr::UNSPECIFIED, conformance::PORT).unwrap();
    inbox.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    let pointer = lab.cluster().address(server.plan().number, READ, 0, 1 << 12);
    let socket = client.socket(client.plan().address, 0).unwrap();
    socket.send_to(b"hello", (pointer, conformance::PORT)).unwrap();
    let mut buffer = [0; 16];
    let (bytes, _) = inbox.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"hello");
}
