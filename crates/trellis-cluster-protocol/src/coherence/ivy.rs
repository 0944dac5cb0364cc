//! `ivy`: fixed manager, single writer or many readers (Li and Hudak 1989, §3; libivy, §2).
//!
//! Every page has a manager. The manager knows the owner of the page (the last writer) and its copyset (the readers), and
//! carries out one transaction per page at a time. Conflicting requests queue there in the order of their arrival. The
//! protocol differs from the paper's improved centralised manager in these points:
//!
//! * A manager that holds a copy answers by itself: two messages instead of four. It needs no confirmation, because
//!   whatever the manager sends next about that page carries enough for the receiver to wait until the grant has arrived
//!   (`after`, [`Ivy::invalidate`]).
//! * A writer that holds a current copy receives only the right, never the bytes.
//! * A request names a page range around the page that a thread waits for. The other pages are granted with it if they are
//!   in the same state, and their readers lose their copies all at once. They are taken from another writer only if the
//!   program announced that it wants them. This makes streams fast.
//! * A page that was never written travels as one bit.
//! * Some pages move from writer to writer, and each writer reads the page first. Such a page is granted for writing when
//!   it is requested for reading, which halves the messages (migratory sharing; Stenström, Brorsson and Sandberg 1993, §3).
//!   Nobody sees whether a thread that was granted the right also stores. So the page is granted for reading again after
//!   one such grant, and, each time that a store of the reader follows then, after three, seven, and at most
//!   [`MIGRATIONS_MAX`]. If no store follows, the page is taken for shared.
//! * libivy retries a conflicting request after one second and fails at five workers. Here the request waits in a queue,
//!   and a granted page stays until the faulting thread has run on.
//!
//! Per page a node keeps 17 bytes and one copyset, all zero at the start: pages that were never touched cost address space
//! but no memory.

use super::{Coherence, Content, Effect, Geometry, Input, Message, violation};
use crate::Nanoseconds;
use crate::page::{Access, Accesses, NodeId, NodeSets, PageIndex, PageRange};
use alloc::vec;
use alloc::vec::Vec;

/// One shard of the protocol at one node. See the documentation of this module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ivy {
    geometry: Geometry,
    // What this node may do with a page.
    access: Accesses,
    flags: Vec<u8>,
    granted_sequence: Vec<u32>,
    outstanding: Vec<Outstanding>,
    deferred: Vec<(NodeId, Message)>,
    // What this node knows of the pages that it manages.
    owner_or_manager: Vec<u16>,
    owner_sequence: Vec<u32>,
    transaction: Vec<u32>,
    copyset: NodeSets,
    migration: Vec<u8>,
    transactions: Vec<Option<Transaction>>,
    queue: Vec<Request>,
    last_sequence: u32,
}

/// How often in a row a read request for a migratory page is answered with the right to write, at most.
const MIGRATIONS_MAX: u8 = (1 << TRUST_MAX) - 1;
/// How often in a row a store confirms that a page migrates until that is taken for certain.
const TRUST_MAX: u8 = 4;

/// The manager's record of a migratory page, which fits a byte: how often a store has confirmed the migration, and how
/// many more read requests get the right to write.
#[derive(Clone, Copy)]
struct Migration {
    trust: u8,
    left: u8,
}

impl Migration {
    const LEFT_BITS: u32 = 4;

    fn of(byte: u8) -> Migration {
        Migration { trust: byte >> Migration::LEFT_BITS, left: byte & MIGRATIONS_MAX }
    }

    fn byte(self) -> u8 {
        self.trust << Migration::LEFT_BITS | self.left
    }
}

const _: () = assert!(MIGRATIONS_MAX < 1 << Migration::LEFT_BITS && TRUST_MAX < 1 << (u8::BITS - Migration::LEFT_BITS));

/// A request of this node for the page is under way.
const PENDING: u8 = 1;
/// A thread of this node was granted the page and has not run on yet.
const HELD: u8 = 2;
/// Set at the manager: the page may have been written.
const WRITTEN: u8 = 4;

