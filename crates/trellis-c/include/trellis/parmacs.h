/* trellis/parmacs.h - the expansions of the macros of parmacs/c.m4.trellis.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Programs do not include this file: MAIN_ENV, EXTERN_ENV and INCLUDES do. It is C; its functions are only to be
 * called through the macros, whose meaning is in the guide "Port a PARMACS program". No function reports an error: a
 * failure ends the program, on all nodes, with one sentence.
 *
 * An object (lock, barrier, ...) is a word at an address that is the same on every node: in G_MALLOC memory, or a
 * global. The word is never read; the address is its name.
 *
 * Options, as -D flags of the compiler:
 *   TRELLIS_PARMACS_PAUSE_SEMAPHORE   a pause is a semaphore, as in Splash-3: SETPAUSE lets one waiter through, and
 *                                     CLEARPAUSE does nothing. Without it a pause is an event: set until cleared.
 *   TRELLIS_PARMACS_CLOCK_SECONDS     CLOCK gives seconds instead of microseconds.
 *   TRELLIS_PARMACS_LIBC_MALLOC       malloc stays that of the C library: workers do not see main's malloc memory.
 *   TRELLIS_PARMACS_GLOBALS_SHARED    the program's globals and its malloc memory are shared, as between threads; needs
 *                                     linker flags, too.
 */
#ifndef TRELLIS_PARMACS_H
#define TRELLIS_PARMACS_H

/* Headers and definitions that programs for the original macros expect. */
#include <assert.h>
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRELLIS_PARMACS_VERSION 1

/* The maximum number of processes of a program. */
#ifndef MAX_THREADS
#define MAX_THREADS 64
#endif
#ifndef __MAX_THREADS__
#define __MAX_THREADS__ MAX_THREADS
#endif
#ifndef PAGE_SIZE
#define PAGE_SIZE 4096
#endif

/* The program. begin() is called before main; it returns only on node 0. `shares` says whether the program was
 * compiled to share its globals. */
void trellis_parmacs_begin(int version, int count, char **arguments, int shares);
void trellis_parmacs_initenv(void);
void trellis_parmacs_main_end(void) __attribute__((noreturn));
void trellis_parmacs_create(void (*function)(void), size_t count);
void trellis_parmacs_wait_for_end(size_t count);
long trellis_parmacs_process(void);
uint64_t trellis_parmacs_clock(void);
void trellis_parmacs_region_of_interest(int begins);

/* Shared memory. */
void *trellis_parmacs_g_malloc(size_t bytes);
void *trellis_parmacs_nu_malloc(size_t bytes, size_t node);
void trellis_parmacs_g_free(void *pointer);

/* Objects. */
void trellis_parmacs_lock(const void *lock);
void trellis_parmacs_unlock(const void *lock);
void trellis_parmacs_barrier(const void *barrier, long processes);
void trellis_parmacs_pause_set(const void *pause);
void trellis_parmacs_pause_clear(const void *pause);
void trellis_parmacs_pause_wait(const void *pause);
void trellis_parmacs_semaphore_init(const void *semaphore, long value);
void trellis_parmacs_semaphore_post(const void *semaphore);
void trellis_parmacs_semaphore_wait(const void *semaphore);
void trellis_parmacs_condition_wait(const void *condition, const void *lock);
void trellis_parmacs_condition_signal(const void *condition);
void trellis_parmacs_condition_broadcast(const void *condition);
void trellis_parmacs_counter_init(const void *counter);
long trellis_parmacs_counter_next(const void *counter, long last, long processes);
void trellis_parmacs_fence(int kind);

#define TRELLIS_PARMACS_RELEASE 1
#define TRELLIS_PARMACS_ACQUIRE 2
#define TRELLIS_PARMACS_FULL 3

