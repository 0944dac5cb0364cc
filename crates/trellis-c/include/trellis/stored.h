/* trellis/stored.h - memory that lives in a key-value store.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A region has a name in a store and lies at the same address in every process that opens it. Loads and stores just
 * work; pages come from the store when they are touched and go back by difference, so that a region may be far larger
 * than the memory of the machine. What a process stored is seen by others after it released and they acquired: with
 * the locks and their like of trellis/stored_synchronisation.h, or with the two functions here. A whole program:
 *
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *     #include <trellis/stored.h>
 *
 *     static void check(int status) {
 *         if (status >= 0) return;
 *         fprintf(stderr, "%s\n", trellis_last_error());
 *         exit(1);
 *     }
 *
 *     int main(void) {
 *         trellis_store_options options = {.store = "redis://127.0.0.1:6379", .region = "count"};
 *         check(trellis_store_open(&options));
 *         void *found;
 *         check(trellis_store_root("count", &found));
 *         if (found == NULL) {
 *             long *made = trellis_store_malloc(sizeof *made);
 *             if (made == NULL) check(-1);
 *             *made = 0;
 *             check(trellis_store_set_root("count", made));       // nothing happens if another was first
 *             check(trellis_store_root("count", &found));
 *         }
 *         long *count = found;
 *         check(trellis_store_lock(count));                       // who goes on after a failure is not alone
 *         printf("this is run %ld\n", ++*count);
 *         check(trellis_store_unlock(count));
 *         return 0;
 *     }
 *
 * A program that `trellis cc` compiled has its region open before main(), from the environment: TRELLIS_STORE
 * (address), TRELLIS_STORE_REGION (name; without, the region is this process's alone and is removed at its end),
 * TRELLIS_STORE_REGION_BYTES, TRELLIS_STORE_CACHE_BYTES_MAX, TRELLIS_STORE_HEAP, TRELLIS_STORE_LEASE_MS,
 * TRELLIS_STORE_WAIT_SECONDS_MAX, TRELLIS_STORE_DELAY_US, TRELLIS_STORE_STATISTICS. trellis_store_open() reads the
 * same, and its options go first.
 *
 * Errors and statuses are those of trellis.h. A process whose page cannot be had, because its store is gone, ends
 * with one sentence on standard error and status 70. A forked child has no region: what it touches of it ends it with
 * a sentence. At exit the region is released and closed.
 */
#ifndef TRELLIS_STORED_H
#define TRELLIS_STORED_H

#include <stddef.h>
#include <stdint.h>

#include <trellis.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a process wants. A member that is NULL or 0 is taken from the environment, or has the default. */
typedef struct trellis_store_options {
    /* The store's address, such as "redis://127.0.0.1:6379" or "memory-server:fd12:3456:7::/48"; default "embedded:",
     * which is memory of this process. */
    const char *store;
    /* The region's name; without, it is this process's alone. */
    const char *region;
    /* How large a new region is; default 64 GiB. It costs nothing until it is used. */
    size_t region_bytes;
    /* How much memory pages and their twins may take here; default 256 MiB. */
    size_t cache_bytes_max;
} trellis_store_options;

/* Open the region of this process, once, in pages. `options` may be NULL.
 * Where `trellis store run` or `trellis cc` opened it before main(), the same store and region may be asked for, and
 * are there. Errors: ARGUMENT, CONFIGURATION (a variable makes no sense), STATE (one is open), JOIN (the store, or
 * this machine).
 */
int trellis_store_open(const trellis_store_options *options);

/* Release, and leave the region; one without a name is removed. Nobody may touch it any more. Called at exit as well.
 * Errors: STATE (none is open), NODE_LOST (the others declared this process dead), JOIN. */
int trellis_store_close(void);

/* The region: its first byte (the same address in every process) and its size. NULL and 0 without one. */
void *trellis_store_base(void);
size_t trellis_store_bytes(void);

/* How many calls of the store this process made so far; 0 without a region. */
uint64_t trellis_store_calls(void);

/* Make everything that this process stored part of the region: all of it or nothing, also when the process dies
 * meanwhile. One call of the store, none when nothing was stored. Errors: STATE, NODE_LOST, JOIN. */
int trellis_store_release(void);

/* Find everything that other processes released before. One call of the store. Errors: STATE, JOIN. */
int trellis_store_acquire(void);

/* The address that some process made known under a name, and everything that it had released by then; NULL in
 * `*address` when there is none. Errors: ARGUMENT, STATE, JOIN. */
int trellis_store_root(const char *name, void **address);

/* Release, and make an address of the region known under a name. Answers 1; or 0 when the name was taken, and then
 * nothing was released. Errors: ARGUMENT, STATE, NODE_LOST, JOIN. */
int trellis_store_set_root(const char *name, const void *address);

/* Memory of the region. Any process that has the region open may free it. NULL when there is no room. */
void *trellis_store_malloc(size_t bytes);
/* The same at a multiple of `alignment`, a power of two. */
void *trellis_store_aligned_alloc(size_t alignment, size_t bytes);
void trellis_store_free(void *address);

/* What this process did so far. */
typedef struct trellis_store_counts {
    /* Calls of the store: all, and by kind: pages and other values, reads of several things at once, changes, changes
     * that wait, lists. */
    uint64_t calls;
    uint64_t gets;
    uint64_t reads;
    uint64_t changes;
    uint64_t waits;
    uint64_t listings;
    /* Pages: accesses that had to be served; pages that came from the store, and those of them that came before they
     * were touched; pages that were given up; bytes that were written back before a release; what is here now. */
    uint64_t faults;
    uint64_t pages_fetched;
    uint64_t pages_fetched_ahead;
    uint64_t pages_evicted;
    uint64_t bytes_written_back;
    uint64_t bytes_in_memory;
} trellis_store_statistics_t;

/* Errors: ARGUMENT, STATE. */
int trellis_store_statistics(trellis_store_statistics_t *into);

#ifdef __cplusplus
}
#endif

#include <trellis/stored_synchronisation.h>

#endif
