/* malloc_preload.c - libtrellis_malloc.so: the heap of a program that was not compiled for Trellis lies in a region.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Preloaded (LD_PRELOAD), it answers malloc and its family, and with them operator new, strdup and whatever else
 * calls them. Promises: what the runtime itself allocates, what is allocated before the region is there and what
 * threads of the runtime allocate is the C library's memory, so that the runtime never waits for itself; free decides
 * by address. It must never call into the runtime from the runtime.
 *
 * Environment: what trellis/stored.h says of TRELLIS_STORE and its like. TRELLIS_MALLOC_MEMORY=private puts the heap
 * over private memory without a store, to learn whether a program runs with this library at all; TRELLIS_STORE_HEAP
 * names the kind of heap then, too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trellis/compiled.h"

/* The C library's own, which nobody can replace. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *address, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *address);

#define PUBLIC __attribute__((visibility("default")))

/* This thread is in the runtime, or belongs to it. In the static block, so that looking at it allocates nothing. */
static __thread bool inside __attribute__((tls_model("initial-exec")));
/* The heap is there. Written once, before there is a second thread. */
static bool started;

typedef int (*creator)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
static size_t (*library_usable_size)(void *);
static creator library_pthread_create;

static bool is_of_region(const void *address) { return (uintptr_t)address - TRELLIS_REGION_BASE < TRELLIS_REGION_SPAN; }

/* Whether the program asks, not the runtime. */
static bool is_for_heap(void) { return started && !inside; }

static _Noreturn void end(const char *sentence) {
    ssize_t written = write(STDERR_FILENO, sentence, strlen(sentence));
    (void)written;
    _exit(70);
}

static void find_library_functions(void) {
    library_usable_size = (size_t(*)(void *))dlsym(RTLD_NEXT, "malloc_usable_size");
    library_pthread_create = (creator)dlsym(RTLD_NEXT, "pthread_create");
    if (!library_usable_size || !library_pthread_create)
        end("trellis: the C library has no malloc_usable_size or pthread_create; preload this into glibc programs\n");
}

/* The runtime's own handlers of fork and exit allocate, too. These are registered after them, so that they run round
 * them: handlers before a fork and at the end run in the order last to first, those after a fork first to last. */
static void enter(void) { inside = true; }
static void leave(void) { inside = false; }

__attribute__((constructor(101))) static void start(void) {
    static const struct trellis_compiled_program program = {TRELLIS_COMPILED_ABI, TRELLIS_MODE_PAGE, "preload"};
    inside = true;
    find_library_functions();
    const char *memory = getenv("TRELLIS_MALLOC_MEMORY");
    if (memory && strcmp(memory, "private") == 0)
        __trellis_heap_over_private_memory(TRELLIS_REGION_BASE, TRELLIS_REGION_SPAN, getenv("TRELLIS_STORE_HEAP"));
    else if (memory)
        end("trellis: TRELLIS_MALLOC_MEMORY is neither unset nor `private`; unset it to use a store\n");
    else
        __trellis_start(&program);
    if (pthread_atfork(enter, leave, leave) != 0 || atexit(enter) != 0)
        end("trellis: there is no memory for three handlers; is the memory limit lower than the C library needs?\n");
    started = true;
    inside = false;
}

PUBLIC void *malloc(size_t bytes) {
    if (!is_for_heap())
        return __libc_malloc(bytes);
    inside = true;
    void *block = __trellis_malloc(bytes);
    inside = false;
    return block;
}

PUBLIC void free(void *address) {
    if (!is_of_region(address)) {
        __libc_free(address);
        return;
    }
    bool was_inside = inside;
    inside = true;
    __trellis_free(address);
    inside = was_inside;
}

PUBLIC void *calloc(size_t count, size_t bytes) {
    if (!is_for_heap())
        return __libc_calloc(count, bytes);
    inside = true;
    void *block = __trellis_calloc(count, bytes);
    inside = false;
    return block;
}

/* A block of the C library that the program makes longer stays there: it is older than the heap. */
PUBLIC void *realloc(void *address, size_t bytes) {
    if (!address)
        return malloc(bytes);
    if (!is_of_region(address))
        return __libc_realloc(address, bytes);
    bool was_inside = inside;
    inside = true;
    void *block = __trellis_realloc(address, bytes);
    inside = was_inside;
    return block;
}

PUBLIC void *reallocarray(void *address, size_t count, size_t bytes) {
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(address, all);
}

PUBLIC void *memalign(size_t alignment, size_t bytes) {
    if (!is_for_heap())
        return __libc_memalign(alignment, bytes);
    inside = true;
    void *block = __trellis_memalign(alignment, bytes);
    inside = false;
    return block;
}

PUBLIC void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

PUBLIC int posix_memalign(void **into, size_t alignment, size_t bytes) {
    if (alignment % sizeof(void *) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0)
        return EINVAL;
    int errno_before = errno;
    void *block = memalign(alignment, bytes);
    errno = errno_before;
    if (!block)
        return ENOMEM;
    *into = block;
    return 0;
}

PUBLIC void *valloc(size_t bytes) { return memalign((size_t)sysconf(_SC_PAGESIZE), bytes); }

PUBLIC void *pvalloc(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX - page) {
        errno = ENOMEM;
        return NULL;
    }
    return memalign(page, (bytes + page - 1) / page * page);
}

PUBLIC size_t malloc_usable_size(void *address) {
    if (!is_of_region(address))
        return address && library_usable_size ? library_usable_size(address) : 0;
    bool was_inside = inside;
    inside = true;
    size_t bytes = __trellis_malloc_usable_size(address);
    inside = was_inside;
    return bytes;
}

/* ---- Threads that the runtime starts are the runtime's ------------------------------------------------------------
 * So is the end of every thread, where what the runtime keeps for it is destroyed. */

struct beginning {
    void *(*function)(void *);
    void *argument;
    bool inside;
};

static void *run(void *memory) {
    struct beginning beginning = *(struct beginning *)memory;
    __libc_free(memory);
    inside = beginning.inside;
    void *answer = beginning.function(beginning.argument);
    inside = true;
    return answer;
}

PUBLIC int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *),
                          void *argument) {
    bool was_inside = inside;
    inside = true;
    if (!library_pthread_create)
        find_library_functions();
    struct beginning *beginning = __libc_malloc(sizeof *beginning);
    int status = EAGAIN;
    if (beginning) {
        *beginning = (struct beginning){function, argument, was_inside};
        status = library_pthread_create(thread, attributes, run, beginning);
    }
    if (status != 0)
        __libc_free(beginning);
    inside = was_inside;
    return status;
}
