//! Faults of release consistency: each breaks one rule, and the checkers must notice.
//!
//! Promises: a fault changes the input of the protocol, its output, or the actions of the runtime around it, always in
//! the same way; [`Fault::None`] changes nothing. It must never be used except to test the checkers.

use super::Setup;
use super::effects::{Envelope, Out, Packet};
use super::node::Node;
use crate::model::twinned::Body;
use trellis_cluster_protocol::coherence::hlrc::Objection;
use trellis_cluster_protocol::coherence::hlrc::intervals::{Intervals, Notice};
use trellis_cluster_protocol::coherence::{Coherence, Content, Effect, Input, Message};
use trellis_cluster_protocol::node::Consistency;
use trellis_cluster_protocol::{NodeId, PageIndex, PageRange, PageSet, sync, wire};

/// Declares the faults: name, broken rule, and the propagations that have the rule.
macro_rules! faults {
    ($($name:ident = $word:literal, $broken:literal, $of:ident;)+) => {
        /// The faults.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            /// No fault.
            None,
            $(#[doc = $broken] $name,)+
        }

        /// Every fault.
        pub const FAULTS: &[Broken] = &[$(Broken { fault: Fault::$name, name: $word, what: $broken, of: Of::$of },)+];
    };
}

/// A fault and its description.
#[derive(Clone, Copy, Debug)]
pub struct Broken {
    /// The fault.
    pub fault: Fault,
    /// Its name.
    pub name: &'static str,
    /// The rule that it breaks.
    pub what: &'static str,
    /// The propagations that have that rule.
    pub of: Of,
}

/// A set of propagations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Of {
    /// All.
    All,
    /// Those that send changes to copies.
    Updates,
    /// Those that drop copies, and let homes move.
    Drops,
    /// The one that sends all changes to copies.
    Update,
    /// All, when the protocol of pages is changed.
    Changed,
    /// All, when threads wait for a condition. Random programs do not.
    Conditions,
}

