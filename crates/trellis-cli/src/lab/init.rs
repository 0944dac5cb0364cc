//! The init process of a lab: the first of its process namespace, so that the whole lab ends with it.
//!
//! It answers one request at a time. It must never end by itself once the lab is up.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use trellis_output::json_lines::Lines;
use trellis_output::refusals::Refusals;
use trellis_output::sockets;
use trellis_output::sockets::clients;
use trellis_switch::lab::{Host, Lab, Plan, space};
use trellis_switch::{Counters, Faults, SwitchError};

use super::failure;
use super::messages::{self, Answer, Description, HostDescription, Order, Report, Request, TIMEOUT};
use super::slurm::Slurm;
use super::ssh::Ssh;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::say;

/// The lab, and the settings that a restarted switch gets again.
struct LabState {
    lab: Lab,
    faults: String,
    lease: Option<Duration>,
    rootless: bool,
    refusals: Refusals,
    ssh: Option<Ssh>,
    slurm: Option<Slurm>,
}

/// Runs the hidden subcommand.
pub(crate) fn run(order: &str) -> Ending {
    let (report, state) = match start(order) {
        Ok(state) => (Report::Ready, Ok(state)),
        Err(failure) => (Report::Failed { code: failure.code, sentence: failure.sentence.clone() }, Err(failure)),
    };
    let line = serde_json::to_string(&report).map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))?;
    let mut stdout = std::io::stdout().lock();
    // The command that asked may have ended; then nobody wants the lab.
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))?;
    let (mut state, listener) = state?;
    // From here on this process waits for no child, but inherits orphans of the lab.
    space::forget_children();
    for stream in clients(&listener, "lab", None) {
        // A client that makes no valid request gets no answer, and the next one is served.
        let _ = serve(&mut state, &stream);
    }
    Ok(exit::FINE)
}

fn start(order: &str) -> Result<(LabState, UnixListener), Failure> {
    let order: Order = serde_json::from_str(order)
        .map_err(|error| Failure::new(exit::USAGE, format!("this is not an order for an init process: {error}")))?;
    let listener = UnixListener::bind_addr(&messages::address(&order.socket)?).map_err(|error| {
        Failure::new(exit::SYSTEM, format!("cannot take the name of the lab {}: {error}", order.name))
    })?;
    let plan = Plan {
        name: order.name,
        clients: order.clients,
        servers: order.servers,
        switch: order.switch,
        mtu_bytes: order.mtu_bytes,
        redirects_max: order.redirects_max,
        attach: order.attach.parse().map_err(|sentence: String| Failure::new(exit::CONFIGURATION, sentence))?,
    };
    // Checked before anything is made.
    faults_of(&order.faults)?;
    // Hosts keep the folder in which it is.
    let mut lab = Lab::up(&plan).map_err(|error| failure(&error))?;
    // It keeps no folder in use, and every host has this one.
    std::env::set_current_dir("/")
        .map_err(|error| Failure::new(exit::SYSTEM, format!("cannot go to the root folder: {error}")))?;
    lab.begin(first_process).map_err(|error| failure(&error))?;
    let lease = order.lease_milliseconds.map(Duration::from_millis);
    let (faults, rootless) = (order.faults, order.rootless);
    let mut state =
        LabState { lab, faults, lease, rootless, refusals: Refusals::new("lab", None), ssh: None, slurm: None };
    prepare(&state)?;
    if order.has_ssh {
        state.ssh = Some(Ssh::start(&state.lab)?);
    }
    if order.has_slurm {
        state.slurm = Some(Slurm::start(&state.lab)?);
    }
    Ok((state, listener))
}

/// The command of a host's first process.
fn first_process() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("lab-host");
    command
}

/// Runs the hidden subcommand of a host's first process, which ends with the lab. It must never end by itself.
pub(crate) fn run_host() -> Ending {
    space::begin();
    say!("{}", json!(Report::Ready));
    loop {
        // Ends when the lab ends, which kills it.
        std::thread::park();
    }
}

