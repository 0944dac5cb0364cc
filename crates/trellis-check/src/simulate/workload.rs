//! What threads do: patterns of sharing, made into actions.
//!
//! Promises: a thread's actions are decided by its own random numbers; every thread of a kind makes as many barriers as
//! the others. It must never look at the state of the cluster.

use super::blocks::HEAP_PAGES;
use super::node::{Action, Thread};
use super::scenario::{Pattern, Scenario};
use trellis_cluster_protocol::heap::{Request, Separation, Zone};
use trellis_cluster_protocol::sync::Operation;
use trellis_cluster_protocol::{NodeId, PageIndex, PageRange};

/// Pages that one call locks.
pub(super) const LOCKED_PAGES_MAX: u32 = 4;
/// Locks and words to choose from.
pub(super) const OBJECTS: u64 = 3;
const BARRIER: u64 = 100;

const IN_MIXED: [Pattern; 8] = [
    Pattern::Uniform,
    Pattern::Hot,
    Pattern::Stream,
    Pattern::Migratory,
    Pattern::ReadMostly,
    Pattern::FalseSharing,
    Pattern::Sections,
    Pattern::RangeLocks,
];

/// Plans the next actions of a thread, the last first; nothing if it is done.
pub(super) fn plan(scenario: &Scenario, node: u16, index: u8, thread: &mut Thread) {
    debug_assert!(thread.plan.is_empty());
    if thread.left == 0 {
        return;
    }
    thread.left -= 1;
    let mut pattern = scenario.pattern;
    if pattern == Pattern::Mixed {
        pattern = thread.random.one_of(&IN_MIXED);
    }
    let is_founder = node < scenario.founders;
    pattern = match pattern {
        // Only founders meet at barriers.
        Pattern::Phases if !is_founder => Pattern::Uniform,
        Pattern::Changes if index > 0 && scenario.protocol.can_lock() && thread.random.once_in(2) => {
            Pattern::RangeLocks
        }
        Pattern::Phases | Pattern::Barriers | Pattern::Changes if index > 0 => Pattern::Uniform,
        Pattern::RangeLocks if !scenario.protocol.can_lock() => Pattern::Hot,
        other => other,
    };
    let mut drawing = Drawing { scenario, node, thread };
    drawing.plan(pattern);
    thread.plan.reverse();
}

struct Drawing<'a> {
    scenario: &'a Scenario,
    node: u16,
    thread: &'a mut Thread,
}

