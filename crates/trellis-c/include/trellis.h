/* trellis.h - the C interface of Trellis: one memory over several processes.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Every process ("node") that joins a cluster finds the same region of memory at the same virtual address. A load or
 * a store finds the newest bytes wherever they are; hardware atomics work across nodes. Except in pages under `hlrc`:
 * there a load finds what was released to its node, by a lock, a barrier and the like, and hardware atomics are for the
 * threads of one node; docs/concepts/release-consistency.md explains. A whole program:
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
 * Errors. A function that returns `int` returns TRELLIS_OK (0), a positive answer where its comment says so, or one
 * of the negative codes of `trellis_status`. After a negative code trellis_last_error() is one sentence for a person:
 * what happened, why, and what to do next. It belongs to the calling thread and stays valid until that thread's next
 * call that fails. No function of this header ends the process, and none leaves `errno` in a promised state.
 *
 * Units. Sizes and offsets are bytes. Times are nanoseconds unless a name says otherwise. Nodes are counted from 0.
 *
 * Threads. Every function may be called from any thread, except trellis_leave(), which takes the handle.
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

/* What a function answers. New codes may be added; they will be negative. */
typedef enum trellis_status {
    TRELLIS_OK = 0,
    /* An argument is NULL, out of range, or not text: the program is wrong. */
    TRELLIS_ERROR_ARGUMENT = -1,
    /* The configuration is wrong; the message names file, line and key. */
    TRELLIS_ERROR_CONFIGURATION = -2,
    /* This node could not join: no memory, address taken, a peer did not come or refused. */
    TRELLIS_ERROR_JOIN = -3,
    /* A wait passed its deadline (`wait_seconds_max`); the message names the peer. */
    TRELLIS_ERROR_DEADLINE = -4,
    /* A node of the cluster is gone, so the cluster is over; the message names the node and the cause. */
    TRELLIS_ERROR_NODE_LOST = -5,
    /* The call does not fit the state: a lock released that is not held, a second cluster in one process. */
    TRELLIS_ERROR_STATE = -6,
    /* A promise inside Trellis was broken. Please report it with the message. */
    TRELLIS_ERROR_INTERNAL = -7
} trellis_status;

/* The version of the loaded library as text, for example "0.1.0". Never NULL; static. */
const char *trellis_version(void);

/* The calling thread's last failure as one sentence; "" when nothing failed yet. Never NULL. */
const char *trellis_last_error(void);

/* A short English name of a status, for example "node lost". Never NULL; static. */
const char *trellis_status_text(int status);

/* ---------------------------------------------------------------------------------------------- configuration -- */

/* Read a configuration. `path` is a trellis.toml or a libivy JSON file; NULL takes TRELLIS_CONFIG, or no file at all.
 * The environment (TRELLIS_<KEY>) is laid over it. On success `*config` must be given to trellis_config_free().
 * Errors: ARGUMENT, CONFIGURATION. */
int trellis_config_load(const char *path, trellis_config **config);

/* Lay one key over file and environment, as `trellis run --set key=value` does: ("region_bytes", "1GiB").
 * A value that does not fit is refused and the configuration stays as it was. Errors: ARGUMENT, CONFIGURATION. */
int trellis_config_set(trellis_config *config, const char *key, const char *value);

/* What the configuration says now. Each answers 0 when `config` is NULL. */
size_t trellis_config_node(const trellis_config *config);
size_t trellis_config_nodes(const trellis_config *config);
size_t trellis_config_manager(const trellis_config *config);
size_t trellis_config_region_bytes(const trellis_config *config);

/* Free a configuration. NULL is allowed. */
void trellis_config_free(trellis_config *config);

/* ---------------------------------------------------------------------------------------------- joining, leaving -- */

/* The handle of the cluster that this process is a node of, from trellis_join() to trellis_leave(); NULL otherwise. */
trellis_cluster *trellis_current(void);

/* Become a node: map the region, connect, wait for the peers (at most `start_seconds_max`). `config` stays the
 * caller's; NULL means trellis_config_load(NULL, ...). Without any configuration the process is a cluster of one.
 * Errors: ARGUMENT, CONFIGURATION, JOIN, STATE (the process is a node already). */
int trellis_join(const trellis_config *config, trellis_cluster **cluster);

/* Leave together: returns when every node has called it, so no node takes away bytes another still needs. A node that
 * joined later hands on what it has and goes at once. The region is unmapped and the handle is gone whatever is
 * returned, except STATE: a node that joined later still holds a lock or waits for something; nothing has changed, and
 * it may try again once it gave the lock back. No other thread may be using either.
 * Errors: ARGUMENT, DEADLINE, NODE_LOST, STATE. */
