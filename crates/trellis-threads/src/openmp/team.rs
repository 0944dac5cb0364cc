//! Teams: how a parallel region begins and ends, and how its threads meet.
//!
//! One team at a time *spans* all nodes: that of a region which a thread of node 0 begins outside of other regions. Its
//! threads are kept for the next such region. At each other node, one of them waits in a meeting of all nodes, to which
//! the thread that begins a region brings the address of its description; it lets the others at its node go. At the end
//! of the region each node gives a permit to the one that began it. All other teams have their threads, which are made
//! for them, at the node of the thread that begins the region.
//!
//! The description of a region lies in the heap and is kept: a program begins the same regions again and again, and
//! then no page of the description is changed, and none travels.
//!
//! Promises: a region ends only when all its threads have done its function and all its tasks. It must never change a
//! description before the region is over.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::pool::Pool;
use super::settings::{LEVELS_MAX, Settings};
use super::sharing::{Construct, Loop};
use super::tasks;
use super::{Place, Thread, arguments, cancel, doacross, this_thread};
use crate::context::{self, aside};
use crate::control::{NODES_MAX, SLOTS, control};
use crate::time::FOREVER;
use crate::{runtime, start, threads};

/// The numbers of a team's objects, by kind.
const BARRIER: u32 = 1;
const END: u32 = 2;

/// The work of the threads of a region.
#[derive(Clone, Copy, PartialEq)]
#[repr(C)]
pub(super) enum Work {
    /// A function of GCC's compiler, with its argument.
    Gcc { function: usize, data: usize },
    /// A function of LLVM's compiler, with its number of arguments.
    Llvm { function: usize, count: usize, arguments: Arguments },
}

/// The arguments of a function of LLVM's compiler.
#[derive(Clone, Copy, PartialEq)]
#[repr(C)]
pub(super) enum Arguments {
    /// The first arguments.
    Here([usize; ARGUMENTS]),
    /// The address of the others.
    At(usize),
}

/// The number of arguments for which the description of a region has room.
pub(super) const ARGUMENTS: usize = 24;

/// The description of a region, for its threads on all nodes.
#[derive(Clone, Copy, PartialEq)]
#[repr(C)]
pub(super) struct Region {
    work: Work,
    size: u32,
    /// Its level: the number of regions around it, including itself, and of those that have several threads.
    level: u32,
    active_level: u32,
    settings: Settings,
    /// The loop in which the threads begin, if the compiler has joined it with the region.
    first_loop: Option<Loop>,
    /// For each level from 1 on: the number of the thread there, and the size of its team.
    ancestors: [(u32, u32); LEVELS_MAX as usize],
}

/// The words that the threads of a team share. For a team that spans nodes, they have a page of the region.
#[repr(C)]
pub(crate) struct Shared {
    /// The next turn in the ordered regions of its loops.
    pub(super) turn: AtomicU64,
    /// The source of `copyprivate`.
    pub(super) copied: AtomicUsize,
    /// Whether the region was cancelled; the barrier at the end of the loop or the sections that were; and the last barrier to
    /// which a thread came inside of the region.
    pub(super) region_cancelled: AtomicU32,
    pub(super) sharing_cancelled: AtomicU32,
    pub(super) last_inside: AtomicU32,
}

impl Shared {
    const fn new() -> Shared {
        Shared {
            turn: AtomicU64::new(0),
            copied: AtomicUsize::new(0),
            region_cancelled: AtomicU32::new(0),
            sharing_cancelled: AtomicU32::new(0),
            last_inside: AtomicU32::new(0),
        }
    }

    /// Prepares for the next region. Most regions change none of these words, and their page stays where it is.
    fn begin(&self) {
        if self.turn.load(Ordering::Acquire) != 0 {
            self.turn.store(0, Ordering::Release);
        }
        for word in [&self.region_cancelled, &self.sharing_cancelled, &self.last_inside] {
            if word.load(Ordering::Acquire) != 0 {
                word.store(0, Ordering::Release);
            }
        }
    }
}

