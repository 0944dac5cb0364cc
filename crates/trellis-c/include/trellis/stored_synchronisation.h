/* trellis/stored_synchronisation.h - how threads of different processes wait for each other when their memory is in a
 * key-value store.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 *     struct { int lock, changed; int items[100], count; } *shared = ...;     // in the region of the store
 *     check(trellis_store_lock(&shared->lock));       // check() as in trellis/stored.h: a failure means no lock
 *     while (shared->count == 0) check(trellis_store_condition_wait(&shared->changed, &shared->lock));
 *     int item = shared->items[--shared->count];
 *     check(trellis_store_unlock(&shared->lock));
 *
 * Objects. An object is named by an address in the region; nothing of it lies there, the address is only its name. So
 * any byte of memory that the processes agree on will do, a pthread_mutex_t for example, and objects of different
 * kinds may have the same address. trellis_store_name() gives an address that stands for a text. An object need not
 * be made: it exists from its first use, all zero (a lock that is free, a semaphore at 0, an event that is not set).
 * Memory that is freed keeps its objects: set a semaphore anew, and free no lock that is held.
 *
 * What a thread stored before it *released* (unlock, end of a read or write, barrier, post, notify, event set, once
 * done) a thread loads that *acquires* after it (lock, read, write, barrier, semaphore wait, condition wait, event
 * wait, once). Besides these only trellis_store_release() and trellis_store_acquire() carry it from one process to
 * another.
 *
 * Cost. Each function is one call of the store, a round trip, whoever had the object before, and however long it
 * waits; except: a condition wait and a barrier (all but the last to come) two, a barrier and a name one more when a
 * process uses them first, a writer that has to wait two more, and a few for each lease that a wait for a lock takes.
 *
 * Crashes. A process gives signs of life while it holds a lock. Who waits and sees none for a lease
 * (TRELLIS_STORE_LEASE_MS where it is set), by its own clock, replaces the process: all its locks are free, and
 * nothing that it stored since its last release ever becomes part of the region, even if it only slept. All its later
 * calls answer TRELLIS_ERROR_NODE_LOST. What a process took from a semaphore is not given back, nor is its arrival at
 * a barrier.
 *
 * Errors. Every function answers TRELLIS_OK, or 1 and 0 for yes and no where its comment says so, or a negative code
 * of trellis.h, whose trellis_last_error() is then one sentence:
 *   TRELLIS_ERROR_ARGUMENT   no object has that address, a name of 0 or above 255 bytes, a number that is too large
 *   TRELLIS_ERROR_DEADLINE   an hour has passed, or TRELLIS_STORE_WAIT_SECONDS_MAX where it is set; the sentence says
 *                            who has the object, and for how long, or who is missing. Nothing was taken
 *   TRELLIS_ERROR_STATE      no region is open in this process, or it does not hold what it gives back
 *   TRELLIS_ERROR_NODE_LOST  this process was replaced, or the store does not answer
 *
 * Times are microseconds. Who waits is served in no promised order. Nothing here is recursive. Any thread of a
 * process may give back what another took. A child after fork can use nothing of this.
 */
#ifndef TRELLIS_STORED_SYNCHRONISATION_H
#define TRELLIS_STORED_SYNCHRONISATION_H

#include <stdint.h>

#include "../trellis.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An address that stands for a text of 1 to 255 bytes, the same text for the same object in every process. Stays valid.
 * It must not be read or written. NULL, with a sentence, for NULL or what is no UTF-8. */
const void *trellis_store_name(const char *name);

/* ------------------------------------------------------------------------------------------------------- locks -- */

/* Take a lock: one thread of one process has it. */
int trellis_store_lock(const void *lock);

/* Take it if nobody has it: 1, or 0. */
int trellis_store_try_lock(const void *lock);

/* Take it if that is possible in time: 1, or 0. */
int trellis_store_try_lock_for(const void *lock, uint64_t microseconds);

/* Give it back. */
int trellis_store_unlock(const void *lock);

/* Give it back and notify a condition, both in one call of the store. */
int trellis_store_unlock_and_notify(const void *lock, const void *condition);