int trellis_leave(trellis_cluster *cluster);

/* Give up without waiting for anybody: the other nodes are told that this one failed and end with an error that names
 * it; use it where the program has failed. The handle is gone. NULL is allowed. The process should
 * end soon: a second later it is ended with exit status 70. */
void trellis_abandon(trellis_cluster *cluster);

/* ---------------------------------------------------------------------------------------------- the region -- */

/* This node's index, the number of nodes, the manager's index. 0 when `cluster` is NULL. */
size_t trellis_node(const trellis_cluster *cluster);
size_t trellis_nodes(const trellis_cluster *cluster);
size_t trellis_manager(const trellis_cluster *cluster);

/* How many nodes take part now: those of the start (`trellis_nodes`), and those that joined and have not left. Whether
 * this node joined while the cluster was running. Whether somebody asked it, by `trellis leave`, to finish its piece of
 * work and leave: look now and then, then call `trellis_leave`. Both are 1 or 0. 0 when `cluster` is NULL. */
size_t trellis_members(const trellis_cluster *cluster);
int trellis_joined_later(const trellis_cluster *cluster);
int trellis_leave_requested(const trellis_cluster *cluster);

/* The region: its first byte (the same address in every node), its size, and the size of a page, the unit in which
 * bytes travel. Fresh bytes are zero. NULL and 0 when `cluster` is NULL. */
void *trellis_base(const trellis_cluster *cluster);
size_t trellis_bytes(const trellis_cluster *cluster);
size_t trellis_page_bytes(const trellis_cluster *cluster);

/* Values for `access`. */
#define TRELLIS_READ 0
#define TRELLIS_WRITE 1

/* Bring the pages that hold [address, address + bytes) here in large steps, before they are needed, instead of one
 * fault per page. Only a hint for speed: the bytes are right without it. Errors: ARGUMENT (a range outside the region),
 * DEADLINE, NODE_LOST. */
int trellis_prefetch(trellis_cluster *cluster, const void *address, size_t bytes, int access);

/* Lock the pages that hold [address, address + bytes): they come here, for stores, and stay until
 * trellis_unlock_range() is called with the same range. No other node sees them meanwhile, and no other call for them
 * succeeds, on this node neither; plain loads and stores of this node's own threads go on. What is stored while the
 * range is locked appears to other nodes at once. Not recursive. The pages must be under a protocol with a lock layer,
 * such as "lock(dynamic)". Errors: ARGUMENT (a range that is empty or outside the region), STATE (no lock layer),
 * DEADLINE, NODE_LOST. */
int trellis_lock_range(trellis_cluster *cluster, const void *address, size_t bytes);

/* The same, but the lock ends by itself so many microseconds after it was got. */
int trellis_lock_range_for(trellis_cluster *cluster, const void *address, size_t bytes, uint64_t microseconds);

/* Give a range back: the one that this thread took last with these bytes. Errors: ARGUMENT, STATE (it is not locked, or
 * its time was over before: others may have used the range since). */
int trellis_unlock_range(trellis_cluster *cluster, const void *address, size_t bytes);

/* Give the pages of [address, address + bytes) to another protocol, for example "ivy", "dynamic(redirect)",
 * "delay(lock(dynamic(forward)))". Every node makes the same call, as with a barrier. The bytes stay what they are, and
 * threads may go on using the region. Errors: ARGUMENT (not whole pages of the region, no such protocol), STATE (nodes
 * asked for different changes, or a page is locked: nothing has changed on any node), DEADLINE, NODE_LOST. */
int trellis_set_protocol(trellis_cluster *cluster, const void *address, size_t bytes, const char *protocol);

/* Write the protocol that looks after the byte at `address` as text into `text`, with a zero at the end, cut if
 * `text_bytes` is too small (64 always suffice for what this version has). Answers the length of the whole text.
 * Errors: ARGUMENT. */
int trellis_protocol_at(const trellis_cluster *cluster, const void *address, char *text, size_t text_bytes);

/* ---------------------------------------------------------------------------------------------- the shared heap -- */

/* Memory of the region for objects of any size, from its end downwards, allocated and freed at any node. What a node
 * allocates never shares a page with what another node allocates. A function that returns a pointer returns NULL when
 * it failed, and trellis_last_error() says why. Blocks are aligned to 16 bytes at least; a block of 0 bytes is a block.
 * A node that joined later may free blocks and not allocate any. */

/* Values for `home`, besides a node's index: which node shall keep the pages, where their protocol lets that be chosen.
 * A hint. UNSPECIFIED: large blocks as the protocol does, small ones here. INTERLEAVED: the nodes in turn, for blocks
 * with pages of their own. */
