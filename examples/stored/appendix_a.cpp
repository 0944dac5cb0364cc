// The paper's test program (appendix A), written again: what it measures in sections 6.1 and 6.2.
//
//     trellis c++ --mode heap appendix_a.cpp -o appendix_a && ./appendix_a heap 100
//
// Tests: `stack` writes a 10x10 matrix in the frame, `heap` one that malloc gave, `producer_consumer` passes 50 numbers
// through a buffer of one on the heap, guarded by two semaphores, between two threads; `counter` lets two threads
// increment one number under a lock. Each is checked afterwards. One line of JSON says the median time and the largest
// number of calls to the store of one repetition; `calls` is null where the program was compiled without Trellis.
//
// Nothing in it knows about Trellis but the counter of calls, which is optional.

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Calls to the store that this process has made so far; only there when libtrellis is.
extern "C" unsigned long long trellis_store_calls(void) __attribute__((weak));
// Writes back what the cached modes keep here, so that the time of a test holds it.
extern "C" int trellis_store_release(void) __attribute__((weak));

constexpr int rows = 10, columns = 10, items = 50, increments = 100;
constexpr int repetitions_max = 10000;

static char *heap_matrix;
static int *buffer;
static sem_t empty_slots, full_slots, lock;
static int target;
static int consumed_total;

static void test_stack_allocation(char matrix[][columns]) {
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            matrix[i][j] = (i * columns + j) % 128;
        }
    }
}

static void test_heap_allocation() {
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            *(heap_matrix + i * columns + j) = (i * columns + j) % 128;
        }
    }
}

static void *produce(void *) {
    for (int i = 1; i <= items; i++) {
        sem_wait(&empty_slots);
        *buffer = i;
        sem_post(&full_slots);
    }
    return nullptr;
}

static void *consume(void *) {
    int total = 0;
    for (int i = 0; i < items; i++) {
        sem_wait(&full_slots);
        total += *buffer;
        sem_post(&empty_slots);
    }
    consumed_total = total;
    return nullptr;
}

static void *increment(void *) {
    for (int i = 0; i < increments; i++) {
        sem_wait(&lock);
        target++;
        sem_post(&lock);
    }
    return nullptr;
}

static void test_producer_consumer() {
    pthread_t producer, consumer;
    pthread_create(&producer, nullptr, produce, nullptr);
    pthread_create(&consumer, nullptr, consume, nullptr);
    pthread_join(producer, nullptr);
    pthread_join(consumer, nullptr);
}

static void test_counter() {
    pthread_t one, other;
    pthread_create(&one, nullptr, increment, nullptr);
    pthread_create(&other, nullptr, increment, nullptr);
    pthread_join(one, nullptr);
    pthread_join(other, nullptr);
}

static bool test_stack_correctness(char matrix[][columns]) {
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            if (matrix[i][j] != (i * columns + j) % 128) {
                printf("row %d column %d is %d\n", i, j, matrix[i][j]);
                return false;
            }
        }
    }
    return true;
}

static bool test_heap_correctness(const char *matrix) {
    bool correct = true;
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            if (*(matrix + i * columns + j) != (i * columns + j) % 128) {
                correct = false;
            }
        }
    }
    return correct;
}

static void release() {
    if (trellis_store_release != nullptr) trellis_store_release();
}

static double now_us() {
    // A thread-local is native memory in every mode, so that reading the clock makes no calls to a store.
    static thread_local timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

static unsigned long long calls_so_far() {
    return trellis_store_calls ? trellis_store_calls() : 0;
}

// What a test did in one repetition.
struct Measured {
    double microseconds;
    unsigned long long calls;
    bool correct;
};

static Measured measure_stack() {
    char matrix[rows][columns];
    unsigned long long calls = calls_so_far();
    double start = now_us();
    test_stack_allocation(matrix);
    double microseconds = now_us() - start;
    calls = calls_so_far() - calls;
    return {microseconds, calls, test_stack_correctness(matrix)};
}

static Measured measure_heap() {
    heap_matrix = static_cast<char *>(malloc(rows * columns));
    // Other bytes than the test writes, and known to the store: what malloc gives may be what the last repetition
    // wrote, and then a cached mode would find nothing to write back.
    memset(heap_matrix, 127, rows * columns);
    release();
    unsigned long long calls = calls_so_far();
    double start = now_us();
    test_heap_allocation();
    release();
    double microseconds = now_us() - start;
    calls = calls_so_far() - calls;
    bool correct = test_heap_correctness(heap_matrix);
    free(heap_matrix);
    return {microseconds, calls, correct};
}

static Measured measure_producer_consumer() {
    buffer = static_cast<int *>(malloc(sizeof *buffer));
    sem_init(&empty_slots, 0, 1);
    sem_init(&full_slots, 0, 0);
    // As above: the last repetition left in the buffer what this one will.
    *buffer = 0;
    release();
    unsigned long long calls = calls_so_far();
    double start = now_us();
    test_producer_consumer();
    release();
    double microseconds = now_us() - start;
    calls = calls_so_far() - calls;
    free(buffer);
    return {microseconds, calls, consumed_total == items * (items + 1) / 2};
}

static Measured measure_counter() {
    target = 0;
    sem_init(&lock, 0, 1);
    unsigned long long calls = calls_so_far();
    double start = now_us();
    test_counter();
    release();
    double microseconds = now_us() - start;
    calls = calls_so_far() - calls;
    return {microseconds, calls, target == 2 * increments};
}

static Measured measure(const char *test) {
    if (strcmp(test, "stack") == 0) return measure_stack();
    if (strcmp(test, "heap") == 0) return measure_heap();
    if (strcmp(test, "producer_consumer") == 0) return measure_producer_consumer();
    return measure_counter();
}

static double times_us[repetitions_max];

static int by_size(const void *left, const void *right) {
    double a = *static_cast<const double *>(left), b = *static_cast<const double *>(right);
    return a < b ? -1 : a > b;
}

static bool is_test(const char *name) {
    return strcmp(name, "stack") == 0 || strcmp(name, "heap") == 0 || strcmp(name, "producer_consumer") == 0 ||
           strcmp(name, "counter") == 0;
}

int main(int count, char **arguments) {
    int repetitions = count > 2 ? atoi(arguments[2]) : 1;
    if (count < 2 || !is_test(arguments[1]) || repetitions < 1 || repetitions > repetitions_max) {
        fprintf(stderr, "usage: appendix_a stack|heap|producer_consumer|counter [repetitions, at most %d]\n",
                repetitions_max);
        return 2;
    }
    unsigned long long calls_most = 0;
    for (int i = 0; i < repetitions; i++) {
        Measured measured = measure(arguments[1]);
        if (!measured.correct) {
            fprintf(stderr, "appendix_a: %s gave a wrong result in repetition %d\n", arguments[1], i);
            return 1;
        }
        times_us[i] = measured.microseconds;
        if (measured.calls > calls_most) calls_most = measured.calls;
    }
    qsort(times_us, repetitions, sizeof times_us[0], by_size);
    printf("{\"test\":\"%s\",\"repetitions\":%d,\"microseconds\":%.3f,\"calls\":", arguments[1], repetitions,
           times_us[repetitions / 2]);
    if (trellis_store_calls)
        printf("%llu}\n", calls_most);
    else
        printf("null}\n");
    return 0;
}
