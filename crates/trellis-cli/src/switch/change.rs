//! Commands that change what a switch does.

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use trellis_fabric_protocol::wire::address::Host;
use trellis_switch::control::Remote;
use trellis_switch::{Classes, Faults, Group, Page, PageRange, Prefix, Redirect, Route, Rule, Switch, SwitchError};

use super::{Which, failure};
use crate::pages::{Pages, pages};
use trellis_command::exit::{self, Ending, Failure};

/// Send matching addresses to a port, or remove the prefix; or the same for some pages of a home
///
/// The switch gets the smallest set of aligned page ranges that covers the pages. With `--pages` and without a port,
/// exactly these page ranges are removed.
#[derive(Debug, Args)]
pub(super) struct RouteArguments {
    #[command(flatten)]
    which: Which,
    /// 48 to 128 bits
    prefix: Prefix,
    /// The port; none to remove the prefix
    port: Option<u16>,
    /// The addresses are memory; without this option, they name a client's requests
    #[arg(long, conflicts_with = "pages")]
    memory: bool,
    /// Only requests for these pages of the prefix's home: the numbers of the first and the last
    #[arg(long, value_name = "FIRST-LAST", value_parser = pages)]
    pages: Option<Pages>,
}

/// Send requests for a page to another port, or to its home again
#[derive(Debug, Args)]
pub(super) struct RedirectArguments {
    #[command(flatten)]
    which: Which,
    /// An address in the page
    #[arg(value_parser = pointer)]
    pointer: Ipv6Addr,
    /// The port; none to send them to the home
    port: Option<u16>,
    /// How long the redirect lasts [default: for ever]
    #[arg(long = "for", value_name = "MILLISECONDS")]
    lasts: Option<u64>,
    /// The epoch of the page's lease: an entry with a higher one stays
    #[arg(long, value_name = "EPOCH", default_value_t = u64::MAX >> 1)]
    epoch: u64,
}

/// Also send copies of the requests to a home to ports
#[derive(Debug, Args)]
pub(super) struct CopyArguments {
    #[command(flatten)]
    which: Which,
    /// The home, 48 bits
    prefix: Prefix,
    /// The copied requests: reading, changing, objects, leases, servers
    #[arg(long, value_name = "CLASS,CLASS...", default_value = "changing", value_parser = classes)]
    classes: Classes,
    /// The ports; none to stop copying
    ports: Vec<u16>,
}

/// Pass only those requests to memory that a rule allows
///
/// Each line has one rule: client, home, classes; `any` for any client or home, numbers as 0x1001; for example
///
///   c any reading
///
///   any 0x1001 reading,changing,leases
#[derive(Debug, Args)]
pub(super) struct AllowArguments {
    #[command(flatten)]
    which: Which,
    /// The file with the rules
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    rules: Option<PathBuf>,
    /// Pass everything
    #[arg(long)]
    all: bool,
}

/// Grant leases to the first host that asks, for this long; or grant none
#[derive(Debug, Args)]
pub(super) struct LeaseArguments {
    #[command(flatten)]
    which: Which,
    /// Milliseconds; none to grant no leases
    #[arg(value_parser = milliseconds)]
    term: Option<u64>,
}

/// Lose, repeat or delay packets on purpose from now on; `drop=0%` ends that
#[derive(Debug, Args)]
pub(super) struct FaultsArguments {
    #[command(flatten)]
    which: Which,
    /// For example drop=1%,delay=500us,seed=7
    faults: Faults,
}

fn ended(done: Result<(), SwitchError>) -> Ending {
    done.map(|()| exit::FINE).map_err(|error| failure(&error))
}

/// Checks that hosts are connected: at other ports all packets would be lost silently.
fn check_ports(switch: &Remote, ports: &[u16]) -> Result<(), Failure> {
    let plugged = &switch.description().ports;
    let Some(missing) = ports.iter().find(|&&port| !plugged.iter().any(|plugged| plugged.port == port)) else {
        return Ok(());
    };
    let sentence =
        format!("nothing is plugged in at port {missing}; `trellis switch status` shows the ports that there are");
    Err(Failure::new(exit::FAILED, sentence))
}

/// Success if the entry was there, else the given error.
fn was_there(was: Result<bool, SwitchError>, otherwise: &str) -> Ending {
    if was.map_err(|error| failure(&error))? { Ok(exit::FINE) } else { Err(Failure::new(exit::FAILED, otherwise)) }
}

pub(super) fn route(arguments: &RouteArguments) -> Ending {
    let RouteArguments { which, prefix, port, memory, pages } = arguments;
    let switch = which.open()?;
    check_ports(&switch, port.as_slice())?;
    if let Some(pages) = pages {
        return route_pages(&switch, *prefix, *pages, *port);
    }
    match *port {
        Some(port) => ended(switch.set_prefix(*prefix, Route { port, is_memory: *memory })),
        None => was_there(switch.drop_prefix(*prefix), &format!("the switch knows no {prefix}")),
    }
}

fn route_pages(switch: &Remote, prefix: Prefix, pages: Pages, port: Option<u16>) -> Ending {
    let home = Prefix::host(switch.cluster(), prefix.home());
    if prefix != home {
        let sentence = format!("{prefix} is not a whole home of this cluster; pages are of one, such as {home}");
        return Err(Failure::new(exit::FAILED, sentence));
    }
    let ranges = PageRange::cover(home.home(), pages.first, pages.count);
    if ranges.is_empty() {
        return Err(Failure::new(exit::FAILED, format!("a home has no page {}", pages.first)));
    }
    let Some(port) = port else {
        let dropped = ranges.iter().try_fold(false, |was, range| Ok(switch.drop_page_route(*range)? || was));
        return was_there(
            dropped,
            "the switch has no route of exactly these pages; `trellis switch status` shows its page routes",
        );
    };
    ended(ranges.iter().try_for_each(|range| switch.set_page_route(*range, port)))
}

