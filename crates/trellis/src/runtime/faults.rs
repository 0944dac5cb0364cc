//! The fault path: a thread touched a page that this node does not hold.
//!
//! `signal` and `mprotect` call [`trellis_memory::FaultServer::serve`] in the faulting thread, which sends the request
//! itself and polls for the answer; `handler` hands the faults of blocked threads to the service thread, which only
//! submits them: the answer lets the thread go on.

use std::sync::{Arc, Weak};

use trellis_memory::{Fault, FaultServer};
use trellis_protocol::coherence::{Coherence, Input};
use trellis_protocol::prefetch::Wish;
use trellis_protocol::{Access, PageIndex, PageRange};

use super::pages::{Waiting, lock};
use super::progress::Waited;
use super::{Node, Ticket};
use crate::launch::Activity;
use crate::record::{FaultKind, LiveCounters};

/// How long one fault may take before the node gives up: a page travels in microseconds, and a peer that is dead or
/// silent is reported long before this.
const FAULT_NS_MAX: u64 = 120_000_000_000;
/// Most runs that an announced access asks for before it waits for the first of them.
const RUNS_UNDER_WAY_MAX: usize = 8;

/// What the catcher calls; does not keep the node alive.
pub(crate) struct Server(Weak<Node>);

impl Server {
    pub(crate) fn new(node: &Arc<Node>) -> Server {
        Server(Arc::downgrade(node))
    }
}

impl FaultServer for Server {
    fn serve(&self, fault: Fault) {
        match self.0.upgrade() {
            Some(node) => node.serve(fault),
            None => super::failure::end_process("the region was touched after this node left the cluster"),
        }
    }
}

impl Node {
    fn serve(&self, fault: Fault) {
        let started = self.now();
        let page = PageIndex(fault.page as u32);
        let needed = if fault.write { Access::Write } else { Access::Read };
        let ticket = self.waiters.take();
        let wish = self.wish(page, fault.write);
        let mut shard = lock(self.shard_of(page));
        let before = shard.protocol.access(page);
        let mut asked_anybody = false;
        while shard.protocol.access(page) < needed {
            shard.waiting.push(Waiting::Thread { page, ticket: ticket.name() });
            self.step(&mut shard, Input::Fault { page, write: wish.write, wish: wish.range });
            asked_anybody |= shard.sent > 0 || !ticket.is_done();
            drop(shard);
            self.read_ahead(&wish);
            if !ticket.is_done() && before == Access::None {
                // The request travels; meanwhile the page's memory is made. If there is none, receiving says so.
                let _ = self.prepare(PageRange::one(page));
            }
            self.wait_for_page(&ticket, fault);
            ticket.rearm();
            shard = lock(self.shard_of(page));
        }
        self.resumes(&mut shard, page);
        drop(shard);
        self.note_fault(page, fault.write, before, started, asked_anybody);
    }

    fn wait_for_page(&self, ticket: &Ticket<'_>, fault: Fault) {
        if ticket.is_done() {
            return;
        }
        let page = fault.page as u64;
        let activity = if fault.write { Activity::WriteFault(page) } else { Activity::ReadFault(page) };
        self.doing(activity);
        match self.wait(ticket, self.now() + FAULT_NS_MAX) {
            Waited::Done => self.doing(Activity::Computing),
            Waited::Failed => self.end_after_failure(),
            Waited::TooLong => {
                let manager = self.name_of(self.manager_of(PageIndex(fault.page as u32)));
                self.fail(format!(
                    "page {page} did not come within {} s; its manager is {manager}",
                    FAULT_NS_MAX / 1_000_000_000
                ));
                self.end_after_failure();
            }
        }
    }

    /// A fault of a thread that the kernel blocks: submits it and returns.
    pub(super) fn submit(&self, fault: Fault) {
        let since = self.now();
        let page = PageIndex(fault.page as u32);
        let wish = self.wish(page, fault.write);
        let mut shard = lock(self.shard_of(page));
        let before = shard.protocol.access(page);
        shard.waiting.push(Waiting::Kernel { page, since, before, write: fault.write, asked: false });
        self.step(&mut shard, Input::Fault { page, write: wish.write, wish: wish.range });
        // Who was not woken at once waits for another node.
        for waiting in &mut shard.waiting {
            if let Waiting::Kernel { page: waiting_for, asked, .. } = waiting {
                *asked |= *waiting_for == page;
            }
        }
        drop(shard);
        self.read_ahead(&wish);
    }

    fn wish(&self, page: PageIndex, write: bool) -> Wish {
        if self.window_pages_max == 1 {
            return Wish::only(page, write);
        }
        lock(&self.streams).fault(page, write)
    }

    fn read_ahead(&self, wish: &Wish) {
        for ahead in wish.ahead.into_iter().flatten() {
            let mut shard = lock(self.shard_of(ahead.first()));
            self.ask_ahead(&mut shard, ahead, wish.write, false);
        }
    }

    fn ask_ahead(&self, shard: &mut super::Shard, wish: PageRange, write: bool, announced: bool) {
        LiveCounters::add(&self.counters().prefetched_pages, u64::from(wish.count()));
        self.step(shard, Input::Prefetch { wish, write, announced });
    }

    /// Asks for pages before they are touched; returns when all have been asked for and most have come.
    pub(crate) fn prefetch(&self, pages: std::ops::Range<u32>, write: bool) -> Result<(), Waited> {
        let window = self.window_pages_max;
        let needed = if write { Access::Write } else { Access::Read };
        let mut under_way = std::collections::VecDeque::with_capacity(RUNS_UNDER_WAY_MAX);
        let mut next = pages.start;
        while next < pages.end {
            if under_way.len() == RUNS_UNDER_WAY_MAX {
                self.wait_until_come(under_way.pop_front().expect("it is full"), needed)?;
            }
            let run = PageRange::around(PageIndex(next), next, pages.end.min(next + window));
            next = run.end();
            let mut shard = lock(self.shard_of(run.first()));
            self.ask_ahead(&mut shard, run, write, true);
            under_way.push_back(run);
        }
        under_way.into_iter().try_for_each(|run| self.wait_until_come(run, needed))
    }

    /// Waits until no request for a page of `run` is under way any more.
    fn wait_until_come(&self, run: PageRange, needed: Access) -> Result<(), Waited> {
        for page in run.pages() {
            let ticket = self.waiters.take();
            let mut shard = lock(self.shard_of(page));
            if shard.protocol.access(page) >= needed || !shard.protocol.is_pending(page) {
                continue;
            }
            shard.waiting.push(Waiting::Thread { page, ticket: ticket.name() });
            drop(shard);
            match self.wait(&ticket, self.now() + FAULT_NS_MAX) {
                Waited::Done => {}
                other => return Err(other),
            }
        }
        Ok(())
    }

    pub(super) fn note_fault(&self, page: PageIndex, write: bool, before: Access, since: u64, asked: bool) {
        let counters = self.counters();
        let (counter, kind) = match (asked, write, before) {
            (false, ..) => (&counters.local_faults, FaultKind::Local),
            (true, false, _) => (&counters.read_faults, FaultKind::Read),
            (true, true, Access::Read) => (&counters.upgrade_faults, FaultKind::Upgrade),
            (true, true, _) => (&counters.write_faults, FaultKind::Write),
        };
        let waited = self.now() - since;
        LiveCounters::add(counter, 1);
        LiveCounters::add(&counters.fault_wait_ns, waited);
        self.recorder.fault(since, page.0, kind, waited);
    }
}
