//! Faults of leases: each breaks one rule.
//!
//! Promises: a fault breaks one rule of one state machine, always in the same way. The machine itself is the real one;
//! its input, its state or its output is altered. It must never change anything with [`Fault::None`].

use super::Setup;
use super::node::{Cause, Envelope, Machine, Node};
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::client::{Hold, Own};
use trellis_fabric_protocol::lease::home::{Home, Owner, PageLease};
use trellis_fabric_protocol::lease::parts::{self, Part, Step};
use trellis_fabric_protocol::lease::queue::{Right, Waiter};
use trellis_fabric_protocol::lease::server::RangeServer;
use trellis_fabric_protocol::lease::{Ask, Bytes, Effect, Message, Party, State, Status, Timing, incarnation_of};

/// A fault, its name, and the rule that it breaks.
#[derive(Clone, Copy, Debug)]
pub struct Broken {
    /// The fault.
    pub fault: Fault,
    /// Its name.
    pub name: &'static str,
    /// The rule that is broken.
    pub what: &'static str,
}

macro_rules! faults {
    ($($fault:ident = $name:literal, $what:literal;)*) => {
        /// The faults.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            /// No fault.
            None,
            $(#[doc = $what] $fault,)*
        }

        /// All faults.
        pub const FAULTS: &[Broken] = &[$(Broken { fault: Fault::$fault, name: $name, what: $what },)*];
    };
}