/// A team, as one node knows it. It lies in private memory.
pub(super) struct Team {
    /// The number of its threads, of its threads at this node, and of its nodes.
    pub(super) size: u32,
    pub(super) local: u32,
    pub(super) nodes: u32,
    pub(super) level: u32,
    pub(super) active_level: u32,
    pub(super) ancestors: [(u32, u32); LEVELS_MAX as usize],
    /// The number of its first thread at this node.
    first: u32,
    spans: bool,
    /// The number of threads of this node that have come to the barrier, and how often all have.
    arrived: AtomicU32,
    meetings: AtomicU32,
    /// The work-sharing constructs in which threads of this node are.
    pub(super) constructs: Mutex<Vec<Construct>>,
    pub(super) pool: Pool,
    own: Shared,
}

// SAFETY: everything that changes is atomic, or behind a lock.
unsafe impl Sync for Team {}

impl Team {
    fn new(region: &Region, local: u32, nodes: u32, first: u32, spans: bool) -> Team {
        Team {
            size: region.size,
            local,
            nodes,
            level: region.level,
            active_level: region.active_level,
            ancestors: region.ancestors,
            first,
            spans,
            arrived: AtomicU32::new(0),
            meetings: AtomicU32::new(0),
            constructs: Mutex::new(Vec::new()),
            pool: Pool::new(),
            own: Shared::new(),
        }
    }

    /// Whether a thread is the first one at its node, and not the first of all.
    pub(super) fn is_first_of_a_node(&self, number: u32) -> bool {
        self.spans && number < self.size && (1..start::nodes()).any(|node| first_at(node, self.size) == number)
    }

    /// The words that all its threads share.
    pub(super) fn shared(&self) -> &Shared {
        if self.spans { &control().team } else { &self.own }
    }

    /// Whether all threads of this node have come to the barrier, the calling one among them. If so, it lets them go when it
    /// has met the other nodes ([`Team::open`]).
    pub(super) fn comes_last(&self) -> bool {
        self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.local
    }

    /// How often the barrier was opened. A thread reads this before it comes to the barrier.
    pub(super) fn meetings(&self) -> u32 {
        self.meetings.load(Ordering::Acquire)
    }

    /// Lets the threads of this node go on, after all nodes have met.
    pub(super) fn open(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.meetings.fetch_add(1, Ordering::AcqRel);
        if self.local > 1 {
            context::wake_all(&self.meetings);
        }
    }

    /// Meets the other nodes of the team, for this time at most. Returns whether all have come.
    pub(super) fn meet_nodes(&self, limit_ns: u64) -> bool {
        self.nodes == 1 || runtime::arrive(BARRIER, 0, self.nodes, limit_ns)
    }

    /// A barrier without tasks.
    fn meet(&self) {
        aside(|| {
            let meetings = self.meetings();
            if self.comes_last() {
                self.meet_nodes(FOREVER);
                self.open();
            } else {
                context::wait_while(&self.meetings, meetings);
            }
        });
    }
}

/// Waits for a change that another thread makes in memory: in the region, if it is of another node.
pub(super) fn wait_until(is_so: impl Fn() -> bool) {
    /// How often a thread looks before it sleeps, and how long it sleeps.
    const LOOKS: u32 = 50;
    const SLEEP_US_MAX: u64 = 200;
    let mut looks = 0u32;
    while !is_so() {
        looks += 1;
        if looks < LOOKS {
            std::hint::spin_loop();
        } else {
            let microseconds = u64::from(looks - LOOKS + 1).min(SLEEP_US_MAX);
            aside(|| std::thread::sleep(Duration::from_micros(microseconds)));
        }
    }
}

/// The calling thread waits until all threads of its team have come, and all tasks of the team are done.
pub(super) fn barrier() {
    let thread = this_thread();
    // The tasks of a team of one thread are done when they are made.
    if let Some(team) = thread.team().filter(|team| team.size > 1) {
        cancel::come_to_barrier(thread);
        meet_all(thread, team);
    }
}

/// The same, for a thread that has counted the barrier.
pub(super) fn meet_all(thread: &Thread, team: &Team) {
    match tasks::are_used() {
        true => tasks::barrier(thread, team),
        false => team.meet(),
    }
}

