/* The parts of the test double: a runtime inside the process, made so that every untranslated access is noticed.
 *
 * Promises: translated bytes really lie elsewhere. The region itself is inaccessible in word modes, and in mode full
 * native memory never sees a translated store; in mode line frames are poisoned and closed until a check or a fault
 * outside the program opens them, and a fault inside the program ends it with status 97.
 * It must never be linked with anything but tests. It is not a store: one process, no network, no eviction policy.
 */
#ifndef TRELLIS_TEST_DOUBLE_H
#define TRELLIS_TEST_DOUBLE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdbool.h>

#include "trellis/compiled.h"

enum { region_bytes = 1 << 28, page_bytes = 4096, untranslated_status = 97 };

#define PART __attribute__((visibility("hidden")))

/* Bytes wherever they are; the caller holds `double_lock`. */
PART extern pthread_mutex_t double_lock;
PART extern unsigned char *double_store; /* the truth about the region */
PART extern unsigned double_mode;
PART extern unsigned long long double_calls;

PART void read_bytes(const void *address, void *into, size_t bytes);
PART void write_bytes(void *address, const void *from, size_t bytes);
/* Mode full, addresses outside the region. */
PART void read_private(const void *address, void *into, size_t bytes);
PART void write_private(void *address, const void *from, size_t bytes);
/* Mode line. */
PART void lines_start(void);
PART void lines_forget(void);

static inline bool in_region(const void *address) {
    return (uintptr_t)address - TRELLIS_REGION_BASE < TRELLIS_REGION_SPAN;
}

PART __attribute__((noreturn)) void double_fail(const char *fact, const void *address);

#endif
