//! Visits every reachable state of a model, breadth first.
//!
//! Promises: the order in which states are visited depends on the model alone. The first violation found has a
//! shortest path to it; the trace of that path comes from running the model again. It must never report
//! [`Verdict::Passed`] before the last state was expanded.

use crate::fingerprint::{Seen, fingerprint};
use std::time::{Duration, Instant};

/// A transition system whose states are plain bytes.
pub trait Model {
    /// The initial state.
    fn initial(&mut self) -> Vec<u8>;

    /// Pushes the successor of every action that is possible in `state`, always in the same order. `Err` if `state`
    /// itself is wrong: nothing can happen although a thread waits.
    fn expand(&mut self, state: &[u8], next: &mut Successors) -> Result<(), String>;

    /// Describes action number `action` of `state` and its effects, one line per fact.
    fn tell(&mut self, state: &[u8], action: usize) -> Vec<String>;
}

/// The successors of one state, by number of the action.
#[derive(Default)]
pub struct Successors {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    broken: Option<(usize, String)>,
}

impl Successors {
    /// The next action leads to the state whose bytes `write` appends.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// The next action breaks a rule.
    pub fn push_broken(&mut self, what: String) {
        self.broken.get_or_insert((self.ends.len(), what));
        self.ends.push(self.bytes.len());
    }

    /// Number of actions.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether no action is possible.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.broken = None;
    }

    fn state(&self, action: usize) -> &[u8] {
        let start = action.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[action]]
    }
}

/// How an exploration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every reachable state was visited and no rule was broken.
    Passed,
    /// A rule was broken.
    Broken {
        /// The rule, and how it was broken.
        what: String,
        /// The shortest trace that leads there.
        trace: Vec<String>,
    },
    /// The bound on states was reached first.
    TooLarge,
    /// The states form a cycle in which threads could wait for ever.
    Endless {
        /// A trace that leads to the cycle and once around it.
        trace: Vec<String>,
    },
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Report {
    /// How it ended.
    pub verdict: Verdict,
    /// Distinct states reached.
    pub states: u64,
    /// Actions taken.
    pub transitions: u64,
    /// The length of the longest of the shortest paths, in actions.
    pub depth: u32,
    /// The time that it took.
    pub elapsed: Duration,
}

impl Report {
    /// Whether every state was visited and no rule was broken.
    pub fn passed(&self) -> bool {
        self.verdict == Verdict::Passed
    }

    /// States per second.
    pub fn states_per_second(&self) -> f64 {
        self.states as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Bounds and extras of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Give up beyond this number of states.
    pub states_max: u64,
    /// Also prove that every run ends, that is, that the states form no cycle. Costs 8 bytes per action.
    pub must_end: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { states_max: u64::from(u32::MAX) - 1, must_end: false }
    }
}

/// How far an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Distinct states reached.
    pub states: u64,
    /// States that are not expanded yet.
    pub waiting: u64,
    /// Actions from the initial state.
    pub depth: u32,
}

/// Visits every state of `model`; `progress` is called now and then.
pub fn explore(model: &mut impl Model, options: Options, progress: &mut dyn FnMut(Progress)) -> Report {
    let started = Instant::now();
    let mut search = Search::new(options);
    let verdict = search.run(model, progress);
    Report {
        verdict,
        states: search.parents.len() as u64,
        transitions: search.transitions,
        depth: search.depth,
        elapsed: started.elapsed(),
    }
}

struct Search {
    options: Options,
    seen: Seen,
    /// For every state, in the order of discovery: the state from which it was reached, and by which action.
    parents: Vec<(u32, u16)>,
    level: Level,
    next: Level,
    transitions: u64,
    depth: u32,
    circles: Option<Circles>,
}

/// The states of one level, in order, that are still to be expanded.
#[derive(Default)]
struct Level {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    first: u32,
}

impl Search {
    fn new(options: Options) -> Search {
        Search {
            options,
            seen: Seen::new(),
            parents: Vec::new(),
            level: Level::default(),
            next: Level::default(),
            transitions: 0,
            depth: 0,
            circles: options.must_end.then(Circles::default),
        }
    }

