//! How tcp links come up, fail to, and end: late peers, missing peers, refused peers, forks, SIGPIPE.

mod support;

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use support::{
    Form, HANG_SECONDS, Kind, Recorder, SECURITIES, build, header, options, poll_until, recorders, send_frame,
    wait_until,
};
use trellis_testing::listeners;
use trellis_transport::{HELLO_BYTES_MAX, Link, Lost, Payload, Security, SendError, StartError, Tcp, TcpOptions};

#[test]
fn a_peer_that_starts_late_gets_what_was_sent_before() {
    for security in SECURITIES {
        let (mut ports, addresses) = listeners(2);
        // Nothing listens at node 0's address until it starts.
        drop(ports.remove(0));
        let late_listener = ports.remove(0);
        let early: Arc<dyn Link> = start(options(1, &addresses, Some(late_listener), security));
        let page = vec![3; 8192];
        for sequence in 0..50 {
            send_frame(&*early, 0, Form::At, 2 * sequence, 5000);
            let pinned = header(Form::At, 1, 2 * sequence, page.len());
            early.send(0, &pinned, Payload::Pinned(page.as_ptr(), page.len())).unwrap();
        }
        assert!(!early.is_connected(0) && !early.is_lost(0));
        wait_until(|| early.trouble(0).is_some());
        let trouble = early.trouble(0).unwrap();
        assert_eq!(trouble, format!("no process listens at {} yet", addresses[0]));
        let late = start(options(0, &addresses, None, security));
        let links = [late, early];
        let mut sinks = recorders(2);
        sinks[0].check_bodies = false;
        poll_until(&links, &mut sinks, |sinks| sinks[0].frames.len() == 100);
        assert_eq!(sinks[0].sequences(1, 0), (0..50).map(|each| 2 * each).collect::<Vec<_>>());
        assert!(links[1].is_connected(0) && links[1].trouble(0).is_none());
        assert_eq!(links[0].statistics().unauthenticated_refused, 0);
    }
}

#[test]
fn a_node_that_never_starts_holds_up_nobody() {
    let (mut ports, addresses) = listeners(4);
    ports.remove(1);
    let links: Vec<_> = ports
        .into_iter()
        .zip([0, 2, 3])
        .map(|(port, node)| start(options(node, &addresses, Some(port), Security::Signed)))
        .collect();
    let mut sinks = recorders(3);
    let nodes = [0, 2, 3];
    for (link, from) in links.iter().zip(nodes) {
        for to in (0..4).filter(|&to| to != from) {
            send_frame(&**link, to, Form::At, 0, 4096);
        }
    }
    poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.frames.len() == 2));
    for (link, sink) in links.iter().zip(&sinks) {
        assert!(!link.is_connected(1) && !link.is_lost(1));
        assert!(!sink.connected.contains(&1) && sink.lost.is_empty());
    }
    for link in &links {
        link.close();
    }
}

#[test]
fn nodes_may_start_in_any_order() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let (ports, addresses) = listeners(3);
        // Frees the ports: the nodes bind them themselves, one after the other.
        drop(ports);
        let mut links: Vec<Option<Arc<dyn Link>>> = vec![None, None, None];
        for node in order {
            let link = start(options(node, &addresses, None, Security::Sealed));
            for to in (0..3).filter(|&to| to != node) {
                send_frame(&*link, to, Form::Inline, 0, 9);
            }
            links[node] = Some(link);
        }
        let links: Vec<_> = links.into_iter().flatten().collect();
        let mut sinks = recorders(3);
        poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.frames.len() == 2));
    }
}

#[test]
fn a_peer_that_goes_is_lost_and_the_others_go_on() {
    for security in SECURITIES {
        let mut links = build(Kind::Tcp(security), 3);
        let mut sinks = recorders(3);
        poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.connected.len() == 2));
        drop(links.pop());
        poll_until(&links, &mut sinks[..2], |sinks| sinks.iter().all(|sink| sink.lost.len() == 1));
        assert_eq!(sinks[0].lost, [(2, Lost::Ended)]);
        send_frame(&*links[0], 1, Form::At, 0, 70_000);
        poll_until(&links, &mut sinks[..2], |sinks| sinks[1].frames.len() == 1);
    }
}

