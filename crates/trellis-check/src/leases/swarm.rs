//! Random clusters with leases: programs, clocks, networks and faults, one for each seed.
//!
//! Promises: a seed stands for the same run on every machine as long as the version is the same. In the first phase,
//! there are faults: messages are lost, duplicated and delayed for longer than a lease lasts; a switch delivers page
//! requests to any host; nodes sleep, stop, and restart with or without memory; ranges move; pages are split off and
//! merged back. The complete servers, which the controller's record names as home and complete backups, are never all
//! lost. In the second phase, the calm, every message arrives at its destination, every client must finish, and it
//! reads every page once more. It must never judge results itself: [`super::ghost`] does.

use super::ghost::{Ghost, check_rights};
use super::node::{Cause, Envelope, Machine, Node, Out, name};
use super::{Fault, Operation, Setup};
use crate::intern::guarded;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use trellis_base::Random;
use trellis_fabric_protocol::lease::controller::{Input as Directive, Record};
use trellis_fabric_protocol::lease::parts::Part;
use trellis_fabric_protocol::lease::{Host, Message, PageNumber, State, Timing};

/// The result of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// A short description of the cluster.
    pub cluster: String,
    /// The problem, if there was one.
    pub problem: Option<String>,
    /// Operations of clients.
    pub operations: u64,
    /// Steps of nodes.
    pub steps: u64,
    /// Commits that were acknowledged.
    pub commits: u64,
    /// Parts that were split off, and parts that were merged.
    pub parts: (u64, u64),
    /// The trace, if requested.
    pub story: Vec<String>,
}

impl Outcome {
    /// The problem and the command that reproduces it, in one line.
    pub fn complaint(&self) -> Option<String> {
        let what = self.problem.as_ref()?;
        Some(format!("{what} ({}); trellis check replay 'lease:{}'", self.cluster, self.seed))
    }
}

/// The advance of a correct clock for one unit of real time.
const RATE: u64 = 1_000;
/// The maximum error of a rate, in thousandths.
const RATE_ERROR: u64 = 50;
const TERM: u64 = 1_000;
const HOME_LEASE: u64 = 1_200;
const RETRY: u64 = 60;
/// How long a message is under way at most: an answer comes before the first retry.
const DELAY: u64 = 25;
/// The same in a slow network: an answer may come after several retries.
const SLOW_DELAY: u64 = 100;
/// The maximum number of events at an instant; with more, time does not advance.
const AT_ONCE_MAX: u32 = 100_000;
/// The beginning of the calm.
const CALM: u64 = 12_000;
/// The end of the run; every client must have finished.
const END: u64 = CALM + 30 * HOME_LEASE;

/// The faults of a run.
#[derive(Clone, Copy, Debug)]
struct FaultMix {
    loses: bool,
    repeats: bool,
    holds_up: bool,
    misroutes: bool,
    sleeps: bool,
    injections: u64,
    /// The percentage of outside events that concern parts.
    parts: u8,
}

/// Runs the cluster of a seed.
pub fn run(seed: u64, fault: Fault, with_story: bool) -> Outcome {
    let mut random = Random::for_purpose(seed, 21);
    let (setup, fault_mix) = draw(&mut random, fault);
    let mut cluster = format!("servers={} backups={}", setup.servers, setup.backups.len());
    cluster += &format!(" clients={} readers={} pages={}", setup.clients.len(), setup.readers, setup.pages);
    cluster += &format!(" home changes={}", setup.home_changes);
    cluster += &format!(" {fault_mix:?}");
    let operations = setup.clients.iter().map(|script| script.len() as u64).sum();
    let mut world = World::new(setup, fault_mix, random, with_story);
    let ended = guarded(|| world.run()).unwrap_or_else(|what| Err(format!("a machine stopped: {what}")));
    Outcome {
        seed,
        cluster,
        problem: ended.err(),
        operations,
        steps: world.steps,
        commits: world.commits,
        parts: world.parts,
        story: world.story,
    }
}

