/* trellis.h - the C interface of Trellis: one memory over several processes.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Every process ("node") that joins a cluster has the same region of memory at the same virtual address. A load or a
 * store accesses the newest bytes wherever they are, and hardware atomics work across nodes. Pages under `hlrc` are
 * different: there a load returns what was released to its node, by a lock, a barrier and the like, and hardware
 * atomics work only among the threads of one node; docs/concepts/release-consistency.md explains this. A whole
 * program:
 *
 *     #include <stdio.h>
 *     #include <trellis.h>
 *
 *     int main(void) {
 *         trellis_cluster *cluster;
 *         if (trellis_join(NULL, &cluster) != TRELLIS_OK) {
 *             fprintf(stderr, "%s\n", trellis_last_error());
 *             return 1;
 *         }
 *         int *slots = trellis_base(cluster);
 *         slots[trellis_node(cluster)] = 42;
 *         if (trellis_barrier(cluster, 0) != TRELLIS_OK) return 1;
 *         for (size_t node = 0; node < trellis_nodes(cluster); node++) printf("%d ", slots[node]);
 *         return trellis_leave(cluster) == TRELLIS_OK ? 0 : 1;
 *     }
 *
 *     cc hello.c $(pkg-config --cflags --libs trellis) -o hello && trellis run -n 4 ./hello
 *
 * Errors. A function that returns `int` returns TRELLIS_OK (0), a positive result where its comment says so, or one
 * of the negative codes of `trellis_status`. After a negative code trellis_last_error() is one sentence for a person:
 * what happened, why, and what to do next. It belongs to the calling thread and stays valid until that thread's next
 * failed call. No function of this header ends the process, and none leaves `errno` in a defined state.
 *
 * Units. Sizes and offsets are in bytes. Times are in nanoseconds unless a name says otherwise. Nodes are numbered
 * from 0.
 *
 * Threads. Every function may be called from any thread, except trellis_leave(), which consumes the handle.
 * A handle of another process (after fork) is not usable: the child has no region and no connections.
 */
#ifndef TRELLIS_H
#define TRELLIS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRELLIS_VERSION_MAJOR 0
#define TRELLIS_VERSION_MINOR 1
#define TRELLIS_VERSION_PATCH 0

/* A member of a cluster. One per process at a time. */
typedef struct trellis_cluster trellis_cluster;

/* A configuration under construction: file, then environment, then trellis_config_set(). */
typedef struct trellis_config trellis_config;

/* The status of a call. New codes may be added; they will be negative. */
typedef enum trellis_status {
    TRELLIS_OK = 0,
    /* An argument is NULL, out of range, or not text: the program is wrong. */
    TRELLIS_ERROR_ARGUMENT = -1,
    /* The configuration is wrong; the message names file, line and key. */
    TRELLIS_ERROR_CONFIGURATION = -2,
    /* This node could not join: no memory, address in use, a peer is missing or refused. */
    TRELLIS_ERROR_JOIN = -3,
    /* A wait passed its time-out (`wait_seconds_max`); the message names the peer. */
    TRELLIS_ERROR_DEADLINE = -4,
    /* A node of the cluster is lost, so the cluster is over; the message names the node and the cause. */
    TRELLIS_ERROR_NODE_LOST = -5,
    /* The call is not valid in this state: a lock released that is not held, a second cluster in one process. */
    TRELLIS_ERROR_STATE = -6,
    /* A promise inside Trellis was broken. Please report it with the message. */
    TRELLIS_ERROR_INTERNAL = -7
} trellis_status;

/* The version of the loaded library as text, for example "0.1.0". Never NULL; static. */
const char *trellis_version(void);

/* The calling thread's last failure as one sentence; "" if nothing has failed yet. Never NULL. */
const char *trellis_last_error(void);

/* The code of that failure, for functions that return a pointer or a number. TRELLIS_OK if nothing has failed yet. */
int trellis_last_status(void);

/* A short English name of a status, for example "node lost". Never NULL; static. */
const char *trellis_status_text(int status);

