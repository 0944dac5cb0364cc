//! A program that joins a cluster, in several roles: one that works, and some that fail.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trellis::Cluster;
use trellis::waits::Wait;

/// Runs a role to its end. Failing roles do not return.
pub(crate) fn act(role: &str) {
    let cluster = trellis::join().unwrap_or_else(|error| refuse(&error));
    println!("up {} {}", cluster.node(), std::process::id());
    match role {
        "sum" => sum(&cluster),
        "count" => count_until_stopped(&cluster),
        "pace" => keep_pace(&cluster),
        "late" => come_late(&cluster),
        "share" => share_a_page(&cluster),
        "hold" => hold_a_lock(&cluster),
        "keep" => keep_a_page(&cluster, AWAY),
        "keep for ever" => keep_a_page(&cluster, std::time::Duration::from_secs(600)),
        stuck if stuck.starts_with("stuck ") => stuck_in(&cluster, &stuck["stuck ".len()..]),
        "visit" => (0..25).for_each(|round| count(&cluster, round)),
        "stop" => cluster.atomic(STOP).store(1).unwrap_or_else(|error| refuse(&error)),
        "wait" => wait_until_asked(&cluster),
        "address" => {
            println!("address {}", cluster.config().nodes()[0]);
            std::thread::sleep(std::time::Duration::from_secs(600));
        }
        // Node 0 never comes, so all others wait in the barrier until something happens to a node.
        "barrier" if cluster.node() == 0 => std::thread::sleep(std::time::Duration::from_secs(600)),
        "barrier" => wait_for_ever(&cluster),
        "exit" if cluster.node() == 1 => std::process::exit(1),
        "seventy" if cluster.node() == 1 => std::process::exit(70),
        "give up" if cluster.node() == 1 => {
            cluster.abandon("UNLOCK: lock 5 is not held by this node");
            std::process::exit(70)
        }
        "fail slowly" if cluster.node() == 1 => {
            cluster.abandon("this is the failure of node 1");
            // Longer than the launcher looks for the cause of what the others report.
            std::thread::sleep(Duration::from_millis(600));
            std::process::exit(7)
        }
        "vanish" if cluster.node() == 1 => std::process::exit(0),
        "panic" if cluster.node() == 1 => panic!("this is the panic of node 1"),
        _ => wait_for_ever(&cluster),
    }
    if let Err(error) = cluster.leave() {
        refuse(&error);
    }
}

fn sum(cluster: &Cluster) {
    // SAFETY: each node writes its own element and reads the others' after the barrier.
    let numbers = unsafe { cluster.region().slice_mut::<u64>(0, cluster.nodes()) };
    numbers[cluster.node()] = cluster.node() as u64;
    cluster.barrier(1).unwrap_or_else(|error| refuse(&error));
    println!("at {}", cluster.config().nodes().join(" "));
    println!("sum {}", numbers.iter().sum::<u64>());
    cluster.barrier(2).unwrap_or_else(|error| refuse(&error));
}

