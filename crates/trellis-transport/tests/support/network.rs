//! Network namespaces for tests: nothing in them affects another test or the machine.

#![allow(dead_code, reason = "each test uses a part")]

use std::process::Command;

/// Runs a body in its own network namespace, if one can be created; otherwise prints why not.
pub(crate) fn in_own_network(test: &str, setup: &[&str], body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let inside =
            scope.spawn(|| match enter_own_network().and_then(|()| setup.iter().try_for_each(|line| ip(line))) {
                Ok(()) => body(),
                Err(why) => trellis_testing::skip(test, trellis_testing::Need::Namespaces, why),
            });
        if let Err(panic) = inside.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Makes every address of the cluster this host's own.
pub(crate) const ALONE: [&str; 2] = ["link set lo up", "-6 route add local fd01:203::/32 dev lo"];

/// Moves this thread, and those that it starts, to a new and empty network namespace.
pub(crate) fn enter_own_network() -> Result<(), String> {
    // SAFETY: no pointers are passed; only this thread, which ends with the test, changes its network.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(format!("no right to make a network namespace: {}", std::io::Error::last_os_error())),
    }
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(arguments: &str) -> Result<(), String> {
    match Command::new("ip").args(arguments.split(' ')).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`ip {arguments}` ended with {status}")),
        Err(error) => Err(format!("`ip` cannot be started ({error}); apt-get install iproute2")),
    }
}

/// Sets up this thread's end of a cable to the other host: everything in the cluster is behind it, and everything that
/// arrives from there is meant for this host, whatever its address.
pub(crate) fn plug_in(device: &str, me: u16, other: u16) -> Result<(), String> {
    for line in [
        "link set lo up".to_owned(),
        format!("link set {device} address 02:00:00:00:00:0{me} mtu 9000 up"),
        format!("-6 addr add fe80::{me}/64 dev {device} nodad"),
        format!("-6 neigh add fe80::{other} lladdr 02:00:00:00:00:0{other} dev {device} nud permanent"),
        format!("-6 route add fd01:203::/32 via fe80::{other} dev {device}"),
        "-6 route add local fd01:203::/32 dev lo table 100".to_owned(),
        format!("-6 rule add pref 5 iif {device} lookup 100"),
    ] {
        ip(&line)?;
    }
    Ok(())
}