/* ---------------------------------------------------------------------------------------------- configuration -- */

/* Read a configuration. `path` is a trellis.toml or a libivy JSON file; NULL means the file that TRELLIS_CONFIG
 * names, or no file at all. The environment (TRELLIS_<KEY>) overrides the file. On success `*config` must be given to
 * trellis_config_free(). Errors: ARGUMENT, CONFIGURATION. */
int trellis_config_load(const char *path, trellis_config **config);

/* Set one key, which overrides file and environment, as `trellis run --set key=value` does: ("region_bytes", "1GiB").
 * An invalid value is refused and the configuration is unchanged. Errors: ARGUMENT, CONFIGURATION. */
int trellis_config_set(trellis_config *config, const char *key, const char *value);

/* The present values of the configuration. Each function returns 0 if `config` is NULL. */
size_t trellis_config_node(const trellis_config *config);
size_t trellis_config_nodes(const trellis_config *config);
size_t trellis_config_manager(const trellis_config *config);
size_t trellis_config_region_bytes(const trellis_config *config);

/* Free a configuration. NULL is allowed. */
void trellis_config_free(trellis_config *config);

/* ---------------------------------------------------------------------------------------------- joining, leaving -- */

/* The handle of the cluster that this process is a node of, from trellis_join() to trellis_leave(); NULL otherwise. */
trellis_cluster *trellis_current(void);

/* Join a cluster as a node: map the region, connect, wait for the peers (at most `start_seconds_max`). `config` stays
 * the caller's; NULL means trellis_config_load(NULL, ...). Without any configuration the process is a cluster of one.
 * Errors: ARGUMENT, CONFIGURATION, JOIN, STATE (the process is a node already). */
int trellis_join(const trellis_config *config, trellis_cluster **cluster);

/* Leave together: returns when every node has called it, so no node removes bytes that another still needs. A node
 * that joined later hands on its pages and leaves at once. The region is unmapped and the handle is freed for every
 * result except STATE: a node that joined later still holds a lock or waits for something; nothing has changed, and
 * it may try again after it has released the lock. No other thread may be using the region or the handle. Errors:
 * ARGUMENT, DEADLINE, NODE_LOST, STATE. */
int trellis_leave(trellis_cluster *cluster);

/* Leave without waiting, for a program that has failed: the other nodes are told that this one failed and end with an
 * error that names it. The handle is freed. NULL is allowed. The process should end soon: after one second it is
 * ended with exit status 70. */
void trellis_abandon(trellis_cluster *cluster);

/* ---------------------------------------------------------------------------------------------- the region -- */

/* This node's index, the number of nodes, the manager's index. 0 if `cluster` is NULL. */
size_t trellis_node(const trellis_cluster *cluster);
size_t trellis_nodes(const trellis_cluster *cluster);
size_t trellis_manager(const trellis_cluster *cluster);

/* The number of nodes that take part now: founders (`trellis_nodes`), and nodes that joined and have not left.
 * Whether this node joined while the cluster was running. Whether `trellis leave` asked it to finish its piece of
 * work and leave: check this regularly, then call `trellis_leave`. Both are 1 or 0. 0 if `cluster` is NULL. */
size_t trellis_members(const trellis_cluster *cluster);
int trellis_joined_later(const trellis_cluster *cluster);
int trellis_leave_requested(const trellis_cluster *cluster);

/* The region: its first byte (the same address in every node), its size, and the size of a page, the unit of
 * coherence. Fresh bytes are zero. NULL and 0 if `cluster` is NULL. */
void *trellis_base(const trellis_cluster *cluster);
size_t trellis_bytes(const trellis_cluster *cluster);
size_t trellis_page_bytes(const trellis_cluster *cluster);

/* Values for `access`. */
#define TRELLIS_READ 0
#define TRELLIS_WRITE 1

/* Fetch the pages that contain [address, address + bytes) in large steps, before they are needed, instead of with one
 * fault per page. This is only a hint for speed. Errors: ARGUMENT (a range outside the region), DEADLINE,
 * NODE_LOST. */
