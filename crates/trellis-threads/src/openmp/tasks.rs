//! Tasks: made by threads of a team, done by any of them.
//!
//! A task lies in the region. A node keeps the tasks that its threads made, does the newest ones first, and gives the oldest
//! ones to nodes that have none (`pool`).
//!
//! Promises: a task is done once. A barrier opens only when all tasks of the team are done. While a thread waits for the
//! children of a task and has a lock of OpenMP, it does only tasks that descend from that one, so no task waits for a lock
//! that its own thread has (the purpose of the task scheduling constraints, OpenMP 5.2, 12.9). Without a lock it does any
//! task: tasks that were given to its node might otherwise wait for each other at two nodes. A task that is made while its
//! thread has a lock stays at its node, with its children: the threads of another node might all wait for that lock. A
//! program without tasks pays nothing for them.

use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::pool::{self, Waited};
use super::settings::Settings;
use super::team::Team;
use super::{Thread, cancel, llvm, locks, this_thread};
use crate::context::aside;
use crate::{relaxed, runtime, start};

/// The number of tasks from which a node gives some away while its threads make more. With two, it gives one away
/// before it does the other.
const GIVES_WHILE_MAKING: usize = 16;
/// The number of tasks for each thread of a node from which a thread does a new task at once.
const TASKS_PER_THREAD_MAX: usize = 64;

/// Whether the program makes tasks. It is the same on every node.
pub(super) static USED: AtomicBool = AtomicBool::new(false);

pub(super) fn are_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// The function of a task. Its data lie behind the task.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) enum TaskWork {
    /// None: it is the task of a thread itself.
    Implicit,
    /// A function of GCC's compiler; its data begin at a multiple of their alignment. If the compiler has made them by a
    /// function, only the task itself ends them.
    Gcc { function: usize, alignment: usize, is_made: bool },
    /// A task of LLVM's compiler.
    Llvm(llvm::Sizes),
}

/// A task; in the region, with its data in the same block.
#[repr(C, align(16))]
pub(super) struct Task {
    pub(super) work: TaskWork,
    /// The node that made it, and whether its block is one of those that are used again.
    made_at: u32,
    is_small: bool,
    parent: *mut Task,
    /// The number of its children that are not done, and whether one was done at another node.
    children: AtomicU32,
    is_helped: AtomicBool,
    /// References: the task itself until it is done, its children, and entries of lists of dependences.
    references: AtomicU32,
    /// The group that it belongs to, and the one that its children belong to.
    member_of: *mut Group,
    group: *mut Group,
    settings: Settings,
    pub(super) is_final: bool,
    /// Whether it stays at this node: a thread that waits for it may hold a lock for which the threads of another node
    /// wait.
    pub(super) stays: bool,
    /// Whether it asked to be done once more when it returns.
    is_done_again: bool,
    /// Whether it has dependences, so that others may wait for it.
    has_dependences: bool,
    /// Under the lock of dependences: whether it is done, how many tasks it waits for, and which wait for it.
    is_done: bool,
    missing: AtomicU32,
    successors: Vec<*mut Task>,
    /// The dependences of its children, by address.
    uses: BTreeMap<usize, Use>,
}

/// Tasks whose end a thread waits for; in the region.
#[repr(C)]
pub(super) struct Group {
    outer: *mut Group,
    /// The node whose thread waits.
    node: u32,
    unfinished: AtomicU32,
    is_helped: AtomicBool,
    /// Whether its tasks that have not begun are given up.
    is_cancelled: AtomicBool,
}

/// The last tasks of one parent that use an address.
struct Use {
    writer: *mut Task,
    readers: Vec<*mut Task>,
}

/// A dependence of a new task: an address, and whether the task may change what is there.
pub(super) type Dependence = (usize, bool);

impl Task {
    /// The task that made it.
    pub(super) fn parent(&self) -> *mut Task {
        self.parent
    }
}

// Making tasks and doing them.

/// The task of the calling thread itself in a new region; null in a program without tasks.
pub(super) fn implicit() -> *mut Task {
    match are_used() {
        true => made(TaskWork::Implicit, 0, null_mut(), Settings::UNKNOWN, false),
        false => null_mut(),
    }
}

