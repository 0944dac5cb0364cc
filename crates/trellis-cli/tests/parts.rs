//! Pages of a range that have a home of their own: they move to another server, die with it or outlive it, and come
//! back, while clients work on both sides of their borders. In labs that are made without root rights, with the real
//! processes.

#[path = "support/fabric.rs"]
mod inside;
#[path = "support/rack.rs"]
mod rack;

use std::sync::Arc;
use std::time::{Duration, Instant};

use inside::{LONG, client, good, in_a_lab_of, leased, number, written};
use rack::{Ends, Ledger, Nothing, PAGE, Rack, SHORT, Times, at, page_of};
use serde_json::Value;
use trellis::remote::{Call, Pointer, RemoteError};
use trellis_base::Random;
use trellis_switch::lab::Lab;

/// Rights last long: a busy machine loses none of them.
const STEADY: Times = Times { lease_term: Duration::from_secs(20), home_lease: Duration::from_secs(3) };
/// The number of pages of each of two objects, unless a test chooses another.
const PAGES: usize = 64;
/// The number of requests between two events.
const SOME: u64 = 200;

/// Page routes are in the kernel here: the rack's other tests use the switch `user`.
const SWITCH: &str = "nft";

/// Runs a test with three clients, the last of which has the controller, and these servers, each the home of its own
/// range.
fn in_a_rack(test: &str, servers: &[&'static str], backups: u16, times: Times, body: impl FnOnce(Rack)) {
    in_a_lab_of(SWITCH, test, 3, servers.len() as u16, |lab| body(rack_in(lab, servers, backups, times)));
}

/// Makes such a rack in a lab.
fn rack_in(lab: Lab, servers: &[&'static str], backups: u16, times: Times) -> Rack {
    let mut rack = Rack::new(lab, times, "32MiB");
    rack.control(backups);
    servers.iter().for_each(|host| rack.serve(host));
    servers.iter().for_each(|host| rack.is_at(host, host, usize::from(backups)));
    rack
}

/// The parts of a range in the controller's status, in their order.
fn parts(rack: &Rack, of: &str) -> Vec<Value> {
    let (status, of) = (rack.status(), number(&rack.lab, of).0);
    let ranges = status["ranges"].as_array().expect("a list");
    let mut parts: Vec<Value> = ranges.iter().filter(|it| it["within"]["range"] == of).cloned().collect();
    parts.sort_by_key(|part| part["within"]["first"].as_u64());
    parts
}

/// Returns when the parts of a range in the controller's status satisfy a condition.
fn wait_for_parts(rack: &Rack, of: &str, is_so: impl Fn(&[Value]) -> bool) {
    let deadline = Instant::now() + LONG;
    loop {
        let parts = parts(rack, of);
        if is_so(&parts) {
            return;
        }
        assert!(Instant::now() < deadline, "the parts of {of}: {parts:#?}");
    }
}

/// Moves pages of the range of a host to another one, and returns when they are served there with this many complete
/// copies.
fn move_pages(rack: &Rack, of: &str, pages: std::ops::RangeInclusive<u64>, to: &str, backups: usize) {
    let [range, host] = [of, to].map(|host| number(&rack.lab, host).0);
    let run = format!("{}-{}", pages.start(), pages.end());
    rack.ask_until_it_can_be(&["move", &written(range), &written(host), "--pages", &run]);
    let began = Instant::now();
    wait_for_parts(rack, of, |parts| {
        parts.iter().any(|part| {
            let complete = part["complete"].as_array().map(Vec::len);
            part["within"]["first"] == *pages.start() && part["home"] == host && complete == Some(backups)
        })
    });
    println!("pages {run} of {of} are at {to} after {:?}", began.elapsed());
}

/// Adjacent objects of a range, and the page range from the middle of the first to the middle of the last.
struct Objects {
    /// Its pages are written and read.
    written: Pointer,
    /// Eight bytes for additions.
    counter: Pointer,
    /// Its pages are incremented under leases.
    raised: Pointer,
    pages: usize,
}

impl Objects {
    fn new(rack: &Rack, of: &str, pages: usize) -> Objects {
        let (home, mut client) = (number(&rack.lab, of), client(&rack.lab, "c1", LONG));
        let mut object = |bytes: usize| good(client.create(home, bytes as u64));
        let [written, counter, raised] = [pages * PAGE, 8, pages * PAGE].map(&mut object);
        assert_eq!([counter.page() - written.page(), raised.page() - counter.page()], [pages as u64, 1]);
        Objects { written, counter, raised, pages }
    }

    /// The pages from the middle of the first object to that of the last.
    fn middle(&self) -> std::ops::RangeInclusive<u64> {
        let half = self.pages as u64 / 2;
        self.written.page() + half..=self.raised.page() + half
    }
}

/// All kinds of client work go on while something happens; then everything that was acknowledged is there, once.
fn worked_while(rack: &mut Rack, objects: &Objects, happens: impl FnOnce(&mut Rack, &Ledger)) {
    let (written, raised) = (Ledger::new(objects.pages), Ledger::new(objects.pages));
    let mut clients = ["c1", "c1", "c2", "c2"].map(|host| client(&rack.lab, host, LONG));
    let processes = ["c1", "c2"].map(|host| leased(&rack.lab, host, &[objects.raised], Arc::new(Nothing)));
    let [reads_written, reads_raised, writes, adds] = &mut clients;
    let added = std::thread::scope(|scope| {
        let ends = [Ends(&written), Ends(&raised)];
        let (written, raised) = (&written, &raised);
        scope.spawn(move || {
            let _ends = [Ends(written), Ends(raised)];
            written.read(reads_written, objects.written, 1);
        });
        scope.spawn(move || {
            let _ends = [Ends(written), Ends(raised)];
            raised.read(reads_raised, objects.raised, 2);
        });
        scope.spawn(move || {
            let _ends = [Ends(written), Ends(raised)];
            written.write(writes, objects.written, 3);
        });
        let adding = scope.spawn(move || {
            let _ends = [Ends(written), Ends(raised)];
            written.add(adds, objects.counter)
        });
        for (leased, seed) in processes.iter().zip(4..) {
            scope.spawn(move || {
                let _ends = [Ends(written), Ends(raised)];
                println!("process {seed}: {} commits came too late", raised.raise_under_leases(leased, seed));
            });
        }
        let both = || {
            written.wait_for(SOME);
            raised.wait_for(SOME);
        };
        both();
        happens(rack, written);
        both();
        drop(ends);
        adding.join().expect("each addition is done once")
    });
    let slowest = written.slowest().max(raised.slowest());
    println!("{} calls, the slowest took {slowest:?}", written.done() + raised.done());
    let mut client = client(&rack.lab, "c1", LONG);
    written.compare(&mut client, objects.written);
    raised.compare(&mut client, objects.raised);
    assert_eq!(good(client.fetch_add(objects.counter, 0)), added);
}

/// The page of a counter moves to another server and comes back, while clients work.
fn a_page_goes_and_comes_back(mut rack: Rack) {
    let objects = Objects::new(&rack, "s1", 2);
    let page = objects.counter.page();
    worked_while(&mut rack, &objects, |rack, ledger| {
        move_pages(rack, "s1", page..=page, "s2", 0);
        ledger.wait_for(SOME);
        rack.ask_until_it_can_be(&[
            "move",
            &written(number(&rack.lab, "s1").0),
            &written(number(&rack.lab, "s1").0),
            "--pages",
            &page.to_string(),
        ]);
        wait_for_parts(rack, "s1", <[Value]>::is_empty);
    });
    assert_eq!(rack.range("s1")["home"], number(&rack.lab, "s1").0);
}

#[test]
fn a_page_goes_to_another_server_and_comes_back_while_clients_work() {
    const TEST: &str = "a_page_goes_to_another_server_and_comes_back_while_clients_work";
    in_a_rack(TEST, &["s1", "s2"], 0, STEADY, a_page_goes_and_comes_back);
}

#[test]
fn a_page_goes_and_comes_back_where_the_switch_is_a_process() {
    const TEST: &str = "a_page_goes_and_comes_back_where_the_switch_is_a_process";
    in_a_lab_of("user", TEST, 3, 2, |lab| a_page_goes_and_comes_back(rack_in(lab, &["s1", "s2"], 0, STEADY)));
}

#[cfg(feature = "openflow")]
#[test]
fn a_page_goes_and_comes_back_through_open_vswitch() {
    const TEST: &str = "a_page_goes_and_comes_back_through_open_vswitch";
    inside::in_a_lab_of_root("openflow", TEST, 3, 2, |lab| {
        a_page_goes_and_comes_back(rack_in(lab, &["s1", "s2"], 0, STEADY))
    });
}

#[cfg(feature = "bpf")]
#[test]
fn a_page_goes_and_comes_back_through_a_program() {
    const TEST: &str = "a_page_goes_and_comes_back_through_a_program";
    inside::in_a_lab_of_root("bpf", TEST, 3, 2, |lab| {
        a_page_goes_and_comes_back(rack_in(lab, &["s1", "s2"], 0, STEADY))
    });
}

#[test]
fn a_thousand_pages_go_to_another_server_while_clients_work() {
    const TEST: &str = "a_thousand_pages_go_to_another_server_while_clients_work";
    in_a_rack(TEST, &["s1", "s2"], 0, STEADY, |mut rack| {
        let objects = Objects::new(&rack, "s1", 1000);
        worked_while(&mut rack, &objects, |rack, _| move_pages(rack, "s1", objects.middle(), "s2", 0));
        // They are nowhere else.
        rack.kill("s2");
        let mut hasty = client(&rack.lab, "c1", Duration::from_secs(3));
        let mut bytes = vec![0; PAGE];
        let error = hasty.read(objects.counter, &mut bytes[..8]).expect_err("nobody has it").to_string();
        assert!(error.contains(":1001:"), "{error}");
        good(hasty.read(objects.written, &mut bytes));
    });
}

#[test]
fn the_home_of_a_part_dies_and_nothing_acknowledged_is_lost() {
    const TEST: &str = "the_home_of_a_part_dies_and_nothing_acknowledged_is_lost";
    in_a_rack(TEST, &["s1", "s2", "s3"], 1, SHORT, |mut rack| {
        let objects = Objects::new(&rack, "s1", PAGES);
        let elsewhere =
            ["s2", "s3"].into_iter().find(|host| rack.range("s1")["backups"][0] != number(&rack.lab, host).0);
        let elsewhere = elsewhere.expect("one of them has no copy");
        worked_while(&mut rack, &objects, |rack, ledger| {
            move_pages(rack, "s1", objects.middle(), elsewhere, 1);
            ledger.wait_for(SOME);
            rack.kill(elsewhere);
            let dead = number(&rack.lab, elsewhere).0;
            wait_for_parts(rack, "s1", |parts| {
                parts.iter().all(|part| part["home"] != dead && part["is_served"] == true)
            });
        });
    });
}

#[test]
fn a_range_moves_and_fails_over_while_a_part_of_it_is_elsewhere() {
    const TEST: &str = "a_range_moves_and_fails_over_while_a_part_of_it_is_elsewhere";
    in_a_rack(TEST, &["s1", "s2", "s3"], 1, SHORT, |mut rack| {
        let objects = Objects::new(&rack, "s1", PAGES);
        worked_while(&mut rack, &objects, |rack, ledger| {
            move_pages(rack, "s1", objects.middle(), "s3", 1);
            ledger.wait_for(SOME);
            let [range, to] = ["s1", "s2"].map(|host| written(number(&rack.lab, host).0));
            rack.ask_until_it_can_be(&["move", &range, &to]);
            rack.is_at("s1", "s2", 1);
            ledger.wait_for(SOME);
            rack.kill("s2");
            rack.has("s1", 1);
        });
    });
}

#[test]
fn pages_come_home_and_are_the_ranges_again_while_clients_work() {
    const TEST: &str = "pages_come_home_and_are_the_ranges_again_while_clients_work";
    in_a_rack(TEST, &["s1", "s2", "s3"], 1, STEADY, |mut rack| {
        let objects = Objects::new(&rack, "s1", PAGES);
        let [home, run] =
            [written(number(&rack.lab, "s1").0), format!("{}-{}", objects.middle().start(), objects.middle().end())];
        worked_while(&mut rack, &objects, |rack, ledger| {
            for _ in 0..2 {
                move_pages(rack, "s1", objects.middle(), "s3", 1);
                ledger.wait_for(SOME);
                rack.ask_until_it_can_be(&["move", &home, &home, "--pages", &run]);
                wait_for_parts(rack, "s1", <[Value]>::is_empty);
                ledger.wait_for(SOME);
            }
        });
        rack.is_at("s1", "s1", 1);
    });
}

#[test]
fn an_object_with_pages_elsewhere_is_deleted_as_any() {
    in_a_rack("an_object_with_pages_elsewhere_is_deleted_as_any", &["s1", "s2"], 0, STEADY, |rack| {
        let mut client = client(&rack.lab, "c1", LONG);
        let home = number(&rack.lab, "s1");
        let [object, beside] = [40 * PAGE, PAGE].map(|bytes| good(client.create_with(home, &vec![7; bytes])));
        let (first, last) = (object.page() + 10, object.page() + 60);
        move_pages(&rack, "s1", first..=last, "s2", 0);
        // It is placed behind the pages that are elsewhere.
        let other = good(client.create(home, PAGE as u64));
        assert!(other.page() > last, "{other}");
        assert_eq!(good(client.inquire(at(object, 20))), (object, 40 * PAGE as u64));
        let began = Instant::now();
        good(client.delete(object));
        println!("deleted after {:?}", began.elapsed());
        let mut bytes = vec![1; PAGE];
        for page in [0, 9, 10, 39] {
            let error = client.read(at(object, page), &mut bytes).expect_err("it is gone");
            assert!(matches!(error, RemoteError::Refused { .. }), "{error}");
        }
        good(client.read(beside, &mut bytes));
        assert!(bytes.iter().all(|byte| *byte == 7), "what is beside it is as it was");
        let again = good(client.create(home, 40 * PAGE as u64));
        let mut zeros = vec![1; 40 * PAGE];
        good(client.read(again, &mut zeros));
        assert!(zeros.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn bytes_on_both_sides_of_a_border_are_one_object() {
    in_a_rack("bytes_on_both_sides_of_a_border_are_one_object", &["s1", "s2"], 0, STEADY, |rack| {
        let mut client = client(&rack.lab, "c1", LONG);
        let text: Vec<u8> = (0..20 * PAGE).map(|at| ((at * 7) >> 4) as u8).collect();
        let object = good(client.create_with(number(&rack.lab, "s1"), &text));
        move_pages(&rack, "s1", object.page() + 5..=object.page() + 9, "s2", 0);
        let inside = |offset: usize| object.plus(offset as u64).expect("it is inside");
        let mut bytes = vec![0; text.len() - 77];
        good(client.read(inside(77), &mut bytes));
        assert!(bytes == text[77..]);
        // Across each border, and over the whole part.
        for (offset, length) in [(5 * PAGE - 10, 20), (10 * PAGE - 3, 7), (4 * PAGE + 9, 7 * PAGE)] {
            let new: Vec<u8> = (0..length).map(|at| (at * 13) as u8).collect();
            good(client.write(inside(offset), &new));
            let (mut here, mut whole) = (vec![0; length], vec![0; length + 2 * PAGE]);
            let ends = client.batch(&mut [
                Call::Read { pointer: inside(offset), bytes: &mut here },
                Call::Read { pointer: inside(offset - PAGE), bytes: &mut whole },
            ]);
            assert!(ends.iter().all(Result::is_ok), "{ends:?}");
            assert!(here == new && whole[PAGE..PAGE + length] == new);
        }
        let error =
            client.write_whole(inside(5 * PAGE - 10), &[1; 20]).expect_err("two places are not changed in one step");
        assert!(matches!(error, RemoteError::SeveralPages { bytes: 20, .. }), "{error}");
        good(client.write_whole(inside(5 * PAGE), &page_of(3)));
        assert_eq!(good(client.fetch_add(inside(6 * PAGE), 0)), good(client.fetch_add(inside(6 * PAGE), 1)));
        let error = client.read(inside(19 * PAGE), &mut [0; 2 * PAGE]).expect_err("it ends before");
        assert!(matches!(error, RemoteError::Refused { .. }), "{error}");
    });
}

#[test]
fn a_switch_that_starts_again_is_told_where_parts_are() {
    in_a_rack("a_switch_that_starts_again_is_told_where_parts_are", &["s1", "s2"], 0, STEADY, |mut rack| {
        let objects = Objects::new(&rack, "s1", PAGES);
        worked_while(&mut rack, &objects, |rack, ledger| {
            move_pages(rack, "s1", objects.middle(), "s2", 0);
            ledger.wait_for(SOME);
            rack.lab.restart_switch().unwrap();
            ledger.wait_for(SOME);
        });
        assert_eq!(parts(&rack, "s1").len(), 1);
    });
}

#[test]
fn a_controller_that_starts_again_knows_the_parts() {
    in_a_rack("a_controller_that_starts_again_knows_the_parts", &["s1", "s2", "s3"], 1, STEADY, |mut rack| {
        let objects = Objects::new(&rack, "s1", PAGES);
        worked_while(&mut rack, &objects, |rack, ledger| {
            move_pages(rack, "s1", objects.middle(), "s3", 1);
            let before = parts(rack, "s1");
            rack.kill(rack::CONTROLLER);
            ledger.wait_for(SOME);
            rack.control(1);
            ledger.wait_for(SOME);
            wait_for_parts(rack, "s1", |parts| parts.iter().all(|part| part["is_served"] == true));
            let now = parts(rack, "s1");
            for what in ["home", "incarnation", "within", "pages"] {
                assert_eq!(before[0][what], now[0][what], "{what} is as it was");
            }
        });
    });
}

/// The memory that a server still has for the ranges of others.
fn spare_bytes(rack: &Rack, host: &str) -> u64 {
    let (status, number) = (rack.status(), number(&rack.lab, host).0);
    let servers = status["servers"].as_array().expect("a list");
    let server = servers.iter().find(|server| server["host"] == number).expect("it is there");
    server["spare_bytes"].as_u64().expect("a number")
}

#[test]
fn what_nobody_counts_on_is_forgotten_and_its_room_is_given_again() {
    const TEST: &str = "what_nobody_counts_on_is_forgotten_and_its_room_is_given_again";
    in_a_rack(TEST, &["s1", "s2"], 0, SHORT, |rack| {
        let before = spare_bytes(&rack, "s2");
        let mut client = client(&rack.lab, "c1", LONG);
        let text: Vec<u8> = (0..8 * PAGE).map(|at| ((at * 7) >> 4) as u8).collect();
        let object = good(client.create_with(number(&rack.lab, "s1"), &text));
        let [home, other] = ["s1", "s2"].map(|host| written(number(&rack.lab, host).0));
        // Some pages move away and come back; then the whole range does.
        move_pages(&rack, "s1", object.page() + 2..=object.page() + 5, "s2", 0);
        rack.ask_until_it_can_be(&[
            "move",
            &home,
            &home,
            "--pages",
            &format!("{}-{}", object.page() + 2, object.page() + 5),
        ]);
        wait_for_parts(&rack, "s1", <[Value]>::is_empty);
        rack.ask_until_it_can_be(&["move", &home, &other]);
        rack.is_at("s1", "s2", 0);
        rack.ask_until_it_can_be(&["move", &home, &home]);
        rack.is_at("s1", "s1", 0);
        let is_forgotten = || rack.has_said("s2", "is forgotten here, because nobody counts on it");
        assert!(spare_bytes(&rack, "s2") < before || is_forgotten(), "it may be needed again soon");
        let deadline = Instant::now() + LONG;
        while spare_bytes(&rack, "s2") != before {
            assert!(Instant::now() < deadline, "of {before} bytes {} are spare", spare_bytes(&rack, "s2"));
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(is_forgotten());
        let mut bytes = vec![0; text.len()];
        good(client.read(object, &mut bytes));
        assert!(bytes == text);
        // They come again as to a server that never had them.
        move_pages(&rack, "s1", object.page() + 2..=object.page() + 5, "s2", 0);
        good(client.read(object, &mut bytes));
        assert!(bytes == text);
    });
}

#[test]
fn objects_are_made_and_deleted_while_pages_go_and_come() {
    in_a_rack("objects_are_made_and_deleted_while_pages_go_and_come", &["s1", "s2", "s3"], 1, SHORT, |rack| {
        let home = number(&rack.lab, "s1");
        let mut clients = ["c1", "c2"].map(|host| client(&rack.lab, host, LONG));
        let (ledger, [range, to]) = (Ledger::new(1), ["s1", "s3"].map(|host| written(number(&rack.lab, host).0)));
        std::thread::scope(|scope| {
            let ends = Ends(&ledger);
            for (client, seed) in clients.iter_mut().zip(1_u8..) {
                let ledger = &ledger;
                scope.spawn(move || {
                    let _ends = Ends(ledger);
                    let (mut random, mut count) = (Random::new(seed.into()), 0_u8);
                    while !ledger.is_over() {
                        count = count.wrapping_add(1);
                        let text = vec![count ^ seed << 6; (1 + random.index(5)) * PAGE - 9];
                        let object = ledger.time(|| good(client.create_with(home, &text)));
                        let mut bytes = vec![0; text.len()];
                        good(client.read(object, &mut bytes));
                        assert!(bytes == text, "{object} is what was put into it");
                        ledger.time(|| good(client.delete(object)));
                        let error = client.read(object, &mut bytes).expect_err("it is gone");
                        assert!(matches!(error, RemoteError::Refused { .. }), "{error}");
                    }
                });
            }
            for _ in 0..6 {
                ledger.wait_for(20);
                // A DELETE recalls its pages to their home, so they may be there before this request.
                rack.ask_until_it_can_be(&["move", &range, &to, "--pages", "2-11"]);
                ledger.wait_for(20);
                rack.try_to_ask(&["move", &range, &range, "--pages", "2-11"]);
                wait_for_parts(&rack, "s1", <[Value]>::is_empty);
            }
            drop(ends);
        });
        println!("{} objects were made or deleted, the slowest took {:?}", ledger.done(), ledger.slowest());
    });
}
