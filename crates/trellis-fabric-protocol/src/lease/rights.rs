//! How a home handles requests: it grants leases and copies, takes commits, and asks for rights back that other clients
//! wait for.
//!
//! Promises: no right to a page is granted while a right may be in use that excludes it. Waiting requests are served in the
//! order of their arrival, and copies that follow each other at once, as soon as the page is free. Changes under a lease
//! count only if nobody else was granted the page since the lease was, however late they come. It must never grant twice
//! for one waiting request, and must never overtake a waiting request.

use super::home::{Context, Copied, Home, Owner, PageLease, committed};
use super::queue::{Queue, Right, Waiter};
use super::{Answer, Ask, Bytes, Epoch, Host, Message, PageNumber, Party, Status, epoch_of, incarnation_of, send};

/// A client without a lease that waits keeps its turn for this many time-outs.
const TRIES: u64 = 4;

impl Home {
    /// Handles a page request, during the home lease.
    pub(super) fn request(&mut self, answer: Answer, context: &mut Context<'_>) {
        let page = answer.page;
        match answer.ask {
            // It shows no bytes, and in the grace period no right was handed over yet.
            Ask::Renew(epoch) if self.hand_to.is_none() || context.now < self.grace_until => {
                self.renew(answer, epoch, context);
            }
            Ask::Renew(_) => answer.say(Status::Busy, 0, context.effects),
            _ if self.is_hidden(page) => answer.say(Status::Restarting, 0, context.effects),
            Ask::Read => answer.with(Status::Ok, committed(page, context), Bytes::Page, context.effects),
            Ask::Commit { epoch, release } => self.commit(answer, epoch, release, context),
            Ask::Release(epoch) => self.release(page, epoch, context),
            _ if self.hand_to.is_some() => answer.say(Status::Busy, 0, context.effects),
            _ if context.now < self.grace_until => answer.say(Status::Restarting, 0, context.effects),
            Ask::Copy => self.copy(answer, context),
            Ask::Update => self.update(answer, context),
        }
    }

    fn update(&mut self, answer: Answer, context: &mut Context<'_>) {
        let Answer { to: party, page, request, .. } = answer;
        self.forget_ended(page, context);
        let is_staged = self.staged.contains_key(&page);
        let own = self.leased.get_mut(&page).filter(|leased| leased.owner.is_some_and(|owner| owner.party == party));
        match own {
            // An old request that arrives late.
            Some(PageLease { owner: Some(owner), .. }) if request <= owner.request => return,
            Some(_) if is_staged => return answer.say(Status::Busy, 0, context.effects),
            // The client asks again because it does not know of this lease, or let it end.
            Some(leased) => leased.owner = None,
            None => {}
        }
        self.give_or_wait(answer, Right::Lease, context);
    }

    fn copy(&mut self, answer: Answer, context: &mut Context<'_>) {
        let Answer { to: party, page, request, .. } = answer;
        self.forget_ended(page, context);
        let copies = self.leased.get(&page).map_or(&[][..], |leased| &leased.copies);
        // An old request that arrives late must not grant another copy.
        if !copies.iter().any(|copied| copied.party == party && request <= copied.by.0) {
            self.give_or_wait(answer, Right::Copy, context);
        }
    }

    /// Grants the request if the page is free and no other request came first; otherwise it has to wait for its turn.
    fn give_or_wait(&mut self, answer: Answer, right: Right, context: &mut Context<'_>) {
        let Answer { to: party, page, request, .. } = answer;
        let waiter = Waiter { party, right, request, until: context.now + context.timing.term };
        if !self.wait(page, waiter, context) {
            return answer.say(Status::Busy, 0, context.effects);
        }
        self.serve(page, context);
        if self.queues.get(&page).is_some_and(|queue| queue.has(&waiter)) {
            // The epoch is not 0, which means that the client need not ask again.
            answer.say(Status::Busy, epoch_of(self.incarnation), context.effects);
            self.recall(page, context);
        }
    }

    fn wait(&mut self, page: PageNumber, waiter: Waiter, context: &Context<'_>) -> bool {
        let again_at = self.again(context).at;
        self.queues.entry(page).or_insert(Queue { again_at, ..Queue::default() }).add(waiter)
    }

