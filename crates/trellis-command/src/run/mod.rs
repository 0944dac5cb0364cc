//! `trellis run`: starts the nodes of a cluster on this host, as `mpirun` would, and ends them all together.
//!
//! The launcher makes the listening sockets, the secret and the status pages itself and passes them on as open
//! descriptors: no port is guessed, no secret is in a process list, no file is left behind.

mod binding;
mod cause;
mod child;
mod descendants;
mod guard;
pub mod hosts;
mod joining;
#[cfg_attr(not(feature = "remote"), path = "no_memory.rs")]
mod memory;
mod output;
mod preload;
mod races;
pub(crate) mod requests;
mod review;
mod signals;
mod status;
pub mod stdin;
mod summary;
pub(crate) mod supervise;
mod threads;

pub use joining::{JoinedNode, ask_to_leave, joined_nodes};
pub use threads::{ThreadsArguments, threads};

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::thread::CpuSet;
use trellis::config::{self, Config, Ports, Sources};
use trellis::launch;

use crate::exit::{self, Ending, Failure};
use crate::terminal;
use crate::time::time;
pub use binding::BindTo;
use cause::Seen;
use child::{NodeCommand, NodeOutput, Running};
use guard::Guard;
use hosts::{Assignment, Common, Fleet, Hosts, HostsArguments, PlacingArguments, network};
use joining::{Joining, SecretFile};
use output::{Destination, LineCutter};
use preload::Preload;
use requests::Requests;
use review::Review;
use signals::Signals;
use status::NodeStatus;
use stdin::InputMode;
use summary::Summary;
use supervise::{Finished, Supervisor};

/// Where the nodes' output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputMode {
    /// Every line begins with its node: `[0] …`
    Prefix,
    /// The nodes write straight to the launcher's own output
    Raw,
    /// Each node writes to `node-<i>.out` and `node-<i>.err`
    Files,
    /// Like prefix, and into the same files as well
    Tee,
}

const EXAMPLES: &str = "\
Examples:
  trellis run -n 4 ./psort --input numbers.bin --output sorted.bin
  trellis run --hosts a,b:2,user@c ./program
  salloc -N 4 -n 8 trellis run ./program
  trellis run -n 2 --set region_bytes=1GiB --stats -- ./program --verbose
  trellis run -n 4 --home memory-server --cache 64MiB ./psort --input in.bin --output out.bin
  trellis run -n 3 --output files --output-directory logs ./program part-{node}-of-{nodes}
  trellis run -n 2 --advise --phase solve ./program
  trellis run -n 2 --record record ./program && trellis report record
  trellis run --hosts a,b:2 --dry-run ./program
  trellis run -n 2 --json summary.json ./program; jq .seconds summary.json

`{node}` and `{nodes}` in the program's arguments become the node's number and the number of nodes.

With --hosts the nodes run on other machines, as node 1 of host b in `[1 b] …`. `ssh` must reach them without a question, and \
the same version of trellis must be there; a host that is this machine needs no ssh. Without --copy the program is \
started in the same directory there, with the variables of a login and of -x; the secret travels through ssh.

A cluster that others may join, and a process that joins it; its output has the prefix `[+0]`:
  trellis run -n 3 --joiners-max 2 ./program
  trellis run --join 127.0.0.1:4711 --secret-file /run/user/1000/trellis-4242.secret ./program

Nodes that other tools start on each machine, and that meet at a port of one of them:
  trellis run --rendezvous first:7000 --nodes 8 --nodes-per-host 2 --secret-file secret ./program

In an allocation of Slurm, PBS or LSF the nodes run on its hosts, in its slots, without any option.

With --home memory-server the region lies at memory servers (`trellis serve`). Where none is named the run starts one for \
itself and, unless this machine takes the server's addresses as its own, a network of its own, in which the program sees no \
other machine.

Standard input goes to node 0, unless --input says otherwise; the other nodes read from /dev/null.

Exit codes: 0 every node ended well; the failed node's own status, or 128 + its signal; 70 cluster failure, or a lost host; \
71 a host cannot take part, or the system refuses something; 74 a file cannot be read or written; 78 configuration \
refused; 124 the time of --timeout is over; 126 program cannot be executed; 127 program not found; \
2 wrong command line.";

