//! `trellis controller run`: runs a controller in this process.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use trellis::remote::{HostPrefix, PORT};
use trellis_controller::control::default_socket;
use trellis_controller::ranges::Locality;
use trellis_controller::{Controller, ControllerError, Options};
use trellis_fabric_protocol::lease::Host;
use trellis_store::StoreError;
use trellis_switch::control::{At, Remote};

use super::{Named, host, prefix};
use trellis_command::ending::{Ends, say_ready};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::announce;

/// Run a controller, until SIGINT or SIGTERM
///
/// It prints one line when servers may report, and one for each event that matters to an operator. It may be killed and
/// restarted at any time: its decisions are in its records, and homes go on for the term of their home lease. Of
/// several controllers one leads. After SIGTERM to it another one leads at once; if it is killed, the others wait for
/// its term to end.
#[derive(Debug, Args)]
pub(super) struct RunArguments {
    /// The addresses of this host, for example fd12:3456:c8::/48
    #[arg(long, value_name = "PREFIX", env = "TRELLIS_PREFIX", value_parser = prefix)]
    prefix: HostPrefix,
    /// Where records are kept, for example embedded-durable:/var/lib/trellis/records; several controllers, of which
    /// one leads, need a store that all can open (redis://, etcd://)
    #[arg(long, value_name = "URL")]
    records: String,
    /// How many servers besides its home have a copy of each range, if enough servers have room
    #[arg(long, value_name = "N", default_value_t = 1)]
    backups: u16,
    /// The path of the socket of the switch that is told where ranges are; without it, routes are managed elsewhere
    #[arg(long, value_name = "SOCKET", env = "TRELLIS_SWITCH")]
    switch: Option<String>,
    /// How long a lease of a page lasts unless it is renewed; the same at all servers
    #[arg(long, value_name = "TIME", value_parser = trellis_command::time::time, default_value = "2s")]
    lease_term: Duration,
    /// How long a home answers without a message from the controller; the same at all servers
    #[arg(long, value_name = "TIME", value_parser = trellis_command::time::time, default_value = "500ms")]
    home_lease: Duration,
    /// How long a leading controller may be silent before another one takes over
    #[arg(long, value_name = "TIME", value_parser = trellis_command::time::time, default_value = "2s")]
    leader_term: Duration,
    /// Move ranges and pages automatically from busy servers to others, and pages to the hosts that request them
    #[arg(long)]
    rebalance: bool,
    /// Hosts that are close to each other, as 0x1,0x2,0x1001; once for each group. With --rebalance, pages move to a
    /// server close to the host that requests most of them
    #[arg(long, value_name = "HOSTS", value_parser = group, requires = "rebalance")]
    locality: Vec<Group>,
    /// Let another server also answer READs of a page that is read this often in a second; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    hot_pages: u64,
    /// UDP port, the same at all servers
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// The socket for operators' commands [default: by this host's number, in the runtime directory]
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

/// Hosts that are close to each other.
#[derive(Clone, Debug)]
struct Group(Vec<Named>);

fn group(text: &str) -> Result<Group, String> {
    text.split(',').map(host).collect::<Result<Vec<Named>, String>>().map(Group)
}

pub(super) fn run(arguments: &RunArguments) -> Ending {
    let RunArguments { prefix, backups, lease_term, home_lease, leader_term, rebalance, hot_pages, port, .. } =
        *arguments;
    if leader_term < Duration::from_millis(100) {
        let sentence = format!("a leader's term of {leader_term:?} is not possible; give 100 ms or more");
        return Err(Failure::new(exit::CONFIGURATION, sentence));
    }
    let mut groups: Vec<Vec<Host>> = Vec::new();
    for Group(hosts) in &arguments.locality {
        let wrong = hosts.iter().try_for_each(|host| host.is_of(prefix.cluster));
        wrong.map_err(|sentence| Failure::new(exit::CONFIGURATION, format!("--locality: {sentence}")))?;
        groups.push(hosts.iter().map(|host| host.host()).collect());
    }
    let locality = Locality::new(groups)
        .map_err(|sentence| Failure::new(exit::CONFIGURATION, format!("--locality: {sentence}")))?;
    // Before any thread starts: no thread may be interrupted by the signals.
    let ends = Ends::listen()?;
    let records = trellis_store::open(&arguments.records).map_err(|error| store_failure(&error))?;
    if !records.capabilities().durable {
        trellis_output::lines::complain(format_args!(
            "what store {} keeps may be lost when that ends; homes are then unknown",
            records.name()
        ));
    }
    let switch = arguments.switch.as_ref().map(|at| open_switch(at, prefix)).transpose()?;
    let routes = switch.as_ref().map_or_else(
        || "routes are somebody else's business".to_owned(),
        |(switch, _)| format!("routes go to the switch {}", switch.description().name),
    );
    let control = arguments.control.clone().unwrap_or_else(|| default_socket(prefix));
    let (name, shown) = (records.name().to_owned(), control.display().to_string());
    let options = Options {
        prefix,
        port,
        records,
        switch,
        backups,
        lease_term,
        home_lease,
        leader_term,
        rebalances: rebalance,
        hot_from: hot_pages,
        locality,
        control,
    };
    let mut controller = ends.begin(|| {
        let controller = Controller::open(options).map_err(|error| failure(&error))?;
        let stop = controller.stop();
        Ok::<_, Failure>((controller, move || stop.stop()))
    })?;
    announce(format_args!("controller {prefix} at port {port}, records in {name}, {routes}, control {shown}"));
    say_ready();
    let ended = controller.run(&mut |event| announce(format_args!("{event}")));
    ended.map_err(|error| Failure::new(exit::SYSTEM, format!("the socket at port {port} fails: {error}")))?;
    Ok(exit::FINE)
}

fn open_switch(at: &str, prefix: HostPrefix) -> Result<(Remote, Option<String>), Failure> {
    let place = At::parse(at).map_err(|sentence| Failure::new(exit::CONFIGURATION, sentence))?;
    let path = matches!(place, At::Path(_)).then(|| at.to_owned());
    let switch = Remote::open(place).map_err(|error| Failure::new(exit::FAILED, error.to_string()))?;
    let (theirs, ours) = (switch.description().cluster, prefix.cluster.number());
    if theirs != ours {
        let sentence = format!(
            "the switch at {at} joins the cluster {theirs:06x}, and {prefix} is of {ours:06x}; give the switch of this cluster"
        );
        return Err(Failure::new(exit::CONFIGURATION, sentence));
    }
    Ok((switch, path))
}

fn store_failure(error: &StoreError) -> Failure {
    let code = match error {
        StoreError::Address { .. } | StoreError::Unsupported { .. } => exit::CONFIGURATION,
        _ => exit::FAILED,
    };
    Failure::new(code, format!("--records: {error}"))
}

fn failure(error: &ControllerError) -> Failure {
    let code = if matches!(error, ControllerError::Setting(_)) { exit::CONFIGURATION } else { exit::SYSTEM };
    Failure::new(code, error.to_string())
}