#define TRELLIS_HOME_UNSPECIFIED SIZE_MAX
#define TRELLIS_HOME_HERE (SIZE_MAX - 1)
#define TRELLIS_HOME_INTERLEAVED (SIZE_MAX - 2)

/* Values for `padding`: how far a block stays from others. PER_CACHE_LINE is for what threads of one node use at the
 * same time, PER_PAGE for what different nodes write. */
#define TRELLIS_PACKED 0
#define TRELLIS_PER_CACHE_LINE 1
#define TRELLIS_PER_PAGE 2

/* A block, with everything that can be said about it. `alignment` is a power of two. The bytes may be anything, or
 * zero. */
void *trellis_allocate(trellis_cluster *cluster, size_t bytes, size_t alignment, size_t home, int padding);
void *trellis_allocate_zeroed(trellis_cluster *cluster, size_t bytes, size_t alignment, size_t home, int padding);

/* As C has them; `count` times `bytes` zeros. A block that is reallocated has its contents as far as they fit, is
 * aligned to 16, and stays what it was when NULL is returned; NULL is reallocated as it is in C. */
void *trellis_malloc(trellis_cluster *cluster, size_t bytes);
void *trellis_calloc(trellis_cluster *cluster, size_t count, size_t bytes);
void *trellis_realloc(trellis_cluster *cluster, void *block, size_t bytes);
void *trellis_aligned_alloc(trellis_cluster *cluster, size_t alignment, size_t bytes);

/* A block whose pages have their home at `node`; a block that stays away from others. */
void *trellis_malloc_at(trellis_cluster *cluster, size_t bytes, size_t node);
void *trellis_malloc_padded(trellis_cluster *cluster, size_t bytes, int padding);

/* Give a block back, at whichever node. When this returns, any node can have the memory. No thread of any node may use
 * it any more, and whoever used it last is ordered before this call, as by a lock or a barrier. NULL is allowed.
 * Errors: ARGUMENT (it was freed before, or no allocation returned it: nothing has changed), DEADLINE, NODE_LOST. */
int trellis_free(trellis_cluster *cluster, void *block);

/* How many bytes a block has: what was asked for, or a little more; all may be used. 0 when it is no block. */
size_t trellis_usable_size(trellis_cluster *cluster, const void *block);

/* The offset in the region from which on it is the heap's: half of the region, unless `heap_bytes` says otherwise. A
 * program that places data by itself, counted from trellis_base, keeps below. */
size_t trellis_heap_start(const trellis_cluster *cluster);

/* How much is in use. Fields are only ever added at the end. */
typedef struct trellis_heap_counts {
    uint64_t blocks;                /* that this node allocated and nobody freed yet */
    uint64_t block_bytes;
    uint64_t span_bytes;            /* of the pages that this node has for its blocks */
    uint64_t allocations;           /* that this node ever made */
    uint64_t frees_by_others;       /* of those, how many another node freed */
    uint64_t free_bytes;            /* that no node has; known at the manager, 0 elsewhere */
} trellis_heap_counts;

/* Fill `*counts`; `counts_bytes` is sizeof(trellis_heap_counts), as for trellis_read_counters(). Errors: ARGUMENT. */
int trellis_heap_statistics(const trellis_cluster *cluster, trellis_heap_counts *counts, size_t counts_bytes);

/* ---------------------------------------------------------------------------------------------- waiting together -- */

/* Any 64-bit number names an object, objects of different kinds may have the same, and none has to be made. The last
 * 65,536 numbers (from 0xffffffffffff0000 on) are kept for Trellis itself. What a thread wrote before it released (gave
 * a lock back, came to a barrier, posted, set, signalled, changed a word) a thread reads that acquired after it (took
 * the lock, left the barrier, waited, was woken, read the word). A wait ends after `wait_seconds_max` with DEADLINE,
 * and the message says who holds or who is missing. The functions here whose names end in `_for` have their own time
 * instead, longer or shorter: when it is over they answer 0, which is no error. (A condition's then takes the lock
 * again, as trellis_lock() does.) A wait that was given up leaves nothing locked. */

/* Wait until every node has come to barrier `id`. One thread per node may wait at one id. What a node wrote before it
 * came, every node sees after. Errors: ARGUMENT, DEADLINE, NODE_LOST. */
int trellis_barrier(trellis_cluster *cluster, uint64_t id);

/* The same, and `*value` of every node becomes what `how` makes of all of them, in the same messages. A sum of doubles
 * has the same bits at every node; AND, OR and XOR are not for doubles. Errors: ARGUMENT, STATE (nodes asked for
 * different things), DEADLINE, NODE_LOST. */
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