/// Start the nodes of a cluster, on this host or on others
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArguments {
    /// Number of nodes, 1 if nothing else says it; with --join, of processes that join; with --rendezvous, of all that meet
    #[arg(short = 'n', long = "nodes", value_name = "N")]
    nodes: Option<usize>,
    #[command(flatten)]
    hosts: HostsArguments,
    #[command(flatten)]
    placing: PlacingArguments,
    /// Give the nodes this variable, with the value that it has here if none is given; may be repeated
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]")]
    variables: Vec<String>,
    /// Give the nodes the variables of this file, in lines of NAME=VALUE
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,
    /// Start the program in this directory
    #[arg(long, value_name = "DIRECTORY")]
    chdir: Option<PathBuf>,
    /// Configuration file: trellis.toml or libivy's JSON
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override one configuration key for every node; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where the nodes' output goes; the default is prefix
    #[arg(long, value_enum, value_name = "MODE")]
    output: Option<OutputMode>,
    /// The directory for the files of `--output files` and `--output tee`
    #[arg(long, value_name = "DIRECTORY", default_value = "trellis-output")]
    output_directory: PathBuf,
    /// Show the output of these nodes only, for example 0,4-7; files get that of all
    #[arg(long, value_name = "NODES", value_parser = |text: &str| node_numbers(text).map(Nodes))]
    show: Option<Nodes>,
    /// Who gets standard input
    #[arg(long, value_enum, default_value_t = InputMode::First, value_name = "MODE")]
    input: InputMode,
    /// Write each node's record into this directory; `trellis report DIRECTORY` draws it
    #[arg(long, value_name = "DIRECTORY")]
    record: Option<PathBuf>,
    /// Print each node's counters on standard error at the end, and advice
    #[arg(long)]
    stats: bool,
    /// Print on standard error at the end which three settings or changes would have gained most
    #[arg(long)]
    advise: bool,
    /// Count and advise only for the phase to which the program gave this name
    #[arg(long, value_name = "NAME")]
    phase: Option<String>,
    /// Where the region lies: manager, interleaved, first-touch, migrating, memory-server
    #[arg(long, value_name = "HOME")]
    home: Option<String>,
    /// Memory servers that hold the region, as prefixes; with --home memory-server and none named, the run starts its
    /// own
    #[arg(long, value_name = "PREFIX[,PREFIX…]")]
    memory_server: Option<String>,
    /// Memory of a node for pages of memory servers, for example 64MiB
    #[arg(long, value_name = "SIZE")]
    cache: Option<String>,
    /// End the run after this time, for example 10min, and say what each node did
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Check the options, the configuration and the program, print what would be started where, and start nothing
    #[arg(long)]
    dry_run: bool,
    /// Write a summary into this file at the end, as a JSON object: status, time, and each node's end and counters; `-` is
    /// standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print what is started where, and how each node ended
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Print no notice of the launcher and no reason of a failure; the exit status says how the run ended
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    quiet: bool,
    /// How many processes may join while the cluster runs; prints the command for it
    #[arg(long, value_name = "N", conflicts_with = "join")]
    joiners_max: Option<usize>,
    /// Join the running cluster that has a node at this address, instead of starting one
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["hosts", "hostfile"])]
    join: Option<String>,
    /// Start nodes that meet the others of their job at this address, a port of one of their hosts; any scheduler can start
    /// such nodes
    #[arg(long, value_name = "HOST:PORT", requires = "nodes", conflicts_with_all = ["hosts", "hostfile", "join", "advertise"])]
    #[arg(conflicts_with_all = ["joiners_max", "ssh", "copy"], help_heading = "Rendezvous")]
    rendezvous: Option<String>,
    /// The name of the job, so that nodes of another job are refused
    #[arg(long, value_name = "NAME", requires = "rendezvous", help_heading = "Rendezvous")]
    job: Option<String>,
    /// The file with the cluster's secret (mode 0600); without it a cluster gets a new secret
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Numbers of nodes.
#[derive(Debug, Clone)]
pub struct Nodes(Vec<Range<usize>>);

/// How the nodes' output is treated.
pub enum Output {
    /// Every line begins with its node.
    Prefix,
    /// The nodes write to the output of this process.
    Raw,
    /// Each node writes to files in this folder.
    Files(PathBuf),
    /// Every line begins with its node, and the bytes go to files in this folder, too.
    Tee(PathBuf),
    /// Standard output is captured for the command itself; standard error is prefixed.
    Captured,
}