    /// Whether a client without a lease may change the page now. If not, it gets a place in the queue, which it keeps until
    /// shortly after its last attempt.
    pub(super) fn may_change(&mut self, page: PageNumber, context: &mut Context<'_>) -> bool {
        self.forget_ended(page, context);
        self.serve(page, context);
        let is_its_turn = self.next(page).is_none_or(|next| next.right == Right::Nothing);
        let may = is_its_turn && !self.leased.contains_key(&page) && !self.staged.contains_key(&page);
        if !may || self.next(page).is_some() {
            let until = context.now + TRIES * context.timing.retry;
            self.wait(page, Waiter { party: Party::of(Host(0)), right: Right::Nothing, request: 0, until }, context);
            self.recall(page, context);
        }
        may
    }

    /// The client that had the turn changes the page now. The next request is served afterwards.
    pub(super) fn end_turn(&mut self, page: PageNumber, context: &Context<'_>) {
        if self.next(page).is_some_and(|next| next.right == Right::Nothing) {
            self.leave_queue(page);
        }
        if let Some(queue) = self.queues.get_mut(&page) {
            (queue.again_at, self.retry_at) = (context.now, context.now);
        }
    }

    fn next(&self, page: PageNumber) -> Option<Waiter> {
        self.queues.get(&page)?.waiters.front().copied()
    }

    /// Grants the page to the next request if no right that excludes it is in use, and so on.
    pub(super) fn serve(&mut self, page: PageNumber, context: &mut Context<'_>) {
        let may_give = self.hand_to.is_none() && context.now < self.until && !self.is_hidden(page);
        let mut is_given = false;
        while may_give && !self.staged.contains_key(&page) {
            let leased = self.leased.get(&page);
            let Some(Waiter { party, right, request, until }) = self.next(page) else { break };
            let is_owned = leased.is_some_and(|leased| leased.owner.is_some());
            let is_free = !is_owned
                && match right {
                    Right::Lease => leased.is_none_or(|leased| leased.copies.is_empty()),
                    Right::Copy => leased.is_none_or(|leased| !leased.is_recalling),
                    Right::Nothing => false,
                };
            let is_over = context.now >= until;
            if !is_free && !is_over {
                break;
            }
            self.leave_queue(page);
            if !is_over {
                self.give(page, party, right, request, context);
                is_given = true;
            }
        }
        // The new holder is told at once that others wait.
        if is_given {
            self.recall(page, context);
        }
    }

    fn leave_queue(&mut self, page: PageNumber) {
        if let Some(queue) = self.queues.get_mut(&page) {
            queue.waiters.pop_front();
            if queue.waiters.is_empty() {
                self.queues.remove(&page);
            }
        }
    }

    fn give(&mut self, page: PageNumber, party: Party, right: Right, request: u64, context: &mut Context<'_>) {
        let is_copy = right == Right::Copy;
        // It gets an epoch of its own: the recall of an earlier copy must not be taken for the recall of this one.
        let epoch = self.next_epoch();
        let until = context.now + context.timing.term;
        let leased = self.leased.entry(page).or_default();
        leased.epoch = epoch;
        if is_copy {
            // A lease that has ended does not count any more.
            leased.owner = None;
            leased.copies.retain(|copied| copied.party != party);
            leased.copies.push(Copied { party, by: (request, epoch), until });
        } else {
            (leased.owner, leased.is_recalling) = (Some(Owner { party, request, until, has_claimed: false }), false);
        }
        let ask = if is_copy { Ask::Copy } else { Ask::Update };
        Answer { to: party, page, request, ask }.with(Status::Ok, epoch, Bytes::Page, context.effects);
    }

    /// Notifies the holders of rights to the page that another client waits for it: the owner, and the holders of copies if
    /// these must go.
    pub(super) fn recall(&mut self, page: PageNumber, context: &mut Context<'_>) {
        if let Some(next) = self.next(page) {
            self.ask_back(page, next.right != Right::Copy, context);
        }
    }

    /// Asks an owner for the page, and holders of copies if these must go.
    fn ask_back(&mut self, page: PageNumber, copies_go: bool, context: &mut Context<'_>) {
        let is_first =
            copies_go && self.leased.get(&page).is_some_and(|leased| !leased.copies.is_empty() && !leased.is_recalling);
        let raised = if is_first { self.next_epoch() } else { 0 };
        let Some(leased) = self.leased.get_mut(&page) else { return };
        if is_first {
            (leased.epoch, leased.is_recalling) = (raised, true);
        }
        let epoch = leased.epoch;
        if let Some(owner) = leased.owner {
            send(context.effects, owner.party, Message::Recall { page, epoch }, Bytes::Nothing);
        }
        for copied in leased.copies.iter().filter(|_| leased.is_recalling) {
            send(context.effects, copied.party, Message::Invalidate { page, epoch }, Bytes::Nothing);
        }
    }