faults! {
    NothingNoted = "publishes-silently", "what a node published is noted for nobody", All;
    HomeNotNoted = "home-publishes-silently", "what a home itself stored is noted for nobody", All;
    NothingApplied = "ignores-notices", "notices are learnt and not applied", All;
    LastNotApplied = "skips-last-notice", "an acquire ends before its last notice is applied", All;
    PendingNotApplied = "ignores-notice-of-pending", "a notice of a page that is under way is forgotten", All;
    NeighbourNoted = "notes-neighbour", "a notice names the page after the one that changed", All;
    NoticeTooOld = "notice-too-old", "a notice has the time before the change", All;
    CopyTooNew = "copy-too-new", "a copy has a later time than its home", All;
    NeverCloses = "never-closes", "an interval does not end with a release", All;
    ClosesEarly = "closes-early", "an interval ends before its publication", All;
    ReleasesUnpublished = "releases-unpublished", "a call that releases something begins without a publication", All;
    AcquiresUnrefreshed = "acquires-unrefreshed", "a call that acquires something ends before notices are applied", All;
    ReleasesUnacknowledged = "releases-unacknowledged", "a release does not wait for the homes", All;
    ForgetsLate = "forgets-late", "a release does not wait for what an earlier publication left that took too long", All;
    DiffLost = "diff-lost", "a diff is not sent, and waited for", All;
    DiffTwice = "diff-twice", "a diff is sent twice", All;
    DiffEmpty = "diff-empty", "a diff that is made for a publication holds nothing", All;
    LeavesTwin = "leaves-twin", "a twin stays as it was when its diff was sent", All;
    NoTwin = "no-twin", "no twin is kept before the first store", All;
    StaleTwin = "stale-twin", "a copy that comes gets no new twin, where stores are marked", All;
    ForgetsDiff = "forgets-diff", "a home acknowledges a diff and does not put it into the page", All;
    UnsettledSent = "sends-unsettled", "a home that keeps a twin sends what may still change back", Updates;
    PassesOverTwin = "passes-over-twin", "a diff of another node is not put into the twin", Updates;
    ToldNobody = "told-nobody", "a home says that nobody else has a copy", All;
    AlwaysCurrent = "always-current", "a home says that the writer's copy lacks nothing", Drops;
    NoScan = "no-scan", "marks are not looked at before a publication", All;
    FirstChunkOnly = "first-chunk-only", "marks are looked at in the first chunk of those that have watched pages", All;
    OpenNotCompared = "open-not-compared", "pages that stay open are not compared before a publication", All;
    LooksInOne = "looks-in-one-shard", "stores are looked for in the first shard of a node only", All;
    OwesForOne = "owes-for-one-shard", "a release waits for what the first shard of a node publishes", All;
    NoInspection = "no-inspection", "marks are not looked at when a page is dropped", All;
    ChangeForgotten = "forgets-change", "what was found in a dropped page is not sent", All;
    HomeUnnoticed = "home-unnoticed", "a home's own stores stay unnoticed when its page is shared", All;
    HomePublishesOpen = "home-publishes-open", "a home leaves a page open whose copies get updates, or that may go with a lock", All;
    ZeroNotBytes = "sends-zero", "a copy of a written page is sent as zero", All;
    MovesTwice = "two-homes", "a home that gives its page away keeps it", All;
    MoveForgotten = "no-home", "a node is not told that it is the home now", Drops;
    FirstNotTold = "first-not-told", "the first to touch a page is not told that it is the home", All;
    TokenAlone = "token-alone", "a lock is handed on without knowledge", All;
    ArrivalAlone = "arrival-alone", "an arrival at a barrier carries no knowledge", All;
    OpeningAlone = "opening-alone", "a barrier opens without knowledge", All;
    FlagAlone = "flag-alone", "a flag is set without knowledge", All;
    AnswerAlone = "answer-alone", "the home of a flag answers without knowledge", All;
    OwnOnly = "own-only", "what was learnt from others is not passed on", All;
    UsesTooEarly = "uses-too-early", "a message is used before what it rests on is known", All;
    ForgetsTooEarly = "forgets-too-early", "at a barrier a node takes all that it knows now for known to all", All;
    UpdateLost = "update-lost", "an update is not sent, and waited for", Updates;
    UpdateNotApplied = "update-not-applied", "an update is acknowledged and not put into the copy", Updates;
    HearsWhilePending = "not-deaf", "an update counts as taken while the copy is still under way", Updates;
    AnswersEarly = "answers-early", "a writer is answered before the copies have its update", Updates;
    PiggybackedWhileAwaited = "piggybacked-while-awaited", "a piggybacked page is taken while a diff of it is on its way", Drops;
    PiggybackedBehind = "piggybacked-behind", "a piggybacked page is taken by a copy that is behind what it holds", Drops;
    PiggybackedOlder = "piggybacked-older", "a piggybacked page is taken by a copy that is newer", Drops;
    PiggybackedTooNew = "piggybacked-too-new", "a page is piggybacked with a later time than it is of", Drops;
    MergesWhole = "merges-whole", "a piggybacked page takes the place of what was stored and not published", Drops;
    MergePassesOverTwin = "merge-passes-over-twin", "a piggybacked page is not put into the twin", Drops;
    PiggybacksAfterChange = "piggybacks-after-change", "a piggybacked page is used after a change of protocols", Drops;
    ChangesUnpublished = "changes-unpublished", "a protocol is changed before what was stored is at its home", Changed;
    ChangesWhilePublishing = "changes-while-publishing", "other threads publish while a protocol is changed", Changed;
    ChangesUnrefreshed = "changes-unrefreshed", "a change of protocols ends before notices are applied", Changed;
    KeepsOpen = "keeps-open", "copies stay open when their protocol is changed", Changed;
    KeepsOldCopy = "keeps-old-copy", "a directory takes its copy for the page when its protocol is changed", Changed;
    HomeUninspected = "home-uninspected", "a home closes a page whose protocol is changed without a look at its marks", Update;
    ChangesUnknown = "changes-unknown", "a node does not publish after a change to release consistency", Changed;
    OpensNothing = "opens-nothing", "what a protocol takes over is not opened, where stores were marked", Changed;
    GivesUpAlone = "gives-up-alone", "who gives up a change does not decide so for all", Changed;
    StaysAway = "stays-away", "who gives up a change leaves the others waiting", Changed;
    Undecided = "changes-undecided", "nodes change while another may still give up", Changed;
    PassesOverObjections = "passes-over-objections", "a node changes although one objects", Changed;
    KeepsObjections = "keeps-objections", "an objection counts for the next change, too", Changed;
    KeepsNumbers = "keeps-numbers", "the barriers of a change that was given up are used again", Changed;
    LetsGoFirst = "lets-go-first", "the lock is released before a wait for a condition is enrolled", Conditions;
    EnrolledAtOnce = "enrolled-at-once", "the lock is released while the enrolment of a wait is on its way", Conditions;
    WithdrawsNothing = "withdraws-nothing", "a wait for a condition that does not begin stays enrolled", Conditions;
    GivesUpSilently = "gives-up-silently", "a wait for a condition that is given up stays enrolled", Conditions;
    TakesNothing = "takes-no-lock", "a wait for a condition does not take its lock again", Conditions;
    RestsOnNothing = "rests-on-nothing", "a writer says that its copies were piggybacked and are the newest", Drops;
}