/// The description of a run.
pub struct Plan {
    /// The number of nodes.
    pub nodes: usize,
    /// The program that each node runs.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// A file with the configuration.
    pub config: Option<PathBuf>,
    /// Configuration keys and values, passed in the environment.
    pub settings: Vec<(String, String)>,
    /// Further variables of the nodes.
    pub variables: Vec<(String, OsString)>,
    /// The hosts of the nodes, if they are not this one.
    pub hosts: Option<Hosts>,
    /// The working directory of the nodes, if it is not that of this process.
    pub directory: Option<PathBuf>,
    /// The processors to which each node is bound.
    pub bind_to: BindTo,
    /// The treatment of the output of the nodes.
    pub output: Output,
    /// Descriptors of this process that each node keeps with the same numbers; one list per node, missing lists are
    /// empty.
    pub inherited: Vec<Vec<RawFd>>,
    /// The nodes whose output is shown; all of them, if it is `None`.
    pub shown: Option<Nodes>,
    /// Who gets this process's standard input.
    pub input: InputMode,
    /// The time after which the nodes are ended.
    pub time_max: Option<Duration>,
    /// Whether the launcher keeps its notices to itself.
    pub is_quiet: bool,
    /// The number of processors that a program with threads on several nodes sees. For the program, the nodes are one
    /// process.
    pub processors: Option<u32>,
}

impl Plan {
    /// The search path of the nodes' program, if they have a variable for it.
    fn search_path(&self) -> Option<&OsStr> {
        self.variables.iter().rfind(|(name, _)| name == "PATH").map(|(_, path)| path.as_os_str())
    }

    fn check_count(&self) -> Result<(), Failure> {
        if (1..=config::NODES_MAX).contains(&self.nodes) {
            return Ok(());
        }
        let sentence = format!("-n {}: the number of nodes must be 1 to {}", self.nodes, config::NODES_MAX);
        Err(Failure::new(exit::USAGE, sentence))
    }

    fn shows(&self, node: usize) -> bool {
        self.shown.as_ref().is_none_or(|Nodes(shown)| shown.iter().any(|range| range.contains(&node)))
    }
}

/// The results of a run.
pub struct Made {
    /// Standard output of each node, with [`Output::Captured`].
    pub stdout: Vec<Vec<u8>>,
    /// The last counters in each node's status page.
    pub counters: Vec<Option<trellis::Counters>>,
    /// The directory in which the nodes wrote their records, if they did.
    pub record: Option<PathBuf>,
    /// How each node ended.
    seen: Vec<Seen>,
    /// The exit code of the run, or the sentence about its failure.
    pub ending: Ending,
}

/// Runs the `run` subcommand.
pub fn run(arguments: RunArguments) -> Ending {
    run_plan(arguments, |_| Ok(()))
}

/// Carries out what the arguments say, after `change` has changed or refused the plan.
fn run_plan(arguments: RunArguments, change: impl FnOnce(&mut Plan) -> Result<(), Failure>) -> Ending {
    let (summary, is_dry) = (Summary::of(&arguments)?, arguments.dry_run);
    let review = if is_dry { None } else { Review::of(&arguments) };
    let (mut plan, joining) = arguments.into_plan()?;
    change(&mut plan)?;
    if let Some(directory) = plan.directory.as_ref().filter(|_| plan.hosts.is_none()) {
        std::env::set_current_dir(directory).map_err(|error| {
            Failure::new(exit::FILE, format!("cannot go to the directory {}: {error}", directory.display()))
        })?;
    }
    if is_dry {
        return summary.try_out(&plan, &joining);
    }
    summary.begin(&plan);
    let outcome = launch_and_join(&plan, &joining, review.as_ref().and_then(Review::folder));
    if let (Some(review), Ok(made)) = (review, &outcome) {
        // If it cannot be written, the run is over all the same.
        let _ = std::io::stderr().write_all(review.text(made).as_bytes());
    }
    summary.end(&plan, outcome)
}