int trellis_prefetch(trellis_cluster *cluster, const void *address, size_t bytes, int access);

/* Lock the pages that contain [address, address + bytes): this node gets them for stores and keeps them until
 * trellis_unlock_range() is called with the same range. Meanwhile no other node sees them, and no other call for them
 * succeeds, on this node either; plain loads and stores of this node's own threads go on. Stores to the locked range
 * become visible to other nodes all at once. Not recursive. The pages must be under a protocol with a lock layer,
 * such as "lock(dynamic)". Errors: ARGUMENT (a range that is empty or outside the region), STATE (no lock layer),
 * DEADLINE, NODE_LOST. */
int trellis_lock_range(trellis_cluster *cluster, const void *address, size_t bytes);

/* The same, but the lock ends by itself this many microseconds after it was acquired. */
int trellis_lock_range_for(trellis_cluster *cluster, const void *address, size_t bytes, uint64_t microseconds);

/* Unlock a range: the last one that this thread locked with these bytes. Errors: ARGUMENT, STATE (it is not locked,
 * or its time had ended: others may have used the range since). */
int trellis_unlock_range(trellis_cluster *cluster, const void *address, size_t bytes);

/* Change the protocol of the pages of [address, address + bytes), for example to "ivy", "dynamic(redirect)",
 * "delay(lock(dynamic(forward)))". Every node makes the same call, as with a barrier. The contents stay the same, and
 * threads may go on using the region. Errors: ARGUMENT (not whole pages of the region, no such protocol), STATE
 * (nodes asked for different changes, or a page is locked: nothing has changed on any node), DEADLINE, NODE_LOST. */
int trellis_set_protocol(trellis_cluster *cluster, const void *address, size_t bytes, const char *protocol);

/* Write the protocol of the byte at `address` as text into `text`, with a terminating zero, truncated if `text_bytes`
 * is too small (64 always suffice in this version). Returns the length of the whole text. Errors: ARGUMENT. */
int trellis_protocol_at(const trellis_cluster *cluster, const void *address, char *text, size_t text_bytes);

/* ---------------------------------------------------------------------------------------------- the shared heap -- */

/* Memory of the region for objects of any size, from its end downwards, allocated and freed at any node. A node's
 * allocations never share a page with those of another node. A function that returns a pointer returns NULL if it
 * failed, and trellis_last_error() says why. Blocks are aligned to 16 bytes at least; a block of 0 bytes is valid. A
 * node that joined later may free blocks but not allocate any. */

/* Values for `home`, besides a node's index: the node that is to keep the pages, if their protocol allows a choice. A
 * hint. UNSPECIFIED: the protocol decides for large blocks, and small ones are kept here. INTERLEAVED: the nodes in
 * turn, for blocks with pages of their own. */
#define TRELLIS_HOME_UNSPECIFIED SIZE_MAX
#define TRELLIS_HOME_HERE (SIZE_MAX - 1)
#define TRELLIS_HOME_INTERLEAVED (SIZE_MAX - 2)

/* Values for `padding`: the distance of a block from others. PER_CACHE_LINE is for blocks that threads of one node
 * use at the same time, PER_PAGE for blocks that different nodes write, PER_PAGE_WHILE_FEW (about 256 of a size) for
 * those of which that is not known. */
#define TRELLIS_PACKED 0
#define TRELLIS_PER_CACHE_LINE 1
#define TRELLIS_PER_PAGE 2
#define TRELLIS_PER_PAGE_WHILE_FEW 3

/* Allocate a block with all options. `alignment` is a power of two. The contents are undefined, or zero. */
void *trellis_allocate(trellis_cluster *cluster, size_t bytes, size_t alignment, size_t home, int padding);
void *trellis_allocate_zeroed(trellis_cluster *cluster, size_t bytes, size_t alignment, size_t home, int padding);

/* As in C; trellis_calloc() gives `count` times `bytes` zeros. A reallocated block keeps its contents as far as they
 * fit and is aligned to 16 bytes; if NULL is returned, the old block is unchanged. Reallocating NULL works as in
 * C. */
