//! A keeper that a controller places: what it reports as a blank server, as a home with pages of its own, and as a
//! backup whose pages no longer belong to an object.

use trellis_fabric_protocol::lease::parts::Part;
use trellis_fabric_protocol::lease::server::Server;
use trellis_fabric_protocol::lease::{Epoch, Party, Placement, State, Timing, epoch_of};
use trellis_fabric_protocol::memory_server::{Carried, Decision, Input, Keeper, Lease, Order, Range, Staged};
use trellis_fabric_protocol::wire::address::{Arguments, Cluster, Host, Incarnation, PAGE_BYTES, Pointer, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::told::What;
use trellis_fabric_protocol::wire::datagram::{Extent, Operation, Request, Status, TagKind};

const ME: u16 = 7;
const OTHER: u16 = 8;
const CONTROLLER: u16 = 200;
const PAGES: u64 = 4;
const LIFE: u16 = 99;
const MILLISECOND: u64 = 1_000_000;

/// A server that starts without memory: four pages for clients and one of its own.
fn blank() -> Keeper {
    let timing = Timing::new(100 * MILLISECOND, 50 * MILLISECOND, 2 * MILLISECOND, 1000);
    let server = Server::new(ME, Party::of(CONTROLLER), PAGES + 1, timing, LIFE, ME).restarted(0, LIFE, None);
    let cluster = Cluster::new(1).expect("24 bits");
    let mut keeper = Keeper::of(Range { cluster, of: ME, me: ME, pages: PAGES + 1 }, server, 0);
    keeper.set_pages(PAGES + 1, 1);
    keeper
}

fn orders(keeper: &mut Keeper) -> Vec<Order> {
    std::iter::from_fn(|| keeper.next_order()).collect()
}

/// The report that is due: its number, and the state it names.
fn report(keeper: &mut Keeper, now: u64) -> (u64, State) {
    keeper.tick(now);
    match &orders(keeper)[..] {
        [Order::Tell { to: CONTROLLER, what: What::Report { request, life: LIFE, state, .. }, .. }] => {
            (*request, *state)
        }
        other => panic!("{other:?}"),
    }
}

fn placed(request: u64, incarnation: u16, home: u16, backups: &[u16], anew: bool) -> What {
    let (backups, parts) = (backups.to_vec(), Vec::new());
    let placement = Placement { incarnation, home, backups, hand_to: None, anew, is_unserved: false, parts };
    What::Placed { request, life: LIFE, placement, call: 0, pages: PAGES, within: None }
}

/// A server without a role, which a home may tell to keep pages.
fn idle() -> Keeper {
    let mut keeper = blank();
    let (request, state) = report(&mut keeper, 0);
    assert_eq!(state, State::Blank);
    keeper.told(0, CONTROLLER, placed(request, 1, OTHER, &[], false));
    assert_eq!(orders(&mut keeper), []);
    keeper
}

/// Whether the content of a STORE is kept; the message is acknowledged in any case.
fn keeps(keeper: &mut Keeper, incarnation: u16, page: u64, epoch: Epoch) -> bool {
    keeper.told(1, OTHER, What::Store { incarnation, pages: 1, page, epoch });
    let orders = orders(keeper);
    let stored =
        Order::Tell { to: OTHER, what: What::Stored { incarnation, pages: 1, page, epoch }, bytes: Carried::Nothing };
    assert_eq!(orders.last(), Some(&stored), "{orders:?}");
    orders.len() == 2 && orders[0] == Order::Keep(page)
}

#[test]
fn a_blank_server_keeps_nothing_before_the_controller_knows() {
    let mut keeper = blank();
    let (request, _) = report(&mut keeper, 0);
    keeper.told(1, OTHER, What::Store { incarnation: 1, pages: 1, page: 0, epoch: 5 });
    assert_eq!(orders(&mut keeper), []);
    keeper.told(1, CONTROLLER, placed(request, 1, OTHER, &[ME], false));
    keeper.told(1, OTHER, What::Store { incarnation: 1, pages: 1, page: 0, epoch: 5 });
    assert_eq!(orders(&mut keeper), [], "somebody counts on what it had");
    let (request, _) = report(&mut keeper, 10 * MILLISECOND);
    keeper.told(11 * MILLISECOND, CONTROLLER, placed(request, 2, OTHER, &[], false));
    assert!(keeps(&mut keeper, 3, 0, epoch_of(3) + 1));
}

#[test]
fn a_home_changes_a_page_of_its_own_when_every_backup_has_it() {
    let mut keeper = blank();
    let (request, _) = report(&mut keeper, 0);
    keeper.told(0, CONTROLLER, placed(request, 1, ME, &[], true));
    assert_eq!((orders(&mut keeper), keeper.server().serves(1)), (vec![], true));
    keeper.change(1, PAGES);
    assert_eq!(orders(&mut keeper), [Order::Changed(PAGES, true)], "there is no backup");
    let (request, _) = report(&mut keeper, 17 * MILLISECOND);
    keeper.told(17 * MILLISECOND, CONTROLLER, placed(request, 2, ME, &[OTHER], false));
    orders(&mut keeper);
    keeper.change(17 * MILLISECOND, PAGES);
    let [
        Order::Tell {
            to: OTHER,
            what: What::Store { incarnation: 2, pages: 1, page: PAGES, epoch },
            bytes: Carried::Own,
        },
    ] = orders(&mut keeper)[..]
    else {
        panic!("it is told with the bytes that it shall have")
    };
    keeper.told(18 * MILLISECOND, OTHER, What::Stored { incarnation: 2, pages: 1, page: PAGES, epoch });
    assert!(orders(&mut keeper).contains(&Order::Changed(PAGES, true)));
    // Its home lease has ended: nothing happens, and no backup is told.
    keeper.change(200 * MILLISECOND, PAGES);
    let orders = orders(&mut keeper);
    assert_eq!(orders[0], Order::Changed(PAGES, false));
    assert!(!orders.iter().any(|order| matches!(order, Order::Tell { to: OTHER, .. })), "{orders:?}");
}

#[test]
fn what_a_page_held_before_its_object_was_made_is_not_kept() {
    let mut keeper = idle();
    let (before, since, after) = (epoch_of(2) + 1, epoch_of(2) + 5, epoch_of(2) + 6);
    assert!(keeper.is_zero_since(0, 2, since), "nothing was there");
    assert!(!keeps(&mut keeper, 2, 0, before), "it comes late, of an object that is gone");
    assert!(keeps(&mut keeper, 2, 0, after));
    assert!(!keeper.is_zero_since(0, 2, since), "what is there was committed in the new object");
    assert!(keeps(&mut keeper, 2, 1, before));
    assert!(keeper.is_zero_since(1, 2, since));
    assert!(!keeps(&mut keeper, 2, 1, before), "it comes again");
}

#[test]
fn what_the_next_home_has_is_kept_whatever_was_zero_before() {
    let mut keeper = idle();
    // The table arrives before the page, from a home that has both from its predecessor.
    let (committed, since) = (epoch_of(2) + 3, epoch_of(2) + 5);
    assert!(keeper.is_zero_since(0, 3, since));
    assert!(keeps(&mut keeper, 3, 0, committed), "this home says what the page is");
    // And after the page.
    assert!(keeps(&mut keeper, 3, 1, epoch_of(3) + 1));
    assert!(!keeper.is_zero_since(1, 3, since), "it was committed since");
}

/// Makes a client's request about a page, under an epoch.
fn asked(keeper: &mut Keeper, command: Command, page: u64, epoch: Epoch, request: u64) -> Vec<Decision> {
    let cluster = Cluster::new(1).expect("24 bits");
    let pointer = Pointer::new(cluster, Host(ME), 1, page * PAGE_BYTES).expect("an offset");
    let operation = if command == Command::Commit { Operation::Bytes(Extent::whole(8)) } else { Operation::Plain };
    let source = Source { cluster, host: Host(20), incarnation: Incarnation::new(1), request };
    let request = Request {
        source,
        destination: pointer.request(command, Arguments::NONE),
        tag_kind: TagKind::Checksum,
        is_once: false,
        is_release: command == Command::Commit,
        epoch,
        operation,
    };
    let staged = (command == Command::Commit).then_some(Staged { slot: 0, bytes: 8 });
    keeper.asked(2, Lease { request, staged });
    let decided = |order: Order| match order {
        Order::Server(Input::Decided(_, decision)) => Some(decision),
        _ => None,
    };
    orders(keeper).into_iter().filter_map(decided).collect()
}

#[test]
fn pages_that_get_a_keeper_of_their_own_take_what_is_known_of_them_along_and_back() {
    let mut keeper = blank();
    let (request, _) = report(&mut keeper, 0);
    keeper.told(0, CONTROLLER, placed(request, 1, ME, &[], true));
    orders(&mut keeper);
    let take = |keeper: &mut Keeper, page, request| match asked(keeper, Command::Update, page, 0, request)[..] {
        [Decision::Granted { epoch, .. }] => epoch,
        ref other => panic!("{other:?}"),
    };
    let (kept, committed) = (take(&mut keeper, 1, 1), take(&mut keeper, 2, 2));
    assert!(matches!(asked(&mut keeper, Command::Commit, 2, committed, 3)[..], [Decision::Done { .. }]));
    let part = Part { number: 0xf000, first: 1, pages: 2, since: 2 };
    let mut cut = keeper.cut(3, &part, 1);
    assert_eq!((orders(&mut keeper), orders(&mut cut)), (vec![], vec![]));
    // A commit that counted before is known, and a lease continues; pages are numbered from the part's first.
    assert!(matches!(asked(&mut cut, Command::Commit, 1, committed, 4)[..], [Decision::Counted { .. }]));
    assert!(matches!(asked(&mut cut, Command::Renew, 0, kept, 5)[..], [Decision::Granted { .. }]));
    let again = take(&mut cut, 1, 6);
    assert!(again > committed);
    assert!(matches!(asked(&mut cut, Command::Commit, 1, again, 7)[..], [Decision::Done { .. }]));
    keeper.join(4, &part, cut);
    assert_eq!(orders(&mut keeper), []);
    assert!(matches!(asked(&mut keeper, Command::Renew, 1, kept, 8)[..], [Decision::Granted { .. }]));
    assert!(matches!(asked(&mut keeper, Command::Commit, 2, again, 9)[..], [Decision::Counted { .. }]));
    // An earlier commit than the last does not count again, and its client is told the epoch of the last.
    let old = asked(&mut keeper, Command::Commit, 2, committed, 10);
    assert!(matches!(old[..], [Decision::Refused { status: Status::Fenced, epoch }] if epoch > 0), "{old:?}");
}

#[test]
fn who_gave_his_pages_up_has_nothing_and_says_so_when_he_is_asked() {
    let mut keeper = idle();
    assert!(keeps(&mut keeper, 3, 0, epoch_of(3) + 1));
    keeper.give_up(5);
    keeper.tick(200 * MILLISECOND);
    assert_eq!(orders(&mut keeper), [], "nobody asked");
    keeper.told(200 * MILLISECOND, OTHER, What::Store { incarnation: 3, pages: 1, page: 0, epoch: epoch_of(3) + 2 });
    assert_eq!(orders(&mut keeper), [], "it is not kept");
    keeper.ask(201 * MILLISECOND);
    assert_eq!(report(&mut keeper, 201 * MILLISECOND).1, State::Blank);
}
