//! `trellis lab up`: starts the init process, and returns when the lab is up.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use trellis_base::{Deadline, Limit};
use trellis_switch::lab::space;
use trellis_switch::switches::{self, Attach, KINDS};

use super::messages::{InitProcess, Order, Report, socket_name};
use super::{Which, failure};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::say;

/// How long the process of a lab may take to make it: longer than anything that it waits for itself.
pub(crate) const READY: Deadline = Deadline {
    who: "`trellis lab up`",
    waits_for: "the lab's process, to make the lab",
    limit: Limit::seconds(120),
    then: "the process and its hosts are ended; exit status 71",
    tested: "crates/trellis-cli/src/lab/up.rs a_process_that_reports_nothing_is_given_up",
};
/// The longest report of an init process.
const REPORT_BYTES_MAX: usize = 65_536;

/// Make a lab
#[derive(Debug, Args)]
pub(super) struct UpArguments {
    #[command(flatten)]
    which: Which,
    /// How many clients: c1, c2 and so on
    #[arg(long, value_name = "N", default_value_t = 3)]
    clients: u16,
    /// How many servers: s1, s2 and so on
    #[arg(long, value_name = "N", default_value_t = 3)]
    servers: u16,
    /// The switch that joins them: bpf (in the kernel), nft (in the kernel's packet filter, works without root), user
    /// (a thread, works without root, with every fault on purpose) or openflow (Open vSwitch); bpf where that is
    /// possible, else user. The default build has neither bpf nor openflow
    #[arg(long, value_name = "SWITCH")]
    switch: Option<String>,
    /// Where the switch bpf sees frames: tc or xdp; tc by default, as hosts of a lab are behind pairs of interfaces
    #[arg(long, value_name = "PLACE", default_value = Attach::Auto.name())]
    attach: Attach,
    /// The longest packet, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 9000)]
    mtu: u32,
    /// Let the switch grant a lease to the first host that asks, for this long
    #[arg(long, value_name = "MILLISECONDS")]
    lease: Option<u64>,
    /// Lose, repeat or delay packets on purpose: drop=1%,duplicate=1%,reorder=1%,delay=500us,jitter=200us,seed=7
    #[arg(long, value_name = "FAULTS", default_value = "")]
    faults: String,
    /// Room for redirects in the switch
    #[arg(long, value_name = "N", default_value_t = switches::REDIRECTS, value_parser = value_parser!(u32).range(1..))]
    redirects: u32,
    /// Start an ssh server in each host, for what starts programs on other machines; needs root and openssh-server
    #[arg(long, conflicts_with = "rootless")]
    ssh: bool,
    /// Start a cluster of Slurm on the hosts, each with room for four tasks; needs root, slurm-wlm and munge
    #[arg(long, conflicts_with = "rootless")]
    slurm: bool,
    /// Use no root rights, even if there are some: everything runs in a user namespace
    #[arg(long)]
    rootless: bool,
}

impl UpArguments {
    /// The order for the init process.
    fn order(&self) -> Result<Order, Failure> {
        let rootless = self.rootless || !space::is_root();
        let works = |kind: &&switches::SwitchKind| kind.is_built && (kind.is_rootless || !rootless);
        let best = KINDS.iter().find(works).map_or("user", |kind| kind.name);
        let switch = self.switch.clone().unwrap_or_else(|| best.to_owned());
        let kind = switches::kind(&switch).map_err(|error| failure(&error))?;
        if rootless && !kind.is_rootless {
            let names: Vec<&str> = KINDS.iter().filter(|kind| kind.is_rootless).map(|kind| kind.name).collect();
            let sentence = format!("the switch {switch} takes root; without, give --switch {}", names.join(" or "));
            return Err(Failure::new(exit::CONFIGURATION, sentence));
        }
        kind.built().map_err(|error| failure(&error))?;
        if self.slurm && rootless {
            return Err(Failure::new(exit::SYSTEM, "--slurm needs root: its daemons change their user"));
        }
        if self.ssh && rootless {
            return Err(Failure::new(exit::SYSTEM, "--ssh needs root: an ssh server changes its user"));
        }
        Ok(Order {
            name: self.which.name.clone(),
            socket: socket_name(&self.which.name),
            clients: self.clients,
            servers: self.servers,
            switch,
            mtu_bytes: self.mtu,
            redirects_max: self.redirects,
            attach: self.attach.name().to_owned(),
            lease_milliseconds: self.lease,
            faults: self.faults.clone(),
            rootless,
            has_ssh: self.ssh,
            has_slurm: self.slurm,
        })
    }
}