impl RunArguments {
    fn into_plan(self) -> Result<(Plan, Joining), Failure> {
        let mut settings = Vec::new();
        let made = |directory: &Path| match self.dry_run {
            true => Ok(directory.to_owned()),
            false => existing_directory(directory),
        };
        for setting in &self.set {
            let Some((key, value)) = setting.split_once('=') else {
                return Err(Failure::new(
                    exit::USAGE,
                    format!("--set {setting}: a key and a value are needed, as in `--set region_bytes=1GiB`"),
                ));
            };
            settings.push((key.trim().to_owned(), value.to_owned()));
        }
        if let Some(directory) = &self.record {
            let directory = made(directory)?;
            settings.push(("record".to_owned(), directory.to_string_lossy().into_owned()));
        }
        let of_flags = [("home", &self.home), ("memory_server", &self.memory_server), ("cache_bytes_max", &self.cache)];
        settings.extend(of_flags.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?))));
        settings.extend(self.joiners_max.map(|joiners| ("joiners_max".to_owned(), joiners.to_string())));
        settings.extend(self.join.iter().map(|address| ("join".to_owned(), address.clone())));
        let output = match self.output.unwrap_or(OutputMode::Prefix) {
            OutputMode::Prefix => Output::Prefix,
            OutputMode::Raw => Output::Raw,
            OutputMode::Files => Output::Files(made(&self.output_directory)?),
            OutputMode::Tee => Output::Tee(made(&self.output_directory)?),
        };
        let (hosts, nodes) = if let Some(place) = &self.rendezvous {
            let all = self.nodes.unwrap_or(1).to_string();
            let of_job =
                [("rendezvous", Some(place)), ("rendezvous_nodes", Some(&all)), ("rendezvous_job", self.job.as_ref())];
            let of_network = [("network", self.hosts.network())];
            let given = of_job.into_iter().chain(of_network);
            settings.extend(given.filter_map(|(key, value)| Some((key.to_owned(), value?.clone()))));
            (None, Some(self.placing.nodes_here()))
        } else {
            self.hosts.read(self.nodes, &self.placing, self.join.is_none())?
        };
        let env_file = self.env_file.as_deref().map(|file| {
            let unreadable = |error| Failure::new(exit::FILE, format!("--env-file {}: {error}", file.display()));
            fs::read_to_string(file).map_err(unreadable)
        });
        let variables = hosts::environment::variables(env_file.transpose()?.as_deref(), &self.variables)?;
        // Names of files count from here, also if the nodes are started elsewhere.
        let secret_file = self.secret_file.map(|file| std::path::absolute(&file).unwrap_or(file));
        let joining = Joining { join: self.join, has_rendezvous: self.rendezvous.is_some(), secret_file };
        let mut program = self.program.into_iter();
        let plan = Plan {
            nodes: nodes.unwrap_or(1),
            program: program.next().unwrap_or_default(),
            arguments: program.collect(),
            config: self.config.as_deref().map(readable_file).transpose()?,
            settings,
            variables,
            input: if hosts.as_ref().is_some_and(|hosts| hosts.took_stdin) { InputMode::None } else { self.input },
            hosts,
            directory: self.chdir,
            bind_to: self.placing.bind_to(),
            output,
            shown: self.show,
            inherited: Vec::new(),
            time_max: self.timeout,
            is_quiet: self.quiet,
            processors: None,
        };
        Ok((plan, joining))
    }
}

/// Makes the directory if it does not exist, and returns its absolute path: a node may change its working directory.
pub fn existing_directory(directory: &Path) -> Result<PathBuf, Failure> {
    let made = fs::create_dir_all(directory).and_then(|()| fs::canonicalize(directory)).map_err(|error| {
        Failure::new(exit::FILE, format!("cannot make the directory {}: {error}", directory.display()))
    })?;
    // This is checked before hours of work, not after them.
    match tempfile::tempfile_in(&made) {
        Ok(_) => Ok(made),
        Err(error) => Err(Failure::new(exit::FILE, format!("cannot write into {}: {error}", made.display()))),
    }
}

fn readable_file(file: &Path) -> Result<PathBuf, Failure> {
    fs::canonicalize(file).map_err(|error| {
        Failure::new(exit::CONFIGURATION, format!("cannot read the configuration {}: {error}", file.display()))
    })
}