pub(super) fn redirect(arguments: &RedirectArguments) -> Ending {
    let RedirectArguments { which, pointer, port, lasts, epoch } = arguments;
    let switch = which.open()?;
    check_ports(&switch, port.as_slice())?;
    if pointer.octets()[..4] != switch.cluster().scope() {
        let addresses = switch.cluster().everything();
        let sentence = format!("{pointer} is not of this cluster, whose addresses are {addresses}");
        return Err(Failure::new(exit::FAILED, sentence));
    }
    let page = Page::of(*pointer);
    match *port {
        Some(port) => {
            let until = lasts.map(|lasts| Instant::now() + Duration::from_millis(lasts));
            let set = switch.set_redirect(page, Redirect { port, epoch: *epoch, until });
            was_there(set, &format!("{page} has a redirect with a higher epoch; give a higher --epoch"))
        }
        None => {
            let otherwise = format!("{page} has no redirect with an epoch up to {epoch}; give a higher --epoch");
            was_there(switch.drop_redirect(page, *epoch), &otherwise)
        }
    }
}

pub(super) fn copy(arguments: &CopyArguments) -> Ending {
    let CopyArguments { which, prefix, classes, ports } = arguments;
    let switch = which.open()?;
    check_ports(&switch, ports)?;
    ended(switch.set_group(&Group { prefix: *prefix, classes: *classes, ports: ports.clone() }))
}

pub(super) fn allow(arguments: &AllowArguments) -> Ending {
    let rules = arguments.rules.as_ref().map(|file| {
        let place = file.display();
        let text = std::fs::read_to_string(file)
            .map_err(|error| Failure::new(exit::FILE, format!("cannot read {place}: {error}")))?;
        rules(&text).map_err(|what| Failure::new(exit::CONFIGURATION, format!("{place} {what}")))
    });
    let rules = rules.transpose()?;
    ended(arguments.which.open()?.set_rules(rules.as_deref()))
}

pub(super) fn lease(arguments: &LeaseArguments) -> Ending {
    ended(arguments.which.open()?.set_leases(arguments.term.map(Duration::from_millis)))
}

pub(super) fn faults(arguments: &FaultsArguments) -> Ending {
    ended(arguments.which.open()?.set_faults(&arguments.faults))
}

fn pointer(text: &str) -> Result<Ipv6Addr, String> {
    text.parse().map_err(|_| format!("`{text}` is not an address; an example: fd12:3456:7:100::3000"))
}

fn milliseconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is no time; give whole milliseconds, as 500"))
}

fn classes(text: &str) -> Result<Classes, String> {
    let class = |word: &str| match word {
        "reading" => Ok(Classes::READING),
        "changing" => Ok(Classes::CHANGING),
        "objects" => Ok(Classes::OBJECTS),
        "leases" => Ok(Classes::LEASES),
        "servers" => Ok(Classes::SERVERS),
        "all" => Ok(Classes::ALL),
        other => Err(format!("`{other}` is no class; accepted: reading, changing, objects, leases, servers, all")),
    };
    text.split(',').try_fold(Classes::NONE, |classes, word| Ok(classes.and(class(word)?)))
}

fn rules(text: &str) -> Result<Vec<Rule>, String> {
    let host = |word: &str| match word {
        "any" => Ok(None),
        word => word
            .parse::<Host>()
            .map(|host| Some(host.0))
            .map_err(|why| format!("`{word}` is neither `any` nor a host: {why}")),
    };
    let rule = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [client, home, allowed] = words[..] else {
            return Err(format!("`{line}` is no rule; an example: c any reading"));
        };
        Ok(Rule { client: host(client)?, home: host(home)?, classes: classes(allowed)? })
    };
    let lines = text.lines().zip(1..).map(|(line, number)| (line.split('#').next().unwrap_or_default().trim(), number));
    lines
        .filter(|(line, _)| !line.is_empty())
        .map(|(line, number)| rule(line).map_err(|what| format!("line {number}: {what}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_and_no_time_is_told_with_an_example() {
        assert!(pointer("fd12:3456:7:100::3000").is_ok() && milliseconds("500") == Ok(500));
        assert!(pointer("foo").unwrap_err().contains("fd12:3456:7:100::3000"));
        assert!(milliseconds("5s").unwrap_err().contains("milliseconds, as 500"));
    }

    #[test]
    fn rules_are_lines() {
        let read =
            rules("# everybody may read\nany any reading\n\nc 0x1001 changing,leases # one may change\n").unwrap();
        let some = Classes::CHANGING.and(Classes::LEASES);
        assert_eq!(
            read,
            [
                Rule { client: None, home: None, classes: Classes::READING },
                Rule { client: Some(12), home: Some(0x1001), classes: some }
            ]
        );
        assert!(rules("any any").unwrap_err().contains("line 1"));
        assert!(
            rules("\nany x reading")
                .unwrap_err()
                .contains("line 2: `x` is neither `any` nor a host: the text is not a host")
        );
        assert!(rules("any any writing").unwrap_err().contains("accepted: reading"));
    }
}
