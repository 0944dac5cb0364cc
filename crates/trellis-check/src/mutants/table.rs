//! Every mutant, by name.
//!
//! Promises: names are unique, and a mutant is tried on each protocol that has its rule. It must never contain a
//! harmless mutation.

use super::pages::Fault;
use super::{Fits, Mutation, Row, SyncFault};
use crate::ends::EndFault;
use crate::heap::HeapFault;
use crate::members::MemberFault;
use crate::simulate::NodeFault;
use crate::synchronisation::Program;
use Fits::{Any, AnyDynamic, Copies, Delay, Dynamic, Forward, Ivy, Layered, Lock, Managed, Redirect, Runs, Spin};

const fn row(fits: Fits, name: &'static str, broken: &'static str, fault: Fault) -> Row {
    Row { name, broken, fits, mutation: Mutation::Pages(fault) }
}

const fn sync(name: &'static str, broken: &'static str, fault: SyncFault, program: Program) -> Row {
    Row { name, broken, fits: Fits::Synchronisation, mutation: Mutation::Sync(fault, program) }
}

const fn end(name: &'static str, broken: &'static str, fault: EndFault) -> Row {
    Row { name, broken, fits: Fits::Synchronisation, mutation: Mutation::End(fault) }
}

const fn heap(name: &'static str, broken: &'static str, fault: HeapFault) -> Row {
    Row { name, broken, fits: Fits::Heap, mutation: Mutation::Heap(fault) }
}

const fn member(name: &'static str, broken: &'static str, fault: MemberFault) -> Row {
    Row { name, broken, fits: Fits::Membership, mutation: Mutation::Member(fault) }
}

const fn node(fits: Fits, name: &'static str, broken: &'static str, fault: NodeFault) -> Row {
    Row { name, broken, fits, mutation: Mutation::Node(fault) }
}

