//! A lease server that a controller places: what it reports as a blank server, as a home with pages of its own, and as
//! a backup whose pages no longer belong to an object.

use trellis_fabric_protocol::lease::parts::Part;
use trellis_fabric_protocol::lease::server::RangeServer;
use trellis_fabric_protocol::lease::{Epoch, Party, Placement, RangeNumber, State, Timing, epoch_of};
use trellis_fabric_protocol::memory_server::{Decision, Input, Lease, LeaseServer, Order, Payload, Range, Staged};
use trellis_fabric_protocol::wire::address::{Arguments, Cluster, Host, Incarnation, PAGE_BYTES, Pointer, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::control::What;
use trellis_fabric_protocol::wire::datagram::{Extent, Operation, Request, Status, TagKind};

const ME: Host = Host(7);
const OTHER: Host = Host(8);
const CONTROLLER: Host = Host(200);
const PAGES: u64 = 4;
const BOOT_ID: u16 = 99;
const MILLISECOND: u64 = 1_000_000;

/// A server that starts without memory: four pages for clients and one of its own.
fn blank() -> LeaseServer {
    let timing = Timing::new(100 * MILLISECOND, 50 * MILLISECOND, 2 * MILLISECOND, 1000);
    let server =
        RangeServer::new(ME, Party::of(CONTROLLER), PAGES + 1, timing, BOOT_ID, ME).restarted(0, BOOT_ID, None);
    let cluster = Cluster::new(1).expect("24 bits");
    let mut lease_server =
        LeaseServer::of(Range { cluster, of: RangeNumber::of(ME), me: ME, pages: PAGES + 1 }, server, 0);
    lease_server.set_pages(PAGES + 1, 1);
    lease_server
}

fn orders(lease_server: &mut LeaseServer) -> Vec<Order> {
    std::iter::from_fn(|| lease_server.next_order()).collect()
}

/// The report that is due: its number, and the state it names.
fn report(lease_server: &mut LeaseServer, now: u64) -> (u64, State) {
    lease_server.tick(now);
    match &orders(lease_server)[..] {
        [Order::Send { to: CONTROLLER, what: What::Report { request, boot_id: BOOT_ID, state, .. }, .. }] => {
            (*request, *state)
        }
        other => panic!("{other:?}"),
    }
}

fn placed(request: u64, incarnation: u16, home: Host, backups: &[Host], begins_empty: bool) -> What {
    let (backups, parts) = (backups.to_vec(), Vec::new());
    let placement = Placement { incarnation, home, backups, hand_to: None, begins_empty, is_unserved: false, parts };
    What::Placed { request, boot_id: BOOT_ID, placement, call: 0, pages: PAGES, within: None }
}

/// A server without a role, which a home may tell to keep pages.
fn idle() -> LeaseServer {
    let mut lease_server = blank();
    let (request, state) = report(&mut lease_server, 0);
    assert_eq!(state, State::Blank);
    lease_server.control(0, CONTROLLER, placed(request, 1, OTHER, &[], false));
    assert_eq!(orders(&mut lease_server), []);
    lease_server
}

/// Whether the content of a STORE is kept; the message is acknowledged in any case.
fn keeps(lease_server: &mut LeaseServer, incarnation: u16, page: u64, epoch: Epoch) -> bool {
    lease_server.control(1, OTHER, What::Store { incarnation, pages: 1, page, epoch });
    let orders = orders(lease_server);
    let stored =
        Order::Send { to: OTHER, what: What::Stored { incarnation, pages: 1, page, epoch }, bytes: Payload::Nothing };
    assert_eq!(orders.last(), Some(&stored), "{orders:?}");
    orders.len() == 2 && orders[0] == Order::Keep(page)
}

#[test]
fn a_blank_server_keeps_nothing_before_the_controller_knows() {
    let mut lease_server = blank();
    let (request, _) = report(&mut lease_server, 0);
    lease_server.control(1, OTHER, What::Store { incarnation: 1, pages: 1, page: 0, epoch: 5 });
    assert_eq!(orders(&mut lease_server), []);
    lease_server.control(1, CONTROLLER, placed(request, 1, OTHER, &[ME], false));
    lease_server.control(1, OTHER, What::Store { incarnation: 1, pages: 1, page: 0, epoch: 5 });
    assert_eq!(orders(&mut lease_server), [], "somebody counts on what it had");
    let (request, _) = report(&mut lease_server, 10 * MILLISECOND);
    lease_server.control(11 * MILLISECOND, CONTROLLER, placed(request, 2, OTHER, &[], false));
    assert!(keeps(&mut lease_server, 3, 0, epoch_of(3) + 1));
}

#[test]
fn a_home_changes_a_page_of_its_own_when_every_backup_has_it() {
    let mut lease_server = blank();
    let (request, _) = report(&mut lease_server, 0);
    lease_server.control(0, CONTROLLER, placed(request, 1, ME, &[], true));
    assert_eq!((orders(&mut lease_server), lease_server.server().serves(1)), (vec![], true));
    lease_server.change(1, PAGES);
    assert_eq!(orders(&mut lease_server), [Order::Changed(PAGES, true)], "there is no backup");
    let (request, _) = report(&mut lease_server, 17 * MILLISECOND);
    lease_server.control(17 * MILLISECOND, CONTROLLER, placed(request, 2, ME, &[OTHER], false));
    orders(&mut lease_server);
    lease_server.change(17 * MILLISECOND, PAGES);
    let [
        Order::Send {
            to: OTHER,
            what: What::Store { incarnation: 2, pages: 1, page: PAGES, epoch },
            bytes: Payload::Own,
        },
    ] = orders(&mut lease_server)[..]
    else {
        panic!("it is told with the bytes that it shall have")
    };
    lease_server.control(18 * MILLISECOND, OTHER, What::Stored { incarnation: 2, pages: 1, page: PAGES, epoch });
    assert!(orders(&mut lease_server).contains(&Order::Changed(PAGES, true)));
    // Its home lease has ended: nothing happens, and no backup is told.
    lease_server.change(200 * MILLISECOND, PAGES);
    let orders = orders(&mut lease_server);
    assert_eq!(orders[0], Order::Changed(PAGES, false));
    assert!(!orders.iter().any(|order| matches!(order, Order::Send { to: OTHER, .. })), "{orders:?}");
}

#[test]
fn what_a_page_held_before_its_object_was_made_is_not_kept() {
    let mut lease_server = idle();
    let (before, since, after) = (epoch_of(2) + 1, epoch_of(2) + 5, epoch_of(2) + 6);
    assert!(lease_server.is_zero_since(0, 2, since), "nothing was there");
    assert!(!keeps(&mut lease_server, 2, 0, before), "it comes late, of an object that is gone");
    assert!(keeps(&mut lease_server, 2, 0, after));
    assert!(!lease_server.is_zero_since(0, 2, since), "what is there was committed in the new object");
    assert!(keeps(&mut lease_server, 2, 1, before));
    assert!(lease_server.is_zero_since(1, 2, since));
    assert!(!keeps(&mut lease_server, 2, 1, before), "it comes again");
}

#[test]
fn what_the_next_home_has_is_kept_whatever_was_zero_before() {
    let mut lease_server = idle();
    // The table arrives before the page, from a home that has both from its predecessor.
    let (committed, since) = (epoch_of(2) + 3, epoch_of(2) + 5);
    assert!(lease_server.is_zero_since(0, 3, since));
    assert!(keeps(&mut lease_server, 3, 0, committed), "this home says what the page is");
    // And after the page.
    assert!(keeps(&mut lease_server, 3, 1, epoch_of(3) + 1));
    assert!(!lease_server.is_zero_since(1, 3, since), "it was committed since");
}

/// Makes a client's request about a page, under an epoch.
fn asked(lease_server: &mut LeaseServer, command: Command, page: u64, epoch: Epoch, request: u64) -> Vec<Decision> {
    let cluster = Cluster::new(1).expect("24 bits");
    let pointer = Pointer::new(cluster, ME, 1, page * PAGE_BYTES).expect("an offset");
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
    lease_server.asked(2, Lease { request, staged });
    let decided = |order: Order| match order {
        Order::Server(Input::Decided(_, decision)) => Some(decision),
        _ => None,
    };
    orders(lease_server).into_iter().filter_map(decided).collect()
}

#[test]
fn pages_that_get_a_lease_server_of_their_own_take_what_is_known_of_them_along_and_back() {
    let mut lease_server = blank();
    let (request, _) = report(&mut lease_server, 0);
    lease_server.control(0, CONTROLLER, placed(request, 1, ME, &[], true));
    orders(&mut lease_server);
    let take = |lease_server: &mut LeaseServer, page, request| match asked(
        lease_server,
        Command::Update,
        page,
        0,
        request,
    )[..]
    {
        [Decision::Granted { epoch, .. }] => epoch,
        ref other => panic!("{other:?}"),
    };
    let (kept, committed) = (take(&mut lease_server, 1, 1), take(&mut lease_server, 2, 2));
    assert!(matches!(asked(&mut lease_server, Command::Commit, 2, committed, 3)[..], [Decision::Done { .. }]));
    let part = Part { number: RangeNumber(0xf000), first: 1, pages: 2, since: 2 };
    let mut split = lease_server.split(3, &part, 1);
    assert_eq!((orders(&mut lease_server), orders(&mut split)), (vec![], vec![]));
    // A commit that counted before is known, and a lease continues; pages are numbered from the part's first.
    assert!(matches!(asked(&mut split, Command::Commit, 1, committed, 4)[..], [Decision::Counted { .. }]));
    assert!(matches!(asked(&mut split, Command::Renew, 0, kept, 5)[..], [Decision::Granted { .. }]));
    let again = take(&mut split, 1, 6);
    assert!(again > committed);
    assert!(matches!(asked(&mut split, Command::Commit, 1, again, 7)[..], [Decision::Done { .. }]));
    lease_server.merge(4, &part, split);
    assert_eq!(orders(&mut lease_server), []);
    assert!(matches!(asked(&mut lease_server, Command::Renew, 1, kept, 8)[..], [Decision::Granted { .. }]));
    assert!(matches!(asked(&mut lease_server, Command::Commit, 2, again, 9)[..], [Decision::Counted { .. }]));
    // An earlier commit than the last does not count again, and its client is told the epoch of the last.
    let old = asked(&mut lease_server, Command::Commit, 2, committed, 10);
    assert!(matches!(old[..], [Decision::Refused { status: Status::Fenced, epoch }] if epoch > 0), "{old:?}");
}

#[test]
fn who_gave_his_pages_up_has_nothing_and_says_so_when_he_is_asked() {
    let mut lease_server = idle();
    assert!(keeps(&mut lease_server, 3, 0, epoch_of(3) + 1));
    lease_server.give_up(5);
    lease_server.tick(200 * MILLISECOND);
    assert_eq!(orders(&mut lease_server), [], "nobody asked");
    lease_server.control(
        200 * MILLISECOND,
        OTHER,
        What::Store { incarnation: 3, pages: 1, page: 0, epoch: epoch_of(3) + 2 },
    );
    assert_eq!(orders(&mut lease_server), [], "it is not kept");
    lease_server.ask(201 * MILLISECOND);
    assert_eq!(report(&mut lease_server, 201 * MILLISECOND).1, State::Blank);
}
