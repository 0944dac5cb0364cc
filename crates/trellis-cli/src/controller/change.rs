//! What a controller is told.

use std::time::{Duration, Instant};

use clap::Args;
use trellis_controller::control::{Answer, Remote, Request};
use trellis_controller::ranges::{RangeStatus, Status};
use trellis_controller::records::Wish;

use super::{Which, number, other_version, refused};
use crate::exit::{self, Ending, Failure};

/// How often it is looked how far something is.
const LOOK: Duration = Duration::from_millis(100);

/// Let a range go to a host; clients go on meanwhile
///
/// The host gets everything first; then the range is handed over within milliseconds, with all leases. Returns when that is
/// decided; `--wait` when it is done.
#[derive(Debug, Args)]
pub(super) struct MoveArguments {
    #[command(flatten)]
    which: Which,
    /// The range
    #[arg(value_parser = number)]
    range: u16,
    /// The host
    #[arg(value_parser = number)]
    host: u16,
    /// Return when the host is home
    #[arg(long)]
    wait: bool,
}

/// Say which servers have a copy of a range
#[derive(Debug, Args)]
pub(super) struct BackupsArguments {
    #[command(flatten)]
    which: Which,
    /// The range
    #[arg(value_parser = number)]
    range: u16,
    /// These servers; none for as many as all ranges have
    #[arg(value_parser = number)]
    hosts: Vec<u16>,
    /// So many, wherever there is room
    #[arg(long, value_name = "N", conflicts_with = "hosts")]
    count: Option<u16>,
}

/// Let everything go away from a server, and show how far that is until it is empty
///
/// Nothing new goes there from now on, also after the controller has started again; `--cancel` ends that.
#[derive(Debug, Args)]
pub(super) struct DrainArguments {
    #[command(flatten)]
    which: Which,
    /// The server
    #[arg(value_parser = number)]
    host: u16,
    /// Let it have ranges and copies again
    #[arg(long)]
    cancel: bool,
    /// Return when it is decided
    #[arg(long, conflicts_with = "cancel")]
    no_wait: bool,
}

/// Let a range begin anew, empty, that nobody has any more
///
/// Refused while somebody serves it. All pointers into it are invalid afterwards.
#[derive(Debug, Args)]
pub(super) struct ResetArguments {
    #[command(flatten)]
    which: Which,
    /// The range
    #[arg(value_parser = number)]
    range: u16,
    /// At this host [default: at its home, when that is there]
    #[arg(long, value_name = "HOST", value_parser = number)]
    at: Option<u16>,
    /// Also if servers that are gone have all of it
    #[arg(long)]
    lose_copies: bool,
}

/// Let one range go from the busiest server to one that has less to do
#[derive(Debug, Args)]
pub(super) struct RebalanceArguments {
    #[command(flatten)]
    which: Which,
    /// Only say which
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn move_range(arguments: &MoveArguments) -> Ending {
    let MoveArguments { which, range, host, wait } = arguments;
    let mut controller = which.open()?;
    controller.ask(&Request::Move { range: *range, to: *host }).map_err(refused)?;
    if !wait {
        return Ok(exit::FINE);
    }
    let began = Instant::now();
    let mut goes = true;
    loop {
        let status = status(&mut controller)?;
        let found = status.ranges.iter().find(|status| status.range == *range);
        let Some(found) = found else { return Err(refused(format!("range {range:#x} is gone"))) };
        if found.home == *host && found.is_served {
            println!("range {range:#x}: home is host {host:#x} after {:.2} s", began.elapsed().as_secs_f64());
            return Ok(exit::FINE);
        }
        let goes_now = found.moving == Some(*host) || found.introduced == Some(*host) || found.home == *host;
        // Between two steps neither may be said for a moment.
        if !goes && !goes_now {
            return Err(refused(format!(
                "range {range:#x} does not go to host {host:#x} any more; `trellis controller events` says why"
            )));
        }
        goes = goes_now;
        std::thread::sleep(LOOK);
    }
}

pub(super) fn backups(arguments: &BackupsArguments) -> Ending {
    let BackupsArguments { which, range, hosts, count } = arguments;
    let wish = match count {
        Some(count) => Some(Wish::Count(*count)),
        None => Some(Wish::Hosts(hosts.clone())).filter(|_| !hosts.is_empty()),
    };
    which.done(&Request::Backups { range: *range, wish })
}

pub(super) fn drain(arguments: &DrainArguments) -> Ending {
    let DrainArguments { which, host, cancel, no_wait } = arguments;
    let mut controller = which.open()?;
    controller.ask(&Request::Drain { host: *host, is_drained: !cancel }).map_err(refused)?;
    if *cancel || *no_wait {
        return Ok(exit::FINE);
    }
    let mut shown = None;
    loop {
        let status = status(&mut controller)?;
        let homes = status.ranges.iter().filter(|range| range.home == *host).count();
        let copies = status.ranges.iter().filter(|range| range.backups.contains(host)).count();
        if shown != Some((homes, copies)) {
            println!("host {host:#x}: home of {homes} ranges, copies of {copies}");
            shown = Some((homes, copies));
        }
        if (homes, copies) == (0, 0) {
            println!("host {host:#x}: nothing is left; it may be ended");
            return Ok(exit::FINE);
        }
        let is_drained = status.servers.iter().any(|server| server.host == *host && server.is_drained);
        if !is_drained {
            return Err(refused(format!("host {host:#x} is not drained any more: somebody has cancelled that")));
        }
        std::thread::sleep(LOOK);
    }
}

pub(super) fn reset(arguments: &ResetArguments) -> Ending {
    let ResetArguments { which, range, at, lose_copies } = arguments;
    which.done(&Request::Reset { range: *range, at: *at, may_lose_copies: *lose_copies })
}

pub(super) fn rebalance(arguments: &RebalanceArguments) -> Ending {
    let mut controller = arguments.which.open()?;
    let answer = controller.ask(&Request::Rebalance { only_says: arguments.dry_run }).map_err(refused)?;
    let Answer::Moves(moves) = answer else { return Err(other_version(answer)) };
    let status = status(&mut controller)?;
    let of = |range: u16| status.ranges.iter().find(|status| status.range == range);
    match moves.and_then(|(range, to)| Some((of(range)?, to))) {
        Some((RangeStatus { range, home, requests_per_second, .. }, to)) => {
            let verb = if arguments.dry_run { "would go" } else { "goes" };
            println!(
                "range {range:#x} with {requests_per_second} requests a second {verb} from host {home:#x} to host {to:#x}"
            );
        }
        None => println!("nothing to move: no server has much more to do than another, or something moves already"),
    }
    Ok(exit::FINE)
}

pub(super) fn status(controller: &mut Remote) -> Result<Status, Failure> {
    match controller.ask(&Request::Status).map_err(refused)? {
        Answer::Status(status) if status.leads => Ok(status),
        Answer::Status(status) => Err(refused(match status.leader {
            Some(leader) => format!("this controller does not lead; ask the one of host {leader:#x}"),
            None => "this controller does not lead yet; ask again in a moment".to_owned(),
        })),
        other => Err(other_version(other)),
    }
}