    fn run(&mut self, model: &mut impl Model, progress: &mut dyn FnMut(Progress)) -> Verdict {
        let initial = model.initial();
        self.discover(&initial, 0, 0);
        let mut successors = Successors::default();
        while !self.next.ends.is_empty() {
            std::mem::swap(&mut self.level, &mut self.next);
            self.next.clear(self.parents.len() as u32);
            for place in 0..self.level.ends.len() {
                if place % 65_536 == 0 {
                    let waiting = (self.level.ends.len() - place + self.next.ends.len()) as u64;
                    let states = self.parents.len() as u64;
                    progress(Progress { states, waiting, depth: self.depth });
                }
                if let Some(verdict) = self.visit(model, place, &mut successors) {
                    return verdict;
                }
            }
            self.depth += u32::from(!self.next.ends.is_empty());
        }
        match self.circles.as_ref().and_then(|circles| circles.find(self.parents.len())) {
            Some(circle) => self.endless(model, &circle),
            None => Verdict::Passed,
        }
    }

    fn visit(&mut self, model: &mut impl Model, place: usize, successors: &mut Successors) -> Option<Verdict> {
        let index = self.level.first + place as u32;
        successors.clear();
        if let Err(what) = model.expand(self.level.state(place), successors) {
            return Some(self.broken(model, index, None, what));
        }
        if let Some((action, what)) = successors.broken.take() {
            return Some(self.broken(model, index, Some(action), what));
        }
        for action in 0..successors.len() {
            self.transitions += 1;
            self.discover(successors.state(action), index, action as u16);
        }
        (self.parents.len() as u64 > self.options.states_max).then_some(Verdict::TooLarge)
    }

    fn discover(&mut self, state: &[u8], parent: u32, action: u16) {
        let print = fingerprint(state);
        let (number, is_new) = self.seen.insert(print);
        if let Some(circles) = self.circles.as_mut().filter(|_| !self.parents.is_empty()) {
            circles.edges.push((parent, number));
        }
        if is_new {
            self.parents.push((parent, action));
            self.next.bytes.extend_from_slice(state);
            self.next.ends.push(self.next.bytes.len());
        }
    }

    /// The trace to state `index`, and the action that breaks a rule there if any.
    fn broken(&self, model: &mut impl Model, index: u32, last: Option<usize>, what: String) -> Verdict {
        let (state, mut trace) = self.story(model, index);
        trace.extend(last.into_iter().flat_map(|action| model.tell(&state, action)));
        Verdict::Broken { what, trace }
    }

    /// The trace to the cycle and around it.
    fn endless(&self, model: &mut impl Model, circle: &[u32]) -> Verdict {
        let (mut state, mut trace) = self.story(model, circle[0]);
        trace.push("from here on it repeats:".to_string());
        let mut successors = Successors::default();
        for next in circle.iter().skip(1).chain(&circle[..1]) {
            successors.clear();
            // A wrong state would have ended the search before.
            let _ = model.expand(&state, &mut successors);
            let leads = |action: &usize| self.seen.number(fingerprint(successors.state(*action))) == Some(*next);
            let action = (0..successors.len()).find(leads).expect("an action that was taken");
            trace.extend(model.tell(&state, action));
            state = successors.state(action).to_vec();
        }
        Verdict::Endless { trace }
    }

    /// State `index` and the trace that leads to it.
    fn story(&self, model: &mut impl Model, index: u32) -> (Vec<u8>, Vec<String>) {
        let mut path = Vec::new();
        let mut at = index;
        while at != 0 {
            let (parent, action) = self.parents[at as usize];
            path.push(usize::from(action));
            at = parent;
        }
        let mut trace = Vec::new();
        let mut state = model.initial();
        let mut successors = Successors::default();
        for action in path.into_iter().rev() {
            trace.extend(model.tell(&state, action));
            successors.clear();
            // A wrong state can only be the last one of a path.
            let _ = model.expand(&state, &mut successors);
            state = successors.state(action).to_vec();
        }
        (state, trace)
    }
}

impl Level {
    fn clear(&mut self, first: u32) {
        self.bytes.clear();
        self.ends.clear();
        self.first = first;
    }

    fn state(&self, place: usize) -> &[u8] {
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[place]]
    }
}

/// The edges of the state graph, to detect a cycle.
#[derive(Default)]
struct Circles {
    /// Sorted by the state that they lead from, because states are expanded in their order.
    edges: Vec<(u32, u32)>,
}