/// Configures a new switch for the lab.
fn prepare(state: &LabState) -> Result<(), Failure> {
    let switch = state.lab.running().map_err(|error| failure(&error))?;
    // A switch that cannot grant leases gets no request about them.
    if state.lease.is_some() {
        switch.set_leases(state.lease).map_err(|error| failure(&error))?;
    }
    switch.set_faults(&faults_of(&state.faults)?).map_err(|error| failure(&error))
}

fn faults_of(text: &str) -> Result<Faults, Failure> {
    text.parse().map_err(|sentence: String| Failure::new(exit::CONFIGURATION, sentence))
}

fn serve(state: &mut LabState, stream: &UnixStream) -> std::io::Result<()> {
    let user = sockets::peer(stream)?.1;
    let mut lines = Lines::new(stream.try_clone()?, TIMEOUT.time())?.limiting_silence(TIMEOUT.time());
    if user != sockets::own_user() {
        let sentence = format!("user {user} may not use this lab; ask as its owner, user {}", sockets::own_user());
        return state
            .refusals
            .refuse(&mut lines, sentence, |sentence| Answer::Refused { code: exit::SYSTEM, sentence });
    }
    let refusal = |sentence| Answer::Refused { code: exit::USAGE, sentence };
    let Some(request) = state.refusals.receive(&mut lines, refusal)? else { return Ok(()) };
    if matches!(request, Request::Switch) {
        lines.send(&Answer::Done)?;
        return state.lab.control().serve(stream.try_clone()?);
    }
    let answer = answer(state, request)
        .unwrap_or_else(|failure| Answer::Refused { code: failure.code, sentence: failure.sentence });
    lines.send(&answer)
}

fn answer(state: &mut LabState, request: Request) -> Result<Answer, Failure> {
    match request {
        Request::Describe => describe(state).map(Answer::Lab).map_err(|error| failure(&error)),
        Request::Partition(parts) => {
            state.lab.partition(&parts).map_err(|error| failure(&error))?;
            Ok(Answer::Done)
        }
        Request::Switch => Ok(Answer::Done),
        Request::Restart => {
            // A switch may consist of programs that are started and waited for.
            space::with_children(|| state.lab.restart_switch()).map_err(|error| failure(&error))?;
            prepare(state)?;
            Ok(Answer::Done)
        }
        Request::Faults(text) => {
            let switch = state.lab.running().map_err(|error| failure(&error))?;
            switch.set_faults(&faults_of(&text)?).map_err(|error| failure(&error))?;
            state.faults = text;
            Ok(Answer::Done)
        }
    }
}

fn describe(state: &LabState) -> Result<Description, SwitchError> {
    let lab = &state.lab;
    Ok(Description {
        name: lab.plan().name.clone(),
        switch: lab.plan().switch.clone(),
        cluster: lab.cluster().everything(),
        rootless: state.rootless,
        mtu_bytes: lab.plan().mtu_bytes,
        faults: state.faults.clone(),
        is_without_switch: lab.running().is_err(),
        refused: state.refusals.count() + lab.control().refused(),
        ssh: state.ssh.as_ref().map(|ssh| (ssh.command(), ssh.folder().to_owned())),
        slurm: state.slurm.as_ref().map(Slurm::configuration),
        hosts: lab.hosts().iter().map(|host| describe_host(lab, host)).collect::<Result<_, _>>()?,
    })
}

fn describe_host(lab: &Lab, host: &Host) -> Result<HostDescription, SwitchError> {
    let plan = host.plan();
    // A lab without a switch is described, too: the command that ends it needs the description.
    let counters = lab.running().map_or(Ok(Counters::default()), |switch| switch.counters(plan.port))?;
    Ok(HostDescription {
        name: plan.name.clone(),
        role: plan.role.word().to_owned(),
        number: plan.number,
        port: plan.port,
        prefix: plan.prefix.to_string(),
        address: plan.address.to_string(),
        side: host.side(),
        descriptors: host.descriptors().expect("the hosts of this lab have begun"),
        counters: counters.by_name(),
    })
}
