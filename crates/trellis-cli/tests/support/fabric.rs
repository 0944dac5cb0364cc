//! A lab in the test's own process, made without root rights: hosts, a switch, clients in threads. Everything that
//! was started in it ends with the test, however that ends.
#![allow(dead_code, reason = "each test file uses its part")]

use std::process::Command;
use std::time::Duration;

use trellis::remote::leased::{Events, LeasedOptions, LeasedPages};
use trellis::remote::{Client, ClientOptions, Host, HostPrefix, Pointer, RemoteError};
use trellis_fabric_protocol::wire::datagram::Status;
use trellis_switch::lab::{Lab, Plan, space};
use trellis_switch::switches::Attach;
use trellis_testing::{Need, skip};

/// Set in the test that runs itself again in a user namespace.
const INSIDE: &str = "TRELLIS_TEST_INSIDE_A_USER_NAMESPACE";
/// For what must happen, however slow the machine is.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The namespaces of a test. It is the first process of a process namespace, so when it ends the kernel ends
/// everything that it started.
const NAMESPACES: [&str; 6] = ["--user", "--map-root-user", "--net", "--mount", "--pid", "--kill-child"];

/// Runs a test with a lab in a user namespace, where it is root only over what it makes. Its switch can impair
/// packets.
pub(crate) fn in_a_lab(test: &str, clients: u16, servers: u16, body: impl FnOnce(Lab)) {
    in_a_lab_of("user", test, clients, servers, body);
}

/// Like [`in_a_lab`], with this switch.
pub(crate) fn in_a_lab_of(switch: &str, test: &str, clients: u16, servers: u16, body: impl FnOnce(Lab)) {
    in_namespaces(test, || body(lab_of(switch, test, clients, servers)));
}

/// Like [`in_a_lab`], with a switch that needs root, and so outside of such namespaces.
pub(crate) fn in_a_lab_of_root(switch: &str, test: &str, clients: u16, servers: u16, body: impl FnOnce(Lab)) {
    if !space::is_root() {
        return skip(test, Need::Root, format_args!("the switch {switch} takes root"));
    }
    #[cfg(feature = "openflow")]
    if let Some(lacking) = trellis_switch::switches::openflow::OpenFlow::lacking().filter(|_| switch == "openflow") {
        return skip(test, Need::Program, lacking);
    }
    body(lab_of(switch, test, clients, servers));
}

/// Makes a lab with this switch, with the rights of the caller.
fn lab_of(switch: &str, test: &str, clients: u16, servers: u16) -> Lab {
    let name: String = test.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
    let switch = switch.to_owned();
    let (mtu_bytes, redirects_max) = (9000, 512);
    let plan = Plan { name, clients, servers, switch, mtu_bytes, redirects_max, attach: Attach::Auto };
    Lab::up(&plan).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a test in a user namespace, with its own mounts, networks and processes.
pub(crate) fn in_namespaces(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let possible = Command::new("unshare").args(NAMESPACES).arg("true").status();
    if !possible.is_ok_and(|status| status.success()) {
        return skip(test, Need::Namespaces, "this machine lets nobody make a user namespace");
    }
    let own = std::env::current_exe().unwrap();
    let mut again = Command::new("unshare");
    again.args(NAMESPACES).arg(own).args(["--exact", test, "--nocapture"]);
    let output = again.env(INSIDE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    print!("{text}");
}

pub(crate) fn good<T>(result: Result<T, RemoteError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Why something was refused.
pub(crate) fn status<T: std::fmt::Debug>(result: Result<T, RemoteError>) -> Status {
    match result {
        Err(RemoteError::Refused { status, .. }) => status,
        other => panic!("not refused: {other:?}"),
    }
}

/// The addresses of a host.
pub(crate) fn prefix(lab: &Lab, host: &str) -> HostPrefix {
    lab.host(host).unwrap().plan().prefix.to_string().parse().expect("a prefix")
}

pub(crate) fn number(lab: &Lab, host: &str) -> Host {
    prefix(lab, host).host
}

/// A host or a range in the notation of commands.
pub(crate) fn written(number: u16) -> String {
    format!("{number:#x}")
}

/// A client in a host, which gives up after this time.
pub(crate) fn client(lab: &Lab, host: &str, deadline: Duration) -> Client {
    let options = ClientOptions { deadline, ..ClientOptions::new(prefix(lab, host)) };
    good(lab.host(host).unwrap().run(|| Client::open(options)).unwrap())
}

/// Pages of objects for a process in a host.
pub(crate) fn leased(lab: &Lab, host: &str, objects: &[Pointer], events: std::sync::Arc<dyn Events>) -> LeasedPages {
    let options = LeasedOptions { deadline: LONG, ..LeasedOptions::new(prefix(lab, host), objects) };
    good(lab.host(host).unwrap().run(|| LeasedPages::open(options, events)).unwrap())
}