impl Circles {
    /// Removes repeatedly the states that have no incoming edge left (Kahn 1962). Whatever remains is on a cycle or
    /// behind one. Each remaining state has a remaining predecessor, so following predecessors leads around a cycle.
    fn find(&self, states: usize) -> Option<Vec<u32>> {
        let edges = &self.edges;
        let mut incoming = vec![0u32; states];
        let mut starts = vec![0; states + 1];
        for &(from, to) in edges {
            incoming[to as usize] += 1;
            starts[from as usize + 1] += 1;
        }
        for state in 0..states {
            starts[state + 1] += starts[state];
        }
        let mut free: Vec<u32> = (0..states as u32).filter(|&state| incoming[state as usize] == 0).collect();
        while let Some(state) = free.pop() {
            for &(_, to) in &edges[starts[state as usize]..starts[state as usize + 1]] {
                incoming[to as usize] -= 1;
                if incoming[to as usize] == 0 {
                    free.push(to);
                }
            }
        }
        let mut before = vec![u32::MAX; states];
        let left = |state: u32| incoming[state as usize] > 0;
        for &(from, to) in edges.iter().filter(|&&(from, to)| left(from) && left(to)) {
            // The predecessor that was found first, for a short cycle.
            before[to as usize] = before[to as usize].min(from);
        }
        let mut at = (0..states as u32).find(|&state| left(state))?;
        let mut visited = Vec::new();
        let mut place = vec![u32::MAX; states];
        while place[at as usize] == u32::MAX {
            place[at as usize] = visited.len() as u32;
            visited.push(at);
            at = before[at as usize];
        }
        let mut circle = visited.split_off(place[at as usize] as usize);
        circle.reverse();
        // The state that was found first has the shortest trace.
        let first = (0..circle.len()).min_by_key(|&index| circle[index])?;
        circle.rotate_left(first);
        Some(circle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts to `end` by ones and twos; a number may be forbidden, and one may lead back.
    struct Counting {
        end: u8,
        forbidden: Option<u8>,
        back: Option<u8>,
    }

    impl Model for Counting {
        fn initial(&mut self) -> Vec<u8> {
            vec![0]
        }

        fn expand(&mut self, state: &[u8], next: &mut Successors) -> Result<(), String> {
            for step in [1, 2] {
                let to = state[0] + step;
                if Some(to) == self.forbidden {
                    next.push_broken(format!("reached {to}"));
                } else if to <= self.end {
                    next.push(|bytes| bytes.push(to));
                }
            }
            if Some(state[0]) == self.back {
                next.push(|bytes| bytes.push(0));
            }
            Ok(())
        }

        fn tell(&mut self, state: &[u8], action: usize) -> Vec<String> {
            vec![format!("{} + {}", state[0], action + 1)]
        }
    }

    fn count(forbidden: Option<u8>, back: Option<u8>, options: Options) -> Report {
        explore(&mut Counting { end: 9, forbidden, back }, options, &mut |_| {})
    }

    #[test]
    fn every_state_is_visited_once() {
        let report = count(None, None, Options { must_end: true, ..Options::default() });
        assert!(report.passed());
        assert_eq!((report.states, report.transitions, report.depth), (10, 17, 5));
    }

    #[test]
    fn the_story_of_a_violation_is_a_shortest_one() {
        let report = count(Some(6), None, Options::default());
        let Verdict::Broken { what, trace } = report.verdict else { panic!("6 was reached") };
        assert_eq!(what, "reached 6");
        assert_eq!(trace, ["0 + 2", "2 + 2", "4 + 2"]);
    }

    #[test]
    fn a_circle_is_noticed_when_asked_for() {
        assert!(count(None, Some(5), Options::default()).passed());
        let report = count(None, Some(5), Options { must_end: true, ..Options::default() });
        let Verdict::Endless { trace } = report.verdict else { panic!("0 leads back to itself") };
        assert_eq!(trace, ["from here on it repeats:", "0 + 1", "1 + 2", "3 + 2", "5 + 3"]);
    }

    #[test]
    fn a_bound_that_is_reached_is_no_success() {
        let report = count(None, None, Options { states_max: 4, ..Options::default() });
        assert_eq!(report.verdict, Verdict::TooLarge);
    }
}