/// Begins a region, does the calling thread's part, and waits for the end. With `wanted` 0, it has as many threads as
/// are set.
pub(super) fn fork(work: Work, wanted: u32, first_loop: Option<Loop>) {
    let thread = this_thread();
    let settings = thread.settings();
    let (level, active_level, ancestors) = thread.levels();
    let wanted = if wanted == 0 { settings.threads() } else { wanted.min(settings.thread_limit) };
    let size = if active_level >= settings.active_levels_max { 1 } else { wanted.max(1) };
    let region = Region {
        work,
        size,
        level: level + 1,
        active_level: active_level + u32::from(size > 1),
        settings: if size > 1 { settings.inside() } else { settings },
        first_loop,
        ancestors,
    };
    if size == 1 {
        return alone(&region);
    }
    let can_span = start::node() == 0 && active_level == 0;
    if can_span && !DOCK.is_taken.swap(true, Ordering::Acquire) {
        span(&region);
        DOCK.is_taken.store(false, Ordering::Release);
    } else {
        stay(&region);
    }
}

/// A region of one thread.
fn alone(region: &Region) {
    let team = aside(|| Box::into_raw(Box::new(Team::new(region, 1, 1, 0, false))));
    doacross::give_back(take_part(region, team, 0));
    // SAFETY: made above; its only thread has left it.
    aside(|| drop(unsafe { Box::from_raw(team) }));
}

/// The place to which a thread returns at the end of a region of one thread that the compiler runs itself.
pub(super) struct Alone {
    before: Place,
    team: *mut Team,
    outer: *mut Alone,
}

/// Begins a region of one thread, whose function the compiler itself calls.
pub(super) fn begin_alone(thread: &Thread) {
    let settings = thread.settings();
    let (level, active_level, ancestors) = thread.levels();
    let nothing = Work::Gcc { function: 0, data: 0 };
    let region =
        Region { work: nothing, size: 1, level: level + 1, active_level, settings, first_loop: None, ancestors };
    let team = aside(|| Box::into_raw(Box::new(Team::new(&region, 1, 1, 0, false))));
    let task = tasks::implicit();
    let before = thread.enter(Place { team, number: 0, settings, task, ..Place::OUTSIDE });
    let alone = Box::new(Alone { before, team, outer: thread.alone.get() });
    thread.alone.set(Box::into_raw(alone));
}

/// Ends such a region.
pub(super) fn end_alone(thread: &Thread) {
    let alone = thread.alone.get();
    if alone.is_null() {
        return;
    }
    // SAFETY: made at the beginning of the region.
    let Alone { before, team, outer } = *unsafe { Box::from_raw(alone) };
    thread.alone.set(outer);
    let here = thread.enter(before);
    doacross::end(here);
    doacross::give_back(here.shared_memory);
    tasks::forget(here.task);
    // SAFETY: the same; its only thread has left it.
    aside(|| drop(unsafe { Box::from_raw(team) }));
}

/// Does the part of one thread in a region. Returns memory that the team shared for a loop. It is given back once all
/// threads have left the region.
fn take_part(region: &Region, team: *const Team, number: u32) -> *mut c_void {
    let thread = this_thread();
    let task = tasks::implicit();
    let before = thread.enter(Place { team, number, settings: region.settings, task, ..Place::OUTSIDE });
    if let Some(first) = region.first_loop {
        thread.begin_loop(first);
    }
    run(region.work);
    if region.settings.cancels {
        cancel::end_region(thread);
    } else if tasks::are_used() {
        barrier();
    }
    let here = thread.enter(before);
    doacross::end(here);
    tasks::forget(task);
    here.shared_memory
}

fn run(work: Work) {
    match work {
        Work::Gcc { function, data } => {
            // SAFETY: what the compiler passed for this.
            unsafe { std::mem::transmute::<usize, extern "C-unwind" fn(usize)>(function)(data) };
        }
        Work::Llvm { function, count, arguments: words } => {
            let at = match &words {
                Arguments::Here(words) => words.as_ptr(),
                Arguments::At(address) => *address as *const usize,
            };
            // SAFETY: the same.
            unsafe { arguments::invoke(function, count, at) };
        }
    }
}

