//! Tests clients of ranges that move, fail over and have backups, over real sockets in networks of their own: a proxy
//! between the client and a memory server gives the answers that a home would give then, and passes everything else on.

#[path = "support/between.rs"]
mod between;
#[path = "../../trellis-transport/tests/support/network.rs"]
mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use between::Between;
use network::{ALONE, in_own_network};
use trellis_fabric_protocol::wire::address::{Arguments, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Operation, Request, Status};
use trellis_remote::leased::{Bytes, Events, LeasedOptions, LeasedPages};
use trellis_remote::{Call, Client, ClientOptions, Host, HostPrefix, Outcome, Pointer, RemoteError};

const PAGE: usize = 4096;
const SERVER: Host = Host(7);
const OTHER: Host = Host(8);
/// The port of the proxy.
const BETWEEN: u16 = 5001;

/// What happens to a request.
enum Turn {
    /// The server receives it.
    Pass,
    /// It is lost.
    Lose,
    /// It is answered as done, with this body.
    Body(Body),
    /// It is answered with this status and epoch.
    Say(Status, u64),
    /// The server receives it, and its answer is lost.
    PassAndLose,
}

/// The requests that were seen. A waiting client repeats a request, and such a copy may arrive when the script has
/// changed.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeSet<[u8; 16]>>>);

impl Seen {
    /// Whether no copy of the request came before.
    fn is_new(&self, request: &Request) -> bool {
        self.0.lock().expect("nobody panicked").insert(request.source.encode().0)
    }
}

/// The first request of each command that was not seen before.
struct Chosen {
    seen: Seen,
    sources: BTreeMap<Command, Source>,
}

impl Chosen {
    fn of(seen: &Seen) -> Chosen {
        Chosen { seen: seen.clone(), sources: BTreeMap::new() }
    }

    /// Whether this is a copy of it.
    fn is(&mut self, request: &Request) -> bool {
        if self.seen.is_new(request) {
            self.sources.entry(request.command()).or_insert(request.source);
        }
        self.sources.get(&request.command()) == Some(&request.source)
    }
}

/// Whether a request is a commit under the lease of the first one that was not seen before. A client that hears nothing
/// for a while commits under another number.
fn commits_of_a_lease(seen: &Seen) -> impl FnMut(&Request) -> bool + use<> {
    let (seen, mut epoch) = (seen.clone(), None);
    move |request| {
        if request.command() == Command::Commit && seen.is_new(request) {
            epoch.get_or_insert(request.epoch);
        }
        epoch == Some(request.epoch)
    }
}

fn prefix(host: Host) -> HostPrefix {
    format!("fd01:203:{:x}::/48", host.0).parse().expect("it is a prefix")
}

fn client_until(host: u16, deadline: Duration) -> Client {
    let options = ClientOptions { deadline, port: BETWEEN, ..ClientOptions::new(prefix(Host(host))) };
    good(Client::open(options))
}

/// Deadlines of calls that shall fail, each longer than a busier machine needs for an answer.
const DEADLINES: [Duration; 3] = [Duration::from_millis(300), Duration::from_secs(3), Duration::from_secs(30)];

/// The error of a call that fails although its host answers.
fn answered_error<T>(mut call: impl FnMut(Duration) -> Result<T, RemoteError>) -> RemoteError {
    let mut errors = DEADLINES.into_iter().map(|deadline| call(deadline).err().expect("it cannot be done"));
    let answered = errors.find(|error| !matches!(error, RemoteError::NoAnswer(_)));
    answered.expect("its host answers")
}

fn client(host: u16) -> Client {
    client_until(host, Duration::from_secs(60))
}