    /// A reader's copy is no longer in use: either as recalled, or the one that it got under this epoch.
    pub fn invalidated(&mut self, from: Party, page: PageNumber, epoch: Epoch, context: &mut Context<'_>) {
        let Some(leased) = self.leased.get_mut(&page).filter(|_| epoch > 0) else { return };
        let is_asked = leased.is_recalling && leased.epoch == epoch;
        leased.copies.retain(|copied| copied.party != from || !is_asked && copied.by.1 != epoch);
        self.forget_ended(page, context);
        self.serve(page, context);
    }

    fn renew(&mut self, answer: Answer, epoch: Epoch, context: &mut Context<'_>) {
        let Answer { to: party, page, request, .. } = answer;
        let until = context.now + context.timing.term;
        let is_claim = epoch == epoch_of(self.incarnation);
        if is_claim && self.may_claim(page, context) {
            let leased = PageLease { epoch: self.next_epoch(), ..PageLease::default() };
            self.leased
                .insert(page, PageLease { owner: Some(Owner { party, request, until, has_claimed: true }), ..leased });
        }
        self.forget_waiters(page, context.now);
        let is_wanted = self.queues.contains_key(&page);
        // A lease that this home granted itself was never claimed: it may answer an old request that arrived late.
        let is_claimed = |leased: &PageLease| {
            let is_older = incarnation_of(leased.epoch) < incarnation_of(epoch);
            is_claim && (is_older || leased.owner.is_some_and(|owner| owner.has_claimed))
        };
        let leased = self.leased.get_mut(&page).filter(|leased| leased.epoch == epoch || is_claimed(leased));
        let (status, epoch) = match leased {
            Some(PageLease { epoch, owner: Some(owner), .. }) if owner.party == party => {
                if is_wanted {
                    (Status::Busy, *epoch)
                } else {
                    owner.until = owner.until.max(until);
                    (Status::Ok, *epoch)
                }
            }
            // The client learns from it which home this is, and may claim the page.
            _ => (Status::Fenced, epoch_of(self.incarnation)),
        };
        answer.say(status, epoch, context.effects);
    }

    /// Whether a client may have a lease of the page that this home does not know: the previous home gave it, and nobody
    /// was granted the page since. The client claims it in the name of this incarnation, so that nothing that it sent to
    /// an earlier home can be taken for a claim.
    fn may_claim(&self, page: PageNumber, context: &Context<'_>) -> bool {
        context.now < self.grace_until && !self.leased.contains_key(&page) && !self.staged.contains_key(&page)
    }

    fn commit(&mut self, answer: Answer, epoch: Epoch, release: bool, context: &mut Context<'_>) {
        let Answer { to: party, page, request, .. } = answer;
        let leased = self.leased.get(&page);
        // A page that was never committed has epoch 0, under which nobody ever had a lease.
        if epoch > 0 && committed(page, context) == epoch {
            // Its acknowledgement was lost.
            let now = leased.filter(|leased| leased.owner.is_some_and(|owner| owner.party == party));
            return answer.say(Status::Ok, now.map_or(epoch, |leased| leased.epoch), context.effects);
        }
        if self.hand_to.is_some() {
            return answer.say(Status::Busy, 0, context.effects);
        }
        // An epoch that no lease has says that the commit was not accepted, by no home, and never will be: an earlier home
        // had to store it here first.
        let fenced = if committed(page, context) < epoch { epoch_of(self.incarnation) } else { epoch };
        let Some(leased) = leased.filter(|leased| leased.epoch == epoch) else {
            return answer.say(Status::Fenced, fenced, context.effects);
        };
        if let Some(staged) = self.staged.get_mut(&page) {
            if let Some(waits) = &mut staged.waits {
                waits.1 = waits.1.max(request);
            }
            return;
        }
        // The lease may have ended: nobody was granted the page since, or it would have another epoch.
        if leased.owner.is_none() {
            return answer.say(Status::Fenced, fenced, context.effects);
        }
        self.stage(page, epoch, Some((party, request)), release, context);
    }

    fn release(&mut self, page: PageNumber, epoch: Epoch, context: &mut Context<'_>) {
        let Some(leased) = self.leased.get_mut(&page) else { return };
        if self.hand_to.is_none() && leased.epoch == epoch && !self.staged.contains_key(&page) {
            leased.owner = None;
            self.forget_ended(page, context);
            self.serve(page, context);
        }
    }
}