/// The number of the first thread at a node, of a team of `size` threads.
fn first_at(node: usize, size: u32) -> u32 {
    (node * size as usize).div_ceil(start::nodes()) as u32
}

/// The state of the team that spans all nodes, as one node knows it. It lies in private memory.
struct Dock {
    /// Whether a region has it, or is about to get it. Only node 0 uses this.
    is_taken: AtomicBool,
    /// The number of threads that were made for it at each node. Only node 0 uses this.
    made: [AtomicU32; NODES_MAX],
    /// The threads of this node that wait for its regions.
    workers: AtomicU32,
    /// The number of regions that have begun, and the last one.
    regions: AtomicU32,
    last: Mutex<Last>,
    /// The number of its threads at this node that have not ended their parts.
    left: AtomicU32,
}

/// The region that began last, as a node knows it.
#[derive(Clone, Copy)]
struct Last {
    /// The value of [`Dock::regions`].
    number: u32,
    team: usize,
    region: usize,
    /// The number of its threads at this node.
    local: u32,
}

static DOCK: Dock = Dock {
    is_taken: AtomicBool::new(false),
    made: [const { AtomicU32::new(0) }; NODES_MAX],
    workers: AtomicU32::new(0),
    regions: AtomicU32::new(0),
    last: Mutex::new(Last { number: 0, team: 0, region: 0, local: 0 }),
    left: AtomicU32::new(0),
};

impl Dock {
    /// Begins a region at this node: its threads begin their parts. Returns the team and the number of these threads.
    fn begin(&self, region: &Region) -> (*const Team, u32) {
        let (node, nodes) = (start::node(), start::nodes());
        let first = first_at(node, region.size);
        let local = first_at(node + 1, region.size) - first;
        let taking_part = (region.size as usize).min(nodes) as u32;
        let description = std::ptr::from_ref(region) as usize;
        // SAFETY: the description is read here, on private memory, before anything is locked.
        let team = Team::new(region, local, taking_part, first, true);
        aside(|| {
            let team = Box::into_raw(Box::new(team));
            let mut last = self.last();
            if last.team != 0 {
                // SAFETY: made here for the region before, whose threads have ended their parts.
                drop(unsafe { Box::from_raw(last.team as *mut Team) });
            }
            *last = Last { number: last.number.wrapping_add(1), team: team as usize, region: description, local };
            self.left.store(local, Ordering::Release);
            self.regions.store(last.number, Ordering::Release);
            drop(last);
            context::wake_all(&self.regions);
            (team.cast_const(), local)
        })
    }

    /// Ends the threads of this node, because no region follows.
    fn let_go(&self) {
        aside(|| {
            let mut last = self.last();
            *last = Last { number: last.number.wrapping_add(1), region: NO_REGION, ..*last };
            self.regions.store(last.number, Ordering::Release);
            drop(last);
            context::wake_all(&self.regions);
        });
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when a thread has ended its part. Returns whether it was the last one of this node.
    fn end_part(&self) -> bool {
        let is_last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            aside(|| context::wake_all(&self.left));
        }
        is_last
    }
}

/// The descriptions of regions that were begun last, in the heap. Only the thread whose region spans all nodes uses them.
struct Descriptions {
    /// Room for all of them is made at once, so that they stay where they are.
    kept: Vec<Region>,
    /// The place of the description that is replaced next.
    next: usize,
}

static DESCRIPTIONS: Mutex<Descriptions> = Mutex::new(Descriptions { kept: Vec::new(), next: 0 });
/// The number of descriptions that are kept.
const DESCRIPTIONS_MAX: usize = 64;

