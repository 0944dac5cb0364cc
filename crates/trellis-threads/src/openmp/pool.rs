//! The tasks of a node, and how nodes give each other some.
//!
//! A node keeps the tasks that its threads made in private memory. A node whose threads have nothing to do says so in a
//! word of the region, at a barrier or where a thread waits for the children of its own task. A thread of another node
//! that sees it gives it the oldest of its tasks, which are the largest where tasks make tasks: one at first, and twice
//! as many each time that the node is soon back. It puts them into that node's mailbox, and gives it a permit.
//!
//! When a barrier may open is decided as Dijkstra and Scholten describe (Termination detection for diffusing
//! computations, 1980). A node comes to the barrier once it is quiet: its threads wait, it has no task, and what it
//! gave away has come back. A node that has come already and gets tasks gives the answer when it is quiet again; any
//! other node at once. So while a task is left anywhere, some node has not come.
//!
//! Promises: a task is in one pool, or in one mailbox. A barrier opens only when no task of the team is left. It must
//! never wait for a page while a pool is locked.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::tasks::Task;
use super::team::Team;
use crate::context::{self, aside};
use crate::control::{NODES_MAX, control};
use crate::{relaxed, runtime, start};

/// The number of the semaphore whose permits say that a mailbox has tasks.
const MAIL: u32 = 3;
/// The maximum number of tasks in a mailbox.
const MAILBOX_TASKS: usize = 64;

/// The work of one node of a team. It lies in private memory.
pub(super) struct Pool {
    state: Mutex<State>,
    /// Changes when a waiting thread must look again.
    signal: AtomicU32,
    /// Whether this node has come to the barrier.
    has_come: AtomicBool,
    /// The node that gets an answer when this one is quiet, plus one; 0 for none.
    engaged_by: AtomicU32,
}

struct State {
    /// The newest last.
    tasks: VecDeque<Entry>,
    /// The number of threads that have nothing to do, and whether one of them meets the other nodes.
    idle: u32,
    is_led: bool,
}

/// A task in a pool.
#[derive(Clone, Copy)]
struct Entry {
    address: usize,
    /// It is not given to another node.
    stays: bool,
}

impl Entry {
    fn task(self) -> *mut Task {
        self.address as *mut Task
    }

    /// Another node gave it to this one.
    fn given(address: usize) -> Entry {
        Entry { address, stays: false }
    }
}

/// What nodes say to each other about tasks. It lies in the region, in a page of its own for each node.
#[repr(C, align(4096))]
pub(crate) struct Mailbox {
    giver: AtomicU32,
    count: AtomicU32,
    tasks: [AtomicUsize; MAILBOX_TASKS],
    /// The number of times that this node gave tasks away and has no answer yet.
    unanswered: AtomicU32,
}

/// Which nodes have nothing to do: 1; 2 while one of them is being given something.
#[repr(C, align(4096))]
pub(crate) struct WithoutTasks([AtomicU32; NODES_MAX]);

/// How a wait at the barrier ended.
pub(super) enum Waited {
    IsOpen,
    HasTasks,
}