/* Wait until `participants` threads, of whichever nodes, have come to counting barrier `id`: several of a node may,
 * nodes that joined later too, and all give the same number. Answers 1 to the last of them and 0 to the others. Errors:
 * ARGUMENT, STATE (another number), DEADLINE, NODE_LOST. */
int trellis_barrier_of(trellis_cluster *cluster, uint64_t id, uint32_t participants);

/* Take and give back lock `id`: any 64-bit number names a lock, none has to be made. Fair, first come first served.
 * Not recursive. Errors: ARGUMENT, STATE (released but not held, or held by this thread), DEADLINE, NODE_LOST. After
 * DEADLINE from trellis_unlock() the lock is still held, because a home has not taken what this node stored: call it
 * again. */
int trellis_lock(trellis_cluster *cluster, uint64_t id);
int trellis_unlock(trellis_cluster *cluster, uint64_t id);

/* Take lock `id` if nobody has it, or if it comes within so many microseconds. Answers 1 when it was taken, 0 when not:
 * somebody had it, or waited for it, or it was on its way between nodes. Errors: ARGUMENT, DEADLINE, NODE_LOST. */
int trellis_try_lock(trellis_cluster *cluster, uint64_t id);
int trellis_try_lock_for(trellis_cluster *cluster, uint64_t id, uint64_t microseconds);

/* Read-write lock `id`: one writer, or any number of readers, in the order in which they asked. The `try` functions
 * answer 1 when it was taken, 0 when not. Not recursive. Errors: ARGUMENT, STATE (ended but not held), DEADLINE (where
 * the lock is given back: as for trellis_unlock()), NODE_LOST. */
int trellis_rwlock_read(trellis_cluster *cluster, uint64_t id);
int trellis_rwlock_try_read(trellis_cluster *cluster, uint64_t id);
int trellis_rwlock_try_read_for(trellis_cluster *cluster, uint64_t id, uint64_t microseconds);
int trellis_rwlock_end_read(trellis_cluster *cluster, uint64_t id);
int trellis_rwlock_write(trellis_cluster *cluster, uint64_t id);
int trellis_rwlock_try_write(trellis_cluster *cluster, uint64_t id);
int trellis_rwlock_try_write_for(trellis_cluster *cluster, uint64_t id, uint64_t microseconds);
int trellis_rwlock_end_write(trellis_cluster *cluster, uint64_t id);

/* Wait for condition `id` to be signalled, under lock `lock`, which this thread holds: it is given back meanwhile and
 * held again afterwards. Woken by a signal that was given while it waited, and by nothing else. wait_for() waits for so
 * many microseconds at most and answers 1 when it was signalled, 0 when not. Errors: ARGUMENT, STATE (the lock was not
 * held, or could not be taken again), DEADLINE (nobody signalled; the lock is held), NODE_LOST (the lock is not
 * held). */
int trellis_condition_wait(trellis_cluster *cluster, uint64_t id, uint64_t lock);
int trellis_condition_wait_for(trellis_cluster *cluster, uint64_t id, uint64_t lock, uint64_t microseconds);

/* Wake the thread that has waited longest, and answer 1, or 0 when nobody waits; wake everybody. Usually called under
 * the lock. Errors: ARGUMENT, DEADLINE, NODE_LOST. */
int trellis_condition_signal(trellis_cluster *cluster, uint64_t id);
int trellis_condition_broadcast(trellis_cluster *cluster, uint64_t id);

/* Semaphore `id`: a number, 0 at first, that post raises and wait lowers as soon as it is above 0. try_wait and
 * wait_for answer 1 when it was lowered, 0 when not. Errors: ARGUMENT, STATE (raised past 2^64 - 1), DEADLINE,
 * NODE_LOST. */
int trellis_semaphore_post(trellis_cluster *cluster, uint64_t id, uint64_t count);
int trellis_semaphore_wait(trellis_cluster *cluster, uint64_t id);
int trellis_semaphore_try_wait(trellis_cluster *cluster, uint64_t id);
int trellis_semaphore_wait_for(trellis_cluster *cluster, uint64_t id, uint64_t microseconds);
int trellis_semaphore_value(trellis_cluster *cluster, uint64_t id, uint64_t *value);

/* Event flag `id`, not set at first: who waits goes on when it is set, and nobody waits while it is. wait_for and
 * is_set answer 1 when it was set, 0 when not. Errors: ARGUMENT, DEADLINE, NODE_LOST. */