pub(super) fn up(arguments: &UpArguments) -> Ending {
    let begin = Instant::now();
    let order = arguments.order()?;
    let name = &order.name;
    if InitProcess::find(name)?.is_some() {
        let sentence = format!("there is a lab {name} already; end it with `trellis lab down --lab {name}`");
        return Err(Failure::new(exit::FAILED, sentence));
    }
    space::make(order.rootless).map_err(|error| failure(&error))?;
    match start(&order)? {
        Report::Ready => {}
        Report::Failed { code, sentence } => return Err(Failure::new(code, sentence)),
    }
    let Order { clients, servers, switch, .. } = &order;
    let seconds = begin.elapsed().as_secs_f64();
    say!("lab {name}: {clients} clients, {servers} servers, switch {switch}, up in {seconds:.2} s");
    Ok(exit::FINE)
}

/// Starts the init process as the first process of the new process namespace, and reads its report.
fn start(order: &Order) -> Result<Report, Failure> {
    let failed = |what: String| Failure::new(exit::SYSTEM, format!("cannot start the init process of the lab: {what}"));
    let text = serde_json::to_string(order).map_err(|error| failed(error.to_string()))?;
    let mut init = Command::new("/proc/self/exe")
        .args(["lab-init", &text])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // Signals of the terminal to the commands do not reach it.
        .process_group(0)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let stdout = init.stdout.take().expect("it was asked for");
    let Some(line) = report_within(stdout, READY.time()).map_err(|error| failed(error.to_string()))? else {
        // The hosts of the lab end with their first process. It is not waited for, because something in it hangs.
        let _ = init.kill();
        return Err(failed(format!("it did not report within {} s", READY.time().as_secs())));
    };
    match serde_json::from_str(&line) {
        Ok(Report::Ready) => Ok(Report::Ready),
        Ok(report) => {
            // It ends by itself; waiting for it removes the zombie.
            init.wait().map_err(|error| failed(error.to_string()))?;
            Ok(report)
        }
        Err(_) => {
            // It has closed its standard output, and ends.
            let status = init.wait().map_err(|error| failed(error.to_string()))?;
            Err(failed(format!("it ended with {status} and without a word")))
        }
    }
}

/// The first line that is written to this pipe; `None` if there is none in time. No thread can read it: a process that
/// made a new process namespace for its children starts none.
fn report_within(mut pipe: ChildStdout, time: Duration) -> std::io::Result<Option<String>> {
    let (deadline, mut report, mut part) = (Instant::now() + time, Vec::new(), [0; 4096]);
    while !report.contains(&b'\n') && report.len() < REPORT_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(None),
            Err(Errno::INTR) => continue,
            polled => drop(polled?),
        }
        match pipe.read(&mut part)? {
            0 => break,
            count => report.extend_from_slice(&part[..count]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&report).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_reports_nothing_is_given_up() {
        let start = |script: &str| {
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("every machine has a shell")
        };
        let mut silent = start("exec sleep 600");
        let stdout = silent.stdout.take().expect("it was asked for");
        assert_eq!(report_within(stdout, Duration::from_millis(10)).expect("a pipe"), None);
        silent.kill().and_then(|()| silent.wait()).expect("it runs");
        let mut reports = start("echo ready");
        let stdout = reports.stdout.take().expect("it was asked for");
        assert_eq!(report_within(stdout, Duration::from_secs(60)).expect("a pipe").as_deref(), Some("ready\n"));
        reports.wait().expect("it ends");
    }
}
