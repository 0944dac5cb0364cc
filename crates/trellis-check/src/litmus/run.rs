//! The simulated runs, one after the other: copies are spread, threads run, and one node reads the final values.
//!
//! Promises: the next event depends on the seed of the block alone. It must never choose an impossible event, such as
//! a step of a thread that was not woken, or the release of a page whose woken thread has not run yet (unless the
//! runtime's bound passed).

use super::Kind;
use super::cluster::{Activity, Cluster, NEW, NODES_MAX, PAGES_MAX, Thread, members};
use super::program::{Code, Instruction, OBSERVED_MAX, Operand, Outcome, Program};
use super::series::{Ended, Run, Runner, Series};
use crate::intern::guarded;
use trellis_base::Random;
use trellis_cluster_protocol::coherence::{Coherence, Geometry, Protocol};
use trellis_cluster_protocol::homes::{Home, Manager};
use trellis_cluster_protocol::node::Shard;
use trellis_cluster_protocol::{NodeId, PageIndex, PageRange};

/// The ways in which a run chooses the next event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Schedule {
    /// Every possible event is equally likely.
    Uniform,
    /// The event with the highest priority. Now and then the priority of the chosen one falls below all others (after
    /// PCT: Burckhardt, Kothari, Musuvathi and Nagarakatte 2010).
    Priorities,
    /// As before, and all messages to one node have the priority of that node.
    Receivers,
}

/// A possible event.
#[derive(Clone, Copy)]
enum Action {
    Deliver(usize),
    Thread(usize),
    /// The timer of this node at this place expires.
    Timer {
        node: u8,
        place: usize,
        is_alarm: bool,
    },
}

pub(super) struct Simulator<'a, N, F> {
    series: &'a Series<'a>,
    start: F,
    /// Fresh nodes, by protocol, number of nodes, pages and manager.
    fresh: Vec<Option<Vec<Shard<N>>>>,
    pub(super) cluster: Cluster<N>,
    random: Random,
    schedule: Schedule,
    /// The lowest priority so far; a lowered priority is below it.
    lowest: u32,
    receivers: [u32; NODES_MAX],
    time_outs: u8,
    late_faults: bool,
    pub(super) steps: u64,
    steps_left: u32,
    program: usize,
    placement: usize,
    layout: usize,
    /// Whether the cluster of the last run can be used for the next.
    is_sound: bool,
    so_far: Outcome,
    /// The access of the extra thread, which spreads copies and reads the final values.
    errand: Option<(u8, Option<Code>)>,
}

/// Random priorities are above all lowered ones.
const RANDOM: u32 = 1 << 31;

/// The slot of an outcome that no program uses: the value that the extra thread loaded.
const ERRAND: usize = OBSERVED_MAX;

impl<N: Coherence + Clone, F: Fn(Protocol, Geometry) -> N> Runner for Simulator<'_, N, F> {
    fn run(&mut self, run: &Run) -> Result<Outcome, Ended> {
        // A failed assertion of the protocol is a failure too.
        let end = guarded(|| self.run_unguarded(run)).unwrap_or_else(|what| Err((Kind::Broken, what)));
        // After an error, the same cluster would only repeat it.
        self.is_sound = end.is_ok();
        end
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn keep_story(&mut self) {
        self.cluster.trace = Some(Vec::new());
    }

    fn take_story(&mut self, run: &Run) -> (String, Vec<String>) {
        let protocol = self.series.protocol(run);
        (format!("protocol {protocol}"), self.cluster.trace.take().unwrap_or_default())
    }
}

