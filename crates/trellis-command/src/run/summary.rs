//! The plan of a run before it and its summary after it: `--dry-run`, `--verbose`, `--quiet` and `--json`.
//!
//! Promises: a dry run starts nothing, asks no host, and makes no file but that of `--json`. That file is written as a
//! whole at the end, however the run ended; whether it can be made is checked before the nodes start. Values of the
//! environment are not shown, because some are secret.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Map, Value, json};
use trellis_output::files;

use super::cause::{self, Ended, Seen};
use super::joining::Joining;
use super::{Made, Plan, RunArguments, check_configuration, child, signals};
use crate::exit::{self, Ending, Failure, not_json};

/// The reports about a run that the user wants besides its output.
pub(super) struct Summary {
    is_verbose: bool,
    is_quiet: bool,
    json: Option<Place>,
    began: Instant,
}

/// Where the JSON goes.
enum Place {
    Stdout,
    File(PathBuf),
}

impl Summary {
    /// Checks the name of the file, because a mistake in it must be reported before hours of work, not after them.
    pub(super) fn of(arguments: &RunArguments) -> Result<Summary, Failure> {
        let json = match &arguments.json {
            None => None,
            Some(path) if path.as_os_str() == "-" => Some(Place::Stdout),
            Some(path) => {
                // Names of files count from here, also if the nodes start elsewhere.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                files::expect_writable(&path)?;
                Some(Place::File(path))
            }
        };
        Ok(Summary { is_verbose: arguments.verbose, is_quiet: arguments.quiet, json, began: Instant::now() })
    }

    /// Says what will be started.
    pub(super) fn begin(&self, plan: &Plan) {
        if self.is_verbose {
            described(plan).lines().for_each(|line| trellis_output::lines::notice(format_args!("{line}")));
        }
    }

    /// Checks a plan and describes it, instead of carrying it out.
    pub(super) fn try_out(self, plan: &Plan, joining: &Joining) -> Ending {
        plan.check_count()?;
        // This only makes the list as long as the number of nodes.
        let addresses: Vec<String> = (1..=plan.nodes).map(|port| format!("127.0.0.1:{port}")).collect();
        check_configuration(plan, joining, &addresses.join(","))?;
        if plan.hosts.is_none() {
            child::executable(&plan.program, plan.search_path())?;
            plan.bind_to.processors(plan.nodes)?;
        }
        let Summary { json, .. } = self;
        match json {
            Some(place) => place.write(&of_plan(plan))?,
            None => trellis_output::lines::put(format_args!("{}", described(plan))),
        }
        Ok(exit::FINE)
    }

    /// Reports on the run. A failure of `--json` only counts if the run itself did not fail.
    pub(super) fn end(self, plan: &Plan, outcome: Result<Made, Failure>) -> Ending {
        let Summary { is_verbose, is_quiet, json, began } = self;
        let seconds = began.elapsed().as_secs_f64();
        let (made, ending) = match outcome {
            Ok(mut made) => {
                let ending = std::mem::replace(&mut made.ending, Ok(exit::FINE));
                (Some(made), ending)
            }
            Err(failure) => (None, Err(failure)),
        };
        if let Some(made) = made.as_ref().filter(|_| is_verbose) {
            for (node, seen) in made.seen.iter().enumerate() {
                trellis_output::lines::notice(format_args!("{} {}", cause::named(&made.seen, node), how(seen)));
            }
            trellis_output::lines::notice(format_args!("the run took {seconds:.3} s"));
        }
        let written = json.map_or(Ok(()), |place| {
            let mut object = of_plan(plan);
            let (status, error) = match &ending {
                Ok(status) => (*status, Value::Null),
                Err(failure) => (failure.code, Value::from(failure.sentence.clone())),
            };
            object.insert("seconds".to_owned(), json!(seconds));
            object.insert("status".to_owned(), json!(status));
            object.insert("error".to_owned(), error);
            if let Some(made) = &made {
                let nodes: Vec<Value> =
                    made.seen.iter().enumerate().map(|(node, seen)| of_node(made, node, seen)).collect();
                object.insert("nodes".to_owned(), Value::from(nodes));
            }
            place.write(&object)
        });
        match (ending, written) {
            (Ok(exit::FINE), Err(unwritten)) if is_quiet => Ok(unwritten.code),
            (Ok(exit::FINE), written) => written.map(|()| exit::FINE),
            (ending, written) => {
                if let Some(unwritten) = written.err().filter(|_| !is_quiet) {
                    trellis_output::lines::complain(format_args!("{unwritten}"));
                }
                ending.or_else(|failure| if is_quiet { Ok(failure.code) } else { Err(failure) })
            }
        }
    }
}

