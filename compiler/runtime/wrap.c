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

enum { chains = 1024 };
static struct shadow *table[chains];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static struct shadow **chain_of(const void *program) { return &table[((uintptr_t)program >> 3) % chains]; }

void *native_object(void *program, size_t bytes) {
    if (!in_region(program)) {
#if TRELLIS_MODE == 1
        __trellis_keep_native(program, bytes);
#endif
        return program;
    }
    pthread_mutex_lock(&table_lock);
    struct shadow **chain = chain_of(program), *shadow = *chain;
    while (shadow && shadow->program != program)
        shadow = shadow->next;
    if (!shadow) {
        shadow = calloc(1, sizeof *shadow + bytes);
        if (!shadow)
            refuse_at_run_time("a lock", "needs more native memory than there is");
        /* What a static initialiser or an earlier memcpy put there. */
        __trellis_load(program, shadow->object, bytes);
        shadow->program = program;
        shadow->next = *chain;
        *chain = shadow;
    }
    pthread_mutex_unlock(&table_lock);
    return shadow->object;
}

void forget_object(void *program) {
    if (!in_region(program))
        return;
    pthread_mutex_lock(&table_lock);
    struct shadow **link = chain_of(program);
    while (*link && (*link)->program != program)
        link = &(*link)->next;
    struct shadow *gone = *link;
    if (gone)
        *link = gone->next;
    pthread_mutex_unlock(&table_lock);
    free(gone);
}