void *trellis_malloc(trellis_cluster *cluster, size_t bytes);
void *trellis_calloc(trellis_cluster *cluster, size_t count, size_t bytes);
void *trellis_realloc(trellis_cluster *cluster, void *block, size_t bytes);
void *trellis_aligned_alloc(trellis_cluster *cluster, size_t alignment, size_t bytes);

/* A block whose pages have their home at `node`; a block with padding. */
void *trellis_malloc_at(trellis_cluster *cluster, size_t bytes, size_t node);
void *trellis_malloc_padded(trellis_cluster *cluster, size_t bytes, int padding);

/* Free a block, at any node. When this returns, any node can allocate the memory. No thread of any node may use it
 * any more, and its last use must be ordered before this call, as by a lock or a barrier. NULL is allowed. Errors:
 * ARGUMENT (it was freed before, or no allocation returned it: nothing has changed), DEADLINE, NODE_LOST. */
int trellis_free(trellis_cluster *cluster, void *block);

/* The size of a block: the requested bytes, or a little more; all may be used. 0 if it is not a block. */
size_t trellis_usable_size(trellis_cluster *cluster, const void *block);

/* The offset in the region at which the heap starts: half of the region, unless `heap_bytes` says otherwise. Data
 * that a program places by itself, counted from trellis_base, must stay below it. */
size_t trellis_heap_start(const trellis_cluster *cluster);

/* The use of the heap. Fields are only ever added at the end. */
typedef struct trellis_heap_counts {
    uint64_t blocks;                /* allocated by this node and not freed yet */
    uint64_t block_bytes;
    uint64_t span_bytes;            /* of the pages that this node has for its blocks */
    uint64_t allocations;           /* made by this node so far */
    uint64_t frees_by_others;       /* of those, how many another node freed */
    uint64_t free_bytes;            /* assigned to no node; known at the manager, 0 elsewhere */
} trellis_heap_counts;

/* Fill `*counts`; `counts_bytes` is sizeof(trellis_heap_counts), as for trellis_read_counters(). Errors: ARGUMENT. */
int trellis_heap_statistics(const trellis_cluster *cluster, trellis_heap_counts *counts, size_t counts_bytes);

/* --------------------------------------------------------------------------------------------- things with names -- */

/* What the elements of an array are, for a comparison between nodes. */
#define TRELLIS_OTHER 0
#define TRELLIS_UNSIGNED 1
#define TRELLIS_SIGNED 2
#define TRELLIS_FLOAT 3

/* The array `name` of `count` elements of `element_bytes` bytes, whose type is `type` (above): the first node that
 * asks makes it, and the others find it, at the same address. It starts at a page, shares no page with anything else,
 * is zero at first, and exists until the cluster ends. NULL if another node described it differently (ARGUMENT), if
 * the name is empty or longer than 255 bytes (ARGUMENT), if this node joined later and is the first that asks
 * (ARGUMENT), or if there is no room (STATE); trellis_last_status() is the code. */
void *trellis_array(trellis_cluster *cluster, const char *name, size_t count, size_t element_bytes, int type);

/* Divide an array among the nodes: the elements of `node` are the `*length` ones from `*first` on. The partitions are
 * in the order of the nodes and cover the array. They start at pages, so that no page belongs to two nodes, unless that
 * makes one of them more than a quarter larger or smaller than an equal share. A node that joined later has none.
 * Errors: ARGUMENT. */
int trellis_partition(const trellis_cluster *cluster, size_t count, size_t element_bytes, size_t node, size_t *first,
                      size_t *length);

/* The number of the object `name`, for the functions below: trellis_lock(cluster, trellis_id(cluster, "queue")). The
 * same text is the same number at every node, and no message is needed for it. Names have numbers of their own, from
 * 2^63 to 2^63 + 2^62 - 1. Messages show the name. 0 if `name` is NULL or no UTF-8, or `cluster` is NULL. */
uint64_t trellis_id(const trellis_cluster *cluster, const char *name);

