//! Tests the switch `openflow`: with an Open vSwitch of its own, and with a scripted switch that stores what it receives.

mod conformance;
#[path = "openflow/scripted.rs"]
mod scripted;

use std::fmt::Arguments;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use conformance::{Context, READ};
use scripted::{Received, Script, Scripted, WELL};
use trellis_switch::switches::openflow::codec::{FlowMod, Instruction};
use trellis_switch::switches::openflow::{ConnectionMethod, OpenFlow, OpenFlowPort, OpenFlowWiring};
use trellis_switch::{Cluster, Page, Prefix, Redirect, Route, Switch, SwitchError};
use trellis_testing::{FullListener, Port};

const TIMEOUT: Duration = Duration::from_secs(30);
const CLUSTER: Cluster = Cluster::new(1);

/// Whether this process may start an Open vSwitch; prints if it may not.
fn is_possible(test: &str) -> bool {
    match OpenFlow::lacking() {
        Some(lacking) => {
            trellis_testing::skip(test, trellis_testing::Need::Program, lacking);
            false
        }
        None => conformance::is_possible(test),
    }
}

/// One test at a time has an Open vSwitch.
static STARTED: Mutex<()> = Mutex::new(());

#[test]
fn openflow_is_a_switch() {
    if is_possible("openflow_is_a_switch") {
        let _alone = STARTED.lock();
        conformance::run("openflow");
    }
}

/// How many processes have this name and this one as their parent.
fn children(name: &str) -> usize {
    let own = std::process::id().to_string();
    let status = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("status")).ok();
    let is_ours = |status: &String| {
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        value("Name:") == Some(name) && value("PPid:") == Some(&own)
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(status).filter(is_ours).count()
}

#[test]
fn nothing_of_open_vswitch_is_left() {
    if !is_possible("nothing_of_open_vswitch_is_left") {
        return;
    }
    // Its databases and their locks, and the sockets of its programs and bridges. Other programs write there, too.
    let is_its_own = |name: &String| {
        ["ovs", "openvswitch", "conf.db", "db.sock", ".ctl", ".mgmt", ".snoop"].iter().any(|part| name.contains(part))
    };
    let folder = || {
        let entries = std::fs::read_dir("/run").unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(is_its_own).collect::<std::collections::BTreeSet<_>>()
    };
    let _alone = STARTED.lock();
    let before = folder();
    let mut context = Context::new("openflow", "left");
    context.goes("c1", context.pointer("s1", READ, 1), "s1");
    assert_eq!(folder(), before, "it writes where nobody sees it");
    let running = || ["ovsdb-server", "ovs-vswitchd"].map(children);
    assert_eq!(running(), [1, 1]);
    drop(context);
    assert_eq!(running(), [0, 0]);
    assert_eq!(folder(), before);
}

/// Waits for a switch at an address that the system chooses.
fn wiring() -> OpenFlowWiring {
    let ports = (1..=3).map(|number: u16| OpenFlowPort {
        number,
        at_switch: 100 + u32::from(number),
        host_mac: [2, 0xbb, 0, 0, 0, number as u8],
    });
    OpenFlowWiring {
        cluster: CLUSTER,
        method: ConnectionMethod::Listen(SocketAddr::from(([127, 0, 0, 1], 0))),
        datapath: None,
        ports: ports.collect(),
        redirects_max: 16,
        counted_pages_max: 4,
        timeout: TIMEOUT,
        report: None,
    }
}

/// A controller that waits for a switch, its place, and the first connection there.
fn awaited(wiring: &OpenFlowWiring) -> (JoinHandle<Result<OpenFlow, SwitchError>>, SocketAddr, TcpStream) {
    // The place is chosen first, so that the switch can go there while its controller waits.
    let port = Port::new();
    let chosen = port.address();
    let wiring = OpenFlowWiring { method: ConnectionMethod::Listen(chosen), ..wiring.clone() };
    let controller = std::thread::spawn(move || OpenFlow::open(&wiring));
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Ok(first) = TcpStream::connect(chosen) {
            return (controller, chosen, first);
        }
        assert!(Instant::now() < deadline, "nobody waits at {chosen}");
        std::thread::yield_now();
    }
}

