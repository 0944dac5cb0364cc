//! Commands that show what a controller knows.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use trellis_controller::control::{Answer, Request};
use trellis_controller::ranges::Status;
use trellis_controller::records::{Goal, WithinRecord};
use trellis_fabric_protocol::lease::Host;

use super::{Which, other_version, refused};
use trellis_command::exit::{self, Ending};
use trellis_command::terminal::{self, say};

/// How often new events are polled.
const LOOK: Duration = Duration::from_millis(100);

/// Show ranges and servers
#[derive(Debug, Args)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    which: Which,
    /// Everything, as JSON
    #[arg(long)]
    json: bool,
}

/// Show past events, one sentence on each line
#[derive(Debug, Args)]
pub(super) struct EventsArguments {
    #[command(flatten)]
    which: Which,
    /// Continue with new events, until SIGINT
    #[arg(long)]
    follow: bool,
}

pub(super) fn status(arguments: &StatusArguments) -> Ending {
    let answer = arguments.which.open()?.ask(&Request::Status).map_err(refused)?;
    let Answer::Status(status) = answer else { return Err(other_version(answer)) };
    if arguments.json {
        say!("{}", serde_json::json!(status));
    } else {
        terminal::put(format_args!("{}", text(&status)));
    }
    Ok(exit::FINE)
}

pub(super) fn events(arguments: &EventsArguments) -> Ending {
    let mut controller = arguments.which.open()?;
    let mut after = 0;
    loop {
        let answer = controller.ask(&Request::Events(after)).map_err(refused)?;
        let Answer::Events(events) = answer else { return Err(other_version(answer)) };
        for (number, sentence) in events {
            say!("{sentence}");
            after = number;
        }
        if !arguments.follow {
            return Ok(exit::FINE);
        }
        std::thread::sleep(LOOK);
    }
}

fn text(status: &Status) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = put(&mut text, status);
    text
}