/// Alters an input of the protocol; `None` if the input is dropped.
pub(super) fn alter_input(fault: Fault, node: &Node, input: Input, out: &mut Out) -> Option<Input> {
    match (fault, input) {
        (Fault::None, _) => Some(input),
        (Fault::PendingNotApplied, Input::Notice { range, .. }) => {
            (!range.pages().any(|page| node.parts.shard(page).protocol.is_pending(page))).then_some(input)
        }
        (Fault::ChangeForgotten, Input::Changed { .. }) => None,
        (Fault::KeepsOpen | Fault::KeepsOldCopy, Input::Close { range }) => {
            let is_directory = node.parts.shard(range.first()).is_home_of(range.first());
            (is_directory == (fault == Fault::KeepsOpen)).then_some(input)
        }
        (Fault::HomeUninspected, Input::Changed { page }) if node.parts.shard(page).protocol.owns(page) => None,
        (Fault::HearsWhilePending, Input::Message { from, message: Message::Update { pages, number, .. } })
            if pages.pages().all(|page| node.parts.shard(page).protocol.is_pending(page)) =>
        {
            let message = Message::Updated { pages, number, kept: pages.mask() };
            let packet = Packet::Page { message, body: Body::Nothing };
            out.send(Envelope { from: node.me, to: from.0, message: packet });
            None
        }
        (
            Fault::MoveForgotten,
            Input::Message { from, message: Message::Diffed { pages, number, stamp, copied, current, .. } },
        ) => {
            Some(Input::Message { from, message: Message::Diffed { pages, number, stamp, copied, current, moved: 0 } })
        }
        _ => Some(input),
    }
}

/// For a piggybacked page that must not be used: the effect that uses it anyway.
pub(super) fn takes_anyway(setup: &Setup, node: &Node, input: &Input) -> Option<Effect> {
    let (wrong, has_twin) = match setup.fault {
        Fault::PiggybackedWhileAwaited => (Objection::Awaited, true),
        Fault::PiggybackedBehind => (Objection::Behind, true),
        // A copy that was never stored to has no twin.
        Fault::PiggybackedOlder => (Objection::Older, setup.marks(node.me)),
        _ => return None,
    };
    let Input::Message { message: Message::Piggybacked { page, stamp }, .. } = *input else { return None };
    let objection = node.parts.shard(page).protocol.hlrc_of(page)?.objection(page, stamp);
    (objection == Some(wrong)).then_some(Effect::Merge { page, has_twin })
}

