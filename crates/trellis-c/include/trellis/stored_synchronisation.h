/* trellis/stored_synchronisation.h - synchronisation of threads of different processes whose memory is in a key-value
 * store.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 *     struct { int lock, changed; int items[100], count; } *shared = ...;     // in the region of the store
 *     check(trellis_store_lock(&shared->lock));       // check() as in trellis/stored.h: a failure means no lock
 *     while (shared->count == 0) check(trellis_store_condition_wait(&shared->changed, &shared->lock));
 *     int item = shared->items[--shared->count];
 *     check(trellis_store_unlock(&shared->lock));
 *
 * The functions have the names of those for a cluster in trellis.h, with `store_` in front, and do the same, except
 * where a comment here says otherwise.
 *
 * Objects. An object is named by an address in the region; nothing is stored at the address, which is only a name. So
 * the processes can use any byte of memory that they agree on, a pthread_mutex_t for example, and objects of
 * different kinds may have the same address. trellis_store_name() converts a text to such an address. An object need
 * not be created: it exists from its first use, all zero (a lock that is free, a semaphore at 0, an event that is not
 * set). Freed memory keeps its objects: set a semaphore again before reuse, and do not free memory that names a held
 * lock.
 *
 * What a thread stored before it *released* (unlock, end of a read or write, barrier, semaphore release, notify, event
 * set, once done) is visible to a thread that *acquires* after it (lock, read, write, barrier, semaphore acquire,
 * condition wait, event wait, once). Besides these, only trellis_store_release() and trellis_store_acquire() make
 * stores of one process visible to another.
 *
 * Cost. Each function is one call of the store (a round trip), whichever process had the object before, and however
 * long it waits. Exceptions: a condition wait and a barrier (all but the last to arrive) take two; the first use of a
 * barrier or a name in a process takes one more; a writer that has to wait takes two more; and a wait for a lock
 * takes a few for each lease that it lasts.
 *
 * Crashes. A process sends heartbeats while it holds a lock. A waiter that sees none for a lease
 * (TRELLIS_STORE_LEASE_MS if it is set), by its own clock, declares the process dead: all its locks are free, and
 * nothing that it stored since its last release ever becomes part of the region, even if it only slept. All its later
 * calls return TRELLIS_ERROR_NODE_LOST. What a process took from a semaphore is not given back, nor is its arrival at
 * a barrier undone.
 *
 * Errors. Every function returns TRELLIS_OK, or 1 and 0 for yes and no where its comment says so, or a negative code
 * of trellis.h, for which trellis_last_error() is the message:
 *   TRELLIS_ERROR_ARGUMENT   no object has that address, a name of 0 or above 255 bytes, a number that is too large, a
 *                            barrier of no participants or of another number of them
 *   TRELLIS_ERROR_DEADLINE   an hour has passed, or TRELLIS_STORE_WAIT_SECONDS_MAX if it is set; the message says
 *                            who has the object, and for how long, or who is missing. Nothing was acquired
 *   TRELLIS_ERROR_STATE      no region is open in this process, it does not hold what it releases, this thread has the
 *                            lock already, or a condition wait could not acquire the lock again
 *   TRELLIS_ERROR_NODE_LOST  this process was declared dead, or the store does not answer
 *
 * Times are in microseconds. Waiters are served in no guaranteed order. Nothing here is recursive. Any thread of a
 * process may release what another acquired. A forked child can use nothing of this.
 */
#ifndef TRELLIS_STORED_SYNCHRONISATION_H
#define TRELLIS_STORED_SYNCHRONISATION_H

#include <stdint.h>

#include "../trellis.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An address that stands for a text of 1 to 255 bytes; the same text names the same object in every process. It stays
 * valid, and must not be read or written. NULL, with a message, for NULL or text that is not UTF-8. */
const void *trellis_store_name(const char *name);

/* ------------------------------------------------------------------------------------------------------- locks -- */

/* Acquire a lock: one thread of one process has it. */
int trellis_store_lock(const void *lock);

/* Acquire it if it is free: 1, or 0. */
int trellis_store_try_lock(const void *lock);

/* Acquire it if that is possible in time: 1, or 0. */
int trellis_store_try_lock_for(const void *lock, uint64_t microseconds);

/* Release it. */
int trellis_store_unlock(const void *lock);

/* Release it and wake all waiters of a condition, both in one call of the store. After TRELLIS_ERROR_ARGUMENT the lock
 * is still held, after other errors not. */
