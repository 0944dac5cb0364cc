//! Runs the guides about remote memory as they are written: every command of their code blocks and of their text, in
//! order, each on the machine that the guide names. Machines are hosts of a lab, or network namespaces that the
//! guide's own commands set up; nothing is changed outside.
//!
//! A line `# on host 7` (`server`, `machine`, `the switch's machine`) in a block says where its commands run, until
//! the next such line. A command that ends with another status than 0 fails the test, unless the lists below name it.
//! A server or controller in the text, with a few options, is the one that a block starts, restarted with these
//! options.

#[path = "support/fabric.rs"]
mod inside;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use inside::{LONG, in_namespaces};
use serde_json::{Value, json};
use trellis_testing::{Folder, Need, compiled, skip};

const GIVE: &str = "give-a-program-the-racks-memory.md";
const OPERATE: &str = "operate-a-memory-fabric.md";

/// Text in a guide's backquotes that is not a command to run: parts of commands, names of commands, and commands with
/// a word in place of a number.
const NO_COMMANDS: &[(&str, &[&str])] = &[
    (GIVE, &["trellis lab status", "trellis run --home memory-server"]),
    (
        OPERATE,
        &[
            "trellis lab run HOST --",
            "trellis lab run HOST -- trellis controller run …",
            "trellis serve",
            "trellis controller drain HOST",
            "trellis switch lease",
            "trellis lab partition",
            "trellis lab kill",
        ],
    ),
];

/// Commands that are not run, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("openssl rand -hex 3", "it draws a number and is not a part of Trellis"),
    ("trellis bench remote-paging", "it takes minutes; bench_switch.rs runs it with less memory"),
];

/// Exit statuses of commands that do not end with 0.
const STATUSES: &[(&str, i32)] = &[
    // The program whose memory was at the server that was killed.
    ("wait $!", 70),
];

/// Sizes that are too large for a test machine, and their replacements, applied one after the other. A program whose
/// memory is elsewhere waits for each page; on a busy machine each wait takes a turn of the scheduler.
const SIZES: &[(&str, &str)] =
    &[("16GiB", "16MiB"), ("64GiB", "64MiB"), ("128GiB", "128MiB"), ("8MiB", "2MiB"), ("32MiB", "8MiB")];

/// Commands that do not end by themselves, and their output when others may go on.
const LASTING: &[(&str, &str)] = &[
    ("trellis serve ", "serving "),
    ("trellis switch run ", "switch "),
    ("trellis controller run ", "this controller leads from now on"),
    ("trellis switch events", ""),
];

/// Commands that are restarted, with other options, where they run.
const STARTED: [&str; 2] = ["trellis serve ", "trellis controller run "];

/// The cluster of the guides.
const CLUSTER: &str = "fd12:3456";
/// The host of the guides' controller, and that of a program.
const CONTROLLER: u16 = 3;
const CLIENT: u16 = 1;
const SERVER: u16 = 0x1001;

/// Where a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The guide does not say.
    Here,
    /// The machine of the switch.
    Switch,
    Host(u16),
    /// On this host as written, and on each other one with its number in place of this one's.
    EachHost(u16),
    /// Like [`Place::EachHost`], for servers.
    EachServer(u16),
}

impl Place {
    /// Parses the rest of a line that begins with `# on `.
    fn parse(line: &str) -> Place {
        if line.starts_with("the switch's machine") {
            return Place::Switch;
        }
        let host = line
            .split([' ', ','])
            .nth(1)
            .and_then(|word| word.parse().ok())
            .map(|host: trellis_fabric_protocol::wire::address::Host| host.0)
            .filter(|_| ["host ", "server ", "machine "].iter().any(|kind| line.starts_with(kind)));
        let host = host.unwrap_or_else(|| panic!("`# on {line}` names no machine"));
        match line {
            _ if line.contains("every other host") => Place::EachHost(host),
            _ if line.contains("every other server") => Place::EachServer(host),
            _ => Place::Host(host),
        }
    }
}