/* ---------------------------------------------------------------------------------------------- waiting together -- */

/* Any 64-bit number identifies an object; objects of different kinds may have the same number, and none has to be
 * created. trellis_id() turns a name into a number. The numbers from 0xc000000000000000 on are reserved for Trellis
 * itself. The writes of a thread before a release are visible to a thread after the acquire that follows it. A release
 * unlocks a lock, adds permits, arrives at a barrier, sets, notifies, or changes a word. An acquire locks a lock,
 * takes a permit, leaves a barrier, ends a wait, or reads a word. A wait ends after `wait_seconds_max` with DEADLINE,
 * and the message names the holder or those that are missing. The functions whose names end in `_for` have their own
 * time-out instead, longer or shorter: when it is over they return 0, which is not an error. (A condition's then
 * acquires the lock again, as trellis_lock() does.) A wait that timed out leaves nothing locked. Besides what the
 * functions list, STATE means that a number is reserved, that the home has too many objects of the kind, or that this
 * thread would wait for itself. */

/* Wait until every node has arrived at barrier `id`. One thread per node may wait at one id. What a node wrote before
 * it arrived is visible to every node afterwards. Errors: ARGUMENT, DEADLINE, NODE_LOST. */
int trellis_barrier(trellis_cluster *cluster, uint64_t id);

/* The same, and `*value` of every node becomes the reduction of all values by `how`, in the same messages. A sum of
 * doubles has the same bits at every node; AND, OR and XOR are not for doubles. Errors: ARGUMENT, STATE (nodes asked
 * for different operations), DEADLINE, NODE_LOST. */
#define TRELLIS_SUM 0
#define TRELLIS_LEAST 1
#define TRELLIS_GREATEST 2
#define TRELLIS_AND 3
#define TRELLIS_OR 4
#define TRELLIS_XOR 5
int trellis_barrier_reduce_u64(trellis_cluster *cluster, uint64_t id, int how, uint64_t *value);
int trellis_barrier_reduce_i64(trellis_cluster *cluster, uint64_t id, int how, int64_t *value);
int trellis_barrier_reduce_double(trellis_cluster *cluster, uint64_t id, int how, double *value);

/* The same, and `*value` of every node becomes that of node `from`. Errors as above. */
int trellis_broadcast(trellis_cluster *cluster, uint64_t id, size_t from, uint64_t *value);

/* Wait until `participants` threads of any nodes have arrived at counting barrier `id`: several of one node may take
 * part, nodes that joined later too, and all give the same number. Returns 1 to the last of them and 0 to the others.
 * Errors: ARGUMENT, STATE (another number), DEADLINE, NODE_LOST. */
int trellis_barrier_of(trellis_cluster *cluster, uint64_t id, uint32_t participants);

/* Acquire and release lock `id`: any 64-bit number names a lock, none has to be created. Fair, first come first
 * served. Not recursive. Errors: ARGUMENT, STATE (released but not held, or held by this thread), DEADLINE,
 * NODE_LOST. After DEADLINE from trellis_unlock() the lock is still held, because a home has not taken what this node
 * stored: call it again. */
int trellis_lock(trellis_cluster *cluster, uint64_t id);
int trellis_unlock(trellis_cluster *cluster, uint64_t id);

/* Acquire lock `id` if it is free, or if it becomes free within this many microseconds. Returns 1 if it was acquired,
 * otherwise 0: another thread had it, or waited for it, or it was being passed between nodes. Errors: ARGUMENT,
 * DEADLINE, NODE_LOST. */
int trellis_try_lock(trellis_cluster *cluster, uint64_t id);
int trellis_try_lock_for(trellis_cluster *cluster, uint64_t id, uint64_t microseconds);

/* Read-write lock `id`: one writer, or any number of readers, in the order in which they asked. The `try` functions
 * return 1 if it was acquired, 0 if not. Not recursive. Errors: ARGUMENT, STATE (ended but not held), DEADLINE (on
 * release: as for trellis_unlock()), NODE_LOST. */