/// Gives up the implicit task of a region that is over.
pub(super) fn forget(task: *mut Task) {
    if !task.is_null() {
        release(task);
    }
}

/// A block that is used again. A free block points to the next one.
pub(super) struct FreeBlock {
    next: *mut FreeBlock,
}

/// The size of these blocks, and the number that a thread keeps.
const BLOCK_BYTES: usize = 512;
const BLOCKS_MAX: u32 = 256;

/// Memory for a task with `bytes` bytes of data.
fn allocate(thread: &Thread, bytes: usize) -> (*mut Task, bool) {
    let bytes = size_of::<Task>() + bytes;
    if bytes > BLOCK_BYTES {
        return (runtime::allocate(bytes, align_of::<Task>(), false, false) as *mut Task, false);
    }
    let free = thread.free_blocks.get();
    let block = match free.is_null() {
        true => runtime::allocate(BLOCK_BYTES, align_of::<Task>(), false, false),
        false => {
            // SAFETY: a block of this thread's list, which nobody else uses.
            thread.free_blocks.set(unsafe { (*free).next });
            thread.free_count.set(thread.free_count.get() - 1);
            free as usize
        }
    };
    (block as *mut Task, true)
}

/// Gives back the block of a task. Only the node that made it uses it again, so that neighbouring blocks are of one
/// node.
fn free(thread: &Thread, block: usize, is_small: bool, made_at: u32) {
    if !is_small || made_at != start::node() as u32 || thread.free_count.get() >= BLOCKS_MAX {
        return runtime::free(block);
    }
    let free = block as *mut FreeBlock;
    // SAFETY: a block that nobody else uses.
    unsafe { free.write(FreeBlock { next: thread.free_blocks.get() }) };
    thread.free_blocks.set(free);
    thread.free_count.set(thread.free_count.get() + 1);
}

fn made(work: TaskWork, bytes: usize, parent: *mut Task, settings: Settings, is_final: bool) -> *mut Task {
    // SAFETY: the parent runs, or is null.
    let group = unsafe { parent.as_ref() }.map_or(null_mut(), |parent| parent.group);
    let (task, is_small) = allocate(this_thread(), bytes);
    let new = Task {
        work,
        made_at: start::node() as u32,
        is_small,
        parent,
        children: AtomicU32::new(0),
        is_helped: AtomicBool::new(false),
        references: AtomicU32::new(1),
        member_of: group,
        group,
        settings,
        is_final,
        stays: false,
        is_done_again: false,
        has_dependences: false,
        is_done: false,
        missing: AtomicU32::new(1),
        successors: Vec::new(),
        uses: BTreeMap::new(),
    };
    // SAFETY: room for it.
    unsafe { task.write(new) };
    task
}

/// Where the data of a task begin, at a multiple of `alignment`.
pub(super) fn data_of(task: *mut Task, alignment: usize) -> usize {
    (task as usize + size_of::<Task>()).next_multiple_of(alignment.max(1))
}

/// The task whose data begin here, right behind it.
pub(super) fn task_of(data: usize) -> *mut Task {
    (data - size_of::<Task>()) as *mut Task
}

/// Whether a new task of the calling thread must be done at once: if no other thread could do it, if it is a part of a
/// final task, if there are enough tasks, or if it is of a library that was loaded later, for which barriers do not
/// wait.
pub(super) fn is_undeferred(thread: &Thread) -> bool {
    let Some(team) = thread.team().filter(|team| team.size > 1) else { return true };
    if is_in_final(thread) || !are_used() {
        return true;
    }
    let are_enough = || team.pool.count() >= TASKS_PER_THREAD_MAX * team.local as usize;
    are_enough() && {
        pool::give_to_node_without_tasks(team);
        are_enough()
    }
}

/// Whether the calling thread runs a task that is not the thread's own.
pub(super) fn is_in_task(thread: &Thread) -> bool {
    // SAFETY: the task that runs.
    unsafe { thread.task.get().as_ref() }.is_some_and(|task| !matches!(task.work, TaskWork::Implicit))
}

