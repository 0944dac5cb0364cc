//! Finds the interface at which requests arrive: the one to which the route to the other hosts leads.
//!
//! It promises to read only what the kernel shows every process, and to decide from that. It must never call another
//! program.

use crate::address::Cluster;
use crate::error::SwitchError;

/// The routes of the calling thread's network namespace.
const ROUTES: &str = "/proc/thread-self/net/ipv6_route";
const REJECT: u32 = 0x0200;
const LOCAL: u32 = 0x8000_0000;

/// See the top of this file.
pub(super) fn towards(cluster: Cluster, home: u16) -> Result<String, SwitchError> {
    let attempt = "find the interface that requests come in at";
    let text = std::fs::read_to_string(ROUTES)
        .map_err(|error| SwitchError::system(format!("{attempt} in {ROUTES}"), &error))?;
    chosen(&text, cluster, home).map_err(|cause| SwitchError::System {
        attempt: attempt.to_owned(),
        cause,
        hint: "name it with --device".to_owned(),
    })
}

/// A route that may lead to other hosts.
struct Route<'a> {
    bits: u32,
    is_local: bool,
    device: &'a str,
}

/// The longest of the routes to other hosts of the cluster and, only if there is none, one to this host itself.
fn chosen(routes: &str, cluster: Cluster, home: u16) -> Result<String, String> {
    let mut fitting: Vec<Route<'_>> = routes.lines().filter_map(|line| route(line, cluster, home)).collect();
    if fitting.iter().any(|route| !route.is_local) {
        fitting.retain(|route| !route.is_local);
    }
    let longest = fitting.iter().map(|route| route.bits).max();
    let mut devices: Vec<&str> =
        fitting.iter().filter(|route| Some(route.bits) == longest).map(|route| route.device).collect();
    devices.sort_unstable();
    devices.dedup();
    match devices[..] {
        [] => Err(format!("there is no route to {}", cluster.everything())),
        [device] => Ok(device.to_owned()),
        _ => Err(format!("routes to {} lead to {}", cluster.everything(), devices.join(" and "))),
    }
}

/// Parses a line: destination, its bits, source, its bits, next hop, metric, two counters, flags, device; numbers in
/// hexadecimal.
fn route<'a>(line: &'a str, cluster: Cluster, home: u16) -> Option<Route<'a>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [destination, bits, _, _, _, _, _, _, flags, device] = words[..] else { return None };
    let bits = u32::from_str_radix(bits, 16).ok()?;
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let high = u64::from_str_radix(destination.get(..16)?, 16).ok()?;
    let scope = u64::from(u32::from_be_bytes(cluster.scope())) << 32;
    let is_of = |bits: u32, other: u64| bits == 0 || (high ^ other) >> (64 - bits) == 0;
    let own = scope | u64::from(home) << 16;
    let fits = match bits {
        0..=32 => is_of(bits, scope),
        33..=48 => is_of(32, scope) && !(bits == 48 && is_of(48, own)),
        _ => false,
    };
    (fits && flags & REJECT == 0).then_some(Route { bits, is_local: flags & LOCAL != 0, device })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: &str = "00000000000000000000000000000000";

    fn line(destination: &str, bits: u8, flags: u32, device: &str) -> String {
        format!("{destination:0<32} {bits:02x} {ZERO} 00 {ZERO} 00000400 00000001 00000000 {flags:08x} {device:>8}\n")
    }

    fn of(lines: &[String]) -> Result<String, String> {
        chosen(&lines.concat(), Cluster::new(0x12_3456), 7)
    }

    #[test]
    fn it_is_that_of_the_longest_route_to_others() {
        let own = line("fd1234560007", 48, 0x8000_0001, "lo");
        let all_local = line("fd123456", 32, 0x8000_0001, "lo");
        let cluster = line("fd123456", 32, 3, "e0");
        let default = line("", 0, 3, "wan0");
        let nowhere = line("", 0, 0x20_0200, "lo");
        assert_eq!(of(&[own.clone(), all_local.clone(), cluster.clone(), default.clone()]), Ok("e0".to_owned()));
        assert_eq!(of(&[own.clone(), default.clone(), nowhere.clone()]), Ok("wan0".to_owned()));
        assert_eq!(of(&[own.clone(), all_local, nowhere.clone()]), Ok("lo".to_owned()), "all on this machine");
        let error = of(&[own.clone(), nowhere]).unwrap_err();
        assert_eq!(error, "there is no route to fd12:3456::/32");
        let others = [own, cluster, line("fd1234560008", 48, 1, "e1"), line("fd1234560009", 48, 1, "e2")];
        assert_eq!(of(&others).unwrap_err(), "routes to fd12:3456::/32 lead to e1 and e2");
        assert_eq!(of(&[line("fd123457", 32, 3, "e9")]).unwrap_err(), "there is no route to fd12:3456::/32");
    }
}
