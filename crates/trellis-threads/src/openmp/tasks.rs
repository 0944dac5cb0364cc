//! Tasks: made by threads of a team, done by any of them.
//!
//! A task lies in the region. A node keeps the tasks that its threads made in private memory, and does the newest ones first.
//! A node whose threads have nothing to do says so in a word of the region, at a barrier or where a thread waits for the
//! children of its own task. A thread of another node that sees it gives it the oldest of its tasks, which are the largest
//! where tasks make tasks: one at first, and twice as many each time that the node is soon back. It puts them into that
//! node's mailbox, and gives it a permit.
//!
//! When a barrier may open is decided as Dijkstra and Scholten describe (Termination detection for diffusing computations,
//! 1980). A node comes to the barrier once it is quiet: its threads wait, it has no task, and what it gave away has come
//! back. A node that has come already and gets tasks gives the answer when it is quiet again; any other node at once. So
//! while a task is left anywhere, some node has not come.
//!
//! Promises: a task is done once. A barrier opens only when all tasks of the team are done. While a thread waits for the
//! children of a task and has a lock of OpenMP, it does only tasks that descend from that one, so no task waits for a lock
//! that its own thread has (the purpose of the task scheduling constraints, OpenMP 5.2, 12.9). Without a lock it does any
//! task: tasks that were given to its node might otherwise wait for each other at two nodes. A program without tasks pays
//! nothing for them.

use std::collections::{BTreeMap, VecDeque};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::settings::Settings;
use super::team::Team;
use super::{Thread, llvm, locks};
use crate::context::{self, aside};
use crate::control::{NODES_MAX, control};
use crate::{runtime, start};

/// The number of the permits that say that there is something in a mailbox.
const MAIL: u32 = 3;
/// The most tasks in a mailbox.
const MAILBOX_TASKS: usize = 64;
/// A node with so many tasks gives some away while its threads make more; with two, before it does one.
const GIVES_WHILE_MAKING: usize = 16;
/// A thread of a node that has so many tasks for each of its threads does a new task at once.
const TASKS_PER_THREAD_MAX: usize = 64;

/// Whether the program makes tasks. It is the same on every node.
pub(super) static USED: AtomicBool = AtomicBool::new(false);

pub(super) fn are_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// What a task does.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) enum TaskWork {
    /// Nothing: the task of a thread itself.
    Implicit,
    /// A function of GCC's compiler, with its data, and the block in which they lie, if there is one.
    Gcc { function: usize, data: usize, block: usize },
    /// A block of LLVM's compiler.
    Llvm { block: usize },
}

/// A task; in the region.
#[repr(C)]
pub(super) struct Task {
    work: TaskWork,
    parent: *mut Task,
    /// How many of its children are not done.
    children: AtomicU32,
    /// Itself until it is done, its children, and entries of lists of dependences.
    references: AtomicU32,
    /// The group that it belongs to, and the one that its children belong to.
    member_of: *mut Group,
    group: *mut Group,
    settings: Settings,
    pub(super) is_final: bool,
    /// It has asked to be done once more when it returns.
    is_done_again: bool,
    /// It has dependences, so others may wait for it.
    has_dependences: bool,
    /// Under the lock of dependences: whether it is done, how many tasks it waits for, and which wait for it.
    is_done: bool,
    missing: AtomicU32,
    successors: Vec<*mut Task>,
    /// What its children depend on, by address.
    uses: BTreeMap<usize, Use>,
}

/// Tasks whose end a thread waits for; in the region.
#[repr(C)]
pub(super) struct Group {
    outer: *mut Group,
    unfinished: AtomicU32,
}

/// The last tasks of one parent that use an address.
struct Use {
    writer: *mut Task,
    readers: Vec<*mut Task>,
}

/// A dependence of a new task: an address, and whether the task may change what is there.
pub(super) type Dependence = (usize, bool);

/// What the node of a team has to do. Private memory.
pub(super) struct Pool {
    state: Mutex<State>,
    /// Changes when a thread that waits must look again.
    signal: AtomicU32,
    /// This node has come to the barrier.
    has_come: AtomicBool,
    /// One more than the node that gets an answer when this one is quiet; 0: none.
    engaged_by: AtomicU32,
}

