//! Commands that change what a controller does.

use std::time::{Duration, Instant};

use clap::Args;
use trellis_base::{Deadline, Limit};
use trellis_controller::control::{Answer, Remote, Request};
use trellis_controller::ranges::{Moved, RangeStatus, Status};
use trellis_controller::records::{Directive, Goal, SplitRecord};
use trellis_fabric_protocol::lease::{Host, RangeNumber};
use trellis_fabric_protocol::wire::address::PAGE_BYTES;

use super::{Named, Which, host, named, other_version, refused};
use crate::pages::{Pages, pages};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::say;
use trellis_command::time::time;

/// How often progress is polled.
const LOOK: Duration = Duration::from_millis(100);
/// How long nothing may move before a drain reports that it is stuck.
pub(crate) const STUCK: Deadline = Deadline {
    who: "`trellis controller drain`",
    waits_for: "anything to move",
    limit: Limit::seconds(3),
    then: "refused, with what is missing, unless something can still move",
    tested: "crates/trellis-cli/tests/operators.rs a_drain_that_has_nowhere_to_go_ends_with_what_is_missing",
};
/// How long it may take until a controller leads again.
pub(crate) const LEADER: Deadline = Deadline {
    who: "`trellis controller …`",
    waits_for: "a controller that leads",
    limit: Limit::seconds(10),
    then: "refused; where to look",
    tested: "crates/trellis-cli/src/controller/change.rs a_cluster_that_nobody_leads_is_said",
};

/// The user limits what takes long; a test compares this default with that of the option.
#[cfg(test)]
pub(crate) const DONE: Deadline = Deadline {
    who: "`trellis controller move --wait`, `drain`",
    waits_for: "what was decided, until it is done",
    limit: Limit::Setting("--timeout", Duration::from_secs(3_600)),
    then: "refused, with what is left and at which host; it goes on",
    tested: "crates/trellis-cli/src/controller/change.rs who_waited_long_enough_hears_what_goes_on",
};

/// The default of `--timeout`.
const BY_DEFAULT: &str = "3600s";

/// How long a command waits for what was decided.
#[derive(Clone, Copy, Debug, Args)]
struct Timeout {
    /// Stop waiting after this time; what was decided continues
    #[arg(long = "timeout", value_name = "TIME", default_value = BY_DEFAULT, value_parser = time)]
    limit: Duration,
}

impl Timeout {
    /// An error once `began` is longer ago than the limit; `what` says what has not happened.
    fn check(self, began: Instant, what: impl FnOnce() -> String) -> Result<(), Failure> {
        if began.elapsed() < self.limit {
            return Ok(());
        }
        let seconds = self.limit.as_secs_f64();
        Err(refused(format!(
            "{} after {seconds} s; it goes on, `trellis controller status` shows how far it is, and --timeout waits longer",
            what()
        )))
    }
}

/// Move a range, or some of its pages, to a host; clients continue meanwhile
///
/// The host first gets all bytes; then the range is handed over within milliseconds, with all leases. The command
/// returns when the move is decided, or with `--wait` when it is done. With `--pages`, only these pages move and get a
/// home of their own; moved to the home of the range, they rejoin it.
#[derive(Debug, Args)]
pub(super) struct MoveArguments {
    #[command(flatten)]
    which: Which,
    /// The range, or a part of one
    #[arg(value_parser = named)]
    range: Named,
    /// The host
    #[arg(value_parser = host)]
    host: Named,
    /// Only these pages of the range: the first and the last number, in pages of 4,096 bytes
    #[arg(long, value_name = "FIRST-LAST", value_parser = pages)]
    pages: Option<Pages>,
    /// Wait until the host is home
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    timeout: Timeout,
}

/// Set which servers have a copy of a range
#[derive(Debug, Args)]
pub(super) struct BackupsArguments {
    #[command(flatten)]
    which: Which,
    /// The range
    #[arg(value_parser = named)]
    range: Named,
    /// These servers; without any, as many as all ranges have
    #[arg(value_parser = host)]
    hosts: Vec<Named>,
    /// This number of copies, wherever there is room
    #[arg(long, value_name = "N", conflicts_with = "hosts")]
    count: Option<u16>,
}