faults! {
    Steals = "steals", "an owner that gets a redirected update gives its lease away and goes on, and takes the other's write-back for its own (the paper's design)";
    AnyEpoch = "any-epoch", "a commit is accepted whatever its epoch";
    GrantKeepsEpoch = "grant-keeps-epoch", "a grant does not raise the epoch";
    CommitKeepsEpoch = "commit-keeps-epoch", "a commit does not raise the epoch";
    RenewsAnybody = "renews-anybody", "a lease is renewed whatever the epoch";
    GrantsOwned = "grants-owned", "a page is granted while another client's lease lasts";
    HeldTooLong = "held-too-long", "a client holds a lease twice as long as home gives it";
    IgnoresRates = "ignores-rates", "a client counts the whole term, as if its clock were home's";
    CountsFromReceipt = "counts-from-receipt", "a client counts its term from when the grant arrived";
    TakesOldGrant = "takes-old-grant", "a client takes the answer to an earlier request for one to the last";
    AnswersEnded = "answers-ended", "an owner answers a redirected read after its lease has ended";
    AnswersCommitting = "answers-committing", "an owner answers a redirected read while its commit is under way";
    ShowsUncommitted = "shows-uncommitted", "an owner answers a redirected read with what it has not committed";
    ForgetsReaders = "forgets-readers", "copies are not recalled before a lease is given";
    CopiesOwned = "copies-owned", "home gives copies of a page that somebody owns";
    ReaderKeeps = "reader-keeps", "a reader acknowledges a recall and keeps its copy";
    RecallForgotten = "recall-forgotten", "a reader takes a copy that was recalled before it came";
    ReaderCountsFromReceipt = "reader-counts-from-receipt", "a reader counts its term from when the copy arrived";
    NoGrace = "no-grace", "a home that started again gives leases at once";
    RestartKeepsIncarnation = "restart-keeps-incarnation", "a home that started again has the incarnation that it had";
    HomeCountsFromReceipt = "home-counts-from-receipt", "a home counts its home lease from when the controller's answer arrived";
    ServesForEver = "serves-for-ever", "a home goes on when its home lease has ended";
    AnswersHandedOver = "answers-handed-over", "a home goes on after it handed over";
    NoFreeze = "no-freeze", "a home that hands over goes on giving leases and taking commits";
    HandsOverNoLeases = "hands-over-no-leases", "a home hands over without its leases and copies";
    AcknowledgesEarly = "acknowledges-early", "a commit is acknowledged before the backups have it";
    ShowsStaged = "shows-staged", "a read sees a commit before the backups have it";
    GrantsStaged = "grants-staged", "a page is granted while a commit to it is on its way to the backups";
    BackupStoresNothing = "backup-stores-nothing", "a backup acknowledges and keeps what it had";
    ZeroOverCommit = "zero-over-commit", "a backup that is told that pages are zero forgets what was committed since";
    BackupTakesOld = "backup-takes-old", "a backup, or a home, takes what a home sends that was replaced";
    BlankAcknowledges = "blank-acknowledges", "a server that lost its memory acknowledges as if it had not";
    NotPersisted = "not-persisted", "the controller says what it has not persisted";
    NoTimeout = "no-timeout", "the controller gives a range to another while the home lease of its home lasts";
    RestartForgetsHomeLease = "restart-forgets-home-lease", "a controller that started again thinks that no home lease lasts";
    KeepsIncarnation = "keeps-incarnation", "a home that takes over has the incarnation of the one before";
    BelievesLateHanded = "believes-late-handed", "the controller believes that a range was handed over in an earlier incarnation";
    RepeatKeepsLease = "repeat-keeps-lease", "a client goes on under an epoch that home acknowledged after it forgot the lease";
    HandsOverInGrace = "hands-over-in-grace", "a home that does not know all leases hands over those that it knows";
    SkipsIncarnations = "skips-incarnations", "a home takes a backup that was dropped and came back for complete";
    ChangesEarly = "changes-early", "what a home changes itself counts before the backups have it";
    PassesWaiting = "passes-waiting", "a copy is granted past somebody who waits for a lease";
    ServesTwice = "serves-twice", "who waited and was served keeps a place in the queue";
    GivenUnheard = "given-unheard", "a page that is on its way to a new backup counts as given";
    ForgetsNewCopy = "forgets-new-copy", "who gave up a copy is taken to have none, also of later ones";
    CompleteAtOnce = "complete-at-once", "a new backup may become home before it has everything";
    SplitForgetsLeases = "split-forgets-leases", "the home of a part does not know the leases that the range's home gave before the split";
    SplitForgetsStaged = "split-forgets-staged", "a page whose commit was under way at the split is shown before the backups have what home has";
    SplitForgetsHomeLease = "split-forgets-home-lease", "the controller gives a part to another while the home lease of its range's home before the split lasts";
    SplitsBlank = "splits-blank", "a server that lost its memory takes what it splits off that for a part that it has";
    MergeForgetsLeases = "merge-forgets-leases", "the home of a range does not know the leases of a part that it merges";
    MergeForgetsStaged = "merge-forgets-staged", "a page whose commit was under way at the merge is shown before the backups have what home has";
    MergeForgetsHomeLease = "merge-forgets-home-lease", "the controller gives a range to another while the home lease of a merged part's home lasts";
    MergeForgetsIncarnation = "merge-forgets-incarnation", "a range that is merged with a part has a lower incarnation than that had";
    MergeKeepsRecord = "merge-keeps-record", "a part goes on beside the range that it was merged with";
    MergesAnyTime = "merges-any-time", "the controller merges a part without hearing of its home that everybody has everything";
    StaleMerges = "stale-merges", "a placement that was replaced merges parts that there are, or splits them off";
    KeepsMerged = "keeps-merged", "a backup that has a part keeps what the range's home, which has merged it, gives it of its pages";
    BelievesNewer = "believes-newer", "a backup of a part believes a home of which no controller told it";
    LateCommits = "late-commits", "a commit under a lease that has ended counts although somebody had the page since";
    ClaimsEnded = "claims-ended", "a client claims a lease that had ended when it learnt of the home";
    ForgetsParts = "forgets-parts", "the range's home answers for the pages of a part";
}

/// The duration of rights at a node.
pub(super) fn timing(fault: Fault, setup: &Setup, number: usize) -> Timing {
    let timing = setup.timing;
    let is_client = number >= usize::from(setup.servers);
    match fault {
        Fault::HeldTooLong if is_client => Timing { held: 2 * timing.term, ..timing },
        Fault::IgnoresRates if is_client => Timing { held: timing.term, ..timing },
        Fault::NoGrace => Timing { grace: 0, ..timing },
        Fault::NoTimeout if number == setup.controller() => Timing { home_lease: timing.home_lease_held / 2, ..timing },
        _ => timing,
    }
}

/// The altered input, and the state to restore.
pub(super) struct Before {
    /// The message that the machine receives.
    pub(super) message: Message,
    home: Option<Home>,
    own: Option<Own>,
}

