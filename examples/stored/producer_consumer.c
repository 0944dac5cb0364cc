/* Two processes that share a region in a store: one puts numbers into a buffer of one, the other takes them out.
 *
 *     cc -O2 producer_consumer.c $(pkg-config --cflags --libs trellis) -o producer_consumer
 *     export TRELLIS_STORE=redis://127.0.0.1:7001 TRELLIS_STORE_REGION=queue
 *     ./producer_consumer produce & ./producer_consumer consume
 *
 * Whoever comes first makes the buffer. The semaphores need no making: they are named by the addresses of two fields.
 * Each process prints one line of JSON: what it passed on, its sum, microseconds, and the calls of the store that it
 * made. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <trellis/stored.h>

struct buffer {
    char empty, full; /* the semaphores' addresses */
    char begin;       /* the barrier's */
    int item;
};

static void check(int status) {
    if (status >= 0) return;
    fprintf(stderr, "producer_consumer: %s\n", trellis_last_error());
    exit(1);
}

static struct buffer *find_or_make(void) {
    void *found;
    check(trellis_store_root("buffer", &found));
    if (found) return found;
    struct buffer *made = trellis_store_malloc(sizeof *made);
    if (!made) check(-1);
    memset(made, 0, sizeof *made);
    check(trellis_store_semaphore_set(&made->empty, 1));
    int status = trellis_store_set_root("buffer", made);
    check(status);
    if (status) return made;
    trellis_store_free(made); /* the other was first */
    check(trellis_store_root("buffer", &found));
    return found;
}

static double microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static uint64_t calls(void) {
    trellis_store_statistics_t statistics;
    check(trellis_store_statistics(&statistics));
    return statistics.calls;
}

int main(int argc, char **argv) {
    int produces = argc > 1 && !strcmp(argv[1], "produce");
    int items = argc > 2 ? atoi(argv[2]) : 50;
    if (argc < 2 || (!produces && strcmp(argv[1], "consume")) || items <= 0) {
        fprintf(stderr, "usage: producer_consumer produce|consume [ITEMS]\n");
        return 2;
    }
    check(trellis_store_open(NULL));
    struct buffer *buffer = find_or_make();
    /* Both are there, and have touched the page, before the time is taken. */
    long sum = buffer->item;
    check(trellis_store_barrier_of(&buffer->begin, 2));
    double start = microseconds();
    uint64_t before = calls();
    for (int i = 1; i <= items; ++i) {
        if (produces) {
            check(trellis_store_semaphore_acquire(&buffer->empty));
            sum += buffer->item = i;
            check(trellis_store_semaphore_release(&buffer->full, 1));
        } else {
            check(trellis_store_semaphore_acquire(&buffer->full));
            sum += buffer->item;
            check(trellis_store_semaphore_release(&buffer->empty, 1));
        }
    }
    double took = microseconds() - start;
    unsigned long long called = calls() - before;
    printf("{\"role\": \"%s\", \"items\": %d, \"sum\": %ld, \"microseconds\": %.1f, \"calls\": %llu}\n", argv[1],
           items, sum, took, called);
    check(trellis_store_close());
    return 0;
}