/// The fields of [`Message::Grant`].
#[derive(Clone, Copy)]
struct Grant {
    demand: PageIndex,
    range: PageRange,
    write: bool,
    content: Content,
    sequence: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Outstanding {
    demand: PageIndex,
    range: PageRange,
    /// A thread waits: the page is held for it when it arrives.
    awaited: bool,
}

/// Why a node requests pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// A thread waits for the first of them.
    Awaited,
    /// The program will touch them.
    Announced,
    /// They may be touched.
    Guessed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    from: NodeId,
    demand: PageIndex,
    range: PageRange,
    write: bool,
    /// The program announced the whole range; it is not a guess.
    announced: bool,
}

/// The manager's work on a range until it may go on with the next request for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Transaction {
    request: Request,
    /// The pages that are given if the owner can give them; `request.range` is the range that was requested.
    range: PageRange,
    plan: Plan,
    /// The number of readers that have not given up their copies yet.
    awaited: u32,
    /// The number of the grant, once it was ordered from the owner.
    sequence: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Plan {
    /// The requester holds a current copy and needs only the right to write.
    GrantRight,
    /// The manager holds a current copy.
    GrantCopy,
    /// The owner must send its copy.
    Forward(NodeId),
}

impl Coherence for Ivy {
    fn step(&mut self, _now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Fault { page, write, wanted } => self.fault(page, write, wanted, effects),
            Input::Prefetch { wanted, write, announced } => self.prefetch(wanted, write, announced, effects),
            Input::Message { from, message } => self.message(from, message, effects),
            Input::Resumed { page } => self.resumed(page, effects),
            Input::Gone { node, successor } => self.gone(node, successor, effects),
            // These inputs are for layers; there is none here.
            Input::Alarm { .. } | Input::Lock { .. } | Input::Unlock { .. } => {}
            release_consistency_only!() => {}
        }
    }

    fn access(&self, page: PageIndex) -> Access {
        self.access[self.slot(page)]
    }

    fn is_pending(&self, page: PageIndex) -> bool {
        self.has(page, PENDING)
    }

    fn owns(&self, page: PageIndex) -> bool {
        // Only the manager knows that a node owns a page if that node lost the right to store when the manager shared the
        // page.
        let is_manager = self.manager(page) == self.geometry.me;
        self.access(page) == Access::Write || is_manager && self.owner(page) == self.geometry.me
    }

    fn leaves_behind(&self, page: PageIndex) -> bool {
        self.granted_sequence[self.slot(page)] != 0
    }

    fn is_untouched(&self, page: PageIndex) -> bool {
        let slot = self.slot(page);
        self.manager(page) == self.geometry.me
            && self.access[slot] == Access::None
            && self.flags[slot] == 0
            && self.owner_or_manager[slot] == 0
            && self.transaction[slot] == 0
            && self.copyset.is_empty_but(slot, &[])
    }

    fn release(&mut self, page: PageIndex) {
        let slot = self.slot(page);
        debug_assert!(self.transaction[slot] == 0 && !self.has(page, PENDING));
        self.access.set(slot, Access::None);
        self.flags[slot] = 0;
        self.granted_sequence[slot] = 0;
        self.owner_or_manager[slot] = 0;
        self.owner_sequence[slot] = 0;
        self.copyset.clear(slot);
        self.migration[slot] = 0;
    }

    fn adopt(&mut self, page: PageIndex) {
        debug_assert!(self.is_untouched(page));
        self.record(PageRange::one(page), self.geometry.me, true, 0);
        let slot = self.slot(page);
        self.access.set(slot, Access::Write);
    }
}

// The side of the requester.
impl Ivy {
    /// One shard for one node. Every page belongs to its manager and is zero.
    pub fn new(geometry: Geometry) -> Ivy {
        assert!(geometry.me.0 < geometry.nodes && geometry.shard < geometry.shards);
        let pages = geometry.slots();
        Ivy {
            geometry,
            access: Accesses::none(pages),
            flags: vec![0; pages],
            granted_sequence: vec![0; pages],
            outstanding: Vec::with_capacity(64),
            deferred: Vec::with_capacity(64),
            owner_or_manager: vec![0; pages],
            owner_sequence: vec![0; pages],
            transaction: vec![0; pages],
            copyset: NodeSets::new(pages, geometry.nodes),
            migration: vec![0; pages],
            transactions: Vec::with_capacity(64),
            queue: Vec::with_capacity(64),
            last_sequence: 0,
        }
    }

