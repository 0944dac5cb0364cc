/* trellis/stored.h - memory that lives in a key-value store.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A region has a name in a store and the same address in every process that opens it. Loads and stores work as usual:
 * pages are fetched from the store when they are touched, and their changes are written back, so a region may be far
 * larger than the memory of the machine. Others see what a process stored after it has released and they have
 * acquired, with the locks and other objects of trellis/stored_synchronisation.h, or with the two functions here. A
 * whole program:
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
 * (address), TRELLIS_STORE_REGION (name; without it the region belongs to this process alone and is removed at its
 * end), TRELLIS_STORE_REGION_BYTES, TRELLIS_STORE_CACHE_BYTES_MAX, TRELLIS_STORE_HEAP, TRELLIS_STORE_LEASE_MS,
 * TRELLIS_STORE_WAIT_SECONDS_MAX, TRELLIS_STORE_DELAY_US, TRELLIS_STORE_STATISTICS. trellis_store_open() reads the
 * same variables; its options take precedence.
 *
 * Errors and statuses are those of trellis.h. If a page is not available because its store is gone, the process ends
 * with one sentence on standard error and status 70. A forked child has no region: touching it ends the child with a
 * message. At exit the region is released and closed.
 */
#ifndef TRELLIS_STORED_H
#define TRELLIS_STORED_H

#include <stddef.h>
#include <stdint.h>

#include <trellis.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The options of a region. A member that is NULL or 0 is taken from the environment, or has the default. */
typedef struct trellis_store_options {
    /* The store's address, such as "redis://127.0.0.1:6379" or "memory-server:fd12:3456:7::/48"; default "embedded:",
     * which is memory of this process. */
    const char *store;
    /* The region's name; a region without a name belongs to this process alone. */
    const char *region;
    /* The size of a new region; default 64 GiB. Unused bytes cost nothing. */
    size_t region_bytes;
    /* The memory that pages and their twins may use here; default 256 MiB. */
    size_t cache_bytes_max;
} trellis_store_options;

/* Open the region of this process, once, in mode `pages`. `options` may be NULL. If `trellis store run` or
 * `trellis cc` opened it before main(), a call for the same store and region succeeds. Errors: ARGUMENT,
 * CONFIGURATION (a variable is invalid), STATE (one is open), JOIN (the store, or this machine). */
int trellis_store_open(const trellis_store_options *options);

/* Release and close the region; one without a name is removed. No thread may touch it any more. Called at exit as
 * well. Errors: STATE (none is open), NODE_LOST (the others declared this process dead), JOIN. */
int trellis_store_close(void);

/* The region: its first byte (the same address in every process) and its size. NULL and 0 without a region. */
void *trellis_store_base(void);
size_t trellis_store_bytes(void);

/* The number of store calls that this process has made; 0 without a region. */
uint64_t trellis_store_calls(void);

/* Publish everything that this process stored: all of it or nothing, even if the process dies meanwhile. One call of
 * the store, none if nothing was stored. Errors: STATE, NODE_LOST, JOIN. */
int trellis_store_release(void);

/* Make visible everything that other processes have released. One call of the store. Errors: STATE, JOIN. */
int trellis_store_acquire(void);

/* The address that a process published under a name, and everything that it had released by then; NULL in `*address`
 * if there is none. Errors: ARGUMENT, STATE, JOIN. */
int trellis_store_root(const char *name, void **address);

/* Release, and publish an address of the region under a name. Returns 1; or 0 if the name was taken, and then nothing
 * was released. Errors: ARGUMENT, STATE, NODE_LOST, JOIN. */
int trellis_store_set_root(const char *name, const void *address);

/* Memory of the region. Any process that has the region open may free it. NULL if there is no room. */
void *trellis_store_malloc(size_t bytes);
/* The same at a multiple of `alignment`, a power of two. */
void *trellis_store_aligned_alloc(size_t alignment, size_t bytes);
void trellis_store_free(void *address);

/* The activity of this process so far. */
typedef struct trellis_store_counts {
    /* Calls of the store: all, and by kind: pages and other values, reads of several things at once, changes, changes
     * that wait, lists. */
    uint64_t calls;
    uint64_t gets;
    uint64_t reads;
    uint64_t changes;
    uint64_t waits;
    uint64_t listings;
    /* Pages: accesses that faulted; pages fetched from the store, and those of them that were fetched ahead; evicted
     * pages; bytes written back before a release; bytes in memory now. */
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