/// What the node does in place of its machine. Returns whether it does anything.
pub(super) fn instead(
    fault: Fault,
    node: &mut Node,
    now: Nanoseconds,
    cause: &Cause,
    effects: &mut Vec<Effect>,
) -> bool {
    let me = node.party;
    let Cause::Envelope(Envelope { from, message: Message::Request { page, request, ask }, .. }) = cause else {
        return false;
    };
    let Machine::Client(client) = &mut node.machine else { return false };
    let Some(own) = client.pages.get(page).and_then(|hold| hold.own).filter(|_| *from != me) else { return false };
    let is_committing =
        client.pages[page].wait.is_some_and(|wait| matches!(wait.ask, Ask::Commit { .. })) && client.owns(now, *page);
    let answers = match (fault, ask) {
        (Fault::Steals, Ask::Update) => client.owns(now, *page),
        (Fault::Steals, Ask::Commit { .. }) => {
            effects.push(Effect::Put(*page));
            true
        }
        (Fault::AnswersEnded, Ask::Read) => !own.is_changed && now >= own.until,
        (Fault::AnswersCommitting, Ask::Read) => is_committing,
        (Fault::ShowsUncommitted, Ask::Read) => own.is_changed && !is_committing && client.owns(now, *page),
        _ => false,
    };
    if answers {
        let message =
            Message::Reply { page: *page, request: *request, ask: *ask, status: Status::Ok, epoch: own.epoch };
        // While it commits, it answers with what it read before.
        let bytes = if fault == Fault::AnswersCommitting { Bytes::Staged } else { Bytes::Page };
        effects.push(Effect::Send { to: *from, message, bytes });
    }
    answers
}

/// Lets a home change a page itself, with the fault applied.
pub(super) fn change(fault: Fault, server: &mut RangeServer, change: impl FnOnce(&mut RangeServer)) {
    let hide = |server: &mut RangeServer| server.home.as_mut().map(|home| std::mem::take(&mut home.backups));
    let backups = if fault == Fault::ChangesEarly { hide(server) } else { None };
    change(server);
    if let (Some(home), Some(backups)) = (&mut server.home, backups) {
        home.backups = backups;
    }
}

/// Alters the machine's input and state.
pub(super) fn before(fault: Fault, node: &mut Node, now: Nanoseconds, from: Party, message: &Message) -> Before {
    let mut heard = message.clone();
    let (mut saved, mut own) = (None, None);
    if let (Machine::Client(client), Message::Reply { page, .. }) = (&node.machine, message) {
        own = client.pages.get(page).and_then(|hold| hold.own);
    }
    match &mut node.machine {
        Machine::Server(server) => {
            saved.clone_from(&server.home);
            before_server(fault, server, now, from, &mut heard);
        }
        Machine::Client(client) if fault == Fault::TakesOldGrant => {
            if let Message::Reply { page, request, ask: Ask::Update, status: Status::Ok, .. } = &mut heard
                && let Some(wait) = client.pages.get(page).and_then(|hold| hold.wait)
                && wait.ask == Ask::Update
            {
                *request = wait.request;
            }
        }
        Machine::Reader(reader) if fault == Fault::RecallForgotten => {
            reader.pages.values_mut().for_each(|followed| followed.recalled = 0);
        }
        Machine::Controller(controller) => {
            if let Message::Report { boot_id, state, .. } = &mut heard
                && from.host == controller.record.home
            {
                let record = &mut controller.record;
                match (fault, &state) {
                    (Fault::BelievesLateHanded, State::Handed(_)) => {
                        *state = State::Handed(record.incarnation);
                        *boot_id = record.boot_id.unwrap_or(*boot_id);
                    }
                    (Fault::RestartKeepsIncarnation, State::Idle) => record.boot_id = Some(*boot_id),
                    _ => {}
                }
            }
        }
        _ => {}
    }
    Before { message: heard, home: saved, own }
}

