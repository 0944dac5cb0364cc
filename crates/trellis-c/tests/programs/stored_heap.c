/* The heap of compiled programs, called by its own names: answers, errno, alignment, contents. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trellis/compiled.h"

#define BYTES ((size_t)1 << 30)
#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "line %d: %s is false\n", __LINE__, #condition);   \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static int holds(const unsigned char *block, size_t bytes, unsigned char value) {
    for (size_t at = 0; at < bytes; at++)
        if (block[at] != value)
            return 0;
    return 1;
}

static void before_there_is_a_heap(void) {
    char *block = __trellis_malloc(100);
    CHECK(block && !__trellis_is_of_heap(block));
    block = __trellis_realloc(block, 200);
    CHECK(block && __trellis_malloc_usable_size(block) >= 200);
    __trellis_free(block);
}

static void misuse(const char *how) {
    char *block = __trellis_malloc(100);
    if (strcmp(how, "twice") == 0) {
        __trellis_free(block);
        __trellis_free(block);
    } else if (strcmp(how, "inside") == 0) {
        __trellis_free(block + 16);
    } else {
        __trellis_heap_over_private_memory(TRELLIS_REGION_BASE, BYTES, NULL);
    }
    CHECK(!"the process went on");
}

int main(int count, char **arguments) {
    before_there_is_a_heap();
    char *old = __trellis_malloc(50);
    strcpy(old, "older than the heap");
    __trellis_heap_over_private_memory(TRELLIS_REGION_BASE, BYTES, arguments[1]);
    int keeps_sizes = strcmp(arguments[1], "bump") != 0;
    if (count > 2)
        misuse(arguments[2]);

    old = __trellis_realloc(old, 5000);
    CHECK(strcmp(old, "older than the heap") == 0 && !__trellis_is_of_heap(old));
    __trellis_free(old);

    errno = 7;
    unsigned char *block = __trellis_malloc(1000);
    CHECK(block && __trellis_is_of_heap(block) && (uintptr_t)block % 16 == 0 && errno == 7);
    CHECK(keeps_sizes ? __trellis_malloc_usable_size(block) >= 1000 : __trellis_malloc_usable_size(block) == 0);
    memset(block, 5, 1000);
    block = __trellis_realloc(block, 100000);
    CHECK(block && holds(block, 1000, 5));
    CHECK(__trellis_realloc(block, PTRDIFF_MAX) == NULL && errno == ENOMEM && holds(block, 1000, 5));
    block = __trellis_realloc(block, 10);
    CHECK(block && holds(block, 10, 5));
    CHECK(__trellis_realloc(block, 0) == NULL);
    block = __trellis_realloc(NULL, 10);
    CHECK(block);
    errno = 7;
    __trellis_free(block);
    __trellis_free(NULL);
    CHECK(errno == 7 && __trellis_malloc_usable_size(NULL) == 0);

    for (int turn = 0; turn < 100; turn++) {
        unsigned char *zeros = __trellis_calloc(100, 37);
        CHECK(zeros && holds(zeros, 3700, 0));
        memset(zeros, 255, 3700);
        __trellis_free(zeros);
    }
    CHECK(__trellis_calloc(SIZE_MAX / 2, 3) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(__trellis_malloc(SIZE_MAX) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(__trellis_malloc(BYTES + 1) == NULL && errno == ENOMEM);
    void *nothing = __trellis_malloc(0), *more = __trellis_malloc(0);
    CHECK(nothing && more && nothing != more);
    __trellis_free(nothing);
    __trellis_free(more);

    for (size_t alignment = 8; alignment <= 1 << 20; alignment *= 2) {
        void *aligned = NULL;
        CHECK(__trellis_posix_memalign(&aligned, alignment, 100) == 0 && (uintptr_t)aligned % alignment == 0);
        __trellis_free(aligned);
        aligned = __trellis_aligned_alloc(alignment, alignment);
        CHECK(aligned && (uintptr_t)aligned % alignment == 0);
        __trellis_free(aligned);
    }
    void *untouched = &count;
    CHECK(__trellis_posix_memalign(&untouched, 24, 100) == EINVAL);
    CHECK(__trellis_posix_memalign(&untouched, 4, 1) == EINVAL);
    CHECK(__trellis_posix_memalign(&untouched, 16, SIZE_MAX - 100) == ENOMEM && untouched == (void *)&count);
    errno = 0;
    CHECK(__trellis_aligned_alloc(24, 100) == NULL && errno == EINVAL);
    void *rounded = __trellis_memalign(24, 100);
    CHECK(rounded && (uintptr_t)rounded % 32 == 0);
    puts("ok");
    return 0;
}
