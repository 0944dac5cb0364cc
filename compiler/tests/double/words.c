/* The test double's words, atomics and bulk functions; double.h says what it promises. */
#include "double.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_mutex_t double_lock = PTHREAD_MUTEX_INITIALIZER;
unsigned char *double_store;
unsigned double_mode;
unsigned long long double_calls;

void double_fail(const char *fact, const void *address) {
    char text[200];
    int length = snprintf(text, sizeof text, "test double: %s at %p\n", fact, address);
    if (write(2, text, (size_t)length) < 0)
        _exit(untranslated_status - 1);
    _exit(untranslated_status);
}

void __trellis_start(const struct trellis_compiled_program *program) {
    if (program->abi != TRELLIS_COMPILED_ABI || (double_mode && double_mode != program->mode))
        double_fail("programs of two modes or versions in one process", program);
    if (double_mode)
        return;
    double_mode = program->mode;
    void *base = mmap((void *)TRELLIS_REGION_BASE, region_bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    double_store = mmap(NULL, region_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base != (void *)TRELLIS_REGION_BASE || double_store == MAP_FAILED)
        double_fail("the region cannot be mapped", base);
    if (double_mode == TRELLIS_MODE_LINE)
        lines_start();
}

static unsigned char *place(const void *address, size_t bytes) {
    uintptr_t offset = (uintptr_t)address - TRELLIS_REGION_BASE;
    if (offset + bytes > region_bytes)
        double_fail("an access outside the heap of the test double", address);
    return double_store + offset;
}

void read_bytes(const void *address, void *into, size_t bytes) {
    double_calls++;
    if (in_region(address))
        memcpy(into, place(address, bytes), bytes);
    else if (double_mode == TRELLIS_MODE_FULL)
        read_private(address, into, bytes);
    else
        memcpy(into, address, bytes);
}

void write_bytes(void *address, const void *from, size_t bytes) {
    double_calls++;
    if (in_region(address))
        memcpy(place(address, bytes), from, bytes);
    else if (double_mode == TRELLIS_MODE_FULL)
        write_private(address, from, bytes);
    else
        memcpy(address, from, bytes);
}

int trellis_store_statistics(uint64_t *into) {
    *into = double_calls;
    return 0;
}

void __trellis_load(const void *address, void *into, size_t bytes) {
    pthread_mutex_lock(&double_lock);
    read_bytes(address, into, bytes);
    pthread_mutex_unlock(&double_lock);
}

void __trellis_store(void *address, const void *from, size_t bytes) {
    pthread_mutex_lock(&double_lock);
    write_bytes(address, from, bytes);
    pthread_mutex_unlock(&double_lock);
}

/* In mode heap the pass promises to call these for the region only. */
static void only_region(const void *address) {
    if (double_mode == TRELLIS_MODE_HEAP && !in_region(address))
        double_fail("a word access outside the region in mode heap", address);
}

#define WORD(bits, bytes)                                                                                              \
    uint##bits##_t __trellis_load_##bytes(const void *address) {                                                       \
        uint##bits##_t value;                                                                                          \
        only_region(address);                                                                                          \
        __trellis_load(address, &value, bytes);                                                                        \
        return value;                                                                                                  \
    }                                                                                                                  \
    void __trellis_store_##bytes(void *address, uint##bits##_t value) {                                                \
        only_region(address);                                                                                          \
        __trellis_store(address, &value, bytes);                                                                       \
    }
WORD(8, 1)
WORD(16, 2)
WORD(32, 4)
WORD(64, 8)

void __trellis_move(void *to, const void *from, size_t bytes) {
    unsigned char block[page_bytes];
    pthread_mutex_lock(&double_lock);
    bool backwards = (uintptr_t)to > (uintptr_t)from;
    for (size_t done = 0; done < bytes;) {
        size_t count = bytes - done < sizeof block ? bytes - done : sizeof block;
        size_t at = backwards ? bytes - done - count : done;
        read_bytes((const char *)from + at, block, count);
        write_bytes((char *)to + at, block, count);
        done += count;
    }
    pthread_mutex_unlock(&double_lock);
}

void __trellis_copy(void *to, const void *from, size_t bytes) { __trellis_move(to, from, bytes); }

void __trellis_set(void *to, int byte, size_t bytes) {
    unsigned char block[page_bytes];
    memset(block, byte, sizeof block);
    pthread_mutex_lock(&double_lock);
    for (size_t done = 0; done < bytes;) {
        size_t count = bytes - done < sizeof block ? bytes - done : sizeof block;
        write_bytes((char *)to + done, block, count);
        done += count;
    }
    pthread_mutex_unlock(&double_lock);
}

/* ---- atomics: everything under one lock ---- */

static uint64_t masked(uint64_t value, unsigned bytes) {
    return bytes == 8 ? value : value & ((1ull << bytes * 8) - 1);
}

static int64_t extended(uint64_t value, unsigned bytes) {
    unsigned shift = 64 - bytes * 8;
    return (int64_t)(value << shift) >> shift;
}

static uint64_t applied(uint64_t old, uint64_t operand, unsigned bytes, unsigned operation) {
    int64_t a = extended(old, bytes), b = extended(operand, bytes);
    uint64_t left = masked(old, bytes), right = masked(operand, bytes);
    switch (operation) {
    case TRELLIS_ATOMIC_EXCHANGE: return operand;
    case TRELLIS_ATOMIC_ADD: return old + operand;
    case TRELLIS_ATOMIC_SUBTRACT: return old - operand;
    case TRELLIS_ATOMIC_AND: return old & operand;
    case TRELLIS_ATOMIC_OR: return old | operand;
    case TRELLIS_ATOMIC_XOR: return old ^ operand;
    case TRELLIS_ATOMIC_NAND: return ~(old & operand);
    case TRELLIS_ATOMIC_MAX: return a > b ? old : operand;
    case TRELLIS_ATOMIC_MIN: return a < b ? old : operand;
    case TRELLIS_ATOMIC_UNSIGNED_MAX: return left > right ? old : operand;
    case TRELLIS_ATOMIC_UNSIGNED_MIN: return left < right ? old : operand;
    default: double_fail("an unknown atomic operation", (void *)(uintptr_t)operation);
    }
}

uint64_t __trellis_atomic_load(const void *address, unsigned bytes) {
    uint64_t value = 0;
    __trellis_load(address, &value, bytes);
    return value;
}

void __trellis_atomic_store(void *address, uint64_t value, unsigned bytes) { __trellis_store(address, &value, bytes); }

uint64_t __trellis_atomic_update(void *address, uint64_t operand, unsigned bytes, unsigned operation) {
    uint64_t old = 0;
    pthread_mutex_lock(&double_lock);
    read_bytes(address, &old, bytes);
    uint64_t value = applied(old, operand, bytes, operation);
    write_bytes(address, &value, bytes);
    pthread_mutex_unlock(&double_lock);
    return old;
}

bool __trellis_atomic_compare_exchange(void *address, uint64_t *expected, uint64_t desired, unsigned bytes) {
    uint64_t old = 0;
    pthread_mutex_lock(&double_lock);
    read_bytes(address, &old, bytes);
    bool same = old == masked(*expected, bytes);
    if (same)
        write_bytes(address, &desired, bytes);
    pthread_mutex_unlock(&double_lock);
    *expected = old;
    return same;
}

void __trellis_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
