//! A fake peer: serves faults as a cluster would, and records them. Also runs a test again in a process of its own, for
//! tests that must end with a signal. Each test program uses a part of it.

#![allow(dead_code)]

use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use trellis_memory::{
    Access, Catcher, Detection, FAULT_BATCH, Fault, FaultServer, Parts, Piece, Region, RegionOptions, Reserve, choose,
    probe,
};
use trellis_testing::{Need, skip};

/// The slots for regions of a process are few, and some tests count them: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// How many faults are remembered; the memory is taken before the first one.
const FAULTS_MAX: usize = 1 << 16;

/// Answers faults. `remote` is what another node would send for a page that this node never had.
pub(crate) struct Peer {
    region: OnceLock<Arc<Region>>,
    remote: Option<fn(usize) -> u8>,
    held: Mutex<Held>,
}

struct Held {
    access: Vec<Access>,
    fetched: Vec<bool>,
    faults: Vec<Fault>,
    announced: Vec<(Range<usize>, bool)>,
}

impl Peer {
    fn region(&self) -> &Region {
        self.region.get().expect("the region is there before the first fault")
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, held: &mut Held, fault: Fault) {
        let (region, page) = (self.region(), fault.page);
        if held.faults.len() < FAULTS_MAX {
            held.faults.push(fault);
        }
        match (held.access[page], fault.write) {
            (Access::None, write) => {
                let access = if write { Access::Write } else { Access::Read };
                let first = !held.fetched[page];
                if let (true, Some(remote)) = (first, self.remote) {
                    region.populate(page, 1).expect("there is memory");
                    // SAFETY: the privileged view of one page.
                    unsafe { region.privileged(page, 1).write_bytes(remote(page), region.page_bytes()) };
                }
                held.fetched[page] = true;
                region.install(page, 1, access, first && self.remote.is_none()).expect("installed");
                held.access[page] = access;
            }
            (Access::Read, true) => {
                region.upgrade(page, 1).expect("upgraded");
                held.access[page] = Access::Write;
            }
            // Another thread's fault was answered first.
            _ => region.wake(page, 1),
        }
    }
}

impl FaultServer for Peer {
    fn serve(&self, fault: Fault) {
        let mut held = self.held();
        self.answer(&mut held, fault);
    }

    fn announce(&self, pages: Range<usize>, write: bool) {
        let mut held = self.held();
        if held.announced.len() < held.announced.capacity() {
            held.announced.push((pages, write));
        }
    }
}

/// A region with its peer.
pub(crate) struct World {
    pub(crate) region: Arc<Region>,
    pub(crate) peer: Arc<Peer>,
    poller: Option<Poller>,
    _alone: MutexGuard<'static, ()>,
}

/// What a world is made of; the rest has defaults.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) catcher: Catcher,
    pub(crate) bytes: usize,
    pub(crate) page_bytes: usize,
    pub(crate) reserve: Reserve,
    pub(crate) remote: Option<fn(usize) -> u8>,
    /// Pages at addresses of their own, in memory that the test gives away.
    pub(crate) pieces: &'static [Piece],
    /// Pages whose faults are queued: the first ones, and those behind the last.
    pub(crate) queued: &'static [(usize, usize)],
}

impl Plan {
    pub(crate) fn of(catcher: Catcher) -> Plan {
        Plan {
            catcher,
            bytes: 1 << 20,
            page_bytes: 4096,
            reserve: Reserve::Lazy,
            remote: None,
            pieces: &[],
            queued: &[],
        }
    }
}

impl World {
    /// `None`, and a line that says why, when the catcher does not work on this machine.
    pub(crate) fn make(test: &str, plan: Plan) -> Option<World> {
        if !works(test, plan.catcher) {
            return None;
        }
        let alone = alone();
        let options = RegionOptions {
            base_address: None,
            bytes: plan.bytes,
            page_bytes: plan.page_bytes,
            catcher: plan.catcher,
            reserve: plan.reserve,
        };
        let queued = plan.queued.iter().map(|(first, end)| first * plan.page_bytes..end * plan.page_bytes).collect();
        let region = Region::create_in_parts(&options, &Parts { pieces: plan.pieces.to_vec(), queued });
        let region = Arc::new(region.unwrap_or_else(|error| panic!("{error}")));
        let pages = region.pages();
        let peer = Arc::new(Peer {
            region: OnceLock::new(),
            remote: plan.remote,
            held: Mutex::new(Held {
                access: vec![Access::None; pages],
                fetched: vec![false; pages],
                faults: Vec::with_capacity(FAULTS_MAX),
                announced: Vec::with_capacity(FAULTS_MAX),
            }),
        });
        assert!(peer.region.set(Arc::clone(&region)).is_ok());
        region.catch(Arc::clone(&peer) as Arc<dyn FaultServer>).unwrap_or_else(|error| panic!("{error}"));
        let poller = Poller::start(&region, Arc::clone(&peer) as Arc<dyn FaultServer>);
        // SAFETY: the test gave this memory away.
        unsafe { region.occupy() }.unwrap_or_else(|error| panic!("{error}"));
        Some(World { region, peer, poller, _alone: alone })
    }