/// A controller and the switch that connected to it.
fn connected(
    wiring: &OpenFlowWiring,
    script: Script,
) -> (Result<OpenFlow, SwitchError>, Scripted, Arc<Mutex<Received>>) {
    let (controller, chosen, first) = awaited(wiring);
    // That first one hangs up at once; a switch that comes next is served all the same.
    drop(first);
    let received = Arc::new(Mutex::new(Received::default()));
    let switch = Scripted::connect(chosen, script, &received);
    (controller.join().unwrap(), switch, received)
}

fn home(number: u16) -> Prefix {
    Prefix::host(CLUSTER, number)
}

fn page(number: u64) -> Page {
    Page { home: 0x1001, number }
}

/// The flows of a switch, without the connection's number in their cookies.
fn flows(received: &Mutex<Received>) -> Vec<String> {
    let unmarked = |flow: &FlowMod| format!("{:?}", FlowMod { cookie: flow.cookie & !(0xf << 52), ..flow.clone() });
    let mut flows: Vec<String> = received.lock().unwrap().flows.iter().map(unmarked).collect();
    flows.sort_unstable();
    flows
}

#[test]
fn a_switch_that_comes_back_is_told_everything_again() {
    let (controller, switch, received) = connected(&wiring(), WELL);
    let controller = controller.unwrap();
    let before = flows(&received);
    controller.set_prefix(home(0x1001), Route { port: 1, is_memory: true }).unwrap();
    controller.set_prefix(home(1), Route { port: 2, is_memory: false }).unwrap();
    controller.set_leases(Some(Duration::from_secs(60))).unwrap();
    controller.set_redirect(page(5), Redirect { port: 2, epoch: 1, until: None }).unwrap();
    controller.set_redirect(page(6), Redirect { port: 3, epoch: 1, until: None }).unwrap();
    let with_all = flows(&received);
    assert_ne!(before, with_all);
    let address = controller.address().unwrap();
    drop(switch);
    // It has forgotten one thing, and kept another that is no longer so.
    let forgotten = received.lock().unwrap().flows.pop().unwrap();
    let stale = FlowMod { priority: 7, ..forgotten.clone() };
    received.lock().unwrap().flows.push(stale.clone());
    let again = Scripted::connect(address, WELL, &received);
    let deadline = Instant::now() + TIMEOUT;
    while controller.connections() < 2 {
        assert!(Instant::now() < deadline, "it was not told anything");
        std::thread::yield_now();
    }
    assert_eq!(flows(&received), with_all);
    assert_eq!(controller.redirect(page(5)).unwrap().map(|redirect| redirect.port), Some(2));
    assert!(controller.drop_redirect(page(5), 1).unwrap());
    assert!(controller.drop_redirect(page(6), 1).unwrap());
    controller.set_leases(None).unwrap();
    assert!(controller.drop_prefix(home(1)).unwrap() && controller.drop_prefix(home(0x1001)).unwrap());
    assert_eq!(flows(&received), before, "what is taken back leaves nothing");
    assert_eq!(controller.refusals(), []);
    drop((controller, again));
}

/// A datagram of the cluster, as far as a switch looks.
fn frame(source: std::net::Ipv6Addr, destination: std::net::Ipv6Addr) -> Vec<u8> {
    let mut frame = vec![0; 54];
    (frame[12], frame[13]) = (0x86, 0xdd);
    frame[22..38].copy_from_slice(&source.octets());
    frame[38..54].copy_from_slice(&destination.octets());
    frame
}

