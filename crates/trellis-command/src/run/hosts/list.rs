//! Lists of hosts, from the command line or a file, and which nodes each host gets.
//!
//! Pure. Promises: a host that is listed several times is one host with the sum of its slots; nodes that are numbered
//! one after the other are on one host as far as its slots allow.

use std::ops::Range;

/// A host, as the user named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// What `ssh` gets: `user@name`, or the name alone.
    pub(super) target: String,
    /// How many nodes it takes, if the user says so.
    slots: Option<usize>,
}

impl Host {
    /// The name without the user.
    pub(super) fn name(&self) -> &str {
        self.target.rsplit_once('@').map_or(&self.target, |(_, name)| name)
    }

    /// Reads `name`, `user@name`, `name:slots`, or an IPv6 address, in brackets if slots follow.
    fn parse(word: &str) -> Result<Host, String> {
        let (target, slots) = match word.rsplit_once(':') {
            Some((target, slots)) if !target.contains(':') || target.ends_with(']') => {
                (target, Some(slots_in(slots).ok_or_else(|| format!("`{slots}` in `{word}` is no number of nodes"))?))
            }
            _ => (word, None),
        };
        let target: String = target.chars().filter(|letter| !"[]".contains(*letter)).collect();
        // A name that begins with a dash would be an option of ssh.
        let is_name = |name: &str| !name.is_empty() && !name.starts_with('-') && !name.contains(char::is_whitespace);
        if !target.split('@').all(is_name) {
            return Err(format!("`{word}` is no host; write name, user@name or name:slots"));
        }
        Ok(Host { target, slots })
    }
}

fn slots_in(text: &str) -> Option<usize> {
    text.parse().ok().filter(|slots| *slots > 0)
}

/// The hosts in a list with commas.
pub(super) fn in_list(text: &str) -> Result<Vec<Host>, String> {
    let hosts = text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(Host::parse);
    joined(hosts.collect::<Result<_, _>>()?)
}

/// The hosts in a file: one on each line, with its slots as `name slots=4` or `name:4`. `#` begins a comment.
pub(super) fn in_file(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(first) = words.next() else { continue };
        let at = |sentence: String| format!("line {number}: {sentence}");
        let mut host = Host::parse(first).map_err(at)?;
        // Open MPI's limit for what it calls oversubscription, which is the number of slots here.
        for word in words.filter(|word| !word.starts_with("max_slots=")) {
            let slots = word.strip_prefix("slots=").and_then(slots_in);
            host.slots = Some(slots.ok_or_else(|| at(format!("`{word}` is not understood; write slots=NUMBER")))?);
        }
        hosts.push(host);
    }
    joined(hosts)
}

/// Makes one host of those with the same name.
fn joined(hosts: Vec<Host>) -> Result<Vec<Host>, String> {
    let mut all: Vec<Host> = Vec::new();
    for host in hosts {
        match all.iter_mut().find(|known| known.target == host.target) {
            Some(known) => known.slots = Some(known.slots.unwrap_or(1) + host.slots.unwrap_or(1)),
            None => all.push(host),
        }
    }
    if all.is_empty() { Err("no host is named".to_owned()) } else { Ok(all) }
}

/// The hosts that get nodes, each with their numbers.
///
/// `nodes` is how many there are in all; without it, each host gets as many as it has slots. Where nobody says how many
/// slots a host has, they are divided evenly.
pub(super) fn placed(
    hosts: Vec<Host>,
    nodes: Option<usize>,
    nodes_per_host: Option<usize>,
) -> Result<Vec<(Host, Range<usize>)>, String> {
    let is_limited = nodes_per_host.is_some() || hosts.iter().any(|host| host.slots.is_some());
    let slots = |host: &Host| nodes_per_host.or(host.slots).unwrap_or(1);
    let all: usize = hosts.iter().map(slots).sum();
    let nodes = nodes.unwrap_or(all);
    if is_limited && nodes > all {
        let count = hosts.len();
        return Err(format!("-n {nodes}: the {count} hosts have {all} slots; name more hosts or more slots"));
    }
    let (each, more) = (nodes / hosts.len(), nodes % hosts.len());
    let mut placed = Vec::new();
    let mut next = 0;
    for (place, host) in hosts.into_iter().enumerate() {
        let share = if is_limited { slots(&host).min(nodes - next) } else { each + usize::from(place < more) };
        if share > 0 {
            placed.push((host, next..next + share));
        }
        next += share;
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(hosts: &str, nodes: Option<usize>, nodes_per_host: Option<usize>) -> Result<String, String> {
        let placed = placed(in_list(hosts)?, nodes, nodes_per_host)?;
        Ok(placed.iter().map(|(host, nodes)| format!("{}={nodes:?} ", host.target)).collect())
    }

    #[test]
    fn slots_say_how_many_nodes_a_host_gets() {
        assert_eq!(shares("a,b:4,user@c", None, None).unwrap(), "a=0..1 b=1..5 user@c=5..6 ");
        assert_eq!(shares("a,b:4,user@c", Some(3), None).unwrap(), "a=0..1 b=1..3 ");
        assert_eq!(shares("a,b:4", None, Some(2)).unwrap(), "a=0..2 b=2..4 ");
        assert_eq!(shares("a,a,b", None, None).unwrap(), "a=0..2 b=2..3 ");
        let many = shares("a:2,b:2", Some(5), None).unwrap_err();
        assert_eq!(many, "-n 5: the 2 hosts have 4 slots; name more hosts or more slots");
    }

    #[test]
    fn without_slots_the_nodes_are_divided_evenly() {
        assert_eq!(shares("a,b,c", Some(8), None).unwrap(), "a=0..3 b=3..6 c=6..8 ");
        assert_eq!(shares("a,b,c", Some(2), None).unwrap(), "a=0..1 b=1..2 ");
    }

    #[test]
    fn addresses_of_both_kinds_are_hosts() {
        let target = |text: &str| in_list(text).map(|hosts| format!("{} {:?}", hosts[0].target, hosts[0].slots));
        assert_eq!(target("10.1.2.3:4").unwrap(), "10.1.2.3 Some(4)");
        assert_eq!(target("fd00::1").unwrap(), "fd00::1 None");
        assert_eq!(target("me@[fd00::1]:2").unwrap(), "me@fd00::1 Some(2)");
        assert_eq!(in_list("user@c").unwrap()[0].name(), "c");
    }

    #[test]
    fn files_of_other_launchers_are_understood() {
        let hosts = in_file("# mine\nh0 slots=4 max_slots=8\n\nh1:2 # two\nh2\nh2\n").unwrap();
        let said: Vec<_> = hosts.iter().map(|host| (host.target.as_str(), host.slots)).collect();
        assert_eq!(said, [("h0", Some(4)), ("h1", Some(2)), ("h2", Some(2))]);
        assert_eq!(in_file("h0\nh1 cpus=2\n").unwrap_err(), "line 2: `cpus=2` is not understood; write slots=NUMBER");
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for wrong in ["", ",", "a:0", "a:x", "-oProxyCommand=x", "user@", "@a", "a b"] {
            assert!(in_list(wrong).is_err(), "{wrong}");
        }
    }
}