fn before_server(fault: Fault, server: &mut RangeServer, now: Nanoseconds, from: Party, heard: &mut Message) {
    let known = server.memory.incarnation;
    if let (Fault::BackupTakesOld, Message::Store { incarnation, page, epoch, .. }) = (fault, &mut *heard)
        && *incarnation < known
    {
        if server.home.is_some() {
            // As if the server were not the home.
            server.memory.stamps.retain(|other, stamp| other != page || stamp.epoch > *epoch);
            server.home.iter_mut().for_each(|home| home.incarnation -= 1);
        }
        *incarnation = known;
    }
    if let (Fault::HomeCountsFromReceipt, Message::Placed { request, .. }) = (fault, &heard) {
        for asked in server.asked.iter_mut().filter(|asked| asked.0 == *request) {
            asked.1 = now;
        }
    }
    let Some(home) = &mut server.home else { return };
    if let (Fault::SkipsIncarnations, Message::Placed { request, placement, .. }) = (fault, &heard)
        && *request > 0
        && placement.incarnation > home.incarnation
    {
        home.incarnation = placement.incarnation - 1;
    }
    if let (Fault::ForgetsNewCopy, Message::Invalidated { page, epoch }) = (fault, &mut *heard) {
        let copies = home.leased.get(page).map_or(&[][..], |leased| &leased.copies);
        if let Some(copied) = copies.iter().find(|copied| copied.party == from) {
            *epoch = copied.by.1;
        }
        return;
    }
    if let Message::Request { page, ask: Ask::Commit { epoch, .. }, .. } = *heard
        && fault == Fault::LateCommits
        && home.leased.get(&page).is_none_or(|leased| leased.owner.is_none())
        && server.memory.stamps.get(&page).is_none_or(|stamp| stamp.epoch < epoch)
    {
        let owner = Owner { party: from, request: 0, until: now, has_claimed: false };
        home.leased.insert(page, PageLease { epoch, owner: Some(owner), ..PageLease::default() });
    }
    let Message::Request { page, ask, .. } = heard else {
        if let (Fault::NoFreeze, Message::Taken { .. }) = (fault, &heard) {
            home.hand_to = Some(from.host);
        }
        return;
    };
    let leased = home.leased.get_mut(page);
    match (fault, &mut *ask, leased) {
        (Fault::AnyEpoch, Ask::Commit { epoch, .. }, Some(leased)) => *epoch = leased.epoch,
        (Fault::RenewsAnybody, Ask::Renew(epoch), Some(leased)) => *epoch = leased.epoch,
        (Fault::GrantsOwned, Ask::Update, Some(leased)) if !home.staged.contains_key(page) => leased.owner = None,
        (Fault::GrantKeepsEpoch, Ask::Update, _) | (Fault::CommitKeepsEpoch, Ask::Commit { .. }, _) => {
            home.counter = home.counter.saturating_sub(1);
        }
        (Fault::ForgetsReaders, Ask::Update, Some(leased)) => leased.copies.clear(),
        (Fault::CopiesOwned, Ask::Copy, Some(leased)) => {
            leased.owner = None;
            home.queues.remove(page);
        }
        (Fault::GrantsStaged, Ask::Update, Some(leased)) => {
            home.staged.remove(page);
            leased.owner = leased.owner.filter(|owner| now < owner.until);
        }
        (Fault::PassesWaiting, Ask::Copy, _) => drop(home.queues.remove(page)),
        (Fault::AcknowledgesEarly, Ask::Commit { .. }, _) => home.backups.clear(),
        (Fault::NoFreeze, ..) => home.hand_to = None,
        _ => {}
    }
}