/// Every mutant.
pub const TABLE: &[Row] = &[
    // Views and bytes.
    row(Any, "no-revoke", "a supplier keeps its view when it gives the right to store", Fault::NoRevoke),
    row(Any, "send-before-revoke", "bytes are read out before the view loses its right", Fault::SendBeforeRevoke),
    row(Any, "kept-not-bytes", "a grant says `kept` though the receiver has no copy", Fault::KeptNotBytes),
    row(Any, "zero-not-bytes", "a grant says `zero` though the page was written", Fault::ZeroNotBytes),
    row(Any, "bytes-not-zero", "a grant sends bytes of a page that nobody has written", Fault::BytesNotZero),
    row(Any, "zero-forgotten", "a page that nobody wrote is installed as if it had bytes", Fault::ZeroForgotten),
    row(Any, "installs-nothing", "a granted page is recorded but not put into force", Fault::InstallsNothing),
    row(Any, "installs-for-loads", "a page granted for stores is installed for loads", Fault::InstallsReadForWrite),
    row(Any, "revokes-granted", "a page is taken away as soon as it is installed", Fault::RevokesGranted),
    // Waiting threads.
    row(Any, "no-wake", "a granted thread is not woken", Fault::NoWake),
    row(Any, "wakes-at-once", "a thread is woken when it faults", Fault::WakesAtOnce),
    row(Any, "no-hold", "nobody is told that a held page is wanted", Fault::NoHold),
    row(Any, "ignores-resumed", "a held page is never let go", Fault::IgnoresResumed),
    row(Any, "never-holds", "a granted page is not held for the thread that waited for it", Fault::NeverHolds),
    row(Any, "serves-before-resumed", "a request takes a page that is held", Fault::ServesBeforeResumed),
    // Messages.
    row(Any, "request-lost", "a request is not sent", Fault::RequestLost),
    row(Any, "request-twice", "a request is sent twice", Fault::RequestTwice),
    row(Any, "request-for-other", "a request names the neighbour of the page", Fault::RequestForOther),
    row(Any, "request-forgotten", "a request that arrives is forgotten", Fault::RequestForgotten),
    row(Any, "grant-lost", "a grant is not sent", Fault::GrantLost),
    row(Any, "grant-twice", "a grant is sent twice", Fault::GrantTwice),
    row(Any, "grant-to-another", "a grant goes to a node that did not ask", Fault::GrantToAnother),
    row(Any, "grant-ignored", "a grant that arrives is forgotten", Fault::GrantIgnored),
    row(Any, "right-kept", "who gives the right to store remembers to have it", Fault::OwnershipKept),
    row(Any, "right-not-taken", "who gets the right to store does not remember it", Fault::OwnershipNotTaken),
    row(Any, "loses-queued", "a request that must queue is lost", Fault::LosesQueued),
    row(Any, "loses-deferred", "an order that must wait is lost", Fault::LosesDeferred),
    // Read copies.
    row(Copies, "keeps-copy", "an invalidation is acknowledged without giving up the copy", Fault::KeepsCopy),
    row(Copies, "no-downgrade", "a writer keeps its right when a reader gets a copy", Fault::NoDowngrade),
    row(Copies, "downgrade-not-revoke", "a view keeps loads where it must lose everything", Fault::DowngradeNotRevoke),
    row(Copies, "revoke-not-downgrade", "a view loses everything where it must keep loads", Fault::RevokeNotDowngrade),
    row(Copies, "no-upgrade", "the right to store is recorded but not put into force", Fault::NoUpgrade),
    row(Copies, "upgrades-itself", "a reader takes the right to store by itself", Fault::UpgradesItself),
    row(Copies, "write-for-read", "a read grant is installed for stores", Fault::WriteForRead),
    row(Copies, "sends-write-for-read", "a read request is granted for stores", Fault::SendsWriteForRead),
    row(Copies, "sends-read-for-write", "a write request is granted for loads", Fault::SendsReadForWrite),
    row(Copies, "asks-read-for-write", "a store asks for the right to load", Fault::AsksReadForWrite),
    row(Copies, "grants-too-early", "a page is granted before readers acknowledged", Fault::GrantsTooEarly),
    row(Copies, "forgets-reader", "a reader is not told to give up its copy", Fault::ForgetsReader),
    row(Copies, "forgets-copy", "who got a copy is not noted", Fault::ForgetsCopy),
    row(Copies, "invalidation-lost", "an invalidation is not sent, and waited for", Fault::InvalidationLost),
    row(Copies, "invalidates-another", "an invalidation goes to another node", Fault::InvalidatesAnother),
    row(Copies, "never-acknowledges", "an invalidation is not acknowledged", Fault::NeverAcknowledges),
    row(Copies, "acknowledges-twice", "an invalidation is acknowledged twice", Fault::AcknowledgesTwice),
    row(
        Copies,
        "acknowledges-unheard",
        "an invalidation that overtook its grant is acknowledged at once",
        Fault::AcknowledgesUnheard,
    ),
    row(Copies, "acknowledgement-ignored", "an acknowledgement is forgotten", Fault::AcknowledgementIgnored),
    // Ranges of pages.
    row(Runs, "narrow-wake", "threads that wait for the other pages of a run are not woken", Fault::NarrowWake),
    row(Runs, "grant-too-wide", "a grant names a page that was not given", Fault::GrantTooWide),
    row(Runs, "install-too-wide", "a page is installed that was not granted", Fault::InstallTooWide),
    row(Runs, "install-too-narrow", "the other pages of a granted run are not installed", Fault::InstallTooNarrow),
    row(Runs, "downgrade-too-narrow", "the other pages of a shared run keep their right", Fault::DowngradeTooNarrow),
    // Managers.
    row(Managed, "no-wait-for-confirm", "the manager goes on before a transfer is confirmed", Fault::NoWaitForConfirm),
    row(Managed, "no-confirm", "the receiver does not confirm", Fault::NoConfirm),
    row(Managed, "confirm-twice", "the receiver confirms twice", Fault::ConfirmTwice),
    row(Managed, "confirm-of-another", "the manager takes another node for the receiver", Fault::ConfirmOfAnother),
    row(Managed, "forward-lost", "the manager does not tell the holder", Fault::ForwardLost),
    row(Managed, "forward-twice", "the manager tells the holder twice", Fault::ForwardTwice),
    row(Managed, "forward-to-another", "the manager takes another node for the holder", Fault::ForwardToAnother),
    row(Managed, "forward-for-manager", "the holder is told to give the page to the manager", Fault::ForwardForManager),
    row(Ivy, "ignores-after", "a forward does not wait for the grant that it speaks of", Fault::IgnoresAfter),
    row(Ivy, "wrong-number", "a grant has another number than its manager gave it", Fault::WrongNumber),
    row(Ivy, "migrates-as-copy", "a wandering page is recorded as given, and given for loads", Fault::MigratesAsCopy),
    // Owners that move.
    row(Dynamic, "loses-reader", "a reader that must wait at a root is lost", Fault::LosesReader),
    row(Dynamic, "loses-next", "a writer that must wait at a root is lost", Fault::LosesNext),
    row(Dynamic, "reversal-for-loads", "hints point to who asked to load", Fault::ReversalForLoads),
    row(Forward, "passes-on-as-its-own", "a request is passed on in one's own name", Fault::PassesOnAsItsOwn),
    row(Forward, "passes-on-twice", "a request is passed on twice", Fault::PassesOnTwice),
    row(Forward, "passes-on-back", "a request is passed on to its requester", Fault::PassesOnBack),
    row(Dynamic, "passes-on-nothing", "a request that belongs elsewhere is dropped", Fault::PassesOnNothing),
    row(Dynamic, "invalidates-new-owner", "who gets the page is told to give it up", Fault::InvalidatesNewOwner),
    row(Dynamic, "copy-of-copy", "a reader gives copies that the owner does not know of", Fault::CopyOfCopy),
    row(Redirect, "redirects-to-requester", "the requester is told to ask itself", Fault::RedirectsToRequester),
    row(Redirect, "redirects-to-itself", "the requester is told to ask the same node again", Fault::RedirectsToItself),
    row(Redirect, "redirect-ignored", "a redirection that arrives is forgotten", Fault::RedirectIgnored),
    row(Redirect, "redirect-twice", "a redirection is sent twice", Fault::RedirectTwice),
    // Locked pages.
    row(Lock, "forgets-lock", "a lock is forgotten as soon as it is given", Fault::ForgetsLock),
    row(Lock, "lets-in", "a request ends the lock of its page", Fault::LetsIn),
    row(Lock, "locks-at-once", "a lock is given before its pages are here", Fault::LocksAtOnce),
    row(Lock, "locks-twice", "two calls have one page", Fault::LocksTwice),
    row(Lock, "never-locked", "who gets a lock is not told", Fault::NeverLocked),
    row(Lock, "told-twice", "who gets a lock is told twice", Fault::ToldTwice),
    row(Lock, "wrong-call", "a lock is given to another call", Fault::WrongCall),
    row(Lock, "ignores-unlock", "a lock is never given back", Fault::IgnoresUnlock),
    row(Lock, "ignores-withdrawal", "who waits no longer for a lock gets it all the same", Fault::IgnoresWithdrawal),
    row(Lock, "unlocks-others", "giving one lock back ends others", Fault::UnlocksOthers),
    row(Lock, "loses-parked", "a message that must wait for a locked page is lost", Fault::LosesParked),
    row(Lock, "drops-at-unlock", "what waits for a locked page is dropped when the lock ends", Fault::DropsAtUnlock),
    row(Lock, "no-expiry-alarm", "the alarm for the end of a lock is not set", Fault::NoExpiryAlarm),
    row(Lock, "ignores-expiry", "a lock does not end with its time", Fault::IgnoresExpiry),
    row(Lock, "expires-at-once", "a lock ends before its time", Fault::ExpiresAtOnce),
    row(Spin, "no-retry", "who must ask again is not told", Fault::NoRetry),
    row(Spin, "no-retry-alarm", "who must ask again sets no alarm", Fault::NoRetryAlarm),
    row(Spin, "ignores-retry-alarm", "the alarm to ask again is ignored", Fault::IgnoresRetryAlarm),
    row(Spin, "ignores-again", "who asks again is not heard", Fault::IgnoresAgain),
    // Pages that stay for a time.
    row(Delay, "loses-held-back", "a message that is held back is lost", Fault::LosesHeldBack),
    row(Delay, "held-back-twice", "a message that is held back is kept twice", Fault::HeldBackTwice),
    row(Delay, "no-threshold-alarm", "the alarm for the end of a stay is not set", Fault::NoThresholdAlarm),
    row(Delay, "ignores-threshold", "a stay does not end with its time", Fault::IgnoresThreshold),
    row(Delay, "threshold-of-other", "the alarm is set for the neighbour of the page", Fault::ThresholdOfOther),
    row(Delay, "threshold-misnamed", "the alarm is set for another purpose", Fault::ThresholdMisnamed),
    row(Delay, "drops-at-threshold", "what was held back is dropped when the stay ends", Fault::DropsAtThreshold),
    row(Delay, "released-again", "what was held back is served, and remembered as waiting", Fault::ReleasedAgain),
    row(
        Delay,
        "acknowledges-held-back",
        "an invalidation that is held back is acknowledged at once",
        Fault::AcknowledgesHeldBack,
    ),
    // Locks, barriers and words of the program.
    sync("token-twice", "a node keeps the token that it hands over", SyncFault::TokenTwice, Program::Locks),
    sync("no-lock-forward", "the home forgets to name the next holder", SyncFault::NoForward, Program::Locks),
    sync(
        "misroutes-token",
        "the home names somebody who did not ask as the next holder",
        SyncFault::Misroutes,
        Program::Locks,
    ),
    sync("releases-early", "a barrier opens before its last child arrived", SyncFault::ReleasesEarly, Program::Barrier),
    sync("forgets-child", "a child is not released from a barrier", SyncFault::ForgetsChild, Program::Barrier),
    sync("adds-twice", "an operation on a word is carried out twice", SyncFault::AddsTwice, Program::Words),
    sync("no-reply", "the value of a word is not sent back", SyncFault::NoReply, Program::Words),
    sync("busy-forgets", "who tries a lock loses its place in the queue", SyncFault::BusyForgets, Program::TriedLocks),
    sync("sum-forgets-child", "a child's value is not added", SyncFault::SumForgetsChild, Program::Reduce),
    sync(
        "opened-is-lost",
        "a barrier that opened for who gave up is forgotten",
        SyncFault::OpenedIsLost,
        Program::Barrier,
    ),
    // Objects at their home.
    sync(
        "writer-among-readers",
        "a writer is let in together with readers",
        SyncFault::WriterAmongReaders,
        Program::ReadWriteLocks,
    ),
    sync("read-ends-twice", "the end of a read counts for two", SyncFault::ReadEndsTwice, Program::ReadWriteLocks),
    sync("write-never-ends", "the end of a write is not heard", SyncFault::WriteNeverEnds, Program::ReadWriteLocks),
    sync(
        "grant-is-kept",
        "a lock granted to who gave up does not go back",
        SyncFault::GrantIsKept,
        Program::ReadWriteLocks,
    ),
    sync(
        "abandoned-in-silence",
        "the home is not told that a call was abandoned",
        SyncFault::AbandonedInSilence,
        Program::ReadWriteLocks,
    ),
    sync("releases-twice", "a release counts for two", SyncFault::ReleasesTwice, Program::Semaphores),
    sync(
        "release-lost-with-waiter",
        "a permit granted to who gave up is lost",
        SyncFault::ReleaseLostWithWaiter,
        Program::Semaphores,
    ),
    sync("wakes-one", "an event wakes one of those who wait", SyncFault::WakesOne, Program::Events),
    sync("never-clears", "an event stays set", SyncFault::NeverClears, Program::Events),
    sync("does-twice", "who finds it done is told to do it", SyncFault::DoesTwice, Program::Onces),
    sync("failure-is-done", "what failed counts as done", SyncFault::FailureIsDone, Program::Onces),
    sync("notifies-all", "a notification of one wakes everybody", SyncFault::NotifiesAll, Program::Conditions),
    sync(
        "notification-lost-with-waiter",
        "a notification to who gave up is lost",
        SyncFault::NotificationLostWithWaiter,
        Program::Conditions,
    ),
    sync(
        "notification-for-latecomer",
        "a notification to who gave up goes to who enrolled later",
        SyncFault::NotificationForLatecomer,
        Program::Conditions,
    ),
    sync("enrols-late", "a wait is confirmed before it is enrolled", SyncFault::EnrolsLate, Program::Conditions),
    sync(
        "opens-one-early",
        "a counting barrier opens before the last participant came",
        SyncFault::OpensOneEarly,
        Program::CountingBarrier,
    ),
    sync("answers-twice", "the home answers twice", SyncFault::AnswersTwice, Program::CountingBarrier),
    // Other decisions of a node: how long pages stay, when alarms go off, which call holds a locked range.
    node(
        Any,
        "held-for-ever",
        "a page that came for a thread is not let go when its time is over",
        NodeFault::HeldForEver,
    ),
    node(Layered, "no-alarms", "the alarms of a protocol do not go off", NodeFault::NoAlarms),
    node(Layered, "alarms-stay", "an alarm that has gone off stays set", NodeFault::AlarmsStay),
    node(Lock, "timeless-locks", "the time of a lock that ends by itself does not begin", NodeFault::TimelessLocks),
    node(Lock, "keeps-pieces", "a call that gives up a range keeps the pieces that it had", NodeFault::KeepsPieces),
    node(Lock, "stays-in-queue", "a call that gives up a range still waits for it", NodeFault::StaysInQueue),
    node(Lock, "locks-part", "a call is over when it has the pages of the first shard", NodeFault::LocksPart),
    node(Lock, "unlocks-part", "of a range that is given back, only the last piece is", NodeFault::UnlocksPart),
    node(Lock, "waits-for-itself", "a thread may lock pages that it holds", NodeFault::WaitsForItself),
    node(Lock, "any-order", "some nodes lock the upper pages of a range first", NodeFault::AnyOrder),
    // A node that leaves while the others go on.
    node(
        Copies,
        "sends-to-departed",
        "messages about pages are sent to a node that has departed",
        NodeFault::SendsToDeparted,
    ),
    node(AnyDynamic, "drops-requests", "a request for a node that has departed is dropped", NodeFault::DropsRequests),
    node(
        Copies,
        "drops-invalidations",
        "no node answers an invalidation in place of one that has departed",
        NodeFault::DropsInvalidations,
    ),
    node(Any, "abandons-nothing", "a call that gives up a block still waits for it", NodeFault::AbandonsNothing),
    node(Any, "keeps-tokens", "a node that leaves keeps the locks that it has", NodeFault::KeepsTokens),
    node(Any, "leaves-out-of-turn", "a node that leaves does not wait for its turn", NodeFault::LeavesOutOfTurn),
    node(
        Any,
        "leaves-with-requests",
        "a node leaves while requests of its own are under way",
        NodeFault::LeavesWithRequests,
    ),
    node(
        Any,
        "leaves-without-farewell",
        "a node leaves before every other node has said farewell",
        NodeFault::LeavesWithoutFarewell,
    ),
    node(
        Spin,
        "leaves-unanswered",
        "a node that leaves does not answer those that it told to ask again",
        NodeFault::LeavesUnanswered,
    ),
    node(Copies, "leaves-holding", "a node leaves while it holds pages for its threads", NodeFault::LeavesHolding),
    node(Any, "names-nothing", "a node that leaves does not name what it leaves behind", NodeFault::NamesNothing),
    node(Any, "takes-nothing", "the coordinator does not take over what a leaving node named", NodeFault::TakesNothing),
    // Joining and leaving.
    member("welcomes-early", "a node is let in before every founder has come", MemberFault::WelcomesEarly),
    member("two-at-once", "a node is let in or out while another one comes", MemberFault::TwoAtOnce),
    member("names-founders", "a node that comes meets no other joined node", MemberFault::NamesFoundersOnly),
    member("absent-untold", "a node that comes does not learn which nodes are absent", MemberFault::AbsentUntold),
    member("joins-early", "a node counts as joined before it has met everybody", MemberFault::JoinsEarly),
    member("came-untold", "a founder does not learn that a node has come", MemberFault::CameUntold),
    member("forgets-departure", "a request to leave is forgotten", MemberFault::ForgetsDeparture),
    member("no-next-turn", "nobody is let in or out when a change is over", MemberFault::NoNextTurn),
    member("taken-at-once", "a node goes before its pages were taken over", MemberFault::TakenAtOnce),
    member("names-no-pages", "a node that leaves does not name its pages", MemberFault::NamesNoPages),
    member("no-farewell", "a node says no farewell to one that goes", MemberFault::NoFarewell),
    member("departs-untold", "a node does not learn that another one departs", MemberFault::DepartsUntold),
    member("vanishes-early", "a node counts as vanished while its messages are under way", MemberFault::VanishesEarly),
    member("vanished-untold", "a node does not learn that another one has vanished", MemberFault::VanishedUntold),
    member("founder-goes", "a founder that is done does not wait for the coordinator", MemberFault::FounderGoes),
    member("goes-at-once", "a node that leaves waits for no farewell", MemberFault::GoesAtOnce),
    member("ended-as-death", "the end before a node was let in counts as a death", MemberFault::EndedAsDeath),
    member("goes-as-death", "a member that goes counts as dead", MemberFault::GoesAsDeath),
    member("death-untold", "a node does not learn that another one has died", MemberFault::DeathUntold),
    member("fails-silently", "a node that learns of a death says nothing before it ends", MemberFault::FailsSilently),
    member("blames-messenger", "the node that reports a death counts as dead", MemberFault::BlamesMessenger),
    end("counts-nobody", "at the end of a program a node with threads is not counted", EndFault::CountsNobody),
    end("counts-late", "a node with threads is counted after node 0 has looked", EndFault::CountsLate),
    end("announces-nothing", "node 0 does not say that the program is over", EndFault::AnnouncesNothing),
    end("waits-for-nobody", "node 0 does not wait until the others are ready to end", EndFault::WaitsForNobody),
    end("lets-one-go", "node 0 lets only one node go on with its end", EndFault::LetsOneGo),
    end("writes-nothing", "a node ends without its record", EndFault::WritesNothing),
    end("ends-before", "a node ends before node 0, whose threads run", EndFault::EndsBefore),
    heap("no-publication", "memory is freed without a publication", HeapFault::NoPublication),
    heap("publishes-late", "the publication follows the free", HeapFault::PublishesLate),
    heap(
        "publishes-first",
        "the publication comes before the spans that go back are chosen",
        HeapFault::PublishesFirst,
    ),
    heap("no-refresh", "what was released is not applied to a new block", HeapFault::NoRefresh),
    heap("foreign-untold", "a block that another node had does not say so", HeapFault::ForeignUntold),
    heap("always-fresh", "a span that was used before counts as fresh", HeapFault::AlwaysFresh),
    heap("grant-without-notices", "a span comes without the notices of the directory", HeapFault::GrantWithoutNotices),
    heap("return-without-notices", "a span goes back without the notices of its node", HeapFault::ReturnWithoutNotices),
    heap(
        "free-without-notices",
        "a free at another node comes without its sender's notices",
        HeapFault::FreeWithoutNotices,
    ),
    heap("keeps-spans", "empty spans do not go back", HeapFault::KeepsSpans),
    heap("return-answers-early", "a free is over before the directory has the span", HeapFault::ReturnAnswersEarly),
    heap("full-at-once", "without room, empty spans do not go back", HeapFault::FullAtOnce),
    heap("not-passed-on", "the directory answers for another node's block itself", HeapFault::NotPassedOn),
    heap("late-span-kept", "a span that comes to a call that was given up is lost", HeapFault::LateSpanKept),
    heap(
        "surplus-forgotten",
        "a call that is given up forgets the spans that were to go back",
        HeapFault::SurplusForgotten,
    ),
    node(Copies, "takes-early", "the coordinator does not wait for pages of a leaving node", NodeFault::TakesEarly),
    node(Any, "forgets-comers", "a node that has come counts as departed", NodeFault::ForgetsComers),
    node(Any, "asks-for-frozen", "pages are requested while their protocol is changed", NodeFault::AsksForFrozen),
    node(Lock, "locks-frozen", "pages are locked while their protocol is changed", NodeFault::LocksFrozen),
    node(Any, "stays-frozen", "pages stay frozen after a change", NodeFault::StaysFrozen),
    node(
        Any,
        "changes-unsettled",
        "a node changes while requests of its own are under way",
        NodeFault::ChangesUnsettled,
    ),
    node(
        Any,
        "changes-away",
        "a protocol is changed although the home does not have the pages",
        NodeFault::ChangesAway,
    ),
    node(
        Runs,
        "gathers-together",
        "a home does not look whether all pages came that it requested together",
        NodeFault::GathersTogether,
    ),
];