int trellis_rwlock_read(trellis_cluster *cluster, uint64_t id);
int trellis_rwlock_try_read(trellis_cluster *cluster, uint64_t id);
int trellis_rwlock_try_read_for(trellis_cluster *cluster, uint64_t id, uint64_t microseconds);
int trellis_rwlock_end_read(trellis_cluster *cluster, uint64_t id);
int trellis_rwlock_write(trellis_cluster *cluster, uint64_t id);
int trellis_rwlock_try_write(trellis_cluster *cluster, uint64_t id);
int trellis_rwlock_try_write_for(trellis_cluster *cluster, uint64_t id, uint64_t microseconds);
int trellis_rwlock_end_write(trellis_cluster *cluster, uint64_t id);

/* Wait for condition variable `id` to be notified, under lock `lock`, which this thread holds: it is released during
 * the wait and held again afterwards. Only a notification that was given during the wait ends it. wait_for() waits for
 * at most this many microseconds and returns 1 if it was notified, 0 if not. Errors: ARGUMENT and DEADLINE (nobody
 * notified), after which the lock is held; STATE (it was not held, or could not be acquired again) and NODE_LOST, after
 * which it is not. */
int trellis_condition_wait(trellis_cluster *cluster, uint64_t id, uint64_t lock);
int trellis_condition_wait_for(trellis_cluster *cluster, uint64_t id, uint64_t lock, uint64_t microseconds);

/* notify_one wakes the thread that has waited longest and returns 1, or 0 if none waits; notify_all wakes all. Usually
 * called under the lock. Errors: ARGUMENT, DEADLINE, NODE_LOST. */
int trellis_condition_notify_one(trellis_cluster *cluster, uint64_t id);
int trellis_condition_notify_all(trellis_cluster *cluster, uint64_t id);

/* Semaphore `id`: a number of permits, initially 0. release adds `count` of them, acquire takes one as soon as there is
 * one; try_acquire and try_acquire_for return 1 if they took one, 0 if not. Errors: ARGUMENT, STATE (more than
 * 2^64 - 1), DEADLINE, NODE_LOST. */
int trellis_semaphore_release(trellis_cluster *cluster, uint64_t id, uint64_t count);
int trellis_semaphore_acquire(trellis_cluster *cluster, uint64_t id);
int trellis_semaphore_try_acquire(trellis_cluster *cluster, uint64_t id);
int trellis_semaphore_try_acquire_for(trellis_cluster *cluster, uint64_t id, uint64_t microseconds);
int trellis_semaphore_value(trellis_cluster *cluster, uint64_t id, uint64_t *value);

/* Event flag `id`, initially not set: all waiters go on when it is set, and no thread waits while it is set. wait_for
 * and is_set return 1 if it was set, 0 if not. Errors: ARGUMENT, DEADLINE, NODE_LOST. */
int trellis_event_set(trellis_cluster *cluster, uint64_t id);
int trellis_event_clear(trellis_cluster *cluster, uint64_t id);
int trellis_event_wait(trellis_cluster *cluster, uint64_t id);
int trellis_event_wait_for(trellis_cluster *cluster, uint64_t id, uint64_t microseconds);
int trellis_event_is_set(trellis_cluster *cluster, uint64_t id);

/* Run `work(argument)` once in the cluster, and return when it is done. Returns 1 if this call did it, 0 if another
 * did. Errors: ARGUMENT, DEADLINE (the message names the node that does it), NODE_LOST. */
int trellis_once(trellis_cluster *cluster, uint64_t id, void (*work)(void *), void *argument);

/* The same in steps: begin returns 0 if the work is done. If it returns 1, the caller does the work and calls done or
 * failed; after failed, the next waiter does it. Errors: ARGUMENT, STATE (ended but not begun), DEADLINE,
 * NODE_LOST. */
int trellis_once_begin(trellis_cluster *cluster, uint64_t id);
int trellis_once_done(trellis_cluster *cluster, uint64_t id);
int trellis_once_failed(trellis_cluster *cluster, uint64_t id);