/// Node 0 sees the hellos of nodes 1 and 2 and refuses that of node 2.
#[test]
fn a_node_whose_hello_is_not_wanted_is_told_why() {
    let (ports, addresses) = listeners(3);
    let hellos = Arc::new(Mutex::new(Vec::new()));
    let refusals: [Arc<Mutex<Vec<String>>>; 3] = Default::default();
    let links: Vec<_> = ports
        .into_iter()
        .enumerate()
        .map(|(node, port)| {
            let mut options = options(node, &addresses, Some(port), Security::Sealed);
            options.hello = format!("hello from {node}").into_bytes();
            let (hellos, refusals) = (Arc::clone(&hellos), Arc::clone(&refusals[node]));
            options.admit = Box::new(move |peer, hello| {
                let hello = String::from_utf8(hello.to_vec()).unwrap();
                hellos.lock().unwrap().push((node, peer, hello));
                if (node, peer) == (0, 2) { Err("node 2 is green".into()) } else { Ok(()) }
            });
            options.refused = Box::new(move |sentence| refusals.lock().unwrap().push(sentence));
            start(options)
        })
        .collect();
    let mut sinks = recorders(3);
    poll_until(&links, &mut sinks, |sinks| {
        // Node 0 is told by its acceptor, after the refusal was sent.
        let is_reported = !refusals[0].lock().unwrap().is_empty();
        is_reported && sinks[2].lost.len() == 1 && sinks[0].connected == [1] && sinks[1].connected.len() == 2
    });
    let why = "node 0 refused this node: node 2 is green".to_owned();
    assert_eq!(*refusals[0].lock().unwrap(), ["node 2 was refused: node 2 is green"]);
    assert_eq!(*refusals[2].lock().unwrap(), [why.as_str()]);
    assert_eq!(sinks[2].lost, [(0, Lost::NodeRefused { why })]);
    assert!(links[2].is_lost(0) && !links[0].is_lost(2) && !links[0].is_connected(2));
    assert_eq!(links[0].statistics().nodes_refused, 1);
    assert_eq!(links[0].statistics().unauthenticated_refused, 0);
    let seen = hellos.lock().unwrap();
    for (node, peer) in [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2)] {
        assert!(seen.contains(&(node, peer, format!("hello from {peer}"))), "{node} of {peer}");
    }
    send_frame(&*links[2], 1, Form::Inline, 0, 1);
    poll_until(&links, &mut sinks, |sinks| sinks[1].frames.len() == 1);
}

#[test]
fn nodes_that_do_not_fit_together_are_refused_with_a_sentence() {
    let two = |addresses: &[String]| addresses.to_vec();
    type Change = fn(&mut TcpOptions);
    let cases: [(Change, &str); 3] = [
        (|options| options.security = Security::Plain, "the links of node 1 are plain, those of node 0 sealed"),
        (|options| options.addresses.push("127.0.0.1:1".into()), "node 1 has a list of 3 nodes, node 0 one of 2"),
        (|options| options.admit = Box::new(|_, _| Err("not today".into())), "node 0 was refused: not today"),
    ];
    for (change, sentence) in cases {
        let (mut ports, addresses) = listeners(2);
        let refusals = Arc::new(Mutex::new(Vec::new()));
        let mut second = options(1, &two(&addresses), ports.pop(), Security::Sealed);
        change(&mut second);
        let mut first = options(0, &addresses, ports.pop(), Security::Sealed);
        for options in [&mut first, &mut second] {
            let refusals = Arc::clone(&refusals);
            options.refused = Box::new(move |sentence| refusals.lock().unwrap().push(sentence));
        }
        let links = [start(first), start(second)];
        let mut sinks = recorders(2);
        poll_until(&links, &mut sinks, |sinks| sinks[1].lost.len() == 1);
        assert!(sinks[0].connected.is_empty() || sentence.contains("not today"));
        let refusals = refusals.lock().unwrap();
        assert!(refusals.iter().any(|each| each.contains(sentence)), "{refusals:?}");
    }
}

