/* The test double's heap: pieces by size, reused last in first out, with notes outside the region.
 *
 * Freed memory is poisoned in the store, so that a use after free shows.
 */
#include "double.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum { unit = 16, units = region_bytes / unit, sizes = 4096 };

static uint32_t bytes_at[units]; /* size of the piece that starts here; 0: none */
static uint32_t next_free[units];
static uint32_t free_of_size[sizes];
static size_t used_units = 4; /* no piece lies at the very start */

static void *address_of(size_t at) { return (char *)TRELLIS_REGION_BASE + at * unit; }
static size_t unit_of(const void *address) { return ((uintptr_t)address - TRELLIS_REGION_BASE) / unit; }

static void *cut(size_t alignment, size_t bytes) {
    size_t count = (bytes ? bytes + unit - 1 : unit) / unit;
    size_t at = 0;
    if (count < sizes && alignment <= unit && free_of_size[count]) {
        at = free_of_size[count];
        free_of_size[count] = next_free[at];
    } else {
        size_t step = alignment / unit ? alignment / unit : 1;
        at = (used_units + step - 1) / step * step;
        if (bytes > region_bytes || at + count > units) {
            errno = ENOMEM;
            return NULL;
        }
        used_units = at + count;
    }
    bytes_at[at] = (uint32_t)(bytes ? bytes : 1);
    return address_of(at);
}

void *__trellis_aligned_alloc(size_t alignment, size_t bytes) {
    pthread_mutex_lock(&double_lock);
    lines_forget();
    void *address = cut(alignment, bytes);
    pthread_mutex_unlock(&double_lock);
    return address;
}

void *__trellis_malloc(size_t bytes) { return __trellis_aligned_alloc(unit, bytes); }

void *__trellis_calloc(size_t count, size_t bytes) {
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    void *address = __trellis_malloc(all);
    if (address) {
        if (double_mode == TRELLIS_MODE_LINE) {
            __trellis_line_write(address, all);
            memset(address, 0, all);
        } else {
            __trellis_set(address, 0, all);
        }
    }
    return address;
}

static size_t size_of(const void *address) {
    size_t bytes = bytes_at[unit_of(address)];
    if (!bytes || (uintptr_t)address % unit)
        double_fail("a free or realloc of what malloc did not give", address);
    return bytes;
}

void __trellis_free(void *address) {
    if (!in_region(address)) {
        free(address);
        return;
    }
    size_t bytes = size_of(address);
    if (double_mode == TRELLIS_MODE_LINE) {
        __trellis_line_write(address, bytes);
        memset(address, 0xdd, bytes);
    } else {
        __trellis_set(address, 0xdd, bytes);
    }
    pthread_mutex_lock(&double_lock);
    lines_forget();
    size_t at = unit_of(address), count = (bytes + unit - 1) / unit;
    bytes_at[at] = 0;
    if (count < sizes) {
        next_free[at] = free_of_size[count];
        free_of_size[count] = (uint32_t)at;
    }
    pthread_mutex_unlock(&double_lock);
}

void *__trellis_realloc(void *address, size_t bytes) {
    if (address && !in_region(address))
        return realloc(address, bytes);
    void *fresh = __trellis_malloc(bytes);
    if (!address || !fresh)
        return fresh;
    size_t old = size_of(address), least = old < bytes ? old : bytes;
    if (double_mode == TRELLIS_MODE_LINE) {
        __trellis_line_write(fresh, least);
        __trellis_line_read(address, least);
        memcpy(fresh, address, least);
    } else {
        __trellis_copy(fresh, address, least);
    }
    __trellis_free(address);
    return fresh;
}

int __trellis_posix_memalign(void **into, size_t alignment, size_t bytes) {
    if (alignment < sizeof(void *) || (alignment & (alignment - 1)))
        return EINVAL;
    void *address = __trellis_aligned_alloc(alignment, bytes);
    if (!address)
        return ENOMEM;
    if (double_mode == TRELLIS_MODE_LINE)
        *into = address;
    else
        __trellis_store(into, &address, sizeof address);
    return 0;
}

size_t __trellis_malloc_usable_size(void *address) {
    return in_region(address) ? size_of(address) : malloc_usable_size(address);
}