impl Pool {
    pub(super) fn new() -> Pool {
        Pool {
            state: Mutex::new(State { tasks: VecDeque::new(), idle: 0, is_led: false }),
            signal: AtomicU32::new(0),
            has_come: AtomicBool::new(false),
            engaged_by: AtomicU32::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.signal.fetch_add(1, Ordering::AcqRel);
        context::wake_all(&self.signal);
    }

    /// Adds a task that may be done from now on. Returns the number of tasks.
    pub(super) fn push(&self, task: *mut Task) -> usize {
        // SAFETY: a task that nobody does yet.
        let entry = Entry { address: task as usize, stays: unsafe { (*task).stays } };
        aside(|| {
            let mut state = self.lock();
            state.tasks.push_back(entry);
            self.wake_idle(state)
        })
    }

    /// Takes the newest task. Also returns the number of the others.
    pub(super) fn pop(&self) -> Option<(*mut Task, usize)> {
        aside(|| {
            let mut state = self.lock();
            let task = state.tasks.pop_back()?;
            Some((task.task(), state.tasks.len()))
        })
    }

    pub(super) fn count(&self) -> usize {
        aside(|| self.lock().tasks.len())
    }

    /// Takes the newest task that descends from `ancestor`.
    pub(super) fn pop_descendant(&self, ancestor: *mut Task) -> Option<*mut Task> {
        for from_end in 0.. {
            // Other tasks may end meanwhile, so the task is taken before it is examined. Its ancestors are in the
            // region, so the pool is not locked meanwhile.
            let entry = aside(|| {
                let mut state = self.lock();
                let place = state.tasks.len().checked_sub(from_end + 1)?;
                state.tasks.remove(place)
            })?;
            if descends(entry.task(), ancestor) {
                return Some(entry.task());
            }
            aside(|| self.put_back(entry, from_end));
        }
        None
    }

    /// Puts a task back, behind `newer` newer ones.
    fn put_back(&self, entry: Entry, newer: usize) {
        let mut state = self.lock();
        let place = state.tasks.len().saturating_sub(newer);
        state.tasks.insert(place, entry);
        self.wake_idle(state);
    }

    /// Wakes threads that have nothing to do. Returns the number of tasks.
    fn wake_idle(&self, state: MutexGuard<'_, State>) -> usize {
        let (count, idle) = (state.tasks.len(), state.idle);
        drop(state);
        if idle > 0 {
            self.wake();
        }
        count
    }

    /// Takes the oldest tasks that may go to another node: at most half of all, and at most as many as a mailbox holds.
    fn oldest(&self, wanted: usize) -> Vec<usize> {
        let mut state = self.lock();
        let count = state.tasks.len().div_ceil(2).min(MAILBOX_TASKS).min(wanted);
        let mut taken = Vec::with_capacity(count);
        state.tasks.retain(|entry| {
            let stays = entry.stays || taken.len() == count;
            if !stays {
                taken.push(entry.address);
            }
            stays
        });
        taken
    }
}

/// Whether a task descends from another one.
fn descends(task: *mut Task, ancestor: *mut Task) -> bool {
    let mut at = task;
    while !at.is_null() {
        // SAFETY: a task that is not done, whose ancestors are kept as long as it is.
        at = unsafe { (*at).parent() };
        if at == ancestor {
            return true;
        }
    }
    false
}

/// Waits until the barrier opens or there is something to do. Runs on private memory.
pub(super) fn wait(team: &Team, meetings: u32) -> Waited {
    let pool = &team.pool;
    let mut state = pool.lock();
    if team.meetings() != meetings {
        return Waited::IsOpen;
    }
    if !state.tasks.is_empty() {
        return Waited::HasTasks;
    }
    state.idle += 1;
    if state.idle < team.local || state.is_led {
        let signal = pool.signal.load(Ordering::Acquire);
        drop(state);
        context::wait_while(&pool.signal, signal);
        let mut state = pool.lock();
        if team.meetings() != meetings {
            return Waited::IsOpen;
        }
        state.idle -= 1;
        return Waited::HasTasks;
    }
    state.is_led = true;
    drop(state);
    // Now no thread of this node has anything to do. A thread that was woken for a task which others did is counted
    // again.
    let given = wait_for_other_nodes(team);
    let mut state = pool.lock();
    state.is_led = false;
    let waited = match given {
        Some(tasks) => {
            state.idle -= 1;
            state.tasks.extend(tasks.into_iter().map(Entry::given));
            Waited::HasTasks
        }
        None => {
            state.idle = 0;
            pool.has_come.store(false, Ordering::Relaxed);
            team.open();
            Waited::IsOpen
        }
    };
    drop(state);
    pool.wake();
    waited
}

/// Meets the other nodes. Returns tasks that another node has given to this one before all nodes have come.
fn wait_for_other_nodes(team: &Team) -> Option<Vec<usize>> {
    /// How long a node waits at the barrier before it looks whether it was given tasks. It asks for tasks only after
    /// the first look. Otherwise the page of these words would go from node to node at each barrier.
    const LOOK_NS: u64 = 50_000;
    const LONGEST_LOOK_NS: u64 = 1_000_000;
    if team.nodes == 1 {
        return None;
    }
    let me = start::node();
    let (without_tasks, unanswered) = (&control().without_tasks.0[me], &control().mailboxes[me].unanswered);
    let mut look_ns = LOOK_NS;
    loop {
        if let Some(tasks) = receive(team) {
            return Some(tasks);
        }
        if look_ns > LOOK_NS {
            ask();
        }
        if unanswered.load(Ordering::Acquire) != 0 {
            std::thread::sleep(Duration::from_nanos(look_ns));
        } else {
            if HAS_GIVEN.swap(false, Ordering::AcqRel) {
                relaxed::acquire();
            }
            answer(team.pool.engaged_by.swap(0, Ordering::AcqRel));
            team.pool.has_come.store(true, Ordering::Relaxed);
            if team.meet_nodes(look_ns) {
                // This may have been said already before the barrier.
                if without_tasks.load(Ordering::Relaxed) == 1 {
                    let _ = without_tasks.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed);
                }
                return None;
            }
        }
        look_ns = (2 * look_ns).min(LONGEST_LOOK_NS);
    }
}

