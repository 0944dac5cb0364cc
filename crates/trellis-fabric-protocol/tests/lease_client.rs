//! How a client and a reader treat late answers. The explorer and the swarm of `trellis-check` cover every order of events.

use std::collections::VecDeque;

use trellis_fabric_protocol::lease::client::{Client, Input};
use trellis_fabric_protocol::lease::reader::{self, Reader};
use trellis_fabric_protocol::lease::{Ask, Effect, Epoch, Host, Message, Outcome, Party, Status, Timing, epoch_of};

const HOME: Host = Host(1);
const ME: Party = Party { host: Host(20), incarnation: 0x8001 };
const RETRY: u64 = 10;

fn step(client: &mut Client, now: u64, input: Input) -> Vec<Effect> {
    let mut effects = Vec::new();
    client.step(now, input, &mut effects);
    effects
}

fn reply(client: &mut Client, now: u64, request: u64, ask: Ask, status: Status, epoch: Epoch) -> Vec<Effect> {
    let message = Message::Reply { page: 0, request, ask, status, epoch };
    step(client, now, Input::Message(Party::of(HOME), message))
}

/// The numbers of the requests in the effects.
fn requests(effects: &[Effect]) -> Vec<u64> {
    let request = |effect: &Effect| match effect {
        Effect::Send { message: Message::Request { request, .. }, .. } => Some(*request),
        _ => None,
    };
    effects.iter().filter_map(request).collect()
}

/// A client that changes a page and asks twice to commit it, with what it asks and the numbers of the requests.
fn asked_twice(release: bool) -> (Client, Ask, [u64; 2]) {
    let mut client = Client::new(ME, Party::of(Host(9)), Timing::new(1_000, 5_000, RETRY, 100), HOME);
    let epoch = epoch_of(1) + 1;
    let update = requests(&step(&mut client, 0, Input::Update(0)));
    reply(&mut client, 1, update[0], Ask::Update, Status::Ok, epoch);
    assert!(client.change(1, 0));
    let ask = Ask::Commit { epoch, release };
    let first = requests(&step(&mut client, 2, Input::Commit { page: 0, release }))[0];
    let second = requests(&step(&mut client, 2 + RETRY, Input::Tick))[0];
    assert!(second > first);
    (client, ask, [first, second])
}

#[test]
fn a_commit_counted_whichever_of_its_requests_hears_it() {
    let counted = epoch_of(1) + 2;
    for release in [false, true] {
        let (mut client, ask, [first, second]) = asked_twice(release);
        let effects = reply(&mut client, 13, first, ask, Status::Ok, counted);
        assert!(effects.contains(&Effect::Done(0, Outcome::Committed)), "{effects:?}");
        // A later home does not know the request, and nothing waits for it any more.
        assert_eq!(reply(&mut client, 14, second, ask, Status::Fenced, counted), []);
        assert_eq!(client.owns(14, 0), !release);
    }
}

#[test]
fn anything_else_that_an_older_request_hears_may_be_wrong_by_now() {
    let (mut client, ask, [first, second]) = asked_twice(false);
    let Ask::Commit { epoch, .. } = ask else { unreachable!("it is one") };
    assert_eq!(reply(&mut client, 13, first, ask, Status::Fenced, epoch), []);
    assert_eq!(reply(&mut client, 13, first, Ask::Renew(epoch), Status::Ok, epoch), [], "that was not asked");
    assert_eq!(reply(&mut client, 13, first - 1, ask, Status::Ok, epoch + 1), [], "that was before");
    let other = Ask::Commit { epoch, release: true };
    assert_eq!(reply(&mut client, 13, first, other, Status::Ok, epoch + 1), [], "it shall not be given back");
    let effects = reply(&mut client, 13, second, ask, Status::Ok, epoch + 1);
    assert!(effects.contains(&Effect::Done(0, Outcome::Committed)), "{effects:?}");
}

/// The answer times of homes: within a retry, and much longer.
const TIMES: [u64; 5] = [1, RETRY - 1, RETRY, 3 * RETRY, 15 * RETRY];

fn timing() -> Timing {
    Timing::new(1_000, 5_000, RETRY, 100)
}

/// Requests that a home answers, in order, after this time.
struct Slow {
    takes: u64,
    asked: VecDeque<(u64, u64, Ask)>,
    requests: usize,
}

impl Slow {
    fn new(takes: u64) -> Slow {
        Slow { takes, asked: VecDeque::new(), requests: 0 }
    }

    fn hear(&mut self, now: u64, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Send { message: Message::Request { request, ask, .. }, .. } = effect {
                self.asked.push_back((now + self.takes, *request, *ask));
                self.requests += 1;
            }
        }
    }

    /// An answer that arrives now: to which request.
    fn answer(&mut self, now: u64) -> Option<Message> {
        let (_, request, ask) = self.asked.pop_front_if(|(at, ..)| *at <= now)?;
        Some(Message::Reply { page: 0, request, ask, status: Status::Ok, epoch: epoch_of(1) + 1 })
    }
}

#[test]
fn a_lease_is_had_and_kept_at_a_home_that_takes_longer_than_a_retry() {
    for takes in TIMES {
        let (mut client, mut home) = (Client::new(ME, Party::of(Host(9)), timing(), HOME), Slow::new(takes));
        home.hear(0, &step(&mut client, 0, Input::Update(0)));
        let mut owned_at = None;
        for now in 1..10_000 {
            while let Some(message) = home.answer(now) {
                home.hear(now, &step(&mut client, now, Input::Message(Party::of(HOME), message)));
            }
            if client.owns(now, 0) {
                owned_at.get_or_insert(now);
            }
            let effects = step(&mut client, now, Input::Tick);
            assert!(!effects.iter().any(|effect| matches!(effect, Effect::Lost(_))), "{takes}: lost at {now}");
            home.hear(now, &effects);
        }
        let owned_at = owned_at.unwrap_or_else(|| panic!("a home that takes {takes} is never heard"));
        assert!(owned_at < 4 * takes.max(RETRY), "{takes}: {owned_at}");
        // A renewal for each third of the term, and a few retries of each.
        assert!(home.requests < 40 * 8, "{takes}: {} requests", home.requests);
    }
}