    fn fault(&mut self, page: PageIndex, write: bool, wanted: PageRange, effects: &mut Vec<Effect>) {
        let needed = if write { Access::Write } else { Access::Read };
        if self.access(page) >= needed {
            // The request of another thread was faster.
            effects.push(Effect::Wake(PageRange::one(page)));
        } else if !self.has(page, PENDING) {
            self.ask(page, wanted, write, Why::Awaited, effects);
        } else if let Some(mine) = self.outstanding.iter_mut().find(|o| o.range.contains(page)) {
            // The page was already requested; from now on a thread waits for it.
            mine.awaited |= mine.demand == page;
        }
    }

    fn prefetch(&mut self, wanted: PageRange, write: bool, announced: bool, effects: &mut Vec<Effect>) {
        let needed = if write { Access::Write } else { Access::Read };
        let mut next = wanted.first().0;
        while let Some(page) =
            (next..wanted.end()).map(PageIndex).find(|&page| self.access(page) < needed && !self.has(page, PENDING))
        {
            let rest = PageRange::around(page, page.0, wanted.end());
            let why = if announced { Why::Announced } else { Why::Guessed };
            next = self.ask(page, rest, write, why, effects).end();
        }
    }

    /// Requests `demand` from the manager, and those neighbours in `wanted` that are in the same state here. Returns the
    /// range that was requested.
    fn ask(
        &mut self,
        demand: PageIndex,
        wanted: PageRange,
        write: bool,
        why: Why,
        effects: &mut Vec<Effect>,
    ) -> PageRange {
        let access = self.access(demand);
        let range = wanted.grow(demand, |page| self.access(page) == access && !self.has(page, PENDING | HELD));
        for page in range.pages() {
            self.set(page, PENDING);
        }
        self.outstanding.push(Outstanding { demand, range, awaited: why == Why::Awaited });
        let announced = why == Why::Announced;
        let manager = self.manager(demand);
        if manager == self.geometry.me {
            self.request(Request { from: manager, demand, range, write, announced }, effects);
        } else {
            let requester = self.geometry.me;
            let message = Message::Request { demand, range, write, announced, requester, hops: 0 };
            effects.push(Effect::Send { to: manager, message });
        }
        range
    }

    fn granted(&mut self, from: NodeId, grant: Grant, effects: &mut Vec<Effect>) {
        let Grant { demand, range, content, .. } = grant;
        let Some(index) = self.outstanding.iter().position(|o| o.demand == demand) else {
            return violation(from, "a grant that nobody asked for", effects);
        };
        let asked = self.outstanding[index];
        let kept = content == Content::Kept;
        let expected = if kept { Access::Read } else { Access::None };
        if !asked.range.covers(range) || range.pages().any(|page| self.access(page) != expected) {
            return violation(from, "a grant that does not fit the request", effects);
        }
        self.outstanding.swap_remove(index);
        self.take(asked, grant, effects);
        let manager = self.manager(demand);
        if manager == self.geometry.me {
            self.confirmed(manager, demand, range, effects);
        } else if from != manager {
            let message = Message::Confirm { demand, range };
            effects.push(Effect::Send { to: manager, message });
        }
        for page in range.pages() {
            self.retry_deferred(page, effects);
        }
    }

    /// Puts a grant into force at this node and wakes the threads that wait for any page that was requested.
    fn take(&mut self, asked: Outstanding, grant: Grant, effects: &mut Vec<Effect>) {
        let Grant { range, write, content, sequence, .. } = grant;
        let access = if write { Access::Write } else { Access::Read };
        for page in range.pages() {
            let slot = self.slot(page);
            self.access.set(slot, access);
            if write {
                self.granted_sequence[slot] = sequence;
            }
        }
        for page in asked.range.pages() {
            self.clear(page, PENDING);
        }
        effects.push(match content {
            Content::Kept => Effect::Upgrade(range),
            _ => Effect::Install { range, access, zero: content == Content::Zero },
        });
        if asked.awaited {
            self.set(asked.demand, HELD);
        }
        effects.push(Effect::Wake(asked.range));
    }