/// Alters the effects of the protocol before they are carried out.
pub(super) fn alter_effects(fault: Fault, setup: &Setup, input: &Input, effects: &mut Vec<Effect>) {
    let heard = match input {
        Input::Message { message, .. } => Some(*message),
        _ => None,
    };
    match fault {
        Fault::None => {}
        Fault::NothingNoted => effects.retain(|effect| !matches!(effect, Effect::Notice { .. })),
        Fault::HomeNotNoted if matches!(input, Input::Publish { .. }) => {
            effects.retain(|effect| !matches!(effect, Effect::Notice { .. }));
        }
        Fault::DiffLost => drop_sent(effects, |message| matches!(message, Message::Diff { .. })),
        Fault::UpdateLost => drop_sent(effects, |message| matches!(message, Message::Update { .. })),
        Fault::DiffTwice => {
            let is_diff = |effect: &Effect| matches!(effect, Effect::Send { message: Message::Diff { .. }, .. });
            if let Some(index) = effects.iter().position(is_diff) {
                effects.insert(index, effects[index]);
            }
        }
        Fault::NoTwin if heard.is_none() => effects.retain(|effect| !matches!(effect, Effect::KeepTwin(_))),
        Fault::StaleTwin if matches!(heard, Some(Message::Copy { .. })) => {
            effects.retain(|effect| !matches!(effect, Effect::KeepTwin(_)));
        }
        Fault::ForgetsDiff if matches!(heard, Some(Message::Diff { .. })) => drop_applies(effects),
        Fault::UpdateNotApplied if matches!(heard, Some(Message::Update { .. })) => drop_applies(effects),
        Fault::NoInspection => effects.retain(|effect| !matches!(effect, Effect::Inspect(_))),
        Fault::HomeUnnoticed if matches!(heard, Some(Message::Request { .. })) => {
            effects.retain(|effect| !matches!(effect, Effect::Downgrade(_)));
        }
        Fault::HomePublishesOpen if matches!(input, Input::Publish { .. }) => {
            let sent = |effect: &Effect| match effect {
                Effect::Send { message: Message::Diff { pages, .. }, .. } => Some(*pages),
                _ => None,
            };
            let sent: Vec<_> = effects.iter().filter_map(sent).collect();
            let is_sent = |page| sent.iter().any(|pages| pages.contains(page));
            effects.retain(|effect| !matches!(effect, Effect::Downgrade(range) if !is_sent(range.first())));
        }
        Fault::AnswersEarly => answer_early(heard, effects),
        Fault::MovesTwice => keep_moved(heard, effects),
        _ => effects.iter_mut().for_each(|effect| alter_effect(fault, setup, effect)),
    }
}

fn drop_sent(effects: &mut Vec<Effect>, is_it: impl Fn(&Message) -> bool) {
    effects.retain(|effect| !matches!(effect, Effect::Send { message, .. } if is_it(message)));
}

fn drop_applies(effects: &mut Vec<Effect>) {
    effects.retain(|effect| !matches!(effect, Effect::Apply { .. }));
}

fn alter_effect(fault: Fault, setup: &Setup, effect: &mut Effect) {
    match (fault, effect) {
        (Fault::UnsettledSent, effect @ Effect::SendTwins { .. }) => {
            if let Effect::SendTwins { to, message } = *effect {
                *effect = Effect::Send { to, message };
            }
        }
        (Fault::NeighbourNoted, Effect::Notice { range, .. }) => {
            let next = range.first().0 + 1;
            if next < setup.region_pages() {
                *range = PageRange::one(PageIndex(next));
            }
        }
        (Fault::NoticeTooOld, Effect::Notice { stamp, .. }) => *stamp = stamp.saturating_sub(1),
        (Fault::PassesOverTwin, Effect::Apply { twins, .. }) => *twins = None,
        (_, Effect::Send { message, .. } | Effect::SendTwins { message, .. }) => alter_message(fault, message),
        _ => {}
    }
}

fn alter_message(fault: Fault, message: &mut Message) {
    match (fault, message) {
        (Fault::CopyTooNew, Message::Copy { stamp, .. }) => *stamp += 1,
        (Fault::ZeroNotBytes, Message::Copy { content, .. }) => *content = Content::Zero,
        (Fault::FirstNotTold, Message::Copy { home, .. }) => *home = false,
        (Fault::ToldNobody, Message::Diffed { copied, .. }) => *copied = 0,
        (Fault::PiggybackedTooNew, Message::Piggybacked { stamp, .. }) => *stamp += 1,
        (Fault::RestsOnNothing, Message::Diff { pages, piggybacked, stamp, .. }) => {
            (*piggybacked, *stamp) = (pages.mask(), u64::MAX);
        }
        (Fault::AlwaysCurrent, Message::Diffed { pages, current, .. }) => *current = pages.mask(),
        _ => {}
    }
}