#[test]
fn a_copy_is_had_and_kept_at_a_home_that_takes_longer_than_a_retry() {
    for takes in TIMES {
        let (mut reader, mut home) = (Reader::new(ME, Party::of(Host(9)), timing(), HOME), Slow::new(takes));
        let mut effects = Vec::new();
        reader.step(0, reader::Input::Follow(0), &mut effects);
        home.hear(0, &effects);
        let mut had_at = None;
        for now in 1..10_000 {
            let mut effects = Vec::new();
            while let Some(message) = home.answer(now) {
                reader.step(now, reader::Input::Message(Party::of(HOME), message), &mut effects);
            }
            reader.step(now, reader::Input::Tick, &mut effects);
            home.hear(now, &effects);
            match had_at {
                None if reader.has(now, 0) => had_at = Some(now),
                Some(_) => assert!(reader.has(now, 0), "{takes}: lost at {now}"),
                None => {}
            }
        }
        let had_at = had_at.unwrap_or_else(|| panic!("a home that takes {takes} is never heard"));
        assert!(had_at < 4 * takes.max(RETRY), "{takes}: {had_at}");
    }
}

#[test]
fn a_lease_that_is_not_renewed_ends_in_time() {
    let mut client = Client::new(ME, Party::of(Host(9)), timing(), HOME);
    let update = requests(&step(&mut client, 0, Input::Update(0)));
    reply(&mut client, 1, update[0], Ask::Update, Status::Ok, epoch_of(1) + 1);
    let until = timing().held;
    // Only when it says that something is due, and there is no answer any more.
    while let Some(due) = client.due(0) {
        assert!(due <= until, "{due}");
        if step(&mut client, due, Input::TickPage(0)).contains(&Effect::Lost(0)) {
            assert_eq!(due, until);
            return;
        }
    }
    panic!("nothing is due, and the lease was not lost");
}

#[test]
fn waits_begin_again_after_an_answer() {
    let mut client = Client::new(ME, Party::of(Host(9)), timing(), HOME);
    let mut asked = requests(&step(&mut client, 0, Input::Update(0)))[0];
    let again = |client: &mut Client| {
        let due = client.due(0).expect("it waits");
        (due, requests(&step(client, due, Input::TickPage(0)))[0])
    };
    let mut times = Vec::new();
    for _ in 0..3 {
        let (due, request) = again(&mut client);
        (times, asked) = ([times, vec![due]].concat(), request);
    }
    assert_eq!(times, [10, 30, 70]);
    assert_eq!(reply(&mut client, 71, asked, Ask::Update, Status::Busy, 0), []);
    let due = [again(&mut client).0, again(&mut client).0];
    assert_eq!(due, [72, 82], "it is asked again soon, and the next is as a first one");
}

#[test]
fn who_cannot_have_a_page_now_asks_again_soon_and_less_soon_each_time() {
    const RETRY: u64 = 640;
    let timing = Timing::new(64_000, 64_000, RETRY, 100);
    let (mut client, mut now, mut pauses) = (Client::new(ME, Party::of(Host(9)), timing, HOME), 0, Vec::new());
    let mut asked = requests(&step(&mut client, now, Input::Update(0)))[0];
    for _ in 0..8 {
        reply(&mut client, now + 1, asked, Ask::Update, Status::Restarting, 0);
        let due = client.due(0).expect("it waits");
        pauses.push(due - now - 1);
        (now, asked) = (due, requests(&step(&mut client, due, Input::TickPage(0)))[0]);
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 639, 639], "never later than without an answer");
    reply(&mut client, now + 1, asked, Ask::Update, Status::Busy, epoch_of(1));
    assert_eq!(client.due(0), Some(now + RETRY), "it has a turn");
}

#[test]
fn a_reader_that_cannot_have_a_copy_now_asks_again_soon_and_less_soon_each_time() {
    const RETRY: u64 = 640;
    let timing = Timing::new(64_000, 64_000, RETRY, 100);
    let (mut reader, mut now, mut pauses) = (Reader::new(ME, Party::of(Host(9)), timing, HOME), 0, Vec::new());
    let mut asked = Vec::new();
    reader.step(now, reader::Input::Follow(0), &mut asked);
    let answer = |reader: &mut Reader, now: u64, asked: &[Effect], status, epoch| {
        let request = requests(asked)[0];
        let message = Message::Reply { page: 0, request, ask: Ask::Copy, status, epoch };
        reader.step(now, reader::Input::Message(Party::of(HOME), message), &mut Vec::new());
        reader.due(0).expect("it waits")
    };
    for _ in 0..7 {
        let due = answer(&mut reader, now + 1, &asked, Status::Restarting, 0);
        pauses.push(due - now - 1);
        (now, asked) = (due, Vec::new());
        reader.step(due, reader::Input::TickPage(0), &mut asked);
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 639], "never later than without an answer");
    assert_eq!(answer(&mut reader, now + 1, &asked, Status::Busy, epoch_of(1)), now + RETRY, "it has a turn");
    answer(&mut reader, now + 2, &asked, Status::Ok, epoch_of(1) + 1);
    assert_eq!(reader.pages[&0].refused, 0);
}