fn put(text: &mut String, status: &Status) -> std::fmt::Result {
    let Status { cluster: _, leads, leader, backups, term, home_lease, ranges, servers, anywhere, replicas } = status;
    let [term, home_lease] = [*term, *home_lease].map(Duration::from_nanos);
    match (leads, leader) {
        (true, _) => {
            writeln!(text, "leads; {backups} backups each, page leases of {term:?}, home leases of {home_lease:?}")?
        }
        (false, Some(leader)) => return writeln!(text, "does not lead; the controller of host {leader:#x} does"),
        (false, None) => return writeln!(text, "does not lead; no leader is known"),
    }
    let hosts = |hosts: &[Host]| -> String {
        let names: Vec<String> = hosts.iter().map(|host| format!("{host:#x}")).collect();
        if names.is_empty() { "-".to_owned() } else { names.join(",") }
    };
    writeln!(
        text,
        "{:>6} {:>6} {:>5} {:>10} {:>14} {:>14} {:>10} {:>13}  state",
        "range", "home", "inc", "pages", "backups", "complete", "requests/s", "home lease ms"
    )?;
    for range in ranges {
        let state = match (range.is_served, range.moving, range.introduced) {
            (false, ..) => "not served".to_owned(),
            (true, Some(to), _) => format!("moves to {to:#x}"),
            (true, None, Some(host)) => format!("asks {host:#x}"),
            (true, None, None) if range.complete.len() < range.backups.len() => "served, copies incomplete".to_owned(),
            (true, None, None) if range.lacks_room => "served, no room for a backup".to_owned(),
            (true, None, None) => "served".to_owned(),
        };
        let part = range.within.map_or_else(String::new, |within| {
            let WithinRecord { range: of, first, .. } = within;
            let last = first + range.pages.saturating_sub(1);
            format!("; pages {first}-{last} of {of:#x}")
        });
        let goal = match range.goal {
            Some(Goal::Merge) => ", comes home".to_owned(),
            Some(Goal::Host(host)) if range.moving != Some(host) => format!(", is to go to {host:#x}"),
            _ => String::new(),
        };
        writeln!(
            text,
            "{:>#6x} {:>#6x} {:>5} {:>10} {:>14} {:>14} {:>10} {:>13}  {state}{part}{goal}",
            range.range,
            range.home,
            range.incarnation,
            range.pages,
            hosts(&range.backups),
            hosts(&range.complete),
            range.requests_per_second,
            range.home_lease_left_ms,
        )?;
    }
    for (range, split) in ranges.iter().flat_map(|range| range.splits.iter().map(move |split| (range.range, split))) {
        let last = split.end().saturating_sub(1);
        writeln!(text, "pages {}-{last} of {range:#x} are about to go to {:#x}", split.first, split.to)?;
    }
    writeln!(
        text,
        "{:>6} {:>9} {:>16} {:>6} {:>7} {:>10}  state",
        "server", "heard ms", "spare bytes", "homes", "copies", "requests/s"
    )?;
    for server in servers {
        let state = match (server.is_there, server.is_drained) {
            (true, false) => "there",
            (true, true) => "drained",
            (false, false) => "silent",
            (false, true) => "silent, drained",
        };
        let heard = server.heard_ms.map_or_else(|| "-".to_owned(), |heard| heard.to_string());
        writeln!(
            text,
            "{:>#6x} {heard:>9} {:>16} {:>6} {:>7} {:>10}  {state}",
            server.host, server.spare_bytes, server.homes, server.backups, server.requests_per_second
        )?;
    }
    if let Some(host) = anywhere {
        writeln!(text, "who asks any server is answered by {host:#x}")?;
    }
    for replica in replicas {
        let state = if replica.has_copy { "has a copy" } else { "has no copy yet" };
        writeln!(
            text,
            "hot page {} of {:#x}: {} requests/s, {:#x} {state} and answered {} READs",
            replica.page, replica.range, replica.requests_per_second, replica.host, replica.answered
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trellis_controller::ranges::{RangeStatus, ReplicaStatus, ServerStatus};
    use trellis_controller::records::SplitRecord;
    use trellis_fabric_protocol::lease::RangeNumber;

    #[test]
    fn the_table_has_a_line_for_each_range_and_each_server() {
        let range = RangeStatus {
            range: RangeNumber(0x1001),
            home: Host(0x1002),
            incarnation: 3,
            backups: vec![Host(0x1003), Host(0x1001)],
            complete: vec![Host(0x1003)],
            moving: Some(Host(0x1003)),
            introduced: None,
            is_served: true,
            pages: 16,
            home_lease_left_ms: 499,
            requests_per_second: 12,
            directive: None,
            lacks_room: false,
            within: None,
            goal: None,
            splits: Vec::new(),
        };
        let server = ServerStatus {
            host: Host(0x1002),
            is_there: false,
            heard_ms: None,
            spare_bytes: 4096,
            homes: 1,
            backups: 0,
            requests_per_second: 12,
            is_drained: true,
        };
        let replica = ReplicaStatus {
            range: RangeNumber(0x1001),
            page: 3,
            host: Host(0x1003),
            has_copy: true,
            answered: 7,
            requests_per_second: 9000,
        };
        let status = Status {
            cluster: 0x12_3456,
            leads: true,
            leader: Some(Host(3)),
            backups: 1,
            term: 2_000_000_000,
            home_lease: 500_000_000,
            ranges: vec![range],
            servers: vec![server],
            anywhere: Some(Host(0x1001)),
            replicas: vec![replica],
        };
        let shown = text(&status);
        let words: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(shown.starts_with("leads; 1 backups each, page leases of 2s, home leases of 500ms\n"), "{shown}");
        assert_eq!(
            words[2],
            ["0x1001", "0x1002", "3", "16", "0x1003,0x1001", "0x1003", "12", "499", "moves", "to", "0x1003"]
        );
        assert_eq!(words[4], ["0x1002", "-", "4096", "1", "0", "12", "silent,", "drained"]);
        let last: Vec<&str> = shown.lines().skip(5).collect();
        assert_eq!(
            last,
            [
                "who asks any server is answered by 0x1001",
                "hot page 3 of 0x1001: 9000 requests/s, 0x1003 has a copy and answered 7 READs"
            ]
        );
        let mut status = status;
        status.ranges[0].moving = None;
        assert!(text(&status).contains(" 499  served, copies incomplete\n"), "{}", text(&status));
        (status.ranges[0].complete, status.ranges[0].lacks_room) = (status.ranges[0].backups.clone(), true);
        assert!(text(&status).contains(" 499  served, no room for a backup\n"), "{}", text(&status));
        let of_range = WithinRecord { range: RangeNumber(0x1001), first: 64, since: 2 };
        (status.ranges[0].lacks_room, status.ranges[0].within) = (false, Some(of_range));
        assert!(text(&status).contains(" 499  served; pages 64-79 of 0x1001\n"), "{}", text(&status));
        status.ranges[0].goal = Some(Goal::Host(Host(0x1003)));
        assert!(text(&status).contains(" of 0x1001, is to go to 0x1003\n"), "{}", text(&status));
        status.ranges[0].goal = Some(Goal::Merge);
        status.ranges[0].splits.push(SplitRecord { first: 3, pages: 2, to: Host(0x1003) });
        let shown = text(&status);
        assert!(shown.contains(
            " 499  served; pages 64-79 of 0x1001, comes home\npages 3-4 of 0x1001 are about to go to 0x1003\n"
        ));
        let waits = Status { leads: false, ..status };
        assert_eq!(text(&waits), "does not lead; the controller of host 0x3 does\n");
    }
}
