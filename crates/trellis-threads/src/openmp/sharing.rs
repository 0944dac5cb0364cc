//! Work-sharing: which thread of a team does which iterations of a loop, which sections, or a `single` region.
//!
//! Iterations are counted from 0. The callers turn them into values of the program's variable. A *batch* is the iterations
//! that a thread takes at once. With a dynamic or a guided schedule, the number of claims before it decides which batches
//! a claim gets. A claim is one addition to a word that node 0 keeps, and no page is shared. Under a dynamic schedule, a
//! node claims several batches at once, fewer towards the end of the loop, and its threads take them one by one.
//!
//! Promises: each iteration is given out once. The batches of a thread ascend. Each node gets nothing from its last claim in
//! a loop, so the last node to which that happens knows that no claim follows, and clears the word.

use std::sync::atomic::Ordering;

use super::Thread;
use super::settings::Settings;
use super::team::{Team, wait_until};
use crate::context::aside;
use crate::{relaxed, runtime};

/// The first number of the words from which nodes claim.
const CLAIMS: u32 = 1 << 16;
/// A node claims this part of the batches that are left, divided by the number of nodes.
const PART: u64 = 4;

/// How a loop is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Each thread gets one part. If the size of batches is given, the threads get batches in turn.
    Static,
    /// A thread that is free gets the next batch.
    Dynamic,
    /// The same, with batches that become smaller.
    Guided,
    /// A thread that is free gets the next one, and no node gets several at once.
    Sections,
}

/// A loop that a thread takes part in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Loop {
    pub(super) kind: Kind,
    /// The number of iterations.
    pub(super) count: u64,
    /// The iterations of a batch; 0 if a static schedule gives each thread one part.
    pub(super) batch: u64,
    /// The first value, and the distance between two.
    pub(super) start: u64,
    pub(super) increment: u64,
    pub(super) is_ordered: bool,
    /// Whether the compiler leaves the sizes of the parts of a static schedule to this library.
    has_own_parts: bool,
    /// The number of the construct in its team, and of the ordered loop among these.
    construct: u32,
    ordered: u32,
    /// How many batches of a static schedule this thread has had.
    batches: u64,
    /// The iterations that it does now.
    low: u64,
    high: u64,
    /// Whether it got nothing when it requested more.
    is_over: bool,
}

impl Loop {
    pub(super) const NONE: Loop = Loop {
        kind: Kind::Static,
        count: 0,
        batch: 0,
        start: 0,
        increment: 1,
        is_ordered: false,
        has_own_parts: false,
        construct: 0,
        ordered: 0,
        batches: 0,
        low: 0,
        high: 0,
        is_over: false,
    };

    /// A loop of `count` iterations.
    pub(super) fn new(kind: Kind, count: u64, batch: u64, is_ordered: bool) -> Loop {
        let batch = if kind == Kind::Static { batch } else { batch.max(1) };
        Loop { kind, count, batch, is_ordered, ..Loop::NONE }
    }

    /// A loop with a static schedule, of which this library chooses the parts.
    pub(super) fn in_own_parts(count: u64, is_ordered: bool) -> Loop {
        Loop { has_own_parts: true, ..Loop::new(Kind::Static, count, 0, is_ordered) }
    }

    /// The same loop over these values of the program's variable.
    pub(super) fn over(self, start: u64, increment: u64) -> Loop {
        Loop { start, increment, ..self }
    }

    /// A loop with the schedule that `schedule(runtime)` stands for now.
    pub(super) fn at_runtime(count: u64, settings: &Settings, is_ordered: bool) -> Loop {
        Loop::new(settings.schedule, count, settings.batch.into(), is_ordered)
    }

    /// The value of the program's variable in an iteration.
    pub(super) fn value(&self, iteration: u64) -> u64 {
        self.start.wrapping_add(iteration.wrapping_mul(self.increment))
    }

    /// Whether the iterations that the thread does now are the last ones.
    pub(super) fn is_at_end(&self) -> bool {
        self.high == self.count
    }
}

/// The number of iterations of a loop from `start` up to `end`, or down to it, excluding `end`.
pub(super) fn iterations(start: i128, end: i128, increment: i128) -> u64 {
    let (distance, step) = if increment > 0 { (end - start, increment) } else { (start - end, -increment) };
    if distance <= 0 { 0 } else { ((distance - 1) / step + 1) as u64 }
}

/// Parts of nodes begin where a multiple of this many values does, if all parts have as many iterations as the second number
/// or more: elements of 4 bytes or more that the values number are on pages of one node then.
const OWN_PART_VALUES: u64 = 1024;
const OWN_PART_ITERATIONS_MIN: u64 = 32 * OWN_PART_VALUES;