impl Place {
    fn write(self, object: &Map<String, Value>) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(object).map_err(not_json)?;
        match self {
            Place::Stdout => {
                let mut stdout = std::io::stdout().lock();
                let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
                written.map_err(|error| Failure::new(exit::FILE, format!("--json -: it cannot be written: {error}")))
            }
            Place::File(path) => files::write(&path, text + "\n"),
        }
    }
}

/// The plan as lines for people.
fn described(plan: &Plan) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a text does not fail.
        let _ = writeln!(text, "{name:<14} {value}");
    };
    let words = std::iter::once(&plan.program).chain(&plan.arguments);
    line("program", &words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "));
    line("nodes", &plan.nodes.to_string());
    for (host, nodes) in plan.hosts.iter().flat_map(|hosts| hosts.placed()) {
        let numbers: Vec<String> = nodes.iter().map(usize::to_string).collect();
        line(
            "",
            &match nodes {
                [node] => format!("node {node} on {host}"),
                [first, .., last] if last - first == nodes.len() - 1 => format!("nodes {first} to {last} on {host}"),
                _ => format!("nodes {} on {host}", numbers.join(", ")),
            },
        );
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if plan.hosts.is_none() && plan.nodes > processors {
        line("processors", &format!("{processors}, fewer than nodes: who waits sleeps and does not poll"));
    }
    if let Some(directory) = &plan.directory {
        line("directory", &directory.display().to_string());
    }
    if let Some(config) = &plan.config {
        line("configuration", &config.display().to_string());
    }
    plan.settings.iter().for_each(|(key, value)| line("setting", &format!("{key}={value}")));
    plan.variables.iter().for_each(|(name, _)| line("variable", name));
    if let Some(time) = plan.time_max {
        line("time limit", &format!("{} s", time.as_secs_f64()));
    }
    text
}

/// The plan as JSON.
fn of_plan(plan: &Plan) -> Map<String, Value> {
    let text = |word: &std::ffi::OsString| Value::from(word.to_string_lossy());
    let nodes = (0..plan.nodes).map(|node| {
        let host = plan
            .hosts
            .as_ref()
            .and_then(|hosts| hosts.placed().find(|(_, nodes)| nodes.contains(&node)).map(|(host, _)| host.to_owned()));
        json!({ "node": node, "host": host })
    });
    let object = json!({
        "trellis": env!("CARGO_PKG_VERSION"),
        "program": text(&plan.program),
        "arguments": plan.arguments.iter().map(text).collect::<Vec<_>>(),
        "directory": plan.directory,
        "configuration": plan.config,
        "settings": plan.settings.iter().map(|(key, value)| (key.clone(), json!(value))).collect::<Map<_, _>>(),
        "variables": plan.variables.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "timeout_seconds": plan.time_max.map(|time| time.as_secs_f64()),
        "nodes": nodes.collect::<Vec<_>>(),
    });
    let Value::Object(object) = object else { unreachable!("the text above is an object") };
    object
}

/// A node after the run.
fn of_node(made: &Made, node: usize, seen: &Seen) -> Value {
    let (status, signal) = match seen.ended {
        Some(Ended::Exited(status)) => (Some(status), None),
        Some(Ended::Killed { signal, .. }) => (None, Some(signals::name(signal))),
        Some(Ended::Lost) | None => (None, None),
    };
    let counters = made.counters.get(node).copied().flatten();
    json!({
        "node": if seen.joins { seen.number } else { Some(seen.number.unwrap_or(node)) },
        "host": seen.host,
        "pid": Some(seen.pid).filter(|pid| *pid > 0),
        "status": status,
        "signal": signal,
        "doing": seen.doing,
        "counters": counters.map(as_json),
    })
}

fn as_json(counters: trellis::Counters) -> Map<String, Value> {
    counters.entries().map(|(name, count)| (name.to_owned(), json!(count))).collect()
}

fn how(seen: &Seen) -> String {
    match seen.ended {
        Some(Ended::Exited(status)) => format!("ended with status {status}"),
        Some(Ended::Killed { signal, .. }) => format!("was ended by {}", signals::name(signal)),
        Some(Ended::Lost) | None => "is lost with its host".to_owned(),
    }
}