/// Starts the nodes, waits for them, and leaves nothing behind.
pub fn launch(plan: &Plan) -> Result<Made, Failure> {
    launch_and_join(plan, &Joining::default(), None)
}

/// `review` is where the nodes write their records if the configuration names no other place.
fn launch_and_join(plan: &Plan, joining: &Joining, review: Option<&Path>) -> Result<Made, Failure> {
    plan.check_count()?;
    // Signals are handled from here on, before there is anything that a signal could leave behind, until it is gone.
    let signals = Signals::block()?;
    let requests = joining.join.is_some().then(Requests::listen).transpose()?;
    descendants::adopt_orphans();
    let guard = Guard::start()?;
    let fleet = plan.hosts.as_ref().map(|hosts| connect(plan, hosts, joining, &signals, &guard)).transpose()?;
    let mut wiring = Wiring::new(plan, joining, review, fleet.as_ref().map(Fleet::addresses))?;
    // Removed when this call ends, however it ends.
    let _secret_file = wiring.secret_file.take();
    let _memory = wiring.memory.as_ref().map(memory::Place::serve).transpose()?;
    let mut supervisor = Supervisor::new(&signals, &guard, plan.processors.is_some());
    if let (Some(address), Some(requests)) = (&joining.join, requests) {
        supervisor.serve(requests, address);
    }
    let record = wiring.record.take();
    if let Some(mut fleet) = fleet {
        fleet.assign(&assignment(plan, &wiring, record.is_some())?, &signals)?;
        fleet.start();
        let destinations = |host: &str, node: usize| {
            plan.output.destinations(Some(host), &format!("{node} {host}"), node, plan.shows(node))
        };
        supervisor.adopt_fleet(fleet, &plan.input.nodes(plan.nodes), record.clone(), destinations)?;
    } else {
        for node in 0..plan.nodes {
            let label = if joining.is_alone() { node.to_string() } else { format!("+{node}") };
            let destinations = plan.output.destinations(None, &label, node, plan.shows(node));
            match destinations.and_then(|destinations| Ok((start(plan, &wiring, node)?, destinations))) {
                Ok(((running, status), destinations)) => supervisor.adopt(running, status, destinations),
                Err(failure) => {
                    supervisor.abandon()?;
                    return Err(failure);
                }
            }
        }
    }
    drop(wiring);
    let finished = supervisor.supervise(plan.time_max)?;
    let is_record_wanted = record.as_deref() != review;
    let ending = match plan.processors.and_then(|_| cause::end_of_program(&finished.seen)) {
        Some(ending) if finished.is_complete() => ending,
        _ => ending_of(&finished, is_record_wanted, plan.time_max),
    };
    let counters = finished.statuses.iter().map(NodeStatus::counters).collect();
    Ok(Made { stdout: finished.stdout, counters, record, seen: finished.seen, ending })
}

/// Starts the agents of other hosts.
fn connect(plan: &Plan, hosts: &Hosts, joining: &Joining, signals: &Signals, guard: &Guard) -> Result<Fleet, Failure> {
    // Their addresses are not known yet; the rest of the configuration is checked before any host is asked.
    let unknown: Vec<String> = (1..=plan.nodes).map(|port| format!("127.0.0.1:{port}")).collect();
    let read = check_configuration(plan, joining, &unknown.join(","))?;
    if read.is_leased() && read.memory_servers.is_empty() {
        let sentence = "--hosts and a region at memory servers: start the servers with `trellis serve`, and name them with \
                        --memory-server";
        return Err(Failure::new(exit::CONFIGURATION, sentence));
    }
    let here = || std::env::current_dir().map_err(|_| Failure::system("find the working directory"));
    let common = Common {
        program: plan.program.clone(),
        search_path: plan.search_path().map(OsStr::to_owned),
        directory: match &plan.directory {
            None if hosts.copies => None,
            None => Some(here()?),
            Some(given) => Some(std::path::absolute(given).unwrap_or_else(|_| given.clone())),
        },
        has_datagrams: read.link.has_datagrams(),
        bind_to: plan.bind_to,
        ports: read.ports,
        silence: Duration::from_secs(read.silence_seconds_max),
    };
    Fleet::connect(hosts, &common, signals, guard)
}