#[test]
fn who_asks_for_a_lease_waits_until_the_switch_knows() {
    const ASKS: u64 = 4 << 56;
    let (controller, mut switch, received) = connected(&wiring(), WELL);
    let controller = controller.unwrap();
    controller.set_prefix(home(0x1001), Route { port: 1, is_memory: true }).unwrap();
    for client in [2, 3] {
        controller.set_prefix(home(client), Route { port: client, is_memory: false }).unwrap();
    }
    controller.set_leases(Some(Duration::from_millis(1_500_000))).unwrap();
    let request = |client| frame(CLUSTER.address(client, 0xb0, 0, 1), CLUSTER.address(0x1001, 0x30, 0, 5 << 12));
    let packets = |count: usize| {
        let deadline = Instant::now() + TIMEOUT;
        while received.lock().unwrap().packets.len() < count {
            assert!(Instant::now() < deadline, "the request is not sent on");
            std::thread::yield_now();
        }
    };
    received.lock().unwrap().order.clear();
    switch.hand_over(ASKS, 102, request(2));
    packets(1);
    {
        let received = received.lock().unwrap();
        let at = |what: &str| received.order.iter().position(|&one| one == what).unwrap();
        assert_eq!((at("flow"), at("barrier"), at("packet")), (0, 3, 4), "{:?}", received.order);
        let redirects = received.flows.iter().filter(|flow| flow.hard_timeout == 1_500);
        assert_eq!(redirects.count(), 3, "whole seconds of what is left");
        assert_eq!((received.packets[0].in_port, &received.packets[0].data), (102, &request(2)));
    }
    // The second one goes to the owner.
    switch.hand_over(ASKS, 103, request(3));
    packets(2);
    let to = |index: usize| format!("{:?}", received.lock().unwrap().packets[index].actions);
    assert!(to(0).contains("port: 101") && to(1).contains("port: 102"), "{} {}", to(0), to(1));
    assert_eq!(controller.redirect(page(5)).unwrap().map(|redirect| (redirect.port, redirect.epoch)), Some((2, 0)));
    let counters = controller.counters(2).unwrap();
    assert_eq!((counters.granted, counters.delivered), (1, 1));
    assert_eq!(controller.counters(3).unwrap().redirected, 1);
}

#[test]
fn a_switch_of_another_kind_is_left() {
    let short = OpenFlowWiring { timeout: Duration::from_millis(500), datapath: Some(0xbb), ..wiring() };
    for (script, why) in [
        (Script { version: 1, ..WELL }, "version 1; OpenFlow 1.3"),
        (Script { tables: 4, ..WELL }, "it has 4 tables, and 19 are needed"),
        (Script { datapath: 0xcc, ..WELL }, "00000000000000cc, which is another one"),
    ] {
        let (controller, _switch, _) = connected(&short, script);
        let sentence = controller.map(|_| ()).unwrap_err().to_string();
        assert!(sentence.contains(why), "{script:?}: {sentence}");
    }
}

#[test]
fn a_switch_that_takes_no_connection_is_named() {
    let full = FullListener::new();
    let address = full.address();
    let method = ConnectionMethod::Connect("127.0.0.1".to_owned(), address.port());
    // Twice as long as one attempt takes.
    let controller = OpenFlow::open(&OpenFlowWiring { method, timeout: Duration::from_secs(10), ..wiring() });
    let sentence = controller.map(|_| ()).unwrap_err().to_string();
    assert!(sentence.contains(&format!("tcp:{address}")) && sentence.contains("timed out"), "{sentence}");
}

#[test]
fn who_connects_and_says_nothing_is_hung_up() {
    static REPORTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let report = |sentence: Arguments<'_>| REPORTED.lock().unwrap().push(sentence.to_string());
    let (controller, chosen, mut silent) = awaited(&OpenFlowWiring { report: Some(report), ..wiring() });
    // Hello, a question, and the end.
    silent.read_to_end(&mut Vec::new()).unwrap();
    for _ in 0..11 {
        Scripted::connect(chosen, Script { version: 1, ..WELL }, &Arc::default()).until_hung_up();
    }
    let _switch = Scripted::connect(chosen, WELL, &Arc::default());
    let controller = controller.join().unwrap().unwrap();
    assert_eq!(controller.hung_up(), 12);
    let reported = REPORTED.lock().unwrap();
    let [first, tenth] = &reported[..] else { panic!("{reported:?}") };
    assert!(
        first.contains(&format!(
            "at ptcp:{}:127.0.0.1 has ended: it connected and did not say what it is (number 1)",
            chosen.port()
        )),
        "{first}"
    );
    assert!(tenth.contains("version 1; OpenFlow 1.3") && tenth.ends_with("(number 10)"), "{tenth}");
}