/// Move everything away from a server, and show the progress until it is empty
///
/// The server gets nothing new from now on, also after a restart of the controller; `--cancel` ends that.
#[derive(Debug, Args)]
pub(super) struct DrainArguments {
    #[command(flatten)]
    which: Which,
    /// The server
    #[arg(value_parser = host)]
    host: Named,
    /// Let it get ranges and copies again
    #[arg(long)]
    cancel: bool,
    /// Return when it is decided
    #[arg(long, conflicts_with = "cancel")]
    no_wait: bool,
    #[command(flatten)]
    timeout: Timeout,
}

/// Restart a range that no server has any more, empty
///
/// Refused while a server serves it. All pointers into it are invalid afterwards.
#[derive(Debug, Args)]
pub(super) struct ResetArguments {
    #[command(flatten)]
    which: Which,
    /// The range
    #[arg(value_parser = named)]
    range: Named,
    /// The host that serves the empty range [default: its home, if that is there]
    #[arg(long, value_name = "HOST", value_parser = host)]
    at: Option<Named>,
    /// Reset the range even if servers that are away have a complete copy
    #[arg(long)]
    lose_copies: bool,
}

/// Move one range, or some of its pages, from the busiest server to a less busy one
#[derive(Debug, Args)]
pub(super) struct RebalanceArguments {
    #[command(flatten)]
    which: Which,
    /// Only show what would be moved
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn move_range(arguments: &MoveArguments) -> Ending {
    let MoveArguments { which, pages, wait, timeout, .. } = arguments;
    let mut controller = which.open_for([arguments.range, arguments.host])?;
    let (range, host) = (arguments.range.range(), arguments.host.host());
    if let Some(pages) = pages {
        return move_pages(&mut controller, (range, host), *pages, wait.then_some(*timeout));
    }
    controller.ask(&Request::Move { range, to: host }).map_err(refused)?;
    if !wait {
        return Ok(exit::FINE);
    }
    let began = Instant::now();
    loop {
        let status = status(&mut controller)?;
        let found = status.ranges.iter().find(|status| status.range == range);
        let Some(found) = found else { return Err(refused(format!("range {range:#x} is gone"))) };
        if found.home == host && found.is_served && found.goal.is_none() && found.moving.is_none() {
            say!("range {range:#x}: home is host {host:#x} after {:.2} s", began.elapsed().as_secs_f64());
            return Ok(exit::FINE);
        }
        if !goes_to(found, host) {
            return Err(refused(format!(
                "range {range:#x} does not go to host {host:#x} any more; `trellis controller events` says why"
            )));
        }
        timeout
            .check(began, || format!("range {range:#x} has not gone from host {:#x} to host {host:#x}", found.home))?;
        std::thread::sleep(LOOK);
    }
}

/// Moves pages; returns when that is decided, or done.
fn move_pages(
    controller: &mut Remote,
    (range, to): (RangeNumber, Host),
    pages: Pages,
    timeout: Option<Timeout>,
) -> Ending {
    let request = Request::MovePages { range, to, first: pages.first, pages: pages.count };
    let answer = controller.ask(&request).map_err(refused)?;
    let Answer::Pages(mut left) = answer else { return Err(other_version(answer)) };
    let Some(timeout) = timeout else { return Ok(exit::FINE) };
    let (began, last) = (Instant::now(), pages.first + (pages.count - 1));
    loop {
        let status = status(controller)?;
        left.retain(|run| !is_there(&status, range, to, *run));
        if left.is_empty() {
            let (first, seconds) = (pages.first, began.elapsed().as_secs_f64());
            say!("range {range:#x}: pages {first} to {last} are at host {to:#x} after {seconds:.2} s");
            return Ok(exit::FINE);
        }
        if let Some((first, pages)) = left.iter().find(|run| !is_going(&status, range, to, **run)) {
            return Err(refused(format!(
                "range {range:#x}: pages {first} to {} do not go to host {to:#x} any more; `trellis controller events` says why",
                first + pages - 1
            )));
        }
        timeout.check(began, || {
            format!("range {range:#x}: pages {} to {last} have not all gone to host {to:#x}", pages.first)
        })?;
        std::thread::sleep(LOOK);
    }
}

/// The part of a range that consists of these pages.
fn part_of(status: &Status, range: RangeNumber, (first, pages): (u64, u64)) -> Option<&RangeStatus> {
    let is_it = |part: &&RangeStatus| {
        part.within.is_some_and(|within| (within.range, within.first) == (range, first)) && part.pages == pages
    };
    status.ranges.iter().find(is_it)
}

/// Whether pages are to be split off a range.
fn split_of(status: &Status, range: RangeNumber, run: (u64, u64)) -> Option<&SplitRecord> {
    let range = status.ranges.iter().find(|status| status.range == range)?;
    range.splits.iter().find(|split| (split.first, split.pages) == run)
}

/// Whether pages are served at a host: as a part, or as pages of a range whose home it is.
fn is_there(status: &Status, range: RangeNumber, to: Host, run: (u64, u64)) -> bool {
    let whole = || {
        let of_range = status.ranges.iter().find(|status| status.range == range);
        of_range.filter(|_| split_of(status, range, run).is_none())
    };
    let of = part_of(status, range, run).map_or_else(whole, |part| Some(part).filter(|part| part.goal.is_none()));
    of.is_some_and(|of| of.home == to && of.is_served)
}

/// Whether pages are on their way to a host.
fn is_going(status: &Status, range: RangeNumber, to: Host, run: (u64, u64)) -> bool {
    let is_to_be_split = split_of(status, range, run).is_some_and(|split| split.to == to);
    is_to_be_split || part_of(status, range, run).is_some_and(|part| goes_to(part, to))
}

/// Whether a range or part is on its way to a host, or there.
fn goes_to(range: &RangeStatus, host: Host) -> bool {
    matches!(range.goal, Some(Goal::Merge)) || range.goal == Some(Goal::Host(host)) || range.home == host
}

pub(super) fn backups(arguments: &BackupsArguments) -> Ending {
    let BackupsArguments { which, range, hosts, count } = arguments;
    let directive = match count {
        Some(count) => Some(Directive::Count(*count)),
        None => Some(Directive::Hosts(hosts.iter().map(|host| host.host()).collect())).filter(|_| !hosts.is_empty()),
    };
    let named = hosts.iter().copied().chain([*range]);
    which.done(named, &Request::Backups { range: range.range(), directive })
}

pub(super) fn drain(arguments: &DrainArguments) -> Ending {
    let DrainArguments { which, cancel, no_wait, timeout, .. } = arguments;
    let mut controller = which.open_for([arguments.host])?;
    let host = arguments.host.host();
    controller.ask(&Request::Drain { host, is_drained: !cancel }).map_err(refused)?;
    if *cancel || *no_wait {
        return Ok(exit::FINE);
    }
    let began = Instant::now();
    let (mut shown, mut seen, mut since) = (None, None, began);
    loop {
        let status = status(&mut controller)?;
        let homes = status.ranges.iter().filter(|range| range.home == host).count();
        let copies = status.ranges.iter().filter(|range| range.backups.contains(&host)).count();
        if shown != Some((homes, copies)) {
            say!("host {host:#x}: home of {homes} ranges, copies of {copies}");
            shown = Some((homes, copies));
        }
        let places = Some(places(&status));
        if seen != places {
            (seen, since) = (places, Instant::now());
        }
        if since.elapsed() >= STUCK.time()
            && let Some(sentence) = hindrance(&status, host)
        {
            return Err(refused(sentence));
        }
        if (homes, copies) == (0, 0) {
            say!("host {host:#x}: nothing is left; it may be ended");
            return Ok(exit::FINE);
        }
        let is_drained = status.servers.iter().any(|server| server.host == host && server.is_drained);
        if !is_drained {
            return Err(refused(format!("host {host:#x} is not drained any more: somebody has cancelled that")));
        }
        timeout.check(began, || format!("host {host:#x} is home of {homes} ranges and has copies of {copies}"))?;
        std::thread::sleep(LOOK);
    }
}

/// The state of all ranges and the free room of all servers; it changes while anything moves.
fn places(status: &Status) -> (Vec<RangeStatus>, Vec<(Host, bool, u64)>) {
    let of_range = |range: &RangeStatus| RangeStatus { home_lease_left_ms: 0, requests_per_second: 0, ..range.clone() };
    let servers = status.servers.iter().map(|server| (server.host, server.is_there, server.spare_bytes));
    (status.ranges.iter().map(of_range).collect(), servers.collect())
}

/// Whether some server has room for a copy of a range, according to the servers' last reports.
fn is_room_for(status: &Status, range: &RangeStatus) -> bool {
    status.servers.iter().any(|server| {
        let has_it = range.home == server.host || range.backups.contains(&server.host);
        server.is_there && !server.is_drained && !has_it && server.spare_bytes >= range.pages * PAGE_BYTES
    })
}

/// Why nothing more moves away from a host: nothing of it is under way, and nothing can be.
fn hindrance(status: &Status, host: Host) -> Option<String> {
    let is_of_host = |range: &&RangeStatus| range.home == host || range.backups.contains(&host);
    // A home may still move to a server with a copy, even if no other server can get a copy.
    let is_stuck = |range: &RangeStatus| {
        let is_under_way = range.moving.is_some() || range.introduced.is_some();
        let is_settled = !is_under_way && range.backups.len() == range.complete.len();
        !range.is_served || range.lacks_room && is_settled && !is_room_for(status, range)
    };
    let left: Vec<&RangeStatus> = status.ranges.iter().filter(is_of_host).collect();
    if left.is_empty() || !left.iter().all(|range| is_stuck(range)) {
        return None;
    }
    let (served, gone): (Vec<&RangeStatus>, Vec<&RangeStatus>) = left.into_iter().partition(|range| range.is_served);
    let mut reasons = Vec::new();
    if !served.is_empty() {
        let bytes: u64 = served.iter().map(|range| range.pages * PAGE_BYTES).sum();
        reasons.push(format!(
            "no other server has room for {bytes} bytes of it; start one, or give one more --backup-memory: what can go then goes"
        ));
    }
    if !gone.is_empty() {
        let names: Vec<String> = gone.iter().map(|range| format!("{:#x}", range.range)).collect();
        reasons.push(format!(
            "nobody serves range {}, so it cannot go; `trellis controller events` says what to do",
            names.join(", ")
        ));
    }
    Some(format!(
        "host {host:#x}: {} (`trellis controller drain {host:#x} --cancel` ends the drain)",
        reasons.join("; ")
    ))
}

pub(super) fn reset(arguments: &ResetArguments) -> Ending {
    let ResetArguments { which, range, at, lose_copies } = arguments;
    let request = Request::Reset { range: range.range(), at: at.map(|at| at.host()), may_lose_copies: *lose_copies };
    which.done([*range].into_iter().chain(*at), &request)
}

pub(super) fn rebalance(arguments: &RebalanceArguments) -> Ending {
    let mut controller = arguments.which.open()?;
    let answer = controller.ask(&Request::Rebalance { only_says: arguments.dry_run }).map_err(refused)?;
    let Answer::Moves(moves) = answer else { return Err(other_version(answer)) };
    let status = status(&mut controller)?;
    let of = |range: RangeNumber| status.ranges.iter().find(|status| status.range == range);
    match moves.and_then(|moved| Some((of(moved.range)?, moved))) {
        Some((RangeStatus { range, home, requests_per_second, .. }, Moved { to, pages, .. })) => {
            let verb = if arguments.dry_run { "would go" } else { "goes" };
            let what = match pages {
                Some((first, pages)) => {
                    let last = first + pages - 1;
                    format!(
                        "pages {first} to {last}, which make most of them, {}",
                        if arguments.dry_run { "would go" } else { "go" }
                    )
                }
                None => format!("it {verb}"),
            };
            say!(
                "range {range:#x} has {requests_per_second} requests a second: {what} from host {home:#x} to host {to:#x}"
            );
        }
        None => say!(
            "nothing to move: no server has much more to do than another, or it is not known: something moves, or just did"
        ),
    }
    Ok(exit::FINE)
}

/// The status from the leading controller. While none is known to lead, it is asked again for [`LEADER`]: another one
/// takes over, or the same one leads again.
pub(super) fn status(controller: &mut Remote) -> Result<Status, Failure> {
    status_within(controller, LEADER.time())
}

fn status_within(controller: &mut Remote, limit: Duration) -> Result<Status, Failure> {
    let began = Instant::now();
    loop {
        match controller.ask(&Request::Status).map_err(refused)? {
            Answer::Status(status) if status.leads => return Ok(status),
            Answer::Status(Status { leader: Some(leader), .. }) => {
                return Err(refused(format!("this controller does not lead; ask the one of host {leader:#x}")));
            }
            Answer::Status(_) if began.elapsed() < limit => std::thread::sleep(LOOK),
            Answer::Status(_) => {
                return Err(refused(format!(
                    "no controller has led for {} s; look whether their records can be written, and ask again",
                    limit.as_secs_f64()
                )));
            }
            other => return Err(other_version(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trellis_controller::ranges::ServerStatus;
    use trellis_controller::records::WithinRecord;

    fn range(range: RangeNumber, home: Host, within: Option<WithinRecord>) -> RangeStatus {
        RangeStatus {
            range,
            home,
            incarnation: 1,
            backups: Vec::new(),
            complete: Vec::new(),
            moving: None,
            introduced: None,
            is_served: true,
            pages: if within.is_some() { 3 } else { 100 },
            home_lease_left_ms: 1,
            requests_per_second: 0,
            directive: None,
            lacks_room: false,
            within,
            goal: None,
            splits: Vec::new(),
        }
    }

    #[test]
    fn where_pages_are_is_what_the_status_says() {
        let run = (2, 3);
        let whole = Status { leads: true, ranges: vec![range(RangeNumber(7), Host(7), None)], ..Status::default() };
        let seen = |status: &Status, to: Host| {
            (is_there(status, RangeNumber(7), to, run), is_going(status, RangeNumber(7), to, run))
        };
        assert_eq!(
            [seen(&whole, Host(7)), seen(&whole, Host(8))],
            [(true, false), (false, false)],
            "they are the range's"
        );
        let mut waits = whole.clone();
        waits.ranges[0].splits = vec![SplitRecord { first: 2, pages: 3, to: Host(8) }];
        assert_eq!(
            [seen(&waits, Host(8)), seen(&waits, Host(9))],
            [(false, true), (false, false)],
            "they are to be split off"
        );
        let mut apart = waits.clone();
        apart.ranges.push(range(
            RangeNumber(0xf000),
            Host(7),
            Some(WithinRecord { range: RangeNumber(7), first: 2, since: 2 }),
        ));
        assert_eq!(seen(&apart, Host(8)), (false, true));
        apart.ranges[0].splits.clear();
        assert_eq!(seen(&apart, Host(8)), (false, false), "they were split off, and stay");
        apart.ranges[1].goal = Some(Goal::Host(Host(8)));
        assert_eq!(seen(&apart, Host(8)), (false, true));
        assert_eq!(seen(&apart, Host(9)), (false, false), "to the other one");
        (apart.ranges[1].goal, apart.ranges[1].home) = (None, Host(8));
        assert!(is_there(&apart, RangeNumber(7), Host(8), run));
        apart.ranges[1].is_served = false;
        assert_eq!(seen(&apart, Host(8)), (false, true), "in a moment");
        apart.ranges[1].goal = Some(Goal::Merge);
        assert_eq!(seen(&apart, Host(7)), (false, true), "they come home");
        assert!(
            !is_there(&apart, RangeNumber(7), Host(8), (2, 4)) && !is_going(&apart, RangeNumber(7), Host(8), (2, 4)),
            "other pages are others"
        );
    }

    fn left(number: RangeNumber, is_served: bool, lacks_room: bool, moving: Option<Host>) -> RangeStatus {
        let (backups, complete) = (vec![Host(0x1002)], vec![Host(0x1002)]);
        RangeStatus { backups, complete, is_served, lacks_room, moving, pages: 2, ..range(number, Host(0x1001), None) }
    }

    fn server(host: Host, spare_bytes: u64) -> ServerStatus {
        ServerStatus {
            host,
            is_there: true,
            heard_ms: Some(1),
            spare_bytes,
            homes: 0,
            backups: 0,
            requests_per_second: 0,
            is_drained: false,
        }
    }

    fn of(ranges: Vec<RangeStatus>) -> Option<String> {
        hindrance(&Status { ranges, ..Status::default() }, Host(0x1001))
    }

    #[test]
    fn a_drain_ends_with_everything_that_hinders_it() {
        assert_eq!(of(Vec::new()), None, "everything is gone");
        let without_room = left(RangeNumber(0x1001), true, true, None);
        let sentence = of(vec![without_room.clone()]).expect("there is no room");
        assert!(sentence.contains("no other server has room for 8192 bytes"), "{sentence}");
        let server = |is_there| ServerStatus { is_there, ..server(Host(0x1003), 2 * PAGE_BYTES) };
        let with = |server| Status { ranges: vec![without_room.clone()], servers: vec![server], ..Status::default() };
        assert_eq!(hindrance(&with(server(true)), Host(0x1001)), None, "there is room, and it will be found");
        assert!(hindrance(&with(server(false)), Host(0x1001)).is_some());
        let unserved = left(RangeNumber(0x1003), false, false, None);
        let sentence = of(vec![without_room.clone(), unserved]).expect("nothing is under way");
        assert!(
            sentence.contains("room for 8192 bytes") && sentence.contains("nobody serves range 0x1003"),
            "{sentence}"
        );
        assert_eq!(
            of(vec![without_room.clone(), left(RangeNumber(0x1004), true, true, Some(Host(0x1002)))]),
            None,
            "one goes"
        );
        assert_eq!(of(vec![without_room, left(RangeNumber(0x1004), true, false, None)]), None, "one will go");
    }

    #[test]
    fn a_cluster_that_nobody_leads_is_said() {
        let folder = trellis_testing::Folder::new();
        let path = folder.file("control");
        let listener = trellis_output::sockets::listen(&path, "controller", "--control").expect("a socket");
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("it is asked");
            drop(listener);
            let mut lines = trellis_output::json_lines::Lines::new(stream, Duration::from_secs(60)).expect("a socket");
            while let Ok(Some(Request::Status)) = lines.receive() {
                lines.send(&Answer::Status(Status::default())).expect("it is waited for");
            }
        });
        let mut controller = Remote::open(&path).expect("it listens");
        let sentence = status_within(&mut controller, Duration::from_millis(1)).expect_err("nobody leads").to_string();
        assert!(sentence.contains("no controller has led for 0.001 s; look whether"), "{sentence}");
    }

    #[test]
    fn who_waited_long_enough_hears_what_goes_on() {
        let (timeout, began) = (Timeout { limit: Duration::from_millis(1) }, Instant::now());
        std::thread::sleep(Duration::from_millis(2));
        let sentence =
            timeout.check(began, || "range 0x7 has not gone".to_owned()).expect_err("it is over").to_string();
        assert!(sentence.starts_with("range 0x7 has not gone after 0.001 s; it goes on"), "{sentence}");
        let long = Timeout { limit: time(BY_DEFAULT).expect("it is a time") };
        assert_eq!(long.limit, DONE.time());
        assert!(long.check(Instant::now(), || unreachable!("nobody asks")).is_ok());
    }
}