/// Where the part of a thread begins, in iterations, under a static schedule whose parts this library chooses. They differ
/// from equal ones by 3 % at most.
fn begin_of_own_part(team: &Team, sharing: &Loop, number: u32) -> u64 {
    let (low, _) = part(sharing.count, team.size.into(), number.into());
    let is_worth_it = sharing.increment == 1 && sharing.count / u64::from(team.size) >= OWN_PART_ITERATIONS_MIN;
    if !is_worth_it || !team.is_first_of_a_node(number) {
        return low;
    }
    let value = sharing.start.wrapping_add(low + OWN_PART_VALUES / 2) & !(OWN_PART_VALUES - 1);
    value.wrapping_sub(sharing.start)
}

/// The part that a thread has under a static schedule whose parts this library chooses.
pub(super) fn own_part(team: Option<&Team>, sharing: &Loop, number: u32) -> (u64, u64) {
    match team {
        Some(team) => (begin_of_own_part(team, sharing, number), begin_of_own_part(team, sharing, number + 1)),
        None => (0, sharing.count),
    }
}

/// The part that a thread has under a static schedule without batches. The first threads have one iteration more.
pub(super) fn part(count: u64, size: u64, number: u64) -> (u64, u64) {
    let (each, more) = (count / size, count % size);
    let low = each * number + number.min(more);
    (low, low + each + u64::from(number < more))
}

/// The part of a loop that one of its tasks does. All but the last one have `strict_size` iterations, unless it is 0.
pub(super) fn task_part(count: u64, tasks: u64, number: u64, strict_size: u64) -> (u64, u64) {
    match strict_size {
        0 => part(count, tasks, number),
        size => (number * size, (number + 1).saturating_mul(size).min(count)),
    }
}

/// The state of a construct at one node, until all threads of the node have left it.
pub(super) struct Construct {
    number: u32,
    /// The number of threads of the node that have not come to its end.
    left: u32,
    /// The claims of all nodes, as far as this node knows.
    claims: u64,
    /// The first iteration that was left after these claims.
    position: u64,
    /// The iterations that the node has and no thread has taken.
    low: u64,
    high: u64,
    is_over: bool,
}

impl Construct {
    fn new(number: u32, threads: u32) -> Construct {
        Construct { number, left: threads, claims: 0, position: 0, low: 0, high: 0, is_over: false }
    }

    /// The iterations that come with the next claim after those so far.
    fn next_claim(&mut self, sharing: &Loop, team: &Team) -> (u64, u64) {
        let (low, left) = (self.position, sharing.count - self.position);
        let size = match sharing.kind {
            Kind::Static | Kind::Sections => 1,
            Kind::Dynamic => {
                let batches = left.div_ceil(sharing.batch);
                (batches / (u64::from(team.nodes) * PART)).max(1).saturating_mul(sharing.batch)
            }
            Kind::Guided => left.div_ceil(team.size.into()).max(sharing.batch),
        };
        self.position = low + size.min(left);
        self.claims += 1;
        (low, self.position)
    }

    /// Claims more iterations of those that are left for all nodes. Returns whether there were some.
    fn claim(&mut self, sharing: &Loop, team: &Team) -> bool {
        let claim = match team.nodes {
            1 => self.claims,
            _ => runtime::word_add(CLAIMS.wrapping_add(self.number), 0, 1),
        };
        while self.claims <= claim && self.position < sharing.count {
            (self.low, self.high) = self.next_claim(sharing, team);
        }
        if self.claims > claim {
            return true;
        }
        // Now `claims` is the number of claims that got something.
        self.is_over = true;
        (self.low, self.high) = (0, 0);
        if team.nodes > 1 && claim + 1 == self.claims + u64::from(team.nodes) {
            runtime::word_clear(CLAIMS.wrapping_add(self.number), 0);
        }
        false
    }

    /// Takes iterations for one thread.
    fn take(&mut self, sharing: &Loop, team: &Team) -> Option<(u64, u64)> {
        if self.low == self.high && (self.is_over || !self.claim(sharing, team)) {
            return None;
        }
        let size = if sharing.kind == Kind::Dynamic { sharing.batch } else { self.high - self.low };
        let low = self.low;
        self.low = low + size.min(self.high - low);
        Some((low, self.low))
    }
}

impl Team {
    /// Calls `work` with the state of a construct, which it forgets after the last thread's last call.
    fn at_construct<T>(&self, number: u32, work: impl FnOnce(&mut Construct) -> (T, bool)) -> T {
        aside(|| {
            let mut constructs = self.constructs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let place = constructs.iter().position(|construct| construct.number == number).unwrap_or_else(|| {
                constructs.push(Construct::new(number, self.local));
                constructs.len() - 1
            });
            let (result, is_last_call) = work(&mut constructs[place]);
            if is_last_call {
                constructs[place].left -= 1;
                if constructs[place].left == 0 {
                    constructs.swap_remove(place);
                }
            }
            result
        })
    }
}

