//! The fault path: a thread touched a page that this node does not hold.
//!
//! `signal` and `mprotect` call [`trellis_memory::FaultServer::serve`] in the faulting thread, which sends the request
//! and polls for the answer. `handler` hands the faults of blocked threads to the service thread, which only submits
//! them: the answer lets the blocked thread continue.

use std::ops::Range;
use std::sync::{Arc, Weak};

use trellis_cluster_protocol::coherence::{Coherence, Event};
use trellis_cluster_protocol::node::{self, gathering};
use trellis_cluster_protocol::prefetch::Request;
use trellis_cluster_protocol::{Access, PageIndex, PageRange};
use trellis_memory::{Fault, FaultServer};

use super::carrier::NodeCarrier;
use super::ordered::lock;
use super::pages::Waiting;
use super::progress::{Polling, Waited};
use super::{Node, Ticket};
use crate::cluster::WaitError;
use crate::launch::Activity;
use crate::waits::Wait;
use trellis_record::{FaultKind, LiveCounters};

/// The maximum number of runs that an announced access requests before it waits for the first of them.
const RUNS_UNDER_WAY_MAX: usize = 8;

/// Why pages are requested ahead of an access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The program may touch them.
    Guessed,
    /// The program said that it will touch them.
    Announced,
    /// Their protocol is being changed.
    Gathered,
}

/// The node, as the catcher calls it. The reference does not keep the node alive.
pub(crate) struct NodeFaults(Weak<Node>);

impl NodeFaults {
    pub(crate) fn new(node: &Arc<Node>) -> NodeFaults {
        NodeFaults(Arc::downgrade(node))
    }
}

impl FaultServer for NodeFaults {
    fn serve(&self, fault: Fault) {
        match self.0.upgrade() {
            Some(node) => node.serve(fault),
            None => super::failure::end_process("the region was touched after this node left the cluster"),
        }
    }

    fn announce(&self, pages: Range<usize>, write: bool) {
        if let Some(node) = self.0.upgrade() {
            node.announce(pages.start as u32..pages.end as u32, write);
        }
    }
}

/// The wait of a thread that touched a page.
fn wait_for(fault: Fault) -> Wait {
    let page = fault.page as u64;
    if fault.write { Wait::WriteFault(page) } else { Wait::ReadFault(page) }
}

impl Node {
    fn serve(&self, fault: Fault) {
        self.refuse_after_leaving();
        let started = self.now();
        let _inside = self.inside(started);
        let page = PageIndex(fault.page as u32);
        let needed = if fault.write { Access::Write } else { Access::Read };
        let ticket = self.waiters.take();
        let request = self.request_for(page, fault.write);
        let mut shard = lock(self.shard_of(page));
        let before = shard.node.protocol.access(page);
        let event = Event::of(&shard.node.protocol, page, fault.write);
        let mut asked_anybody = false;
        while shard.node.protocol.access(page) < needed {
            shard.waiting.push(Waiting::Fault { page, ticket: ticket.name() });
            let mut polling = self.begin_polling(wait_for(fault).urgency());
            asked_anybody |= self.ask(&mut shard, page, &request) || !ticket.is_done();
            drop(shard);
            if !ticket.is_done() {
                polling.expect_answer();
            }
            self.read_ahead(&request);
            if !ticket.is_done() && before == Access::None {
                // The page's memory is made while the request travels. If there is none, receiving reports it.
                let _ = self.prepare(PageRange::one(page));
            }
            self.wait_for_page(&ticket, fault, polling);
            ticket.rearm();
            shard = lock(self.shard_of(page));
            // A thread that has to ask again reports this too: it may be the last one for which the page stayed.
            let Ok(()) = node::looks(&mut NodeCarrier { node: self, held: &mut *shard }, page, || self.now());
        }
        drop(shard);
        self.note_fault(page, fault.offset as u32, event, started, asked_anybody);
    }

    /// Tells the protocol about a fault, unless the page is about to get a new protocol. Returns whether a message was
    /// sent, or will be when the page has that protocol.
    fn ask(&self, shard: &mut super::Shard, page: PageIndex, request: &Request) -> bool {
        let Some(fault) = shard.node.fault(page, request.write, request.range) else { return true };
        self.step(shard, fault) > 0
    }