    /// The address of a byte of the application view.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.region.bytes());
        self.region.base().wrapping_add(offset)
    }

    /// The pages announced since the last call, and whether they are stored to.
    pub(crate) fn announced(&self) -> Vec<(Range<usize>, bool)> {
        self.peer.held().announced.drain(..).collect()
    }

    /// A load by the application.
    pub(crate) fn load(&self, offset: usize) -> u8 {
        // SAFETY: inside the region, which lives as long as self.
        unsafe { self.at(offset).read_volatile() }
    }

    /// A store by the application.
    pub(crate) fn store(&self, offset: usize, value: u8) {
        // SAFETY: inside the region, which lives as long as self.
        unsafe { self.at(offset).write_volatile(value) }
    }

    /// What the runtime sees at the same place.
    pub(crate) fn privileged_load(&self, offset: usize) -> u8 {
        let page_bytes = self.region.page_bytes();
        let start = self.region.privileged(offset / page_bytes, 1);
        // SAFETY: inside the privileged view of that page.
        unsafe { start.add(offset % page_bytes).read_volatile() }
    }

    /// The faults since the last call, as if each were at the first byte of its page.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        self.exact_faults().into_iter().map(|fault| Fault { offset: 0, ..fault }).collect()
    }

    /// The faults since the last call.
    pub(crate) fn exact_faults(&self) -> Vec<Fault> {
        self.peer.held().faults.drain(..).collect()
    }

    /// Takes access away, as another node's write (`Access::None`) or read (`Access::Read`) would.
    /// Returns from how many pages.
    pub(crate) fn withdraw(&self, page: usize, count: usize, left: Access) -> usize {
        let mut held = self.peer.held();
        let mut changed = 0;
        for page in page..page + count {
            match (held.access[page], left) {
                (Access::Write, Access::Read) => self.region.downgrade(page, 1).expect("downgraded"),
                (Access::Write | Access::Read, Access::None) => self.region.revoke(page, 1).expect("revoked"),
                _ => continue,
            }
            held.access[page] = left;
            changed += 1;
        }
        changed
    }

    /// Changes how stores are detected while no fault is served. A marked store to a readable page is a *write* page for
    /// the peer afterwards, because it was allowed.
    pub(crate) fn switched(&self, page: usize, count: usize, detection: Detection) {
        let mut held = self.peer.held();
        self.region.detect(page, count, detection).expect("detected");
        if detection == Detection::Faults {
            let note = &mut |first: usize, count: usize| held.access[first..first + count].fill(Access::Write);
            self.region.stored_to(page, count, note).expect("scanned");
        }
    }

    /// Downgrades a page, runs `look` on its privileged view, and lets faults be answered again.
    pub(crate) fn frozen<T>(&self, page: usize, look: impl FnOnce(*mut u8) -> T) -> T {
        let mut held = self.peer.held();
        if held.access[page] == Access::Write {
            self.region.downgrade(page, 1).expect("downgraded");
            held.access[page] = Access::Read;
        }
        look(self.region.privileged(page, 1))
    }

    /// Tells the peer what the test did to the pages by itself.
    pub(crate) fn note(&self, page: usize, count: usize, access: Access) {
        let mut held = self.peer.held();
        held.access[page..page + count].fill(access);
        held.fetched[page..page + count].fill(true);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.poller.take());
        self.region.release();
    }
}

/// The thread that takes the faults of the catcher `handler` and has them served.
pub(crate) struct Poller {
    stop: Arc<AtomicBool>,
    wake_up: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    /// `None` for the catchers that need no thread.
    pub(crate) fn start(region: &Arc<Region>, server: Arc<dyn FaultServer>) -> Option<Poller> {
        let event = region.event_fd()?;
        // SAFETY: a new descriptor, which is ours.
        let wake_up = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        let stop = Arc::new(AtomicBool::new(false));
        let (region, stopping, ring) = (Arc::clone(region), Arc::clone(&stop), wake_up.as_raw_fd());
        let thread = std::thread::spawn(move || {
            let mut faults = Vec::with_capacity(FAULT_BATCH);
            while !stopping.load(Ordering::SeqCst) {
                let wait = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                let mut waits = [wait(event), wait(ring)];
                // SAFETY: two valid entries.
                unsafe { libc::poll(waits.as_mut_ptr(), 2, -1) };
                region.take_faults(&mut faults);
                for fault in faults.drain(..) {
                    server.serve(fault);
                }
            }
        });
        Some(Poller { stop, wake_up, thread: Some(thread) })
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // SAFETY: eight bytes to an eventfd.
        unsafe { libc::write(self.wake_up.as_raw_fd(), (&raw const ONE).cast(), 8) };
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the poller ends without a panic");
        }
    }
}

static ONE: u64 = 1;

/// Keeps other tests away until dropped.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the catcher works here; if not, says so.
pub(crate) fn works(test: &str, catcher: Catcher) -> bool {
    match choose(Some(catcher), &probe()) {
        Ok(_) => true,
        Err(why) => {
            skip(test, Need::Kernel, why);
            false
        }
    }
}

/// Whether this process is the one that [`again`] started.
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

const CHILD: &str = "TRELLIS_MEMORY_TEST_CHILD";

/// Runs the test `name` again in a process of its own, where [`is_child`] is true, with more environment.
pub(crate) fn again(name: &str, environment: &[(&str, &str)]) -> Output {
    let program = std::env::current_exe().expect("this test's program");
    Command::new(program)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the program can be started again")
}

/// The child's standard error and output, for messages.
pub(crate) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