impl<'a, N: Coherence + Clone, F: Fn(Protocol, Geometry) -> N> Simulator<'a, N, F> {
    pub(super) fn new(series: &'a Series<'a>, start: F) -> Simulator<'a, N, F> {
        Simulator {
            series,
            start,
            fresh: Vec::new(),
            cluster: Cluster::new(),
            random: Random::new(0),
            schedule: Schedule::Uniform,
            lowest: RANDOM,
            receivers: [0; NODES_MAX],
            time_outs: 0,
            late_faults: false,
            steps: 0,
            steps_left: 0,
            program: 0,
            placement: 0,
            layout: 0,
            is_sound: false,
            so_far: Outcome::default(),
            errand: None,
        }
    }

    /// One run, from the state that the previous run left to its outcome.
    fn run_unguarded(&mut self, run: &Run) -> Result<Outcome, Ended> {
        let series = self.series;
        let prepared = &series.programs[run.program];
        let program = &prepared.program;
        self.program = run.program;
        if run.number == 0 {
            self.random = Random::for_purpose(run.seed, 3);
            self.placement = self.draw_one(prepared.placements.len());
            self.layout = self.draw_one(prepared.layouts.len());
        }
        let is_fresh = run.number == 0 || !self.is_sound;
        self.is_sound = false;
        let placement = &prepared.placements[self.placement];
        if is_fresh {
            self.make_cluster(run.protocol, placement, &prepared.layouts[self.layout]);
        } else {
            self.cluster.rewrite(&program.initial);
        }
        self.place_threads(placement, &prepared.layouts[self.layout]);
        self.so_far = program.start();
        self.steps_left = series.options.steps_max;
        self.spread_copies(program, is_fresh)?;
        self.cluster.tell(|_| "the threads start".to_string());
        for (thread, code) in program.threads.iter().enumerate() {
            self.cluster.turn(thread, if code.is_empty() { Activity::Done } else { Activity::Ready });
        }
        self.go_on()?;
        self.cluster.tell(|_| "the threads are done".to_string());
        let reader = self.random.index(self.cluster.nodes.len()) as u8;
        for location in 0..program.locations.len() as u8 {
            let code = self.send_errand(reader, location, None)?;
            self.so_far = self.so_far.with(program.location_slot(location), code);
        }
        Ok(self.so_far.with(ERRAND, 0))
    }

    /// An index; half of the time the last, where everything is separate.
    fn draw_one(&mut self, count: usize) -> usize {
        if self.random.once_in(2) { count - 1 } else { self.random.index(count) }
    }

    /// Makes a cluster in which no node holds anything.
    fn make_cluster(&mut self, protocol: usize, placement: &[u8], layout: &[u8]) {
        let groups = placement.iter().max().map_or(1, |&last| last + 1);
        let idle = u8::from(groups < self.series.options.nodes_max && self.random.once_in(2));
        let nodes = groups + idle;
        let manager = self.random.below(nodes.into()) as u8;
        let pages = layout.iter().max().map_or(1, |&last| last + 1);
        let fresh = self.fresh_nodes(protocol, nodes, pages, manager);
        let start = self.fresh[fresh].as_deref().expect("it was just made");
        self.cluster.reset(start, layout, pages, self.series.options.checks_contract);
        self.cluster.tell(|_| format!("{nodes} nodes, manager {manager}"));
    }

    /// Places the threads, which have not started, on nodes of the cluster, and chooses the schedule.
    fn place_threads(&mut self, placement: &[u8], layout: &[u8]) {
        let nodes = self.cluster.nodes.len() as u8;
        let schedules = [Schedule::Uniform, Schedule::Uniform, Schedule::Priorities, Schedule::Receivers];
        self.schedule = self.random.one_of(&schedules);
        self.lowest = RANDOM;
        self.receivers = [0; NODES_MAX].map(|_| RANDOM | self.random.draw() as u32);
        self.time_outs = u8::from(self.random.once_in(4));
        self.late_faults = self.random.once_in(2);
        self.cluster.silent = self.random.once_in(4);
        self.cluster.clear_threads();
        // Groups are rotated over the nodes, so that the manager is sometimes one of them.
        let turn = self.random.below(nodes.into()) as u8;
        for &group in placement {
            self.add_thread((group + turn) % nodes);
        }
        self.add_thread(0);
        self.cluster.tell(|cluster| {
            let on: Vec<String> = cluster.threads[..placement.len()].iter().map(|t| t.node.to_string()).collect();
            let pages: Vec<String> = layout.iter().map(u8::to_string).collect();
            format!("threads on nodes {}; locations on pages {}", on.join(" "), pages.join(" "))
        });
        self.cluster.tell(Cluster::situation);
    }

    fn add_thread(&mut self, node: u8) {
        let priority = RANDOM | self.random.draw() as u32;
        self.cluster.threads.push(Thread { node, priority, activity: Activity::Done, ..Thread::default() });
    }

    fn fresh_nodes(&mut self, protocol: usize, nodes: u8, pages: u8, manager: u8) -> usize {
        let sizes = NODES_MAX * PAGES_MAX * NODES_MAX;
        let place = (usize::from(nodes) - 1) * PAGES_MAX + usize::from(pages) - 1;
        let index = protocol * sizes + place * NODES_MAX + usize::from(manager);
        if self.fresh.len() <= index {
            self.fresh.resize_with(index + 1, || None);
        }
        if self.fresh[index].is_none() {
            let home = Home::Manager(Manager(NodeId(manager.into())));
            let geometry = |me: u8| Geometry {
                me: NodeId(me.into()),
                nodes: nodes.into(),
                founders: nodes.into(),
                pages: pages.into(),
                shard: 0,
                shards: 1,
                home,
                marks: false,
            };
            let start = |me| {
                let protocol = (self.start)(self.series.options.protocols[protocol], geometry(me));
                Shard::new(protocol, geometry(me), NodeId(0))
            };
            self.fresh[index] = Some((0..nodes).map(start).collect());
        }
        index
    }

    /// Random loads, and stores of the initial values, by random nodes, through the protocol.
    fn spread_copies(&mut self, program: &Program, is_fresh: bool) -> Result<(), Ended> {
        let (nodes, locations) = (self.cluster.nodes.len() as u64, program.locations.len() as u64);
        for (location, &initial) in program.initial.iter().enumerate() {
            if is_fresh && initial != 0 {
                let node = self.random.below(nodes) as u8;
                self.send_errand(node, location as u8, Some(initial))?;
            }
        }
        let most = if is_fresh { 2 * locations } else { locations.div_ceil(2) };
        for _ in 0..self.random.below(most + 1) {
            let (node, location) = (self.random.below(nodes) as u8, self.random.below(locations) as u8);
            let stores = self.random.once_in(2);
            let value = stores.then_some(program.initial[usize::from(location)]);
            self.send_errand(node, location, value)?;
        }
        Ok(())
    }

    /// One access by the extra thread.
    fn send_errand(&mut self, node: u8, location: u8, value: Option<Code>) -> Result<Code, (Kind, String)> {
        self.errand = Some((location, value));
        let index = self.cluster.threads.len() - 1;
        self.cluster.threads[index].node = node;
        self.cluster.turn(index, Activity::Ready);
        // An access to a page that is present needs no schedule.
        self.try_instruction(index);
        self.go_on()?;
        Ok(self.so_far.get(ERRAND))
    }

    /// Executes events until every thread is done.
    fn go_on(&mut self) -> Result<(), Ended> {
        while self.cluster.unfinished != 0 {
            if let Some(what) = self.cluster.problem.take() {
                return Err((Kind::Broken, what));
            }
            let Some(action) = self.choose() else {
                return Err((Kind::Stuck, self.waiting_text()));
            };
            if self.steps_left == 0 {
                let steps = self.series.options.steps_max;
                return Err((Kind::Stuck, format!("{} after {steps} steps", self.waiting_text())));
            }
            self.steps_left -= 1;
            self.steps += 1;
            self.cluster.now += 50 + (self.random.draw() & 1023);
            self.act(action);
        }
        match self.cluster.problem.take() {
            Some(what) => Err((Kind::Broken, what)),
            None => Ok(()),
        }
    }

    fn waiting_text(&self) -> String {
        let waiting = self.cluster.threads.iter().filter(|thread| thread.activity != Activity::Done);
        let waiting: Vec<String> =
            waiting.map(|thread| format!("a thread of node {} waits for page {}", thread.node, thread.page)).collect();
        waiting.join(", ")
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Deliver(index) => self.cluster.deliver(index),
            Action::Timer { node, place, .. } => self.cluster.go_off(node, place),
            Action::Thread(thread) => match self.cluster.threads[thread].activity {
                Activity::Faulted => self.report_fault(thread),
                Activity::Woken => {
                    let Thread { node, page, .. } = self.cluster.threads[thread];
                    self.try_instruction(thread);
                    let looks_itself = self.random.once_in(4);
                    self.cluster.looked(node, page, looks_itself);
                }
                _ => self.try_instruction(thread),
            },
        }
        self.draw_priorities();
    }

    /// Every message that was sent just now gets a priority.
    fn draw_priorities(&mut self) {
        let messages = &mut self.cluster.messages;
        let old = messages.iter().rposition(|envelope| envelope.priority != NEW).map_or(0, |last| last + 1);
        for envelope in &mut messages[old..] {
            envelope.priority = RANDOM | self.random.draw() as u32;
        }
    }

    fn report_fault(&mut self, thread: usize) {
        let page = PageIndex(self.cluster.threads[thread].page.into());
        let wide = self.random.once_in(4);
        let wanted = if wide { PageRange::around(page, 0, self.cluster.pages.into()) } else { PageRange::one(page) };
        self.cluster.report_fault(thread, wanted);
        self.draw_priorities();
    }

    /// A thread tries its next instruction: it continues, or faults.
    fn try_instruction(&mut self, thread: usize) {
        let series = self.series;
        let program = &series.programs[self.program].program;
        let Thread { node, next, .. } = self.cluster.threads[thread];
        let instruction = match (program.threads.get(thread), self.errand) {
            (Some(code), _) => code[usize::from(next)],
            (None, Some((location, value))) => errand_instruction(location, value),
            (None, None) => unreachable!("the thread without code runs errands only"),
        };
        let Some((location, write)) = instruction.access() else { return self.advance(thread, instruction) };
        let page = series.programs[self.program].layouts[self.layout][usize::from(location)];
        let seen = match instruction {
            Instruction::Load { .. } => self.cluster.load(node, page, location),
            Instruction::Store { source, .. } | Instruction::Exchange { source, .. } => {
                self.cluster.swap(node, page, location, Program::operand(source, self.so_far))
            }
            Instruction::Fence | Instruction::Call(_) => None,
        };
        let Some(seen) = seen else { return self.fault(thread, page, write) };
        if let Some(register) = instruction.target() {
            self.so_far = self.so_far.with(register.into(), seen);
        }
        self.advance(thread, instruction);
    }

    fn fault(&mut self, thread: usize, page: u8, write: bool) {
        let asks_write = write || self.random.once_in(16);
        let state = &mut self.cluster.threads[thread];
        (state.page, state.asks_write) = (page, asks_write);
        self.cluster.turn(thread, Activity::Faulted);
        if !self.late_faults || self.random.once_in(2) {
            self.report_fault(thread);
        }
    }

    fn advance(&mut self, thread: usize, instruction: Instruction) {
        let series = self.series;
        let program = &series.programs[self.program].program;
        let so_far = self.so_far;
        self.cluster.tell(|cluster| tell_instruction(cluster, program, thread, instruction, so_far));
        let state = &mut self.cluster.threads[thread];
        state.next += 1;
        let is_over = program.threads.get(thread).is_none_or(|code| code.len() <= usize::from(state.next));
        self.cluster.turn(thread, if is_over { Activity::Done } else { Activity::Ready });
    }

    fn choose(&mut self) -> Option<Action> {
        match self.schedule {
            Schedule::Uniform => self.choose_any(),
            _ => self.choose_first(),
        }
    }

    fn choose_any(&mut self) -> Option<Action> {
        // Of each node, the number of timers, and whether the runtime's bound passes before a thread has run.
        let mut timers = [(0, false); NODES_MAX];
        let mut total = 0;
        for node in members(self.cluster.open) {
            let is_late = self.time_outs > 0 && self.cluster.is_about_to_look(node) && self.random.once_in(8);
            self.time_outs -= u8::from(is_late);
            let count = self.cluster.pending(node, is_late).count();
            timers[usize::from(node)] = (count, is_late);
            total += count as u32;
        }
        let cluster = &self.cluster;
        let messages = cluster.messages.len() as u32;
        let threads = cluster.runnable.count_ones();
        total += messages + threads;
        if total == 0 {
            return None;
        }
        let mut at = self.random.below(total.into()) as u32;
        if at < messages {
            return Some(Action::Deliver(at as usize));
        }
        at -= messages;
        if at < threads {
            return { members(cluster.runnable) }.nth(at as usize).map(|thread| Action::Thread(thread.into()));
        }
        let mut at = (at - threads) as usize;
        let node = members(cluster.open).find(|&node| {
            let (count, _) = timers[usize::from(node)];
            let is_here = at < count;
            at -= if is_here { 0 } else { count };
            is_here
        })?;
        let (_, is_late) = timers[usize::from(node)];
        let (place, is_alarm) = cluster.pending(node, is_late).nth(at)?;
        Some(Action::Timer { node, place, is_alarm })
    }

    /// The event with the highest priority.
    fn choose_first(&mut self) -> Option<Action> {
        let mut best: Option<(u32, Action)> = None;
        let mut offer = |priority: u32, action| {
            if best.is_none_or(|(most, _)| priority > most) {
                best = Some((priority, action));
            }
        };
        let by_receiver = self.schedule == Schedule::Receivers;
        for (index, envelope) in self.cluster.messages.iter().enumerate() {
            let is_behind = envelope.priority < RANDOM;
            let of_receiver = by_receiver && !is_behind;
            offer(
                if of_receiver { self.receivers[usize::from(envelope.to)] } else { envelope.priority },
                Action::Deliver(index),
            );
        }
        for index in members(self.cluster.runnable).map(usize::from) {
            offer(self.cluster.threads[index].priority, Action::Thread(index));
        }
        for node in members(self.cluster.open) {
            let priority = self.receivers[usize::from(node)];
            for (place, is_alarm) in self.cluster.pending(node, false) {
                let priority = if is_alarm { priority / 2 } else { priority };
                offer(priority, Action::Timer { node, place, is_alarm });
            }
        }
        let (_, action) = best?;
        if self.random.once_in(8) {
            self.fall_behind(action);
            return self.choose_any();
        }
        Some(action)
    }

    fn fall_behind(&mut self, action: Action) {
        self.lowest -= 1;
        match action {
            Action::Deliver(index) => self.cluster.messages[index].priority = self.lowest,
            Action::Thread(index) => self.cluster.threads[index].priority = self.lowest,
            Action::Timer { node, is_alarm: false, .. } => self.receivers[usize::from(node)] = self.lowest,
            Action::Timer { .. } => {}
        }
    }
}