fn draw(random: &mut Random, fault: Fault) -> (Setup, FaultMix) {
    let servers = 1 + random.below(4) as u16;
    let backups: Vec<Host> = (1..servers).filter(|_| random.once_in(2)).map(Host).collect();
    let pages = 1 + random.below(3);
    // One more page, which homes change themselves.
    let home_changes = if random.once_in(4) { 1 + random.below(6) as u8 } else { 0 };
    let all_pages = pages + u64::from(home_changes > 0);
    let clients = (0..1 + random.below(3)).map(|_| script(random, pages, all_pages)).collect();
    let timing = Timing::new(TERM * RATE, HOME_LEASE * RATE, RETRY * RATE, RATE_ERROR as u32 * 1_000);
    let mut setup = Setup {
        name: "swarm".to_string(),
        pages: all_pages,
        servers,
        backups,
        parts: Vec::new(),
        part_backups: Vec::new(),
        clients,
        home_changes,
        window: 1 + random.index(4),
        readers: random.below(3) as u16,
        timing,
        rates: Vec::new(),
        ticks: 0,
        duplicates: 0,
        misrouted: 0,
        injections: Vec::new(),
        fault,
    };
    let rate = |random: &mut Random| match random.below(3) {
        0 => RATE - RATE_ERROR,
        1 => RATE + RATE_ERROR,
        _ => RATE - RATE_ERROR + random.below(2 * RATE_ERROR),
    };
    setup.rates = (0..setup.nodes()).map(|_| rate(random)).collect();
    let fault_mix = FaultMix {
        loses: random.once_in(2),
        repeats: random.once_in(2),
        holds_up: random.once_in(2),
        misroutes: random.once_in(2),
        sleeps: random.once_in(2),
        injections: if random.once_in(4) { 0 } else { 1 + random.below(12) },
        parts: if random.once_in(3) { 0 } else { 20 + random.below(60) as u8 },
    };
    (setup, fault_mix)
}

/// A client's operations on the pages that it may change; at the end, in the calm, it reads every page.
fn script(random: &mut Random, pages: u64, all_pages: u64) -> Vec<Operation> {
    let mut script = Vec::new();
    for _ in 0..4 + random.below(12) {
        let page = random.below(pages);
        if random.once_in(3) {
            script.push(Operation::Read(random.below(all_pages)));
            continue;
        }
        script.push(Operation::Update(page));
        for _ in 0..1 + random.below(3) {
            if random.once_in(2) {
                script.push(Operation::Look(page));
            }
            let release = random.once_in(2);
            script.extend([Operation::Change(page), Operation::Commit { page, release }, Operation::Look(page)]);
        }
        if random.once_in(2) {
            script.push(Operation::Release(page));
        }
    }
    script.extend((0..all_pages).map(Operation::Read));
    script
}

struct World {
    setup: Setup,
    fault_mix: FaultMix,
    random: Random,
    nodes: Vec<Node>,
    /// Until when each node sleeps, and when its program continues; in real time.
    asleep: Vec<u64>,
    goes_at: Vec<u64>,
    ghost: Ghost,
    real: u64,
    /// The number of events since real time last advanced.
    at_once: u32,
    /// Messages by time and number, with their destination node.
    queue: BinaryHeap<Reverse<(u64, u64, usize, Envelope)>>,
    /// How long a message of the calm is under way, at most.
    calm_delay: u64,
    injections_at: Vec<u64>,
    /// What the controller does about parts as soon as it may.
    wanted: Option<Wanted>,
    numbered: u64,
    steps: u64,
    commits: u64,
    parts: (u64, u64),
    with_story: bool,
    story: Vec<String>,
}

impl World {
    fn new(setup: Setup, fault_mix: FaultMix, mut random: Random, with_story: bool) -> World {
        let nodes: Vec<Node> = (0..setup.nodes()).map(|number| Node::new(&setup, number)).collect();
        let count = nodes.len();
        // Outside events are spread over the whole time, or are mostly close together: errors are likely in work that
        // is half done when the next event happens.
        let burst = random.once_in(2).then(|| random.below(CALM - 6_000));
        let mut at = || match burst {
            Some(begin) => begin + 50 + random.below(2 * HOME_LEASE),
            None => 50 + random.below(CALM - 2_000),
        };
        let mut injections_at: Vec<u64> = (0..fault_mix.injections).map(|_| at()).collect();
        injections_at.sort_unstable_by_key(|&at| Reverse(at));
        let ghost = Ghost::new(&setup);
        // In some networks an answer takes longer than a retry, also when nothing is wrong.
        let calm_delay = if random.once_in(4) { SLOW_DELAY } else { DELAY };
        World {
            setup,
            fault_mix,
            random,
            nodes,
            asleep: vec![0; count],
            goes_at: vec![1; count],
            ghost,
            real: 0,
            at_once: 0,
            queue: BinaryHeap::new(),
            calm_delay,
            injections_at,
            wanted: None,
            numbered: 0,
            steps: 0,
            commits: 0,
            parts: (0, 0),
            with_story,
            story: Vec::new(),
        }
    }