/* The private heap, of which workers get a copy. */
void *trellis_parmacs_malloc(size_t bytes);
void *trellis_parmacs_calloc(size_t count, size_t bytes);
void *trellis_parmacs_realloc(void *pointer, size_t bytes);
void trellis_parmacs_free(void *pointer);
void *trellis_parmacs_aligned_alloc(size_t alignment, size_t bytes);
int trellis_parmacs_posix_memalign(void **pointer, size_t alignment, size_t bytes);
char *trellis_parmacs_strdup(const char *text);

#ifdef __cplusplus
}
#endif

/* What MAIN_ENV adds to the program: a constructor, so that nothing of main runs on the other nodes; and, if the
 * globals are shared, a variable far behind them, up to which there is room for shared memory. */
#ifdef TRELLIS_PARMACS_GLOBALS_SHARED
#define TRELLIS_PARMACS_SHARES 1
#define TRELLIS_PARMACS_LIMIT \
    __attribute__((section(".trellis_parmacs_limit"), used)) static char trellis_parmacs_limit = 1;
#else
#define TRELLIS_PARMACS_SHARES 0
#define TRELLIS_PARMACS_LIMIT
#endif
#define TRELLIS_PARMACS_BEGIN                                                                                  \
    TRELLIS_PARMACS_LIMIT                                                                                      \
    __attribute__((constructor, used)) static void trellis_parmacs_constructor(int count, char **arguments) { \
        trellis_parmacs_begin(TRELLIS_PARMACS_VERSION, count, arguments, TRELLIS_PARMACS_SHARES);              \
    }

#ifdef TRELLIS_PARMACS_PAUSE_SEMAPHORE
#define TRELLIS_PARMACS_PAUSE_INIT(pause) trellis_parmacs_semaphore_init(pause, 0)
#define TRELLIS_PARMACS_PAUSE_SET(pause) trellis_parmacs_semaphore_post(pause)
#define TRELLIS_PARMACS_PAUSE_CLEAR(pause) ((void)(pause))
#define TRELLIS_PARMACS_PAUSE_WAIT(pause) trellis_parmacs_semaphore_wait(pause)
#else
#define TRELLIS_PARMACS_PAUSE_INIT(pause) trellis_parmacs_pause_clear(pause)
#define TRELLIS_PARMACS_PAUSE_SET(pause) trellis_parmacs_pause_set(pause)
#define TRELLIS_PARMACS_PAUSE_CLEAR(pause) trellis_parmacs_pause_clear(pause)
#define TRELLIS_PARMACS_PAUSE_WAIT(pause) trellis_parmacs_pause_wait(pause)
#endif

#ifdef TRELLIS_PARMACS_CLOCK_SECONDS
#define TRELLIS_PARMACS_CLOCK() (trellis_parmacs_clock() / 1000000)
#else
#define TRELLIS_PARMACS_CLOCK() trellis_parmacs_clock()
#endif

/* With arguments, so that a variable or a member of that name is unaffected. */
#if !defined(TRELLIS_PARMACS_LIBC_MALLOC) && !defined(__cplusplus)
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef memalign
#undef valloc
#undef aligned_alloc
#undef posix_memalign
#undef strdup
#define malloc(bytes) trellis_parmacs_malloc(bytes)
#define calloc(count, bytes) trellis_parmacs_calloc(count, bytes)
#define realloc(pointer, bytes) trellis_parmacs_realloc(pointer, bytes)
#define free(pointer) trellis_parmacs_free(pointer)
#define memalign(alignment, bytes) trellis_parmacs_aligned_alloc(alignment, bytes)
#define valloc(bytes) trellis_parmacs_aligned_alloc(4096, bytes)
#define aligned_alloc(alignment, bytes) trellis_parmacs_aligned_alloc(alignment, bytes)
#define posix_memalign(pointer, alignment, bytes) trellis_parmacs_posix_memalign(pointer, alignment, bytes)
#define strdup(text) trellis_parmacs_strdup(text)
#endif

#endif /* TRELLIS_PARMACS_H */