/// Whether the calling thread runs a final task, or a part of one.
pub(super) fn is_in_final(thread: &Thread) -> bool {
    // SAFETY: the task that runs.
    unsafe { thread.task.get().as_ref() }.is_some_and(|task| task.is_final)
}

/// Makes a child of the calling thread's task, with room for `bytes` bytes of data. [`submit`] or [`do_now`] follows.
pub(super) fn child(thread: &Thread, work: TaskWork, bytes: usize, is_final: bool) -> *mut Task {
    let parent = thread.task.get();
    let task = made(work, bytes, parent, thread.settings(), is_final || is_in_final(thread));
    // SAFETY: a new task, and the task that runs, which has a group or none.
    unsafe {
        (*task).stays = thread.locks.get() > 0;
        if let Some(parent) = parent.as_ref() {
            (*task).stays |= parent.stays;
            parent.references.fetch_add(1, Ordering::Relaxed);
            parent.children.fetch_add(1, Ordering::Relaxed);
            if let Some(group) = parent.group.as_ref() {
                group.unfinished.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    task
}

/// Lets a task be done as soon as the tasks on which it depends are done.
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
        pool::give_to_node_without_tasks(team);
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
    let waiter = made(TaskWork::Implicit, 0, null_mut(), Settings::UNKNOWN, false);
    if !depend(parent, waiter, dependences, false) {
        // SAFETY: made above; those that it waits for refer to it until they are done.
        work_until(thread, || unsafe { (*waiter).missing.load(Ordering::Acquire) == 0 });
        relaxed::acquire();
    }
    release(waiter);
}

/// Whether a task that was made runs, although its group may have been given up.
fn is_to_run(thread: &Thread, work: TaskWork) -> bool {
    matches!(work, TaskWork::Gcc { is_made: true, .. }) || !cancel::is_cancelled(thread, cancel::What::Tasks)
}

/// Does a task, and marks it as done.
fn do_task(thread: &Thread, task: *mut Task) {
    // SAFETY: a task that nobody else does.
    let (work, settings) = unsafe { ((*task).work, (*task).settings) };
    let before = (thread.task.replace(task), thread.settings.replace(settings));
    while is_to_run(thread, work) {
        match work {
            TaskWork::Implicit => {}
            TaskWork::Gcc { function, alignment, .. } => {
                let data = data_of(task, alignment);
                // SAFETY: what the compiler passed for this.
                unsafe { std::mem::transmute::<usize, extern "C-unwind" fn(usize)>(function)(data) };
            }
            // SAFETY: the same.
            TaskWork::Llvm(_) => unsafe { llvm::call_task(data_of(task, 1)) },
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
        while std::mem::take(&mut (*task).is_done_again) {
            llvm::call_task(data_of(task, 1));
        }
        thread.settings.swap(std::cell::Cell::from_mut(&mut (*task).settings));
        thread.task.set((*task).parent);
    }
    end(thread, task);
}

/// Drops a new task of the calling thread that no other thread knows. Its private variables end.
pub(super) fn drop_undone(task: *mut Task) {
    end(this_thread(), task);
}

/// Asks to do the task of the calling thread once more: an untied task of LLVM does so after it has waited for others.
/// Returns whether it is that task. The same thread does it again at once.
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
        if let TaskWork::Llvm(sizes) = (*task).work {
            llvm::end_task(sizes, data_of(task, 1));
        }
        let here = start::node() as u32;
        let is_away = (*task).made_at != here;
        let is_of_other_group = group.as_ref().is_some_and(|group| group.node != here);
        if is_away || is_of_other_group {
            // Threads that wait for it see this in a word of strict memory.
            relaxed::release();
        }
        if (*task).has_dependences {
            for ready in done_for_others(task) {
                if let Some(team) = thread.team() {
                    team.pool.push(ready);
                }
            }
        }
        if let Some(group) = group.as_ref() {
            group.is_helped.fetch_or(is_of_other_group, Ordering::Relaxed);
            group.unfinished.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(above) = parent.as_ref() {
            above.is_helped.fetch_or(is_away, Ordering::Relaxed);
            above.children.fetch_sub(1, Ordering::AcqRel);
            release(parent);
        }
        release(task);
    }
}

/// Drops a reference.
fn release(task: *mut Task) {
    // SAFETY: the caller has the reference.
    unsafe {
        if (*task).references.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        for used in (*task).uses.values() {
            used.readers.iter().for_each(|reader| release(*reader));
            if !used.writer.is_null() {
                release(used.writer);
            }
        }
        let Task { is_small, made_at, .. } = *task;
        task.drop_in_place();
        free(this_thread(), task as usize, is_small, made_at);
    }
}

// Dependences.

/// Puts a task behind those siblings on which it depends and, if it `counts`, before those that will depend on it.
/// Returns whether it may be done at once.
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

/// Removes a task that is done. Returns the tasks that waited only for it.
fn done_for_others(task: *mut Task) -> Vec<*mut Task> {
    locks::lock(locks::name(&locks::DEPENDENCES));
    // SAFETY: the task that was done; those that wait for it are not done.
    let ready = unsafe {
        (*task).is_done = true;
        let successors = std::mem::take(&mut (*task).successors);
        let is_ready = |next: &*mut Task| {
            // A thread waits itself for a task without work, and gives it back as soon as nothing is missing.
            let is_task = !matches!((**next).work, TaskWork::Implicit);
            (**next).missing.fetch_sub(1, Ordering::AcqRel) == 1 && is_task
        };
        successors.into_iter().filter(is_ready).collect()
    };
    locks::unlock(locks::name(&locks::DEPENDENCES));
    ready
}

// Waiting.

/// Waits until `is_so` holds, and does tasks meanwhile.
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
                pool::give_to_node_without_tasks(team);
            }
            if let Some(task) = next {
                do_task(thread, task);
                looks = 0;
                continue;
            }
            if takes_any && looks > LOOKS && team.nodes > 1 {
                pool::ask_for_tasks(team);
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
    acquire_from_helpers(&task.is_helped);
}

/// All tasks for which a thread waited are done.
fn acquire_from_helpers(is_helped: &AtomicBool) {
    if is_helped.load(Ordering::Acquire) {
        is_helped.store(false, Ordering::Relaxed);
        relaxed::acquire();
    }
}

/// Begins a group: the children that the task makes from now on, and their children.
pub(super) fn begin_group(thread: &Thread) {
    // SAFETY: the task that runs.
    if let Some(task) = unsafe { thread.task.get().as_mut() } {
        let group = Group {
            outer: task.group,
            node: start::node() as u32,
            unfinished: AtomicU32::new(0),
            is_helped: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
        };
        task.group = Box::into_raw(Box::new(group));
    }
}

/// Gives up the group of the task that runs.
pub(super) fn cancel_group(thread: &Thread) {
    if let Some(group) = group_of(thread) {
        group.is_cancelled.store(true, Ordering::SeqCst);
    }
}

pub(super) fn is_group_cancelled(thread: &Thread) -> bool {
    group_of(thread).is_some_and(|group| group.is_cancelled.load(Ordering::SeqCst))
}

/// The group to which the task that runs belongs.
fn group_of<'a>(thread: &Thread) -> Option<&'a Group> {
    // SAFETY: the task that runs, whose group is kept as long as it is.
    unsafe { thread.task.get().as_ref().and_then(|task| task.group.as_ref()) }
}

/// Waits for the group that was begun last.
pub(super) fn end_group(thread: &Thread) {
    // SAFETY: the task that runs, and the group that it began, to which nobody refers once it is finished.
    unsafe {
        let Some(task) = thread.task.get().as_mut() else { return };
        let group = task.group;
        work_until(thread, || (*group).unfinished.load(Ordering::Acquire) == 0);
        acquire_from_helpers(&(*group).is_helped);
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
                pool::give_to_node_without_tasks(team);
            }
            do_task(thread, task);
        }
        match aside(|| pool::wait(team, meetings)) {
            Waited::IsOpen => return,
            Waited::HasTasks => {}
        }
    }
}