    fn resumed(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        if !self.has(page, HELD) {
            return;
        }
        self.clear(page, HELD);
        self.retry_deferred(page, effects);
        self.serve_queue(PageRange::one(page), effects);
    }
}

// The side of a node that holds a copy.
impl Ivy {
    /// Handles a command from the manager to give up a read copy. If there is no copy, the grant that this command refers
    /// to is still on its way, and the command waits for it.
    fn invalidate(&mut self, from: NodeId, page: PageIndex, owner: NodeId, effects: &mut Vec<Effect>) {
        match self.access(page) {
            Access::Read if self.has(page, HELD) => {
                effects.push(Effect::Hold(page));
                self.deferred.push((from, Message::Invalidate { page, owner }));
            }
            Access::Read => {
                self.revoke(PageRange::one(page), effects);
                let message = Message::Invalidated { page };
                effects.push(Effect::Send { to: from, message });
            }
            Access::None if self.has(page, PENDING) => {
                self.deferred.push((from, Message::Invalidate { page, owner }));
            }
            _ => violation(from, "an invalidation of a page that is no read copy", effects),
        }
    }

    fn forwarded(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        let Message::Forward { demand, range, write, requester, after, sequence } = message else {
            unreachable!("only called with a forward");
        };
        if self.granted_sequence[self.slot(demand)] != after || self.has(demand, HELD) {
            if self.has(demand, HELD) {
                effects.push(Effect::Hold(demand));
            }
            return self.deferred.push((from, message));
        }
        if self.access(demand) == Access::None || requester == self.geometry.me {
            return violation(from, "a forward to a node that holds no copy", effects);
        }
        let given = range.grow(demand, |page| self.access(page) != Access::None && !self.has(page, PENDING | HELD));
        self.give_up(given, write, effects);
        let content = Content::Bytes;
        let message = Message::Grant { demand, range: given, write, content, sequence };
        effects.push(Effect::Send { to: requester, message });
    }

    /// Leaves this node the access that a grant of `range` to another node allows.
    fn give_up(&mut self, range: PageRange, write: bool, effects: &mut Vec<Effect>) {
        if write {
            self.revoke(range, effects);
        } else if range.pages().any(|page| self.access(page) == Access::Write) {
            for page in range.pages() {
                let slot = self.slot(page);
                self.access.set(slot, Access::Read);
            }
            effects.push(Effect::Downgrade(range));
        }
    }

    fn revoke(&mut self, range: PageRange, effects: &mut Vec<Effect>) {
        for page in range.pages() {
            let slot = self.slot(page);
            self.access.set(slot, Access::None);
        }
        effects.push(Effect::Revoke(range));
    }

    fn retry_deferred(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        // The manager carries out one transaction per page at a time: at most one command waits.
        let waiting = self.deferred.iter().position(|(_, message)| message.page() == page);
        if let Some(index) = waiting {
            let (from, message) = self.deferred.swap_remove(index);
            self.message(from, message, effects);
        }
    }
}

// The side of the manager.
impl Ivy {
    fn request(&mut self, request: Request, effects: &mut Vec<Effect>) {
        if self.is_busy(request.demand) {
            if self.has(request.demand, HELD) {
                effects.push(Effect::Hold(request.demand));
            }
            self.queue.push(request);
        } else {
            self.start(request, effects);
        }
    }

    /// A page that was just granted to the manager itself counts as busy until its thread has run on.
    fn is_busy(&self, page: PageIndex) -> bool {
        self.transaction[self.slot(page)] != 0 || self.has(page, HELD)
    }