/// A command, and its location in the guide.
#[derive(Debug, Clone)]
struct Step {
    place: Place,
    text: String,
    section: String,
}

/// A guide, and the content of its blocks that are not commands, by their language.
struct Guide {
    name: &'static str,
    steps: Vec<Step>,
    others: Vec<(String, String)>,
}

impl Guide {
    fn read(name: &'static str) -> Guide {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides").join(name);
        let text = std::fs::read_to_string(path).expect("it is there");
        let mut guide = Guide { name, steps: Vec::new(), others: Vec::new() };
        let (mut section, mut lines) = (String::new(), text.lines());
        while let Some(line) = lines.next() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                let block: Vec<&str> =
                    lines.by_ref().map(str::trim).take_while(|line| !line.starts_with("```")).collect();
                match language {
                    "sh" => guide.block(&block, &section),
                    other => guide.others.push((other.to_owned(), block.join("\n"))),
                }
            } else if let Some(heading) = line.strip_prefix("## ") {
                heading.clone_into(&mut section);
            } else {
                guide.inline(line, &section);
            }
        }
        assert!(guide.steps.len() > 5, "{name} has commands");
        guide
    }

    fn block(&mut self, lines: &[&str], section: &str) {
        let mut place = Place::Here;
        let mut begun = String::new();
        for line in lines {
            if let Some(said) = line.strip_prefix("# on ") {
                place = Place::parse(said);
            } else if let Some(part) = line.strip_suffix('\\') {
                begun += part;
            } else if !line.is_empty() && !line.starts_with('#') {
                let text = std::mem::take(&mut begun) + line;
                self.steps.push(Step { place, text, section: section.to_owned() });
            }
        }
        assert!(begun.is_empty(), "{section}: a line goes on nowhere");
    }

    /// Adds the commands in a sentence or a table: between two backquotes.
    fn inline(&mut self, line: &str, section: &str) {
        let known = NO_COMMANDS.iter().find(|(guide, _)| *guide == self.name).map_or(&[][..], |(_, known)| known);
        for text in line.split('`').skip(1).step_by(2) {
            let is_command = ["trellis ", "ip ", "openssl "].iter().any(|program| text.starts_with(program));
            if !is_command || known.contains(&text) {
                continue;
            }
            let place = match text.split(' ').nth(1) {
                Some("switch") => Place::Switch,
                Some("serve") => Place::EachServer(SERVER),
                Some("controller") => Place::Host(CONTROLLER),
                _ => Place::Host(CLIENT),
            };
            self.steps.push(Step { place, text: text.to_owned(), section: section.to_owned() });
        }
    }

    fn of(&self, section: &str) -> impl Iterator<Item = &Step> {
        let mut steps = self.steps.iter().filter(move |step| step.section == section).peekable();
        assert!(steps.peek().is_some(), "{} has no commands under `{section}`", self.name);
        steps
    }
}

/// A shell on a machine; it runs its commands one after the other, as if they were typed.
struct Shell {
    child: Child,
    input: ChildStdin,
    said: Arc<Mutex<Vec<String>>>,
    count: usize,
}

/// A folder with the programs of the guides.
fn programs() -> Folder {
    let folder = Folder::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    std::fs::copy(examples.join("remote/working_set.c"), folder.file("working_set.c")).expect("it is there");
    let program = compiled("c++", &examples.join("graph/graph.cpp"), &["-std=c++20", "-O1", "-pthread"]);
    std::os::unix::fs::symlink(program, folder.file("program")).expect("a link");
    folder
}