int trellis_store_unlock_and_notify_all(const void *lock, const void *condition);

/* The token of this acquisition of a lock that this process holds, larger than that of every earlier acquisition by
 * any process. A system outside the region can use it to refuse late commands. */
int trellis_store_lock_token(const void *lock, uint64_t *token);

/* -------------------------------------------------------------------------------------------- read-write locks -- */

/* Acquire for reading, together with other readers. A waiting writer comes first. */
int trellis_store_rwlock_read(const void *lock);

/* Acquire for reading if that is possible now, or in time: 1, or 0. */
int trellis_store_rwlock_try_read(const void *lock);
int trellis_store_rwlock_try_read_for(const void *lock, uint64_t microseconds);

/* End one read of this process. */
int trellis_store_rwlock_end_read(const void *lock);

/* Acquire for writing, alone. */
int trellis_store_rwlock_write(const void *lock);

/* Acquire for writing if that is possible now, or in time: 1, or 0. */
int trellis_store_rwlock_try_write(const void *lock);
int trellis_store_rwlock_try_write_for(const void *lock, uint64_t microseconds);

/* End the write of this process. */
int trellis_store_rwlock_end_write(const void *lock);

/* -------------------------------------------------------------------------------------------------- semaphores -- */

/* Set a semaphore, whether or not threads wait for it. Values are at most 2^63 - 1. */
int trellis_store_semaphore_set(const void *semaphore, uint64_t value);

/* Set it if no process has used it before. */
int trellis_store_semaphore_begin(const void *semaphore, uint64_t value);

/* Add `count` permits. */
int trellis_store_semaphore_release(const void *semaphore, uint64_t count);

/* Wait until there is a permit, and take it. */
int trellis_store_semaphore_acquire(const void *semaphore);

/* Take a permit if there is one: 1, or 0. */
int trellis_store_semaphore_try_acquire(const void *semaphore);

/* Take a permit if there is one in time: 1, or 0. */
int trellis_store_semaphore_try_acquire_for(const void *semaphore, uint64_t microseconds);

/* Its value; others may change it at any moment. */
int trellis_store_semaphore_value(const void *semaphore, uint64_t *value);

/* ---------------------------------------------------------------------------------------------------- barriers -- */

/* Wait until so many threads have arrived: 1 for the last one, 0 for the others. A barrier has the same number of
 * participants forever. A thread that gets TRELLIS_ERROR_DEADLINE does not count as arrived. */
int trellis_store_barrier_of(const void *barrier, uint32_t participants);

/* -------------------------------------------------------------------------------------------------- conditions -- */

/* Under a lock that this process holds: release it, wait until the condition is notified, acquire the lock again. A
 * notification wakes all waiters, so check the condition again. After TRELLIS_ERROR_DEADLINE and
 * TRELLIS_ERROR_ARGUMENT the lock is held, after other errors not. */
int trellis_store_condition_wait(const void *condition, const void *lock);

/* The same, with a time-out: 1, or 0 if there was no notification. */
int trellis_store_condition_wait_for(const void *condition, const void *lock, uint64_t microseconds);

/* Wake at least one waiter. A store cannot choose one: this wakes all of them, and returns TRELLIS_OK, no number. */
int trellis_store_condition_notify_one(const void *condition);

/* Wake all waiters. Usually under the lock; trellis_store_unlock_and_notify_all() saves the call. */
int trellis_store_condition_notify_all(const void *condition);

/* ------------------------------------------------------------------------------------------------ events, once -- */

/* Set an event: all waiters go on, and no thread waits while it is set. */
int trellis_store_event_set(const void *event);

/* Clear it. */
int trellis_store_event_clear(const void *event);

/* Wait until it is set. */
int trellis_store_event_wait(const void *event);

/* Wait until it is set, with a time-out: 1, or 0. */
int trellis_store_event_wait_for(const void *event, uint64_t microseconds);

/* Whether it is set: 1, or 0. */
int trellis_store_event_is_set(const void *event);

/* Work that is done once in the region. 1: do it, then call done or failed. 0: it is done. Others wait meanwhile; if
 * the process that does it crashes, the next one does it. */
int trellis_store_once_begin(const void *once);

/* The work is done. */
int trellis_store_once_done(const void *once);

/* The work failed: the next thread that waits or arrives does it. */
int trellis_store_once_failed(const void *once);

#ifdef __cplusplus
}
#endif

#endif /* TRELLIS_STORED_SYNCHRONISATION_H */