    fn is_calm(&self) -> bool {
        self.real >= CALM
    }

    fn run(&mut self) -> Result<(), String> {
        loop {
            if self.is_calm() && self.nodes.iter().all(|node| node.is_done(&self.setup)) {
                return Ok(());
            }
            let Some((at, node, what)) = self.next() else {
                return Err(self.stuck());
            };
            self.at_once = if at > self.real { 0 } else { self.at_once + 1 };
            self.real = self.real.max(at);
            if self.real > END || self.at_once > AT_ONCE_MAX {
                return Err(self.stuck());
            }
            match what {
                Next::Inject => self.inject()?,
                Next::Tick => {
                    let first = self.nodes[node].alarms().min_by_key(|(_, alarm)| *alarm);
                    self.step(node, &Cause::Tick(first.map_or(0, |(unit, _)| unit)))?;
                }
                Next::Go => {
                    self.goes_at[node] = self.real + 1 + self.random.below(200);
                    self.step(node, &Cause::Go)?;
                }
                Next::Envelope => {
                    if let Some(Reverse((_, _, node, envelope))) = self.queue.pop() {
                        let node = self.arrives_at(node, &envelope);
                        let is_known = envelope.is_page_request() || self.nodes[node].party == envelope.to;
                        if is_known && !self.nodes[node].is_dead {
                            self.step(node, &Cause::Envelope(envelope))?;
                        }
                    }
                }
            }
            if self.wanted.is_some() && self.random.once_in(10) {
                self.pursue()?;
            }
            if self.setup.readers > 0 && self.random.once_in(100) {
                let reader = self.setup.controller() - 1 - self.random.index(self.setup.readers.into());
                if self.real >= self.asleep[reader] {
                    let page = self.random.below(self.setup.leased_pages());
                    self.step(reader, &Cause::Renounce(page))?;
                }
            }
            if self.setup.home_changes > 0 && self.random.once_in(10) {
                let server = self.random.index(self.setup.servers.into());
                let can_change = self.nodes[server].can_change(&self.setup, self.setup.now(server, self.real));
                if can_change && self.real >= self.asleep[server] {
                    self.step(server, &Cause::Change)?;
                }
            }
        }
    }

    fn stuck(&self) -> String {
        let waiting: Vec<String> = self
            .nodes
            .iter()
            .filter(|node| !node.is_done(&self.setup))
            .map(|node| format!("node {} at {:?}", node.number, node.operation(&self.setup)))
            .collect();
        format!("a node or client waits for ever: {}", waiting.join(", "))
    }

    /// The next event, its time and its node.
    fn next(&self) -> Option<(u64, usize, Next)> {
        let envelope = self.queue.peek().map(|Reverse((at, ..))| (*at, 0, Next::Envelope));
        let injection = self.injections_at.last().map(|&at| (at, 0, Next::Inject));
        let alarm = |node: &Node| {
            let local = node.alarm()?;
            let at = local.div_ceil(self.setup.rates[node.number]);
            Some((at.max(self.real).max(self.asleep[node.number]), node.number, Next::Tick))
        };
        let go = |node: &Node| {
            let last = self.setup.clients.get(node.number.checked_sub(usize::from(self.setup.servers))?)?.len();
            let is_last = usize::from(node.next) + self.setup.pages as usize >= last;
            let at = self.goes_at[node.number].max(if is_last { CALM } else { 0 });
            node.can_go(&self.setup).then_some((at.max(self.asleep[node.number]), node.number, Next::Go))
        };
        let alarms = self.nodes.iter().filter_map(alarm);
        let goes = self.nodes.iter().filter_map(go);
        envelope
            .into_iter()
            .chain(injection)
            .chain(alarms)
            .chain(goes)
            .min_by_key(|(at, node, what)| (*at, *what, *node))
    }

    /// The node where the switch finally delivers a message.
    fn arrives_at(&mut self, meant: usize, envelope: &Envelope) -> usize {
        let errs = envelope.is_page_request() && self.fault_mix.misroutes && !self.is_calm() && self.random.once_in(4);
        if errs { self.random.index(self.setup.controller()) } else { meant }
    }