#[test]
fn a_second_process_with_the_same_number_is_refused() {
    let (links, addresses) = build_with_addresses(2);
    let mut sinks = recorders(2);
    poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.connected.len() == 1));
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    let twin = [start(options(1, &addresses, Some(own), Security::Sealed))];
    let mut twin_sinks = recorders(1);
    poll_until(&twin, &mut twin_sinks, |sinks| sinks[0].lost.len() == 1);
    let (0, Lost::NodeRefused { why }) = &twin_sinks[0].lost[0] else { panic!() };
    assert!(why.contains("node 0 has met node 1 already"), "{why}");
    send_frame(&*links[1], 0, Form::At, 0, 5000);
    poll_until(&links, &mut sinks, |sinks| sinks[0].frames.len() == 1);
    assert!(sinks.iter().all(|sink| sink.lost.is_empty()));
}

#[test]
fn a_start_that_cannot_work_says_why() {
    let (ports, addresses) = listeners(1);
    let none = || options(3, &addresses, None, Security::Plain);
    let error = Tcp::start(none()).unwrap_err();
    assert!(matches!(error, StartError::NoAddress { node: 3, nodes: 1 }), "{error}");
    let mut long = options(0, &addresses, None, Security::Plain);
    long.hello = vec![0; HELLO_BYTES_MAX + 1];
    assert!(matches!(Tcp::start(long), Err(StartError::HelloTooLong { bytes: 257 })));
    let two = [addresses[0].clone(), "127.0.0.1:1".to_owned()];
    let error = Tcp::start(options(0, &two, None, Security::Plain)).unwrap_err();
    assert!(matches!(error, StartError::Listen { node: 0, .. }), "{error}");
    assert!(error.to_string().contains(&addresses[0]), "{error}");
    drop(ports);
    // A single node needs neither socket nor thread.
    let alone = Tcp::start(options(0, &addresses, None, Security::Sealed)).unwrap();
    assert!(!alone.poll(&mut Recorder::new()));
}

#[test]
fn the_secret_is_in_no_debug_text() {
    let (_ports, addresses) = listeners(2);
    let text = format!("{:?}", options(0, &addresses, None, Security::Sealed));
    assert!(!text.contains("42, 42") && !text.contains("secret"), "{text}");
}

static PIPE_SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_pipe_signal(_signal: i32) {
    PIPE_SIGNALS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn sending_to_a_peer_that_is_gone_raises_no_signal() {
    let handler: extern "C" fn(i32) = count_pipe_signal;
    // SAFETY: the handler only adds to an atomic.
    unsafe { libc::signal(libc::SIGPIPE, handler as *const () as libc::sighandler_t) };
    for security in SECURITIES {
        let mut links = build(Kind::Tcp(security), 2);
        let mut sinks = recorders(2);
        poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.connected.len() == 1));
        drop(links.pop());
        // Not polled: only the sends can notice. Small, so that each is one whole system call.
        let page = vec![0; 1000];
        let frame = header(Form::At, 0, 0, page.len());
        let mut error = None;
        wait_until(|| {
            error = links[0].send(1, &frame, Payload::Copy(&page)).err();
            error.is_some()
        });
        assert!(matches!(error, Some(SendError::Lost { peer: 1, .. })), "{error:?}");
        poll_until(&links, &mut sinks[..1], |sinks| sinks[0].lost.len() == 1);

        // The same, noticed while a queue is flushed.
        let mut links = build(Kind::Tcp(security), 2);
        let mut sinks = recorders(2);
        poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.connected.len() == 1));
        let page = vec![0; 1 << 20];
        let frame = header(Form::At, 0, 0, page.len());
        for _ in 0..30 {
            links[0].send(1, &frame, Payload::Copy(&page)).unwrap();
        }
        drop(links.pop());
        poll_until(&links, &mut sinks[..1], |sinks| sinks[0].lost.len() == 1);
    }
    assert_eq!(PIPE_SIGNALS.load(Ordering::SeqCst), 0);
}

