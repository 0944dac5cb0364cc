//! How a client treats late answers. The explorer and the swarm of `trellis-check` cover every order of events.

use trellis_fabric_protocol::lease::client::{Client, Input};
use trellis_fabric_protocol::lease::{Ask, Effect, Epoch, Message, Outcome, Party, Status, Timing, epoch_of};

const HOME: u16 = 1;
const ME: Party = Party { host: 20, incarnation: 0x8001 };
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
    let mut client = Client::new(ME, Party::of(9), Timing::new(1_000, 5_000, RETRY, 100), HOME);
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