    fn start(&mut self, mut request: Request, effects: &mut Vec<Effect>) {
        if self.follow_migration(request) {
            request.write = true;
            request.range = PageRange::one(request.demand);
        }
        let Request { from, demand, write, .. } = request;
        if self.holds(demand, from) && !write && !self.is_untouched_here(demand, from) {
            return violation(from, "a read request for a page that the requester holds", effects);
        }
        let plan = self.plan(demand, from, write);
        // Neighbours are not worth taking from another writer unless the program announced that it wants them. Otherwise a
        // stream of stores that runs past the end of its own part would strip the neighbour's.
        let from_owner = supplier(plan).is_some();
        let guessed = write && from_owner && !request.announced;
        let range = if guessed || from_owner && self.must_invalidate(demand, from, write, plan) {
            PageRange::one(demand)
        } else {
            request.range.grow(demand, |page| {
                !self.is_busy(page)
                    && self.plan(page, from, write) == plan
                    && !(from_owner && self.must_invalidate(page, from, write, plan))
                    && (plan == Plan::GrantRight || self.is_like(page, demand, WRITTEN))
                    && self.is_untouched_here(page, from) == self.is_untouched_here(demand, from)
            })
        };
        let transaction = Transaction { request, range, plan, awaited: 0, sequence: 0 };
        self.begin(transaction, effects);
    }

    /// Detects migratory pages: true if this read request is better answered as a write request.
    fn follow_migration(&mut self, request: Request) -> bool {
        let Request { from, demand, write, .. } = request;
        let (slot, owner) = (self.slot(demand), self.owner(demand));
        let mut migration = Migration::of(self.migration[slot]);
        let has_other_copies = |spared: &[NodeId]| !self.copyset.is_empty_but(slot, spared);
        let migrates = !write && migration.left > 0 && owner != from && !has_other_copies(&[owner]);
        let is_shared = (!write || owner == from) && has_other_copies(&[owner]);
        let only_reader = self.copyset.contains(slot, from) && !has_other_copies(&[from, owner]);
        if migrates {
            migration.left -= 1;
        } else if is_shared {
            // Several nodes read it, or its last reader did not store to it.
            migration = Migration { trust: 0, left: 0 };
        } else if write && owner != from && only_reader && self.has(demand, WRITTEN) {
            migration.trust = (migration.trust + 1).min(TRUST_MAX);
            migration.left = (1 << migration.trust) - 1;
        }
        self.migration[slot] = migration.byte();
        migrates
    }

    /// Sends the invalidations, if any, and goes on at once if there are none.
    fn begin(&mut self, mut transaction: Transaction, effects: &mut Vec<Effect>) {
        let Transaction { request, range, plan, .. } = transaction;
        let me = self.geometry.me;
        if request.write {
            let spared = [request.from, me, supplier(plan).unwrap_or(me)];
            for page in range.pages() {
                let (slot, owner) = (self.slot(page), self.owner(page));
                let owner_counts = !self.copyset.contains(slot, owner);
                let readers = self.copyset.members(slot).chain(owner_counts.then_some(owner));
                for reader in readers.filter(|reader| !spared.contains(reader)) {
                    transaction.awaited += 1;
                    let message = Message::Invalidate { page, owner: request.from };
                    effects.push(Effect::Send { to: reader, message });
                }
            }
        }
        if transaction.awaited == 0 {
            self.carry_out(transaction, effects);
        } else {
            self.suspend(transaction);
        }
    }

    fn carry_out(&mut self, mut transaction: Transaction, effects: &mut Vec<Effect>) {
        let Transaction { request, range, plan, .. } = transaction;
        let Request { from, demand, write, .. } = request;
        let sequence = if write { self.next_sequence() } else { 0 };
        match plan {
            Plan::Forward(owner) => {
                transaction.sequence = sequence;
                let after = self.owner_sequence[self.slot(demand)];
                let message = Message::Forward { demand, range, write, requester: from, after, sequence };
                self.suspend(transaction);
                effects.push(Effect::Send { to: owner, message });
            }
            Plan::GrantRight | Plan::GrantCopy if from == self.geometry.me => {
                self.grant_to_myself(transaction, sequence, effects);
            }
            Plan::GrantRight | Plan::GrantCopy => {
                let content = match plan {
                    Plan::GrantRight => Content::Kept,
                    _ if self.has(demand, WRITTEN) => Content::Bytes,
                    _ => Content::Zero,
                };
                if plan == Plan::GrantCopy || range.pages().any(|p| self.access(p) != Access::None) {
                    self.give_up(range, write, effects);
                }
                self.record(range, from, write, sequence);
                let message = Message::Grant { demand, range, write, content, sequence };
                effects.push(Effect::Send { to: from, message });
            }
        }
    }