impl Thread {
    /// Begins a loop of the team for this thread.
    pub(super) fn begin_loop(&self, mut sharing: Loop) {
        sharing.construct = self.next_construct();
        if sharing.is_ordered {
            sharing.ordered = self.ordered_loops.get();
            self.ordered_loops.set(sharing.ordered.wrapping_add(1));
        }
        self.sharing.set(sharing);
        if sharing.is_ordered && sharing.count == 0 && self.number.get() == 0 {
            // No other thread passes on the turn of a loop without iterations.
            self.wait_for_turn();
            self.pass_turn_on(&sharing);
        }
    }

    /// The next iterations of the loop for this thread: the first one, and the one behind the last.
    pub(super) fn next_iterations(&self) -> Option<(u64, u64)> {
        let mut sharing = self.sharing.get();
        if sharing.is_ordered && sharing.high > sharing.low {
            self.wait_for_turn();
            self.pass_turn_on(&sharing);
        }
        let next = self.chosen(&mut sharing);
        (sharing.low, sharing.high) = next.unwrap_or((0, 0));
        sharing.is_over = next.is_none();
        self.sharing.set(sharing);
        next
    }

    fn chosen(&self, sharing: &mut Loop) -> Option<(u64, u64)> {
        let (size, number) = (u64::from(self.team_size()), u64::from(self.number.get()));
        match (sharing.kind, self.team()) {
            (Kind::Static, _) => {
                let (low, high) = match sharing.batch {
                    0 if sharing.batches > 0 => return None,
                    0 if sharing.has_own_parts => own_part(self.team(), sharing, self.number.get()),
                    0 => part(sharing.count, size, number),
                    batch => {
                        let batch_number = sharing.batches.checked_mul(size)?.checked_add(number)?;
                        let low = batch_number.checked_mul(batch)?;
                        (low.min(sharing.count), low.saturating_add(batch).min(sharing.count))
                    }
                };
                sharing.batches += 1;
                (low < high).then_some((low, high))
            }
            (_, Some(team)) if team.size > 1 => team.at_construct(sharing.construct, |construct| {
                let taken = construct.take(sharing, team);
                (taken, taken.is_none())
            }),
            _ => {
                let low = sharing.high;
                let size = if sharing.kind == Kind::Guided { sharing.count } else { sharing.batch };
                (low < sharing.count).then(|| (low, low.saturating_add(size).min(sharing.count)))
            }
        }
    }

    /// This thread requests no more of the loop in which it takes part: what its node has is given up.
    pub(super) fn give_up_loop(&self) {
        let mut sharing = self.sharing.get();
        let Some(team) = self.team().filter(|team| team.size > 1) else { return };
        if sharing.is_over || sharing.kind == Kind::Static {
            return;
        }
        team.at_construct(sharing.construct, |construct| {
            construct.low = construct.high;
            while !construct.is_over && construct.claim(&sharing, team) {
                construct.low = construct.high;
            }
            ((), true)
        });
        sharing.is_over = true;
        self.sharing.set(sharing);
    }

    /// Whether this thread is the one that does a `single` region.
    pub(super) fn is_single(&self) -> bool {
        let number = self.next_construct();
        let Some(team) = self.team().filter(|team| team.size > 1) else { return true };
        let one = Loop::new(Kind::Sections, 1, 1, false);
        team.at_construct(number, |construct| {
            let is_it = construct.take(&one, team).is_some();
            if is_it && team.nodes > 1 {
                // The node's last claim, which gets nothing: this node then knows that nothing is left.
                construct.claim(&one, team);
            }
            (is_it, true)
        })
    }

    /// Waits until all iterations before those of this thread have gone through the ordered region.
    pub(super) fn wait_for_turn(&self) {
        let sharing = self.sharing.get();
        let Some(team) = self.team().filter(|team| team.size > 1) else { return };
        let mine = turn(sharing.ordered, sharing.low);
        wait_until(|| team.shared().turn.load(Ordering::Acquire) == mine);
        if team.nodes > 1 {
            relaxed::acquire();
        }
    }

    /// The iterations of this thread have left the ordered region.
    fn pass_turn_on(&self, sharing: &Loop) {
        let Some(team) = self.team().filter(|team| team.size > 1) else { return };
        let next = if sharing.is_at_end() {
            turn(sharing.ordered.wrapping_add(1), 0)
        } else {
            turn(sharing.ordered, sharing.high)
        };
        if team.nodes > 1 {
            relaxed::release();
        }
        team.shared().turn.store(next, Ordering::Release);
    }
}

/// The turn of the iterations from `low` on, of one of the team's ordered loops.
fn turn(ordered: u32, low: u64) -> u64 {
    u64::from(ordered as u16) << 48 | low & ((1 << 48) - 1)
}