impl Descriptions {
    /// Returns a description that is equal to this one, and does not change until the region is over.
    fn keep(&mut self, region: &Region) -> *const Region {
        let place = self.kept.iter().position(|kept| kept == region).unwrap_or_else(|| {
            if self.kept.len() < DESCRIPTIONS_MAX {
                self.kept.reserve_exact(DESCRIPTIONS_MAX - self.kept.len());
                self.kept.push(*region);
                return self.kept.len() - 1;
            }
            self.next = (self.next + 1) % DESCRIPTIONS_MAX;
            self.kept[self.next] = *region;
            self.next
        });
        &raw const self.kept[place]
    }
}

/// Runs a region of the team that spans all nodes.
fn span(region: &Region) {
    let nodes = start::nodes();
    let others = (region.size as usize).min(nodes) - 1;
    make_workers(region.size);
    // Only one thread at a time comes here, so no thread waits for this lock.
    let region = DESCRIPTIONS.lock().unwrap_or_else(PoisonError::into_inner).keep(region);
    // SAFETY: kept until the region is over.
    let region = unsafe { &*region };
    control().team.begin();
    if others > 0 {
        runtime::meet(std::ptr::from_ref(region) as u64);
    }
    let (team, _) = DOCK.begin(region);
    let memory = take_part(region, team, 0);
    DOCK.end_part();
    aside(|| {
        loop {
            match DOCK.left.load(Ordering::Acquire) {
                0 => break,
                left => context::wait_while(&DOCK.left, left),
            }
        }
    });
    for _ in 0..others {
        runtime::take_permit(END, 0, FOREVER);
    }
    doacross::give_back(memory);
}

/// The threads that were made for the team. Only the thread whose region spans all nodes uses this, or the one that ends
/// the program.
static WORKERS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Makes the threads that are still missing for a team of so many.
fn make_workers(size: u32) {
    let nodes = start::nodes();
    for node in 0..nodes {
        let local = first_at(node + 1, size) - first_at(node, size);
        // The thread that begins the region counts at node 0. Every other node has a thread that waits for regions in
        // any case.
        let needed = if node == 0 { local - 1 } else { local.max(u32::from((size as usize).min(nodes) > 1)) };
        let made = &DOCK.made[node];
        while made.load(Ordering::Relaxed) < needed {
            made.fetch_add(1, Ordering::Relaxed);
            match threads::make_worker(node, work_for_team, 0) {
                Ok(worker) => WORKERS.lock().unwrap_or_else(PoisonError::into_inner).push(worker),
                Err(error) => no_thread(size, error),
            }
        }
    }
}

fn no_thread(size: u32, error: i32) -> ! {
    let why = std::io::Error::from_raw_os_error(error);
    runtime::unsupported(
        &format!("a team of {size} threads (the program has {} at most; {why})", SLOTS - 8),
        "set OMP_NUM_THREADS to fewer",
    )
}

/// The value that the thread which ends the program brings to the meeting of all nodes, instead of the address of a
/// description.
const NO_REGION: usize = 1;

/// The program is about to end: ends the threads that are kept, unless a region is under way.
pub(super) fn end_workers() {
    if DOCK.is_taken.swap(true, Ordering::Acquire) {
        return;
    }
    let workers = std::mem::take(&mut *WORKERS.lock().unwrap_or_else(PoisonError::into_inner));
    if DOCK.made[1..].iter().any(|made| made.load(Ordering::Relaxed) > 0) {
        runtime::meet(NO_REGION as u64);
    }
    DOCK.let_go();
    for worker in workers {
        // SAFETY: a thread made for the team, whose answer nobody wants.
        unsafe { threads::join(worker, std::ptr::null_mut()) };
    }
}

/// The function of a thread that serves the team which spans all nodes.
extern "C-unwind" fn work_for_team(_: *mut c_void) -> *mut c_void {
    let worker = DOCK.workers.fetch_add(1, Ordering::AcqRel);
    let node = start::node();
    // At node 0, the thread that begins the region is the first one.
    let place = if node == 0 { worker + 1 } else { worker };
    let mut regions = 0;
    loop {
        if place == 0 {
            let description = runtime::meet(0) as usize;
            if description == NO_REGION {
                DOCK.let_go();
                return std::ptr::null_mut();
            }
            // SAFETY: the description that node 0 brought, which lives until all threads have ended their parts.
            let region = unsafe { &*(description as *const Region) };
            let (team, local) = DOCK.begin(region);
            if local > 0 {
                end_elsewhere(region, team, place);
            }
            continue;
        }
        let last = aside(|| {
            context::wait_while(&DOCK.regions, regions);
            *DOCK.last()
        });
        regions = last.number;
        if last.region == NO_REGION {
            return std::ptr::null_mut();
        }
        if last.local > place {
            // SAFETY: this thread has a part in it, so it is not over.
            end_elsewhere(unsafe { &*(last.region as *const Region) }, last.team as *const Team, place);
        }
    }
}

