/* What the wrappers of library functions share: native pieces of the program's memory.
 *
 * A wrapper is called instead of a library function in modes full and heap. It brings what the function reads into
 * native memory, calls it, and brings what it wrote back. Its symbol is the function's name with `.trellis_MODE`; it is
 * weak, so a function of the program with the same name wins.
 *
 * Promises: exactly the bytes that the library function may touch by its specification are touched; what lies outside
 * the region in mode `heap` is passed on without copying. It must never keep an address of the program after it
 * returned, except where the function itself does.
 */
#ifndef TRELLIS_RUNTIME_WRAP_H
#define TRELLIS_RUNTIME_WRAP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "trellis/compiled.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRELLIS_HIDDEN __attribute__((visibility("hidden")))

/* Declares and defines the wrapper of `name`. */
#define WRAP(result, name, parameters)                                                                                 \
    result wrapped_##name parameters __asm__(#name TRELLIS_SUFFIX) __attribute__((weak));                              \
    result wrapped_##name parameters

/* Whether a library function may touch the address itself. */
static inline bool is_native(const void *address) {
#if TRELLIS_MODE == 1
    return address == NULL;
#else
    return (uintptr_t)address - TRELLIS_REGION_BASE >= TRELLIS_REGION_SPAN;
#endif
}

static inline bool in_region(const void *address) {
    return (uintptr_t)address - TRELLIS_REGION_BASE < TRELLIS_REGION_SPAN;
}

/* Native memory that stands for a part of the program's. Zero-initialise; end with `drop`. */
struct piece {
    void *program;
    char *native; /* where the library function works; equals `program` when that is native */
    char *owned;  /* to be freed */
    char small[240];
};

/* For reading `bytes`; for writing at most `bytes` (contents undefined); for both. NULL stays NULL. */
TRELLIS_HIDDEN const void *take(struct piece *piece, const void *program, size_t bytes);
TRELLIS_HIDDEN void *room(struct piece *piece, void *program, size_t bytes);
TRELLIS_HIDDEN void *take_room(struct piece *piece, void *program, size_t bytes);
/* A string with its end; at most `most` bytes of one, ended only if it ends within them. */
TRELLIS_HIDDEN const char *take_string(struct piece *piece, const char *program);
TRELLIS_HIDDEN const char *take_at_most(struct piece *piece, const char *program, size_t most, size_t *length);
/* Writes the first `bytes` back. */
TRELLIS_HIDDEN void give(struct piece *piece, size_t bytes);
TRELLIS_HIDDEN void drop(struct piece *piece);

/* strnlen of the program's memory. Reads up to the end of the 256-byte block that the string ends in, no further. */
TRELLIS_HIDDEN size_t length_of(const char *program, size_t most);

/* A native object (mutex, semaphore, attribute) that stands for the program's: the same address where plain
 * instructions may use it, else a shadow that begins as zeros and belongs to the address. */
TRELLIS_HIDDEN void *native_object(void *program, size_t bytes);
TRELLIS_HIDDEN void forget_object(void *program);
/* The same for what only the library looks into (a jmp_buf): nothing is brought from the program's memory. Without
 * `bytes`, NULL where the address has none yet. */
TRELLIS_HIDDEN void *native_place(void *program, size_t bytes);

static inline void put_bytes(void *program, const void *native, size_t bytes) {
#if TRELLIS_MODE != 1
    if (is_native(program)) {
        memcpy(program, native, bytes);
        return;
    }
#endif
    __trellis_store(program, native, bytes);
}

static inline void get_bytes(const void *program, void *native, size_t bytes) {
#if TRELLIS_MODE != 1
    if (is_native(program)) {
        memcpy(native, program, bytes);
        return;
    }
#endif
    __trellis_load(program, native, bytes);
}

/* A copy on the program's heap of native bytes. */
TRELLIS_HIDDEN void *heap_copy(const void *native, size_t bytes);

/* Ends the process: one sentence on standard error, status 70. */
TRELLIS_HIDDEN __attribute__((noreturn)) void refuse_at_run_time(const char *function, const char *fact);

#ifdef __cplusplus
}
#endif

#endif