struct State {
    /// The addresses of tasks, the newest last.
    tasks: VecDeque<usize>,
    /// How many threads have nothing to do, and whether one of them meets the other nodes.
    idle: u32,
    is_led: bool,
}

/// What nodes say to each other about tasks; in the region, of each node in a page of its own.
#[repr(C, align(4096))]
pub(crate) struct Mailbox {
    giver: AtomicU32,
    count: AtomicU32,
    tasks: [AtomicUsize; MAILBOX_TASKS],
    /// How often this node has given tasks away without an answer.
    unanswered: AtomicU32,
}

/// Which nodes have nothing to do: 1; 2 while one of them is being given something.
#[repr(C, align(4096))]
pub(crate) struct Hungry([AtomicU32; NODES_MAX]);

/// How a wait at the barrier ended.
enum Waited {
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

    /// A task may be done from now on. Returns how many there are.
    fn push(&self, task: *mut Task) -> usize {
        aside(|| {
            let mut state = self.lock();
            state.tasks.push_back(task as usize);
            let (count, idle) = (state.tasks.len(), state.idle);
            drop(state);
            if idle > 0 {
                self.wake();
            }
            count
        })
    }

    /// The newest task, and how many are left.
    fn pop(&self) -> Option<(*mut Task, usize)> {
        aside(|| {
            let mut state = self.lock();
            let task = state.tasks.pop_back()?;
            Some((task as *mut Task, state.tasks.len()))
        })
    }

    fn count(&self) -> usize {
        aside(|| self.lock().tasks.len())
    }

    /// The newest task that descends from `ancestor`.
    fn pop_descendant(&self, ancestor: *mut Task) -> Option<*mut Task> {
        for from_end in 0.. {
            let task = aside(|| {
                let state = self.lock();
                let place = state.tasks.len().checked_sub(from_end + 1)?;
                state.tasks.get(place).copied()
            })?;
            // The ancestors are in the region, so nothing is locked while this looks at them.
            if !descends(task as *mut Task, ancestor) {
                continue;
            }
            let is_taken = aside(|| {
                let mut state = self.lock();
                let place = state.tasks.iter().rposition(|other| *other == task);
                place.map(|place| state.tasks.remove(place)).is_some()
            });
            if is_taken {
                return Some(task as *mut Task);
            }
        }
        None
    }

    /// The oldest tasks, at most half of all and as many as a mailbox holds.
    fn oldest(&self, wanted: usize) -> Vec<usize> {
        let mut state = self.lock();
        let count = state.tasks.len().div_ceil(2).min(MAILBOX_TASKS).min(wanted);
        state.tasks.drain(..count).collect()
    }
}

/// Whether a task descends from another one.
fn descends(task: *mut Task, ancestor: *mut Task) -> bool {
    let mut at = task;
    while !at.is_null() {
        // SAFETY: a task that is not done, whose ancestors are kept as long as it is.
        at = unsafe { (*at).parent };
        if at == ancestor {
            return true;
        }
    }
    false
}

// Making and doing.

/// The task of the calling thread itself in a new region; null in a program without tasks.
pub(super) fn implicit() -> *mut Task {
    match are_used() {
        true => made(TaskWork::Implicit, null_mut(), Settings::UNKNOWN, false),
        false => null_mut(),
    }
}

/// The region is over: its implicit task is not needed any more.
pub(super) fn forget(task: *mut Task) {
    if !task.is_null() {
        release(task);
    }
}

fn made(work: TaskWork, parent: *mut Task, settings: Settings, is_final: bool) -> *mut Task {
    // SAFETY: the parent runs, or is null.
    let group = unsafe { parent.as_ref() }.map_or(null_mut(), |parent| parent.group);
    Box::into_raw(Box::new(Task {
        work,
        parent,
        children: AtomicU32::new(0),
        references: AtomicU32::new(1),
        member_of: group,
        group,
        settings,
        is_final,
        is_done_again: false,
        has_dependences: false,
        is_done: false,
        missing: AtomicU32::new(1),
        successors: Vec::new(),
        uses: BTreeMap::new(),
    }))
}