/* The number of this taking of a lock that this process holds, larger than that of every earlier one by anybody: what a
 * system outside of the region can refuse late commands by. */
int trellis_store_lock_token(const void *lock, uint64_t *token);

/* -------------------------------------------------------------------------------------------- read-write locks -- */

/* Read, together with other readers. A writer that waits comes first. */
int trellis_store_rwlock_read(const void *lock);

/* Read if that is possible in time, with 0 at once: 1, or 0. */
int trellis_store_rwlock_try_read_for(const void *lock, uint64_t microseconds);

/* End one read of this process. */
int trellis_store_rwlock_end_read(const void *lock);

/* Write, alone. */
int trellis_store_rwlock_write(const void *lock);

/* Write if that is possible in time, with 0 at once: 1, or 0. */
int trellis_store_rwlock_try_write_for(const void *lock, uint64_t microseconds);

/* End the write of this process. */
int trellis_store_rwlock_end_write(const void *lock);

/* -------------------------------------------------------------------------------------------------- semaphores -- */

/* Set a semaphore, whoever waits. Values are at most 2^63 - 1. */
int trellis_store_semaphore_set(const void *semaphore, uint64_t value);

/* Set it if no process has used it before. */
int trellis_store_semaphore_begin(const void *semaphore, uint64_t value);

/* Raise it by `count`. */
int trellis_store_semaphore_post(const void *semaphore, uint64_t count);

/* Wait until it is above zero, and lower it by one. */
int trellis_store_semaphore_wait(const void *semaphore);

/* Lower it if it is above zero: 1, or 0. */
int trellis_store_semaphore_try_wait(const void *semaphore);

/* Lower it if it is above zero in time: 1, or 0. */
int trellis_store_semaphore_wait_for(const void *semaphore, uint64_t microseconds);

/* What it stands at; others may change it at any moment. */
int trellis_store_semaphore_value(const void *semaphore, uint64_t *value);

/* ---------------------------------------------------------------------------------------------------- barriers -- */

/* Wait until so many threads have come: 1 for the last that came, 0 for the others. A barrier has the same number of
 * participants for ever. Who answers TRELLIS_ERROR_DEADLINE does not count as having come. */
int trellis_store_barrier(const void *barrier, uint32_t participants);

/* -------------------------------------------------------------------------------------------------- conditions -- */

/* Under a lock that this process holds: give it back, wait until the condition is notified, take the lock again. A
 * notification wakes all who wait, so look again at what was waited for. After TRELLIS_ERROR_DEADLINE and
 * TRELLIS_ERROR_ARGUMENT the lock is held, after other errors not. */
int trellis_store_condition_wait(const void *condition, const void *lock);

/* The same for so long at most: 1, or 0 when there was no notification. */
int trellis_store_condition_wait_for(const void *condition, const void *lock, uint64_t microseconds);

/* Wake all who wait. Usually under the lock; trellis_store_unlock_and_notify() saves the call. */
int trellis_store_condition_notify(const void *condition);

/* ------------------------------------------------------------------------------------------------ events, once -- */

/* Set an event: who waits for it goes on, and nobody waits while it is set. */
int trellis_store_event_set(const void *event);

/* Clear it. */
int trellis_store_event_clear(const void *event);

/* Wait until it is set. */
int trellis_store_event_wait(const void *event);

/* Wait until it is set, so long at most: 1, or 0. */
int trellis_store_event_wait_for(const void *event, uint64_t microseconds);

/* Whether it is set: 1, or 0. */
int trellis_store_event_is_set(const void *event);

/* Something that is done once in the region. 1: do it, then say that it is done or failed. 0: it is done. Others wait
 * meanwhile; when the process that does it crashes, the next does it. */
int trellis_store_once_begin(const void *once);

/* It is done. */
int trellis_store_once_done(const void *once);

/* It could not be done: the next who comes, or waits, does it. */
int trellis_store_once_failed(const void *once);

#ifdef __cplusplus
}
#endif

#endif /* TRELLIS_STORED_SYNCHRONISATION_H */
