//! The simulated runs, one after the other: copies are spread, threads run, and one node reads the final values.
//!
//! Promises: the next event depends on the seed of the block alone. It must never choose an impossible event, such as
//! a step of a thread that was not woken, or the release of a page whose woken thread has not run yet (unless the
//! runtime's bound passed).

use super::Kind;
use super::program::{ALIEN, Code, Instruction, LOCATIONS_MAX, OBSERVED_MAX, Operand, Outcome, Program};
use super::series::{Ended, Run, Runner, Series};
use crate::intern::guarded;
use crate::model::{Driven, RunsOn, nodes_of};
use trellis_base::Random;
use trellis_cluster_protocol::coherence::{Coherence, Geometry, Input, Protocol};
use trellis_cluster_protocol::homes::{Home, Manager};
use trellis_cluster_protocol::node::Node;
use trellis_cluster_protocol::{Nanoseconds, NodeId, PageIndex, PageRange};

/// The maximum number of nodes of a simulated cluster.
pub(super) const NODES_MAX: usize = 9;
/// The maximum number of pages: one for each location.
const PAGES_MAX: usize = LOCATIONS_MAX;

/// The words of a page. Those whose locations are on other pages are not used.
type Words = [Code; LOCATIONS_MAX];

type Cluster<N> = Driven<N, Words>;

/// What a thread is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// It is about to try its next instruction.
    Ready,
    /// The access failed; the protocol does not know yet.
    Faulted,
    /// It waits for its page, or was woken.
    Waits,
    Done,
}

/// A thread and its current access.
#[derive(Clone, Copy, Debug)]
struct Thread {
    node: u16,
    activity: Activity,
    /// The next instruction.
    next: u8,
    page: u8,
    asks_write: bool,
    priority: u32,
}

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
    /// This is pending at a node, and goes off.
    GoOff {
        node: u16,
        input: Input,
        due: Nanoseconds,
    },
}

pub(super) struct Simulator<'a, N, F> {
    series: &'a Series<'a>,
    start: F,
    /// Fresh nodes, by protocol, number of nodes, pages and manager.
    fresh: Vec<Option<Vec<Node<N>>>>,
    cluster: Cluster<N>,
    /// The threads of the program, and the one that runs errands.
    threads: Vec<Thread>,
    /// Those that can run without being woken, and those that are not done; one bit each.
    able: u16,
    unfinished: u16,
    /// The priority of each message under way.
    priorities: Vec<u32>,
    random: Random,
    schedule: Schedule,
    /// The lowest priority so far; a lowered priority is below it.
    lowest: u32,
    receivers: [u32; NODES_MAX],
    time_outs: u8,
    late_faults: bool,
    steps: u64,
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
        self.cluster.story = Some(Vec::new());
    }

    fn take_story(&mut self, run: &Run) -> (String, Vec<String>) {
        let protocol = self.series.protocol(run);
        (format!("protocol {protocol}"), self.cluster.story.take().unwrap_or_default())
    }
}