    /// The manager's own fault on a page that it holds. Either no node ever touched the page, or the manager holds a read
    /// copy and may write now.
    fn grant_to_myself(&mut self, transaction: Transaction, sequence: u32, effects: &mut Vec<Effect>) {
        let Transaction { request, range, .. } = transaction;
        let me = [self.geometry.me];
        let alone = range.pages().all(|page| self.copyset.is_empty_but(self.slot(page), &me));
        let fresh = self.access(request.demand) == Access::None;
        // No other node holds the page: the write that often follows a read need not fault again.
        let write = request.write || alone;
        self.record(range, self.geometry.me, write, sequence);
        let content = if fresh { Content::Zero } else { Content::Kept };
        let index = self.outstanding.iter().position(|o| o.demand == request.demand);
        let asked = self.outstanding.swap_remove(index.expect("the manager asked itself"));
        self.take(asked, Grant { demand: request.demand, range, write, content, sequence }, effects);
    }

    fn invalidated(&mut self, from: NodeId, page: PageIndex, effects: &mut Vec<Effect>) {
        let index = self.transaction[self.slot(page)] as usize;
        let running = index.checked_sub(1).and_then(|index| self.transactions[index].as_mut());
        match running {
            Some(transaction) if transaction.awaited > 1 => transaction.awaited -= 1,
            Some(transaction) if transaction.awaited == 1 => {
                transaction.awaited = 0;
                let transaction = *transaction;
                self.conclude(transaction.range, index - 1);
                self.carry_out(transaction, effects);
                self.serve_queue(transaction.range, effects);
            }
            _ => violation(from, "an acknowledgement that nobody waits for", effects),
        }
    }

    fn confirmed(&mut self, from: NodeId, demand: PageIndex, given: PageRange, effects: &mut Vec<Effect>) {
        let index = self.transaction[self.slot(demand)] as usize;
        let running = index.checked_sub(1).and_then(|index| self.transactions[index]);
        let Some(transaction) = running.filter(|transaction| {
            matches!(transaction.plan, Plan::Forward(_))
                && transaction.awaited == 0
                && transaction.request.from == from
                && transaction.request.demand == demand
                && transaction.range.covers(given)
        }) else {
            return violation(from, "a confirmation that nobody waits for", effects);
        };
        self.conclude(transaction.range, index - 1);
        self.record(given, from, transaction.request.write, transaction.sequence);
        self.serve_queue(transaction.range, effects);
    }

    /// Notes that `range` was granted to `to`.
    fn record(&mut self, range: PageRange, to: NodeId, write: bool, sequence: u32) {
        for page in range.pages() {
            let slot = self.slot(page);
            if write {
                self.owner_or_manager[slot] = to.0 + 1;
                self.owner_sequence[slot] = sequence;
                self.copyset.clear(slot);
                self.flags[slot] |= WRITTEN;
            } else {
                self.copyset.insert(slot, to);
            }
        }
    }

    fn suspend(&mut self, transaction: Transaction) {
        let free = self.transactions.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.transactions.push(None);
            self.transactions.len() - 1
        });
        self.transactions[index] = Some(transaction);
        for page in transaction.range.pages() {
            let slot = self.slot(page);
            debug_assert_eq!(self.transaction[slot], 0);
            self.transaction[slot] = index as u32 + 1;
        }
    }

    fn conclude(&mut self, range: PageRange, index: usize) {
        self.transactions[index] = None;
        for page in range.pages() {
            let slot = self.slot(page);
            self.transaction[slot] = 0;
        }
    }

    /// Starts the requests for pages that became free, in the order of their arrival.
    fn serve_queue(&mut self, range: PageRange, effects: &mut Vec<Effect>) {
        let mut index = 0;
        while index < self.queue.len() {
            let request = self.queue[index];
            if range.contains(request.demand) && !self.is_busy(request.demand) {
                self.queue.remove(index);
                self.start(request, effects);
            } else {
                if range.contains(request.demand) && self.has(request.demand, HELD) {
                    effects.push(Effect::Hold(request.demand));
                }
                index += 1;
            }
        }
    }

    /// Handles a node that left: its read copies no longer exist.
    fn gone(&mut self, node: NodeId, successor: NodeId, effects: &mut Vec<Effect>) {
        for slot in 0..self.access.len() {
            // The successor already has the page; it is no error that its confirmation is still on the way.
            if self.owner_or_manager[slot] == node.0 + 1 && self.transaction[slot] == 0 {
                return violation(node, "nothing: it left with a page that it owns", effects);
            }
            self.copyset.remove(slot, node);
        }
        debug_assert_ne!(node, successor);
    }

    fn next_sequence(&mut self) -> u32 {
        // Zero means `never`. Numbers are compared only for equality, so they may wrap.
        self.last_sequence = self.last_sequence.checked_add(1).unwrap_or(1);
        self.last_sequence
    }
}