/// The description from which the agents of other hosts start the nodes.
fn assignment(plan: &Plan, wiring: &Wiring, has_record: bool) -> Result<Assignment, Failure> {
    // The configuration of this process counts there, too, except what describes the host.
    let counts_there = |name: &str| config::is_key_variable(name) && name != "TRELLIS_PREFIX";
    let mut environment: Vec<(String, OsString)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| counts_there(name))
        .collect();
    environment.extend(wiring.environment.iter().filter(|(name, _)| name != config::FILE_VARIABLE).cloned());
    let file = plan.config.clone().or_else(|| std::env::var_os(config::FILE_VARIABLE).map(PathBuf::from));
    let unreadable = |error| Failure::new(exit::CONFIGURATION, format!("the configuration cannot be read: {error}"));
    Ok(Assignment {
        nodes: plan.nodes,
        arguments: plan.arguments.clone(),
        environment,
        configuration: file.map(fs::read).transpose().map_err(unreadable)?,
        secret: wiring.secret,
        preload: wiring.preload,
        input_nodes: plan.input.nodes(plan.nodes),
        has_record,
    })
}

/// The common part of all nodes of a run.
struct Wiring {
    /// Bound to ports that the kernel chose, and already listening: a peer that connects early waits in the backlog.
    sockets: Vec<OwnedFd>,
    /// `None` if every process finds its address by itself.
    secret: Option<[u8; 32]>,
    secret_file: Option<SecretFile>,
    environment: Vec<(String, OsString)>,
    /// The directory in which the nodes write their records.
    record: Option<PathBuf>,
    /// The place of the run's own memory server.
    memory: Option<memory::Place>,
    /// The library that is loaded first into the program.
    preload: Preload,
    /// The processors of each node of this host, if they are bound.
    processors: Option<Vec<CpuSet>>,
}

impl Wiring {
    /// `elsewhere` is where the nodes listen, if they are on other hosts.
    fn new(
        plan: &Plan,
        joining: &Joining,
        review: Option<&Path>,
        elsewhere: Option<Vec<String>>,
    ) -> Result<Wiring, Failure> {
        let secret = joining.secret()?;
        let is_elsewhere = elsewhere.is_some();
        // A process that joins, or meets others, listens where it reaches them, which it finds out itself.
        let listening = if joining.is_alone() && !is_elsewhere { plan.nodes } else { 0 };
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let (mut sockets, bound) = network::listen(listening, local, false, Ports::default())?;
        let mut addresses = elsewhere.unwrap_or(bound);
        let mut listed = addresses.join(",");
        let read = check_configuration(plan, joining, &listed)?;
        let memory = if is_elsewhere { None } else { memory::Place::for_run(&read, plan.nodes)? };
        let is_udp = read.link.has_datagrams() && !is_elsewhere;
        if is_udp || memory.as_ref().is_some_and(|memory| memory.has_moved()) {
            (sockets, addresses) = network::listen(listening, local, is_udp, Ports::default())?;
            listed = addresses.join(",");
        }
        let mut environment = plan.variables.clone();
        if joining.is_alone() {
            environment.push((launch::NODES_VARIABLE.to_owned(), OsString::from(listed)));
        }
        if let Some(file) = &plan.config {
            environment.push((config::FILE_VARIABLE.to_owned(), file.clone().into_os_string()));
        }
        plan.settings.iter().for_each(|(key, value)| tell(&mut environment, key, value));
        if let (None, Some(folder)) = (&read.record, review) {
            tell(&mut environment, "record", &folder.display().to_string());
            if read.record_faults_max == Config::default().record_faults_max {
                tell(&mut environment, "record_faults_max", &review::FAULTS_MAX.to_string());
            }
        }
        let record = read.record.clone().or(review.map(Path::to_owned));
        let preload = Preload::for_nodes(&read, plan.processors);
        if !is_elsewhere
            && let Some(notice) = preload.add(&plan.program, &mut environment)?
            && !plan.is_quiet
        {
            trellis_output::lines::report(format_args!("{notice}"));
        }
        if let Some(memory) = &memory {
            tell(&mut environment, "memory_server", &memory.of_server().to_string());
            environment.push((launch::MEMORY_ENDS_VARIABLE.to_owned(), OsString::from("1")));
        }
        let is_given = secret.is_some();
        let secret = match secret {
            None if joining.is_alone() => Some(child::fresh_secret()?),
            given => given,
        };
        let processors = if is_elsewhere { None } else { plan.bind_to.processors(plan.nodes)? };
        let mut wiring =
            Wiring { sockets, secret, secret_file: None, environment, record, memory, preload, processors };
        if let (true, Some(secret)) = (read.joiners_max > 0 && joining.is_alone(), secret) {
            if !is_given {
                wiring.secret_file = Some(SecretFile::write(&secret)?);
            }
            let path = wiring.secret_file.as_ref().map(SecretFile::path).or(joining.secret_file.as_deref());
            say_how_to_join(&addresses[read.manager], path.unwrap_or(Path::new("FILE")));
        }
        Ok(wiring)
    }
}