/// Whether a new task of the calling thread must be done at once: nobody else could do it, it is a part of a final task, or
/// there are enough tasks.
pub(super) fn is_undeferred(thread: &Thread) -> bool {
    let Some(team) = thread.team().filter(|team| team.size > 1) else { return true };
    if is_in_final(thread) {
        return true;
    }
    let are_enough = || team.pool.count() >= TASKS_PER_THREAD_MAX * team.local as usize;
    are_enough() && {
        give_to_hungry(team);
        are_enough()
    }
}

/// Whether the calling thread runs a final task, or a part of one.
pub(super) fn is_in_final(thread: &Thread) -> bool {
    // SAFETY: the task that runs.
    unsafe { thread.task.get().as_ref() }.is_some_and(|task| task.is_final)
}

/// A new task of the calling thread's task, which others may do. [`submit`] follows.
pub(super) fn child(thread: &Thread, work: TaskWork, is_final: bool) -> *mut Task {
    let parent = thread.task.get();
    let task = made(work, parent, thread.settings(), is_final || is_in_final(thread));
    // SAFETY: the task that runs, which has a group or none.
    unsafe {
        if let Some(parent) = parent.as_ref() {
            parent.references.fetch_add(1, Ordering::Relaxed);
            parent.children.fetch_add(1, Ordering::Relaxed);
            if let Some(group) = parent.group.as_ref() {
                group.unfinished.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    task
}

/// The task may be done when the tasks that it depends on are done.
pub(super) fn submit(thread: &Thread, task: *mut Task, dependences: &[Dependence]) {
    let Some(team) = thread.team() else { return do_task(thread, task) };
    if !dependences.is_empty() {
        // SAFETY: a new task, which nobody else knows.
        unsafe { (*task).has_dependences = true };
        if !depend(thread.task.get(), task, dependences, true) {
            return;
        }
    }
    if team.pool.push(task) >= GIVES_WHILE_MAKING {
        give_to_hungry(team);
    }
}

/// Does a new task at once, after those that it depends on.
pub(super) fn do_now(thread: &Thread, task: *mut Task, dependences: &[Dependence]) {
    await_dependences(thread, dependences);
    do_task(thread, task);
}

/// Waits until the tasks are done on which a task with these dependences would depend.
pub(super) fn await_dependences(thread: &Thread, dependences: &[Dependence]) {
    let parent = thread.task.get();
    if dependences.is_empty() || parent.is_null() || thread.team_size() == 1 {
        return;
    }
    let waiter = made(TaskWork::Implicit, null_mut(), Settings::UNKNOWN, false);
    if !depend(parent, waiter, dependences, false) {
        // SAFETY: made above; those that it waits for refer to it until they are done.
        work_until(thread, || unsafe { (*waiter).missing.load(Ordering::Acquire) == 0 });
    }
    release(waiter);
}

/// Does a task, and says that it is done.
fn do_task(thread: &Thread, task: *mut Task) {
    // SAFETY: a task that nobody else does.
    let (work, settings) = unsafe { ((*task).work, (*task).settings) };
    let before = (thread.task.replace(task), thread.settings.replace(settings));
    loop {
        match work {
            TaskWork::Implicit => {}
            TaskWork::Gcc { function, data, .. } => {
                // SAFETY: what the compiler passed for this.
                unsafe { std::mem::transmute::<usize, extern "C-unwind" fn(usize)>(function)(data) };
            }
            // SAFETY: the same.
            TaskWork::Llvm { block } => unsafe { llvm::call_task(block) },
        }
        // SAFETY: as above.
        if !unsafe { std::mem::take(&mut (*task).is_done_again) } {
            break;
        }
    }
    thread.task.set(before.0);
    thread.settings.set(before.1);
    end(thread, task);
}

/// The compiler itself calls the function of a task now. [`end_at_once`] follows.
///
/// # Safety
/// It is a new task.
pub(super) unsafe fn begin_at_once(thread: &Thread, task: *mut Task) {
    thread.task.set(task);
    // SAFETY: the caller's promise.
    thread.settings.swap(std::cell::Cell::from_mut(unsafe { &mut (*task).settings }));
}

/// The compiler has called the function of a task.
///
/// # Safety
/// The calling thread has begun the task.
pub(super) unsafe fn end_at_once(thread: &Thread, task: *mut Task) {
    // SAFETY: the caller's promise.
    unsafe {
        thread.settings.swap(std::cell::Cell::from_mut(&mut (*task).settings));
        thread.task.set((*task).parent);
    }
    end(thread, task);
}

/// A new task will not be done.
///
/// # Safety
/// The calling thread has made it, and nobody else knows it.
pub(super) unsafe fn drop_undone(task: *mut Task) {
    // SAFETY: the caller's promise; it has no destructors to call, because its copies have them.
    unsafe {
        if let TaskWork::Llvm { block } = std::mem::replace(&mut (*task).work, TaskWork::Implicit) {
            runtime::free(block);
        }
        end(super::this_thread(), task);
    }
}

/// The task that the calling thread does asks to be done once more: one of LLVM that is untied, when it has waited for
/// others. Whether it is that task. It goes on at once, in the same thread.
pub(super) fn is_to_be_done_again(thread: &Thread, task: *mut Task) -> bool {
    let is_own = thread.task.get() == task;
    if is_own {
        // SAFETY: the task that runs.
        unsafe { (*task).is_done_again = true };
    }
    is_own
}

/// A task is done.
fn end(thread: &Thread, task: *mut Task) {
    // SAFETY: the task that was done; its parent and its group are kept as long as it is.
    unsafe {
        let (parent, group) = ((*task).parent, (*task).member_of);
        if (*task).has_dependences {
            for ready in done_for_others(task) {
                if let Some(team) = thread.team() {
                    team.pool.push(ready);
                }
            }
        }
        match (*task).work {
            TaskWork::Implicit | TaskWork::Gcc { block: 0, .. } => {}
            TaskWork::Gcc { block, .. } => runtime::free(block),
            TaskWork::Llvm { block } => llvm::free_task(block),
        }
        if let Some(group) = group.as_ref() {
            group.unfinished.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(above) = parent.as_ref() {
            above.children.fetch_sub(1, Ordering::AcqRel);
            release(parent);
        }
        release(task);
    }
}

/// One reference fewer.
fn release(task: *mut Task) {
    // SAFETY: the caller has the reference.
    unsafe {
        if (*task).references.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let task = Box::from_raw(task);
        for used in task.uses.values() {
            used.readers.iter().for_each(|reader| release(*reader));
            if !used.writer.is_null() {
                release(used.writer);
            }
        }
    }
}

// Dependences.

/// Puts a task behind those of its siblings that it depends on, and, if it `counts`, before those that will depend on it.
/// Whether it may be done at once.
fn depend(parent: *mut Task, task: *mut Task, dependences: &[Dependence], counts: bool) -> bool {
    locks::lock(locks::name(&locks::DEPENDENCES));
    // SAFETY: the parent is the task that runs; a task in a list is referred to by it.
    let is_ready = unsafe {
        let wait_for = |before: *mut Task| {
            if !before.is_null() && before != task && !(*before).is_done {
                (*task).missing.fetch_add(1, Ordering::Relaxed);
                let successors = &mut (*before).successors;
                successors.push(task);
            }
        };
        let refer_to = |task: *mut Task| _ = (*task).references.fetch_add(1, Ordering::Relaxed);
        for &(address, is_write) in dependences {
            let uses = &mut (*parent).uses;
            let used = uses.entry(address).or_insert_with(|| Use { writer: null_mut(), readers: Vec::new() });
            wait_for(used.writer);
            if is_write {
                used.readers.iter().for_each(|reader| wait_for(*reader));
            }
            match (counts, is_write) {
                (false, _) => {}
                (true, false) => {
                    refer_to(task);
                    used.readers.push(task);
                }
                (true, true) => {
                    refer_to(task);
                    used.readers.drain(..).for_each(release);
                    let before = std::mem::replace(&mut used.writer, task);
                    if !before.is_null() {
                        release(before);
                    }
                }
            }
        }
        (*task).missing.fetch_sub(1, Ordering::AcqRel) == 1
    };
    locks::unlock(locks::name(&locks::DEPENDENCES));
    is_ready
}

/// A task is done: the tasks that waited only for it.
fn done_for_others(task: *mut Task) -> Vec<*mut Task> {
    locks::lock(locks::name(&locks::DEPENDENCES));
    // SAFETY: the task that was done; those that wait for it are not done.
    let ready = unsafe {
        (*task).is_done = true;
        let successors = std::mem::take(&mut (*task).successors);
        let is_ready = |next: &*mut Task| (**next).missing.fetch_sub(1, Ordering::AcqRel) == 1;
        // A thread waits for one without work by itself.
        let is_task = |next: &*mut Task| !matches!((**next).work, TaskWork::Implicit);
        successors.into_iter().filter(|next| is_ready(next) && is_task(next)).collect()
    };
    locks::unlock(locks::name(&locks::DEPENDENCES));
    ready
}

// Waiting.

/// Waits until something is so, and does tasks meanwhile.
fn work_until(thread: &Thread, is_so: impl Fn() -> bool) {
    const LOOKS: u32 = 50;
    const SLEEP_US_MAX: u64 = 200;
    let mut looks = 0;
    while !is_so() {
        if let Some(team) = thread.team() {
            let takes_any = thread.locks.get() == 0;
            let next = match takes_any {
                true => team.pool.pop().map(|(task, _)| task),
                false => team.pool.pop_descendant(thread.task.get()),
            };
            if next.is_none() || team.pool.count() > 1 {
                give_to_hungry(team);
            }
            if let Some(task) = next {
                do_task(thread, task);
                looks = 0;
                continue;
            }
            if takes_any && looks > LOOKS && team.nodes > 1 {
                aside(|| {
                    if let Some(tasks) = receive(team) {
                        team.pool.lock().tasks.extend(tasks);
                    }
                    ask();
                });
            }
        }
        looks += 1;
        match looks < LOOKS {
            true => std::hint::spin_loop(),
            false => {
                let microseconds = u64::from(looks - LOOKS + 1).min(SLEEP_US_MAX);
                aside(|| std::thread::sleep(Duration::from_micros(microseconds)));
            }
        }
    }
}

/// Waits for the children of the calling thread's task.
pub(super) fn wait_for_children(thread: &Thread) {
    // SAFETY: the task that runs.
    let Some(task) = (unsafe { thread.task.get().as_ref() }) else { return };
    work_until(thread, || task.children.load(Ordering::Acquire) == 0);
}

/// The children that the task makes from now on, and theirs, are a group.
pub(super) fn begin_group(thread: &Thread) {
    // SAFETY: the task that runs.
    if let Some(task) = unsafe { thread.task.get().as_mut() } {
        let group = Group { outer: task.group, unfinished: AtomicU32::new(0) };
        task.group = Box::into_raw(Box::new(group));
    }
}

/// Waits for the group that was begun last.
pub(super) fn end_group(thread: &Thread) {
    // SAFETY: the task that runs, and the group that it began, to which nobody refers once it is finished.
    unsafe {
        let Some(task) = thread.task.get().as_mut() else { return };
        let group = task.group;
        work_until(thread, || (*group).unfinished.load(Ordering::Acquire) == 0);
        task.group = (*group).outer;
        drop(Box::from_raw(group));
    }
}

/// Waits at the barrier, and does tasks meanwhile.
pub(super) fn barrier(thread: &Thread, team: &Team) {
    let meetings = team.meetings();
    loop {
        while let Some((task, left)) = team.pool.pop() {
            if left > 0 {
                give_to_hungry(team);
            }
            do_task(thread, task);
        }
        match aside(|| wait(team, meetings)) {
            Waited::IsOpen => return,
            Waited::HasTasks => {}
        }
    }
}

/// Waits until the barrier opens, or there is something to do. On private memory.
fn wait(team: &Team, meetings: u32) -> Waited {
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
    // No thread of this node has anything to do. One that was woken for a task which others have done is counted again.
    let given = wait_for_other_nodes(team);
    let mut state = pool.lock();
    state.is_led = false;
    let waited = match given {
        Some(tasks) => {
            state.idle -= 1;
            state.tasks.extend(tasks);
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
    /// How long a node waits at the barrier before it looks whether it was given tasks. It asks for some only after the
    /// first look: the page of these words would go from node to node at each barrier.
    const LOOK_NS: u64 = 50_000;
    const LONGEST_LOOK_NS: u64 = 1_000_000;
    if team.nodes == 1 {
        return None;
    }
    let me = start::node();
    let (hungry, unanswered) = (&control().hungry.0[me], &control().mailboxes[me].unanswered);
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
            answer(team.pool.engaged_by.swap(0, Ordering::AcqRel));
            team.pool.has_come.store(true, Ordering::Relaxed);
            if team.meet_nodes(look_ns) {
                // It may have been said before the barrier, too.
                if hungry.load(Ordering::Relaxed) == 1 {
                    let _ = hungry.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed);
                }
                return None;
            }
        }
        look_ns = (2 * look_ns).min(LONGEST_LOOK_NS);
    }
}

/// Says that this node has nothing to do.
fn ask() {
    let hungry = &control().hungry.0[start::node()];
    if hungry.load(Ordering::Relaxed) == 0 {
        // If it has been said already, or a node is giving something, that is no harm.
        let _ = hungry.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// What another node has put into the mailbox of this one.
fn receive(team: &Team) -> Option<Vec<usize>> {
    let me = start::node();
    if !runtime::take_permit(MAIL, me, 0) {
        return None;
    }
    let mailbox = &control().mailboxes[me];
    let count = mailbox.count.load(Ordering::Acquire) as usize;
    let tasks = mailbox.tasks[..count.min(MAILBOX_TASKS)].iter().map(|task| task.load(Ordering::Relaxed)).collect();
    let giver = mailbox.giver.load(Ordering::Relaxed);
    control().hungry.0[me].store(0, Ordering::Release);
    let is_engaged = team.pool.engaged_by.load(Ordering::Relaxed) != 0;
    if team.pool.has_come.load(Ordering::Relaxed) && !is_engaged {
        team.pool.engaged_by.store(giver + 1, Ordering::Relaxed);
    } else {
        answer(giver + 1);
    }
    Some(tasks)
}

/// Answers the node that gave this one tasks; `node` is one more than its number, and 0 for none.
fn answer(node: u32) {
    if let Some(node) = node.checked_sub(1) {
        control().mailboxes[node as usize].unanswered.fetch_sub(1, Ordering::AcqRel);
    }
}

/// When this node gave tasks to each other node last, in nanoseconds, and how many.
static GIVEN: [(AtomicU64, AtomicUsize); NODES_MAX] = [const { (AtomicU64::new(0), AtomicUsize::new(0)) }; NODES_MAX];

/// How many tasks a node gets now.
fn appetite(node: usize) -> usize {
    /// A node that is back within this time got too few.
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
fn give_to_hungry(team: &Team) {
    if team.nodes == 1 {
        return;
    }
    let (me, hungry) = (start::node(), &control().hungry.0);
    for node in (0..start::nodes()).filter(|node| *node != me) {
        if hungry[node].load(Ordering::Relaxed) != 1
            || hungry[node].compare_exchange(1, 2, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            continue;
        }
        aside(|| {
            let tasks = team.pool.oldest(appetite(node));
            if tasks.is_empty() {
                return hungry[node].store(1, Ordering::Release);
            }
            let mailbox = &control().mailboxes[node];
            for (place, task) in mailbox.tasks.iter().zip(&tasks) {
                place.store(*task, Ordering::Relaxed);
            }
            mailbox.giver.store(me as u32, Ordering::Relaxed);
            mailbox.count.store(tasks.len() as u32, Ordering::Release);
            control().mailboxes[me].unanswered.fetch_add(1, Ordering::AcqRel);
            runtime::permit(MAIL, node);
        });
        return;
    }
}