/// Restores the state and alters the output.
pub(super) fn after(
    fault: Fault,
    node: &mut Node,
    now: Nanoseconds,
    before: &Before,
    message: &Message,
    effects: &mut Vec<Effect>,
) {
    let Before { message: heard, home: saved, own } = before;
    let place = match heard {
        Message::Request { page, .. } | Message::Reply { page, .. } | Message::Invalidate { page, .. } => Some(*page),
        _ => None,
    };
    match &mut node.machine {
        Machine::Server(server) => {
            after_server(fault, server, heard, saved.as_ref(), place, effects);
            if let (Message::Store { incarnation: told, .. }, Message::Store { incarnation: was, .. }) =
                (message, heard)
                && told != was
            {
                for effect in &mut *effects {
                    if let Effect::Send { message: Message::Stored { incarnation, .. }, .. } = effect {
                        *incarnation = *told;
                    }
                }
            }
        }
        Machine::Client(client) => {
            if let (Fault::RepeatKeepsLease, Some(page), Some(own)) = (fault, place, own)
                && effects.contains(&Effect::Lost(page))
                && matches!(heard, Message::Reply { ask: Ask::Commit { .. }, status: Status::Ok, .. })
            {
                effects.retain(|effect| *effect != Effect::Lost(page));
                let own = Own { is_changed: false, ..*own };
                client.pages.insert(page, Hold { own: Some(own), wait: None });
            }
            if fault == Fault::ClaimsEnded {
                let incarnation = client.belief.incarnation;
                let over = client.pages.values_mut().filter_map(|hold| hold.own.as_mut()).filter(|own| own.is_over);
                over.for_each(|own| own.claims = Some(incarnation).filter(|_| incarnation_of(own.epoch) < incarnation));
            }
            let granted = effects.iter().any(|effect| matches!(effect, Effect::Put(_)));
            if let (Fault::CountsFromReceipt, true, Some(page)) = (fault, granted, place)
                && let Some(own) = client.pages.get_mut(&page).and_then(|hold| hold.own.as_mut())
            {
                own.until = now + client.timing.held;
            }
        }
        Machine::Reader(reader) => {
            let Timing { held, renew, .. } = reader.timing;
            let Some(followed) = place.and_then(|page| reader.pages.get_mut(&page)) else { return };
            match (fault, heard) {
                (Fault::ReaderCountsFromReceipt, Message::Reply { .. }) => {
                    let came = effects.iter().any(|effect| matches!(effect, Effect::Put(_)));
                    followed.copy = followed.copy.map(|(epoch, until)| (epoch, if came { now + held } else { until }));
                }
                (Fault::ReaderKeeps, Message::Invalidate { epoch, .. }) if followed.ask_at > now => {
                    let until = followed.ask_at - renew + held;
                    followed.copy = followed.copy.or((followed.asked.is_none() && *epoch > 0).then_some((1, until)));
                }
                _ => {}
            }
        }
        Machine::Controller(_) => {}
    }
    always(fault, node, effects);
}

fn after_server(
    fault: Fault,
    server: &mut RangeServer,
    heard: &Message,
    saved: Option<&Home>,
    page: Option<u64>,
    effects: &mut Vec<Effect>,
) {
    if let (Fault::AnswersHandedOver, Message::Taken { .. }, None, Some(saved)) = (fault, heard, &server.home, saved) {
        let handed = server.handed.is_some();
        server.home = handed.then(|| Home { hand_to: None, ..saved.clone() });
        return;
    }
    if let (Fault::ZeroOverCommit, Message::Store { page, pages, epoch: 0, .. }) = (fault, heard)
        && effects.iter().any(|effect| matches!(effect, Effect::Send { message: Message::Stored { .. }, .. }))
    {
        effects.extend((*page..page + pages).map(Effect::Put));
    }
    let (Some(home), Some(saved)) = (&mut server.home, saved) else { return };
    let ask = match heard {
        Message::Request { ask, .. } => Some(*ask),
        _ => None,
    };
    if fault == Fault::ServesTwice {
        keep_places(home, saved, effects);
    }
    let was = page.and_then(|page| saved.leased.get(&page));
    let was_staged = page.is_some_and(|page| saved.staged.contains_key(&page));
    match (fault, ask, page, was) {
        (Fault::CopiesOwned, Some(Ask::Copy), Some(page), Some(PageLease { owner: Some(_), .. })) => {
            let was = was.cloned().unwrap_or_default();
            let copies = home.leased.get(&page).map_or(Vec::new(), |leased| leased.copies.clone());
            home.leased.insert(page, PageLease { copies, ..was });
        }
        (Fault::AcknowledgesEarly, Some(Ask::Commit { .. }), ..) => home.backups.clone_from(&saved.backups),
        (Fault::NoFreeze, Some(_), ..) => home.hand_to = saved.hand_to,
        (Fault::PassesWaiting, Some(Ask::Copy), Some(page), _) => {
            home.queues.extend(saved.queues.get(&page).map(|queue| (page, queue.clone())));
        }
        (Fault::ShowsStaged, Some(Ask::Read), ..) if was_staged => {
            for effect in effects {
                if let Effect::Send { bytes, message: Message::Reply { status: Status::Ok, .. }, .. } = effect {
                    *bytes = Bytes::Staged;
                }
            }
        }
        _ => {}
    }
}