/// Does the part of a thread that did not begin the region.
fn end_elsewhere(region: &Region, team: *const Team, place: u32) {
    // SAFETY: the team lives until the next region begins.
    let first = unsafe { &*team }.first;
    take_part(region, team, first + place);
    if DOCK.end_part() && start::node() != 0 {
        runtime::permit(END, 0);
    }
}

/// The argument of a thread that is made for a team at one node.
#[repr(C)]
struct Local<'a> {
    region: &'a Region,
    team: *const Team,
    next: AtomicU32,
}

/// Runs a region whose threads are all at this node.
fn stay(region: &Region) {
    let team = aside(|| Box::into_raw(Box::new(Team::new(region, region.size, 1, 0, false))));
    let local = Local { region, team, next: AtomicU32::new(1) };
    let mut handles = [0usize; SLOTS];
    let others = &mut handles[..region.size as usize - 1];
    for handle in others.iter_mut() {
        match threads::make_worker(start::node(), take_local_part, (&raw const local) as usize) {
            Ok(made) => *handle = made,
            Err(error) => no_thread(region.size, error),
        }
    }
    let memory = take_part(region, team, 0);
    for handle in others {
        // SAFETY: a thread made above, whose answer nobody wants.
        unsafe { threads::join(*handle, std::ptr::null_mut()) };
    }
    doacross::give_back(memory);
    // SAFETY: made above; all its threads have left it.
    aside(|| drop(unsafe { Box::from_raw(team) }));
}

extern "C-unwind" fn take_local_part(local: *mut c_void) -> *mut c_void {
    // SAFETY: what `stay` passes, which lives until this thread has ended.
    let local = unsafe { &*local.cast::<Local<'_>>() };
    let number = local.next.fetch_add(1, Ordering::AcqRel);
    take_part(local.region, local.team, number);
    std::ptr::null_mut()
}

impl Thread {
    /// How many regions are around it, and how many of them have several threads; and its ancestors for a region in it.
    fn levels(&self) -> (u32, u32, [(u32, u32); LEVELS_MAX as usize]) {
        let Some(team) = self.team() else { return (0, 0, [(0, 1); LEVELS_MAX as usize]) };
        let mut ancestors = team.ancestors;
        if let Some(place) = ancestors.get_mut(team.level as usize - 1) {
            *place = (self.number.get(), team.size);
        }
        (team.level, team.active_level, ancestors)
    }

    /// The number of this thread's ancestor at a level, and the size of its team.
    pub(super) fn ancestor(&self, level: i32) -> Option<(u32, u32)> {
        let own = self.team().map_or(0, |team| team.level);
        let level = u32::try_from(level).ok().filter(|level| *level <= own)?;
        match level {
            0 => Some((0, 1)),
            level if level == own => Some((self.number.get(), self.team_size())),
            // Only regions of one thread are deeper than the table.
            level => Some(self.team()?.ancestors.get(level as usize - 1).copied().unwrap_or((0, 1))),
        }
    }
}

/// The address that the thread which did a `single` region gave to the others.
pub(super) fn copied(thread: &Thread) -> *mut c_void {
    thread.team().map_or(std::ptr::null_mut(), |team| team.shared().copied.load(Ordering::Acquire) as *mut c_void)
}

/// Gives an address to the other threads of the team, which read it after the next barrier.
pub(super) fn set_copied(thread: &Thread, data: *mut c_void) {
    if let Some(team) = thread.team() {
        team.shared().copied.store(data as usize, Ordering::Release);
    }
}