    fn step(&mut self, node: usize, cause: &Cause) -> Result<(), String> {
        if self.real < self.asleep[node]
            && let Cause::Envelope(envelope) = cause
        {
            self.queue.push(Reverse((self.asleep[node], self.numbered, node, envelope.clone())));
            self.numbered += 1;
            return Ok(());
        }
        self.steps += 1;
        let now = self.setup.now(node, self.real);
        let mut out = Out { story: self.with_story.then(Vec::new), ..Out::default() };
        if self.with_story {
            self.story.push(match cause {
                Cause::Envelope(envelope) => {
                    format!("{:>6} node {node} hears from {}: {}", self.real, name(envelope.from), envelope.text())
                }
                other => format!("{:>6} node {node}: {other:?}", self.real),
            });
        }
        self.nodes[node].step(&self.setup, now, cause, &mut out);
        self.story.extend(out.story.into_iter().flatten());
        for event in out.events {
            self.commits += u64::from(matches!(event, super::ghost::Event::CommitEnds(_, _, true)));
            if self.with_story {
                self.story.push(format!("  {event:?}"));
            }
            self.ghost.note(event)?;
        }
        out.envelopes.into_iter().for_each(|envelope| self.post(envelope));
        if self.fault_mix.sleeps && !self.is_calm() && self.random.once_in(60) {
            self.asleep[node] = self.real + self.random.below(2 * TERM);
        }
        let now = |node, real| self.setup.now(node, real);
        if let Some(holders) = self.ghost.other_holders(self.real, self.nodes.iter(), now) {
            self.ghost.hold(holders);
        }
        check_rights(&self.setup, self.real, self.nodes.iter(), |node, real| self.setup.now(node, real))
    }

    /// Sends a message, loses it, or sends it twice.
    fn post(&mut self, envelope: Envelope) {
        let Some(node) = self.setup.node(envelope.to.host) else { return };
        let is_rough = !self.is_calm();
        if is_rough && self.fault_mix.loses && self.random.once_in(8) {
            return;
        }
        let copies = if is_rough && self.fault_mix.repeats && self.random.once_in(6) { 2 } else { 1 };
        for _ in 0..copies {
            let long = is_rough && self.fault_mix.holds_up && self.random.once_in(10);
            let wait = if long { self.random.below(3 * TERM) } else { self.random.below(self.calm_delay) };
            let at = self.real + 1 + wait;
            self.queue.push(Reverse((at, self.numbered, node, envelope.clone())));
            self.numbered += 1;
        }
    }

    /// Injects a fault or directive.
    fn inject(&mut self) -> Result<(), String> {
        self.injections_at.pop();
        let node = self.random.index(self.setup.nodes());
        let servers = usize::from(self.setup.servers);
        if self.nodes[node].is_dead {
            return Ok(());
        }
        if self.random.percent(self.fault_mix.parts) {
            self.want();
            return Ok(());
        }
        let is_server = node < servers;
        let cause = match self.random.below(4) {
            0 if is_server && self.is_dispensable(node) => Cause::Death,
            1 if is_server && self.is_dispensable(node) => Cause::Restart { keeps: false },
            2 | 3 if servers > 1 && self.random.once_in(2) => {
                let to = self.random.index(servers);
                if self.nodes[to].is_dead {
                    return Ok(());
                }
                let to_host = Host(to as u16);
                let unit = self.random.index(1 + self.nodes[self.setup.controller()].units.len());
                let directive = match self.random.below(6) {
                    0 | 1 => Directive::Back(to_host),
                    2 if self.is_dispensable(to) => Directive::Drop(to_host),
                    // There is a home with its memory, or a backup: the order is void, or the reset keeps the whole
                    // content.
                    3 if unit == 0 && self.is_home_with_memory(to) => Directive::Reset(to_host),
                    _ => Directive::Move(to_host),
                };
                return self.step(self.setup.controller(), &Cause::Directive(unit, directive));
            }
            _ => Cause::Restart { keeps: true },
        };
        self.step(node, &cause)?;
        if !self.nodes[node].is_dead && self.random.once_in(2) {
            // A restart takes a while.
            self.asleep[node] = self.real + self.random.below(HOME_LEASE);
        }
        Ok(())
    }

    fn is_home_with_memory(&self, node: usize) -> bool {
        let record = self.nodes[self.setup.controller()].log.as_ref();
        let Machine::Server(server) = &self.nodes[node].machine else { return false };
        record.is_some_and(|record| usize::from(record.home.0) == node) && !server.memory.is_blank
    }

    /// Chooses a part to split off or to merge.
    fn want(&mut self) {
        let units = self.nodes[self.setup.controller()].units.len();
        self.wanted = Some(match units > 0 && self.random.once_in(2) {
            true => Wanted::Merge(self.random.index(units)),
            false => {
                let first = self.random.below(self.setup.leased_pages());
                let pages = 1 + self.random.below((self.setup.leased_pages() - first).min(2));
                Wanted::Split(first, pages)
            }
        });
    }

