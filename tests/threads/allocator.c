// Blocks that go from thread to thread: each is filled, given to another thread, checked and freed there.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 4, ROUNDS = 2000, PLACES = 64 };

struct block {
    size_t bytes;
    unsigned char fill;
    unsigned char data[];
};

static struct block *_Atomic places[PLACES];
static int bad;

static void check_and_free(struct block *block) {
    for (size_t i = 0; i < block->bytes; i++) {
        if (block->data[i] != block->fill) {
            __atomic_add_fetch(&bad, 1, __ATOMIC_SEQ_CST);
            break;
        }
    }
    free(block);
}

static void *work(void *argument) {
    uint64_t random = 88172645463325252u + (uintptr_t)argument;
    for (int round = 0; round < ROUNDS; round++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        size_t bytes = random % 100 == 0 ? random % 100000 : random % 300;
        struct block *block = malloc(sizeof *block + bytes);
        block->bytes = bytes;
        block->fill = (unsigned char)random;
        memset(block->data, block->fill, bytes);
        if (random % 7 == 0) {
            block = realloc(block, sizeof *block + 2 * bytes);
            memset(block->data + bytes, block->fill, bytes);
            block->bytes = 2 * bytes;
        }
        struct block *other = __atomic_exchange_n(&places[random % PLACES], block, __ATOMIC_SEQ_CST);
        if (other) check_and_free(other);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(i * 7919));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < PLACES; i++) {
        if (places[i]) check_and_free(places[i]);
    }
    char *zero = calloc(1000, 1000);
    for (int i = 0; i < 1000000; i++) bad += zero[i] != 0;
    free(zero);
    void *aligned;
    if (posix_memalign(&aligned, 4096, 100) || (uintptr_t)aligned % 4096) bad++;
    free(aligned);
    char *mapped = mmap(NULL, 100000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 100000; i++) bad += mapped[i] != 0, mapped[i] = 1;
    if (munmap(mapped, 100000)) bad++;
    printf("allocator: %d bad\n", bad);
    return bad != 0;
}
