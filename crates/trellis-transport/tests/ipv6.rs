//! The link `ipv6` in its own networks.
//! In one, every address of a cluster is this host's; in the other, two hosts reach each other through one next hop.

#![cfg(target_os = "linux")]

#[path = "support/network.rs"]
mod network;

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use network::{ALONE, enter_own_network, in_own_network, ip, plug_in};
use trellis_transport::links::ipv6::{Address, Arrived, Ask, Endpoint, Exchange, NoAnswer, Timing, Verdict, Way};

const PORT: u16 = 5000;
const SOURCE: [u8; 8] = [0xfd, 1, 2, 3, 0, 9, 0x80, 1];

/// An address of a host of the cluster.
fn address(host: u16, rest: u64) -> Address {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&[0xfd, 1, 2, 3]);
    address[4..6].copy_from_slice(&host.to_be_bytes());
    address[8..].copy_from_slice(&rest.to_be_bytes());
    address
}

/// Answers everything with its address and content, as often as `times` returns for the count of datagrams.
struct EchoServer {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl EchoServer {
    fn start(times: impl Fn(u64) -> u32 + Send + 'static) -> EchoServer {
        EchoServer::start_where(|| {}, times)
    }

    /// Starts it in the network that `enter` gives to its thread.
    fn start_where(enter: impl FnOnce() + Send + 'static, times: impl Fn(u64) -> u32 + Send + 'static) -> EchoServer {
        let is_over = Arc::new(AtomicBool::new(false));
        let (says_ready, ready) = std::sync::mpsc::channel();
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            enter();
            let endpoint = Endpoint::open(PORT).expect("the port of an own network is free");
            says_ready.send(()).expect("it is waited for");
            let (mut room, mut came) = (vec![0; 64 << 10], 0);
            while !ends.load(Ordering::Relaxed) {
                let Some(arrived) = endpoint.receive(&mut room).expect("it is open") else {
                    endpoint.wait(Duration::from_millis(20));
                    continue;
                };
                for _ in 0..times(came) {
                    let parts = [&arrived.destination[..], &room[..arrived.bytes]];
                    assert!(endpoint.send(&arrived.back(), &parts).expect("it came from there"));
                }
                came += 1;
            }
            came
        });
        ready.recv().expect("the server starts");
        EchoServer { is_over, thread: Some(thread) }
    }

    /// Stops it; returns how many datagrams arrived.
    fn stop(mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().expect("it runs").join().expect("it ended well")
    }
}

fn exchange() -> Exchange {
    Exchange::new(Endpoint::open(0).expect("some port is free"), SOURCE, PORT, 1, Timing::default())
}

/// Asks about each address; every answer must match its question.
fn ask_all(exchange: &mut Exchange, about: &[Address], within: Duration) -> Result<(), NoAnswer> {
    let payloads: Vec<[u8; 8]> = (0..about.len() as u64).map(u64::to_le_bytes).collect();
    let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [&payload[..]]).collect();
    let asks: Vec<Ask<'_>> =
        about.iter().zip(&parts).map(|(to, parts)| Ask { to: *to, parts, is_more: false }).collect();
    let first = exchange.numbers(asks.len());
    let sources: Vec<Address> = (0..asks.len() as u64).map(|place| exchange.source(first + place)).collect();
    let mut answered = vec![0; asks.len()];
    let mut check = |place: usize, arrived: &Arrived, payload: &[u8]| {
        assert_eq!((arrived.source, arrived.destination), (about[place], sources[place]));
        assert_eq!(payload, [&about[place][..], &payloads[place]].concat());
        answered[place] += 1;
        Verdict::Accepted
    };
    let silent = exchange.ask(first, &asks, Instant::now() + within, &mut check);
    if let Some((_, error)) = silent.into_iter().next() {
        return Err(error);
    }
    assert!(answered.iter().all(|times| *times == 1), "every question has one answer");
    Ok(())
}

