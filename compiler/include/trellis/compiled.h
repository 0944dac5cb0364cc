/* compiled.h - what programs compiled by `trellis cc` call, and what they expect of it.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Promises: the whole contract between the compiler pass (which emits the calls), the wrappers of library functions
 * (compiler/runtime) and libtrellis (which answers). An address is always an address of the program; whether its bytes
 * are in a store, in a cache or where they seem to be is the answering side's business.
 * It must never contain anything that a person is meant to write. Programs use trellis/stored.h.
 *
 * No function here returns an error. What cannot be done (the store is gone, an address is wild) ends the process with
 * one sentence on standard error and status 70, because a load has nowhere to put an error.
 */
#ifndef TRELLIS_COMPILED_H
#define TRELLIS_COMPILED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this contract. __trellis_start refuses another. */
#define TRELLIS_COMPILED_ABI 1

/* How a program was compiled. One process has one mode. */
enum trellis_compiled_mode {
    TRELLIS_MODE_FULL = 1, /* stack, globals and heap are words in the store */
    TRELLIS_MODE_HEAP = 2, /* addresses of the region are words in the store; everything else is where it seems */
    TRELLIS_MODE_LINE = 3, /* addresses of the region are cached at their own address, line by line */
    TRELLIS_MODE_PAGE = 4, /* not compiled: libtrellis_malloc.so was preloaded; addresses of the region are pages */
};

struct trellis_compiled_program {
    uint32_t abi;        /* TRELLIS_COMPILED_ABI */
    uint32_t mode;       /* enum trellis_compiled_mode */
    const char *version; /* of the compiler, for messages */
};

/* Called by a constructor (priority 101) of every executable and every shared library that `trellis cc` linked, before
 * any instrumented code. May be called several times; all calls must name the same mode. The end is atexit. */
void __trellis_start(const struct trellis_compiled_program *program);

/* ---- Words: modes full and heap ------------------------------------------------------------------------------------
 * In mode heap the pass calls these for addresses inside the region only, except for the variants with a byte count
 * and the bulk functions, which take any address. In mode full they take any address. Alignment is never promised. */
uint8_t __trellis_load_1(const void *address);
uint16_t __trellis_load_2(const void *address);
uint32_t __trellis_load_4(const void *address);
uint64_t __trellis_load_8(const void *address);
void __trellis_store_1(void *address, uint8_t value);
void __trellis_store_2(void *address, uint16_t value);
void __trellis_store_4(void *address, uint32_t value);
void __trellis_store_8(void *address, uint64_t value);
/* `into` and `from` are native memory: the caller's temporary, touched with plain instructions. */
void __trellis_load(const void *address, void *into, size_t bytes);
void __trellis_store(void *address, const void *from, size_t bytes);

/* ---- Atomics: modes full and heap; `bytes` is 1, 2, 4 or 8; always sequentially consistent -------------------------
 */
enum trellis_atomic_operation {
    TRELLIS_ATOMIC_EXCHANGE = 0,
    TRELLIS_ATOMIC_ADD = 1,
    TRELLIS_ATOMIC_SUBTRACT = 2,
    TRELLIS_ATOMIC_AND = 3,
    TRELLIS_ATOMIC_OR = 4,
    TRELLIS_ATOMIC_XOR = 5,
    TRELLIS_ATOMIC_NAND = 6,
    TRELLIS_ATOMIC_MAX = 7,          /* signed, at the width given */
    TRELLIS_ATOMIC_MIN = 8,          /* signed, at the width given */
    TRELLIS_ATOMIC_UNSIGNED_MAX = 9,
    TRELLIS_ATOMIC_UNSIGNED_MIN = 10,
};

/* Values are zero-extended to 64 bits; bits above the width are ignored on the way in and zero on the way out. */
uint64_t __trellis_atomic_load(const void *address, unsigned bytes);
void __trellis_atomic_store(void *address, uint64_t value, unsigned bytes);
/* Returns what was there before. */
uint64_t __trellis_atomic_update(void *address, uint64_t operand, unsigned bytes, unsigned operation);
/* `expected` is native memory; on false it holds what is there. Never fails spuriously. */
bool __trellis_atomic_compare_exchange(void *address, uint64_t *expected, uint64_t desired, unsigned bytes);
void __trellis_fence(void);

/* ---- Bulk: either side may be anywhere -----------------------------------------------------------------------------
 */
void __trellis_copy(void *to, const void *from, size_t bytes); /* must not overlap, or be the same */
void __trellis_move(void *to, const void *from, size_t bytes); /* may overlap */
void __trellis_set(void *to, int byte, size_t bytes);

/* ---- Memory that plain instructions share with translated ones: mode full only; the other modes never call these ----
 * import: plain instructions have just written these bytes (a parameter passed by value, saved registers of a variadic
 * function). What the store held for them is forgotten; the next load finds the native bytes. */
void __trellis_import(const void *address, size_t bytes);
/* export: plain instructions are about to read these bytes. What the store holds is copied to native memory. */
void __trellis_export(void *address, size_t bytes);
/* keep native: from now on, and for good, these bytes live in native memory only, for translated code too (exception
 * objects, thread-locals whose address is taken, mutexes). What the store holds is copied to native memory first.
 * Asking again is cheap and harmless. */
void __trellis_keep_native(const void *address, size_t bytes);

/* ---- Lines: mode line
 * ------------------------------------------------------------------------------------------------ The inline check
 * looks at the byte at TRELLIS_LINE_STATES + ((address - BASE) >> LINE_SHIFT) and calls these when the bit is missing.
 * After return the lines that hold [address, address + bytes) may be read (written) with plain instructions. Addresses
 * outside the region are allowed and need nothing. A writable line is also readable. The check and the access are not
 * one step: another thread may lock, release or evict in between. */
void __trellis_line_read(const void *address, size_t bytes);
void __trellis_line_write(void *address, size_t bytes);

/* ---- Heap: every mode. free, realloc and usable_size also take what native malloc gave and hand it on
 * ---------------- */
void *__trellis_malloc(size_t bytes);
void *__trellis_calloc(size_t count, size_t bytes);
void *__trellis_realloc(void *address, size_t bytes);
void *__trellis_aligned_alloc(size_t alignment, size_t bytes);
void *__trellis_memalign(size_t alignment, size_t bytes);
/* `into` is an address of the program (it may be in the store); returns 0, EINVAL or ENOMEM. */
int __trellis_posix_memalign(void **into, size_t alignment, size_t bytes);
void __trellis_free(void *address);
size_t __trellis_malloc_usable_size(void *address);
/* Whether an address is one from which the heap cuts blocks. False before __trellis_start. */
bool __trellis_is_of_heap(const void *address);
/* Instead of __trellis_start, for tests of programs with libtrellis_malloc.so: the heap lies in private memory of this
 * process, without a store. `kind` is NULL, "scalable", "first-fit" or "bump". */
void __trellis_heap_over_private_memory(uintptr_t base, size_t bytes, const char *kind);

#ifdef __cplusplus
}
#endif

#endif
