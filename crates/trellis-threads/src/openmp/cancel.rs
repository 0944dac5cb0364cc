//! Cancellation (OpenMP 5.2, section 11): a region, a loop, sections or a group of tasks that a thread gives up, if
//! `OMP_CANCELLATION` is true.
//!
//! The words that say so are shared by the team. A loop is named by the barrier at its end, which is the next one of all its
//! threads.
//!
//! Threads of a cancelled region go to its end, and some may wait at a barrier that others do not reach. So a thread that
//! has come to the end meets the others at barriers until none of them was at a barrier inside the region. A thread is one
//! barrier ahead of another at most.
//!
//! Promises: a region, a loop or sections that were cancelled end for all threads of the team. Without
//! `OMP_CANCELLATION`, nothing is cancelled and nothing costs more.

use std::sync::atomic::Ordering;

use super::{Thread, tasks, team};

/// What a thread cancels.
#[derive(Clone, Copy)]
pub(super) enum What {
    Region,
    /// A loop or sections.
    Sharing,
    Tasks,
}

/// Cancels the innermost construct of this kind. Returns whether cancellation is on, so that the thread leaves it.
pub(super) fn cancel(thread: &Thread, what: What) -> bool {
    if !thread.settings().cancels {
        return false;
    }
    match (what, thread.team()) {
        (What::Tasks, _) => tasks::cancel_group(thread),
        (_, None) => {}
        (What::Region, Some(team)) => team.shared().region_cancelled.store(1, Ordering::SeqCst),
        (What::Sharing, Some(team)) => {
            team.shared().sharing_cancelled.store(thread.barriers.get() + 1, Ordering::SeqCst);
        }
    }
    true
}

/// Whether the innermost construct of this kind was cancelled.
pub(super) fn is_cancelled(thread: &Thread, what: What) -> bool {
    if !thread.settings().cancels {
        return false;
    }
    let Some(team) = thread.team() else { return false };
    match what {
        What::Region => team.shared().region_cancelled.load(Ordering::SeqCst) != 0,
        What::Sharing => team.shared().sharing_cancelled.load(Ordering::SeqCst) == thread.barriers.get() + 1,
        What::Tasks => tasks::is_group_cancelled(thread) || is_cancelled(thread, What::Region),
    }
}

/// A barrier of a region that may be cancelled. Returns whether the thread is to leave the region.
pub(super) fn barrier(thread: &Thread) -> bool {
    if !thread.settings().cancels {
        team::barrier();
        return false;
    }
    is_cancelled(thread, What::Region) || {
        team::barrier();
        is_cancelled(thread, What::Region)
    }
}

/// Called before a thread comes to a barrier inside of the region, where threads that leave the region are to meet it.
pub(super) fn come_to_barrier(thread: &Thread) {
    let number = thread.barriers.get() + 1;
    if thread.settings().cancels
        && let Some(team) = thread.team()
    {
        if team.shared().sharing_cancelled.load(Ordering::SeqCst) == number {
            thread.give_up_loop();
        }
        team.shared().last_inside.store(number, Ordering::SeqCst);
    }
    thread.barriers.set(number);
}

/// The end of a region: returns when all threads of the team have come here.
pub(super) fn end_region(thread: &Thread) {
    let Some(team) = thread.team().filter(|team| team.size > 1 && thread.settings().cancels) else { return };
    loop {
        thread.barriers.set(thread.barriers.get() + 1);
        team::meet_all(thread, team);
        if team.shared().last_inside.load(Ordering::SeqCst) < thread.barriers.get() {
            return;
        }
    }
}