/// The nodes wait for each other for some seconds, again and again.
fn keep_pace(cluster: &Cluster) {
    for _ in 0..40 {
        cluster.barrier(1).unwrap_or_else(|error| refuse(&error));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Long enough to be most of the phase, whatever else happens in it.
pub(crate) const AWAY: std::time::Duration = std::time::Duration::from_millis(500);

/// The byte of the region where the last node writes which of its threads is about to wait; no other data of these
/// programs is in its page.
const WAITER: usize = 900 << 12;

fn waiter(cluster: &Cluster) -> &AtomicU64 {
    // SAFETY: inside the region, aligned, and only ever used as an atomic by these programs.
    unsafe { &*cluster.region().base().add(WAITER).cast::<AtomicU64>() }
}

/// From here to its next wait, nothing lets this thread sleep.
fn say_who_waits(cluster: &Cluster) {
    let thread = std::fs::read_link("/proc/thread-self").expect("Linux tells who this is");
    let number = thread.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number");
    waiter(cluster).store(number, Ordering::SeqCst);
}

/// Does something else for a while, beginning when the other node waits: so that node waits this long, however loaded
/// the machine is.
fn be_away(cluster: &Cluster, time: std::time::Duration) {
    let sleeps = || {
        let thread = waiter(cluster).load(Ordering::SeqCst);
        let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        matches!(state, Some('S' | 'D'))
    };
    while !sleeps() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::thread::sleep(time);
}

/// Node 0 does something else for a while; the others wait for it in a barrier.
fn come_late(cluster: &Cluster) {
    cluster.barrier(1).unwrap_or_else(|error| refuse(&error));
    cluster.phase("waiting");
    if cluster.node() == 0 {
        be_away(cluster, AWAY);
    } else {
        say_who_waits(cluster);
    }
    cluster.barrier(2).unwrap_or_else(|error| refuse(&error));
    cluster.phase("after it");
}

/// Two nodes store to different parts of page 0 in each of many rounds, which they count in page 1.
fn share_a_page(cluster: &Cluster) {
    const ROUNDS: u64 = 100;
    /// Pages that both store to in each round, so many that waiting for them takes most of its time, also on a busy
    /// machine. They are apart, because neighbours are requested together.
    const SHARED: usize = 16;
    const APART_BYTES: usize = 32 << 10;
    const TURN: usize = SHARED * APART_BYTES;
    let word = |byte: usize| {
        // SAFETY: inside the region, aligned, and only ever used as an atomic by these programs.
        unsafe { &*cluster.region().base().add(byte).cast::<AtomicU64>() }
    };
    let (own, other) = (cluster.node(), 1 - cluster.node());
    cluster.barrier(1).unwrap_or_else(|error| refuse(&error));
    cluster.phase("share");
    for round in 1..=ROUNDS {
        for page in 0..SHARED {
            word(page * APART_BYTES + 2048 * own).store(round, Ordering::SeqCst);
        }
        word(TURN + 8 * own).store(round, Ordering::SeqCst);
        while word(TURN + 8 * other).load(Ordering::SeqCst) < round {
            std::thread::yield_now();
        }
    }
    cluster.phase("end");
    cluster.barrier(2).unwrap_or_else(|error| refuse(&error));
}

/// Node 0 holds a lock for a while; the others wait for it.
fn hold_a_lock(cluster: &Cluster) {
    let held = (cluster.node() == 0).then(|| cluster.mutex(7).lock().unwrap_or_else(|error| refuse(&error)));
    cluster.barrier(1).unwrap_or_else(|error| refuse(&error));
    cluster.phase("waiting");
    if held.is_some() {
        be_away(cluster, AWAY);
    } else {
        say_who_waits(cluster);
        drop(cluster.mutex(7).lock().unwrap_or_else(|error| refuse(&error)));
    }
    cluster.phase("after it");
    drop(held);
    cluster.barrier(2).unwrap_or_else(|error| refuse(&error));
}

/// Node 0 keeps a page for a while; the others wait for it.
fn keep_a_page(cluster: &Cluster, time: std::time::Duration) {
    let keep = || cluster.region().lock_range(0, 8).unwrap_or_else(|error| refuse(&error));
    let kept = (cluster.node() == 0).then(keep);
    cluster.barrier(1).unwrap_or_else(|error| refuse(&error));
    cluster.phase("waiting");
    if kept.is_some() {
        be_away(cluster, time);
    } else {
        say_who_waits(cluster);
        // SAFETY: inside the region and aligned; nobody stores to it.
        unsafe { cluster.region().base().cast::<u64>().read_volatile() };
    }
    cluster.phase("after it");
    drop(kept);
    cluster.barrier(2).unwrap_or_else(|error| refuse(&error));
}

/// The number of nodes of a program that tests a wait, and which of them node 1 stops.
pub(crate) fn nodes_and_stopped(wait: Wait) -> (usize, usize) {
    // The heap's directory is at node 0, and the home of some pages at the last node.
    if matches!(wait, Wait::Placement(_)) { (3, 2) } else { (2, 0) }
}

/// Node 1 stops another node, and then waits for it in the wait of this name, one of [`Wait::ALL`].
fn stuck_in(cluster: &Cluster, what: &str) {
    let wait = Wait::ALL.into_iter().find(|wait| wait.to_string() == what).expect("it is a wait");
    let (nodes, stopped) = nodes_and_stopped(wait);
    // The home of the first is node 0, that of the second is node 1.
    let (theirs, own) = (nodes as u64 * 2, nodes as u64 * 2 + 1);
    let fine = |done: Result<(), trellis::WaitError>| done.unwrap_or_else(|error| refuse(&error));
    let region = cluster.region();
    let (word, process) = (region.base().cast::<u64>(), region.base().cast::<u64>().wrapping_add(5 * 512));
    let mut kept = None;
    if cluster.node() == stopped {
        // SAFETY: inside the region and aligned; nobody reads before the barrier.
        unsafe { (word.write_volatile(1), process.write_volatile(u64::from(std::process::id()))) };
        match wait {
            Wait::Lock(_) => fine(cluster.mutex(own).acquire()),
            Wait::ReadWriteLock(_) => fine(cluster.rwlock(theirs).write_acquire()),
            Wait::Once(_) => fine(cluster.once(theirs).begin().map(drop)),
            Wait::LockRange(_) => kept = Some(region.lock_range(0, 8).unwrap_or_else(|error| refuse(&error))),
            _ => {}
        }
    }
    fine(cluster.barrier(1));
    if cluster.node() != 1 {
        std::thread::sleep(std::time::Duration::from_secs(600));
    }
    // SAFETY: inside the region and aligned; nobody stores any more.
    let process = unsafe { process.read_volatile() };
    if matches!(wait, Wait::Publication) {
        // A store needs a copy here.
        // SAFETY: as above.
        unsafe { word.read_volatile() };
    }
    stop(process as libc::pid_t);
    fine(match wait {
        Wait::ReadFault(_) => {
            // SAFETY: as above.
            unsafe { word.read_volatile() };
            Ok(())
        }
        Wait::WriteFault(_) => {
            // SAFETY: as above; the other node does nothing any more.
            unsafe { word.write_volatile(7) };
            Ok(())
        }
        Wait::Fetch(_) => cluster.prefetch(0, 8, true),
        Wait::Barrier(_) => cluster.barrier(theirs),
        Wait::Lock(_) => cluster.mutex(own).acquire(),
        Wait::Atomic(_) => cluster.atomic(theirs).load().map(drop),
        Wait::CountingBarrier(_) => cluster.barrier_of(theirs, 2).wait().map(drop),
        Wait::ReadWriteLock(_) | Wait::Inquiry => cluster.rwlock(theirs).read_acquire(),
        Wait::Semaphore(_) => cluster.semaphore(theirs).acquire(),
        Wait::Event(_) => cluster.event(theirs).wait(),
        Wait::Once(_) => cluster.once(theirs).begin().map(drop),
        Wait::Condition(_) => {
            let mut guard = cluster.mutex(own).lock().unwrap_or_else(|error| refuse(&error));
            cluster.condvar(theirs).wait(&mut guard)
        }
        Wait::LockRange(_) => region.lock_range(0, 8).map(drop),
        Wait::Publication => {
            fine(cluster.mutex(own).acquire());
            // SAFETY: as above.
            unsafe { word.write_volatile(7) };
            cluster.mutex(own).release()
        }
        Wait::Placement(_) | Wait::Heap => {
            let block = cluster.heap().allocate::<u64>(1 << 20, trellis::Home::Here);
            block.map(|_| ()).unwrap_or_else(|error| refuse(&error));
            Ok(())
        }
        Wait::ProtocolChange => region.set_protocol(0, region.page_bytes(), "migrate"),
        Wait::Leave => Ok(()),
        Wait::Start | Wait::TakeOver(_) => panic!("no node is stopped while one is {what}"),
    });
    drop(kept);
}

/// Stops a process, and returns when it has stopped.
fn stop(process: libc::pid_t) {
    // SAFETY: no memory is passed.
    assert_eq!(unsafe { libc::kill(process, libc::SIGSTOP) }, 0);
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    while !is_stopped() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A word that is set when the founders shall end.
const STOP: u64 = 1000;
/// A word that counts the rounds of all processes.
const ROUNDS: u64 = 1001;

/// One round of work: a counter by hardware atomics, one under a lock, and a word.
fn count(cluster: &Cluster, round: u64) {
    let word = |index: usize| {
        // SAFETY: inside the region, aligned, and only ever used as an atomic by these programs.
        unsafe { &*cluster.region().base().cast::<AtomicU64>().add(index) }
    };
    let page = (round as usize * 11 + cluster.node() * 5) % 200;
    word(page * 512).fetch_add(1, Ordering::SeqCst);
    let id = round % 3;
    let guard = cluster.mutex(id).lock().unwrap_or_else(|error| refuse(&error));
    let counter = word((300 + id as usize) * 512);
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    drop(guard);
    cluster.atomic(ROUNDS).fetch_add(1).unwrap_or_else(|error| refuse(&error));
}

fn count_until_stopped(cluster: &Cluster) {
    let mut round = 0;
    while cluster.atomic(STOP).load().unwrap_or_else(|error| refuse(&error)) == 0 {
        count(cluster, round);
        round += 1;
    }
    cluster.barrier(1).unwrap_or_else(|error| refuse(&error));
    let rounds = cluster.atomic(ROUNDS).load().unwrap_or_else(|error| refuse(&error));
    // SAFETY: every founder has passed the barrier, and every joined process has left or does not write.
    let words = unsafe { cluster.region().slice::<u64>(0, 303 * 512) };
    let sum = |pages: std::ops::Range<usize>| pages.map(|page| words[page * 512]).sum::<u64>();
    if (sum(0..200), sum(300..303)) == (rounds, rounds) {
        println!("counts agree");
    } else {
        println!("counts differ: {} and {} of {rounds}", sum(0..200), sum(300..303));
    }
    cluster.barrier(2).unwrap_or_else(|error| refuse(&error));
}

fn wait_until_asked(cluster: &Cluster) {
    let mut round = 0;
    while !cluster.is_leave_requested() {
        count(cluster, round);
        round += 1;
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn wait_for_ever(cluster: &Cluster) {
    if let Err(error) = cluster.barrier(3) {
        refuse(&error);
    }
}

/// Fails like every Trellis program.
fn refuse(error: &dyn std::error::Error) -> ! {
    eprintln!("trellis: {error}");
    std::process::exit(70)
}