fn good<T>(result: Result<T, RemoteError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// The answers of a home with backups to changes without a lease.
fn with_backups(request: &Request) -> Turn {
    match request.command() {
        Command::Write | Command::FetchAdd | Command::CompareSwap | Command::CreateWrite => {
            Turn::Say(Status::Lease, request.epoch)
        }
        _ => Turn::Pass,
    }
}

fn eight(client: &mut Client, pointer: Pointer) -> u64 {
    let mut bytes = [0; 8];
    good(client.read(pointer, &mut bytes));
    u64::from_le_bytes(bytes)
}

fn at(pointer: Pointer, bytes: usize) -> Pointer {
    pointer.plus(bytes as u64).expect("it is inside")
}

#[test]
fn where_others_keep_copies_changes_are_made_under_leases() {
    in_own_network("where_others_keep_copies_changes_are_made_under_leases", &ALONE, || {
        let between = Between::start(with_backups);
        let mut one = client(9);
        let text: Vec<u8> = (0..10_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
        let object = good(one.create_with(SERVER, &text));
        let mut bytes = vec![0; text.len()];
        good(one.read(object, &mut bytes));
        assert!(bytes == text, "an object is made with its bytes");
        // Into three pages, the last of which is shorter.
        good(one.write(at(object, 4_000), &[9; 6_000]));
        good(one.read(object, &mut bytes));
        assert!(bytes[..4_000] == text[..4_000] && bytes[4_000..].iter().all(|byte| *byte == 9));
        good(one.write_whole(at(object, 100), &[3; 200]));
        let error = one.write_whole(object, &text[..5_000]).expect_err("two pages are not changed in one step");
        assert!(matches!(error, RemoteError::SeveralPages { bytes: 5_000, .. }), "{error}");
        let error = one.batch(&mut [Call::WriteWhole { pointer: object, bytes: &text[..5_000] }]).pop();
        assert!(matches!(error, Some(Err(RemoteError::SeveralPages { bytes: 5_000, .. }))), "{error:?}");
        let error = one.write(at(object, 9_990), &[1; 20]).expect_err("the object ends before");
        assert!(matches!(error, RemoteError::Refused { status: Status::Bounds, .. }), "{error}");
        good(one.write(object, &[0; 100]));
        assert_eq!(good(one.compare_swap(at(object, 8), 0, 5)), 0);
        assert_eq!(good(one.compare_swap(at(object, 8), 0, 6)), 5, "it is refused, and the lease is given back");
        let mut ends = one.batch(&mut [
            Call::FetchAdd { pointer: object, addend: 2 },
            Call::FetchAdd { pointer: object, addend: 2 },
            Call::Write { pointer: at(object, 4_090), bytes: &[1; 20] },
            Call::CompareSwap { pointer: at(object, 8), expected: 5, new: 7 },
            Call::CreateWith { home: SERVER, bytes: b"another" },
        ]);
        let made = ends.pop().expect("there are five");
        let ends: Vec<Outcome> = ends.into_iter().map(good).collect();
        assert_eq!(ends, [Outcome::Before(0), Outcome::Before(2), Outcome::Done, Outcome::Before(5)]);
        assert_eq!(eight(&mut one, object), 4);
        let Outcome::Made(another) = good(made) else { panic!("an object is made") };
        let mut word = [0; 7];
        good(one.read(another, &mut word));
        assert_eq!(&word, b"another");
        good(one.delete(another));
        drop(between);
    });
}

/// The answers of a server whose pages of odd numbers are at another home.
fn with_parts(request: &Request) -> Turn {
    let pointer = request.destination.pointer;
    let at = pointer.offset() % PAGE as u64;
    match request.operation {
        Operation::Read { bytes } if at + u64::from(bytes) > PAGE as u64 => Turn::Say(Status::Parts, 0),
        _ if request.command() == Command::Write => Turn::Say(Status::Lease, 0),
        _ => Turn::Pass,
    }
}

#[test]
fn what_is_at_several_places_is_read_page_by_page() {
    in_own_network("what_is_at_several_places_is_read_page_by_page", &ALONE, || {
        let between = Between::start(|_| Turn::Pass);
        let mut one = client(9);
        let text: Vec<u8> = (0..20_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
        let object = good(one.create_with(SERVER, &text));
        between.now(with_parts);
        let mut bytes = vec![0; text.len() - 1];
        good(one.read(at(object, 1), &mut bytes));
        assert!(bytes == text[1..]);
        // Many at once, one of which ends behind the object.
        let [mut whole, mut over, mut past] = [vec![0; 4096], vec![0; 300], vec![0; 5000]];
        let ends = one.batch(&mut [
            Call::Read { pointer: object, bytes: &mut whole },
            Call::Read { pointer: at(object, 4_000), bytes: &mut over },
            Call::Read { pointer: at(object, 16_000), bytes: &mut past },
            Call::Write { pointer: at(object, 8_000), bytes: &[9; 500] },
        ]);
        let [first, second, third, fourth] = &ends[..] else { panic!("there were four") };
        assert!(first.is_ok() && second.is_ok() && fourth.is_ok(), "{ends:?}");
        let why = third.as_ref().expect_err("it ends behind the object");
        assert!(matches!(why, RemoteError::Refused { command: Command::Read, status: Status::Bounds, .. }), "{why}");
        assert!(whole == text[..4096] && over == text[4_000..4_300]);
        good(one.read(at(object, 7_990), &mut over));
        assert!(over[..10] == text[7_990..8_000] && over[10..].iter().all(|byte| *byte == 9));
    });
}

#[test]
fn every_addition_under_leases_is_done_once() {
    in_own_network("every_addition_under_leases_is_done_once", &ALONE, || {
        // Of acknowledgements, and of commits, some are lost.
        let mut commits = 0;
        let _between = Between::start(move |request| {
            commits += u32::from(request.command() == Command::Commit);
            match (request.command(), commits % 5) {
                (Command::Commit, 1) => Turn::PassAndLose,
                (Command::Commit, 3) => Turn::Lose,
                _ => with_backups(request),
            }
        });
        let object = good(client(9).create(SERVER, 2 * PAGE as u64));
        std::thread::scope(|scope| {
            for host in 10..13 {
                scope.spawn(move || {
                    let mut client = client(host);
                    for round in 0..60 {
                        good(client.fetch_add(at(object, round % 2 * PAGE), 1));
                    }
                });
            }
        });
        let mut reader = client(9);
        assert_eq!((eight(&mut reader, object), eight(&mut reader, at(object, PAGE))), (90, 90));
    });
}

#[test]
fn a_commit_that_nobody_knows_is_an_error_of_its_own_and_one_that_never_counted_is_done_again() {
    const TEST: &str = "a_commit_that_nobody_knows_is_an_error_of_its_own_and_one_that_never_counted_is_done_again";
    in_own_network(TEST, &ALONE, || {
        let seen = Seen::default();
        let sees = seen.clone();
        let between = Between::start(move |request| {
            sees.is_new(request);
            with_backups(request)
        });
        let mut one = client(9);
        let object = good(one.create(SERVER, PAGE as u64));
        good(one.fetch_add(object, 1));
        // It counts, the answer is lost, and the next home does not know it, whatever the number under which it is
        // asked.
        let (mut is_chosen, mut copies) = (commits_of_a_lease(&seen), 0);
        between.now(move |request| match request.command() {
            Command::Commit if is_chosen(request) => {
                copies += 1;
                if copies == 1 { Turn::PassAndLose } else { Turn::Say(Status::Fenced, request.epoch) }
            }
            _ => with_backups(request),
        });
        let error = one.fetch_add(object, 1).expect_err("nobody knows it");
        assert!(matches!(error, RemoteError::Unknown { command: Command::FetchAdd, .. }), "{error}");
        assert!(error.to_string().starts_with(&format!("nobody knows whether FETCH_ADD of {object} was done")));
        between.now(with_backups);
        assert_eq!(eight(&mut one, object), 2, "it was not done again");
        // Home says that this commit never counted, and never will.
        let mut is_chosen = commits_of_a_lease(&seen);
        between.now(move |request| match request.command() {
            Command::Commit if is_chosen(request) => Turn::Say(Status::Fenced, 0),
            _ => with_backups(request),
        });
        assert_eq!(good(one.fetch_add(object, 1)), 2);
        assert_eq!(eight(&mut one, object), 3);
    });
}

/// Loses the first request of this command, however often it is repeated under its number.
fn losing_the_first(command: Command) -> impl FnMut(&Request) -> Turn + Send {
    let mut lost = None;
    move |request| {
        let number = request.source.request;
        let is_lost = request.command() == command && *lost.get_or_insert(number) == number;
        if is_lost { Turn::Lose } else { with_backups(request) }
    }
}

#[test]
fn what_is_not_answered_soon_is_asked_again_otherwise() {
    in_own_network("what_is_not_answered_soon_is_asked_again_otherwise", &ALONE, || {
        let between = Between::start(with_backups);
        // Only the limits of single requests let a call go on.
        let mut one = client_until(9, Duration::from_secs(3_600));
        let object = good(one.create(SERVER, 2 * PAGE as u64));
        assert_eq!(good(one.fetch_add(object, 1)), 0);
        for command in [Command::Update, Command::Commit] {
            between.now(losing_the_first(command));
            good(one.fetch_add(object, 1));
            between.now(losing_the_first(command));
            let [first, second] = [object, at(object, PAGE)];
            let ends = one.batch(&mut [
                Call::FetchAdd { pointer: first, addend: 1 },
                Call::FetchAdd { pointer: second, addend: 1 },
            ]);
            assert!(ends.iter().all(Result::is_ok), "{command}: {ends:?}");
        }
        assert_eq!((eight(&mut one, object), eight(&mut one, at(object, PAGE))), (5, 2));
        between.now(|request| match request.command() {
            Command::Release => Turn::Lose,
            _ => with_backups(request),
        });
        assert_eq!(good(one.compare_swap(object, 7, 8)), 5, "nothing changes, and the lease is given back");
        assert_eq!(good(one.compare_swap(object, 5, 8)), 5);
        // The host that the switch selects says nothing.
        between.now(|request| match request.destination.arguments.has(Arguments::DIRECT) {
            true => Turn::Pass,
            false => Turn::Lose,
        });
        assert_eq!(eight(&mut one, object), 8);
    });
}

#[test]
fn a_change_that_may_have_been_made_is_not_said_to_be_refused() {
    in_own_network("a_change_that_may_have_been_made_is_not_said_to_be_refused", &ALONE, || {
        let between = Between::start(with_backups);
        let object = good(client(9).create(SERVER, PAGE as u64));
        good(client(9).fetch_add(object, 1));
        // The first commit is made and its answer is lost; the others are refused, as at a home that hands its range
        // over.
        let mut made = None;
        between.now(move |request| match (request.command(), request.source.request) {
            (Command::Commit, number) if *made.get_or_insert(number) == number => Turn::PassAndLose,
            (Command::Commit, _) => Turn::Say(Status::Busy, 0),
            _ => with_backups(request),
        });
        let error = client_until(9, Duration::from_secs(3)).fetch_add(object, 1).expect_err("it has no answer");
        assert!(matches!(error, RemoteError::NoAnswer(_)), "{error}");
        between.now(with_backups);
        let value = good(client(9).fetch_add(object, 0));
        assert!((1..=2).contains(&value), "{value}");
    });
}

#[test]
fn a_range_that_is_elsewhere_for_a_while_is_waited_for() {
    in_own_network("a_range_that_is_elsewhere_for_a_while_is_waited_for", &ALONE, || {
        let numbers: Arc<Mutex<BTreeMap<Command, Vec<u64>>>> = Arc::default();
        // Each request that goes straight to home is refused six times before the server gets it.
        let asked = Arc::clone(&numbers);
        let between = Between::start(move |request| {
            if !request.destination.arguments.has(Arguments::DIRECT) {
                return Turn::Say(Status::Moved, 0);
            }
            let mut asked = asked.lock().expect("nobody panicked");
            let numbers = asked.entry(request.command()).or_default();
            numbers.push(request.source.request);
            match numbers.len() {
                1..=3 => Turn::Say(Status::Moved, 0),
                4..=6 => Turn::Say(Status::Restarting, 0),
                _ => Turn::Pass,
            }
        });
        let mut one = client(9);
        let object = good(one.create(SERVER, PAGE as u64));
        good(one.write(object, &[1, 2]));
        assert_eq!(good(one.fetch_add(object, 1)), 0x201);
        assert_eq!(eight(&mut one, object), 0x202);
        good(one.delete(object));
        // What may have been done is never asked for under another number.
        let numbers = numbers.lock().expect("nobody panicked");
        for command in [Command::Create, Command::Write, Command::FetchAdd, Command::Delete] {
            let asked = &numbers[&command];
            assert!(asked.len() >= 7 && asked.iter().all(|number| *number == asked[0]), "{command}: {asked:?}");
        }
        drop(numbers);
        // Not for ever.
        between.now(|_| Turn::Say(Status::Moved, 0));
        let error = answered_error(|deadline| client_until(10, deadline).read(object, &mut [0]));
        let text = error.to_string();
        assert!(matches!(error, RemoteError::Unserved { status: Status::Moved, moved_to: Some(OTHER), .. }), "{text}");
        assert!(text.contains("the range fd01:203:7::/48 (said to be at fd01:203:8::/48)"), "{text}");
    });
}

/// How often a request of each command was sent.
type Copies = Arc<Mutex<BTreeMap<Command, u32>>>;

/// Has a command done that is refused at first. Where the client had sent it twice before the answer came, it cannot
/// know whether the first was done, and says so. The second copy is then seen soon.
fn repeated<T>(copies: &Copies, command: Command, mut call: impl FnMut() -> Result<T, RemoteError>) -> T {
    call().unwrap_or_else(|error| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while copies.lock().expect("nobody panicked").get(&command) <= Some(&1) {
            assert!(Instant::now() < deadline, "{command:?} was sent once: {error}");
            std::thread::sleep(Duration::from_millis(5));
        }
        good(call())
    })
}

#[test]
fn a_home_that_knows_no_session_gets_a_hello_where_nothing_can_have_been_done() {
    const TEST: &str = "a_home_that_knows_no_session_gets_a_hello_where_nothing_can_have_been_done";
    in_own_network(TEST, &ALONE, || {
        let seen = Seen::default();
        let sees = seen.clone();
        let between = Between::start(move |request| {
            sees.is_new(request);
            Turn::Pass
        });
        let mut one = client(9);
        let object = good(one.create(SERVER, PAGE as u64));
        // Of each command the first is refused.
        let (mut chosen, copies) = (Chosen::of(&seen), Copies::default());
        let counted = Arc::clone(&copies);
        between.now(move |request| match request.command() {
            Command::Hello => Turn::Pass,
            command if chosen.is(request) && request.is_once => {
                *counted.lock().expect("nobody panicked").entry(command).or_default() += 1;
                Turn::Say(Status::Fenced, request.epoch)
            }
            _ => Turn::Pass,
        });
        repeated(&copies, Command::Write, || one.write(object, &[7]));
        assert_eq!(repeated(&copies, Command::FetchAdd, || one.fetch_add(object, 1)), 7);
        let made = repeated(&copies, Command::CreateWrite, || one.create_with(SERVER, b"next"));
        repeated(&copies, Command::Delete, || one.delete(made));
        let again = repeated(&copies, Command::Create, || one.create(SERVER, 8));
        // What was sent before, and got no answer, may have been done by the home before.
        let (mut chosen, mut sent) = (Chosen::of(&seen), BTreeMap::<Command, u32>::new());
        between.now(move |request| {
            if !chosen.is(request) || !request.is_once {
                return Turn::Pass;
            }
            let sent = sent.entry(request.command()).or_default();
            *sent += 1;
            match *sent {
                1 => Turn::PassAndLose,
                2 => Turn::Say(Status::Fenced, request.epoch),
                _ => Turn::Pass,
            }
        });
        let error = one.fetch_add(object, 1).expect_err("it may have been done");
        assert!(matches!(error, RemoteError::Refused { status: Status::Fenced, .. }), "{error}");
        assert_eq!(eight(&mut one, object), 9, "it was, and once");
        // Nobody knows the object that may have been made.
        let other = good(one.create(SERVER, 8));
        assert_ne!(other, again);
        drop(between);
    });
}

#[test]
fn who_is_silent_does_not_make_others_silent() {
    in_own_network("who_is_silent_does_not_make_others_silent", &ALONE, || {
        let between = Between::start(|_| Turn::Pass);
        let object = good(client(9).create(SERVER, 3 * PAGE as u64));
        // A question between two others gets no answer; the last one is redirected at first.
        between.now(move |request| match request.destination.pointer.page() - object.page() {
            0 => Turn::Lose,
            2 if !request.destination.arguments.has(Arguments::DIRECT) => Turn::Say(Status::Moved, 0),
            _ => Turn::Pass,
        });
        let are_answered = DEADLINES.into_iter().any(|deadline| {
            let (mut first, mut second, mut third) = ([0; 8], [0; 8], [0; 8]);
            let ends = client_until(10, deadline).batch(&mut [
                Call::Read { pointer: object, bytes: &mut first },
                Call::Read { pointer: at(object, PAGE), bytes: &mut second },
                Call::Read { pointer: at(object, 2 * PAGE), bytes: &mut third },
            ]);
            assert!(matches!(ends[0], Err(RemoteError::NoAnswer(_))), "{ends:?}");
            ends[1].is_ok() && ends[2].is_ok()
        });
        assert!(are_answered, "the silence of one made the others silent");
    });
}

/// Hears what happens to pages.
#[derive(Default)]
struct PageEvents {
    lost: Mutex<Vec<u64>>,
    changed: Condvar,
    /// Pages that nobody uses.
    unused: Mutex<Vec<u64>>,
}

impl Events for PageEvents {
    fn invalidate(&self, _page: u64) {}

    fn recalled(&self, _page: u64) {}

    fn lost(&self, page: u64) {
        self.lost.lock().expect("nobody panicked").push(page);
        self.changed.notify_all();
    }

    fn is_used(&self, page: u64) -> bool {
        !self.unused.lock().expect("nobody panicked").contains(&page)
    }
}

impl PageEvents {
    fn wait(&self, pages: &[u64]) {
        let until = Instant::now() + Duration::from_secs(60);
        let mut lost = self.lost.lock().expect("nobody panicked");
        while !pages.iter().all(|page| lost.contains(page)) {
            assert!(Instant::now() < until, "of the pages {pages:?} only {lost:?} were lost");
            lost = self.changed.wait_timeout(lost, Duration::from_millis(100)).expect("nobody panicked").0;
        }
    }
}

fn leased(host: u16, object: Pointer, deadline: Duration) -> (LeasedPages, Arc<PageEvents>) {
    let heard = Arc::new(PageEvents::default());
    let options = LeasedOptions { port: BETWEEN, deadline, ..LeasedOptions::new(prefix(Host(host)), &[object]) };
    let leased = good(LeasedPages::open(options, Arc::clone(&heard) as Arc<dyn Events>));
    (leased, heard)
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_home_that_takes_longer_than_a_retry_is_waited_for() {
    in_own_network("a_home_that_takes_longer_than_a_retry_is_waited_for", &ALONE, || {
        let between = Between::start(with_backups);
        let mut one = client(9);
        let object = good(one.create(SERVER, 3 * PAGE as u64));
        // Longer than each time for which one number is waited for at first.
        between.answers_take(Duration::from_millis(120));
        assert_eq!(good(one.fetch_add(object, 1)), 0);
        let second = at(object, PAGE);
        let ends = one
            .batch(&mut [Call::FetchAdd { pointer: object, addend: 1 }, Call::FetchAdd { pointer: second, addend: 1 }]);
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
        let (leased, heard) = leased(10, object, LONG);
        good(leased.copy(&[0], false, &mut |_, _| {}));
        for round in 0..20_u8 {
            good(leased.update(&[2], false, &mut |_, _| {}));
            assert!(good(leased.commit(&[(2, &[round; PAGE])], true)).is_empty(), "the lease was held");
        }
        assert!(heard.lost.lock().expect("nobody panicked").is_empty());
        assert_eq!(eight(&mut one, at(object, 2 * PAGE)), u64::from_le_bytes([19; 8]));
    });
}

#[test]
fn leases_go_on_while_a_range_is_elsewhere() {
    in_own_network("leases_go_on_while_a_range_is_elsewhere", &ALONE, || {
        let between = Between::start(|_| Turn::Pass);
        let object = good(client(9).create(SERVER, 3 * PAGE as u64));
        let (leased, heard) = leased(10, object, LONG);
        let mut asked: BTreeMap<(Command, u64), u32> = BTreeMap::new();
        // Whatever is asked of a page is refused five times, twice as being elsewhere.
        between.now(move |request| {
            let asked = asked.entry((request.command(), request.destination.pointer.page())).or_default();
            *asked += 1;
            match *asked {
                1 | 3 => Turn::Say(Status::Moved, 0),
                2 | 4 | 5 => Turn::Say(Status::Restarting, 0),
                _ => Turn::Pass,
            }
        });
        let mut granted = Vec::new();
        good(leased.update(&[0, 1], false, &mut |page, bytes| {
            assert!(matches!(bytes, Bytes::New(_)));
            granted.push(page);
        }));
        granted.sort_unstable();
        assert_eq!(granted, [0, 1]);
        good(leased.copy(&[2], false, &mut |_, _| {}));
        let late = good(leased.commit(&[(0, &[1; PAGE]), (1, &[2; PAGE])], true));
        assert!(late.is_empty(), "{late:?}");
        between.now(|_| Turn::Pass);
        assert_eq!(eight(&mut client(9), at(object, PAGE)) & 0xff, 2);
        assert!(heard.lost.lock().expect("nobody panicked").is_empty());
        // Not for ever; and the error says of whom, and what was heard.
        between.now(|request| match request.command() {
            Command::Inquire => Turn::Pass,
            _ => Turn::Say(Status::Restarting, 0),
        });
        let error = answered_error(|deadline| {
            let options = LeasedOptions { deadline, port: BETWEEN, ..LeasedOptions::new(prefix(Host(11)), &[object]) };
            LeasedPages::open(options, Arc::new(PageEvents::default()))?.copy(&[2], false, &mut |_, _| {})
        });
        let text = error.to_string();
        assert!(matches!(error, RemoteError::Unserved { status: Status::Restarting, .. }), "{text}");
        assert!(text.contains("CLONE of ") && text.contains("the range fd01:203:7::/48"), "{text}");
    });
}

#[test]
fn a_home_that_knows_no_leases_ends_them_and_events_say_so() {
    in_own_network("a_home_that_knows_no_leases_ends_them_and_events_say_so", &ALONE, || {
        let between = Between::start(|_| Turn::Pass);
        let object = good(client(9).create(SERVER, 2 * PAGE as u64));
        let (leased, heard) = leased(10, object, LONG);
        good(leased.update(&[0, 1], false, &mut |_, _| {}));
        // Another home, which was never told of them.
        between.now(|request| match request.command() {
            Command::Renew | Command::Commit => Turn::Say(Status::Fenced, request.epoch),
            _ => Turn::Pass,
        });
        assert_eq!(good(leased.commit(&[(0, &[1; PAGE])], true)), [0], "it counts nowhere");
        heard.wait(&[1]);
        assert_eq!(eight(&mut client(9), object), 0);
    });
}

#[test]
fn a_term_that_cannot_be_is_no_answer() {
    in_own_network("a_term_that_cannot_be_is_no_answer", &ALONE, || {
        let between = Between::start(|_| Turn::Pass);
        let object = good(client(9).create(SERVER, PAGE as u64));
        let (leased, _heard) = leased(10, object, LONG);
        let mut terms = vec![u64::MAX, 0, 1];
        between.now(move |request| match request.command() {
            Command::Update | Command::Clone if !terms.is_empty() => {
                Turn::Body(Body::Leased { term: terms.pop().expect("there is one"), bytes: PAGE as u32 })
            }
            _ => Turn::Pass,
        });
        good(leased.update(&[0], false, &mut |_, _| {}));
        assert!(good(leased.commit(&[(0, &[1; PAGE])], true)).is_empty());
        assert_eq!(eight(&mut client(9), object) & 0xff, 1);
    });
}

#[test]
fn who_stands_in_a_queue_does_not_ask_again_soon() {
    in_own_network("who_stands_in_a_queue_does_not_ask_again_soon", &ALONE, || {
        let between = Between::start(|_| Turn::Pass);
        let object = good(client(9).create(SERVER, 2 * PAGE as u64));
        let (leased, _heard) = leased(10, object, LONG);
        // The requests for page 1 since the last one for page 0.
        let mut others = 0;
        between.now(move |request| {
            if request.command() != Command::Clone || others > 10 {
                return Turn::Pass;
            }
            match request.destination.pointer.page() - object.page() {
                // It has a place in the queue: the client waits long before it asks again.
                0 => {
                    others = 0;
                    Turn::Say(Status::Busy, 77)
                }
                // There is no room in the queue: these ask until there is.
                _ => {
                    others += 1;
                    Turn::Say(Status::Busy, 0)
                }
            }
        });
        // If page 0 were asked for as often as page 1, this would never end.
        good(leased.copy(&[0, 1], false, &mut |_, _| {}));
        drop(between);
    });
}

#[test]
fn a_copy_that_is_dropped_is_reported() {
    in_own_network("a_copy_that_is_dropped_is_reported", &ALONE, || {
        let reported: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
        let (tell, between) = (Arc::clone(&reported), Between::start(|_| Turn::Pass));
        let object = good(client(9).create(SERVER, 3 * PAGE as u64));
        let (leased, _heard) = leased(10, object, LONG);
        between.now(move |request| {
            if request.command() == Command::Invalidated {
                let page = request.destination.pointer.page() - object.page();
                tell.lock().expect("nobody panicked").push((page, request.epoch));
            }
            Turn::Pass
        });
        good(leased.copy(&[0, 1, 2], false, &mut |_, _| {}));
        leased.drop_copies(&[1]);
        // The others are told when nobody asks any more.
        drop(leased);
        let until = Instant::now() + LONG;
        while reported.lock().expect("nobody panicked").len() < 3 {
            assert!(Instant::now() < until, "{reported:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut reported = reported.lock().expect("nobody panicked").clone();
        assert_eq!(reported[0].0, 1, "{reported:?}");
        assert!(reported.iter().all(|(_, epoch)| *epoch > 0), "{reported:?}");
        reported.sort_unstable();
        assert_eq!(reported.iter().map(|(page, _)| *page).collect::<Vec<_>>(), [0, 1, 2]);
    });
}

#[test]
fn copies_that_nobody_uses_end() {
    in_own_network("copies_that_nobody_uses_end", &ALONE, || {
        let _between = Between::start_with_term(Duration::from_secs(2), |_| Turn::Pass);
        let object = good(client(9).create(SERVER, 3 * PAGE as u64));
        let (leased, heard) = leased(10, object, LONG);
        heard.unused.lock().expect("nobody panicked").extend([0, 2]);
        good(leased.copy(&[0, 1, 2], false, &mut |_, _| {}));
        // Nobody is asked about a lease.
        good(leased.update(&[2], false, &mut |_, _| {}));
        heard.wait(&[0]);
        // It can be had again, and ends again.
        heard.lost.lock().expect("nobody panicked").retain(|page| *page != 0);
        good(leased.copy(&[0], false, &mut |_, _| {}));
        heard.wait(&[0]);
        let lost = heard.lost.lock().expect("nobody panicked").clone();
        assert_eq!(lost, [0], "what is used, or owned, is renewed");
        assert!(good(leased.commit(&[(2, &[1; PAGE])], true)).is_empty());
    });
}

/// A process that stood still for longer than a term: what it changed counts if nobody had the page meanwhile. If
/// somebody read the page, its change must not come to light later, because that reader may have heard of it before.
#[test]
fn what_was_changed_under_a_lease_that_ended_counts_unless_somebody_had_the_page() {
    in_own_network("what_was_changed_under_a_lease_that_ended_counts_unless_somebody_had_the_page", &ALONE, || {
        let between = Between::start_with_term(Duration::from_secs(1), |_| Turn::Pass);
        let mut one = client(9);
        let object = good(one.create(SERVER, 3 * PAGE as u64));
        let (owner, heard) = leased(10, object, LONG);
        let (reader, _) = leased(11, object, LONG);
        good(owner.update(&[0, 1, 2], false, &mut |_, _| {}));
        // The owner is not heard until its leases have ended.
        between.now(|request| if request.source.host == Host(10) { Turn::Lose } else { Turn::Pass });
        heard.wait(&[0, 1, 2]);
        let mut seen = Vec::new();
        good(reader.copy(&[1], false, &mut |_, bytes| {
            if let Bytes::New(bytes) = bytes {
                seen.extend_from_slice(bytes);
            }
        }));
        assert!(seen == [0; PAGE], "nothing was committed");
        between.now(|_| Turn::Pass);
        let mine: Vec<(u64, &[u8])> = [0, 1, 2].map(|page| (page, &[7; PAGE][..])).to_vec();
        assert_eq!(good(owner.commit(&mine, true)), [1], "somebody had page 1");
        for (page, byte) in [(0, 7), (1, 0), (2, 7)] {
            let mut bytes = [1; PAGE];
            good(one.read(object.plus(page * PAGE as u64).expect("it is in the object"), &mut bytes));
            assert!(bytes == [byte; PAGE], "page {page}");
        }
    });
}
