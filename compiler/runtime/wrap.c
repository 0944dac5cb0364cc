/* Native pieces of the program's memory; wrap.h says what they promise. */
#include "wrap.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { block_bytes = 256 };

void refuse_at_run_time(const char *function, const char *fact) {
    fprintf(stderr, "trellis: %s %s; use --mode line\n", function, fact);
    fflush(NULL);
    _exit(70);
}

static char *space(struct piece *piece, void *program, size_t bytes) {
    piece->program = program;
    piece->owned = NULL;
    if (is_native(program))
        return piece->native = program;
    if (bytes <= sizeof piece->small)
        return piece->native = piece->small;
    piece->native = piece->owned = malloc(bytes);
    if (!piece->native)
        refuse_at_run_time("a library function", "needs more native memory than there is");
    return piece->native;
}

const void *take(struct piece *piece, const void *program, size_t bytes) {
    return take_room(piece, (void *)program, bytes);
}

void *room(struct piece *piece, void *program, size_t bytes) { return space(piece, program, bytes); }

void *take_room(struct piece *piece, void *program, size_t bytes) {
    char *native = space(piece, program, bytes);
    if (native != program && bytes)
        __trellis_load(program, native, bytes);
    return native;
}

size_t length_of(const char *program, size_t most) {
#if TRELLIS_MODE != 1
    if (is_native(program))
        return strnlen(program, most);
#endif
    char block[block_bytes];
    size_t length = 0;
    while (length < most) {
        const char *at = program + length;
        size_t bytes = block_bytes - (uintptr_t)at % block_bytes;
        if (bytes > most - length)
            bytes = most - length;
        __trellis_load(at, block, bytes);
        size_t found = strnlen(block, bytes);
        length += found;
        if (found < bytes)
            break;
    }
    return length;
}

const char *take_string(struct piece *piece, const char *program) {
    if (is_native(program))
        return take(piece, program, 0);
    return take(piece, program, length_of(program, SIZE_MAX) + 1);
}

const char *take_at_most(struct piece *piece, const char *program, size_t most, size_t *length) {
    *length = length_of(program, most);
    return take(piece, program, *length < most ? *length + 1 : most);
}

void give(struct piece *piece, size_t bytes) {
    if (piece->native != piece->program && bytes)
        __trellis_store(piece->program, piece->native, bytes);
}

void drop(struct piece *piece) {
    free(piece->owned);
    piece->owned = NULL;
}

void *heap_copy(const void *native, size_t bytes) {
    void *program = __trellis_malloc(bytes);
    if (program)
        put_bytes(program, native, bytes);
    return program;
}

/* ---- shadows ---- */

struct shadow {
    struct shadow *next;
    void *program;
    _Alignas(16) char object[];
};

/* Shared by all translated objects of the process: a lock that the program made is the one that its libraries take. */
enum { chains = 1024 };
#define SHARED __attribute__((weak, visibility("default")))
struct shadow *shadows[chains] __asm__("__trellis_shadows" TRELLIS_SUFFIX) SHARED;
pthread_mutex_t shadows_lock __asm__("__trellis_shadows_lock" TRELLIS_SUFFIX) SHARED = PTHREAD_MUTEX_INITIALIZER;

static struct shadow **chain_of(const void *program) { return &shadows[((uintptr_t)program >> 3) % chains]; }

static struct shadow *found(const void *program) {
    struct shadow *shadow = *chain_of(program);
    while (shadow && shadow->program != program)
        shadow = shadow->next;
    return shadow;
}

/* One that nobody has seen yet, for an address that has none; the table is locked. */
static struct shadow *added(void *program, size_t bytes) {
    struct shadow *shadow = calloc(1, sizeof *shadow + bytes), **chain = chain_of(program);
    if (!shadow)
        refuse_at_run_time("a lock", "needs more native memory than there is");
    shadow->program = program;
    shadow->next = *chain;
    *chain = shadow;
    return shadow;
}

void *native_object(void *program, size_t bytes) {
    if (!in_region(program)) {
#if TRELLIS_MODE == 1
        __trellis_keep_native(program, bytes);
#endif
        return program;
    }
    pthread_mutex_lock(&shadows_lock);
    struct shadow *shadow = found(program);
    if (!shadow) {
        shadow = added(program, bytes);
        /* What a static initialiser or an earlier memcpy put there. */
        __trellis_load(program, shadow->object, bytes);
    }
    pthread_mutex_unlock(&shadows_lock);
    return shadow->object;
}

void *native_place(void *program, size_t bytes) {
    if (is_native(program))
        return program;
    pthread_mutex_lock(&shadows_lock);
    struct shadow *shadow = found(program);
    if (!shadow && bytes)
        shadow = added(program, bytes);
    pthread_mutex_unlock(&shadows_lock);
    return shadow ? shadow->object : NULL;
}

void forget_object(void *program) {
    if (!in_region(program))
        return;
    pthread_mutex_lock(&shadows_lock);
    struct shadow **link = chain_of(program);
    while (*link && (*link)->program != program)
        link = &(*link)->next;
    struct shadow *gone = *link;
    if (gone)
        *link = gone->next;
    pthread_mutex_unlock(&shadows_lock);
    free(gone);
}
