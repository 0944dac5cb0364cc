// The paper's producer and consumer as two processes: 50 numbers through a buffer of one, in a region of a store.
//
//     two_processes producer|consumer [repetitions]
//
// The buffer is memory that malloc gave, known to the consumer by a name; the semaphores are the store's. A round
// begins when both are there, know the semaphores, and have touched the buffer, as in the paper's test, which makes
// them before it takes the time. Each process prints one line of JSON: the median time of a round and the largest
// number of calls to the store in one.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// As trellis/stored.h declares them; weak, so that the program is also linked where the library is only preloaded,
// and without the header's folder.
int trellis_store_root(const char *name, void **address) __attribute__((weak));
int trellis_store_set_root(const char *name, const void *address) __attribute__((weak));
const void *trellis_store_name(const char *name) __attribute__((weak));
int trellis_store_semaphore_begin(const void *semaphore, uint64_t value) __attribute__((weak));
int trellis_store_semaphore_acquire(const void *semaphore) __attribute__((weak));
int trellis_store_semaphore_release(const void *semaphore, uint64_t count) __attribute__((weak));
int trellis_store_barrier_of(const void *barrier, uint32_t participants) __attribute__((weak));
unsigned long long trellis_store_calls(void) __attribute__((weak));
const char *trellis_last_error(void) __attribute__((weak));

enum { items = 50, repetitions_max = 10000 };

static const void *begun, *ready, *empty, *full;
static double times_us[repetitions_max];

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void must(int status) {
    if (status >= 0) return;
    fprintf(stderr, "trellis: %s\n", trellis_last_error());
    exit(1);
}

static void produce(int *buffer) {
    for (int i = 1; i <= items; i++) {
        must(trellis_store_semaphore_acquire(empty));
        *buffer = i;
        must(trellis_store_semaphore_release(full, 1));
    }
}

static int consume(const int *buffer) {
    int total = 0;
    for (int i = 0; i < items; i++) {
        must(trellis_store_semaphore_acquire(full));
        total += *buffer;
        must(trellis_store_semaphore_release(empty, 1));
    }
    return total;
}

static int by_size(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static void rounds(int *buffer, int produces, int repetitions) {
    const int sum = items * (items + 1) / 2;
    unsigned long long most = 0;
    for (int i = 0; i < repetitions; i++) {
        must(trellis_store_barrier_of(ready, 2));
        unsigned long long calls = trellis_store_calls();
        int total = sum;
        double start = now_us();
        if (produces)
            produce(buffer);
        else
            total = consume(buffer);
        times_us[i] = now_us() - start;
        calls = trellis_store_calls() - calls;
        if (calls > most) most = calls;
        if (total != sum) {
            fprintf(stderr, "trellis: the numbers add up to %d in repetition %d, not to %d\n", total, i, sum);
            exit(1);
        }
    }
    qsort(times_us, repetitions, sizeof times_us[0], by_size);
    printf("{\"role\":\"%s\",\"repetitions\":%d,\"microseconds\":%.3f,\"calls\":%llu}\n",
           produces ? "producer" : "consumer", repetitions, times_us[repetitions / 2], most);
}

// The first use of a name asks the store for its number. Whoever comes second changes nothing.
static void know_semaphores(void) {
    must(trellis_store_semaphore_begin(empty, 1));
    must(trellis_store_semaphore_begin(full, 0));
}

static int *make_buffer(void) {
    int *buffer = malloc(sizeof *buffer);
    *buffer = 0;
    know_semaphores();
    must(trellis_store_set_root("buffer", buffer));
    must(trellis_store_semaphore_release(begun, 1));
    return buffer;
}

static int *find_buffer(void) {
    void *buffer = NULL;
    must(trellis_store_semaphore_acquire(begun));
    know_semaphores();
    must(trellis_store_root("buffer", &buffer));
    // It comes from the store here.
    (void)*(volatile int *)buffer;
    return buffer;
}

int main(int count, char **arguments) {
    int produces = count > 1 && strcmp(arguments[1], "producer") == 0;
    int consumes = count > 1 && strcmp(arguments[1], "consumer") == 0;
    int repetitions = count > 2 ? atoi(arguments[2]) : 1;
    if (!(produces || consumes) || repetitions < 1 || repetitions > repetitions_max) {
        fprintf(stderr, "trellis: two_processes takes producer or consumer, and repetitions\n");
        return 2;
    }
    if (!trellis_store_name || !trellis_store_calls) {
        fprintf(stderr, "trellis: libtrellis is not loaded, or has no trellis_store_calls\n");
        return 1;
    }
    begun = trellis_store_name("begun");
    ready = trellis_store_name("ready");
    empty = trellis_store_name("empty");
    full = trellis_store_name("full");
    rounds(produces ? make_buffer() : find_buffer(), produces, repetitions);
    return 0;
}