/// Returns the parties that were served to their places in the queue.
fn keep_places(home: &mut Home, saved: &Home, effects: &[Effect]) {
    for effect in effects {
        let Effect::Send { to, message: Message::Reply { page, ask, status: Status::Ok, .. }, .. } = effect else {
            continue;
        };
        let is_it = |waiter: &&Waiter| waiter.party == *to && (waiter.right == Right::Copy) == (*ask == Ask::Copy);
        let waited = saved.queues.get(page).and_then(|queue| queue.waiters.iter().find(is_it));
        if let Some(waiter) = waited.filter(|_| matches!(ask, Ask::Copy | Ask::Update)) {
            home.queues.entry(*page).or_default().waiters.push_front(*waiter);
        }
    }
}

/// Faults that apply after every cause.
pub(super) fn always(fault: Fault, node: &mut Node, effects: &mut Vec<Effect>) {
    match &mut node.machine {
        Machine::Server(server) => {
            if let Some(home) = &mut server.home {
                match fault {
                    Fault::ServesForEver => home.until = Nanoseconds::MAX,
                    Fault::GivenUnheard => home.settling.under_way.clear(),
                    Fault::HandsOverInGrace if home.hand_to.is_some() => home.grace_until = 0,
                    _ => {}
                }
            }
            if fault == Fault::BackupStoresNothing {
                effects.retain(|effect| !matches!(effect, Effect::Put(_)));
            }
            if fault == Fault::HandsOverNoLeases {
                for effect in effects {
                    if let Effect::Send { message: Message::Leases { entries, .. }, .. } = effect {
                        entries.clear();
                    }
                }
            }
        }
        Machine::Controller(controller) => {
            let before = node.log.as_ref();
            match fault {
                Fault::NotPersisted => effects.retain(|effect| !matches!(effect, Effect::Persist(_))),
                Fault::KeepsIncarnation => {
                    let is_given = before.is_some_and(|before| before.home != controller.record.home);
                    if is_given && effects.iter().any(|effect| matches!(effect, Effect::Persist(_))) {
                        controller.record.incarnation -= 1;
                        for effect in effects {
                            match effect {
                                Effect::Persist(record) => record.incarnation -= 1,
                                Effect::Send { message: Message::Placed { placement, .. }, .. } => {
                                    placement.incarnation -= 1;
                                }
                                _ => {}
                            }
                        }
                    }
                }
                Fault::CompleteAtOnce => controller.record.complete.clone_from(&controller.record.backups),
                _ => {}
            }
        }
        _ => {}
    }
}

/// Whether a server uses the range's machine for the pages of parts.
pub(super) fn forgets_parts(fault: Fault) -> bool {
    fault == Fault::ForgetsParts
}

/// The next step of a server for a message, if a fault changes it.
pub(super) fn next(fault: Fault, range: &RangeServer, here: &[Part], message: &Message) -> Option<Step> {
    let Message::Placed { request, placement, .. } = message else { return None };
    if fault != Fault::StaleMerges || *request == 0 || placement.home == range.me {
        return None;
    }
    let mut range = range.clone();
    range.memory.incarnation = 0;
    Some(parts::next(&range, here, message))
}

/// Applies a fault to the machine of a part that was split off.
pub(super) fn split(fault: Fault, part: &mut RangeServer) {
    part.memory.is_blank &= fault != Fault::SplitsBlank;
    let Some(home) = &mut part.home else { return };
    match fault {
        Fault::SplitForgetsLeases => home.leased.clear(),
        Fault::SplitForgetsStaged => {
            home.settling.begin(Vec::new());
            home.hides = false;
        }
        _ => {}
    }
}

/// Applies a fault to the machine of a part before it is merged.
pub(super) fn merge(fault: Fault, part: &mut RangeServer) {
    let Some(home) = &mut part.home else { return };
    match fault {
        Fault::MergeForgetsLeases => home.leased.clear(),
        Fault::MergeForgetsStaged => {
            home.staged.clear();
            home.hides = false;
        }
        _ => {}
    }
}