int trellis_event_set(trellis_cluster *cluster, uint64_t id);
int trellis_event_clear(trellis_cluster *cluster, uint64_t id);
int trellis_event_wait(trellis_cluster *cluster, uint64_t id);
int trellis_event_wait_for(trellis_cluster *cluster, uint64_t id, uint64_t microseconds);
int trellis_event_is_set(trellis_cluster *cluster, uint64_t id);

/* Have `work(argument)` done once in the cluster, and return when it is done. Answers 1 where it was done by this call,
 * 0 where by another. Errors: ARGUMENT, DEADLINE (the message names the node that does it), NODE_LOST. */
int trellis_once(trellis_cluster *cluster, uint64_t id, void (*work)(void *), void *argument);

/* The same in steps: begin answers 0 when it is done, or 1: do it, then say done, or failed, and then the next who
 * waits does it. Errors: ARGUMENT, STATE (ended but not begun), DEADLINE, NODE_LOST. */
int trellis_once_begin(trellis_cluster *cluster, uint64_t id);
int trellis_once_done(trellis_cluster *cluster, uint64_t id);
int trellis_once_failed(trellis_cluster *cluster, uint64_t id);

/* A 64-bit word named by `id`, kept and changed at its home node: one round trip, no page moves. It starts as 0.
 * (Hardware atomics on the region work too, except in pages under `hlrc`, see docs/concepts/release-consistency.md;
 * they move the page to the writer.) `*before` is the value replaced and may be NULL. Errors: ARGUMENT, DEADLINE,
 * NODE_LOST. */
int trellis_atomic_load(trellis_cluster *cluster, uint64_t id, uint64_t *value);
int trellis_atomic_store(trellis_cluster *cluster, uint64_t id, uint64_t value);
int trellis_atomic_exchange(trellis_cluster *cluster, uint64_t id, uint64_t value, uint64_t *before);
int trellis_atomic_fetch_add(trellis_cluster *cluster, uint64_t id, uint64_t addend, uint64_t *before);

/* Replace `*expected` by `desired`. Answers 1 when it was replaced, 0 when the word held something else, which is then
 * in `*expected`. Errors as above. */
int trellis_atomic_compare_exchange(trellis_cluster *cluster, uint64_t id, uint64_t *expected, uint64_t desired);

/* ---------------------------------------------------------------------------------------------- watching -- */

/* Name what follows in this node's record, for `trellis report`: "load", "sort", "merge". Errors: ARGUMENT. */
int trellis_phase(trellis_cluster *cluster, const char *name);

/* What this node has done so far. Fields are only ever added at the end. */
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
    uint64_t lock_acquires_local;   /* of those, without a message */
    uint64_t barriers;
    uint64_t atomics;
    uint64_t fault_wait_ns;
    uint64_t lock_wait_ns;
    uint64_t barrier_wait_ns;
    uint64_t strangers_refused;     /* connections that did not know the secret */
    uint64_t nodes_refused;         /* nodes with the secret and another version, configuration, or no place */
    uint64_t packets_refused;       /* datagrams that were damaged, forged or sent twice */
    uint64_t frames_refused;        /* frames of a peer that broke the format */
    uint64_t upgrade_owner_faults;  /* stores to a page held for reading that this node owned */
    uint64_t retries;               /* answers that a page is locked */
    uint64_t redirects;             /* answers that another node may own a page */
    uint64_t packets_in;            /* datagrams received; frames, where the kernel cuts them */
    uint64_t packets_out;           /* datagrams sent, those sent again included; frames, as above */
    uint64_t overhead_ns;           /* spent on the protocol itself */
    uint64_t diffs_out;
    uint64_t diffs_in;
    uint64_t handler_ns;            /* the service thread ran while the program computed */
    uint64_t program_ns;            /* since joining */
    uint64_t program_threads;       /* of the program that synchronised, at least 1 */
    uint64_t pages_carried_out;     /* pages sent along with the token of a lock */
    uint64_t pages_carried_in;      /* pages that came so and were put into copies */
    uint64_t pages_evicted;         /* given up because memory was short (home memory-server) */
    uint64_t pages_written_back;    /* changed pages that went back to their memory servers */
    uint64_t recalls;               /* pages that their memory server wanted back */
} trellis_counters;

/* Fill `*counters`. `counters_bytes` is sizeof(trellis_counters) as the caller was compiled: an older program gets the
 * fields it knows, a newer one finds zeros in fields this library lacks. Errors: ARGUMENT. */
int trellis_read_counters(const trellis_cluster *cluster, trellis_counters *counters, size_t counters_bytes);

#ifdef __cplusplus
}
#endif

#endif /* TRELLIS_H */