/* A 64-bit word named by `id`, kept and changed at its home node: one round trip, no page moves. It starts as 0.
 * (Hardware atomics on the region work too, except in pages under `hlrc`, see docs/concepts/release-consistency.md;
 * they move the page to the writer.) `*before` is the replaced value and may be NULL. Errors: ARGUMENT, DEADLINE,
 * NODE_LOST. */
int trellis_atomic_load(trellis_cluster *cluster, uint64_t id, uint64_t *value);
int trellis_atomic_store(trellis_cluster *cluster, uint64_t id, uint64_t value);
int trellis_atomic_exchange(trellis_cluster *cluster, uint64_t id, uint64_t value, uint64_t *before);
int trellis_atomic_fetch_add(trellis_cluster *cluster, uint64_t id, uint64_t addend, uint64_t *before);

/* Replace `*expected` by `desired`. Returns 1 if it was replaced, 0 if the word had another value, which is then in
 * `*expected`. Errors as above. */
int trellis_atomic_compare_exchange(trellis_cluster *cluster, uint64_t id, uint64_t *expected, uint64_t desired);

/* ---------------------------------------------------------------------------------------------- watching -- */

/* Name the following part of this node's record, for `trellis report`: "load", "sort", "merge". Errors: ARGUMENT. */
int trellis_phase(trellis_cluster *cluster, const char *name);

/* The activity of this node so far. Fields are only ever added at the end. */
typedef struct trellis_counters {
    uint64_t read_faults;           /* pages fetched because of a load */
    uint64_t write_faults;          /* pages fetched because of a store */
    uint64_t upgrade_faults;        /* stores to a page held for reading that another node owned */
    uint64_t local_faults;          /* first touches resolved without a message */
    uint64_t prefetched_pages;
    uint64_t pages_in;
    uint64_t pages_out;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t messages_in;
    uint64_t messages_out;
    uint64_t invalidations;
    uint64_t lock_acquires;
    uint64_t lock_acquires_local;   /* of those, at once and without a message */
    uint64_t barriers;
    uint64_t atomics;
    uint64_t fault_wait_ns;
    uint64_t lock_wait_ns;
    uint64_t barrier_wait_ns;
    uint64_t unauthenticated_refused;     /* connections that did not know the secret */
    uint64_t nodes_refused;         /* nodes with the secret but another version or configuration, or without a place */
    uint64_t packets_refused;       /* datagrams that were damaged, forged or replayed */
    uint64_t frames_refused;        /* frames of a peer that broke the format */
    uint64_t upgrade_owner_faults;  /* stores to a page held for reading that this node owned */
    uint64_t retries;               /* replies that a page is locked */
    uint64_t redirects;             /* replies that another node may own a page */
    uint64_t packets_in;            /* datagrams received; frames, if the kernel segments them */
    uint64_t packets_out;           /* datagrams sent, retransmissions included; frames, as above */
    uint64_t overhead_ns;           /* spent on the protocol itself */
    uint64_t diffs_out;
    uint64_t diffs_in;
    uint64_t handler_ns;            /* the service thread ran while the program computed */
    uint64_t program_ns;            /* since joining */
    uint64_t program_threads;       /* threads of the program that synchronised, at least 1 */
    uint64_t pages_piggybacked_out;     /* pages piggybacked on the token of a lock */
    uint64_t pages_piggybacked_in;      /* pages that arrived so and were merged into copies */
    uint64_t pages_evicted;         /* evicted because memory was short (home memory-server) */
    uint64_t pages_written_back;    /* changed pages that were written back to their memory servers */
    uint64_t recalls;               /* pages that their memory server recalled */
} trellis_counters;

/* Fill `*counters`. `counters_bytes` is the caller's sizeof(trellis_counters): an older program gets the fields it
 * knows, a newer one gets zeros in fields that this library lacks. Errors: ARGUMENT. */
int trellis_read_counters(const trellis_cluster *cluster, trellis_counters *counters, size_t counters_bytes);

#ifdef __cplusplus
}
#endif

#endif /* TRELLIS_H */