fn errand_instruction(location: u8, value: Option<Code>) -> Instruction {
    let register = ERRAND as u8;
    match value {
        Some(code) => Instruction::Store { location, source: Operand::Constant(code) },
        None => Instruction::Load { register, location },
    }
}

fn tell_instruction<N>(
    cluster: &Cluster<N>,
    program: &Program,
    thread: usize,
    instruction: Instruction,
    so_far: Outcome,
) -> String {
    let node = cluster.threads[thread].node;
    let value = |code: Code| program.values.get(usize::from(code)).map_or("never-written".into(), i64::to_string);
    if thread < program.threads.len() {
        let text = program.instruction_text(instruction);
        let seen = instruction.target().map(|register| format!(" -> {}", value(so_far.get(register.into()))));
        return format!("P{thread} on node {node}: {text}{}", seen.unwrap_or_default());
    }
    match instruction {
        Instruction::Store { location, source } => {
            let code = Program::operand(source, so_far);
            format!("before: node {node} stores {} to {}", value(code), program.locations[usize::from(location)])
        }
        Instruction::Load { register, location } => {
            let code = value(so_far.get(register.into()));
            format!("meanwhile: node {node} loads {} -> {code}", program.locations[usize::from(location)])
        }
        other => format!("node {node}: {other:?}"),
    }
}