    /// Takes the next step toward that.
    fn pursue(&mut self) -> Result<(), String> {
        let number = self.setup.controller();
        let controller = &self.nodes[number];
        let units = controller.units.len();
        if self.real < self.asleep[number] {
            return Ok(());
        }
        let cause = match self.wanted {
            Some(Wanted::Merge(place)) if place < units => match self.before_merge(place) {
                Some(directive) => Cause::Directive(place + 1, directive),
                None => Cause::Merge(place),
            },
            Some(Wanted::Split(first, pages)) => Cause::Split(first, pages),
            _ => {
                self.wanted = None;
                return Ok(());
            }
        };
        self.step(number, &cause)?;
        let now = self.nodes[number].units.len();
        self.parts.0 += u64::from(now > units);
        self.parts.1 += u64::from(now < units);
        if now != units {
            self.wanted = None;
        }
        Ok(())
    }

    /// What is missing before a part is placed like its range.
    fn before_merge(&self, place: usize) -> Option<Directive> {
        let controller = &self.nodes[self.setup.controller()];
        let (range, part) = (controller.log.as_ref()?, controller.units[place].log.as_ref()?);
        if part.home != range.home {
            return Some(Directive::Move(range.home));
        }
        // A host that is gone will soon no longer be a backup of the range.
        let may_be = |host: &&Host| !part.backups.contains(host) && !self.nodes[usize::from(host.0)].is_dead;
        let more = range.backups.iter().find(may_be);
        let is_less = |host: &&Host| !range.backups.contains(host) && self.is_dispensable(usize::from(host.0));
        let less = || part.backups.iter().find(is_less);
        more.map(|host| Directive::Back(*host)).or_else(|| less().map(|host| Directive::Drop(*host)))
    }

    /// Whether another server that lives is complete, by the controller's persisted record, for the range and for each
    /// part.
    fn is_dispensable(&self, node: usize) -> bool {
        let controller = &self.nodes[self.setup.controller()];
        let of_range = (&controller.machine, &controller.log, None);
        let of_parts = controller.units.iter().map(|unit| (&unit.machine, &unit.log, Some(unit.part)));
        // A report is under way that a server lost its memory or that a backup is silent: that server will soon no
        // longer count.
        let is_about_to = self.queue.iter().any(|Reverse((.., envelope))| {
            let Message::Report { state, .. } = &envelope.message else { return false };
            matches!(state, State::Blank | State::Home { silent: Some(_), .. })
        });
        let is_it = |(machine, log, part): (&Machine, &Option<Record>, Option<Part>)| {
            let Some(record) = log else { return false };
            // A server that is about to become home must not go now.
            if matches!(machine, Machine::Controller(controller) if controller.is_open) {
                return false;
            }
            let has = |host: &Host| usize::from(host.0) != node && self.has_everything(usize::from(host.0), part);
            // A record that is about to change does not count: the current home must live.
            let home_lives = has(&record.home) && record.boot_id.is_some();
            let is_told = !record.backups.contains(&Host(node as u16)) || home_lives;
            is_told && (home_lives || record.complete.iter().any(has))
        };
        !is_about_to && [of_range].into_iter().chain(of_parts).all(is_it)
    }

    /// Whether a server that the controller names lives and still has its pages of the range, or of a part.
    fn has_everything(&self, node: usize, part: Option<Part>) -> bool {
        let server = &self.nodes[node];
        let is_blank = |machine: &Machine| matches!(machine, Machine::Server(server) if server.memory.is_blank);
        let of_part = server.units.iter().find(|unit| Some(unit.part) == part);
        // A server that has not heard of a part has its pages as pages of the range.
        let hands = match of_part.map_or(&server.machine, |unit| &unit.machine) {
            // A server that hands over no longer counts.
            Machine::Server(server) => {
                server.handed.is_some() || server.home.as_ref().is_some_and(|home| home.hand_to.is_some())
            }
            _ => true,
        };
        !server.is_dead && !hands && !server.machines().any(is_blank)
    }
}

/// What the controller does about parts.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// Split off this number of pages, from this one on.
    Split(PageNumber, PageNumber),
    /// Merge this one of the parts.
    Merge(usize),
}

/// The next event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Next {
    Inject,
    Envelope,
    Tick,
    Go,
}