/// A thread of this node waits, and may do any task: it takes what other nodes have given, and says that it has nothing.
pub(super) fn ask_for_tasks(team: &Team) {
    aside(|| {
        if let Some(tasks) = receive(team) {
            let mut state = team.pool.lock();
            state.tasks.extend(tasks.into_iter().map(Entry::given));
            team.pool.wake_idle(state);
        }
        ask();
    });
}

/// Says that this node has nothing to do.
fn ask() {
    let without_tasks = &control().without_tasks.0[start::node()];
    if without_tasks.load(Ordering::Relaxed) == 0 {
        // The exchange fails if this was said already, or if a node is giving tasks now. Both are fine.
        let _ = without_tasks.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Takes what another node has put into the mailbox of this one.
fn receive(team: &Team) -> Option<Vec<usize>> {
    let me = start::node();
    if !runtime::take_permit(MAIL, me, 0) {
        return None;
    }
    let mailbox = &control().mailboxes[me];
    let count = mailbox.count.load(Ordering::Acquire) as usize;
    let tasks = mailbox.tasks[..count.min(MAILBOX_TASKS)].iter().map(|task| task.load(Ordering::Relaxed)).collect();
    let giver = mailbox.giver.load(Ordering::Relaxed);
    control().without_tasks.0[me].store(0, Ordering::Release);
    let is_engaged = team.pool.engaged_by.load(Ordering::Relaxed) != 0;
    if team.pool.has_come.load(Ordering::Relaxed) && !is_engaged {
        team.pool.engaged_by.store(giver + 1, Ordering::Relaxed);
    } else {
        answer(giver + 1);
    }
    Some(tasks)
}

/// Answers the node that gave tasks to this one. `node` is its number plus one, or 0 for none.
fn answer(node: u32) {
    if let Some(node) = node.checked_sub(1) {
        relaxed::release();
        control().mailboxes[node as usize].unanswered.fetch_sub(1, Ordering::AcqRel);
    }
}

/// For each other node: when this node last gave it tasks, in nanoseconds, and how many.
static GIVEN: [(AtomicU64, AtomicUsize); NODES_MAX] = [const { (AtomicU64::new(0), AtomicUsize::new(0)) }; NODES_MAX];

/// Whether this node has given tasks away since it came to a barrier.
static HAS_GIVEN: AtomicBool = AtomicBool::new(false);

/// How many tasks a node gets now.
fn wanted_count(node: usize) -> usize {
    /// A node that is idle again within this time got too few tasks.
    const SOON_NS: u64 = 2_000_000;
    let (time, count) = &GIVEN[node];
    let now = time_ns();
    let is_soon = now.saturating_sub(time.swap(now, Ordering::Relaxed)) < SOON_NS;
    let wanted = if is_soon { (2 * count.load(Ordering::Relaxed)).clamp(1, MAILBOX_TASKS) } else { 1 };
    count.store(wanted, Ordering::Relaxed);
    wanted
}

fn time_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Gives tasks to a node that has none, if there is one.
pub(super) fn give_to_node_without_tasks(team: &Team) {
    if team.nodes == 1 {
        return;
    }
    let (me, without_tasks) = (start::node(), &control().without_tasks.0);
    for node in (0..start::nodes()).filter(|node| *node != me) {
        if without_tasks[node].load(Ordering::Relaxed) != 1
            || without_tasks[node].compare_exchange(1, 2, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            continue;
        }
        aside(|| {
            let tasks = team.pool.oldest(wanted_count(node));
            if tasks.is_empty() {
                return without_tasks[node].store(1, Ordering::Release);
            }
            let mailbox = &control().mailboxes[node];
            for (place, task) in mailbox.tasks.iter().zip(&tasks) {
                place.store(*task, Ordering::Relaxed);
            }
            mailbox.giver.store(me as u32, Ordering::Relaxed);
            mailbox.count.store(tasks.len() as u32, Ordering::Release);
            control().mailboxes[me].unanswered.fetch_add(1, Ordering::AcqRel);
            HAS_GIVEN.store(true, Ordering::Release);
            runtime::permit(MAIL, node);
        });
        return;
    }
}