#[test]
fn ten_thousand_addresses_are_asked_through_one_next_hop() {
    let test = "ten_thousand_addresses_are_asked_through_one_next_hop";
    in_own_network(test, &[], || {
        let (says_thread, thread) = std::sync::mpsc::channel();
        let (says_plugged, plugged) = std::sync::mpsc::channel::<()>();
        let cable = std::thread::spawn({
            // The new network's cable is made from this thread's network.
            let network = std::fs::File::open("/proc/thread-self/ns/net").expect("there is /proc");
            move || {
                let tid: i32 = thread.recv().expect("the server's thread says its number");
                // SAFETY: no pointers are passed; this thread ends soon.
                assert_eq!(unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
                ip(&format!("link add c type veth peer name s netns {tid}")).expect("veth is there");
                says_plugged.send(()).expect("it is waited for");
            }
        });
        let enter = move || {
            enter_own_network().expect("another one may be made, too");
            // SAFETY: it has no arguments.
            says_thread.send(unsafe { libc::gettid() }).expect("it is waited for");
            plugged.recv().expect("the cable is there");
            plug_in("s", 2, 1).expect("its end is there");
        };
        let server = EchoServer::start_where(enter, |_| 1);
        cable.join().expect("it ended well");
        plug_in("c", 1, 2).expect("its end is there");
        let mut exchange = exchange();
        let about: Vec<Address> = (0..10_000).map(|place| address(1 + place as u16 % 3, place << 12)).collect();
        for some in about.chunks(1_000) {
            ask_all(&mut exchange, some, Duration::from_secs(30)).unwrap_or_else(|error| panic!("{error}"));
        }
        // The device goes with the network of the server's thread.
        let neighbours = Command::new("ip").args(["-6", "neigh", "show", "dev", "c", "nud", "all"]).output();
        let neighbours = String::from_utf8(neighbours.expect("ip runs").stdout).expect("it is text");
        let known: Vec<&str> = neighbours.lines().filter(|line| !line.starts_with("ff02:")).collect();
        assert_eq!(known, ["fe80::2 lladdr 02:00:00:00:00:02 PERMANENT "], "one next hop, and nothing for any pointer");
        assert!(server.stop() >= 10_000);
    });
}

#[test]
fn what_is_lost_or_comes_twice_is_answered_once() {
    in_own_network("what_is_lost_or_comes_twice_is_answered_once", &ALONE, || {
        let server = EchoServer::start(|count| [1, 0, 2, 1, 0, 1, 3][count as usize % 7]);
        let mut exchange = exchange();
        for round in 0..20 {
            let about: Vec<Address> = (0..50).map(|place| address(7, place + 50 * round)).collect();
            ask_all(&mut exchange, &about, Duration::from_secs(30)).unwrap_or_else(|error| panic!("{error}"));
        }
        assert!(exchange.repeated() > 0);
        assert_eq!(server.stop(), 1_000 + exchange.repeated());
    });
}

#[test]
fn a_host_that_is_silent_is_named_and_delays_no_other() {
    in_own_network("a_host_that_is_silent_is_named_and_delays_no_other", &ALONE, || {
        // It answers what is about host 1 only: nothing listens at the other's port.
        let server = EchoServer::start(|_| 1);
        let mut exchange = exchange();
        ask_all(&mut exchange, &[address(1, 5)], Duration::from_secs(30)).unwrap_or_else(|error| panic!("{error}"));
        server.stop();
        let error = ask_all(&mut exchange, &[address(2, 5)], Duration::from_millis(30)).expect_err("nobody is there");
        let text = error.to_string();
        assert!(text.starts_with("the host fd01:203:2::/48 did not answer within 0.0"), "{text}");
        assert!(text.contains("about fd01:203:2::5"), "{text}");
        assert!(error.sent > 1, "it was asked again");
        // Unanswered questions take no room from later ones.
        let server = EchoServer::start(|_| 1);
        let about: Vec<Address> = (0..200).map(|place| address(2, place)).collect();
        ask_all(&mut exchange, &about, Duration::from_secs(30)).unwrap_or_else(|error| panic!("{error}"));
        server.stop();
    });
}

#[test]
fn a_place_without_a_route_is_an_error_at_once() {
    in_own_network("a_place_without_a_route_is_an_error_at_once", &ALONE, || {
        let mut elsewhere = address(1, 1);
        elsewhere[1] = 0xee;
        let error = ask_all(&mut exchange(), &[elsewhere], Duration::from_secs(30)).expect_err("there is no route");
        assert!(error.error.is_some(), "{error}");
        assert!(
            error.to_string().contains("give this host a route to it (`ip -6 route get fdee:203:1::1`)"),
            "{error}"
        );
    });
}

#[test]
fn an_answer_that_is_not_accepted_is_as_good_as_lost() {
    in_own_network("an_answer_that_is_not_accepted_is_as_good_as_lost", &ALONE, || {
        let server = EchoServer::start(|_| 1);
        let mut exchange = exchange();
        let first = exchange.numbers(1);
        let (mut refused, payload) = (0, [7_u8; 3000]);
        let parts: [&[u8]; 2] = [&payload[..1000], &payload[1000..]];
        let asks = [Ask { to: address(3, 3), parts: &parts, is_more: false }];
        let mut third_time = |_: usize, arrived: &Arrived, answer: &[u8]| {
            assert_eq!((arrived.bytes, &answer[16..]), (3016, &payload[..]));
            refused += 1;
            if refused < 3 { Verdict::Ignored } else { Verdict::Accepted }
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        let silent = exchange.ask(first, &asks, deadline, &mut third_time);
        assert_eq!((silent.len(), refused), (0, 3));
        server.stop();
    });
}

#[test]
fn questions_that_are_answered_later_keep_no_others_waiting() {
    in_own_network("questions_that_are_answered_later_keep_no_others_waiting", &ALONE, || {
        // More than may be in flight.
        const QUESTIONS: usize = 200;
        let server = EchoServer::start(|_| 1);
        let mut exchange = exchange();
        let first = exchange.numbers(QUESTIONS);
        let parts: [&[u8]; 1] = [&[7; 100]];
        let asks: Vec<Ask<'_>> =
            (0..QUESTIONS as u64).map(|number| Ask { to: address(3, number), parts: &parts, is_more: false }).collect();
        let mut came = BTreeSet::new();
        let mut when_all_came = |question: usize, _: &Arrived, _: &[u8]| {
            came.insert(question);
            if came.len() < QUESTIONS { Verdict::Later } else { Verdict::Accepted }
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let silent = exchange.ask(first, &asks, deadline, &mut when_all_came);
        assert!(silent.is_empty() && came.len() == QUESTIONS, "{}: {silent:?}", came.len());
        // Nothing counts as in flight any more.
        ask_all(&mut exchange, &[address(3, 1); 100], Duration::from_secs(60)).expect("the host answers");
        server.stop();
    });
}

#[test]
fn a_question_of_several_datagrams_is_answered_once() {
    in_own_network("a_question_of_several_datagrams_is_answered_once", &ALONE, || {
        const PARTS: usize = 100;
        let server = EchoServer::start(|count| [1, 0, 2, 1, 1, 3][count as usize % 6]);
        let mut exchange = exchange();
        let numbers: Vec<[u8; 1]> = (0..PARTS as u8).map(|number| [number]).collect();
        let parts: Vec<[&[u8]; 1]> = numbers.iter().map(|number| [&number[..]]).collect();
        // One datagram before and one behind, so that indices and numbers differ.
        let several = parts.iter().enumerate().map(|(at, parts)| (address(3, 7), &parts[..], at > 0));
        let asks: Vec<Ask<'_>> = [(address(3, 6), &parts[1][..], false)]
            .into_iter()
            .chain(several)
            .chain([(address(3, 8), &parts[2][..], false)])
            .map(|(to, parts, is_more)| Ask { to, parts, is_more })
            .collect();
        for is_forgotten in [false, true] {
            let first = exchange.numbers(3);
            let source = exchange.source(first + 1);
            // What the other side has of the question. It answers when everything has arrived, the second time if it
            // forgets everything once.
            let (mut came, mut rounds, mut accepted) = ([false; PARTS], 0, [0; 3]);
            let mut judge = |question: usize, arrived: &Arrived, payload: &[u8]| {
                assert_eq!(arrived.source, address(3, 6 + question as u64));
                let part = usize::from(payload[16]);
                if question == 1 {
                    assert_eq!(arrived.destination, source, "all come from one address");
                    came[part] = true;
                    if came.contains(&false) {
                        return Verdict::Part(part);
                    }
                    rounds += 1;
                    came = [false; PARTS];
                    if is_forgotten && rounds == 1 {
                        return Verdict::Part(part);
                    }
                }
                accepted[question] += 1;
                Verdict::Accepted
            };
            let deadline = Instant::now() + Duration::from_secs(30);
            let silent = exchange.ask(first, &asks, deadline, &mut judge);
            assert!(silent.is_empty(), "{silent:?}");
            assert_eq!((accepted, rounds), ([1; 3], 1 + u32::from(is_forgotten)));
        }
        assert!(server.stop() >= 2 * (2 + PARTS as u64));
    });
}

#[test]
fn a_host_that_was_silent_is_found_when_it_is_there_again() {
    in_own_network("a_host_that_was_silent_is_found_when_it_is_there_again", &ALONE, || {
        // So many are lost that with an unbounded back-off the question would not have been sent that often in time.
        let server = EchoServer::start(|count| u32::from(count >= 300));
        ask_all(&mut exchange(), &[address(7, 1)], Duration::from_secs(30)).unwrap_or_else(|error| panic!("{error}"));
        assert!(server.stop() >= 300);
    });
}

#[test]
fn one_that_cannot_be_sent_delays_no_other() {
    in_own_network("one_that_cannot_be_sent_delays_no_other", &ALONE, || {
        let server = EchoServer::start(|_| 1);
        let mut elsewhere = address(1, 1);
        elsewhere[1] = 0xee;
        let mut exchange = exchange();
        let asks = [elsewhere, address(1, 5)].map(|to| Ask { to, parts: &[], is_more: false });
        let (first, mut accepted) = (exchange.numbers(2), Vec::new());
        let mut judge = |question: usize, _: &Arrived, _: &[u8]| {
            accepted.push(question);
            Verdict::Accepted
        };
        let silent = exchange.ask(first, &asks, Instant::now() + Duration::from_secs(30), &mut judge);
        assert_eq!(accepted, [1]);
        assert_eq!((silent.len(), silent[0].0, silent[0].1.error.is_some()), (1, 0, true), "{silent:?}");
        server.stop();
    });
}

#[test]
#[should_panic(expected = "a datagram of 4 parts, and at most 3 are sent")]
fn no_part_of_a_datagram_is_left_out_silently() {
    let endpoint = Endpoint::open(0).expect("some port is free");
    let way = Way { from: address(1, 1), to: address(1, 1), port: PORT };
    let _ = endpoint.send(&way, &[b"a", b"b", b"c", b"d"]);
}
