//! Commands that show what a switch observed.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use trellis_switch::control::Remote;
use trellis_switch::{Counters, EventKind, HotPage, PageRange, Switch};

use super::{Which, failure};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::say;

/// Show the connected hosts, what became of their packets, and which pages have their own ports
#[derive(Debug, Args)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    which: Which,
    /// Everything, as JSON
    #[arg(long)]
    json: bool,
}

/// Show the pages with the most requests
#[derive(Debug, Args)]
pub(super) struct PagesArguments {
    #[command(flatten)]
    which: Which,
    /// The number of pages
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Count for this long
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    during: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Show leases as they come and go, one on each line, until SIGINT
#[derive(Debug, Args)]
pub(super) struct EventsArguments {
    #[command(flatten)]
    which: Which,
    /// Stop after this long
    #[arg(long, value_name = "MILLISECONDS")]
    during: Option<u64>,
}

/// How often events are polled.
const LOOK: Duration = Duration::from_millis(50);

pub(super) fn status(arguments: &StatusArguments) -> Ending {
    let switch = arguments.which.open()?;
    let ports = ports(&switch)?;
    let ranges = page_routes(&switch)?;
    let about = switch.description();
    let cluster = switch.cluster().everything();
    if arguments.json {
        let ports: Vec<_> = ports
            .iter()
            .map(|(host, is_memory, port, counters)| {
                json!({ "port": port, "host": host, "is_memory": is_memory, "counters": counters.by_name() })
            })
            .collect();
        let ranges: Vec<_> = ranges
            .iter()
            .map(|(range, port)| json!({ "home": range.home(), "first": range.first(), "pages": range.pages(), "port": port }))
            .collect();
        say!(
            "{}",
            json!({ "switch": about.name, "cluster": cluster, "redirects_max": about.capabilities.redirects_max,
                "grants": about.capabilities.grants, "ports": ports, "page_routes": ranges })
        );
        return Ok(exit::FINE);
    }
    say!(
        "switch {}: {} hosts of {cluster}, room for {} redirects",
        about.name,
        ports.len(),
        about.capabilities.redirects_max
    );
    say!(
        "{:>5} {:>6} {:<7} {:>12} {:>12} {:>10} {:>10} {:>10}",
        "port",
        "host",
        "role",
        "in",
        "out",
        "redirected",
        "granted",
        "refused"
    );
    for (host, is_memory, port, counters) in ports {
        let role = if is_memory { "server" } else { "client" };
        let Counters { redirected, granted, packets_out, .. } = counters;
        let sent_on = counters.delivered + redirected;
        let (came, refused) = (counters.packets_in(), counters.packets_in() - sent_on);
        say!(
            "{port:>5} {host:>#6x} {role:<7} {came:>12} {packets_out:>12} {redirected:>10} {granted:>10} {refused:>10}"
        );
    }
    if !ranges.is_empty() {
        say!("{:>5} {:>6} pages", "port", "home");
    }
    for (range, port) in ranges {
        say!("{port:>5} {:>#6x} {} to {}", range.home(), range.first(), range.first() + range.pages() - 1);
    }
    Ok(exit::FINE)
}

/// The page routes of every connected home.
fn page_routes(switch: &Remote) -> Result<Vec<(PageRange, u16)>, Failure> {
    let homes = switch.description().ports.iter().filter(|port| port.is_memory);
    let ranges = homes.map(|port| switch.page_routes(port.host)).collect::<Result<Vec<_>, _>>();
    Ok(ranges.map_err(|error| failure(&error))?.concat())
}

fn ports(switch: &Remote) -> Result<Vec<(u16, bool, u16, Counters)>, Failure> {
    let counted = |port: &trellis_switch::control::PortDescription| {
        Ok((port.host, port.is_memory, port.port, switch.counters(port.port)?))
    };
    switch.description().ports.iter().map(counted).collect::<Result<_, _>>().map_err(|error| failure(&error))
}

pub(super) fn pages(arguments: &PagesArguments) -> Ending {
    let switch = arguments.which.open()?;
    // Discards what was counted before.
    switch.hot_pages(0).map_err(|error| failure(&error))?;
    std::thread::sleep(Duration::from_millis(arguments.during));
    let pages = switch.hot_pages(arguments.top).map_err(|error| failure(&error))?;
    if arguments.json {
        let port = |&(port, requests): &(u16, u64)| json!({ "port": port, "requests": requests });
        let page = |HotPage { page, requests, by_port }: &HotPage| {
            let by_port: Vec<_> = by_port.iter().map(port).collect();
            json!({ "home": page.home, "page": page.number, "requests": requests, "by_port": by_port })
        };
        say!("{}", json!(pages.iter().map(page).collect::<Vec<_>>()));
        return Ok(exit::FINE);
    }
    say!("{:>6} {:>12} {:>12}  from ports", "home", "page", "requests");
    for HotPage { page, requests, by_port } in pages {
        let ports: Vec<String> = by_port.iter().map(|(port, requests)| format!("{port}: {requests}")).collect();
        say!("{:>#6x} {:>12} {requests:>12}  {}", page.home, page.number, ports.join(", "));
    }
    Ok(exit::FINE)
}

pub(super) fn events(arguments: &EventsArguments) -> Ending {
    let switch = arguments.which.open()?;
    let until = arguments.during.map(|during| std::time::Instant::now() + Duration::from_millis(during));
    loop {
        for event in switch.events().map_err(|error| failure(&error))? {
            let what = match event.kind {
                EventKind::Granted => "granted",
                EventKind::Confirmed => "confirmed",
                EventKind::Refused => "refused",
                EventKind::Renewed => "renewed",
                EventKind::Returned => "returned",
                EventKind::Expired => "expired",
            };
            let (home, page, port) = (event.page.home, event.page.number, event.port);
            say!(
                "{:>14.6} {what:<9} home {home:#x} page {page} port {port} epoch {:x}",
                event.time.as_secs_f64(),
                event.epoch
            );
        }
        if until.is_some_and(|until| std::time::Instant::now() >= until) {
            return Ok(exit::FINE);
        }
        std::thread::sleep(LOOK);
    }
}
