//! A change of the protocol of pages at one node ([`super::change`]), with what its orders mean for the pages.
//!
//! A thread carries a change out: it does what [`Next`] says and passes on how that ended, until [`Next::End`]. At the end it
//! thaws the pages ([`thaw`]), however the change ended. If all have changed, it also applies what was released to it, as
//! after a barrier ([`super::acquired`]).
//!
//! Promises: before all nodes say that nothing is under way, no request of this node is, its copies are closed and what it
//! stored is at its home. Before all nodes change, the home of each page has it, for stores, unless no node ever touched it.
//! It must never hold a shard while its thread waits.

use super::change::{Change, Changes, Ending, Input, Order};
use super::{Carrier, GatherStep, Gathering, Parts, take, take_due};
use crate::Nanoseconds;
use crate::coherence::{Effect, Input as Fact, Protocol};
use crate::page::{NodeId, PageIndex, PageRange, runs};
use crate::sync::{Operation, Waiter};
use core::ops::Range;

/// What the thread does next. Each ends with the input that it names; what waits may end with [`Input::TooLong`] instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It arrives at this barrier of all nodes and waits in it: [`Input::Met`].
    Barrier(u64),
    /// It waits once more in this barrier, at which it has arrived: [`Input::Met`].
    Again(u64),
    /// It applies the operation to this word: [`Input::Value`].
    Operate(u64, Operation),
    /// It says whether this node objects: [`Input::Frozen`]. A node whose program waits for locked pages, or holds them, does:
    /// these are the first of them.
    Object(Option<PageRange>),
    /// It waits until something about this page has changed ([`Carrier::wait_for`]): [`Input::Done`].
    Page(PageIndex),
    /// It requests these pages ([`super::gathering`]) and waits until they have come or have been granted to others:
    /// [`Input::Done`].
    Gather(PageRange),
    /// It publishes what this node stored, and waits until that is over: [`Input::Done`]. No other thread of the node
    /// publishes until the change has ended: it would protect the home's pages again, and its diffs could come after the
    /// change.
    Publish,
    /// It prepares for the other protocol: [`Input::Done`]. The pages change after that.
    Prepare,
    /// It arrives at these barriers without waiting in any of them: [`Input::Done`].
    Pass(Range<u64>),
    /// The change is over.
    End(Ending),
}

/// How far the order that goes through the pages is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// The pages from this one on are left.
    Pages(u32),
    /// All were gone through; the thread does what follows.
    Last,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageChange {
    change: Change,
    order: Order,
    pages: Range<u32>,
    protocol: Protocol,
    stage: Stage,
    /// The pages of one shard that this node gathers.
    gathering: Option<Gathering>,
}

impl PageChange {
    /// Begins a change; see [`Changes::begin`].
    pub fn begin(
        changes: &Changes,
        me: NodeId,
        (pages, protocol): (Range<u32>, Protocol),
        proposal: u64,
        first_number: u64,
    ) -> Option<(PageChange, Next)> {
        let (change, order) = changes.begin(me, proposal, first_number)?;
        let Order::Barrier(first) = order else { unreachable!("a change begins with a barrier") };
        let stage = Stage::Pages(pages.start);
        Some((PageChange { change, order, pages, protocol, stage, gathering: None }, Next::Barrier(first)))
    }

    /// Whether the node waits in the last barrier ([`Change::is_in_last_barrier`]).
    pub fn is_in_last_barrier(&self) -> bool {
        self.change.is_in_last_barrier()
    }

    /// Whether the node has said that none of its requests is under way ([`Change::has_settled`]).
    pub fn has_settled(&self) -> bool {
        self.change.has_settled()
    }

    /// Whether this node gets the pages of which it is the home.
    pub fn is_gathering(&self) -> bool {
        self.order == Order::Gather
    }

    /// Nothing of the order is left for the pages; only a checker that breaks a node says so.
    pub fn skip_pages(&mut self) {
        self.stage = Stage::Last;
    }

    /// Takes how the last step ended, and returns the next one. `waiter` is the thread.
    pub fn go_on<P: Parts>(
        &mut self,
        parts: &mut P,
        now: Nanoseconds,
        input: Input,
        waiter: Waiter,
    ) -> Result<Next, P::Breach> {
        let goes_through_pages = matches!(self.order, Order::Settle | Order::Gather | Order::Change);
        let mut ended = (input != Input::Done || !goes_through_pages).then_some(input);
        loop {
            if let Some(input) = ended.take() {
                self.order = self.change.step(input);
                self.stage = Stage::Pages(self.pages.start);
                self.gathering = None;
            }
            let next = match self.order.clone() {
                Order::Barrier(barrier) => Some(Next::Barrier(barrier)),
                Order::WaitAgain(barrier) => Some(Next::Again(barrier)),
                Order::Operate(word, operation) => Some(Next::Operate(word, operation)),
                Order::Freeze => Some(Next::Object(self.freeze(parts, now)?)),
                Order::Settle => self.settle(parts, waiter)?,
                Order::Gather => self.gather(parts, waiter)?,
                Order::Change => self.change(parts)?,
                Order::Pass(barriers) => Some(Next::Pass(barriers)),
                Order::End(ending) => Some(Next::End(ending)),
            };
            match next {
                Some(next) => return Ok(next),
                None => ended = Some(Input::Done),
            }
        }
    }