/// The writer receives at once the answer that it should receive when the updates are acknowledged.
fn answer_early(heard: Option<Message>, effects: &mut Vec<Effect>) {
    match heard {
        Some(Message::Diff { writer, number, .. }) => {
            let mut updated: Option<PageSet> = None;
            let mut time = 0;
            for effect in effects.iter() {
                if let Effect::Send { message: Message::Update { pages, stamp, .. }, .. } = *effect {
                    updated = Some(updated.map_or(pages, |set| pages.pages().fold(set, PageSet::with)));
                    time = stamp;
                }
            }
            let is_answered =
                effects.iter().any(|effect| matches!(effect, Effect::Send { message: Message::Diffed { .. }, .. }));
            let Some(pages) = updated.filter(|_| !is_answered) else { return };
            let all = pages.mask();
            let message = Message::Diffed { pages, number, stamp: time, copied: all, current: all, moved: 0 };
            effects.push(Effect::Send { to: writer, message });
        }
        Some(Message::Updated { .. }) => drop_sent(effects, |message| matches!(message, Message::Diffed { .. })),
        _ => {}
    }
}

/// The answer that pages moved names all of them, although only some were handed over.
fn keep_moved(heard: Option<Message>, effects: &mut [Effect]) {
    if !matches!(heard, Some(Message::Diff { .. })) {
        return;
    }
    for effect in effects {
        if let Effect::Send { message: Message::Diffed { pages, moved, .. }, .. } = effect {
            *moved = pages.mask();
        }
    }
}

pub(super) fn alter_notices(fault: Fault, notices: &mut Vec<Notice>) {
    match fault {
        Fault::NothingApplied => notices.clear(),
        Fault::LastNotApplied => drop(notices.pop()),
        _ => {}
    }
}

/// The last step of a publication.
pub(super) fn end_publication(fault: Fault, consistency: &mut Consistency) {
    let stays_open = matches!(fault, Fault::NeverCloses | Fault::ClosesEarly);
    let intervals = stays_open.then(|| consistency.knowledge.intervals.clone());
    consistency.end();
    if let Some(intervals) = intervals {
        consistency.knowledge.intervals = intervals;
    }
}

/// The knowledge that is attached to a message that may release something.
pub(super) fn attach_notices(
    fault: Fault,
    message: &wire::Message,
    intervals: &mut Intervals,
    to: NodeId,
    me: u16,
    is_ordered: bool,
    out: &mut Vec<u8>,
) {
    use wire::Message::Sync;
    intervals.append_notices(to, out);
    let is_alone = match fault {
        Fault::TokenAlone => matches!(message, Sync(sync::Message::LockToken(_))),
        Fault::ArrivalAlone => matches!(message, Sync(sync::Message::BarrierArrive(..))),
        Fault::OpeningAlone => matches!(message, Sync(sync::Message::BarrierRelease(..))),
        Fault::FlagAlone => matches!(message, Sync(sync::Message::AtomicRequest(..))),
        Fault::AnswerAlone => matches!(message, Sync(sync::Message::AtomicReply(..))),
        Fault::OwnOnly => false,
        _ => return,
    };
    let head = if is_ordered { 0 } else { 4 };
    if is_alone {
        out.truncate(head);
    } else if fault == Fault::OwnOnly {
        keep_own(out, head, me);
    }
}

/// Removes what is known of other nodes. Segments are: node, after, upto, any, number of notices, the notices.
fn keep_own(knowledge: &mut Vec<u8>, head: usize, me: u16) {
    let mut kept = knowledge[..head].to_vec();
    let mut rest = &knowledge[head..];
    while rest.len() >= 23 {
        let node = u16::from_le_bytes([rest[0], rest[1]]);
        let count = u32::from_le_bytes([rest[19], rest[20], rest[21], rest[22]]) as usize;
        let (segment, behind) = rest.split_at(23 + count * 16);
        if node == me {
            kept.extend_from_slice(segment);
        }
        rest = behind;
    }
    *knowledge = kept;
}