impl Shell {
    fn start(mut command: Command, folder: &Folder) -> Shell {
        let own = Path::new(env!("CARGO_BIN_EXE_trellis")).parent().expect("it is in a folder").to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([own].into_iter().chain(std::env::split_paths(&path))).expect("folders");
        command.env("PATH", path).current_dir(folder.path());
        for variable in ["TRELLIS_PREFIX", "TRELLIS_SWITCH", "TRELLIS_CONTROLLER"] {
            command.env_remove(variable);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let said = Arc::<Mutex<Vec<String>>>::default();
        let (heard, from) = (Arc::clone(&said), child.stdout.take().expect("it is a pipe"));
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                // Answers to repeated requests are not printed here; they are shown if they are wrong.
                if !line.starts_with(['{', '-']) && !line.is_empty() {
                    println!("  {line}");
                }
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        let mut input = child.stdin.take().expect("it is a pipe");
        writeln!(input, "exec 2>&1").expect("it reads");
        Shell { child, input, said, count: 0 }
    }

    /// The output from a position on.
    fn since(&self, place: usize) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)[place..].to_vec()
    }

    fn wait_for(&mut self, since: usize, what: &str, mut is_it: impl FnMut(&str) -> bool) -> (usize, String) {
        // The deadline counts from the last output: a long program is not a hanging program.
        let (mut deadline, mut lines) = (Instant::now() + LONG, 0);
        loop {
            let said = self.since(since);
            if said.len() > lines {
                (deadline, lines) = (Instant::now() + LONG, said.len());
            }
            if let Some(at) = said.iter().position(|line| is_it(line)) {
                return (at, said[at].clone());
            }
            let ended = self.child.try_wait().expect("it was started");
            assert!(ended.is_none() && Instant::now() < deadline, "in vain: {what}; {ended:?}\n{}", said.join("\n"));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Runs a command, and returns its status and the output meanwhile.
    fn run(&mut self, text: &str) -> (i32, Vec<String>) {
        let (since, end) = (self.since(0).len(), format!("-- {}: ", self.count));
        self.count += 1;
        writeln!(self.input, "{{ {text}\n}} </dev/null\nprintf '\\n{end}%s\\n' $?").expect("it reads");
        let (at, line) = self.wait_for(since, text, |line| line.starts_with(&end));
        let status = line[end.len()..].parse().expect("a status");
        (status, self.since(since)[..at].to_vec())
    }

    /// Starts a lasting command, and returns when it prints that it is ready.
    fn begin(&mut self, text: &str, ready: &str) {
        let since = self.since(0).len();
        let background = if text.ends_with('&') { "" } else { " &" };
        let (status, _) = self.run(&format!("{text}{background}"));
        assert_eq!(status, 0, "{text}");
        if !ready.is_empty() {
            self.wait_for(since, text, |line| line.starts_with(ready));
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lasting(text: &str) -> Option<&'static str> {
    LASTING.iter().find(|(part, _)| text.contains(part)).map(|(_, ready)| *ready)
}

/// Runs the command of a step, and returns the output.
fn carry_out(shell: &mut Shell, step: &Step, text: &str) -> Vec<String> {
    let text = SIZES
        .iter()
        .fold(text.to_owned(), |text, (large, small)| text.replace(&format!(" {large}"), &format!(" {small}")));
    println!("{:?}$ {text}", step.place);
    if let Some(ready) = lasting(&text) {
        shell.begin(&text, ready);
        return Vec::new();
    }
    let (status, said) = shell.run(&text);
    let expected = STATUSES.iter().find(|(known, _)| *known == step.text).map_or(0, |(_, status)| *status);
    assert_eq!(status, expected, "`{text}` of {}: {}", step.section, said.join("\n"));
    said
}

/// Whether programs can have their memory in a store here; if not, the reason is printed.
fn has_store(test: &str) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    let output = command.args(["store", "run", "--store", "embedded:", "--", "true"]).output();
    let output = output.expect("it can be started");
    if !output.status.success() {
        skip(test, Need::Part, String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

/// A lab by its name, which ends with this value.
struct Lab(String);

impl Drop for Lab {
    fn drop(&mut self) {
        // The guide may already have ended it.
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        let _ = command.args(["lab", "down", "--lab", &self.0]).output();
    }
}

/// Whether labs cannot be made here, which is printed. Any other failure fails the test.
fn is_refused(test: &str, status: i32, said: &[String]) -> bool {
    let said = said.join(" ");
    let is_refused = status == 71 && said.contains("user namespace");
    assert!(status == 0 || is_refused, "{said}");
    if is_refused {
        skip(test, Need::Namespaces, said);
    }
    is_refused
}

#[test]
fn a_lab_gives_a_program_the_racks_memory() {
    let test = "a_lab_gives_a_program_the_racks_memory";
    if !has_store(test) {
        return;
    }
    let guide = Guide::read(GIVE);
    let folder = programs();
    let lab = Lab(format!("given-{}", std::process::id()));
    let mut bash = Command::new("bash");
    bash.env("TRELLIS_LAB", &lab.0);
    let mut shell = Shell::start(bash, &folder);
    let mut sums = Vec::new();
    for (number, step) in guide.of("Try it on one machine").enumerate() {
        assert_eq!(step.place, Place::Here, "{}", step.text);
        if number == 0 {
            let (status, said) = shell.run(&step.text);
            if is_refused(test, status, &said) {
                return;
            }
            continue;
        }
        let said = carry_out(&mut shell, step, &step.text);
        if step.text.contains("./working_set ") && !step.text.ends_with('&') {
            let is_sum = |line: &&String| line.split(' ').nth(1).is_some_and(|sum| sum.len() == 16);
            sums.push(said.iter().filter(is_sum).cloned().collect::<Vec<_>>());
        }
    }
    assert_eq!((sums.len(), sums[0].len()), (3, 5), "{sums:?}");
    assert!(sums.iter().all(|found| *found == sums[0]), "the sums are the same: {sums:?}");
}

/// The machines of the guides, each with a shell.
struct Machines {
    shells: BTreeMap<Place, Shell>,
    /// The lab of which they are the hosts; `None` if they are separate machines.
    lab: Option<Lab>,
    folder: Folder,
    /// `fdCC:CCCC`.
    cluster: String,
    hosts: Vec<u16>,
    /// The hosts with a memory server or a controller.
    running: BTreeSet<u16>,
    /// The command with which a block of the guide last started each.
    started: BTreeMap<&'static str, String>,
}

impl Machines {
    /// Makes what every machine has before a guide is read: network devices, connected to the switch's machine. The
    /// folders belong to this test.
    fn new(rack: &str) -> Machines {
        let folder = programs();
        folder.write("rack.txt", rack);
        let mut enter = Command::new("bash");
        enter.env_remove("XDG_RUNTIME_DIR");
        let mut switch = Shell::start(enter, &folder);
        let own = "mount -t tmpfs none /run && mount -t tmpfs none /var/lib && mkdir /run/netns && ip link set lo up";
        let (status, said) = switch.run(own);
        assert_eq!(status, 0, "{said:?}");
        let (mut shells, mut hosts) = (BTreeMap::new(), Vec::new());
        for line in rack.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, port, address, prefix] = words[..4] else { panic!("{line}") };
            let number = prefix.trim_start_matches(CLUSTER).trim_matches(':').trim_end_matches("::/48");
            let host = u16::from_str_radix(number, 16).unwrap_or_else(|_| panic!("{line}"));
            for command in [
                format!("ip netns add m{host}"),
                format!(
                    "ip link add {port} mtu 9000 type veth peer name eth0 address {address} mtu 9000 netns m{host}"
                ),
                format!("ip link set {port} up"),
                format!("ip -n m{host} link set lo up && ip -n m{host} link set eth0 up"),
            ] {
                let (status, said) = switch.run(&command);
                assert_eq!(status, 0, "{command}: {said:?}");
            }
            let mut enter = Command::new("nsenter");
            enter.arg(format!("--net=/run/netns/m{host}")).arg("bash").env_remove("XDG_RUNTIME_DIR");
            shells.insert(Place::Host(host), Shell::start(enter, &folder));
            hosts.push(host);
        }
        shells.insert(Place::Switch, switch);
        let (cluster, running, started) = (CLUSTER.to_owned(), BTreeSet::new(), BTreeMap::new());
        Machines { shells, lab: None, folder, cluster, hosts, running, started }
    }

    /// The hosts of a lab, with its switch; `None` if no lab can be made, and then the reason is printed.
    fn in_a_lab(test: &str, clients: u16, servers: u16) -> Option<Machines> {
        let folder = programs();
        let name = format!("operated-{}", std::process::id());
        let shell = || {
            let mut bash = Command::new("bash");
            bash.env("XDG_RUNTIME_DIR", folder.path());
            Shell::start(bash, &folder)
        };
        let mut switch = shell();
        let up = format!("trellis lab up --lab {name} --clients {clients} --servers {servers} --switch user");
        let (status, said) = switch.run(&up);
        if is_refused(test, status, &said) {
            return None;
        }
        let lab = Lab(name);
        let (_, said) = switch.run(&format!("trellis lab status --lab {} --json", lab.0));
        let found: Value = serde_json::from_str(&said.concat()).expect("JSON");
        let prefix = found["hosts"][0]["prefix"].as_str().expect("a prefix");
        let cluster = prefix.trim_end_matches(":1::/48").to_owned();
        let hosts: Vec<u16> = (1..=clients).chain(0x1001..=0x1000 + servers).collect();
        let mut shells = BTreeMap::from([(Place::Switch, switch)]);
        shells.extend(hosts.iter().map(|host| (Place::Host(*host), shell())));
        let (running, started) = (BTreeSet::new(), BTreeMap::new());
        Some(Machines { shells, lab: Some(lab), folder, cluster, hosts, running, started })
    }

    /// Runs the command of a step on all its machines.
    fn carry_out(&mut self, step: &Step) {
        if NOT_HERE.iter().any(|(command, _)| *command == step.text) {
            return;
        }
        let hosts: Vec<u16> = match step.place {
            Place::Here => panic!("`{}` of {}: the guide does not say where", step.text, step.section),
            Place::Switch => return drop(self.on(Place::Switch, step, &step.text)),
            Place::Host(host) => vec![host],
            Place::EachHost(_) => self.hosts.clone(),
            Place::EachServer(_) => self.hosts.iter().copied().filter(|host| *host > 0x1000).collect(),
        };
        let started = STARTED.into_iter().find(|start| step.text.starts_with(start));
        let is_restart = started.is_some() && !step.text.contains(" --prefix ");
        let text = match started {
            Some(start) if is_restart => with_options(&self.started[start], &step.text),
            Some(start) => {
                self.started.insert(start, step.text.clone());
                step.text.clone()
            }
            None => step.text.clone(),
        };
        let served_before = if is_restart && hosts == [CONTROLLER] { self.served() } else { 0 };
        for host in hosts {
            let text = match step.place {
                Place::EachHost(first) | Place::EachServer(first) => {
                    text.replace(&format!(":{first:x}::/48"), &format!(":{host:x}::/48"))
                }
                _ => text.clone(),
            };
            // The guide restarts a server: the running one ends first.
            if started.is_some() && !self.running.insert(host) {
                self.end(host, "TERM");
            }
            self.on(Place::Host(host), step, &text);
            if started.is_some() {
                self.shell(Place::Host(host)).run("STARTED=$!");
            }
        }
        if is_restart {
            self.controller_says("all servers are there, and what was served is", |status| {
                has_all(status, "servers", |server| server["heard_ms"].as_u64() < Some(400))
                    && served(status) >= served_before
            });
        }
    }

    /// The number of ranges and copies now.
    fn served(&mut self) -> usize {
        let mut found = 0;
        self.controller_says("anything", |status| {
            found = served(status);
            true
        });
        found
    }

    fn on(&mut self, place: Place, step: &Step, text: &str) -> Vec<String> {
        let text = self.worded(place, text);
        carry_out(self.shell(place), step, &text)
    }

    /// The command in the guide's form for a lab, or unchanged.
    fn worded(&self, place: Place, text: &str) -> String {
        let Some(Lab(lab)) = &self.lab else { return text.to_owned() };
        let words = text.split_whitespace();
        let text = match place {
            Place::Host(host) => {
                let name = if host > 0x1000 { format!("s{}", host - 0x1000) } else { format!("c{host}") };
                let mut is_left_out = false;
                let kept = words.filter(|word| {
                    let is_value = std::mem::take(&mut is_left_out);
                    is_left_out = *word == "--prefix" || *word == "--switch";
                    !is_value && !is_left_out
                });
                let words = ["trellis", "lab", "run", "--lab", lab, &name, "--"].into_iter().chain(kept);
                words.collect::<Vec<_>>().join(" ")
            }
            _ => words.chain(["--lab", lab]).collect::<Vec<_>>().join(" "),
        };
        // The machine's folder, and a device that has another name in a lab.
        let folder = self.folder.to_string();
        text.replace(CLUSTER, &self.cluster).replace("/var/lib/trellis", &folder).replace(" eth0", " e0")
    }

    fn shell(&mut self, place: Place) -> &mut Shell {
        self.shells.get_mut(&place).unwrap_or_else(|| panic!("there is no machine {place:?}"))
    }

    /// Ends what was started in a host.
    fn end(&mut self, host: u16, signal: &str) {
        self.shell(Place::Host(host)).run(&format!("kill -{signal} $STARTED; wait $STARTED"));
    }

    /// Waits until the controller's status is as expected.
    fn controller_says(&mut self, what: &str, mut is_so: impl FnMut(&Value) -> bool) {
        let asked = self.worded(Place::Host(CONTROLLER), "trellis controller status --json");
        let deadline = Instant::now() + LONG;
        loop {
            // Into a file: lasting commands may print at any moment.
            let (status, printed) = self.shell(Place::Host(CONTROLLER)).run(&format!("{asked} > status.json"));
            assert_eq!(status, 0, "{printed:?}");
            let said = std::fs::read_to_string(self.folder.file("status.json")).expect("it was written");
            let found: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
            if is_so(&found) {
                return;
            }
            assert!(Instant::now() < deadline, "in vain: {what}: {found}");
        }
    }

    /// All servers die, and are restarted as the guide starts them.
    fn lose_all_memory(&mut self, guide: &Guide) {
        for host in self.running.clone().into_iter().filter(|host| *host >= SERVER) {
            self.end(host, "KILL");
        }
        let starts = guide.steps.iter().find(|step| step.text.contains(" --backup-memory "));
        self.carry_out(starts.expect("it says how servers are started"));
        self.controller_says("nobody has the memory of host 0x1001", |status| {
            has_all(status, "servers", |server| server["heard_ms"].as_u64() < Some(400))
                && has_all(status, "ranges", |range| range["is_served"] == false && range["complete"] == json!([]))
        });
    }

    /// Runs memory with a controller, from its start to all commands of an operator.
    fn operate(&mut self, guide: &Guide) {
        for step in guide.of("Keep memory when a server dies") {
            if step.text == "trellis controller reset 0x1001" {
                self.lose_all_memory(guide);
            } else if step.text == "trellis controller status" {
                self.controller_says("all ranges have a copy", |status| {
                    has_all(status, "ranges", |range| range["complete"].as_array().map(Vec::len) == Some(1))
                });
            }
            self.carry_out(step);
        }
        for section in ["Watch", "Take something out of service", "When something is wrong"] {
            for step in guide.steps.iter().filter(|step| step.section == section) {
                self.carry_out(step);
            }
        }
    }
}

/// The command that starts something, with these options in place of those with the same names.
fn with_options(start: &str, options: &str) -> String {
    let options: Vec<&str> = options.split(' ').skip_while(|word| !word.starts_with("--")).collect();
    let mut is_replaced = false;
    let kept = start.split_whitespace().filter(|word| {
        is_replaced = if word.starts_with("--") { options.contains(word) } else { is_replaced };
        !is_replaced
    });
    kept.chain(options.iter().copied()).collect::<Vec<_>>().join(" ")
}

/// Whether all three entries in this list of a controller's status satisfy a condition.
fn has_all(status: &Value, list: &str, is_so: impl Fn(&Value) -> bool) -> bool {
    status[list].as_array().is_some_and(|list| list.len() == 3 && list.iter().all(is_so))
}

/// The number of ranges and complete copies in a controller's status.
fn served(status: &Value) -> usize {
    let ranges = status["ranges"].as_array().expect("a list");
    let copies = |range: &Value| range["complete"].as_array().map_or(0, Vec::len);
    ranges.iter().filter(|range| range["is_served"] == true).map(|range| 1 + copies(range)).sum()
}

#[test]
fn machines_become_a_fabric_and_are_operated() {
    in_namespaces("machines_become_a_fabric_and_are_operated", || {
        let guide = Guide::read(OPERATE);
        let rack = guide.others.iter().find(|(language, _)| language == "text").expect("it lists hosts");
        let mut machines = Machines::new(&rack.1);
        guide.of("Set up").for_each(|step| machines.carry_out(step));
        machines.operate(&guide);
    });
}

#[test]
fn a_lab_is_a_fabric_and_is_operated() {
    let Some(mut machines) = Machines::in_a_lab("a_lab_is_a_fabric_and_is_operated", 3, 3) else { return };
    let guide = Guide::read(OPERATE);
    // A lab's hosts and switch are already set up.
    let is_server = |step: &&Step| matches!(step.place, Place::EachServer(_));
    guide.of("Set up").filter(is_server).for_each(|step| machines.carry_out(step));
    machines.operate(&guide);
}

#[test]
fn machines_give_a_program_the_racks_memory() {
    let test = "machines_give_a_program_the_racks_memory";
    if !has_store(test) {
        return;
    }
    in_namespaces(test, || {
        let (operate, give) = (Guide::read(OPERATE), Guide::read(GIVE));
        let rack = operate.others.iter().find(|(language, _)| language == "text").expect("it lists hosts");
        let mut machines = Machines::new(&rack.1);
        let is_network = |step: &&Step| !step.text.starts_with("trellis serve ");
        operate.of("Set up").filter(is_network).for_each(|step| machines.carry_out(step));
        give.of("On real machines").for_each(|step| machines.carry_out(step));
    });
}

#[test]
fn all_of_the_guides_is_carried_out_or_has_a_reason() {
    let done: &[(&str, &[&str])] = &[
        (GIVE, &["Try it on one machine", "On real machines"]),
        (
            OPERATE,
            &[
                "Set up",
                "Keep memory when a server dies",
                "Watch",
                "Take something out of service",
                "When something is wrong",
            ],
        ),
    ];
    for (name, sections) in done {
        let guide = Guide::read(name);
        let is_here = |step: &&Step| !NOT_HERE.iter().any(|(command, _)| *command == step.text);
        for step in guide.steps.iter().filter(is_here) {
            assert!(sections.contains(&step.section.as_str()), "{name}: nobody runs `{}`", step.text);
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides").join(name);
        let text = std::fs::read_to_string(path).expect("it is there");
        let known = NO_COMMANDS.iter().filter(|(guide, _)| guide == name).flat_map(|(_, known)| known.iter());
        for part in known {
            assert!(text.contains(&format!("`{part}`")), "{name} has no `{part}` any more");
        }
    }
    let guides = [GIVE, OPERATE].map(Guide::read);
    for (command, reason) in NOT_HERE {
        let mut steps = guides.iter().flat_map(|guide| &guide.steps);
        assert!(steps.any(|step| step.text == *command) && !reason.is_empty(), "{command}");
    }
}