impl Drawing<'_> {
    fn plan(&mut self, pattern: Pattern) {
        let percent = self.scenario.write_percent;
        match pattern {
            Pattern::Uniform | Pattern::Mixed => {
                let page = self.any_page();
                self.guess(page);
                self.access(page, percent);
            }
            Pattern::Hot => {
                let page = if self.thread.random.percent(80) { self.page(0) } else { self.any_page() };
                self.access(page, percent);
            }
            Pattern::Stream => self.stream(percent),
            Pattern::ProducerConsumer => {
                self.thread.cursor = (self.thread.cursor + 1) % self.scenario.layout.places();
                let page = self.page(self.thread.cursor);
                self.access(page, if self.node == 0 { 100 } else { 0 });
            }
            Pattern::Migratory => {
                let page = self.any_page();
                self.push(Action::Load(page));
                self.push(Action::Store(page));
            }
            Pattern::ReadMostly => {
                let page = self.any_page();
                self.access(page, 5);
            }
            Pattern::FalseSharing => {
                let place = self.thread.random.below(2) as u32 % self.scenario.layout.places();
                let page = self.page(place);
                self.access(page, 90);
            }
            Pattern::Sections => self.section(),
            Pattern::RangeLocks => self.range_lock(),
            Pattern::Phases => {
                (0..3).for_each(|_| {
                    let page = self.any_page();
                    self.access(page, percent);
                });
                self.push(Action::Arrive(BARRIER));
            }
            Pattern::Changes => self.change(),
            Pattern::Blocks => self.block(),
            Pattern::Writers => {
                let page = self.page(0);
                self.push(Action::Store(page));
            }
            Pattern::Turns => {
                let page = self.page(0);
                self.push(Action::Turn(page));
            }
            Pattern::Exchanges => {
                let page = self.page(0);
                self.push(Action::Exchange(page));
            }
            Pattern::Barriers => self.push(Action::Arrive(BARRIER)),
            Pattern::OneLock => {
                self.push(Action::Acquire(0));
                self.push(Action::Release(0));
            }
        }
    }

    fn stream(&mut self, percent: u8) {
        let (layout, write) = (self.scenario.layout, self.thread.random.percent(percent));
        let first = self.thread.cursor;
        self.thread.cursor = (first + 8) % layout.places();
        let wanted = layout.around(self.page(first % layout.places()), 0, 7);
        if self.thread.random.once_in(3) {
            let announced = self.thread.random.once_in(2);
            self.push(Action::Prefetch { wanted, write, announced });
        }
        for page in wanted.pages() {
            self.push(if write { Action::Store(page) } else { Action::Load(page) });
        }
    }

    /// Pages belong to locks by their number, so nobody else stores between two stores of a section.
    fn section(&mut self) {
        let lock = self.thread.random.below(OBJECTS);
        if self.thread.random.once_in(4) {
            let amount = 1 + self.thread.random.below(3);
            return self.push(Action::Operate(OBJECTS + lock, Operation::FetchAdd(amount)));
        }
        self.push(Action::Acquire(lock));
        let page = self.any_page();
        self.push(Action::Store(page));
        if self.scenario.pattern == Pattern::Sections {
            // Only here does every store happen under the lock of its page.
            let last = self.thread.plan.len() - 1;
            let place = self.scenario.layout.places().div_ceil(OBJECTS as u32) - 1;
            let place = self.thread.random.below(u64::from(place) + 1) as u32 * OBJECTS as u32 + lock as u32;
            if place < self.scenario.layout.places() && self.scenario.joiners == 0 {
                let page = self.page(place);
                self.thread.plan[last] = Action::Store(page);
                self.push(Action::Again(page));
                self.push(Action::Again(page));
            } else {
                self.thread.plan.truncate(last);
            }
        }
        self.push(Action::Release(lock));
    }

    fn range_lock(&mut self) {
        let page = self.any_page();
        let after = self.thread.random.below(u64::from(LOCKED_PAGES_MAX)) as u32;
        let end = self.scenario.layout.end_of_run(page, 1 + after);
        let stay = self.thread.random.once_in(4).then(|| 1_000 * self.thread.random.between(1, 400));
        self.push(Action::Lock(page, end, stay));
        self.push(Action::Store(page));
        for page in (page.0..end).map(PageIndex).take(3) {
            let is_load = self.thread.random.once_in(2);
            self.push(if is_load { Action::Load(page) } else { Action::Store(page) });
        }
        if stay.is_none() {
            let last = PageIndex(end - 1);
            self.push(Action::Store(last));
            self.push(Action::AgainHere(last));
            if self.thread.random.once_in(8) {
                self.push(Action::LockOwn(page));
            }
        }
        self.push(Action::Unlock);
    }

    fn block(&mut self) {
        let is_founder = self.node < self.scenario.founders;
        let random = &mut self.thread.random;
        let choice = random.below(1 << 32);
        let action = match random.below(32) {
            0..=15 if is_founder => Action::Allocate(self.request()),
            0..=27 => Action::Free(choice),
            28..=29 => Action::Measure(choice),
            _ => Action::FreeNone(choice),
        };
        self.push(action);
    }

    fn request(&mut self) -> Request {
        let (scenario, random) = (self.scenario, &mut self.thread.random);
        let page_bytes = u64::from(scenario.wires.page_bytes);
        let bytes = match random.below(20) {
            0 => random.below(u64::from(HEAP_PAGES / 3) * page_bytes),
            1..=4 => random.below(10 * page_bytes),
            _ => random.below(1_000),
        };
        let align = if random.once_in(10) { 1 << random.below(16) } else { 8 };
        let home = if random.once_in(4) { random.below(u64::from(scenario.founders)) as u16 } else { self.node };
        let separation = random.one_of(&[Separation::Never, Separation::WhileFew, Separation::Always]);
        let zone = if random.once_in(3) { Zone::Upper } else { Zone::Lower };
        Request { bytes, align, home: NodeId(home), separation, zone }
    }

    fn change(&mut self) {
        (0..4).for_each(|_| {
            let page = self.any_page();
            self.access(page, self.scenario.write_percent);
        });
        // The same on every node: it depends on how far the program is.
        let turn = self.thread.left;
        let layout = self.scenario.layout;
        let first = self.page(turn.wrapping_mul(7) % layout.places());
        self.push(Action::Change(first, layout.end_of_run(first, 4), turn));
    }

    fn guess(&mut self, page: PageIndex) {
        if self.scenario.manners.guesses && self.thread.random.once_in(8) {
            let after = self.thread.random.below(8) as u32;
            let wanted = self.scenario.layout.around(page, 0, after);
            let (write, announced) = (self.thread.random.once_in(2), self.thread.random.once_in(2));
            self.push(Action::Prefetch { wanted, write, announced });
        }
    }

    fn access(&mut self, page: PageIndex, write_percent: u8) {
        let write = self.thread.random.percent(write_percent);
        self.push(if write { Action::Store(page) } else { Action::Load(page) });
    }

    fn push(&mut self, action: Action) {
        self.thread.plan.push(action);
    }

    fn any_page(&mut self) -> PageIndex {
        let place = self.thread.random.below(u64::from(self.scenario.layout.places())) as u32;
        self.page(place)
    }

    fn page(&self, place: u32) -> PageIndex {
        self.scenario.layout.page(place)
    }
}

/// The pages that a request for `page` asks for.
pub(super) fn wanted(scenario: &Scenario, thread: &mut Thread, page: PageIndex) -> PageRange {
    if !scenario.manners.wide || thread.random.once_in(2) {
        return PageRange::one(page);
    }
    let (before, after) = (thread.random.below(3) as u32, thread.random.below(7) as u32);
    scenario.layout.around(page, before, after)
}