    /// The pages of one shard that are next.
    fn next_run(&self) -> Option<PageRange> {
        match self.stage {
            Stage::Pages(first) => runs(first..self.pages.end).next(),
            Stage::Last => None,
        }
    }

    /// Threads that need one of the pages wait from now on. Returns locked pages. Locks whose time is over end before.
    fn freeze<P: Parts>(&self, parts: &mut P, now: Nanoseconds) -> Result<Option<PageRange>, P::Breach> {
        (0..parts.shards()).for_each(|number| parts.hold(number).shard().freeze(self.pages.clone()));
        for run in runs(self.pages.clone()) {
            let mut held = parts.hold_of(run.first());
            take_due(&mut held, now)?;
            if let Some(locked) = held.shard().locks.in_use(run, now) {
                return Ok(Some(locked));
            }
        }
        Ok(None)
    }

    /// Waits until none of this node's requests is under way. Then it closes its copies: under release consistency several
    /// nodes may store to a page, and all but its directory close it.
    fn settle<P: Parts>(&mut self, parts: &mut P, waiter: Waiter) -> Result<Option<Next>, P::Breach> {
        if self.stage == Stage::Last {
            return Ok(None);
        }
        while let Some(run) = self.next_run() {
            let mut held = parts.hold_of(run.first());
            if let Some(page) = held.shard().unsettled(run) {
                held.wait_for(page, waiter);
                return Ok(Some(Next::Page(page)));
            }
            self.stage = Stage::Pages(run.end());
        }
        self.stage = Stage::Last;
        for run in runs(self.pages.clone()) {
            take(&mut parts.hold_of(run.first()), Fact::Close { range: run })?;
        }
        Ok(Some(Next::Publish))
    }

    /// Gets every page of which this node is the home, for stores, unless no node ever touched it.
    fn gather<P: Parts>(&mut self, parts: &mut P, waiter: Waiter) -> Result<Option<Next>, P::Breach> {
        while let Some(run) = self.next_run() {
            let mut held = parts.hold_of(run.first());
            let step = match held.shard().is_home_of(run.first()) {
                true => self.gathering.get_or_insert_with(|| Gathering::new(run)).next(held.shard()),
                false => GatherStep::Done,
            };
            match step {
                GatherStep::Request(wanted) => return Ok(Some(Next::Gather(wanted))),
                GatherStep::Await(page, fault) => {
                    held.wait_for(page, waiter);
                    fault.map_or(Ok(()), |fault| take(&mut held, fault))?;
                    return Ok(Some(Next::Page(page)));
                }
                GatherStep::Done => {
                    self.gathering = None;
                    self.stage = Stage::Pages(run.end());
                }
            }
        }
        Ok(None)
    }

    /// Changes this node's own choice. Nothing about the pages is under way anywhere.
    fn change<P: Parts>(&mut self, parts: &mut P) -> Result<Option<Next>, P::Breach> {
        if self.stage != Stage::Last {
            self.stage = Stage::Last;
            return Ok(Some(Next::Prepare));
        }
        for run in runs(self.pages.clone()) {
            change_run(&mut parts.hold_of(run.first()), run, self.protocol)?;
        }
        Ok(None)
    }
}

/// Changes the protocol of the pages of one shard, about which nothing is under way anywhere.
pub fn change_run<C: Carrier>(held: &mut C, run: PageRange, protocol: Protocol) -> Result<(), C::Breach> {
    for input in held.shard().let_go(run) {
        take(held, input)?;
    }
    held.shard().change(run, protocol).expect("the region's protocols were counted");
    held.has_changed(run, protocol);
    Ok(())
}

/// Thaws all pages, and wakes the threads that wait for one of `pages`.
pub fn thaw<P: Parts>(parts: &mut P, pages: Range<u32>) -> Result<(), P::Breach> {
    (0..parts.shards()).for_each(|number| parts.hold(number).shard().thaw());
    runs(pages).try_for_each(|run| {
        parts.hold_of(run.first()).carry_out(super::Order::CarryOut(Effect::Wake(run)), Default::default())
    })
}