impl<'a, N: Coherence + Clone, F: Fn(Protocol, Geometry) -> N> Simulator<'a, N, F> {
    pub(super) fn new(series: &'a Series<'a>, start: F) -> Simulator<'a, N, F> {
        Simulator {
            series,
            start,
            fresh: Vec::new(),
            cluster: Driven::of(Vec::new(), 0, [ALIEN; LOCATIONS_MAX]),
            threads: Vec::new(),
            able: 0,
            unfinished: 0,
            priorities: Vec::new(),
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
            self.rewrite(&program.initial);
        }
        self.place_threads(placement, &prepared.layouts[self.layout]);
        self.so_far = program.start();
        self.steps_left = series.options.steps_max;
        self.spread_copies(program, is_fresh)?;
        self.cluster.tell(|_| "the threads start".to_string());
        for (thread, code) in program.threads.iter().enumerate() {
            self.turn(thread, if code.is_empty() { Activity::Done } else { Activity::Ready });
        }
        self.go_on()?;
        self.cluster.tell(|_| "the threads are done".to_string());
        let reader = self.random.index(self.cluster.nodes().into()) as u16;
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
        let start = self.fresh[fresh].clone().expect("it was just made");
        let cluster = Driven::of(start, pages.into(), [ALIEN; LOCATIONS_MAX]);
        let cluster = if self.series.options.checks_contract { cluster } else { cluster.unchecked() };
        let before = std::mem::replace(&mut self.cluster, cluster);
        self.cluster.story = before.story;
        self.priorities.clear();
        self.cluster.tell(|_| format!("{nodes} nodes, manager {manager}"));
    }

    /// Places the threads, which have not started, on nodes of the cluster, and chooses the schedule.
    fn place_threads(&mut self, placement: &[u8], layout: &[u8]) {
        let nodes = self.cluster.nodes();
        let schedules = [Schedule::Uniform, Schedule::Uniform, Schedule::Priorities, Schedule::Receivers];
        self.schedule = self.random.one_of(&schedules);
        self.lowest = RANDOM;
        self.receivers = [0; NODES_MAX].map(|_| RANDOM | self.random.draw() as u32);
        self.time_outs = u8::from(self.random.once_in(4));
        self.late_faults = self.random.once_in(2);
        self.cluster.runs_on = if self.random.once_in(4) { RunsOn::Silent } else { RunsOn::Looks };
        self.threads.clear();
        (self.able, self.unfinished) = (0, 0);
        // Groups are rotated over the nodes, so that the manager is sometimes one of them.
        let turn = self.random.below(nodes.into()) as u16;
        for &group in placement {
            self.add_thread((u16::from(group) + turn) % nodes);
        }
        self.add_thread(0);
        let threads = &self.threads;
        self.cluster.tell(|_| {
            let on: Vec<String> = threads[..placement.len()].iter().map(|t| t.node.to_string()).collect();
            let pages: Vec<String> = layout.iter().map(u8::to_string).collect();
            format!("threads on nodes {}; locations on pages {}", on.join(" "), pages.join(" "))
        });
        self.cluster.tell(situation);
    }

    fn add_thread(&mut self, node: u16) {
        let priority = RANDOM | self.random.draw() as u32;
        let activity = Activity::Done;
        self.threads.push(Thread { node, activity, next: 0, page: 0, asks_write: false, priority });
    }

    /// Resets the words to their initial values wherever a copy is current; an outdated copy gets a value that was
    /// never written. Requests, rights and messages under way stay unchanged.
    fn rewrite(&mut self, initial: &[Code]) {
        let layout = &self.series.programs[self.program].layouts[self.layout];
        let memory = &mut self.cluster.memory;
        for (location, page) in layout.iter().map(|&page| PageIndex(page.into())).enumerate() {
            for node in 0..self.cluster.waiting.len() as u16 {
                let is_current = memory.version(node, page) == memory.last(page);
                memory.bytes_mut(node, page)[location] = if is_current { initial[location] } else { ALIEN };
            }
        }
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
            let start = |geometry| (self.start)(self.series.options.protocols[protocol], geometry);
            self.fresh[index] = Some(nodes_of(home, nodes.into(), pages.into(), 1, start));
        }
        index
    }

    /// Random loads, and stores of the initial values, by random nodes, through the protocol.
    fn spread_copies(&mut self, program: &Program, is_fresh: bool) -> Result<(), Ended> {
        let (nodes, locations) = (self.cluster.nodes().into(), program.locations.len() as u64);
        for (location, &initial) in program.initial.iter().enumerate() {
            if is_fresh && initial != 0 {
                let node = self.random.below(nodes) as u16;
                self.send_errand(node, location as u8, Some(initial))?;
            }
        }
        let most = if is_fresh { 2 * locations } else { locations.div_ceil(2) };
        for _ in 0..self.random.below(most + 1) {
            let (node, location) = (self.random.below(nodes) as u16, self.random.below(locations) as u8);
            let stores = self.random.once_in(2);
            let value = stores.then_some(program.initial[usize::from(location)]);
            self.send_errand(node, location, value)?;
        }
        Ok(())
    }

    /// One access by the extra thread.
    fn send_errand(&mut self, node: u16, location: u8, value: Option<Code>) -> Result<Code, (Kind, String)> {
        self.errand = Some((location, value));
        let index = self.threads.len() - 1;
        self.threads[index].node = node;
        self.turn(index, Activity::Ready);
        // An access to a page that is present needs no schedule.
        self.try_instruction(index);
        self.go_on()?;
        Ok(self.so_far.get(ERRAND))
    }

    /// Executes events until every thread is done.
    fn go_on(&mut self) -> Result<(), Ended> {
        while self.unfinished != 0 {
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
        let waiting = self.threads.iter().filter(|thread| thread.activity != Activity::Done);
        let waiting: Vec<String> =
            waiting.map(|thread| format!("a thread of node {} waits for page {}", thread.node, thread.page)).collect();
        waiting.join(", ")
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Deliver(index) => {
                self.priorities.swap_remove(index);
                let envelope = self.cluster.under_way.swap_remove(index);
                self.cluster.arrive(envelope);
            }
            Action::GoOff { node, input, due } => {
                self.cluster.now = self.cluster.now.max(due);
                self.cluster.go_off(node, input);
            }
            Action::Thread(thread) => match self.threads[thread].activity {
                Activity::Faulted => self.report_fault(thread),
                Activity::Waits => {
                    let Thread { node, page, .. } = self.threads[thread];
                    let place = self.waiting_at(thread).expect("it was woken");
                    self.cluster.take_woken(node, place);
                    self.try_instruction(thread);
                    let looks_itself = self.random.once_in(4);
                    self.cluster.looked(node, page.into(), looks_itself);
                }
                _ => self.try_instruction(thread),
            },
        }
        self.draw_priorities();
    }

    /// The place of a thread among those that wait at its node.
    fn waiting_at(&self, thread: usize) -> Option<usize> {
        let waiting = &self.cluster.waiting[usize::from(self.threads[thread].node)];
        waiting.iter().position(|waiting| waiting.thread == thread)
    }

    /// Sets what a thread is at.
    fn turn(&mut self, thread: usize, activity: Activity) {
        let bit = 1 << thread;
        self.threads[thread].activity = activity;
        let with = |set: u16, is_in: bool| if is_in { set | bit } else { set & !bit };
        self.able = with(self.able, matches!(activity, Activity::Ready | Activity::Faulted));
        self.unfinished = with(self.unfinished, activity != Activity::Done);
    }

    /// The threads that can run, one bit each.
    fn runnable(&self) -> u16 {
        let is_woken = |&thread: &usize| self.cluster.is_woken(self.threads[thread].node, thread);
        let woken = members(self.unfinished & !self.able).filter(is_woken);
        woken.fold(self.able, |set, thread| set | 1 << thread)
    }

    /// Every message that was sent just now gets a priority.
    fn draw_priorities(&mut self) {
        while self.priorities.len() < self.cluster.under_way.len() {
            self.priorities.push(RANDOM | self.random.draw() as u32);
        }
    }

    fn report_fault(&mut self, thread: usize) {
        let Thread { node, page, asks_write, .. } = self.threads[thread];
        let page = PageIndex(page.into());
        let wide = self.random.once_in(4);
        let pages = self.cluster.pages();
        let wanted = if wide { PageRange::around(page, 0, pages) } else { PageRange::one(page) };
        self.turn(thread, Activity::Waits);
        self.cluster.fault(node, thread, page.0, asks_write, wanted);
        self.draw_priorities();
    }

    /// A thread tries its next instruction: it continues, or faults.
    fn try_instruction(&mut self, thread: usize) {
        let series = self.series;
        let program = &series.programs[self.program].program;
        let Thread { node, next, .. } = self.threads[thread];
        let instruction = match (program.threads.get(thread), self.errand) {
            (Some(code), _) => code[usize::from(next)],
            (None, Some((location, value))) => errand_instruction(location, value),
            (None, None) => unreachable!("the thread without code runs errands only"),
        };
        let Some((location, write)) = instruction.access() else { return self.advance(thread, instruction) };
        let page = series.programs[self.program].layouts[self.layout][usize::from(location)];
        let place = usize::from(location);
        let seen = match instruction {
            Instruction::Load { .. } => self.cluster.load(node, page.into()).map(|words| words[place]),
            Instruction::Store { source, .. } | Instruction::Exchange { source, .. } => {
                let code = Program::operand(source, self.so_far);
                self.cluster.store(node, page.into(), |words| std::mem::replace(&mut words[place], code))
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
        let state = &mut self.threads[thread];
        (state.page, state.asks_write) = (page, asks_write);
        self.turn(thread, Activity::Faulted);
        if !self.late_faults || self.random.once_in(2) {
            self.report_fault(thread);
        }
    }

    fn advance(&mut self, thread: usize, instruction: Instruction) {
        let series = self.series;
        let program = &series.programs[self.program].program;
        let (so_far, state) = (self.so_far, &mut self.threads[thread]);
        let node = state.node;
        self.cluster.tell(|_| tell_instruction(node, program, thread, instruction, so_far));
        state.next += 1;
        let is_over = program.threads.get(thread).is_none_or(|code| code.len() <= usize::from(state.next));
        self.turn(thread, if is_over { Activity::Done } else { Activity::Ready });
    }

    fn choose(&mut self) -> Option<Action> {
        match self.schedule {
            Schedule::Uniform => self.choose_any(),
            _ => self.choose_first(),
        }
    }

    fn choose_any(&mut self) -> Option<Action> {
        // Of each node, what may go off, and whether the runtime's bound passes before a thread has run.
        let mut timers = [(0, false); NODES_MAX];
        let mut total = 0;
        for node in self.cluster.open() {
            let is_late = self.time_outs > 0 && self.cluster.holds_for_thread(node) && self.random.once_in(8);
            self.time_outs -= u8::from(is_late);
            let count = self.cluster.may_go_off(node, is_late).count();
            timers[usize::from(node)] = (count, is_late);
            total += count;
        }
        let messages = self.cluster.under_way.len();
        let runnable = self.runnable();
        let threads = runnable.count_ones() as usize;
        total += messages + threads;
        if total == 0 {
            return None;
        }
        let mut at = self.random.index(total);
        if at < messages {
            return Some(Action::Deliver(at));
        }
        at -= messages;
        if at < threads {
            return members(runnable).nth(at).map(Action::Thread);
        }
        at -= threads;
        let node = (0..self.cluster.nodes()).find(|&node| {
            let (count, _) = timers[usize::from(node)];
            let is_here = at < count;
            at -= if is_here { 0 } else { count };
            is_here
        })?;
        let (_, is_late) = timers[usize::from(node)];
        self.cluster.may_go_off(node, is_late).nth(at).map(|(input, due)| Action::GoOff { node, input, due })
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
        for (index, (envelope, &priority)) in self.cluster.under_way.iter().zip(&self.priorities).enumerate() {
            let of_receiver = by_receiver && priority >= RANDOM;
            let priority = if of_receiver { self.receivers[usize::from(envelope.to)] } else { priority };
            offer(priority, Action::Deliver(index));
        }
        for index in members(self.runnable()) {
            offer(self.threads[index].priority, Action::Thread(index));
        }
        for node in self.cluster.open() {
            let priority = self.receivers[usize::from(node)];
            for (input, due) in self.cluster.may_go_off(node, false) {
                let priority = if matches!(input, Input::Alarm { .. }) { priority / 2 } else { priority };
                offer(priority, Action::GoOff { node, input, due });
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
            Action::Deliver(index) => self.priorities[index] = self.lowest,
            Action::Thread(index) => self.threads[index].priority = self.lowest,
            Action::GoOff { node, input: Input::Resumed { .. }, .. } => {
                self.receivers[usize::from(node)] = self.lowest;
            }
            Action::GoOff { .. } => {}
        }
    }
}

/// The rights of all nodes and the messages under way, as text.
fn situation<N: Coherence>(cluster: &Cluster<N>) -> String {
    let pages = cluster.pages();
    let views = |node: u16| {
        let word = |page| ["-", "read", "write"][cluster.view(node, page) as usize];
        format!("node {node}: {}", (0..pages).map(word).collect::<Vec<_>>().join(" "))
    };
    let views: Vec<String> = (0..cluster.nodes()).map(views).collect();
    let under_way = cluster.under_way.iter().map(|m| format!("; {} to {}: {}", m.from, m.to, m.message));
    format!("views of the pages: {}{}", views.join(", "), under_way.collect::<String>())
}

/// The members of a set, ascending.
fn members(mut set: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let next = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(next)
    })
}

fn errand_instruction(location: u8, value: Option<Code>) -> Instruction {
    let register = ERRAND as u8;
    match value {
        Some(code) => Instruction::Store { location, source: Operand::Constant(code) },
        None => Instruction::Load { register, location },
    }
}

fn tell_instruction(node: u16, program: &Program, thread: usize, instruction: Instruction, so_far: Outcome) -> String {
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