// What the manager knows.
impl Ivy {
    fn plan(&self, page: PageIndex, from: NodeId, write: bool) -> Plan {
        let owner = self.owner(page);
        if self.holds(page, from) && (write || from == self.geometry.me) {
            Plan::GrantRight
        } else if self.holds(page, self.geometry.me) {
            Plan::GrantCopy
        } else {
            Plan::Forward(owner)
        }
    }

    fn must_invalidate(&self, page: PageIndex, from: NodeId, write: bool, plan: Plan) -> bool {
        let me = self.geometry.me;
        let spared = [from, me, supplier(plan).unwrap_or(me)];
        write && !(self.copyset.is_empty_but(self.slot(page), &spared) && spared.contains(&self.owner(page)))
    }

    fn holds(&self, page: PageIndex, node: NodeId) -> bool {
        self.owner(page) == node || self.copyset.contains(self.slot(page), node)
    }

    /// The manager's own fault on a page that it holds without a mapping.
    fn is_untouched_here(&self, page: PageIndex, from: NodeId) -> bool {
        from == self.geometry.me && self.access(page) == Access::None && !self.has(page, WRITTEN)
    }

    fn owner(&self, page: PageIndex) -> NodeId {
        match self.owner_or_manager[self.slot(page)] {
            0 => self.geometry.me,
            owner => NodeId(owner - 1),
        }
    }
}

// Slots.
impl Ivy {
    fn message(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Request { demand, range, write, announced, requester, .. } => {
                if self.manager(demand) != self.geometry.me || requester != from {
                    return violation(from, "a request to a node that is not the manager", effects);
                }
                self.request(Request { from, demand, range, write, announced }, effects);
            }
            Message::Forward { .. } => self.forwarded(from, message, effects),
            Message::Grant { demand, range, write, content, sequence } => {
                self.granted(from, Grant { demand, range, write, content, sequence }, effects);
            }
            Message::Confirm { demand, range } => self.confirmed(from, demand, range, effects),
            Message::Invalidate { page, owner } => self.invalidate(from, page, owner, effects),
            Message::Invalidated { page } => self.invalidated(from, page, effects),
            _ => violation(from, "a message of another protocol", effects),
        }
    }

    fn manager(&self, page: PageIndex) -> NodeId {
        self.geometry.home_of(page)
    }

    fn slot(&self, page: PageIndex) -> usize {
        self.geometry.slot(page)
    }

    fn has(&self, page: PageIndex, flag: u8) -> bool {
        self.flags[self.slot(page)] & flag != 0
    }

    fn is_like(&self, page: PageIndex, other: PageIndex, flag: u8) -> bool {
        self.has(page, flag) == self.has(other, flag)
    }

    fn set(&mut self, page: PageIndex, flag: u8) {
        let slot = self.slot(page);
        self.flags[slot] |= flag;
    }

    fn clear(&mut self, page: PageIndex, flag: u8) {
        let slot = self.slot(page);
        self.flags[slot] &= !flag;
    }
}

/// The node that sends the bytes, if it is not the manager.
fn supplier(plan: Plan) -> Option<NodeId> {
    match plan {
        Plan::Forward(owner) => Some(owner),
        _ => None,
    }
}
