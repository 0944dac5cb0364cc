//! Lists of hosts, from the command line or a file, and which nodes each host gets.
//!
//! It is pure. Promises: a host that is listed several times is one host with the sum of its slots; nodes that are
//! numbered one after the other are on one host as far as its slots allow, or on different hosts where the user wants
//! that. The numbers of a host ascend.

use std::iter;

use clap::ValueEnum;
use trellis::config::is_name_of_host;

/// Which nodes come to one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum MapBy {
    /// Nodes with neighbouring numbers: a host is filled before the next one gets a node
    #[default]
    Slot,
    /// Nodes in turn: each host gets one node, then each a second one
    Node,
}

/// A host, as the user named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// What `ssh` gets: `user@name`, or the name alone.
    pub(super) target: String,
    /// How many nodes it takes, if the user says so.
    slots: Option<usize>,
    /// How the others reach it, if the user says so.
    pub(super) advertised: Option<String>,
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
        Ok(Host { target, slots, advertised: None })
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
    map_by: MapBy,
) -> Result<Vec<(Host, Vec<usize>)>, String> {
    let is_limited = nodes_per_host.is_some() || hosts.iter().any(|host| host.slots.is_some());
    let slots = |host: &Host| nodes_per_host.or(host.slots).unwrap_or(1);
    let all: usize = hosts.iter().map(slots).sum();
    let nodes = nodes.unwrap_or(all);
    if is_limited && nodes > all {
        let count = hosts.len();
        return Err(format!("-n {nodes}: the {count} hosts have {all} slots; name more hosts or more slots"));
    }
    let (each, more) = (nodes / hosts.len(), nodes % hosts.len());
    let room = |place: usize, host: &Host| if is_limited { slots(host) } else { each + usize::from(place < more) };
    let rooms: &Vec<usize> = &hosts.iter().enumerate().map(|(place, host)| room(place, host)).collect();
    let mut placed: Vec<(Host, Vec<usize>)> = hosts.into_iter().map(|host| (host, Vec::new())).collect();
    let hosts_in_order: Vec<usize> = match map_by {
        MapBy::Slot => (0..rooms.len()).flat_map(|place| iter::repeat_n(place, rooms[place])).collect(),
        MapBy::Node => {
            let turns = 0..rooms.iter().copied().max().unwrap_or(0);
            turns.flat_map(|turn| (0..rooms.len()).filter(move |place| turn < rooms[*place])).collect()
        }
    };
    for (node, place) in hosts_in_order.into_iter().take(nodes).enumerate() {
        placed[place].1.push(node);
    }
    placed.retain(|(_, nodes)| !nodes.is_empty());
    Ok(placed)
}

/// Takes how others reach hosts, as `HOST=ADDRESS`.
pub(super) fn advertise(placed: &mut [(Host, Vec<usize>)], words: &[String]) -> Result<(), String> {
    for word in words {
        let (name, address) =
            word.split_once('=').filter(|(_, address)| is_name_of_host(address)).ok_or_else(|| {
                format!("--advertise {word}: write HOST=ADDRESS; the address is a name or a number, without a port")
            })?;
        let mut hosts = placed.iter_mut().map(|(host, _)| host);
        let host = hosts.find(|host| host.name() == name || host.target == name);
        host.ok_or_else(|| format!("--advertise {word}: no node runs on a host {name}"))?.advertised =
            Some(address.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(hosts: &str, nodes: Option<usize>, nodes_per_host: Option<usize>) -> Result<String, String> {
        shares_by(MapBy::Slot, hosts, nodes, nodes_per_host)
    }

    fn shares_by(by: MapBy, hosts: &str, nodes: Option<usize>, per_host: Option<usize>) -> Result<String, String> {
        let placed = placed(in_list(hosts)?, nodes, per_host, by)?;
        let numbers = |nodes: &[usize]| nodes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        Ok(placed.iter().map(|(host, nodes)| format!("{}={} ", host.target, numbers(nodes))).collect())
    }

    #[test]
    fn slots_say_how_many_nodes_a_host_gets() {
        assert_eq!(shares("a,b:4,user@c", None, None).unwrap(), "a=0 b=1,2,3,4 user@c=5 ");
        assert_eq!(shares("a,b:4,user@c", Some(3), None).unwrap(), "a=0 b=1,2 ");
        assert_eq!(shares("a,b:4", None, Some(2)).unwrap(), "a=0,1 b=2,3 ");
        assert_eq!(shares("a,a,b", None, None).unwrap(), "a=0,1 b=2 ");
        let many = shares("a:2,b:2", Some(5), None).unwrap_err();
        assert_eq!(many, "-n 5: the 2 hosts have 4 slots; name more hosts or more slots");
    }

    #[test]
    fn without_slots_the_nodes_are_divided_evenly() {
        assert_eq!(shares("a,b,c", Some(8), None).unwrap(), "a=0,1,2 b=3,4,5 c=6,7 ");
        assert_eq!(shares("a,b,c", Some(2), None).unwrap(), "a=0 b=1 ");
    }

    #[test]
    fn hosts_take_nodes_in_turn_as_far_as_they_have_slots() {
        let in_turn = |hosts, nodes| shares_by(MapBy::Node, hosts, nodes, None).unwrap();
        assert_eq!(in_turn("a,b,c", Some(8)), "a=0,3,6 b=1,4,7 c=2,5 ");
        assert_eq!(in_turn("a,b:3,c:2", None), "a=0 b=1,3,5 c=2,4 ");
        assert_eq!(in_turn("a:4,b:4", Some(3)), "a=0,2 b=1 ");
        assert_eq!(in_turn("a,b,c", Some(2)), "a=0 b=1 ");
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
    fn hosts_are_reached_as_the_user_says() {
        let mut placed = placed(in_list("a,me@b").unwrap(), None, None, MapBy::Slot).unwrap();
        advertise(&mut placed, &["b=10.9.9.9".to_owned(), "a=a.example.org".to_owned()]).unwrap();
        let said: Vec<_> = placed.iter().map(|(host, _)| host.advertised.as_deref()).collect();
        assert_eq!(said, [Some("a.example.org"), Some("10.9.9.9")]);
        for wrong in ["c=10.9.9.9", "a", "a=", "a=b:7", "a=b c"] {
            assert!(advertise(&mut placed, &[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for wrong in ["", ",", "a:0", "a:x", "-oProxyCommand=x", "user@", "@a", "a b"] {
            assert!(in_list(wrong).is_err(), "{wrong}");
        }
    }
}