/// Adds a key of the configuration to a node's environment.
fn tell(environment: &mut Vec<(String, OsString)>, key: &str, value: &str) {
    environment.push((format!("{}{}", config::VARIABLE_PREFIX, key.to_ascii_uppercase()), OsString::from(value)));
}

fn say_how_to_join(address: &str, secret_file: &Path) {
    trellis_output::lines::report(format_args!(
        "others join with: trellis run --join {address} --secret-file {} PROGRAM",
        secret_file.display()
    ));
}

/// Reads the configuration as the nodes will, so that a mistake is reported once and before anything starts.
fn check_configuration(plan: &Plan, joining: &Joining, addresses: &str) -> Result<Config, Failure> {
    let mut sources = Sources::new().process_environment();
    if !joining.has_rendezvous {
        sources = sources.variable(launch::NODES_VARIABLE, addresses);
    }
    if let Some(file) = &plan.config {
        sources = sources.file(file);
    }
    for (key, value) in &plan.settings {
        if matches!(key.as_str(), "nodes" | "node") {
            let sentence =
                format!("--set {key}={value}: trellis run gives every node its number and address; use -n N");
            return Err(Failure::new(exit::CONFIGURATION, sentence));
        }
        sources = sources.set(format!("{key}={value}"));
    }
    let read = sources.load_for_all().map_err(|error| Failure::new(exit::CONFIGURATION, error.to_string()))?;
    if joining.is_alone() && read.node_count() != plan.nodes {
        let sentence = format!("-n {}: the configuration is for {} nodes", plan.nodes, read.node_count());
        return Err(Failure::new(exit::CONFIGURATION, sentence));
    }
    Ok(read)
}

/// Starts one node.
fn start(plan: &Plan, wiring: &Wiring, node: usize) -> Result<(Running, NodeStatus), Failure> {
    let mut environment = wiring.environment.clone();
    if let Some(memory) = &wiring.memory {
        tell(&mut environment, "prefix", &memory.of_node(node).to_string());
    }
    let command = NodeCommand {
        node,
        nodes: plan.nodes,
        program: &plan.program,
        arguments: &plan.arguments,
        environment,
        socket: wiring.sockets.get(node),
        secret: wiring.secret.as_ref(),
        inherited: plan.inherited.get(node).cloned().unwrap_or_default(),
        has_fixed_addresses: wiring.preload.fixes_addresses(),
        processors: wiring.processors.as_ref().map(|of_nodes| of_nodes[node]),
        stdin: plan.input.of_node(node),
        output: plan.output.of_node(node, plan.shows(node))?,
    };
    command.start()
}

impl Output {
    /// The destination of the output of a node on this host.
    fn of_node(&self, node: usize, is_shown: bool) -> Result<NodeOutput, Failure> {
        match self {
            Output::Raw if is_shown => Ok(NodeOutput::Inherited),
            Output::Files(folder) => {
                let [stdout, stderr] = files_of(folder, node)?;
                Ok(NodeOutput::Files(stdout, stderr))
            }
            Output::Prefix | Output::Raw | Output::Tee(_) | Output::Captured => Ok(NodeOutput::Pipes),
        }
    }