    fn wait_for_page<'a>(&'a self, ticket: &Ticket<'_>, fault: Fault, polling: Polling<'a>) {
        let wait = wait_for(fault);
        let since = self.now();
        // The news that the page is locked may arrive meanwhile.
        let look_ns = wait.limit_ns(&self.config).min(Wait::LockRange(0).limit_ns(&self.config));
        if ticket.is_done() {
            return;
        }
        // This is one wait, however often the loop below looks at it.
        self.doing(Activity::Waiting(wait));
        ticket.begin_wait(wait, since, since.saturating_add(wait.limit_ns(&self.config)));
        let mut early = Some(polling);
        loop {
            match self.wait_unseen(early.take(), ticket, self.now().saturating_add(look_ns)) {
                Waited::Done => break,
                Waited::Failed => self.end_after_failure(),
                Waited::TooLong => self.give_up_late(wait, since),
            }
        }
        ticket.end_wait();
        self.doing(Activity::Computing);
    }

    /// Ends this node if a thread has waited too long for a page, as [`Node::limit_now_ns`] says.
    pub(super) fn give_up_late(&self, wait: Wait, since: u64) {
        let (Wait::ReadFault(page) | Wait::WriteFault(page)) = wait else { return };
        let page = PageIndex(page as u32);
        let limit = self.limit_now_ns(wait);
        if self.now().saturating_sub(since) >= limit {
            let seconds = limit / 1_000_000_000;
            self.fail(format!("page {} did not come within {seconds} s; {}", page.0, self.who_has_page(page)));
            self.end_after_failure();
        }
    }

    /// How long a wait may last, by what is known now, in nanoseconds. A page that another node's program has locked
    /// may take as long as a lock may.
    pub(super) fn limit_now_ns(&self, wait: Wait) -> u64 {
        let is_locked = match wait {
            Wait::ReadFault(page) | Wait::WriteFault(page) | Wait::Fetch(page) => {
                let page = PageIndex(page as u32);
                lock(self.shard_of(page)).asked_for(page).is_some_and(|asked| asked.is_locked)
            }
            _ => false,
        };
        if is_locked { Wait::LockRange(0) } else { wait }.limit_ns(&self.config)
    }

    /// Which node should have given `page`, for the sentence of an error.
    pub(super) fn who_has_page(&self, page: PageIndex) -> String {
        let asked = lock(self.shard_of(page)).asked_for(page);
        let home = format!("its home is {}", self.name_of(self.home_of(page)));
        match asked {
            Some(asked) if asked.is_locked => format!("it is locked at {}", self.name_of(asked.node)),
            Some(asked) if asked.node != self.home_of(page) => {
                format!("{home}, and {} was asked for it last", self.name_of(asked.node))
            }
            _ => home,
        }
    }

    /// Submits the fault of a thread that the kernel blocks, and returns.
    pub(super) fn submit(&self, fault: Fault) {
        self.refuse_after_leaving();
        let since = self.now();
        let page = PageIndex(fault.page as u32);
        let request = self.request_for(page, fault.write);
        let mut shard = lock(self.shard_of(page));
        let event = Event::of(&shard.node.protocol, page, fault.write);
        self.enter(since);
        shard.waiting.push(Waiting::Kernel {
            page,
            offset: fault.offset as u32,
            since,
            event,
            asked: false,
            is_noted: false,
        });
        self.ask(&mut shard, page, &request);
        // A thread that was not woken at once waits for another node.
        for waiting in &mut shard.waiting {
            if let Waiting::Kernel { page: waiting_for, asked, .. } = waiting {
                *asked |= *waiting_for == page;
            }
        }
        drop(shard);
        self.read_ahead(&request);
    }

    fn request_for(&self, page: PageIndex, write: bool) -> Request {
        if self.window_pages_max == 1 {
            return Request::only(page, write);
        }
        lock(&self.streams).fault(page, write)
    }

    fn read_ahead(&self, request: &Request) {
        for ahead in request.ahead.into_iter().flatten() {
            let mut shard = lock(self.shard_of(ahead.first()));
            self.ask_ahead(&mut shard, ahead, request.write, Why::Guessed);
        }
    }

    fn ask_ahead(&self, shard: &mut super::Shard, wanted: PageRange, write: bool, why: Why) {
        let input = match why {
            Why::Gathered => Some(gathering(wanted)),
            Why::Guessed | Why::Announced => shard.node.prefetch(wanted, write, why == Why::Announced),
        };
        let Some(input) = input else { return };
        LiveCounters::add(&self.counters().prefetched_pages, u64::from(wanted.count()));
        self.step(shard, input);
    }

    /// Requests pages before they are touched. Returns when no request for them is under way any more.
    pub(crate) fn prefetch(&self, pages: Range<u32>, write: bool) -> Result<(), WaitError> {
        let started = self.now();
        let fetched = match self.leases.get() {
            Some(leases) => {
                leases.prefetch(pages, write);
                Ok(())
            }
            None => self.fetch(pages, write, Why::Announced),
        };
        LiveCounters::add(&self.counters().fault_wait_ns, self.now() - started);
        fetched
    }

    /// A thread is about to touch all of these pages, and serves its own faults.
    fn announce(&self, pages: Range<u32>, write: bool) {
        self.refuse_after_leaving();
        // Other threads wait for pages at memory servers.
        if self.leases.get().is_some() {
            return;
        }
        let started = self.now();
        let _inside = self.inside(started);
        // The pages that do not come are asked for again when they are touched, and the fault says why.
        let _ = self.fetch(pages, write, Why::Announced);
        LiveCounters::add(&self.counters().fault_wait_ns, self.now() - started);
    }

    /// Requests pages in runs, several at a time, and returns when no request for them is under way any more. It does not
    /// allocate unless it fails.
    pub(super) fn fetch(&self, pages: Range<u32>, write: bool, why: Why) -> Result<(), WaitError> {
        let window = self.window_pages_max;
        let needed = if write { Access::Write } else { Access::Read };
        let run_from = |first: u32| PageRange::around(PageIndex(first), first, pages.end.min(first + window));
        let (mut asked, mut come, mut under_way) = (pages.start, pages.start, 0);
        while come < pages.end {
            while asked < pages.end && under_way < RUNS_UNDER_WAY_MAX {
                let run = run_from(asked);
                (asked, under_way) = (run.end(), under_way + 1);
                let mut shard = lock(self.shard_of(run.first()));
                let has_all = || run.pages().all(|page| shard.node.protocol.access(page) >= needed);
                if why == Why::Gathered || !has_all() {
                    self.ask_ahead(&mut shard, run, write, why);
                }
            }
            let run = run_from(come);
            (come, under_way) = (run.end(), under_way - 1);
            self.wait_until_come(run, needed)?;
        }
        Ok(())
    }

    /// Waits until no request for a page of `run` is under way any more.
    fn wait_until_come(&self, run: PageRange, needed: Access) -> Result<(), WaitError> {
        for page in run.pages() {
            let ticket = self.waiters.take();
            let mut shard = lock(self.shard_of(page));
            if shard.node.protocol.access(page) >= needed || !shard.node.protocol.is_pending(page) {
                continue;
            }
            shard.waiting.push(Waiting::Thread { page, ticket: ticket.name() });
            drop(shard);
            let (wait, since) = (Wait::Fetch(u64::from(page.0)), self.now());
            loop {
                match self.wait(&ticket, wait) {
                    Waited::Done => break,
                    Waited::Failed => return Err(WaitError::Failed(self.failure.sentence())),
                    // The news that the page is locked may have arrived meanwhile.
                    Waited::TooLong if self.now().saturating_sub(since) < self.limit_now_ns(wait) => {}
                    Waited::TooLong => {
                        let seconds = self.limit_now_ns(wait) / 1_000_000_000;
                        let (what, whom) = (self.described(wait), self.who_has_page(page));
                        return Err(WaitError::TooLong { what, seconds, whom });
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn note_fault(&self, page: PageIndex, offset: u32, event: Event, since: u64, asked: bool) {
        let kind = match event {
            _ if !asked => FaultKind::Local,
            Event::Read => FaultKind::Read,
            Event::Write => FaultKind::Write,
            Event::UpgradeNotOwner => FaultKind::Upgrade,
            Event::UpgradeOwner => FaultKind::UpgradeOwner,
        };
        self.count_fault(page.0, Some(offset), kind, since, self.now() - since);
    }

    /// Counts a fault that was answered after `waited` nanoseconds. `offset` is the byte of the page that was touched,
    /// if it is known.
    pub(super) fn count_fault(&self, page: u32, offset: Option<u32>, kind: FaultKind, since: u64, waited: u64) {
        let counters = self.counters();
        let (counter, time) = match kind {
            FaultKind::Local => (&counters.local_faults, &counters.overhead_ns),
            FaultKind::Read => (&counters.read_faults, &counters.fault_wait_ns),
            FaultKind::Write => (&counters.write_faults, &counters.fault_wait_ns),
            FaultKind::Upgrade => (&counters.upgrade_faults, &counters.fault_wait_ns),
            FaultKind::UpgradeOwner => (&counters.upgrade_owner_faults, &counters.fault_wait_ns),
        };
        LiveCounters::add(counter, 1);
        LiveCounters::add(time, waited);
        self.recorder.fault(since, page, offset, kind, waited);
    }
}