#[test]
fn a_switch_that_is_silent_is_hung_up_and_may_come_again() {
    let (controller, switch, received) = connected(&wiring(), WELL);
    let controller = controller.unwrap();
    // No script answers an echo.
    switch.until_hung_up();
    let _again = Scripted::connect(controller.address().unwrap(), WELL, &received);
    let deadline = Instant::now() + TIMEOUT;
    while controller.connections() < 2 {
        assert!(Instant::now() < deadline, "it was not told anything");
        std::thread::yield_now();
    }
}

#[test]
fn a_switch_that_does_not_answer_is_an_error_of_the_call() {
    let (controller, _switch, received) = connected(&wiring(), WELL);
    let controller = controller.unwrap();
    received.lock().unwrap().is_mute = true;
    let error = controller.set_prefix(home(1), Route { port: 2, is_memory: false }).unwrap_err().to_string();
    assert!(error.contains("it does not answer"), "{error}");
}

#[test]
fn a_switch_that_hangs_up_at_each_question_is_an_error_of_the_call() {
    let (controller, chosen, first) = awaited(&wiring());
    drop(first);
    let received = Arc::new(Mutex::new(Received::default()));
    let switch = Scripted::connect(chosen, WELL, &received);
    let controller = controller.join().unwrap().unwrap();
    received.lock().unwrap().hangs_up = true;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            switch.until_hung_up();
            while !is_over.load(Ordering::Relaxed)
                && let Some(next) = Scripted::try_connect(chosen, WELL, &received)
            {
                next.until_hung_up();
            }
        });
        let error = controller.set_prefix(home(1), Route { port: 2, is_memory: false }).unwrap_err().to_string();
        is_over.store(true, Ordering::Relaxed);
        assert!(error.contains("reach a switch at") && error.contains("for 20s"), "{error}");
        drop(controller);
    });
}

#[test]
fn what_no_flow_counts_is_lost() {
    let (controller, _switch, received) = connected(&wiring(), WELL);
    let controller = controller.unwrap();
    received.lock().unwrap().uncounted = 3;
    assert_eq!(controller.counters(2).unwrap().overflowed, 3);
}

#[test]
fn a_full_table_of_the_switch_says_so() {
    // Redirects that end are in the tables 3 and 10.
    let (controller, _switch, received) = connected(&wiring(), Script { full_table: Some(10), ..WELL });
    let controller = controller.unwrap();
    controller.set_prefix(home(0x1001), Route { port: 1, is_memory: true }).unwrap();
    let before = flows(&received);
    let until = Some(Instant::now() + Duration::from_secs(600));
    let error = controller.set_redirect(page(5), Redirect { port: 2, epoch: 1, until }).unwrap_err();
    assert!(error.is_full() && error.to_string().contains("the table of flows"), "{error}");
    assert_eq!(controller.redirect(page(5)).unwrap(), None);
    assert_eq!(flows(&received), before, "what it took of it is gone");
    controller.set_redirect(page(5), Redirect { port: 2, epoch: 1, until: None }).unwrap();
}

#[test]
fn tables_lead_upwards_and_no_further() {
    let (controller, _switch, received) = connected(&wiring(), WELL);
    let controller = controller.unwrap();
    controller.set_prefix(home(0x1001), Route { port: 1, is_memory: true }).unwrap();
    controller.set_leases(Some(Duration::from_secs(1))).unwrap();
    let received = received.lock().unwrap();
    for flow in &received.flows {
        for instruction in &flow.instructions {
            if let Instruction::GotoTable(to) = instruction {
                assert!(flow.table < *to, "{flow:?}");
                assert!(received.flows.iter().any(|flow| flow.table == *to), "table {to} is empty");
            }
        }
    }
}