    /// The destinations of the streams that the launcher gets from a node. `host` is its host if hosts were named.
    fn destinations(
        &self,
        host: Option<&str>,
        label: &str,
        node: usize,
        is_shown: bool,
    ) -> Result<[Destination; 2], Failure> {
        let colours = [terminal::colour_wanted(&std::io::stdout()), terminal::colour_wanted(&std::io::stderr())];
        let shown = [0, 1].map(|stream| match self {
            Output::Captured if stream == 0 => Destination::Captured(Vec::new()),
            Output::Files(_) => Destination::Nowhere,
            _ if !is_shown => Destination::Nowhere,
            Output::Raw => Destination::Raw { outlet: stream },
            Output::Prefix | Output::Tee(_) | Output::Captured => {
                Destination::Lines { cutter: LineCutter::labelled(label, node, colours[stream]), outlet: stream }
            }
        });
        match self {
            Output::Tee(folder) => with_files(folder, node, shown),
            // On this host they write there themselves.
            Output::Files(folder) if host.is_some() => with_files(folder, node, shown),
            _ => Ok(shown),
        }
    }
}

fn with_files(folder: &Path, node: usize, shown: [Destination; 2]) -> Result<[Destination; 2], Failure> {
    let ([stdout, stderr], [out, err]) = (files_of(folder, node)?, shown);
    Ok([Destination::File(stdout, Box::new(out)), Destination::File(stderr, Box::new(err))])
}

/// The files for standard output and standard error of a node.
fn files_of(folder: &Path, node: usize) -> Result<[File; 2], Failure> {
    let create = |ending: &str| {
        let path = folder.join(format!("node-{node}.{ending}"));
        File::create(&path)
            .map_err(|error| Failure::new(exit::FILE, format!("cannot write {}: {error}", path.display())))
    };
    Ok([create("out")?, create("err")?])
}

/// Reads numbers of nodes such as `0,4-7`.
fn node_numbers(text: &str) -> Result<Vec<Range<usize>>, String> {
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse::<usize>().ok()?);
        (first <= last).then_some(first..last + 1)
    };
    let parse = |word: &str| range(word).ok_or_else(|| format!("`{word}` is no node; write numbers, as in 0,4-7"));
    text.split(',').map(parse).collect()
}

/// The exit code of the run, or the sentence about the first cause of its failure.
fn ending_of(finished: &Finished, is_record_wanted: bool, time_max: Option<Duration>) -> Ending {
    let seen: &[Seen] = &finished.seen;
    if let Some(failure) = &finished.refused {
        return Err(failure.clone());
    }
    if let Some(cause) = cause::first_cause(seen) {
        // Status 0 is no failure: the cluster failed because of a node that ended too early.
        let ended = seen[cause].ended.filter(|ended| ended.is_failure());
        let code = ended.map_or(exit::CLUSTER, cause::Ended::exit_code);
        return Err(Failure::new(code, cause::sentence(seen, cause)));
    }
    if let Some(time) = time_max.filter(|_| finished.is_late) {
        return Err(Failure::new(exit::TIMED_OUT, cause::late_sentence(seen, time)));
    }
    if let Some(failure) = &finished.incomplete {
        // A user who interrupts a run may lose output, and is informed of it.
        return Err(finished.asked_by.map_or_else(
            || failure.clone(),
            |signal| {
                let sentence = format!("interrupted by {}; {failure}", signals::name(signal));
                Failure::new(128 + signal as u8, sentence)
            },
        ));
    }
    match &finished.unwritten {
        // Like a program in a pipe whose reader goes away: the status of SIGPIPE, without a message.
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(128 + libc::SIGPIPE as u8),
        Some(error) => {
            let sentence = format!("the nodes' output cannot be written: {error}; make room, or lead it elsewhere");
            return Err(Failure::new(exit::FILE, sentence + &cause::the_others(seen, usize::MAX)));
        }
        None => {}
    }
    let lost = finished.statuses.iter().position(NodeStatus::has_lost_its_record);
    if let Some(node) = lost.filter(|_| is_record_wanted) {
        let sentence = format!("the record of node {node} is not there: its own message says why");
        return Err(Failure::new(exit::FILE, sentence));
    }
    let failed = seen.iter().filter_map(|seen| seen.ended).find(|ended| ended.is_failure());
    match (finished.asked_by, failed) {
        (Some(signal), Some(_)) => {
            let sentence = format!("interrupted by {}{}", signals::name(signal), cause::the_others(seen, usize::MAX));
            Err(Failure::new(128 + signal as u8, sentence))
        }
        _ => Ok(exit::FINE),
    }
}