/// A child that lives on must neither speak for its parent nor hide its end: it has none of its sockets.
#[test]
fn a_forked_child_has_no_link() {
    let (mut links, addresses) = build_with_addresses(2);
    let ports: Vec<u16> = addresses.iter().map(|each| each.rsplit(':').next().unwrap().parse().unwrap()).collect();
    let mut sinks = recorders(2);
    poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.connected.len() == 1));
    assert_eq!(sockets_at(&ports), 4, "two listening, two connected");
    let mut gate = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(gate.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    let frame = header(Form::Nothing, 0, 0, 0);
    // SAFETY: the child makes calls of the link under test and system calls only, then _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let closed = links[0].send(1, &frame, Payload::Nothing) == Err(SendError::Closed);
        let silent = links[0].readiness() == -1 && sockets_at(&ports) == 0;
        // SAFETY: lives until the parent writes or ends; then its exit status reports what it saw.
        unsafe {
            libc::close(gate[1]);
            libc::read(gate[0], (&raw mut gate[0]).cast(), 1);
            libc::_exit(if closed && silent { 0 } else { 1 });
        }
    }
    assert!(child > 0);
    // While the child lives, both nodes still communicate, and the end of node 0 is noticed.
    send_frame(&*links[0], 1, Form::At, 0, 9000);
    send_frame(&*links[1], 0, Form::At, 0, 9000);
    poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.frames.len() == 1));
    drop(links.remove(0));
    poll_until(&links, &mut sinks[1..], |sinks| sinks[0].lost.len() == 1);
    let mut status = 0;
    // SAFETY: our own descriptors and our own child.
    unsafe {
        libc::close(gate[1]);
        libc::waitpid(child, &raw mut status, 0);
        libc::close(gate[0]);
    }
    assert!(libc::WIFEXITED(status), "the child ended by itself");
    assert_eq!(libc::WEXITSTATUS(status), 0, "the child had no link");
}

/// How many sockets of this process have one of these ports at either end. Allocates nothing, because a child of a
/// process with many threads must not.
fn sockets_at(ports: &[u16]) -> usize {
    type NameCall = unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32;
    let has_port = |socket: i32, call: NameCall| {
        // SAFETY: a storage of zeros is a valid empty address with room for any.
        unsafe {
            let mut address: libc::sockaddr_in = std::mem::zeroed();
            let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            call(socket, (&raw mut address).cast(), &raw mut length) == 0
                && ports.contains(&u16::from_be(address.sin_port))
        }
    };
    (0..4096).filter(|&socket| has_port(socket, libc::getsockname) || has_port(socket, libc::getpeername)).count()
}

#[test]
fn a_link_that_waits_for_nobody_costs_no_time() {
    let links = build(Kind::Tcp(Security::Plain), 2);
    let mut sinks = recorders(2);
    poll_until(&links, &mut sinks, |sinks| sinks.iter().all(|sink| sink.connected.len() == 1));
    // The threads of the links sleep: no voluntary wake-up while nothing happens. Counted in context switches, not in
    // seconds, so a busy machine changes nothing.
    let switches = || -> u64 { acceptor_threads().iter().map(|path| voluntary_switches(path)).sum() };
    wait_until(|| {
        let before = switches();
        std::thread::sleep(std::time::Duration::from_millis(200));
        switches() == before
    });
    for link in &links {
        link.close();
    }
    const { assert!(HANG_SECONDS > 1) };
}

/// The status files of this process's acceptor threads. Other tests have such threads too, and end.
fn acceptor_threads() -> Vec<std::path::PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    tasks
        .flatten()
        .map(|task| task.path())
        .filter(|path| std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("trellis-accept")))
        .collect()
}

fn voluntary_switches(task: &std::path::Path) -> u64 {
    let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

fn start(options: TcpOptions) -> Arc<dyn Link> {
    Arc::new(Tcp::start(options).expect("a node on loopback"))
}

fn build_with_addresses(nodes: usize) -> (Vec<Arc<dyn Link>>, Vec<String>) {
    let (ports, addresses) = listeners(nodes);
    let links = ports
        .into_iter()
        .enumerate()
        .map(|(node, port)| start(options(node, &addresses, Some(port), Security::Sealed)))
        .collect();
    (links, addresses)
}
